/* opaque.c - params of an opaque type, whole and in fp32 while their unit runs.
 *
 * A leaf of such a type is moved, sharded and gathered as bytes, and param->data points at the packed whole once it is there. The embedder
 * computes in fp32: between the strategies' pre_ and post_ events of a unit it is bound to an unpacked copy. One unit is open at a time,
 * so one buffer of the largest unit serves all, and what a model gains by packing its weights is lost for one unit only.
 */
#include "session.h"

static int64_t unit_numel(const ordo_unit_record *unit)
{
  int64_t numel = 0;
  for (guint i = 0; i < unit->params->len; i++) {
    const ordo_param *param = g_ptr_array_index(unit->params, i);
    if (param->leaf && param->leaf->opaque)
      numel += (ordo_param_local_numel(param) + 15) / 16 * 16; /* each begins at a cache line */
  }
  return numel;
}

ordo_status ordo_opaque_prepare(ordo_model_state *model)
{
  int64_t most = 0;
  for (guint u = 0; u < model->units->len; u++) {
    ordo_unit_record *unit = g_ptr_array_index(model->units, u);
    int64_t numel = unit_numel(unit);
    unit->is_packed = numel > 0;
    most = MAX(most, numel);
  }
  if (most == 0)
    return ORDO_OK;
  model->unpacked = ordo_memory_alloc(model->session->memory, (size_t)most * sizeof(float), ORDO_MEM_WEIGHTS);
  if (model->unpacked)
    return ORDO_OK;
  return ordo_errors_push(ordo_session_errors(model->session), ORDO_E_NOMEM, "E-NOMEM", model->view.name,
                          "the packed weights of a unit are unpacked to fp32 while it runs", "use more memory, or smaller units",
                          "out of memory for the unpacked weights of a unit");
}

static ordo_status tell(ordo_model_state *model, const ordo_param *param, float *data)
{
  const ordo_embedder *embedder = &model->session->embedder;
  size_t before = ordo_errors_count(ordo_session_errors(model->session));
  return ordo_session_embedder_status(model->session, "bind", embedder->bind(embedder->ctx, &model->view, param, data, NULL), before);
}

static ordo_status unpack(ordo_model_state *model, const ordo_param *param, float *at)
{
  const ordo_dtype_ops *ops = param->leaf->opaque;
  if (!param->data)
    return ordo_errors_push(ordo_session_errors(model->session), ORDO_E_STATE, "E-OPAQUE-UNPACK", param->name,
                            "no strategy has gathered it for its unit, or its weights were never loaded",
                            "report this to the author of the strategy", "the packed weights of '%s' are not there", param->name);
  if (ops->unpack(ops->ctx, param->data, ordo_param_local_numel(param), at) == ORDO_OK)
    return tell(model, param, at);
  return ordo_errors_push(ordo_session_errors(model->session), ORDO_E_INVALID, "E-OPAQUE-UNPACK", param->name, ops->name,
                          "this is a defect of the plugin that owns the type: report it to its author with this text",
                          "the packed weights of '%s' cannot be unpacked", param->name);
}

ordo_status ordo_opaque_open(ordo_model_state *model, const ordo_unit_record *unit)
{
  float *at = model->unpacked;
  ordo_status status = ORDO_OK;
  for (guint i = 0; i < unit->params->len && status == ORDO_OK; i++) {
    const ordo_param *param = g_ptr_array_index(unit->params, i);
    if (!param->leaf || !param->leaf->opaque)
      continue;
    status = unpack(model, param, at);
    at += (ordo_param_local_numel(param) + 15) / 16 * 16;
  }
  return status;
}

ordo_status ordo_opaque_close(ordo_model_state *model, const ordo_unit_record *unit)
{
  ordo_status status = ORDO_OK;
  for (guint i = 0; i < unit->params->len && status == ORDO_OK; i++) {
    const ordo_param *param = g_ptr_array_index(unit->params, i);
    if (param->leaf && param->leaf->opaque)
      status = tell(model, param, NULL);
  }
  return status;
}
