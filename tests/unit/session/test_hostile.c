/* test_hostile.c - plugins that lie: wrong sizes, statuses that do not exist, records of success, refusals that are not listened to.
 *
 * Each ends in an error that names the plugin; none is believed. */
#include "kit.h"

#include <math.h>
#include <string.h>

static void init_refused(ordo_status returned, gboolean praises, ordo_status expected, const char *code)
{
  kit *k = kit_new();
  fake *f = kit_add(k, "liar", KIT_DDP, 1);
  f->init = returned;
  f->init_praises = praises;
  assert_int_equal(kit_create(k), expected);
  assert_null(k->session);
  assert_string_equal(kit_code(k), code);
  kit_assert_mentions(k, "plugin 'liar', init");
  assert_string_equal(k->log->str, "init ");
  kit_free(k);
}

/* A record with the status OK was once taken for the outcome of the load, and the plugin was then called without its table. */
static void init_that_records_success_and_fails(void **state)
{
  (void)state;
  init_refused(ORDO_E_UNAVAILABLE, TRUE, ORDO_E_INTERNAL, "E-PLUGIN-FAILED");
}

static void init_that_fails_without_a_record(void **state)
{
  (void)state;
  init_refused(ORDO_E_UNAVAILABLE, FALSE, ORDO_E_UNAVAILABLE, "E-PLUGIN-NO-RECORD");
}

static void a_status_that_does_not_exist_is_a_defect(void **state)
{
  (void)state;
  init_refused(-7, FALSE, ORDO_E_INTERNAL, "E-PLUGIN-NO-RECORD");
  init_refused(4711, FALSE, ORDO_E_INTERNAL, "E-PLUGIN-NO-RECORD");
}

static void an_impossible_table_is_not_read(void **state)
{
  const size_t sizes[] = {1, 8, sizeof(ordo_strategy) - 1, (size_t)1 << 20, SIZE_MAX};
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
    kit *k = kit_new();
    kit_add(k, "liar", KIT_DDP, 1)->table_size = sizes[i];
    assert_int_equal(kit_create(k), ORDO_E_REFUSED);
    assert_string_equal(kit_code(k), "E-PLUGIN-TABLE");
    kit_assert_mentions(k, "plugin 'liar'");
    assert_string_equal(k->log->str, "init deinit ");
    kit_free(k);
  }
}

static void a_create_without_an_instance_is_refused(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1);
  kit_add(k, "liar", "steps=strategy.wrap\n", 0)->no_instance = TRUE;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_REFUSED);
  assert_string_equal(kit_code(k), "E-PLUGIN-TABLE");
  assert_non_null(strstr(k->log->str, "ddp.destroy"));
  kit_free(k);
}

static void a_second_reduction_is_found_when_the_plugin_hides_it(void **state)
{
  kit *k = kit_new();
  fake *f;
  (void)state;
  f = kit_add(k, "liar", KIT_DDP, 1);
  f->reduce_twice = f->hides = TRUE;
  kit_setup(k);
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_E_INVARIANT);
  assert_string_equal(kit_code(k), "E-INVARIANT-REDUCED-TWICE");
  kit_free(k);
}

/* A strategy that sums over two axes says so in the placement; the other's strategy must not add the replicas up once more. */
static void a_reduction_where_nothing_is_partial_is_refused(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "liar", KIT_DDP, 1)->hides = TRUE;
  kit_setup(k);
  ((ordo_leaf_record *)ordo_session_model(k->session, 0)->leaves[0])->placement.grad_partial[0] = 0;
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_E_INVARIANT);
  assert_string_equal(kit_code(k), "E-INVARIANT-REDUCED-TWICE");
  kit_assert_mentions(k, "not partial");
  kit_free(k);
}

static void divisors_are_numbers_above_0(void **state)
{
  kit *k = kit_new();
  const double wrong[] = {0.0, -1.0, NAN, INFINITY, -INFINITY};
  const ordo_job *job;
  ordo_leaf *leaf;
  (void)state;
  kit_add(k, "liar", KIT_DDP, 1);
  kit_setup(k);
  job = &((ordo_instance *)g_ptr_array_index(k->session->instances, 0))->job;
  leaf = job->model->leaves[0];
  for (size_t i = 0; i < G_N_ELEMENTS(wrong); i++) {
    assert_int_equal(job->mark_reduced(job->ctx, leaf, wrong[i]), ORDO_E_INVALID);
    assert_string_equal(kit_code(k), "E-JOB-ARGUMENT");
  }
  assert_int_equal(((ordo_leaf_record *)leaf)->reduced, 0);
  kit_free(k);
}

