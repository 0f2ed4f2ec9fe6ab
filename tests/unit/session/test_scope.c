/* test_scope.c - whole parameters, taken-over schedules, overridden units, and memory of communicators. */
#include "kit.h"

#include <string.h>

static ordo_status gather(void *self, uint32_t flags)
{
  (void)self;
  return flags == ORDO_GATHER_RANK0_ONLY ? ORDO_OK : ORDO_E_INVALID;
}

static ordo_status run_schedule(void *self, const ordo_step_info *info)
{
  (void)self;
  return info->n_micro_batches == 2 ? ORDO_OK : ORDO_E_INVALID;
}

static ordo_status override_unit(void *self, const ordo_unit *unit, ordo_unit_override *override)
{
  (void)self;
  if (strcmp(unit->name, "block") != 0)
    return ORDO_E_NOT_FOUND;
  override->ctx = self;
  return ORDO_OK;
}

static const ordo_state_ops state_ops = {.struct_size = sizeof state_ops, .gather_full = gather};

/* A ready session whose strategy also has the members above. */
static kit *ready(ordo_strategy *table, gboolean with)
{
  kit *k = kit_new();
  ordo_instance *instance;
  kit_add(k, "ddp", KIT_DDP, 1);
  kit_setup(k);
  instance = g_ptr_array_index(k->session->instances, 0);
  *table = *instance->plugin->strategy;
  if (with) {
    table->state = &state_ops;
    table->run_schedule = run_schedule;
    table->override_unit = override_unit;
  }
  instance->plugin->strategy = table;
  return k;
}

static void gathering_reaches_the_strategies_and_keeps_the_order(void **state)
{
  ordo_strategy table;
  kit *k = ready(&table, TRUE);
  (void)state;
  assert_int_equal(ordo_session_gather_full(k->session, 0, ORDO_GATHER_RANK0_ONLY), ORDO_OK);
  assert_int_equal(ordo_session_release_full(k->session, 0), ORDO_OK);
  assert_int_equal(ordo_session_gather_full(k->session, 7, 0), ORDO_E_INVALID);
  assert_int_equal(ordo_session_step_begin(k->session, 1, 1.0), ORDO_OK);
  assert_int_equal(ordo_session_gather_full(k->session, 0, ORDO_GATHER_RANK0_ONLY), ORDO_E_STATE);
  kit_free(k);
}

/* A step inside a scope would train weights that the end of the scope overwrites with older ones. Slips of this kind harm nothing. */
static void scopes_are_pairs_and_hold_no_training_step(void **state)
{
  ordo_strategy table;
  kit *k = ready(&table, TRUE);
  (void)state;
  assert_int_equal(ordo_session_release_full(k->session, 0), ORDO_E_STATE);
  kit_assert_mentions(k, "no scope of full parameters is open");
  assert_int_equal(ordo_session_gather_full(k->session, 0, ORDO_GATHER_RANK0_ONLY), ORDO_OK);
  assert_int_equal(ordo_session_gather_full(k->session, 0, ORDO_GATHER_RANK0_ONLY), ORDO_E_STATE);
  kit_assert_mentions(k, "open already");
  assert_int_equal(ordo_session_step_begin(k->session, 1, 1.0), ORDO_E_STATE);
  kit_assert_mentions(k, "in a scope of full parameters");
  assert_int_equal(ordo_session_eval_begin(k->session), ORDO_OK);
  assert_int_equal(ordo_session_eval_end(k->session), ORDO_OK);
  assert_int_equal(ordo_session_step_begin(k->session, 1, 1.0), ORDO_E_STATE);
  assert_int_equal(ordo_session_release_full(k->session, 0), ORDO_OK);
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_OK);
  kit_free(k);
}

static void a_schedule_is_taken_over_or_left_to_the_embedder(void **state)
{
  ordo_strategy table;
  kit *k = ready(&table, TRUE);
  (void)state;
  assert_int_equal(ordo_session_run_schedule(k->session), ORDO_E_STATE);
  assert_int_equal(ordo_session_step_begin(k->session, 2, 1.0), ORDO_OK);
  assert_int_equal(ordo_session_run_schedule(k->session), ORDO_OK);
  assert_int_equal(ordo_session_micro_begin(k->session), ORDO_E_STATE); /* all micro-batches are done */
  assert_int_equal(ordo_session_step_end(k->session, NULL), ORDO_OK);
  kit_free(k);
  k = ready(&table, FALSE);
  assert_int_equal(ordo_session_step_begin(k->session, 2, 1.0), ORDO_OK);
  assert_int_equal(ordo_session_run_schedule(k->session), ORDO_E_NOT_FOUND);
  assert_int_equal(ordo_n_errors(k->context), 0);
  kit_free(k);
}

static void a_unit_may_be_overridden(void **state)
{
  ordo_strategy table;
  kit *k = ready(&table, TRUE);
  ordo_unit_override override = {.struct_size = sizeof override};
  (void)state;
  assert_int_equal(ordo_session_override_unit(k->session, 0, 0, &override), ORDO_E_NOT_FOUND);
  assert_int_equal(ordo_session_override_unit(k->session, 0, 1, &override), ORDO_OK);
  assert_non_null(override.ctx);
  assert_int_equal(ordo_session_override_unit(k->session, 0, 9, &override), ORDO_E_INVALID);
  kit_free(k);
}

static void op_dtype_asks_the_precision_plugin(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_setup(k);
  assert_int_equal(ordo_session_op_dtype(k->session, ORDO_OP_MATMUL), ORDO_F32);
  kit_free(k);
  k = kit_new();
  kit_add(k, "amp", KIT_AMP, 0)->fp16 = TRUE;
  kit_setup(k);
  assert_int_equal(ordo_session_op_dtype(k->session, ORDO_OP_MATMUL), ORDO_F16);
  assert_int_equal(ordo_session_op_dtype(k->session, ORDO_OP_NORM), ORDO_F32);
  kit_free(k);
}

static void memory_of_communicators_is_on_the_account(void **state)
{
  kit *k = kit_new();
  const ordo_comm *comm;
  void *block = NULL;
  int64_t now, peak;
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1);
  kit_setup(k);
  comm = ordo_session_mesh(k->session)->axes[0]->comm;
  assert_int_equal(comm->alloc(comm->ctx, 1 << 20, &block), ORDO_OK);
  ordo_session_memory(k->session, ORDO_MEM_COMM, &now, &peak);
  assert_int_equal(now, 1 << 20);
  assert_int_equal(comm->free(comm->ctx, block), ORDO_OK);
  ordo_session_memory(k->session, ORDO_MEM_COMM, &now, &peak);
  assert_int_equal(now, 0);
  assert_int_equal(peak, 1 << 20);
  kit_free(k);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gathering_reaches_the_strategies_and_keeps_the_order),
      cmocka_unit_test(scopes_are_pairs_and_hold_no_training_step),
      cmocka_unit_test(a_schedule_is_taken_over_or_left_to_the_embedder),
      cmocka_unit_test(a_unit_may_be_overridden),
      cmocka_unit_test(op_dtype_asks_the_precision_plugin),
      cmocka_unit_test(memory_of_communicators_is_on_the_account),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
