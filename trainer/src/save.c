/* save.c - see save.h. One parameter is whole at a time, so saving needs the memory of the largest one, not of the model. */
#include "save.h"

#include "files.h"
#include "hf.h"
#include "model_tokenizer.h"
#include "safetensors.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

int ordo_save_has_param(const ordo_model *model, const ordo_param *param)
{
  for (uint32_t i = 0; i < param->index && param->tie_group >= 0; i++)
    if (model->params[i]->tie_group == param->tie_group)
      return 0;
  return 1;
}

/* All ranks return an error if one has one. */
static ordo_status agree(ordo_embed *embed, ordo_status status)
{
  const ordo_mesh *mesh = ordo_session_mesh(ordo_embed_session(embed));
  double failed = status != ORDO_OK;
  ordo_status sum = mesh->size > 1 ? ordo_all_reduce(mesh->world, &failed, 1, ORDO_F64, ORDO_SUM, 1.0) : ORDO_OK;
  if (status != ORDO_OK || sum != ORDO_OK)
    return status != ORDO_OK ? status : sum;
  if (failed > 0.0)
    return ordo_fail(ordo_embed_context(embed), ORDO_E_IO, "E-TRAIN-SAVE", "another rank could not write", "saving",
                     "its own error says why", "look at the error of rank 0");
  return ORDO_OK;
}

static float *largest_param(ordo_context *context, const ordo_model *model)
{
  int64_t largest = 1;
  for (uint32_t p = 0; p < model->n_params; p++)
    largest = MAX(largest, model->params[p]->numel);
  float *full = g_try_new(float, (gsize)largest);
  if (!full)
    ordo_fail(context, ORDO_E_NOMEM, "E-TRAIN-MEMORY", "out of memory", "saving", "one whole parameter must fit",
              "use a machine with more memory");
  return full;
}

/* Adapters are part of the layers that they add to, and no tensors of their own. */
static gboolean is_written(ordo_embed *embed, const ordo_param *param, gboolean merged)
{
  return ordo_save_has_param(ordo_embed_model(embed), param) && (!merged || param->index < llama_n_params(ordo_embed_llama(embed)));
}

/* full = base + scale * b a, where the param has an adapter. Collective. */
static ordo_status merge(ordo_embed *embed, const ordo_param *param, float *full)
{
  const ordo_model *model = ordo_embed_model(embed);
  struct llama_adapter_info info;
  if (!llama_adapter_of(ordo_embed_llama(embed), param->index, &info))
    return ORDO_OK;
  int64_t rows = param->shape[0], columns = param->shape[1];
  g_autofree float *a = g_try_new(float, (gsize)(info.rank * columns)), *b = g_try_new(float, (gsize)(rows * info.rank));
  if (!a || !b)
    return ordo_fail(ordo_embed_context(embed), ORDO_E_NOMEM, "E-TRAIN-MEMORY", "out of memory", "saving", "an adapter must fit",
                     "use a machine with more memory");
  ordo_status status = ordo_embed_gather(embed, model->params[info.a], ORDO_GATHER_WEIGHT, a);
  if (status == ORDO_OK)
    status = ordo_embed_gather(embed, model->params[info.b], ORDO_GATHER_WEIGHT, b);
  for (int64_t r = 0; r < rows && status == ORDO_OK; r++)
    for (int64_t k = 0; k < info.rank; k++)
      for (int64_t c = 0; c < columns; c++)
        full[r * columns + c] += (float)info.scale * b[r * info.rank + k] * a[k * columns + c];
  return status;
}

/* Gradients are reduced and not yet unscaled: in a file they have no loss scale. */
static void unscale(ordo_embed *embed, int32_t what, int64_t n, float *full)
{
  const double scale = ordo_session_loss_scale(ordo_embed_session(embed));
  for (int64_t i = 0; what == ORDO_GATHER_GRADIENT && scale != 1.0 && i < n; i++)
    full[i] = (float)((double)full[i] / scale);
}

static ordo_status write_all(ordo_embed *embed, ordo_context *context, ordo_safetensors_writer *writer, int32_t what, gboolean merged,
                             float *full, ordo_problems *problems)
{
  const ordo_model *model = ordo_embed_model(embed);
  ordo_status written = ORDO_OK, status = ORDO_OK;
  for (uint32_t p = 0; p < model->n_params && status == ORDO_OK; p++) {
    if (!is_written(embed, model->params[p], merged))
      continue;
    status = ordo_embed_gather(embed, model->params[p], what, full);
    if (status == ORDO_OK && merged)
      status = merge(embed, model->params[p], full);
    if (status == ORDO_OK)
      unscale(embed, what, model->params[p]->numel, full);
    if (status == ORDO_OK && writer && written == ORDO_OK) /* after a write error the gathers go on, or the other ranks would wait */
      written = ordo_safetensors_writer_write(writer, full, problems);
  }
  return status != ORDO_OK ? status : ordo_problems_to_context(problems, context, written);
}

