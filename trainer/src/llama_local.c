/* llama_local.c - a model of which this process has a part: its sizes, its rows, and the points where others are heard.
 *
 * The model knows no strategy. It is told what it has of each param and at which points the activation hook wants to be called; sizes
 * follow from the params, as they do for a whole model. Parts that do not fit together are refused here, before anything computes.
 *
 * Guarded against: a product over an inner dimension of which this process has a part, whose result nobody completes. It would be a
 * wrong number of the right shape.
 */
#include "llama_model.h"

#include <stdlib.h>
#include <string.h>

enum {
  FIRST_POINTS = 1u << LLAMA_POINT_COLUMN_INPUT | 1u << LLAMA_POINT_ROW_OUTPUT | 1u << LLAMA_POINT_EMBED_OUTPUT |
                 1u << LLAMA_POINT_HEAD_INPUT | 1u << LLAMA_POINT_UNIT_OUTPUT
};

struct llama_layout llama_whole(const struct llama_config *config)
{
  struct llama_layout layout = {.config = config, .embed_rows = config->vocab, .vocab = config->vocab, .parts = 1};
  layout.most = (struct llama_sizes){.heads = config->heads,
                                     .kv_heads = config->kv_heads,
                                     .q_size = config->heads * config->head_dim,
                                     .kv_size = config->kv_heads * config->head_dim,
                                     .inter = config->intermediate};
  return layout;
}

int llama_locals_create(struct llama *model)
{
  model->locals = calloc(model->n_params, sizeof *model->locals);
  if (model->locals == NULL)
    return LLAMA_E_NOMEM;
  for (uint32_t p = 0; p < model->n_params; p++) {
    memcpy(model->locals[p].shape, model->params[p].shape, sizeof model->locals[p].shape);
    model->locals[p].forward = model->locals[p].backward = FIRST_POINTS;
  }
  return LLAMA_OK;
}

void llama_locals_destroy(struct llama *model)
{
  free(model->locals);
  free(model->layout.blocks);
  model->locals = NULL;
  model->layout.blocks = NULL;
}

const struct llama_sizes *llama_sizes_of(const struct llama *model, uint32_t unit)
{
  return model->layout.blocks != NULL ? &model->layout.blocks[unit - 1] : &model->layout.most;
}

/* ---- what fits together ---- */

static const struct llama_local *local_of(const struct llama *model, const struct llama_local *locals, uint32_t unit, uint32_t nth)
{
  return &locals[model->units[unit].first_param + nth];
}

static int mismatch(struct llama *model, uint32_t unit, uint32_t one, uint32_t other, const char *what)
{
  return llama_fail(model, LLAMA_E_INVALID, "the parts of %s and %s do not fit together: %s",
                    model->params[model->units[unit].first_param + one].name, model->params[model->units[unit].first_param + other].name,
                    what);
}

/* The two matrices of a pair agree on the elements between them, and someone completes the product over a part. */
static int check_pair(struct llama *model, const struct llama_local *locals, uint32_t unit, uint32_t column, uint32_t row)
{
  const struct llama_local *first = local_of(model, locals, unit, column), *second = local_of(model, locals, unit, row);
  int64_t whole = model->params[model->units[unit].first_param + row].shape[1];
  if (first->shape[0] != second->shape[1] || first->offset[0] != second->offset[1])
    return mismatch(model, unit, column, row, "rows of the one are not the columns of the other");
  if (second->shape[1] != whole && !(second->forward & 1u << LLAMA_POINT_ROW_OUTPUT))
    return mismatch(model, unit, column, row, "nobody adds up the products of the parts");
  if (first->shape[0] != whole && !(first->backward & 1u << LLAMA_POINT_COLUMN_INPUT))
    return mismatch(model, unit, column, row, "nobody adds up the gradients of their input");
  return LLAMA_OK;
}

