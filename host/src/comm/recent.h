/* recent.h - ring of the last collectives of a provider, for reports after a mismatch or a timeout (private). */
#ifndef ORDO_PRIVATE_RECENT_H
#define ORDO_PRIVATE_RECENT_H

#include <glib.h>
#include <ordo/comm.h>

enum { ORDO_RECENT_SIZE = 256 };
enum { ORDO_RECENT_FREE, ORDO_RECENT_STARTED, ORDO_RECENT_DONE, ORDO_RECENT_FAILED };

typedef struct ordo_recent_entry {
  uint64_t id; /* 1 for the first collective of the provider */
  uint32_t kind, op, dtype, state;
  int64_t count;
  char comm[24]; /* copied: the communicator or the label may be gone when the report is made */
  char label[40];
} ordo_recent_entry;

typedef struct ordo_recent {
  uint64_t last_id;
  ordo_recent_entry entries[ORDO_RECENT_SIZE];
} ordo_recent;

/* Notes a started collective and returns its id. */
uint64_t ordo_recent_add(ordo_recent *recent, const char *comm, const ordo_collective *c);
/* No effect when the entry was overwritten. */
void ordo_recent_mark(ordo_recent *recent, uint64_t id, uint32_t state);
/* One line a collective, oldest first. Free with g_free. */
char *ordo_recent_report(const ordo_recent *recent);

#endif
