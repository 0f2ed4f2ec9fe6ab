/* problems.c - see problems.h.
 *
 * One printer serves both lists, so that an error of the trainer and one of the host look the same on the terminal. A record is
 * printed with a single write: the lines of several failing ranks do not mix.
 */
#include "problems.h"

#include <string.h>

static void problem_free(gpointer data)
{
  ordo_problem *problem = data;
  g_free(problem->code);
  g_free(problem->what);
  g_free(problem->where);
  g_free(problem->why);
  g_free(problem->next);
  g_free(problem);
}

void ordo_problems_init(ordo_problems *problems)
{
  problems->records = g_ptr_array_new_with_free_func(problem_free);
}

void ordo_problems_clear(ordo_problems *problems)
{
  g_clear_pointer(&problems->records, g_ptr_array_unref);
}

size_t ordo_problems_count(const ordo_problems *problems)
{
  return problems->records->len;
}

const ordo_problem *ordo_problems_at(const ordo_problems *problems, size_t index)
{
  return index < problems->records->len ? g_ptr_array_index(problems->records, index) : NULL;
}

ordo_status ordo_problems_push(ordo_problems *problems, ordo_status status, const char *code, const char *where, const char *why,
                               const char *next, const char *what, ...)
{
  ordo_problem *problem = g_new0(ordo_problem, 1);
  va_list args;
  va_start(args, what);
  problem->status = status;
  problem->code = g_strdup(code);
  problem->what = g_strdup_vprintf(what, args);
  problem->where = g_strdup(where ? where : "");
  problem->why = g_strdup(why ? why : "");
  problem->next = g_strdup(next ? next : "");
  va_end(args);
  g_ptr_array_add(problems->records, problem);
  return status;
}

ordo_status ordo_problems_push_errno(ordo_problems *problems, const char *verb, const char *path, int error)
{
  return ordo_problems_push(problems, ORDO_E_IO, "E-FILE-IO", path, g_strerror(error),
                            "check that the path exists, its permissions, and the free space", "cannot %s %s", verb, path);
}

ordo_status ordo_problems_to_context(const ordo_problems *problems, ordo_context *context, ordo_status status)
{
  for (guint i = 0; i < problems->records->len; i++) {
    const ordo_problem *p = g_ptr_array_index(problems->records, i);
    ordo_fail(context, p->status, p->code, p->what, p->where, p->why, p->next);
  }
  return status;
}

static void append_field(GString *text, const char *label, const char *value)
{
  if (!value || !*value)
    return;
  g_string_append_printf(text, "  %-6s ", label);
  for (; *value; value++) {
    g_string_append_c(text, *value);
    if (*value == '\n')
      g_string_append(text, "         ");
  }
  g_string_append_c(text, '\n');
}

static void print_record(FILE *out, int rank, const char *code, const char *what, const char *where, const char *why, const char *next)
{
  gboolean colour = g_strcmp0(g_getenv("ORDO_COLOUR_ERRORS"), "1") == 0; /* set by the command, which sees the terminal */
  g_autoptr(GString) text = g_string_new(colour ? "\033[1;31merror\033[0m " : "error ");
  g_string_append_printf(text, "%s: %s", code, what);
  if (rank >= 0)
    g_string_append_printf(text, " (rank %d)", rank);
  g_string_append_c(text, '\n');
  append_field(text, "where", where);
  append_field(text, "why", why);
  append_field(text, "next", next);
  fwrite(text->str, 1, text->len, out);
  fflush(out);
}

void ordo_problems_print(const ordo_problems *problems, FILE *out)
{
  for (guint i = 0; i < problems->records->len; i++) {
    const ordo_problem *p = g_ptr_array_index(problems->records, i);
    print_record(out, -1, p->code, p->what, p->where, p->why, p->next);
  }
}

void ordo_context_print_errors(const ordo_context *context, FILE *out)
{
  for (size_t i = 0; i < ordo_n_errors(context); i++) {
    const ordo_error *e = ordo_error_at(context, i);
    print_record(out, e->rank, e->code, e->what, e->where, e->why, e->next);
  }
}

int ordo_exit_code(ordo_status status)
{
  switch (status) {
  case ORDO_OK:
    return 0;
  case ORDO_E_INVALID:
  case ORDO_E_NOT_FOUND:
  case ORDO_E_UNSUPPORTED:
    return 2;
  case ORDO_E_CONFLICT:
    return 3;
  case ORDO_E_REFUSED:
    return 4;
  default:
    return 1;
  }
}
