/* step.c - the training step as the embedder drives it: a strict state machine over the plan's events.
 *
 * Every call checks the state, walks the precomputed array of its event (calls.c), and moves the state on. It must be cheap: one event
 * through three plugins costs less than 100 ns (bench/bench_events.c). What happens after the last micro-batch is finish.c.
 *
 * Guarded against: events in another order, which a strategy cannot notice (a reduction started before the last contribution sums the
 * wrong numbers), and a gradient that is called complete twice or before all tied parameters have added theirs.
 */
#include "session.h"

#include <math.h>
#include <string.h>

#define NAME(FUNCTION) "ordo_session_" FUNCTION

/* [step] functions come from one thread per step. A debug build says so; a release build does not look. */
static ordo_status check_thread(ordo_session *session, const char *call)
{
#ifndef NDEBUG
  gsize self = ordo_session_this_thread();
  if (G_UNLIKELY(self != session->step_thread))
    return ordo_errors_push(ordo_session_errors(session), ORDO_E_STATE, "E-CONTRACT-THREAD", call,
                            "functions tagged [step] belong to the thread that began the step",
                            "call them all from one thread, see docs/contract.md", "%s was called from another thread", call);
#else
  (void)session, (void)call;
#endif
  return ORDO_OK;
}

#define ENTER(SESSION, ALLOWED, CALL, LEGAL)                                               \
  G_STMT_START                                                                             \
  {                                                                                        \
    ORDO_NEED(SESSION, SESSION, NAME(CALL));                                               \
    ordo_session_enter(SESSION);                                                           \
    if (G_UNLIKELY(!((1u << (SESSION)->state) & (ALLOWED))))                               \
      return ordo_session_leave(SESSION, ordo_session_refuse(SESSION, NAME(CALL), LEGAL)); \
    if (G_UNLIKELY(check_thread(SESSION, NAME(CALL)) != ORDO_OK))                          \
      return ordo_session_leave(SESSION, ORDO_E_STATE);                                    \
  }                                                                                        \
  G_STMT_END

static ordo_status bad_argument(ordo_session *session, const char *call, const char *what)
{
  return ordo_errors_push(ordo_session_errors(session), ORDO_E_INVALID, "E-STEP-ARGUMENT", call, "it is an index into ordo_session_model()",
                          "see session.h", "%s", what);
}

static ordo_status plugin_failed(ordo_session *session, const ordo_instance *owner, ordo_status status)
{
  return ordo_session_fail(session, ordo_session_plugin_status(session, owner->plugin, status, 0));
}

static ordo_status run_unit_calls(ordo_session *session, const GArray *calls, const ordo_unit *unit, const char *where)
{
  session->where = where;
  for (guint i = 0; i < calls->len; i++) {
    const ordo_unit_call *call = &g_array_index(calls, ordo_unit_call, i);
    ordo_status status = call->call(call->self, unit);
    if (G_UNLIKELY(status != ORDO_OK))
      return plugin_failed(session, call->owner, status);
  }
  return ORDO_OK;
}

ordo_status ordo_step_run_info_calls(ordo_session *session, const GArray *calls, const char *where)
{
  session->where = where;
  for (guint i = 0; i < calls->len; i++) {
    const ordo_info_call *call = &g_array_index(calls, ordo_info_call, i);
    ordo_status status;
    session->info.divide_factor = call->owner->divides ? session->weight : 1.0;
    status = call->call(call->self, &session->info);
    if (status != ORDO_OK)
      return plugin_failed(session, call->owner, status);
  }
  return ORDO_OK;
}

/* Lets collectives that were started earlier move while the model computes. */
static ordo_status progress(ordo_session *session, const ordo_model_state *model)
{
  for (guint i = 0; i < model->calls.progress->len; i++) {
    const ordo_comm *comm = g_ptr_array_index(model->calls.progress, i);
    ordo_status status = comm->progress(comm->ctx);
    if (G_UNLIKELY(status != ORDO_OK))
      return ordo_session_fail(session, status);
  }
  return ORDO_OK;
}

