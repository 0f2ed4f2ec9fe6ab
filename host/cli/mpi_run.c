/* mpi_run.c - runs a program on several ranks of this machine under mpirun, and stays its parent.
 *
 * mpirun is given what a newcomer would have to find out: root allowed, more ranks than cores allowed (and then yielding while they
 * wait), the point-to-point layer that starts fastest inside one node, no binding (measured to make no difference here, and
 * two jobs bound to the same first cores would halve each other). Whatever ends the job ends with one error of the house: which rank,
 * which signal or exit code, what became of the others. Nothing hangs: mpirun ends the other ranks when one is lost, and gets killed itself
 * if it does not.
 */
#include "cli.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAUSE_MS = 200, FINISH_SECONDS = 30, GRACE_SECONDS = 10 };

typedef struct mpi_job {
  pid_t mpirun;
  int errors;       /* read end of its standard error */
  int signals;      /* signalfd */
  int interrupted;  /* signal that we forwarded, 0 if none */
  gint64 next_push; /* when the next stronger signal is due, monotonic microseconds; 0: never */
  int pushes;       /* signals sent so far */
} mpi_job;

int cli_usable_cores(void)
{
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* MPI's own exchange inside a node wants about 4 MiB of shared memory per rank and does not start without; containers are often given less.
 * The two names are those of Open MPI 4 and 5. */
static void avoid_small_shared_memory(int ranks)
{
  const guint64 per_rank = 8 << 20;
  struct statvfs shm;
  if (statvfs("/dev/shm", &shm) == 0 && (guint64)shm.f_bavail * shm.f_frsize >= per_rank * (guint64)ranks)
    return;
  setenv("OMPI_MCA_btl_vader_backing_directory", g_get_tmp_dir(), 0);
  setenv("OMPI_MCA_btl_sm_backing_directory", g_get_tmp_dir(), 0);
}

/* The name of the program is given without a directory, as a shell does: from a path mpirun concludes where Open MPI is installed, and
 * from /bin/mpirun, which is /usr/bin/mpirun, it concludes wrongly. */
static GPtrArray *command_line(int ranks, const char *const *command)
{
  GPtrArray *args = g_ptr_array_new_with_free_func(g_free);
  const char *const always[] = {"--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", "^tcp,openib,uct,ofi,usnic"};
  gboolean crowded = ranks > cli_usable_cores();

  g_ptr_array_add(args, g_strdup("mpirun"));
  g_ptr_array_add(args, g_strdup("-n"));
  g_ptr_array_add(args, g_strdup_printf("%d", ranks));
  if (geteuid() == 0)
    g_ptr_array_add(args, g_strdup("--allow-run-as-root"));
  for (size_t i = 0; i < G_N_ELEMENTS(always); i++)
    g_ptr_array_add(args, g_strdup(always[i]));
  if (crowded) {
    g_ptr_array_add(args, g_strdup("--oversubscribe"));
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
  }
  avoid_small_shared_memory(ranks);
  for (; *command; command++)
    g_ptr_array_add(args, g_strdup(*command));
  g_ptr_array_add(args, NULL);
  return args;
}

/* In the child: a process group of its own, so that Ctrl-C reaches mpirun once and through us; it ends when we do. */
static void become_mpirun(const char *mpirun, GPtrArray *args, int errors, const sigset_t *old_mask, pid_t parent)
{
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent)
    _exit(CLI_FAILED);
  FILE *nothing = freopen("/dev/null", "r", stdin);
  if (!nothing || dup2(errors, STDERR_FILENO) < 0)
    _exit(CLI_FAILED);
  sigprocmask(SIG_SETMASK, old_mask, NULL);
  execv(mpirun, (char *const *)args->pdata);
  _exit(127);
}

/* Sends a signal to the ranks, which are the children of mpirun on this machine. FALSE if there are none. */
static gboolean signal_ranks(pid_t mpirun, int signal_number)
{
  g_autofree char *tasks = g_strdup_printf("/proc/%d/task", (int)mpirun);
  g_autoptr(GDir) directory = g_dir_open(tasks, 0, NULL);
  gboolean any = FALSE;
  const char *task;
  while (directory && (task = g_dir_read_name(directory))) {
    g_autofree char *path = g_build_filename(tasks, task, "children", NULL);
    g_autofree char *text = NULL;
    if (!g_file_get_contents(path, &text, NULL, NULL))
      continue;
    g_auto(GStrv) pids = g_strsplit(g_strstrip(text), " ", -1);
    for (char **pid = pids; *pid; pid++)
      if (atoi(*pid) > 1)
        any |= kill(atoi(*pid), signal_number) == 0;
  }
  return any;
}

/* mpirun kills its ranks about a second after it gets a signal, which is too soon to save a model. So the first signal goes to the ranks
 * themselves, which end after their step; the next one, or half a minute, ends mpirun, and then it is killed. */
