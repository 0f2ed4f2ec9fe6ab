/* test_state.c - weights and AdamW state out of one job and into another: other strategies, other numbers of ranks, in memory. See
 * adamw_rig.h. Under mpirun; argument 1 is the plugin path.
 *
 * A job of N ranks trains and exports, once as chunks of every rank and once as whole parameters; both must say the same, every element
 * exactly once. A job of M ranks imports, trains on and must have the bits of ddp on M ranks that imported the same. Ranks beyond N or M
 * sit a job out: 5 ranks serve every pair of numbers up to 5.
 */
#include "adamw_rig.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

static ordo_comm_provider *world;
static int world_rank, world_ranks;

/* Makes the first `ranks` ranks a world of their own; 0 on the others. */
static int use_ranks(int ranks)
{
  const ordo_mpi_options options = {.struct_size = sizeof options, .deadline_seconds = 30.0};
  MPI_Comm part;
  MPI_Comm_split(MPI_COMM_WORLD, world_rank < ranks ? 1 : MPI_UNDEFINED, world_rank, &part);
  if (part == MPI_COMM_NULL)
    return 0;
  rig_ok(ordo_comm_mpi_create(rig_context, part, &options, &rig_comm), "a provider of some ranks");
  MPI_Comm_free(&part);
  rig_ranks = ranks;
  return 1;
}

static void use_all(int took_part)
{
  if (took_part)
    ordo_comm_provider_destroy(rig_comm);
  rig_comm = world;
  rig_ranks = world_ranks;
  MPI_Barrier(MPI_COMM_WORLD);
}

/* ---- out ---- */

/* All ranks' chunks: each element is exported as often as `copies` says (1 when sharded), so padding is not and nothing is missing. */
static void compare_chunks(rig *r, const dictionary *d, int copies)
{
  double *seen[RIG_PARAMS];
  for (int p = 0; p < RIG_PARAMS; p++)
    seen[p] = calloc((size_t)rig_numel(p) + 1, sizeof(double));
  for (uint32_t l = 0; l < r->model->n_leaves; l++) {
    const ordo_leaf *leaf = r->model->leaves[l];
    int64_t held = 0;
    for (uint64_t c = 0; c < leaf->placement->n_chunks; c++) {
      const ordo_chunk *chunk = &leaf->placement->chunks[c];
      const int64_t n = rig_chunk_numel(chunk);
      float *packed = malloc((size_t)(n + 1) * sizeof *packed);
      held += n;
      for (int s = 0; s < SLOTS; s++) {
        rig_ok(ordo_session_export_chunk(r->session, leaf, chunk, s - 1, packed), "export_chunk");
        for (int64_t k = 0; k < n; k++)
          assert_true(packed[k] == d->values[chunk->param->index][s][rig_element(chunk, k)]);
      }
      for (int64_t k = 0; k < n; k++)
        seen[chunk->param->index][rig_element(chunk, k)] += 1.0;
      free(packed);
    }
    assert_true(held <= leaf->numel);
  }
  for (int p = 0; p < RIG_PARAMS; p++) {
    rig_ok(ordo_session_sum(r->session, seen[p], (size_t)rig_numel(p)), "sum");
    for (int64_t i = 0; p != RIG_HEAD && i < rig_numel(p); i++)
      assert_true(seen[p][i] == (double)copies);
    free(seen[p]);
  }
}

static void spread(dictionary *d)
{
  for (int p = 0; p < RIG_PARAMS; p++)
    for (int s = 0; s < SLOTS; s++)
      MPI_Bcast(d->values[p][s], (int)rig_numel(p), MPI_FLOAT, 0, MPI_COMM_WORLD);
  MPI_Bcast(d->updates, RIG_PARAMS, MPI_INT64_T, 0, MPI_COMM_WORLD);
}

/* ---- in ---- */

static void import_chunks(rig *r, const dictionary *d)
{
  for (uint32_t l = 0; l < r->model->n_leaves; l++) {
    const ordo_leaf *leaf = r->model->leaves[l];
    for (uint64_t c = 0; c < leaf->placement->n_chunks; c++) {
      const ordo_chunk *chunk = &leaf->placement->chunks[c];
      float *packed = malloc((size_t)(rig_chunk_numel(chunk) + 1) * sizeof *packed);
      for (int s = 0; s < SLOTS; s++) {
        for (int64_t k = 0; k < rig_chunk_numel(chunk); k++)
          packed[k] = d->values[chunk->param->index][s][rig_element(chunk, k)];
        rig_ok(ordo_session_import_chunk(r->session, leaf, chunk, s - 1, packed), "import_chunk");
      }
      free(packed);
    }
  }
}

static void import(rig *r, const dictionary *d, int by_chunks)
{
  if (by_chunks)
    import_chunks(r, d);
  for (int p = 0; p < RIG_PARAMS; p++) {
    for (int s = 0; s < SLOTS && !by_chunks; s++)
      rig_ok(ordo_session_import_param(r->session, r->model->params[p], s - 1, d->values[p][s]), "import_param");
    rig_ok(ordo_session_import_updates(r->session, r->model->params[p], d->updates[p]), "import_updates");
  }
}

/* A new job imports, says the same again, trains on, and leaves what it has in `after`. */
static void go_on(const char *strategy, const dictionary *from, int by_chunks, dictionary *after)
{
  rig r;
  const rig_options options = adamw_options(strategy);
  rig_ok(rig_begin(&r, &options), strategy);
  r.step = 2;
  import(&r, from, by_chunks);
  dictionary_export(&r, after);
  dictionary_same(from, after);
  for (int s = 0; s < 2; s++)
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2}), strategy);
  dictionary_export(&r, after);
  rig_end(&r);
}

