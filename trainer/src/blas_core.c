/* blas_core.c - see blas_core.h. The choice is by CPUID (cpu_core.c); the library reads OPENBLAS_CORETYPE in its constructor,
 * which has run when main begins, so a program that finds it unset starts itself again, once. */
#include "blas_core.h"

#include <cblas.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "cpu_core.h"

/* ---- self-test ---- */

enum { TEST_M = 67, TEST_N = 53, TEST_K = 131, TEST_PAD = 3 };

struct test_case {
  int m, n, k;
  CBLAS_TRANSPOSE trans_a, trans_b;
};

/* Small numbers of both signs, none of them special; a linear congruential sequence, so the test is the same everywhere. */
static void fill(float *x, size_t n, uint32_t seed)
{
  for (size_t i = 0; i < n; i++) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = (float)(int32_t)seed / 2147483648.0f;
  }
}

/* The larger error; NaN counts as infinite, since a comparison would lose it. */
static double worse(double worst, double error)
{
  return isnan(error) ? INFINITY : fmax(worst, error);
}

static float element(const float *x, CBLAS_TRANSPOSE trans, int stride, int row, int column)
{
  return trans == CblasNoTrans ? x[row * stride + column] : x[column * stride + row];
}

/* Worst |c - ref| / bound. A sum of k products in fp32, in any order, is off by at most gamma = (k+2) u / (1 - (k+2) u) times the
 * sum of the absolute products, u = 2^-24 (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1); two more for beta c. */
static double check_case(struct test_case t, const float *a, const float *b, float *c, const float *before)
{
  int stride_a = (t.trans_a == CblasNoTrans ? t.k : t.m) + TEST_PAD;
  int stride_b = (t.trans_b == CblasNoTrans ? t.n : t.k) + TEST_PAD;
  int stride_c = t.n + TEST_PAD;
  double gamma = (t.k + 2) * 0x1p-24 / (1.0 - (t.k + 2) * 0x1p-24);
  double worst = 0.0;
  memcpy(c, before, (size_t)(t.m * stride_c) * sizeof *c);
  cblas_sgemm(CblasRowMajor, t.trans_a, t.trans_b, t.m, t.n, t.k, 1.0f, a, stride_a, b, stride_b, 1.0f, c, stride_c);
  for (int i = 0; i < t.m; i++) {
    for (int j = 0; j < t.n; j++) {
      double sum = (double)before[i * stride_c + j];
      double size = fabs(sum);
      for (int l = 0; l < t.k; l++) {
        double product = (double)element(a, t.trans_a, stride_a, i, l) * (double)element(b, t.trans_b, stride_b, l, j);
        sum += product;
        size += fabs(product);
      }
      worst = worse(worst, fabs((double)c[i * stride_c + j] - sum) / (gamma * size + 1e-30));
    }
    for (int j = t.n; j < stride_c; j++)
      worst = c[i * stride_c + j] == before[i * stride_c + j] ? worst : INFINITY;
  }
  return worst;
}

double blas_core_self_test(void)
{
  const int sizes[][3] = {{TEST_M, TEST_N, TEST_K}, {1, 7, 33}, {16, 16, 16}, {65, 1, 5}, {31, 48, 64}, {5, 53, 1}};
  const CBLAS_TRANSPOSE kinds[][2] = {{CblasNoTrans, CblasNoTrans}, {CblasNoTrans, CblasTrans}, {CblasTrans, CblasNoTrans}};
  size_t room = (TEST_K + TEST_PAD) * (TEST_K + TEST_PAD);
  float *memory = malloc(4 * room * sizeof *memory);
  if (memory == NULL)
    return INFINITY;
  float *a = memory;
  float *b = a + room;
  float *c = b + room;
  float *before = c + room;
  double worst = 0.0;
  fill(a, room, 1);
  fill(b, room, 2);
  fill(before, room, 3);
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
    for (size_t kind = 0; kind < 3; kind++) {
      struct test_case t = {sizes[s][0], sizes[s][1], sizes[s][2], kinds[kind][0], kinds[kind][1]};
      worst = worse(worst, check_case(t, a, b, c, before));
    }
  free(memory);
  return worst;
}

/* ---- choice ---- */

/* Kernels that use AVX2 or more. */
static int is_fast(const char *name)
{
  static const char *const fast[] = {"Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids", "Excavator"};
  for (size_t i = 0; i < sizeof fast / sizeof fast[0]; i++)
    if (strcasecmp(name, fast[i]) == 0)
      return 1;
  return 0;
}

/* The report without re-executing. Changes nothing but the thread count. */
static void describe(struct blas_core_report *report)
{
  const char *wanted = getenv("OPENBLAS_CORETYPE");
  openblas_set_num_threads(1);
  report->name = openblas_get_corename();
  report->wanted = wanted != NULL ? wanted : "";
  report->fallback = cpu_core_isa() >= CPU_AVX2 && !is_fast(report->name);
  report->self_test = blas_core_self_test();
}

/* Starts this program again with the nth core type. Returns only if it could not. */
static void restart_with(int nth, const char *core, char **argv)
{
  char index[16];
  snprintf(index, sizeof index, "%d", nth);
  if (setenv("OPENBLAS_CORETYPE", core, 1) == 0 && setenv(CPU_CORE_CHOSEN_VARIABLE, index, 1) == 0)
    execv("/proc/self/exe", argv);
}

static int chosen_index(void)
{
  const char *text = getenv(CPU_CORE_CHOSEN_VARIABLE);
  return text == NULL || text[0] < '0' || text[0] > '9' ? -1 : atoi(text);
}

int blas_core_start(char **argv, struct blas_core_report *report, char *reason, size_t size)
{
  int chosen = chosen_index();
  const char *first = cpu_core_openblas(cpu_core_isa(), 0);
  if (getenv("OPENBLAS_CORETYPE") == NULL && chosen < 0 && first != NULL)
    restart_with(0, first, argv);
  describe(report);
  if (report->self_test <= 1.0)
    return 0;
  const char *next = chosen < 0 ? NULL : cpu_core_openblas(cpu_core_isa(), chosen + 1);
  if (next != NULL)
    restart_with(chosen + 1, next, argv);
  snprintf(reason, size, "OpenBLAS core %s (OPENBLAS_CORETYPE=%s) computes wrong products: %.3g times the error bound", report->name,
           report->wanted, report->self_test);
  return -1;
}

/* ---- speed ---- */

static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double blas_core_peak(double seconds)
{
  const int n = 768;
  size_t count = (size_t)n * (size_t)n;
  float *memory = malloc(3 * count * sizeof *memory);
  double best = 0.0;
  if (memory == NULL)
    return 0.0;
  fill(memory, 3 * count, 1);
  double end = now() + seconds;
  for (double start = now(), stop = start; stop < end; start = stop) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, n, 1.0f, memory, n, memory + count, n, 0.0f, memory + 2 * count, n);
    stop = now();
    double rate = 2.0 * n * n * n / (stop - start);
    best = rate > best ? rate : best;
  }
  free(memory);
  return best;
}
