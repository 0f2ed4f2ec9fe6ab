/* problems.h - what went wrong, as a list of records, before and outside a context.
 *
 * The trainer reads files and options long before an ordo_context exists, so it keeps its own list with the fields of ordo_error
 * (what, where, why, next). A function that fails pushes at least one record and returns the status; a function that checks many
 * things pushes one record each, so that one run shows all findings. Inside an embedder callback the list is handed to ordo_fail.
 */
#ifndef ORDO_TRAINER_PROBLEMS_H
#define ORDO_TRAINER_PROBLEMS_H

#include <glib.h>
#include <ordo/context.h>
#include <stdio.h>

typedef struct ordo_problem {
  ordo_status status;
  char *code;
  char *what;
  char *where;
  char *why;
  char *next;
} ordo_problem;

typedef struct ordo_problems {
  GPtrArray *records; /* ordo_problem */
} ordo_problems;

void ordo_problems_init(ordo_problems *problems);
void ordo_problems_clear(ordo_problems *problems);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(ordo_problems, ordo_problems_clear)
size_t ordo_problems_count(const ordo_problems *problems);
/* Null past the end. */
const ordo_problem *ordo_problems_at(const ordo_problems *problems, size_t index);
/* Pushes a record and returns `status`. `where`, `why`, `next` may be null; they are copied. */
ordo_status ordo_problems_push(ordo_problems *problems, ordo_status status, const char *code, const char *where, const char *why,
                               const char *next, const char *what, ...) G_GNUC_PRINTF(7, 8);
/* Pushes "cannot VERB PATH" with the text of errno. */
ordo_status ordo_problems_push_errno(ordo_problems *problems, const char *verb, const char *path, int error);
/* Copies all records into the context (for embedder callbacks) and returns `status`. */
ordo_status ordo_problems_to_context(const ordo_problems *problems, ordo_context *context, ordo_status status);
/* Prints all records in the form of the command: "error CODE: what" and indented where, why, next. */
void ordo_problems_print(const ordo_problems *problems, FILE *out);
/* The same for the records of a context; `rank` is named when it is not negative. */
void ordo_context_print_errors(const ordo_context *context, FILE *out);
/* Exit code of the command for a status: 1 failed, 2 usage or configuration, 3 conflict, 4 refused. */
int ordo_exit_code(ordo_status status);

#endif
