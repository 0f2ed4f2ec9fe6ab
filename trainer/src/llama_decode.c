/* llama_decode.c - generation: one sequence whose keys and values are kept, so that a new token costs one row of work.
 *
 * It runs the same blocks as training with one difference: a layer's k and v point into the cache behind the tokens already there.
 * A prompt goes in pieces of CACHE_CHUNK tokens, which bounds the work space.
 */
#include "llama_model.h"

#include <stdlib.h>

#include "attention.h"

enum { CACHE_CHUNK = 64 };

struct llama_cache {
  struct llama *model;
  void *memory;
  int64_t positions;
  int64_t length;
  float *keys;   /* [layers, positions, kv_size] after RoPE */
  float *values; /* [layers, positions, kv_size] */
  float *cosine; /* RoPE tables [positions, head_dim / 2] */
  float *sine;
  float *logits; /* [vocabulary rows here]; null where they are all */
  struct llama_pass pass;
  struct layer_buffers buffers;
};

/* Takes `floats` from *next, rounded up to a multiple of 16 so that pieces stay aligned; adds up when *next is null. */
static float *take(float **next, int64_t floats, int64_t *total)
{
  int64_t rounded = (floats + 15) / 16 * 16;
  float *piece = *next;
  if (piece != NULL)
    *next += rounded;
  *total += rounded;
  return piece;
}

/* Lays the cache out from `memory`; returns the number of floats. */
static int64_t layout(struct llama_cache *cache, float *memory)
{
  const struct llama *model = cache->model;
  const struct llama_config *c = &model->config;
  const struct llama_sizes *most = &model->layout.most;
  struct layer_buffers *b = &cache->buffers;
  int64_t total = 0;
  float *next = memory;
  cache->keys = take(&next, c->layers * cache->positions * most->kv_size, &total);
  cache->values = take(&next, c->layers * cache->positions * most->kv_size, &total);
  cache->cosine = take(&next, cache->positions * (c->head_dim / 2), &total);
  cache->sine = take(&next, cache->positions * (c->head_dim / 2), &total);
  cache->pass.cosine = cache->cosine;
  cache->pass.sine = cache->sine;
  cache->pass.norm = take(&next, CACHE_CHUNK * c->hidden, &total);
  cache->pass.branch = take(&next, CACHE_CHUNK * c->hidden, &total);
  cache->pass.score_space = take(&next, attention_workspace(cache->positions, 0), &total);
  b->x = take(&next, CACHE_CHUNK * c->hidden, &total);
  b->mid = b->x;
  b->out = b->x;
  if (model->layout.vocab != c->vocab)
    cache->logits = take(&next, model->layout.vocab, &total);
  b->inv_in = take(&next, CACHE_CHUNK, &total);
  b->inv_post = take(&next, CACHE_CHUNK, &total);
  b->q = take(&next, CACHE_CHUNK * most->q_size, &total);
  b->attn = take(&next, CACHE_CHUNK * most->q_size, &total);
  b->lse = take(&next, CACHE_CHUNK * most->heads, &total);
  b->gate = take(&next, CACHE_CHUNK * most->inter, &total);
  b->up = take(&next, CACHE_CHUNK * most->inter, &total);
  b->act = b->up;
  return total;
}

struct llama_cache *llama_cache_create(struct llama *model, int64_t positions)
{
  if (positions < 1 || positions > model->config.max_positions) {
    llama_fail(model, LLAMA_E_INVALID, "a cache of %lld positions: the model has 1 to %lld", (long long)positions,
               (long long)model->config.max_positions);
    return NULL;
  }
  struct llama_cache *cache = calloc(1, sizeof *cache);
  if (cache != NULL) {
    cache->model = model;
    cache->positions = positions;
    cache->memory = llama_alloc(model, layout(cache, NULL) * (int64_t)sizeof(float));
  }
  if (cache == NULL || cache->memory == NULL) {
    free(cache);
    llama_fail(model, LLAMA_E_NOMEM, "no memory for a cache of %lld positions", (long long)positions);
    return NULL;
  }
  (void)layout(cache, cache->memory);
  if (llama_work_reserve(model, CACHE_CHUNK, 0, 0) != LLAMA_OK) {
    llama_cache_destroy(cache);
    return NULL;
  }
  llama_rope_tables(&model->config, positions, cache->cosine, cache->sine);
  return cache;
}

