/* weights.c - weights into leaves: load, load_sharded, sync, and the gradients that nobody allocated.
 *
 * A leaf that came with data keeps it. One without gets host storage, filled chunk by chunk from the embedder's source, so that a rank
 * reads only what it owns and nothing is communicated. weights.sync then makes replicas equal from rank 0: equal replicas are a step of
 * the plan that can be seen, not a broadcast hidden in a strategy. In a dry run leaves get addresses, and the same messages are sent.
 */
#include "../comm/reduce.h"
#include "session.h"

#include <string.h>

enum { STAGING_BYTES = 4 << 20 }; /* best message size on one node: 1-4 MiB */

ordo_status ordo_weights_no_memory(ordo_model_state *model, const ordo_leaf *leaf, size_t bytes)
{
  g_autofree char *why = g_strdup_printf("%zu bytes were asked for", bytes);
  return ordo_errors_push(ordo_session_errors(model->session), ORDO_E_NOMEM, "E-NOMEM", leaf->name, why,
                          "use a smaller model, more ranks with a sharding strategy, or more memory", "out of memory for leaf '%s'",
                          leaf->name);
}

static size_t leaf_bytes(const ordo_leaf *leaf, int64_t numel)
{
  const ordo_dtype_ops *ops = leaf->opaque;
  if (ops)
    return (size_t)((numel + ops->block_elements - 1) / ops->block_elements * ops->block_bytes + ops->side_bytes);
  return (size_t)numel * ordo_dtype_size(leaf->dtype);
}

void *ordo_weights_materialise(ordo_model_state *model, size_t bytes, uint32_t tag)
{
  void *storage = ordo_memory_alloc(model->session->memory, bytes, tag);
  if (storage)
    g_ptr_array_add(model->host_storage, storage);
  return storage;
}

void ordo_weights_let_go(ordo_model_state *model, const ordo_leaf *leaf, void *storage)
{
  if (!storage || !g_ptr_array_remove_fast(model->host_storage, storage))
    return;
  ordo_undo_forget(model, leaf, storage);
  ordo_memory_release(model->session->memory, storage);
}

static float source_at(const ordo_param_record *record, int64_t index)
{
  return record->source_dtype == ORDO_F64 ? (float)((const double *)record->source)[index] : ((const float *)record->source)[index];
}

/* Reads a rectangle or a range out of storage that the embedder described the param with. */
static void read_source(const ordo_param_record *record, const ordo_chunk *chunk, float *dst)
{
  int64_t index[ORDO_MAX_DIMS] = {0}, numel = ordo_chunk_numel(chunk);
  for (int64_t i = 0; i < numel; i++) {
    int64_t at = chunk->begin + i;
    if (chunk->kind == ORDO_CHUNK_RECT) {
      at = 0;
      for (uint32_t d = 0; d < chunk->ndim; d++)
        at = at * record->param.shape[d] + chunk->offset[d] + index[d];
      for (uint32_t d = chunk->ndim; d-- > 0 && ++index[d] == chunk->extent[d];)
        index[d] = 0;
    }
    dst[i] = source_at(record, at);
  }
}

ordo_status ordo_weights_read_chunk(ordo_model_state *model, const ordo_chunk *chunk, float *dst)
{
  ordo_session *session = model->session;
  const ordo_embedder *embedder = &session->embedder;
  size_t before = ordo_errors_count(ordo_session_errors(session));
  const ordo_param_record *record = ordo_model_param(model, chunk->param);
  if (!record)
    return ordo_errors_push(ordo_session_errors(session), ORDO_E_INVALID, "E-WEIGHTS-SOURCE", session->where,
                            "the chunk's param is not one of job->model", "report it to the plugin's author",
                            "weights were asked for a parameter of another model");
  if (ordo_chunk_numel(chunk) == 0)
    return ORDO_OK;
  if (record->source && (record->source_dtype == ORDO_F32 || record->source_dtype == ORDO_F64)) {
    read_source(record, chunk, dst);
    return ORDO_OK;
  }
  if (!embedder->weights_read)
    return ordo_errors_push(ordo_session_errors(session), ORDO_E_INVALID, "E-WEIGHTS-SOURCE", chunk->param->name,
                            "the parameter was described without fp32 data and the embedder has no weights_read",
                            "set ordo_embedder.weights_read, or describe every parameter with data",
                            "there is no source of weights for '%s'", chunk->param->name);
  return ordo_session_embedder_status(session, "weights_read", embedder->weights_read(embedder->ctx, &model->view, chunk, dst), before);
}

