/* channel.c - the provider-independent half of a communicator: queue, waiting, deadline, counters, the dead state.
 *
 * It moves no data; a transport does. The idea: collectives of one channel finish in start order, so a transport only ever works on
 * the oldest, and whoever waits moves ALL channels of the provider. Without that, rank 0 waiting on axis A and rank 1 waiting on
 * axis B would each starve the other, because in a shared window both must do their share of the work.
 * Guards against: blocking for ever (deadline, a look after the peers every few milliseconds) and use after a failure (the hub is dead
 * and repeats its status without touching the transport).
 */
#include "channel.h"

#include <stdlib.h>
#include <string.h>

enum { WATCH_MICROSECONDS = 5000 };
static const double default_deadline = 300.0;

/* For a provider whose ctx starts with a hub. */
static char *hub_report(void *ctx)
{
  return ordo_recent_report(&((ordo_hub *)ctx)->recent);
}

static const char *hub_error_text(void *ctx)
{
  return ((ordo_hub *)ctx)->error_text;
}

void ordo_hub_init(ordo_hub *hub, const char *name, int32_t rank, int32_t size, ordo_errors *errors)
{
  memset(hub, 0, sizeof *hub);
  hub->provider.struct_size = sizeof hub->provider;
  hub->provider.ctx = hub;
  hub->provider.name = name;
  hub->provider.rank = rank;
  hub->provider.size = size;
  hub->provider.report = hub_report;
  hub->provider.error_text = hub_error_text;
  hub->errors = errors;
  hub->error_text = g_strdup("");
  hub->channels = g_ptr_array_new();
}

void ordo_hub_clear(ordo_hub *hub)
{
  g_ptr_array_unref(hub->channels);
  g_free(hub->error_text);
}

static gboolean is_fatal(ordo_status status)
{
  return status == ORDO_E_TIMEOUT || status == ORDO_E_PEER_LOST || status == ORDO_E_MISMATCH;
}

ordo_status ordo_hub_fail(ordo_hub *hub, ordo_status status, const char *code, const char *where, const char *why, const char *next,
                          const char *what, ...)
{
  if (hub->dead)
    return hub->dead;
  va_list args;
  va_start(args, what);
  g_free(hub->error_text);
  hub->error_text = g_strdup_vprintf(what, args);
  va_end(args);
  if (hub->errors)
    ordo_errors_push(hub->errors, status, code, where, why, next, "%s", hub->error_text);
  if (is_fatal(status)) {
    hub->dead = status;
    for (guint i = 0; i < hub->channels->len; i++) {
      ordo_channel *channel = g_ptr_array_index(hub->channels, i);
      if (channel->transport->mourn)
        channel->transport->mourn(channel);
    }
  }
  return status;
}

static const char *fatal_code(ordo_status status)
{
  return status == ORDO_E_TIMEOUT ? "E-COMM-TIMEOUT" : status == ORDO_E_PEER_LOST ? "E-COMM-PEER-LOST" : "E-COMM-MISMATCH";
}

/* Each call on a dead hub has a record, so that a status never comes without a text, but a queue of waits makes only one. */
static ordo_status repeat_death(ordo_hub *hub)
{
  if (hub->errors && ordo_errors_count(hub->errors) == 0)
    ordo_errors_push(hub->errors, hub->dead, fatal_code(hub->dead), "", "an earlier collective failed and the session cannot go on",
                     "Start again; see the first error.", "%s", hub->error_text);
  return hub->dead;
}

static void finish(ordo_channel *channel, ordo_request *request)
{
  ordo_pieces_unpack(channel, request);
  ordo_recent_mark(&channel->hub->recent, request->recent_id, ORDO_RECENT_DONE);
  channel->hub->moves++;
}

static ordo_status advance_channel(ordo_channel *channel)
{
  ordo_status status = ORDO_OK;
  ordo_request *request;
  while ((request = g_queue_peek_head(&channel->collectives)) != NULL) {
    if (!request->done && (status = channel->transport->advance(channel, request)) != ORDO_OK)
      return status;
    if (!request->done)
      break;
    g_queue_pop_head(&channel->collectives);
    finish(channel, request);
  }
  for (GList *link = channel->pairs.head; link && status == ORDO_OK;) {
    GList *next = link->next;
    request = link->data;
    status = channel->transport->advance(channel, request);
    if (status == ORDO_OK && request->done) {
      g_queue_delete_link(&channel->pairs, link);
      finish(channel, request);
    }
    link = next;
  }
  return status;
}

