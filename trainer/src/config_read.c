/* config_read.c - a configuration from a key file and from arguments.
 *
 * GKeyFile takes the last of two equal keys without a word and reports a binary file as a strange character, so the lines are
 * looked over first: that also gives each key its line number.
 */
#include "config_private.h"
#include "files.h"

#include <string.h>

#define LARGEST_FILE (16 << 20) /* a configuration of more than 16 MiB is some other file */

/* A single word is taken as a configuration; people also give the text, or the model, that way. */
static ordo_status bad_file(const ordo_config *config, const char *path, const char *why, ordo_problems *problems)
{
  gboolean ini = g_str_has_suffix(path, ".ini");
  g_autofree char *other = ini ? g_strdup("")
                               : g_strdup_printf("\nif it is the %s: %s %s", config->verb == 'G' ? "model" : "data",
                                                 config->verb == 'G' ? "--model" : "--data", path);
  g_autofree char *next = g_strdup_printf("write sections and keys as in \"[train]\" and \"steps = 100\"; `ordo %s --help` lists them%s",
                                          ordo_config_verb(config), other);
  return ordo_problems_push(problems, ORDO_E_INVALID, "E-CONFIG-FILE", path, why, next, "not a configuration file");
}

static ordo_status load(const ordo_config *config, const char *path, char **text, ordo_problems *problems)
{
  g_autofree char *why = NULL;
  gsize length = 0;
  const char *bad = NULL;
  if (!g_file_test(path, G_FILE_TEST_EXISTS))
    return ordo_problems_push(problems, ORDO_E_NOT_FOUND, "E-CONFIG-FILE", path, "there is no such file",
                              "give the path of an existing .ini file", "cannot read the configuration");
  if (!(*text = ordo_file_whole(path, LARGEST_FILE, &length, &why)))
    return bad_file(config, path, why, problems);
  if (memchr(*text, 0, length))
    return bad_file(config, path, "it is binary: it contains zero bytes", problems);
  if (!g_utf8_validate(*text, (gssize)length, &bad)) {
    unsigned line = 1;
    for (const char *c = *text; c < bad; c++)
      line += *c == '\n';
    why = g_strdup_printf("line %u is not valid UTF-8 (byte 0x%02x)", line, (unsigned)(guchar)*bad);
    return bad_file(config, path, why, problems);
  }
  if (g_str_has_prefix(*text, "\xef\xbb\xbf"))
    memset(*text, ' ', 3); /* a byte order mark; GKeyFile skips leading blanks */
  if (strspn(*text, " \t\r\n") == length)
    return bad_file(config, path, "it is empty", problems);
  return ORDO_OK;
}

static int find_key(const char *name)
{
  for (ordo_key key = 0; key < ORDO_N_KEYS; key++)
    if (strcmp(ordo_keys[key].name, name) == 0 || (*ordo_keys[key].alias && strcmp(ordo_keys[key].alias, name) == 0))
      return (int)key;
  return -1;
}

/* "section.key" -> line number of every assignment; reports assignments that stand twice. */
static ordo_status number_lines(const char *path, const char *text, GHashTable *lines, ordo_problems *problems)
{
  g_auto(GStrv) rows = g_strsplit(text, "\n", -1);
  g_autofree char *section = g_strdup("");
  ordo_status status = ORDO_OK;
  for (guint i = 0; rows[i]; i++) {
    char *row = g_strstrip(rows[i]);
    char *equals = strchr(row, '=');
    if (*row == '[' && strchr(row, ']')) {
      g_free(section);
      section = g_strndup(row + 1, (gsize)(strchr(row, ']') - row - 1));
    } else if (*row != '#' && equals) {
      *equals = '\0';
      char *name = g_strdup_printf("%s.%s", section, g_strchomp(row));
      guint first = GPOINTER_TO_UINT(g_hash_table_lookup(lines, name));
      if (first) {
        g_autofree char *where = g_strdup_printf("%s:%u", path, i + 1);
        g_autofree char *why = g_strdup_printf("line %u has it already", first);
        status = ordo_problems_push(problems, ORDO_E_INVALID, "E-CONFIG-KEY", where, why, "remove one of the two lines", "%s is set twice",
                                    name);
      }
      g_hash_table_replace(lines, name, GUINT_TO_POINTER(i + 1));
    }
  }
  return status;
}

