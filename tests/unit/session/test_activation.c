/* test_activation.c - which activations a strategy is asked to transform, and how rows of the residual stream are split. */
#include "kit.h"

static kit *with_strategy(fake **knobs)
{
  kit *k = kit_new();
  *knobs = kit_add(k, "ddp", KIT_DDP, 1);
  return k;
}

static void assert_wants(kit *k, int forward, int backward)
{
  assert_int_equal(ordo_session_wants_activation(k->session, 0, ORDO_ACT_ROW_OUTPUT, 1, 0), forward);
  assert_int_equal(ordo_session_wants_activation(k->session, 0, ORDO_ACT_ROW_OUTPUT, 1, 1), backward);
}

static void a_strategy_says_which_places_it_wants(void **state)
{
  fake *knobs;
  kit *k = with_strategy(&knobs);
  (void)state;
  knobs->backward_only = TRUE;
  kit_setup(k);
  assert_wants(k, 0, 1);
  assert_int_equal(ordo_session_wants_activation(k->session, 0, ORDO_ACT_ROW_OUTPUT, 1000, 1), 0);
  assert_int_equal(ordo_session_wants_activation(k->session, 7, ORDO_ACT_ROW_OUTPUT, 0, 1), 0);
  kit_free(k);
}

/* Of an earlier release, or with no opinion: everything, as before the question existed. */
static void without_an_answer_it_gets_everything(void **state)
{
  fake *knobs;
  kit *k = with_strategy(&knobs);
  (void)state;
  knobs->backward_only = TRUE;
  knobs->table_size = ORDO_SIZE_THROUGH(ordo_strategy, state);
  kit_setup(k);
  assert_wants(k, 1, 1);
  kit_free(k);
}

static void without_strategies_nobody_wants_anything(void **state)
{
  kit *k = kit_new();
  int32_t parts = 9, index = 9;
  (void)state;
  kit_setup(k);
  assert_wants(k, 0, 0);
  ordo_session_residual(k->session, 0, &parts, &index);
  assert_int_equal(parts, 1);
  assert_int_equal(index, 0);
  kit_free(k);
}

/* What is offered at a place that one strategy wants does not reach another. */
static void only_those_who_want_it_are_called(void **state)
{
  kit *k = kit_new();
  float value = 3.0f;
  ordo_activation a = {.struct_size = sizeof a, .point = ORDO_ACT_ROW_OUTPUT, .dtype = ORDO_F32, .rows = 1, .columns = 1, .data = &value};
  (void)state;
  kit_add(k, "all", KIT_DDP, 1);
  kit_add(k, "backward", "steps=strategy.wrap\n", 0)->backward_only = TRUE;
  kit_setup(k);
  a.out_rows = a.out_columns = 1;
  a.out = &value;
  a.param = ordo_session_model(k->session, 0)->params[0];
  assert_int_equal(ordo_session_eval_begin(k->session), ORDO_OK);
  assert_int_equal(ordo_session_pre_forward(k->session, 0, 0), ORDO_OK);
  assert_int_equal(ordo_session_activation(k->session, 0, &a), ORDO_OK);
  assert_true(value == 6.0f);
  a.backward = 1;
  assert_int_equal(ordo_session_activation(k->session, 0, &a), ORDO_OK);
  assert_true(value == 24.0f);
  kit_free(k);
}

static void rows_are_split_as_the_strategy_says(void **state)
{
  fake *knobs;
  kit *k = with_strategy(&knobs);
  int32_t parts = 9, index = 9;
  (void)state;
  kit_setup(k);
  ordo_session_residual(k->session, 0, &parts, &index);
  assert_int_equal(parts, 1);
  assert_int_equal(index, 0);
  knobs->parts = 3;
  knobs->part = 2;
  ordo_session_residual(k->session, 0, &parts, &index);
  assert_int_equal(parts, 3);
  assert_int_equal(index, 2);
  kit_free(k);
}

/* Where nobody needs identical data nothing is compared, so one rank may pass what it likes. */
static void data_is_not_compared_without_need(void **state)
{
  fake *knobs;
  kit *k = with_strategy(&knobs);
  (void)state;
  kit_setup(k);
  assert_int_equal(ordo_session_check_data(k->session, "ab", 2), ORDO_OK);
  assert_int_equal(ordo_session_check_data(k->session, NULL, 0), ORDO_OK);
  kit_free(k);
}

/* Of 8 ranks: copies by what a placement says. */
static void copies_follow_from_the_placement(void **state)
{
  (void)state;
  assert_int_equal(ordo_placement_copies(ORDO_REPLICATE, 8), 8);
  assert_int_equal(ordo_placement_copies(ORDO_SHARD, 8), 1);
  assert_int_equal(ordo_placement_copies(ORDO_SHARD + 3, 8), 4);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_strategy_says_which_places_it_wants),    cmocka_unit_test(without_an_answer_it_gets_everything),
      cmocka_unit_test(without_strategies_nobody_wants_anything), cmocka_unit_test(only_those_who_want_it_are_called),
      cmocka_unit_test(rows_are_split_as_the_strategy_says),      cmocka_unit_test(data_is_not_compared_without_need),
      cmocka_unit_test(copies_follow_from_the_placement),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
