/* test_wrap.c - what ddp checks before it touches anything, and how it gives everything back. */
#include "mock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

extern const ordo_plugin ordo_plugin_entry;

static mock_world world;
static mock_rank ranks[MAX_RANKS];
static const int64_t NUMELS[] = {16, 7, 33, 4};
enum { N = 4 };

static void tear_down(void)
{
  mock_run(&world, ranks, mock_destroy, NULL);
  assert_string_equal(world.breach, "");
  for (int r = 0; r < world.size; r++) {
    assert_int_equal(ranks[r].open_blocks, 0);
    assert_int_equal(ranks[r].open_windows, 0);
    assert_int_equal(ranks[r].open_requests, 0);
    for (uint32_t i = 0; i < ranks[r].model.n_leaves; i++)
      assert_ptr_equal(ranks[r].leaves[i].grad, ranks[r].own_grads[i]);
  }
  mock_clear(&world, ranks);
}

/* Wraps and expects every rank to fail with `status` and an error that has both texts. */
static void expect_failure(ordo_status expected, const char *text, const char *other_text)
{
  ordo_status status[MAX_RANKS];
  mock_run(&world, ranks, mock_wrap, status);
  for (int r = 0; r < world.size; r++) {
    assert_int_equal(status[r], expected);
    assert_int_equal(ranks[r].failed, expected);
    if (strstr(ranks[r].error, text) == NULL || strstr(ranks[r].error, other_text) == NULL)
      fail_msg("rank %d: no '%s' or no '%s' in: %s", r, text, other_text, ranks[r].error);
    assert_true(ranks[r].hint[0] != '\0');
  }
  tear_down();
}

static void entry(void **state)
{
  (void)state;
  assert_int_equal(ordo_plugin_entry.magic, ORDO_PLUGIN_MAGIC);
  assert_string_equal(ordo_plugin_entry.id, "ddp");
  const ordo_strategy *strategy = ordo_plugin_entry.get_extension(ORDO_STRATEGY_EXTENSION);
  assert_non_null(strategy);
  assert_ptr_equal(ordo_plugin_entry.get_extension(ORDO_STRATEGY_EXTENSION), strategy);
  assert_null(ordo_plugin_entry.get_extension(NULL));
  assert_null(ordo_plugin_entry.get_extension(""));
  assert_null(ordo_plugin_entry.get_extension("ordo.strategy/2"));
  strategy->destroy(NULL);
}

static void another_name(void **state)
{
  (void)state;
  mock_init(&world, ranks, 3, N, NUMELS);
  ranks[2].leaves[1].name = "q1";
  expect_failure(ORDO_E_MISMATCH, "parameter 1 is 'p1' [7] f32, 7 elements here on rank 0", "'q1' [7] f32, 7 elements here on rank 2");
}

static void another_shape(void **state)
{
  (void)state;
  mock_rank *rank = &ranks[1];
  mock_init(&world, ranks, 2, N, NUMELS);
  rank->params[3].shape[0] = rank->params[3].local_shape[0] = rank->leaves[3].numel = 5;
  expect_failure(ORDO_E_MISMATCH, "'p3' [4] f32, 4 elements here on rank 0", "'p3' [5] f32, 5 elements here on rank 1");
}

static void one_parameter_less(void **state)
{
  (void)state;
  mock_init(&world, ranks, 2, N, NUMELS);
  ranks[0].model.n_leaves = N - 1;
  expect_failure(ORDO_E_MISMATCH, "no such parameter on rank 0 (of 3)", "'p3' [4] f32, 4 elements here on rank 1 (of 4)");
}

static void frozen_on_one_rank_only(void **state)
{
  (void)state;
  mock_init(&world, ranks, 2, N, NUMELS);
  ranks[1].leaves[0].flags = 0;
  expect_failure(ORDO_E_MISMATCH, "'p0' [16] f32, 16 elements here on rank 0", "frozen on rank 1");
}

