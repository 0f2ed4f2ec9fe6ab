/* masters.c - weights and gradients between 16 bits and fp32. See apex_amp.h.
 *
 * The model is cast before anything else looks at it, leaf by leaf; masters are made when leaves, placements and weights are final, so a
 * shard gets a master of its own size. As in apex a master starts from the rounded weight, not from what it was rounded from.
 *
 * Padding lies outside of every chunk and may hold anything: it is neither unscaled nor voted about. All loops run over plain arrays
 * without branches, so that the compiler makes vector code of them.
 */
#include "apex_amp.h"

#include <ordo/half_array.h>

#include <string.h>

enum { PIECE = 2048 };

static int is_16_bit(ordo_dtype dtype)
{
  return dtype == ORDO_F16 || dtype == ORDO_BF16;
}

/* ---- arrays ---- */

/* dst = src * factor, piece by piece, so that the second pass finds the piece in cache. */
static void widen(ordo_dtype dtype, const uint16_t *src, int64_t n, float factor, float *dst)
{
  for (int64_t i = 0; i < n; i += PIECE) {
    int64_t part = n - i < PIECE ? n - i : PIECE;
    ordo_half_widen(dtype, src + i, part, dst + i);
    for (int64_t k = i; factor != 1.0f && k < i + part; k++)
      dst[k] *= factor;
  }
}

static int finite_16(ordo_dtype dtype, const uint16_t *x, int64_t n)
{
  const unsigned exponent = dtype == ORDO_F16 ? 0x7c00u : 0x7f80u;
  unsigned bad = 0;
  for (int64_t i = 0; i < n; i++)
    bad |= (x[i] & exponent) == exponent;
  return !bad;
}

static int finite_32(const float *x, int64_t n)
{
  unsigned bad = 0;
  for (int64_t i = 0; i < n; i++)
    bad |= (ordo_bits_of_f32(x[i]) & 0x7f800000u) == 0x7f800000u;
  return !bad;
}

static int finite(ordo_dtype dtype, const void *storage, int64_t first, int64_t n)
{
  if (is_16_bit(dtype))
    return finite_16(dtype, (const uint16_t *)storage + first, n);
  return dtype == ORDO_F32 ? finite_32((const float *)storage + first, n) : 1;
}

/* ---- the model ---- */

/* Handing in a model that was cast already is how two owners of precision begin; apex refuses it in the same words. */
ordo_status amp_check_model(const amp *self)
{
  const ordo_model *model = self->job->model;
  for (uint32_t i = 0; i < model->n_params; i++) {
    const ordo_dtype dtype = model->params[i]->dtype;
    if (is_16_bit(dtype))
      return amp_fail(self->job, ORDO_E_INVALID, "describe the model in fp32 and let the opt level cast it",
                      "parameter '%s' is %s already: apex_amp takes an fp32 model", model->params[i]->name,
                      dtype == ORDO_F16 ? "fp16" : "bf16");
    if (dtype == ORDO_F64) /* it would be neither converted nor unscaled */
      return amp_fail(self->job, ORDO_E_INVALID, "describe the model in fp32, or train it in fp64 without a precision plugin",
                      "parameter '%s' is fp64: apex_amp takes an fp32 model", model->params[i]->name);
  }
  return ORDO_OK;
}

/* A model that marks no norm: its parameters of one dimension are norms (and biases). */
static int marks_norms(const ordo_model *model)
{
  for (uint32_t i = 0; i < model->n_params; i++)
    if (model->params[i]->flags & ORDO_PARAM_NORM)
      return 1;
  return 0;
}

