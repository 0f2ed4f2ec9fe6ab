/* test_inject.c - model.inject: params that are frozen, packed, added; and packed params while their unit runs. */
#include "kit.h"

#include <string.h>

/* ---- an opaque type that is exact for the kit's weights: four eighths in four bytes ---- */

enum { TOY = ORDO_DTYPE_OPAQUE + 1, BLOCK = 4 };

static ordo_status pack(void *ctx, const float *src, int64_t n, void *dst)
{
  (void)ctx;
  for (int64_t i = 0; i < n; i++)
    ((int8_t *)dst)[i] = (int8_t)(src[i] * 8.0f);
  return n % BLOCK ? ORDO_E_INVALID : ORDO_OK;
}

static ordo_status unpack(void *ctx, const void *src, int64_t n, float *dst)
{
  for (int64_t i = 0; i < n; i++)
    dst[i] = (float)((const int8_t *)src)[i] / 8.0f;
  return ctx ? ORDO_E_INVALID : ORDO_OK;
}

static const ordo_dtype_ops toy = {.struct_size = sizeof toy,
                                   .id = TOY,
                                   .bits = 8,
                                   .name = "toy",
                                   .block_elements = BLOCK,
                                   .block_bytes = BLOCK,
                                   .pack = pack,
                                   .unpack = unpack};

typedef struct wish {
  const char *freeze[2];
  const char *store;
  const ordo_dtype_ops *ops;
  const char *adapt; /* base of an adapter of rank 2 */
  const char *name_a;
  int64_t rank;
  float a[64], b[64];
} wish;

static const ordo_param *find(const ordo_job *job, const char *name)
{
  for (uint32_t i = 0; i < job->model->n_params; i++)
    if (!strcmp(job->model->params[i]->name, name))
      return job->model->params[i];
  fail_msg("no parameter %s", name);
  return NULL;
}

static ordo_status inject(void *ctx, const ordo_job *job)
{
  wish *w = ctx;
  ordo_status status = ORDO_OK;
  for (int i = 0; i < 2 && w->freeze[i] && status == ORDO_OK; i++)
    status = job->freeze(job->ctx, find(job, w->freeze[i]));
  if (status == ORDO_OK && w->store)
    status = job->store_param(job->ctx, find(job, w->store), w->ops);
  if (status == ORDO_OK && w->adapt) {
    const ordo_param *a = NULL, *b = NULL;
    ordo_adapter adapter = {sizeof adapter, find(job, w->adapt), w->name_a, "block.lora_b", w->rank, 0.5, w->a, w->b};
    status = job->add_adapter(job->ctx, &adapter, &a, &b);
    assert_true(status != ORDO_OK || (a == find(job, w->name_a) && b == find(job, "block.lora_b")));
  }
  return status;
}

static kit *injecting(wish *w, const char *lines, int axis)
{
  kit *k = kit_new();
  fake *f;
  if (lines)
    kit_add(k, "strategy", lines, axis)->flat = strcmp(lines, KIT_DDP) != 0;
  f = kit_add(k, "surgeon", "kind=precision\nsteps=model.inject\n", 0);
  f->injects = inject;
  f->injects_ctx = w;
  return k;
}

static void refused(wish w, const char *code, const char *word)
{
  kit *k = injecting(&w, NULL, 0);
  if (kit_create(k) == ORDO_OK)
    assert_int_not_equal(ordo_session_setup(k->session), ORDO_OK);
  assert_string_equal(kit_code(k), code);
  kit_assert_mentions(k, word);
  kit_free(k);
}

/* ---- freezing ---- */

static void a_frozen_param_has_no_gradient_and_does_not_move(void **state)
{
  wish w = {.freeze = {"block.b"}};
  kit *k = injecting(&w, NULL, 0);
  ordo_step_result result = {.struct_size = sizeof result};
  const ordo_param *param;
  (void)state;
  kit_setup(k);
  param = ordo_session_model(k->session, 0)->params[2];
  assert_null(param->grad);
  assert_int_equal(param->leaf->flags & ORDO_PARAM_REQUIRES_GRAD, 0);
  assert_int_equal(kit_step(k, 1, 1, &result), ORDO_OK);
  for (int64_t i = 0; i < param->numel; i++)
    assert_true(((const float *)param->data)[i] == kit_weight(2, i));
  assert_true(((const float *)ordo_session_model(k->session, 0)->params[1]->data)[0] != kit_weight(1, 0));
  kit_free(k);
}

