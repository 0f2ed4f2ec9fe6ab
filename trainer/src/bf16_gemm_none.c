/* bf16_gemm_none.c - a build without a library for bf16 products: everything is computed in fp32. See bf16_gemm.h. */
#include "bf16_gemm.h"

#include <stddef.h>

struct bf16_gemm *bf16_gemm_create(void)
{
  return NULL;
}

void bf16_gemm_destroy(struct bf16_gemm *gemm)
{
  (void)gemm;
}

static int refuse(const struct bf16_gemm *gemm, const uint16_t *a, const uint16_t *b, const float *c)
{
  (void)gemm;
  (void)a;
  (void)b;
  (void)c;
  return -1;
}

int bf16_gemm_nt(struct bf16_gemm *gemm, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b, int64_t ldb,
                 int adds, float *c, int64_t ldc)
{
  return (void)(m + n + k + lda + ldb + adds + ldc), refuse(gemm, a, b, c);
}

int bf16_gemm_nn(struct bf16_gemm *gemm, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b, int64_t ldb,
                 int adds, float *c, int64_t ldc)
{
  return (void)(m + n + k + lda + ldb + adds + ldc), refuse(gemm, a, b, c);
}

int bf16_gemm_tn(struct bf16_gemm *gemm, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b, int64_t ldb,
                 int adds, float *c, int64_t ldc)
{
  return (void)(m + n + k + lda + ldb + adds + ldc), refuse(gemm, a, b, c);
}
