/* test_plugins.c - plugins of a session: loaded from files, checked against their declaration, probed, and counted. */
#include "kit.h"

#include <string.h>

static void a_declared_step_without_a_function_is_refused_before_anything_runs(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "hollow", KIT_DDP, 1)->without = 1u << ORDO_STEP_WRAP;
  assert_int_equal(kit_create(k), ORDO_E_REFUSED);
  assert_null(k->session);
  assert_string_equal(kit_code(k), "E-PLUGIN-TABLE");
  kit_assert_mentions(k, "strategy.wrap");
  kit_assert_mentions(k, "hollow manifest line");
  assert_string_equal(k->log->str, "init deinit "); /* counted, and nothing between */
  kit_free(k);
}

static void a_function_that_would_never_be_called_is_refused(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "silent", KIT_DDP "x-silent=its post_step is not declared\n", 1);
  assert_int_equal(kit_create(k), ORDO_E_REFUSED);
  assert_string_equal(kit_code(k), "E-PLUGIN-TABLE");
  kit_assert_mentions(k, "step.post_step");
  kit_free(k);
}

/* The same for every other function: one row per manifest, with a function that it leaves out. */
static void functions_that_nothing_declares_are_refused(void **state)
{
  static const struct {
    const char *lines, *function, *declared_by;
  } rows[] = {
      {"steps=strategy.wrap\n", "reduce", "reduces=yes"},
      {KIT_DDP, "inject", "steps=model.inject"},
      {KIT_DDP, "partition", "steps=strategy.partition"},
      {"reduces=yes\n", "wrap", "steps=strategy.wrap"},
      {KIT_DDP, "prepare_joint", "steps=strategy.prepare_joint"},
      {KIT_DDP, "prepare_optimizer", "steps=strategy.prepare_optimizer"},
      {KIT_AMP, "inject", "steps=model.inject"},
      {"kind=precision\nsteps=precision.wrap_optimizer\nflags=wraps_optimizer\n", "convert_model", "steps=precision.convert_model"},
      {"kind=precision\nsteps=precision.convert_model\n", "wrap_optimizer", "steps=precision.wrap_optimizer"},
      {"kind=precision\nsteps=precision.convert_model\n", "loss_scale", "steps=precision.initialize or precision.wrap_optimizer"},
      {"kind=precision\nsteps=precision.convert_model\n", "unscale", "steps=precision.initialize or precision.wrap_optimizer"},
      {"kind=precision\nsteps=precision.convert_model\n", "update_scale", "precision.wrap_optimizer"},
      {"kind=precision\nsteps=precision.convert_model\n", "masters_to_model", "precision.wrap_optimizer"},
  };
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
    kit *k = kit_new();
    gboolean found = FALSE;
    g_autofree char *what = g_strdup_printf("the plugin's table has %s, which its manifest does not declare", rows[i].function);
    kit_add(k, "silent", rows[i].lines, 0)->whole_table = TRUE;
    assert_int_equal(kit_create(k), ORDO_E_REFUSED);
    for (size_t e = 0; e < ordo_n_errors(k->context); e++) {
      const ordo_error *error = ordo_error_at(k->context, e);
      assert_string_equal(error->code, "E-PLUGIN-TABLE");
      assert_string_equal(error->where, "plugin 'silent'");
      found |= !strcmp(error->what, what) && strstr(error->why, rows[i].declared_by);
    }
    if (!found)
      fail_msg("nothing says: %s (%s)", what, rows[i].declared_by);
    kit_free(k);
  }
}

/* A table is the same for all options, so a step that some other option declares is no lie. But then nothing may need it. */
static void a_scale_that_nothing_takes_out_is_refused(void **state)
{
  (void)state;
  for (int row = 0; row < 3; row++) { /* without the step; without the function; a scale of 1 needs neither */
    kit *k = kit_new();
    fake *amp = kit_add(k, "amp",
                        row == 1 ? KIT_AMP
                                 : "kind=precision\nsteps=precision.convert_model\noption=wrap|bool|no||wrap\n"
                                   "steps[wrap=yes]=precision.wrap_optimizer\nflags[wrap=yes]=wraps_optimizer\n",
                        0);
    amp->scale = row == 2 ? 1.0 : 4.0;
    amp->no_unscale = row == 1;
    kit_setup(k);
    if (row == 2) {
      assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_OK);
    } else {
      assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_E_REFUSED);
      assert_string_equal(kit_code(k), "E-PLUGIN-TABLE");
      kit_assert_mentions(k, "plugin 'amp'");
      kit_assert_mentions(k, "scales the loss by 4");
      kit_assert_mentions(k, row ? "no unscale" : "precision.wrap_optimizer");
    }
    kit_free(k);
  }
}

static void a_part_of_functions_that_belong_together_is_refused(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "amp", KIT_AMP, 0)->half_wire = TRUE;
  assert_int_equal(kit_create(k), ORDO_E_REFUSED);
  assert_string_equal(kit_code(k), "E-PLUGIN-TABLE");
  kit_assert_mentions(k, "all three or none");
  kit_free(k);
}

