/* layout.c - the flat parameters of a model: which parameters lie in which one, and every reason why they cannot.
 *
 * It looks at the description of the model alone, so that all ranks come to the same layout and the same refusal. Guarded against: tied
 * parameters in two units, which would be gathered and trained apart; and, without views, groups that the optimizer must treat differently,
 * which one flat leaf would silently treat alike. Storage has one type, so a unit has a flat parameter for each type of its parameters (a
 * precision plugin may leave norms in fp32); the units of a policy gather and release theirs together.
 */
#include "fsdp1.h"

#include <stdio.h>
#include <string.h>

static int is_ignored(const fsdp1 *self, const ordo_leaf *leaf)
{
  return sharding_pattern_finds_leaf(self->options.ignored, leaf);
}

static ordo_status assign_units(fsdp1 *self)
{
  const ordo_model *model = self->job->model;
  const sharding_policy *policy = &self->options.units;
  sharding_policy_error error;
  self->flat_of_unit = fsdp1_alloc(self->job, model->n_units, sizeof *self->flat_of_unit, ORDO_MEM_OTHER);
  if (self->flat_of_unit == NULL)
    return ORDO_E_NOMEM;
  self->n_policy = sharding_units_assign(policy, model, self->flat_of_unit, &error);
  return sharding_check_policy(self->job, policy, &error);
}

/* A tie group is one item, so all units that use it must be gathered together. */
static ordo_status check_ties(const fsdp1 *self, const ordo_leaf *leaf)
{
  const uint32_t flat = self->flat_of_unit[leaf->params[0]->unit];
  for (uint32_t p = 1; p < leaf->n_params; p++)
    if (self->flat_of_unit[leaf->params[p]->unit] != flat)
      return sharding_fail(
          self->job, ORDO_E_INVALID, "wrap both units together (units=list with one pattern for both), or leave both in the root",
          "parameters '%s' and '%s' share storage, but the wrap policy puts unit '%s' and unit '%s' into different flat parameters",
          leaf->params[0]->name, leaf->params[p]->name, self->job->model->units[leaf->params[0]->unit]->name,
          self->job->model->units[leaf->params[p]->unit]->name);
  return ORDO_OK;
}

static ordo_status check_leaf(const fsdp1 *self, const ordo_leaf *leaf)
{
  if (leaf->n_params == 0 || leaf->placement->n_chunks != 1)
    return sharding_fail(self->job, ORDO_E_STATE, "shard a model once; on two axes use tp=N+fsdp1 or ddp=N+fsdp1",
                         "leaf '%s' is no whole parameter: the model was wrapped by another strategy before", leaf->name);
  for (uint32_t a = 0; a < self->job->mesh->n_axes; a++)
    if (self->job->mesh->axes[a]->kind == ORDO_AXIS_DATA && leaf->placement->data[a] != ORDO_REPLICATE)
      return sharding_fail(self->job, ORDO_E_STATE, "shard a model once; replicas on another axis are ddp=N+fsdp1",
                           "leaf '%s' is sharded over the data axis '%s' already", leaf->name, self->job->mesh->axes[a]->name);
  if (leaf->opaque != NULL || !sharding_is_float(leaf->dtype) || !sharding_is_float(leaf->grad_dtype))
    return sharding_fail(self->job, ORDO_E_UNSUPPORTED, "keep it in f32, bf16 or f16, or exclude it with fsdp1:ignored=NAME",
                         "parameter '%s' is stored as %s with gradients of %s; flat parameters hold f32, bf16 or f16", leaf->name,
                         leaf->opaque != NULL ? leaf->opaque->name : sharding_dtype_name(leaf->dtype),
                         sharding_dtype_name(leaf->grad_dtype));
  return check_ties(self, leaf);
}

/* Number of the leaf's types among those of the model that are sharded, in the order of leaves. */
static uint32_t type_of(const fsdp1 *self, const ordo_leaf *leaf)
{
  const ordo_model *model = self->job->model;
  uint32_t n = 0;
  for (uint32_t i = 0; i < model->n_leaves; i++) {
    const ordo_leaf *one = model->leaves[i];
    int seen = is_ignored(self, one);
    if (!seen && one->dtype == leaf->dtype && one->grad_dtype == leaf->grad_dtype)
      return n;
    for (uint32_t k = 0; k < i && !seen; k++)
      seen =
          !is_ignored(self, model->leaves[k]) && model->leaves[k]->dtype == one->dtype && model->leaves[k]->grad_dtype == one->grad_dtype;
    n += !seen;
  }
  return n;
}