ordo_status amp_convert_model(amp *self)
{
  const ordo_job *job = self->job;
  const ordo_model *model = job->model;
  const int marked = marks_norms(model);
  const uint32_t flags = self->policy.delay_unscale || !self->policy.masters ? ORDO_CONVERT_ADD_LOW : 0;
  if (self->converted)
    return amp_fail(job, ORDO_E_STATE, "this is a defect of the host: a step runs once",
                    "precision.convert_model(apex_amp) was called twice for model '%s'", model->name);
  self->converted = 1;
  for (uint32_t i = 0; self->policy.stored != ORDO_F32 && i < model->n_params; i++) {
    const ordo_param *param = model->params[i];
    int norm = marked ? (param->flags & ORDO_PARAM_NORM) != 0 : param->ndim < 2;
    if ((norm && self->policy.keep_norm) || param->dtype != ORDO_F32)
      continue;
    ordo_status status = job->convert_param(job->ctx, param, self->policy.stored, self->policy.stored, flags);
    if (status != ORDO_OK)
      return status;
  }
  return ORDO_OK;
}

/* ---- masters ---- */

static ordo_status make_master(amp *self, ordo_leaf *leaf)
{
  const ordo_job *job = self->job;
  amp_master *master = &self->masters[self->n_masters];
  const size_t bytes = (size_t)leaf->numel * sizeof(float);
  if (leaf->master != NULL)
    return amp_fail(job, ORDO_E_INVARIANT, "wrap the optimizer once, with one precision plugin",
                    "leaf '%s' has a master already: its optimizer was wrapped before", leaf->name);
  if (leaf->numel > 0 && leaf->data == NULL)
    return amp_fail(job, ORDO_E_INVARIANT, "this is a defect of the host: weights are loaded before precision.wrap_optimizer",
                    "leaf '%s' has no weights to make a master from", leaf->name);
  master->leaf = leaf;
  self->n_masters++;
  if (leaf->numel > 0) {
    /* Both belong to the optimizer: the gradient of a master exists for its step only. */
    master->data = job->alloc(job->ctx, bytes, ORDO_MEM_OPTIMIZER);
    master->grad = job->alloc(job->ctx, bytes, ORDO_MEM_OPTIMIZER);
    if (master->data == NULL || master->grad == NULL)
      return amp_fail(job, ORDO_E_NOMEM,
                      "use more ranks with a sharding strategy, which shards masters as well, or a level without masters",
                      "the fp32 master of '%s' needs 2 * %zu bytes", leaf->name, bytes);
    if (ordo_job_has_data(job))
      widen(leaf->dtype, leaf->data, leaf->numel, 1.0f, master->data);
  }
  return job->set_master(job->ctx, leaf, master->data, master->grad);
}

ordo_status amp_make_masters(amp *self)
{
  const ordo_model *model = self->job->model;
  ordo_status status = ORDO_OK;
  if (!self->policy.masters || model->n_leaves == 0)
    return ORDO_OK;
  self->masters = self->job->alloc(self->job->ctx, model->n_leaves * sizeof *self->masters, ORDO_MEM_OTHER);
  if (self->masters == NULL)
    return amp_fail(self->job, ORDO_E_NOMEM, "free some memory", "no memory for the list of %u masters", model->n_leaves);
  for (uint32_t i = 0; i < model->n_leaves && status == ORDO_OK; i++) {
    ordo_leaf *leaf = model->leaves[i];
    if ((leaf->flags & ORDO_PARAM_REQUIRES_GRAD) && is_16_bit(leaf->dtype))
      status = make_master(self, leaf);
  }
  return status;
}

void amp_free_masters(amp *self)
{
  const ordo_job *job = self->job;
  for (uint32_t i = 0; i < self->n_masters; i++) {
    job->free(job->ctx, self->masters[i].data);
    job->free(job->ctx, self->masters[i].grad);
  }
  job->free(job->ctx, self->masters);
  self->masters = NULL;
  self->n_masters = 0;
}

/* ---- a step ---- */

