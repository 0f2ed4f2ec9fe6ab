/* test_golden_inference.c - logits, losses, every intermediate and greedy decoding of a real checkpoint against numbers from
 * PyTorch (tolerances: README of the golden directory). Skipped without the directory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "golden_model.h"
#include "llama_model.h"

/* Activations have no tolerance of their own in the README; logits, one product further, have 2e-4. */
static const double logits_tolerance = 2e-4;

static int32_t *inference_ids(const char *dir, int64_t *n)
{
  gsize size = 0;
  g_autofree uint16_t *raw = golden_bytes(dir, "inference/ids.u16.bin", &size);
  int32_t *ids = g_new(int32_t, size / 2);
  *n = (int64_t)(size / 2);
  for (gsize i = 0; i < size / 2; i++)
    ids[i] = raw[i];
  return ids;
}

static void test_logits_and_losses(void **state)
{
  (void)state;
  g_autofree char *dir = golden_dir();
  int64_t n = 0;
  g_autofree int32_t *ids = inference_ids(dir, &n);
  struct test_model *model = golden_model_new(dir, 2, n / 2, 0);
  int64_t vocab = llama_get_config(model->llama)->vocab;
  g_autofree int32_t *targets = g_new(int32_t, (gsize)n);
  g_autofree float *logits = g_new(float, (gsize)(n * vocab));
  g_autofree float *nll = g_new(float, (gsize)n);
  for (int64_t i = 0; i < n; i++)
    targets[i] = (i + 1) % (n / 2) == 0 ? -100 : ids[i + 1];
  struct llama_forward_args args = {.ids = ids, .targets = targets, .batch = 2, .seq = n / 2, .nll = nll, .logits = logits};
  assert_int_equal(llama_forward(model->llama, &args), LLAMA_OK);
  assert_int_equal(args.count, n - 2);

  struct golden_tensors *golden = golden_tensors_open(dir, "inference/logits.safetensors");
  int64_t numel = 0;
  const float *expected = golden_tensor(golden, "logits", &numel);
  assert_int_equal(numel, n * vocab);
  double worst = worst_difference(numel, logits, expected);
  print_message("logits: worst difference %.3g of %.3g\n", worst, logits_tolerance);
  assert_true(worst <= logits_tolerance);
  golden_tensors_close(golden);

  g_autoptr(JsonParser) parser = golden_json(dir, "inference/logits.json");
  JsonArray *rows = json_object_get_array_member(golden_root(parser), "nll");
  for (int64_t s = 0; s < 2; s++) {
    g_autofree double *row = golden_numbers(json_array_get_array_element(rows, (guint)s));
    for (int64_t t = 0; t < n / 2 - 1; t++)
      assert_true(fabs(row[t] - (double)nll[s * n / 2 + t]) <= logits_tolerance);
  }
  test_model_free(model);
}

/* Compares `actual`, [tokens, heads * width], with golden [heads, tokens, width]. */
static void check_heads(const struct golden_tensors *golden, const char *name, int64_t heads, int64_t width, const float *actual)
{
  int64_t numel = 0;
  const float *expected = golden_tensor(golden, name, &numel);
  int64_t tokens = numel / heads / width;
  for (int64_t h = 0; h < heads; h++)
    for (int64_t t = 0; t < tokens; t++)
      if (worst_difference(width, expected + (h * tokens + t) * width, actual + (t * heads + h) * width) > logits_tolerance)
        fail_msg("%s differs at head %d, token %d", name, (int)h, (int)t);
}

static void check(const struct golden_tensors *golden, const char *name, const float *actual)
{
  int64_t numel = 0;
  const float *expected = golden_tensor(golden, name, &numel);
  double worst = worst_difference(numel, actual, expected);
  if (worst > logits_tolerance)
    fail_msg("%s differs by %g", name, worst);
}

