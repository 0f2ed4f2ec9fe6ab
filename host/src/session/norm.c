/* norm.c - the global L2 norm of the gradient: each element counted once, whatever the placement.
 *
 * A leaf that an axis shards contributes on every rank of that axis, one that it replicates contributes once. So leaves are grouped by the
 * set of axes that shard them, each rank sums its part of every group, and a group is all-reduced over exactly its axes. Of copies among
 * the ranks of a sharding axis (key heads that are fewer than ranks) the first contributes. Padding is outside
 * of every chunk and therefore not counted; a leaf without a gradient this step is skipped.
 *
 * Sums are in double over several accumulators. Ordered mode uses exact sums (exact_sum.h), so that the layout cannot show.
 */
#include "../comm/reduce.h"
#include "exact_sum.h"
#include "session.h"

#include <ordo/half_array.h>

#include <math.h>
#include <string.h>

enum { LANES = 16 }; /* independent accumulators: enough to keep a vector unit busy */

/* What the optimizer will read: the master's gradient once a precision plugin has given one. */
ordo_leaf *ordo_norm_side(ordo_leaf_record *record)
{
  ordo_leaf *master = record->leaf.master;
  return master && master->grad ? master : &record->leaf;
}

static double squares_f32(const float *x, int64_t n)
{
  double lanes[LANES] = {0}, sum = 0.0;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int k = 0; k < LANES; k++)
      lanes[k] += (double)x[i + k] * (double)x[i + k];
  for (; i < n; i++)
    sum += (double)x[i] * (double)x[i];
  for (int k = 0; k < LANES; k++)
    sum += lanes[k];
  return sum;
}

/* 16-bit gradients go through a small fp32 buffer, so that there is one summation and not one per type. */
static int64_t widen(ordo_dtype dtype, const uint16_t *src, int64_t n, float *dst)
{
  for (int64_t i = 0; i < n; i++)
    dst[i] = dtype == ORDO_F16 ? ordo_f32_from_f16(src[i]) : ordo_f32_from_bf16(src[i]);
  return n;
}

static void add_range(const ordo_leaf *leaf, int64_t first, int64_t n, double *sum, ordo_exact_sum *exact)
{
  float buffer[512];
  if (leaf->grad_dtype == ORDO_F32) {
    const float *x = (const float *)leaf->grad + first;
    if (exact)
      ordo_exact_sum_squares_f32(exact, x, n);
    else
      *sum += squares_f32(x, n);
  } else if (leaf->grad_dtype == ORDO_F64) {
    const double *x = (const double *)leaf->grad + first;
    if (exact)
      ordo_exact_sum_squares_f64(exact, x, n);
    else
      for (int64_t i = 0; i < n; i++)
        *sum += x[i] * x[i];
  } else {
    const uint16_t *x = (const uint16_t *)leaf->grad + first;
    for (int64_t i = 0; i < n; i += (int64_t)G_N_ELEMENTS(buffer)) {
      int64_t part = widen(leaf->grad_dtype, x + i, MIN(n - i, (int64_t)G_N_ELEMENTS(buffer)), buffer);
      if (exact)
        ordo_exact_sum_squares_f32(exact, buffer, part);
      else
        *sum += squares_f32(buffer, part);
    }
  }
}

static void add_leaf(const ordo_leaf *leaf, double *sum, ordo_exact_sum *exact)
{
  for (uint64_t c = 0; c < leaf->placement->n_chunks; c++)
    add_range(leaf, leaf->placement->chunks[c].leaf_offset, ordo_chunk_numel(&leaf->placement->chunks[c]), sum, exact);
}

/* Axes that shard a leaf, as bits; axes of one rank shard nothing. */
static uint32_t shard_mask(const ordo_mesh *mesh, const ordo_leaf *leaf)
{
  uint32_t mask = 0;
  for (uint32_t a = 0; a < mesh->n_axes; a++)
    if (mesh->axes[a]->size > 1 && leaf->placement->data[a] != ORDO_REPLICATE)
      mask |= 1u << a;
  return mask;
}

