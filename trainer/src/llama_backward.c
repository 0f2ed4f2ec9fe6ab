/* llama_backward.c - backward pass, units last to first, on what llama_forward kept.
 *
 * Cheap things are computed again instead of stored: norm outputs, silu(gate) * up, attention probabilities. Gradients of
 * activations overwrite activations that are no longer needed (gate, up, logits), hence one backward per forward.
 * `room->dx` is the gradient of the residual stream; it passes through the units and each branch adds to it.
 */
#include "llama_model.h"

#include <string.h>

#include "attention.h"
#include "kernels_gemm.h"
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
    llama_fail(model, status, "the grad_ready hook of %s returned %d", model->params[param].name, status);
  return status;
}

static int begin_unit(struct llama *model, uint32_t unit)
{
  int status = llama_hook_unit(model, model->hooks.pre_backward, unit);
  return status != LLAMA_OK ? status : llama_check_unit(model, unit);
}

/* One linear layer y = x W^T of a unit. */
struct linear {
  uint32_t unit;
  uint32_t nth; /* parameter of the unit */
  int64_t in;
  int64_t out;
};

/* dW (+)= dy^T x, then the parameter is ready. */
static int weight_gradient(struct llama *model, struct linear linear, const float *dy, const float *x)
{
  uint32_t param = model->units[linear.unit].first_param + linear.nth;
  int64_t rows = model->kept_batch * model->kept_seq;
  if (model->grad[param] != NULL && !model->dry)
    linear_backward_weight(rows, linear.in, linear.out, dy, x, grad_beta(model, param), model->grad[param]);
  return grad_ready(model, param);
}

/* dx = dy W + beta dx. */
static void input_gradient(const struct llama *model, struct linear linear, const float *dy, float beta, float *dx)
{
  int64_t rows = model->kept_batch * model->kept_seq;
  linear_backward_input(rows, linear.in, linear.out, dy, llama_weight(model, linear.unit, linear.nth), beta, dx);
}

/* Through a norm: adds to room->dx and to the norm weight's gradient; dy in pass.branch. */
static int norm_gradient(struct llama *model, uint32_t unit, uint32_t nth, const float *x, const float *inv)
{
  struct llama_room *room = &model->room;
  uint32_t param = model->units[unit].first_param + nth;
  size_t hidden = (size_t)model->config.hidden;
  float *grad = model->grad[param];
  if (grad != NULL && !model->dry && grad_beta(model, param) == 0.0f)
    memset(grad, 0, hidden * sizeof *grad);
  model->kernels->rms_backward((size_t)(model->kept_batch * model->kept_seq), hidden, x, llama_weight(model, unit, nth), inv,
                               room->pass.branch, room->dx, grad);
  return grad_ready(model, param);
}

/* Gradient of a branch's output: dx itself, or a copy that the hook may transform without touching the residual stream. */
static int branch_output_gradient(struct llama *model, uint32_t unit, const float **gradient)
{
  struct llama_room *room = &model->room;
  int64_t rows = model->kept_batch * model->kept_seq;
  *gradient = room->dx;
  if (model->hooks.activation == NULL)
    return LLAMA_OK;
  memcpy(room->pass.branch, room->dx, (size_t)(rows * model->config.hidden) * sizeof *room->dx);
  *gradient = room->pass.branch;
  return llama_hook_activation(model, LLAMA_POINT_ROW_OUTPUT, unit, 1, rows, room->pass.branch);
}

static int mlp_backward(struct llama *model, uint32_t unit, const struct layer_buffers *b)
{
  struct llama_room *room = &model->room;
  const struct kernels *kernels = model->kernels;
  int64_t rows = model->kept_batch * model->kept_seq;
  int64_t hidden = model->config.hidden;
  const struct linear gate = {unit, BLOCK_GATE, hidden, model->inter};
  const struct linear up = {unit, BLOCK_UP, hidden, model->inter};
  const struct linear down = {unit, BLOCK_DOWN, model->inter, hidden};
  const float *dout;
  int status = branch_output_gradient(model, unit, &dout);
  if (status != LLAMA_OK)
    return status;
  input_gradient(model, down, dout, 0.0f, room->wide);
  kernels->swiglu_backward((size_t)(rows * model->inter), b->gate, b->up, room->wide);
  status = weight_gradient(model, down, dout, room->wide);
  kernels->rms_apply((size_t)rows, (size_t)hidden, b->mid, llama_weight(model, unit, BLOCK_POST_NORM), b->inv_post, room->pass.norm);
  if (status == LLAMA_OK)
    status = weight_gradient(model, up, b->up, room->pass.norm);
  if (status == LLAMA_OK)
    status = weight_gradient(model, gate, b->gate, room->pass.norm);
  if (status != LLAMA_OK)
    return status;
  input_gradient(model, gate, b->gate, 0.0f, room->pass.branch);
  input_gradient(model, up, b->up, 1.0f, room->pass.branch);
  status = llama_hook_activation(model, LLAMA_POINT_COLUMN_INPUT, unit, 1, rows, room->pass.branch);
  return status != LLAMA_OK ? status : norm_gradient(model, unit, BLOCK_POST_NORM, b->mid, b->inv_post);
}

