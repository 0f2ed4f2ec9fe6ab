/* calls.c - who is called at which event, found once.
 *
 * A training step has thousands of events and most of them interest one plugin or none. After the set-up the host writes, per event, an
 * array of (function, instance); an event is then a walk over a few entries, without a lookup, an allocation or a lock.
 *
 * Order: strategies nest like function calls. What was set up last is outermost: its pre_ event comes first and its post_ event last.
 * Gradients therefore reach the strategy that sharded the leaves before one that only observes the shards.
 */
#include "session.h"

#define ADD(ARRAY, TYPE, INSTANCE, MEMBER)                                               \
  G_STMT_START                                                                           \
  {                                                                                      \
    if (ORDO_CAN((INSTANCE)->plugin->strategy, ordo_strategy, MEMBER)) {                 \
      TYPE entry = {(INSTANCE)->plugin->strategy->MEMBER, (INSTANCE)->self, (INSTANCE)}; \
      g_array_append_val(ARRAY, entry);                                                  \
    }                                                                                    \
  }                                                                                      \
  G_STMT_END

static GArray *new_array(gsize size)
{
  return g_array_new(FALSE, FALSE, (guint)size);
}

static void build_model_calls(ordo_session *session, ordo_model_state *model)
{
  ordo_model_calls *calls = &model->calls;
  calls->pre_forward = new_array(sizeof(ordo_unit_call));
  calls->post_forward = new_array(sizeof(ordo_unit_call));
  calls->pre_backward = new_array(sizeof(ordo_unit_call));
  calls->post_backward = new_array(sizeof(ordo_unit_call));
  calls->grad_ready = new_array(sizeof(ordo_param_call));
  calls->activation = new_array(sizeof(ordo_activation_call));
  calls->progress = g_ptr_array_new();
  for (guint i = 0; i < session->order->len; i++) {
    ordo_instance *inner = g_ptr_array_index(session->order, i);
    ordo_instance *outer = g_ptr_array_index(session->order, session->order->len - 1 - i);
    if (outer->model == model) {
      ADD(calls->pre_forward, ordo_unit_call, outer, pre_forward);
      ADD(calls->pre_backward, ordo_unit_call, outer, pre_backward);
    }
    if (inner->model != model)
      continue;
    ADD(calls->post_forward, ordo_unit_call, inner, post_forward);
    ADD(calls->post_backward, ordo_unit_call, inner, post_backward);
    ADD(calls->grad_ready, ordo_param_call, inner, grad_ready);
    ADD(calls->activation, ordo_activation_call, inner, activation);
    if (inner->job.axis && inner->job.axis->size > 1)
      g_ptr_array_add(calls->progress, (gpointer)inner->job.axis->comm);
  }
}

static void build_step_calls(ordo_session *session)
{
  session->step_begin = new_array(sizeof(ordo_info_call));
  session->micro_begin = new_array(sizeof(ordo_info_call));
  session->micro_end = new_array(sizeof(ordo_info_call));
  session->pre_step = new_array(sizeof(ordo_info_call));
  session->step_end = new_array(sizeof(ordo_info_call));
  for (guint i = 0; i < session->order->len; i++) {
    ordo_instance *inner = g_ptr_array_index(session->order, i);
    ordo_instance *outer = g_ptr_array_index(session->order, session->order->len - 1 - i);
    ADD(session->step_begin, ordo_info_call, outer, step_begin);
    ADD(session->micro_begin, ordo_info_call, outer, micro_begin);
    ADD(session->micro_end, ordo_info_call, inner, micro_end);
    ADD(session->pre_step, ordo_info_call, inner, pre_step);
    ADD(session->step_end, ordo_info_call, inner, step_end);
  }
  for (guint i = 0; i < session->instances->len; i++) {
    ordo_instance *instance = g_ptr_array_index(session->instances, i);
    const ordo_precision *table = instance->plugin->precision;
    if (table && ORDO_CAN(table, ordo_precision, step_begin)) {
      ordo_info_call entry = {table->step_begin, instance->self, instance};
      g_array_append_val(session->step_begin, entry);
    }
    if (table && ORDO_CAN(table, ordo_precision, step_end)) {
      ordo_info_call entry = {table->step_end, instance->self, instance};
      g_array_append_val(session->step_end, entry);
    }
    if (table && ORDO_CAN(table, ordo_precision, loss_scale) && !session->scaler)
      session->scaler = instance;
    if (table && ORDO_CAN(table, ordo_precision, op_dtype) && !session->op_policy)
      session->op_policy = instance;
  }
}

