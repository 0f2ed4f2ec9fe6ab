/* test_llama.c - the model as its users see it: table, refusals, hooks, gradients against finite differences, decoding. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ordo/strategy.h>

#include "test_model.h"

static const struct llama_config odd = {.vocab = 37,
                                        .hidden = 24,
                                        .intermediate = 19,
                                        .layers = 2,
                                        .heads = 3,
                                        .kv_heads = 1,
                                        .head_dim = 8,
                                        .max_positions = 160,
                                        .rms_eps = 1e-5,
                                        .rope_theta = 500.0};

enum { BATCH = 2, SEQ = 17, TOKENS = BATCH * SEQ };

struct batch {
  int32_t ids[TOKENS], targets[TOKENS];
};

static void randomise(struct test_model *model, struct batch *batch)
{
  uint32_t state = 5;
  for (uint32_t p = 0; p < model->n_params; p++) {
    const struct llama_param *param = llama_param_at(model->llama, p);
    for (int64_t i = 0; !test_model_is_alias(model, p) && i < param->numel; i++)
      model->weight[p][i] = param->ndim == 2 ? 0.4f * test_uniform(&state) : 1.0f + 0.2f * test_uniform(&state);
  }
  for (int i = 0; i < TOKENS; i++) {
    (void)test_uniform(&state);
    batch->ids[i] = (int32_t)((state >> 8) % 37);
    batch->targets[i] = i % 5 == 2 ? -100 : (int32_t)((state >> 16) % 37);
  }
}

static struct test_model *ready_model(struct batch *batch, int tied)
{
  struct llama_config config = odd;
  config.tied = tied;
  struct test_model *model = test_model_new(&config);
  randomise(model, batch);
  assert_int_equal(llama_reserve(model->llama, BATCH, SEQ, 1, 0), LLAMA_OK);
  return model;
}

static double loss_of(struct test_model *model, const struct batch *batch, int64_t seq, int keep)
{
  struct llama_forward_args args = {.ids = batch->ids, .targets = batch->targets, .batch = BATCH, .seq = seq, .keep = keep};
  assert_int_equal(llama_forward(model->llama, &args), LLAMA_OK);
  return args.loss_sum;
}

/* ---- table ---- */

static void test_parameter_table(void **state)
{
  (void)state;
  struct llama_config config = odd;
  config.tied = 1;
  char reason[200];
  struct llama *llama = llama_create(&config, NULL, reason, sizeof reason);
  assert_non_null(llama);
  assert_int_equal(llama_n_units(llama), 4);
  assert_int_equal(llama_n_params(llama), 1 + 2 * 9 + 2);
  const char *order[] = {"model.embed_tokens.weight",
                         "model.layers.0.self_attn.q_proj.weight",
                         "model.layers.0.self_attn.k_proj.weight",
                         "model.layers.0.self_attn.v_proj.weight",
                         "model.layers.0.self_attn.o_proj.weight",
                         "model.layers.0.mlp.gate_proj.weight",
                         "model.layers.0.mlp.up_proj.weight",
                         "model.layers.0.mlp.down_proj.weight",
                         "model.layers.0.input_layernorm.weight",
                         "model.layers.0.post_attention_layernorm.weight",
                         "model.layers.1.self_attn.q_proj.weight"};
  for (uint32_t p = 0; p < sizeof order / sizeof order[0]; p++)
    assert_string_equal(llama_param_at(llama, p)->name, order[p]);
  assert_string_equal(llama_param_at(llama, 19)->name, "model.norm.weight");
  assert_string_equal(llama_param_at(llama, 20)->name, "lm_head.weight");
  assert_int_equal(llama_param_at(llama, 0)->tie_group, llama_param_at(llama, 20)->tie_group);
  assert_true(llama_param_at(llama, 0)->tie_group >= 0);
  const struct llama_param *k = llama_param_at(llama, 2), *o = llama_param_at(llama, 4), *norm = llama_param_at(llama, 8);
  assert_true(k->shape[0] == 8 && k->shape[1] == 24 && k->ndim == 2 && k->decay && k->tp_hint == LLAMA_TP_COLUMN && k->tp_block == 8);
  assert_true(o->shape[0] == 24 && o->shape[1] == 24 && o->tp_hint == LLAMA_TP_ROW && o->tp_block == 8 && o->tie_group == -1);
  assert_true(norm->ndim == 1 && !norm->decay && norm->numel == 24 && norm->tp_hint == LLAMA_TP_REPLICATE);
  assert_string_equal(llama_unit_at(llama, 0)->class_name, "LlamaEmbedding");
  assert_string_equal(llama_unit_at(llama, 2)->name, "model.layers.1");
  assert_string_equal(llama_unit_at(llama, 2)->class_name, "LlamaBlock");
  assert_true(llama_unit_at(llama, 2)->first_param == 10 && llama_unit_at(llama, 2)->n_params == 9);
  assert_string_equal(llama_unit_at(llama, 3)->name, "head");
  assert_int_equal(llama_param_at(llama, 20)->unit, 3);
  llama_destroy(llama);
  llama_destroy(NULL);
}

