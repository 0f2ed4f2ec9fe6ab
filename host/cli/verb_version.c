/* verb_version.c - `ordo version` and `ordo help`. */
#include "cli.h"

#include <stdio.h>

int cli_version(ordo_cli *cli, int argc, char **argv)
{
  gboolean json = FALSE;
  const GOptionEntry entries[] = {{"json", 0, 0, G_OPTION_ARG_NONE, &json, "one object", NULL}, G_OPTION_ENTRY_NULL};
  g_auto(GStrv) words = NULL;
  int code = CLI_DONE;
  if (!cli_parse(cli, "version", entries, argc, argv, 0, 0, &words, &code))
    return code;
  g_autofree char *abi = g_strdup_printf("%u.%u", ORDO_ABI_MAJOR, ORDO_ABI_MINOR);
  g_autofree char *glib = g_strdup_printf("%u.%u.%u", glib_major_version, glib_minor_version, glib_micro_version);
  if (json) {
    g_autoptr(GString) text = g_string_new("{");
    cli_json_member(text, "ordo", ordo_version());
    cli_json_member(text, "abi", abi);
    cli_json_member(text, "glib", glib);
    cli_json_member(text, "compiler", __VERSION__);
    g_string_append(text, "}");
    cli_print(text->str);
  } else {
    printf("ordo %s\nplugin ABI %s\nGLib %s\ncompiler %s\n", ordo_version(), abi, glib, __VERSION__);
  }
  return CLI_DONE;
}

static int help_of(ordo_cli *cli, const char *name)
{
  const cli_verb *verb = cli_find_verb(name);
  char *arguments[] = {(char *)name, (char *)"--help", NULL};
  if (verb && verb->run)
    return verb->run(cli, 2, arguments);
  if (!verb) {
    g_autofree char *program = cli_program(name);
    g_autofree char *what = g_strdup_printf("unknown verb '%s'", name);
    if (!program)
      return cli_usage(cli, NULL, what, NULL, NULL);
  }
  return cli_launch(cli, name, 2, arguments);
}

int cli_help(ordo_cli *cli, int argc, char **argv)
{
  g_auto(GStrv) words = NULL;
  int code = CLI_DONE;
  if (!cli_parse(cli, "help", NULL, argc, argv, 0, 1, &words, &code))
    return code;
  if (words[0])
    return help_of(cli, words[0]);
  const char *bold = cli_style(cli->colour_out, "bold"), *off = cli_style(cli->colour_out, "off");
  printf("ordo - one dispatch order for distributed-training plugins\n\n%susage%s: ordo [options] VERB ...\n\n%sverbs%s\n", bold, off, bold,
         off);
  for (const cli_verb *verb = cli_verbs(); verb->name; verb++)
    printf("  %-9s %-32s %s\n", verb->name, verb->arguments, verb->summary);
  g_autofree char *globals = cli_global_help();
  printf("\n%soptions%s (before or after the verb)\n%s", bold, off, globals);
  printf("\n%sexit codes%s  0 done, 1 failed, 2 usage or configuration, 3 the plan has a conflict, 4 a plugin was refused\n", bold, off);
  return CLI_DONE;
}
