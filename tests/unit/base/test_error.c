/* test_error.c - error records and nearest names. */
#include "plugin_files.h"

#include <string.h>

#include "base/error.h"

static void records_keep_their_order_and_their_text(void **state)
{
  (void)state;
  ordo_errors *errors = ordo_errors_new();
  char what[] = "first";
  assert_int_equal(ordo_errors_push(errors, ORDO_E_STALE, "E-A", "where", "why", "next", "%s %d", what, 1), ORDO_E_STALE);
  what[0] = 'x';
  ordo_errors_set_rank(errors, 3);
  ordo_errors_push(errors, ORDO_E_IO, NULL, NULL, NULL, NULL, "second");
  assert_int_equal(ordo_errors_count(errors), 2);
  assert_string_equal(ordo_errors_at(errors, 0)->what, "first 1");
  assert_string_equal(ordo_errors_at(errors, 0)->code, "E-A");
  assert_int_equal(ordo_errors_at(errors, 0)->rank, -1);
  assert_int_equal(ordo_errors_at(errors, 0)->struct_size, sizeof(ordo_error));
  assert_string_equal(ordo_errors_at(errors, 1)->where, "");
  assert_int_equal(ordo_errors_at(errors, 1)->rank, 3);
  assert_null(ordo_errors_at(errors, 2));
  ordo_errors_clear(errors);
  assert_int_equal(ordo_errors_count(errors), 0);
  ordo_errors_free(errors);
  ordo_errors_free(NULL);
}

static gpointer push_many(gpointer errors)
{
  for (int i = 0; i < 1000; i++)
    ordo_errors_push(errors, ORDO_E_IO, "E-A", NULL, NULL, NULL, "%d", i);
  return NULL;
}

static void threads_may_push_at_the_same_time(void **state)
{
  (void)state;
  ordo_errors *errors = ordo_errors_new();
  GThread *threads[4];
  for (gsize i = 0; i < G_N_ELEMENTS(threads); i++)
    threads[i] = g_thread_new("push", push_many, errors);
  for (gsize i = 0; i < G_N_ELEMENTS(threads); i++)
    g_thread_join(threads[i]);
  assert_int_equal(ordo_errors_count(errors), 4000);
  ordo_errors_free(errors);
}

static void the_nearest_name_is_near_and_does_not_depend_on_order(void **state)
{
  (void)state;
  static const char *const names[] = {"ddp", "fsdp2", "fsdp1", "tp", NULL}, *const reversed[] = {"tp", "fsdp1", "fsdp2", "ddp", NULL};
  static const char *const none[] = {NULL};
  assert_string_equal(ordo_nearest_name("fdsp2", names), "fsdp2");
  assert_string_equal(ordo_nearest_name("fsdp", names), "fsdp1");
  assert_string_equal(ordo_nearest_name("fsdp", reversed), "fsdp1");
  assert_string_equal(ordo_nearest_name("ddp", names), "ddp");
  assert_null(ordo_nearest_name("pipeline", names));
  assert_null(ordo_nearest_name("ddp", none));
  g_autofree char *huge = g_strnfill(100000, 'x');
  assert_null(ordo_nearest_name(huge, names));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(records_keep_their_order_and_their_text),
      cmocka_unit_test(threads_may_push_at_the_same_time),
      cmocka_unit_test(the_nearest_name_is_near_and_does_not_depend_on_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
