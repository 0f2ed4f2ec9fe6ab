/* ordo/strategy.h - "ordo.strategy/1": how a model is distributed over one mesh axis.
 *
 * Every member may be null except create and destroy; a step that the manifest declares must have its member, and a member
 * that only a step, reduces=yes or an event leads to must be declared by some line of the manifest (E-PLUGIN-TABLE). The host calls set-up
 * members in the order of the plan, each once, and step events in the order stated here.
 *
 * One training step
 *   step_begin  { micro_begin  { pre_forward, post_forward per unit }  { pre_backward, grad_ready per param, post_backward per
 *   unit, last unit first }  micro_end } per micro-batch  reduce  pre_step  post_step  step_end
 * Gradients are reduced when info->is_last_micro_batch; before that a strategy only accumulates (no_sync).
 */
#ifndef ORDO_STRATEGY_H
#define ORDO_STRATEGY_H

#include <ordo/control.h>
#include <ordo/job.h>
#include <ordo/state.h>

#define ORDO_STRATEGY_EXTENSION "ordo.strategy/1"

/* Named places where a strategy may transform an activation forward and its gradient backward. Each belongs to a parameter; the tokens of
 * a pass are rows. [rows] below means [tokens, ...], [part] the rows of the residual stream that this rank holds (see `residual`): the
 * same unless sequence parallelism splits them. A place that changes shape reads `data` and writes `out`. */
enum {
  ORDO_ACT_COLUMN_INPUT =
      1,                   /* input of a column-parallel group, param its first (q or gate): [part] -> [rows]; backward [rows] -> [part] */
  ORDO_ACT_ROW_OUTPUT = 2, /* output of a row-parallel linear (o, down), before the residual is added: [rows] -> [part]; backward back */
  ORDO_ACT_EMBED_OUTPUT = 3, /* output of an embedding; ids outside of the local rows gave zeros: [rows] -> [part]; backward back */
  ORDO_ACT_HEAD_INPUT = 4,   /* input of a head: [part] -> [rows]; backward [rows] -> [part] */
  ORDO_ACT_LOSS_MAX = 5,     /* per-token maximum of the local logits: [rows, 1] fp32; forward only */
  ORDO_ACT_LOSS_SUM = 6,    /* per-token sum of exp(logit - maximum), and target's logit - maximum (0 elsewhere): [rows, 2]; forward only */
  ORDO_ACT_NORM_INPUT = 7,  /* input of a norm */
  ORDO_ACT_LOGITS = 8,      /* local logits whose whole rows are asked for: [rows, local] -> [rows, vocabulary]; forward only */
  ORDO_ACT_WEIGHT_GRAD = 9, /* what one micro-batch contributes to the gradient of `param`, in its local shape, before it is added:
                              completes it over the ranks that share the param; backward only */
  ORDO_ACT_UNIT_OUTPUT = 10 /* what a unit hands on, whole and last: activations [part], or the logits of the last unit (in any number of
                               pieces); in place, param is the unit's first */
};

typedef struct ordo_activation {
  size_t struct_size;
  uint32_t point; /* ORDO_ACT_ */
  uint32_t unit;
  int32_t backward; /* 1: `data` is the gradient */
  ordo_dtype dtype;
  int64_t rows;
  int64_t columns;
  void *data;              /* [rows, columns]; transformed in place if out is the same */
  int64_t out_rows;        /* rows, or what it becomes; the split side is padded: parts * part rows, the last ones are no tokens */
  int64_t out_columns;     /* columns, or what it becomes */
  void *out;               /* [out_rows, out_columns], written. Equal to data, apart from it, or, where one side is this rank's part of the
                              other, at that part: collectives then run in place */
  const ordo_param *param; /* that the place belongs to, never null */
} ordo_activation;
ORDO_PIN_LAST(ordo_activation, param);

/* Replaces the computation of one unit (experts). in, out: fp32 activations of the boundary. */
typedef struct ordo_unit_override {
  size_t struct_size;
  void *ctx;
  /* Instead of the embedder's forward and backward of the unit; errors as for step events. [step] since 0.1 */
  ordo_status (*forward)(void *ctx, const ordo_unit *unit, int32_t micro_batch, const float *in, float *out);
  ordo_status (*backward)(void *ctx, const ordo_unit *unit, int32_t micro_batch, const float *grad_out, float *grad_in);
} ordo_unit_override;
ORDO_PIN_LAST(ordo_unit_override, backward);

/* Not asked for by this host: an estimate runs the plugin itself, dry (job.h). Kept for the layout. */
typedef struct ordo_estimate {
  size_t struct_size;
  int64_t bytes[6]; /* by ORDO_MEM_ tag, peak */
  int64_t calls_per_step;
  int64_t payload_per_step;
} ordo_estimate;
ORDO_PIN_LAST(ordo_estimate, payload_per_step);

