/* wrap.c - strategy.wrap: flat parameters with storage, and the leaves that an optimizer will see.
 *
 * With views (use_orig_params=true) there is a leaf per parameter, a part of this rank's shard: groups, weight-decay masks and frozen
 * subsets stay what they were, and a rank may hold no element of a parameter. Without, there is one leaf per flat parameter, padding
 * included; where a tensor-parallel step split some of its parameters and not others, one for each placement. In both cases leaves are
 * named in the transaction of replace_leaves, so an optimizer that exists already is moved or the wrap is refused: flat leaves behind its
 * back would leave it stepping on dead memory (accelerate #3256).
 */
#include "fsdp1.h"

#include <stdio.h>
#include <string.h>

enum { NAME = 256 };

/* ---- groups of the sharding core ---- */

static uint32_t units_of(const fsdp1 *self, uint32_t flat, uint32_t *units)
{
  uint32_t n = 0;
  for (uint32_t u = self->first_unit[flat % self->n_policy]; u != UINT32_MAX; u = self->next_unit[u])
    units[n++] = u;
  return n;
}

static ordo_status make_groups(fsdp1 *self)
{
  const ordo_job *job = self->job;
  const sharding_callbacks callbacks = {.self = self,
                                        .bind = fsdp1_bind,
                                        .reduced = fsdp1_reduced,
                                        .begin_step = fsdp1_begin_step,
                                        .settle = fsdp1_settle,
                                        .vote = fsdp1_vote};
  sharding_group_spec *specs = fsdp1_alloc(job, self->n_flats, sizeof *specs, ORDO_MEM_OTHER);
  sharding_piece *pieces = fsdp1_alloc(job, self->n_flats, sizeof *pieces, ORDO_MEM_OTHER);
  const uint64_t types = self->n_flats / self->n_policy;
  uint32_t *units = fsdp1_alloc(job, job->model->n_units * types, sizeof *units, ORDO_MEM_OTHER), used = 0, n = 0;
  const int64_t held = self->options.sharding_strategy == FSDP1_NO_SHARD ? job->axis->size : 1; /* shards on each rank */
  ordo_status status = specs != NULL && pieces != NULL && units != NULL ? ORDO_OK : ORDO_E_NOMEM;
  for (uint32_t f = 0; status == ORDO_OK && f < self->n_flats; f++) {
    const fsdp1_flat_param *flat = &self->flats[f];
    if (flat->n_items == 0)
      continue;
    pieces[n] = (sharding_piece){.count = flat->layout.shard_numel * held, .trainable = flat->trainable};
    specs[n] = (sharding_group_spec){.name = flat->name, .units = units + used, .pieces = &pieces[n], .n_pieces = 1};
    specs[n].is_root = f % self->n_policy == 0;
    specs[n].dtype = flat->dtype;
    specs[n].grad_dtype = flat->grad_dtype;
    specs[n].n_units = units_of(self, f, units + used);
    used += specs[n].n_units;
    n++;
  }
  if (status == ORDO_OK)
    status = sharding_create(job, &self->options.sharding, &callbacks, specs, n, &self->sharding);
  for (uint32_t f = 0, g = 0; status == ORDO_OK && f < self->n_flats; f++)
    if (self->flats[f].n_items > 0) {
      self->flats[f].group = sharding_group_at(self->sharding, g++);
      self->flats[f].group->user = &self->flats[f];
    }
  fsdp1_free(job, specs);
  fsdp1_free(job, pieces);
  fsdp1_free(job, units);
  return status;
}

/* ---- leaves ---- */

typedef struct leaf_plan {
  ordo_leaf_spec *specs;
  ordo_leaf_link *links;
  ordo_chunk *chunks;
  const ordo_param **params;
  char (*names)[NAME]; /* of leaves that share a flat parameter */
  uint32_t n_specs, n_links, n_chunks, n_params;
} leaf_plan;

