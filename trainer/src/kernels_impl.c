/* kernels_impl.c - the elementwise and row kernels, compiled once per instruction set with KERNELS_NAME set to it.
 *
 * Plain loops that the compiler vectorises: `omp simd` (no runtime needed) allows reordered sums in the loops marked with it
 * and nowhere else. What is slow here is memory, not arithmetic, so each kernel makes as few passes as the mathematics allows.
 */
#include "kernels.h"

#include <math.h>
#include <string.h>

#include "kernels_half_impl.h"

#define KERNELS_JOIN2(A, B) A##B
#define KERNELS_JOIN(A, B) KERNELS_JOIN2(A, B)
#define KERNELS_TEXT2(A) #A
#define KERNELS_TEXT(A) KERNELS_TEXT2(A)
#define KERNELS_TABLE KERNELS_JOIN(kernels_, KERNELS_NAME)

extern const struct kernels KERNELS_TABLE;

/* e^x. n = round(x / ln 2) by the add-a-large-number trick, r = x - n ln 2 in two steps (the first product is exact: 9 + 8 bits),
 * |r| <= 0.3466; Taylor to r^7, remainder r^8/8! < 5.3e-9; 2^n by building the exponent.
 * Error of the result, relative: last addition 2^-24, product r*q at most 0.42 * 2 * 2^-24 / 0.70, r 1.3e-8, remainder 7.5e-9:
 * together below 1.6e-7, that is 2 ulp at most. Results below the smallest normal number are 0; x above 88.37 counts as 88.37. */
static inline float exp_one(float x)
{
  const float low = -87.33654f;
  const float high = 88.37f;
  float c = x > high ? high : x;
  float shifted = c * 1.44269504f + 12582912.0f;
  float n = shifted - 12582912.0f;
  float r = (c - n * 0.693359375f) - n * -2.12194440e-4f;
  float q = 1.0f / 5040.0f;
  q = q * r + 1.0f / 720.0f;
  q = q * r + 1.0f / 120.0f;
  q = q * r + 1.0f / 24.0f;
  q = q * r + 1.0f / 6.0f;
  q = q * r + 0.5f;
  q = q * r + 1.0f;
  q = q * r + 1.0f;
  uint32_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  /* The low bits of `shifted` are n, from -126 to 127 between low and high. A product keeps NaN a NaN. */
  uint32_t power_bits = (bits + 127u) << 23;
  float power;
  memcpy(&power, &power_bits, sizeof power);
  return x < low ? 0.0f : q * power;
}

static void exp_array(size_t n, const float *x, float *y)
{
  for (size_t i = 0; i < n; i++)
    y[i] = exp_one(x[i]);
}

static void add(size_t n, const float *x, const float *y, float *sum)
{
#pragma omp simd
  for (size_t i = 0; i < n; i++)
    sum[i] = x[i] + y[i];
}

static void scale(size_t n, float factor, float *x)
{
  for (size_t i = 0; i < n; i++)
    x[i] *= factor;
}

static float rms_inverse(size_t columns, float sum, float eps)
{
  return 1.0f / sqrtf(sum / (float)columns + eps);
}

static void rms_apply_row(size_t columns, const float *restrict x, const float *restrict weight, float inv, float *restrict y)
{
  for (size_t i = 0; i < columns; i++)
    y[i] = x[i] * inv * weight[i];
}

static void rms_forward(size_t rows, size_t columns, const float *x, const float *weight, float eps, float *y, float *inv)
{
  for (size_t r = 0; r < rows; r++) {
    const float *xr = x + r * columns;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < columns; i++)
      sum += xr[i] * xr[i];
    inv[r] = rms_inverse(columns, sum, eps);
    rms_apply_row(columns, xr, weight, inv[r], y + r * columns);
  }
}

static void add_rms_forward(size_t rows, size_t columns, const float *x, const float *delta, float *sum, const float *weight, float eps,
                            float *y, float *inv)
{
  for (size_t r = 0; r < rows; r++) {
    const float *xr = x + r * columns;
    const float *dr = delta + r * columns;
    float *out = sum + r * columns;
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (size_t i = 0; i < columns; i++) {
      float value = xr[i] + dr[i];
      out[i] = value;
      squares += value * value;
    }
    inv[r] = rms_inverse(columns, squares, eps);
    rms_apply_row(columns, out, weight, inv[r], y + r * columns);
  }
}

static void rms_apply(size_t rows, size_t columns, const float *x, const float *weight, const float *inv, float *y)
{
  for (size_t r = 0; r < rows; r++)
    rms_apply_row(columns, x + r * columns, weight, inv[r], y + r * columns);
}

