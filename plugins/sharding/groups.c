/* groups.c - groups and their memory: made once, before leaves are replaced.
 *
 * Shards and gradient buffers come from the communicator: on one node that is a window shared by the ranks, and a collective on it reads
 * the other ranks' shards where they lie. They are counted as weights and gradients, not as communication. With a cold tier shards and
 * reduced gradients lie in its file instead.
 */
#include "private.h"

#include <stdio.h>
#include <string.h>

enum { ALIGN = 64 }; /* bytes: a cache line */

/* Bytes of the elements, in whole cache lines. */
static int64_t lines(int64_t numel, ordo_dtype dtype)
{
  return (numel * (int64_t)ordo_dtype_size(dtype) + ALIGN - 1) / ALIGN * ALIGN;
}

static void *get(const ordo_job *job, uint64_t count, size_t size)
{
  void *memory = job->alloc(job->ctx, count * size > 0 ? (size_t)(count * size) : 1, ORDO_MEM_OTHER);
  if (memory == NULL)
    sharding_fail(job, ORDO_E_NOMEM, "free memory", "no memory for the lists of groups");
  return memory;
}

/* Memory is counted under another tag than it was allocated with. */
static void recount(const sharding *s, int64_t bytes, uint32_t from, uint32_t to)
{
  if (!ORDO_CAN(s->job, ordo_job, count_memory) || bytes == 0)
    return;
  s->job->count_memory(s->job->ctx, -bytes, from);
  s->job->count_memory(s->job->ctx, bytes, to);
}

const ordo_comm *sharding_sum_ranks(const ordo_job *job)
{
  const ordo_mesh *mesh = job->mesh;
  const int joins = job->ordered && mesh != NULL && ORDO_CAN(mesh, ordo_mesh, data) && mesh->data->size > job->axis->size;
  return joins ? mesh->data : job->axis->comm;
}

/* On the axes that mesh->data joins the gradient was partial, on other data axes it never is. */
void sharding_place_gradient(const ordo_job *job, ordo_placement *placement)
{
  placement->grad_partial[job->axis->index] = 1;
  if (sharding_sum_ranks(job) == job->axis->comm)
    return;
  for (uint32_t a = 0; a < job->mesh->n_axes && a < ORDO_MAX_AXES; a++)
    if (a != job->axis->index && job->mesh->axes[a]->kind == ORDO_AXIS_DATA)
      placement->grad_partial[a] = 0;
}

int sharding_sums_whole(const sharding *s)
{
  return s->options.replicated || s->sum_comm != s->comm;
}

/* Allocation is collective: what ended it may be a lost rank, which must not be told as a lack of memory. */
static ordo_status comm_alloc(sharding *s, const ordo_comm *comm, size_t bytes, uint32_t tag, const char *what, void **memory)
{
  *memory = NULL;
  ordo_status status = comm->alloc(comm->ctx, bytes > 0 ? bytes : 1, memory);
  if (status == ORDO_OK)
    recount(s, (int64_t)bytes, ORDO_MEM_COMM, tag);
  return status != ORDO_E_NOMEM ? status
                                : sharding_fail(s->job, status, "use more ranks or smaller units (units=block), or offload=disk:DIR",
                                                "no memory for %s (%zu bytes)", what, bytes);
}

static void comm_free(sharding *s, const ordo_comm *comm, void *memory, size_t bytes, uint32_t tag)
{
  if (memory == NULL)
    return;
  recount(s, (int64_t)bytes, tag, ORDO_MEM_COMM);
  (void)comm->free(comm->ctx, memory); /* a dead communicator cannot free and needs not */
}

static ordo_status check_pieces(const ordo_job *job, const sharding_group_spec *spec)
{
  for (uint32_t i = 0; i < spec->n_pieces; i++)
    if (spec->pieces[i].count < 0 || spec->pieces[i].shard_offset < 0 || spec->pieces[i].full_offset < 0)
      return sharding_fail(job, ORDO_E_INTERNAL, "report this as a defect of the strategy",
                           "group '%s': piece %u has a negative size or place", spec->name, i);
  return ORDO_OK;
}

