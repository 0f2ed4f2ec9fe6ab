/* test_embed.c - the trainer as an embedder, on one rank: memory against its formula, rebinding the optimizer, sampling, what is saved. */
#include "io_support.h"

#include "embed.h"
#include "model_tokenizer.h"
#include "safetensors.h"
#include "sample.h"
#include "save.h"

#include <math.h>
#include <string.h>

enum { SEQ = 16, BATCH = 4 };

static const struct llama_config config = {.vocab = 259,
                                           .hidden = 32,
                                           .intermediate = 48,
                                           .layers = 3,
                                           .heads = 4,
                                           .kv_heads = 2,
                                           .head_dim = 8,
                                           .max_positions = 64,
                                           .rms_eps = 1e-5,
                                           .rope_theta = 10000.0,
                                           .tied = 1};

typedef struct fixture {
  char *scratch;
  ordo_context *context;
  ordo_plan *plan;
  ordo_weights *weights;
  ordo_embed *embed;
  ordo_data data;
} fixture;

static ordo_embed *new_embed(fixture *f, int checkpointing)
{
  ordo_embed *embed = NULL;
  ordo_embed_options o = {
      .context = f->context, .plan = f->plan, .weights = f->weights, .train = 1, .batch = BATCH, .seq_len = SEQ, .max_grad_norm = 1.0};
  o.optimizer = (ordo_leaf_optimizer_options){0, 1e-2, 0.9, 0.95, 1e-8, 0.1, 0.9};
  o.schedule = (struct schedule){SCHEDULE_CONSTANT, 1e-2, 1.0, 0, 100};
  o.checkpointing = checkpointing;
  assert_int_equal(ordo_embed_create(&o, &embed), ORDO_OK);
  return embed;
}

static int setup(void **state)
{
  fixture *f = g_new0(fixture, 1);
  const ordo_context_options options = {.struct_size = sizeof options, .flags = ORDO_CONTEXT_NO_ENVIRONMENT | ORDO_CONTEXT_NO_DEFAULT_PATH};
  const ordo_plan_request request = {.struct_size = sizeof request, .ranks = 1};
  void *scratch = NULL;
  scratch_setup(&scratch);
  f->scratch = scratch;
  scratch_letters(f->scratch, 2000, SEQ, &f->data);
  assert_int_equal(ordo_context_create(&options, &f->context), ORDO_OK);
  assert_int_equal(ordo_plan_create(f->context, &request, &f->plan), ORDO_OK);
  f->weights = ordo_weights_fresh(&config, 1, 0.02);
  f->embed = new_embed(f, 0);
  *state = f;
  return 0;
}

static int teardown(void **state)
{
  fixture *f = *state;
  void *scratch = f->scratch;
  ordo_embed_destroy(f->embed);
  ordo_plan_destroy(f->plan);
  ordo_context_destroy(f->context);
  ordo_weights_free(f->weights);
  ordo_data_clear(&f->data);
  scratch_teardown(&scratch);
  g_free(f);
  return 0;
}

static double step(fixture *f, int64_t number)
{
  ordo_step_outcome outcome;
  assert_int_equal(ordo_embed_step(f->embed, &f->data, number * BATCH, 0, NULL, NULL, &outcome), ORDO_OK);
  return outcome.loss;
}

/* Peak of everything the session counted = weights + gradients + two moments + the activation formula of the model, within 5 %. */
static void memory_meets_its_formula(void **state)
{
  fixture *f = *state;
  const ordo_model *model = ordo_embed_model(f->embed);
  int64_t parameters = 0, peak = 0,
          activations = llama_activation_bytes(&config, BATCH, SEQ, 1, llama_default_logits_rows(&config, BATCH, SEQ));
  for (int i = 0; i < 3; i++)
    step(f, i);
  for (uint32_t p = 0; p < model->n_params; p++)
    parameters += ordo_save_has_param(model, model->params[p]) ? model->params[p]->numel : 0;
  for (uint32_t tag = 0; tag < ORDO_N_MEM_TAGS; tag++) {
    int64_t now = 0, most = 0;
    ordo_session_memory(ordo_embed_session(f->embed), tag, &now, &most);
    peak += most;
  }
  double formula = (double)(4 * 4 * parameters + activations);
  assert_true(fabs((double)peak - formula) < 0.05 * formula);
}

static int64_t activation_peak(ordo_embed *embed)
{
  int64_t now = 0, peak = 0;
  ordo_session_memory(ordo_embed_session(embed), ORDO_MEM_ACTIVATIONS, &now, &peak);
  return peak;
}

