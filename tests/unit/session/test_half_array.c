/* test_half_array.c - arrays between fp32 and 16 bits: the bits of half.h, for every vector unit of this machine, at any length and
 * address. */
#include <ordo/half_array.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

enum { MOST = 80 };

typedef struct target {
  const char *name;
  void (*widen)(ordo_dtype dtype, const uint16_t *src, int64_t n, float *dst);
  void (*narrow)(ordo_dtype dtype, const float *src, int64_t n, uint16_t *dst);
} target;

static const target *targets(size_t *n)
{
  static const target all[] = {
    {"chosen", ordo_half_widen, ordo_half_narrow},
    {"portable", ordo_half_widen_portable, ordo_half_narrow_portable},
#if defined(__x86_64__) && defined(__GNUC__)
    {"avx2", ordo_half_widen_avx2, ordo_half_narrow_avx2},
    {"avx512", ordo_half_widen_avx512, ordo_half_narrow_avx512},
#endif
  };
  *n = 2;
#if defined(__x86_64__) && defined(__GNUC__)
  *n += __builtin_cpu_supports("avx2") != 0;
  *n += *n == 3 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#endif
  return all;
}

static float one_up(ordo_dtype dtype, uint16_t bits)
{
  return dtype == ORDO_BF16 ? ordo_f32_from_bf16(bits) : ordo_f32_from_f16(bits);
}

static uint16_t one_down(ordo_dtype dtype, float value)
{
  return dtype == ORDO_BF16 ? ordo_bf16_from_f32(value) : ordo_f16_from_f32(value);
}

static void every_16_bit_pattern_widens(void **state)
{
  size_t n;
  const target *all = targets(&n);
  (void)state;
  for (size_t t = 0; t < n; t++)
    for (ordo_dtype dtype = ORDO_F16; dtype <= ORDO_BF16; dtype++)
      for (uint32_t first = 0; first < 65536; first += 16) {
        uint16_t src[16];
        float dst[16];
        for (uint32_t k = 0; k < 16; k++)
          src[k] = (uint16_t)(first + k);
        all[t].widen(dtype, src, 16, dst);
        for (int k = 0; k < 16; k++)
          if (ordo_bits_of_f32(dst[k]) != ordo_bits_of_f32(one_up(dtype, src[k])))
            fail_msg("%s, type %u: 0x%04x", all[t].name, dtype, src[k]);
      }
}

/* Around every fp32 whose upper half is a pattern: the ties, their neighbours, subnormals, overflow and NaN are among them. */
static void fp32_rounds_as_one_by_one(void **state)
{
  static const uint32_t lower[16] = {0,      1,      0x0fff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000,
                                     0x7fff, 0x8000, 0x8001, 0x9000, 0xb000, 0xefff, 0xf000, 0xffff};
  size_t n;
  const target *all = targets(&n);
  (void)state;
  for (size_t t = 0; t < n; t++)
    for (ordo_dtype dtype = ORDO_F16; dtype <= ORDO_BF16; dtype++)
      for (uint32_t upper = 0; upper < 65536; upper++) {
        float src[16];
        uint16_t dst[16];
        for (int k = 0; k < 16; k++)
          src[k] = ordo_f32_of_bits(upper << 16 | lower[k]);
        all[t].narrow(dtype, src, 16, dst);
        for (int k = 0; k < 16; k++)
          if (dst[k] != one_down(dtype, src[k]))
            fail_msg("%s, type %u: 0x%08x", all[t].name, dtype, ordo_bits_of_f32(src[k]));
      }
}

static void any_length_and_address(void **state)
{
  size_t n;
  const target *all = targets(&n);
  (void)state;
  for (size_t t = 0; t < n; t++)
    for (ordo_dtype dtype = ORDO_F16; dtype <= ORDO_BF16; dtype++)
      for (int length = 0; length < MOST / 2; length++)
        for (int at = 0; at < 3; at++) {
          uint16_t low[MOST] = {0}, back[MOST] = {0};
          float wide[MOST] = {0};
          for (int k = 0; k < length; k++)
            low[at + k] = (uint16_t)(0x3c00 + 37 * k);
          all[t].widen(dtype, low + at, length, wide + at);
          all[t].narrow(dtype, wide + at, length, back + at);
          assert_memory_equal(low, back, sizeof low);
          assert_true(wide[at + length] == 0.0f);
        }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_16_bit_pattern_widens),
      cmocka_unit_test(fp32_rounds_as_one_by_one),
      cmocka_unit_test(any_length_and_address),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