static ordo_status set_from_file(ordo_config *config, GKeyFile *file, const char *path, const char *section, const char *key,
                                 GHashTable *lines, ordo_problems *problems)
{
  g_autofree char *name = g_strdup_printf("%s.%s", section, key);
  g_autofree char *origin = g_strdup_printf("%s:%u", path, GPOINTER_TO_UINT(g_hash_table_lookup(lines, name)));
  g_autoptr(GError) error = NULL;
  g_autofree char *text = g_key_file_get_string(file, section, key, &error);
  int found = find_key(name);
  if (found < 0)
    return ordo_config_unknown(config, name, origin, problems);
  if (!text)
    return ordo_problems_push(problems, ORDO_E_INVALID, "E-CONFIG-VALUE", origin, error->message, "write \\\\ for a backslash",
                              "%s cannot be read", name);
  return ordo_config_set(config, (ordo_key)found, text, origin, problems);
}

ordo_status ordo_config_read_file(ordo_config *config, const char *path, ordo_problems *problems)
{
  g_autofree char *text = NULL;
  g_autoptr(GKeyFile) file = g_key_file_new();
  g_autoptr(GError) error = NULL;
  g_autoptr(GHashTable) lines = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
  ordo_status status = load(config, path, &text, problems);
  if (status != ORDO_OK)
    return status;
  if (!g_key_file_load_from_data(file, text, (gsize)-1, G_KEY_FILE_NONE, &error))
    return bad_file(config, path, error->message, problems);
  status = number_lines(path, text, lines, problems);
  g_auto(GStrv) sections = g_key_file_get_groups(file, NULL);
  for (guint s = 0; sections[s]; s++) {
    g_auto(GStrv) keys = g_key_file_get_keys(file, sections[s], NULL, NULL);
    for (guint k = 0; keys && keys[k]; k++) {
      ordo_status one = set_from_file(config, file, path, sections[s], keys[k], lines, problems);
      status = status == ORDO_OK ? one : status;
    }
  }
  return status;
}

static ordo_status usage(const ordo_config *config, const char *argument, const char *why, ordo_problems *problems)
{
  g_autofree char *next = g_strdup_printf("`ordo %s --help` lists all options", ordo_config_verb(config));
  return ordo_problems_push(problems, ORDO_E_INVALID, "E-CONFIG-USAGE", argument, why, next, "cannot use the argument %s", argument);
}

static ordo_status foreign_key(const ordo_config *config, const char *origin, const char *name, ordo_problems *problems)
{
  g_autofree char *next = g_strdup_printf("`ordo %s --help` lists the keys of this one", ordo_config_verb(config));
  return ordo_problems_push(problems, ORDO_E_INVALID, "E-CONFIG-KEY", origin, "it is a key of another verb", next, "%s has no meaning here",
                            name);
}

/* One option at argv[i], with its value where it has one. */
static void read_option(ordo_config *config, int argc, char **argv, int i, ordo_status *status, ordo_problems *problems)
{
  const char *equals = strchr(argv[i], '=');
  g_autofree char *name = equals ? g_strndup(argv[i] + 2, (gsize)(equals - argv[i] - 2)) : g_strdup(argv[i] + 2);
  g_autofree char *origin = g_strconcat("--", name, NULL);
  const char *value = equals ? equals + 1 : NULL;
  int found = find_key(name);
  char *no = strstr(name, ".no_");
  if (found < 0 && no && !equals) {
    memmove(no + 1, no + 4, strlen(no + 4) + 1);
    found = find_key(name);
    if (found >= 0 && ordo_keys[found].type == ORDO_KEY_BOOL)
      value = "false";
  }
  if (found < 0) {
    *status = ordo_config_unknown(config, name, origin, problems);
    return;
  }
  if (!ordo_config_serves(config, (ordo_key)found))
    *status = foreign_key(config, origin, ordo_keys[found].name, problems);
  if (!value && i + 1 < argc && (ordo_keys[found].type != ORDO_KEY_BOOL || !g_str_has_prefix(argv[i + 1], "--")))
    value = argv[i + 1];
  else if (!value && ordo_keys[found].type == ORDO_KEY_BOOL)
    value = "true";
  if (!value)
    *status = usage(config, argv[i], "its value is missing", problems);
  else if (ordo_config_set(config, (ordo_key)found, value, origin, problems) != ORDO_OK)
    *status = ORDO_E_INVALID;
}

/* `ordo plan` has short names for what is written out here. The word after one that looks like its value is skipped, not taken for a file.
 */
