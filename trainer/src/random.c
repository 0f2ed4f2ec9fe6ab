/* random.c - see random.h.
 *
 * The layout of a stream is part of the format of a run: element i of a normal stream is output i mod 4 of block i / 4, so a chunk may
 * start anywhere and still gives the same values as a whole read. Changing it changes every fresh model.
 */
#include "random.h"

#include <math.h>

void ordo_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)0xD2511F53u * c0;
    uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

static void philox_block(uint64_t key, uint64_t block, uint32_t purpose, uint32_t out[4])
{
  const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), purpose, 0};
  const uint32_t words[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
  ordo_philox(counter, words, out);
}

uint64_t ordo_random_key(uint64_t seed, const char *name)
{
  uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a, 64 bits */
  uint32_t out[4];
  for (const char *c = name; *c; c++)
    hash = (hash ^ (uint8_t)*c) * 0x100000001b3u;
  philox_block(seed, hash, 1, out); /* seeds 1, 2, 3 must not give related keys */
  return (uint64_t)out[1] << 32 | out[0];
}

double ordo_random_uniform(uint64_t key, uint64_t index)
{
  uint32_t out[4];
  philox_block(key, index, 2, out);
  return (double)(((uint64_t)out[1] << 32 | out[0]) >> 11) * 0x1p-53;
}

static void normal_block(uint64_t key, uint64_t block, double deviation, float values[4])
{
  uint32_t out[4];
  philox_block(key, block, 3, out);
  for (int i = 0; i < 4; i += 2) {
    double u = ((double)out[i] + 0.5) * 0x1p-32; /* never 0 */
    double angle = (double)out[i + 1] * (2.0 * 3.14159265358979323846 * 0x1p-32);
    double radius = deviation * sqrt(-2.0 * log(u));
    values[i] = (float)(radius * cos(angle));
    values[i + 1] = (float)(radius * sin(angle));
  }
}

void ordo_random_normal(uint64_t key, int64_t begin, int64_t count, double deviation, float *dst)
{
  float values[4];
  int64_t end = begin + count;
  for (int64_t i = begin; i < end;) {
    normal_block(key, (uint64_t)i / 4, deviation, values);
    do
      *dst++ = values[i % 4];
    while (++i % 4 && i < end);
  }
}

uint64_t ordo_random_permute(uint64_t key, uint64_t n, uint64_t i)
{
  unsigned half = 1;
  while (half < 32 && ((uint64_t)1 << (2 * half)) < n)
    half++;
  uint64_t mask = ((uint64_t)1 << half) - 1;
  do {
    uint64_t left = i >> half, right = i & mask;
    for (uint32_t round = 0; round < 4; round++) {
      uint32_t out[4];
      philox_block(key, right, 16 + round, out);
      uint64_t mixed = left ^ (out[0] & mask);
      left = right;
      right = mixed;
    }
    i = left << half | right;
  } while (i >= n);
  return i;
}
