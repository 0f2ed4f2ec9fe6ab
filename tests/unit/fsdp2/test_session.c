/* test_session.c - fsdp2 in real sessions on real ranks: every mode trains, gathers, counts and restores what it must. See ../fsdp1/rig.h.
 *
 * Under mpirun; argument 1 is the plugin path. Cases that need a certain number of ranks say so and are left out on others. With more than
 * 37 ranks every parameter has empty shards, with 5 the vectors of 5 elements have one row each, with 3 the last one is short.
 */
#include "../fsdp1/rig.h"

#include <stdio.h>
#include <string.h>

static const char *const MODES[] = {
    "fsdp2",
    "fsdp2:reshard_after_forward=false",
    "fsdp2:no_sync=false",
    "fsdp2:no_sync=false:reshard_after_forward=false",
    "fsdp2:backward_prefetch=post",
    "fsdp2:backward_prefetch=none:forward_prefetch=false",
    "fsdp2:limit_all_gathers=false",
    "fsdp2:units=none",
    "fsdp2:units=size:unit_size=100",
    "fsdp2:units=list:unit_list=layers.[01]",
    "fsdp2:units=list:unit_list=layers.0,layers.[12]",
    "fsdp2:units=class:unit_classes=Block",
    "fsdp2:poison=false",
    "fsdp2_kept",
};
enum { N_MODES = sizeof MODES / sizeof MODES[0] };

static rig_options options_of(const char *strategy)
{
  return (rig_options){.strategy = strategy, .rebinds = 1, .untied = strstr(strategy, "units=size") != NULL};
}

static void train(const rig_options *options, const rig_step_spec *spec, int steps)
{
  rig r;
  rig_ok(rig_begin(&r, options), options->strategy);
  rig_compare(&r);
  for (int s = 0; s < steps; s++) {
    rig_ok(rig_train(&r, spec), options->strategy);
    rig_compare(&r);
  }
  rig_end(&r);
}

static void trains_in_every_mode(void **state)
{
  (void)state;
  for (size_t m = 0; m < N_MODES; m++)
    for (int n_micro = 1; n_micro <= 3; n_micro += 2) {
      const rig_options options = options_of(MODES[m]);
      train(&options, &(rig_step_spec){.n_micro = n_micro}, 3);
    }
}

static void trains_in_ordered_mode_with_clipping(void **state)
{
  (void)state;
  for (size_t m = 0; m < 3; m++) {
    rig_options options = options_of(MODES[m]);
    options.ordered = 1;
    options.clip = 64.0;
    train(&options, &(rig_step_spec){.n_micro = 2}, 3);
  }
}

static void keeps_a_part_between_forward_and_backward(void **state)
{
  (void)state;
  if (rig_ranks != 4)
    return;
  const rig_options options = options_of("fsdp2:reshard_after_forward=2");
  train(&options, &(rig_step_spec){.n_micro = 1}, 3);
  train(&options, &(rig_step_spec){.n_micro = 2}, 2);
}

static void replicas_of_shards(void **state)
{
  static const char *const modes[] = {"ddp=2+fsdp2=2", "fsdp2=2+ddp=2", "ddp=2+fsdp2=2:no_sync=false",
                                      "ddp=2+fsdp2=2:reshard_after_forward=false"};
  (void)state;
  for (size_t m = 0; rig_ranks == 4 && m < 8; m++) {
    rig_options options = options_of(modes[m % 4]);
    options.ordered = m >= 4;
    train(&options, &(rig_step_spec){.n_micro = 2}, 4);
  }
}

/* Ordered: one sum over both axes, in which frozen, unused and 16-bit gradients have their places too. */
static void one_sum_over_two_axes(void **state)
{
  static const char *const modes[] = {"ddp=2+fsdp2=2", "fsdp2=2+ddp=2", "ddp=2+fsdp2=2:reduce_dtype=bf16",
                                      "fsdp2=2:reduce_dtype=f16+ddp=2"};
  (void)state;
  for (size_t m = 0; rig_ranks == 4 && m < 4; m++) {
    rig_step_spec spec = {.n_micro = 1,
                          .skip_params = {1u << 4 | 1u << 6, 1u << 6, 1u << 4, 0}}; /* p4, p6: only the other shard group has one */
    rig_options options = options_of(modes[m]);
    options.ordered = 1;
    options.clip = m < 2 ? 64.0 : 0.0;
    for (int r = 0; r < 4; r++)
      spec.skip_params[r] |= 1u << 5;
    train(&options, &spec, 3);
    options.frozen = 1u << 1 | 1u << 2 | 1u << 3;
    train(&options, &(rig_step_spec){.n_micro = m < 2 ? 2 : 1}, 3);
  }
}

