/* probe.h - one file becomes one record of the registry (private). */
#ifndef ORDO_PRIVATE_PROBE_H
#define ORDO_PRIVATE_PROBE_H

#include "registry.h"

typedef struct ordo_probe {
  ordo_found found; /* first, so that the registry hands out &probe->found */
  char *real_path;
  char *build_id;
  guint place; /* position of its place in the search path: the smaller wins between equals */
  gboolean static_tls;
  const char *code; /* of the error when it is refused: E-PLUGIN-ELF, -TRUST, -ABI, -REFUSED or E-MANIFEST; static */
} ordo_probe;

/* Reads the note of the file at an absolute path and judges file and owner; never fails: what cannot be used is a record in state
 * REFUSED with its reason. `source` is kept, not copied. */
ordo_probe *ordo_probe_file(const char *path, const char *source, uint32_t context_flags);
void ordo_probe_free(gpointer probe);
/* Changes state and reason. Takes the text over. */
void ordo_probe_set_state(ordo_probe *probe, uint32_t state, char *reason);

#endif
