/* kernels_gemm.h - the three products of a linear layer, named by what they do, on OpenBLAS. Row-major, sizes in elements.
 *
 * A weight is [out, in] and is never transposed in memory: forward is x W^T, the input's gradient dy W, the weight's dy^T x.
 * `beta` 0 overwrites (the result may be uninitialised), 1 adds. Sizes must fit OpenBLAS's int, which llama_config_check ensures.
 */
#ifndef KERNELS_GEMM_H
#define KERNELS_GEMM_H

#include <cblas.h>
#include <stdint.h>

/* c [m, n] = a [m, k] b [n, k]^T + beta c. One row is a matrix-vector product, which OpenBLAS does faster under that name. */
static inline void gemm_nt(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                           int64_t ldc)
{
  if (m == 1)
    cblas_sgemv(CblasRowMajor, CblasNoTrans, (int)n, (int)k, 1.0f, b, (int)ldb, a, 1, beta, c, 1);
  else
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)n, (int)k, 1.0f, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
}

/* c [m, n] = a [m, k] b [k, n] + beta c. */
static inline void gemm_nn(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                           int64_t ldc)
{
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)m, (int)n, (int)k, 1.0f, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
}

/* c [m, n] = a [k, m]^T b [k, n] + beta c. */
static inline void gemm_tn(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                           int64_t ldc)
{
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)m, (int)n, (int)k, 1.0f, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
}

/* y [rows, out] = x [rows, in] w [out, in]^T. */
static inline void linear_forward(int64_t rows, int64_t in, int64_t out, const float *x, const float *w, float *y)
{
  gemm_nt(rows, out, in, x, in, w, in, 0.0f, y, out);
}

/* dx [rows, in] = dy [rows, out] w [out, in] + beta dx. */
static inline void linear_backward_input(int64_t rows, int64_t in, int64_t out, const float *dy, const float *w, float beta, float *dx)
{
  gemm_nn(rows, in, out, dy, out, w, in, beta, dx, in);
}

/* dw [out, in] = dy [rows, out]^T x [rows, in] + beta dw. */
static inline void linear_backward_weight(int64_t rows, int64_t in, int64_t out, const float *dy, const float *x, float beta, float *dw)
{
  gemm_tn(out, in, rows, dy, out, x, in, beta, dw, in);
}

#endif
