/* control.c - ordo_session_control: settings that an embedder changes while the job runs.
 *
 * The host knows when an operation is legal and whether its arguments exist; what it means is the strategies' business. A strategy that
 * does not know an operation is passed over (a replica axis has nothing to unshard), but one that nobody knows is an error: a program
 * that believes its units are gathered, or its gradients divided, must hear that they are not.
 */
#include "session.h"

#include <math.h>

#define CALL "ordo_session_control"
#define BETWEEN_MICRO_BATCHES (ORDO_IN(READY) | ORDO_IN(STEP))
#define BETWEEN_UNITS (BETWEEN_MICRO_BATCHES | ORDO_IN(MICRO) | ORDO_IN(BETWEEN) | ORDO_IN(EVAL))

typedef enum takes { TAKES_NOTHING, TAKES_FLAG, TAKES_SWITCH, TAKES_FACTOR, TAKES_LIST } takes;

/* Smallest and largest `value`, for operations that take one. */
static const int lowest[] = {[TAKES_FLAG] = 0, [TAKES_SWITCH] = ORDO_CONTROL_RULE};

typedef struct operation {
  uint32_t id;
  const char *name;
  takes takes;
  guint32 states;
  const char *legal;
} operation;

static const operation operations[] = {
    {ORDO_CONTROL_GRADIENT_SYNC, "gradient_sync", TAKES_SWITCH, BETWEEN_MICRO_BATCHES, "between micro-batches"},
    {ORDO_CONTROL_UNSHARD, "unshard", TAKES_FLAG, BETWEEN_UNITS, "when no unit is open"},
    {ORDO_CONTROL_RESHARD, "reshard", TAKES_NOTHING, BETWEEN_UNITS, "when no unit is open"},
    {ORDO_CONTROL_RESHARD_AFTER_FORWARD, "reshard_after_forward", TAKES_SWITCH, BETWEEN_UNITS, "when no unit is open"},
    {ORDO_CONTROL_RESHARD_AFTER_BACKWARD, "reshard_after_backward", TAKES_SWITCH, BETWEEN_UNITS, "when no unit is open"},
    {ORDO_CONTROL_DIVIDE_FACTOR, "divide_factor", TAKES_FACTOR, ORDO_IN(READY), "between training steps"},
    {ORDO_CONTROL_FORWARD_PREFETCH, "forward_prefetch", TAKES_LIST, BETWEEN_UNITS, "when no unit is open"},
    {ORDO_CONTROL_BACKWARD_PREFETCH, "backward_prefetch", TAKES_LIST, BETWEEN_UNITS, "when no unit is open"},
};

static const operation *find(uint32_t id)
{
  for (guint i = 0; i < G_N_ELEMENTS(operations); i++)
    if (operations[i].id == id)
      return &operations[i];
  return NULL;
}

static ordo_status invalid(ordo_session *session, const char *what, const char *why)
{
  return ordo_errors_push(ordo_session_errors(session), ORDO_E_INVALID, "E-CONTROL-ARGUMENT", CALL, why,
                          "ordo/control.h says what each operation takes", "%s", what);
}

static ordo_status check_unit(ordo_session *session, const operation *op, const ordo_model_state *model, uint32_t unit)
{
  g_autofree char *why = NULL;
  if (unit < model->view.n_units)
    return ORDO_OK;
  why = g_strdup_printf("%s for unit %u: model '%s' has units 0 to %u", op->name, unit, model->view.name, model->view.n_units - 1);
  return invalid(session, "there is no such unit", why);
}

static ordo_status check_list(ordo_session *session, const operation *op, const ordo_model_state *model, const ordo_control *control)
{
  ordo_status status = ORDO_OK;
  if (control->unit == ORDO_ALL_UNITS)
    return invalid(session, "a prefetch list belongs to one unit", "it says what to gather next, which is not the same for all units");
  if (control->n_units > 0 && !control->units)
    return invalid(session, "a prefetch list is missing", "n_units is above 0 and units is null");
  for (uint64_t i = 0; i < control->n_units && status == ORDO_OK; i++)
    status = check_unit(session, op, model, control->units[i]);
  return status;
}

static ordo_status check(ordo_session *session, const operation *op, const ordo_model_state *model, const ordo_control *control)
{
  g_autofree char *why = NULL;
  ordo_status status = control->unit == ORDO_ALL_UNITS ? ORDO_OK : check_unit(session, op, model, control->unit);
  if (status != ORDO_OK)
    return status;
  if (op->takes == TAKES_LIST)
    return check_list(session, op, model, control);
  if (op->takes == TAKES_FACTOR && !(isfinite(control->factor) && control->factor >= 0.0))
    return invalid(session, "a divide factor must be above 0, or 0 for the strategy's own", "it is not finite or negative");
  if (op->takes != TAKES_FLAG && op->takes != TAKES_SWITCH)
    return ORDO_OK;
  if (control->value >= lowest[op->takes] && control->value <= 1)
    return ORDO_OK;
  why = g_strdup_printf("%s takes 1 or 0%s, not %" G_GINT64_FORMAT, op->name,
                        lowest[op->takes] < 0 ? ", or -1 for the strategy's own rule" : "", control->value);
  return invalid(session, "the operation has no such value", why);
}

