/* state.c - weights and optimizer state out of a session and into it, whatever the placement: the half of a checkpoint that is in memory.
 *
 * A sharded dictionary is the chunks of every rank (leaf->placement), a full one every parameter whole. Both are made of one operation,
 * a chunk of a leaf as packed fp32; a strategy that keeps data in its own way answers it itself (state.h), else the placement says enough.
 * Padding lies outside of every chunk, so it can neither leave nor enter.
 *
 * Whole parameters are put together as bits: every element has one rank that sends it and zeros from the others, and a sum of integers
 * gives -0 and NaN back as they were, which a sum of floats does not.
 */
#include "session.h"

#include <string.h>

enum { FOLLOW_PIECE = 512 }; /* elements that are rounded at a time */

/* Why state stays where it is while a scope of full parameters is open. */
static const char copies[] = "the program changes copies there, which reach the shards, and write over them, when it is closed";

static ordo_status usable(ordo_session *session, const char *call)
{
  if (session->state == ORDO_SESSION_SETUP || session->state == ORDO_SESSION_READY || session->state == ORDO_SESSION_EVAL)
    return ORDO_OK;
  return ordo_session_refuse(session, call, "between training steps, inside an evaluation when no unit is open, and in restore steps");
}

static ordo_status refuse(ordo_session *session, ordo_status status, const char *code, const char *where, const char *why, const char *next,
                          const char *what)
{
  return ordo_errors_push(ordo_session_errors(session), status, code, where, why, next, "%s", what);
}

static ordo_leaf *work_leaf(ordo_leaf_record *record)
{
  return record->leaf.master ? record->leaf.master : &record->leaf;
}

/* ---- one slot of a leaf ---- */

static ordo_status check_slot(ordo_leaf_record *record, int32_t slot)
{
  const ordo_model_state *model = record->model;
  const ordo_optimizer *optimizer = model->optimizer;
  uint32_t n = optimizer && optimizer->n_slots && optimizer->slot ? optimizer->n_slots(optimizer->ctx) : 0;
  g_autofree char *why = NULL;
  if (slot < 0 || ((uint32_t)slot < n && (record->leaf.flags & ORDO_PARAM_REQUIRES_GRAD)))
    return ORDO_OK;
  why = (uint32_t)slot >= n ? g_strdup_printf("the optimizer of model '%s' has %u state tensors for a leaf", model->view.name, n)
                            : g_strdup("the leaf is frozen: no optimizer has it");
  return refuse(model->session, ORDO_E_INVALID, "E-STATE-SLOT", record->leaf.name, why,
                "ask the optimizer for n_slots, and for state of trained leaves only", "there is no such optimizer state");
}

/* State that does not exist yet is made where it is to be written. */
static ordo_status ensure_slot(ordo_leaf_record *record, int32_t slot)
{
  ordo_session *session = record->model->session;
  const ordo_optimizer *optimizer = record->model->optimizer;
  size_t before = ordo_errors_count(ordo_session_errors(session));
  ordo_leaf *leaf = work_leaf(record);
  if (slot < 0 || leaf->numel == 0 || optimizer->slot(optimizer->ctx, leaf, (uint32_t)slot))
    return ORDO_OK;
  if (!ORDO_CAN(optimizer, ordo_optimizer, restore))
    return refuse(session, ORDO_E_UNSUPPORTED, "E-STATE-SLOT", leaf->name, "it has not updated this leaf yet, and it has no restore",
                  "give ordo_optimizer a restore, or import after a step", "the optimizer cannot make its state");
  return ordo_session_embedder_status(session, "restore", optimizer->restore(optimizer->ctx, leaf, 0), before);
}

