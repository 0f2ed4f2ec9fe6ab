/* sharding.h - what every strategy that shards parameters shares: communication groups in a training step.
 *
 * A group is a set of parameters that are gathered by one all-gather and whose gradients are reduced by one reduce-scatter. How parameters
 * lie in a shard is the plugin's business (one flat range for fsdp1, one dim-0 chunk per parameter for fsdp2) and is said once, as pieces.
 * A group has one type of elements and one of gradients; units with parameters of several types have a group of each: they are gathered,
 * released and reduced together, by one collective per type.
 * When to gather, to release, to prefetch, to accumulate and to reduce is the same for both, and is here.
 *
 *   SHARDED --unshard--> GATHERING --needed--> UNSHARDED --release--> SHARDED
 *
 * Use: plan groups (sharding_create), replace leaves with shards that live in group->shard, load weights into them. Step events and
 * settings of the running job are the core's: the strategy table names them with SHARDING_EVENTS, its state table with SHARDING_FULL_SCOPE.
 * The plugin says which gradient is ready (grad_ready) and is called back to bind its parameters and to report gradients.
 *
 * Invariants
 *  - Collectives are started in an order that depends on the order of units alone, so ranks cannot mismatch unless they run different
 * units; each carries the number of its group, which the communicator compares: E-COMM-MISMATCH names both groups and ranks.
 *  - At most `limit` groups besides the root are gathered at a time, unless reshard_after_forward is off.
 *  - A group's gathered parameters have the same addresses in forward and backward, and NaN outside (storage.h).
 *  - One gradient buffer serves all groups in turn; the root has its own. With no_sync each group keeps its own until the last micro-batch.
 *  - In ordered mode beside another data axis the whole sum is made here, in rank order over all ranks that share it (sharding_sum_ranks):
 * a sum over one axis of sums over the other would have other bits than the same ranks on one axis. Each rank then holds the sum of a whole
 * group for a moment, which costs no memory (it is where the gradient was) but the traffic of an all-reduce.
 */
#ifndef SHARDING_SHARDING_H
#define SHARDING_SHARDING_H

#include "storage.h"

#include <ordo/strategy.h>

enum { SHARDING_PREFETCH_NONE = 0, SHARDING_PREFETCH_PRE = 1, SHARDING_PREFETCH_POST = 2 };
enum { SHARDING_SHARDED = 0, SHARDING_GATHERING = 1, SHARDING_UNSHARDED = 2 };

typedef struct sharding sharding;

typedef struct sharding_options {
  int reshard_after_forward; /* 1: release after forward, gather again for backward */
  int64_t reshard_size;      /* 0, or keep 1/reshard_size of it between forward and backward (a divisor of the axis) */
  int backward_prefetch;     /* SHARDING_PREFETCH_ */
  int forward_prefetch;
  uint32_t limit;              /* groups gathered at a time, 2 */
  int keep_in_no_sync;         /* micro-batches that only accumulate leave parameters gathered for the next one (SHARD_GRAD_OP) */
  int sync_each;               /* reduce in every micro-batch into the shard instead of accumulating whole gradients (no_sync) */
  int replicated;              /* nothing is sharded: shard == full, gradients are all-reduced (NO_SHARD) */
  ordo_dtype param_dtype;      /* what travels in all-gathers; widened to fp32 for an embedder that computes in fp32 */
  ordo_dtype reduce_dtype;     /* what travels in reductions of fp32 gradients, and the type of their no_sync accumulation */
  ordo_dtype low_reduce_dtype; /* the same of 16-bit gradients: their own type (also said by 0) or fp32 */
  double predivide; /* fp16 sums: divided down to the mean of the ranks over this before, and by it after; 0: by the rule of sqrt */
  int poison;
  double divide_ratio; /* gradients are divided by divide_factor times this; 0: 1 */
  const char *offload; /* null, or the directory of the cold tier (cold.h) */
} sharding_options;

/* One piece of a shard: `count` elements of every rank. Gathered, piece i of rank r stands at full_offset + r * count, so a parameter that
 * is split on dim 0 comes out whole, with its padding behind it. */
