/* test_control.c - ordo_session_control: what the host refuses by itself, who is asked, and what a refusal leaves behind. What the
 * operations do is tested with the strategies (tests/unit/fsdp1/test_control.c). */
#include "kit.h"

#include <math.h>
#include <string.h>

typedef struct heard {
  ordo_control last;
  int calls;
  ordo_status answer;
  ordo_session *session;
} heard;

/* The tables have no data of their own, so what was heard is found by the test. */
static heard first, second;

static ordo_status hear_it(heard *by, const ordo_control *control)
{
  by->last = *control;
  by->calls++;
  if (by->answer == ORDO_OK || by->answer == ORDO_E_NOT_FOUND)
    return by->answer;
  return ordo_errors_push(by->session->context->errors, by->answer, "E-TEST", "test", "it was told to", "", "the strategy refuses");
}

static ordo_status control_first(void *self, const ordo_control *control)
{
  (void)self;
  return hear_it(&first, control);
}

static ordo_status control_second(void *self, const ordo_control *control)
{
  (void)self;
  return hear_it(&second, control);
}

/* A ready session with two strategies, of which the first or both have the member. */
static kit *ready(ordo_strategy tables[2], int with)
{
  kit *k = kit_new();
  kit_add(k, "ddp", KIT_DDP, 1);
  kit_add(k, "fsdp1", KIT_FSDP1, 1)->flat = TRUE;
  kit_setup(k);
  memset(&first, 0, sizeof first);
  memset(&second, 0, sizeof second);
  first.session = second.session = k->session;
  for (guint i = 0; i < 2; i++) {
    ordo_instance *instance = g_ptr_array_index(k->session->order, i);
    tables[i] = *instance->plugin->strategy;
    tables[i].control = i == 0 ? control_first : control_second;
    if ((int)i >= with)
      tables[i].struct_size = ORDO_SIZE_THROUGH(ordo_strategy, state); /* of an earlier release */
    instance->plugin->strategy = &tables[i];
  }
  return k;
}

static ordo_status call(kit *k, uint32_t operation, uint32_t unit, int64_t value)
{
  const ordo_control control = ordo_control_make(operation, unit, value);
  return ordo_session_control(k->session, 0, &control);
}

static void every_strategy_that_has_it_is_asked(void **state)
{
  ordo_strategy tables[2];
  kit *k = ready(tables, 2);
  (void)state;
  assert_int_equal(call(k, ORDO_CONTROL_GRADIENT_SYNC, 1, 0), ORDO_OK);
  assert_int_equal(first.calls, 1);
  assert_int_equal(second.calls, 1);
  assert_int_equal(second.last.operation, ORDO_CONTROL_GRADIENT_SYNC);
  assert_int_equal(second.last.unit, 1);
  assert_int_equal(second.last.value, 0);
  kit_free(k);
  k = ready(tables, 1);
  assert_int_equal(call(k, ORDO_CONTROL_RESHARD, ORDO_ALL_UNITS, 0), ORDO_OK);
  assert_int_equal(first.calls, 1);
  assert_int_equal(second.calls, 0);
  kit_free(k);
}

/* One that does not know the operation is passed over; if all are, the program hears it. */
static void nobody_is_an_error_and_somebody_is_enough(void **state)
{
  ordo_strategy tables[2];
  kit *k = ready(tables, 2);
  (void)state;
  first.answer = ORDO_E_NOT_FOUND;
  assert_int_equal(call(k, ORDO_CONTROL_UNSHARD, 1, 1), ORDO_OK);
  assert_int_equal(ordo_n_errors(k->context), 0);
  second.answer = ORDO_E_NOT_FOUND;
  assert_int_equal(call(k, ORDO_CONTROL_UNSHARD, 1, 1), ORDO_E_UNSUPPORTED);
  assert_string_equal(kit_code(k), "E-CONTROL-UNSUPPORTED");
  kit_assert_mentions(k, "unshard");
  kit_assert_mentions(k, "'ddp'");
  kit_assert_mentions(k, "'fsdp1'");
  assert_int_equal(k->session->state, ORDO_SESSION_READY);
  kit_free(k);
  k = ready(tables, 0);
  assert_int_equal(call(k, ORDO_CONTROL_RESHARD, 1, 0), ORDO_E_UNSUPPORTED);
  kit_free(k);
}

