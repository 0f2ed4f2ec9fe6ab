/* registry.h - plugins found, by name (private). */
#ifndef ORDO_PRIVATE_REGISTRY_H
#define ORDO_PRIVATE_REGISTRY_H

#include "../plan/manifest.h"

typedef struct ordo_found {
  ordo_plugin_info info;   /* what ordo_context_plugin hands out; strings owned by this struct */
  ordo_manifest *manifest; /* null if the note could not be read */
  guint64 device, inode;   /* of the file when it was read, compared again after dlopen */
  guint64 size, mtime_ns;
} ordo_found;

typedef struct ordo_registry ordo_registry; /* owns ordo_found records; sorted by id, version descending, path */

typedef struct ordo_registry_options {
  const char *plugin_path;
  uint32_t flags; /* ORDO_CONTEXT_ */
} ordo_registry_options;

/* What is odd but no error (a place that cannot be read, duplicates, ambiguous aliases) is pushed with status ORDO_OK. */
ordo_registry *ordo_registry_scan(const ordo_registry_options *options, ordo_errors *errors);
void ordo_registry_free(ordo_registry *registry);
/* ORDO_CONTEXT_ flags as they count in this process (a privileged one is never insecure); for ordo_loader_open. */
uint32_t ordo_registry_flags(const ordo_registry *registry);
/* The search path that the program gave, null if none: a command that is to be repeated needs it. */
const char *ordo_registry_given_path(const ordo_registry *registry);
size_t ordo_registry_count(const ordo_registry *registry);
const ordo_found *ordo_registry_at(const ordo_registry *registry, size_t index);
/* By exact id, alias, `id@version` or path; *preset gets the alias's preset text ("" if none), owned by the registry. */
ordo_status ordo_registry_find(ordo_registry *registry, const char *name, uint32_t kind /* 0: any */, const ordo_found **found,
                               const char **preset, ordo_errors *errors);
char *ordo_registry_search_report(const ordo_registry *registry);

#endif
