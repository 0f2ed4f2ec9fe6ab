/* test_convert.c - parameters that change their element type, and gradients that add up over micro-batches in fp32. */
#include "kit.h"

#include <ordo/half.h>

#include <math.h>
#include <string.h>

/* ---- conversion ---- */

static kit *converting(const char *lines, int axis, ordo_dtype dtype)
{
  kit *k = kit_new();
  if (lines)
    kit_add(k, "strategy", lines, axis)->flat = strcmp(lines, KIT_DDP) != 0;
  kit_add(k, "amp", KIT_AMP, 0)->converts = dtype;
  k->says_16_bit = TRUE;
  return k;
}

static void storage_is_rounded_and_the_embedder_told(void **state)
{
  (void)state;
  for (int with_data = 0; with_data < 2; with_data++) {
    kit *k = converting(NULL, 0, ORDO_BF16);
    const ordo_model *model;
    k->with_data = with_data;
    k->weight_offset = 0.001;
    kit_setup(k);
    model = ordo_session_model(k->session, 0);
    assert_int_equal(k->converts, 4); /* every parameter, the members of a tie group each */
    for (uint32_t p = 0; p < 4; p++) {
      assert_int_equal(model->params[p]->dtype, ORDO_BF16);
      assert_int_equal(model->params[p]->grad_dtype, ORDO_BF16);
      assert_int_equal(model->params[p]->leaf->dtype, ORDO_BF16);
      for (int64_t i = 0; i < model->params[p]->numel; i++)
        assert_int_equal(((uint16_t *)model->params[p]->data)[i], ordo_bf16_from_f32(kit_weight(p, i) + 0.001f));
    }
    assert_ptr_equal(model->params[0]->data, model->params[3]->data);
    kit_free(k);
  }
}

/* Shards are read from the source, which stays fp32 whatever the parameter became. */
static void a_converted_parameter_is_loaded_from_its_fp32_source(void **state)
{
  kit *k = converting(KIT_FSDP1, 1, ORDO_F16);
  const ordo_leaf *leaf;
  (void)state;
  k->with_data = TRUE;
  kit_setup(k);
  assert_int_equal(ordo_session_model(k->session, 0)->params[1]->dtype, ORDO_F16);
  leaf = ordo_session_model(k->session, 0)->leaves[0];
  for (uint64_t c = 0; c < leaf->placement->n_chunks; c++) {
    const ordo_chunk *chunk = &leaf->placement->chunks[c];
    for (int64_t i = chunk->begin; i < chunk->end; i++)
      assert_true(((const float *)leaf->data)[chunk->leaf_offset + i - chunk->begin] == kit_weight(chunk->param->index, i));
  }
  kit_free(k);
}

static void fp32_storage_is_gone_after_the_set_up(void **state)
{
  int64_t now, peak;
  kit *k = converting(NULL, 0, ORDO_F16);
  (void)state;
  kit_setup(k);
  ordo_session_memory(k->session, ORDO_MEM_WEIGHTS, &now, &peak);
  assert_int_equal(now, 2 * (15 + 12 + 3));
  kit_free(k);
}

/* Leaf by leaf: beside the fp32 weights the set-up holds one leaf of 16 bits, not a second model. */
static void at_the_peak_one_leaf_is_there_twice(void **state)
{
  int64_t now, peak;
  kit *k = converting(NULL, 0, ORDO_BF16);
  (void)state;
  kit_setup(k);
  ordo_session_memory(k->session, ORDO_MEM_WEIGHTS, &now, &peak);
  assert_int_equal(peak, 4 * (15 + 12 + 3) + 2 * 15);
  kit_free(k);
}

static void refused(kit *k, ordo_status status, const char *code, const char *word)
{
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), status);
  assert_string_equal(kit_code(k), code);
  kit_assert_mentions(k, word);
  kit_free(k);
}

static void what_cannot_be_converted_is_refused(void **state)
{
  kit *k = converting(NULL, 0, ORDO_I32);
  (void)state;
  refused(k, ORDO_E_INVALID, "E-JOB-ARGUMENT", "f32, f16 and bf16");
  k = converting(NULL, 0, ORDO_BF16);
  k->embedder.convert = NULL;
  refused(k, ORDO_E_UNSUPPORTED, "E-EMBEDDER-CANNOT", "embed.weight");
  k = converting(NULL, 0, ORDO_BF16);
  k->embedder.bind = NULL;
  refused(k, ORDO_E_UNSUPPORTED, "E-EMBEDDER-CANNOT", "embed.weight");
  k = converting(NULL, 0, ORDO_BF16);
  k->refuses_convert = TRUE;
  refused(k, ORDO_E_UNSUPPORTED, "E-EMBEDDER-CANNOT", "not this type");
}

