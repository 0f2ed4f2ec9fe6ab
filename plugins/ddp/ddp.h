/* ddp.h - what the files of this plugin share: the options, the instance, and how an error is reported.
 *
 *   ddp.c      manifest, tables, life cycle
 *   slots.c    which leaves take part, and how each is attached to its bucket
 *   verify.c   all ranks of the axis hold the same parameters
 *   buckets.c  bucket assignment
 *   reducer.c  buckets in a training step: start during backward, finish in step.reduce
 *   vote.c     one decision of all ranks: missing gradients, NaN, a graph that changed
 *   hooks.c    fp16 and bf16 compression
 *   stats.c    overlap statistics
 */
#ifndef DDP_DDP_H
#define DDP_DDP_H

#include <ordo/comm_hook.h>
#include <ordo/strategy.h>

typedef struct ddp_options {
  int64_t bucket_cap;   /* bytes */
  int64_t first_bucket; /* bytes */
  int64_t find_unused;
  int64_t static_graph;
  int64_t nan_check;
  int64_t stats_interval; /* steps; 0: no statistics */
  const char *hook;       /* "none", "fp16", "bf16" or the id of a comm_hook plugin */
  const char *ignored;    /* patterns joined with ',', or empty */
} ddp_options;

struct ddp_reducer;

typedef struct ddp {
  const ordo_job *job;
  const ordo_comm *comm; /* of the instance's axis */
  ddp_options options;
  struct ddp_reducer *reducer; /* from strategy.wrap on; null when evaluating only */
  uint8_t *waits;              /* [n_units] 1: gradients of the unit only accumulate and are reduced in step.reduce; null: of none */
} ddp;

/* Records an error with the job's host and returns `status`. */
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
ordo_status
ddp_fail(const ordo_job *job, ordo_status status, const char *hint, const char *format, ...);

/* Zeroed memory of the job, counted as communication memory; null after an error was recorded. Freed with ddp_free. */
void *ddp_alloc(const ordo_job *job, uint64_t count, size_t size);
void ddp_free(const ordo_job *job, void *memory);

/* verify.c: compares the number, names, shapes and types of the leaves among the ranks of the axis. Collective.
 * ORDO_E_MISMATCH names the first parameter that differs and both ranks. */
ordo_status ddp_verify_leaves(const ordo_job *job, const ordo_comm *comm);

#endif
