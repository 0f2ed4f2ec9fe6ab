/* kernels_memory.h - memory for weights, gradients and activations: aligned for vectors, large blocks in huge pages.
 *
 * Matrix products walk through strided megabytes; with 4 KiB pages the page walks cost about 3 % of a training step. The trainer
 * gives these two functions to llama_create and, as the allocator of jobs, to the host. */
#ifndef KERNELS_MEMORY_H
#define KERNELS_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* `bytes` (0 counts as 1) aligned to 64, to 2 MiB from 2 MiB on. Not cleared. Null without memory. `ctx` and `tag` are not used. Freed
 * with kernels_free. [any] since 0.1 */
void *kernels_alloc(void *ctx, size_t bytes, uint32_t tag);
/* Null is fine. [any] since 0.1 */
void kernels_free(void *ctx, void *memory);

#endif