static void checkpointing_gives_the_same_bits_with_less_memory(void **state)
{
  fixture *f = *state;
  ordo_embed *plain = f->embed, *again = new_embed(f, 1);
  int64_t rows = llama_default_logits_rows(&config, BATCH, SEQ);
  assert_int_equal(activation_peak(plain), llama_activation_bytes(&config, BATCH, SEQ, LLAMA_KEEP_ALL, rows));
  assert_int_equal(activation_peak(again), llama_activation_bytes(&config, BATCH, SEQ, LLAMA_KEEP_INPUTS, rows));
  assert_true(activation_peak(again) < activation_peak(plain));
  for (int i = 0; i < 4; i++) {
    double expected = step(f, i), loss;
    f->embed = again;
    loss = step(f, i);
    f->embed = plain;
    assert_memory_equal(&loss, &expected, sizeof loss); /* step i sees the weights that i updates left */
  }
  ordo_embed_destroy(again);
}

static void training_lowers_the_loss(void **state)
{
  fixture *f = *state;
  ordo_loss_sum before, after;
  assert_int_equal(ordo_embed_evaluate(f->embed, &f->data, 20, NULL, &before), ORDO_OK);
  assert_true(fabs(before.sum / before.count - log(259.0)) < 0.5); /* fresh weights know nothing */
  for (int i = 0; i < 30; i++)
    step(f, i);
  assert_int_equal(ordo_embed_evaluate(f->embed, &f->data, 20, NULL, &after), ORDO_OK);
  assert_true(after.sum / after.count < before.sum / before.count - 1.0);
  assert_true(before.count == 20.0 * SEQ && after.count == before.count);
}

/* Rebinding to two leaves that split an old one moves groups and moments; a leaf unknown to the optimizer changes nothing. */
static void rebinding_moves_state(void **state)
{
  fixture *f = *state;
  ordo_optimizer *optimizer = ordo_session_optimizer(ordo_embed_session(f->embed), 0);
  step(f, 0);
  ordo_leaf *old = optimizer->groups[0].leaves[1];
  const ordo_param *param = old->params[0];
  int64_t columns = param->shape[1], first_rows = param->shape[0] / 3;
  g_autofree float *moments = g_memdup2(optimizer->slot(optimizer->ctx, old, 1), (gsize)old->numel * sizeof(float));
  ordo_chunk chunks[2];
  ordo_placement placements[2];
  ordo_leaf halves[2];
  for (int i = 0; i < 2; i++) {
    int64_t rows = i ? param->shape[0] - first_rows : first_rows;
    chunks[i] = (ordo_chunk){.struct_size = sizeof(ordo_chunk),
                             .param = param,
                             .kind = ORDO_CHUNK_RECT,
                             .ndim = 2,
                             .offset = {i ? first_rows : 0, 0},
                             .extent = {rows, columns}};
    placements[i] = (ordo_placement){.struct_size = sizeof(ordo_placement), .n_chunks = 1, .chunks = &chunks[i]};
    halves[i] = *old;
    halves[i].numel = rows * columns;
    halves[i].placement = &placements[i];
  }
  ordo_leaf stranger = *old;
  const ordo_leaf_map wrong[] = {{sizeof(ordo_leaf_map), old, &halves[0]}, {sizeof(ordo_leaf_map), &stranger, &halves[1]}};
  const ordo_leaf_map right[] = {{sizeof(ordo_leaf_map), old, &halves[0]}, {sizeof(ordo_leaf_map), old, &halves[1]}};
  uint64_t n = optimizer->groups[0].n_leaves;
  assert_int_equal(optimizer->rebind(optimizer->ctx, wrong, 2), ORDO_E_INVALID);
  assert_int_equal(optimizer->groups[0].n_leaves, n);
  assert_ptr_equal(optimizer->groups[0].leaves[1], old);
  assert_int_equal(optimizer->rebind(optimizer->ctx, right, 2), ORDO_OK);
  assert_int_equal(optimizer->groups[0].n_leaves, n + 1);
  assert_null(optimizer->slot(optimizer->ctx, old, 1));
  assert_memory_equal(optimizer->slot(optimizer->ctx, &halves[0], 1), moments, (size_t)(first_rows * columns) * sizeof(float));
  assert_memory_equal(optimizer->slot(optimizer->ctx, &halves[1], 1), moments + first_rows * columns,
                      (size_t)halves[1].numel * sizeof(float));
  const ordo_leaf_map back[] = {{sizeof(ordo_leaf_map), &halves[0], old}, {sizeof(ordo_leaf_map), &halves[1], old}};
  assert_int_equal(optimizer->rebind(optimizer->ctx, back, 2), ORDO_OK);
  assert_memory_equal(optimizer->slot(optimizer->ctx, old, 1), moments, (size_t)old->numel * sizeof(float));
}

