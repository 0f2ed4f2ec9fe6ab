/* test_loader.c - real plugins, each with one thing wrong, through scan and load. */
#include "plugin_files.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "discovery/loader.h"
#include "discovery/registry_inside.h"

#define TRACE "ORDO_TEST_TRACE"

typedef struct place {
  char *root;
  ordo_errors *errors;
  ordo_registry *registry;
} place;

static int set_up(void **state)
{
  place *p = g_new0(place, 1);
  p->root = scratch_new();
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
  g_free(p);
  return 0;
}

/* A copy in a private directory: the build tree may belong to anybody. */
static char *copy_fixture(const place *p, const char *name)
{
  g_autofree char *from = g_strdup_printf("%s/%s.so", FIXTURES, name);
  char *to = g_strdup_printf("%s/%s.so", p->root, name), *bytes;
  gsize length;
  if (!g_file_get_contents(from, &bytes, &length, NULL))
    fail_msg("the fixture %s was not built", from);
  write_bytes(to, bytes, length);
  g_free(bytes);
  return to;
}

static void scan(place *p)
{
  ordo_registry_options options = {p->root, ORDO_CONTEXT_NO_DEFAULT_PATH};
  ordo_search_environment environment = {.installed = "/nowhere"};
  ordo_registry_free(p->registry);
  p->registry = ordo_registry_scan_in(&options, &environment, p->errors);
  ordo_errors_clear(p->errors);
}

static const ordo_found *scanned(place *p, const char *name)
{
  g_free(copy_fixture(p, name));
  scan(p);
  assert_int_equal(ordo_registry_count(p->registry), 1);
  const ordo_found *found = ordo_registry_at(p->registry, 0);
  if (found->info.state != ORDO_PLUGIN_USABLE)
    fail_msg("%s: %s", name, found->info.reason);
  return found;
}

static void assert_loads(place *p, const char *name)
{
  const ordo_plugin *entry = NULL;
  const ordo_found *found = scanned(p, name);
  if (ordo_loader_open(found, 0, p->errors, &entry))
    fail_msg("%s: %s (%s)", name, ordo_errors_at(p->errors, 0)->what, ordo_errors_at(p->errors, 0)->why);
  assert_string_equal(entry->id, found->info.id);
  assert_int_equal(ordo_errors_count(p->errors), 0);
  unlink(found->info.path);
}

static void assert_load_refused(place *p, const char *name, const char *codes, const char *why)
{
  g_autoptr(GString) got = g_string_new(NULL), texts = g_string_new(NULL);
  const ordo_plugin *entry = (const ordo_plugin *)1;
  const ordo_found *found = scanned(p, name);
  assert_int_equal(ordo_loader_open(found, 0, p->errors, &entry), ORDO_E_REFUSED);
  assert_null(entry);
  for (size_t i = 0; i < ordo_errors_count(p->errors); i++) {
    const ordo_error *error = ordo_errors_at(p->errors, i);
    g_string_append_printf(got, "%s%s", i ? " " : "", error->code);
    g_string_append_printf(texts, "%s | %s | %s\n", error->what, error->why, error->next);
    assert_string_equal(error->where, found->info.path);
    assert_true(*error->next != '\0');
  }
  if (strcmp(got->str, codes) != 0)
    fail_msg("%s gives %s, not %s\n%s", name, got->str, codes, texts->str);
  assert_contains(texts->str, why);
  unlink(found->info.path);
}

static void good_plugins_load(void **state)
{
  place *p = *state;
  assert_loads(p, "good");
  assert_loads(p, "longer"); /* larger than this host knows is fine */
}

static void one_file_gives_one_entry(void **state)
{
  place *p = *state;
  const ordo_plugin *first = NULL, *second = NULL;
  const ordo_found *found = scanned(p, "good");
  assert_int_equal(ordo_loader_open(found, 0, p->errors, &first), ORDO_OK);
  assert_int_equal(ordo_loader_open(found, 0, p->errors, &second), ORDO_OK);
  assert_ptr_equal(first, second);
}

