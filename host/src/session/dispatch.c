/* dispatch.c - executes the set-up steps of a plan, in its order, each once; and takes them back.
 *
 * The dispatcher decides nothing: the plan says which step comes next and who provides it. It adds what a list of calls would not have:
 * an undo record before each step, the checks after it, phase boundaries that the embedder can observe, and the reverse walk when a
 * step fails.
 */
#include "session.h"

static const ordo_node *node_at(const ordo_session *session, guint index)
{
  const GArray *nodes = session->plan->resolution->nodes;
  return index < nodes->len ? &g_array_index(nodes, ordo_node, index) : NULL;
}

static ordo_instance *instance_of(ordo_session *session, const ordo_node *node)
{
  for (guint i = 0; i < session->instances->len; i++) {
    ordo_instance *instance = g_ptr_array_index(session->instances, i);
    if ((int)instance->provider == node->provider && instance->model->view.index == node->model)
      return instance;
  }
  return NULL;
}

static ordo_status enter_phase(ordo_session *session, ordo_phase phase)
{
  const ordo_embedder *embedder = &session->embedder;
  while (!session->phase_entered || session->phase < phase) {
    size_t before = ordo_errors_count(ordo_session_errors(session));
    ordo_status status = ORDO_OK;
    if (session->phase_entered && embedder->phase)
      status = embedder->phase(embedder->ctx, session->phase, 0);
    if (session->phase_entered && status == ORDO_OK)
      session->phase++;
    session->phase_entered = TRUE;
    if (status == ORDO_OK && embedder->phase)
      status = embedder->phase(embedder->ctx, session->phase, 1);
    if (status != ORDO_OK)
      return ordo_session_embedder_status(session, "phase", status, before);
  }
  return ORDO_OK;
}

static ordo_status build_model(ordo_session *session, ordo_model_state *model)
{
  const ordo_embedder *embedder = &session->embedder;
  size_t before = ordo_errors_count(ordo_session_errors(session));
  ordo_status status;
  model->builder.open = TRUE;
  status = ordo_session_embedder_status(session, "model_build",
                                        embedder->model_build(embedder->ctx, session, model->view.index, &model->builder), before);
  model->builder.open = FALSE;
  if (status == ORDO_OK)
    status = ordo_model_state_finish(model);
  if (status != ORDO_OK)
    return status;
  for (guint m = 0; m < session->models->len; m++)
    if (((ordo_model_state *)g_ptr_array_index(session->models, m))->view.n_leaves == 0)
      return ORDO_OK; /* the last model.build makes the instances, which may look at every model */
  status = ordo_invariants_model_agrees(session);
  return status == ORDO_OK ? ordo_plugins_make_instances(session) : status;
}

/* What is missing in an optimizer, null if it is complete. `before` is what it was before a plugin had it, null if nobody had. */
static const char *lacks(const ordo_optimizer *optimizer, const ordo_optimizer *before)
{
#define LOST(MEMBER) (before && ORDO_CAN(before, ordo_optimizer, MEMBER) && !ORDO_CAN(optimizer, ordo_optimizer, MEMBER))
  if (before && optimizer->struct_size < before->struct_size)
    return "struct_size";
  if (!ORDO_CAN(optimizer, ordo_optimizer, step))
    return "step";
  if (LOST(rebind))
    return "rebind";
  if (LOST(n_slots))
    return "n_slots";
  if (LOST(slot_name))
    return "slot_name";
  if (LOST(slot))
    return "slot";
  if (LOST(destroy))
    return "destroy";
  if (LOST(updates))
    return "updates";
  if (LOST(restore))
    return "restore";
#undef LOST
  if (before && !optimizer->name)
    return "name";
  if (optimizer->n_groups && !optimizer->groups)
    return "groups";
  for (uint32_t g = 0; g < optimizer->n_groups; g++)
    if (optimizer->groups[g].n_leaves && !optimizer->groups[g].leaves)
      return "groups[].leaves";
  return NULL;
}

/* A plugin may put its own functions in the place of others, and none in the place of one. Whatever the step came to, the optimizer is
 * complete afterwards: undoing the set-up calls it. */
