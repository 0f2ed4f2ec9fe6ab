/* scope.c - calls that hand the whole model to somebody for a while: full parameters, a whole schedule, one unit's computation. */
#include "session.h"

static ordo_status idle(ordo_session *session, const char *call)
{
  if (session->state == ORDO_SESSION_READY || session->state == ORDO_SESSION_EVAL)
    return ORDO_OK;
  return ordo_session_refuse(session, call, "between training steps and inside an evaluation, when no unit is open");
}

const ordo_model_state *ordo_session_whole_model(const ordo_session *session)
{
  for (guint i = 0; i < session->models->len; i++) {
    const ordo_model_state *model = g_ptr_array_index(session->models, i);
    if (model->whole)
      return model;
  }
  return NULL;
}

/* One scope at a time and model, opened before it is closed: found here, where nothing has been asked of anybody and the session goes on.
 */
static ordo_status check_pair(ordo_session *session, const ordo_model_state *model, gboolean gather)
{
  if (model->whole != gather)
    return ORDO_OK;
  return ordo_errors_push(ordo_session_errors(session), ORDO_E_STATE, "E-STATE-ORDER",
                          gather ? "ordo_session_gather_full" : "ordo_session_release_full", model->view.name,
                          gather ? "close it with ordo_session_release_full first" : "open it with ordo_session_gather_full",
                          gather ? "a scope of full parameters is open already" : "no scope of full parameters is open");
}

static ordo_status no_model(ordo_session *session, const char *call)
{
  return ordo_errors_push(ordo_session_errors(session), ORDO_E_INVALID, "E-STEP-ARGUMENT", call, "it is an index into ordo_session_model()",
                          "see session.h", "there is no such model or unit");
}

/* Outermost first when opening, the reverse when closing, as with every pair of events. */
static ordo_status for_full(ordo_session *session, uint32_t index, gboolean gather, uint32_t flags)
{
  ordo_model_state *model = g_ptr_array_index(session->models, index);
  ordo_status checked = check_pair(session, model, gather);
  if (checked != ORDO_OK)
    return checked;
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
  model->whole = gather;
  return ORDO_OK;
}

ordo_status ordo_session_gather_full(ordo_session *session, uint32_t model, uint32_t flags)
{
  ordo_status status;
  ordo_session_enter(session);
  status = idle(session, "ordo_session_gather_full");
  session->where = "gather_full";
  if (status == ORDO_OK)
    status = model < session->models->len ? for_full(session, model, TRUE, flags) : no_model(session, "ordo_session_gather_full");
  return ordo_session_leave(session, status);
}

ordo_status ordo_session_release_full(ordo_session *session, uint32_t model)
{
  ordo_status status;
  ordo_session_enter(session);
  status = idle(session, "ordo_session_release_full");
  session->where = "release_full";
  if (status == ORDO_OK)
    status = model < session->models->len ? for_full(session, model, FALSE, 0) : no_model(session, "ordo_session_release_full");
  return ordo_session_leave(session, status);
}

ordo_status ordo_session_run_schedule(ordo_session *session)
{
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
