/* manifest_json.c - what a manifest declares, as arrays and objects for `list --json` and `inspect --json`.
 *
 * The texts of ordo_plugin_info are made for people ("a, b:key=value"; "x [condition]; y"). A program that had to take them apart would
 * need to know the grammar of conditions, so the JSON is made from the lines of the manifest instead. A file without a readable manifest
 * gives empty arrays, or null where nothing is known.
 */
#include "cli.h"

#include <string.h>

const char *cli_manifest_equals(const char *line)
{
  int depth = 0;
  for (; *line; line++) {
    depth += *line == '[';
    depth -= *line == ']' && depth > 0;
    if (*line == '=' && depth == 0)
      return line;
  }
  return NULL;
}

/* The condition of a line `key[condition]=value`, null if it has none; freed by the caller. FALSE: the line has another key. */
static gboolean read_line(const char *line, const char *key, char **condition, const char **value)
{
  const char *equals = cli_manifest_equals(line);
  size_t length = strlen(key);
  *condition = NULL;
  if (!equals || strncmp(line, key, length) != 0 || (line[length] != '=' && line[length] != '['))
    return FALSE;
  if (line[length] == '[' && equals[-1] == ']')
    *condition = g_strndup(line + length + 1, (gsize)(equals - 1 - (line + length + 1)));
  *value = equals + 1;
  return TRUE;
}

/* `"key": [` after what stands in `json`. */
static void open_array(GString *json, const char *key)
{
  g_string_append_printf(json, ", \"%s\": [", key);
}

void cli_json_declared(GString *json, const char *key, const ordo_plugin_info *info)
{
  g_auto(GStrv) lines = g_strsplit(info->manifest ? info->manifest : "", "\n", -1);
  gboolean first = TRUE;
  open_array(json, key);
  for (char **line = lines; *line; line++) {
    g_autofree char *condition = NULL;
    const char *value;
    if (!read_line(*line, key, &condition, &value))
      continue;
    g_auto(GStrv) names = g_strsplit(value, ",", -1);
    for (char **name = names; *name; name++) {
      g_string_append(json, first ? "{" : ", {");
      cli_json_member(json, "name", g_strstrip(*name));
      cli_json_member(json, "condition", condition);
      g_string_append_c(json, '}');
      first = FALSE;
    }
  }
  g_string_append_c(json, ']');
}

void cli_json_aliases(GString *json, const ordo_plugin_info *info)
{
  g_auto(GStrv) lines = g_strsplit(info->manifest ? info->manifest : "", "\n", -1);
  gboolean first = TRUE;
  open_array(json, "aliases");
  for (char **line = lines; *line; line++) {
    g_autofree char *condition = NULL;
    const char *value;
    if (!read_line(*line, "alias", &condition, &value))
      continue;
    const char *colon = strchr(value, ':');
    g_autofree char *name = g_strndup(value, colon ? (gsize)(colon - value) : strlen(value));
    g_string_append(json, first ? "{" : ", {");
    cli_json_member(json, "name", g_strstrip(name));
    cli_json_member(json, "options", colon ? colon + 1 : "");
    g_string_append_c(json, '}');
    first = FALSE;
  }
  g_string_append_c(json, ']');
}