static int is_plain(const sharding_group *group)
{
  return group->n_pieces == 1 && group->pieces[0].shard_offset == 0 && group->pieces[0].full_offset == 0;
}

static void measure(sharding_group *group, int64_t ranks)
{
  for (uint32_t i = 0; i < group->n_pieces; i++) {
    const sharding_piece *p = &group->pieces[i];
    int64_t shard = p->shard_offset + p->count, full = p->full_offset + p->count * ranks;
    group->count += p->count;
    group->grad_count += p->trainable ? p->count : 0;
    group->trainable |= p->trainable != 0;
    group->shard_numel = shard > group->shard_numel ? shard : group->shard_numel;
    group->full_numel = full > group->full_numel ? full : group->full_numel;
  }
}

/* Pieces as the communicator takes them; none where one range in rank order says the same. */
static ordo_status add_comm_pieces(sharding *s, sharding_group *group)
{
  struct sharding_run *run = group->run;
  if (is_plain(group))
    return ORDO_OK;
  run->gather_pieces = get(s->job, group->n_pieces, sizeof *run->gather_pieces);
  run->reduce_pieces = get(s->job, group->n_pieces, sizeof *run->reduce_pieces);
  if (run->gather_pieces == NULL || run->reduce_pieces == NULL)
    return ORDO_E_NOMEM;
  for (uint32_t i = 0; i < group->n_pieces; i++) {
    const sharding_piece *p = &group->pieces[i];
    run->gather_pieces[i] = (ordo_comm_piece){p->shard_offset, p->full_offset, p->count};
    if (p->trainable)
      run->reduce_pieces[run->n_reduce_pieces++] = run->gather_pieces[i];
  }
  return ORDO_OK;
}

/* Units belong to one group, or to several of different types, each with all of them. */
static ordo_status join(sharding *s, sharding_group *group, const sharding_group_spec *spec)
{
  const int32_t first = spec->n_units > 0 && spec->units[0] < s->n_units ? s->group_of_unit[spec->units[0]] : -1;
  sharding_group *head = first >= 0 ? &s->groups[first] : group, *last = head;
  int mismatch = head->n_units != spec->n_units;
  for (uint32_t i = 0; i < spec->n_units; i++) {
    if (mismatch || spec->units[i] >= s->n_units || s->group_of_unit[spec->units[i]] != first)
      return sharding_fail(s->job, ORDO_E_INTERNAL, "report this as a defect of the strategy",
                           "unit %u stands in no group, or in two that do not have the same units", spec->units[i]);
    s->group_of_unit[spec->units[i]] = (int32_t)head->index;
  }
  group->run->head = head;
  while (last->run->next != NULL)
    last = last->run->next;
  if (last != group)
    last->run->next = group;
  return ORDO_OK;
}

ordo_status sharding_each(sharding *s, sharding_group *head, ordo_status (*call)(sharding *s, sharding_group *group))
{
  ordo_status status = ORDO_OK;
  for (sharding_group *group = head; group != NULL && status == ORDO_OK; group = group->run->next)
    status = call(s, group);
  return status;
}

