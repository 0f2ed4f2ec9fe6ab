/* llama.c - making a model, binding its storage, hooks and error text. The passes are in llama_forward.c, llama_backward.c and
 * llama_decode.c. */
#include "llama_model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels_memory.h"

int llama_fail(struct llama *model, int status, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(model->error, sizeof model->error, format, args);
  va_end(args);
  return status;
}

struct llama *llama_create(const struct llama_config *config, const struct llama_memory *memory, char *reason, size_t size)
{
  if (llama_config_check(config, reason, size) != NULL)
    return NULL;
  struct llama *model = calloc(1, sizeof *model);
  if (model != NULL) {
    model->config = *config;
    model->memory = memory != NULL ? *memory : (struct llama_memory){.alloc = kernels_alloc, .free = kernels_free};
    model->kernels = kernels_default();
    model->layout = llama_whole(&model->config);
  }
  if (model == NULL || llama_table_create(model) != LLAMA_OK || llama_locals_create(model) != LLAMA_OK) {
    snprintf(reason, size, "no memory for the parameter table");
    llama_destroy(model);
    return NULL;
  }
  return model;
}

void llama_destroy(struct llama *model)
{
  if (model == NULL)
    return;
  llama_room_release(model);
  llama_work_release(model);
  llama_adapters_destroy(model);
  bf16_gemm_destroy(model->gemm);
  llama_locals_destroy(model);
  llama_table_destroy(model);
  free(model);
}

const struct llama_config *llama_get_config(const struct llama *model)
{
  return &model->config;
}

const char *llama_error(const struct llama *model)
{
  return model->error;
}

uint32_t llama_n_units(const struct llama *model)
{
  return model->n_units;
}

uint32_t llama_n_params(const struct llama *model)
{
  return model->n_params;
}

const struct llama_unit *llama_unit_at(const struct llama *model, uint32_t unit)
{
  return &model->units[unit];
}

const struct llama_param *llama_param_at(const struct llama *model, uint32_t param)
{
  return &model->params[param];
}

void llama_bind(struct llama *model, uint32_t param, float *data, float *grad)
{
  llama_bind_as(model, param, ORDO_F32, data, ORDO_F32, grad);
}

void llama_bind_as(struct llama *model, uint32_t param, ordo_dtype dtype, void *data, ordo_dtype grad_dtype, void *grad)
{
  if (param >= model->n_params) { /* an adapter's */
    (void)llama_adapter_bind(model, param, dtype == ORDO_F32 ? data : NULL, grad_dtype == ORDO_F32 ? grad : NULL);
    return;
  }
  model->dtype[param] = dtype;
  model->data[param] = data;
  model->grad_dtype[param] = grad_dtype;
  model->grad[param] = grad;
}

void llama_set_kernels(struct llama *model, const struct kernels *kernels)
{
  model->kernels = kernels;
}

int64_t llama_work_bytes(const struct llama *model)
{
  return model->work.bytes;
}

void llama_set_dry(struct llama *model)
{
  model->dry = 1;
}

void llama_set_hooks(struct llama *model, const struct llama_hooks *hooks)
{
  model->hooks = hooks != NULL ? *hooks : (struct llama_hooks){0};
}
