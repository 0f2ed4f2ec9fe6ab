/* test_kernels.c - every kernel of every instruction set that this processor has, against the formula in double.
 *
 * Lengths cover less than a vector, whole vectors and rests. Limits: u = 2^-24 per rounded operation, counted at each check. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "kernels.h"
#include "test_model.h"

enum { MOST = 131 };
static const double u = 0x1p-24;

static void fill(size_t n, float *x, uint32_t seed)
{
  for (size_t i = 0; i < n; i++)
    x[i] = test_uniform(&seed);
}

static void assert_near(float actual, double expected, double limit)
{
  if (!(fabs((double)actual - expected) <= limit))
    fail_msg("%.9g instead of %.9g, limit %g", (double)actual, expected, limit);
}

/* Runs a check for each instruction set. */
static void each_set(void (*check)(const struct kernels *kernels))
{
  int checked = 0;
  for (int isa = CPU_PORTABLE; isa <= CPU_AVX512; isa++) {
    const struct kernels *kernels = kernels_for((enum cpu_isa)isa);
    if (kernels == NULL)
      continue;
    assert_string_equal(kernels->name, cpu_core_isa_name((enum cpu_isa)isa));
    check(kernels);
    checked++;
  }
  assert_true(checked >= 1);
}

static void check_exp(const struct kernels *kernels)
{
  float x[64], y[64];
  double worst = 0.0;
  /* 700 000 values over the whole range; the stride is no multiple of anything in the range reduction. */
  for (float at = -87.3f; at < 88.3f; at += 64 * 0.000251f) {
    for (int i = 0; i < 64; i++)
      x[i] = fminf(at + (float)i * 0.000251f, 88.36f);
    kernels->exp_array(64, x, y);
    for (int i = 0; i < 64; i++)
      worst = fmax(worst, fabs((double)y[i] / exp((double)x[i]) - 1.0));
  }
  print_message("%s: exp within %.3g, limit %.3g\n", kernels->name, worst, 4.0 * u);
  assert_true(worst <= 4.0 * u); /* 2 ulp */
}

static void check_exp_edges(const struct kernels *kernels)
{
  const float x[] = {0.0f, -0.0f, -INFINITY, -88.0f, -1e30f, NAN, -87.33f, 1e30f, INFINITY};
  float y[9];
  kernels->exp_array(9, x, y);
  assert_true(y[0] == 1.0f && y[1] == 1.0f);
  assert_true(y[2] == 0.0f && y[3] == 0.0f && y[4] == 0.0f);
  assert_true(isnan(y[5]));
  assert_near(y[6], exp((double)x[6]), 4.0 * u * exp((double)x[6]));
  assert_true(y[7] > 2e38f && isfinite(y[7]) && y[8] == y[7]);
}

static void check_rms(const struct kernels *kernels)
{
  float x[2 * MOST], w[MOST], y[2 * MOST], again[2 * MOST], inv[2], delta[2 * MOST], sum[2 * MOST];
  const float eps = 1e-5f;
  for (size_t n = 1; n <= MOST; n += n < 40 ? 1 : 13) {
    fill(2 * n, x, 1);
    fill(n, w, 2);
    fill(2 * n, delta, 3);
    kernels->rms_forward(2, n, x, w, eps, y, inv);
    kernels->rms_apply(2, n, x, w, inv, again);
    assert_memory_equal(y, again, 2 * n * sizeof *y);
    for (size_t r = 0; r < 2; r++) {
      double squares = 0.0;
      for (size_t i = 0; i < n; i++)
        squares += (double)x[r * n + i] * (double)x[r * n + i];
      double expected = 1.0 / sqrt(squares / (double)n + (double)eps);
      /* n additions of positive terms, halved by the root, then four roundings */
      double limit = ((double)n / 2.0 + 4.0) * u;
      assert_near(inv[r], expected, limit * expected);
      for (size_t i = 0; i < n; i++)
        assert_near(y[r * n + i], (double)x[r * n + i] * expected * (double)w[i], (limit + 2.0 * u) * expected);
    }
    kernels->add_rms_forward(2, n, x, delta, sum, w, eps, y, inv);
    for (size_t i = 0; i < 2 * n; i++)
      assert_true(sum[i] == x[i] + delta[i]);
    kernels->rms_apply(2, n, sum, w, inv, again);
    assert_memory_equal(y, again, 2 * n * sizeof *y);
    memcpy(again, x, 2 * n * sizeof *x);
    kernels->add_rms_forward(2, n, again, delta, again, w, eps, y, inv); /* in place */
    assert_memory_equal(again, sum, 2 * n * sizeof *sum);
  }
}

