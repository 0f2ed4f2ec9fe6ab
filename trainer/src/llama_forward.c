/* llama_forward.c - forward pass, unit by unit: embedding, blocks, head with loss. Shapes are in llama_model.h.
 *
 * The formulas are those of Hugging Face's LlamaForCausalLM: pre-norm blocks, half-split rotary embedding, SwiGLU. */
#include "llama_model.h"

#include <string.h>

#include "attention.h"
#include "kernels_gemm.h"
#include "loss.h"

int llama_hook_unit(struct llama *model, int (*hook)(void *ctx, uint32_t unit), uint32_t unit)
{
  int status = hook == NULL ? LLAMA_OK : hook(model->hooks.ctx, unit);
  if (status != LLAMA_OK)
    llama_fail(model, status, "a hook of unit %s returned %d", model->units[unit].name, status);
  return status;
}

static int offer(struct llama *model, uint32_t point, uint32_t unit, int backward, int64_t rows, int64_t columns, float *data)
{
  if (model->hooks.activation == NULL)
    return LLAMA_OK;
  int status = model->hooks.activation(model->hooks.ctx, point, unit, backward, model->dry ? model->told_rows : rows, columns, data);
  if (status != LLAMA_OK)
    llama_fail(model, status, "the activation hook of unit %s returned %d", model->units[unit].name, status);
  return status;
}

int llama_hook_activation(struct llama *model, uint32_t point, uint32_t unit, int backward, int64_t rows, float *data)
{
  return offer(model, point, unit, backward, rows, model->config.hidden, data);
}

int llama_hook_output(struct llama *model, uint32_t unit, int backward, int64_t rows, float *data)
{
  int64_t columns = unit == llama_head_unit(model) ? model->vocab : model->config.hidden;
  return offer(model, LLAMA_POINT_UNIT_OUTPUT, unit, backward, rows, columns, data);
}

int llama_check_ids(struct llama *model, int64_t n, const int32_t *ids, int ignored_allowed)
{
  for (int64_t i = 0; i < n; i++) {
    if (ids[i] >= 0 && ids[i] < model->config.vocab)
      continue;
    if (ignored_allowed && ids[i] == LOSS_IGNORED)
      continue;
    return llama_fail(model, LLAMA_E_INVALID, "%s %d at position %lld of the batch: the vocabulary has ids 0 to %lld%s",
                      ignored_allowed ? "target" : "id", ids[i], (long long)i, (long long)model->config.vocab - 1,
                      ignored_allowed ? ", and -100 is ignored" : "");
  }
  return LLAMA_OK;
}

static int begin_unit(struct llama *model, uint32_t unit)
{
  int status = llama_hook_unit(model, model->hooks.pre_forward, unit);
  return status != LLAMA_OK ? status : llama_check_unit(model, unit);
}

int llama_embed(struct llama *model, int64_t rows, const int32_t *ids, float *x)
{
  size_t hidden = (size_t)model->config.hidden;
  int status = begin_unit(model, 0);
  if (status != LLAMA_OK)
    return status;
  const float *table = llama_weight(model, 0, 0);
  for (int64_t r = 0; r < rows; r++)
    memcpy(x + (size_t)r * hidden, table + (size_t)ids[r] * hidden, hidden * sizeof *x);
  status = llama_hook_activation(model, LLAMA_POINT_EMBED_OUTPUT, 0, 0, rows, x);
  if (status == LLAMA_OK)
    status = llama_hook_output(model, 0, 0, rows, x);
  return status != LLAMA_OK ? status : llama_hook_unit(model, model->hooks.post_forward, 0);
}

static void rotate(const struct llama *model, const struct llama_pass *pass, int64_t heads, float *x)
{
  int64_t half = model->config.head_dim / 2;
  for (int64_t row = 0; row < pass->batch * pass->seq; row++) {
    int64_t position = pass->first + row % pass->seq;
    model->kernels->rope((size_t)heads, (size_t)half, pass->cosine + position * half, pass->sine + position * half, 1.0f,
                         x + row * heads * half * 2);
  }
}

static void attend(const struct llama *model, const struct llama_pass *pass, const struct layer_buffers *b)
{
  struct attention shape = {model->kernels, model->heads, model->kv_heads, model->config.head_dim, pass->seq, pass->first};
  for (int64_t n = 0; n < pass->batch; n++) {
    int64_t row = n * pass->seq;
    /* Keys and values before `first` lie in front of the buffers (decoding). */
    const float *k = b->k + (row - pass->first) * model->kv_size;
    const float *v = b->v + (row - pass->first) * model->kv_size;
    attention_forward(&shape, b->q + row * model->q_size, k, v, b->attn + row * model->q_size, b->lse + row * model->heads,
                      pass->score_space);
  }
}

