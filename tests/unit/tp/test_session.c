/* test_session.c - `mpirun -n N test-tp-session DIRECTORY`: the plugin in real training on 2 or 4 ranks: what it communicates, what a rank
 * holds, and what happens when ranks disagree. That the numbers are right is the parity table's business (tests/parity).
 */
#include "embed.h"
#include "random.h"

#include <mpi.h>
#include <ordo/mpi.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <math.h>

enum { SEQ = 16, BATCH = 3, HIDDEN = 32, VOCAB = 67 };

static const char *plugins;
static int rank, ranks;
static uint32_t drift_interval; /* of the sessions started from now on */
static int64_t batch = BATCH, seq = SEQ;

typedef struct fixture {
  ordo_context *context;
  ordo_comm_provider *comm;
  ordo_plan *plan;
  ordo_weights *weights;
  ordo_embed *embed;
  ordo_data data;
  char *path;
} fixture;

static const struct llama_config base = {.vocab = VOCAB,
                                         .hidden = HIDDEN,
                                         .intermediate = 45,
                                         .layers = 2,
                                         .heads = 4,
                                         .kv_heads = 2,
                                         .head_dim = 8,
                                         .max_positions = SEQ,
                                         .rms_eps = 1e-5,
                                         .rope_theta = 10000.0,
                                         .tied = 1};

/* Token files in which the ids of a rank are shifted by `shift`. */
static void open_data(fixture *f, int shift)
{
  enum { N = 40 * SEQ + 1 };
  guint16 ids[N];
  g_autoptr(ordo_tokenizer) tokenizer = NULL;
  ordo_tokens *tokens = NULL;
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  for (int i = 0; i < N; i++)
    ids[i] = GUINT16_TO_LE((guint16)((int)(ordo_random_uniform(5, (uint64_t)i) * VOCAB + shift) % VOCAB));
  close(g_file_open_tmp("ordo-tp-XXXXXX", &f->path, NULL));
  assert_true(g_file_set_contents(f->path, (const char *)ids, sizeof ids, NULL));
  assert_int_equal(ordo_tokenizer_open("bytes", 0, &problems, &tokenizer), ORDO_OK);
  assert_int_equal(ordo_tokens_open(f->path, "tokens16", tokenizer, FALSE, VOCAB, &problems, &tokens), ORDO_OK);
  assert_int_equal(ordo_data_view(&f->data, tokens, 0, ordo_tokens_count(tokens), seq, "t", &problems), ORDO_OK);
  f->data.owns_tokens = 1;
}

/* `strategy` null: one rank alone. */
static ordo_status start(fixture *f, const struct llama_config *config, const char *strategy, int shift, int checkpointing)
{
  const ordo_context_options options = {
      .struct_size = sizeof options, .plugin_path = plugins, .flags = ORDO_CONTEXT_NO_ENVIRONMENT | ORDO_CONTEXT_NO_DEFAULT_PATH};
  const ordo_plan_request request = {.struct_size = sizeof request, .strategy = strategy, .ranks = strategy ? ranks : 1};
  memset(f, 0, sizeof *f);
  assert_int_equal(ordo_context_create(&options, &f->context), ORDO_OK);
  if (strategy)
    assert_int_equal(ordo_comm_mpi_create(f->context, MPI_COMM_NULL, NULL, &f->comm), ORDO_OK);
  ordo_status status = ordo_plan_create(f->context, &request, &f->plan);
  if (status != ORDO_OK)
    ordo_context_print_errors(f->context, stderr);
  assert_int_equal(status, ORDO_OK);
  f->weights = ordo_weights_fresh(config, 1, 0.08);
  open_data(f, shift);
  ordo_embed_options o = {.context = f->context,
                          .plan = f->plan,
                          .comm = f->comm,
                          .weights = f->weights,
                          .train = 1,
                          .checkpointing = checkpointing,
                          .batch = batch,
                          .micro_batch = batch,
                          .seq_len = seq,
                          .max_grad_norm = 1.0,
                          .drift_interval = drift_interval};
  o.optimizer = (ordo_leaf_optimizer_options){0, 1e-2, 0.9, 0.95, 1e-8, 0.1, 0.9};
  o.schedule = (struct schedule){SCHEDULE_CONSTANT, 1e-2, 1.0, 0, 100};
  return ordo_embed_create(&o, &f->embed);
}

