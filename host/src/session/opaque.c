/* opaque.c - params of an opaque type, whole and in fp32 while their unit runs.
 *
 * A leaf of such a type is moved, sharded and gathered as bytes, and param->data points at the packed whole once it is there. The embedder
 * computes in fp32: between the strategies' pre_ and post_ events of a unit it is bound to an unpacked copy. One unit is open at a time,
 * so one buffer of the largest unit serves all, and what a model gains by packing its weights is lost for one unit only.
 */
#include "session.h"

enum { LONGEST_BLOCK = 1 << 30, MOST_BYTES = 16, MOST_MORE = 4096 };
#define MOST_SIDE ((int64_t)1 << 40)

/* Sizes are the plugin's word, and are multiplied with the number of elements: see dtype.h for the limits. */
gboolean ordo_opaque_is_complete(const ordo_dtype_ops *ops)
{
  return ops && ORDO_CAN(ops, ordo_dtype_ops, unpack) && ops->pack && ops->name && ops->id >= ORDO_DTYPE_OPAQUE &&
         ops->block_elements > 0 && ops->block_elements <= LONGEST_BLOCK && ops->block_bytes > 0 &&
         ops->block_bytes <= ops->block_elements * MOST_BYTES + MOST_MORE && ops->side_bytes >= 0 && ops->side_bytes <= MOST_SIDE;
}

/* Whatever the plugin recorded says why; this says of whom and where. `what` is pack or unpack. */
static ordo_status refused(ordo_model_state *model, const char *what, const char *name, const ordo_param *param, const ordo_dtype_ops *ops,
                           ordo_status status)
{
  const ordo_param_record *record = (const ordo_param_record *)param;
  const char *plugin = record && record->packer ? record->packer->plugin->id : "(unknown)";
  g_autofree char *where = g_strdup_printf("plugin '%s', %s", plugin, what);
  g_autofree char *why = g_strdup_printf("%s of its type '%s' returned %s", what, ops->name, ordo_status_name(status));
  return ordo_errors_push(ordo_session_errors(model->session), status, "E-OPAQUE-UNPACK", where, why,
                          "this is a defect of the plugin that owns the type: report it to its author with this text",
                          "the packed weights of '%s' cannot be %sed", name, what);
}

static ordo_status convert(ordo_model_state *model, const char *name, const ordo_param *param, const ordo_dtype_ops *ops,
                           const void *packed, int64_t numel, float *dst)
{
  ordo_status status = ordo_plugin_known_status(ops->unpack(ops->ctx, packed, numel, dst));
  return status == ORDO_OK ? ORDO_OK : refused(model, "unpack", name, param, ops, status);
}

ordo_status ordo_opaque_unpack(ordo_model_state *model, const ordo_leaf *leaf, float *dst)
{
  return convert(model, leaf->name, leaf->n_params ? leaf->params[0] : NULL, leaf->opaque, leaf->data, leaf->numel, dst);
}

ordo_status ordo_opaque_pack(ordo_model_state *model, const ordo_leaf *leaf, const float *src)
{
  const ordo_dtype_ops *ops = leaf->opaque;
  ordo_status status = ordo_plugin_known_status(ops->pack(ops->ctx, src, leaf->numel, leaf->data));
  return status == ORDO_OK ? ORDO_OK : refused(model, "pack", leaf->name, leaf->n_params ? leaf->params[0] : NULL, ops, status);
}

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
  ordo_status status;
  if (!param->data)
    return ordo_errors_push(ordo_session_errors(model->session), ORDO_E_STATE, "E-OPAQUE-UNPACK", param->name,
                            "no strategy has gathered it for its unit, or its weights were never loaded",
                            "report this to the author of the strategy", "the packed weights of '%s' are not there", param->name);
  status = convert(model, param->name, param, param->leaf->opaque, param->data, ordo_param_local_numel(param), at);
  return status == ORDO_OK ? tell(model, param, at) : status;
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
