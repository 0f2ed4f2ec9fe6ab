/* conflict.c - a conflict as a person reads it: every finding, the cycle with arrows and origins, and what was tried and helps.
 *
 * `ordo plan` and `ordo why-not` show the same text, so nobody has to run a second command to learn what the first one knew.
 */
#include "../context.h"
#include "json.h"
#include "plan.h"
#include "rules.h"
#include "table.h"

#include <string.h>

static const ordo_edge *cycle_edge(const ordo_plan *plan, guint i)
{
  return &g_array_index(plan->resolution->edges, ordo_edge, g_array_index(plan->resolution->cycle, guint, i));
}

static const char *node_id(const ordo_plan *plan, guint index)
{
  return g_array_index(plan->resolution->nodes, ordo_node, index).id;
}

/* .-> a   before b   origin
 * |   b   before c   origin
 * `-- c   before a   origin */
static void append_cycle(const ordo_plan *plan, GString *out)
{
  guint n = plan->resolution->cycle->len;
  g_autoptr(ordo_table) table = ordo_table_new(3);
  for (guint i = 0; i < n; i++) {
    const ordo_edge *edge = cycle_edge(plan, i);
    g_autofree char *label = ordo_edge_label(edge);
    g_autofree char *from = g_strdup_printf("%s %s", i == 0 ? ".->" : i + 1 == n ? "`--" : "|  ", node_id(plan, edge->from));
    g_autofree char *to = g_strdup_printf("before  %s", node_id(plan, edge->to));
    ordo_table_row(table, (const char *const[]){from, to, label});
  }
  ordo_table_append(table, out, "    ", NULL);
}

static void append_finding(const ordo_plan *plan, GString *out, const ordo_finding *finding, gboolean draw, gboolean colour)
{
  g_string_append_printf(out, "\n%serror %s%s: %s\n", colour ? ORDO_ESC_RED : "", finding->code, colour ? ORDO_ESC_RESET : "",
                         finding->text);
  if (draw)
    append_cycle(plan, out);
  else if (*finding->where)
    g_string_append_printf(out, "    origin: %s\n", finding->where);
  if (!draw && *finding->next)
    g_string_append_printf(out, "    next: %s\n", finding->next);
}

static void append_fixes(const ordo_plan *plan, GString *out)
{
  const GPtrArray *fixes = plan->resolution->fixes;
  if (fixes->len == 0) {
    g_string_append(out, "\nno single change was found that makes this set resolvable\n");
    return;
  }
  g_string_append(out, "\nsingle changes that were tried and work:\n");
  for (guint i = 0; i < fixes->len; i++)
    g_string_append_printf(out, "  - %s\n", (const char *)g_ptr_array_index(fixes, i));
}

static void append_words(GString *out, const char *option, const char *value)
{
  gboolean plain = *value && strspn(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+=:,./@-") == strlen(value);
  g_autofree char *quoted = plain ? g_strdup(value) : g_shell_quote(value);
  g_string_append_printf(out, " %s %s", option, quoted);
}

/* The command that draws this very plan: a command without the choices would draw another one. */
static void append_picture(const ordo_plan *plan, GString *out)
{
  const char *path = ordo_registry_given_path(plan->context->registry);
  g_string_append(out, "see it: ordo plan --dot");
  if (path)
    append_words(out, "--plugin-path", path);
  if (ordo_registry_flags(plan->context->registry) & ORDO_CONTEXT_ALLOW_INSECURE)
    g_string_append(out, " --allow-insecure-dir");
  if (strcmp(plan->strategy, "none") != 0)
    append_words(out, "--strategy", plan->strategy);
  if (strcmp(plan->precision, "none") != 0)
    append_words(out, "--precision", plan->precision);
  g_string_append_printf(out, " --ranks %d%s%s | dot -Tsvg\n", plan->ranks, plan->flags & ORDO_PLAN_RESUME ? " --resume" : "",
                         plan->flags & ORDO_PLAN_EVAL ? " --eval" : "");
}

void ordo_plan_append_conflict(const ordo_plan *plan, GString *out, gboolean colour)
{
  gboolean drawn = FALSE;
  for (guint i = 0; i < plan->resolution->findings->len; i++) {
    const ordo_finding *finding = g_ptr_array_index(plan->resolution->findings, i);
    gboolean draw = !drawn && plan->resolution->cycle->len > 0 && strcmp(finding->code, "E-PLAN-CYCLE") == 0;
    append_finding(plan, out, finding, draw, colour); /* the first cycle reported is the one kept */
    drawn = drawn || draw;
  }
  append_fixes(plan, out);
  append_picture(plan, out);
}

ordo_status ordo_plan_why_not(const ordo_plan *plan, uint32_t form, char **text)
{
  if (!plan || !text)
    return ORDO_E_INVALID;
  ordo_errors_clear(plan->context->errors);
  if (form == ORDO_RENDER_JSON) {
    *text = ordo_plan_json(plan);
    return ORDO_OK;
  }
  GString *out = g_string_new(NULL);
  if (plan->resolution->legal) {
    g_string_append_printf(out, "%s with %s has an order: ordo plan shows it\n", plan->strategy, plan->precision);
  } else {
    g_string_append_printf(out, "%s with %s has no order   digest %s\n", plan->strategy, plan->precision, plan->digest);
    ordo_plan_append_conflict(plan, out, FALSE);
  }
  *text = g_string_free(out, FALSE);
  return ORDO_OK;
}