static int attention_branch(struct llama *model, uint32_t unit, const struct llama_pass *pass, const struct layer_buffers *b)
{
  const struct kernels *kernels = model->kernels;
  int64_t rows = pass->batch * pass->seq;
  int64_t hidden = model->config.hidden;
  kernels->rms_forward((size_t)rows, (size_t)hidden, b->x, llama_weight(model, unit, BLOCK_INPUT_NORM), (float)model->config.rms_eps,
                       pass->norm, b->inv_in);
  int status = llama_hook_activation(model, LLAMA_POINT_COLUMN_INPUT, unit, 0, rows, pass->norm);
  if (status != LLAMA_OK)
    return status;
  linear_forward(rows, hidden, model->q_size, pass->norm, llama_weight(model, unit, BLOCK_Q), b->q);
  linear_forward(rows, hidden, model->kv_size, pass->norm, llama_weight(model, unit, BLOCK_K), b->k);
  linear_forward(rows, hidden, model->kv_size, pass->norm, llama_weight(model, unit, BLOCK_V), b->v);
  rotate(model, pass, model->heads, b->q);
  rotate(model, pass, model->kv_heads, b->k);
  attend(model, pass, b);
  linear_forward(rows, model->q_size, hidden, b->attn, llama_weight(model, unit, BLOCK_O), pass->branch);
  return llama_hook_activation(model, LLAMA_POINT_ROW_OUTPUT, unit, 0, rows, pass->branch);
}

/* Everything of a block that its backward reads: both norms, attention, gate and up. */
static int block_inner(struct llama *model, uint32_t unit, const struct llama_pass *pass, const struct layer_buffers *b)
{
  int64_t rows = pass->batch * pass->seq;
  int64_t hidden = model->config.hidden;
  int status = attention_branch(model, unit, pass, b);
  if (status != LLAMA_OK)
    return status;
  model->kernels->add_rms_forward((size_t)rows, (size_t)hidden, b->x, pass->branch, b->mid, llama_weight(model, unit, BLOCK_POST_NORM),
                                  (float)model->config.rms_eps, pass->norm, b->inv_post);
  status = llama_hook_activation(model, LLAMA_POINT_COLUMN_INPUT, unit, 0, rows, pass->norm);
  if (status != LLAMA_OK)
    return status;
  linear_forward(rows, hidden, model->inter, pass->norm, llama_weight(model, unit, BLOCK_GATE), b->gate);
  linear_forward(rows, hidden, model->inter, pass->norm, llama_weight(model, unit, BLOCK_UP), b->up);
  return LLAMA_OK;
}

/* From gate and up to the block's output. */
static int block_outer(struct llama *model, uint32_t unit, const struct llama_pass *pass, const struct layer_buffers *b)
{
  int64_t rows = pass->batch * pass->seq;
  int64_t hidden = model->config.hidden;
  model->kernels->swiglu_forward((size_t)(rows * model->inter), b->gate, b->up, b->act);
  linear_forward(rows, model->inter, hidden, b->act, llama_weight(model, unit, BLOCK_DOWN), pass->branch);
  int status = llama_hook_activation(model, LLAMA_POINT_ROW_OUTPUT, unit, 0, rows, pass->branch);
  if (status == LLAMA_OK)
    model->kernels->add((size_t)(rows * hidden), b->mid, pass->branch, b->out);
  return status;
}

int llama_block_forward(struct llama *model, int64_t layer, const struct llama_pass *pass, const struct layer_buffers *b)
{
  uint32_t unit = llama_block_unit(layer);
  int status = begin_unit(model, unit);
  if (status == LLAMA_OK)
    status = block_inner(model, unit, pass, b);
  if (status == LLAMA_OK)
    status = block_outer(model, unit, pass, b);
  if (status == LLAMA_OK)
    status = llama_hook_output(model, unit, 0, pass->batch * pass->seq, b->out);
  return status != LLAMA_OK ? status : llama_hook_unit(model, model->hooks.post_forward, unit);
}

int llama_block_again(struct llama *model, int64_t layer)
{
  return block_inner(model, llama_block_unit(layer), &model->room.pass, &model->room.layers[layer]);
}

