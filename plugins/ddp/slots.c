/* slots.c - which leaves take part, and where their gradients live. See slots.h.
 *
 * Frozen leaves are left out; the rest must have gradients that can be added up. A leaf that cannot is refused by name: left
 * out silently its replicas would drift apart, one step at a time. Empty shards stay in: they cost nothing, and every leaf is
 * reported to the host as reduced. A leaf whose gradient is not partial on this axis is summed by somebody else (a sharding strategy in
 * ordered mode) and left alone: added up here it would be multiplied by the number of ranks.
 */
#include "slots.h"

#include <fnmatch.h>
#include <math.h>
#include <string.h>

/* True if pattern number `wanted` of `patterns` (shell patterns joined with ',') matches one of the leaf's names. */
static int pattern_matches(const char *patterns, uint32_t wanted, const ordo_leaf *leaf)
{
  const char *begin = patterns;
  for (uint32_t i = 0; i < wanted && begin != NULL; i++) {
    begin = strchr(begin, ',');
    begin = begin != NULL ? begin + 1 : NULL;
  }
  if (begin == NULL)
    return 0;
  char pattern[256];
  size_t length = strcspn(begin, ",");
  if (length == 0 || length >= sizeof pattern)
    return 0;
  memcpy(pattern, begin, length);
  pattern[length] = '\0';
  int hit = fnmatch(pattern, leaf->name, 0) == 0;
  for (uint32_t p = 0; p < leaf->n_params && !hit; p++)
    hit = fnmatch(pattern, leaf->params[p]->name, 0) == 0;
  return hit;
}

static uint32_t count_patterns(const char *patterns)
{
  uint32_t n = patterns[0] != '\0';
  for (const char *c = patterns; *c != '\0'; c++)
    n += *c == ',';
  return n;
}

/* A pattern that matches nothing is a slip of the pen that would train what the user meant to exclude. */
static ordo_status check_patterns(const ordo_job *job, const char *patterns)
{
  for (uint32_t i = 0; i < count_patterns(patterns); i++) {
    uint32_t hits = 0;
    for (uint32_t l = 0; l < job->model->n_leaves; l++)
      hits += pattern_matches(patterns, i, job->model->leaves[l]) != 0;
    if (hits == 0)
      return ddp_fail(
          job, ORDO_E_INVALID, "patterns are joined with ',' and use * and ? as a shell does; names are those of the checkpoint",
          "option 'ignored' = '%s': its pattern number %u matches no parameter of model '%s'", patterns, i + 1, job->model->name);
  }
  return ORDO_OK;
}

static int is_ignored(const char *patterns, const ordo_leaf *leaf)
{
  for (uint32_t i = 0; i < count_patterns(patterns); i++)
    if (pattern_matches(patterns, i, leaf))
      return 1;
  return 0;
}

static int64_t local_numel(const ordo_param *param)
{
  int64_t numel = 1;
  for (uint32_t d = 0; d < param->ndim; d++)
    numel *= param->local_shape[d];
  return numel;
}

/* Does the model compute straight into this leaf's storage? Decided from the description: one storage, of the param's own local
 * size, at the same addresses. While no storage exists yet (all null) only an unsharded leaf qualifies. */
static int is_direct(const ordo_leaf *leaf)
{
  for (uint32_t p = 0; p < leaf->n_params; p++) {
    const ordo_param *param = leaf->params[p];
    if (p > 0 && (param->tie_group < 0 || param->tie_group != leaf->params[0]->tie_group))
      return 0;
    if (param->leaf != leaf || local_numel(param) != leaf->numel || param->data != leaf->data || param->grad != leaf->grad)
      return 0;
  }
  int sharded = 0;
  for (int a = 0; a < ORDO_MAX_AXES; a++)
    sharded |= leaf->placement != NULL && leaf->placement->data[a] >= ORDO_SHARD;
  return leaf->n_params > 0 && (leaf->data != NULL || !sharded);
}

static ordo_status check_leaf(const ordo_job *job, const ordo_leaf *leaf)
{
  if (leaf->state != ORDO_LEAF_LIVE)
    return ddp_fail(job, ORDO_E_STALE, "this is a defect of the step that replaced it: it must come before strategy.wrap(ddp)",
                    "leaf '%s' was replaced by %s", leaf->name, leaf->replaced_by != NULL ? leaf->replaced_by : "another step");
  if (leaf->device != 0)
    return ddp_fail(job, ORDO_E_UNSUPPORTED, "keep the leaf on the CPU", "leaf '%s' lives on device %d; ddp sums on the CPU only",
                    leaf->name, leaf->device);
  switch (leaf->grad_dtype) {
  case ORDO_F32:
  case ORDO_F64:
  case ORDO_F16:
  case ORDO_BF16:
    break;
  default:
    return ddp_fail(job, ORDO_E_UNSUPPORTED, "freeze the parameter (requires_grad off), or exclude it with ddp:ignored=NAME",
                    "the gradient of '%s' has element type %u, which cannot be averaged", leaf->name, leaf->grad_dtype);
  }
  if (leaf->opaque != NULL)
    return ddp_fail(job, ORDO_E_UNSUPPORTED, "freeze the parameter (requires_grad off), or exclude it with ddp:ignored=NAME",
                    "'%s' is stored as the opaque type '%s' and cannot be trained by averaging gradients", leaf->name, leaf->opaque->name);
  return ORDO_OK;
}