static ordo_status add_group(sharding *s, const sharding_group_spec *spec, uint32_t index)
{
  sharding_group *group = &s->groups[index];
  ordo_status status = check_pieces(s->job, spec);
  if (status == ORDO_OK)
    status = sharding_wide_check(s->job, &s->options, spec);
  group->index = index;
  group->run = &s->runs[index];
  group->run->halves = -1;
  group->run->region.slot = -1;
  group->run->sync = group->run->reshard_after_forward = group->run->reshard_after_backward = ORDO_CONTROL_RULE;
  group->is_root = spec->is_root;
  group->dtype = spec->dtype != 0 ? spec->dtype : ORDO_F32;
  group->grad_dtype = spec->grad_dtype != 0 ? spec->grad_dtype : ORDO_F32;
  group->n_units = spec->n_units;
  group->n_pieces = spec->n_pieces;
  char *name = get(s->job, strlen(spec->name) + 1, 1);
  group->units = get(s->job, spec->n_units, sizeof *group->units);
  group->pieces = get(s->job, spec->n_pieces, sizeof *group->pieces);
  group->run->ready = get(s->job, spec->n_pieces, 1);
  group->name = name;
  if (status != ORDO_OK || name == NULL || group->units == NULL || group->pieces == NULL || group->run->ready == NULL)
    return status != ORDO_OK ? status : ORDO_E_NOMEM;
  memcpy(name, spec->name, strlen(spec->name) + 1);
  memcpy(group->units, spec->units, spec->n_units * sizeof *group->units);
  memcpy(group->pieces, spec->pieces, spec->n_pieces * sizeof *group->pieces);
  snprintf(group->run->label, sizeof group->run->label, "%s", spec->name);
  if ((status = join(s, group, spec)) != ORDO_OK)
    return status;
  measure(group, s->options.replicated ? 1 : s->comm->size);
  s->trainable |= group->trainable;
  return add_comm_pieces(s, group);
}

static ordo_status cold_shards(sharding *s, int gradients)
{
  s->shard_block = sharding_cold_alloc(s->cold, s->shard_bytes);
  if (s->shard_block != NULL && gradients)
    s->grad_shard_block = sharding_cold_alloc(s->cold, s->grad_shard_bytes);
  return s->shard_block != NULL && (s->grad_shard_block != NULL || !gradients) ? ORDO_OK : ORDO_E_IO; /* the cold tier has said why */
}

static ordo_status add_shard_gradients(sharding *s)
{
  if (s->options.replicated)
    return comm_alloc(s, s->sum_comm, s->grad_shard_bytes, ORDO_MEM_GRADIENTS, "gradients", &s->grad_shard_block);
  s->grad_shard_block = s->job->alloc(s->job->ctx, s->grad_shard_bytes, ORDO_MEM_GRADIENTS);
  return s->grad_shard_block != NULL ? ORDO_OK
                                     : sharding_fail(s->job, ORDO_E_NOMEM, "use more ranks, or offload=disk:DIR",
                                                     "no memory for the gradients of shards (%zu bytes)", s->grad_shard_bytes);
}

/* Shards of all groups in one block, reduced gradients in another. */
static ordo_status add_shards(sharding *s)
{
  int64_t shard = 0, grad = 0;
  char *at, *grad_at;
  ordo_status status = ORDO_OK;
  for (uint32_t i = 0; i < s->n_groups; i++) {
    shard += lines(s->groups[i].shard_numel, s->groups[i].dtype);
    grad += s->groups[i].trainable ? lines(s->groups[i].shard_numel, s->groups[i].grad_dtype) : 0;
  }
  s->shard_bytes = (size_t)shard;
  s->grad_shard_bytes = (size_t)grad;
  if (s->cold != NULL)
    status = cold_shards(s, grad > 0);
  else
    status = comm_alloc(s, s->comm, s->shard_bytes, ORDO_MEM_WEIGHTS, "shards", &s->shard_block);
  if (status == ORDO_OK && grad > 0 && s->cold == NULL)
    status = add_shard_gradients(s);
  if (status != ORDO_OK)
    return status;
  at = s->shard_block;
  grad_at = s->grad_shard_block;
  for (uint32_t i = 0; i < s->n_groups; i++) {
    sharding_group *group = &s->groups[i];
    group->shard = at;
    at += lines(group->shard_numel, group->dtype);
    if (!group->trainable)
      continue;
    group->grad_shard = grad_at;
    grad_at += lines(group->shard_numel, group->grad_dtype);
  }
  return ORDO_OK;
}

