/* test_option.c - values of options: what each type accepts, its canonical text, ranges, and conversions. */
#include "plugin_files.h"

#include <string.h>

#include <ordo/dtype.h>

#include "discovery/option.h"

typedef struct row {
  int type;
  const char *range, *text, *canonical; /* canonical null: refused */
} row;

static void check(const row *rows, gsize n)
{
  for (gsize i = 0; i < n; i++) {
    ordo_option_schema schema = {.key = (char *)"key", .type = rows[i].type, .range = (char *)rows[i].range};
    g_autofree char *why = NULL;
    g_autofree char *canonical = ordo_option_normalise(&schema, rows[i].text, &why);
    if (g_strcmp0(canonical, rows[i].canonical) != 0)
      fail_msg("%s '%s' in '%s' became %s, not %s", ordo_option_type_name(rows[i].type), rows[i].text, rows[i].range,
               canonical ? canonical : "refused", rows[i].canonical ? rows[i].canonical : "refused");
    assert_true((canonical == NULL) == (why != NULL));
  }
}

static void truth_values(void **state)
{
  (void)state;
  static const row rows[] = {
      {ORDO_OPTION_BOOL, "", "yes", "yes"}, {ORDO_OPTION_BOOL, "", "TRUE", "yes"}, {ORDO_OPTION_BOOL, "", "on", "yes"},
      {ORDO_OPTION_BOOL, "", "1", "yes"},   {ORDO_OPTION_BOOL, "", "no", "no"},    {ORDO_OPTION_BOOL, "", "false", "no"},
      {ORDO_OPTION_BOOL, "", "Off", "no"},  {ORDO_OPTION_BOOL, "", "0", "no"},     {ORDO_OPTION_BOOL, "", "2", NULL},
      {ORDO_OPTION_BOOL, "", "y", NULL},    {ORDO_OPTION_BOOL, "", "", NULL},
  };
  check(rows, G_N_ELEMENTS(rows));
}

static void whole_numbers(void **state)
{
  (void)state;
  static const row rows[] = {
      {ORDO_OPTION_INT, "", "0", "0"},
      {ORDO_OPTION_INT, "", "007", "7"},
      {ORDO_OPTION_INT, "", "-3", "-3"},
      {ORDO_OPTION_INT, "", "9223372036854775807", "9223372036854775807"},
      {ORDO_OPTION_INT, "", "9223372036854775808", NULL},
      {ORDO_OPTION_INT, "", "1.5", NULL},
      {ORDO_OPTION_INT, "", "0x10", NULL},
      {ORDO_OPTION_INT, "", " 1", NULL},
      {ORDO_OPTION_INT, "", "1 ", NULL},
      {ORDO_OPTION_INT, "", "", NULL},
      {ORDO_OPTION_INT, "1..3", "1", "1"},
      {ORDO_OPTION_INT, "1..3", "3", "3"},
      {ORDO_OPTION_INT, "1..3", "0", NULL},
      {ORDO_OPTION_INT, "1..3", "4", NULL},
      {ORDO_OPTION_INT, "1..", "999", "999"},
      {ORDO_OPTION_INT, "1..", "0", NULL},
      {ORDO_OPTION_INT, "..5", "-999", "-999"},
      {ORDO_OPTION_INT, "..5", "6", NULL},
      {ORDO_OPTION_INT, "-2..-1", "-3", NULL},
      /* 2^53 + 1: not to be rounded into the range */
      {ORDO_OPTION_INT, "..9007199254740992", "9007199254740993", NULL},
      {ORDO_OPTION_INT, "dynamic,8", "dynamic", "dynamic"},
      {ORDO_OPTION_INT, "dynamic,8", "8", "8"},
      {ORDO_OPTION_INT, "dynamic,8", "9", NULL},
  };
  check(rows, G_N_ELEMENTS(rows));
}

static void real_numbers(void **state)
{
  (void)state;
  static const row rows[] = {
      {ORDO_OPTION_REAL, "", "0.1", "0.1"},
      {ORDO_OPTION_REAL, "", "1e-3", "0.001"},
      {ORDO_OPTION_REAL, "", "2.50", "2.5"},
      {ORDO_OPTION_REAL, "", "65536", "65536"},
      {ORDO_OPTION_REAL, "", ".5", "0.5"},
      {ORDO_OPTION_REAL, "", "0.1000000000000000055", "0.1"},
      {ORDO_OPTION_REAL, "", "nan", NULL},
      {ORDO_OPTION_REAL, "", "inf", NULL},
      {ORDO_OPTION_REAL, "", "1e999", NULL},
      {ORDO_OPTION_REAL, "", "1,5", NULL},
      {ORDO_OPTION_REAL, "", "1 ", NULL},
      {ORDO_OPTION_REAL, "", " 1", NULL},
      {ORDO_OPTION_REAL, "", "-", NULL},
      {ORDO_OPTION_REAL, "0..1", "1", "1"},
      {ORDO_OPTION_REAL, "0..1", "1.0000001", NULL},
      {ORDO_OPTION_REAL, "0..1", "-0.1", NULL},
      {ORDO_OPTION_REAL, "1e-8..", "1e-9", NULL},
  };
  check(rows, G_N_ELEMENTS(rows));
}