static int is_partial(const ordo_job *job, const ordo_leaf *leaf)
{
  return leaf->placement == NULL || leaf->placement->grad_partial[job->axis->index] != 0;
}

static ordo_status add_leaf(ddp_slots *slots, ordo_leaf *leaf, const char *ignored)
{
  if ((leaf->flags & ORDO_PARAM_REQUIRES_GRAD) == 0)
    return ORDO_OK;
  if (!is_partial(slots->job, leaf)) {
    slots->n_summed_elsewhere++;
    return ORDO_OK;
  }
  if (is_ignored(ignored, leaf)) {
    slots->ignored[slots->n_ignored++] = leaf;
    return ORDO_OK;
  }
  ordo_status status = check_leaf(slots->job, leaf);
  if (status != ORDO_OK)
    return status;
  ddp_slot *slot = &slots->items[slots->n];
  slot->leaf = leaf;
  slot->old_grad = leaf->grad;
  slot->bytes = leaf->numel * (int64_t)ordo_dtype_size(leaf->grad_dtype);
  slot->direct = (uint8_t)is_direct(leaf);
  if (leaf->index < slots->n_leaves)
    slots->of_leaf[leaf->index] = (int32_t)slots->n;
  slots->n++;
  return ORDO_OK;
}

ordo_status ddp_slots_init(ddp_slots *slots, const ordo_job *job, const char *ignored)
{
  const ordo_model *model = job->model;
  memset(slots, 0, sizeof *slots);
  slots->job = job;
  slots->n_leaves = model->n_leaves;
  ordo_status status = check_patterns(job, ignored);
  if (status == ORDO_OK && model->n_leaves > 0) {
    slots->items = ddp_alloc(job, model->n_leaves, sizeof *slots->items);
    slots->ignored = ddp_alloc(job, model->n_leaves, sizeof(ordo_leaf *));
    slots->of_leaf = ddp_alloc(job, model->n_leaves, sizeof *slots->of_leaf);
    status = slots->items != NULL && slots->ignored != NULL && slots->of_leaf != NULL ? ORDO_OK : ORDO_E_NOMEM;
  }
  for (uint32_t i = 0; status == ORDO_OK && i < model->n_leaves; i++)
    slots->of_leaf[i] = -1;
  for (uint32_t i = 0; status == ORDO_OK && i < model->n_leaves; i++)
    status = add_leaf(slots, model->leaves[i], ignored);
  if (status == ORDO_OK && slots->n == 0 && slots->n_summed_elsewhere == 0)
    status = ddp_fail(job, ORDO_E_INVALID, "train at least one parameter, or leave ddp out for this model",
                      "model '%s' has no trainable parameter to average (%u parameters, %u excluded by 'ignored')", model->name,
                      model->n_params, slots->n_ignored);
  if (status != ORDO_OK)
    ddp_slots_clear(slots);
  return status;
}

ordo_status ddp_slot_attach(const ordo_job *job, ddp_slot *slot, void *view)
{
  ordo_status status = ORDO_OK;
  slot->view = view; /* also when a bind fails halfway: clearing then puts every member of a tie group back */
  for (uint32_t p = 0; slot->direct && status == ORDO_OK && p < slot->leaf->n_params; p++)
    status = job->bind(job->ctx, slot->leaf->params[p], slot->leaf->params[p]->data, view);
  if (status == ORDO_OK && slot->leaf->grad != view)
    status = job->set_grad(job->ctx, slot->leaf, view);
  if (status == ORDO_OK && slot->leaf->grad_state != ORDO_GRAD_NONE)
    status = job->mark_grad(job->ctx, slot->leaf, ORDO_GRAD_NONE);
  return status;
}

void ddp_slots_clear(ddp_slots *slots)
{
  const ordo_job *job = slots->job;
  for (uint32_t i = 0; i < slots->n; i++) {
    ddp_slot *slot = &slots->items[i];
    if (slot->view != NULL && slot->leaf->state == ORDO_LEAF_LIVE)
      (void)ddp_slot_attach(job, slot, slot->old_grad); /* best effort: the session is going away or already failing */
  }
  ddp_free(job, slots->items);
  ddp_free(job, slots->ignored);
  ddp_free(job, slots->of_leaf);
  memset(slots, 0, sizeof *slots);
}

ddp_slot *ddp_slots_find(const ddp_slots *slots, const ordo_param *param)
{
  if (param->leaf == NULL || param->leaf->index >= slots->n_leaves)
    return NULL;
  int32_t index = slots->of_leaf[param->leaf->index];
  return index >= 0 ? &slots->items[index] : NULL;
}

int ddp_slot_is_finite(const ddp_slot *slot)
{
  const int64_t n = slot->leaf->numel;
  const float *f32 = slot->view;
  const double *f64 = slot->view;
  const uint16_t *half = slot->view;
  const unsigned exponent = slot->leaf->grad_dtype == ORDO_F16 ? 0x7c00u : 0x7f80u;
  int64_t bad = 0; /* counted instead of leaving early: the loops then vectorise, and a bad value is rare */
  if (slot->leaf->grad_dtype == ORDO_F32)
    for (int64_t i = 0; i < n; i++)
      bad += !isfinite(f32[i]);
  else if (slot->leaf->grad_dtype == ORDO_F64)
    for (int64_t i = 0; i < n; i++)
      bad += !isfinite(f64[i]);
  else
    for (int64_t i = 0; i < n; i++)
      bad += (half[i] & exponent) == exponent;
  return bad == 0;
}
