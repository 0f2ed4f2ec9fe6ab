/* resolve.c - declarations in, one order or all reasons against it out.
 *
 * The frame of the resolver: nodes (nodes.c), edges (rules.c, lines.c), refusals (checks.c), then either an order or cycles. It has no
 * state and reads nothing but its input, and every list in the result is built in a canonical order, so the result depends on the set of
 * inputs only. Guards against the two failures of hard-coded orders: a combination that nobody thought of, and an answer that cannot say
 * why.
 */
#include "graph.h"
#include "rules.h"

#include <string.h>

static void clear_node(gpointer data)
{
  g_free(((ordo_node *)data)->id);
}

void ordo_edge_clear(gpointer data)
{
  ordo_edge *edge = data;
  g_free(edge->rule);
  g_free(edge->origin);
}

static void clear_event(gpointer data)
{
  g_free(((ordo_event_node *)data)->reason);
}

static void free_finding(gpointer data)
{
  ordo_finding *finding = data;
  g_free(finding->code);
  g_free(finding->text);
  g_free(finding->where);
  g_free(finding->next);
  g_free(finding);
}

static ordo_resolution *resolution_new(void)
{
  ordo_resolution *r = g_new0(ordo_resolution, 1);
  r->nodes = g_array_new(FALSE, FALSE, sizeof(ordo_node));
  r->edges = g_array_new(FALSE, FALSE, sizeof(ordo_edge));
  r->events = g_array_new(FALSE, FALSE, sizeof(ordo_event_node));
  r->findings = g_ptr_array_new_with_free_func(free_finding);
  r->cycle = g_array_new(FALSE, FALSE, sizeof(guint));
  r->fixes = g_ptr_array_new_with_free_func(g_free);
  r->skipped = g_ptr_array_new_with_free_func(g_free);
  g_array_set_clear_func(r->nodes, clear_node);
  g_array_set_clear_func(r->edges, ordo_edge_clear);
  g_array_set_clear_func(r->events, clear_event);
  return r;
}

void ordo_resolution_free(ordo_resolution *resolution)
{
  if (!resolution)
    return;
  g_array_unref(resolution->nodes);
  g_array_unref(resolution->edges);
  g_array_unref(resolution->events);
  g_ptr_array_unref(resolution->findings);
  g_array_unref(resolution->cycle);
  g_ptr_array_unref(resolution->fixes);
  g_ptr_array_unref(resolution->skipped);
  g_free(resolution);
}

char *ordo_edge_label(const ordo_edge *edge)
{
  if (g_str_has_prefix(edge->origin, "ordering "))
    return g_strdup(edge->origin);
  return g_strdup_printf("%s (%s)", edge->rule, edge->origin);
}

/* ---- canonical orders ---- */

static gint compare_decls(gconstpointer a, gconstpointer b, gpointer user)
{
  const ordo_resolve_input *input = user;
  const ordo_decl *x = input->decls[*(const guint *)a], *y = input->decls[*(const guint *)b];
  int by_id = strcmp(x->id, y->id), by_version = g_strcmp0(x->version, y->version);
  if (by_id != 0)
    return by_id;
  if (x->axis != y->axis)
    return x->axis < y->axis ? -1 : 1;
  return by_version;
}

static const char *provider_name(const ordo_build *build, const ordo_node *node)
{
  const ordo_decl *decl = ordo_build_decl(build, node);
  return decl ? decl->id : node->provider == ORDO_PROVIDER_HOST ? "host" : "embedder";
}

/* The ready set: final phase, table position, mesh-axis position, provider id; then what tells models apart. */
static gint compare_nodes(gconstpointer a, gconstpointer b, gpointer user)
{
  const ordo_build *build = user;
  const ordo_node *x = ordo_build_node(build, GPOINTER_TO_UINT(a)), *y = ordo_build_node(build, GPOINTER_TO_UINT(b));
  const ordo_decl *p = ordo_build_decl(build, x), *q = ordo_build_decl(build, y);
  int axis_x = p ? p->axis : -1, axis_y = q ? q->axis : -1;
  if (x->phase != y->phase)
    return x->phase < y->phase ? -1 : 1;
  if (x->step != y->step)
    return x->step < y->step ? -1 : 1;
  if (axis_x != axis_y)
    return axis_x < axis_y ? -1 : 1;
  int by_provider = strcmp(provider_name(build, x), provider_name(build, y));
  if (by_provider != 0)
    return by_provider;
  if (x->model != y->model)
    return x->model < y->model ? -1 : 1;
  return strcmp(x->id, y->id);
}

/* ---- the order ---- */

/* Final phases: the later of the default and those of the predecessors, never beyond pre_dispatch. `order` is any topological order. */
static void settle_phases(ordo_build *build, const guint *order)
{
  const GArray *edges = build->result->edges;
  g_autofree guint *position = g_new0(guint, build->result->nodes->len + 1);
  for (guint i = 0; i < build->result->nodes->len; i++)
    position[order[i]] = i;
  for (guint i = 0; i < build->result->nodes->len; i++) {
    ordo_node *node = ordo_build_node(build, order[i]);
    for (guint k = 0; k < edges->len; k++) {
      const ordo_edge *edge = &g_array_index(edges, ordo_edge, k);
      if (edge->to == order[i] && position[edge->from] < i)
        node->phase = MAX(node->phase, ordo_build_node(build, edge->from)->phase);
    }
    node->phase = MIN(node->phase, (uint32_t)ORDO_PHASE_PRE_DISPATCH);
  }
}

