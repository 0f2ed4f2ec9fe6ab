/* scaler.h - one loss scale over time: apex's LossScaler and PyTorch's GradScaler, exactly. Arithmetic only.
 *
 *   apex    overflow: scale / 2, not below `min`; clean steps count up; at `window` of them scale * 2, not above `max`, and the count
 *           starts again (apex/amp/scaler.py)
 *   torch   the same with growth and backoff factors, no floor and no cap (torch/cuda/amp/grad_scaler.py)
 *
 * What both lack is an end: gradients that overflow at every scale halve it for ever. Here `patience` skipped steps in a row that a lower
 * scale could not have helped are a failure: those at the lowest scale (`min`, or 1 if there is none; below 1 it was not the scale), and
 * those after AMP_DESCENT in a row, in which every allowed backoff factor has come down from the first scale to 1.
 *
 * A scale stays between AMP_SCALE_LEAST and AMP_SCALE_MOST: losses and gradients are multiplied by it and by its inverse in fp32, and both
 * have to be numbers there.
 */
#ifndef APEX_AMP_SCALER_H
#define APEX_AMP_SCALER_H

#include <stdint.h>

#define AMP_SCALE_LEAST 0x1p-100
#define AMP_SCALE_MOST 0x1p126
enum { AMP_DESCENT = 128 };

typedef struct amp_scaler {
  int dynamic; /* 0: the scale never changes and nothing is skipped */
  double scale;
  double growth, backoff;
  double min; /* 0: none */
  double max; /* infinite: none */
  int64_t window;
  int64_t counter;  /* clean steps since the last change */
  int64_t patience; /* skipped steps in a row that no lower scale helps */
  int64_t stuck;    /* of them so far */
  int64_t skipped;  /* skipped steps in a row, helped or not */
} amp_scaler;

/* The step is over. 1 if the scaler gives up, else 0. */
int amp_scaler_update(amp_scaler *scaler, int overflow);
/* The scale at which an overflow is counted as being stuck. */
double amp_scaler_lowest(const amp_scaler *scaler);

#endif
