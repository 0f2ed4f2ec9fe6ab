/* buckets.h - which gradient goes into which bucket: arithmetic only, no memory and no communication.
 *
 * Rule (PyTorch's compute_bucket_assignment_by_size): walk the given order; add the gradient to the open bucket of its element
 * type; if that bucket now holds at least its limit, close it and go on with the next limit (the last one repeats). So a
 * bucket may exceed its limit by one gradient. Buckets are numbered in the order in which they close, those that stay open last.
 */
#ifndef DDP_BUCKETS_H
#define DDP_BUCKETS_H

#include <ordo/dtype.h>

#define DDP_UNBOUNDED INT64_MAX

/* Assigns items order[0..n) to buckets: bucket_of[item] = index of its bucket. `bytes` and `dtypes` are indexed by item. At most
 * DDP_MAX_KEYS element types. Returns the number of buckets, 0 if there are more types. */
enum { DDP_MAX_KEYS = 8 };
uint32_t ddp_assign_buckets(const int64_t *bytes, const ordo_dtype *dtypes, const uint32_t *order, uint32_t n, const int64_t *limits,
                            uint32_t n_limits, uint32_t *bucket_of);

/* True if order[0..n) contains each of 0..n-1 once. `seen` is scratch of n bytes. */
int ddp_is_permutation(const int32_t *order, uint32_t n, uint8_t *seen);

#endif
