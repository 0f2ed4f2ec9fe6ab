/* test_embed_precision.c - the trainer as an embedder of a precision plugin, on one rank: bytes of weights and gradients at every level,
 * training without masters, what is gathered and saved from 16-bit storage, and evaluation. The arithmetic is in test_llama_low.c. */
#include "io_support.h"

#include "embed.h"
#include "safetensors.h"
#include "save.h"

#include <ordo/half.h>

#include <math.h>
#include <string.h>

enum { SEQ = 16, BATCH = 4, STEPS = 12 };

static const struct llama_config config = {.vocab = 259,
                                           .hidden = 32,
                                           .intermediate = 48,
                                           .layers = 2,
                                           .heads = 4,
                                           .kv_heads = 2,
                                           .head_dim = 8,
                                           .max_positions = 64,
                                           .rms_eps = 1e-5,
                                           .rope_theta = 10000.0,
                                           .tied = 1};

typedef struct fixture {
  char *scratch;
  ordo_data data;
  ordo_context *context;
  ordo_plan *plan;
  ordo_weights *weights;
  ordo_embed *embed;
} fixture;

static void open_embed(fixture *f, const char *precision, int train)
{
  const ordo_context_options options = {
      .struct_size = sizeof options, .plugin_path = PRECISION_PLUGIN, .flags = ORDO_CONTEXT_NO_ENVIRONMENT | ORDO_CONTEXT_NO_DEFAULT_PATH};
  const ordo_plan_request request = {
      .struct_size = sizeof request, .ranks = 1, .precision = precision, .flags = train ? 0 : ORDO_PLAN_EVAL};
  assert_int_equal(ordo_context_create(&options, &f->context), ORDO_OK);
  assert_int_equal(ordo_plan_create(f->context, &request, &f->plan), ORDO_OK);
  f->weights = ordo_weights_fresh(&config, 1, 0.02);
  ordo_embed_options o = {
      .context = f->context, .plan = f->plan, .weights = f->weights, .train = train, .batch = BATCH, .seq_len = SEQ, .max_grad_norm = 1.0};
  o.micro_batch = 2;
  o.optimizer = (ordo_leaf_optimizer_options){0, 1e-2, 0.9, 0.95, 1e-8, 0.1, 0.9};
  o.schedule = (struct schedule){SCHEDULE_CONSTANT, 1e-2, 1.0, 0, 100};
  if (ordo_embed_create(&o, &f->embed) != ORDO_OK)
    fail_msg("%s: %s", precision ? precision : "none", ordo_last_error(f->context)->why);
}

static void close_embed(fixture *f)
{
  ordo_embed_destroy(f->embed);
  ordo_plan_destroy(f->plan);
  ordo_weights_free(f->weights);
  ordo_context_destroy(f->context);
}

static int setup(void **state)
{
  fixture *f = g_new0(fixture, 1);
  void *scratch = NULL;
  scratch_setup(&scratch);
  f->scratch = scratch;
  scratch_letters(f->scratch, 4000, SEQ, &f->data);
  *state = f;
  return 0;
}

static int teardown(void **state)
{
  fixture *f = *state;
  void *scratch = f->scratch;
  ordo_data_clear(&f->data);
  scratch_teardown(&scratch);
  g_free(f);
  return 0;
}

static int64_t bytes_now(fixture *f, uint32_t tag)
{
  int64_t now = 0, peak = 0;
  ordo_session_memory(ordo_embed_session(f->embed), tag, &now, &peak);
  return now;
}

/* Loss of the last of some steps; 0 of the first in *first. */
static double train(fixture *f, double *first)
{
  ordo_step_outcome outcome = {0};
  for (int64_t i = 0; i < STEPS; i++) {
    if (ordo_embed_step(f->embed, &f->data, i * BATCH, 0, NULL, NULL, &outcome) != ORDO_OK)
      fail_msg("%s", ordo_last_error(f->context)->why);
    if (i == 0)
      *first = outcome.loss;
  }
  return outcome.loss;
}

/* Elements of norms, and all. */
static void count(const ordo_model *model, int64_t *norms, int64_t *all)
{
  *norms = *all = 0;
  for (uint32_t p = 0; p < model->n_params; p++) {
    int64_t n = ordo_save_has_param(model, model->params[p]) ? model->params[p]->numel : 0;
    *all += n;
    *norms += model->params[p]->ndim == 1 ? n : 0;
  }
}

/* Weights and gradients of the model take 2 bytes an element where they are 16-bit, 4 where they are not; each leaf is rounded up to 64. */
static void memory_halves_and_training_goes_down(void **state)
{
  static const struct {
    const char *precision;
    int norms, others; /* bytes of an element */
  } levels[] = {{NULL, 4, 4},
                {"apex_amp:O1", 4, 4},
                {"apex_amp:O4", 4, 4},
                {"apex_amp:O2", 4, 2},
                {"apex_amp:O5", 4, 2},
                {"apex_amp:O3", 2, 2},
                {"apex_amp:O3:cast_model_type=bf16", 2, 2}};
  fixture *f = *state;
  for (size_t i = 0; i < G_N_ELEMENTS(levels); i++) {
    double first = 0.0, last;
    int64_t norms, all;
    open_embed(f, levels[i].precision, 1);
    count(ordo_embed_model(f->embed), &norms, &all);
    int64_t expected = norms * levels[i].norms + (all - norms) * levels[i].others,
            slack = 64 * (int64_t)ordo_embed_model(f->embed)->n_leaves;
    last = train(f, &first);
    int64_t weights = bytes_now(f, ORDO_MEM_WEIGHTS), gradients = bytes_now(f, ORDO_MEM_GRADIENTS);
    print_message("%s: loss %.4f to %.4f, weights %d, gradients %d, expected %d\n", levels[i].precision ? levels[i].precision : "none",
                  first, last, (int)weights, (int)gradients, (int)expected);
    assert_true(weights >= expected && weights <= expected + slack);
    assert_true(gradients >= expected && gradients <= expected + slack);
    assert_true(last < first - 1.0); /* 23 letters are soon told from 259 bytes */
    close_embed(f);
  }
}

