/* test_failure.c - ranks that disagree, come late or die: the others end with the right error, in time, and nothing blocks afterwards.
 *
 * Such a run cannot report through its own exit code, because mpirun has its own view of ranks that leave without MPI_Finalize. So this
 * program starts itself under mpirun ("rank SCENARIO TRANSPORT"), every rank prints one line, and the tests read the lines.
 */
#include "mpi_testing.h"

#include <signal.h>
#include <time.h>

enum { RANKS = 3, LAST = RANKS - 1 };

static char *program;

static double seconds(void)
{
  return (double)g_get_monotonic_time() * 1e-6;
}

static void sleep_seconds(int n)
{
  struct timespec pause = {n, 0};
  nanosleep(&pause, NULL);
}

/* What this rank does instead of the all-reduce that the others start. */
static ordo_status differ(const ordo_comm *comm, const char *scenario, float *buffer)
{
  if (strcmp(scenario, "kind") == 0)
    return ordo_broadcast(comm, buffer, 5000, ORDO_F32, 0);
  if (strcmp(scenario, "count") == 0)
    return ordo_all_reduce(comm, buffer, 4999, ORDO_F32, ORDO_SUM, 1.0);
  if (strcmp(scenario, "dtype") == 0)
    return ordo_all_reduce(comm, buffer, 5000, ORDO_I32, ORDO_SUM, 1.0);
  if (strcmp(scenario, "op") == 0)
    return ordo_all_reduce(comm, buffer, 5000, ORDO_F32, ORDO_MAX, 1.0);
  if (strcmp(scenario, "killed") == 0)
    raise(SIGKILL);
  sleep_seconds(3); /* "late" */
  return ordo_all_reduce(comm, buffer, 5000, ORDO_F32, ORDO_SUM, 1.0);
}

static int act(const char *scenario, gboolean plain)
{
  struct ordo_context context = test_context();
  ordo_mpi_options options = {sizeof options, strcmp(scenario, "late") == 0 ? 1.0 : 20.0, plain ? 1u : 0u, 0};
  ordo_comm_provider *p = NULL;
  const ordo_comm *comm = NULL;
  ordo_request *outstanding = NULL, *never = NULL;
  void *memory = NULL;
  static float second[5000];
  if (ordo_comm_mpi_create(&context, MPI_COMM_NULL, &options, &p) != ORDO_OK ||
      p->split(p->ctx, 0, p->rank, p->size, "ddp", &comm) != ORDO_OK || comm->alloc(comm->ctx, 20000, &memory) != ORDO_OK)
    return 1;
  double begin = seconds();
  ordo_status status;
  if (p->rank == LAST) {
    status = differ(comm, scenario, memory);
  } else {
    ordo_collective c = ordo_collective_make(ORDO_ALL_REDUCE, memory, memory, 5000, ORDO_F32), next = c;
    ordo_request *request = NULL;
    c.label = "bucket 7";
    next.send = next.recv = second;
    status = comm->start(comm->ctx, &c, &request);
    if (status == ORDO_OK)
      status = comm->start(comm->ctx, &next, &outstanding);
    if (request)
      status = comm->wait(comm->ctx, request);
  }
  double waited = seconds() - begin;
  g_autofree char *text = g_strdup(p->error_text(p->ctx)), *report = p->report(p->ctx);
  begin = seconds();
  /* Dead is dead: each call gives the same status at once. */
  gboolean same =
      comm->start(comm->ctx, &(ordo_collective){.struct_size = sizeof(ordo_collective), .kind = ORDO_BARRIER}, &never) == status && !never;
  same = same && (!outstanding || comm->wait(comm->ctx, outstanding) == status);
  same = same && comm->progress(comm->ctx) == status && comm->free(comm->ctx, memory) == status;
  gboolean in_report = strstr(report, "failed") != NULL || strstr(report, "started") != NULL;
  int rank = p->rank;
  p->release(p->ctx, comm);
  ordo_comm_provider_destroy(p);
  printf("rank %d status %d waited %.2f after %.2f same %d report %d text %s\n", rank, status, waited, seconds() - begin, same, in_report,
         text);
  fflush(stdout);
  sleep_seconds(strcmp(scenario, "late") == 0 && rank != LAST ? 4 : 1); /* leave only after the others have seen what they must see */
  ordo_errors_free(context.errors);
  return 0;
}

typedef struct outcome {
  int status, same, report;
  double waited, after;
  char *text;
} outcome;