/* The core does not depend on the SDK; its numbers are passed to the host as they are. */
static void test_constants_equal_those_of_the_sdk(void **state)
{
  (void)state;
  assert_int_equal(LLAMA_TP_REPLICATE, ORDO_TP_REPLICATE);
  assert_int_equal(LLAMA_TP_COLUMN, ORDO_TP_COLUMN);
  assert_int_equal(LLAMA_TP_ROW, ORDO_TP_ROW);
  assert_int_equal(LLAMA_TP_VOCAB, ORDO_TP_VOCAB);
  assert_int_equal(LLAMA_POINT_COLUMN_INPUT, ORDO_ACT_COLUMN_INPUT);
  assert_int_equal(LLAMA_POINT_ROW_OUTPUT, ORDO_ACT_ROW_OUTPUT);
  assert_int_equal(LLAMA_POINT_EMBED_OUTPUT, ORDO_ACT_EMBED_OUTPUT);
  assert_int_equal(LLAMA_POINT_HEAD_INPUT, ORDO_ACT_HEAD_INPUT);
  assert_int_equal(LLAMA_POINT_UNIT_OUTPUT, ORDO_ACT_UNIT_OUTPUT);
}

static void test_bad_configurations(void **state)
{
  (void)state;
  struct llama_config c[8];
  const char *words[8] = {"head_dim", "kv_heads", "vocab", "layers", "rms_eps", "rope_theta", "hidden", "heads * head_dim"};
  char reason[200];
  for (int i = 0; i < 8; i++)
    c[i] = odd;
  c[0].head_dim = 7;
  c[1].kv_heads = 2;
  c[2].vocab = 0;
  c[3].layers = -1;
  c[4].rms_eps = NAN;
  c[5].rope_theta = 0.0;
  c[6].hidden = INT64_MAX;
  c[7].heads = c[7].kv_heads = 1 << 22;
  for (int i = 0; i < 8; i++) {
    assert_null(llama_create(&c[i], NULL, reason, sizeof reason));
    assert_non_null(strstr(reason, words[i]));
  }
  assert_null(llama_config_check(&odd, reason, sizeof reason));
}

/* ---- refusals ---- */

