/* test_config.c - the configuration table, key files and arguments. */
#include "io_support.h"

#include "config_private.h"

#include <string.h>

static ordo_status read_text(const char *directory, const char *text, ordo_config *config, ordo_problems *problems)
{
  g_autofree char *path = scratch_text(directory, "run.ini", text);
  return ordo_config_read_file(config, path, problems);
}

static void every_default_obeys_its_own_rule(void **state)
{
  (void)state;
  g_autoptr(ordo_config) config = ordo_config_new('T');
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  for (ordo_key key = 0; key < ORDO_N_KEYS; key++) {
    assert_false(ordo_config_is_set(config, key));
    assert_int_equal(ordo_config_set(config, key, ordo_keys[key].fallback, "test", &problems), ORDO_OK);
    assert_true(*ordo_keys[key].help != '\0');
    assert_true(*ordo_keys[key].verbs != '\0');
  }
}

static void names_and_short_options_are_unique(void **state)
{
  (void)state;
  g_autoptr(GHashTable) seen = g_hash_table_new(g_str_hash, g_str_equal);
  for (ordo_key key = 0; key < ORDO_N_KEYS; key++) {
    assert_true(g_hash_table_add(seen, (gpointer)ordo_keys[key].name));
    assert_true(!*ordo_keys[key].alias || g_hash_table_add(seen, (gpointer)ordo_keys[key].alias));
  }
}

static void file_then_options_win(void **state)
{
  g_autofree char *path = scratch_text(*state, "run.ini", "# run\r\n[train]\r\nsteps = 7\r\nbatch=3\r\n[data]\r\ntrain = a b.txt\r\n");
  char *argv[] = {"ordo-train", "--train.steps=9", path, "--lr", "0.5", "--train.ordered", "--log.no_peak", "--strategy", "ddp", NULL};
  g_autoptr(ordo_config) config = ordo_config_new('T');
  g_auto(ordo_problems) problems;
  int help = 1;
  ordo_problems_init(&problems);
  assert_int_equal(ordo_config_read_arguments(config, 9, argv, &help, &problems), ORDO_OK);
  assert_int_equal(help, 0);
  assert_int_equal(ordo_config_int(config, ORDO_KEY_train_steps), 9);
  assert_int_equal(ordo_config_int(config, ORDO_KEY_train_batch), 3);
  assert_string_equal(ordo_config_string(config, ORDO_KEY_data_train), "a b.txt");
  assert_true(ordo_config_real(config, ORDO_KEY_optim_lr) == 0.5);
  assert_true(ordo_config_bool(config, ORDO_KEY_train_ordered));
  assert_false(ordo_config_bool(config, ORDO_KEY_log_peak));
  assert_string_equal(ordo_config_string(config, ORDO_KEY_strategy_name), "ddp");
}

static void all_mistakes_are_reported_with_the_nearest_key(void **state)
{
  g_auto(ordo_problems) problems;
  g_autoptr(ordo_config) config = ordo_config_new('T');
  ordo_problems_init(&problems);
  assert_int_equal(read_text(*state, "[train]\nstep = 5\nbatch = 0\nlr = 1\n[nonsense]\nx = 1\n[train]\nbatch = 2\n", config, &problems),
                   ORDO_E_INVALID);
  assert_int_equal(ordo_problems_count(&problems), 4);
  assert_true(problems_mention(&problems, "did you mean train.steps?"));
  assert_true(problems_mention(&problems, "did you mean optim.lr?"));
  assert_true(problems_mention(&problems, "run.ini:2"));
  assert_true(problems_mention(&problems, "train.batch is set twice"));
  assert_true(problems_mention(&problems, "unknown key nonsense.x"));
}

typedef struct bad_file {
  const char *bytes;
  size_t size;
  const char *word;
} bad_file;

static void files_that_are_no_configuration_are_named(void **state)
{
  static const bad_file cases[] = {{"", 0, "empty"},
                                   {" \r\n\n", 4, "empty"},
                                   {"[train]\nsteps = 1\0x", 19, "zero bytes"},
                                   {"[train]\nsteps = \xff\n", 18, "line 2 is not valid UTF-8"},
                                   {"steps = 1\n", 10, "not a configuration file"},
                                   {"[train\nsteps = 1\n", 17, "not a configuration file"}};
  for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_auto(ordo_problems) problems;
    g_autoptr(ordo_config) config = ordo_config_new('T');
    g_autofree char *path = scratch_write(*state, "bad.ini", cases[i].bytes, cases[i].size);
    ordo_problems_init(&problems);
    assert_int_equal(ordo_config_read_file(config, path, &problems), ORDO_E_INVALID);
    if (!problems_mention(&problems, cases[i].word))
      fail_msg("case %zu does not say \"%s\"", i, cases[i].word);
  }
}

