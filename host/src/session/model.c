/* model.c - the description of a model: units, parameters, tie groups and the first leaves.
 *
 * The embedder describes a model once, inside model.build; from then on only strategies transform it. This file makes the description
 * and the one-leaf-per-tie-group start; leaves.c changes leaves afterwards.
 *
 * Guarded against: two names for one thing (duplicates are refused), tied parameters that cannot share storage (another shape or type),
 * shapes whose product overflows, and a description that changes after model.build has returned.
 */
#include "session.h"

#include <string.h>

static ordo_status refuse(ordo_model_state *model, const char *where, const char *why, const char *next, const char *what)
{
  return ordo_errors_push(ordo_session_errors(model->session), ORDO_E_INVALID, "E-MODEL-DESCRIPTION", where, why, next, "%s", what);
}

ordo_model_state *ordo_model_state_new(ordo_session *session, const char *name, uint32_t index, gboolean trained)
{
  ordo_model_state *model = g_new0(ordo_model_state, 1);
  model->view.struct_size = sizeof model->view;
  model->view.name = g_strdup(name);
  model->view.index = index;
  model->view.trained = trained ? 1 : 0;
  model->session = session;
  model->units = g_ptr_array_new();
  model->params = g_ptr_array_new();
  model->records = g_ptr_array_new();
  model->known = g_hash_table_new(NULL, NULL);
  model->arrays = g_ptr_array_new_with_free_func(g_free);
  model->host_storage = g_ptr_array_new();
  model->units_by_name = g_hash_table_new(g_str_hash, g_str_equal);
  model->params_by_name = g_hash_table_new(g_str_hash, g_str_equal);
  model->ties = g_hash_table_new(NULL, NULL);
  model->synced = g_hash_table_new(NULL, NULL);
  model->builder.model = model;
  return model;
}

void ordo_model_state_free(ordo_model_state *model)
{
  if (!model)
    return;
  for (guint i = 0; i < model->records->len; i++) {
    ordo_leaf_record *record = g_ptr_array_index(model->records, i);
    g_free((char *)record->leaf.name);
    g_free((char *)record->leaf.replaced_by);
    g_free((void *)record->leaf.params);
    g_free((void *)record->placement.chunks);
    g_free(record);
  }
  for (guint i = 0; i < model->params->len; i++) {
    ordo_param_record *param = g_ptr_array_index(model->params, i);
    ordo_memory_release(model->session->memory, param->sum_storage);
    g_free((char *)param->param.name);
    g_free(param);
  }
  for (guint i = 0; i < model->units->len; i++) {
    ordo_unit_record *unit = g_ptr_array_index(model->units, i);
    g_free((char *)unit->unit.name);
    g_free((char *)unit->unit.class_name);
    g_ptr_array_unref(unit->params);
    g_free(unit);
  }
  ordo_model_calls_free(&model->calls);
  g_ptr_array_unref(model->records);
  g_hash_table_unref(model->known);
  g_ptr_array_unref(model->params);
  g_ptr_array_unref(model->units);
  g_ptr_array_unref(model->arrays);
  g_ptr_array_unref(model->host_storage);
  g_hash_table_unref(model->units_by_name);
  g_hash_table_unref(model->params_by_name);
  g_hash_table_unref(model->ties);
  g_hash_table_unref(model->synced);
  ordo_memory_release(model->session->memory, model->unpacked);
  g_free((char *)model->view.name);
  g_free(model);
}

static ordo_status check_open(ordo_model_builder *builder)
{
  ordo_model_state *model = builder->model;
  if (builder->open)
    return ORDO_OK;
  return ordo_errors_push(ordo_session_errors(model->session), ORDO_E_STATE, "E-STATE-ORDER", model->view.name,
                          "a model is described inside the model_build callback and never afterwards", "keep no pointer to the builder",
                          "the description of model '%s' is closed", model->view.name);
}

