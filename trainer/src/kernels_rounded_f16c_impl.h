/* kernels_rounded_f16c_impl.h - kernels_rounded_impl.h for binary16 where instructions convert it.
 *
 * Included by kernels_impl.c alone. The compiler does not use those instructions in loops of its own, and what it makes of round_f16_one
 * takes three times as long. So here a row, or a block that stays in the first cache, is rounded by round_f16 right before or after the
 * plain kernel.
 */

enum { F16_BLOCK = 512 };

static size_t f16_block(size_t n, size_t first)
{
  return n - first < F16_BLOCK ? n - first : F16_BLOCK;
}

static void round_row_f16(size_t n, float *x)
{
  round_f16(n, x, x);
}

static void round_rows_f16(size_t rows, size_t columns, size_t stride, float *x)
{
  for (size_t r = 0; r < rows; r++)
    round_row_f16(columns, x + r * stride);
}

static void add_f16(size_t n, const float *x, float *delta, float *sum)
{
  for (size_t i = 0; i < n; i += F16_BLOCK) {
    round_row_f16(f16_block(n, i), delta + i);
    add(f16_block(n, i), x + i, delta + i, sum + i);
  }
}

static void scale_f16(size_t n, float factor, float *x)
{
  scale(n, factor, x);
  round_row_f16(n, x);
}

static void rms_forward_f16(size_t rows, size_t columns, const float *x, const float *weight, float eps, float *y, float *inv)
{
  for (size_t r = 0; r < rows; r++) {
    rms_forward(1, columns, x + r * columns, weight, eps, y + r * columns, inv + r);
    round_row_f16(columns, y + r * columns);
  }
}

static void add_rms_forward_f16(size_t rows, size_t columns, const float *x, float *delta, float *sum, const float *weight, float eps,
                                float *y, float *inv)
{
  for (size_t r = 0; r < rows; r++) {
    size_t at = r * columns;
    round_row_f16(columns, delta + at);
    add_rms_forward(1, columns, x + at, delta + at, sum + at, weight, eps, y + at, inv + r);
    round_row_f16(columns, y + at);
  }
}

static void rms_apply_f16(size_t rows, size_t columns, const float *x, const float *weight, const float *inv, float *y)
{
  for (size_t r = 0; r < rows; r++) {
    rms_apply_row(columns, x + r * columns, weight, inv[r], y + r * columns);
    round_row_f16(columns, y + r * columns);
  }
}

static void rms_backward_f16(size_t rows, size_t columns, const float *x, const float *weight, const float *inv, float *dy, float *dx,
                             float *dweight)
{
  for (size_t r = 0; r < rows; r++) {
    size_t at = r * columns;
    round_row_f16(columns, dy + at);
    rms_backward(1, columns, x + at, weight, inv + r, dy + at, dx + at, dweight);
  }
}

static void rope_f16(size_t heads, size_t half, const float *cosine, const float *sine, float sign, float *x)
{
  round_row_f16(heads * half * 2, x);
  rope(heads, half, cosine, sine, sign, x);
  round_row_f16(heads * half * 2, x);
}

static void swiglu_forward_f16(size_t n, float *gate, float *up, float *act)
{
  for (size_t i = 0; i < n; i += F16_BLOCK) {
    size_t part = f16_block(n, i);
    round_row_f16(part, gate + i);
    round_row_f16(part, up + i);
    swiglu_forward(part, gate + i, up + i, act + i);
    round_row_f16(part, act + i);
  }
}

static void swiglu_backward_f16(size_t n, float *gate, float *up, float *grad)
{
  for (size_t i = 0; i < n; i += F16_BLOCK) {
    size_t part = f16_block(n, i);
    round_row_f16(part, grad + i);
    swiglu_backward(part, gate + i, up + i, grad + i);
    round_row_f16(part, grad + i);
    round_row_f16(part, gate + i);
    round_row_f16(part, up + i);
  }
}

static void softmax_causal_f16(size_t rows, size_t columns, size_t stride, size_t first, float scale_factor, float *scores, float *lse)
{
  for (size_t r = 0; r < rows; r++) {
    float *s = scores + r * stride;
    size_t n = causal_length(columns, first, r);
    round_row_f16(n, s);
    softmax_causal(1, columns, stride, first + r, scale_factor, s, lse + r);
    round_row_f16(n, s);
  }
}

static void softmax_again_f16(size_t rows, size_t columns, size_t stride, size_t first, float scale_factor, float *scores, const float *lse)
{
  for (size_t r = 0; r < rows; r++) {
    round_row_f16(causal_length(columns, first, r), scores + r * stride);
    softmax_again(1, columns, stride, first + r, scale_factor, scores + r * stride, lse + r);
  }
}

static void softmax_backward_f16(size_t rows, size_t columns, size_t stride, float scale_factor, float *p, const float *delta, float *dp)
{
  for (size_t r = 0; r < rows; r++) {
    float *pr = p + r * stride, *dr = dp + r * stride;
    round_row_f16(columns, dr);
    softmax_backward(1, columns, stride, scale_factor, pr, delta + r, dr);
    round_row_f16(columns, dr);
    round_row_f16(columns, pr);
  }
}

static float exp_sum_f16(size_t n, float *x, float *max)
{
  round_row_f16(n, x);
  return exp_sum(n, x, max);
}
