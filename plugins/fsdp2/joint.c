/* joint.c - strategy.prepare_joint: the model is sharded and its optimizer follows, in one transaction.
 *
 * Everything that can fail without touching the model comes first: layout, memory, groups. Then one call of replace_leaves moves leaves,
 * groups and state of the optimizer; the host undoes all of it when any part refuses. After an error nothing is left of the attempt.
 *
 * Guarded against: the two halves being prepared apart. An optimizer that nobody moved would step on the old storage and train nothing, and
 * state keyed by old leaves (Adagrad's, built in its constructor) would be lost: accelerate #3855.
 */
#include "fsdp2.h"

#include <string.h>

static ordo_status make_groups(fsdp2 *self)
{
  const ordo_job *job = self->job;
  const uint32_t n_units = job->model->n_units;
  const sharding_callbacks callbacks = {
      .self = self,
      .bind = fsdp2_bind,
      .reduced = fsdp2_reduced,
      .begin_step = fsdp2_begin_step,
      .vote = fsdp2_vote,
      .leaf = fsdp2_leaf,
      .end_pass = self->options.output_dtype != ORDO_F32 ? fsdp2_check_outputs : NULL,
  };
  sharding_group_spec *specs = fsdp2_alloc(job, self->n_groups, sizeof *specs, ORDO_MEM_OTHER);
  sharding_piece *pieces = fsdp2_alloc(job, self->n_shards, sizeof *pieces, ORDO_MEM_OTHER);
  uint32_t *units = fsdp2_alloc(job, (uint64_t)n_units * (self->n_groups / self->n_policy), sizeof *units, ORDO_MEM_OTHER), n = 0,
           piece = 0, used = 0;
  ordo_status status = specs != NULL && pieces != NULL && units != NULL ? ORDO_OK : ORDO_E_NOMEM;
  for (uint32_t g = 0; status == ORDO_OK && g < self->n_groups; g++) {
    const fsdp2_group *group = &self->groups[g];
    if (group->n_pieces == 0)
      continue;
    specs[n] = (sharding_group_spec){group->name,  units + used,     0, g % self->n_policy == 0, pieces + piece, group->n_pieces,
                                     group->dtype, group->grad_dtype};
    for (uint32_t u = self->first_unit[g % self->n_policy]; u != UINT32_MAX; u = self->next_unit[u])
      units[used + specs[n].n_units++] = u;
    used += specs[n++].n_units;
    for (uint32_t i = 0; i < group->n_pieces; i++, piece++) {
      const fsdp2_shard *shard = &self->shards[self->by_group[piece]];
      pieces[piece] = (sharding_piece){shard->shard_offset, shard->full_offset, shard->chunk * shard->width, shard->trainable, 0};
    }
  }
  if (status == ORDO_OK)
    status = sharding_create(job, &self->options.sharding, &callbacks, specs, n, &self->sharding);
  piece = 0;
  for (uint32_t g = 0, made = 0; status == ORDO_OK && g < self->n_groups; g++) {
    if (self->groups[g].n_pieces == 0)
      continue;
    self->groups[g].group = sharding_group_at(self->sharding, made++);
    self->groups[g].group->user = self->by_group + piece;
    piece += self->groups[g].n_pieces;
  }
  job->free(job->ctx, specs);
  job->free(job->ctx, pieces);
  job->free(job->ctx, units);
  return status;
}

/* This rank's rows: the old rectangle, cut. */
static void describe_shard(const fsdp2 *self, const fsdp2_shard *shard, ordo_leaf_spec *spec, ordo_chunk *chunk)
{
  const sharding_group *group = self->groups[shard->group].group;
  const uint32_t axis = self->job->axis->index;
  spec->numel = (shard->end - shard->begin) * shard->row;
  spec->data = sharding_at(group->shard, group->dtype, shard->shard_offset);
  spec->opaque = shard->old_leaf->opaque;
  spec->grad = shard->trainable ? sharding_at(group->grad_shard, group->grad_dtype, shard->shard_offset) : NULL;
  spec->placement.data[axis] = ORDO_SHARD;
  sharding_place_gradient(self->job, &spec->placement);
  spec->placement.n_chunks = 0;
  spec->placement.chunks = NULL;
  if (spec->numel == 0)
    return;
  *chunk = *shard->old_leaf->placement->chunks;
  chunk->leaf_offset = 0;
  if (chunk->ndim > 0) {
    chunk->offset[0] += shard->begin;
    chunk->extent[0] = shard->end - shard->begin;
  }
  spec->placement.n_chunks = 1;
  spec->placement.chunks = chunk;
}

/* Neither sharded nor reduced: whole on every rank, in storage of its own unless it came with some. Its gradient is this rank's business.
 */
