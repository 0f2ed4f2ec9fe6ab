/* finish.c - what happens after the last micro-batch: the step events of the plan, in its order.
 *
 * reduce -> divide -> unscale -> overflow vote -> norm -> clip -> optimizer -> masters -> post_step -> scheduler. The order comes from the
 * plan; this file says what each event does, and that nothing is updated unless every rank agrees and the norm is finite.
 *
 * Division happens once. The first reducing strategy is told the whole divisor and reports what it divided by; the host divides by what is
 * left, so a strategy that only sums is correct as well and nobody hard-codes 1/world.
 */
#include "session.h"

#include <math.h>

static ordo_status plugin_failed(ordo_session *session, const ordo_instance *owner, ordo_status status)
{
  return ordo_session_plugin_status(session, owner->plugin, status, 0);
}

static ordo_status reduce(ordo_session *session, const ordo_step_event *event)
{
  for (guint i = 0; i < event->instances->len; i++) {
    ordo_instance *instance = g_ptr_array_index(event->instances, i);
    const ordo_strategy *table = instance->plugin->strategy;
    ordo_status status;
    if (!table || !ORDO_CAN(table, ordo_strategy, reduce))
      continue;
    session->info.divide_factor = instance->divides ? session->weight : 1.0;
    status = table->reduce(instance->self, &session->info);
    if (status != ORDO_OK)
      return plugin_failed(session, instance, status);
  }
  return ORDO_OK;
}

static ordo_status divide(ordo_session *session)
{
  double divisor = session->any_reduces ? session->weight : 1.0;
  ordo_status status = ordo_invariants_reduced(session);
  for (guint m = 0; m < session->models->len && status == ORDO_OK; m++) {
    ordo_model_state *model = g_ptr_array_index(session->models, m);
    for (uint32_t i = 0; i < model->view.n_leaves; i++) {
      ordo_leaf_record *record = (ordo_leaf_record *)model->view.leaves[i];
      if (record->leaf.grad_state == ORDO_GRAD_HELD)
        ordo_norm_scale(&record->leaf, record->divided_by / divisor);
    }
  }
  return status;
}

static ordo_status unscale(ordo_session *session, const ordo_step_event *event)
{
  for (guint i = 0; i < event->instances->len; i++) {
    ordo_instance *instance = g_ptr_array_index(event->instances, i);
    const ordo_precision *table = instance->plugin->precision;
    int32_t overflow = 0;
    ordo_status status;
    if (!table || !ORDO_CAN(table, ordo_precision, unscale))
      continue;
    status = table->unscale(instance->self, &session->info, &overflow);
    if (status != ORDO_OK)
      return plugin_failed(session, instance, status);
    session->overflow |= overflow != 0;
  }
  return ORDO_OK;
}

static ordo_status refuse_nonfinite(ordo_session *session)
{
  const ordo_leaf *leaf = ordo_norm_first_nonfinite(session);
  const char *scaler = session->scaler && session->loss_scale > 1.0 ? session->scaler->plugin->id : NULL;
  g_autofree char *scaled =
      scaler ? g_strdup_printf(
                   "; '%s' has multiplied the loss by %g, which may be what overflowed: try a smaller loss scale, or one that adapts",
                   scaler, session->loss_scale)
             : g_strdup("");
  g_autofree char *why = g_strdup_printf("first in leaf '%s'%s; nothing was updated%s", leaf ? leaf->name : "of another rank",
                                         leaf ? " of this rank" : "", scaled);
  return ordo_errors_push(
      ordo_session_errors(session), ORDO_E_INVARIANT, "E-STEP-NONFINITE", leaf ? leaf->name : "another rank", why,
      scaler ? "lower the loss scale first (loss_scale=dynamic finds one, where the plugin has it); then look at the batch and the "
               "learning rate"
             : "look at the batch, the learning rate and, under a sharding strategy, for weights read through a pointer that was kept "
               "(released ones read as NaN); a precision plugin with a loss scaler skips such steps",
      "step %" G_GINT64_FORMAT ": the gradient is not finite", session->info.step);
}

