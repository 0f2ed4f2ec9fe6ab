/* slices.c - strategy.partition: leaves become this rank's slices, in one transaction.
 *
 * A leaf that is replicated keeps its storage. A slice is copied from a weight that is there, or left to be loaded into its place. The
 * gradient of a slice is whole after backward: activations and, where ranks share a parameter, its gradient are completed on the way
 * (activations.c), so nothing is partial along this axis and whoever reduces over data axes sees finished numbers.
 */
#include "../sharding/sharding.h"
#include "tp.h"

#include <string.h>

static ordo_status check_leaf(const tp *self, const ordo_leaf *leaf)
{
  const ordo_job *job = self->job;
  const ordo_placement *placement = leaf->placement;
  if (leaf->state != ORDO_LEAF_LIVE)
    return sharding_fail(job, ORDO_E_STALE, "this is a defect of the step that replaced it", "leaf '%s' was replaced by %s", leaf->name,
                         leaf->replaced_by != NULL ? leaf->replaced_by : "another step");
  if (placement->n_chunks != 1 || placement->chunks->kind != ORDO_CHUNK_RECT || placement->data[job->axis->index] != ORDO_REPLICATE)
    return sharding_fail(job, ORDO_E_STATE, "partition a model once, before other strategies", "leaf '%s' is no whole parameter",
                         leaf->name);
  if (self->splits[leaf->params[0]->index].kind == ORDO_TP_REPLICATE)
    return ORDO_OK;
  if (leaf->opaque != NULL)
    return sharding_fail(job, ORDO_E_UNSUPPORTED,
                         "use another strategy with the plugin that stores it so, or replicate it, with the matrices of its pair, by "
                         "tp:plan=FILE",
                         "parameter '%s' is stored as %s and cannot be cut: its blocks of packed elements may lie across the cut",
                         leaf->name, leaf->opaque->name);
  if (leaf->device != 0)
    return sharding_fail(job, ORDO_E_UNSUPPORTED, "replicate it with tp:plan=FILE, or keep it on the CPU",
                         "leaf '%s' is on device %d and cannot be cut", leaf->name, leaf->device);
  return ORDO_OK;
}

/* Columns [begin, end) of every row, or whole rows. */
static void copy_slice(const ordo_chunk *chunk, const tp_split *split, size_t element, const char *whole, char *slice)
{
  int64_t inner = 1, outer = 1;
  for (uint32_t d = split->dim + 1; d < chunk->ndim; d++)
    inner *= chunk->extent[d];
  for (uint32_t d = 0; d < split->dim; d++)
    outer *= chunk->extent[d];
  size_t line = (size_t)(chunk->extent[split->dim] * inner) * element, part = (size_t)((split->end - split->begin) * inner) * element;
  for (int64_t i = 0; i < outer; i++)
    memcpy(slice + (size_t)i * part, whole + (size_t)i * line + (size_t)(split->begin * inner) * element, part);
}

static ordo_status slice_leaf(tp *self, const ordo_leaf *leaf, const tp_split *split, ordo_leaf_spec *spec, ordo_chunk *chunk)
{
  const ordo_job *job = self->job;
  size_t element = ordo_dtype_size(leaf->dtype);
  spec->numel = leaf->numel / chunk->extent[split->dim] * (split->end - split->begin);
  spec->data = spec->grad = NULL;
  if (leaf->data != NULL) {
    spec->data = job->alloc(job->ctx, (size_t)spec->numel * element, ORDO_MEM_WEIGHTS);
    if (spec->data == NULL)
      return sharding_fail(job, ORDO_E_NOMEM, "use more ranks or a smaller model", "no memory for this rank's part of '%s'", leaf->name);
    self->storage[self->n_storage++] = spec->data;
    if (ordo_job_has_data(job))
      copy_slice(chunk, split, element, leaf->data, spec->data);
  }
  chunk->offset[split->dim] += split->begin;
  chunk->extent[split->dim] = split->end - split->begin;
  chunk->leaf_offset = 0;
  spec->placement.data[job->axis->index] = (uint8_t)(ORDO_SHARD + split->copies - 1);
  return ORDO_OK;
}

