/* test_composition.c - several strategies on one mesh: every composition trains to the bits of the reference. See ../fsdp1/rig.h.
 *
 * The partition is slice.c: uneven rectangles, some by rows, some by columns, some parameters replicated. Under mpirun with 4, 6 and 8
 * ranks.
 */
#include "../fsdp1/rig.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
/* An axis without a size gets the ranks that are left. */
static const struct {
  const char *strategy;
  int ranks; /* that divide the world, 0: exactly 8 */
} ROWS[] = {
    {"slice=2+ddp", 2},
    {"slice+ddp=2", 2},
    {"slice=2+ddp:bucket_cap=200:first_bucket=100", 2},
    {"slice=2+fsdp1", 2},
    {"slice+fsdp1=2", 2},
    {"slice=2+fsdp1:sharding_strategy=SHARD_GRAD_OP:no_sync=false", 2},
    {"slice=2+fsdp1:sharding_strategy=NO_SHARD", 2},
    {"slice=2+fsdp1:use_orig_params=false", 2},
    {"slice+fsdp1=2:use_orig_params=false:units=none", 2},
    {"slice=2+fsdp1:use_orig_params=false:sharding_strategy=NO_SHARD", 2},
    {"slice=2+fsdp1:use_orig_params=false:sharding_strategy=SHARD_GRAD_OP", 2},
    {"slice=2+fsdp1:sync_module_states=true", 2},
    {"slice=2+fsdp2", 2},
    {"slice+fsdp2=2", 2},
    {"slice=2+fsdp2:reshard_after_forward=false:no_sync=false", 2},
    {"slice=2+fsdp2:units=none", 2},
    {"ddp=2+fsdp2", 2},
    {"ddp+fsdp2=2", 2},
    {"ddp=2+fsdp1", 2},
    {"ddp+fsdp1=2:use_orig_params=false", 2},
    {"fsdp2=2+slice", 2}, /* the slices on the outer axis */
    {"slice=4+ddp", 4},   /* with 4 ranks an axis of one */
    {"slice=4+fsdp1:use_orig_params=false", 4},
    {"slice=4+fsdp2", 4},
    {"ddp=2+slice=2+fsdp2=2", 0},
    {"slice=2+fsdp2=2+ddp=2", 0},
    {"ddp=2+slice=2+fsdp1=2", 0},
    {"ddp=2+slice=2+fsdp1=2:use_orig_params=false", 0},
    {"slice=2+fsdp2=4:reshard_after_forward=2", 0},
};

static int fits(size_t row)
{
  return ROWS[row].ranks > 0 ? rig_ranks % ROWS[row].ranks == 0 : rig_ranks == 8;
}

static rig_options options_of(const char *strategy)
{
  return (rig_options){
      .strategy = strategy, .rebinds = strstr(strategy, "fsdp2") != NULL, .no_decay = strstr(strategy, "use_orig_params=false") != NULL};
}

/* Over the ranks that stand first on every axis that replicates a leaf, each element is held exactly once: what a checkpoint would read,
 * and what the norm counts. */
static void each_element_is_held_once(const rig *r)
{
  const ordo_mesh *mesh = ordo_session_mesh(r->session);
  for (int p = 0; p < RIG_HEAD; p++) {
    int32_t *held = calloc((size_t)rig_numel(p), sizeof *held);
    for (uint32_t l = 0; l < r->model->n_leaves; l++) {
      const ordo_placement *placement = r->model->leaves[l]->placement;
      int first = 1;
      for (uint32_t a = 0; a < mesh->n_axes; a++)
        first &= placement->data[a] == ORDO_SHARD || mesh->axes[a]->coordinate == 0;
      for (uint64_t c = 0; first && c < placement->n_chunks; c++)
        for (int64_t k = 0; (int)placement->chunks[c].param->index == p && k < ordo_chunk_numel(&placement->chunks[c]); k++)
          held[rig_element(&placement->chunks[c], k)]++;
    }
    MPI_Allreduce(MPI_IN_PLACE, held, (int)rig_numel(p), MPI_INT32_T, MPI_SUM, MPI_COMM_WORLD);
    for (int64_t i = 0; i < rig_numel(p); i++)
      if (held[i] != 1)
        fail_msg("%s: element %lld of p%d is held %d times", r->options.strategy, (long long)i, p, held[i]);
    free(held);
  }
}

