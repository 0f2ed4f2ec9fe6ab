/* embed_gather.c - whole tensors from whatever placement the leaves have.
 *
 * Weights and optimizer state come from the session. Gradients are no state: each rank puts the pieces it holds into a buffer of zeros,
 * where an axis replicates them only coordinate 0 does, and one sum over the mesh gives every rank the whole, exactly, since each element
 * has one summand that is not zero.
 */
#include "embed_private.h"

#include "kernels_low.h"
#include "pieces.h"

#include <string.h>

static void copy_pieces(const ordo_leaf *leaf, const ordo_param *param, float *full)
{
  const struct kernels *kernels = kernels_default();
  const char *grad = leaf->grad;
  ordo_piece_run run;
  for (uint64_t c = 0; c < leaf->placement->n_chunks; c++) {
    const ordo_chunk *chunk = &leaf->placement->chunks[c];
    if (chunk->param != param)
      continue;
    for (int64_t i = 0; ordo_piece_run_at(chunk, i, &run); i++)
      kernels_widen(kernels, leaf->grad_dtype, (size_t)run.count, grad + (size_t)run.leaf_first * ordo_dtype_size(leaf->grad_dtype),
                    full + run.param_first);
  }
}

static ordo_status gather_gradient(ordo_embed *embed, const ordo_param *param, float *full)
{
  const ordo_mesh *mesh = ordo_session_mesh(embed->session);
  const ordo_model *model = embed->model;
  for (uint32_t i = 0; i < model->n_leaves; i++) {
    const ordo_leaf *leaf = model->leaves[i];
    if (!leaf->grad || leaf->grad_state != ORDO_GRAD_HELD || !ordo_piece_is_mine(leaf->placement, mesh))
      continue;
    if (leaf->grad_dtype != ORDO_F32 && !kernels_is_low(leaf->grad_dtype))
      return ordo_fail(embed->options.context, ORDO_E_UNSUPPORTED, "E-TRAIN-GATHER", "a gradient cannot be gathered", leaf->name,
                       "its elements are neither fp32, bf16 nor fp16", "use a precision plugin with fp32 masters");
    copy_pieces(leaf, param, full);
  }
  return mesh->size > 1 ? ordo_all_reduce(mesh->world, full, param->numel, ORDO_F32, ORDO_SUM, 1.0) : ORDO_OK;
}

/* State that no update has made yet, and that of frozen parameters, is zero. */
ordo_status ordo_embed_gather(ordo_embed *embed, const ordo_param *param, int32_t what, float *full)
{
  memset(full, 0, (size_t)param->numel * sizeof *full);
  if (what == ORDO_GATHER_GRADIENT)
    return gather_gradient(embed, param, full);
  if (what >= 0 && !(param->flags & ORDO_PARAM_REQUIRES_GRAD))
    return ORDO_OK;
  ordo_status status = ordo_session_export_param(embed->session, param, what, full);
  return status == ORDO_E_NOT_FOUND ? ORDO_OK : status;
}
