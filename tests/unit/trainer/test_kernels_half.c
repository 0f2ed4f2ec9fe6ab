/* test_kernels_half.c - array conversions of every instruction set, bit for bit: against the definition of rounding computed in double,
 * against ordo/half.h, and against published patterns; and the kernels that round as they go, against plain kernels between passes of
 * rounding.
 *
 * Upward all 65536 patterns of each format are tried. Downward a result changes only at the midpoints of two neighbours, so each upper
 * part of a binary32 (all 2^16 for bf16, all 2^19 for binary16) is tried with the lower parts around the middle and the ends.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ordo/half.h>

#include "golden_files.h"
#include "kernels_low.h"

enum { PATTERNS = 65536, EDGES = 6, F16_UPPER = 1 << 19, MOST = F16_UPPER * EDGES };

typedef void (*check)(const struct kernels *kernels);

static void each_set(check one)
{
  int checked = 0;
  for (int isa = CPU_PORTABLE; isa <= CPU_AVX512; isa++) {
    const struct kernels *kernels = kernels_for((enum cpu_isa)isa);
    if (kernels == NULL)
      continue;
    one(kernels);
    checked++;
  }
  assert_true(checked >= 1);
}

static void same_bits(const struct kernels *kernels, const char *what, uint32_t from, uint32_t actual, uint32_t expected)
{
  if (actual != expected)
    fail_msg("%s, %s: %08x became %08x, not %08x", kernels->name, what, from, actual, expected);
}

/* ---- the definition, in double ---- */

/* Value of a 16-bit pattern with `fraction_bits` and `exponent_bits`; infinity and NaN as such. */
static double value_of(uint32_t bits, int exponent_bits, int fraction_bits)
{
  int bias = (1 << (exponent_bits - 1)) - 1, most = (1 << exponent_bits) - 1;
  int exponent = (int)(bits >> fraction_bits) & most;
  double fraction = (double)(bits & ((1u << fraction_bits) - 1u)), sign = bits & 0x8000u ? -1.0 : 1.0;
  if (exponent == most)
    return fraction != 0.0 ? (double)NAN : sign * (double)INFINITY;
  if (exponent == 0)
    return sign * ldexp(fraction, 1 - bias - fraction_bits);
  return sign * ldexp(fraction + ldexp(1.0, fraction_bits), exponent - bias - fraction_bits);
}

/* The pattern nearest to x, which is no NaN. The spacing of the format at x is a power of two; nearbyint rounds ties to even. */
static uint32_t nearest(double x, int exponent_bits, int fraction_bits)
{
  int bias = (1 << (exponent_bits - 1)) - 1, exponent = 0;
  uint32_t sign = signbit(x) ? 0x8000u : 0u;
  uint32_t infinite = (uint32_t)((1 << exponent_bits) - 1) << fraction_bits;
  if (isinf(x) || x == 0.0)
    return isinf(x) ? sign | infinite : sign;
  (void)frexp(x, &exponent); /* |x| in [2^(exponent-1), 2^exponent) */
  int spacing = (exponent - 1 < 1 - bias ? 1 - bias : exponent - 1) - fraction_bits;
  double units = nearbyint(ldexp(fabs(x), -spacing));
  /* Units count from 0 in the subnormal range; a binade above it each adds a step of the exponent field. */
  uint32_t pattern = (uint32_t)units + ((uint32_t)(spacing + bias - 1 + fraction_bits) << fraction_bits);
  return sign | (pattern > infinite ? infinite : pattern);
}

/* ---- upward ---- */

static void check_every_pattern_up(const struct kernels *kernels)
{
  static uint16_t patterns[PATTERNS];
  static float bf16[PATTERNS], f16[PATTERNS];
  for (uint32_t i = 0; i < PATTERNS; i++)
    patterns[i] = (uint16_t)i;
  kernels->f32_from_bf16(PATTERNS, patterns, bf16);
  kernels->f32_from_f16(PATTERNS, patterns, f16);
  for (uint32_t i = 0; i < PATTERNS; i++) {
    double wide_bf16 = value_of(i, 8, 7), wide_f16 = value_of(i, 5, 10);
    same_bits(kernels, "bf16 up", i, ordo_bits_of_f32(bf16[i]), ordo_bits_of_f32(ordo_f32_from_bf16((uint16_t)i)));
    same_bits(kernels, "f16 up", i, ordo_bits_of_f32(f16[i]), ordo_bits_of_f32(ordo_f32_from_f16((uint16_t)i)));
    assert_true(isnan(wide_bf16) ? isnan(bf16[i]) : (double)bf16[i] == wide_bf16 && !signbit(bf16[i]) == !signbit(wide_bf16));
    assert_true(isnan(wide_f16) ? isnan(f16[i]) : (double)f16[i] == wide_f16 && !signbit(f16[i]) == !signbit(wide_f16));
  }
}

