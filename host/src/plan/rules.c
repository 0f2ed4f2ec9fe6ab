/* rules.c - rules 1 to 9 and the flags of docs/ordering.md, as edges.
 *
 * Each clause is one line of a table: from which kind of node to which, under which name it is printed, and a condition where the words
 * "but" or "except" stand in the text. No plugin is named and no pair of plugins is treated specially: everything follows from what a node
 * is and what its provider declared. Guards against the failure that this project exists for, an order that is right for the pairs somebody
 * thought of.
 */
#include "rules.h"

#include <string.h>

#define RULE_OF_CLAUSE(C, RULE, WHAT) RULE,
#define WHAT_OF_CLAUSE(C, RULE, WHAT) WHAT,
static const char *const clause_rules[] = {ORDO_CLAUSE_TABLE(RULE_OF_CLAUSE)};
static const char *const clause_whats[] = {ORDO_CLAUSE_TABLE(WHAT_OF_CLAUSE)};
G_STATIC_ASSERT(ORDO_N_CLAUSES <= 64);

const char *ordo_clause_rule(guint clause)
{
  return clause_rules[clause];
}

const char *ordo_clause_what(guint clause)
{
  return clause_whats[clause];
}

/* ---- what a node is ---- */

typedef struct view {
  const ordo_build *build;
  const ordo_node *node;
  const ordo_decl *decl; /* null: host or embedder */
} view;

typedef gboolean (*node_is)(const view *v);

static gboolean any(const view *v)
{
  (void)v;
  return TRUE;
}

static gboolean is_init(const view *v)
{
  return v->node->step == ORDO_STEP_MESH_INIT;
}

static gboolean is_build(const view *v)
{
  return v->node->step == ORDO_STEP_MODEL_BUILD;
}

static gboolean is_after_build(const view *v)
{
  return !is_init(v) && !is_build(v);
}

static gboolean is_verify(const view *v)
{
  return v->node->step == ORDO_STEP_VERIFY;
}

static gboolean is_inject(const view *v)
{
  return v->node->step == ORDO_STEP_MODEL_INJECT;
}

static gboolean is_load(const view *v)
{
  return v->node->step == ORDO_STEP_WEIGHTS_LOAD;
}

static gboolean is_sync(const view *v)
{
  return v->node->step == ORDO_STEP_WEIGHTS_SYNC;
}

static gboolean is_load_sharded(const view *v)
{
  return v->node->step == ORDO_STEP_LOAD_SHARDED;
}

static gboolean is_create(const view *v)
{
  return v->node->step == ORDO_STEP_OPTIMIZER_CREATE;
}

static gboolean is_wrap_optimizer(const view *v)
{
  return v->node->step == ORDO_STEP_WRAP_OPTIMIZER;
}

/* The joint node of a precision plugin where an optimizer exists; without one it is a conversion and nothing else. */
static gboolean is_joint_init(const view *v)
{
  return v->node->step == ORDO_STEP_INITIALIZE && ordo_build_trains(v->build, v->node->model);
}

/* Rule 4: convert_model, and what acts as it alone. */
static gboolean is_conversion(const view *v)
{
  return v->node->step == ORDO_STEP_CONVERT_MODEL || (v->node->step == ORDO_STEP_INITIALIZE && !is_joint_init(v));
}

/* Rules 2 and 3 count the joint node as a conversion too. */
static gboolean is_conversion_or_joint(const view *v)
{
  return v->node->step == ORDO_STEP_CONVERT_MODEL || v->node->step == ORDO_STEP_INITIALIZE;
}

static gboolean is_partition(const view *v)
{
  return v->node->step == ORDO_STEP_PARTITION;
}

static gboolean is_wrap(const view *v)
{
  return v->node->step == ORDO_STEP_WRAP;
}

static gboolean is_prepare_joint(const view *v)
{
  return v->node->step == ORDO_STEP_PREPARE_JOINT;
}

static gboolean is_prepare_optimizer(const view *v)
{
  return v->node->step == ORDO_STEP_PREPARE_OPTIMIZER;
}

static gboolean is_prepare(const view *v)
{
  return is_prepare_joint(v) || is_prepare_optimizer(v);
}

static gboolean is_strategy_step(const view *v)
{
  return is_partition(v) || is_wrap(v) || is_prepare(v);
}

static gboolean is_strategy_but_partition(const view *v)
{
  return is_strategy_step(v) && !is_partition(v);
}

static gboolean replaces_leaves(const view *v)
{
  return v->decl && is_strategy_step(v) && (v->decl->replaces >> v->node->step) & 1u;
}

static gboolean only_observes(const view *v)
{
  return is_strategy_step(v) && !replaces_leaves(v);
}

static gboolean is_delaying_wrap(const view *v)
{
  return is_wrap(v) && v->decl && ordo_decl_has_flag(v->decl, ORDO_FLAG_SETUP_OPTIMIZERS_IN_PRE_DISPATCH);
}

