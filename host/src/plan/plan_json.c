/* plan_json.c - the whole plan for a program: the same facts as the explained text, under stable keys.
 *
 * Keys are only ever added. A legal plan has empty "findings", "cycle" and "fixes"; a conflict has empty "steps" and "events", so a reader
 * needs no case distinction.
 */
#include "json.h"
#include "names.h"
#include "plan.h"
#include "rules.h"

#include <ordo/mesh.h>

static void write_mesh(const ordo_plan *plan, ordo_json *json)
{
  ordo_json_open(json, "axes", '[');
  for (guint i = 0; i < plan->axes->len; i++) {
    const ordo_plan_axis *axis = &g_array_index(plan->axes, ordo_plan_axis, i);
    ordo_json_open(json, NULL, '{');
    ordo_json_string(json, "name", axis->name);
    ordo_json_string(json, "kind", axis->kind == ORDO_AXIS_MODEL ? "model" : "data");
    ordo_json_int(json, "size", axis->size);
    ordo_json_close(json, '}');
  }
  ordo_json_close(json, ']');
}

static void write_models(const ordo_plan *plan, ordo_json *json)
{
  ordo_json_open(json, "models", '[');
  for (guint i = 0; i < plan->model_names->len; i++) {
    ordo_json_open(json, NULL, '{');
    ordo_json_string(json, "name", g_ptr_array_index(plan->model_names, i));
    ordo_json_bool(json, "trained", g_array_index(plan->model_trained, gboolean, i));
    ordo_json_close(json, '}');
  }
  ordo_json_close(json, ']');
}

static void write_plugins(const ordo_plan *plan, ordo_json *json)
{
  ordo_json_open(json, "plugins", '[');
  for (guint i = 0; i < plan->providers->len; i++) {
    const ordo_plan_provider *provider = &g_array_index(plan->providers, ordo_plan_provider, i);
    const ordo_plan_axis *axis = NULL;
    ordo_json_open(json, NULL, '{');
    ordo_json_string(json, "id", provider->decl->id);
    ordo_json_string(json, "version", provider->decl->version);
    ordo_json_string(json, "kind", ordo_kind_name(provider->decl->kind));
    g_autofree char *resolved = ordo_choice_resolved(provider->choice);
    ordo_json_string(json, "written", provider->choice->written);
    ordo_json_string(json, "resolved", resolved);
    ordo_json_string(json, "path", provider->choice->found->info.path);
    ordo_json_string(json, "axis", ordo_plan_axis_of(plan, (int)i, &axis) ? axis->name : NULL);
    ordo_json_open(json, "options", '{');
    for (guint k = 0; k < provider->choice->found->manifest->options->len; k++) {
      const ordo_option_schema *schema = g_ptr_array_index(provider->choice->found->manifest->options, k);
      ordo_json_string(json, schema->key, ordo_choice_option((gpointer)provider->choice, schema->key));
    }
    ordo_json_close(json, '}');
    ordo_json_close(json, '}');
  }
  ordo_json_close(json, ']');
}

static void write_steps(const ordo_plan *plan, ordo_json *json)
{
  ordo_json_open(json, "steps", '[');
  for (guint i = 0; i < plan->nodes->len; i++) {
    const ordo_plan_node *node = ordo_plan_node_at(plan, i);
    ordo_json_open(json, NULL, '{');
    ordo_json_string(json, "step", node->name);
    ordo_json_string(json, "id", g_array_index(plan->resolution->nodes, ordo_node, i).id);
    ordo_json_string(json, "phase", ordo_phase_name(node->phase));
    ordo_json_string(json, "default_phase", ordo_phase_name(node->default_phase));
    ordo_json_string(json, "provider", node->provider);
    ordo_json_string(json, "model", g_ptr_array_index(plan->model_names, node->model));
    ordo_json_string(json, "reason", node->reason);
    ordo_json_close(json, '}');
  }
  ordo_json_close(json, ']');
  ordo_json_open(json, "events", '[');
  for (guint i = 0; i < plan->events->len; i++) {
    const ordo_plan_event *event = ordo_plan_event_at(plan, i);
    ordo_json_open(json, NULL, '{');
    ordo_json_string(json, "event", event->name);
    ordo_json_string(json, "provider", event->provider);
    ordo_json_string(json, "reason", event->reason);
    ordo_json_close(json, '}');
  }
  ordo_json_close(json, ']');
}

