/* flat.h - the flat parameter of a unit: offsets, padding and pieces. Arithmetic only: no memory, no communication.
 *
 *   flat parameter   the unit's parameters one after the other in definition order, row-major; with views every one starts at a multiple of
 *                    16 bytes of the type that is gathered (PyTorch's FlatParameter with use_orig_params), without views there are no gaps
 *   shard            ceil(numel / world) elements, the same on every rank; what is left over is padding of the last ranks
 * A parameter may begin on one rank and end on another, and a rank may hold no element of it.
 */
#ifndef FSDP1_FLAT_H
#define FSDP1_FLAT_H

#include <ordo/model.h>

enum { FSDP1_ALIGNMENT = 16 }; /* bytes at which a parameter with a view of its own starts */

typedef struct fsdp1_flat {
  int64_t numel;       /* from the first element of the first parameter to the last element of the last one */
  int64_t shard_numel; /* per rank */
} fsdp1_flat;

/* Lays out `n` parameters of the given sizes: writes their offsets and returns the totals. `align`: elements, 1 for no gaps. */
fsdp1_flat fsdp1_flat_layout(const int64_t *numels, uint32_t n, int64_t align, int32_t world, int64_t *offsets);

/* Elements [*begin, *end) of a parameter at `offset` with `numel` elements that rank `rank` holds; empty when begin == end. */
void fsdp1_flat_piece(const fsdp1_flat *flat, int64_t offset, int64_t numel, int32_t rank, int64_t *begin, int64_t *end);

/* Describes elements [begin, end) of what a rank computes with (`whole`: one chunk of the parameter, the whole of it or the rectangle that
 * a tensor-parallel step left) as chunks of the global parameter, at `leaf_offset` of a leaf. At most FSDP1_MAX_CHUNKS; returns how many,
 * -1 for a rectangle of more than two dimensions that is cut in an inner one. */
enum { FSDP1_MAX_CHUNKS = 3 };
int fsdp1_flat_chunks(const ordo_chunk *whole, int64_t begin, int64_t end, int64_t leaf_offset, ordo_chunk *chunks);

#endif
