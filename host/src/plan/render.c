/* render.c - a plan as a person reads it, and the choice of form.
 *
 * The first line is the answer: what was asked, whether an order exists, the digest. Then one row per node with the reason for its place.
 * The explained form adds what was selected and why, what was not, and which constraints had no effect: what is missing from a plan has to
 * be as easy to find as what is in it.
 */
#include "../context.h"
#include "names.h"
#include "plan.h"
#include "table.h"

#include <ordo/mesh.h>
#include <string.h>

static void heading(GString *out, const char *text, gboolean colour)
{
  g_string_append_printf(out, "\n%s%s%s\n", colour ? ORDO_ESC_BOLD : "", text, colour ? ORDO_ESC_RESET : "");
}

static void append_answer(const ordo_plan *plan, GString *out, gboolean colour)
{
  gboolean legal = plan->resolution->legal;
  guint n = plan->resolution->findings->len;
  g_autofree char *answer =
      legal ? g_strdup_printf("%u steps", plan->nodes->len) : g_strdup_printf("CONFLICT, %u finding%s", n, n == 1 ? "" : "s");
  g_string_append_printf(out, "plan %s with %s   %d rank%s%s%s   %s%s%s   digest %s\n", plan->strategy, plan->precision, plan->ranks,
                         plan->ranks == 1 ? "" : "s", plan->flags & ORDO_PLAN_RESUME ? ", resumed" : "",
                         plan->flags & ORDO_PLAN_EVAL ? ", evaluation only" : "", colour ? (legal ? ORDO_ESC_GREEN : ORDO_ESC_RED) : "",
                         answer, colour ? ORDO_ESC_RESET : "", plan->digest);
}

static void append_mesh(const ordo_plan *plan, GString *out)
{
  if (plan->axes->len == 0)
    return;
  g_string_append(out, "mesh");
  for (guint i = 0; i < plan->axes->len; i++) {
    const ordo_plan_axis *axis = &g_array_index(plan->axes, ordo_plan_axis, i);
    g_string_append_printf(out, "%s %s=%d (%s)", i ? " x" : "", axis->name, axis->size, axis->kind == ORDO_AXIS_MODEL ? "model" : "data");
  }
  g_string_append(out, plan->axes->len > 1 ? ", outermost axis first\n" : "\n");
}

static char *step_cell(const ordo_plan *plan, const ordo_plan_node *node)
{
  if (node->model == 0)
    return g_strdup(node->name);
  return g_strdup_printf("%s@%s", node->name, (const char *)g_ptr_array_index(plan->model_names, node->model));
}

static void append_steps(const ordo_plan *plan, GString *out, gboolean explain, gboolean colour)
{
  g_autoptr(ordo_table) table = ordo_table_new(5);
  const char *phase = "";
  ordo_table_row(table, (const char *const[]){"phase", "#", "step", "provider", "why here"});
  for (guint i = 0; i < plan->nodes->len; i++) {
    const ordo_plan_node *node = ordo_plan_node_at(plan, i);
    const char *name = ordo_phase_name(node->phase);
    g_autofree char *number = g_strdup_printf("%u", i + 1), *step = step_cell(plan, node), *all = ordo_plan_all_reasons(plan, i);
    ordo_table_row(table, (const char *const[]){strcmp(name, phase) == 0 ? "" : name, number, step, node->provider, node->reason});
    g_auto(GStrv) reasons = g_strsplit(all, "\n", -1);
    for (char **reason = reasons; explain && *reason && reasons[1]; reason++) /* a single one is told already */
      ordo_table_row(table, (const char *const[]){"", "", "", "", *reason});
    phase = name;
  }
  g_string_append_c(out, '\n');
  ordo_table_append(table, out, "", colour ? ORDO_ESC_BOLD : NULL);
}

static void append_events(const ordo_plan *plan, GString *out, gboolean colour)
{
  g_autoptr(ordo_table) table = ordo_table_new(3);
  if (plan->events->len == 0)
    return;
  for (guint i = 0; i < plan->events->len; i++) {
    const ordo_plan_event *event = ordo_plan_event_at(plan, i);
    ordo_table_row(table, (const char *const[]){event->name, event->provider, event->reason});
  }
  heading(out, "inside a training step", colour);
  ordo_table_append(table, out, "  ", NULL);
}

/* Options that differ from the defaults of the manifest, or all of them: "opt_level=O2". */
static char *options_text(const ordo_choice *choice)
{
  GString *text = g_string_new(NULL);
  for (guint i = 0; i < choice->found->manifest->options->len; i++) {
    const ordo_option_schema *schema = g_ptr_array_index(choice->found->manifest->options, i);
    const char *value = ordo_choice_option((gpointer)choice, schema->key);
    g_string_append_printf(text, "%s%s%s%s", text->len ? ", " : "", schema->key, value ? "=" : " unset", value ? value : "");
  }
  return g_string_free(text, FALSE);
}

