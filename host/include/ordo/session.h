/* ordo/session.h - a session executes a plan for an embedder, which keeps its own loop, model and optimizer.
 *
 * Life cycle: create -> setup (all steps of the plan) -> training steps and evaluations -> destroy. `setup` runs the whole
 * plan; `setup_next` runs one step at a time and refuses nothing but being called after the end. A failed step undoes
 * the earlier ones in reverse; the session can then only be destroyed. After a lost rank or a deadline the session is dead
 * and every call returns that error.
 *
 * One training step, driven by the embedder:
 *   step_begin  per micro-batch { micro_begin; per unit { pre_forward, post_forward }; per unit, last first { pre_backward,
 *   grad_ready per param, post_backward }; micro_end }  step_end
 * The host refuses another order (ORDO_E_STATE, both states named).
 *
 * A pointer may be null where its comment says so; elsewhere a null pointer is ORDO_E_INVALID (E-ARGUMENT-NULL), and a null session
 * ORDO_E_INVALID without a record, or 0, 1 or null from functions that answer no status.
 */
#ifndef ORDO_SESSION_H
#define ORDO_SESSION_H

#include <ordo/job.h>
#include <ordo/plan.h>
#include <ordo/provider.h>
#include <ordo/strategy.h>

ORDO_EXTERN_C_BEGIN

typedef struct ordo_session ordo_session;
typedef struct ordo_model_builder ordo_model_builder;

/* A parameter to be described. Everything is copied except data and grad. */
typedef struct ordo_param_desc {
  size_t struct_size;
  const char *name;
  ordo_dtype dtype;
  uint32_t flags;   /* ORDO_PARAM_ */
  uint32_t tp_hint; /* ORDO_TP_ */
  int32_t tp_block;
  int32_t tie_group; /* -1: not tied; equal numbers >= 0 share storage */
  uint32_t ndim;
  int64_t shape[ORDO_MAX_DIMS];
  void *data; /* the embedder's storage, or null: the host allocates when it is needed */
  void *grad;
} ordo_param_desc;
ORDO_PIN_LAST(ordo_param_desc, grad);

/* Appends a unit in execution order and returns its index in *unit (may be null). Errors: INVALID (duplicate or empty name), NOMEM. [main]
 * since 0.1 */
ORDO_EXPORT ordo_status ordo_model_builder_unit(ordo_model_builder *builder, const char *name, const char *class_name, uint32_t *unit);
/* Appends a parameter to the unit added last. Errors: INVALID (duplicate name, shape, tie group with another shape or dtype), NOMEM. [main]
 * since 0.1 */
ORDO_EXPORT ordo_status ordo_model_builder_param(ordo_model_builder *builder, const ordo_param_desc *desc, uint32_t *param);

/* The embedder's side of the plan. Null members are skipped unless marked required. All get `ctx` first. An error must have been
 * recorded with ordo_fail. */
