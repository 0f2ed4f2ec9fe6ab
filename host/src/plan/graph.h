/* graph.h - the solver: nodes and edges in; an order, a path, or the shortest cycle out (private).
 *
 * Knows nothing of steps. Nodes are 0 .. n-1 and have a full id that breaks every tie, so results depend on the set of edges only. */
#ifndef ORDO_PRIVATE_GRAPH_H
#define ORDO_PRIVATE_GRAPH_H

#include "resolve.h"

typedef struct ordo_graph {
  guint n;
  const GArray *edges;    /* ordo_edge */
  const char *const *ids; /* full node ids, unique */
  guint *start, *out;     /* edges leaving node i: out[start[i]] .. out[start[i + 1] - 1] */
} ordo_graph;

/* `edges` and `ids` must outlive the graph. */
ordo_graph *ordo_graph_new(guint n, const GArray *edges, const char *const *ids);
void ordo_graph_free(ordo_graph *graph);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ordo_graph, ordo_graph_free)

/* Kahn's algorithm; of all ready nodes the one that `compare` puts first is taken, which makes the result the smallest order under
 * `compare`. Fills `order` with n nodes; FALSE if there is a cycle. `compare` gets node indices (GPOINTER_TO_UINT). */
gboolean ordo_graph_order(const ordo_graph *graph, GCompareDataFunc compare, gpointer user, guint *order);
/* TRUE if a chain of edges leads from `from` to `to` (also from a node on a cycle to itself). */
gboolean ordo_graph_reaches(const ordo_graph *graph, guint from, guint to);
/* Shortest chain as edge indices, the one with the smallest list of ids among equally short ones; null if there is none. */
GArray *ordo_graph_chain(const ordo_graph *graph, guint from, guint to);
/* Shortest cycle as edge indices, printed from its smallest id; among equally short ones the one with the smallest list of ids. Nodes with
 * a nonzero mark in `skip` (may be null) are ignored. Null if there is none. */
GArray *ordo_graph_shortest_cycle(const ordo_graph *graph, const guint8 *skip);
/* Sets mark[i] for every node that shares a cycle with `node`. */
void ordo_graph_mark_component(const ordo_graph *graph, guint node, guint8 *mark);

#endif