/* Placement of a shard: what the old leaf said of the other axes, and this axis. */
static ordo_placement place(const fsdp1 *self, const ordo_placement *old)
{
  ordo_placement placement = {.struct_size = sizeof placement};
  const uint32_t axis = self->job->axis->index;
  memcpy(placement.data, old->data, sizeof placement.data);
  memcpy(placement.grad_partial, old->grad_partial, sizeof placement.grad_partial);
  placement.data[axis] = self->options.sharding_strategy == FSDP1_NO_SHARD ? ORDO_REPLICATE : ORDO_SHARD;
  sharding_place_gradient(self->job, &placement);
  return placement;
}

/* This rank's elements of an item, in the item and in the shard. */
static void held_range(const fsdp1 *self, const fsdp1_item *item, int64_t *begin, int64_t *end, int64_t *at)
{
  const fsdp1_flat *layout = &self->flats[item->flat].layout;
  const int whole = self->options.sharding_strategy == FSDP1_NO_SHARD;
  const int32_t rank = self->job->axis->coordinate;
  *begin = 0;
  *end = item->numel;
  if (!whole)
    fsdp1_flat_piece(layout, item->offset, item->numel, rank, begin, end);
  *at = item->offset + *begin - (whole ? 0 : layout->shard_numel * rank);
}

static ordo_status add_chunks(const fsdp1 *self, leaf_plan *plan, ordo_leaf_spec *spec, const fsdp1_item *item, int64_t leaf_offset)
{
  int64_t begin, end, at;
  held_range(self, item, &begin, &end, &at);
  int n = fsdp1_flat_chunks(&item->whole, begin, end, leaf_offset, plan->chunks + plan->n_chunks);
  if (n < 0)
    return sharding_fail(
        self->job, ORDO_E_UNSUPPORTED,
        sharding_way_out(self->job, item->old_leaf, "use fsdp2, which cuts rectangles, or exclude it with fsdp1:ignored=NAME",
                         "use fsdp2, which cuts rectangles; or freeze it (requires_grad off) and exclude it with fsdp1:ignored=NAME"),
        "parameter '%s' has %u dimensions and another strategy cut an inner one; flat shards cannot describe that", item->param->name,
        item->param->ndim);
  if (spec->placement.chunks == NULL && n > 0)
    spec->placement.chunks = plan->chunks + plan->n_chunks;
  spec->placement.n_chunks += (uint64_t)n;
  plan->n_chunks += (uint32_t)n;
  return ORDO_OK;
}

static void add_params(leaf_plan *plan, ordo_leaf_spec *spec, const ordo_leaf *old_leaf)
{
  if (spec->params == NULL)
    spec->params = plan->params + plan->n_params;
  for (uint32_t p = 0; p < old_leaf->n_params; p++)
    plan->params[plan->n_params++] = old_leaf->params[p];
  spec->n_params += old_leaf->n_params;
}

static void add_link(leaf_plan *plan, const ordo_leaf *old_leaf)
{
  plan->links[plan->n_links++] = (ordo_leaf_link){old_leaf->index, plan->n_specs};
}

static ordo_leaf_spec make_spec(const fsdp1 *self, const fsdp1_item *item, const char *name)
{
  ordo_leaf_spec spec = {.struct_size = sizeof spec, .name = name};
  spec.dtype = item->old_leaf->dtype;
  spec.grad_dtype = item->old_leaf->grad_dtype;
  spec.placement = place(self, item->old_leaf->placement);
  spec.flags = item->old_leaf->flags;
  return spec;
}