ordo_status ordo_model_builder_unit(ordo_model_builder *builder, const char *name, const char *class_name, uint32_t *index)
{
  ordo_model_state *model;
  ordo_unit_record *unit;
  ordo_status status;
  if (!builder)
    return ORDO_E_INVALID;
  model = builder->model;
  status = check_open(builder);
  if (status != ORDO_OK)
    return status;
  if (!name || !*name)
    return refuse(model, model->view.name, "it is how wrap policies, errors and checkpoints find it", "give every unit a name",
                  "a unit has no name");
  if (g_hash_table_contains(model->units_by_name, name))
    return refuse(model, name, "two units of one model have this name", "make unit names unique", "a unit was described twice");
  unit = g_new0(ordo_unit_record, 1);
  unit->unit.struct_size = sizeof unit->unit;
  unit->unit.name = g_strdup(name);
  unit->unit.class_name = g_strdup(class_name ? class_name : "");
  unit->unit.index = model->units->len;
  unit->params = g_ptr_array_new();
  unit->forward_in = -1;
  g_ptr_array_add(model->units, unit);
  g_hash_table_insert(model->units_by_name, (gpointer)unit->unit.name, unit);
  if (index)
    *index = unit->unit.index;
  return ORDO_OK;
}

/* Product of the shape, -1 if a dimension is below 1 or the product overflows. */
static int64_t shape_numel(const ordo_param_desc *desc)
{
  int64_t numel = 1;
  for (uint32_t d = 0; d < desc->ndim; d++)
    if (desc->shape[d] < 1 || __builtin_mul_overflow(numel, desc->shape[d], &numel) || numel > INT64_MAX / 16)
      return -1;
  return numel;
}

static gboolean same_storage(const ordo_param *a, const ordo_param_desc *b)
{
  return a->dtype == b->dtype && a->ndim == b->ndim && memcmp(a->shape, b->shape, b->ndim * sizeof a->shape[0]) == 0;
}

static ordo_status check_desc(ordo_model_state *model, const ordo_param_desc *desc, int64_t numel)
{
  const ordo_param_record *tied = NULL;
  if (!desc->name || !*desc->name)
    return refuse(model, model->view.name, "it is how checkpoints and errors find it", "give every parameter a name",
                  "a parameter has no name");
  if (model->units->len == 0)
    return refuse(model, desc->name, "a parameter belongs to the unit added last", "call ordo_model_builder_unit first",
                  "a parameter has no unit");
  if (g_hash_table_contains(model->params_by_name, desc->name))
    return refuse(model, desc->name, "two parameters of one model have this name", "make names unique; for tied weights use tie_group",
                  "a parameter was described twice");
  if (desc->ndim > ORDO_MAX_DIMS || numel < 0)
    return refuse(model, desc->name, "every dimension must be at least 1, there may be at most 8, and the product must fit 59 bits",
                  "check the shape that the model computes for this parameter", "a parameter has an impossible shape");
  if (ordo_dtype_size(desc->dtype) == 0)
    return refuse(model, desc->name, "parameters are described with a plain type; opaque storage is made by a plugin",
                  "use an ORDO_F32 ... type", "a parameter has an unknown element type");
  if (desc->tie_group >= 0)
    tied = g_hash_table_lookup(model->ties, GSIZE_TO_POINTER((gsize)desc->tie_group + 1));
  if (tied && !same_storage(&tied->param, desc))
    return refuse(model, desc->name, tied->param.name, "tied parameters share one storage: same shape and type, or no tie",
                  "a parameter is tied to one of another shape or type");
  if (tied && desc->data && tied->source && desc->data != tied->source)
    return refuse(model, desc->name, tied->param.name, "give the same storage for all members, or null",
                  "tied parameters were described with different storage");
  return ORDO_OK;
}

/* A record of the description in the unit, last of its params. */
static ordo_param_record *append(ordo_model_state *model, ordo_unit_record *unit, const ordo_param_desc *given, int64_t numel)
{
  const ordo_param_desc desc = *given;
  ordo_param_record *record = g_new0(ordo_param_record, 1);
  record->param.struct_size = sizeof record->param;
  record->param.name = g_strdup(desc.name);
  record->param.index = model->params->len;
  record->param.dtype = desc.dtype;
  record->param.flags = desc.flags;
  record->param.tp_hint = desc.tp_hint;
  record->param.tp_block = desc.tp_block;
  record->param.tie_group = desc.tie_group < 0 ? -1 : desc.tie_group;
  record->param.ndim = desc.ndim;
  record->param.unit = unit->unit.index;
  memcpy(record->param.shape, desc.shape, sizeof desc.shape);
  memcpy(record->param.local_shape, desc.shape, sizeof desc.shape);
  record->param.numel = numel;
  record->param.data = record->source = desc.data;
  record->source_dtype = desc.dtype;
  record->param.grad_dtype = ORDO_F32;
  record->param.grad = desc.grad;
  record->ready_in = -1;
  record->root = record;
  if (desc.tie_group >= 0) {
    ordo_param_record *root = g_hash_table_lookup(model->ties, GSIZE_TO_POINTER((gsize)desc.tie_group + 1));
    if (root)
      record->root = root;
    else
      g_hash_table_insert(model->ties, GSIZE_TO_POINTER((gsize)desc.tie_group + 1), record);
  }
  g_ptr_array_add(model->params, record);
  g_ptr_array_add(unit->params, record);
  g_hash_table_insert(model->params_by_name, (gpointer)record->param.name, record);
  return record;
}

