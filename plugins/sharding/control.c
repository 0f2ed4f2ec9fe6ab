/* control.c - settings of a running job (ordo/control.h), by group.
 *
 * A setting is stored and read where the decision is made: sharding.c (when to gather, keep and prefetch) and reduce.c (whether to reduce,
 * and divided by what). Only unshard and reshard act at once. What is refused is found before anything is changed, so a call for the whole
 * model happens to all of its groups or to none.
 *
 * Guarded against: gathering by hand beyond the promised memory. A place is taken or refused by name, never exceeded; a unit that runs
 * takes one back if it must (make_room in sharding.c).
 */
#include "private.h"

#include <stdio.h>
#include <string.h>

/* The call is for this group. Roots are kept on purpose, so a rule for the whole model leaves them out where `roots` is 0. */
static int concerns(const sharding *s, const ordo_control *control, const sharding_group *group, int roots)
{
  if (control->unit != ORDO_ALL_UNITS)
    return s->group_of_unit[control->unit] == (int32_t)group->run->head->index;
  return roots || !group->is_root;
}

static ordo_status set(sharding *s, const ordo_control *control)
{
  for (uint32_t i = 0; i < s->n_groups; i++) {
    struct sharding_run *run = s->groups[i].run;
    if (!concerns(s, control, &s->groups[i], control->operation != ORDO_CONTROL_RESHARD_AFTER_FORWARD))
      continue;
    if (control->operation == ORDO_CONTROL_GRADIENT_SYNC)
      run->sync = (int)control->value;
    else if (control->operation == ORDO_CONTROL_RESHARD_AFTER_FORWARD)
      run->reshard_after_forward = (int)control->value;
    else if (control->operation == ORDO_CONTROL_RESHARD_AFTER_BACKWARD)
      run->reshard_after_backward = (int)control->value;
    else
      run->divide_ratio = control->factor / s->comm->size;
  }
  return ORDO_OK;
}

static ordo_status check_scope(const sharding *s, const char *what)
{
  return s->whole ? sharding_fail(s->job, ORDO_E_STATE, "close it with release_full first",
                                  "%s inside a scope of full parameters, where every unit is gathered", what)
                  : ORDO_OK;
}

/* "'layers.0', 'layers.1'": who has the places. */
static const char *gathered(const sharding *s, char *text, size_t size)
{
  size_t used = 0;
  text[0] = '\0';
  for (uint32_t i = 0; i < s->n_groups && used < size; i++)
    if (sharding_takes_place(s, &s->groups[i]) && s->groups[i].state != SHARDING_SHARDED)
      used += (size_t)snprintf(text + used, size - used, "%s'%s'", used > 0 ? ", " : "", s->groups[i].name);
  return used > 0 ? text : "none";
}

static ordo_status unshard(sharding *s, const ordo_control *control)
{
  uint32_t wanted = 0;
  char names[512];
  ordo_status status = check_scope(s, "unshard");
  for (uint32_t i = 0; i < s->n_groups; i++) {
    const sharding_group *group = &s->groups[i];
    wanted += concerns(s, control, group, 1) && sharding_takes_place(s, group) && group->state == SHARDING_SHARDED;
  }
  if (status == ORDO_OK && wanted > 0 && sharding_live(s) + wanted > s->options.limit)
    return sharding_fail(s->job, ORDO_E_STATE, "reshard a unit first, or set limit_all_gathers=false",
                         "unshard needs places for %u more: limit_all_gathers=true lets %u units be gathered at a time, and these are: %s",
                         wanted, s->options.limit, gathered(s, names, sizeof names));
  for (uint32_t i = 0; i < s->n_groups && status == ORDO_OK; i++)
    if (concerns(s, control, &s->groups[i], 1))
      status = sharding_unshard(s, &s->groups[i], control->value != 0);
  return status;
}