typedef struct ordo_strategy {
  size_t struct_size;

  /* Life cycle */
  /* Can it work here? ORDO_E_UNAVAILABLE with a reason says no without being a failure. [main] since 0.1 */
  ordo_status (*probe)(const ordo_host *host);
  /* Makes an instance. job->model is described, job->mesh exists. Required. [main] since 0.1 */
  ordo_status (*create)(const ordo_job *job, void **instance);
  /* Checks options against mesh and model; every reason is recorded. [main] since 0.1 */
  ordo_status (*validate)(void *self);
  /* Before any set-up step: environment, caches. [main] since 0.1 */
  ordo_status (*setup_environment)(void *self);
  /* Frees the instance and all storage it gave to leaves and params. Required. [main] since 0.1 */
  void (*destroy)(void *self);
  /* Not called by this host; leave it null. A job that is not run is estimated by a dry run (job.h). [main] since 0.1 */
  ordo_status (*estimate)(void *self, ordo_estimate *estimate);

  /* Set-up steps of the plan (step.h) */
  /* model.inject: adds, freezes or replaces parameters. [main] since 0.1 */
  ordo_status (*inject)(void *self);
  /* strategy.partition: decides this rank's slices and replaces leaves. [main] since 0.1 */
  ordo_status (*partition)(void *self);
  /* strategy.wrap: buckets, or flattening and sharding. [main] since 0.1 */
  ordo_status (*wrap)(void *self);
  /* strategy.prepare_joint: shards the model and rebinds `optimizer` (null when evaluating only), all or nothing. [main] since 0.1 */
  ordo_status (*prepare_joint)(void *self, ordo_optimizer *optimizer);
  /* strategy.prepare_optimizer: transforms the optimizer alone. [main] since 0.1 */
  ordo_status (*prepare_optimizer)(void *self, ordo_optimizer *optimizer);
  /* weights.load_sharded: reads this rank's shards with job->read_weights. Null: the host does it from the placements. [main] since 0.1 */
  ordo_status (*load_sharded)(void *self);
  /* Undoes a set-up step of this instance after a later one failed; steps are undone in reverse order. [main] since 0.1 */
  void (*undo)(void *self, ordo_step step);
  /* Everything of the set-up, restore included, is done. [main] since 0.1 */
  ordo_status (*after_setup)(void *self);

  /* Step events. `unit` and `param` belong to the instance's model. */
  ordo_status (*step_begin)(void *self, const ordo_step_info *info);  /* [step] since 0.1 */
  ordo_status (*micro_begin)(void *self, const ordo_step_info *info); /* [step] since 0.1 */
  ordo_status (*pre_forward)(void *self, const ordo_unit *unit);      /* [step] since 0.1 */
  ordo_status (*post_forward)(void *self, const ordo_unit *unit);     /* [step] since 0.1 */
  ordo_status (*pre_backward)(void *self, const ordo_unit *unit);     /* [step] since 0.1 */
  ordo_status (*post_backward)(void *self, const ordo_unit *unit);    /* [step] since 0.1 */
  /* The gradient of a param is complete for this micro-batch; of a tie group when all members have added, or with the backward of its first
   * unit if some had no part. [step] since 0.1 */
  ordo_status (*grad_ready)(void *self, const ordo_param *param);
  ordo_status (*micro_end)(void *self, const ordo_step_info *info); /* backward of the micro-batch is done. [step] since 0.1 */
  /* step.reduce: finishes what was started during backward and reports each leaf with job->mark_reduced. [step] since 0.1 */
  ordo_status (*reduce)(void *self, const ordo_step_info *info);
  ordo_status (*pre_step)(void *self, const ordo_step_info *info); /* before the optimizer step. [step] since 0.1 */
  /* Vote: set *commit to 0 to skip the optimizer step on all ranks. [step] since 0.1 */
  ordo_status (*should_commit)(void *self, int32_t *commit);
  ordo_status (*post_step)(void *self, const ordo_step_info *info); /* weights were updated. [step] since 0.1 */
  ordo_status (*step_end)(void *self, const ordo_step_info *info);  /* also after a skipped step. [step] since 0.1 */
  ordo_status (*eval_begin)(void *self);                            /* forward only from here. [step] since 0.1 */
  ordo_status (*eval_end)(void *self);                              /* [step] since 0.1 */
  /* Transforms an activation at a place that this instance wants. [step] since 0.1 */
  ordo_status (*activation)(void *self, const ordo_activation *activation);
  /* Takes over the schedule of a whole step: runs units with job->run_units. Null: the embedder's loop. [step] since 0.1 */
  ordo_status (*run_schedule)(void *self, const ordo_step_info *info);
  /* Asks whether `unit` is computed by the plugin; fills *override and returns ORDO_OK, or ORDO_E_NOT_FOUND. [main] since 0.1 */
  ordo_status (*override_unit)(void *self, const ordo_unit *unit, ordo_unit_override *override);
  /* The communicator of the axis was replaced (elastic membership). [step] since 0.1 */
  ordo_status (*comm_replaced)(void *self, const ordo_comm *comm);

  /* State */
  const ordo_state_ops *state; /* private blobs and full-parameter scopes; null: placements say everything */

  /* Changes a setting of the running job (control.h; units and values were checked). ORDO_E_NOT_FOUND without a record for an operation
   * that means nothing to this strategy; STATE, INVALID and UNSUPPORTED refuse and leave everything as it was. [step] since 0.1 */
  ordo_status (*control)(void *self, const ordo_control *control);

  /* Activations */
  /* 1 if this instance transforms what passes at `point` (ORDO_ACT_) of `param` in that direction. Asked after the set-up, with answers
   * that do not change: a place that nobody wants costs nothing. Null: everywhere, if `activation` is there. [main] since 0.1 */
  int32_t (*wants_activation)(void *self, uint32_t point, const ordo_param *param, int32_t backward);
  /* Sequence parallelism: a pass over n rows has ceil(n / *parts) rows of the residual stream on this rank, from *index times that on;
   * norms and residual additions run on them alone. Null: every rank holds all rows. [main] since 0.1 */
  void (*residual)(void *self, int32_t *parts, int32_t *index);
} ordo_strategy;
ORDO_PIN_LAST(ordo_strategy, residual);

#endif
