/* decl.c - a manifest under given options: the declaration that the resolver works on.
 *
 * Not the resolver: it looks at one plugin alone. All conditions are evaluated here and nowhere else, so the resolver sees plain sets and
 * never options. It also refuses declarations that contradict themselves (two flags that exclude each other, a flag without its step),
 * because such a plugin could never be ordered correctly with anybody, and saying so in terms of its own lines is clearer than a cycle.
 */
#include "condition.h"
#include "names.h"

#include <string.h>

static void free_token(gpointer data)
{
  ordo_token *token = data;
  g_free(token->name);
  g_free(token->origin);
  g_free(token);
}

static void free_edge_line(gpointer data)
{
  ordo_edge_line *line = data;
  g_free(line->target);
  g_free(line->origin);
  g_free(line->text);
  g_free(line);
}

void ordo_decl_free(ordo_decl *decl)
{
  if (!decl)
    return;
  g_free(decl->id);
  g_free(decl->version);
  g_free(decl->mesh_axis);
  g_free(decl->reduces_origin);
  for (uint32_t i = 0; i < ORDO_N_FLAGS; i++)
    g_free(decl->flag_origin[i]);
  for (uint32_t i = 0; i < ORDO_N_STEPS; i++) {
    g_free(decl->step_origin[i]);
    g_free(decl->replaces_origin[i]);
  }
  for (uint32_t i = 0; i < ORDO_N_EVENTS; i++)
    g_free(decl->event_origin[i]);
  g_ptr_array_unref(decl->provides);
  g_ptr_array_unref(decl->requires);
  g_ptr_array_unref(decl->conflicts);
  g_ptr_array_unref(decl->lines);
  g_free(decl);
}

/* Sets a bit and remembers the first line that did. */
static void set_bit(guint32 *mask, char **origins, int bit, const char *origin)
{
  if (bit < 0)
    return;
  if (!(*mask & (1u << bit)))
    origins[bit] = g_strdup(origin);
  *mask |= 1u << bit;
}

static void add_token(GPtrArray *tokens, const char *name, const char *origin)
{
  ordo_token *token = g_new0(ordo_token, 1);
  token->name = g_strdup(name);
  token->origin = g_strdup(origin);
  g_ptr_array_add(tokens, token);
}

static void add_edge_line(ordo_decl *decl, const ordo_manifest_line *line, const char *value, const char *origin)
{
  ordo_edge_line *edge = g_new0(ordo_edge_line, 1);
  edge->step = (uint32_t)line->step;
  edge->before = strcmp(line->key, "before") == 0;
  edge->hard = *value != '?';
  edge->target = g_strdup(edge->hard ? value : value + 1);
  edge->origin = g_strdup(origin);
  edge->text = g_strdup_printf("%s[%s]=%s", line->key, ordo_step_name(edge->step), value);
  g_ptr_array_add(decl->lines, edge);
}

static void apply_line(ordo_decl *decl, const ordo_manifest_line *line)
{
  g_autofree char *origin = g_strdup_printf("%s manifest line %d", decl->id, line->number);
  for (char **value = line->values; *value; value++) {
    if (strcmp(line->key, "flags") == 0)
      set_bit(&decl->flags, decl->flag_origin, ordo_flag_by_name(*value), origin);
    else if (strcmp(line->key, "steps") == 0)
      set_bit(&decl->steps, decl->step_origin, ordo_step_by_name(*value), origin);
    else if (strcmp(line->key, "replaces_leaves") == 0)
      set_bit(&decl->replaces, decl->replaces_origin, ordo_step_by_name(*value), origin);
    else if (strcmp(line->key, "events") == 0)
      set_bit(&decl->events, decl->event_origin, ordo_event_by_name(*value), origin);
    else if (strcmp(line->key, "provides") == 0)
      add_token(decl->provides, *value, origin);
    else if (strcmp(line->key, "requires") == 0)
      add_token(decl->requires, *value, origin);
    else if (strcmp(line->key, "conflicts") == 0)
      add_token(decl->conflicts, *value, origin);
    else if (strcmp(line->key, "reduces") == 0 && strcmp(*value, "yes") == 0 && !decl->reduces) {
      decl->reduces = TRUE;
      decl->reduces_origin = g_strdup(origin);
    } else if (line->step >= 0)
      add_edge_line(decl, line, *value, origin);
  }
}