/* This rank's copy is the one that counts on every axis that shards the leaf. */
static gboolean counts(const ordo_mesh *mesh, const ordo_leaf *leaf)
{
  for (uint32_t a = 0; a < mesh->n_axes; a++)
    if (leaf->placement->data[a] > ORDO_SHARD && mesh->axes[a]->coordinate % ordo_placement_copies(leaf->placement->data[a], 1) != 0)
      return FALSE;
  return TRUE;
}

typedef struct norm_group {
  uint32_t mask;
  double sum;
  ordo_exact_sum exact;
} norm_group;

static norm_group *find_group(GArray *groups, uint32_t mask)
{
  norm_group fresh;
  for (guint i = 0; i < groups->len; i++)
    if (g_array_index(groups, norm_group, i).mask == mask)
      return &g_array_index(groups, norm_group, i);
  memset(&fresh, 0, sizeof fresh);
  fresh.mask = mask;
  g_array_append_val(groups, fresh);
  return &g_array_index(groups, norm_group, groups->len - 1);
}

static void add_model(ordo_model_state *model, GArray *groups, gboolean ordered)
{
  for (uint32_t i = 0; i < model->view.n_leaves; i++) {
    ordo_leaf_record *record = (ordo_leaf_record *)model->view.leaves[i];
    norm_group *group;
    if (!(record->leaf.flags & ORDO_PARAM_REQUIRES_GRAD))
      continue;
    group = find_group(groups, shard_mask(model->session->mesh, &record->leaf)); /* also without a gradient: ranks need the same groups */
    if (record->leaf.grad_state == ORDO_GRAD_HELD && ordo_norm_side(record)->grad && counts(model->session->mesh, &record->leaf) &&
        !model->session->space)
      add_leaf(ordo_norm_side(record), &group->sum, ordered ? &group->exact : NULL);
  }
}

/* One all-reduce per axis carries the sums of all groups that the axis shards. */
static ordo_status reduce_axis(ordo_session *session, uint32_t axis, GArray *groups)
{
  gboolean ordered = session->options.ordered != 0;
  gsize words = ordered ? ORDO_EXACT_WORDS : 1;
  g_autofree int64_t *buffer = g_new0(int64_t, MAX(groups->len, 1u) * words);
  int64_t used = 0;
  ordo_status status;
  for (guint i = 0; i < groups->len; i++) {
    norm_group *group = &g_array_index(groups, norm_group, i);
    if (!(group->mask & (1u << axis)))
      continue;
    ordo_exact_sum_carry(&group->exact);
    memcpy(buffer + used, ordered ? (const void *)group->exact.words : (const void *)&group->sum, words * sizeof *buffer);
    used += (int64_t)words;
  }
  status =
      ordo_session_reduce(session, session->mesh->axes[axis]->comm, buffer, used, ordered ? ORDO_I64 : ORDO_F64, ORDO_SUM, "grad norm");
  if (status != ORDO_OK)
    return status;
  used = 0;
  for (guint i = 0; i < groups->len; i++) {
    norm_group *group = &g_array_index(groups, norm_group, i);
    if (!(group->mask & (1u << axis)))
      continue;
    memcpy(ordered ? (void *)group->exact.words : (void *)&group->sum, buffer + used, words * sizeof *buffer);
    used += (int64_t)words;
  }
  return ORDO_OK;
}

static double total(GArray *groups, gboolean ordered)
{
  ordo_exact_sum exact = {{0}, 0};
  double sum = 0.0;
  for (guint i = 0; i < groups->len; i++) {
    norm_group *group = &g_array_index(groups, norm_group, i);
    sum += group->sum;
    ordo_exact_sum_carry(&group->exact);
    for (int w = 0; w < ORDO_EXACT_WORDS; w++)
      exact.words[w] += group->exact.words[w];
  }
  return ordered ? ordo_exact_sum_value(&exact) : sum;
}

