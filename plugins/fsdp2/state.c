/* state.c - chunks of weights and of optimizer state, for checkpoints. A rectangle inside this rank's rows comes out packed, row-major. */
#include "fsdp2.h"

#include <string.h>

static float *storage_of(const fsdp2 *self, const ordo_leaf *leaf, int32_t slot)
{
  const ordo_job *job = self->job;
  if (slot < 0)
    return leaf->master != NULL ? leaf->master->data : leaf->data;
  const ordo_optimizer *optimizer = job->optimizer(job->ctx);
  float *state = optimizer != NULL && optimizer->slot != NULL ? optimizer->slot(optimizer->ctx, leaf, (uint32_t)slot) : NULL;
  if (state == NULL)
    sharding_fail(job, ORDO_E_STATE, "train a step first: optimizers make their state at the first update",
                  "the optimizer has no state number %d for leaf '%s'", slot, leaf->name);
  return state;
}

static ordo_status outside(const fsdp2 *self, const ordo_leaf *leaf)
{
  return sharding_fail(self->job, ORDO_E_INVALID, "ask for rectangles inside leaf->placement",
                       "a chunk does not lie in what this rank holds of leaf '%s'", leaf->name);
}

/* Where element `index` (within the chunk) of the chunk stands in the leaf: both are rectangles of one parameter. */
static int64_t place(const ordo_chunk *held, const ordo_chunk *chunk, const int64_t *index)
{
  int64_t at = 0;
  for (uint32_t d = 0; d < held->ndim; d++)
    at = at * held->extent[d] + chunk->offset[d] - held->offset[d] + index[d];
  return held->leaf_offset + at;
}

static int inside(const ordo_chunk *held, const ordo_chunk *chunk)
{
  if (chunk->kind != ORDO_CHUNK_RECT || chunk->param != held->param || chunk->ndim != held->ndim)
    return 0;
  for (uint32_t d = 0; d < held->ndim; d++)
    if (chunk->extent[d] < 0 || chunk->offset[d] < held->offset[d] ||
        chunk->offset[d] + chunk->extent[d] > held->offset[d] + held->extent[d])
      return 0;
  return 1;
}

/* Copies runs along the last dimension. */
static void copy(float *storage, const ordo_chunk *held, const ordo_chunk *chunk, float *packed, int out)
{
  int64_t index[ORDO_MAX_DIMS] = {0}, run = chunk->ndim > 0 ? chunk->extent[chunk->ndim - 1] : 1, rows = 1;
  for (uint32_t d = 0; d + 1 < chunk->ndim; d++)
    rows *= chunk->extent[d];
  for (int64_t r = 0; r < rows; r++, packed += run) {
    float *at = storage + place(held, chunk, index);
    memcpy(out ? packed : at, out ? at : packed, (size_t)run * sizeof *packed);
    for (uint32_t d = chunk->ndim > 0 ? chunk->ndim - 1 : 0; d-- > 0 && ++index[d] == chunk->extent[d];)
      index[d] = 0;
  }
}

static int64_t numel_of(const ordo_chunk *chunk)
{
  int64_t numel = 1;
  for (uint32_t d = 0; d < chunk->ndim; d++)
    numel *= chunk->extent[d];
  return numel;
}

static ordo_status move(const fsdp2 *self, const ordo_leaf *leaf, const ordo_chunk *chunk, int32_t slot, float *packed, int out)
{
  if (chunk->kind == ORDO_CHUNK_RECT && numel_of(chunk) == 0)
    return ORDO_OK;
  if (leaf->placement->n_chunks != 1 || !inside(leaf->placement->chunks, chunk))
    return outside(self, leaf);
  float *storage = storage_of(self, leaf, slot);
  if (storage == NULL)
    return ORDO_E_STATE;
  copy(storage, leaf->placement->chunks, chunk, packed, out);
  return ORDO_OK;
}

ordo_status fsdp2_export_chunk(fsdp2 *self, const ordo_leaf *leaf, const ordo_chunk *chunk, int32_t slot, float *dst)
{
  return move(self, leaf, chunk, slot, dst, 1);
}

ordo_status fsdp2_import_chunk(fsdp2 *self, ordo_leaf *leaf, const ordo_chunk *chunk, int32_t slot, const float *src)
{
  ordo_status status = sharding_forget(self->sharding);
  return status == ORDO_OK ? move(self, leaf, chunk, slot, (float *)(uintptr_t)src, 0) : status;
}
