/* llama_forward.c - forward pass, unit by unit: embedding, blocks, head with loss. Shapes are in llama_model.h.
 *
 * The formulas are those of Hugging Face's LlamaForCausalLM: pre-norm blocks, half-split rotary embedding, SwiGLU. */
#include "llama_model.h"

#include <string.h>

#include "attention.h"
#include "loss.h"

int llama_hook_unit(struct llama *model, int (*hook)(void *ctx, uint32_t unit), uint32_t unit)
{
  int status = hook == NULL ? LLAMA_OK : hook(model->hooks.ctx, unit);
  if (status != LLAMA_OK)
    llama_fail(model, status, "a hook of unit %s returned %d", model->units[unit].name, status);
  return status;
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

int llama_embed(struct llama *model, const struct llama_pass *pass, const int32_t *ids, float *x)
{
  int64_t rows = pass->batch * pass->seq;
  float *full = pass->part == pass->padded ? x : pass->branch;
  int status = begin_unit(model, 0);
  if (status != LLAMA_OK)
    return status;
  llama_embedding_forward(model, rows, ids, full);
  status = llama_scatter(model, pass, LLAMA_POINT_EMBED_OUTPUT, 0, 0, 0, full, x);
  if (status == LLAMA_OK)
    status = llama_hook_output(model, 0, 0, pass->held, x);
  return status != LLAMA_OK ? status : llama_hook_unit(model, model->hooks.post_forward, 0);
}

static void attend(const struct llama *model, const struct llama_sizes *sizes, const struct llama_pass *pass, const struct layer_buffers *b)
{
  struct attention shape = {model->kernels, sizes->heads, sizes->kv_heads,      model->config.head_dim,
                            pass->seq,      pass->first,  model->policy.matmul, model->policy.softmax};
  for (int64_t n = 0; n < llama_busy(model, pass->batch); n++) {
    int64_t row = n * pass->seq;
    /* Keys and values before `first` lie in front of the buffers (decoding). */
    const float *k = b->k + (row - pass->first) * sizes->kv_size;
    const float *v = b->v + (row - pass->first) * sizes->kv_size;
    attention_forward(&shape, b->q + row * sizes->q_size, k, v, b->attn + row * sizes->q_size, b->lse + row * sizes->heads,
                      pass->score_space);
  }
}

static int attention_branch(struct llama *model, uint32_t unit, const struct llama_pass *pass, const struct layer_buffers *b)
{
  const struct llama_sizes *sizes = llama_sizes_of(model, unit);
  int64_t rows = pass->batch * pass->seq;
  int64_t hidden = model->config.hidden;
  llama_norm_forward(model, unit, BLOCK_INPUT_NORM, pass->held, b->x, pass->norm + pass->part_first * hidden, b->inv_in);
  int status = llama_gather(model, pass, LLAMA_POINT_COLUMN_INPUT, unit, BLOCK_Q, 0, pass->norm);
  if (status != LLAMA_OK)
    return status;
  struct operand norm = llama_operand(model, OPERAND_X, rows * hidden, pass->norm);
  llama_linear_forward(model, (struct linear){unit, BLOCK_Q, hidden, sizes->q_size}, rows, norm, b->q);
  llama_linear_forward(model, (struct linear){unit, BLOCK_K, hidden, sizes->kv_size}, rows, norm, b->k);
  llama_linear_forward(model, (struct linear){unit, BLOCK_V, hidden, sizes->kv_size}, rows, norm, b->v);
  llama_round(model, model->policy.matmul, rows * sizes->kv_size, b->v);
  llama_rotate(model, pass, sizes->heads, 1.0f, b->q);
  llama_rotate(model, pass, sizes->kv_heads, 1.0f, b->k);
  attend(model, sizes, pass, b);
  struct operand attn = llama_operand(model, OPERAND_X, rows * sizes->q_size, b->attn);
  llama_linear_forward(model, (struct linear){unit, BLOCK_O, sizes->q_size, hidden}, rows, attn, pass->branch);
  return llama_scatter(model, pass, LLAMA_POINT_ROW_OUTPUT, unit, BLOCK_O, 0, pass->branch, NULL);
}

/* Everything of a block that its backward reads: both norms, attention, gate and up. */
static int block_inner(struct llama *model, uint32_t unit, const struct llama_pass *pass, const struct layer_buffers *b)
{
  int64_t rows = pass->batch * pass->seq;
  int64_t hidden = model->config.hidden;
  int64_t inter = llama_sizes_of(model, unit)->inter;
  int status = attention_branch(model, unit, pass, b);
  if (status != LLAMA_OK)
    return status;
  llama_add_norm_forward(model, unit, BLOCK_POST_NORM, pass->held, b->x, pass->branch + pass->part_first * hidden, b->mid,
                         pass->norm + pass->part_first * hidden, b->inv_post);
  status = llama_gather(model, pass, LLAMA_POINT_COLUMN_INPUT, unit, BLOCK_GATE, 0, pass->norm);
  if (status != LLAMA_OK)
    return status;
  struct operand norm = llama_operand(model, OPERAND_X, rows * hidden, pass->norm);
  llama_linear_forward(model, (struct linear){unit, BLOCK_GATE, hidden, inter}, rows, norm, b->gate);
  llama_linear_forward(model, (struct linear){unit, BLOCK_UP, hidden, inter}, rows, norm, b->up);
  return LLAMA_OK;
}

/* From gate and up to the block's output. */
static int block_outer(struct llama *model, uint32_t unit, const struct llama_pass *pass, const struct layer_buffers *b)
{
  int64_t rows = pass->batch * pass->seq;
  int64_t hidden = model->config.hidden;
  int64_t inter = llama_sizes_of(model, unit)->inter;
  llama_swiglu_forward(model, rows * inter, b->gate, b->up, b->act);
  struct operand act = llama_operand(model, OPERAND_X, rows * inter, b->act);
  llama_linear_forward(model, (struct linear){unit, BLOCK_DOWN, inter, hidden}, rows, act, pass->branch);
  int status = llama_scatter(model, pass, LLAMA_POINT_ROW_OUTPUT, unit, BLOCK_DOWN, 0, pass->branch, NULL);
  if (status == LLAMA_OK)
    llama_residual(model, pass->held, b->mid, pass->branch + pass->part_first * hidden, b->out);
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
    status = llama_hook_output(model, unit, 0, pass->held, b->out);
  return status != LLAMA_OK ? status : llama_hook_unit(model, model->hooks.post_forward, unit);
}

int llama_block_again(struct llama *model, int64_t layer)
{
  const struct layer_buffers *b = &model->room.layers[layer];
  uint32_t unit = llama_block_unit(layer);
  int64_t n = model->room.pass.batch * model->room.pass.seq * llama_sizes_of(model, unit)->inter;
  int status = block_inner(model, unit, &model->room.pass, b);
  llama_round(model, model->policy.matmul, n, b->gate); /* forward did it when it read them */
  llama_round(model, model->policy.matmul, n, b->up);
  return status;
}

int llama_whole_logits(struct llama *model, int64_t rows, float *local, float *whole)
{
  uint32_t unit = llama_head_unit(model);
  const struct llama_activation a = {.point = LLAMA_POINT_LOGITS,
                                     .unit = unit,
                                     .param = model->units[unit].first_param + HEAD_WEIGHT,
                                     .rows = rows,
                                     .columns = model->layout.vocab,
                                     .data = local,
                                     .out_rows = rows,
                                     .out_columns = model->config.vocab,
                                     .out = whole};
  if (llama_wants(model, a.point, a.param, 0))
    return llama_offer(model, &a);
  memcpy(whole, local, (size_t)llama_busy(model, rows * model->layout.vocab) * sizeof *whole);
  return LLAMA_OK;
}

/* Maxima and sums over the vocabulary, of which this process has a part. */
static int loss_over_parts(struct llama *model, int64_t rows, const int32_t *targets, float *sums, float *nll, struct loss_totals *totals)
{
  struct llama_room *room = &model->room;
  struct loss_part part = {.vocab_first = model->layout.vocab_first,
                           .vocab = model->layout.vocab,
                           .rows = llama_busy(model, rows),
                           .logits = room->logits,
                           .targets = targets,
                           .own_max = room->shares,
                           .max = room->shares + room->logits_rows,
                           .pairs = room->shares + 2 * room->logits_rows};
  uint32_t unit = llama_head_unit(model);
  struct llama_activation a = {.point = LLAMA_POINT_LOSS_MAX,
                               .unit = unit,
                               .param = model->units[unit].first_param + HEAD_WEIGHT,
                               .rows = rows,
                               .columns = 1,
                               .data = part.max,
                               .out_rows = rows,
                               .out_columns = 1,
                               .out = part.max};
  loss_part_maxima(model->kernels, &part);
  int status = llama_offer(model, &a);
  if (status != LLAMA_OK)
    return status;
  loss_part_pairs(&part);
  a.point = LLAMA_POINT_LOSS_SUM;
  a.columns = a.out_columns = 2;
  a.data = a.out = part.pairs;
  status = llama_offer(model, &a);
  if (status == LLAMA_OK)
    loss_part_finish(&part, sums, nll, totals);
  return status;
}

static int head_rows(struct llama *model, int64_t first, int64_t rows, struct llama_forward_args *args, struct loss_totals *totals)
{
  struct llama_room *room = &model->room;
  int64_t hidden = model->config.hidden;
  float *nll = args->nll == NULL ? NULL : args->nll + first;
  struct operand norm = llama_operand(model, OPERAND_X, rows * hidden, room->pass.norm + first * hidden);
  llama_linear_forward(model, (struct linear){llama_head_unit(model), HEAD_WEIGHT, hidden, model->layout.vocab}, rows, norm, room->logits);
  /* The loss rounds a row as it reads it; others need all of them rounded before. */
  if (args->logits != NULL || args->targets == NULL || room->shares != NULL || llama_wants_output(model, llama_head_unit(model), 0))
    llama_round(model, model->policy.matmul, rows * model->layout.vocab, room->logits);
  int status = llama_hook_output(model, llama_head_unit(model), 0, rows, room->logits);
  if (status == LLAMA_OK && args->logits != NULL)
    status = llama_whole_logits(model, rows, room->logits, args->logits + first * model->config.vocab);
  if (status != LLAMA_OK || args->targets == NULL)
    return status;
  if (room->shares != NULL)
    return loss_over_parts(model, rows, args->targets + first, room->sums + first, nll, totals);
  loss_forward(model->kernels, model->policy.matmul, llama_busy(model, rows), model->layout.vocab, room->logits, args->targets + first,
               room->sums + first, nll, totals);
  return LLAMA_OK;
}

static int head_forward(struct llama *model, struct llama_forward_args *args)
{
  struct llama_room *room = &model->room;
  uint32_t unit = llama_head_unit(model);
  int64_t rows = args->batch * args->seq;
  int64_t hidden = model->config.hidden;
  struct loss_totals totals = {0};
  int status = begin_unit(model, unit);
  if (status != LLAMA_OK)
    return status;
  llama_norm_forward(model, unit, HEAD_NORM, room->pass.held, room->layers[model->config.layers - 1].out,
                     room->pass.norm + room->pass.part_first * hidden, room->final_inv);
  status = llama_gather(model, &room->pass, LLAMA_POINT_HEAD_INPUT, unit, HEAD_WEIGHT, 0, room->pass.norm);
  for (int64_t first = 0; status == LLAMA_OK && first < rows; first += room->logits_rows)
    status = head_rows(model, first, rows - first < room->logits_rows ? rows - first : room->logits_rows, args, &totals);
  if (status != LLAMA_OK)
    return status;
  args->loss_sum = totals.sum;
  args->count = totals.count;
  return llama_hook_unit(model, model->hooks.post_forward, unit);
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
  if (status == LLAMA_OK)
    status = llama_policy_ask(model);
  if (status != LLAMA_OK)
    return status;
  int64_t rows = args->batch * args->seq;
  room->pass.batch = args->batch;
  room->pass.seq = args->seq;
  room->pass.first = 0;
  llama_set_rows(&model->layout, &room->pass, 1);
  status = llama_embed(model, &room->pass, args->ids, room->layers[0].x);
  for (int64_t layer = 0; status == LLAMA_OK && layer < model->config.layers; layer++)
    status = llama_block_forward(model, layer, &room->pass, &room->layers[layer]);
  if (status == LLAMA_OK)
    status = head_forward(model, args);
  if (status != LLAMA_OK || !args->keep)
    return status;
  memcpy(room->ids, args->ids, (size_t)llama_busy(model, rows) * sizeof *room->ids);
  memcpy(room->targets, args->targets, (size_t)llama_busy(model, rows) * sizeof *room->targets);
  model->kept_batch = args->batch;
  model->kept_seq = args->seq;
  return LLAMA_OK;
}
