/* test_session.c - fsdp1 in real sessions on real ranks: every mode trains, gathers, counts and restores what it must. See rig.h.
 *
 * Under mpirun; argument 1 is the plugin path. Cases that need a certain number of ranks say so and are left out on others.
 */
#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const MODES[] = {
    "fsdp1",
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
    "fsdp1:offload=disk:/tmp:sharding_strategy=NO_SHARD",
};

/* Without views a unit must be uniform, so those cases train without weight decay; cutting by size would tear the tied weight apart. */
static rig_options options_of(const char *strategy)
{
  return (rig_options){.strategy = strategy,
                       .no_decay = strstr(strategy, "use_orig_params=false") != NULL,
                       .untied = strstr(strategy, "units=size") != NULL};
}

static void trains_in_every_mode(void **state)
{
  (void)state;
  for (size_t m = 0; m < sizeof MODES / sizeof MODES[0]; m++)
    for (int n_micro = 1; n_micro <= 3; n_micro += 2) {
      rig r;
      rig_options options = options_of(MODES[m]);
      const rig_step_spec spec = {.n_micro = n_micro};
      rig_ok(rig_begin(&r, &options), MODES[m]);
      rig_compare(&r);
      for (int s = 0; s < 3; s++) {
        rig_ok(rig_train(&r, &spec), MODES[m]);
        rig_compare(&r);
      }
      rig_end(&r);
    }
}

static void trains_in_ordered_mode_with_clipping(void **state)
{
  (void)state;
  static const char *const modes[] = {"fsdp1", "fsdp1:sharding_strategy=SHARD_GRAD_OP", "fsdp1:sharding_strategy=NO_SHARD"};
  for (size_t m = 0; m < 3; m++) {
    rig r;
    const rig_options options = {.strategy = modes[m], .ordered = 1, .clip = 64.0};
    rig_ok(rig_begin(&r, &options), modes[m]);
    for (int s = 0; s < 3; s++)
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2}), modes[m]);
    rig_compare(&r);
    rig_end(&r);
  }
}

static void trains_without_ties(void **state)
{
  (void)state;
  rig r;
  rig_ok(rig_begin(&r, &(rig_options){.strategy = "fsdp1:units=list:unit_list=head,layers.*", .untied = 1}), "untied");
  for (int s = 0; s < 2; s++)
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  rig_compare(&r);
  rig_end(&r);
}

/* p1, p2 frozen: a unit of frozen parameters only; p3 frozen: mixed with trained ones. */
static void frozen_subsets_stay(void **state)
{
  (void)state;
  static const char *const modes[] = {"fsdp1", "fsdp1:sharding_strategy=SHARD_GRAD_OP", "fsdp1:sharding_strategy=NO_SHARD",
                                      "fsdp1:no_sync=false"};
  for (size_t m = 0; m < 4; m++) {
    rig r;
    rig_ok(rig_begin(&r, &(rig_options){.strategy = modes[m], .frozen = 1u << 1 | 1u << 2 | 1u << 3}), modes[m]);
    for (int s = 0; s < 3; s++)
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2}), modes[m]);
    rig_compare(&r);
    rig_end(&r);
  }
}

/* Without views a unit of frozen parameters only is uniform, and legal. */
static void frozen_only_unit_without_views(void **state)
{
  (void)state;
  rig r;
  rig_ok(rig_begin(&r, &(rig_options){.strategy = "fsdp1_flat", .frozen = 1u << 1 | 1u << 2, .no_decay = 1}), "frozen unit");
  for (int s = 0; s < 2; s++)
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  rig_compare(&r);
  rig_end(&r);
}

/* A parameter without gradient on one rank still takes the others'; one that nobody uses is left alone, by weight decay too. */
static void unused_parameters(void **state)
{
  (void)state;
  for (size_t m = 0; m < sizeof MODES / sizeof MODES[0]; m++) {
    rig r;
    rig_step_spec spec = {.n_micro = 2};
    if (strstr(MODES[m], "use_orig_params=false") != NULL)
      continue;
    rig_options options = options_of(MODES[m]);
    rig_ok(rig_begin(&r, &options), MODES[m]);
    spec.skip_params[0] = 1u << 4;
    for (int rank = 0; rank < rig_ranks; rank++)
      spec.skip_params[rank] |= 1u << 5;
    rig_ok(rig_train(&r, &spec), MODES[m]);
    rig_ok(rig_train(&r, &spec), MODES[m]);
    rig_compare(&r);
    rig_end(&r);
  }
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

static void a_unit_whose_forward_never_runs(void **state)
{
  (void)state;
  for (size_t m = 0; m < sizeof MODES / sizeof MODES[0]; m++) {
    rig r;
    rig_options options = options_of(MODES[m]);
    if (strstr(MODES[m], "units=") != NULL && options.no_decay)
      continue;
    rig_ok(rig_begin(&r, &options), MODES[m]);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), MODES[m]);
    for (int s = 0; s < 2; s++)
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2, .skip_units = 1u << 2}), MODES[m]);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2}), MODES[m]);
    rig_compare(&r);
    rig_end(&r);
  }
}