static void a_saved_model_is_the_model(void **state)
{
  fixture *f = *state;
  g_autoptr(ordo_weights) back = NULL;
  g_auto(ordo_problems) problems;
  const ordo_model *model = ordo_embed_model(f->embed);
  ordo_problems_init(&problems);
  step(f, 0);
  g_autofree char *directory = g_build_filename(f->scratch, "model", NULL);
  for (int twice = 0; twice < 2; twice++) /* the second one replaces the first */
    assert_int_equal(ordo_save_model(f->embed, directory, ORDO_F32, "bytes"), ORDO_OK);
  assert_int_equal(ordo_weights_open(directory, &problems, &back), ORDO_OK);
  assert_memory_equal(&back->config, &config, sizeof config);
  assert_int_equal(back->check(back, ordo_embed_llama(f->embed), &problems), ORDO_OK);
  g_autofree char *tokenizer = ordo_model_tokenizer_find(directory, 0); /* 0: not by its size */
  assert_string_equal(tokenizer, "bytes");
  for (uint32_t p = 0; p < model->n_params; p++) {
    const ordo_param *param = model->params[p];
    g_autofree float *values = g_new(float, (gsize)param->numel);
    if (!ordo_save_has_param(model, param))
      continue;
    assert_int_equal(back->read(back, param->name, 0, param->numel, values, &problems), ORDO_OK);
    assert_memory_equal(values, param->data, (size_t)param->numel * sizeof(float));
  }
}

static void a_directory_that_cannot_be_written_is_an_error(void **state)
{
  fixture *f = *state;
  g_autofree char *directory = g_build_filename(f->scratch, "t.txt", "model", NULL);
  assert_int_equal(ordo_save_model(f->embed, directory, ORDO_F32, "bytes"), ORDO_E_IO);
  assert_string_equal(ordo_last_error(f->context)->code, "E-FILE-IO");
}

static void sampling_keeps_its_limits(void **state)
{
  static const float logits[] = {0.0f, 2.0f, 2.0f, 1.0f, -50.0f};
  ordo_sampling greedy = {0.0, 0, 1.0, 1, 1}, hot = {1.0, 0, 1.0, 1, 1}, k1 = {1.0, 1, 1.0, 1, 1}, nucleus = {1.0, 0, 0.7, 1, 1};
  int counts[5] = {0};
  (void)state;
  for (int i = 0; i < 10000; i++) {
    double u = (i + 0.5) / 10000.0;
    assert_int_equal(ordo_sample_token(logits, 5, &greedy, u), 1);
    assert_int_equal(ordo_sample_token(logits, 5, &k1, u), 1);
    counts[ordo_sample_token(logits, 5, &hot, u)]++;
    int32_t inside = ordo_sample_token(logits, 5, &nucleus, u);
    assert_true(inside == 1 || inside == 2); /* e^2 twice of 18.5 is 0.80 */
  }
  double total = 1.0 + 2.0 * exp(2.0) + exp(1.0);
  assert_true(fabs(counts[1] / 10000.0 - exp(2.0) / total) < 2e-4); /* the grid of u has steps of 1e-4 */
  assert_true(fabs(counts[0] / 10000.0 - 1.0 / total) < 2e-4);
  assert_int_equal(counts[4], 0);
}

static void generation_repeats_with_its_seed(void **state)
{
  fixture *f = *state;
  ordo_sampling sampling = {1.0, 0, 1.0, 5, 0}, other = {1.0, 0, 1.0, 6, 0};
  const ordo_sampling *const runs[] = {&sampling, &sampling, &other};
  GArray *texts[3];
  for (int i = 0; i < 3; i++) {
    int32_t first = 10;
    texts[i] = g_array_new(FALSE, FALSE, sizeof(int32_t));
    g_array_append_val(texts[i], first);
    assert_int_equal(ordo_generate(f->embed, texts[i], 40, runs[i], 256, NULL, NULL), ORDO_OK);
    assert_int_equal(texts[i]->len, 41);
  }
  assert_memory_equal(texts[0]->data, texts[1]->data, 41 * sizeof(int32_t));
  assert_memory_not_equal(texts[0]->data, texts[2]->data, 41 * sizeof(int32_t));
  for (int i = 0; i < 3; i++)
    g_array_unref(texts[i]);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(memory_meets_its_formula, setup, teardown),
      cmocka_unit_test_setup_teardown(checkpointing_gives_the_same_bits_with_less_memory, setup, teardown),
      cmocka_unit_test_setup_teardown(training_lowers_the_loss, setup, teardown),
      cmocka_unit_test_setup_teardown(rebinding_moves_state, setup, teardown),
      cmocka_unit_test_setup_teardown(a_saved_model_is_the_model, setup, teardown),
      cmocka_unit_test_setup_teardown(a_directory_that_cannot_be_written_is_an_error, setup, teardown),
      cmocka_unit_test(sampling_keeps_its_limits),
      cmocka_unit_test_setup_teardown(generation_repeats_with_its_seed, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
