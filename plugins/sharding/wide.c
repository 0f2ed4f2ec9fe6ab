/* wide.c - gradients of 16 bits that are summed in fp32 (reduce_dtype=f32).
 *
 * A precision plugin that converts the model gives its gradients 16 bits, and by themselves they travel so: half the bytes, and each
 * addition of a sum over ranks may be rounded. Here they are widened before the sum, twice the bytes travel, and what the shard keeps,
 * which is of 16 bits like its leaf's gradient, is rounded once. Reductions of several micro-batches add up in fp32 as well.
 *
 * Guarded against: an option that has no effect. Another type of 16 bits than the gradient's own is refused by name.
 */
#include "private.h"

#include <string.h>

ordo_status sharding_wide_check(const ordo_job *job, const sharding_options *options, const sharding_group_spec *spec)
{
  const ordo_dtype wanted = options->low_reduce_dtype;
  int trainable = 0;
  for (uint32_t i = 0; i < spec->n_pieces; i++)
    trainable |= spec->pieces[i].trainable != 0;
  if (!trainable || !sharding_is_low(spec->grad_dtype) || wanted == 0 || wanted == ORDO_F32 || wanted == spec->grad_dtype)
    return ORDO_OK;
  return sharding_fail(
      job, ORDO_E_INVALID, "leave reduce_dtype out for the type of the gradients, or set f32",
      "reduce_dtype=%s, but the precision plugin gives '%s' gradients of %s: one type of 16 bits is not converted into another",
      sharding_dtype_name(wanted), spec->name, sharding_dtype_name(spec->grad_dtype));
}

/* Room for the largest group that is widened, whole and its shard. Collective. */
ordo_status sharding_wide_reserve(sharding *s)
{
  static const char hint[] = "use smaller units (units=block), or leave reduce_dtype out";
  int64_t whole = 0, part = 1;
  void *memory = NULL;
  for (uint32_t i = 0; i < s->n_groups; i++) {
    const sharding_group *group = &s->groups[i];
    if (!group->trainable || !sharding_widens(s, group))
      continue;
    whole = group->full_numel > whole ? group->full_numel : whole;
    part = group->shard_numel > part ? group->shard_numel : part;
  }
  if (whole == 0)
    return ORDO_OK;
  ordo_status status = s->sum_comm->alloc(s->sum_comm->ctx, (size_t)whole * sizeof(float), &memory);
  s->wide_send = memory;
  if (status == ORDO_OK)
    s->wide_recv = s->job->alloc(s->job->ctx, (size_t)part * sizeof(float), ORDO_MEM_COMM);
  if (status != ORDO_E_NOMEM && (status != ORDO_OK || s->wide_recv != NULL))
    return status; /* what ended the allocation may be a lost rank */
  return sharding_fail(s->job, ORDO_E_NOMEM, hint, "no memory to sum 16-bit gradients in fp32 (%zu bytes)", (size_t)whole * sizeof(float));
}

void sharding_wide_free(sharding *s)
{
  if (s->wide_send != NULL)
    (void)s->sum_comm->free(s->sum_comm->ctx, s->wide_send);
  s->job->free(s->job->ctx, s->wide_recv);
}

void sharding_wide_start(sharding *s, const sharding_group *group, ordo_collective *c)
{
  sharding_widen(group->grad_dtype, group->full_grad, sharding_touchable(s, group->full_numel), s->wide_send);
  c->send = s->wide_send;
  c->recv = sharding_sums_whole(s) ? s->wide_send : s->wide_recv;
  s->sum = s->wide_send;
}

/* Into the shard, rounded; after an earlier reduction of this step added to it first. */
void sharding_wide_land(sharding *s, sharding_group *group, const float *from)
{
  const int64_t n = sharding_touchable(s, group->shard_numel);
  float *sum = group->run->sum;
  if (s->reduction_adds && group->run->reduced)
    for (int64_t i = 0; i < n; i++)
      sum[i] += from[i];
  else if (s->reduction_adds)
    memcpy(sum, from, (size_t)n * sizeof *sum);
  sharding_narrow(group->grad_dtype, s->reduction_adds ? sum : from, n, 1.0, group->grad_shard);
}
