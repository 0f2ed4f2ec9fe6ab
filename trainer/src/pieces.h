/* pieces.h - chunks of placements as runs of consecutive elements.
 *
 * A leaf holds pieces of parameters: rectangles or flat ranges. Whoever assembles whole parameters or moves optimizer state walks them
 * as runs (so many elements from this place of the parameter lie at that place of the leaf) and needs to know nothing else.
 */
#ifndef ORDO_TRAINER_PIECES_H
#define ORDO_TRAINER_PIECES_H

#include <ordo/mesh.h>
#include <ordo/model.h>

typedef struct ordo_piece_run {
  int64_t param_first; /* row-major index in the whole parameter */
  int64_t leaf_first;  /* index in the leaf */
  int64_t count;
} ordo_piece_run;

/* Run number `index` of the chunk; 0 past the last. */
int ordo_piece_run_at(const ordo_chunk *chunk, int64_t index, ordo_piece_run *run);
/* Where element `param_index` of the parameter lies in the leaf, and how many follow it there without a gap; -1 if the chunk lacks it. */
int64_t ordo_piece_find(const ordo_chunk *chunk, int64_t param_index, int64_t *count);
/* 1 if this rank is the one that contributes the leaf to a sum over the mesh: the first of its copies on every axis. */
int ordo_piece_is_mine(const ordo_placement *placement, const ordo_mesh *mesh);

#endif
