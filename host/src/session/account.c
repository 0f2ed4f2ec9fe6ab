/* account.c - the mesh as plugins see it: the provider's communicators, with their memory on the session's account.
 *
 * Buckets and shards live in memory of the communicator (a window shared by the ranks of a node), so "how many bytes does this job need"
 * would miss the largest blocks of a data-parallel run. Each communicator is wrapped in a table that forwards every call and counts alloc
 * and free under ORDO_MEM_COMM. It works for any provider, the embedder's included, and costs one more call per collective.
 */
#include "session.h"

typedef struct counted_comm {
  ordo_comm table; /* what plugins call */
  const ordo_comm *inner;
  ordo_memory *memory;
  GHashTable *blocks; /* address -> bytes */
} counted_comm;

struct ordo_account {
  ordo_mesh mesh;
  ordo_axis axes[ORDO_MAX_AXES];
  const ordo_axis *pointers[ORDO_MAX_AXES];
  GPtrArray *comms; /* counted_comm */
  GArray *parts;    /* account_part */
};

/* A communicator of consecutive ranks of an axis, made for a plugin. */
typedef struct account_part {
  uint32_t axis;
  int32_t size;
  const ordo_comm *inner, *outer;
} account_part;

static ordo_status counted_start(void *ctx, const ordo_collective *c, ordo_request **request)
{
  const ordo_comm *inner = ((const counted_comm *)ctx)->inner;
  return inner->start(inner->ctx, c, request);
}

static ordo_status counted_test(void *ctx, ordo_request *request, int32_t *done)
{
  const ordo_comm *inner = ((const counted_comm *)ctx)->inner;
  return inner->test(inner->ctx, request, done);
}

static ordo_status counted_wait(void *ctx, ordo_request *request)
{
  const ordo_comm *inner = ((const counted_comm *)ctx)->inner;
  return inner->wait(inner->ctx, request);
}

static ordo_status counted_progress(void *ctx)
{
  const ordo_comm *inner = ((const counted_comm *)ctx)->inner;
  return inner->progress(inner->ctx);
}

static ordo_status counted_alloc(void *ctx, size_t bytes, void **memory)
{
  counted_comm *comm = ctx;
  ordo_status status = comm->inner->alloc(comm->inner->ctx, bytes, memory);
  if (status != ORDO_OK || !*memory)
    return status;
  g_hash_table_insert(comm->blocks, *memory, GSIZE_TO_POINTER(bytes));
  ordo_memory_count(comm->memory, (int64_t)bytes, ORDO_MEM_COMM);
  return ORDO_OK;
}

static ordo_status counted_free(void *ctx, void *memory)
{
  counted_comm *comm = ctx;
  gpointer bytes = g_hash_table_lookup(comm->blocks, memory);
  if (g_hash_table_remove(comm->blocks, memory))
    ordo_memory_count(comm->memory, -(int64_t)GPOINTER_TO_SIZE(bytes), ORDO_MEM_COMM);
  return comm->inner->free(comm->inner->ctx, memory);
}

static void counted_stats(void *ctx, ordo_comm_stats *stats)
{
  const ordo_comm *inner = ((const counted_comm *)ctx)->inner;
  inner->stats(inner->ctx, stats);
}

static void free_comm(gpointer data)
{
  counted_comm *comm = data;
  g_hash_table_unref(comm->blocks);
  g_free(comm);
}

/* One wrapper per communicator: two axes that share one still do. */
static const ordo_comm *wrap(ordo_account *account, const ordo_comm *inner, ordo_memory *memory)
{
  counted_comm *comm;
  for (guint i = 0; i < account->comms->len; i++) {
    comm = g_ptr_array_index(account->comms, i);
    if (comm->inner == inner)
      return &comm->table;
  }
  comm = g_new0(counted_comm, 1);
  comm->inner = inner;
  comm->memory = memory;
  comm->blocks = g_hash_table_new(NULL, NULL);
  comm->table = (ordo_comm){.struct_size = sizeof comm->table,
                            .ctx = comm,
                            .rank = inner->rank,
                            .size = inner->size,
                            .start = counted_start,
                            .test = counted_test,
                            .wait = counted_wait,
                            .progress = counted_progress,
                            .alloc = counted_alloc,
                            .free = counted_free,
                            .stats = counted_stats,
                            .features = ORDO_HAS(inner, ordo_comm, features) ? inner->features : 0};
  g_ptr_array_add(account->comms, comm);
  return &comm->table;
}

ordo_account *ordo_account_new(const ordo_mesh *mesh, ordo_memory *memory)
{
  ordo_account *account = g_new0(ordo_account, 1);
  account->comms = g_ptr_array_new_with_free_func(free_comm);
  account->parts = g_array_new(FALSE, FALSE, sizeof(account_part));
  account->mesh = *mesh;
  account->mesh.axes = account->pointers;
  account->mesh.world = wrap(account, mesh->world, memory);
  account->mesh.data = wrap(account, mesh->data, memory);
  for (uint32_t a = 0; a < mesh->n_axes; a++) {
    account->axes[a] = *mesh->axes[a];
    account->axes[a].comm = wrap(account, mesh->axes[a]->comm, memory);
    account->pointers[a] = &account->axes[a];
  }
  return account;
}

ordo_status ordo_account_part(ordo_account *account, const ordo_comm_provider *provider, ordo_memory *memory, uint32_t index, int32_t size,
                              const ordo_comm **result)
{
  const ordo_axis *axis = account->pointers[index];
  int32_t inner = 1, place = axis->coordinate % size;
  account_part part = {index, size, NULL, NULL};
  ordo_status status;
  for (guint i = 0; i < account->parts->len; i++) {
    const account_part *known = &g_array_index(account->parts, account_part, i);
    if (known->axis == index && known->size == size) {
      *result = known->outer;
      return ORDO_OK;
    }
  }
  for (uint32_t a = index + 1; a < account->mesh.n_axes; a++)
    inner *= account->pointers[a]->size;
  status = provider->split(provider->ctx, account->mesh.rank - place * inner, place, size, axis->name, &part.inner);
  if (status != ORDO_OK)
    return status;
  part.outer = *result = wrap(account, part.inner, memory);
  g_array_append_val(account->parts, part);
  return ORDO_OK;
}

void ordo_account_part_stats(const ordo_account *account, uint32_t axis, void (*add)(const ordo_comm *comm, ordo_comm_stats *total),
                             ordo_comm_stats *total)
{
  for (guint i = 0; i < account->parts->len; i++)
    if (g_array_index(account->parts, account_part, i).axis == axis)
      add(g_array_index(account->parts, account_part, i).outer, total);
}

void ordo_account_release_parts(ordo_account *account, const ordo_comm_provider *provider)
{
  for (guint i = account ? account->parts->len : 0; i-- > 0;)
    provider->release(provider->ctx, g_array_index(account->parts, account_part, i).inner);
  if (account)
    g_array_set_size(account->parts, 0);
}

const ordo_mesh *ordo_account_mesh(const ordo_account *account)
{
  return &account->mesh;
}

void ordo_account_free(ordo_account *account)
{
  if (!account)
    return;
  g_ptr_array_unref(account->comms);
  g_array_unref(account->parts);
  g_free(account);
}
