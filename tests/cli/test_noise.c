/* test_noise.c - the filter over mpirun's error stream: what passes, what is held back, what is read from it. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "../../host/cli/cli.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RULE "--------------------------------------------------------------------------\n"

typedef struct verdict {
  int rank, signal_number, exit_code;
} verdict;

/* Feeds `text` in pieces of `piece` bytes and returns what came out. */
static char *filtered(const char *text, size_t piece, verdict *v)
{
  int ends[2];
  char out[8192];
  size_t length = strlen(text);
  assert_int_equal(pipe(ends), 0);
  cli_noise *noise = cli_noise_new(ends[1]);
  for (size_t i = 0; i < length; i += piece)
    cli_noise_feed(noise, text + i, MIN(piece, length - i));
  cli_noise_flush(noise);
  cli_noise_verdict(noise, &v->rank, &v->signal_number, &v->exit_code);
  cli_noise_free(noise);
  close(ends[1]);
  ssize_t n = read(ends[0], out, sizeof out - 1);
  close(ends[0]);
  out[n > 0 ? n : 0] = '\0';
  return g_strdup(out);
}

static void expect(const char *text, const char *out, verdict expected)
{
  for (size_t piece = 1; piece < 200; piece += 7) {
    verdict v;
    g_autofree char *got = filtered(text, piece, &v);
    assert_string_equal(got, out);
    assert_int_equal(v.rank, expected.rank);
    assert_int_equal(v.signal_number, expected.signal_number);
    assert_int_equal(v.exit_code, expected.exit_code);
  }
}

static void ordinary_text_passes(void **state)
{
  (void)state;
  expect("loss 2.1\n--- not a rule\nhalf a line", "loss 2.1\n--- not a rule\nhalf a line", (verdict){-1, 0, -1});
  expect(RULE "a table of a plugin\n" RULE "end\n", RULE "a table of a plugin\n" RULE "end\n", (verdict){-1, 0, -1});
  expect(RULE "never closed\n", RULE "never closed\n", (verdict){-1, 0, -1});
}

static void a_signal_is_read(void **state)
{
  (void)state;
  expect("x\n" RULE "mpirun noticed that process rank 1 with PID 4711 on node vm exited on signal 9 (Killed).\n" RULE, "x\n",
         (verdict){1, 9, -1});
  expect(RULE "prterun noticed that process rank 12 with PID 4711 on node vm exited on\nsignal 11 (Segmentation fault).\n" RULE "y\n",
         "y\n", (verdict){12, 11, -1});
}

static void an_exit_code_is_read(void **state)
{
  (void)state;
  expect(
      RULE
      "Primary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job has been aborted.\n" RULE
          RULE "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated. The first "
      "process to do so "
      "was:\n\n  Process name: [[17105,1],3]\n  Exit code:    2\n" RULE,
      "", (verdict){3, 0, 2});
  expect(RULE "prterun detected that one or more processes exited with non-zero status,\nthus causing the job to be terminated. The first "
              "process to do so "
              "was:\n\n   Process name: [prterun-vm-17@1,5]\n   Exit code:    4\n" RULE,
         "", (verdict){5, 0, 4});
  expect(
      RULE
      "mpirun has exited due to process rank 1 with PID 0 on\nnode vm exiting improperly. There are three reasons this could occur:\n" RULE,
      "", (verdict){1, 0, 0});
}

static void an_abort_is_read(void **state)
{
  (void)state;
  /* Rank 0 aborted because rank 1 had gone: the exit code is that of rank 1. */
  expect(RULE "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n" RULE RULE
              "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated. The first "
              "process to do so "
              "was:\n\n  Process name: [[17105,1],1]\n  Exit code:    7\n" RULE,
         "", (verdict){1, 0, 7});
  /* Open MPI 5 closes with a paragraph that has no code. */
  expect(RULE
         "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n  Proc: [[16860,1],1]\n  Errorcode: 3\n" RULE RULE
         "prterun has exited due to process rank 1 with PID 0 on node vm calling\n\"abort\". This may have caused other processes\n" RULE,
         "", (verdict){1, 0, 3});
  expect(RULE "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\nwith errorcode 3.\n\nNOTE: invoking MPI_ABORT causes Open "
              "MPI to kill all "
              "MPI processes.\n" RULE,
         "", (verdict){1, 0, 3});
  expect(RULE "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\n  Proc: [[1,1],2]\n  Errorcode: 4\n\nNOTE: invoking "
              "MPI_ABORT ...\n" RULE,
         "", (verdict){2, 0, 4});
}

