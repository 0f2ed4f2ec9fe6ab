/* llama_memory.c - activation memory: one block per reservation, carved in a fixed order.
 *
 * Bytes, with N = batch * seq, d = hidden, Q = heads * head_dim, K = kv_heads * head_dim, F = intermediate, L = layers,
 * H = heads, V = vocab, R = logits_rows, W = max(F, Q), A = attention_workspace(seq):
 *
 *   per layer, kept for backward: x d, mid d, q Q, k K, v K, attn Q, gate F, up F, two norms' 1/rms 2, lse H   floats per token
 *   once, training:   L * N * (2d + 2Q + 2K + 2F + 2 + H)            layers
 *                     N * d                                           output of the last layer
 *                     N * (2d + W)                                    norm, branch, wide
 *                     N * (d + Q + 2K)                                dx, dq, dk, dv
 *   once, training with the layers' inputs only (activation checkpointing), in place of the two lines before:
 *                     L * N * d                                       inputs of the layers
 *                     N * d                                           output of the last layer
 *                     N * (d + 2Q + 2K + 2F + 2 + H)                  the layer in work
 *   once, forward only: N * (d + 2Q + 2K + 2F + 2 + H)                one layer, x = mid = out, act in place of up
 *                     N * 2d                                          norm, branch
 *   both:             N * 2 (final 1/rms, sums) + N * 2 (ids, targets, 4 bytes each) + R * V + A + seq * head_dim (RoPE tables)
 *
 * Where this process has a part of the model (llama_local.c), H, Q, K, F and V are what it has; of the residual stream split into p parts
 * x, mid, out, dx and 1/rms have P = ceil(N / p) rows and norm and branch p * P; a part of the vocabulary adds 4 R for the loss, and a
 * gradient that a hook completes the size of the largest such param.
 *
 * Each piece is rounded up to 64 bytes (16 floats). llama_activation_bytes walks the same list with the sizes only, and a test
 * compares it with the closed formula above.
 */
#include "llama_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"

enum { PIECE_ALIGN = 64, LOGITS_LIMIT = 256 << 20 };

/* Hands out pieces of a block; with base null it only adds up. */
struct carver {
  char *base;
  int64_t used;
};

