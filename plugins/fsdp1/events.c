/* events.c - what a training step means for flat parameters.
 *
 * The sharding core says when a flat parameter is gathered, accumulated and reduced. Here every parameter gets its view of it, what
 * backward did not write is cleared before it is summed, and after the reduction all ranks agree on which parameters had a gradient at all:
 * one that nobody used keeps none, so that weight decay and momentum leave it alone, exactly as on one rank.
 */
#include "fsdp1.h"

#include <string.h>

ordo_status fsdp1_bind(void *instance, sharding_group *group, void *full, void *grad)
{
  const fsdp1 *self = instance;
  const fsdp1_flat_param *flat = group->user;
  const ordo_job *job = self->job;
  ordo_status status = ORDO_OK;
  for (uint32_t i = flat->first_item; status == ORDO_OK && i < flat->first_item + flat->n_items; i++) {
    const fsdp1_item *item = &self->items[i];
    status = job->bind(job->ctx, item->param, sharding_at(full, group->dtype, item->offset),
                       item->trainable ? sharding_at(grad, group->grad_dtype, item->offset) : NULL);
  }
  return status;
}

void fsdp1_begin_step(void *instance)
{
  fsdp1 *self = instance;
  for (uint32_t i = 0; i < self->n_items; i++)
    self->items[i].used = self->items[i].written = 0;
}

void fsdp1_grad_ready(fsdp1 *self, const ordo_param *param)
{
  uint32_t index = self->item_of_param[param->index];
  if (index == UINT32_MAX)
    return;
  fsdp1_item *item = &self->items[index];
  item->written = item->used = 1;
  sharding_grad_ready(self->flats[item->flat].group, 0);
}

/* Gaps of the alignment and the padding at the end: never written by anybody, and summed with the rest. */
static void clear_range(const sharding_group *group, int64_t first, int64_t end)
{
  memset(sharding_at(group->full_grad, group->grad_dtype, first), 0, (size_t)(end - first) * ordo_dtype_size(group->grad_dtype));
}

static void clear_gaps(const fsdp1 *self, const fsdp1_flat_param *flat)
{
  int64_t at = 0;
  for (uint32_t i = flat->first_item; i < flat->first_item + flat->n_items; i++) {
    const fsdp1_item *item = &self->items[i];
    clear_range(flat->group, at, item->offset);
    at = item->offset + item->numel;
  }
  clear_range(flat->group, at, flat->group->full_numel);
}

void fsdp1_settle(void *instance, sharding_group *group, int fresh)
{
  fsdp1 *self = instance;
  const fsdp1_flat_param *flat = group->user;
  fresh = fresh && ordo_job_has_data(self->job);
  if (fresh)
    clear_gaps(self, flat);
  for (uint32_t i = flat->first_item; i < flat->first_item + flat->n_items; i++) {
    fsdp1_item *item = &self->items[i];
    if (fresh && !item->written)
      clear_range(group, item->offset, item->offset + item->numel);
    item->written = 0;
  }
}

/* Is the gradient of the leaf where this plugin put it? A strategy that observes shards (ddp on another axis) takes it into its buckets.
 * One that nobody used here is reported too: replicas of this axis may have used it, and then it holds their sum. */
static ordo_status report_leaf(const fsdp1 *self, ordo_leaf *leaf, void *grad, int held, double divided_by)
{
  const ordo_job *job = self->job;
  ordo_status status = ORDO_OK;
  if (held && leaf->grad != grad)
    status = job->set_grad(job->ctx, leaf, grad);
  if (status == ORDO_OK && leaf->grad_state != (held ? ORDO_GRAD_HELD : ORDO_GRAD_NONE))
    status = job->mark_grad(job->ctx, leaf, held ? ORDO_GRAD_HELD : ORDO_GRAD_NONE);
  return status == ORDO_OK ? job->mark_reduced(job->ctx, leaf, divided_by) : status;
}

static void *gradient_of(const fsdp1 *self, const fsdp1_item *item, const ordo_leaf *leaf)
{
  const fsdp1_flat_param *flat = &self->flats[item->flat];
  if (leaf->numel == 0)
    return NULL;
  const int64_t at = ((const char *)leaf->data - (const char *)flat->group->shard) / (int64_t)ordo_dtype_size(flat->dtype);
  return sharding_at(flat->group->grad_shard, flat->grad_dtype, at);
}

static ordo_status report_views(const fsdp1 *self, const fsdp1_flat_param *flat, double divided_by, int held)
{
  ordo_status status = ORDO_OK;
  for (uint32_t i = flat->first_item; status == ORDO_OK && i < flat->first_item + flat->n_items; i++) {
    const fsdp1_item *item = &self->items[i];
    ordo_leaf *leaf = self->job->model->leaves[self->leaf_of_item[i]];
    if (item->trainable)
      status = report_leaf(self, leaf, gradient_of(self, item, leaf), held && self->votes[i], divided_by);
  }
  return status;
}

/* A leaf of several parameters, items [first, last), has one state: either all of them got a gradient, or none. */
static ordo_status report_items(const fsdp1 *self, const fsdp1_flat_param *flat, uint32_t first, uint32_t last, double divided_by, int held)
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
    return sharding_fail(
        self->job, ORDO_E_INVARIANT, "use use_orig_params=true, or use every parameter of a unit in every step",
        "parameter '%s' got a gradient in this step and '%s' of the same flat parameter '%s' did not; one leaf cannot skip a part",
        used->param->name, unused->param->name, flat->name);
  ordo_leaf *leaf = self->job->model->leaves[self->leaf_of_item[first]];
  return report_leaf(self, leaf, gradient_of(self, &self->items[first], leaf), held && used != NULL, divided_by);
}

static ordo_status report_flat(const fsdp1 *self, const fsdp1_flat_param *flat, double divided_by, int held)
{
  ordo_status status = ORDO_OK;
  for (uint32_t first = flat->first_item, last; status == ORDO_OK && first < flat->first_item + flat->n_items; first = last) {
    for (last = first + 1; last < flat->first_item + flat->n_items && self->leaf_of_item[last] == self->leaf_of_item[first];)
      last++;
    status = report_items(self, flat, first, last, divided_by, held);
  }
  return status;
}

ordo_status fsdp1_reduced(void *instance, sharding_group *group, double divided_by, int held)
{
  const fsdp1 *self = instance;
  return self->options.use_orig_params ? report_views(self, group->user, divided_by, held)
                                       : report_flat(self, group->user, divided_by, held);
}

ordo_status fsdp1_vote(void *instance)
{
  fsdp1 *self = instance;
  const ordo_job *job = self->job;
  for (uint32_t i = 0; i < self->n_items; i++)
    self->votes[i] = self->items[i].used;
  ordo_status status = ordo_all_reduce(sharding_sum_ranks(job), self->votes, self->n_items, ORDO_I32, ORDO_MAX, 1.0);
  for (uint32_t i = 0; status == ORDO_OK && i < self->n_ignored; i++) {
    ordo_leaf *leaf = job->model->leaves[self->ignored_leaves[i]];
    if (leaf->flags & ORDO_PARAM_REQUIRES_GRAD)
      status = job->mark_reduced(job->ctx, leaf, 1.0);
  }
  return status;
}