/* With y = x inv w and inv = (mean(x^2) + eps)^(-1/2):  dx = inv * (dy w - x * inv^2 * mean(dy w x)),  dw = sum over rows of dy x inv. */
static void rms_backward(size_t rows, size_t columns, const float *x, const float *weight, const float *inv, const float *dy, float *dx,
                         float *dweight)
{
  for (size_t r = 0; r < rows; r++) {
    const float *restrict xr = x + r * columns;
    const float *restrict gr = dy + r * columns;
    float *restrict out = dx + r * columns;
    const float *restrict w = weight;
    float scale_row = inv[r];
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (size_t i = 0; i < columns; i++)
      dot += gr[i] * w[i] * xr[i];
    float pull = dot * scale_row * scale_row / (float)columns;
    for (size_t i = 0; i < columns; i++)
      out[i] += scale_row * (gr[i] * w[i] - xr[i] * pull);
    if (dweight == NULL)
      continue;
    float *restrict dw = dweight;
    for (size_t i = 0; i < columns; i++)
      dw[i] += gr[i] * xr[i] * scale_row;
  }
}

static void rope(size_t heads, size_t half, const float *cosine, const float *sine, float sign, float *x)
{
  for (size_t h = 0; h < heads; h++) {
    float *restrict first = x + h * 2 * half;
    float *restrict second = first + half;
#pragma omp simd
    for (size_t i = 0; i < half; i++) {
      float a = first[i];
      float b = second[i];
      float s = sign * sine[i];
      first[i] = a * cosine[i] - b * s;
      second[i] = b * cosine[i] + a * s;
    }
  }
}

static void swiglu_forward(size_t n, const float *gate, const float *up, float *act)
{
#pragma omp simd
  for (size_t i = 0; i < n; i++)
    act[i] = gate[i] / (1.0f + exp_one(-gate[i])) * up[i];
}

/* silu'(z) = s (1 + z (1 - s)) with s = 1 / (1 + e^-z). */
static void swiglu_backward(size_t n, float *gate, float *up, float *grad)
{
#pragma omp simd
  for (size_t i = 0; i < n; i++) {
    float z = gate[i];
    float u = up[i];
    float g = grad[i];
    float s = 1.0f / (1.0f + exp_one(-z));
    float silu = z * s;
    grad[i] = silu * u;
    up[i] = g * silu;
    gate[i] = g * u * s * (1.0f + z * (1.0f - s));
  }
}

static size_t causal_length(size_t columns, size_t first, size_t row)
{
  size_t length = first + row + 1;
  return length < columns ? length : columns;
}

static float row_max(size_t n, const float *x)
{
  float max = -INFINITY;
#pragma omp simd reduction(max : max)
  for (size_t i = 0; i < n; i++)
    max = x[i] > max ? x[i] : max;
  return max;
}

static float exp_shifted(size_t n, float factor, float shift, float *x)
{
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (size_t i = 0; i < n; i++) {
    float e = exp_one(x[i] * factor - shift);
    x[i] = e;
    sum += e;
  }
  return sum;
}

static void softmax_causal(size_t rows, size_t columns, size_t stride, size_t first, float scale_factor, float *scores, float *lse)
{
  for (size_t r = 0; r < rows; r++) {
    float *s = scores + r * stride;
    size_t n = causal_length(columns, first, r);
    float shift = row_max(n, s) * scale_factor;
    float sum = exp_shifted(n, scale_factor, shift, s);
    scale(n, 1.0f / sum, s);
    memset(s + n, 0, (columns - n) * sizeof *s);
    lse[r] = shift + logf(sum);
  }
}

static void softmax_again(size_t rows, size_t columns, size_t stride, size_t first, float scale_factor, float *scores, const float *lse)
{
  for (size_t r = 0; r < rows; r++) {
    float *s = scores + r * stride;
    float shift = lse[r];
    size_t n = causal_length(columns, first, r);
    for (size_t i = 0; i < n; i++)
      s[i] = exp_one(s[i] * scale_factor - shift);
    memset(s + n, 0, (columns - n) * sizeof *s);
  }
}

static void softmax_backward(size_t rows, size_t columns, size_t stride, float scale_factor, const float *p, const float *delta, float *dp)
{
  for (size_t r = 0; r < rows; r++) {
    const float *restrict pr = p + r * stride;
    float *restrict dr = dp + r * stride;
    float d = delta[r];
    for (size_t i = 0; i < columns; i++)
      dr[i] = pr[i] * (dr[i] - d) * scale_factor;
  }
}