/* ---- downward ---- */

/* n values: each upper part of `upper_bits` with the lower parts that decide. */
static size_t edge_values(int upper_bits, float *values)
{
  uint32_t half = 1u << (31 - upper_bits), n = 0;
  const uint32_t lower[EDGES] = {0, 1, half - 1, half, half + 1, 2 * half - 1};
  for (uint32_t upper = 0; upper < 1u << upper_bits; upper++)
    for (int e = 0; e < EDGES; e++)
      values[n++] = ordo_f32_of_bits(upper * 2 * half + lower[e]);
  return n;
}

static void check_down(const struct kernels *kernels, int is_f16)
{
  float *values = malloc(MOST * sizeof *values), *rounded = malloc(MOST * sizeof *rounded), *rows = malloc(MOST * sizeof *rows);
  uint16_t *narrow = malloc(MOST * sizeof *narrow);
  size_t n = edge_values(is_f16 ? 19 : 16, values);
  kernels_narrow(kernels, is_f16 ? ORDO_F16 : ORDO_BF16, n, values, narrow);
  memcpy(rounded, values, n * sizeof *values);
  kernels_round(kernels, is_f16 ? ORDO_F16 : ORDO_BF16, n, rounded);
  memcpy(rows, values, n * sizeof *values);
  kernels_rounded(kernels, is_f16 ? ORDO_F16 : ORDO_BF16)->round_rows(1, n, n, rows);
  assert_memory_equal(rows, rounded, n * sizeof *rows);
  for (size_t i = 0; i < n; i++) {
    uint32_t bits = ordo_bits_of_f32(values[i]);
    same_bits(kernels, "down", bits, narrow[i], is_f16 ? ordo_f16_from_f32(values[i]) : ordo_bf16_from_f32(values[i]));
    same_bits(kernels, "round", bits, ordo_bits_of_f32(rounded[i]),
              ordo_bits_of_f32(is_f16 ? ordo_f32_from_f16(narrow[i]) : ordo_f32_from_bf16(narrow[i])));
    if (isnan(values[i]))
      assert_true(isnan(rounded[i]));
    else
      same_bits(kernels, "definition", bits, narrow[i], is_f16 ? nearest((double)values[i], 5, 10) : nearest((double)values[i], 8, 7));
  }
  free(values);
  free(rounded);
  free(rows);
  free(narrow);
}

static void check_bf16_down(const struct kernels *kernels)
{
  check_down(kernels, 0);
}

static void check_f16_down(const struct kernels *kernels)
{
  check_down(kernels, 1);
}

/* Every length up to two vectors and a rest, at addresses of every alignment: nothing past the end is written, each element is right. */
static void check_lengths(const struct kernels *kernels)
{
  const ordo_dtype types[] = {ORDO_BF16, ORDO_F16};
  for (int t = 0; t < 2; t++)
    for (size_t n = 0; n <= 35; n++)
      for (size_t shift = 0; shift < 3; shift++) {
        float wide[40], back[40];
        uint16_t narrow[40];
        for (size_t i = 0; i < 40; i++) {
          wide[i] = i == 7 ? NAN : 1.0f + (float)i * 0.013f;
          back[i] = -5.0f;
          narrow[i] = 0x1234;
        }
        kernels_narrow(kernels, types[t], n, wide + shift, narrow + shift);
        kernels_widen(kernels, types[t], n, narrow + shift, back + shift);
        kernels_round(kernels, types[t], n, wide + shift);
        for (size_t i = 0; i < 40; i++) {
          int inside = i >= shift && i < shift + n;
          assert_true(inside || (narrow[i] == 0x1234 && back[i] == -5.0f));
          assert_true(!inside || ordo_bits_of_f32(back[i]) == ordo_bits_of_f32(wide[i]));
          assert_true(inside || i == 7 || wide[i] == 1.0f + (float)i * 0.013f);
        }
      }
}