static void integer_gradient(void **state)
{
  (void)state;
  mock_init(&world, ranks, 2, N, NUMELS);
  for (int r = 0; r < 2; r++)
    ranks[r].leaves[2].grad_dtype = ORDO_I8;
  expect_failure(ORDO_E_UNSUPPORTED, "'p2'", "cannot be averaged");
}

static void opaque_storage(void **state)
{
  (void)state;
  static const ordo_dtype_ops nf4 = {.struct_size = sizeof nf4, .id = ORDO_DTYPE_OPAQUE, .name = "nf4"};
  mock_init(&world, ranks, 2, N, NUMELS);
  for (int r = 0; r < 2; r++) {
    ranks[r].leaves[2].opaque = &nf4;
    ranks[r].leaves[2].dtype = ORDO_DTYPE_OPAQUE;
  }
  expect_failure(ORDO_E_UNSUPPORTED, "'p2'", "nf4");
}

static void stale_leaf(void **state)
{
  (void)state;
  mock_init(&world, ranks, 2, N, NUMELS);
  for (int r = 0; r < 2; r++) {
    ranks[r].leaves[1].state = ORDO_LEAF_REPLACED;
    ranks[r].leaves[1].replaced_by = "strategy.wrap(flat)";
  }
  expect_failure(ORDO_E_STALE, "'p1'", "strategy.wrap(flat)");
}

static void nothing_to_train(void **state)
{
  (void)state;
  mock_init(&world, ranks, 2, N, NUMELS);
  for (int r = 0; r < 2; r++)
    for (int i = 0; i < N; i++)
      ranks[r].leaves[i].flags = 0;
  expect_failure(ORDO_E_INVALID, "no trainable parameter", "'model'");
}

static void empty_model(void **state)
{
  (void)state;
  mock_init(&world, ranks, 2, 0, NUMELS);
  expect_failure(ORDO_E_INVALID, "no trainable parameter", "0 parameters");
}

static void pattern_without_match(void **state)
{
  (void)state;
  mock_init(&world, ranks, 2, N, NUMELS);
  mock_option(ranks, 2, "ignored", "p1,lora_*");
  expect_failure(ORDO_E_INVALID, "p1,lora_*", "number 2");
}

static void unknown_hook(void **state)
{
  (void)state;
  mock_init(&world, ranks, 2, N, NUMELS);
  mock_option(ranks, 2, "hook", "powersdg");
  expect_failure(ORDO_E_NOT_FOUND, "no comm hook", "powersdg");
}

static void hook_on_another_type(void **state)
{
  (void)state;
  mock_init(&world, ranks, 2, N, NUMELS);
  mock_option(ranks, 2, "hook", "bf16");
  for (int r = 0; r < 2; r++)
    ranks[r].leaves[1].grad_dtype = ORDO_F64;
  expect_failure(ORDO_E_UNSUPPORTED, "'bf16'", "'p1'");
}

static void views_cannot_be_turned_off(void **state)
{
  (void)state;
  mock_init(&world, ranks, 1, N, NUMELS);
  mock_option(ranks, 1, "gradient_as_bucket_view", "0");
  expect_failure(ORDO_E_UNSUPPORTED, "gradient_as_bucket_view", "always");
}

static void limits_below_one(void **state)
{
  (void)state;
  mock_init(&world, ranks, 1, N, NUMELS);
  mock_option(ranks, 1, "bucket_cap", "0");
  expect_failure(ORDO_E_INVALID, "bucket_cap", "at least one byte");
}

static void wrap_again(mock_rank *rank, void *arg)
{
  ((ordo_status *)arg)[rank->rank] = rank->strategy->wrap(rank->instance);
}

static void undo_wrap(mock_rank *rank, void *arg)
{
  (void)arg;
  rank->strategy->undo(rank->instance, ORDO_STEP_WRAP);
}

