/* test_output.c - the directory of a run: nothing of an earlier run is mixed with a new one, or lost without a word. */
#include "io_support.h"

#include "output.h"

#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

typedef struct place {
  const char *scratch;
  char *run; /* not made yet */
} place;

static int setup(void **state)
{
  place *p = g_new0(place, 1);
  void *scratch = NULL;
  if (scratch_setup(&scratch) != 0)
    return -1;
  p->scratch = scratch;
  p->run = g_build_filename(scratch, "run", NULL);
  *state = p;
  return 0;
}

static int teardown(void **state)
{
  place *p = *state;
  void *scratch = (void *)(uintptr_t)p->scratch;
  g_free(p->run);
  g_free(p);
  return scratch_teardown(&scratch);
}

/* Takes the directory as `overwrite` and other keys say; *problems is initialised here. */
static ordo_status take(const char *output, const char *overwrite, const char *model, ordo_problems *problems)
{
  g_autoptr(ordo_config) config = ordo_config_new('T');
  ordo_problems_init(problems);
  assert_int_equal(ordo_config_set(config, ORDO_KEY_train_output, output, "test", problems), ORDO_OK);
  assert_int_equal(ordo_config_set(config, ORDO_KEY_train_overwrite, overwrite, "test", problems), ORDO_OK);
  assert_int_equal(ordo_config_set(config, ORDO_KEY_model_path, model, "test", problems), ORDO_OK);
  return ordo_output_take(config, problems);
}

static char *leave(const place *p, const char *name, const char *text)
{
  return scratch_text(p->run, name, text);
}

static gboolean is_there(const place *p, const char *name)
{
  g_autofree char *path = g_build_filename(p->run, name, NULL);
  return g_file_test(path, G_FILE_TEST_EXISTS);
}

static void a_new_directory_gets_the_configuration(void **state)
{
  place *p = *state;
  g_auto(ordo_problems) problems;
  assert_int_equal(take(p->run, "false", "", &problems), ORDO_OK);
  assert_true(is_there(p, "resolved.ini"));
}

static void each_file_of_an_earlier_run_is_enough_to_refuse(void **state)
{
  static const char *const names[] = {"metrics.jsonl", "validation.jsonl", "summary.json", "resolved.ini", "model", "model-before-error"};
  place *p = *state;
  assert_int_equal(g_mkdir(p->run, 0777), 0);
  for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
    g_auto(ordo_problems) problems;
    g_autofree char *path = leave(p, names[i], "earlier"), *text = NULL;
    assert_int_equal(take(p->run, "false", "", &problems), ORDO_E_INVALID);
    assert_string_equal(ordo_problems_at(&problems, 0)->code, "E-TRAIN-OUTPUT");
    assert_true(problems_mention(&problems, names[i]));
    assert_true(g_file_get_contents(path, &text, NULL, NULL));
    assert_string_equal(text, "earlier");
    unlink(path);
  }
}

static void files_of_somebody_else_are_no_run(void **state)
{
  place *p = *state;
  g_auto(ordo_problems) problems;
  assert_int_equal(g_mkdir(p->run, 0777), 0);
  g_autofree char *notes = leave(p, "notes.txt", "mine");
  assert_non_null(notes);
  assert_int_equal(take(p->run, "false", "", &problems), ORDO_OK);
  assert_true(is_there(p, "notes.txt"));
}

static void overwriting_removes_the_run_and_nothing_else(void **state)
{
  place *p = *state;
  g_auto(ordo_problems) problems;
  g_autofree char *model = g_build_filename(p->run, "model", NULL), *elsewhere = g_build_filename(p->scratch, "elsewhere", NULL);
  g_autofree char *link = g_build_filename(p->run, "model-before-error", NULL);
  assert_int_equal(g_mkdir(p->run, 0777) | g_mkdir(model, 0777) | g_mkdir(elsewhere, 0777), 0);
  g_autofree char *weights = scratch_text(model, "model.safetensors", "w"), *kept = scratch_text(elsewhere, "kept", "k");
  g_autofree char *metrics = leave(p, "metrics.jsonl", "m"), *notes = leave(p, "notes.txt", "mine");
  assert_true(weights && metrics && notes);
  assert_int_equal(symlink(elsewhere, link), 0);
  assert_int_equal(take(p->run, "true", "", &problems), ORDO_OK);
  assert_false(is_there(p, "model") || is_there(p, "metrics.jsonl") || is_there(p, "model-before-error"));
  assert_true(is_there(p, "notes.txt") && is_there(p, "resolved.ini"));
  assert_true(g_file_test(kept, G_FILE_TEST_EXISTS)); /* behind the symbolic link */
}

static void the_model_that_is_read_is_not_removed(void **state)
{
  place *p = *state;
  g_auto(ordo_problems) problems;
  g_auto(ordo_problems) second;
  g_autofree char *model = g_build_filename(p->run, "model", NULL), *neighbour = g_strconcat(p->run, "-2", NULL);
  assert_int_equal(g_mkdir(p->run, 0777) | g_mkdir(model, 0777) | g_mkdir(neighbour, 0777), 0);
  assert_int_equal(take(p->run, "true", model, &problems), ORDO_E_INVALID);
  assert_true(problems_mention(&problems, "model.path is part of the run"));
  assert_true(is_there(p, "model"));
  assert_int_equal(take(p->run, "true", neighbour, &second), ORDO_OK); /* only its name begins the same */
}

static void the_default_takes_the_next_free_name(void **state)
{
  place *p = *state;
  g_autofree char *before = g_get_current_dir();
  const char *const expected[] = {"ordo-run", "ordo-run-2", "ordo-run-3"};
  assert_int_equal(chdir(p->scratch), 0);
  for (size_t i = 0; i < G_N_ELEMENTS(expected); i++) {
    g_autoptr(ordo_config) config = ordo_config_new('T');
    g_auto(ordo_problems) problems;
    ordo_problems_init(&problems);
    assert_int_equal(ordo_output_take(config, &problems), ORDO_OK);
    assert_string_equal(ordo_config_string(config, ORDO_KEY_train_output), expected[i]);
    g_autofree char *resolved = g_build_filename(expected[i], "resolved.ini", NULL), *text = NULL;
    assert_true(g_file_get_contents(resolved, &text, NULL, NULL));
    g_autofree char *line = g_strdup_printf("output=%s\n", expected[i]);
    assert_non_null(strstr(text, line));
  }
  assert_int_equal(chdir(before), 0);
}

static void an_empty_name_writes_nothing(void **state)
{
  (void)state;
  g_auto(ordo_problems) problems;
  assert_int_equal(take("", "false", "", &problems), ORDO_OK);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_new_directory_gets_the_configuration, setup, teardown),
      cmocka_unit_test_setup_teardown(each_file_of_an_earlier_run_is_enough_to_refuse, setup, teardown),
      cmocka_unit_test_setup_teardown(files_of_somebody_else_are_no_run, setup, teardown),
      cmocka_unit_test_setup_teardown(overwriting_removes_the_run_and_nothing_else, setup, teardown),
      cmocka_unit_test_setup_teardown(the_model_that_is_read_is_not_removed, setup, teardown),
      cmocka_unit_test_setup_teardown(the_default_takes_the_next_free_name, setup, teardown),
      cmocka_unit_test(an_empty_name_writes_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