static uint32_t count_types(const fsdp1 *self)
{
  const ordo_model *model = self->job->model;
  uint32_t most = 0;
  for (uint32_t i = 0; i < model->n_leaves; i++) {
    const uint32_t type = is_ignored(self, model->leaves[i]) ? 0 : type_of(self, model->leaves[i]);
    most = type > most ? type : most;
  }
  return most + 1;
}

static uint32_t flat_of_leaf(const fsdp1 *self, const ordo_leaf *leaf)
{
  return self->flat_of_unit[leaf->params[0]->unit] + self->n_policy * type_of(self, leaf);
}

int fsdp1_same_placement(const ordo_leaf *a, const ordo_leaf *b)
{
  return memcmp(a->placement->data, b->placement->data, sizeof a->placement->data) == 0 &&
         memcmp(a->placement->grad_partial, b->placement->grad_partial, sizeof a->placement->grad_partial) == 0;
}

/* Without views one leaf stands for all parameters of a unit with one placement, so the optimizer cannot tell them apart. */
static ordo_status check_uniform(const fsdp1 *self)
{
  const ordo_model *model = self->job->model;
  for (uint32_t i = 0; !self->options.use_orig_params && i < model->n_leaves; i++)
    for (uint32_t k = 0; k < i; k++) {
      const ordo_leaf *a = model->leaves[k], *b = model->leaves[i];
      if (is_ignored(self, a) || is_ignored(self, b) || flat_of_leaf(self, a) != flat_of_leaf(self, b) || !fsdp1_same_placement(a, b))
        continue;
      if ((a->flags ^ b->flags) & ORDO_PARAM_REQUIRES_GRAD)
        return sharding_fail(self->job, ORDO_E_INVALID, "use use_orig_params=true, or wrap frozen parameters in units of their own",
                             "use_orig_params=false makes one leaf of '%s' and '%s', but only one of them is trained", a->name, b->name);
      if ((a->flags ^ b->flags) & ORDO_PARAM_DECAY)
        return sharding_fail(self->job, ORDO_E_INVALID, "use use_orig_params=true, or train without weight decay (optim.weight_decay=0)",
                             "use_orig_params=false makes one leaf of '%s' and '%s', but weight decay applies to only one of them", a->name,
                             b->name);
      break;
    }
  return ORDO_OK;
}

static void add_item(fsdp1 *self, const ordo_leaf *leaf, uint32_t flat)
{
  fsdp1_item *item = &self->items[self->n_items];
  item->old_leaf = leaf;
  item->param = leaf->params[0];
  item->whole = leaf->placement->chunks[0];
  item->numel = leaf->numel;
  item->flat = flat;
  item->trainable = (leaf->flags & ORDO_PARAM_REQUIRES_GRAD) != 0 && !self->job->eval_only;
  for (uint32_t p = 0; p < leaf->n_params; p++)
    self->item_of_param[leaf->params[p]->index] = self->n_items;
  self->n_items++;
}

/* Definition order; without views, parameters of one placement stand together, so that each placement is one range and one leaf: what a
 * tensor-parallel step split and what it replicated (norms) differ in who holds them, and a norm must count the replicated ones once. */
static void add_items(fsdp1 *self, uint32_t index)
{
  const ordo_model *model = self->job->model;
  for (uint32_t first = 0; first < model->n_leaves; first++) {
    const ordo_leaf *leaf = model->leaves[first];
    if (is_ignored(self, leaf) || flat_of_leaf(self, leaf) != index || self->item_of_param[leaf->params[0]->index] != UINT32_MAX)
      continue;
    add_item(self, leaf, index);
    for (uint32_t i = first + 1; !self->options.use_orig_params && i < model->n_leaves; i++)
      if (!is_ignored(self, model->leaves[i]) && flat_of_leaf(self, model->leaves[i]) == index &&
          fsdp1_same_placement(leaf, model->leaves[i]))
        add_item(self, model->leaves[i], index);
  }
}

