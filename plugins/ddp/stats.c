/* stats.c - overlap statistics. See stats.h for the definitions.
 *
 * A collective on one node is work of this CPU: what start and progress take is taken from computing, so it counts as exposed as
 * waiting does. The communicator knows that time, whoever called it; a number that only looked at the final wait would call
 * a blocking start, or a wait inside the vote, perfectly overlapped.
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

static double busy_seconds(const ordo_job *job)
{
  const ordo_comm *comm = job->axis->comm;
  ordo_comm_stats totals = {.struct_size = sizeof totals};
  comm->stats(comm->ctx, &totals);
  return totals.busy_seconds;
}

void ddp_stats_comm_begin(ddp_stats *stats)
{
  if (!stats->due || stats->comm_begin >= 0.0)
    return;
  stats->comm_begin = stats->job->now(stats->job->ctx);
  stats->busy_begin = busy_seconds(stats->job);
}

void ddp_stats_comm_end(ddp_stats *stats)
{
  if (!stats->due || stats->comm_begin < 0.0)
    return;
  stats->comm_end = stats->job->now(stats->job->ctx);
  stats->exposed = busy_seconds(stats->job) - stats->busy_begin;
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
