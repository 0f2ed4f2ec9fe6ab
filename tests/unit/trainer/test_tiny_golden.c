/* test_tiny_golden.c - small random Llamas of odd sizes against PyTorch's autograd in double (tests/golden/make_tiny_llama.py):
 * losses of single tokens, and of every gradient its norm, a random projection, and two elements. Needs nothing outside the tree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "golden_files.h"
#include "test_model.h"

/* Relative to the gradient's norm. The golden numbers of the real checkpoint allow 5e-5 for the same quantity, ten times the spread seen
 * between fp32 programs; these models are smaller, so their rounding is smaller. */
static const double gradient_limit = 5e-5;
/* A logit is a sum of 24 products after two layers; the real checkpoint (64 products, five layers) has 2e-4 for logits and losses. */
static const double loss_limit = 2e-4;

struct tiny {
  JsonParser *parser;
  JsonObject *expected;
  struct test_model *model;
  int64_t batch, seq;
  int32_t ids[200], targets[200];
};

static struct llama_config tiny_config(JsonObject *sizes, int tied)
{
  return (struct llama_config){
      .vocab = json_object_get_int_member(sizes, "vocab"),
      .hidden = json_object_get_int_member(sizes, "hidden"),
      .intermediate = json_object_get_int_member(sizes, "intermediate"),
      .layers = json_object_get_int_member(sizes, "layers"),
      .heads = json_object_get_int_member(sizes, "heads"),
      .kv_heads = json_object_get_int_member(sizes, "kv_heads"),
      .head_dim = json_object_get_int_member(sizes, "head_dim"),
      .max_positions = json_object_get_int_member(sizes, "max_positions"),
      .rms_eps = golden_number(sizes, "rms_eps"),
      .rope_theta = golden_number(sizes, "rope_theta"),
      .tied = tied,
  };
}

static int32_t next_id(uint32_t *state, int64_t vocab)
{
  (void)test_uniform(state);
  return (int32_t)((*state >> 8) % (uint32_t)vocab);
}

static void open_tiny(struct tiny *t, guint index)
{
  t->parser = golden_json(ORDO_GOLDEN_SOURCE, "tiny_llama.json");
  t->expected = json_array_get_object_element(json_object_get_array_member(golden_root(t->parser), "cases"), index);
  struct llama_config config =
      tiny_config(json_object_get_object_member(t->expected, "sizes"), json_object_get_boolean_member(t->expected, "tied"));
  t->model = test_model_new(&config);
  t->batch = json_object_get_int_member(t->expected, "batch");
  t->seq = json_object_get_int_member(t->expected, "seq");
  uint32_t state = 20240101;
  for (uint32_t p = 0; p < t->model->n_params; p++) {
    const struct llama_param *param = llama_param_at(t->model->llama, p);
    for (int64_t i = 0; !test_model_is_alias(t->model, p) && i < param->numel; i++) {
      float u = test_uniform(&state);
      t->model->weight[p][i] = param->ndim == 2 ? u * 0.4f : 1.0f + u * 0.2f;
    }
  }
  int64_t n = t->batch * t->seq;
  assert_true(n <= 200);
  for (int64_t i = 0; i < n; i++)
    t->ids[i] = next_id(&state, config.vocab);
  for (int64_t i = 0; i < n; i++)
    t->targets[i] = next_id(&state, config.vocab);
  for (int64_t i = 1; json_object_get_boolean_member(t->expected, "masked") && i < n; i += 3)
    t->targets[i] = -100;
}

static void close_tiny(struct tiny *t)
{
  test_model_free(t->model);
  g_object_unref(t->parser);
}

