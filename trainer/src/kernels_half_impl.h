/* kernels_half_impl.h - arrays between fp32 and the 16-bit formats; the part of kernels_impl.c that is about them.
 *
 * It is included by kernels_impl.c alone, once per instruction set. The bits are those of ordo/half.h on every processor, NaN payloads
 * included, so that ranks with different hardware agree. Where an instruction does the same it is used: F16C and AVX-512 convert binary16,
 * except that they make a signalling NaN quiet and keep parts of payloads; groups with a NaN therefore go through half.h. bf16 is integer
 * arithmetic that the compiler vectorises. ordo/half_array.h does the same for plugins and the host, with integers only and its own choice
 * at run time; these are apart from it because a product converts its weights in every pass: they belong to the table of an instruction set
 * (so every table can be tested on one processor), use its conversion instructions, and round in place without packing. VCVTNEPS2BF16 of
 * AVX512_BF16 is of no use: it takes subnormal numbers for zero.
 */
#ifndef KERNELS_HALF_IMPL_H
#define KERNELS_HALF_IMPL_H

#include <ordo/half.h>

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

/* The upper half stays where it is, so nothing is packed and unpacked again. Signed comparisons are the cheap ones below AVX-512. */
static inline float round_bf16_one(float x)
{
  uint32_t bits = ordo_bits_of_f32(x);
  uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  uint32_t quiet = bits | 0x400000u;
  return ordo_f32_of_bits((x != x ? quiet : rounded) & 0xffff0000u);
}

/* binary16 and back without moving bits, for loops that do something else too; an array alone is faster with F16C (round_f16). In
 * 1.5 * 2^(e+13) one unit in the last place is 2^(e-10), the spacing of binary16 at numbers of exponent e, so adding and subtracting it
 * rounds to nearest even; subnormals have the spacing of e = -14. */
static inline float round_f16_one(float x)
{
  uint32_t bits = ordo_bits_of_f32(x);
  int32_t magnitude = (int32_t)(bits & 0x7fffffffu), exponent = magnitude & 0x7f800000;
  float spacer = ordo_f32_of_bits((uint32_t)(exponent > 0x38800000 ? exponent : 0x38800000) + (13u << 23) + 0x400000u);
  uint32_t result = ordo_bits_of_f32((ordo_f32_of_bits((uint32_t)magnitude) + spacer) - spacer);
  result = magnitude >= 0x477ff000 ? 0x7f800000u : result; /* 65520: halfway between the largest binary16 and 2^16 */
  result = x != x ? 0x7fc00000u : result;
  return ordo_f32_of_bits((bits & 0x80000000u) | result);
}

static void f32_from_bf16(size_t n, const uint16_t *restrict from, float *restrict to)
{
  for (size_t i = 0; i < n; i++)
    to[i] = ordo_f32_from_bf16(from[i]);
}

static void bf16_from_f32(size_t n, const float *restrict from, uint16_t *restrict to)
{
  for (size_t i = 0; i < n; i++)
    to[i] = (uint16_t)(ordo_bits_of_f32(round_bf16_one(from[i])) >> 16);
}

static void round_bf16(size_t n, const float *from, float *to)
{
#pragma omp simd
  for (size_t i = 0; i < n; i++)
    to[i] = round_bf16_one(from[i]);
}

static void f32_from_f16_plain(size_t n, const uint16_t *restrict from, float *restrict to)
{
  for (size_t i = 0; i < n; i++)
    to[i] = ordo_f32_from_f16(from[i]);
}

static void f16_from_f32_plain(size_t n, const float *restrict from, uint16_t *restrict to)
{
  for (size_t i = 0; i < n; i++)
    to[i] = ordo_f16_from_f32(from[i]);
}

static void round_f16_plain(size_t n, const float *from, float *to)
{
#pragma omp simd
  for (size_t i = 0; i < n; i++)
    to[i] = round_f16_one(from[i]);
}

#if defined(__AVX512F__)
enum { HALF_GROUP = 16 };
typedef __m512 half_floats;
typedef __m256i half_bits;
static inline half_floats half_load_f32(const float *x)
{
  return _mm512_loadu_ps(x);
}
static inline void half_store_f32(float *x, half_floats v)
{
  _mm512_storeu_ps(x, v);
}
static inline half_bits half_load_f16(const uint16_t *x)
{
  return _mm256_loadu_si256((const __m256i *)(const void *)x);
}
static inline void half_store_f16(uint16_t *x, half_bits v)
{
  _mm256_storeu_si256((__m256i *)(void *)x, v);
}
static inline half_bits half_narrow(half_floats v)
{
  return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline half_floats half_widen(half_bits v)
{
  return _mm512_cvtph_ps(v);
}
static inline int half_has_nan(half_floats v)
{
  return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q) != 0;
}
#elif defined(__F16C__)
enum { HALF_GROUP = 8 };
typedef __m256 half_floats;
typedef __m128i half_bits;
static inline half_floats half_load_f32(const float *x)
{
  return _mm256_loadu_ps(x);
}
static inline void half_store_f32(float *x, half_floats v)
{
  _mm256_storeu_ps(x, v);
}
static inline half_bits half_load_f16(const uint16_t *x)
{
  return _mm_loadu_si128((const __m128i *)(const void *)x);
}
static inline void half_store_f16(uint16_t *x, half_bits v)
{
  _mm_storeu_si128((__m128i *)(void *)x, v);
}
static inline half_bits half_narrow(half_floats v)
{
  return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}
static inline half_floats half_widen(half_bits v)
{
  return _mm256_cvtph_ps(v);
}
static inline int half_has_nan(half_floats v)
{
  return _mm256_movemask_ps(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)) != 0;
}
#endif

#if defined(__AVX512F__) || defined(__F16C__)
static void f32_from_f16(size_t n, const uint16_t *restrict from, float *restrict to)
{
  size_t i = 0;
  for (; i + HALF_GROUP <= n; i += HALF_GROUP) {
    half_floats wide = half_widen(half_load_f16(from + i));
    if (half_has_nan(wide))
      f32_from_f16_plain(HALF_GROUP, from + i, to + i);
    else
      half_store_f32(to + i, wide);
  }
  f32_from_f16_plain(n - i, from + i, to + i);
}

static void f16_from_f32(size_t n, const float *restrict from, uint16_t *restrict to)
{
  size_t i = 0;
  for (; i + HALF_GROUP <= n; i += HALF_GROUP) {
    half_floats wide = half_load_f32(from + i);
    if (half_has_nan(wide))
      f16_from_f32_plain(HALF_GROUP, from + i, to + i);
    else
      half_store_f16(to + i, half_narrow(wide));
  }
  f16_from_f32_plain(n - i, from + i, to + i);
}

static void round_f16(size_t n, const float *from, float *to)
{
  size_t i = 0;
  for (; i + HALF_GROUP <= n; i += HALF_GROUP) {
    half_floats wide = half_load_f32(from + i);
    if (half_has_nan(wide))
      round_f16_plain(HALF_GROUP, from + i, to + i);
    else
      half_store_f32(to + i, half_widen(half_narrow(wide)));
  }
  round_f16_plain(n - i, from + i, to + i);
}
#else
static void f32_from_f16(size_t n, const uint16_t *restrict from, float *restrict to)
{
  f32_from_f16_plain(n, from, to);
}

static void f16_from_f32(size_t n, const float *restrict from, uint16_t *restrict to)
{
  f16_from_f32_plain(n, from, to);
}

static void round_f16(size_t n, const float *from, float *to)
{
  round_f16_plain(n, from, to);
}
#endif

#endif