static void converting_outside_of_its_step_is_refused(void **state)
{
  kit *k = kit_new();
  fake *amp = kit_add(k, "amp", KIT_AMP, 0);
  (void)state;
  kit_setup(k);
  amp->late = TRUE;
  amp->converts = ORDO_BF16;
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_E_STATE);
  assert_string_equal(kit_code(k), "E-JOB-ARGUMENT");
  kit_assert_mentions(k, "convert_param belongs into");
  kit_free(k);
}

static ordo_status no_scheduler(void *ctx, ordo_optimizer *optimizer)
{
  (void)optimizer;
  return ordo_fail(((kit *)ctx)->context, ORDO_E_UNSUPPORTED, "E-EMBEDDER-CANNOT", "no schedule", "toy", "", "");
}

/* A later step fails: type, storage and what the embedder sees are as they were. */
static void undo_converts_back(void **state)
{
  kit *k = converting(NULL, 0, ORDO_BF16);
  const ordo_model *model;
  (void)state;
  k->with_data = TRUE;
  k->embedder.scheduler_create = no_scheduler;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_UNSUPPORTED);
  model = &((ordo_model_state *)g_ptr_array_index(k->session->models, 0))->view;
  assert_int_equal(model->params[1]->dtype, ORDO_F32);
  assert_int_equal(model->params[1]->grad_dtype, ORDO_F32);
  assert_ptr_equal(model->params[1]->data, k->storage[1]);
  kit_free(k);
}

/* The fp32 storage of the host is gone by then: leaf and parameter come back without data, not with a pointer to freed memory. */
static void undo_does_not_bring_freed_storage_back(void **state)
{
  kit *k = converting(NULL, 0, ORDO_BF16);
  const ordo_model *model;
  int64_t now, peak;
  (void)state;
  k->embedder.scheduler_create = no_scheduler;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_UNSUPPORTED);
  model = &((ordo_model_state *)g_ptr_array_index(k->session->models, 0))->view;
  for (uint32_t p = 0; p < 4; p++) {
    assert_int_equal(model->params[p]->dtype, ORDO_F32);
    assert_null(model->params[p]->data);
    assert_null(model->params[p]->leaf->data);
  }
  ordo_session_memory(k->session, ORDO_MEM_WEIGHTS, &now, &peak);
  assert_int_equal(now, 2 * (15 + 12 + 3));
  assert_int_equal(k->dead_binds, 0);
  kit_free(k);
}

/* A conversion that fails in the middle: leaves before it were converted and freed, those behind it were not. */
static void a_conversion_that_fails_in_the_middle_leaves_no_dead_pointer(void **state)
{
  kit *k = converting(NULL, 0, ORDO_BF16);
  const ordo_model *model;
  (void)state;
  k->refuses_convert_at = 3;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_UNSUPPORTED);
  model = &((ordo_model_state *)g_ptr_array_index(k->session->models, 0))->view;
  for (uint32_t p = 0; p < 4; p++)
    assert_null(model->params[p]->data);
  assert_int_equal(k->dead_binds, 0);
  kit_free(k);
}

/* ---- sums over micro-batches ---- */

static void write_low(kit *k, uint32_t param, float value)
{
  const ordo_param *p = ordo_session_model(k->session, 0)->params[param];
  int adds = ordo_session_grad_adds(k->session, 0, param);
  uint16_t *grad = p->grad;
  for (int64_t i = 0; i < p->numel; i++)
    grad[i] = ordo_bf16_from_f32((adds ? ordo_f32_from_bf16(grad[i]) : 0.0f) + value);
  assert_int_equal(ordo_session_grad_ready(k->session, 0, param), ORDO_OK);
}

/* One micro-batch in which parameters 0 to 3 get `values`; NaN: it is not used. */
static void micro(kit *k, const float values[4])
{
  static const uint32_t unit_of[] = {0, 1, 1, 2};
  assert_int_equal(ordo_session_micro_begin(k->session), ORDO_OK);
  for (uint32_t u = 0; u < 3; u++) {
    assert_int_equal(ordo_session_pre_forward(k->session, 0, u), ORDO_OK);
    assert_int_equal(ordo_session_post_forward(k->session, 0, u), ORDO_OK);
  }
  for (uint32_t u = 3; u-- > 0;) {
    assert_int_equal(ordo_session_pre_backward(k->session, 0, u), ORDO_OK);
    for (uint32_t p = 0; p < 4; p++)
      if (unit_of[p] == u && !isnan(values[p]))
        write_low(k, p, values[p]);
    assert_int_equal(ordo_session_post_backward(k->session, 0, u), ORDO_OK);
  }
  assert_int_equal(ordo_session_micro_end(k->session), ORDO_OK);
}