static void test_wrong_calls_are_refused(void **state)
{
  (void)state;
  struct batch batch;
  struct llama_config config = odd;
  struct test_model *model = test_model_new(&config);
  randomise(model, &batch);
  struct llama_forward_args args = {.ids = batch.ids, .targets = batch.targets, .batch = BATCH, .seq = SEQ, .keep = 1};
  assert_int_equal(llama_forward(model->llama, &args), LLAMA_E_STATE);
  assert_int_equal(llama_backward(model->llama, 1.0), LLAMA_E_STATE);
  assert_int_equal(llama_reserve(model->llama, 1, 161, 1, 0), LLAMA_E_INVALID);
  assert_non_null(strstr(llama_error(model->llama), "160"));
  assert_int_equal(llama_reserve(model->llama, INT64_MAX, 100, 1, 0), LLAMA_E_INVALID);
  assert_int_equal(llama_reserve(model->llama, BATCH, SEQ, 0, 0), LLAMA_OK);
  assert_int_equal(llama_forward(model->llama, &args), LLAMA_E_STATE); /* keep without a training reservation */
  assert_int_equal(llama_reserve(model->llama, BATCH, SEQ - 1, 1, 0), LLAMA_OK);
  assert_int_equal(llama_forward(model->llama, &args), LLAMA_E_INVALID);
  assert_int_equal(llama_reserve(model->llama, BATCH, SEQ, 1, 0), LLAMA_OK);
  args.ids = NULL;
  assert_int_equal(llama_forward(model->llama, &args), LLAMA_E_INVALID);
  args.ids = batch.ids;
  args.batch = INT64_MAX;
  assert_int_equal(llama_forward(model->llama, &args), LLAMA_E_INVALID);
  args.batch = BATCH;
  assert_int_equal(llama_forward(model->llama, &args), LLAMA_OK);
  assert_int_equal(llama_backward(model->llama, 1.0), LLAMA_OK);
  assert_int_equal(llama_backward(model->llama, 1.0), LLAMA_E_STATE); /* activations are consumed */
  batch.ids[3] = 37;
  assert_int_equal(llama_forward(model->llama, &args), LLAMA_E_INVALID);
  assert_non_null(strstr(llama_error(model->llama), "position 3"));
  batch.ids[3] = -1;
  assert_int_equal(llama_forward(model->llama, &args), LLAMA_E_INVALID);
  batch.ids[3] = 0;
  batch.targets[4] = -1;
  assert_int_equal(llama_forward(model->llama, &args), LLAMA_E_INVALID);
  batch.targets[4] = -100;
  llama_bind(model->llama, 12, NULL, NULL);
  assert_int_equal(llama_forward(model->llama, &args), LLAMA_E_STATE);
  assert_non_null(strstr(llama_error(model->llama), llama_param_at(model->llama, 12)->name));
  test_model_free(model);
}

static void *no_alloc(void *ctx, size_t bytes, uint32_t tag)
{
  (void)ctx;
  (void)bytes;
  (void)tag;
  return NULL;
}

static void test_no_memory_is_reported(void **state)
{
  (void)state;
  char reason[200];
  struct llama_memory memory = {.alloc = no_alloc};
  struct llama *llama = llama_create(&odd, &memory, reason, sizeof reason);
  assert_non_null(llama);
  assert_int_equal(llama_reserve(llama, 1, 4, 1, 0), LLAMA_E_NOMEM);
  assert_null(llama_cache_create(llama, 10));
  llama_destroy(llama);
}

/* ---- gradients ---- */

/* (L(w + h d) - L(w - h d)) / 2h. */
static double difference(struct test_model *model, const struct batch *batch, int64_t seq, uint32_t p, const float *direction, float h)
{
  int64_t n = llama_param_at(model->llama, p)->numel;
  float *saved = malloc((size_t)n * sizeof *saved);
  double loss[2];
  memcpy(saved, model->weight[p], (size_t)n * sizeof *saved);
  for (int side = 0; side < 2; side++) {
    for (int64_t i = 0; i < n; i++)
      model->weight[p][i] = saved[i] + (side == 0 ? h : -h) * direction[i];
    loss[side] = loss_of(model, batch, seq, 0);
  }
  memcpy(model->weight[p], saved, (size_t)n * sizeof *saved);
  free(saved);
  return (loss[0] - loss[1]) / (2.0 * (double)h);
}

/* Along the gradient itself and along a random direction, both of length 1. Richardson: D4 = (4 D(h) - D(2h)) / 3 is left with an h^4
 * error, far below the h^2 error |D(h) - D(2h)| / 3, of which a tenth is allowed. The loss of one token is computed to about
 * 50 u |logit| (48 products of two layers and the head), |logit| < 4; independent over tokens: sqrt(tokens) of them, over h. */