static void check_rms_backward(const struct kernels *kernels)
{
  float x[2 * MOST], w[MOST], y[2 * MOST], inv[2], dy[2 * MOST], dx[2 * MOST], dw[MOST];
  for (size_t n = 1; n <= MOST; n += n < 40 ? 1 : 13) {
    fill(2 * n, x, 1);
    fill(n, w, 2);
    fill(2 * n, dy, 3);
    for (size_t i = 0; i < 2 * n; i++)
      dx[i] = 1.0f;
    for (size_t i = 0; i < n; i++)
      dw[i] = 2.0f;
    kernels->rms_forward(2, n, x, w, 1e-5f, y, inv);
    kernels->rms_backward(2, n, x, w, inv, dy, dx, dw);
    for (size_t i = 0; i < n; i++) {
      double weight_gradient = 2.0;
      for (size_t r = 0; r < 2; r++) {
        double dot = 0.0, size = 0.0, k = (double)inv[r];
        for (size_t j = 0; j < n; j++) {
          dot += (double)dy[r * n + j] * (double)w[j] * (double)x[r * n + j];
          size += fabs((double)dy[r * n + j] * (double)w[j] * (double)x[r * n + j]);
        }
        double direct = k * (double)dy[r * n + i] * (double)w[i];
        double pull = (double)x[r * n + i] * k * k * k / (double)n;
        double limit = u * (4.0 * fabs(direct) + fabs(pull) * size * ((double)n + 8.0) + 4.0 * (1.0 + fabs(direct) + fabs(pull) * size));
        assert_near(dx[r * n + i], 1.0 + direct - pull * dot, limit);
        weight_gradient += (double)dy[r * n + i] * (double)x[r * n + i] * k;
      }
      assert_near(dw[i], weight_gradient, 8.0 * u * (2.0 + 2.0 * (double)fmaxf(inv[0], inv[1])));
    }
    kernels->rms_backward(2, n, x, w, inv, dy, dx, NULL);
  }
}

static void check_rope(const struct kernels *kernels)
{
  float x[2 * MOST * 2], before[2 * MOST * 2], cosine[MOST], sine[MOST];
  for (size_t half = 1; half <= 65; half++) {
    fill(4 * half, x, 1);
    memcpy(before, x, 4 * half * sizeof *x);
    for (size_t i = 0; i < half; i++) {
      cosine[i] = cosf((float)i);
      sine[i] = sinf((float)i);
    }
    kernels->rope(2, half, cosine, sine, 1.0f, x);
    for (size_t h = 0; h < 2; h++)
      for (size_t i = 0; i < half; i++) {
        double a = (double)before[h * 2 * half + i], b = (double)before[h * 2 * half + half + i];
        assert_near(x[h * 2 * half + i], a * (double)cosine[i] - b * (double)sine[i], 4.0 * u);
        assert_near(x[h * 2 * half + half + i], b * (double)cosine[i] + a * (double)sine[i], 4.0 * u);
      }
    kernels->rope(2, half, cosine, sine, -1.0f, x);
    for (size_t i = 0; i < 4 * half; i++)
      assert_near(x[i], (double)before[i], 12.0 * u);
  }
}

static void check_swiglu(const struct kernels *kernels)
{
  float gate[MOST], up[MOST], grad[MOST], act[MOST], z[MOST], w[MOST], g[MOST];
  for (size_t n = 1; n <= MOST; n += n < 40 ? 1 : 13) {
    fill(n, gate, 1);
    fill(n, up, 2);
    fill(n, grad, 3);
    for (size_t i = 0; i < n; i++)
      gate[i] *= 20.0f;
    memcpy(z, gate, sizeof z);
    memcpy(w, up, sizeof w);
    memcpy(g, grad, sizeof g);
    kernels->swiglu_forward(n, gate, up, act);
    kernels->swiglu_backward(n, gate, up, grad);
    for (size_t i = 0; i < n; i++) {
      double zi = (double)z[i], s = 1.0 / (1.0 + exp(-zi)), silu = zi * s;
      double slope = s * (1.0 + zi * (1.0 - s));
      /* 4 u for the exponential, one each for the sum, quotient and two products; 1 - s loses to cancellation at most u |z| s */
      assert_near(act[i], silu * (double)w[i], 10.0 * u * fabs(silu * (double)w[i]) + 1e-38);
      assert_near(grad[i], silu * (double)w[i], 10.0 * u * fabs(silu * (double)w[i]) + 1e-38);
      assert_near(up[i], (double)g[i] * silu, 10.0 * u * fabs(silu) + 1e-38);
      assert_near(gate[i], (double)g[i] * (double)w[i] * slope, 16.0 * u * (1.0 + fabs(zi)) * s + 1e-38);
    }
    fill(n, up, 2);
    kernels->swiglu_forward(n, z, up, up); /* in place of up */
    assert_memory_equal(up, act, n * sizeof *up);
  }
}

