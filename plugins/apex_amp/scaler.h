/* scaler.h - one loss scale over time: apex's LossScaler and PyTorch's GradScaler, exactly. Arithmetic only.
 *
 *   apex    overflow: scale / 2, not below `min`; clean steps count up; at `window` of them scale * 2, not above `max`, and the count
 *           starts again (apex/amp/scaler.py)
 *   torch   the same with growth and backoff factors, no floor and no cap (torch/cuda/amp/grad_scaler.py)
 *
 * What both lack is an end: gradients that overflow at every scale halve it for ever. Here `patience` skipped steps in a row at the
 * lowest scale (`min`, or 1 if there is none) are a failure.
 */
#ifndef APEX_AMP_SCALER_H
#define APEX_AMP_SCALER_H

#include <stdint.h>

typedef struct amp_scaler {
  int dynamic; /* 0: the scale never changes and nothing is skipped */
  double scale;
  double growth, backoff;
  double min; /* 0: none */
  double max; /* infinite: none */
  int64_t window;
  int64_t counter;  /* clean steps since the last change */
  int64_t patience; /* skipped steps in a row at the lowest scale */
  int64_t stuck;    /* of them so far */
} amp_scaler;

/* The step is over. 1 if the scaler gives up, else 0. */
int amp_scaler_update(amp_scaler *scaler, int overflow);
/* The scale at which an overflow is counted as being stuck. */
double amp_scaler_lowest(const amp_scaler *scaler);

#endif
