/* levels.c - `mpirun -n N ordo-levels --strategy S [--heads Q,K]`: every opt level of apex_amp under one strategy, against one rank.
 *
 * A level trains the same batch for a few steps of SGD on N ranks and on one. The loss must fall, and losses and weights must agree within
 * roundings of the level's type (see gates). One rank then makes its gradient infinite: every rank skips, and the scale is one again on
 * all. Bytes of collectives are counted by element type: what was fp32 is exactly half of it in 16 bits. Exit code 1 if anything is off.
 */
#include "comm_tap.h"
#include "embed.h"
#include "random.h"
#include "save.h"
#include "token_data.h"

#include <math.h>
#include <mpi.h>
#include <ordo/mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 8, BATCH = 12, SEQ = 16, VOCAB = 259 };
#define RATE 0.05

typedef struct level {
  const char *name, *precision;
  double unit; /* roundoff of its 16-bit type; 0: fp32 */
  int stores;  /* bytes of a stored matrix element */
  int norms;   /* of a norm's */
  int scales;  /* it has a loss scaler */
} level;

static const level levels[] = {
    {"O0", "apex_amp:O0", 0.0, 4, 4, 0},
    {"O1", "apex_amp:O1:init_scale=1024", 0x1p-11, 4, 4, 1},
    {"O2", "apex_amp:O2:init_scale=1024", 0x1p-11, 2, 4, 1},
    {"O3", "apex_amp:O3", 0x1p-11, 2, 2, 0},
    {"O4", "apex_amp:O4", 0x1p-8, 4, 4, 0},
    {"O5", "apex_amp:O5", 0x1p-8, 2, 4, 0},
};

typedef struct run {
  double loss[STEPS];
  float *before, *first, *weights; /* at the start, after the first step, at the end */
  int64_t n;
  double bytes[2][2]; /* of collectives in the last step: of data axes, of tp; fp32 elements, 16-bit elements */
} run;

typedef struct watch {
  double bytes[2][2];
  int armed; /* the next gradient that this rank sends is infinite */
} watch;

typedef struct rig {
  ordo_context *context;
  ordo_comm_provider *comm;
  ordo_weights *weights;
  ordo_data data;
  const char *strategy;
  int heads, kv_heads, failed;
} rig;