static void unscale_range(const ordo_leaf *leaf, int64_t first, int64_t n, float inverse)
{
  float *to = leaf->master != NULL && leaf->master->grad != NULL ? leaf->master->grad : NULL;
  if (is_16_bit(leaf->grad_dtype) && to != NULL) {
    widen(leaf->grad_dtype, (const uint16_t *)leaf->grad + first, n, inverse, to + first);
  } else if (is_16_bit(leaf->grad_dtype)) {
    uint16_t *low = (uint16_t *)leaf->grad + first;
    float buffer[PIECE];
    for (int64_t i = 0; i < n && inverse != 1.0f; i += PIECE) {
      int64_t part = n - i < PIECE ? n - i : PIECE;
      widen(leaf->grad_dtype, low + i, part, inverse, buffer);
      ordo_half_narrow(leaf->grad_dtype, buffer, part, low + i);
    }
  } else if (leaf->grad_dtype == ORDO_F32 && (to != NULL || inverse != 1.0f)) {
    const float *from = (const float *)leaf->grad + first;
    float *at = (to != NULL ? to : (float *)leaf->grad) + first;
    for (int64_t i = 0; i < n; i++)
      at[i] = from[i] * inverse;
  }
}

void amp_unscale_gradients(amp *self, float inverse, int *all_finite)
{
  const ordo_model *model = self->job->model;
  for (uint32_t i = 0; ordo_job_has_data(self->job) && i < model->n_leaves; i++) {
    const ordo_leaf *leaf = model->leaves[i];
    if (!(leaf->flags & ORDO_PARAM_REQUIRES_GRAD) || leaf->grad_state != ORDO_GRAD_HELD || leaf->grad == NULL)
      continue;
    for (uint64_t c = 0; c < leaf->placement->n_chunks; c++) {
      const ordo_chunk *chunk = &leaf->placement->chunks[c];
      const int64_t n = ordo_chunk_numel(chunk);
      if (*all_finite) /* before it is overwritten */
        *all_finite = finite(leaf->grad_dtype, leaf->grad, chunk->leaf_offset, n);
      unscale_range(leaf, chunk->leaf_offset, n, inverse);
    }
  }
}

void amp_copy_masters(amp *self)
{
  for (uint32_t i = 0; ordo_job_has_data(self->job) && i < self->n_masters; i++) {
    const amp_master *master = &self->masters[i];
    if (master->leaf->grad_state == ORDO_GRAD_HELD && master->leaf->numel > 0)
      ordo_half_narrow(master->leaf->dtype, master->data, master->leaf->numel, master->leaf->data);
  }
}

const ordo_leaf *amp_first_bad_weight(const amp *self)
{
  const ordo_model *model = self->job->model;
  for (uint32_t i = 0; ordo_job_has_data(self->job) && i < model->n_leaves; i++) {
    const ordo_leaf *leaf = model->leaves[i];
    for (uint64_t c = 0; leaf->opaque == NULL && leaf->data != NULL && c < leaf->placement->n_chunks; c++) {
      const ordo_chunk *chunk = &leaf->placement->chunks[c];
      if (!finite(leaf->dtype, leaf->data, chunk->leaf_offset, ordo_chunk_numel(chunk)))
        return leaf;
    }
  }
  return NULL;
}

/* ---- whole weights ---- */

void amp_read_weight(const ordo_leaf *leaf, int64_t first, int64_t n, float *dst)
{
  const ordo_leaf *source = leaf->master != NULL ? leaf->master : leaf;
  if (is_16_bit(source->dtype))
    widen(source->dtype, (const uint16_t *)source->data + first, n, 1.0f, dst);
  else
    memcpy(dst, (const float *)source->data + first, (size_t)n * sizeof *dst);
}

void amp_write_weight(ordo_leaf *leaf, int64_t first, int64_t n, const float *src)
{
  if (leaf->master != NULL)
    memcpy((float *)leaf->master->data + first, src, (size_t)n * sizeof *src);
  if (is_16_bit(leaf->dtype))
    ordo_half_narrow(leaf->dtype, src, n, (uint16_t *)leaf->data + first);
  else
    memcpy((float *)leaf->data + first, src, (size_t)n * sizeof *src);
}
