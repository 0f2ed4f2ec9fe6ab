/* test_registry.c - what a scan lists, and in which state. */
#include "plugin_files.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "discovery/registry_inside.h"

typedef struct place {
  char *root, *a, *b;
  ordo_errors *errors;
  ordo_registry *registry;
} place;

static int set_up(void **state)
{
  place *p = g_new0(place, 1);
  p->root = scratch_new();
  p->a = g_build_filename(p->root, "a", NULL);
  p->b = g_build_filename(p->root, "b", NULL);
  assert_int_equal(mkdir(p->a, 0755), 0);
  assert_int_equal(mkdir(p->b, 0755), 0);
  p->errors = ordo_errors_new();
  *state = p;
  return 0;
}

static int tear_down(void **state)
{
  place *p = *state;
  ordo_registry_free(p->registry);
  ordo_errors_free(p->errors);
  scratch_free(p->root);
  g_free(p->a), g_free(p->b);
  g_free(p);
  return 0;
}

static void add(const char *directory, const char *name, const char *id, const char *version, const char *more)
{
  g_free(write_plugin(directory, name, id, "strategy", version, more));
}

static void scan_with(place *p, uint32_t flags, gboolean privileged)
{
  g_autofree char *path = g_strdup_printf("%s:%s", p->a, p->b);
  ordo_registry_options options = {path, flags | ORDO_CONTEXT_NO_DEFAULT_PATH};
  ordo_search_environment environment = {.privileged = privileged, .installed = "/nowhere"};
  ordo_registry_free(p->registry);
  ordo_errors_clear(p->errors);
  p->registry = ordo_registry_scan_in(&options, &environment, p->errors);
}

static void scan(place *p)
{
  scan_with(p, 0, FALSE);
}

/* "a/x.so" and so on, from the root of the test. */
static const ordo_plugin_info *info_of(const place *p, const char *path)
{
  g_autofree char *absolute = g_build_filename(p->root, path, NULL);
  for (size_t i = 0; i < ordo_registry_count(p->registry); i++)
    if (strcmp(ordo_registry_at(p->registry, i)->info.path, absolute) == 0)
      return &ordo_registry_at(p->registry, i)->info;
  fail_msg("%s is not listed", path);
  return NULL;
}

static void assert_state(const place *p, const char *path, uint32_t state, const char *reason)
{
  const ordo_plugin_info *info = info_of(p, path);
  if (info->state != state)
    fail_msg("%s is in state %u: %s", path, info->state, info->reason);
  assert_contains(info->reason, reason);
}

static void a_plugin_is_listed_with_all_that_its_note_says(void **state)
{
  place *p = *state;
  add(p->a, "x", "one", "1.2.3",
      "license=Apache-2.0\nalias=first\nalias=uno:level=2\noption=level|int|1|1..3|how much\nsteps=strategy.wrap\nflags=supports_no_sync\n"
      "flags[level=2]=needs_identical_data\n");
  scan(p);
  assert_int_equal(ordo_registry_count(p->registry), 1);
  const ordo_plugin_info *info = info_of(p, "a/x.so");
  if (info->state != ORDO_PLUGIN_USABLE)
    fail_msg("%s", info->reason);
  assert_string_equal(info->id, "one");
  assert_string_equal(info->version, "1.2.3");
  assert_string_equal(info->summary, "made for a test");
  assert_string_equal(info->license, "Apache-2.0");
  assert_string_equal(info->source, "--plugin-path");
  assert_string_equal(info->aliases, "first, uno:level=2");
  assert_string_equal(info->flags, "supports_no_sync; needs_identical_data [level=2]");
  assert_string_equal(info->steps, "strategy.wrap");
  assert_string_equal(info->reason, "");
  assert_int_equal(info->kind, ORDO_KIND_STRATEGY);
  assert_contains(info->manifest, "alias=uno:level=2");
  assert_int_equal(ordo_errors_count(p->errors), 0);
}

