/* test_dispatch.c - the plan is executed as it says, once, and taken back in reverse. */
#include "kit.h"

#include <string.h>

static void assert_log(const kit *k, const char *expected)
{
  if (!strstr(k->log->str, expected))
    fail_msg("'%s' is not in: %s", expected, k->log->str);
}

static void runs_each_step_once_in_order(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1);
  kit_setup(k);
  assert_string_equal(
      k->log->str,
      "init +setup ddp.create ddp.validate ddp.setup_environment optimizer.create -setup +pre_dispatch ddp.wrap ddp.after_setup "
      "-pre_dispatch +dispatch ");
  assert_int_equal(k->optimizers, 1);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_STATE);
  assert_string_equal(kit_code(k), "E-STATE-ORDER");
  assert_int_equal(ordo_session_setup_next(k->session, NULL), ORDO_E_STATE);
  assert_int_equal(ordo_session_run(k->session, "strategy.wrap"), ORDO_E_STATE);
  assert_int_equal(k->optimizers, 1);
  kit_free(k);
}

static void out_of_order_and_repeated_steps_name_both_states(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1);
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_run(k->session, "strategy.wrap"), ORDO_E_STATE);
  kit_assert_mentions(k, "mesh.init");
  kit_assert_mentions(k, "strategy.wrap");
  assert_int_equal(ordo_session_run(k->session, "mesh.init"), ORDO_OK);
  assert_int_equal(ordo_session_run(k->session, "mesh.init"), ORDO_E_STATE);
  kit_assert_mentions(k, "it has run");
  kit_assert_mentions(k, "model.build");
  assert_int_equal(ordo_session_step_begin(k->session, 1, 1.0), ORDO_E_STATE);
  kit_assert_mentions(k, "in set-up, model.build(embedder) is due");
  assert_int_equal(ordo_session_setup(k->session), ORDO_OK);
  kit_free(k);
}

static void one_step_at_a_time_names_each(void **state)
{
  kit *k = kit_new();
  const ordo_plan_node *node;
  guint n = 0;
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1);
  assert_int_equal(kit_create(k), ORDO_OK);
  while (n < k->plan->resolution->nodes->len) {
    assert_int_equal(ordo_session_setup_next(k->session, &node), ORDO_OK);
    assert_string_equal(node->name, ordo_step_name(g_array_index(k->plan->resolution->nodes, ordo_node, n).step));
    n++;
  }
  assert_int_equal(ordo_session_setup_next(k->session, &node), ORDO_E_STATE);
  assert_null(node);
  assert_int_equal(k->session->state, ORDO_SESSION_READY);
  kit_free(k);
}

/* The question of Lightning #6331: what does a hook at the phase boundary see? */
static void phase_boundary_sees_no_optimizer_when_creation_is_delayed(void **state)
{
  kit *delayed = kit_new(), *early;
  (void)state;
  kit_add(delayed, "flat", KIT_FSDP1, 1)->flat = TRUE;
  delayed->optimizer_at_setup_end = TRUE;
  kit_setup(delayed);
  assert_false(delayed->optimizer_at_setup_end);
  assert_non_null(ordo_session_optimizer(delayed->session, 0));
  kit_free(delayed);
  early = kit_new();
  kit_add(early, "ddp", KIT_DDP, 1);
  kit_setup(early);
  assert_true(early->optimizer_at_setup_end);
  kit_free(early);
}

static void a_failed_step_undoes_the_earlier_ones_in_reverse(void **state)
{
  kit *k = kit_new();
  const ordo_model *model;
  const void *data;
  (void)state;
  kit_add(k, "flat", KIT_FSDP2, 1)->flat = TRUE;
  kit_add(k, "watch", "steps=strategy.wrap\n", 0)->fail_in = "wrap";
  k->with_data = TRUE;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_run(k->session, "mesh.init"), ORDO_OK);
  assert_int_equal(ordo_session_run(k->session, "model.build"), ORDO_OK);
  model = ordo_session_model(k->session, 0);
  data = model->leaves[0]->data;
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_UNSUPPORTED);
  assert_string_equal(kit_code(k), "E-PLUGIN-FAILED");
  kit_assert_mentions(k, "plugin 'watch', strategy.wrap(watch)");
  assert_log(k, "watch.wrap flat.undo(strategy.prepare_joint) optimizer.destroy watch.destroy flat.destroy ");
  assert_null(strstr(k->log->str, "watch.undo"));
  /* leaves, generation and storage are those of before */
  assert_int_equal(model->n_leaves, 3);
  assert_int_equal(model->generation, 0);
  assert_int_equal(model->leaves[0]->state, ORDO_LEAF_LIVE);
  assert_ptr_equal(model->leaves[0]->data, data);
  assert_ptr_equal(model->params[0]->data, data);
  assert_ptr_equal(model->params[0]->leaf, model->leaves[0]);
  assert_null(ordo_session_optimizer(k->session, 0));
  /* and nothing goes on */
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_STATE);
  assert_string_equal(kit_code(k), "E-STATE-FAILED");
  kit_assert_mentions(k, "told to fail");
  assert_int_equal(ordo_session_step_begin(k->session, 1, 1.0), ORDO_E_STATE);
  kit_free(k);
}

