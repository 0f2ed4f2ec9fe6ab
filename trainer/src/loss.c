/* loss.c - see loss.h. loss = log(sum of exp(l - max)) + max - l[target];  d/dl = softmax - onehot(target). */
#include "loss.h"

#include <math.h>
#include <string.h>

#include "kernels_low.h"

/* Row of logits, rounded -> exponentials; returns their sum. */
static float exponentials(const struct kernels *kernels, ordo_dtype dtype, int64_t vocab, float *row, float *max)
{
  const struct kernels_rounded *rounded = kernels_rounded(kernels, dtype);
  return rounded != NULL ? rounded->exp_sum((size_t)vocab, row, max) : kernels->exp_sum((size_t)vocab, row, max);
}

void loss_forward(const struct kernels *kernels, ordo_dtype dtype, int64_t rows, int64_t vocab, float *logits, const int32_t *targets,
                  float *sums, float *nll, struct loss_totals *totals)
{
  for (int64_t r = 0; r < rows; r++) {
    float *row = logits + r * vocab;
    int counted = targets[r] != LOSS_IGNORED;
    double loss = 0.0;
    float max = 0.0f;
    sums[r] = 1.0f;
    if (counted) {
      kernels_round(kernels, dtype, 1, &row[targets[r]]);
      double at_target = (double)row[targets[r]];
      sums[r] = exponentials(kernels, dtype, vocab, row, &max);
      loss = log((double)sums[r]) + (double)max - at_target;
      totals->sum += loss;
      totals->count++;
    }
    if (nll != NULL)
      nll[r] = (float)loss;
  }
}

/* Of a target in these columns its place, else -1. */
static int64_t own_column(const struct loss_part *part, int64_t row)
{
  int64_t column = part->targets[row] - part->vocab_first;
  return part->targets[row] != LOSS_IGNORED && column >= 0 && column < part->vocab ? column : -1;
}

void loss_part_maxima(const struct kernels *kernels, const struct loss_part *part)
{
  for (int64_t r = 0; r < part->rows; r++) {
    float *row = part->logits + r * part->vocab;
    int64_t column = own_column(part, r);
    float *pair = part->pairs + 2 * r;
    part->own_max[r] = 0.0f;
    pair[0] = pair[1] = 0.0f;
    if (part->targets[r] != LOSS_IGNORED) {
      pair[1] = column < 0 ? 0.0f : row[column];
      pair[0] = kernels->exp_sum((size_t)part->vocab, row, &part->own_max[r]);
    }
    part->max[r] = part->own_max[r];
  }
}

void loss_part_pairs(const struct loss_part *part)
{
  for (int64_t r = 0; r < part->rows; r++) {
    float *pair = part->pairs + 2 * r;
    pair[0] *= expf(part->own_max[r] - part->max[r]);
    pair[1] = own_column(part, r) < 0 ? 0.0f : pair[1] - part->max[r];
  }
}

/* The row holds exp(logit - own_max), so its share of the softmax is that over sum * exp(max - own_max). */
void loss_part_finish(const struct loss_part *part, float *sums, float *nll, struct loss_totals *totals)
{
  for (int64_t r = 0; r < part->rows; r++) {
    const float *pair = part->pairs + 2 * r;
    int counted = part->targets[r] != LOSS_IGNORED;
    double loss = counted ? log((double)pair[0]) - (double)pair[1] : 0.0;
    sums[r] = counted ? pair[0] * expf(part->max[r] - part->own_max[r]) : 1.0f;
    totals->sum += loss;
    totals->count += counted;
    if (nll != NULL)
      nll[r] = (float)loss;
  }
}

void loss_again(const struct kernels *kernels, ordo_dtype dtype, int64_t rows, int64_t vocab, float *logits, const int32_t *targets)
{
  float max;
  for (int64_t r = 0; r < rows; r++)
    if (targets[r] != LOSS_IGNORED)
      (void)exponentials(kernels, dtype, vocab, logits + r * vocab, &max);
}

void loss_backward(const struct kernels *kernels, ordo_dtype dtype, int64_t rows, int64_t vocab, int64_t vocab_first, float *logits,
                   const int32_t *targets, const float *sums, float factor)
{
  const struct kernels_rounded *rounded = kernels_rounded(kernels, dtype);
  for (int64_t r = 0; r < rows; r++) {
    float *row = logits + r * vocab, at_target = 0.0f;
    int64_t column = targets[r] - vocab_first;
    int here = column >= 0 && column < vocab;
    if (targets[r] == LOSS_IGNORED) {
      memset(row, 0, (size_t)vocab * sizeof *row);
      continue;
    }
    if (here) { /* apart, since it is rounded after the subtraction only */
      at_target = row[column];
      kernels->scale(1, factor / sums[r], &at_target);
      at_target -= factor;
      kernels_round(kernels, dtype, 1, &at_target);
    }
    if (rounded != NULL)
      rounded->scale((size_t)vocab, factor / sums[r], row);
    else
      kernels->scale((size_t)vocab, factor / sums[r], row);
    if (here)
      row[column] = at_target;
  }
}