/* Its gradient is accumulated in the first micro-batch and reduced although the last one does not touch it. */
static void a_unit_that_only_the_first_micro_batch_uses(void **state)
{
  (void)state;
  for (size_t m = 0; m < sizeof MODES / sizeof MODES[0]; m++) {
    rig r;
    rig_options options = options_of(MODES[m]);
    if (strstr(MODES[m], "units=") != NULL)
      continue;
    rig_ok(rig_begin(&r, &options), MODES[m]);
    for (int s = 0; s < 2; s++)
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2, .skip_late = 1u << 2, .backward_only_in = 1}), MODES[m]);
    rig_compare(&r);
    rig_end(&r);
  }
}

static void evaluates_between_steps(void **state)
{
  (void)state;
  for (size_t m = 0; m < sizeof MODES / sizeof MODES[0]; m++) {
    rig r;
    rig_options options = options_of(MODES[m]);
    rig_ok(rig_begin(&r, &options), MODES[m]);
    rig_evaluate(&r);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), MODES[m]);
    rig_evaluate(&r);
    rig_evaluate(&r);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), MODES[m]);
    rig_compare(&r);
    rig_end(&r);
  }
}

static void evaluates_without_an_optimizer(void **state)
{
  (void)state;
  for (size_t m = 0; m < sizeof MODES / sizeof MODES[0]; m++) {
    rig r;
    rig_options options = options_of(MODES[m]);
    options.flags = ORDO_PLAN_EVAL;
    rig_ok(rig_begin(&r, &options), MODES[m]);
    rig_evaluate(&r);
    rig_compare(&r);
    assert_int_equal(r.optimizers_made, 0);
    rig_end(&r);
  }
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

/* One all-gather per unit and pass (the root is gathered once), one reduce-scatter per unit, padded payloads. */
static void collectives_are_counted(void **state)
{
  static const struct {
    const char *strategy;
    uint64_t gathers, scatters, reduces;
    int n_micro;
  } rows[] = {{"fsdp1", 7, 4, 0, 1},
              {"fsdp1:sharding_strategy=SHARD_GRAD_OP", 4, 4, 0, 1},
              {"fsdp1:sharding_strategy=NO_SHARD", 0, 0, 4, 1},
              {"fsdp1:units=none", 1, 1, 0, 1},
              {"fsdp1:no_sync=false", 14, 8, 0, 2},
              {"fsdp1", 14, 4, 0, 2},
              {"fsdp1:sharding_strategy=SHARD_GRAD_OP", 4, 4, 0, 2}};
  (void)state;
  for (size_t i = 0; rig_ranks > 1 && i < sizeof rows / sizeof rows[0]; i++) {
    rig r;
    uint64_t bytes[2][2];
    rig_ok(rig_begin(&r, &(rig_options){.strategy = rows[i].strategy}), rows[i].strategy);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = rows[i].n_micro}), "the first step, which also compares the order");
    uint64_t gathers = rig_calls(&r, "fsdp1", ORDO_ALL_GATHER, &bytes[0][0]),
             scatters = rig_calls(&r, "fsdp1", ORDO_REDUCE_SCATTER, &bytes[0][1]);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = rows[i].n_micro}), "step");
    assert_int_equal(rig_calls(&r, "fsdp1", ORDO_ALL_GATHER, &bytes[1][0]) - gathers, rows[i].gathers);
    assert_int_equal(rig_calls(&r, "fsdp1", ORDO_REDUCE_SCATTER, &bytes[1][1]) - scatters, rows[i].scatters);
    if (strcmp(rows[i].strategy, "fsdp1:sharding_strategy=SHARD_GRAD_OP") == 0 && rows[i].n_micro == 1) {
      assert_int_equal(bytes[1][0] - bytes[0][0], total(rig_ranks) * 4);
      assert_int_equal(bytes[1][1] - bytes[0][1], total(rig_ranks) * 4);
    }
    rig_end(&r);
  }
}

/* Parameters travel and compute as bf16 values, weights stay fp32; small integers as gradients are exact in bf16. */
static void trains_with_bf16_parameters(void **state)
{
  (void)state;
  static const char *const modes[] = {"fsdp1_bf16", "fsdp1_bf16:reduce_dtype=f32",
                                      "fsdp1_bf16:reduce_dtype=f32:sharding_strategy=SHARD_GRAD_OP", "fsdp1_bf16:no_sync=false"};
  for (size_t m = 0; m < 4; m++) {
    rig r;
    rig_ok(rig_begin(&r, &(rig_options){.strategy = modes[m], .rounded = ORDO_BF16}), modes[m]);
    for (int s = 0; s < 3; s++)
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), modes[m]);
    rig_compare(&r);
    rig_end(&r);
  }
}

