/* kernels_rounded_impl.h - the row kernels that round as they go, for one 16-bit format; the part of kernels_impl.c that is about them.
 *
 * It is included by kernels_impl.c alone, twice per instruction set: ROUND(x) is one value rounded to the format and ROUNDED(name) a name
 * of its own. Each function computes, to the bit, what the kernel of that name does between two passes of round_bf16 or round_f16; what it
 * saves is those passes: results of products come from beyond the second cache, and whoever reads them first waits for it.
 * Where a value is needed rounded and not rounded, it is rounded last. Sums over a row are left to the plain kernel, a row at a time: in a
 * loop with more in it the compiler may add in another order.
 */

static void ROUNDED(round_rows)(size_t rows, size_t columns, size_t stride, float *x)
{
  for (size_t r = 0; r < rows; r++) {
    float *row = x + r * stride;
#pragma omp simd
    for (size_t i = 0; i < columns; i++)
      row[i] = ROUND(row[i]);
  }
}

static void ROUNDED(add)(size_t n, const float *x, float *delta, float *sum)
{
#pragma omp simd
  for (size_t i = 0; i < n; i++)
    sum[i] = x[i] + ROUND(delta[i]);
}

static void ROUNDED(rms_forward)(size_t rows, size_t columns, const float *x, const float *weight, float eps, float *y, float *inv)
{
  for (size_t r = 0; r < rows; r++) {
    rms_forward(1, columns, x + r * columns, weight, eps, y + r * columns, inv + r);
    ROUNDED(round_rows)(1, columns, columns, y + r * columns);
  }
}

static void ROUNDED(add_rms_forward)(size_t rows, size_t columns, const float *x, float *delta, float *sum, const float *weight, float eps,
                                     float *y, float *inv)
{
  for (size_t r = 0; r < rows; r++) {
    size_t at = r * columns;
    ROUNDED(round_rows)(1, columns, columns, delta + at);
    add_rms_forward(1, columns, x + at, delta + at, sum + at, weight, eps, y + at, inv + r);
    ROUNDED(round_rows)(1, columns, columns, y + at);
  }
}

static void ROUNDED(rms_apply)(size_t rows, size_t columns, const float *x, const float *weight, const float *inv, float *y)
{
  for (size_t r = 0; r < rows; r++) {
    const float *restrict xr = x + r * columns;
    float *restrict out = y + r * columns;
    float scale_row = inv[r];
    for (size_t i = 0; i < columns; i++)
      out[i] = ROUND(xr[i] * scale_row * weight[i]);
  }
}

static void ROUNDED(rms_backward)(size_t rows, size_t columns, const float *x, const float *weight, const float *inv, float *dy, float *dx,
                                  float *dweight)
{
  for (size_t r = 0; r < rows; r++) {
    size_t at = r * columns;
    ROUNDED(round_rows)(1, columns, columns, dy + at);
    rms_backward(1, columns, x + at, weight, inv + r, dy + at, dx + at, dweight);
  }
}

static void ROUNDED(rope)(size_t heads, size_t half, const float *cosine, const float *sine, float sign, float *x)
{
  for (size_t h = 0; h < heads; h++) {
    float *restrict first = x + h * 2 * half;
    float *restrict second = first + half;
#pragma omp simd
    for (size_t i = 0; i < half; i++) {
      float a = ROUND(first[i]);
      float b = ROUND(second[i]);
      float s = sign * sine[i];
      first[i] = ROUND(a * cosine[i] - b * s);
      second[i] = ROUND(b * cosine[i] + a * s);
    }
  }
}

static void ROUNDED(swiglu_forward)(size_t n, float *gate, float *up, float *act)
{
#pragma omp simd
  for (size_t i = 0; i < n; i++) {
    float z = ROUND(gate[i]);
    float u = ROUND(up[i]);
    gate[i] = z;
    up[i] = u;
    act[i] = ROUND(z / (1.0f + exp_one(-z)) * u);
  }
}

static void ROUNDED(swiglu_backward)(size_t n, float *gate, float *up, float *grad)
{
#pragma omp simd
  for (size_t i = 0; i < n; i++) {
    float z = gate[i];
    float u = up[i];
    float g = ROUND(grad[i]);
    float s = 1.0f / (1.0f + exp_one(-z));
    float silu = z * s;
    grad[i] = ROUND(silu * u);
    up[i] = ROUND(g * silu);
    gate[i] = ROUND(g * u * s * (1.0f + z * (1.0f - s)));
  }
}

/* Rounds the row and returns its largest value. */
static float ROUNDED(row_max)(size_t n, float *x)
{
  float max = -INFINITY;
#pragma omp simd reduction(max : max)
  for (size_t i = 0; i < n; i++) {
    float value = ROUND(x[i]);
    x[i] = value;
    max = value > max ? value : max;
  }
  return max;
}

static void ROUNDED(scale)(size_t n, float factor, float *x)
{
  for (size_t i = 0; i < n; i++)
    x[i] = ROUND(x[i] * factor);
}

static void ROUNDED(softmax_causal)(size_t rows, size_t columns, size_t stride, size_t first, float scale_factor, float *scores, float *lse)
{
  for (size_t r = 0; r < rows; r++) {
    float *s = scores + r * stride;
    size_t n = causal_length(columns, first, r);
    float shift = ROUNDED(row_max)(n, s) * scale_factor;
    float sum = exp_shifted(n, scale_factor, shift, s);
    ROUNDED(scale)(n, 1.0f / sum, s);
    memset(s + n, 0, (columns - n) * sizeof *s);
    lse[r] = shift + logf(sum);
  }
}

static void ROUNDED(softmax_again)(size_t rows, size_t columns, size_t stride, size_t first, float scale_factor, float *scores,
                                   const float *lse)
{
  for (size_t r = 0; r < rows; r++) {
    float *s = scores + r * stride;
    float shift = lse[r];
    size_t n = causal_length(columns, first, r);
    for (size_t i = 0; i < n; i++)
      s[i] = exp_one(ROUND(s[i]) * scale_factor - shift);
    memset(s + n, 0, (columns - n) * sizeof *s);
  }
}

static void ROUNDED(softmax_backward)(size_t rows, size_t columns, size_t stride, float scale_factor, float *p, const float *delta,
                                      float *dp)
{
  for (size_t r = 0; r < rows; r++) {
    float *restrict pr = p + r * stride;
    float *restrict dr = dp + r * stride;
    float d = delta[r];
    for (size_t i = 0; i < columns; i++) {
      float probability = pr[i];
      dr[i] = ROUND(probability * (ROUND(dr[i]) - d) * scale_factor);
      pr[i] = ROUND(probability);
    }
  }
}

static float ROUNDED(exp_sum)(size_t n, float *x, float *max)
{
  *max = ROUNDED(row_max)(n, x);
  return exp_shifted(n, 1.0f, *max, x);
}
