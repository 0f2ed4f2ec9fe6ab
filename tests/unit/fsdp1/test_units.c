/* test_units.c - wrap policies on a model of embedding, three blocks and a head. */
#include "sharding/units.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { UNITS = 5 };

typedef struct small_model {
  ordo_model model;
  ordo_unit units[UNITS];
  const ordo_unit *list[UNITS];
  ordo_param params[UNITS];
  const ordo_param *param_list[UNITS];
} small_model;

static void make(small_model *m, const char *block_class)
{
  static const char *const names[UNITS] = {"embed", "layers.0", "layers.1", "layers.2", "head"};
  static const int64_t numels[UNITS] = {100, 40, 40, 40, 100};
  memset(m, 0, sizeof *m);
  for (int u = 0; u < UNITS; u++) {
    m->params[u] = (ordo_param){.struct_size = sizeof m->params[u], .name = names[u], .numel = numels[u], .unit = (uint32_t)u};
    m->param_list[u] = &m->params[u];
    m->units[u] = (ordo_unit){.struct_size = sizeof m->units[u],
                              .name = names[u],
                              .class_name = u == 0           ? "Embedding"
                                            : u == UNITS - 1 ? "Head"
                                                             : block_class,
                              .index = (uint32_t)u,
                              .n_params = 1,
                              .params = &m->param_list[u]};
    m->list[u] = &m->units[u];
  }
  m->model = (ordo_model){.struct_size = sizeof m->model, .name = "model", .n_units = UNITS, .units = m->list};
}

static void expect(const sharding_policy *policy, uint32_t n, const uint32_t *groups)
{
  small_model m;
  uint32_t group[UNITS];
  sharding_policy_error error;
  make(&m, "Thing");
  assert_int_equal(sharding_units_assign(policy, &m.model, group, &error), n);
  for (int u = 0; u < UNITS; u++)
    assert_int_equal(group[u], groups[u]);
}

static void repeated_classes_are_blocks(void **state)
{
  (void)state;
  expect(&(sharding_policy){SHARDING_UNITS_BLOCK, 0, ""}, 4, (const uint32_t[]){0, 1, 2, 3, 0});
}

static void one_block_is_found_by_its_class(void **state)
{
  (void)state;
  small_model m;
  uint32_t group[UNITS];
  sharding_policy_error error;
  make(&m, "LlamaBlock");
  m.model.n_units = 2;
  assert_int_equal(sharding_units_assign(&(sharding_policy){SHARDING_UNITS_BLOCK, 0, ""}, &m.model, group, &error), 2);
  assert_int_equal(group[0], 0);
  assert_int_equal(group[1], 1);
}

static void classes_by_list(void **state)
{
  (void)state;
  expect(&(sharding_policy){SHARDING_UNITS_CLASS, 0, "Thing,Head"}, 5, (const uint32_t[]){0, 1, 2, 3, 4});
}

static void sizes_take_neighbours_together(void **state)
{
  (void)state;
  expect(&(sharding_policy){SHARDING_UNITS_SIZE, 80, ""}, 4, (const uint32_t[]){1, 2, 2, 3, 3});
  expect(&(sharding_policy){SHARDING_UNITS_SIZE, 181, ""}, 2, (const uint32_t[]){1, 1, 1, 1, 0});
  expect(&(sharding_policy){SHARDING_UNITS_SIZE, 100000000, ""}, 1, (const uint32_t[]){0, 0, 0, 0, 0});
}

static void lists_of_patterns(void **state)
{
  (void)state;
  expect(&(sharding_policy){SHARDING_UNITS_LIST, 0, "layers.[01],layers.2"}, 3, (const uint32_t[]){0, 1, 1, 2, 0});
}

static void none_is_one_unit(void **state)
{
  (void)state;
  expect(&(sharding_policy){SHARDING_UNITS_NONE, 0, ""}, 1, (const uint32_t[]){0, 0, 0, 0, 0});
}

static void a_pattern_without_match_is_named(void **state)
{
  (void)state;
  small_model m;
  uint32_t group[UNITS];
  sharding_policy_error error;
  make(&m, "Thing");
  assert_int_equal(sharding_units_assign(&(sharding_policy){SHARDING_UNITS_LIST, 0, "layers.*,layer.7"}, &m.model, group, &error), 0);
  assert_int_equal(error.pattern, 2);
  assert_int_equal(sharding_units_assign(&(sharding_policy){SHARDING_UNITS_CLASS, 0, "Thingy"}, &m.model, group, &error), 0);
  assert_int_equal(error.pattern, 1);
}

static void two_patterns_for_a_unit_are_refused(void **state)
{
  (void)state;
  small_model m;
  uint32_t group[UNITS];
  sharding_policy_error error;
  make(&m, "Thing");
  assert_int_equal(sharding_units_assign(&(sharding_policy){SHARDING_UNITS_LIST, 0, "layers.0,layers.*"}, &m.model, group, &error), 0);
  assert_string_equal(error.twice->name, "layers.0");
}

static void patterns_are_counted_and_found(void **state)
{
  (void)state;
  assert_int_equal(sharding_pattern_count(""), 0);
  assert_int_equal(sharding_pattern_count("a,b*,c"), 3);
  assert_int_equal(sharding_pattern_find("a,b*,c", 0, "bcd"), 2);
  assert_int_equal(sharding_pattern_find("a,b*,c", 2, "bcd"), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(repeated_classes_are_blocks),
      cmocka_unit_test(one_block_is_found_by_its_class),
      cmocka_unit_test(classes_by_list),
      cmocka_unit_test(sizes_take_neighbours_together),
      cmocka_unit_test(lists_of_patterns),
      cmocka_unit_test(none_is_one_unit),
      cmocka_unit_test(a_pattern_without_match_is_named),
      cmocka_unit_test(two_patterns_for_a_unit_are_refused),
      cmocka_unit_test(patterns_are_counted_and_found),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