static void a_missing_file_is_not_found(void **state)
{
  g_auto(ordo_problems) problems;
  g_autoptr(ordo_config) config = ordo_config_new('T');
  g_autofree char *path = g_build_filename(*state, "none.ini", NULL);
  ordo_problems_init(&problems);
  assert_int_equal(ordo_config_read_file(config, path, &problems), ORDO_E_NOT_FOUND);
  assert_int_equal(ordo_config_read_file(config, *state, &problems), ORDO_E_INVALID);
}

static void a_byte_order_mark_is_skipped(void **state)
{
  g_auto(ordo_problems) problems;
  g_autoptr(ordo_config) config = ordo_config_new('T');
  ordo_problems_init(&problems);
  assert_int_equal(read_text(*state, "\xef\xbb\xbf[train]\nsteps = 12\n", config, &problems), ORDO_OK);
  assert_int_equal(ordo_config_int(config, ORDO_KEY_train_steps), 12);
}

static void bad_arguments_are_named(void **state)
{
  static char *cases[][3] = {{"--train.steps", NULL, "missing"},
                             {"--train.steps", "x", "whole number"},
                             {"--optim.lr", "nan", "a number"},
                             {"--optim.name", "adam", "adamw|sgd"},
                             {"-n", "3", "two dashes"},
                             {"-n", "3", "`ordo train --help` lists all options"},
                             {"--strateg", "ddp", "unknown key"},
                             {"--strateg", "ddp", "`ordo train --help` lists all keys"},
                             {"--generate.top_k", "3", "`ordo train --help` lists the keys"},
                             {"--train.steps", " 5", "whole number"},
                             {"--optim.lr", "1e400", "a number"},
                             {"--train.ordered", "maybe", "true or false"}};
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
    char *argv[] = {"ordo-train", cases[i][0], cases[i][1], NULL};
    g_auto(ordo_problems) problems;
    g_autoptr(ordo_config) config = ordo_config_new('T');
    int help;
    ordo_problems_init(&problems);
    assert_int_equal(ordo_config_read_arguments(config, cases[i][1] ? 3 : 2, argv, &help, &problems), ORDO_E_INVALID);
    if (!problems_mention(&problems, cases[i][2]))
      fail_msg("case %zu does not say \"%s\"", i, cases[i][2]);
  }
}

/* "cannot read the configuration apex_amp:O5" was all that was said. */
static void a_short_option_is_named_and_its_value_is_no_file(void **state)
{
  g_autofree char *ini = g_build_filename(*state, "short.ini", NULL);
  const char *const words[][2] = {{"-p", "--precision"}, {"-s", "--strategy"}, {"-n", "--ranks"}, {"-x", "--help"}};
  assert_true(g_file_set_contents(ini, "[train]\nsteps = 3\n", -1, NULL));
  for (size_t i = 0; i < G_N_ELEMENTS(words); i++) {
    char *argv[] = {(char *)"ordo-train", ini, (char *)words[i][0], (char *)"apex_amp:O5", NULL};
    g_auto(ordo_problems) problems;
    g_autoptr(ordo_config) config = ordo_config_new('T');
    g_autofree char *what = g_strconcat("unknown option ", words[i][0], NULL);
    int help;
    ordo_problems_init(&problems);
    assert_int_equal(ordo_config_read_arguments(config, 4, argv, &help, &problems), ORDO_E_INVALID);
    if (!problems_mention(&problems, what) || !problems_mention(&problems, words[i][1]) || problems_mention(&problems, "cannot read"))
      fail_msg("%s is not named alone", words[i][0]);
  }
}

static void two_expressions_are_refused(void **state)
{
  const char *const words[][2] = {{"--strategy", "fsdp1"}, {"--strategy.name", "ddp"}, {"--precision", "apex_amp"}};
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(words); i++) {
    char *argv[] = {(char *)"ordo-train",
                    (char *)"--strategy=ddp",
                    (char *)"--precision=none",
                    (char *)"--train.steps",
                    (char *)"3",
                    (char *)"--train.steps",
                    (char *)"4",
                    (char *)words[i][0],
                    (char *)words[i][1],
                    NULL};
    g_auto(ordo_problems) problems;
    g_autoptr(ordo_config) config = ordo_config_new('T');
    int help;
    ordo_problems_init(&problems);
    assert_int_equal(ordo_config_read_arguments(config, 9, argv, &help, &problems), ORDO_E_INVALID);
    assert_true(problems_mention(&problems, "is given twice"));
    assert_false(problems_mention(&problems, "train.steps"));
    assert_int_equal(ordo_config_int(config, ORDO_KEY_train_steps), 4);
  }
}

