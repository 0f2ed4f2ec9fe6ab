/* leaves.c - leaves: records, binding, and replacement as a transaction.
 *
 * A leaf is what an optimizer updates. Strategies may replace all of them at once (flat shards, dim-0 shards, slices); then the optimizer
 * must follow, old leaves must become unusable, and a failure must leave everything as it was. All of that is in replace_leaves.
 *
 * Guarded against: an optimizer that goes on stepping on storage that is no longer the model. Training then silently does nothing, which
 * is what happened when flat-parameter sharding met an optimizer made too early.
 */
#include "session.h"

#include <string.h>

enum { LARGEST_SPEC = 64 << 10 }; /* bytes of one ordo_leaf_spec of whatever release */

ordo_leaf_record *ordo_leaf_record_new(ordo_model_state *model, const ordo_leaf_spec *spec, ordo_instance *owner)
{
  ordo_leaf_record *record = g_new0(ordo_leaf_record, 1);
  record->model = model;
  record->owner = owner;
  record->placement = spec->placement;
  record->placement.struct_size = sizeof record->placement;
  record->placement.chunks = g_memdup2(spec->placement.chunks, spec->placement.n_chunks * sizeof(ordo_chunk));
  record->divided_by = 1.0;
  record->leaf = (ordo_leaf){.struct_size = sizeof record->leaf,
                             .name = g_strdup(spec->name),
                             .state = ORDO_LEAF_LIVE,
                             .flags = spec->flags,
                             .grad_state = ORDO_GRAD_NONE,
                             .dtype = spec->dtype,
                             .grad_dtype = spec->grad_dtype,
                             .opaque = spec->opaque,
                             .data = spec->data,
                             .grad = spec->grad,
                             .numel = spec->numel,
                             .placement = &record->placement,
                             .params = g_memdup2(spec->params, spec->n_params * sizeof spec->params[0]),
                             .n_params = (uint32_t)spec->n_params};
  g_ptr_array_add(model->records, record);
  g_hash_table_add(model->known, record);
  return record;
}

void ordo_leaves_publish(ordo_model_state *model, GPtrArray *records)
{
  ordo_leaf **leaves = g_new0(ordo_leaf *, MAX(records->len, 1u));
  g_ptr_array_add(model->arrays, leaves);
  for (guint i = 0; i < records->len; i++) {
    ordo_leaf_record *record = g_ptr_array_index(records, i);
    record->leaf.index = i;
    leaves[i] = &record->leaf;
  }
  model->view.leaves = leaves;
  model->view.n_leaves = records->len;
  model->view.generation++;
}

gboolean ordo_leaf_follows(const ordo_leaf_record *record, const ordo_param *param)
{
  const ordo_mesh *mesh = record->model->session->mesh;
  const ordo_placement *placement = &record->placement;
  if (placement->n_chunks != 1 || record->leaf.numel != ordo_param_local_numel(param) ||
      ordo_chunk_numel(placement->chunks) != record->leaf.numel)
    return FALSE;
  for (uint32_t a = 0; a < mesh->n_axes; a++)
    if (mesh->axes[a]->kind == ORDO_AXIS_DATA && placement->data[a] != ORDO_REPLICATE)
      return FALSE;
  return TRUE;
}

/* Points one param elsewhere and tells the embedder. */
static ordo_status point_param(ordo_model_state *model, ordo_param *param, void *data, void *grad)
{
  const ordo_embedder *embedder = &model->session->embedder;
  size_t before = ordo_errors_count(ordo_session_errors(model->session));
  if (param->data == data && param->grad == grad)
    return ORDO_OK;
  param->data = data;
  param->grad = grad;
  if (!embedder->bind || param->dtype >= ORDO_DTYPE_OPAQUE) /* opaque.c binds what it has unpacked */
    return ORDO_OK;
  return ordo_session_embedder_status(model->session, "bind", embedder->bind(embedder->ctx, &model->view, param, data, grad), before);
}