static ordo_status nobody(ordo_session *session, const operation *op, const ordo_model_state *model)
{
  g_autoptr(GString) asked = g_string_new(NULL);
  g_autofree char *why = NULL;
  for (guint i = 0; i < session->order->len; i++) {
    const ordo_instance *instance = g_ptr_array_index(session->order, i);
    if (instance->model == model)
      g_string_append_printf(asked, "%s'%s'", asked->len ? ", " : "", instance->plugin->id);
  }
  why = asked->len ? g_strdup_printf("its strategies: %s", asked->str) : g_strdup("it has no strategy");
  return ordo_errors_push(ordo_session_errors(session), ORDO_E_UNSUPPORTED, "E-CONTROL-UNSUPPORTED", CALL, why,
                          "leave the call out under this strategy, or choose one that has it (docs/strategies.md)",
                          "no strategy of model '%s' knows %s", model->view.name, op->name);
}

/* A strategy that refuses has changed nothing; after any other error a collective may be half done. */
static ordo_status failed(ordo_session *session, const ordo_instance *owner, ordo_status status)
{
  status = ordo_session_plugin_status(session, owner->plugin, status, 0);
  if (status == ORDO_E_STATE || status == ORDO_E_INVALID || status == ORDO_E_UNSUPPORTED)
    return status;
  return ordo_session_fail(session, status);
}

static ordo_status tell(ordo_session *session, const operation *op, const ordo_model_state *model, const ordo_control *control)
{
  gboolean known = FALSE;
  for (guint i = 0; i < session->order->len; i++) {
    const ordo_instance *instance = g_ptr_array_index(session->order, i);
    const ordo_strategy *table = instance->plugin->strategy;
    ordo_status status;
    if (instance->model != model || !ORDO_CAN(table, ordo_strategy, control))
      continue;
    status = table->control(instance->self, control);
    if (status == ORDO_E_NOT_FOUND)
      continue;
    if (status != ORDO_OK)
      return failed(session, instance, status);
    known = TRUE;
  }
  return known ? ORDO_OK : nobody(session, op, model);
}

static void note_sync(ordo_model_state *model, const ordo_control *control)
{
  const gboolean all = control->unit == ORDO_ALL_UNITS;
  for (uint32_t u = all ? 0 : control->unit; u < (all ? model->view.n_units : control->unit + 1); u++)
    if (control->value == 1)
      g_hash_table_add(model->synced, GUINT_TO_POINTER(u));
    else
      g_hash_table_remove(model->synced, GUINT_TO_POINTER(u));
}

static ordo_status run(ordo_session *session, uint32_t index, const ordo_control *control)
{
  ordo_model_state *model = index < session->models->len ? g_ptr_array_index(session->models, index) : NULL;
  const operation *op = control && ORDO_HAS(control, ordo_control, n_units) ? find(control->operation) : NULL;
  ordo_status status;
  if (!control || !ORDO_HAS(control, ordo_control, n_units))
    return invalid(session, "a control is missing or too short", "fill struct_size, or use ordo_control_make");
  if (!op)
    return invalid(session, "there is no such operation", "this release knows those of its ordo/control.h");
  if (!((1u << session->state) & op->states)) {
    g_autofree char *call = g_strdup_printf("%s(%s)", CALL, op->name);
    return ordo_session_refuse(session, call, op->legal);
  }
  if (!model)
    return invalid(session, "there is no such model", "it is an index into ordo_session_model()");
  status = check(session, op, model, control);
  if (status != ORDO_OK)
    return status;
  if (op->id == ORDO_CONTROL_GRADIENT_SYNC)
    status = ordo_accumulate_check_sync(session, model, control->value);
  if (status != ORDO_OK)
    return status;
  session->where = op->name;
  status = tell(session, op, model, control);
  if (status == ORDO_OK && op->id == ORDO_CONTROL_GRADIENT_SYNC)
    note_sync(model, control);
  return status;
}

ordo_status ordo_session_control(ordo_session *session, uint32_t model, const ordo_control *control)
{
  ORDO_NEED(session, session, CALL);
  ordo_session_enter(session);
  return ordo_session_leave(session, run(session, model, control));
}
