/* mpi.c - the MPI provider: starts MPI if nobody did, splits the world, picks a transport for each communicator.
 *
 * Axes whose ranks share a node go through window.c, the others through mpi_transport.c. The caller's communicator is duplicated and
 * never used for traffic; errors on the duplicate return.
 * Guards against: finalising an MPI that the caller started; finalising when a rank is lost (it would wait for that rank for ever);
 * ranks entering a blocking MPI call alone (a barrier with a deadline stands before each).
 */
#include "../context.h"
#include "mpi_transport.h"
#include "window.h"
#include <ordo/mpi.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct mpi_hub {
  ordo_hub hub; /* first: provider.ctx */
  MPI_Comm world;
  gboolean owns_mpi, use_window;
  ordo_channel *gate; /* the barrier before blocking calls */
} mpi_hub;

static int number_in(const char *variable)
{
  const char *text = g_getenv(variable);
  return text ? (int)g_ascii_strtoll(text, NULL, 10) : 0;
}

/* Settings that MPI reads once, at its start. A value that is already set stays. Measured: ob1 starts in a third of the time on one
 * node, and without yielding a small all-reduce of more ranks than processors takes milliseconds. */
static void prepare_environment(void)
{
  int world = number_in("OMPI_COMM_WORLD_SIZE"), local = number_in("OMPI_COMM_WORLD_LOCAL_SIZE");
  if (world == local) {
    g_setenv("OMPI_MCA_pml", "ob1", FALSE);
    if (world == 0)
      g_setenv("OMPI_MCA_ess_singleton_isolated", "1", FALSE);
  }
  if (local > sysconf(_SC_NPROCESSORS_ONLN))
    g_setenv("OMPI_MCA_mpi_yield_when_idle", "1", FALSE);
}

static ordo_status unavailable(ordo_context *context, const char *why, const char *next)
{
  return context
             ? ordo_errors_push(context->errors, ORDO_E_UNAVAILABLE, "E-COMM-MPI", "MPI provider", why, next, "MPI cannot be used: %s", why)
             : ORDO_E_UNAVAILABLE;
}

static ordo_status start_mpi(ordo_context *context, gboolean *started)
{
  int initialized = 0, finalized = 0, provided = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  *started = FALSE;
  if (finalized)
    return unavailable(context, "it was finalised in this process", "Finalise MPI after the last session.");
  if (initialized)
    return ORDO_OK;
  prepare_environment();
  if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
    return unavailable(context, "MPI_Init failed", "Run `ordo doctor`; is mpirun of the same MPI?");
  *started = TRUE;
  return ORDO_OK;
}

/* More ranks on this node than processors? The same answer on all ranks of the node. */
static gboolean is_oversubscribed(MPI_Comm world)
{
  MPI_Comm node = MPI_COMM_NULL;
  int local = 1;
  if (MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node) == MPI_SUCCESS) {
    MPI_Comm_size(node, &local);
    MPI_Comm_free(&node);
  }
  return local > sysconf(_SC_NPROCESSORS_ONLN);
}

static ordo_status pass_gate(mpi_hub *m)
{
  return m->gate ? ordo_barrier(&m->gate->table) : ORDO_OK;
}

/* Takes over `comm`. */
static ordo_status make_channel(mpi_hub *m, MPI_Comm comm, const char *name, gboolean use_window, ordo_channel **channel)
{
  ordo_mpi_link *link = g_new0(ordo_mpi_link, 1);
  ordo_window *window = NULL;
  ordo_status status = ordo_mpi_link_init(link, &m->hub, comm, m->hub.provider.rank);
  if (status != ORDO_OK) {
    g_free(link);
    return status;
  }
  int rank = link->rank, size = link->size;
  if (size == 1) {
    ordo_mpi_link_clear(link, FALSE);
    g_free(link);
    *channel = ordo_channel_new(&m->hub, name, 0, 1, &ordo_local_transport, NULL);
  } else if (use_window && ordo_window_new(link, &window)) {
    g_free(link); /* its contents moved into the window */
    *channel = ordo_channel_new(&m->hub, name, rank, size, &ordo_window_transport, window);
  } else {
    *channel = ordo_channel_new(&m->hub, name, rank, size, &ordo_mpi_transport, link);
  }
  return ORDO_OK;
}