ordo_status ordo_leaves_bind(ordo_model_state *model, ordo_param_record *record, void *data, void *grad)
{
  ordo_param_record *root = record->root;
  ordo_leaf_record *leaf = (ordo_leaf_record *)root->param.leaf;
  if (leaf && ordo_leaf_follows(leaf, &root->param)) {
    if (leaf->leaf.grad != grad)
      leaf->leaf.grad_state = ORDO_GRAD_NONE;
    leaf->leaf.data = data;
    leaf->leaf.grad = grad;
  } else if (root->param.grad != grad) {
    root->grad_held = FALSE;
  }
  if (root->param.tie_group < 0)
    return point_param(model, &root->param, data, grad);
  for (guint i = 0; i < model->params->len; i++) {
    ordo_param_record *member = g_ptr_array_index(model->params, i);
    ordo_status status = member->root == root ? point_param(model, &member->param, data, grad) : ORDO_OK;
    if (status != ORDO_OK)
      return status;
  }
  return ORDO_OK;
}

static ordo_status refuse(ordo_instance *instance, ordo_status status, const char *code, const char *why, const char *what,
                          const char *name)
{
  g_autofree char *where = g_strdup_printf("plugin '%s', step %s", instance->plugin->id, instance->session->where);
  return ordo_errors_push(ordo_session_errors(instance->session), status, code, where, why,
                          "this is a defect of the plugin: report it to its author with this text", "%s: %s", what,
                          name ? name : "(no name)");
}

/* Not the plugin's defect: the optimizer belongs to the program. */
static ordo_status refuse_rebind(ordo_instance *instance, const ordo_optimizer *optimizer, const char *what)
{
  g_autofree char *where = g_strdup_printf("plugin '%s', step %s", instance->plugin->id, instance->session->where);
  return ordo_errors_push(
      ordo_session_errors(instance->session), ORDO_E_UNSUPPORTED, "E-OPTIMIZER-REBIND", where,
      "ordo_optimizer.rebind is null, and an optimizer that goes on stepping on old leaves trains nothing",
      "give the program's optimizer a rebind that moves groups and state (ordo/optimizer.h), or choose a plan that makes "
      "the optimizer after this step",
      "optimizer '%s' of the program cannot follow to %s", optimizer->name ? optimizer->name : "(no name)", what);
}

static gboolean chunk_fits(const ordo_chunk *chunk, const ordo_param *param, int64_t leaf_numel)
{
  int64_t numel;
  if (chunk->kind == ORDO_CHUNK_FLAT) {
    if (chunk->begin < 0 || chunk->end < chunk->begin || chunk->end > param->numel)
      return FALSE;
  } else if (chunk->kind == ORDO_CHUNK_RECT && chunk->ndim == param->ndim) {
    for (uint32_t d = 0; d < chunk->ndim; d++)
      if (chunk->offset[d] < 0 || chunk->extent[d] < 0 || chunk->offset[d] > param->shape[d] - chunk->extent[d])
        return FALSE;
  } else {
    return FALSE;
  }
  numel = ordo_chunk_numel(chunk);
  return chunk->leaf_offset >= 0 && numel <= leaf_numel && chunk->leaf_offset <= leaf_numel - numel;
}

