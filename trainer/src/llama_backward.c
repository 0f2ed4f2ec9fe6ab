/* llama_backward.c - backward pass, units last to first, on what llama_forward kept.
 *
 * Cheap things are computed again instead of stored: norm outputs, silu(gate) * up, attention probabilities. Gradients of
 * activations overwrite activations that are no longer needed (gate, up, logits), hence one backward per forward.
 * `room->dx` is the gradient of the residual stream; it passes through the units and each branch adds to it.
 */
#include "llama_model.h"

#include <string.h>

#include "attention.h"
#include "loss.h"

/* The beta of the first write to a gradient in this backward: 1 adds, 0 overwrites. */
static float grad_beta(const struct llama *model, uint32_t param)
{
  if (model->hooks.grad_adds == NULL)
    return 1.0f;
  return model->hooks.grad_adds(model->hooks.ctx, param) ? 1.0f : 0.0f;
}

static int grad_ready(struct llama *model, uint32_t param)
{
  int status = model->hooks.grad_ready == NULL ? LLAMA_OK : model->hooks.grad_ready(model->hooks.ctx, param);
  if (status != LLAMA_OK)
    llama_fail(model, status, "the grad_ready hook of %s returned %d", param < model->n_params ? model->params[param].name : "an adapter",
               status);
  return status;
}

static int begin_unit(struct llama *model, uint32_t unit)
{
  int status = llama_hook_unit(model, model->hooks.pre_backward, unit);
  return status != LLAMA_OK ? status : llama_check_unit(model, unit);
}

/* Gradients of the adapter of a linear layer, if it has one. */
static int adapter_gradient(struct llama *model, uint32_t param, const float *dy, const float *x)
{
  const struct llama_adapter *adapter = llama_adapter_find(model, param);
  int status = LLAMA_OK;
  for (int which = 0; adapter != NULL && which < 2 && status == LLAMA_OK; which++) {
    const uint32_t number = which == 0 ? adapter->a : adapter->b;
    if (adapter->grad[which] != NULL)
      llama_adapter_backward_weight(adapter, which, model->kept_batch * model->kept_seq, dy, x, grad_beta(model, number));
    status = grad_ready(model, number);
  }
  return status;
}

/* Where a micro-batch's contribution is written: into the gradient, or apart in fp32, if a hook completes it first. A fp32 gradient that
 * holds nothing yet needs no place apart. */
static struct gradient contribution(const struct llama *model, uint32_t param, float beta)
{
  if (model->grad[param] != NULL && llama_wants(model, LLAMA_POINT_WEIGHT_GRAD, param, 1) &&
      (beta != 0.0f || kernels_is_low(model->grad_dtype[param])))
    return (struct gradient){model->room.partial, ORDO_F32, 0.0f};
  return (struct gradient){model->grad[param], model->grad_dtype[param], beta};
}

/* The contribution becomes part of the gradient. */
static int complete(struct llama *model, uint32_t param, float beta, struct gradient written)
{
  const struct llama_local *local = &model->locals[param];
  struct llama_activation a = {.point = LLAMA_POINT_WEIGHT_GRAD, .unit = model->params[param].unit, .param = param, .backward = 1};
  if (!llama_wants(model, LLAMA_POINT_WEIGHT_GRAD, param, 1))
    return LLAMA_OK;
  a.rows = a.out_rows = local->shape[0];
  a.columns = a.out_columns = model->params[param].ndim == 2 ? local->shape[1] : 1;
  a.data = a.out = written.data;
  int status = llama_offer(model, &a);
  if (status == LLAMA_OK && written.data != model->grad[param])
    llama_gradient_take(model, param, beta, a.rows * a.columns, written.data);
  return status;
}

/* dW (+)= dy^T x, then the parameter is ready. */
static int weight_gradient(struct llama *model, struct linear linear, struct operand dy, struct operand x)
{
  uint32_t param = model->units[linear.unit].first_param + linear.nth;
  int status = LLAMA_OK;
  if (model->grad[param] != NULL) {
    float beta = grad_beta(model, param);
    struct gradient into = contribution(model, param, beta);
    llama_linear_backward_weight(model, linear, model->kept_batch * model->kept_seq, dy, x, into);
    status = complete(model, param, beta, into);
  }
  if (status == LLAMA_OK)
    status = grad_ready(model, param);
  return status == LLAMA_OK ? adapter_gradient(model, param, dy.x, x.x) : status;
}

