/* timeline.h - memory of a session over time: a CSV line at each edge of an activity, bytes by tag as the session counts them.
 *
 * It shows how many units' parameters and gradients exist at the same time, which a peak alone does not.
 */
#ifndef ORDO_TRAINER_TIMELINE_H
#define ORDO_TRAINER_TIMELINE_H

#include "embed.h"
#include "problems.h"

typedef struct ordo_timeline ordo_timeline;

/* Rank 0 writes `path`, rank N `path`.rankN. Columns: step, activity, unit, edge (begin, open, close, end), one per memory tag, total, peak
 * (of the total so far). The first `steps` steps are written (0: all). Errors: IO. */
ordo_status ordo_timeline_open(const char *path, int rank, int64_t steps, ordo_problems *problems, ordo_timeline **timeline);
void ordo_timeline_activity(ordo_timeline *timeline, const ordo_session *session, ordo_activity activity, const char *unit, ordo_edge edge);
/* Null is fine. Errors: IO, if the file is incomplete. */
ordo_status ordo_timeline_close(ordo_timeline *timeline, ordo_problems *problems);

#endif