static ordo_status check_spec(ordo_instance *instance, const ordo_leaf_spec *spec)
{
  ordo_model_state *model = instance->model;
  const ordo_mesh *mesh = instance->session->mesh;
  if (!spec->name || !*spec->name || spec->numel < 0 || (!ordo_dtype_size(spec->dtype) && !spec->opaque) ||
      (spec->opaque && !ordo_opaque_is_complete(spec->opaque)) || (spec->n_params && !spec->params) ||
      (spec->placement.n_chunks && !spec->placement.chunks))
    return refuse(instance, ORDO_E_INVALID, "E-LEAF-REPLACE",
                  "it needs a name, a known type, a size of 0 or more, and arrays where it counts elements",
                  "a new leaf is not well formed", spec->name);
  for (uint64_t i = 0; i < spec->n_params; i++)
    if (!ordo_model_param(model, spec->params[i]))
      return refuse(instance, ORDO_E_INVALID, "E-LEAF-REPLACE", "params must be those of job->model",
                    "a new leaf names a parameter of another model", spec->name);
  for (uint32_t a = 0; a < mesh->n_axes; a++)
    if (spec->placement.data[a] < ORDO_REPLICATE ||
        mesh->axes[a]->size % ordo_placement_copies(spec->placement.data[a], mesh->axes[a]->size) != 0)
      return refuse(instance, ORDO_E_INVALID, "E-LEAF-REPLACE",
                    "the placement must say REPLICATE or SHARD for every axis of the mesh, or SHARD + n where n + 1 divides its ranks",
                    "a new leaf has no placement on an axis", spec->name);
  for (uint64_t c = 0; c < spec->placement.n_chunks; c++) {
    const ordo_chunk *chunk = &spec->placement.chunks[c];
    if (!ordo_model_param(model, chunk->param) || !chunk_fits(chunk, chunk->param, spec->numel))
      return refuse(instance, ORDO_E_INVALID, "E-LEAF-REPLACE", "a chunk must lie inside its parameter and inside the leaf",
                    "a new leaf has a chunk out of range", spec->name);
  }
  return ORDO_OK;
}

/* All specs of a call were compiled with one size, at least that of the first release. Anything else is not a spec, and the next one
 * would be looked for at a wild address. */
static gboolean are_specs(const ordo_leaf_spec *specs, size_t n)
{
  size_t size = n ? specs->struct_size : ORDO_SIZE_THROUGH(ordo_leaf_spec, reserved);
  const char *at = (const char *)specs;
  if (size < ORDO_SIZE_THROUGH(ordo_leaf_spec, reserved) || size > LARGEST_SPEC || size % sizeof(void *))
    return FALSE;
  for (size_t i = 1; i < n; i++)
    if (((const ordo_leaf_spec *)(const void *)(at + i * size))->struct_size != size)
      return FALSE;
  return TRUE;
}

/* Copies specs as far as their author knew them. */
static ordo_leaf_spec *copy_specs(const ordo_leaf_spec *specs, size_t n)
{
  ordo_leaf_spec *copy = g_new0(ordo_leaf_spec, MAX(n, 1u));
  const char *at = (const char *)specs;
  for (size_t i = 0; i < n; i++) {
    const ordo_leaf_spec *spec = (const ordo_leaf_spec *)(const void *)at;
    memcpy(&copy[i], spec, MIN(spec->struct_size, sizeof copy[i]));
    at += spec->struct_size;
  }
  return copy;
}

static ordo_status check_links(ordo_instance *instance, size_t n_specs, const ordo_leaf_link *links, size_t n_links)
{
  const ordo_model *view = &instance->model->view;
  g_autofree gboolean *named = g_new0(gboolean, MAX(view->n_leaves, 1u));
  for (size_t i = 0; i < n_links; i++) {
    if (links[i].old_index >= view->n_leaves || links[i].new_index >= n_specs)
      return refuse(instance, ORDO_E_INVALID, "E-LEAF-REPLACE", "old_index counts job->model->leaves, new_index counts the specs",
                    "a link is out of range", view->name);
    named[links[i].old_index] = TRUE;
  }
  for (uint32_t i = 0; i < view->n_leaves; i++)
    if (!named[i])
      return refuse(instance, ORDO_E_INVALID, "E-LEAF-REPLACE", "no link names it, so nothing would train it any more",
                    "an old leaf would be lost", view->leaves[i]->name);
  return ORDO_OK;
}