/* Optimizer state is fp32 (optimizer.h). */
static ordo_status storage_of(ordo_leaf_record *record, int32_t slot, void **storage, ordo_dtype *dtype)
{
  const ordo_leaf *leaf = work_leaf(record);
  const ordo_optimizer *optimizer = record->model->optimizer;
  *dtype = slot < 0 ? leaf->dtype : ORDO_F32;
  if (!ordo_convert_knows(*dtype) || (slot < 0 && leaf->opaque))
    return refuse(record->model->session, ORDO_E_UNSUPPORTED, "E-STATE-DTYPE", leaf->name,
                  "its elements are not fp32, bf16 or fp16, it has no fp32 master, and its strategy has no export_chunk",
                  "use a precision plugin with fp32 masters", "a leaf cannot be exported as fp32");
  *storage = slot < 0 ? leaf->data : optimizer->slot(optimizer->ctx, leaf, (uint32_t)slot);
  return *storage ? ORDO_OK : ORDO_E_NOT_FOUND;
}

/* ---- a chunk of it ---- */

static gboolean inside(const ordo_chunk *held, const ordo_chunk *chunk)
{
  if (chunk->kind != held->kind || chunk->param != held->param)
    return FALSE;
  if (chunk->kind == ORDO_CHUNK_FLAT)
    return chunk->begin >= held->begin && chunk->end <= held->end && chunk->begin <= chunk->end;
  if (chunk->ndim != held->ndim)
    return FALSE;
  for (uint32_t d = 0; d < held->ndim; d++)
    if (chunk->extent[d] < 0 || chunk->offset[d] < held->offset[d] ||
        chunk->extent[d] > held->offset[d] + held->extent[d] - chunk->offset[d])
      return FALSE;
  return TRUE;
}

static const ordo_chunk *find_held(const ordo_leaf_record *record, const ordo_chunk *chunk)
{
  for (uint64_t c = 0; c < record->placement.n_chunks; c++)
    if (inside(&record->placement.chunks[c], chunk))
      return &record->placement.chunks[c];
  return NULL;
}

/* Calls `move` for each run of elements that are consecutive in the chunk and in the array that `shape` and `offset` lay out around it. */
typedef void (*run_function)(void *ctx, int64_t in_array, int64_t in_chunk, int64_t count);
static void for_runs(const ordo_chunk *chunk, const int64_t *shape, const int64_t *offset, int64_t flat_offset, run_function move,
                     void *ctx)
{
  int64_t index[ORDO_MAX_DIMS] = {0}, numel = ordo_chunk_numel(chunk), run = numel;
  if (chunk->kind == ORDO_CHUNK_RECT && chunk->ndim > 0)
    run = chunk->extent[chunk->ndim - 1];
  for (int64_t done = 0; done < numel; done += run) {
    int64_t at = chunk->begin - flat_offset;
    if (chunk->kind == ORDO_CHUNK_RECT) {
      at = 0;
      for (uint32_t d = 0; d < chunk->ndim; d++)
        at = at * shape[d] + chunk->offset[d] - offset[d] + index[d];
      for (uint32_t d = chunk->ndim > 0 ? chunk->ndim - 1 : 0; d-- > 0 && ++index[d] == chunk->extent[d];)
        index[d] = 0;
    }
    move(ctx, at, done, run);
  }
}

typedef struct copying {
  void *array;
  ordo_dtype dtype; /* of the array */
  float *packed;
  gboolean out;
} copying;

static void copy_run(void *ctx, int64_t in_array, int64_t in_chunk, int64_t count)
{
  const copying *c = ctx;
  void *array = (char *)c->array + (size_t)in_array * ordo_dtype_size(c->dtype);
  if (c->out)
    ordo_convert_widen(c->dtype, array, count, c->packed + in_chunk);
  else
    ordo_convert_narrow(c->dtype, c->packed + in_chunk, count, array);
}

/* The model computes with the rounded weight; it must not wait for the next update to follow its master. */
static void refresh_stored(ordo_leaf_record *record, const ordo_chunk *held)
{
  const ordo_leaf *leaf = &record->leaf;
  if (leaf->master && leaf->data && ordo_dtype_size(leaf->dtype) && !record->model->session->space)
    ordo_convert_narrow(leaf->dtype, (const float *)leaf->master->data + held->leaf_offset, ordo_chunk_numel(held),
                        (char *)leaf->data + (size_t)held->leaf_offset * ordo_dtype_size(leaf->dtype));
}

/* The other way round: elements that were written as the model stores them become their master's. One that is still the rounding of its
 * master was not written, and keeps what the rounding lost. */
