/* units.c - wrap policies. See units.h for what each one means.
 *
 * A policy looks at names, classes and sizes only, never at the rank, so every rank comes to the same units. A pattern that matches
 * nothing is an error and not an empty unit: it is a slip of the pen that would leave a block in the root, gathered all the time.
 */
#include "units.h"

#include <fnmatch.h>
#include <string.h>

enum { MAX_PATTERN = 256 };

/* Copies pattern number `index` (from 1); 0 past the end. Longer ones are cut and match nothing. */
static int pattern_at(const char *patterns, uint32_t index, char *pattern)
{
  const char *begin = patterns;
  for (uint32_t i = 1; i < index && begin != NULL; i++) {
    begin = strchr(begin, ',');
    begin = begin != NULL ? begin + 1 : NULL;
  }
  if (begin == NULL || *patterns == '\0')
    return 0;
  size_t length = strcspn(begin, ",");
  length = length < MAX_PATTERN ? length : 0;
  memcpy(pattern, begin, length);
  pattern[length] = '\0';
  return 1;
}

uint32_t sharding_pattern_count(const char *patterns)
{
  char pattern[MAX_PATTERN];
  uint32_t n = 0;
  while (pattern_at(patterns, n + 1, pattern))
    n++;
  return n;
}

uint32_t sharding_pattern_find(const char *patterns, uint32_t skip, const char *name)
{
  char pattern[MAX_PATTERN];
  for (uint32_t i = skip + 1; pattern_at(patterns, i, pattern); i++)
    if (fnmatch(pattern, name, 0) == 0)
      return i;
  return 0;
}

int sharding_pattern_finds_leaf(const char *patterns, const ordo_leaf *leaf)
{
  for (uint32_t p = 0; p < leaf->n_params; p++)
    if (sharding_pattern_find(patterns, 0, leaf->params[p]->name) != 0)
      return 1;
  return 0;
}

static int ends_with(const char *text, const char *end)
{
  size_t length = strlen(text), tail = strlen(end);
  return length >= tail && strcmp(text + length - tail, end) == 0;
}

static int is_block(const ordo_model *model, const ordo_unit *unit)
{
  uint32_t same = 0;
  if (ends_with(unit->class_name, "Block") || ends_with(unit->class_name, "Layer"))
    return 1;
  for (uint32_t u = 0; u < model->n_units && same < 2; u++) /* the first two of a class mostly stand near the beginning */
    same += strcmp(model->units[u]->class_name, unit->class_name) == 0;
  return unit->class_name[0] != '\0' && same > 1;
}

static int64_t unit_numel(const ordo_unit *unit)
{
  int64_t numel = 0;
  for (uint32_t p = 0; p < unit->n_params; p++)
    numel += unit->params[p]->numel;
  return numel;
}

/* Closes a group when it holds enough; what is too small at the end stays in the root. */
static uint32_t assign_by_size(int64_t size, const ordo_model *model, uint32_t *group)
{
  uint32_t n = 1, first = 0;
  int64_t held = 0;
  for (uint32_t u = 0; u < model->n_units; u++) {
    held += unit_numel(model->units[u]);
    if (held < size)
      continue;
    for (; first <= u; first++)
      group[first] = n;
    held = 0;
    n++;
  }
  return n;
}

static uint32_t assign_by_list(const char *patterns, const ordo_model *model, uint32_t *group, sharding_policy_error *error)
{
  const uint32_t n = sharding_pattern_count(patterns);
  for (uint32_t u = 0; u < model->n_units; u++) {
    group[u] = sharding_pattern_find(patterns, 0, model->units[u]->name);
    if (group[u] != 0 && sharding_pattern_find(patterns, group[u], model->units[u]->name) != 0)
      error->twice = model->units[u];
  }
  for (uint32_t i = 1; i <= n && error->pattern == 0; i++) {
    uint32_t hits = 0;
    for (uint32_t u = 0; u < model->n_units; u++)
      hits += group[u] == i;
    error->pattern = hits == 0 && error->twice == NULL ? i : 0;
  }
  return error->pattern != 0 || error->twice != NULL ? 0 : n + 1;
}

static uint32_t assign_by_class(const sharding_policy *policy, const ordo_model *model, uint32_t *group, sharding_policy_error *error)
{
  const uint32_t n_patterns = policy->kind == SHARDING_UNITS_CLASS ? sharding_pattern_count(policy->patterns) : 0;
  uint32_t n = 1;
  for (uint32_t u = 0; u < model->n_units; u++) {
    const ordo_unit *unit = model->units[u];
    int own =
        policy->kind == SHARDING_UNITS_CLASS ? sharding_pattern_find(policy->patterns, 0, unit->class_name) != 0 : is_block(model, unit);
    if (own)
      group[u] = n++;
  }
  for (uint32_t i = 1; i <= n_patterns && error->pattern == 0; i++) {
    uint32_t hits = 0;
    for (uint32_t u = 0; u < model->n_units; u++) {
      char pattern[MAX_PATTERN];
      hits += pattern_at(policy->patterns, i, pattern) && fnmatch(pattern, model->units[u]->class_name, 0) == 0;
    }
    error->pattern = hits == 0 ? i : 0;
  }
  return error->pattern != 0 ? 0 : n;
}

uint32_t sharding_units_assign(const sharding_policy *policy, const ordo_model *model, uint32_t *group, sharding_policy_error *error)
{
  memset(error, 0, sizeof *error);
  memset(group, 0, model->n_units * sizeof *group);
  switch (policy->kind) {
  case SHARDING_UNITS_NONE:
    return 1;
  case SHARDING_UNITS_SIZE:
    return assign_by_size(policy->size, model, group);
  case SHARDING_UNITS_LIST:
    return assign_by_list(policy->patterns, model, group, error);
  default:
    return assign_by_class(policy, model, group, error);
  }
}

void sharding_chain(const uint32_t *group, uint32_t n, uint32_t n_groups, uint32_t *first, uint32_t *next)
{
  memset(first, 0xff, n_groups * sizeof *first);
  for (uint32_t i = n; i-- > 0;)
    if (group[i] != UINT32_MAX) {
      next[i] = first[group[i]];
      first[group[i]] = i;
    }
}