static ordo_status advance_hub(ordo_hub *hub)
{
  ordo_status status = ORDO_OK;
  for (guint i = 0; i < hub->channels->len && status == ORDO_OK; i++)
    status = advance_channel(g_ptr_array_index(hub->channels, i));
  return status;
}

/* Looks after the peers of every channel, at most every few milliseconds. */
static ordo_status watch(ordo_hub *hub, gint64 now)
{
  ordo_status status = ORDO_OK;
  if (now - hub->last_watch < WATCH_MICROSECONDS)
    return ORDO_OK;
  hub->last_watch = now;
  for (guint i = 0; i < hub->channels->len && status == ORDO_OK; i++) {
    ordo_channel *channel = g_ptr_array_index(hub->channels, i);
    if (channel->transport->watch && (channel->collectives.length || channel->pairs.length))
      status = channel->transport->watch(channel);
  }
  return status;
}

static ordo_status time_out(ordo_channel *channel, ordo_request *request, double seconds)
{
  g_autofree char *what = ordo_request_describe(request);
  GString *missing = g_string_new(NULL);
  if (channel->transport->missing)
    channel->transport->missing(channel, request, missing);
  g_autofree char *who = g_string_free(missing, FALSE);
  return ordo_hub_fail(channel->hub, ORDO_E_TIMEOUT, "E-COMM-TIMEOUT", channel->name, who,
                       "Look at the named ranks; a longer deadline: train.deadline.", "%s did not finish within %g s: %s", what, seconds,
                       who[0] ? who : "the transport cannot tell which rank is missing");
}

double ordo_hub_deadline(const ordo_hub *hub)
{
  return hub->provider.deadline_seconds > 0 ? hub->provider.deadline_seconds : default_deadline;
}

static ordo_status wait_until_done(ordo_channel *channel, ordo_request *request)
{
  ordo_hub *hub = channel->hub;
  ordo_status status = advance_hub(hub);
  if (status != ORDO_OK || request->done)
    return status;
  double deadline = ordo_hub_deadline(hub);
  gint64 start = g_get_monotonic_time(), before = start;
  for (unsigned round = 0; status == ORDO_OK && !request->done;) {
    uint64_t moves = hub->moves;
    if (channel->transport->idle)
      channel->transport->idle(channel, round);
    status = advance_hub(hub);
    gint64 now = g_get_monotonic_time();
    if (hub->moves == moves)
      channel->stats.wait_seconds += (double)(now - before) * 1e-6;
    round = hub->moves == moves ? round + 1 : 0;
    before = now;
    if (status != ORDO_OK || request->done)
      break;
    status = watch(hub, now);
    if (status == ORDO_OK && (double)(now - start) * 1e-6 > deadline)
      status = time_out(channel, request, deadline);
  }
  return status;
}

static void dispose(ordo_channel *channel, ordo_request *request)
{
  g_queue_remove(ordo_collective_is_pair(request->c.kind) ? &channel->pairs : &channel->collectives, request);
  if (!request->done)
    ordo_recent_mark(&channel->hub->recent, request->recent_id, ORDO_RECENT_FAILED);
  if (channel->transport->forget)
    channel->transport->forget(channel, request);
  if (request->done) /* else MPI may still write into packed memory */
    ordo_pieces_forget(request);
  g_free(request);
}

static ordo_status channel_start(void *ctx, const ordo_collective *c, ordo_request **out)
{
  ordo_channel *channel = ctx;
  ordo_hub *hub = channel->hub;
  if (hub->dead)
    return repeat_death(hub);
  gint64 entered = g_get_monotonic_time();
  ordo_request *request = g_new0(ordo_request, 1);
  ordo_status status = ordo_collective_check(channel, c, &request->c, &request->reduction);
  if (status != ORDO_OK) {
    g_free(request);
    return status;
  }
  request->channel = channel;
  request->recent_id = ordo_recent_add(&hub->recent, channel->name, &request->c);
  g_queue_push_tail(ordo_collective_is_pair(request->c.kind) ? &channel->pairs : &channel->collectives, request);
  status = ordo_pieces_pack(channel, request);
  if (status == ORDO_OK)
    status = channel->transport->begin(channel, request);
  if (status != ORDO_OK) {
    dispose(channel, request);
    return status;
  }
  if (request->done) { /* one rank, or none but this one: begin did it all */
    g_queue_remove(ordo_collective_is_pair(request->c.kind) ? &channel->pairs : &channel->collectives, request);
    finish(channel, request);
  }
  channel->stats.calls[request->c.kind]++;
  channel->stats.bytes[request->c.kind] += ordo_collective_bytes(&request->c, channel->table.size);
  channel->stats.busy_seconds += (double)(g_get_monotonic_time() - entered) * 1e-6;
  *out = request;
  return ORDO_OK;
}

