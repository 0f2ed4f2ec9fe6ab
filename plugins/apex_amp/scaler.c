/* scaler.c - see scaler.h. */
#include "scaler.h"

#include <float.h>

double amp_scaler_lowest(const amp_scaler *scaler)
{
  return scaler->min > 0.0 ? scaler->min : 1.0;
}

static void shrink(amp_scaler *scaler)
{
  scaler->scale *= scaler->backoff;
  if (scaler->scale < scaler->min)
    scaler->scale = scaler->min;
  scaler->counter = 0;
}

static void grow(amp_scaler *scaler)
{
  double grown = scaler->scale * scaler->growth;
  scaler->counter = 0;
  if (grown > scaler->max)
    grown = scaler->max;
  if (grown <= FLT_MAX) /* torch keeps the scale as a float, and does not let it leave the range */
    scaler->scale = grown;
}

int amp_scaler_update(amp_scaler *scaler, int overflow)
{
  if (!scaler->dynamic) {
    scaler->counter++;
    return 0;
  }
  if (overflow) {
    scaler->stuck = scaler->scale <= amp_scaler_lowest(scaler) ? scaler->stuck + 1 : 0;
    shrink(scaler);
    return scaler->stuck >= scaler->patience;
  }
  scaler->stuck = 0;
  if (++scaler->counter == scaler->window)
    grow(scaler);
  return 0;
}
