/* test_hooks.c - rounding of the compression hooks, bit for bit. The table was made by an independent program (the golden set
 * precision/rounding.json): nearest even, subnormals kept, overflow to infinity; a NaN must stay a NaN, which one is free. */
#include "hooks.h"

#include <ordo/half.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const struct {
  uint32_t f32;
  uint16_t bf16, f16; /* not looked at for NaN */
} ROWS[] = {{0x00000000u, 0x0000, 0x0000}, {0x80000000u, 0x8000, 0x8000}, {0x3f800000u, 0x3f80, 0x3c00}, {0xbf800000u, 0xbf80, 0xbc00},
            {0x3f808000u, 0x3f80, 0x3c04}, {0x3f818000u, 0x3f82, 0x3c0c}, {0x3f808001u, 0x3f81, 0x3c04}, {0x3f807fffu, 0x3f80, 0x3c04},
            {0x3f801000u, 0x3f80, 0x3c00}, {0x3f803000u, 0x3f80, 0x3c02}, {0x3f801001u, 0x3f80, 0x3c01}, {0x3f800fffu, 0x3f80, 0x3c00},
            {0x477fe000u, 0x4780, 0x7bff}, {0x477fefffu, 0x4780, 0x7bff}, {0x477ff000u, 0x4780, 0x7c00}, {0x47800000u, 0x4780, 0x7c00},
            {0xc77ff000u, 0xc780, 0xfc00}, {0xc77fefffu, 0xc780, 0xfbff}, {0x7f7f7fffu, 0x7f7f, 0x7c00}, {0x7f7f8000u, 0x7f80, 0x7c00},
            {0x7f7fffffu, 0x7f80, 0x7c00}, {0xff7f8000u, 0xff80, 0xfc00}, {0x38800000u, 0x3880, 0x0400}, {0x387fe000u, 0x3880, 0x0400},
            {0x387ff000u, 0x3880, 0x0400}, {0x38801000u, 0x3880, 0x0400}, {0x33800000u, 0x3380, 0x0001}, {0x33000000u, 0x3300, 0x0000},
            {0x33000001u, 0x3300, 0x0001}, {0x33c00000u, 0x33c0, 0x0002}, {0xb3000000u, 0xb300, 0x8000}, {0x32800000u, 0x3280, 0x0000},
            {0x34200000u, 0x3420, 0x0002}, {0x387fc000u, 0x3880, 0x03ff}, {0x387fa000u, 0x3880, 0x03fe}, {0xb3c00000u, 0xb3c0, 0x8002},
            {0x00800000u, 0x0080, 0x0000}, {0x007fffffu, 0x0080, 0x0000}, {0x007f8000u, 0x0080, 0x0000}, {0x007f7fffu, 0x007f, 0x0000},
            {0x00010000u, 0x0001, 0x0000}, {0x00008000u, 0x0000, 0x0000}, {0x00008001u, 0x0001, 0x0000}, {0x00018000u, 0x0002, 0x0000},
            {0x80008000u, 0x8000, 0x8000}, {0x00000001u, 0x0000, 0x0000}, {0x80000001u, 0x8000, 0x8000}, {0x7f800000u, 0x7f80, 0x7c00},
            {0xff800000u, 0xff80, 0xfc00}, {0x7fc00000u, 0x0000, 0x0000}, {0xffc00001u, 0x0000, 0x0000}, {0x7f800001u, 0x0000, 0x0000},
            {0x7fbfffffu, 0x0000, 0x0000}, {0x3dcccccdu, 0x3dcd, 0x2e66}, {0xbeaaaaabu, 0xbeab, 0xb555}, {0x40490fdbu, 0x4049, 0x4248},
            {0x3a83126fu, 0x3a83, 0x1419}, {0x45001000u, 0x4500, 0x6800}, {0x45003000u, 0x4500, 0x6802}, {0x322bcc77u, 0x322c, 0x0000},
            {0xbd7ce61bu, 0xbd7d, 0xabe7}, {0xce14abeeu, 0xce15, 0xfc00}, {0x3af5734du, 0x3af5, 0x17ac}, {0x492a477cu, 0x492a, 0x7c00}};

static float float_of(uint32_t bits)
{
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void rounds_as_the_table(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
    float value = float_of(ROWS[i].f32);
    if (isnan(value)) {
      assert_true(isnan(ordo_f32_from_bf16(ordo_bf16_from_f32(value))));
      assert_true(isnan(ordo_f32_from_f16(ordo_f16_from_f32(value))));
      continue;
    }
    assert_int_equal(ordo_bf16_from_f32(value), ROWS[i].bf16);
    assert_int_equal(ordo_f16_from_f32(value), ROWS[i].f16);
  }
}

/* Every 16-bit value that is not a NaN survives being widened and rounded again; widening fp16 agrees with ldexp. */
static void widening_is_exact(void **state)
{
  (void)state;
  for (uint32_t bits = 0; bits <= 0xffffu; bits++) {
    float f16 = ordo_f32_from_f16((uint16_t)bits), bf16 = ordo_f32_from_bf16((uint16_t)bits);
    assert_int_equal(isnan(f16) != 0, (bits & 0x7c00u) == 0x7c00u && (bits & 0x3ffu) != 0);
    if (!isnan(f16))
      assert_int_equal(ordo_f16_from_f32(f16), bits);
    if (!isnan(bf16))
      assert_int_equal(ordo_bf16_from_f32(bf16), bits);
    int exponent = (int)((bits >> 10) & 0x1fu), fraction = (int)(bits & 0x3ffu);
    if (exponent == 0x1f)
      continue;
    double expected = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    assert_true(f16 == (float)((bits & 0x8000u) != 0 ? -expected : expected));
  }
}

/* Nearest, checked against the neighbours in double precision, over a spread of bit patterns. */
static void no_neighbour_is_nearer(void **state)
{
  (void)state;
  for (uint32_t bits = 1; bits < 0x47000000u; bits += 9973u) {
    double value = (double)float_of(bits);
    uint16_t half = ordo_f16_from_f32((float)value);
    double error = fabs((double)ordo_f32_from_f16(half) - value);
    assert_true(error <= fabs((double)ordo_f32_from_f16((uint16_t)(half + 1)) - value));
    if (half > 0)
      assert_true(error <= fabs((double)ordo_f32_from_f16((uint16_t)(half - 1)) - value));
  }
}

static void names(void **state)
{
  (void)state;
  assert_int_equal(ddp_compression_dtype("fp16"), ORDO_F16);
  assert_int_equal(ddp_compression_dtype("bf16"), ORDO_BF16);
  assert_int_equal(ddp_compression_dtype("powersgd"), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rounds_as_the_table),
      cmocka_unit_test(widening_is_exact),
      cmocka_unit_test(no_neighbour_is_nearer),
      cmocka_unit_test(names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
