/* test_model_tokenizer.c - which tokenizer a model has is known or refused, never guessed. */
#include "io_support.h"

#include "model_tokenizer.h"
#include "tokens.h"

static void expect(const char *model, int64_t vocab, const char *expected)
{
  g_autofree char *found = ordo_model_tokenizer_find(model, vocab);
  if (!expected) {
    assert_null(found);
    return;
  }
  assert_non_null(found);
  assert_string_equal(found, expected);
}

static void the_size_of_bytes_is_bytes_and_no_other(void **state)
{
  expect(*state, 258, "bytes");
  expect(*state, 257, NULL);
  expect(*state, 512, NULL);
  assert_false(ordo_model_tokenizer_is_stated(*state));
}

static void a_saved_note_is_found_at_any_size(void **state)
{
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  assert_int_equal(ordo_model_tokenizer_write(*state, "", &problems), ORDO_OK);
  expect(*state, 512, NULL);
  assert_int_equal(ordo_model_tokenizer_write(*state, "bytes", &problems), ORDO_OK);
  expect(*state, 512, "bytes");
  assert_true(ordo_model_tokenizer_is_stated(*state));
}

static void a_tokenizer_file_is_copied_and_wins(void **state)
{
  g_auto(ordo_problems) problems;
  g_autofree char *own = scratch_text(*state, "other.bin", "vocabulary"), *copy = g_build_filename(*state, "tokenizer.bin", NULL);
  g_autofree char *text = NULL, *model = g_build_filename(*state, "model.bin", NULL);
  ordo_problems_init(&problems);
  assert_int_equal(ordo_model_tokenizer_write(*state, "bytes", &problems), ORDO_OK);
  assert_int_equal(ordo_model_tokenizer_write(*state, own, &problems), ORDO_OK);
  assert_true(g_file_get_contents(copy, &text, NULL, NULL));
  assert_string_equal(text, "vocabulary");
  expect(*state, 512, copy);
  expect(*state, 258, copy);
  expect(model, 512, copy); /* beside a llama2.c checkpoint */
}

static void a_note_names_a_file_of_its_directory(void **state)
{
  g_autofree char *note = scratch_text(*state, "ordo.ini", "[data]\ntokenizer=words.bin\n"), *words = NULL;
  assert_non_null(note);
  expect(*state, 512, NULL); /* it is not there */
  words = scratch_text(*state, "words.bin", "vocabulary");
  expect(*state, 512, words);
}

static void a_damaged_note_says_nothing(void **state)
{
  static const char *const notes[] = {"", "tokenizer=bytes\n", "[data]\ntokenizer=\n", "\xff[data]\n", "[data]\ntokens=bytes\n"};
  for (size_t i = 0; i < G_N_ELEMENTS(notes); i++) {
    g_autofree char *note = scratch_text(*state, "ordo.ini", notes[i]);
    assert_non_null(note);
    expect(*state, 512, NULL);
  }
}

static void text_without_a_tokenizer_is_refused_and_ids_are_not(void **state)
{
  static const struct {
    const char *format;
    const char *name;
    ordo_status status;
  } cases[] = {{"auto", "a.txt", ORDO_E_INVALID}, {"text", "a.bin", ORDO_E_INVALID}, {"bytes", "a.bin", ORDO_E_INVALID},
               {"auto", "a.bin", ORDO_OK},        {"tokens16", "a.txt", ORDO_OK},    {"tokens32", "a.txt", ORDO_OK}};
  for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autofree char *path = scratch_write(*state, cases[i].name, "a\0\0\0", 4);
    g_auto(ordo_problems) problems;
    g_autoptr(ordo_tokens) tokens = NULL;
    ordo_problems_init(&problems);
    assert_int_equal(ordo_tokens_open(path, cases[i].format, NULL, TRUE, 512, &problems, &tokens), cases[i].status);
    assert_int_equal(problems_mention(&problems, "E-TOKENIZER-UNKNOWN"), cases[i].status != ORDO_OK);
    assert_int_equal(problems_mention(&problems, "512 entries"), cases[i].status != ORDO_OK);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(the_size_of_bytes_is_bytes_and_no_other, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_saved_note_is_found_at_any_size, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_tokenizer_file_is_copied_and_wins, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_note_names_a_file_of_its_directory, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_damaged_note_says_nothing, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(text_without_a_tokenizer_is_refused_and_ids_are_not, scratch_setup, scratch_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
