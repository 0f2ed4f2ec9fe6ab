/* tables.c - the functions in a plugin's table against what its manifest declares, in both directions.
 *
 * One row per function that the plan decides on: the steps or the event that lead to its call. A declared step without its function would
 * be a null call in the middle of the set-up; a function that nothing declares would never be called, silently, and a scaler whose unscale
 * is not called trains on scaled gradients. Functions that are called whenever they are there have no row.
 *
 * Not here: whether the table itself can be read (plugins.c).
 */
#include "session.h"

#include <string.h>

typedef struct member {
  uint32_t kind;
  const char *name;
  size_t at;
  guint32 steps;     /* any of them leads to its call */
  int event;         /* the event that does, -1: none */
  gboolean optional; /* the step runs without it too */
} member;

#define STEP(NAME) (1u << ORDO_STEP_##NAME)
#define STRATEGY(NAME) ORDO_KIND_STRATEGY, #NAME, offsetof(ordo_strategy, NAME)
#define PRECISION(NAME) ORDO_KIND_PRECISION, #NAME, offsetof(ordo_precision, NAME)
#define MASTERS_OR_SCALER (STEP(WRAP_OPTIMIZER) | STEP(INITIALIZE))

static const member members[] = {
    {STRATEGY(inject), STEP(MODEL_INJECT), -1, FALSE},
    {STRATEGY(partition), STEP(PARTITION), -1, FALSE},
    {STRATEGY(wrap), STEP(WRAP), -1, FALSE},
    {STRATEGY(prepare_joint), STEP(PREPARE_JOINT), -1, FALSE},
    {STRATEGY(prepare_optimizer), STEP(PREPARE_OPTIMIZER), -1, FALSE},
    {STRATEGY(reduce), 0, ORDO_EVENT_REDUCE, FALSE},
    {STRATEGY(post_step), 0, ORDO_EVENT_POST_STEP, FALSE},
    {PRECISION(inject), STEP(MODEL_INJECT), -1, FALSE},
    {PRECISION(convert_model), STEP(CONVERT_MODEL), -1, FALSE},
    {PRECISION(wrap_optimizer), STEP(WRAP_OPTIMIZER), -1, FALSE},
    {PRECISION(initialize), STEP(INITIALIZE), -1, FALSE},
    {PRECISION(loss_scale), MASTERS_OR_SCALER, -1, TRUE},
    {PRECISION(unscale), MASTERS_OR_SCALER, -1, TRUE},
    {PRECISION(update_scale), MASTERS_OR_SCALER, -1, TRUE},
    {PRECISION(update_loss_scale), MASTERS_OR_SCALER, -1, TRUE},
    {PRECISION(masters_to_model), MASTERS_OR_SCALER, -1, TRUE},
};

ordo_status ordo_tables_refuse(const ordo_plugin_use *plugin, const char *what, const char *why)
{
  g_autofree char *where = g_strdup_printf("plugin '%s'", plugin->id);
  return ordo_errors_push(ordo_session_errors(plugin->session), ORDO_E_REFUSED, "E-PLUGIN-TABLE", where, why,
                          "report it to the plugin's author", "%s", what);
}

static uint32_t kind_of(const ordo_plugin_use *plugin)
{
  return plugin->strategy ? ORDO_KIND_STRATEGY : plugin->precision ? ORDO_KIND_PRECISION : ORDO_KIND_COMM_HOOK;
}

static gboolean is_there(const ordo_plugin_use *plugin, const member *m)
{
  const char *table = plugin->strategy ? (const char *)plugin->strategy : (const char *)plugin->precision;
  void (*function)(void);
  if (*(const size_t *)(const void *)table < m->at + sizeof function)
    return FALSE;
  memcpy(&function, table + m->at, sizeof function);
  return function != NULL;
}

/* What the manifest declares under some options or other: a table is the same for all of them. */
typedef struct declared {
  guint32 steps, events;
} declared;

static declared ever_declared(const ordo_manifest *manifest)
{
  declared all = {0, 0};
  for (guint i = 0; i < manifest->lines->len; i++) {
    const ordo_manifest_line *line = g_ptr_array_index(manifest->lines, i);
    for (char **value = line->values; *value; value++) {
      if (!strcmp(line->key, "steps") && ordo_step_by_name(*value) >= 0)
        all.steps |= 1u << ordo_step_by_name(*value);
      else if (!strcmp(line->key, "reduces") && !strcmp(*value, "yes"))
        all.events |= 1u << ORDO_EVENT_REDUCE;
      else if (!strcmp(line->key, "events") && !strcmp(*value, ordo_event_name(ORDO_EVENT_POST_STEP)))
        all.events |= 1u << ORDO_EVENT_POST_STEP;
      else if (!strcmp(line->key, "flags") && !strcmp(*value, ordo_flag_name(ORDO_FLAG_INITIALIZES_JOINTLY)))
        all.steps |= STEP(INITIALIZE); /* the two halves are called as one */
    }
  }
  return all;
}