static int head_rows(struct llama *model, int64_t first, int64_t rows, struct llama_forward_args *args, struct loss_totals *totals)
{
  struct llama_room *room = &model->room;
  int64_t hidden = model->config.hidden;
  linear_forward(rows, hidden, model->vocab, room->pass.norm + first * hidden, llama_weight(model, llama_head_unit(model), HEAD_WEIGHT),
                 room->logits);
  int status = llama_hook_output(model, llama_head_unit(model), 0, rows, room->logits);
  if (status != LLAMA_OK)
    return status;
  if (args->logits != NULL)
    memcpy(args->logits + first * model->vocab, room->logits, (size_t)(rows * model->vocab) * sizeof *room->logits);
  if (args->targets != NULL)
    loss_forward(model->kernels, rows, model->vocab, room->logits, args->targets + first, room->sums + first,
                 args->nll == NULL ? NULL : args->nll + first, totals);
  return LLAMA_OK;
}

static int head_forward(struct llama *model, struct llama_forward_args *args)
{
  struct llama_room *room = &model->room;
  uint32_t unit = llama_head_unit(model);
  int64_t rows = room->pass.batch * room->pass.seq;
  struct loss_totals totals = {0};
  int status = begin_unit(model, unit);
  if (status != LLAMA_OK)
    return status;
  model->kernels->rms_forward((size_t)rows, (size_t)model->config.hidden, room->layers[model->config.layers - 1].out,
                              llama_weight(model, unit, HEAD_NORM), (float)model->config.rms_eps, room->pass.norm, room->final_inv);
  status = llama_hook_activation(model, LLAMA_POINT_HEAD_INPUT, unit, 0, rows, room->pass.norm);
  if (status != LLAMA_OK)
    return status;
  for (int64_t first = 0; status == LLAMA_OK && first < rows; first += room->logits_rows)
    status = head_rows(model, first, rows - first < room->logits_rows ? rows - first : room->logits_rows, args, &totals);
  args->loss_sum = totals.sum;
  args->count = totals.count;
  return status != LLAMA_OK ? status : llama_hook_unit(model, model->hooks.post_forward, unit);
}

static int check_forward(struct llama *model, const struct llama_forward_args *args)
{
  const struct llama_room *room = &model->room;
  if (room->memory == NULL)
    return llama_fail(model, LLAMA_E_STATE, "forward before llama_reserve");
  if (args->batch < 1 || args->seq < 1 || args->seq > room->seq || args->batch > room->batch)
    return llama_fail(model, LLAMA_E_INVALID, "batch %lld x sequence %lld: room was reserved for %lld x %lld", (long long)args->batch,
                      (long long)args->seq, (long long)room->batch, (long long)room->seq);
  if (args->ids == NULL)
    return llama_fail(model, LLAMA_E_INVALID, "forward without ids");
  if (args->keep && (!room->train || args->targets == NULL))
    return llama_fail(model, LLAMA_E_STATE, "a forward to be followed by backward needs targets and a reservation for training");
  int status = llama_check_ids(model, args->batch * args->seq, args->ids, 0);
  if (status == LLAMA_OK && args->targets != NULL)
    status = llama_check_ids(model, args->batch * args->seq, args->targets, 1);
  return status;
}

int llama_forward(struct llama *model, struct llama_forward_args *args)
{
  struct llama_room *room = &model->room;
  int status = check_forward(model, args);
  model->kept_batch = 0;
  if (status != LLAMA_OK)
    return status;
  room->pass.batch = args->batch;
  room->pass.seq = model->dry ? 0 : args->seq;
  model->told_rows = args->batch * args->seq;
  int64_t rows = room->pass.batch * room->pass.seq;
  room->pass.first = 0;
  status = llama_embed(model, rows, args->ids, room->layers[0].x);
  for (int64_t layer = 0; status == LLAMA_OK && layer < model->config.layers; layer++)
    status = llama_block_forward(model, layer, &room->pass, &room->layers[layer]);
  if (status == LLAMA_OK)
    status = head_forward(model, args);
  if (status != LLAMA_OK || !args->keep)
    return status;
  memcpy(room->ids, args->ids, (size_t)rows * sizeof *room->ids);
  memcpy(room->targets, args->targets, (size_t)rows * sizeof *room->targets);
  model->kept_batch = args->batch;
  model->kept_seq = room->pass.seq;
  return LLAMA_OK;
}
