/* command.c - see command.h. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "command.h"

#include <json-glib/json-glib.h>
#include <string.h>
#include <sys/wait.h>

outcome *command_run(const char *line)
{
  outcome *o = g_new0(outcome, 1);
  g_auto(GStrv) words = g_strsplit(line, " ", -1);
  g_auto(GStrv) environment = g_get_environ();
  g_autoptr(GPtrArray) args = g_ptr_array_new();
  g_autoptr(GError) error = NULL;
  int status = 0, i = 0;
  gint64 start = g_get_monotonic_time();

  for (const char *const *name = (const char *const[]){"NO_COLOR", "ORDO_PLUGIN_PATH", "ORDO_LIBEXEC", "OPENBLAS_CORETYPE",
                                                       "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", NULL};
       *name; name++)
    environment = g_environ_unsetenv(environment, *name);
  environment = g_environ_setenv(environment, "HOME", "/nonexistent", TRUE);
  environment = g_environ_setenv(environment, "TERM", "xterm", TRUE);
  for (; words[i] && strchr(words[i], '=') && *words[i] != '-'; i++) {
    char *equals = strchr(words[i], '=');
    *equals = '\0';
    environment = g_environ_setenv(environment, words[i], equals + 1, TRUE);
  }
  g_ptr_array_add(args, (gpointer)g_getenv("ORDO_TEST_COMMAND"));
  for (; words[i]; i++)
    if (*words[i])
      g_ptr_array_add(args, words[i]);
  g_ptr_array_add(args, NULL);
  if (!g_spawn_sync(NULL, (char **)args->pdata, environment, G_SPAWN_DEFAULT, NULL, NULL, &o->out, &o->err, &status, &error))
    fail_msg("%s: %s", line, error->message);
  o->seconds = (double)(g_get_monotonic_time() - start) / 1e6;
  o->code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  o->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  return o;
}

void outcome_free(outcome *o)
{
  g_free(o->out);
  g_free(o->err);
  g_free(o);
}

static void complain(const char *line, const outcome *o, const char *what)
{
  fail_msg("ordo %s: %s\nexit code %d, signal %d\n--- output\n%s\n--- errors\n%s", line, what, o->code, o->signal, o->out, o->err);
}

void command_expect(const char *line, int code, const char *out, const char *err)
{
  g_autoptr(outcome) o = command_run(line);
  if (o->code != code)
    complain(line, o, "another exit code was expected");
  if (out && !strstr(o->out, out))
    complain(line, o, out);
  if (err && !strstr(o->err, err))
    complain(line, o, err);
  if (code == 0 && o->err[0] && !err)
    complain(line, o, "nothing was expected on standard error");
  if (code != 0 && code != 3 && !o->err[0])
    complain(line, o, "an error without a word");
}

void command_expect_json(const char *line, int code)
{
  g_autoptr(outcome) o = command_run(line);
  g_autoptr(JsonParser) parser = json_parser_new();
  g_autoptr(GError) error = NULL;
  if (o->code != code)
    complain(line, o, "another exit code was expected");
  if (!json_parser_load_from_data(parser, o->out, -1, &error))
    complain(line, o, error->message);
  if (!json_parser_get_root(parser))
    complain(line, o, "no JSON value");
}
