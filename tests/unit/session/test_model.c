/* test_model.c - the description of a model and its first leaves. */
#include "kit.h"

#include <string.h>

static ordo_model_builder *kept;
static ordo_param_desc second;
static ordo_status second_status;

/* One good parameter, then the one under test. */
static ordo_status build_two(void *ctx, ordo_session *session, uint32_t model, ordo_model_builder *builder)
{
  ordo_param_desc first = {.struct_size = sizeof first,
                           .name = "a",
                           .dtype = ORDO_F32,
                           .flags = ORDO_PARAM_REQUIRES_GRAD,
                           .tie_group = 0,
                           .ndim = 2,
                           .shape = {2, 3}};
  ordo_status status;
  (void)ctx, (void)session, (void)model;
  kept = builder;
  if ((status = ordo_model_builder_unit(builder, "u", "Unit", NULL)) != ORDO_OK ||
      (status = ordo_model_builder_param(builder, &first, NULL)) != ORDO_OK)
    return status;
  return second_status = ordo_model_builder_param(builder, &second, NULL);
}

static void refused(const char *word)
{
  kit *k = kit_new();
  k->embedder.model_build = build_two;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_INVALID);
  assert_string_equal(kit_code(k), "E-MODEL-DESCRIPTION");
  kit_assert_mentions(k, word);
  kit_free(k);
}

static ordo_param_desc good(void)
{
  return (ordo_param_desc){
      .struct_size = sizeof(ordo_param_desc), .name = "b", .dtype = ORDO_F32, .tie_group = -1, .ndim = 1, .shape = {4}};
}

static void impossible_parameters_are_refused(void **state)
{
  (void)state;
  second = good();
  second.name = "a";
  refused("twice");
  second = good();
  second.name = "";
  refused("no name");
  second = good();
  second.shape[0] = 0;
  refused("impossible shape");
  second = good();
  second.ndim = 3;
  second.shape[0] = second.shape[1] = second.shape[2] = INT64_C(1) << 40;
  refused("impossible shape");
  second = good();
  second.ndim = ORDO_MAX_DIMS + 1;
  refused("impossible shape");
  second = good();
  second.dtype = 77;
  refused("element type");
  second = good();
  second.tie_group = 0; /* 4 elements tied to a 2 x 3 matrix */
  refused("another shape");
}

static ordo_status build_nothing(void *ctx, ordo_session *session, uint32_t model, ordo_model_builder *builder)
{
  (void)ctx, (void)session, (void)model;
  return builder ? ORDO_OK : ORDO_E_INVALID;
}

static ordo_status build_without_unit(void *ctx, ordo_session *session, uint32_t model, ordo_model_builder *builder)
{
  const ordo_param_desc desc = good();
  (void)ctx, (void)session, (void)model;
  return ordo_model_builder_param(builder, &desc, NULL);
}

static ordo_status build_same_unit_twice(void *ctx, ordo_session *session, uint32_t model, ordo_model_builder *builder)
{
  ordo_status status = ordo_model_builder_unit(builder, "u", NULL, NULL);
  (void)ctx, (void)session, (void)model;
  return status == ORDO_OK ? ordo_model_builder_unit(builder, "u", NULL, NULL) : status;
}

static void incomplete_models_are_refused(void **state)
{
  ordo_status (*const builds[])(void *, ordo_session *, uint32_t, ordo_model_builder *) = {build_nothing, build_without_unit,
                                                                                           build_same_unit_twice};
  (void)state;
  for (guint i = 0; i < G_N_ELEMENTS(builds); i++) {
    kit *k = kit_new();
    k->embedder.model_build = builds[i];
    assert_int_equal(kit_create(k), ORDO_OK);
    assert_int_equal(ordo_session_setup(k->session), ORDO_E_INVALID);
    assert_string_equal(kit_code(k), "E-MODEL-DESCRIPTION");
    kit_free(k);
  }
}

static void a_kept_builder_is_closed(void **state)
{
  kit *k = kit_new();
  const ordo_param_desc desc = good();
  (void)state;
  second = good();
  k->embedder.model_build = build_two;
  kit_setup(k);
  assert_int_equal(ordo_model_builder_param(kept, &desc, NULL), ORDO_E_STATE);
  assert_int_equal(ordo_model_builder_unit(kept, "late", NULL, NULL), ORDO_E_STATE);
  kit_free(k);
}

static void one_leaf_per_tie_group_replicated_everywhere(void **state)
{
  kit *k = kit_new();
  const ordo_model *model;
  ordo_comm_provider *provider = NULL;
  (void)state;
  assert_int_equal(ordo_comm_fake_create(k->context, 0, 6, &provider), ORDO_OK);
  k->comm = provider;
  kit_add(k, "ddp", KIT_DDP, 3);
  kit_add(k, "tp", "steps=strategy.partition\nmesh_axis=model\nflags=self_sharded\n", 2);
  kit_setup(k);
  model = ordo_session_model(k->session, 0);
  assert_int_equal(model->n_units, 3);
  assert_int_equal(model->n_params, 4);
  assert_int_equal(model->n_leaves, 3);
  assert_ptr_equal(model->params[0]->leaf, model->params[3]->leaf);
  assert_ptr_equal(model->params[0]->data, model->params[3]->data);
  assert_int_equal(model->leaves[0]->n_params, 2);
  assert_string_equal(model->leaves[0]->name, "embed.weight");
  for (uint32_t i = 0; i < model->n_leaves; i++) {
    const ordo_placement *placement = model->leaves[i]->placement;
    assert_int_equal(placement->data[0], ORDO_REPLICATE);
    assert_int_equal(placement->data[1], ORDO_REPLICATE);
    assert_int_equal(placement->grad_partial[0], 1); /* the batch is split there */
    assert_int_equal(placement->grad_partial[1], 0); /* and identical here */
    assert_int_equal(placement->n_chunks, 1);
    assert_int_equal(ordo_chunk_numel(placement->chunks), model->leaves[i]->numel);
  }
  assert_int_equal(model->units[1]->n_params, 2);
  assert_ptr_equal(model->units[1]->params[1], model->params[2]);
  kit_free(k);
  ordo_comm_provider_destroy(provider);
}

static void an_older_embedders_description_is_readable(void **state)
{
  kit *k = kit_new();
  (void)state;
  second = good();
  second.data = second.grad = (void *)k; /* beyond the struct_size of somebody who does not know these fields */
  second.struct_size = offsetof(ordo_param_desc, data);
  k->embedder.model_build = build_two;
  kit_setup(k);
  assert_ptr_not_equal(ordo_session_model(k->session, 0)->params[1]->data, k);
  kit_free(k);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(impossible_parameters_are_refused),
      cmocka_unit_test(incomplete_models_are_refused),
      cmocka_unit_test(a_kept_builder_is_closed),
      cmocka_unit_test(one_leaf_per_tie_group_replicated_everywhere),
      cmocka_unit_test(an_older_embedders_description_is_readable),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
