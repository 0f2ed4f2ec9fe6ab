/* manifest.c - reads the text of a manifest.
 *
 * Not a judge of what the lines mean together (decl.c is) and no reader of files (the note reader is): bytes in, lines as data out. The
 * idea: one table of keys says for each how it is read, so the grammar of sdk/include/ordo/manifest.h is visible in one place. Every
 * finding of a text is reported in one run. Guards against a plugin whose misspelt flag would be ignored and whose order would then be
 * silently wrong: an unknown word is an error that names the nearest known one.
 */
#include "manifest.h"
#include "condition.h"
#include "manifest_read.h"
#include "names.h"

#include <ordo/manifest.h>
#include <string.h>

void ordo_manifest_complain(manifest_reader *r, int line, const char *next, const char *what, ...)
{
  va_list args;
  va_start(args, what);
  g_autofree char *text = g_strdup_vprintf(what, args);
  va_end(args);
  g_autofree char *where = line > 0 ? g_strdup_printf("%s line %d", r->origin, line) : g_strdup(r->origin);
  ordo_errors_push(r->errors, ORDO_E_INVALID, "E-MANIFEST", where, line > 0 ? r->line_text : "", next, "%s", text);
  r->n_findings++;
}

char *ordo_manifest_suggest(const char *name, const char *const *names, const char *otherwise)
{
  const char *near = ordo_nearest_name(name, names);
  return near ? g_strdup_printf("did you mean '%s'?", near) : g_strdup(otherwise);
}

gboolean ordo_manifest_is_id(const char *text)
{
  size_t length = strlen(text);
  return length > 0 && length <= 128 && strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_.-") == length;
}

