/* single.c - the provider of one rank, and the local transport that every communicator of one rank uses.
 *
 * With one rank a collective is a copy, finished inside start. Not a special case for strategies: they call the same table, with
 * the same argument checks, factors and counters, so a one-rank run tests the code that many ranks run.
 */
#include "channel.h"
#include "../context.h"

#include <string.h>

/* all_gather and reduce_scatter, run by run: both sides are this rank's. */
static void move_pieces(ordo_request *request)
{
  const ordo_collective *c = &request->c;
  size_t element = ordo_dtype_size(c->dtype);
  for (int64_t at = 0; at < c->count;) {
    ordo_piece_span span = ordo_pieces_at(request, 0, at, c->count);
    gboolean gather = c->kind == ORDO_ALL_GATHER;
    const char *from = (const char *)c->send + (size_t)(gather ? span.shard : span.full) * element;
    char *to = (char *)c->recv + (size_t)(gather ? span.full : span.shard) * element;
    void *const outputs[] = {to};
    const void *const inputs[] = {from};
    if (!gather)
      ordo_reduce(&request->reduction, outputs, 1, inputs, 1, (size_t)span.count);
    else if (to != from)
      memcpy(to, from, (size_t)span.count * element);
    at += span.count;
  }
}

static ordo_status local_begin(ordo_channel *channel, ordo_request *request)
{
  const ordo_collective *c = &request->c;
  size_t bytes = (size_t)c->count * ordo_dtype_size(c->dtype);
  void *const outputs[] = {c->recv};
  const void *const inputs[] = {c->send};
  (void)channel;
  if (c->kind == ORDO_ALL_GATHER || c->kind == ORDO_REDUCE_SCATTER)
    move_pieces(request);
  else if (ordo_collective_reduces(c->kind))
    ordo_reduce(&request->reduction, outputs, 1, inputs, 1, (size_t)c->count);
  else if (c->kind == ORDO_ALL_TO_ALL_V && c->send_counts[0] != c->recv_counts[0])
    return ordo_hub_fail(channel->hub, ORDO_E_INVALID, "E-COMM-ARGUMENT", channel->name, "what is sent to a rank must be what it expects",
                         "Exchange the counts first.",
                         "argument `recv_counts` of all_to_all_v on '%s': %" G_GINT64_FORMAT
                         " elements are expected from this rank, %" G_GINT64_FORMAT " are sent",
                         channel->name, c->recv_counts[0], c->send_counts[0]);
  else if (c->kind == ORDO_ALL_TO_ALL_V)
    bytes = (size_t)c->send_counts[0] * ordo_dtype_size(c->dtype);
  gboolean copies = c->kind == ORDO_ALL_TO_ALL || c->kind == ORDO_ALL_TO_ALL_V;
  if (copies && bytes && c->send != c->recv)
    memcpy(c->recv, c->send, bytes);
  request->done = TRUE;
  return ORDO_OK;
}

static ordo_status local_advance(ordo_channel *channel, ordo_request *request)
{
  (void)channel;
  request->done = TRUE;
  return ORDO_OK;
}

const ordo_transport ordo_local_transport = {.begin = local_begin, .advance = local_advance, .takes_pieces = TRUE};

static ordo_status single_split(void *ctx, int32_t colour, int32_t key, int32_t size, const char *name, const ordo_comm **comm)
{
  ordo_hub *hub = ctx;
  (void)colour;
  (void)key;
  if (size != 1)
    return ordo_hub_fail(hub, ORDO_E_INVALID, "E-MESH-SIZE", name, "the provider `single` has one rank", "Start more ranks, or use size 1.",
                         "communicator '%s' of %d ranks cannot be made from one rank", name, size);
  *comm = &ordo_channel_new(hub, name, 0, 1, &ordo_local_transport, NULL)->table;
  return ORDO_OK;
}

static void single_release(void *ctx, const ordo_comm *comm)
{
  (void)ctx;
  if (comm)
    ordo_channel_free(ordo_channel_of(comm));
}

static void single_destroy(void *ctx)
{
  ordo_hub_clear(ctx);
  g_free(ctx);
}

ordo_status ordo_comm_single_create(ordo_context *context, ordo_comm_provider **provider)
{
  if (!provider)
    return ORDO_E_INVALID;
  ordo_hub *hub = g_new(ordo_hub, 1);
  if (context)
    ordo_errors_clear(context->errors);
  ordo_hub_init(hub, "single", 0, 1, context ? context->errors : NULL);
  hub->provider.split = single_split;
  hub->provider.release = single_release;
  hub->provider.destroy = single_destroy;
  *provider = &hub->provider;
  return ORDO_OK;
}

void ordo_comm_provider_destroy(ordo_comm_provider *provider)
{
  if (provider)
    provider->destroy(provider->ctx);
}
