/* test_context.c - the public face of discovery: contexts, what they list, their errors, and the table of error codes. */
#include "plugin_files.h"

#include <string.h>
#include <sys/stat.h>

#include <ordo/ordo.h>

#include "context.h"

static void write_log(void *log_ctx, int32_t severity, const char *text)
{
  g_string_append_printf(log_ctx, "%d %s\n", severity, text);
}

static ordo_context_options options_of(const char *path)
{
  ordo_context_options options = {.struct_size = sizeof options, .plugin_path = path, .flags = ORDO_CONTEXT_NO_DEFAULT_PATH};
  return options;
}

static ordo_context *context_of(const ordo_context_options *options)
{
  ordo_context *context = NULL;
  assert_int_equal(ordo_context_create(options, &context), ORDO_OK);
  assert_non_null(context);
  return context;
}

static void a_context_lists_and_finds(void **state)
{
  (void)state;
  char *directory = scratch_new();
  g_free(write_plugin(directory, "x", "one", "strategy", "1.0.0", NULL));
  ordo_context_options options = options_of(directory);
  ordo_context *context = context_of(&options);
  const ordo_plugin_info *info = NULL;
  assert_int_equal(ordo_context_n_plugins(context), 1);
  assert_string_equal(ordo_context_plugin(context, 0)->id, "one");
  assert_null(ordo_context_plugin(context, 1));
  assert_int_equal(ordo_context_find(context, "one", &info), ORDO_OK);
  assert_ptr_equal(info, ordo_context_plugin(context, 0));
  assert_int_equal(ordo_context_find(context, "one", NULL), ORDO_OK);
  char *report = ordo_context_search_report(context);
  assert_contains(report, directory);
  ordo_string_free(report);
  ordo_string_free(NULL);
  ordo_context_destroy(context);
  ordo_context_destroy(NULL);
  scratch_free(directory);
}

static void errors_are_those_of_the_last_call(void **state)
{
  (void)state;
  char *directory = scratch_new();
  g_free(write_plugin(directory, "x", "one", "strategy", "1.0.0", NULL));
  ordo_context_options options = options_of(directory);
  ordo_context *context = context_of(&options);
  const ordo_plugin_info *info = NULL;
  assert_null(ordo_last_error(context));
  assert_int_equal(ordo_context_find(context, "ona", &info), ORDO_E_NOT_FOUND);
  assert_null(info);
  assert_int_equal(ordo_n_errors(context), 1);
  assert_string_equal(ordo_last_error(context)->code, "E-PLUGIN-UNKNOWN");
  assert_contains(ordo_last_error(context)->next, "did you mean 'one'?");
  assert_null(ordo_error_at(context, 1));
  assert_int_equal(ordo_context_find(context, "two", &info), ORDO_E_NOT_FOUND);
  assert_int_equal(ordo_n_errors(context), 1);
  assert_int_equal(ordo_context_find(context, "one", &info), ORDO_OK);
  assert_int_equal(ordo_n_errors(context), 0);
  assert_int_equal(ordo_fail(context, ORDO_E_IO, "E-MINE", "50% of it", NULL, NULL, NULL), ORDO_E_IO);
  assert_string_equal(ordo_last_error(context)->what, "50% of it");
  assert_string_equal(ordo_last_error(context)->next, "");
  assert_int_equal(ordo_fail(context, ORDO_E_IO, NULL, NULL, NULL, NULL, NULL), ORDO_E_IO);
  ordo_context_destroy(context);
  scratch_free(directory);
}

static void warnings_go_to_the_log_and_are_no_errors(void **state)
{
  (void)state;
  g_autoptr(GString) log = g_string_new(NULL);
  ordo_context_options options = options_of("/nowhere/at/all");
  options.log = write_log;
  options.log_ctx = log;
  ordo_context *context = context_of(&options);
  assert_int_equal(ordo_n_errors(context), 0);
  assert_contains(log->str, "2 E-PLUGIN-PATH");
  assert_contains(log->str, "/nowhere/at/all");
  ordo_context_destroy(context);
}

static void two_contexts_do_not_know_of_each_other(void **state)
{
  (void)state;
  char *directory = scratch_new();
  g_free(write_plugin(directory, "x", "one", "strategy", "1.0.0", NULL));
  ordo_context_options with = options_of(directory), without = options_of(NULL);
  ordo_context *first = context_of(&with), *second = context_of(&without);
  const ordo_plugin_info *info = NULL;
  assert_int_equal(ordo_context_find(second, "one", &info), ORDO_E_NOT_FOUND);
  assert_int_equal(ordo_n_errors(first), 0);
  assert_int_equal(ordo_context_find(first, "one", &info), ORDO_OK);
  assert_int_equal(ordo_n_errors(second), 1);
  ordo_context_destroy(second);
  assert_int_equal(ordo_context_find(first, "one", &info), ORDO_OK);
  ordo_context_destroy(first);
  scratch_free(directory);
}