static void follow_stored(ordo_leaf_record *record, const ordo_chunk *held)
{
  const ordo_leaf *leaf = &record->leaf;
  const size_t size = ordo_dtype_size(leaf->dtype);
  float *master = (float *)leaf->master->data + held->leaf_offset;
  const char *stored = (const char *)leaf->data + (size_t)held->leaf_offset * size;
  const int64_t numel = ordo_chunk_numel(held);
  uint64_t rounded[FOLLOW_PIECE];
  for (int64_t i = 0; i < numel; i += FOLLOW_PIECE) {
    const int64_t n = MIN(numel - i, (int64_t)FOLLOW_PIECE);
    ordo_convert_narrow(leaf->dtype, master + i, n, rounded);
    for (int64_t k = 0; k < n; k++) {
      const char *now = stored + (size_t)(i + k) * size;
      if (memcmp((const char *)rounded + (size_t)k * size, now, size) != 0)
        ordo_convert_widen(leaf->dtype, now, 1, &master[i + k]);
    }
  }
}

void ordo_state_follow_stored(ordo_model_state *model)
{
  for (uint32_t i = 0; !model->session->space && i < model->view.n_leaves; i++) {
    ordo_leaf_record *record = (ordo_leaf_record *)model->view.leaves[i];
    const ordo_leaf *leaf = &record->leaf;
    if (!leaf->master || !leaf->master->data || !leaf->data || !ordo_convert_knows(leaf->dtype))
      continue;
    for (uint64_t c = 0; c < record->placement.n_chunks; c++)
      follow_stored(record, &record->placement.chunks[c]);
  }
}

static ordo_status copy_chunk(ordo_leaf_record *record, const ordo_chunk *held, const ordo_chunk *chunk, int32_t slot, float *packed,
                              gboolean out)
{
  copying c = {.packed = packed, .out = out};
  ordo_status status = storage_of(record, slot, &c.array, &c.dtype);
  if (status != ORDO_OK)
    return status;
  c.array = (char *)c.array + (size_t)held->leaf_offset * ordo_dtype_size(c.dtype);
  for_runs(chunk, held->extent, held->offset, held->begin, copy_run, &c);
  if (!out && slot < 0)
    refresh_stored(record, held);
  return ORDO_OK;
}

/* Weights of an opaque type: the leaf is unpacked, and packed again after an import. Whoever sharded it need not know how. */
static ordo_status move_packed(ordo_leaf_record *record, const ordo_chunk *held, const ordo_chunk *chunk, float *packed, gboolean out)
{
  const ordo_leaf *leaf = &record->leaf;
  g_autofree float *values = g_try_new(float, (gsize)MAX(leaf->numel, 1));
  copying c = {.dtype = ORDO_F32, .packed = packed, .out = out};
  if (!values)
    return ordo_weights_no_memory(record->model, leaf, (size_t)leaf->numel * sizeof(float));
  if (!leaf->data)
    return ORDO_E_NOT_FOUND;
  c.array = values + held->leaf_offset;
  ordo_status status = ordo_opaque_unpack(record->model, leaf, values);
  if (status == ORDO_OK)
    for_runs(chunk, held->extent, held->offset, held->begin, copy_run, &c);
  if (status == ORDO_OK && !out)
    status = ordo_opaque_pack(record->model, leaf, values);
  return status;
}

