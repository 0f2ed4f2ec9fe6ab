/* test_usage.c - the command line: every verb answers, bad input gets a code, a place and the nearest name, exit codes are the documented
 * ones. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "command.h"

#include <string.h>

static void verbs_answer(void **state)
{
  (void)state;
  command_expect("help", 0, "exit codes", NULL);
  command_expect("--help", 0, "exit codes", NULL);
  command_expect("help plan", 0, "--strategy", NULL);
  command_expect("plan --help", 0, "--digest", NULL);
  command_expect("version", 0, "plugin ABI 1.", NULL);
  command_expect("--version", 0, "plugin ABI 1.", NULL);
  command_expect("explain", 0, "E-COMM-TIMEOUT", NULL);
  command_expect("explain E-USAGE", 0, "unknown verb", NULL);
  command_expect("explain e-usage", 0, "unknown verb", NULL);
  command_expect("explain --markdown", 0, "## E-USAGE", NULL);
}

static void bad_usage_names_the_nearest(void **state)
{
  (void)state;
  command_expect("", 2, "usage", "");
  command_expect("plam", 2, "", "ordo plan");
  command_expect("zzzzzzzz", 2, "", "ordo help");
  command_expect("plan --strategi ddp", 2, "", "--strategy");
  command_expect("--colour list", 2, "", "--color");
  command_expect("--color=red list", 2, "", "auto, always or never");
  command_expect("plan --ranks many", 2, "", "many");
  command_expect("plan --ranks 0", 2, "", "at least 1");
  command_expect("plan --ranks -3", 2, "", "at least 1");
  command_expect("plan --steps --json", 2, "", "exclude each other");
  command_expect("list extra", 2, "", "too many words");
  command_expect("inspect", 2, "", "a word is missing");
  command_expect("why a", 2, "", "a word is missing");
  command_expect("why-not", 2, "", "which combination");
  command_expect("why-not ddp --strategy ddp", 2, "", "given twice");
  command_expect("explain E-USAGI", 2, "", "E-USAGE");
  command_expect("matrix --ranks 0", 2, "", "at least 1");
  command_expect("help plam", 2, "", "plam");
}

static void an_option_with_one_value_stands_once(void **state)
{
  (void)state;
  command_expect("plan --precision apex_amp:O1 --precision apex_amp:O2", 2, "", "--precision is given twice");
  command_expect("plan -p apex_amp:O1 --precision=apex_amp:O1", 2, "", "--precision is given twice");
  command_expect("plan --strategy ddp --ranks 2 -s fsdp1", 2, "", "--strategy is given twice");
  command_expect("plan --ranks 2 --world 3", 2, "", "--world is given twice");
  command_expect("why mesh.init verify --strategy ddp --strategy ddp", 2, "", "--strategy is given twice");
  command_expect("why-not ddp --precision apex_amp --precision apex_amp", 2, "", "--precision is given twice");
  command_expect("matrix --ranks 1 --ranks 2", 2, "", "--ranks is given twice");
  command_expect("list --plugin-path /nonexistent --plugin-path /nonexistent", 0, "", "No such file"); /* it takes several */
  command_expect("plan --resume --resume", 0, "", NULL);
}

static void words_that_are_paths_are_no_verbs(void **state)
{
  (void)state;
  command_expect("ORDO_LIBEXEC=/usr ../bin/sh", 2, "", "unknown verb");
  command_expect("ORDO_LIBEXEC=/nonexistent train", 1, "", "E-RUN-NO-PROGRAM");
}

static void json_is_json(void **state)
{
  (void)state;
  command_expect_json("version --json", 0);
  command_expect_json("list --json", 0);
}

/* docs/errors.md is made by a command; merging branches leaves it behind. */
static void the_page_of_errors_is_up_to_date(void **state)
{
  (void)state;
  g_autofree char *path = g_build_filename(g_getenv("ORDO_TEST_SOURCE"), "docs", "errors.md", NULL), *page = NULL;
  g_autoptr(outcome) o = command_run("explain --markdown");
  assert_int_equal(o->code, 0);
  assert_true(g_file_get_contents(path, &page, NULL, NULL));
  if (strcmp(page, o->out))
    fail_msg("docs/errors.md is not what `ordo explain --markdown` prints: run ./dev docs and commit it");
}

/* However long a code is, two blanks and the title follow in the same column. */
static void codes_stand_in_a_column(void **state)
{
  (void)state;
  g_autoptr(outcome) o = command_run("explain");
  g_auto(GStrv) lines = g_strsplit(o->out, "\n", -1);
  size_t longest = 0;
  for (char **line = lines; *line; line++)
    longest = MAX(longest, strcspn(*line, " "));
  for (char **line = lines; *line && **line; line++)
    if (strspn(*line + strcspn(*line, " "), " ") + strcspn(*line, " ") != longest + 2)
      fail_msg("not in the column: %s", *line);
}

static void a_program_to_check_is_a_file(void **state)
{
  (void)state;
  command_expect("doctor --program /nonexistent/x", 2, "", "/nonexistent/x");
  command_expect("doctor --program /usr", 2, "", "is no file");
  g_autoptr(outcome) o = command_run("doctor --program /etc/passwd"); /* what it finds goes to standard output */
  assert_int_equal(o->code, 1);
  assert_non_null(strstr(o->out, "/etc/passwd is no ELF file"));
}

static void help_shows_what_is_optional(void **state)
{
  (void)state;
  command_expect("help", 0, "[FILE.ini]", NULL);
  command_expect("why a b --ranks 0", 2, "", "ordo why --help");
  command_expect("why-not ddp --ranks -1", 2, "", "ordo why-not --help");
}

/* Output into a pipe has no colour unless asked for; NO_COLOR does not forbid what was asked for. */
static void colour_only_on_a_terminal(void **state)
{
  (void)state;
  g_autoptr(outcome) plain = command_run("help");
  g_autoptr(outcome) asked = command_run("--color=always help");
  g_autoptr(outcome) after = command_run("help --color=always");
  g_autoptr(outcome) never = command_run("--color=always help --color=never");
  assert_null(strchr(plain->out, '\033'));
  assert_non_null(strchr(asked->out, '\033'));
  assert_string_equal(asked->out, after->out);
  assert_string_equal(plain->out, never->out);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(verbs_answer),
      cmocka_unit_test(bad_usage_names_the_nearest),
      cmocka_unit_test(an_option_with_one_value_stands_once),
      cmocka_unit_test(words_that_are_paths_are_no_verbs),
      cmocka_unit_test(the_page_of_errors_is_up_to_date),
      cmocka_unit_test(codes_stand_in_a_column),
      cmocka_unit_test(a_program_to_check_is_a_file),
      cmocka_unit_test(help_shows_what_is_optional),
      cmocka_unit_test(json_is_json),
      cmocka_unit_test(colour_only_on_a_terminal),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
