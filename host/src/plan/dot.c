/* dot.c - the graph for Graphviz: ordo plan --dot | dot -Tsvg.
 *
 * A legal plan is drawn without the constraints that follow from others, or it would be a thicket; a conflict is drawn whole, with its
 * shortest cycle in red.
 */
#include "graph.h"
#include "plan.h"
#include "rules.h"

static void append_escaped(GString *out, const char *text)
{
  for (const char *at = text; *at; at++) {
    if (*at == '"' || *at == '\\')
      g_string_append_c(out, '\\');
    g_string_append_c(out, *at);
  }
}

/* Another chain leads the same way. Nodes of a legal plan are in order, so a chain only goes up. */
static gboolean follows_from_others(const ordo_resolution *r, const ordo_edge *edge)
{
  g_autofree guint8 *reached = g_new0(guint8, r->nodes->len + 1);
  reached[edge->from] = 1;
  for (guint at = edge->from; at <= edge->to; at++) {
    for (guint i = 0; reached[at] && i < r->edges->len; i++) {
      const ordo_edge *step = &g_array_index(r->edges, ordo_edge, i);
      if (step->from == at && step != edge)
        reached[step->to] = 1;
    }
  }
  return reached[edge->to] != 0;
}

static gboolean on_cycle(const ordo_resolution *r, guint edge)
{
  for (guint i = 0; i < r->cycle->len; i++) {
    if (g_array_index(r->cycle, guint, i) == edge)
      return TRUE;
  }
  return FALSE;
}

static void append_nodes(const ordo_resolution *r, GString *out)
{
  for (guint i = 0; i < r->nodes->len; i++) {
    const ordo_node *node = &g_array_index(r->nodes, ordo_node, i);
    g_string_append_printf(out, "  n%u [label=\"", i);
    append_escaped(out, node->id);
    g_string_append_printf(out, "\\n%s%s\"];\n", ordo_phase_name(node->phase), node->phase != node->default_phase ? " (moved)" : "");
  }
}

static void append_edges(const ordo_resolution *r, GString *out)
{
  for (guint i = 0; i < r->edges->len; i++) {
    const ordo_edge *edge = &g_array_index(r->edges, ordo_edge, i);
    g_autofree char *label = ordo_edge_label(edge);
    if (r->legal && follows_from_others(r, edge))
      continue;
    g_string_append_printf(out, "  n%u -> n%u [label=\"", edge->from, edge->to);
    append_escaped(out, label);
    g_string_append_printf(out, "\"%s%s];\n", edge->hard ? "" : ", style=dashed",
                           on_cycle(r, i) ? ", color=red, fontcolor=red, penwidth=2" : "");
  }
}

char *ordo_plan_dot(const ordo_plan *plan)
{
  GString *out = g_string_new(
      "digraph plan {\n  rankdir=TB;\n  node [shape=box, fontname=\"sans-serif\"];\n  edge [fontname=\"sans-serif\", fontsize=9];\n");
  g_string_append(out, "  label=\"");
  append_escaped(out, plan->strategy);
  g_string_append(out, " with ");
  append_escaped(out, plan->precision);
  g_string_append_printf(out, "\\n%s, digest %s\";\n", plan->resolution->legal ? "legal" : "conflict", plan->digest);
  append_nodes(plan->resolution, out);
  append_edges(plan->resolution, out);
  g_string_append(out, "}\n");
  return g_string_free(out, FALSE);
}