/* ---- kernels that round as they go: the bits of the plain kernel between passes ---- */

enum { ROWS = 3, COLUMNS = 37, HEADS = 3, HALF = 5, FIRST = 20, CELLS = ROWS * COLUMNS };

/* Ordinary numbers, and among them every kind that rounding treats apart. */
static void values(uint32_t seed, float *x)
{
  const uint32_t special[] = {0x80000000u, 0x7f800000u, 0xff800000u, 0x7fa00001u, 0x00000001u,
                              0x33000001u, 0x387fffffu, 0x477fefffu, 0x7f7fffffu};
  for (size_t i = 0; i < CELLS; i++) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = (float)(int32_t)seed / 2147483648.0f * 3.0f;
    if (seed % 41 == 0)
      x[i] = ordo_f32_of_bits(special[(seed >> 8) % (sizeof special / sizeof special[0])]);
  }
}

/* Arrays of one operation, twice. NaN payloads of arithmetic are the processor's, so any NaN equals any other. */
struct arrays {
  float a[CELLS], b[CELLS], c[CELLS], d[CELLS], w[COLUMNS], v[COLUMNS], inv[ROWS];
};

static void fill_arrays(struct arrays *x, uint32_t seed)
{
  memset(x, 0, sizeof *x);
  values(seed, x->a);
  values(seed + 1, x->b);
  values(seed + 2, x->c);
  values(seed + 3, x->d);
  for (size_t i = 0; i < COLUMNS; i++) {
    x->w[i] = 1.0f + 0.01f * (float)i;
    x->v[i] = 0.5f - 0.02f * (float)i;
  }
  for (size_t r = 0; r < ROWS; r++)
    x->inv[r] = 0.7f + 0.1f * (float)r;
}

static void same_array(const struct kernels *kernels, const char *what, size_t n, const float *actual, const float *expected)
{
  for (size_t i = 0; i < n; i++)
    if (!isnan(actual[i]) || !isnan(expected[i]))
      same_bits(kernels, what, (uint32_t)i, ordo_bits_of_f32(actual[i]), ordo_bits_of_f32(expected[i]));
}

static void same_arrays(const struct kernels *kernels, const char *what, const struct arrays *actual, const struct arrays *expected)
{
  same_array(kernels, what, CELLS, actual->a, expected->a);
  same_array(kernels, what, CELLS, actual->b, expected->b);
  same_array(kernels, what, CELLS, actual->c, expected->c);
  same_array(kernels, what, CELLS, actual->d, expected->d);
  same_array(kernels, what, COLUMNS, actual->w, expected->w);
  same_array(kernels, what, ROWS, actual->inv, expected->inv);
}

static void check_rounded_rows(const struct kernels *plain, const struct kernels_rounded *rounded, ordo_dtype dtype, uint32_t seed)
{
  static struct arrays x, y;
  fill_arrays(&x, seed);
  y = x;
  rounded->round_rows(ROWS, COLUMNS - 4, COLUMNS, x.a);
  for (size_t r = 0; r < ROWS; r++)
    kernels_round(plain, dtype, COLUMNS - 4, y.a + r * COLUMNS);
  rounded->scale(CELLS, 0.3f, x.b);
  plain->scale(CELLS, 0.3f, y.b);
  kernels_round(plain, dtype, CELLS, y.b);
  rounded->rope(HEADS, HALF, x.w, x.v, -1.0f, x.c);
  kernels_round(plain, dtype, HEADS * HALF * 2, y.c);
  plain->rope(HEADS, HALF, y.w, y.v, -1.0f, y.c);
  kernels_round(plain, dtype, HEADS * HALF * 2, y.c);
  same_arrays(plain, "rows", &x, &y);

  fill_arrays(&x, seed + 7); /* delta may be left as it was: both are rounded before they are compared */
  y = x;
  kernels_round(plain, dtype, CELLS, y.b);
  rounded->add(CELLS, x.a, x.b, x.c);
  plain->add(CELLS, y.a, y.b, y.c);
  kernels_round(plain, dtype, CELLS, x.b);
  same_arrays(plain, "add", &x, &y);

  float max[2] = {0.0f, 0.0f}, sums[2];
  fill_arrays(&x, seed + 11);
  for (size_t i = 0; i < CELLS; i++)
    x.a[i] = isfinite(x.a[i]) && fabsf(x.a[i]) < 60000.0f ? x.a[i] : -2.0f;
  y = x;
  sums[0] = rounded->exp_sum(COLUMNS, x.a, &max[0]);
  kernels_round(plain, dtype, COLUMNS, y.a);
  sums[1] = plain->exp_sum(COLUMNS, y.a, &max[1]);
  same_arrays(plain, "exp_sum", &x, &y);
  same_array(plain, "sum of exp_sum", 1, &sums[0], &sums[1]);
  same_array(plain, "maximum of exp_sum", 1, &max[0], &max[1]);
}

