/* test_finish.c - what happens after the last micro-batch, and what does not.
 *
 * Gradients of one step with grad g: element i of every storage is g * (i + 1), twice that for the tied one. Squares sum to
 * g^2 * (4 * S(15) + S(12) + S(3)) with S(n) = n (n + 1) (2 n + 1) / 6: S(15) = 1240, S(12) = 650, S(3) = 14. */
#include "kit.h"

#include <math.h>
#include <string.h>

#define SQUARES (4.0 * 1240.0 + 650.0 + 14.0)
/* double sums of 30 float squares: at most 30 roundings of 2^-53, halved by the root */
#define NORM_TOLERANCE 1e-14

static void assert_near(double value, double expected, double tolerance)
{
  if (!(fabs(value - expected) <= tolerance * fabs(expected)))
    fail_msg("%.17g is not near %.17g", value, expected);
}

static void norm_divides_by_the_weight_and_counts_ties_once(void **state)
{
  kit *k = kit_new();
  ordo_step_result result = {.struct_size = sizeof result};
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1);
  kit_setup(k);
  assert_int_equal(kit_step(k, 4.0, 1.0f, &result), ORDO_OK);
  assert_near(result.grad_norm, sqrt(SQUARES) / 4.0, NORM_TOLERANCE);
  assert_true(result.clip_coef == 1.0);
  assert_true(k->last_factor == 1.0);
  assert_int_equal(k->last_optimizer_step, 1);
  assert_int_equal(k->scheduler_steps, 1);
  kit_free(k);
}

/* A strategy that only sums leaves the division to the host: the same norm and the same weights. */
static void what_is_left_of_the_division_is_the_hosts(void **state)
{
  double norm[2];
  float weight[2];
  (void)state;
  for (int i = 0; i < 2; i++) {
    kit *k = kit_new();
    ordo_step_result result = {.struct_size = sizeof result};
    kit_add(k, "ddp", KIT_DDP, 1)->only_sum = i == 1;
    kit_setup(k);
    assert_int_equal(kit_step(k, 4.0, 1.0f, &result), ORDO_OK);
    norm[i] = result.grad_norm;
    weight[i] = ((float *)ordo_session_model(k->session, 0)->params[1]->data)[7];
    kit_free(k);
  }
  assert_true(norm[0] == norm[1]); /* 4 is a power of two: dividing before or after rounds nothing */
  assert_true(weight[0] == weight[1]);
}

static void clipping_scales_through_the_optimizer_or_in_place(void **state)
{
  (void)state;
  for (int plain = 0; plain < 2; plain++) {
    kit *k = kit_new();
    ordo_step_result result = {.struct_size = sizeof result};
    double norm = sqrt(SQUARES), coef = 1.0 / (norm + 1e-6);
    float before, after;
    k->plain_factor = plain == 1;
    k->options.max_grad_norm = 1.0;
    kit_add(k, "ddp", KIT_DDP, 1);
    kit_setup(k);
    before = ((float *)ordo_session_model(k->session, 0)->params[1]->data)[11];
    assert_int_equal(kit_step(k, 1.0, 1.0f, &result), ORDO_OK);
    after = ((float *)ordo_session_model(k->session, 0)->params[1]->data)[11];
    assert_near(result.grad_norm, norm, NORM_TOLERANCE);
    assert_near(result.clip_coef, coef, NORM_TOLERANCE);
    assert_true(plain ? k->last_factor == 1.0 : k->last_factor == result.clip_coef);
    /* before - lr * coef * 12: the factor is rounded to float once or twice, the product and the difference once each */
    assert_near((double)after, (double)before - 0.5 * coef * 12.0, 4 * 0x1p-24);
    kit_free(k);
  }
}

static void reduce_gradients_shows_true_gradients_and_step_end_does_not_repeat_it(void **state)
{
  kit *k = kit_new();
  ordo_step_result result = {.struct_size = sizeof result};
  const float *grad;
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1)->only_sum = TRUE;
  kit_setup(k);
  assert_int_equal(ordo_session_step_begin(k->session, 1, 4.0), ORDO_OK);
  assert_int_equal(kit_micro(k, 1.0f), ORDO_OK);
  assert_int_equal(ordo_session_reduce_gradients(k->session), ORDO_OK);
  grad = ordo_session_model(k->session, 0)->params[1]->grad;
  assert_true(grad[7] == 2.0f);
  assert_int_equal(ordo_session_step_end(k->session, &result), ORDO_OK);
  assert_near(result.grad_norm, sqrt(SQUARES) / 4.0, NORM_TOLERANCE);
  kit_free(k);
}

static void a_nonfinite_gradient_updates_nothing_and_names_the_leaf(void **state)
{
  kit *k = kit_new();
  ordo_step_result result = {.struct_size = sizeof result};
  float before, *grad;
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1);
  kit_setup(k);
  before = ((float *)ordo_session_model(k->session, 0)->params[1]->data)[0];
  assert_int_equal(ordo_session_step_begin(k->session, 1, 1.0), ORDO_OK);
  assert_int_equal(kit_micro(k, 1.0f), ORDO_OK);
  grad = ordo_session_model(k->session, 0)->params[1]->grad;
  grad[3] = NAN;
  assert_int_equal(ordo_session_step_end(k->session, &result), ORDO_E_INVARIANT);
  assert_string_equal(kit_code(k), "E-STEP-NONFINITE");
  kit_assert_mentions(k, "block.a");
  assert_true(((float *)ordo_session_model(k->session, 0)->params[1]->data)[0] == before);
  assert_int_equal(k->last_optimizer_step, 0);
  assert_int_equal(k->scheduler_steps, 0);
  assert_non_null(strstr(k->log->str, "ddp.step_end"));
  /* the next batch may be good */
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_OK);
  assert_int_equal(k->last_optimizer_step, 1);
  kit_free(k);
}

