/* fsdp1.h - what the files of this plugin share: the options, the instance, its flat parameters.
 *
 *   fsdp1.c   manifest, options, tables, life cycle
 *   flat.c    arithmetic of a flat parameter
 *   layout.c  flat parameters of a model: what lies where, and every reason to refuse it
 *   wrap.c    strategy.wrap: leaves of views or of whole flat parameters
 *   events.c  what a training step means for flat parameters: binding, gradients that were not written, the vote on unused parameters
 *   load.c    weights into shards, sync_module_states
 * When to gather, to release and to reduce is decided in ../sharding, which fsdp2 uses as well.
 */
#ifndef FSDP1_FSDP1_H
#define FSDP1_FSDP1_H

#include "../sharding/options.h"
#include "../sharding/sharding.h"
#include "flat.h"
#include "../sharding/units.h"

enum { FSDP1_FULL_SHARD, FSDP1_SHARD_GRAD_OP, FSDP1_NO_SHARD };

typedef struct fsdp1_options {
  int sharding_strategy;
  int hybrid; /* HYBRID_SHARD was asked for: another data axis must carry replicas */
  sharding_policy units;
  int64_t use_orig_params;
  int64_t sync_module_states;
  const char *ignored; /* patterns joined with ',', or empty */
  sharding_options sharding;
} fsdp1_options;

/* One parameter of a flat parameter. Tied parameters are one item. */
typedef struct fsdp1_item {
  const ordo_leaf *old_leaf; /* that it came from, replaced by strategy.wrap */
  const ordo_param *param;   /* the first of its tie group */
  ordo_chunk whole;          /* what this rank computes with: all of it, or the slice of a tensor-parallel step */
  int64_t numel;             /* elements of it */
  int64_t offset;            /* in the flat parameter */
  uint32_t flat;             /* index of the flat parameter */
  int trainable;
  int written; /* it got a gradient in this micro-batch */
  int used;    /* it got a gradient in this step, on this rank; after the vote: on any rank */
} fsdp1_item;

/* The parameters of one type of a unit of the wrap policy. */
typedef struct fsdp1_flat_param {
  char name[144];
  ordo_dtype dtype, grad_dtype;
  uint32_t first_item, n_items; /* consecutive in fsdp1.items */
  fsdp1_flat layout;
  int trainable; /* any item is */
  sharding_group *group;
} fsdp1_flat_param;

typedef struct fsdp1 {
  sharding *sharding; /* first: where the events find it; from strategy.wrap on */
  const ordo_job *job;
  fsdp1_options options;
  /* from strategy.wrap on */
  fsdp1_item *items; /* flat parameter by flat parameter, by offset within */
  uint32_t n_items;
  uint32_t *item_of_param; /* by index of param, UINT32_MAX for an ignored one */
  fsdp1_flat_param *flats; /* [n_flats]: those of the first type, by index of the policy, then those of the next; some without items */
  uint32_t n_flats;
  uint32_t n_policy;        /* units of the wrap policy; root 0 */
  uint32_t *flat_of_unit;   /* index of the policy by unit of the model */
  uint32_t *first_unit;     /* [n_policy] the first unit of the model in it, UINT32_MAX: none; the next ones are in next_unit */
  uint32_t *next_unit;      /* [n_units], UINT32_MAX ends */
  uint32_t *leaf_of_item;   /* index of the new leaf */
  uint32_t *ignored_leaves; /* indices of leaves that are neither sharded nor reduced */
  uint32_t n_ignored;
  void **storage; /* of ignored parameters, data and gradient of each */
  int32_t *votes; /* one per item */
  int gathered_full;
} fsdp1;

/* Zeroed memory of the job; null after an error was recorded. Freed with fsdp1_free. */
void *fsdp1_alloc(const ordo_job *job, uint64_t count, size_t size, uint32_t tag);
void fsdp1_free(const ordo_job *job, void *memory);

/* layout.c: makes items and flats from job->model, or says why not. Everything is freed by fsdp1_layout_clear. */
ordo_status fsdp1_layout_make(fsdp1 *self);
/* Both leaves lie on the other axes alike: without views they may share a leaf. */
int fsdp1_same_placement(const ordo_leaf *a, const ordo_leaf *b);
void fsdp1_layout_clear(fsdp1 *self);

/* wrap.c */
ordo_status fsdp1_wrap(fsdp1 *self);
void fsdp1_unwrap(fsdp1 *self);

/* events.c */
ordo_status fsdp1_bind(void *self, sharding_group *group, void *full, void *grad);
ordo_status fsdp1_reduced(void *self, sharding_group *group, double divided_by, int held);
void fsdp1_begin_step(void *self);
void fsdp1_grad_ready(fsdp1 *self, const ordo_param *param);
/* Backward of the flat parameter has ended. Clears what it has not written in a fresh buffer, so that nothing undefined is summed. */
void fsdp1_settle(void *self, sharding_group *group, int fresh);
/* Decides together which parameters got a gradient. Collective. */
ordo_status fsdp1_vote(void *self);

/* load.c */
ordo_status fsdp1_load(fsdp1 *self);

#endif
