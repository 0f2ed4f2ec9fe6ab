/* accumulate.c - gradients over the micro-batches of a step: narrow ones add up in fp32, and several losses keep apart what is theirs.
 *
 * A sum of many bf16 summands kept in bf16 stops growing once a summand is below half a unit of its last place. So the model writes
 * each micro-batch afresh, the host adds it to an fp32 sum, and in the last micro-batch writes sum + gradient back, rounded once, before
 * strategies hear that the gradient is ready. They reduce what they would have reduced anyway: no_sync, buckets and shards do not know.
 * The place is the param, where the model computes; for an unsharded leaf with a master the master's gradient, idle until
 * step.unscale, is the sum, and no memory is added. A strategy that handles_gradient_accumulation reduces every micro-batch itself.
 *
 * With several losses (select_loss) fp32 gradients go the same way: each summand is seen alone, so an overflow is laid to the loss
 * that caused it, and sums are brought from one loss's scale to the next one's. apex stashes gradients for the same reason.
 */
#include "session.h"

#include <math.h>

enum { CHUNK = 1024 };

static gboolean is_16_bit(ordo_dtype dtype)
{
  return dtype == ORDO_F16 || dtype == ORDO_BF16;
}

/* A strategy of the model reduces every micro-batch, so nothing is left on this rank to be added to. */
static gboolean strategy_accumulates(const ordo_model_state *model)
{
  const ordo_session *session = model->session;
  for (guint i = 0; i < session->instances->len; i++) {
    const ordo_instance *instance = g_ptr_array_index(session->instances, i);
    if (instance->model == model && (instance->decl->flags & (1u << ORDO_FLAG_HANDLES_GRADIENT_ACCUMULATION)))
      return TRUE;
  }
  return FALSE;
}

static ordo_status use_sum(ordo_model_state *model, ordo_param_record *root)
{
  const ordo_leaf *leaf = root->param.leaf;
  size_t bytes = (size_t)ordo_param_local_numel(&root->param) * sizeof(float);
  if (leaf && ordo_leaf_follows((const ordo_leaf_record *)leaf, &root->param) && leaf->master && leaf->master->grad) {
    root->sum = leaf->master->grad;
    return ORDO_OK;
  }
  if (!root->sum_storage)
    root->sum_storage = ordo_memory_alloc(model->session->memory, bytes, ORDO_MEM_GRADIENTS);
  root->sum = root->sum_storage;
  return root->sum ? ORDO_OK : ordo_weights_no_memory(model, leaf, bytes);
}

ordo_status ordo_accumulate_begin(ordo_session *session, gboolean all)
{
  ordo_status status = ORDO_OK;
  for (guint m = 0; m < session->models->len; m++) {
    ordo_model_state *model = g_ptr_array_index(session->models, m);
    gboolean wanted = session->info.n_micro_batches > 1 && model->optimizer && !strategy_accumulates(model);
    for (guint i = 0; i < model->params->len && status == ORDO_OK; i++) {
      ordo_param_record *root = g_ptr_array_index(model->params, i);
      root->sum = NULL;
      root->sum_held = FALSE;
      if (wanted && root->root == root && (root->param.flags & ORDO_PARAM_REQUIRES_GRAD) &&
          (all || (is_16_bit(root->param.grad_dtype) && !root->adds_low)))
        status = use_sum(model, root);
    }
  }
  return status;
}

gboolean ordo_accumulate_possible(const ordo_session *session)
{
  for (guint m = 0; m < session->models->len; m++) {
    const ordo_model_state *model = g_ptr_array_index(session->models, m);
    if (model->optimizer && strategy_accumulates(model))
      return FALSE;
  }
  return TRUE;
}

/* ---- what an embedder sets for reductions (control.h) ---- */

static gboolean adds_16_bit_up(const ordo_model_state *model)
{
  for (guint i = 0; model->optimizer && i < model->params->len; i++) {
    const ordo_param_record *root = g_ptr_array_index(model->params, i);
    if (root->root == root && (root->param.flags & ORDO_PARAM_REQUIRES_GRAD) && is_16_bit(root->param.grad_dtype) && !root->adds_low)
      return TRUE;
  }
  return FALSE;
}

ordo_status ordo_accumulate_check_sync(ordo_session *session, const ordo_model_state *model, int64_t value)
{
  if (value != 0 || !strategy_accumulates(model) || !adds_16_bit_up(model))
    return ORDO_OK;
  return ordo_errors_push(ordo_session_errors(session), ORDO_E_UNSUPPORTED, "E-CONTROL-SUMS", "ordo_session_control(gradient_sync)",
                          "the strategy reduces every micro-batch and adds the reductions up in fp32; gradients that it only accumulates "
                          "would add up in 16 bits",
                          "let it accumulate from the start (no_sync=true): the host then adds them up in fp32",
                          "16-bit gradients of model '%s' cannot be accumulated on this rank", model->view.name);
}

/* A strategy that shards may reduce one micro-batch of its own accord; one with whole gradients waits for the last (control.h). */
static const ordo_param_record *first_sum_in_shards(const ordo_model_state *model)
{
  for (guint i = 0; i < model->params->len; i++) {
    const ordo_param_record *root = g_ptr_array_index(model->params, i);
    const ordo_leaf *leaf = root->param.leaf;
    if (root->sum && !(leaf && ordo_leaf_follows((const ordo_leaf_record *)leaf, &root->param)))
      return root;
  }
  return NULL;
}

