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

static ordo_status start(sharding *s, sharding_group *group)
{
  return sharding_start_gather(s, group, 0);
}

static ordo_status start_if_room(sharding *s, sharding_group *group)
{
  const int room = group == NULL || !sharding_takes_place(s, group) || sharding_live(s) < s->options.limit;
  return group != NULL && room ? sharding_each(s, group, start) : ORDO_OK;
}

/* The list of the unit if it has one (at `listed`), else its neighbour (at `wanted`). */
static ordo_status prefetch(sharding *s, uint32_t unit, int direction, int listed, int wanted)
{
  const sharding_list *list = s->prefetch[direction < 0] != NULL ? &s->prefetch[direction < 0][unit] : NULL;
  ordo_status status = ORDO_OK;
  if (s->options.replicated)
    return ORDO_OK;
  if (list == NULL || list->n == 0)
    return wanted ? start_if_room(s, neighbour(s, unit, direction)) : ORDO_OK;
  for (uint32_t i = 0; listed && i < list->n && status == ORDO_OK; i++)
    status = start_if_room(s, sharding_group_of_unit(s, list->units[i]));
  return status;
}

/* How far off the use of the group is for a pass at `unit`: what the pass has left behind is needed last. */
static int64_t distance(const sharding_group *group, uint32_t unit, int direction)
{
  int64_t units = ((int64_t)group->units[0] - unit) * direction;
  return units >= 0 ? units : INT64_MAX / 2 - units;
}

/* Controls may have filled the places with groups that are not next: the one that is needed last makes room. */
static ordo_status make_room(sharding *s, const sharding_group *group, uint32_t unit, int direction)
{
  ordo_status status = ORDO_OK;
  if (group->state != SHARDING_SHARDED || !sharding_takes_place(s, group))
    return ORDO_OK;
  while (status == ORDO_OK && sharding_live(s) >= s->options.limit) {
    sharding_group *last = NULL;
    for (uint32_t i = 0; i < s->n_groups; i++) {
      sharding_group *other = &s->groups[i];
      if (other->state == SHARDING_SHARDED || !sharding_takes_place(s, other) || other->run->in_backward)
        continue;
      if (last == NULL || distance(other, unit, direction) > distance(last, unit, direction))
        last = other;
    }
    if (last == NULL)
      break;
    status = sharding_each(s, last, sharding_release);
  }
  return status;
}

ordo_status sharding_step_begin(void *instance, const ordo_step_info *info)
{
  sharding *s = sharding_of(instance);
  s->divide_factor = info->divide_factor;
  for (uint32_t i = 0; i < s->n_groups; i++) {
    struct sharding_run *run = s->groups[i].run;
    run->keeps = run->low_holds = run->reduced = run->in_backward = 0;
    memset(run->ready, 0, s->groups[i].n_pieces);
  }
  if (s->callbacks.begin_step != NULL)
    s->callbacks.begin_step(s->callbacks.self);
  return ORDO_OK;
}

/* Whole gradients are reduced in place, so their sum can be taken once. 16-bit ones that the host adds up are written in the last
 * micro-batch, whatever is set for the unit. */
static int synchronises(const sharding *s, const sharding_group *group)
{
  const struct sharding_run *run = group->run;
  const int each = run->sync != ORDO_CONTROL_RULE && !sharding_is_low(group->grad_dtype) ? run->sync : s->options.sync_each;
  return run->sync != 0 && (s->last || (each && !s->options.replicated));
}

ordo_status sharding_micro_begin(void *instance, const ordo_step_info *info)
{
  sharding *s = sharding_of(instance);
  ordo_status status = ORDO_OK;
  int accumulates = 0;
  s->last = info->is_last_micro_batch != 0;
  for (uint32_t i = 0; i < s->n_groups; i++) {
    s->groups[i].run->synchronise = synchronises(s, &s->groups[i]);
    accumulates |= !s->groups[i].run->synchronise;
  }
  if (accumulates && s->accumulate_block == NULL) /* its memory is given out by all ranks together, when nothing is in flight */
    status = sharding_finish_reduction(s);
  return status == ORDO_OK && accumulates ? sharding_reserve_accumulation(s) : status;
}

static ordo_status show(sharding *s, sharding_group *group)
{
  return sharding_unshard(s, group, 1);
}

/* A scope of full parameters has bound everything; units run in it without being gathered. */
ordo_status sharding_pre_forward(void *instance, const ordo_unit *unit)
{
  sharding *s = sharding_of(instance);
  sharding_group *group = sharding_group_of_unit(s, unit->index);
  s->ran = 1;
  if (group == NULL || s->whole)
    return ORDO_OK;
  ordo_status status = make_room(s, group, unit->index, 1);
  if (status == ORDO_OK)
    status = sharding_each(s, group, start);
  if (status == ORDO_OK)
    status = sharding_each(s, group, show);
  return status == ORDO_OK ? prefetch(s, unit->index, 1, 1, s->options.forward_prefetch) : status;
}

ordo_status sharding_post_forward(void *instance, const ordo_unit *unit)
{
  sharding *s = sharding_of(instance);
  sharding_group *group = sharding_group_of_unit(s, unit->index);
  if (group == NULL || s->whole)
    return ORDO_OK;
  if (!sharding_reshards(s, group) || unit->index != group->units[group->n_units - 1])
    return ORDO_OK;
  return sharding_each(s, group, sharding_after_forward);
}

