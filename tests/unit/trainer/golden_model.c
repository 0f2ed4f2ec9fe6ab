/* golden_model.c - see golden_model.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "golden_model.h"

static struct llama_config read_config(const char *dir)
{
  g_autoptr(JsonParser) parser = golden_json(dir, "model/hf/config.json");
  JsonObject *root = golden_root(parser);
  struct llama_config config = {
      .vocab = json_object_get_int_member(root, "vocab_size"),
      .hidden = json_object_get_int_member(root, "hidden_size"),
      .intermediate = json_object_get_int_member(root, "intermediate_size"),
      .layers = json_object_get_int_member(root, "num_hidden_layers"),
      .heads = json_object_get_int_member(root, "num_attention_heads"),
      .kv_heads = json_object_get_int_member(root, "num_key_value_heads"),
      .max_positions = json_object_get_int_member(root, "max_position_embeddings"),
      .rms_eps = golden_number(root, "rms_norm_eps"),
      .rope_theta = golden_number(root, "rope_theta"),
      .tied = json_object_get_boolean_member(root, "tie_word_embeddings"),
  };
  config.head_dim = config.hidden / config.heads;
  return config;
}

struct test_model *golden_model_new(const char *dir, int64_t batch, int64_t seq, int train)
{
  struct llama_config config = read_config(dir);
  struct test_model *model = test_model_new(&config);
  struct golden_tensors *weights = golden_tensors_open(dir, "model/hf/model.safetensors");
  for (uint32_t p = 0; p < model->n_params; p++) {
    const struct llama_param *param = llama_param_at(model->llama, p);
    int64_t numel = 0;
    if (test_model_is_alias(model, p))
      continue;
    const float *data = golden_tensor(weights, param->name, &numel);
    assert_int_equal(numel, param->numel);
    memcpy(model->weight[p], data, (size_t)numel * sizeof(float));
  }
  golden_tensors_close(weights);
  assert_int_equal(llama_reserve(model->llama, batch, seq, train, 0), LLAMA_OK);
  return model;
}

double worst_difference(int64_t n, const float *a, const float *b)
{
  double worst = 0.0;
  for (int64_t i = 0; i < n; i++) {
    double difference = fabs((double)a[i] - (double)b[i]);
    worst = isnan(difference) ? INFINITY : fmax(worst, difference);
  }
  return worst;
}
