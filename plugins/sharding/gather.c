/* gather.c - parameters: gathered, bound, released, and all of them at once.
 *
 * Starting and finishing are apart, so that a gather can run while another unit computes. A finished gather is bound only when its unit is
 * about to run: the embedder never sees parameters of a unit that was prefetched.
 */
#include "private.h"

#include <string.h>

int sharding_reshards(const sharding *s, const sharding_group *group)
{
  const int own = group->run->reshard_after_forward;
  return own != ORDO_CONTROL_RULE ? own : s->options.reshard_after_forward && !group->is_root;
}

/* What is kept on purpose is bounded by nothing, so it leaves the places to the others. */
int sharding_takes_place(const sharding *s, const sharding_group *group)
{
  return !s->options.replicated && group->run->head == group && !group->is_root && sharding_reshards(s, group) &&
         group->run->reshard_after_backward != 0;
}

uint32_t sharding_live(const sharding *s)
{
  uint32_t n = 0;
  for (uint32_t i = 0; i < s->n_groups; i++)
    n += sharding_takes_place(s, &s->groups[i]) && s->groups[i].state != SHARDING_SHARDED;
  return n;
}

static ordo_collective describe(sharding *s, const sharding_group *group, uint32_t kind)
{
  ordo_collective c = ordo_collective_make(kind, NULL, NULL, group->count, group->dtype);
  c.flags = s->job->ordered ? ORDO_COMM_ORDERED : 0;
  c.tag = (int32_t)group->index + 1;
  c.label = group->run->label;
  c.pieces = group->run->gather_pieces;
  c.n_pieces = c.pieces != NULL ? group->n_pieces : 0;
  return c;
}

/* A free 16-bit send buffer; the oldest gather is finished for one when none is free. */
static ordo_status take_half(sharding *s, sharding_group *group)
{
  for (uint32_t i = 0; i < s->n_halves; i++)
    if (!s->halves_taken[i]) {
      s->halves_taken[i] = 1;
      group->run->halves = (int)i;
      return ORDO_OK;
    }
  for (uint32_t i = 0; i < s->n_groups; i++) {
    ordo_status status = s->groups[i].run->halves >= 0 ? sharding_finish_gather(s, &s->groups[i]) : ORDO_E_NOT_FOUND;
    if (status != ORDO_E_NOT_FOUND)
      return status == ORDO_OK ? take_half(s, group) : status;
  }
  return sharding_fail(s->job, ORDO_E_INTERNAL, "report this as a defect of Ordo", "no 16-bit buffer is free and none is in use");
}

/* Without pieces in the communicator: what is sent packed in front, the gathered ranks behind it; in the type that travels. */
static void pack_shard(sharding *s, const sharding_group *group, ordo_collective *c)
{
  const size_t size = ordo_dtype_size(c->dtype);
  char *at = (char *)s->staging_gather;
  for (uint32_t i = 0; i < group->n_pieces; i++) {
    const sharding_piece *p = &group->pieces[i];
    memcpy(at, (const char *)c->send + (size_t)p->shard_offset * size, (size_t)sharding_touchable(s, p->count) * size);
    at += (size_t)p->count * size;
  }
  c->send = s->staging_gather;
  c->recv = at;
  c->pieces = NULL;
  c->n_pieces = 0;
}

static void unpack_full(const sharding *s, sharding_group *group, void *full, size_t size)
{
  const char *at = (const char *)s->staging_gather + (size_t)group->count * size;
  for (int32_t r = 0; r < s->comm->size; r++)
    for (uint32_t i = 0; i < group->n_pieces; i++) {
      const sharding_piece *p = &group->pieces[i];
      memcpy((char *)full + (size_t)(p->full_offset + r * p->count) * size, at, (size_t)sharding_touchable(s, p->count) * size);
      at += (size_t)p->count * size;
    }
}

static ordo_status start_part(sharding *s, sharding_group *group)
{
  struct sharding_run *run = group->run;
  int64_t count = (group->full_numel + s->options.reshard_size - 1) / s->options.reshard_size;
  ordo_collective c = ordo_collective_make(ORDO_ALL_GATHER, run->part, group->full, count, group->dtype);
  c.tag = (int32_t)group->index + 1;
  c.label = run->label;
  run->gather_comm = s->part_comm;
  run->part_holds = 0;
  return s->part_comm->start(s->part_comm->ctx, &c, &run->gather);
}

