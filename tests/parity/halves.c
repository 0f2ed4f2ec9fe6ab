/* halves.c - `mpirun -n N ordo-halves --strategy S`: what a rank holds and sends in fp32, with apex_amp:O2 and with O5, against formulas.
 *
 * The formulas (docs/precision.md) are written out here once more from the shapes of the model, apart from the code that allocates and
 * sends, paddings included, so nothing is tolerated. A matrix element takes 4 bytes in fp32 and 2 in 16 bits, in memory and on the wire; a
 * norm's takes 4 in both. What is counted is what the session's account and the communicators say; which part of it has 16 bits is seen by
 * a tap. Exit code 1 if anything is off.
 *
 * Guards against a 16-bit model that is gathered or reduced in fp32 after all, and against masters that are not sharded.
 */
#include "comm_tap.h"
#include "estimate.h"
#include "token_data.h"

#include <mpi.h>
#include <ordo/mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3, SEQ = 16, LINE = 64, PAGE = 4096, MOST_PIECES = 16, KINDS = 16 };
/* Bytes of a step that are no gradients: the overflow vote (an int32 for each of 64 losses, and five) and its
 * outcome, and at most 256 bytes of counts, norms and losses. */
enum { HOUSEKEEPING = 4 * (64 + 6) + 256 };
enum { MATRICES = 1, NORMS = 2 };
/* Whole replicas, flat parameters, rows of parameters. */
enum { REPLICAS, FLAT, FLAT_REPLICAS, ROWS };

/* Rows that 2 and 3 ranks do not divide, so that there is padding. */
static const struct llama_config shape = {.vocab = 259,
                                          .hidden = 40,
                                          .intermediate = 76,
                                          .layers = 4,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .head_dim = 10,
                                          .max_positions = 64,
                                          .rms_eps = 1e-5,
                                          .rope_theta = 10000.0,
                                          .tied = 1};

typedef struct strategy {
  const char *name;
  int layout;
  int views; /* every parameter of a flat one starts at a multiple of 16 bytes */
  int kept;  /* parameters stay gathered between forward and backward */
} strategy;

static const strategy strategies[] = {
    {"ddp", REPLICAS, 0, 0},
    {"fsdp1", FLAT, 1, 0},
    {"fsdp1:sharding_strategy=SHARD_GRAD_OP", FLAT, 1, 1},
    {"fsdp1:use_orig_params=false", FLAT, 0, 0},
    {"fsdp1:sharding_strategy=NO_SHARD", FLAT_REPLICAS, 1, 0},
    {"fsdp2", ROWS, 0, 0},
    {"fsdp2:reshard_after_forward=false", ROWS, 0, 1},
};

typedef struct level {
  const char *name, *precision;
  int stores; /* bytes of an element of a matrix and of its gradient */
} level;

static const level levels[] = {{"fp32", NULL, 4}, {"O2", "apex_amp:O2:init_scale=1024", 2}, {"O5", "apex_amp:O5", 2}};

typedef struct piece {
  int64_t rows, width;
  int what;
} piece;

/* Elements of a unit's parameters of some types, as a rank of a layout holds and sends them. */
typedef struct group {
  int64_t count; /* of a rank in a collective */
  int64_t shard; /* spanned in its shard */
  int64_t full;  /* spanned when gathered */
} group;

typedef struct formula {
  int64_t weights, weights_peak, gradients, optimizer;
  int64_t gathered[2], reduced[2]; /* bytes of a step: fp32 elements, 16-bit elements */
} formula;

typedef struct watch {
  int64_t bytes[KINDS][2];
} watch;

typedef struct rig {
  ordo_context *context;
  ordo_comm_provider *comm;
  ordo_weights *weights;
  ordo_data data;
  const strategy *strategy;
  int failed;
} rig;

/* ---- formulas ---- */

static int64_t round_up(int64_t value, int64_t unit)
{
  return (value + unit - 1) / unit * unit;
}

