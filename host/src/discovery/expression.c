/* expression.c - what a person writes after --strategy and --precision.
 *
 *   expression  part { '+' part }           innermost mesh axis first; "", "none": nothing
 *   part        name [ '=' size ] { ':' item }
 *   item        key '=' value | word        a word is the value of the plugin's positional option
 *
 * It knows no plugin and no option by name: plugins come from the registry, options from their manifests.
 *
 * The idea: the whole text is read before it is refused, so that one run shows every mistake in it. Options come in three layers:
 * defaults of the manifest, presets of the alias by which the plugin was called, and what was written. What was written replaces a default
 * and adds to an alias; against it, it is refused: `bf16-mixed:O2` would be called bf16 and compute in fp16.
 */
#include "expression.h"

#include <string.h>

#include "option.h"

typedef struct ordo_reader {
  const char *text; /* the whole expression */
  uint32_t kind;
  ordo_registry *registry;
  ordo_errors *errors;
  gboolean failed;
  /* Of the part that is read: the alias by which the plugin was called, what it presets, and the options that it has set, or null. */
  const char *alias, *preset;
  GHashTable *preset_keys;
} ordo_reader;

static const char *kind_of(const ordo_reader *reader)
{
  return reader->kind == ORDO_KIND_PRECISION ? "precision" : reader->kind == ORDO_KIND_COMM_HOOK ? "hook" : "strategy";
}

static void complain(ordo_reader *reader, const char *code, const char *where, const char *why, const char *next, const char *format, ...)
    G_GNUC_PRINTF(6, 7);

static void complain(ordo_reader *reader, const char *code, const char *where, const char *why, const char *next, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  g_autofree char *what = g_strdup_vprintf(format, args);
  va_end(args);
  g_autofree char *place = g_strdup_printf("--%s %s", kind_of(reader), where ? where : reader->text);
  ordo_errors_push(reader->errors, ORDO_E_INVALID, code, place, why, next, "%s", what);
  reader->failed = TRUE;
}

static void choice_free(gpointer data)
{
  ordo_choice *choice = data;
  g_free(choice->written);
  g_hash_table_unref(choice->options);
  g_free(choice);
}

static void unknown_option(ordo_reader *reader, const ordo_choice *choice, const char *key)
{
  const ordo_manifest *manifest = choice->found->manifest;
  g_autoptr(GPtrArray) keys = g_ptr_array_new();
  for (guint i = 0; manifest->options && i < manifest->options->len; i++)
    g_ptr_array_add(keys, ((ordo_option_schema *)g_ptr_array_index(manifest->options, i))->key);
  g_ptr_array_add(keys, NULL);
  const char *nearest = ordo_nearest_name(key, (const char *const *)keys->pdata);
  g_autofree char *list = g_strjoinv(", ", (char **)keys->pdata);
  g_autofree char *why = *list ? g_strdup_printf("its options: %s", list) : g_strdup("it has no options");
  g_autofree char *next = nearest ? g_strdup_printf("did you mean '%s'? All options: ordo inspect %s", nearest, manifest->id)
                                  : g_strdup_printf("all options: ordo inspect %s", manifest->id);
  complain(reader, "E-OPTION-UNKNOWN", choice->written, why, next, "plugin '%s' has no option '%s'", manifest->id, key);
}

/* A word that the plugin knows itself, or the name of a comm_hook plugin. A name that nothing answers to would only be met when the
 * strategy asks for its hook, in the middle of the set-up of a run. */
