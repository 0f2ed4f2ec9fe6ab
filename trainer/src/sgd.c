/* sgd.c - SGD with momentum, one fused pass (kernels.h). The first step takes the gradient as velocity instead of reading an
 * array that nobody has cleared. */
#include "optim.h"

#include "kernels.h"

void sgd_step(const struct kernels *kernels, size_t n, float *weight, const float *grad, float *velocity, const struct sgd_options *options,
              int64_t step, double grad_factor)
{
  float *u = options->momentum == 0.0 ? NULL : velocity;
  kernels->sgd(n, weight, grad, u, (float)grad_factor, (float)options->momentum, (float)options->lr, step == 1);
}
