/* fuzz_expression.c - damaged expressions. The answer is a list of choices or at least one finding; an accepted text is accepted again
 * when it is put together from its parts. */
#include "plugin_files.h"

#include <string.h>

#include "discovery/expression.h"
#include "discovery/registry_inside.h"
#include "mutate.h"

static const char *const seeds[] = {
    "ddp:hook=bf16",
    "tp=2+fsdp2",
    "ddp=2+fsdp2=2:level=2",
    "ddp_bf16:bucket=25MiB:static_graph=yes",
    "ddp@1.0.0",
    "fsdp2:scale=1e5",
    "none",
    "ema+ddp=3:hook=powersgd",
    "ddp:t=bf16",
    "+:=@/",
    "ddp:::",
    "tp=99999999999999999999",
};

static void check(ordo_registry *registry, ordo_errors *errors, const char *text, guint *n_good)
{
  ordo_errors_clear(errors);
  g_autoptr(GPtrArray) choices = ordo_expression_parse(text, ORDO_KIND_STRATEGY, registry, errors);
  assert_true((choices == NULL) == (ordo_errors_count(errors) > 0));
  for (size_t i = 0; i < ordo_errors_count(errors); i++)
    assert_true(*ordo_errors_at(errors, i)->what != '\0' && *ordo_errors_at(errors, i)->next != '\0');
  if (!choices)
    return;
  (*n_good)++;
  g_autoptr(GString) again = g_string_new(NULL);
  for (guint i = 0; i < choices->len; i++) {
    const ordo_choice *choice = g_ptr_array_index(choices, i);
    assert_true(choice->size >= -1);
    g_string_append_printf(again, "%s%s", i ? "+" : "", choice->written);
  }
  g_autoptr(GPtrArray) same = ordo_expression_parse(again->str, ORDO_KIND_STRATEGY, registry, errors);
  assert_non_null(same);
  assert_int_equal(same->len, choices->len);
}

static void damaged_expressions_get_an_answer(void **state)
{
  (void)state;
  char *root = scratch_new();
  ordo_errors *errors = ordo_errors_new();
  g_free(write_plugin(root, "a", "ddp", "strategy", "1.0.0",
                      "option=hook|enum||fp16,bf16,powersgd|h\noption=bucket|size|25MiB|1KiB..1GiB|b\noption=static_graph|bool|no||s\n"
                      "option=t|dtype|f32||t\nalias=ddp_bf16:hook=bf16\n"));
  g_free(write_plugin(root, "b", "fsdp2", "strategy", "1.0.0", "option=level|int|3|1..3|l\noption=scale|real|1|0..|s\npositional=level\n"));
  g_free(write_plugin(root, "c", "tp", "strategy", "1.0.0", "mesh_axis=model\n"));
  g_free(write_plugin(root, "d", "ema", "strategy", "1.0.0", "mesh_axis=none\n"));
  ordo_registry_options options = {root, ORDO_CONTEXT_NO_DEFAULT_PATH};
  ordo_search_environment environment = {.installed = "/nowhere"};
  ordo_registry *registry = ordo_registry_scan_in(&options, &environment, errors);
  assert_int_equal(ordo_registry_count(registry), 4);
  mutator m = {7};
  gint64 end = g_get_monotonic_time() + 2 * G_USEC_PER_SEC;
  guint n = 0, n_good = 0;
  while (n < 200 || (n < 200000 && g_get_monotonic_time() < end)) {
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    const char *first = seeds[mutate_below(&m, G_N_ELEMENTS(seeds))], *second = seeds[mutate_below(&m, G_N_ELEMENTS(seeds))];
    g_byte_array_append(bytes, (const guint8 *)first, (guint)strlen(first));
    if (mutate_below(&m, 2)) {
      g_byte_array_append(bytes, (const guint8 *)"+", 1);
      g_byte_array_append(bytes, (const guint8 *)second, (guint)strlen(second));
    }
    if (mutate_below(&m, 4))
      mutate_bytes(&m, bytes);
    g_byte_array_append(bytes, (const guint8 *)"", 1);
    check(registry, errors, (const char *)bytes->data, &n_good);
    n++;
  }
  print_message("%u expressions, %u accepted\n", n, n_good);
  assert_true(n_good > 0 && n_good < n);
  ordo_registry_free(registry);
  ordo_errors_free(errors);
  scratch_free(root);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(damaged_expressions_get_an_answer)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
