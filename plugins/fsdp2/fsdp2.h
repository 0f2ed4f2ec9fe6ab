/* fsdp2.h - what the files of this plugin share: the options, the instance, its shards.
 *
 *   fsdp2.c    manifest, tables, life cycle
 *   options.c  options, read and checked
 *   layout.c   which leaf is cut how, and every reason to refuse it
 *   joint.c    strategy.prepare_joint: model and optimizer together, all or nothing
 *   events.c   what a training step means for parameters: binding, the vote on unused ones, reports
 *   output.c   output_dtype
 * When to gather, to release and to reduce is decided in ../sharding, which fsdp1 uses as well.
 */
#ifndef FSDP2_FSDP2_H
#define FSDP2_FSDP2_H

#include "../sharding/options.h"
#include "../sharding/sharding.h"
#include "../sharding/units.h"

typedef struct fsdp2_options {
  sharding_policy units;
  const char *ignored;     /* patterns joined with ',', or empty */
  ordo_dtype output_dtype; /* what leaves a group */
  sharding_options sharding;
} fsdp2_options;

/* One leaf of the model before prepare_joint, and its shard. Tied parameters are one. */
typedef struct fsdp2_shard {
  const ordo_leaf *old_leaf; /* replaced by prepare_joint */
  const ordo_param *param;   /* the first of its tie group */
  uint32_t group;            /* index of fsdp2_group */
  uint32_t piece;            /* inside the group */
  int ignored;
  int trainable;
  int64_t rows;  /* that this rank computes with */
  int64_t row;   /* elements of one */
  int64_t width; /* of one, as stored: elements, or words of 4 bytes of an opaque type */
  int64_t chunk; /* rows of a rank: rows / ranks, rounded up */
  int64_t begin; /* rows [begin, end) are this rank's; may be none */
  int64_t end;
  int64_t shard_offset; /* elements, in the shard of the group and in the whole */
  int64_t full_offset;
  int used;         /* it got a gradient in this step, on this rank */
  void *storage[2]; /* of an ignored one: data and gradient */
} fsdp2_shard;

/* The parameters of one type of the units that the policy gathers together. */
typedef struct fsdp2_group {
  char name[112];
  ordo_dtype dtype, grad_dtype;
  uint32_t n_pieces;
  sharding_group *group; /* null if no parameter is in it */
} fsdp2_group;

typedef struct fsdp2 {
  sharding *sharding; /* first: where the events find it; from prepare_joint on */
  const ordo_job *job;
  fsdp2_options options;
  int outputs_seen;    /* with output_dtype: this rank was offered the output of a unit */
  int outputs_checked; /* some rank was */
  /* from prepare_joint on */
  fsdp2_shard *shards; /* [n_shards], in the order of the old leaves; new leaf i is that of shard i */
  uint32_t n_shards;
  uint32_t *shard_of_param; /* by index of param */
  uint32_t *by_group;       /* shards, group by group and piece by piece; ignored ones left out */
  fsdp2_group *groups;      /* [n_groups]: those of the first type, by index of the policy, then those of the next */
  uint32_t n_groups;
  uint32_t n_policy; /* groups of the policy; 0 is the root */
  uint32_t *group_of_unit;
  uint32_t *first_unit, *next_unit; /* the same as chains over [n_policy] and the units of the model, see sharding_chain */
  int32_t *votes;
} fsdp2;

void *fsdp2_alloc(const ordo_job *job, uint64_t count, size_t size, uint32_t tag);

/* options.c */
void fsdp2_read_options(fsdp2 *self);
ordo_status fsdp2_check_options(const fsdp2 *self);

/* layout.c: makes shards and groups from job->model, or says why not. Everything is freed by fsdp2_layout_clear. */
ordo_status fsdp2_layout_make(fsdp2 *self);
void fsdp2_layout_clear(fsdp2 *self);

/* joint.c */
ordo_status fsdp2_prepare(fsdp2 *self, ordo_optimizer *optimizer);
void fsdp2_unprepare(fsdp2 *self);

/* events.c */
ordo_status fsdp2_bind(void *self, sharding_group *group, void *full, void *grad);
ordo_status fsdp2_reduced(void *self, sharding_group *group, double divided_by, int held);
void fsdp2_begin_step(void *self);
const ordo_leaf *fsdp2_leaf(void *self, const sharding_group *group, uint32_t piece);
void fsdp2_grad_ready(fsdp2 *self, const ordo_param *param);
/* Decides together which parameters got a gradient. Collective, before leaves are reported. */
ordo_status fsdp2_vote(void *self);

/* output.c: output_dtype. Rounds what leaves a group, and the gradient that comes back. */
ordo_status fsdp2_output(fsdp2 *self, const ordo_activation *activation);
/* Fails on all ranks if units ran and none was offered the outputs. Collective until one was. */
ordo_status fsdp2_check_outputs(void *self);

#endif