static void check_rounded_norms(const struct kernels *plain, const struct kernels_rounded *rounded, ordo_dtype dtype, uint32_t seed)
{
  static struct arrays x, y;
  fill_arrays(&x, seed);
  y = x;
  rounded->rms_forward(ROWS, COLUMNS, x.a, x.w, 1e-5f, x.b, x.inv);
  plain->rms_forward(ROWS, COLUMNS, y.a, y.w, 1e-5f, y.b, y.inv);
  kernels_round(plain, dtype, CELLS, y.b);
  rounded->rms_apply(ROWS, COLUMNS, x.a, x.w, x.inv, x.c);
  plain->rms_apply(ROWS, COLUMNS, y.a, y.w, y.inv, y.c);
  kernels_round(plain, dtype, CELLS, y.c);
  same_arrays(plain, "norm", &x, &y);

  fill_arrays(&x, seed + 3);
  y = x;
  kernels_round(plain, dtype, CELLS, y.b);
  rounded->add_rms_forward(ROWS, COLUMNS, x.a, x.b, x.a, x.w, 1e-5f, x.c, x.inv);
  plain->add_rms_forward(ROWS, COLUMNS, y.a, y.b, y.a, y.w, 1e-5f, y.c, y.inv);
  kernels_round(plain, dtype, CELLS, y.c);
  kernels_round(plain, dtype, CELLS, x.b);
  same_arrays(plain, "sum and norm", &x, &y);

  for (int with = 0; with < 2; with++) {
    fill_arrays(&x, seed + 5);
    y = x;
    rounded->rms_backward(ROWS, COLUMNS, x.a, x.v, x.inv, x.b, x.c, with ? x.w : NULL);
    kernels_round(plain, dtype, CELLS, y.b);
    plain->rms_backward(ROWS, COLUMNS, y.a, y.v, y.inv, y.b, y.c, with ? y.w : NULL);
    same_arrays(plain, "norm backward", &x, &y);
  }
}

static void check_rounded_products(const struct kernels *plain, const struct kernels_rounded *rounded, ordo_dtype dtype, uint32_t seed)
{
  static struct arrays x, y;
  fill_arrays(&x, seed);
  y = x;
  rounded->swiglu_forward(CELLS, x.a, x.b, x.d);
  kernels_round(plain, dtype, CELLS, y.a);
  kernels_round(plain, dtype, CELLS, y.b);
  plain->swiglu_forward(CELLS, y.a, y.b, y.d);
  kernels_round(plain, dtype, CELLS, y.d);
  same_arrays(plain, "swiglu", &x, &y);
  rounded->swiglu_backward(CELLS, x.a, x.b, x.c);
  kernels_round(plain, dtype, CELLS, y.c);
  plain->swiglu_backward(CELLS, y.a, y.b, y.c);
  kernels_round(plain, dtype, CELLS, y.a);
  kernels_round(plain, dtype, CELLS, y.b);
  kernels_round(plain, dtype, CELLS, y.c);
  same_arrays(plain, "swiglu backward", &x, &y);
}

