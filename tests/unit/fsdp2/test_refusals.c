/* test_refusals.c - bad input, hostile order and failures in the middle of prepare_joint: each a named error on every rank, with model and
 * optimizer as before, never silence. See ../fsdp1/rig.h. Under mpirun. */
#include "../fsdp1/rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void refused(const rig_options *options, ordo_status status, const char *words)
{
  rig r;
  rig_expect(rig_begin(&r, options), status, words);
  rig_end(&r);
}

static void ties_must_be_in_one_group(void **state)
{
  (void)state;
  refused(&(rig_options){.strategy = "fsdp2:units=list:unit_list=head", .rebinds = 1}, ORDO_E_INVALID, "'p0'|'p8'|'embed'|'head'|tied");
}

static void other_types_are_named(void **state)
{
  (void)state;
  refused(&(rig_options){.strategy = "fsdp2", .wide_param = 4, .rebinds = 1}, ORDO_E_UNSUPPORTED, "'p4' is f64|f32, bf16 or f16|ignored");
}

/* Excluding a trained parameter is refused on several ranks, so nothing may advise it there; what is advised must work. */
static void the_advice_for_a_type_that_cannot_be_sharded_works(void **state)
{
  rig r;
  const rig_options trained = {.strategy = "fsdp2", .wide_param = 4, .rebinds = 1};
  const rig_options excluded = {.strategy = "fsdp2:ignored=p4", .wide_param = 4, .rebinds = 1};
  const rig_options advised = {.strategy = "fsdp2:ignored=p4", .wide_param = 4, .frozen = 1u << 4, .rebinds = 1};
  (void)state;
  if (rig_ranks > 1) {
    refused(&trained, ORDO_E_UNSUPPORTED, "or freeze it (requires_grad off) and exclude it with fsdp2:ignored=NAME");
    refused(&excluded, ORDO_E_UNSUPPORTED, "'p4' is trained|freeze the parameter");
  } else {
    refused(&trained, ORDO_E_UNSUPPORTED, "or exclude it with fsdp2:ignored=NAME");
  }
  rig_ok(rig_begin(&r, &advised), "frozen and excluded");
  rig_end(&r);
}

static void patterns_must_match(void **state)
{
  (void)state;
  refused(&(rig_options){.strategy = "fsdp2:ignored=p3,q*", .rebinds = 1}, ORDO_E_INVALID, "pattern number 2|'p3,q*'");
  refused(&(rig_options){.strategy = "fsdp2:units=list:unit_list=layer.*", .rebinds = 1}, ORDO_E_INVALID,
          "unit_list|pattern number 1|units are 'embed'");
  refused(&(rig_options){.strategy = "fsdp2:units=list:unit_list=layers.0,layers.*", .rebinds = 1}, ORDO_E_INVALID,
          "'layers.0' matches two");
  refused(&(rig_options){.strategy = "fsdp2:units=list", .rebinds = 1}, ORDO_E_INVALID, "units=list without unit_list");
  refused(&(rig_options){.strategy = "fsdp2:units=class", .rebinds = 1}, ORDO_E_INVALID, "units=class without unit_classes");
  refused(&(rig_options){.strategy = "fsdp2:ignored=*", .rebinds = 1}, ORDO_E_INVALID, "nothing to shard");
}

/* A setting that nobody reads would be believed. */
static void options_without_effect_are_refused(void **state)
{
  (void)state;
  refused(&(rig_options){.strategy = "fsdp2:unit_classes=Block", .rebinds = 1}, ORDO_E_INVALID,
          "unit_classes=Block has no effect|units=class|'block'");
  refused(&(rig_options){.strategy = "fsdp2:units=class:unit_classes=Block:unit_list=layers.*", .rebinds = 1}, ORDO_E_INVALID,
          "unit_list=layers.* has no effect|units=list");
  refused(&(rig_options){.strategy = "fsdp2:units=none:unit_size=7", .rebinds = 1}, ORDO_E_INVALID, "unit_size=7 has no effect|units=size");
}

