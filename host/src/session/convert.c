/* convert.c - element types of parameters: the conversion that a precision plugin asks for.
 *
 * A param, its tie group and its leaf change type together, before any strategy or optimizer has seen them. Storage that exists is copied
 * into storage of the new type, rounded to nearest even, and what the host had allocated for it is freed before the next leaf is converted:
 * at the peak a set-up holds the fp32 weights and one leaf more. A set-up that fails later is not gone on with, so nobody needs them back.
 * Storage that does not exist yet (the plan loads weights after sharding) is made in the new type by weights.c.
 *
 * Guarded against: an embedder that would read 16-bit numbers as fp32. It must say that it can compute with them (ordo_embedder.convert).
 */
#include "session.h"

#include <ordo/half_array.h>

#include <string.h>

gboolean ordo_convert_knows(ordo_dtype dtype)
{
  return dtype == ORDO_F32 || dtype == ORDO_F16 || dtype == ORDO_BF16;
}

void ordo_convert_widen(ordo_dtype dtype, const void *src, int64_t n, float *dst)
{
  if (dtype == ORDO_BF16 || dtype == ORDO_F16)
    ordo_half_widen(dtype, src, n, dst);
  else if (dtype == ORDO_F32)
    memcpy(dst, src, (size_t)n * sizeof *dst);
  else
    for (int64_t i = 0; i < n; i++)
      dst[i] = (float)((const double *)src)[i];
}

void ordo_convert_narrow(ordo_dtype dtype, const float *src, int64_t n, void *dst)
{
  if (dtype == ORDO_BF16 || dtype == ORDO_F16)
    ordo_half_narrow(dtype, src, n, dst);
  else if (dtype == ORDO_F32)
    memcpy(dst, src, (size_t)n * sizeof *src);
  else
    for (int64_t i = 0; i < n; i++)
      ((double *)dst)[i] = (double)src[i];
}

static ordo_status refuse(ordo_instance *instance, ordo_status status, const char *code, const char *name, const char *why,
                          const char *next)
{
  g_autofree char *where =
      g_strdup_printf("plugin '%s', %s", instance->plugin->id, instance->session->where ? instance->session->where : "outside of a step");
  return ordo_errors_push(ordo_session_errors(instance->session), status, code, where, why, next,
                          "the elements of '%s' cannot be converted", name);
}

static ordo_status check(ordo_instance *instance, const ordo_param_record *root, ordo_dtype dtype, ordo_dtype grad_dtype)
{
  const ordo_session *session = instance->session;
  const ordo_embedder *embedder = &session->embedder;
  const ordo_leaf *leaf = root->param.leaf;
  static const char author[] = "this is a defect of the plugin: report it to its author with this text";
  if (!session->node || (session->node->step != ORDO_STEP_CONVERT_MODEL && session->node->step != ORDO_STEP_INITIALIZE) ||
      session->node->provider != (int)instance->provider)
    return refuse(instance, ORDO_E_STATE, "E-JOB-ARGUMENT", root->param.name,
                  "convert_param belongs into the plugin's own precision.convert_model or precision.initialize", author);
  if (!ordo_convert_knows(dtype) || !ordo_convert_knows(grad_dtype))
    return refuse(instance, ORDO_E_INVALID, "E-JOB-ARGUMENT", root->param.name, "the types are f32, f16 and bf16", author);
  if (!leaf || leaf->opaque || !ordo_convert_knows(root->param.dtype) || !ordo_leaf_follows((const ordo_leaf_record *)leaf, &root->param))
    return refuse(instance, ORDO_E_UNSUPPORTED, "E-CONVERT-PARAM", root->param.name,
                  "it is sharded already, or its elements are no f32, f16 or bf16", "leave the parameter as it is");
  if (!embedder->convert || ((leaf->data || leaf->grad) && !embedder->bind))
    return refuse(instance, ORDO_E_UNSUPPORTED, "E-EMBEDDER-CANNOT", root->param.name,
                  "its ordo_embedder has no convert and bind: it computes with the fp32 storage that it described",
                  "choose a precision that keeps parameters in fp32 (apex_amp:O1 or O4)");
  return ORDO_OK;
}

