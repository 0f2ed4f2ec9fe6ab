/* verb_list.c - `ordo list`: every plugin file found, with its state.
 *
 * Reads notes only; no plugin code runs. A file that was refused is listed with its reason, so that "my plugin does not show up" is
 * answered by the first command a person tries.
 */
#include "cli.h"

#include <stdio.h>
#include <string.h>

static const char *state_name(uint32_t state)
{
  return state == ORDO_PLUGIN_USABLE ? "usable" : state == ORDO_PLUGIN_SHADOWED ? "shadowed" : "refused";
}

static char *label_of(const ordo_plugin_info *info)
{
  return info->id ? g_strdup(info->id) : g_path_get_basename(info->path ? info->path : "-");
}

static void append_json(GString *json, const ordo_plugin_info *info)
{
  if (json->len > 1)
    g_string_append(json, ",");
  g_string_append(json, "\n  {");
  cli_json_member(json, "id", info->id);
  cli_json_member(json, "kind", info->kind ? ordo_kind_name(info->kind) : NULL);
  cli_json_member(json, "version", info->version);
  cli_json_member(json, "state", state_name(info->state));
  cli_json_member(json, "source", info->source);
  cli_json_member(json, "path", info->path);
  cli_json_member(json, "summary", info->summary);
  cli_json_aliases(json, info);
  cli_json_member(json, "reason", info->reason);
  g_string_append(json, "}");
}

/* The beginning of a long reason, up to the end of a word: the whole of it is what `inspect` is for. */
static char *short_reason(const char *reason)
{
  enum { LONGEST = 110 };
  const char *end = reason;
  glong length = 0;
  for (const char *p = reason; *p && length < LONGEST; p = g_utf8_next_char(p), length++)
    if (*p == ' ')
      end = p;
  if (g_utf8_strlen(reason, -1) <= LONGEST)
    return g_strdup(reason);
  g_autofree char *start = g_strndup(reason, (gsize)(end - reason));
  return g_strdup_printf("%s ...", start);
}

/* Names only: what each of them presets is in `inspect`. */
static void print_aliases(const char *aliases, int id_width)
{
  g_auto(GStrv) each = g_strsplit(aliases, ", ", -1);
  printf("%-*s  also called", id_width, "");
  for (guint i = 0; each[i]; i++)
    printf("%s%.*s", i ? ", " : " ", (int)strcspn(each[i], ":"), each[i]);
  printf("\n");
}

static void print_row(const ordo_cli *cli, const ordo_plugin_info *info, int id_width, int version_width)
{
  g_autofree char *label = label_of(info);
  const char *colour = info->state == ORDO_PLUGIN_USABLE ? "green" : info->state == ORDO_PLUGIN_SHADOWED ? "dim" : "red";
  const char *full = info->state == ORDO_PLUGIN_USABLE ? info->summary : info->reason;
  g_autofree char *text = short_reason(full ? full : "");
  printf("%-*s  %-9s  %-*s  %s%-8s%s  %s\n", id_width, label, ordo_kind_name(info->kind), version_width,
         info->version ? info->version : "-", cli_style(cli->colour_out, colour), state_name(info->state),
         cli_style(cli->colour_out, "off"), text);
  if (info->state == ORDO_PLUGIN_USABLE && info->aliases && *info->aliases)
    print_aliases(info->aliases, id_width);
  if (info->state != ORDO_PLUGIN_USABLE)
    printf("%-*s  %s (%s)%s\n", id_width, "", info->path ? info->path : "-", info->source ? info->source : "-",
           full && strcmp(text, full) ? "; all of it: ordo inspect FILE" : "");
}

static void print_table(const ordo_cli *cli, const GPtrArray *shown)
{
  int id_width = 2, version_width = 7;
  for (guint i = 0; i < shown->len; i++) {
    const ordo_plugin_info *info = shown->pdata[i];
    g_autofree char *label = label_of(info);
    id_width = MAX(id_width, (int)strlen(label));
    version_width = MAX(version_width, info->version ? (int)strlen(info->version) : 1);
  }
  if (shown->len)
    printf("%s%-*s  %-9s  %-*s  %-8s  %s%s\n", cli_style(cli->colour_out, "bold"), id_width, "id", "kind", version_width, "version",
           "state", "summary", cli_style(cli->colour_out, "off"));
  for (guint i = 0; i < shown->len; i++)
    print_row(cli, shown->pdata[i], id_width, version_width);
}

int cli_list(ordo_cli *cli, int argc, char **argv)
{
  gboolean json = FALSE, failed = FALSE;
  const GOptionEntry entries[] = {
      {"json", 0, 0, G_OPTION_ARG_NONE, &json, "an array of objects", NULL},
      {"failed", 0, 0, G_OPTION_ARG_NONE, &failed, "only files that are not usable, with the reason", NULL},
      G_OPTION_ENTRY_NULL,
  };
  g_auto(GStrv) words = NULL;
  int code = CLI_DONE;
  if (!cli_parse(cli, "list", entries, argc, argv, 0, 0, &words, &code))
    return code;
  ordo_context *context = cli_context(cli);
  if (!context)
    return CLI_USAGE;

  g_autoptr(GPtrArray) shown = g_ptr_array_new();
  for (size_t i = 0; i < ordo_context_n_plugins(context); i++) {
    const ordo_plugin_info *info = ordo_context_plugin(context, i);
    if (!failed || info->state != ORDO_PLUGIN_USABLE)
      g_ptr_array_add(shown, (gpointer)info);
  }
  if (json) {
    g_autoptr(GString) text = g_string_new("[");
    for (guint i = 0; i < shown->len; i++)
      append_json(text, shown->pdata[i]);
    g_string_append(text, "\n]");
    cli_print(text->str);
    return CLI_DONE;
  }
  if (shown->len == 0)
    cli_print(failed ? "every file found is usable" : "no plugin found; the directories searched: ordo doctor");
  print_table(cli, shown);
  return CLI_DONE;
}