/* f16 sums are divided before and after; with a power of two as the number of ranks that is exact for the small integers here. */
static void trains_with_f16_parameters(void **state)
{
  (void)state;
  static const char *const modes[] = {"fsdp1:param_dtype=f16", "fsdp1:param_dtype=f16:predivide=4:no_sync=false",
                                      "fsdp1:param_dtype=f16:reduce_dtype=f32"};
  for (size_t m = 0; (rig_ranks & (rig_ranks - 1)) == 0 && m < 3; m++) {
    rig r;
    rig_ok(rig_begin(&r, &(rig_options){.strategy = modes[m], .rounded = ORDO_F16}), modes[m]);
    for (int s = 0; s < 2; s++)
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), modes[m]);
    rig_compare(&r);
    rig_end(&r);
  }
}

/* No dimension is above 3: ranks without an element of a parameter, and ranks that hold nothing but padding. */
static void more_ranks_than_any_dimension(void **state)
{
  (void)state;
  rig_tiny = 1;
  for (size_t m = 0; rig_ranks > 3 && m < sizeof MODES / sizeof MODES[0]; m++) {
    rig r;
    rig_options options = options_of(MODES[m]);
    if (strstr(MODES[m], "unit_size") != NULL)
      continue;
    rig_ok(rig_begin(&r, &options), MODES[m]);
    for (int s = 0; s < 2; s++)
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2}), MODES[m]);
    rig_compare(&r);
    rig_end(&r);
  }
  rig_tiny = 0;
}

/* Rank 0's values win; without the option each rank keeps what its own source said, which is the embedder's breach. */
static void module_states_are_synchronised(void **state)
{
  (void)state;
  static const char *const modes[] = {"fsdp1:sync_module_states=true", "fsdp1:sync_module_states=true:sharding_strategy=NO_SHARD",
                                      "fsdp1_flat:sync_module_states=true", "fsdp1:sync_module_states=true:ignored=p3"};
  for (size_t m = 0; m < 4; m++) {
    rig r;
    rig_ok(rig_begin(&r, &(rig_options){.strategy = modes[m], .different_sources = 1, .no_decay = 1}), modes[m]);
    rig_compare(&r);
    if (m < 3)
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), modes[m]);
    rig_end(&r);
  }
}

/* Ignored parameters are whole on every rank and not reduced. */
static void ignored_parameters_stay_whole(void **state)
{
  (void)state;
  static const char *const modes[] = {"fsdp1:ignored=p3", "fsdp1:ignored=p3:sharding_strategy=NO_SHARD"};
  for (size_t m = 0; m < 2; m++) {
    rig r;
    rig_ok(rig_begin(&r, &(rig_options){.strategy = modes[m], .frozen = 1u << 3}), modes[m]);
    assert_int_equal(r.model->params[3]->leaf->numel, rig_numel(3));
    for (int s = 0; s < 2; s++)
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), modes[m]);
    rig_compare(&r);
    rig_end(&r);
  }
}

/* Changes inside a write-back scope reach the shards; without the flag they are dropped. */
static void full_parameters_are_written_back(void **state)
{
  (void)state;
  for (size_t m = 0; m < 6; m++)
    for (uint32_t write_back = 0; write_back <= 1; write_back++) {
      rig r;
      rig_options options = options_of(MODES[m]);
      if (strstr(MODES[m], "NO_SHARD") != NULL && !write_back)
        continue; /* nothing is copied there: a change is a change */
      rig_ok(rig_begin(&r, &options), MODES[m]);
      rig_ok(ordo_session_gather_full(r.session, 0, write_back ? ORDO_GATHER_WRITE_BACK : 0), "gather_full");
      for (uint32_t p = 0; p < r.model->n_params; p++) {
        if (p == RIG_HEAD)
          continue;
        float *data = r.model->params[p]->data;
        assert_non_null(data);
        for (int64_t i = 0; i < rig_numel((int)p); i++) {
          data[i] += 2.0f;
          r.reference[p][i] += write_back ? 2.0f : 0.0f;
        }
      }
      rig_ok(ordo_session_release_full(r.session, 0), "release_full");
      rig_compare(&r);
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
      rig_compare(&r);
      rig_end(&r);
    }
}

