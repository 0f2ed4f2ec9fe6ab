/* hf_config.c - config.json of Hugging Face's Llama: from and to struct llama_config.
 *
 * A model that was trained with something this trainer does not compute (scaled RoPE, attention biases, another activation, sliding
 * windows, quantised weights) would load and give wrong numbers, so each such key is refused by name. Both spellings are read:
 * rope_theta and torch_dtype of old writers, rope_parameters and dtype of new ones; the old ones are written.
 */
#include "hf.h"

#include "json_text.h"

#include <string.h>

typedef struct reader {
  JsonObject *object;
  const char *path;
  ordo_problems *problems;
  ordo_status status;
} reader;

static void fail(reader *r, ordo_status status, const char *key, const char *why, const char *next)
{
  ordo_problems_push(r->problems, status, status == ORDO_E_UNSUPPORTED ? "E-HF-UNSUPPORTED" : "E-HF-CONFIG", r->path, why, next,
                     status == ORDO_E_UNSUPPORTED ? "the model needs %s, which this trainer does not compute" : "%s cannot be used", key);
  r->status = r->status == ORDO_OK ? status : r->status;
}

static JsonNode *member(const reader *r, const char *key)
{
  JsonNode *node = json_object_get_member(r->object, key);
  return node && !JSON_NODE_HOLDS_NULL(node) ? node : NULL;
}

static char *shown(JsonNode *node)
{
  g_autofree char *text = json_to_string(node, FALSE);
  return g_strndup(text, 120);
}

static int64_t integer(reader *r, const char *key, int64_t fallback, gboolean required)
{
  JsonNode *node = member(r, key);
  if (!node && !required)
    return fallback;
  if (node && JSON_NODE_HOLDS_VALUE(node) && json_node_get_value_type(node) == G_TYPE_INT64 && json_node_get_int(node) > 0)
    return json_node_get_int(node);
  fail(r, ORDO_E_INVALID, key, node ? "it must be a whole number above 0" : "it is missing",
       "compare config.json with that of a Llama model");
  return fallback;
}

static double real(reader *r, JsonObject *object, const char *key, double fallback)
{
  JsonNode *node = object ? json_object_get_member(object, key) : NULL;
  if (!node || JSON_NODE_HOLDS_NULL(node))
    return fallback;
  if (JSON_NODE_HOLDS_VALUE(node) && (json_node_get_value_type(node) == G_TYPE_INT64 || json_node_get_value_type(node) == G_TYPE_DOUBLE))
    return json_node_get_double(node); /* converts integers */
  fail(r, ORDO_E_INVALID, key, "it must be a number", NULL);
  return fallback;
}

static gboolean boolean(reader *r, const char *key)
{
  JsonNode *node = member(r, key);
  if (node && (!JSON_NODE_HOLDS_VALUE(node) || json_node_get_value_type(node) != G_TYPE_BOOLEAN))
    fail(r, ORDO_E_INVALID, key, "it must be true or false", NULL);
  return node && JSON_NODE_HOLDS_VALUE(node) && json_node_get_boolean(node);
}

static gboolean is_text(JsonNode *node, const char *text)
{
  return node && JSON_NODE_HOLDS_VALUE(node) && json_node_get_value_type(node) == G_TYPE_STRING &&
         strcmp(json_node_get_string(node), text) == 0;
}

/* Refuses keys that would change the numbers. */
static void check_supported(reader *r)
{
  static const char *const must_be_false[] = {"attention_bias", "mlp_bias", NULL};
  static const char *const must_be_absent[] = {"rope_scaling", "sliding_window", "quantization_config", "num_local_experts", NULL};
  JsonNode *node;
  for (int i = 0; must_be_false[i]; i++)
    if (boolean(r, must_be_false[i])) {
      g_autofree char *key = g_strdup_printf("%s = true", must_be_false[i]);
      fail(r, ORDO_E_UNSUPPORTED, key, "linear layers here have no bias", "use a model without biases");
    }
  for (int i = 0; must_be_absent[i]; i++) {
    node = member(r, must_be_absent[i]);
    JsonNode *type = node && JSON_NODE_HOLDS_OBJECT(node) ? json_object_get_member(json_node_get_object(node), "rope_type") : NULL;
    if (!node || is_text(type, "default"))
      continue;
    g_autofree char *value = shown(node);
    fail(r, ORDO_E_UNSUPPORTED, must_be_absent[i], value, "use a model without it");
  }
  node = member(r, "hidden_act");
  if (node && !is_text(node, "silu")) {
    g_autofree char *value = shown(node);
    fail(r, ORDO_E_UNSUPPORTED, "hidden_act", value, "the activation must be silu");
  }
  node = member(r, "model_type");
  if (!is_text(node, "llama")) {
    g_autofree char *value = node ? shown(node) : g_strdup("it is missing");
    fail(r, ORDO_E_UNSUPPORTED, "model_type", value, "only model_type llama is computed");
  }
}

