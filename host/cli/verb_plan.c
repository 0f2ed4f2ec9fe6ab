/* verb_plan.c - `ordo plan`: the one order in which the chosen plugins are called, or why there is none.
 *
 * No plugin code runs, unless --estimate asks for more than the plan: that is the trainer's program ordo-estimate, which alone knows the
 * model, and which loads the plugins once the plan is accepted. Exactly one form is printed; for a conflict the forms that a person reads
 * explain it on standard output, and the forms that a program reads as a list (--steps, --digest) print nothing there and the errors on
 * standard error.
 */
#include "cli.h"

#include <string.h>

static gboolean wants_estimate(int argc, char **argv)
{
  for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
    if (strcmp(argv[i], "--estimate") == 0)
      return TRUE;
  return FALSE;
}

/* An option of `ordo plan` that an estimate has no use for, null if the word is none. */
static const char *excluded(const char *word)
{
  static const char *const words[] = {"--explain", "--dot", "--digest", "--steps", "--resume", "--eval", "--default-strategy"};
  for (size_t i = 0; i < G_N_ELEMENTS(words); i++)
    if (strncmp(word, words[i], strlen(words[i])) == 0 && (word[strlen(words[i])] == '\0' || word[strlen(words[i])] == '='))
      return words[i];
  return NULL;
}

/* The words of ordo-estimate: its options are those of the trainer, so the short names of `ordo plan` are written out. */
static int estimate(ordo_cli *cli, int argc, char **argv)
{
  static const char *const names[][2] = {{"-s", "--strategy"}, {"-p", "--precision"}, {"-n", "--ranks"}, {"--world", "--ranks"}};
  g_autoptr(GPtrArray) words = g_ptr_array_new_with_free_func(g_free);
  for (int i = 0; i < argc; i++) {
    const char *name = argv[i], *no = excluded(argv[i]);
    if (no) {
      g_autofree char *what = g_strdup_printf("%s and --estimate exclude each other", no);
      return cli_usage(cli, "plan", what, "an estimate is of a training from its start, shown as a table or with --json", NULL);
    }
    if (strcmp(name, "--estimate") == 0)
      continue;
    for (size_t n = 0; n < G_N_ELEMENTS(names); n++)
      name = strcmp(name, names[n][0]) == 0 ? names[n][1] : name;
    g_ptr_array_add(words, g_str_has_prefix(name, "--world=") ? g_strconcat("--ranks=", name + strlen("--world="), NULL) : g_strdup(name));
  }
  return cli_launch_estimate(cli, (int)words->len, (char **)words->pdata);
}

int cli_plan(ordo_cli *cli, int argc, char **argv)
{
  cli_plan_options o = CLI_PLAN_OPTIONS_NONE;
  gboolean explain = FALSE, estimates = FALSE, json = FALSE, dot = FALSE, digest = FALSE, steps = FALSE;
  const GOptionEntry entries[] = {
      CLI_PLAN_ENTRIES(o),
      {"explain", 0, 0, G_OPTION_ARG_NONE, &explain, "every reason, what was not selected, lines that were skipped", NULL},
      {"json", 0, 0, G_OPTION_ARG_NONE, &json, "the same facts for a program", NULL},
      {"dot", 0, 0, G_OPTION_ARG_NONE, &dot, "the graph, for `dot -Tsvg`", NULL},
      {"digest", 0, 0, G_OPTION_ARG_NONE, &digest, "16 hex digits, equal if two ranks would do the same", NULL},
      {"steps", 0, 0, G_OPTION_ARG_NONE, &steps, "ids of the steps, one a line", NULL},
      {"estimate", 0, 0, G_OPTION_ARG_NONE, &estimates,
       "memory, shapes and messages as well: loads and runs the plugins without storage, once the plan is accepted; see `ordo plan "
       "--estimate --help`",
       NULL},
      G_OPTION_ENTRY_NULL,
  };
  g_auto(GStrv) words = NULL;
  ordo_plan *plan = NULL;
  int code = CLI_DONE;

  if (wants_estimate(argc, argv))
    return estimate(cli, argc, argv);
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