static void the_resolved_text_gives_the_same_configuration(void **state)
{
  g_autoptr(ordo_config) first = ordo_config_new('T'), second = ordo_config_new('T');
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  assert_int_equal(read_text(*state, "[data]\ntrain = a;b\n[train]\noutput = \\sx\\\\y\n[optim]\nlr = 3e-4\n", first, &problems), ORDO_OK);
  assert_string_equal(ordo_config_string(first, ORDO_KEY_train_output), " x\\y");
  g_autofree char *resolved = ordo_config_resolved(first);
  assert_int_equal(read_text(*state, resolved, second, &problems), ORDO_OK);
  for (ordo_key key = 0; key < ORDO_N_KEYS; key++)
    assert_string_equal(ordo_config_string(first, key), ordo_config_string(second, key));
}

/* Run again from resolved.ini, the directory that was overwritten once would be overwritten without a word. */
static void a_permission_to_overwrite_is_for_one_run(void **state)
{
  g_autoptr(ordo_config) first = ordo_config_new('T'), second = ordo_config_new('T');
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  assert_int_equal(ordo_config_set(first, ORDO_KEY_train_overwrite, "true", "test", &problems), ORDO_OK);
  g_autofree char *resolved = ordo_config_resolved(first);
  assert_int_equal(read_text(*state, resolved, second, &problems), ORDO_OK);
  assert_false(ordo_config_bool(second, ORDO_KEY_train_overwrite));
}

static void a_text_in_the_place_of_a_configuration_is_answered(void **state)
{
  static const struct {
    char verb;
    const char *option;
    const char *help;
  } cases[] = {
      {'T', "--data ", "`ordo train --help`"}, {'E', "--data ", "`ordo eval --help`"}, {'G', "--model ", "`ordo generate --help`"}};
  for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autofree char *path = scratch_text(*state, "my.txt", "Once upon a time\n"), *words = g_strconcat(cases[i].option, path, NULL);
    g_autoptr(ordo_config) config = ordo_config_new(cases[i].verb);
    g_auto(ordo_problems) problems;
    ordo_problems_init(&problems);
    assert_int_equal(ordo_config_read_file(config, path, &problems), ORDO_E_INVALID);
    assert_true(problems_mention(&problems, words));
    assert_true(problems_mention(&problems, cases[i].help));
  }
}

static void help_lists_the_keys_of_the_verb_only(void **state)
{
  (void)state;
  g_autoptr(ordo_config) config = ordo_config_new('G');
  g_autofree char *help = ordo_config_help(config, "ordo generate", "test");
  assert_non_null(strstr(help, "--generate.top_p"));
  assert_null(strstr(help, "--optim.lr"));
}

static void fuzzed_files_never_crash(void **state)
{
  static const char seed_text[] = "[train]\nsteps = 7\n# c\n[optim]\nlr=1e-3\n[data]\ntrain = x\\sy\n";
  g_autoptr(GRand) random = g_rand_new_with_seed(20260801);
  for (int round = 0; round < 2000; round++) {
    char text[sizeof seed_text];
    g_auto(ordo_problems) problems;
    g_autoptr(ordo_config) config = ordo_config_new('T');
    memcpy(text, seed_text, sizeof text);
    for (int change = 0; change < 3; change++)
      text[g_rand_int_range(random, 0, (gint32)sizeof text - 1)] = (char)g_rand_int_range(random, 0, 256);
    ordo_problems_init(&problems);
    ordo_status status = read_text(*state, text, config, &problems);
    assert_true((status == ORDO_OK) == (ordo_problems_count(&problems) == 0));
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_default_obeys_its_own_rule),
      cmocka_unit_test(names_and_short_options_are_unique),
      cmocka_unit_test_setup_teardown(file_then_options_win, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(all_mistakes_are_reported_with_the_nearest_key, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(files_that_are_no_configuration_are_named, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_missing_file_is_not_found, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_byte_order_mark_is_skipped, scratch_setup, scratch_teardown),
      cmocka_unit_test(bad_arguments_are_named),
      cmocka_unit_test_setup_teardown(a_short_option_is_named_and_its_value_is_no_file, scratch_setup, scratch_teardown),
      cmocka_unit_test(two_expressions_are_refused),
      cmocka_unit_test_setup_teardown(the_resolved_text_gives_the_same_configuration, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_permission_to_overwrite_is_for_one_run, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(a_text_in_the_place_of_a_configuration_is_answered, scratch_setup, scratch_teardown),
      cmocka_unit_test(help_lists_the_keys_of_the_verb_only),
      cmocka_unit_test_setup_teardown(fuzzed_files_never_crash, scratch_setup, scratch_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
