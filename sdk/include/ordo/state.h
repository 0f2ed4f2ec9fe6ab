/* ordo/state.h - what a plugin adds to checkpoints, evaluation and export.
 *
 * Where parameters and optimizer state lie is said by placements (model.h) and needs no function. A plugin with private
 * state saves it as one blob, and a sharded strategy opens a scope in which every param is whole.
 */
#ifndef ORDO_STATE_H
#define ORDO_STATE_H

#include <ordo/model.h>

enum {
  ORDO_GATHER_WRITE_BACK = 1u, /* changes made inside the scope reach the shards, replicas and fp32 masters when it closes */
  ORDO_GATHER_RANK0_ONLY = 2u  /* only rank 0 of the axis needs the values */
};

typedef struct ordo_state_ops {
  size_t struct_size;
  /* Bytes of the private blob on this rank, 0 for none. [main] since 0.1 */
  size_t (*blob_size)(void *self);
  /* Writes exactly blob_size bytes. [main] since 0.1 */
  ordo_status (*blob_save)(void *self, void *blob, size_t size);
  /* Reads a blob written by `version` of this plugin. Errors: INVALID (damaged), UNSUPPORTED (version). [main] since 0.1 */
  ordo_status (*blob_load)(void *self, const void *blob, size_t size, const char *version);
  /* Copies the chunk of a leaf's data as fp32, packed row-major; `slot` < 0 is the weight, else an optimizer state slot that exists. The
   * chunk lies inside one chunk of leaf->placement and is of its kind; chunk->leaf_offset is not to be read. Null: the host copies from
   * leaf->data (or its master) and ordo_optimizer.slot, as the placement says. [main] since 0.1 */
  ordo_status (*export_chunk)(void *self, const ordo_leaf *leaf, const ordo_chunk *chunk, int32_t slot, float *dst);
  /* The inverse. [main] since 0.1 */
  ordo_status (*import_chunk)(void *self, ordo_leaf *leaf, const ordo_chunk *chunk, int32_t slot, const float *src);
  /* Opens a scope: all params of the model are bound to their full values (ORDO_GATHER_ flags), as local_shape says: what
   * strategy.partition has split stays split, since the model computes so. Collective. [step] since 0.1 */
  ordo_status (*gather_full)(void *self, uint32_t flags);
  /* Closes it. [step] since 0.1 */
  ordo_status (*release_full)(void *self);
} ordo_state_ops;
ORDO_PIN_LAST(ordo_state_ops, release_full);

#endif
