/* embed_gather.c - whole tensors from whatever placement the leaves have.
 *
 * Each rank puts the pieces it holds into a buffer of zeros, where an axis replicates them only coordinate 0 does, and one sum over the
 * mesh gives every rank the whole: exact, since each element has one summand that is not zero. It reads placements only, so it
 * works for every strategy.
 */
#include "embed_private.h"

#include "kernels_low.h"
#include "pieces.h"

#include <string.h>

/* Storage of the leaf for weight, gradient or slot, and its type; null if there is none (yet). The master of a weight is the weight. */
static const void *storage_of(ordo_embed *embed, const ordo_leaf *leaf, int32_t what, ordo_dtype *dtype)
{
  const ordo_leaf *work = leaf->master && what != ORDO_GATHER_GRADIENT ? leaf->master : leaf;
  *dtype = what == ORDO_GATHER_WEIGHT ? work->dtype : what == ORDO_GATHER_GRADIENT ? leaf->grad_dtype : ORDO_F32;
  if (what == ORDO_GATHER_WEIGHT)
    return work->data;
  if (what == ORDO_GATHER_GRADIENT)
    return leaf->grad_state == ORDO_GRAD_HELD ? leaf->grad : NULL;
  const ordo_optimizer *optimizer = ordo_session_optimizer(embed->session, 0);
  return optimizer ? optimizer->slot(optimizer->ctx, leaf, (uint32_t)what) : NULL;
}

static void copy_pieces(const ordo_leaf *leaf, const ordo_param *param, const void *storage, ordo_dtype dtype, float *full)
{
  const struct kernels *kernels = kernels_default();
  ordo_piece_run run;
  for (uint64_t c = 0; c < leaf->placement->n_chunks; c++) {
    const ordo_chunk *chunk = &leaf->placement->chunks[c];
    if (chunk->param != param)
      continue;
    for (int64_t i = 0; ordo_piece_run_at(chunk, i, &run); i++)
      kernels_widen(kernels, dtype, (size_t)run.count, (const char *)storage + (size_t)run.leaf_first * ordo_dtype_size(dtype),
                    full + run.param_first);
  }
}

ordo_status ordo_embed_gather(ordo_embed *embed, const ordo_param *param, int32_t what, float *full)
{
  const ordo_mesh *mesh = ordo_session_mesh(embed->session);
  const ordo_model *model = embed->model;
  memset(full, 0, (size_t)param->numel * sizeof *full);
  for (uint32_t i = 0; i < model->n_leaves; i++) {
    const ordo_leaf *leaf = model->leaves[i];
    ordo_dtype dtype = 0;
    const void *storage = storage_of(embed, leaf, what, &dtype);
    if (!storage || !ordo_piece_is_mine(leaf->placement, mesh))
      continue;
    if (dtype != ORDO_F32 && !kernels_is_low(dtype))
      return ordo_fail(embed->options.context, ORDO_E_UNSUPPORTED, "E-TRAIN-GATHER", "a tensor cannot be gathered", leaf->name,
                       "its elements are neither fp32, bf16 nor fp16, and it has no fp32 master",
                       "use a precision plugin with fp32 masters");
    copy_pieces(leaf, param, storage, dtype, full);
  }
  return mesh->size > 1 ? ordo_all_reduce(mesh->world, full, param->numel, ORDO_F32, ORDO_SUM, 1.0) : ORDO_OK;
}
