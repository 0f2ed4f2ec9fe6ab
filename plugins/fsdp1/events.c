/* events.c - what a training step means for flat parameters.
 *
 * The sharding core says when a flat parameter is gathered, accumulated and reduced. Here every parameter gets its view of it, what
 * backward did not write is cleared before it is summed, and after the reduction all ranks agree on which parameters had a gradient at all:
 * one that nobody used keeps none, so that weight decay and momentum leave it alone, exactly as on one rank.
 */
#include "fsdp1.h"

#include <string.h>

ordo_status fsdp1_bind(void *instance, sharding_group *group, float *full, float *grad)
{
  const fsdp1 *self = instance;
  const fsdp1_flat_param *flat = group->user;
  const ordo_job *job = self->job;
  ordo_status status = ORDO_OK;
  for (uint32_t i = flat->first_item; status == ORDO_OK && i < flat->first_item + flat->n_items; i++) {
    const fsdp1_item *item = &self->items[i];
    status = job->bind(job->ctx, item->param, full != NULL ? full + item->offset : NULL,
                       grad != NULL && item->trainable ? grad + item->offset : NULL);
  }
  return status;
}

void fsdp1_begin_step(fsdp1 *self)
{
  for (uint32_t i = 0; i < self->n_items; i++)
    self->items[i].used = 0;
  for (uint32_t f = 0; f < self->n_flats; f++)
    self->flats[f].held = 0;
}

/* Gradients start anew with the step, and with each micro-batch that is reduced on its own. */
void fsdp1_begin_micro(fsdp1 *self, const ordo_step_info *info)
{
  const sharding_options *options = &self->options.sharding;
  for (uint32_t f = 0; f < self->n_flats; f++)
    self->flats[f].open = 0;
  if (info->micro_batch > 0 && (!options->sync_each || options->replicated))
    return;
  for (uint32_t f = 0; f < self->n_flats; f++)
    self->flats[f].fresh = 1;
  for (uint32_t i = 0; i < self->n_items; i++)
    self->items[i].written = 0;
}

void fsdp1_grad_ready(fsdp1 *self, const ordo_param *param)
{
  uint32_t index = self->item_of_param[param->index];
  if (index == UINT32_MAX)
    return;
  fsdp1_item *item = &self->items[index];
  item->written = item->used = 1;
  sharding_grad_ready(self->sharding, self->flats[item->flat].group, 0);
}

/* Gaps of the alignment and the padding at the end: never written by anybody, and summed with the rest. */
static void clear_gaps(const fsdp1 *self, const fsdp1_flat_param *flat, float *grad)
{
  int64_t at = 0;
  for (uint32_t i = flat->first_item; i < flat->first_item + flat->n_items; i++) {
    const fsdp1_item *item = &self->items[i];
    memset(grad + at, 0, (size_t)(item->offset - at) * sizeof *grad);
    at = item->offset + item->numel;
  }
  memset(grad + at, 0, (size_t)(flat->group->full_numel - at) * sizeof *grad);
}

void fsdp1_settle(fsdp1 *self, fsdp1_flat_param *flat)
{
  float *grad = flat->open && flat->trainable ? flat->group->full_grad : NULL;
  flat->open = 0;
  if (grad == NULL)
    return;
  if (flat->fresh)
    clear_gaps(self, flat, grad);
  flat->fresh = 0;
  for (uint32_t i = flat->first_item; i < flat->first_item + flat->n_items; i++) {
    fsdp1_item *item = &self->items[i];
    if (!item->written)
      memset(grad + item->offset, 0, (size_t)item->numel * sizeof *grad);
    item->written = 1;
  }
}

ordo_status fsdp1_reduced(void *instance, sharding_group *group, double divided_by, int held)
{
  (void)instance;
  fsdp1_flat_param *flat = group->user;
  flat->held = held;
  flat->divided_by = divided_by;
  return ORDO_OK;
}

/* Is the gradient of the leaf where this plugin put it? A strategy that observes shards (ddp on another axis) takes it into its buckets.
 * One that nobody used here is reported too: replicas of this axis may have used it, and then it holds their sum. */
