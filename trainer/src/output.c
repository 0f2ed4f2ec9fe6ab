/* output.c - see output.h.
 *
 * Two runs in one directory would be a mixture: the metrics of one beside the model of the other, and the older metrics gone. So a
 * directory belongs to one run, and only a person's word (train.overwrite) gives it to another. Nothing but the files listed here is ever
 * removed; a symbolic link is removed, not what it leads to.
 */
#include "output.h"

#include "files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_DEFAULTS 10000 /* more runs in one place than anybody keeps */

/* What a run leaves, in the order in which it is removed. */
static const char *const left_behind[] = {"resolved.ini",  "summary.json",       "validation.jsonl",
                                          "metrics.jsonl", "model-before-error", "model"};

/* "metrics.jsonl, model", to be freed; null if there is nothing of a run. */
static char *run_in(const char *directory)
{
  g_autoptr(GString) names = g_string_new(NULL);
  for (size_t i = 0; i < G_N_ELEMENTS(left_behind); i++) {
    g_autofree char *path = g_build_filename(directory, left_behind[i], NULL);
    if (g_file_test(path, G_FILE_TEST_EXISTS) || g_file_test(path, G_FILE_TEST_IS_SYMLINK))
      g_string_append_printf(names, "%s%s", names->len ? ", " : "", left_behind[i]);
  }
  return names->len ? g_strdup(names->str) : NULL;
}

static ordo_status refuse(const char *directory, const char *names, ordo_problems *problems)
{
  g_autofree char *why = g_strdup_printf("it has %s of an earlier run; two runs in one directory would be mixed", names);
  return ordo_problems_push(problems, ORDO_E_INVALID, "E-TRAIN-OUTPUT", directory, why,
                            "choose another --train.output, or give --train.overwrite to remove the earlier run first",
                            "the output directory belongs to another run");
}

/* Is what `key` names inside the directory? Then removing the earlier run would remove what the new one reads. */
static gboolean inside(const ordo_config *config, ordo_key key, const char *directory)
{
  g_autofree char *named = g_canonicalize_filename(ordo_config_string(config, key), NULL),
                  *outer = g_canonicalize_filename(directory, NULL);
  char *real_named = realpath(named, NULL), *real_outer = realpath(outer, NULL);
  gboolean yes = *ordo_config_string(config, key) && real_named && real_outer && g_str_has_prefix(real_named, real_outer) &&
                 strchr("/", real_named[strlen(real_outer)]);
  free(real_named);
  free(real_outer);
  return yes;
}

static ordo_status remove_run(const ordo_config *config, const char *directory, ordo_problems *problems)
{
  static const ordo_key read[] = {ORDO_KEY_model_path, ORDO_KEY_data_tokenizer};
  for (size_t i = 0; i < G_N_ELEMENTS(read); i++)
    if (inside(config, read[i], directory))
      return ordo_problems_push(problems, ORDO_E_INVALID, "E-TRAIN-OUTPUT", directory,
                                "it would be removed, and nothing could be put in its place if the new run failed",
                                "choose another --train.output", "%s is part of the run that would be overwritten",
                                ordo_config_name(read[i]));
  for (size_t i = 0; i < G_N_ELEMENTS(left_behind); i++) {
    g_autofree char *path = g_build_filename(directory, left_behind[i], NULL);
    if (g_file_test(path, G_FILE_TEST_IS_DIR) && !g_file_test(path, G_FILE_TEST_IS_SYMLINK))
      ordo_directory_remove(path);
    else
      unlink(path);
    if (g_file_test(path, G_FILE_TEST_EXISTS) || g_file_test(path, G_FILE_TEST_IS_SYMLINK))
      return ordo_problems_push_errno(problems, "remove", path, errno);
  }
  return ORDO_OK;
}

/* The first default name that has no run. */
static ordo_status choose(ordo_config *config, ordo_problems *problems)
{
  const char *first = ordo_config_string(config, ORDO_KEY_train_output);
  for (int n = 2; n <= MOST_DEFAULTS; n++) {
    g_autofree char *name = g_strdup_printf("%s-%d", first, n), *names = run_in(name);
    if (!names)
      return ordo_config_set(config, ORDO_KEY_train_output, name, "the default, with the next free number", problems);
  }
  g_autofree char *names = run_in(first);
  return refuse(first, names, problems);
}

ordo_status ordo_output_take(ordo_config *config, ordo_problems *problems)
{
  const char *directory = ordo_config_string(config, ORDO_KEY_train_output);
  g_autofree char *names = *directory ? run_in(directory) : NULL;
  ordo_status status = ORDO_OK;
  if (names && ordo_config_bool(config, ORDO_KEY_train_overwrite))
    status = remove_run(config, directory, problems);
  else if (names && !ordo_config_is_set(config, ORDO_KEY_train_output))
    status = choose(config, problems);
  else if (names)
    status = refuse(directory, names, problems);
  directory = ordo_config_string(config, ORDO_KEY_train_output);
  if (status != ORDO_OK || !*directory)
    return status;
  g_autofree char *path = g_build_filename(directory, "resolved.ini", NULL), *resolved = ordo_config_resolved(config);
  status = ordo_directory_make(directory, problems);
  return status == ORDO_OK ? ordo_file_replace(path, resolved, strlen(resolved), problems) : status;
}
