/* units.h - wrap policies: which units of the model are gathered together.
 *
 *   block   every unit of a class that is repeated, or whose class is called a block or layer, is one of its own
 *   class   every unit whose class stands in a list
 *   size    neighbouring units are taken together until they hold enough elements
 *   list    each pattern of a list is one, made of all units whose name it matches
 *   none    the whole model is one
 * Number 0 is the root: it takes what is left (embedding, final norm, head) and stays gathered from the first forward to the last backward.
 */
#ifndef SHARDING_UNITS_H
#define SHARDING_UNITS_H

#include <ordo/model.h>

enum { SHARDING_UNITS_BLOCK, SHARDING_UNITS_CLASS, SHARDING_UNITS_SIZE, SHARDING_UNITS_LIST, SHARDING_UNITS_NONE };

typedef struct sharding_policy {
  int kind;
  int64_t size;         /* elements, for SHARDING_UNITS_SIZE */
  const char *patterns; /* joined with ',': classes or unit names; shell patterns */
} sharding_policy;

typedef struct sharding_policy_error {
  uint32_t pattern;       /* number of the pattern that matches nothing, from 1; 0: none */
  const ordo_unit *twice; /* unit that a second pattern matches, null: none */
} sharding_policy_error;

/* Number of the pattern of `patterns` (joined with ',') that matches `name`, from 1, and looks after the first `skip` ones; 0: none. */
uint32_t sharding_pattern_find(const char *patterns, uint32_t skip, const char *name);
uint32_t sharding_pattern_count(const char *patterns);
/* Whether one of `patterns` matches a parameter of the leaf. */
int sharding_pattern_finds_leaf(const char *patterns, const ordo_leaf *leaf);

/* Writes group[unit] for every unit of the model, 0 for the root, others from 1 in order of execution. Returns the number of groups, the
 * root included, or 0 after an error, which *error describes. */
uint32_t sharding_units_assign(const sharding_policy *policy, const ordo_model *model, uint32_t *group, sharding_policy_error *error);

/* Members of groups as chains, so that going through all groups looks at each of `n` items once: a model has tens of thousands.
 * `group`: [n], UINT32_MAX for an item of none. Fills first [n_groups] and next [n] in ascending order; UINT32_MAX ends a chain. */
void sharding_chain(const uint32_t *group, uint32_t n, uint32_t n_groups, uint32_t *first, uint32_t *next);

#endif