static void check_differences(struct test_model *model, const struct batch *batch, int64_t seq, uint32_t p)
{
  const struct llama_param *param = llama_param_at(model->llama, p);
  const float h = 0.02f;
  float *direction = malloc((size_t)param->numel * sizeof *direction);
  uint32_t state = 11 + p;
  for (int random = 0; random < 2; random++) {
    double squares = 0.0, expected = 0.0;
    for (int64_t i = 0; i < param->numel; i++) {
      direction[i] = random ? test_uniform(&state) : model->grad[p][i];
      squares += (double)direction[i] * (double)direction[i];
    }
    for (int64_t i = 0; i < param->numel; i++) {
      direction[i] = (float)((double)direction[i] / sqrt(squares));
      expected += (double)direction[i] * (double)model->grad[p][i];
    }
    double d1 = difference(model, batch, seq, p, direction, h);
    double d2 = difference(model, batch, seq, p, direction, 2.0f * h);
    double limit = 0.1 * fabs(d1 - d2) / 3.0 + 50.0 * 0x1p-24 * 4.0 * sqrt(BATCH * (double)seq) / (double)h;
    if (!(fabs((4.0 * d1 - d2) / 3.0 - expected) <= limit))
      fail_msg("%s: %.6g by differences, %.6g by backward, limit %.2g", param->name, (4.0 * d1 - d2) / 3.0, expected, limit);
    if (!random && p != 0)
      assert_true(limit < 0.05 * expected); /* the check can fail */
  }
  free(direction);
}

static void run_differences(int tied, int64_t seq)
{
  struct batch batch;
  struct test_model *model = ready_model(&batch, tied);
  (void)loss_of(model, &batch, seq, 1);
  assert_int_equal(llama_backward(model->llama, 1.0), LLAMA_OK);
  for (uint32_t p = 0; p < model->n_params; p++)
    if (!test_model_is_alias(model, p))
      check_differences(model, &batch, seq, p);
  test_model_free(model);
}

static void test_finite_differences(void **state)
{
  (void)state;
  run_differences(0, 5);
  run_differences(1, 5);
  run_differences(0, 17);
  run_differences(1, 17);
}

/* Two backwards without clearing between them hold the sum; loss_factor scales; a null gradient is left alone. */
static void test_gradients_accumulate(void **state)
{
  (void)state;
  struct batch batch;
  for (int tied = 0; tied < 2; tied++) {
    struct test_model *model = ready_model(&batch, tied);
    llama_bind(model->llama, 3, model->weight[3], NULL);
    (void)loss_of(model, &batch, SEQ, 1);
    assert_int_equal(llama_backward(model->llama, 1.0), LLAMA_OK);
    assert_true(isnan(model->grad[3][0]));
    float *first[32];
    for (uint32_t p = 0; p < model->n_params; p++) {
      size_t bytes = (size_t)llama_param_at(model->llama, p)->numel * sizeof(float);
      first[p] = malloc(bytes);
      memcpy(first[p], model->grad[p], bytes);
    }
    (void)loss_of(model, &batch, SEQ, 1);
    assert_int_equal(llama_backward(model->llama, 0.5), LLAMA_OK);
    for (uint32_t p = 0; p < model->n_params; p++) {
      double squares = 0.0, size = 0.0;
      for (int64_t i = 0; p != 3 && i < llama_param_at(model->llama, p)->numel; i++) {
        squares += pow((double)model->grad[p][i] - 1.5 * (double)first[p][i], 2);
        size += pow((double)first[p][i], 2);
      }
      assert_true(sqrt(squares) <= 1e-5 * sqrt(size)); /* rounding of sums of up to 34 terms: 34 u = 2e-6 */
      free(first[p]);
    }
    test_model_free(model);
  }
}

static int always_overwrite(void *ctx, uint32_t param)
{
  (void)ctx;
  (void)param;
  return 0;
}