/* On failure the optimizer goes back to the old leaves before it is destroyed: one rebind there, one back. */
static void undo_moves_the_optimizer_back(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "flat", KIT_FSDP2, 1)->flat = TRUE;
  kit_add(k, "watch", "steps=strategy.wrap\n", 0)->fail_in = "wrap";
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_UNSUPPORTED);
  assert_int_equal(k->rebinds, 2);
  kit_free(k);
}

static void failing_instances_destroy_the_earlier_ones_in_reverse(void **state)
{
  kit *k = kit_new();
  const char *ids[] = {"a", "b", "c", "d", "e"};
  (void)state;
  for (int i = 0; i < 5; i++)
    kit_add(k, ids[i], "steps=strategy.wrap\n", 0);
  k->fakes[3].fail_in = "create";
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_UNSUPPORTED);
  kit_assert_mentions(k, "plugin 'd', create");
  assert_log(k, "a.create b.create c.create d.create c.destroy b.destroy a.destroy ");
  assert_null(strstr(k->log->str, "e.create"));
  kit_free(k);
}

static void validate_stops_before_any_environment_is_touched(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "a", "steps=strategy.wrap\n", 0);
  kit_add(k, "b", "steps=strategy.wrap\n", 0)->fail_in = "validate";
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_UNSUPPORTED);
  assert_null(strstr(k->log->str, "setup_environment"));
  kit_free(k);
}

static void a_status_without_a_record_is_the_plugins_defect(void **state)
{
  kit *k = kit_new();
  fake *f = kit_add(k, "mute", "steps=strategy.wrap\n", 0);
  (void)state;
  f->fail_in = "wrap";
  f->silent = TRUE;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_UNSUPPORTED);
  assert_string_equal(kit_code(k), "E-PLUGIN-NO-RECORD");
  kit_assert_mentions(k, "mute");
  kit_assert_mentions(k, "strategy.wrap");
  kit_free(k);
}

static void teardown_is_the_reverse_of_set_up(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1);
  kit_add(k, "watch", "steps=strategy.wrap\n", 0);
  kit_setup(k);
  g_string_truncate(k->log, 0);
  ordo_session_destroy(k->session);
  k->session = NULL;
  assert_string_equal(k->log->str, "-dispatch +post_dispatch optimizer.destroy watch.destroy ddp.destroy -post_dispatch deinit deinit ");
  kit_free(k);
}

static void a_failing_phase_callback_fails_the_set_up(void **state);

static ordo_status refuse_phase(void *ctx, ordo_phase phase, int32_t entering)
{
  kit *k = ctx;
  if (phase == ORDO_PHASE_PRE_DISPATCH && entering)
    return ordo_fail(k->context, ORDO_E_INVALID, "E-MINE", "the program says no", "hook", "", "");
  return ORDO_OK;
}

static void a_failing_phase_callback_fails_the_set_up(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1);
  k->embedder.phase = refuse_phase;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_INVALID);
  assert_string_equal(kit_code(k), "E-MINE");
  assert_int_equal(k->session->state, ORDO_SESSION_FAILED);
  kit_free(k);
}

static void restore_runs_when_resuming(void **state);
static guint restored;

static ordo_status on_restore(void *ctx, ordo_step step)
{
  (void)ctx;
  restored |= 1u << step;
  return ORDO_OK;
}

static void restore_runs_when_resuming(void **state)
{
  kit *k = kit_new();
  (void)state;
  restored = 0;
  k->resume = TRUE;
  k->embedder.restore = on_restore;
  kit_setup(k);
  assert_int_equal(restored, 1u << ORDO_STEP_RESTORE_OPTIMIZER | 1u << ORDO_STEP_RESTORE_SCHEDULER | 1u << ORDO_STEP_RESTORE_DATA |
                                 1u << ORDO_STEP_RESTORE_RNG);
  kit_free(k);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(runs_each_step_once_in_order),
      cmocka_unit_test(out_of_order_and_repeated_steps_name_both_states),
      cmocka_unit_test(one_step_at_a_time_names_each),
      cmocka_unit_test(phase_boundary_sees_no_optimizer_when_creation_is_delayed),
      cmocka_unit_test(a_failed_step_undoes_the_earlier_ones_in_reverse),
      cmocka_unit_test(undo_moves_the_optimizer_back),
      cmocka_unit_test(failing_instances_destroy_the_earlier_ones_in_reverse),
      cmocka_unit_test(validate_stops_before_any_environment_is_touched),
      cmocka_unit_test(a_status_without_a_record_is_the_plugins_defect),
      cmocka_unit_test(teardown_is_the_reverse_of_set_up),
      cmocka_unit_test(a_failing_phase_callback_fails_the_set_up),
      cmocka_unit_test(restore_runs_when_resuming),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