static float low_gradient(const kit *k, uint32_t param)
{
  const ordo_leaf *leaf = ordo_session_model(k->session, 0)->params[param]->leaf;
  return leaf->grad_state == ORDO_GRAD_HELD ? ordo_f32_from_bf16(((const uint16_t *)leaf->grad)[0]) : (float)NAN;
}

/* 256 + 1 is 256 in bf16, 256 + 1 + 1 is 258 in fp32. And parameters that a micro-batch does not use, alone or in a tie group. */
static void micro_batches_add_up_in_fp32(void **state)
{
  const float unused = (float)NAN;
  const float batches[3][4] = {{128.0f, 256.0f, unused, 128.0f}, {1.0f, 1.0f, 3.0f, unused}, {unused, 1.0f, unused, 1.0f}};
  (void)state;
  for (int low = 0; low < 2; low++) {
    kit *k = kit_new();
    fake *amp = kit_add(k, "amp", KIT_AMP, 0);
    amp->converts = ORDO_BF16;
    amp->convert_flags = low ? ORDO_CONVERT_ADD_LOW : 0;
    k->says_16_bit = TRUE;
    kit_setup(k);
    for (int step = 0; step < 2; step++) {
      assert_int_equal(ordo_session_step_begin(k->session, 3, 1.0), ORDO_OK);
      for (int m = 0; m < 3; m++)
        micro(k, batches[m]);
      assert_int_equal(ordo_session_reduce_gradients(k->session), ORDO_OK);
      assert_true(low_gradient(k, 0) == (low ? 256.0f : 258.0f)); /* both members: 256, then one of them */
      assert_true(low_gradient(k, 1) == (low ? 256.0f : 258.0f));
      assert_true(low_gradient(k, 2) == 3.0f); /* the middle one alone */
      k->lr = 0.0;
      k->frozen_optimizer = TRUE; /* it would read fp32 */
      ((ordo_model_state *)g_ptr_array_index(k->session->models, 0))->change_seen = TRUE;
      assert_int_equal(ordo_session_step_end(k->session, NULL), ORDO_OK);
    }
    kit_free(k);
  }
}

static void a_parameter_that_no_micro_batch_used_has_no_gradient(void **state)
{
  const float unused = (float)NAN, values[4] = {1.0f, 1.0f, unused, 1.0f};
  kit *k = converting(NULL, 0, ORDO_BF16);
  (void)state;
  kit_setup(k);
  assert_int_equal(ordo_session_step_begin(k->session, 2, 1.0), ORDO_OK);
  micro(k, values);
  micro(k, values);
  assert_int_equal(ordo_session_reduce_gradients(k->session), ORDO_OK);
  assert_true(isnan(low_gradient(k, 2)));
  kit_free(k);
}

/* A strategy that reduces every micro-batch leaves nothing to add to, and cannot keep losses apart. */
static void a_strategy_that_accumulates_is_left_alone(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_add(k, "eager", KIT_DDP "flags=handles_gradient_accumulation\n", 1);
  kit_add(k, "amp", KIT_AMP, 0)->converts = ORDO_BF16;
  k->says_16_bit = TRUE;
  kit_setup(k);
  assert_int_equal(ordo_session_step_begin(k->session, 2, 1.0), ORDO_OK);
  assert_null(((const ordo_param_record *)ordo_session_model(k->session, 0)->params[1])->sum);
  assert_int_equal(ordo_session_select_loss(k->session, 0), ORDO_E_UNSUPPORTED);
  assert_string_equal(kit_code(k), "E-STEP-LOSS");
  kit_free(k);
}