/* Fills a leaf of another type than fp32 through a buffer of its whole size. */
static ordo_status fill_converted(ordo_model_state *model, ordo_leaf *leaf)
{
  g_autofree float *values = g_try_new0(float, (gsize)MAX(leaf->numel, 1));
  ordo_status status = values ? ORDO_OK : ordo_weights_no_memory(model, leaf, (size_t)leaf->numel * sizeof(float));
  for (uint64_t c = 0; c < leaf->placement->n_chunks && status == ORDO_OK; c++)
    status = ordo_weights_read_chunk(model, &leaf->placement->chunks[c], values + leaf->placement->chunks[c].leaf_offset);
  if (status != ORDO_OK)
    return status;
  if (leaf->opaque)
    return ordo_opaque_pack(model, leaf, values);
  if (leaf->dtype != ORDO_F64 && leaf->dtype != ORDO_BF16 && leaf->dtype != ORDO_F16)
    return ordo_errors_push(ordo_session_errors(model->session), ORDO_E_UNSUPPORTED, "E-WEIGHTS-SOURCE", leaf->name,
                            "integers cannot be filled from fp32 weights", "describe integer parameters with data",
                            "the host cannot load leaf '%s'", leaf->name);
  ordo_convert_narrow(leaf->dtype, values, leaf->numel, leaf->data);
  return ORDO_OK;
}

static ordo_status fill(ordo_model_state *model, ordo_leaf *leaf)
{
  ordo_status status = ORDO_OK;
  if (model->session->space)
    return ORDO_OK;
  if (leaf->dtype != ORDO_F32 || leaf->opaque)
    return fill_converted(model, leaf);
  for (uint64_t c = 0; c < leaf->placement->n_chunks && status == ORDO_OK; c++)
    status = ordo_weights_read_chunk(model, &leaf->placement->chunks[c], (float *)leaf->data + leaf->placement->chunks[c].leaf_offset);
  return status;
}

/* Gives the leaf storage if it has none. *fresh says whether it did. */
static ordo_status ensure_data(ordo_model_state *model, ordo_leaf *leaf, gboolean *fresh)
{
  size_t bytes = leaf_bytes(leaf, leaf->numel);
  *fresh = leaf->data == NULL && leaf->numel > 0;
  if (!*fresh)
    return ORDO_OK;
  leaf->data = ordo_weights_materialise(model, bytes, ORDO_MEM_WEIGHTS);
  return leaf->data ? ORDO_OK : ordo_weights_no_memory(model, leaf, bytes);
}

/* Params that compute in the leaf itself learn where it is. */
static ordo_status bind_params(ordo_model_state *model, ordo_leaf *leaf)
{
  ordo_param_record *record = leaf->n_params ? (ordo_param_record *)leaf->params[0] : NULL;
  if (!record || record->param.leaf != leaf || !ordo_leaf_follows((ordo_leaf_record *)leaf, &record->param))
    return ORDO_OK;
  return ordo_leaves_bind(model, record, leaf->data, leaf->grad);
}

/* Leaves that have no storage yet; `packed`: those of opaque types alone. */
static ordo_status load_fresh(ordo_model_state *model, gboolean packed)
{
  for (uint32_t i = 0; i < model->view.n_leaves; i++) {
    ordo_leaf *leaf = model->view.leaves[i];
    gboolean fresh;
    if (packed && !leaf->opaque)
      continue;
    ordo_status status = ensure_data(model, leaf, &fresh);
    if (status == ORDO_OK && fresh)
      status = fill(model, leaf);
    if (status == ORDO_OK && fresh)
      status = bind_params(model, leaf);
    if (status != ORDO_OK)
      return status;
  }
  return ORDO_OK;
}

