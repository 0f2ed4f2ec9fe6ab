/* verb_matrix.c - `ordo matrix`: every strategy found, alone and composed, with every precision found: the order or the conflict. */
#include "cli.h"

int cli_matrix(ordo_cli *cli, int argc, char **argv)
{
  gboolean json = FALSE;
  int ranks = 2;
  const GOptionEntry entries[] = {
      {"json", 0, 0, G_OPTION_ARG_NONE, &json, "for a program", NULL},
      {"ranks", 'n', 0, G_OPTION_ARG_INT, &ranks, "ranks on each mesh axis (default 2)", "N"},
      G_OPTION_ENTRY_NULL,
  };
  g_auto(GStrv) words = NULL;
  char *text = NULL;
  int code = CLI_DONE;
  if (!cli_parse(cli, "matrix", entries, argc, argv, 0, 0, &words, &code))
    return code;
  if (ranks < 1)
    return cli_usage(cli, "matrix", "--ranks must be at least 1", NULL, NULL);
  ordo_context *context = cli_context(cli);
  if (!context)
    return CLI_USAGE;
  ordo_status status =
      ordo_plan_matrix(context, ranks, json ? ORDO_RENDER_JSON : ORDO_RENDER_TEXT, cli->colour_out ? ORDO_RENDER_COLOUR : 0, &text);
  if (status != ORDO_OK)
    return cli_fail(cli, status);
  cli_print(text);
  ordo_string_free(text);
  return CLI_DONE;
}