static ordo_model_state *find_model(const ordo_session *session, uint32_t index)
{
  return index < session->models->len ? g_ptr_array_index(session->models, index) : NULL;
}

ordo_status ordo_session_sum(ordo_session *session, double *values, size_t n)
{
  ordo_status status;
  ORDO_NEED(session, session, NAME("sum"));
  if (n)
    ORDO_NEED(session, values, NAME("sum"));
  ordo_session_enter(session);
  if (session->state == ORDO_SESSION_DEAD || session->state == ORDO_SESSION_FAILED)
    return ordo_session_leave(session, ordo_session_refuse(session, NAME("sum"), "while the session lives"));
  status = ordo_session_reduce(session, session->mesh->data, values, (int64_t)n, ORDO_F64, ORDO_SUM, "session sum");
  for (uint32_t a = 0; a < session->mesh->n_axes && status == ORDO_OK; a++)
    if (session->mesh->axes[a]->kind == ORDO_AXIS_DATA && !(session->summing_axes & (1u << a)))
      status = ordo_session_reduce(session, session->mesh->axes[a]->comm, values, (int64_t)n, ORDO_F64, ORDO_SUM, "session sum");
  return ordo_session_leave(session, status == ORDO_OK ? ORDO_OK : ordo_session_fail(session, status));
}

static void add_comm_seconds(const ordo_session *session, double *busy, double *wait)
{
  ordo_comm_stats stats = {.struct_size = sizeof stats};
  ordo_session_comm_stats(session, NULL, &stats);
  *busy = stats.busy_seconds;
  *wait = stats.wait_seconds;
}

static void begin_leaves(ordo_session *session)
{
  for (guint m = 0; m < session->models->len; m++) {
    ordo_model_state *model = g_ptr_array_index(session->models, m);
    for (uint32_t i = 0; i < model->view.n_leaves; i++) {
      ordo_leaf_record *record = (ordo_leaf_record *)model->view.leaves[i];
      record->leaf.grad_state = ORDO_GRAD_NONE;
      record->reduced = record->reduced_twice = 0;
      record->divided_by = 1.0;
      if (record->leaf.master)
        record->leaf.master->grad_state = ORDO_GRAD_NONE;
    }
    for (guint i = 0; i < model->params->len; i++)
      ((ordo_param_record *)g_ptr_array_index(model->params, i))->grad_held = FALSE;
  }
}

static ordo_status check_weight(ordo_session *session, double weight, double sum)
{
  g_autofree char *why = NULL;
  if (isfinite(weight) && weight >= 0.0 && isfinite(sum) && sum > 0.0)
    return ORDO_OK;
  why = g_strdup_printf("this rank gave %g, all data ranks together %g", isnan(weight) ? (double)NAN : weight,
                        isnan(sum) ? (double)NAN : sum); /* without the sign that computations leave on a NaN */
  return ordo_errors_push(ordo_session_errors(session), ORDO_E_INVALID, "E-STEP-WEIGHT", NAME("step_begin"), why,
                          "count the targets that enter the loss; skip a batch in which no rank has any",
                          "the weight of a step must be finite, at least 0, and above 0 over all ranks");
}