/* Each rank would update its copy with the gradient of its own part of the batch. */
static void a_trained_parameter_is_not_ignored(void **state)
{
  (void)state;
  if (rig_ranks > 1)
    refused(&(rig_options){.strategy = "fsdp2:ignored=p3", .rebinds = 1}, ORDO_E_UNSUPPORTED,
            "'p3' is trained|not reduced|requires_grad off");
}

static void options_must_fit(void **state)
{
  (void)state;
  refused(&(rig_options){.strategy = "fsdp2:reshard_after_forward=often", .rebinds = 1}, ORDO_E_INVALID, "'often'|neither true, false");
  refused(&(rig_options){.strategy = "fsdp2:reshard_after_forward=1", .rebinds = 1}, ORDO_E_INVALID,
          "'reshard_after_forward' = '1'|that is 'false'");
  refused(&(rig_options){.strategy = "fsdp2:reshard_after_forward=7", .rebinds = 1}, ORDO_E_INVALID,
          "'reshard_after_forward' = '7'|cannot be divided");
  char all[64];
  snprintf(all, sizeof all, "fsdp2:reshard_after_forward=%d", rig_ranks);
  if (rig_ranks > 1)
    refused(&(rig_options){.strategy = all, .rebinds = 1}, ORDO_E_INVALID, "that is 'true'");
  refused(&(rig_options){.strategy = "fsdp2:offload=disk", .rebinds = 1}, ORDO_E_INVALID, "offload=disk without a directory");
  refused(&(rig_options){.strategy = "fsdp2:offload=disk:/does/not/exist", .rebinds = 1}, ORDO_E_IO, "/does/not/exist");
}

/* An optimizer that cannot follow would step on dead leaves. */
static void an_optimizer_must_follow(void **state)
{
  (void)state;
  rig r;
  rig_expect(rig_begin(&r, &(rig_options){.strategy = "fsdp2"}), ORDO_E_UNSUPPORTED,
             "optimizer 'sgd'|cannot follow to new leaves|ordo_optimizer.rebind is null");
  assert_int_equal(r.restored, 1);
  rig_end(&r);
}

/* Whatever refuses in the middle, groups, state and leaves are those from before when the optimizer is taken down. */
static void a_refusal_leaves_both_as_before(void **state)
{
  (void)state;
  rig r;
  rig_expect(rig_begin(&r, &(rig_options){.strategy = "fsdp2", .rebinds = 1, .eager = 1, .fail_rebind = 1}), ORDO_E_UNSUPPORTED,
             "rebind refuses");
  assert_int_equal(r.restored, 1);
  rig_end(&r);
}

static long countdown; /* allocations until one fails; below 0: none */

