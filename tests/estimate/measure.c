/* measure.c - an estimate against the job that it is of: every rank trains for real, then estimates itself, and compares.
 *
 * mpirun -n N ordo-measure --strategy E [--precision P] [--kv-heads N] [--no-decay] [--print]
 *
 * Calls and payload must be equal for every axis, kind and phase, memory must be equal for every tag, and leaves must have the same shapes:
 * the same code allocates and sends in both, so there is nothing to tolerate. The variants are what changes messages and memory:
 * accumulation, a rank without sequences, another optimizer, recomputation.
 */
#include "estimate.h"
#include "../parity/token_data.h"

#include <mpi.h>
#include <ordo/mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = 16, STEPS = 3 };

typedef struct variant {
  const char *name;
  int64_t batch, micro_batch;
  int sgd, checkpointing;
  uint32_t ordered, drift_interval;
} variant;

static const variant variants[] = {
    {"plain", 8, 0, 0, 0, 0, 0},
    {"accumulating", 24, 2, 0, 0, 0, 0},
    {"fewer sequences than ranks", 1, 0, 0, 0, 0, 0},
    {"sgd, recomputing, ordered, drift check", 8, 0, 1, 1, 1, 2},
};

static const struct llama_config model = {.vocab = 259,
                                          .hidden = 48,
                                          .intermediate = 88,
                                          .layers = 3,
                                          .heads = 4,
                                          .kv_heads = 4,
                                          .head_dim = 12,
                                          .max_positions = 64,
                                          .rms_eps = 1e-5,
                                          .rope_theta = 10000.0,
                                          .tied = 1};

typedef struct rig {
  ordo_context *context;
  ordo_comm_provider *comm;
  ordo_plan *plan;
  ordo_weights *weights;
  ordo_data data;
  int print;
  double decay;
} rig;

