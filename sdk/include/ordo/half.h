/* ordo/half.h - single elements between fp32 and the two 16-bit formats, rounded to nearest even (IEEE 754-2019 section 3.4;
 * bf16 is the upper half of a binary32).
 *
 * The bits do not depend on the processor, so ranks with different hardware get the same values (in the default rounding mode).
 * Written without branches, so that compilers turn loops over arrays into vector code. Subnormals are kept, 65520 and more becomes
 * infinity in binary16, a NaN stays a NaN (made quiet).
 */
#ifndef ORDO_HALF_H
#define ORDO_HALF_H

#include <ordo/abi.h>
#include <string.h>

/* The bits of a binary32. [any] since 0.1 */
ORDO_INLINE uint32_t ordo_bits_of_f32(float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* The binary32 with these bits. [any] since 0.1 */
ORDO_INLINE float ordo_f32_of_bits(uint32_t bits)
{
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* fp32 to bf16. [any] since 0.1 */
ORDO_INLINE uint16_t ordo_bf16_from_f32(float value)
{
  uint32_t bits = ordo_bits_of_f32(value);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  uint32_t quiet = (bits >> 16) | 0x40u; /* cutting the low half must not make a NaN an infinity */
  return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/* bf16 to fp32, exact. [any] since 0.1 */
ORDO_INLINE float ordo_f32_from_bf16(uint16_t bits)
{
  return ordo_f32_of_bits((uint32_t)bits << 16);
}

/* fp32 to binary16. [any] since 0.1 */
ORDO_INLINE uint16_t ordo_f16_from_f32(float value)
{
  uint32_t bits = ordo_bits_of_f32(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13; /* 112 = 127 - 15, the difference of the biases */
  /* Below 2^-14: in 0.5 + x one unit in the last place is 2^-24, the spacing of binary16 subnormals. */
  uint32_t subnormal = ordo_bits_of_f32(ordo_f32_of_bits(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result; /* 65520: halfway between the largest binary16 and 2^16 */
  result = magnitude > 0x7f800000u ? 0x7e00u : result;
  return (uint16_t)(sign | result);
}

/* binary16 to fp32, exact. [any] since 0.1 */
ORDO_INLINE float ordo_f32_from_f16(uint16_t bits)
{
  uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu, fraction = bits & 0x3ffu;
  uint32_t normal = (magnitude << 13) + 0x38000000u;
  uint32_t subnormal = ordo_bits_of_f32((float)(int32_t)fraction * 0x1p-24f);
  uint32_t result = magnitude < 0x400u ? subnormal : normal;
  result = magnitude >= 0x7c00u ? 0x7f800000u | (fraction << 13) : result;
  return ordo_f32_of_bits(sign | result);
}

#endif