void llama_cache_destroy(struct llama_cache *cache)
{
  if (cache == NULL)
    return;
  llama_free(cache->model, cache->memory);
  free(cache);
}

int64_t llama_cache_length(const struct llama_cache *cache)
{
  return cache->length;
}

static int decode_head(struct llama *model, struct llama_cache *cache, int64_t last, float *logits)
{
  uint32_t unit = llama_head_unit(model);
  int64_t hidden = model->config.hidden;
  int status = llama_hook_unit(model, model->hooks.pre_forward, unit);
  if (status == LLAMA_OK)
    status = llama_check_unit(model, unit);
  if (status != LLAMA_OK)
    return status;
  cache->pass.batch = cache->pass.seq = 1; /* of the chunk's tokens only the last one goes on */
  llama_set_rows(&model->layout, &cache->pass, 0);
  llama_norm_forward(model, unit, HEAD_NORM, 1, cache->buffers.x + last * hidden, cache->pass.norm, cache->buffers.inv_in);
  status = llama_gather(model, &cache->pass, LLAMA_POINT_HEAD_INPUT, unit, HEAD_WEIGHT, 0, cache->pass.norm);
  if (status != LLAMA_OK)
    return status;
  float *local = cache->logits != NULL ? cache->logits : logits;
  struct operand norm = {cache->pass.norm, NULL}; /* a single row: not worth units for matrices */
  llama_linear_forward(model, (struct linear){unit, HEAD_WEIGHT, hidden, model->layout.vocab}, 1, norm, local);
  llama_round(model, model->policy.matmul, model->layout.vocab, local);
  status = llama_hook_output(model, unit, 0, 1, local);
  if (status == LLAMA_OK && local != logits)
    status = llama_whole_logits(model, 1, local, logits);
  return status != LLAMA_OK ? status : llama_hook_unit(model, model->hooks.post_forward, unit);
}

/* At most CACHE_CHUNK tokens; logits only after the last of them. */
static int decode_chunk(struct llama *model, struct llama_cache *cache, const int32_t *ids, int64_t n, float *logits)
{
  struct layer_buffers buffers = cache->buffers;
  cache->pass.batch = 1;
  cache->pass.seq = n;
  cache->pass.first = cache->length;
  llama_set_rows(&model->layout, &cache->pass, 0); /* nothing is kept for backward, so the residual stream need not be split */
  int status = llama_embed(model, &cache->pass, ids, buffers.x);
  for (int64_t layer = 0; status == LLAMA_OK && layer < model->config.layers; layer++) {
    int64_t at =
        layer * cache->positions * model->layout.most.kv_size + cache->length * llama_sizes_of(model, llama_block_unit(layer))->kv_size;
    buffers.k = cache->keys + at;
    buffers.v = cache->values + at;
    status = llama_block_forward(model, layer, &cache->pass, &buffers);
  }
  if (status == LLAMA_OK && logits != NULL)
    status = decode_head(model, cache, n - 1, logits);
  if (status == LLAMA_OK)
    cache->length += n;
  return status;
}

int llama_decode(struct llama *model, struct llama_cache *cache, const int32_t *ids, int64_t n, float *logits)
{
  if (n < 1 || n > cache->positions - cache->length)
    return llama_fail(model, LLAMA_E_INVALID, "%lld more tokens: the cache holds %lld of %lld", (long long)n, (long long)cache->length,
                      (long long)cache->positions);
  int status = llama_check_ids(model, n, ids, 0);
  if (status == LLAMA_OK)
    status = llama_policy_ask(model);
  for (int64_t done = 0; status == LLAMA_OK && done < n; done += CACHE_CHUNK) {
    int64_t chunk = n - done < CACHE_CHUNK ? n - done : CACHE_CHUNK;
    status = decode_chunk(model, cache, ids + done, chunk, done + chunk == n ? logits : NULL);
  }
  return status;
}