static void row_dot(size_t rows, size_t columns, const float *a, size_t stride_a, const float *b, size_t stride_b, float *out)
{
  for (size_t r = 0; r < rows; r++) {
    const float *x = a + r * stride_a;
    const float *y = b + r * stride_b;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < columns; i++)
      sum += x[i] * y[i];
    out[r] = sum;
  }
}

static float exp_sum(size_t n, float *x, float *max)
{
  *max = row_max(n, x);
  return exp_shifted(n, 1.0f, *max, x);
}

static void adamw(size_t n, float *restrict w, const float *restrict g, float *restrict m, float *restrict v, const struct kernels_adamw *c)
{
  const struct kernels_adamw k = *c;
#pragma omp simd
  for (size_t i = 0; i < n; i++) {
    float grad = g[i] * k.grad_factor;
    float mi = k.beta1 * m[i] + k.one_minus_beta1 * grad;
    float vi = k.beta2 * v[i] + k.one_minus_beta2 * grad * grad;
    m[i] = mi;
    v[i] = vi;
    w[i] = w[i] * k.decay - k.step_size * mi / (sqrtf(vi) * k.root_scale + k.eps);
  }
}

static void sgd(size_t n, float *restrict w, const float *restrict g, float *restrict u, float factor, float momentum, float lr, int first)
{
  if (u == NULL) {
    for (size_t i = 0; i < n; i++)
      w[i] -= lr * (factor * g[i]);
    return;
  }
  if (first) {
    for (size_t i = 0; i < n; i++) {
      u[i] = factor * g[i];
      w[i] -= lr * u[i];
    }
    return;
  }
  for (size_t i = 0; i < n; i++) {
    u[i] = momentum * u[i] + factor * g[i];
    w[i] -= lr * u[i];
  }
}

/* ---- the same, rounding as they go ---- */

#define ROUND(X) round_bf16_one(X)
#define ROUNDED(NAME) NAME##_bf16
#include "kernels_rounded_impl.h"
#undef ROUND
#undef ROUNDED

#if defined(__AVX512F__) || defined(__F16C__)
#include "kernels_rounded_f16c_impl.h"
#else
#define ROUND(X) round_f16_one(X)
#define ROUNDED(NAME) NAME##_f16
#include "kernels_rounded_impl.h"
#undef ROUND
#undef ROUNDED
#endif

#define ROUNDED_TABLE(FORMAT)                              \
  static const struct kernels_rounded kernels_##FORMAT = { \
      .round_rows = round_rows_##FORMAT,                   \
      .add = add_##FORMAT,                                 \
      .scale = scale_##FORMAT,                             \
      .rms_forward = rms_forward_##FORMAT,                 \
      .add_rms_forward = add_rms_forward_##FORMAT,         \
      .rms_apply = rms_apply_##FORMAT,                     \
      .rms_backward = rms_backward_##FORMAT,               \
      .rope = rope_##FORMAT,                               \
      .swiglu_forward = swiglu_forward_##FORMAT,           \
      .swiglu_backward = swiglu_backward_##FORMAT,         \
      .softmax_causal = softmax_causal_##FORMAT,           \
      .softmax_again = softmax_again_##FORMAT,             \
      .softmax_backward = softmax_backward_##FORMAT,       \
      .exp_sum = exp_sum_##FORMAT,                         \
  }
ROUNDED_TABLE(bf16);
ROUNDED_TABLE(f16);

const struct kernels KERNELS_TABLE = {
    .name = KERNELS_TEXT(KERNELS_NAME),
    .exp_array = exp_array,
    .add = add,
    .scale = scale,
    .rms_forward = rms_forward,
    .add_rms_forward = add_rms_forward,
    .rms_apply = rms_apply,
    .rms_backward = rms_backward,
    .rope = rope,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .softmax_causal = softmax_causal,
    .softmax_again = softmax_again,
    .softmax_backward = softmax_backward,
    .row_dot = row_dot,
    .exp_sum = exp_sum,
    .adamw = adamw,
    .sgd = sgd,
    .f32_from_bf16 = f32_from_bf16,
    .f32_from_f16 = f32_from_f16,
    .bf16_from_f32 = bf16_from_f32,
    .f16_from_f32 = f16_from_f32,
    .round_bf16 = round_bf16,
    .round_f16 = round_f16,
    .bf16 = &kernels_bf16,
    .f16 = &kernels_f16,
};
