/* verb_inspect.c - `ordo inspect NAME|FILE`: what one plugin declares.
 *
 * Everything shown comes from the note; no plugin code runs. The manifest is printed with line numbers because plans, cycles and
 * errors name their origins by line ("fsdp1 manifest line 7").
 */
#include "cli.h"

#include <stdio.h>
#include <string.h>

static const char *const kinds[] = {"unknown", "strategy", "precision", "comm_hook"};
static const char *const states[] = {"unknown", "usable", "shadowed", "refused"};

static const char *name_in(const char *const *names, size_t n, uint32_t value)
{
  return names[value < n ? value : 0];
}

/* Values of the lines `option=key|type|default|range|help`, five fields each. */
static GPtrArray *options_of(const char *manifest)
{
  GPtrArray *options = g_ptr_array_new_with_free_func((GDestroyNotify)g_strfreev);
  g_auto(GStrv) lines = g_strsplit(manifest ? manifest : "", "\n", -1);
  for (char **line = lines; *line; line++) {
    if (!g_str_has_prefix(*line, "option="))
      continue;
    char **fields = g_strsplit(*line + strlen("option="), "|", 5);
    if (g_strv_length(fields) == 5)
      g_ptr_array_add(options, fields);
    else
      g_strfreev(fields);
  }
  return options;
}

static void print_field(const char *label, const char *text)
{
  if (text && *text)
    printf("  %-8s %s\n", label, text);
}

/* Findings of a manifest are joined with "; ": one a line. */
static void print_reason(const char *reason)
{
  g_auto(GStrv) parts = g_strsplit(reason ? reason : "", "); ", -1);
  for (int i = 0; parts[i]; i++) {
    g_autofree char *part = g_strconcat(parts[i], parts[i + 1] ? ")" : "", NULL);
    print_field(i ? "" : "reason", part);
  }
}

static void print_text(const ordo_cli *cli, const ordo_plugin_info *info)
{
  const char *bold = cli_style(cli->colour_out, "bold"), *dim = cli_style(cli->colour_out, "dim"), *off = cli_style(cli->colour_out, "off");
  g_autoptr(GPtrArray) options = options_of(info->manifest);
  printf("%s%s %s%s   %s   %s\n", bold, info->id ? info->id : "(no id)", info->version ? info->version : "", off,
         name_in(kinds, G_N_ELEMENTS(kinds), info->kind), name_in(states, G_N_ELEMENTS(states), info->state));
  print_field("summary", info->summary);
  print_reason(info->reason);
  print_field("file", info->path);
  print_field("found in", info->source);
  print_field("license", info->license);
  print_field("aliases", info->aliases);
  print_field("flags", info->flags);
  print_field("steps", info->steps);
  if (options->len)
    printf("  options\n");
  for (guint i = 0; i < options->len; i++) {
    char **f = options->pdata[i];
    printf("    %-24s %-7s default %-10s %-16s %s\n", f[0], f[1], *f[2] ? f[2] : "(unset)", f[3], f[4]);
  }
  if (!info->manifest)
    return;
  printf("  manifest\n");
  g_auto(GStrv) lines = g_strsplit(info->manifest, "\n", -1);
  for (int i = 0; lines[i]; i++)
    if (*lines[i] || lines[i + 1])
      printf("    %s%3d%s  %s\n", dim, i + 1, off, lines[i]);
}

/* What stands in the first brackets of `text`, which is cut there; null if there are none. What follows the brackets stays behind it. */
static char *take_bracket(char *text)
{
  char *open = strchr(text, '['), *close = open ? strchr(open, ']') : NULL;
  if (!close)
    return NULL;
  *open = *close = '\0';
  return open + 1;
}