static ordo_status check_optimizers(ordo_session *session, const ordo_instance *instance, const ordo_optimizer *before, ordo_status status)
{
  for (guint m = 0; m < session->models->len; m++) {
    ordo_model_state *model = g_ptr_array_index(session->models, m);
    const char *missing = model->optimizer ? lacks(model->optimizer, &before[m]) : NULL;
    g_autofree char *where = NULL, *what = NULL;
    if (!missing)
      continue;
    *model->optimizer = before[m];
    where = g_strdup_printf("plugin '%s', %s", instance->plugin->id, session->where);
    what = g_strdup_printf("the plugin took '%s' out of the optimizer of model '%s'", missing, model->view.name);
    if (status == ORDO_OK)
      status = ordo_errors_push(ordo_session_errors(session), ORDO_E_INVALID, "E-OPTIMIZER-TABLE", where,
                                "a step may replace a function of ordo_optimizer by another, not by none",
                                "report it to the plugin's author", "%s", what);
  }
  return status;
}

static ordo_status create_optimizer(ordo_session *session, ordo_model_state *model)
{
  const ordo_embedder *embedder = &session->embedder;
  size_t before = ordo_errors_count(ordo_session_errors(session));
  ordo_optimizer *optimizer = g_new0(ordo_optimizer, 1);
  ordo_status status;
  optimizer->struct_size = sizeof *optimizer;
  status =
      ordo_session_embedder_status(session, "optimizer_create", embedder->optimizer_create(embedder->ctx, &model->view, optimizer), before);
  if (status == ORDO_OK && lacks(optimizer, NULL))
    status = ordo_errors_push(ordo_session_errors(session), ORDO_E_INVALID, "E-OPTIMIZER-GROUPS", "optimizer_create",
                              "it needs a step function and its groups", "fill ordo_optimizer completely", "the optimizer is not complete");
  if (status != ORDO_OK) {
    g_free(optimizer);
    return status;
  }
  if (!optimizer->name)
    optimizer->name = "optimizer";
  model->optimizer = optimizer;
  return ORDO_OK;
}

static ordo_status create_scheduler(ordo_session *session, ordo_model_state *model)
{
  const ordo_embedder *embedder = &session->embedder;
  size_t before = ordo_errors_count(ordo_session_errors(session));
  if (!embedder->scheduler_create || !model->optimizer)
    return ORDO_OK;
  return ordo_session_embedder_status(session, "scheduler_create", embedder->scheduler_create(embedder->ctx, model->optimizer), before);
}

static ordo_status restore(ordo_session *session, ordo_step step)
{
  const ordo_embedder *embedder = &session->embedder;
  size_t before = ordo_errors_count(ordo_session_errors(session));
  return embedder->restore ? ordo_session_embedder_status(session, "restore", embedder->restore(embedder->ctx, step), before) : ORDO_OK;
}

/* The plugin's loader knows numbers. Packed leaves that it left without storage (excluded from sharding) are the host's: they are there
 * when it is called, so that it can compare or broadcast their bytes. */
static ordo_status call_loader(const ordo_instance *owner, ordo_model_state *model)
{
  ordo_session *session = model->session;
  ordo_status status = ordo_weights_load_packed(model);
  size_t before = ordo_errors_count(ordo_session_errors(session));
  if (status != ORDO_OK)
    return status;
  return ordo_session_plugin_status(session, owner->plugin, owner->plugin->strategy->load_sharded(owner->self), before);
}

/* The strategy that made the current leaves loads them if it wants to; otherwise their placements say everything. */
static ordo_status load_sharded(ordo_model_state *model)
{
  for (uint32_t i = 0; i < model->view.n_leaves; i++) {
    const ordo_instance *owner = ((ordo_leaf_record *)model->view.leaves[i])->owner;
    if (owner && owner->plugin->strategy && ORDO_CAN(owner->plugin->strategy, ordo_strategy, load_sharded))
      return call_loader(owner, model);
  }
  return ordo_weights_load_sharded(model);
}

