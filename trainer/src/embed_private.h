/* embed_private.h - what embed.c, embed_step.c and embed_gather.c share. */
#ifndef ORDO_TRAINER_EMBED_PRIVATE_H
#define ORDO_TRAINER_EMBED_PRIVATE_H

#include "embed.h"

struct ordo_embed {
  ordo_embed_options options;
  struct llama *llama;
  ordo_session *session;
  const ordo_model *model;
  int32_t rank; /* on the data axes */
  int32_t ranks;
  ordo_data_part part;
  size_t tokens; /* of this rank's share of a step, or of a micro-batch if that is more */
  int32_t *ids;  /* [tokens], and behind them targets [tokens] */
  int32_t *targets;
};

/* Tells options.activity. */
void ordo_embed_activity(const ordo_embed *embed, ordo_activity activity, const char *unit, ordo_edge edge);
/* The unit events, as the model's hooks: ctx is the embed, the result a status. */
int ordo_embed_pre_forward(void *ctx, uint32_t unit);
int ordo_embed_post_forward(void *ctx, uint32_t unit);
int ordo_embed_pre_backward(void *ctx, uint32_t unit);
int ordo_embed_post_backward(void *ctx, uint32_t unit);

#endif
