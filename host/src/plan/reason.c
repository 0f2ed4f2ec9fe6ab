/* reason.c - why each row of a plan stands where it does.
 *
 * The reason of a node is the constraint that holds it latest: the last of its predecessors, with the origin of that constraint. What is
 * not held by a constraint follows from the default order, and the text says so, because a reader must be able to tell a rule from a habit.
 * A node that was moved to a later phase names what moved it.
 */
#include "names.h"
#include "plan.h"
#include "rules.h"

#include <string.h>

const char *ordo_plan_provider_name(const ordo_plan *plan, int provider)
{
  if (provider < 0)
    return provider == ORDO_PROVIDER_HOST ? "host" : "embedder";
  return g_array_index(plan->providers, ordo_plan_provider, provider).decl->id;
}

gboolean ordo_plan_axis_of(const ordo_plan *plan, int provider, const ordo_plan_axis **axis)
{
  int index = provider < 0 ? -1 : g_array_index(plan->providers, ordo_plan_provider, provider).axis;
  *axis = index < 0 ? NULL : &g_array_index(plan->axes, ordo_plan_axis, index);
  return *axis != NULL;
}

static const ordo_node *node_at(const ordo_plan *plan, guint index)
{
  return &g_array_index(plan->resolution->nodes, ordo_node, index);
}

static const ordo_edge *edge_at(const ordo_plan *plan, guint index)
{
  return &g_array_index(plan->resolution->edges, ordo_edge, index);
}

/* The edge into `index` whose source stands last in the order; null if there is none. */
static const ordo_edge *tightest(const ordo_plan *plan, guint index)
{
  const ordo_edge *best = NULL;
  for (guint i = 0; i < plan->resolution->edges->len; i++) {
    const ordo_edge *edge = edge_at(plan, i);
    if (edge->to == index && (!best || edge->from > best->from))
      best = edge;
  }
  return best;
}

/* What carried the node into a later phase than its own: its last predecessor of that phase. */
static const ordo_edge *mover(const ordo_plan *plan, guint index)
{
  const ordo_node *node = node_at(plan, index);
  const ordo_edge *best = NULL;
  for (guint i = 0; node->phase != node->default_phase && i < plan->resolution->edges->len; i++) {
    const ordo_edge *edge = edge_at(plan, i);
    if (edge->to == index && node_at(plan, edge->from)->phase == node->phase && (!best || edge->from > best->from))
      best = edge;
  }
  return best;
}

static char *describe(const ordo_plan *plan, const ordo_edge *edge)
{
  g_autofree char *label = ordo_edge_label(edge);
  return g_strdup_printf("after %s [%s]", node_at(plan, edge->from)->id, label);
}

static char *reason_of(const ordo_plan *plan, guint index)
{
  const ordo_edge *edge = tightest(plan, index), *moved = mover(plan, index);
  GString *text = g_string_new(NULL);
  if (!edge) {
    g_string_append(text, "nothing has to come before it");
  } else {
    g_autofree char *after = describe(plan, edge);
    g_string_append(text, after);
    if (edge->from + 1 < index)
      g_string_append(text, ", then default order");
  }
  if (moved) {
    g_autofree char *by = describe(plan, moved);
    g_string_append_printf(text, "; moved from %s%s%s", ordo_phase_name(node_at(plan, index)->default_phase),
                           moved == edge ? " by that" : ": ", moved == edge ? "" : by);
  }
  return g_string_free(text, FALSE);
}

char *ordo_plan_all_reasons(const ordo_plan *plan, guint index)
{
  g_autoptr(GPtrArray) parts = g_ptr_array_new_with_free_func(g_free);
  for (guint from = 0; from < plan->resolution->nodes->len; from++) {
    for (guint i = 0; i < plan->resolution->edges->len; i++) {
      const ordo_edge *edge = edge_at(plan, i);
      if (edge->to == index && edge->from == from)
        g_ptr_array_add(parts, describe(plan, edge));
    }
  }
  g_ptr_array_add(parts, NULL);
  return g_strjoinv("\n", (char **)parts->pdata);
}

void ordo_plan_tell_reasons(ordo_plan *plan)
{
  for (guint i = 0; i < plan->resolution->nodes->len; i++) {
    const ordo_node *node = node_at(plan, i);
    g_autofree char *reason = reason_of(plan, i);
    ordo_plan_node row = {
        .struct_size = sizeof row,
        .step = node->step,
        .phase = node->phase,
        .default_phase = node->default_phase,
        .model = node->model,
        .name = ordo_step_name(node->step),
        .provider = ordo_plan_provider_name(plan, node->provider),
        .reason = g_string_chunk_insert(plan->strings, reason),
    };
    g_array_append_val(plan->nodes, row);
  }
  for (guint i = 0; i < plan->resolution->events->len; i++) {
    const ordo_event_node *event = &g_array_index(plan->resolution->events, ordo_event_node, i);
    ordo_plan_event row = {
        .struct_size = sizeof row,
        .event = event->event,
        .name = ordo_event_name(event->event),
        .provider = ordo_plan_provider_name(plan, event->provider),
        .reason = g_string_chunk_insert(plan->strings, event->reason),
    };
    g_array_append_val(plan->events, row);
  }
}