static const char *const STRATEGIES[] = {"fsdp1", "fsdp1:use_orig_params=false", "fsdp2", "fsdp1:sharding_strategy=NO_SHARD", "ddp"};
enum { N_STRATEGIES = 5, N_SHARDED = 3 };

static void start(int strategy, int ranks, dictionary *d)
{
  const int here = use_ranks(ranks);
  if (here) {
    rig r;
    const rig_options options = adamw_options(STRATEGIES[strategy]);
    rig_ok(rig_begin(&r, &options), options.strategy);
    for (int s = 0; s < 2; s++)
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), options.strategy);
    dictionary_export(&r, d);
    compare_chunks(&r, d, strategy < N_SHARDED ? 1 : ranks);
    rig_end(&r);
  }
  use_all(here);
  spread(d);
}

static void every_job_goes_on_as_every_other(int from, int to)
{
  for (int a = 0; a < N_STRATEGIES; a++) {
    dictionary first = {0};
    dictionary_new(&first);
    start(a, from, &first);
    const int here = use_ranks(to);
    dictionary truth = {0}, after = {0};
    dictionary_new(&truth);
    dictionary_new(&after);
    if (here)
      go_on("ddp", &first, 0, &truth);
    for (int b = 0; here && b < N_STRATEGIES; b++) {
      go_on(STRATEGIES[b], &first, (a + b) % 2, &after);
      dictionary_same(&truth, &after);
    }
    use_all(here);
    dictionary_free(&truth);
    dictionary_free(&after);
    dictionary_free(&first);
  }
}

static void state_moves_between_strategies_and_numbers_of_ranks(void **state)
{
  (void)state;
  for (int from = 1; from <= world_ranks && from <= 3; from++)
    for (int to = 1; to <= world_ranks && to <= 3; to++)
      every_job_goes_on_as_every_other(from, to);
}

/* No dimension is above 3, so two of five ranks hold rows of nothing, and with flat parameters some hold padding only. */
static void empty_shards_have_state_too(void **state)
{
  (void)state;
  rig_tiny = 1;
  every_job_goes_on_as_every_other(world_ranks, 1);
  every_job_goes_on_as_every_other(world_ranks > 1 ? 2 : 1, world_ranks);
  rig_tiny = 0;
}

/* ---- refusals ---- */

static void what_is_not_held_is_refused(void **state)
{
  static const char *const strategies[] = {"fsdp1", "fsdp1:use_orig_params=false", "fsdp2"};
  (void)state;
  for (int i = 0; i < 3; i++) {
    rig r;
    float value[400] = {0};
    const rig_options options = adamw_options(strategies[i]);
    rig_ok(rig_begin(&r, &options), strategies[i]);
    const ordo_leaf *leaf = r.model->leaves[0];
    if (leaf->placement->n_chunks > 0) {
      ordo_chunk chunk = leaf->placement->chunks[0];
      if (chunk.kind == ORDO_CHUNK_FLAT)
        chunk.end++; /* the padding behind it, or another rank's */
      else
        chunk.extent[0]++;
      rig_expect(ordo_session_export_chunk(r.session, leaf, &chunk, -1, value), ORDO_E_INVALID, "E-STATE-CHUNK|ask other ranks");
      rig_expect(ordo_session_import_chunk(r.session, leaf, &chunk, -1, value), ORDO_E_INVALID, "E-STATE-CHUNK|ask other ranks");
      assert_int_equal(ordo_session_export_chunk(r.session, leaf, &leaf->placement->chunks[0], 0, value), ORDO_E_NOT_FOUND);
      assert_int_equal(ordo_n_errors(rig_context), 0);
      rig_expect(ordo_session_export_chunk(r.session, leaf, &leaf->placement->chunks[0], 2, value), ORDO_E_INVALID,
                 "E-STATE-SLOT|has 2 state");
    }
    assert_int_equal(ordo_session_export_param(r.session, r.model->params[3], 1, value), ORDO_E_NOT_FOUND);
    rig_ok(ordo_session_step_begin(r.session, 1, 1.0), "step_begin");
    rig_expect(ordo_session_export_param(r.session, r.model->params[3], -1, value), ORDO_E_STATE, "E-STATE-ORDER|export_param");
    rig_end(&r);
  }
}

/* On the ranks that hold the frozen parameter the reason, on the others that somebody refused: nobody waits. */
static void a_frozen_parameter_has_no_state(void **state)
{
  (void)state;
  rig r;
  float value[400] = {0};
  rig_options options = adamw_options("fsdp2");
  options.frozen = 1u << 4;
  rig_tiny = 1;
  rig_ok(rig_begin(&r, &options), "fsdp2");
  ordo_status status = ordo_session_export_param(r.session, r.model->params[4], 0, value);
  if (rig_rank < 3)
    rig_expect(status, ORDO_E_INVALID, "E-STATE-SLOT|p4|frozen");
  else
    rig_expect(status, ORDO_E_STATE, "E-STATE-PEER|p4");
  rig_ok(ordo_session_export_param(r.session, r.model->params[4], -1, value), "the weight of a frozen parameter");
  rig_end(&r);
  rig_tiny = 0;
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(state_moves_between_strategies_and_numbers_of_ranks),
      cmocka_unit_test(empty_shards_have_state_too),
      cmocka_unit_test(what_is_not_held_is_refused),
      cmocka_unit_test(a_frozen_parameter_has_no_state),
  };
  rig_start(argc, argv);
  world = rig_comm;
  world_rank = rig_rank;
  world_ranks = rig_ranks;
  return rig_stop(cmocka_run_group_tests(tests, NULL, NULL));
}
