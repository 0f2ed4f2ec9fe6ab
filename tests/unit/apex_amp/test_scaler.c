/* test_scaler.c - the loss scale over time: growth, floor, cap, giving up. The long sequences of the originals are in test_trajectory.c. */
#include "scaler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static amp_scaler apex(double scale, int64_t window)
{
  return (amp_scaler){.dynamic = 1, .scale = scale, .growth = 2.0, .backoff = 0.5, .max = 16777216.0, .window = window, .patience = 3};
}

static void clean_steps_double_the_scale_at_the_window(void **state)
{
  amp_scaler s = apex(8.0, 3);
  (void)state;
  for (int i = 1; i <= 2; i++) {
    assert_int_equal(amp_scaler_update(&s, 0), 0);
    assert_true(s.scale == 8.0 && s.counter == i);
  }
  amp_scaler_update(&s, 0);
  assert_true(s.scale == 16.0 && s.counter == 0);
}

static void an_overflow_halves_and_counts_anew(void **state)
{
  amp_scaler s = apex(8.0, 3);
  (void)state;
  amp_scaler_update(&s, 0);
  amp_scaler_update(&s, 0);
  assert_int_equal(amp_scaler_update(&s, 1), 0);
  assert_true(s.scale == 4.0 && s.counter == 0);
}

static void an_overflow_in_the_first_step_is_like_any(void **state)
{
  amp_scaler s = apex(65536.0, 2000);
  (void)state;
  assert_int_equal(amp_scaler_update(&s, 1), 0);
  assert_true(s.scale == 32768.0 && s.counter == 0 && s.stuck == 0);
}

static void the_cap_holds_and_the_count_starts_again(void **state)
{
  amp_scaler s = apex(16777216.0, 2);
  (void)state;
  for (int i = 0; i < 4; i++)
    amp_scaler_update(&s, 0);
  assert_true(s.scale == 16777216.0 && s.counter == 0);
}

static void the_floor_holds(void **state)
{
  amp_scaler s = apex(3.0, 2);
  (void)state;
  s.min = 2.5;
  amp_scaler_update(&s, 1);
  assert_true(s.scale == 2.5);
  amp_scaler_update(&s, 1);
  assert_true(s.scale == 2.5 && s.stuck == 1);
}

/* Without an end the scale would be halved for ever. */
static void overflow_for_ever_gives_up(void **state)
{
  amp_scaler s = apex(65536.0, 2000);
  int steps = 1;
  (void)state;
  while (!amp_scaler_update(&s, 1))
    assert_true(++steps < 100);
  assert_int_equal(steps, 16 + 3); /* 2^16 to 1, then three at the lowest */
}

static void one_clean_step_starts_the_patience_again(void **state)
{
  amp_scaler s = apex(1.0, 2000);
  (void)state;
  for (int i = 0; i < 20; i++) {
    assert_int_equal(amp_scaler_update(&s, 1), 0);
    assert_int_equal(amp_scaler_update(&s, 1), 0);
    assert_int_equal(amp_scaler_update(&s, 0), 0);
  }
}

/* A backoff factor of almost 1 would take millions of steps to reach the lowest scale. */
static void overflow_for_ever_gives_up_whatever_the_factor(void **state)
{
  static const double factors[] = {0.5, 0.9, 0.999999, 0x1p-16};
  (void)state;
  for (int i = 0; i < 4; i++)
    for (int top = 0; top < 2; top++) {
      amp_scaler s = apex(top ? AMP_SCALE_MOST : 65536.0, 2000);
      int steps = 1;
      s.backoff = factors[i];
      s.max = (double)INFINITY;
      while (!amp_scaler_update(&s, 1))
        assert_true(++steps <= AMP_DESCENT + 3);
      assert_true(s.scale >= AMP_SCALE_LEAST);
    }
}

/* A patience that is long does not let the scale sink to where its inverse is infinite. */
static void the_scale_stays_an_fp32_number(void **state)
{
  amp_scaler s = apex(1.0, 2000);
  (void)state;
  s.patience = 1000;
  for (int i = 0; i < 999; i++)
    assert_int_equal(amp_scaler_update(&s, 1), 0);
  assert_true(s.scale == AMP_SCALE_LEAST && isfinite((float)(1.0 / s.scale)));
  assert_int_equal(amp_scaler_update(&s, 1), 1);
}

/* A restored count may lie beyond the window of this run; it was never equal to it then, and the scale never grew again. */
static void a_count_beyond_the_window_grows_too(void **state)
{
  amp_scaler s = apex(8.0, 3);
  (void)state;
  s.counter = 5;
  amp_scaler_update(&s, 0);
  assert_true(s.scale == 16.0 && s.counter == 0);
}

static void counts_do_not_run_over(void **state)
{
  amp_scaler s = apex(1.0, INT64_MAX), still = {.scale = 2.0, .counter = INT64_MAX};
  (void)state;
  s.counter = s.stuck = s.skipped = INT64_MAX;
  s.patience = INT64_MAX;
  assert_int_equal(amp_scaler_update(&s, 1), 1);
  assert_true(s.stuck == INT64_MAX && s.skipped == INT64_MAX);
  s.counter = INT64_MAX;
  amp_scaler_update(&s, 0);
  assert_true(s.counter == 0 && s.scale == 1.0);
  amp_scaler_update(&still, 0);
  assert_true(still.counter == INT64_MAX);
}

static void a_static_scale_never_moves(void **state)
{
  amp_scaler s = {.scale = 128.0, .max = (double)INFINITY};
  (void)state;
  for (int i = 0; i < 3000; i++)
    assert_int_equal(amp_scaler_update(&s, i % 2), 0);
  assert_true(s.scale == 128.0);
}

/* torch keeps the scale in fp32 and lets it grow no further. */
static void growth_stays_in_the_range_of_fp32(void **state)
{
  amp_scaler s = apex(AMP_SCALE_MOST, 1);
  (void)state;
  s.max = (double)INFINITY;
  amp_scaler_update(&s, 0);
  assert_true(s.scale == AMP_SCALE_MOST);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(clean_steps_double_the_scale_at_the_window),
      cmocka_unit_test(an_overflow_halves_and_counts_anew),
      cmocka_unit_test(an_overflow_in_the_first_step_is_like_any),
      cmocka_unit_test(the_cap_holds_and_the_count_starts_again),
      cmocka_unit_test(the_floor_holds),
      cmocka_unit_test(overflow_for_ever_gives_up),
      cmocka_unit_test(one_clean_step_starts_the_patience_again),
      cmocka_unit_test(overflow_for_ever_gives_up_whatever_the_factor),
      cmocka_unit_test(the_scale_stays_an_fp32_number),
      cmocka_unit_test(a_count_beyond_the_window_grows_too),
      cmocka_unit_test(counts_do_not_run_over),
      cmocka_unit_test(a_static_scale_never_moves),
      cmocka_unit_test(growth_stays_in_the_range_of_fp32),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