static int check_block(struct llama *model, const struct llama_local *locals, uint32_t unit, struct llama_sizes *sizes)
{
  const struct llama_config *c = &model->config;
  const struct llama_local *q = local_of(model, locals, unit, BLOCK_Q), *k = local_of(model, locals, unit, BLOCK_K),
                           *v = local_of(model, locals, unit, BLOCK_V), *gate = local_of(model, locals, unit, BLOCK_GATE),
                           *up = local_of(model, locals, unit, BLOCK_UP);
  int64_t per_group = c->heads / c->kv_heads * c->head_dim; /* query rows that share a key head */
  *sizes = (struct llama_sizes){q->shape[0] / c->head_dim, k->shape[0] / c->head_dim, q->shape[0], k->shape[0], gate->shape[0]};
  if (k->shape[0] != v->shape[0] || k->offset[0] != v->offset[0])
    return mismatch(model, unit, BLOCK_K, BLOCK_V, "keys and values of other heads");
  if (gate->shape[0] != up->shape[0] || gate->offset[0] != up->offset[0])
    return mismatch(model, unit, BLOCK_GATE, BLOCK_UP, "other columns of the MLP");
  if (sizes->heads < 1 || sizes->kv_heads < 1 || q->shape[0] % c->head_dim != 0 || k->shape[0] % c->head_dim != 0 ||
      q->offset[0] % c->head_dim != 0 || k->offset[0] % c->head_dim != 0 || gate->shape[0] < 1)
    return mismatch(model, unit, BLOCK_Q, BLOCK_K, "a head is cut, or there is none");
  /* Query head j of the part uses key head j / (heads / kv_heads) of the part: the first and the last must find their own. */
  if (sizes->heads % sizes->kv_heads != 0 || q->offset[0] / per_group != k->offset[0] / c->head_dim ||
      (q->offset[0] + q->shape[0] - 1) / per_group != (k->offset[0] + k->shape[0] - 1) / c->head_dim ||
      (sizes->kv_heads > 1 && sizes->heads * c->head_dim != sizes->kv_heads * per_group))
    return mismatch(model, unit, BLOCK_Q, BLOCK_K, "query heads without their key heads");
  /* A key head whose query heads are spread over copies of it: each copy has a summand of the gradient. */
  if (q->shape[0] < sizes->kv_heads * per_group && !(k->backward & v->backward & 1u << LLAMA_POINT_WEIGHT_GRAD))
    return mismatch(model, unit, BLOCK_K, BLOCK_V, "nobody adds up the gradients of a key head's copies");
  int status = check_pair(model, locals, unit, BLOCK_Q, BLOCK_O);
  return status != LLAMA_OK ? status : check_pair(model, locals, unit, BLOCK_GATE, BLOCK_DOWN);
}

static int check_vocabulary(struct llama *model, const struct llama_local *locals)
{
  uint32_t unit = llama_head_unit(model);
  const struct llama_local *head = local_of(model, locals, unit, HEAD_WEIGHT);
  if ((locals->backward | head->backward) & 1u << LLAMA_POINT_WEIGHT_GRAD)
    return llama_fail(model, LLAMA_E_INVALID, "gradients of the embedding and the head are not offered to be completed");
  const uint32_t loss = 1u << LLAMA_POINT_LOSS_MAX | 1u << LLAMA_POINT_LOSS_SUM | 1u << LLAMA_POINT_LOGITS;
  if (model->config.tied && (locals->shape[0] != head->shape[0] || locals->offset[0] != head->offset[0]))
    return mismatch(model, unit, HEAD_NORM, HEAD_WEIGHT, "a tied head has the rows of the embedding");
  if (locals->shape[0] != model->config.vocab && !(locals->forward & 1u << LLAMA_POINT_EMBED_OUTPUT))
    return mismatch(model, 0, 0, 0, "nobody adds up the rows that other parts have");
  if (head->shape[0] != model->config.vocab && ((head->forward & loss) != loss || !(head->backward & 1u << LLAMA_POINT_HEAD_INPUT)))
    return mismatch(model, unit, HEAD_NORM, HEAD_WEIGHT, "nobody completes the loss over the vocabulary");
  return LLAMA_OK;
}

