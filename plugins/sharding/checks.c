/* checks.c - options that fit neither each other nor the model: what fsdp1 and fsdp2 refuse alike, in the same words.
 *
 * Guarded against: a setting that is accepted and does nothing, a pattern that is a slip of the pen, and a parameter that every rank trains
 * on its own part of the batch.
 */
#include "options.h"
#include "sharding.h"

#include <stdio.h>
#include <string.h>

enum { SHOWN = 4 }; /* names that a refusal lists */

ordo_status sharding_check_units(const ordo_job *job, const char *plugin, int kind)
{
  static const struct {
    const char *option, *units, *example;
    int kind, required;
  } rows[] = {{"unit_classes", "class", "LlamaBlock", SHARDING_UNITS_CLASS, 1},
              {"unit_size", "size", "1000000", SHARDING_UNITS_SIZE, 0},
              {"unit_list", "list", "model.layers.*", SHARDING_UNITS_LIST, 1}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const char *text = sharding_option_text(job, rows[i].option);
    char hint[256];
    snprintf(hint, sizeof hint, "write %s:units=%s:%s=%.64s%s", plugin, rows[i].units, rows[i].option, *text ? text : rows[i].example,
             *text ? ", or leave it out" : "");
    if (rows[i].kind == kind && rows[i].required && *text == '\0')
      return sharding_fail(job, ORDO_E_INVALID, hint, "units=%s without %s", rows[i].units, rows[i].option);
    if (rows[i].kind != kind && *text != '\0')
      return sharding_fail(job, ORDO_E_INVALID, hint, "%s=%s has no effect: only units=%s reads it, and units is '%s'", rows[i].option,
                           text, rows[i].units, sharding_option_text(job, "units"));
  }
  return ORDO_OK;
}

static const char *name_of(const ordo_unit *unit, int by_class)
{
  return by_class ? unit->class_name : unit->name;
}

/* "'embed', 'layers.0', 'layers.1', ...": each name once. */
static void list_names(const ordo_model *model, int by_class, char *text, size_t size)
{
  size_t used = 0;
  uint32_t shown = 0;
  text[0] = '\0';
  for (uint32_t u = 0; u < model->n_units && used < size; u++) {
    int seen = 0;
    for (uint32_t v = 0; v < u && !seen; v++)
      seen = strcmp(name_of(model->units[u], by_class), name_of(model->units[v], by_class)) == 0;
    if (seen)
      continue;
    used += (size_t)snprintf(text + used, size - used, "%s", shown > 0 ? ", " : "");
    if (used < size)
      used += (size_t)snprintf(text + used, size - used, shown < SHOWN ? "'%.64s'" : "...", name_of(model->units[u], by_class));
    if (shown++ == SHOWN)
      return;
  }
}

ordo_status sharding_check_policy(const ordo_job *job, const sharding_policy *policy, const sharding_policy_error *error)
{
  const int by_class = policy->kind == SHARDING_UNITS_CLASS;
  char names[512];
  if (error->twice != NULL)
    return sharding_fail(job, ORDO_E_INVALID, "make every unit match one pattern, or none to leave it in the root",
                         "option 'unit_list' = '%s': unit '%s' matches two patterns", policy->patterns, error->twice->name);
  if (error->pattern == 0)
    return ORDO_OK;
  list_names(job->model, by_class, names, sizeof names);
  return sharding_fail(job, ORDO_E_INVALID, "patterns are joined with ',' and use * and ? as a shell does",
                       "option '%s' = '%s': pattern number %u matches no unit of model '%s', whose %s are %s",
                       by_class ? "unit_classes" : "unit_list", policy->patterns, error->pattern, job->model->name,
                       by_class ? "classes of units" : "units", names);
}

/* Its gradient would be that of this rank's part of the batch, and the copies on the ranks would drift apart. */
static ordo_status check_frozen(const ordo_job *job, const char *patterns, const ordo_param *param)
{
  const int trained = (param->flags & ORDO_PARAM_REQUIRES_GRAD) != 0 && job->model->trained && !job->eval_only;
  if (!trained || job->mesh->data->size == 1 || sharding_pattern_find(patterns, 0, param->name) == 0)
    return ORDO_OK;
  return sharding_fail(job, ORDO_E_UNSUPPORTED, "freeze the parameter (requires_grad off), or do not ignore it",
                       "option 'ignored' = '%s': parameter '%s' is trained, but an ignored one is not reduced, so its copies on %d ranks "
                       "would become different",
                       patterns, param->name, job->mesh->data->size);
}

const char *sharding_way_out(const ordo_job *job, const ordo_leaf *leaf, const char *excluded, const char *frozen)
{
  const int trained = (leaf->flags & ORDO_PARAM_REQUIRES_GRAD) != 0 && job->model->trained && !job->eval_only;
  return trained && job->mesh->data->size > 1 ? frozen : excluded;
}

ordo_status sharding_check_ignored(const ordo_job *job, const char *patterns)
{
  const ordo_model *model = job->model;
  const uint32_t n = sharding_pattern_count(patterns);
  uint32_t ignored = 0;
  ordo_status status = ORDO_OK;
  for (uint32_t i = 1; i <= n; i++) {
    uint32_t hits = 0;
    for (uint32_t p = 0; p < model->n_params; p++)
      hits += sharding_pattern_find(patterns, i - 1, model->params[p]->name) == i;
    if (hits == 0)
      return sharding_fail(
          job, ORDO_E_INVALID, "patterns are joined with ',' and use * and ? as a shell does",
          "option 'ignored' = '%s': pattern number %u matches no parameter of model '%s', or only what an earlier one matches", patterns, i,
          model->name);
  }
  for (uint32_t p = 0; p < model->n_params; p++)
    ignored += sharding_pattern_find(patterns, 0, model->params[p]->name) != 0;
  if (ignored == model->n_params) /* the strategies refuse to shard nothing, which is the better reason */
    return ORDO_OK;
  for (uint32_t p = 0; ignored > 0 && p < model->n_params && status == ORDO_OK; p++)
    status = check_frozen(job, patterns, model->params[p]);
  return status;
}