static void rotate_back(const struct llama *model, int64_t heads, float *x)
{
  const struct llama_pass *pass = &model->room.pass;
  int64_t half = model->config.head_dim / 2;
  for (int64_t row = 0; row < model->kept_batch * model->kept_seq; row++) {
    int64_t position = row % model->kept_seq;
    model->kernels->rope((size_t)heads, (size_t)half, pass->cosine + position * half, pass->sine + position * half, -1.0f,
                         x + row * heads * half * 2);
  }
}

static void attend_backward(struct llama *model, const struct layer_buffers *b, const float *dattn)
{
  struct llama_room *room = &model->room;
  struct attention shape = {model->kernels, model->heads, model->kv_heads, model->config.head_dim, model->kept_seq, 0};
  for (int64_t n = 0; n < model->kept_batch; n++) {
    int64_t q = n * model->kept_seq * model->q_size;
    int64_t kv = n * model->kept_seq * model->kv_size;
    attention_backward(&shape, b->q + q, b->k + kv, b->v + kv, b->attn + q, b->lse + n * model->kept_seq * model->heads, dattn + q,
                       room->dq + q, room->dk + kv, room->dv + kv, room->pass.score_space);
  }
  rotate_back(model, model->heads, room->dq);
  rotate_back(model, model->kv_heads, room->dk);
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
  const float *dout;
  int status = branch_output_gradient(model, unit, &dout);
  if (status != LLAMA_OK)
    return status;
  input_gradient(model, o, dout, 0.0f, room->wide);
  status = weight_gradient(model, o, dout, b->attn);
  attend_backward(model, b, room->wide);
  model->kernels->rms_apply((size_t)rows, (size_t)hidden, b->x, llama_weight(model, unit, BLOCK_INPUT_NORM), b->inv_in, room->pass.norm);
  if (status == LLAMA_OK)
    status = weight_gradient(model, v, room->dv, room->pass.norm);
  if (status == LLAMA_OK)
    status = weight_gradient(model, k, room->dk, room->pass.norm);
  if (status == LLAMA_OK)
    status = weight_gradient(model, q, room->dq, room->pass.norm);
  if (status != LLAMA_OK)
    return status;
  input_gradient(model, q, room->dq, 0.0f, room->pass.branch);
  input_gradient(model, k, room->dk, 1.0f, room->pass.branch);
  input_gradient(model, v, room->dv, 1.0f, room->pass.branch);
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
static int head_rows_backward(struct llama *model, int64_t first, int64_t rows, float factor, float *grad, float beta)
{
  struct llama_room *room = &model->room;
  int64_t hidden = model->config.hidden;
  const float *weight = llama_weight(model, llama_head_unit(model), HEAD_WEIGHT);
  const float *x = room->pass.norm + first * hidden;
  int status = LLAMA_OK;
  if (model->kept_batch * model->kept_seq > room->logits_rows) {
    struct loss_totals ignored = {0};
    linear_forward(rows, hidden, model->vocab, x, weight, room->logits);
    status = llama_hook_output(model, llama_head_unit(model), 0, rows, room->logits);
    loss_forward(model->kernels, rows, model->vocab, room->logits, room->targets + first, room->sums + first, NULL, &ignored);
  }
  loss_backward(model->kernels, rows, model->vocab, room->logits, room->targets + first, room->sums + first, factor);
  if (status == LLAMA_OK)
    status = llama_hook_output(model, llama_head_unit(model), 1, rows, room->logits);
  if (grad != NULL)
    linear_backward_weight(rows, hidden, model->vocab, room->logits, x, beta, grad);
  linear_backward_input(rows, hidden, model->vocab, room->logits, weight, 0.0f, room->pass.branch + first * hidden);
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
  model->kernels->rms_apply((size_t)rows, (size_t)hidden, x, llama_weight(model, unit, HEAD_NORM), room->final_inv, room->pass.norm);
  for (int64_t first = 0; status == LLAMA_OK && first < rows; first += room->logits_rows) {
    int64_t chunk = rows - first < room->logits_rows ? rows - first : room->logits_rows;
    status = head_rows_backward(model, first, chunk, factor, model->grad[param], first == 0 ? beta : 1.0f);
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
  size_t hidden = (size_t)model->config.hidden;
  int status = llama_hook_unit(model, model->hooks.pre_backward, 0);
  float *grad = model->grad[0]; /* the hook may have moved it */
  if (status == LLAMA_OK)
    status = llama_hook_output(model, 0, 1, rows, room->dx);
  if (status == LLAMA_OK)
    status = llama_hook_activation(model, LLAMA_POINT_EMBED_OUTPUT, 0, 1, rows, room->dx);
  if (status != LLAMA_OK)
    return status;
  if (grad != NULL && !model->dry && embedding_beta(model) == 0.0f)
    memset(grad, 0, (size_t)model->vocab * hidden * sizeof *grad);
  for (int64_t r = 0; grad != NULL && r < rows; r++) {
    float *row = grad + (size_t)room->ids[r] * hidden;
    model->kernels->add(hidden, row, room->dx + (size_t)r * hidden, row);
  }
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