typedef struct ordo_embedder {
  size_t struct_size;
  void *ctx;
  /* model.build: describes the model. Required. [main] since 0.1 */
  ordo_status (*model_build)(void *ctx, ordo_session *session, uint32_t model, ordo_model_builder *builder);
  /* Source of weights: copies the chunk as fp32 (RECT packed row-major). Called for weights.load, weights.load_sharded and by
   * plugins; must give the same values on every rank and in any order of calls. Required unless all params came with data. [main] since 0.1
   */
  ordo_status (*weights_read)(void *ctx, const ordo_model *model, const ordo_chunk *chunk, float *dst);
  /* A param computes elsewhere now; data or grad may be null. A param of an opaque type (param->dtype) has fp32 data here, while its unit
   * runs. [step] since 0.1 */
  ordo_status (*bind)(void *ctx, const ordo_model *model, const ordo_param *param, void *data, void *grad);
  /* optimizer.create: makes the optimizer from model->leaves, once per trained model. Required for training. [main] since 0.1 */
  ordo_status (*optimizer_create)(void *ctx, const ordo_model *model, ordo_optimizer *optimizer);
  /* scheduler.create, and the scheduler's turn after each optimizer step that was not skipped. [main] / [step] since 0.1 */
  ordo_status (*scheduler_create)(void *ctx, ordo_optimizer *optimizer);
  ordo_status (*scheduler_step)(void *ctx, ordo_optimizer *optimizer, int64_t step);
  /* restore.*: `step` says which (ORDO_STEP_RESTORE_...). [main] since 0.1 */
  ordo_status (*restore)(void *ctx, ordo_step step);
  /* A phase of the plan begins (entering 1) or ends (0). [main] since 0.1 */
  ordo_status (*phase)(void *ctx, ordo_phase phase, int32_t entering);
  /* A set-up step was finished. [main] since 0.1 */
  void (*step_done)(void *ctx, const ordo_plan_node *node, double seconds);
  /* Runs a range of units, for plugins that take over the schedule (job.h). [step] since 0.1 */
  ordo_status (*run_units)(void *ctx, const ordo_model *model, uint32_t first, uint32_t last, int32_t micro_batch, int32_t direction,
                           const float *in, float *out);
  int64_t (*activation_numel)(void *ctx, const ordo_model *model, uint32_t unit);
  /* A statistic of a plugin. [step] since 0.1 */
  void (*metric)(void *ctx, const char *plugin, const char *name, double value);
  /* From now on the elements of `param` are of `dtype` and those of its gradient of `grad_dtype`; `bind` follows if it has storage. Says
   * that the embedder can compute so; it refuses what it cannot with UNSUPPORTED. Null: it computes with fp32 storage only, and a
   * precision plugin that converts the model is refused. [main] since 0.1 */
  ordo_status (*convert)(void *ctx, const ordo_model *model, const ordo_param *param, ordo_dtype dtype, ordo_dtype grad_dtype);
  /* From now on the linear layer with weight `base` [out, in] computes y = x base^T + scale * (x a^T) b^T, with a [rank, in] and
   * b [out, rank], params of the same unit that are bound and reported ready like any other. It refuses what it cannot compute with
   * UNSUPPORTED. Null: it has no adapters. [main] since 0.1 */
  ordo_status (*adapt)(void *ctx, const ordo_model *model, const ordo_param *base, const ordo_param *a, const ordo_param *b, double scale);
} ordo_embedder;
ORDO_PIN_LAST(ordo_embedder, adapt);

typedef struct ordo_session_options {
  size_t struct_size;
  const ordo_comm_provider *comm; /* null: a single rank. Must outlive the session */
  uint64_t seed;
  double max_grad_norm;    /* clip to this global norm; 0: no clipping (the norm is still computed) */
  uint32_t ordered;        /* 1: reproducible reductions and norm, independent of the strategy */
  uint32_t drift_interval; /* compare replicas bit by bit every so many steps; 0: never */
  uint32_t no_weight_sync; /* 1: trust the ranks to start equal (tests); weights.sync then only compares */
  uint32_t dry_run;        /* 1: plan, set-up and steps run, but nothing has storage (job.h); needs `comm` of ordo_comm_fake_create */
} ordo_session_options;
ORDO_PIN_LAST(ordo_session_options, dry_run);

typedef struct ordo_step_result {
  size_t struct_size;
  int64_t step;     /* number of the step, 1 for the first */
  double weight;    /* counted tokens (or whatever step_begin was given) over all ranks and micro-batches */
  double grad_norm; /* global L2 norm before clipping */
  double clip_coef; /* 1 when not clipped */
  int32_t skipped;  /* 1: overflow or vote; no weight changed */
  int32_t reserved;
  double comm_seconds; /* inside collectives, this rank */
  double wait_seconds; /* of it, waiting for others */
  double loss_scale;   /* with which the step ran (loss 0); 1 without a precision plugin that scales */
} ordo_step_result;
ORDO_PIN_LAST(ordo_step_result, loss_scale);

/* Loads the plan's plugins, checks note against entry, makes instances. Errors: CONFLICT (the plan is not legal), REFUSED, INVALID,
 * UNSUPPORTED (dry_run, and a plugin does not declare it),
 * MISMATCH (another rank has another plan; the rank is named). The caller owns *session; context and plan must outlive it. [main] since 0.1
 */
ORDO_EXPORT ordo_status ordo_session_create(ordo_context *context, const ordo_plan *plan, const ordo_embedder *embedder,
                                            const ordo_session_options *options, ordo_session **session);