/* Every point between the residual stream and a linear layer must be heard, in both directions, if the stream is split. */
static int check_residual(struct llama *model, const struct llama_local *locals, int64_t parts, int64_t index)
{
  if (parts < 1 || index < 0 || index >= parts)
    return llama_fail(model, LLAMA_E_INVALID, "part %lld of %lld of the residual stream does not exist", (long long)index,
                      (long long)parts);
  for (uint32_t p = 0; parts > 1 && p < model->n_params; p++) {
    uint32_t unit = model->params[p].unit, nth = p - model->units[unit].first_param, point = 0;
    if (unit == 0)
      point = LLAMA_POINT_EMBED_OUTPUT;
    else if (unit == llama_head_unit(model))
      point = nth == HEAD_WEIGHT ? LLAMA_POINT_HEAD_INPUT : LLAMA_POINT_WEIGHT_GRAD;
    else if (nth == BLOCK_Q || nth == BLOCK_GATE)
      point = LLAMA_POINT_COLUMN_INPUT;
    else if (nth == BLOCK_O || nth == BLOCK_DOWN)
      point = LLAMA_POINT_ROW_OUTPUT;
    else if (nth == BLOCK_INPUT_NORM || nth == BLOCK_POST_NORM)
      point = LLAMA_POINT_WEIGHT_GRAD;
    if (point != 0 && ((point != LLAMA_POINT_WEIGHT_GRAD && !(locals[p].forward & 1u << point)) || !(locals[p].backward & 1u << point)))
      return llama_fail(model, LLAMA_E_INVALID, "rows of the residual stream are split, and point %u of %s is not heard", point,
                        model->params[p].name);
  }
  return LLAMA_OK;
}

static int64_t larger(int64_t a, int64_t b)
{
  return a > b ? a : b;
}

static int derive(struct llama *model, const struct llama_local *locals, struct llama_layout *layout)
{
  const struct llama_local *head = local_of(model, locals, llama_head_unit(model), HEAD_WEIGHT);
  struct llama_sizes *most = &layout->most;
  *most = (struct llama_sizes){0};
  for (int64_t layer = 0; layer < model->config.layers; layer++) {
    struct llama_sizes *sizes = &layout->blocks[layer];
    int status = check_block(model, locals, llama_block_unit(layer), sizes);
    if (status != LLAMA_OK)
      return status;
    *most =
        (struct llama_sizes){larger(most->heads, sizes->heads), larger(most->kv_heads, sizes->kv_heads),
                             larger(most->q_size, sizes->q_size), larger(most->kv_size, sizes->kv_size), larger(most->inter, sizes->inter)};
  }
  for (uint32_t p = 0; p < model->n_params; p++)
    if (locals[p].backward & 1u << LLAMA_POINT_WEIGHT_GRAD)
      layout->partial = larger(layout->partial, locals[p].shape[0] * (model->params[p].ndim == 2 ? locals[p].shape[1] : 1));
  layout->embed_first = locals->offset[0];
  layout->embed_rows = locals->shape[0];
  layout->vocab_first = head->offset[0];
  layout->vocab = head->shape[0];
  return check_vocabulary(model, locals);
}

int llama_localize(struct llama *model, const struct llama_local *locals, int64_t parts, int64_t index)
{
  struct llama_layout layout = llama_whole(&model->config);
  llama_room_release(model);
  layout.parts = parts;
  layout.index = index;
  layout.blocks = calloc((size_t)model->config.layers, sizeof *layout.blocks);
  int status = layout.blocks == NULL ? llama_fail(model, LLAMA_E_NOMEM, "no memory for the sizes of the blocks")
                                     : check_residual(model, locals, parts, index);
  if (status == LLAMA_OK)
    status = derive(model, locals, &layout);
  if (status != LLAMA_OK) {
    free(layout.blocks);
    return status;
  }
  free(model->layout.blocks);
  model->layout = layout;
  memcpy(model->locals, locals, model->n_params * sizeof *locals);
  return LLAMA_OK;
}