/* "steps=strategy.wrap", "steps=precision.wrap_optimizer or precision.initialize", "reduces=yes". */
static char *line_for(const member *m)
{
  GString *text;
  if (m->event == ORDO_EVENT_REDUCE)
    return g_strdup("reduces=yes");
  if (m->event >= 0)
    return g_strdup_printf("events=%s", ordo_event_name((uint32_t)m->event));
  text = g_string_new("steps=");
  for (uint32_t step = 0; step < ORDO_N_STEPS; step++)
    if (m->steps >> step & 1u)
      g_string_append_printf(text, "%s%s", text->len > strlen("steps=") ? " or " : "", ordo_step_name(step));
  return g_string_free(text, FALSE);
}

static ordo_status check_undeclared(const ordo_plugin_use *plugin, const declared *all)
{
  ordo_status status = ORDO_OK;
  for (size_t i = 0; i < G_N_ELEMENTS(members); i++) {
    const member *m = &members[i];
    gboolean leads = (m->steps & all->steps) || (m->event >= 0 && all->events >> m->event & 1u);
    if (m->kind != kind_of(plugin) || leads || !is_there(plugin, m))
      continue;
    g_autofree char *line = line_for(m);
    g_autofree char *what = g_strdup_printf("the plugin's table has %s, which its manifest does not declare", m->name);
    g_autofree char *why = g_strdup_printf("without %s in the manifest it would never be called", line);
    status = ordo_tables_refuse(plugin, what, why);
  }
  return status;
}

static gboolean has_step(const ordo_plugin_use *plugin, uint32_t step)
{
  if (step == ORDO_STEP_LOAD_SHARDED) /* the host does it from the placements */
    return plugin->strategy != NULL;
  for (size_t i = 0; i < G_N_ELEMENTS(members); i++)
    if (members[i].kind == kind_of(plugin) && !members[i].optional && (members[i].steps >> step & 1u))
      return is_there(plugin, &members[i]);
  return FALSE;
}

static ordo_status check_declared(const ordo_plugin_use *plugin, const ordo_decl *decl)
{
  ordo_status status = ORDO_OK;
  for (uint32_t step = 0; step < ORDO_N_STEPS; step++) {
    g_autofree char *what = NULL;
    if (!(decl->steps >> step & 1u) || has_step(plugin, step))
      continue;
    what = g_strdup_printf("the manifest declares step %s, but the plugin's table has no function for it", ordo_step_name(step));
    status = ordo_tables_refuse(plugin, what, decl->step_origin[step]);
  }
  if (decl->reduces && plugin->strategy && !ORDO_CAN(plugin->strategy, ordo_strategy, reduce))
    status = ordo_tables_refuse(plugin, "the manifest says reduces=yes, but the plugin's table has no reduce", decl->reduces_origin);
  if (plugin->strategy && (decl->events >> ORDO_EVENT_POST_STEP & 1u) && !ORDO_CAN(plugin->strategy, ordo_strategy, post_step))
    status = ordo_tables_refuse(plugin, "the manifest declares events=step.post_step, but the plugin's table has no post_step",
                                decl->event_origin[ORDO_EVENT_POST_STEP]);
  return status;
}

/* Functions that are of use together only: with one of them missing the others would be left out. */
static ordo_status check_groups(const ordo_plugin_use *plugin)
{
  const ordo_precision *p = plugin->precision;
  const ordo_strategy *s = plugin->strategy;
  const ordo_state_ops *state = p && ORDO_HAS(p, ordo_precision, state)  ? p->state
                                : s && ORDO_HAS(s, ordo_strategy, state) ? s->state
                                                                         : NULL;
  int wire = p ? ORDO_CAN(p, ordo_precision, pre_all_gather) + ORDO_CAN(p, ordo_precision, post_all_gather) +
                     ORDO_CAN(p, ordo_precision, wire_bytes)
               : 0;
  int blob = state ? ORDO_CAN(state, ordo_state_ops, blob_size) + ORDO_CAN(state, ordo_state_ops, blob_save) +
                         ORDO_CAN(state, ordo_state_ops, blob_load)
                   : 0;
  ordo_status status = ORDO_OK;
  if (wire % 3)
    status = ordo_tables_refuse(plugin, "the plugin's table has a part of wire_bytes, pre_all_gather and post_all_gather",
                                "all three or none (precision.h); with one missing nothing would be packed");
  if (blob % 3)
    status = ordo_tables_refuse(plugin, "the plugin's state has a part of blob_size, blob_save and blob_load",
                                "all three or none (state.h); with one missing the state would not be saved");
  return status;
}

ordo_status ordo_tables_check(const ordo_plugin_use *plugin, const ordo_decl *decl)
{
  ordo_status status = check_declared(plugin, decl);
  if (status == ORDO_OK && plugin->found->manifest) {
    const declared all = ever_declared(plugin->found->manifest);
    status = check_undeclared(plugin, &all);
  }
  return status == ORDO_OK ? check_groups(plugin) : status;
}