/* dx = dy W + beta dx. */
static void input_gradient(struct llama *model, struct linear linear, struct operand dy, float beta, float *dx)
{
  llama_linear_backward_input(model, linear, model->kept_batch * model->kept_seq, dy, beta, dx);
}

/* Through a norm: adds to room->dx and to the norm weight's gradient; dy in pass.branch. */
static int norm_gradient(struct llama *model, uint32_t unit, uint32_t nth, const float *x, const float *inv)
{
  struct llama_room *room = &model->room;
  uint32_t param = model->units[unit].first_param + nth;
  int64_t hidden = model->config.hidden;
  float beta = model->grad[param] == NULL ? 1.0f : grad_beta(model, param);
  struct gradient into = contribution(model, param, beta);
  llama_norm_backward(model, unit, nth, room->pass.held, x, inv, room->pass.branch + room->pass.part_first * hidden, room->dx, into);
  int status = into.data == NULL ? LLAMA_OK : complete(model, param, beta, into);
  return status != LLAMA_OK ? status : grad_ready(model, param);
}

/* A norm's output again, whole, as its linear layers read it in forward. */
static int norm_again(struct llama *model, uint32_t unit, uint32_t nth, const float *x, const float *inv, uint32_t point, uint32_t reader)
{
  const struct llama_pass *pass = &model->room.pass;
  int64_t hidden = model->config.hidden;
  llama_norm_again(model, unit, nth, pass->held, x, inv, pass->norm + pass->part_first * hidden);
  return llama_gather(model, pass, point, unit, reader, 0, pass->norm);
}

/* The residual stream's gradient as the point's param sees it: dx itself if nobody listens, else what the hook makes of it. */
static int stream_gradient(struct llama *model, uint32_t point, uint32_t unit, uint32_t nth, const float **gradient)
{
  struct llama_room *room = &model->room;
  const struct llama_pass *pass = &room->pass;
  int64_t hidden = model->config.hidden;
  struct llama_activation a = {.point = point,
                               .unit = unit,
                               .param = model->units[unit].first_param + nth,
                               .backward = 1,
                               .rows = pass->part,
                               .columns = hidden,
                               .data = room->dx,
                               .out_rows = pass->padded,
                               .out_columns = hidden,
                               .out = pass->branch};
  *gradient = room->dx;
  if (!llama_wants(model, point, a.param, 1))
    return LLAMA_OK;
  *gradient = pass->branch;
  if (pass->held < pass->part) /* rows that are no tokens */
    memset(room->dx + pass->held * hidden, 0, (size_t)llama_busy(model, (pass->part - pass->held) * hidden) * sizeof *room->dx);
  return llama_offer(model, &a);
}

/* Gradient of a branch's output: what stream_gradient gives, rounded as an operand. dx itself stays as it is. */
static int branch_output_gradient(struct llama *model, uint32_t unit, uint32_t nth, struct operand *gradient)
{
  struct llama_room *room = &model->room;
  int64_t n = model->kept_batch * model->kept_seq * model->config.hidden;
  const float *dout = room->dx;
  int status = stream_gradient(model, LLAMA_POINT_ROW_OUTPUT, unit, nth, &dout);
  if (status != LLAMA_OK)
    return status;
  if (model->policy.matmul != ORDO_F32) {
    kernels_round_copy(model->kernels, model->policy.matmul, (size_t)llama_busy(model, n), dout, room->pass.branch);
    dout = room->pass.branch;
  }
  *gradient = llama_operand(model, OPERAND_DY0, n, dout);
  return LLAMA_OK;
}