static void freezing_takes_the_whole_tie_group(void **state)
{
  wish w = {.freeze = {"head.weight"}};
  kit *k = injecting(&w, NULL, 0);
  ordo_step_result result = {.struct_size = sizeof result};
  (void)state;
  kit_setup(k);
  assert_int_equal(ordo_session_model(k->session, 0)->params[0]->flags & ORDO_PARAM_REQUIRES_GRAD, 0);
  assert_int_equal(kit_step(k, 1, 1, &result), ORDO_OK);
  kit_free(k);
}

/* ---- packed params ---- */

typedef struct seen {
  float values[12];
  guint bound, released;
} seen;

static seen packed_seen;

static ordo_status see_bind(void *ctx, const ordo_model *model, const ordo_param *param, void *data, void *grad)
{
  (void)ctx, (void)model;
  if (param->dtype != TOY)
    return ORDO_OK;
  assert_null(grad);
  packed_seen.bound += data != NULL;
  packed_seen.released += data == NULL;
  if (data)
    memcpy(packed_seen.values, data, sizeof packed_seen.values);
  return ORDO_OK;
}

static void a_packed_param_is_unpacked_while_its_unit_runs(void **state)
{
  wish w = {.freeze = {"block.a"}, .store = "block.a", .ops = &toy};
  kit *k = injecting(&w, KIT_DDP, 1);
  ordo_step_result result = {.struct_size = sizeof result};
  const ordo_param *param;
  (void)state;
  memset(&packed_seen, 0, sizeof packed_seen);
  k->embedder.bind = see_bind;
  kit_setup(k);
  param = ordo_session_model(k->session, 0)->params[1];
  assert_int_equal(param->dtype, TOY);
  assert_ptr_equal(param->leaf->opaque, &toy);
  assert_int_equal(packed_seen.bound, 0);
  for (int i = 0; i < 12; i++)
    assert_int_equal(((const int8_t *)param->leaf->data)[i], (int8_t)(8.0f * kit_weight(1, i)));
  assert_int_equal(kit_step(k, 1, 1, &result), ORDO_OK);
  assert_int_equal(packed_seen.bound, 2); /* forward and backward */
  assert_int_equal(packed_seen.released, 2);
  for (int i = 0; i < 12; i++)
    assert_true(packed_seen.values[i] == kit_weight(1, i));
  kit_free(k);
}

/* State goes out as fp32 and in again, packed as before. */
static void a_packed_param_is_exported_and_imported(void **state)
{
  wish w = {.freeze = {"block.a"}, .store = "block.a", .ops = &toy};
  kit *k = injecting(&w, NULL, 0);
  const ordo_param *param;
  float full[12];
  (void)state;
  kit_setup(k);
  param = ordo_session_model(k->session, 0)->params[1];
  assert_int_equal(ordo_session_export_param(k->session, param, -1, full), ORDO_OK);
  for (int i = 0; i < 12; i++)
    assert_true(full[i] == kit_weight(1, i));
  full[5] = -2.0f;
  assert_int_equal(ordo_session_import_param(k->session, param, -1, full), ORDO_OK);
  assert_int_equal(((const int8_t *)param->leaf->data)[5], -16);
  assert_int_equal(((const int8_t *)param->leaf->data)[4], (int8_t)(8.0f * kit_weight(1, 4)));
  kit_free(k);
}

static void what_cannot_be_packed_is_refused(void **state)
{
  static ordo_dtype_ops wide, half;
  (void)state;
  wide = half = toy;
  wide.block_elements = 8;
  half.unpack = NULL;
  refused((wish){.store = "block.a", .ops = &toy}, "E-INJECT-STORE", "trained");
  refused((wish){.freeze = {"embed.weight"}, .store = "embed.weight", .ops = &toy}, "E-INJECT-STORE", "tied");
  refused((wish){.freeze = {"block.a"}, .store = "block.a", .ops = &wide}, "E-INJECT-STORE",
          "rows of 4 elements are no whole number of blocks of 8");
  refused((wish){.freeze = {"block.a"}, .store = "block.a", .ops = &wide}, "E-INJECT-STORE", "(powers of two: 2, 4)");
  refused((wish){.freeze = {"block.a"}, .store = "block.a", .ops = &half}, "E-JOB-ARGUMENT", "block.a");
  refused((wish){.freeze = {"block.a"}, .store = "block.a", .ops = NULL}, "E-JOB-ARGUMENT", "block.a");
}

