/* memory.h - the memory of one session, counted under ORDO_MEM_ tags (private). */
#ifndef ORDO_PRIVATE_MEMORY_H
#define ORDO_PRIVATE_MEMORY_H

#include "../base/space.h"
#include "../context.h"
#include <ordo/job.h>

typedef struct ordo_memory ordo_memory;

/* `space` (not owned, null: none): a dry run. Blocks under every tag but ORDO_MEM_OTHER are then addresses without storage. */
ordo_memory *ordo_memory_new(ordo_context *context, ordo_space *space);
/* Frees what is left; returns how many blocks that were. */
guint ordo_memory_free(ordo_memory *memory);
/* `bytes` bytes aligned to 64, zeroed if they have storage; null when out of memory, for 0 bytes and for an unknown tag. Any thread. */
void *ordo_memory_alloc(ordo_memory *memory, size_t bytes, uint32_t tag);
/* Null is fine. FALSE if the pointer is not a live block of this memory. */
gboolean ordo_memory_release(ordo_memory *memory, void *pointer);
/* Counted beside the blocks: memory that somebody else allocated for the session (shared windows). */
void ordo_memory_count(ordo_memory *memory, int64_t bytes, uint32_t tag);
/* Later blocks of the tag come from `allocator` (copied), null: from the context. FALSE if another owner has set one. `owner` is any
 * address. */
gboolean ordo_memory_set_allocator(ordo_memory *memory, uint32_t tag, const ordo_allocator *allocator, const void *owner);
/* Frees the blocks that came from the owner's allocators, which are about to go. */
void ordo_memory_drop_owner(ordo_memory *memory, const void *owner);
/* tag ORDO_N_MEM_TAGS: all tags together. */
void ordo_memory_usage(ordo_memory *memory, uint32_t tag, int64_t *now, int64_t *peak);

#endif
