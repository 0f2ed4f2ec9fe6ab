/* spawn.c - reading cases and running the command. */
#include "golden.h"

#include "json_text.h"

#include <string.h>
#include <sys/wait.h>

JsonObject *golden_read(const char *root, const char *relative, char **why)
{
  g_autofree char *path = g_build_filename(root, relative, NULL), *text = NULL;
  g_autoptr(GError) error = NULL;
  gsize length = 0;
  *why = NULL;
  if (!g_file_get_contents(path, &text, &length, &error)) {
    *why = g_strdup(error->message);
    return NULL;
  }
  g_autoptr(JsonNode) node = ordo_json_object(text, length, why);
  return node ? json_node_dup_object(node) : NULL;
}

void golden_word(GPtrArray *words, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  g_ptr_array_add(words, g_strdup_vprintf(format, args));
  va_end(args);
}

char *golden_run(const golden_options *options, golden_worst *worst, const char *verb, int ranks, const char *const *words)
{
  g_autoptr(GPtrArray) argv = g_ptr_array_new_with_free_func(g_free);
  g_autoptr(GError) error = NULL;
  g_autofree char *errors = NULL;
  char *output = NULL;
  int status = 0;
  g_ptr_array_add(argv, g_strdup(options->ordo));
  g_ptr_array_add(argv, g_strdup(verb));
  if (ranks > 1)
    golden_word(argv, "--ranks=%d", ranks);
  if (ranks > 1 && options->strategy)
    golden_word(argv, "--strategy=%s", options->strategy);
  for (; *words; words++)
    g_ptr_array_add(argv, g_strdup(*words));
  g_ptr_array_add(argv, NULL);
  if (!g_spawn_sync(NULL, (char **)argv->pdata, NULL, G_SPAWN_SEARCH_PATH, NULL, NULL, &output, &errors, &status, &error)) {
    golden_fail(worst, "%s cannot be started: %s", options->ordo, error->message);
    return NULL;
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    golden_fail(worst, "ordo %s ended with %s %d: %.600s", verb, WIFEXITED(status) ? "exit code" : "signal",
                WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), errors ? errors : "");
    g_clear_pointer(&output, g_free);
  }
  return output;
}