/* Sizes are multiplied with the number of elements: what would overflow there is refused where the type is handed in. */
static void sizes_of_a_type_have_limits(void **state)
{
  static const struct {
    int64_t elements, bytes, side;
  } bad[] = {{(1 << 30) + 1, 4, 0}, {INT64_MAX, 4, 0}, {BLOCK, BLOCK * 16 + 4096 + 1, 0},  {BLOCK, INT64_MAX / 2, 0},
             {BLOCK, 0, 0},         {BLOCK, -4, 0},    {BLOCK, 4, ((int64_t)1 << 40) + 1}, {BLOCK, 4, INT64_MAX},
             {BLOCK, 4, -1},        {0, 4, 0}};
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
    ordo_dtype_ops ops = toy;
    ops.block_elements = bad[i].elements;
    ops.block_bytes = bad[i].bytes;
    ops.side_bytes = bad[i].side;
    refused((wish){.freeze = {"block.a"}, .store = "block.a", .ops = &ops}, "E-JOB-ARGUMENT", "limits of dtype.h");
  }
}

static ordo_status refuses_to_pack(void *ctx, const float *src, int64_t n, void *dst)
{
  (void)src;
  (void)n;
  (void)dst;
  return ctx ? 12345 : ORDO_E_UNSUPPORTED; /* a status that no release knows, or one without a record */
}

static void a_type_that_cannot_pack_is_named_with_its_plugin_and_leaf(void **state)
{
  (void)state;
  for (int odd = 0; odd < 2; odd++) {
    ordo_dtype_ops broken = toy;
    wish w = {.freeze = {"block.a"}, .store = "block.a", .ops = &broken};
    kit *k = injecting(&w, NULL, 0);
    broken.ctx = odd ? &w : NULL;
    broken.pack = refuses_to_pack;
    assert_int_equal(kit_create(k), ORDO_OK);
    assert_int_equal(ordo_session_setup(k->session), odd ? ORDO_E_INTERNAL : ORDO_E_UNSUPPORTED);
    assert_string_equal(kit_code(k), "E-OPAQUE-UNPACK");
    kit_assert_mentions(k, "block.a");
    kit_assert_mentions(k, "plugin 'surgeon', pack");
    kit_assert_mentions(k, "toy");
    kit_free(k);
  }
}

static void described_storage_and_a_fixed_embedder_are_refused(void **state)
{
  wish w = {.freeze = {"block.a"}, .store = "block.a", .ops = &toy};
  kit *k = injecting(&w, NULL, 0);
  (void)state;
  k->with_data = TRUE;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_STATE);
  assert_string_equal(kit_code(k), "E-INJECT-STORE");
  kit_free(k);
  k = injecting(&w, NULL, 0);
  k->embedder.bind = NULL;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_UNSUPPORTED);
  assert_string_equal(kit_code(k), "E-EMBEDDER-CANNOT");
  kit_free(k);
}

static void a_type_that_cannot_unpack_ends_the_session_with_its_name(void **state)
{
  ordo_dtype_ops broken = toy;
  wish w = {.freeze = {"block.a"}, .store = "block.a", .ops = &broken};
  kit *k = injecting(&w, NULL, 0);
  (void)state;
  broken.ctx = &w;
  k->embedder.bind = see_bind;
  kit_setup(k);
  assert_int_not_equal(kit_step(k, 1, 1, NULL), ORDO_OK);
  assert_string_equal(kit_code(k), "E-OPAQUE-UNPACK");
  kit_assert_mentions(k, "block.a");
  kit_assert_mentions(k, "plugin 'surgeon', unpack");
  kit_free(k);
}

/* ---- adapters ---- */

