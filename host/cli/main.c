/* main.c - the `ordo` command: finds the verb and calls it.
 *
 * Verbs that only read and plan are functions of this program, which links no BLAS and starts in a few milliseconds. Verbs that
 * compute (train, eval, generate) are programs of their own, found the way git finds git-VERB, so that a new verb needs no
 * change here. A word that is neither is answered with the nearest verb.
 */
#include "cli.h"
#include "../src/base/error.h"

#include <stdio.h>
#include <string.h>

static const cli_verb verbs[] = {
    {"list", "[--json] [--failed]", "plugins found, without running any of their code", cli_list, NULL},
    {"inspect", "NAME|FILE [--json]", "what one plugin declares", cli_inspect, NULL},
    {"plan", "[--strategy E] [--precision E]", "the one dispatch order, or why there is none", cli_plan, CLI_NOTE_OPTIONS},
    {"why", "A B", "why step A comes before step B", cli_why, NULL},
    {"why-not", "STRATEGY [PRECISION]", "why a combination is refused, and what would make it work", cli_why_not, CLI_NOTE_OPTIONS},
    {"matrix", "[--json]", "every strategy with every precision: legal or not", cli_matrix, NULL},
    {"train", "[FILE.ini] [--ranks N] ...", "train a model", NULL, NULL},
    {"eval", "[FILE.ini] [--ranks N] ...", "loss of a model on data", NULL, NULL},
    {"generate", "[FILE.ini] ...", "text from a model", NULL, NULL},
    {"doctor", "[--json]", "what of this machine and installation is in order", cli_doctor, NULL},
    {"explain", "CODE", "the meaning of an error code", cli_explain, NULL},
    {"version", "[--json]", "versions", cli_version, NULL},
    {"help", "[VERB]", "this text, or the options of a verb", cli_help, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

const cli_verb *cli_verbs(void)
{
  return verbs;
}

const cli_verb *cli_find_verb(const char *name)
{
  for (const cli_verb *verb = verbs; verb->name; verb++)
    if (!strcmp(verb->name, name))
      return verb;
  return NULL;
}

static int unknown_verb(const ordo_cli *cli, const char *name)
{
  const char *names[G_N_ELEMENTS(verbs)];
  for (size_t i = 0; i < G_N_ELEMENTS(verbs); i++)
    names[i] = verbs[i].name;
  const char *nearest = ordo_nearest_name(name, names);
  g_autofree char *what = g_strdup_printf("unknown verb '%s'", name);
  g_autofree char *next = nearest ? g_strdup_printf("did you mean: ordo %s", nearest) : g_strdup("all verbs: ordo help");
  cli_error(cli, "E-USAGE", what, "command line", "it is neither a verb of this program nor an installed program ordo-VERB", next);
  return CLI_USAGE;
}

static int run_verb(ordo_cli *cli, int argc, char **argv)
{
  const cli_verb *verb = cli_find_verb(argv[0]);
  if (verb && verb->run)
    return verb->run(cli, argc, argv);
  if (!verb) {
    g_autofree char *program = cli_program(argv[0]);
    if (!program)
      return unknown_verb(cli, argv[0]);
  }
  return cli_launch(cli, argv[0], argc, argv);
}

int main(int argc, char **argv)
{
  ordo_cli cli = {0};
  gboolean help = FALSE;
  int code = CLI_USAGE;
  char *no_verb[] = {(char *)"help", NULL};

  g_set_prgname("ordo");
  if (!cli_parse_global(&cli, &argc, &argv, &help, &code))
    goto out;
  if (argc == 0) {
    code = cli_help(&cli, 1, no_verb);
    if (!help)
      code = cli_usage(&cli, NULL, "a verb is missing", NULL, NULL);
    goto out;
  }
  code = run_verb(&cli, argc, argv);
out:
  ordo_context_destroy(cli.context);
  g_free(cli.plugin_path);
  if (fflush(stdout) != 0 || ferror(stdout))
    code = code ? code : CLI_FAILED;
  return code;
}
