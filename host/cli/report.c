/* report.c - what the command says: errors in one shape, text, JSON strings, colour.
 *
 * An error is always: code and what, then where, why, next, each on lines of its own so that a person finds the command to run at the
 * same place every time. Errors go to standard error, answers to standard output; a program can read the second and count on it.
 */
#include "cli.h"

#include <stdio.h>
#include <string.h>

static void log_line(void *ctx, int32_t severity, const char *text)
{
  const ordo_cli *cli = ctx;
  const char *label = severity >= ORDO_LOG_ERROR ? "error" : "warning";
  if (severity >= ORDO_LOG_WARNING)
    fprintf(stderr, "%s%s%s: %s\n", cli_style(cli->colour_error, "yellow"), label, cli_style(cli->colour_error, "off"), text);
}

ordo_context *cli_context(ordo_cli *cli)
{
  if (cli->context)
    return cli->context;
  ordo_context_options options = {.struct_size = sizeof options};
  options.program_name = "ordo";
  options.program_version = ORDO_VERSION;
  options.plugin_path = cli->plugin_path;
  options.flags = cli->allow_insecure ? ORDO_CONTEXT_ALLOW_INSECURE : 0;
  options.log_ctx = cli;
  options.log = log_line;
  ordo_status status = ordo_context_create(&options, &cli->context);
  if (status != ORDO_OK) {
    cli_error(cli, "E-USAGE", "the search path could not be read", cli->plugin_path ? cli->plugin_path : "ORDO_PLUGIN_PATH",
              ordo_status_name(status), "ordo doctor shows each directory and why it is used or not");
    return NULL;
  }
  return cli->context;
}

const char *cli_style(gboolean colour, const char *name)
{
  if (!colour)
    return "";
  if (!strcmp(name, "red"))
    return "\033[1;31m";
  if (!strcmp(name, "green"))
    return "\033[32m";
  if (!strcmp(name, "yellow"))
    return "\033[33m";
  if (!strcmp(name, "bold"))
    return "\033[1m";
  if (!strcmp(name, "dim"))
    return "\033[2m";
  return "\033[0m";
}

/* "  why    text", further lines of the text under the first. */
static void print_part(const char *label, const char *text)
{
  if (!text || !*text)
    return;
  g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
  for (int i = 0; lines[i]; i++)
    if (i == 0 || *lines[i])
      fprintf(stderr, "  %-6s %s\n", i ? "" : label, lines[i]);
}

void cli_error(const ordo_cli *cli, const char *code, const char *what, const char *where, const char *why, const char *next)
{
  fflush(stdout);
  fprintf(stderr, "%serror%s %s: %s\n", cli_style(cli->colour_error, "red"), cli_style(cli->colour_error, "off"), code, what);
  print_part("where", where);
  print_part("why", why);
  print_part("next", next);
}

int cli_usage(const ordo_cli *cli, const char *verb, const char *what, const char *why, const char *next)
{
  g_autofree char *help = verb ? g_strdup_printf("ordo %s --help", verb) : g_strdup("ordo help");
  g_autofree char *where = verb ? g_strdup_printf("ordo %s", verb) : g_strdup("command line");
  g_autofree char *hint = next ? g_strdup_printf("%s\nall options: %s", next, help) : g_strdup_printf("all options: %s", help);
  cli_error(cli, "E-USAGE", what, where, why, hint);
  return CLI_USAGE;
}

int cli_exit_code(ordo_status status)
{
  switch (status) {
  case ORDO_OK:
    return CLI_DONE;
  case ORDO_E_CONFLICT:
    return CLI_CONFLICT;
  case ORDO_E_REFUSED:
    return CLI_REFUSED;
  case ORDO_E_INVALID:
  case ORDO_E_NOT_FOUND:
    return CLI_USAGE;
  default:
    return CLI_FAILED;
  }
}

int cli_fail(const ordo_cli *cli, ordo_status status)
{
  size_t n = cli->context ? ordo_n_errors(cli->context) : 0;
  for (size_t i = 0; i < n; i++) {
    const ordo_error *e = ordo_error_at(cli->context, i);
    cli_error(cli, e->code, e->what, e->where, e->why, e->next);
  }
  if (n == 0)
    cli_error(cli, "E-INTERNAL", "a call failed without saying why", NULL, ordo_status_name(status),
              "this is a defect of Ordo; please report it");
  return cli_exit_code(status);
}

void cli_print(const char *text)
{
  size_t length = strlen(text);
  fwrite(text, 1, length, stdout);
  if (length == 0 || text[length - 1] != '\n')
    fputc('\n', stdout);
}

/* `text` as a JSON string with quotes; null becomes null. */
static void json_string(GString *json, const char *text)
{
  if (!text) {
    g_string_append(json, "null");
    return;
  }
  g_autofree char *valid = g_utf8_make_valid(text, -1);
  g_string_append_c(json, '"');
  for (const char *p = valid; *p; p++) {
    if (*p == '"' || *p == '\\')
      g_string_append_printf(json, "\\%c", *p);
    else if (*p == '\n')
      g_string_append(json, "\\n");
    else if ((unsigned char)*p < 0x20)
      g_string_append_printf(json, "\\u%04x", (unsigned)*p);
    else
      g_string_append_c(json, *p);
  }
  g_string_append_c(json, '"');
}

void cli_json_member(GString *json, const char *key, const char *text)
{
  if (json->len && json->str[json->len - 1] != '{')
    g_string_append(json, ", ");
  g_string_append_printf(json, "\"%s\": ", key);
  json_string(json, text);
}