static void stop(const rig *r, const char *doing)
{
  fprintf(stderr, "rank %d: %s failed\n", r->comm->rank, doing);
  ordo_context_print_errors(r->context, stderr);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void check(rig *r, int good, const char *at, const char *what, double value, double gate)
{
  if (!good || r->comm->rank == 0)
    printf("%-4s %s %d ranks  %-3s %-28s %10.3g of %g (rank %d)\n", good ? "ok" : "FAIL", r->strategy, r->comm->size, at, what, value, gate,
           r->comm->rank);
  fflush(stdout);
  r->failed += !good;
}

static uint64_t begin(void *ctx, const char *comm, const ordo_comm *ranks, const ordo_collective *c)
{
  watch *w = ctx;
  const int low = c->dtype == ORDO_F16 || c->dtype == ORDO_BF16;
  const int sums = c->kind == ORDO_ALL_REDUCE || c->kind == ORDO_REDUCE_SCATTER;
  if (ranks->size > 1 && (c->dtype == ORDO_F32 || low))
    w->bytes[strcmp(comm, "tp") == 0][low] += (double)ordo_comm_tap_bytes(ranks, c);
  if (w->armed && sums && (low || c->dtype == ORDO_F32)) {
    void *first = (char *)(uintptr_t)c->send + (c->n_pieces > 0 ? (size_t)c->pieces->full_offset * ordo_dtype_size(c->dtype) : 0);
    if (c->dtype == ORDO_F32)
      memcpy(first, &(float){INFINITY}, sizeof(float));
    else
      memcpy(first, &(uint16_t){c->dtype == ORDO_F16 ? 0x7c00 : 0x7f80}, sizeof(uint16_t));
    w->armed = 0;
  }
  return 0;
}

static void end(void *ctx, uint64_t id)
{
  (void)ctx, (void)id;
}

static float *collect(const rig *r, ordo_embed *embed, int64_t *n)
{
  const ordo_model *model = ordo_embed_model(embed);
  float *weights;
  *n = 0;
  for (uint32_t p = 0; p < model->n_params; p++)
    *n += ordo_save_has_param(model, model->params[p]) ? model->params[p]->numel : 0;
  weights = g_new(float, (gsize)*n);
  for (int64_t p = 0, at = 0; p < model->n_params; p++)
    if (ordo_save_has_param(model, model->params[p])) {
      if (ordo_embed_gather(embed, model->params[p], ORDO_GATHER_WEIGHT, weights + at) != ORDO_OK)
        stop(r, "gathering weights");
      at += model->params[p]->numel;
    }
  return weights;
}

static ordo_embed *open_embed(rig *r, const ordo_plan *plan, const ordo_comm_provider *comm, int micro, int ranks)
{
  ordo_embed *embed = NULL;
  ordo_embed_options options = {.context = r->context,
                                .plan = plan,
                                .comm = comm,
                                .weights = r->weights,
                                .train = 1,
                                .batch = BATCH,
                                .micro_batch = micro ? (ranks > 1 ? 1 : 4) : 0,
                                .seq_len = SEQ,
                                .max_grad_norm = 1.0,
                                .drift_interval = 1,
                                .seed = 1};
  options.optimizer = (ordo_leaf_optimizer_options){1, RATE, 0.9, 0.95, 1e-8, 0.0, 0.0};
  options.schedule = (struct schedule){SCHEDULE_CONSTANT, RATE, 1.0, 0, 1000};
  if (ordo_embed_create(&options, &embed) != ORDO_OK)
    stop(r, "the set-up");
  return embed;
}

/* Weights and gradients of this rank's leaves take what the level stores. */
static void check_storage(rig *r, const level *l, ordo_embed *embed)
{
  const ordo_model *model = ordo_embed_model(embed);
  for (uint32_t i = 0; i < model->n_leaves; i++) {
    const ordo_leaf *leaf = model->leaves[i];
    const int bytes = leaf->params[0]->flags & ORDO_PARAM_NORM ? l->norms : l->stores;
    if ((int)ordo_dtype_size(leaf->dtype) != bytes || (int)ordo_dtype_size(leaf->grad_dtype) != bytes ||
        (leaf->master != NULL) != (bytes == 2 && l->norms == 4) || (leaf->master && leaf->master->numel != leaf->numel))
      check(r, 0, l->name, leaf->name, (double)ordo_dtype_size(leaf->dtype), bytes);
  }
}

/* The last rank makes one gradient infinite. */
static void overflow_one_rank(rig *r, const level *l, ordo_embed *embed, watch *w)
{
  ordo_step_outcome outcome;
  double scale[2], most[2];
  int64_t n;
  g_autofree float *before = collect(r, embed, &n);
  w->armed = r->comm->rank == r->comm->size - 1;
  if (ordo_embed_step(embed, &r->data, 0, 0, NULL, NULL, &outcome) != ORDO_OK)
    stop(r, "the step with an overflow");
  check(r, outcome.result.skipped == 1 && !w->armed, l->name, "overflow of one rank is skipped", outcome.result.skipped, 1.0);
  g_autofree float *after = collect(r, embed, &n);
  check(r, memcmp(before, after, (size_t)n * sizeof *after) == 0, l->name, "and changes nothing", 0.0, 0.0);
  if (ordo_embed_step(embed, &r->data, 0, 0, NULL, NULL, &outcome) != ORDO_OK)
    stop(r, "the step after an overflow");
  scale[0] = outcome.result.loss_scale;
  scale[1] = -outcome.result.loss_scale;
  MPI_Allreduce(scale, most, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  check(r, most[0] == -most[1] && most[0] == 512.0, l->name, "one scale on all ranks, halved", most[0], 512.0);
}

static void train(rig *r, const level *l, int alone, int micro, run *out)
{
  const ordo_plan_request request = {
      .struct_size = sizeof request, .strategy = alone ? NULL : r->strategy, .precision = l->precision, .ranks = alone ? 1 : r->comm->size};
  watch w = {0};
  const ordo_comm_observer observer = {&w, begin, end};
  ordo_comm_provider *tap = alone ? NULL : ordo_comm_tap_new(r->comm, &observer);
  ordo_plan *plan = NULL;
  if (ordo_plan_create(r->context, &request, &plan) != ORDO_OK)
    stop(r, "the plan");
  ordo_embed *embed = open_embed(r, plan, tap, micro, alone ? 1 : r->comm->size);
  out->before = collect(r, embed, &out->n);
  for (int step = 0; step < STEPS; step++) {
    ordo_step_outcome outcome;
    memset(w.bytes, 0, sizeof w.bytes);
    if (ordo_embed_step(embed, &r->data, 0, 0, NULL, NULL, &outcome) != ORDO_OK)
      stop(r, "a step");
    out->loss[step] = outcome.loss;
    if (step == 0)
      out->first = collect(r, embed, &out->n);
    if (outcome.result.skipped)
      check(r, 0, l->name, "no step is skipped", step, 0.0);
  }
  memcpy(out->bytes, w.bytes, sizeof w.bytes);
  out->weights = collect(r, embed, &out->n);
  if (!alone)
    check_storage(r, l, embed);
  if (!alone && l->scales && r->comm->size > 1 && !micro)
    overflow_one_rank(r, l, embed, &w);
  ordo_embed_destroy(embed);
  ordo_plan_destroy(plan);
  ordo_comm_provider_destroy(tap);
}

/* The first update starts from the same weights, so it can be bounded, in units of the type's roundoff.
 *  - 16-bit gradients: each of N ranks rounds its own and the sum is rounded again, instead of once on one rank. Errors are relative to the
 *    summands, whose sizes are sqrt(N) of the sum's where they cancel: 2 + sqrt(N).
 *  - Roundings of activations are the same on any number of ranks, with two exceptions: under tp the products that lead to them are sums of
 *    parts, and with bf16 one rank divides by the count of tokens before backward, several after it, so gradients of activations are
 *    rounded at another scale. Each of the two operands of a weight's gradient may then be off by a unit on either side: 4.
 *  - Weights that are stored in 16 bits without a master may fall on the next value: 2 units of the weight, not of its update.
 *  - fp32 sums in another order: the gates of parity.h for SGD.
 * Losses: an update that is off by that part changes the loss by that part of its way down at most, and the way is short here; the forward
 * pass of equal weights is equal but for tp's sums. One unit of the loss is more than both. */
static void compare(rig *r, const level *l, const run *one, const run *many, int micro)
{
  const int tp = strstr(r->strategy, "tp") != NULL, bf16 = l->unit == 0x1p-8;
  const double rounds = (l->stores == 2 ? 2.0 + sqrt(r->comm->size) : 0.0) + (tp || bf16 ? 4.0 : 0.0);
  const double gate = l->unit > 0.0 ? l->unit : 1e-5;
  double wrong = 0.0, moved = 0.0, weights = 0.0, loss = 0.0, update;
  for (int64_t i = 0; i < one->n; i++) {
    double difference = (double)many->first[i] - (double)one->first[i], step = (double)one->first[i] - (double)one->before[i];
    wrong += difference * difference;
    moved += step * step;
    weights += (double)one->first[i] * (double)one->first[i];
  }
  update = fmax(rounds * l->unit, 2e-4) + (l->norms == 2 ? 2.0 * l->unit * sqrt(weights / moved) : 0.0);
  for (int step = 0; step < STEPS; step++)
    loss = fmax(loss, fabs(many->loss[step] - one->loss[step]) / one->loss[step]);
  check(r, sqrt(wrong / moved) <= update, l->name, micro ? "first update, accumulating" : "first update", sqrt(wrong / moved), update);
  check(r, loss <= gate, l->name, micro ? "loss, accumulating" : "loss", loss, gate);
  check(r, many->loss[STEPS - 1] < 0.95 * many->loss[0], l->name, "falls", many->loss[STEPS - 1] / many->loss[0], 0.95);
}

/* On data axes, elements that travel as fp32 at O0 travel in the level's type: with fp32 norms the counts of both add up, without them it
 * is half. Where weights and gradients stay fp32 nothing changes. What tp sums and gathers are activations, which are fp32 at every level;
 * of gradients only those of norms (sequence parallel), in the norm's type. */
static void check_bytes(rig *r, const level *l, const run *whole, const run *many)
{
  const double *data = many->bytes[0], *tp = many->bytes[1];
  const int splits = strstr(r->strategy, "tp") != NULL, alone = splits && strchr(r->strategy, '+') == NULL;
  if (r->comm->size == 1)
    return;
  check(r, 2.0 * data[1] + data[0] == whole->bytes[0][0] && (l->stores == 4 || alone ? data[1] == 0.0 : data[1] > data[0]), l->name,
        "bytes", 2.0 * data[1] + data[0], whole->bytes[0][0]);
  check(r, 2.0 * tp[1] + tp[0] == whole->bytes[1][0] && (tp[0] > 0.0) == splits && (l->norms == 2 || tp[1] == 0.0), l->name, "bytes of tp",
        2.0 * tp[1] + tp[0], whole->bytes[1][0]);
  if (l->norms == 2)
    check(r, data[0] == 0.0, l->name, "bytes of fp32", data[0], 0.0);
}

static void run_clear(run *a)
{
  g_free(a->weights);
  g_free(a->before);
  g_free(a->first);
}

static void run_all(rig *r)
{
  run whole[2] = {0};
  for (size_t i = 0; i < G_N_ELEMENTS(levels); i++)
    for (int micro = 0; micro < 2; micro++) {
      run one = {0}, many = {0};
      train(r, &levels[i], 1, micro, &one);
      train(r, &levels[i], 0, micro, &many);
      compare(r, &levels[i], &one, &many, micro);
      if (i == 0)
        whole[micro] = many;
      else {
        check_bytes(r, &levels[i], &whole[micro], &many);
        run_clear(&many);
      }
      run_clear(&one);
    }
  run_clear(&whole[0]);
  run_clear(&whole[1]);
}

/* Ids of a file: BATCH sequences, with some order in them to learn. */
static void open_data(rig *r)
{
  uint8_t text[BATCH * SEQ + 1];
  for (size_t i = 0; i < sizeof text; i++)
    text[i] = (uint8_t)(1 + (i * i + i / 7) % 29);
  if (!token_data_open(&r->data, text, sizeof text, "bytes", VOCAB, SEQ))
    stop(r, "opening the data");
}

int main(int argc, char **argv)
{
  rig r = {.strategy = "none", .heads = 4, .kv_heads = 2};
  const ordo_context_options context = {.struct_size = sizeof context, .program_name = "ordo-levels"};
  int all = 0;
  for (int i = 1; i + 1 < argc; i += 2)
    if (strcmp(argv[i], "--strategy") == 0)
      r.strategy = argv[i + 1];
    else if (strcmp(argv[i], "--heads") == 0 && sscanf(argv[i + 1], "%d,%d", &r.heads, &r.kv_heads) != 2)
      return 2;
  if (ordo_context_create(&context, &r.context) != ORDO_OK || ordo_comm_mpi_create(r.context, MPI_COMM_NULL, NULL, &r.comm) != ORDO_OK)
    stop(&r, "the start");
  const struct llama_config model = {VOCAB, 32, 64, 2, r.heads, r.kv_heads, 32 / r.heads, 64, 1e-5, 10000.0, 1};
  r.weights = ordo_weights_fresh(&model, 5, 0.08);
  open_data(&r);
  run_all(&r);
  MPI_Allreduce(&r.failed, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  ordo_data_clear(&r.data);
  ordo_weights_free(r.weights);
  ordo_comm_provider_destroy(r.comm);
  ordo_context_destroy(r.context);
  return all > 0;
}
