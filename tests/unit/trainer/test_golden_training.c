/* test_golden_training.c - step-1 gradients and 10-step trajectories of a real checkpoint against numbers from PyTorch: both
 * optimizers, ignored targets, accumulation, a schedule, no clipping. Sizes, options and tolerances come from the case files; the rules
 * are in the README of the golden directory. Skipped without it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "golden_model.h"
#include "kernels.h"

struct golden_case {
  char *dir;
  JsonParser *parser;
  JsonObject *root;
  struct test_model *model;
  float **start; /* weights before step 1 */
  int64_t steps, batch, seq, micro_batch;
  int32_t *ids;     /* [steps, batch, seq] */
  int32_t *targets; /* the same */
};

static void read_data(struct golden_case *c)
{
  JsonObject *data = json_object_get_object_member(c->root, "data");
  gsize size = 0;
  g_autofree char *ids_file = g_strdup_printf("data/%s.ids.u16.bin", json_object_get_string_member(data, "name"));
  g_autofree char *targets_file = g_strdup_printf("data/%s.targets.i32.bin", json_object_get_string_member(data, "name"));
  g_autofree char *targets_path = g_build_filename(c->dir, targets_file, NULL);
  g_autofree uint16_t *raw = golden_bytes(c->dir, ids_file, &size);
  int64_t n = c->steps * c->batch * c->seq;
  assert_true((int64_t)(size / 2) >= n + 1);
  c->ids = g_new(int32_t, (gsize)n);
  c->targets = g_new(int32_t, (gsize)n);
  for (int64_t i = 0; i < n; i++) {
    c->ids[i] = raw[i];
    c->targets[i] = raw[i + 1];
  }
  if (!g_file_test(targets_path, G_FILE_TEST_EXISTS))
    return;
  g_autofree int32_t *explicit_targets = golden_bytes(c->dir, targets_file, &size);
  assert_int_equal(size, (gsize)n * 4);
  memcpy(c->targets, explicit_targets, size);
}

static struct golden_case *open_case(char *dir, const char *name)
{
  struct golden_case *c = g_new0(struct golden_case, 1);
  g_autofree char *file = g_strdup_printf("training/%s.json", name);
  c->dir = dir;
  c->parser = golden_json(dir, file);
  c->root = golden_root(c->parser);
  c->steps = json_object_get_int_member(c->root, "steps");
  c->batch = json_object_get_int_member(c->root, "batch");
  c->seq = json_object_get_int_member(c->root, "seq_len");
  c->micro_batch = json_object_get_int_member(c->root, "micro_batch");
  c->model = golden_model_new(dir, c->micro_batch, c->seq, 1);
  c->start = g_new0(float *, c->model->n_params);
  for (uint32_t p = 0; p < c->model->n_params; p++)
    c->start[p] = g_memdup2(c->model->weight[p], (gsize)llama_param_at(c->model->llama, p)->numel * sizeof(float));
  read_data(c);
  return c;
}

static void close_case(struct golden_case *c)
{
  for (uint32_t p = 0; p < c->model->n_params; p++)
    g_free(c->start[p]);
  g_free(c->start);
  test_model_free(c->model);
  g_object_unref(c->parser);
  g_free(c->ids);
  g_free(c->targets);
  g_free(c->dir);
  g_free(c);
}

/* Sum of losses of step `step` (0-based); gradients of their mean are left in the model. */
static double run_passes(struct golden_case *c, int64_t step, int64_t *counted)
{
  double sum = 0.0;
  int64_t first = step * c->batch * c->seq;
  *counted = 0;
  for (int64_t i = 0; i < c->batch * c->seq; i++)
    *counted += c->targets[first + i] != -100;
  test_model_zero(c->model);
  for (int64_t done = 0; done < c->batch; done += c->micro_batch) {
    int64_t at = first + done * c->seq;
    struct llama_forward_args args = {.ids = c->ids + at, .targets = c->targets + at, .batch = c->micro_batch, .seq = c->seq, .keep = 1};
    assert_int_equal(llama_forward(c->model->llama, &args), LLAMA_OK);
    assert_int_equal(llama_backward(c->model->llama, 1.0 / (double)*counted), LLAMA_OK);
    sum += args.loss_sum;
  }
  return sum;
}