static void check_layer(const struct golden_tensors *golden, struct llama *llama, int64_t layer, int64_t tokens)
{
  const struct llama_config *c = &llama->config;
  const struct layer_buffers *b = &llama->room.layers[layer];
  g_autofree float *scratch = g_new(float, (gsize)(tokens * (c->hidden + c->intermediate)));
  const char *names[] = {"input_layernorm", "q_rope", "k_rope", "v", "attn", "after_attn", "post_attention_layernorm", "mlp_act", "out"};
  char name[9][64];
  for (int i = 0; i < 9; i++)
    g_snprintf(name[i], sizeof name[i], "layer%d.%s", (int)layer, names[i]);
  llama_norm_again(llama, llama_block_unit(layer), BLOCK_INPUT_NORM, tokens, b->x, b->inv_in, scratch);
  check(golden, name[0], scratch);
  check_heads(golden, name[1], c->heads, c->head_dim, b->q);
  check_heads(golden, name[2], c->kv_heads, c->head_dim, b->k);
  check_heads(golden, name[3], c->kv_heads, c->head_dim, b->v);
  check(golden, name[4], b->attn);
  check(golden, name[5], b->mid);
  llama_norm_again(llama, llama_block_unit(layer), BLOCK_POST_NORM, tokens, b->mid, b->inv_post, scratch);
  check(golden, name[6], scratch);
  llama->kernels->swiglu_forward((size_t)(tokens * c->intermediate), b->gate, b->up, scratch);
  check(golden, name[7], scratch);
  check(golden, name[8], b->out);
}

static void test_activations(void **state)
{
  (void)state;
  g_autofree char *dir = golden_dir();
  int64_t n = 0;
  const int64_t tokens = 16;
  g_autofree int32_t *ids = inference_ids(dir, &n);
  struct test_model *model = golden_model_new(dir, 1, tokens, 1);
  struct llama_forward_args args = {.ids = ids + n / 2, .batch = 1, .seq = tokens};
  assert_int_equal(llama_forward(model->llama, &args), LLAMA_OK);
  struct golden_tensors *golden = golden_tensors_open(dir, "inference/activations.safetensors");
  check(golden, "embed", model->llama->room.layers[0].x);
  for (int64_t layer = 0; layer < llama_get_config(model->llama)->layers; layer++)
    check_layer(golden, model->llama, layer, tokens);
  check(golden, "final_norm", model->llama->room.pass.norm);
  golden_tensors_close(golden);
  test_model_free(model);
}

/* Order, names and shapes are what the sharding numbers count on. */
static void test_definition_order(void **state)
{
  (void)state;
  g_autofree char *dir = golden_dir();
  g_autoptr(JsonParser) parser = golden_json(dir, "sharding/stories260k.json");
  JsonArray *expected = json_object_get_array_member(golden_root(parser), "parameters_in_definition_order");
  struct test_model *model = golden_model_new(dir, 1, 1, 0);
  guint n = json_array_get_length(expected);
  assert_int_equal(n + 1, model->n_params); /* the tied head is a parameter here */
  for (guint p = 0; p < n; p++) {
    JsonObject *entry = json_array_get_object_element(expected, p);
    JsonArray *shape = json_object_get_array_member(entry, "shape");
    const struct llama_param *param = llama_param_at(model->llama, p);
    assert_string_equal(param->name, json_object_get_string_member(entry, "name"));
    assert_int_equal(param->numel, json_object_get_int_member(entry, "numel"));
    assert_int_equal(param->ndim, json_array_get_length(shape));
    assert_int_equal(param->shape[0], json_array_get_int_element(shape, 0));
  }
  test_model_free(model);
}

static int32_t best_id(int64_t vocab, const float *logits)
{
  int64_t best = 0;
  for (int64_t i = 1; i < vocab; i++)
    best = logits[i] > logits[best] ? i : best;
  return (int32_t)best;
}