static ordo_status reshard(sharding *s, const ordo_control *control)
{
  ordo_status status = check_scope(s, "reshard");
  for (uint32_t i = 0; i < s->n_groups && status == ORDO_OK; i++)
    if (concerns(s, control, &s->groups[i], 1) && s->groups[i].run->in_backward)
      status = sharding_fail(s->job, ORDO_E_STATE, "reshard it after post_backward of its first unit",
                             "the backward of '%s' has begun and is not finished, so it cannot be released", s->groups[i].name);
  for (uint32_t i = 0; i < s->n_groups && status == ORDO_OK; i++)
    if (concerns(s, control, &s->groups[i], 1))
      status = sharding_release(s, &s->groups[i]);
  return status;
}

/* Groups of the list that need a place beside that of the unit's own. */
static uint32_t places(sharding *s, const ordo_control *control)
{
  uint32_t n = 0;
  for (uint32_t g = 0; g < s->n_groups; g++) {
    int listed = 0;
    for (uint64_t i = 0; i < control->n_units; i++)
      listed |= s->group_of_unit[control->units[i]] == (int32_t)g;
    n += listed && s->group_of_unit[control->unit] != (int32_t)g && sharding_takes_place(s, &s->groups[g]);
  }
  return n;
}

static ordo_status set_prefetch(sharding *s, const ordo_control *control)
{
  const ordo_job *job = s->job;
  sharding_list **lists = &s->prefetch[control->operation == ORDO_CONTROL_BACKWARD_PREFETCH];
  const uint32_t n = places(s, control);
  uint32_t *units = NULL;
  if (n > 0 && n >= s->options.limit)
    return sharding_fail(
        job, ORDO_E_INVALID, "list fewer units, or set limit_all_gathers=false",
        "a prefetch list of %u units for unit '%s': with its own that is more than the %u that limit_all_gathers=true lets "
        "be gathered at a time",
        n, job->model->units[control->unit]->name, s->options.limit);
  if (*lists == NULL)
    *lists = job->alloc(job->ctx, s->n_units * sizeof **lists, ORDO_MEM_OTHER);
  if (control->n_units > 0)
    units = job->alloc(job->ctx, control->n_units * sizeof *units, ORDO_MEM_OTHER);
  if (*lists == NULL || (control->n_units > 0 && units == NULL))
    return sharding_fail(job, ORDO_E_NOMEM, "free memory", "no memory for a prefetch list of %llu units",
                         (unsigned long long)control->n_units);
  if (units != NULL)
    memcpy(units, control->units, control->n_units * sizeof *units);
  job->free(job->ctx, (*lists)[control->unit].units);
  (*lists)[control->unit] = (sharding_list){units, (uint32_t)control->n_units};
  return ORDO_OK;
}

ordo_status sharding_control(void *instance, const ordo_control *control)
{
  sharding *s = sharding_of(instance);
  switch (control->operation) {
  case ORDO_CONTROL_GRADIENT_SYNC:
  case ORDO_CONTROL_RESHARD_AFTER_FORWARD:
  case ORDO_CONTROL_RESHARD_AFTER_BACKWARD:
  case ORDO_CONTROL_DIVIDE_FACTOR:
    return set(s, control);
  case ORDO_CONTROL_UNSHARD:
    return unshard(s, control);
  case ORDO_CONTROL_RESHARD:
    return reshard(s, control);
  case ORDO_CONTROL_FORWARD_PREFETCH:
  case ORDO_CONTROL_BACKWARD_PREFETCH:
    return set_prefetch(s, control);
  default:
    return ORDO_E_NOT_FOUND;
  }
}

void sharding_control_clear(sharding *s)
{
  for (int direction = 0; direction < 2; direction++) {
    for (uint32_t u = 0; s->prefetch[direction] != NULL && u < s->n_units; u++)
      s->job->free(s->job->ctx, s->prefetch[direction][u].units);
    s->job->free(s->job->ctx, s->prefetch[direction]);
    s->prefetch[direction] = NULL;
  }
}

ordo_status sharding_forget(sharding *s)
{
  ordo_status status = ORDO_OK;
  for (uint32_t i = 0; s != NULL && !s->whole && i < s->n_groups && status == ORDO_OK; i++)
    status = sharding_release(s, &s->groups[i]);
  return status;
}
