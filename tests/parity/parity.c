/* parity.c - `mpirun -n N ordo-parity --strategy S [--peer P] [--case WORD] [--heads Q,K] [--parts P] [--golden no]`: the table of cases, N
 * ranks against one, on a small random model and, when it is there, on the golden one. Every strategy is held to the same table.
 *
 * --heads: query and key heads of the random model. --parts: of a batch, if a model axis makes them fewer than ranks. A line a cell (a case
 * on a model), then how many there were and the worst deviation of each kind. --case, or ORDO_PARITY_CASE, takes the cases whose name
 * contains the word; --list prints the cells and runs none. Exit code 1 if a cell leaves its gate or none was run.
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
    {.name = "adamw no clip", .lr = 1e-3},
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
    {.name = "sgd ordered, delays", .is_sgd = 1, .lr = 0.05, .clip = 1.0, .mask = PARITY_UNEVEN, .ordered = 1, .delays = 1, .steps = 5},
    {.name = "adamw ordered", .lr = 1e-3, .clip = 1.0, .mask = PARITY_UNEVEN, .ordered = 1},
    {.name = "sgd ordered accumulation", .is_sgd = 1, .lr = 0.05, .clip = 1.0, .accumulate = 1, .ordered = 1},
};

typedef struct suite {
  ordo_context *context;
  ordo_comm_provider *comm;
  const char *strategy;
  const char *peer;    /* whose bits ordered cases must have too; null: none */
  const char *word;    /* cases whose name contains it; null: all */
  int lists;           /* names cells instead of running them */
  int heads, kv_heads; /* of the random model */
  int parts;           /* of a batch: ranks, but those of a model axis counted once */
  int golden;          /* 0: the random model only */
  const char *missing; /* where the golden model was looked for and is not, null: it was run or not asked for */
  int rank;
  int run, failed, skipped; /* cells, on rank 0 */
  parity_spread worst[2];   /* of all cells: AdamW, SGD */
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

static int verdict(const suite *s, const parity_case *c, const parity_source *source, const parity_spread *spread)
{
  int bad = !(spread->worst <= 1.0);
  printf("%-4s %s %d ranks  %-28s %-11s worst %9.3g of the gate: %s\n", bad ? "FAIL" : "ok", s->strategy, s->comm->size, c->name,
         source->name, spread->worst, spread->what);
  fflush(stdout);
  return bad;
}

static void remember(suite *s, const parity_case *c, const parity_spread *spread)
{
  for (int k = 0; k < PARITY_N_GATES; k++)
    s->worst[c->is_sgd].units[k] = MAX(s->worst[c->is_sgd].units[k], spread->units[k]);
}

/* Runs an ordered case once more, without delays, with this strategy or the peer, and compares bits. Returns 1 on rank 0 if they differ. */
static int compare_bits(suite *s, const parity_case *c, const parity_source *source, const parity_trace *first, const char *strategy)
{
  parity_case plain = *c;
  parity_trace again = {0};
  parity_spread spread = {0};
  int bad = 0;
  plain.delays = 0;
  if (parity_run(s->context, s->comm, strategy, &plain, source, s->parts, &again, NULL) != ORDO_OK)
    stop(s, c->name);
  g_autofree char *of = g_strdup_printf("bits of %s", strategy != s->strategy ? strategy
                                                      : c->delays             ? "a run without delays"
                                                                              : "a second run");
  parity_spread_add(&spread, PARITY_EXACT, !same_bits(first, &again), 0.0, of);
  if (s->rank == 0) {
    bad = verdict(s, c, source, &spread);
    remember(s, c, &spread);
  }
  parity_trace_clear(&again);
  return bad;
}

/* Until all ranks are here. They sleep meanwhile: a barrier would take the processors from the rank that still computes. */
static void meet(void)
{
  MPI_Request request;
  int done = 0;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  for (MPI_Test(&request, &done, MPI_STATUS_IGNORE); !done; MPI_Test(&request, &done, MPI_STATUS_IGNORE))
    g_usleep(500);
}

/* On rank 0: against a run on one rank. */
static int compare_one(suite *s, const parity_case *c, const parity_source *source, const parity_trace *many)
{
  parity_trace one = {0};
  if (parity_run(s->context, NULL, NULL, c, source, s->parts, &one, NULL) != ORDO_OK)
    stop(s, "the run on one rank");
  parity_spread spread = parity_compare(c, source, &one, many);
  remember(s, c, &spread);
  parity_trace_clear(&one);
  return verdict(s, c, source, &spread);
}

