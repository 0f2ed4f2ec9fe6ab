/* manifest_check.c - what can be said about a manifest once all of its lines are known.
 *
 * Looks at words, not at meaning under given options (decl.c does that): known flags and steps of the right kind, steps that
 * an edge line speaks of, option keys in conditions and presets. It exists apart from the line reader because lines may stand in any order.
 */
#include "condition.h"
#include "manifest_read.h"
#include "names.h"

#include <string.h>

typedef struct line_check {
  manifest_reader *r;
  const ordo_manifest_line *line;
} line_check;

static gboolean is_key(const ordo_manifest_line *line, const char *key)
{
  return strcmp(line->key, key) == 0;
}

/* A plugin of `kind` may list `step` in steps=. load_sharded is the host's node, but a strategy may bring its own reader. */
static gboolean may_provide(uint32_t kind, uint32_t step)
{
  const char *provider = ordo_step_provider(step);
  if (step == ORDO_STEP_LOAD_SHARDED)
    return kind == ORDO_KIND_STRATEGY;
  if (strcmp(provider, "any") == 0)
    return kind == ORDO_KIND_STRATEGY || kind == ORDO_KIND_PRECISION;
  return strcmp(provider, ordo_kind_name(kind)) == 0;
}

static gboolean may_replace(uint32_t step)
{
  return step == ORDO_STEP_PARTITION || step == ORDO_STEP_WRAP || step == ORDO_STEP_PREPARE_JOINT || step == ORDO_STEP_PREPARE_OPTIMIZER;
}

/* Some line of `key`, whatever its condition, lists `value`. */
static gboolean declares(const ordo_manifest *manifest, const char *key, const char *value)
{
  for (guint i = 0; i < manifest->lines->len; i++) {
    const ordo_manifest_line *line = g_ptr_array_index(manifest->lines, i);
    if (is_key(line, key) && g_strv_contains((const char *const *)line->values, value))
      return TRUE;
  }
  return FALSE;
}

/* precision.initialize stands for the two halves, so a line may name any of the three. */
static gboolean declares_step(const ordo_manifest *manifest, uint32_t step)
{
  if (declares(manifest, "steps", ordo_step_name(step)))
    return TRUE;
  if (step == ORDO_STEP_CONVERT_MODEL || step == ORDO_STEP_WRAP_OPTIMIZER)
    return declares(manifest, "steps", ordo_step_name(ORDO_STEP_INITIALIZE));
  return step == ORDO_STEP_INITIALIZE && declares(manifest, "flags", ordo_flag_name(ORDO_FLAG_INITIALIZES_JOINTLY));
}

static void check_flag(manifest_reader *r, const ordo_manifest_line *line, const char *name)
{
  int flag = ordo_flag_by_name(name);
  if (flag < 0) {
    g_autofree char *next = ordo_manifest_suggest(name, ordo_flag_names(), "the flags are listed in ordo/manifest.h");
    ordo_manifest_complain(r, line->number, next, "'%s' is not a flag", name);
  } else if (r->manifest->kind && ordo_flag_kind((uint32_t)flag) != r->manifest->kind) {
    ordo_manifest_complain(r, line->number, "remove the flag or correct the kind", "'%s' is a flag of a %s plugin, this is a %s plugin",
                           name, ordo_kind_name(ordo_flag_kind((uint32_t)flag)), ordo_kind_name(r->manifest->kind));
  }
}

static void check_step(manifest_reader *r, const ordo_manifest_line *line, const char *name)
{
  int step = ordo_step_by_name(name);
  if (step < 0) {
    g_autofree char *next = ordo_manifest_suggest(name, ordo_step_names(), "the steps are listed in ordo/step.h");
    ordo_manifest_complain(r, line->number, next, "'%s' is not a step", name);
  } else if (r->manifest->kind && !may_provide(r->manifest->kind, (uint32_t)step)) {
    ordo_manifest_complain(r, line->number, "remove it from steps", "a %s plugin cannot provide '%s', which belongs to: %s",
                           ordo_kind_name(r->manifest->kind), name, ordo_step_provider((uint32_t)step));
  }
}

