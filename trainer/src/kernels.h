/* kernels.h - elementwise and row kernels, one table per instruction set.
 *
 * kernels_impl.c is compiled once per instruction set; kernels_for picks a table at run time. Arrays are fp32 unless they are named
 * after a 16-bit format, row-major, and need no alignment. Row sums are kept in fp32 partial sums of one vector per row, so results differ
 * between instruction sets in the last bits, not between runs.
 */
#ifndef KERNELS_H
#define KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "cpu_core.h"

struct kernels_adamw {
  float grad_factor, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, root_scale, eps;
};

/* Kernels that round to one 16-bit format as they go, to the bit what the kernel of that name in struct kernels does between roundings;
 * shapes as there. "in": rounded before it is used, and stored so unless said otherwise; "out": the result is rounded. */
struct kernels_rounded {
  void (*round_rows)(size_t rows, size_t columns, size_t stride, float *x); /* in place */
  void (*add)(size_t n, const float *x, float *delta, float *sum);          /* in: delta (may stay as it is) */
  void (*scale)(size_t n, float factor, float *x);                          /* out: x */
  void (*rms_forward)(size_t rows, size_t columns, const float *x, const float *weight, float eps, float *y, float *inv); /* out: y */
  /* in: delta (may stay as it is), out: y */
  void (*add_rms_forward)(size_t rows, size_t columns, const float *x, float *delta, float *sum, const float *weight, float eps, float *y,
                          float *inv);
  void (*rms_apply)(size_t rows, size_t columns, const float *x, const float *weight, const float *inv, float *y); /* out: y */
  /* in: dy */
  void (*rms_backward)(size_t rows, size_t columns, const float *x, const float *weight, const float *inv, float *dy, float *dx,
                       float *dweight);
  void (*rope)(size_t heads, size_t half, const float *cosine, const float *sine, float sign, float *x); /* in and out: x */
  void (*swiglu_forward)(size_t n, float *gate, float *up, float *act);   /* in: gate, up; out: act, which is neither */
  void (*swiglu_backward)(size_t n, float *gate, float *up, float *grad); /* in: grad; out: all three */
  /* in: scores; out: probabilities */
  void (*softmax_causal)(size_t rows, size_t columns, size_t stride, size_t first, float scale, float *scores, float *lse);
  /* in: scores */
  void (*softmax_again)(size_t rows, size_t columns, size_t stride, size_t first, float scale, float *scores, const float *lse);
  /* in: dp; out: ds, computed from p as it comes, and p itself */
  void (*softmax_backward)(size_t rows, size_t columns, size_t stride, float scale, float *p, const float *delta, float *dp);
  float (*exp_sum)(size_t n, float *x, float *max); /* in: x */
};

struct kernels {
  const char *name; /* "portable", "avx2", "avx512" */
  /* y[i] = e^x[i], within 2 ulp for results that are normal numbers; smaller results are 0, x above
   * 88.37 counts as 88.37, NaN stays NaN. In place is fine. */
  void (*exp_array)(size_t n, const float *x, float *y);
  void (*add)(size_t n, const float *x, const float *y, float *sum); /* sum = x + y; sum may be x or y */
  void (*scale)(size_t n, float factor, float *x);                   /* x *= factor */

  /* y = x * inv * weight with inv = 1/sqrt(mean(x^2) + eps); inv [rows] is kept for backward. x, y [rows, columns]. */
  void (*rms_forward)(size_t rows, size_t columns, const float *x, const float *weight, float eps, float *y, float *inv);
  /* sum = x + delta (sum may be x), then as rms_forward on the sum: the residual and the norm after it in one pass. */
  void (*add_rms_forward)(size_t rows, size_t columns, const float *x, const float *delta, float *sum, const float *weight, float eps,
                          float *y, float *inv);
  /* y = x * inv * weight: the output again. */
  void (*rms_apply)(size_t rows, size_t columns, const float *x, const float *weight, const float *inv, float *y);
  /* dx += d/dx, dweight += d/dweight (dweight may be null), from dy. */
  void (*rms_backward)(size_t rows, size_t columns, const float *x, const float *weight, const float *inv, const float *dy, float *dx,
                       float *dweight);

  /* Rotates the pairs (i, i + half) of `heads` heads of one token: x [heads, 2 half], cosine and sine [half]. sign -1: back. */
  void (*rope)(size_t heads, size_t half, const float *cosine, const float *sine, float sign, float *x);

  /* act = silu(gate) * up over n elements; act may be up or gate. */
  void (*swiglu_forward)(size_t n, const float *gate, const float *up, float *act);
  /* In place: gate, up -> their gradients; grad (of act) -> act computed again. */
  void (*swiglu_backward)(size_t n, float *gate, float *up, float *grad);

  /* Rows of raw scores [rows, stride]: row r covers columns 0 .. first + r; p = softmax(scale * s), the rest up to `columns` is 0.
   * lse[r] = log of the sum of exp(scale * s). */
  void (*softmax_causal)(size_t rows, size_t columns, size_t stride, size_t first, float scale, float *scores, float *lse);
  /* The same probabilities from scores and lse. */
  void (*softmax_again)(size_t rows, size_t columns, size_t stride, size_t first, float scale, float *scores, const float *lse);
  /* dp -> ds = p * (dp - delta[r]) * scale, in place; p = 0 gives 0. */
  void (*softmax_backward)(size_t rows, size_t columns, size_t stride, float scale, const float *p, const float *delta, float *dp);
  /* out[r] = sum over columns of a * b, rows with their own strides. */
  void (*row_dot)(size_t rows, size_t columns, const float *a, size_t stride_a, const float *b, size_t stride_b, float *out);

  /* x -> exp(x - max) in place; returns their sum, *max the maximum of x. */
  float (*exp_sum)(size_t n, float *x, float *max);

  void (*adamw)(size_t n, float *w, const float *g, float *m, float *v, const struct kernels_adamw *c);
  /* u = momentum * u + factor * g (first: u = factor * g), w -= lr * u; u may be null. */
  void (*sgd)(size_t n, float *w, const float *g, float *u, float factor, float momentum, float lr, int first);

  /* Conversions, with the bits of ordo/half.h in every table: nearest even, subnormals kept. The arrays do not overlap. */
  void (*f32_from_bf16)(size_t n, const uint16_t *from, float *to);
  void (*f32_from_f16)(size_t n, const uint16_t *from, float *to);
  void (*bf16_from_f32)(size_t n, const float *from, uint16_t *to);
  void (*f16_from_f32)(size_t n, const float *from, uint16_t *to);
  /* There and back: fp32 values that the format has. `to` may be `from`. */
  void (*round_bf16)(size_t n, const float *from, float *to);
  void (*round_f16)(size_t n, const float *from, float *to);

  const struct kernels_rounded *bf16, *f16;
};

/* The table for an instruction set the processor has; null if this build has none for it. [any] since 0.1 */
const struct kernels *kernels_for(enum cpu_isa isa);
/* kernels_for(cpu_core_isa_wanted()), or the best this build has. Never null. [any] since 0.1 */
const struct kernels *kernels_default(void);

#endif
