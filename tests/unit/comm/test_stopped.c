/* test_stopped.c - a rank that is stopped before or inside the blocking calls that make communicators and shared memory: the others give
 * up at the deadline, by name.
 *
 * The program starts itself under mpirun ("rank PLACE"), and every rank but the stopped one prints a line. The places inside MPI are found
 * by standing in front of MPI's own functions, which is what its profiling interface is for.
 */
#include "mpi_testing.h"
#include "comm/axes.h"

#include <signal.h>

enum { RANKS = 3, LAST = RANKS - 1 };
static const double deadline = 2.0;

static char *program;
static const char *place = ""; /* where the last rank stops */

static void stop_at(const char *here)
{
  if (strcmp(here, place) == 0)
    raise(SIGSTOP);
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *copy)
{
  stop_at("dup");
  return PMPI_Comm_dup(comm, copy);
}

int MPI_Comm_split(MPI_Comm comm, int colour, int key, MPI_Comm *part)
{
  stop_at("split");
  return PMPI_Comm_split(comm, colour, key, part);
}

int MPI_Win_allocate_shared(MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void *base, MPI_Win *win)
{
  stop_at("window");
  return PMPI_Win_allocate_shared(size, unit, info, comm, base, win);
}

int MPI_Win_free(MPI_Win *win)
{
  stop_at("free");
  return PMPI_Win_free(win);
}

/* A session's beginning. Returns how it ended; *text is the error. */
static ordo_status begin(struct ordo_context *context, char **text)
{
  const ordo_mpi_options options = {sizeof options, deadline, 0, 0};
  const ordo_axis_spec spec = {.name = "ddp", .kind = ORDO_AXIS_DATA, .size = RANKS};
  ordo_comm_provider *p = NULL;
  ordo_mesh *mesh = NULL;
  void *memory = NULL;
  stop_at("create");
  ordo_status status = ordo_comm_mpi_create(context, MPI_COMM_NULL, &options, &p);
  if (status == ORDO_OK) {
    stop_at("axes");
    status = ordo_axes_create(p, &spec, 1, context->errors, &mesh);
  }
  if (status == ORDO_OK) {
    stop_at("alloc");
    status = mesh->world->alloc(mesh->world->ctx, 20000, &memory);
  }
  if (status == ORDO_OK)
    status = mesh->world->free(mesh->world->ctx, memory);
  *text = g_strdup(ordo_errors_count(context->errors) ? ordo_errors_at(context->errors, 0)->what : "no error");
  ordo_axes_destroy(p, mesh);
  ordo_comm_provider_destroy(p);
  return status;
}

static int act(void)
{
  struct ordo_context context = test_context();
  g_autofree char *text = NULL;
  int provided, rank, pids[RANKS], pid = (int)getpid();
  MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Allgather(&pid, 1, MPI_INT, pids, 1, MPI_INT, MPI_COMM_WORLD);
  if (rank != LAST)
    place = "";
  gint64 start = g_get_monotonic_time();
  ordo_status status = begin(&context, &text);
  printf("rank %d status %d waited %.2f code %s text %s\n", rank, status, (double)(g_get_monotonic_time() - start) * 1e-6,
         last_code(&context), text);
  fflush(stdout);
  g_usleep(1500 * 1000); /* leave only after the others have seen what they must see */
  kill(pids[LAST], SIGKILL);
  ordo_errors_free(context.errors);
  _exit(0); /* MPI cannot be finalised without the stopped rank */
}

static void the_others_end(const char *where, const char *const words[])
{
  g_autofree char *output = NULL;
  const char *arguments[] = {
      "mpirun", "--allow-run-as-root", "--oversubscribe", "--enable-recovery", "--timeout", "60", "-n", "3", program, "rank", where, NULL};
  assert_true(g_spawn_sync(NULL, (char **)arguments, NULL, G_SPAWN_SEARCH_PATH | G_SPAWN_STDERR_TO_DEV_NULL, NULL, NULL, &output, NULL,
                           NULL, NULL));
  g_auto(GStrv) lines = g_strsplit(output, "\n", -1);
  int seen = 0, named = 0;
  for (int i = 0; lines[i]; i++) {
    int rank = 0, status = 0;
    double waited = 0;
    if (sscanf(lines[i], "rank %d status %d waited %lf", &rank, &status, &waited) != 3)
      continue;
    seen++;
    assert_int_equal(status, ORDO_E_TIMEOUT);
    assert_true(waited > 0.9 * deadline && waited < deadline + 2.0); /* a roll call takes a second */
    for (int w = 0; words[w]; w++)
      named += strstr(lines[i], words[w]) != NULL;
  }
  assert_int_equal(seen, LAST);
  assert_int_not_equal(named, 0); /* who came a moment later may only say that another one gave up */
}

static void before_and_inside_the_provider(void **state)
{
  (void)state;
  the_others_end("create", (const char *const[]){"code E-COMM-TIMEOUT text duplicating the communicator on 'provider'", NULL});
  the_others_end("dup", (const char *const[]){"code E-COMM-TIMEOUT text duplicating the communicator on 'provider'", NULL});
}

static void before_and_inside_the_axes(void **state)
{
  (void)state;
  the_others_end("axes", (const char *const[]){"code E-COMM-TIMEOUT text barrier on 'provider' did not finish within 2 s", NULL});
  the_others_end("split", (const char *const[]){"code E-COMM-TIMEOUT text splitting the world on 'world' did not finish", NULL});
}

static void before_and_inside_shared_memory(void **state)
{
  (void)state;
  the_others_end("alloc", (const char *const[]){"code E-COMM-TIMEOUT text all_reduce of 2 u64 on 'world' did not finish", NULL});
  the_others_end("window", (const char *const[]){"rank 2 is stopped (process", NULL});
  the_others_end("free", (const char *const[]){"text free on 'world' did not finish within 2 s: rank 2 is stopped (process", NULL});
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(before_and_inside_the_provider),
      cmocka_unit_test(before_and_inside_the_axes),
      cmocka_unit_test(before_and_inside_shared_memory),
  };
  program = argv[0];
  if (argc == 3 && strcmp(argv[1], "rank") == 0) {
    place = argv[2];
    return act();
  }
  return cmocka_run_group_tests(tests, NULL, NULL);
}