static void write_edge(const ordo_plan *plan, ordo_json *json, const ordo_edge *edge)
{
  ordo_json_open(json, NULL, '{');
  ordo_json_string(json, "before", g_array_index(plan->resolution->nodes, ordo_node, edge->from).id);
  ordo_json_string(json, "after", g_array_index(plan->resolution->nodes, ordo_node, edge->to).id);
  ordo_json_string(json, "rule", edge->rule);
  ordo_json_string(json, "origin", edge->origin);
  ordo_json_bool(json, "hard", edge->hard);
  ordo_json_close(json, '}');
}

static void write_conflict(const ordo_plan *plan, ordo_json *json)
{
  const ordo_resolution *r = plan->resolution;
  ordo_json_open(json, "findings", '[');
  for (guint i = 0; i < r->findings->len; i++) {
    const ordo_finding *finding = g_ptr_array_index(r->findings, i);
    ordo_json_open(json, NULL, '{');
    ordo_json_string(json, "code", finding->code);
    ordo_json_string(json, "text", finding->text);
    ordo_json_string(json, "where", finding->where);
    ordo_json_string(json, "next", finding->next);
    ordo_json_close(json, '}');
  }
  ordo_json_close(json, ']');
  ordo_json_open(json, "cycle", '[');
  for (guint i = 0; i < r->cycle->len; i++)
    write_edge(plan, json, &g_array_index(r->edges, ordo_edge, g_array_index(r->cycle, guint, i)));
  ordo_json_close(json, ']');
}

static void write_strings(ordo_json *json, const char *key, const GPtrArray *strings)
{
  ordo_json_open(json, key, '[');
  for (guint i = 0; i < strings->len; i++)
    ordo_json_string(json, NULL, g_ptr_array_index(strings, i));
  ordo_json_close(json, ']');
}

static void write_unselected(gpointer user, const ordo_found *found, const char *why)
{
  ordo_json *json = user;
  ordo_json_open(json, NULL, '{');
  ordo_json_string(json, "id", found->info.id);
  ordo_json_string(json, "version", found->info.version);
  ordo_json_string(json, "path", found->info.path);
  ordo_json_string(json, "why", why);
  ordo_json_close(json, '}');
}

char *ordo_plan_json(const ordo_plan *plan)
{
  ordo_json json;
  ordo_json_begin(&json);
  ordo_json_open(&json, NULL, '{');
  ordo_json_int(&json, "schema", 1);
  ordo_json_bool(&json, "legal", plan->resolution->legal);
  ordo_json_string(&json, "digest", plan->digest);
  ordo_json_string(&json, "strategy", plan->strategy);
  ordo_json_string(&json, "precision", plan->precision);
  ordo_json_int(&json, "ranks", plan->ranks);
  ordo_json_bool(&json, "resume", (plan->flags & ORDO_PLAN_RESUME) != 0);
  ordo_json_bool(&json, "eval", (plan->flags & ORDO_PLAN_EVAL) != 0);
  write_mesh(plan, &json);
  write_models(plan, &json);
  write_plugins(plan, &json);
  write_steps(plan, &json);
  ordo_json_open(&json, "constraints", '[');
  for (guint i = 0; i < plan->resolution->edges->len; i++)
    write_edge(plan, &json, &g_array_index(plan->resolution->edges, ordo_edge, i));
  ordo_json_close(&json, ']');
  write_conflict(plan, &json);
  write_strings(&json, "fixes", plan->resolution->fixes);
  write_strings(&json, "ignored", plan->resolution->skipped);
  ordo_json_open(&json, "not_selected", '[');
  ordo_plan_each_unselected(plan, write_unselected, &json);
  ordo_json_close(&json, ']');
  ordo_json_close(&json, '}');
  return ordo_json_end(&json);
}
