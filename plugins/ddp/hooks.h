/* hooks.h - built-in comm hooks: gradients travel as fp16 or bf16, half the bytes.
 *
 * The gradient is divided first and cast after that, so that a sum over many ranks or tokens does not leave the range of fp16;
 * it is rounded to nearest even, summed by a 16-bit collective (which accumulates in fp32) and widened again.
 */
#ifndef DDP_HOOKS_H
#define DDP_HOOKS_H

#include <ordo/comm_hook.h>

/* The element type of a built-in hook by its name, 0 for any other name. */
ordo_dtype ddp_compression_dtype(const char *name);

/* Makes an instance for buckets that lie in [base, base + numel). Collective (it allocates the wire buffer). */
ordo_status ddp_compression_create(const ordo_job *job, ordo_dtype dtype, const float *base, int64_t numel, void **instance);

extern const ordo_comm_hook ddp_compression;

#endif
