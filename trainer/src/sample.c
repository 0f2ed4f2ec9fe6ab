/* sample.c - see sample.h. Every rank samples the same token: same logits, same stream of random numbers, no communication. */
#include "sample.h"

#include "random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct candidate {
  double weight;
  int32_t id;
} candidate;

static int by_weight(const void *a, const void *b)
{
  const candidate *x = a, *y = b;
  if (x->weight != y->weight)
    return x->weight > y->weight ? -1 : 1;
  return (x->id > y->id) - (x->id < y->id);
}

static int32_t largest(const float *logits, int64_t vocab)
{
  int64_t best = 0;
  for (int64_t i = 1; i < vocab; i++)
    if (logits[i] > logits[best])
      best = i;
  return (int32_t)best;
}

int32_t ordo_sample_token(const float *logits, int64_t vocab, const ordo_sampling *sampling, double uniform)
{
  int32_t best = largest(logits, vocab);
  double total = 0.0, kept = 0.0, reached = 0.0;
  int64_t n = sampling->top_k > 0 ? MIN(sampling->top_k, vocab) : vocab;
  if (sampling->temperature <= 0.0)
    return best;
  g_autofree candidate *candidates = g_new(candidate, (gsize)vocab);
  for (int64_t i = 0; i < vocab; i++)
    candidates[i] = (candidate){exp(((double)logits[i] - (double)logits[best]) / sampling->temperature), (int32_t)i};
  qsort(candidates, (size_t)vocab, sizeof *candidates, by_weight);
  for (int64_t i = 0; i < n; i++)
    total += candidates[i].weight;
  int64_t last = 0;
  for (kept = candidates[0].weight; last + 1 < n && kept < sampling->top_p * total; kept += candidates[last].weight)
    last++;
  for (int64_t i = 0; i < last; i++) {
    reached += candidates[i].weight;
    if (uniform * kept < reached)
      return candidates[i].id;
  }
  return candidates[last].id;
}

static ordo_status generate(ordo_embed *embed, struct llama_cache *cache, GArray *ids, int64_t positions, const ordo_sampling *sampling,
                            int32_t begin, void (*emit)(void *ctx, int32_t previous, int32_t id), void *ctx)
{
  int64_t vocab = llama_get_config(ordo_embed_llama(embed))->vocab;
  g_autofree float *logits = g_new(float, (gsize)vocab);
  uint64_t key = ordo_random_key(sampling->seed, "generate");
  for (guint i = 0; emit && i < ids->len; i++)
    emit(ctx, i ? g_array_index(ids, int32_t, i - 1) : -1, g_array_index(ids, int32_t, i));
  while (ids->len <= (guint64)positions) {
    int64_t done = llama_cache_length(cache);
    const int32_t *fresh = (const int32_t *)(const void *)ids->data + done;
    ordo_status status =
        ordo_embed_llama_status(embed, llama_decode(ordo_embed_llama(embed), cache, fresh, (int64_t)ids->len - done, logits));
    if (status != ORDO_OK)
      return status;
    int32_t previous = g_array_index(ids, int32_t, ids->len - 1);
    int32_t next = ordo_sample_token(logits, vocab, sampling, ordo_random_uniform(key, ids->len));
    if (sampling->stop && next == begin)
      break;
    g_array_append_val(ids, next);
    if (emit)
      emit(ctx, previous, next);
  }
  return ORDO_OK;
}

ordo_status ordo_generate(ordo_embed *embed, GArray *ids, int64_t positions, const ordo_sampling *sampling, int32_t begin,
                          void (*emit)(void *ctx, int32_t previous, int32_t id), void *ctx)
{
  struct llama *llama = ordo_embed_llama(embed);
  positions = MIN(positions, llama_get_config(llama)->max_positions);
  struct llama_cache *cache = llama_cache_create(llama, positions);
  if (!cache)
    return ordo_embed_llama_status(embed, LLAMA_E_NOMEM);
  ordo_status status = ordo_session_eval_begin(ordo_embed_session(embed));
  if (status == ORDO_OK) /* parts of two different continuations would add up to neither */
    status = ordo_session_check_data(ordo_embed_session(embed), ids->data, ids->len * sizeof(int32_t));
  /* A token needs every weight once: gathered for all tokens together, not unit by unit for each. */
  if (status == ORDO_OK)
    status = ordo_session_gather_full(ordo_embed_session(embed), 0, 0);
  if (status == ORDO_OK)
    status = generate(embed, cache, ids, positions, sampling, begin, emit, ctx);
  if (status == ORDO_OK)
    status = ordo_session_release_full(ordo_embed_session(embed), 0);
  if (status == ORDO_OK)
    status = ordo_session_eval_end(ordo_embed_session(embed));
  llama_cache_destroy(cache);
  return status;
}

GArray *ordo_prompt_ids(const ordo_tokenizer *tokenizer, const char *prompt)
{
  if (ordo_tokenizer_is_bytes(tokenizer) && !*prompt)
    prompt = "\n";
  return ordo_tokenizer_encode(tokenizer, prompt, strlen(prompt), !ordo_tokenizer_is_bytes(tokenizer));
}
