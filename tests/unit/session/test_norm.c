/* test_norm.c - gradients of every type are summed and scaled, padding is not. */
#include "kit.h"

#include <math.h>
#include <string.h>

/* Puts 1, 2, 2 (norm 3) behind two elements of padding into a leaf of the given type. */
static double norm_of(ordo_dtype dtype, gboolean ordered, double *first_after_scale)
{
  kit *k = kit_new();
  ordo_chunk chunk;
  ordo_leaf_record *record;
  double f64[5] = {1e9, 1e9, 1, 2, 2}, norm = 0.0;
  float f32[5] = {1e9f, 1e9f, 1, 2, 2};
  uint16_t f16[5] = {0x7bff, 0x7bff, 0x3c00, 0x4000, 0x4000}, bf16[5] = {0x4e6e, 0x4e6e, 0x3f80, 0x4000, 0x4000};
  kit_setup(k);
  k->session->options.ordered = ordered ? 1 : 0;
  record = (ordo_leaf_record *)ordo_session_model(k->session, 0)->leaves[2]; /* block.b, 3 elements */
  chunk = record->placement.chunks[0];
  chunk.leaf_offset = 2;
  g_free((void *)record->placement.chunks);
  record->placement.chunks = g_memdup2(&chunk, sizeof chunk);
  record->leaf.numel = 5;
  record->leaf.grad_dtype = dtype;
  record->leaf.grad_state = ORDO_GRAD_HELD;
  record->leaf.grad = dtype == ORDO_F64 ? (void *)f64 : dtype == ORDO_F32 ? (void *)f32 : dtype == ORDO_F16 ? (void *)f16 : (void *)bf16;
  assert_int_equal(ordo_norm_compute(k->session, &norm), ORDO_OK);
  assert_null(ordo_norm_first_nonfinite(k->session));
  ordo_norm_scale(&record->leaf, 0.5);
  *first_after_scale = dtype == ORDO_F64   ? f64[2]
                       : dtype == ORDO_F32 ? (double)f32[2]
                       : dtype == ORDO_F16 ? (f16[2] == 0x3800 ? 0.5 : -1)
                                           : (bf16[2] == 0x3f00 ? 0.5 : -1);
  if (dtype == ORDO_F16) {
    f16[3] = 0x7c00;
    assert_ptr_equal(ordo_norm_first_nonfinite(k->session), &record->leaf);
  }
  kit_free(k);
  return norm;
}

static void every_type_counts_and_padding_does_not(void **state)
{
  const ordo_dtype types[] = {ORDO_F32, ORDO_F64, ORDO_F16, ORDO_BF16};
  (void)state;
  for (guint i = 0; i < G_N_ELEMENTS(types); i++)
    for (int ordered = 0; ordered < 2; ordered++) {
      double scaled = 0.0;
      assert_true(norm_of(types[i], ordered, &scaled) == 3.0); /* all values and squares are exact */
      assert_true(scaled == 0.5);
    }
}

static void long_vectors_use_every_lane(void **state)
{
  kit *k = kit_new();
  ordo_leaf_record *record;
  ordo_chunk chunk;
  float *x = g_new0(float, 1003);
  double norm, expected = 0.0;
  (void)state;
  kit_setup(k);
  record = (ordo_leaf_record *)ordo_session_model(k->session, 0)->leaves[2];
  chunk = record->placement.chunks[0];
  chunk.extent[0] = 1003;
  g_free((void *)record->placement.chunks);
  record->placement.chunks = g_memdup2(&chunk, sizeof chunk);
  record->leaf.numel = 1003;
  record->leaf.grad = x;
  record->leaf.grad_state = ORDO_GRAD_HELD;
  for (int i = 0; i < 1003; i++) {
    x[i] = (float)(i % 8);
    expected += (double)x[i] * (double)x[i]; /* integers: exact in any order */
  }
  assert_int_equal(ordo_norm_compute(k->session, &norm), ORDO_OK);
  assert_true(norm == sqrt(expected));
  kit_free(k);
  g_free(x);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_type_counts_and_padding_does_not),
      cmocka_unit_test(long_vectors_use_every_lane),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
