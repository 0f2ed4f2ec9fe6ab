/* test_launch.c - the launcher: environment, ranks, exit codes and what is said when a rank is lost.
 *
 * The program started is tests/cli/fake_rank.c, installed as ordo-train in a directory of its own.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "command.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char *line_with(const char *words)
{
  return g_strdup_printf("ORDO_LIBEXEC=%s %s", g_getenv("ORDO_TEST_LIBEXEC"), words);
}

static void expect(const char *words, int code, const char *out, const char *err)
{
  g_autofree char *line = line_with(words);
  command_expect(line, code, out, err);
}

static void one_rank_runs_directly(void **state)
{
  (void)state;
  expect("train fine", 0, "rank 0 of 1", NULL);
  expect("train fine --ranks 1", 0, "rank 0 of 1", NULL);
  expect("--plugin-path /a --plugin-path /b train fine", 0, "--plugin-path /a:/b", NULL);
  expect("train exit 3", 3, "", "ending with 3");
}

static void one_blas_thread_per_rank(void **state)
{
  (void)state;
  expect("train fine", 0, "OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1", NULL);
  expect("OPENBLAS_NUM_THREADS=2 OPENBLAS_CORETYPE=Haswell train fine", 0, "OPENBLAS_CORETYPE=Haswell OPENBLAS_NUM_THREADS=2", NULL);
}

static void ranks_are_started(void **state)
{
  (void)state;
  expect("train fine --ranks 2", 0, "rank 1 of 2", NULL);
  expect("train fine --ranks=3", 0, "rank 2 of 3", NULL);
  expect("train fine --ranks 0", 2, "", "at least 1");
  expect("train fine --ranks", 2, "", "at least 1");
  expect("train fine --ranks two", 2, "", "at least 1");
}

static void a_configuration_file_may_say_how_many(void **state)
{
  (void)state;
  g_autofree char *path = NULL;
  int file = g_file_open_tmp("ordo-XXXXXX.ini", &path, NULL);
  assert_true(file >= 0);
  close(file);
  assert_true(g_file_set_contents(path, "[train]\nranks = 2\n", -1, NULL));
  g_autofree char *words = g_strdup_printf("train %s", path);
  g_autofree char *overridden = g_strdup_printf("train %s --ranks 1", path);
  expect(words, 0, "rank 1 of 2", NULL);
  expect(overridden, 0, "rank 0 of 1", NULL);
  unlink(path);
}

static void under_another_launcher_it_joins(void **state)
{
  (void)state;
  expect("PMI_SIZE=4 train fine --ranks 3", 2, "", "4 ranks were already started");
}

static void exit_codes_of_ranks_come_through(void **state)
{
  (void)state;
  for (int code = 1; code <= 4; code++) {
    g_autofree char *words = g_strdup_printf("train exit %d --ranks 2", code);
    g_autofree char *line = line_with(words);
    g_autoptr(outcome) o = command_run(line);
    assert_int_equal(o->code, code);
    assert_non_null(strstr(o->err, "ending with"));
    assert_null(strstr(o->err, "------"));
    assert_null(strstr(o->err, "E-RUN"));
  }
  expect("train abort 3 --ranks 2", 3, "", "ending with 3");
  expect("train exit 77 --ranks 2", 1, "", "left the run with exit code 77");
  expect("train desert --ranks 2", 1, "", "E-RUN-RANK-LOST");
}

/* exit(1) of a library looks like an error of the house that was told, and was told by nobody. */
static void a_rank_that_leaves_without_a_word_is_named(void **state)
{
  (void)state;
  for (int code = 1; code <= 4; code += 3) {
    g_autofree char *words = g_strdup_printf("train leave %d --ranks 2", code);
    g_autofree char *expected = g_strdup_printf("E-RUN-RANK-LOST: rank 1 left the run with exit code %d", code);
    expect(words, 1, "", expected);
  }
}

static void a_killed_rank_ends_the_run(void **state)
{
  (void)state;
  const int signals[] = {SIGKILL, SIGSEGV, SIGTERM};
  for (size_t i = 0; i < G_N_ELEMENTS(signals); i++) {
    g_autofree char *words = g_strdup_printf("train raise %d --ranks 3", signals[i]);
    g_autofree char *expected = g_strdup_printf("rank 1 was ended by signal %d", signals[i]);
    g_autofree char *line = line_with(words);
    g_autoptr(outcome) o = command_run(line);
    if (o->code != 1 || !strstr(o->err, expected) || !strstr(o->err, "E-RUN-RANK-LOST"))
      fail_msg("%s: exit code %d\n%s", words, o->code, o->err);
    assert_null(strstr(o->err, "------"));
    assert_true(o->seconds < 20);
  }
}

