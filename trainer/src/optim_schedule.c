/* optim_schedule.c - learning rate of a step. A pure function of the step number, so that resuming needs no state. The
 * numbering convention (steps from 1, peak exactly at W, floor exactly at N) is one of several in use; see optim.h. */
#include "optim.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

double schedule_rate(const struct schedule *schedule, int64_t step)
{
  double peak = schedule->peak;
  if (step <= schedule->warmup_steps)
    return peak * (double)step / (double)schedule->warmup_steps;
  if (schedule->kind == SCHEDULE_CONSTANT)
    return peak;
  double floor_rate = peak * schedule->floor_fraction;
  if (step >= schedule->total_steps)
    return floor_rate;
  double done = (double)(step - schedule->warmup_steps) / (double)(schedule->total_steps - schedule->warmup_steps);
  double left = schedule->kind == SCHEDULE_LINEAR ? 1.0 - done : 0.5 * (1.0 + cos(pi * done));
  return floor_rate + (peak - floor_rate) * left;
}