static void full_parameters_on_rank_0_only(void **state)
{
  (void)state;
  rig r;
  rig_ok(rig_begin(&r, &(rig_options){.strategy = "fsdp1"}), "fsdp1");
  rig_ok(ordo_session_gather_full(r.session, 0, ORDO_GATHER_RANK0_ONLY), "gather_full");
  for (uint32_t p = 0; rig_rank == 0 && p < r.model->n_params; p++)
    assert_memory_equal(r.model->params[p]->data, r.reference[p == RIG_HEAD ? 0 : p], (size_t)rig_numel((int)p) * sizeof(float));
  rig_ok(ordo_session_release_full(r.session, 0), "release_full");
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  rig_compare(&r);
  rig_end(&r);
}

/* HYBRID_SHARD: shards on one axis, replicas on the other. */
static void hybrid_sharding(void **state)
{
  (void)state;
  static const char *const modes[] = {"ddp=2+fsdp1=2:sharding_strategy=HYBRID_SHARD", "fsdp1=2:sharding_strategy=_HYBRID_SHARD_ZERO2+ddp=2",
                                      "ddp=2+fsdp1=2:sharding_strategy=HYBRID_SHARD:no_sync=false",
                                      "fsdp1=2:sharding_strategy=HYBRID_SHARD:use_orig_params=false+ddp=2"};
  for (size_t m = 0; rig_ranks == 4 && m < 8; m++) {
    const int flat = strstr(modes[m / 2], "use_orig_params=false") != NULL;
    rig r;
    rig_ok(rig_begin(&r, &(rig_options){.strategy = modes[m / 2], .ordered = m % 2, .no_decay = flat}), modes[m / 2]);
    for (int s = 0; s < 4; s++)
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2}), modes[m / 2]);
    if (m % 2 == 1 && !flat) /* p4, p6: only the other shard group has a gradient; ddp would refuse it, but it sums nothing here */
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1, .skip_params = {1u << 4 | 1u << 6, 1u << 6, 1u << 4, 0}}), modes[m / 2]);
    rig_compare(&r);
    rig_end(&r);
  }
}

/* A frozen second model is gathered like the first, and has no optimizer. */
static void two_models_in_one_session(void **state)
{
  (void)state;
  for (size_t m = 0; m < 6; m++) {
    rig r;
    rig_options options = options_of(MODES[m]);
    options.two_models = 1;
    rig_ok(rig_begin(&r, &options), MODES[m]);
    assert_int_equal(r.optimizers_made, 1);
    const ordo_model *other = ordo_session_model(r.session, 1);
    assert_non_null(other);
    for (int s = 0; s < 2; s++) {
      rig_ok(ordo_session_eval_begin(r.session), "eval_begin");
      for (uint32_t u = 0; u < RIG_UNITS; u++) {
        rig_ok(ordo_session_pre_forward(r.session, 1, u), "pre_forward");
        for (uint32_t p = 0; p < other->units[u]->n_params; p++) {
          const ordo_param *param = other->units[u]->params[p];
          assert_non_null(param->data);
          for (int64_t i = 0; i < param->numel; i++)
            assert_true(((const float *)param->data)[i] ==
                        (float)((7 * (param->index == RIG_HEAD ? 0 : param->index) + i) % 29) / 8.0f - 1.5f);
        }
        rig_ok(ordo_session_post_forward(r.session, 1, u), "post_forward");
      }
      rig_ok(ordo_session_eval_end(r.session), "eval_end");
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2}), "step");
    }
    rig_compare(&r);
    rig_end(&r);
  }
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(trains_in_every_mode),
      cmocka_unit_test(trains_in_ordered_mode_with_clipping),
      cmocka_unit_test(trains_without_ties),
      cmocka_unit_test(frozen_subsets_stay),
      cmocka_unit_test(frozen_only_unit_without_views),
      cmocka_unit_test(unused_parameters),
      cmocka_unit_test(a_flat_leaf_cannot_skip_a_part),
      cmocka_unit_test(a_unit_whose_forward_never_runs),
      cmocka_unit_test(a_unit_that_only_the_first_micro_batch_uses),
      cmocka_unit_test(evaluates_between_steps),
      cmocka_unit_test(evaluates_without_an_optimizer),
      cmocka_unit_test(the_optimizer_sees_shards),
      cmocka_unit_test(views_keep_groups),
      cmocka_unit_test(collectives_are_counted),
      cmocka_unit_test(trains_with_bf16_parameters),
      cmocka_unit_test(trains_with_f16_parameters),
      cmocka_unit_test(more_ranks_than_any_dimension),
      cmocka_unit_test(module_states_are_synchronised),
      cmocka_unit_test(ignored_parameters_stay_whole),
      cmocka_unit_test(full_parameters_are_written_back),
      cmocka_unit_test(full_parameters_on_rank_0_only),
      cmocka_unit_test(hybrid_sharding),
      cmocka_unit_test(two_models_in_one_session),
  };
  rig_start(argc, argv);
  return rig_stop(cmocka_run_group_tests(tests, NULL, NULL));
}