/* teardown: reverse order of set-up. Null is fine. [main] since 0.1 */
ORDO_EXPORT void ordo_session_destroy(ordo_session *session);
/* Runs all steps of the plan that have not run. [main] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_setup(ordo_session *session);
/* Runs the next step only; *node says which (null after the last). [main] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_setup_next(ordo_session *session, const ordo_plan_node **node);
/* Runs the given step now if it is the next one; else ORDO_E_STATE naming the step that is due. [main] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_run(ordo_session *session, const char *step);

/* Never null after create. [any] since 0.1 */
ORDO_EXPORT const ordo_mesh *ordo_session_mesh(const ordo_session *session);
/* Null before model.build and past the end. [any] since 0.1 */
ORDO_EXPORT const ordo_model *ordo_session_model(const ordo_session *session, uint32_t model);
/* Null before optimizer.create. [main] since 0.1 */
ORDO_EXPORT ordo_optimizer *ordo_session_optimizer(ordo_session *session, uint32_t model);
/* ORDO_OK if the leaf is live; ORDO_E_STALE with the step that replaced it. [any] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_check_leaf(ordo_session *session, const ordo_leaf *leaf);
/* This rank's place on the data axes: the batch is split into `size` parts and this rank takes part `index`. [any] since 0.1 */
ORDO_EXPORT void ordo_session_data_part(const ordo_session *session, int32_t *index, int32_t *size);
/* What this rank feeds the next passes (ids and targets), compared by checksum along every axis whose strategy needs identical data; free
 * if there is none. Collective. Errors: MISMATCH (E-DATA-DIFFERS, the axis is named). [step] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_check_data(ordo_session *session, const void *data, size_t bytes);
/* values[n] summed over the data axes, for losses and counts. Collective. [step] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_sum(ordo_session *session, double *values, size_t n);

/* Starts a training step of `n_micro_batches`; `weight` is this rank's share of the divisor: counted tokens of all its micro-batches
 * of this step (may be 0 on a rank, not on all). Collective. [step] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_step_begin(ordo_session *session, int32_t n_micro_batches, double weight);
/* What the gradient of the summed loss must be multiplied by at the start of backward: loss scale, and 1/weight if no strategy
 * divides or gradients are fp16 (which would overflow as a sum over tokens). [step] since 0.1 */
ORDO_EXPORT double ordo_session_loss_factor(const ordo_session *session);
/* The micro-batches that follow belong to another loss of the session (0 at the start of each step), which may have another scale:
 * gradients held so far are brought to it. Legal in a step where a micro-batch follows; all ranks alike, or step_end answers MISMATCH
 * (E-STEP-LOSS-DIFFERS). Only a loss under which a micro-batch ran was used by the step. Errors: INVALID (the precision plugin has no such
 * loss), STATE, UNSUPPORTED (a strategy reduces every micro-batch). [step] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_select_loss(ordo_session *session, uint32_t loss_id);
/* By how much the loss scale makes gradients larger after reduce_gradients, before step.unscale takes it out: divide by it what is looked
 * at there. 1 without one. [step] since 0.1 */
ORDO_EXPORT double ordo_session_loss_scale(const ordo_session *session);
/* The global weight of the running step. [step] since 0.1 */
ORDO_EXPORT double ordo_session_step_weight(const ordo_session *session);
ORDO_EXPORT ordo_status ordo_session_micro_begin(ordo_session *session);                                 /* [step] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_pre_forward(ordo_session *session, uint32_t model, uint32_t unit);  /* [step] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_post_forward(ordo_session *session, uint32_t model, uint32_t unit); /* [step] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_pre_backward(ordo_session *session, uint32_t model, uint32_t unit); /* [step] since 0.1 */
/* The embedder has added the last contribution of this micro-batch to the param's gradient. [step] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_grad_ready(ordo_session *session, uint32_t model, uint32_t param);
ORDO_EXPORT ordo_status ordo_session_post_backward(ordo_session *session, uint32_t model, uint32_t unit); /* [step] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_micro_end(ordo_session *session);                                    /* [step] since 0.1 */
/* 1 if the next write to the param's gradient must add, 0 if it may overwrite. [step] since 0.1 */
ORDO_EXPORT int ordo_session_grad_adds(const ordo_session *session, uint32_t model, uint32_t param);
/* Runs the plan's step events: reduce, divide, unscale, vote, norm, clip, optimizer, post_step, scheduler. Collective. Errors:
 * INVARIANT (a leaf was not reduced, the norm is not finite without a scaler, nothing changed), MISMATCH (ranks ran other losses or loss
 * scales, nothing changed; or a scaler gave up on another rank), those of plugins. [step] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_step_end(ordo_session *session, ordo_step_result *result);
/* Steps 1-3 of step_end only (reduce, divide), leaving true gradients in the leaves for inspection; step_end must follow. [step] since 0.1
 */
