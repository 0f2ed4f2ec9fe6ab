/* bf16_gemm.h - products of bf16 matrices with fp32 sums, on a library that uses the processor's matrix units (AMX).
 *
 * What it is not: a replacement for OpenBLAS. It exists only where such units do, because products of bf16 on vector units alone are
 * slower than fp32; without it the trainer widens and multiplies in fp32, which gives the same sums up to their order.
 *
 * Two sources fill this header: bf16_gemm_onednn.c with the meson feature `onednn`, bf16_gemm_none.c without. Row-major, sizes in
 * elements, names as in kernels_gemm.h. One thread, the caller's.
 */
#ifndef BF16_GEMM_H
#define BF16_GEMM_H

#include <stdint.h>
#include <string.h>

struct bf16_gemm;

/* "auto" (also unset or empty): on processors with AMX; "on": wherever the library runs, to test it; "off": never. */
#define BF16_GEMM_VARIABLE "ORDO_BF16_GEMM"

enum bf16_gemm_wish { BF16_GEMM_AUTO, BF16_GEMM_ON, BF16_GEMM_OFF };

/* One of bf16_gemm_wish for the variable's value (null: unset), -1 for another word, which bf16_gemm_create takes as auto: whoever reads
 * settings refuses it first. */
static inline int bf16_gemm_wish(const char *word)
{
  if (word == NULL || *word == '\0' || strcmp(word, "auto") == 0)
    return BF16_GEMM_AUTO;
  return strcmp(word, "on") == 0 ? BF16_GEMM_ON : strcmp(word, "off") == 0 ? BF16_GEMM_OFF : -1;
}

/* Null where products should stay in fp32: not built in, no matrix units, or no memory. Freed with bf16_gemm_destroy. [step] since 0.1 */
struct bf16_gemm *bf16_gemm_create(void);
/* Null is fine. [step] since 0.1 */
void bf16_gemm_destroy(struct bf16_gemm *gemm);

/* c [m, n] = op(a) op(b), plus c with `adds`. 0, or -1 if the library refused or there is no memory: c may then hold anything, unless
 * the product adds: then it is as before. [step] since 0.1 */
/* a [m, k], b [n, k], a weight: packed for the units first. */
int bf16_gemm_nt(struct bf16_gemm *gemm, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b, int64_t ldb,
                 int adds, float *c, int64_t ldc);
/* a [m, k], b [k, n], a weight: packed for the units first. */
int bf16_gemm_nn(struct bf16_gemm *gemm, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b, int64_t ldb,
                 int adds, float *c, int64_t ldc);
/* a [k, m], b [k, n]. */
int bf16_gemm_tn(struct bf16_gemm *gemm, int64_t m, int64_t n, int64_t k, const uint16_t *a, int64_t lda, const uint16_t *b, int64_t ldb,
                 int adds, float *c, int64_t ldc);

#endif