ordo_status ordo_session_step_begin(ordo_session *session, int32_t n_micro_batches, double weight)
{
  /* A negative share is summed as NaN, so that every rank learns of it and none is left waiting in a collective. */
  double sum = weight >= 0.0 ? weight : (double)NAN;
  ordo_status status;
  ORDO_NEED(session, session, NAME("step_begin"));
  session->step_thread = session->state == ORDO_SESSION_READY ? ordo_session_this_thread() : session->step_thread;
  ENTER(session, ORDO_IN(READY), "step_begin", "between training steps, after the set-up");
  if (n_micro_batches < 1)
    return ordo_session_leave(session, bad_argument(session, NAME("step_begin"), "a step has at least one micro-batch"));
  if (session->eval_only)
    return ordo_session_leave(session,
                              ordo_errors_push(ordo_session_errors(session), ORDO_E_STATE, "E-STATE-ORDER", NAME("step_begin"),
                                               "the plan was made with ORDO_PLAN_EVAL, so there is no optimizer",
                                               "plan without it to train", "a training step was begun in an evaluation-only session"));
  status = ordo_scope_check(session, NULL, NAME("step_begin"), "the model is bound to copies there, which no update would reach");
  if (status != ORDO_OK)
    return ordo_session_leave(session, status);
  add_comm_seconds(session, &session->busy_before, &session->wait_before);
  session->where = "step_begin";
  status = ordo_session_sum(session, &sum, 1);
  if (session->space && status == ORDO_OK && sum == 0.0)
    sum = 1.0; /* of ranks that do not exist; a step in which no rank has any is not what is estimated */
  if (status == ORDO_OK)
    status = check_weight(session, weight, sum);
  if (status != ORDO_OK)
    return ordo_session_leave(session, status);
  session->weight = sum;
  session->began = TRUE;
  session->info.step++;
  session->info.micro_batch = 0;
  session->info.n_micro_batches = n_micro_batches;
  session->info.is_last_micro_batch = n_micro_batches == 1;
  session->info.evaluating = 0;
  session->skip = session->overflow = FALSE;
  begin_leaves(session);
  session->state = ORDO_SESSION_STEP;
  status = ordo_step_run_info_calls(session, session->step_begin, "step_begin");
  if (status == ORDO_OK)
    status = ordo_losses_begin(session, session->any_reduces ? 1.0 : 1.0 / sum);
  if (status == ORDO_OK)
    status = ordo_accumulate_begin(session, FALSE);
  return ordo_session_leave(session, status == ORDO_OK ? ORDO_OK : ordo_session_fail(session, status));
}

ordo_status ordo_session_select_loss(ordo_session *session, uint32_t loss_id)
{
  ENTER(session, ORDO_IN(STEP), "select_loss", "in a step, between micro-batches");
  return ordo_session_leave(session, ordo_losses_select(session, loss_id));
}

double ordo_session_loss_factor(const ordo_session *session)
{
  return session ? session->loss_factor : 1.0;
}

double ordo_session_loss_scale(const ordo_session *session)
{
  return session && session->scaler ? session->loss_scale : 1.0;
}

double ordo_session_step_weight(const ordo_session *session)
{
  return session ? session->weight : 0.0;
}

/* A unit whose packed params cannot be unpacked or bound is half open: nothing to go on with. */
static ordo_status packed(ordo_session *session, ordo_status status)
{
  return status == ORDO_OK ? ORDO_OK : ordo_session_fail(session, status);
}

static void begin_units(ordo_session *session)
{
  session->micro_serial++;
  for (guint m = 0; m < session->models->len; m++) {
    ordo_model_state *model = g_ptr_array_index(session->models, m);
    model->next_unit = 0;
    model->last_backward = model->view.n_units;
    model->open_ties = 0;
    for (guint i = 0; i < model->params->len; i++) {
      ordo_param_record *param = g_ptr_array_index(model->params, i);
      param->pending = param->n_members;
    }
  }
}

ordo_status ordo_session_micro_begin(ordo_session *session)
{
  ordo_status status;
  ENTER(session, ORDO_IN(STEP), "micro_begin", "in a step, before its last micro-batch");
  if (session->info.micro_batch >= session->info.n_micro_batches)
    return ordo_session_leave(session, ordo_session_refuse(session, NAME("micro_begin"), "as often as step_begin was told"));
  session->info.is_last_micro_batch = session->info.micro_batch + 1 == session->info.n_micro_batches;
  status = ordo_accumulate_check_micro(session);
  if (G_UNLIKELY(status != ORDO_OK))
    return ordo_session_leave(session, status);
  begin_units(session);
  ordo_losses_run(session);
  session->state = ORDO_SESSION_MICRO;
  status = ordo_step_run_info_calls(session, session->micro_begin, "micro_begin");
  return ordo_session_leave(session, status);
}