static void free_event(gpointer data)
{
  g_clear_pointer(&((ordo_step_event *)data)->instances, g_ptr_array_unref);
}

/* fp16 gradients, in storage or inside the backward. As a sum over tokens they would leave the range of fp16 long before their mean does,
 * and the loss scale would pay for it; so they are divided at the loss. */
static gboolean computes_fp16(const ordo_session *session)
{
  if (ordo_session_op_dtype(session, ORDO_OP_MATMUL) == ORDO_F16)
    return TRUE;
  for (guint m = 0; m < session->models->len; m++) {
    const ordo_model *view = &((const ordo_model_state *)g_ptr_array_index(session->models, m))->view;
    for (uint32_t i = 0; i < view->n_params; i++)
      if (view->params[i]->grad_dtype == ORDO_F16)
        return TRUE;
  }
  return FALSE;
}

/* The events of step_end in the order of the plan. The first reducing instance of each model is the one that divides, unless the loss
 * factor does. */
static void build_events(ordo_session *session)
{
  const GArray *nodes = session->plan->resolution->events;
  guint32 has_divider = computes_fp16(session) ? ~0u : 0u;
  session->events = new_array(sizeof(ordo_step_event));
  g_array_set_clear_func(session->events, free_event);
  for (guint e = 0; e < nodes->len; e++) {
    const ordo_event_node *node = &g_array_index(nodes, ordo_event_node, e);
    ordo_step_event event = {node->event, g_ptr_array_new()};
    for (guint i = 0; i < session->instances->len; i++) {
      ordo_instance *instance = g_ptr_array_index(session->instances, i);
      guint32 model = 1u << instance->model->view.index;
      if (node->provider < 0 || instance->provider != (guint)node->provider)
        continue;
      g_ptr_array_add(event.instances, instance);
      if (node->event == ORDO_EVENT_UNSCALE && instance == session->scaler)
        session->unscales = ORDO_CAN(instance->plugin->precision, ordo_precision, unscale);
      if (node->event == ORDO_EVENT_REDUCE && instance->decl->reduces && !(has_divider & model)) {
        instance->divides = TRUE;
        session->any_reduces = TRUE;
        has_divider |= model;
      }
    }
    g_array_append_val(session->events, event);
  }
}

/* A strategy without a set-up step (it only reduces) still takes part in training, after those that have one. */
static void complete_order(ordo_session *session)
{
  for (guint i = 0; i < session->instances->len; i++) {
    ordo_instance *instance = g_ptr_array_index(session->instances, i);
    if (instance->plugin->strategy && !g_ptr_array_find(session->order, instance, NULL))
      g_ptr_array_add(session->order, instance);
  }
}

ordo_status ordo_calls_build(ordo_session *session)
{
  complete_order(session);
  build_step_calls(session);
  build_events(session);
  for (guint m = 0; m < session->models->len; m++)
    build_model_calls(session, g_ptr_array_index(session->models, m));
  return ORDO_OK;
}

void ordo_calls_free(ordo_session *session)
{
  g_clear_pointer(&session->step_begin, g_array_unref);
  g_clear_pointer(&session->micro_begin, g_array_unref);
  g_clear_pointer(&session->micro_end, g_array_unref);
  g_clear_pointer(&session->pre_step, g_array_unref);
  g_clear_pointer(&session->step_end, g_array_unref);
  g_clear_pointer(&session->events, g_array_unref);
}

void ordo_model_calls_free(ordo_model_calls *calls)
{
  g_clear_pointer(&calls->pre_forward, g_array_unref);
  g_clear_pointer(&calls->post_forward, g_array_unref);
  g_clear_pointer(&calls->pre_backward, g_array_unref);
  g_clear_pointer(&calls->post_backward, g_array_unref);
  g_clear_pointer(&calls->grad_ready, g_array_unref);
  g_clear_pointer(&calls->activation, g_array_unref);
  g_clear_pointer(&calls->progress, g_ptr_array_unref);
}
