/* resume.c - what a checkpoint needs from the session itself: counters, and the private state of a precision plugin.
 *
 * Weights and optimizer state are reached through leaves and placements; a loss scaler is private to its plugin and comes as a blob.
 *
 * Guarded against: a run that goes on with the bias correction and the schedule of step 1, and a scaler state that arrives before the
 * scaler exists (which is how resuming failed where the restore ran before the initialisation).
 */
#include "session.h"

static ordo_status no_model(ordo_session *session, const char *call)
{
  return ordo_errors_push(ordo_session_errors(session), ORDO_E_INVALID, "E-STEP-ARGUMENT", call, "it is an index into ordo_session_model()",
                          "see session.h", "there is no such model");
}

static ordo_model_state *model_at(const ordo_session *session, uint32_t model)
{
  return model < session->models->len ? g_ptr_array_index(session->models, model) : NULL;
}

static gboolean is_restoring(const ordo_session *session, ordo_step step)
{
  return session->state == ORDO_SESSION_SETUP && session->node && session->node->step == step;
}

ordo_status ordo_session_resume_at(ordo_session *session, uint32_t index, int64_t steps, int64_t updates)
{
  static const char call[] = "ordo_session_resume_at";
  ordo_model_state *model;
  ORDO_NEED(session, session, call);
  model = model_at(session, index);
  ordo_session_enter(session);
  if (!model)
    return ordo_session_leave(session, no_model(session, call));
  if (!is_restoring(session, ORDO_STEP_RESTORE_SCHEDULER) && !is_restoring(session, ORDO_STEP_RESTORE_DATA) &&
      !is_restoring(session, ORDO_STEP_RESTORE_RNG) && (session->state != ORDO_SESSION_READY || session->began))
    return ordo_session_leave(session, ordo_session_refuse(session, call, "from restore.scheduler on and before the first step"));
  if (updates < 0 || updates > steps) {
    g_autofree char *why = g_strdup_printf("%" G_GINT64_FORMAT " steps and %" G_GINT64_FORMAT " updates", steps, updates);
    return ordo_session_leave(session,
                              ordo_errors_push(ordo_session_errors(session), ORDO_E_INVALID, "E-RESUME-COUNTERS", call, why,
                                               "0 <= updates <= steps; take both from one checkpoint", "the counters of a run cannot be"));
  }
  session->info.step = steps;
  model->optimizer_steps = updates;
  return ordo_session_leave(session, ORDO_OK);
}

/* The precision plugin of a model, null if there is none or it has no state. */
static const ordo_instance *stateful(const ordo_session *session, uint32_t model, const ordo_state_ops **ops)
{
  for (guint i = 0; i < session->instances->len; i++) {
    const ordo_instance *instance = g_ptr_array_index(session->instances, i);
    const ordo_precision *table = instance->plugin->precision;
    *ops = table && ORDO_HAS(table, ordo_precision, state) ? table->state : NULL;
    if (instance->model->view.index == model && *ops && ORDO_CAN(*ops, ordo_state_ops, blob_size) &&
        ORDO_CAN(*ops, ordo_state_ops, blob_save) && ORDO_CAN(*ops, ordo_state_ops, blob_load))
      return instance;
  }
  return NULL;
}

static ordo_status check_idle(ordo_session *session, const char *call, uint32_t model)
{
  if (session->state != ORDO_SESSION_SETUP && session->state != ORDO_SESSION_READY)
    return ordo_session_refuse(session, call, "in the set-up and between training steps");
  return model_at(session, model) ? ORDO_OK : no_model(session, call);
}

ordo_status ordo_session_precision_save(ordo_session *session, uint32_t model, void *blob, size_t *size)
{
  static const char call[] = "ordo_session_precision_save";
  const ordo_state_ops *ops;
  const ordo_instance *instance;
  size_t room;
  ordo_status status;
  ORDO_NEED(session, size, call);
  ordo_session_enter(session);
  room = *size;
  *size = 0;
  if ((status = check_idle(session, call, model)) != ORDO_OK)
    return ordo_session_leave(session, status);
  instance = stateful(session, model, &ops);
  *size = instance ? ops->blob_size(instance->self) : 0;
  if (!blob || *size == 0)
    return ordo_session_leave(session, ORDO_OK);
  if (room < *size)
    return ordo_session_leave(session, ordo_errors_push(ordo_session_errors(session), ORDO_E_INVALID, "E-RESUME-STATE", call,
                                                        "a null blob asks for the size", "give as much room as that",
                                                        "%zu bytes are needed, there is room for %zu", *size, room));
  session->where = "precision_save";
  return ordo_session_leave(session, ordo_session_plugin_status(session, instance->plugin, ops->blob_save(instance->self, blob, *size), 0));
}

ordo_status ordo_session_precision_load(ordo_session *session, uint32_t model, const void *blob, size_t size, const char *version)
{
  static const char call[] = "ordo_session_precision_load";
  const ordo_state_ops *ops;
  const ordo_instance *instance;
  const char *where;
  size_t before;
  ordo_status status;
  ORDO_NEED(session, session, call);
  where = session->where;
  ordo_session_enter(session);
  before = ordo_errors_count(ordo_session_errors(session));
  if ((status = check_idle(session, call, model)) != ORDO_OK)
    return ordo_session_leave(session, status);
  instance = stateful(session, model, &ops);
  if (!instance || !blob)
    return ordo_session_leave(session, ordo_errors_push(ordo_session_errors(session), ORDO_E_NOT_FOUND, "E-RESUME-STATE", call,
                                                        instance ? "the blob is null" : "no precision plugin of the model has a state",
                                                        "resume with the precision that the run was saved with",
                                                        "there is no precision state to restore"));
  session->where = "restore.precision";
  status = ops->blob_load(instance->self, blob, size, version ? version : instance->plugin->entry->version);
  status = ordo_session_plugin_status(session, instance->plugin, status, before);
  session->where = where;
  return ordo_session_leave(session, status);
}