static void check_gradient(struct tiny *t, uint32_t p)
{
  const struct llama_param *param = llama_param_at(t->model->llama, p);
  JsonObject *expected = json_object_get_object_member(json_object_get_object_member(t->expected, "gradients"), param->name);
  const float *grad = t->model->grad[p];
  double squares = 0.0, probe = 0.0;
  double limit = gradient_limit * golden_number(expected, "l2");
  uint32_t state = 7;
  for (int64_t i = 0; i < param->numel; i++) {
    squares += (double)grad[i] * (double)grad[i];
    probe += (double)test_uniform(&state) * (double)grad[i];
  }
  if (!(fabs(sqrt(squares) - golden_number(expected, "l2")) <= limit))
    fail_msg("norm of the gradient of %s: %g instead of %g", param->name, sqrt(squares), golden_number(expected, "l2"));
  /* |sum u e| <= |u|_2 |e|_2, and |u|_2 is near sqrt(n / 3); an error in any direction shows at about its own size. */
  if (!(fabs(probe - golden_number(expected, "probe")) <= 3.0 * limit))
    fail_msg("projection of the gradient of %s: %g instead of %g", param->name, probe, golden_number(expected, "probe"));
  assert_true(fabs((double)grad[0] - golden_number(expected, "first")) <= limit);
  assert_true(fabs((double)grad[param->numel - 1] - golden_number(expected, "last")) <= limit);
}

static void run_tiny(guint index, int64_t logits_rows)
{
  struct tiny t;
  float nll[200];
  open_tiny(&t, index);
  assert_int_equal(llama_reserve(t.model->llama, t.batch, t.seq, 1, logits_rows), LLAMA_OK);
  struct llama_forward_args args = {.ids = t.ids, .targets = t.targets, .batch = t.batch, .seq = t.seq, .keep = 1, .nll = nll};
  assert_int_equal(llama_forward(t.model->llama, &args), LLAMA_OK);
  assert_int_equal(llama_backward(t.model->llama, 1.0), LLAMA_OK);
  assert_int_equal(args.count, json_object_get_int_member(t.expected, "count"));
  g_autofree double *losses = golden_numbers(json_object_get_array_member(t.expected, "nll"));
  for (int64_t i = 0; i < t.batch * t.seq; i++)
    assert_true(fabs((double)nll[i] - losses[i]) <= loss_limit);
  assert_true(fabs(args.loss_sum - golden_number(t.expected, "loss_sum")) <= 1e-5 * args.loss_sum);
  for (uint32_t p = 0; p < t.model->n_params; p++)
    if (!test_model_is_alias(t.model, p))
      check_gradient(&t, p);
  close_tiny(&t);
}

static void test_untied(void **state)
{
  (void)state;
  run_tiny(0, 0);
}

static void test_tied(void **state)
{
  (void)state;
  run_tiny(1, 0);
}

static void test_longer_than_a_block_of_rows(void **state)
{
  (void)state;
  run_tiny(2, 0);
}

/* Two key/value heads: which query head uses which shows only here. */
static void test_grouped_heads(void **state)
{
  (void)state;
  run_tiny(3, 0);
}

/* Backward computes the logits again when they do not fit. */
static void test_logits_in_pieces(void **state)
{
  (void)state;
  run_tiny(0, 5);
  run_tiny(2, 1);
  run_tiny(1, 15);
}

/* A reservation for a larger shape gives the same numbers. */
static void test_room_to_spare(void **state)
{
  struct tiny t;
  (void)state;
  open_tiny(&t, 1);
  assert_int_equal(llama_reserve(t.model->llama, t.batch + 2, t.seq + 9, 1, 0), LLAMA_OK);
  struct llama_forward_args args = {.ids = t.ids, .targets = t.targets, .batch = t.batch, .seq = t.seq, .keep = 1};
  assert_int_equal(llama_forward(t.model->llama, &args), LLAMA_OK);
  assert_int_equal(llama_backward(t.model->llama, 1.0), LLAMA_OK);
  for (uint32_t p = 0; p < t.model->n_params; p++)
    if (!test_model_is_alias(t.model, p))
      check_gradient(&t, p);
  close_tiny(&t);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_grouped_heads),
      cmocka_unit_test(test_untied),
      cmocka_unit_test(test_tied),
      cmocka_unit_test(test_longer_than_a_block_of_rows),
      cmocka_unit_test(test_logits_in_pieces),
      cmocka_unit_test(test_room_to_spare),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
