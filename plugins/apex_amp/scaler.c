/* scaler.c - see scaler.h. */
#include "scaler.h"

double amp_scaler_lowest(const amp_scaler *scaler)
{
  return scaler->min > 0.0 ? scaler->min : 1.0;
}

static void shrink(amp_scaler *scaler)
{
  scaler->scale *= scaler->backoff;
  if (scaler->scale < scaler->min)
    scaler->scale = scaler->min;
  if (scaler->scale < AMP_SCALE_LEAST)
    scaler->scale = AMP_SCALE_LEAST;
  scaler->counter = 0;
}

static void grow(amp_scaler *scaler)
{
  double grown = scaler->scale * scaler->growth;
  scaler->counter = 0;
  if (grown > scaler->max)
    grown = scaler->max;
  if (grown <= AMP_SCALE_MOST) /* torch keeps the scale as a float, and does not let it leave the range either */
    scaler->scale = grown;
}

static int64_t one_more(int64_t count)
{
  return count < INT64_MAX ? count + 1 : count;
}

int amp_scaler_update(amp_scaler *scaler, int overflow)
{
  if (!scaler->dynamic) {
    scaler->counter = one_more(scaler->counter);
    return 0;
  }
  if (overflow) {
    const int helpless = scaler->scale <= amp_scaler_lowest(scaler) || scaler->skipped >= AMP_DESCENT;
    scaler->skipped = one_more(scaler->skipped);
    scaler->stuck = helpless ? one_more(scaler->stuck) : 0;
    shrink(scaler);
    return scaler->stuck >= scaler->patience;
  }
  scaler->stuck = 0;
  scaler->skipped = 0;
  scaler->counter = one_more(scaler->counter);
  if (scaler->counter >= scaler->window) /* a restored count may belong to a longer window */
    grow(scaler);
  return 0;
}
