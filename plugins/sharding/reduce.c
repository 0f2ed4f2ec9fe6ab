/* reduce.c - gradients: a buffer for the backward of a group, and what becomes of it.
 *
 * The model writes whole gradients into full_grad. When the group's backward ends, either they stay there for the next micro-batch
 * (no_sync), or a reduce-scatter brings this rank's part of the sum into grad_shard; a sum over more ranks than those of the axis (ordered
 * mode, see sharding.h) is made whole where the gradient stood, and each rank takes its part. One buffer serves the groups in turn, so a
 * reduction is finished before the next group's backward writes: gathered parameters of the next group are prefetched meanwhile, gradients
 * are not.
 */
#include "private.h"

#include <math.h>
#include <string.h>

ordo_status sharding_take_gradient(sharding *s, sharding_group *group)
{
  struct sharding_run *run = group->run;
  if (!group->trainable || s->options.replicated || run->in_backward)
    return ORDO_OK;
  int own = run->own_grad != NULL && (group->is_root || !run->synchronise || run->keeps);
  group->full_grad = own ? run->own_grad : (char *)s->grad_block + run->turn_offset;
  return own && s->reducing != group ? ORDO_OK : sharding_finish_reduction(s); /* which may still be read */
}

/* Parameters that got no gradient take part with zeros: what the buffer holds is of another group or step. A buffer that keeps the gradient
 * of an earlier micro-batch was cleared then. */
static void clear_silent(const sharding *s, sharding_group *group)
{
  const int64_t ranks = s->options.replicated ? 1 : s->comm->size;
  for (uint32_t i = 0; i < group->n_pieces; i++) {
    const sharding_piece *p = &group->pieces[i];
    if (p->trainable && !group->run->ready[i])
      memset(sharding_at(group->full_grad, group->grad_dtype, p->full_offset), 0,
             (size_t)sharding_touchable(s, p->count * ranks) * ordo_dtype_size(group->grad_dtype));
  }
}

/* D = divide_factor * divide_ratio. Types of fp32's range are divided after the sum. fp16 would overflow: it travels as the mean of the
 * ranks over f, where f * f is about their number (f is doubled while it divides the ranks and ranks / f > f). */
static double before_sum(const sharding *s, double divisor)
{
  const int ranks = s->sum_comm->size;
  double f = s->options.predivide;
  if (s->options.reduce_dtype != ORDO_F16)
    return 1.0;
  if (!(f > 0.0))
    for (f = 1.0; fmod(ranks, f) == 0.0 && ranks / f > f;)
      f *= 2.0;
  return divisor / ranks * f;
}

/* Without pieces in the communicator: rank after rank, in the type that travels. */
static void pack_gradient(sharding *s, const sharding_group *group, ordo_collective *c)
{
  const size_t size = ordo_dtype_size(c->dtype);
  char *at = (char *)s->staging_reduce;
  for (int32_t r = 0; r < s->comm->size; r++)
    for (uint32_t i = 0; i < group->n_pieces; i++) {
      const sharding_piece *p = &group->pieces[i];
      if (!p->trainable)
        continue;
      memcpy(at, (const char *)c->send + (size_t)(p->full_offset + r * p->count) * size, (size_t)sharding_touchable(s, p->count) * size);
      at += (size_t)p->count * size;
    }
  c->send = s->staging_reduce;
  c->recv = at;
  c->pieces = NULL;
  c->n_pieces = 0;
}

static void unpack_gradient(const sharding *s, const sharding_group *group, void *to, size_t size)
{
  const char *at = (const char *)s->staging_reduce + (size_t)(group->grad_count * s->comm->size) * size;
  for (uint32_t i = 0; i < group->n_pieces; i++) {
    const sharding_piece *p = &group->pieces[i];
    if (!p->trainable)
      continue;
    memcpy((char *)to + (size_t)p->shard_offset * size, at, (size_t)sharding_touchable(s, p->count) * size);
    at += (size_t)p->count * size;
  }
}

