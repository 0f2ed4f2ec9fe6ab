/* test_blas_core.c - the choice of the OpenBLAS core, its self-test, and the rate that utilisation is measured against. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blas_core.h"
#include "cpu_core.h"
#include "kernels.h"

static struct blas_core_report report; /* of the start of this program */

/* A linker wrap makes one product wrong while this is set. */
static int break_products;
void __real_cblas_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE trans_a, CBLAS_TRANSPOSE trans_b, int m, int n, int k, float alpha,
                        const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
void __wrap_cblas_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE trans_a, CBLAS_TRANSPOSE trans_b, int m, int n, int k, float alpha,
                        const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);

void __wrap_cblas_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE trans_a, CBLAS_TRANSPOSE trans_b, int m, int n, int k, float alpha,
                        const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
  __real_cblas_sgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  if (break_products == 1 && trans_a == CblasTrans && m > 60)
    c[(m - 1) * ldc + n - 1] *= 1.0001f;
  if (break_products == 2 && trans_b == CblasTrans)
    c[0] = NAN;
  if (break_products == 3 && m > 60)
    c[n] += 1.0f; /* writes past the row */
}

static void test_start_chose_a_core(void **state)
{
  (void)state;
  const char *best = cpu_core_openblas(cpu_core_isa(), 0);
  assert_true(report.self_test <= 1.0);
  assert_true(report.self_test > 0.0);
  if (best != NULL && getenv("ORDO_BLAS_CHOSEN") != NULL && strcmp(getenv("ORDO_BLAS_CHOSEN"), "0") == 0)
    assert_string_equal(report.wanted, best);
  if (best != NULL && strcmp(report.wanted, best) == 0)
    assert_int_equal(report.fallback, 0);
  assert_int_equal(openblas_get_num_threads(), 1);
}

static void test_self_test_finds_wrong_products(void **state)
{
  (void)state;
  for (break_products = 1; break_products <= 3; break_products++)
    assert_true(blas_core_self_test() > 1.0);
  break_products = 0;
  assert_true(blas_core_self_test() <= 1.0);
}

/* A core that fails and was set by the user is an error, not a reason to run another one. */
static void test_wrong_core_of_the_user_is_reported(void **state)
{
  (void)state;
  char reason[256] = "";
  char *argv[] = {NULL};
  struct blas_core_report broken;
  unsetenv("ORDO_BLAS_CHOSEN");
  setenv("OPENBLAS_CORETYPE", "SomethingSet", 1);
  break_products = 2;
  assert_int_equal(blas_core_start(argv, &broken, reason, sizeof reason), -1);
  break_products = 0;
  assert_true(broken.self_test > 1.0);
  assert_non_null(strstr(reason, "SomethingSet"));
}

static void test_core_types(void **state)
{
  (void)state;
  assert_string_equal(cpu_core_openblas(CPU_AVX512, 0), "SkylakeX");
  assert_string_equal(cpu_core_openblas(CPU_AVX512, 1), "Haswell");
  assert_string_equal(cpu_core_openblas(CPU_AVX2, 0), "Haswell");
  assert_string_equal(cpu_core_openblas(CPU_AVX2, 1), "Nehalem");
  assert_null(cpu_core_openblas(CPU_AVX512, 3));
  assert_null(cpu_core_openblas(CPU_AVX2, 2));
  assert_null(cpu_core_openblas(CPU_PORTABLE, 0));
  assert_null(cpu_core_openblas(CPU_AVX2, -1));
}

static void test_wanted_instruction_set(void **state)
{
  (void)state;
  int ignored = 7;
  unsetenv("ORDO_CPU");
  assert_int_equal(cpu_core_isa_wanted(&ignored), cpu_core_isa());
  assert_int_equal(ignored, 0);
  setenv("ORDO_CPU", "portable", 1);
  assert_int_equal(cpu_core_isa_wanted(&ignored), CPU_PORTABLE);
  assert_int_equal(ignored, 0);
  assert_string_equal(kernels_default()->name, "portable");
  setenv("ORDO_CPU", "abacus", 1);
  assert_int_equal(cpu_core_isa_wanted(&ignored), cpu_core_isa());
  assert_int_equal(ignored, 1);
  unsetenv("ORDO_CPU");
}

static void test_environment_is_completed_and_honoured(void **state)
{
  (void)state;
  unsetenv("OPENBLAS_CORETYPE");
  unsetenv("OPENBLAS_NUM_THREADS");
  assert_int_equal(cpu_core_prepare_environment(), 1);
  assert_string_equal(getenv("OPENBLAS_NUM_THREADS"), "1");
  if (cpu_core_isa() != CPU_PORTABLE)
    assert_string_equal(getenv("OPENBLAS_CORETYPE"), cpu_core_openblas(cpu_core_isa(), 0));
  setenv("OPENBLAS_CORETYPE", "Nehalem", 1);
  assert_int_equal(cpu_core_prepare_environment(), 0);
  assert_string_equal(getenv("OPENBLAS_CORETYPE"), "Nehalem");
}

static void test_peak_is_plausible(void **state)
{
  (void)state;
  double peak = blas_core_peak(0.02);
  assert_true(peak > 1e6 && peak < 1e13); /* a core has 1e10 and more, and under valgrind some 1e7 */
}

int main(int argc, char **argv)
{
  char reason[256];
  (void)argc;
  if (blas_core_start(argv, &report, reason, sizeof reason) != 0) {
    print_error("%s\n", reason);
    return 1;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_start_chose_a_core),
      cmocka_unit_test(test_self_test_finds_wrong_products),
      cmocka_unit_test(test_wrong_core_of_the_user_is_reported),
      cmocka_unit_test(test_core_types),
      cmocka_unit_test(test_wanted_instruction_set),
      cmocka_unit_test(test_environment_is_completed_and_honoured),
      cmocka_unit_test(test_peak_is_plausible),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
