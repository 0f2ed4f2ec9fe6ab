/* pieces.c - see pieces.h. */
#include "pieces.h"

/* Elements of a rectangle that are consecutive in the parameter: the innermost rows, and all inner dimensions that are whole. */
static int64_t run_length(const ordo_chunk *chunk)
{
  int64_t length = 1;
  for (uint32_t d = chunk->param->ndim; d-- > 0;) {
    length *= chunk->extent[d];
    if (chunk->extent[d] != chunk->param->shape[d])
      break;
  }
  return length;
}

int ordo_piece_run_at(const ordo_chunk *chunk, int64_t index, ordo_piece_run *run)
{
  int64_t numel = ordo_chunk_numel(chunk);
  int64_t length = chunk->kind == ORDO_CHUNK_FLAT ? numel : run_length(chunk);
  int64_t inside = index * length;
  if (length <= 0 || inside >= numel)
    return 0;
  run->leaf_first = chunk->leaf_offset + inside;
  run->count = length;
  run->param_first = chunk->begin;
  if (chunk->kind == ORDO_CHUNK_FLAT)
    return 1;
  int64_t stride = 1;
  run->param_first = 0;
  for (uint32_t d = chunk->param->ndim; d-- > 0;) {
    run->param_first += (chunk->offset[d] + inside % chunk->extent[d]) * stride;
    inside /= chunk->extent[d];
    stride *= chunk->param->shape[d];
  }
  return 1;
}

int64_t ordo_piece_find(const ordo_chunk *chunk, int64_t param_index, int64_t *count)
{
  int64_t place = 0, stride = 1, rest = param_index;
  if (chunk->kind == ORDO_CHUNK_FLAT) {
    *count = chunk->end - param_index;
    return param_index >= chunk->begin && param_index < chunk->end ? chunk->leaf_offset + param_index - chunk->begin : -1;
  }
  for (uint32_t d = chunk->param->ndim; d-- > 0;) {
    int64_t at = rest % chunk->param->shape[d] - chunk->offset[d];
    rest /= chunk->param->shape[d];
    if (at < 0 || at >= chunk->extent[d])
      return -1;
    place += at * stride;
    stride *= chunk->extent[d];
  }
  int64_t length = run_length(chunk);
  *count = length - place % length;
  return chunk->leaf_offset + place;
}

int ordo_piece_is_mine(const ordo_placement *placement, const ordo_mesh *mesh)
{
  for (uint32_t a = 0; a < mesh->n_axes; a++)
    if (mesh->axes[a]->coordinate % ordo_placement_copies(placement->data[a], mesh->axes[a]->size) != 0)
      return 0;
  return 1;
}
