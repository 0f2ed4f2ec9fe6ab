/* llama_rows.c - norms, rotary embedding, SwiGLU, residual sums and the embedding: kernels, plus storage in 16 bits and the roundings of
 * the policy.
 *
 * A result of a product is rounded by the function here that reads it next, and what comes out for products is rounded to the matmul type.
 * Where that is the only type of an operation, a kernel rounds as it goes, because a pass of its own over memory would cost several times
 * as much; where the policy mixes types, passes over a few rows at a time round what is in cache then. Rounding twice changes nothing, so a
 * value that two functions read may be rounded by both. In fp32 each function is one call of the kernel; in a dry pass (llama_set_dry) none
 * is called.
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

/* Rows at a time: all of them where nothing is rounded, else what stays in the first cache. */
static int64_t rows_at_once(const struct llama *model, int64_t rows, int64_t columns)
{
  enum { IN_CACHE = 4096 };
  if (model->policy.matmul == ORDO_F32 && model->policy.norm == ORDO_F32 && model->policy.elementwise == ORDO_F32 &&
      model->policy.rope == ORDO_F32)
    return rows;
  return columns < IN_CACHE ? IN_CACHE / columns : 1;
}

static int64_t smaller(int64_t a, int64_t b)
{
  return a < b ? a : b;
}

/* Kernels that round as they go, if nothing but the matmul type is rounded to in an operation of this type. */
static const struct kernels_rounded *rounded(const struct llama *model, ordo_dtype dtype)
{
  ordo_dtype matmul = model->policy.matmul;
  return dtype == ORDO_F32 || dtype == matmul ? kernels_rounded(model->kernels, matmul) : NULL;
}

/* The output of a norm is an operand of products. */
static void round_norm(const struct llama *model, int64_t rows, float *y)
{
  llama_round(model, model->policy.norm, rows * model->config.hidden, y);
  llama_round(model, model->policy.matmul, rows * model->config.hidden, y);
}

void llama_norm_forward(struct llama *model, uint32_t unit, uint32_t nth, int64_t rows, const float *x, float *y, float *inv)
{
  if (model->dry)
    return;
  const float *weight = norm_weight(model, unit, nth);
  const struct kernels_rounded *kernels = rounded(model, model->policy.norm);
  int64_t hidden = model->config.hidden, step = rows_at_once(model, rows, hidden);
  if (kernels != NULL) {
    kernels->rms_forward((size_t)rows, (size_t)hidden, x, weight, (float)model->config.rms_eps, y, inv);
    return;
  }
  for (int64_t r = 0; r < rows; r += step) {
    int64_t n = smaller(step, rows - r);
    model->kernels->rms_forward((size_t)n, (size_t)hidden, x + r * hidden, weight, (float)model->config.rms_eps, y + r * hidden, inv + r);
    round_norm(model, n, y + r * hidden);
  }
}

/* A few rows of llama_add_norm_forward. */
static void add_norm_rows(const struct llama *model, const float *weight, int64_t n, const float *x, float *delta, float *sum, float *y,
                          float *inv)
{
  size_t hidden = (size_t)model->config.hidden, rows = (size_t)n;
  llama_round(model, model->policy.matmul, n * model->config.hidden, delta);
  if (model->policy.elementwise == ORDO_F32) {
    model->kernels->add_rms_forward(rows, hidden, x, delta, sum, weight, (float)model->config.rms_eps, y, inv);
  } else { /* the norm sees the rounded sum */
    model->kernels->add(rows * hidden, x, delta, sum);
    llama_round(model, model->policy.elementwise, n * model->config.hidden, sum);
    model->kernels->rms_forward(rows, hidden, sum, weight, (float)model->config.rms_eps, y, inv);
  }
  round_norm(model, n, y);
}

void llama_add_norm_forward(struct llama *model, uint32_t unit, uint32_t nth, int64_t rows, const float *x, float *delta, float *sum,
                            float *y, float *inv)
{
  if (model->dry)
    return;
  const float *weight = norm_weight(model, unit, nth);
  const struct kernels_rounded *kernels = model->policy.elementwise == ORDO_F32 ? rounded(model, model->policy.norm) : NULL;
  int64_t hidden = model->config.hidden, step = rows_at_once(model, rows, hidden);
  if (kernels != NULL) {
    kernels->add_rms_forward((size_t)rows, (size_t)hidden, x, delta, sum, weight, (float)model->config.rms_eps, y, inv);
    return;
  }
  for (int64_t r = 0; r < rows; r += step)
    add_norm_rows(model, weight, smaller(step, rows - r), x + r * hidden, delta + r * hidden, sum + r * hidden, y + r * hidden, inv + r);
}