ORDO_EXPORT ordo_status ordo_session_reduce_gradients(ordo_session *session);
/* Brackets forward passes without gradients; pre_forward and post_forward inside. [step] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_eval_begin(ordo_session *session);
ORDO_EXPORT ordo_status ordo_session_eval_end(ordo_session *session);
/* 1 if some strategy transforms what passes at that place (strategy.h): ask once after the set-up, and offer nothing else. [main] since 0.1
 */
ORDO_EXPORT int ordo_session_wants_activation(const ordo_session *session, uint32_t model, uint32_t point, uint32_t param,
                                              int32_t backward);
/* How the rows of the residual stream are split (strategy.h, residual): *parts 1 and *index 0 if they are not. [main] since 0.1 */
ORDO_EXPORT void ordo_session_residual(const ordo_session *session, uint32_t model, int32_t *parts, int32_t *index);
/* Offers an activation to the strategies that want it (strategy.h). Free when none does. [step] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_activation(ordo_session *session, uint32_t model, ordo_activation *activation);
/* The type for an operation of class ORDO_OP_ (precision.h); ORDO_F32 without a precision plugin. [step] since 0.1 */
ORDO_EXPORT ordo_dtype ordo_session_op_dtype(const ordo_session *session, uint32_t op);
/* Whole parameters for export or generation (ORDO_GATHER_ flags of state.h), until release_full. Collective. While the scope is open, under
 * every strategy: forwards of an evaluation are legal (not with ORDO_GATHER_RANK0_ONLY); step_begin, a second scope on the model, import
 * and export of its state are not. Errors: STATE (E-STATE-ORDER, the session goes on), those of a gather. [step] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_gather_full(ordo_session *session, uint32_t model, uint32_t flags);
/* Closes the scope. Errors: STATE (none is open: E-STATE-ORDER, the session goes on), those of collectives. [step] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_release_full(ordo_session *session, uint32_t model);

/* State in memory, for checkpoints. `slot` below 0 is the weight (of the fp32 master if there is one), else that state tensor of the
 * optimizer (n_slots, slot_name). Elements are fp32, packed row-major, whatever is stored: a weight of bf16 or fp16 without a master comes
 * out exactly, and goes in rounded to nearest even (a value that came out goes in unchanged); with a master the master takes the fp32 value
 * and the weight its rounding. Optimizer state is fp32 in any case. Legal between steps, in an evaluation when no unit is open, and in
 * restore steps; not while a scope of gather_full is open on the model.
 *
 * Sharded: what this rank holds of a live leaf is leaf->placement->chunks; over all ranks they cover each parameter, and padding lies
 * outside of all of them. A chunk must lie inside one of them and be of its kind; its leaf_offset is not read. Import makes optimizer state
 * that does not exist yet (ordo_optimizer.restore). Errors: STALE, INVALID (not held here, no such slot, a frozen leaf has no state),
 * NOT_FOUND without a record (no update has made the state yet), UNSUPPORTED (elements that are no numbers of 16 or 32 bits and have no
 * master: E-STATE-DTYPE). Local: no communication. [main] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_export_chunk(ordo_session *session, const ordo_leaf *leaf, const ordo_chunk *chunk, int32_t slot,
                                                  float *dst);
ORDO_EXPORT ordo_status ordo_session_import_chunk(ordo_session *session, const ordo_leaf *leaf, const ordo_chunk *chunk, int32_t slot,
                                                  const float *src);
/* Full: param->numel elements on every rank that passes a dst (null: it only takes part); any strategy, any number of ranks, bit for bit.
 * Collective. Errors as for a chunk, the same on all ranks (STATE on those where nothing is wrong), those of collectives, NOMEM. [main]
 * since 0.1 */