static ordo_status save_tensors(ordo_embed *embed, const char *path, int32_t what, gboolean merged, ordo_dtype dtype, const char *text)
{
  const ordo_model *model = ordo_embed_model(embed);
  ordo_context *context = ordo_embed_context(embed);
  g_autofree float *full = largest_param(context, model);
  g_autoptr(ordo_safetensors_writer) writer = NULL;
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  ordo_status status = full ? ORDO_OK : ORDO_E_NOMEM;
  if (status == ORDO_OK && ordo_session_mesh(ordo_embed_session(embed))->rank == 0) {
    writer = ordo_safetensors_writer_new(path, dtype);
    for (uint32_t p = 0; p < model->n_params; p++)
      if (is_written(embed, model->params[p], merged))
        ordo_safetensors_writer_declare(writer, model->params[p]->name, model->params[p]->ndim, model->params[p]->shape);
    status = ordo_safetensors_writer_begin(writer, text, &problems);
    ordo_problems_to_context(&problems, context, status);
    g_ptr_array_set_size(problems.records, 0);
  }
  status = agree(embed, status);
  if (status == ORDO_OK)
    status = write_all(embed, context, writer, what, merged, full, &problems);
  if (status == ORDO_OK && writer) {
    status = ordo_safetensors_writer_finish(writer, &problems);
    ordo_problems_to_context(&problems, context, status);
  }
  return agree(embed, status);
}

ordo_status ordo_save_tensors(ordo_embed *embed, const char *path, int32_t what, ordo_dtype dtype, const char *text)
{
  return save_tensors(embed, path, what, FALSE, dtype, text);
}

static ordo_status write_small_files(ordo_embed *embed, const char *directory, ordo_dtype dtype, const char *tokenizer,
                                     ordo_problems *problems)
{
  const struct llama_config *config = llama_get_config(ordo_embed_llama(embed));
  int32_t begin = !*tokenizer ? -1 : strcmp(tokenizer, "bytes") == 0 ? 256 : 1, end = begin < 0 ? -1 : begin + 1;
  g_autofree char *path = g_build_filename(directory, "config.json", NULL);
  g_autofree char *text = ordo_hf_config_text(config, ordo_embed_initializer_range(embed), dtype, begin, end);
  ordo_status status = ordo_file_replace(path, text, strlen(text), problems);
  return status == ORDO_OK ? ordo_model_tokenizer_write(directory, tokenizer, problems) : status;
}

ordo_status ordo_save_model(ordo_embed *embed, const char *directory, ordo_dtype dtype, const char *tokenizer)
{
  ordo_context *context = ordo_embed_context(embed);
  int root = ordo_session_mesh(ordo_embed_session(embed))->rank == 0;
  g_autofree char *temporary = g_strdup_printf("%s.tmp-%d", directory, (int)getpid()); /* differs per rank; only rank 0's is used */
  g_autofree char *tensors = g_build_filename(temporary, "model.safetensors", NULL);
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  ordo_status status = root ? ordo_directory_make(temporary, &problems) : ORDO_OK;
  if (status == ORDO_OK && root)
    status = write_small_files(embed, temporary, dtype, tokenizer, &problems);
  ordo_problems_to_context(&problems, context, status);
  g_ptr_array_set_size(problems.records, 0);
  status = agree(embed, status);
  if (status == ORDO_OK)
    status = save_tensors(embed, tensors, ORDO_GATHER_WEIGHT, TRUE, dtype, NULL);
  if (status == ORDO_OK && root) {
    status = ordo_directory_commit(temporary, directory, &problems);
    ordo_problems_to_context(&problems, context, status);
  }
  if (status != ORDO_OK && root)
    ordo_directory_remove(temporary);
  return agree(embed, status);
}

ordo_status ordo_save_slot_norms(ordo_embed *embed, uint32_t slot, double *norms)
{
  const ordo_model *model = ordo_embed_model(embed);
  g_autofree float *full = largest_param(ordo_embed_context(embed), model);
  ordo_status status = full ? ORDO_OK : ORDO_E_NOMEM;
  for (uint32_t p = 0; p < model->n_params && status == ORDO_OK; p++) {
    double sum = 0.0;
    if (!ordo_save_has_param(model, model->params[p]))
      continue;
    status = ordo_embed_gather(embed, model->params[p], (int32_t)slot, full);
    for (int64_t i = 0; status == ORDO_OK && i < model->params[p]->numel; i++)
      sum += (double)full[i] * (double)full[i];
    norms[p] = sqrt(sum);
  }
  return status;
}
