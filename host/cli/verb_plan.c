/* verb_plan.c - `ordo plan`: the one order in which the chosen plugins are called, or why there is none.
 *
 * No plugin code runs. Exactly one form is printed; for a conflict the forms that a person reads explain it on standard output, and
 * the forms that a program reads as a list (--steps, --digest) print nothing there and the errors on standard error.
 */
#include "cli.h"

int cli_plan(ordo_cli *cli, int argc, char **argv)
{
  cli_plan_options o = CLI_PLAN_OPTIONS_NONE;
  gboolean explain = FALSE, json = FALSE, dot = FALSE, digest = FALSE, steps = FALSE;
  const GOptionEntry entries[] = {
      CLI_PLAN_ENTRIES(o),
      {"explain", 0, 0, G_OPTION_ARG_NONE, &explain, "every reason, what was not selected, lines that were skipped", NULL},
      {"json", 0, 0, G_OPTION_ARG_NONE, &json, "the same facts for a program", NULL},
      {"dot", 0, 0, G_OPTION_ARG_NONE, &dot, "the graph, for `dot -Tsvg`", NULL},
      {"digest", 0, 0, G_OPTION_ARG_NONE, &digest, "16 hex digits, equal if two ranks would do the same", NULL},
      {"steps", 0, 0, G_OPTION_ARG_NONE, &steps, "ids of the steps, one a line", NULL},
      G_OPTION_ENTRY_NULL,
  };
  g_auto(GStrv) words = NULL;
  ordo_plan *plan = NULL;
  int code = CLI_DONE;

  if (!cli_parse(cli, "plan", entries, argc, argv, 0, 0, &words, &code))
    goto out;
  if (explain + json + dot + digest + steps > 1) {
    code = cli_usage(cli, "plan", "more than one form was asked for", "--explain, --json, --dot, --digest and --steps exclude each other",
                     NULL);
    goto out;
  }
  plan = cli_plan_make(cli, "plan", &o, &code);
  if (!plan)
    goto out;
  if (code != CLI_DONE && (digest || steps)) {
    cli_fail(cli, ORDO_E_CONFLICT);
    goto out;
  }
  uint32_t form = explain  ? ORDO_RENDER_EXPLAIN
                  : json   ? ORDO_RENDER_JSON
                  : dot    ? ORDO_RENDER_DOT
                  : digest ? ORDO_RENDER_DIGEST
                  : steps  ? ORDO_RENDER_STEPS
                           : ORDO_RENDER_TEXT;
  char *text = ordo_plan_render(plan, form, cli->colour_out ? ORDO_RENDER_COLOUR : 0);
  if (text)
    cli_print(text);
  else
    code = cli_fail(cli, ORDO_E_NOMEM);
  ordo_string_free(text);
out:
  ordo_plan_destroy(plan);
  cli_plan_options_clear(&o);
  return code;
}
