/* losses.c - the losses of a step: their scales, who overflowed, and the vote.
 *
 * A step has one loss, number 0, unless the embedder says otherwise before its first micro-batch. The scale of a loss multiplies the start
 * of its backward; gradients of several losses meet in the scale of the one that ran last, which step.unscale takes out.
 *
 * Guarded against: one loss's overflow halving the scale of all (the vote carries a flag for each loss), and ranks whose gradients meet
 * in a reduction at different scales: the vote also carries a checksum of what each rank ran, before anything is updated.
 */
#include "session.h"

#include <math.h>
#include <string.h>

static const ordo_precision *scaler_table(const ordo_session *session)
{
  return session->scaler ? session->scaler->plugin->precision : NULL;
}

/* Under these options nothing takes the scale out again: gradients would be too large by it. */
static ordo_status refuse_scale(const ordo_session *session, double scale)
{
  g_autofree char *what = g_strdup_printf("the plugin scales the loss by %g, and no step.unscale of the plan takes that out again", scale);
  return ordo_tables_refuse(session->scaler->plugin, what,
                            session->scaler->plugin->precision->unscale
                                ? "step.unscale follows from precision.wrap_optimizer or precision.initialize, which its manifest does not "
                                  "declare under these options"
                                : "its table has no unscale");
}

/* The scale of a loss; the status is that of a plugin that has no such loss. */
static ordo_status scale_of(ordo_session *session, uint32_t loss_id, double *scale)
{
  const ordo_precision *table = scaler_table(session);
  size_t before = ordo_errors_count(ordo_session_errors(session));
  g_autofree char *why = NULL;
  *scale = table ? table->loss_scale(session->scaler->self, loss_id) : 1.0;
  if (isfinite(*scale) && *scale > 0.0)
    return *scale == 1.0 || session->unscales ? ORDO_OK : refuse_scale(session, *scale);
  if (ordo_errors_count(ordo_session_errors(session)) > before)
    return ordo_errors_at(ordo_session_errors(session), before)->status;
  why = g_strdup_printf("plugin '%s' answered %g", session->scaler->plugin->id, isnan(*scale) ? (double)NAN : *scale);
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
  session->losses_used = 0;
  session->loss_overflow = 0;
  memset(session->loss_scales, 0, sizeof session->loss_scales);
  session->tracks_losses = FALSE;
  return status;
}