static ordo_status run_host(ordo_session *session, const ordo_node *node)
{
  ordo_model_state *model = g_ptr_array_index(session->models, node->model);
  switch (node->step) {
  case ORDO_STEP_MESH_INIT:
    return ordo_barrier(session->mesh->world); /* every rank has come this far, and can be reached */
  case ORDO_STEP_MODEL_BUILD:
    return build_model(session, model);
  case ORDO_STEP_WEIGHTS_LOAD:
    return ordo_weights_load(model);
  case ORDO_STEP_WEIGHTS_SYNC:
    return ordo_weights_sync(model);
  case ORDO_STEP_OPTIMIZER_CREATE:
    return create_optimizer(session, model);
  case ORDO_STEP_LOAD_SHARDED:
    return load_sharded(model);
  case ORDO_STEP_SCHEDULER_CREATE:
    return create_scheduler(session, model);
  case ORDO_STEP_RESTORE_OPTIMIZER:
  case ORDO_STEP_RESTORE_PRECISION:
  case ORDO_STEP_RESTORE_SCHEDULER:
  case ORDO_STEP_RESTORE_DATA:
  case ORDO_STEP_RESTORE_RNG:
    return restore(session, node->step);
  case ORDO_STEP_VERIFY:
    return ordo_invariants_verify(session);
  default:
    return ordo_errors_push(ordo_session_errors(session), ORDO_E_INTERNAL, "E-STEP-UNKNOWN", node->id,
                            "the plan gives it to the host, which has no such step", "report this as a defect of Ordo",
                            "step %s has nobody to run it", node->id);
  }
}

static ordo_status run_strategy(const ordo_instance *instance, const ordo_node *node)
{
  const ordo_strategy *table = instance->plugin->strategy;
  switch (node->step) {
  case ORDO_STEP_MODEL_INJECT:
    return table->inject(instance->self);
  case ORDO_STEP_PARTITION:
    return table->partition(instance->self);
  case ORDO_STEP_WRAP:
    return table->wrap(instance->self);
  case ORDO_STEP_PREPARE_JOINT:
    return table->prepare_joint(instance->self, instance->model->optimizer);
  case ORDO_STEP_PREPARE_OPTIMIZER:
    return table->prepare_optimizer(instance->self, instance->model->optimizer);
  case ORDO_STEP_LOAD_SHARDED:
    return ORDO_CAN(table, ordo_strategy, load_sharded) ? call_loader(instance, instance->model)
                                                        : ordo_weights_load_sharded(instance->model);
  default:
    return ORDO_E_INTERNAL;
  }
}

static ordo_status run_precision(const ordo_instance *instance, const ordo_node *node)
{
  const ordo_precision *table = instance->plugin->precision;
  switch (node->step) {
  case ORDO_STEP_MODEL_INJECT:
    return table->inject(instance->self);
  case ORDO_STEP_CONVERT_MODEL:
    return table->convert_model(instance->self);
  case ORDO_STEP_WRAP_OPTIMIZER:
    return table->wrap_optimizer(instance->self, instance->model->optimizer);
  case ORDO_STEP_INITIALIZE:
    return table->initialize(instance->self, instance->model->optimizer);
  default:
    return ORDO_E_INTERNAL;
  }
}

static ordo_status run_node(ordo_session *session, const ordo_node *node)
{
  size_t before = ordo_errors_count(ordo_session_errors(session));
  ordo_instance *instance;
  g_autofree ordo_optimizer *optimizers = NULL; /* of all models, as they are before the step */
  ordo_status status;
  if (node->provider < 0)
    return run_host(session, node);
  instance = instance_of(session, node);
  if (!instance)
    return ordo_errors_push(ordo_session_errors(session), ORDO_E_INTERNAL, "E-STEP-UNKNOWN", node->id,
                            "its provider has no instance for that model", "report this as a defect of Ordo",
                            "step %s has nobody to run it", node->id);
  instance->replaced = FALSE;
  optimizers = g_new0(ordo_optimizer, session->models->len);
  for (guint m = 0; m < session->models->len; m++) {
    const ordo_model_state *model = g_ptr_array_index(session->models, m);
    if (model->optimizer)
      optimizers[m] = *model->optimizer;
  }
  status = instance->plugin->strategy ? run_strategy(instance, node) : run_precision(instance, node);
  if (status == ORDO_OK && instance->plugin->strategy && !g_ptr_array_find(session->order, instance, NULL))
    g_ptr_array_add(session->order, instance);
  status = ordo_session_plugin_status(session, instance->plugin, status, before);
  status = check_optimizers(session, instance, optimizers, status);
  return status == ORDO_OK && node->step == ORDO_STEP_MODEL_INJECT ? ordo_invariants_model_agrees(session) : status;
}