static ordo_status reserve_spare(sharding *s, sharding_group *group)
{
  int64_t most = 1;
  if (sharding_is_low(group->grad_dtype) && group->run->sum == NULL)
    group->run->sum = s->job->alloc(s->job->ctx, (size_t)(group->shard_numel + 1) * sizeof(float), ORDO_MEM_GRADIENTS);
  for (uint32_t i = 0; i < s->n_groups; i++)
    most = s->groups[i].shard_numel > most ? s->groups[i].shard_numel : most;
  if (s->spare_shard == NULL)
    s->spare_shard = s->job->alloc(s->job->ctx, (size_t)most * sizeof(float), ORDO_MEM_GRADIENTS);
  return s->spare_shard != NULL && (group->run->sum != NULL || !sharding_is_low(group->grad_dtype))
             ? ORDO_OK
             : sharding_fail(s->job, ORDO_E_NOMEM, "free memory", "no memory to add a reduction to the gradient of a shard");
}

static void describe(sharding *s, const sharding_group *group, ordo_collective *c)
{
  const int whole = sharding_sums_whole(s);
  c->kind = whole ? ORDO_ALL_REDUCE : ORDO_REDUCE_SCATTER;
  c->count = whole ? group->full_numel : group->grad_count;
  c->send = group->full_grad;
  c->recv = whole ? group->full_grad : s->reduction_adds ? (void *)s->spare_shard : group->grad_shard;
  c->flags = s->job->ordered ? ORDO_COMM_ORDERED : 0;
  c->tag = (int32_t)group->index + 1;
  c->label = group->run->label;
  c->pieces = whole ? NULL : group->run->reduce_pieces;
  c->n_pieces = c->pieces != NULL ? group->run->n_reduce_pieces : 0;
  s->sum = group->full_grad;
}

/* Puts the group's gradient into 16 bits: what was accumulated already is. */
static void narrow(sharding *s, sharding_group *group, double divisor, ordo_collective *c)
{
  struct sharding_run *run = group->run;
  double before = before_sum(s, divisor);
  if (run->low_holds) {
    if (group->full_grad != NULL)
      sharding_add_low(c->dtype, group->full_grad, sharding_touchable(s, group->full_numel), run->low_grad);
    c->send = run->low_grad;
  } else {
    sharding_narrow(c->dtype, group->full_grad, sharding_touchable(s, group->full_numel), 1.0 / before, s->low_send);
    c->send = s->low_send;
    c->factor = before / divisor;
  }
  c->recv = sharding_sums_whole(s) ? (void *)c->send : (void *)s->low_recv;
  s->low_result = c->recv;
}

static ordo_status start_reduction(sharding *s, sharding_group *group)
{
  const int low = sharding_is_low(group->grad_dtype), wide = sharding_widens(s, group);
  const ordo_dtype dtype = wide ? ORDO_F32 : low ? group->grad_dtype : s->options.reduce_dtype;
  ordo_collective c = ordo_collective_make(ORDO_REDUCE_SCATTER, NULL, NULL, 0, dtype);
  double ratio = group->run->divide_ratio > 0.0 ? group->run->divide_ratio : s->options.divide_ratio;
  double divisor = s->divide_factor * (ratio > 0.0 ? ratio : 1.0);
  ordo_status status = sharding_finish_reduction(s);
  s->reduction_adds = (low ? s->options.sync_each : group->run->reduced) && !s->options.replicated;
  s->reduction_dtype = c.dtype;
  if (status == ORDO_OK && s->reduction_adds)
    status = reserve_spare(s, group);
  if (status != ORDO_OK)
    return status;
  describe(s, group, &c);
  c.factor = 1.0 / divisor;
  if (sharding_narrows(s, group))
    narrow(s, group, divisor, &c);
  if (wide)
    sharding_wide_start(s, group, &c);
  if (c.n_pieces > 0 && s->staging_reduce != NULL)
    pack_gradient(s, group, &c);
  status = s->sum_comm->start(s->sum_comm->ctx, &c, &s->reduction);
  if (status == ORDO_OK)
    s->reducing = group;
  return status;
}

static void add(float *to, const float *from, int64_t n)
{
  for (int64_t i = 0; i < n; i++)
    to[i] += from[i];
}

/* 16-bit reductions of several micro-batches: added up in fp32, rounded to the shard each time. */
static void add_low(const sharding *s, sharding_group *group)
{
  const uint16_t *from = (const uint16_t *)(const void *)s->spare_shard;
  float *sum = group->run->sum, piece[1024];
  const int64_t n = sharding_touchable(s, group->shard_numel), most = (int64_t)(sizeof piece / sizeof *piece);
  for (int64_t i = 0; i < n; i += most) {
    const int64_t part = n - i < most ? n - i : most;
    sharding_widen(group->grad_dtype, from + i, part, piece);
    if (group->run->reduced)
      add(sum + i, piece, part);
    else
      memcpy(sum + i, piece, (size_t)part * sizeof *sum);
    sharding_narrow(group->grad_dtype, sum + i, part, 1.0, (uint16_t *)group->grad_shard + i);
  }
}

