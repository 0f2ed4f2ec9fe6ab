/* cli.h - what the verbs of the `ordo` command share: global options, printing, exit codes.
 *
 * A verb is one file with one function `cli_VERB(cli, argc, argv)` that returns an exit code. Verbs never call exit and print
 * errors only through report.c, so that each has the same shape: code, what, where, why, next.
 */
#ifndef ORDO_CLI_H
#define ORDO_CLI_H

#include <glib.h>
#include <ordo/context.h>
#include <ordo/plan.h>

/* Exit codes of the command, the same for every verb. */
enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_CONFLICT = 3, CLI_REFUSED = 4 };

typedef struct ordo_cli {
  char *plugin_path;       /* --plugin-path, several joined with ':'; null if not given */
  gboolean allow_insecure; /* --allow-insecure-dir */
  gboolean colour_out;     /* colour on standard output */
  gboolean colour_error;   /* colour on standard error */
  ordo_context *context;   /* made by cli_context at its first call */
} ordo_cli;

typedef struct cli_verb {
  const char *name;
  const char *arguments; /* "NAME|FILE [--json]" */
  const char *summary;
  int (*run)(ordo_cli *cli, int argc, char **argv); /* argv[0] is the verb; null: a program of its own (launch.c) */
  const char *note;                                 /* a sentence below the options, or null */
} cli_verb;

/* What planning does not look at. */
#define CLI_NOTE_OPTIONS                                                                                    \
  "No code of a plugin runs: whether values of its options contradict each other is checked in the set-up " \
  "of a run, or before one by `ordo plan --estimate`."

/* All verbs, ends with a null name. */
const cli_verb *cli_verbs(void);
const cli_verb *cli_find_verb(const char *name);

/* options.c */
/* Parses the options of one verb together with the global ones. `entries` may be null. On success *words gets the words that are
 * no options (free with g_strfreev) and TRUE is returned. On FALSE the caller returns *exit_code: usage error, or --help was printed. */
gboolean cli_parse(ordo_cli *cli, const char *verb, const GOptionEntry *entries, int argc, char **argv, guint min_words, guint max_words,
                   char ***words, int *exit_code);
/* The global options that stand before the verb; argc and argv are moved past them. */
gboolean cli_parse_global(ordo_cli *cli, int *argc, char ***argv, gboolean *help, int *exit_code);
/* For a verb that is a program of its own: takes `--color WHEN` out of argv, up to `--`. FALSE: *exit_code says why. */
gboolean cli_take_colour(ordo_cli *cli, const char *verb, int *argc, char **argv, int *exit_code);
/* Help text of the global options. */
char *cli_global_help(void);

/* report.c */
/* The context, with the search path of the global options. Null after printing why not. */
ordo_context *cli_context(ordo_cli *cli);
/* Prints one error; null or empty parts are left out. */
void cli_error(const ordo_cli *cli, const char *code, const char *what, const char *where, const char *why, const char *next);
/* Prints a usage error with the command to read on; returns CLI_USAGE. */
int cli_usage(const ordo_cli *cli, const char *verb, const char *what, const char *why, const char *next);
/* Prints all records of the context and returns the exit code for `status`. */
int cli_fail(const ordo_cli *cli, ordo_status status);
int cli_exit_code(ordo_status status);
/* Writes text to standard output, a line end added if it lacks one. */
void cli_print(const char *text);
/* `"key": "text"`, with a comma before it unless it is the first member. */
void cli_json_member(GString *json, const char *key, const char *text);
/* Escape sequences, empty without colour. */
const char *cli_style(gboolean colour, const char *name);

/* manifest_json.c: after the first member of an object */
/* `"aliases": [{"name", "options"}]` */
void cli_json_aliases(GString *json, const ordo_plugin_info *info);
/* `"key": [{"name", "condition"}]` for the manifest lines `key` that hold names: flags, steps. */
void cli_json_declared(GString *json, const char *key, const ordo_plugin_info *info);
/* The '=' that ends the key of a manifest line: one inside the brackets of a condition does not. Null if there is none. */
const char *cli_manifest_equals(const char *line);

