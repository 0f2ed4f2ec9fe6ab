/* test_find.c - what a name means: ids, aliases, versions, paths, and what is said when it means nothing. */
#include "plugin_files.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "discovery/registry_inside.h"

typedef struct place {
  char *root;
  ordo_errors *errors;
  ordo_registry *registry;
} place;

static void add(const place *p, const char *name, const char *id, const char *kind, const char *version, const char *more)
{
  g_free(write_plugin(p->root, name, id, kind, version, more));
}

static int set_up(void **state)
{
  place *p = g_new0(place, 1);
  p->root = scratch_new();
  p->errors = ordo_errors_new();
  add(p, "fsdp2", "fsdp2", "strategy", "1.0.0", "alias=fsdp\nalias=zero3:level=3\nalias=shared\noption=level|int|1|1..3|l\n");
  add(p, "fsdp2_old", "fsdp2", "strategy", "0.9.0", NULL);
  add(p, "ddp", "ddp", "strategy", "1.0.0", "alias=shared\nalias=amp\n");
  add(p, "apex", "apex_amp", "precision", "1.0.0", "alias=amp\n");
  add(p, "hook", "powersgd", "comm_hook", "1.0.0", NULL);
  g_autofree char *broken = g_build_filename(p->root, "libbroken.so", NULL);
  write_bytes(broken, "", 0);
  ordo_registry_options options = {p->root, ORDO_CONTEXT_NO_DEFAULT_PATH};
  ordo_search_environment environment = {.installed = "/nowhere"};
  p->registry = ordo_registry_scan_in(&options, &environment, p->errors);
  ordo_errors_clear(p->errors);
  *state = p;
  return 0;
}

static int tear_down(void **state)
{
  place *p = *state;
  ordo_registry_free(p->registry);
  ordo_errors_free(p->errors);
  scratch_free(p->root);
  g_free(p);
  return 0;
}

static const ordo_found *found(place *p, const char *name, uint32_t kind, const char *id, const char *version, const char *preset)
{
  const ordo_found *result = NULL;
  const char *text = NULL;
  ordo_status status = ordo_registry_find(p->registry, name, kind, &result, &text, p->errors);
  if (status)
    fail_msg("%s: %s", name, ordo_errors_at(p->errors, 0)->what);
  assert_string_equal(result->info.id, id);
  assert_string_equal(result->info.version, version);
  assert_string_equal(text, preset);
  return result;
}

static const ordo_error *not_found(place *p, const char *name, uint32_t kind, ordo_status wanted, const char *code)
{
  const ordo_found *result = NULL;
  const char *text = NULL;
  ordo_errors_clear(p->errors);
  assert_int_equal(ordo_registry_find(p->registry, name, kind, &result, &text, p->errors), wanted);
  assert_null(result);
  assert_int_equal(ordo_errors_count(p->errors), 1);
  assert_string_equal(ordo_errors_at(p->errors, 0)->code, code);
  return ordo_errors_at(p->errors, 0);
}

static void ids_aliases_and_versions_are_exact(void **state)
{
  place *p = *state;
  found(p, "fsdp2", 0, "fsdp2", "1.0.0", "");
  found(p, "fsdp2", ORDO_KIND_STRATEGY, "fsdp2", "1.0.0", "");
  found(p, "fsdp", 0, "fsdp2", "1.0.0", "");
  found(p, "zero3", ORDO_KIND_STRATEGY, "fsdp2", "1.0.0", "level=3");
  found(p, "fsdp2@0.9.0", 0, "fsdp2", "0.9.0", "");
  found(p, "fsdp2@1.0.0", 0, "fsdp2", "1.0.0", "");
}

