/* ordo/comm.h - collectives between the ranks of one mesh axis.
 *
 * A communicator is a table, so it may be MPI, a single rank, a counter for dry runs, or the embedder's own (gloo, NCCL).
 * A collective is described by one struct and started with one function; `wait` finishes it. The inline helpers at the
 * end are the synchronous short forms.
 *
 * Invariants
 *  - All ranks of the axis start the same collectives in the same order, from one thread. Debug builds compare them.
 *  - Nothing blocks for ever: when a deadline passes or a rank is lost, the session is dead and every further call
 *    returns the same status. Buffers of a started collective must stay valid and unchanged until wait or that error.
 *  - 16-bit sums are accumulated in fp32 and rounded once. With ORDO_COMM_ORDERED the sum runs in rank order, so that
 *    all-reduce and reduce-scatter give the same bits at any rank count; `factor` is then applied after the sum.
 *  - Memory from `alloc` may live in a window shared by the ranks of one node: collectives on it move no extra copies.
 */
#ifndef ORDO_COMM_H
#define ORDO_COMM_H

#include <ordo/dtype.h>

/* Kinds of collectives. `count` is in elements of dtype, `send` may equal `recv` (in place) except where noted. */
enum {
  ORDO_ALL_REDUCE = 1,     /* recv[count] = op over ranks of send[count] */
  ORDO_REDUCE_SCATTER = 2, /* recv[count] = piece `rank` of op over ranks of send[count * size]; in place: recv = send + rank * count */
  ORDO_ALL_GATHER = 3,     /* recv[count * size]: piece i is send[count] of rank i; in place: send = recv + rank * count */
  ORDO_BROADCAST = 4,      /* recv[count] of `root` to all */
  ORDO_ALL_TO_ALL = 5,     /* piece i of send[count * size] goes to rank i; not in place */
  ORDO_ALL_TO_ALL_V = 6,   /* as above with send_counts, recv_counts (elements per rank, packed without gaps); not in place */
  ORDO_SEND = 7,           /* send[count] to `root` */
  ORDO_RECV = 8,           /* recv[count] from `root` */
  ORDO_BARRIER = 9
};

/* Operations. AVG is SUM with an extra factor 1/size. */
enum { ORDO_SUM = 1, ORDO_AVG = 2, ORDO_MAX = 3, ORDO_MIN = 4 };

enum { ORDO_COMM_ORDERED = 1u }; /* flag of a collective; a session in `ordered` mode sets it on every one */

enum { ORDO_COMM_PIECES = 1u }; /* feature of a communicator: collectives may have pieces */

/* One piece of an all-gather or a reduce-scatter whose whole side is not one range per rank: `count` elements of every rank. On the shard
 * side they stand at shard_offset, on the whole side those of rank r at full_offset + r * count. A parameter that is split on its first
 * dimension is one piece and comes out whole, without a copy from a buffer in rank order. */
typedef struct ordo_comm_piece {
  int64_t shard_offset;
  int64_t full_offset;
  int64_t count;
} ordo_comm_piece;

typedef struct ordo_collective {
  size_t struct_size;
  uint32_t kind; /* ORDO_ALL_REDUCE ... */
  uint32_t op;   /* ORDO_SUM ..., ignored by kinds that do not reduce */
  ordo_dtype dtype;
  uint32_t flags;
  int32_t root; /* broadcast: source; send, recv: the peer; else 0 */
  int32_t tag;  /* send, recv: matches pairs; else 0 or a number that must be the same on all ranks: which bucket or group it is */
  const void *send;
  void *recv;
  int64_t count;
  double factor;              /* SUM, AVG on floats: multiplies the result (pre-multiplied unless ordered); 0 and 1 mean no factor */
  const int64_t *send_counts; /* ORDO_ALL_TO_ALL_V only, [size] */
  const int64_t *recv_counts;
  const char *label; /* what for, in traces and reports: "bucket 3"; static text or valid until wait; may be null */
  const ordo_comm_piece
      *pieces;       /* ORDO_ALL_GATHER and ORDO_REDUCE_SCATTER on a communicator with ORDO_COMM_PIECES; valid until wait. Their */
  uint64_t n_pieces; /* counts add up to `count`; the same on all ranks; buffers are not in place. 0: ranges in rank order */
} ordo_collective;
ORDO_PIN_LAST(ordo_collective, n_pieces);

typedef struct ordo_request ordo_request; /* a started collective, owned by the communicator until wait */

/* Totals since creation, for one axis and whoever asks through this table. Bytes are payload: the full logical buffer of each
 * collective, counted once whatever the number of ranks (all-reduce and broadcast count * size of dtype; reduce-scatter
 * and all-gather the same times ranks). */
typedef struct ordo_comm_stats {
  size_t struct_size;
  uint64_t calls[16];  /* by kind */
  uint64_t bytes[16];  /* by kind */
  double busy_seconds; /* time spent inside start, test and wait */
  double wait_seconds; /* of it, waiting for other ranks */
} ordo_comm_stats;
ORDO_PIN_LAST(ordo_comm_stats, wait_seconds);

