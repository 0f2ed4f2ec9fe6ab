/* hf_read.c - weights from a Hugging Face directory: model.safetensors, or the shards that model.safetensors.index.json lists.
 *
 * All parameters of the model must be there with their shapes and nothing else, or a renamed tensor would leave a layer at its
 * old values without a word. rotary_emb.inv_freq of old writers is computed here and ignored; lm_head of a tied model must equal the
 * embedding.
 */
#include "files.h"
#include "hf.h"
#include "json_text.h"
#include "safetensors.h"
#include "weights.h"

#include <string.h>

#define LARGEST_JSON (64u << 20) /* an index of 100000 shards has a tenth of it */

typedef struct hf {
  ordo_weights base;
  GPtrArray *files;    /* ordo_safetensors */
  GHashTable *file_of; /* tensor name -> ordo_safetensors, not owned */
} hf;

static ordo_status bad(const char *where, const char *why, ordo_problems *problems)
{
  return ordo_problems_push(problems, ORDO_E_INVALID, "E-HF-TENSOR", where, why,
                            "the directory is incomplete or of another model; copy it again", "cannot use the weights");
}

static ordo_status hf_read(ordo_weights *base, const char *name, int64_t first, int64_t count, float *dst, ordo_problems *problems)
{
  ordo_safetensors *file = g_hash_table_lookup(((hf *)base)->file_of, name);
  if (!file) {
    g_autofree char *why = g_strdup_printf("it has no tensor %s", name);
    return bad(base->origin, why, problems);
  }
  return ordo_safetensors_read(file, ordo_safetensors_find(file, name), first, count, dst, problems);
}

/* A tied model whose file has a head nevertheless: it must be the embedding. */
static ordo_status check_tied_head(hf *self, ordo_problems *problems)
{
  enum { AT_ONCE = 65536 };
  int64_t numel = self->base.config.vocab * self->base.config.hidden;
  g_autofree float *a = g_new(float, AT_ONCE), *b = g_new(float, AT_ONCE);
  for (int64_t at = 0; at < numel; at += AT_ONCE) {
    int64_t n = MIN((int64_t)AT_ONCE, numel - at);
    ordo_status status = hf_read(&self->base, "lm_head.weight", at, n, a, problems);
    if (status == ORDO_OK)
      status = hf_read(&self->base, "model.embed_tokens.weight", at, n, b, problems);
    if (status != ORDO_OK)
      return status;
    if (memcmp(a, b, (size_t)n * sizeof *a) != 0)
      return bad(self->base.origin, "tie_word_embeddings is true, but lm_head.weight differs from model.embed_tokens.weight", problems);
  }
  return ORDO_OK;
}

static ordo_status check_param(hf *self, const struct llama_param *param, ordo_problems *problems)
{
  ordo_safetensors *file = g_hash_table_lookup(self->file_of, param->name);
  const ordo_tensor *tensor = file ? ordo_safetensors_find(file, param->name) : NULL;
  g_autofree char *why = NULL;
  if (!tensor) {
    why = g_strdup_printf("tensor %s is missing", param->name);
    return bad(self->base.origin, why, problems);
  }
  if (tensor->ndim != param->ndim || memcmp(tensor->shape, param->shape, param->ndim * sizeof *param->shape) != 0) {
    why = g_strdup_printf("tensor %s has %u dimensions, the first of them %" G_GINT64_FORMAT "; config.json wants [%" G_GINT64_FORMAT
                          "%s%" G_GINT64_FORMAT "]",
                          param->name, tensor->ndim, tensor->ndim ? tensor->shape[0] : 0, param->shape[0], param->ndim > 1 ? ", " : " x ",
                          param->ndim > 1 ? param->shape[1] : 1);
    return bad(self->base.origin, why, problems);
  }
  return ORDO_OK;
}

static ordo_status hf_check(ordo_weights *base, const struct llama *model, ordo_problems *problems)
{
  hf *self = (hf *)base;
  g_autoptr(GHashTable) known = g_hash_table_new(g_str_hash, g_str_equal);
  GHashTableIter iter;
  gpointer name;
  ordo_status status = ORDO_OK;
  for (uint32_t p = 0; p < llama_n_params(model); p++) {
    const struct llama_param *param = llama_param_at(model, p);
    g_hash_table_add(known, (gpointer)param->name);
    if (base->config.tied && strcmp(param->name, "lm_head.weight") == 0)
      continue;
    ordo_status one = check_param(self, param, problems);
    status = status == ORDO_OK ? one : status;
  }
  g_hash_table_iter_init(&iter, self->file_of);
  while (g_hash_table_iter_next(&iter, &name, NULL))
    if (!g_hash_table_contains(known, name) && strcmp(name, "lm_head.weight") != 0 && !g_str_has_suffix(name, "rotary_emb.inv_freq")) {
      g_autofree char *why = g_strdup_printf("tensor %s is not part of a Llama of these sizes", (const char *)name);
      status = bad(base->origin, why, problems);
    }
  if (status == ORDO_OK && base->config.tied && g_hash_table_contains(self->file_of, "lm_head.weight"))
    status = check_tied_head(self, problems);
  return status;
}

