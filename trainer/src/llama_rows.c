/* llama_rows.c - norms, SwiGLU, residual sums and the embedding: kernels, plus storage in 16 bits and the roundings of the policy.
 *
 * Outputs that products read are rounded to the matmul type here, where they are made, so that each is rounded once however many
 * products read it. In fp32 every function is the kernel and nothing else.
 */
#include "llama_model.h"

#include <stdlib.h>
#include <string.h>

/* The norm's weight as fp32. */
static const float *norm_weight(const struct llama *model, uint32_t unit, uint32_t nth)
{
  uint32_t param = model->units[unit].first_param + nth;
  if (model->dtype[param] == ORDO_F32)
    return model->data[param];
  kernels_widen(model->kernels, model->dtype[param], (size_t)model->config.hidden, model->data[param], model->work.weight);
  return model->work.weight;
}

/* The output of a norm is an operand of products. */
static void round_norm(const struct llama *model, int64_t rows, float *y)
{
  llama_round(model, model->policy.norm, rows * model->config.hidden, y);
  llama_round(model, model->policy.matmul, rows * model->config.hidden, y);
}

void llama_norm_forward(struct llama *model, uint32_t unit, uint32_t nth, int64_t rows, const float *x, float *y, float *inv)
{
  model->kernels->rms_forward((size_t)rows, (size_t)model->config.hidden, x, norm_weight(model, unit, nth), (float)model->config.rms_eps, y,
                              inv);
  round_norm(model, rows, y);
}

void llama_add_norm_forward(struct llama *model, uint32_t unit, uint32_t nth, int64_t rows, const float *x, const float *delta, float *sum,
                            float *y, float *inv)
{
  if (model->policy.elementwise != ORDO_F32) { /* the norm sees the rounded sum */
    llama_residual(model, rows * model->config.hidden, x, delta, sum);
    llama_norm_forward(model, unit, nth, rows, sum, y, inv);
    return;
  }
  model->kernels->add_rms_forward((size_t)rows, (size_t)model->config.hidden, x, delta, sum, norm_weight(model, unit, nth),
                                  (float)model->config.rms_eps, y, inv);
  round_norm(model, rows, y);
}

void llama_norm_again(struct llama *model, uint32_t unit, uint32_t nth, int64_t rows, const float *x, const float *inv, float *y)
{
  model->kernels->rms_apply((size_t)rows, (size_t)model->config.hidden, x, norm_weight(model, unit, nth), inv, y);
  round_norm(model, rows, y);
}

void llama_norm_backward(struct llama *model, uint32_t unit, uint32_t nth, int64_t rows, const float *x, const float *inv, const float *dy,
                         float *dx, float beta)
{
  uint32_t param = model->units[unit].first_param + nth;
  size_t hidden = (size_t)model->config.hidden;
  ordo_dtype dtype = model->grad_dtype[param];
  float *grad = dtype == ORDO_F32 || model->grad[param] == NULL ? model->grad[param] : model->work.vector;
  if (grad != NULL && beta == 0.0f)
    memset(grad, 0, hidden * sizeof *grad);
  else if (grad != NULL && dtype != ORDO_F32)
    kernels_widen(model->kernels, dtype, hidden, model->grad[param], grad);
  model->kernels->rms_backward((size_t)rows, hidden, x, norm_weight(model, unit, nth), inv, dy, dx, grad);
  if (grad != NULL && dtype != ORDO_F32)
    kernels_narrow(model->kernels, dtype, hidden, grad, model->grad[param]);
}

void llama_residual(struct llama *model, int64_t n, const float *x, const float *delta, float *sum)
{
  model->kernels->add((size_t)n, x, delta, sum);
  llama_round(model, model->policy.elementwise, n, sum);
}

void llama_swiglu_forward(struct llama *model, int64_t n, const float *gate, const float *up, float *act)
{
  model->kernels->swiglu_forward((size_t)n, gate, up, act);
  llama_round(model, model->policy.elementwise, n, act);
  llama_round(model, model->policy.matmul, n, act);
}

void llama_swiglu_backward(struct llama *model, int64_t n, float *gate, float *up, float *grad)
{
  model->kernels->swiglu_backward((size_t)n, gate, up, grad);
  llama_round(model, model->policy.elementwise, n, grad); /* as in forward: it is the activation again */
  llama_round(model, model->policy.matmul, n, grad);
  llama_round(model, model->policy.matmul, n, gate);
  llama_round(model, model->policy.matmul, n, up);
}

/* ---- embedding ---- */

static char *table_row(void *table, ordo_dtype dtype, int64_t row, int64_t hidden)
{
  return (char *)table + row * hidden * (int64_t)ordo_dtype_size(dtype);
}

void llama_embedding_forward(struct llama *model, int64_t rows, const int32_t *ids, float *x)
{
  int64_t hidden = model->config.hidden;
  for (int64_t r = 0; r < rows; r++)
    kernels_widen(model->kernels, model->dtype[0], (size_t)hidden, table_row(model->data[0], model->dtype[0], ids[r], hidden),
                  x + r * hidden);
  llama_round(model, model->policy.embedding, rows * hidden, x);
}

static int compare_keys(const void *a, const void *b)
{
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* 16 bits: the rows of equal ids are added up in fp32, in order of position, and rounded together. */
static void add_rows_low(struct llama *model, int64_t rows, const int32_t *ids, const float *dx)
{
  const struct kernels *kernels = model->kernels;
  ordo_dtype dtype = model->grad_dtype[0];
  size_t hidden = (size_t)model->config.hidden;
  int64_t *keys = model->work.keys;
  float *sum = model->work.vector;
  for (int64_t r = 0; r < rows; r++)
    keys[r] = (int64_t)ids[r] << 32 | r;
  qsort(keys, (size_t)rows, sizeof *keys, compare_keys);
  for (int64_t r = 0; r < rows;) {
    int64_t id = keys[r] >> 32;
    void *row = table_row(model->grad[0], dtype, id, model->config.hidden);
    kernels_widen(kernels, dtype, hidden, row, sum);
    for (; r < rows && keys[r] >> 32 == id; r++)
      kernels->add(hidden, sum, dx + (size_t)(keys[r] & 0xffffffff) * hidden, sum);
    kernels_narrow(kernels, dtype, hidden, sum, row);
  }
}

void llama_embedding_backward(struct llama *model, int64_t rows, const int32_t *ids, const float *dx, float beta)
{
  size_t hidden = (size_t)model->config.hidden;
  float *grad = model->grad[0];
  if (grad == NULL)
    return;
  if (beta == 0.0f)
    memset(grad, 0, (size_t)model->vocab * hidden * ordo_dtype_size(model->grad_dtype[0]));
  if (model->grad_dtype[0] != ORDO_F32) {
    add_rows_low(model, rows, ids, dx);
    return;
  }
  for (int64_t r = 0; r < rows; r++) {
    float *row = grad + (size_t)ids[r] * hidden;
    model->kernels->add(hidden, row, dx + (size_t)r * hidden, row);
  }
}
