/* test_session.c - fsdp2 in real sessions on real ranks: every mode trains, gathers, counts and restores what it must. See ../fsdp1/rig.h;
 * cases that fsdp1 has as well are in ../fsdp1/shared.c.
 *
 * Under mpirun; argument 1 is the plugin path. With more than 37 ranks every parameter has empty shards, with 5 the vectors of 5 elements
 * have one row each, with 3 the last one is short.
 */
#include "../fsdp1/shared.h"

#include <ordo/half.h>

const shared_strategy shared = {
    .axis = "fsdp2",
    .modes = {"fsdp2", "fsdp2:reshard_after_forward=false", "fsdp2:no_sync=false", "fsdp2:no_sync=false:reshard_after_forward=false",
              "fsdp2:backward_prefetch=post", "fsdp2:backward_prefetch=none:forward_prefetch=false", "fsdp2:limit_all_gathers=false",
              "fsdp2:units=none", "fsdp2:units=size:unit_size=100", "fsdp2:units=list:unit_list=layers.[01]",
              "fsdp2:units=list:unit_list=layers.0,layers.[12]", "fsdp2:units=class:unit_classes=Block", "fsdp2:poison=false",
              "fsdp2_kept"},
    .precision = {"fsdp2_bf16", "fsdp2_bf16:reduce_dtype=f32", "fsdp2_bf16:reduce_dtype=f32:reshard_after_forward=false",
                  "fsdp2_bf16:no_sync=false"},
    .frozen = {"fsdp2", "fsdp2:reshard_after_forward=false", "fsdp2:no_sync=false"},
    .ignored = {"fsdp2:ignored=p3"},
    .replicas = {"ddp=2+fsdp2=2", "fsdp2=2+ddp=2", "ddp=2+fsdp2=2:no_sync=false", "ddp=2+fsdp2=2:reshard_after_forward=false"},
    .one_sum = {"ddp=2+fsdp2=2", "fsdp2=2+ddp=2", "ddp=2+fsdp2=2:reduce_dtype=bf16", "fsdp2=2:reduce_dtype=f16+ddp=2"},
    .counts = {{"fsdp2", 1, 7, 4, 0},
               {"fsdp2:reshard_after_forward=false", 1, 4, 4, 0},
               {"fsdp2:units=none", 1, 1, 1, 0},
               {"fsdp2:no_sync=false", 2, 14, 8, 0}},
};

static void keeps_a_part_between_forward_and_backward(void **state)
{
  (void)state;
  if (rig_ranks != 4)
    return;
  const rig_options options = shared_options("fsdp2:reshard_after_forward=2");
  shared_train(&options, &(rig_step_spec){.n_micro = 1}, 3);
  shared_train(&options, &(rig_step_spec){.n_micro = 2}, 2);
}