static void sizes(void **state)
{
  (void)state;
  static const row rows[] = {
      {ORDO_OPTION_SIZE, "", "25MiB", "25MiB"},
      {ORDO_OPTION_SIZE, "", "26214400", "25MiB"},
      {ORDO_OPTION_SIZE, "", "25600KiB", "25MiB"},
      {ORDO_OPTION_SIZE, "", "1000", "1000"},
      {ORDO_OPTION_SIZE, "", "1kB", "1000"},
      {ORDO_OPTION_SIZE, "", "1024B", "1KiB"},
      {ORDO_OPTION_SIZE, "", "0", "0"},
      {ORDO_OPTION_SIZE, "", "2TiB", "2TiB"},
      {ORDO_OPTION_SIZE, "", "1MB", "1000000"},
      {ORDO_OPTION_SIZE, "", "25 MiB", NULL},
      {ORDO_OPTION_SIZE, "", "MiB", NULL},
      {ORDO_OPTION_SIZE, "", "-1MiB", NULL},
      {ORDO_OPTION_SIZE, "", "1.5MiB", NULL},
      {ORDO_OPTION_SIZE, "", "25mib", NULL},
      {ORDO_OPTION_SIZE, "", "9999999999TiB", NULL},
      {ORDO_OPTION_SIZE, "1KiB..1GiB", "1KiB", "1KiB"},
      {ORDO_OPTION_SIZE, "1KiB..1GiB", "1023", NULL},
      {ORDO_OPTION_SIZE, "1KiB..1GiB", "1073741825", NULL},
  };
  check(rows, G_N_ELEMENTS(rows));
}

static void words_and_types(void **state)
{
  (void)state;
  static const row rows[] = {
      {ORDO_OPTION_ENUM, "O1,O2, O3", "O2", "O2"},  {ORDO_OPTION_ENUM, "O1,O2, O3", "O3", "O3"},
      {ORDO_OPTION_ENUM, "O1,O2", "o1", NULL},      {ORDO_OPTION_ENUM, "O1,O2", "O", NULL},
      {ORDO_OPTION_ENUM, "O1,O2", "O1,O2", NULL},   {ORDO_OPTION_STRING, "", "any text", "any text"},
      {ORDO_OPTION_STRING, "", "", NULL},           {ORDO_OPTION_STRING, "", "\xff", NULL},
      {ORDO_OPTION_STRING, "a,b", "c", NULL},       {ORDO_OPTION_DTYPE, "", "bf16", "bf16"},
      {ORDO_OPTION_DTYPE, "", "bfloat16", "bf16"},  {ORDO_OPTION_DTYPE, "", "float32", "f32"},
      {ORDO_OPTION_DTYPE, "", "f8", NULL},          {ORDO_OPTION_DTYPE, "f32,bf16", "fp32", "f32"},
      {ORDO_OPTION_DTYPE, "f32,bf16", "f16", NULL},
  };
  check(rows, G_N_ELEMENTS(rows));
}

static void a_refusal_says_what_is_allowed(void **state)
{
  (void)state;
  ordo_option_schema schema = {.type = ORDO_OPTION_ENUM, .range = (char *)"powersgd,fp16,bf16"};
  g_autofree char *why = NULL;
  assert_null(ordo_option_normalise(&schema, "powerSGD", &why));
  assert_string_equal(why, "it must be one of powersgd,fp16,bf16");
  g_clear_pointer(&why, g_free);
  assert_null(ordo_option_normalise(&schema, "powersdg", &why));
  assert_string_equal(why, "it must be one of powersgd,fp16,bf16; did you mean 'powersgd'?");
  g_clear_pointer(&why, g_free);
  schema = (ordo_option_schema){.type = ORDO_OPTION_INT, .range = (char *)"1..3"};
  assert_null(ordo_option_normalise(&schema, "9", &why));
  assert_string_equal(why, "it must lie in 1..3");
}

static void conversions_fit_the_type(void **state)
{
  (void)state;
  gint64 whole = -1;
  double real = -1;
  ordo_option_schema schema = {.type = ORDO_OPTION_SIZE};
  assert_true(ordo_option_to_int(&schema, "25MiB", &whole) && whole == 26214400);
  assert_false(ordo_option_to_real(&schema, "25MiB", &real));
  schema.type = ORDO_OPTION_BOOL;
  assert_true(ordo_option_to_int(&schema, "yes", &whole) && whole == 1);
  assert_true(ordo_option_to_int(&schema, "no", &whole) && whole == 0);
  schema.type = ORDO_OPTION_DTYPE;
  assert_true(ordo_option_to_int(&schema, "bf16", &whole) && whole == ORDO_BF16);
  schema.type = ORDO_OPTION_INT;
  assert_true(ordo_option_to_int(&schema, "-7", &whole) && whole == -7);
  schema.type = ORDO_OPTION_REAL;
  assert_true(ordo_option_to_real(&schema, "0.25", &real));
  assert_float_equal(real, 0.25, 0);
  assert_false(ordo_option_to_int(&schema, "1", &whole));
  schema.type = ORDO_OPTION_STRING;
  assert_false(ordo_option_to_int(&schema, "1", &whole));
  assert_false(ordo_option_to_real(&schema, "1", &real));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(truth_values),
      cmocka_unit_test(whole_numbers),
      cmocka_unit_test(real_numbers),
      cmocka_unit_test(sizes),
      cmocka_unit_test(words_and_types),
      cmocka_unit_test(a_refusal_says_what_is_allowed),
      cmocka_unit_test(conversions_fit_the_type),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
