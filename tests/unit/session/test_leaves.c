/* test_leaves.c - replacement is a transaction, and what it replaced answers STALE. */
#include "kit.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static void replacement_moves_everything_at_once(void **state)
{
  kit *k = kit_new();
  const ordo_model *model;
  const ordo_optimizer *optimizer;
  (void)state;
  kit_add(k, "flat", KIT_FSDP2, 1)->flat = TRUE;
  kit_setup(k);
  model = ordo_session_model(k->session, 0);
  optimizer = ordo_session_optimizer(k->session, 0);
  assert_int_equal(model->generation, 1);
  assert_int_equal(model->n_leaves, 1);
  assert_string_equal(model->leaves[0]->name, "flat");
  assert_int_equal(optimizer->groups[0].n_leaves, 1);
  assert_ptr_equal(optimizer->groups[0].leaves[0], model->leaves[0]);
  assert_int_equal(k->rebinds, 1);
  for (uint32_t i = 0; i < model->n_params; i++) {
    assert_ptr_equal(model->params[i]->leaf, model->leaves[0]);
    assert_null(model->params[i]->data); /* released until the strategy binds it */
  }
  /* the leaf of before */
  assert_int_equal(k->kept_leaf->state, ORDO_LEAF_REPLACED);
  assert_null(k->kept_leaf->data);
  assert_string_equal(k->kept_leaf->replaced_by, "strategy.prepare_joint(flat)");
  assert_int_equal(ordo_session_check_leaf(k->session, k->kept_leaf), ORDO_E_STALE);
  assert_string_equal(kit_code(k), "E-LEAF-STALE");
  kit_assert_mentions(k, "strategy.prepare_joint(flat)");
  assert_int_equal(ordo_session_check_leaf(k->session, model->leaves[0]), ORDO_OK);
  assert_int_equal(ordo_n_errors(k->context), 0);
  assert_int_equal(ordo_session_check_leaf(k->session, (const ordo_leaf *)k), ORDO_E_INVALID);
  kit_free(k);
}

static void job_functions_answer_stale_too(void **state)
{
  kit *k = kit_new();
  const ordo_instance *instance;
  (void)state;
  kit_add(k, "flat", KIT_FSDP2, 1)->flat = TRUE;
  kit_setup(k);
  instance = g_ptr_array_index(k->session->instances, 0);
  assert_int_equal(instance->job.mark_reduced(instance->job.ctx, k->kept_leaf, 1.0), ORDO_E_STALE);
  assert_int_equal(instance->job.set_grad(instance->job.ctx, k->kept_leaf, NULL), ORDO_E_STALE);
  assert_int_equal(instance->job.mark_grad(instance->job.ctx, k->kept_leaf, ORDO_GRAD_HELD), ORDO_E_STALE);
  kit_free(k);
}

static void refused(const char *lines, void (*misbehave)(fake *f), ordo_status expected, const char *code, const char *word)
{
  kit *k = kit_new();
  fake *f = kit_add(k, "flat", lines, 1);
  f->flat = TRUE;
  misbehave(f);
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), expected);
  assert_string_equal(kit_code(k), code);
  kit_assert_mentions(k, word);
  assert_int_equal(ordo_session_model(k->session, 0)->generation, 0);
  assert_int_equal(ordo_session_model(k->session, 0)->n_leaves, 3);
  kit_free(k);
}

static void drop_link(fake *f)
{
  f->drop_link = TRUE;
}

static void tear_tie(fake *f)
{
  f->tear_tie = TRUE;
}

static void twice(fake *f)
{
  f->twice = TRUE;
}

static void nothing(fake *f)
{
  (void)f;
}

static void a_lost_leaf_is_refused(void **state)
{
  (void)state;
  refused(KIT_FSDP2, drop_link, ORDO_E_INVALID, "E-LEAF-REPLACE", "block.b");
}

