/* option.c - values of options: from the text a person writes to one canonical text, and from that to numbers.
 *
 * The idea: a value is validated once, against the schema of the manifest, and travels as canonical text from then on. Two ways to
 * write one value ("26214400" and "25MiB", "true" and "yes") become the same text, so that conditions of manifests and the digest of
 * the plan do not depend on how it was written:
 *   bool  yes, no           int   decimal, no leading zeros    real  the shortest text that reads back as the same double
 *   size  the largest binary unit that divides it: 25MiB       dtype short name: f32    enum, string, comm_hook  as written
 */
#include "option.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include <ordo/dtype.h>

static const struct {
  const char *name, *canonical;
  ordo_dtype dtype;
} dtypes[] = {
    {"f32", "f32", ORDO_F32},     {"f64", "f64", ORDO_F64},     {"f16", "f16", ORDO_F16},        {"bf16", "bf16", ORDO_BF16},
    {"i8", "i8", ORDO_I8},        {"u8", "u8", ORDO_U8},        {"i32", "i32", ORDO_I32},        {"i64", "i64", ORDO_I64},
    {"u64", "u64", ORDO_U64},     {"fp32", "f32", ORDO_F32},    {"fp16", "f16", ORDO_F16},       {"fp64", "f64", ORDO_F64},
    {"float32", "f32", ORDO_F32}, {"float16", "f16", ORDO_F16}, {"bfloat16", "bf16", ORDO_BF16}, {"float64", "f64", ORDO_F64},
};

static const struct {
  const char *name;
  gint64 bytes;
} units[] = {
    {"", 1},      {"B", 1},     {"KiB", 1 << 10}, {"MiB", 1 << 20},   {"GiB", 1 << 30},      {"TiB", (gint64)1 << 40},
    {"kB", 1000}, {"KB", 1000}, {"MB", 1000000},  {"GB", 1000000000}, {"TB", 1000000000000},
};

const char *ordo_option_type_name(int type)
{
  static const char *const names[] = {"?", "bool", "int", "real", "string", "enum", "size", "dtype", "comm_hook"};
  return type >= ORDO_OPTION_BOOL && type <= ORDO_OPTION_COMM_HOOK ? names[type] : names[0];
}

static gboolean parse_bool(const char *text, gint64 *value)
{
  static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};
  for (gsize i = 0; i < G_N_ELEMENTS(words); i++)
    if (g_ascii_strcasecmp(text, words[i]) == 0) {
      *value = (gint64)(i % 2);
      return TRUE;
    }
  return FALSE;
}

static gboolean parse_int(const char *text, gint64 *value)
{
  g_autoptr(GError) error = NULL;
  return g_ascii_string_to_signed(text, 10, G_MININT64, G_MAXINT64, value, &error);
}

static gboolean parse_real(const char *text, double *value)
{
  char *end = NULL;
  if (!g_ascii_isdigit(*text) && !strchr("+-.", *text))
    return FALSE; /* no leading blanks, "inf" or "nan" */
  *value = g_ascii_strtod(text, &end);
  return end != text && *end == '\0' && isfinite(*value);
}

static gboolean parse_size(const char *text, gint64 *value)
{
  gsize digits = strspn(text, "0123456789");
  g_autofree char *number = g_strndup(text, digits);
  gint64 count;
  if (digits == 0 || !parse_int(number, &count))
    return FALSE;
  for (gsize i = 0; i < G_N_ELEMENTS(units); i++)
    if (strcmp(text + digits, units[i].name) == 0)
      return !__builtin_mul_overflow(count, units[i].bytes, value);
  return FALSE;
}

static gboolean find_dtype(const char *text, gsize *index)
{
  for (gsize i = 0; i < G_N_ELEMENTS(dtypes); i++)
    if (strcmp(text, dtypes[i].name) == 0) {
      *index = i;
      return TRUE;
    }
  return FALSE;
}

static char *real_text(double value)
{
  char text[G_ASCII_DTOSTR_BUF_SIZE], format[8];
  for (int digits = 1; digits <= 17; digits++) {
    g_snprintf(format, sizeof format, "%%.%dg", digits);
    g_ascii_formatd(text, sizeof text, format, value);
    if (!(g_ascii_strtod(text, NULL) < value) && !(g_ascii_strtod(text, NULL) > value))
      break;
  }
  return g_strdup(text);
}

static char *size_text(gint64 bytes)
{
  for (gsize i = 5; bytes > 0 && i > 1; i--)
    if (bytes % units[i].bytes == 0)
      return g_strdup_printf("%" G_GINT64_FORMAT "%s", bytes / units[i].bytes, units[i].name);
  return g_strdup_printf("%" G_GINT64_FORMAT, bytes);
}

/* The number behind a value of a type that has one, as a real, to compare with the ends of a range. */
static gboolean number_of(int type, const char *text, double *real, gint64 *whole)
{
  gboolean good = FALSE;
  if (type == ORDO_OPTION_REAL)
    return parse_real(text, real);
  if (type == ORDO_OPTION_INT)
    good = parse_int(text, whole);
  else if (type == ORDO_OPTION_SIZE)
    good = parse_size(text, whole);
  *real = (double)*whole;
  return good;
}

/* Below, at or above 0 as a is smaller, equal or larger; whole numbers are not rounded. */
static int compare_numbers(int type, double a, gint64 a_whole, double b, gint64 b_whole)
{
  if (type == ORDO_OPTION_REAL)
    return (a > b) - (a < b);
  return (a_whole > b_whole) - (a_whole < b_whole);
}

