/* test_step.c - the state machine of a training step. */
#include "kit.h"

#include <math.h>
#include <string.h>

static kit *ready(void)
{
  kit *k = kit_new();
  kit_add(k, "ddp", KIT_DDP, 1);
  kit_setup(k);
  g_string_truncate(k->log, 0);
  return k;
}

static void assert_order_error(const kit *k, ordo_status status, const char *state)
{
  assert_int_equal(status, ORDO_E_STATE);
  assert_string_equal(kit_code(k), "E-STATE-ORDER");
  kit_assert_mentions(k, state);
}

static void events_reach_the_strategy_in_order(void **state)
{
  kit *k = ready();
  ordo_step_result result = {.struct_size = sizeof result};
  (void)state;
  assert_int_equal(kit_step(k, 2.0, 1.0f, &result), ORDO_OK);
  assert_string_equal(
      k->log->str,
      "ddp.step_begin ddp.micro_begin ddp.pre_forward(embed) ddp.post_forward(embed) ddp.pre_forward(block) ddp.post_forward(block) "
      "ddp.pre_forward(head) ddp.post_forward(head) ddp.pre_backward(head) ddp.post_backward(head) ddp.pre_backward(block) "
      "ddp.grad_ready(block.a) ddp.grad_ready(block.b) ddp.post_backward(block) ddp.pre_backward(embed) ddp.grad_ready(embed.weight) "
      "ddp.post_backward(embed) ddp.micro_end ddp.reduce ddp.pre_step ddp.post_step ddp.step_end ");
  assert_int_equal(result.step, 1);
  assert_int_equal(result.skipped, 0);
  assert_true(result.weight == 2.0);
  kit_free(k);
}

/* Two strategies nest: the one set up last is outermost, its pre_ events come first and its post_ events last. */
static void events_of_two_strategies_nest(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "inner", KIT_FSDP2, 1);
  kit_add(k, "outer", "steps=strategy.wrap\n", 0);
  kit_setup(k);
  g_string_truncate(k->log, 0);
  assert_int_equal(ordo_session_eval_begin(k->session), ORDO_OK);
  assert_int_equal(ordo_session_pre_forward(k->session, 0, 1), ORDO_OK);
  assert_int_equal(ordo_session_post_forward(k->session, 0, 1), ORDO_OK);
  assert_int_equal(ordo_session_eval_end(k->session), ORDO_OK);
  assert_string_equal(k->log->str,
                      "outer.eval_begin inner.eval_begin outer.pre_forward(block) inner.pre_forward(block) inner.post_forward(block) "
                      "outer.post_forward(block) inner.eval_end outer.eval_end ");
  g_string_truncate(k->log, 0);
  assert_int_equal(ordo_session_step_begin(k->session, 1, 1.0), ORDO_OK);
  assert_int_equal(ordo_session_micro_begin(k->session), ORDO_OK);
  assert_int_equal(ordo_session_micro_end(k->session), ORDO_OK);
  assert_string_equal(k->log->str,
                      "outer.step_begin inner.step_begin outer.micro_begin inner.micro_begin inner.micro_end outer.micro_end ");
  kit_free(k);
}