static ordo_status mpi_split(void *ctx, int32_t colour, int32_t key, int32_t size, const char *name, const ordo_comm **out)
{
  mpi_hub *m = ctx;
  MPI_Comm comm = MPI_COMM_NULL;
  ordo_channel *channel = NULL;
  int actual = 0;
  ordo_status status = m->hub.dead ? m->hub.dead : pass_gate(m);
  if (status != ORDO_OK)
    return status;
  int rc = MPI_Comm_split(m->world, colour, key, &comm);
  if (rc != MPI_SUCCESS)
    return ordo_mpi_failed(&m->hub, rc, "splitting the world");
  MPI_Comm_size(comm, &actual);
  if ((status = make_channel(m, comm, name, m->use_window, &channel)) != ORDO_OK)
    return status;
  if (actual != size) {
    ordo_channel_free(channel);
    return ordo_hub_fail(&m->hub, ORDO_E_INVALID, "E-MESH-SIZE", name, "all ranks must pass the same mesh",
                         "Compare the plans of the ranks.", "communicator '%s' has %d ranks, %d were expected", name, actual, size);
  }
  *out = &channel->table;
  return ORDO_OK;
}

/* Freeing waits for the peers inside MPI; a barrier with a deadline before it makes sure that they come. */
static void free_channel(mpi_hub *m, ordo_channel *channel)
{
  if (channel && channel->table.size > 1 && !m->hub.dead)
    (void)ordo_barrier(&channel->table);
  ordo_channel_free(channel);
}

static void mpi_release(void *ctx, const ordo_comm *comm)
{
  if (comm)
    free_channel(ctx, ordo_channel_of(comm));
}

static void mpi_destroy(void *ctx)
{
  mpi_hub *m = ctx;
  free_channel(m, m->gate);
  if (!m->hub.dead && m->world != MPI_COMM_NULL)
    MPI_Comm_free(&m->world);
  if (m->owns_mpi && !m->hub.dead)
    MPI_Finalize();
  ordo_hub_clear(&m->hub);
  g_free(m);
}

static ordo_status create(ordo_context *context, MPI_Comm comm, gboolean started, const ordo_mpi_options *options,
                          ordo_comm_provider **provider)
{
  mpi_hub *m = g_new0(mpi_hub, 1);
  MPI_Comm gate = MPI_COMM_NULL;
  int rank = 0, size = 1;
  ordo_hub_init(&m->hub, "mpi", 0, 1, context ? context->errors : NULL);
  m->owns_mpi = started;
  m->world = MPI_COMM_NULL;
  m->use_window = !(options && ORDO_HAS(options, ordo_mpi_options, no_shared_window) && options->no_shared_window);
  if (options && ORDO_HAS(options, ordo_mpi_options, deadline_seconds))
    m->hub.provider.deadline_seconds = options->deadline_seconds;
  m->hub.provider.split = mpi_split;
  m->hub.provider.release = mpi_release;
  m->hub.provider.destroy = mpi_destroy;
  int rc = MPI_Comm_dup(comm == MPI_COMM_NULL ? MPI_COMM_WORLD : comm, &m->world);
  if (rc != MPI_SUCCESS) {
    ordo_status failed = ordo_mpi_failed(&m->hub, rc, "duplicating the communicator");
    mpi_destroy(m);
    return failed;
  }
  MPI_Comm_set_errhandler(m->world, MPI_ERRORS_RETURN);
  MPI_Comm_rank(m->world, &rank);
  MPI_Comm_size(m->world, &size);
  m->hub.provider.rank = rank;
  m->hub.provider.size = size;
  m->hub.oversubscribed = is_oversubscribed(m->world);
  rc = MPI_Comm_dup(m->world, &gate);
  ordo_status status =
      rc == MPI_SUCCESS ? make_channel(m, gate, "provider", FALSE, &m->gate) : ordo_mpi_failed(&m->hub, rc, "duplicating the world");
  if (status != ORDO_OK) {
    mpi_destroy(m);
    return status;
  }
  *provider = &m->hub.provider;
  return ORDO_OK;
}

ordo_status ordo_comm_mpi_create(ordo_context *context, MPI_Comm comm, const ordo_mpi_options *options, ordo_comm_provider **provider)
{
  gboolean started = FALSE;
  *provider = NULL;
  if (context)
    ordo_errors_clear(context->errors);
  ordo_status status = start_mpi(context, &started);
  return status == ORDO_OK ? create(context, comm, started, options, provider) : status;
}

ordo_status ordo_comm_mpi_create_f(ordo_context *context, MPI_Fint comm, const ordo_mpi_options *options, ordo_comm_provider **provider)
{
  gboolean started = FALSE;
  *provider = NULL;
  if (context)
    ordo_errors_clear(context->errors);
  ordo_status status = start_mpi(context, &started); /* handles can be converted only after MPI has started */
  if (status != ORDO_OK)
    return status;
  MPI_Comm converted = MPI_Comm_f2c(comm);
  if (!converted) {
    if (started)
      MPI_Finalize();
    return unavailable(context, "the Fortran handle names no communicator", "Pass comm.py2f() of a live communicator.");
  }
  return create(context, converted, started, options, provider);
}