/* Looks up the unit and refuses one that does not exist. */
#define FIND_UNIT(SESSION, INDEX, UNIT, CALL)                                                                      \
  ordo_model_state *model = find_model(SESSION, INDEX);                                                            \
  ordo_unit_record *record = model && (UNIT) < model->view.n_units ? g_ptr_array_index(model->units, UNIT) : NULL; \
  if (G_UNLIKELY(!record))                                                                                         \
  return ordo_session_leave(SESSION, bad_argument(SESSION, NAME(CALL), "there is no such model or unit"))

ordo_status ordo_session_pre_forward(ordo_session *session, uint32_t index, uint32_t unit)
{
  ordo_status status;
  ENTER(session, ORDO_IN(MICRO) | ORDO_IN(EVAL), "pre_forward",
        "in a micro-batch or evaluation, when no unit is open and no backward has begun");
  FIND_UNIT(session, index, unit, "pre_forward");
  if (G_UNLIKELY(session->state == ORDO_SESSION_MICRO && unit < model->next_unit))
    return ordo_session_leave(session,
                              ordo_session_refuse(session, NAME("pre_forward"), "for units in ascending order, each once per micro-batch"));
  if (G_UNLIKELY(model->full_open && (model->full_flags & ORDO_GATHER_RANK0_ONLY))) {
    status = ordo_scope_check(session, model, NAME("pre_forward"),
                              "it was opened with ORDO_GATHER_RANK0_ONLY, so other ranks have no values to compute with");
    return ordo_session_leave(session, status);
  }
  status = run_unit_calls(session, model->calls.pre_forward, &record->unit, "pre_forward");
  if (G_UNLIKELY(status == ORDO_OK && record->is_packed))
    status = packed(session, ordo_opaque_open(model, record));
  if (G_UNLIKELY(status != ORDO_OK))
    return ordo_session_leave(session, status);
  record->forward_in = session->micro_serial;
  model->next_unit = unit + 1;
  session->open_model = index;
  session->open_unit = unit;
  session->state = session->state == ORDO_SESSION_MICRO ? ORDO_SESSION_FORWARD : ORDO_SESSION_EVAL_FORWARD;
  return ordo_session_leave(session, ORDO_OK);
}

static gboolean is_open(const ordo_session *session, uint32_t model, uint32_t unit)
{
  return session->open_model == model && session->open_unit == unit;
}

ordo_status ordo_session_post_forward(ordo_session *session, uint32_t index, uint32_t unit)
{
  ordo_status status;
  ENTER(session, ORDO_IN(FORWARD) | ORDO_IN(EVAL_FORWARD), "post_forward", "for the unit whose forward is open");
  FIND_UNIT(session, index, unit, "post_forward");
  if (G_UNLIKELY(!is_open(session, index, unit)))
    return ordo_session_leave(session, ordo_session_refuse(session, NAME("post_forward"), "for the unit whose forward is open"));
  status = G_UNLIKELY(record->is_packed) ? packed(session, ordo_opaque_close(model, record)) : ORDO_OK;
  if (G_LIKELY(status == ORDO_OK))
    status = run_unit_calls(session, model->calls.post_forward, &record->unit, "post_forward");
  if (G_UNLIKELY(status != ORDO_OK))
    return ordo_session_leave(session, status);
  session->state = session->state == ORDO_SESSION_FORWARD ? ORDO_SESSION_MICRO : ORDO_SESSION_EVAL;
  return ordo_session_leave(session, ORDO_OK);
}

ordo_status ordo_session_pre_backward(ordo_session *session, uint32_t index, uint32_t unit)
{
  ordo_status status;
  ENTER(session, ORDO_IN(MICRO) | ORDO_IN(BETWEEN), "pre_backward", "in a micro-batch, when no unit is open");
  FIND_UNIT(session, index, unit, "pre_backward");
  if (G_UNLIKELY(unit >= model->last_backward || record->forward_in != session->micro_serial))
    return ordo_session_leave(
        session, ordo_session_refuse(session, NAME("pre_backward"), "for units that ran forward in this micro-batch, in descending order"));
  status = run_unit_calls(session, model->calls.pre_backward, &record->unit, "pre_backward");
  if (G_UNLIKELY(status == ORDO_OK && record->is_packed))
    status = packed(session, ordo_opaque_open(model, record));
  if (G_LIKELY(status == ORDO_OK))
    status = progress(session, model);
  if (G_UNLIKELY(status != ORDO_OK))
    return ordo_session_leave(session, status);
  model->last_backward = unit;
  session->open_model = index;
  session->open_unit = unit;
  session->state = ORDO_SESSION_BACKWARD;
  return ordo_session_leave(session, ORDO_OK);
}

