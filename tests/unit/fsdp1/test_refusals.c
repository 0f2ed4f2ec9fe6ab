/* test_refusals.c - bad input and hostile order: each a named error on every rank, never silence. See rig.h. Under mpirun. */
#include "rig.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void refused(const rig_options *options, ordo_status status, const char *words)
{
  rig r;
  rig_expect(rig_begin(&r, options), status, words);
  rig_end(&r);
}

static void flat_leaves_need_one_decay_hint(void **state)
{
  (void)state;
  refused(&(rig_options){.strategy = "fsdp1:use_orig_params=false"}, ORDO_E_INVALID, "'p1'|'p2'|weight decay|use_orig_params=true");
}

static void flat_leaves_need_one_requires_grad(void **state)
{
  (void)state;
  refused(&(rig_options){.strategy = "fsdp1_flat", .frozen = 1u << 3, .no_decay = 1}, ORDO_E_INVALID,
          "'p3'|'p4'|only one of them is trained");
}

static void ties_must_be_in_one_unit(void **state)
{
  (void)state;
  refused(&(rig_options){.strategy = "fsdp1:units=list:unit_list=head"}, ORDO_E_INVALID, "'p0'|'p8'|'embed'|'head'|share storage");
}

static void other_types_are_named(void **state)
{
  (void)state;
  refused(&(rig_options){.strategy = "fsdp1", .wide_param = 4}, ORDO_E_UNSUPPORTED, "'p4' is stored as f64|f32, bf16 or f16|ignored");
}

/* Excluding a trained parameter is refused on several ranks, so nothing may advise it there; what is advised must work. */
static void the_advice_for_a_type_that_cannot_be_sharded_works(void **state)
{
  rig r;
  const rig_options trained = {.strategy = "fsdp1", .wide_param = 4};
  const rig_options excluded = {.strategy = "fsdp1:ignored=p4", .wide_param = 4};
  const rig_options advised = {.strategy = "fsdp1:ignored=p4", .wide_param = 4, .frozen = 1u << 4};
  (void)state;
  if (rig_ranks > 1) {
    refused(&trained, ORDO_E_UNSUPPORTED, "or freeze it (requires_grad off) and exclude it with fsdp1:ignored=NAME");
    refused(&excluded, ORDO_E_UNSUPPORTED, "'p4' is trained|freeze the parameter");
  } else {
    refused(&trained, ORDO_E_UNSUPPORTED, "or exclude it with fsdp1:ignored=NAME");
  }
  rig_ok(rig_begin(&r, &advised), "frozen and excluded");
  rig_end(&r);
}

static void patterns_must_match(void **state)
{
  (void)state;
  refused(&(rig_options){.strategy = "fsdp1:ignored=p3,q*"}, ORDO_E_INVALID, "pattern number 2|'p3,q*'");
  refused(&(rig_options){.strategy = "fsdp1:units=list:unit_list=layer.*"}, ORDO_E_INVALID,
          "unit_list|pattern number 1|units are 'embed', 'layers.0'");
  refused(&(rig_options){.strategy = "fsdp1:units=class:unit_classes=Blocks"}, ORDO_E_INVALID,
          "unit_classes|pattern number 1|classes of units are '");
  refused(&(rig_options){.strategy = "fsdp1:units=list:unit_list=layers.0,layers.*"}, ORDO_E_INVALID, "'layers.0' matches two");
  refused(&(rig_options){.strategy = "fsdp1:units=list"}, ORDO_E_INVALID, "units=list without unit_list");
  refused(&(rig_options){.strategy = "fsdp1:units=class"}, ORDO_E_INVALID, "units=class without unit_classes");
  refused(&(rig_options){.strategy = "fsdp1:ignored=*"}, ORDO_E_INVALID, "nothing to shard");
}

/* A setting that nobody reads would be believed. */
static void options_without_effect_are_refused(void **state)
{
  (void)state;
  refused(&(rig_options){.strategy = "fsdp1:unit_classes=Block"}, ORDO_E_INVALID, "unit_classes=Block has no effect|units=class|'block'");
  refused(&(rig_options){.strategy = "fsdp1:units=class:unit_classes=Block:unit_list=layers.*"}, ORDO_E_INVALID,
          "unit_list=layers.* has no effect|units=list");
  refused(&(rig_options){.strategy = "fsdp1:units=none:unit_size=7"}, ORDO_E_INVALID, "unit_size=7 has no effect|units=size");
  refused(&(rig_options){.strategy = "fsdp1:sharding_strategy=NO_SHARD:param_dtype=bf16"}, ORDO_E_INVALID,
          "param_dtype=bf16|NO_SHARD|nothing is gathered");
  refused(&(rig_options){.strategy = "fsdp1_no_shard:param_dtype=f16"}, ORDO_E_INVALID, "param_dtype=f16|NO_SHARD");
}