static void hf_destroy(ordo_weights *base)
{
  hf *self = (hf *)base;
  g_hash_table_unref(self->file_of);
  g_ptr_array_unref(self->files);
  g_free(base->origin);
  g_free(self);
}

static ordo_status add_file(hf *self, const char *directory, const char *name, ordo_safetensors **added, ordo_problems *problems)
{
  g_autofree char *path = g_build_filename(directory, name, NULL);
  ordo_safetensors *file = NULL;
  ordo_status status = ordo_safetensors_open(path, problems, &file);
  if (status != ORDO_OK)
    return status;
  g_ptr_array_add(self->files, file);
  for (size_t i = 0; i < ordo_safetensors_count(file); i++) {
    const char *tensor = ordo_safetensors_at(file, i)->name;
    if (!g_hash_table_insert(self->file_of, (gpointer)tensor, file)) {
      g_autofree char *why = g_strdup_printf("tensor %s stands in two files", tensor);
      return bad(path, why, problems);
    }
  }
  *added = file;
  return ORDO_OK;
}

/* One entry of weight_map: the file is opened once, and must hold the tensor. */
static ordo_status add_entry(hf *self, const char *directory, const char *index, const char *tensor, JsonNode *value, GHashTable *opened,
                             ordo_problems *problems)
{
  g_autofree char *why = NULL;
  const char *name = JSON_NODE_HOLDS_VALUE(value) && json_node_get_value_type(value) == G_TYPE_STRING ? json_node_get_string(value) : NULL;
  if (!name || !*name || strchr(name, '/') || *name == '.') {
    why = g_strdup_printf("weight_map of %s is no name of a file beside it", tensor);
    return bad(index, why, problems);
  }
  ordo_safetensors *file = g_hash_table_lookup(opened, name);
  if (!file) {
    ordo_status status = add_file(self, directory, name, &file, problems);
    if (status != ORDO_OK)
      return status;
    g_hash_table_insert(opened, (gpointer)name, file);
  }
  if (ordo_safetensors_find(file, tensor))
    return ORDO_OK;
  why = g_strdup_printf("it says that %s is in %s, which does not have it", tensor, name);
  return bad(index, why, problems);
}

static ordo_status add_shards(hf *self, const char *directory, const char *index, ordo_problems *problems)
{
  g_autofree char *text = NULL, *why = NULL;
  g_autoptr(GHashTable) opened = g_hash_table_new(g_str_hash, g_str_equal);
  gsize length = 0;
  ordo_status status = ORDO_OK;
  if (!(text = ordo_file_whole(index, LARGEST_JSON, &length, &why)))
    return ordo_problems_push(problems, ORDO_E_IO, "E-FILE-IO", index, why, "check its permissions", "cannot read the index");
  g_autoptr(JsonNode) root = ordo_json_object(text, length, &why);
  if (!root)
    return bad(index, why, problems);
  JsonNode *map = json_object_get_member(json_node_get_object(root), "weight_map");
  if (!map || !JSON_NODE_HOLDS_OBJECT(map))
    return bad(index, "it has no weight_map", problems);
  g_autoptr(GList) names = json_object_get_members(json_node_get_object(map));
  for (GList *n = names; n && status == ORDO_OK; n = n->next)
    status = add_entry(self, directory, index, n->data, json_object_get_member(json_node_get_object(map), n->data), opened, problems);
  return status;
}

static ordo_status read_config(hf *self, const char *directory, ordo_problems *problems)
{
  g_autofree char *path = g_build_filename(directory, "config.json", NULL), *text = NULL, *why = NULL;
  gsize length = 0;
  if (!(text = ordo_file_whole(path, LARGEST_JSON, &length, &why)))
    return ordo_problems_push(problems, ORDO_E_NOT_FOUND, "E-HF-CONFIG", path, why,
                              "a Hugging Face directory has config.json and model.safetensors", "not a Hugging Face model directory");
  return ordo_hf_config_parse(text, length, path, &self->base.config, &self->base.initializer_range, problems);
}

ordo_status ordo_hf_open(const char *directory, ordo_problems *problems, ordo_weights **weights)
{
  hf *self = g_new0(hf, 1);
  g_autoptr(ordo_weights) base = &self->base;
  g_autofree char *index = g_build_filename(directory, "model.safetensors.index.json", NULL);
  g_autofree char *single = g_build_filename(directory, "model.safetensors", NULL);
  ordo_safetensors *file;
  base->origin = g_strdup(directory);
  base->read = hf_read;
  base->check = hf_check;
  base->destroy = hf_destroy;
  self->files = g_ptr_array_new_with_free_func((GDestroyNotify)ordo_safetensors_close);
  self->file_of = g_hash_table_new(g_str_hash, g_str_equal);
  ordo_status status = read_config(self, directory, problems);
  if (status == ORDO_OK && !g_file_test(single, G_FILE_TEST_EXISTS) && g_file_test(index, G_FILE_TEST_EXISTS))
    status = add_shards(self, directory, index, problems);
  else if (status == ORDO_OK)
    status = add_file(self, directory, "model.safetensors", &file, problems);
  if (status == ORDO_OK)
    *weights = g_steal_pointer(&base);
  return status;
}
