/* test_search.c - the search path: order, what is left out, privilege, and directories that cannot be read. */
#include "plugin_files.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "discovery/search.h"

typedef struct place {
  char *root, *a, *b, *home, *installed;
  ordo_errors *errors;
} place;

static char *make_directory(const char *parent, const char *name)
{
  char *path = g_build_filename(parent, name, NULL);
  assert_int_equal(g_mkdir_with_parents(path, 0755), 0);
  return path;
}

static int set_up(void **state)
{
  place *p = g_new0(place, 1);
  p->root = scratch_new();
  p->a = make_directory(p->root, "a");
  p->b = make_directory(p->root, "b");
  p->home = make_directory(p->root, "home");
  p->installed = make_directory(p->root, "installed");
  p->errors = ordo_errors_new();
  *state = p;
  return 0;
}

static int tear_down(void **state)
{
  place *p = *state;
  ordo_errors_free(p->errors);
  scratch_free(p->root);
  g_free(p->a), g_free(p->b), g_free(p->home), g_free(p->installed);
  g_free(p);
  return 0;
}

static char *report_of(place *p, const char *plugin_path, uint32_t flags, const ordo_search_environment *environment)
{
  ordo_registry_options options = {plugin_path, flags};
  g_autoptr(GPtrArray) places = ordo_search_places(&options, environment, p->errors);
  return ordo_search_report(places);
}

static ordo_search_environment environment_of(const place *p)
{
  ordo_search_environment environment = {.home = p->home, .installed = p->installed};
  return environment;
}

/* Position of `part` in `text`; the test fails if it is not there. */
static gsize position(const char *text, const char *part)
{
  assert_contains(text, part);
  return (gsize)(strstr(text, part) - text);
}

static void the_four_sources_come_in_order(void **state)
{
  place *p = *state;
  ordo_search_environment environment = environment_of(p);
  g_autofree char *user = make_directory(p->home, ".local/share/ordo/plugins");
  environment.plugin_path = p->b;
  g_autofree char *report = report_of(p, p->a, 0, &environment);
  g_autofree char *first = g_strdup_printf("--plugin-path     %s  searched", p->a);
  g_autofree char *second = g_strdup_printf("ORDO_PLUGIN_PATH  %s  searched", p->b);
  g_autofree char *third = g_strdup_printf("user directory    %s  searched", user);
  g_autofree char *fourth = g_strdup_printf("installed         %s  searched", p->installed);
  assert_true(position(report, first) < position(report, second));
  assert_true(position(report, second) < position(report, third));
  assert_true(position(report, third) < position(report, fourth));
  assert_int_equal(ordo_errors_count(p->errors), 0);
}

static void the_data_home_replaces_the_one_below_home(void **state)
{
  place *p = *state;
  ordo_search_environment environment = environment_of(p);
  g_autofree char *user = make_directory(p->a, "ordo/plugins");
  environment.data_home = p->a;
  g_autofree char *report = report_of(p, NULL, 0, &environment);
  assert_contains(report, user);
  assert_null(strstr(report, ".local"));
  environment.data_home = "relative";
  g_autofree char *fallback = report_of(p, NULL, 0, &environment);
  assert_contains(fallback, ".local/share/ordo/plugins  left out: it does not exist");
  environment.home = "";
  g_autofree char *none = report_of(p, NULL, 0, &environment);
  assert_contains(none, "neither XDG_DATA_HOME nor HOME");
}

static void a_privileged_process_ignores_environment_and_home(void **state)
{
  place *p = *state;
  ordo_search_environment environment = environment_of(p);
  g_autofree char *user = make_directory(p->home, ".local/share/ordo/plugins");
  environment.plugin_path = p->b;
  environment.privileged = TRUE;
  g_autofree char *report = report_of(p, NULL, 0, &environment);
  assert_null(strstr(report, p->b));
  assert_null(strstr(report, user));
  assert_contains(report, "AT_SECURE");
  assert_contains(report, p->installed);
}

static void flags_narrow_the_path(void **state)
{
  place *p = *state;
  ordo_search_environment environment = environment_of(p);
  environment.plugin_path = p->b;
  g_autofree char *no_environment = report_of(p, p->a, ORDO_CONTEXT_NO_ENVIRONMENT, &environment);
  assert_null(strstr(no_environment, p->b));
  assert_contains(no_environment, "ignores environment and home");
  g_autofree char *only_own = report_of(p, p->a, ORDO_CONTEXT_NO_DEFAULT_PATH, &environment);
  assert_null(strstr(only_own, p->b));
  g_autofree char *left_out = g_strdup_printf("%s  left out: the program searches its own path only", p->installed);
  assert_contains(only_own, left_out);
}