/* Fills outcomes of ranks that printed a line; status stays -1 for others. */
static void play(const char *scenario, gboolean plain, outcome outcomes[RANKS])
{
  g_autofree char *output = NULL;
  char *arguments[] = {(char *)"mpirun",
                       (char *)"--allow-run-as-root",
                       (char *)"--oversubscribe",
                       (char *)"--enable-recovery",
                       (char *)"-n",
                       (char *)"3",
                       program,
                       (char *)"rank",
                       (char *)scenario,
                       (char *)(plain ? "plain" : "window"),
                       NULL};
  assert_true(g_spawn_sync(NULL, arguments, NULL, G_SPAWN_SEARCH_PATH | G_SPAWN_STDERR_TO_DEV_NULL, NULL, NULL, &output, NULL, NULL, NULL));
  g_auto(GStrv) lines = g_strsplit(output, "\n", -1);
  for (int i = 0; i < RANKS; i++)
    outcomes[i] = (outcome){.status = -1};
  for (int i = 0; lines[i]; i++) {
    int rank = 0;
    outcome o = {0};
    if (sscanf(lines[i], "rank %d status %d waited %lf after %lf same %d report %d", &rank, &o.status, &o.waited, &o.after, &o.same,
               &o.report) == 6) {
      o.text = g_strdup(strstr(lines[i], "text ") + 5);
      outcomes[rank] = o;
    }
  }
}

static void forget(outcome outcomes[RANKS])
{
  for (int i = 0; i < RANKS; i++)
    g_free(outcomes[i].text);
}

static void assert_dead(const outcome *o, int status)
{
  assert_int_equal(o->status, status);
  assert_int_equal(o->same, 1);
  assert_int_equal(o->report, 1);
  assert_true(o->after < 1.0);
}

static void different_collectives_are_named(void **state)
{
  static const struct {
    const char *scenario, *theirs;
  } rows[] = {{"kind", "broadcast of 5000 f32 from 0"},
              {"count", "all_reduce sum of 4999 f32"},
              {"dtype", "all_reduce sum of 5000 i32"},
              {"op", "all_reduce max of 5000 f32"}};
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(rows); i++)
    for (int plain = 0; plain < 2; plain++) {
      outcome outcomes[RANKS];
      play(rows[i].scenario, plain, outcomes);
      for (int rank = 0; rank < RANKS; rank++) {
        assert_dead(&outcomes[rank], ORDO_E_MISMATCH);
        assert_contains(outcomes[rank].text, "all_reduce sum of 5000 f32 for 'bucket 7'");
        assert_contains(outcomes[rank].text, rows[i].theirs);
        assert_contains(outcomes[rank].text, "rank 2 started");
        assert_true(outcomes[rank].waited < 3.0);
      }
      forget(outcomes);
    }
}

static void a_late_rank_is_named(void **state)
{
  (void)state;
  for (int plain = 0; plain < 2; plain++) {
    outcome outcomes[RANKS];
    play("late", plain, outcomes);
    for (int rank = 0; rank < LAST; rank++) {
      assert_dead(&outcomes[rank], ORDO_E_TIMEOUT);
      assert_true(outcomes[rank].waited > 0.9 && outcomes[rank].waited < 2.5);
      if (strstr(outcomes[rank].text, "gave up") == NULL) { /* the other early rank may have been a moment earlier */
        assert_contains(outcomes[rank].text, "all_reduce of 5000 f32 for 'bucket 7' on 'ddp' did not finish within 1 s");
        assert_contains(outcomes[rank].text, "rank 2 did not arrive");
      }
    }
    assert_dead(&outcomes[LAST], ORDO_E_TIMEOUT);
    assert_true(outcomes[LAST].waited < 7.0);
    forget(outcomes);
  }
}

static void a_killed_rank_is_named(void **state)
{
  (void)state;
  for (int plain = 0; plain < 2; plain++) {
    outcome outcomes[RANKS];
    gboolean named = FALSE;
    play("killed", plain, outcomes);
    assert_int_equal(outcomes[LAST].status, -1);
    for (int rank = 0; rank < LAST; rank++) {
      assert_dead(&outcomes[rank], ORDO_E_PEER_LOST);
      assert_true(outcomes[rank].waited < 2.0);
      named = named || strstr(outcomes[rank].text, "rank 2 ended") != NULL;
    }
    assert_true(named);
    forget(outcomes);
  }
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(different_collectives_are_named),
      cmocka_unit_test(a_late_rank_is_named),
      cmocka_unit_test(a_killed_rank_is_named),
  };
  if (argc == 4 && strcmp(argv[1], "rank") == 0)
    return act(argv[2], strcmp(argv[3], "plain") == 0);
  program = argv[0];
  return cmocka_run_group_tests(tests, NULL, NULL);
}
