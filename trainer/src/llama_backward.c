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

/* dW (+)= dy^T x, then the parameter is ready. */
static int weight_gradient(struct llama *model, struct linear linear, struct operand dy, struct operand x)
{
  uint32_t param = model->units[linear.unit].first_param + linear.nth;
  if (model->grad[param] != NULL)
    llama_linear_backward_weight(model, linear, model->kept_batch * model->kept_seq, dy, x, grad_beta(model, param));
  int status = grad_ready(model, param);
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
  float beta = model->grad[param] == NULL ? 1.0f : grad_beta(model, param);
  llama_norm_backward(model, unit, nth, model->kept_batch * model->kept_seq, x, inv, room->pass.branch, room->dx, beta);
  return grad_ready(model, param);
}

/* Gradient of a branch's output: dx itself, or a copy that the hook may transform and the policy may round without touching the residual
 * stream. */
static int branch_output_gradient(struct llama *model, uint32_t unit, struct operand *gradient)
{
  struct llama_room *room = &model->room;
  int64_t n = model->kept_batch * model->kept_seq * model->config.hidden;
  int own = model->hooks.activation != NULL || model->policy.matmul != ORDO_F32;
  if (own)
    memcpy(room->pass.branch, room->dx, (size_t)n * sizeof *room->dx);
  int status = llama_hook_activation(model, LLAMA_POINT_ROW_OUTPUT, unit, 1, model->kept_batch * model->kept_seq, room->pass.branch);
  llama_round(model, model->policy.matmul, own ? n : 0, room->pass.branch);
  *gradient = llama_operand(model, OPERAND_DY0, n, own ? room->pass.branch : room->dx);
  return status;
}

static int mlp_backward(struct llama *model, uint32_t unit, const struct layer_buffers *b)
{
  struct llama_room *room = &model->room;
  int64_t rows = model->kept_batch * model->kept_seq;
  int64_t hidden = model->config.hidden;
  const struct linear gate = {unit, BLOCK_GATE, hidden, model->inter};
  const struct linear up = {unit, BLOCK_UP, hidden, model->inter};
  const struct linear down = {unit, BLOCK_DOWN, model->inter, hidden};
  struct operand dout;
  int status = branch_output_gradient(model, unit, &dout);
  if (status != LLAMA_OK)
    return status;
  input_gradient(model, down, dout, 0.0f, room->wide);
  llama_swiglu_backward(model, rows * model->inter, b->gate, b->up, room->wide);
  status = weight_gradient(model, down, dout, llama_operand(model, OPERAND_X, rows * model->inter, room->wide));
  llama_norm_again(model, unit, BLOCK_POST_NORM, rows, b->mid, b->inv_post, room->pass.norm);
  struct operand norm = llama_operand(model, OPERAND_X, rows * hidden, room->pass.norm);
  struct operand dup = llama_operand(model, OPERAND_DY1, rows * model->inter, b->up);
  struct operand dgate = llama_operand(model, OPERAND_DY2, rows * model->inter, b->gate);
  if (status == LLAMA_OK)
    status = weight_gradient(model, up, dup, norm);
  if (status == LLAMA_OK)
    status = weight_gradient(model, gate, dgate, norm);
  if (status != LLAMA_OK)
    return status;
  input_gradient(model, gate, dgate, 0.0f, room->pass.branch);
  input_gradient(model, up, dup, 1.0f, room->pass.branch);
  status = llama_hook_activation(model, LLAMA_POINT_COLUMN_INPUT, unit, 1, rows, room->pass.branch);
  return status != LLAMA_OK ? status : norm_gradient(model, unit, BLOCK_POST_NORM, b->mid, b->inv_post);
}

static void attend_backward(struct llama *model, const struct layer_buffers *b, const float *dattn)
{
  struct llama_room *room = &model->room;
  struct attention shape = {model->kernels,       model->heads,         model->kv_heads, model->config.head_dim, model->kept_seq, 0,
                            model->policy.matmul, model->policy.softmax};
  for (int64_t n = 0; n < model->kept_batch; n++) {
    int64_t q = n * model->kept_seq * model->q_size;
    int64_t kv = n * model->kept_seq * model->kv_size;
    attention_backward(&shape, b->q + q, b->k + kv, b->v + kv, b->attn + q, b->lse + n * model->kept_seq * model->heads, dattn + q,
                       room->dq + q, room->dk + kv, room->dv + kv, room->pass.score_space);
  }
  llama_rotate(model, &room->pass, model->heads, -1.0f, room->dq);
  llama_rotate(model, &room->pass, model->kv_heads, -1.0f, room->dk);
  llama_round(model, model->policy.matmul, model->kept_batch * model->kept_seq * model->kv_size, room->dv);
}