/* Unit 0 is the root: embedding (tied: also the head) and last norm. In the order of definition. */
static int pieces_of(int unit, piece *pieces)
{
  const int64_t d = shape.hidden, q = shape.heads * shape.head_dim, k = shape.kv_heads * shape.head_dim, f = shape.intermediate;
  const piece block[] = {{q, d, MATRICES}, {k, d, MATRICES}, {k, d, MATRICES}, {d, q, MATRICES}, {f, d, MATRICES},
                         {f, d, MATRICES}, {d, f, MATRICES}, {d, 1, NORMS},    {d, 1, NORMS}};
  const piece root[] = {{shape.vocab, d, MATRICES}, {d, 1, NORMS}};
  memcpy(pieces, unit ? block : root, unit ? sizeof block : sizeof root);
  return (int)(unit ? G_N_ELEMENTS(block) : G_N_ELEMENTS(root));
}

static group group_of(const strategy *s, int ranks, int unit, int what, int size)
{
  const int64_t line = 16; /* elements at which fsdp2 starts a parameter */
  const int64_t view = s->views ? 16 / size : 1;
  piece pieces[MOST_PIECES];
  group g = {0};
  int64_t flat = 0;
  for (int i = 0, n = pieces_of(unit, pieces); i < n; i++) {
    const piece *p = &pieces[i];
    const int64_t chunk = (p->rows + ranks - 1) / ranks * p->width;
    if (!(p->what & what))
      continue;
    g.count += s->layout == ROWS ? chunk : p->rows * p->width;
    g.shard = round_up(g.shard, line) + chunk;
    g.full = round_up(g.full, line) + chunk * ranks;
    flat = round_up(flat, view) + p->rows * p->width;
  }
  if (s->layout == FLAT)
    g = (group){(flat + ranks - 1) / ranks, (flat + ranks - 1) / ranks, round_up(flat, ranks)};
  if (s->layout == FLAT_REPLICAS)
    g = (group){round_up(flat, ranks), round_up(flat, ranks), round_up(flat, ranks)};
  return g;
}

/* Elements of the leaves of a rank; between views padding is nobody's. */
static int64_t owned(const strategy *s, int ranks, int rank, int stores, int what)
{
  int64_t sum = 0;
  for (int unit = 0; unit <= shape.layers; unit++) {
    piece pieces[MOST_PIECES];
    int64_t at = 0;
    /* matrices and norms of one type lie in one flat parameter */
    const int together = stores == 4 ? MATRICES | NORMS : what;
    const int64_t share = group_of(s, ranks, unit, together, stores == 4 || what == NORMS ? 4 : 2).count;
    for (int i = 0, n = pieces_of(unit, pieces); i < n; i++) {
      const piece *p = &pieces[i];
      const int64_t chunk = (p->rows + ranks - 1) / ranks;
      int64_t numel = p->rows * p->width, first = 0, end = numel;
      if (!(p->what & together))
        continue;
      if (s->layout == FLAT) {
        at = round_up(at, s->views ? 16 / (stores == 4 || what == NORMS ? 4 : 2) : 1);
        if (!s->views && (i == n - 1 || !(pieces[i + 1].what & together)))
          numel = share * ranks - at; /* the one leaf of a flat parameter has its padding */
        first = CLAMP(share * rank - at, 0, numel);
        end = CLAMP(share * (rank + 1) - at, 0, numel);
        at += numel;
      } else if (s->layout == ROWS) {
        first = MIN(chunk * rank, p->rows) * p->width;
        end = MIN(chunk * (rank + 1), p->rows) * p->width;
      }
      sum += p->what == what ? end - first : 0;
    }
  }
  return sum;
}

/* A type's part of a unit, as lines of cache. */
static void add_unit(const strategy *s, int ranks, int unit, int what, int size, formula *f, int64_t *region, int64_t *gradient)
{
  const group g = group_of(s, ranks, unit, what, size);
  const int low = size == 2;
  const int64_t shard = round_up(g.shard * size, LINE), full = round_up(g.full * size, LINE);
  f->weights += shard;
  f->gradients += shard;
  *region += full;
  *gradient += full;
  f->gathered[low] += g.count * ranks * size * (unit && !s->kept ? 2 : 1);
  f->reduced[low] += g.count * (s->layout == FLAT_REPLICAS ? 1 : ranks) * size;
}

