/* search.h - where plugins are looked for (private). */
#ifndef ORDO_PRIVATE_SEARCH_H
#define ORDO_PRIVATE_SEARCH_H

#include "registry.h"

/* What the process has inherited, as a value, so that tests can be privileged. Strings are borrowed, null if unset. */
typedef struct ordo_search_environment {
  gboolean privileged; /* AT_SECURE: set-user-id, set-group-id or file capabilities */
  const char *plugin_path;
  const char *data_home;
  const char *home;
  const char *installed;
} ordo_search_environment;

typedef struct ordo_search_place {
  char *path;         /* absolute; empty for a source that is left out as a whole */
  const char *source; /* as in ordo_plugin_info; static */
  char *note;         /* why it is left out; null if it is searched */
  gboolean is_file;   /* named directly */
  guint n_files;      /* filled by the scan */
  guint n_refused;
} ordo_search_place;

/* Of this process. */
ordo_search_environment ordo_search_environment_current(void);
/* Places in order of precedence, with those that are left out. Warnings are pushed for what somebody asked for and does not get.
 * Returns an array of ordo_search_place. */
GPtrArray *ordo_search_places(const ordo_registry_options *options, const ordo_search_environment *environment, ordo_errors *errors);
/* Names in a directory that end in ".so", sorted by bytes; null with *note if it cannot be read. */
GPtrArray *ordo_search_names(const char *directory, char **note);
/* One line a place. */
char *ordo_search_report(const GPtrArray *places);

#endif