/* ---- points ---- */

void llama_set_rows(const struct llama_layout *layout, struct llama_pass *pass, int split)
{
  int64_t rows = pass->batch * pass->seq;
  pass->part = split ? (rows + layout->parts - 1) / layout->parts : rows;
  pass->padded = split ? pass->part * layout->parts : rows;
  pass->part_first = split ? layout->index * pass->part : 0;
  pass->held = rows - pass->part_first < pass->part ? rows - pass->part_first : pass->part;
  pass->held = pass->held < 0 ? 0 : pass->held;
}

int llama_wants(const struct llama *model, uint32_t point, uint32_t param, int backward)
{
  const struct llama_local *local = &model->locals[param];
  return model->hooks.activation != NULL && ((backward ? local->backward : local->forward) & 1u << point) != 0;
}

int llama_offer(struct llama *model, const struct llama_activation *activation)
{
  int status = model->hooks.activation(model->hooks.ctx, activation);
  if (status != LLAMA_OK)
    llama_fail(model, status, "the activation hook of unit %s returned %d", model->units[activation->unit].name, status);
  return status;
}

int llama_wants_output(const struct llama *model, uint32_t unit, int backward)
{
  return llama_wants(model, LLAMA_POINT_UNIT_OUTPUT, model->units[unit].first_param, backward);
}

int llama_hook_output(struct llama *model, uint32_t unit, int backward, int64_t rows, float *data)
{
  struct llama_activation a = {.point = LLAMA_POINT_UNIT_OUTPUT,
                               .unit = unit,
                               .param = model->units[unit].first_param,
                               .backward = backward,
                               .rows = rows,
                               .columns = unit == llama_head_unit(model) ? model->layout.vocab : model->config.hidden,
                               .data = data,
                               .out = data};
  a.out_rows = a.rows;
  a.out_columns = a.columns;
  return llama_wants_output(model, unit, backward) ? llama_offer(model, &a) : LLAMA_OK;
}

int llama_gather(struct llama *model, const struct llama_pass *pass, uint32_t point, uint32_t unit, uint32_t nth, int backward, float *full)
{
  const struct llama_activation a = {.point = point,
                                     .unit = unit,
                                     .param = model->units[unit].first_param + nth,
                                     .backward = backward,
                                     .rows = pass->part,
                                     .columns = model->config.hidden,
                                     .data = full + pass->part_first * model->config.hidden,
                                     .out_rows = pass->padded,
                                     .out_columns = model->config.hidden,
                                     .out = full};
  return llama_wants(model, point, a.param, backward) ? llama_offer(model, &a) : LLAMA_OK;
}

int llama_scatter(struct llama *model, const struct llama_pass *pass, uint32_t point, uint32_t unit, uint32_t nth, int backward,
                  float *full, float *part)
{
  int64_t hidden = model->config.hidden, tokens = pass->batch * pass->seq;
  const struct llama_activation a = {.point = point,
                                     .unit = unit,
                                     .param = model->units[unit].first_param + nth,
                                     .backward = backward,
                                     .rows = pass->padded,
                                     .columns = hidden,
                                     .data = full,
                                     .out_rows = pass->part,
                                     .out_columns = hidden,
                                     .out = part != NULL ? part : full + pass->part_first * hidden};
  if (!llama_wants(model, point, a.param, backward))
    return LLAMA_OK;
  memset(full + tokens * hidden, 0, (size_t)llama_busy(model, (a.rows - tokens) * hidden) * sizeof *full);
  return llama_offer(model, &a);
}
