/* parity.c - `mpirun -n N parity --strategy S [--peer P] [--heads Q,K] [--parts P] [--golden no]`: the table of cases, N ranks against one,
 * on a small random model (of Q query and K key heads) and, when it is there, on the golden one. P: parts of a batch, if a model axis makes
 * them fewer than ranks. A line a case; exit code 1 if one leaves its gate. Every strategy is held to the same table.
 */
#include "parity.h"

#include "blas_core.h"
#include "random.h"

#include <math.h>
#include <mpi.h>
#include <ordo/mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const parity_case cases[] = {
    {.name = "adamw clip", .lr = 1e-3, .clip = 1.0},
    {.name = "sgd clip", .is_sgd = 1, .lr = 0.05, .clip = 1.0},
    {.name = "sgd no clip", .is_sgd = 1, .lr = 0.01},
    {.name = "adamw accumulation", .lr = 1e-3, .clip = 1.0, .accumulate = 1},
    {.name = "sgd accumulation", .is_sgd = 1, .lr = 0.05, .clip = 1.0, .accumulate = 1},
    {.name = "adamw masked", .lr = 1e-3, .clip = 1.0, .mask = PARITY_UNEVEN},
    {.name = "sgd masked, no clip", .is_sgd = 1, .lr = 0.01, .mask = PARITY_UNEVEN},
    {.name = "sgd masked accumulation", .is_sgd = 1, .lr = 0.05, .clip = 1.0, .mask = PARITY_UNEVEN, .accumulate = 1},
    {.name = "sgd rank without tokens", .is_sgd = 1, .lr = 0.05, .clip = 1.0, .mask = PARITY_EMPTY_RANK},
    {.name = "adamw rank without tokens", .lr = 1e-3, .clip = 1.0, .mask = PARITY_EMPTY_RANK, .accumulate = 1},
    {.name = "sgd different weights", .is_sgd = 1, .lr = 0.05, .clip = 1.0, .different_weights = 1},
    {.name = "evaluation only", .eval_only = 1},
    {.name = "adamw separate head", .lr = 1e-3, .clip = 1.0, .untied = 1},
    {.name = "adamw masked accumulation", .lr = 1e-3, .clip = 1.0, .mask = PARITY_UNEVEN, .accumulate = 1},
    {.name = "adamw checkpointing", .lr = 1e-3, .clip = 1.0, .accumulate = 1, .checkpointing = 1},
    {.name = "sgd ordered, delays", .is_sgd = 1, .lr = 0.05, .clip = 1.0, .mask = PARITY_UNEVEN, .ordered = 1, .delays = 1},
    {.name = "adamw ordered", .lr = 1e-3, .clip = 1.0, .mask = PARITY_UNEVEN, .ordered = 1},
    {.name = "sgd ordered accumulation", .is_sgd = 1, .lr = 0.05, .clip = 1.0, .accumulate = 1, .ordered = 1},
};

typedef struct suite {
  ordo_context *context;
  ordo_comm_provider *comm;
  const char *strategy;
  const char *peer;    /* whose bits ordered cases must have too; null: none. On two axes a sum is a sum of sums: other bits than on one */
  int heads, kv_heads; /* of the random model */
  int parts;           /* of a batch: ranks, but those of a model axis counted once */
  int rank;
  int failed;
} suite;