static ordo_status channel_progress(void *ctx)
{
  ordo_channel *channel = ctx;
  ordo_hub *hub = channel->hub;
  if (hub->dead)
    return repeat_death(hub);
  if (!channel->collectives.length && !channel->pairs.length)
    return ORDO_OK;
  gint64 entered = g_get_monotonic_time();
  ordo_status status = advance_hub(hub);
  if (status == ORDO_OK)
    status = watch(hub, entered);
  channel->stats.busy_seconds += (double)(g_get_monotonic_time() - entered) * 1e-6;
  return status;
}

static ordo_status channel_test(void *ctx, ordo_request *request, int32_t *done)
{
  ordo_status status = request->done ? ORDO_OK : channel_progress(ctx);
  *done = request->done || status != ORDO_OK;
  return status;
}

static ordo_status channel_wait(void *ctx, ordo_request *request)
{
  ordo_channel *channel = ctx;
  ordo_hub *hub = channel->hub;
  gint64 entered = g_get_monotonic_time();
  ordo_status status = ORDO_OK;
  if (!request->done)
    status = hub->dead ? repeat_death(hub) : wait_until_done(channel, request);
  dispose(channel, request);
  channel->stats.busy_seconds += (double)(g_get_monotonic_time() - entered) * 1e-6;
  return status;
}

static ordo_status channel_alloc(void *ctx, size_t bytes, void **memory)
{
  ordo_channel *channel = ctx;
  *memory = NULL;
  if (channel->hub->dead)
    return repeat_death(channel->hub);
  if (channel->transport->alloc)
    return channel->transport->alloc(channel, bytes, memory);
  if (bytes > SIZE_MAX - 63 || (*memory = aligned_alloc(64, MAX((bytes + 63) & ~(size_t)63, (size_t)64))) == NULL)
    return ordo_hub_fail(channel->hub, ORDO_E_NOMEM, "E-COMM-MEMORY", channel->name, "the system has no memory left",
                         "Use smaller buckets or more ranks.", "no memory for a buffer of %zu bytes on '%s'", bytes, channel->name);
  memset(*memory, 0, bytes);
  return ORDO_OK;
}

static ordo_status channel_release(void *ctx, void *memory)
{
  ordo_channel *channel = ctx;
  if (!memory)
    return ORDO_OK;
  if (channel->transport->free)
    return channel->transport->free(channel, memory);
  free(memory);
  return channel->hub->dead;
}

static void channel_stats(void *ctx, ordo_comm_stats *stats)
{
  ordo_channel *channel = ctx;
  size_t size = MIN(stats->struct_size, sizeof *stats);
  if (size > sizeof stats->struct_size)
    memcpy((char *)stats + sizeof stats->struct_size, (char *)&channel->stats + sizeof stats->struct_size,
           size - sizeof stats->struct_size);
}

ordo_channel *ordo_channel_new(ordo_hub *hub, const char *name, int32_t rank, int32_t size, const ordo_transport *transport, void *state)
{
  ordo_channel *channel = g_new0(ordo_channel, 1);
  ordo_comm table = {sizeof(ordo_comm),
                     channel,
                     rank,
                     size,
                     channel_start,
                     channel_test,
                     channel_wait,
                     channel_progress,
                     channel_alloc,
                     channel_release,
                     channel_stats,
                     ORDO_COMM_PIECES,
                     0};
  channel->table = table;
  channel->hub = hub;
  channel->name = g_strdup(name ? name : "");
  channel->transport = transport;
  channel->transport_state = state;
  channel->stats.struct_size = sizeof channel->stats;
  g_ptr_array_add(hub->channels, channel);
  return channel;
}

ordo_channel *ordo_channel_of(const ordo_comm *comm)
{
  return comm->ctx;
}

void ordo_channel_free(ordo_channel *channel)
{
  if (!channel)
    return;
  while (channel->collectives.length)
    dispose(channel, g_queue_peek_head(&channel->collectives));
  while (channel->pairs.length)
    dispose(channel, g_queue_peek_head(&channel->pairs));
  if (channel->transport->close)
    channel->transport->close(channel);
  g_ptr_array_remove(channel->hub->channels, channel);
  g_free(channel->name);
  g_free(channel);
}