static void every_wrong_order_is_refused_and_harmless(void **state)
{
  kit *k = ready();
  ordo_session *s = k->session;
  (void)state;
  assert_order_error(k, ordo_session_micro_begin(s), "between training steps");
  assert_order_error(k, ordo_session_step_end(s, NULL), "between training steps");
  assert_order_error(k, ordo_session_eval_end(s), "between training steps");
  assert_int_equal(ordo_session_step_begin(s, 1, 1.0), ORDO_OK);
  assert_order_error(k, ordo_session_step_begin(s, 1, 1.0), "0 of 1 done");
  assert_order_error(k, ordo_session_eval_begin(s), "in a step");
  assert_order_error(k, ordo_session_pre_forward(s, 0, 0), "between micro-batches");
  assert_order_error(k, ordo_session_step_end(s, NULL), "0 of 1 done");
  assert_order_error(k, ordo_session_reduce_gradients(s), "0 of 1 done");
  assert_int_equal(ordo_session_micro_begin(s), ORDO_OK);
  assert_order_error(k, ordo_session_micro_begin(s), "in a micro-batch");
  assert_order_error(k, ordo_session_post_forward(s, 0, 0), "between the forwards");
  assert_order_error(k, ordo_session_pre_backward(s, 0, 0), "between the forwards"); /* did not run forward */
  assert_int_equal(ordo_session_pre_forward(s, 0, 1), ORDO_OK);
  assert_order_error(k, ordo_session_pre_forward(s, 0, 2), "the forward of a unit ('block')");
  assert_order_error(k, ordo_session_post_forward(s, 0, 0), "'block'");
  assert_order_error(k, ordo_session_grad_ready(s, 0, 1), "'block'");
  assert_order_error(k, ordo_session_micro_end(s), "'block'");
  assert_int_equal(ordo_session_post_forward(s, 0, 1), ORDO_OK);
  assert_order_error(k, ordo_session_pre_forward(s, 0, 0), "between the forwards"); /* descending */
  assert_int_equal(ordo_session_pre_backward(s, 0, 1), ORDO_OK);
  assert_order_error(k, ordo_session_post_backward(s, 0, 0), "'block'");
  assert_int_equal(ordo_session_grad_ready(s, 0, 1), ORDO_OK);
  assert_order_error(k, ordo_session_grad_ready(s, 0, 1), "once per parameter");
  assert_int_equal(ordo_session_post_backward(s, 0, 1), ORDO_OK);
  assert_order_error(k, ordo_session_pre_forward(s, 0, 2), "between the backwards");
  assert_order_error(k, ordo_session_pre_backward(s, 0, 1), "descending");
  assert_int_equal(ordo_session_micro_end(s), ORDO_OK);
  assert_order_error(k, ordo_session_micro_begin(s), "1 of 1 done");
  assert_int_equal(ordo_session_reduce_gradients(s), ORDO_OK);
  assert_order_error(k, ordo_session_reduce_gradients(s), "gradients reduced");
  assert_int_equal(ordo_session_step_end(s, NULL), ORDO_OK);
  kit_free(k);
}

static void indices_are_checked(void **state)
{
  kit *k = ready();
  (void)state;
  assert_int_equal(ordo_session_eval_begin(k->session), ORDO_OK);
  assert_int_equal(ordo_session_pre_forward(k->session, 1, 0), ORDO_E_INVALID);
  assert_int_equal(ordo_session_pre_forward(k->session, 0, 3), ORDO_E_INVALID);
  assert_string_equal(kit_code(k), "E-STEP-ARGUMENT");
  assert_int_equal(ordo_session_eval_end(k->session), ORDO_OK);
  assert_int_equal(ordo_session_step_begin(k->session, 0, 1.0), ORDO_E_INVALID);
  assert_null(ordo_session_model(k->session, 1));
  kit_free(k);
}

static void the_weight_must_be_a_count(void **state)
{
  kit *k = ready();
  const double bad[] = {0.0, -1.0, (double)NAN, (double)INFINITY};
  (void)state;
  for (guint i = 0; i < G_N_ELEMENTS(bad); i++) {
    assert_int_equal(ordo_session_step_begin(k->session, 1, bad[i]), ORDO_E_INVALID);
    assert_string_equal(kit_code(k), "E-STEP-WEIGHT");
  }
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_OK); /* and the session still works */
  kit_free(k);
}

/* grad_adds: the first write of a step overwrites, later micro-batches and tied parameters add. */
static void gradients_add_over_micro_batches_and_ties(void **state)
{
  kit *k = ready();
  const float *grad;
  (void)state;
  for (int step = 0; step < 2; step++) {
    assert_int_equal(ordo_session_step_begin(k->session, 2, 1.0), ORDO_OK);
    assert_int_equal(ordo_session_grad_adds(k->session, 0, 0), 0);
    assert_int_equal(kit_micro(k, 1.0f), ORDO_OK);
    assert_int_equal(ordo_session_grad_adds(k->session, 0, 0), 1);
    assert_int_equal(kit_micro(k, 2.0f), ORDO_OK);
    grad = ordo_session_model(k->session, 0)->params[0]->grad;
    assert_true(grad[4] == 2 * (1.0f + 2.0f) * 5.0f); /* two members, two micro-batches, element 4 */
    grad = ordo_session_model(k->session, 0)->params[1]->grad;
    assert_true(grad[4] == (1.0f + 2.0f) * 5.0f);
    assert_int_equal(ordo_session_step_end(k->session, NULL), ORDO_OK);
  }
  kit_free(k);
}

