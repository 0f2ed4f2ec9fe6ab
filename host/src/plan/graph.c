/* graph.c - topological order, chains and shortest cycles over small graphs.
 *
 * Not a general graph library: graphs of a plan have tens of nodes, so every function favours being obviously right. The idea is that one
 * breadth-first distance table answers all three questions: who reaches whom, by which shortest chain, and which cycle is shortest. Guards
 * against reports that change from run to run: every tie is broken by the full ids, never by the order in which edges were added.
 */
#include "graph.h"

#include <string.h>

#define FAR G_MAXUINT

static const ordo_edge *edge_at(const ordo_graph *graph, guint index)
{
  return &g_array_index(graph->edges, ordo_edge, index);
}

ordo_graph *ordo_graph_new(guint n, const GArray *edges, const char *const *ids)
{
  ordo_graph *graph = g_new0(ordo_graph, 1);
  graph->n = n;
  graph->edges = edges;
  graph->ids = ids;
  graph->start = g_new0(guint, n + 2);
  graph->out = g_new0(guint, edges->len + 1);
  for (guint i = 0; i < edges->len; i++)
    graph->start[edge_at(graph, i)->from + 1]++;
  for (guint i = 0; i < n; i++)
    graph->start[i + 1] += graph->start[i];
  g_autofree guint *fill = g_memdup2(graph->start, (n + 1) * sizeof(guint));
  for (guint i = 0; i < edges->len; i++)
    graph->out[fill[edge_at(graph, i)->from]++] = i;
  return graph;
}

void ordo_graph_free(ordo_graph *graph)
{
  if (!graph)
    return;
  g_free(graph->start);
  g_free(graph->out);
  g_free(graph);
}

gboolean ordo_graph_order(const ordo_graph *graph, GCompareDataFunc compare, gpointer user, guint *order)
{
  g_autofree guint *waits = g_new0(guint, graph->n + 1);
  g_autofree guint8 *taken = g_new0(guint8, graph->n + 1);
  for (guint i = 0; i < graph->edges->len; i++)
    waits[edge_at(graph, i)->to]++;
  for (guint done = 0; done < graph->n; done++) {
    guint best = FAR;
    for (guint i = 0; i < graph->n; i++) {
      if (!taken[i] && waits[i] == 0 && (best == FAR || compare(GUINT_TO_POINTER(i), GUINT_TO_POINTER(best), user) < 0))
        best = i;
    }
    if (best == FAR)
      return FALSE;
    taken[best] = 1;
    order[done] = best;
    for (guint k = graph->start[best]; k < graph->start[best + 1]; k++)
      waits[edge_at(graph, graph->out[k])->to]--;
  }
  return TRUE;
}

/* Edges needed from each node to `to`; the target itself counts from its successors, so that a cycle has a length. Nodes for which `usable`
 * is zero are walls. */
static guint *distances_to(const ordo_graph *graph, guint to, const guint8 *usable)
{
  guint *distance = g_new(guint, graph->n + 1);
  gboolean changed = TRUE;
  for (guint i = 0; i < graph->n; i++)
    distance[i] = FAR;
  for (guint length = 1; changed && length <= graph->n; length++) {
    changed = FALSE;
    for (guint i = 0; i < graph->edges->len; i++) {
      const ordo_edge *edge = edge_at(graph, i);
      gboolean open = !usable || (usable[edge->from] && usable[edge->to]);
      gboolean hit = length == 1 ? edge->to == to : edge->to != to && distance[edge->to] == length - 1;
      if (open && hit && distance[edge->from] == FAR) {
        distance[edge->from] = length;
        changed = TRUE;
      }
    }
  }
  return distance;
}

/* Walks downhill in `distance`, at each node to the smallest id. */
static GArray *descend(const ordo_graph *graph, guint from, guint to, const guint *distance, const guint8 *usable)
{
  GArray *chain = g_array_new(FALSE, FALSE, sizeof(guint));
  guint at = from;
  for (guint left = distance[from]; left > 0; left--) {
    guint best = FAR;
    for (guint k = graph->start[at]; k < graph->start[at + 1]; k++) {
      const ordo_edge *edge = edge_at(graph, graph->out[k]);
      gboolean downhill = left == 1 ? edge->to == to : edge->to != to && distance[edge->to] == left - 1;
      if (downhill && (!usable || usable[edge->to]) &&
          (best == FAR || strcmp(graph->ids[edge->to], graph->ids[edge_at(graph, best)->to]) < 0))
        best = graph->out[k];
    }
    g_array_append_val(chain, best);
    at = edge_at(graph, best)->to;
  }
  return chain;
}

gboolean ordo_graph_reaches(const ordo_graph *graph, guint from, guint to)
{
  g_autofree guint *distance = distances_to(graph, to, NULL);
  return distance[from] != FAR;
}

GArray *ordo_graph_chain(const ordo_graph *graph, guint from, guint to)
{
  g_autofree guint *distance = distances_to(graph, to, NULL);
  return distance[from] == FAR ? NULL : descend(graph, from, to, distance, NULL);
}

GArray *ordo_graph_shortest_cycle(const ordo_graph *graph, const guint8 *skip)
{
  g_autofree guint8 *usable = g_new0(guint8, graph->n + 1);
  GArray *best = NULL;
  guint best_start = 0;
  for (guint s = 0; s < graph->n; s++) {
    if (skip && skip[s])
      continue;
    /* only cycles in which s has the smallest id; every cycle has exactly one such node */
    for (guint i = 0; i < graph->n; i++)
      usable[i] = !(skip && skip[i]) && strcmp(graph->ids[i], graph->ids[s]) >= 0;
    g_autofree guint *distance = distances_to(graph, s, usable);
    if (distance[s] == FAR || (best && distance[s] > best->len))
      continue;
    if (best && distance[s] == best->len && strcmp(graph->ids[s], graph->ids[best_start]) > 0)
      continue;
    g_clear_pointer(&best, g_array_unref);
    best = descend(graph, s, s, distance, usable);
    best_start = s;
  }
  return best;
}

void ordo_graph_mark_component(const ordo_graph *graph, guint node, guint8 *mark)
{
  mark[node] = 1;
  g_autofree guint *to_node = distances_to(graph, node, NULL);
  for (guint i = 0; i < graph->n; i++) {
    if (!mark[i] && to_node[i] != FAR && ordo_graph_reaches(graph, node, i))
      mark[i] = 1;
  }
}
