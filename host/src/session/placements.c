/* placements.c - what the leaves of all ranks say together, checked once at verify.
 *
 * Norms, votes and checkpoints read placements and nothing else, so a wrong one is a wrong result without a sign. Each strategy knows its
 * own axis only; when one cuts what another has cut, only the sum over all ranks shows whether
 *  - replicas are replicas: a leaf that an axis replicates covers the same elements on all its ranks, and
 *  - shards are shards: over the ranks that hold different elements, every element of every parameter is held exactly once.
 * The second is counted: how many elements, and the sum of their indices, in closed form for a rectangle. One reduction an axis.
 */
#include "session.h"

/* Elements held of a parameter, and the sum of their indices in the whole, modulo 2^64. */
typedef struct held {
  guint64 count, sum;
} held;

static guint64 sum_below(guint64 n)
{
  return n % 2 ? n * ((n - 1) / 2) : n / 2 * (n - 1);
}

/* A dimension contributes stride * (its index), once for every combination of the others. */
static guint64 rectangle_sum(const ordo_chunk *chunk)
{
  guint64 sum = 0, stride = 1, numel = (guint64)ordo_chunk_numel(chunk);
  for (uint32_t d = chunk->ndim; d-- > 0;) {
    guint64 extent = (guint64)chunk->extent[d];
    if (extent == 0)
      return 0;
    sum += stride * (extent * (guint64)chunk->offset[d] + sum_below(extent)) * (numel / extent);
    stride *= (guint64)chunk->param->shape[d];
  }
  return sum;
}

static void add_chunk(held *h, const ordo_chunk *chunk)
{
  h->count += (guint64)ordo_chunk_numel(chunk);
  if (chunk->kind == ORDO_CHUNK_FLAT)
    h->sum += sum_below((guint64)chunk->end) - sum_below((guint64)chunk->begin);
  else
    h->sum += rectangle_sum(chunk);
}

/* Of copies the first one counts. */
static gboolean is_first_copy(const ordo_mesh *mesh, const ordo_leaf *leaf)
{
  for (uint32_t a = 0; a < mesh->n_axes; a++)
    if (leaf->placement->data[a] != ORDO_REPLICATE &&
        mesh->axes[a]->coordinate % ordo_placement_copies(leaf->placement->data[a], mesh->axes[a]->size) != 0)
      return FALSE;
  return TRUE;
}

static void add_own(const ordo_model_state *model, held *all)
{
  for (uint32_t i = 0; i < model->view.n_leaves; i++) {
    const ordo_leaf *leaf = model->view.leaves[i];
    for (uint64_t c = 0; c < leaf->placement->n_chunks && is_first_copy(model->session->mesh, leaf); c++) {
      const ordo_param_record *param = (const ordo_param_record *)leaf->placement->chunks[c].param;
      add_chunk(&all[param->root->param.index], &leaf->placement->chunks[c]);
    }
  }
}

static gboolean is_sharded(const ordo_model_state *model, guint param, uint32_t axis)
{
  const ordo_param_record *record = g_ptr_array_index(model->params, param);
  return !record->param.leaf || record->param.leaf->placement->data[axis] != ORDO_REPLICATE;
}

/* Sums what the ranks of an axis hold of the parameters that it shards. *real is cleared where nobody answers: a dry run. */
static ordo_status sum_axis(ordo_model_state *model, uint32_t axis, held *all, gboolean *real)
{
  const guint n = model->params->len;
  const ordo_axis *at = model->session->mesh->axes[axis];
  g_autofree held *sums = g_new0(held, n + 1);
  ordo_status status;
  for (guint p = 0; p < n; p++)
    if (is_sharded(model, p, axis))
      sums[p] = all[p];
  sums[n].count = 1;
  status = ordo_session_reduce(model->session, at->comm, sums, 2 * ((int64_t)n + 1), ORDO_I64, ORDO_SUM, "verify placements");
  *real = *real && sums[n].count == (guint64)at->size;
  for (guint p = 0; p < n && status == ORDO_OK; p++)
    if (is_sharded(model, p, axis))
      all[p] = sums[p];
  return status;
}

static ordo_status refuse(ordo_session *session, const ordo_param *param, const held *h)
{
  guint64 numel = (guint64)param->numel;
  g_autofree char *why =
      h->count == numel
          ? g_strdup("as many as it has are held, but not each of them once")
          : g_strdup_printf("it has %" G_GUINT64_FORMAT " elements, all ranks together hold %" G_GUINT64_FORMAT, numel, h->count);
  return ordo_errors_push(ordo_session_errors(session), ORDO_E_INVARIANT, "E-INVARIANT-COVERAGE", param->name, why,
                          "a strategy describes wrong pieces: try each alone, and report it to the author of the one that fails",
                          "an element of a parameter is held by no rank, or by two that should hold different ones");
}