ordo_status ordo_losses_select(ordo_session *session, uint32_t loss_id)
{
  gboolean first = session->info.micro_batch == 0;
  double scale;
  ordo_status status;
  if (session->info.micro_batch >= session->info.n_micro_batches)
    return ordo_session_refuse(session, "ordo_session_select_loss", "only where a micro-batch follows: none is left in this step");
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
  if (!first && scale != session->loss_scale)
    ordo_accumulate_rescale(session, scale / session->loss_scale);
  session->tracks_losses = TRUE;
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

/* A micro-batch of the selected loss begins. One that was selected and never ran has no gradient to be judged by. */
void ordo_losses_run(ordo_session *session)
{
  session->losses_used |= (guint64)1 << session->info.loss_id;
  session->loss_scales[session->info.loss_id] = session->loss_scale;
}

/* What must be the same on all ranks: the loss whose scale the gradients are in, and the scale of each that ran (0: it did not). */
enum { AGREED = 2 + ORDO_MAX_LOSSES };

static void collect(const ordo_session *session, double agreed[AGREED])
{
  agreed[0] = session->info.loss_id;
  agreed[1] = session->loss_scale;
  memcpy(agreed + 2, session->loss_scales, sizeof session->loss_scales);
}

static char *describe(const double agreed[AGREED], int at)
{
  if (at < 2)
    return g_strdup_printf("ended with loss %g at scale %.17g", agreed[0], agreed[1]);
  if (agreed[at] > 0.0)
    return g_strdup_printf("ran loss %d at scale %.17g", at - 2, agreed[at]);
  return g_strdup_printf("did not run loss %d", at - 2);
}

/* All ranks know that something differs; now they find out what. */
static ordo_status explain_difference(ordo_session *session)
{
  const ordo_comm *world = session->mesh->world;
  g_autofree double *all = g_new0(double, (gsize)world->size *AGREED);
  g_autofree char *here = NULL, *there = NULL, *why = NULL;
  double mine[AGREED];
  int at = 0, rank = 0;
  ordo_status status;
  collect(session, mine);
  if ((status = ordo_all_gather(world, mine, all, AGREED, ORDO_F64)) != ORDO_OK)
    return status;
  while (rank < world->size - 1 && memcmp(all + (gsize)rank * AGREED, mine, sizeof mine) == 0)
    rank++;
  while (at < AGREED - 1 && all[(gsize)rank * AGREED + (gsize)at] == mine[at])
    at++;
  here = describe(mine, at);
  there = describe(all + (gsize)rank * AGREED, at);
  why = g_strdup_printf("rank %d %s, this rank %s; nothing was updated", rank, there, here);
  return ordo_errors_push(ordo_session_errors(session), ORDO_E_MISMATCH, "E-STEP-LOSS-DIFFERS", "step.overflow_vote", why,
                          "call ordo_session_select_loss alike on all ranks, and restore the same scaler state on all of them; a plugin's "
                          "loss_scale must not depend on the rank",
                          "ranks ran step %" G_GINT64_FORMAT " with different losses or loss scales", session->info.step);
}

static gboolean tells_losses_apart(const ordo_session *session)
{
  for (guint i = 0; i < session->instances->len; i++) {
    const ordo_precision *table = ((const ordo_instance *)g_ptr_array_index(session->instances, i))->plugin->precision;
    if (table && ORDO_CAN(table, ordo_precision, update_loss_scale))
      return TRUE;
  }
  return FALSE;
}

/* The reduction of the vote: any overflow, lowest and highest checksum in halves, and an overflow of each loss. Its length depends on the
 * plan alone, since ranks may disagree on everything else. */
static ordo_status exchange(ordo_session *session, guint64 *overflowed)
{
  int32_t flags[5 + ORDO_MAX_LOSSES] = {session->overflow ? 1 : 0};
  int64_t n = tells_losses_apart(session) ? 5 + ORDO_MAX_LOSSES : 5;
  double agreed[AGREED];
  guint64 sum;
  ordo_status status;
  collect(session, agreed);
  sum = ordo_checksum(agreed, sizeof agreed);
  for (int half = 0; half < 2; half++) {
    flags[1 + 2 * half] = (int32_t)(uint32_t)(sum >> 32 * half);
    flags[2 + 2 * half] = ~flags[1 + 2 * half]; /* its maximum is the complement of the minimum */
  }
  for (uint32_t l = 0; l < ORDO_MAX_LOSSES; l++)
    flags[5 + l] = (int32_t)(session->loss_overflow >> l & 1u);
  status = ordo_session_reduce(session, session->mesh->world, flags, n, ORDO_I32, ORDO_MAX, "overflow vote");
  if (status != ORDO_OK)
    return status;
  if (!session->space && (flags[1] != ~flags[2] || flags[3] != ~flags[4]))
    return explain_difference(session);
  session->overflow = flags[0] != 0;
  *overflowed = 0;
  for (uint32_t l = 0; session->overflow && l + 5 < (uint32_t)n; l++)
    *overflowed |= (guint64)(flags[5 + l] != 0) << l;
  return ORDO_OK;
}

/* A scaler that gives up on one rank gives up on all: another one would report a good step and wait in the next. */
static ordo_status agree_on_outcome(ordo_session *session, ordo_status status)
{
  int32_t failed = status == ORDO_OK ? 0 : 1 + session->comm->rank;
  ordo_status reduced = ordo_session_reduce(session, session->mesh->world, &failed, 1, ORDO_I32, ORDO_MAX, "loss scale vote");
  if (status != ORDO_OK || reduced != ORDO_OK)
    return status != ORDO_OK ? status : reduced;
  if (failed == 0 || session->space)
    return ORDO_OK;
  return ordo_errors_push(ordo_session_errors(session), ORDO_E_MISMATCH, "E-STEP-LOSS-DIFFERS", "step.overflow_vote",
                          "the precision plugin refused there to go on, and accepted here",
                          "look at the error of that rank; restore the same scaler state on all ranks",
                          "the loss scale was not updated on rank %d", failed - 1);
}

static gboolean updates_scale(const ordo_instance *instance)
{
  const ordo_precision *table = instance->plugin->precision;
  return table && (ORDO_CAN(table, ordo_precision, update_loss_scale) || ORDO_CAN(table, ordo_precision, update_scale));
}

/* Every rank takes part, also one without a shard: an overflow anywhere skips the step everywhere. */
ordo_status ordo_losses_vote(ordo_session *session)
{
  guint64 overflowed;
  gboolean updates = FALSE;
  ordo_status status = exchange(session, &overflowed);
  if (status != ORDO_OK)
    return status;
  session->skip |= session->overflow;
  if (session->overflow && overflowed == 0)
    overflowed = session->losses_used; /* each was finite where it was made; the sum of them, or of ranks, is not */
  for (guint i = 0; i < session->instances->len && status == ORDO_OK; i++) {
    ordo_instance *instance = g_ptr_array_index(session->instances, i);
    updates |= updates_scale(instance);
    if ((status = update(session, instance, overflowed)) != ORDO_OK)
      status = ordo_session_plugin_status(session, instance->plugin, status, 0);
  }
  return updates ? agree_on_outcome(session, status) : status;
}
