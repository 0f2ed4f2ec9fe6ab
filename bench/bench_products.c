/* bench_products.c - see bench_products.h. */
#include "bench_products.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "bf16_gemm.h"

enum { ROOM = 1 << 17 };
enum kind { SGEMM, BF16_NT, BF16_NN, BF16_TN };

struct call {
  enum kind kind;
  CBLAS_TRANSPOSE trans_a, trans_b;
  int64_t m, n, k;
  const void *a;
  int64_t lda;
  const void *b;
  int64_t ldb;
  float beta;
  float *c;
  int64_t ldc;
  struct bf16_gemm *gemm;
};

static struct {
  struct call *calls;
  size_t n;
  int on;
} recorder;

double bench_now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void record(struct call call)
{
  if (recorder.on && recorder.n < ROOM)
    recorder.calls[recorder.n++] = call;
}

void __real_cblas_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE trans_a, CBLAS_TRANSPOSE trans_b, int m, int n, int k, float alpha,
                        const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
void __wrap_cblas_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE trans_a, CBLAS_TRANSPOSE trans_b, int m, int n, int k, float alpha,
                        const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);

void __wrap_cblas_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE trans_a, CBLAS_TRANSPOSE trans_b, int m, int n, int k, float alpha,
                        const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
  record((struct call){SGEMM, trans_a, trans_b, m, n, k, a, lda, b, ldb, beta, c, ldc, NULL});
  __real_cblas_sgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

#define WRAP_BF16(NAME, KIND, TRANS_A, TRANS_B)                                                                                 \
  int __real_##NAME(struct bf16_gemm *gemm, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b, \
                    int64_t ldb, int adds, float *c, int64_t ldc);                                                              \
  int __wrap_##NAME(struct bf16_gemm *gemm, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b, \
                    int64_t ldb, int adds, float *c, int64_t ldc);                                                              \
  int __wrap_##NAME(struct bf16_gemm *gemm, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b, \
                    int64_t ldb, int adds, float *c, int64_t ldc)                                                               \
  {                                                                                                                             \
    record((struct call){KIND, TRANS_A, TRANS_B, m, n, k, a, lda, b, ldb, (float)adds, c, ldc, gemm});                          \
    return __real_##NAME(gemm, m, n, k, a, lda, b, ldb, adds, c, ldc);                                                          \
  }
WRAP_BF16(bf16_gemm_nt, BF16_NT, CblasNoTrans, CblasTrans)
WRAP_BF16(bf16_gemm_nn, BF16_NN, CblasNoTrans, CblasNoTrans)
WRAP_BF16(bf16_gemm_tn, BF16_TN, CblasTrans, CblasNoTrans)

int bench_record(int on)
{
  if (recorder.calls == NULL)
    recorder.calls = calloc(ROOM, sizeof *recorder.calls);
  if (on)
    recorder.n = 0;
  recorder.on = on && recorder.calls != NULL;
  return recorder.calls == NULL ? -1 : 0;
}

size_t bench_recorded(int *overflow)
{
  *overflow = recorder.n == ROOM;
  return recorder.n;
}

static void again(const struct call *g)
{
  int adds = g->beta != 0.0f;
  if (g->kind == SGEMM)
    __real_cblas_sgemm(CblasRowMajor, g->trans_a, g->trans_b, (int)g->m, (int)g->n, (int)g->k, 1.0f, g->a, (int)g->lda, g->b, (int)g->ldb,
                       g->beta, g->c, (int)g->ldc);
  else if (g->kind == BF16_NT)
    (void)__real_bf16_gemm_nt(g->gemm, g->m, g->n, g->k, g->a, g->lda, g->b, g->ldb, adds, g->c, g->ldc);
  else if (g->kind == BF16_NN)
    (void)__real_bf16_gemm_nn(g->gemm, g->m, g->n, g->k, g->a, g->lda, g->b, g->ldb, adds, g->c, g->ldc);
  else
    (void)__real_bf16_gemm_tn(g->gemm, g->m, g->n, g->k, g->a, g->lda, g->b, g->ldb, adds, g->c, g->ldc);
}

