/* trace.h - a trace of a run for chrome://tracing and Perfetto: one JSON file a rank, on the machine's monotonic clock, so that the files
 * of the ranks of one machine can be laid over each other.
 *
 * Spans ("X") of steps, of forward and backward of each unit, of the step's end and of the optimizer in it; asynchronous pairs ("b",
 * "e") of each collective from start to the end of its wait; a counter ("C") of collectives and bytes started, at each span's begin.
 */
#ifndef ORDO_TRAINER_TRACE_H
#define ORDO_TRAINER_TRACE_H

#include "comm_tap.h"
#include "embed.h"
#include "problems.h"

typedef struct ordo_trace ordo_trace;

/* Rank 0 writes `path`, rank N `path`.rankN. The trace has the first `steps` steps and ends there (0: all). Errors: IO. */
ordo_status ordo_trace_open(const char *path, int rank, int64_t steps, ordo_problems *problems, ordo_trace **trace);
/* What the provider's collectives are to be shown to. Its ctx is the trace. */
ordo_comm_observer ordo_trace_observer(ordo_trace *trace);
/* An edge of an activity. A span reaches from BEGIN to END; spans nest. */
void ordo_trace_activity(ordo_trace *trace, ordo_activity activity, const char *unit, ordo_edge edge);
/* Null is fine. Errors: IO, if the file is incomplete. */
ordo_status ordo_trace_close(ordo_trace *trace, ordo_problems *problems);

#endif