static void trains_as_one_rank_would(void **state)
{
  (void)state;
  for (size_t m = 0; m < sizeof ROWS / sizeof ROWS[0]; m++)
    for (int n_micro = 1; fits(m) && n_micro <= 2; n_micro++) {
      rig r;
      const rig_options options = options_of(ROWS[m].strategy);
      rig_ok(rig_begin(&r, &options), ROWS[m].strategy);
      rig_compare(&r);
      each_element_is_held_once(&r);
      for (int s = 0; s < 3; s++) {
        rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = n_micro}), ROWS[m].strategy);
        rig_compare(&r);
      }
      rig_evaluate(&r);
      rig_end(&r);
    }
}

static void clips_in_ordered_mode(void **state)
{
  (void)state;
  for (size_t m = 0; m < sizeof ROWS / sizeof ROWS[0]; m++) {
    rig r;
    rig_options options = options_of(ROWS[m].strategy);
    if (!fits(m))
      continue;
    options.ordered = 1;
    options.clip = 64.0;
    rig_ok(rig_begin(&r, &options), ROWS[m].strategy);
    for (int s = 0; s < 2; s++)
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2}), ROWS[m].strategy);
    rig_compare(&r);
    rig_end(&r);
  }
}

/* Parameters that no part of the batch used keep no gradient; one that some part used is summed with zeros. */
static void unused_parameters_agree(void **state)
{
  static const char *const modes[] = {"slice=2+fsdp1", "slice=2+fsdp2", "ddp=2:find_unused_parameters=true+fsdp2",
                                      "ddp=2:find_unused_parameters=true+fsdp1", "slice=2+ddp:find_unused_parameters=true"};
  (void)state;
  for (size_t m = 0; m < 2 * sizeof modes / sizeof modes[0]; m++) {
    rig r;
    rig_options options = options_of(modes[m / 2]);
    rig_step_spec spec = {.n_micro = 1};
    options.ordered = m % 2;
    for (int part = 0; part < rig_ranks; part++)
      spec.skip_params[part] = 1u << 2 | (part > 0 ? 1u << 3 : 0u);
    rig_ok(rig_begin(&r, &options), modes[m / 2]);
    for (int s = 0; s < 2; s++)
      rig_ok(rig_train(&r, &spec), modes[m / 2]);
    rig_compare(&r);
    rig_end(&r);
  }
}

/* Restored as it was: leaves, groups and state from before the steps that came before the failing one. */
static void a_failure_undoes_both(void **state)
{
  (void)state;
  rig r;
  rig_options options = options_of("slice=2+fsdp2");
  options.fail_rebind = 1;
  rig_expect(rig_begin(&r, &options), ORDO_E_UNSUPPORTED, "rebind refuses");
  rig_end(&r);
  options = options_of("slice=2+fsdp1:units=list:unit_list=head");
  rig_expect(rig_begin(&r, &options), ORDO_E_INVALID, "'p0'|'p8'|share storage");
  rig_end(&r);
}

/* Names tell the leaves of one flat parameter apart, and say why there are two. */
static void a_flat_parameter_has_a_leaf_for_each_placement(void **state)
{
  (void)state;
  rig r;
  int whole = 0, sliced = 0;
  const rig_options options = options_of("slice=2+fsdp1:use_orig_params=false");
  rig_ok(rig_begin(&r, &options), options.strategy);
  for (uint32_t l = 0; l < r.model->n_leaves; l++) {
    whole += strcmp(r.model->leaves[l]->name, "layers.0.flat_param") == 0;
    sliced += strcmp(r.model->leaves[l]->name, "layers.0.flat_param.slice") == 0;
  }
  assert_int_equal(whole, 1);
  assert_int_equal(sliced, 1);
  rig_end(&r);
}