ordo_status ordo_weights_load(ordo_model_state *model)
{
  return load_fresh(model, FALSE);
}

ordo_status ordo_weights_load_packed(ordo_model_state *model)
{
  return load_fresh(model, TRUE);
}

ordo_status ordo_weights_load_sharded(ordo_model_state *model)
{
  for (uint32_t i = 0; i < model->view.n_leaves; i++) {
    ordo_leaf *leaf = model->view.leaves[i];
    gboolean fresh;
    ordo_status status = ensure_data(model, leaf, &fresh);
    if (status == ORDO_OK && leaf->numel > 0 && !(leaf->n_params && leaf->data == ((const ordo_param_record *)leaf->params[0])->source))
      status = fill(model, leaf);
    if (status == ORDO_OK && fresh)
      status = bind_params(model, leaf);
    if (status != ORDO_OK)
      return status;
  }
  return ORDO_OK;
}

ordo_status ordo_weights_materialise_grads(ordo_model_state *model)
{
  for (uint32_t i = 0; i < model->view.n_leaves; i++) {
    ordo_leaf *leaf = model->view.leaves[i];
    size_t bytes = (size_t)leaf->numel * ordo_dtype_size(leaf->grad_dtype);
    ordo_status status;
    if (!(leaf->flags & ORDO_PARAM_REQUIRES_GRAD) || leaf->grad || bytes == 0 || !leaf->n_params ||
        !ordo_leaf_follows((ordo_leaf_record *)leaf, leaf->params[0]))
      continue;
    leaf->grad = ordo_weights_materialise(model, bytes, ORDO_MEM_GRADIENTS);
    if (!leaf->grad)
      return ordo_weights_no_memory(model, leaf, bytes);
    if ((status = bind_params(model, leaf)) != ORDO_OK)
      return status;
  }
  return ORDO_OK;
}

/* A window of the concatenated bytes of all leaves that are replicated on one axis. */
typedef struct staging {
  const ordo_comm *comm;
  gboolean dry; /* nothing is copied */
  char *buffer;
  size_t used;
  GArray *pieces; /* staging_piece */
} staging;

typedef struct staging_piece {
  char *at;
  size_t bytes, offset;
} staging_piece;

static ordo_status staging_flush(staging *s)
{
  ordo_collective c = ordo_collective_make(ORDO_BROADCAST, s->buffer, s->buffer, (int64_t)s->used, ORDO_U8);
  ordo_status status;
  if (s->used == 0)
    return ORDO_OK;
  c.label = "weights.sync";
  status = ordo_comm_run(s->comm, &c);
  for (guint i = 0; i < s->pieces->len && status == ORDO_OK && s->comm->rank != 0 && !s->dry; i++) {
    const staging_piece *piece = &g_array_index(s->pieces, staging_piece, i);
    memcpy(piece->at, s->buffer + piece->offset, piece->bytes);
  }
  g_array_set_size(s->pieces, 0);
  s->used = 0;
  return status;
}

static ordo_status staging_add(staging *s, char *data, size_t bytes)
{
  while (bytes > 0) {
    staging_piece piece = {data, MIN(bytes, (size_t)STAGING_BYTES - s->used), s->used};
    if (s->comm->rank == 0 && !s->dry)
      memcpy(s->buffer + s->used, data, piece.bytes);
    g_array_append_val(s->pieces, piece);
    s->used += piece.bytes;
    data += piece.bytes;
    bytes -= piece.bytes;
    if (s->used == STAGING_BYTES) {
      ordo_status status = staging_flush(s);
      if (status != ORDO_OK)
        return status;
    }
  }
  return ORDO_OK;
}