ordo_status ordo_accumulate_check_micro(ordo_session *session)
{
  for (guint m = 0; m < session->models->len && !session->info.is_last_micro_batch; m++) {
    const ordo_model_state *model = g_ptr_array_index(session->models, m);
    const ordo_param_record *root = g_hash_table_size(model->synced) > 0 ? first_sum_in_shards(model) : NULL;
    if (root)
      return ordo_errors_push(
          ordo_session_errors(session), ORDO_E_STATE, "E-CONTROL-SUMS", "ordo_session_micro_begin",
          session->tracks_losses ? "gradients of several losses are kept apart, and handed over added up in the last micro-batch"
                                 : "the host adds 16-bit gradients up in fp32, and hands the sum over in the last micro-batch",
          session->tracks_losses ? "set gradient_sync to 0 or -1 for all units until the last micro-batch, or select no losses"
                                 : "set gradient_sync to 0 or -1 for all units until the last micro-batch, or let the strategy reduce each "
                                   "one (no_sync=false)",
          "gradient_sync=1 would reduce a micro-batch of '%s' in the middle of the step, and again as part of the sum", root->param.name);
  }
  return ORDO_OK;
}

/* ---- sums ---- */

static gboolean is_held(const ordo_param_record *root)
{
  const ordo_leaf *leaf = root->param.leaf;
  return leaf && ordo_leaf_follows((const ordo_leaf_record *)leaf, &root->param) ? leaf->grad_state == ORDO_GRAD_HELD : root->grad_held;
}

static void set_held(ordo_param_record *root, gboolean held)
{
  ordo_leaf *leaf = root->param.leaf;
  if (leaf && ordo_leaf_follows((ordo_leaf_record *)leaf, &root->param))
    leaf->grad_state = held ? ORDO_GRAD_HELD : ORDO_GRAD_NONE;
  else
    root->grad_held = held;
}

static gboolean all_finite(const float *x, int64_t n)
{
  float probe = 0.0f; /* 0 * x is 0 for a finite x and NaN for any other */
  for (int64_t i = 0; i < n; i++)
    probe += 0.0f * x[i];
  return probe == 0.0f;
}

/* sum + fresh gradient, into the sum or, at the end, into the gradient. */
static void add(ordo_session *session, ordo_param_record *root, gboolean finish)
{
  size_t width = ordo_dtype_size(root->param.grad_dtype);
  int64_t numel = session->space ? 0 : ordo_param_local_numel(&root->param); /* a dry run has addresses only */
  gboolean fresh = is_held(root);
  float buffer[CHUNK];
  for (int64_t i = 0; i < numel; i += CHUNK) {
    int64_t part = MIN(numel - i, (int64_t)CHUNK);
    char *grad = (char *)root->param.grad + (size_t)i * width;
    float *sum = root->sum + i;
    if (fresh)
      ordo_convert_widen(root->param.grad_dtype, grad, part, buffer);
    for (int64_t k = 0; !fresh && k < part; k++)
      buffer[k] = 0.0f;
    if (session->tracks_losses && !all_finite(buffer, part))
      session->loss_overflow |= (guint64)1 << session->info.loss_id;
    for (int64_t k = 0; root->sum_held && k < part; k++)
      buffer[k] += sum[k];
    ordo_convert_narrow(finish ? root->param.grad_dtype : ORDO_F32, buffer, part, finish ? (void *)grad : (void *)sum);
  }
}

void ordo_accumulate_ready(ordo_session *session, ordo_param_record *root)
{
  gboolean last = session->info.is_last_micro_batch != 0, fresh = is_held(root);
  root->summed_in = session->micro_serial;
  if (!root->param.grad || (!fresh && !(last && root->sum_held)))
    return;
  if (!session->space && (!last || root->sum_held || session->tracks_losses)) /* in a dry run there is nothing to add */
    add(session, root, last);
  root->sum_held = !last;
  set_held(root, last);
}

/* Of params that were not used, or not by all members of their tie group; those of one unit, or of all. */
static void finish(ordo_session *session, const ordo_model_state *model, uint32_t unit, gboolean all)
{
  for (guint i = 0; i < model->params->len; i++) {
    ordo_param_record *root = g_ptr_array_index(model->params, i);
    if (root->sum && root->summed_in != session->micro_serial && (all || root->param.unit == unit))
      ordo_accumulate_ready(session, root);
  }
}

void ordo_accumulate_end_unit(ordo_session *session, const ordo_model_state *model, uint32_t unit)
{
  if (session->info.is_last_micro_batch)
    finish(session, model, unit, FALSE);
}

void ordo_accumulate_end(ordo_session *session)
{
  for (guint m = 0; m < session->models->len; m++)
    finish(session, g_ptr_array_index(session->models, m), 0, TRUE);
}

void ordo_accumulate_rescale(ordo_session *session, double factor)
{
  float f = (float)factor;
  for (guint m = 0; m < session->models->len; m++) {
    ordo_model_state *model = g_ptr_array_index(session->models, m);
    for (guint i = 0; i < model->params->len; i++) {
      ordo_param_record *root = g_ptr_array_index(model->params, i);
      int64_t numel = root->sum && root->sum_held && !session->space ? ordo_param_local_numel(&root->param) : 0;
      for (int64_t k = 0; k < numel; k++)
        root->sum[k] *= f;
    }
  }
}