static void check_rounded_softmax(const struct kernels *plain, const struct kernels_rounded *rounded, ordo_dtype dtype, uint32_t seed)
{
  enum { KEYS = COLUMNS - 2 };
  static struct arrays x, y;
  fill_arrays(&x, seed);
  y = x;
  for (size_t r = 0; r < ROWS; r++) { /* what lies past a row stays as it was */
    kernels_round(plain, dtype, KEYS, y.a + r * COLUMNS);
    kernels_round(plain, dtype, KEYS, y.b + r * COLUMNS);
    kernels_round(plain, dtype, KEYS, y.d + r * COLUMNS);
  }
  rounded->softmax_causal(ROWS, KEYS, COLUMNS, FIRST, 0.4f, x.a, x.inv);
  plain->softmax_causal(ROWS, KEYS, COLUMNS, FIRST, 0.4f, y.a, y.inv);
  rounded->softmax_again(ROWS, KEYS, COLUMNS, FIRST, 0.4f, x.b, x.v);
  plain->softmax_again(ROWS, KEYS, COLUMNS, FIRST, 0.4f, y.b, y.v);
  rounded->softmax_backward(ROWS, KEYS, COLUMNS, 0.4f, x.c, x.inv, x.d);
  plain->softmax_backward(ROWS, KEYS, COLUMNS, 0.4f, y.c, y.inv, y.d);
  for (size_t r = 0; r < ROWS; r++) {
    kernels_round(plain, dtype, KEYS, y.a + r * COLUMNS);
    kernels_round(plain, dtype, KEYS, y.c + r * COLUMNS);
    kernels_round(plain, dtype, KEYS, y.d + r * COLUMNS);
  }
  same_arrays(plain, "softmax", &x, &y);
}

static void check_rounding_kernels(const struct kernels *kernels)
{
  const ordo_dtype types[] = {ORDO_BF16, ORDO_F16};
  assert_null(kernels_rounded(kernels, ORDO_F32));
  for (int t = 0; t < 2; t++)
    for (uint32_t seed = 1; seed < 200; seed++) {
      const struct kernels_rounded *rounded = kernels_rounded(kernels, types[t]);
      check_rounded_rows(kernels, rounded, types[t], seed * 101);
      check_rounded_norms(kernels, rounded, types[t], seed * 101);
      check_rounded_products(kernels, rounded, types[t], seed * 101);
      check_rounded_softmax(kernels, rounded, types[t], seed * 101);
    }
}

static uint32_t hex_member(JsonObject *row, const char *name)
{
  return (uint32_t)g_ascii_strtoull(json_object_get_string_member(row, name), NULL, 16);
}

static JsonArray *published; /* rows of the table, set by its test */

static void check_published(const struct kernels *kernels)
{
  for (guint i = 0; i < json_array_get_length(published); i++) {
    JsonObject *row = json_array_get_object_element(published, i);
    float value = ordo_f32_of_bits(hex_member(row, "f32"));
    float many[33];
    uint16_t bf16[33], f16[33];
    for (int k = 0; k < 33; k++)
      many[k] = value;
    kernels->bf16_from_f32(33, many, bf16);
    kernels->f16_from_f32(33, many, f16);
    for (int k = 0; k < 33; k++) {
      if (isnan(value)) {
        assert_true((bf16[k] & 0x7f80) == 0x7f80 && (bf16[k] & 0x7f) && (f16[k] & 0x7c00) == 0x7c00 && (f16[k] & 0x3ff));
        continue;
      }
      same_bits(kernels, "published bf16", ordo_bits_of_f32(value), bf16[k], hex_member(row, "bf16"));
      same_bits(kernels, "published f16", ordo_bits_of_f32(value), f16[k], hex_member(row, "fp16"));
    }
  }
}

static void test_published_patterns(void **state)
{
  (void)state;
  g_autofree char *dir = golden_dir(); /* says why it is skipped */
  if (dir == NULL)
    skip();
  g_autoptr(JsonParser) parser = golden_json(dir, "precision/rounding.json");
  published = json_object_get_array_member(golden_root(parser), "rows");
  assert_true(json_array_get_length(published) > 10);
  each_set(check_published);
}

#define EACH(NAME)                      \
  static void test_##NAME(void **state) \
  {                                     \
    (void)state;                        \
    each_set(check_##NAME);             \
  }
EACH(every_pattern_up)
EACH(bf16_down)
EACH(f16_down)
EACH(lengths)
EACH(rounding_kernels)

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_pattern_up), cmocka_unit_test(test_bf16_down),          cmocka_unit_test(test_f16_down),
      cmocka_unit_test(test_lengths),          cmocka_unit_test(test_published_patterns), cmocka_unit_test(test_rounding_kernels),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