static void *no_memory(void *alloc_ctx, size_t bytes, uint32_t tag)
{
  (void)alloc_ctx, (void)bytes, (void)tag;
  return NULL;
}

static void options_that_cannot_be_meant_are_refused(void **state)
{
  (void)state;
  ordo_context *context = (ordo_context *)1;
  ordo_context_options options = options_of(NULL);
  options.struct_size = 0;
  assert_int_equal(ordo_context_create(&options, &context), ORDO_E_INVALID);
  assert_null(context);
  options = options_of(NULL);
  options.flags = 1u << 31;
  assert_int_equal(ordo_context_create(&options, &context), ORDO_E_INVALID);
  options = options_of(NULL);
  options.alloc = no_memory; /* without a matching free */
  assert_int_equal(ordo_context_create(&options, &context), ORDO_E_INVALID);
  assert_int_equal(ordo_context_create(NULL, NULL), ORDO_E_INVALID);
}

static void an_older_embedder_has_fewer_options(void **state)
{
  (void)state;
  ordo_context_options options = options_of(NULL);
  options.struct_size = ORDO_SIZE_THROUGH(ordo_context_options, reserved);
  options.log = (void (*)(void *, int32_t, const char *))(uintptr_t)1; /* must not be read */
  options.plugin_path = "/nowhere/at/all";
  ordo_context *context = context_of(&options);
  assert_null(context->log);
  ordo_context_destroy(context);
}

static void memory_is_aligned_and_tags_reach_the_embedder(void **state)
{
  (void)state;
  ordo_context_options options = options_of(NULL);
  ordo_context *context = context_of(&options);
  for (size_t bytes = 1; bytes < 5000; bytes = bytes * 3 + 1) {
    void *memory = context->alloc(context->alloc_ctx, bytes, 0);
    assert_non_null(memory);
    assert_int_equal((uintptr_t)memory % 64, 0);
    memset(memory, 1, bytes);
    context->free(context->alloc_ctx, memory, bytes, 0);
  }
  assert_null(context->alloc(context->alloc_ctx, 0, 0));
  assert_null(context->alloc(context->alloc_ctx, SIZE_MAX, 0));
  ordo_context_destroy(context);
}

static void every_code_is_explained_and_sorted(void **state)
{
  (void)state;
  size_t n = 0;
  for (const char *code, *before = ""; (code = ordo_error_code_at(n)); before = code, n++) {
    assert_true(strcmp(before, code) < 0);
    assert_true(g_str_has_prefix(code, "E-"));
    const char *text = ordo_explain(code);
    assert_non_null(text);
    assert_contains(text, "\n\n");
    assert_true(strlen(strstr(text, "\n\n")) > 40);
  }
  assert_true(n > 10);
  assert_null(ordo_explain("E-NOTHING"));
  assert_null(ordo_explain(NULL));
  assert_null(ordo_error_code_at((size_t)-1));
}

static void statuses_have_names(void **state)
{
  (void)state;
  assert_string_equal(ordo_status_name(ORDO_OK), "ORDO_OK");
  assert_string_equal(ordo_status_name(ORDO_E_STALE), "ORDO_E_STALE");
  assert_string_equal(ordo_status_name(ORDO_E_INVARIANT), "ORDO_E_INVARIANT");
  assert_string_equal(ordo_status_name(-1), "ORDO_E_INTERNAL");
  assert_string_equal(ordo_status_name(1000), "ORDO_E_INTERNAL");
  assert_string_equal(ordo_version(), ORDO_VERSION);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_context_lists_and_finds),
      cmocka_unit_test(errors_are_those_of_the_last_call),
      cmocka_unit_test(warnings_go_to_the_log_and_are_no_errors),
      cmocka_unit_test(two_contexts_do_not_know_of_each_other),
      cmocka_unit_test(options_that_cannot_be_meant_are_refused),
      cmocka_unit_test(an_older_embedder_has_fewer_options),
      cmocka_unit_test(memory_is_aligned_and_tags_reach_the_embedder),
      cmocka_unit_test(every_code_is_explained_and_sorted),
      cmocka_unit_test(statuses_have_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
