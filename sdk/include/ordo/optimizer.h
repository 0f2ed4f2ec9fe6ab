/* ordo/optimizer.h - the optimizer as the host knows it: groups of leaves, and the operations its owner provides.
 *
 * The embedder's factory makes it from the current leaves, once. A step that replaces leaves afterwards gives the map from
 * old to new leaves, and the host applies it to groups AND to state through `rebind`, all or nothing (an optimizer left on
 * replaced leaves would step on dead memory: accelerate #3256, and state keys would be lost: accelerate #3855).
 */
#ifndef ORDO_OPTIMIZER_H
#define ORDO_OPTIMIZER_H

#include <ordo/model.h>

/* One old leaf and what it became. One old leaf may map to several new ones and the reverse (flat shards). */
typedef struct ordo_leaf_map {
  size_t struct_size;
  ordo_leaf *old_leaf;
  ordo_leaf *new_leaf;
} ordo_leaf_map;
ORDO_PIN_LAST(ordo_leaf_map, new_leaf);

typedef struct ordo_group {
  size_t struct_size;
  const char *name; /* "decay", "no_decay", or the embedder's */
  ordo_leaf **leaves;
  uint64_t n_leaves;
  double lr;
  double weight_decay;
} ordo_group;
ORDO_PIN_LAST(ordo_group, weight_decay);

typedef struct ordo_step_args {
  size_t struct_size;
  int64_t step;       /* 1 for the first optimizer step */
  double grad_factor; /* multiply every gradient by it (clip coefficient and rest of the division); 1 if already applied */
} ordo_step_args;
ORDO_PIN_LAST(ordo_step_args, grad_factor);

enum {
  ORDO_OPTIMIZER_APPLIES_FACTOR = 1u, /* step multiplies by grad_factor itself, which saves the host a pass over the gradients */
  ORDO_OPTIMIZER_16_BIT = 2u          /* step also updates leaves whose data and grad are bf16 or fp16. Without it such a leaf needs a
                                         master (E-OPTIMIZER-DTYPE): it would be read as fp32 */
};

/* Filled by whoever makes the optimizer. All functions return a status and use ordo_last_error / host->fail for the text. */
typedef struct ordo_optimizer {
  size_t struct_size;
  void *ctx;        /* first argument of the functions */
  const char *name; /* "adamw" */
  uint32_t flags;   /* ORDO_OPTIMIZER_ */
  uint32_t n_groups;
  ordo_group *groups; /* owned by the optimizer; leaves inside are rewritten by rebind only */

  /* Updates the data of every leaf in the groups whose grad_state is HELD. [step] since 0.1 */
  ordo_status (*step)(void *ctx, const ordo_step_args *args);
  /* Moves groups and state from old to new leaves, atomically: on an error nothing has changed. May be null if the optimizer
   * cannot be rebound; the plan then refuses steps that need it. [main] since 0.1 */
  ordo_status (*rebind)(void *ctx, const ordo_leaf_map *map, size_t n);
  /* Number of state tensors per leaf and their names ("exp_avg", "exp_avg_sq"). [any] since 0.1 */
  uint32_t (*n_slots)(void *ctx);
  const char *(*slot_name)(void *ctx, uint32_t slot);
  /* State tensor of a leaf: leaf->numel fp32 elements owned by the optimizer, null before it exists. [step] since 0.1 */
  float *(*slot)(void *ctx, const ordo_leaf *leaf, uint32_t slot);
  /* Frees the optimizer and its groups. [main] since 0.1 */
  void (*destroy)(void *ctx);
  /* How often the leaf was updated (bias correction counts it), 0 for one without state. May be null. [main] since 0.1 */
  int64_t (*updates)(void *ctx, const ordo_leaf *leaf);
  /* For resuming: makes the state tensors of a leaf if there are none, zeroed, and says how often it was updated; what the tensors hold is
   * written into `slot` afterwards. May be null: state can then be imported only once it exists. Errors: NOMEM. [main] since 0.1 */
  ordo_status (*restore)(void *ctx, ordo_leaf *leaf, int64_t updates);
} ordo_optimizer;
ORDO_PIN_LAST(ordo_optimizer, restore);

#endif