static void stop(fixture *f)
{
  ordo_embed_destroy(f->embed);
  ordo_weights_free(f->weights);
  ordo_plan_destroy(f->plan);
  ordo_comm_provider_destroy(f->comm);
  ordo_context_destroy(f->context);
  ordo_data_clear(&f->data);
  unlink(f->path);
  g_free(f->path);
}

static double step(fixture *f, int64_t number)
{
  ordo_step_outcome outcome;
  ordo_status status = ordo_embed_step(f->embed, &f->data, number * batch, 0, NULL, NULL, &outcome);
  if (status != ORDO_OK)
    ordo_context_print_errors(f->context, stderr);
  assert_int_equal(status, ORDO_OK);
  return outcome.loss;
}

/* The gate of parity for losses. */
static void assert_loss(double loss, double expected)
{
  assert_true(fabs(loss - expected) <= 1e-5 * expected);
}

static ordo_comm_stats stats_of(fixture *f)
{
  ordo_comm_stats stats = {.struct_size = sizeof stats};
  assert_int_equal(ordo_session_comm_stats(ordo_embed_session(f->embed), "tp", &stats), ORDO_OK);
  return stats;
}

/* Calls and bytes of the second step on the tp axis. */
static ordo_comm_stats of_a_step(const char *strategy, int64_t layers, int checkpointing)
{
  struct llama_config config = base;
  fixture f;
  config.layers = layers;
  assert_int_equal(start(&f, &config, strategy, 0, checkpointing), ORDO_OK);
  step(&f, 0);
  ordo_comm_stats before = stats_of(&f);
  step(&f, 1);
  ordo_comm_stats after = stats_of(&f);
  stop(&f);
  for (int k = 0; k < 16; k++) {
    after.calls[k] -= before.calls[k];
    after.bytes[k] -= before.bytes[k];
  }
  return after;
}

static void assert_block(const char *strategy, int checkpointing, const uint64_t *calls, uint64_t small_calls)
{
  const uint64_t activation = BATCH * SEQ * HIDDEN * sizeof(float);
  ordo_comm_stats two = of_a_step(strategy, 2, checkpointing), three = of_a_step(strategy, 3, checkpointing);
  for (uint32_t kind = ORDO_ALL_REDUCE; kind <= ORDO_ALL_GATHER; kind++) {
    uint64_t small = kind == ORDO_ALL_REDUCE ? small_calls : 0;
    assert_int_equal(three.calls[kind] - two.calls[kind], calls[kind] + small);
    if (small == 0)
      assert_int_equal(three.bytes[kind] - two.bytes[kind], calls[kind] * activation);
  }
}

/* Per block two all-reduces of the activations forward and two backward, and not one call or byte more. On 4 ranks the two key heads have
 * two copies each, whose gradients are added up: two more, of the size of the weights. */
static void two_all_reduces_forward_and_two_backward(void **state)
{
  const uint64_t calls[4] = {0, 4, 0, 0};
  (void)state;
  assert_block("tp", 0, calls, ranks == 4 ? 2 : 0);
}

/* What a block computes again for backward costs its first sum again; the second is of its output, which nobody needs. */
static void recomputation_repeats_the_sum_inside(void **state)
{
  const uint64_t calls[4] = {0, 5, 0, 0};
  (void)state;
  assert_block("tp", 1, calls, ranks == 4 ? 2 : 0);
}

/* Sequence parallelism: two reduce-scatters each way; all-gathers before the pairs, back after them, and again for the weights' gradients.
 * The two norms' gradients are added up. */
static void sequence_parallelism_scatters_and_gathers(void **state)
{
  const uint64_t calls[4] = {0, 0, 4, 6};
  (void)state;
  assert_block("tp:sequence_parallel=true", 0, calls, 2 + (ranks == 4 ? 2 : 0));
}

static int64_t part(int64_t n, int32_t index)
{
  return n / ranks + (index < n % ranks);
}