static void of_equal_versions_the_earlier_place_is_meant(void **state)
{
  place *p = *state;
  char *root = scratch_new();
  g_autofree char *first = g_build_filename(root, "z", NULL), *second = g_build_filename(root, "a", NULL);
  assert_int_equal(mkdir(first, 0755), 0);
  assert_int_equal(mkdir(second, 0755), 0);
  g_autofree char *both = g_strdup_printf("%s:%s", first, second);
  g_free(write_plugin(first, "z", "one", "strategy", "1.0.0", NULL));
  g_free(write_plugin(second, "a", "one", "strategy", "1.0.0", "license=MIT\n"));
  g_free(write_plugin(second, "b", "one", "strategy", "2.0.0", NULL));
  ordo_registry_options options = {both, ORDO_CONTEXT_NO_DEFAULT_PATH};
  ordo_search_environment environment = {.installed = "/nowhere"};
  ordo_registry_free(p->registry);
  p->registry = ordo_registry_scan_in(&options, &environment, p->errors);
  assert_true(g_str_has_prefix(found(p, "one@1.0.0", 0, "one", "1.0.0", "")->info.path, first));
  scratch_free(root);
}

static void no_part_of_a_name_is_a_name(void **state)
{
  place *p = *state;
  static const char *const names[] = {"f",        "fsd", "fsdp22", "FSDP2",  "fsdp2 ",     " fsdp2",
                                      "fsdp2.so", "dd",  "@",      "fsdp2@", "fsdp@1.0.0", "%s"};
  for (gsize i = 0; i < G_N_ELEMENTS(names); i++)
    not_found(p, names[i], 0, ORDO_E_NOT_FOUND, "E-PLUGIN-UNKNOWN");
  not_found(p, "", 0, ORDO_E_INVALID, "E-PLUGIN-UNKNOWN");
  not_found(p, NULL, 0, ORDO_E_INVALID, "E-PLUGIN-UNKNOWN");
}

static void an_unknown_name_shows_the_nearest_and_what_there_is(void **state)
{
  place *p = *state;
  const ordo_error *error = not_found(p, "fdsp2", ORDO_KIND_STRATEGY, ORDO_E_NOT_FOUND, "E-PLUGIN-UNKNOWN");
  assert_string_equal(error->what, "there is no strategy 'fdsp2'");
  assert_string_equal(
      error->why, "available: amp (ddp), ddp, fsdp (fsdp2), fsdp2, zero3 (fsdp2:level=3)"); /* and no alias of two, nor of another kind */
  assert_contains(error->next, "did you mean 'fsdp2'?");
  error = not_found(p, "zero33", 0, ORDO_E_NOT_FOUND, "E-PLUGIN-UNKNOWN");
  assert_contains(error->next, "did you mean 'zero3'?");
  error = not_found(p, "pipeline", ORDO_KIND_STRATEGY, ORDO_E_NOT_FOUND, "E-PLUGIN-UNKNOWN");
  assert_contains(error->next, "ordo list");
}

static void an_unknown_version_shows_those_installed(void **state)
{
  place *p = *state;
  const ordo_error *error = not_found(p, "fsdp2@3.0.0", 0, ORDO_E_NOT_FOUND, "E-PLUGIN-UNKNOWN");
  assert_string_equal(error->why, "installed: 1.0.0, 0.9.0");
}

static void the_wrong_kind_says_so(void **state)
{
  place *p = *state;
  const ordo_error *error = not_found(p, "apex_amp", ORDO_KIND_STRATEGY, ORDO_E_INVALID, "E-PLUGIN-KIND");
  assert_string_equal(error->what, "'apex_amp' is a precision plugin, not a strategy");
  assert_contains(error->next, "--precision");
  error = not_found(p, "zero3", ORDO_KIND_PRECISION, ORDO_E_INVALID, "E-PLUGIN-KIND");
  assert_contains(error->next, "--strategy");
  error = not_found(p, "powersgd", ORDO_KIND_STRATEGY, ORDO_E_INVALID, "E-PLUGIN-KIND");
  assert_contains(error->next, "`hook`");
}

static void an_alias_of_two_plugins_is_ambiguous_unless_the_kind_decides(void **state)
{
  place *p = *state;
  const ordo_error *error = not_found(p, "shared", 0, ORDO_E_NOT_FOUND, "E-PLUGIN-ALIAS");
  assert_string_equal(error->why, "it belongs to: ddp, fsdp2");
  not_found(p, "amp", 0, ORDO_E_NOT_FOUND, "E-PLUGIN-ALIAS");
  found(p, "amp", ORDO_KIND_PRECISION, "apex_amp", "1.0.0", "");
  found(p, "amp", ORDO_KIND_STRATEGY, "ddp", "1.0.0", "");
}

