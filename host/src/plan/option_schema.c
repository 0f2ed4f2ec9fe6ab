/* option_schema.c - the option lines of a manifest: key, type, default, range, help.
 *
 * Reads and checks the schema; values that a person gives are validated by the strategy expression. A default that its own range forbids is
 * the author's mistake, and is found here before anybody meets it as a puzzling error about a value that nobody typed.
 */
#include "manifest_read.h"

#include <errno.h>
#include <string.h>

static const char *const type_names[] = {"bool", "int", "real", "string", "enum", "size", "dtype", NULL};

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

/* A plain number, or for sizes one with B, KiB, MiB, GiB (KB, MB, GB: powers of ten). */
static gboolean read_number(int type, const char *text, double *value)
{
  static const struct {
    const char *suffix;
    double factor;
  } units[] = {{"", 1}, {"B", 1}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}};
  char *end = NULL;
  if (type == ORDO_OPTION_INT) {
    errno = 0;
    gint64 whole = g_ascii_strtoll(text, &end, 10);
    *value = (double)whole;
    return errno == 0 && end != text && *end == '\0' && !g_ascii_isspace(*text);
  }
  *value = g_ascii_strtod(text, &end);
  if (end == text || g_ascii_isspace(*text) || *value != *value)
    return FALSE;
  if (type == ORDO_OPTION_REAL)
    return *end == '\0';
  for (size_t i = 0; i < G_N_ELEMENTS(units); i++) {
    if (strcmp(end, units[i].suffix) == 0) {
      *value *= units[i].factor;
      return *value >= 0;
    }
  }
  return FALSE;
}

/* `a..b`, both ends optional. TRUE if well formed. */
static gboolean read_bounds(int type, const char *range, double *low, double *high)
{
  const char *dots = strstr(range, "..");
  if (!dots)
    return FALSE;
  g_autofree char *from = g_strstrip(g_strndup(range, (gsize)(dots - range)));
  g_autofree char *to = g_strstrip(g_strdup(dots + 2));
  *low = -G_MAXDOUBLE;
  *high = G_MAXDOUBLE;
  return (*from == '\0' || read_number(type, from, low)) && (*to == '\0' || read_number(type, to, high)) && *low <= *high;
}

static gboolean in_words(const char *range, const char *text)
{
  g_auto(GStrv) words = g_strsplit(range, ",", -1);
  for (char **word = words; *word; word++) {
    if (strcmp(g_strstrip(*word), text) == 0)
      return TRUE;
  }
  return FALSE;
}

static char *refuse_number(const ordo_option_schema *schema, const char *text)
{
  double value = 0, low = 0, high = 0;
  if (!strstr(schema->range, "..") && *schema->range && in_words(schema->range, text))
    return NULL; /* a range of words may name values outside the numbers: `dynamic` */
  if (!read_number(schema->type, text, &value))
    return g_strdup_printf("'%s' is not of type %s", text, type_names[schema->type - ORDO_OPTION_BOOL]);
  if (*schema->range == '\0')
    return NULL;
  if (!read_bounds(schema->type, schema->range, &low, &high))
    return g_strdup_printf("'%s' is not one of %s", text, schema->range);
  return value >= low && value <= high ? NULL : g_strdup_printf("%s is outside %s", text, schema->range);
}

char *ordo_option_schema_refuses(const ordo_option_schema *schema, const char *text)
{
  static const char *const truths[] = {"0", "1", "no", "yes", "false", "true", "off", "on", NULL};
  static const char *const dtypes[] = {"f32", "f64", "f16", "bf16", NULL};
  switch (schema->type) {
  case ORDO_OPTION_BOOL:
    return g_strv_contains(truths, text) ? NULL : g_strdup_printf("'%s' is neither yes nor no", text);
  case ORDO_OPTION_INT:
  case ORDO_OPTION_REAL:
  case ORDO_OPTION_SIZE:
    return refuse_number(schema, text);
  case ORDO_OPTION_DTYPE:
    if (*schema->range == '\0')
      return g_strv_contains(dtypes, text) ? NULL : g_strdup_printf("'%s' is not one of f32, f64, f16, bf16", text);
    break;
  default:
    break;
  }
  if (*schema->range == '\0' || in_words(schema->range, text))
    return NULL;
  return g_strdup_printf("'%s' is not one of %s", text, schema->range);
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
  double low, high;
  if (!is_key(schema->key) || g_strv_contains(reserved, schema->key))
    ordo_manifest_complain(r, r->number, "use a-z, 0-9 and '_', and no word of the conditions", "'%s' is not a key for an option",
                           schema->key);
  if (other)
    ordo_manifest_complain(r, r->number, "remove one of them", "the option '%s' was already given on line %d", schema->key, other->line);
  if (!schema->type) {
    const char *near = ordo_nearest_name(type, type_names);
    g_autofree char *next =
        near ? g_strdup_printf("did you mean '%s'?", near) : g_strdup("write bool, int, real, string, enum, size or dtype");
    ordo_manifest_complain(r, r->number, next, "'%s' is not a type of option", type);
    return;
  }
  if (schema->type == ORDO_OPTION_ENUM && *schema->range == '\0')
    ordo_manifest_complain(r, r->number, "list its values in the fourth field", "the enum '%s' has no values", schema->key);
  else if (numeric && strstr(schema->range, "..") && !read_bounds(schema->type, schema->range, &low, &high))
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
