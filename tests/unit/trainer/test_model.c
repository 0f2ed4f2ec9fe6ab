/* test_model.c - see test_model.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "test_model.h"

static uint32_t storage_of(const struct test_model *model, uint32_t param)
{
  return test_model_is_alias(model, param) ? 0 : param;
}

static int grad_adds(void *ctx, uint32_t param)
{
  struct test_model *model = ctx;
  uint32_t storage = storage_of(model, param);
  int adds = model->written[storage];
  model->written[storage] = 1;
  return adds;
}

int test_model_is_alias(const struct test_model *model, uint32_t param)
{
  return param != 0 && llama_param_at(model->llama, param)->tie_group >= 0;
}

struct test_model *test_model_new(const struct llama_config *config)
{
  char reason[200] = "";
  struct test_model *model = calloc(1, sizeof *model);
  model->llama = llama_create(config, NULL, reason, sizeof reason);
  if (model->llama == NULL)
    fail_msg("%s", reason);
  uint32_t n = model->n_params = llama_n_params(model->llama);
  model->weight = calloc(n, sizeof(float *));
  model->grad = calloc(n, sizeof(float *));
  model->m = calloc(n, sizeof(float *));
  model->v = calloc(n, sizeof(float *));
  model->written = calloc(n, 1);
  for (uint32_t p = 0; p < n; p++) {
    size_t numel = (size_t)llama_param_at(model->llama, p)->numel;
    int alias = test_model_is_alias(model, p);
    model->weight[p] = alias ? model->weight[0] : calloc(numel, sizeof(float));
    model->grad[p] = alias ? model->grad[0] : calloc(numel, sizeof(float));
    model->m[p] = calloc(numel, sizeof(float));
    model->v[p] = calloc(numel, sizeof(float));
    for (size_t i = 0; i < numel; i++)
      model->grad[p][i] = NAN;
    llama_bind(model->llama, p, model->weight[p], model->grad[p]);
  }
  struct llama_hooks hooks = {.ctx = model, .grad_adds = grad_adds};
  llama_set_hooks(model->llama, &hooks);
  return model;
}

void test_model_free(struct test_model *model)
{
  for (uint32_t p = 0; p < model->n_params; p++) {
    if (!test_model_is_alias(model, p)) {
      free(model->weight[p]);
      free(model->grad[p]);
    }
    free(model->m[p]);
    free(model->v[p]);
  }
  free(model->weight);
  free(model->grad);
  free(model->m);
  free(model->v);
  free(model->written);
  llama_destroy(model->llama);
  free(model);
}

void test_model_zero(struct test_model *model)
{
  memset(model->written, 0, model->n_params);
}

double test_model_grad_norm(const struct test_model *model)
{
  double sum = 0.0;
  for (uint32_t p = 0; p < model->n_params; p++)
    for (int64_t i = 0; !test_model_is_alias(model, p) && i < llama_param_at(model->llama, p)->numel; i++)
      sum += (double)model->grad[p][i] * (double)model->grad[p][i];
  return sqrt(sum);
}

float test_uniform(uint32_t *state)
{
  *state = *state * 1664525u + 1013904223u;
  return (float)(int32_t)*state / 2147483648.0f;
}
