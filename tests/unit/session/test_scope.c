/* test_scope.c - whole parameters, taken-over schedules, overridden units, and memory of communicators. */
#include "kit.h"

#include <string.h>

static int gathered, released; /* calls of the strategy's two members */

static ordo_status gather(void *self, uint32_t flags)
{
  (void)self;
  gathered++;
  return flags <= (ORDO_GATHER_WRITE_BACK | ORDO_GATHER_RANK0_ONLY) ? ORDO_OK : ORDO_E_INVALID;
}

static ordo_status release(void *self)
{
  (void)self;
  released++;
  return ORDO_OK;
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

static const ordo_state_ops state_ops = {.struct_size = sizeof state_ops, .gather_full = gather, .release_full = release};

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

/* The records name the call and the scope. */
static void refused(const kit *k, ordo_status status, const char *call, const char *text)
{
  const ordo_error *error = ordo_error_at(k->context, 0);
  assert_int_equal(status, ORDO_E_STATE);
  assert_int_equal(ordo_n_errors(k->context), 1);
  assert_string_equal(error->code, "E-STATE-ORDER");
  assert_string_equal(error->where, call);
  assert_non_null(strstr(error->what, text));
  assert_non_null(strstr(error->what, "scope of full parameters"));
  assert_non_null(strstr(error->what, "model 'model'"));
}

/* A whole training step, as proof that the session lives. */
static void train(kit *k)
{
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_OK);
}

/* Under every strategy alike: one that gathers, and one that has nothing to gather. */
static void no_training_step_begins_inside_a_scope(void **state)
{
  (void)state;
  for (int with = 0; with < 2; with++) {
    ordo_strategy table;
    kit *k = ready(&table, with);
    assert_int_equal(ordo_session_gather_full(k->session, 0, 0), ORDO_OK);
    refused(k, ordo_session_step_begin(k->session, 1, 1.0), "ordo_session_step_begin", "ordo_session_step_begin");
    assert_int_equal(ordo_session_micro_begin(k->session), ORDO_E_STATE);
    assert_int_equal(ordo_session_pre_forward(k->session, 0, 0), ORDO_E_STATE);
    assert_int_equal(ordo_session_release_full(k->session, 0), ORDO_OK);
    train(k);
    kit_free(k);
  }
}

static void forwards_inside_a_scope_need_values_on_every_rank(void **state)
{
  (void)state;
  for (uint32_t flags = 0; flags < 4; flags++) {
    ordo_strategy table;
    kit *k = ready(&table, flags % 2);
    assert_int_equal(ordo_session_gather_full(k->session, 0, flags), ORDO_OK);
    assert_int_equal(ordo_session_eval_begin(k->session), ORDO_OK);
    if (flags & ORDO_GATHER_RANK0_ONLY) {
      refused(k, ordo_session_pre_forward(k->session, 0, 0), "ordo_session_pre_forward", "ordo_session_pre_forward");
      assert_non_null(strstr(ordo_error_at(k->context, 0)->why, "ORDO_GATHER_RANK0_ONLY"));
    } else {
      assert_int_equal(ordo_session_pre_forward(k->session, 0, 0), ORDO_OK);
      assert_int_equal(ordo_session_post_forward(k->session, 0, 0), ORDO_OK);
    }
    assert_int_equal(ordo_session_eval_end(k->session), ORDO_OK);
    assert_int_equal(ordo_session_release_full(k->session, 0), ORDO_OK);
    train(k);
    kit_free(k);
  }
}

static void state_stays_where_it_is_inside_a_scope(void **state)
{
  ordo_strategy table;
  kit *k = ready(&table, TRUE);
  const ordo_model *model = ordo_session_model(k->session, 0);
  const ordo_param *param = model->params[0];
  const ordo_leaf *leaf = model->leaves[0];
  const ordo_chunk *chunk = leaf->placement->chunks;
  g_autofree float *values = g_new0(float, (gsize)param->numel);
  (void)state;
  assert_int_equal(ordo_session_gather_full(k->session, 0, ORDO_GATHER_WRITE_BACK), ORDO_OK);
  refused(k, ordo_session_import_param(k->session, param, -1, values), "ordo_session_import_param", "import_param");
  refused(k, ordo_session_export_param(k->session, param, -1, values), "ordo_session_export_param", "export_param");
  refused(k, ordo_session_import_chunk(k->session, leaf, chunk, -1, values), "ordo_session_import_chunk", "import_chunk");
  refused(k, ordo_session_export_chunk(k->session, leaf, chunk, -1, values), "ordo_session_export_chunk", "export_chunk");
  assert_int_equal(ordo_session_release_full(k->session, 0), ORDO_OK);
  assert_int_equal(ordo_session_export_param(k->session, param, -1, values), ORDO_OK);
  values[0] += 1.0f;
  assert_int_equal(ordo_session_import_param(k->session, param, -1, values), ORDO_OK);
  assert_float_equal(*(const float *)leaf->data, values[0], 0.0);
  kit_free(k);
}

static void a_scope_that_is_no_pair_is_refused_and_harmless(void **state)
{
  (void)state;
  for (int with = 0; with < 2; with++) {
    ordo_strategy table;
    kit *k = ready(&table, with);
    gathered = released = 0;
    refused(k, ordo_session_release_full(k->session, 0), "ordo_session_release_full", "no scope");
    assert_int_equal(ordo_session_gather_full(k->session, 0, 0), ORDO_OK);
    refused(k, ordo_session_gather_full(k->session, 0, 0), "ordo_session_gather_full", "ordo_session_gather_full");
    assert_int_equal(ordo_session_release_full(k->session, 0), ORDO_OK);
    refused(k, ordo_session_release_full(k->session, 0), "ordo_session_release_full", "no scope");
    assert_int_equal(gathered, with);
    assert_int_equal(released, with);
    train(k);
    kit_free(k);
  }
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
  kit_assert_mentions(k, "inside the scope");
  assert_int_equal(ordo_session_step_begin(k->session, 1, 1.0), ORDO_E_STATE);
  kit_assert_mentions(k, "inside the scope of full parameters");
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
      cmocka_unit_test(no_training_step_begins_inside_a_scope),
      cmocka_unit_test(forwards_inside_a_scope_need_values_on_every_rank),
      cmocka_unit_test(state_stays_where_it_is_inside_a_scope),
      cmocka_unit_test(a_scope_that_is_no_pair_is_refused_and_harmless),
      cmocka_unit_test(scopes_are_pairs_and_hold_no_training_step),
      cmocka_unit_test(a_schedule_is_taken_over_or_left_to_the_embedder),
      cmocka_unit_test(a_unit_may_be_overridden),
      cmocka_unit_test(op_dtype_asks_the_precision_plugin),
      cmocka_unit_test(memory_of_communicators_is_on_the_account),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