static int mlp_backward(struct llama *model, uint32_t unit, const struct layer_buffers *b)
{
  struct llama_room *room = &model->room;
  int64_t rows = model->kept_batch * model->kept_seq;
  int64_t hidden = model->config.hidden;
  int64_t inter = llama_sizes_of(model, unit)->inter;
  const struct linear gate = {unit, BLOCK_GATE, hidden, inter};
  const struct linear up = {unit, BLOCK_UP, hidden, inter};
  const struct linear down = {unit, BLOCK_DOWN, inter, hidden};
  struct operand dout;
  int status = branch_output_gradient(model, unit, BLOCK_DOWN, &dout);
  if (status != LLAMA_OK)
    return status;
  input_gradient(model, down, dout, 0.0f, room->wide);
  llama_swiglu_backward(model, rows * inter, b->gate, b->up, room->wide);
  status = weight_gradient(model, down, dout, llama_operand(model, OPERAND_X, rows * inter, room->wide));
  if (status == LLAMA_OK)
    status = norm_again(model, unit, BLOCK_POST_NORM, b->mid, b->inv_post, LLAMA_POINT_COLUMN_INPUT, BLOCK_GATE);
  if (status != LLAMA_OK)
    return status;
  struct operand norm = llama_operand(model, OPERAND_X, rows * hidden, room->pass.norm);
  struct operand dup = llama_operand(model, OPERAND_DY1, rows * inter, b->up);
  struct operand dgate = llama_operand(model, OPERAND_DY2, rows * inter, b->gate);
  status = weight_gradient(model, up, dup, norm);
  if (status == LLAMA_OK)
    status = weight_gradient(model, gate, dgate, norm);
  if (status != LLAMA_OK)
    return status;
  input_gradient(model, gate, dgate, 0.0f, room->pass.branch);
  input_gradient(model, up, dup, 1.0f, room->pass.branch);
  status = llama_scatter(model, &room->pass, LLAMA_POINT_COLUMN_INPUT, unit, BLOCK_GATE, 1, room->pass.branch, NULL);
  return status != LLAMA_OK ? status : norm_gradient(model, unit, BLOCK_POST_NORM, b->mid, b->inv_post);
}

static void attend_backward(struct llama *model, const struct llama_sizes *sizes, const struct layer_buffers *b, const float *dattn)
{
  struct llama_room *room = &model->room;
  struct attention shape = {model->kernels,       sizes->heads,         sizes->kv_heads, model->config.head_dim, model->kept_seq, 0,
                            model->policy.matmul, model->policy.softmax};
  for (int64_t n = 0; n < llama_busy(model, model->kept_batch); n++) {
    int64_t q = n * model->kept_seq * sizes->q_size;
    int64_t kv = n * model->kept_seq * sizes->kv_size;
    attention_backward(&shape, b->q + q, b->k + kv, b->v + kv, b->attn + q, b->lse + n * model->kept_seq * sizes->heads, dattn + q,
                       room->dq + q, room->dk + kv, room->dv + kv, room->pass.score_space);
  }
  llama_rotate(model, &room->pass, sizes->heads, -1.0f, room->dq);
  llama_rotate(model, &room->pass, sizes->kv_heads, -1.0f, room->dk);
  llama_round(model, model->policy.matmul, model->kept_batch * model->kept_seq * sizes->kv_size, room->dv);
}

