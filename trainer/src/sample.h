/* sample.h - from logits to the next token, and the loop that generates a text. */
#ifndef ORDO_TRAINER_SAMPLE_H
#define ORDO_TRAINER_SAMPLE_H

#include "embed.h"
#include "tokenizer.h"

typedef struct ordo_sampling {
  double temperature; /* 0: always the largest logit, the first of equal ones */
  int64_t top_k;      /* 0: all */
  double top_p;       /* 1: all */
  uint64_t seed;
  int stop; /* 1: stop at the begin token */
} ordo_sampling;

/* The token for a uniform number in [0, 1). top_k keeps the k largest logits, then top_p the smallest set of them that reaches
 * the probability. */
int32_t ordo_sample_token(const float *logits, int64_t vocab, const ordo_sampling *sampling, double uniform);
/* Appends to ids (int32_t, a prompt of at least one) until it holds positions + 1 tokens: `positions` of them are computed. `emit`
 * is called for each token, prompt included; may be null. Collective over the session. Errors: in the context. */
ordo_status ordo_generate(ordo_embed *embed, GArray *ids, int64_t positions, const ordo_sampling *sampling, int32_t begin,
                          void (*emit)(void *ctx, int32_t previous, int32_t id), void *ctx);
/* The ids that a prompt stands for. Bytes have no begin token here (texts are trained without it): an empty prompt is a line end. */
GArray *ordo_prompt_ids(const ordo_tokenizer *tokenizer, const char *prompt);

#endif