void llama_norm_again(struct llama *model, uint32_t unit, uint32_t nth, int64_t rows, const float *x, const float *inv, float *y)
{
  if (model->dry)
    return;
  const float *weight = norm_weight(model, unit, nth);
  const struct kernels_rounded *kernels = rounded(model, model->policy.norm);
  int64_t hidden = model->config.hidden, step = rows_at_once(model, rows, hidden);
  if (kernels != NULL) {
    kernels->rms_apply((size_t)rows, (size_t)hidden, x, weight, inv, y);
    return;
  }
  for (int64_t r = 0; r < rows; r += step) {
    int64_t n = smaller(step, rows - r);
    model->kernels->rms_apply((size_t)n, (size_t)hidden, x + r * hidden, weight, inv + r, y + r * hidden);
    round_norm(model, n, y + r * hidden);
  }
}

void llama_norm_backward(struct llama *model, uint32_t unit, uint32_t nth, int64_t rows, const float *x, const float *inv, float *dy,
                         float *dx, struct gradient gradient)
{
  if (model->dry)
    return;
  const float *weight = norm_weight(model, unit, nth);
  const struct kernels_rounded *kernels = kernels_rounded(model->kernels, model->policy.matmul);
  size_t hidden = (size_t)model->config.hidden;
  float *grad = gradient.dtype == ORDO_F32 || gradient.data == NULL ? gradient.data : model->work.vector;
  if (grad != NULL && gradient.beta == 0.0f)
    memset(grad, 0, hidden * sizeof *grad);
  else if (grad != NULL && gradient.dtype != ORDO_F32)
    kernels_widen(model->kernels, gradient.dtype, hidden, gradient.data, grad);
  if (kernels != NULL)
    kernels->rms_backward((size_t)rows, hidden, x, weight, inv, dy, dx, grad);
  else
    model->kernels->rms_backward((size_t)rows, hidden, x, weight, inv, dy, dx, grad);
  if (grad != NULL && gradient.dtype != ORDO_F32)
    kernels_narrow(model->kernels, gradient.dtype, hidden, grad, gradient.data);
}

void llama_residual(struct llama *model, int64_t rows, const float *x, float *delta, float *sum)
{
  if (model->dry)
    return;
  const struct kernels_rounded *kernels = kernels_rounded(model->kernels, model->policy.matmul);
  int64_t hidden = model->config.hidden, step = rows_at_once(model, rows, hidden);
  if (kernels != NULL && model->policy.elementwise == ORDO_F32) {
    kernels->add((size_t)(rows * hidden), x, delta, sum);
    return;
  }
  for (int64_t r = 0; r < rows; r += step) {
    int64_t n = smaller(step, rows - r) * hidden;
    llama_round(model, model->policy.matmul, n, delta + r * hidden);
    model->kernels->add((size_t)n, x + r * hidden, delta + r * hidden, sum + r * hidden);
    llama_round(model, model->policy.elementwise, n, sum + r * hidden);
  }
}

void llama_rotate(struct llama *model, const struct llama_pass *pass, int64_t heads, float sign, float *x)
{
  if (model->dry)
    return;
  const struct kernels_rounded *kernels = rounded(model, sign > 0.0f ? model->policy.rope : ORDO_F32);
  int64_t half = model->config.head_dim / 2, columns = heads * half * 2;
  for (int64_t row = 0; row < pass->batch * pass->seq; row++, x += columns) {
    int64_t position = pass->first + row % pass->seq;
    const float *cosine = pass->cosine + position * half, *sine = pass->sine + position * half;
    if (kernels != NULL) {
      kernels->rope((size_t)heads, (size_t)half, cosine, sine, sign, x);
      continue;
    }
    llama_round(model, model->policy.matmul, columns, x);
    model->kernels->rope((size_t)heads, (size_t)half, cosine, sine, sign, x);
    if (sign > 0.0f)
      llama_round(model, model->policy.rope, columns, x);
    llama_round(model, model->policy.matmul, columns, x);
  }
}

