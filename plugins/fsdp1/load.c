/* load.c - weights into shards.
 *
 * Every rank reads the elements it holds from the source of weights, which by contract gives the same values everywhere, so nothing is
 * communicated. sync_module_states=true does not trust that: rank 0 of the data ranks reads everything, one flat parameter at a time, and
 * the others take their shards from it.
 */
#include "fsdp1.h"

#include "../sharding/chunks.h"

#include <ordo/half_array.h>

#include <string.h>

/* The flat parameter as rank 0 knows it. */
static ordo_status read_flat(const fsdp1 *self, const fsdp1_flat_param *flat, float *full)
{
  ordo_status status = ORDO_OK;
  for (uint32_t i = flat->first_item; status == ORDO_OK && i < flat->first_item + flat->n_items; i++)
    status = self->job->read_weights(self->job->ctx, &self->items[i].whole, full + self->items[i].offset);
  return status;
}

/* From coordinate 0 of every data axis in turn, so that replicas of the shards agree as well. */
static ordo_status broadcast(const fsdp1 *self, void *values, int64_t bytes)
{
  const ordo_mesh *mesh = self->job->mesh;
  ordo_status status = ORDO_OK;
  for (uint32_t a = 0; status == ORDO_OK && a < mesh->n_axes; a++)
    if (mesh->axes[a]->kind == ORDO_AXIS_DATA && mesh->axes[a]->size > 1)
      status = ordo_broadcast(mesh->axes[a]->comm, values, bytes, ORDO_U8, 0);
  return status;
}

static ordo_status sync_flat(const fsdp1 *self, const fsdp1_flat_param *flat)
{
  const sharding_group *group = flat->group;
  const int whole = self->options.sharding_strategy == FSDP1_NO_SHARD;
  const size_t bytes = (size_t)group->full_numel * sizeof(float);
  float *full = fsdp1_alloc(self->job, (uint64_t)group->full_numel, sizeof *full, ORDO_MEM_COMM);
  if (full == NULL)
    return ORDO_E_NOMEM;
  ordo_status status = read_flat(self, flat, full);
  if (status == ORDO_OK)
    status = broadcast(self, full, (int64_t)bytes);
  const float *part = full + (whole ? 0 : group->shard_numel * self->job->axis->coordinate);
  if (status == ORDO_OK && ordo_job_has_data(self->job) && group->dtype == ORDO_F32)
    memcpy(group->shard, part, (size_t)group->shard_numel * sizeof *part);
  else if (status == ORDO_OK && ordo_job_has_data(self->job))
    ordo_half_narrow(group->dtype, part, group->shard_numel, group->shard);
  fsdp1_free(self->job, full);
  return status;
}

/* Packed ones, which the host has loaded, are bytes. */
static int64_t bytes_of(const ordo_leaf *leaf)
{
  const ordo_dtype_ops *ops = leaf->opaque;
  if (ops == NULL)
    return leaf->numel * (int64_t)ordo_dtype_size(leaf->dtype);
  return (leaf->numel + ops->block_elements - 1) / ops->block_elements * ops->block_bytes + ops->side_bytes;
}

static ordo_status load_ignored(const fsdp1 *self, uint32_t index)
{
  const ordo_leaf *leaf = self->job->model->leaves[self->ignored_leaves[index]];
  ordo_status status = self->storage[2 * index] != NULL ? sharding_read_leaf(self->job, leaf) : ORDO_OK;
  if (status == ORDO_OK && self->options.sync_module_states)
    status = broadcast(self, leaf->data, bytes_of(leaf));
  return status;
}

ordo_status fsdp1_load(fsdp1 *self)
{
  const ordo_model *model = self->job->model;
  ordo_status status = ORDO_OK;
  for (uint32_t i = 0; status == ORDO_OK && i < self->n_ignored; i++)
    status = load_ignored(self, i);
  for (uint32_t f = 0; status == ORDO_OK && self->options.sync_module_states && f < self->n_flats; f++)
    if (self->flats[f].n_items > 0)
      status = sync_flat(self, &self->flats[f]);
  for (uint32_t i = 0; status == ORDO_OK && !self->options.sync_module_states && i < self->n_items; i++) {
    const ordo_leaf *leaf = model->leaves[self->leaf_of_item[i]];
    const int first = i == 0 || self->leaf_of_item[i - 1] != self->leaf_of_item[i]; /* a flat leaf is read once */
    if (first)
      status = sharding_read_leaf(self->job, leaf);
  }
  return status;
}