/* The embedding's share is added to the head's even if the hook would have it overwritten: it is asked once per storage. */
static void test_tied_gradient_is_a_sum_whatever_the_hook_says(void **state)
{
  (void)state;
  struct batch batch;
  struct test_model *model = ready_model(&batch, 1);
  float expected[37 * 24];
  (void)loss_of(model, &batch, SEQ, 1);
  assert_int_equal(llama_backward(model->llama, 1.0), LLAMA_OK);
  memcpy(expected, model->grad[0], sizeof expected);
  const struct llama_hooks hooks = {.grad_adds = always_overwrite};
  llama_set_hooks(model->llama, &hooks);
  (void)loss_of(model, &batch, SEQ, 1);
  assert_int_equal(llama_backward(model->llama, 1.0), LLAMA_OK);
  assert_memory_equal(expected, model->grad[0], sizeof expected);
  /* Storage of its own (gathered shards): each is overwritten, and the two add up. */
  float own[37 * 24];
  memset(own, 0xff, sizeof own);
  llama_bind(model->llama, model->n_params - 1, model->weight[0], own);
  (void)loss_of(model, &batch, SEQ, 1);
  assert_int_equal(llama_backward(model->llama, 1.0), LLAMA_OK);
  for (int i = 0; i < 37 * 24; i++)
    assert_true(fabsf(own[i] + model->grad[0][i] - expected[i]) <= 1e-5f * (1.0f + fabsf(expected[i])));
  test_model_free(model);
}

/* All targets ignored: loss 0, count 0, gradients exactly 0 (not NaN, not skipped). */
static void test_no_counted_target(void **state)
{
  (void)state;
  struct batch batch;
  struct test_model *model = ready_model(&batch, 1);
  for (int i = 0; i < TOKENS; i++)
    batch.targets[i] = -100;
  assert_true(loss_of(model, &batch, SEQ, 1) == 0.0);
  assert_int_equal(llama_backward(model->llama, 0.1), LLAMA_OK);
  assert_true(test_model_grad_norm(model) == 0.0);
  test_model_free(model);
}

/* ---- hooks ---- */

struct trace {
  struct test_model *model;
  char text[4096];
  int fail_at; /* fail when this many hooks have run; 0: never */
  int calls;
};

static int note(struct trace *trace, const char *what, uint32_t index)
{
  size_t used = strlen(trace->text);
  snprintf(trace->text + used, sizeof trace->text - used, "%s%u ", what, index);
  trace->calls++;
  return trace->calls == trace->fail_at ? 42 : 0;
}

static int on_pre_forward(void *ctx, uint32_t unit)
{
  return note(ctx, "f", unit);
}
static int on_post_forward(void *ctx, uint32_t unit)
{
  return note(ctx, "F", unit);
}
static int on_pre_backward(void *ctx, uint32_t unit)
{
  return note(ctx, "b", unit);
}
static int on_post_backward(void *ctx, uint32_t unit)
{
  return note(ctx, "B", unit);
}
static int on_ready(void *ctx, uint32_t param)
{
  return note(ctx, "r", param);
}
static int on_activation(void *ctx, const struct llama_activation *a)
{
  struct trace *trace = ctx;
  assert_int_equal(a->rows, TOKENS);
  assert_int_equal(a->columns, a->point == LLAMA_POINT_UNIT_OUTPUT && a->unit == 3 ? 37 : 24);
  assert_int_equal(a->out_rows, a->rows);
  assert_int_equal(a->out_columns, a->columns);
  if (a->out != a->data)
    memcpy(a->out, a->data, TOKENS * 24 * sizeof *a->data);
  return note(trace, a->backward ? "A" : "a", a->point);
}

static const struct llama_hooks all_hooks = {
    .pre_forward = on_pre_forward,
    .post_forward = on_post_forward,
    .pre_backward = on_pre_backward,
    .grad_ready = on_ready,
    .post_backward = on_post_backward,
    .activation = on_activation,
};

