/* options.c - command-line options: GLib's parser, with the house's error texts.
 *
 * GLib knows the syntax (`--name value`, `--name=value`, `--`); this file adds the global options to every verb and answers an unknown
 * option with the nearest one that the verb has. Global options may stand before or after the verb.
 */
#include "cli.h"
#include "../src/base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct global_options {
  char **plugin_path;
  char *colour;
  gboolean allow_insecure, help;
} global_options;

#define GLOBAL_ENTRIES(O)                                                                                                                 \
  {                                                                                                                                       \
    {"plugin-path", 0, 0, G_OPTION_ARG_FILENAME_ARRAY, &(O).plugin_path, "look for plugins here first; ':' between several", "PATH"},     \
        {"allow-insecure-dir", 0, 0, G_OPTION_ARG_NONE, &(O).allow_insecure, "accept files and directories that others can write", NULL}, \
        {"color", 0, 0, G_OPTION_ARG_STRING, &(O).colour, "auto (default), always or never", "WHEN"},                                     \
        {"help", 'h', 0, G_OPTION_ARG_NONE, &(O).help, "this text", NULL}, G_OPTION_ENTRY_NULL                                            \
  }

static void global_options_clear(global_options *o)
{
  g_strfreev(o->plugin_path);
  g_free(o->colour);
}

static gboolean wants_colour(int descriptor, const char *when)
{
  if (when && strcmp(when, "auto") != 0)
    return strcmp(when, "always") == 0;
  const char *no_color = getenv("NO_COLOR");
  const char *term = getenv("TERM");
  return isatty(descriptor) && !(no_color && *no_color) && term && strcmp(term, "dumb") != 0;
}

/* Takes over what was given; later options do not undo earlier ones. FALSE: a bad value of --color. */
static gboolean apply_global(ordo_cli *cli, const global_options *o)
{
  for (char **path = o->plugin_path; path && *path; path++) {
    char *joined = cli->plugin_path ? g_strconcat(cli->plugin_path, ":", *path, NULL) : g_strdup(*path);
    g_free(cli->plugin_path);
    cli->plugin_path = joined;
  }
  cli->allow_insecure |= o->allow_insecure;
  if (o->colour && strcmp(o->colour, "auto") && strcmp(o->colour, "always") && strcmp(o->colour, "never"))
    return FALSE;
  if (o->colour || !cli->context) {
    cli->colour_out = o->colour || !cli->colour_out ? wants_colour(STDOUT_FILENO, o->colour) : cli->colour_out;
    cli->colour_error = o->colour || !cli->colour_error ? wants_colour(STDERR_FILENO, o->colour) : cli->colour_error;
  }
  return TRUE;
}

static void add_names(GPtrArray *names, const GOptionEntry *entries)
{
  for (; entries && entries->long_name; entries++)
    if (*entries->long_name)
      g_ptr_array_add(names, (gpointer)entries->long_name);
}

/* The option in `args` that no entry knows, without dashes and value; null if it cannot be told. */
static char *unknown_option(char **args, const GPtrArray *names)
{
  for (; *args && strcmp(*args, "--"); args++) {
    if (!g_str_has_prefix(*args, "--"))
      continue;
    char *name = g_strndup(*args + 2, strcspn(*args + 2, "="));
    gboolean known = FALSE;
    for (guint i = 0; i < names->len && names->pdata[i]; i++)
      known |= !strcmp(names->pdata[i], name);
    if (!known)
      return name;
    g_free(name);
  }
  return NULL;
}

static gboolean has_one_value(const GOptionEntry *entry)
{
  return entry->arg == G_OPTION_ARG_STRING || entry->arg == G_OPTION_ARG_INT || entry->arg == G_OPTION_ARG_INT64 ||
         entry->arg == G_OPTION_ARG_DOUBLE || entry->arg == G_OPTION_ARG_FILENAME;
}