static void check_softmax(const struct kernels *kernels)
{
  enum { ROWS = 5, STRIDE = MOST };
  float s[ROWS * STRIDE], p[ROWS * STRIDE], again[ROWS * STRIDE], dp[ROWS * STRIDE], dy[ROWS * STRIDE], lse[ROWS], delta[ROWS];
  const float scale = 0.37f;
  for (size_t first = 0; first < MOST - ROWS; first += 7) {
    size_t columns = first + ROWS;
    fill(ROWS * STRIDE, s, 1);
    fill(ROWS * STRIDE, dy, 2);
    fill(ROWS, delta, 3);
    for (size_t i = 0; i < ROWS * STRIDE; i++)
      s[i] *= 30.0f;
    memcpy(p, s, sizeof s);
    memcpy(again, s, sizeof s);
    memcpy(dp, dy, sizeof dy);
    kernels->softmax_causal(ROWS, columns, STRIDE, first, scale, p, lse);
    kernels->softmax_again(ROWS, columns, STRIDE, first, scale, again, lse);
    kernels->softmax_backward(ROWS, columns, STRIDE, scale, p, delta, dp);
    for (size_t r = 0; r < ROWS; r++) {
      double sum = 0.0;
      for (size_t i = 0; i <= first + r; i++)
        sum += exp((double)scale * (double)s[r * STRIDE + i]);
      /* |scale * s| <= 11.1 and the log-sum below 16.1 are rounded before the exponential: 27.2 u of absolute error there, which is
       * relative error after it; 4 u for the exponential; n u for the sum. */
      double limit = (32.0 + (double)columns) * u;
      assert_near(lse[r], log(sum), limit + 20.0 * u);
      for (size_t i = 0; i < columns; i++) {
        double expected = i <= first + r ? exp((double)scale * (double)s[r * STRIDE + i]) / sum : 0.0;
        assert_near(p[r * STRIDE + i], expected, limit * expected + 1e-38);
        assert_near(again[r * STRIDE + i], expected, (limit + 40.0 * u) * expected + 1e-38);
        double ds = (double)p[r * STRIDE + i] * ((double)dy[r * STRIDE + i] - (double)delta[r]) * (double)scale;
        assert_near(dp[r * STRIDE + i], ds, 4.0 * u * fabs((double)p[r * STRIDE + i]));
      }
      for (size_t i = columns; i < STRIDE; i++)
        assert_true(p[r * STRIDE + i] == s[r * STRIDE + i] && dp[r * STRIDE + i] == dy[r * STRIDE + i]);
    }
  }
}

static void check_sums(const struct kernels *kernels)
{
  float a[3 * MOST], b[3 * MOST], out[3], x[MOST];
  for (size_t n = 1; n <= MOST; n += n < 40 ? 1 : 13) {
    fill(3 * MOST, a, 1);
    fill(3 * MOST, b, 2);
    kernels->row_dot(3, n, a, MOST, b, n, out);
    for (size_t r = 0; r < 3; r++) {
      double sum = 0.0;
      for (size_t i = 0; i < n; i++)
        sum += (double)a[r * MOST + i] * (double)b[r * n + i];
      assert_near(out[r], sum, ((double)n + 1.0) * u * (double)n);
    }
    memcpy(x, a, sizeof x);
    float max = 0.0f, sum = kernels->exp_sum(n, x, &max);
    double expected_sum = 0.0;
    float expected_max = a[0];
    for (size_t i = 0; i < n; i++)
      expected_max = fmaxf(expected_max, a[i]);
    for (size_t i = 0; i < n; i++) {
      expected_sum += exp((double)a[i] - (double)expected_max);
      assert_near(x[i], exp((double)a[i] - (double)expected_max), 6.0 * u);
    }
    assert_true(max == expected_max);
    assert_near(sum, expected_sum, ((double)n + 6.0) * u * expected_sum);
    memcpy(x, a, sizeof x);
    kernels->scale(n, 0.5f, x);
    for (size_t i = 0; i < n; i++)
      assert_true(x[i] == 0.5f * a[i]);
    kernels->add(n, x, a, x);
    for (size_t i = 0; i < n; i++)
      assert_true(x[i] == 0.5f * a[i] + a[i]);
  }
}

#define EACH(NAME)                      \
  static void test_##NAME(void **state) \
  {                                     \
    (void)state;                        \
    each_set(check_##NAME);             \
  }
EACH(exp)
EACH(exp_edges)
EACH(rms)
EACH(rms_backward)
EACH(rope)
EACH(swiglu)
EACH(softmax)
EACH(sums)

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_exp),  cmocka_unit_test(test_exp_edges), cmocka_unit_test(test_rms),     cmocka_unit_test(test_rms_backward),
      cmocka_unit_test(test_rope), cmocka_unit_test(test_swiglu),    cmocka_unit_test(test_softmax), cmocka_unit_test(test_sums),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