/* A view: the elements of one parameter that this rank holds. */
static ordo_status add_view(fsdp1 *self, leaf_plan *plan, const ordo_leaf *old_leaf)
{
  const uint32_t index = self->item_of_param[old_leaf->params[0]->index];
  const fsdp1_item *item = &self->items[index];
  const sharding_group *group = self->flats[item->flat].group;
  ordo_leaf_spec *spec = &plan->specs[plan->n_specs];
  int64_t begin, end, at;
  held_range(self, item, &begin, &end, &at);
  *spec = make_spec(self, item, old_leaf->name);
  spec->numel = end - begin;
  spec->data = spec->numel > 0 ? sharding_at(group->shard, group->dtype, at) : NULL;
  spec->grad = spec->numel > 0 && item->trainable ? sharding_at(group->grad_shard, group->grad_dtype, at) : NULL;
  add_params(plan, spec, old_leaf);
  ordo_status status = add_chunks(self, plan, spec, item, 0);
  add_link(plan, old_leaf);
  self->leaf_of_item[index] = plan->n_specs++;
  return status;
}

/* The first item after `first` whose parameter lies otherwise on the other axes, or the end of the flat parameter. */
static uint32_t end_of_placement(const fsdp1 *self, const fsdp1_flat_param *flat, uint32_t first)
{
  uint32_t end = first + 1;
  while (end < flat->first_item + flat->n_items && fsdp1_same_placement(self->items[first].old_leaf, self->items[end].old_leaf))
    end++;
  return end;
}

/* Elements [*begin, *end) of this rank's shard that belong to items [first, last), the padding behind each included. */
static void shard_range(const fsdp1 *self, const fsdp1_flat_param *flat, uint32_t first, uint32_t last, int64_t *begin, int64_t *end)
{
  const int64_t numel = flat->group->shard_numel, shard = flat->layout.shard_numel;
  const int64_t start = self->options.sharding_strategy == FSDP1_NO_SHARD ? 0 : shard * self->job->axis->coordinate;
  const int64_t from = self->items[first].offset - start;
  const int64_t to = last < flat->first_item + flat->n_items ? self->items[last].offset - start : numel;
  *begin = from < 0 ? 0 : from > numel ? numel : from;
  *end = to > numel ? numel : to < *begin ? *begin : to;
}

/* "model.layers.0.flat_param.tp" for what the axis 'tp' splits, if the unit holds other parameters that it does not. */
static const char *name_leaf(const fsdp1 *self, const fsdp1_flat_param *flat, const uint8_t *placed, char *name)
{
  const ordo_mesh *mesh = self->job->mesh;
  size_t used = (size_t)snprintf(name, NAME, "%s", flat->name);
  for (uint32_t a = 0; a < mesh->n_axes && used < NAME; a++)
    if (a != self->job->axis->index && placed[a] != ORDO_REPLICATE)
      used += (size_t)snprintf(name + used, NAME - used, placed[a] > ORDO_SHARD ? ".%.40s.copies" : ".%.40s", mesh->axes[a]->name);
  return name;
}

/* The shard of a flat parameter as one leaf; `first` to `last` are its items, or those of one placement. */
static ordo_status add_flat(fsdp1 *self, leaf_plan *plan, const fsdp1_flat_param *flat, uint32_t first, uint32_t last)
{
  ordo_leaf_spec *spec = &plan->specs[plan->n_specs];
  const int alone = last - first == flat->n_items;
  int64_t start, stop;
  ordo_status status = ORDO_OK;
  shard_range(self, flat, first, last, &start, &stop);
  *spec = make_spec(self, &self->items[first], flat->name);
  if (!alone)
    spec->name = name_leaf(self, flat, spec->placement.data, plan->names[plan->n_specs]);
  spec->numel = stop - start;
  spec->data = spec->numel > 0 ? sharding_at(flat->group->shard, flat->dtype, start) : NULL;
  spec->grad = spec->numel > 0 && self->items[first].trainable ? sharding_at(flat->group->grad_shard, flat->grad_dtype, start) : NULL;
  for (uint32_t i = first; status == ORDO_OK && i < last; i++) {
    int64_t begin, end, at;
    held_range(self, &self->items[i], &begin, &end, &at);
    add_params(plan, spec, self->items[i].old_leaf);
    status = add_chunks(self, plan, spec, &self->items[i], at - start);
    add_link(plan, self->items[i].old_leaf);
    self->leaf_of_item[i] = plan->n_specs;
  }
  plan->n_specs++;
  return status;
}