/* The entry of an option with one value that `word` names, and whether the value is the next word; null for anything else. */
static const GOptionEntry *valued_option(const char *word, const GOptionEntry *entries, gboolean *separate)
{
  gboolean is_long = g_str_has_prefix(word, "--");
  gsize length = is_long ? strcspn(word + 2, "=") : 0;
  *separate = !is_long || word[2 + length] == '\0'; /* GLib knows no "-sVALUE" */
  for (; entries && entries->long_name; entries++) {
    if (is_long ? strlen(entries->long_name) == length && strncmp(entries->long_name, word + 2, length) == 0
                : word[0] == '-' && entries->short_name && word[1] == entries->short_name && !word[2])
      return entries->arg == G_OPTION_ARG_NONE ? NULL : entries;
  }
  return NULL;
}

/* GLib takes the last of two values without a word; two strategies, say, would look composed. The long name of an option that stands
 * twice (an alias writes to the same place), null if there is none. */
static const char *repeated_option(char **args, const GOptionEntry *entries, const GOptionEntry *globals)
{
  g_autoptr(GHashTable) seen = g_hash_table_new(NULL, NULL);
  for (; *args && strcmp(*args, "--"); args++) {
    gboolean separate;
    const GOptionEntry *entry = valued_option(*args, entries, &separate);
    if (!entry)
      entry = valued_option(*args, globals, &separate);
    if (!entry)
      continue;
    if (has_one_value(entry) && !g_hash_table_add(seen, entry->arg_data))
      return entry->long_name;
    if (separate && args[1])
      args++;
  }
  return NULL;
}

static int parse_failed(const ordo_cli *cli, const char *verb, const GError *error, char **args, const GOptionEntry *entries,
                        const GOptionEntry *globals)
{
  g_autoptr(GPtrArray) names = g_ptr_array_new();
  add_names(names, entries);
  add_names(names, globals);
  g_ptr_array_add(names, NULL);
  if (!g_error_matches(error, G_OPTION_ERROR, G_OPTION_ERROR_UNKNOWN_OPTION))
    return cli_usage(cli, verb, "an option has no value or a bad one", error->message, NULL);
  g_autofree char *name = unknown_option(args, names);
  const char *nearest = name ? ordo_nearest_name(name, (const char *const *)names->pdata) : NULL;
  g_autofree char *what = name ? g_strdup_printf("unknown option --%s", name) : g_strdup(error->message);
  g_autofree char *next = nearest ? g_strdup_printf("did you mean: --%s", nearest) : NULL;
  return cli_usage(cli, verb, what, NULL, next);
}

gboolean cli_parse(ordo_cli *cli, const char *verb, const GOptionEntry *entries, int argc, char **argv, guint min_words, guint max_words,
                   char ***words, int *exit_code)
{
  global_options o = {0};
  const GOptionEntry globals[] = GLOBAL_ENTRIES(o);
  const cli_verb *self = cli_find_verb(verb);
  g_autofree char *program = g_strdup_printf("ordo %s", verb);
  g_autoptr(GOptionContext) parser = g_option_context_new(self->arguments);
  g_autoptr(GError) error = NULL;
  g_auto(GStrv) args = g_new0(char *, (gsize)argc + 1);
  g_auto(GStrv) original = NULL;
  const char *twice;
  gboolean good = FALSE;

  for (int i = 0; i < argc; i++)
    args[i] = g_strdup(argv[i]);
  original = g_strdupv(args);
  g_option_context_set_help_enabled(parser, FALSE);
  g_option_context_set_summary(parser, self->summary);
  g_option_context_set_description(parser, self->note);
  if (entries)
    g_option_context_add_main_entries(parser, entries, NULL);
  g_option_context_add_main_entries(parser, globals, NULL);
  g_set_prgname(program);
  if (!g_option_context_parse_strv(parser, &args, &error)) {
    *exit_code = parse_failed(cli, verb, error, original + 1, entries, globals);
  } else if (o.help) {
    g_autofree char *text = g_option_context_get_help(parser, TRUE, NULL);
    cli_print(text);
    *exit_code = CLI_DONE;
  } else if ((twice = repeated_option(original + 1, entries, globals))) {
    g_autofree char *what = g_strdup_printf("--%s is given twice", twice);
    *exit_code = cli_usage(cli, verb, what, "it has one value; strategies are composed in one expression: --strategy tp=2+fsdp2", NULL);
  } else if (!apply_global(cli, &o)) {
    *exit_code = cli_usage(cli, verb, "--color takes auto, always or never", o.colour, NULL);
  } else {
    guint n = g_strv_length(args) - 1;
    char **rest = args + 1;
    if (n && !strcmp(rest[0], "--"))
      rest++, n--;
    if (n < min_words || n > max_words) {
      g_autofree char *why = g_strdup_printf("usage: ordo %s %s", verb, self->arguments);
      *exit_code = cli_usage(cli, verb, n < min_words ? "a word is missing" : "too many words", why, NULL);
    } else {
      *words = g_strdupv(rest);
      good = TRUE;
    }
  }
  g_set_prgname("ordo");
  global_options_clear(&o);
  return good;
}

