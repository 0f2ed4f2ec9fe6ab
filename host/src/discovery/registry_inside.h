/* registry_inside.h - the inside of the registry, for registry.c (who is in) and find.c (who is meant), and tests (private). */
#ifndef ORDO_PRIVATE_REGISTRY_INSIDE_H
#define ORDO_PRIVATE_REGISTRY_INSIDE_H

#include "probe.h"
#include "search.h"

struct ordo_registry {
  uint32_t flags;     /* ORDO_CONTEXT_, as they count in this process */
  char *given_path;   /* plugin_path of the options, null if none */
  GPtrArray *probes;  /* ordo_probe, sorted by id, version descending, path */
  GPtrArray *by_path; /* ordo_probe, asked for by a path outside the search path */
  GPtrArray *places;  /* ordo_search_place */
  GPtrArray *remarks; /* char*: what the scan found odd, for the report */
};

/* ordo_registry_scan with a given environment. */
ordo_registry *ordo_registry_scan_in(const ordo_registry_options *options, const ordo_search_environment *environment, ordo_errors *errors);

#endif
