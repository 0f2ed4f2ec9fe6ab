/* test_reduce.c - reductions and 16-bit rounding against tables and a plain reference. */
#include "testing.h"

#include <ordo/half.h>
#include "comm/reduce.h"
#include "rounding_table.h"

#include <float.h>
#include <math.h>

static float from_bits(uint32_t bits)
{
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static gboolean is_nan16(uint16_t bits, uint16_t exponent)
{
  return (bits & exponent) == exponent && (bits & (uint16_t) ~(exponent | 0x8000u)) != 0;
}

static void rounding_matches_the_table(void **state)
{
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(rounding_table); i++) {
    float value = from_bits(rounding_table[i].f32);
    uint16_t bf16 = ordo_bf16_from_f32(value), f16 = ordo_f16_from_f32(value);
    if (isnan(value)) {
      assert_true(is_nan16(bf16, 0x7f80));
      assert_true(is_nan16(f16, 0x7c00));
    } else {
      assert_int_equal(bf16, rounding_table[i].bf16);
      assert_int_equal(f16, rounding_table[i].f16);
    }
  }
}

static void every_16_bit_value_survives_the_round_trip(void **state)
{
  (void)state;
  for (uint32_t bits = 0; bits < 0x10000; bits++) {
    uint16_t half = (uint16_t)bits;
    if (is_nan16(half, 0x7c00))
      assert_true(isnan(ordo_f32_from_f16(half)) && is_nan16(ordo_f16_from_f32(ordo_f32_from_f16(half)), 0x7c00));
    else
      assert_int_equal(ordo_f16_from_f32(ordo_f32_from_f16(half)), half);
    if (!is_nan16(half, 0x7f80))
      assert_int_equal(ordo_bf16_from_f32(ordo_f32_from_bf16(half)), half);
  }
}

/* The vectorised load and store must round like the one-element functions, in the vector part and in the tail. */
static void bf16_kernel_rounds_like_the_function(void **state)
{
  enum { N = 16 * 40 + 5 };
  uint16_t a[N], b[N], out[N], second[N];
  (void)state;
  for (size_t i = 0; i < N; i++) {
    a[i] = ordo_bf16_from_f32(from_bits(rounding_table[i % G_N_ELEMENTS(rounding_table)].f32));
    b[i] = ordo_bf16_from_f32(from_bits(rounding_table[(i * 7 + 3) % G_N_ELEMENTS(rounding_table)].f32));
  }
  ordo_reduction sum = {ORDO_BF16, ORDO_SUM, 1.0, FALSE};
  const void *inputs[] = {a, b};
  void *outputs[] = {out, second};
  ordo_reduce(&sum, outputs, 2, inputs, 2, N);
  for (size_t i = 0; i < N; i++) {
    float exact = ordo_f32_from_bf16(a[i]) + ordo_f32_from_bf16(b[i]);
    if (isnan(exact))
      assert_true(is_nan16(out[i], 0x7f80));
    else
      assert_int_equal(out[i], ordo_bf16_from_f32(exact));
    assert_int_equal(out[i], second[i]);
  }
}

/* Three terms that vanish one by one in 16 bits but not in fp32: 1 + 2^-8 + 2^-8 is 1 + 2^-7, a bf16 value. */
static void sixteen_bit_sums_accumulate_in_fp32(void **state)
{
  (void)state;
  uint16_t one = ordo_bf16_from_f32(1.0f), tiny = ordo_bf16_from_f32(0x1p-8f), result = 0;
  uint16_t one_half = ordo_f16_from_f32(1.0f), tiny_half = ordo_f16_from_f32(0x1p-11f);
  const void *inputs[] = {&one, &tiny, &tiny};
  const void *halves[] = {&one_half, &tiny_half, &tiny_half};
  void *outputs[] = {&result};
  ordo_reduction sum = {ORDO_BF16, ORDO_SUM, 1.0, FALSE};
  ordo_reduce(&sum, outputs, 1, inputs, 3, 1);
  assert_int_equal(result, ordo_bf16_from_f32(1.0f + 0x1p-7f));
  sum.dtype = ORDO_F16;
  ordo_reduce(&sum, outputs, 1, halves, 3, 1);
  assert_int_equal(result, ordo_f16_from_f32(1.0f + 0x1p-10f));
}

/* FLT_MAX + FLT_MAX overflows unless each term is halved before; ordered mode multiplies after and must overflow. */
static void the_factor_stands_before_or_after_the_sum(void **state)
{
  (void)state;
  float a = FLT_MAX, b = FLT_MAX, c = 0, result = 0;
  const void *inputs[] = {&a, &b, &c};
  void *outputs[] = {&result};
  for (size_t n = 2; n <= 3; n++) {
    ordo_reduction r = {ORDO_F32, ORDO_SUM, 0.5, FALSE};
    ordo_reduce(&r, outputs, 1, inputs, n, 1);
    assert_true(result >= FLT_MAX && !isinf(result));
    r.factor_after = TRUE;
    ordo_reduce(&r, outputs, 1, inputs, n, 1);
    assert_true(isinf(result));
  }
}

