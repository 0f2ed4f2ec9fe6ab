/* mpi.c - the MPI provider: starts MPI if nobody did, splits the world, picks a transport for each communicator.
 *
 * Axes whose ranks share a node go through window.c, the others through mpi_transport.c. The caller's communicator is duplicated and
 * never used for traffic; errors on the duplicate return.
 * Guards against: finalising an MPI that the caller started; finalising when a rank is lost (it would wait for that rank for ever);
 * ranks entering a blocking MPI call alone (a barrier with a deadline stands before each), and ranks that are stopped inside one
 * (mpi_call.c gives it up).
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

/* What a blocking call makes, for mpi_call.c. */
typedef struct birth {
  MPI_Comm parent, comm;
  gboolean split, use_window;
  int colour, key;
  int32_t world_rank;
  int local;           /* ranks on this node */
  ordo_mpi_link *link; /* null: there is a window instead */
  ordo_window *window;
} birth;

static birth *birth_new(MPI_Comm parent, int32_t world_rank, gboolean use_window)
{
  birth *b = g_new0(birth, 1);
  b->parent = parent;
  b->comm = MPI_COMM_NULL;
  b->world_rank = world_rank;
  b->use_window = use_window;
  return b;
}

/* The caller's communicator again, and how many of its ranks share this node. */
static int make_world(void *subject)
{
  birth *b = subject;
  MPI_Comm node = MPI_COMM_NULL;
  int rc = MPI_Comm_dup(b->parent, &b->comm);
  b->local = 1;
  if (rc != MPI_SUCCESS)
    return rc;
  MPI_Comm_set_errhandler(b->comm, MPI_ERRORS_RETURN);
  if (MPI_Comm_split_type(b->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node) == MPI_SUCCESS) {
    MPI_Comm_size(node, &b->local);
    MPI_Comm_free(&node);
  }
  return MPI_SUCCESS;
}

/* A part of the parent, or all of it, with what a channel needs. */
static int make_link(void *subject)
{
  birth *b = subject;
  int rc = b->split ? MPI_Comm_split(b->parent, b->colour, b->key, &b->comm) : MPI_Comm_dup(b->parent, &b->comm);
  if (rc != MPI_SUCCESS)
    return rc;
  b->link = g_new0(ordo_mpi_link, 1);
  if ((rc = ordo_mpi_link_init(b->link, b->comm, b->world_rank)) != MPI_SUCCESS)
    return rc;
  if (b->use_window && b->link->size > 1 && ordo_window_new(b->link, &b->window)) {
    g_free(b->link); /* its contents moved into the window */
    b->link = NULL;
  }
  return MPI_SUCCESS;
}

static ordo_status pass_gate(mpi_hub *m)
{
  return m->gate ? ordo_barrier(&m->gate->table) : ORDO_OK;
}

/* The peers that the provider knows already. */
static const ordo_mpi_link *gate_link(const mpi_hub *m)
{
  return m->gate && m->gate->table.size > 1 ? m->gate->transport_state : NULL;
}

/* Takes over `b`. */
static ordo_status make_channel(mpi_hub *m, birth *b, const char *name, const char *doing, ordo_channel **channel)
{
  ordo_status status = ordo_mpi_call(&m->hub, gate_link(m), name, doing, make_link, b);
  if (status != ORDO_OK)
    return status;
  const ordo_mpi_link *link = b->window ? &b->window->link : b->link;
  int rank = link->rank, size = link->size;
  if (b->window) {
    *channel = ordo_channel_new(&m->hub, name, rank, size, &ordo_window_transport, b->window);
  } else if (size > 1) {
    *channel = ordo_channel_new(&m->hub, name, rank, size, &ordo_mpi_transport, b->link);
  } else {
    ordo_mpi_link_clear(b->link, FALSE);
    g_free(b->link);
    *channel = ordo_channel_new(&m->hub, name, 0, 1, &ordo_local_transport, NULL);
  }
  g_free(b);
  return ORDO_OK;
}

static ordo_status mpi_split(void *ctx, int32_t colour, int32_t key, int32_t size, const char *name, const ordo_comm **out)
{
  mpi_hub *m = ctx;
  ordo_channel *channel = NULL;
  ordo_status status = m->hub.dead ? m->hub.dead : pass_gate(m);
  if (status != ORDO_OK)
    return status;
  birth *b = birth_new(m->world, m->hub.provider.rank, m->use_window);
  b->split = TRUE;
  b->colour = colour;
  b->key = key;
  if ((status = make_channel(m, b, name, "splitting the world", &channel)) != ORDO_OK)
    return status;
  int32_t actual = channel->table.size;
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
  birth *b = birth_new(comm == MPI_COMM_NULL ? MPI_COMM_WORLD : comm, 0, FALSE);
  ordo_status status = ordo_mpi_call(&m->hub, NULL, "provider", "duplicating the communicator", make_world, b);
  if (status != ORDO_OK) {
    mpi_destroy(m);
    return status;
  }
  m->world = b->comm;
  m->hub.oversubscribed = b->local > sysconf(_SC_NPROCESSORS_ONLN);
  g_free(b);
  MPI_Comm_rank(m->world, &rank);
  MPI_Comm_size(m->world, &size);
  m->hub.provider.rank = rank;
  m->hub.provider.size = size;
  status = make_channel(m, birth_new(m->world, rank, FALSE), "provider", "duplicating the world", &m->gate);
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
  if (!provider)
    return ORDO_E_INVALID;
  *provider = NULL;
  if (context)
    ordo_errors_clear(context->errors);
  ordo_status status = start_mpi(context, &started);
  return status == ORDO_OK ? create(context, comm, started, options, provider) : status;
}

ordo_status ordo_comm_mpi_create_f(ordo_context *context, MPI_Fint comm, const ordo_mpi_options *options, ordo_comm_provider **provider)
{
  gboolean started = FALSE;
  if (!provider)
    return ORDO_E_INVALID;
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