static ordo_status grad_norm(ordo_session *session)
{
  ordo_status status;
  session->norm = INFINITY;
  if (session->skip)
    return ORDO_OK;
  status = ordo_norm_compute(session, &session->norm);
  if (status != ORDO_OK)
    return status;
  return isfinite(session->norm) ? ORDO_OK : refuse_nonfinite(session);
}

/* Coefficient min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ defines it. */
static void clip(ordo_session *session)
{
  double limit = session->options.max_grad_norm;
  if (session->skip || !(limit > 0.0))
    return;
  session->clip = MIN(1.0, limit / (session->norm + 1e-6));
}

/* Any strategy may veto the update; one veto on one rank counts for all. */
static ordo_status vote_commit(ordo_session *session)
{
  int32_t commit = 1;
  gboolean asked = FALSE;
  ordo_status status;
  for (guint i = 0; i < session->order->len; i++) {
    ordo_instance *instance = g_ptr_array_index(session->order, i);
    const ordo_strategy *table = instance->plugin->strategy;
    int32_t own = 1;
    if (!ORDO_CAN(table, ordo_strategy, should_commit))
      continue;
    asked = TRUE;
    if ((status = table->should_commit(instance->self, &own)) != ORDO_OK)
      return plugin_failed(session, instance, status);
    commit = commit && own;
  }
  if (!asked)
    return ORDO_OK;
  status = ordo_session_reduce(session, session->mesh->world, &commit, 1, ORDO_I32, ORDO_MIN, "commit vote");
  session->skip |= commit == 0;
  return status;
}

static void scale_model(ordo_model_state *model, double factor)
{
  for (uint32_t i = 0; i < model->view.n_leaves; i++) {
    ordo_leaf_record *record = (ordo_leaf_record *)model->view.leaves[i];
    if (record->leaf.grad_state == ORDO_GRAD_HELD)
      ordo_norm_scale(ordo_norm_side(record), factor);
  }
}

static void mark_masters(ordo_model_state *model)
{
  for (uint32_t i = 0; i < model->view.n_leaves; i++)
    if (model->view.leaves[i]->master)
      model->view.leaves[i]->master->grad_state = model->view.leaves[i]->grad_state;
}

static ordo_status update(ordo_session *session, ordo_model_state *model)
{
  ordo_optimizer *optimizer = model->optimizer;
  gboolean applies = (optimizer->flags & ORDO_OPTIMIZER_APPLIES_FACTOR) != 0;
  ordo_step_args args = {sizeof args, model->optimizer_steps + 1, applies ? session->clip : 1.0};
  size_t before = ordo_errors_count(ordo_session_errors(session));
  ordo_status status;
  if (!ORDO_CAN(optimizer, ordo_optimizer, step)) /* complete when the set-up ended, so a step event has emptied it */
    return ordo_errors_push(ordo_session_errors(session), ORDO_E_INVALID, "E-OPTIMIZER-TABLE", "optimizer.step",
                            "it was there after the set-up; a plugin or the program has taken it away since",
                            "leave the functions of ordo_optimizer alone during training", "the optimizer has no step function");
  if (!applies)
    scale_model(model, session->clip);
  mark_masters(model);
  ordo_invariants_before_update(model);
  status = ordo_session_embedder_status(session, "optimizer.step", optimizer->step(optimizer->ctx, &args), before);
  if (status != ORDO_OK)
    return status;
  model->optimizer_steps++;
  return ordo_invariants_changed(session, model);
}

static ordo_status optimizer_step(ordo_session *session)
{
  ordo_status status = vote_commit(session);
  if (status == ORDO_OK && !session->skip)
    status = ordo_step_run_info_calls(session, session->pre_step, "pre_step");
  for (guint m = 0; m < session->models->len && status == ORDO_OK && !session->skip; m++) {
    ordo_model_state *model = g_ptr_array_index(session->models, m);
    if (model->optimizer)
      status = update(session, model);
  }
  return status;
}

static ordo_status masters_to_model(ordo_session *session, const ordo_step_event *event)
{
  for (guint i = 0; i < event->instances->len && !session->skip; i++) {
    ordo_instance *instance = g_ptr_array_index(event->instances, i);
    const ordo_precision *table = instance->plugin->precision;
    ordo_status status = table && ORDO_CAN(table, ordo_precision, masters_to_model) ? table->masters_to_model(instance->self) : ORDO_OK;
    if (status != ORDO_OK)
      return plugin_failed(session, instance, status);
  }
  return ORDO_OK;
}

