/* verb_doctor.c - `ordo doctor`: what of this machine and installation is in order, what is not, and what to do about it.
 *
 * Exit code 1 if something is broken, so that a script can ask. A refused plugin file counts as broken: somebody put it there to be used.
 */
#include "doctor.h"

#include <stdio.h>
#include <string.h>

static const char *const verdicts[] = {"ok", "warning", "BROKEN"};
static const char *const colours[] = {"green", "yellow", "red"};

static void check_plugins(ordo_cli *cli, GPtrArray *checks)
{
  ordo_context *context = cli_context(cli);
  size_t usable = 0;
  if (!context) {
    doctor_add(checks, DOCTOR_BROKEN, "plugins", "the search path could not be read");
    return;
  }
  char *report = ordo_context_search_report(context);
  doctor_add(checks, DOCTOR_GOOD, "search path", "%s", report && *report ? report : "empty");
  ordo_string_free(report);
  for (size_t i = 0; i < ordo_context_n_plugins(context); i++) {
    const ordo_plugin_info *info = ordo_context_plugin(context, i);
    usable += info->state == ORDO_PLUGIN_USABLE;
    if (info->state == ORDO_PLUGIN_REFUSED)
      doctor_add(checks, DOCTOR_BROKEN, "plugin", "%s was refused: %s", info->path, info->reason);
    else if (info->state == ORDO_PLUGIN_SHADOWED)
      doctor_add(checks, DOCTOR_WARNING, "plugin", "%s is shadowed: %s", info->path, info->reason);
  }
  doctor_add(checks, usable ? DOCTOR_GOOD : DOCTOR_WARNING, "plugins", "%zu usable (ordo list)", usable);
}

static void print_text(const ordo_cli *cli, const GPtrArray *checks)
{
  for (guint i = 0; i < checks->len; i++) {
    const doctor_check *check = checks->pdata[i];
    g_auto(GStrv) lines = g_strsplit(check->text, "\n", -1);
    for (int k = 0; lines[k]; k++) {
      const char *style = k ? "" : cli_style(cli->colour_out, colours[check->verdict]);
      printf("%s%-8s%s %-13s %s\n", style, k ? "" : verdicts[check->verdict], *style ? cli_style(cli->colour_out, "off") : "",
             k ? "" : check->topic, lines[k]);
    }
  }
}

static void print_json(const GPtrArray *checks)
{
  g_autoptr(GString) json = g_string_new("[");
  for (guint i = 0; i < checks->len; i++) {
    const doctor_check *check = checks->pdata[i];
    g_string_append(json, i ? ",\n  {" : "\n  {");
    cli_json_member(json, "verdict", verdicts[check->verdict]);
    cli_json_member(json, "topic", check->topic);
    cli_json_member(json, "text", check->text);
    g_string_append(json, "}");
  }
  g_string_append(json, "\n]");
  cli_print(json->str);
}

int cli_doctor(ordo_cli *cli, int argc, char **argv)
{
  gboolean json = FALSE;
  g_autofree char *program = NULL;
  const GOptionEntry entries[] = {
      {"json", 0, 0, G_OPTION_ARG_NONE, &json, "an array of objects", NULL},
      {"program", 0, 0, G_OPTION_ARG_FILENAME, &program, "an embedding program to check for exported functions", "FILE"},
      G_OPTION_ENTRY_NULL,
  };
  g_auto(GStrv) words = NULL;
  int code = CLI_DONE;
  if (!cli_parse(cli, "doctor", entries, argc, argv, 0, 0, &words, &code))
    return code;

  if (program && !g_file_test(program, G_FILE_TEST_IS_REGULAR))
    return cli_usage(cli, "doctor", "the program to check is no file", program, "give the path of an executable");

  g_autoptr(GPtrArray) checks = g_ptr_array_new_with_free_func(doctor_check_free);
  doctor_add(checks, DOCTOR_GOOD, "ordo", "%s, plugin ABI %u.%u", ordo_version(), ORDO_ABI_MAJOR, ORDO_ABI_MINOR);
  doctor_process(checks, program);
  check_plugins(cli, checks);
  doctor_programs(checks);
  doctor_mpi(checks);
  doctor_shared_memory(checks);
  doctor_environment(checks);
  doctor_blas(checks);
  if (json)
    print_json(checks);
  else
    print_text(cli, checks);
  for (guint i = 0; i < checks->len; i++)
    if (((const doctor_check *)checks->pdata[i])->verdict == DOCTOR_BROKEN)
      return CLI_FAILED;
  return CLI_DONE;
}
