/* low.c - what is done with 16-bit messages, chunk by chunk in fp32. The conversions themselves are those of ordo/half_array.h. */
#include "private.h"

#include <ordo/half_array.h>

#include <string.h>

enum { CHUNK = 512 };

int sharding_is_float(ordo_dtype dtype)
{
  return dtype == ORDO_F32 || dtype == ORDO_BF16 || dtype == ORDO_F16;
}

const char *sharding_dtype_name(ordo_dtype dtype)
{
  static const char *const names[] = {"?", "f32", "f64", "f16", "bf16", "i8", "u8", "i32", "i64", "u64"};
  return dtype < sizeof names / sizeof names[0] ? names[dtype] : "an opaque type";
}

void sharding_narrow(ordo_dtype dtype, const float *from, int64_t n, double factor, uint16_t *to)
{
  const float f = (float)factor;
  float chunk[CHUNK];
  for (int64_t i = 0; i < n; i += CHUNK) {
    const int64_t part = n - i < CHUNK ? n - i : CHUNK;
    for (int64_t k = 0; k < part; k++)
      chunk[k] = from[i + k] * f;
    ordo_half_narrow(dtype, chunk, part, to + i);
  }
}

/* `from` may be the upper half of `to`: each chunk is read before it is written, and a write never passes what is still to be read. */
void sharding_widen(ordo_dtype dtype, const uint16_t *from, int64_t n, float *to)
{
  uint16_t chunk[CHUNK];
  for (int64_t i = 0; i < n; i += CHUNK) {
    int64_t part = n - i < CHUNK ? n - i : CHUNK;
    memcpy(chunk, from + i, (size_t)part * sizeof *chunk);
    ordo_half_widen(dtype, chunk, part, to + i);
  }
}

void sharding_round(ordo_dtype dtype, float *values, int64_t n)
{
  uint16_t chunk[CHUNK];
  for (int64_t i = 0; i < n; i += CHUNK) {
    const int64_t part = n - i < CHUNK ? n - i : CHUNK;
    ordo_half_narrow(dtype, values + i, part, chunk);
    ordo_half_widen(dtype, chunk, part, values + i);
  }
}

void sharding_add_low(ordo_dtype dtype, const float *from, int64_t n, uint16_t *to)
{
  float chunk[CHUNK];
  for (int64_t i = 0; i < n; i += CHUNK) {
    const int64_t part = n - i < CHUNK ? n - i : CHUNK;
    ordo_half_widen(dtype, to + i, part, chunk);
    for (int64_t k = 0; k < part; k++)
      chunk[k] += from[i + k];
    ordo_half_narrow(dtype, chunk, part, to + i);
  }
}