/* The largest of the slices that an item is one of holds at least an even share of the dimension that was cut, rounded up. No other rank
 * answers in a dry run; there this is all that is known of them, and it is exact for slices that differ by one row, as those of tp do. */
static int64_t even_share(const fsdp1 *self, const fsdp1_item *item)
{
  const ordo_mesh *mesh = self->job->mesh;
  const ordo_chunk *chunk = &item->whole;
  int64_t parts = 1, share = 1;
  uint32_t cut = 0;
  for (uint32_t a = 0; a < mesh->n_axes; a++) {
    const uint8_t data = item->old_leaf->placement->data[a];
    if (data != ORDO_REPLICATE)
      parts *= mesh->axes[a]->size / ordo_placement_copies(data, mesh->axes[a]->size);
  }
  for (uint32_t d = 0; chunk->kind == ORDO_CHUNK_RECT && d < chunk->ndim; d++) {
    const int64_t whole = item->param->shape[d];
    cut += chunk->extent[d] != whole;
    share *= chunk->extent[d] != whole ? (whole + parts - 1) / parts : whole;
  }
  return cut == 1 && share > item->numel ? share : item->numel;
}

/* Slices of another axis may be uneven. A flat parameter gives each item the room of its largest slice, so that it is cut at the same
 * places on all ranks of that axis: what the axis replicates must lie on the same rank of this one everywhere, or it is no replica. */
static ordo_status widen(const fsdp1 *self, const fsdp1_flat_param *flat, int64_t *sizes)
{
  const ordo_mesh *mesh = self->job->mesh;
  ordo_status status = ORDO_OK;
  for (uint32_t a = 0; status == ORDO_OK && a < mesh->n_axes; a++) {
    int sliced = 0;
    for (uint32_t i = 0; i < flat->n_items; i++)
      sliced |= self->items[flat->first_item + i].old_leaf->placement->data[a] != ORDO_REPLICATE;
    if (sliced && a != self->job->axis->index)
      status = ordo_all_reduce(mesh->axes[a]->comm, sizes, flat->n_items, ORDO_I64, ORDO_MAX, 1.0);
  }
  return status;
}

static ordo_status lay_out(fsdp1 *self, uint32_t index)
{
  fsdp1_flat_param *flat = &self->flats[index];
  flat->first_item = self->n_items;
  add_items(self, index);
  flat->n_items = self->n_items - flat->first_item;
  flat->dtype = flat->n_items > 0 ? self->items[flat->first_item].old_leaf->dtype : ORDO_F32;
  flat->grad_dtype = flat->n_items > 0 ? self->items[flat->first_item].old_leaf->grad_dtype : ORDO_F32;
  const ordo_dtype travels = flat->dtype == ORDO_F32 ? self->options.sharding.param_dtype : flat->dtype;
  const int64_t align = self->options.use_orig_params ? FSDP1_ALIGNMENT / (int64_t)ordo_dtype_size(travels) : 1;
  int64_t *sizes = fsdp1_alloc(self->job, 2 * (uint64_t)flat->n_items + 1, sizeof *sizes, ORDO_MEM_OTHER);
  if (sizes == NULL)
    return ORDO_E_NOMEM;
  for (uint32_t i = 0; i < flat->n_items; i++) {
    sizes[i] = even_share(self, &self->items[flat->first_item + i]);
    flat->trainable |= self->items[flat->first_item + i].trainable;
  }
  ordo_status status = widen(self, flat, sizes);
  flat->layout = fsdp1_flat_layout(sizes, flat->n_items, align, self->job->axis->size, sizes + flat->n_items);
  for (uint32_t i = 0; i < flat->n_items; i++)
    self->items[flat->first_item + i].offset = sizes[flat->n_items + i];
  fsdp1_free(self->job, sizes);
  return status;
}

/* "model.layers.0.flat_param", "flat_param" for the root: what checkpoints and errors call it; with ".f32" behind it if it is of another
 * type than the model's first. */