static gboolean has_flag(const ordo_decl *decl, uint32_t flag)
{
  return (decl->flags >> flag) & 1u;
}

static gboolean has_step(const ordo_decl *decl, uint32_t step)
{
  return (decl->steps >> step) & 1u;
}

typedef struct judge {
  const ordo_decl *decl;
  ordo_errors *errors; /* null: only count */
  int n_findings;
} judge;

/* One finding. `a` and `b` are origins, either may be null. */
static void object(judge *j, const char *a, const char *b, const char *next, const char *what)
{
  j->n_findings++;
  if (!j->errors)
    return;
  g_autofree char *where = a && b && strcmp(a, b) != 0 ? g_strdup_printf("%s, %s", a, b) : g_strdup(a ? a : b);
  ordo_errors_push(j->errors, ORDO_E_INVALID, "E-MANIFEST", where, "such a plugin cannot be ordered with any other", next,
                   "plugin '%s': %s", j->decl->id, what);
}

static void judge_delayed(judge *j)
{
  const ordo_decl *d = j->decl;
  gboolean delays = has_flag(d, ORDO_FLAG_SETUP_OPTIMIZERS_IN_PRE_DISPATCH);
  const char *line = d->flag_origin[ORDO_FLAG_SETUP_OPTIMIZERS_IN_PRE_DISPATCH];
  if (delays && has_flag(d, ORDO_FLAG_REQUIRES_JOINT_PREPARE))
    object(j, line, d->flag_origin[ORDO_FLAG_REQUIRES_JOINT_PREPARE], "declare one of them",
           "setup_optimizers_in_pre_dispatch and requires_joint_prepare exclude each other");
  if (delays && !has_step(d, ORDO_STEP_WRAP))
    object(j, line, NULL, "add strategy.wrap to steps, or remove the flag",
           "setup_optimizers_in_pre_dispatch needs the step strategy.wrap");
  if (!delays && (d->replaces >> ORDO_STEP_WRAP) & 1u)
    object(j, d->replaces_origin[ORDO_STEP_WRAP], NULL, "add the flag setup_optimizers_in_pre_dispatch",
           "a strategy.wrap that replaces leaves needs setup_optimizers_in_pre_dispatch, or the optimizer would keep leaves that are gone");
}

static void judge_joint(judge *j)
{
  const ordo_decl *d = j->decl;
  const char *line = d->flag_origin[ORDO_FLAG_REQUIRES_JOINT_PREPARE];
  gboolean joint = has_flag(d, ORDO_FLAG_REQUIRES_JOINT_PREPARE);
  if (joint && !has_step(d, ORDO_STEP_PREPARE_JOINT))
    object(j, line, NULL, "add strategy.prepare_joint to steps, or remove the flag",
           "requires_joint_prepare needs the step strategy.prepare_joint");
  if (!joint && has_step(d, ORDO_STEP_PREPARE_JOINT))
    object(j, d->step_origin[ORDO_STEP_PREPARE_JOINT], NULL, "add the flag requires_joint_prepare",
           "the step strategy.prepare_joint needs the flag requires_joint_prepare");
  if (joint && has_step(d, ORDO_STEP_WRAP))
    object(j, line, d->step_origin[ORDO_STEP_WRAP], "remove strategy.wrap from steps",
           "requires_joint_prepare excludes the step strategy.wrap");
  if (joint && has_step(d, ORDO_STEP_PREPARE_OPTIMIZER))
    object(j, line, d->step_origin[ORDO_STEP_PREPARE_OPTIMIZER], "remove strategy.prepare_optimizer from steps",
           "requires_joint_prepare excludes the step strategy.prepare_optimizer");
}