ordo_status ordo_model_builder_param(ordo_model_builder *builder, const ordo_param_desc *given, uint32_t *index)
{
  ordo_model_state *model;
  ordo_param_desc desc = {0};
  ordo_param_record *record;
  int64_t numel;
  ordo_status status;
  if (!builder)
    return ORDO_E_INVALID;
  model = builder->model;
  status = check_open(builder);
  if (status != ORDO_OK)
    return status;
  if (!given)
    return refuse(model, model->view.name, "", "pass a filled ordo_param_desc", "the description of a parameter is null");
  memcpy(&desc, given, MIN(given->struct_size, sizeof desc));
  numel = desc.ndim <= ORDO_MAX_DIMS ? shape_numel(&desc) : -1;
  if ((status = check_desc(model, &desc, numel)) != ORDO_OK)
    return status;
  record = append(model, g_ptr_array_index(model->units, model->units->len - 1), &desc, numel);
  if (index)
    *index = record->param.index;
  return ORDO_OK;
}

/* Tie groups share storage: the root takes what any member came with, then gives it to all. */
static void join_ties(ordo_model_state *model)
{
  for (guint i = 0; i < model->params->len; i++) {
    ordo_param_record *param = g_ptr_array_index(model->params, i), *root = param->root;
    if (!root->source && param->source)
      root->source = root->param.data = param->source;
    if (!root->param.grad)
      root->param.grad = param->param.grad;
    root->param.flags |= param->param.flags & ORDO_PARAM_REQUIRES_GRAD;
  }
  for (guint i = 0; i < model->params->len; i++) {
    ordo_param_record *param = g_ptr_array_index(model->params, i), *root = param->root;
    param->source = param->param.data = root->source;
    param->param.grad = root->param.grad;
    if (root->param.flags & ORDO_PARAM_REQUIRES_GRAD)
      param->param.flags |= ORDO_PARAM_REQUIRES_GRAD;
    root->n_members += (param->param.flags & ORDO_PARAM_REQUIRES_GRAD) ? 1 : 0;
  }
}

/* One leaf for the tie group of `root`: whole, replicated on every axis; gradients are partial where the batch is split. */
static ordo_leaf_record *first_leaf(ordo_model_state *model, ordo_param_record *root)
{
  const ordo_mesh *mesh = model->session->mesh;
  g_autoptr(GPtrArray) members = g_ptr_array_new();
  gboolean tied = root->param.tie_group >= 0; /* only then are others looked for: a model has many params */
  ordo_chunk chunk = {
      .struct_size = sizeof chunk, .param = &root->param, .kind = ORDO_CHUNK_RECT, .ndim = root->param.ndim, .end = root->param.numel};
  ordo_leaf_spec spec = {.struct_size = sizeof spec,
                         .name = root->param.name,
                         .dtype = root->param.dtype,
                         .grad_dtype = ORDO_F32,
                         .numel = root->param.numel,
                         .data = root->param.data,
                         .grad = root->param.grad,
                         .flags = root->param.flags};
  for (guint i = tied ? 0 : root->param.index; i < (tied ? model->params->len : root->param.index + 1); i++) {
    ordo_param_record *param = g_ptr_array_index(model->params, i);
    if (param->root == root)
      g_ptr_array_add(members, &param->param);
  }
  memcpy(chunk.extent, root->param.shape, sizeof chunk.extent);
  spec.params = (const ordo_param *const *)members->pdata;
  spec.n_params = members->len;
  spec.placement.struct_size = sizeof spec.placement;
  spec.placement.n_chunks = 1;
  spec.placement.chunks = &chunk;
  for (uint32_t a = 0; a < mesh->n_axes; a++) {
    spec.placement.data[a] = ORDO_REPLICATE;
    spec.placement.grad_partial[a] = (model->session->summing_axes & (1u << a)) != 0;
  }
  return ordo_leaf_record_new(model, &spec, NULL);
}