/* This rank's part of a sum that every rank has whole. */
static void take_part(const sharding *s, const sharding_group *group, void *to)
{
  const int32_t rank = s->comm->rank;
  for (uint32_t i = 0; i < group->n_pieces; i++) {
    const sharding_piece *p = &group->pieces[i];
    const int64_t from = p->full_offset + rank * p->count;
    if (!p->trainable)
      continue;
    if (sharding_narrows(s, group))
      sharding_widen(s->reduction_dtype, s->low_result + from, sharding_touchable(s, p->count), (float *)to + p->shard_offset);
    else
      memcpy(sharding_at(to, s->reduction_dtype, p->shard_offset), sharding_at(s->sum, s->reduction_dtype, from),
             (size_t)sharding_touchable(s, p->count) * ordo_dtype_size(s->reduction_dtype));
  }
}

static void land(sharding *s, sharding_group *group)
{
  const int whole = sharding_sums_whole(s) && !s->options.replicated;
  const int narrowed = sharding_narrows(s, group), wide = sharding_widens(s, group);
  void *to = wide ? (void *)s->wide_recv : s->reduction_adds ? (void *)s->spare_shard : group->grad_shard;
  if (whole)
    take_part(s, group, to);
  else if (s->staging_reduce != NULL && group->run->reduce_pieces != NULL)
    unpack_gradient(s, group, narrowed ? s->low_result : to, ordo_dtype_size(s->reduction_dtype));
  if (narrowed && !whole)
    sharding_widen(s->reduction_dtype, s->low_result, sharding_touchable(s, group->shard_numel), to);
  if (wide)
    sharding_wide_land(s, group, s->options.replicated ? s->wide_send : s->wide_recv);
  else if (s->reduction_adds && sharding_is_low(group->grad_dtype))
    add_low(s, group);
  else if (s->reduction_adds)
    add(group->grad_shard, s->spare_shard, sharding_touchable(s, group->shard_numel));
}

ordo_status sharding_finish_reduction(sharding *s)
{
  ordo_request *request = s->reduction;
  sharding_group *group = s->reducing;
  if (request == NULL)
    return ORDO_OK;
  s->reduction = NULL;
  s->reducing = NULL;
  ordo_status status = s->sum_comm->wait(s->sum_comm->ctx, request);
  if (status != ORDO_OK)
    return status;
  land(s, group);
  group->run->reduced = 1;
  return ORDO_OK;
}

/* no_sync: gradients stay where they are; fp32 ones that are kept in 16 bits are added to those of earlier micro-batches. */
static void accumulate(sharding *s, sharding_group *group)
{
  struct sharding_run *run = group->run;
  if (run->low_grad == NULL) {
    run->keeps = 1;
    return;
  }
  if (run->low_holds)
    sharding_add_low(s->options.reduce_dtype, group->full_grad, sharding_touchable(s, group->full_numel), run->low_grad);
  else
    sharding_narrow(s->options.reduce_dtype, group->full_grad, sharding_touchable(s, group->full_numel), 1.0, run->low_grad);
  run->low_holds = 1;
}

/* A buffer that does not keep the gradient is unbound, so that the next write to it overwrites. */
ordo_status sharding_end_gradient(sharding *s, sharding_group *group)
{
  struct sharding_run *run = group->run;
  ordo_status status = ORDO_OK;
  if (!group->trainable)
    return ORDO_OK;
  if (s->callbacks.settle != NULL)
    s->callbacks.settle(s->callbacks.self, group, !run->keeps);
  else if (!run->keeps)
    clear_silent(s, group);
  memset(run->ready, 0, group->n_pieces);
  if (!run->synchronise)
    accumulate(s, group);
  else
    status = sharding_reduce_rest(s, group);
  if (!run->keeps && !s->options.replicated)
    group->full_grad = NULL;
  return status;
}

ordo_status sharding_reduce_rest(sharding *s, sharding_group *group)
{
  ordo_status status = start_reduction(s, group);
  group->run->keeps = group->run->low_holds = 0;
  return status;
}
