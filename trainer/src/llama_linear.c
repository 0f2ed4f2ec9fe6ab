/* llama_linear.c - the three products of a linear layer, whatever its weight and gradient are stored in.
 *
 * fp32 without a policy goes straight to OpenBLAS. Otherwise rows of the weight are widened (or rounded, for a policy on fp32 weights)
 * into work space and multiplied there, since a processor without matrix units for bf16 is fastest in fp32; a gradient in 16 bits is
 * summed in the same space and rounded once. Products of values with 8 or 11 significant bits are exact in fp32, so this is what a
 * 16-bit product that accumulates in fp32 computes. With such units products of bf16 go to bf16_gemm.h.
 */
#include "llama_model.h"

#include "kernels_gemm.h"

static uint32_t param_of(const struct llama *model, struct linear linear)
{
  return model->units[linear.unit].first_param + linear.nth;
}

/* 1: the product can read the weight where it is. */
static int is_direct(const struct llama *model, uint32_t param)
{
  return model->dtype[param] == ORDO_F32 && model->policy.matmul == ORDO_F32;
}

static const void *element(const void *data, ordo_dtype dtype, int64_t index)
{
  return (const char *)data + index * (int64_t)ordo_dtype_size(dtype);
}

/* Rows that fit the work space. */
static int64_t rows_at_once(const struct llama *model, struct linear linear)
{
  int64_t rows = model->work.matrix_numel / linear.in;
  return rows < linear.out ? rows : linear.out;
}

static int64_t rows_left(struct linear linear, int64_t first, int64_t step)
{
  return linear.out - first < step ? linear.out - first : step;
}

/* Rows [first, first + n) of the weight as an operand in work space. */
static const float *weight_rows(const struct llama *model, struct linear linear, int64_t first, int64_t n)
{
  uint32_t param = param_of(model, linear);
  ordo_dtype dtype = model->dtype[param];
  size_t numel = (size_t)(n * linear.in);
  kernels_widen(model->kernels, dtype, numel, element(model->data[param], dtype, first * linear.in), model->work.matrix);
  if (dtype != model->policy.matmul)
    kernels_round(model->kernels, model->policy.matmul, numel, model->work.matrix);
  return model->work.matrix;
}

/* The same in bf16: where it is, or narrowed. */
static const uint16_t *weight_rows_low(const struct llama *model, struct linear linear, int64_t first, int64_t n)
{
  uint32_t param = param_of(model, linear);
  const void *rows = element(model->data[param], model->dtype[param], first * linear.in);
  uint16_t *narrow = (uint16_t *)(void *)model->work.matrix;
  if (model->dtype[param] == ORDO_BF16)
    return rows;
  if (model->dtype[param] == ORDO_F32) {
    model->kernels->bf16_from_f32((size_t)(n * linear.in), rows, narrow);
    return narrow;
  }
  return NULL; /* fp16 weights under a bf16 policy: nothing that is worth a path of its own */
}

static void forward_rows(struct llama *model, struct linear linear, int64_t first, int64_t n, int64_t rows, struct operand x, float *y)
{
  const uint16_t *low = x.low == NULL ? NULL : weight_rows_low(model, linear, first, n);
  if (low != NULL && bf16_gemm_nt(model->gemm, rows, n, linear.in, x.low, linear.in, low, linear.in, 0, y + first, linear.out) == 0)
    return;
  const float *w = weight_rows(model, linear, first, n);
  gemm_nt(rows, n, linear.in, x.x, linear.in, w, linear.in, 0.0f, y + first, linear.out);
}

void llama_linear_forward(struct llama *model, struct linear linear, int64_t rows, struct operand x, float *y)
{
  if (model->dry)
    return;
  uint32_t param = param_of(model, linear);
  if (is_direct(model, param)) {
    linear_forward(rows, linear.in, linear.out, x.x, model->data[param], y);
  } else {
    int64_t step = rows_at_once(model, linear);
    for (int64_t first = 0; first < linear.out; first += step)
      forward_rows(model, linear, first, rows_left(linear, first, step), rows, x, y);
  }
  const struct llama_adapter *adapter = llama_adapter_find(model, param);
  if (adapter != NULL)
    llama_adapter_forward(adapter, rows, x.x, y);
}