static int forward_and_backward(struct test_model *model, const struct batch *batch)
{
  struct llama_forward_args args = {.ids = batch->ids, .targets = batch->targets, .batch = BATCH, .seq = SEQ, .keep = 1};
  int status = llama_forward(model->llama, &args);
  return status != LLAMA_OK ? status : llama_backward(model->llama, 1.0);
}

static void test_hooks_run_in_order(void **state)
{
  (void)state;
  struct batch batch;
  struct test_model *model = ready_model(&batch, 0);
  struct trace trace = {.model = model};
  struct llama_hooks hooks = all_hooks;
  hooks.ctx = &trace;
  llama_set_hooks(model->llama, &hooks);
  assert_int_equal(forward_and_backward(model, &batch), LLAMA_OK);
  assert_string_equal(trace.text, "f0 a3 a10 F0 f1 a1 a2 a1 a2 a10 F1 f2 a1 a2 a1 a2 a10 F2 f3 a4 a10 F3 "
                                  "b3 a4 A10 r20 A4 r19 B3 "
                                  "b2 A10 A2 r16 a1 r15 r14 A1 r18 A2 r13 a1 r12 r11 r10 A1 r17 B2 "
                                  "b1 A10 A2 r7 a1 r6 r5 A1 r9 A2 r4 a1 r3 r2 r1 A1 r8 B1 "
                                  "b0 A10 A3 r0 B0 ");
  test_model_free(model);
}

struct outputs {
  uint32_t cleared_forward, cleared_backward; /* bit per unit: its output, or the gradient of it, is set to 0 */
  int offered;                                /* outputs of the head */
};

static int clear_output(void *ctx, const struct llama_activation *a)
{
  struct outputs *outputs = ctx;
  size_t bytes = (size_t)(a->rows * a->columns) * sizeof *a->data;
  if (a->out != a->data)
    memcpy(a->out, a->data, bytes);
  if (a->point != LLAMA_POINT_UNIT_OUTPUT)
    return 0;
  outputs->offered += a->unit == 3;
  if ((a->backward ? outputs->cleared_backward : outputs->cleared_forward) >> a->unit & 1)
    memset(a->data, 0, bytes);
  return 0;
}

/* What a hook makes of an output is what the rest computes with, in both directions; logits come in as many pieces as the room has. */
static void test_outputs_of_units_may_be_changed(void **state)
{
  (void)state;
  struct batch batch;
  struct test_model *model = ready_model(&batch, 0);
  struct outputs outputs = {.cleared_forward = 1u << 3};
  struct llama_hooks hooks = {.ctx = &outputs, .grad_adds = always_overwrite, .activation = clear_output};
  int counted = 0;
  for (int i = 0; i < TOKENS; i++)
    counted += batch.targets[i] != -100;
  llama_set_hooks(model->llama, &hooks);
  for (int64_t room = 0; room <= 10; room += 10) { /* in one piece, and in pieces of 10 rows that backward computes again */
    const int pieces = room == 0 ? 1 : (TOKENS + 9) / 10;
    assert_int_equal(llama_reserve(model->llama, BATCH, SEQ, 1, room), LLAMA_OK);
    outputs = (struct outputs){.cleared_forward = 1u << 3};
    assert_true(fabs(loss_of(model, &batch, SEQ, 1) - counted * log(37.0)) < 1e-4);
    assert_int_equal(outputs.offered, pieces);
    assert_int_equal(llama_backward(model->llama, 1.0), LLAMA_OK);
    assert_int_equal(outputs.offered, room == 0 ? 2 * pieces : 3 * pieces);
  }
  outputs = (struct outputs){.cleared_backward = 1u << 1};
  (void)loss_of(model, &batch, SEQ, 1);
  assert_int_equal(llama_backward(model->llama, 1.0), LLAMA_OK);
  for (uint32_t p = 0; p < model->n_params; p++) {
    float most = 0.0f;
    for (int64_t i = 0; i < llama_param_at(model->llama, p)->numel; i++)
      most = fmaxf(most, fabsf(model->grad[p][i]));
    assert_int_equal(most > 0.0f, llama_param_at(model->llama, p)->unit >= 2);
  }
  test_model_free(model);
}

