/* test_graph.c - the solver against a search over all permutations, and its promises on random graphs. */
#include "check.h"
#include "plan/graph.h"

#define MAX_NODES 12

typedef struct random_graph {
  guint n;
  GArray *edges;
  char names[MAX_NODES][8];
  const char *ids[MAX_NODES];
  guint key[MAX_NODES]; /* what the ready set is sorted by */
} random_graph;

static random_graph *random_graph_new(GRand *random, guint max_nodes, double density)
{
  random_graph *g = g_new0(random_graph, 1);
  guint8 used[26] = {0};
  g->n = (guint)g_rand_int_range(random, 2, (gint32)max_nodes + 1);
  g->edges = g_array_new(FALSE, TRUE, sizeof(ordo_edge));
  for (guint i = 0; i < g->n; i++) {
    guint letter;
    do {
      letter = (guint)g_rand_int_range(random, 0, 26);
    } while (used[letter]);
    used[letter] = 1;
    g_snprintf(g->names[i], sizeof g->names[i], "%c", 'a' + (char)letter);
    g->ids[i] = g->names[i];
    g->key[i] = letter; /* unique, unrelated to the index */
  }
  for (guint from = 0; from < g->n; from++) {
    for (guint to = 0; to < g->n; to++) {
      ordo_edge edge = {.from = from, .to = to, .hard = TRUE};
      if (from != to && g_rand_double(random) < density)
        g_array_append_val(g->edges, edge);
    }
  }
  return g;
}

static void random_graph_free(random_graph *g)
{
  g_array_unref(g->edges);
  g_free(g);
}

static gint compare_keys(gconstpointer a, gconstpointer b, gpointer user)
{
  const random_graph *g = user;
  guint x = g->key[GPOINTER_TO_UINT(a)], y = g->key[GPOINTER_TO_UINT(b)];
  return x < y ? -1 : x > y;
}

static const ordo_edge *edge_at(const random_graph *g, guint i)
{
  return &g_array_index(g->edges, ordo_edge, i);
}

static gboolean satisfies(const random_graph *g, const guint *order)
{
  guint position[MAX_NODES];
  for (guint i = 0; i < g->n; i++)
    position[order[i]] = i;
  for (guint i = 0; i < g->edges->len; i++) {
    if (position[edge_at(g, i)->from] >= position[edge_at(g, i)->to])
      return FALSE;
  }
  return TRUE;
}

/* Smallest list of keys first: the order that Kahn's algorithm with a sorted ready set promises. */
static void search(const random_graph *g, guint *prefix, guint n, guint8 *used, guint *best, gboolean *found)
{
  if (n == g->n) {
    if (!satisfies(g, prefix))
      return;
    for (guint i = 0; *found && i < g->n; i++) {
      if (g->key[prefix[i]] != g->key[best[i]]) {
        if (g->key[prefix[i]] > g->key[best[i]])
          return;
        break;
      }
    }
    memcpy(best, prefix, g->n * sizeof *best);
    *found = TRUE;
    return;
  }
  for (guint i = 0; i < g->n; i++) {
    if (used[i])
      continue;
    used[i] = 1;
    prefix[n] = i;
    search(g, prefix, n + 1, used, best, found);
    used[i] = 0;
  }
}

static void test_against_all_permutations(void **state)
{
  GRand *random = g_rand_new_with_seed(7);
  int n_legal = 0, n_cyclic = 0;
  (void)state;
  for (int round = 0; round < 400; round++) {
    random_graph *g = random_graph_new(random, 7, 0.05 + 0.25 * g_rand_double(random));
    guint order[MAX_NODES], best[MAX_NODES] = {0}, prefix[MAX_NODES];
    guint8 used[MAX_NODES] = {0};
    gboolean found = FALSE;
    ordo_graph *graph = ordo_graph_new(g->n, g->edges, g->ids);
    gboolean legal = ordo_graph_order(graph, compare_keys, g, order);
    search(g, prefix, 0, used, best, &found);
    assert_int_equal(legal, found);
    if (legal)
      assert_memory_equal(order, best, g->n * sizeof *order);
    n_legal += legal;
    n_cyclic += !legal;
    ordo_graph_free(graph);
    random_graph_free(g);
  }
  assert_true(n_legal > 50 && n_cyclic > 50); /* both outcomes were exercised */
  g_rand_free(random);
}

/* All simple cycles by depth-first search, from their smallest id; keeps the best by (length, list of ids). */
typedef struct best_cycle {
  guint n;
  guint nodes[MAX_NODES];
} best_cycle;

static gboolean better(const random_graph *g, const guint *nodes, guint n, const best_cycle *best)
{
  if (best->n == 0 || n != best->n)
    return best->n == 0 || n < best->n;
  for (guint i = 0; i < n; i++) {
    int order = strcmp(g->ids[nodes[i]], g->ids[best->nodes[i]]);
    if (order != 0)
      return order < 0;
  }
  return FALSE;
}

static void walk_cycles(const random_graph *g, guint *nodes, guint n, guint8 *on_path, best_cycle *best)
{
  for (guint i = 0; i < g->edges->len; i++) {
    const ordo_edge *edge = edge_at(g, i);
    if (edge->from != nodes[n - 1])
      continue;
    if (edge->to == nodes[0] && better(g, nodes, n, best)) {
      best->n = n;
      memcpy(best->nodes, nodes, n * sizeof *nodes);
    } else if (!on_path[edge->to] && strcmp(g->ids[edge->to], g->ids[nodes[0]]) > 0) {
      on_path[edge->to] = 1;
      nodes[n] = edge->to;
      walk_cycles(g, nodes, n + 1, on_path, best);
      on_path[edge->to] = 0;
    }
  }
}