ORDO_EXPORT ordo_status ordo_session_export_param(ordo_session *session, const ordo_param *param, int32_t slot, float *dst);
/* Every rank takes its part of `src`, which must be the same everywhere. Local. [main] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_import_param(ordo_session *session, const ordo_param *param, int32_t slot, const float *src);
/* How often the optimizer has updated a parameter, the most of all ranks; and writes it into every leaf that holds it. Errors: UNSUPPORTED
 * (the optimizer has no `updates` or `restore`), INVALID (frozen). Export is collective. [main] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_export_updates(ordo_session *session, const ordo_param *param, int64_t *updates);
ORDO_EXPORT ordo_status ordo_session_import_updates(ordo_session *session, const ordo_param *param, int64_t updates);
/* Changes a setting of the running job: when a model's units are gathered, reduced and released (control.h says what, and when each
 * operation is legal). All ranks alike. Errors: STATE (not now: both states named), INVALID (operation, unit, value), UNSUPPORTED (no
 * strategy of the model knows the operation; they are named), and those of a gather. After one of the first three the session goes on.
 * [step] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_control(ordo_session *session, uint32_t model, const ordo_control *control);

/* Hands the whole step to a strategy that takes over the schedule (strategy.h, run_schedule), right after step_begin; step_end follows.
 * NOT_FOUND without a record if the plan has none: run your own loop. [step] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_run_schedule(ordo_session *session);
/* Who computes a unit instead of the embedder: fills *override, or NOT_FOUND without a record. Ask once, after the set-up. [main] since 0.1
 */
ORDO_EXPORT ordo_status ordo_session_override_unit(ordo_session *session, uint32_t model, uint32_t unit, ordo_unit_override *override);

/* Counters of a run that goes on: `steps` were begun before (skipped ones too), `updates` of them changed weights; the optimizer and the
 * scheduler count on from there. Legal from restore.scheduler on and before the first step. Errors: INVALID (not 0 <= updates <= steps).
 * [main] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_resume_at(ordo_session *session, uint32_t model, int64_t steps, int64_t updates);
/* The private state of the precision plugin of a model on this rank (a loss scaler), for a checkpoint: *size is the room in `blob` and
 * becomes what is needed; a null blob only asks. 0 bytes without a plugin that has state. [main] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_precision_save(ordo_session *session, uint32_t model, void *blob, size_t *size);
/* The inverse, in restore.precision or between steps; `version` is the plugin's when it was saved (null: this one's). Errors: STATE
 * (before precision.wrap_optimizer), NOT_FOUND (no plugin with state), those of the plugin. Local; if the loss scales of ranks differ
 * afterwards the next step_end answers MISMATCH on all of them. [main] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_precision_load(ordo_session *session, uint32_t model, const void *blob, size_t size,
                                                    const char *version);

/* Bytes now and at the peak under an ORDO_MEM_ tag (ORDO_N_MEM_TAGS: all together), of everything the host and plugins allocated for the
 * session. [any] since 0.1 */
ORDO_EXPORT void ordo_session_memory(const ordo_session *session, uint32_t tag, int64_t *now, int64_t *peak);
/* Memory from the session's allocator, counted under a tag: for embedders that want one account. [any] since 0.1 */
ORDO_EXPORT void *ordo_session_alloc(ordo_session *session, size_t bytes, uint32_t tag);
ORDO_EXPORT void ordo_session_free(ordo_session *session, void *memory);
/* Collectives of an axis (by name, null: the whole mesh), per kind. [any] since 0.1 */
ORDO_EXPORT ordo_status ordo_session_comm_stats(const ordo_session *session, const char *axis, ordo_comm_stats *stats);
/* The last collectives, oldest first, one a line; freed with ordo_string_free. [main] since 0.1 */
ORDO_EXPORT char *ordo_session_comm_report(const ordo_session *session);

ORDO_EXTERN_C_END

#endif