static void every_bad_file_is_listed_with_its_reason(void **state)
{
  place *p = *state;
  g_autofree char *text = g_build_filename(p->a, "text.so", NULL), *empty = g_build_filename(p->a, "empty.so", NULL);
  g_autofree char *fifo = g_build_filename(p->a, "fifo.so", NULL), *directory = g_build_filename(p->a, "directory.so", NULL);
  g_autofree char *loop = g_build_filename(p->a, "loop.so", NULL), *dangling = g_build_filename(p->a, "dangling.so", NULL);
  g_autofree char *no_note = g_build_filename(p->a, "nonote.so", NULL), *major = g_build_filename(p->a, "major.so", NULL);
  write_bytes(text, "#!/bin/sh\n", 10);
  write_bytes(empty, "", 0);
  assert_int_equal(mkfifo(fifo, 0600), 0);
  assert_int_equal(mkdir(directory, 0755), 0);
  assert_int_equal(symlink("loop.so", loop), 0);
  assert_int_equal(symlink("nothing", dangling), 0);
  write_elf(no_note, &(elf_recipe){0});
  write_elf(major, &(elf_recipe){.manifest = "abi=2.0\nid=later\nkind=strategy\nversion=1.0.0\nsummary=s\n"});
  add(p->a, "bad", "UPPER CASE", "1.0.0", "unknown_key=1\n");
  add(p->a, "good", "good", "1.0.0", NULL);
  scan(p);
  assert_int_equal(ordo_registry_count(p->registry), 10);
  assert_state(p, "a/good.so", ORDO_PLUGIN_USABLE, "");
  assert_state(p, "a/text.so", ORDO_PLUGIN_REFUSED, "does not begin with the ELF signature");
  assert_state(p, "a/empty.so", ORDO_PLUGIN_REFUSED, "it is empty");
  assert_state(p, "a/fifo.so", ORDO_PLUGIN_REFUSED, "it is a FIFO");
  assert_state(p, "a/directory.so", ORDO_PLUGIN_REFUSED, "it is a directory");
  assert_state(p, "a/loop.so", ORDO_PLUGIN_REFUSED, "loop");
  assert_state(p, "a/dangling.so", ORDO_PLUGIN_REFUSED, "does not exist");
  assert_state(p, "a/nonote.so", ORDO_PLUGIN_REFUSED, "no manifest note");
  assert_state(p, "a/major.so", ORDO_PLUGIN_REFUSED, "built for plugin ABI 2.0, this host has 1.0; use a newer Ordo");
  assert_state(p, "a/bad.so", ORDO_PLUGIN_REFUSED, "unknown_key");
  assert_state(p, "a/bad.so", ORDO_PLUGIN_REFUSED, "UPPER CASE"); /* all findings, not the first */
  assert_string_equal(info_of(p, "a/major.so")->id, "later");
  g_autofree char *report = ordo_registry_search_report(p->registry);
  assert_contains(report, "searched: 10 files, 9 refused");
}

/* Whatever the options, no plan can have it, so it is no use to list it as usable. Where options decide, the plan judges them. */
static void a_manifest_that_contradicts_itself_is_refused(void **state)
{
  place *p = *state;
  add(p->a, "joint", "joint", "1.0.0", "flags=requires_joint_prepare\nsteps=strategy.wrap\n");
  g_free(write_plugin(p->a, "amp", "amp", "precision", "1.0.0", "flags=wraps_optimizer\nsteps=precision.convert_model\n"));
  add(p->a, "some", "some", "1.0.0", "option=way|enum|a|a,b|which\nflags[way=a]=requires_joint_prepare\nsteps=strategy.wrap\n");
  add(p->a, "good", "good", "1.0.0", "steps=strategy.wrap\n");
  scan(p);
  assert_state(p, "a/joint.so", ORDO_PLUGIN_REFUSED, "requires_joint_prepare");
  assert_state(p, "a/amp.so", ORDO_PLUGIN_REFUSED, "wraps_optimizer needs the step precision.wrap_optimizer");
  assert_state(p, "a/some.so", ORDO_PLUGIN_USABLE, "");
  assert_state(p, "a/good.so", ORDO_PLUGIN_USABLE, "");
}

