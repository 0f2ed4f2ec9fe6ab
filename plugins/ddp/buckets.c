/* buckets.c - bucket assignment. See buckets.h for the rule and where it comes from.
 *
 * Every rank computes the assignment from the same numbers, so nothing about it is exchanged except the order of the rebuilt
 * buckets (reducer.c). The rule is pinned by golden numbers in the tests: an "obvious improvement" such as closing a bucket
 * before it would exceed its limit gives other buckets, and other collectives than a peer expects.
 */
#include "buckets.h"

#include <string.h>

/* The open bucket of one element type. Until it closes its items carry the provisional number OPEN_BASE + key. */
typedef struct open_bucket {
  ordo_dtype dtype;
  uint32_t limit; /* index into limits */
  int64_t bytes;
  uint32_t n_items;
} open_bucket;

static const uint32_t OPEN_BASE = UINT32_MAX - DDP_MAX_KEYS;

static uint32_t find_key(open_bucket *open, uint32_t *n_keys, ordo_dtype dtype)
{
  uint32_t k = 0;
  while (k < *n_keys && open[k].dtype != dtype)
    k++;
  if (k == *n_keys && k < DDP_MAX_KEYS) {
    open[k].dtype = dtype;
    (*n_keys)++;
  }
  return k;
}

static void close_bucket(open_bucket *open, uint32_t key, const uint32_t *order, uint32_t n, uint32_t number, uint32_t *bucket_of)
{
  for (uint32_t i = 0; i < n; i++)
    if (bucket_of[order[i]] == OPEN_BASE + key)
      bucket_of[order[i]] = number;
  open[key].bytes = 0;
  open[key].n_items = 0;
}

uint32_t ddp_assign_buckets(const int64_t *bytes, const ordo_dtype *dtypes, const uint32_t *order, uint32_t n, const int64_t *limits,
                            uint32_t n_limits, uint32_t *bucket_of)
{
  open_bucket open[DDP_MAX_KEYS];
  uint32_t n_keys = 0, n_buckets = 0;
  memset(open, 0, sizeof open);

  for (uint32_t i = 0; i < n; i++) {
    uint32_t item = order[i], key = find_key(open, &n_keys, dtypes[item]);
    if (key == DDP_MAX_KEYS)
      return 0;
    bucket_of[item] = OPEN_BASE + key;
    open[key].bytes += bytes[item];
    open[key].n_items++;
    if (open[key].bytes < limits[open[key].limit])
      continue;
    close_bucket(open, key, order, i + 1, n_buckets++, bucket_of);
    if (open[key].limit + 1 < n_limits)
      open[key].limit++;
  }
  for (uint32_t k = 0; k < n_keys; k++)
    if (open[k].n_items > 0)
      close_bucket(open, k, order, n, n_buckets++, bucket_of);
  return n_buckets;
}

int ddp_is_permutation(const int32_t *order, uint32_t n, uint8_t *seen)
{
  memset(seen, 0, n);
  for (uint32_t i = 0; i < n; i++) {
    if (order[i] < 0 || (uint32_t)order[i] >= n || seen[order[i]])
      return 0;
    seen[order[i]] = 1;
  }
  return 1;
}