static int attention_branch_backward(struct llama *model, uint32_t unit, const struct layer_buffers *b)
{
  struct llama_room *room = &model->room;
  int64_t hidden = model->config.hidden;
  const struct llama_sizes *sizes = llama_sizes_of(model, unit);
  const struct linear q = {unit, BLOCK_Q, hidden, sizes->q_size};
  const struct linear k = {unit, BLOCK_K, hidden, sizes->kv_size};
  const struct linear v = {unit, BLOCK_V, hidden, sizes->kv_size};
  const struct linear o = {unit, BLOCK_O, sizes->q_size, hidden};
  int64_t rows = model->kept_batch * model->kept_seq;
  struct operand dout;
  int status = branch_output_gradient(model, unit, BLOCK_O, &dout);
  if (status != LLAMA_OK)
    return status;
  input_gradient(model, o, dout, 0.0f, room->wide);
  llama_round(model, model->policy.matmul, rows * sizes->q_size, room->wide);
  status = weight_gradient(model, o, dout, llama_operand(model, OPERAND_X, rows * sizes->q_size, b->attn));
  attend_backward(model, sizes, b, room->wide);
  if (status == LLAMA_OK)
    status = norm_again(model, unit, BLOCK_INPUT_NORM, b->x, b->inv_in, LLAMA_POINT_COLUMN_INPUT, BLOCK_Q);
  if (status != LLAMA_OK)
    return status;
  struct operand norm = llama_operand(model, OPERAND_X, rows * hidden, room->pass.norm);
  struct operand dv = llama_operand(model, OPERAND_DY0, rows * sizes->kv_size, room->dv);
  struct operand dk = llama_operand(model, OPERAND_DY1, rows * sizes->kv_size, room->dk);
  struct operand dq = llama_operand(model, OPERAND_DY2, rows * sizes->q_size, room->dq);
  status = weight_gradient(model, v, dv, norm);
  if (status == LLAMA_OK)
    status = weight_gradient(model, k, dk, norm);
  if (status == LLAMA_OK)
    status = weight_gradient(model, q, dq, norm);
  if (status != LLAMA_OK)
    return status;
  input_gradient(model, q, dq, 0.0f, room->pass.branch);
  input_gradient(model, k, dk, 1.0f, room->pass.branch);
  input_gradient(model, v, dv, 1.0f, room->pass.branch);
  status = llama_scatter(model, &room->pass, LLAMA_POINT_COLUMN_INPUT, unit, BLOCK_Q, 1, room->pass.branch, NULL);
  return status != LLAMA_OK ? status : norm_gradient(model, unit, BLOCK_INPUT_NORM, b->x, b->inv_in);
}

static int block_backward(struct llama *model, int64_t layer)
{
  uint32_t unit = llama_block_unit(layer);
  const struct layer_buffers *b = &model->room.layers[layer];
  int status = begin_unit(model, unit);
  /* The buffers that layers share still hold the last layer's after forward. */
  if (status == LLAMA_OK && model->room.train == LLAMA_KEEP_INPUTS && layer + 1 < model->config.layers)
    status = llama_block_again(model, layer);
  if (status == LLAMA_OK)
    status = llama_hook_output(model, unit, 1, model->room.pass.held, model->room.dx);
  if (status == LLAMA_OK)
    status = mlp_backward(model, unit, b);
  if (status == LLAMA_OK)
    status = attention_branch_backward(model, unit, b);
  return status != LLAMA_OK ? status : llama_hook_unit(model, model->hooks.post_backward, unit);
}

/* Rows [first, first + rows) of the head: logits -> their gradient, its input's gradient, its share of the weight's. */
static int head_rows_backward(struct llama *model, int64_t first, int64_t rows, float factor, struct gradient gradient)
{
  struct llama_room *room = &model->room;
  int64_t hidden = model->config.hidden;
  int64_t vocab = model->layout.vocab;
  const ordo_dtype matmul = model->policy.matmul;
  const struct linear head = {llama_head_unit(model), HEAD_WEIGHT, hidden, vocab};
  struct operand x = llama_operand(model, OPERAND_X, rows * hidden, room->pass.norm + first * hidden);
  int status = LLAMA_OK;
  if (model->kept_batch * model->kept_seq > room->logits_rows) {
    llama_linear_forward(model, head, rows, x, room->logits);
    if (llama_wants_output(model, head.unit, 0))
      llama_round(model, matmul, rows * vocab, room->logits);
    status = llama_hook_output(model, head.unit, 0, rows, room->logits);
    loss_again(model->kernels, matmul, llama_busy(model, rows), vocab, room->logits, room->targets + first);
  }
  /* Rounded as it is written, unless a hook sees it before. */
  int hooked = llama_wants_output(model, head.unit, 1);
  loss_backward(model->kernels, hooked ? ORDO_F32 : matmul, llama_busy(model, rows), vocab, model->layout.vocab_first, room->logits,
                room->targets + first, room->sums + first, factor);
  if (status == LLAMA_OK)
    status = llama_hook_output(model, head.unit, 1, rows, room->logits);
  if (hooked)
    llama_round(model, matmul, rows * vocab, room->logits);
  struct operand dlogits = llama_operand(model, OPERAND_DY0, rows * vocab, room->logits);
  llama_linear_backward_weight(model, head, rows, dlogits, x, gradient);
  llama_linear_backward_input(model, head, rows, dlogits, 0.0f, room->pass.branch + first * hidden);
  return status;
}