static void update(struct golden_case *c, int64_t step, double lr, double factor)
{
  const struct kernels *kernels = kernels_default();
  JsonObject *o = json_object_get_object_member(c->root, "optimizer");
  int adamw = strcmp(json_object_get_string_member(o, "name"), "adamw") == 0;
  for (uint32_t p = 0; p < c->model->n_params; p++) {
    const struct llama_param *param = llama_param_at(c->model->llama, p);
    if (test_model_is_alias(c->model, p))
      continue;
    if (adamw) {
      struct adamw_options options = {lr, golden_number(o, "beta1"), golden_number(o, "beta2"), golden_number(o, "eps"),
                                      param->decay ? golden_number(o, "weight_decay") : 0.0};
      adamw_step(kernels, (size_t)param->numel, c->model->weight[p], c->model->grad[p], c->model->m[p], c->model->v[p], &options, step + 1,
                 factor);
    } else {
      struct sgd_options options = {lr, golden_number(o, "momentum")};
      sgd_step(kernels, (size_t)param->numel, c->model->weight[p], c->model->grad[p], c->model->m[p], &options, step + 1, factor);
    }
  }
}

static double tolerance(struct golden_case *c, const char *name)
{
  return golden_number(json_object_get_object_member(c->root, "tolerance"), name);
}

static double norm(int64_t n, const float *x)
{
  double sum = 0.0;
  for (int64_t i = 0; i < n; i++)
    sum += (double)x[i] * (double)x[i];
  return sqrt(sum);
}

static void check_relative(const char *what, double actual, double expected, double limit)
{
  if (!(fabs(actual - expected) <= limit * fabs(expected)))
    fail_msg("%s: %.9g instead of %.9g, relative limit %g", what, actual, expected, limit);
}

static void check_norms(struct golden_case *c, const char *member, float *const *arrays, const char *limit)
{
  if (!json_object_has_member(c->root, member))
    return;
  JsonObject *expected = json_object_get_object_member(c->root, member);
  for (uint32_t p = 0; p < c->model->n_params; p++) {
    const struct llama_param *param = llama_param_at(c->model->llama, p);
    if (!test_model_is_alias(c->model, p))
      check_relative(param->name, norm(param->numel, arrays[p]), golden_number(expected, param->name), tolerance(c, limit));
  }
}

static void check_gradients(struct golden_case *c)
{
  g_autofree char *file = g_strdup_printf("training/%s", json_object_get_string_member(c->root, "grads_step1_file"));
  struct golden_tensors *golden = golden_tensors_open(c->dir, file);
  double limit = tolerance(c, "grads_step1_relL2_per_parameter");
  double worst = 0.0;
  for (uint32_t p = 0; p < c->model->n_params; p++) {
    const struct llama_param *param = llama_param_at(c->model->llama, p);
    if (test_model_is_alias(c->model, p))
      continue;
    int64_t numel = 0;
    const float *expected = golden_tensor(golden, param->name, &numel);
    double squares = 0.0;
    for (int64_t i = 0; i < numel; i++)
      squares += pow((double)c->model->grad[p][i] - (double)expected[i], 2);
    double error = sqrt(squares) / norm(numel, expected);
    if (!(error <= limit))
      fail_msg("gradient of %s is off by %g, limit %g", param->name, error, limit);
    worst = fmax(worst, error);
  }
  print_message("  gradients of step 1: worst %.3g of %.3g\n", worst, limit);
  golden_tensors_close(golden);
  check_norms(c, "grad_l2_step1", c->model->grad, "grad_l2_step1_rel");
}

static void check_weights(struct golden_case *c)
{
  check_norms(c, "weight_l2_after", c->model->weight, "weight_l2_rel");
  check_norms(c, "adam_m_l2_after", c->model->m, "adam_m_v_l2_rel");
  check_norms(c, "adam_v_l2_after", c->model->v, "adam_m_v_l2_rel");
  if (!json_object_has_member(c->root, "weights_after_file"))
    return;
  g_autofree char *file = g_strdup_printf("training/%s", json_object_get_string_member(c->root, "weights_after_file"));
  struct golden_tensors *golden = golden_tensors_open(c->dir, file);
  double squares = 0.0, update_squares = 0.0, worst = 0.0;
  for (uint32_t p = 0; p < c->model->n_params; p++) {
    if (test_model_is_alias(c->model, p))
      continue;
    int64_t numel = 0;
    const float *expected = golden_tensor(golden, llama_param_at(c->model->llama, p)->name, &numel);
    for (int64_t i = 0; i < numel; i++) {
      squares += pow((double)c->model->weight[p][i] - (double)expected[i], 2);
      update_squares += pow((double)expected[i] - (double)c->start[p][i], 2);
    }
    worst = fmax(worst, worst_difference(numel, c->model->weight[p], expected));
  }
  golden_tensors_close(golden);
  double relative = sqrt(squares / update_squares);
  print_message("  update: off by %.3g of %.3g; largest difference of a weight %.3g of %.3g\n", relative,
                tolerance(c, "update_relL2_whole_model"), worst, tolerance(c, "weights_max_abs"));
  assert_true(relative <= tolerance(c, "update_relL2_whole_model"));
  assert_true(worst <= tolerance(c, "weights_max_abs"));
}

