/* test_fp8.c - examples/fp8-wire: every code of e4m3 by its definition, rounding at every midpoint, scales, and what is no number. */
#include "../../examples/fp8-wire/fp8_wire.c" /* before cmocka.h, whose `fail` is a macro */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

/* Sign, exponent with bias 7, three bits of mantissa; exponent 0: subnormal. */
static double by_definition(unsigned code)
{
  const unsigned exponent = code >> 3 & 15u, mantissa = code & 7u;
  const double magnitude = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, (int)exponent - 10);
  return code & 0x80u ? -magnitude : magnitude;
}

static void every_code_is_its_definition(void **state)
{
  (void)state;
  for (unsigned code = 0; code < 256; code++) {
    if ((code & 0x7fu) == 0x7fu) {
      assert_true(isnan(from_e4m3((uint8_t)code)));
      continue;
    }
    assert_true((double)from_e4m3((uint8_t)code) == by_definition(code));
    assert_int_equal(to_e4m3(from_e4m3((uint8_t)code)), code);
  }
}

static void rounding_is_to_nearest_even(void **state)
{
  (void)state;
  for (unsigned code = 0; code < 0x7e; code++) {
    const float low = from_e4m3((uint8_t)code), high = from_e4m3((uint8_t)(code + 1)), middle = (low + high) / 2; /* exact */
    assert_int_equal(to_e4m3(middle), code & 1u ? code + 1 : code);
    assert_int_equal(to_e4m3(nextafterf(middle, 0.0f)), code);
    assert_int_equal(to_e4m3(nextafterf(middle, 1000.0f)), code + 1);
    assert_int_equal(to_e4m3(-middle), 0x80u | (code & 1u ? code + 1 : code));
  }
}

/* 448 is the largest, so the largest of a piece comes near it and never beyond, whatever its size. */
static void scales_use_the_range_and_are_powers_of_two(void **state)
{
  (void)state;
  for (int e = -140; e < 128; e++)
    for (int m = 0; m < 8; m++) {
      const float amax = ldexpf(1.0f + (float)m / 8.0f, e), scaled = amax * power_of_two(scale_exponent(amax));
      if (amax == 0.0f || isinf(amax))
        continue;
      assert_true(scaled <= 448.0f);
      assert_true(scaled > 224.0f || scale_exponent(amax) == 126);
    }
  assert_int_equal(scale_exponent(0.0f), 0);
}

static void a_piece_comes_back_rounded(void **state)
{
  const float piece[7] = {0.5f, -0.25f, 0.0f, 0.3f, 1e-9f, -448.0f / 1024.0f, 0.4999f};
  unsigned char wire[1 + SCALE_BYTES + 7]; /* not aligned */
  float back[7];
  (void)state;
  assert_int_equal(wire_bytes(NULL, NULL, 7), SCALE_BYTES + 7);
  assert_int_equal(wire_bytes(NULL, NULL, 0), 0);
  assert_int_equal(pre_all_gather(NULL, NULL, piece, 7, wire + 1), ORDO_OK);
  assert_int_equal(post_all_gather(NULL, NULL, wire + 1, 7, back), ORDO_OK);
  for (int i = 0; i < 7; i++)
    assert_true(fabsf(back[i] - piece[i]) <= fabsf(piece[i]) / 16.0f + 0x1p-19f);
  assert_true(back[0] == 0.5f && back[1] == -0.25f && back[2] == 0.0f && back[5] == piece[5]);
}

static void what_is_no_number_is_none_afterwards(void **state)
{
  const float piece[4] = {INFINITY, 0.5f, NAN, -INFINITY};
  unsigned char wire[SCALE_BYTES + 4];
  float back[4];
  (void)state;
  assert_int_equal(pre_all_gather(NULL, NULL, piece, 4, wire), ORDO_OK);
  assert_int_equal(post_all_gather(NULL, NULL, wire, 4, back), ORDO_OK);
  assert_true(isnan(back[0]) && back[1] == 0.5f && isnan(back[2]) && isnan(back[3]));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_code_is_its_definition),
      cmocka_unit_test(rounding_is_to_nearest_even),
      cmocka_unit_test(scales_use_the_range_and_are_powers_of_two),
      cmocka_unit_test(a_piece_comes_back_rounded),
      cmocka_unit_test(what_is_no_number_is_none_afterwards),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