typedef struct sharding_piece {
  int64_t shard_offset;
  int64_t full_offset;
  int64_t count;
  int32_t trainable; /* 0: no gradient; left out of reductions */
  int32_t reserved;
} sharding_piece;

/* What the plugin says of a group. Copied. A group with the units of an earlier one (all of them) goes together with that one. */
typedef struct sharding_group_spec {
  const char *name;      /* label of its collectives */
  const uint32_t *units; /* ascending */
  uint32_t n_units;
  int is_root; /* stays gathered between forward and backward */
  const sharding_piece *pieces;
  uint32_t n_pieces;
  ordo_dtype dtype, grad_dtype; /* ORDO_F32, ORDO_BF16 or ORDO_F16 each; 0: ORDO_F32 */
} sharding_group_spec;

typedef struct sharding_group {
  const char *name;
  uint32_t index;
  uint32_t n_units;
  uint32_t *units;
  int is_root;
  int trainable; /* any piece is */
  uint32_t n_pieces;
  sharding_piece *pieces;
  int64_t count;            /* elements of this rank in an all-gather: the sum of the pieces, padding of chunks included */
  int64_t grad_count;       /* the same of trainable pieces: of a reduce-scatter */
  int64_t shard_numel;      /* elements that the pieces span in the shard, gaps for alignment included */
  int64_t full_numel;       /* elements that they span when gathered */
  ordo_dtype dtype;         /* of shard and full */
  ordo_dtype grad_dtype;    /* of grad_shard and full_grad */
  void *shard;              /* [shard_numel], where leaves point; memory of the communicator or of the cold tier */
  void *grad_shard;         /* [shard_numel], the reduced gradient; null without trainable pieces. Leaves' gradients point into it */
  void *full;               /* [full_numel] gathered parameters: fixed address, see storage.h */
  void *full_grad;          /* [full_numel] gradients during backward, null outside */
  int state;                /* SHARDING_ */
  void *user;               /* the plugin's */
  struct sharding_run *run; /* private: requests, regions */
} sharding_group;

/* What the plugin does at a step event. Null members, bind and reduced excepted, do nothing. */
typedef struct sharding_callbacks {
  void *self;
  /* Binds the group's parameters: full null: released; grad null: no gradient now. [step] */
  ordo_status (*bind)(void *self, sharding_group *group, void *full, void *grad);
  /* The reduced gradient of a trainable group stands in grad_shard, divided by `divided_by`: mark leaves HELD and reduced. `held` 0: the
   * group ran no backward in this step. [step] */
  ordo_status (*reduced)(void *self, sharding_group *group, double divided_by, int held);
  /* A step begins. [step] */
  void (*begin_step)(void *self);
  /* Backward of a trainable group has ended in this micro-batch. `fresh`: its buffer held nothing of earlier ones, so what backward did not
   * write must be cleared. Null: pieces that sharding_grad_ready was not told of are cleared. [step] */
  void (*settle)(void *self, sharding_group *group, int fresh);
  /* All ranks decide which parameters got a gradient in this step: before the first `reduced`. Collective. [step] */
  ordo_status (*vote)(void *self);
  /* Units have run, in a micro-batch or an evaluation. Collective. [step] */
  ordo_status (*end_pass)(void *self);
  /* The leaf of a piece, for a precision plugin that packs what is gathered. Null: pieces hold parts of several leaves. */
  const ordo_leaf *(*leaf)(void *self, const sharding_group *group, uint32_t piece);
} sharding_callbacks;

/* The ranks that reductions sum over: those of the axis, or in ordered mode all that the host joins in mesh->data. [main] */
const ordo_comm *sharding_sum_ranks(const ordo_job *job);
/* Says of a leaf over which axes its gradient is partial: not over axes whose ranks are summed here although others own them. [main] */
void sharding_place_gradient(const ordo_job *job, ordo_placement *placement);