static void test_shortest_cycle(void **state)
{
  GRand *random = g_rand_new_with_seed(8);
  int n_cyclic = 0;
  (void)state;
  for (int round = 0; round < 2000; round++) {
    random_graph *g = random_graph_new(random, 9, 0.1 + 0.15 * g_rand_double(random));
    best_cycle best = {0};
    for (guint s = 0; s < g->n; s++) {
      guint nodes[MAX_NODES] = {s};
      guint8 on_path[MAX_NODES] = {0};
      on_path[s] = 1;
      walk_cycles(g, nodes, 1, on_path, &best);
    }
    ordo_graph *graph = ordo_graph_new(g->n, g->edges, g->ids);
    GArray *cycle = ordo_graph_shortest_cycle(graph, NULL);
    assert_int_equal(cycle == NULL, best.n == 0);
    if (cycle) {
      assert_int_equal(cycle->len, best.n);
      for (guint i = 0; i < cycle->len; i++) {
        const ordo_edge *edge = edge_at(g, g_array_index(cycle, guint, i));
        assert_int_equal(edge->from, best.nodes[i]);
        assert_int_equal(edge->to, best.nodes[(i + 1) % best.n]);
      }
      g_array_unref(cycle);
      n_cyclic++;
    }
    ordo_graph_free(graph);
    random_graph_free(g);
  }
  assert_in_range(n_cyclic, 200, 1900);
  g_rand_free(random);
}

/* The order satisfies every edge and never depends on the order in which edges were added. */
static void test_random_orders(void **state)
{
  GRand *random = g_rand_new_with_seed(9);
  int n_legal = 0;
  (void)state;
  for (int round = 0; round < 2000; round++) {
    random_graph *g = random_graph_new(random, MAX_NODES, 0.12 * g_rand_double(random));
    guint order[MAX_NODES], again[MAX_NODES];
    ordo_graph *graph = ordo_graph_new(g->n, g->edges, g->ids);
    gboolean legal = ordo_graph_order(graph, compare_keys, g, order);
    ordo_graph_free(graph);
    for (guint i = g->edges->len; i > 1; i--) {
      guint other = (guint)g_rand_int_range(random, 0, (gint32)i);
      ordo_edge swap = *edge_at(g, i - 1);
      g_array_index(g->edges, ordo_edge, i - 1) = *edge_at(g, other);
      g_array_index(g->edges, ordo_edge, other) = swap;
    }
    graph = ordo_graph_new(g->n, g->edges, g->ids);
    assert_int_equal(ordo_graph_order(graph, compare_keys, g, again), legal);
    if (legal) {
      assert_true(satisfies(g, order));
      assert_memory_equal(order, again, g->n * sizeof *order);
      n_legal++;
    }
    ordo_graph_free(graph);
    random_graph_free(g);
  }
  assert_in_range(n_legal, 200, 1999);
  g_rand_free(random);
}

/* A chain is a real one, is shortest, and exists exactly where one node reaches the other. */
static void test_chains(void **state)
{
  GRand *random = g_rand_new_with_seed(10);
  (void)state;
  for (int round = 0; round < 500; round++) {
    random_graph *g = random_graph_new(random, 8, 0.2);
    ordo_graph *graph = ordo_graph_new(g->n, g->edges, g->ids);
    guint distance[MAX_NODES][MAX_NODES];
    for (guint i = 0; i < g->n; i++) {
      for (guint k = 0; k < g->n; k++)
        distance[i][k] = 1000;
    }
    for (guint i = 0; i < g->edges->len; i++)
      distance[edge_at(g, i)->from][edge_at(g, i)->to] = 1;
    for (guint m = 0; m < g->n; m++) {
      for (guint i = 0; i < g->n; i++) {
        for (guint k = 0; k < g->n; k++)
          distance[i][k] = MIN(distance[i][k], distance[i][m] + distance[m][k]);
      }
    }
    for (guint i = 0; i < g->n; i++) {
      for (guint k = 0; k < g->n; k++) {
        GArray *chain = ordo_graph_chain(graph, i, k);
        assert_int_equal(chain != NULL, distance[i][k] < 1000);
        assert_int_equal(ordo_graph_reaches(graph, i, k), distance[i][k] < 1000);
        if (!chain)
          continue;
        assert_int_equal(chain->len, distance[i][k]);
        guint at = i;
        for (guint e = 0; e < chain->len; e++) {
          assert_int_equal(edge_at(g, g_array_index(chain, guint, e))->from, at);
          at = edge_at(g, g_array_index(chain, guint, e))->to;
        }
        assert_int_equal(at, k);
        g_array_unref(chain);
      }
    }
    ordo_graph_free(graph);
    random_graph_free(g);
  }
  g_rand_free(random);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_against_all_permutations),
      cmocka_unit_test(test_shortest_cycle),
      cmocka_unit_test(test_random_orders),
      cmocka_unit_test(test_chains),
  };
  return cmocka_run_group_tests_name("graph", tests, NULL, NULL);
}
