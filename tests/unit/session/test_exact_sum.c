/* test_exact_sum.c - the sum does not depend on order or cut, and is rounded once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "session/exact_sum.h"

#include <float.h>
#include <math.h>
#include <string.h>

static double value_of(const double *x, size_t n)
{
  ordo_exact_sum sum = {{0}, 0};
  for (size_t i = 0; i < n; i++)
    ordo_exact_sum_add(&sum, x[i]);
  return ordo_exact_sum_value(&sum);
}

static void sums_what_double_arithmetic_loses(void **state)
{
  const double cancel[] = {1e300, 1.0, -1e300}, tiny[] = {1.0, 0x1p-53, 0x1p-1074}, half[] = {1.0, 0x1p-53};
  const double odd[] = {1.0 + 0x1p-52, 0x1p-53}, low[] = {0x1p-1074, 0x1p-1074};
  (void)state;
  assert_true(value_of(cancel, 3) == 1.0);
  assert_true(value_of(tiny, 3) == 1.0 + 0x1p-52); /* above the tie by the smallest double: up */
  assert_true(value_of(half, 2) == 1.0);           /* a tie goes to even */
  assert_true(value_of(odd, 2) == 1.0 + 0x1p-51);
  assert_true(value_of(low, 2) == 0x1p-1073);
  assert_true(value_of(NULL, 0) == 0.0);
}

static void holds_the_extremes(void **state)
{
  double big[64];
  const double inf[] = {1.0, INFINITY}, nan_[] = {NAN, 1.0};
  (void)state;
  for (int i = 0; i < 64; i++)
    big[i] = 0x1p1017;
  assert_true(value_of(big, 64) == 0x1p1023);
  assert_true(value_of((const double[]){DBL_MAX}, 1) == DBL_MAX);
  assert_true(isinf(value_of(inf, 2)));
  assert_true(isinf(value_of(nan_, 2)));
}

static void squares_of_floats_are_exact(void **state)
{
  const float x[] = {3.0f, -4.0f, 0x1p-149f, FLT_MAX, 0.0f};
  ordo_exact_sum sum = {{0}, 0}, tiny = {{0}, 0}, inf = {{0}, 0};
  (void)state;
  ordo_exact_sum_squares_f32(&sum, x, 2);
  assert_true(ordo_exact_sum_value(&sum) == 25.0);
  ordo_exact_sum_squares_f32(&tiny, x + 2, 1);
  assert_true(ordo_exact_sum_value(&tiny) == 0x1p-298);
  ordo_exact_sum_squares_f32(&tiny, x + 3, 2);
  assert_true(ordo_exact_sum_value(&tiny) == (double)FLT_MAX * (double)FLT_MAX);
  ordo_exact_sum_squares_f32(&inf, (const float[]){INFINITY}, 1);
  assert_true(isinf(ordo_exact_sum_value(&inf)));
}

static void squares_of_doubles_keep_the_rounded_part(void **state)
{
  const double x[] = {1.0 + 0x1p-52, 1.0};
  ordo_exact_sum sum = {{0}, 0};
  (void)state;
  ordo_exact_sum_squares_f64(&sum, x, 1); /* 1 + 2^-51 + 2^-104 */
  ordo_exact_sum_add(&sum, -1.0);
  ordo_exact_sum_add(&sum, -0x1p-51);
  assert_true(ordo_exact_sum_value(&sum) == 0x1p-104);
}

static uint64_t next(uint64_t *seed)
{
  *seed = *seed * 6364136223846793005u + 1442695040888963407u;
  return *seed >> 33;
}

/* Floats of all magnitudes, in random order, cut into random shards, added word by word: the same bits every time. */
static void any_order_and_any_shards_give_the_same_bits(void **state)
{
  enum { N = 4000 };
  float x[N];
  uint64_t seed = 7;
  double reference = 0.0, naive_first = 0.0;
  int naive_differs = 0;
  (void)state;
  for (int i = 0; i < N; i++)
    x[i] = ldexpf((float)next(&seed) / 2147483648.0f - 0.5f, (int)(next(&seed) % 60) - 30);
  for (int round = 0; round < 50; round++) {
    ordo_exact_sum total = {{0}, 0};
    double naive = 0.0, value;
    int at = 0;
    for (int i = N - 1; i > 0; i--) {
      int j = (int)(next(&seed) % (uint64_t)(i + 1));
      float swap = x[i];
      x[i] = x[j];
      x[j] = swap;
    }
    while (at < N) {
      ordo_exact_sum shard = {{0}, 0};
      int n = 1 + (int)(next(&seed) % 700);
      n = n > N - at ? N - at : n;
      ordo_exact_sum_squares_f32(&shard, x + at, n);
      ordo_exact_sum_carry(&shard);
      for (int w = 0; w < ORDO_EXACT_WORDS; w++)
        total.words[w] += shard.words[w];
      at += n;
    }
    for (int i = 0; i < N; i++)
      naive += (double)x[i] * (double)x[i];
    value = ordo_exact_sum_value(&total);
    if (round == 0) {
      reference = value;
      naive_first = naive;
    }
    naive_differs |= naive != naive_first;
    assert_memory_equal(&value, &reference, sizeof value);
    assert_true(fabs(value - naive) <= N * DBL_EPSILON * value); /* n roundings of at most eps/2 each */
  }
  assert_true(naive_differs); /* or this test would not show anything */
}

/* A digit takes 2^28 additions before it must be carried; the largest digit additions are forced here by the counter. */
static void carries_before_a_digit_overflows(void **state)
{
  ordo_exact_sum sum = {{0}, 0};
  (void)state;
  sum.pending = (1u << 28) - 1;
  sum.words[40] = INT64_MAX / 2;
  ordo_exact_sum_add(&sum, 1.0);
  assert_int_equal(sum.pending, 0);
  assert_true(sum.words[40] >= 0 && sum.words[40] <= 0xffffffffLL);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sums_what_double_arithmetic_loses),
      cmocka_unit_test(holds_the_extremes),
      cmocka_unit_test(squares_of_floats_are_exact),
      cmocka_unit_test(squares_of_doubles_keep_the_rounded_part),
      cmocka_unit_test(any_order_and_any_shards_give_the_same_bits),
      cmocka_unit_test(carries_before_a_digit_overflows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