static ordo_status post_step(ordo_session *session, const ordo_step_event *event)
{
  for (guint i = 0; i < event->instances->len && !session->skip; i++) {
    ordo_instance *instance = g_ptr_array_index(event->instances, i);
    const ordo_strategy *table = instance->plugin->strategy;
    ordo_status status;
    session->info.divide_factor = instance->divides ? session->weight : 1.0;
    status = table && ORDO_CAN(table, ordo_strategy, post_step) ? table->post_step(instance->self, &session->info) : ORDO_OK;
    if (status != ORDO_OK)
      return plugin_failed(session, instance, status);
  }
  return ORDO_OK;
}

static ordo_status scheduler(ordo_session *session)
{
  const ordo_embedder *embedder = &session->embedder;
  for (guint m = 0; m < session->models->len && !session->skip && embedder->scheduler_step; m++) {
    ordo_model_state *model = g_ptr_array_index(session->models, m);
    size_t before = ordo_errors_count(ordo_session_errors(session));
    ordo_status status = ORDO_OK;
    if (model->optimizer)
      status = ordo_session_embedder_status(session, "scheduler_step",
                                            embedder->scheduler_step(embedder->ctx, model->optimizer, model->optimizer_steps), before);
    if (status != ORDO_OK)
      return status;
  }
  return ORDO_OK;
}

static ordo_status run_event(ordo_session *session, const ordo_step_event *event)
{
  switch (event->event) {
  case ORDO_EVENT_REDUCE:
    return reduce(session, event);
  case ORDO_EVENT_DIVIDE:
    return divide(session);
  case ORDO_EVENT_UNSCALE:
    return unscale(session, event);
  case ORDO_EVENT_OVERFLOW_VOTE:
    return ordo_losses_vote(session);
  case ORDO_EVENT_GRAD_NORM:
    return grad_norm(session);
  case ORDO_EVENT_CLIP:
    clip(session);
    return ORDO_OK;
  case ORDO_EVENT_OPTIMIZER_STEP:
    return optimizer_step(session);
  case ORDO_EVENT_MASTERS_TO_MODEL:
    return masters_to_model(session, event);
  case ORDO_EVENT_POST_STEP:
    return post_step(session, event);
  case ORDO_EVENT_SCHEDULER:
    return scheduler(session);
  default:
    return ORDO_OK;
  }
}

/* Whatever the step came to, strategies hear of its end. */
static ordo_status end_step(ordo_session *session, ordo_status status)
{
  gboolean refused = status == ORDO_E_INVARIANT && !isfinite(session->norm) && !session->skip; /* E-STEP-NONFINITE: nothing was updated */
  ordo_status ended;
  if (status != ORDO_OK && !refused)
    return ordo_session_fail(session, status);
  ended = ordo_step_run_info_calls(session, session->step_end, "step_end");
  if (ended != ORDO_OK)
    return ended;
  session->state = ORDO_SESSION_READY;
  return status == ORDO_OK && !session->skip ? ordo_invariants_drift(session) : status;
}

ordo_status ordo_finish_run(ordo_session *session, gboolean stop_after_divide)
{
  gboolean reduced = session->state == ORDO_SESSION_REDUCED;
  ordo_status status = ORDO_OK;
  session->info.is_last_micro_batch = 1;
  session->norm = 0.0;
  session->clip = 1.0;
  for (guint e = 0; e < session->events->len && status == ORDO_OK; e++) {
    const ordo_step_event *event = &g_array_index(session->events, ordo_step_event, e);
    gboolean early = event->event == ORDO_EVENT_REDUCE || event->event == ORDO_EVENT_DIVIDE;
    if (early ? reduced : stop_after_divide)
      continue;
    session->where = ordo_event_name(event->event);
    status = run_event(session, event);
  }
  if (stop_after_divide)
    return status == ORDO_OK ? ORDO_OK : ordo_session_fail(session, status);
  for (guint m = 0; m < session->models->len && status == ORDO_OK && !session->skip; m++)
    status = ordo_invariants_copied(session, g_ptr_array_index(session->models, m));
  return end_step(session, status);
}
