/* ordo/half_array.h - arrays between fp32 and the two 16-bit formats: the bits of half.h at the speed of memory.
 *
 * One body, compiled for the vector units that an x86-64 may have, and chosen at run time; elsewhere the compiler decides. Source and
 * destination must not overlap; addresses need no alignment beyond that of an element. It needs nothing but a compiler: integer arithmetic
 * alone, no intrinsics, so that a plugin in C or C++ may include it anywhere.
 */
#ifndef ORDO_HALF_ARRAY_H
#define ORDO_HALF_ARRAY_H

#include <ordo/dtype.h>
#include <ordo/half.h>

#if defined(__GNUC__)
/* Sixteen elements at any address. */
typedef uint16_t ordo_u16x16 __attribute__((vector_size(32), aligned(2), may_alias));
typedef uint32_t ordo_u32x16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t ordo_i32x16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef float ordo_f32x16 __attribute__((vector_size(64), aligned(4), may_alias));

/* The formulas of half.h, sixteen at a time: see there for why. */
#define ORDO_HALF_SELECT_(CONDITION, A, B) (((ordo_u32x16)(CONDITION) & (A)) | (~(ordo_u32x16)(CONDITION) & (B)))
#define ORDO_HALF_ARRAYS_(NAME, TARGET)                                                                                    \
  TARGET ORDO_INLINE void ordo_half_widen_##NAME(ordo_dtype dtype, const uint16_t *src, int64_t n, float *dst)             \
  {                                                                                                                        \
    int64_t i = 0;                                                                                                         \
    for (; dtype == ORDO_BF16 && i + 16 <= n; i += 16)                                                                     \
      *(ordo_u32x16 *)(dst + i) = __builtin_convertvector(*(const ordo_u16x16 *)(src + i), ordo_u32x16) << 16;             \
    for (; dtype == ORDO_F16 && i + 16 <= n; i += 16) {                                                                    \
      ordo_u32x16 half = __builtin_convertvector(*(const ordo_u16x16 *)(src + i), ordo_u32x16);                            \
      ordo_u32x16 sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu, fraction = half & 0x3ffu;                     \
      ordo_f32x16 subnormal = __builtin_convertvector((ordo_i32x16)fraction, ordo_f32x16) * 0x1p-24f;                      \
      ordo_u32x16 result = ORDO_HALF_SELECT_(magnitude < 0x400u, (ordo_u32x16)subnormal, (magnitude << 13) + 0x38000000u); \
      result = ORDO_HALF_SELECT_(magnitude >= 0x7c00u, 0x7f800000u | (fraction << 13), result);                            \
      *(ordo_u32x16 *)(dst + i) = sign | result;                                                                           \
    }                                                                                                                      \
    for (; i < n; i++)                                                                                                     \
      dst[i] = dtype == ORDO_BF16 ? ordo_f32_from_bf16(src[i]) : ordo_f32_from_f16(src[i]);                                \
  }                                                                                                                        \
  TARGET ORDO_INLINE void ordo_half_narrow_##NAME(ordo_dtype dtype, const float *src, int64_t n, uint16_t *dst)            \
  {                                                                                                                        \
    int64_t i = 0;                                                                                                         \
    for (; dtype == ORDO_BF16 && i + 16 <= n; i += 16) {                                                                   \
      ordo_u32x16 bits = *(const ordo_u32x16 *)(src + i), upper = bits >> 16;                                              \
      ordo_u32x16 rounded = (bits + 0x7fffu + (upper & 1u)) >> 16;                                                         \
      rounded = ORDO_HALF_SELECT_((bits & 0x7fffffffu) > 0x7f800000u, upper | 0x40u, rounded);                             \
      *(ordo_u16x16 *)(dst + i) = __builtin_convertvector(rounded, ordo_u16x16);                                           \
    }                                                                                                                      \
    for (; dtype == ORDO_F16 && i + 16 <= n; i += 16) {                                                                    \
      ordo_u32x16 bits = *(const ordo_u32x16 *)(src + i), magnitude = bits & 0x7fffffffu;                                  \
      ordo_u32x16 normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;                            \
      ordo_u32x16 subnormal = (ordo_u32x16)((ordo_f32x16)magnitude + 0.5f) - 0x3f000000u;                                  \
      ordo_u32x16 result = ORDO_HALF_SELECT_(magnitude < 0x38800000u, subnormal, normal);                                  \
      result = ORDO_HALF_SELECT_(magnitude >= 0x477ff000u, 0x7c00u, result);                                               \
      result = ORDO_HALF_SELECT_(magnitude > 0x7f800000u, 0x7e00u, result);                                                \
      *(ordo_u16x16 *)(dst + i) = __builtin_convertvector(((bits >> 16) & 0x8000u) | result, ordo_u16x16);                 \
    }                                                                                                                      \
    for (; i < n; i++)                                                                                                     \
      dst[i] = dtype == ORDO_BF16 ? ordo_bf16_from_f32(src[i]) : ordo_f16_from_f32(src[i]);                                \
  }
#else
#define ORDO_HALF_ARRAYS_(NAME, TARGET)                                                                  \
  ORDO_INLINE void ordo_half_widen_##NAME(ordo_dtype dtype, const uint16_t *src, int64_t n, float *dst)  \
  {                                                                                                      \
    for (int64_t i = 0; i < n; i++)                                                                      \
      dst[i] = dtype == ORDO_BF16 ? ordo_f32_from_bf16(src[i]) : ordo_f32_from_f16(src[i]);              \
  }                                                                                                      \
  ORDO_INLINE void ordo_half_narrow_##NAME(ordo_dtype dtype, const float *src, int64_t n, uint16_t *dst) \
  {                                                                                                      \
    for (int64_t i = 0; i < n; i++)                                                                      \
      dst[i] = dtype == ORDO_BF16 ? ordo_bf16_from_f32(src[i]) : ordo_f16_from_f32(src[i]);              \
  }
#endif

ORDO_HALF_ARRAYS_(portable, )
#if defined(__x86_64__) && defined(__GNUC__)
ORDO_HALF_ARRAYS_(avx2, __attribute__((target("avx2"))))
ORDO_HALF_ARRAYS_(avx512, __attribute__((target("avx512f,avx512bw,avx512vl"))))
#define ORDO_HALF_CHOOSE_(FUNCTION, ...)                                          \
  do {                                                                            \
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) \
      FUNCTION##_avx512(__VA_ARGS__);                                             \
    else if (__builtin_cpu_supports("avx2"))                                      \
      FUNCTION##_avx2(__VA_ARGS__);                                               \
    else                                                                          \
      FUNCTION##_portable(__VA_ARGS__);                                           \
  } while (0)
#else
#define ORDO_HALF_CHOOSE_(FUNCTION, ...) FUNCTION##_portable(__VA_ARGS__)
#endif

/* dst[i] = src[i], n elements of ORDO_F16 or ORDO_BF16, as fp32; exact. [any] since 0.1 */
ORDO_INLINE void ordo_half_widen(ordo_dtype dtype, const uint16_t *src, int64_t n, float *dst)
{
  ORDO_HALF_CHOOSE_(ordo_half_widen, dtype, src, n, dst);
}

/* dst[i] = src[i], n elements, rounded to nearest even to ORDO_F16 or ORDO_BF16. [any] since 0.1 */
ORDO_INLINE void ordo_half_narrow(ordo_dtype dtype, const float *src, int64_t n, uint16_t *dst)
{
  ORDO_HALF_CHOOSE_(ordo_half_narrow, dtype, src, n, dst);
}

#undef ORDO_HALF_ARRAYS_
#undef ORDO_HALF_SELECT_

#endif