static void name_flat(fsdp1 *self, uint32_t index)
{
  const ordo_model *model = self->job->model;
  const uint32_t policy = index % self->n_policy;
  fsdp1_flat_param *flat = &self->flats[index];
  const char *unit = NULL;
  for (uint32_t u = 0; u < model->n_units && unit == NULL; u++)
    if (self->flat_of_unit[u] == policy)
      unit = model->units[u]->name;
  snprintf(flat->name, sizeof flat->name, "%.100s%sflat_param%s%s",
           policy == 0    ? ""
           : unit != NULL ? unit
                          : "?",
           policy == 0 ? "" : ".", index >= self->n_policy ? "." : "", index >= self->n_policy ? sharding_dtype_name(flat->dtype) : "");
}

static ordo_status check_model(const fsdp1 *self)
{
  const ordo_model *model = self->job->model;
  ordo_status status = sharding_check_ignored(self->job, self->options.ignored);
  for (uint32_t i = 0; status == ORDO_OK && i < model->n_leaves; i++)
    if (!is_ignored(self, model->leaves[i]))
      status = check_ties(self, model->leaves[i]);
  for (uint32_t i = 0; status == ORDO_OK && i < model->n_leaves; i++)
    if (!is_ignored(self, model->leaves[i]))
      status = check_leaf(self, model->leaves[i]);
  return status == ORDO_OK ? check_uniform(self) : status;
}

ordo_status fsdp1_layout_make(fsdp1 *self)
{
  const ordo_model *model = self->job->model;
  ordo_status status = assign_units(self);
  if (status == ORDO_OK)
    status = check_model(self);
  if (status != ORDO_OK)
    return status;
  self->items = fsdp1_alloc(self->job, model->n_leaves, sizeof *self->items, ORDO_MEM_OTHER);
  self->item_of_param = fsdp1_alloc(self->job, model->n_params, sizeof *self->item_of_param, ORDO_MEM_OTHER);
  self->n_flats = self->n_policy * count_types(self);
  self->flats = fsdp1_alloc(self->job, self->n_flats, sizeof *self->flats, ORDO_MEM_OTHER);
  self->leaf_of_item = fsdp1_alloc(self->job, model->n_leaves, sizeof *self->leaf_of_item, ORDO_MEM_OTHER);
  self->ignored_leaves = fsdp1_alloc(self->job, model->n_leaves, sizeof *self->ignored_leaves, ORDO_MEM_OTHER);
  self->storage = fsdp1_alloc(self->job, 2 * (uint64_t)model->n_leaves, sizeof *self->storage, ORDO_MEM_OTHER);
  self->votes = fsdp1_alloc(self->job, model->n_leaves, sizeof *self->votes, ORDO_MEM_OTHER);
  if (self->items == NULL || self->item_of_param == NULL || self->flats == NULL || self->leaf_of_item == NULL ||
      self->ignored_leaves == NULL || self->storage == NULL || self->votes == NULL)
    return ORDO_E_NOMEM;
  memset(self->item_of_param, 0xff, model->n_params * sizeof *self->item_of_param);
  for (uint32_t f = 0; status == ORDO_OK && f < self->n_flats; f++) {
    status = lay_out(self, f);
    name_flat(self, f);
  }
  if (status == ORDO_OK && self->n_items == 0)
    status = sharding_fail(self->job, ORDO_E_INVALID, "leave fsdp1 out for this model, or ignore less",
                           "every parameter of model '%s' is excluded by 'ignored'; there is nothing to shard", model->name);
  return status;
}

void fsdp1_layout_clear(fsdp1 *self)
{
  const ordo_job *job = self->job;
  for (uint32_t i = 0; self->storage != NULL && i < 2 * self->n_ignored; i++)
    fsdp1_free(job, self->storage[i]);
  fsdp1_free(job, self->items);
  fsdp1_free(job, self->item_of_param);
  fsdp1_free(job, self->flats);
  fsdp1_free(job, self->flat_of_unit);
  fsdp1_free(job, self->leaf_of_item);
  fsdp1_free(job, self->ignored_leaves);
  fsdp1_free(job, self->storage);
  fsdp1_free(job, self->votes);
  self->items = NULL;
  self->item_of_param = self->flat_of_unit = self->leaf_of_item = self->ignored_leaves = NULL;
  self->flats = NULL;
  self->storage = NULL;
  self->votes = NULL;
  self->n_items = self->n_flats = self->n_policy = self->n_ignored = 0;
}