/* Makes the groups with storage for shards and gradients (zeroed). Collective. Errors: NOMEM, INVALID (limit, reshard_size). On an error
 * nothing is left. [main] */
ordo_status sharding_create(const ordo_job *job, const sharding_options *options, const sharding_callbacks *callbacks,
                            const sharding_group_spec *specs, uint32_t n_specs, sharding **result);
/* Collective while the session lives. Null is fine. [main] */
void sharding_destroy(sharding *s);
/* Element `index` of an array of the type; null stays null. */
ORDO_INLINE void *sharding_at(void *array, ordo_dtype dtype, int64_t index)
{
  return array != NULL ? (char *)array + index * (int64_t)ordo_dtype_size(dtype) : NULL;
}
sharding_group *sharding_group_at(sharding *s, uint32_t index);
/* The first of those that hold parameters of the unit; null if there is none. */
sharding_group *sharding_group_of_unit(sharding *s, uint32_t unit);

/* ---- members of the plugin's tables ----
 *
 * `instance` is the plugin's. Its first member is its `sharding *`, null before sharding_create. [step] */
ORDO_INLINE sharding *sharding_of(void *instance)
{
  return *(sharding **)instance;
}

ordo_status sharding_step_begin(void *instance, const ordo_step_info *info);
ordo_status sharding_micro_begin(void *instance, const ordo_step_info *info);
ordo_status sharding_pre_forward(void *instance, const ordo_unit *unit);
ordo_status sharding_post_forward(void *instance, const ordo_unit *unit);
ordo_status sharding_pre_backward(void *instance, const ordo_unit *unit);
ordo_status sharding_post_backward(void *instance, const ordo_unit *unit);
ordo_status sharding_micro_end(void *instance, const ordo_step_info *info);
ordo_status sharding_reduce(void *instance, const ordo_step_info *info);
ordo_status sharding_step_end(void *instance, const ordo_step_info *info);
ordo_status sharding_eval_begin(void *instance);
ordo_status sharding_eval_end(void *instance);
/* Every operation of ordo/control.h. */
ordo_status sharding_control(void *instance, const ordo_control *control);
/* All parameters whole at once. release with write_back: changes reach the shards. ORDO_GATHER_ flags. */
ordo_status sharding_gather_full(void *instance, uint32_t flags);
ordo_status sharding_release_full(void *instance);

/* clang-format off */
#define SHARDING_EVENTS                     \
  .step_begin = sharding_step_begin,        \
  .micro_begin = sharding_micro_begin,      \
  .pre_forward = sharding_pre_forward,      \
  .post_forward = sharding_post_forward,    \
  .pre_backward = sharding_pre_backward,    \
  .post_backward = sharding_post_backward,  \
  .micro_end = sharding_micro_end,          \
  .reduce = sharding_reduce,                \
  .step_end = sharding_step_end,            \
  .eval_begin = sharding_eval_begin,        \
  .eval_end = sharding_eval_end,            \
  .control = sharding_control
#define SHARDING_FULL_SCOPE                 \
  .gather_full = sharding_gather_full,      \
  .release_full = sharding_release_full
/* clang-format on */

/* Piece `piece` of the group got its gradient in this micro-batch; pieces that got none are cleared before the reduction. */
void sharding_grad_ready(sharding_group *group, uint32_t piece);
/* Starts gathering, or gathers and binds. ORDO_OK if it is so already. */
ordo_status sharding_unshard(sharding *s, sharding_group *group, int wait);
/* Shards were written from outside of a step: what is gathered (by hand) is old. Null is fine. Collective if anything is gathered. */
ordo_status sharding_forget(sharding *s);

/* The types that a group can have, and the name of any. */
int sharding_is_float(ordo_dtype dtype);
const char *sharding_dtype_name(ordo_dtype dtype);
/* values[n] to the nearest of a 16-bit type. */
void sharding_round(ordo_dtype dtype, float *values, int64_t n);

/* Records an error with the job's host and returns `status`. */
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
ordo_status
sharding_fail(const ordo_job *job, ordo_status status, const char *hint, const char *format, ...);

#endif
