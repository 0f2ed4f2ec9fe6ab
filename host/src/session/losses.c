/* losses.c - the losses of a step: their scales, who overflowed, and the vote.
 *
 * A step has one loss, number 0, unless the embedder says otherwise before its first micro-batch. The scale of a loss multiplies the start
 * of its backward; gradients of several losses meet in the scale of the one that ran last, which step.unscale takes out.
 *
 * Guarded against: one loss's overflow halving the scale of all. The vote carries a flag for each loss.
 */
#include "session.h"

#include <math.h>

static const ordo_precision *scaler_table(const ordo_session *session)
{
  return session->scaler ? session->scaler->plugin->precision : NULL;
}

/* The scale of a loss; the status is that of a plugin that has no such loss. */
static ordo_status scale_of(ordo_session *session, uint32_t loss_id, double *scale)
{
  const ordo_precision *table = scaler_table(session);
  size_t before = ordo_errors_count(ordo_session_errors(session));
  g_autofree char *why = NULL;
  *scale = table ? table->loss_scale(session->scaler->self, loss_id) : 1.0;
  if (isfinite(*scale) && *scale > 0.0)
    return ORDO_OK;
  if (ordo_errors_count(ordo_session_errors(session)) > before)
    return ordo_errors_at(ordo_session_errors(session), before)->status;
  why = g_strdup_printf("plugin '%s' answered %g", session->scaler->plugin->id, *scale);
  return ordo_errors_push(ordo_session_errors(session), ORDO_E_INVALID, "E-STEP-LOSS", "loss_scale", why,
                          "a loss scale is a finite number above 0", "loss %u has no scale", loss_id);
}

ordo_status ordo_losses_begin(ordo_session *session, double base)
{
  ordo_status status = scale_of(session, 0, &session->loss_scale);
  session->first_scale = session->loss_scale;
  session->loss_base = base;
  session->loss_factor = base * session->loss_scale;
  session->info.loss_id = 0;
  session->losses_used = 1;
  session->loss_overflow = 0;
  session->tracks_losses = FALSE;
  return status;
}

ordo_status ordo_losses_select(ordo_session *session, uint32_t loss_id)
{
  gboolean first = session->info.micro_batch == 0;
  double scale;
  ordo_status status;
  if (!first && !session->tracks_losses)
    return ordo_session_refuse(session, "ordo_session_select_loss",
                               "before the first micro-batch of a step, and from then on between them");
  if (loss_id >= ORDO_MAX_LOSSES)
    return ordo_errors_push(ordo_session_errors(session), ORDO_E_INVALID, "E-STEP-LOSS", "ordo_session_select_loss",
                            "losses are counted from 0, and there are 64 at most", "add losses up that need no scale of their own",
                            "there is no loss %u", loss_id);
  if (session->info.n_micro_batches > 1 && !ordo_accumulate_possible(session))
    return ordo_errors_push(ordo_session_errors(session), ORDO_E_UNSUPPORTED, "E-STEP-LOSS", "ordo_session_select_loss",
                            "a strategy reduces the gradients of every micro-batch and keeps only sums",
                            "let it accumulate whole gradients (no_sync=true)", "gradients of several losses cannot be kept apart");
  if ((status = scale_of(session, loss_id, &scale)) != ORDO_OK)
    return status;
  if (first && !session->tracks_losses && (status = ordo_accumulate_begin(session, TRUE)) != ORDO_OK)
    return status;
  if (first)
    session->losses_used = 0;
  else if (scale != session->loss_scale)
    ordo_accumulate_rescale(session, scale / session->loss_scale);
  session->tracks_losses = TRUE;
  session->losses_used |= (guint64)1 << loss_id;
  session->info.loss_id = loss_id;
  session->loss_scale = scale;
  session->first_scale = first ? scale : session->first_scale;
  session->loss_factor = session->loss_base * scale;
  return ORDO_OK;
}

static ordo_status update(ordo_session *session, ordo_instance *instance, guint64 overflowed)
{
  const ordo_precision *table = instance->plugin->precision;
  ordo_status status = ORDO_OK;
  if (!table)
    return ORDO_OK;
  if (!ORDO_CAN(table, ordo_precision, update_loss_scale))
    return ORDO_CAN(table, ordo_precision, update_scale) ? table->update_scale(instance->self, session->overflow) : ORDO_OK;
  for (uint32_t l = 0; l < ORDO_MAX_LOSSES && status == ORDO_OK; l++)
    if (session->losses_used >> l & 1u)
      status = table->update_loss_scale(instance->self, l, overflowed >> l & 1u ? 1 : 0);
  return status;
}

/* Every rank takes part, also one without a shard: an overflow anywhere skips the step everywhere. */
ordo_status ordo_losses_vote(ordo_session *session)
{
  int32_t flags[1 + ORDO_MAX_LOSSES] = {session->overflow ? 1 : 0};
  int64_t n = 1;
  guint64 overflowed = 0;
  ordo_status status;
  for (uint32_t l = 0; l < ORDO_MAX_LOSSES; l++) {
    flags[1 + l] = (int32_t)(session->loss_overflow >> l & 1u);
    if (session->tracks_losses && session->losses_used >> l & 1u)
      n = 2 + (int64_t)l;
  }
  status = ordo_session_reduce(session, session->mesh->world, flags, n, ORDO_I32, ORDO_MAX, "overflow vote");
  if (status != ORDO_OK)
    return status;
  session->overflow = flags[0] != 0;
  session->skip |= session->overflow;
  for (uint32_t l = 0; session->overflow && l + 1 < (uint32_t)n; l++)
    overflowed |= (guint64)(flags[1 + l] != 0) << l;
  if (session->overflow && overflowed == 0)
    overflowed = session->losses_used; /* each was finite where it was made; the sum of them, or of ranks, is not */
  for (guint i = 0; i < session->instances->len; i++) {
    ordo_instance *instance = g_ptr_array_index(session->instances, i);
    if ((status = update(session, instance, overflowed)) != ORDO_OK)
      return ordo_session_plugin_status(session, instance->plugin, status, 0);
  }
  return ORDO_OK;
}