/* Slots are asked for here, so that "no state yet" is one answer whoever copies. */
static ordo_status move_chunk(ordo_leaf_record *record, const ordo_chunk *chunk, int32_t slot, float *packed, gboolean out)
{
  ordo_session *session = record->model->session;
  const ordo_instance *owner = record->owner;
  const ordo_strategy *table = owner ? owner->plugin->strategy : NULL;
  const ordo_state_ops *ops = table && ORDO_HAS(table, ordo_strategy, state) ? table->state : NULL;
  const ordo_chunk *held = find_held(record, chunk);
  const ordo_leaf *leaf = work_leaf(record);
  if (ordo_chunk_numel(chunk) == 0)
    return ORDO_OK;
  if (!held)
    return refuse(session, ORDO_E_INVALID, "E-STATE-CHUNK", record->leaf.name,
                  "a chunk must lie inside one chunk of the leaf's placement on this rank and be of the same kind",
                  "walk leaf->placement->chunks, and ask other ranks for the rest", "a chunk is not held here");
  if (slot >= 0 && !record->model->optimizer->slot(record->model->optimizer->ctx, leaf, (uint32_t)slot))
    return ORDO_E_NOT_FOUND;
  if (slot < 0 && leaf->opaque)
    return move_packed(record, held, chunk, packed, out);
  if (out && ops && ORDO_CAN(ops, ordo_state_ops, export_chunk))
    return ordo_session_plugin_status(session, owner->plugin, ops->export_chunk(owner->self, &record->leaf, chunk, slot, packed), 0);
  if (!out && ops && ORDO_CAN(ops, ordo_state_ops, import_chunk))
    return ordo_session_plugin_status(session, owner->plugin, ops->import_chunk(owner->self, &record->leaf, chunk, slot, packed), 0);
  return copy_chunk(record, held, chunk, slot, packed, out);
}

/* The live leaf behind the pointer, with everything checked that does not depend on the chunk. */
static ordo_status open_leaf(ordo_session *session, const char *call, const ordo_leaf *leaf, int32_t slot, ordo_leaf_record **record)
{
  ordo_status status = usable(session, call);
  session->where = call;
  if (status != ORDO_OK)
    return status;
  *record = ordo_leaves_find(session, leaf);
  if (!*record || (*record)->is_master)
    return refuse(session, ORDO_E_INVALID, "E-LEAF-STALE", call, "no leaf of this session stands at that address",
                  "take leaves from ordo_session_model()", "the pointer is no leaf of this session");
  status = leaf->state == ORDO_LEAF_LIVE ? ORDO_OK : ordo_leaves_stale(session, leaf);
  if (status == ORDO_OK)
    status = ordo_scope_check(session, (*record)->model, call, copies);
  return status == ORDO_OK ? check_slot(*record, slot) : status;
}

ordo_status ordo_session_export_chunk(ordo_session *session, const ordo_leaf *leaf, const ordo_chunk *chunk, int32_t slot, float *dst)
{
  ordo_leaf_record *record = NULL;
  ORDO_NEED(session, leaf, "ordo_session_export_chunk");
  ORDO_NEED(session, chunk, "ordo_session_export_chunk");
  ORDO_NEED(session, dst, "ordo_session_export_chunk");
  ordo_session_enter(session);
  ordo_status status = open_leaf(session, "ordo_session_export_chunk", leaf, slot, &record);
  return ordo_session_leave(session, status == ORDO_OK ? move_chunk(record, chunk, slot, dst, TRUE) : status);
}

ordo_status ordo_session_import_chunk(ordo_session *session, const ordo_leaf *leaf, const ordo_chunk *chunk, int32_t slot, const float *src)
{
  ordo_leaf_record *record = NULL;
  ORDO_NEED(session, leaf, "ordo_session_import_chunk");
  ORDO_NEED(session, chunk, "ordo_session_import_chunk");
  ORDO_NEED(session, src, "ordo_session_import_chunk");
  ordo_session_enter(session);
  ordo_status status = open_leaf(session, "ordo_session_import_chunk", leaf, slot, &record);
  if (status == ORDO_OK)
    status = ensure_slot(record, slot);
  return ordo_session_leave(session, status == ORDO_OK ? move_chunk(record, chunk, slot, (float *)(guintptr)src, FALSE) : status);
}

/* ---- a whole parameter ---- */

static ordo_status open_param(ordo_session *session, const char *call, const ordo_param *param, ordo_model_state **model)
{
  ordo_status status = usable(session, call);
  session->where = call;
  for (guint m = 0; status == ORDO_OK && m < session->models->len; m++) {
    *model = g_ptr_array_index(session->models, m);
    if (ordo_model_param(*model, param))
      return ordo_scope_check(session, *model, call, copies);
  }
  return status != ORDO_OK ? status
                           : refuse(session, ORDO_E_INVALID, "E-STEP-ARGUMENT", call, "no parameter of this session stands at that address",
                                    "take parameters from ordo_session_model()", "the pointer is no parameter of this session");
}

