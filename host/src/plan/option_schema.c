/* option_schema.c - the option lines of a manifest: key, type, default, range, help.
 *
 * Reads and checks the schema; what a value may be is decided in one place for defaults, presets, conditions and what a person writes. A
 * default that its own range forbids is the author's mistake, and is found here before anybody meets it as a puzzling error about a value
 * that nobody typed.
 */
#include "../discovery/option.h"
#include "manifest_read.h"

#include <string.h>

static const char *const type_names[] = {"bool", "int", "real", "string", "enum", "size", "dtype", "comm_hook", NULL};

void ordo_option_schema_free(gpointer data)
{
  ordo_option_schema *schema = data;
  g_free(schema->key);
  g_free(schema->default_text);
  g_free(schema->range);
  g_free(schema->help);
  g_free(schema);
}

static int type_by_name(const char *name)
{
  for (int i = 0; type_names[i]; i++) {
    if (strcmp(type_names[i], name) == 0)
      return i + ORDO_OPTION_BOOL;
  }
  return 0;
}

char *ordo_option_schema_refuses(const ordo_option_schema *schema, const char *text)
{
  char *why = NULL;
  g_autofree char *canonical = ordo_option_normalise(schema, text, &why);
  return canonical ? NULL : why;
}

/* `a..b` with values of the type, either end optional, and a not above b. */
static gboolean is_interval(int type, const char *range)
{
  const char *dots = strstr(range, "..");
  g_autofree char *low = g_strstrip(g_strndup(range, (gsize)(dots - range)));
  g_autofree char *high = g_strstrip(g_strdup(dots + 2)), *below_high = g_strconcat("..", high, NULL);
  ordo_option_schema any = {.type = type, .range = (char *)""}, below = {.type = type, .range = below_high};
  g_autofree char *why_high = *high ? ordo_option_schema_refuses(&any, high) : NULL;
  g_autofree char *why_low = *low ? ordo_option_schema_refuses(&below, low) : NULL;
  return !why_high && !why_low && (*low || *high);
}

static gboolean is_key(const char *text)
{
  size_t length = strlen(text);
  return length > 0 && length <= 64 && strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_") == length;
}

static void check_schema(manifest_reader *r, const ordo_option_schema *schema, const char *type)
{
  static const char *const reserved[] = {"and", "or", "in", "not", "set", "unset", NULL};
  const ordo_option_schema *other = ordo_manifest_option(r->manifest, schema->key);
  gboolean numeric = schema->type == ORDO_OPTION_INT || schema->type == ORDO_OPTION_REAL || schema->type == ORDO_OPTION_SIZE;
  if (!is_key(schema->key) || g_strv_contains(reserved, schema->key))
    ordo_manifest_complain(r, r->number, "use a-z, 0-9 and '_', and no word of the conditions", "'%s' is not a key for an option",
                           schema->key);
  if (other)
    ordo_manifest_complain(r, r->number, "remove one of them", "the option '%s' was already given on line %d", schema->key, other->line);
  if (!schema->type) {
    const char *near = ordo_nearest_name(type, type_names);
    g_autofree char *next =
        near ? g_strdup_printf("did you mean '%s'?", near) : g_strdup("write bool, int, real, string, enum, size, dtype or comm_hook");
    ordo_manifest_complain(r, r->number, next, "'%s' is not a type of option", type);
    return;
  }
  if (schema->type == ORDO_OPTION_ENUM && *schema->range == '\0')
    ordo_manifest_complain(r, r->number, "list its values in the fourth field", "the enum '%s' has no values", schema->key);
  else if (numeric && strstr(schema->range, "..") && !is_interval(schema->type, schema->range))
    ordo_manifest_complain(r, r->number, "write a..b with a not above b", "'%s' is not a range", schema->range);
  else if (schema->default_text) {
    g_autofree char *why = ordo_option_schema_refuses(schema, schema->default_text);
    if (why)
      ordo_manifest_complain(r, r->number, "give a default that the range allows, or none", "the default of '%s': %s", schema->key, why);
  }
}

void ordo_manifest_read_option(manifest_reader *r, const char *value)
{
  g_auto(GStrv) fields = g_strsplit(value, "|", 5);
  if (g_strv_length(fields) != 5) {
    ordo_manifest_complain(r, r->number, "write option=key|type|default|range|help", "the option does not have five fields");
    return;
  }
  for (char **field = fields; *field; field++)
    g_strstrip(*field);
  ordo_option_schema *schema = g_new0(ordo_option_schema, 1);
  schema->key = g_strdup(fields[0]);
  schema->type = type_by_name(fields[1]);
  schema->default_text = *fields[2] ? g_strdup(fields[2]) : NULL;
  schema->range = g_strdup(fields[3]);
  schema->help = g_strdup(fields[4]);
  schema->line = r->number;
  check_schema(r, schema, fields[1]);
  g_ptr_array_add(r->manifest->options, schema);
}
