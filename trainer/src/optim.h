/* optim.h - AdamW, SGD and learning-rate schedules on plain arrays.
 *
 * What it is not: it knows no leaves, groups or files; the owner of the optimizer calls it once per leaf. Each update is one
 * fused pass that also applies grad_factor, so that clipping costs no pass of its own.
 *
 * The update rules are those of PyTorch's AdamW (decoupled decay, bias correction of both moments, eps outside the root) and of
 * its SGD with momentum, without dampening and Nesterov. Gradients are read only.
 */
#ifndef OPTIM_H
#define OPTIM_H

#include <stddef.h>
#include <stdint.h>

struct kernels;

struct adamw_options {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay; /* 0 for parameters without decay */
};
/* Step `step` (1 for the first) of n elements: g = grad * grad_factor; w *= 1 - lr * weight_decay; m = beta1 m + (1-beta1) g;
 * v = beta2 v + (1-beta2) g^2; w -= lr / (1-beta1^step) * m / (sqrt(v) / sqrt(1-beta2^step) + eps). m and v start as zeros.
 * Source: Loshchilov and Hutter, "Decoupled weight decay regularization", algorithm 2. [step] since 0.1 */
void adamw_step(const struct kernels *kernels, size_t n, float *weight, const float *grad, float *m, float *v,
                const struct adamw_options *options, int64_t step, double grad_factor);

struct sgd_options {
  double lr;
  double momentum;
};
/* u = grad * grad_factor at step 1, later u = momentum u + grad * grad_factor; w -= lr u. `velocity` may be null if momentum is 0
 * and need not be cleared before step 1. [step] since 0.1 */
void sgd_step(const struct kernels *kernels, size_t n, float *weight, const float *grad, float *velocity, const struct sgd_options *options,
              int64_t step, double grad_factor);

enum { SCHEDULE_CONSTANT = 0, SCHEDULE_LINEAR = 1, SCHEDULE_COSINE = 2 };
struct schedule {
  int kind;
  double peak;           /* learning rate at the end of the warm-up */
  double floor_fraction; /* of the peak, reached at total_steps */
  int64_t warmup_steps;
  int64_t total_steps;
};
/* Rate of step t = 1, 2, ...: peak t / W while t <= W; then constant: peak; linear: floor + (peak-floor)(1 - r); cosine:
 * floor + (peak-floor)(1 + cos(pi r)) / 2 with r = (t-W)/(N-W); the floor after N. All in double. [any] since 0.1 */
double schedule_rate(const struct schedule *schedule, int64_t step);

#endif
