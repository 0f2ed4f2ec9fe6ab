/* sharding.c - the events of a training step, for groups. See sharding.h.
 *
 * Forward gathers a group before its first unit and releases it after its last; backward does the same the other way round and reduces.
 * The root (embedding and head, whatever no unit class took) stays gathered from the first unit to the end of backward: it is needed at
 * both ends and gathering it twice would cost more than keeping it.
 *
 * A group whose backward was begun and not ended (a frozen first unit) is ended with the micro-batch, so every rank starts the same
 * collectives. A unit that runs on one rank and not on another is found by the number that each collective carries.
 */
#include "private.h"

#include <string.h>

/* The sharded group of the nearest unit after (+1) or before (-1) `unit`, roots left out; null if there is none or it is gathered already.
 */
static sharding_group *neighbour(sharding *s, uint32_t unit, int direction)
{
  for (int64_t u = (int64_t)unit + direction; u >= 0 && u < s->n_units; u += direction) {
    sharding_group *group = s->group_of_unit[u] >= 0 ? &s->groups[s->group_of_unit[u]] : NULL;
    if (group == NULL || group->is_root || s->group_of_unit[u] == s->group_of_unit[unit])
      continue;
    return group->state == SHARDING_SHARDED ? group : NULL;
  }
  return NULL;
}

static ordo_status prefetch(sharding *s, uint32_t unit, int direction)
{
  sharding_group *next = s->options.replicated ? NULL : neighbour(s, unit, direction);
  return next != NULL && sharding_live(s) < s->options.limit ? sharding_start_gather(s, next, 0) : ORDO_OK;
}

ordo_status sharding_step_begin(sharding *s, const ordo_step_info *info)
{
  s->divide_factor = info->divide_factor;
  for (uint32_t i = 0; i < s->n_groups; i++) {
    struct sharding_run *run = s->groups[i].run;
    run->keeps = run->low_holds = run->reduced = run->in_backward = 0;
    memset(run->ready, 0, s->groups[i].n_pieces);
  }
  return info->n_micro_batches > 1 && !s->options.sync_each ? sharding_reserve_accumulation(s) : ORDO_OK;
}

ordo_status sharding_micro_begin(sharding *s, const ordo_step_info *info)
{
  s->synchronise = info->is_last_micro_batch || (s->options.sync_each && !s->options.replicated);
  return ORDO_OK;
}

/* A scope of full parameters has bound everything; units run in it without being gathered. */
ordo_status sharding_pre_forward(sharding *s, const ordo_unit *unit)
{
  sharding_group *group = sharding_group_of_unit(s, unit->index);
  if (group == NULL || s->whole)
    return ORDO_OK;
  ordo_status status = sharding_unshard(s, group, 1);
  return status == ORDO_OK && s->options.forward_prefetch ? prefetch(s, unit->index, 1) : status;
}

ordo_status sharding_post_forward(sharding *s, const ordo_unit *unit)
{
  sharding_group *group = sharding_group_of_unit(s, unit->index);
  if (group == NULL || s->whole)
    return ORDO_OK;
  if (group->is_root || !s->options.reshard_after_forward || unit->index != group->units[group->n_units - 1])
    return ORDO_OK;
  return sharding_after_forward(s, group);
}

ordo_status sharding_pre_backward(sharding *s, const ordo_unit *unit)
{
  sharding_group *group = sharding_group_of_unit(s, unit->index);
  if (group == NULL)
    return ORDO_OK;
  ordo_status status = sharding_start_gather(s, group, 0);
  if (status == ORDO_OK)
    status = sharding_finish_gather(s, group);
  if (status == ORDO_OK && s->options.backward_prefetch == SHARDING_PREFETCH_PRE)
    status = prefetch(s, unit->index, -1);
  if (status == ORDO_OK)
    status = sharding_take_gradient(s, group);
  if (status == ORDO_OK && !group->run->in_backward)
    status = sharding_bind(s, group);
  group->run->in_backward = 1;
  return status;
}

void sharding_grad_ready(sharding *s, sharding_group *group, uint32_t piece)
{
  (void)s;
  if (piece < group->n_pieces)
    group->run->ready[piece] = 1;
}

/* Nothing changes parameters before the step ends, so what stays gathered is right in the next micro-batch. */
static int stays(const sharding *s)
{
  return s->options.keep_in_no_sync && !s->synchronise;
}

static ordo_status end_backward(sharding *s, sharding_group *group)
{
  ordo_status status = sharding_end_gradient(s, group);
  group->run->in_backward = 0;
  if (status != ORDO_OK || !stays(s))
    return status == ORDO_OK ? sharding_release(s, group) : status;
  return group->run->bound && group->full_grad == NULL ? sharding_bind(s, group) : ORDO_OK; /* the next write overwrites */
}

ordo_status sharding_post_backward(sharding *s, const ordo_unit *unit)
{
  sharding_group *group = sharding_group_of_unit(s, unit->index);
  if (group == NULL || unit->index != group->units[0])
    return ORDO_OK;
  ordo_status status = end_backward(s, group);
  return status == ORDO_OK && s->options.backward_prefetch == SHARDING_PREFETCH_POST ? prefetch(s, unit->index, -1) : status;
}

ordo_status sharding_micro_end(sharding *s, const ordo_step_info *info)
{
  ordo_status status = ORDO_OK;
  (void)info;
  for (uint32_t i = s->n_groups; i-- > 0 && status == ORDO_OK;)
    if (s->groups[i].run->in_backward)
      status = end_backward(s, &s->groups[i]);
  for (uint32_t i = 0; i < s->n_groups && status == ORDO_OK; i++) {
    s->groups[i].run->part_holds = 0;
    status = stays(s) ? ORDO_OK : sharding_release(s, &s->groups[i]);
  }
  return status;
}

ordo_status sharding_reduce(sharding *s, const ordo_step_info *info)
{
  ordo_status status = ORDO_OK;
  (void)info;
  for (uint32_t i = s->n_groups; i-- > 0 && status == ORDO_OK;)
    if (s->groups[i].run->keeps || s->groups[i].run->low_holds)
      status = sharding_reduce_rest(s, &s->groups[i]);
  if (status == ORDO_OK)
    status = sharding_finish_reduction(s);
  for (uint32_t i = 0; i < s->n_groups && status == ORDO_OK; i++)
    if (s->groups[i].trainable)
      status = s->callbacks.reduced(s->callbacks.self, &s->groups[i], s->divide_factor, s->groups[i].run->reduced);
  return status;
}

ordo_status sharding_step_end(sharding *s, const ordo_step_info *info)
{
  (void)info;
  sharding_pool_trim(s->pool);
  return ORDO_OK;
}

ordo_status sharding_eval_begin(sharding *s)
{
  s->evaluating = 1;
  return ORDO_OK;
}

ordo_status sharding_eval_end(sharding *s)
{
  ordo_status status = ORDO_OK;
  s->evaluating = 0;
  for (uint32_t i = 0; i < s->n_groups && status == ORDO_OK && !s->whole; i++)
    status = sharding_release(s, &s->groups[i]);
  sharding_pool_trim(s->pool);
  return status;
}