static int head_backward(struct llama *model, float factor)
{
  struct llama_room *room = &model->room;
  uint32_t unit = llama_head_unit(model);
  uint32_t param = model->units[unit].first_param + HEAD_WEIGHT;
  int64_t rows = model->kept_batch * model->kept_seq;
  const float *x = room->layers[model->config.layers - 1].out;
  int status = begin_unit(model, unit);
  if (status != LLAMA_OK)
    return status;
  status = norm_again(model, unit, HEAD_NORM, x, room->final_inv, LLAMA_POINT_HEAD_INPUT, HEAD_WEIGHT);
  if (status != LLAMA_OK)
    return status;
  float beta = model->grad[param] == NULL ? 1.0f : grad_beta(model, param);
  for (int64_t first = 0; status == LLAMA_OK && first < rows; first += room->logits_rows) {
    int64_t chunk = rows - first < room->logits_rows ? rows - first : room->logits_rows;
    struct gradient gradient = {model->grad[param], model->grad_dtype[param], first == 0 ? beta : 1.0f};
    status = head_rows_backward(model, first, chunk, factor, gradient);
  }
  if (status == LLAMA_OK)
    status = grad_ready(model, param);
  if (status == LLAMA_OK)
    status = llama_scatter(model, &room->pass, LLAMA_POINT_HEAD_INPUT, unit, HEAD_WEIGHT, 1, room->pass.branch, NULL);
  if (status != LLAMA_OK)
    return status;
  memset(room->dx, 0, (size_t)llama_busy(model, room->pass.part * model->config.hidden) * sizeof *room->dx);
  status = norm_gradient(model, unit, HEAD_NORM, x, room->final_inv);
  return status != LLAMA_OK ? status : llama_hook_unit(model, model->hooks.post_backward, unit);
}

/* A tied table already holds the head's share of this backward. */
static float embedding_beta(const struct llama *model)
{
  uint32_t head = model->units[llama_head_unit(model)].first_param + HEAD_WEIGHT;
  if (model->config.tied && model->grad[head] == model->grad[0])
    return 1.0f;
  return grad_beta(model, 0);
}

static int embedding_backward(struct llama *model)
{
  struct llama_room *room = &model->room;
  int64_t rows = model->kept_batch * model->kept_seq;
  int status = llama_hook_unit(model, model->hooks.pre_backward, 0);
  const float *dx = room->dx;
  if (status == LLAMA_OK && kernels_is_low(model->grad_dtype[0]) && model->work.keys == NULL)
    return llama_fail(model, LLAMA_E_STATE, "the gradient of %s became 16-bit after room was reserved: reserve again",
                      model->params[0].name);
  if (status == LLAMA_OK)
    status = llama_hook_output(model, 0, 1, room->pass.held, room->dx);
  if (status == LLAMA_OK)
    status = stream_gradient(model, LLAMA_POINT_EMBED_OUTPUT, 0, 0, &dx);
  if (status != LLAMA_OK)
    return status;
  if (model->grad[0] != NULL) /* the hook may have moved it */
    llama_embedding_backward(model, rows, room->ids, dx, embedding_beta(model));
  status = grad_ready(model, 0);
  return status != LLAMA_OK ? status : llama_hook_unit(model, model->hooks.post_backward, 0);
}

int llama_backward(struct llama *model, double loss_factor)
{
  if (model->kept_batch == 0)
    return llama_fail(model, LLAMA_E_STATE, "backward without a forward that kept its activations (or a second backward)");
  int status = head_backward(model, (float)loss_factor);
  for (int64_t layer = model->config.layers - 1; status == LLAMA_OK && layer >= 0; layer--)
    status = block_backward(model, layer);
  if (status == LLAMA_OK)
    status = embedding_backward(model);
  model->kept_batch = 0;
  return status;
}
