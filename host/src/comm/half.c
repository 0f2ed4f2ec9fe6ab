/* half.c - bf16 and binary16 to and from fp32, one element at a time.
 *
 * Not a kernel: reduce.c calls it for blocks that sit in the first-level cache. Integer arithmetic only, so the result does not depend
 * on the rounding mode, on flush-to-zero or on the processor; a rank with other hardware must get the same bits.
 * Guards against the usual slips: a signalling NaN that turns into infinity when its low bits are cut off, and double rounding
 * of subnormal results. Formats: IEEE 754-2019 section 3.4 (binary16, binary32); bf16 is the upper half of binary32.
 */
#include "reduce.h"

#include <string.h>

static uint32_t bits_of(float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float float_of(uint32_t bits)
{
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

uint16_t ordo_bf16_from_f32(float value)
{
  uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return (uint16_t)((bits >> 16) | 0x40u);
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float ordo_f32_from_bf16(uint16_t bits)
{
  return float_of((uint32_t)bits << 16);
}

/* `mantissa` shifted right by `shift` (1..31), rounded to nearest even. */
static uint32_t shift_to_even(uint32_t mantissa, uint32_t shift)
{
  uint32_t half = 1u << (shift - 1);
  uint32_t rest = mantissa & ((1u << shift) - 1u);
  uint32_t result = mantissa >> shift;
  return result + (rest > half || (rest == half && (result & 1u)));
}

uint16_t ordo_f16_from_f32(float value)
{
  uint32_t bits = bits_of(value);
  uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  if (magnitude >= 0x477ff000u) /* 65520, halfway between the largest binary16 and the next power of two */
    return (uint16_t)(sign | 0x7c00u);
  if (magnitude >= 0x38800000u) /* 2^-14, the smallest normal: rebias the exponent from 127 to 15 and round the mantissa */
    return (uint16_t)(sign | shift_to_even(magnitude - 0x38000000u, 13));
  uint32_t exponent = magnitude >> 23;
  if (exponent < 102) /* below 2^-25, half of the smallest subnormal */
    return (uint16_t)sign;
  return (uint16_t)(sign | shift_to_even((magnitude & 0x7fffffu) | 0x800000u, 126 - exponent));
}

float ordo_f32_from_f16(uint16_t bits)
{
  uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
  uint32_t exponent = (bits >> 10) & 0x1fu;
  uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 31)
    return float_of(sign | 0x7f800000u | (mantissa << 13));
  if (exponent > 0)
    return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
  float value = (float)mantissa * 0x1p-24f;
  return sign ? -value : value;
}