static void run_case(const char *name)
{
  char *dir = golden_dir();
  struct golden_case *c = open_case(dir, name);
  g_autofree double *rates = golden_numbers(json_object_get_array_member(c->root, "lr"));
  g_autofree double *losses = golden_numbers(json_object_get_array_member(c->root, "loss"));
  g_autofree double *norms = golden_numbers(json_object_get_array_member(c->root, "grad_norm_before_clip"));
  g_autofree double *counts = golden_numbers(json_object_get_array_member(c->root, "n_tokens"));
  int clips = !json_object_get_null_member(c->root, "clip_grad_norm");
  double worst_loss = 0.0, worst_norm = 0.0;
  print_message("%s\n", name);
  for (int64_t step = 0; step < c->steps; step++) {
    int64_t counted = 0;
    double loss = run_passes(c, step, &counted) / (double)counted;
    double grad_norm = test_model_grad_norm(c->model);
    double factor = clips ? fmin(1.0, golden_number(c->root, "clip_grad_norm") / (grad_norm + 1e-6)) : 1.0;
    assert_int_equal(counted, (int64_t)counts[step]);
    check_relative("loss", loss, losses[step], tolerance(c, "loss_rel"));
    check_relative("gradient norm", grad_norm, norms[step], tolerance(c, "grad_norm_rel"));
    worst_loss = fmax(worst_loss, fabs(loss / losses[step] - 1.0));
    worst_norm = fmax(worst_norm, fabs(grad_norm / norms[step] - 1.0));
    if (step == 0)
      check_gradients(c);
    update(c, step, rates[step], factor);
  }
  print_message("  loss: worst %.3g, gradient norm: worst %.3g (relative)\n", worst_loss, worst_norm);
  check_weights(c);
  close_case(c);
}

#define GOLDEN_CASES(X)  \
  X(random_adamw)        \
  X(random_sgd)          \
  X(text_adamw)          \
  X(text_sgd)            \
  X(masked_adamw)        \
  X(masked_sgd)          \
  X(masked_sgd_noclip)   \
  X(masked_adamw_accum4) \
  X(masked_sgd_accum4)   \
  X(text_adamw_schedule)

#define GOLDEN_FUNCTION(NAME)           \
  static void test_##NAME(void **state) \
  {                                     \
    (void)state;                        \
    run_case(#NAME);                    \
  }
GOLDEN_CASES(GOLDEN_FUNCTION)

static void test_schedule_file(void **state)
{
  (void)state;
  g_autofree char *dir = golden_dir();
  g_autoptr(JsonParser) parser = golden_json(dir, "schedule/warmup4_cosine20.json");
  JsonObject *root = golden_root(parser);
  JsonArray *rates = json_object_get_array_member(root, "lr");
  g_autofree double *expected = golden_numbers(rates);
  struct schedule schedule = {SCHEDULE_COSINE, golden_number(root, "peak"), golden_number(root, "floor_fraction"),
                              json_object_get_int_member(root, "warmup_steps"), json_object_get_int_member(root, "total_steps")};
  for (guint t = 0; t < json_array_get_length(rates); t++)
    assert_true(fabs(schedule_rate(&schedule, (int64_t)t + 1) - expected[t]) <= 1e-12 * schedule.peak);
}

int main(void)
{
  g_autofree char *dir = golden_dir();
  if (dir == NULL)
    return 77; /* meson: skipped; the reason is printed */
#define GOLDEN_ROW(NAME) cmocka_unit_test(test_##NAME),
  const struct CMUnitTest tests[] = {GOLDEN_CASES(GOLDEN_ROW) cmocka_unit_test(test_schedule_file)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