/* One rank sends an element: the first of its copies on every axis. */
static gboolean is_mine(const ordo_leaf_record *record)
{
  const ordo_mesh *mesh = record->model->session->mesh;
  for (uint32_t a = 0; a < mesh->n_axes; a++)
    if (mesh->axes[a]->coordinate % ordo_placement_copies(record->placement.data[a], mesh->axes[a]->size) != 0)
      return FALSE;
  return TRUE;
}

/* Chunks of a parameter between the leaves and `full`. */
static ordo_status move_param(ordo_model_state *model, const ordo_param *param, int32_t slot, float *full, gboolean out, int32_t *found)
{
  static const int64_t origin[ORDO_MAX_DIMS] = {0};
  for (uint32_t i = 0; i < model->view.n_leaves; i++) {
    ordo_leaf_record *record = (ordo_leaf_record *)model->view.leaves[i];
    for (uint64_t c = 0; c < record->placement.n_chunks; c++) {
      const ordo_chunk *chunk = &record->placement.chunks[c];
      ordo_status status = ORDO_OK;
      if (chunk->param != param || ordo_chunk_numel(chunk) == 0 || (out && !is_mine(record)))
        continue;
      g_autofree float *packed = g_try_new(float, (gsize)ordo_chunk_numel(chunk));
      copying between = {full, ORDO_F32, packed, !out};
      if (!packed)
        return refuse(model->session, ORDO_E_NOMEM, "E-NOMEM", param->name, "a chunk of it did not fit", "free memory", "out of memory");
      if (!out)
        for_runs(chunk, param->shape, origin, 0, copy_run, &between);
      if ((status = check_slot(record, slot)) == ORDO_OK && !out)
        status = ensure_slot(record, slot);
      if (status == ORDO_OK)
        status = move_chunk(record, chunk, slot, packed, out);
      if (status == ORDO_E_NOT_FOUND)
        continue;
      if (status != ORDO_OK)
        return status;
      *found = 1;
      if (out)
        for_runs(chunk, param->shape, origin, 0, copy_run, &between);
    }
  }
  return ORDO_OK;
}

/* Ranks agree on success before anybody waits for elements of a rank that has none. */
static ordo_status agree(ordo_session *session, const char *name, ordo_status status, int32_t *found)
{
  int32_t votes[2] = {status != ORDO_OK, *found};
  ordo_status vote =
      session->mesh->size > 1 ? ordo_session_reduce(session, session->mesh->world, votes, 2, ORDO_I32, ORDO_MAX, "export") : ORDO_OK;
  if (vote != ORDO_OK)
    return ordo_session_fail(session, vote);
  *found = votes[1];
  if (status == ORDO_OK && votes[0])
    return refuse(session, ORDO_E_STATE, "E-STATE-PEER", name, "it was refused on another rank, which says why",
                  "look at the first error of the other ranks", "a parameter could not be exported on every rank");
  return status;
}

ordo_status ordo_session_export_param(ordo_session *session, const ordo_param *param, int32_t slot, float *dst)
{
  ordo_model_state *model = NULL;
  int32_t found = 0;
  ORDO_NEED(session, param, "ordo_session_export_param");
  ordo_session_enter(session);
  ordo_status status = open_param(session, "ordo_session_export_param", param, &model);
  if (status != ORDO_OK)
    return ordo_session_leave(session, status);
  const ordo_param *root = &((const ordo_param_record *)param)->root->param;
  g_autofree float *full = g_try_new0(float, (gsize)MAX(param->numel, 1));
  if (full)
    status = move_param(model, root, slot, full, TRUE, &found);
  else
    status =
        refuse(session, ORDO_E_NOMEM, "E-NOMEM", param->name, "the whole parameter did not fit", "export chunks instead", "out of memory");
  status = agree(session, param->name, status, &found);
  if (status != ORDO_OK || !found)
    return ordo_session_leave(session, status == ORDO_OK && param->numel > 0 ? ORDO_E_NOT_FOUND : status);
  if (session->mesh->size > 1) {
    status = ordo_session_reduce(session, session->mesh->world, full, param->numel, ORDO_I32, ORDO_SUM, "export");
    status = status == ORDO_OK ? status : ordo_session_fail(session, status);
  }
  if (status == ORDO_OK && dst)
    memcpy(dst, full, (size_t)param->numel * sizeof *dst);
  return ordo_session_leave(session, status);
}

