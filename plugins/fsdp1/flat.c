/* flat.c - arithmetic of flat parameters. See flat.h for the words.
 *
 * Every rank computes the same layout from the same sizes, so nothing about it is exchanged. Guarded against: padding that is counted as
 * weights (it lies outside of every chunk), and a slice of a tensor-parallel parameter that is described with the wrong global elements.
 */
#include "flat.h"

#include <string.h>

fsdp1_flat fsdp1_flat_layout(const int64_t *numels, uint32_t n, int64_t align, int32_t world, int64_t *offsets)
{
  fsdp1_flat flat = {0, 0};
  for (uint32_t i = 0; i < n; i++) {
    offsets[i] = (flat.numel + align - 1) / align * align;
    flat.numel = offsets[i] + numels[i];
  }
  flat.shard_numel = (flat.numel + world - 1) / world;
  return flat;
}

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
  return value < low ? low : value > high ? high : value;
}

void fsdp1_flat_piece(const fsdp1_flat *flat, int64_t offset, int64_t numel, int32_t rank, int64_t *begin, int64_t *end)
{
  int64_t first = flat->shard_numel * rank;
  *begin = clamp(first - offset, 0, numel);
  *end = clamp(first + flat->shard_numel - offset, 0, numel);
}

/* The rectangle takes whole rows of the parameter, so its elements are consecutive there. */
static int takes_whole_rows(const ordo_chunk *whole)
{
  for (uint32_t d = 1; d < whole->ndim; d++)
    if (whole->offset[d] != 0 || whole->extent[d] != whole->param->shape[d])
      return 0;
  return 1;
}

static int64_t row_numel(const ordo_chunk *whole)
{
  int64_t numel = 1;
  for (uint32_t d = 1; d < whole->ndim; d++)
    numel *= whole->param->shape[d];
  return numel;
}

static ordo_chunk flat_chunk(const ordo_chunk *whole, int64_t begin, int64_t end, int64_t leaf_offset)
{
  int64_t first = whole->kind == ORDO_CHUNK_FLAT ? whole->begin : whole->ndim > 0 ? whole->offset[0] * row_numel(whole) : 0;
  ordo_chunk chunk = {.struct_size = sizeof chunk, .param = whole->param, .kind = ORDO_CHUNK_FLAT, .leaf_offset = leaf_offset};
  chunk.begin = first + begin;
  chunk.end = first + end;
  return chunk;
}

/* A part of a row, or several whole rows, of a matrix slice. */
static ordo_chunk rect_chunk(const ordo_chunk *whole, int64_t row, int64_t rows, int64_t column, int64_t columns, int64_t leaf_offset)
{
  ordo_chunk chunk = {.struct_size = sizeof chunk, .param = whole->param, .kind = ORDO_CHUNK_RECT, .ndim = 2, .leaf_offset = leaf_offset};
  chunk.offset[0] = whole->offset[0] + row;
  chunk.extent[0] = rows;
  chunk.offset[1] = whole->offset[1] + column;
  chunk.extent[1] = columns;
  return chunk;
}

int fsdp1_flat_chunks(const ordo_chunk *whole, int64_t begin, int64_t end, int64_t leaf_offset, ordo_chunk *chunks)
{
  int n = 0;
  if (begin == end)
    return 0;
  if (whole->kind == ORDO_CHUNK_FLAT || takes_whole_rows(whole)) {
    chunks[0] = flat_chunk(whole, begin, end, leaf_offset);
    return 1;
  }
  if (whole->ndim != 2)
    return -1;
  const int64_t width = whole->extent[1];
  for (int64_t at = begin; at < end;) {
    int64_t column = at % width, left = end - at, rows = column == 0 && left >= width ? left / width : 1;
    int64_t columns = column == 0 && left >= width ? width : left < width - column ? left : width - column;
    chunks[n++] = rect_chunk(whole, at / width, rows, column, columns, leaf_offset + at - begin);
    at += rows * columns;
  }
  return n;
}