static void *failing_alloc(void *ctx, size_t bytes, uint32_t tag)
{
  (void)ctx, (void)tag;
  return countdown-- == 0 ? NULL : aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static void failing_free(void *ctx, void *pointer, size_t bytes, uint32_t tag)
{
  (void)ctx, (void)bytes, (void)tag;
  free(pointer);
}

/* Every allocation of the set-up fails in turn, on all ranks alike. */
static void every_allocation_may_fail(void **state)
{
  ordo_context *kept = rig_context;
  const ordo_context_options options = {.struct_size = sizeof options,
                                        .program_name = "test",
                                        .plugin_path = rig_path,
                                        .alloc = failing_alloc,
                                        .free = failing_free,
                                        .flags = ORDO_CONTEXT_NO_ENVIRONMENT | ORDO_CONTEXT_NO_DEFAULT_PATH | ORDO_CONTEXT_ALLOW_INSECURE};
  int failures = 0, restored = 0;
  (void)state;
  countdown = -1;
  assert_int_equal(ordo_context_create(&options, &rig_context), ORDO_OK);
  for (long n = 0;; n++) {
    rig r;
    const rig_options one = {.strategy = "fsdp2", .rebinds = 1, .eager = 1};
    countdown = n;
    ordo_status status = rig_begin(&r, &one);
    countdown = -1;
    if (status == ORDO_OK) {
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
      rig_end(&r);
      break;
    }
    rig_expect(status, ORDO_E_NOMEM, "");
    failures++;
    restored += r.optimizers_made == 0 || r.restored;
    rig_end(&r);
  }
  ordo_context_destroy(rig_context);
  rig_context = kept;
  assert_true(failures > 10);
  assert_int_equal(restored, failures);
}

/* Every bind of the set-up and of the first step is refused in turn. */
static void every_bind_may_be_refused(void **state)
{
  int refusals = 0;
  (void)state;
  for (int n = 1;; n++) {
    rig r;
    const rig_options options = {.strategy = "fsdp2", .rebinds = 1, .eager = 1, .fail_bind = n};
    ordo_status status = rig_begin(&r, &options);
    if (status == ORDO_OK)
      status = rig_train(&r, &(rig_step_spec){.n_micro = 1});
    const int done = status == ORDO_OK;
    if (!done)
      rig_expect(status, ORDO_E_STATE, "bind refuses");
    refusals += !done;
    rig_end(&r);
    if (done)
      break;
  }
  assert_true(refusals > 10);
}

/* A pointer kept past the unit reads NaN: whatever is computed with it is refused by the norm. */
static void a_kept_pointer_reads_nan(void **state)
{
  (void)state;
  rig r;
  rig_ok(rig_begin(&r, &(rig_options){.strategy = "fsdp2", .rebinds = 1}), "fsdp2");
  rig_ok(ordo_session_eval_begin(r.session), "eval_begin");
  rig_ok(ordo_session_pre_forward(r.session, 0, 1), "pre_forward");
  const float *kept = r.model->params[1]->data;
  assert_true(isfinite(kept[0]));
  rig_ok(ordo_session_post_forward(r.session, 0, 1), "post_forward");
  assert_null(r.model->params[1]->data);
  for (int64_t i = 0; i < rig_numel(1); i++)
    assert_true(isnan(kept[i]));
  rig_ok(ordo_session_eval_end(r.session), "eval_end");
  rig_end(&r);
}

/* Rank 0 leaves a unit out that the others run: all of them learn which groups did not match. */
static void ranks_that_run_other_units_are_named(void **state)
{
  (void)state;
  rig r;
  if (rig_ranks == 1)
    return;
  rig_ok(rig_begin(&r, &(rig_options){.strategy = "fsdp2:forward_prefetch=false", .rebinds = 1}), "fsdp2");
  rig_ok(ordo_session_eval_begin(r.session), "eval_begin");
  ordo_status status = ordo_session_pre_forward(r.session, 0, rig_rank == 0 ? 2 : 1);
  rig_expect(status, ORDO_E_MISMATCH, "'layers.1'|'layers.0'");
  rig_end(&r);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ties_must_be_in_one_group),
      cmocka_unit_test(other_types_are_named),
      cmocka_unit_test(the_advice_for_a_type_that_cannot_be_sharded_works),
      cmocka_unit_test(patterns_must_match),
      cmocka_unit_test(options_without_effect_are_refused),
      cmocka_unit_test(a_trained_parameter_is_not_ignored),
      cmocka_unit_test(options_must_fit),
      cmocka_unit_test(an_optimizer_must_follow),
      cmocka_unit_test(a_refusal_leaves_both_as_before),
      cmocka_unit_test(every_allocation_may_fail),
      cmocka_unit_test(every_bind_may_be_refused),
      cmocka_unit_test(a_kept_pointer_reads_nan),
      cmocka_unit_test(ranks_that_run_other_units_are_named), /* the last one: communicators are dead afterwards */
  };
  rig_start(argc, argv);
  return rig_stop(cmocka_run_group_tests(tests, NULL, NULL));
}
