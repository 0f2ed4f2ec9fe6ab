/* test_optim.c - AdamW, SGD and schedules against their formulas in double, on every instruction set of this processor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "kernels.h"
#include "optim.h"
#include "test_model.h"

enum { COUNT = 77, STEPS = 6 };
static const double u = 0x1p-24;

static void adamw_on(const struct kernels *kernels)
{
  float w[COUNT], g[COUNT], m[COUNT] = {0}, v[COUNT] = {0};
  double dw[COUNT], dm[COUNT] = {0}, dv[COUNT] = {0};
  const struct adamw_options o = {1e-3, 0.9, 0.95, 1e-8, 0.1};
  uint32_t state = 1;
  for (int i = 0; i < COUNT; i++)
    dw[i] = (double)(w[i] = test_uniform(&state));
  for (int t = 1; t <= STEPS; t++) {
    for (int i = 0; i < COUNT; i++)
      g[i] = test_uniform(&state);
    adamw_step(kernels, COUNT, w, g, m, v, &o, t, 0.25);
    for (int i = 0; i < COUNT; i++) {
      double gi = (double)g[i] * 0.25;
      dw[i] *= 1.0 - o.lr * o.weight_decay;
      dm[i] = o.beta1 * dm[i] + (1.0 - o.beta1) * gi;
      dv[i] = o.beta2 * dv[i] + (1.0 - o.beta2) * gi * gi;
      dw[i] -= o.lr / (1.0 - pow(o.beta1, t)) * dm[i] / (sqrt(dv[i]) / sqrt(1.0 - pow(o.beta2, t)) + o.eps);
      /* m: four roundings a step of numbers below 0.25; w: three a step of numbers near 1, and an update of at most about lr with 40 u */
      assert_true(fabs((double)m[i] - dm[i]) <= 4.0 * t * 0.25 * u);
      assert_true(fabs((double)v[i] - dv[i]) <= 5.0 * t * u * 0.0625);
      assert_true(fabs((double)w[i] - dw[i]) <= t * (3.0 * u + o.lr * 40.0 * u / 1e-2));
    }
  }
}

static void sgd_on(const struct kernels *kernels)
{
  float w[COUNT], g[COUNT], velocity[COUNT];
  double dw[COUNT], du[COUNT] = {0};
  const struct sgd_options o = {0.05, 0.9};
  uint32_t state = 1;
  for (int i = 0; i < COUNT; i++) {
    dw[i] = (double)(w[i] = test_uniform(&state));
    velocity[i] = NAN; /* the first step must not read it */
  }
  for (int t = 1; t <= STEPS; t++) {
    for (int i = 0; i < COUNT; i++)
      g[i] = test_uniform(&state);
    sgd_step(kernels, COUNT, w, g, velocity, &o, t, 0.5);
    for (int i = 0; i < COUNT; i++) {
      du[i] = (t == 1 ? 0.0 : o.momentum * du[i]) + 0.5 * (double)g[i];
      dw[i] -= o.lr * du[i];
      /* |velocity| stays below 0.5 / (1 - 0.9) = 5: two roundings a step there, two of w near 1 */
      assert_true(fabs((double)velocity[i] - du[i]) <= 3.0 * t * 5.0 * u);
      assert_true(fabs((double)w[i] - dw[i]) <= t * (3.0 * u + o.lr * 3.0 * t * 5.0 * u));
    }
  }
}

static void sgd_plain_on(const struct kernels *kernels)
{
  float w[COUNT], g[COUNT];
  const struct sgd_options o = {0.5, 0.0};
  for (int i = 0; i < COUNT; i++) {
    w[i] = 1.0f;
    g[i] = (float)i;
  }
  sgd_step(kernels, COUNT, w, g, NULL, &o, 1, 0.25);
  for (int i = 0; i < COUNT; i++)
    assert_true(w[i] == 1.0f - 0.125f * (float)i);
}

static void on_each_set(void (*check)(const struct kernels *kernels))
{
  for (int isa = CPU_PORTABLE; isa <= CPU_AVX512; isa++)
    if (kernels_for((enum cpu_isa)isa) != NULL)
      check(kernels_for((enum cpu_isa)isa));
}

static void test_adamw(void **state)
{
  (void)state;
  on_each_set(adamw_on);
}

static void test_sgd(void **state)
{
  (void)state;
  on_each_set(sgd_on);
}

static void test_sgd_without_momentum(void **state)
{
  (void)state;
  on_each_set(sgd_plain_on);
}

static void assert_rate(const struct schedule *s, int64_t step, double expected)
{
  assert_true(fabs(schedule_rate(s, step) - expected) <= 1e-12 * s->peak);
}

static void test_schedules(void **state)
{
  (void)state;
  struct schedule s = {SCHEDULE_COSINE, 2.0, 0.1, 4, 20};
  assert_rate(&s, 1, 0.5);
  assert_rate(&s, 4, 2.0);
  assert_rate(&s, 12, 0.2 + 0.9); /* half way down */
  assert_rate(&s, 20, 0.2);
  assert_rate(&s, 21, 0.2);
  s.kind = SCHEDULE_LINEAR;
  assert_rate(&s, 3, 1.5);
  assert_rate(&s, 8, 0.2 + 1.8 * 0.75);
  assert_rate(&s, 20, 0.2);
  assert_rate(&s, 1000, 0.2);
  s.kind = SCHEDULE_CONSTANT;
  assert_rate(&s, 2, 1.0);
  assert_rate(&s, 5, 2.0);
  assert_rate(&s, 1000, 2.0);
}

static void test_schedule_without_warmup_or_length(void **state)
{
  (void)state;
  struct schedule s = {SCHEDULE_COSINE, 1.0, 0.0, 0, 2};
  assert_rate(&s, 1, 0.5);
  assert_rate(&s, 2, 0.0);
  s.warmup_steps = 2; /* nothing left to decay over: no division by zero */
  assert_rate(&s, 2, 1.0);
  assert_rate(&s, 3, 0.0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_adamw),
      cmocka_unit_test(test_sgd),
      cmocka_unit_test(test_schedules),
      cmocka_unit_test(test_sgd_without_momentum),
      cmocka_unit_test(test_schedule_without_warmup_or_length),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