static void check_replaces(manifest_reader *r, const ordo_manifest_line *line, const char *name)
{
  int step = ordo_step_by_name(name);
  if (step < 0) {
    g_autofree char *next = ordo_manifest_suggest(name, ordo_step_names(), "the steps are listed in ordo/step.h");
    ordo_manifest_complain(r, line->number, next, "'%s' is not a step", name);
  } else if (!may_replace((uint32_t)step)) {
    ordo_manifest_complain(r, line->number, "leaves are replaced by strategy.partition, .wrap, .prepare_joint or .prepare_optimizer",
                           "'%s' is not a step that replaces leaves", name);
  } else if (!declares(r->manifest, "steps", name)) {
    ordo_manifest_complain(r, line->number, "add it to steps, or remove it here", "the plugin does not provide '%s'", name);
  }
}

/* The part of a step or event name up to its dot is kept for steps: a capability of that shape would be a misspelt step. */
static gboolean in_step_family(const char *name)
{
  const char *dot = strchr(name, '.');
  size_t length = dot ? (size_t)(dot - name) + 1 : 0;
  for (uint32_t i = 0; dot && i < ORDO_N_STEPS; i++) {
    if (strncmp(ordo_step_name(i), name, length) == 0)
      return TRUE;
  }
  return dot && strncmp(ordo_event_name(0), name, length) == 0;
}

static void check_capability(manifest_reader *r, const ordo_manifest_line *line, const char *name)
{
  if (!ordo_manifest_is_id(name)) {
    ordo_manifest_complain(r, line->number, "use a-z, 0-9, '_', '.' and '-'", "'%s' is not a name for a capability", name);
  } else if (in_step_family(name)) {
    g_autofree char *next = ordo_manifest_suggest(name, ordo_step_names(), "choose another name for the capability");
    ordo_manifest_complain(r, line->number, next, "'%s' looks like a step, and is none that this key takes", name);
  }
}

/* Target of before/after: a step, an event, or a capability; `?` in front makes it soft. */
static void check_target(manifest_reader *r, const ordo_manifest_line *line, const char *value)
{
  const char *name = *value == '?' ? value + 1 : value;
  gboolean later = ordo_event_by_name(name) >= 0 || ordo_phase_by_name(name) >= (int)ORDO_PHASE_DISPATCH;
  if (ordo_step_by_name(name) >= 0 || (later && is_key(line, "before")))
    return;
  if (later)
    ordo_manifest_complain(r, line->number, "every step of a plan runs before the first training step (ordering rule 1); remove the line",
                           "the line would put '%s' after dispatch, where '%s' happens", ordo_step_name((uint32_t)line->step), name);
  else
    check_capability(r, line, name);
}

static void check_edge(manifest_reader *r, const ordo_manifest_line *line)
{
  if (line->step < 0)
    return; /* reported when the line was read */
  if (!declares_step(r->manifest, (uint32_t)line->step)) {
    const char *own[ORDO_N_STEPS + 1] = {NULL};
    size_t n = 0;
    for (uint32_t step = 0; step < ORDO_N_STEPS; step++) {
      if (declares_step(r->manifest, step))
        own[n++] = ordo_step_name(step);
    }
    g_autofree char *list = g_strjoinv(", ", (char **)own);
    g_autofree char *next = g_strdup_printf("name a step that the plugin provides (%s), or add this one to steps", n ? list : "none");
    ordo_manifest_complain(r, line->number, next, "the plugin does not provide '%s'", ordo_step_name((uint32_t)line->step));
  }
  for (char **value = line->values; *value; value++)
    check_target(r, line, *value);
}

static void check_reduces(manifest_reader *r, const ordo_manifest_line *line)
{
  const char *value = line->values[0];
  if (line->values[1] || (strcmp(value, "yes") != 0 && strcmp(value, "no") != 0))
    ordo_manifest_complain(r, line->number, "write reduces=yes or reduces=no", "'%s' is neither yes nor no", value);
  else if (r->manifest->kind && r->manifest->kind != ORDO_KIND_STRATEGY)
    ordo_manifest_complain(r, line->number, "remove the line", "only a strategy reduces gradients");
}

/* Reductions follow from reduces=yes and the events of a precision plugin from its steps; only post_step has to be said. */
static void check_event(manifest_reader *r, const ordo_manifest_line *line, const char *value)
{
  static const char *const declared[] = {"step.post_step", NULL};
  if (!g_strv_contains(declared, value)) {
    g_autofree char *next =
        ordo_manifest_suggest(value, declared, "write step.post_step, or remove the line: other events follow from reduces and steps");
    ordo_manifest_complain(r, line->number, next, "'%s' is not an event that is declared", value);
  } else if (r->manifest->kind && r->manifest->kind != ORDO_KIND_STRATEGY)
    ordo_manifest_complain(r, line->number, "remove the line", "only a strategy has step.post_step");
}

