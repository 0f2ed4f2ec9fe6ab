/* test_policy.c - opt levels and overrides, one row each; those that contradict each other are refused with a word of the reason. */
#include "policy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define NONE AMP_UNSET
#define NAN_ ((double)NAN)

static amp_request request(int level)
{
  return (amp_request){.level = level,
                       .cast = NONE,
                       .keep_norm = NONE,
                       .masters = NONE,
                       .init_scale = NAN_,
                       .min_scale = NAN_,
                       .max_scale = NAN_,
                       .growth = NAN_,
                       .backoff = NAN_,
                       .window = NONE,
                       .patience = NONE,
                       .n_losses = 1};
}

static void levels(void **state)
{
  static const struct {
    ordo_dtype stored, compute, norm;
    int masters, dynamic, wraps;
  } rows[] = {{ORDO_F32, ORDO_F32, ORDO_F32, 0, 0, 0}, {ORDO_F32, ORDO_F16, ORDO_F32, 0, 1, 1},  {ORDO_F16, ORDO_F16, ORDO_F32, 1, 1, 1},
              {ORDO_F16, ORDO_F16, ORDO_F16, 0, 0, 0}, {ORDO_F32, ORDO_BF16, ORDO_F32, 0, 0, 0}, {ORDO_BF16, ORDO_BF16, ORDO_F32, 1, 0, 1}};
  (void)state;
  for (int l = 0; l <= 5; l++) {
    amp_request r = request(l);
    amp_policy policy;
    amp_problem problem;
    assert_int_equal(amp_policy_resolve(&r, &policy, &problem), 0);
    assert_int_equal(policy.stored, rows[l].stored);
    assert_int_equal(amp_policy_op_dtype(&policy, ORDO_OP_MATMUL), rows[l].compute);
    assert_int_equal(amp_policy_op_dtype(&policy, ORDO_OP_NORM), rows[l].norm);
    assert_int_equal(amp_policy_op_dtype(&policy, ORDO_OP_LOSS), ORDO_F32);
    assert_int_equal(amp_policy_op_dtype(&policy, 999), ORDO_F32);
    assert_int_equal(policy.masters, rows[l].masters);
    assert_int_equal(policy.scaler.dynamic, rows[l].dynamic);
    assert_true(policy.scaler.scale == (rows[l].dynamic ? 65536.0 : 1.0));
    assert_int_equal(amp_policy_wraps(&policy), rows[l].wraps);
    if (rows[l].dynamic) {
      assert_true(policy.scaler.max == 16777216.0 && policy.scaler.min == 0.0);
      assert_int_equal(policy.scaler.window, 2000);
    }
  }
}

static void overrides_replace_one_property(void **state)
{
  amp_policy p;
  amp_problem problem;
  amp_request r = request(2);
  (void)state;
  r.keep_norm = 0;
  r.masters = 0;
  r.loss_scale = "128.5";
  assert_int_equal(amp_policy_resolve(&r, &p, &problem), 0);
  assert_true(p.stored == ORDO_F16 && !p.keep_norm && !p.masters && !p.scaler.dynamic && p.scaler.scale == 128.5);
  r = request(5);
  r.cast = ORDO_F16;
  r.loss_scale = "dynamic";
  assert_int_equal(amp_policy_resolve(&r, &p, &problem), 0);
  assert_true(p.stored == ORDO_F16 && p.compute == ORDO_F16 && p.masters && p.scaler.dynamic);
  r = request(0);
  r.loss_scale = "64";
  assert_int_equal(amp_policy_resolve(&r, &p, &problem), 0);
  assert_true(p.scaler.scale == 64.0 && amp_policy_wraps(&p));
  r = request(1);
  r.cast = ORDO_F32; /* what O1 does anyway */
  assert_int_equal(amp_policy_resolve(&r, &p, &problem), 0);
  r = request(1);
  r.max_scale = 1024.0; /* apex starts at min(max_loss_scale, 2^16) */
  r.min_scale = 8.0;
  r.window = 7;
  assert_int_equal(amp_policy_resolve(&r, &p, &problem), 0);
  assert_true(p.scaler.scale == 1024.0 && p.scaler.min == 8.0 && p.scaler.window == 7);
  r = request(1);
  r.torch_scaler = 1;
  r.growth = 4.0;
  r.backoff = 0.25;
  r.init_scale = 1024.0;
  assert_int_equal(amp_policy_resolve(&r, &p, &problem), 0);
  assert_true(p.scaler.growth == 4.0 && p.scaler.backoff == 0.25 && p.scaler.scale == 1024.0 && isinf(p.scaler.max));
}

typedef struct bad {
  int level;
  void (*set)(amp_request *r);
  const char *word;
} bad;

#define SET(NAME, ...)                   \
  static void set_##NAME(amp_request *r) \
  {                                      \
    __VA_ARGS__;                         \
  }