/* Whichever hook fails, its value comes back, nothing runs after it, and the next pass works. */
static void test_a_failing_hook_stops_the_pass(void **state)
{
  (void)state;
  struct batch batch;
  struct test_model *model = ready_model(&batch, 1);
  struct trace trace = {.model = model};
  struct llama_hooks hooks = all_hooks;
  hooks.ctx = &trace;
  llama_set_hooks(model->llama, &hooks);
  assert_int_equal(forward_and_backward(model, &batch), LLAMA_OK);
  int total = trace.calls;
  for (int at = 1; at <= total; at++) {
    trace = (struct trace){.model = model, .fail_at = at};
    assert_int_equal(forward_and_backward(model, &batch), 42);
    assert_int_equal(trace.calls, at);
    assert_true(strlen(llama_error(model->llama)) > 0);
  }
  trace = (struct trace){.model = model};
  assert_int_equal(forward_and_backward(model, &batch), LLAMA_OK);
  test_model_free(model);
}

/* ---- decoding ---- */

/* Tokens one by one, in pieces, and as a whole batch give the same logits. */
static void test_decoding_equals_forward(void **state)
{
  (void)state;
  enum { LONG = 150 };
  struct llama_config config = odd;
  struct test_model *model = test_model_new(&config);
  struct batch unused;
  int32_t ids[LONG];
  float *logits = malloc(LONG * 37 * sizeof *logits);
  float last[37];
  randomise(model, &unused);
  for (int i = 0; i < LONG; i++)
    ids[i] = (i * 7 + i / 5) % 37;
  assert_int_equal(llama_reserve(model->llama, 1, LONG, 0, 0), LLAMA_OK);
  struct llama_forward_args args = {.ids = ids, .batch = 1, .seq = LONG, .logits = logits};
  assert_int_equal(llama_forward(model->llama, &args), LLAMA_OK);
  struct llama_cache *cache = llama_cache_create(model->llama, LONG);
  assert_non_null(cache);
  const int pieces[] = {1, 1, 70, 1, 64, 2, 11};
  int done = 0;
  for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
    assert_int_equal(llama_decode(model->llama, cache, ids + done, pieces[i], last), LLAMA_OK);
    done += pieces[i];
    assert_int_equal(llama_cache_length(cache), done);
    for (int v = 0; v < 37; v++)
      assert_true(fabsf(last[v] - logits[(done - 1) * 37 + v]) <= 2e-4f); /* as for logits of the real checkpoint */
  }
  assert_int_equal(done, LONG);
  assert_int_equal(llama_decode(model->llama, cache, ids, 1, last), LLAMA_E_INVALID); /* full */
  assert_int_equal(llama_decode(model->llama, cache, ids, 0, NULL), LLAMA_E_INVALID);
  assert_null(llama_cache_create(model->llama, 161));
  llama_cache_destroy(cache);
  llama_cache_destroy(NULL);
  free(logits);
  test_model_free(model);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_parameter_table),
      cmocka_unit_test(test_constants_equal_those_of_the_sdk),
      cmocka_unit_test(test_bad_configurations),
      cmocka_unit_test(test_wrong_calls_are_refused),
      cmocka_unit_test(test_no_memory_is_reported),
      cmocka_unit_test(test_finite_differences),
      cmocka_unit_test(test_gradients_accumulate),
      cmocka_unit_test(test_tied_gradient_is_a_sum_whatever_the_hook_says),
      cmocka_unit_test(test_no_counted_target),
      cmocka_unit_test(test_hooks_run_in_order),
      cmocka_unit_test(test_outputs_of_units_may_be_changed),
      cmocka_unit_test(test_a_failing_hook_stops_the_pass),
      cmocka_unit_test(test_decoding_equals_forward),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
