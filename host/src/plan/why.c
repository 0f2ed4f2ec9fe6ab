/* why.c - `why A B`: the chain of constraints that puts A before B, or the statement that nothing does.
 *
 * The answer is the shortest chain, each link with its origin. "Unordered; default order" is an answer too: it tells a plugin author that a
 * line in the manifest could change the order without contradicting anybody.
 */
#include "../context.h"
#include "graph.h"
#include "json.h"
#include "names.h"
#include "plan.h"
#include "rules.h"

#include <string.h>

static const char *node_id(const ordo_plan *plan, guint index)
{
  return g_array_index(plan->resolution->nodes, ordo_node, index).id;
}

/* ---- events inside a training step ---- */

static char *event_id(const ordo_plan *plan, guint index)
{
  const ordo_event_node *event = &g_array_index(plan->resolution->events, ordo_event_node, index);
  return g_strdup_printf("%s(%s)", ordo_event_name(event->event), ordo_plan_provider_name(plan, event->provider));
}

/* Events whose id is `name`, or whose event is if no provider is named. */
static GArray *find_events(const ordo_plan *plan, const char *name)
{
  GArray *found = g_array_new(FALSE, FALSE, sizeof(guint));
  for (guint i = 0; i < plan->resolution->events->len; i++) {
    g_autofree char *id = event_id(plan, i);
    if (strcmp(name, strchr(name, '(') ? id : ordo_event_name(g_array_index(plan->resolution->events, ordo_event_node, i).event)) == 0)
      g_array_append_val(found, i);
  }
  return found;
}

/* Nodes whose id is `name`, or whose step is if no provider is named. */
static GArray *find_nodes(const ordo_plan *plan, const char *name)
{
  GArray *found = g_array_new(FALSE, FALSE, sizeof(guint));
  for (guint i = 0; i < plan->resolution->nodes->len; i++) {
    const ordo_node *node = &g_array_index(plan->resolution->nodes, ordo_node, i);
    if (strcmp(name, strchr(name, '(') ? node->id : ordo_step_name(node->step)) == 0)
      g_array_append_val(found, i);
  }
  return found;
}

static ordo_status not_found(const ordo_plan *plan, const char *name)
{
  g_autoptr(GPtrArray) names = g_ptr_array_new();
  for (guint i = 0; i < plan->resolution->nodes->len; i++) {
    const ordo_node *node = &g_array_index(plan->resolution->nodes, ordo_node, i);
    g_ptr_array_add(names, strchr(name, '(') ? node->id : (gpointer)ordo_step_name(node->step));
  }
  for (guint i = 0; i < plan->events->len; i++)
    g_ptr_array_add(names, (gpointer)ordo_plan_event_at(plan, i)->name);
  g_ptr_array_add(names, NULL);
  const char *near = ordo_nearest_name(name, (const char *const *)names->pdata);
  g_autofree char *next =
      near ? g_strdup_printf("did you mean '%s'?", near) : g_strdup("ordo plan shows the steps and events of this plan");
  gboolean known = ordo_step_by_name(name) >= 0 || ordo_event_by_name(name) >= 0;
  return ordo_errors_push(plan->context->errors, ORDO_E_NOT_FOUND, "E-PLAN-STEP", name,
                          known ? "nobody provides this step in this session" : NULL,
                          known ? "ordo plan shows the steps and events of this plan" : next, "the plan has no step or event '%s'", name);
}

typedef struct answer {
  const ordo_plan *plan;
  const ordo_graph *graph;
  GString *out;    /* text form */
  ordo_json *json; /* JSON form */
} answer;