static void sharded(const strategy *s, const level *l, int ranks, formula *f)
{
  int64_t turn = 0, root_gradient = 0, regions[2] = {0};
  for (int unit = 0; unit <= shape.layers; unit++) {
    int64_t region = 0, gradient = 0;
    if (l->stores == 4)
      add_unit(s, ranks, unit, MATRICES | NORMS, 4, f, &region, &gradient);
    else {
      add_unit(s, ranks, unit, MATRICES, l->stores, f, &region, &gradient);
      add_unit(s, ranks, unit, NORMS, 4, f, &region, &gradient);
    }
    if (unit)
      turn = MAX(turn, gradient);
    else
      root_gradient = gradient;
    regions[unit > 0] = round_up(region, PAGE);
  }
  f->weights_peak = f->weights;
  if (s->layout == FLAT_REPLICAS) {
    f->gathered[0] = f->gathered[1] = 0;
    return;
  }
  f->gradients += turn + root_gradient; /* one buffer for all units in turn, the root's own */
  f->weights_peak += regions[0] + regions[1] * (s->kept ? shape.layers : 2);
}

static formula formula_of(const strategy *s, const level *l, int ranks, int rank)
{
  formula f = {0};
  const int64_t matrices = owned(s, ranks, rank, l->stores, MATRICES), norms = owned(s, ranks, rank, l->stores, NORMS);
  if (s->layout == REPLICAS) {
    f.weights = matrices * l->stores + norms * 4;
    /* At the set-up: replicas are read in fp32, then converted one by one, the embedding first; none of the others is larger. */
    f.weights_peak = l->stores == 2 ? 4 * (matrices + norms) + 2 * shape.vocab * shape.hidden : f.weights;
    f.gradients = f.weights + (2 + 9 * shape.layers) * LINE; /* a bucket starts at a line of cache; at most one for each leaf */
    f.reduced[l->stores == 2] = matrices * l->stores;
    f.reduced[0] += norms * 4;
  } else
    sharded(s, l, ranks, &f);
  f.optimizer = 8 * (matrices + norms) + (l->stores == 2 ? 8 * matrices : 0); /* two moments; master and its gradient */
  return f;
}

/* ---- measurement ---- */