static void append_selected(const ordo_plan *plan, GString *out, gboolean colour)
{
  g_autoptr(ordo_table) table = ordo_table_new(4);
  for (guint i = 0; i < plan->providers->len; i++) {
    const ordo_plan_provider *provider = &g_array_index(plan->providers, ordo_plan_provider, i);
    const ordo_plugin_info *info = &provider->choice->found->info;
    g_autofree char *name = g_strdup_printf("%s %s", provider->decl->id, provider->decl->version);
    g_autofree char *how =
        g_strdup_printf("%s %s", info->kind == ORDO_KIND_PRECISION ? "--precision" : "--strategy", provider->choice->written);
    g_autofree char *where = g_strdup_printf("%s (%s)", info->path ? info->path : "", info->source ? info->source : "");
    g_autofree char *options = options_text(provider->choice);
    ordo_table_row(table, (const char *const[]){name, how, where, options});
  }
  if (plan->providers->len == 0)
    return;
  heading(out, "selected", colour);
  ordo_table_append(table, out, "  ", NULL);
}

static void add_unselected(gpointer user, const ordo_found *found, const char *why)
{
  g_autofree char *name = found->info.id ? g_strdup_printf("%s %s", found->info.id, found->info.version ? found->info.version : "")
                                         : g_path_get_basename(found->info.path ? found->info.path : "?");
  ordo_table_row(user, (const char *const[]){name, why});
}

void ordo_plan_each_unselected(const ordo_plan *plan, ordo_plan_unselected each, gpointer user)
{
  for (size_t i = 0; i < ordo_registry_count(plan->context->registry); i++) {
    const ordo_found *found = ordo_registry_at(plan->context->registry, i);
    gboolean selected = FALSE;
    for (guint k = 0; k < plan->choices->len; k++)
      selected = selected || ((const ordo_choice *)g_ptr_array_index(plan->choices, k))->found == found;
    if (!selected)
      each(user, found, found->info.reason && *found->info.reason ? found->info.reason : "not asked for");
  }
}

static void append_unselected(const ordo_plan *plan, GString *out, gboolean colour)
{
  g_autoptr(ordo_table) table = ordo_table_new(2);
  gsize before = out->len;
  heading(out, "not selected", colour);
  ordo_plan_each_unselected(plan, add_unselected, table);
  gsize start = out->len;
  ordo_table_append(table, out, "  ", NULL);
  if (out->len == start)
    g_string_truncate(out, before);
}

static void append_ignored(const ordo_plan *plan, GString *out, gboolean colour)
{
  if (plan->resolution->skipped->len == 0)
    return;
  heading(out, "ignored constraints", colour);
  for (guint i = 0; i < plan->resolution->skipped->len; i++)
    g_string_append_printf(out, "  %s\n", (const char *)g_ptr_array_index(plan->resolution->skipped, i));
}

static char *plan_text(const ordo_plan *plan, gboolean explain, gboolean colour)
{
  GString *out = g_string_new(NULL);
  append_answer(plan, out, colour);
  append_mesh(plan, out);
  if (plan->resolution->legal) {
    append_steps(plan, out, explain, colour);
    append_events(plan, out, colour);
  } else {
    ordo_plan_append_conflict(plan, out, colour);
  }
  if (explain) {
    append_selected(plan, out, colour);
    append_unselected(plan, out, colour);
  }
  append_ignored(plan, out, colour);
  return g_string_free(out, FALSE);
}

/* Step ids, one a line; a model after the first is named. */
static char *steps_text(const ordo_plan *plan)
{
  GString *out = g_string_new(NULL);
  for (guint i = 0; i < plan->nodes->len; i++) {
    g_autofree char *step = step_cell(plan, ordo_plan_node_at(plan, i));
    g_string_append_printf(out, "%s\n", step);
  }
  return g_string_free(out, FALSE);
}

char *ordo_plan_render(const ordo_plan *plan, uint32_t form, uint32_t flags)
{
  gboolean colour = (flags & ORDO_RENDER_COLOUR) != 0;
  if (!plan)
    return NULL;
  switch (form) {
  case ORDO_RENDER_EXPLAIN:
    return plan_text(plan, TRUE, colour);
  case ORDO_RENDER_JSON:
    return ordo_plan_json(plan);
  case ORDO_RENDER_DOT:
    return ordo_plan_dot(plan);
  case ORDO_RENDER_DIGEST:
    return g_strdup_printf("%s\n", plan->digest);
  case ORDO_RENDER_STEPS:
    return steps_text(plan);
  default:
    return plan_text(plan, FALSE, colour);
  }
}