static ordo_status describe_ignored(const fsdp2 *self, fsdp2_shard *shard, ordo_leaf_spec *spec)
{
  const ordo_leaf *leaf = shard->old_leaf;
  spec->numel = leaf->numel;
  spec->data = leaf->data;
  spec->grad = leaf->grad;
  spec->opaque = leaf->opaque;
  spec->placement.grad_partial[self->job->axis->index] = 0;
  if (spec->data == NULL && leaf->opaque == NULL && leaf->numel > 0)
    spec->data = shard->storage[0] = fsdp2_alloc(self->job, (uint64_t)leaf->numel, ordo_dtype_size(leaf->dtype), ORDO_MEM_WEIGHTS);
  if (spec->grad == NULL && shard->trainable && leaf->numel > 0)
    spec->grad = shard->storage[1] = fsdp2_alloc(self->job, (uint64_t)leaf->numel, ordo_dtype_size(leaf->grad_dtype), ORDO_MEM_GRADIENTS);
  const int lacks_data = spec->data == NULL && leaf->opaque == NULL && leaf->numel > 0;
  return lacks_data || (spec->grad == NULL && shard->trainable && leaf->numel > 0) ? ORDO_E_NOMEM : ORDO_OK;
}

static ordo_status replace(fsdp2 *self)
{
  const ordo_job *job = self->job;
  ordo_leaf_spec *specs = fsdp2_alloc(job, self->n_shards, sizeof *specs, ORDO_MEM_OTHER);
  ordo_leaf_link *links = fsdp2_alloc(job, self->n_shards, sizeof *links, ORDO_MEM_OTHER);
  ordo_chunk *chunks = fsdp2_alloc(job, self->n_shards, sizeof *chunks, ORDO_MEM_OTHER);
  ordo_status status = specs != NULL && links != NULL && chunks != NULL ? ORDO_OK : ORDO_E_NOMEM;
  for (uint32_t i = 0; status == ORDO_OK && i < self->n_shards; i++) {
    fsdp2_shard *shard = &self->shards[i];
    const ordo_leaf *leaf = shard->old_leaf;
    specs[i] = (ordo_leaf_spec){.struct_size = sizeof *specs, .name = leaf->name, .dtype = leaf->dtype, .grad_dtype = leaf->grad_dtype};
    specs[i].params = leaf->params;
    specs[i].n_params = leaf->n_params;
    specs[i].flags = leaf->flags;
    specs[i].placement = *leaf->placement;
    links[i] = (ordo_leaf_link){i, i};
    if (shard->ignored)
      status = describe_ignored(self, shard, &specs[i]);
    else
      describe_shard(self, shard, &specs[i], &chunks[i]);
  }
  if (status == ORDO_OK)
    status = job->replace_leaves(job->ctx, specs, self->n_shards, links, self->n_shards);
  job->free(job->ctx, specs);
  job->free(job->ctx, links);
  job->free(job->ctx, chunks);
  return status;
}

/* Both halves or neither. */
static ordo_status check_halves(const fsdp2 *self, const ordo_optimizer *optimizer)
{
  const ordo_job *job = self->job;
  const ordo_optimizer *known = job->optimizer(job->ctx);
  if (self->sharding != NULL)
    return sharding_fail(job, ORDO_E_STATE, "prepare a model once: a second time would shard the shards",
                         "strategy.prepare_joint(fsdp2) was called twice for model '%s'", job->model->name);
  if (optimizer == NULL && job->model->trained && !job->eval_only)
    return sharding_fail(
        job, ORDO_E_STATE, "pass the optimizer with the model; only an evaluation has none",
        "strategy.prepare_joint(fsdp2) was given model '%s' without its optimizer, which would go on stepping on the old parameters",
        job->model->name);
  if (optimizer != known)
    return sharding_fail(job, ORDO_E_STATE, "prepare a model together with the optimizer that was made for it",
                         "strategy.prepare_joint(fsdp2) was given optimizer '%s', which is not that of model '%s'",
                         optimizer != NULL && optimizer->name != NULL ? optimizer->name : "none", job->model->name);
  return ORDO_OK;
}

ordo_status fsdp2_prepare(fsdp2 *self, ordo_optimizer *optimizer)
{
  ordo_status status = check_halves(self, optimizer);
  if (status != ORDO_OK)
    return status;
  status = fsdp2_layout_make(self);
  if (status == ORDO_OK)
    status = make_groups(self);
  if (status == ORDO_OK)
    status = replace(self);
  if (status != ORDO_OK)
    fsdp2_unprepare(self);
  return status;
}

void fsdp2_unprepare(fsdp2 *self)
{
  sharding_destroy(self->sharding);
  self->sharding = NULL;
  fsdp2_layout_clear(self);
}
