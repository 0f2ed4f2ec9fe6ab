/* mpi_call.c - MPI calls that block, given up at the deadline.
 *
 * Communicators and windows are made and freed by calls without a nonblocking form, and a barrier before them does not help against a rank
 * that is stopped inside. So such a call has a thread of its own, while the thread that wants it waits: it looks after the peers, counts
 * the time, and makes no MPI call meanwhile (MPI_THREAD_SERIALIZED allows that; an MPI that was started with less is called directly).
 * After a timeout the thread stays in MPI with what it works on; the hub is dead and enters MPI no more.
 * Guards against: one rank that keeps all others in MPI_Comm_split for ever. Not for MPI_Init and MPI_Finalize, which belong to the main
 * thread of a program.
 */
#include "mpi_transport.h"

enum { LOOK_MICROSECONDS = 5000 };

typedef struct call {
  ordo_mpi_work work;
  void *subject;
  GMutex lock;
  GCond ended;
  gboolean done; /* under the lock, like rc */
  int rc;
} call;

static void forget_call(void *data)
{
  call *c = data;
  g_mutex_clear(&c->lock);
  g_cond_clear(&c->ended);
}

static void *run_call(void *data)
{
  call *c = data;
  int rc = c->work(c->subject);
  g_mutex_lock(&c->lock);
  c->rc = rc;
  c->done = TRUE;
  g_cond_signal(&c->ended);
  g_mutex_unlock(&c->lock);
  g_atomic_rc_box_release_full(c, forget_call);
  return NULL;
}

/* Null: this MPI was started for one thread, or the system has none left. */
static call *start_call(ordo_mpi_work work, void *subject)
{
  int provided = MPI_THREAD_SINGLE;
  MPI_Query_thread(&provided);
  if (provided < MPI_THREAD_SERIALIZED)
    return NULL;
  call *c = g_atomic_rc_box_new0(call);
  c->work = work;
  c->subject = subject;
  g_mutex_init(&c->lock);
  g_cond_init(&c->ended);
  GThread *thread = g_thread_try_new("ordo-mpi", run_call, g_atomic_rc_box_acquire(c), NULL);
  if (thread) {
    g_thread_unref(thread);
    return c;
  }
  g_atomic_rc_box_release(c);
  g_atomic_rc_box_release_full(c, forget_call);
  return NULL;
}

/* TRUE when the call has ended by `end`. */
static gboolean wait_until(call *c, gint64 end)
{
  g_mutex_lock(&c->lock);
  while (!c->done && g_cond_wait_until(&c->ended, &c->lock, end))
    ;
  gboolean done = c->done;
  g_mutex_unlock(&c->lock);
  return done;
}

static ordo_status time_out(ordo_hub *hub, const ordo_mpi_link *link, const char *where, const char *doing, double seconds)
{
  g_autofree char *stopped = link ? ordo_mpi_stopped(link) : NULL;
  return ordo_hub_fail(hub, ORDO_E_TIMEOUT, "E-COMM-TIMEOUT", where, "all ranks take part, and one did not come, or not back",
                       "Look at the processes of the other ranks; a longer deadline: train.deadline.",
                       "%s on '%s' did not finish within %g s: %s", doing, where, seconds,
                       stopped ? stopped : "another rank is stopped, swapped out, or was never started");
}

ordo_status ordo_mpi_call(ordo_hub *hub, const ordo_mpi_link *link, const char *where, const char *doing, ordo_mpi_work work, void *subject)
{
  double seconds = ordo_hub_deadline(hub);
  gint64 end = g_get_monotonic_time() + (gint64)(seconds * 1e6);
  ordo_status status = ORDO_OK;
  if (hub->dead)
    return hub->dead;
  call *c = start_call(work, subject);
  int rc = c ? MPI_SUCCESS : work(subject);
  while (c && status == ORDO_OK && !wait_until(c, MIN(end, g_get_monotonic_time() + LOOK_MICROSECONDS))) {
    status = link ? ordo_mpi_watch(hub, link, where) : ORDO_OK;
    if (status == ORDO_OK && g_get_monotonic_time() >= end)
      status = time_out(hub, link, where, doing, seconds);
  }
  if (c && status == ORDO_OK)
    rc = c->rc;
  if (c)
    g_atomic_rc_box_release_full(c, forget_call);
  return status == ORDO_OK && rc != MPI_SUCCESS ? ordo_mpi_failed(hub, rc, doing) : status;
}