static void a_refusal_leaves_the_session_alive_and_another_error_does_not(void **state)
{
  static const ordo_status refusals[] = {ORDO_E_STATE, ORDO_E_INVALID, ORDO_E_UNSUPPORTED};
  ordo_strategy tables[2];
  kit *k = ready(tables, 2);
  (void)state;
  for (size_t i = 0; i < 3; i++) {
    first.answer = refusals[i];
    assert_int_equal(call(k, ORDO_CONTROL_UNSHARD, 1, 1), refusals[i]);
    kit_assert_mentions(k, "the strategy refuses");
  }
  assert_int_equal(second.calls, 0); /* the first refusal ends the call */
  first.answer = ORDO_OK;
  assert_int_equal(kit_step(k, 1.0, 0.5f, NULL), ORDO_OK);
  first.answer = ORDO_E_NOMEM;
  assert_int_equal(call(k, ORDO_CONTROL_UNSHARD, 1, 1), ORDO_E_NOMEM);
  assert_int_equal(call(k, ORDO_CONTROL_UNSHARD, 1, 1), ORDO_E_STATE);
  assert_string_equal(kit_code(k), "E-STATE-FAILED");
  kit_free(k);
}

static void assert_invalid(kit *k, const ordo_control *control, const char *word)
{
  assert_int_equal(ordo_session_control(k->session, 0, control), ORDO_E_INVALID);
  assert_string_equal(kit_code(k), "E-CONTROL-ARGUMENT");
  kit_assert_mentions(k, word);
}

static void arguments_are_checked_before_anybody_is_asked(void **state)
{
  ordo_strategy tables[2];
  const uint32_t units[] = {1, 99};
  kit *k = ready(tables, 2);
  ordo_control control = ordo_control_make(ORDO_CONTROL_UNSHARD, 99, 1);
  (void)state;
  assert_invalid(k, &control, "unit 99");
  assert_invalid(k, NULL, "missing");
  control = ordo_control_make(0, 1, 1);
  assert_invalid(k, &control, "no such operation");
  control.operation = 99;
  assert_invalid(k, &control, "no such operation");
  control = ordo_control_make(ORDO_CONTROL_GRADIENT_SYNC, 1, 2);
  assert_invalid(k, &control, "or -1");
  control = ordo_control_make(ORDO_CONTROL_UNSHARD, 1, ORDO_CONTROL_RULE);
  assert_invalid(k, &control, "unshard takes 1 or 0, not -1");
  control = ordo_control_make(ORDO_CONTROL_DIVIDE_FACTOR, 1, 0);
  control.factor = -1.0;
  assert_invalid(k, &control, "above 0");
  control.factor = (double)NAN;
  assert_invalid(k, &control, "above 0");
  control.factor = (double)INFINITY;
  assert_invalid(k, &control, "above 0");
  control = ordo_control_make(ORDO_CONTROL_FORWARD_PREFETCH, ORDO_ALL_UNITS, 0);
  assert_invalid(k, &control, "one unit");
  control = ordo_control_make(ORDO_CONTROL_BACKWARD_PREFETCH, 1, 0);
  control.n_units = 2;
  assert_invalid(k, &control, "units is null");
  control.units = units;
  assert_invalid(k, &control, "unit 99");
  control.struct_size = ORDO_SIZE_THROUGH(ordo_control, factor);
  assert_invalid(k, &control, "too short");
  control = ordo_control_make(ORDO_CONTROL_UNSHARD, 1, 1);
  assert_int_equal(ordo_session_control(k->session, 7, &control), ORDO_E_INVALID);
  assert_int_equal(first.calls + second.calls, 0);
  kit_free(k);
}

