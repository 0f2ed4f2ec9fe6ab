/* half.c - see half.h. Subnormals, overflow to infinity and NaN (made quiet) are part of the contract: tests compare bit patterns. */
#include "half.h"

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

float ordo_half_from_bf16(uint16_t bits)
{
  return float_of((uint32_t)bits << 16);
}

float ordo_half_from_f16(uint16_t bits)
{
  uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent == 31)
    return float_of(sign | 0x7F800000u | fraction << 13);
  if (exponent == 0) {
    float magnitude = (float)fraction * 0x1p-24f; /* exact */
    return sign ? -magnitude : magnitude;
  }
  return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t ordo_half_to_bf16(float value)
{
  uint32_t bits = bits_of(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
    return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

uint16_t ordo_half_to_f16(float value)
{
  uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u)
    return (uint16_t)(sign | 0x7E00);
  if (magnitude >= 0x47800000u) /* 65536 and more */
    return (uint16_t)(sign | 0x7C00);
  if (magnitude < 0x38800000u) { /* below 2^-14: the addition of 0.5 rounds to a multiple of 2^-24 */
    uint32_t rounded = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    return (uint16_t)(sign | rounded);
  }
  uint32_t odd = magnitude >> 13 & 1;
  return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xFFF + odd) >> 13));
}