static ordo_status begin_backward(sharding *s, sharding_group *group)
{
  ordo_status status = sharding_take_gradient(s, group);
  if (status == ORDO_OK && !group->run->in_backward)
    status = sharding_bind(s, group);
  group->run->in_backward = 1;
  return status;
}

ordo_status sharding_pre_backward(void *instance, const ordo_unit *unit)
{
  sharding *s = sharding_of(instance);
  sharding_group *group = sharding_group_of_unit(s, unit->index);
  if (group == NULL)
    return ORDO_OK;
  ordo_status status = make_room(s, group, unit->index, -1);
  if (status == ORDO_OK)
    status = sharding_each(s, group, start);
  if (status == ORDO_OK)
    status = sharding_each(s, group, sharding_finish_gather);
  if (status == ORDO_OK)
    status = prefetch(s, unit->index, -1, 1, s->options.backward_prefetch == SHARDING_PREFETCH_PRE);
  return status == ORDO_OK ? sharding_each(s, group, begin_backward) : status;
}

void sharding_grad_ready(sharding_group *group, uint32_t piece)
{
  if (piece < group->n_pieces)
    group->run->ready[piece] = 1;
}

/* Nothing changes parameters before the step ends, so what stays gathered is right in the next micro-batch. */
static int stays(const sharding *s, const sharding_group *group)
{
  const int released = group->run->reshard_after_backward;
  const int keeps = released != ORDO_CONTROL_RULE ? !released : s->options.keep_in_no_sync && !group->run->synchronise;
  return keeps && !s->last;
}

static ordo_status end_backward(sharding *s, sharding_group *group)
{
  ordo_status status = sharding_end_gradient(s, group);
  group->run->in_backward = 0;
  if (status != ORDO_OK || !stays(s, group))
    return status == ORDO_OK ? sharding_release(s, group) : status;
  return group->run->bound && group->full_grad == NULL ? sharding_bind(s, group) : ORDO_OK; /* the next write overwrites */
}

/* The first one last: it is that of the matrices, as a rule, and its reduction is the one that the next unit's backward should hide. */
static ordo_status end_backwards(sharding *s, sharding_group *group)
{
  ordo_status status = group->run->next != NULL ? end_backwards(s, group->run->next) : ORDO_OK;
  return status == ORDO_OK ? end_backward(s, group) : status;
}

ordo_status sharding_post_backward(void *instance, const ordo_unit *unit)
{
  sharding *s = sharding_of(instance);
  sharding_group *group = sharding_group_of_unit(s, unit->index);
  if (group == NULL || unit->index != group->units[0])
    return ORDO_OK;
  ordo_status status = end_backwards(s, group);
  return status == ORDO_OK ? prefetch(s, unit->index, -1, 0, s->options.backward_prefetch == SHARDING_PREFETCH_POST) : status;
}

static ordo_status end_pass(sharding *s)
{
  const int ran = s->ran;
  s->ran = 0;
  return ran && s->callbacks.end_pass != NULL ? s->callbacks.end_pass(s->callbacks.self) : ORDO_OK;
}

ordo_status sharding_micro_end(void *instance, const ordo_step_info *info)
{
  sharding *s = sharding_of(instance);
  ordo_status status = ORDO_OK;
  (void)info;
  for (uint32_t i = s->n_groups; i-- > 0 && status == ORDO_OK;)
    if (s->groups[i].run->in_backward)
      status = end_backward(s, &s->groups[i]);
  for (uint32_t i = 0; i < s->n_groups && status == ORDO_OK; i++) {
    s->groups[i].run->part_holds = 0;
    status = stays(s, &s->groups[i]) ? ORDO_OK : sharding_release(s, &s->groups[i]);
  }
  return status == ORDO_OK ? end_pass(s) : status;
}

ordo_status sharding_reduce(void *instance, const ordo_step_info *info)
{
  sharding *s = sharding_of(instance);
  ordo_status status = s->callbacks.vote != NULL ? s->callbacks.vote(s->callbacks.self) : ORDO_OK;
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

ordo_status sharding_step_end(void *instance, const ordo_step_info *info)
{
  sharding *s = sharding_of(instance);
  ordo_status status = ORDO_OK;
  (void)info;
  for (uint32_t i = 0; i < s->n_groups && status == ORDO_OK; i++) /* gathered by hand after the last micro-batch: of old weights now */
    status = sharding_release(s, &s->groups[i]);
  sharding_pool_trim(s->pool);
  return status;
}

ordo_status sharding_eval_begin(void *instance)
{
  sharding *s = sharding_of(instance);
  s->evaluating = 1;
  return ORDO_OK;
}

ordo_status sharding_eval_end(void *instance)
{
  sharding *s = sharding_of(instance);
  ordo_status status = ORDO_OK;
  s->evaluating = 0;
  for (uint32_t i = 0; i < s->n_groups && status == ORDO_OK && !s->whole; i++)
    status = sharding_release(s, &s->groups[i]);
  sharding_pool_trim(s->pool);
  return status == ORDO_OK ? end_pass(s) : status;
}
