/* channel.h - the provider-independent half of a communicator (private).
 *
 * A hub is what all communicators of one provider share: the dead state, the error text, the ring of recent collectives. A channel is
 * one communicator: the public table, its queue of started requests, its counters. A transport moves the data.
 */
#ifndef ORDO_PRIVATE_CHANNEL_H
#define ORDO_PRIVATE_CHANNEL_H

#include "../base/error.h"
#include "../base/space.h"
#include "recent.h"
#include "reduce.h"
#include <ordo/provider.h>

typedef struct ordo_channel ordo_channel;

typedef struct ordo_hub {
  ordo_comm_provider provider; /* handed out; its ctx is this hub or a struct that starts with it */
  ordo_errors *errors;         /* of the context; null without one */
  ordo_status dead;            /* ORDO_OK while alive */
  char *error_text;
  ordo_recent recent;
  GPtrArray *channels;     /* ordo_channel, not owned */
  gboolean oversubscribed; /* more ranks on this node than processors: waiting ranks must sleep */
  uint64_t moves;          /* counts work done by transports, to tell waiting from working */
  gint64 last_watch;       /* monotonic microseconds of the last look after peers */
  ordo_space *space;       /* fake.c: of the session that runs dry on it, null: none */
} ordo_hub;

struct ordo_request {
  ordo_collective c; /* a copy with the defaults filled in */
  ordo_channel *channel;
  ordo_reduction reduction;
  uint64_t recent_id; /* in the ring */
  gboolean done;
  void *state;             /* the transport's own, freed by its `forget` */
  ordo_comm_piece whole;   /* the one piece of an all-gather or reduce-scatter without pieces */
  const void *send_pieces; /* with pieces on a transport that does not know them: the caller's buffers; */
  void *recv_pieces;       /* c.send and c.recv are packed copies */
};

/* What a provider implements. Functions return ORDO_OK or the status of ordo_hub_fail. */
typedef struct ordo_transport {
  /* Called once, in start order. May finish the request at once (request->done). */
  ordo_status (*begin)(ordo_channel *channel, ordo_request *request);
  /* Moves the oldest collective, or any point-to-point request, without blocking; sets request->done. */
  ordo_status (*advance)(ordo_channel *channel, ordo_request *request);
  /* Looks after the peers; called every few milliseconds while somebody waits. May be null. */
  ordo_status (*watch)(ordo_channel *channel);
  /* Pauses a little; `round` counts fruitless rounds. May be null. */
  void (*idle)(ordo_channel *channel, unsigned round);
  /* Appends who has not arrived, for the text of a timeout. May be null. */
  void (*missing)(ordo_channel *channel, ordo_request *request, GString *text);
  /* Tells the peers that this rank has given up. May be null. */
  void (*mourn)(ordo_channel *channel);
  /* Frees request->state, also in the middle of a request after an error. May be null. */
  void (*forget)(ordo_channel *channel, ordo_request *request);
  /* Null: aligned private memory. */
  ordo_status (*alloc)(ordo_channel *channel, size_t bytes, void **memory);
  ordo_status (*free)(ordo_channel *channel, void *memory);
  /* Frees channel->transport_state; must not block when the hub is dead. May be null. */
  void (*close)(ordo_channel *channel);
  gboolean takes_pieces; /* else the channel packs them */
} ordo_transport;

struct ordo_channel {
  ordo_comm table; /* handed out; its ctx is this channel */
  ordo_hub *hub;
  char *name;
  const ordo_transport *transport;
  void *transport_state;
  GQueue collectives; /* started and not finished, in start order */
  GQueue pairs;       /* sends and receives, which may finish in any order */
  ordo_comm_stats stats;
};

void ordo_hub_init(ordo_hub *hub, const char *name, int32_t rank, int32_t size, ordo_errors *errors);
void ordo_hub_clear(ordo_hub *hub);
/* Seconds after which whoever waits gives up. */
double ordo_hub_deadline(const ordo_hub *hub);
/* Stores the text, pushes the record, and makes the hub dead for TIMEOUT, PEER_LOST and MISMATCH. Returns status. */
ordo_status ordo_hub_fail(ordo_hub *hub, ordo_status status, const char *code, const char *where, const char *why, const char *next,
                          const char *what, ...) G_GNUC_PRINTF(7, 8);

/* Takes ownership of `state` (closed by transport->close). A channel of one rank should use ordo_local_transport. */
ordo_channel *ordo_channel_new(ordo_hub *hub, const char *name, int32_t rank, int32_t size, const ordo_transport *transport, void *state);
void ordo_channel_free(ordo_channel *channel);
ordo_channel *ordo_channel_of(const ordo_comm *comm);

/* "all_reduce of 12 f32, 'bucket 3', on 'ddp'". Free with g_free. */
char *ordo_request_describe(const ordo_request *request);

/* Checks `c` and fills a copy with defaults and the reduction. Errors: INVALID naming the argument, UNSUPPORTED. */
ordo_status ordo_collective_check(ordo_channel *channel, const ordo_collective *c, ordo_collective *copy, ordo_reduction *reduction);
/* pieces.c: a run of elements that is contiguous on both sides of a collective with pieces. */
typedef struct ordo_piece_span {
  int64_t shard, full, count; /* in elements */
} ordo_piece_span;
/* The run that starts at element `at` of rank `rank`'s packed shard and ends before `end`. */
ordo_piece_span ordo_pieces_at(const ordo_request *request, int rank, int64_t at, int64_t end);
/* Elements that the shard side spans, and the whole side. */
int64_t ordo_pieces_shard_extent(const ordo_request *request);
int64_t ordo_pieces_full_extent(const ordo_request *request, int32_t size);
/* Replaces the buffers of a collective with pieces by packed ones, and puts the result back. Errors: NOMEM. */
ordo_status ordo_pieces_pack(ordo_channel *channel, ordo_request *request);
void ordo_pieces_unpack(ordo_channel *channel, ordo_request *request);
void ordo_pieces_forget(ordo_request *request);

/* Payload as comm.h counts it. */
uint64_t ordo_collective_bytes(const ordo_collective *c, int32_t size);
gboolean ordo_collective_reduces(uint32_t kind);
gboolean ordo_collective_is_pair(uint32_t kind);
const char *ordo_collective_kind_name(uint32_t kind);
const char *ordo_collective_op_name(uint32_t op);
const char *ordo_dtype_name(ordo_dtype dtype);

/* fake.c: from now on communicators hand out memory from `space` (not owned) and leave data there alone; null ends it. FALSE: the
 * provider is no fake one, so its collectives would read and write what is not there. */
gboolean ordo_fake_run_dry(const ordo_comm_provider *provider, ordo_space *space);

/* One rank: every collective is a copy, done at once. */
extern const ordo_transport ordo_local_transport;

#endif
