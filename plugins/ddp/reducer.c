/* reducer.c - the life of the buckets: laid out, filled during backward, reduced, rebuilt once. See reducer.h.
 *
 * The first step uses one bucket without limit and records in which order gradients really become ready; before the second
 * step the buckets are rebuilt in rank 0's order, so that from then on each one is complete as early as it can be. With
 * find_unused_parameters (and a graph that is not static) that order means nothing, and the buckets are built once, in reverse
 * order of definition.
 *
 * Nothing that was not written may be summed: the contents of a gradient in state ORDO_GRAD_NONE are undefined (in debug
 * sessions NaN), so its place is cleared before the bucket starts.
 */
#include "reducer.h"

#include "buckets.h"
#include "hooks.h"

#include <stdio.h>
#include <string.h>

enum { ALIGNMENT = 64 }; /* bytes; the start of every bucket, a cache line */

static int is_dynamic(const ddp_reducer *reducer)
{
  return reducer->owner->options.find_unused && !reducer->owner->options.static_graph;
}

/* ---- layout ---- */

/* Sets bucket and order of every slot from the wanted order; `unbounded`: one bucket per element type. */
static ordo_status assign(ddp_reducer *reducer, const uint32_t *wanted, int unbounded)
{
  const uint32_t n = reducer->slots.n;
  const int64_t limits[2] = {unbounded ? DDP_UNBOUNDED : reducer->owner->options.first_bucket,
                             unbounded ? DDP_UNBOUNDED : reducer->owner->options.bucket_cap};
  int64_t *bytes = ddp_alloc(reducer->job, n, sizeof *bytes);
  ordo_dtype *dtypes = ddp_alloc(reducer->job, n, sizeof *dtypes);
  uint32_t *bucket_of = ddp_alloc(reducer->job, n, sizeof *bucket_of);
  ordo_status status = bytes != NULL && dtypes != NULL && bucket_of != NULL ? ORDO_OK : ORDO_E_NOMEM;
  if (status == ORDO_OK) {
    for (uint32_t s = 0; s < n; s++) {
      bytes[s] = reducer->slots.items[s].bytes;
      dtypes[s] = reducer->slots.items[s].leaf->grad_dtype;
    }
    reducer->n_buckets = ddp_assign_buckets(bytes, dtypes, wanted, n, limits, 2, bucket_of);
    uint32_t filled = 0;
    for (uint32_t b = 0; b < reducer->n_buckets; b++)
      for (uint32_t i = 0; i < n; i++)
        if (bucket_of[wanted[i]] == b) {
          reducer->slots.items[wanted[i]].bucket = b;
          reducer->order[filled++] = wanted[i];
        }
  }
  ddp_free(reducer->job, bytes);
  ddp_free(reducer->job, dtypes);
  ddp_free(reducer->job, bucket_of);
  return status;
}

static void describe_bucket(ddp_reducer *reducer, uint32_t index, uint32_t first, uint32_t n, int64_t numel, void *data)
{
  ddp_bucket *bucket = &reducer->buckets[index];
  memset(bucket, 0, sizeof *bucket);
  bucket->dtype = reducer->slots.items[reducer->order[first]].leaf->grad_dtype;
  bucket->data = data;
  bucket->first = first;
  snprintf(bucket->label, sizeof bucket->label, "bucket %u", index);
  bucket->info.struct_size = sizeof bucket->info;
  bucket->info.index = index;
  bucket->info.n_buckets = reducer->n_buckets;
  bucket->info.data = bucket->dtype == ORDO_F32 ? data : NULL;
  bucket->info.numel = numel;
  bucket->info.leaves = reducer->leaves + first;
  bucket->info.leaf_offsets = reducer->offsets + first;
  bucket->info.n_leaves = n;
  bucket->info.generation = reducer->generation;
}

