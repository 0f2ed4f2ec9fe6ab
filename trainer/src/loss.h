/* loss.h - cross entropy on rows of logits, in place: logits become exponentials in forward and the gradient in backward, so that
 * a [tokens, vocab] array exists once at most. */
#ifndef LOSS_H
#define LOSS_H

#include <stdint.h>

#include "kernels.h"

enum { LOSS_IGNORED = -100 };

struct loss_totals {
  double sum;    /* of the losses of counted targets */
  int64_t count; /* counted targets */
};

/* logits [rows, vocab] -> exp(logit - max); sums[r] = sum of them. nll [rows] may be null. Adds to totals. Targets are in range. */
void loss_forward(const struct kernels *kernels, int64_t rows, int64_t vocab, float *logits, const int32_t *targets, float *sums,
                  float *nll, struct loss_totals *totals);
/* What loss_forward left in logits -> factor * d(sum of losses) / d(logits). Rows without a counted target become 0. */
void loss_backward(const struct kernels *kernels, int64_t rows, int64_t vocab, float *logits, const int32_t *targets, const float *sums,
                   float factor);

#endif