/* Position in the tail of rule 9, -1 for everything else. */
static int tail_position(uint32_t step)
{
  static const uint32_t tail[] = {ORDO_STEP_SCHEDULER_CREATE,  ORDO_STEP_RESTORE_OPTIMIZER, ORDO_STEP_RESTORE_PRECISION,
                                  ORDO_STEP_RESTORE_SCHEDULER, ORDO_STEP_RESTORE_DATA,      ORDO_STEP_RESTORE_RNG};
  for (int i = 0; i < (int)G_N_ELEMENTS(tail); i++) {
    if (tail[i] == step)
      return i;
  }
  return -1;
}

static gboolean touches_leaves_or_optimizer(const view *v)
{
  return is_after_build(v) && !is_verify(v) && tail_position(v->node->step) < 0;
}

/* ---- what two nodes are to each other ---- */

typedef gboolean (*pair_is)(const view *from, const view *to);

static gboolean other_provider(const view *from, const view *to)
{
  return from->node->provider != to->node->provider;
}

/* X -> partition, unless the plugin accepts a partitioned model. */
static gboolean not_accepted(const view *from, const view *to)
{
  gboolean accepts = ordo_decl_has_flag(from->decl, ORDO_FLAG_ACCEPTS_PARTITIONED) && ordo_build_on(from->build, ORDO_CLAUSE_X_ACCEPTS);
  return !is_partition(to) || !accepts;
}

typedef struct clause_edge {
  guint clause;
  node_is from, to;
  pair_is when; /* null: always */
  int flag;     /* of the provider of `from` (or of `to` where flag_of_to), whose manifest line is the origin; -1: the rule itself */
  gboolean flag_of_to;
} clause_edge;

static const clause_edge clause_edges[] = {
    {ORDO_CLAUSE_1_INIT, is_init, is_build, NULL, -1, FALSE},
    {ORDO_CLAUSE_1_BUILD, is_build, is_after_build, NULL, -1, FALSE},
    {ORDO_CLAUSE_2_LOAD, is_inject, is_load, NULL, -1, FALSE},
    {ORDO_CLAUSE_2_SHARDED, is_inject, is_load_sharded, NULL, -1, FALSE},
    {ORDO_CLAUSE_2_CONVERT, is_inject, is_conversion_or_joint, NULL, -1, FALSE},
    {ORDO_CLAUSE_2_STRATEGY, is_inject, is_strategy_step, NULL, -1, FALSE},
    {ORDO_CLAUSE_2_CREATE, is_inject, is_create, NULL, -1, FALSE},
    {ORDO_CLAUSE_3_SYNC, is_load, is_sync, NULL, -1, FALSE},
    {ORDO_CLAUSE_3_CONVERT, is_sync, is_conversion_or_joint, NULL, -1, FALSE},
    {ORDO_CLAUSE_3_STRATEGY, is_sync, is_strategy_step, NULL, -1, FALSE},
    {ORDO_CLAUSE_3_CREATE, is_sync, is_create, NULL, -1, FALSE},
    {ORDO_CLAUSE_4_CONVERT_STRATEGY, is_conversion, is_strategy_step, NULL, -1, FALSE},
    {ORDO_CLAUSE_4_CONVERT_CREATE, is_conversion, is_create, NULL, -1, FALSE},
    {ORDO_CLAUSE_4_CONVERT_WRAP, is_conversion, is_wrap_optimizer, NULL, -1, FALSE},
    {ORDO_CLAUSE_4_PARTITION_CREATE, is_partition, is_create, NULL, -1, FALSE},
    {ORDO_CLAUSE_4_PARTITION_STRATEGY, is_partition, is_strategy_but_partition, NULL, -1, FALSE},
    {ORDO_CLAUSE_5_OBSERVE, replaces_leaves, only_observes, other_provider, -1, FALSE},
    {ORDO_CLAUSE_6_JOINT, is_create, is_prepare_joint, NULL, -1, FALSE},
    {ORDO_CLAUSE_6_OPTIMIZER, is_create, is_prepare_optimizer, NULL, -1, FALSE},
    {ORDO_CLAUSE_7_WRAP, is_wrap, is_load_sharded, NULL, -1, FALSE},
    {ORDO_CLAUSE_7_REPLACE, replaces_leaves, is_load_sharded, NULL, -1, FALSE},
    {ORDO_CLAUSE_8_CREATE, is_create, is_wrap_optimizer, NULL, -1, FALSE},
    {ORDO_CLAUSE_8_REPLACE, replaces_leaves, is_wrap_optimizer, NULL, -1, FALSE},
    {ORDO_CLAUSE_8_PREPARE, is_prepare, is_wrap_optimizer, NULL, -1, FALSE},
    {ORDO_CLAUSE_8_SHARDED, is_load_sharded, is_wrap_optimizer, NULL, -1, FALSE},
    {ORDO_CLAUSE_S, is_delaying_wrap, is_create, NULL, ORDO_FLAG_SETUP_OPTIMIZERS_IN_PRE_DISPATCH, FALSE},
    {ORDO_CLAUSE_X_CREATE, is_create, is_joint_init, NULL, ORDO_FLAG_INITIALIZES_JOINTLY, TRUE},
    {ORDO_CLAUSE_X_STRATEGY, is_joint_init, is_strategy_step, not_accepted, ORDO_FLAG_INITIALIZES_JOINTLY, FALSE},
    {ORDO_CLAUSE_X_PREPARE, is_prepare, is_joint_init, NULL, ORDO_FLAG_INITIALIZES_JOINTLY, TRUE},
    {ORDO_CLAUSE_X_SHARDED, is_load_sharded, is_joint_init, NULL, ORDO_FLAG_INITIALIZES_JOINTLY, TRUE},
    {ORDO_CLAUSE_1_VERIFY, any, is_verify, NULL, -1, FALSE},
};