static void a_torn_tie_group_is_refused(void **state)
{
  (void)state;
  refused(KIT_FSDP2, tear_tie, ORDO_E_INVARIANT, "E-INVARIANT-TIE", "head.weight");
}

static void wrapping_twice_is_refused(void **state)
{
  (void)state;
  refused(KIT_FSDP2, twice, ORDO_E_INVARIANT, "E-INVARIANT-WRAPPED-TWICE", "strategy.prepare_joint");
}

/* An optimizer that is wrapped a second time would have masters of masters. */
static void wrapping_the_optimizer_twice_is_refused(void **state)
{
  kit *k = kit_new();
  fake *amp = kit_add(k, "amp", KIT_AMP, 0);
  (void)state;
  amp->masters = amp->twice = TRUE;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_INVARIANT);
  assert_string_equal(kit_code(k), "E-INVARIANT-WRAPPED-TWICE");
  kit_assert_mentions(k, "precision.wrap_optimizer");
  kit_assert_mentions(k, "a second master");
  kit_free(k);
}

static void replacing_undeclared_is_refused(void **state)
{
  (void)state;
  refused(KIT_DDP, nothing, ORDO_E_STATE, "E-LEAF-REPLACE", "replaces_leaves");
}

static void replacing_outside_of_a_step_is_refused(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1)->outside = TRUE;
  kit_setup(k);
  assert_int_equal(ordo_session_step_begin(k->session, 1, 1.0), ORDO_E_STATE);
  assert_string_equal(kit_code(k), "E-LEAF-REPLACE");
  kit_free(k);
}

static void an_optimizer_that_cannot_be_rebound_is_refused(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "flat", KIT_FSDP2, 1)->flat = TRUE;
  k->no_rebind = TRUE;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_UNSUPPORTED);
  assert_string_equal(kit_code(k), "E-OPTIMIZER-REBIND");
  kit_free(k);
}

static void masters_take_the_place_of_their_leaves(void **state)
{
  kit *k = kit_new();
  const ordo_model *model;
  const ordo_optimizer *optimizer;
  (void)state;
  kit_add(k, "amp", KIT_AMP, 0)->masters = TRUE;
  kit_setup(k);
  model = ordo_session_model(k->session, 0);
  optimizer = ordo_session_optimizer(k->session, 0);
  assert_int_equal(k->rebinds, 3);
  for (uint32_t i = 0; i < model->n_leaves; i++) {
    assert_non_null(model->leaves[i]->master);
    assert_ptr_equal(model->leaves[i]->master->placement->chunks->param, model->leaves[i]->placement->chunks->param);
  }
  for (uint64_t i = 0; i < optimizer->groups[0].n_leaves; i++)
    assert_true(((const ordo_leaf_record *)optimizer->groups[0].leaves[i])->is_master);
  kit_free(k);
}

/* A leaf that is not sharded is where its params compute: binding moves both, for every member of the tie group. */
static void bind_moves_leaf_and_tied_params(void **state)
{
  kit *k = kit_new();
  const ordo_instance *instance;
  const ordo_model *model;
  float data[15], grad[15], other[15];
  guint binds;
  (void)state;
  kit_add(k, "ddp", KIT_DDP, 1);
  kit_setup(k);
  instance = g_ptr_array_index(k->session->instances, 0);
  model = ordo_session_model(k->session, 0);
  binds = k->binds;
  model->leaves[0]->grad_state = ORDO_GRAD_HELD;
  assert_int_equal(instance->job.bind(instance->job.ctx, model->params[3], data, grad), ORDO_OK);
  assert_ptr_equal(model->params[0]->data, data);
  assert_ptr_equal(model->params[3]->grad, grad);
  assert_ptr_equal(model->leaves[0]->data, data);
  assert_ptr_equal(model->leaves[0]->grad, grad);
  assert_int_equal(model->leaves[0]->grad_state, ORDO_GRAD_NONE);
  assert_int_equal(k->binds, binds + 2);
  /* only the data moves: the gradient stays what it was */
  model->leaves[0]->grad_state = ORDO_GRAD_HELD;
  assert_int_equal(instance->job.bind(instance->job.ctx, model->params[0], other, grad), ORDO_OK);
  assert_int_equal(model->leaves[0]->grad_state, ORDO_GRAD_HELD);
  kit_free(k);
}

