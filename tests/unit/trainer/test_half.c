/* test_half.c - 16-bit formats: every pattern there and back, and rounding at the edges. */
#include "io_support.h"

#include <ordo/half.h>

#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>

static void every_pattern_survives(void **state)
{
  (void)state;
  for (uint32_t bits = 0; bits < 65536; bits++) {
    float f = ordo_f32_from_f16((uint16_t)bits), b = ordo_f32_from_bf16((uint16_t)bits);
    assert_true(isnan(f) ? (bits & 0x7C00) == 0x7C00 : ordo_f16_from_f32(f) == bits);
    assert_true(isnan(b) ? (bits & 0x7F80) == 0x7F80 : ordo_bf16_from_f32(b) == bits);
  }
}

/* Nearest even: the middle between two neighbours goes to the even one, anything beyond it up. */
static void halfway_goes_to_even(void **state)
{
  (void)state;
  for (uint32_t bits = 0; bits < 0x7BFF; bits++) {
    float low = ordo_f32_from_f16((uint16_t)bits), high = ordo_f32_from_f16((uint16_t)(bits + 1));
    float middle = low / 2 + high / 2;
    assert_int_equal(ordo_f16_from_f32(middle), bits % 2 ? bits + 1 : bits);
    assert_int_equal(ordo_f16_from_f32(nextafterf(middle, INFINITY)), bits + 1);
    assert_int_equal(ordo_f16_from_f32(-nextafterf(middle, 0.0f)), bits | 0x8000);
  }
  assert_int_equal(ordo_f16_from_f32(65519.996f), 0x7BFF);
  assert_int_equal(ordo_f16_from_f32(65520.0f), 0x7C00);
  assert_int_equal(ordo_bf16_from_f32(3.4e38f), 0x7F80);
}

static uint32_t hex_member(JsonObject *row, const char *name)
{
  return (uint32_t)g_ascii_strtoull(json_object_get_string_member(row, name), NULL, 16);
}

static void published_patterns(void **state)
{
  const char *root = golden_root();
  g_autoptr(JsonParser) parser = json_parser_new();
  (void)state;
  if (!root)
    skip();
  g_autofree char *path = g_build_filename(root, "precision", "rounding.json", NULL);
  assert_true(json_parser_load_from_file(parser, path, NULL));
  JsonArray *rows = json_object_get_array_member(json_node_get_object(json_parser_get_root(parser)), "rows");
  assert_true(json_array_get_length(rows) > 10);
  for (guint i = 0; i < json_array_get_length(rows); i++) {
    JsonObject *row = json_array_get_object_element(rows, i);
    uint32_t bits = hex_member(row, "f32");
    float value;
    memcpy(&value, &bits, sizeof value);
    if (isnan(value)) {
      assert_true(isnan(ordo_f32_from_bf16(ordo_bf16_from_f32(value))));
      assert_true(isnan(ordo_f32_from_f16(ordo_f16_from_f32(value))));
      continue;
    }
    assert_int_equal(ordo_bf16_from_f32(value), hex_member(row, "bf16"));
    assert_int_equal(ordo_f16_from_f32(value), hex_member(row, "fp16"));
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_pattern_survives), cmocka_unit_test(halfway_goes_to_even),
                                     cmocka_unit_test(published_patterns)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