static ordo_status add_flats(fsdp1 *self, leaf_plan *plan, const fsdp1_flat_param *flat)
{
  ordo_status status = ORDO_OK;
  for (uint32_t first = flat->first_item, last; status == ORDO_OK && first < flat->first_item + flat->n_items; first = last) {
    last = end_of_placement(self, flat, first);
    status = add_flat(self, plan, flat, first, last);
  }
  return status;
}

/* Neither sharded nor reduced: whole on every rank, in storage of its own unless it came with some. */
static ordo_status add_ignored(fsdp1 *self, leaf_plan *plan, const ordo_leaf *old_leaf)
{
  const int trainable = (old_leaf->flags & ORDO_PARAM_REQUIRES_GRAD) != 0 && !self->job->eval_only;
  ordo_leaf_spec *spec = &plan->specs[plan->n_specs];
  void **storage = self->storage + 2 * self->n_ignored;
  *spec =
      (ordo_leaf_spec){.struct_size = sizeof *spec, .name = old_leaf->name, .dtype = old_leaf->dtype, .grad_dtype = old_leaf->grad_dtype};
  spec->opaque = old_leaf->opaque;
  spec->numel = old_leaf->numel;
  spec->placement = *old_leaf->placement;
  spec->flags = old_leaf->flags;
  spec->data = old_leaf->data;
  spec->grad = old_leaf->grad;
  add_params(plan, spec, old_leaf);
  self->ignored_leaves[self->n_ignored++] = plan->n_specs;
  add_link(plan, old_leaf);
  plan->n_specs++;
  if (spec->data == NULL && spec->opaque == NULL) {
    storage[0] = fsdp1_alloc(self->job, (uint64_t)spec->numel, ordo_dtype_size(spec->dtype), ORDO_MEM_WEIGHTS);
    spec->data = storage[0];
    if (storage[0] == NULL)
      return ORDO_E_NOMEM;
  }
  if (spec->grad == NULL && trainable) {
    storage[1] = fsdp1_alloc(self->job, (uint64_t)spec->numel, ordo_dtype_size(spec->grad_dtype), ORDO_MEM_GRADIENTS);
    spec->grad = storage[1];
    if (storage[1] == NULL)
      return ORDO_E_NOMEM;
  }
  return ORDO_OK;
}

static ordo_status plan_leaves(fsdp1 *self, leaf_plan *plan)
{
  const ordo_model *model = self->job->model;
  ordo_status status = ORDO_OK;
  for (uint32_t i = 0; status == ORDO_OK && i < model->n_leaves; i++) {
    const ordo_leaf *leaf = model->leaves[i];
    if (self->item_of_param[leaf->params[0]->index] == UINT32_MAX)
      status = add_ignored(self, plan, leaf);
    else if (self->options.use_orig_params)
      status = add_view(self, plan, leaf);
  }
  for (uint32_t f = 0; status == ORDO_OK && !self->options.use_orig_params && f < self->n_flats; f++)
    if (self->flats[f].n_items > 0)
      status = add_flats(self, plan, &self->flats[f]);
  return status;
}

