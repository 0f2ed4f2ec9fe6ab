/* slots.h - the leaves that take part in the exchange, and how each is attached to its place in the buckets.
 *
 * A slot is one trainable leaf. Its gradient memory IS its place in a bucket: there is no copy in and none out.
 *   direct    the model computes into the leaf's gradient; complete when grad_ready says so
 *   observed  another strategy shards the leaf and writes its gradient in its own reduction (ddp over fsdp2); complete in
 *             step.reduce, which the plan puts after the other's
 */
#ifndef DDP_SLOTS_H
#define DDP_SLOTS_H

#include "ddp.h"

/* What may be wrong with a slot in a step; one byte travels in the vote (vote.c). */
enum { DDP_MISSING = 1, DDP_TWICE = 2, DDP_DEVIATES = 4, DDP_NOT_FINITE = 8 };

typedef struct ddp_slot {
  ordo_leaf *leaf;
  void *view;     /* its place in a bucket, null while detached */
  void *old_grad; /* the leaf's gradient memory before strategy.wrap */
  int64_t bytes;
  uint32_t bucket;
  uint8_t direct;
  uint8_t ready;    /* in this micro-batch */
  uint8_t used;     /* in this step, on this rank */
  uint8_t expected; /* static graph: used in the first step on this rank */
  uint8_t global;   /* used in this step on any rank */
  uint8_t problem;  /* DDP_MISSING ... */
} ddp_slot;

typedef struct ddp_slots {
  const ordo_job *job;
  ddp_slot *items; /* in definition order */
  uint32_t n;
  ordo_leaf **ignored; /* trainable, but excluded by the option `ignored` */
  uint32_t n_ignored;
  uint32_t n_summed_elsewhere; /* trainable, but their gradient is not partial on this axis */
  int32_t *of_leaf;            /* [n_leaves]: index into items, -1 for none */
  uint32_t n_leaves;
} ddp_slots;

/* Collects the slots of job->model. Errors: INVALID (no trainable leaf, a pattern that matches nothing), UNSUPPORTED (a gradient that
 * cannot be summed), STALE; each names the leaf. On an error nothing has to be freed. */
ordo_status ddp_slots_init(ddp_slots *slots, const ordo_job *job, const char *ignored);
/* Gives every leaf its old gradient memory back and frees the lists. */
void ddp_slots_clear(ddp_slots *slots);
/* Points the gradient of a slot at `view`; it starts as ORDO_GRAD_NONE. */
ordo_status ddp_slot_attach(const ordo_job *job, ddp_slot *slot, void *view);
/* The slot of a param, null if it does not take part. */
ddp_slot *ddp_slots_find(const ddp_slots *slots, const ordo_param *param);
/* 1 if every element of the slot is finite. */
int ddp_slot_is_finite(const ddp_slot *slot);

#endif