static void reduces_without_a_reduce_is_refused(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "liar", KIT_DDP, 1)->no_reduce = TRUE;
  assert_int_equal(kit_create(k), ORDO_E_REFUSED);
  assert_string_equal(kit_code(k), "E-PLUGIN-TABLE");
  kit_assert_mentions(k, "reduces=yes");
  kit_free(k);
}

static void note_breach(void *ctx, int32_t severity, const char *text)
{
  if (severity == ORDO_LOG_PLUGIN_BREACH)
    g_string_append_printf(ctx, "%s\n", text);
}

/* What a plugin frees twice, or never had, is a breach in the log and nothing else. */
static void memory_is_freed_once(void **state)
{
  kit *k = kit_new();
  g_autoptr(GString) breaches = g_string_new(NULL);
  const ordo_job *job;
  void *memory;
  int mine = 0;
  (void)state;
  kit_add(k, "liar", KIT_DDP, 1);
  kit_setup(k);
  k->context->log = note_breach;
  k->context->log_ctx = breaches;
  job = &((ordo_instance *)g_ptr_array_index(k->session->instances, 0))->job;
  memory = job->alloc(job->ctx, 100, ORDO_MEM_OTHER);
  assert_non_null(memory);
  job->free(job->ctx, memory);
  job->free(job->ctx, NULL);
  assert_string_equal(breaches->str, "");
  job->free(job->ctx, memory);
  assert_non_null(strstr(breaches->str, "liar: job->free"));
  g_string_truncate(breaches, 0);
  job->free(job->ctx, &mine);
  assert_non_null(strstr(breaches->str, "liar: job->free"));
  k->context->log = NULL;
  kit_free(k);
}

/* A session whose plugin is inside the step in which it may replace leaves, so that nothing but what it gives is wrong. */
static const ordo_job *in_prepare_joint(kit *k)
{
  ordo_session *session;
  kit_add(k, "liar", KIT_FSDP2, 1);
  assert_int_equal(kit_create(k), ORDO_OK);
  session = k->session;
  while (g_array_index(k->plan->resolution->nodes, ordo_node, session->next_node).step != ORDO_STEP_PREPARE_JOINT)
    assert_int_equal(ordo_session_setup_next(session, NULL), ORDO_OK);
  session->node = &g_array_index(k->plan->resolution->nodes, ordo_node, session->next_node);
  session->where = session->node->id;
  return &((ordo_instance *)g_ptr_array_index(session->instances, 0))->job;
}

/* One leaf of 12 elements with one chunk of block.a, a parameter of 3 x 4. */
static void chunks_must_lie_inside_parameter_and_leaf(void **state)
{
  static const struct {
    ordo_chunk chunk;
    int64_t leaf_numel;
  } wrong[] = {
      {{.kind = ORDO_CHUNK_FLAT, .begin = -1, .end = 3}, 12},
      {{.kind = ORDO_CHUNK_FLAT, .begin = 3, .end = 2}, 12},
      {{.kind = ORDO_CHUNK_FLAT, .begin = 0, .end = 13}, 20},
      {{.kind = ORDO_CHUNK_FLAT, .begin = 0, .end = 12}, 11},
      {{.kind = ORDO_CHUNK_FLAT, .begin = 0, .end = 12, .leaf_offset = 1}, 12},
      {{.kind = ORDO_CHUNK_FLAT, .begin = 0, .end = 12, .leaf_offset = -1}, 24},
      {{.kind = ORDO_CHUNK_FLAT, .begin = 0, .end = INT64_MAX}, 12},
      {{.kind = ORDO_CHUNK_RECT, .ndim = 1, .extent = {3}}, 12},
      {{.kind = ORDO_CHUNK_RECT, .ndim = 2, .extent = {3, 5}}, 20},
      {{.kind = ORDO_CHUNK_RECT, .ndim = 2, .offset = {1, 0}, .extent = {3, 4}}, 12},
      {{.kind = ORDO_CHUNK_RECT, .ndim = 2, .offset = {-1, 0}, .extent = {3, 4}}, 12},
      {{.kind = ORDO_CHUNK_RECT, .ndim = 2, .offset = {0, 0}, .extent = {3, -4}}, 12},
      {{.kind = ORDO_CHUNK_RECT, .ndim = 2, .offset = {0, INT64_MAX}, .extent = {3, 4}}, 12},
      {{.kind = 77, .ndim = 2, .extent = {3, 4}}, 12},
  };
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(wrong); i++) {
    kit *k = kit_new();
    const ordo_job *job = in_prepare_joint(k);
    ordo_chunk chunk = wrong[i].chunk;
    ordo_leaf_spec spec = {
        .struct_size = sizeof spec, .name = "x", .dtype = ORDO_F32, .grad_dtype = ORDO_F32, .numel = wrong[i].leaf_numel};
    chunk.struct_size = sizeof chunk;
    chunk.param = job->model->params[1];
    spec.params = &job->model->params[1];
    spec.n_params = 1;
    spec.placement.struct_size = sizeof spec.placement;
    spec.placement.n_chunks = 1;
    spec.placement.chunks = &chunk;
    for (uint32_t a = 0; a < job->mesh->n_axes; a++)
      spec.placement.data[a] = ORDO_REPLICATE;
    if (job->replace_leaves(job->ctx, &spec, 1, NULL, 0) != ORDO_E_INVALID)
      fail_msg("chunk %zu was accepted", i);
    kit_assert_mentions(k, "a chunk must lie inside its parameter and inside the leaf");
    k->session->node = NULL;
    kit_free(k);
  }
}

