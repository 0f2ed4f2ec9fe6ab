/* fake.c - the provider of ranks that do not exist, for dry runs of any world size on one machine.
 *
 * Every call is checked and counted as for real ranks; nothing is exchanged. This rank's own contribution is put where the real
 * collective would put it, unscaled, and what other ranks would send stays as it was. Memory does not grow with the world.
 * In a dry run buffers are addresses without memory; what has memory (votes, descriptions) is still treated as above.
 * Not a simulator: values after a fake reduction mean nothing, only calls, bytes and control flow do.
 */
#include "channel.h"
#include "../context.h"

#include <string.h>

static ordo_status fake_begin(ordo_channel *channel, ordo_request *request)
{
  const ordo_collective *c = &request->c;
  size_t piece = (size_t)c->count * ordo_dtype_size(c->dtype), here = piece * (size_t)channel->table.rank;
  const char *from = c->send;
  char *to = c->recv;
  if (c->kind == ORDO_REDUCE_SCATTER || c->kind == ORDO_ALL_TO_ALL)
    from += here;
  if (c->kind == ORDO_ALL_GATHER || c->kind == ORDO_ALL_TO_ALL)
    to += here;
  gboolean copies = ordo_collective_reduces(c->kind) || c->kind == ORDO_ALL_GATHER || c->kind == ORDO_ALL_TO_ALL;
  if (copies && piece && from != to)
    memcpy(to, from, piece);
  request->done = TRUE;
  return ORDO_OK;
}

static ordo_status fake_advance(ordo_channel *channel, ordo_request *request)
{
  (void)channel;
  request->done = TRUE;
  return ORDO_OK;
}

static const ordo_transport fake_transport = {.begin = fake_begin, .advance = fake_advance};

/* Pieces are of tensors, and a buffer in the space has nothing to copy. */
static ordo_status dry_begin(ordo_channel *channel, ordo_request *request)
{
  const ordo_space *space = channel->hub->space;
  const ordo_collective *c = &request->c;
  gboolean plain = c->n_pieces == 0 || c->pieces == &request->whole;
  if (plain && !ordo_space_has(space, c->send) && !ordo_space_has(space, c->recv))
    return fake_begin(channel, request);
  request->done = TRUE;
  return ORDO_OK;
}

static ordo_status dry_alloc(ordo_channel *channel, size_t bytes, void **memory)
{
  *memory = ordo_space_take(channel->hub->space, MAX(bytes, 1));
  if (*memory)
    return ORDO_OK;
  return ordo_hub_fail(channel->hub, ORDO_E_NOMEM, "E-DRY-RUN-SPACE", channel->name, "a dry run reserves addresses, not memory",
                       "Use more ranks with a sharding strategy, or a smaller model.", "no addresses are left for a buffer of %zu bytes",
                       bytes);
}

static ordo_status dry_free(ordo_channel *channel, void *memory)
{
  (void)channel, (void)memory; /* the space goes with its session */
  return ORDO_OK;
}

static const ordo_transport dry_transport = {
    .begin = dry_begin, .advance = fake_advance, .alloc = dry_alloc, .free = dry_free, .takes_pieces = TRUE};

static ordo_status fake_split(void *ctx, int32_t colour, int32_t key, int32_t size, const char *name, const ordo_comm **comm)
{
  ordo_hub *hub = ctx;
  (void)colour;
  if (size < 1 || size > hub->provider.size || key < 0 || key >= size)
    return ordo_hub_fail(hub, ORDO_E_INVALID, "E-MESH-SIZE", name, "a fake communicator takes its size and rank from the caller",
                         "Pass the size of the axis and this rank's coordinate as key.",
                         "communicator '%s' of %d ranks with key %d cannot be part of %d fake ranks", name, size, key, hub->provider.size);
  *comm = &ordo_channel_new(hub, name, key, size, hub->space ? &dry_transport : &fake_transport, NULL)->table;
  return ORDO_OK;
}

static void fake_release(void *ctx, const ordo_comm *comm)
{
  (void)ctx;
  if (comm)
    ordo_channel_free(ordo_channel_of(comm));
}

static void fake_destroy(void *ctx)
{
  ordo_hub_clear(ctx);
  g_free(ctx);
}

ordo_status ordo_comm_fake_create(ordo_context *context, int32_t rank, int32_t size, ordo_comm_provider **provider)
{
  if (!provider)
    return ORDO_E_INVALID;
  if (context)
    ordo_errors_clear(context->errors);
  if (size < 1 || rank < 0 || rank >= size) {
    if (context)
      ordo_errors_push(context->errors, ORDO_E_INVALID, "E-MESH-SIZE", "fake provider", "a rank is from 0 to size - 1",
                       "Pass a size of at least 1.", "there is no rank %d of %d", rank, size);
    return ORDO_E_INVALID;
  }
  ordo_hub *hub = g_new(ordo_hub, 1);
  ordo_hub_init(hub, "fake", rank, size, context ? context->errors : NULL);
  hub->provider.split = fake_split;
  hub->provider.release = fake_release;
  hub->provider.destroy = fake_destroy;
  *provider = &hub->provider;
  return ORDO_OK;
}

gboolean ordo_fake_run_dry(const ordo_comm_provider *provider, ordo_space *space)
{
  if (provider->split != fake_split)
    return FALSE;
  ((ordo_hub *)provider->ctx)->space = space;
  return TRUE;
}