static ordo_status sync_axis(ordo_model_state *model, uint32_t axis, char *buffer)
{
  staging s = {.comm = model->session->mesh->axes[axis]->comm, .dry = model->session->space != NULL, .buffer = buffer};
  ordo_status status = ORDO_OK;
  s.pieces = g_array_new(FALSE, FALSE, sizeof(staging_piece));
  for (uint32_t i = 0; i < model->view.n_leaves && status == ORDO_OK; i++) {
    const ordo_leaf *leaf = model->view.leaves[i];
    if (leaf->placement->data[axis] == ORDO_REPLICATE && leaf->data)
      status = staging_add(&s, leaf->data, leaf_bytes(leaf, leaf->numel));
  }
  if (status == ORDO_OK)
    status = staging_flush(&s);
  g_array_unref(s.pieces);
  return status;
}

/* Compares instead of making equal: one maximum over (hash, ~hash) per leaf tells whether all ranks agree. */
static ordo_status compare_axis(ordo_model_state *model, uint32_t axis)
{
  ordo_session *session = model->session;
  const ordo_comm *comm = session->mesh->axes[axis]->comm;
  g_autoptr(GArray) sums = g_array_new(FALSE, FALSE, sizeof(guint64));
  g_autoptr(GPtrArray) leaves = g_ptr_array_new();
  ordo_status status;
  for (uint32_t i = 0; i < model->view.n_leaves; i++) {
    const ordo_leaf *leaf = model->view.leaves[i];
    guint64 pair[2];
    if (leaf->placement->data[axis] != ORDO_REPLICATE || !leaf->data)
      continue;
    pair[0] = session->space ? 0 : ordo_checksum(leaf->data, leaf_bytes(leaf, leaf->numel));
    pair[1] = ~pair[0];
    g_array_append_vals(sums, pair, 2);
    g_ptr_array_add(leaves, (gpointer)leaf);
  }
  status = ordo_session_reduce(session, comm, sums->data, (int64_t)sums->len, ORDO_U64, ORDO_MAX, "weights.sync compare");
  if (status != ORDO_OK)
    return status;
  for (guint i = 0; i < leaves->len; i++) {
    const ordo_leaf *leaf = g_ptr_array_index(leaves, i);
    if (g_array_index(sums, guint64, 2 * i) == ~g_array_index(sums, guint64, 2 * i + 1))
      continue;
    ordo_errors_push(ordo_session_errors(session), ORDO_E_MISMATCH, "E-WEIGHTS-DIFFER", session->mesh->axes[axis]->name,
                     "the session was told not to make replicas equal (no_weight_sync), and they are not",
                     "give every rank the same weights, or leave no_weight_sync at 0",
                     "leaf '%s' holds other values on another rank of axis '%s'", leaf->name, session->mesh->axes[axis]->name);
    status = ORDO_E_MISMATCH;
  }
  return status;
}

ordo_status ordo_weights_broadcast(ordo_model_state *model)
{
  ordo_session *session = model->session;
  const ordo_mesh *mesh = session->mesh;
  ordo_status status = ORDO_OK;
  char *buffer = mesh->size > 1 ? ordo_memory_alloc(session->memory, STAGING_BYTES, ORDO_MEM_COMM) : NULL;
  if (mesh->size == 1)
    return ORDO_OK;
  if (!buffer)
    return ordo_errors_push(ordo_session_errors(session), ORDO_E_NOMEM, "E-NOMEM", session->where, "4 MiB were asked for", "free memory",
                            "out of memory for the buffer in which weights are broadcast");
  for (uint32_t a = 0; a < mesh->n_axes && status == ORDO_OK; a++)
    if (mesh->axes[a]->size > 1)
      status = sync_axis(model, a, buffer);
  ordo_memory_release(session->memory, buffer);
  return status;
}

ordo_status ordo_weights_sync(ordo_model_state *model)
{
  const ordo_mesh *mesh = model->session->mesh;
  ordo_status status = ORDO_OK;
  if (!model->session->options.no_weight_sync)
    return ordo_weights_broadcast(model);
  for (uint32_t a = 0; a < mesh->n_axes && status == ORDO_OK; a++)
    if (mesh->axes[a]->size > 1)
      status = compare_axis(model, a);
  return status;
}