/* Each rank would update its copy with the gradient of its own part of the batch. */
static void a_trained_parameter_is_not_ignored(void **state)
{
  (void)state;
  if (rig_ranks > 1)
    refused(&(rig_options){.strategy = "fsdp1:ignored=p3"}, ORDO_E_UNSUPPORTED, "'p3' is trained|not reduced|requires_grad off");
}

static void hybrid_needs_replicas(void **state)
{
  (void)state;
  refused(&(rig_options){.strategy = "fsdp1:sharding_strategy=HYBRID_SHARD"}, ORDO_E_INVALID, "HYBRID_SHARD|ddp=2+fsdp1");
}

static void no_shard_takes_all_data_ranks(void **state)
{
  (void)state;
  if (rig_ranks == 4)
    refused(&(rig_options){.strategy = "ddp=2+fsdp1:sharding_strategy=NO_SHARD"}, ORDO_E_INVALID, "NO_SHARD|axis 'ddp'|fsdp1 alone");
}

static void offload_needs_a_directory(void **state)
{
  (void)state;
  refused(&(rig_options){.strategy = "fsdp1:offload=disk"}, ORDO_E_INVALID, "offload=disk without a directory");
  refused(&(rig_options){.strategy = "fsdp1:somewhere"}, ORDO_E_INVALID, "'somewhere'|offload is 'none'");
}

static void only_f16_sums_are_predivided(void **state)
{
  (void)state;
  refused(&(rig_options){.strategy = "fsdp1:predivide=2"}, ORDO_E_INVALID, "predivide=2|reduce_dtype=f16");
}

/* Lightning #17515: an optimizer that does not reference what the wrap made. */
static void a_leaf_outside_the_optimizer_is_named(void **state)
{
  (void)state;
  refused(&(rig_options){.strategy = "fsdp1", .leave_out = 3}, ORDO_E_INVARIANT, "E-INVARIANT-UNTRAINED|p2");
}

/* pytorch #149205: a forward between wrap and optimizer creation. */
static void no_forward_before_the_set_up_ends(void **state)
{
  (void)state;
  rig r;
  rig_ok(rig_create(&r, &(rig_options){.strategy = "fsdp1"}), "create");
  for (const ordo_plan_node *node = NULL; node == NULL || strcmp(node->name, "strategy.wrap") != 0;)
    rig_ok(ordo_session_setup_next(r.session, &node), "setup_next");
  assert_int_equal(r.optimizers_made, 0);
  rig_expect(ordo_session_eval_begin(r.session), ORDO_E_STATE, "eval_begin");
  rig_expect(ordo_session_pre_forward(r.session, 0, 0), ORDO_E_STATE, "pre_forward");
  rig_expect(ordo_session_step_begin(r.session, 1, 1.0), ORDO_E_STATE, "step_begin");
  rig_ok(ordo_session_setup(r.session), "the rest of the set-up is not harmed");
  r.model = ordo_session_model(r.session, 0);
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  rig_compare(&r);
  rig_end(&r);
}

/* Two strategies that shard one model over data axes would shard the shards. */
static void a_wrapped_model_is_not_wrapped_again(void **state)
{
  (void)state;
  rig r;
  if (rig_ranks != 4)
    return;
  ordo_status status = rig_begin(&r, &(rig_options){.strategy = "fsdp1=2+fsdp1=2"});
  assert_int_not_equal(status, ORDO_OK);
  rig_expect(status, status, "fsdp1");
  rig_end(&r);
}

/* transformers #39152: a handle from before the wrap. */
static void a_leaf_of_before_is_stale(void **state)
{
  (void)state;
  rig r;
  rig_ok(rig_create(&r, &(rig_options){.strategy = "fsdp1"}), "create");
  for (const ordo_plan_node *node = NULL; node == NULL || strcmp(node->name, "model.build") != 0;)
    rig_ok(ordo_session_setup_next(r.session, &node), "setup_next");
  const ordo_leaf *kept = ordo_session_model(r.session, 0)->leaves[1];
  rig_ok(ordo_session_check_leaf(r.session, kept), "the leaf is live");
  rig_ok(ordo_session_setup(r.session), "setup");
  rig_expect(ordo_session_check_leaf(r.session, kept), ORDO_E_STALE, "strategy.wrap|fsdp1");
  assert_null(kept->data);
  rig_end(&r);
}

typedef struct kept_pointer {
  const rig *r;
  const float *data; /* of p1, from its unit's forward */
  int looked;
} kept_pointer;

static void keep_and_look(void *ctx, uint32_t unit, int backward)
{
  kept_pointer *kept = ctx;
  if (unit == 1 && !backward)
    kept->data = kept->r->model->params[1]->data;
  if (unit == 3 && !backward) {
    assert_true(isnan(kept->data[0]) && isnan(kept->data[rig_numel(1) - 1]));
    assert_null(kept->r->model->params[1]->data);
    kept->looked++;
  }
  if (unit == 1 && backward)
    assert_ptr_equal(kept->data, kept->r->model->params[1]->data); /* saved pointers are right again in backward */
}