static void another_abi_is_refused_with_both_values(void **state)
{
  place *p = *state;
  assert_load_refused(p, "magic", "E-PLUGIN-ABI", "magic is 0x12345678, not 0x4f44524f");
  assert_load_refused(p, "major", "E-PLUGIN-ABI", "abi_major is 2, this host has 1");
  assert_load_refused(p, "min_host_minor", "E-PLUGIN-ABI", "min_host_minor is 99, this host has ABI 1.0");
  assert_load_refused(p, "short", "E-PLUGIN-ABI", "struct_size is 24, this host needs 64");
  assert_load_refused(p, "zero_size", "E-PLUGIN-ABI", "struct_size is 0");
  assert_load_refused(p, "size_lies", "E-PLUGIN-ABI", "struct_size is 4096, the symbol has 64");
  assert_load_refused(p, "tiny", "E-PLUGIN-ABI", "not one of Ordo");
  assert_load_refused(p, "function", "E-PLUGIN-ABI", "is not a constant");
  assert_load_refused(p, "no_extension", "E-PLUGIN-ABI", "get_extension is null");
}

static void an_entry_that_differs_from_the_note_is_refused_field_by_field(void **state)
{
  place *p = *state;
  assert_load_refused(p, "id", "E-PLUGIN-MISMATCH", "the manifest says other, the entry says fixture");
  assert_load_refused(p, "version", "E-PLUGIN-MISMATCH", "the manifest says 2.0.0, the entry says 1.0.0");
  assert_load_refused(p, "all_differ", "E-PLUGIN-ABI E-PLUGIN-MISMATCH E-PLUGIN-MISMATCH E-PLUGIN-MISMATCH E-PLUGIN-ABI",
                      "the manifest says 1.0, the entry says 1.7");
}

static void the_entry_must_be_the_files_own(void **state)
{
  place *p = *state;
  g_free(copy_fixture(p, "libentry_of_another"));
  g_autofree char *library = g_strdup_printf("%s/libentry_of_another.so", FIXTURES);
  assert_non_null(dlopen(library, RTLD_NOW | RTLD_LOCAL)); /* so that it is found without a path */
  g_autofree char *copy = g_strdup_printf("%s/libentry_of_another.so", p->root);
  unlink(copy);
  assert_load_refused(p, "borrowed", "E-PLUGIN-ABI", "comes from");
  assert_load_refused(p, "no_entry", "E-PLUGIN-ABI", "does not export ordo_plugin_entry");
}

static void an_undefined_symbol_is_named(void **state)
{
  assert_load_refused(*state, "missing_symbol", "E-PLUGIN-LOAD", "ordo_test_nobody_defines_this");
}

static void a_file_without_a_note_is_refused_by_the_scan(void **state)
{
  place *p = *state;
  const ordo_plugin *entry = NULL;
  g_free(copy_fixture(p, "no_note"));
  scan(p);
  const ordo_found *found = ordo_registry_at(p->registry, 0);
  assert_int_equal(found->info.state, ORDO_PLUGIN_REFUSED);
  assert_contains(found->info.reason, "no manifest note");
  assert_int_equal(ordo_loader_open(found, 0, p->errors, &entry), ORDO_E_REFUSED);
  assert_string_equal(ordo_errors_at(p->errors, 0)->code, "E-PLUGIN-REFUSED");
}