/* One dot-separated group of identifiers of a version, up to `end`: 0-9A-Za-z- and nothing empty. */
static const char *skip_identifiers(const char *at)
{
  do {
    size_t length = strspn(at, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-");
    if (length == 0)
      return NULL;
    at += length;
  } while (*at == '.' && *at++);
  return at;
}

/* MAJOR.MINOR.PATCH without leading zeros, then optional -pre and +build (semver.org 2.0.0). */
static gboolean is_version(const char *text)
{
  const char *at = text;
  for (int part = 0; part < 3; part++) {
    size_t digits = strspn(at, "0123456789");
    if (digits == 0 || digits > 9 || (digits > 1 && *at == '0') || (part < 2 && at[digits] != '.'))
      return FALSE;
    at += digits + (part < 2);
  }
  if (*at == '-')
    at = skip_identifiers(at + 1);
  if (at && *at == '+')
    at = skip_identifiers(at + 1);
  return at && *at == '\0' && strlen(text) <= 128;
}

static gboolean is_dtype(const char *word)
{
  static const char *const known[] = {"f32", "f64", "f16", "bf16", "i8", "u8", "i32", "i64", "u64", NULL};
  return g_strv_contains(known, word);
}

/* Splits at commas and trims; null and a finding for an empty item. */
static char **split_list(manifest_reader *r, const char *value)
{
  char **items = g_strsplit(value, ",", -1);
  for (char **item = items; *item; item++) {
    g_strstrip(*item);
    if (**item == '\0') {
      ordo_manifest_complain(r, r->number, "remove the extra comma", "'%s' has an empty item in its list", r->key);
      g_strfreev(items);
      return NULL;
    }
  }
  return items;
}

/* ---- single keys ---- */

static void take_string(char **slot, const char *value)
{
  *slot = g_strdup(value);
}

/* Names that plans and expressions give to others: a plugin of that name could not be selected, or not be told from its host. */
static void check_free_name(manifest_reader *r, const char *name)
{
  static const char *const taken[] = {"host", "embedder", "none", NULL};
  if (g_strv_contains(taken, name))
    ordo_manifest_complain(r, r->number, "choose another name", "'%s' is a word of plans and expressions, no name for a plugin", name);
}

static void read_id(manifest_reader *r, const char *value)
{
  check_free_name(r, value);
  if (!ordo_manifest_is_id(value))
    ordo_manifest_complain(r, r->number, "use only a-z, 0-9, '_', '.' and '-', at most 128 of them", "'%s' is not an id", value);
  else
    take_string(&r->manifest->id, value);
}

static void read_kind(manifest_reader *r, const char *value)
{
  static const char *const kinds[] = {"strategy", "precision", "comm_hook", NULL};
  for (uint32_t kind = ORDO_KIND_STRATEGY; kind <= ORDO_KIND_COMM_HOOK; kind++) {
    if (strcmp(value, ordo_kind_name(kind)) == 0)
      r->manifest->kind = kind;
  }
  if (!r->manifest->kind) {
    g_autofree char *next = ordo_manifest_suggest(value, kinds, "write strategy, precision or comm_hook");
    ordo_manifest_complain(r, r->number, next, "'%s' is not a kind of plugin", value);
  }
}

static void read_version(manifest_reader *r, const char *value)
{
  if (!is_version(value))
    ordo_manifest_complain(r, r->number, "write MAJOR.MINOR.PATCH, for example 1.0.0", "'%s' is not a semantic version", value);
  else
    take_string(&r->manifest->version, value);
}

static void read_summary(manifest_reader *r, const char *value)
{
  take_string(&r->manifest->summary, value);
}

static void read_license(manifest_reader *r, const char *value)
{
  take_string(&r->manifest->license, value);
}

static void read_url(manifest_reader *r, const char *value)
{
  take_string(&r->manifest->url, value);
}

static void read_mesh_axis(manifest_reader *r, const char *value)
{
  static const char *const axes[] = {"none", "data", "model", NULL};
  if (!g_strv_contains(axes, value)) {
    g_autofree char *next = ordo_manifest_suggest(value, axes, "write none, data or model");
    ordo_manifest_complain(r, r->number, next, "'%s' is not a kind of mesh axis", value);
    return;
  }
  take_string(&r->manifest->mesh_axis, value);
}

static void read_positional(manifest_reader *r, const char *value)
{
  take_string(&r->manifest->positional, value);
  r->positional_line = r->number;
}

static void read_precisions(manifest_reader *r, const char *value)
{
  g_auto(GStrv) items = split_list(r, value);
  for (char **item = items; items && *item; item++) {
    if (!is_dtype(*item))
      ordo_manifest_complain(r, r->number, "write f32, f64, f16 or bf16", "'%s' is not a precision", *item);
  }
  r->manifest->precisions = g_steal_pointer(&items);
}

static void read_dry_run(manifest_reader *r, const char *value)
{
  r->manifest->dry_run = strcmp(value, "yes") == 0;
  if (!r->manifest->dry_run && strcmp(value, "no") != 0)
    ordo_manifest_complain(r, r->number, "write dry_run=yes or dry_run=no", "'%s' is neither yes nor no", value);
}

static void read_abi(manifest_reader *r, const char *value)
{
  g_auto(GStrv) parts = g_strsplit(value, ".", -1);
  guint64 major = 0, minor = 0;
  if (g_strv_length(parts) != 2 || !g_ascii_string_to_unsigned(parts[0], 10, 0, 9999, &major, NULL) ||
      !g_ascii_string_to_unsigned(parts[1], 10, 0, 9999, &minor, NULL)) {
    ordo_manifest_complain(r, r->number, "leave it to ORDO_MANIFEST, which writes MAJOR.MINOR", "'%s' is not an ABI version", value);
    return;
  }
  r->manifest->abi_major = (uint32_t)major;
  r->manifest->abi_minor = (uint32_t)minor;
}

/* ---- repeatable keys ---- */

static void free_alias(gpointer data)
{
  ordo_alias *alias = data;
  g_free(alias->name);
  g_free(alias->preset);
  g_free(alias);
}

static void read_alias(manifest_reader *r, const char *value)
{
  const char *colon = strchr(value, ':');
  ordo_alias *alias = g_new0(ordo_alias, 1);
  alias->name = g_strstrip(colon ? g_strndup(value, (gsize)(colon - value)) : g_strdup(value));
  alias->preset = g_strstrip(g_strdup(colon ? colon + 1 : ""));
  alias->line = r->number;
  for (guint i = 0; i < r->manifest->aliases->len; i++) {
    const ordo_alias *other = g_ptr_array_index(r->manifest->aliases, i);
    if (strcmp(other->name, alias->name) == 0)
      ordo_manifest_complain(r, r->number, "remove one of them", "the alias '%s' was already given on line %d", alias->name, other->line);
  }
  check_free_name(r, alias->name);
  if (!ordo_manifest_is_id(alias->name))
    ordo_manifest_complain(r, r->number, "use only a-z, 0-9, '_', '.' and '-'", "'%s' is not a name for an alias", alias->name);
  g_ptr_array_add(r->manifest->aliases, alias);
}

static void free_line(gpointer data)
{
  ordo_manifest_line *line = data;
  g_free(line->text);
  g_free(line->key);
  g_free(line->condition);
  g_strfreev(line->values);
  g_free(line);
}

/* A line of flags, steps ... after. `step` is null or the step of before[]/after[]. */
static void read_list_line(manifest_reader *r, const char *step, const char *condition, const char *value)
{
  g_auto(GStrv) values = split_list(r, value);
  if (!values)
    return;
  ordo_manifest_line *line = g_new0(ordo_manifest_line, 1);
  line->number = r->number;
  line->text = g_strdup(r->line_text);
  line->key = g_strdup(r->key);
  line->step = step ? ordo_step_by_name(step) : -1;
  line->condition = g_strdup(condition);
  line->values = g_steal_pointer(&values);
  g_ptr_array_add(r->manifest->lines, line);
  if (step && line->step < 0) {
    g_autofree char *next = ordo_manifest_suggest(step, ordo_step_names(), "the steps are listed in ordo/step.h");
    ordo_manifest_complain(r, r->number, next, "'%s' is not a step", step);
  }
}

/* ---- the table of keys ---- */

typedef enum { KEY_ONCE, KEY_REPEATS, KEY_LIST, KEY_EDGE } key_form;

typedef struct key_rule {
  const char *name;
  key_form form;
  gboolean required;
  void (*read)(manifest_reader *r, const char *value); /* null for LIST and EDGE */
} key_rule;

static const key_rule key_rules[] = {
    {"id", KEY_ONCE, TRUE, read_id},
    {"kind", KEY_ONCE, TRUE, read_kind},
    {"version", KEY_ONCE, TRUE, read_version},
    {"summary", KEY_ONCE, TRUE, read_summary},
    {"license", KEY_ONCE, FALSE, read_license},
    {"url", KEY_ONCE, FALSE, read_url},
    {"alias", KEY_REPEATS, FALSE, read_alias},
    {"flags", KEY_LIST, FALSE, NULL},
    {"steps", KEY_LIST, FALSE, NULL},
    {"replaces_leaves", KEY_LIST, FALSE, NULL},
    {"reduces", KEY_LIST, FALSE, NULL},
    {"events", KEY_LIST, FALSE, NULL},
    {"provides", KEY_LIST, FALSE, NULL},
    {"requires", KEY_LIST, FALSE, NULL},
    {"conflicts", KEY_LIST, FALSE, NULL},
    {"before", KEY_EDGE, FALSE, NULL},
    {"after", KEY_EDGE, FALSE, NULL},
    {"mesh_axis", KEY_ONCE, FALSE, read_mesh_axis},
    {"option", KEY_REPEATS, FALSE, ordo_manifest_read_option},
    {"positional", KEY_ONCE, FALSE, read_positional},
    {"precisions", KEY_ONCE, FALSE, read_precisions},
    {"dry_run", KEY_ONCE, FALSE, read_dry_run},
    {"abi", KEY_ONCE, FALSE, read_abi},
};

static const key_rule *find_key(manifest_reader *r)
{
  const char *names[G_N_ELEMENTS(key_rules) + 1] = {NULL};
  for (size_t i = 0; i < G_N_ELEMENTS(key_rules); i++) {
    if (strcmp(key_rules[i].name, r->key) == 0)
      return &key_rules[i];
    names[i] = key_rules[i].name;
  }
  g_autofree char *next = ordo_manifest_suggest(r->key, names, "the keys are listed in ordo/manifest.h; own keys begin with x-");
  ordo_manifest_complain(r, r->number, next, "'%s' is not a key of a manifest", r->key);
  return NULL;
}

/* Cuts `[...]` off the front of *at. FALSE if it is never closed. */
static gboolean take_bracket(const char **at, char **inside)
{
  if (**at != '[')
    return TRUE;
  const char *close = strchr(*at, ']');
  if (!close)
    return FALSE;
  *inside = g_strstrip(g_strndup(*at + 1, (gsize)(close - *at - 1)));
  *at = close + 1;
  while (**at == ' ' || **at == '\t')
    (*at)++;
  return TRUE;
}

static void dispatch_line(manifest_reader *r, const key_rule *rule, char **brackets, const char *value)
{
  size_t index = (size_t)(rule - key_rules);
  gboolean edge = rule->form == KEY_EDGE, list = rule->form == KEY_LIST;
  const char *condition = edge ? brackets[1] : brackets[0];
  g_autofree char *wrong = condition ? ordo_condition_check(condition, NULL, NULL) : NULL;
  if (edge && !brackets[0])
    ordo_manifest_complain(r, r->number, "write for example before[strategy.wrap]=optimizer.create", "'%s' does not say which step",
                           r->key);
  else if (!edge && (brackets[1] || (!list && brackets[0])))
    ordo_manifest_complain(r, r->number, "remove the brackets", "'%s' does not take %s", r->key, list ? "two conditions" : "a condition");
  else if (wrong)
    ordo_manifest_complain(r, r->number, "conditions are described in ordo/manifest.h", "the condition is not well formed: %s", wrong);
  else if (*value == '\0')
    ordo_manifest_complain(r, r->number, "give it a value or remove the line", "'%s' has no value", r->key);
  else if (rule->form == KEY_ONCE && r->seen[index])
    ordo_manifest_complain(r, r->number, "remove one of them", "'%s' was already given on line %d", r->key, r->seen[index]);
  else if (rule->read)
    rule->read(r, value);
  else
    read_list_line(r, edge ? brackets[0] : NULL, condition, value);
  r->seen[index] = r->number;
}

static void read_line(manifest_reader *r)
{
  char *brackets[2] = {NULL, NULL};
  const char *at = r->line_text;
  size_t key_length = strcspn(at, "[= \t");
  g_free(r->key);
  r->key = g_strndup(at, key_length);
  at += key_length;
  while (*at == ' ' || *at == '\t')
    at++;
  if (g_str_has_prefix(r->key, "x-"))
    return;
  if (!take_bracket(&at, &brackets[0]) || !take_bracket(&at, &brackets[1]))
    ordo_manifest_complain(r, r->number, "close it with ]", "a bracket is never closed");
  else if (*at != '=' || key_length == 0)
    ordo_manifest_complain(r, r->number, "write key=value, or begin a comment with #", "the line is not of the form key=value");
  else {
    const key_rule *rule = find_key(r);
    g_autofree char *value = g_strstrip(g_strdup(at + 1));
    if (rule)
      dispatch_line(r, rule, brackets, value);
  }
  g_free(brackets[0]);
  g_free(brackets[1]);
}

/* Bytes that make the whole text unreadable are one finding; its lines are then not looked at. */
static gboolean text_is_sound(manifest_reader *r, const char *text, size_t length)
{
  const char *bad = NULL;
  if (length == 0) {
    ordo_manifest_complain(r, 0, "write the manifest with ORDO_MANIFEST", "the manifest is empty");
    return FALSE;
  }
  if (length > ORDO_MANIFEST_MAX) {
    ordo_manifest_complain(r, 0, "shorten it", "the manifest has %zu bytes; %d are allowed", length, ORDO_MANIFEST_MAX);
    return FALSE;
  }
  if (memchr(text, '\0', length)) {
    ordo_manifest_complain(r, 0, "write the manifest with ORDO_MANIFEST", "the manifest contains a NUL byte");
    return FALSE;
  }
  if (!g_utf8_validate_len(text, length, &bad)) {
    ordo_manifest_complain(r, 0, "save it as UTF-8", "the manifest is not UTF-8 at byte %zu", (size_t)(bad - text));
    return FALSE;
  }
  for (size_t i = 0; i < length; i++) {
    if (g_ascii_iscntrl(text[i]) && text[i] != '\n' && text[i] != '\t') {
      ordo_manifest_complain(r, 0, "lines end in \\n alone", "the manifest contains the control character 0x%02x at byte %zu",
                             (unsigned)text[i], i);
      return FALSE;
    }
  }
  return TRUE;
}

static void read_lines(manifest_reader *r)
{
  g_auto(GStrv) lines = g_strsplit(r->manifest->text, "\n", -1);
  for (char **line = lines; *line; line++) {
    r->number++;
    g_free(r->line_text);
    r->line_text = g_strstrip(g_strdup(*line));
    if (*r->line_text && *r->line_text != '#')
      read_line(r);
  }
}

static void check_required(manifest_reader *r)
{
  for (size_t i = 0; i < G_N_ELEMENTS(key_rules); i++) {
    if (key_rules[i].required && !r->seen[i])
      ordo_manifest_complain(r, 0, "add the line", "the line '%s=...' is missing", key_rules[i].name);
  }
}

ordo_manifest *ordo_manifest_parse(const char *text, size_t length, const char *origin, ordo_errors *errors)
{
  int seen[G_N_ELEMENTS(key_rules)] = {0};
  manifest_reader r = {.origin = origin, .errors = errors, .seen = seen};
  while (length > 0 && text[length - 1] == '\0') /* the note is padded to four bytes */
    length--;
  r.manifest = g_new0(ordo_manifest, 1);
  r.manifest->aliases = g_ptr_array_new_with_free_func(free_alias);
  r.manifest->options = g_ptr_array_new_with_free_func(ordo_option_schema_free);
  r.manifest->lines = g_ptr_array_new_with_free_func(free_line);
  r.manifest->abi_major = ORDO_ABI_MAJOR;
  r.manifest->abi_minor = ORDO_ABI_MINOR;
  if (text_is_sound(&r, text, length)) {
    r.manifest->text = g_strndup(text, length);
    read_lines(&r);
    check_required(&r);
    ordo_manifest_check(&r);
  }
  g_free(r.line_text);
  g_free(r.key);
  if (r.n_findings > 0)
    g_clear_pointer(&r.manifest, ordo_manifest_free);
  return r.manifest;
}

void ordo_manifest_free(ordo_manifest *manifest)
{
  if (!manifest)
    return;
  g_free(manifest->text);
  g_free(manifest->id);
  g_free(manifest->version);
  g_free(manifest->summary);
  g_free(manifest->license);
  g_free(manifest->url);
  g_free(manifest->mesh_axis);
  g_free(manifest->positional);
  g_strfreev(manifest->precisions);
  g_ptr_array_unref(manifest->aliases);
  g_ptr_array_unref(manifest->options);
  g_ptr_array_unref(manifest->lines);
  g_free(manifest);
}

const ordo_option_schema *ordo_manifest_option(const ordo_manifest *manifest, const char *key)
{
  for (guint i = 0; i < manifest->options->len; i++) {
    const ordo_option_schema *option = g_ptr_array_index(manifest->options, i);
    if (strcmp(option->key, key) == 0)
      return option;
  }
  return NULL;
}