/* Freed means freed: a pointer that was kept reads NaN, and is right again in backward. */
static void a_kept_pointer_reads_nan(void **state)
{
  (void)state;
  rig r;
  rig_ok(rig_begin(&r, &(rig_options){.strategy = "fsdp1"}), "fsdp1");
  kept_pointer kept = {.r = &r};
  for (int s = 0; s < 2; s++)
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1, .in_unit = keep_and_look, .ctx = &kept}), "step");
  assert_int_equal(kept.looked, 2);
  rig_end(&r);
}

/* A loss that is computed from a kept pointer stops the step by name. */
static void poisoned_gradients_stop_the_step(void **state)
{
  (void)state;
  rig r;
  rig_ok(rig_begin(&r, &(rig_options){.strategy = "fsdp1"}), "fsdp1");
  rig_ok(ordo_session_step_begin(r.session, 1, 1.0), "step_begin");
  rig_ok(ordo_session_micro_begin(r.session), "micro_begin");
  const float *kept = NULL;
  for (uint32_t u = 0; u < RIG_UNITS; u++) {
    rig_ok(ordo_session_pre_forward(r.session, 0, u), "pre_forward");
    kept = u == 1 ? r.model->params[1]->data : kept;
    rig_ok(ordo_session_post_forward(r.session, 0, u), "post_forward");
  }
  for (uint32_t u = RIG_UNITS; u-- > 0;) {
    rig_ok(ordo_session_pre_backward(r.session, 0, u), "pre_backward");
    for (uint32_t p = 0; p < r.model->units[u]->n_params; p++) {
      const ordo_param *param = r.model->units[u]->params[p];
      for (int64_t i = 0; i < param->numel; i++)
        ((float *)param->grad)[i] = u == 3 ? kept[0] : 1.0f;
      rig_ok(ordo_session_grad_ready(r.session, 0, param->index), "grad_ready");
    }
    rig_ok(ordo_session_post_backward(r.session, 0, u), "post_backward");
  }
  rig_ok(ordo_session_micro_end(r.session), "micro_end");
  rig_expect(ordo_session_step_end(r.session, NULL), ORDO_E_INVARIANT, "E-STEP-NONFINITE");
  rig_end(&r);
}

/* Rank 1 runs its units in another order: every rank learns it, by name, and none hangs. */
static void ranks_must_run_the_same_units(void **state)
{
  (void)state;
  rig r;
  if (rig_ranks == 1)
    return;
  rig_ok(rig_begin(&r, &(rig_options){.strategy = "fsdp1"}), "fsdp1");
  rig_ok(ordo_session_step_begin(r.session, 1, 1.0), "step_begin");
  ordo_status status = ordo_session_micro_begin(r.session);
  for (uint32_t u = 0; u < RIG_UNITS && status == ORDO_OK; u++) {
    if (u == 1 && rig_rank == 1)
      continue;
    status = ordo_session_pre_forward(r.session, 0, u);
    if (status == ORDO_OK)
      status = ordo_session_post_forward(r.session, 0, u);
  }
  assert_int_not_equal(status, ORDO_OK);
  rig_expect(status, ORDO_E_MISMATCH, "layers.");
  rig_end(&r);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(flat_leaves_need_one_decay_hint),
      cmocka_unit_test(flat_leaves_need_one_requires_grad),
      cmocka_unit_test(ties_must_be_in_one_unit),
      cmocka_unit_test(other_types_are_named),
      cmocka_unit_test(the_advice_for_a_type_that_cannot_be_sharded_works),
      cmocka_unit_test(patterns_must_match),
      cmocka_unit_test(options_without_effect_are_refused),
      cmocka_unit_test(a_trained_parameter_is_not_ignored),
      cmocka_unit_test(hybrid_needs_replicas),
      cmocka_unit_test(no_shard_takes_all_data_ranks),
      cmocka_unit_test(offload_needs_a_directory),
      cmocka_unit_test(only_f16_sums_are_predivided),
      cmocka_unit_test(a_leaf_outside_the_optimizer_is_named),
      cmocka_unit_test(no_forward_before_the_set_up_ends),
      cmocka_unit_test(a_wrapped_model_is_not_wrapped_again),
      cmocka_unit_test(a_leaf_of_before_is_stale),
      cmocka_unit_test(a_kept_pointer_reads_nan),
      cmocka_unit_test(poisoned_gradients_stop_the_step),
      cmocka_unit_test(ranks_must_run_the_same_units),
  };
  rig_start(argc, argv);
  return rig_stop(cmocka_run_group_tests(tests, NULL, NULL));
}
