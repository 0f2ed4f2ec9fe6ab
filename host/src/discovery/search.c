/* search.c - the search path: which directories, in which order, and why one is left out.
 *
 * It opens no plugin. The order is that of context.h: --plugin-path, ORDO_PLUGIN_PATH, the user directory, the installed directory.
 *
 * The idea: nothing is searched that nobody named, and nothing is left out without a line in the report. The current directory is
 * never searched by itself: an empty entry ("a::b", a trailing ':') is ignored, not read as "." as a shell would, and a relative
 * entry counts only where a person has just typed it (--plugin-path). In a privileged process (AT_SECURE, which unlike a comparison
 * of user ids also sees file capabilities) the environment and the home directory belong to somebody with fewer rights: ignored.
 */
#include "search.h"

#include <errno.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>

#define SOURCE_OPTION "--plugin-path"
#define SOURCE_ENVIRONMENT "ORDO_PLUGIN_PATH"
#define SOURCE_USER "user directory"
#define SOURCE_INSTALLED "installed"

ordo_search_environment ordo_search_environment_current(void)
{
  ordo_search_environment environment = {
      .privileged = getauxval(AT_SECURE) != 0,
      .plugin_path = g_getenv("ORDO_PLUGIN_PATH"),
      .data_home = g_getenv("XDG_DATA_HOME"),
      .home = g_getenv("HOME"),
      .installed = ORDO_PLUGINDIR,
  };
  return environment;
}

static void place_free(gpointer data)
{
  ordo_search_place *place = data;
  g_free(place->path);
  g_free(place->note);
  g_free(place);
}

static ordo_search_place *add_place(GPtrArray *places, const char *source, const char *path, const char *note)
{
  ordo_search_place *place = g_new0(ordo_search_place, 1);
  place->source = source;
  place->path = g_strdup(path);
  place->note = g_strdup(note);
  g_ptr_array_add(places, place);
  return place;
}

/* The earlier place that is the same directory or file under any name. */
static const ordo_search_place *same_place(const GPtrArray *places, const struct stat *status)
{
  struct stat other;
  for (guint i = 0; i < places->len; i++) {
    const ordo_search_place *place = g_ptr_array_index(places, i);
    if (!place->note && stat(place->path, &other) == 0 && other.st_ino == status->st_ino && other.st_dev == status->st_dev)
      return place;
  }
  return NULL;
}

/* Adds an absolute path. `asked`: somebody named it, so that its absence is worth a warning. */
static void add_path(GPtrArray *places, const char *source, const char *path, gboolean asked, ordo_errors *errors)
{
  struct stat status;
  int failed = stat(path, &status) != 0 ? errno : 0;
  const ordo_search_place *same = failed ? NULL : same_place(places, &status);
  g_autofree char *note = NULL;
  if (failed == ENOENT)
    note = g_strdup("left out: it does not exist");
  else if (failed)
    note = g_strdup_printf("left out: %s", g_strerror(failed));
  else if (same)
    note = g_strdup_printf("left out: the same place comes first from %s", same->source);
  ordo_search_place *place = add_place(places, source, path, note);
  place->is_file = !failed && !S_ISDIR(status.st_mode);
  if (failed && asked)
    ordo_errors_push(errors, ORDO_OK, "E-PLUGIN-PATH", path, g_strerror(failed),
                     "correct the path; `ordo doctor` shows all places searched", "a place of %s cannot be searched", source);
}

static void add_entry(GPtrArray *places, const char *source, const char *entry, gboolean allow_relative, ordo_errors *errors)
{
  if (*entry == '\0') {
    add_place(places, source, "", "left out: an empty entry does not mean the current directory");
    return;
  }
  if (g_path_is_absolute(entry)) {
    add_path(places, source, entry, TRUE, errors);
    return;
  }
  if (!allow_relative) {
    add_place(places, source, entry, "left out: only absolute paths count here");
    ordo_errors_push(errors, ORDO_OK, "E-PLUGIN-PATH", entry, "a relative path would depend on where the program is started",
                     "write the absolute path", "an entry of %s is left out", source);
    return;
  }
  g_autofree char *absolute = g_canonicalize_filename(entry, NULL);
  add_path(places, source, absolute, TRUE, errors);
}