static int attention_branch_backward(struct llama *model, uint32_t unit, const struct layer_buffers *b)
{
  struct llama_room *room = &model->room;
  int64_t rows = model->kept_batch * model->kept_seq;
  int64_t hidden = model->config.hidden;
  const struct linear q = {unit, BLOCK_Q, hidden, model->q_size};
  const struct linear k = {unit, BLOCK_K, hidden, model->kv_size};
  const struct linear v = {unit, BLOCK_V, hidden, model->kv_size};
  const struct linear o = {unit, BLOCK_O, model->q_size, hidden};
  struct operand dout;
  int status = branch_output_gradient(model, unit, &dout);
  if (status != LLAMA_OK)
    return status;
  input_gradient(model, o, dout, 0.0f, room->wide);
  llama_round(model, model->policy.matmul, rows * model->q_size, room->wide);
  status = weight_gradient(model, o, dout, llama_operand(model, OPERAND_X, rows * model->q_size, b->attn));
  attend_backward(model, b, room->wide);
  llama_norm_again(model, unit, BLOCK_INPUT_NORM, rows, b->x, b->inv_in, room->pass.norm);
  struct operand norm = llama_operand(model, OPERAND_X, rows * hidden, room->pass.norm);
  struct operand dv = llama_operand(model, OPERAND_DY0, rows * model->kv_size, room->dv);
  struct operand dk = llama_operand(model, OPERAND_DY1, rows * model->kv_size, room->dk);
  struct operand dq = llama_operand(model, OPERAND_DY2, rows * model->q_size, room->dq);
  if (status == LLAMA_OK)
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
  status = llama_hook_activation(model, LLAMA_POINT_COLUMN_INPUT, unit, 1, rows, room->pass.branch);
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
    status = llama_hook_output(model, unit, 1, model->kept_batch * model->kept_seq, model->room.dx);
  if (status == LLAMA_OK)
    status = mlp_backward(model, unit, b);
  if (status == LLAMA_OK)
    status = attention_branch_backward(model, unit, b);
  return status != LLAMA_OK ? status : llama_hook_unit(model, model->hooks.post_backward, unit);
}

/* Rows [first, first + rows) of the head: logits -> their gradient, its input's gradient, its share of the weight's. */
static int head_rows_backward(struct llama *model, int64_t first, int64_t rows, float factor, float beta)
{
  struct llama_room *room = &model->room;
  int64_t hidden = model->config.hidden;
  const struct linear head = {llama_head_unit(model), HEAD_WEIGHT, hidden, model->vocab};
  struct operand x = llama_operand(model, OPERAND_X, rows * hidden, room->pass.norm + first * hidden);
  int status = LLAMA_OK;
  if (model->kept_batch * model->kept_seq > room->logits_rows) {
    struct loss_totals ignored = {0};
    llama_linear_forward(model, head, rows, x, room->logits);
    llama_round(model, model->policy.matmul, rows * model->vocab, room->logits);
    status = llama_hook_output(model, head.unit, 0, rows, room->logits);
    loss_forward(model->kernels, rows, model->vocab, room->logits, room->targets + first, room->sums + first, NULL, &ignored);
  }
  loss_backward(model->kernels, rows, model->vocab, room->logits, room->targets + first, room->sums + first, factor);
  if (status == LLAMA_OK)
    status = llama_hook_output(model, head.unit, 1, rows, room->logits);
  llama_round(model, model->policy.matmul, rows * model->vocab, room->logits);
  struct operand dlogits = llama_operand(model, OPERAND_DY0, rows * model->vocab, room->logits);
  llama_linear_backward_weight(model, head, rows, dlogits, x, beta);
  llama_linear_backward_input(model, head, rows, dlogits, 0.0f, room->pass.branch + first * hidden);
  return status;
}

static int head_backward(struct llama *model, float factor)
{
  struct llama_room *room = &model->room;
  uint32_t unit = llama_head_unit(model);
  uint32_t param = model->units[unit].first_param + HEAD_WEIGHT;
  int64_t rows = model->kept_batch * model->kept_seq;
  int64_t hidden = model->config.hidden;
  const float *x = room->layers[model->config.layers - 1].out;
  int status = begin_unit(model, unit);
  if (status != LLAMA_OK)
    return status;
  float beta = model->grad[param] == NULL ? 1.0f : grad_beta(model, param);
  llama_norm_again(model, unit, HEAD_NORM, rows, x, room->final_inv, room->pass.norm);
  for (int64_t first = 0; status == LLAMA_OK && first < rows; first += room->logits_rows) {
    int64_t chunk = rows - first < room->logits_rows ? rows - first : room->logits_rows;
    status = head_rows_backward(model, first, chunk, factor, first == 0 ? beta : 1.0f);
  }
  if (status == LLAMA_OK)
    status = grad_ready(model, param);
  if (status == LLAMA_OK)
    status = llama_hook_activation(model, LLAMA_POINT_HEAD_INPUT, unit, 1, rows, room->pass.branch);
  if (status != LLAMA_OK)
    return status;
  memset(room->dx, 0, (size_t)(rows * hidden) * sizeof *room->dx);
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
  if (status == LLAMA_OK && kernels_is_low(model->grad_dtype[0]) && model->work.keys == NULL)
    return llama_fail(model, LLAMA_E_STATE, "the gradient of %s became 16-bit after room was reserved: reserve again",
                      model->params[0].name);
  if (status == LLAMA_OK)
    status = llama_hook_output(model, 0, 1, rows, room->dx);
  if (status == LLAMA_OK)
    status = llama_hook_activation(model, LLAMA_POINT_EMBED_OUTPUT, 0, 1, rows, room->dx);
  if (status != LLAMA_OK)
    return status;
  if (model->grad[0] != NULL) /* the hook may have moved it */
    llama_embedding_backward(model, rows, room->ids, room->dx, embedding_beta(model));
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