static void *carve(struct carver *carver, int64_t elements)
{
  int64_t bytes = (elements * 4 + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
  void *piece = carver->base == NULL ? NULL : carver->base + carver->used;
  carver->used += bytes;
  return piece;
}

/* A layer's buffers. The input is the caller's where inputs are kept apart. */
static struct layer_buffers carve_layer(struct carver *carver, const struct llama_layout *l, const struct llama_sizes *sizes,
                                        const struct llama_room *room)
{
  struct layer_buffers buffers = {0};
  int64_t tokens = room->batch * room->seq, part = room->pass.part, hidden = l->config->hidden;
  if (room->train != LLAMA_KEEP_INPUTS)
    buffers.x = carve(carver, part * hidden);
  buffers.inv_in = carve(carver, part);
  buffers.q = carve(carver, tokens * sizes->q_size);
  buffers.k = carve(carver, tokens * sizes->kv_size);
  buffers.v = carve(carver, tokens * sizes->kv_size);
  buffers.attn = carve(carver, tokens * sizes->q_size);
  buffers.lse = carve(carver, tokens * sizes->heads);
  buffers.mid = room->train ? carve(carver, part * hidden) : buffers.x;
  buffers.inv_post = carve(carver, part);
  buffers.gate = carve(carver, tokens * sizes->inter);
  buffers.up = carve(carver, tokens * sizes->inter);
  buffers.act = buffers.up;
  buffers.out = buffers.x;
  return buffers;
}

static void carve_layers(struct carver *carver, const struct llama_layout *l, struct llama_room *room)
{
  int64_t part = room->pass.part, layers = l->config->layers;
  struct layer_buffers single = {0};
  if (room->train != LLAMA_KEEP_ALL)
    single = carve_layer(carver, l, &l->most, room);
  for (int64_t layer = 0; layer < layers; layer++) {
    const struct llama_sizes *sizes = l->blocks != NULL ? &l->blocks[layer] : &l->most;
    struct layer_buffers buffers = room->train == LLAMA_KEEP_ALL ? carve_layer(carver, l, sizes, room) : single;
    if (room->train == LLAMA_KEEP_INPUTS)
      buffers.x = carve(carver, part * l->config->hidden);
    buffers.act = room->train ? room->wide : single.up;
    if (room->layers == NULL)
      continue;
    room->layers[layer] = buffers;
    if (layer > 0 && room->train)
      room->layers[layer - 1].out = buffers.x;
  }
  if (!room->train)
    return;
  float *last = carve(carver, part * l->config->hidden);
  if (room->layers != NULL)
    room->layers[layers - 1].out = last;
}

static void carve_training(struct carver *carver, const struct llama_layout *l, struct llama_room *room)
{
  int64_t tokens = room->batch * room->seq;
  const struct llama_sizes *most = &l->most;
  room->wide = carve(carver, tokens * (most->inter > most->q_size ? most->inter : most->q_size));
  room->dx = carve(carver, room->pass.part * l->config->hidden);
  room->dq = carve(carver, tokens * most->q_size);
  room->dk = carve(carver, tokens * most->kv_size);
  room->dv = carve(carver, tokens * most->kv_size);
  if (l->partial > 0)
    room->partial = carve(carver, l->partial);
}

static void carve_room(struct carver *carver, const struct llama_layout *l, struct llama_room *room)
{
  const struct llama_config *c = l->config;
  int64_t tokens = room->batch * room->seq;
  float *tables = carve(carver, room->seq * c->head_dim);
  room->pass = (struct llama_pass){
      .batch = room->batch, .seq = room->seq, .cosine = tables, .sine = tables == NULL ? NULL : tables + room->seq * (c->head_dim / 2)};
  llama_set_rows(l, &room->pass, 1);
  room->pass.norm = carve(carver, room->pass.part * l->parts * c->hidden);
  room->pass.branch = carve(carver, room->pass.part * l->parts * c->hidden);
  room->pass.score_space = carve(carver, attention_workspace(room->seq, room->train));
  room->final_inv = carve(carver, room->pass.part);
  room->sums = carve(carver, tokens);
  room->ids = carve(carver, tokens);
  room->targets = carve(carver, tokens);
  room->logits = carve(carver, room->logits_rows * l->vocab);
  if (l->vocab != c->vocab)
    room->shares = carve(carver, room->logits_rows * 4);
  if (room->train)
    carve_training(carver, l, room);
  carve_layers(carver, l, room);
}

/* From the whole vocabulary also where this process has a part: parts may differ by a row, and all must take the same steps. */
int64_t llama_default_logits_rows(const struct llama_config *config, int64_t batch, int64_t seq)
{
  int64_t rows = LOGITS_LIMIT / (4 * config->vocab);
  rows = rows < 1 ? 1 : rows;
  return rows < batch * seq ? rows : batch * seq;
}

static struct llama_room planned_room(const struct llama_layout *l, int64_t batch, int64_t seq, int train, int64_t logits_rows)
{
  struct llama_room room = {.batch = batch, .seq = seq, .train = train, .logits_rows = logits_rows};
  if (logits_rows <= 0)
    room.logits_rows = llama_default_logits_rows(l->config, batch, seq);
  else if (logits_rows > batch * seq)
    room.logits_rows = batch * seq;
  return room;
}

static int64_t room_bytes(const struct llama_layout *l, int64_t batch, int64_t seq, int train, int64_t logits_rows)
{
  struct llama_room room = planned_room(l, batch, seq, train, logits_rows);
  struct carver carver = {0};
  carve_room(&carver, l, &room);
  return carver.used;
}

int64_t llama_activation_bytes(const struct llama_config *config, int64_t batch, int64_t seq, int train, int64_t logits_rows)
{
  struct llama_layout whole = llama_whole(config);
  return room_bytes(&whole, batch, seq, train, logits_rows);
}

int64_t llama_local_activation_bytes(const struct llama *model, int64_t batch, int64_t seq, int train, int64_t logits_rows)
{
  return room_bytes(&model->layout, batch, seq, train, logits_rows);
}

/* Angles are rounded to fp32 before cosine and sine, as the models were trained; position * inv in double would differ. */
void llama_rope_tables(const struct llama_config *config, int64_t positions, float *cosine, float *sine)
{
  int64_t half = config->head_dim / 2;
  for (int64_t i = 0; i < half; i++) {
    float inv = (float)pow(config->rope_theta, -2.0 * (double)i / (double)config->head_dim);
    for (int64_t position = 0; position < positions; position++) {
      float angle = (float)position * inv;
      cosine[position * half + i] = (float)cos((double)angle);
      sine[position * half + i] = (float)sin((double)angle);
    }
  }
}

void *llama_alloc(struct llama *model, int64_t bytes)
{
  return model->memory.alloc(model->memory.ctx, (size_t)bytes, model->memory.activation_tag);
}

void llama_free(struct llama *model, void *memory)
{
  if (memory != NULL)
    model->memory.free(model->memory.ctx, memory);
}

void llama_room_release(struct llama *model)
{
  llama_free(model, model->room.memory);
  free(model->room.layers);
  model->room = (struct llama_room){0};
  model->kept_batch = 0;
}

int llama_reserve(struct llama *model, int64_t batch, int64_t seq, int train, int64_t logits_rows)
{
  const struct llama_config *config = &model->config;
  const int64_t most_tokens = 1 << 24; /* keeps sizes below 2^54 bytes and token counts within OpenBLAS's int */
  llama_room_release(model);
  if (batch < 1 || seq < 1 || batch > most_tokens || seq > most_tokens / batch)
    return llama_fail(model, LLAMA_E_INVALID, "batch %lld x sequence %lld: both must be at least 1 and their product at most %lld",
                      (long long)batch, (long long)seq, (long long)most_tokens);
  if (seq > config->max_positions)
    return llama_fail(model, LLAMA_E_INVALID, "sequence of %lld tokens: the model has %lld positions", (long long)seq,
                      (long long)config->max_positions);
  struct llama_room room = planned_room(&model->layout, batch, seq, train, logits_rows);
  int64_t bytes = llama_local_activation_bytes(model, batch, seq, train, room.logits_rows);
  room.layers = calloc((size_t)config->layers, sizeof *room.layers);
  room.memory = room.layers == NULL ? NULL : llama_alloc(model, bytes);
  if (room.memory == NULL) {
    free(room.layers);
    return llama_fail(model, LLAMA_E_NOMEM, "no memory for %lld bytes of activations: reduce the batch or the sequence", (long long)bytes);
  }
  struct carver carver = {.base = room.memory};
  carve_room(&carver, &model->layout, &room);
  float *cosine = room.memory; /* the tables are the first piece */
  if (!model->dry)
    llama_rope_tables(config, seq, cosine, cosine + seq * (config->head_dim / 2));
  model->room = room;
  return llama_work_reserve(model, batch * seq, room.logits_rows, train);
}