/* One object per line that says something: number, key, step (of before and after) and condition or null, value. */
static void append_manifest(GString *json, const char *manifest)
{
  g_auto(GStrv) lines = g_strsplit(manifest ? manifest : "", "\n", -1);
  gboolean first = TRUE;
  if (!manifest) {
    g_string_append(json, ", \"manifest\": null");
    return;
  }
  g_string_append(json, ", \"manifest\": [");
  for (int i = 0; lines[i]; i++) {
    const char *equals = cli_manifest_equals(lines[i]);
    if (!*lines[i] || *lines[i] == '#')
      continue;
    g_autofree char *left = g_strndup(lines[i], equals ? (gsize)(equals - lines[i]) : strlen(lines[i]));
    char *step = g_str_has_prefix(left, "before[") || g_str_has_prefix(left, "after[") ? take_bracket(left) : NULL;
    char *condition = take_bracket(step ? step + strlen(step) + 1 : left);
    g_string_append_printf(json, "%s{\"line\": %d", first ? "" : ", ", i + 1);
    cli_json_member(json, "key", left);
    cli_json_member(json, "step", step);
    cli_json_member(json, "condition", condition);
    cli_json_member(json, "value", equals ? equals + 1 : NULL);
    g_string_append_c(json, '}');
    first = FALSE;
  }
  g_string_append_c(json, ']');
}

static void print_json(const ordo_plugin_info *info)
{
  static const char *const keys[] = {"name", "type", "default", "range", "help"};
  g_autoptr(GPtrArray) options = options_of(info->manifest);
  g_autoptr(GString) json = g_string_new("{");
  cli_json_member(json, "id", info->id);
  cli_json_member(json, "version", info->version);
  cli_json_member(json, "kind", name_in(kinds, G_N_ELEMENTS(kinds), info->kind));
  cli_json_member(json, "state", name_in(states, G_N_ELEMENTS(states), info->state));
  cli_json_member(json, "reason", info->reason);
  cli_json_member(json, "summary", info->summary);
  cli_json_member(json, "license", info->license);
  cli_json_member(json, "path", info->path);
  cli_json_member(json, "source", info->source);
  cli_json_aliases(json, info);
  cli_json_declared(json, "flags", info);
  cli_json_declared(json, "steps", info);
  g_string_append(json, ", \"options\": [");
  for (guint i = 0; i < options->len; i++) {
    char **f = options->pdata[i];
    g_string_append(json, i ? ", {" : "{");
    for (size_t k = 0; k < G_N_ELEMENTS(keys); k++)
      cli_json_member(json, keys[k], f[k]);
    g_string_append(json, "}");
  }
  g_string_append(json, "]");
  append_manifest(json, info->manifest);
  g_string_append(json, "}");
  cli_print(json->str);
}

/* A file that `find` refuses still has something to show: by id, base name or path. */
static const ordo_plugin_info *unusable(ordo_context *context, const char *name)
{
  for (size_t i = 0; i < ordo_context_n_plugins(context); i++) {
    const ordo_plugin_info *info = ordo_context_plugin(context, i);
    g_autofree char *base = info->path ? g_path_get_basename(info->path) : NULL;
    if (!g_strcmp0(info->id, name) || !g_strcmp0(info->path, name) || !g_strcmp0(base, name))
      return info;
  }
  return NULL;
}

int cli_inspect(ordo_cli *cli, int argc, char **argv)
{
  gboolean json = FALSE;
  const GOptionEntry entries[] = {{"json", 0, 0, G_OPTION_ARG_NONE, &json, "one object", NULL}, G_OPTION_ENTRY_NULL};
  g_auto(GStrv) words = NULL;
  int code = CLI_DONE;
  if (!cli_parse(cli, "inspect", entries, argc, argv, 1, 1, &words, &code))
    return code;
  ordo_context *context = cli_context(cli);
  if (!context)
    return CLI_USAGE;

  const ordo_plugin_info *info = NULL;
  ordo_status status = ordo_context_find(context, words[0], &info);
  if (status != ORDO_OK) {
    code = cli_fail(cli, status);
    info = status == ORDO_E_REFUSED ? unusable(context, words[0]) : NULL;
  }
  if (info && json)
    print_json(info);
  else if (info)
    print_text(cli, info);
  return code;
}