gboolean cli_parse_global(ordo_cli *cli, int *argc, char ***argv, gboolean *help, int *exit_code)
{
  global_options o = {0};
  gboolean version = FALSE;
  const GOptionEntry globals[] = GLOBAL_ENTRIES(o);
  const GOptionEntry own[] = {{"version", 'V', 0, G_OPTION_ARG_NONE, &version, "versions", NULL}, G_OPTION_ENTRY_NULL};
  static char *version_verb[] = {(char *)"version", NULL};
  g_autoptr(GOptionContext) parser = g_option_context_new(NULL);
  g_autoptr(GError) error = NULL;
  gboolean good = TRUE;

  if (*argc == 0)
    return TRUE;
  g_auto(GStrv) original = g_strdupv(*argv);
  g_option_context_set_help_enabled(parser, FALSE);
  g_option_context_set_strict_posix(parser, TRUE);
  g_option_context_add_main_entries(parser, globals, NULL);
  g_option_context_add_main_entries(parser, own, NULL);
  if (!g_option_context_parse(parser, argc, argv, &error)) {
    *exit_code = parse_failed(cli, NULL, error, original + 1, own, globals);
    good = FALSE;
  } else if (!apply_global(cli, &o)) {
    *exit_code = cli_usage(cli, NULL, "--color takes auto, always or never", o.colour, NULL);
    good = FALSE;
  }
  *help = o.help;
  (*argc)--;
  (*argv)++;
  if (*argc > 0 && !strcmp((*argv)[0], "--"))
    (*argc)--, (*argv)++;
  if (o.help)
    *argc = 0;
  if (version) {
    *argc = 1;
    *argv = version_verb;
  }
  global_options_clear(&o);
  return good;
}

gboolean cli_take_colour(ordo_cli *cli, const char *verb, int *argc, char **argv, int *exit_code)
{
  int kept = 0, n = *argc;
  gboolean ended = FALSE, good = TRUE;
  for (int i = 0; i < n; i++) {
    global_options o = {0};
    ended |= !strcmp(argv[i], "--");
    if (!ended && !strcmp(argv[i], "--color"))
      o.colour = g_strdup(++i < n ? argv[i] : "");
    else if (!ended && g_str_has_prefix(argv[i], "--color="))
      o.colour = g_strdup(argv[i] + strlen("--color="));
    else
      argv[kept++] = argv[i];
    if (o.colour && good && !apply_global(cli, &o)) {
      *exit_code = cli_usage(cli, verb, "--color takes auto, always or never", *o.colour ? o.colour : NULL, NULL);
      good = FALSE;
    }
    global_options_clear(&o);
  }
  *argc = kept;
  return good;
}

char *cli_global_help(void)
{
  global_options o = {0};
  const GOptionEntry globals[] = GLOBAL_ENTRIES(o);
  GString *text = g_string_new(NULL);
  for (const GOptionEntry *entry = globals; entry->long_name; entry++) {
    g_autofree char *name = g_strdup_printf("--%s%s%s", entry->long_name, entry->arg_description ? " " : "",
                                            entry->arg_description ? entry->arg_description : "");
    g_string_append_printf(text, "  %-22s %s\n", name, entry->description);
  }
  return g_string_free(text, FALSE);
}