static void specs_of_impossible_size_are_not_walked(void **state)
{
  const size_t sizes[] = {0, 8, sizeof(ordo_leaf_spec) - 8, sizeof(ordo_leaf_spec) + 1, (size_t)1 << 40, SIZE_MAX};
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(sizes) + 1; i++) {
    kit *k = kit_new();
    ordo_leaf_spec specs[2];
    const ordo_job *job = in_prepare_joint(k);
    memset(specs, 0, sizeof specs);
    for (int s = 0; s < 2; s++)
      specs[s] = (ordo_leaf_spec){.struct_size = sizeof specs[0], .name = "x", .dtype = ORDO_F32, .grad_dtype = ORDO_F32};
    /* all of one wrong size; at last, the second differs from the first */
    if (i < G_N_ELEMENTS(sizes))
      specs[0].struct_size = specs[1].struct_size = sizes[i];
    else
      specs[1].struct_size = sizeof specs[0] + 8;
    assert_int_equal(job->replace_leaves(job->ctx, specs, 2, NULL, 0), ORDO_E_INVALID);
    assert_string_equal(kit_code(k), "E-LEAF-REPLACE");
    kit_assert_mentions(k, "ordo_leaf_spec");
    k->session->node = NULL;
    kit_free(k);
  }
}

static void a_master_of_a_master_is_refused(void **state)
{
  kit *k = kit_new();
  fake *amp;
  (void)state;
  amp = kit_add(k, "amp", KIT_AMP, 0);
  amp->masters = amp->master_of_master = TRUE;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_INVALID);
  assert_string_equal(kit_code(k), "E-LEAF-REPLACE");
  kit_assert_mentions(k, "a master is given to a master");
  kit_assert_mentions(k, "amp");
  kit_free(k);
}

#define TAKES(MEMBER)                                                               \
  static ordo_status takes_##MEMBER(const ordo_job *job, ordo_optimizer *optimizer) \
  {                                                                                 \
    (void)job;                                                                      \
    memset(&optimizer->MEMBER, 0, sizeof optimizer->MEMBER);                        \
    return ORDO_OK;                                                                 \
  }
TAKES(struct_size)
TAKES(name)
TAKES(groups)
TAKES(step)
TAKES(rebind)
TAKES(n_slots)
TAKES(slot_name)
TAKES(slot)
TAKES(destroy)

static ordo_status takes_leaves(const ordo_job *job, ordo_optimizer *optimizer)
{
  (void)job;
  optimizer->groups[0].leaves = NULL;
  return ORDO_OK;
}

static ordo_status takes_step_and_fails(const ordo_job *job, ordo_optimizer *optimizer)
{
  optimizer->step = NULL;
  optimizer->rebind = NULL;
  return (job->host->fail)(job->host->ctx, ORDO_E_UNSUPPORTED, "on second thoughts, no", NULL);
}