static void input_rows(struct llama *model, struct linear linear, int64_t first, int64_t n, int64_t rows, struct operand dy, float beta,
                       float *dx)
{
  const uint16_t *low = dy.low == NULL ? NULL : weight_rows_low(model, linear, first, n);
  if (low != NULL &&
      bf16_gemm_nn(model->gemm, rows, linear.in, n, dy.low + first, linear.out, low, linear.in, beta != 0.0f, dx, linear.in) == 0)
    return;
  const float *w = weight_rows(model, linear, first, n);
  gemm_nn(rows, linear.in, n, dy.x + first, linear.out, w, linear.in, beta, dx, linear.in);
}

void llama_linear_backward_input(struct llama *model, struct linear linear, int64_t rows, struct operand dy, float beta, float *dx)
{
  if (model->dry)
    return;
  uint32_t param = param_of(model, linear);
  if (is_direct(model, param)) {
    linear_backward_input(rows, linear.in, linear.out, dy.x, model->data[param], beta, dx);
  } else {
    int64_t step = rows_at_once(model, linear);
    for (int64_t first = 0; first < linear.out; first += step)
      input_rows(model, linear, first, rows_left(linear, first, step), rows, dy, first == 0 ? beta : 1.0f, dx);
  }
  const struct llama_adapter *adapter = llama_adapter_find(model, param);
  if (adapter != NULL)
    llama_adapter_backward_input(adapter, rows, dy.x, dx);
}

/* n rows of dW, from row `first` on, into fp32 memory. */
static void weight_gradient_rows(struct llama *model, struct linear linear, int64_t first, int64_t n, int64_t rows, struct operand dy,
                                 struct operand x, float beta, float *dw)
{
  if (dy.low != NULL && x.low != NULL &&
      bf16_gemm_tn(model->gemm, n, linear.in, rows, dy.low + first, linear.out, x.low, linear.in, beta != 0.0f, dw, linear.in) == 0)
    return;
  gemm_tn(n, linear.in, rows, dy.x + first, linear.out, x.x, linear.in, beta, dw, linear.in);
}

void llama_linear_backward_weight(struct llama *model, struct linear linear, int64_t rows, struct operand dy, struct operand x,
                                  struct gradient gradient)
{
  ordo_dtype dtype = gradient.dtype;
  if (gradient.data == NULL || model->dry)
    return;
  if (dtype == ORDO_F32) {
    weight_gradient_rows(model, linear, 0, linear.out, rows, dy, x, gradient.beta, gradient.data);
    return;
  }
  int64_t step = rows_at_once(model, linear);
  for (int64_t first = 0; first < linear.out; first += step) {
    int64_t n = rows_left(linear, first, step);
    void *grad = (char *)gradient.data + first * linear.in * (int64_t)ordo_dtype_size(dtype);
    if (gradient.beta != 0.0f)
      kernels_widen(model->kernels, dtype, (size_t)(n * linear.in), grad, model->work.matrix);
    weight_gradient_rows(model, linear, first, n, rows, dy, x, gradient.beta, model->work.matrix);
    kernels_narrow(model->kernels, dtype, (size_t)(n * linear.in), model->work.matrix, grad);
  }
}

void llama_gradient_take(struct llama *model, uint32_t param, float beta, int64_t n, const float *x)
{
  if (model->dry)
    return;
  const struct kernels *kernels = model->kernels;
  ordo_dtype dtype = model->grad_dtype[param];
  if (dtype == ORDO_F32 && beta != 0.0f) {
    kernels->add((size_t)n, model->grad[param], x, model->grad[param]);
    return;
  }
  if (beta == 0.0f) {
    kernels_narrow(kernels, dtype, (size_t)n, x, model->grad[param]);
    return;
  }
  for (int64_t first = 0; first < n; first += model->work.matrix_numel) {
    size_t part = (size_t)(n - first < model->work.matrix_numel ? n - first : model->work.matrix_numel);
    char *grad = (char *)model->grad[param] + first * (int64_t)ordo_dtype_size(dtype);
    kernels_widen(kernels, dtype, part, grad, model->work.matrix);
    kernels->add(part, model->work.matrix, x + first, model->work.matrix);
    kernels_narrow(kernels, dtype, part, model->work.matrix, grad);
  }
}