/* Puts nodes in order and makes the edges follow. */
static void rearrange(ordo_build *build, const guint *order)
{
  GArray *old = build->result->nodes;
  GArray *nodes = g_array_sized_new(FALSE, FALSE, sizeof(ordo_node), old->len);
  g_autofree guint *position = g_new0(guint, old->len + 1);
  for (guint i = 0; i < old->len; i++) {
    position[order[i]] = i;
    g_array_append_val(nodes, g_array_index(old, ordo_node, order[i]));
  }
  for (guint i = 0; i < build->result->edges->len; i++) {
    ordo_edge *edge = &g_array_index(build->result->edges, ordo_edge, i);
    edge->from = position[edge->from];
    edge->to = position[edge->to];
  }
  g_array_set_clear_func(nodes, clear_node);
  g_array_set_clear_func(old, NULL);
  g_array_unref(old);
  build->result->nodes = nodes;
}

/* ---- cycles ---- */

/* "a > b > a", and the origins of the edges joined with "; ". */
static char *describe_cycle(const ordo_build *build, const GArray *cycle, char **origins)
{
  GString *text = g_string_new(NULL), *where = g_string_new(NULL);
  for (guint i = 0; i < cycle->len; i++) {
    const ordo_edge *edge = &g_array_index(build->result->edges, ordo_edge, g_array_index(cycle, guint, i));
    g_autofree char *label = ordo_edge_label(edge);
    g_string_append_printf(text, "%s > ", ordo_build_node(build, edge->from)->id);
    g_string_append_printf(where, "%s%s", i ? "; " : "", label);
  }
  const ordo_edge *first = &g_array_index(build->result->edges, ordo_edge, g_array_index(cycle, guint, 0));
  g_string_append(text, ordo_build_node(build, first->from)->id);
  *origins = g_string_free(where, FALSE);
  return g_string_free(text, FALSE);
}

/* One finding for each group of nodes that are on cycles together; the shortest cycle of all comes first and is kept. */
static void report_cycles(ordo_build *build, const ordo_graph *graph)
{
  g_autofree guint8 *reported = g_new0(guint8, graph->n + 1);
  GArray *cycle = NULL;
  while ((cycle = ordo_graph_shortest_cycle(graph, reported)) != NULL) {
    g_autofree char *origins = NULL;
    g_autofree char *text = describe_cycle(build, cycle, &origins);
    const ordo_edge *first = &g_array_index(build->result->edges, ordo_edge, g_array_index(cycle, guint, 0));
    ordo_build_find(build, "E-PLAN-CYCLE", origins, "ordo why-not shows each constraint and the single changes that help",
                    "no order satisfies these %u constraints: %s", cycle->len, text);
    ordo_graph_mark_component(graph, first->from, reported);
    if (build->result->cycle->len == 0)
      g_array_append_vals(build->result->cycle, cycle->data, cycle->len);
    g_array_unref(cycle);
  }
}

static void solve(ordo_build *build)
{
  guint n = build->result->nodes->len;
  g_autofree const char **ids = g_new0(const char *, n + 1);
  g_autofree guint *order = g_new0(guint, n + 1);
  for (guint i = 0; i < n; i++)
    ids[i] = ordo_build_node(build, i)->id;
  g_autoptr(ordo_graph) graph = ordo_graph_new(n, build->result->edges, ids);
  if (!ordo_graph_order(graph, compare_nodes, build, order)) {
    report_cycles(build, graph);
    return;
  }
  settle_phases(build, order);
  if (build->result->findings->len == 0 && ordo_graph_order(graph, compare_nodes, build, order)) {
    rearrange(build, order);
    build->result->legal = TRUE;
  }
}

ordo_resolution *ordo_resolve_without(const ordo_resolve_input *input, guint64 off, gboolean quick)
{
  ordo_build build = {.input = input, .off = off, .result = resolution_new()};
  build.sorted = g_new0(guint, input->n_decls + 1);
  for (guint i = 0; i < input->n_decls; i++)
    build.sorted[i] = i;
  g_qsort_with_data(build.sorted, (gint)input->n_decls, sizeof(guint), compare_decls, (gpointer)input);
  build.edge_by_pair = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
  ordo_build_add_nodes(&build);
  ordo_build_add_rules(&build);
  ordo_build_add_hard_lines(&build);
  ordo_build_add_soft_lines(&build);
  ordo_build_check(&build);
  solve(&build);
  if (build.result->legal)
    ordo_build_add_events(&build);
  else if (!quick)
    ordo_build_try_fixes(&build);
  g_hash_table_unref(build.edge_by_pair);
  g_free(build.sorted);
  return build.result;
}

ordo_resolution *ordo_resolve(const ordo_resolve_input *input)
{
  return ordo_resolve_without(input, 0, FALSE);
}