static gboolean names_hook(ordo_reader *reader, const ordo_choice *choice, const ordo_option_schema *schema, const char *value)
{
  g_auto(GStrv) words = g_strsplit(schema->range, ",", -1);
  const ordo_found *found = NULL;
  const char *preset = "";
  for (guint i = 0; words[i]; i++)
    if (!strcmp(g_strstrip(words[i]), value))
      return TRUE;
  ordo_errors *unread = ordo_errors_new();
  ordo_status status = ordo_registry_find(reader->registry, value, ORDO_KIND_COMM_HOOK, &found, &preset, unread);
  ordo_errors_free(unread);
  if (status == ORDO_E_NOT_FOUND) {
    const char *nearest = ordo_nearest_name(value, (const char *const *)words);
    g_autofree char *why = g_strdup_printf("it must be %s%sthe name of a comm_hook plugin, and no plugin has this name", schema->range,
                                           *schema->range ? ", or " : "");
    g_autofree char *next =
        nearest ? g_strdup_printf("did you mean '%s'? Installed plugins: ordo list", nearest) : g_strdup("installed plugins: ordo list");
    complain(reader, "E-OPTION-VALUE", choice->written, why, next, "option '%s' of '%s' cannot be '%s'", schema->key,
             choice->found->manifest->id, value);
  } else if (status != ORDO_OK) {
    ordo_registry_find(reader->registry, value, ORDO_KIND_COMM_HOOK, &found, &preset, reader->errors); /* refused, or another kind */
    reader->failed = TRUE;
  }
  return status == ORDO_OK;
}

/* An alias says what a plugin does; written beside it, another value would make its name a lie. */
static gboolean contradicts_alias(ordo_reader *reader, const ordo_choice *choice, const char *key, const char *value)
{
  const char *id = choice->found->manifest->id;
  const char *preset = g_hash_table_lookup(choice->options, key);
  if (!reader->preset_keys || !g_hash_table_contains(reader->preset_keys, key) || g_strcmp0(preset, value) == 0)
    return FALSE;
  g_autofree char *why = g_strdup_printf("'%s' means %s:%s", reader->alias, id, reader->preset);
  g_autofree char *next =
      g_strdup_printf("leave %s=%s out, or write '%s' with the options that you mean instead of '%s'", key, value, id, reader->alias);
  complain(reader, "E-OPTION-VALUE", choice->written, why, next, "option '%s' cannot be '%s' where '%s' sets it to '%s'", key, value,
           reader->alias, preset);
  return TRUE;
}

static void set_option(ordo_reader *reader, ordo_choice *choice, GHashTable *seen, const char *key, const char *value)
{
  const ordo_manifest *manifest = choice->found->manifest;
  const ordo_option_schema *schema = ordo_manifest_option(manifest, key);
  g_autofree char *why = NULL;
  if (!schema) {
    unknown_option(reader, choice, key);
    return;
  }
  g_autofree char *next = g_strdup_printf("see: ordo inspect %s", manifest->id);
  if (!g_hash_table_add(seen, g_strdup(key))) {
    complain(reader, "E-OPTION-VALUE", choice->written, "each option has one value", "remove one of the two",
             "option '%s' of '%s' stands twice", key, manifest->id);
    return;
  }
  g_autofree char *canonical = ordo_option_normalise(schema, value, &why);
  if (canonical && schema->type == ORDO_OPTION_COMM_HOOK && !names_hook(reader, choice, schema, canonical))
    return;
  if (canonical && contradicts_alias(reader, choice, key, canonical))
    return;
  if (canonical)
    g_hash_table_replace(choice->options, g_strdup(key), g_steal_pointer(&canonical));
  else
    complain(reader, "E-OPTION-VALUE", choice->written, why, next, "option '%s' of '%s' cannot be '%s'", key, manifest->id, value);
}

/* The name of an option without a value, unless the positional option takes the word itself. */
static gboolean is_bare_key(const ordo_choice *choice, const char *item)
{
  const ordo_manifest *manifest = choice->found->manifest;
  const ordo_option_schema *positional = ordo_manifest_option(manifest, manifest->positional);
  g_autofree char *why = NULL;
  g_autofree char *taken = positional && positional->type == ORDO_OPTION_ENUM ? ordo_option_normalise(positional, item, &why) : NULL;
  return !taken && ordo_manifest_option(manifest, item) != NULL;
}