static void judge_precision(judge *j)
{
  const ordo_decl *d = j->decl;
  gboolean joint = has_flag(d, ORDO_FLAG_INITIALIZES_JOINTLY), wraps = has_flag(d, ORDO_FLAG_WRAPS_OPTIMIZER);
  gboolean has_wrap = has_step(d, ORDO_STEP_WRAP_OPTIMIZER), has_init = has_step(d, ORDO_STEP_INITIALIZE);
  if (!joint && wraps && !has_wrap)
    object(j, d->flag_origin[ORDO_FLAG_WRAPS_OPTIMIZER], NULL,
           "add precision.wrap_optimizer to steps under the same condition, or remove the flag",
           "wraps_optimizer needs the step precision.wrap_optimizer");
  if (!joint && has_wrap && !wraps)
    object(j, d->step_origin[ORDO_STEP_WRAP_OPTIMIZER], NULL, "add the flag wraps_optimizer under the same condition",
           "the step precision.wrap_optimizer needs the flag wraps_optimizer");
  if (!joint && has_init)
    object(j, d->step_origin[ORDO_STEP_INITIALIZE], NULL, "add the flag initializes_jointly",
           "the step precision.initialize needs the flag initializes_jointly");
  if (joint && !has_init && !(has_wrap && has_step(d, ORDO_STEP_CONVERT_MODEL)))
    object(j, d->flag_origin[ORDO_FLAG_INITIALIZES_JOINTLY], NULL, "add precision.initialize to steps, or remove the flag",
           "initializes_jointly needs the step precision.initialize");
}

static void judge_replaced(judge *j)
{
  for (uint32_t step = 0; step < ORDO_N_STEPS; step++) {
    if ((j->decl->replaces >> step) & 1u && !has_step(j->decl, step)) {
      g_autofree char *what = g_strdup_printf("%s is said to replace leaves but is not provided under these options", ordo_step_name(step));
      object(j, j->decl->replaces_origin[step], NULL, "put both lines under the same condition", what);
    }
  }
}

static gboolean is_consistent(const ordo_decl *decl, ordo_errors *errors)
{
  judge j = {.decl = decl, .errors = errors};
  judge_delayed(&j);
  judge_joint(&j);
  judge_precision(&j);
  judge_replaced(&j);
  return j.n_findings == 0;
}

gboolean ordo_decl_is_consistent(const ordo_decl *decl)
{
  return is_consistent(decl, NULL);
}

/* The joint node stands for both halves: only it remains, and lines that name a half mean it. */
static void fold_joint(ordo_decl *decl)
{
  const guint32 halves = 1u << ORDO_STEP_CONVERT_MODEL | 1u << ORDO_STEP_WRAP_OPTIMIZER;
  if (!has_flag(decl, ORDO_FLAG_INITIALIZES_JOINTLY))
    return;
  if (!has_step(decl, ORDO_STEP_INITIALIZE))
    decl->step_origin[ORDO_STEP_INITIALIZE] = g_strdup(decl->step_origin[ORDO_STEP_CONVERT_MODEL]);
  decl->steps = (decl->steps & ~halves) | 1u << ORDO_STEP_INITIALIZE;
  for (guint i = 0; i < decl->lines->len; i++) {
    ordo_edge_line *line = g_ptr_array_index(decl->lines, i);
    if ((halves >> line->step) & 1u)
      line->step = ORDO_STEP_INITIALIZE;
  }
}

ordo_decl *ordo_decl_from_manifest(const ordo_manifest *manifest, ordo_option_getter get, gpointer user, ordo_errors *errors)
{
  ordo_decl *decl = g_new0(ordo_decl, 1);
  decl->id = g_strdup(manifest->id);
  decl->version = g_strdup(manifest->version);
  decl->kind = manifest->kind;
  decl->mesh_axis = g_strdup(manifest->mesh_axis);
  decl->axis = -1;
  decl->axis_size = 1;
  decl->model_mask = 1;
  decl->provides = g_ptr_array_new_with_free_func(free_token);
  decl->requires = g_ptr_array_new_with_free_func(free_token);
  decl->conflicts = g_ptr_array_new_with_free_func(free_token);
  decl->lines = g_ptr_array_new_with_free_func(free_edge_line);
  for (guint i = 0; i < manifest->lines->len; i++) {
    const ordo_manifest_line *line = g_ptr_array_index(manifest->lines, i);
    if (ordo_condition_holds(line->condition, manifest, get, user))
      apply_line(decl, line);
  }
  if (!is_consistent(decl, errors)) {
    ordo_decl_free(decl);
    return NULL;
  }
  fold_joint(decl);
  return decl;
}