static void refused(const char *strategy, uint32_t flags, ordo_status status, const char *words)
{
  rig r;
  const rig_options options = {.strategy = strategy, .flags = flags, .rebinds = 1};
  rig_expect(rig_begin(&r, &options), status, words);
  rig_end(&r);
}

static void bad_meshes_are_named(void **state)
{
  (void)state;
  refused("slice=5+ddp=5", 0, ORDO_E_INVALID, "E-MESH-SIZE|slice=5 x ddp=5");
  refused("slice=2", 0, ORDO_E_INVALID, "E-MESH-SIZE|does not fill|+ddp");
  refused("slice=2+ddp=2+slice=2", 0, ORDO_E_INVALID, "E-EXPRESSION|'slice' stands twice");
  refused("fsdp1=2+fsdp2", 0, ORDO_E_CONFLICT, "E-PLAN-CONFLICTS|fsdp1|fsdp2");
}

/* What no strategy can see on its own axis alone. */
static void wrong_pieces_are_found(void **state)
{
  (void)state;
  refused("slice=2:fault=overlaps+ddp", 0, ORDO_E_INVARIANT, "E-INVARIANT-COVERAGE|p0|not each of them once");
  refused("slice=2:fault=overlaps+fsdp2", 0, ORDO_E_INVARIANT, "E-INVARIANT-COVERAGE");
  refused("slice=2:fault=overlaps+fsdp1", 0, ORDO_E_INVARIANT, "E-INVARIANT-COVERAGE");
  refused("slice=2:fault=drops+ddp", 0, ORDO_E_INVARIANT, "E-INVARIANT-COVERAGE|all ranks together hold"); /* the sum of indices is right */
  refused("slice=2:fault=forgets+ddp", 0, ORDO_E_MISMATCH, "E-INVARIANT-REPLICAS-DIFFER|axis 'slice'");
}

/* Ranks of a model axis must read one batch, and no two of them another; replicas of a data axis read different ones. */
static void data_is_one_along_model_axes(void **state)
{
  (void)state;
  for (int wrong = 0; wrong <= 1; wrong++) {
    rig r;
    const rig_options options = options_of("slice=2+ddp");
    rig_ok(rig_begin(&r, &options), options.strategy);
    ordo_session_data_part(r.session, &r.part, &r.parts);
    assert_int_equal(r.parts, rig_ranks / 2);
    int32_t ids[3] = {7, r.part, wrong && rig_rank == rig_ranks - 1};
    ordo_status status = ordo_session_check_data(r.session, ids, sizeof ids);
    if (wrong && r.part == r.parts - 1)
      rig_expect(status, ORDO_E_MISMATCH, "E-DATA-DIFFERS|axis 'slice'");
    else
      rig_ok(status, "the same data");
    rig_end(&r);
  }
}

/* Sums go over the parts of the batch, not over the ranks. */
static void sums_count_each_part_once(void **state)
{
  (void)state;
  rig r;
  const rig_options options = options_of("slice=2+ddp");
  double values[2] = {1.0, 0.0};
  rig_ok(rig_begin(&r, &options), options.strategy);
  ordo_session_data_part(r.session, &r.part, &r.parts);
  values[1] = r.part;
  rig_ok(ordo_session_sum(r.session, values, 2), "sum");
  assert_true(values[0] == r.parts);
  assert_true(values[1] == r.parts * (r.parts - 1) / 2);
  rig_end(&r);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(trains_as_one_rank_would),
      cmocka_unit_test(clips_in_ordered_mode),
      cmocka_unit_test(unused_parameters_agree),
      cmocka_unit_test(a_failure_undoes_both),
      cmocka_unit_test(a_flat_parameter_has_a_leaf_for_each_placement),
      cmocka_unit_test(bad_meshes_are_named),
      cmocka_unit_test(wrong_pieces_are_found),
      cmocka_unit_test(data_is_one_along_model_axes),
      cmocka_unit_test(sums_count_each_part_once),
  };
  rig_start(argc, argv);
  return rig_stop(cmocka_run_group_tests(tests, NULL, NULL));
}
