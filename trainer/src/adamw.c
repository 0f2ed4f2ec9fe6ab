/* adamw.c - scalars of an AdamW step in double, then one fused pass (kernels.h). The factors of a step are rounded to fp32
 * once; computing 1 - beta^t in fp32 would lose half of its digits at the first steps. */
#include "optim.h"

#include <math.h>

#include "kernels.h"

void adamw_step(const struct kernels *kernels, size_t n, float *weight, const float *grad, float *m, float *v,
                const struct adamw_options *options, int64_t step, double grad_factor)
{
  double t = (double)step;
  struct kernels_adamw constants = {
      .grad_factor = (float)grad_factor,
      .decay = (float)(1.0 - options->lr * options->weight_decay),
      .beta1 = (float)options->beta1,
      .one_minus_beta1 = (float)(1.0 - options->beta1),
      .beta2 = (float)options->beta2,
      .one_minus_beta2 = (float)(1.0 - options->beta2),
      .step_size = (float)(options->lr / (1.0 - pow(options->beta1, t))),
      .root_scale = (float)(1.0 / sqrt(1.0 - pow(options->beta2, t))),
      .eps = (float)options->eps,
  };
  kernels->adamw(n, weight, grad, m, v, &constants);
}