static int64_t largest(const sharding *s, int root, int shard)
{
  int64_t most = 0;
  for (uint32_t i = 0; i < s->n_groups; i++) {
    const sharding_group *group = &s->groups[i];
    int64_t numel = shard ? group->shard_numel : group->full_numel;
    if ((root < 0 || (group->is_root != 0) == (root != 0)) && (shard || group->trainable) && numel > most)
      most = numel;
  }
  return most;
}

static int64_t gradient_lines(const sharding_group *group)
{
  return group->trainable ? lines(group->full_numel, group->grad_dtype) : 0;
}

/* The largest gradient of units that are not in the root, of all types. */
static int64_t turn_bytes(const sharding *s)
{
  int64_t most = 0;
  for (uint32_t i = 0; i < s->n_groups; i++) {
    int64_t bytes = 0;
    for (const sharding_group *g = &s->groups[i]; g != NULL && !g->is_root && s->groups[i].run->head == &s->groups[i]; g = g->run->next)
      bytes += gradient_lines(g);
    most = bytes > most ? bytes : most;
  }
  return most;
}

static size_t gradient_bytes(const sharding *s)
{
  int64_t bytes = turn_bytes(s);
  for (uint32_t i = 0; i < s->n_groups; i++)
    bytes += s->groups[i].is_root ? gradient_lines(&s->groups[i]) : 0;
  return (size_t)bytes;
}

/* The buffer that groups use in turn stands first; each root group has its own behind it. */
static ordo_status add_gradients(sharding *s)
{
  char *at;
  if (!s->trainable || s->options.replicated)
    return ORDO_OK;
  ordo_status status = comm_alloc(s, s->sum_comm, gradient_bytes(s), ORDO_MEM_GRADIENTS, "the gradient of a group", &s->grad_block);
  if (status != ORDO_OK)
    return status;
  at = s->grad_block;
  at += turn_bytes(s);
  for (uint32_t i = 0; i < s->n_groups; i++) {
    struct sharding_run *run = s->groups[i].run;
    if (run->next != NULL)
      run->next->run->turn_offset = run->turn_offset + gradient_lines(&s->groups[i]);
    if (!s->groups[i].is_root || !s->groups[i].trainable)
      continue;
    run->own_grad = at;
    at += gradient_lines(&s->groups[i]);
  }
  return ORDO_OK;
}

static ordo_status add_low_buffers(sharding *s)
{
  static const char what[] = "values of 16 bits that travel";
  const size_t size = sizeof(uint16_t), send = (size_t)largest(s, -1, 0) * size, receive = (size_t)(largest(s, -1, 1) + 1) * size;
  void *memory = NULL;
  ordo_status status = ORDO_OK;
  if (s->options.param_dtype != ORDO_F32) {
    s->n_halves = s->options.limit + 1 < 8 ? s->options.limit + 1 : 8;
    s->half_numel = lines(largest(s, -1, 1), ORDO_F32) / (int64_t)sizeof(float);
    status = comm_alloc(s, s->comm, (size_t)s->half_numel * s->n_halves * size, ORDO_MEM_COMM, what, &memory);
    s->half_block = memory;
  }
  if (status != ORDO_OK || s->options.reduce_dtype == ORDO_F32 || !s->trainable)
    return status;
  status = comm_alloc(s, s->sum_comm, send, ORDO_MEM_COMM, what, &memory);
  s->low_send = memory;
  if (status != ORDO_OK)
    return status;
  s->low_recv = s->job->alloc(s->job->ctx, receive, ORDO_MEM_COMM);
  return s->low_recv != NULL ? ORDO_OK : sharding_fail(s->job, ORDO_E_NOMEM, "free memory", "no memory for %s (%zu bytes)", what, receive);
}

/* Room for a gathered group; with parts in ranges of equal size for their ranks. */
static int64_t gathered_lines(const sharding *s, const sharding_group *group)
{
  const int64_t size = s->options.reshard_size > 0 ? s->options.reshard_size : 1;
  const int64_t numel = (group->full_numel + size - 1) / size * size;
  return lines(numel > 0 ? numel : 1, group->dtype);
}

