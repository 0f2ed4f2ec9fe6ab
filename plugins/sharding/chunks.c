/* chunks.c - see chunks.h. What is asked for is looked up in the placement, so nothing outside of it, padding above all, can be reached. */
#include "chunks.h"

#include "sharding.h"

#include <ordo/half_array.h>

#include <string.h>

/* What a piece is copied from or to: a leaf, its master, or state of the optimizer. */
typedef struct storage {
  char *at;
  ordo_dtype dtype;
} storage;

static int inside(const ordo_chunk *held, const ordo_chunk *chunk)
{
  if (chunk->kind != held->kind || chunk->param != held->param)
    return 0;
  if (chunk->kind == ORDO_CHUNK_FLAT)
    return chunk->begin >= held->begin && chunk->begin <= chunk->end && chunk->end <= held->end;
  if (chunk->ndim != held->ndim)
    return 0;
  for (uint32_t d = 0; d < held->ndim; d++)
    if (chunk->extent[d] < 0 || chunk->offset[d] < held->offset[d] ||
        chunk->extent[d] > held->offset[d] + held->extent[d] - chunk->offset[d])
      return 0;
  return 1;
}

/* Where element `index` (within the chunk) of the rectangle stands in the one that is held. */
static int64_t place(const ordo_chunk *held, const ordo_chunk *chunk, const int64_t *index)
{
  int64_t at = 0;
  for (uint32_t d = 0; d < held->ndim; d++)
    at = at * held->extent[d] + chunk->offset[d] - held->offset[d] + index[d];
  return at;
}

static void copy(storage place, int64_t first, float *packed, int64_t count, int out)
{
  void *at = place.at + first * (int64_t)ordo_dtype_size(place.dtype);
  if (place.dtype == ORDO_F32)
    memcpy(out ? (void *)packed : at, out ? at : (void *)packed, (size_t)count * sizeof *packed);
  else if (out)
    ordo_half_widen(place.dtype, at, count, packed);
  else
    ordo_half_narrow(place.dtype, packed, count, at);
}

/* Runs along the last dimension. */
static void copy_rectangle(storage at, const ordo_chunk *held, const ordo_chunk *chunk, float *packed, int out)
{
  int64_t index[ORDO_MAX_DIMS] = {0}, run = chunk->ndim > 0 ? chunk->extent[chunk->ndim - 1] : 1, rows = 1;
  for (uint32_t d = 0; d + 1 < chunk->ndim; d++)
    rows *= chunk->extent[d];
  for (int64_t r = 0; r < rows; r++, packed += run) {
    copy(at, held->leaf_offset + place(held, chunk, index), packed, run, out);
    for (uint32_t d = chunk->ndim > 0 ? chunk->ndim - 1 : 0; d-- > 0 && ++index[d] == chunk->extent[d];)
      index[d] = 0;
  }
}

static storage storage_of(const ordo_job *job, const ordo_leaf *leaf, int32_t slot)
{
  const ordo_leaf *work = leaf->master != NULL ? leaf->master : leaf;
  if (slot < 0)
    return (storage){work->data, work->dtype};
  const ordo_optimizer *optimizer = job->optimizer(job->ctx);
  float *state = optimizer != NULL && optimizer->slot != NULL ? optimizer->slot(optimizer->ctx, work, (uint32_t)slot) : NULL;
  if (state == NULL)
    sharding_fail(job, ORDO_E_STATE, "train a step first: optimizers make their state at the first update",
                  "the optimizer has no state number %d for leaf '%s'", slot, leaf->name);
  return (storage){(char *)state, ORDO_F32};
}

static void copy_chunk(storage at, const ordo_chunk *held, const ordo_chunk *chunk, float *packed, int out)
{
  if (chunk->kind == ORDO_CHUNK_FLAT)
    copy(at, held->leaf_offset + chunk->begin - held->begin, packed, ordo_chunk_numel(chunk), out);
  else
    copy_rectangle(at, held, chunk, packed, out);
}

ordo_status sharding_move_chunk(const ordo_job *job, const ordo_leaf *leaf, const ordo_chunk *chunk, int32_t slot, float *packed, int out)
{
  const ordo_chunk *held = NULL;
  if (chunk->kind == ORDO_CHUNK_RECT && ordo_chunk_numel(chunk) == 0)
    return ORDO_OK;
  for (uint64_t c = 0; held == NULL && c < leaf->placement->n_chunks; c++)
    if (inside(&leaf->placement->chunks[c], chunk))
      held = &leaf->placement->chunks[c];
  if (held == NULL)
    return sharding_fail(job, ORDO_E_INVALID, "ask for parts of the chunks in leaf->placement",
                         "a chunk does not lie in what this rank holds of leaf '%s'", leaf->name);
  const storage at = storage_of(job, leaf, slot);
  if (at.at == NULL)
    return ORDO_E_STATE;
  copy_chunk(at, held, chunk, packed, out);
  if (!out && slot < 0 && leaf->master != NULL) /* the model computes with the leaf, before any update writes it again */
    copy_chunk((storage){leaf->data, leaf->dtype}, held, chunk, packed, 0);
  return ORDO_OK;
}

/* Whole chunks: fp32 where they belong, others through a buffer. */
static ordo_status read_chunk(const ordo_job *job, const ordo_leaf *leaf, const ordo_chunk *chunk)
{
  const int64_t numel = ordo_chunk_numel(chunk);
  if (leaf->dtype == ORDO_F32)
    return job->read_weights(job->ctx, chunk, (float *)leaf->data + chunk->leaf_offset);
  float *values = job->alloc(job->ctx, (size_t)(numel + 1) * sizeof *values, ORDO_MEM_COMM);
  if (values == NULL)
    return sharding_fail(job, ORDO_E_NOMEM, "use more ranks, or smaller units", "no memory to round the weights of '%s'", leaf->name);
  ordo_status status = job->read_weights(job->ctx, chunk, values);
  if (status == ORDO_OK && ordo_job_has_data(job))
    copy((storage){leaf->data, leaf->dtype}, chunk->leaf_offset, values, numel, 0);
  job->free(job->ctx, values);
  return status;
}

ordo_status sharding_read_leaf(const ordo_job *job, const ordo_leaf *leaf)
{
  ordo_status status = ORDO_OK;
  if (!sharding_is_float(leaf->dtype) || leaf->opaque != NULL)
    return ORDO_OK;
  for (uint64_t c = 0; status == ORDO_OK && c < leaf->placement->n_chunks; c++)
    status = read_chunk(job, leaf, &leaf->placement->chunks[c]);
  return status;
}