static void stop(const rig *r, const char *doing)
{
  fprintf(stderr, "rank %d: %s failed\n", r->comm->rank, doing);
  ordo_context_print_errors(r->context, stderr);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void check(rig *r, const level *l, const char *what, int64_t value, int64_t expected)
{
  const int good = value == expected;
  if (!good || r->comm->rank == 0)
    printf("%-4s %-40s %d ranks  %-5s %-32s %9" G_GINT64_FORMAT " of %9" G_GINT64_FORMAT " (rank %d)\n", good ? "ok" : "FAIL",
           r->strategy->name, r->comm->size, l->name, what, value, expected, r->comm->rank);
  r->failed += !good;
}

static uint64_t begin(void *ctx, const char *comm, const ordo_comm *ranks, const ordo_collective *c)
{
  watch *w = ctx;
  const int low = c->dtype == ORDO_F16 || c->dtype == ORDO_BF16;
  (void)comm;
  if (ranks->size > 1 && (c->dtype == ORDO_F32 || low))
    w->bytes[c->kind][low] += ordo_comm_tap_bytes(ranks, c);
  return 0;
}

static void end(void *ctx, uint64_t id)
{
  (void)ctx, (void)id;
}

static ordo_embed *open_embed(rig *r, const ordo_plan *plan, const ordo_comm_provider *comm, int accumulates)
{
  ordo_embed *embed = NULL;
  ordo_embed_options o = {.context = r->context,
                          .plan = plan,
                          .comm = comm,
                          .weights = r->weights,
                          .train = 1,
                          .batch = 12,
                          .micro_batch = accumulates ? 1 : 0,
                          .seq_len = SEQ,
                          .max_grad_norm = 1.0};
  o.optimizer = (ordo_leaf_optimizer_options){0, 1e-3, 0.9, 0.95, 1e-8, 0.0, 0.0};
  o.schedule = (struct schedule){SCHEDULE_CONSTANT, 1e-3, 1.0, 0, 100};
  if (ordo_embed_create(&o, &embed) != ORDO_OK)
    stop(r, "the set-up");
  return embed;
}

/* Bytes of a kind that the communicators counted in the last step. */
static int64_t counted(const ordo_estimate_rank *real, int kind)
{
  uint64_t bytes = 0;
  for (int i = 0; i < real->n_comm; i++)
    bytes += real->comm[i].last.bytes[kind];
  return (int64_t)bytes;
}

/* What the tap saw in all steps has to be the same every step, and what the communicators counted but for counts, votes and norms. */
static void check_wire(rig *r, const level *l, const formula *f, const watch *w, const ordo_estimate_rank *real)
{
  const int reduces = r->strategy->layout == REPLICAS || r->strategy->layout == FLAT_REPLICAS ? ORDO_ALL_REDUCE : ORDO_REDUCE_SCATTER;
  check(r, l, "gradients, fp32 elements", w->bytes[reduces][0], STEPS * f->reduced[0]);
  check(r, l, "gradients, 16-bit elements", w->bytes[reduces][1], STEPS * f->reduced[1]);
  check(r, l, "all-gathers, fp32 elements", w->bytes[ORDO_ALL_GATHER][0], STEPS * f->gathered[0]);
  check(r, l, "all-gathers, 16-bit elements", w->bytes[ORDO_ALL_GATHER][1], STEPS * f->gathered[1]);
  int64_t more[2] = {counted(real, reduces) - f->reduced[0] - f->reduced[1],
                     counted(real, ORDO_ALL_GATHER) - f->gathered[0] - f->gathered[1]};
  for (int i = 0; i < 2; i++)
    check(r, l, i ? "all-gathers as counted" : "gradients as counted",
          reduces == ORDO_ALL_REDUCE && more[i] > 0 && more[i] <= HOUSEKEEPING ? 0 : more[i], 0);
}

static void check_memory(rig *r, const level *l, const formula *f, const ordo_estimate_rank *real)
{
  check(r, l, "weights", real->now[ORDO_MEM_WEIGHTS], f->weights);
  check(r, l, "weights at the peak", real->peak[ORDO_MEM_WEIGHTS], f->weights_peak);
  check(r, l, "gradients", real->peak[ORDO_MEM_GRADIENTS], f->gradients);
  check(r, l, "optimizer with masters", real->peak[ORDO_MEM_OPTIMIZER], f->optimizer);
  const int64_t others = real->now[ORDO_MEM_ACTIVATIONS] + real->now[ORDO_MEM_COMM] + real->now[ORDO_MEM_OTHER];
  if (r->strategy->layout == REPLICAS) /* the peak of a model as small as this one is a buffer of the set-up */
    check(r, l, "weights, gradients, optimizer", real->now[ORDO_N_MEM_TAGS] - others, f->weights + f->gradients + f->optimizer);
  else
    check(r, l, "the same at the peak", real->peak[ORDO_N_MEM_TAGS] - others, f->weights_peak + f->gradients + f->optimizer);
}

/* Gradients over several micro-batches: the sum of a replica is the gradient of its master; shards need a whole sum in fp32 for what has 16
 * bits, and every unit a whole gradient of its own. */
static void check_accumulation(rig *r, const level *l, formula f, const ordo_estimate_rank *real)
{
  const int ranks = r->comm->size;
  const int sharding = r->strategy->layout == FLAT || r->strategy->layout == ROWS;
  const strategy whole = {.layout = REPLICAS};
  if (sharding && l->stores == 2)
    f.gradients += 4 * owned(&whole, 1, 0, 4, MATRICES);
  for (int unit = 1; sharding && unit <= shape.layers; unit++)
    if (l->stores == 4)
      f.gradients += round_up(group_of(r->strategy, ranks, unit, MATRICES | NORMS, 4).full * 4, LINE);
    else
      f.gradients += round_up(group_of(r->strategy, ranks, unit, MATRICES, 2).full * 2, LINE) +
                     round_up(group_of(r->strategy, ranks, unit, NORMS, 4).full * 4, LINE);
  check(r, l, "gradients, accumulating", real->peak[ORDO_MEM_GRADIENTS], f.gradients);
}

static void run(rig *r, const level *l, int accumulates)
{
  const ordo_plan_request request = {
      .struct_size = sizeof request, .strategy = r->strategy->name, .precision = l->precision, .ranks = r->comm->size};
  const formula f = formula_of(r->strategy, l, r->comm->size, r->comm->rank);
  watch w = {0};
  const ordo_comm_observer observer = {&w, begin, end};
  ordo_comm_provider *tap = ordo_comm_tap_new(r->comm, &observer);
  ordo_estimate_rank real = {0};
  ordo_plan *plan = NULL;
  if (ordo_plan_create(r->context, &request, &plan) != ORDO_OK)
    stop(r, "the plan");
  ordo_embed *embed = open_embed(r, plan, tap, accumulates);
  memset(&w, 0, sizeof w);
  if (ordo_estimate_read(embed, &r->data, STEPS, &real) != ORDO_OK)
    stop(r, "the steps");
  if (accumulates)
    check_accumulation(r, l, f, &real);
  else {
    check_memory(r, l, &f, &real);
    check_wire(r, l, &f, &w, &real);
  }
  ordo_estimate_clear(&real);
  ordo_embed_destroy(embed);
  ordo_plan_destroy(plan);
  ordo_comm_provider_destroy(tap);
}

/* What it comes to, from formulas that were checked: a half, and what norms and padding add. */
static void print_halves(rig *r)
{
  const formula whole = formula_of(r->strategy, &levels[0], r->comm->size, 0), half = formula_of(r->strategy, &levels[1], r->comm->size, 0);
  const int peaks = r->strategy->layout != REPLICAS; /* of replicas at the set-up, when there is no optimizer */
  const int64_t all[2] = {(peaks ? whole.weights_peak : whole.weights) + whole.gradients + whole.optimizer,
                          (peaks ? half.weights_peak : half.weights) + half.gradients + half.optimizer};
  const int64_t bytes[2] = {whole.reduced[0] + whole.gathered[0], half.reduced[0] + half.gathered[0] + half.reduced[1] + half.gathered[1]};
  if (r->comm->rank == 0)
    printf("     %-40s %d ranks  weights and gradients %.4f of fp32, with optimizer %.4f, bytes of a step %.4f\n", r->strategy->name,
           r->comm->size, (double)(half.weights + half.gradients) / (double)(whole.weights + whole.gradients),
           (double)all[1] / (double)all[0], (double)bytes[1] / (double)bytes[0]);
}

static void open_data(rig *r)
{
  char text[2000];
  for (size_t i = 0; i < sizeof text; i++)
    text[i] = (char)('a' + i * i % 23);
  if (!token_data_open(&r->data, text, sizeof text, "text", shape.vocab, SEQ))
    stop(r, "opening the data");
}

int main(int argc, char **argv)
{
  rig r = {0};
  const ordo_context_options context = {.struct_size = sizeof context, .program_name = "ordo-halves"};
  int all = 0;
  for (size_t i = 0; i < G_N_ELEMENTS(strategies); i++)
    if (argc == 3 && strcmp(argv[2], strategies[i].name) == 0)
      r.strategy = &strategies[i];
  if (!r.strategy) {
    fprintf(stderr, "usage: ordo-halves --strategy S, one of the table in halves.c\n");
    return 2;
  }
  if (ordo_context_create(&context, &r.context) != ORDO_OK || ordo_comm_mpi_create(r.context, MPI_COMM_NULL, NULL, &r.comm) != ORDO_OK)
    stop(&r, "the start");
  r.weights = ordo_weights_fresh(&shape, 1, 0.02);
  open_data(&r);
  for (size_t i = 0; i < G_N_ELEMENTS(levels); i++)
    for (int accumulates = 0; accumulates < 2; accumulates++)
      run(&r, &levels[i], accumulates);
  print_halves(&r);
  MPI_Allreduce(&r.failed, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  ordo_data_clear(&r.data);
  ordo_weights_free(r.weights);
  ordo_comm_provider_destroy(r.comm);
  ordo_context_destroy(r.context);
  return all > 0;
}