/* Without a scaler every loss has the factor of the first, and any number of them is fine. */
static void losses_without_a_scaler(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_setup(k);
  assert_int_equal(ordo_session_step_begin(k->session, 2, 4.0), ORDO_OK);
  assert_int_equal(ordo_session_select_loss(k->session, 5), ORDO_OK);
  assert_true(ordo_session_loss_factor(k->session) == 0.25);
  assert_int_equal(kit_micro(k, 1.0f), ORDO_OK);
  assert_int_equal(ordo_session_select_loss(k->session, 6), ORDO_OK);
  assert_int_equal(kit_micro(k, 1.0f), ORDO_OK);
  assert_int_equal(ordo_session_step_end(k->session, NULL), ORDO_OK);
  assert_int_equal(ordo_session_step_begin(k->session, 2, 4.0), ORDO_OK); /* too late in this one */
  assert_int_equal(kit_micro(k, 1.0f), ORDO_OK);
  assert_int_equal(ordo_session_select_loss(k->session, 1), ORDO_E_STATE);
  kit_free(k);
}

/* It used to be accepted, and the gradients, all of another loss, were unscaled by this one's scale. */
static void a_loss_selected_after_the_last_micro_batch_is_refused(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_setup(k);
  for (int selects = 0; selects < 2; selects++) {
    assert_int_equal(ordo_session_step_begin(k->session, 1, 4.0), ORDO_OK);
    if (selects)
      assert_int_equal(ordo_session_select_loss(k->session, 0), ORDO_OK);
    assert_int_equal(kit_micro(k, 1.0f), ORDO_OK);
    assert_int_equal(ordo_session_select_loss(k->session, 1), ORDO_E_STATE);
    assert_string_equal(kit_code(k), "E-STATE-ORDER");
    kit_assert_mentions(k, "none is left in this step");
    assert_int_equal(ordo_session_step_end(k->session, NULL), ORDO_OK); /* nothing has happened */
  }
  kit_free(k);
}

/* Its scale would grow, as that of a loss whose gradients were finite. */
static void a_loss_that_never_ran_was_not_used(void **state)
{
  kit *k = kit_new();
  (void)state;
  kit_setup(k);
  assert_int_equal(ordo_session_step_begin(k->session, 3, 4.0), ORDO_OK);
  assert_int_equal(ordo_session_select_loss(k->session, 1), ORDO_OK);
  assert_int_equal(ordo_session_select_loss(k->session, 0), ORDO_OK);
  assert_int_equal(kit_micro(k, 1.0f), ORDO_OK);
  assert_int_equal(k->session->losses_used, 1u << 0);
  assert_int_equal(ordo_session_select_loss(k->session, 3), ORDO_OK);
  assert_int_equal(ordo_session_select_loss(k->session, 2), ORDO_OK);
  assert_int_equal(kit_micro(k, 1.0f), ORDO_OK);
  assert_int_equal(kit_micro(k, 1.0f), ORDO_OK);
  assert_int_equal(k->session->losses_used, 1u << 0 | 1u << 2);
  assert_int_equal(ordo_session_step_end(k->session, NULL), ORDO_OK);
  kit_free(k);
}

/* A scale that is no number above 0, and a plugin that does not say why. */
static void a_loss_scale_must_be_a_number_above_0(void **state)
{
  kit *k = kit_new();
  fake *amp = kit_add(k, "amp", KIT_AMP, 0);
  (void)state;
  amp->fp16 = TRUE;
  kit_setup(k);
  amp->scale = (double)INFINITY;
  assert_int_equal(ordo_session_step_begin(k->session, 1, 1.0), ORDO_E_INVALID);
  assert_string_equal(kit_code(k), "E-STEP-LOSS");
  kit_free(k);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(storage_is_rounded_and_the_embedder_told),
      cmocka_unit_test(a_converted_parameter_is_loaded_from_its_fp32_source),
      cmocka_unit_test(fp32_storage_is_gone_after_the_set_up),
      cmocka_unit_test(at_the_peak_one_leaf_is_there_twice),
      cmocka_unit_test(what_cannot_be_converted_is_refused),
      cmocka_unit_test(converting_outside_of_its_step_is_refused),
      cmocka_unit_test(undo_converts_back),
      cmocka_unit_test(undo_does_not_bring_freed_storage_back),
      cmocka_unit_test(a_conversion_that_fails_in_the_middle_leaves_no_dead_pointer),
      cmocka_unit_test(micro_batches_add_up_in_fp32),
      cmocka_unit_test(a_parameter_that_no_micro_batch_used_has_no_gradient),
      cmocka_unit_test(a_strategy_that_accumulates_is_left_alone),
      cmocka_unit_test(losses_without_a_scaler),
      cmocka_unit_test(a_loss_selected_after_the_last_micro_batch_is_refused),
      cmocka_unit_test(a_loss_that_never_ran_was_not_used),
      cmocka_unit_test(a_loss_scale_must_be_a_number_above_0),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