static ordo_status start_whole(sharding *s, sharding_group *group, int exact)
{
  struct sharding_run *run = group->run;
  if (!exact && sharding_wire_packs(s, group))
    return sharding_wire_start(s, group);
  ordo_collective c = describe(s, group, ORDO_ALL_GATHER);
  c.send = group->shard;
  c.recv = group->full;
  if (!exact && group->dtype == ORDO_F32 && s->options.param_dtype != ORDO_F32) {
    ordo_status status = take_half(s, group);
    if (status != ORDO_OK)
      return status;
    uint16_t *half = s->half_block + run->halves * s->half_numel;
    sharding_narrow(s->options.param_dtype, group->shard, sharding_touchable(s, group->shard_numel), 1.0, half);
    run->low_gather = (uint16_t *)group->full + group->full_numel;
    c.send = half;
    c.recv = run->low_gather;
    c.dtype = s->options.param_dtype;
  }
  if (c.n_pieces > 0 && s->staging_gather != NULL)
    pack_shard(s, group, &c);
  run->gather_comm = s->comm;
  return s->comm->start(s->comm->ctx, &c, &run->gather);
}

ordo_status sharding_start_gather(sharding *s, sharding_group *group, int exact)
{
  ordo_status status = ORDO_OK;
  if (group->state != SHARDING_SHARDED)
    return ORDO_OK;
  if (s->options.replicated) {
    group->state = SHARDING_UNSHARDED;
    return ORDO_OK;
  }
  /* A communicator without pieces has one staging buffer. */
  for (uint32_t i = 0; s->staging_gather != NULL && i < s->n_groups && status == ORDO_OK; i++)
    status = sharding_finish_gather(s, &s->groups[i]);
  if (status == ORDO_OK)
    status = sharding_region_take(s->pool, &group->run->head->run->region);
  if (status != ORDO_OK)
    return status;
  status = group->run->part_holds && !exact ? start_part(s, group) : start_whole(s, group, exact);
  if (status == ORDO_OK)
    group->state = SHARDING_GATHERING;
  return status;
}

ordo_status sharding_finish_gather(sharding *s, sharding_group *group)
{
  struct sharding_run *run = group->run;
  if (group->state != SHARDING_GATHERING)
    return ORDO_OK;
  ordo_request *request = run->gather;
  run->gather = NULL;
  group->state = SHARDING_UNSHARDED;
  ordo_status status = run->gather_comm->wait(run->gather_comm->ctx, request);
  if (run->wire != NULL) {
    ordo_status unpacked = sharding_wire_finish(s, group, status == ORDO_OK);
    return status == ORDO_OK ? unpacked : status;
  }
  if (run->halves >= 0)
    s->halves_taken[run->halves] = 0;
  run->halves = -1;
  if (status == ORDO_OK && s->staging_gather != NULL && run->gather_pieces != NULL && run->gather_comm == s->comm)
    unpack_full(s, group, run->low_gather != NULL ? run->low_gather : group->full,
                run->low_gather != NULL ? sizeof *run->low_gather : ordo_dtype_size(group->dtype));
  if (status == ORDO_OK && run->low_gather != NULL)
    sharding_widen(s->options.param_dtype, run->low_gather, sharding_touchable(s, group->full_numel), group->full);
  run->low_gather = NULL;
  return status;
}

ordo_status sharding_bind(sharding *s, sharding_group *group)
{
  group->run->bound = 1;
  return s->callbacks.bind(s->callbacks.self, group, group->full, group->full_grad);
}

/* Between forward and backward a rank may keep its range of the part (reshard_after_forward=N). */
static void keep_part(sharding *s, sharding_group *group)
{
  int64_t count = (group->full_numel + s->options.reshard_size - 1) / s->options.reshard_size;
  memcpy(group->run->part, sharding_at(group->full, group->dtype, s->part_comm->rank * count),
         (size_t)sharding_touchable(s, count) * ordo_dtype_size(group->dtype));
  group->run->part_holds = 1;
}

/* The pages of the units' parameters, when no group of them is gathered. */
static void give_back(sharding *s, const sharding_group *group)
{
  sharding_group *head = group->run->head;
  for (const sharding_group *g = head; g != NULL; g = g->run->next)
    if (g->state != SHARDING_SHARDED)
      return;
  sharding_region_release(s->pool, &head->run->region);
}