static void stop(const suite *s, const char *what)
{
  fprintf(stderr, "parity: %s (rank %d)\n", what, s->rank);
  ordo_context_print_errors(s->context, stderr);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static int same_bits(const parity_trace *a, const parity_trace *b)
{
  return memcmp(a->loss, b->loss, sizeof a->loss) == 0 && memcmp(a->norm, b->norm, sizeof a->norm) == 0 && a->n_weights == b->n_weights &&
         memcmp(a->weights, b->weights, (size_t)a->n_weights * sizeof(float)) == 0 && a->evaluated == b->evaluated &&
         memcmp(a->text, b->text, sizeof a->text) == 0;
}

static void verdict(suite *s, const parity_case *c, const parity_source *source, double units, const char *what)
{
  int bad = !(units <= 1.0);
  s->failed += bad;
  printf("%-4s %-10s %d ranks  %-28s %-10s worst %9.3g of the gate: %s\n", bad ? "FAIL" : "ok", s->strategy, s->comm->size, c->name,
         source->name, units, what);
  fflush(stdout);
}

/* Runs an ordered case once more, without delays, with this strategy or the peer, and compares bits. */
static void compare_bits(suite *s, const parity_case *c, const parity_source *source, const parity_trace *first, const char *strategy)
{
  parity_case plain = *c;
  parity_trace again = {0};
  plain.delays = 0;
  if (parity_run(s->context, s->comm, strategy, &plain, source, s->parts, &again, NULL) != ORDO_OK)
    stop(s, c->name);
  g_autofree char *of = g_strdup_printf("bits of %s", strategy != s->strategy ? strategy
                                                      : c->delays             ? "a run without delays"
                                                                              : "a second run");
  if (s->rank == 0)
    verdict(s, c, source, same_bits(first, &again) ? 0.0 : INFINITY, of);
  parity_trace_clear(&again);
}

static void run_case(suite *s, const parity_case *row, const parity_source *source)
{
  parity_case own = *row, *c = &own;
  parity_trace one = {0}, many = {0};
  const char *skipped = NULL, *what = "";
  own.no_decay = strstr(s->strategy, "use_orig_params=false") != NULL;
  if (parity_run(s->context, s->comm, s->strategy, c, source, s->parts, &many, &skipped) != ORDO_OK)
    stop(s, c->name);
  if (s->rank == 0 && skipped) {
    printf("skip %-10s %d ranks  %-28s %-10s %s\n", s->strategy, s->comm->size, c->name, source->name, skipped);
  } else if (s->rank == 0) {
    if (parity_run(s->context, NULL, NULL, c, source, s->parts, &one, NULL) != ORDO_OK)
      stop(s, "the run on one rank");
    double units = parity_compare(c, source, &one, &many, &what);
    verdict(s, c, source, units, what);
  }
  if (c->ordered && !skipped) {
    compare_bits(s, c, source, &many, s->strategy);
    if (s->peer)
      compare_bits(s, c, source, &many, s->peer);
  }
  parity_trace_clear(&one);
  parity_trace_clear(&many);
  MPI_Barrier(MPI_COMM_WORLD);
}

/* Random ids as a file of uint16. */
static ordo_tokens *random_tokens(int64_t vocab, int64_t n, ordo_problems *problems)
{
  g_autofree char *path = NULL;
  g_autofree guint16 *ids = g_new(guint16, (gsize)n);
  g_autoptr(ordo_tokenizer) tokenizer = NULL;
  ordo_tokens *tokens = NULL;
  int fd = g_file_open_tmp("ordo-parity-XXXXXX", &path, NULL);
  for (int64_t i = 0; i < n; i++)
    ids[i] = GUINT16_TO_LE((guint16)(ordo_random_uniform(99, (uint64_t)i) * (double)vocab));
  if (fd < 0 || !g_file_set_contents(path, (const char *)ids, (gssize)(n * 2), NULL))
    return NULL;
  close(fd);
  if (ordo_tokenizer_open("bytes", 0, problems, &tokenizer) == ORDO_OK)
    ordo_tokens_open(path, "tokens16", tokenizer, FALSE, vocab, problems, &tokens);
  unlink(path);
  return tokens;
}

/* Odd sizes on purpose: 97 words, 3 query heads on 1 key/value head of 10 unless others are asked for, 41 inside the MLP. */
static void random_model(suite *s, int untied)
{
  static const struct llama_config config = {.vocab = 97,
                                             .hidden = 30,
                                             .intermediate = 41,
                                             .layers = 3,
                                             .heads = 3,
                                             .kv_heads = 1,
                                             .head_dim = 10,
                                             .max_positions = 16,
                                             .rms_eps = 1e-5,
                                             .rope_theta = 10000.0,
                                             .tied = 1};
  struct llama_config own = config;
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  own.tied = !untied;
  own.heads = s->heads;
  own.kv_heads = s->kv_heads;
  g_autoptr(ordo_weights) weights = ordo_weights_fresh(&own, 5, 0.08);
  g_autoptr(ordo_tokens) tokens = random_tokens(own.vocab, PARITY_STEPS * PARITY_BATCH * 16 + 1, &problems);
  parity_source source = {untied ? "random, 2" : "random", weights, tokens, 16};
  if (!tokens)
    stop(s, "no temporary file");
  for (size_t i = 0; i < G_N_ELEMENTS(cases); i++)
    if (cases[i].untied == untied)
      run_case(s, &cases[i], &source);
}

static void golden_model(suite *s, const char *root)
{
  g_autofree char *model = g_build_filename(root, "model", "hf", NULL), *ids = g_build_filename(root, "data", "text.ids.u16.bin", NULL);
  g_autoptr(ordo_weights) weights = NULL;
  g_autoptr(ordo_tokens) tokens = NULL;
  g_autoptr(ordo_tokenizer) tokenizer = NULL;
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  if (!g_file_test(model, G_FILE_TEST_IS_DIR)) {
    if (s->rank == 0)
      printf("skip the golden model: nothing at %s (ORDO_GOLDEN_DIR)\n", root);
    return;
  }
  if (ordo_weights_open(model, &problems, &weights) != ORDO_OK || ordo_tokenizer_open("bytes", 0, &problems, &tokenizer) != ORDO_OK ||
      ordo_tokens_open(ids, "tokens16", tokenizer, FALSE, weights->config.vocab, &problems, &tokens) != ORDO_OK) {
    ordo_problems_print(&problems, stderr);
    stop(s, "the golden model cannot be read");
  }
  parity_source source = {"stories260K", weights, tokens, 64};
  for (size_t i = 0; i < G_N_ELEMENTS(cases); i++)
    if (!cases[i].untied && !cases[i].delays)
      run_case(s, &cases[i], &source);
}

int main(int argc, char **argv)
{
  suite s = {.strategy = "ddp", .heads = 3, .kv_heads = 1};
  int golden = 1;
  struct blas_core_report report;
  char reason[200] = "";
  ordo_context_options options = {.struct_size = sizeof options, .program_name = "parity"};
  for (int i = 1; i + 1 < argc; i += 2)
    if (strcmp(argv[i], "--strategy") == 0)
      s.strategy = argv[i + 1];
    else if (strcmp(argv[i], "--peer") == 0)
      s.peer = argv[i + 1];
    else if (strcmp(argv[i], "--heads") == 0 && sscanf(argv[i + 1], "%d,%d", &s.heads, &s.kv_heads) != 2)
      return 2;
    else if (strcmp(argv[i], "--parts") == 0)
      s.parts = atoi(argv[i + 1]);
    else if (strcmp(argv[i], "--golden") == 0)
      golden = strcmp(argv[i + 1], "no") != 0;
  if (blas_core_start(argv, &report, reason, sizeof reason) != 0) {
    fprintf(stderr, "parity: %s\n", reason);
    return 1;
  }
  if (ordo_context_create(&options, &s.context) != ORDO_OK || ordo_comm_mpi_create(s.context, MPI_COMM_NULL, NULL, &s.comm) != ORDO_OK) {
    ordo_context_print_errors(s.context, stderr);
    return 1;
  }
  s.rank = s.comm->rank;
  s.parts = s.parts > 0 ? s.parts : s.comm->size;
  random_model(&s, 0);
  random_model(&s, 1);
  const char *root = g_getenv("ORDO_GOLDEN_DIR");
  if (golden)
    golden_model(&s, root ? root : ORDO_GOLDEN_DEFAULT);
  MPI_Bcast(&s.failed, 1, MPI_INT, 0, MPI_COMM_WORLD);
  ordo_comm_provider_destroy(s.comm);
  ordo_context_destroy(s.context);
  return s.failed > 0;
}
