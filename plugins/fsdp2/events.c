/* events.c - what a training step means for parameters.
 *
 * The sharding core says when a group is gathered, released and reduced; here its parameters are bound and its leaves reported. After the
 * last micro-batch all ranks agree on which parameters had a gradient at all: one that nobody used keeps none, so weight decay and momentum
 * leave it alone, exactly as on one rank. One that some rank used is summed with zeros from the others.
 */
#include "fsdp2.h"

#include <string.h>

ordo_status fsdp2_bind(void *instance, sharding_group *group, void *full, void *grad)
{
  const fsdp2 *self = instance;
  const uint32_t *members = group->user;
  ordo_status status = ORDO_OK;
  for (uint32_t i = 0; i < group->n_pieces && status == ORDO_OK; i++) {
    const fsdp2_shard *shard = &self->shards[members[i]];
    status = self->job->bind(self->job->ctx, shard->param, sharding_at(full, group->dtype, shard->full_offset),
                             shard->trainable ? sharding_at(grad, group->grad_dtype, shard->full_offset) : NULL);
  }
  return status;
}

const ordo_leaf *fsdp2_leaf(void *instance, const sharding_group *group, uint32_t piece)
{
  const fsdp2 *self = instance;
  const uint32_t *members = group->user;
  return self->job->model->leaves[members[piece]];
}

void fsdp2_begin_step(void *instance)
{
  fsdp2 *self = instance;
  for (uint32_t i = 0; i < self->n_shards; i++)
    self->shards[i].used = 0;
}

void fsdp2_grad_ready(fsdp2 *self, const ordo_param *param)
{
  fsdp2_shard *shard = &self->shards[self->shard_of_param[param->index]];
  shard->used = 1;
  if (!shard->ignored)
    sharding_grad_ready(self->groups[shard->group].group, shard->piece);
}

ordo_status fsdp2_vote(void *instance)
{
  fsdp2 *self = instance;
  for (uint32_t i = 0; i < self->n_shards; i++)
    self->votes[i] = self->shards[i].used;
  return ordo_all_reduce(sharding_sum_ranks(self->job), self->votes, self->n_shards, ORDO_I32, ORDO_MAX, 1.0);
}

/* A strategy that observes shards (ddp on another axis) has put the gradient of the leaf into its own buckets. One that nobody used here
 * is reported too: replicas of this axis may have used it, and then it holds their sum. */
static ordo_status report(const fsdp2 *self, uint32_t index, const void *grad, double divided_by, int held)
{
  const ordo_job *job = self->job;
  ordo_leaf *leaf = job->model->leaves[index];
  if (held && leaf->grad != grad && leaf->numel > 0 && ordo_job_has_data(job))
    memcpy(leaf->grad, grad, (size_t)leaf->numel * ordo_dtype_size(leaf->grad_dtype));
  ordo_status status = job->mark_grad(job->ctx, leaf, held ? ORDO_GRAD_HELD : ORDO_GRAD_NONE);
  return status == ORDO_OK ? job->mark_reduced(job->ctx, leaf, divided_by) : status;
}

ordo_status fsdp2_reduced(void *instance, sharding_group *group, double divided_by, int held)
{
  const fsdp2 *self = instance;
  const uint32_t *members = group->user;
  ordo_status status = ORDO_OK;
  for (uint32_t i = 0; i < group->n_pieces && status == ORDO_OK; i++) {
    const fsdp2_shard *shard = &self->shards[members[i]];
    if (shard->trainable)
      status = report(self, members[i], sharding_at(group->grad_shard, group->grad_dtype, shard->shard_offset), divided_by,
                      held && self->votes[members[i]]);
  }
  return status;
}
