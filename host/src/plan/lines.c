/* lines.c - rule 11: the before and after lines of manifests, as edges.
 *
 * Hard lines are added as they are and never give way. Soft lines are added afterwards in the order (provider id, line text), and one that
 * would close a cycle is left out and reported, so that a wish of one plugin can never make a session impossible. A line whose target is
 * not in the plan is reported too: a silent line would look like one that works.
 */
#include "graph.h"
#include "rules.h"

#include <string.h>

typedef struct placed_line {
  const ordo_decl *decl;
  const ordo_edge_line *line;
  int provider;
  uint32_t model; /* line applies to each model on its own */
} placed_line;

/* precision.initialize answers to the names of both halves; without an optimizer it is the conversion only. */
static gboolean joint_means(const ordo_build *build, const ordo_node *node, int step)
{
  if (node->step != ORDO_STEP_INITIALIZE || !ordo_build_on(build, ORDO_CLAUSE_X_NAMES))
    return FALSE;
  return step == ORDO_STEP_CONVERT_MODEL || (step == ORDO_STEP_WRAP_OPTIMIZER && ordo_build_trains(build, node->model));
}

static gboolean is_target(const ordo_build *build, const ordo_node *node, const ordo_edge_line *line)
{
  int step = ordo_step_by_name(line->target);
  const ordo_decl *decl = ordo_build_decl(build, node);
  if (step >= 0)
    return node->step == (uint32_t)step || joint_means(build, node, step);
  return decl && ordo_decl_provides(decl, line->target);
}

static gboolean in_model(const ordo_node *node, uint32_t model)
{
  return node->model == model || ordo_node_is_session_wide(node->step);
}

/* The plugin's own node that the line speaks of. load_sharded is the host's, on behalf of the strategy. */
static int own_node(const ordo_build *build, const placed_line *placed)
{
  for (guint i = 0; i < build->result->nodes->len; i++) {
    const ordo_node *node = ordo_build_node(build, i);
    gboolean own = node->provider == placed->provider || node->step == ORDO_STEP_LOAD_SHARDED;
    if (node->step == placed->line->step && own && node->model == placed->model)
      return (int)i;
  }
  return -1;
}

/* Nodes that the line names, without the plugin's own node itself. */
static GArray *targets(const ordo_build *build, const placed_line *placed, int own)
{
  GArray *found = g_array_new(FALSE, FALSE, sizeof(guint));
  for (guint i = 0; i < build->result->nodes->len; i++) {
    const ordo_node *node = ordo_build_node(build, i);
    if ((int)i != own && in_model(node, placed->model) && is_target(build, node, placed->line))
      g_array_append_val(found, i);
  }
  return found;
}

static void note(ordo_build *build, const placed_line *placed, const char *why)
{
  char *text = g_strdup_printf("%s (%s): %s", placed->line->text, placed->line->origin, why);
  if (g_ptr_array_find_with_equal_func(build->result->skipped, text, g_str_equal, NULL))
    g_free(text);
  else
    g_ptr_array_add(build->result->skipped, text);
}

static void note_missing(ordo_build *build, const placed_line *placed)
{
  const char *target = placed->line->target;
  g_autofree char *why = NULL;
  if (ordo_event_by_name(target) >= 0 || ordo_phase_by_name(target) >= 0)
    why = g_strdup_printf("holds anyway, every step of the plan runs before %s", target);
  else if (ordo_step_by_name(target) >= 0)
    why = g_strdup_printf("%s has no other node in this plan", target);
  else
    why = g_strdup_printf("nobody selected provides %s", target);
  note(build, placed, why);
}

static void add_edges(ordo_build *build, const placed_line *placed, guint own, const GArray *found)
{
  for (guint i = 0; i < found->len; i++) {
    guint target = g_array_index(found, guint, i);
    guint from = placed->line->before ? own : target, to = placed->line->before ? target : own;
    ordo_build_add_edge(build, from, to, placed->line->hard, placed->line->text, placed->line->origin);
  }
}

/* Would any edge of the line close a cycle with what is there, the line's own other edges included? */
static gboolean closes_cycle(const ordo_build *build, const placed_line *placed, guint own, const GArray *found)
{
  g_autofree const char **ids = g_new0(const char *, build->result->nodes->len + 1);
  for (guint i = 0; i < build->result->nodes->len; i++)
    ids[i] = ordo_build_node(build, i)->id;
  g_autoptr(ordo_graph) graph = ordo_graph_new(build->result->nodes->len, build->result->edges, ids);
  for (guint i = 0; i < found->len; i++) {
    guint target = g_array_index(found, guint, i);
    if (placed->line->before ? ordo_graph_reaches(graph, target, own) : ordo_graph_reaches(graph, own, target))
      return TRUE;
  }
  return FALSE;
}

static void apply(ordo_build *build, const placed_line *placed)
{
  int own = own_node(build, placed);
  if (own < 0)
    return; /* the step is not provided in this session, so there is nothing to place */
  g_autoptr(GArray) found = targets(build, placed, own);
  if (found->len == 0)
    note_missing(build, placed);
  else if (placed->line->hard || !closes_cycle(build, placed, (guint)own, found))
    add_edges(build, placed, (guint)own, found);
  else
    note(build, placed, "soft, left out because it would close a cycle");
}

static gint compare_lines(gconstpointer a, gconstpointer b)
{
  const placed_line *x = a, *y = b;
  int by_id = strcmp(x->decl->id, y->decl->id), by_text = strcmp(x->line->text, y->line->text);
  if (by_id != 0)
    return by_id;
  if (by_text != 0)
    return by_text;
  if (x->decl->axis != y->decl->axis)
    return x->decl->axis < y->decl->axis ? -1 : 1;
  if (x->model != y->model)
    return x->model < y->model ? -1 : 1;
  return strcmp(x->line->origin, y->line->origin);
}

static void add_lines(ordo_build *build, gboolean hard)
{
  g_autoptr(GArray) lines = g_array_new(FALSE, FALSE, sizeof(placed_line));
  for (size_t i = 0; i < build->input->n_decls; i++) {
    const ordo_decl *decl = build->input->decls[i];
    for (guint k = 0; k < decl->lines->len; k++) {
      for (uint32_t model = 0; model < build->input->n_models; model++) {
        placed_line placed = {decl, g_ptr_array_index(decl->lines, k), (int)i, model};
        if (placed.line->hard == hard && (decl->model_mask >> model) & 1u)
          g_array_append_val(lines, placed);
      }
    }
  }
  g_array_sort(lines, compare_lines);
  for (guint i = 0; i < lines->len; i++)
    apply(build, &g_array_index(lines, placed_line, i));
}

void ordo_build_add_hard_lines(ordo_build *build)
{
  if (ordo_build_on(build, ORDO_CLAUSE_11_HARD))
    add_lines(build, TRUE);
}

void ordo_build_add_soft_lines(ordo_build *build)
{
  if (ordo_build_on(build, ORDO_CLAUSE_11_SOFT))
    add_lines(build, FALSE);
}
