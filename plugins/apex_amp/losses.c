/* losses.c - the scaler of each loss, and when it has to stop. See apex_amp.h.
 *
 * Whether a step overflowed was decided by all ranks together, so all scalers move alike. After an overflow the weights are looked at, on
 * all ranks together again: NaN in a weight overflows at every scale, and halving the scale for ever would hide it.
 */
#include "apex_amp.h"

#include <stdio.h>

double amp_loss_scale(amp *self, uint32_t loss_id)
{
  if (loss_id < self->policy.n_losses)
    return self->scalers[loss_id].scale;
  amp_fail(self->job, ORDO_E_INVALID, "set num_losses to the number of losses, see `ordo inspect apex_amp`",
           "loss_id %u is out of range: num_losses=%u, so losses are 0 to %u", loss_id, self->policy.n_losses, self->policy.n_losses - 1);
  return 0.0;
}

static ordo_status check_weights(amp *self)
{
  const ordo_job *job = self->job;
  const ordo_leaf *bad = amp_first_bad_weight(self);
  int32_t any = bad != NULL;
  ordo_status status = ORDO_OK;
  if (job->mesh->size > 1)
    status = ordo_all_reduce(job->mesh->world, &any, 1, ORDO_I32, ORDO_MAX, 1.0);
  if (status != ORDO_OK || !any)
    return status;
  return amp_fail(job, ORDO_E_INVARIANT,
                  "no loss scale helps: go back to a checkpoint, with a smaller learning rate or a level with masters (O2)",
                  "the gradients overflowed because weights are NaN or infinite%s%s", bad != NULL ? ", first in leaf " : " on another rank",
                  bad != NULL ? bad->name : "");
}

/* `used`: the scale of this step. At 1 and below nothing was multiplied up, so it is not the scale that overflows. */
static ordo_status give_up(amp *self, uint32_t loss_id, double used)
{
  const amp_scaler *scaler = &self->scalers[loss_id];
  const int floor_holds = scaler->min > 1.0 && used <= scaler->min;
  const char *cause = floor_holds   ? "it is the lowest that min_loss_scale allows"
                      : used <= 1.0 ? "a scale that low enlarges nothing, so the loss or the gradients themselves are infinite or NaN"
                                    : "lowering it did not help";
  return amp_fail(
      self->job, ORDO_E_INVARIANT,
      floor_holds   ? "lower min_loss_scale, look at the data and the learning rate, or use bf16 (O4, O5), which does not overflow"
      : used <= 1.0 ? "lower the learning rate, look at the data, or use bf16 (O4, O5), which has the range of fp32; in fp32 (O0) "
                      "see whether the loss is finite at all"
                    : "use a smaller backoff_factor, lower the learning rate, look at the data, or use bf16 (O4, O5)",
      "the gradients of loss %u overflowed in %lld steps in a row, the last of them at loss scale %g; %s: training does not go on", loss_id,
      (long long)scaler->skipped, used, cause);
}

/* Every step and not only when it changes: a line of a log has to say the scale without those before it. `used`: of this step. */
static void report(const amp *self, uint32_t loss_id, double used)
{
  char name[32];
  if (!self->scalers[loss_id].dynamic && used == 1.0)
    return; /* nothing is scaled */
  snprintf(name, sizeof name, loss_id == 0 ? "loss_scale" : "loss_scale.%u", loss_id);
  self->job->metric(self->job->ctx, name, used);
}

ordo_status amp_update_scale(amp *self, uint32_t loss_id, int overflow)
{
  amp_scaler *scaler;
  double before;
  ordo_status status = ORDO_OK;
  if (loss_id >= self->policy.n_losses)
    return amp_loss_scale(self, loss_id) > 0.0 ? ORDO_OK : ORDO_E_INVALID;
  scaler = &self->scalers[loss_id];
  before = scaler->scale;
  if (overflow && scaler->dynamic)
    status = check_weights(self);
  if (status != ORDO_OK)
    return status;
  if (amp_scaler_update(scaler, overflow))
    return give_up(self, loss_id, before);
  report(self, loss_id, before);
  return ORDO_OK;
}