static const char **option_keys(const ordo_manifest *manifest)
{
  const char **keys = g_new0(const char *, manifest->options->len + 1);
  for (guint i = 0; i < manifest->options->len; i++)
    keys[i] = ((const ordo_option_schema *)g_ptr_array_index(manifest->options, i))->key;
  return keys;
}

static void check_option_value(manifest_reader *r, int line, const char *key, const char *value, const char *where)
{
  const ordo_option_schema *schema = ordo_manifest_option(r->manifest, key);
  if (!schema) {
    g_autofree const char **keys = option_keys(r->manifest);
    g_autofree char *next = ordo_manifest_suggest(key, keys, "declare it with an option line");
    ordo_manifest_complain(r, line, next, "the %s names '%s', which is not an option of the plugin", where, key);
    return;
  }
  g_autofree char *why = value && schema->type ? ordo_option_schema_refuses(schema, value) : NULL;
  if (why)
    ordo_manifest_complain(r, line, "write a value that the option can take", "the %s gives '%s' a value it cannot take: %s", where, key,
                           why);
}

static void check_comparison(gpointer user, const char *key, const char *const *values)
{
  const line_check *check = user;
  if (!values)
    check_option_value(check->r, check->line->number, key, NULL, "condition");
  for (; values && *values; values++)
    check_option_value(check->r, check->line->number, key, *values, "condition");
}

static void check_line(manifest_reader *r, const ordo_manifest_line *line)
{
  line_check check = {r, line};
  g_free(r->line_text);
  r->line_text = g_strdup(line->text);
  if (line->condition)
    g_free(ordo_condition_check(line->condition, check_comparison, &check));
  if (line->step >= 0 || is_key(line, "before") || is_key(line, "after")) {
    check_edge(r, line);
    return;
  }
  if (is_key(line, "reduces")) {
    check_reduces(r, line);
    return;
  }
  for (char **value = line->values; *value; value++) {
    if (is_key(line, "flags"))
      check_flag(r, line, *value);
    else if (is_key(line, "steps"))
      check_step(r, line, *value);
    else if (is_key(line, "replaces_leaves"))
      check_replaces(r, line, *value);
    else if (is_key(line, "events"))
      check_event(r, line, *value);
    else
      check_capability(r, line, *value);
  }
}

/* `key=value:key=value`, or a bare word for the positional option. */
static void check_alias(manifest_reader *r, const ordo_alias *alias)
{
  g_auto(GStrv) parts = g_strsplit(alias->preset, ":", -1);
  g_free(r->line_text);
  r->line_text = g_strdup_printf("alias=%s%s%s", alias->name, *alias->preset ? ":" : "", alias->preset);
  if (r->manifest->id && strcmp(alias->name, r->manifest->id) == 0)
    ordo_manifest_complain(r, alias->line, "remove the line", "the alias '%s' is the plugin's own id", alias->name);
  for (char **part = parts; *part; part++) {
    char *equal = strchr(*part, '=');
    if (equal) {
      *equal = '\0';
      check_option_value(r, alias->line, *part, equal + 1, "alias");
    } else if (!r->manifest->positional) {
      ordo_manifest_complain(r, alias->line, "write key=value, or add a positional line", "the alias sets '%s' without naming an option",
                             *part);
    } else {
      check_option_value(r, alias->line, r->manifest->positional, *part, "alias");
    }
  }
}

void ordo_manifest_check(manifest_reader *r)
{
  ordo_manifest *manifest = r->manifest;
  if (manifest->positional && !ordo_manifest_option(manifest, manifest->positional)) {
    g_autofree const char **keys = option_keys(manifest);
    g_autofree char *next = ordo_manifest_suggest(manifest->positional, keys, "declare it with an option line");
    ordo_manifest_complain(r, r->positional_line, next, "positional names '%s', which is not an option of the plugin",
                           manifest->positional);
  }
  for (guint i = 0; i < manifest->aliases->len; i++)
    check_alias(r, g_ptr_array_index(manifest->aliases, i));
  for (guint i = 0; i < manifest->lines->len; i++)
    check_line(r, g_ptr_array_index(manifest->lines, i));
  if (!manifest->mesh_axis)
    manifest->mesh_axis = g_strdup(manifest->kind == ORDO_KIND_STRATEGY ? "data" : "none");
  else if (manifest->kind && manifest->kind != ORDO_KIND_STRATEGY && strcmp(manifest->mesh_axis, "none") != 0)
    ordo_manifest_complain(r, 0, "remove the line", "only a strategy takes a mesh axis");
}