static ordo_status check_coverage(ordo_model_state *model)
{
  const ordo_mesh *mesh = model->session->mesh;
  g_autofree held *all = g_new0(held, model->params->len);
  gboolean real = TRUE;
  ordo_status status = ORDO_OK;
  add_own(model, all);
  for (uint32_t a = 0; a < mesh->n_axes && status == ORDO_OK; a++)
    if (mesh->axes[a]->size > 1)
      status = sum_axis(model, a, all, &real);
  for (guint p = 0; p < model->params->len && status == ORDO_OK && real; p++) {
    const ordo_param_record *record = g_ptr_array_index(model->params, p);
    guint64 numel = (guint64)record->param.numel;
    if (record->root == record && (all[p].count != numel || all[p].sum != sum_below(numel)))
      status = refuse(model->session, &record->param, &all[p]);
  }
  return status;
}

static void hash_leaf(GChecksum *sum, const ordo_leaf *leaf, const ordo_mesh *mesh)
{
  g_autofree char *line =
      g_strdup_printf("%s %u %u %u %" G_GINT64_FORMAT ":", leaf->name, leaf->dtype, leaf->grad_dtype, leaf->flags, leaf->numel);
  g_checksum_update(sum, (const guchar *)line, -1);
  g_checksum_update(sum, leaf->placement->data, (gssize)mesh->n_axes);
  g_checksum_update(sum, leaf->placement->grad_partial, (gssize)mesh->n_axes);
  for (uint64_t c = 0; c < leaf->placement->n_chunks; c++) {
    const ordo_chunk *chunk = &leaf->placement->chunks[c];
    const int64_t place[3] = {chunk->param->index, chunk->leaf_offset, chunk->kind};
    const int64_t range[2] = {chunk->begin, chunk->end};
    g_checksum_update(sum, (const guchar *)place, sizeof place);
    if (chunk->kind == ORDO_CHUNK_FLAT)
      g_checksum_update(sum, (const guchar *)range, sizeof range);
    else
      g_checksum_update(sum, (const guchar *)chunk->offset, (gssize)(chunk->ndim * sizeof chunk->offset[0]));
    if (chunk->kind == ORDO_CHUNK_RECT)
      g_checksum_update(sum, (const guchar *)chunk->extent, (gssize)(chunk->ndim * sizeof chunk->extent[0]));
  }
}

/* Check 6 along one axis: what it replicates is the same piece of the same type everywhere. */
static ordo_status check_replicas(ordo_model_state *model, uint32_t axis)
{
  ordo_session *session = model->session;
  const ordo_axis *at = session->mesh->axes[axis];
  g_autoptr(GChecksum) sum = g_checksum_new(G_CHECKSUM_SHA256);
  ordo_status status;
  for (uint32_t i = 0; i < model->view.n_leaves; i++)
    if (model->view.leaves[i]->placement->data[axis] == ORDO_REPLICATE)
      hash_leaf(sum, model->view.leaves[i], session->mesh);
  status = ordo_axes_agree(at->comm, g_checksum_get_string(sum), "placement of leaves", ordo_session_errors(session));
  if (status == ORDO_E_MISMATCH)
    ordo_errors_push(ordo_session_errors(session), status, "E-INVARIANT-REPLICAS-DIFFER", at->name,
                     "names, types or places of leaves that the axis replicates are not the same on its ranks",
                     "a strategy cuts by the rank, or cuts uneven slices of another axis at other places: report it to its author",
                     "the ranks of axis '%s' hold different pieces where they should hold replicas", at->name);
  return status;
}

/* An axis of some ranks may be right where that of others is not: all go on, or none. */
static ordo_status agree(ordo_session *session, ordo_status own)
{
  int32_t failed = own != ORDO_OK;
  ordo_status status = ordo_session_reduce(session, session->mesh->world, &failed, 1, ORDO_I32, ORDO_MAX, "verify replicas");
  if (own != ORDO_OK || status != ORDO_OK || !failed)
    return own != ORDO_OK ? own : status;
  return ordo_errors_push(ordo_session_errors(session), ORDO_E_MISMATCH, "E-INVARIANT-REPLICAS-DIFFER", "another rank",
                          "its own error says which axis", "look at the errors of the other ranks",
                          "ranks of another line of an axis hold different pieces where they should hold replicas");
}

ordo_status ordo_placements_check(ordo_model_state *model)
{
  const ordo_mesh *mesh = model->session->mesh;
  ordo_status status = ORDO_OK;
  for (uint32_t a = 0; a < mesh->n_axes && (status == ORDO_OK || status == ORDO_E_MISMATCH); a++) {
    ordo_status one = mesh->axes[a]->size > 1 ? check_replicas(model, a) : ORDO_OK;
    status = one != ORDO_OK ? one : status;
  }
  if (status == ORDO_E_TIMEOUT || status == ORDO_E_PEER_LOST)
    return status;
  if (mesh->size > 1)
    status = agree(model->session, status);
  return status == ORDO_OK ? check_coverage(model) : status;
}