static ordo_status report_leaf(const fsdp1 *self, ordo_leaf *leaf, float *grad, int held, double divided_by)
{
  const ordo_job *job = self->job;
  ordo_status status = ORDO_OK;
  if (held && leaf->grad != grad)
    status = job->set_grad(job->ctx, leaf, grad);
  if (status == ORDO_OK && leaf->grad_state != (held ? ORDO_GRAD_HELD : ORDO_GRAD_NONE))
    status = job->mark_grad(job->ctx, leaf, held ? ORDO_GRAD_HELD : ORDO_GRAD_NONE);
  return status == ORDO_OK ? job->mark_reduced(job->ctx, leaf, divided_by) : status;
}

static float *gradient_of(const fsdp1 *self, const fsdp1_item *item, const ordo_leaf *leaf)
{
  const fsdp1_flat_param *flat = &self->flats[item->flat];
  if (leaf->numel == 0)
    return NULL;
  return flat->group->grad_shard + ((const float *)leaf->data - flat->group->shard);
}

static ordo_status report_views(const fsdp1 *self)
{
  ordo_status status = ORDO_OK;
  for (uint32_t i = 0; status == ORDO_OK && i < self->n_items; i++) {
    const fsdp1_item *item = &self->items[i];
    const fsdp1_flat_param *flat = &self->flats[item->flat];
    ordo_leaf *leaf = self->job->model->leaves[self->leaf_of_item[i]];
    if (item->trainable)
      status = report_leaf(self, leaf, gradient_of(self, item, leaf), flat->held && self->votes[i], flat->divided_by);
  }
  return status;
}

/* A leaf of several parameters, items [first, last), has one state: either all of them got a gradient, or none. */
static ordo_status report_items(const fsdp1 *self, const fsdp1_flat_param *flat, uint32_t first, uint32_t last)
{
  const fsdp1_item *used = NULL, *unused = NULL;
  if (!self->items[first].trainable)
    return ORDO_OK;
  for (uint32_t i = first; i < last; i++) {
    if (self->votes[i])
      used = &self->items[i];
    else
      unused = &self->items[i];
  }
  if (used != NULL && unused != NULL)
    return fsdp1_fail(
        self->job, ORDO_E_INVARIANT, "use use_orig_params=true, or use every parameter of a unit in every step",
        "parameter '%s' got a gradient in this step and '%s' of the same flat parameter '%s' did not; one leaf cannot skip a part",
        used->param->name, unused->param->name, flat->name);
  ordo_leaf *leaf = self->job->model->leaves[self->leaf_of_item[first]];
  return report_leaf(self, leaf, gradient_of(self, &self->items[first], leaf), flat->held && used != NULL, flat->divided_by);
}

static ordo_status report_flat(const fsdp1 *self, const fsdp1_flat_param *flat)
{
  ordo_status status = ORDO_OK;
  for (uint32_t first = flat->first_item, last; status == ORDO_OK && first < flat->first_item + flat->n_items; first = last) {
    for (last = first + 1; last < flat->first_item + flat->n_items && self->leaf_of_item[last] == self->leaf_of_item[first];)
      last++;
    status = report_items(self, flat, first, last);
  }
  return status;
}

ordo_status fsdp1_report(fsdp1 *self)
{
  const ordo_job *job = self->job;
  for (uint32_t i = 0; i < self->n_items; i++)
    self->votes[i] = self->items[i].used;
  ordo_status status = ordo_all_reduce(job->axis->comm, self->votes, self->n_items, ORDO_I32, ORDO_MAX, 1.0);
  if (status == ORDO_OK && self->options.use_orig_params)
    status = report_views(self);
  for (uint32_t f = 0; status == ORDO_OK && !self->options.use_orig_params && f < self->n_flats; f++)
    if (self->flats[f].n_items > 0 && self->flats[f].trainable)
      status = report_flat(self, &self->flats[f]);
  for (uint32_t i = 0; status == ORDO_OK && i < self->n_ignored; i++) {
    ordo_leaf *leaf = job->model->leaves[self->ignored_leaves[i]];
    if (leaf->flags & ORDO_PARAM_REQUIRES_GRAD)
      status = job->mark_reduced(job->ctx, leaf, 1.0);
  }
  return status;
}