typedef struct ordo_comm {
  size_t struct_size;
  void *ctx; /* first argument of every function below */
  int32_t rank;
  int32_t size;

  /* Starts `c` (copied). On ORDO_OK *request is set and must be given to wait exactly once. Errors: INVALID (arguments, named),
   * UNSUPPORTED (dtype with op), MISMATCH, TIMEOUT, PEER_LOST, NOMEM. [step] since 0.1 */
  ordo_status (*start)(void *ctx, const ordo_collective *c, ordo_request **request);
  /* Makes progress and sets *done to 1 when wait would not block. [step] since 0.1 */
  ordo_status (*test)(void *ctx, ordo_request *request, int32_t *done);
  /* Finishes and frees the request, also on error. [step] since 0.1 */
  ordo_status (*wait)(void *ctx, ordo_request *request);
  /* Moves every started collective forward without waiting. Cheap when there is none. [step] since 0.1 */
  ordo_status (*progress)(void *ctx);
  /* Collective: every rank allocates `bytes` zeroed bytes (the same number), aligned to 64, for buffers of collectives. Freed with
   * `free`, also collective. The caller owns it. Errors: NOMEM and those of start. [step] since 0.1 */
  ordo_status (*alloc)(void *ctx, size_t bytes, void **memory);
  ordo_status (*free)(void *ctx, void *memory);
  /* Fills *stats as far as its struct_size reaches. [any] since 0.1 */
  void (*stats)(void *ctx, ordo_comm_stats *stats);
  uint32_t features; /* ORDO_COMM_PIECES */
  uint32_t reserved;
} ordo_comm;
ORDO_PIN_LAST(ordo_comm, reserved);

/* Starts and waits. [step] since 0.1 */
ORDO_INLINE ordo_status ordo_comm_run(const ordo_comm *comm, const ordo_collective *c)
{
  ordo_request *request = 0;
  ordo_status status = comm->start(comm->ctx, c, &request);
  return status == ORDO_OK ? comm->wait(comm->ctx, request) : status;
}

/* A collective with op SUM, no factor, no flags and no label, to be changed before it is started. [any] since 0.1 */
ORDO_INLINE ordo_collective ordo_collective_make(uint32_t kind, const void *send, void *recv, int64_t count, ordo_dtype dtype)
{
  ordo_collective c = {sizeof(ordo_collective), 0, ORDO_SUM, 0, 0, 0, 0, 0, 0, 0, 0.0, 0, 0, 0, 0, 0};
  c.kind = kind;
  c.dtype = dtype;
  c.send = send;
  c.recv = recv;
  c.count = count;
  return c;
}

/* buffer[count] = op over the ranks, times factor (1 for none). [step] since 0.1 */
ORDO_INLINE ordo_status ordo_all_reduce(const ordo_comm *comm, void *buffer, int64_t count, ordo_dtype dtype, uint32_t op, double factor)
{
  ordo_collective c = ordo_collective_make(ORDO_ALL_REDUCE, buffer, buffer, count, dtype);
  c.op = op;
  c.factor = factor;
  return ordo_comm_run(comm, &c);
}

/* recv[count] = this rank's piece of the sum over ranks of send[count * size], times factor. [step] since 0.1 */
ORDO_INLINE ordo_status ordo_reduce_scatter(const ordo_comm *comm, const void *send, void *recv, int64_t count, ordo_dtype dtype,
                                            double factor)
{
  ordo_collective c = ordo_collective_make(ORDO_REDUCE_SCATTER, send, recv, count, dtype);
  c.factor = factor;
  return ordo_comm_run(comm, &c);
}

/* recv[count * size] = send[count] of every rank, in rank order. [step] since 0.1 */
ORDO_INLINE ordo_status ordo_all_gather(const ordo_comm *comm, const void *send, void *recv, int64_t count, ordo_dtype dtype)
{
  ordo_collective c = ordo_collective_make(ORDO_ALL_GATHER, send, recv, count, dtype);
  return ordo_comm_run(comm, &c);
}

/* buffer[count] of rank `root` to all ranks. [step] since 0.1 */
ORDO_INLINE ordo_status ordo_broadcast(const ordo_comm *comm, void *buffer, int64_t count, ordo_dtype dtype, int32_t root)
{
  ordo_collective c = ordo_collective_make(ORDO_BROADCAST, buffer, buffer, count, dtype);
  c.root = root;
  return ordo_comm_run(comm, &c);
}

/* Returns when every rank has come here. [step] since 0.1 */
ORDO_INLINE ordo_status ordo_barrier(const ordo_comm *comm)
{
  ordo_collective c = ordo_collective_make(ORDO_BARRIER, 0, 0, 0, ORDO_U8);
  return ordo_comm_run(comm, &c);
}

#endif