/* The factory runs once, on whole leaves; groups, a frozen subset and state from before carry over. */
static void the_optimizer_follows_with_its_state(void **state)
{
  (void)state;
  rig r;
  rig_options options = shared_options("fsdp2");
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

/* Chunks are padded to the first rank's. */
static void bytes_are_those_of_the_padded_chunks(void **state)
{
  static const char *const modes[] = {"fsdp2", "fsdp2:reshard_after_forward=false"};
  (void)state;
  for (int m = 0; rig_ranks > 1 && m < 2; m++) {
    rig r;
    uint64_t bytes[2][2];
    const rig_options options = shared_options(modes[m]);
    const uint64_t w = (uint64_t)rig_ranks, root = ((37 + w - 1) / w * 5 + (5 + w - 1) / w) * w,
                   block = ((13 + w - 1) / w * 5 + (5 + w - 1) / w) * w;
    rig_ok(rig_begin(&r, &options), modes[m]);
    for (int s = 0; s < 2; s++) {
      (void)rig_calls(&r, "fsdp2", ORDO_ALL_GATHER, &bytes[s][0]);
      (void)rig_calls(&r, "fsdp2", ORDO_REDUCE_SCATTER, &bytes[s][1]);
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
    }
    assert_int_equal(bytes[1][0] - bytes[0][0], (root + 3 * block * (m == 0 ? 2 : 1)) * 4);
    assert_int_equal(bytes[1][1] - bytes[0][1], (root + 3 * block) * 4);
    rig_end(&r);
  }
}

static void trains_with_f16_reductions(void **state)
{
  (void)state;
  const rig_options options = shared_options("fsdp2:reduce_dtype=f16");
  shared_train(&options, &(rig_step_spec){.n_micro = 1}, 3);
}

/* ---- output_dtype ---- */

typedef struct outputs {
  rig *r;
  int from_rank;    /* ranks from this one on offer nothing */
  uint32_t rounded; /* bit per unit: forward, + 8: backward */
} outputs;

/* Offers what the unit hands on, as a program does that computes in f32. */
static void offer(void *ctx, uint32_t unit, int backward)
{
  outputs *o = ctx;
  float values[2] = {1.0f + 1.0f / 512, 3.0f};
  ordo_activation activation = {.struct_size = sizeof activation,
                                .point = ORDO_ACT_UNIT_OUTPUT,
                                .unit = unit,
                                .backward = backward,
                                .dtype = ORDO_F32,
                                .rows = 2,
                                .columns = 1,
                                .data = values,
                                .out_rows = 2,
                                .out_columns = 1,
                                .out = values};
  if (rig_rank >= o->from_rank)
    return;
  rig_ok(ordo_session_activation(o->r->session, 0, &activation), "activation");
  assert_true(values[1] == 3.0f);
  if (values[0] == ordo_f32_from_bf16(ordo_bf16_from_f32(1.0f + 1.0f / 512)))
    o->rounded |= 1u << (unit + (backward ? 8 : 0));
  else
    assert_true(values[0] == 1.0f + 1.0f / 512);
  activation.point = ORDO_ACT_ROW_OUTPUT; /* inside the unit nothing is cast */
  values[0] = 1.0f + 1.0f / 512;
  rig_ok(ordo_session_activation(o->r->session, 0, &activation), "activation");
  assert_true(values[0] == 1.0f + 1.0f / 512);
}

/* What the last unit of a group hands on is cast, and the gradient that comes back for it: blocks, and the root's logits. */
static void what_leaves_a_group_has_the_output_type(void **state)
{
  static const struct {
    const char *strategy;
    uint32_t units;
  } rows[] = {{"fsdp2:output_dtype=bf16", 1u << 1 | 1u << 2 | 1u << 3 | 1u << 4},
              {"fsdp2:output_dtype=bf16:units=none", 1u << 4},
              {"fsdp2:output_dtype=bf16:units=list:unit_list=layers.[01]", 1u << 2 | 1u << 4},
              {"fsdp2", 0}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    rig r;
    outputs o = {.r = &r, .from_rank = rig_ranks};
    const rig_options options = shared_options(rows[i].strategy);
    rig_ok(rig_begin(&r, &options), rows[i].strategy);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2, .in_unit = offer, .ctx = &o}), rows[i].strategy);
    assert_int_equal(o.rounded, rows[i].units | rows[i].units << 8);
    rig_compare(&r);
    rig_end(&r);
  }
}

/* A rank without a token in a pass offers nothing, which is fine; a program that never does must hear that the option means nothing. */
static void a_program_must_offer_its_outputs(void **state)
{
  (void)state;
  rig r;
  outputs o = {.r = &r, .from_rank = 1};
  const rig_options options = shared_options("fsdp2:output_dtype=f16");
  rig_ok(rig_begin(&r, &options), options.strategy);
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1, .in_unit = offer, .ctx = &o}), "only rank 0");
  rig_evaluate(&r);
  rig_end(&r);
  rig_ok(rig_begin(&r, &options), options.strategy);
  rig_expect(rig_train(&r, &(rig_step_spec){.n_micro = 1}), ORDO_E_UNSUPPORTED, "output_dtype|the output of no unit|ORDO_ACT_UNIT_OUTPUT");
  rig_end(&r);
  rig_ok(rig_begin(&r, &options), options.strategy);
  rig_ok(ordo_session_eval_begin(r.session), "eval_begin");
  rig_ok(ordo_session_eval_end(r.session), "an evaluation of nothing");
  rig_ok(ordo_session_eval_begin(r.session), "eval_begin");
  rig_ok(ordo_session_pre_forward(r.session, 0, 0), "pre_forward");
  rig_ok(ordo_session_post_forward(r.session, 0, 0), "post_forward");
  rig_expect(ordo_session_eval_end(r.session), ORDO_E_UNSUPPORTED, "output_dtype");
  rig_end(&r);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      SHARED_CASES,
      cmocka_unit_test(keeps_a_part_between_forward_and_backward),
      cmocka_unit_test(the_optimizer_follows_with_its_state),
      cmocka_unit_test(bytes_are_those_of_the_padded_chunks),
      cmocka_unit_test(trains_with_f16_reductions),
      cmocka_unit_test(what_leaves_a_group_has_the_output_type),
      cmocka_unit_test(a_program_must_offer_its_outputs),
  };
  rig_start(argc, argv);
  return rig_stop(cmocka_run_group_tests(tests, NULL, NULL));
}