SET(cast_f16, r->cast = ORDO_F16)
SET(cast_bf16, r->cast = ORDO_BF16)
SET(keep, r->keep_norm = 1)
SET(no_keep, r->keep_norm = 0)
SET(masters, r->masters = 1)
SET(no_masters, r->masters = 0)
SET(scale_128, r->loss_scale = "128")
SET(dynamic, r->loss_scale = "dynamic")
SET(scale_0, r->loss_scale = "0")
SET(scale_negative, r->loss_scale = "-2")
SET(scale_nan, r->loss_scale = "nan")
SET(scale_inf, r->loss_scale = "inf")
SET(scale_word, r->loss_scale = "big")
SET(scale_tail, r->loss_scale = "128x")
SET(scale_empty, r->loss_scale = "")
SET(min_above_max, r->min_scale = 8.0; r->max_scale = 4.0)
SET(window, r->window = 5)
SET(patience, r->patience = 5)
SET(min, r->min_scale = 1.0)
SET(static_max, r->loss_scale = "2"; r->max_scale = 4.0)
SET(torch_min, r->torch_scaler = 1; r->min_scale = 1.0)
SET(torch_max, r->torch_scaler = 1; r->max_scale = 1.0)
SET(apex_growth, r->growth = 3.0)
SET(apex_backoff, r->backoff = 0.3)
SET(growth_1, r->torch_scaler = 1; r->growth = 1.0)
SET(backoff_1, r->torch_scaler = 1; r->backoff = 1.0)
SET(cast_f32, r->cast = ORDO_F32)
SET(cast_f32_static, r->cast = ORDO_F32; r->loss_scale = "1")
SET(torch, r->torch_scaler = 1)
SET(torch_static, r->torch_scaler = 1; r->loss_scale = "128")
SET(scale_1e300, r->loss_scale = "1e300")
SET(scale_1e39, r->loss_scale = "1e39")
SET(scale_1e_39, r->loss_scale = "1e-39")
SET(scale_1e_300, r->loss_scale = "1e-300")
SET(init_0, r->init_scale = 0.0)
SET(init_1e300, r->init_scale = 1e300)
SET(torch_init_1e300, r->torch_scaler = 1; r->init_scale = 1e300)
SET(init_denormal, r->init_scale = 5e-324)
SET(max_0, r->max_scale = 0.0)
SET(max_1e_300, r->max_scale = 1e-300)
SET(min_1e300, r->min_scale = 1e300; r->max_scale = 1e300)
SET(min_above_init, r->min_scale = 1024.0; r->init_scale = 256.0)
SET(min_above_default_init, r->min_scale = 131072.0)
SET(backoff_near_1, r->torch_scaler = 1; r->backoff = 0.999999)
SET(backoff_tiny, r->torch_scaler = 1; r->backoff = 1e-300)
SET(growth_huge, r->torch_scaler = 1; r->growth = 1e300)
SET(backoff_0, r->torch_scaler = 1; r->backoff = 0.0)
SET(delay, r->delay_unscale = 1)