static view view_of(const ordo_build *build, guint index)
{
  const ordo_node *node = ordo_build_node(build, index);
  return (view){build, node, ordo_build_decl(build, node)};
}

/* Nodes of one model meet each other and the nodes of the whole session. */
static gboolean same_model(const ordo_node *a, const ordo_node *b)
{
  return a->model == b->model || ordo_node_is_session_wide(a->step) || ordo_node_is_session_wide(b->step);
}

static void draw(ordo_build *build, guint from, guint to, const clause_edge *edge, const view *a, const view *b)
{
  const ordo_decl *owner = edge->flag_of_to ? b->decl : a->decl;
  g_autofree char *rule_origin = g_strdup_printf("ordering %s", ordo_clause_rule(edge->clause));
  const char *origin = edge->flag >= 0 && owner ? owner->flag_origin[edge->flag] : rule_origin;
  ordo_build_add_edge(build, from, to, TRUE, ordo_clause_rule(edge->clause), origin ? origin : owner->id);
}

static void apply(ordo_build *build, const clause_edge *edge)
{
  guint n = build->result->nodes->len;
  if (!ordo_build_on(build, edge->clause))
    return;
  for (guint from = 0; from < n; from++) {
    view a = view_of(build, from);
    if (!edge->from(&a))
      continue;
    for (guint to = 0; to < n; to++) {
      view b = view_of(build, to);
      if (from != to && same_model(a.node, b.node) && edge->to(&b) && (!edge->when || edge->when(&a, &b)))
        draw(build, from, to, edge, &a, &b);
    }
  }
}

/* Is the node of `model` that precedes tail position `position` the node `v`? `before` is the position of that predecessor, -1 if the model
 * has no earlier part of the tail: then everything that touches leaves or the optimizer precedes. */
static gboolean precedes(const view *v, uint32_t model, int before)
{
  if (v->node->model != model && !ordo_node_is_session_wide(v->node->step))
    return FALSE;
  return before >= 0 ? tail_position(v->node->step) == before : touches_leaves_or_optimizer(v);
}

/* Largest tail position below `position` that the session has for `model`, -1 if none. */
static int previous_in_tail(const ordo_build *build, uint32_t model, int position)
{
  int best = -1;
  for (guint i = 0; i < build->result->nodes->len; i++) {
    const ordo_node *node = ordo_build_node(build, i);
    int at = tail_position(node->step);
    if ((node->model == model || ordo_node_is_session_wide(node->step)) && at < position)
      best = MAX(best, at);
  }
  return best;
}

static void link_tail(ordo_build *build, guint to, uint32_t model, int position, guint clause)
{
  int before = previous_in_tail(build, model, position);
  g_autofree char *origin = g_strdup_printf("ordering %s", ordo_clause_rule(clause));
  for (guint from = 0; from < build->result->nodes->len; from++) {
    view v = view_of(build, from);
    if (precedes(&v, model, before))
      ordo_build_add_edge(build, from, to, TRUE, ordo_clause_rule(clause), origin);
  }
}

/* Rule 9: a chain over those of its steps that the session has. Each link has a clause of its own, named after where it leads. */
static void apply_tail(ordo_build *build)
{
  static const guint links[] = {ORDO_CLAUSE_9_TOUCH,     ORDO_CLAUSE_9_OPTIMIZER, ORDO_CLAUSE_9_PRECISION,
                                ORDO_CLAUSE_9_SCHEDULER, ORDO_CLAUSE_9_DATA,      ORDO_CLAUSE_9_RNG};
  for (guint to = 0; to < build->result->nodes->len; to++) {
    const ordo_node *node = ordo_build_node(build, to);
    int position = tail_position(node->step);
    if (position < 0 || !ordo_build_on(build, links[position]))
      continue;
    for (uint32_t model = 0; model < build->input->n_models; model++) {
      if (ordo_node_is_session_wide(node->step) || node->model == model)
        link_tail(build, to, model, position, links[position]);
    }
  }
}

void ordo_build_add_rules(ordo_build *build)
{
  for (size_t i = 0; i < G_N_ELEMENTS(clause_edges); i++)
    apply(build, &clause_edges[i]);
  apply_tail(build);
}
