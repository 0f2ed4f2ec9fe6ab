/* mpi_verdict.c - how a run on several ranks ended: its exit code, and the one error that says it.
 *
 * mpirun's own exit code is that of the first rank which failed, or 128 + signal, or that of its own failure to start; its messages
 * (mpi_noise.c) tell these apart. A rank that ends with an exit code of Ordo has said why, and nothing is added; but
 * a library or plugin may call exit with the same code, and then nobody has.
 */
#include "cli.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

static int rank_lost(const ordo_cli *cli, int ranks, int rank, int signal_number)
{
  g_autofree char *what = g_strdup_printf("rank %d was ended by signal %d (%s)", rank, signal_number, strsignal(signal_number));
  g_autofree char *where = g_strdup_printf("rank %d of %d on this machine", rank, ranks);
  const char *why = signal_number == SIGKILL   ? "somebody killed it, or the kernel did because memory ran out (dmesg | grep -i oom)"
                    : signal_number == SIGTERM ? "somebody asked it to end"
                                               : "the program or a plugin crashed";
  const char *next = signal_number == SIGKILL || signal_number == SIGTERM
                         ? "start again; if memory ran out, use fewer ranks, a smaller batch or a sharding strategy"
                         : "run one rank under a debugger: ordo train with --ranks 1, or ulimit -c unlimited and start again";
  g_autofree char *full =
      g_strdup_printf("%s\nthe other ranks cannot go on without it and were ended; files already written are complete", why);
  cli_error(cli, "E-RUN-RANK-LOST", what, where, full, next);
  return CLI_FAILED;
}

static int stopped(const ordo_cli *cli, int signal_number)
{
  g_autofree char *what = g_strdup_printf("the run was stopped by signal %d (%s)", signal_number, strsignal(signal_number));
  cli_error(cli, "E-RUN-STOPPED", what, NULL, "the ranks were told to end, did not do so by themselves, and were killed",
            "start again; files already written are complete");
  return CLI_FAILED;
}

/* Without a message of its own mpirun ends after a signal only; when it cannot start the ranks it says so. */
static int mpirun_stopped(const ordo_cli *cli)
{
  cli_error(cli, "E-RUN-STOPPED", "mpirun was told to end", NULL,
            "somebody sent a signal to it, and not to ordo\nthe ranks ended after their step; what they saved stands above",
            "to stop a run, send SIGINT or SIGTERM to ordo itself");
  return CLI_FAILED;
}

/* The exit code of the job. */
int cli_mpi_verdict(const ordo_cli *cli, const cli_noise *noise, int ranks, int interrupted, int status)
{
  int rank, signal_number, exit_code;
  cli_noise_verdict(noise, &rank, &signal_number, &exit_code);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
    return CLI_DONE;
  if (interrupted && !signal_number && exit_code > 0 && exit_code <= CLI_REFUSED)
    return exit_code; /* the ranks ended in their own way after the signal, and have said how */
  if (interrupted)
    return stopped(cli, interrupted);
  if (signal_number)
    return rank_lost(cli, ranks, rank, signal_number);
  int code = exit_code >= 0 ? exit_code : WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code > 0 && code <= CLI_REFUSED && cli_noise_rank_spoke(noise))
    return code; /* the rank has said why; mpirun sometimes loses its own message about that */
  if (exit_code >= 0 && exit_code <= 128) {
    g_autofree char *what = g_strdup_printf("rank %d left the run with exit code %d", rank, exit_code);
    cli_error(cli, "E-RUN-RANK-LOST", what, NULL,
              "the program did not end the run in its own way: a library or plugin called exit\nthe other ranks were ended",
              "ordo list shows which plugins are in use; start again without the newest");
    return CLI_FAILED;
  }
  if (code > 128 && code < 160)
    return rank_lost(cli, ranks, rank, code - 128);
  if (code == CLI_FAILED && cli_noise_unknown(noise) == 0)
    return mpirun_stopped(cli);
  g_autofree char *why =
      code >= 0 ? g_strdup_printf("mpirun ended with exit code %d; its message stands above", code) : g_strdup("mpirun was killed");
  cli_error(cli, "E-RUN-LAUNCH", "the ranks could not be run", NULL, why, "ordo doctor shows whether MPI works here");
  return CLI_FAILED;
}