static void undo_plugin(ordo_session *session, const ordo_node *node)
{
  const ordo_instance *instance = node->provider < 0 ? NULL : instance_of(session, node);
  if (!instance)
    return;
  if (instance->plugin->strategy && ORDO_CAN(instance->plugin->strategy, ordo_strategy, undo))
    instance->plugin->strategy->undo(instance->self, node->step);
  else if (instance->plugin->precision && ORDO_CAN(instance->plugin->precision, ordo_precision, undo))
    instance->plugin->precision->undo(instance->self, node->step);
}

/* Takes back all finished steps, last first. Host state goes back before the plugin frees what it had put there. */
static void undo_all(ordo_session *session)
{
  while (session->undo_log->len) {
    guint last = session->undo_log->len - 1;
    const ordo_node *node = node_at(session, last);
    session->where = node->id;
    ordo_undo_apply(g_ptr_array_index(session->undo_log, last), session);
    undo_plugin(session, node);
    g_ptr_array_set_size(session->undo_log, (gint)last);
    session->node_done[last] = FALSE;
  }
  session->where = NULL;
}

static ordo_status fail_setup(ordo_session *session, ordo_undo *running, ordo_status status)
{
  ordo_session_explain(session, status);
  if (running) {
    ordo_undo_apply(running, session);
    ordo_undo_free(running);
  }
  session->node = NULL;
  undo_all(session);
  ordo_plugins_destroy_instances(session);
  g_ptr_array_set_size(session->order, 0);
  return ordo_session_fail(session, status);
}

/* The set-up is complete: nothing will be undone any more, so what was kept for that is let go. */
static ordo_status complete(ordo_session *session)
{
  ordo_status status = ORDO_OK;
  session->where = "after_setup";
  for (guint i = 0; i < session->instances->len && status == ORDO_OK; i++) {
    const ordo_instance *instance = g_ptr_array_index(session->instances, i);
    size_t before = ordo_errors_count(ordo_session_errors(session));
    if (instance->plugin->strategy && ORDO_CAN(instance->plugin->strategy, ordo_strategy, after_setup))
      status = ordo_session_plugin_status(session, instance->plugin, instance->plugin->strategy->after_setup(instance->self), before);
  }
  for (guint m = 0; m < session->models->len && status == ORDO_OK; m++)
    status = ordo_opaque_prepare(g_ptr_array_index(session->models, m));
  if (status == ORDO_OK)
    status = ordo_calls_build(session);
  if (status == ORDO_OK)
    status = enter_phase(session, ORDO_PHASE_DISPATCH);
  if (status != ORDO_OK)
    return fail_setup(session, NULL, status);
  g_ptr_array_set_size(session->undo_log, 0);
  for (guint m = 0; m < session->models->len; m++)
    ordo_leaves_sweep(g_ptr_array_index(session->models, m));
  session->where = NULL;
  session->state = ORDO_SESSION_READY;
  return ORDO_OK;
}