static void read_item(ordo_reader *reader, ordo_choice *choice, GHashTable *seen, char *item)
{
  const ordo_manifest *manifest = choice->found->manifest;
  char *equals = strchr(g_strstrip(item), '=');
  if (*item == '\0' || equals == item) {
    complain(reader, "E-EXPRESSION", choice->written, "an item is key=value, or the value of the positional option",
             "remove a ':' or write the option", "an option of '%s' is empty", manifest->id);
  } else if (equals) {
    *equals = '\0';
    set_option(reader, choice, seen, g_strstrip(item), g_strstrip(equals + 1));
  } else if (manifest->positional && *manifest->positional && !is_bare_key(choice, item)) {
    set_option(reader, choice, seen, manifest->positional, item);
  } else {
    g_autofree char *next = ordo_manifest_option(manifest, item)
                                ? g_strdup_printf("write %s=VALUE", item)
                                : g_strdup_printf("write key=value; all options: ordo inspect %s", manifest->id);
    complain(reader, "E-OPTION-UNKNOWN", choice->written,
             manifest->positional && *manifest->positional ? "it is the name of an option, and its value is missing"
                                                           : "it has no positional option",
             next, "plugin '%s' does not take the bare word '%s'", manifest->id, item);
  }
}

/* The options that were set. */
static GHashTable *read_items(ordo_reader *reader, ordo_choice *choice, char **items)
{
  GHashTable *seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
  for (guint i = 0; items[i]; i++)
    read_item(reader, choice, seen, items[i]);
  return seen;
}

static void set_defaults(ordo_reader *reader, ordo_choice *choice)
{
  const ordo_manifest *manifest = choice->found->manifest;
  for (guint i = 0; manifest->options && i < manifest->options->len; i++) {
    const ordo_option_schema *schema = g_ptr_array_index(manifest->options, i);
    g_autofree char *why = NULL;
    if (!schema->default_text || *schema->default_text == '\0')
      continue;
    char *canonical = ordo_option_normalise(schema, schema->default_text, &why);
    if (canonical)
      g_hash_table_replace(choice->options, g_strdup(schema->key), canonical);
    else
      complain(reader, "E-OPTION-VALUE", choice->written, why, "report it to the author of the plugin",
               "the default '%s' of option '%s' (manifest line %d of '%s') is not allowed", schema->default_text, schema->key, schema->line,
               manifest->id);
  }
}

static gboolean takes_axis(const ordo_choice *choice)
{
  const char *axis = choice->found->manifest->mesh_axis;
  return choice->found->info.kind == ORDO_KIND_STRATEGY && !(axis && strcmp(axis, "none") == 0);
}

static void read_size(ordo_reader *reader, ordo_choice *choice, const char *size)
{
  guint64 value = 0;
  choice->size = !takes_axis(choice) ? -1 : size ? 1 : 0; /* 1 after a mistake, which is reported once */
  if (!size)
    return;
  if (choice->size < 0)
    complain(reader, "E-EXPRESSION", choice->written, "it takes no mesh axis", "leave '=SIZE' out", "'%s' cannot have a size",
             choice->found->manifest->id);
  else if (!g_ascii_string_to_unsigned(size, 10, 1, G_MAXINT, &value, NULL))
    complain(reader, "E-EXPRESSION", choice->written, "a size is a number of ranks, at least 1", "write NAME=SIZE, such as tp=2",
             "the size of '%s' cannot be '%s'", choice->found->manifest->id, size);
  else
    choice->size = (int)value;
}

/* Null when nothing more can be said about this part. */
static ordo_choice *read_part(ordo_reader *reader, char *written)
{
  const ordo_found *found = NULL;
  const char *preset = "";
  g_auto(GStrv) pieces = g_strsplit(written, ":", -1);
  char *name = pieces[0] ? pieces[0] : written; /* g_strsplit of "" has no piece */
  char *size = strchr(name, '=');
  if (size)
    *size++ = '\0';
  g_strstrip(name);
  if (*name == '\0') {
    complain(reader, "E-EXPRESSION", NULL, "a part is NAME[=SIZE][:key=value...], parts are joined with '+'",
             "remove a '+' or write the name", "a part of the expression has no name");
    return NULL;
  }
  if (strcmp(name, "none") == 0) {
    complain(reader, "E-EXPRESSION", NULL, "'none' means no plugin at all", "leave it out", "'none' stands beside other parts");
    return NULL;
  }
  if (ordo_registry_find(reader->registry, name, reader->kind, &found, &preset, reader->errors)) {
    reader->failed = TRUE;
    return NULL;
  }
  ordo_choice *choice = g_new0(ordo_choice, 1);
  choice->found = found;
  choice->written = g_strdup(written);
  choice->options = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
  read_size(reader, choice, size ? g_strstrip(size) : NULL);
  set_defaults(reader, choice);
  g_auto(GStrv) preset_items = g_strsplit(preset, ":", -1); /* none of "" */
  g_autoptr(GHashTable) preset_keys = read_items(reader, choice, preset_items);
  reader->alias = name;
  reader->preset = preset;
  reader->preset_keys = preset_keys;
  g_hash_table_unref(read_items(reader, choice, pieces + (pieces[0] != NULL)));
  reader->preset_keys = NULL;
  return choice;
}

