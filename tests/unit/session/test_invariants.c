/* test_invariants.c - every invariant of docs/ordering.md is broken on purpose; those that need several ranks are in test_ranks.c. */
#include "kit.h"

#include <string.h>

static void setup_refused(kit *k, const char *code, const char *word)
{
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_INVARIANT);
  assert_string_equal(kit_code(k), code);
  kit_assert_mentions(k, word);
  kit_free(k);
}

static void check_1_an_optimizer_on_dead_leaves(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "flat", KIT_FSDP2, 1)->flat = TRUE;
  k->bad_rebind = TRUE;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_INVARIANT);
  assert_string_equal(kit_code(k), "E-INVARIANT-DEAD-LEAF");
  kit_assert_mentions(k, "training would silently do nothing");
  kit_assert_mentions(k, "strategy.prepare_joint(flat)");
  kit_assert_mentions(k, "embed.weight");
  kit_free(k);
}

static void check_1_a_leaf_in_no_group(void **state)
{
  kit *k = kit_new();
  (void)state;
  k->partial_groups = TRUE;
  setup_refused(k, "E-INVARIANT-UNTRAINED", "embed.weight");
}

static void check_1_a_leaf_in_two_groups(void **state)
{
  kit *k = kit_new();
  (void)state;
  k->twice_in_groups = TRUE;
  setup_refused(k, "E-INVARIANT-TRAINED-TWICE", "embed.weight");
}

static void check_2_a_step_was_left_out(void **state)
{
  kit *k = kit_new();
  ordo_node last, before;
  GArray *nodes;
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1);
  assert_int_equal(kit_create(k), ORDO_OK);
  nodes = k->plan->resolution->nodes; /* a plan that the resolver would never make: verify before the last other step */
  last = g_array_index(nodes, ordo_node, nodes->len - 1);
  before = g_array_index(nodes, ordo_node, nodes->len - 2);
  g_array_index(nodes, ordo_node, nodes->len - 2) = last;
  g_array_index(nodes, ordo_node, nodes->len - 1) = before;
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_INVARIANT);
  assert_string_equal(kit_code(k), "E-INVARIANT-SKIPPED-STEP");
  kit_assert_mentions(k, before.id);
  kit_free(k);
}

static ordo_status build_bf16(void *ctx, ordo_session *session, uint32_t model, ordo_model_builder *builder)
{
  ordo_param_desc desc = {.struct_size = sizeof desc,
                          .name = "bf16",
                          .dtype = ORDO_BF16,
                          .flags = ORDO_PARAM_REQUIRES_GRAD,
                          .tie_group = -1,
                          .ndim = 1,
                          .shape = {4}};
  ordo_status status = ordo_model_builder_unit(builder, "unit", "Toy", NULL);
  (void)ctx, (void)session, (void)model;
  return status == ORDO_OK ? ordo_model_builder_param(builder, &desc, NULL) : status;
}

static void check_3_two_owners_of_the_precision(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "caster", "steps=strategy.wrap\n", 0);
  kit_add(k, "amp", KIT_AMP, 0);
  g_array_index(k->plan->providers, ordo_plan_provider, 0).decl->flags = 0;
  assert_int_equal(kit_create(k), ORDO_OK);
  /* the resolver refuses the pair, so the flag comes after it */
  g_array_index(k->plan->providers, ordo_plan_provider, 0).decl->flags |= 1u << ORDO_FLAG_OWNS_PRECISION;
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_INVARIANT);
  assert_string_equal(kit_code(k), "E-INVARIANT-PRECISION-OWNER");
  kit_assert_mentions(k, "caster");
  kit_assert_mentions(k, "amp");
  kit_free(k);
}

static void check_3_a_scaler_beside_bf16(void **state)
{
  kit *k = kit_new();
  fake *amp = kit_add(k, "amp", KIT_AMP, 0);
  (void)state;
  amp->scale = 1024.0;
  amp->bf16 = TRUE;
  setup_refused(k, "E-INVARIANT-SCALER", "amp");
}

/* apex takes a static scale at O0 and O1 as well. */
static void check_3_a_scale_in_fp32_is_the_plugins_affair(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "amp", KIT_AMP, 0)->scale = 1024.0;
  kit_setup(k);
  kit_free(k);
}

/* Without a master an fp32 optimizer would read two 16-bit weights as one number. */
static void an_optimizer_of_fp32_is_refused_16_bit_leaves(void **state)
{
  kit *k = kit_new();
  (void)state;
  k->embedder.model_build = build_bf16;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_UNSUPPORTED);
  assert_string_equal(kit_code(k), "E-OPTIMIZER-DTYPE");
  kit_assert_mentions(k, "(bf16)");
  kit_free(k);
  k = kit_new();
  k->embedder.model_build = build_bf16;
  k->says_16_bit = TRUE;
  kit_setup(k);
  kit_free(k);
}