ordo_status sharding_release(sharding *s, sharding_group *group)
{
  ordo_status status = sharding_finish_gather(s, group);
  if (status != ORDO_OK || group->state == SHARDING_SHARDED || s->options.replicated)
    return status;
  group->state = SHARDING_SHARDED;
  if (group->run->bound) {
    group->run->bound = 0;
    status = s->callbacks.bind(s->callbacks.self, group, NULL, group->full_grad);
  }
  give_back(s, group);
  return status;
}

ordo_status sharding_unshard(sharding *s, sharding_group *group, int wait)
{
  ordo_status status = sharding_start_gather(s, group, 0);
  if (status == ORDO_OK && wait)
    status = sharding_finish_gather(s, group);
  return status == ORDO_OK && wait && !group->run->bound ? sharding_bind(s, group) : status;
}

ordo_status sharding_after_forward(sharding *s, sharding_group *group)
{
  if (!s->evaluating && s->options.reshard_size > 0 && group->run->part != NULL && group->state == SHARDING_UNSHARDED)
    keep_part(s, group);
  return sharding_release(s, group);
}

ordo_status sharding_gather_full(void *instance, uint32_t flags)
{
  sharding *s = sharding_of(instance);
  ordo_status status = ORDO_OK;
  if (s->whole)
    return sharding_fail(s->job, ORDO_E_STATE, "close the first with release_full", "a scope of full parameters is open already");
  for (uint32_t i = 0; i < s->n_groups && status == ORDO_OK; i++) /* what evaluation kept may be of 16 bits */
    status = sharding_release(s, &s->groups[i]);
  for (uint32_t i = 0; i < s->n_groups && status == ORDO_OK; i++) {
    status = sharding_start_gather(s, &s->groups[i], 1);
    if (status == ORDO_OK)
      status = sharding_finish_gather(s, &s->groups[i]);
    if (status == ORDO_OK && (!(flags & ORDO_GATHER_RANK0_ONLY) || s->comm->rank == 0 || s->options.replicated))
      status = sharding_bind(s, &s->groups[i]);
    else if (status == ORDO_OK)
      status = sharding_release(s, &s->groups[i]); /* only rank 0 keeps the whole model */
  }
  s->whole = 1;
  s->whole_flags = flags;
  return status;
}

/* This rank's part of the whole goes back to the shard. With RANK0_ONLY only rank 0 has seen the values, so it sends them. */
static ordo_status write_back(sharding *s, sharding_group *group)
{
  const int64_t size = (int64_t)ordo_dtype_size(group->dtype);
  ordo_status status = ORDO_OK;
  if (s->options.replicated)
    return s->whole_flags & ORDO_GATHER_RANK0_ONLY ? ordo_broadcast(s->comm, group->shard, group->shard_numel * size, ORDO_U8, 0) : ORDO_OK;
  if (s->whole_flags & ORDO_GATHER_RANK0_ONLY) {
    status = sharding_region_take(s->pool, &group->run->head->run->region);
    if (status == ORDO_OK)
      status = ordo_broadcast(s->comm, group->full, group->full_numel * size, ORDO_U8, 0);
  }
  for (uint32_t i = 0; i < group->n_pieces && status == ORDO_OK; i++) {
    const sharding_piece *p = &group->pieces[i];
    memcpy(sharding_at(group->shard, group->dtype, p->shard_offset),
           sharding_at(group->full, group->dtype, p->full_offset + s->comm->rank * p->count),
           (size_t)(sharding_touchable(s, p->count) * size));
  }
  give_back(s, group);
  return status;
}

ordo_status sharding_release_full(void *instance)
{
  sharding *s = sharding_of(instance);
  ordo_status status = ORDO_OK;
  if (!s->whole)
    return sharding_fail(s->job, ORDO_E_STATE, "open it with gather_full", "no scope of full parameters is open");
  s->whole = 0;
  for (uint32_t i = 0; i < s->n_groups && status == ORDO_OK; i++) {
    if (s->whole_flags & ORDO_GATHER_WRITE_BACK)
      status = write_back(s, &s->groups[i]);
    if (status == ORDO_OK)
      status = sharding_release(s, &s->groups[i]);
  }
  sharding_pool_trim(s->pool);
  return status;
}