/* p1, p2 frozen: a unit of frozen parameters only; p3 frozen: mixed with trained ones; p0 and p8: the tied matrix. */
static void frozen_subsets_stay(void **state)
{
  (void)state;
  for (size_t m = 0; m < 3; m++) {
    rig_options options = options_of(MODES[m]);
    options.frozen = 1u << 1 | 1u << 2 | 1u << 3;
    train(&options, &(rig_step_spec){.n_micro = 2}, 3);
    options.frozen = 1u << 0 | 1u << 8;
    train(&options, &(rig_step_spec){.n_micro = 1}, 2);
  }
}

/* A parameter without gradient on one rank still takes the others'; one that nobody uses is left alone, by weight decay too. */
static void unused_parameters(void **state)
{
  (void)state;
  for (size_t m = 0; m < N_MODES; m++) {
    rig_step_spec spec = {.n_micro = 2};
    const rig_options options = options_of(MODES[m]);
    spec.skip_params[0] = 1u << 4;
    for (int rank = 0; rank < rig_ranks; rank++)
      spec.skip_params[rank] |= 1u << 5;
    train(&options, &spec, 2);
  }
}

static void a_unit_whose_forward_never_runs(void **state)
{
  (void)state;
  for (size_t m = 0; m < N_MODES; m++) {
    rig r;
    const rig_options options = options_of(MODES[m]);
    rig_ok(rig_begin(&r, &options), MODES[m]);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), MODES[m]);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2, .skip_units = 1u << 2}), MODES[m]);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2, .skip_late = 1u << 2, .backward_only_in = 1}), MODES[m]);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2}), MODES[m]);
    rig_compare(&r);
    rig_end(&r);
  }
}

static void evaluates_with_and_without_an_optimizer(void **state)
{
  (void)state;
  for (size_t m = 0; m < N_MODES; m++) {
    rig r;
    rig_options options = options_of(MODES[m]);
    rig_ok(rig_begin(&r, &options), MODES[m]);
    rig_evaluate(&r);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), MODES[m]);
    rig_evaluate(&r);
    rig_compare(&r);
    rig_end(&r);
    options.flags = ORDO_PLAN_EVAL;
    rig_ok(rig_begin(&r, &options), MODES[m]);
    rig_evaluate(&r);
    rig_compare(&r);
    assert_int_equal(r.optimizers_made, 0);
    rig_end(&r);
  }
}

/* The factory runs once, on whole leaves; groups, a frozen subset and state from before carry over. */
static void the_optimizer_follows_with_its_state(void **state)
{
  (void)state;
  rig r;
  rig_options options = options_of("fsdp2");
  options.eager = 1;
  options.frozen = 1u << 5;
  rig_ok(rig_begin(&r, &options), "fsdp2");
  assert_int_equal(r.optimizers_made, 1);
  assert_int_equal(r.rebound, 1);
  assert_int_equal(r.groups[0].n_leaves, 3);
  assert_int_equal(r.groups[1].n_leaves, 4);
  for (int g = 0; g < 2; g++)
    for (uint64_t l = 0; l < r.groups[g].n_leaves; l++) {
      const ordo_leaf *leaf = r.leaves[g][l];
      assert_int_equal(leaf->state, ORDO_LEAF_LIVE);
      assert_int_equal((leaf->flags & ORDO_PARAM_DECAY) != 0, g == 0);
    }
  for (int s = 0; s < 2; s++)
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  rig_compare(&r);
  rig_end(&r);
}

/* One all-gather per group and pass (the root is gathered once), one reduce-scatter per group; chunks are padded to the first rank's. */
static void collectives_are_counted(void **state)
{
  static const struct {
    const char *strategy;
    uint64_t gathers, scatters;
    int n_micro;
  } rows[] = {
      {"fsdp2", 7, 4, 1}, {"fsdp2:reshard_after_forward=false", 4, 4, 1}, {"fsdp2:units=none", 1, 1, 1}, {"fsdp2:no_sync=false", 14, 8, 2}};
  (void)state;
  for (size_t i = 0; rig_ranks > 1 && i < sizeof rows / sizeof rows[0]; i++) {
    rig r;
    uint64_t bytes[2][2];
    const rig_options options = options_of(rows[i].strategy);
    const uint64_t w = (uint64_t)rig_ranks, root = ((37 + w - 1) / w * 5 + (5 + w - 1) / w) * w,
                   block = ((13 + w - 1) / w * 5 + (5 + w - 1) / w) * w;
    rig_ok(rig_begin(&r, &options), rows[i].strategy);
    uint64_t gathers = rig_calls(&r, "fsdp2", ORDO_ALL_GATHER, &bytes[0][0]),
             scatters = rig_calls(&r, "fsdp2", ORDO_REDUCE_SCATTER, &bytes[0][1]);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = rows[i].n_micro}), "step");
    assert_int_equal(rig_calls(&r, "fsdp2", ORDO_ALL_GATHER, &bytes[1][0]) - gathers, rows[i].gathers);
    assert_int_equal(rig_calls(&r, "fsdp2", ORDO_REDUCE_SCATTER, &bytes[1][1]) - scatters, rows[i].scatters);
    if (i < 2) {
      assert_int_equal(bytes[1][0] - bytes[0][0], (root + 3 * block * (i == 0 ? 2 : 1)) * 4);
      assert_int_equal(bytes[1][1] - bytes[0][1], (root + 3 * block) * 4);
    }
    rig_end(&r);
  }
}