static int chosen(const struct call *call, int bf16)
{
  return bf16 < 0 || bf16 == (call->kind != SGEMM);
}

double bench_replay(int bf16)
{
  double start = bench_now();
  for (size_t i = 0; i < recorder.n; i++)
    if (chosen(&recorder.calls[i], bf16))
      again(&recorder.calls[i]);
  return bench_now() - start;
}

static double flop_of(const struct call *call)
{
  return 2.0 * (double)call->m * (double)call->n * (double)call->k;
}

double bench_recorded_flop(int bf16)
{
  double flop = 0.0;
  for (size_t i = 0; i < recorder.n; i++)
    flop += chosen(&recorder.calls[i], bf16) ? flop_of(&recorder.calls[i]) : 0.0;
  return flop;
}

static int same_shape(const struct call *g, const struct call *h)
{
  return g->kind == h->kind && g->m == h->m && g->n == h->n && g->k == h->k && g->trans_a == h->trans_a && g->trans_b == h->trans_b;
}

void bench_print_shapes(void)
{
  for (size_t i = 0; i < recorder.n; i++) {
    const struct call *g = &recorder.calls[i];
    int seen = 0, count = 0;
    double seconds = 0.0;
    for (size_t j = 0; j < i && !seen; j++)
      seen = same_shape(&recorder.calls[j], g);
    for (size_t j = i; !seen && j < recorder.n; j++) {
      if (!same_shape(&recorder.calls[j], g))
        continue;
      double start = bench_now();
      again(&recorder.calls[j]);
      seconds += bench_now() - start;
      count++;
    }
    if (!seen)
      printf("  %s %c%c %5d %5d %5d  x%4d  %8.2f ms  %6.1f GF/s\n", g->kind == SGEMM ? "fp32" : "bf16",
             g->trans_a == CblasTrans ? 'T' : 'N', g->trans_b == CblasTrans ? 'T' : 'N', (int)g->m, (int)g->n, (int)g->k, count,
             seconds * 1e3, flop_of(g) * count / seconds / 1e9);
  }
}

/* ---- conversions ---- */

static struct {
  const struct kernels *real;
  const struct kernels_rounded *rounded; /* null: kernels that round as they go are replaced by those that do not round */
  struct kernels table;
  struct kernels_rounded rounded_table;
  double seconds, rounded_seconds;
} conversions;

/* Adds what CALL takes to a sum of seconds. */
#define TIME(SECONDS, CALL)                     \
  do {                                          \
    double start = bench_now();                 \
    CALL;                                       \
    conversions.SECONDS += bench_now() - start; \
  } while (0)

#define TIMED(NAME, FROM, TO)                                  \
  static void timed_##NAME(size_t n, const FROM *from, TO *to) \
  {                                                            \
    TIME(seconds, conversions.real->NAME(n, from, to));        \
  }
TIMED(f32_from_bf16, uint16_t, float)
TIMED(f32_from_f16, uint16_t, float)
TIMED(bf16_from_f32, float, uint16_t)
TIMED(f16_from_f32, float, uint16_t)
TIMED(round_bf16, float, float)
TIMED(round_f16, float, float)

/* PARAMETERS and ARGUMENTS in parentheses. */
#define TIMED_ROUNDED(NAME, PARAMETERS, ARGUMENTS)                \
  static void rounded_##NAME PARAMETERS                           \
  {                                                               \
    if (conversions.rounded != NULL)                              \
      TIME(rounded_seconds, conversions.rounded->NAME ARGUMENTS); \
    else                                                          \
      TIME(rounded_seconds, conversions.real->NAME ARGUMENTS);    \
  }
TIMED_ROUNDED(add, (size_t n, const float *x, float *delta, float *sum), (n, x, delta, sum))
TIMED_ROUNDED(scale, (size_t n, float factor, float *x), (n, factor, x))
TIMED_ROUNDED(rms_forward, (size_t rows, size_t columns, const float *x, const float *weight, float eps, float *y, float *inv),
              (rows, columns, x, weight, eps, y, inv))