static void undo_and_wrap_again(void **state)
{
  (void)state;
  ordo_status status[MAX_RANKS];
  mock_init(&world, ranks, 2, N, NUMELS);
  mock_run(&world, ranks, mock_wrap, status);
  assert_int_equal(status[0], ORDO_OK);
  assert_ptr_not_equal(ranks[0].leaves[0].grad, ranks[0].own_grads[0]);
  assert_ptr_equal(ranks[0].leaves[0].grad, ranks[0].params[0].grad);
  mock_run(&world, ranks, wrap_again, status);
  assert_int_equal(status[1], ORDO_E_STATE);
  mock_run(&world, ranks, undo_wrap, NULL);
  for (int i = 0; i < N; i++) {
    assert_ptr_equal(ranks[1].leaves[i].grad, ranks[1].own_grads[i]);
    assert_ptr_equal(ranks[1].params[i].grad, ranks[1].own_grads[i]);
  }
  mock_run(&world, ranks, wrap_again, status);
  assert_int_equal(status[0], ORDO_OK);
  tear_down();
}

/* Forward only: the replicas are compared, nothing is allocated, and step events do nothing. */
static void evaluation_only(void **state)
{
  (void)state;
  ordo_status status[MAX_RANKS];
  mock_init(&world, ranks, 2, N, NUMELS);
  for (int r = 0; r < 2; r++)
    ranks[r].job.eval_only = 1;
  mock_run(&world, ranks, mock_wrap, status);
  assert_int_equal(status[0], ORDO_OK);
  assert_int_equal(world.n_collectives, 1);
  assert_int_equal(ranks[0].open_windows, 0);
  assert_ptr_equal(ranks[0].leaves[0].grad, ranks[0].own_grads[0]);
  ordo_step_info info = {
      .struct_size = sizeof info, .step = 1, .n_micro_batches = 1, .is_last_micro_batch = 1, .evaluating = 1, .divide_factor = 1.0};
  assert_int_equal(ranks[0].strategy->step_begin(ranks[0].instance, &info), ORDO_OK);
  assert_int_equal(ranks[0].strategy->micro_begin(ranks[0].instance, &info), ORDO_OK);
  assert_int_equal(ranks[0].strategy->reduce(ranks[0].instance, &info), ORDO_OK);
  tear_down();
}

/* Weights are left alone: equal replicas are the business of weights.sync. */
static void no_hidden_broadcast(void **state)
{
  (void)state;
  ordo_status status[MAX_RANKS];
  mock_init(&world, ranks, 2, N, NUMELS);
  mock_run(&world, ranks, mock_wrap, status);
  assert_int_equal(status[0], ORDO_OK);
  for (int c = 0; c < world.n_collectives; c++)
    assert_int_equal(world.collectives[c].desc.kind, ORDO_ALL_GATHER); /* of hashes */
  tear_down();
}

static void gradients_of_two_types(void **state)
{
  (void)state;
  ordo_status status[MAX_RANKS];
  mock_init(&world, ranks, 1, N, NUMELS);
  ranks[0].leaves[1].grad_dtype = ORDO_F64;
  mock_run(&world, ranks, mock_wrap, status);
  assert_int_equal(status[0], ORDO_OK);
  assert_ptr_equal((char *)ranks[0].leaves[3].grad + 4 * sizeof(float), ranks[0].leaves[2].grad);
  assert_int_equal((uintptr_t)ranks[0].leaves[1].grad % 64, 0); /* a bucket of its own */
  tear_down();
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(entry),
      cmocka_unit_test(another_name),
      cmocka_unit_test(another_shape),
      cmocka_unit_test(one_parameter_less),
      cmocka_unit_test(frozen_on_one_rank_only),
      cmocka_unit_test(integer_gradient),
      cmocka_unit_test(opaque_storage),
      cmocka_unit_test(stale_leaf),
      cmocka_unit_test(nothing_to_train),
      cmocka_unit_test(empty_model),
      cmocka_unit_test(pattern_without_match),
      cmocka_unit_test(unknown_hook),
      cmocka_unit_test(hook_on_another_type),
      cmocka_unit_test(views_cannot_be_turned_off),
      cmocka_unit_test(limits_below_one),
      cmocka_unit_test(undo_and_wrap_again),
      cmocka_unit_test(evaluation_only),
      cmocka_unit_test(no_hidden_broadcast),
      cmocka_unit_test(gradients_of_two_types),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
