/* events.c - the order inside a training step (docs/ordering.md, "Inside a training step"), by the same solver as the set-up.
 *
 * An event that nobody provides does not exist: no unscaling without a scaler, no reduction without a reducer. The one rule beyond the
 * default order is that strategies which replaced leaves reduce first and those that watch their shards afterwards; the other way round a
 * replica group would average gradients that are not complete yet.
 */
#include "graph.h"
#include "rules.h"

#include <string.h>

typedef struct event_place {
  uint32_t event;
  int provider;
  int rank; /* position in the chain; reductions of observers stand half a place later */
  int axis;
  char *id;
} event_place;

static void clear_place(gpointer data)
{
  g_free(((event_place *)data)->id);
}

static void add_place(const ordo_build *build, GArray *places, uint32_t event, int provider)
{
  const ordo_decl *decl = provider >= 0 ? build->input->decls[provider] : NULL;
  const char *who = decl ? decl->id : provider == ORDO_PROVIDER_HOST ? "host" : "embedder";
  event_place place = {.event = event, .provider = provider, .rank = 2 * (int)event, .axis = decl ? decl->axis : -1};
  if (event == ORDO_EVENT_REDUCE && decl && !decl->replaces)
    place.rank++;
  place.id = g_strdup_printf("%s(%s)", ordo_event_name(event), who);
  g_array_append_val(places, place);
}

/* Masters or a scaler exist: the plugin's evaluated steps include a wrap of the optimizer, alone or in the joint call. */
static gboolean takes_part(const ordo_build *build, const ordo_decl *decl)
{
  return ordo_decl_has_step(decl, ORDO_STEP_WRAP_OPTIMIZER) || ordo_decl_has_step(decl, ORDO_STEP_INITIALIZE) ||
         !ordo_build_on(build, ORDO_CLAUSE_EVENT_PRECISION);
}

static gboolean plugin_has_event(const ordo_build *build, const ordo_decl *decl, uint32_t event)
{
  switch (event) {
  case ORDO_EVENT_REDUCE:
    return decl->kind == ORDO_KIND_STRATEGY && decl->reduces;
  case ORDO_EVENT_POST_STEP:
    return (decl->events >> event) & 1u;
  case ORDO_EVENT_UNSCALE:
  case ORDO_EVENT_MASTERS_TO_MODEL:
    return decl->kind == ORDO_KIND_PRECISION && takes_part(build, decl);
  default:
    return FALSE;
  }
}

static gboolean some_precision_takes_part(const ordo_build *build)
{
  for (size_t i = 0; i < build->input->n_decls; i++) {
    if (plugin_has_event(build, build->input->decls[i], ORDO_EVENT_UNSCALE))
      return TRUE;
  }
  return FALSE;
}

static GArray *collect(const ordo_build *build)
{
  GArray *places = g_array_new(FALSE, FALSE, sizeof(event_place));
  g_array_set_clear_func(places, clear_place);
  for (uint32_t event = 0; event < ORDO_N_EVENTS; event++) {
    const char *provider = ordo_event_provider(event);
    if (strcmp(provider, "embedder") == 0)
      add_place(build, places, event, ORDO_PROVIDER_EMBEDDER);
    else if (strcmp(provider, "host") == 0 && (event != ORDO_EVENT_OVERFLOW_VOTE || some_precision_takes_part(build)))
      add_place(build, places, event, ORDO_PROVIDER_HOST);
    for (size_t i = 0; i < build->input->n_decls; i++) {
      if (plugin_has_event(build, build->input->decls[build->sorted[i]], event))
        add_place(build, places, event, (int)build->sorted[i]);
    }
  }
  return places;
}

static const event_place *place_at(const GArray *places, guint index)
{
  return &g_array_index(places, event_place, index);
}

/* Edges between neighbouring ranks are enough: the order of ranks is total. */
static GArray *draw_edges(const ordo_build *build, const GArray *places)
{
  GArray *edges = g_array_new(FALSE, FALSE, sizeof(ordo_edge));
  g_array_set_clear_func(edges, ordo_edge_clear);
  for (guint from = 0; from < places->len; from++) {
    for (guint to = 0; to < places->len; to++) {
      const event_place *a = place_at(places, from), *b = place_at(places, to);
      gboolean both_reduce = a->event == ORDO_EVENT_REDUCE && b->event == ORDO_EVENT_REDUCE;
      if (a->rank < b->rank && ordo_build_on(build, both_reduce ? ORDO_CLAUSE_EVENT_SHARDS : ORDO_CLAUSE_EVENT_CHAIN)) {
        ordo_edge edge = {.from = from,
                          .to = to,
                          .hard = TRUE,
                          .rule = g_strdup("inside a training step"),
                          .origin = g_strdup("ordering, inside a training step")};
        g_array_append_val(edges, edge);
      }
    }
  }
  return edges;
}

/* Without a rule to say otherwise: axis position, then id. The event's own place comes from edges alone. */
static gint compare_places(gconstpointer a, gconstpointer b, gpointer user)
{
  const event_place *x = place_at(user, GPOINTER_TO_UINT(a)), *y = place_at(user, GPOINTER_TO_UINT(b));
  if (x->axis != y->axis)
    return x->axis < y->axis ? -1 : 1;
  return strcmp(x->id, y->id);
}

static char *reason_of(const ordo_build *build, const GArray *places, const guint *order, guint position)
{
  const event_place *place = place_at(places, order[position]);
  const ordo_decl *decl = place->provider >= 0 ? build->input->decls[place->provider] : NULL;
  const char *before = NULL;
  for (guint i = 0; i < position; i++) {
    if (place_at(places, order[i])->rank < place->rank)
      before = place_at(places, order[i])->id;
  }
  if (place->event == ORDO_EVENT_REDUCE && decl && !before)
    return decl->replaces ? g_strdup_printf("it replaces leaves, so its gradients are reduced first [ordering, inside a training step; %s]",
                                            decl->reduces_origin)
                          : g_strdup_printf("it reduces gradients [%s]", decl->reduces_origin);
  if (place->event == ORDO_EVENT_REDUCE && decl)
    return g_strdup_printf("after %s: it reduces what the shards hold [ordering, inside a training step; %s]", before,
                           decl->reduces_origin);
  return before ? g_strdup_printf("after %s [ordering, inside a training step]", before) : g_strdup("first event after the last backward");
}

void ordo_build_add_events(ordo_build *build)
{
  gboolean trains = FALSE;
  for (uint32_t model = 0; model < build->input->n_models; model++)
    trains = trains || ordo_build_trains(build, model);
  if (!trains)
    return;
  g_autoptr(GArray) places = collect(build);
  g_autoptr(GArray) edges = draw_edges(build, places);
  g_autofree const char **ids = g_new0(const char *, places->len + 1);
  g_autofree guint *order = g_new0(guint, places->len + 1);
  for (guint i = 0; i < places->len; i++)
    ids[i] = place_at(places, i)->id;
  g_autoptr(ordo_graph) graph = ordo_graph_new(places->len, edges, ids);
  if (!ordo_graph_order(graph, compare_places, places, order))
    return;
  for (guint i = 0; i < places->len; i++) {
    const event_place *place = place_at(places, order[i]);
    ordo_event_node event = {place->event, place->provider, place->rank, reason_of(build, places, order, i)};
    g_array_append_val(build->result->events, event);
  }
}
