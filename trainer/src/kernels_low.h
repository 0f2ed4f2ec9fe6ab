/* kernels_low.h - the conversions and the rounding kernels of kernels.h chosen by element type, for code that handles arrays of several
 * types.
 *
 * Types are ORDO_F32, ORDO_BF16 and ORDO_F16 of ordo/dtype.h; nothing else may be passed. Sizes in elements. */
#ifndef KERNELS_LOW_H
#define KERNELS_LOW_H

#include <ordo/dtype.h>
#include <string.h>

#include "kernels.h"

/* 1 for the two 16-bit types. */
static inline int kernels_is_low(ordo_dtype dtype)
{
  return dtype == ORDO_BF16 || dtype == ORDO_F16;
}

/* to[n] = from[n] of `dtype`, exact. The arrays do not overlap. */
static inline void kernels_widen(const struct kernels *kernels, ordo_dtype dtype, size_t n, const void *from, float *to)
{
  if (dtype == ORDO_BF16)
    kernels->f32_from_bf16(n, from, to);
  else if (dtype == ORDO_F16)
    kernels->f32_from_f16(n, from, to);
  else
    memcpy(to, from, n * sizeof *to);
}

/* to[n] of `dtype` = from[n], rounded to nearest even. The arrays do not overlap. */
static inline void kernels_narrow(const struct kernels *kernels, ordo_dtype dtype, size_t n, const float *from, void *to)
{
  if (dtype == ORDO_BF16)
    kernels->bf16_from_f32(n, from, to);
  else if (dtype == ORDO_F16)
    kernels->f16_from_f32(n, from, to);
  else
    memcpy(to, from, n * sizeof *from);
}

/* to[n] = from[n], each rounded to `dtype` and kept in fp32. `to` may be `from`. */
static inline void kernels_round_copy(const struct kernels *kernels, ordo_dtype dtype, size_t n, const float *from, float *to)
{
  if (dtype == ORDO_BF16)
    kernels->round_bf16(n, from, to);
  else if (dtype == ORDO_F16)
    kernels->round_f16(n, from, to);
  else if (to != from)
    memcpy(to, from, n * sizeof *to);
}

/* x[n], each rounded to `dtype` and kept in fp32; nothing for fp32. */
static inline void kernels_round(const struct kernels *kernels, ordo_dtype dtype, size_t n, float *x)
{
  kernels_round_copy(kernels, dtype, n, x, x);
}

/* Kernels that round to `dtype` as they go; null for fp32. */
static inline const struct kernels_rounded *kernels_rounded(const struct kernels *kernels, ordo_dtype dtype)
{
  return dtype == ORDO_BF16 ? kernels->bf16 : dtype == ORDO_F16 ? kernels->f16 : NULL;
}

#endif