static ordo_status run_next(ordo_session *session)
{
  const ordo_embedder *embedder = &session->embedder;
  const ordo_node *node = node_at(session, session->next_node);
  double start = (double)g_get_monotonic_time() * 1e-6;
  ordo_undo *undo;
  ordo_status status = enter_phase(session, node->phase);
  if (status != ORDO_OK)
    return fail_setup(session, NULL, status);
  undo = ordo_undo_new(session);
  session->node = node;
  session->where = node->id;
  session->running = undo;
  status = run_node(session, node);
  if (status == ORDO_OK)
    status = ordo_invariants_after_step(session);
  session->running = NULL;
  if (status != ORDO_OK)
    return fail_setup(session, undo, status);
  ordo_undo_finish(undo, session);
  g_ptr_array_add(session->undo_log, undo);
  session->node_done[session->next_node++] = TRUE;
  session->node = NULL;
  session->where = NULL;
  if (embedder->step_done)
    embedder->step_done(embedder->ctx, ordo_plan_node_at(session->plan, session->next_node - 1),
                        (double)g_get_monotonic_time() * 1e-6 - start);
  return session->next_node == session->plan->resolution->nodes->len ? complete(session) : ORDO_OK;
}

ordo_status ordo_session_setup_next(ordo_session *session, const ordo_plan_node **node)
{
  if (node)
    *node = NULL;
  ORDO_NEED(session, session, "ordo_session_setup_next");
  ordo_session_enter(session);
  if (session->state != ORDO_SESSION_SETUP || session->node)
    return ordo_session_leave(
        session, ordo_session_refuse(session, "ordo_session_setup_next", "until the last step of the plan has run, outside of callbacks"));
  if (node)
    *node = ordo_plan_node_at(session->plan, session->next_node);
  return ordo_session_leave(session, run_next(session));
}

ordo_status ordo_session_setup(ordo_session *session)
{
  ordo_status status = ORDO_OK;
  ORDO_NEED(session, session, "ordo_session_setup");
  ordo_session_enter(session);
  if (session->state != ORDO_SESSION_SETUP || session->node)
    return ordo_session_leave(session, ordo_session_refuse(session, "ordo_session_setup", "once, before training"));
  while (session->state == ORDO_SESSION_SETUP && status == ORDO_OK)
    status = run_next(session);
  return ordo_session_leave(session, status);
}

ordo_status ordo_session_run(ordo_session *session, const char *step)
{
  const ordo_node *node;
  g_autofree char *legal = NULL;
  ORDO_NEED(session, step, "ordo_session_run");
  ordo_session_enter(session);
  node = session->state == ORDO_SESSION_SETUP && !session->node ? node_at(session, session->next_node) : NULL;
  if (node && (!g_strcmp0(node->id, step) || !g_strcmp0(ordo_step_name(node->step), step)))
    return ordo_session_leave(session, run_next(session));
  for (guint i = 0; node && i < session->next_node; i++)
    if (!g_strcmp0(node_at(session, i)->id, step) || !g_strcmp0(ordo_step_name(node_at(session, i)->step), step))
      legal = g_strdup_printf("once, and it has run; %s is due", node->id);
  if (!legal)
    legal = g_strdup_printf("only in its place in the plan%s%s", node ? "; due is " : "", node ? node->id : "");
  return ordo_session_leave(session, ordo_session_refuse(session, step, legal));
}

/* Reverse of set-up: optimizers (made after the instances), instances, and the phases' ends. Errors have nobody to go to. */
void ordo_dispatch_teardown(ordo_session *session)
{
  gboolean trained = session->state != ORDO_SESSION_SETUP && session->state != ORDO_SESSION_FAILED && session->state != ORDO_SESSION_DEAD;
  if (trained && enter_phase(session, ORDO_PHASE_POST_DISPATCH) != ORDO_OK)
    ordo_context_log(session->context, ORDO_LOG_WARNING, "the program's phase callback failed during teardown");
  session->where = "teardown";
  for (guint m = session->models->len; m-- > 0;) {
    ordo_model_state *model = g_ptr_array_index(session->models, m);
    if (model->optimizer && ORDO_CAN(model->optimizer, ordo_optimizer, destroy))
      model->optimizer->destroy(model->optimizer->ctx);
    g_clear_pointer(&model->optimizer, g_free);
  }
  ordo_plugins_destroy_instances(session);
  if (trained && session->embedder.phase)
    session->embedder.phase(session->embedder.ctx, ORDO_PHASE_POST_DISPATCH, 0);
}