static void check_4_a_torn_tie_group(void **state)
{
  kit *k = kit_new();
  (void)state;
  k->eval = TRUE; /* or the gradients made by verify would bind both members together again */
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_run(k->session, "mesh.init"), ORDO_OK);
  assert_int_equal(ordo_session_run(k->session, "model.build"), ORDO_OK);
  while (g_array_index(k->plan->resolution->nodes, ordo_node, k->session->next_node).step != ORDO_STEP_VERIFY)
    assert_int_equal(ordo_session_setup_next(k->session, NULL), ORDO_OK);
  ((ordo_param *)ordo_session_model(k->session, 0)->params[3])->data = NULL;
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_INVARIANT);
  assert_string_equal(kit_code(k), "E-INVARIANT-TIE");
  kit_assert_mentions(k, "head.weight");
  kit_free(k);
}

static void check_5_reduced_twice(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1)->reduce_twice = TRUE;
  kit_setup(k);
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_E_INVARIANT);
  assert_string_equal(kit_code(k), "E-INVARIANT-REDUCED-TWICE");
  kit_assert_mentions(k, "embed.weight");
  kit_assert_mentions(k, "axis 'ddp'");
  kit_free(k);
}

/* Two ranks that do not exist: the fake provider counts collectives and leaves data alone. */
static void check_5_not_reduced(void **state)
{
  kit *k = kit_new();
  ordo_comm_provider *provider = NULL;
  (void)state;
  assert_int_equal(ordo_comm_fake_create(k->context, 0, 2, &provider), ORDO_OK);
  k->comm = provider;
  kit_add(k, "ddp", KIT_DDP, 2)->forget = TRUE;
  kit_setup(k);
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_E_INVARIANT);
  assert_string_equal(kit_code(k), "E-INVARIANT-NOT-REDUCED");
  kit_assert_mentions(k, "embed.weight");
  kit_assert_mentions(k, "axis 'ddp'");
  kit_assert_mentions(k, "strategy is 'ddp'");
  kit_free(k);
  ordo_comm_provider_destroy(provider);
}

static void check_5_replicas_that_may_diverge_need_no_reduction(void **state)
{
  kit *k = kit_new();
  ordo_comm_provider *provider = NULL;
  (void)state;
  assert_int_equal(ordo_comm_fake_create(k->context, 0, 2, &provider), ORDO_OK);
  k->comm = provider;
  kit_add(k, "local", KIT_DDP "flags=replicas_diverge\n", 2)->forget = TRUE;
  kit_setup(k);
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_OK);
  kit_free(k);
  ordo_comm_provider_destroy(provider);
}

static void check_8_the_first_step_changes_nothing(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1);
  k->frozen_optimizer = TRUE;
  kit_setup(k);
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_E_INVARIANT);
  assert_string_equal(kit_code(k), "E-INVARIANT-NOTHING-CHANGED");
  kit_assert_mentions(k, "training would silently do nothing");
  kit_free(k);
}

/* A rate of 0, a gradient of 0 and a skipped step may leave everything as it is; the check waits for the first step that may not. */
static void check_8_waits_for_a_step_that_must_change(void **state)
{
  kit *k = kit_new();
  fake *amp;
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1);
  amp = kit_add(k, "amp", KIT_AMP, 0);
  amp->overflow = amp->fp16 = TRUE;
  k->frozen_optimizer = TRUE;
  kit_setup(k);
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_OK); /* skipped */
  amp->overflow = FALSE;
  assert_int_equal(kit_step(k, 1.0, 0.0f, NULL), ORDO_OK); /* no gradient */
  ordo_session_optimizer(k->session, 0)->groups[0].lr = 0.0;
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_OK); /* no rate: warm-up */
  ordo_session_optimizer(k->session, 0)->groups[0].lr = 0.1;
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_E_INVARIANT);
  assert_string_equal(kit_code(k), "E-INVARIANT-NOTHING-CHANGED");
  kit_free(k);
}

/* The gradient belongs to leaves without a rate, as that of another model would: the leaves with a rate have none, and need not move. */
static void check_8_waits_for_a_gradient_that_has_a_rate(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1);
  k->frozen_optimizer = TRUE;
  kit_setup(k);
  ordo_optimizer *optimizer = ordo_session_optimizer(k->session, 0);
  ordo_group *own = optimizer->groups, two[2] = {own[0], own[0]};
  const uint32_t n_own = optimizer->n_groups;
  two[0].lr = 0.0;
  two[1].n_leaves = 0;
  optimizer->groups = two;
  optimizer->n_groups = 2;
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_OK);
  optimizer->groups = own;
  optimizer->n_groups = n_own;
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_E_INVARIANT);
  assert_string_equal(kit_code(k), "E-INVARIANT-NOTHING-CHANGED");
  kit_free(k);
}

