/* inject.c - model.inject: what a plugin may do to the description of a model before there are weights.
 *
 * It may freeze a param, have it stored in an opaque type, and add the two params of a low-rank adapter. Everything here is description:
 * storage follows in weights.load or weights.load_sharded, the optimizer and every strategy see the result and need to know nothing of it.
 *
 * Guarded against: adapters that the embedder does not compute with. They would be trained by nobody and noticed by nobody, so an
 * embedder without `adapt` is refused. Ranks that injected different things are found by the check that compares descriptions.
 */
#include "session.h"

static ordo_status refuse(const ordo_instance *instance, ordo_status status, const char *code, const char *name, const char *why,
                          const char *next)
{
  const ordo_session *session = instance->session;
  g_autofree char *where = g_strdup_printf("plugin '%s', %s", instance->plugin->id, session->where ? session->where : "outside of a step");
  return ordo_errors_push(ordo_session_errors(session), status, code, where, why, next, "'%s' cannot be changed by the plugin", name);
}

static const char author[] = "this is a defect of the plugin: report it to its author with this text";

static ordo_status check_step(const ordo_instance *instance, const char *name)
{
  const ordo_node *node = instance->session->node;
  if (node && node->step == ORDO_STEP_MODEL_INJECT && node->provider == (int)instance->provider)
    return ORDO_OK;
  return refuse(instance, ORDO_E_STATE, "E-JOB-ARGUMENT", name,
                "freeze, store_param and add_adapter belong into the plugin's own model.inject", author);
}

ordo_status ordo_inject_freeze(ordo_instance *instance, ordo_param_record *record)
{
  ordo_model_state *model = instance->model;
  ordo_param_record *root = record->root;
  ordo_status status = check_step(instance, record->param.name);
  if (status != ORDO_OK)
    return status;
  for (guint i = 0; i < model->params->len; i++) {
    ordo_param_record *member = g_ptr_array_index(model->params, i);
    if (member->root == root)
      member->param.flags &= ~(uint32_t)ORDO_PARAM_REQUIRES_GRAD;
  }
  root->n_members = 0;
  if (root->param.leaf)
    root->param.leaf->flags &= ~(uint32_t)ORDO_PARAM_REQUIRES_GRAD;
  return ORDO_OK;
}

/* The block sizes that a row could have, so that nobody has to factorise it. */
static ordo_status refuse_blocks(const ordo_instance *instance, const ordo_param *param, const ordo_dtype_ops *ops)
{
  enum { MOST_LISTED = 12 };
  const int64_t row = param->ndim ? param->shape[param->ndim - 1] : 1;
  g_autoptr(GString) fits = g_string_new(NULL);
  g_autofree char *why = NULL, *next = NULL;
  for (int64_t size = 2, n = 0; size <= row && size <= ops->block_elements && n < MOST_LISTED; size *= 2)
    if (row % size == 0 && ++n)
      g_string_append_printf(fits, "%s%" G_GINT64_FORMAT, fits->len ? ", " : "", size);
  why = g_strdup_printf("its rows of %" G_GINT64_FORMAT " elements are no whole number of blocks of %" G_GINT64_FORMAT
                        " elements, in which type '%s' packs them",
                        row, ops->block_elements, ops->name);
  next = g_strdup_printf("set the plugin's option for the block size to a divisor of the rows%s%s%s, or leave the parameter out; ordo "
                         "plugins show %s lists its options",
                         fits->len ? " (powers of two: " : "", fits->str, fits->len ? ")" : "", instance->plugin->id);
  return refuse(instance, ORDO_E_INVALID, "E-INJECT-STORE", param->name, why, next);
}