static ordo_status add_regions(sharding *s)
{
  ordo_status status = sharding_pool_create(s->job, s->options.limit, s->options.poison, &s->pool);
  for (uint32_t i = 0; i < s->n_groups && status == ORDO_OK && !s->options.replicated; i++) {
    sharding_group *head = &s->groups[i];
    int64_t bytes = 0;
    for (const sharding_group *g = head; g != NULL && head->run->head == head; g = g->run->next)
      bytes += gathered_lines(s, g);
    if (head->run->head != head)
      continue;
    status = sharding_region_init(s->pool, &head->run->region, (size_t)bytes, !head->is_root);
    bytes = 0;
    for (sharding_group *g = head; g != NULL; g = g->run->next) {
      g->full = head->run->region.base + bytes;
      bytes += gathered_lines(s, g);
    }
  }
  for (uint32_t i = 0; i < s->n_groups && s->options.replicated; i++) {
    s->groups[i].full = s->groups[i].shard;
    s->groups[i].full_grad = s->groups[i].grad_shard;
  }
  return status;
}

static ordo_status add_parts(sharding *s)
{
  int64_t size = s->options.reshard_size, bytes = 0;
  char *at;
  ordo_status status;
  if (size == 0)
    return ORDO_OK;
  if (size < 2 || size >= s->comm->size || s->comm->size % size != 0)
    return sharding_fail(s->job, ORDO_E_INVALID, "true, false, or a divisor of the ranks other than 1 and all of them",
                         "reshard_after_forward=%lld: it must divide the %d ranks of the axis", (long long)size, s->comm->size);
  if (!ORDO_CAN(s->job, ordo_job, axis_part))
    return sharding_fail(s->job, ORDO_E_UNSUPPORTED, "use true or false", "reshard_after_forward=%lld: this host has no parts of an axis",
                         (long long)size);
  if ((status = s->job->axis_part(s->job->ctx, (int32_t)size, &s->part_comm)) != ORDO_OK)
    return status;
  for (uint32_t i = 0; i < s->n_groups; i++)
    bytes += s->groups[i].is_root ? 0 : lines((s->groups[i].full_numel + size - 1) / size, s->groups[i].dtype);
  if ((status = s->part_comm->alloc(s->part_comm->ctx, (size_t)(bytes > 0 ? bytes : 4), &s->part_block)) != ORDO_OK)
    return status;
  at = s->part_block;
  for (uint32_t i = 0; i < s->n_groups; i++) {
    if (s->groups[i].is_root)
      continue;
    s->groups[i].run->part = at;
    at += lines((s->groups[i].full_numel + size - 1) / size, s->groups[i].dtype);
  }
  return ORDO_OK;
}

/* A communicator without pieces gets buffers in rank order; a host of ours always has them. */
static ordo_status add_staging(sharding *s)
{
  int has = ORDO_HAS(s->comm, ordo_comm, features) && (s->comm->features & ORDO_COMM_PIECES) != 0, needed = 0;
  for (uint32_t i = 0; i < s->n_groups; i++)
    needed |= s->groups[i].run->gather_pieces != NULL;
  if (has || !needed)
    return ORDO_OK;
  size_t bytes = (size_t)(largest(s, -1, 1) * (s->comm->size + 1) + 1) * sizeof(float);
  s->staging_gather = s->job->alloc(s->job->ctx, bytes, ORDO_MEM_COMM);
  s->staging_reduce = s->job->alloc(s->job->ctx, bytes, ORDO_MEM_COMM);
  if (s->staging_gather != NULL && s->staging_reduce != NULL)
    return ORDO_OK;
  return sharding_fail(s->job, ORDO_E_NOMEM, "use smaller units, or a communicator with pieces",
                       "no memory for two buffers in the order of ranks (%zu bytes each)", bytes);
}

