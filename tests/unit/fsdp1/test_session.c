/* test_session.c - fsdp1 in real sessions on real ranks: every mode trains, gathers, counts and restores what it must. See rig.h; cases
 * that fsdp2 has as well are in shared.c. Under mpirun; argument 1 is the plugin path.
 */
#include "shared.h"

#include <string.h>

const shared_strategy shared = {
    .axis = "fsdp1",
    .modes = {"fsdp1",
              "fsdp1:use_orig_params=false",
              "fsdp1:sharding_strategy=SHARD_GRAD_OP",
              "fsdp1:sharding_strategy=SHARD_GRAD_OP:use_orig_params=false",
              "fsdp1:sharding_strategy=NO_SHARD",
              "fsdp1:sharding_strategy=NO_SHARD:use_orig_params=false",
              "fsdp1:no_sync=false",
              "fsdp1:no_sync=false:sharding_strategy=SHARD_GRAD_OP",
              "fsdp1:no_sync=false:sharding_strategy=NO_SHARD",
              "fsdp1:backward_prefetch=post",
              "fsdp1:backward_prefetch=none",
              "fsdp1:forward_prefetch=true",
              "fsdp1:limit_all_gathers=false:forward_prefetch=true",
              "fsdp1:units=none",
              "fsdp1:units=size:unit_size=100",
              "fsdp1:units=list:unit_list=layers.[01]",
              "fsdp1:units=list:unit_list=layers.0,layers.[12]:forward_prefetch=true",
              "fsdp1:units=class:unit_classes=Block",
              "fsdp1:poison=false",
              "fsdp1:sync_module_states=true",
              "fsdp1_shard_grad_op",
              "fsdp1:offload=cpu",
              "fsdp1:offload=disk:/tmp",
              "fsdp1:offload=disk:/tmp:sharding_strategy=NO_SHARD"},
    .precision = {"fsdp1_bf16", "fsdp1_bf16:reduce_dtype=f32", "fsdp1_bf16:reduce_dtype=f32:sharding_strategy=SHARD_GRAD_OP",
                  "fsdp1_bf16:no_sync=false"},
    .frozen = {"fsdp1", "fsdp1:sharding_strategy=SHARD_GRAD_OP", "fsdp1:sharding_strategy=NO_SHARD", "fsdp1:no_sync=false"},
    .ignored = {"fsdp1:ignored=p3", "fsdp1:ignored=p3:sharding_strategy=NO_SHARD"},
    .replicas = {"ddp=2+fsdp1=2:sharding_strategy=HYBRID_SHARD", "fsdp1=2:sharding_strategy=_HYBRID_SHARD_ZERO2+ddp=2",
                 "ddp=2+fsdp1=2:sharding_strategy=HYBRID_SHARD:no_sync=false",
                 "fsdp1=2:sharding_strategy=HYBRID_SHARD:use_orig_params=false+ddp=2"},
    .one_sum = {"ddp=2+fsdp1=2:sharding_strategy=HYBRID_SHARD", "fsdp1=2:sharding_strategy=HYBRID_SHARD+ddp=2",
                "ddp=2+fsdp1=2:sharding_strategy=HYBRID_SHARD:reduce_dtype=bf16"},
    .counts = {{"fsdp1", 1, 7, 4, 0},
               {"fsdp1:sharding_strategy=SHARD_GRAD_OP", 1, 4, 4, 0},
               {"fsdp1:sharding_strategy=NO_SHARD", 1, 0, 0, 4},
               {"fsdp1:units=none", 1, 1, 1, 0},
               {"fsdp1:no_sync=false", 2, 14, 8, 0},
               {"fsdp1", 2, 14, 4, 0},
               {"fsdp1:sharding_strategy=SHARD_GRAD_OP", 2, 4, 4, 0}},
};

static void trains_without_ties(void **state)
{
  (void)state;
  shared_train(&(rig_options){.strategy = "fsdp1:units=list:unit_list=head,layers.*", .untied = 1}, &(rig_step_spec){.n_micro = 1}, 2);
}

/* Without views a unit of frozen parameters only is uniform, and legal. */
static void frozen_only_unit_without_views(void **state)
{
  (void)state;
  shared_train(&(rig_options){.strategy = "fsdp1_flat", .frozen = 1u << 1 | 1u << 2, .no_decay = 1}, &(rig_step_spec){.n_micro = 1}, 2);
}

static void a_flat_leaf_cannot_skip_a_part(void **state)
{
  (void)state;
  rig r;
  rig_step_spec spec = {.n_micro = 1};
  for (int rank = 0; rank < rig_ranks; rank++)
    spec.skip_params[rank] |= 1u << 5;
  rig_ok(rig_begin(&r, &(rig_options){.strategy = "fsdp1_flat", .no_decay = 1}), "fsdp1_flat");
  rig_expect(rig_train(&r, &spec), ORDO_E_INVARIANT, "'p6' got a gradient|'p5'|use_orig_params=true");
  rig_end(&r);
}