/* No training: the sum of losses over a whole data set, against fp64. */
static void check_eval(const char *dir, JsonObject *root, const char *name)
{
  JsonObject *expected = json_object_get_object_member(root, name);
  const int64_t seq = 64, batch = 8;
  gsize size = 0;
  g_autofree char *file = g_strdup_printf("data/%s.ids.u16.bin", name);
  g_autofree uint16_t *raw = golden_bytes(dir, file, &size);
  int64_t windows = ((int64_t)(size / 2) - 1) / seq;
  struct test_model *model = golden_model_new(dir, batch, seq, 0);
  g_autofree int32_t *ids = g_new(int32_t, size / 2);
  double sum = 0.0;
  int64_t count = 0;
  for (gsize i = 0; i < size / 2; i++)
    ids[i] = raw[i];
  for (int64_t w = 0; w < windows; w += batch) {
    struct llama_forward_args args = {.ids = ids + w * seq, .targets = ids + w * seq + 1, .batch = MIN(batch, windows - w), .seq = seq};
    assert_int_equal(llama_forward(model->llama, &args), LLAMA_OK);
    sum += args.loss_sum;
    count += args.count;
  }
  assert_int_equal(count, json_object_get_int_member(expected, "n_tokens"));
  double limit = golden_number(json_object_get_object_member(root, "tolerance"), "mean_rel");
  assert_true(fabs(sum / (double)count / golden_number(expected, "mean") - 1.0) <= limit);
  test_model_free(model);
}

static void test_evaluation(void **state)
{
  (void)state;
  g_autofree char *dir = golden_dir();
  g_autoptr(JsonParser) parser = golden_json(dir, "inference/eval.json");
  check_eval(dir, golden_root(parser), "text");
  check_eval(dir, golden_root(parser), "random");
}

static void check_greedy(const char *dir, const char *member)
{
  g_autoptr(JsonParser) parser = golden_json(dir, "inference/greedy.json");
  JsonObject *text = json_object_get_object_member(golden_root(parser), member);
  JsonArray *prompt = json_object_get_array_member(text, "prompt_ids");
  JsonArray *expected = json_object_get_array_member(text, "generated");
  struct test_model *model = golden_model_new(dir, 1, 1, 0);
  int64_t vocab = llama_get_config(model->llama)->vocab;
  g_autofree float *logits = g_new(float, (gsize)vocab);
  guint n_prompt = json_array_get_length(prompt);
  g_autofree int32_t *ids = g_new(int32_t, n_prompt);
  for (guint i = 0; i < n_prompt; i++)
    ids[i] = (int32_t)json_array_get_int_element(prompt, i);
  struct llama_cache *cache = llama_cache_create(model->llama, llama_get_config(model->llama)->max_positions);
  assert_non_null(cache);
  assert_int_equal(llama_decode(model->llama, cache, ids, n_prompt, logits), LLAMA_OK);
  for (guint i = 0; i < json_array_get_length(expected); i++) {
    int32_t id = best_id(vocab, logits);
    assert_int_equal(id, json_array_get_int_element(expected, i));
    assert_int_equal(llama_decode(model->llama, cache, &id, 1, logits), LLAMA_OK);
  }
  llama_cache_destroy(cache);
  test_model_free(model);
}

static void test_greedy_decoding(void **state)
{
  (void)state;
  g_autofree char *dir = golden_dir();
  g_autoptr(JsonParser) parser = golden_json(dir, "inference/greedy.json");
  g_autoptr(GList) members = json_object_get_members(golden_root(parser));
  int checked = 0;
  for (GList *member = members; member != NULL; member = member->next) {
    if (!JSON_NODE_HOLDS_OBJECT(json_object_get_member(golden_root(parser), member->data)))
      continue;
    check_greedy(dir, member->data);
    checked++;
  }
  assert_true(checked >= 2);
}

int main(void)
{
  g_autofree char *dir = golden_dir();
  if (dir == NULL)
    return 77; /* meson: skipped; the reason is printed */
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_logits_and_losses), cmocka_unit_test(test_activations),      cmocka_unit_test(test_evaluation),
      cmocka_unit_test(test_greedy_decoding),   cmocka_unit_test(test_definition_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