/* On one data axis a leaf is either reduced before or summed here, which gives all ranks the same bits. */
static gboolean agrees_by_itself(const ordo_mesh *mesh)
{
  return mesh->n_axes == 0 || (mesh->n_axes == 1 && mesh->axes[0]->kind == ORDO_AXIS_DATA);
}

ordo_status ordo_norm_compute(ordo_session *session, double *norm)
{
  g_autoptr(GArray) groups = g_array_new(FALSE, FALSE, sizeof(norm_group));
  ordo_status status = ORDO_OK;
  for (guint m = 0; m < session->models->len; m++) {
    ordo_model_state *model = g_ptr_array_index(session->models, m);
    if (model->view.trained)
      add_model(model, groups, session->options.ordered != 0);
  }
  for (uint32_t a = 0; a < session->mesh->n_axes && status == ORDO_OK; a++)
    if (session->mesh->axes[a]->size > 1)
      status = reduce_axis(session, a, groups);
  if (status != ORDO_OK)
    return status;
  *norm =
      session->space ? 1.0 : sqrt(total(groups, session->options.ordered != 0)); /* dry: some gradient, so that what follows one follows */
  /* On a model axis or on two axes replicas sum their own copies, which may differ in the last bit (tp: independent kernels). One value for
   * all, or the clip coefficient would pull replicas apart. NaN does not survive a maximum everywhere, so it travels as infinity. */
  if (isnan(*norm))
    *norm = INFINITY;
  return agrees_by_itself(session->mesh)
             ? ORDO_OK
             : ordo_session_reduce(session, session->mesh->world, norm, 1, ORDO_F64, ORDO_MAX, "grad norm agree");
}

static void scale_16(ordo_dtype dtype, uint16_t *values, int64_t n, float factor)
{
  float buffer[1024];
  for (int64_t i = 0, part; i < n; i += part) {
    part = MIN(n - i, (int64_t)G_N_ELEMENTS(buffer));
    ordo_half_widen(dtype, values + i, part, buffer);
    for (int64_t k = 0; k < part; k++)
      buffer[k] *= factor;
    ordo_half_narrow(dtype, buffer, part, values + i);
  }
}

void ordo_norm_scale(ordo_leaf *leaf, double factor)
{
  float f = (float)factor;
  if (factor == 1.0 || !leaf->grad || ((const ordo_leaf_record *)leaf)->model->session->space)
    return;
  if (leaf->grad_dtype == ORDO_F32)
    for (int64_t i = 0; i < leaf->numel; i++)
      ((float *)leaf->grad)[i] *= f;
  else if (leaf->grad_dtype == ORDO_F64)
    for (int64_t i = 0; i < leaf->numel; i++)
      ((double *)leaf->grad)[i] *= factor;
  else
    scale_16(leaf->grad_dtype, leaf->grad, leaf->numel, f);
}

/* The square of a finite gradient is finite in double; NaN and infinities stay. */
static gboolean chunk_is_finite(const ordo_leaf *leaf, const ordo_chunk *chunk)
{
  for (int64_t i = 0, n = ordo_chunk_numel(chunk); i < n; i++) {
    double square = 0.0;
    add_range(leaf, chunk->leaf_offset + i, 1, &square, NULL);
    if (!isfinite(square))
      return FALSE;
  }
  return TRUE;
}

const ordo_leaf *ordo_norm_first_nonfinite(ordo_session *session)
{
  for (guint m = 0; m < session->models->len; m++) {
    const ordo_model_state *model = g_ptr_array_index(session->models, m);
    for (uint32_t i = 0; i < model->view.n_leaves; i++) {
      ordo_leaf_record *record = (ordo_leaf_record *)model->view.leaves[i];
      const ordo_leaf *side = ordo_norm_side(record);
      if (!(record->leaf.flags & ORDO_PARAM_REQUIRES_GRAD) || record->leaf.grad_state != ORDO_GRAD_HELD || !side->grad)
        continue;
      for (uint64_t c = 0; c < side->placement->n_chunks; c++)
        if (!chunk_is_finite(side, &side->placement->chunks[c]))
          return side;
    }
  }
  return NULL;
}