static int64_t total(int padded_to)
{
  static const int64_t units[4] = {185 + 3 + 5, 65 + 3 + 5, 65 + 3 + 5, 65 + 3 + 5}; /* with the gap that aligns the second parameter */
  int64_t sum = 0;
  for (int u = 0; u < 4; u++)
    sum += (units[u] + padded_to - 1) / padded_to * padded_to;
  return sum;
}

/* The optimizer is made once, after the wrap, of shards: what transformers #25580 did the other way round. */
static void the_optimizer_sees_shards(void **state)
{
  (void)state;
  rig r;
  rig_ok(rig_begin(&r, &(rig_options){.strategy = "fsdp1"}), "fsdp1");
  assert_int_equal(r.optimizers_made, 1);
  assert_true(r.elements_at_creation <= total(rig_ranks) / rig_ranks);
  assert_int_equal(r.model->n_leaves, RIG_PARAMS - 1);
  rig_end(&r);
}

/* Groups survive: every view has the decay hint of its parameter (composer #3493), also on a rank that holds no element of it. */
static void views_keep_groups(void **state)
{
  (void)state;
  rig r;
  rig_ok(rig_begin(&r, &(rig_options){.strategy = "fsdp1", .frozen = 1u << 5}), "fsdp1");
  for (uint32_t l = 0; l < r.model->n_leaves; l++) {
    const ordo_leaf *leaf = r.model->leaves[l];
    assert_int_equal((leaf->flags & ORDO_PARAM_DECAY) != 0, leaf->params[0]->ndim == 2);
    assert_int_equal((leaf->flags & ORDO_PARAM_REQUIRES_GRAD) != 0, leaf->params[0]->index != 5);
  }
  assert_int_equal(r.groups[0].n_leaves, 3);
  assert_int_equal(r.groups[1].n_leaves, 4);
  rig_end(&r);
}

/* Padded payloads, once each way. */
static void bytes_are_those_of_the_padded_units(void **state)
{
  (void)state;
  rig r;
  uint64_t bytes[2][2];
  if (rig_ranks == 1)
    return;
  rig_ok(rig_begin(&r, &(rig_options){.strategy = "fsdp1:sharding_strategy=SHARD_GRAD_OP"}), "fsdp1");
  for (int s = 0; s < 2; s++) {
    (void)rig_calls(&r, "fsdp1", ORDO_ALL_GATHER, &bytes[s][0]);
    (void)rig_calls(&r, "fsdp1", ORDO_REDUCE_SCATTER, &bytes[s][1]);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  }
  assert_int_equal(bytes[1][0] - bytes[0][0], total(rig_ranks) * 4);
  assert_int_equal(bytes[1][1] - bytes[0][1], total(rig_ranks) * 4);
  rig_end(&r);
}

/* f16 sums are divided before and after; with a power of two as the number of ranks that is exact for the small integers here. */
static void trains_with_f16_parameters(void **state)
{
  static const char *const modes[] = {"fsdp1:param_dtype=f16", "fsdp1:param_dtype=f16:predivide=4:no_sync=false",
                                      "fsdp1:param_dtype=f16:reduce_dtype=f32"};
  (void)state;
  for (size_t m = 0; (rig_ranks & (rig_ranks - 1)) == 0 && m < 3; m++)
    shared_train(&(rig_options){.strategy = modes[m], .rounded = ORDO_F16}, &(rig_step_spec){.n_micro = 1}, 2);
}

/* Rank 0's values win; without the option each rank keeps what its own source said, which is the embedder's breach. */
static void module_states_are_synchronised(void **state)
{
  static const char *const modes[] = {"fsdp1:sync_module_states=true", "fsdp1:sync_module_states=true:sharding_strategy=NO_SHARD",
                                      "fsdp1_flat:sync_module_states=true", "fsdp1:sync_module_states=true:ignored=p3"};
  (void)state;
  for (size_t m = 0; m < 4; m++) {
    const rig_options options = {.strategy = modes[m], .different_sources = 1, .no_decay = 1, .frozen = m == 3 ? 1u << 3 : 0};
    shared_train(&options, &(rig_step_spec){.n_micro = 1}, m < 3);
  }
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      SHARED_CASES,
      cmocka_unit_test(one_sum_over_two_axes),
      cmocka_unit_test(trains_without_ties),
      cmocka_unit_test(frozen_only_unit_without_views),
      cmocka_unit_test(a_flat_leaf_cannot_skip_a_part),
      cmocka_unit_test(the_optimizer_sees_shards),
      cmocka_unit_test(views_keep_groups),
      cmocka_unit_test(bytes_are_those_of_the_padded_units),
      cmocka_unit_test(trains_with_f16_parameters),
      cmocka_unit_test(module_states_are_synchronised),
  };
  rig_start(argc, argv);
  return rig_stop(cmocka_run_group_tests(tests, NULL, NULL));
}
