/* low_state.c - `mpirun -n N ordo-low-state --strategy S`: weights of 16 bits without masters, and the optimizer's state of them, out of a
 * session as fp32 and into another one.
 *
 * A job of AdamW trains two steps and is exported as whole tensors and as chunks, which must say the same. Weights are values that the type
 * has; moments are not, since they are fp32 whatever the weights are. A second job of the strategy imports, by chunks or whole, says the
 * same again and trains on with the same bits; so does a third on one rank without a strategy, as far as the import. Exit code 1 if not.
 */
#include "embed.h"
#include "pieces.h"
#include "random.h"
#include "save.h"
#include "token_data.h"

#include <mpi.h>
#include <ordo/half.h>
#include <ordo/mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 12, SEQ = 16, VOCAB = 259, SLOTS = 3, STEPS = 2 }; /* slots: weight, exp_avg, exp_avg_sq */

typedef struct rig {
  ordo_context *context;
  ordo_comm_provider *comm;
  ordo_weights *weights;
  ordo_data data;
  const char *strategy, *precision;
  ordo_dtype dtype;
  int failed;
} rig;

typedef struct job {
  ordo_plan *plan;
  ordo_embed *embed;
  ordo_session *session;
  const ordo_model *model;
} job;

/* Whole tensors of a job, by parameter and slot. */
typedef struct dictionary {
  uint32_t n;
  float **values;
  int64_t *updates;
} dictionary;

