/* mpi_transport.h - collectives over plain MPI, and what both MPI transports share (private). */
#ifndef ORDO_PRIVATE_MPI_TRANSPORT_H
#define ORDO_PRIVATE_MPI_TRANSPORT_H

#include <mpi.h>
#include "channel.h"

/* What the ranks of a collective must agree on; exchanged as bytes. */
typedef struct ordo_descriptor {
  uint32_t kind, op, dtype, flags;
  int32_t root;
  int32_t tag; /* which bucket or group it is */
  int64_t count;
  double factor;
  char label[24]; /* for texts only, not compared */
} ordo_descriptor;

/* One rank as others see it. */
typedef struct ordo_peer {
  int32_t world_rank; /* in the provider, used in texts */
  int32_t node;       /* equal for ranks that share memory */
  int64_t pid;        /* 0: cannot be watched from here */
  uint64_t pid_space; /* pids compare only within one */
} ordo_peer;

/* The MPI side of a channel. Three communicators because nonblocking collectives of one must be started in the same order on all
 * ranks: `posted` in start order, `staged` in completion order, `checks` for the descriptors. */
typedef struct ordo_mpi_link {
  MPI_Comm posted, staged, checks;
  int rank, size;
  ordo_peer *peers;
  gboolean one_node;
} ordo_mpi_link;

/* Takes over `comm`. Collective, and blocks. Returns MPI_SUCCESS or MPI's error, after which nothing needs to be cleared. */
int ordo_mpi_link_init(ordo_mpi_link *link, MPI_Comm comm, int32_t world_rank);
/* Collective unless `dead`, when communicators are left behind rather than waited for. */
void ordo_mpi_link_clear(ordo_mpi_link *link, gboolean dead);

/* Lets any transport use plain MPI for a request; state is kept in *exchange. With `checked` the descriptors are compared. */
typedef struct ordo_exchange ordo_exchange;
ordo_status ordo_mpi_begin(ordo_mpi_link *link, ordo_request *request, gboolean checked, ordo_exchange **exchange);
ordo_status ordo_mpi_advance(ordo_mpi_link *link, ordo_request *request, ordo_exchange *exchange, gboolean *done);
/* Frees the state; what MPI still owns is left to it. */
void ordo_mpi_forget(ordo_exchange *exchange);

/* mpi_call.c: blocking work, in MPI alone, that returns MPI_SUCCESS or MPI's error. It may not touch the hub. */
typedef int (*ordo_mpi_work)(void *subject);
/* Runs work(subject), and gives it up at the deadline or when a peer of `link` (null: unknown) has ended. After an error the subject is
 * left behind, because MPI may still be working on it. Errors: TIMEOUT, PEER_LOST, and those of ordo_mpi_failed. */
ordo_status ordo_mpi_call(ordo_hub *hub, const ordo_mpi_link *link, const char *where, const char *doing, ordo_mpi_work work,
                          void *subject);

/* Names the peers on this node that are stopped (SIGSTOP, a debugger); null: none. Free with g_free. */
char *ordo_mpi_stopped(const ordo_mpi_link *link);
/* Fails the hub with PEER_LOST when a peer on this node has ended. */
ordo_status ordo_mpi_watch(ordo_hub *hub, const ordo_mpi_link *link, const char *where);
ordo_status ordo_mpi_failed(ordo_hub *hub, int code, const char *doing);

void ordo_descriptor_of(const ordo_request *request, ordo_descriptor *descriptor);
gboolean ordo_descriptor_equal(const ordo_descriptor *a, const ordo_descriptor *b);
ordo_status ordo_descriptor_mismatch(ordo_request *request, const ordo_mpi_link *link, int other, const ordo_descriptor *theirs);

/* state is an ordo_mpi_link. */
extern const ordo_transport ordo_mpi_transport;

#endif