static void inconsistent_overrides_are_refused(void **state)
{
  static const bad rows[] = {
      {1, set_cast_f16, "cast_model_type has no place"},
      {4, set_cast_bf16, "cast_model_type has no place"},
      {1, set_keep, "keep_norm_fp32 has no place"},
      {1, set_no_keep, "keep_norm_fp32 has no place"},
      {4, set_keep, "keep_norm_fp32 has no place"},
      {1, set_masters, "master_weights would be copies"},
      {1, set_no_masters, "master_weights would be copies"},
      {4, set_masters, "master_weights would be copies"},
      {0, set_keep, "keep_norm_fp32 has no effect"},
      {0, set_masters, "master_weights would be copies"},
      {4, set_scale_128, "bf16 has the range of fp32"},
      {5, set_scale_128, "bf16 has the range of fp32"},
      {5, set_dynamic, "bf16 has the range of fp32"},
      {2, set_cast_bf16, "bf16 has the range of fp32"}, /* O2 scales; O5 is meant */
      {1, set_scale_0, "no number above 0"},
      {1, set_scale_negative, "no number above 0"},
      {1, set_scale_nan, "no number above 0"},
      {1, set_scale_inf, "no number above 0"},
      {1, set_scale_word, "'dynamic'"},
      {1, set_scale_tail, "loss_scale=128x"},
      {1, set_scale_empty, "no number"},
      {2, set_min_above_max, "min_loss_scale=8 is above max_loss_scale=4"},
      {0, set_window, "window belongs to a dynamic loss scale"},
      {3, set_patience, "patience belongs"},
      {5, set_min, "min_loss_scale belongs"},
      {2, set_static_max, "max_loss_scale belongs"},
      {1, set_torch_min, "GradScaler has no min_loss_scale"},
      {1, set_torch_max, "GradScaler has no max_loss_scale"},
      {1, set_apex_growth, "growth_factor belongs to scaler=torch"},
      {1, set_apex_backoff, "backoff_factor belongs to scaler=torch"},
      {1, set_growth_1, "must be above 1"},
      {1, set_backoff_1, "between 0 and 1"},
      {1, set_backoff_0, "between 0 and 1"},
      {2, set_cast_f32, "nothing of that is left"},
      {3, set_cast_f32, "nothing of that is left"},
      {5, set_cast_f32, "nothing of that is left"},
      {2, set_cast_f32_static, "nothing of that is left"},
      {0, set_cast_f16, "O0 (32-true) is fp32 everywhere"},
      {0, set_cast_bf16, "cast_model_type=bf16 stores the model"},
      {0, set_torch, "scaler=torch belongs to a dynamic"},
      {3, set_torch, "scaler=torch belongs to a dynamic"},
      {4, set_torch, "scaler=torch belongs to a dynamic"},
      {5, set_torch, "scaler=torch belongs to a dynamic"},
      {1, set_torch_static, "that of O1 is 128"},
      {2, set_scale_1e300, "loss_scale=1e+300 is outside of 2^-100 .. 2^126"},
      {2, set_scale_1e39, "loss_scale=1e+39 is outside"},
      {1, set_scale_1e_39, "loss_scale=1e-39 is outside"},
      {0, set_scale_1e_300, "loss_scale=1e-300 is outside"},
      {1, set_init_0, "init_scale=0 is outside"},
      {2, set_init_1e300, "init_scale=1e+300 is outside"},
      {2, set_torch_init_1e300, "init_scale=1e+300 is outside"},
      {2, set_init_denormal, "is outside"},
      {1, set_max_0, "max_loss_scale=0 is outside"},
      {1, set_max_1e_300, "max_loss_scale=1e-300 is outside"},
      {1, set_min_1e300, "max_loss_scale=1e+300 is outside"},
      {2, set_min_above_init, "min_loss_scale=1024 is above the first loss scale, 256"},
      {2, set_min_above_default_init, "min_loss_scale=131072 is above the first loss scale, 65536"},
      {1, set_backoff_near_1, "backoff_factor=0.999999 is above 0.917"},
      {1, set_backoff_tiny, "backoff_factor=1e-300 is below 2^-16"},
      {1, set_growth_huge, "growth_factor=1e+300 is above 2^16"},
      {3, set_delay, "O3 has none"},
      {1, set_delay, "O1 has none"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    amp_request r = request(rows[i].level);
    amp_policy policy;
    amp_problem problem = {"", NULL};
    rows[i].set(&r);
    if (amp_policy_resolve(&r, &policy, &problem) == 0 || !strstr(problem.text, rows[i].word) || !problem.hint)
      fail_msg("row %zu, O%d: '%s' does not say '%s'", i, rows[i].level, problem.text, rows[i].word);
  }
}

/* What is advised must not be refused next. */
static void bf16_is_not_told_to_scale(void **state)
{
  static void (*const sets[])(amp_request *) = {set_patience, set_window, set_torch, set_scale_word, set_min};
  (void)state;
  for (int level = 4; level <= 5; level++)
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
      amp_request r = request(level);
      amp_policy policy;
      amp_problem problem = {"", NULL};
      sets[i](&r);
      assert_int_equal(amp_policy_resolve(&r, &policy, &problem), -1);
      assert_null(strstr(problem.hint, "dynamic"));
      assert_non_null(strstr(problem.hint, "bf16 needs"));
    }
}

/* The ends of the range work: the scale and its inverse are numbers in fp32. */
static void the_ends_of_the_range_are_fp32_numbers(void **state)
{
  static const double ends[] = {AMP_SCALE_LEAST, AMP_SCALE_MOST};
  (void)state;
  for (int i = 0; i < 2; i++) {
    amp_request r = request(1);
    amp_policy p;
    amp_problem problem;
    r.torch_scaler = 1;
    r.init_scale = ends[i];
    r.backoff = 0.5;
    assert_int_equal(amp_policy_resolve(&r, &p, &problem), 0);
    const float scale = (float)p.scaler.scale, inverse = (float)(1.0 / p.scaler.scale);
    assert_true(isnormal(scale) && isnormal(inverse) && scale * inverse == 1.0f);
  }
  amp_request r = request(1); /* what repeats a default is no mistake */
  amp_policy p;
  amp_problem problem;
  r.min_scale = 0.0;
  r.patience = 10;
  assert_int_equal(amp_policy_resolve(&r, &p, &problem), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(levels),
      cmocka_unit_test(overrides_replace_one_property),
      cmocka_unit_test(inconsistent_overrides_are_refused),
      cmocka_unit_test(bf16_is_not_told_to_scale),
      cmocka_unit_test(the_ends_of_the_range_are_fp32_numbers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