/* Tied weights are complete when both members have added, and not before. */
static void a_tie_group_is_ready_once(void **state)
{
  kit *k = ready();
  const char *first;
  (void)state;
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_OK);
  first = strstr(k->log->str, "grad_ready(embed.weight)");
  assert_non_null(first);
  assert_null(strstr(first + 1, "grad_ready(embed.weight)"));
  assert_null(strstr(k->log->str, "grad_ready(head.weight)"));
  kit_free(k);
}

/* A micro-batch in which the head has no loss: what the embedding wrote is told with the last unit that has a member, or at the end. */
static void a_tie_group_without_one_member_is_ready_with_its_last_unit(void **state)
{
  (void)state;
  for (int runs = 1; runs >= 0; runs--) { /* the backward of unit 0, where the group begins */
    kit *k = ready();
    ordo_session *s = k->session;
    const uint32_t written = runs ? 0 : 3;
    assert_int_equal(ordo_session_step_begin(s, 1, 1.0), ORDO_OK);
    assert_int_equal(ordo_session_micro_begin(s), ORDO_OK);
    for (uint32_t u = 0; u < 3; u++) {
      assert_int_equal(ordo_session_pre_forward(s, 0, u), ORDO_OK);
      assert_int_equal(ordo_session_post_forward(s, 0, u), ORDO_OK);
    }
    for (uint32_t u = 3; u-- > (runs ? 0u : 1u);) {
      assert_int_equal(ordo_session_pre_backward(s, 0, u), ORDO_OK);
      if (u == (runs ? 0u : 2u))
        assert_int_equal(ordo_session_grad_ready(s, 0, written), ORDO_OK);
      assert_null(strstr(k->log->str, "grad_ready(embed.weight)"));
      assert_int_equal(ordo_session_post_backward(s, 0, u), ORDO_OK);
    }
    assert_int_equal(ordo_session_micro_end(s), ORDO_OK);
    const char *told = strstr(k->log->str, "grad_ready(embed.weight)");
    const char *end = strstr(k->log->str, runs ? "post_backward(embed)" : "micro_end");
    assert_non_null(told);
    assert_non_null(end);
    assert_true(told < end);
    assert_null(strstr(told + 1, "grad_ready(embed.weight)"));
    kit_free(k);
  }
}

static void without_a_reducing_strategy_the_loss_is_divided(void **state)
{
  kit *k = kit_new(), *with = ready();
  (void)state;
  kit_setup(k);
  assert_int_equal(ordo_session_step_begin(k->session, 1, 4.0), ORDO_OK);
  assert_true(ordo_session_loss_factor(k->session) == 0.25);
  assert_true(ordo_session_step_weight(k->session) == 4.0);
  kit_free(k);
  kit_free(with);
  with = ready();
  assert_int_equal(ordo_session_step_begin(with->session, 1, 4.0), ORDO_OK);
  assert_true(ordo_session_loss_factor(with->session) == 1.0);
  kit_free(with);
}

static void activations_are_forwarded(void **state)
{
  kit *k = ready();
  float value = 3.0f;
  ordo_activation activation = {
      .struct_size = sizeof activation, .point = ORDO_ACT_ROW_OUTPUT, .dtype = ORDO_F32, .rows = 1, .columns = 1, .data = &value};
  (void)state;
  assert_order_error(k, ordo_session_activation(k->session, 0, &activation), "between training steps");
  assert_int_equal(ordo_session_eval_begin(k->session), ORDO_OK);
  assert_int_equal(ordo_session_pre_forward(k->session, 0, 0), ORDO_OK);
  assert_int_equal(ordo_session_activation(k->session, 0, &activation), ORDO_OK);
  assert_true(value == 6.0f);
  kit_free(k);
}