static ordo_status fill(sharding *s, const sharding_group_spec *specs, uint32_t n)
{
  ordo_status status = ORDO_OK;
  s->groups = get(s->job, n, sizeof *s->groups);
  s->runs = get(s->job, n, sizeof *s->runs);
  s->group_of_unit = get(s->job, s->n_units, sizeof *s->group_of_unit);
  if (s->groups == NULL || s->runs == NULL || s->group_of_unit == NULL)
    return ORDO_E_NOMEM;
  for (uint32_t i = 0; i < s->n_units; i++)
    s->group_of_unit[i] = -1;
  for (uint32_t i = 0; i < n && status == ORDO_OK; i++) {
    s->n_groups = i + 1;
    status = add_group(s, &specs[i], i);
  }
  if (status == ORDO_OK)
    status = sharding_cold_create(s->job, s->options.offload, &s->cold);
  if (status == ORDO_OK)
    status = add_shards(s);
  if (status == ORDO_OK)
    status = add_gradients(s);
  if (status == ORDO_OK)
    status = add_low_buffers(s);
  if (status == ORDO_OK)
    status = sharding_wide_reserve(s);
  if (status == ORDO_OK)
    status = add_regions(s);
  if (status == ORDO_OK)
    status = add_parts(s);
  if (status == ORDO_OK)
    status = add_staging(s);
  if (status == ORDO_OK && s->cold != NULL && s->trainable)
    status = sharding_cold_take_optimizer(s->cold);
  return status;
}

ordo_status sharding_create(const ordo_job *job, const sharding_options *options, const sharding_callbacks *callbacks,
                            const sharding_group_spec *specs, uint32_t n_specs, sharding **result)
{
  sharding *s = get(job, 1, sizeof *s);
  *result = NULL;
  if (s == NULL)
    return ORDO_E_NOMEM;
  s->job = job;
  s->comm = job->axis->comm;
  s->sum_comm = sharding_sum_ranks(job);
  s->options = *options;
  s->callbacks = *callbacks;
  s->n_units = job->model->n_units;
  s->divide_factor = 1.0;
  s->wire = ORDO_CAN(job, ordo_job, wire) ? job->wire(job->ctx, &s->wire_self) : NULL;
  if (s->options.limit < 1)
    s->options.limit = 2;
  ordo_status status = fill(s, specs, n_specs);
  if (status != ORDO_OK) {
    sharding_destroy(s);
    return status;
  }
  sharding_wire_report(s);
  *result = s;
  return ORDO_OK;
}

/* Bytes of the whole gradient of a group between micro-batches; 0 if it needs none of its own. */
static int64_t kept_lines(const sharding *s, const sharding_group *group)
{
  const int narrows = sharding_narrows(s, group);
  if (!group->trainable || (!narrows && group->is_root))
    return 0;
  return lines(group->full_numel, narrows ? s->options.reduce_dtype : group->grad_dtype);
}

static size_t accumulation_bytes(const sharding *s)
{
  int64_t bytes = 0;
  for (uint32_t i = 0; i < s->n_groups; i++)
    bytes += kept_lines(s, &s->groups[i]);
  return (size_t)bytes;
}

/* Gradients of all groups at once, for no_sync; the roots keep theirs. Collective, at the first step that accumulates. */
ordo_status sharding_reserve_accumulation(sharding *s)
{
  char *at;
  if (s->accumulate_block != NULL || s->options.replicated || !s->trainable)
    return ORDO_OK;
  const size_t bytes = accumulation_bytes(s);
  ordo_status status = comm_alloc(s, s->sum_comm, bytes, ORDO_MEM_GRADIENTS,
                                  "whole gradients between micro-batches, which no_sync=false does without", &s->accumulate_block);
  if (status != ORDO_OK)
    return status;
  at = s->accumulate_block;
  for (uint32_t i = 0; i < s->n_groups; i++) {
    struct sharding_run *run = s->groups[i].run;
    const int64_t kept = kept_lines(s, &s->groups[i]);
    if (kept > 0 && sharding_narrows(s, &s->groups[i]))
      run->low_grad = (uint16_t *)(void *)at;
    else if (kept > 0)
      run->own_grad = at;
    at += kept;
  }
  return ORDO_OK;
}

