/* low_reference.h - forward and backward of a Llama in plain loops and double, rounding where llama.h says that the model rounds.
 *
 * What it is not: fast, or related to the model's code. Weights come as the values that storage holds; gradients come out before they are
 * rounded to storage. With every type fp32 nothing is rounded at all, which makes it a reference of the fp32 model as well. */
#ifndef LOW_REFERENCE_H
#define LOW_REFERENCE_H

#include "llama.h"

struct low_policy {
  ordo_dtype matmul, norm, softmax, rope, elementwise, embedding;
};

struct low_reference {
  const struct llama_config *config;
  struct low_policy policy;
  const float *const *weight; /* per param; a tied head has the embedding's pointer */
  double **grad;              /* per param, written; a tied head's is added to the embedding's */
  int64_t batch, seq;
  const int32_t *ids, *targets;
  double loss_sum;
};

/* x rounded to the type, by way of fp32 as every container is. */
double low_round(ordo_dtype dtype, double x);
/* Fills grad and loss_sum; `factor` as in llama_backward. */
void low_reference_run(struct low_reference *reference, double factor);

#endif