static void sums_run_in_input_order(void **state)
{
  (void)state;
  float big = 0x1p24f, one = 1.0f, result = 0;
  void *outputs[] = {&result};
  const void *lost[] = {&big, &one, &one}, *kept[] = {&one, &one, &big};
  ordo_reduction r = {ORDO_F32, ORDO_SUM, 1.0, TRUE};
  ordo_reduce(&r, outputs, 1, lost, 3, 1);
  assert_true(result == 0x1p24f); /* each 1 is half a unit in the last place and goes to even */
  ordo_reduce(&r, outputs, 1, kept, 3, 1);
  assert_true(result == 0x1p24f + 2.0f);
}

static void nan_wins_in_max_and_min(void **state)
{
  (void)state;
  float a = 1.0f, b = NAN, c = 3.0f, result = 0;
  const void *orders[][3] = {{&a, &b, &c}, {&b, &a, &c}, {&a, &c, &b}};
  void *outputs[] = {&result};
  for (size_t i = 0; i < 3; i++)
    for (uint32_t op = ORDO_MAX; op <= ORDO_MIN; op++) {
      ordo_reduction r = {ORDO_F32, op, 1.0, FALSE};
      ordo_reduce(&r, outputs, 1, orders[i], 3, 1);
      assert_true(isnan(result));
    }
}

/* In place, several outputs, block borders and tails: 1, 15, 16, 17, 1023, 1024, 1025, 4099. */
static void lengths_and_aliases(void **state)
{
  static const size_t lengths[] = {0, 1, 15, 16, 17, 1023, 1024, 1025, 4099};
  static float a[5000], b[5000], c[5000];
  (void)state;
  for (size_t k = 0; k < G_N_ELEMENTS(lengths); k++) {
    size_t n = lengths[k];
    for (size_t i = 0; i < 5000; i++) {
      a[i] = (float)i;
      b[i] = (float)(2 * i + 1);
      c[i] = -5.0f;
    }
    void *outputs[] = {a, b, c};
    const void *inputs[] = {a, b};
    ordo_reduction r = {ORDO_F32, ORDO_SUM, 0.5, FALSE};
    ordo_reduce(&r, outputs, 3, inputs, 2, n);
    for (size_t i = 0; i < 5000; i++) {
      float expected = (float)i * 0.5f + (float)(2 * i + 1) * 0.5f; /* exact in fp32 */
      assert_true(a[i] == (i < n ? expected : (float)i));
      assert_true(b[i] == (i < n ? expected : (float)(2 * i + 1)));
      assert_true(c[i] == (i < n ? expected : -5.0f));
    }
  }
}

static void integers_wrap(void **state)
{
  (void)state;
  int32_t a = INT32_MAX, b = 1, r32 = 0;
  int8_t x = -128, y = -1, r8 = 0;
  uint64_t u = UINT64_MAX, v = 2, r64 = 0;
  const void *in32[] = {&a, &b}, *in8[] = {&x, &y}, *in64[] = {&u, &v};
  void *out32[] = {&r32}, *out8[] = {&r8}, *out64[] = {&r64};
  ordo_reduction r = {ORDO_I32, ORDO_SUM, 1.0, FALSE};
  ordo_reduce(&r, out32, 1, in32, 2, 1);
  assert_int_equal(r32, INT32_MIN);
  r.dtype = ORDO_I8;
  ordo_reduce(&r, out8, 1, in8, 2, 1);
  assert_int_equal(r8, 127);
  r.op = ORDO_MIN;
  ordo_reduce(&r, out8, 1, in8, 2, 1);
  assert_int_equal(r8, -128);
  r.dtype = ORDO_U64;
  r.op = ORDO_SUM;
  ordo_reduce(&r, out64, 1, in64, 2, 1);
  assert_true(r64 == 1);
  r.op = ORDO_MAX;
  ordo_reduce(&r, out64, 1, in64, 2, 1);
  assert_true(r64 == UINT64_MAX);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rounding_matches_the_table),
      cmocka_unit_test(every_16_bit_value_survives_the_round_trip),
      cmocka_unit_test(bf16_kernel_rounds_like_the_function),
      cmocka_unit_test(sixteen_bit_sums_accumulate_in_fp32),
      cmocka_unit_test(the_factor_stands_before_or_after_the_sum),
      cmocka_unit_test(sums_run_in_input_order),
      cmocka_unit_test(nan_wins_in_max_and_min),
      cmocka_unit_test(lengths_and_aliases),
      cmocka_unit_test(integers_wrap),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