static ordo_status replace(fsdp1 *self)
{
  const ordo_job *job = self->job;
  const uint32_t n = job->model->n_leaves;
  leaf_plan plan = {0};
  plan.specs = fsdp1_alloc(job, n, sizeof *plan.specs, ORDO_MEM_OTHER);
  plan.links = fsdp1_alloc(job, n, sizeof *plan.links, ORDO_MEM_OTHER);
  plan.chunks = fsdp1_alloc(job, (uint64_t)n * FSDP1_MAX_CHUNKS, sizeof *plan.chunks, ORDO_MEM_OTHER);
  plan.params = fsdp1_alloc(job, job->model->n_params, sizeof *plan.params, ORDO_MEM_OTHER);
  plan.names = fsdp1_alloc(job, n, sizeof *plan.names, ORDO_MEM_OTHER);
  const int complete = plan.specs != NULL && plan.links != NULL && plan.chunks != NULL && plan.params != NULL && plan.names != NULL;
  ordo_status status = complete ? ORDO_OK : ORDO_E_NOMEM;
  if (status == ORDO_OK)
    status = plan_leaves(self, &plan);
  if (status == ORDO_OK)
    status = job->replace_leaves(job->ctx, plan.specs, plan.n_specs, plan.links, plan.n_links);
  fsdp1_free(job, plan.specs);
  fsdp1_free(job, plan.links);
  fsdp1_free(job, plan.chunks);
  fsdp1_free(job, (void *)plan.params);
  fsdp1_free(job, plan.names);
  return status;
}

/* ---- the step ---- */

/* A flat leaf mixes parameters, so an optimizer made before it keeps groups and state that no map can carry over element by element. */
static ordo_status check_optimizer(const fsdp1 *self)
{
  const ordo_optimizer *optimizer = self->job->optimizer(self->job->ctx);
  if (optimizer == NULL || self->options.use_orig_params)
    return ORDO_OK;
  return sharding_fail(
      self->job, ORDO_E_STATE, "create the optimizer after strategy.wrap, as the plan orders it, or use use_orig_params=true",
      "optimizer '%s' was created before strategy.wrap(fsdp1) with use_orig_params=false: it holds parameters that the flat "
      "parameters replace, and would train nothing",
      optimizer->name != NULL ? optimizer->name : "?");
}

/* Replicas beside NO_SHARD would both compute into and reduce the same whole gradients, each in its own memory. */
static ordo_status check_axes(const fsdp1 *self)
{
  const ordo_mesh *mesh = self->job->mesh;
  const ordo_axis *other = NULL;
  for (uint32_t a = 0; a < mesh->n_axes; a++)
    if (mesh->axes[a]->kind == ORDO_AXIS_DATA && a != self->job->axis->index)
      other = mesh->axes[a];
  if (self->options.hybrid && other == NULL)
    return sharding_fail(self->job, ORDO_E_INVALID, "give the replicas an axis: ddp=2+fsdp1 keeps two copies of the shards",
                         "sharding_strategy=HYBRID_SHARD shards on one data axis and replicates on another, and this mesh "
                         "has only axis '%s'",
                         self->job->axis->name);
  if (self->options.sharding_strategy == FSDP1_NO_SHARD && other != NULL && other->size > 1 && !self->job->eval_only)
    return sharding_fail(self->job, ORDO_E_INVALID, "give NO_SHARD all data ranks (fsdp1 alone), or use HYBRID_SHARD",
                         "sharding_strategy=NO_SHARD keeps everything whole on axis '%s', and axis '%s' would hold copies of the same",
                         self->job->axis->name, other->name);
  return ORDO_OK;
}

ordo_status fsdp1_wrap(fsdp1 *self)
{
  if (self->sharding != NULL)
    return sharding_fail(self->job, ORDO_E_STATE, "this is a defect of the host: a step runs once",
                         "strategy.wrap(fsdp1) was called twice");
  ordo_status status = check_optimizer(self);
  if (status == ORDO_OK)
    status = check_axes(self);
  if (status == ORDO_OK)
    status = fsdp1_layout_make(self);
  if (status == ORDO_OK)
    status = make_groups(self);
  if (status == ORDO_OK)
    status = replace(self);
  if (status != ORDO_OK)
    fsdp1_unwrap(self);
  return status;
}

void fsdp1_unwrap(fsdp1 *self)
{
  sharding_destroy(self->sharding);
  self->sharding = NULL;
  fsdp1_layout_clear(self);
}