static void push(mpi_job *job, int signal_number)
{
  int seconds = GRACE_SECONDS;
  job->pushes++;
  if (job->pushes == 1 && signal_ranks(job->mpirun, signal_number))
    seconds = FINISH_SECONDS;
  else if (job->pushes <= 2)
    kill(job->mpirun, SIGTERM);
  else
    killpg(job->mpirun, SIGKILL);
  job->next_push = g_get_monotonic_time() + seconds * G_USEC_PER_SEC;
}

static void take_signal(mpi_job *job)
{
  struct signalfd_siginfo info;
  if (read(job->signals, &info, sizeof info) != (ssize_t)sizeof info)
    return;
  job->interrupted = (int)info.ssi_signo;
  push(job, job->interrupted == SIGHUP ? SIGTERM : job->interrupted);
}

static void end_stubborn(mpi_job *job)
{
  if (job->next_push && g_get_monotonic_time() > job->next_push)
    push(job, SIGTERM);
}

/* Passes the error stream on until it ends; returns the wait status of mpirun. */
static int attend(mpi_job *job, cli_noise *noise)
{
  char buffer[4096];
  int status = 0;
  gboolean open = TRUE, gone = FALSE;

  while (open && !gone) {
    struct pollfd polled[] = {{.fd = job->errors, .events = POLLIN}, {.fd = job->signals, .events = POLLIN}};
    int n = poll(polled, G_N_ELEMENTS(polled), PAUSE_MS);
    if (n == 0)
      cli_noise_pause(noise);
    if (n > 0 && polled[1].revents)
      take_signal(job);
    if (n > 0 && polled[0].revents) {
      ssize_t got = read(job->errors, buffer, sizeof buffer);
      if (got > 0)
        cli_noise_feed(noise, buffer, (gsize)got);
      else if (got == 0 || errno != EINTR)
        open = FALSE;
    }
    end_stubborn(job);
    /* A rank that was left behind may keep the stream open: once mpirun has ended and the stream is quiet, nothing more is awaited. */
    if (n == 0 && waitpid(job->mpirun, &status, WNOHANG) == job->mpirun)
      gone = TRUE;
  }
  while (!gone) {
    pid_t ended = waitpid(job->mpirun, &status, WNOHANG);
    gone = ended == job->mpirun || (ended < 0 && errno != EINTR);
    if (gone)
      break;
    struct pollfd polled = {.fd = job->signals, .events = POLLIN};
    if (poll(&polled, 1, PAUSE_MS) > 0)
      take_signal(job);
    end_stubborn(job);
  }
  cli_noise_flush(noise);
  return status;
}

int cli_mpi_run(ordo_cli *cli, int ranks, const char *const *command)
{
  mpi_job job = {0};
  g_autofree char *mpirun = g_find_program_in_path("mpirun");
  g_autoptr(GPtrArray) args = NULL;
  int ends[2], status = 0;
  sigset_t mask, old_mask;
  pid_t parent = getpid();

  if (!mpirun) {
    cli_error(cli, "E-RUN-LAUNCH", "mpirun was not found", "PATH", "several ranks are started with Open MPI's mpirun",
              "install it (./dev setup, or the package openmpi-bin), or use --ranks 1");
    return CLI_FAILED;
  }
  args = command_line(ranks, command);
  sigemptyset(&mask);
  sigaddset(&mask, SIGINT);
  sigaddset(&mask, SIGTERM);
  sigaddset(&mask, SIGHUP);
  sigprocmask(SIG_BLOCK, &mask, &old_mask);
  job.signals = signalfd(-1, &mask, SFD_CLOEXEC);
  if (job.signals < 0 || pipe(ends) != 0) {
    cli_error(cli, "E-RUN-LAUNCH", "mpirun could not be started", NULL, g_strerror(errno), NULL);
    return CLI_FAILED;
  }
  setenv("ORDO_STDOUT_TTY", isatty(STDOUT_FILENO) ? "1" : "0", 1); /* mpirun gives every rank a terminal of its own */
  fflush(stdout);
  job.errors = ends[0];
  job.mpirun = fork();
  if (job.mpirun == 0) {
    close(ends[0]);
    become_mpirun(mpirun, args, ends[1], &old_mask, parent);
  }
  close(ends[1]);
  if (job.mpirun < 0) {
    cli_error(cli, "E-RUN-LAUNCH", "mpirun could not be started", NULL, g_strerror(errno), NULL);
    close(ends[0]);
    return CLI_FAILED;
  }
  setpgid(job.mpirun, job.mpirun);
  cli_noise *noise = cli_noise_new(STDERR_FILENO);
  status = attend(&job, noise);
  int code = cli_mpi_verdict(cli, noise, ranks, job.interrupted, status);
  cli_noise_free(noise);
  close(job.errors);
  close(job.signals);
  sigprocmask(SIG_SETMASK, &old_mask, NULL);
  return code;
}
