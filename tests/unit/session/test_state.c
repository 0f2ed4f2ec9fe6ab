/* test_state.c - weights out of a session and into it by placement alone, and every refusal. Strategies with state of their own and many
 * ranks: tests/unit/sharding. */
#include "kit.h"

#include <string.h>

static ordo_chunk part_of(const ordo_chunk *held, int64_t row, int64_t column, int64_t rows, int64_t columns)
{
  ordo_chunk chunk = *held;
  chunk.offset[0] = row, chunk.offset[1] = column;
  chunk.extent[0] = rows, chunk.extent[1] = columns;
  return chunk;
}

static void parts_of_a_rectangle_come_out_and_go_in(void **state)
{
  kit *k = kit_new();
  float out[4] = {0}, whole[12];
  const float in[4] = {-1, -2, -3, -4};
  (void)state;
  kit_setup(k);
  const ordo_model *model = ordo_session_model(k->session, 0);
  const ordo_param *param = model->params[1];
  const ordo_leaf *leaf = param->leaf;
  const int64_t columns = param->shape[1];
  const ordo_chunk chunk = part_of(leaf->placement->chunks, 1, 1, 2, 2);
  assert_int_equal(ordo_session_export_chunk(k->session, leaf, &chunk, -1, out), ORDO_OK);
  for (int i = 0; i < 4; i++)
    assert_true(out[i] == kit_weight(1, (1 + i / 2) * columns + 1 + i % 2));
  assert_int_equal(ordo_session_import_chunk(k->session, leaf, &chunk, -1, in), ORDO_OK);
  assert_int_equal(ordo_session_export_param(k->session, param, -1, whole), ORDO_OK);
  for (int64_t e = 0; e < param->numel; e++) {
    const int64_t row = e / columns - 1, column = e % columns - 1;
    const gboolean changed = row >= 0 && row < 2 && column >= 0 && column < 2;
    assert_true(whole[e] == (changed ? in[row * 2 + column] : kit_weight(1, e)));
  }
  kit_free(k);
}

/* -0 and NaN are weights like others: what comes out is what is there, bit for bit; a tied parameter is its first. */
static void bits_are_kept_and_ties_resolved(void **state)
{
  kit *k = kit_new();
  float in[15], out[15];
  (void)state;
  kit_setup(k);
  const ordo_model *model = ordo_session_model(k->session, 0);
  memset(in, 0xff, sizeof in);
  in[3] = -0.0f;
  assert_int_equal(ordo_session_import_param(k->session, model->params[0], -1, in), ORDO_OK);
  assert_int_equal(ordo_session_export_param(k->session, model->params[3], -1, out), ORDO_OK);
  assert_memory_equal(in, out, sizeof in);
  assert_int_equal(ordo_session_export_param(k->session, model->params[3], -1, NULL), ORDO_OK);
  kit_free(k);
}

static void what_cannot_be_is_refused(void **state)
{
  kit *k = kit_new();
  float out[16];
  int64_t updates;
  (void)state;
  kit_setup(k);
  const ordo_model *model = ordo_session_model(k->session, 0);
  const ordo_leaf *leaf = model->params[1]->leaf;
  ordo_chunk chunk = part_of(leaf->placement->chunks, 1, 1, model->params[1]->shape[0], 1);
  assert_int_equal(ordo_session_export_chunk(k->session, leaf, &chunk, -1, out), ORDO_E_INVALID);
  assert_string_equal(kit_code(k), "E-STATE-CHUNK");
  chunk.kind = ORDO_CHUNK_FLAT;
  chunk.begin = 0, chunk.end = 1;
  assert_int_equal(ordo_session_export_chunk(k->session, leaf, &chunk, -1, out), ORDO_E_INVALID);
  assert_int_equal(ordo_session_export_chunk(k->session, leaf, leaf->placement->chunks, 0, out), ORDO_E_INVALID);
  assert_string_equal(kit_code(k), "E-STATE-SLOT");
  assert_int_equal(ordo_session_export_param(k->session, (const ordo_param *)&chunk, -1, out), ORDO_E_INVALID);
  assert_int_equal(ordo_session_export_updates(k->session, model->params[1], &updates), ORDO_E_UNSUPPORTED);
  assert_int_equal(ordo_session_import_updates(k->session, model->params[1], 3), ORDO_E_UNSUPPORTED);
  kit_assert_mentions(k, "how often it updated a leaf");
  assert_int_equal(ordo_session_step_begin(k->session, 1, 1.0), ORDO_OK);
  assert_int_equal(ordo_session_import_param(k->session, model->params[1], -1, out), ORDO_E_STATE);
  assert_string_equal(kit_code(k), "E-STATE-ORDER");
  kit_free(k);
}

static void a_leaf_of_before_is_stale(void **state)
{
  kit *k = kit_new();
  const ordo_plan_node *node = NULL;
  const ordo_leaf *leaf = NULL;
  float out[16];
  (void)state;
  kit_add(k, "flat", KIT_FSDP1, 1)->flat = TRUE;
  assert_int_equal(kit_create(k), ORDO_OK);
  do
    assert_int_equal(ordo_session_setup_next(k->session, &node), ORDO_OK);
  while (strcmp(node->name, "model.build") != 0);
  leaf = ordo_session_model(k->session, 0)->leaves[1];
  assert_int_equal(ordo_session_setup(k->session), ORDO_OK);
  assert_int_equal(ordo_session_export_chunk(k->session, leaf, leaf->placement->chunks, -1, out), ORDO_E_STALE);
  assert_int_equal(ordo_session_export_chunk(k->session, (const ordo_leaf *)&out, leaf->placement->chunks, -1, out), ORDO_E_INVALID);
  kit_free(k);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parts_of_a_rectangle_come_out_and_go_in),
      cmocka_unit_test(bits_are_kept_and_ties_resolved),
      cmocka_unit_test(what_cannot_be_is_refused),
      cmocka_unit_test(a_leaf_of_before_is_stale),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
