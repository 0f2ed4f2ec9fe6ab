/* activation.c - what an embedder asks once about activations, and the check that model axes see the same batch.
 *
 * Strategies say at which places they transform what passes (wants_activation) and whether the residual stream is split (residual). An
 * embedder asks after the set-up and offers nothing else, so a session without tensor parallelism pays nothing.
 *
 * Guarded against: ranks of a model axis that read different data. Each computes a part of one sum, so the result would be a number that
 * belongs to no batch, and nothing would look wrong.
 */
#include "session.h"

static gboolean transforms(const ordo_instance *instance, const ordo_model_state *model)
{
  const ordo_strategy *table = instance->plugin->strategy;
  return instance->model == model && table && ORDO_CAN(table, ordo_strategy, activation);
}

gboolean ordo_activation_wanted(const ordo_instance *instance, uint32_t point, const ordo_param *param, int32_t backward)
{
  const ordo_strategy *table = instance->plugin->strategy;
  return !ORDO_CAN(table, ordo_strategy, wants_activation) || table->wants_activation(instance->self, point, param, backward) != 0;
}

int ordo_session_wants_activation(const ordo_session *session, uint32_t index, uint32_t point, uint32_t param, int32_t backward)
{
  const ordo_model_state *model = session && index < session->models->len ? g_ptr_array_index(session->models, index) : NULL;
  if (!model || param >= model->params->len)
    return 0;
  for (guint i = 0; i < session->order->len; i++) {
    const ordo_instance *instance = g_ptr_array_index(session->order, i);
    if (transforms(instance, model) && ordo_activation_wanted(instance, point, g_ptr_array_index(model->params, param), backward))
      return 1;
  }
  return 0;
}

void ordo_session_residual(const ordo_session *session, uint32_t index, int32_t *parts, int32_t *at)
{
  const ordo_model_state *model = session && index < session->models->len ? g_ptr_array_index(session->models, index) : NULL;
  int32_t n = 1, mine = 0;
  for (guint i = 0; model && i < session->order->len; i++) {
    const ordo_instance *instance = g_ptr_array_index(session->order, i);
    if (transforms(instance, model) && ORDO_CAN(instance->plugin->strategy, ordo_strategy, residual))
      instance->plugin->strategy->residual(instance->self, &n, &mine);
  }
  if (parts)
    *parts = n;
  if (at)
    *at = mine;
}

static ordo_status compare(ordo_session *session, const ordo_axis *axis, const ordo_instance *owner, guint64 checksum)
{
  guint64 pair[2] = {checksum, ~checksum};
  ordo_status status = ordo_session_reduce(session, axis->comm, pair, 2, ORDO_U64, ORDO_MAX, "data check");
  g_autofree char *why = NULL;
  if (status != ORDO_OK)
    return ordo_session_fail(session, status);
  if (pair[0] == ~pair[1])
    return ORDO_OK;
  why = g_strdup_printf("the %d ranks of axis '%s' ('%s') compute parts of one batch and must read the same one", axis->size, axis->name,
                        owner->plugin->id);
  ordo_errors_push(ordo_session_errors(session), ORDO_E_MISMATCH, "E-DATA-DIFFERS", axis->name, why,
                   "choose data by ordo_session_data_part, not by the rank; look for files that differ between machines",
                   "data differs along axis '%s'", axis->name);
  return ordo_session_fail(session, ORDO_E_MISMATCH);
}

ordo_status ordo_session_check_data(ordo_session *session, const void *data, size_t bytes)
{
  guint64 checksum = 0;
  gboolean known = FALSE;
  ordo_status status = ORDO_OK;
  ORDO_NEED(session, session, "ordo_session_check_data");
  if (bytes)
    ORDO_NEED(session, data, "ordo_session_check_data");
  ordo_session_enter(session);
  if (session->state == ORDO_SESSION_DEAD || session->state == ORDO_SESSION_FAILED)
    return ordo_session_leave(session, ordo_session_refuse(session, "ordo_session_check_data", "while the session lives"));
  for (guint i = 0; i < session->instances->len && status == ORDO_OK; i++) {
    const ordo_instance *instance = g_ptr_array_index(session->instances, i);
    const ordo_axis *axis = instance->job.axis;
    if (!instance->decl || !(instance->decl->flags & (1u << ORDO_FLAG_NEEDS_IDENTICAL_DATA)) || !axis || axis->size == 1)
      continue;
    if (!known)
      checksum = ordo_checksum(data, bytes);
    known = TRUE;
    status = compare(session, axis, instance, checksum);
  }
  return ordo_session_leave(session, status);
}
