/* loss.c - see loss.h. loss = log(sum of exp(l - max)) + max - l[target];  d/dl = softmax - onehot(target). */
#include "loss.h"

#include <math.h>
#include <string.h>

void loss_forward(const struct kernels *kernels, int64_t rows, int64_t vocab, float *logits, const int32_t *targets, float *sums,
                  float *nll, struct loss_totals *totals)
{
  for (int64_t r = 0; r < rows; r++) {
    float *row = logits + r * vocab;
    int counted = targets[r] != LOSS_IGNORED;
    double at_target = counted ? (double)row[targets[r]] : 0.0;
    double loss = 0.0;
    float max = 0.0f;
    sums[r] = 1.0f;
    if (counted) {
      sums[r] = kernels->exp_sum((size_t)vocab, row, &max);
      loss = log((double)sums[r]) + (double)max - at_target;
      totals->sum += loss;
      totals->count++;
    }
    if (nll != NULL)
      nll[r] = (float)loss;
  }
}

void loss_backward(const struct kernels *kernels, int64_t rows, int64_t vocab, float *logits, const int32_t *targets, const float *sums,
                   float factor)
{
  for (int64_t r = 0; r < rows; r++) {
    float *row = logits + r * vocab;
    if (targets[r] == LOSS_IGNORED) {
      memset(row, 0, (size_t)vocab * sizeof *row);
      continue;
    }
    kernels->scale((size_t)vocab, factor / sums[r], row);
    row[targets[r]] -= factor;
  }
}