/* plan_options.c: what plan, why and why-not have in common */
enum { CLI_RANKS_NOT_GIVEN = G_MININT };
typedef struct cli_plan_options {
  char *strategy, *precision, *default_strategy;
  int ranks; /* CLI_RANKS_NOT_GIVEN: the fewest that the expression allows */
  gboolean resume, eval;
} cli_plan_options;
#define CLI_PLAN_ENTRIES(O)                                                                                                       \
  {"strategy", 's', 0, G_OPTION_ARG_STRING, &(O).strategy, "strategy expression: ddp, tp=2+fsdp2, ddp:hook=bf16", "E"},           \
      {"precision", 'p', 0, G_OPTION_ARG_STRING, &(O).precision, "precision plugin: apex_amp:O2", "E"},                           \
      {"ranks", 'n', 0, G_OPTION_ARG_INT, &(O).ranks, "world size (default: the fewest that the strategy allows)", "N"},          \
      {"world", 0, 0, G_OPTION_ARG_INT, &(O).ranks, "the same as --ranks", "N"},                                                  \
      {"default-strategy", 0, 0, G_OPTION_ARG_STRING, &(O).default_strategy, "added when no strategy takes the data ranks", "E"}, \
      {"resume", 0, 0, G_OPTION_ARG_NONE, &(O).resume, "a session that restores a checkpoint", NULL},                             \
  {                                                                                                                               \
    "eval", 0, 0, G_OPTION_ARG_NONE, &(O).eval, "a session that only evaluates", NULL                                             \
  }
#define CLI_PLAN_OPTIONS_NONE ((cli_plan_options){.ranks = CLI_RANKS_NOT_GIVEN})
void cli_plan_options_clear(cli_plan_options *options);
/* Makes the plan for `verb`. Returns null after printing errors and setting *exit_code; a plan with a conflict is returned with *exit_code
 * CLI_CONFLICT and nothing printed. */
ordo_plan *cli_plan_make(ordo_cli *cli, const char *verb, const cli_plan_options *options, int *exit_code);

/* launch.c */
/* `ordo VERB` for a program of its own: prepares the environment and becomes it, or runs it on several ranks. */
int cli_launch(ordo_cli *cli, const char *verb, int argc, char **argv);
/* `ordo plan --estimate`: becomes ordo-estimate, on one core whatever --ranks says. */
int cli_launch_estimate(ordo_cli *cli, int argc, char **argv);
/* Path of the program of a verb, null if it is not installed. */
char *cli_program(const char *verb);
/* Where programs of verbs are looked for. */
const char *cli_libexec(void);
/* Sets the variables of the BLAS library before a program that links it is started, unless they are set. Returns what was set. */
char *cli_prepare_blas(void);

/* mpi_run.c */
/* Cores that this process may use, at least 1. */
int cli_usable_cores(void);
/* Runs `command` on `ranks` ranks of this machine under mpirun and stays its parent. Returns the exit code. */
int cli_mpi_run(ordo_cli *cli, int ranks, const char *const *command);

/* mpi_noise.c */
typedef struct cli_noise cli_noise; /* takes the messages of mpirun out of the error stream of the ranks */
cli_noise *cli_noise_new(int output);
void cli_noise_free(cli_noise *noise);
void cli_noise_feed(cli_noise *noise, const char *bytes, gsize length);
/* The stream is quiet: what is held back is written, a paragraph that may still be closed after several pauses only. */
void cli_noise_pause(cli_noise *noise);
/* Paragraphs between lines of dashes that were passed on, because they say nothing about a rank. */
int cli_noise_unknown(const cli_noise *noise);
/* Everything held back is written, for the end of the stream. */
void cli_noise_flush(cli_noise *noise);
/* What mpirun said about the end: rank -1 and signal 0 if nothing, exit_code -1 if nothing. */
gboolean cli_noise_rank_spoke(const cli_noise *noise); /* an error of the house went through */
void cli_noise_verdict(const cli_noise *noise, int *rank, int *signal_number, int *exit_code);

/* mpi_verdict.c */
/* Exit code for mpirun's wait status and what its messages said; prints the error unless a rank has. `interrupted`: signal that was
 * forwarded, 0 if none. */
int cli_mpi_verdict(const ordo_cli *cli, const cli_noise *noise, int ranks, int interrupted, int status);

/* elf_exports.c */
/* Number of functions that an executable offers to the libraries it loads, -1 if the file is no ELF file of this machine. The name of
 * the first goes to *example (free with g_free). */
int cli_elf_exports(const char *path, char **example);

int cli_list(ordo_cli *cli, int argc, char **argv);
int cli_inspect(ordo_cli *cli, int argc, char **argv);
int cli_plan(ordo_cli *cli, int argc, char **argv);
int cli_why(ordo_cli *cli, int argc, char **argv);
int cli_why_not(ordo_cli *cli, int argc, char **argv);
int cli_matrix(ordo_cli *cli, int argc, char **argv);
int cli_doctor(ordo_cli *cli, int argc, char **argv);
int cli_explain(ordo_cli *cli, int argc, char **argv);
int cli_version(ordo_cli *cli, int argc, char **argv);
int cli_help(ordo_cli *cli, int argc, char **argv);

#endif