static void unknown_short(const ordo_config *config, const char *word, ordo_status *status, ordo_problems *problems)
{
  static const char *const long_names[][2] = {{"-s", "--strategy"}, {"-p", "--precision"}, {"-n", "--ranks"}};
  g_autofree char *next = g_strdup_printf("`ordo %s --help` lists all options", ordo_config_verb(config));
  for (size_t i = 0; i < G_N_ELEMENTS(long_names); i++)
    if (g_str_has_prefix(word, long_names[i][0])) {
      g_free(next);
      next = g_strdup_printf("did you mean: %s? `ordo %s --help` lists all options", long_names[i][1], ordo_config_verb(config));
    }
  *status = ordo_problems_push(problems, ORDO_E_INVALID, "E-CONFIG-USAGE", word, "options begin with two dashes", next, "unknown option %s",
                               word);
}

/* The configuration file named by the arguments, null for none. A word that is the value of an option is not one. */
static const char *find_file(const ordo_config *config, int argc, char **argv, GArray *options, ordo_status *status,
                             ordo_problems *problems)
{
  const char *path = NULL;
  for (int i = 1; i < argc; i++) {
    const char *given = NULL;
    if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
      given = argv[++i];
    else if (g_str_has_prefix(argv[i], "--config="))
      given = argv[i] + strlen("--config=");
    else if (strcmp(argv[i], "--config") == 0)
      *status = usage(config, argv[i], "its value is missing", problems);
    else if (g_str_has_prefix(argv[i], "--")) {
      g_array_append_val(options, i);
      g_autofree char *name = g_strndup(argv[i] + 2, strcspn(argv[i] + 2, "="));
      int found = find_key(name);
      gboolean is_bool = found >= 0 && ordo_keys[found].type == ORDO_KEY_BOOL;
      gboolean takes = !strchr(argv[i], '=') && !strstr(name, ".no_") && strcmp(name, "help") != 0;
      if (takes && i + 1 < argc && !(is_bool && g_str_has_prefix(argv[i + 1], "--")) &&
          (found >= 0 || !g_str_has_prefix(argv[i + 1], "--")))
        i++;
    } else if (*argv[i] == '-' && argv[i][1]) {
      if (strcmp(argv[i], "-h") == 0)
        continue;
      unknown_short(config, argv[i], status, problems);
      if (!argv[i][2] && i + 1 < argc && *argv[i + 1] != '-' && !g_str_has_suffix(argv[i + 1], ".ini"))
        i++;
    } else
      given = argv[i];
    if (given && path)
      *status = usage(config, given, "there is a configuration file already", problems);
    path = path ? path : given;
  }
  return path;
}

/* Of other keys the last value counts, so that a script can be called with exceptions; two expressions would look composed. */
static gboolean stands_twice(const char *word, gboolean seen[ORDO_N_KEYS], ordo_status *status, ordo_problems *problems)
{
  g_autofree char *name = g_strndup(word + 2, strcspn(word + 2, "=")), *origin = g_strconcat("--", name, NULL);
  int found = find_key(name);
  gboolean again = found >= 0 && seen[found] && (found == ORDO_KEY_strategy_name || found == ORDO_KEY_precision_name);
  if (found >= 0)
    seen[found] = TRUE;
  if (again)
    *status =
        ordo_problems_push(problems, ORDO_E_INVALID, "E-CONFIG-KEY", origin, "it has one value",
                           "write one expression; strategies are composed with '+': --strategy tp=2+fsdp2", "%s is given twice", origin);
  return again;
}

ordo_status ordo_config_read_arguments(ordo_config *config, int argc, char **argv, int *help, ordo_problems *problems)
{
  g_autoptr(GArray) options = g_array_new(FALSE, FALSE, sizeof(int));
  gboolean seen[ORDO_N_KEYS] = {FALSE};
  ordo_status status = ORDO_OK;
  const char *path;
  *help = 0;
  for (int i = 1; i < argc; i++)
    *help |= strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;
  if (*help)
    return ORDO_OK;
  path = find_file(config, argc, argv, options, &status, problems);
  if (path) {
    ordo_status one = ordo_config_read_file(config, path, problems);
    status = status == ORDO_OK ? one : status;
  }
  for (guint i = 0; i < options->len; i++) {
    const int at = g_array_index(options, int, i);
    if (!stands_twice(argv[at], seen, &status, problems))
      read_option(config, argc, argv, at, &status, problems);
  }
  return status;
}