/* Weights, gradients and optimizer state: this rank's parts, norms whole. */
static void a_rank_holds_its_parts(void **state)
{
  fixture f;
  int64_t now, peak, kv = MAX(base.kv_heads / ranks, 1) * base.head_dim, q = base.heads / ranks * base.head_dim;
  int64_t block = (2 * q + 2 * kv + 3 * part(base.intermediate, rank)) * HIDDEN + 2 * HIDDEN;
  int64_t floats = part(VOCAB, rank) * HIDDEN + base.layers * block + HIDDEN;
  (void)state;
  assert_int_equal(start(&f, &base, "tp", 0, 0), ORDO_OK);
  step(&f, 0);
  ordo_session_memory(ordo_embed_session(f.embed), ORDO_MEM_GRADIENTS, &now, &peak);
  assert_int_equal(now, floats * 4);
  ordo_session_memory(ordo_embed_session(f.embed), ORDO_MEM_WEIGHTS, &now, &peak);
  assert_int_equal(now, floats * 4);
  ordo_session_memory(ordo_embed_session(f.embed), ORDO_MEM_OPTIMIZER, &now, &peak);
  assert_int_equal(now, 2 * floats * 4);
  ordo_session_memory(ordo_embed_session(f.embed), ORDO_MEM_ACTIVATIONS, &now, &peak);
  assert_int_equal(now, llama_local_activation_bytes(ordo_embed_llama(f.embed), BATCH, SEQ, LLAMA_KEEP_ALL, 0));
  assert_true(now < llama_activation_bytes(&base, BATCH, SEQ, LLAMA_KEEP_ALL, 0));
  stop(&f);
}

/* Layer 0 of the MLP whole by a plan file, with and without sequence parallelism: the losses of one rank. */
static void a_plan_file_keeps_the_numbers(void **state)
{
  char path[64] = "/tmp/ordo-tp-test-XXXXXX"; /* of rank 0, so that no file of another run or user is met */
  fixture f;
  double alone[4];
  (void)state;
  assert_int_equal(start(&f, &base, NULL, 0, 0), ORDO_OK);
  for (int s = 0; s < 4; s++)
    alone[s] = step(&f, s);
  stop(&f);
  if (rank == 0)
    close(g_mkstemp(path));
  MPI_Bcast(path, sizeof path, MPI_CHAR, 0, MPI_COMM_WORLD);
  if (rank == 0)
    assert_true(g_file_set_contents(path, "model.layers.0.mlp.* = replicate\nmodel.layers.1.self_attn.* = replicate\n", -1, NULL));
  MPI_Barrier(MPI_COMM_WORLD);
  for (int sequence = 0; sequence < 2; sequence++) {
    g_autofree char *strategy = g_strdup_printf("tp:plan=%s:sequence_parallel=%s", path, sequence ? "true" : "false");
    assert_int_equal(start(&f, &base, strategy, 0, sequence), ORDO_OK);
    for (int s = 0; s < 4; s++)
      assert_loss(step(&f, s), alone[s]);
    stop(&f);
  }
  /* A whole embedding and head, tied. */
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0)
    assert_true(g_file_set_contents(path, "model.embed_tokens.weight = replicate\nlm_head.weight = replicate\n", -1, NULL));
  MPI_Barrier(MPI_COMM_WORLD);
  for (int sequence = 0; sequence < 2; sequence++) {
    g_autofree char *strategy = g_strdup_printf("tp:plan=%s:sequence_parallel=%s", path, sequence ? "true" : "false");
    assert_int_equal(start(&f, &base, strategy, 0, 0), ORDO_OK);
    for (int s = 0; s < 4; s++)
      assert_loss(step(&f, s), alone[s]);
    stop(&f);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0)
    unlink(path);
}

/* Ranks of the residual stream without a token, and one token alone: its part has as many rows as the whole and is a part all the same. */
static void fewer_tokens_than_ranks_keep_the_numbers(void **state)
{
  static const int64_t tokens[] = {1, 2, 3, 5};
  (void)state;
  batch = 1;
  for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++)
    for (int checkpointing = 0; checkpointing < 2; checkpointing++) {
      fixture f;
      double alone[6];
      seq = tokens[i];
      assert_int_equal(start(&f, &base, NULL, 0, 0), ORDO_OK);
      for (int s = 0; s < 6; s++)
        alone[s] = step(&f, s);
      stop(&f);
      assert_int_equal(start(&f, &base, "tp:sequence_parallel=true", 0, checkpointing), ORDO_OK);
      for (int s = 0; s < 6; s++)
        assert_loss(step(&f, s), alone[s]);
      stop(&f);
    }
  batch = BATCH;
  seq = SEQ;
}