static void tell_text(const answer *a, guint from, guint to, const GArray *chain, gboolean backwards)
{
  if (!chain) {
    gboolean first = a->plan->resolution->legal && from > to;
    g_string_append_printf(a->out, "%s and %s are unordered; default order%s%s%s\n", node_id(a->plan, from), node_id(a->plan, to),
                           a->plan->resolution->legal ? " puts " : "",
                           a->plan->resolution->legal ? node_id(a->plan, first ? to : from) : "",
                           a->plan->resolution->legal ? " first" : "");
    return;
  }
  g_string_append_printf(a->out, "%s comes %s %s:\n", node_id(a->plan, from), backwards ? "after" : "before", node_id(a->plan, to));
  for (guint i = 0; i < chain->len; i++) {
    const ordo_edge *edge = &g_array_index(a->plan->resolution->edges, ordo_edge, g_array_index(chain, guint, i));
    g_autofree char *label = ordo_edge_label(edge);
    g_string_append_printf(a->out, "  %s before %s   [%s]\n", node_id(a->plan, edge->from), node_id(a->plan, edge->to), label);
  }
}

static void tell_json(const answer *a, guint from, guint to, const GArray *chain, gboolean backwards)
{
  ordo_json_open(a->json, NULL, '{');
  ordo_json_string(a->json, "a", node_id(a->plan, from));
  ordo_json_string(a->json, "b", node_id(a->plan, to));
  ordo_json_string(a->json, "relation", !chain ? "unordered" : backwards ? "after" : "before");
  ordo_json_open(a->json, "chain", '[');
  for (guint i = 0; chain && i < chain->len; i++) {
    const ordo_edge *edge = &g_array_index(a->plan->resolution->edges, ordo_edge, g_array_index(chain, guint, i));
    ordo_json_open(a->json, NULL, '{');
    ordo_json_string(a->json, "before", node_id(a->plan, edge->from));
    ordo_json_string(a->json, "after", node_id(a->plan, edge->to));
    ordo_json_string(a->json, "rule", edge->rule);
    ordo_json_string(a->json, "origin", edge->origin);
    ordo_json_close(a->json, '}');
  }
  ordo_json_close(a->json, ']');
  ordo_json_close(a->json, '}');
}

static void tell(const answer *a, guint from, guint to, const GArray *chain, gboolean backwards)
{
  if (a->json)
    tell_json(a, from, to, chain, backwards);
  else
    tell_text(a, from, to, chain, backwards);
}

/* In a conflict both directions may hold; then both are told. */
static void answer_pair(const answer *a, guint from, guint to)
{
  g_autoptr(GArray) forward = ordo_graph_chain(a->graph, from, to), backward = ordo_graph_chain(a->graph, to, from);
  if (forward || !backward)
    tell(a, from, to, forward, FALSE);
  if (backward)
    tell(a, from, to, backward, TRUE);
}

static void answer_all(const answer *a, const GArray *from, const GArray *to)
{
  for (guint i = 0; i < from->len; i++) {
    for (guint k = 0; k < to->len; k++) {
      if (g_array_index(from, guint, i) != g_array_index(to, guint, k))
        answer_pair(a, g_array_index(from, guint, i), g_array_index(to, guint, k));
    }
  }
}

/* One link: what is known about two events, or a step and an event, needs no chain. */
static void tell_link(const answer *a, const char *from, const char *to, const char *relation, const char *origin)
{
  const char *first = strcmp(relation, "after") == 0 ? to : from, *second = first == from ? to : from;
  gboolean ordered = strcmp(relation, "unordered") != 0;
  if (!a->json) {
    if (ordered)
      g_string_append_printf(a->out, "%s comes %s %s:\n  %s before %s   [%s]\n", from, relation, to, first, second, origin);
    else
      g_string_append_printf(a->out, "%s and %s are unordered; default order\n", from, to);
    return;
  }
  ordo_json_open(a->json, NULL, '{');
  ordo_json_string(a->json, "a", from);
  ordo_json_string(a->json, "b", to);
  ordo_json_string(a->json, "relation", relation);
  ordo_json_open(a->json, "chain", '[');
  if (ordered) {
    ordo_json_open(a->json, NULL, '{');
    ordo_json_string(a->json, "before", first);
    ordo_json_string(a->json, "after", second);
    ordo_json_string(a->json, "rule", "inside a training step");
    ordo_json_string(a->json, "origin", origin);
    ordo_json_close(a->json, '}');
  }
  ordo_json_close(a->json, ']');
  ordo_json_close(a->json, '}');
}