static void finding_runs_no_code_and_loading_does(void **state)
{
  place *p = *state;
  const ordo_plugin *entry = NULL;
  const ordo_found *again = NULL;
  g_autofree char *trace = g_build_filename(p->root, "trace", NULL);
  g_setenv(TRACE, trace, TRUE);
  const ordo_found *found = scanned(p, "constructor");
  assert_int_equal(ordo_registry_find(p->registry, "constructor", 0, &again, NULL, p->errors), ORDO_OK);
  assert_int_equal(ordo_registry_find(p->registry, found->info.path, 0, &again, NULL, p->errors), ORDO_OK);
  assert_false(g_file_test(trace, G_FILE_TEST_EXISTS));
  assert_int_equal(ordo_loader_open(found, 0, p->errors, &entry), ORDO_OK);
  assert_true(g_file_test(trace, G_FILE_TEST_EXISTS)); /* so that this test can fail */
  g_unsetenv(TRACE);
}

/* A real plugin, cut at many lengths: refused when it is looked at, so that dlopen never meets it (SIGBUS). */
static void every_cut_of_a_real_plugin_is_refused(void **state)
{
  place *p = *state;
  g_autofree char *path = copy_fixture(p, "good");
  char *bytes;
  gsize length, mapped = 0;
  assert_true(g_file_get_contents(path, &bytes, &length, NULL));
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)(void *)bytes;
  const Elf64_Phdr *segments = (const Elf64_Phdr *)(void *)(bytes + header->e_phoff);
  for (guint i = 0; i < header->e_phnum; i++)
    if (segments[i].p_type == PT_LOAD)
      mapped = MAX(mapped, segments[i].p_offset + segments[i].p_filesz);
  for (gsize cut = 0; cut < mapped; cut += cut < 1024 ? 1 : 509) {
    assert_int_equal(truncate(path, (off_t)cut), 0);
    scan(p);
    const ordo_plugin_info *info = &ordo_registry_at(p->registry, 0)->info;
    if (info->state != ORDO_PLUGIN_REFUSED)
      fail_msg("%zu of %zu bytes are accepted", cut, length);
    write_bytes(path, bytes, length);
  }
  scan(p);
  assert_int_equal(ordo_registry_at(p->registry, 0)->info.state, ORDO_PLUGIN_USABLE);
  g_free(bytes);
}

static void a_file_that_changes_after_the_scan_is_refused(void **state)
{
  place *p = *state;
  const ordo_plugin *entry = NULL;
  const ordo_found *found = scanned(p, "good");
  g_autofree char *other = copy_fixture(p, "longer");
  assert_int_equal(rename(other, found->info.path), 0);
  assert_int_equal(ordo_loader_open(found, 0, p->errors, &entry), ORDO_E_REFUSED);
  assert_string_equal(ordo_errors_at(p->errors, 0)->code, "E-PLUGIN-CHANGED");
  assert_int_equal(truncate(found->info.path, 5000), 0);
  ordo_errors_clear(p->errors);
  assert_int_equal(ordo_loader_open(found, 0, p->errors, &entry), ORDO_E_REFUSED);
  assert_contains(ordo_errors_at(p->errors, 0)->why, "cut short");
  unlink(found->info.path);
  ordo_errors_clear(p->errors);
  assert_int_equal(ordo_loader_open(found, 0, p->errors, &entry), ORDO_E_REFUSED);
  assert_contains(ordo_errors_at(p->errors, 0)->why, "No such file");
}

static void assert_changed(place *p, const ordo_found *found)
{
  const ordo_plugin *entry = NULL;
  ordo_errors_clear(p->errors);
  assert_int_equal(ordo_loader_open(found, 0, p->errors, &entry), ORDO_E_REFUSED);
  assert_int_equal(ordo_errors_count(p->errors), 1);
  assert_string_equal(ordo_errors_at(p->errors, 0)->code, "E-PLUGIN-CHANGED");
}

