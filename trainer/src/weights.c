/* weights.c - see weights.h: choosing the source, cutting chunks into contiguous reads, and fresh weights. */
#include "weights.h"

#include "files.h"
#include "hf.h"
#include "random.h"

#include <string.h>

#define LARGEST_CONFIG (16 << 20)

/* People also give a file of the model's directory, or the directory of a run: where the model is then, null if `path` is no such thing. */
static char *directory_meant(const char *path)
{
  g_autofree char *config = g_build_filename(path, "config.json", NULL), *inner = g_build_filename(path, "model", NULL),
                  *of_run = g_build_filename(inner, "config.json", NULL);
  if (g_file_test(path, G_FILE_TEST_IS_DIR))
    return !g_file_test(config, G_FILE_TEST_EXISTS) && g_file_test(of_run, G_FILE_TEST_EXISTS) ? g_steal_pointer(&inner) : NULL;
  return g_str_has_suffix(path, ".safetensors") || g_str_has_suffix(path, ".json") ? g_path_get_dirname(path) : NULL;
}

ordo_status ordo_weights_open(const char *path, ordo_problems *problems, ordo_weights **weights)
{
  if (!g_file_test(path, G_FILE_TEST_EXISTS))
    return ordo_problems_push(problems, ORDO_E_NOT_FOUND, "E-MODEL-PATH", path, "there is no such file or directory",
                              "give a Hugging Face directory (config.json and model.safetensors) or a llama2.c .bin",
                              "cannot read the model");
  g_autofree char *directory = directory_meant(path), *next = NULL;
  if (directory) {
    next = g_strdup_printf("give the directory: --model %s", directory);
    return ordo_problems_push(problems, ORDO_E_INVALID, "E-MODEL-PATH", path,
                              "a model is a Hugging Face directory (config.json and model.safetensors) or a llama2.c .bin", next,
                              "the path leads beside a model");
  }
  return g_file_test(path, G_FILE_TEST_IS_DIR) ? ordo_hf_open(path, problems, weights) : ordo_llama2c_open(path, problems, weights);
}

void ordo_weights_free(ordo_weights *weights)
{
  if (weights)
    weights->destroy(weights);
}

/* RECT: one read per innermost run of elements. */
static ordo_status read_rectangle(ordo_weights *weights, const ordo_chunk *chunk, float *dst, ordo_problems *problems)
{
  const ordo_param *param = chunk->param;
  uint32_t n = param->ndim;
  int64_t index[ORDO_MAX_DIMS] = {0}, rows = 1, run = n ? chunk->extent[n - 1] : 1;
  ordo_status status = ORDO_OK;
  for (uint32_t d = 0; d + 1 < n; d++)
    rows *= chunk->extent[d];
  if (n >= 2 && run == param->shape[n - 1]) { /* whole rows of the last two dimensions are contiguous */
    run *= chunk->extent[n - 2];
    rows = chunk->extent[n - 2] ? rows / chunk->extent[n - 2] : 0;
    n--;
  }
  for (int64_t row = 0; row < rows && run > 0 && status == ORDO_OK; row++, dst += run) {
    int64_t first = 0;
    for (uint32_t d = 0; d < param->ndim; d++)
      first = first * param->shape[d] + chunk->offset[d] + (d + 1 < n ? index[d] : 0);
    status = weights->read(weights, param->name, first, run, dst, problems);
    for (uint32_t d = n > 1 ? n - 1 : 0; d-- > 0;) {
      if (++index[d] < chunk->extent[d])
        break;
      index[d] = 0;
    }
  }
  return status;
}

ordo_status ordo_weights_read_chunk(ordo_weights *weights, const ordo_chunk *chunk, float *dst, ordo_problems *problems)
{
  if (chunk->kind == ORDO_CHUNK_FLAT)
    return chunk->end > chunk->begin ? weights->read(weights, chunk->param->name, chunk->begin, chunk->end - chunk->begin, dst, problems)
                                     : ORDO_OK;
  return read_rectangle(weights, chunk, dst, problems);
}

typedef struct fresh {
  ordo_weights base;
  uint64_t seed;
} fresh;

static ordo_status fresh_read(ordo_weights *self, const char *name, int64_t first, int64_t count, float *dst, ordo_problems *problems)
{
  (void)problems;
  if (g_str_has_suffix(name, "norm.weight")) {
    for (int64_t i = 0; i < count; i++)
      dst[i] = 1.0f;
    return ORDO_OK;
  }
  ordo_random_normal(ordo_random_key(((fresh *)self)->seed, name), first, count, self->initializer_range, dst);
  return ORDO_OK;
}

static void fresh_destroy(ordo_weights *self)
{
  g_free(self->origin);
  g_free(self);
}

ordo_weights *ordo_weights_fresh(const struct llama_config *config, uint64_t seed, double range)
{
  fresh *self = g_new0(fresh, 1);
  self->base.config = *config;
  self->base.origin = g_strdup_printf("fresh weights of seed %" G_GUINT64_FORMAT, seed);
  self->base.initializer_range = range;
  self->base.read = fresh_read;
  self->base.destroy = fresh_destroy;
  self->seed = seed;
  return &self->base;
}

ordo_status ordo_weights_describe(const char *path, ordo_problems *problems, ordo_weights **weights)
{
  gboolean is_directory = g_file_test(path, G_FILE_TEST_IS_DIR);
  g_autofree char *config = is_directory ? g_build_filename(path, "config.json", NULL) : g_strdup(path), *text = NULL, *why = NULL;
  struct llama_config described;
  double range = 0.0;
  gsize length = 0;
  if (!g_file_test(config, G_FILE_TEST_EXISTS) || !g_str_has_suffix(config, ".json"))
    return ordo_weights_open(path, problems, weights);
  if (!(text = ordo_file_whole(config, LARGEST_CONFIG, &length, &why)))
    return ordo_problems_push(problems, ORDO_E_IO, "E-HF-CONFIG", config, why, "give another model", "cannot read the configuration");
  ordo_status status = ordo_hf_config_parse(text, length, config, &described, &range, problems);
  if (status != ORDO_OK)
    return status;
  *weights = ordo_weights_fresh(&described, 0, range);
  g_free((*weights)->origin);
  (*weights)->origin = g_strdup(config);
  return ORDO_OK;
}
