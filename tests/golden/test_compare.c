/* test_compare.c - the comparer of golden numbers must refuse what is wrong. It is given the numbers of a correct run and the negative
 * controls of the published cases (what a named mistake gives). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "golden.h"

#include <math.h>
#include <string.h>

static void deviations_are_in_units_of_the_tolerance(void **state)
{
  golden_worst worst = {0};
  (void)state;
  golden_compare(&worst, "equal", 1.0, 1.0, 0.0);
  assert_true(worst.units == 0.0);
  golden_compare(&worst, "half", 1.5, 1.0, 1.0);
  assert_true(worst.units == 0.5);
  golden_compare_relative(&worst, "double", -202.0, -200.0, 0.005);
  assert_true(fabs(worst.units - 2.0) < 1e-12);
  assert_string_equal(worst.metric, "double");
  golden_compare(&worst, "small", 1.0, 1.1, 1.0);
  assert_string_equal(worst.metric, "double");
}

static void what_is_not_a_number_is_infinitely_wrong(void **state)
{
  golden_worst a = {0}, b = {0}, c = {0};
  (void)state;
  golden_compare(&a, "nan", NAN, 1.0, 1.0);
  golden_compare(&b, "inf", INFINITY, INFINITY, 1.0);
  golden_compare(&c, "unequal with tolerance 0", 1.0, 2.0, 0.0);
  assert_true(isinf(a.units) && isinf(b.units) && isinf(c.units));
}

static void lists_of_other_lengths_and_missing_tolerances_fail(void **state)
{
  golden_worst worst = {0}, second = {0};
  g_autoptr(JsonArray) one = json_array_new(), two = json_array_new();
  g_autoptr(JsonObject) empty = json_object_new();
  (void)state;
  json_array_add_double_element(one, 1.0);
  json_array_add_double_element(two, 1.0);
  json_array_add_double_element(two, 1.0);
  golden_compare_list(&worst, "loss", one, two, 1.0);
  assert_non_null(worst.failure);
  golden_tolerance(&second, empty, "loss_rel");
  assert_non_null(second.failure);
  g_free(worst.failure);
  g_free(second.failure);
}

/* Each list of the control replaces the correct one; the case's own tolerance must refuse it. */
static guint refuse_controls(JsonObject *expected)
{
  guint refused = 0;
  JsonNode *node = json_object_get_member(expected, "negative_control");
  if (!node || !JSON_NODE_HOLDS_OBJECT(node))
    return 0;
  JsonObject *control = json_node_get_object(node);
  g_autoptr(GList) names = json_object_get_members(control);
  for (GList *n = names; n; n = n->next) {
    JsonNode *wrong = json_object_get_member(control, n->data);
    if (!JSON_NODE_HOLDS_OBJECT(wrong) || !json_object_has_member(json_node_get_object(wrong), "loss"))
      continue;
    golden_worst worst = {0}, right = {0};
    golden_options options = {0};
    JsonObject *lists = json_node_get_object(wrong);
    golden_compare_training(&options, expected, json_object_get_array_member(lists, "loss"),
                            json_object_get_array_member(lists, "grad_norm_before_clip"), &worst);
    golden_compare_training(&options, expected, json_object_get_array_member(expected, "loss"),
                            json_object_get_array_member(expected, "grad_norm_before_clip"), &right);
    assert_true(worst.units > 1.0);
    assert_true(right.units == 0.0 && !right.failure);
    g_free(worst.failure);
    refused++;
  }
  return refused;
}

static void the_published_mistakes_are_refused(void **state)
{
  static const char *const cases[] = {"masked_adamw_accum4", "masked_sgd_accum4"};
  const char *root = g_getenv("ORDO_GOLDEN_DIR");
  guint refused = 0;
  (void)state;
  root = root ? root : ORDO_GOLDEN_DEFAULT;
  if (!g_file_test(root, G_FILE_TEST_IS_DIR)) {
    print_message("skipped: no golden numbers at %s (ORDO_GOLDEN_DIR)\n", root);
    skip();
  }
  for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autofree char *relative = g_strdup_printf("training/%s.json", cases[i]), *why = NULL;
    g_autoptr(JsonObject) expected = golden_read(root, relative, &why);
    assert_non_null(expected);
    refused += refuse_controls(expected);
  }
  assert_true(refused >= 2);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(deviations_are_in_units_of_the_tolerance),
      cmocka_unit_test(what_is_not_a_number_is_infinitely_wrong),
      cmocka_unit_test(lists_of_other_lengths_and_missing_tolerances_fail),
      cmocka_unit_test(the_published_mistakes_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
