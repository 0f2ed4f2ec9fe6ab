/* test_weights.c - where weights come from, and in which storage they land. */
#include "kit.h"

#include <string.h>

static void load_reads_into_host_storage(void **state)
{
  kit *k = kit_new();
  const ordo_model *model;
  int64_t now, peak;
  (void)state;
  kit_setup(k);
  model = ordo_session_model(k->session, 0);
  for (uint32_t i = 0; i < model->n_params; i++)
    for (int64_t e = 0; e < model->params[i]->numel; e++)
      assert_true(((float *)model->params[i]->data)[e] == kit_weight(i, e));
  ordo_session_memory(k->session, ORDO_MEM_WEIGHTS, &now, &peak);
  assert_int_equal(now, 30 * 4); /* tied weights are stored once: 15 + 12 + 3 */
  ordo_session_memory(k->session, ORDO_MEM_GRADIENTS, &now, &peak);
  assert_int_equal(now, 30 * 4);
  assert_int_equal(k->binds, 2 * 4); /* each param: weights, then gradients */
  kit_free(k);
}

static void the_embedders_storage_is_kept(void **state)
{
  kit *k = kit_new();
  int64_t now;
  (void)state;
  k->with_data = TRUE;
  k->embedder.weights_read = NULL;
  kit_setup(k);
  for (int i = 0; i < 3; i++)
    assert_ptr_equal(ordo_session_model(k->session, 0)->params[i]->data, k->storage[i]);
  assert_ptr_equal(ordo_session_model(k->session, 0)->params[3]->data, k->storage[0]); /* tied: described without data */
  ordo_session_memory(k->session, ORDO_MEM_WEIGHTS, &now, NULL);
  assert_int_equal(now, 0);
  kit_free(k);
}

static void shards_are_read_without_a_whole_copy(void **state)
{
  (void)state;
  for (int with_data = 0; with_data < 2; with_data++) {
    kit *k = kit_new();
    ordo_comm_provider *provider = NULL;
    const ordo_leaf *leaf;
    assert_int_equal(ordo_comm_fake_create(k->context, 1, 2, &provider), ORDO_OK);
    k->comm = provider;
    k->with_data = with_data == 1;
    kit_add(k, "flat", KIT_FSDP1, 2)->flat = TRUE;
    kit_setup(k);
    leaf = ordo_session_model(k->session, 0)->leaves[0];
    assert_int_equal(leaf->numel, 15); /* 30 elements over 2 ranks; rank 1 has block.a and block.b */
    for (int e = 0; e < 12; e++)
      assert_true(((float *)leaf->data)[e] == kit_weight(1, e));
    for (int e = 0; e < 3; e++)
      assert_true(((float *)leaf->data)[12 + e] == kit_weight(2, e));
    kit_free(k);
    ordo_comm_provider_destroy(provider);
  }
}

static void rectangles_are_cut_out_of_the_embedders_storage(void **state)
{
  kit *k = kit_new();
  const ordo_instance *instance;
  ordo_chunk chunk = {.struct_size = sizeof chunk, .kind = ORDO_CHUNK_RECT, .ndim = 2, .offset = {1, 2}, .extent = {2, 2}};
  float read[4];
  const float expected[4] = {kit_weight(1, 6), kit_weight(1, 7), kit_weight(1, 10), kit_weight(1, 11)};
  (void)state;
  k->with_data = TRUE;
  kit_add(k, "ddp", KIT_DDP, 1);
  kit_setup(k);
  instance = g_ptr_array_index(k->session->instances, 0);
  chunk.param = ordo_session_model(k->session, 0)->params[1]; /* 3 x 4 */
  assert_int_equal(instance->job.read_weights(instance->job.ctx, &chunk, read), ORDO_OK);
  assert_memory_equal(read, expected, sizeof read);
  chunk.param = (const ordo_param *)k->fakes;
  assert_int_equal(instance->job.read_weights(instance->job.ctx, NULL, read), ORDO_E_INVALID);
  kit_free(k);
}

static void no_source_is_an_error_that_names_the_parameter(void **state)
{
  kit *k = kit_new();
  (void)state;
  k->embedder.weights_read = NULL;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_INVALID);
  assert_string_equal(kit_code(k), "E-WEIGHTS-SOURCE");
  kit_assert_mentions(k, "embed.weight");
  kit_free(k);
}

static ordo_status silent_read(void *ctx, const ordo_model *model, const ordo_chunk *chunk, float *dst)
{
  (void)ctx, (void)model, (void)chunk, (void)dst;
  return ORDO_E_IO;
}

static void a_silent_callback_is_the_programs_defect(void **state)
{
  kit *k = kit_new();
  (void)state;
  k->embedder.weights_read = silent_read;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_IO);
  assert_string_equal(kit_code(k), "E-EMBEDDER-NO-RECORD");
  kit_assert_mentions(k, "weights_read");
  kit_free(k);
}

static ordo_status build_half(void *ctx, ordo_session *session, uint32_t model, ordo_model_builder *builder)
{
  const ordo_dtype types[] = {ORDO_F64, ORDO_BF16, ORDO_F16};
  const char *const names[] = {"f64", "bf16", "f16"};
  ordo_status status = ordo_model_builder_unit(builder, "u", "Unit", NULL);
  (void)ctx, (void)session, (void)model;
  for (int i = 0; i < 3 && status == ORDO_OK; i++) {
    ordo_param_desc desc = {.struct_size = sizeof desc,
                            .name = names[i],
                            .dtype = types[i],
                            .tie_group = -1,
                            .ndim = 1,
                            .shape = {3},
                            .flags = ORDO_PARAM_REQUIRES_GRAD};
    status = ordo_model_builder_param(builder, &desc, NULL);
  }
  return status;
}

static void other_types_are_converted(void **state)
{
  kit *k = kit_new();
  const ordo_model *model;
  (void)state;
  k->says_16_bit = TRUE;
  k->embedder.model_build = build_half;
  k->weight_offset = 1.0;
  kit_setup(k);
  model = ordo_session_model(k->session, 0);
  assert_true(((double *)model->params[0]->data)[1] == 1.125);
  assert_int_equal(((uint16_t *)model->params[1]->data)[0], 0x4000); /* 2 */
  assert_int_equal(((uint16_t *)model->params[2]->data)[0], 0x4200); /* 3 */
  kit_free(k);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(load_reads_into_host_storage),
      cmocka_unit_test(the_embedders_storage_is_kept),
      cmocka_unit_test(shards_are_read_without_a_whole_copy),
      cmocka_unit_test(rectangles_are_cut_out_of_the_embedders_storage),
      cmocka_unit_test(no_source_is_an_error_that_names_the_parameter),
      cmocka_unit_test(a_silent_callback_is_the_programs_defect),
      cmocka_unit_test(other_types_are_converted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