static void empty_entries_are_not_the_current_directory(void **state)
{
  place *p = *state;
  ordo_search_environment environment = environment_of(p);
  g_autofree char *path = g_strdup_printf("%s::%s:", p->a, p->b);
  environment.plugin_path = ":";
  g_autofree char *report = report_of(p, path, 0, &environment);
  g_autofree char *here = g_get_current_dir();
  g_auto(GStrv) lines = g_strsplit(report, "\n", -1);
  guint n_empty = 0;
  for (guint i = 0; lines[i]; i++) {
    n_empty += strstr(lines[i], "an empty entry") != NULL;
    assert_false(strstr(lines[i], here) && strstr(lines[i], "searched") && strlen(lines[i]) < strlen(here) + 40);
  }
  assert_int_equal(n_empty, 4);
}

static void relative_entries_count_for_the_option_only(void **state)
{
  place *p = *state;
  ordo_search_environment environment = environment_of(p);
  g_autofree char *before = g_get_current_dir();
  assert_int_equal(chdir(p->root), 0);
  environment.plugin_path = "b";
  g_autofree char *report = report_of(p, "a/../a", 0, &environment);
  assert_int_equal(chdir(before), 0);
  g_autofree char *absolute = g_strdup_printf("--plugin-path     %s  searched", p->a);
  assert_contains(report, absolute);
  assert_contains(report, "ORDO_PLUGIN_PATH  b  left out: only absolute paths count here");
  assert_int_equal(ordo_errors_count(p->errors), 1);
  assert_string_equal(ordo_errors_at(p->errors, 0)->code, "E-PLUGIN-PATH");
}

static void one_directory_is_searched_once(void **state)
{
  place *p = *state;
  ordo_search_environment environment = environment_of(p);
  g_autofree char *link = g_build_filename(p->root, "link", NULL);
  assert_int_equal(symlink(p->a, link), 0);
  environment.plugin_path = link;
  g_autofree char *report = report_of(p, p->a, 0, &environment);
  assert_contains(report, "left out: the same place comes first from --plugin-path");
}

static void a_place_that_was_named_and_is_missing_is_a_warning(void **state)
{
  place *p = *state;
  ordo_search_environment environment = environment_of(p);
  g_autofree char *report = report_of(p, "/nowhere/at/all", 0, &environment);
  assert_contains(report, "/nowhere/at/all  left out: it does not exist");
  assert_int_equal(ordo_errors_count(p->errors), 1);
  assert_string_equal(ordo_errors_at(p->errors, 0)->where, "/nowhere/at/all");
}

static void names_are_sorted_and_end_in_so(void **state)
{
  place *p = *state;
  static const char *const made[] = {"c.so", "a.so", "B.so", "a.so.1", "b.txt", ".so", "so", "a10.so", "a9.so"};
  static const char *const wanted[] = {".so", "B.so", "a.so", "a10.so", "a9.so", "c.so"};
  g_autofree char *note = NULL;
  for (gsize i = 0; i < G_N_ELEMENTS(made); i++) {
    g_autofree char *path = g_build_filename(p->a, made[i], NULL);
    write_bytes(path, "", 0);
  }
  g_autoptr(GPtrArray) names = ordo_search_names(p->a, &note);
  assert_int_equal(names->len, G_N_ELEMENTS(wanted));
  for (guint i = 0; i < names->len; i++)
    assert_string_equal(g_ptr_array_index(names, i), wanted[i]);
}

static gboolean permission_is_denied(const void *directory)
{
  char *note = NULL;
  gboolean good = !ordo_search_names(directory, &note) && note && strstr(note, "cannot be read: permission denied");
  g_free(note);
  return good;
}

static void an_unreadable_directory_says_so(void **state)
{
  place *p = *state;
  assert_int_equal(chmod(p->root, 0755), 0);
  assert_int_equal(chmod(p->a, 0), 0);
  assert_true(as_ordinary_user(permission_is_denied, p->a));
  assert_int_equal(chmod(p->a, 0755), 0);
}

static void the_process_of_this_test_is_not_privileged(void **state)
{
  (void)state;
  assert_false(ordo_search_environment_current().privileged);
  assert_true(g_path_is_absolute(ordo_search_environment_current().installed));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(the_four_sources_come_in_order, set_up, tear_down),
      cmocka_unit_test_setup_teardown(the_data_home_replaces_the_one_below_home, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_privileged_process_ignores_environment_and_home, set_up, tear_down),
      cmocka_unit_test_setup_teardown(flags_narrow_the_path, set_up, tear_down),
      cmocka_unit_test_setup_teardown(empty_entries_are_not_the_current_directory, set_up, tear_down),
      cmocka_unit_test_setup_teardown(relative_entries_count_for_the_option_only, set_up, tear_down),
      cmocka_unit_test_setup_teardown(one_directory_is_searched_once, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_place_that_was_named_and_is_missing_is_a_warning, set_up, tear_down),
      cmocka_unit_test_setup_teardown(names_are_sorted_and_end_in_so, set_up, tear_down),
      cmocka_unit_test_setup_teardown(an_unreadable_directory_says_so, set_up, tear_down),
      cmocka_unit_test(the_process_of_this_test_is_not_privileged),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