static void a_refused_file_is_not_called_unknown(void **state)
{
  place *p = *state;
  const ordo_error *error = not_found(p, "broken", 0, ORDO_E_REFUSED, "E-PLUGIN-ELF");
  assert_contains(error->where, "/libbroken.so");
  assert_string_equal(error->why, "it is empty");
}

static void each_reason_of_a_refusal_has_its_code(void **state)
{
  place *p = *state;
  static const struct {
    const char *manifest, *code;
  } cases[] = {{NULL, "E-PLUGIN-REFUSED"},
               {"nonsense\n", "E-MANIFEST"},
               {"abi=2.0\nid=later\nkind=strategy\nversion=1.0.0\nsummary=s\n", "E-PLUGIN-ABI"}};
  g_autofree char *path = g_build_filename(p->root, "case.so", NULL);
  for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
    write_elf(path, &(elf_recipe){.manifest = cases[i].manifest});
    not_found(p, path, 0, ORDO_E_REFUSED, cases[i].code);
  }
}

static void what_has_a_slash_is_a_path(void **state)
{
  place *p = *state;
  g_autofree char *other = scratch_new();
  g_autofree char *path = write_plugin(other, "mine", "mine", "strategy", "7.0.0", NULL);
  g_autofree char *missing = g_build_filename(other, "missing.so", NULL);
  g_autofree char *listed = g_build_filename(p->root, "fsdp2_old.so", NULL);
  g_autofree char *before = g_get_current_dir();
  size_t n_listed = ordo_registry_count(p->registry);
  const ordo_found *first = found(p, path, 0, "mine", "7.0.0", "");
  assert_ptr_equal(found(p, path, ORDO_KIND_STRATEGY, "mine", "7.0.0", ""), first);
  assert_int_equal(chdir(other), 0);
  found(p, "./mine.so", 0, "mine", "7.0.0", "");
  assert_int_equal(chdir(before), 0);
  found(p, listed, 0, "fsdp2", "0.9.0", "");
  not_found(p, path, ORDO_KIND_PRECISION, ORDO_E_INVALID, "E-PLUGIN-KIND");
  not_found(p, missing, 0, ORDO_E_NOT_FOUND, "E-PLUGIN-UNKNOWN");
  not_found(p, "./", 0, ORDO_E_REFUSED, "E-PLUGIN-ELF");
  assert_int_equal(ordo_registry_count(p->registry), n_listed);
  scratch_free(g_steal_pointer(&other));
}

static void a_refused_path_can_be_cured(void **state)
{
  place *p = *state;
  g_autofree char *other = scratch_new();
  g_autofree char *path = write_plugin(other, "mine", "mine", "strategy", "7.0.0", NULL);
  assert_int_equal(chmod(path, 0666), 0);
  const ordo_error *error = not_found(p, path, 0, ORDO_E_REFUSED, "E-PLUGIN-TRUST");
  assert_contains(error->why, "chmod go-w");
  assert_int_equal(chmod(path, 0644), 0);
  ordo_errors_clear(p->errors);
  found(p, path, 0, "mine", "7.0.0", "");
  scratch_free(g_steal_pointer(&other));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(ids_aliases_and_versions_are_exact, set_up, tear_down),
      cmocka_unit_test_setup_teardown(of_equal_versions_the_earlier_place_is_meant, set_up, tear_down),
      cmocka_unit_test_setup_teardown(no_part_of_a_name_is_a_name, set_up, tear_down),
      cmocka_unit_test_setup_teardown(an_unknown_name_shows_the_nearest_and_what_there_is, set_up, tear_down),
      cmocka_unit_test_setup_teardown(an_unknown_version_shows_those_installed, set_up, tear_down),
      cmocka_unit_test_setup_teardown(the_wrong_kind_says_so, set_up, tear_down),
      cmocka_unit_test_setup_teardown(an_alias_of_two_plugins_is_ambiguous_unless_the_kind_decides, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_refused_file_is_not_called_unknown, set_up, tear_down),
      cmocka_unit_test_setup_teardown(each_reason_of_a_refusal_has_its_code, set_up, tear_down),
      cmocka_unit_test_setup_teardown(what_has_a_slash_is_a_path, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_refused_path_can_be_cured, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