/* A tie group must end up in one leaf, and be counted once. `holder` gets the new leaf per param. */
static ordo_status assign_params(ordo_instance *instance, GPtrArray *fresh, ordo_leaf **holder)
{
  ordo_model_state *model = instance->model;
  g_autofree guint8 *piece = g_new0(guint8, model->params->len);
  for (guint i = 0; i < fresh->len; i++) {
    ordo_leaf_record *record = g_ptr_array_index(fresh, i);
    for (uint32_t k = 0; k < record->leaf.n_params; k++)
      holder[record->leaf.params[k]->index] = &record->leaf;
    for (uint64_t c = 0; c < record->placement.n_chunks; c++)
      piece[record->placement.chunks[c].param->index] = 1;
  }
  for (guint i = 0; i < model->params->len; i++) {
    ordo_param_record *param = g_ptr_array_index(model->params, i);
    guint root = param->root->param.index;
    if (param->root == param)
      continue;
    if (holder[i] && !holder[root])
      holder[root] = holder[i];
    if ((holder[i] && holder[i] != holder[root]) || (piece[i] && piece[root]))
      return refuse(instance, ORDO_E_INVARIANT, "E-INVARIANT-TIE",
                    "tied parameters share one leaf and one storage; apart, they would be updated differently and counted twice",
                    "the step tears a tie group apart", param->param.name);
  }
  for (guint i = 0; i < model->params->len; i++) {
    const ordo_param_record *param = g_ptr_array_index(model->params, i);
    holder[i] = holder[param->root->param.index];
  }
  return ORDO_OK;
}

/* Notes a move of the optimizer, for undo. An empty one cannot be undone and needs not be. */
static void note_rebind(ordo_session *session, const ordo_leaf_map *map, size_t n)
{
  GArray *moves;
  if (n == 0)
    return;
  moves = g_array_new(FALSE, FALSE, sizeof *map);
  g_array_append_vals(moves, map, (guint)n);
  g_ptr_array_add(session->rebinds, moves);
}

static ordo_status rebind_optimizer(ordo_instance *instance, GPtrArray *fresh, const ordo_leaf_link *links, size_t n_links)
{
  ordo_model_state *model = instance->model;
  ordo_session *session = instance->session;
  size_t before = ordo_errors_count(ordo_session_errors(session));
  g_autofree ordo_leaf_map *map = g_new0(ordo_leaf_map, MAX(n_links, 1u));
  ordo_status status;
  if (!model->optimizer)
    return ORDO_OK;
  if (!ORDO_CAN(model->optimizer, ordo_optimizer, rebind))
    return refuse_rebind(instance, model->optimizer, "new leaves");
  for (size_t i = 0; i < n_links; i++)
    map[i] = (ordo_leaf_map){sizeof map[i], model->view.leaves[links[i].old_index], g_ptr_array_index(fresh, links[i].new_index)};
  status = ordo_session_embedder_status(session, "optimizer.rebind", model->optimizer->rebind(model->optimizer->ctx, map, n_links), before);
  if (status == ORDO_OK)
    note_rebind(session, map, n_links);
  return status;
}

/* Old leaves become unusable, params learn where they are now. The embedder is told last; it may refuse. */
static ordo_status switch_over(ordo_instance *instance, GPtrArray *fresh, ordo_leaf **holder)
{
  ordo_model_state *model = instance->model;
  for (uint32_t i = 0; i < model->view.n_leaves; i++) {
    ordo_leaf *leaf = model->view.leaves[i];
    leaf->state = ORDO_LEAF_REPLACED;
    leaf->data = leaf->grad = NULL;
    leaf->grad_state = ORDO_GRAD_NONE;
    g_free((char *)leaf->replaced_by);
    leaf->replaced_by = g_strdup(instance->session->node->id);
  }
  ordo_leaves_publish(model, fresh);
  for (guint i = 0; i < model->params->len; i++) {
    ordo_param_record *param = g_ptr_array_index(model->params, i);
    ordo_leaf_record *record = (ordo_leaf_record *)holder[i];
    gboolean follows;
    ordo_status status;
    param->param.leaf = holder[i];
    param->grad_held = FALSE;
    if (record && instance->session->node->step == ORDO_STEP_PARTITION && record->placement.n_chunks == 1 &&
        record->placement.chunks->kind == ORDO_CHUNK_RECT) {
      memcpy(param->param.local_shape, record->placement.chunks->extent, sizeof param->param.local_shape);
      memcpy(param->param.local_offset, record->placement.chunks->offset, sizeof param->param.local_offset);
    }
    follows = record && ordo_leaf_follows(record, &param->root->param);
    if (follows) {
      param->param.dtype = record->leaf.dtype;
      param->param.grad_dtype = record->leaf.grad_dtype;
    }
    status = point_param(model, &param->param, follows ? record->leaf.data : NULL, follows ? record->leaf.grad : NULL);
    if (status != ORDO_OK)
      return status;
  }
  return ORDO_OK;
}

