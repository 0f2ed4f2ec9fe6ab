/* stats.c - overlap statistics. See stats.h for the definitions.
 *
 * A collective on one node is work of this CPU, so time inside `start` counts as exposed, as waiting does; a number that only
 * looked at the final wait would call a blocking start perfectly overlapped.
 */
#include "stats.h"

enum { FIRST_STEPS = 10 };

void ddp_stats_begin_step(ddp_stats *stats)
{
  stats->due = stats->interval > 0 && (stats->steps < FIRST_STEPS || stats->steps % stats->interval == 0);
  stats->steps++;
  stats->backward_begin = stats->comm_begin = -1.0;
  stats->backward_end = stats->comm_end = stats->exposed = 0.0;
}

void ddp_stats_backward_begin(ddp_stats *stats)
{
  if (stats->due && stats->backward_begin < 0.0)
    stats->backward_begin = stats->job->now(stats->job->ctx);
}

void ddp_stats_backward_end(ddp_stats *stats)
{
  if (stats->due)
    stats->backward_end = stats->job->now(stats->job->ctx);
}

double ddp_stats_enter(ddp_stats *stats)
{
  if (!stats->due)
    return 0.0;
  double now = stats->job->now(stats->job->ctx);
  if (stats->comm_begin < 0.0)
    stats->comm_begin = now;
  return now;
}

void ddp_stats_leave(ddp_stats *stats, double entered)
{
  if (!stats->due)
    return;
  stats->comm_end = stats->job->now(stats->job->ctx);
  stats->exposed += stats->comm_end - entered;
}

void ddp_stats_report(ddp_stats *stats)
{
  if (!stats->due || stats->comm_begin < 0.0)
    return;
  const ordo_job *job = stats->job;
  double comm = stats->comm_end - stats->comm_begin;
  double overlap = comm > 0.0 ? 1.0 - stats->exposed / comm : 0.0;
  if (stats->backward_begin >= 0.0 && stats->backward_end >= stats->backward_begin)
    job->metric(job->ctx, "backward_seconds", stats->backward_end - stats->backward_begin);
  job->metric(job->ctx, "comm_seconds", comm);
  job->metric(job->ctx, "exposed_seconds", stats->exposed);
  job->metric(job->ctx, "overlap", overlap > 0.0 ? overlap : 0.0);
}
