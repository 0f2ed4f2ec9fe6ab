/* test_axes.c - mesh layout for every rank of fake worlds, sizes that do not fit, agreement. */
#include "testing.h"

static void layout_is_row_major(void **state)
{
  static const ordo_axis_spec specs[] = {{"ddp", ORDO_AXIS_DATA, 2}, {"fsdp2", ORDO_AXIS_DATA, 3}, {"tp", ORDO_AXIS_MODEL, 4}};
  (void)state;
  for (int rank = 0; rank < 24; rank++) {
    struct ordo_context context = test_context();
    ordo_comm_provider *provider = NULL;
    ordo_mesh *mesh = NULL;
    assert_int_equal(ordo_comm_fake_create(&context, rank, 24, &provider), ORDO_OK);
    assert_int_equal(ordo_axes_create(provider, specs, 3, context.errors, &mesh), ORDO_OK);
    assert_int_equal(mesh->n_axes, 3);
    assert_int_equal(mesh->rank, rank);
    assert_int_equal(mesh->world->size, 24);
    assert_int_equal(mesh->world->rank, rank);
    assert_int_equal((mesh->axes[0]->coordinate * 3 + mesh->axes[1]->coordinate) * 4 + mesh->axes[2]->coordinate, rank);
    for (uint32_t i = 0; i < 3; i++) {
      assert_string_equal(mesh->axes[i]->name, specs[i].name);
      assert_int_equal(mesh->axes[i]->index, i);
      assert_int_equal(mesh->axes[i]->kind, specs[i].kind);
      assert_int_equal(mesh->axes[i]->comm->size, specs[i].size);
      assert_int_equal(mesh->axes[i]->comm->rank, mesh->axes[i]->coordinate);
    }
    ordo_axes_destroy(provider, mesh);
    ordo_comm_provider_destroy(provider);
    ordo_errors_free(context.errors);
  }
}

/* Only a set of ranks that neither the world nor an axis has gets a communicator of its own. */
static void ranks_of_one_sum_are_joined(void **state)
{
  static const ordo_axis_spec specs[] = {
      {"ddp", ORDO_AXIS_DATA, 2}, {"one", ORDO_AXIS_DATA, 1}, {"fsdp2", ORDO_AXIS_DATA, 3}, {"tp", ORDO_AXIS_MODEL, 2}};
  static const struct {
    guint32 mask;
    int size, stride, axis; /* axis: whose pointer it is; 4: the world's, -1: its own */
  } rows[] = {{5, 6, 2, -1}, {7, 6, 2, -1}, {1, 2, 6, 0}, {3, 2, 6, 0}, {4, 3, 2, 2}, {0, 1, 1, 1}, {2, 1, 1, 1}, {13, 12, 1, 4}};
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(rows); i++)
    for (int rank = 0; rank < 12; rank++) {
      struct ordo_context context = test_context();
      ordo_comm_provider *provider = NULL;
      ordo_mesh *mesh = NULL;
      assert_int_equal(ordo_comm_fake_create(&context, rank, 12, &provider), ORDO_OK);
      assert_int_equal(ordo_axes_create(provider, specs, 4, context.errors, &mesh), ORDO_OK);
      assert_int_equal(ordo_axes_join(provider, mesh, rows[i].mask, context.errors), ORDO_OK);
      assert_int_equal(mesh->data->size, rows[i].size);
      assert_int_equal(mesh->data->rank, rank / rows[i].stride % rows[i].size);
      for (int a = 0; a < 4; a++)
        assert_int_equal(mesh->data == mesh->axes[a]->comm, a == rows[i].axis);
      assert_int_equal(mesh->data == mesh->world, rows[i].axis == 4);
      ordo_axes_destroy(provider, mesh);
      ordo_comm_provider_destroy(provider);
      ordo_errors_free(context.errors);
    }
}

static void sizes_that_do_not_fit_are_refused(void **state)
{
  static const ordo_axis_spec rows[][2] = {{{"tp", 2, 2}, {"ddp", 1, 3}},
                                           {{"tp", 2, 0}, {"ddp", 1, 4}},
                                           {{"tp", 2, 1 << 30}, {"ddp", 1, 1 << 30}},
                                           {{"tp", 2, -2}, {"ddp", 1, -2}}};
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
    struct ordo_context context = test_context();
    ordo_comm_provider *provider = NULL;
    ordo_mesh *mesh = NULL;
    ordo_comm_fake_create(&context, 0, 4, &provider);
    assert_int_equal(ordo_axes_create(provider, rows[i], 2, context.errors, &mesh), ORDO_E_INVALID);
    assert_null(mesh);
    assert_string_equal(last_code(&context), "E-MESH-SIZE");
    assert_contains(last_text(&context), "does not fit 4 ranks");
    if (i == 0)
      assert_contains(last_text(&context), "tp=2 x ddp=3");
    ordo_comm_provider_destroy(provider);
    ordo_errors_free(context.errors);
  }
}

static void no_axes_is_a_mesh_of_one_rank(void **state)
{
  struct ordo_context context = test_context();
  ordo_comm_provider *provider = NULL;
  ordo_mesh *mesh = NULL;
  (void)state;
  ordo_comm_single_create(&context, &provider);
  assert_int_equal(ordo_axes_create(provider, NULL, 0, context.errors, &mesh), ORDO_OK);
  assert_int_equal(mesh->n_axes, 0);
  assert_int_equal(mesh->world->size, 1);
  assert_int_equal(ordo_axes_agree(mesh->world, "digest", "plan digest", context.errors), ORDO_OK);
  ordo_axes_destroy(provider, mesh);
  ordo_axes_destroy(provider, NULL);
  ordo_comm_provider_destroy(provider);
  ordo_errors_free(context.errors);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(layout_is_row_major),
      cmocka_unit_test(ranks_of_one_sum_are_joined),
      cmocka_unit_test(sizes_that_do_not_fit_are_refused),
      cmocka_unit_test(no_axes_is_a_mesh_of_one_rank),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
