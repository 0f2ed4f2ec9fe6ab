/* adamw_rig.h - the rig (../fsdp1/rig.h) with the trainer's AdamW, and everything that such a job holds: weights, moments, counts of
 * updates. Bits are compared with those of another job instead of with a reference. */
#ifndef TEST_SHARDING_ADAMW_RIG_H
#define TEST_SHARDING_ADAMW_RIG_H

#include "../fsdp1/rig.h"

enum { SLOTS = 3 }; /* weight, exp_avg, exp_avg_sq: slots -1, 0, 1 */

typedef struct dictionary {
  float *values[RIG_PARAMS][SLOTS];
  int64_t updates[RIG_PARAMS];
} dictionary;

/* Ordered sums, AdamW, and parameters alike enough for flat leaves. */
rig_options adamw_options(const char *strategy);
void dictionary_new(dictionary *d);
void dictionary_free(dictionary *d);
/* Whole tensors of a job. Collective. */
void dictionary_export(rig *r, dictionary *d);
/* Asserts equal bits. */
void dictionary_same(const dictionary *a, const dictionary *b);

#endif
