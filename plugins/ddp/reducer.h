/* reducer.h - buckets of gradients in a training step.
 *
 * Invariants
 *  - Collectives are issued in the order of bucket indices, whatever the order in which gradients become ready: ranks cannot
 *    mismatch.
 *  - All buckets lie in one allocation of the communicator (a window shared by the ranks of a node). Rebuilding moves
 *    gradients inside it and allocates nothing.
 *  - Every rank issues every collective of a step, also when something is wrong on this one: errors are found by a vote
 *    (vote.c), so all ranks report the same one and none waits for a rank that gave up.
 */
#ifndef DDP_REDUCER_H
#define DDP_REDUCER_H

#include "slots.h"
#include "stats.h"

typedef struct ddp_bucket {
  ordo_bucket info; /* what a hook sees; info.data is null unless the gradients are fp32 */
  void *data;
  ordo_dtype dtype;
  uint32_t first;   /* its slots are order[first .. first + info.n_leaves) */
  uint32_t waiting; /* slots that are not ready in this micro-batch */
  ordo_request *request;
  void *handle; /* of the hook */
  char label[24];
} ddp_bucket;

typedef struct ddp_reducer {
  const ddp *owner;
  const ordo_job *job;
  const ordo_comm *comm;
  ddp_slots slots;
  ddp_stats stats;

  void *memory; /* all buckets */
  int64_t memory_bytes;
  ddp_bucket *buckets; /* room for one per slot */
  uint32_t n_buckets;
  uint32_t *order;    /* slots in bucket order */
  ordo_leaf **leaves; /* parallel to order, for hooks */
  int64_t *offsets;   /* parallel to order: first element inside the bucket */
  uint64_t generation;

  const ordo_comm_hook *hook; /* null: plain all-reduce */
  void *hook_instance;
  int hook_is_ours;

  /* The first step */
  uint32_t *observed; /* slots in the order in which they became ready */
  uint32_t n_observed;
  int observing; /* buckets will be rebuilt */
  int learned;   /* static graph: `expected` and `global` of the slots are set */

  /* The running step */
  int64_t step;
  double divide_factor;
  int in_last;   /* the last micro-batch: complete buckets may start */
  uint32_t next; /* first bucket that has not been started */
} ddp_reducer;

/* Attaches the gradients of the model's leaves to buckets. Collective. */
ordo_status ddp_reducer_create(const ddp *owner, ddp_reducer **reducer);
/* Gives the leaves their old gradient memory back. Collective. Null is fine. */
void ddp_reducer_destroy(ddp_reducer *reducer);

ordo_status ddp_reducer_step_begin(ddp_reducer *reducer, const ordo_step_info *info);
void ddp_reducer_micro_begin(ddp_reducer *reducer, const ordo_step_info *info);
ordo_status ddp_reducer_grad_ready(ddp_reducer *reducer, const ordo_param *param);
/* Starts what was not started, waits for everything, votes, and reports every leaf to the host. */
ordo_status ddp_reducer_reduce(ddp_reducer *reducer);

/* vote.c: if any slot of any rank has a problem, all ranks return the same error with the parameter and the ranks. Collective. */
ordo_status ddp_vote_problems(ddp_reducer *reducer);
/* vote.c: sets slot->global from slot->used of all ranks. Collective. */
ordo_status ddp_vote_used(ddp_reducer *reducer);

#endif