/* `a..b`; either end may be missing. */
static gboolean in_interval(const ordo_option_schema *schema, const char *text)
{
  const char *dots = strstr(schema->range, "..");
  double value = 0, end = 0;
  gint64 whole = 0, end_whole = 0;
  if (!dots || !number_of(schema->type, text, &value, &whole))
    return TRUE;
  g_autofree char *low = g_strstrip(g_strndup(schema->range, (gsize)(dots - schema->range)));
  g_autofree char *high = g_strstrip(g_strdup(dots + 2));
  if (*low && number_of(schema->type, low, &end, &end_whole) && compare_numbers(schema->type, value, whole, end, end_whole) < 0)
    return FALSE;
  return !*high || !number_of(schema->type, high, &end, &end_whole) || compare_numbers(schema->type, value, whole, end, end_whole) <= 0;
}

/* One of the words of the range; else *nearest is the one that may be meant, freed by the caller. */
static gboolean in_words(const ordo_option_schema *schema, const char *canonical, char **nearest)
{
  g_auto(GStrv) words = g_strsplit(schema->range, ",", -1);
  for (guint i = 0; words[i]; i++) {
    gsize index;
    const char *word = g_strstrip(words[i]);
    if (strcmp(schema->type == ORDO_OPTION_DTYPE && find_dtype(word, &index) ? dtypes[index].canonical : word, canonical) == 0)
      return TRUE;
  }
  *nearest = g_strdup(ordo_nearest_name(canonical, (const char *const *)words));
  return FALSE;
}

/* Canonical text by type alone; null if it is none. */
static char *canonical_of(int type, const char *text)
{
  gint64 whole = 0;
  double real = 0;
  gsize index;
  switch (type) {
  case ORDO_OPTION_BOOL:
    return parse_bool(text, &whole) ? g_strdup(whole ? "yes" : "no") : NULL;
  case ORDO_OPTION_INT:
    return parse_int(text, &whole) ? g_strdup_printf("%" G_GINT64_FORMAT, whole) : NULL;
  case ORDO_OPTION_REAL:
    return parse_real(text, &real) ? real_text(real) : NULL;
  case ORDO_OPTION_SIZE:
    return parse_size(text, &whole) ? size_text(whole) : NULL;
  case ORDO_OPTION_DTYPE:
    return find_dtype(text, &index) ? g_strdup(dtypes[index].canonical) : NULL;
  default:
    return g_utf8_validate(text, -1, NULL) ? g_strdup(text) : NULL;
  }
}

static const char *form_of(int type)
{
  switch (type) {
  case ORDO_OPTION_BOOL:
    return "yes or no";
  case ORDO_OPTION_INT:
    return "a whole number";
  case ORDO_OPTION_REAL:
    return "a number";
  case ORDO_OPTION_SIZE:
    return "a size in bytes, such as 25MiB or 4096";
  case ORDO_OPTION_DTYPE:
    return "a type: f32, bf16, f16, f64, i8, u8, i32, i64 or u64";
  default:
    return "text in UTF-8";
  }
}

static gboolean is_numeric(int type)
{
  return type == ORDO_OPTION_INT || type == ORDO_OPTION_REAL || type == ORDO_OPTION_SIZE;
}

char *ordo_option_normalise(const ordo_option_schema *schema, const char *text, char **why)
{
  gboolean has_range = schema->range && *schema->range && schema->type != ORDO_OPTION_BOOL && schema->type != ORDO_OPTION_COMM_HOOK;
  gboolean has_interval = has_range && is_numeric(schema->type) && strstr(schema->range, "..");
  g_autofree char *canonical = *text ? canonical_of(schema->type, text) : NULL;
  g_autofree char *nearest = NULL;
  /* A range of words may name a value outside the numbers: `dynamic` for a loss scale. */
  if (has_range && !has_interval && *text && in_words(schema, canonical ? canonical : text, &nearest))
    return canonical ? g_steal_pointer(&canonical) : g_strdup(text);
  if (has_range && !has_interval)
    *why = g_strdup_printf("it must be one of %s%s%s%s", schema->range, nearest ? "; did you mean '" : "", nearest ? nearest : "",
                           nearest ? "'?" : "");
  else if (!canonical)
    *why = g_strdup_printf("it must be %s", form_of(schema->type));
  else if (has_interval && !in_interval(schema, canonical))
    *why = g_strdup_printf("it must lie in %s", schema->range);
  else
    return g_steal_pointer(&canonical);
  return NULL;
}

gboolean ordo_option_to_int(const ordo_option_schema *schema, const char *text, gint64 *value)
{
  gsize index;
  switch (schema->type) {
  case ORDO_OPTION_BOOL:
    return parse_bool(text, value);
  case ORDO_OPTION_INT:
    return parse_int(text, value);
  case ORDO_OPTION_SIZE:
    return parse_size(text, value);
  case ORDO_OPTION_DTYPE:
    if (!find_dtype(text, &index))
      return FALSE;
    *value = dtypes[index].dtype;
    return TRUE;
  default:
    return FALSE;
  }
}

gboolean ordo_option_to_real(const ordo_option_schema *schema, const char *text, double *value)
{
  return schema->type == ORDO_OPTION_REAL && parse_real(text, value);
}