TIMED_ROUNDED(add_rms_forward,
              (size_t rows, size_t columns, const float *x, float *delta, float *sum, const float *weight, float eps, float *y, float *inv),
              (rows, columns, x, delta, sum, weight, eps, y, inv))
TIMED_ROUNDED(rms_apply, (size_t rows, size_t columns, const float *x, const float *weight, const float *inv, float *y),
              (rows, columns, x, weight, inv, y))
TIMED_ROUNDED(rms_backward,
              (size_t rows, size_t columns, const float *x, const float *weight, const float *inv, float *dy, float *dx, float *dweight),
              (rows, columns, x, weight, inv, dy, dx, dweight))
TIMED_ROUNDED(rope, (size_t heads, size_t half, const float *cosine, const float *sine, float sign, float *x),
              (heads, half, cosine, sine, sign, x))
TIMED_ROUNDED(swiglu_forward, (size_t n, float *gate, float *up, float *act), (n, gate, up, act))
TIMED_ROUNDED(swiglu_backward, (size_t n, float *gate, float *up, float *grad), (n, gate, up, grad))
TIMED_ROUNDED(softmax_causal, (size_t rows, size_t columns, size_t stride, size_t first, float scale, float *scores, float *lse),
              (rows, columns, stride, first, scale, scores, lse))
TIMED_ROUNDED(softmax_again, (size_t rows, size_t columns, size_t stride, size_t first, float scale, float *scores, const float *lse),
              (rows, columns, stride, first, scale, scores, lse))
TIMED_ROUNDED(softmax_backward, (size_t rows, size_t columns, size_t stride, float scale, float *p, const float *delta, float *dp),
              (rows, columns, stride, scale, p, delta, dp))

/* Nothing but rounding. */
static void rounded_round_rows(size_t rows, size_t columns, size_t stride, float *x)
{
  if (conversions.rounded != NULL)
    TIME(rounded_seconds, conversions.rounded->round_rows(rows, columns, stride, x));
}

static float rounded_exp_sum(size_t n, float *x, float *max)
{
  float sum;
  if (conversions.rounded != NULL)
    TIME(rounded_seconds, sum = conversions.rounded->exp_sum(n, x, max));
  else
    TIME(rounded_seconds, sum = conversions.real->exp_sum(n, x, max));
  return sum;
}

const struct kernels *bench_timed_kernels(const struct kernels *kernels, const struct kernels_rounded *rounded)
{
  conversions.real = kernels;
  conversions.rounded = rounded;
  conversions.table = *kernels;
  conversions.table.f32_from_bf16 = timed_f32_from_bf16;
  conversions.table.f32_from_f16 = timed_f32_from_f16;
  conversions.table.bf16_from_f32 = timed_bf16_from_f32;
  conversions.table.f16_from_f32 = timed_f16_from_f32;
  conversions.table.round_bf16 = timed_round_bf16;
  conversions.table.round_f16 = timed_round_f16;
  conversions.rounded_table = (struct kernels_rounded){
      .round_rows = rounded_round_rows,
      .add = rounded_add,
      .scale = rounded_scale,
      .rms_forward = rounded_rms_forward,
      .add_rms_forward = rounded_add_rms_forward,
      .rms_apply = rounded_rms_apply,
      .rms_backward = rounded_rms_backward,
      .rope = rounded_rope,
      .swiglu_forward = rounded_swiglu_forward,
      .swiglu_backward = rounded_swiglu_backward,
      .softmax_causal = rounded_softmax_causal,
      .softmax_again = rounded_softmax_again,
      .softmax_backward = rounded_softmax_backward,
      .exp_sum = rounded_exp_sum,
  };
  conversions.table.bf16 = conversions.table.f16 = &conversions.rounded_table;
  conversions.seconds = conversions.rounded_seconds = 0.0;
  return &conversions.table;
}

double bench_conversion_seconds(double *rounded)
{
  *rounded = conversions.rounded_seconds;
  return conversions.seconds;
}
