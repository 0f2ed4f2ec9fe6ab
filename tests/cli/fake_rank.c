/* fake_rank.c - stands for ordo-train in the tests of the launcher: an MPI program whose ranks end as they are told.
 *
 * Words: fine | exit CODE | abort CODE | leave CODE | desert | raise SIGNAL | wait FILE | finish FILE | orphan (ends its mpirun). Rank 1
 * (rank 0 if alone) misbehaves, the others wait for it.
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *variable(const char *name)
{
  const char *value = getenv(name);
  return value ? value : "(unset)";
}

static void note_pid(const char *path)
{
  char part[4096];
  snprintf(part, sizeof part, "%s.part", path);
  FILE *file = fopen(part, "w");
  if (!file)
    exit(1);
  fprintf(file, "%d\n", (int)getpid());
  fclose(file);
  rename(part, path);
}

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
  stopped = number;
}

int main(int argc, char **argv)
{
  int rank = 0, size = 1;
  const char *what = argc > 1 ? argv[1] : "fine";
  int number = argc > 2 ? atoi(argv[2]) : 0;

  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (!strcmp(what, "finish") || !strcmp(what, "orphan")) {
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
  }
  printf("rank %d of %d\n", rank, size);
  if (rank == 0) {
    printf("OPENBLAS_CORETYPE=%s OPENBLAS_NUM_THREADS=%s OMP_NUM_THREADS=%s\nORDO_COLOUR_ERRORS=%s\nwords", variable("OPENBLAS_CORETYPE"),
           variable("OPENBLAS_NUM_THREADS"), variable("OMP_NUM_THREADS"), variable("ORDO_COLOUR_ERRORS"));
    for (int i = 1; i < argc; i++)
      printf(" %s", argv[i]);
    printf("\n");
  }
  fflush(stdout);
  if (rank == (size > 1)) {
    if (!strcmp(what, "exit")) { /* like the real programs, it says why in the form of the house: mpirun sometimes loses its own message */
      fprintf(stderr, "error E-TEST: ending with %d\n", number);
      exit(number);
    } else if (!strcmp(what, "abort")) {
      fprintf(stderr, "error E-TEST: ending with %d\n", number);
      MPI_Abort(MPI_COMM_WORLD, number);
    } else if (!strcmp(what, "desert") || !strcmp(what, "leave")) { /* without a word */
      _exit(number);
    } else if (!strcmp(what, "raise")) {
      signal(number, SIG_DFL);
      raise(number);
    } else if (!strcmp(what, "wait")) {
      note_pid(argv[2]);
      pause();
    } else if (!strcmp(what, "finish")) {
      note_pid(argv[2]);
    } else if (!strcmp(what, "orphan")) {
      kill(getppid(), SIGTERM);
    }
  }
  while (!strcmp(what, "orphan") && !stopped)
    usleep(10000);
  if (!strcmp(what, "finish")) { /* a step that takes longer than mpirun would wait */
    while (!stopped)
      usleep(10000);
    sleep(3);
    printf("saved by rank %d\n", rank);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  return 0;
}
