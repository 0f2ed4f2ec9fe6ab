/* ordo/comm_hook.h - "ordo.comm_hook/1": what replaces the all-reduce of a gradient bucket.
 *
 * A strategy with buckets calls `start` when a bucket is complete and `finish` before the gradients are used. The hook owns
 * the reduction AND the division by `divide_factor`. fp16 and bf16 compression, PowerSGD and quantisation have this shape.
 */
#ifndef ORDO_COMM_HOOK_H
#define ORDO_COMM_HOOK_H

#include <ordo/job.h>

#define ORDO_COMM_HOOK_EXTENSION "ordo.comm_hook/1"

typedef struct ordo_bucket {
  size_t struct_size;
  uint32_t index; /* in issue order */
  uint32_t n_buckets;
  int64_t step;
  float *data; /* numel gradients, changed in place */
  int64_t numel;
  ordo_leaf *const *leaves;    /* in the bucket, in order */
  const int64_t *leaf_offsets; /* first element of each leaf */
  uint64_t n_leaves;
  double divide_factor;
  uint64_t generation; /* changes when buckets were rebuilt: drop state that depends on their layout */
} ordo_bucket;
ORDO_PIN_LAST(ordo_bucket, generation);

typedef struct ordo_comm_hook {
  size_t struct_size;
  /* Makes an instance for one strategy instance; job->axis is the strategy's. [main] since 0.1 */
  ordo_status (*create)(const ordo_job *job, void **instance);
  /* Frees it. Null is fine. [main] since 0.1 */
  void (*destroy)(void *instance);
  /* Starts the exchange of a bucket; *handle is given to finish. [step] since 0.1 */
  ordo_status (*start)(void *instance, const ordo_bucket *bucket, void **handle);
  /* Waits; the bucket then holds the divided sum. [step] since 0.1 */
  ordo_status (*finish)(void *instance, const ordo_bucket *bucket, void *handle);
  /* Private state for checkpoints: size, save into, load from (version checked by the hook). May be null. [main] since 0.1 */
  size_t (*state_size)(void *instance);
  ordo_status (*state_save)(void *instance, void *blob, size_t size);
  ordo_status (*state_load)(void *instance, const void *blob, size_t size);
} ordo_comm_hook;
ORDO_PIN_LAST(ordo_comm_hook, state_load);

#endif
