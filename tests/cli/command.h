/* command.h - runs the built `ordo` command for the tests and keeps what it said. */
#ifndef ORDO_TEST_COMMAND_H
#define ORDO_TEST_COMMAND_H

#include <glib.h>

typedef struct outcome {
  int code;   /* exit code, -1 if ended by a signal */
  int signal; /* that ended it, 0 if none */
  char *out;
  char *err;
  double seconds;
} outcome;

/* Runs `ordo` (ORDO_TEST_COMMAND) with words separated by blanks, and `NAME=value` words first into its environment. HOME is an empty
 * directory, NO_COLOR, ORDO_PLUGIN_PATH and ORDO_LIBEXEC are as the words say. */
outcome *command_run(const char *line);
void outcome_free(outcome *o);
/* Runs `line` and fails the test with all output unless the exit code is `code` and both texts (null: any) are contained. */
void command_expect(const char *line, int code, const char *out, const char *err);
/* Like command_expect, and standard output must be one JSON value. */
void command_expect_json(const char *line, int code);

G_DEFINE_AUTOPTR_CLEANUP_FUNC(outcome, outcome_free)

#endif