/* Storage of `numel` elements of the new type with the old values, null without a source (*status says whether memory was out). */
static void *converted(ordo_model_state *model, const ordo_leaf *leaf, const void *src, ordo_dtype from, ordo_dtype to, uint32_t tag,
                       ordo_status *status)
{
  enum { CHUNK = 4096 };
  float buffer[CHUNK];
  size_t bytes = (size_t)leaf->numel * ordo_dtype_size(to);
  char *dst;
  if (!src || *status != ORDO_OK)
    return NULL;
  dst = ordo_weights_materialise(model, bytes, tag);
  if (!dst)
    *status = ordo_weights_no_memory(model, leaf, bytes);
  for (int64_t i = 0; dst && !model->session->space && i < leaf->numel; i += CHUNK) { /* a dry run has addresses only */
    int64_t part = MIN(leaf->numel - i, (int64_t)CHUNK);
    ordo_convert_widen(from, (const char *)src + (size_t)i * ordo_dtype_size(from), part, buffer);
    ordo_convert_narrow(to, buffer, part, dst + (size_t)i * ordo_dtype_size(to));
  }
  return dst;
}

/* All members of the tie group, and the embedder, learn of the new types. */
static ordo_status announce(ordo_model_state *model, ordo_param_record *root, ordo_dtype dtype, ordo_dtype grad_dtype)
{
  const ordo_session *session = model->session;
  for (guint i = 0; i < model->params->len; i++) {
    ordo_param_record *member = g_ptr_array_index(model->params, i);
    size_t before = ordo_errors_count(ordo_session_errors(session));
    ordo_status status;
    if (member->root != root)
      continue;
    member->param.dtype = dtype;
    member->param.grad_dtype = grad_dtype;
    status = session->embedder.convert(session->embedder.ctx, &model->view, &member->param, dtype, grad_dtype);
    if (status != ORDO_OK)
      return ordo_session_embedder_status(model->session, "convert", status, before);
  }
  return ORDO_OK;
}

ordo_status ordo_convert_param(ordo_instance *instance, ordo_param_record *record, ordo_dtype dtype, ordo_dtype grad_dtype, uint32_t flags)
{
  ordo_model_state *model = instance->model;
  ordo_param_record *root = record->root;
  ordo_leaf *leaf = root->param.leaf;
  ordo_status status = check(instance, root, dtype, grad_dtype);
  void *data, *grad, *old_data = leaf ? leaf->data : NULL, *old_grad = leaf ? leaf->grad : NULL;
  if (status != ORDO_OK)
    return status;
  root->adds_low = (flags & ORDO_CONVERT_ADD_LOW) != 0;
  if (leaf->dtype == dtype && leaf->grad_dtype == grad_dtype)
    return ORDO_OK;
  data = leaf->dtype == dtype ? leaf->data : converted(model, leaf, leaf->data, leaf->dtype, dtype, ORDO_MEM_WEIGHTS, &status);
  grad = leaf->grad_dtype == grad_dtype ? leaf->grad
                                        : converted(model, leaf, leaf->grad, leaf->grad_dtype, grad_dtype, ORDO_MEM_GRADIENTS, &status);
  if (status != ORDO_OK)
    return status;
  leaf->dtype = dtype;
  leaf->grad_dtype = grad_dtype;
  status = announce(model, root, dtype, grad_dtype);
  if (status == ORDO_OK)
    status = ordo_leaves_bind(model, root, data, grad);
  if (status != ORDO_OK)
    return status;
  if (old_data != data)
    ordo_weights_let_go(model, leaf, old_data);
  if (old_grad != grad)
    ordo_weights_let_go(model, leaf, old_grad);
  return ORDO_OK;
}