static double rope_theta(reader *r)
{
  JsonNode *node = member(r, "rope_parameters");
  JsonObject *object = node && JSON_NODE_HOLDS_OBJECT(node) ? json_node_get_object(node) : NULL;
  double theta = real(r, r->object, "rope_theta", 10000.0);
  if (object && json_object_has_member(object, "rope_type") && !is_text(json_object_get_member(object, "rope_type"), "default")) {
    g_autofree char *value = shown(node);
    fail(r, ORDO_E_UNSUPPORTED, "rope_parameters", value, "rope_type must be default");
  }
  return real(r, object, "rope_theta", theta);
}

ordo_status ordo_hf_config_parse(const char *text, size_t length, const char *path, struct llama_config *config, double *initializer_range,
                                 ordo_problems *problems)
{
  g_autofree char *why = NULL;
  char reason[200];
  g_autoptr(JsonNode) root = ordo_json_object(text, length, &why);
  if (!root)
    return ordo_problems_push(problems, ORDO_E_INVALID, "E-HF-CONFIG", path, why, "the file is damaged; copy it again",
                              "config.json cannot be read");
  reader r = {json_node_get_object(root), path, problems, ORDO_OK};
  check_supported(&r);
  config->hidden = integer(&r, "hidden_size", 1, TRUE);
  config->intermediate = integer(&r, "intermediate_size", 1, TRUE);
  config->layers = integer(&r, "num_hidden_layers", 1, TRUE);
  config->heads = integer(&r, "num_attention_heads", 1, TRUE);
  config->kv_heads = integer(&r, "num_key_value_heads", config->heads, FALSE);
  config->head_dim = integer(&r, "head_dim", config->hidden / config->heads, FALSE);
  config->vocab = integer(&r, "vocab_size", 1, TRUE);
  config->max_positions = integer(&r, "max_position_embeddings", 2048, FALSE);
  config->rms_eps = real(&r, r.object, "rms_norm_eps", 1e-6);
  config->rope_theta = rope_theta(&r);
  config->tied = boolean(&r, "tie_word_embeddings");
  *initializer_range = real(&r, r.object, "initializer_range", 0.02);
  if (r.status == ORDO_OK && llama_config_check(config, reason, sizeof reason))
    fail(&r, ORDO_E_INVALID, "the model's sizes", reason, "compare config.json with that of a Llama model");
  return r.status;
}

static void put_real(GString *text, const char *key, double value)
{
  char buffer[G_ASCII_DTOSTR_BUF_SIZE];
  g_ascii_dtostr(buffer, sizeof buffer, value);
  for (int digits = 1; digits <= 17; digits++) { /* the shortest text that reads back as the same number */
    char format[8];
    g_snprintf(format, sizeof format, "%%.%dg", digits);
    g_ascii_formatd(buffer, sizeof buffer, format, value);
    if (g_ascii_strtod(buffer, NULL) == value)
      break;
  }
  g_string_append_printf(text, "  \"%s\": %s%s,\n", key, buffer, strpbrk(buffer, ".e") ? "" : ".0");
}

static void put_integer(GString *text, const char *key, int64_t value)
{
  g_string_append_printf(text, "  \"%s\": %" G_GINT64_FORMAT ",\n", key, value);
}

char *ordo_hf_config_text(const struct llama_config *config, double initializer_range, ordo_dtype dtype, int32_t begin, int32_t end)
{
  GString *text = g_string_new("{\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"attention_bias\": false,\n");
  if (begin >= 0)
    put_integer(text, "bos_token_id", begin);
  if (end >= 0)
    put_integer(text, "eos_token_id", end);
  put_integer(text, "head_dim", config->head_dim);
  g_string_append(text, "  \"hidden_act\": \"silu\",\n");
  put_integer(text, "hidden_size", config->hidden);
  put_real(text, "initializer_range", initializer_range);
  put_integer(text, "intermediate_size", config->intermediate);
  put_integer(text, "max_position_embeddings", config->max_positions);
  g_string_append(text, "  \"mlp_bias\": false,\n  \"model_type\": \"llama\",\n");
  put_integer(text, "num_attention_heads", config->heads);
  put_integer(text, "num_hidden_layers", config->layers);
  put_integer(text, "num_key_value_heads", config->kv_heads);
  put_real(text, "rms_norm_eps", config->rms_eps);
  g_string_append(text, "  \"rope_scaling\": null,\n");
  put_real(text, "rope_theta", config->rope_theta);
  g_string_append_printf(text, "  \"tie_word_embeddings\": %s,\n", config->tied ? "true" : "false");
  g_string_append_printf(text, "  \"torch_dtype\": \"%s\",\n", dtype == ORDO_BF16 ? "bfloat16" : dtype == ORDO_F16 ? "float16" : "float32");
  g_string_append_printf(text, "  \"vocab_size\": %" G_GINT64_FORMAT "\n}\n", config->vocab);
  return g_string_free(text, FALSE);
}