static void run_case(suite *s, const parity_case *row, const parity_source *source)
{
  parity_case own = *row, *c = &own;
  parity_trace many = {0};
  const char *skipped = NULL;
  int bad = 0;
  own.no_decay = strstr(s->strategy, "use_orig_params=false") != NULL;
  if (parity_run(s->context, s->comm, s->strategy, c, source, s->parts, &many, &skipped) != ORDO_OK)
    stop(s, c->name);
  if (skipped) {
    s->skipped++;
    if (s->rank == 0)
      printf("skip %s %d ranks  %-28s %-11s %s\n", s->strategy, s->comm->size, c->name, source->name, skipped);
    return;
  }
  if (s->rank == 0)
    bad = compare_one(s, c, source, &many);
  meet();
  if (c->ordered)
    bad |= compare_bits(s, c, source, &many, s->strategy);
  if (c->ordered && s->peer)
    bad |= compare_bits(s, c, source, &many, s->peer);
  s->run++;
  s->failed += bad;
  parity_trace_clear(&many);
}

/* The cells of one model. */
static void run_cells(suite *s, const parity_source *source, int untied, int with_delays)
{
  for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
    const parity_case *c = &cases[i];
    if (c->untied != untied || (c->delays && !with_delays) || (s->word && !strstr(c->name, s->word)))
      continue;
    if (s->lists && s->rank == 0)
      printf("cell  %-28s %s\n", c->name, source->name);
    if (!s->lists)
      run_case(s, c, source);
  }
}

/* Summed up by ./dev parity. */
static void print_summary(const suite *s)
{
  const parity_case adamw = {.lr = 1e-3}, sgd = {.is_sgd = 1};
  const parity_case *kinds[] = {&adamw, &sgd};
  printf("cells %s %d ranks: %d run, %d passed, %d failed, %d skipped\n", s->strategy, s->comm->size, s->run, s->run - s->failed, s->failed,
         s->skipped);
  if (s->missing)
    printf("missing %s %d ranks: no cell ran the golden model, which is not at %s (ORDO_GOLDEN_DIR)\n", s->strategy, s->comm->size,
           s->missing);
  for (int i = 0; i < 2; i++)
    for (int k = 0; k < PARITY_EXACT; k++)
      printf("spread %s %s: %.3g of %.3g\n", i ? "SGD" : "AdamW", parity_gate_name(k), s->worst[i].units[k] * parity_gate(kinds[i], k),
             parity_gate(kinds[i], k));
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
  g_autoptr(ordo_tokens) tokens = random_tokens(own.vocab, PARITY_STEPS * MAX(8, 4 * s->comm->size) * 16 + 1, &problems);
  parity_source source = {untied ? "random, 2" : "random", weights, tokens, 16};
  if (!tokens)
    stop(s, "no temporary file");
  run_cells(s, &source, untied, 1);
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
    s->missing = root;
    return;
  }
  if (ordo_weights_open(model, &problems, &weights) != ORDO_OK || ordo_tokenizer_open("bytes", 0, &problems, &tokenizer) != ORDO_OK ||
      ordo_tokens_open(ids, "tokens16", tokenizer, FALSE, weights->config.vocab, &problems, &tokens) != ORDO_OK) {
    ordo_problems_print(&problems, stderr);
    stop(s, "the golden model cannot be read");
  }
  parity_source source = {"stories260K", weights, tokens, 64};
  run_cells(s, &source, 0, 0);
}

static void read_words(suite *s, int argc, char **argv)
{
  s->word = g_getenv("ORDO_PARITY_CASE");
  for (int i = 1; i < argc; i++)
    if (strcmp(argv[i], "--list") == 0)
      s->lists = 1;
    else if (i + 1 < argc && strcmp(argv[i], "--strategy") == 0)
      s->strategy = argv[++i];
    else if (i + 1 < argc && strcmp(argv[i], "--peer") == 0)
      s->peer = argv[++i];
    else if (i + 1 < argc && strcmp(argv[i], "--case") == 0)
      s->word = argv[++i];
    else if (i + 1 < argc && strcmp(argv[i], "--parts") == 0)
      s->parts = atoi(argv[++i]);
    else if (i + 1 < argc && strcmp(argv[i], "--golden") == 0)
      s->golden = strcmp(argv[++i], "no") != 0;
    else if (i + 1 < argc && strcmp(argv[i], "--heads") == 0 && sscanf(argv[++i], "%d,%d", &s->heads, &s->kv_heads) != 2)
      s->heads = 0; /* no model can be made of it */
}

int main(int argc, char **argv)
{
  suite s = {.strategy = "ddp", .heads = 3, .kv_heads = 1, .golden = 1};
  struct blas_core_report report;
  char reason[200] = "";
  ordo_context_options options = {.struct_size = sizeof options, .program_name = "parity"};
  read_words(&s, argc, argv);
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
  if (s.golden)
    golden_model(&s, root && *root ? root : ORDO_GOLDEN_DEFAULT);
  if (s.rank == 0 && !s.lists)
    print_summary(&s);
  int bad = !s.lists && (s.failed > 0 || s.run == 0);
  MPI_Bcast(&bad, 1, MPI_INT, 0, MPI_COMM_WORLD);
  ordo_comm_provider_destroy(s.comm);
  ordo_context_destroy(s.context);
  return bad;
}
