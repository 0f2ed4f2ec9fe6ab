/* output.c - output_dtype: the type of what leaves a group.
 *
 * Activations belong to the program, which offers the output of each unit in place (ORDO_ACT_UNIT_OUTPUT). The output of the last unit of a
 * group is what the group hands on: it is rounded to the type, and so is the gradient that comes back for it, as a cast does in forward and
 * backward. The root hands on the logits. A program that computes in fp32 goes on doing so, with the values that the cast would give.
 *
 * Guarded against: a program that offers nothing. The option would then silently mean nothing, so the first pass without an offer on any
 * rank is an error on all.
 */
#include "fsdp2.h"

ordo_status fsdp2_output(fsdp2 *self, const ordo_activation *activation)
{
  const ordo_dtype wanted = self->options.output_dtype;
  const sharding_group *group;
  if (wanted == ORDO_F32 || activation->point != ORDO_ACT_UNIT_OUTPUT || self->sharding == NULL)
    return ORDO_OK;
  self->outputs_seen = 1;
  group = sharding_group_of_unit(self->sharding, activation->unit);
  if (group == NULL || group->units[group->n_units - 1] != activation->unit || activation->dtype == wanted)
    return ORDO_OK;
  if (activation->dtype != ORDO_F32)
    return sharding_fail(self->job, ORDO_E_UNSUPPORTED, "leave output_dtype out, or choose the type that the program computes in",
                         "the program passes the output of unit '%s' on in a type that is neither f32 nor output_dtype",
                         self->job->model->units[activation->unit]->name);
  if (ordo_job_has_data(self->job))
    sharding_round(wanted, activation->data, activation->rows * activation->columns);
  return ORDO_OK;
}

ordo_status fsdp2_check_outputs(void *instance)
{
  fsdp2 *self = instance;
  int32_t seen = self->outputs_seen || !ordo_job_has_data(self->job); /* in a dry run the rank that computes may not exist */
  if (self->outputs_checked)
    return ORDO_OK;
  ordo_status status = ordo_all_reduce(self->job->axis->comm, &seen, 1, ORDO_I32, ORDO_MAX, 1.0);
  if (status != ORDO_OK)
    return status;
  self->outputs_checked = seen != 0;
  if (seen)
    return ORDO_OK;
  return sharding_fail(self->job, ORDO_E_UNSUPPORTED, "leave output_dtype out, or offer ORDO_ACT_UNIT_OUTPUT with ordo_session_activation",
                       "output_dtype is set, but the program has offered the output of no unit, so nothing was cast");
}
