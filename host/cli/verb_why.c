/* verb_why.c - `ordo why A B` and `ordo why-not`: one question about a plan.
 *
 * `why` shows the chain of constraints that puts step A before step B, each with its origin. `why-not` shows why a combination has no
 * order and which single changes were tried and make one possible.
 */
#include "cli.h"

#include <string.h>

static int print_answer(ordo_cli *cli, ordo_status status, char *text, int code)
{
  if (status != ORDO_OK) {
    code = cli_fail(cli, status);
  } else {
    cli_print(text);
  }
  ordo_string_free(text);
  return code;
}

int cli_why(ordo_cli *cli, int argc, char **argv)
{
  cli_plan_options o = CLI_PLAN_OPTIONS_NONE;
  gboolean json = FALSE;
  const GOptionEntry entries[] = {
      CLI_PLAN_ENTRIES(o),
      {"json", 0, 0, G_OPTION_ARG_NONE, &json, "for a program", NULL},
      G_OPTION_ENTRY_NULL,
  };
  g_auto(GStrv) words = NULL;
  ordo_plan *plan = NULL;
  char *text = NULL;
  int code = CLI_DONE;

  if (!cli_parse(cli, "why", entries, argc, argv, 2, 2, &words, &code))
    goto out;
  plan = cli_plan_make(cli, "why", &o, &code);
  if (!plan)
    goto out;
  if (code != CLI_DONE) {
    cli_fail(cli, ORDO_E_CONFLICT);
    goto out;
  }
  ordo_status status = ordo_plan_why(plan, words[0], words[1], json ? ORDO_RENDER_JSON : ORDO_RENDER_TEXT, &text);
  code = print_answer(cli, status, text, code);
out:
  ordo_plan_destroy(plan);
  cli_plan_options_clear(&o);
  return code;
}

/* `why-not A+P`: a last part that is a precision plugin is taken as the precision. */
static void split_pair(ordo_cli *cli, cli_plan_options *o)
{
  char *last = strrchr(o->strategy, '+');
  ordo_context *context = cli_context(cli);
  if (!last || !context)
    return;
  g_autofree char *name = g_strndup(last + 1, strcspn(last + 1, ":="));
  const ordo_plugin_info *info = NULL;
  if (ordo_context_find(context, name, &info) == ORDO_OK && info->kind == ORDO_KIND_PRECISION) {
    o->precision = g_strdup(last + 1);
    *last = '\0';
  }
}

/* Does this part of an expression want a mesh axis, and say no size? Nonsense is left for the parser of the library to name. */
static gboolean is_open(ordo_cli *cli, const char *part)
{
  g_autofree char *name = g_strstrip(g_strndup(part, strcspn(part, ":=")));
  const ordo_plugin_info *info = NULL;
  return part[strcspn(part, ":=")] != '=' && ordo_context_find(cli_context(cli), name, &info) == ORDO_OK &&
         info->kind == ORDO_KIND_STRATEGY && !strstr(info->manifest, "mesh_axis=none");
}

/* The order does not depend on sizes, so a question about it need not state them: where several parts leave theirs open, all but the first
 * of them get two ranks. */
static void fill_sizes(ordo_cli *cli, cli_plan_options *o)
{
  g_auto(GStrv) parts = g_strsplit(o->strategy ? o->strategy : "", "+", -1);
  guint n_open = 0;
  if (o->ranks != CLI_RANKS_NOT_GIVEN || !cli_context(cli))
    return;
  for (char **part = parts; *part; part++) {
    if (!is_open(cli, *part) || n_open++ == 0)
      continue;
    size_t name = strcspn(*part, ":");
    char *sized = g_strdup_printf("%.*s=2%s", (int)name, *part, *part + name);
    g_free(*part);
    *part = sized;
  }
  if (n_open > 1) {
    g_free(o->strategy);
    o->strategy = g_strjoinv("+", parts);
  }
}

int cli_why_not(ordo_cli *cli, int argc, char **argv)
{
  cli_plan_options o = CLI_PLAN_OPTIONS_NONE;
  gboolean json = FALSE;
  const GOptionEntry entries[] = {
      CLI_PLAN_ENTRIES(o),
      {"json", 0, 0, G_OPTION_ARG_NONE, &json, "for a program", NULL},
      G_OPTION_ENTRY_NULL,
  };
  g_auto(GStrv) words = NULL;
  ordo_plan *plan = NULL;
  char *text = NULL;
  int code = CLI_DONE;

  if (!cli_parse(cli, "why-not", entries, argc, argv, 0, 2, &words, &code))
    goto out;
  guint n = g_strv_length(words);
  if ((n >= 1 && o.strategy) || (n == 2 && o.precision) || (n == 0 && !o.strategy && !o.precision)) {
    code = cli_usage(cli, "why-not", n ? "the combination is given twice" : "which combination?",
                     "give it as two words (why-not fsdp1 apex_amp:O2) or with --strategy and --precision", NULL);
    goto out;
  }
  if (n >= 1)
    o.strategy = g_strdup(words[0]);
  if (n == 2)
    o.precision = g_strdup(words[1]);
  else if (n == 1 && !o.precision)
    split_pair(cli, &o);
  fill_sizes(cli, &o);
  plan = cli_plan_make(cli, "why-not", &o, &code);
  if (!plan)
    goto out;
  const int legal = code == CLI_DONE;
  ordo_status status = ordo_plan_why_not(plan, json ? ORDO_RENDER_JSON : ORDO_RENDER_TEXT, &text);
  code = print_answer(cli, status, text, code);
  if (legal && status == ORDO_OK && !json)
    cli_print(CLI_NOTE_OPTIONS);
out:
  ordo_plan_destroy(plan);
  cli_plan_options_clear(&o);
  return code;
}
