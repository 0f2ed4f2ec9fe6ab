/* condition.h - conditions on manifest lines (private): `opt_level in O2,O5 or loss_scale set`. */
#ifndef ORDO_PRIVATE_CONDITION_H
#define ORDO_PRIVATE_CONDITION_H

#include "manifest.h"

/* What a comparison in a condition says; one call per comparison, in order. `values` is null for set/unset. */
typedef void (*ordo_condition_visitor)(gpointer user, const char *key, const char *const *values);

/* Checks the syntax of `text` and, with a visitor, shows every comparison. Null if it is well formed, else what is wrong (free it). */
char *ordo_condition_check(const char *text, ordo_condition_visitor visit, gpointer user);
/* TRUE if `text` holds; null text always does. A malformed text never holds. Values are compared as the type of the option in `manifest`
 * says: numbers as numbers, truth values as truth values, the rest as text. An unset option equals nothing. */
gboolean ordo_condition_holds(const char *text, const ordo_manifest *manifest, ordo_option_getter get, gpointer user);

#endif
