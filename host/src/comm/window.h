/* window.h - the transport through memory shared by the ranks of one node (private). */
#ifndef ORDO_PRIVATE_WINDOW_H
#define ORDO_PRIVATE_WINDOW_H

#include "mpi_transport.h"
#include <stdatomic.h>

enum {
  ORDO_WINDOW_MAX_RANKS = 64,
  ORDO_WINDOW_SLOTS = 8,          /* collectives that may be announced ahead */
  ORDO_WINDOW_INLINE = 4096,      /* bytes that travel inside an announcement */
  ORDO_WINDOW_STAGING = 256 << 10 /* bytes of a staging buffer; there are two of each for overlap */
};

/* What a rank announces when it starts a collective. */
typedef struct ordo_window_slot {
  _Alignas(64) _Atomic uint64_t sequence; /* written last */
  ordo_descriptor descriptor;
  int32_t send_segment, recv_segment; /* id, -1: private memory */
  uint64_t send_offset, recv_offset;
  _Alignas(64) char payload[ORDO_WINDOW_INLINE];
} ordo_window_slot;

/* One rank's part of the control memory. Only its owner writes, except doorbell and sleepers of rank 0. */
typedef struct ordo_window_page {
  _Alignas(64) _Atomic uint64_t completed; /* collectives whose announcements this rank no longer reads */
  _Alignas(64) _Atomic uint64_t ticks;     /* phases this rank has finished */
  _Alignas(64) _Atomic int32_t given_up;   /* status of a rank that is dead */
  _Alignas(64) _Atomic uint32_t doorbell;  /* futex word of the channel, in the page of rank 0 */
  _Atomic uint32_t sleepers;
  ordo_window_slot slots[ORDO_WINDOW_SLOTS];
  _Alignas(64) char in[2][ORDO_WINDOW_STAGING];
  char out[2][ORDO_WINDOW_STAGING];
} ordo_window_page;

/* Memory that every rank of the node maps. */
typedef struct ordo_segment {
  int32_t id;
  size_t bytes;
  MPI_Win win;  /* MPI_WIN_NULL: private memory, no bases of peers */
  char **bases; /* [size] as mapped here; bases[rank] is the own part */
} ordo_segment;

typedef struct ordo_window {
  ordo_mpi_link link; /* first: plain MPI carries pairs and all_to_all */
  ordo_segment control;
  ordo_window_page **pages; /* [size] */
  GPtrArray *segments;      /* ordo_segment of alloc */
  int32_t last_segment;
  uint64_t started, published, ticks; /* of this rank */
  unsigned half;                      /* staging buffer to use next */
  uint32_t doorbell_seen;
} ordo_window;

/* The segment that holds all of [memory, memory + bytes), or null. */
const ordo_segment *ordo_window_find(const ordo_window *window, const void *memory, size_t bytes);
ordo_status ordo_window_alloc(ordo_channel *channel, size_t bytes, void **memory);
ordo_status ordo_window_release(ordo_channel *channel, void *memory);

/* Takes over the link on success. FALSE: no shared memory, use plain MPI; the link is untouched. Collective. */
gboolean ordo_window_new(const ordo_mpi_link *link, ordo_window **window);
/* Buffers that nobody freed, control memory and the link. Collective, unless ranks are `dead`: then nothing is sent. */
void ordo_window_free(ordo_window *window, gboolean dead);

/* state is an ordo_window. */
extern const ordo_transport ordo_window_transport;

#endif