ordo_status ordo_inject_store(ordo_instance *instance, ordo_param_record *record, const ordo_dtype_ops *ops)
{
  ordo_param *param = &record->param;
  ordo_status status = check_step(instance, param->name);
  if (status != ORDO_OK)
    return status;
  if (!ordo_opaque_is_complete(ops))
    return refuse(instance, ORDO_E_INVALID, "E-JOB-ARGUMENT", param->name,
                  "an opaque type has an id, a name, pack and unpack, and sizes of blocks and side data within the limits of dtype.h",
                  author);
  if (!instance->session->embedder.bind)
    return refuse(instance, ORDO_E_UNSUPPORTED, "E-EMBEDDER-CANNOT", param->name,
                  "its ordo_embedder has no bind: it reads the fp32 storage that it described",
                  "use a program that lets its parameters be moved");
  if (param->tie_group >= 0 || param->flags & ORDO_PARAM_REQUIRES_GRAD)
    return refuse(instance, ORDO_E_INVALID, "E-INJECT-STORE", param->name, "it is trained, or tied to another parameter",
                  "freeze it first, and leave out parameters that are tied");
  if (param->ndim == 0 || param->shape[param->ndim - 1] % ops->block_elements != 0)
    return refuse_blocks(instance, param, ops);
  if (param->data || param->dtype != ORDO_F32)
    return refuse(instance, ORDO_E_STATE, "E-INJECT-STORE", param->name, "it has storage, or another type, already",
                  "use a program that describes its parameters without storage");
  param->dtype = param->leaf->dtype = ops->id;
  param->leaf->opaque = ops;
  record->packer = instance;
  return ORDO_OK;
}

static ordo_status check_adapter(const ordo_instance *instance, const ordo_adapter *adapter)
{
  const ordo_param *base = adapter->base;
  if (adapter->rank < 1 || base->ndim != 2 || !adapter->a || !adapter->b || !adapter->name_a || !adapter->name_b)
    return refuse(instance, ORDO_E_INVALID, "E-JOB-ARGUMENT", base->name,
                  "an adapter has a base of two dimensions, a rank of 1 or more, two names and two arrays of values", author);
  if (base->data)
    return refuse(instance, ORDO_E_STATE, "E-JOB-ARGUMENT", base->name, "parameters are added before there are weights", author);
  if (!instance->session->embedder.adapt)
    return refuse(instance, ORDO_E_UNSUPPORTED, "E-EMBEDDER-CANNOT", base->name,
                  "its ordo_embedder has no adapt: it would not compute with the adapter", "use a program that has adapters");
  return ORDO_OK;
}

/* A matrix of the adapter in the unit of its base. */
static ordo_status add_matrix(ordo_instance *instance, const ordo_param *base, const char *name, int64_t rows, int64_t columns, float *data,
                              ordo_param_record **record)
{
  ordo_param_desc desc = {.struct_size = sizeof desc, .name = name, .dtype = ORDO_F32, .tie_group = -1, .ndim = 2, .data = data};
  desc.flags = (instance->session->eval_only ? 0u : ORDO_PARAM_REQUIRES_GRAD) | (base->flags & ORDO_PARAM_DECAY);
  desc.shape[0] = rows;
  desc.shape[1] = columns;
  return ordo_model_state_add(instance->model, base->unit, &desc, record);
}

ordo_status ordo_inject_adapter(ordo_instance *instance, const ordo_adapter *adapter, const ordo_param **a, const ordo_param **b)
{
  ordo_model_state *model = instance->model;
  const ordo_embedder *embedder = &instance->session->embedder;
  const ordo_param *base = adapter->base;
  ordo_param_record *first = NULL, *second = NULL;
  size_t before;
  ordo_status status = check_step(instance, base->name);
  if (status == ORDO_OK)
    status = check_adapter(instance, adapter);
  if (status == ORDO_OK)
    status = add_matrix(instance, base, adapter->name_a, adapter->rank, base->shape[1], adapter->a, &first);
  if (status == ORDO_OK)
    status = add_matrix(instance, base, adapter->name_b, base->shape[0], adapter->rank, adapter->b, &second);
  if (status != ORDO_OK)
    return status;
  before = ordo_errors_count(ordo_session_errors(instance->session));
  status = embedder->adapt(embedder->ctx, &model->view, base, &first->param, &second->param, adapter->scale);
  status = ordo_session_embedder_status(instance->session, "adapt", status, before);
  if (status == ORDO_OK && a)
    *a = &first->param;
  if (status == ORDO_OK && b)
    *b = &second->param;
  return status;
}