/* Before the set-up, in a step, in a micro-batch, in a unit, after the reduction, in an evaluation: per operation, 1 is legal. */
static void each_operation_has_its_moments(void **state)
{
  static const struct {
    uint32_t operation;
    int ready, step, micro, unit, reduced, eval;
  } rows[] = {{ORDO_CONTROL_GRADIENT_SYNC, 1, 1, 0, 0, 0, 0},
              {ORDO_CONTROL_UNSHARD, 1, 1, 1, 0, 0, 1},
              {ORDO_CONTROL_RESHARD, 1, 1, 1, 0, 0, 1},
              {ORDO_CONTROL_RESHARD_AFTER_FORWARD, 1, 1, 1, 0, 0, 1},
              {ORDO_CONTROL_RESHARD_AFTER_BACKWARD, 1, 1, 1, 0, 0, 1},
              {ORDO_CONTROL_DIVIDE_FACTOR, 1, 0, 0, 0, 0, 0},
              {ORDO_CONTROL_FORWARD_PREFETCH, 1, 1, 1, 0, 0, 1},
              {ORDO_CONTROL_BACKWARD_PREFETCH, 1, 1, 1, 0, 0, 1}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    ordo_strategy tables[2];
    kit *k = ready(tables, 2);
    const int wanted[] = {rows[i].ready, rows[i].step, rows[i].micro, rows[i].unit, rows[i].reduced, rows[i].eval};
    ordo_status got[6];
    got[0] = call(k, rows[i].operation, 1, 0);
    assert_int_equal(ordo_session_step_begin(k->session, 1, 1.0), ORDO_OK);
    got[1] = call(k, rows[i].operation, 1, 0);
    assert_int_equal(ordo_session_micro_begin(k->session), ORDO_OK);
    got[2] = call(k, rows[i].operation, 1, 0);
    assert_int_equal(ordo_session_pre_forward(k->session, 0, 0), ORDO_OK);
    got[3] = call(k, rows[i].operation, 1, 0);
    assert_int_equal(ordo_session_post_forward(k->session, 0, 0), ORDO_OK);
    assert_int_equal(ordo_session_micro_end(k->session), ORDO_OK);
    assert_int_equal(ordo_session_reduce_gradients(k->session), ORDO_OK);
    got[4] = call(k, rows[i].operation, 1, 0);
    assert_int_equal(ordo_session_step_end(k->session, NULL), ORDO_OK);
    assert_int_equal(ordo_session_eval_begin(k->session), ORDO_OK);
    got[5] = call(k, rows[i].operation, 1, 0);
    assert_int_equal(ordo_session_eval_end(k->session), ORDO_OK);
    for (int m = 0; m < 6; m++)
      assert_int_equal(got[m], wanted[m] ? ORDO_OK : ORDO_E_STATE);
    assert_int_equal(first.calls, rows[i].ready + rows[i].step + rows[i].micro + rows[i].unit + rows[i].reduced + rows[i].eval);
    kit_free(k);
  }
  kit *k = kit_new();
  kit_add(k, "ddp", KIT_DDP, 1);
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(call(k, ORDO_CONTROL_UNSHARD, 1, 1), ORDO_E_STATE);
  kit_assert_mentions(k, "in set-up");
  kit_assert_mentions(k, "ordo_session_control(unshard)");
  kit_free(k);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_strategy_that_has_it_is_asked),
      cmocka_unit_test(nobody_is_an_error_and_somebody_is_enough),
      cmocka_unit_test(a_refusal_leaves_the_session_alive_and_another_error_does_not),
      cmocka_unit_test(arguments_are_checked_before_anybody_is_asked),
      cmocka_unit_test(each_operation_has_its_moments),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