static void add_list(GPtrArray *places, const char *source, const char *list, gboolean allow_relative, ordo_errors *errors)
{
  g_auto(GStrv) entries = g_strsplit(list, ":", -1);
  for (guint i = 0; entries[i]; i++)
    add_entry(places, source, entries[i], allow_relative, errors);
}

static void add_user(GPtrArray *places, const ordo_search_environment *environment, ordo_errors *errors)
{
  const char *data_home = environment->data_home, *home = environment->home;
  if (data_home && g_path_is_absolute(data_home)) {
    g_autofree char *path = g_build_filename(data_home, "ordo", "plugins", NULL);
    add_path(places, SOURCE_USER, path, FALSE, errors);
  } else if (home && g_path_is_absolute(home)) {
    g_autofree char *path = g_build_filename(home, ".local", "share", "ordo", "plugins", NULL);
    add_path(places, SOURCE_USER, path, FALSE, errors);
  } else {
    add_place(places, SOURCE_USER, "", "left out: neither XDG_DATA_HOME nor HOME is an absolute path");
  }
}

GPtrArray *ordo_search_places(const ordo_registry_options *options, const ordo_search_environment *environment, ordo_errors *errors)
{
  GPtrArray *places = g_ptr_array_new_with_free_func(place_free);
  const char *barred = NULL;
  if (options->plugin_path && *options->plugin_path)
    add_list(places, SOURCE_OPTION, options->plugin_path, TRUE, errors);
  if (options->flags & ORDO_CONTEXT_NO_DEFAULT_PATH)
    barred = "left out: the program searches its own path only";
  else if (environment->privileged)
    barred = "left out: the process has rights that its environment has not (AT_SECURE)";
  else if (options->flags & ORDO_CONTEXT_NO_ENVIRONMENT)
    barred = "left out: the program ignores environment and home";
  if (barred) {
    add_place(places, SOURCE_ENVIRONMENT, "", barred);
    add_place(places, SOURCE_USER, "", barred);
  } else {
    if (environment->plugin_path && *environment->plugin_path)
      add_list(places, SOURCE_ENVIRONMENT, environment->plugin_path, FALSE, errors);
    else
      add_place(places, SOURCE_ENVIRONMENT, "", "not set");
    add_user(places, environment, errors);
  }
  if (options->flags & ORDO_CONTEXT_NO_DEFAULT_PATH)
    add_place(places, SOURCE_INSTALLED, environment->installed, barred);
  else
    add_path(places, SOURCE_INSTALLED, environment->installed, FALSE, errors);
  return places;
}

static gint compare_names(gconstpointer a, gconstpointer b)
{
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

GPtrArray *ordo_search_names(const char *directory, char **note)
{
  g_autoptr(GError) error = NULL;
  g_autoptr(GDir) dir = g_dir_open(directory, 0, &error);
  if (!dir) {
    *note = g_strdup_printf("cannot be read: %s", error->code == G_FILE_ERROR_ACCES ? "permission denied" : error->message);
    return NULL;
  }
  GPtrArray *names = g_ptr_array_new_with_free_func(g_free);
  const char *name;
  while ((name = g_dir_read_name(dir)))
    if (g_str_has_suffix(name, ".so"))
      g_ptr_array_add(names, g_strdup(name));
  /* The order of readdir differs between file systems, and so between the nodes of a job. */
  g_ptr_array_sort(names, compare_names);
  return names;
}

char *ordo_search_report(const GPtrArray *places)
{
  GString *text = g_string_new(NULL);
  for (guint i = 0; i < places->len; i++) {
    const ordo_search_place *place = g_ptr_array_index(places, i);
    g_string_append_printf(text, "%-17s %s%s", place->source, place->path, *place->path ? "  " : "");
    if (place->note) {
      g_string_append_printf(text, "%s\n", place->note);
      continue;
    }
    g_string_append_printf(text, "searched: %u file%s", place->n_files, place->n_files == 1 ? "" : "s");
    if (place->n_refused)
      g_string_append_printf(text, ", %u refused", place->n_refused);
    g_string_append_c(text, '\n');
  }
  return g_string_free(text, FALSE);
}