static void check_together(ordo_reader *reader, const GPtrArray *choices)
{
  guint n_open = 0;
  gboolean repeats = FALSE;
  g_autoptr(GHashTable) ids = g_hash_table_new(g_str_hash, g_str_equal);
  for (guint i = 0; i < choices->len; i++) {
    const ordo_choice *choice = g_ptr_array_index(choices, i);
    n_open += choice->size == 0;
    if (g_hash_table_add(ids, choice->found->manifest->id))
      continue;
    repeats = TRUE;
    complain(reader, "E-EXPRESSION", NULL, "a plugin has one place in the order", "remove one of the two", "plugin '%s' stands twice",
             choice->found->manifest->id);
  }
  if (n_open > 1 && !repeats) /* sizes are counted when it is clear of what */
    complain(reader, "E-EXPRESSION", NULL, "only one part can take the ranks that are left", "write NAME=SIZE for all parts but one",
             "%u parts have no size", n_open);
}

GPtrArray *ordo_expression_parse(const char *text, uint32_t kind, ordo_registry *registry, ordo_errors *errors)
{
  g_autoptr(GPtrArray) choices = g_ptr_array_new_with_free_func(choice_free);
  g_autofree char *trimmed = g_strstrip(g_strdup(text ? text : ""));
  ordo_reader reader = {.text = trimmed, .kind = kind, .registry = registry, .errors = errors};
  if (*trimmed == '\0' || strcmp(trimmed, "none") == 0)
    return g_steal_pointer(&choices);
  if (!g_utf8_validate(trimmed, -1, NULL)) {
    complain(&reader, "E-EXPRESSION", "", "it is no UTF-8", "write it again", "the expression cannot be read");
    return NULL;
  }
  g_auto(GStrv) parts = g_strsplit(trimmed, "+", -1);
  if (kind == ORDO_KIND_PRECISION && parts[1])
    complain(&reader, "E-EXPRESSION", NULL, "a session has one precision plugin at most", "choose one",
             "a precision cannot be joined with '+'");
  for (guint i = 0; parts[i]; i++) {
    ordo_choice *choice = read_part(&reader, g_strstrip(parts[i]));
    if (choice)
      g_ptr_array_add(choices, choice);
  }
  check_together(&reader, choices);
  return reader.failed ? NULL : g_steal_pointer(&choices);
}

char *ordo_choice_resolved(const ordo_choice *choice)
{
  const ordo_manifest *manifest = choice->found->manifest;
  const char *positional =
      manifest->positional && *manifest->positional ? ordo_choice_option((gpointer)choice, manifest->positional) : NULL;
  GString *text = g_string_new(manifest->id);
  if (positional)
    g_string_append_printf(text, ":%s", positional);
  for (guint i = 0; manifest->options && i < manifest->options->len; i++) {
    const ordo_option_schema *schema = g_ptr_array_index(manifest->options, i);
    const char *value = ordo_choice_option((gpointer)choice, schema->key);
    g_autofree char *why = NULL;
    g_autofree char *otherwise =
        schema->default_text && *schema->default_text ? ordo_option_normalise(schema, schema->default_text, &why) : NULL;
    if (value && g_strcmp0(value, otherwise) != 0 && !(positional && strcmp(schema->key, manifest->positional) == 0))
      g_string_append_printf(text, ":%s=%s", schema->key, value);
  }
  return g_string_free(text, FALSE);
}

const char *ordo_choice_option(gpointer user, const char *key)
{
  const ordo_choice *choice = user;
  return g_hash_table_lookup(choice->options, key);
}
