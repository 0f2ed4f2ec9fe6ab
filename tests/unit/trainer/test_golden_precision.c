/* test_golden_precision.c - trajectories of a real checkpoint in reduced precision against numbers from PyTorch: weights rounded to 16 bits
 * with fp32 arithmetic and masters, and bf16 autocast. Rules and tolerances are in precision/reduced_precision.json of the golden
 * directory. Skipped without it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include <ordo/precision.h>

#include "golden_model.h"
#include "kernels_low.h"

enum { STEPS = 10, BATCH = 8, SEQ = 64, TOKENS = BATCH * SEQ };

struct trajectory {
  const char *kind;  /* as the file names it */
  ordo_dtype weight; /* storage of 2-D weights */
  ordo_dtype matmul;
};

static ordo_dtype op_dtype(void *ctx, uint32_t op)
{
  return op == ORDO_OP_MATMUL ? ((const struct trajectory *)ctx)->matmul : ORDO_F32;
}

/* Storage of the low weights: per param, null where the master itself is used. */
static void bind_low(struct test_model *m, const struct trajectory *t, uint16_t **low)
{
  for (uint32_t p = 0; p < m->n_params; p++) {
    const struct llama_param *param = llama_param_at(m->llama, p);
    if (param->ndim == 1 || t->weight == ORDO_F32)
      continue;
    low[p] = test_model_is_alias(m, p) ? low[0] : g_new(uint16_t, (gsize)param->numel);
    llama_bind_as(m->llama, p, t->weight, low[p], ORDO_F32, m->grad[p]);
  }
}

static void round_weights(struct test_model *m, const struct trajectory *t, uint16_t **low)
{
  for (uint32_t p = 0; p < m->n_params; p++)
    if (low[p] != NULL && !test_model_is_alias(m, p))
      kernels_narrow(kernels_default(), t->weight, (size_t)llama_param_at(m->llama, p)->numel, m->weight[p], low[p]);
}

static void update(struct test_model *m, JsonObject *o, int64_t step, double factor)
{
  for (uint32_t p = 0; p < m->n_params; p++) {
    const struct llama_param *param = llama_param_at(m->llama, p);
    struct adamw_options options = {golden_number(o, "lr"), golden_number(o, "beta1"), golden_number(o, "beta2"), golden_number(o, "eps"),
                                    param->decay ? golden_number(o, "weight_decay") : 0.0};
    if (!test_model_is_alias(m, p))
      adamw_step(kernels_default(), (size_t)param->numel, m->weight[p], m->grad[p], m->m[p], m->v[p], &options, step, factor);
  }
}

static void run(const char *dir, JsonObject *root, const char *data, const struct trajectory *t)
{
  g_autofree char *ids_file = g_strdup_printf("data/%s.ids.u16.bin", data);
  gsize size = 0;
  g_autofree uint16_t *raw = golden_bytes(dir, ids_file, &size);
  JsonObject *expected =
      json_object_get_object_member(json_object_get_object_member(json_object_get_object_member(root, "runs"), data), t->kind);
  JsonObject *limits = json_object_get_object_member(json_object_get_object_member(root, "tolerance"), t->kind);
  g_autofree double *losses = golden_numbers(json_object_get_array_member(expected, "loss"));
  g_autofree double *norms = golden_numbers(json_object_get_array_member(expected, "grad_norm"));
  int all_norms = json_object_has_member(limits, "grad_norm_rel");
  double loss_limit = golden_number(limits, "loss_rel"), worst_loss = 0.0, worst_norm = 0.0;
  double norm_limit = golden_number(limits, all_norms ? "grad_norm_rel" : "grad_norm_rel_step1");
  struct test_model *m = golden_model_new(dir, BATCH, SEQ, 1);
  g_autofree uint16_t **low = g_new0(uint16_t *, m->n_params);
  g_autofree int32_t *ids = g_new(int32_t, TOKENS), *targets = g_new(int32_t, TOKENS);
  struct llama_hooks hooks = {.ctx = (void *)(uintptr_t)t, .op_dtype = op_dtype, .grad_adds = NULL};
  bind_low(m, t, low);
  llama_set_hooks(m->llama, &hooks);
  assert_int_equal(llama_reserve(m->llama, BATCH, SEQ, LLAMA_KEEP_ALL, 0), LLAMA_OK);
  assert_true(size / 2 > STEPS * TOKENS);
  for (int step = 0; step < STEPS; step++) {
    struct llama_forward_args args = {.ids = ids, .targets = targets, .batch = BATCH, .seq = SEQ, .keep = 1};
    for (int i = 0; i < TOKENS; i++) {
      ids[i] = raw[step * TOKENS + i];
      targets[i] = raw[step * TOKENS + i + 1];
    }
    for (uint32_t p = 0; p < m->n_params; p++)
      memset(m->grad[p], 0, (size_t)llama_param_at(m->llama, p)->numel * sizeof(float));
    round_weights(m, t, low);
    assert_int_equal(llama_forward(m->llama, &args), LLAMA_OK);
    assert_int_equal(llama_backward(m->llama, 1.0 / TOKENS), LLAMA_OK);
    double norm = test_model_grad_norm(m);
    worst_loss = fmax(worst_loss, fabs(args.loss_sum / TOKENS / losses[step] - 1.0));
    if (all_norms || step == 0)
      worst_norm = fmax(worst_norm, fabs(norm / norms[step] - 1.0));
    update(m, json_object_get_object_member(root, "optimizer"), step + 1, fmin(1.0, golden_number(root, "clip_grad_norm") / (norm + 1e-6)));
  }
  print_message("%s, %s: loss off by %.2g of %.2g, gradient norm by %.2g of %.2g\n", data, t->kind, worst_loss, loss_limit, worst_norm,
                norm_limit);
  assert_true(worst_loss <= loss_limit);
  assert_true(worst_norm <= norm_limit);
  for (uint32_t p = 0; p < m->n_params; p++)
    if (!test_model_is_alias(m, p))
      g_free(low[p]);
  test_model_free(m);
}

static void test_trajectories(void **state)
{
  static const struct trajectory all[] = {{"bf16_weights_fp32_math", ORDO_BF16, ORDO_F32},
                                          {"fp16_weights_fp32_math", ORDO_F16, ORDO_F32},
                                          {"bf16_autocast", ORDO_F32, ORDO_BF16}};
  g_autoptr(JsonParser) parser = golden_json(*state, "precision/reduced_precision.json");
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    run(*state, golden_root(parser), "random", &all[i]);
    run(*state, golden_root(parser), "text", &all[i]);
  }
}

int main(void)
{
  g_autofree char *dir = golden_dir();
  if (dir == NULL)
    return 77; /* meson: skipped; the reason is printed */
  const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(test_trajectories, dir)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
