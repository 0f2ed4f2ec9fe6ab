/* usage.h - what a session used, as members of a JSON object: memory by tag, communication by axis and kind. */
#ifndef ORDO_TRAINER_USAGE_H
#define ORDO_TRAINER_USAGE_H

#include <glib.h>
#include <ordo/session.h>

/* "weights" for ORDO_MEM_WEIGHTS and so on. */
const char *ordo_memory_tag_name(uint32_t tag);
/* Appends `,"peak_bytes":{"weights":...,"total":...}`: total is the peak of the sum, not the sum of the peaks. */
void ordo_usage_memory(GString *object, const ordo_session *session);
/* Appends `,"comm":{"AXIS":{"KIND":{"calls":...,"bytes":...}}}`, every axis of the mesh, and "world" unless it is the only axis; payload as
 * ordo_comm_stats counts it, since the session was made. */
void ordo_usage_comm(GString *object, const ordo_session *session);

#endif