/* The gradient memory of the tie group now holds something; the next write adds. */
static void mark_written(ordo_param_record *root)
{
  ordo_leaf *leaf = root->param.leaf;
  if (leaf && ordo_leaf_follows((ordo_leaf_record *)leaf, &root->param))
    leaf->grad_state = ORDO_GRAD_HELD;
  else
    root->grad_held = TRUE;
}

static ordo_status run_grad_ready(ordo_session *session, const ordo_model_state *model, const ordo_param *param)
{
  const GArray *calls = model->calls.grad_ready;
  session->where = "grad_ready";
  for (guint i = 0; i < calls->len; i++) {
    const ordo_param_call *call = &g_array_index(calls, ordo_param_call, i);
    ordo_status status = call->call(call->self, param);
    if (G_UNLIKELY(status != ORDO_OK))
      return plugin_failed(session, call->owner, status);
  }
  return ORDO_OK;
}

/* Everything of this micro-batch stands in the gradient. */
static ordo_status complete(ordo_session *session, const ordo_model_state *model, ordo_param_record *root)
{
  if (root->sum)
    ordo_accumulate_ready(session, root);
  return run_grad_ready(session, model, &root->param);
}

ordo_status ordo_session_grad_ready(ordo_session *session, uint32_t index, uint32_t param)
{
  ordo_model_state *model;
  ordo_param_record *record;
  ENTER(session, ORDO_IN(BACKWARD), "grad_ready", "inside the backward of a unit");
  model = find_model(session, index);
  record = model && param < model->params->len ? g_ptr_array_index(model->params, param) : NULL;
  if (G_UNLIKELY(!record || index != session->open_model || !(record->param.flags & ORDO_PARAM_REQUIRES_GRAD)))
    return ordo_session_leave(session,
                              bad_argument(session, NAME("grad_ready"),
                                           "there is no such parameter in the model whose unit is open, or it requires no gradient"));
  if (G_UNLIKELY(record->ready_in == session->micro_serial))
    return ordo_session_leave(session, ordo_session_refuse(session, NAME("grad_ready"), "once per parameter and micro-batch"));
  if (G_UNLIKELY(record->root->pending == 0))
    return ordo_session_leave(
        session, ordo_session_refuse(session, NAME("grad_ready"), "before post_backward of the first unit with a member of its tie group"));
  record->ready_in = session->micro_serial;
  mark_written(record->root);
  if (record->root->n_members > 1)
    model->open_ties += record->root->pending == record->root->n_members ? 1u : record->root->pending == 1 ? -1u : 0u;
  if (--record->root->pending > 0)
    return ordo_session_leave(session, ORDO_OK);
  return ordo_session_leave(session, complete(session, model, record->root));
}

/* A member of a tie group may have no part in a loss. What the others wrote is whole when no backward of a unit with a member is to come
 * (the root stands in the first of them), and strategies hear of it before they reduce: else they would take it for a gradient that
 * nobody wrote, and drop it. */
static ordo_status complete_open_ties(ordo_session *session, ordo_model_state *model, const GPtrArray *params)
{
  ordo_status status = ORDO_OK;
  for (guint i = 0; i < params->len && model->open_ties > 0 && status == ORDO_OK; i++) {
    ordo_param_record *root = g_ptr_array_index(params, i);
    if (root->root != root || root->pending == 0 || root->pending == root->n_members)
      continue;
    root->pending = 0;
    model->open_ties--;
    status = complete(session, model, root);
  }
  return status;
}