static void free_groups(sharding *s)
{
  const ordo_job *job = s->job;
  for (uint32_t i = 0; i < s->n_groups; i++) {
    sharding_group *group = &s->groups[i];
    if (group->run->gather != NULL)
      (void)group->run->gather_comm->wait(group->run->gather_comm->ctx, group->run->gather);
    if (s->pool != NULL)
      sharding_region_clear(s->pool, &group->run->region);
    job->free(job->ctx, (char *)group->name);
    job->free(job->ctx, group->units);
    job->free(job->ctx, group->pieces);
    job->free(job->ctx, group->run->ready);
    job->free(job->ctx, group->run->sum);
    job->free(job->ctx, group->run->gather_pieces);
    job->free(job->ctx, group->run->reduce_pieces);
  }
  job->free(job->ctx, s->groups);
  job->free(job->ctx, s->runs);
  job->free(job->ctx, s->group_of_unit);
}

static void free_shards(sharding *s)
{
  if (s->cold != NULL) {
    sharding_cold_free(s->cold, s->shard_block, s->shard_bytes);
    sharding_cold_free(s->cold, s->grad_shard_block, s->grad_shard_bytes);
    return;
  }
  comm_free(s, s->comm, s->shard_block, s->shard_bytes, ORDO_MEM_WEIGHTS);
  if (s->options.replicated)
    comm_free(s, s->sum_comm, s->grad_shard_block, s->grad_shard_bytes, ORDO_MEM_GRADIENTS);
  else
    s->job->free(s->job->ctx, s->grad_shard_block);
}

void sharding_destroy(sharding *s)
{
  if (s == NULL)
    return;
  const ordo_job *job = s->job;
  if (s->reduction != NULL)
    (void)s->sum_comm->wait(s->sum_comm->ctx, s->reduction);
  if (s->accumulate_block != NULL)
    comm_free(s, s->sum_comm, s->accumulate_block, accumulation_bytes(s), ORDO_MEM_GRADIENTS);
  if (s->part_block != NULL)
    (void)s->part_comm->free(s->part_comm->ctx, s->part_block);
  comm_free(s, s->sum_comm, s->low_send, 0, ORDO_MEM_COMM);
  comm_free(s, s->comm, s->half_block, 0, ORDO_MEM_COMM);
  if (s->grad_block != NULL)
    comm_free(s, s->sum_comm, s->grad_block, gradient_bytes(s), ORDO_MEM_GRADIENTS);
  free_shards(s);
  sharding_wide_free(s);
  job->free(job->ctx, s->low_recv);
  job->free(job->ctx, s->wire_block);
  job->free(job->ctx, s->wire_sizes);
  job->free(job->ctx, s->spare_shard);
  job->free(job->ctx, s->staging_gather);
  job->free(job->ctx, s->staging_reduce);
  sharding_control_clear(s);
  if (s->groups != NULL && s->runs != NULL)
    free_groups(s);
  sharding_pool_destroy(s->pool);
  if (s->cold != NULL && ORDO_CAN(job, ordo_job, set_allocator) && s->trainable)
    (void)job->set_allocator(job->ctx, ORDO_MEM_OPTIMIZER, NULL);
  sharding_cold_destroy(s->cold);
  job->free(job->ctx, s);
}

sharding_group *sharding_group_at(sharding *s, uint32_t index)
{
  return index < s->n_groups ? &s->groups[index] : NULL;
}

sharding_group *sharding_group_of_unit(sharding *s, uint32_t unit)
{
  return unit < s->n_units && s->group_of_unit[unit] >= 0 ? &s->groups[s->group_of_unit[unit]] : NULL;
}