static ordo_status check_replace(ordo_instance *instance)
{
  ordo_session *session = instance->session;
  if (!session->node || !(instance->decl->replaces & (1u << session->node->step)) || session->node->provider != (int)instance->provider)
    return refuse(instance, ORDO_E_STATE, "E-LEAF-REPLACE",
                  "its manifest lists the steps in which it may (replaces_leaves), and this is none of them",
                  "the plugin replaces leaves outside of its steps", instance->model->view.name);
  if (instance->replaced)
    return refuse(instance, ORDO_E_INVARIANT, "E-INVARIANT-WRAPPED-TWICE",
                  "a step transforms a model once; a second time would shard the shards",
                  "the plugin replaces leaves a second time in one step", instance->model->view.name);
  return ORDO_OK;
}

ordo_status ordo_leaves_replace(ordo_instance *instance, const ordo_leaf_spec *given, size_t n_specs, const ordo_leaf_link *links,
                                size_t n_links)
{
  ordo_model_state *model = instance->model;
  ordo_session *session = instance->session;
  g_autofree ordo_leaf_spec *specs = NULL;
  g_autofree ordo_leaf **holder = g_new0(ordo_leaf *, model->params->len);
  g_autoptr(GPtrArray) fresh = g_ptr_array_new();
  ordo_undo *undo;
  ordo_status status = check_replace(instance);
  if (status == ORDO_OK && !are_specs(given, n_specs))
    status = refuse(instance, ORDO_E_INVALID, "E-LEAF-REPLACE", "struct_size is sizeof(ordo_leaf_spec), the same in every element",
                    "the new leaves are not an array of ordo_leaf_spec", model->view.name);
  if (status == ORDO_OK)
    specs = copy_specs(given, n_specs);
  for (size_t i = 0; i < n_specs && status == ORDO_OK; i++)
    status = check_spec(instance, &specs[i]);
  if (status == ORDO_OK)
    status = check_links(instance, n_specs, links, n_links);
  if (status != ORDO_OK)
    return status;
  undo = ordo_undo_new(session);
  for (size_t i = 0; i < n_specs; i++)
    g_ptr_array_add(fresh, ordo_leaf_record_new(model, &specs[i], instance));
  status = assign_params(instance, fresh, holder);
  if (status == ORDO_OK)
    status = rebind_optimizer(instance, fresh, links, n_links);
  if (status == ORDO_OK)
    status = switch_over(instance, fresh, holder);
  if (status == ORDO_OK)
    instance->replaced = TRUE;
  else
    ordo_undo_apply(undo, session);
  ordo_undo_free(undo);
  return status;
}