static void a_place_that_others_can_write_is_refused_unless_allowed(void **state)
{
  place *p = *state;
  add(p->a, "x", "one", "1.0.0", NULL);
  add(p->b, "y", "two", "1.0.0", NULL);
  g_autofree char *file = g_build_filename(p->b, "y.so", NULL);
  assert_int_equal(chmod(p->a, 0777), 0);
  assert_int_equal(chmod(file, 0666), 0);
  scan(p);
  assert_state(p, "a/x.so", ORDO_PLUGIN_REFUSED, "run: chmod go-w");
  assert_state(p, "b/y.so", ORDO_PLUGIN_REFUSED, "mode 0666");
  assert_string_equal(info_of(p, "a/x.so")->id, "one");
  scan_with(p, ORDO_CONTEXT_ALLOW_INSECURE, FALSE);
  assert_state(p, "a/x.so", ORDO_PLUGIN_USABLE, "");
  assert_state(p, "b/y.so", ORDO_PLUGIN_USABLE, "");
  /* Whoever starts a privileged program chooses its options. */
  scan_with(p, ORDO_CONTEXT_ALLOW_INSECURE, TRUE);
  assert_state(p, "a/x.so", ORDO_PLUGIN_REFUSED, "chmod");
  assert_int_equal(ordo_registry_flags(p->registry) & ORDO_CONTEXT_ALLOW_INSECURE, 0);
}

static gboolean unreadable_place_is_reported(const void *data)
{
  place p = *(const place *)data;
  scan(&p);
  g_autofree char *report = ordo_registry_search_report(p.registry);
  gboolean good = ordo_registry_count(p.registry) == 1 && ordo_errors_count(p.errors) == 1 &&
                  strcmp(ordo_errors_at(p.errors, 0)->code, "E-PLUGIN-PATH") == 0 && strstr(report, "cannot be read: permission denied");
  ordo_registry_free(p.registry); /* of the child's copy of the place */
  return good;
}

static void an_unreadable_place_does_not_hide_the_others(void **state)
{
  place *p = *state;
  add(p->a, "x", "one", "1.0.0", NULL);
  add(p->b, "y", "two", "1.0.0", NULL);
  assert_int_equal(chmod(p->root, 0755), 0);
  assert_false(as_ordinary_user(unreadable_place_is_reported, p));
  assert_int_equal(chmod(p->a, 0), 0);
  assert_true(as_ordinary_user(unreadable_place_is_reported, p));
}

static void the_highest_version_wins_wherever_it_stands(void **state)
{
  place *p = *state;
  add(p->a, "old", "one", "1.9.0", NULL);
  add(p->b, "new", "one", "1.10.0", NULL);
  add(p->b, "pre", "one", "1.10.0-rc.1", NULL);
  scan(p);
  assert_state(p, "b/new.so", ORDO_PLUGIN_USABLE, "");
  assert_state(p, "a/old.so", ORDO_PLUGIN_SHADOWED, "older than 1.10.0 in");
  assert_state(p, "b/pre.so", ORDO_PLUGIN_SHADOWED, "b/new.so");
  assert_int_equal(ordo_errors_count(p->errors), 0);
}

static void the_same_version_twice_is_a_warning_and_the_earlier_place_wins(void **state)
{
  place *p = *state;
  add(p->a, "z", "one", "1.0.0", NULL);
  add(p->b, "a", "one", "1.0.0", "license=MIT\n");
  scan(p);
  assert_state(p, "a/z.so", ORDO_PLUGIN_USABLE, "");
  assert_state(p, "b/a.so", ORDO_PLUGIN_SHADOWED, "the same version comes first from --plugin-path");
  assert_int_equal(ordo_errors_count(p->errors), 1);
  assert_string_equal(ordo_errors_at(p->errors, 0)->code, "E-PLUGIN-DUPLICATE");
  assert_int_equal(ordo_errors_at(p->errors, 0)->status, ORDO_OK);
}