static void answer_events(const answer *a, const GArray *from, const GArray *to)
{
  const GArray *events = a->plan->resolution->events;
  for (guint i = 0; i < from->len; i++) {
    for (guint k = 0; k < to->len; k++) {
      guint x = g_array_index(from, guint, i), y = g_array_index(to, guint, k);
      int before = g_array_index(events, ordo_event_node, x).rank, after = g_array_index(events, ordo_event_node, y).rank;
      g_autofree char *x_id = event_id(a->plan, x), *y_id = event_id(a->plan, y);
      if (x != y)
        tell_link(a, x_id, y_id, before < after ? "before" : before > after ? "after" : "unordered", "ordering, inside a training step");
    }
  }
}

/* Every node of the plan stands in a phase before dispatch, and events are what dispatch consists of. */
static void answer_mixed(const answer *a, const GArray *nodes, const GArray *events, gboolean swapped)
{
  for (guint i = 0; i < nodes->len; i++) {
    for (guint k = 0; k < events->len; k++) {
      g_autofree char *event = event_id(a->plan, g_array_index(events, guint, k));
      const char *node = node_id(a->plan, g_array_index(nodes, guint, i));
      tell_link(a, swapped ? event : node, swapped ? node : event, swapped ? "after" : "before",
                "ordering rule 1: set-up ends before the first step");
    }
  }
}

typedef struct asked {
  GArray *nodes, *events; /* those that a name means; a name means the one or the other */
} asked;

static void answer_asked(const answer *a, const asked *from, const asked *to)
{
  answer_all(a, from->nodes, to->nodes);
  answer_events(a, from->events, to->events);
  answer_mixed(a, from->nodes, to->events, FALSE);
  answer_mixed(a, to->nodes, from->events, TRUE);
}

ordo_status ordo_plan_why(const ordo_plan *plan, const char *a, const char *b, uint32_t form, char **text)
{
  if (!plan || !a || !b || !text)
    return ORDO_E_INVALID;
  ordo_errors_clear(plan->context->errors);
  g_autoptr(GArray) from = find_nodes(plan, a), to = find_nodes(plan, b);
  g_autoptr(GArray) from_events = find_events(plan, a), to_events = find_events(plan, b);
  const asked first = {from, from_events}, second = {to, to_events};
  if (from->len + from_events->len == 0)
    not_found(plan, a);
  if (to->len + to_events->len == 0)
    not_found(plan, b);
  if (from->len + from_events->len == 0 || to->len + to_events->len == 0)
    return ORDO_E_NOT_FOUND;
  guint n = plan->resolution->nodes->len;
  g_autofree const char **ids = g_new0(const char *, n + 1);
  for (guint i = 0; i < n; i++)
    ids[i] = node_id(plan, i);
  g_autoptr(ordo_graph) graph = ordo_graph_new(n, plan->resolution->edges, ids);
  if (form == ORDO_RENDER_JSON) {
    ordo_json json;
    answer all = {plan, graph, NULL, &json};
    ordo_json_begin(&json);
    ordo_json_open(&json, NULL, '[');
    answer_asked(&all, &first, &second);
    ordo_json_close(&json, ']');
    *text = ordo_json_end(&json);
    return ORDO_OK;
  }
  answer all = {plan, graph, g_string_new(NULL), NULL};
  answer_asked(&all, &first, &second);
  if (all.out->len == 0)
    g_string_append_printf(all.out, "%s is one step; it comes neither before nor after itself\n", a);
  *text = g_string_free(all.out, FALSE);
  return ORDO_OK;
}