/* Parameters travel and compute as bf16 values, weights stay fp32; small integers as gradients are exact in bf16. */
static void trains_with_16_bit_messages(void **state)
{
  static const char *const modes[] = {"fsdp2_bf16", "fsdp2_bf16:reduce_dtype=f32",
                                      "fsdp2_bf16:reduce_dtype=f32:reshard_after_forward=false", "fsdp2_bf16:no_sync=false"};
  (void)state;
  for (size_t m = 0; m < 4; m++) {
    rig_options options = options_of(modes[m]);
    options.rounded = ORDO_BF16;
    train(&options, &(rig_step_spec){.n_micro = 1}, 3);
  }
  const rig_options halves = options_of("fsdp2:reduce_dtype=f16");
  train(&halves, &(rig_step_spec){.n_micro = 1}, 3);
}

static void ignored_parameters_stay_whole(void **state)
{
  (void)state;
  rig r;
  rig_options options = options_of("fsdp2:ignored=p3");
  options.frozen = 1u << 3;
  rig_ok(rig_begin(&r, &options), options.strategy);
  assert_int_equal(r.model->params[3]->leaf->numel, rig_numel(3));
  for (int s = 0; s < 2; s++)
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), options.strategy);
  rig_compare(&r);
  rig_end(&r);
}

/* Changes inside a write-back scope reach the shards; without the flag they are dropped; with RANK0_ONLY only rank 0 has to make them. */
static void full_parameters_are_written_back(void **state)
{
  static const uint32_t flags[] = {0, ORDO_GATHER_WRITE_BACK, ORDO_GATHER_WRITE_BACK | ORDO_GATHER_RANK0_ONLY};
  (void)state;
  for (size_t m = 0; m < 3; m++)
    for (int f = 0; f < 3; f++) {
      rig r;
      const rig_options options = options_of(MODES[m]);
      rig_ok(rig_begin(&r, &options), MODES[m]);
      rig_ok(ordo_session_gather_full(r.session, 0, flags[f]), "gather_full");
      for (int p = 0; p < RIG_HEAD; p++)
        for (int64_t i = 0; i < rig_numel(p); i++) {
          if (rig_rank == 0 || f < 2)
            ((float *)r.model->params[p]->data)[i] += 2.0f;
          r.reference[p][i] += f > 0 ? 2.0f : 0.0f;
        }
      rig_ok(ordo_session_release_full(r.session, 0), "release_full");
      rig_compare(&r);
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
      rig_compare(&r);
      rig_end(&r);
    }
}

/* A frozen second model is gathered like the first, and has no optimizer. */
static void two_models_in_one_session(void **state)
{
  (void)state;
  for (size_t m = 0; m < 3; m++) {
    rig r;
    rig_options options = options_of(MODES[m]);
    options.two_models = 1;
    rig_ok(rig_begin(&r, &options), MODES[m]);
    const ordo_model *other = ordo_session_model(r.session, 1);
    assert_int_equal(r.optimizers_made, 1);
    for (int s = 0; s < 2; s++) {
      rig_ok(ordo_session_eval_begin(r.session), "eval_begin");
      for (uint32_t u = 0; u < RIG_UNITS; u++) {
        rig_ok(ordo_session_pre_forward(r.session, 1, u), "pre_forward");
        for (uint32_t p = 0; p < other->units[u]->n_params; p++)
          assert_non_null(other->units[u]->params[p]->data);
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
      cmocka_unit_test(keeps_a_part_between_forward_and_backward),
      cmocka_unit_test(replicas_of_shards),
      cmocka_unit_test(one_sum_over_two_axes),
      cmocka_unit_test(frozen_subsets_stay),
      cmocka_unit_test(unused_parameters),
      cmocka_unit_test(a_unit_whose_forward_never_runs),
      cmocka_unit_test(evaluates_with_and_without_an_optimizer),
      cmocka_unit_test(the_optimizer_follows_with_its_state),
      cmocka_unit_test(collectives_are_counted),
      cmocka_unit_test(trains_with_16_bit_messages),
      cmocka_unit_test(ignored_parameters_stay_whole),
      cmocka_unit_test(full_parameters_are_written_back),
      cmocka_unit_test(two_models_in_one_session),
  };
  rig_start(argc, argv);
  return rig_stop(cmocka_run_group_tests(tests, NULL, NULL));
}
