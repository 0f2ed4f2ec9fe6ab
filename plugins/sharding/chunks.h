/* chunks.h - pieces of weights and of optimizer state of a sharded leaf, for checkpoints (state.h): packed row-major fp32. */
#ifndef SHARDING_CHUNKS_H
#define SHARDING_CHUNKS_H

#include <ordo/job.h>

/* Copies the chunk out of (`out` 1) or into the leaf: the weight for `slot` < 0, else that state tensor of the optimizer. The chunk lies
 * inside one chunk of leaf->placement and is of its kind; its leaf_offset is not read. Errors: INVALID (not held here), STATE (no such
 * state yet). [main]
 */
ordo_status sharding_move_chunk(const ordo_job *job, const ordo_leaf *leaf, const ordo_chunk *chunk, int32_t slot, float *packed, int out);

/* Weights of the leaf from the job's source, rounded to its type (f32, bf16 or f16; leaves of others are left alone). [main] */
ordo_status sharding_read_leaf(const ordo_job *job, const ordo_leaf *leaf);

#endif