static void a_refused_file_shadows_nobody(void **state)
{
  place *p = *state;
  g_autofree char *newer = write_plugin(p->a, "new", "one", "strategy", "2.0.0", NULL);
  add(p->b, "old", "one", "1.0.0", NULL);
  assert_int_equal(chmod(newer, 0666), 0);
  scan(p);
  assert_state(p, "a/new.so", ORDO_PLUGIN_REFUSED, "chmod");
  assert_state(p, "b/old.so", ORDO_PLUGIN_USABLE, "");
}

static void true_copies_are_listed_once(void **state)
{
  place *p = *state;
  g_autofree char *manifest = manifest_text("one", "strategy", "1.0.0", NULL);
  g_autofree char *first = g_build_filename(p->a, "x.so", NULL), *copy = g_build_filename(p->b, "copy.so", NULL);
  g_autofree char *hard = g_build_filename(p->a, "y.so", NULL), *soft = g_build_filename(p->b, "z.so", NULL);
  elf_recipe recipe = {.manifest = manifest, .build_id = "same"};
  write_elf(first, &recipe);
  write_elf(copy, &recipe);
  assert_int_equal(link(first, hard), 0);
  assert_int_equal(symlink(first, soft), 0);
  scan(p);
  assert_int_equal(ordo_registry_count(p->registry), 1);
  assert_state(p, "a/x.so", ORDO_PLUGIN_USABLE, "");
  assert_int_equal(ordo_errors_count(p->errors), 0);
}

/* A file can state any build id: it must not make another plugin disappear. */
static void a_borrowed_build_id_hides_nobody(void **state)
{
  place *p = *state;
  g_autofree char *one = manifest_text("one", "strategy", "1.0.0", NULL), *two = manifest_text("two", "strategy", "1.0.0", NULL);
  g_autofree char *first = g_build_filename(p->a, "x.so", NULL), *second = g_build_filename(p->b, "y.so", NULL);
  write_elf(first, &(elf_recipe){.manifest = one, .build_id = "same"});
  write_elf(second, &(elf_recipe){.manifest = two, .build_id = "same"});
  scan(p);
  assert_int_equal(ordo_registry_count(p->registry), 2);
}

static void a_usable_copy_is_not_dropped_for_a_refused_one(void **state)
{
  place *p = *state;
  add(p->a, "x", "one", "1.0.0", NULL);
  g_autofree char *first = g_build_filename(p->a, "x.so", NULL), *hard = g_build_filename(p->b, "x.so", NULL);
  assert_int_equal(link(first, hard), 0);
  assert_int_equal(chmod(p->a, 0777), 0);
  scan(p);
  assert_state(p, "a/x.so", ORDO_PLUGIN_REFUSED, "chmod");
  assert_state(p, "b/x.so", ORDO_PLUGIN_USABLE, "");
}

static void aliases_that_lead_to_two_plugins_are_findings(void **state)
{
  place *p = *state;
  add(p->a, "x", "one", "1.0.0", "alias=two\nalias=both\n");
  add(p->a, "y", "two", "1.0.0", "alias=both\n");
  add(p->b, "old", "one", "0.1.0", "alias=two\nalias=both\n"); /* shadowed: its aliases do not count */
  scan(p);
  assert_int_equal(ordo_errors_count(p->errors), 2);
  assert_contains(ordo_errors_at(p->errors, 0)->what, "alias 'two' of plugin 'one' does not count: it is the id of a plugin");
  assert_contains(ordo_errors_at(p->errors, 1)->what, "alias 'both' belongs to two plugins, 'one' and 'two'");
  g_autofree char *report = ordo_registry_search_report(p->registry);
  assert_contains(report, "warning: alias 'both'");
}

static void the_listing_is_sorted_by_id_version_and_path(void **state)
{
  place *p = *state;
  static const char *const wanted[] = {"b/3.so", "a/2.so", "a/1.so", "a/4.so", "a/0.so"};
  g_autofree char *bad = g_build_filename(p->a, "0.so", NULL);
  write_bytes(bad, "", 0);
  add(p->a, "4", "two", "1.0.0", NULL);
  add(p->a, "1", "one", "0.9.0", NULL);
  add(p->a, "2", "one", "1.0.0", NULL);
  add(p->b, "3", "one", "2.0.0", NULL);
  scan(p);
  for (size_t i = 0; i < G_N_ELEMENTS(wanted); i++)
    assert_true(g_str_has_suffix(ordo_registry_at(p->registry, i)->info.path, wanted[i]));
  assert_null(ordo_registry_at(p->registry, G_N_ELEMENTS(wanted)));
}

