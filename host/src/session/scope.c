/* scope.c - calls that hand the whole model to somebody for a while: full parameters, a whole schedule, one unit's computation.
 *
 * Inside a scope of full parameters a model is bound to copies. Whether the strategy really copies anything is its business, so what is
 * legal inside is decided here and for all alike: a program that runs under ddp runs under a sharding strategy. Guarded against: a training
 * step on copies that no optimizer updates, an import that the closing scope would write over, and a pair that is not a pair.
 */
#include "session.h"

ordo_status ordo_scope_check(ordo_session *session, const ordo_model_state *model, const char *call, const char *why)
{
  for (guint m = 0; m < session->models->len; m++) {
    const ordo_model_state *open = g_ptr_array_index(session->models, m);
    if (open->full_open && (!model || model == open))
      return ordo_errors_push(
          ordo_session_errors(session), ORDO_E_STATE, "E-STATE-ORDER", call, why, "close the scope with ordo_session_release_full first",
          "%s inside the scope of full parameters that ordo_session_gather_full opened on model '%s'", call, open->view.name);
  }
  return ORDO_OK;
}

static ordo_status idle(ordo_session *session, const char *call)
{
  if (session->state == ORDO_SESSION_READY || session->state == ORDO_SESSION_EVAL)
    return ORDO_OK;
  return ordo_session_refuse(session, call, "between training steps and inside an evaluation, when no unit is open");
}

static ordo_status no_model(ordo_session *session, const char *call)
{
  return ordo_errors_push(ordo_session_errors(session), ORDO_E_INVALID, "E-STEP-ARGUMENT", call, "it is an index into ordo_session_model()",
                          "see session.h", "there is no such model or unit");
}

/* Outermost first when opening, the reverse when closing, as with every pair of events. */
static ordo_status for_full(ordo_session *session, uint32_t index, gboolean gather, uint32_t flags)
{
  for (guint i = 0; i < session->order->len; i++) {
    const ordo_instance *instance = g_ptr_array_index(session->order, gather ? session->order->len - 1 - i : i);
    const ordo_strategy *table = instance->plugin->strategy;
    const ordo_state_ops *state = ORDO_HAS(table, ordo_strategy, state) ? table->state : NULL;
    ordo_status status = ORDO_OK;
    if (instance->model->view.index != index || !state)
      continue;
    if (gather && ORDO_CAN(state, ordo_state_ops, gather_full))
      status = state->gather_full(instance->self, flags);
    else if (!gather && ORDO_CAN(state, ordo_state_ops, release_full))
      status = state->release_full(instance->self);
    if (status != ORDO_OK)
      return ordo_session_fail(session, ordo_session_plugin_status(session, instance->plugin, status, 0));
  }
  return ORDO_OK;
}

static ordo_status open_full(ordo_session *session, uint32_t index, uint32_t flags)
{
  static const char call[] = "ordo_session_gather_full";
  ordo_model_state *model = index < session->models->len ? g_ptr_array_index(session->models, index) : NULL;
  ordo_status status = idle(session, call);
  if (status != ORDO_OK)
    return status;
  if (!model)
    return no_model(session, call);
  status = ordo_scope_check(session, model, call, "scopes of one model do not nest");
  if (status != ORDO_OK)
    return status;
  status = for_full(session, index, TRUE, flags);
  model->full_open = status == ORDO_OK;
  model->full_flags = flags;
  return status;
}

/* What was written is in the leaves. Replicas that no strategy gathers (ddp) have what their own rank wrote, which with RANK0_ONLY is
 * nothing on all but one; and a master that did not follow would undo everything in the next update. */
static ordo_status take_over(ordo_model_state *model)
{
  ordo_status status = model->full_flags & ORDO_GATHER_RANK0_ONLY ? ordo_weights_broadcast(model) : ORDO_OK;
  if (status == ORDO_OK)
    ordo_state_follow_stored(model);
  return status == ORDO_OK ? ORDO_OK : ordo_session_fail(model->session, status);
}

static ordo_status close_full(ordo_session *session, uint32_t index)
{
  static const char call[] = "ordo_session_release_full";
  ordo_model_state *model = index < session->models->len ? g_ptr_array_index(session->models, index) : NULL;
  ordo_status status = idle(session, call);
  if (status != ORDO_OK)
    return status;
  if (!model)
    return no_model(session, call);
  if (!model->full_open)
    return ordo_errors_push(ordo_session_errors(session), ORDO_E_STATE, "E-STATE-ORDER", call,
                            "it closes what ordo_session_gather_full opened, once", "open the scope with ordo_session_gather_full",
                            "no scope of full parameters is open on model '%s'", model->view.name);
  model->full_open = FALSE;
  status = for_full(session, index, FALSE, 0);
  return status == ORDO_OK && model->full_flags & ORDO_GATHER_WRITE_BACK ? take_over(model) : status;
}

ordo_status ordo_session_gather_full(ordo_session *session, uint32_t model, uint32_t flags)
{
  ORDO_NEED(session, session, "ordo_session_gather_full");
  ordo_session_enter(session);
  session->where = "gather_full";
  return ordo_session_leave(session, open_full(session, model, flags));
}

ordo_status ordo_session_release_full(ordo_session *session, uint32_t model)
{
  ORDO_NEED(session, session, "ordo_session_release_full");
  ordo_session_enter(session);
  session->where = "release_full";
  return ordo_session_leave(session, close_full(session, model));
}

ordo_status ordo_session_run_schedule(ordo_session *session)
{
  ORDO_NEED(session, session, "ordo_session_run_schedule");
  ordo_session_enter(session);
  if (session->state != ORDO_SESSION_STEP || session->info.micro_batch > 0)
    return ordo_session_leave(session, ordo_session_refuse(session, "ordo_session_run_schedule", "right after step_begin"));
  for (guint i = 0; i < session->order->len; i++) {
    const ordo_instance *instance = g_ptr_array_index(session->order, i);
    const ordo_strategy *table = instance->plugin->strategy;
    ordo_status status;
    if (!ORDO_CAN(table, ordo_strategy, run_schedule))
      continue;
    session->where = "run_schedule";
    ordo_losses_run(session);
    status = table->run_schedule(instance->self, &session->info);
    if (status != ORDO_OK)
      return ordo_session_leave(session, ordo_session_fail(session, ordo_session_plugin_status(session, instance->plugin, status, 0)));
    session->info.micro_batch = session->info.n_micro_batches;
    return ordo_session_leave(session, ORDO_OK);
  }
  return ordo_session_leave(session, ORDO_E_NOT_FOUND);
}

ordo_status ordo_session_override_unit(ordo_session *session, uint32_t model, uint32_t unit, ordo_unit_override *override)
{
  const ordo_model *view = ordo_session_model(session, model);
  ORDO_NEED(session, override, "ordo_session_override_unit");
  ordo_session_enter(session);
  if (!view || unit >= view->n_units)
    return ordo_session_leave(session, no_model(session, "ordo_session_override_unit"));
  session->where = "override_unit";
  for (guint i = 0; i < session->instances->len; i++) {
    const ordo_instance *instance = g_ptr_array_index(session->instances, i);
    const ordo_strategy *table = instance->plugin->strategy;
    ordo_status status;
    if (instance->model->view.index != model || !table || !ORDO_CAN(table, ordo_strategy, override_unit))
      continue;
    status = table->override_unit(instance->self, view->units[unit], override);
    if (status != ORDO_E_NOT_FOUND)
      return ordo_session_leave(session, ordo_session_plugin_status(session, instance->plugin, status, 0));
  }
  return ordo_session_leave(session, ORDO_E_NOT_FOUND);
}
