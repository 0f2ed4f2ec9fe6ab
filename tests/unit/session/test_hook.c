/* test_hook.c - a strategy's option `hook` names a plugin; the host loads it and makes it with the strategy's job. */
#include "discovery/loader.h"
#include "kit.h"

static kit *with_hook(const char *name)
{
  const ordo_registry_options search = {HOOK_DIR, ORDO_CONTEXT_NO_ENVIRONMENT | ORDO_CONTEXT_NO_DEFAULT_PATH | ORDO_CONTEXT_ALLOW_INSECURE};
  kit *k = kit_new();
  ordo_choice *choice;
  ordo_registry_free(k->context->registry);
  k->context->registry = ordo_registry_scan(&search, k->context->errors);
  ordo_errors_clear(k->context->errors);
  kit_add(k, "ddp", KIT_DDP "option=hook|string|||comm hook\n", 1);
  choice = g_ptr_array_index(k->plan->choices, 0);
  if (name)
    g_hash_table_insert(choice->options, "hook", (gpointer)name);
  kit_setup(k);
  return k;
}

static void the_named_hook_is_made_once_with_its_options(void **state)
{
  kit *k = with_hook("testhook:value=5");
  const ordo_instance *strategy = g_ptr_array_index(k->session->instances, 0);
  float data[1] = {0.0f};
  const ordo_bucket bucket = {.struct_size = sizeof bucket, .data = data, .numel = 1};
  void *self = NULL, *again = NULL, *handle = NULL;
  const ordo_comm_hook *hook = strategy->job.comm_hook(strategy->job.ctx, &self);
  (void)state;
  if (!hook) {
    g_autofree char *text = kit_text(k);
    fail_msg("%s", text);
  }
  assert_ptr_equal(strategy->job.comm_hook(strategy->job.ctx, &again), hook);
  assert_ptr_equal(again, self);
  assert_ptr_equal(strategy->hook->job.axis, strategy->job.axis);
  assert_int_equal(hook->start(self, &bucket, &handle), ORDO_OK);
  assert_true(data[0] == 5.0f);
  kit_free(k);
}

static void no_hook_is_null_and_an_unknown_one_is_an_error(void **state)
{
  const char *const names[] = {NULL, "none", "nobody"};
  (void)state;
  for (guint i = 0; i < G_N_ELEMENTS(names); i++) {
    kit *k = with_hook(names[i]);
    const ordo_instance *strategy = g_ptr_array_index(k->session->instances, 0);
    void *self = k;
    assert_null(strategy->job.comm_hook(strategy->job.ctx, &self));
    assert_null(self);
    assert_int_equal(ordo_n_errors(k->context) > 0, i == 2);
    kit_free(k);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_named_hook_is_made_once_with_its_options),
      cmocka_unit_test(no_hook_is_null_and_an_unknown_one_is_an_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