static uint32_t no_slots(void *ctx)
{
  (void)ctx;
  return 0;
}

static const char *no_slot_name(void *ctx, uint32_t slot)
{
  (void)ctx, (void)slot;
  return NULL;
}

static float *no_slot(void *ctx, const ordo_leaf *leaf, uint32_t slot)
{
  (void)ctx, (void)leaf, (void)slot;
  return NULL;
}

/* A null step was called in step_end, a null rebind while the set-up was undone. */
static void an_optimizer_stays_complete(void **state)
{
  static const struct {
    const char *member;
    ordo_status (*wraps)(const ordo_job *job, ordo_optimizer *optimizer);
  } rows[] = {{"struct_size", takes_struct_size}, {"name", takes_name},       {"groups", takes_groups},       {"step", takes_step},
              {"rebind", takes_rebind},           {"n_slots", takes_n_slots}, {"slot_name", takes_slot_name}, {"slot", takes_slot},
              {"destroy", takes_destroy}};
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
    kit *k = kit_new();
    g_autofree char *what = g_strdup_printf("the plugin took '%s' out of the optimizer of model", rows[i].member);
    kit_add(k, "thief", KIT_AMP, 0)->wraps = rows[i].wraps;
    assert_int_equal(kit_create(k), ORDO_OK);
    while (!ordo_session_optimizer(k->session, 0))
      assert_int_equal(ordo_session_setup_next(k->session, NULL), ORDO_OK);
    ordo_session_optimizer(k->session, 0)->n_slots = no_slots;
    ordo_session_optimizer(k->session, 0)->slot_name = no_slot_name;
    ordo_session_optimizer(k->session, 0)->slot = no_slot;
    assert_int_equal(ordo_session_setup(k->session), ORDO_E_INVALID);
    assert_string_equal(kit_code(k), "E-OPTIMIZER-TABLE");
    kit_assert_mentions(k, what);
    kit_assert_mentions(k, "plugin 'thief', precision.wrap_optimizer");
    kit_free(k);
  }
}

static void an_optimizer_taken_apart_by_a_step_that_fails_is_undone(void **state)
{
  kit *k = kit_new();
  fake *amp;
  (void)state;
  amp = kit_add(k, "amp", KIT_AMP, 0);
  amp->wraps = takes_step_and_fails;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_UNSUPPORTED);
  kit_assert_mentions(k, "on second thoughts");
  kit_free(k);
}

/* Its leaves were read right after the step. */
static void groups_without_leaves_are_refused(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "thief", KIT_AMP, 0)->wraps = takes_leaves;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_INVALID);
  assert_string_equal(kit_code(k), "E-OPTIMIZER-TABLE");
  kit_free(k);
}

/* After the set-up nobody has looked at it any more. */
static void a_step_function_taken_during_training_is_missed(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1);
  kit_setup(k);
  ordo_session_optimizer(k->session, 0)->step = NULL;
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_E_INVALID);
  assert_string_equal(kit_code(k), "E-OPTIMIZER-TABLE");
  kit_free(k);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(init_that_records_success_and_fails),
      cmocka_unit_test(init_that_fails_without_a_record),
      cmocka_unit_test(a_status_that_does_not_exist_is_a_defect),
      cmocka_unit_test(an_impossible_table_is_not_read),
      cmocka_unit_test(a_create_without_an_instance_is_refused),
      cmocka_unit_test(a_second_reduction_is_found_when_the_plugin_hides_it),
      cmocka_unit_test(a_reduction_where_nothing_is_partial_is_refused),
      cmocka_unit_test(divisors_are_numbers_above_0),
      cmocka_unit_test(reduces_without_a_reduce_is_refused),
      cmocka_unit_test(memory_is_freed_once),
      cmocka_unit_test(chunks_must_lie_inside_parameter_and_leaf),
      cmocka_unit_test(specs_of_impossible_size_are_not_walked),
      cmocka_unit_test(a_master_of_a_master_is_refused),
      cmocka_unit_test(an_optimizer_stays_complete),
      cmocka_unit_test(an_optimizer_taken_apart_by_a_step_that_fails_is_undone),
      cmocka_unit_test(groups_without_leaves_are_refused),
      cmocka_unit_test(a_step_function_taken_during_training_is_missed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
