/* test_bf16_gemm.c - products of bf16 on the library: every kind, odd sizes, strides and adding, against sums in double. The library is
 * told to run without matrix units too (ORDO_BF16_GEMM=on), which is slow and computes the same. Skipped in builds without it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ordo/half.h>

#include "bf16_gemm.h"
#include "test_model.h"

enum { NT, NN, TN, KINDS };
enum { PAD = 3 };

typedef int (*product)(struct bf16_gemm *gemm, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b,
                       int64_t ldb, int adds, float *c, int64_t ldc);

static const product products[KINDS] = {bf16_gemm_nt, bf16_gemm_nn, bf16_gemm_tn};

static uint16_t *values(int64_t n, uint32_t *seed)
{
  uint16_t *x = malloc((size_t)n * sizeof *x);
  for (int64_t i = 0; i < n; i++)
    x[i] = ordo_bf16_from_f32(test_uniform(seed));
  return x;
}

/* A sum of k exact products, in fp32 and any order, is off by at most (k + 2) u times the sum of their sizes, and by as much again because
 * AVX512_BF16 adds pairs in steps of its own. What lies between the rows of c stays. */
static void check(struct bf16_gemm *gemm, int kind, int64_t m, int64_t n, int64_t k, int adds)
{
  uint32_t seed = (uint32_t)(m * 7 + n * 31 + k);
  int64_t lda = (kind == TN ? m : k) + PAD, ldb = (kind == NT ? k : n) + PAD, ldc = n + PAD;
  uint16_t *a = values((kind == TN ? k : m) * lda, &seed), *b = values((kind == NT ? n : k) * ldb, &seed);
  float *c = malloc((size_t)(m * ldc) * sizeof *c);
  for (int64_t i = 0; i < m * ldc; i++)
    c[i] = 0.5f;
  assert_int_equal(products[kind](gemm, m, n, k, a, lda, b, ldb, adds, c, ldc), 0);
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < ldc; j++) {
      double sum = adds ? 0.5 : 0.0, size = 0.5;
      for (int64_t l = 0; j < n && l < k; l++) {
        double x = (double)ordo_f32_from_bf16(a[kind == TN ? l * lda + i : i * lda + l]);
        double y = (double)ordo_f32_from_bf16(b[kind == NT ? j * ldb + l : l * ldb + j]);
        sum += x * y;
        size += fabs(x * y);
      }
      if (j >= n)
        assert_true(c[i * ldc + j] == 0.5f);
      else if (!(fabs((double)c[i * ldc + j] - sum) <= 2.0 * (double)(k + 2) * 0x1p-24 * size))
        fail_msg("kind %d, %d x %d x %d, adds %d: %g instead of %g", kind, (int)m, (int)n, (int)k, adds, (double)c[i * ldc + j], sum);
    }
  free(a);
  free(b);
  free(c);
}

static void test_products(void **state)
{
  struct bf16_gemm *gemm = *state;
  const int64_t sizes[][3] = {{1, 1, 1}, {64, 48, 32}, {17, 19, 24}, {33, 7, 5}, {5, 130, 67}, {128, 96, 200}};
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
    for (int kind = 0; kind < KINDS; kind++)
      for (int adds = 0; adds < 2; adds++)
        for (int again = 0; again < 2; again++) /* made, then found */
          check(gemm, kind, sizes[s][0], sizes[s][1], sizes[s][2], adds);
}

/* More sizes than are kept. */
static void test_many_sizes(void **state)
{
  for (int64_t m = 1; m <= 300; m++)
    check(*state, NT, m, 3, 2, 0);
  check(*state, NT, 2, 3, 2, 1);
}

static void test_switches(void **state)
{
  (void)state;
  assert_int_equal(setenv(BF16_GEMM_VARIABLE, "off", 1), 0);
  assert_null(bf16_gemm_create());
  assert_int_equal(setenv(BF16_GEMM_VARIABLE, "on", 1), 0);
  bf16_gemm_destroy(NULL);
}

static int setup(void **state)
{
  *state = setenv(BF16_GEMM_VARIABLE, "on", 1) == 0 ? bf16_gemm_create() : NULL;
  return 0;
}

static int teardown(void **state)
{
  bf16_gemm_destroy(*state);
  return 0;
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_products), cmocka_unit_test(test_many_sizes), cmocka_unit_test(test_switches)};
  struct bf16_gemm *probe = setenv(BF16_GEMM_VARIABLE, "on", 1) == 0 ? bf16_gemm_create() : NULL;
  if (probe == NULL) {
    print_message("skipped: this build has no library for products of bf16 (meson option onednn, libdnnl-dev)\n");
    return 77;
  }
  bf16_gemm_destroy(probe);
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx512bw")) { /* valgrind has none either */
    print_message("skipped: the library multiplies bf16 with AVX-512 only, which this processor does not have\n");
    return 77;
  }
#endif
  return cmocka_run_group_tests(tests, setup, teardown);
}