/* The handed-out arrays follow the description. */
static void show_params(ordo_model_state *model)
{
  void **params = g_new0(void *, model->params->len);
  g_ptr_array_add(model->arrays, params);
  for (guint i = 0; i < model->params->len; i++)
    params[i] = &((ordo_param_record *)g_ptr_array_index(model->params, i))->param;
  for (guint i = 0; i < model->units->len; i++) {
    ordo_unit_record *unit = g_ptr_array_index(model->units, i);
    unit->unit.n_params = unit->params->len;
    unit->unit.params = (const ordo_param *const *)unit->params->pdata;
  }
  model->view.params = (const ordo_param *const *)params;
  model->view.n_params = model->params->len;
}

ordo_status ordo_model_state_add(ordo_model_state *model, uint32_t unit, const ordo_param_desc *desc, ordo_param_record **result)
{
  g_autoptr(GPtrArray) leaves = g_ptr_array_new();
  int64_t numel = shape_numel(desc);
  ordo_param_record *record;
  ordo_leaf_record *leaf;
  ordo_status status = check_desc(model, desc, numel);
  if (status != ORDO_OK)
    return status;
  record = append(model, g_ptr_array_index(model->units, unit), desc, numel);
  record->n_members = (record->param.flags & ORDO_PARAM_REQUIRES_GRAD) ? 1 : 0;
  for (uint32_t i = 0; i < model->view.n_leaves; i++)
    g_ptr_array_add(leaves, model->view.leaves[i]);
  leaf = first_leaf(model, record);
  record->param.leaf = &leaf->leaf;
  g_ptr_array_add(leaves, leaf);
  show_params(model);
  ordo_leaves_publish(model, leaves);
  *result = record;
  return ORDO_OK;
}

ordo_status ordo_model_state_finish(ordo_model_state *model)
{
  g_autoptr(GPtrArray) leaves = g_ptr_array_new();
  void **units;
  if (model->params->len == 0)
    return refuse(model, model->view.name, "model_build returned without describing a parameter",
                  "describe units and parameters with the builder", "the model has no parameters");
  join_ties(model);
  units = g_new0(void *, model->units->len);
  g_ptr_array_add(model->arrays, units);
  for (guint i = 0; i < model->units->len; i++)
    units[i] = &((ordo_unit_record *)g_ptr_array_index(model->units, i))->unit;
  show_params(model);
  for (guint i = 0; i < model->params->len; i++) {
    ordo_param_record *param = g_ptr_array_index(model->params, i);
    if (param->root == param)
      g_ptr_array_add(leaves, first_leaf(model, param));
  }
  for (guint i = 0; i < leaves->len; i++) {
    ordo_leaf_record *record = g_ptr_array_index(leaves, i);
    for (uint32_t k = 0; k < record->leaf.n_params; k++)
      ((ordo_param *)record->leaf.params[k])->leaf = &record->leaf;
  }
  model->view.units = (const ordo_unit *const *)units;
  model->view.n_units = model->units->len;
  ordo_leaves_publish(model, leaves);
  model->view.generation = 0;
  model->last_backward = model->view.n_units;
  return ORDO_OK;
}

ordo_param_record *ordo_model_param(ordo_model_state *model, const ordo_param *param)
{
  if (!param || param->index >= model->params->len || g_ptr_array_index(model->params, param->index) != (gconstpointer)param)
    return NULL;
  return (ordo_param_record *)param;
}

int64_t ordo_param_local_numel(const ordo_param *param)
{
  int64_t numel = 1;
  for (uint32_t d = 0; d < param->ndim; d++)
    numel *= param->local_shape[d];
  return numel;
}

char *ordo_model_state_digest(const ordo_model_state *model)
{
  g_autoptr(GChecksum) sum = g_checksum_new(G_CHECKSUM_SHA256);
  for (guint i = 0; i < model->units->len; i++) {
    const ordo_unit_record *unit = g_ptr_array_index(model->units, i);
    g_checksum_update(sum, (const guchar *)unit->unit.name, -1);
    g_checksum_update(sum, (const guchar *)"\n", 1);
  }
  for (guint i = 0; i < model->params->len; i++) {
    const ordo_param *param = g_ptr_array_index(model->params, i);
    g_autofree char *line = g_strdup_printf("%s %u %u %d %u:", param->name, param->dtype, param->flags, param->tie_group, param->unit);
    g_checksum_update(sum, (const guchar *)line, -1);
    g_checksum_update(sum, (const guchar *)param->shape, (gssize)(param->ndim * sizeof param->shape[0]));
  }
  return g_strndup(g_checksum_get_string(sum), 16);
}