static void stop(const rig *r, const char *doing)
{
  fprintf(stderr, "rank %d, %s, %s: %s failed\n", r->comm->rank, r->strategy, r->precision, doing);
  ordo_context_print_errors(r->context, stderr);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void ok(const rig *r, ordo_status status, const char *doing)
{
  if (status != ORDO_OK)
    stop(r, doing);
}

static void check(rig *r, int good, const char *what, const char *name)
{
  if (good)
    return;
  printf("FAIL %s, %s, rank %d: %s, %s\n", r->strategy, r->precision, r->comm->rank, what, name);
  fflush(stdout);
  r->failed++;
}

static float rounded(const rig *r, float value)
{
  return r->dtype == ORDO_BF16 ? ordo_f32_from_bf16(ordo_bf16_from_f32(value)) : ordo_f32_from_f16(ordo_f16_from_f32(value));
}

static void job_open(const rig *r, job *j, int alone)
{
  const ordo_plan_request request = {
      .struct_size = sizeof request, .strategy = alone ? NULL : r->strategy, .precision = r->precision, .ranks = alone ? 1 : r->comm->size};
  ok(r, ordo_plan_create(r->context, &request, &j->plan), "the plan");
  ordo_embed_options options = {.context = r->context,
                                .plan = j->plan,
                                .comm = alone ? NULL : r->comm,
                                .weights = r->weights,
                                .train = 1,
                                .batch = BATCH,
                                .micro_batch = 1,
                                .seq_len = SEQ,
                                .max_grad_norm = 1.0,
                                .ordered = 1,
                                .seed = 1};
  /* Steps are large beside a weight: an update below half a unit of its last place is lost. No decay: flat leaves need one hint. */
  options.optimizer = (ordo_leaf_optimizer_options){0, 0.01, 0.9, 0.95, 1e-8, 0.0, 0.0};
  options.schedule = (struct schedule){SCHEDULE_CONSTANT, 0.01, 1.0, 0, 1000};
  ok(r, ordo_embed_create(&options, &j->embed), "the set-up");
  j->session = ordo_embed_session(j->embed);
  j->model = ordo_embed_model(j->embed);
}

static void job_close(job *j)
{
  ordo_embed_destroy(j->embed);
  ordo_plan_destroy(j->plan);
}

static double train(rig *r, job *j)
{
  ordo_step_outcome outcome;
  ok(r, ordo_embed_step(j->embed, &r->data, 0, 0, NULL, NULL, &outcome), "a step");
  return outcome.loss;
}

static float **tensor(const dictionary *d, uint32_t param, int slot)
{
  return &d->values[param * SLOTS + (uint32_t)slot];
}

static void dictionary_export(const rig *r, const job *j, dictionary *d)
{
  d->n = j->model->n_params;
  d->values = g_new0(float *, d->n *SLOTS);
  d->updates = g_new0(int64_t, d->n);
  for (uint32_t p = 0; p < d->n; p++) {
    for (int s = 0; s < SLOTS; s++) {
      *tensor(d, p, s) = g_new0(float, (gsize)j->model->params[p]->numel);
      ok(r, ordo_session_export_param(j->session, j->model->params[p], s - 1, *tensor(d, p, s)), "export_param");
    }
    ok(r, ordo_session_export_updates(j->session, j->model->params[p], &d->updates[p]), "export_updates");
  }
}

static void dictionary_clear(dictionary *d)
{
  for (uint32_t i = 0; i < d->n * SLOTS; i++)
    g_free(d->values[i]);
  g_free(d->values);
  g_free(d->updates);
}

static void compare(rig *r, const job *j, const dictionary *a, const dictionary *b, const char *what)
{
  for (uint32_t p = 0; p < a->n; p++) {
    check(r, a->updates[p] == b->updates[p], "counts of updates differ", what);
    for (int s = 0; s < SLOTS; s++)
      check(r, memcmp(*tensor(a, p, s), *tensor(b, p, s), (size_t)j->model->params[p]->numel * sizeof(float)) == 0, what,
            j->model->params[p]->name);
  }
}

/* Elements of the chunk, packed as the session packs them: from and to whole tensors. */
static void pack(const ordo_chunk *chunk, float *whole, float *packed, int out)
{
  ordo_piece_run run;
  for (int64_t i = 0; ordo_piece_run_at(chunk, i, &run); i++) {
    float *in_chunk = packed + run.leaf_first - chunk->leaf_offset, *in_whole = whole + run.param_first;
    memcpy(out ? in_chunk : in_whole, out ? in_whole : in_chunk, (size_t)run.count * sizeof *packed);
  }
}

static void for_chunks(rig *r, const job *j, const dictionary *d, int import)
{
  for (uint32_t l = 0; l < j->model->n_leaves; l++)
    for (uint64_t c = 0; c < j->model->leaves[l]->placement->n_chunks; c++) {
      const ordo_leaf *leaf = j->model->leaves[l];
      const ordo_chunk *chunk = &leaf->placement->chunks[c];
      const size_t n = (size_t)ordo_chunk_numel(chunk);
      g_autofree float *wanted = g_new0(float, n + 1), *found = g_new0(float, n + 1);
      for (int s = 0; s < SLOTS; s++) {
        pack(chunk, *tensor(d, chunk->param->index, s), wanted, 1);
        if (import)
          ok(r, ordo_session_import_chunk(j->session, leaf, chunk, s - 1, wanted), "import_chunk");
        ok(r, ordo_session_export_chunk(j->session, leaf, chunk, s - 1, found), "export_chunk");
        check(r, memcmp(wanted, found, n * sizeof *found) == 0, "a chunk is not what the whole tensor is", leaf->name);
      }
    }
}

static void import(rig *r, const job *j, const dictionary *d, int by_chunks)
{
  if (by_chunks)
    for_chunks(r, j, d, 1);
  for (uint32_t p = 0; p < d->n; p++) {
    for (int s = 0; s < SLOTS && !by_chunks; s++)
      ok(r, ordo_session_import_param(j->session, j->model->params[p], s - 1, *tensor(d, p, s)), "import_param");
    ok(r, ordo_session_import_updates(j->session, j->model->params[p], d->updates[p]), "import_updates");
  }
  ok(r, ordo_session_resume_at(j->session, 0, STEPS, STEPS), "resume_at");
}

/* What leaves a job is what it holds: 16 bits of a weight, 32 of a moment. */
static void check_types(rig *r, const job *j, const dictionary *d)
{
  int64_t low[SLOTS] = {0}, all = 0;
  for (uint32_t l = 0; l < j->model->n_leaves; l++)
    check(r, j->model->leaves[l]->dtype == r->dtype && j->model->leaves[l]->master == NULL, "the leaf is not 16 bits alone",
          j->model->leaves[l]->name);
  for (uint32_t p = 0; p < d->n; p++)
    for (int64_t i = 0; i < j->model->params[p]->numel; i++, all++)
      for (int s = 0; s < SLOTS; s++)
        low[s] += (*tensor(d, p, s))[i] == rounded(r, (*tensor(d, p, s))[i]);
  check(r, low[0] == all, "weights are not those of the type", "export");
  check(r, low[1] < all / 2 && low[2] < all / 2, "moments were rounded to the type of weights", "export");
}

/* An fp32 value between two of the type goes to the nearest. */
static void check_rounding(rig *r, const job *j)
{
  const ordo_param *param = j->model->params[0];
  g_autofree float *values = g_new0(float, (gsize)param->numel), *back = g_new0(float, (gsize)param->numel);
  for (int64_t i = 0; i < param->numel; i++)
    values[i] = 1.0f + (float)i * 0x1p-14f;
  ok(r, ordo_session_import_param(j->session, param, -1, values), "import_param");
  ok(r, ordo_session_export_param(j->session, param, -1, back), "export_param");
  for (int64_t i = 0; i < param->numel; i++)
    if (back[i] != rounded(r, values[i])) {
      check(r, 0, "a weight was not rounded to nearest", param->name);
      return;
    }
}

static void run(rig *r)
{
  dictionary first = {0};
  job from, alone;
  job_open(r, &from, 0);
  for (int s = 0; s < STEPS; s++)
    train(r, &from);
  dictionary_export(r, &from, &first);
  check_types(r, &from, &first);
  for_chunks(r, &from, &first, 0);
  const double loss = train(r, &from);
  dictionary goal = {0};
  dictionary_export(r, &from, &goal);
  for (int by_chunks = 0; by_chunks < 2; by_chunks++) {
    job to;
    dictionary again = {0}, after = {0};
    job_open(r, &to, 0);
    import(r, &to, &first, by_chunks);
    dictionary_export(r, &to, &again);
    compare(r, &to, &first, &again, "what was imported");
    check(r, train(r, &to) == loss, "the loss after an import is another", "step");
    dictionary_export(r, &to, &after);
    compare(r, &to, &goal, &after, "a step after the import");
    if (by_chunks)
      check_rounding(r, &to);
    dictionary_clear(&again);
    dictionary_clear(&after);
    job_close(&to);
  }
  job_close(&from);
  dictionary elsewhere = {0};
  job_open(r, &alone, 1);
  import(r, &alone, &first, 0);
  dictionary_export(r, &alone, &elsewhere);
  compare(r, &alone, &first, &elsewhere, "imported on one rank");
  dictionary_clear(&elsewhere);
  job_close(&alone);
  dictionary_clear(&first);
  dictionary_clear(&goal);
}

/* Ids of a file: BATCH sequences. */
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
  static const struct llama_config model = {VOCAB, 32, 64, 2, 4, 2, 8, 64, 1e-5, 10000.0, 1};
  const ordo_context_options context = {.struct_size = sizeof context, .program_name = "ordo-low-state"};
  rig r = {.strategy = argc == 3 && strcmp(argv[1], "--strategy") == 0 ? argv[2] : "none"};
  int all = 0;
  if (ordo_context_create(&context, &r.context) != ORDO_OK || ordo_comm_mpi_create(r.context, MPI_COMM_NULL, NULL, &r.comm) != ORDO_OK)
    stop(&r, "the start");
  r.weights = ordo_weights_fresh(&model, 5, 0.08);
  open_data(&r);
  r.precision = "apex_amp:O3";
  r.dtype = ORDO_F16;
  run(&r);
  r.precision = "bf16-true";
  r.dtype = ORDO_BF16;
  run(&r);
  MPI_Allreduce(&r.failed, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (r.comm->rank == 0)
    printf("%-4s %s on %d ranks: state of 16-bit weights\n", all ? "FAIL" : "ok", r.strategy, r.comm->size);
  ordo_data_clear(&r.data);
  ordo_weights_free(r.weights);
  ordo_comm_provider_destroy(r.comm);
  ordo_context_destroy(r.context);
  return all > 0;
}