static gpointer other_thread(gpointer data)
{
  return GINT_TO_POINTER(ordo_session_pre_forward(((kit *)data)->session, 0, 0));
}

static void another_thread_is_refused_in_debug_builds(void **state)
{
#ifdef NDEBUG
  (void)state;
  skip();
#else
  kit *k = ready();
  (void)state;
  assert_int_equal(ordo_session_eval_begin(k->session), ORDO_OK);
  assert_int_equal(GPOINTER_TO_INT(g_thread_join(g_thread_new("other", other_thread, k))), ORDO_E_STATE);
  assert_string_equal(kit_code(k), "E-CONTRACT-THREAD");
  assert_int_equal(ordo_session_pre_forward(k->session, 0, 0), ORDO_OK);
  kit_free(k);
#endif
}

static void a_lost_rank_makes_the_session_dead(void **state)
{
  kit *k = ready();
  double value = 1.0;
  ordo_activation activation = {.struct_size = sizeof activation};
  (void)state;
  k->fakes[0].fail_in = "pre_forward(block)";
  k->fakes[0].lose_rank = TRUE;
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_E_PEER_LOST);
  assert_string_equal(kit_code(k), "E-COMM-PEER-LOST");
  kit_assert_mentions(k, "plugin 'ddp', pre_forward");
  assert_int_equal(ordo_session_post_forward(k->session, 0, 1), ORDO_E_PEER_LOST);
  assert_int_equal(ordo_session_step_begin(k->session, 1, 1.0), ORDO_E_PEER_LOST);
  assert_int_equal(ordo_session_eval_begin(k->session), ORDO_E_PEER_LOST);
  assert_int_equal(ordo_session_sum(k->session, &value, 1), ORDO_E_PEER_LOST);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_PEER_LOST);
  assert_int_equal(ordo_session_gather_full(k->session, 0, 0), ORDO_E_PEER_LOST);
  assert_int_equal(ordo_session_run(k->session, "verify"), ORDO_E_PEER_LOST);
  (void)activation;
  kit_free(k);
}

static void a_plugin_error_inside_a_step_ends_the_session(void **state)
{
  static const char *const members[] = {"step_begin",
                                        "micro_begin",
                                        "pre_forward(block)",
                                        "post_forward(embed)",
                                        "pre_backward(head)",
                                        "grad_ready(block.a)",
                                        "post_backward(block)",
                                        "micro_end",
                                        "reduce",
                                        "pre_step",
                                        "post_step",
                                        "step_end"};
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(members); i++) {
    kit *k = ready();
    g_autofree char *place =
        g_strdup_printf("plugin 'ddp', %s%.*s", i >= 8 && i != 9 && i != 11 ? "step." : "", (int)strcspn(members[i], "("), members[i]);
    k->fakes[0].fail_in = members[i];
    if (kit_step(k, 1.0, 1.0f, NULL) != ORDO_E_UNSUPPORTED)
      fail_msg("%s failed, the step did not", members[i]);
    kit_assert_mentions(k, place);
    assert_int_equal(ordo_session_step_begin(k->session, 1, 1.0), ORDO_E_STATE);
    assert_string_equal(kit_code(k), "E-STATE-FAILED");
    kit_free(k);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(events_reach_the_strategy_in_order),
      cmocka_unit_test(events_of_two_strategies_nest),
      cmocka_unit_test(every_wrong_order_is_refused_and_harmless),
      cmocka_unit_test(indices_are_checked),
      cmocka_unit_test(the_weight_must_be_a_count),
      cmocka_unit_test(gradients_add_over_micro_batches_and_ties),
      cmocka_unit_test(a_tie_group_is_ready_once),
      cmocka_unit_test(a_tie_group_without_one_member_is_ready_with_its_last_unit),
      cmocka_unit_test(without_a_reducing_strategy_the_loss_is_divided),
      cmocka_unit_test(activations_are_forwarded),
      cmocka_unit_test(another_thread_is_refused_in_debug_builds),
      cmocka_unit_test(a_lost_rank_makes_the_session_dead),
      cmocka_unit_test(a_plugin_error_inside_a_step_ends_the_session),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
