/* test_json.c - the JSON writer and the table writer. */
#include "check.h"
#include "json_check.h"
#include "plan/json.h"
#include "plan/table.h"

static void test_every_value(void **state)
{
  ordo_json json;
  (void)state;
  ordo_json_begin(&json);
  ordo_json_open(&json, NULL, '{');
  ordo_json_string(&json, "text", "a \"quoted\" \\ path\n\t\001\177 \xc3\xa9");
  ordo_json_string(&json, "bad", "\xff");
  ordo_json_string(&json, "none", NULL);
  ordo_json_int(&json, "number", -9223372036854775807 - 1);
  ordo_json_bool(&json, "yes", TRUE);
  ordo_json_open(&json, "empty", '[');
  ordo_json_close(&json, ']');
  ordo_json_open(&json, "list", '[');
  ordo_json_int(&json, NULL, 1);
  ordo_json_open(&json, NULL, '{');
  ordo_json_close(&json, '}');
  ordo_json_close(&json, ']');
  ordo_json_close(&json, '}');
  g_autofree char *text = ordo_json_end(&json);
  assert_string_equal(text, "{\n"
                            "  \"text\": \"a \\\"quoted\\\" \\\\ path\\n\\t\\u0001\\u007f \xc3\xa9\",\n"
                            "  \"bad\": \"\xef\xbf\xbd\",\n"
                            "  \"none\": null,\n"
                            "  \"number\": -9223372036854775808,\n"
                            "  \"yes\": true,\n"
                            "  \"empty\": [],\n"
                            "  \"list\": [\n"
                            "    1,\n"
                            "    {}\n"
                            "  ]\n"
                            "}\n");
  assert_true(json_is_valid(text));
}

/* The checker of the tests can say no. */
static void test_checker(void **state)
{
  static const char *const bad[] = {"", "{", "{\"a\"}", "{\"a\":1,}", "[1 2]", "\"\n\"", "\"\\x\"", "{}x", "\"\xff\"", "tru"};
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(bad); i++)
    assert_false(json_is_valid(bad[i]));
}

static void test_table(void **state)
{
  g_autoptr(ordo_table) table = ordo_table_new(3);
  g_autoptr(GString) out = g_string_new(NULL);
  (void)state;
  ordo_table_row(table, (const char *const[]){"a", "\xc3\xa9\xc3\xa9\xc3\xa9", "last"});
  ordo_table_row(table, (const char *const[]){"long", "b", ""});
  ordo_table_row(table, (const char *const[]){NULL, NULL, "x"});
  ordo_table_append(table, out, "> ", NULL);
  assert_string_equal(out->str, "> a     \xc3\xa9\xc3\xa9\xc3\xa9  last\n"
                                "> long  b\n"
                                ">            x\n");
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_value), cmocka_unit_test(test_checker), cmocka_unit_test(test_table)};
  return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