/* Lays the buckets out in memory and attaches every slot to its place. */
static ordo_status lay_out(ddp_reducer *reducer)
{
  const uint32_t n = reducer->slots.n;
  char *place = reducer->memory;
  ordo_status status = ORDO_OK;
  reducer->generation++;
  for (uint32_t b = 0, i = 0; b < reducer->n_buckets; b++) {
    const uint32_t first = i;
    int64_t bytes = 0, numel = 0;
    for (; i < n && reducer->slots.items[reducer->order[i]].bucket == b; i++) {
      ddp_slot *slot = &reducer->slots.items[reducer->order[i]];
      reducer->leaves[i] = slot->leaf;
      reducer->offsets[i] = numel;
      if (status == ORDO_OK && slot->bytes > 0)
        status = ddp_slot_attach(reducer->job, slot, place + bytes);
      bytes += slot->bytes;
      numel += slot->leaf->numel;
    }
    describe_bucket(reducer, b, first, i - first, numel, place);
    place = place != NULL ? place + (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : NULL;
  }
  return status;
}

/* Rank 0's order of the first step becomes everybody's. Slots that nobody saw go last, in reverse order of definition. */
static ordo_status rebuild(ddp_reducer *reducer)
{
  const uint32_t n = reducer->slots.n;
  int32_t *order = ddp_alloc(reducer->job, n, sizeof *order);
  uint8_t *seen = ddp_alloc(reducer->job, n, 1);
  ordo_status status = order != NULL && seen != NULL ? ORDO_OK : ORDO_E_NOMEM;
  if (status == ORDO_OK) {
    uint32_t filled = 0;
    for (; filled < reducer->n_observed; filled++) {
      order[filled] = (int32_t)reducer->observed[filled];
      seen[reducer->observed[filled]] = 1;
    }
    for (uint32_t s = n; s-- > 0;)
      if (!seen[s])
        order[filled++] = (int32_t)s;
    status = ordo_broadcast(reducer->comm, order, n, ORDO_I32, 0);
  }
  if (status == ORDO_OK && !ddp_is_permutation(order, n, seen))
    status = ddp_fail(reducer->job, ORDO_E_INTERNAL, "report it with the plan (`ordo plan`) and the model",
                      "the bucket order that came from rank 0 is not an order of the %u parameters", n);
  if (status == ORDO_OK) {
    for (uint32_t i = 0; i < n; i++)
      reducer->observed[i] = (uint32_t)order[i];
    status = assign(reducer, reducer->observed, 0);
  }
  ddp_free(reducer->job, order);
  ddp_free(reducer->job, seen);
  reducer->observing = 0;
  return status == ORDO_OK ? lay_out(reducer) : status;
}

/* ---- life cycle ---- */

static ordo_status select_hook(ddp_reducer *reducer)
{
  const char *name = reducer->owner->options.hook;
  const ordo_job *job = reducer->job;
  if (strcmp(name, "none") == 0)
    return ORDO_OK;
  for (uint32_t s = 0; s < reducer->slots.n; s++)
    if (reducer->slots.items[s].leaf->grad_dtype != ORDO_F32)
      return ddp_fail(job, ORDO_E_UNSUPPORTED, "use ddp:hook=none, or keep gradients in fp32",
                      "hook '%s' works on fp32 gradients, and that of '%s' is not", name, reducer->slots.items[s].leaf->name);
  ordo_dtype dtype = ddp_compression_dtype(name);
  if (dtype != 0) {
    reducer->hook = &ddp_compression;
    reducer->hook_is_ours = 1;
    return ddp_compression_create(job, dtype, reducer->memory, reducer->memory_bytes / (int64_t)sizeof(float), &reducer->hook_instance);
  }
  reducer->hook = job->comm_hook(job->ctx, &reducer->hook_instance);
  if (reducer->hook == NULL)
    return ddp_fail(job, ORDO_E_NOT_FOUND, "use none, fp16, bf16, or the id of a comm_hook plugin (`ordo list`)", "no comm hook '%s'",
                    name);
  return ORDO_OK;
}

/* The account takes memory of a communicator for communication; buckets are where the gradients are. */
static void count_as_gradients(const ddp_reducer *reducer, int64_t bytes)
{
  if (!ORDO_CAN(reducer->job, ordo_job, count_memory))
    return;
  reducer->job->count_memory(reducer->job->ctx, -bytes, ORDO_MEM_COMM);
  reducer->job->count_memory(reducer->job->ctx, bytes, ORDO_MEM_GRADIENTS);
}

static ordo_status allocate(ddp_reducer *reducer)
{
  const uint32_t n = reducer->slots.n;
  int64_t bytes = 0;
  for (uint32_t s = 0; s < n; s++)
    bytes += reducer->slots.items[s].bytes;
  reducer->buckets = ddp_alloc(reducer->job, n, sizeof *reducer->buckets);
  reducer->order = ddp_alloc(reducer->job, n, sizeof *reducer->order);
  reducer->observed = ddp_alloc(reducer->job, n, sizeof *reducer->observed);
  reducer->leaves = ddp_alloc(reducer->job, n, sizeof(ordo_leaf *));
  reducer->offsets = ddp_alloc(reducer->job, n, sizeof *reducer->offsets);
  if (reducer->buckets == NULL || reducer->order == NULL || reducer->observed == NULL || reducer->leaves == NULL ||
      reducer->offsets == NULL)
    return ORDO_E_NOMEM;
  /* Room for the worst case of one bucket per slot, so that a rebuilt layout always fits. */
  reducer->memory_bytes = bytes > 0 ? bytes + (int64_t)n * ALIGNMENT : 0;
  if (bytes == 0)
    return ORDO_OK;
  count_as_gradients(reducer, reducer->memory_bytes); /* before alloc counts it, so that no peak has it twice */
  ordo_status status = reducer->comm->alloc(reducer->comm->ctx, (size_t)reducer->memory_bytes, &reducer->memory);
  if (status != ORDO_OK)
    count_as_gradients(reducer, -reducer->memory_bytes);
  return status;
}

ordo_status ddp_reducer_create(const ddp *owner, ddp_reducer **result)
{
  ddp_reducer *reducer = ddp_alloc(owner->job, 1, sizeof *reducer);
  if (reducer == NULL)
    return ORDO_E_NOMEM;
  reducer->owner = owner;
  reducer->job = owner->job;
  reducer->comm = owner->comm;
  reducer->stats.job = owner->job;
  reducer->stats.interval = owner->options.stats_interval;
  reducer->observing = !is_dynamic(reducer);

  ordo_status status = ddp_slots_init(&reducer->slots, owner->job, owner->options.ignored);
  if (status == ORDO_OK)
    status = allocate(reducer);
  if (status == ORDO_OK)
    status = select_hook(reducer);
  if (status == ORDO_OK) {
    for (uint32_t s = 0; s < reducer->slots.n; s++)
      reducer->observed[s] = reducer->slots.n - 1 - s;
    status = assign(reducer, reducer->observed, reducer->observing);
  }
  if (status == ORDO_OK)
    status = lay_out(reducer);
  if (status != ORDO_OK) {
    ddp_reducer_destroy(reducer);
    return status;
  }
  *result = reducer;
  return ORDO_OK;
}

void ddp_reducer_destroy(ddp_reducer *reducer)
{
  if (reducer == NULL)
    return;
  const ordo_job *job = reducer->job;
  if (reducer->slots.job != NULL)
    ddp_slots_clear(&reducer->slots);
  if (reducer->hook_is_ours)
    reducer->hook->destroy(reducer->hook_instance);
  if (reducer->memory != NULL) {
    reducer->comm->free(reducer->comm->ctx, reducer->memory);
    count_as_gradients(reducer, -reducer->memory_bytes);
  }
  ddp_free(job, reducer->buckets);
  ddp_free(job, reducer->order);
  ddp_free(job, reducer->observed);
  ddp_free(job, reducer->leaves);
  ddp_free(job, reducer->offsets);
  ddp_free(job, reducer);
}

/* ---- one step ---- */

ordo_status ddp_reducer_step_begin(ddp_reducer *reducer, const ordo_step_info *info)
{
  ordo_status status = ORDO_OK;
  if (reducer->observing && reducer->step > 0)
    status = rebuild(reducer);
  reducer->step = info->step;
  reducer->divide_factor = info->divide_factor;
  reducer->in_last = 0;
  reducer->next = 0;
  for (uint32_t s = 0; s < reducer->slots.n; s++)
    reducer->slots.items[s].used = reducer->slots.items[s].problem = 0;
  ddp_stats_begin_step(&reducer->stats);
  return status;
}

void ddp_reducer_micro_begin(ddp_reducer *reducer, const ordo_step_info *info)
{
  reducer->in_last = info->is_last_micro_batch != 0;
  reducer->n_observed = 0;
  for (uint32_t b = 0; b < reducer->n_buckets; b++)
    reducer->buckets[b].waiting = (uint32_t)reducer->buckets[b].info.n_leaves;
  for (uint32_t s = 0; s < reducer->slots.n; s++) {
    ddp_slot *slot = &reducer->slots.items[s];
    int known_unused = reducer->learned && !slot->expected;
    slot->ready = (uint8_t)(slot->leaf->numel == 0 || known_unused);
    reducer->buckets[slot->bucket].waiting -= slot->ready;
  }
}

static void clear(const ddp_reducer *reducer, const ddp_slot *slot)
{
  if (ordo_job_has_data(reducer->job))
    memset(slot->view, 0, (size_t)slot->bytes);
}

/* Clears what was not written, fetches what another strategy wrote elsewhere, and checks the numbers if asked to. */
static ordo_status complete_bucket(ddp_reducer *reducer, const ddp_bucket *bucket)
{
  for (uint64_t i = 0; i < bucket->info.n_leaves; i++) {
    ddp_slot *slot = &reducer->slots.items[reducer->order[bucket->first + i]];
    if (slot->bytes == 0)
      continue;
    if (!slot->used)
      clear(reducer, slot);
    else if (slot->leaf->grad != slot->view) {
      if (slot->direct || slot->leaf->grad == NULL)
        return ddp_fail(reducer->job, ORDO_E_INVARIANT, "a gradient must stay in its bucket from strategy.wrap(ddp) on",
                        "something else moved the gradient of '%s' out of its bucket", slot->leaf->name);
      if (ordo_job_has_data(reducer->job))
        memcpy(slot->view, slot->leaf->grad, (size_t)slot->bytes);
      ordo_status status = reducer->job->set_grad(reducer->job->ctx, slot->leaf, slot->view);
      if (status != ORDO_OK)
        return status;
    }
    if (slot->used && reducer->owner->options.nan_check && ordo_job_has_data(reducer->job) && !ddp_slot_is_finite(slot))
      slot->problem |= DDP_NOT_FINITE;
  }
  return ORDO_OK;
}

static ordo_status start_bucket(ddp_reducer *reducer, ddp_bucket *bucket)
{
  if (bucket->info.numel == 0)
    return ORDO_OK;
  ordo_status status = complete_bucket(reducer, bucket);
  if (status != ORDO_OK)
    return status;
  ddp_stats_comm_begin(&reducer->stats);
  if (reducer->hook != NULL) {
    bucket->info.step = reducer->step;
    bucket->info.divide_factor = reducer->divide_factor;
    status = reducer->hook->start(reducer->hook_instance, &bucket->info, &bucket->handle);
  } else {
    ordo_collective c = ordo_collective_make(ORDO_ALL_REDUCE, bucket->data, bucket->data, bucket->info.numel, bucket->dtype);
    c.flags = reducer->job->ordered ? ORDO_COMM_ORDERED : 0;
    c.factor = 1.0 / reducer->divide_factor;
    c.label = bucket->label;
    status = reducer->comm->start(reducer->comm->ctx, &c, &bucket->request);
  }
  return status;
}

static ordo_status start_complete(ddp_reducer *reducer)
{
  while (reducer->next < reducer->n_buckets && reducer->buckets[reducer->next].waiting == 0) {
    ordo_status status = start_bucket(reducer, &reducer->buckets[reducer->next]);
    if (status != ORDO_OK)
      return status;
    reducer->next++;
  }
  return ORDO_OK;
}

static void set_ready(ddp_reducer *reducer, ddp_slot *slot)
{
  slot->ready = 1;
  reducer->buckets[slot->bucket].waiting--;
}

ordo_status ddp_reducer_grad_ready(ddp_reducer *reducer, const ordo_param *param)
{
  ddp_slot *slot = ddp_slots_find(&reducer->slots, param);
  if (slot == NULL || !slot->direct)
    return ORDO_OK;
  if (slot->ready) {
    if (reducer->learned && !slot->expected)
      slot->problem |= DDP_DEVIATES;
    else if (slot->leaf->n_params == 1) /* members of a tie group may each be reported */
      slot->problem |= DDP_TWICE;
    return ORDO_OK;
  }
  slot->used = 1;
  if (reducer->owner->waits != NULL && reducer->owner->waits[param->unit])
    return ORDO_OK; /* settle() says that it is ready, in step.reduce */
  set_ready(reducer, slot);
  if (!reducer->in_last)
    return ORDO_OK;
  if (reducer->observing)
    reducer->observed[reducer->n_observed++] = (uint32_t)(slot - reducer->slots.items);
  int learning = reducer->owner->options.static_graph && !reducer->learned;
  return learning ? ORDO_OK : start_complete(reducer);
}

/* After the last backward: what is still not ready was sharded by somebody else, was used in an earlier micro-batch only, or was
 * not used at all. */
static void settle(ddp_reducer *reducer)
{
  for (uint32_t s = 0; s < reducer->slots.n; s++) {
    ddp_slot *slot = &reducer->slots.items[s];
    if (slot->leaf->numel == 0)
      slot->used = 1;
    if (!slot->direct && slot->leaf->grad_state == ORDO_GRAD_HELD)
      slot->used = 1;
    if (reducer->learned && slot->used != slot->expected)
      slot->problem |= DDP_DEVIATES;
    if (!slot->used && !reducer->owner->options.find_unused && !reducer->owner->options.static_graph)
      slot->problem |= DDP_MISSING;
    if (!slot->ready)
      set_ready(reducer, slot);
    if (!reducer->learned) /* else it is known from the first step */
      slot->global = slot->used;
  }
}

/* Every started bucket is waited for, also after an error: its memory is in use until then. */
static ordo_status finish_buckets(ddp_reducer *reducer)
{
  ordo_status first = ORDO_OK;
  for (uint32_t b = 0; b < reducer->next; b++) {
    ddp_bucket *bucket = &reducer->buckets[b];
    if (bucket->info.numel == 0)
      continue;
    ordo_status status = reducer->hook != NULL ? reducer->hook->finish(reducer->hook_instance, &bucket->info, bucket->handle)
                                               : reducer->comm->wait(reducer->comm->ctx, bucket->request);
    first = first == ORDO_OK ? status : first;
  }
  ddp_stats_comm_end(&reducer->stats);
  return first;
}

/* A gradient that some rank had is held by all now; one that nobody had stays without, and norm and optimizer skip it. */
static ordo_status report_leaves(ddp_reducer *reducer)
{
  const ordo_job *job = reducer->job;
  ordo_status status = ORDO_OK;
  for (uint32_t s = 0; status == ORDO_OK && s < reducer->slots.n; s++) {
    ddp_slot *slot = &reducer->slots.items[s];
    uint32_t state = slot->global ? ORDO_GRAD_HELD : ORDO_GRAD_NONE;
    if (slot->leaf->grad_state != state)
      status = job->mark_grad(job->ctx, slot->leaf, state);
    if (status == ORDO_OK)
      status = job->mark_reduced(job->ctx, slot->leaf, reducer->divide_factor);
  }
  for (uint32_t i = 0; status == ORDO_OK && i < reducer->slots.n_ignored; i++)
    status = job->mark_reduced(job->ctx, reducer->slots.ignored[i], 1.0);
  return status;
}

ordo_status ddp_reducer_reduce(ddp_reducer *reducer)
{
  const ddp_options *options = &reducer->owner->options;
  settle(reducer);
  ordo_status status = start_complete(reducer);
  int learning = options->static_graph && !reducer->learned;
  if (status == ORDO_OK && (is_dynamic(reducer) || learning))
    status = ddp_vote_used(reducer);
  if (status == ORDO_OK)
    status = ddp_vote_problems(reducer);
  ordo_status finished = finish_buckets(reducer);
  status = status == ORDO_OK ? finished : status;
  if (status != ORDO_OK)
    return status;
  for (uint32_t s = 0; learning && s < reducer->slots.n; s++)
    reducer->slots.items[s].expected = reducer->slots.items[s].used;
  reducer->learned |= learning;
  ddp_stats_report(&reducer->stats);
  return report_leaves(reducer);
}
