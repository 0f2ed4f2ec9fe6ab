/* storage.h - memory of gathered parameters: fixed addresses, few pages, and NaN where nothing is.
 *
 * A region is a range of addresses that belongs to one communication group for the life of the job, so pointers that were saved in forward
 * are right in backward. Pages stand behind it only while it is taken: they come from a pool (one memory file), go from group to group
 * without being cleared, and return to the system when more are free than `keep` says, or at a trim.
 * A released region reads as NaN: one small file of NaN is mapped over it as often as it fits. A pointer that somebody kept therefore
 * poisons the loss, the step fails, and nothing is trained on old weights in silence. It costs no memory, so release builds do it as well.
 * In a dry run there are no pages and no files: slots are only counted.
 */
#ifndef SHARDING_STORAGE_H
#define SHARDING_STORAGE_H

#include <ordo/job.h>

typedef struct sharding_pool sharding_pool;

typedef struct sharding_region {
  char *base;     /* valid from init to clear */
  size_t bytes;   /* as asked for */
  size_t mapped;  /* rounded up to pages */
  void *reserved; /* what was mapped, for clear */
  size_t reserved_bytes;
  int32_t slot;     /* pages behind it, -1: none */
  uint32_t counted; /* 1: it takes one of the `keep` places; 0: beside them (the root) */
} sharding_region;

/* `keep`: counted slots that may have pages at a time without being taken; `poison` 0: a released region faults instead of reading NaN.
 * Errors: NOMEM. [main] */
ordo_status sharding_pool_create(const ordo_job *job, uint32_t keep, int poison, sharding_pool **pool);
/* Regions must have been cleared. Null is fine. */
void sharding_pool_destroy(sharding_pool *pool);
/* Reserves addresses; the region starts released. Errors: NOMEM. */
ordo_status sharding_region_init(sharding_pool *pool, sharding_region *region, size_t bytes, int counted);
void sharding_region_clear(sharding_pool *pool, sharding_region *region);
/* Puts pages behind the region; their contents are whatever the last user left. Errors: NOMEM. [step] */
ordo_status sharding_region_take(sharding_pool *pool, sharding_region *region);
/* Takes them away; from here on it reads NaN. A region that is not taken stays as it is. [step] */
void sharding_region_release(sharding_pool *pool, sharding_region *region);
/* Gives the pages of free slots back to the system. [step] */
void sharding_pool_trim(sharding_pool *pool);
/* In a dry run: addresses that this plugin counts itself, or (the cold tier's) nobody does. Null: none left. */
void *sharding_addresses(const ordo_job *job, size_t bytes);
void sharding_give_addresses(const ordo_job *job, void *addresses, size_t bytes);

#endif
