/* llama_adapter.c - low-rank additions to linear layers: y += scale (x A^T) B^T, and their gradients.
 *
 * The product with A is narrow (rank columns), so it is computed again in backward instead of kept, a few hundred rows at a time in the
 * adapter's own space. Adapters compute in fp32 whatever the policy; what reads y rounds the sum.
 */
#include "llama_model.h"

#include <stdlib.h>

#include "kernels_gemm.h"

static int64_t rows_of(int64_t rows, int64_t first)
{
  return rows - first < ADAPTER_ROWS ? rows - first : ADAPTER_ROWS;
}

struct llama_adapter *llama_adapter_find(const struct llama *model, uint32_t param)
{
  for (uint32_t i = 0; i < model->n_adapters; i++)
    if (model->adapters[i].param == param)
      return &model->adapters[i];
  return NULL;
}

int llama_adapter_of(const struct llama *model, uint32_t param, struct llama_adapter_info *info)
{
  const struct llama_adapter *adapter = llama_adapter_find(model, param);
  if (adapter == NULL)
    return 0;
  *info = (struct llama_adapter_info){adapter->rank, (double)adapter->scale, adapter->a, adapter->b};
  return 1;
}

static int is_block_linear(const struct llama *model, uint32_t param)
{
  if (param >= model->n_params)
    return 0;
  const struct llama_unit *unit = &model->units[model->params[param].unit];
  return model->params[param].unit > 0 && model->params[param].unit < llama_head_unit(model) && param - unit->first_param <= BLOCK_DOWN;
}

static int number_is_free(const struct llama *model, uint32_t number)
{
  for (uint32_t i = 0; i < model->n_adapters; i++)
    if (model->adapters[i].a == number || model->adapters[i].b == number)
      return 0;
  return number >= model->n_params;
}

int llama_adapt(struct llama *model, uint32_t param, int64_t rank, double scale, uint32_t a, uint32_t b)
{
  if (!is_block_linear(model, param) || llama_adapter_find(model, param) != NULL)
    return llama_fail(model, LLAMA_E_INVALID, "%s: adapters belong to linear layers of blocks, one to each",
                      param < model->n_params ? model->params[param].name : "no parameter");
  if (rank < 1 || a == b || !number_is_free(model, a) || !number_is_free(model, b))
    return llama_fail(model, LLAMA_E_INVALID, "the adapter of %s: rank %lld, parameters %u and %u", model->params[param].name,
                      (long long)rank, a, b);
  struct llama_adapter *more = realloc(model->adapters, (model->n_adapters + 1) * sizeof *more);
  if (more == NULL)
    return llama_fail(model, LLAMA_E_NOMEM, "no memory for an adapter");
  model->adapters = more;
  float *space = llama_alloc(model, ADAPTER_ROWS * rank * (int64_t)sizeof *space);
  if (space == NULL)
    return llama_fail(model, LLAMA_E_NOMEM, "no memory for the space of an adapter");
  more[model->n_adapters++] = (struct llama_adapter){.param = param,
                                                     .a = a,
                                                     .b = b,
                                                     .rank = rank,
                                                     .in = model->params[param].shape[1],
                                                     .out = model->params[param].shape[0],
                                                     .scale = (float)scale,
                                                     .space = space};
  return LLAMA_OK;
}

void llama_adapters_destroy(struct llama *model)
{
  for (uint32_t i = 0; i < model->n_adapters; i++)
    llama_free(model, model->adapters[i].space);
  free(model->adapters);
  model->adapters = NULL;
  model->n_adapters = 0;
}

int llama_adapter_bind(struct llama *model, uint32_t number, float *data, float *grad)
{
  for (uint32_t i = 0; i < model->n_adapters; i++) {
    struct llama_adapter *adapter = &model->adapters[i];
    if (adapter->a != number && adapter->b != number)
      continue;
    adapter->data[adapter->b == number] = data;
    adapter->grad[adapter->b == number] = grad;
    return 1;
  }
  return 0;
}

int llama_check_adapters(struct llama *model, const struct llama_unit *unit)
{
  for (uint32_t i = 0; i < model->n_adapters; i++) {
    const struct llama_adapter *adapter = &model->adapters[i];
    if (adapter->param < unit->first_param || adapter->param >= unit->first_param + unit->n_params)
      continue;
    if (adapter->data[0] == NULL || adapter->data[1] == NULL)
      return llama_fail(model, LLAMA_E_STATE, "unit %s runs, but the adapter of %s has no data: bind it before or in the unit's hook",
                        unit->name, model->params[adapter->param].name);
  }
  return LLAMA_OK;
}

/* space = scale * x A^T for n rows. */
static void narrow(const struct llama_adapter *adapter, int64_t n, const float *x)
{
  gemm_nt(n, adapter->rank, adapter->in, x, adapter->in, adapter->data[0], adapter->in, 0.0f, adapter->space, adapter->rank);
  for (int64_t i = 0; i < n * adapter->rank; i++)
    adapter->space[i] *= adapter->scale;
}

/* space = scale * dy B for n rows. */
static void narrow_gradient(const struct llama_adapter *adapter, int64_t n, const float *dy)
{
  gemm_nn(n, adapter->rank, adapter->out, dy, adapter->out, adapter->data[1], adapter->rank, 0.0f, adapter->space, adapter->rank);
  for (int64_t i = 0; i < n * adapter->rank; i++)
    adapter->space[i] *= adapter->scale;
}

void llama_adapter_forward(const struct llama_adapter *adapter, int64_t rows, const float *x, float *y)
{
  for (int64_t r = 0; r < rows; r += ADAPTER_ROWS) {
    const int64_t n = rows_of(rows, r);
    narrow(adapter, n, x + r * adapter->in);
    gemm_nt(n, adapter->out, adapter->rank, adapter->space, adapter->rank, adapter->data[1], adapter->rank, 1.0f, y + r * adapter->out,
            adapter->out);
  }
}

void llama_adapter_backward_input(const struct llama_adapter *adapter, int64_t rows, const float *dy, float *dx)
{
  for (int64_t r = 0; r < rows; r += ADAPTER_ROWS) {
    const int64_t n = rows_of(rows, r);
    narrow_gradient(adapter, n, dy + r * adapter->out);
    gemm_nn(n, adapter->in, adapter->rank, adapter->space, adapter->rank, adapter->data[0], adapter->in, 1.0f, dx + r * adapter->in,
            adapter->in);
  }
}

void llama_adapter_backward_weight(const struct llama_adapter *adapter, int which, int64_t rows, const float *dy, const float *x,
                                   float beta)
{
  for (int64_t r = 0; r < rows; r += ADAPTER_ROWS) {
    const int64_t n = rows_of(rows, r);
    const float *dy_rows = dy + r * adapter->out, *x_rows = x + r * adapter->in;
    if (which == 1) {
      narrow(adapter, n, x_rows);
      gemm_tn(adapter->out, adapter->rank, n, dy_rows, adapter->out, adapter->space, adapter->rank, beta, adapter->grad[1], adapter->rank);
    } else {
      narrow_gradient(adapter, n, dy_rows);
      gemm_tn(adapter->rank, adapter->in, n, adapter->space, adapter->rank, x_rows, adapter->in, beta, adapter->grad[0], adapter->in);
    }
    beta = 1.0f;
  }
}