static void host_storage_of_replaced_leaves_is_freed_after_the_set_up(void **state)
{
  kit *k = kit_new();
  int64_t now, peak;
  (void)state;
  /* without restores_after_wrap: plain weights exist first, then a step replaces their leaves */
  kit_add(k, "flat",
          "steps=strategy.prepare_optimizer,strategy.wrap\nflags=setup_optimizers_in_pre_dispatch\nreplaces_leaves=strategy.wrap\nreduces="
          "yes\n",
          1)
      ->flat = TRUE;
  kit_setup(k);
  ordo_session_memory(k->session, ORDO_MEM_WEIGHTS, &now, &peak);
  assert_int_equal(now, 2 * 30 * 4);    /* the fake's shard and its gathered copy: 15 + 12 + 3 elements */
  assert_int_equal(peak, now + 30 * 4); /* and the host's until the set-up could not be undone any more */
  kit_free(k);
}

static ordo_status build_many(void *ctx, ordo_session *session, uint32_t model, ordo_model_builder *builder)
{
  const kit *k = ctx;
  ordo_status status = ordo_model_builder_unit(builder, "all", "Toy", NULL);
  (void)session, (void)model;
  for (guint i = 0; i < k->many && status == ORDO_OK; i++) {
    g_autofree char *name = g_strdup_printf("weight.%u", i);
    ordo_param_desc desc = {.struct_size = sizeof desc, .name = name, .dtype = ORDO_F32, .flags = ORDO_PARAM_REQUIRES_GRAD};
    desc.tie_group = -1;
    desc.ndim = 1;
    desc.shape[0] = 2;
    status = ordo_model_builder_param(builder, &desc, NULL);
  }
  return status;
}

static double set_up_many(guint n)
{
  kit *k = kit_new();
  k->many = n;
  k->embedder.model_build = build_many;
  kit_add(k, "ddp", KIT_DDP, 1);
  const clock_t begin = clock();
  kit_setup(k);
  const double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
  assert_int_equal(ordo_session_model(k->session, 0)->n_leaves, n);
  kit_free(k);
  return seconds;
}

/* After each step of the set-up the host looks whether the optimizer's leaves are alive, and verify counts them. Neither may search for
 * each leaf among all: four times the leaves take about four times as long, not sixteen. */
static void twenty_thousand_leaves_are_checked_at_once(void **state)
{
  (void)state;
  const double fewer = set_up_many(5000), seconds = set_up_many(20000);
  printf("set-up of 5000 leaves %.3f s, of 20000 leaves %.3f s\n", fewer, seconds);
  assert_true(seconds < 0.3 || seconds < 8.0 * fewer);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(replacement_moves_everything_at_once),
      cmocka_unit_test(job_functions_answer_stale_too),
      cmocka_unit_test(a_lost_leaf_is_refused),
      cmocka_unit_test(a_torn_tie_group_is_refused),
      cmocka_unit_test(wrapping_twice_is_refused),
      cmocka_unit_test(wrapping_the_optimizer_twice_is_refused),
      cmocka_unit_test(replacing_undeclared_is_refused),
      cmocka_unit_test(replacing_outside_of_a_step_is_refused),
      cmocka_unit_test(an_optimizer_that_cannot_be_rebound_is_refused),
      cmocka_unit_test(masters_take_the_place_of_their_leaves),
      cmocka_unit_test(bind_moves_leaf_and_tied_params),
      cmocka_unit_test(host_storage_of_replaced_leaves_is_freed_after_the_set_up),
      cmocka_unit_test(twenty_thousand_leaves_are_checked_at_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
