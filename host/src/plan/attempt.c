/* attempt.c - from the providers of a plan to a resolution, and for a refused set a second look with everything that could help.
 *
 * The resolver knows declarations only. What a person could do instead stands in manifests: other values of the options on which lines
 * depend, and other plugins that offer what is missing. Both are collected here, and only when there is a conflict, so a legal plan costs
 * nothing.
 */
#include "../context.h"
#include "../discovery/option.h"
#include "condition.h"
#include "rules.h"
#include "plan.h"

#include <string.h>

typedef struct collector {
  const ordo_plan *plan;
  guint provider;
  GArray *variants;  /* ordo_variant */
  GHashTable *tried; /* "provider key=value" */
} collector;

typedef struct changed_option {
  const ordo_choice *choice;
  const char *key, *value; /* null value: unset */
} changed_option;

static const char *option_with_change(gpointer user, const char *key)
{
  const changed_option *changed = user;
  return strcmp(key, changed->key) == 0 ? changed->value : ordo_choice_option((gpointer)changed->choice, key);
}

static void try_value(collector *c, const char *key, const char *value)
{
  const ordo_plan_provider *provider = &g_array_index(c->plan->providers, ordo_plan_provider, c->provider);
  const char *current = ordo_choice_option((gpointer)provider->choice, key);
  changed_option changed = {provider->choice, key, value};
  char *name =
      value ? g_strdup_printf("%s:%s=%s", provider->decl->id, key, value) : g_strdup_printf("%s without %s", provider->decl->id, key);
  if (g_strcmp0(current, value) == 0 || g_hash_table_contains(c->tried, name)) {
    g_free(name);
    return;
  }
  g_hash_table_add(c->tried, name);         /* owns the name, which variants share */
  ordo_errors *ignored = ordo_errors_new(); /* a value that makes the plugin contradict itself is no way out */
  ordo_decl *decl = ordo_decl_from_manifest(provider->choice->found->manifest, option_with_change, &changed, ignored);
  ordo_errors_free(ignored);
  if (!decl)
    return;
  decl->axis = provider->decl->axis;
  decl->axis_size = provider->decl->axis_size;
  decl->model_mask = provider->decl->model_mask;
  ordo_variant variant = {c->provider, name, decl};
  g_array_append_val(c->variants, variant);
}

/* Values that are worth trying: those that the condition speaks of, all of an enum, both truth values, and none at all. */
static void try_option(gpointer user, const char *key, const char *const *values)
{
  collector *c = user;
  const ordo_manifest *manifest = g_array_index(c->plan->providers, ordo_plan_provider, c->provider).choice->found->manifest;
  const ordo_option_schema *schema = ordo_manifest_option(manifest, key);
  if (!schema)
    return;
  g_auto(GStrv) range = schema->type == ORDO_OPTION_BOOL   ? g_strsplit("no,yes", ",", -1)
                        : strstr(schema->range, "..") == 0 ? g_strsplit(schema->range, ",", -1)
                                                           : NULL;
  for (; values && *values; values++) {
    g_autofree char *why = NULL;
    g_autofree char *canonical = ordo_option_normalise(schema, *values, &why);
    if (canonical)
      try_value(c, key, canonical);
  }
  for (char **word = range; word && *word; word++) {
    g_autofree char *why = NULL;
    g_autofree char *canonical = ordo_option_normalise(schema, g_strstrip(*word), &why);
    if (canonical)
      try_value(c, key, canonical);
  }
  if (!schema->default_text)
    try_value(c, key, NULL);
}

static void collect_variants(collector *c)
{
  for (c->provider = 0; c->provider < c->plan->providers->len; c->provider++) {
    const ordo_manifest *manifest = g_array_index(c->plan->providers, ordo_plan_provider, c->provider).choice->found->manifest;
    for (guint i = 0; i < manifest->lines->len; i++) {
      const ordo_manifest_line *line = g_ptr_array_index(manifest->lines, i);
      if (line->condition)
        g_free(ordo_condition_check(line->condition, try_option, c));
    }
  }
}

static void collect_offers(const ordo_plan *plan, GArray *offers)
{
  for (size_t i = 0; i < ordo_registry_count(plan->context->registry); i++) {
    const ordo_found *found = ordo_registry_at(plan->context->registry, i);
    if (found->info.state != ORDO_PLUGIN_USABLE || !found->manifest)
      continue;
    ordo_offer offer = {found->info.id, found->info.id};
    g_array_append_val(offers, offer);
    for (guint k = 0; k < found->manifest->lines->len; k++) {
      const ordo_manifest_line *line = g_ptr_array_index(found->manifest->lines, k);
      for (char **value = line->values; strcmp(line->key, "provides") == 0 && *value; value++) {
        offer.capability = *value;
        g_array_append_val(offers, offer);
      }
    }
  }
}

static void resolve_again(ordo_plan *plan, ordo_resolve_input *input)
{
  g_autoptr(GArray) variants = g_array_new(FALSE, FALSE, sizeof(ordo_variant));
  g_autoptr(GArray) offers = g_array_new(FALSE, FALSE, sizeof(ordo_offer));
  g_autoptr(GHashTable) tried = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
  collector c = {plan, 0, variants, tried};
  collect_variants(&c);
  collect_offers(plan, offers);
  input->variants = (const ordo_variant *)(gpointer)variants->data;
  input->n_variants = variants->len;
  input->offers = (const ordo_offer *)(gpointer)offers->data;
  input->n_offers = offers->len;
  ordo_resolution_free(plan->resolution);
  plan->resolution = ordo_resolve(input);
  for (guint i = 0; i < variants->len; i++)
    ordo_decl_free((ordo_decl *)g_array_index(variants, ordo_variant, i).instead);
}

void ordo_plan_resolve(ordo_plan *plan)
{
  g_autofree const ordo_decl **decls = g_new0(const ordo_decl *, plan->providers->len + 1);
  g_autofree ordo_resolve_axis *axes = g_new0(ordo_resolve_axis, plan->axes->len + 1);
  for (guint i = 0; i < plan->providers->len; i++)
    decls[i] = g_array_index(plan->providers, ordo_plan_provider, i).decl;
  for (guint i = 0; i < plan->axes->len; i++) {
    const ordo_plan_axis *axis = &g_array_index(plan->axes, ordo_plan_axis, i);
    axes[i] = (ordo_resolve_axis){axis->name, axis->kind, axis->size};
  }
  ordo_resolve_input input = {
      .decls = decls,
      .n_decls = plan->providers->len,
      .axes = axes,
      .n_axes = plan->axes->len,
      .model_trained = (const gboolean *)(gpointer)plan->model_trained->data,
      .model_names = (const char *const *)plan->model_names->pdata,
      .n_models = plan->model_names->len,
      .resume = (plan->flags & ORDO_PLAN_RESUME) != 0,
      .eval = (plan->flags & ORDO_PLAN_EVAL) != 0,
  };
  plan->resolution = ordo_resolve_without(&input, 0, TRUE);
  if (!plan->resolution->legal)
    resolve_again(plan, &input);
}
