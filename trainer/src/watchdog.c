/* watchdog.c - see watchdog.h.
 *
 * MPI_Init and MPI_Finalize cannot be given a deadline and are not left by an error: a rank that is stopped or swapped out keeps all
 * others there for ever. So a timer ends the process; the launcher then ends the rest. The text is made before, since a signal handler
 * may not format one.
 */
#include "watchdog.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static char message[600]; /* a handler can reach nothing else */
static size_t message_length;
static int code;

static void on_alarm(int number)
{
  (void)number;
  ssize_t written = write(STDERR_FILENO, message, message_length);
  (void)written;
  _exit(code);
}

static void set_timer(double seconds)
{
  double whole = floor(seconds);
  struct itimerval timer = {.it_value = {(time_t)whole, (suseconds_t)((seconds - whole) * 1e6)}};
  setitimer(ITIMER_REAL, &timer, NULL);
}

void watchdog_begin(double seconds, const char *doing, int rank, int exit_code)
{
  struct sigaction action = {.sa_handler = on_alarm};
  int length = snprintf(message, sizeof message,
                        "error E-COMM-TIMEOUT: %s took longer than %g s (rank %d)\n"
                        "  where  %s\n"
                        "  why    another rank did not arrive: it is stopped, swapped out, or was never started\n"
                        "  next   look at the processes of the other ranks; a longer deadline: train.deadline\n",
                        doing, seconds, rank, doing);
  message_length = length < 0 ? 0 : (size_t)length < sizeof message ? (size_t)length : sizeof message - 1;
  code = exit_code;
  sigaction(SIGALRM, &action, NULL);
  set_timer(seconds);
}

void watchdog_end(void)
{
  set_timer(0.0);
}