ordo_status ordo_leaves_set_master(ordo_instance *instance, ordo_leaf_record *record, float *data, float *grad)
{
  ordo_model_state *model = instance->model;
  ordo_session *session = instance->session;
  ordo_leaf_record *master;
  ordo_leaf_map map;
  ordo_leaf_spec spec = {.struct_size = sizeof spec,
                         .name = record->leaf.name,
                         .dtype = ORDO_F32,
                         .grad_dtype = ORDO_F32,
                         .numel = record->leaf.numel,
                         .data = data,
                         .grad = grad,
                         .params = record->leaf.params,
                         .n_params = record->leaf.n_params,
                         .placement = record->placement,
                         .flags = record->leaf.flags};
  size_t before = ordo_errors_count(ordo_session_errors(session));
  ordo_status status;
  if (!session->node || (session->node->step != ORDO_STEP_WRAP_OPTIMIZER && session->node->step != ORDO_STEP_INITIALIZE))
    return refuse(instance, ORDO_E_STATE, "E-LEAF-REPLACE", "masters are made in precision.wrap_optimizer or precision.initialize",
                  "a master is set outside of its step", record->leaf.name);
  if (record->is_master)
    return refuse(instance, ORDO_E_INVALID, "E-LEAF-REPLACE",
                  "the optimizer would follow to it, and nothing would carry its values on to the leaf of the model",
                  "a master is given to a master", record->leaf.name);
  if (record->leaf.master)
    return refuse(instance, ORDO_E_INVARIANT, "E-INVARIANT-WRAPPED-TWICE", "a leaf has one master", "a second master is given to a leaf",
                  record->leaf.name);
  if (!data && record->leaf.numel > 0)
    return refuse(instance, ORDO_E_INVALID, "E-LEAF-REPLACE", "a master needs storage", "a master without data", record->leaf.name);
  if (data && data == grad)
    return refuse(instance, ORDO_E_INVALID, "E-LEAF-REPLACE", "the optimizer reads one while it writes the other",
                  "a master whose gradient is its own storage", record->leaf.name);
  if (model->optimizer && !ORDO_CAN(model->optimizer, ordo_optimizer, rebind))
    return refuse_rebind(instance, model->optimizer, "masters");
  master = ordo_leaf_record_new(model, &spec, instance);
  master->is_master = TRUE;
  master->leaf.index = record->leaf.index;
  map = (ordo_leaf_map){sizeof map, &record->leaf, &master->leaf};
  if (model->optimizer) {
    status = ordo_session_embedder_status(session, "optimizer.rebind", model->optimizer->rebind(model->optimizer->ctx, &map, 1), before);
    if (status != ORDO_OK) {
      master->leaf.state = ORDO_LEAF_REPLACED;
      return status;
    }
    note_rebind(session, &map, 1);
  }
  record->leaf.master = &master->leaf;
  return ORDO_OK;
}

ordo_leaf_record *ordo_leaves_find(ordo_session *session, const ordo_leaf *leaf)
{
  for (guint m = 0; m < session->models->len; m++) {
    const ordo_model_state *model = g_ptr_array_index(session->models, m);
    gpointer record = g_hash_table_lookup(model->known, leaf);
    if (record)
      return record;
  }
  return NULL;
}

ordo_status ordo_leaves_stale(ordo_session *session, const ordo_leaf *leaf)
{
  return ordo_errors_push(ordo_session_errors(session), ORDO_E_STALE, "E-LEAF-STALE", leaf->replaced_by,
                          "a step of the set-up replaced all leaves of the model; the old ones are not trained any more",
                          "use the leaves of ordo_session_model() after the set-up, and keep none across a step",
                          "leaf '%s' was replaced by %s", leaf->name, leaf->replaced_by);
}

void ordo_leaves_sweep(ordo_model_state *model)
{
  ordo_memory *memory = model->session->memory;
  g_autoptr(GHashTable) used = g_hash_table_new(NULL, NULL);
  for (guint i = 0; i < model->params->len; i++) {
    const ordo_param *param = g_ptr_array_index(model->params, i);
    g_hash_table_add(used, param->data);
    g_hash_table_add(used, param->grad);
  }
  for (uint32_t i = 0; i < model->view.n_leaves; i++) {
    g_hash_table_add(used, model->view.leaves[i]->data);
    g_hash_table_add(used, model->view.leaves[i]->grad);
  }
  for (guint i = 0; i < model->host_storage->len;) {
    gpointer storage = g_ptr_array_index(model->host_storage, i);
    if (g_hash_table_contains(used, storage)) {
      i++;
    } else {
      g_ptr_array_remove_index_fast(model->host_storage, i);
      ordo_memory_release(memory, storage);
    }
  }
}