static void a_probe_says_no(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1);
  kit_add(k, "gpu", "steps=strategy.wrap\n", 0)->fail_in = "probe";
  assert_int_equal(kit_create(k), ORDO_E_UNAVAILABLE);
  kit_assert_mentions(k, "plugin 'gpu', probe");
  kit_assert_mentions(k, "not on this machine");
  assert_string_equal(k->log->str, "init init deinit deinit ");
  kit_free(k);
}

static void an_illegal_plan_makes_no_session(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1);
  assert_int_equal(kit_create(k), ORDO_OK);
  ordo_session_destroy(k->session);
  k->session = NULL;
  k->plan->resolution->legal = FALSE;
  assert_int_equal(ordo_session_create(k->context, k->plan, &k->embedder, &k->options, &k->session), ORDO_E_CONFLICT);
  assert_string_equal(kit_code(k), "E-SESSION-PLAN");
  kit_free(k);
}

static void required_callbacks_are_required(void **state)
{
  kit *k = kit_new();
  (void)state;
  k->embedder.optimizer_create = NULL;
  assert_int_equal(kit_create(k), ORDO_E_INVALID);
  assert_string_equal(kit_code(k), "E-SESSION-EMBEDDER");
  k->embedder.struct_size = offsetof(ordo_embedder, model_build); /* an embedder that does not know the field */
  assert_int_equal(kit_create(k), ORDO_E_INVALID);
  kit_assert_mentions(k, "model_build");
  kit_free(k);
}

/* One instance per plugin, axis and model. */
static void two_models_get_two_instances(void **state)
{
  kit *k = kit_new();
  (void)state;
  k->models = 2;
  kit_add(k, "ddp", KIT_DDP, 1);
  kit_setup(k);
  assert_int_equal(k->session->instances->len, 2);
  assert_int_equal(k->optimizers, 2);
  assert_ptr_equal(((ordo_instance *)g_ptr_array_index(k->session->instances, 1))->job.model, ordo_session_model(k->session, 1));
  assert_int_equal(ordo_session_model(k->session, 1)->index, 1);
  kit_free(k);
}

static void two_sessions_live_side_by_side(void **state)
{
  kit *a = kit_new(), *b;
  (void)state;
  kit_add(a, "ddp", KIT_DDP, 1);
  kit_setup(a);
  b = kit_new();
  kit_add(b, "ddp", KIT_DDP, 1);
  kit_setup(b);
  assert_int_equal(ordo_session_check_leaf(b->session, ordo_session_model(a->session, 0)->leaves[0]), ORDO_E_INVALID);
  kit_free(b);
  assert_int_equal(ordo_session_check_leaf(a->session, ordo_session_model(a->session, 0)->leaves[0]), ORDO_OK);
  kit_free(a);
}

/* The whole way: files found, planned, mapped, set up, one step, torn down. */
static void real_files_are_loaded(void **state)
{
  const ordo_context_options options = {.struct_size = sizeof options,
                                        .plugin_path = FAKES_DIR,
                                        .flags = ORDO_CONTEXT_NO_ENVIRONMENT | ORDO_CONTEXT_NO_DEFAULT_PATH | ORDO_CONTEXT_ALLOW_INSECURE};
  const ordo_plan_request request = {.struct_size = sizeof request, .strategy = "ddp=1", .precision = "apex_amp:O2", .ranks = 1};
  kit *k = kit_new();
  ordo_context *context = NULL;
  ordo_plan *plan = NULL;
  ordo_session *session = NULL;
  (void)state;
  k->embedder.phase = NULL;
  assert_int_equal(ordo_context_create(&options, &context), ORDO_OK);
  if (ordo_plan_create(context, &request, &plan) != ORDO_OK)
    fail_msg("%s: %s", ordo_last_error(context)->what, ordo_last_error(context)->why);
  if (ordo_session_create(context, plan, &k->embedder, NULL, &session) != ORDO_OK || ordo_session_setup(session) != ORDO_OK)
    fail_msg("%s: %s", ordo_last_error(context)->what, ordo_last_error(context)->why);
  k->session = session;
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_OK);
  k->session = NULL;
  ordo_session_destroy(session);
  ordo_plan_destroy(plan);
  ordo_context_destroy(context);
  kit_free(k);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_declared_step_without_a_function_is_refused_before_anything_runs),
      cmocka_unit_test(a_function_that_would_never_be_called_is_refused),
      cmocka_unit_test(functions_that_nothing_declares_are_refused),
      cmocka_unit_test(a_scale_that_nothing_takes_out_is_refused),
      cmocka_unit_test(a_part_of_functions_that_belong_together_is_refused),
      cmocka_unit_test(a_probe_says_no),
      cmocka_unit_test(an_illegal_plan_makes_no_session),
      cmocka_unit_test(required_callbacks_are_required),
      cmocka_unit_test(two_models_get_two_instances),
      cmocka_unit_test(two_sessions_live_side_by_side),
      cmocka_unit_test(real_files_are_loaded),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
