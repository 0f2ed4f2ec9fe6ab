/* test_semver.c - precedence of versions. */
#include "plugin_files.h"

#include "discovery/semver.h"

static void versions_rise_in_the_order_of_the_standard(void **state)
{
  (void)state;
  /* semver.org 2.0.0, items 11.2 to 11.4, and neighbours. */
  static const char *const rising[] = {"0.9.9",
                                       "1.0.0-0",
                                       "1.0.0-2",
                                       "1.0.0-10",
                                       "1.0.0--a",
                                       "1.0.0-alpha",
                                       "1.0.0-alpha.1",
                                       "1.0.0-alpha.beta",
                                       "1.0.0-beta",
                                       "1.0.0-beta.2",
                                       "1.0.0-beta.11",
                                       "1.0.0-rc.1",
                                       "1.0.0",
                                       "1.0.1",
                                       "1.2.0",
                                       "1.10.0",
                                       "2.0.0",
                                       "10.0.0",
                                       "99999999999999999999.0.0",
                                       "100000000000000000000.0.0"};
  for (gsize i = 0; i < G_N_ELEMENTS(rising); i++)
    for (gsize j = 0; j < G_N_ELEMENTS(rising); j++) {
      int order = ordo_semver_compare(rising[i], rising[j]);
      assert_int_equal((order > 0) - (order < 0), (i > j) - (i < j));
    }
}

static void build_metadata_does_not_count(void **state)
{
  (void)state;
  assert_int_equal(ordo_semver_compare("1.0.0+a", "1.0.0+b"), 0);
  assert_int_equal(ordo_semver_compare("1.0.0+1-9", "1.0.0"), 0);
  assert_true(ordo_semver_compare("1.0.0-rc.1+9", "1.0.0") < 0);
}

static void any_text_is_ordered(void **state)
{
  (void)state;
  assert_int_equal(ordo_semver_compare("", ""), 0);
  assert_true(ordo_semver_compare("", "1") < 0);
  assert_true(ordo_semver_compare("1.", "1") >= 0);
  assert_int_equal(ordo_semver_compare("01.0.0", "1.0.0"), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(versions_rise_in_the_order_of_the_standard),
      cmocka_unit_test(build_metadata_does_not_count),
      cmocka_unit_test(any_text_is_ordered),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
