/* ordo/step.h - the steps of a plan and the events inside a training step: one table, everything else is made from it.
 *
 * Append-only. A step's position in this table is its place in the default order; rules, flags and manifest lines
 * (docs/ordering.md) move it. Names are what manifests, `ordo plan` and error texts use.
 *
 *   X(CONSTANT, "name", default phase, default provider, what happens)
 */
#ifndef ORDO_STEP_H
#define ORDO_STEP_H

#include <ordo/abi.h>

/* clang-format off */
#define ORDO_PHASE_TABLE(X)          \
  X(ORDO_PHASE_SETUP, "setup")       \
  X(ORDO_PHASE_PRE_DISPATCH, "pre_dispatch") \
  X(ORDO_PHASE_DISPATCH, "dispatch") \
  X(ORDO_PHASE_POST_DISPATCH, "post_dispatch")
/* clang-format on */

/* clang-format off */
#define ORDO_STEP_TABLE(X)                                                                                                          \
  X(ORDO_STEP_MESH_INIT, "mesh.init", ORDO_PHASE_SETUP, "host", "communicators for each axis")                                      \
  X(ORDO_STEP_MODEL_BUILD, "model.build", ORDO_PHASE_SETUP, "embedder", "units and parameters described")                           \
  X(ORDO_STEP_MODEL_INJECT, "model.inject", ORDO_PHASE_SETUP, "any", "surgery that adds, freezes or replaces parameters")           \
  X(ORDO_STEP_WEIGHTS_LOAD, "weights.load", ORDO_PHASE_SETUP, "embedder", "plain weights")                                          \
  X(ORDO_STEP_WEIGHTS_SYNC, "weights.sync", ORDO_PHASE_SETUP, "host", "replicas made equal from rank 0")                            \
  X(ORDO_STEP_CONVERT_MODEL, "precision.convert_model", ORDO_PHASE_SETUP, "precision", "cast parameters, install op-class policy")  \
  X(ORDO_STEP_PARTITION, "strategy.partition", ORDO_PHASE_SETUP, "strategy", "self-sharding: which slice a rank owns")              \
  X(ORDO_STEP_OPTIMIZER_CREATE, "optimizer.create", ORDO_PHASE_SETUP, "embedder", "factory called on the current leaves")           \
  X(ORDO_STEP_INITIALIZE, "precision.initialize", ORDO_PHASE_SETUP, "precision", "model and optimizer initialised jointly")         \
  X(ORDO_STEP_WRAP_OPTIMIZER, "precision.wrap_optimizer", ORDO_PHASE_SETUP, "precision", "masters, scaler, step interception")      \
  X(ORDO_STEP_WRAP, "strategy.wrap", ORDO_PHASE_PRE_DISPATCH, "strategy", "buckets; flattening and sharding")                       \
  X(ORDO_STEP_PREPARE_JOINT, "strategy.prepare_joint", ORDO_PHASE_PRE_DISPATCH, "strategy", "shard the model and rebind the optimizer") \
  X(ORDO_STEP_PREPARE_OPTIMIZER, "strategy.prepare_optimizer", ORDO_PHASE_PRE_DISPATCH, "strategy", "optimizer alone")              \
  X(ORDO_STEP_LOAD_SHARDED, "weights.load_sharded", ORDO_PHASE_PRE_DISPATCH, "host", "weights straight into the shards")            \
  X(ORDO_STEP_SCHEDULER_CREATE, "scheduler.create", ORDO_PHASE_PRE_DISPATCH, "embedder", "writes lr into the final optimizer")      \
  X(ORDO_STEP_RESTORE_OPTIMIZER, "restore.optimizer", ORDO_PHASE_PRE_DISPATCH, "host", "optimizer state, on the bare optimizer")    \
  X(ORDO_STEP_RESTORE_PRECISION, "restore.precision", ORDO_PHASE_PRE_DISPATCH, "host", "scaler and masters")                        \
  X(ORDO_STEP_RESTORE_SCHEDULER, "restore.scheduler", ORDO_PHASE_PRE_DISPATCH, "host", "position in the schedule")                  \
  X(ORDO_STEP_RESTORE_DATA, "restore.data", ORDO_PHASE_PRE_DISPATCH, "host", "global samples consumed")                             \
  X(ORDO_STEP_RESTORE_RNG, "restore.rng", ORDO_PHASE_PRE_DISPATCH, "host", "random number streams")                                 \
  X(ORDO_STEP_VERIFY, "verify", ORDO_PHASE_PRE_DISPATCH, "host", "invariants")
/* clang-format on */

/* Events after the last micro-batch, in default order; ordered by the same solver and printed by `ordo plan`. */
/* clang-format off */
#define ORDO_EVENT_TABLE(X)                                                                                          \
  X(ORDO_EVENT_REDUCE, "step.reduce", "strategy", "gradients reduced over the strategy's axis")                      \
  X(ORDO_EVENT_DIVIDE, "step.divide", "host", "what is left of the divide factor")                                   \
  X(ORDO_EVENT_UNSCALE, "step.unscale", "precision", "loss scale taken out of the gradients")                        \
  X(ORDO_EVENT_OVERFLOW_VOTE, "step.overflow_vote", "host", "one rank's overflow skips the step on all")             \
  X(ORDO_EVENT_GRAD_NORM, "step.grad_norm", "host", "each element counted once, whatever the placement")             \
  X(ORDO_EVENT_CLIP, "step.clip", "host", "min(1, max_norm / (norm + 1e-6))")                                        \
  X(ORDO_EVENT_OPTIMIZER_STEP, "step.optimizer", "embedder", "weights updated")                                      \
  X(ORDO_EVENT_MASTERS_TO_MODEL, "step.masters_to_model", "precision", "low-precision weights refreshed")            \
  X(ORDO_EVENT_POST_STEP, "step.post_step", "strategy", "parameters gathered or exchanged after the update")         \
  X(ORDO_EVENT_SCHEDULER, "step.scheduler", "embedder", "next lr; left out when the step was skipped")
/* clang-format on */

#define ORDO_X_PHASE(C, NAME) C,
#define ORDO_X_STEP(C, NAME, PHASE, PROVIDER, WHAT) C,
#define ORDO_X_EVENT(C, NAME, PROVIDER, WHAT) C,
enum { ORDO_PHASE_TABLE(ORDO_X_PHASE) ORDO_N_PHASES };
enum { ORDO_STEP_TABLE(ORDO_X_STEP) ORDO_N_STEPS };
enum { ORDO_EVENT_TABLE(ORDO_X_EVENT) ORDO_N_EVENTS };
#undef ORDO_X_PHASE
#undef ORDO_X_STEP
#undef ORDO_X_EVENT

typedef uint32_t ordo_phase; /* an ORDO_PHASE_ value */
typedef uint32_t ordo_step;  /* an ORDO_STEP_ value */
typedef uint32_t ordo_event; /* an ORDO_EVENT_ value */

#endif