static const char *code_of(const fixture *f)
{
  return ordo_last_error(f->context)->code;
}

/* One rank reads other data: all ranks learn of it in the first step, and nothing is updated. */
static void data_that_differs_is_detected(void **state)
{
  fixture f;
  ordo_step_outcome outcome;
  (void)state;
  assert_int_equal(start(&f, &base, "tp", rank == ranks - 1, 0), ORDO_OK);
  assert_int_equal(ordo_embed_step(f.embed, &f.data, 0, 0, NULL, NULL, &outcome), ORDO_E_MISMATCH);
  assert_string_equal(code_of(&f), "E-DATA-DIFFERS");
  assert_non_null(strstr(ordo_last_error(f.context)->what, "axis 'tp'"));
  stop(&f);
}

/* The same words in every expression, and on the last rank another file behind them. What failed is not taken apart: others may still be in
 * the set-up (embed.c). */
static void plan_files_that_differ_are_refused(void **state)
{
  g_autofree char *here = g_get_current_dir(), *dir = g_dir_make_tmp("ordo-tp-XXXXXX", NULL);
  fixture f;
  (void)state;
  assert_non_null(dir);
  assert_int_equal(chdir(dir), 0);
  assert_true(g_file_set_contents("x.plan", rank == ranks - 1 ? "model.layers.0.mlp.* = replicate\n" : "model.layers.1.mlp.* = replicate\n",
                                  -1, NULL));
  assert_int_equal(start(&f, &base, "tp:plan=x.plan", 0, 0), ORDO_E_MISMATCH);
  assert_non_null(strstr(ordo_last_error(f.context)->what, "ranks read different plan files: x.plan"));
  unlink("x.plan");
  assert_int_equal(chdir(here), 0);
  rmdir(dir);
  ordo_data_clear(&f.data);
  unlink(f.path);
  g_free(f.path);
}

/* A norm weight, or a copy of a key head, that has drifted on one rank. */
static void drift_is_detected(void **state)
{
  static const char *const names[] = {"model.layers.1.input_layernorm.weight", "model.layers.1.self_attn.k_proj.weight"};
  (void)state;
  for (int i = 0; i < (ranks == 4 ? 2 : 1); i++) {
    fixture f;
    ordo_step_outcome outcome;
    drift_interval = 1;
    assert_int_equal(start(&f, &base, "tp", 0, 0), ORDO_OK);
    drift_interval = 0;
    step(&f, 0);
    const ordo_model *model = ordo_embed_model(f.embed);
    for (uint32_t p = 0; p < model->n_params; p++)
      if (rank == 1 && strcmp(model->params[p]->name, names[i]) == 0)
        ((float *)model->params[p]->data)[3] += 1e-6f;
    assert_int_equal(ordo_embed_step(f.embed, &f.data, BATCH, 0, NULL, NULL, &outcome), ORDO_E_INVARIANT);
    assert_string_equal(code_of(&f), "E-INVARIANT-DRIFT");
    assert_string_equal(ordo_last_error(f.context)->where, names[i]);
    stop(&f);
  }
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(two_all_reduces_forward_and_two_backward),
      cmocka_unit_test(recomputation_repeats_the_sum_inside),
      cmocka_unit_test(sequence_parallelism_scatters_and_gathers),
      cmocka_unit_test(a_rank_holds_its_parts),
      cmocka_unit_test(a_plan_file_keeps_the_numbers),
      cmocka_unit_test(fewer_tokens_than_ranks_keep_the_numbers),
      cmocka_unit_test(data_that_differs_is_detected),
      cmocka_unit_test(drift_is_detected),
      cmocka_unit_test(plan_files_that_differ_are_refused),
  };
  plugins = argc > 1 ? argv[1] : "";
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  MPI_Finalize();
  return failed;
}