void llama_swiglu_forward(struct llama *model, int64_t n, float *gate, float *up, float *act)
{
  if (model->dry)
    return;
  const struct kernels_rounded *kernels = rounded(model, model->policy.elementwise);
  if (kernels != NULL) {
    kernels->swiglu_forward((size_t)n, gate, up, act);
    return;
  }
  int64_t step = rows_at_once(model, n, 1);
  for (int64_t i = 0; i < n; i += step) {
    int64_t part = smaller(step, n - i);
    llama_round(model, model->policy.matmul, part, gate + i);
    llama_round(model, model->policy.matmul, part, up + i);
    model->kernels->swiglu_forward((size_t)part, gate + i, up + i, act + i);
    llama_round(model, model->policy.elementwise, part, act + i);
    llama_round(model, model->policy.matmul, part, act + i);
  }
}

void llama_swiglu_backward(struct llama *model, int64_t n, float *gate, float *up, float *grad)
{
  if (model->dry)
    return;
  const struct kernels_rounded *kernels = rounded(model, model->policy.elementwise);
  if (kernels != NULL) {
    kernels->swiglu_backward((size_t)n, gate, up, grad);
    return;
  }
  int64_t step = rows_at_once(model, n, 1);
  for (int64_t i = 0; i < n; i += step) {
    int64_t part = smaller(step, n - i);
    llama_round(model, model->policy.matmul, part, grad + i);
    model->kernels->swiglu_backward((size_t)part, gate + i, up + i, grad + i);
    llama_round(model, model->policy.elementwise, part, grad + i); /* as in forward: it is the activation again */
    llama_round(model, model->policy.matmul, part, grad + i);
    llama_round(model, model->policy.matmul, part, gate + i);
    llama_round(model, model->policy.matmul, part, up + i);
  }
}

/* ---- embedding ---- */

static char *table_row(void *table, ordo_dtype dtype, int64_t row, int64_t hidden)
{
  return (char *)table + row * hidden * (int64_t)ordo_dtype_size(dtype);
}

/* Row of the table here that holds the id; -1 if another part has it. */
static int64_t row_of(const struct llama *model, int32_t id)
{
  int64_t row = id - model->layout.embed_first;
  return row >= 0 && row < model->layout.embed_rows ? row : -1;
}

void llama_embedding_forward(struct llama *model, int64_t rows, const int32_t *ids, float *x)
{
  if (model->dry)
    return;
  int64_t hidden = model->config.hidden;
  for (int64_t r = 0; r < rows; r++) {
    int64_t row = row_of(model, ids[r]);
    if (row < 0)
      memset(x + r * hidden, 0, (size_t)hidden * sizeof *x);
    else
      kernels_widen(model->kernels, model->dtype[0], (size_t)hidden, table_row(model->data[0], model->dtype[0], row, hidden),
                    x + r * hidden);
  }
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
  int64_t n = 0;
  for (int64_t r = 0; r < rows; r++)
    if (row_of(model, ids[r]) >= 0)
      keys[n++] = row_of(model, ids[r]) << 32 | r;
  qsort(keys, (size_t)n, sizeof *keys, compare_keys);
  for (int64_t r = 0; r < n;) {
    int64_t at = keys[r] >> 32;
    void *row = table_row(model->grad[0], dtype, at, model->config.hidden);
    kernels_widen(kernels, dtype, hidden, row, sum);
    for (; r < n && keys[r] >> 32 == at; r++)
      kernels->add(hidden, sum, dx + (size_t)(keys[r] & 0xffffffff) * hidden, sum);
    kernels_narrow(kernels, dtype, hidden, sum, row);
  }
}

void llama_embedding_backward(struct llama *model, int64_t rows, const int32_t *ids, const float *dx, float beta)
{
  size_t hidden = (size_t)model->config.hidden;
  float *grad = model->grad[0];
  if (grad == NULL || model->dry)
    return;
  if (beta == 0.0f)
    memset(grad, 0, (size_t)model->layout.embed_rows * hidden * ordo_dtype_size(model->grad_dtype[0]));
  if (model->grad_dtype[0] != ORDO_F32) {
    add_rows_low(model, rows, ids, dx);
    return;
  }
  for (int64_t r = 0; r < rows; r++) {
    int64_t at = row_of(model, ids[r]);
    if (at >= 0)
      model->kernels->add(hidden, grad + (size_t)at * hidden, dx + (size_t)r * hidden, grad + (size_t)at * hidden);
  }
}