static void die(const rig *r, const char *doing)
{
  fprintf(stderr, "rank %d: %s failed\n", r->comm ? r->comm->rank : -1, doing);
  if (r->context)
    ordo_context_print_errors(r->context, stderr);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static ordo_embed_options options_of(const rig *r, const variant *v)
{
  ordo_embed_options o = {.context = r->context,
                          .plan = r->plan,
                          .comm = r->comm,
                          .weights = r->weights,
                          .train = 1,
                          .batch = v->batch,
                          .micro_batch = v->micro_batch,
                          .seq_len = SEQ,
                          .max_grad_norm = 1.0,
                          .ordered = v->ordered,
                          .drift_interval = v->drift_interval,
                          .checkpointing = v->checkpointing};
  o.optimizer = (ordo_leaf_optimizer_options){v->sgd, 1e-2, 0.9, 0.95, 1e-8, r->decay, 0.9};
  o.schedule = (struct schedule){SCHEDULE_CONSTANT, 1e-2, 1.0, 0, 100};
  return o;
}

static int compare_stats(const ordo_estimate_rank *rank, const char *axis, const char *phase, const ordo_comm_stats *real,
                         const ordo_comm_stats *dry)
{
  int wrong = 0;
  for (int kind = 0; kind < 16; kind++) {
    if (real->calls[kind] == dry->calls[kind] && real->bytes[kind] == dry->bytes[kind])
      continue;
    fprintf(stderr,
            "rank %d, %s, %s, kind %d: measured %" G_GUINT64_FORMAT " calls, %" G_GUINT64_FORMAT " bytes; estimated %" G_GUINT64_FORMAT
            ", %" G_GUINT64_FORMAT "\n",
            rank->rank, axis, phase, kind, real->calls[kind], real->bytes[kind], dry->calls[kind], dry->bytes[kind]);
    wrong++;
  }
  return wrong;
}

static int compare_memory(const ordo_estimate_rank *real, const ordo_estimate_rank *dry)
{
  int wrong = 0;
  for (uint32_t tag = 0; tag <= ORDO_N_MEM_TAGS; tag++) {
    const int64_t pairs[2][2] = {{real->peak[tag], dry->peak[tag]}, {real->now[tag], dry->now[tag]}};
    for (int i = 0; i < 2; i++) {
      if (pairs[i][0] == pairs[i][1])
        continue;
      fprintf(stderr, "rank %d, memory tag %u, %s: measured %" G_GINT64_FORMAT ", estimated %" G_GINT64_FORMAT "\n", real->rank, tag,
              i ? "after the steps" : "peak", pairs[i][0], pairs[i][1]);
      wrong++;
    }
  }
  return wrong;
}

static int compare_shapes(const ordo_estimate_rank *real, const ordo_estimate_rank *dry)
{
  int wrong = real->shapes->len != dry->shapes->len;
  for (guint i = 0; !wrong && i < real->shapes->len; i++) {
    const ordo_estimate_shape *a = g_ptr_array_index(real->shapes, i), *b = g_ptr_array_index(dry->shapes, i);
    wrong = strcmp(a->name, b->name) != 0 || strcmp(a->whole, b->whole) != 0 || strcmp(a->here, b->here) != 0 || a->count != b->count;
  }
  if (wrong)
    fprintf(stderr, "rank %d: leaves differ\n", real->rank);
  return wrong;
}

static int64_t payload(const ordo_estimate_rank *rank)
{
  uint64_t bytes = 0;
  for (int i = 0; i < rank->n_comm; i++)
    for (int kind = 0; kind < 16; kind++)
      bytes += rank->comm[i].last.bytes[kind];
  return (int64_t)bytes;
}

/* For benchmarks: what was compared, of this rank. */
static void print_pair(const rig *r, const variant *v, const ordo_estimate_rank *real, const ordo_estimate_rank *dry)
{
  if (!r->print || real->rank != 0)
    return;
  printf("%-40s payload a step %10" G_GINT64_FORMAT " / %" G_GINT64_FORMAT ", peak memory %10" G_GINT64_FORMAT " / %" G_GINT64_FORMAT
         " (measured / estimated)\n",
         v->name, payload(real), payload(dry), real->peak[ORDO_N_MEM_TAGS], dry->peak[ORDO_N_MEM_TAGS]);
}

static int compare(const rig *r, const variant *v)
{
  ordo_embed_options o = options_of(r, v);
  ordo_embed *embed = NULL;
  ordo_estimate_rank real = {0}, dry = {0};
  int wrong = 0;
  if (ordo_embed_create(&o, &embed) != ORDO_OK)
    die(r, v->name);
  if (ordo_estimate_read(embed, &r->data, STEPS, &real) != ORDO_OK)
    die(r, v->name);
  ordo_embed_destroy(embed);
  if (ordo_estimate_run(&o, r->comm->rank, r->comm->size, STEPS, &dry) != ORDO_OK)
    die(r, "the estimate");
  wrong += real.n_comm != dry.n_comm;
  for (int i = 0; i < real.n_comm && !wrong; i++) {
    wrong += compare_stats(&real, real.comm[i].name, "set-up", &real.comm[i].setup, &dry.comm[i].setup);
    wrong += compare_stats(&real, real.comm[i].name, "first step", &real.comm[i].first, &dry.comm[i].first);
    wrong += compare_stats(&real, real.comm[i].name, "last step", &real.comm[i].last, &dry.comm[i].last);
  }
  wrong += compare_memory(&real, &dry);
  wrong += compare_shapes(&real, &dry);
  if (payload(&real) == 0 && r->comm->size > 1) {
    fprintf(stderr, "rank %d: nothing was measured\n", real.rank);
    wrong++;
  }
  print_pair(r, v, &real, &dry);
  if (wrong)
    fprintf(stderr, "rank %d, variant '%s': %d differences\n", real.rank, v->name, wrong);
  ordo_estimate_clear(&real);
  ordo_estimate_clear(&dry);
  return wrong;
}

static void open_data(rig *r)
{
  char text[2000];
  for (size_t i = 0; i < sizeof text; i++)
    text[i] = (char)('a' + i * i % 23);
  if (!token_data_open(&r->data, text, sizeof text, "text", model.vocab, SEQ))
    die(r, "opening the data");
}

int main(int argc, char **argv)
{
  rig r = {.decay = 0.1};
  const ordo_context_options context = {.struct_size = sizeof context, .program_name = "ordo-measure"};
  ordo_plan_request request = {.struct_size = sizeof request};
  struct llama_config grouped = model;
  int wrong = 0, all = 0;
  for (int i = 1; i < argc; i++) {
    request.strategy = strcmp(argv[i], "--strategy") == 0 && i + 1 < argc ? argv[++i] : request.strategy;
    if (strcmp(argv[i], "--kv-heads") == 0 && i + 1 < argc)
      grouped.kv_heads = atoi(argv[++i]);
    request.precision = strcmp(argv[i], "--precision") == 0 && i + 1 < argc ? argv[++i] : request.precision;
    r.print |= strcmp(argv[i], "--print") == 0;
    r.decay = strcmp(argv[i], "--no-decay") == 0 ? 0.0 : r.decay;
  }
  if (ordo_context_create(&context, &r.context) != ORDO_OK || ordo_comm_mpi_create(r.context, MPI_COMM_NULL, NULL, &r.comm) != ORDO_OK)
    die(&r, "the start");
  request.ranks = r.comm->size;
  if (ordo_plan_create(r.context, &request, &r.plan) != ORDO_OK)
    die(&r, "the plan");
  r.weights = ordo_weights_fresh(&grouped, 1, 0.02);
  open_data(&r);
  for (size_t i = 0; i < G_N_ELEMENTS(variants); i++)
    wrong += compare(&r, &variants[i]);
  MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  ordo_data_clear(&r.data);
  ordo_weights_free(r.weights);
  ordo_plan_destroy(r.plan);
  ordo_comm_provider_destroy(r.comm);
  ordo_context_destroy(r.context);
  return all ? 1 : 0;
}