/* Starts two ranks, waits until one has written its process id, interrupts the launcher; returns its exit code and that process id. */
static int interrupted(const char *what, int *rank, char **out)
{
  g_autofree char *directory = g_dir_make_tmp("ordo-XXXXXX", NULL);
  g_autofree char *pids = g_build_filename(directory, "pid", NULL);
  char *argv[] = {(char *)g_getenv("ORDO_TEST_COMMAND"), (char *)"train", (char *)what, pids, (char *)"--ranks", (char *)"2", NULL};
  g_auto(GStrv) environment = g_environ_setenv(g_get_environ(), "ORDO_LIBEXEC", g_getenv("ORDO_TEST_LIBEXEC"), TRUE);
  g_autofree char *text = NULL;
  g_autoptr(GString) said = g_string_new(NULL);
  char buffer[512];
  GPid pid;
  int status = 0, output = -1;
  ssize_t n;

  assert_true(g_spawn_async_with_pipes(NULL, argv, environment, G_SPAWN_DO_NOT_REAP_CHILD, NULL, NULL, &pid, NULL, &output, NULL, NULL));
  for (int i = 0; i < 400 && !g_file_test(pids, G_FILE_TEST_EXISTS); i++)
    g_usleep(50000);
  assert_true(g_file_get_contents(pids, &text, NULL, NULL));
  g_usleep(500000); /* the other rank installs its handler */
  kill(pid, SIGINT);
  while ((n = read(output, buffer, sizeof buffer)) > 0)
    g_string_append_len(said, buffer, n);
  close(output);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status));
  *rank = atoi(text);
  *out = g_strdup(said->str);
  unlink(pids);
  rmdir(directory);
  return WEXITSTATUS(status);
}

/* mpirun itself gets a signal: the ranks end in their own way, and the text does not say that they could not be run. */
static void a_signal_to_mpirun_is_no_failure_to_launch(void **state)
{
  (void)state;
  g_autofree char *line = line_with("train orphan --ranks 2");
  g_autoptr(outcome) o = command_run(line);
  if (o->code != 1 || !strstr(o->err, "E-RUN-STOPPED") || strstr(o->err, "E-RUN-LAUNCH"))
    fail_msg("exit code %d\n%s", o->code, o->err);
}

/* --color stands before or after every verb, those that are programs of their own too, and reaches their errors. */
static void colour_reaches_the_program(void **state)
{
  (void)state;
  static const char *const always[] = {"--color always train fine",           "--color=always train fine",
                                       "train fine --color always",           "train --color=always fine",
                                       "train fine --color always --ranks 2", "--color never train fine --color always"};
  for (size_t i = 0; i < G_N_ELEMENTS(always); i++) {
    g_autofree char *line = line_with(always[i]);
    g_autoptr(outcome) o = command_run(line);
    if (o->code != 0 || !strstr(o->out, "ORDO_COLOUR_ERRORS=1") || strstr(o->out, "--color"))
      fail_msg("%s: exit code %d\n%s%s", always[i], o->code, o->out, o->err);
  }
  expect("train fine", 0, "ORDO_COLOUR_ERRORS=0", NULL);
  expect("train fine --color never", 0, "ORDO_COLOUR_ERRORS=0", NULL);
  expect("train fine --color red", 2, "", "auto, always or never");
  expect("train fine --color", 2, "", "auto, always or never");
  expect("train fine -- --color always", 0, "-- --color always", NULL);
}

/* One zero too many must not fill the machine with processes. */
static void far_more_ranks_than_cores_are_asked_about(void **state)
{
  (void)state;
  expect("train fine --ranks 100000", 2, "", "E-RUN-MANY-RANKS");
  expect("train fine --ranks 100000", 2, "", "--many-ranks");
  expect("train fine --ranks 2 --many-ranks", 0, "rank 1 of 2", NULL);
}

/* /bin is /usr/bin on a merged system; from the path /bin/mpirun, mpirun concluded that Open MPI is installed in "/". */
static void mpirun_may_be_found_in_bin(void **state)
{
  (void)state;
  if (!g_file_test("/bin/mpirun", G_FILE_TEST_IS_EXECUTABLE))
    skip();
  expect("PATH=/bin train fine --ranks 2", 0, "rank 1 of 2", NULL);
}

/* Ctrl-C at the launcher ends ranks that do not listen. */
static void a_signal_reaches_the_ranks(void **state)
{
  (void)state;
  g_autofree char *out = NULL;
  int rank = 0;
  assert_int_equal(interrupted("wait", &rank, &out), 1);
  for (int i = 0; i < 100 && kill(rank, 0) == 0; i++)
    g_usleep(50000);
  assert_int_equal(kill(rank, 0), -1);
}

/* Ranks that listen get the time to finish and to save, which mpirun would not give them. */
static void a_signal_leaves_time_to_save(void **state)
{
  (void)state;
  g_autofree char *out = NULL;
  int rank = 0;
  assert_int_equal(interrupted("finish", &rank, &out), 0);
  assert_non_null(strstr(out, "saved by rank 0"));
  assert_non_null(strstr(out, "saved by rank 1"));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_rank_runs_directly),
      cmocka_unit_test(one_blas_thread_per_rank),
      cmocka_unit_test(ranks_are_started),
      cmocka_unit_test(a_configuration_file_may_say_how_many),
      cmocka_unit_test(under_another_launcher_it_joins),
      cmocka_unit_test(exit_codes_of_ranks_come_through),
      cmocka_unit_test(a_rank_that_leaves_without_a_word_is_named),
      cmocka_unit_test(a_killed_rank_ends_the_run),
      cmocka_unit_test(a_signal_reaches_the_ranks),
      cmocka_unit_test(a_signal_to_mpirun_is_no_failure_to_launch),
      cmocka_unit_test(colour_reaches_the_program),
      cmocka_unit_test(far_more_ranks_than_cores_are_asked_about),
      cmocka_unit_test(mpirun_may_be_found_in_bin),
      cmocka_unit_test(a_signal_leaves_time_to_save),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
