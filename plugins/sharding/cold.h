/* cold.h - the cold tier: memory that is a file on disk, mapped.
 *
 * Shards, gradients and optimizer state that are touched once a step need not be in memory all the time. Mapped from a file, the kernel
 * writes what it must evict and reads it again, so a job runs whose state is larger than the memory it may use. The file has no name: it
 * goes away with the process, however that ends.
 */
#ifndef SHARDING_COLD_H
#define SHARDING_COLD_H

#include <ordo/job.h>

typedef struct sharding_cold sharding_cold;

/* *cold is null if `directory` is. Errors: INVALID (too long), IO (it cannot be written, by name). [main] */
ordo_status sharding_cold_create(const ordo_job *job, const char *directory, sharding_cold **cold);
/* Everything must have been freed. Null is fine. */
void sharding_cold_destroy(sharding_cold *cold);
/* Zeroed memory of whole pages; null after an error was recorded. [any] */
void *sharding_cold_alloc(sharding_cold *cold, size_t bytes);
void sharding_cold_free(sharding_cold *cold, void *memory, size_t bytes);
/* The session's optimizer state goes into the file from now on. [main] */
ordo_status sharding_cold_take_optimizer(sharding_cold *cold);

#endif