ordo_status ordo_session_post_backward(ordo_session *session, uint32_t index, uint32_t unit)
{
  ordo_status status;
  ENTER(session, ORDO_IN(BACKWARD), "post_backward", "for the unit whose backward is open");
  FIND_UNIT(session, index, unit, "post_backward");
  if (G_UNLIKELY(!is_open(session, index, unit)))
    return ordo_session_leave(session, ordo_session_refuse(session, NAME("post_backward"), "for the unit whose backward is open"));
  status = model->open_ties > 0 ? complete_open_ties(session, model, record->params) : ORDO_OK;
  if (session->info.n_micro_batches > 1) /* sharding strategies reduce the unit's gradients now */
    ordo_accumulate_end_unit(session, model, unit);
  if (G_UNLIKELY(status == ORDO_OK && record->is_packed))
    status = packed(session, ordo_opaque_close(model, record));
  if (G_LIKELY(status == ORDO_OK))
    status = run_unit_calls(session, model->calls.post_backward, &record->unit, "post_backward");
  if (G_LIKELY(status == ORDO_OK))
    status = progress(session, model);
  if (G_UNLIKELY(status != ORDO_OK))
    return ordo_session_leave(session, status);
  session->state = ORDO_SESSION_BETWEEN;
  return ordo_session_leave(session, ORDO_OK);
}

ordo_status ordo_session_micro_end(ordo_session *session)
{
  ordo_status status;
  ENTER(session, ORDO_IN(MICRO) | ORDO_IN(BETWEEN), "micro_end", "in a micro-batch, when no unit is open");
  status = ORDO_OK;
  for (guint m = 0; m < session->models->len && status == ORDO_OK; m++) { /* whose first unit ran no backward */
    ordo_model_state *model = g_ptr_array_index(session->models, m);
    status = model->open_ties > 0 ? complete_open_ties(session, model, model->params) : ORDO_OK;
  }
  if (session->info.n_micro_batches > 1)
    ordo_accumulate_end(session);
  if (status == ORDO_OK)
    status = ordo_step_run_info_calls(session, session->micro_end, "micro_end");
  if (status != ORDO_OK)
    return ordo_session_leave(session, status);
  session->info.micro_batch++;
  session->state = ORDO_SESSION_STEP;
  return ordo_session_leave(session, ORDO_OK);
}

int ordo_session_grad_adds(const ordo_session *session, uint32_t index, uint32_t param)
{
  const ordo_model_state *model = session ? find_model(session, index) : NULL;
  const ordo_param_record *record = model && param < model->params->len ? g_ptr_array_index(model->params, param) : NULL;
  const ordo_leaf *leaf;
  if (!record)
    return 1;
  record = record->root;
  leaf = record->param.leaf;
  if (leaf && ordo_leaf_follows((const ordo_leaf_record *)leaf, &record->param))
    return leaf->grad_state == ORDO_GRAD_HELD;
  return record->grad_held;
}

ordo_status ordo_session_reduce_gradients(ordo_session *session)
{
  ordo_status status;
  ENTER(session, ORDO_IN(STEP), "reduce_gradients", "after the last micro-batch of a step, once");
  if (session->info.micro_batch < session->info.n_micro_batches)
    return ordo_session_leave(session,
                              ordo_session_refuse(session, NAME("reduce_gradients"), "after the last micro-batch of a step, once"));
  status = ordo_finish_run(session, TRUE);
  if (status == ORDO_OK)
    session->state = ORDO_SESSION_REDUCED;
  return ordo_session_leave(session, status);
}

static void fill_result(const ordo_session *session, ordo_step_result *result)
{
  size_t size = result->struct_size;
  double busy, wait;
  ordo_step_result full = {.struct_size = size,
                           .step = session->info.step,
                           .weight = session->weight,
                           .grad_norm = session->norm,
                           .clip_coef = session->clip,
                           .skipped = session->skip ? 1 : 0,
                           .loss_scale = session->first_scale};
  add_comm_seconds(session, &busy, &wait);
  full.comm_seconds = busy - session->busy_before;
  full.wait_seconds = wait - session->wait_before;
  memcpy(result, &full, MIN(size, sizeof full));
}