static void an_overflow_skips_the_step_and_the_scheduler(void **state)
{
  kit *k = kit_new();
  ordo_step_result result = {.struct_size = sizeof result};
  fake *amp;
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1);
  amp = kit_add(k, "amp", KIT_AMP, 0);
  amp->fp16 = TRUE;
  amp->scale = 8.0;
  amp->overflow = TRUE;
  kit_setup(k);
  g_string_truncate(k->log, 0);
  assert_int_equal(kit_step(k, 1.0, 1.0f, &result), ORDO_OK);
  assert_int_equal(result.skipped, 1);
  assert_non_null(strstr(k->log->str, "ddp.reduce amp.unscale amp.update_scale(1) ddp.step_end "));
  assert_int_equal(k->last_optimizer_step, 0);
  assert_int_equal(k->scheduler_steps, 0);
  amp->overflow = FALSE;
  assert_int_equal(kit_step(k, 2.0, 1.0f, &result), ORDO_OK);
  assert_int_equal(result.skipped, 0);
  assert_int_equal(k->last_optimizer_step, 1); /* of the optimizer, not of the session */
  assert_int_equal(result.step, 2);
  assert_near(result.grad_norm, sqrt(SQUARES) / 2.0, NORM_TOLERANCE); /* the scale of 8 went in with the loss and out again */
  assert_int_equal(k->scheduler_steps, 1);
  kit_free(k);
}

static void masters_are_stepped_and_their_gradients_counted(void **state)
{
  kit *k = kit_new();
  ordo_step_result result = {.struct_size = sizeof result};
  const ordo_model *model;
  fake *amp;
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1);
  amp = kit_add(k, "amp", KIT_AMP, 0);
  amp->masters = amp->fp16 = TRUE;
  amp->scale = 4.0;
  kit_setup(k);
  model = ordo_session_model(k->session, 0);
  assert_int_equal(kit_step(k, 1.0, 1.0f, &result), ORDO_OK);
  assert_near(result.grad_norm, sqrt(SQUARES), NORM_TOLERANCE);
  assert_true(((float *)model->leaves[1]->master->data)[0] == kit_weight(1, 0) - 0.5f);
  assert_true(((float *)model->leaves[1]->data)[0] == kit_weight(1, 0) - 0.5f); /* the fake's masters_to_model copies */
  assert_non_null(strstr(k->log->str, "ddp.pre_step amp.masters_to_model ddp.post_step"));
  kit_free(k);
}

static void a_veto_skips_the_step(void **state)
{
  kit *k = kit_new();
  ordo_step_result result = {.struct_size = sizeof result};
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1)->veto = TRUE;
  kit_setup(k);
  assert_int_equal(kit_step(k, 1.0, 1.0f, &result), ORDO_OK);
  assert_int_equal(result.skipped, 1);
  assert_int_equal(k->last_optimizer_step, 0);
  assert_null(strstr(k->log->str, "post_step"));
  assert_non_null(strstr(k->log->str, "step_end"));
  kit_free(k);
}

/* A parameter that got no gradient this step is neither counted nor updated. */
static void leaves_without_gradient_are_left_alone(void **state)
{
  kit *k = kit_new();
  ordo_step_result result = {.struct_size = sizeof result};
  ordo_session *s;
  (void)state;
  kit_setup(k);
  s = k->session;
  assert_int_equal(ordo_session_step_begin(s, 1, 1.0), ORDO_OK);
  assert_int_equal(ordo_session_micro_begin(s), ORDO_OK);
  assert_int_equal(ordo_session_pre_forward(s, 0, 1), ORDO_OK);
  assert_int_equal(ordo_session_post_forward(s, 0, 1), ORDO_OK);
  assert_int_equal(ordo_session_pre_backward(s, 0, 1), ORDO_OK);
  for (int i = 0; i < 12; i++)
    ((float *)ordo_session_model(s, 0)->params[1]->grad)[i] = 1.0f;
  ((float *)ordo_session_model(s, 0)->params[2]->grad)[0] = NAN; /* never reported ready: undefined contents */
  assert_int_equal(ordo_session_grad_ready(s, 0, 1), ORDO_OK);
  assert_int_equal(ordo_session_post_backward(s, 0, 1), ORDO_OK);
  assert_int_equal(ordo_session_micro_end(s), ORDO_OK);
  assert_int_equal(ordo_session_step_end(s, &result), ORDO_OK);
  assert_near(result.grad_norm, sqrt(12.0), NORM_TOLERANCE);
  assert_true(((float *)ordo_session_model(s, 0)->params[2]->data)[0] == kit_weight(2, 0));
  kit_free(k);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(norm_divides_by_the_weight_and_counts_ties_once),
      cmocka_unit_test(what_is_left_of_the_division_is_the_hosts),
      cmocka_unit_test(clipping_scales_through_the_optimizer_or_in_place),
      cmocka_unit_test(reduce_gradients_shows_true_gradients_and_step_end_does_not_repeat_it),
      cmocka_unit_test(a_nonfinite_gradient_updates_nothing_and_names_the_leaf),
      cmocka_unit_test(an_overflow_skips_the_step_and_the_scheduler),
      cmocka_unit_test(masters_are_stepped_and_their_gradients_counted),
      cmocka_unit_test(a_veto_skips_the_step),
      cmocka_unit_test(leaves_without_gradient_are_left_alone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