ordo_status ordo_session_import_param(ordo_session *session, const ordo_param *param, int32_t slot, const float *src)
{
  ordo_model_state *model = NULL;
  int32_t found = 0;
  ORDO_NEED(session, param, "ordo_session_import_param");
  ORDO_NEED(session, src, "ordo_session_import_param");
  ordo_session_enter(session);
  ordo_status status = open_param(session, "ordo_session_import_param", param, &model);
  if (status == ORDO_OK)
    status = move_param(model, &((const ordo_param_record *)param)->root->param, slot, (float *)(guintptr)src, FALSE, &found);
  return ordo_session_leave(session, status);
}

/* ---- how often it was updated ---- */

static gboolean holds(const ordo_leaf *leaf, const ordo_param *param)
{
  for (uint32_t k = 0; k < leaf->n_params; k++)
    if (leaf->params[k] == param)
      return TRUE;
  return FALSE;
}

static ordo_status no_updates(ordo_session *session, const ordo_param *param)
{
  return refuse(session, ORDO_E_UNSUPPORTED, "E-STATE-SLOT", param->name, "it has no `updates` and no `restore`, or there is none",
                "give ordo_optimizer both", "the optimizer does not say how often it updated a leaf");
}

ordo_status ordo_session_export_updates(ordo_session *session, const ordo_param *param, int64_t *updates)
{
  ordo_model_state *model = NULL;
  int64_t most = 0;
  ORDO_NEED(session, param, "ordo_session_export_updates");
  ORDO_NEED(session, updates, "ordo_session_export_updates");
  ordo_session_enter(session);
  ordo_status status = open_param(session, "ordo_session_export_updates", param, &model);
  if (status == ORDO_OK && !(model->optimizer && ORDO_CAN(model->optimizer, ordo_optimizer, updates)))
    status = no_updates(session, param);
  for (uint32_t i = 0; status == ORDO_OK && i < model->view.n_leaves; i++) {
    ordo_leaf_record *record = (ordo_leaf_record *)model->view.leaves[i];
    if (holds(&record->leaf, param))
      most = MAX(most, model->optimizer->updates(model->optimizer->ctx, work_leaf(record)));
  }
  if (status == ORDO_OK && session->mesh->size > 1) {
    status = ordo_session_reduce(session, session->mesh->world, &most, 1, ORDO_I64, ORDO_MAX, "export");
    status = status == ORDO_OK ? status : ordo_session_fail(session, status);
  }
  *updates = most;
  return ordo_session_leave(session, status);
}

ordo_status ordo_session_import_updates(ordo_session *session, const ordo_param *param, int64_t updates)
{
  ordo_model_state *model = NULL;
  ORDO_NEED(session, param, "ordo_session_import_updates");
  ordo_session_enter(session);
  ordo_status status = open_param(session, "ordo_session_import_updates", param, &model);
  if (status == ORDO_OK && !(model->optimizer && ORDO_CAN(model->optimizer, ordo_optimizer, restore)))
    status = no_updates(session, param);
  for (uint32_t i = 0; status == ORDO_OK && i < model->view.n_leaves; i++) {
    ordo_leaf_record *record = (ordo_leaf_record *)model->view.leaves[i];
    size_t before = ordo_errors_count(ordo_session_errors(session));
    if (!holds(&record->leaf, param) || (status = check_slot(record, 0)) != ORDO_OK)
      continue;
    status = ordo_session_embedder_status(session, "restore", model->optimizer->restore(model->optimizer->ctx, work_leaf(record), updates),
                                          before);
  }
  return ordo_session_leave(session, status);
}