/* Without masters the leaf is what is gathered and saved: 16-bit values, exactly; with masters it is the master. */
static void saved_weights_are_what_storage_holds(void **state)
{
  static const char *const precisions[] = {"apex_amp:O3:cast_model_type=bf16", "apex_amp:O5"};
  fixture *f = *state;
  for (int masters = 0; masters < 2; masters++) {
    double first;
    int64_t rounded = 0;
    g_autofree char *name = g_strdup_printf("w%d.safetensors", masters), *path = g_build_filename(f->scratch, name, NULL);
    g_autoptr(ordo_safetensors) file = NULL;
    g_auto(ordo_problems) problems;
    ordo_problems_init(&problems);
    open_embed(f, precisions[masters], 1);
    train(f, &first);
    const ordo_param *param = ordo_embed_model(f->embed)->params[0];
    g_autofree float *saved = g_new(float, (gsize)param->numel), *full = g_new(float, (gsize)param->numel);
    const uint16_t *storage = param->data;
    assert_int_equal(ordo_save_tensors(f->embed, path, ORDO_GATHER_WEIGHT, ORDO_F32, NULL), ORDO_OK);
    assert_int_equal(ordo_safetensors_open(path, &problems, &file), ORDO_OK);
    assert_int_equal(ordo_safetensors_read(file, ordo_safetensors_find(file, param->name), 0, param->numel, saved, &problems), ORDO_OK);
    assert_int_equal(ordo_embed_gather(f->embed, param, ORDO_GATHER_WEIGHT, full), ORDO_OK);
    assert_memory_equal(saved, full, (size_t)param->numel * sizeof *full);
    for (int64_t i = 0; i < param->numel; i++) {
      assert_int_equal(storage[i], ordo_bf16_from_f32(saved[i]));
      rounded += ordo_f32_from_bf16(storage[i]) == saved[i];
    }
    assert_true(masters ? rounded < param->numel / 2 : rounded == param->numel);
    close_embed(f);
  }
}

static ordo_status dump(void *path, ordo_embed *embed)
{
  return ordo_save_tensors(embed, path, ORDO_GATHER_GRADIENT, ORDO_F32, NULL);
}

static double dumped_norm(fixture *f, const char *precision, const char *name)
{
  ordo_step_outcome outcome = {0};
  g_autofree char *path = g_build_filename(f->scratch, name, NULL);
  g_autoptr(ordo_safetensors) file = NULL;
  g_auto(ordo_problems) problems;
  double sum = 0.0;
  ordo_problems_init(&problems);
  open_embed(f, precision, 1);
  assert_int_equal(ordo_embed_step(f->embed, &f->data, 0, 0, dump, path, &outcome), ORDO_OK);
  assert_int_equal(ordo_safetensors_open(path, &problems, &file), ORDO_OK);
  const ordo_param *param = ordo_embed_model(f->embed)->params[0];
  g_autofree float *grad = g_new(float, (gsize)param->numel);
  assert_int_equal(ordo_safetensors_read(file, ordo_safetensors_find(file, param->name), 0, param->numel, grad, &problems), ORDO_OK);
  for (int64_t i = 0; i < param->numel; i++)
    sum += (double)grad[i] * (double)grad[i];
  close_embed(f);
  return sqrt(sum);
}

/* Gradients in a file are those of the loss, whatever it was multiplied by; roundings of fp16 products are far below a hundredth. */
static void dumped_gradients_have_no_loss_scale(void **state)
{
  static const char *const precisions[] = {"apex_amp:O1:loss_scale=1024", "apex_amp:O2:loss_scale=1024", "apex_amp:O2:loss_scale=16",
                                           "apex_amp:O5"};
  fixture *f = *state;
  const double right = dumped_norm(f, NULL, "g0.safetensors");
  assert_true(right > 0.0);
  for (size_t i = 0; i < G_N_ELEMENTS(precisions); i++) {
    g_autofree char *name = g_strdup_printf("g%d.safetensors", (int)i + 1);
    const double norm = dumped_norm(f, precisions[i], name);
    if (!(fabs(norm - right) <= 0.01 * right))
      fail_msg("%s: norm of the dumped gradient %g, in fp32 %g", precisions[i], norm, right);
  }
}

/* Evaluation converts and has no optimizer. Rounded weights move the loss by less than 40 roundings of the largest logit would. */
static void evaluation_in_16_bits(void **state)
{
  static const char *const precisions[] = {NULL, "apex_amp:O5", "apex_amp:O2", "apex_amp:O3", "apex_amp:O4"};
  fixture *f = *state;
  double loss[5];
  for (int i = 0; i < 5; i++) {
    ordo_loss_sum sum;
    open_embed(f, precisions[i], 0);
    assert_int_equal(ordo_embed_evaluate(f->embed, &f->data, 20, NULL, &sum), ORDO_OK);
    loss[i] = sum.sum / sum.count;
    assert_true(i == 0 || loss[i] != loss[0]);
    assert_true(fabs(loss[i] - loss[0]) <= 40.0 * 0x1p-8);
    close_embed(f);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(memory_halves_and_training_goes_down),
                                     cmocka_unit_test(saved_weights_are_what_storage_holds), cmocka_unit_test(evaluation_in_16_bits),
                                     cmocka_unit_test(dumped_gradients_have_no_loss_scale)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
