/* ordo/control.h - what an embedder may change while a job runs: ordo_session_control (session.h), which reaches the `control` member
 * of the model's strategies (strategy.h).
 *
 * Whatever is never set follows the strategy's options, and does so again after ORDO_CONTROL_RULE.
 *
 * Invariants
 *  - Every rank makes the same calls in the same places, as with step events; a rank that differs is found by the first collective
 *    that does not match, which names the unit.
 *  - Only ORDO_CONTROL_DIVIDE_FACTOR changes what is trained. The others change when memory is used and when ranks communicate:
 *    gradients are reduced before the optimizer's step whatever was switched off.
 *  - A refused call has changed nothing.
 *
 * Semantics are those of FSDPModule in PyTorch (set_requires_gradient_sync and its neighbours), and of no_sync.
 */
#ifndef ORDO_CONTROL_H
#define ORDO_CONTROL_H

#include <ordo/status.h>

/* Instead of the index of a unit: the call is for the whole model. */
#define ORDO_ALL_UNITS 0xffffffffu

/* Operations. `unit` is one unit and stands for all units that are gathered together with it. "between micro-batches" is also between
 * steps; "between units" is any of these, and inside a micro-batch or an evaluation when no unit is open. */
enum {
  /* value 1: reduce the unit's gradients in every micro-batch; 0: only accumulate them (no_sync), and if the last micro-batch of the step
   * says so too, reduce them in step.reduce. A strategy whose gradients are whole on every rank (ddp, NO_SHARD) reduces sums, so for it 1
   * means the last micro-batch. Gradients that the host adds up (16 bits, several losses; job.h, session.h) reach a strategy with the last
   * micro-batch: one before it, begun while 1 is set for units of a sharding strategy, is refused (STATE, E-CONTROL-SUMS), and so is 0 for
   * 16-bit gradients of a strategy that reduces every micro-batch by its options (UNSUPPORTED). Between micro-batches. */
  ORDO_CONTROL_GRADIENT_SYNC = 1,
  /* value 1: gather the unit's parameters and bind them; 0: start gathering and return, its next event waits. The next forward or backward
   * of the unit then gathers nothing. Released as ever: by its own post_ event, at the latest with the micro-batch, step or evaluation; and
   * earlier if a unit that is about to run needs the place. STATE if no more units may be gathered at a time. Between units. */
  ORDO_CONTROL_UNSHARD = 2,
  /* Release the unit's parameters. STATE while its backward is not finished. Between units. */
  ORDO_CONTROL_RESHARD = 3,
  /* value 1: release the unit after forward and gather it again for backward; 0: keep it. ORDO_ALL_UNITS leaves out the units that the
   * strategy keeps as its root. Between units. */
  ORDO_CONTROL_RESHARD_AFTER_FORWARD = 4,
  /* value 0: keep the unit gathered from the backward of one micro-batch to the forward of the next; 1: release it. After the last
   * micro-batch everything is released. Between units. */
  ORDO_CONTROL_RESHARD_AFTER_BACKWARD = 5,
  /* factor > 0: divide the unit's gradients by it instead of by the number of ranks of the axis, that is, multiply the strategy's gradient
   * by ranks / factor; 0: as the options say. Between steps. */
  ORDO_CONTROL_DIVIDE_FACTOR = 6,
  /* units[n_units]: when `unit` has been gathered for its forward, start gathering these, in this order, instead of what the options
   * would prefetch; n_units 0: as the options say. INVALID if the list needs more units at a time than may be gathered. Needs one unit.
   * Between units. */
  ORDO_CONTROL_FORWARD_PREFETCH = 7,
  ORDO_CONTROL_BACKWARD_PREFETCH = 8 /* the same for backward */
};

/* A `value` for the operations with 1 and 0 above, UNSHARD left out: the strategy's own rule again. */
enum { ORDO_CONTROL_RULE = -1 };

typedef struct ordo_control {
  size_t struct_size;
  uint32_t operation; /* ORDO_CONTROL_ */
  uint32_t unit;      /* index, or ORDO_ALL_UNITS */
  int64_t value;
  double factor;
  const uint32_t *units; /* copied */
  uint64_t n_units;
} ordo_control;
ORDO_PIN_LAST(ordo_control, n_units);

/* A control with a `value`; the other operations fill factor or units afterwards. [any] since 0.1 */
ORDO_INLINE ordo_control ordo_control_make(uint32_t operation, uint32_t unit, int64_t value)
{
  ordo_control control;
  control.struct_size = sizeof control;
  control.operation = operation;
  control.unit = unit;
  control.value = value;
  control.factor = 0.0;
  control.units = 0;
  control.n_units = 0;
  return control;
}

#endif