static void an_adapter_adds_two_trained_params_to_the_unit(void **state)
{
  static const char *const strategies[] = {NULL, KIT_DDP, KIT_FSDP1, KIT_FSDP2};
  (void)state;
  for (guint s = 0; s < G_N_ELEMENTS(strategies); s++) {
    wish w = {.freeze = {"block.a", "block.b"}, .adapt = "block.a", .name_a = "block.lora_a", .rank = 2, .a = {1, 2, 3, 4, 5, 6, 7, 8}};
    kit *k = injecting(&w, strategies[s], 1);
    ordo_step_result result = {.struct_size = sizeof result};
    const ordo_model *model;
    kit_setup(k);
    model = ordo_session_model(k->session, 0);
    assert_int_equal(model->n_params, 6);
    assert_int_equal(model->units[1]->n_params, 4);
    assert_ptr_equal(model->units[1]->params[2], model->params[4]);
    assert_int_equal(k->adapters, 1);
    assert_int_equal(model->params[4]->shape[0], 2);
    assert_int_equal(model->params[4]->shape[1], 4);
    assert_int_equal(model->params[5]->shape[0], 3);
    if (!strategies[s] || !strcmp(strategies[s], KIT_DDP)) {
      for (int i = 0; i < 8; i++)
        assert_true(((const float *)model->params[4]->data)[i] == (float)(i + 1));
      assert_int_equal(kit_step(k, 1, 1, &result), ORDO_OK);
      assert_true(((const float *)model->params[5]->data)[0] != 0.0f); /* trained */
    }
    kit_free(k);
  }
}

static void adapters_that_cannot_be_are_refused(void **state)
{
  wish w = {.adapt = "block.a", .name_a = "block.lora_a", .rank = 2};
  kit *k = injecting(&w, NULL, 0);
  (void)state;
  k->embedder.adapt = NULL;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_UNSUPPORTED);
  assert_string_equal(kit_code(k), "E-EMBEDDER-CANNOT");
  kit_free(k);
  k = injecting(&w, NULL, 0);
  k->refuses_convert = TRUE;
  assert_int_equal(kit_create(k), ORDO_OK);
  assert_int_equal(ordo_session_setup(k->session), ORDO_E_UNSUPPORTED);
  kit_free(k);
  refused((wish){.adapt = "block.a", .name_a = "block.lora_a", .rank = 0}, "E-JOB-ARGUMENT", "block.a");
  refused((wish){.adapt = "block.b", .name_a = "block.lora_a", .rank = 2}, "E-JOB-ARGUMENT", "block.b");
  refused((wish){.adapt = "block.a", .name_a = "block.b", .rank = 2}, "E-MODEL-DESCRIPTION", "block.b");
}

/* ---- when, and what travels ---- */

static ordo_status too_late(void *ctx, const ordo_job *job)
{
  *(const ordo_job **)ctx = job;
  return ORDO_OK;
}

static void changing_a_model_that_is_set_up_is_refused(void **state)
{
  const ordo_job *job = NULL;
  kit *k = kit_new();
  fake *f = kit_add(k, "surgeon", "kind=precision\nsteps=model.inject\n", 0);
  ordo_adapter adapter = {.struct_size = sizeof adapter};
  void *self = NULL;
  (void)state;
  f->injects = too_late;
  f->injects_ctx = (void *)&job;
  kit_setup(k);
  assert_int_equal(job->freeze(job->ctx, find(job, "block.a")), ORDO_E_STATE);
  assert_int_equal(job->store_param(job->ctx, find(job, "block.a"), &toy), ORDO_E_STATE);
  adapter.base = find(job, "block.a");
  assert_int_equal(job->add_adapter(job->ctx, &adapter, NULL, NULL), ORDO_E_STATE);
  assert_int_equal(job->freeze(job->ctx, NULL), ORDO_E_INVALID);
  assert_int_equal(job->add_adapter(job->ctx, NULL, NULL, NULL), ORDO_E_INVALID);
  assert_null(job->wire(job->ctx, &self)); /* the fake packs nothing */
  assert_null(self);
  kit_free(k);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_frozen_param_has_no_gradient_and_does_not_move),
      cmocka_unit_test(freezing_takes_the_whole_tie_group),
      cmocka_unit_test(a_packed_param_is_unpacked_while_its_unit_runs),
      cmocka_unit_test(a_packed_param_is_exported_and_imported),
      cmocka_unit_test(what_cannot_be_packed_is_refused),
      cmocka_unit_test(sizes_of_a_type_have_limits),
      cmocka_unit_test(a_type_that_cannot_pack_is_named_with_its_plugin_and_leaf),
      cmocka_unit_test(described_storage_and_a_fixed_embedder_are_refused),
      cmocka_unit_test(a_type_that_cannot_unpack_ends_the_session_with_its_name),
      cmocka_unit_test(an_adapter_adds_two_trained_params_to_the_unit),
      cmocka_unit_test(adapters_that_cannot_be_are_refused),
      cmocka_unit_test(changing_a_model_that_is_set_up_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