ordo_status ordo_session_step_end(ordo_session *session, ordo_step_result *result)
{
  ordo_status status;
  ENTER(session, ORDO_IN(STEP) | ORDO_IN(REDUCED), "step_end", "after the last micro-batch of a step");
  if (session->info.micro_batch < session->info.n_micro_batches)
    return ordo_session_leave(session, ordo_session_refuse(session, NAME("step_end"), "after the last micro-batch of a step"));
  status = ordo_finish_run(session, FALSE);
  session->where = NULL;
  if (result)
    fill_result(session, result);
  return ordo_session_leave(session, status);
}

static ordo_status call_eval(ordo_session *session, gboolean begin)
{
  for (guint i = 0; i < session->order->len; i++) {
    const ordo_instance *instance = g_ptr_array_index(session->order, begin ? session->order->len - 1 - i : i);
    const ordo_strategy *table = instance->plugin->strategy;
    ordo_status status = ORDO_OK;
    if (begin && ORDO_CAN(table, ordo_strategy, eval_begin))
      status = table->eval_begin(instance->self);
    else if (!begin && ORDO_CAN(table, ordo_strategy, eval_end))
      status = table->eval_end(instance->self);
    if (status != ORDO_OK)
      return plugin_failed(session, instance, status);
  }
  return ORDO_OK;
}

ordo_status ordo_session_eval_begin(ordo_session *session)
{
  ordo_status status;
  ORDO_NEED(session, session, NAME("eval_begin"));
  session->step_thread = session->state == ORDO_SESSION_READY ? ordo_session_this_thread() : session->step_thread;
  ENTER(session, ORDO_IN(READY), "eval_begin", "between training steps, after the set-up");
  session->where = "eval_begin";
  session->info.evaluating = 1;
  status = call_eval(session, TRUE);
  if (status == ORDO_OK)
    session->state = ORDO_SESSION_EVAL;
  return ordo_session_leave(session, status);
}

ordo_status ordo_session_eval_end(ordo_session *session)
{
  ordo_status status;
  ENTER(session, ORDO_IN(EVAL), "eval_end", "in an evaluation, when no unit is open");
  session->where = "eval_end";
  session->info.evaluating = 0;
  status = call_eval(session, FALSE);
  if (status == ORDO_OK)
    session->state = ORDO_SESSION_READY;
  return ordo_session_leave(session, status);
}

ordo_status ordo_session_activation(ordo_session *session, uint32_t index, ordo_activation *activation)
{
  const ordo_model_state *model;
  const ordo_activation_call *call, *end;
  ORDO_NEED(session, activation, NAME("activation"));
  model = find_model(session, index);
  if (!model || !model->calls.activation || model->calls.activation->len == 0)
    return session->state == ORDO_SESSION_DEAD || session->state == ORDO_SESSION_FAILED
               ? ordo_session_refuse(session, NAME("activation"), "inside a unit")
               : ORDO_OK;
  ENTER(session, ORDO_IN(FORWARD) | ORDO_IN(BACKWARD) | ORDO_IN(EVAL_FORWARD), "activation", "inside the forward or backward of a unit");
  session->where = "activation";
  call = (const ordo_activation_call *)(const void *)model->calls.activation->data;
  for (end = call + model->calls.activation->len; call < end; call++) {
    ordo_status status;
    if (!ordo_activation_wanted(call->owner, activation->point, activation->param, activation->backward))
      continue;
    status = call->call(call->self, activation);
    if (G_UNLIKELY(status != ORDO_OK))
      return ordo_session_leave(session, plugin_failed(session, call->owner, status));
  }
  return ordo_session_leave(session, ORDO_OK);
}

ordo_dtype ordo_session_op_dtype(const ordo_session *session, uint32_t op)
{
  return session && session->op_policy ? session->op_policy->plugin->precision->op_dtype(session->op_policy->self, op) : ORDO_F32;
}
