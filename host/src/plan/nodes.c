/* nodes.c - which nodes a session has: (step, provider, model), in table order.
 *
 * A node exists only if somebody provides it, so most of what differs between sessions (resume, evaluation, frozen models, weights
 * restored into shards) is decided here by leaving nodes out, and the rules can speak about all sessions alike.
 */
#include "rules.h"

gboolean ordo_build_on(const ordo_build *build, guint clause)
{
  return !((build->off >> clause) & 1u);
}

const ordo_decl *ordo_build_decl(const ordo_build *build, const ordo_node *node)
{
  return node->provider >= 0 ? build->input->decls[node->provider] : NULL;
}

ordo_node *ordo_build_node(const ordo_build *build, guint index)
{
  return &g_array_index(build->result->nodes, ordo_node, index);
}

gboolean ordo_decl_has_flag(const ordo_decl *decl, uint32_t flag)
{
  return (decl->flags >> flag) & 1u;
}

gboolean ordo_decl_has_step(const ordo_decl *decl, uint32_t step)
{
  return (decl->steps >> step) & 1u;
}

gboolean ordo_node_is_session_wide(uint32_t step)
{
  return step == ORDO_STEP_MESH_INIT || step == ORDO_STEP_RESTORE_DATA || step == ORDO_STEP_RESTORE_RNG || step == ORDO_STEP_VERIFY;
}

gboolean ordo_build_trains(const ordo_build *build, uint32_t model)
{
  gboolean eval = build->input->eval && ordo_build_on(build, ORDO_CLAUSE_EVAL);
  gboolean frozen = !build->input->model_trained[model] && ordo_build_on(build, ORDO_CLAUSE_FROZEN);
  return !eval && !frozen;
}

/* Some strategy of the model restores its weights after the wrap. */
static gboolean restores_after_wrap(const ordo_build *build, uint32_t model)
{
  for (size_t i = 0; i < build->input->n_decls; i++) {
    const ordo_decl *decl = build->input->decls[i];
    if ((decl->model_mask >> model) & 1u && ordo_decl_has_flag(decl, ORDO_FLAG_RESTORES_AFTER_WRAP))
      return ordo_build_on(build, ORDO_CLAUSE_RESTORES);
  }
  return FALSE;
}

static gboolean has_precision(const ordo_build *build, uint32_t model)
{
  for (size_t i = 0; i < build->input->n_decls; i++) {
    const ordo_decl *decl = build->input->decls[i];
    if (decl->kind == ORDO_KIND_PRECISION && (decl->model_mask >> model) & 1u)
      return TRUE;
  }
  return !ordo_build_on(build, ORDO_CLAUSE_9_ONLY);
}

/* Does the host's or embedder's node of `step` exist for `model`? */
static gboolean own_node_exists(const ordo_build *build, uint32_t step, uint32_t model)
{
  gboolean trains = ordo_build_trains(build, model), resume = build->input->resume;
  switch (step) {
  case ORDO_STEP_MESH_INIT:
  case ORDO_STEP_MODEL_BUILD:
  case ORDO_STEP_VERIFY:
    return TRUE;
  case ORDO_STEP_WEIGHTS_LOAD:
  case ORDO_STEP_WEIGHTS_SYNC:
    return !restores_after_wrap(build, model);
  case ORDO_STEP_LOAD_SHARDED:
    return restores_after_wrap(build, model);
  case ORDO_STEP_OPTIMIZER_CREATE:
  case ORDO_STEP_SCHEDULER_CREATE:
    return trains;
  case ORDO_STEP_RESTORE_OPTIMIZER:
  case ORDO_STEP_RESTORE_SCHEDULER:
    return trains && resume;
  case ORDO_STEP_RESTORE_PRECISION:
    return trains && resume && has_precision(build, model);
  case ORDO_STEP_RESTORE_DATA:
  case ORDO_STEP_RESTORE_RNG:
    return resume;
  default:
    return FALSE;
  }
}

/* Does the plugin's node of `step` exist for `model`? */
static gboolean plugin_node_exists(const ordo_build *build, const ordo_decl *decl, uint32_t step, uint32_t model)
{
  if (!((decl->model_mask >> model) & 1u) || !ordo_decl_has_step(decl, step) || step == ORDO_STEP_LOAD_SHARDED)
    return FALSE;
  if (step == ORDO_STEP_PREPARE_OPTIMIZER || step == ORDO_STEP_WRAP_OPTIMIZER)
    return ordo_build_trains(build, model);
  /* a wrap that only watches gradients has nothing to watch in a frozen model */
  if (step == ORDO_STEP_WRAP && decl->reduces && !((decl->replaces >> step) & 1u) && !build->input->eval)
    return ordo_build_trains(build, model);
  return TRUE;
}

/* Another declaration has the same id: the label then says which axis. */
static gboolean is_repeated(const ordo_build *build, int provider)
{
  for (size_t i = 0; i < build->input->n_decls; i++) {
    if ((int)i != provider && g_str_equal(build->input->decls[i]->id, build->input->decls[provider]->id))
      return TRUE;
  }
  return FALSE;
}

static char *node_id(const ordo_build *build, uint32_t step, int provider, uint32_t model)
{
  g_autofree char *who = NULL, *which = NULL;
  if (provider == ORDO_PROVIDER_HOST)
    who = g_strdup("host");
  else if (provider == ORDO_PROVIDER_EMBEDDER)
    who = g_strdup("embedder");
  else if (is_repeated(build, provider))
    who = g_strdup_printf("%s#%d", build->input->decls[provider]->id, build->input->decls[provider]->axis);
  else
    who = g_strdup(build->input->decls[provider]->id);
  if (model > 0 && build->input->model_names)
    which = g_strdup_printf("@%s", build->input->model_names[model]);
  else if (model > 0)
    which = g_strdup_printf("@%u", model);
  return g_strdup_printf("%s(%s)%s", ordo_step_name(step), who, which ? which : "");
}

static void add_node(ordo_build *build, uint32_t step, int provider, uint32_t model)
{
  ordo_node node = {.step = step, .provider = provider, .model = model};
  node.id = node_id(build, step, provider, model);
  node.default_phase = ordo_step_default_phase(step);
  node.phase = node.default_phase;
  g_array_append_val(build->result->nodes, node);
}

void ordo_build_add_nodes(ordo_build *build)
{
  for (uint32_t step = 0; step < ORDO_N_STEPS; step++) {
    int owner = g_str_equal(ordo_step_provider(step), "host") ? ORDO_PROVIDER_HOST : ORDO_PROVIDER_EMBEDDER;
    size_t n_models = ordo_node_is_session_wide(step) ? 1 : build->input->n_models;
    for (uint32_t model = 0; model < n_models; model++) {
      if (own_node_exists(build, step, model))
        add_node(build, step, owner, model);
      for (size_t i = 0; i < build->input->n_decls; i++) {
        if (plugin_node_exists(build, build->input->decls[build->sorted[i]], step, model))
          add_node(build, step, (int)build->sorted[i], model);
      }
    }
  }
}

void ordo_build_add_edge(ordo_build *build, guint from, guint to, gboolean hard, const char *rule, const char *origin)
{
  gint64 pair = (gint64)from << 32 | to;
  if (from == to || g_hash_table_contains(build->edge_by_pair, &pair))
    return;
  ordo_edge edge = {.from = from, .to = to, .hard = hard, .rule = g_strdup(rule), .origin = g_strdup(origin)};
  g_array_append_val(build->result->edges, edge);
  g_hash_table_add(build->edge_by_pair, g_memdup2(&pair, sizeof pair));
}