/* The optimizer moves masters that nobody copies: by a masters_to_model that does nothing, and by a table without one. */
static void check_8_masters_that_do_not_reach_the_model(void **state)
{
  (void)state;
  for (int way = 0; way < 2; way++) {
    kit *k = kit_new();
    fake *amp = kit_add(k, "amp", KIT_AMP, 0);
    amp->masters = amp->keeps_masters = TRUE;
    amp->no_copy = way == 1;
    kit_setup(k);
    assert_int_equal(kit_step(k, 1.0, 0.0f, NULL), ORDO_OK); /* no gradient: nothing need change */
    assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_E_INVARIANT);
    assert_string_equal(kit_code(k), "E-INVARIANT-NOTHING-CHANGED");
    kit_assert_mentions(k, "masters of plugin 'amp'");
    kit_free(k);
  }
  kit *k = kit_new();
  kit_add(k, "amp", KIT_AMP, 0)->masters = TRUE;
  kit_setup(k);
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_OK);
  kit_free(k);
}

static ordo_status freeze_all(void *ctx, const ordo_job *job)
{
  ordo_status status = ORDO_OK;
  (void)ctx;
  for (uint32_t i = 0; i < job->model->n_params && status == ORDO_OK; i++)
    status = job->freeze(job->ctx, job->model->params[i]);
  return status;
}

/* Every step would be one of nothing, with gradient norm 0. Evaluating such a model is what it is for. */
static void check_1_a_model_without_anything_to_train(void **state)
{
  static const char inject[] = "steps=model.inject,strategy.wrap\nreduces=yes\n";
  kit *k = kit_new();
  (void)state;
  kit_add(k, "freezer", inject, 1)->injects = freeze_all;
  setup_refused(k, "E-INVARIANT-NOTHING-TRAINED", "frozen");
  k = kit_new();
  k->eval = TRUE;
  k->embedder.optimizer_create = NULL;
  kit_add(k, "freezer", inject, 1)->injects = freeze_all;
  kit_setup(k);
  kit_free(k);
}

static void check_9_evaluation_needs_no_optimizer(void **state)
{
  const char *const lines[] = {KIT_DDP,
                               KIT_FSDP1,
                               KIT_FSDP2,
                               "steps=strategy.partition\nreplaces_leaves=strategy.partition\nmesh_axis=model\nflags=self_sharded\n",
                               "steps=strategy.prepare_optimizer\nreduces=yes\n",
                               KIT_AMP};
  (void)state;
  for (guint i = 0; i < G_N_ELEMENTS(lines); i++) {
    kit *k = kit_new();
    k->eval = TRUE;
    k->embedder.optimizer_create = NULL;
    kit_add(k, "any", lines[i], strstr(lines[i], "kind=precision") ? 0 : 1)->flat = strstr(lines[i], "restores_after_wrap") != NULL;
    kit_setup(k);
    assert_null(ordo_session_optimizer(k->session, 0));
    assert_int_equal(ordo_session_eval_begin(k->session), ORDO_OK);
    assert_int_equal(ordo_session_pre_forward(k->session, 0, 0), ORDO_OK);
    assert_int_equal(ordo_session_post_forward(k->session, 0, 0), ORDO_OK);
    assert_int_equal(ordo_session_eval_end(k->session), ORDO_OK);
    assert_int_equal(ordo_session_step_begin(k->session, 1, 1.0), ORDO_E_STATE);
    if (!strstr(lines[i], "restores_after_wrap")) /* the fake that shards brings its own gradient storage */
      assert_null(ordo_session_model(k->session, 0)->leaves[0]->grad);
    kit_free(k);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(check_1_an_optimizer_on_dead_leaves),
      cmocka_unit_test(check_1_a_leaf_in_no_group),
      cmocka_unit_test(check_1_a_leaf_in_two_groups),
      cmocka_unit_test(check_2_a_step_was_left_out),
      cmocka_unit_test(check_3_two_owners_of_the_precision),
      cmocka_unit_test(check_3_a_scaler_beside_bf16),
      cmocka_unit_test(check_3_a_scale_in_fp32_is_the_plugins_affair),
      cmocka_unit_test(an_optimizer_of_fp32_is_refused_16_bit_leaves),
      cmocka_unit_test(check_4_a_torn_tie_group),
      cmocka_unit_test(check_5_reduced_twice),
      cmocka_unit_test(check_5_not_reduced),
      cmocka_unit_test(check_5_replicas_that_may_diverge_need_no_reduction),
      cmocka_unit_test(check_8_the_first_step_changes_nothing),
      cmocka_unit_test(check_8_waits_for_a_step_that_must_change),
      cmocka_unit_test(check_8_waits_for_a_gradient_that_has_a_rate),
      cmocka_unit_test(check_8_masters_that_do_not_reach_the_model),
      cmocka_unit_test(check_1_a_model_without_anything_to_train),
      cmocka_unit_test(check_9_evaluation_needs_no_optimizer),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