static ordo_status describe(tp *self, const ordo_leaf *leaf, ordo_leaf_spec *spec, ordo_chunk *chunk)
{
  const tp_split *split = &self->splits[leaf->params[0]->index];
  ordo_status status = check_leaf(self, leaf);
  if (status != ORDO_OK)
    return status;
  *chunk = *leaf->placement->chunks;
  *spec = (ordo_leaf_spec){.struct_size = sizeof *spec,
                           .name = leaf->name,
                           .dtype = leaf->dtype,
                           .grad_dtype = leaf->grad_dtype,
                           .opaque = leaf->opaque,
                           .numel = leaf->numel,
                           .data = leaf->data,
                           .grad = leaf->grad,
                           .params = leaf->params,
                           .n_params = leaf->n_params,
                           .placement = *leaf->placement,
                           .flags = leaf->flags};
  spec->placement.struct_size = sizeof spec->placement;
  spec->placement.chunks = chunk;
  spec->placement.grad_partial[self->job->axis->index] = 0;
  return split->kind == ORDO_TP_REPLICATE ? ORDO_OK : slice_leaf(self, leaf, split, spec, chunk);
}

/* Plan files are read by every rank; if they differ, so would the shapes that collectives expect. */
static ordo_status compare_plans(const tp *self)
{
  uint64_t hash = 1469598103934665603u, pair[2];
  ordo_collective c = ordo_collective_make(ORDO_ALL_REDUCE, pair, pair, 2, ORDO_U64);
  for (uint32_t p = 0; p < self->job->model->n_params; p++)
    hash = (hash ^ self->kinds[p]) * 1099511628211u;
  pair[0] = hash;
  pair[1] = ~hash;
  c.op = ORDO_MAX;
  c.label = "tp plan";
  ordo_status status = self->job->mesh->size > 1 ? ordo_comm_run(self->job->mesh->world, &c) : ORDO_OK;
  if (status != ORDO_OK || pair[0] == ~pair[1])
    return status;
  const char *path = self->job->option(self->job->ctx, "plan");
  if (path == NULL || *path == '\0')
    return sharding_fail(self->job, ORDO_E_MISMATCH, "let the program give tp_hint by the model alone, the same on every rank",
                         "ranks hint different splits of the parameters of model '%s'", self->job->model->name);
  return sharding_fail(self->job, ORDO_E_MISMATCH, "give every machine the same file", "ranks read different plan files: %s", path);
}

/* Communicators of the ranks that share a parameter whose gradient each of them has a summand of. */
static ordo_status find_sharers(tp *self)
{
  const ordo_job *job = self->job;
  for (uint32_t p = 0; p < job->model->n_params; p++) {
    tp_split *split = &self->splits[p];
    ordo_status status = ORDO_OK;
    if (split->copies == self->size)
      split->comm = job->axis->comm;
    else if (split->copies > 1)
      status = job->axis_part(job->ctx, split->copies, &split->comm);
    else if (self->sequence && split->kind == ORDO_TP_REPLICATE && !split->in_pair && job->model->params[p]->tp_hint != ORDO_TP_VOCAB)
      split->comm = job->axis->comm; /* a norm: it sees this rank's rows only */
    if (status != ORDO_OK)
      return status;
  }
  return ORDO_OK;
}

ordo_status tp_partition(tp *self)
{
  const ordo_job *job = self->job;
  uint32_t n = job->model->n_leaves;
  ordo_leaf_spec *specs = job->alloc(job->ctx, n * sizeof *specs, ORDO_MEM_OTHER);
  ordo_chunk *chunks = job->alloc(job->ctx, n * sizeof *chunks, ORDO_MEM_OTHER);
  ordo_leaf_link *links = job->alloc(job->ctx, n * sizeof *links, ORDO_MEM_OTHER);
  self->storage = job->alloc(job->ctx, n * sizeof *self->storage, ORDO_MEM_OTHER);
  ordo_status status = ORDO_OK;
  if (specs == NULL || chunks == NULL || links == NULL || self->storage == NULL)
    status = sharding_fail(job, ORDO_E_NOMEM, "free memory", "no memory for the description of %u slices", n);
  if (status == ORDO_OK)
    status = compare_plans(self);
  for (uint32_t i = 0; status == ORDO_OK && i < n; i++) {
    status = describe(self, job->model->leaves[i], &specs[i], &chunks[i]);
    links[i] = (ordo_leaf_link){i, i};
  }
  if (status == ORDO_OK)
    status = find_sharers(self);
  if (status == ORDO_OK)
    status = job->replace_leaves(job->ctx, specs, n, links, n);
  job->free(job->ctx, specs);
  job->free(job->ctx, chunks);
  job->free(job->ctx, links);
  if (status != ORDO_OK)
    tp_release(self);
  return status;
}

void tp_release(tp *self)
{
  for (uint32_t i = 0; i < self->n_storage; i++)
    self->job->free(self->job->ctx, self->storage[i]);
  self->job->free(self->job->ctx, self->storage);
  self->storage = NULL;
  self->n_storage = 0;
}
