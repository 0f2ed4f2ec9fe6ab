/* stats.h - how much of the communication was hidden behind backward.
 *
 *   backward   first pre_backward to the end of backward, last micro-batch of a step
 *   comm       first collective started to last collective finished
 *   exposed    of that, time this rank spent inside the communicator (start, progress, wait) instead of computing
 *   overlap    1 - exposed / comm
 * Reported for the first 10 steps and then every `interval` steps (10 and 100 are the numbers of PyTorch's DDP logging).
 */
#ifndef DDP_STATS_H
#define DDP_STATS_H

#include <ordo/job.h>

typedef struct ddp_stats {
  const ordo_job *job;
  int64_t interval;                                          /* 0: never */
  int64_t steps;                                             /* begun so far */
  int due;                                                   /* this step is measured */
  double backward_begin, backward_end, comm_begin, comm_end; /* seconds; begin < 0: not yet */
  double busy_begin, exposed;
} ddp_stats;

void ddp_stats_begin_step(ddp_stats *stats);
void ddp_stats_backward_begin(ddp_stats *stats);
void ddp_stats_backward_end(ddp_stats *stats);
/* Before each collective of the step is started; the first one counts. */
void ddp_stats_comm_begin(ddp_stats *stats);
/* After the last one was waited for. */
void ddp_stats_comm_end(ddp_stats *stats);
void ddp_stats_report(ddp_stats *stats);

#endif