static void a_file_of_the_path_is_a_plugin_by_itself(void **state)
{
  place *p = *state;
  g_autofree char *file = write_plugin(p->a, "x", "one", "strategy", "1.0.0", NULL);
  ordo_registry_options options = {file, ORDO_CONTEXT_NO_DEFAULT_PATH};
  ordo_search_environment environment = {.installed = "/nowhere"};
  p->registry = ordo_registry_scan_in(&options, &environment, p->errors);
  assert_int_equal(ordo_registry_count(p->registry), 1);
  assert_string_equal(ordo_registry_at(p->registry, 0)->info.path, file);
}

static void static_tls_is_a_warning(void **state)
{
  place *p = *state;
  g_autofree char *manifest = manifest_text("one", "strategy", "1.0.0", NULL);
  g_autofree char *path = g_build_filename(p->a, "x.so", NULL);
  write_elf(path, &(elf_recipe){.manifest = manifest, .dynamic_flags = DF_STATIC_TLS});
  scan(p);
  assert_state(p, "a/x.so", ORDO_PLUGIN_USABLE, "");
  assert_int_equal(ordo_errors_count(p->errors), 1);
  assert_contains(ordo_errors_at(p->errors, 0)->what, "thread-local storage");
}

static void two_hundred_plugins_take_less_than_50_ms(void **state)
{
  place *p = *state;
  double best = G_MAXDOUBLE;
  for (int i = 0; i < 200; i++) {
    g_autofree char *id = g_strdup_printf("plugin%d", i);
    add(p->a, id, id, "1.0.0", "option=level|int|1|1..3|how much\nsteps=strategy.wrap\nflags=supports_no_sync\n");
  }
  /* The best of several: what is measured is the work, not what else the machine does. */
  for (int i = 0; i < 5; i++) {
    gint64 start = g_get_monotonic_time();
    scan(p);
    best = MIN(best, (double)(g_get_monotonic_time() - start) / 1000.0);
  }
  assert_int_equal(ordo_registry_count(p->registry), 200);
  print_message("a scan of 200 plugins: %.1f ms\n", best);
  if (!instrumented())
    assert_true(best < 50.0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_plugin_is_listed_with_all_that_its_note_says, set_up, tear_down),
      cmocka_unit_test_setup_teardown(every_bad_file_is_listed_with_its_reason, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_manifest_that_contradicts_itself_is_refused, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_place_that_others_can_write_is_refused_unless_allowed, set_up, tear_down),
      cmocka_unit_test_setup_teardown(an_unreadable_place_does_not_hide_the_others, set_up, tear_down),
      cmocka_unit_test_setup_teardown(the_highest_version_wins_wherever_it_stands, set_up, tear_down),
      cmocka_unit_test_setup_teardown(the_same_version_twice_is_a_warning_and_the_earlier_place_wins, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_refused_file_shadows_nobody, set_up, tear_down),
      cmocka_unit_test_setup_teardown(true_copies_are_listed_once, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_borrowed_build_id_hides_nobody, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_usable_copy_is_not_dropped_for_a_refused_one, set_up, tear_down),
      cmocka_unit_test_setup_teardown(aliases_that_lead_to_two_plugins_are_findings, set_up, tear_down),
      cmocka_unit_test_setup_teardown(the_listing_is_sorted_by_id_version_and_path, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_file_of_the_path_is_a_plugin_by_itself, set_up, tear_down),
      cmocka_unit_test_setup_teardown(static_tls_is_a_warning, set_up, tear_down),
      cmocka_unit_test_setup_teardown(two_hundred_plugins_take_less_than_50_ms, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
