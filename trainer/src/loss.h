/* loss.h - cross entropy on rows of logits, in place: logits become exponentials in forward and the gradient in backward, so that
 * a [tokens, vocab] array exists once at most. */
#ifndef LOSS_H
#define LOSS_H

#include <ordo/dtype.h>
#include <stdint.h>

#include "kernels.h"

enum { LOSS_IGNORED = -100 };

struct loss_totals {
  double sum;    /* of the losses of counted targets */
  int64_t count; /* counted targets */
};

/* logits [rows, vocab], rounded to `dtype` (fp32: not) -> exp(logit - max); sums[r] = sum of them. nll [rows] may be null. Adds to totals.
 * Targets are in range. */
void loss_forward(const struct kernels *kernels, ordo_dtype dtype, int64_t rows, int64_t vocab, float *logits, const int32_t *targets,
                  float *sums, float *nll, struct loss_totals *totals);
/* The same where this process has some columns of the logits: maxima and sums go over all parts in between. */
struct loss_part {
  int64_t vocab_first; /* of the columns here */
  int64_t vocab;
  int64_t rows;
  float *logits; /* [rows, vocab] */
  const int32_t *targets;
  float *own_max; /* [rows] over these columns */
  float *max;     /* [rows] becomes the maximum over all parts */
  float *pairs;   /* [rows, 2] becomes sums over all parts: of exp(logit - max), of the target's logit - max */
};
/* logits -> exp(logit - own_max). Then the parts' largest `max` must be taken. */
void loss_part_maxima(const struct kernels *kernels, const struct loss_part *part);
/* Fills this part's share of `pairs`, which must then be summed over the parts. */
void loss_part_pairs(const struct loss_part *part);
/* sums, nll and totals as loss_forward leaves them, on every part. */
void loss_part_finish(const struct loss_part *part, float *sums, float *nll, struct loss_totals *totals);
/* logits -> what loss_forward or loss_part_maxima left there; the sums are known. */
void loss_again(const struct kernels *kernels, ordo_dtype dtype, int64_t rows, int64_t vocab, float *logits, const int32_t *targets);
/* What loss_forward left in logits -> factor * d(sum of losses) / d(logits). Rows without a counted target become 0. Column 0 is
 * vocab_first. The result is rounded to `dtype`. */
void loss_backward(const struct kernels *kernels, ordo_dtype dtype, int64_t rows, int64_t vocab, int64_t vocab_first, float *logits,
                   const int32_t *targets, const float *sums, float factor);

#endif
