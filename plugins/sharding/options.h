/* options.h - reads the options of a sharded strategy. Values were checked against the manifest before create. */
#ifndef ORDO_SHARDING_OPTIONS_H
#define ORDO_SHARDING_OPTIONS_H

#include "sharding.h"
#include "units.h"

#include <ordo/job.h>

enum { SHARDING_NO_LIMIT = 1 << 20 }; /* of gathered units: more than any model has */

/* The text of an option, empty if it is unset. */
const char *sharding_option_text(const ordo_job *job, const char *key);
/* Its number, `unset` if it is unset. */
int64_t sharding_option_int(const ordo_job *job, const char *key, int64_t unset);
/* param_dtype and reduce_dtype. Unset, gradients travel in the type of parameters in all-gathers, and those of 16 bits in their own. */
void sharding_option_types(const ordo_job *job, sharding_options *options);
/* Index of its word in `words` (ends with a null), 0 if it is unset. */
int sharding_option_word(const ordo_job *job, const char *key, const char *const *words);

/* checks.c. INVALID with a record: unit_classes, unit_size and unit_list belong to one value of `units` each. */
ordo_status sharding_check_units(const ordo_job *job, const char *plugin, int kind);
/* The refusal of what sharding_units_assign found; ORDO_OK if it found nothing. */
ordo_status sharding_check_policy(const ordo_job *job, const sharding_policy *policy, const sharding_policy_error *error);
/* INVALID: a pattern of `ignored` matches nothing; UNSUPPORTED: it matches what is trained on several ranks. */
ordo_status sharding_check_ignored(const ordo_job *job, const char *patterns);
/* The hint for a leaf that cannot be sharded: `excluded`, or `frozen` if sharding_check_ignored would refuse to exclude it, because it is
 * trained and several ranks hold copies. */
const char *sharding_way_out(const ordo_job *job, const ordo_leaf *leaf, const char *excluded, const char *frozen);

#endif