/* Two ranks that abort: mpirun counts what it does not repeat, in lines outside of every paragraph. */
static void the_tally_of_repeated_messages_is_held_back(void **state)
{
  (void)state;
  expect("error E-X: said by a rank\n[vm:03080] 1 more process has sent help message help-mpi-api.txt / mpi-abort\n"
         "[vm:03080] Set MCA parameter \"orte_base_help_aggregate\" to 0 to see all help / error messages\nend\n",
         "error E-X: said by a rank\nend\n", (verdict){-1, 0, -1});
  expect("[host:1] 12 more processes have sent help message help-mpi-api.txt / mpi-abort\n", "", (verdict){-1, 0, -1});
  expect("[vm:17358] [[12080,0],0] ORTE_ERROR_LOG: Out of resource in file ../../../orte/util/show_help.c at line 507\n", "",
         (verdict){-1, 0, -1});
  expect("[a plugin] says something\n[half", "[a plugin] says something\n[half", (verdict){-1, 0, -1});
}

/* On a busy machine a paragraph comes in pieces with pauses between them; one that is never closed comes out in the end. */
static void a_pause_does_not_open_a_paragraph(void **state)
{
  (void)state;
  int ends[2], rank, signal_number, exit_code;
  char out[512] = "";
  assert_int_equal(pipe(ends), 0);
  cli_noise *noise = cli_noise_new(ends[1]);
  const char *const pieces[] = {RULE "mpirun noticed that process rank 1 with PID 4711 on node vm exited", " on signal 9 (Killed).\n",
                                RULE};
  for (int i = 0; i < 3; i++) {
    cli_noise_feed(noise, pieces[i], strlen(pieces[i]));
    for (int pauses = 0; pauses < 5; pauses++)
      cli_noise_pause(noise);
  }
  cli_noise_verdict(noise, &rank, &signal_number, &exit_code);
  assert_int_equal(rank, 1);
  assert_int_equal(signal_number, 9);
  cli_noise_feed(noise, RULE "x\n" RULE RULE "open\n", strlen(RULE "x\n" RULE RULE "open\n"));
  assert_int_equal(cli_noise_unknown(noise), 1);
  for (int pauses = 0; pauses < 20; pauses++)
    cli_noise_pause(noise);
  assert_true(read(ends[0], out, sizeof out - 1) > 0);
  assert_string_equal(out, RULE "x\n" RULE RULE "open\n");
  cli_noise_free(noise);
  close(ends[0]);
  close(ends[1]);
}

/* When mpirun loses its message, its exit code is believed only if a rank has said why. */
static void an_error_of_a_rank_is_noticed(void **state)
{
  (void)state;
  const char *const texts[] = {"error E-STEP-WEIGHT: no targets\n", "loss 2.1\n\033[1;31merror\033[0m E-X: y\n", "loss 2.1\n",
                               "no error E-X here\n"};
  for (int i = 0; i < 4; i++)
    for (size_t piece = 1; piece < 40; piece += 6) {
      int ends[2];
      assert_int_equal(pipe(ends), 0);
      cli_noise *noise = cli_noise_new(ends[1]);
      for (size_t at = 0; at < strlen(texts[i]); at += piece)
        cli_noise_feed(noise, texts[i] + at, MIN(piece, strlen(texts[i]) - at));
      assert_int_equal(cli_noise_rank_spoke(noise), i < 2);
      cli_noise_free(noise);
      close(ends[0]);
      close(ends[1]);
    }
}

/* Two survivors that reach their deadline together say the same; two errors of one rank, and two different ones, are two. */
static void what_one_rank_has_said_is_not_said_again(void **state)
{
  (void)state;
  const verdict none = {-1, 0, -1};
#define SAID(rank) "error E-COMM-TIMEOUT: no answer (rank " rank ")\n  where  ddp\n  why    a\n         b\n"
  expect(SAID("1") SAID("2") "loss 2.1\n  indented\n", SAID("1") "loss 2.1\n  indented\n", none);
  expect(SAID("1") SAID("2") SAID("0"), SAID("1"), none);
  expect(SAID("1") SAID("1"), SAID("1") SAID("1"), none);
  expect(SAID("1") "error E-X: other (rank 2)\n  why    c\n", SAID("1") "error E-X: other (rank 2)\n  why    c\n", none);
  expect("error E-X: a\n  why    b\nerror E-X: a\n  why    b\n", "error E-X: a\n  why    b\nerror E-X: a\n  why    b\n", none);
  expect("\033[1;31merror\033[0m E-X: a (rank 0)\n  why    b\n\033[1;31merror\033[0m E-X: a (rank 10)\n  why    b\nend\n",
         "\033[1;31merror\033[0m E-X: a (rank 0)\n  why    b\nend\n", none);
#undef SAID
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ordinary_text_passes),
      cmocka_unit_test(a_signal_is_read),
      cmocka_unit_test(an_exit_code_is_read),
      cmocka_unit_test(an_abort_is_read),
      cmocka_unit_test(a_pause_does_not_open_a_paragraph),
      cmocka_unit_test(an_error_of_a_rank_is_noticed),
      cmocka_unit_test(what_one_rank_has_said_is_not_said_again),
      cmocka_unit_test(the_tally_of_repeated_messages_is_held_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
