/* test_files.c - reading whole files and replacing directories; and every reader of the trainer on things that are no files. */
#include "io_support.h"

#include "config_private.h"
#include "data.h"
#include "files.h"
#include "safetensors.h"
#include "tokenizer.h"
#include "tokens.h"
#include "weights.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void whole_files_end_with_a_zero_byte(void **state)
{
  g_autofree char *path = scratch_text(*state, "a.txt", "seven c"), *empty = scratch_text(*state, "b.txt", "");
  g_autofree char *why = NULL, *none = NULL;
  size_t length = 99;
  g_autofree char *text = ordo_file_whole(path, 7, &length, &why);
  assert_non_null(text);
  assert_int_equal(length, 7);
  assert_string_equal(text, "seven c");
  assert_null(why);
  none = ordo_file_whole(empty, 0, &length, &why);
  assert_non_null(none);
  assert_int_equal(length, 0);
  assert_string_equal(none, "");
}

static void refused(const char *path, size_t limit, const char *word)
{
  g_autofree char *why = NULL;
  size_t length = 0;
  assert_null(ordo_file_whole(path, limit, &length, &why));
  assert_non_null(why);
  if (!strstr(why, word))
    fail_msg("%s: '%s' does not mention '%s'", path, why, word);
}

static void what_is_no_file_has_a_reason(void **state)
{
  g_autofree char *file = scratch_text(*state, "a.txt", "12345678"), *fifo = g_build_filename(*state, "fifo", NULL);
  g_autofree char *loop = g_build_filename(*state, "loop", NULL), *missing = g_build_filename(*state, "missing", NULL);
  g_autofree char *under = g_build_filename(file, "x", NULL);
  assert_int_equal(mkfifo(fifo, 0600), 0);
  assert_int_equal(symlink("loop", loop), 0);
  refused(file, 7, "limit");
  refused(fifo, 100, "not a regular file");
  refused("/dev/zero", 100, "not a regular file");
  refused(*state, 100, "it is a directory");
  refused(missing, 100, "there is no such file");
  refused(loop, 100, g_strerror(ELOOP));
  refused(under, 100, g_strerror(ENOTDIR));
}

/* A FIFO that nobody writes into: whoever opens it the plain way waits for ever. The test's timeout is the failure. */
static void no_reader_waits_for_a_fifo(void **state)
{
  g_autofree char *fifo = g_build_filename(*state, "fifo.bin", NULL), *model = g_build_filename(*state, "model", NULL);
  g_autofree char *config = g_build_filename(model, "config.json", NULL);
  g_autoptr(ordo_config) settings = ordo_config_new('T');
  g_auto(ordo_problems) problems;
  ordo_data data = {.seq_len = 4, .n_sequences = 1};
  ordo_tokens *tokens = NULL;
  ordo_tokenizer *tokenizer = NULL, *bytes = NULL;
  ordo_weights *weights = NULL;
  ordo_safetensors *tensors = NULL;
  ordo_problems_init(&problems);
  assert_int_equal(mkfifo(fifo, 0600), 0);
  assert_int_equal(mkdir(model, 0700), 0);
  assert_int_equal(mkfifo(config, 0600), 0);
  assert_int_equal(ordo_tokenizer_open("bytes", 0, &problems, &bytes), ORDO_OK);
  assert_int_not_equal(ordo_config_read_file(settings, fifo, &problems), ORDO_OK);
  assert_int_not_equal(ordo_tokens_open(fifo, "auto", bytes, TRUE, 258, &problems, &tokens), ORDO_OK);
  assert_int_not_equal(ordo_data_set_targets(&data, fifo, 258, &problems), ORDO_OK);
  assert_int_not_equal(ordo_tokenizer_open(fifo, 0, &problems, &tokenizer), ORDO_OK);
  assert_int_not_equal(ordo_weights_open(fifo, &problems, &weights), ORDO_OK);
  assert_int_not_equal(ordo_weights_open(model, &problems, &weights), ORDO_OK);
  assert_int_not_equal(ordo_safetensors_open(fifo, &problems, &tensors), ORDO_OK);
  assert_int_equal(ordo_problems_count(&problems), 7);
  for (size_t i = 0; i < 7; i++)
    assert_non_null(strstr(ordo_problems_at(&problems, i)->why, "regular file"));
  ordo_tokenizer_free(bytes);
  unlink(config);
  rmdir(model);
}

static char *directory_with(const char *scratch, const char *name, const char *text)
{
  char *directory = g_build_filename(scratch, name, NULL);
  assert_int_equal(mkdir(directory, 0700), 0);
  g_free(scratch_text(directory, "f", text));
  return directory;
}

static void a_directory_takes_the_place_of_an_older_one(void **state)
{
  g_autofree char *fresh = directory_with(*state, "new", "new"), *old = directory_with(*state, "model", "old");
  g_autofree char *file = g_build_filename(old, "f", NULL), *text = NULL;
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  assert_int_equal(ordo_directory_commit(fresh, old, &problems), ORDO_OK);
  assert_true(g_file_get_contents(file, &text, NULL, NULL));
  assert_string_equal(text, "new");
  assert_int_not_equal(access(fresh, F_OK), 0); /* nothing is left beside it */
  ordo_directory_remove(old);
}

static void a_file_in_the_place_of_a_directory_is_kept(void **state)
{
  g_autofree char *fresh = directory_with(*state, "new", "new"), *taken = scratch_text(*state, "model", "a user's file"), *text = NULL;
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  assert_int_equal(ordo_directory_commit(fresh, taken, &problems), ORDO_E_IO);
  assert_true(problems_mention(&problems, "no directory"));
  assert_true(g_file_get_contents(taken, &text, NULL, NULL));
  assert_string_equal(text, "a user's file");
  ordo_directory_remove(fresh);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(whole_files_end_with_a_zero_byte, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(what_is_no_file_has_a_reason, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(no_reader_waits_for_a_fifo, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_directory_takes_the_place_of_an_older_one, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_file_in_the_place_of_a_directory_is_kept, scratch_setup, scratch_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