static void set_times(const char *path, const struct stat *status)
{
  const struct timespec times[2] = {status->st_atim, status->st_mtim};
  assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* Each of time, size and inode alone. */
static void every_sign_of_a_change_counts(void **state)
{
  place *p = *state;
  struct stat before, later;
  const ordo_found *found = scanned(p, "good");
  g_autofree char *other = g_build_filename(p->root, "other", NULL);
  char *bytes;
  gsize length;
  assert_int_equal(stat(found->info.path, &before), 0);
  later = before;
  later.st_mtim.tv_nsec ^= 1;
  set_times(found->info.path, &later);
  assert_changed(p, found);
  assert_int_equal(truncate(found->info.path, before.st_size + 1), 0);
  set_times(found->info.path, &before);
  assert_changed(p, found);
  assert_int_equal(truncate(found->info.path, before.st_size), 0);
  assert_true(g_file_get_contents(found->info.path, &bytes, &length, NULL));
  write_bytes(other, bytes, length);
  g_free(bytes);
  set_times(other, &before);
  assert_int_equal(rename(other, found->info.path), 0);
  assert_changed(p, found);
}

/* The dynamic loader knows a path that it has mapped and hands out the old code for the new file. */
static void a_plugin_replaced_in_a_running_process_is_refused(void **state)
{
  place *p = *state;
  const ordo_plugin *entry = NULL;
  assert_int_equal(ordo_loader_open(scanned(p, "good"), 0, p->errors, &entry), ORDO_OK);
  g_autofree char *old = g_build_filename(p->root, "good.so", NULL), *other = copy_fixture(p, "longer");
  assert_int_equal(rename(other, old), 0);
  scan(p);
  assert_changed(p, ordo_registry_at(p->registry, 0));
}

static void a_file_that_others_can_write_by_now_is_refused(void **state)
{
  place *p = *state;
  const ordo_plugin *entry = NULL;
  const ordo_found *found = scanned(p, "good");
  assert_int_equal(chmod(p->root, 0777), 0);
  assert_int_equal(ordo_loader_open(found, 0, p->errors, &entry), ORDO_E_REFUSED);
  assert_contains(ordo_errors_at(p->errors, 0)->why, "chmod go-w");
  ordo_errors_clear(p->errors);
  assert_int_equal(ordo_loader_open(found, ORDO_CONTEXT_ALLOW_INSECURE, p->errors, &entry), ORDO_OK);
  assert_int_equal(chmod(p->root, 0700), 0);
}

static void a_plugin_behind_a_link_loads(void **state)
{
  place *p = *state;
  const ordo_plugin *entry = NULL;
  g_autofree char *file = copy_fixture(p, "good"), *moved = g_build_filename(p->root, "store", NULL);
  assert_int_equal(rename(file, moved), 0);
  assert_int_equal(symlink("store", file), 0);
  scan(p);
  assert_int_equal(ordo_registry_count(p->registry), 1);
  assert_string_equal(ordo_registry_at(p->registry, 0)->info.path, file);
  assert_int_equal(ordo_loader_open(ordo_registry_at(p->registry, 0), 0, p->errors, &entry), ORDO_OK);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(good_plugins_load, set_up, tear_down),
      cmocka_unit_test_setup_teardown(one_file_gives_one_entry, set_up, tear_down),
      cmocka_unit_test_setup_teardown(another_abi_is_refused_with_both_values, set_up, tear_down),
      cmocka_unit_test_setup_teardown(an_entry_that_differs_from_the_note_is_refused_field_by_field, set_up, tear_down),
      cmocka_unit_test_setup_teardown(the_entry_must_be_the_files_own, set_up, tear_down),
      cmocka_unit_test_setup_teardown(an_undefined_symbol_is_named, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_file_without_a_note_is_refused_by_the_scan, set_up, tear_down),
      cmocka_unit_test_setup_teardown(finding_runs_no_code_and_loading_does, set_up, tear_down),
      cmocka_unit_test_setup_teardown(every_cut_of_a_real_plugin_is_refused, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_file_that_changes_after_the_scan_is_refused, set_up, tear_down),
      cmocka_unit_test_setup_teardown(every_sign_of_a_change_counts, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_plugin_replaced_in_a_running_process_is_refused, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_file_that_others_can_write_by_now_is_refused, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_plugin_behind_a_link_loads, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
