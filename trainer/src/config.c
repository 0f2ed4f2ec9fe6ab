/* config.c - values, checks, help and the resolved text, all made from config_keys.def.
 *
 * A value keeps the text it was given, so that the resolved configuration says what the person wrote; the parsed number stands beside it.
 */
#include "config_private.h"

#include "names.h"

#include <math.h>
#include <string.h>

const ordo_key_info ordo_keys[ORDO_N_KEYS] = {
#define ORDO_KEY(SECTION, KEY, TYPE, DEFAULT, LOW, HIGH, CHOICES, SHORT, VERBS, HELP) \
  {#SECTION, #KEY, #SECTION "." #KEY, ORDO_KEY_##TYPE, DEFAULT, LOW, HIGH, CHOICES, SHORT, VERBS, HELP},
#include "config_keys.def"
#undef ORDO_KEY
};

static gboolean is_choice(const char *choices, const char *text)
{
  g_auto(GStrv) words = g_strsplit(choices, "|", -1);
  return g_strv_contains((const char *const *)words, text);
}

static gboolean parse_bool(const char *text, int64_t *value)
{
  static const char *const yes[] = {"true", "yes", "on", "1", NULL};
  static const char *const no[] = {"false", "no", "off", "0", NULL};
  *value = g_strv_contains(yes, text);
  return *value || g_strv_contains(no, text);
}

static gboolean parse_real(const char *text, double *value)
{
  char *end = NULL;
  *value = g_ascii_strtod(text, &end);
  return end != text && !*end && isfinite(*value) && !g_ascii_isspace(*text);
}

static ordo_status bad_value(ordo_key key, const char *text, const char *origin, const char *why, ordo_problems *problems)
{
  const ordo_key_info *info = &ordo_keys[key];
  g_autofree char *next = g_strdup_printf("%s: %s; default %s", info->name, info->help, *info->fallback ? info->fallback : "empty");
  return ordo_problems_push(problems, ORDO_E_INVALID, "E-CONFIG-VALUE", origin, why, next, "%s = %s is not allowed", info->name, text);
}

/* Parses `text` by the key's type. Returns a reason to refuse it, to be freed, or null. */
static char *parse_value(const ordo_key_info *info, const char *text, ordo_value *value)
{
  if (!g_utf8_validate(text, -1, NULL))
    return g_strdup("it is not valid UTF-8");
  switch (info->type) {
  case ORDO_KEY_INT: {
    gint64 lowest = info->low <= -0x1p63 ? G_MININT64 : (gint64)info->low;
    gint64 highest = info->high >= 0x1p63 ? G_MAXINT64 : (gint64)info->high;
    if (!g_ascii_string_to_signed(text, 10, lowest, highest, &value->integer, NULL))
      return g_strdup_printf("it must be a whole number from %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT, lowest, highest);
    return NULL;
  }
  case ORDO_KEY_REAL:
    if (!parse_real(text, &value->real) || value->real < info->low || value->real > info->high)
      return g_strdup_printf("it must be a number from %g to %g", info->low, info->high);
    return NULL;
  case ORDO_KEY_BOOL:
    return parse_bool(text, &value->integer) ? NULL : g_strdup("it must be true or false");
  case ORDO_KEY_CHOICE:
    return is_choice(info->choices, text) ? NULL : g_strdup_printf("it must be one of %s", info->choices);
  default:
    return NULL;
  }
}

ordo_status ordo_config_set(ordo_config *config, ordo_key key, const char *text, const char *origin, ordo_problems *problems)
{
  ordo_value *value = &config->values[key];
  ordo_value parsed = {0};
  g_autofree char *why = parse_value(&ordo_keys[key], text, &parsed);
  if (why)
    return bad_value(key, text, origin, why, problems);
  value->integer = parsed.integer;
  value->real = parsed.real;
  g_free(value->text);
  g_free(value->origin);
  value->text = g_strdup(text);
  value->origin = g_strdup(origin);
  return ORDO_OK;
}

ordo_config *ordo_config_new(char verb)
{
  ordo_config *config = g_new0(ordo_config, 1);
  config->verb = verb;
  for (ordo_key key = 0; key < ORDO_N_KEYS; key++) {
    ordo_value *value = &config->values[key];
    value->text = g_strdup(ordo_keys[key].fallback);
    g_free(parse_value(&ordo_keys[key], value->text, value)); /* a test holds every default to its own rule */
  }
  return config;
}

void ordo_config_free(ordo_config *config)
{
  if (!config)
    return;
  for (ordo_key key = 0; key < ORDO_N_KEYS; key++) {
    g_free(config->values[key].text);
    g_free(config->values[key].origin);
  }
  g_free(config);
}

const char *ordo_config_string(const ordo_config *config, ordo_key key)
{
  return config->values[key].text;
}

int64_t ordo_config_int(const ordo_config *config, ordo_key key)
{
  return config->values[key].integer;
}

double ordo_config_real(const ordo_config *config, ordo_key key)
{
  return config->values[key].real;
}

gboolean ordo_config_bool(const ordo_config *config, ordo_key key)
{
  return config->values[key].integer != 0;
}

gboolean ordo_config_is_set(const ordo_config *config, ordo_key key)
{
  return config->values[key].origin != NULL;
}

const char *ordo_config_name(ordo_key key)
{
  return ordo_keys[key].name;
}

gboolean ordo_config_serves(const ordo_config *config, ordo_key key)
{
  return strchr(ordo_keys[key].verbs, config->verb) != NULL;
}

const char *ordo_config_verb(const ordo_config *config)
{
  switch (config->verb) {
  case 'T':
    return "train";
  case 'E':
    return "eval";
  case 'P':
    return "plan --estimate";
  default:
    return "generate";
  }
}

ordo_status ordo_config_unknown(const ordo_config *config, const char *name, const char *origin, ordo_problems *problems)
{
  const char *names[ORDO_N_KEYS + 1] = {NULL};
  for (ordo_key key = 0; key < ORDO_N_KEYS; key++)
    names[key] = ordo_keys[key].name;
  const char *near = ordo_names_nearest(name, names);
  g_autofree char *next = near ? g_strdup_printf("did you mean %s? `ordo %s --help` lists all keys", near, ordo_config_verb(config))
                               : g_strdup_printf("`ordo %s --help` lists all keys", ordo_config_verb(config));
  return ordo_problems_push(problems, ORDO_E_INVALID, "E-CONFIG-KEY", origin, "no key has this name", next, "unknown key %s", name);
}

static const char *type_word(const ordo_key_info *info)
{
  static const char *const words[] = {"TEXT", "PATH", "N", "X", "BOOL", ""};
  return info->type == ORDO_KEY_CHOICE ? info->choices : words[info->type];
}

char *ordo_config_help(const ordo_config *config, const char *program, const char *summary)
{
  GString *text = g_string_new(NULL);
  const char *section = "";
  g_string_append_printf(text, "%s - %s\n\nusage: %s [FILE.ini] [--section.key VALUE]...\n", program, summary, program);
  for (ordo_key key = 0; key < ORDO_N_KEYS; key++) {
    const ordo_key_info *info = &ordo_keys[key];
    if (!ordo_config_serves(config, key))
      continue;
    if (strcmp(section, info->section) != 0)
      g_string_append_printf(text, "\n[%s]\n", info->section);
    section = info->section;
    g_string_append_printf(text, "  --%s %s", info->name, type_word(info));
    if (*info->alias)
      g_string_append_printf(text, ", --%s", info->alias);
    g_string_append_printf(text, "\n      %s", info->help);
    if (*info->fallback)
      g_string_append_printf(text, " [%s]", info->fallback);
    g_string_append_c(text, '\n');
  }
  g_string_append(text, "\nA file has the same sections and keys; options win over the file. --section.no_key turns a BOOL off.\n"
                        "Exit codes: 0 done, 1 failed or stopped by a signal, 2 usage or configuration, 3 the plan has a conflict, 4 a "
                        "plugin was refused.\n");
  return g_string_free(text, FALSE);
}

char *ordo_config_resolved(const ordo_config *config)
{
  g_autoptr(GKeyFile) file = g_key_file_new();
  for (ordo_key key = 0; key < ORDO_N_KEYS; key++) {
    const ordo_value *value = &config->values[key];
    if (!ordo_config_serves(config, key) || key == ORDO_KEY_train_overwrite) /* that was a permission for one run */
      continue;
    g_key_file_set_string(file, ordo_keys[key].section, ordo_keys[key].key, value->text);
    if (value->origin) {
      g_autofree char *comment = g_strdup_printf(" from %s", value->origin);
      g_key_file_set_comment(file, ordo_keys[key].section, ordo_keys[key].key, comment, NULL);
    }
  }
  return g_key_file_to_data(file, NULL, NULL);
}
