/* ordo/precision.h - "ordo.precision/1": which number formats a model computes, stores and updates in.
 *
 * The set-up is split so that it fits every strategy: convert_model early, on whatever leaves exist then; wrap_optimizer
 * once the leaves are final. A plugin that needs model and optimizer in one call declares initializes_jointly instead.
 */
#ifndef ORDO_PRECISION_H
#define ORDO_PRECISION_H

#include <ordo/job.h>
#include <ordo/state.h>

#define ORDO_PRECISION_EXTENSION "ordo.precision/1"

/* What the model asks before an operation. */
enum {
  ORDO_OP_MATMUL = 1,
  ORDO_OP_NORM = 2,
  ORDO_OP_SOFTMAX = 3,
  ORDO_OP_LOSS = 4,
  ORDO_OP_ROPE = 5,
  ORDO_OP_ELEMENTWISE = 6,
  ORDO_OP_EMBEDDING = 7
};

typedef struct ordo_precision {
  size_t struct_size;

  /* Life cycle, as in strategy.h. create and destroy are required. */
  ordo_status (*probe)(const ordo_host *host);                 /* [main] since 0.1 */
  ordo_status (*create)(const ordo_job *job, void **instance); /* [main] since 0.1 */
  ordo_status (*validate)(void *self);                         /* [main] since 0.1 */
  void (*destroy)(void *self);                                 /* [main] since 0.1 */

  /* Set-up steps */
  /* model.inject: quantised or otherwise replaced parameters. [main] since 0.1 */
  ordo_status (*inject)(void *self);
  /* precision.convert_model: casts parameters, installs the op-class policy. [main] since 0.1 */
  ordo_status (*convert_model)(void *self);
  /* precision.wrap_optimizer: masters from the current leaves, scaler. [main] since 0.1 */
  ordo_status (*wrap_optimizer)(void *self, ordo_optimizer *optimizer);
  /* precision.initialize: both at once; `optimizer` is null when evaluating only. [main] since 0.1 */
  ordo_status (*initialize)(void *self, ordo_optimizer *optimizer);
  /* Undoes a set-up step after a later one failed. [main] since 0.1 */
  void (*undo)(void *self, ordo_step step);

  /* Step events */
  ordo_status (*step_begin)(void *self, const ordo_step_info *info); /* [step] since 0.1 */
  /* The type in which an operation of class `op` (ORDO_OP_) runs. [step] since 0.1 */
  ordo_dtype (*op_dtype)(void *self, uint32_t op);
  /* What the loss is multiplied by before backward; `loss_id` counts the losses of a session. The same on all ranks; other than 1 only with
   * unscale and a step that leads to it (precision.wrap_optimizer, precision.initialize). A loss_id that it does not have: 0, after
   * host->fail. [step] since 0.1 */
  double (*loss_scale)(void *self, uint32_t loss_id);
  /* step.unscale: takes the scale of the loss of the last micro-batch out of the gradients, and sets *overflow to 1 if one is not finite
   * on this rank and the step must be skipped. [step] since 0.1 */
  ordo_status (*unscale)(void *self, const ordo_step_info *info, int32_t *overflow);
  /* After the vote: `overflow` is the same on all ranks and 1 means that the optimizer step is skipped. An error on one rank ends the step
   * on all. [step] since 0.1 */
  ordo_status (*update_scale)(void *self, int32_t overflow);
  /* step.masters_to_model: low-precision weights from the updated masters. [step] since 0.1 */
  ordo_status (*masters_to_model)(void *self);
  ordo_status (*step_end)(void *self, const ordo_step_info *info); /* [step] since 0.1 */
  /* What travels in the all-gathers of a strategy that shards (it asks with job->wire). All three or none. A piece is what one rank holds
   * of a leaf: `n` elements of the leaf's dtype, the same number on all ranks, with zeros where the leaf ends earlier. `leaf` is null if
   * a piece holds parts of several leaves: flat parameters, which are then fp32 (fsdp1 sends those of 16 bits as they are and says so in
   * the log). Leaves of an opaque type are not offered: they travel in their own packed form.
   *   wire_bytes       bytes that a piece becomes; depends on leaf and n only, since every rank reserves as much for the others
   *                    (it is asked once for each piece); at least 1 if n is not 0, at most 16 * n + 4096
   *   pre_all_gather   packs this rank's piece `src` into `wire`; the shard itself stays as it is
   *   post_all_gather  unpacks a piece of any rank, this one's too, into `dst`
   * Buffers need not be aligned. Whole weights for export (gather_full of state.h) do not pass through here. [step] since 0.1 */
  ordo_status (*pre_all_gather)(void *self, const ordo_leaf *leaf, const void *src, int64_t n, void *wire);
  ordo_status (*post_all_gather)(void *self, const ordo_leaf *leaf, const void *wire, int64_t n, void *dst);
  int64_t (*wire_bytes)(void *self, const ordo_leaf *leaf, int64_t n); /* [any] since 0.1 */

  const ordo_state_ops *state; /* restore.precision; null if there is nothing to save */
  /* Instead of update_scale, once for each loss that the step used: `overflow` is the same on all ranks; it is 1 for the losses whose
   * gradients were not finite, and for all of them if only the sum was not. [step] since 0.1 */
  ordo_status (*update_loss_scale)(void *self, uint32_t loss_id, int32_t overflow);
} ordo_precision;
ORDO_PIN_LAST(ordo_precision, update_loss_scale);

#endif
