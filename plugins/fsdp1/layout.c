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

/* Units of each one of the policy, chained in the order of the model, so that nobody searches them. */
static ordo_status chain_units(fsdp1 *self)
{
  const uint32_t n = self->job->model->n_units;
  self->first_unit = fsdp1_alloc(self->job, self->n_policy, sizeof *self->first_unit, ORDO_MEM_OTHER);
  self->next_unit = fsdp1_alloc(self->job, n, sizeof *self->next_unit, ORDO_MEM_OTHER);
  if (self->first_unit == NULL || self->next_unit == NULL)
    return ORDO_E_NOMEM;
  sharding_chain(self->flat_of_unit, n, self->n_policy, self->first_unit, self->next_unit);
  return ORDO_OK;
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
  ordo_status status = sharding_check_policy(self->job, policy, &error);
  return status == ORDO_OK ? chain_units(self) : status;
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
    return sharding_fail(
        self->job, ORDO_E_UNSUPPORTED,
        sharding_way_out(self->job, leaf, "keep it in f32, bf16 or f16, or exclude it with fsdp1:ignored=NAME",
                         "keep it in f32, bf16 or f16; or freeze it (requires_grad off) and exclude it with fsdp1:ignored=NAME"),
        "parameter '%s' is stored as %s with gradients of %s; flat parameters hold f32, bf16 or f16", leaf->name,
        leaf->opaque != NULL ? leaf->opaque->name : sharding_dtype_name(leaf->dtype), sharding_dtype_name(leaf->grad_dtype));
  return check_ties(self, leaf);
}

/* Which leaves lie in which flat parameter, as sharding_chain has it. */
typedef struct leaf_chains {
  uint32_t *first, *next;
  const ordo_leaf *unlike[2]; /* two that must be one leaf and cannot; of all such pairs the one that the model has first */
} leaf_chains;

/* The number of a leaf's pair of types, in the order in which leaves bring them. */
static uint32_t type_of(const ordo_leaf *leaf, ordo_dtype (*types)[2], uint32_t *n_types)
{
  uint32_t t = 0;
  while (t < *n_types && (types[t][0] != leaf->dtype || types[t][1] != leaf->grad_dtype))
    t++;
  types[t][0] = leaf->dtype;
  types[t][1] = leaf->grad_dtype;
  *n_types = t < *n_types ? *n_types : t + 1;
  return t;
}

/* `flat_of_leaf`: [n_leaves], UINT32_MAX for ignored ones. Sets n_flats. */
static void assign_leaves(fsdp1 *self, uint32_t *flat_of_leaf)
{
  enum { FLOATS = 3 }; /* f32, bf16 and f16; check_leaf refuses others */
  const ordo_model *model = self->job->model;
  ordo_dtype types[FLOATS * FLOATS + 1][2];
  uint32_t n_types = 0;
  for (uint32_t i = 0; i < model->n_leaves; i++) {
    const ordo_leaf *leaf = model->leaves[i];
    flat_of_leaf[i] = UINT32_MAX;
    if (!is_ignored(self, leaf))
      flat_of_leaf[i] = self->flat_of_unit[leaf->params[0]->unit] + self->n_policy * type_of(leaf, types, &n_types);
  }
  self->n_flats = self->n_policy * (n_types > 0 ? n_types : 1);
}

static void free_chains(const fsdp1 *self, leaf_chains *chains)
{
  fsdp1_free(self->job, chains->first);
  fsdp1_free(self->job, chains->next);
}

static ordo_status chain_leaves(fsdp1 *self, leaf_chains *chains)
{
  const uint32_t n = self->job->model->n_leaves;
  uint32_t *flat_of_leaf = fsdp1_alloc(self->job, n, sizeof *flat_of_leaf, ORDO_MEM_OTHER);
  if (flat_of_leaf == NULL)
    return ORDO_E_NOMEM;
  assign_leaves(self, flat_of_leaf);
  chains->first = fsdp1_alloc(self->job, self->n_flats, sizeof *chains->first, ORDO_MEM_OTHER);
  chains->next = fsdp1_alloc(self->job, n, sizeof *chains->next, ORDO_MEM_OTHER);
  if (chains->first != NULL && chains->next != NULL)
    sharding_chain(flat_of_leaf, n, self->n_flats, chains->first, chains->next);
  fsdp1_free(self->job, flat_of_leaf);
  return chains->first != NULL && chains->next != NULL ? ORDO_OK : ORDO_E_NOMEM;
}

int fsdp1_same_placement(const ordo_leaf *a, const ordo_leaf *b)
{
  return memcmp(a->placement->data, b->placement->data, sizeof a->placement->data) == 0 &&
         memcmp(a->placement->grad_partial, b->placement->grad_partial, sizeof a->placement->grad_partial) == 0;
}

/* Without views one leaf stands for all parameters of a unit with one placement, so the optimizer cannot tell them apart. */
static ordo_status check_alike(const fsdp1 *self, const ordo_leaf *a, const ordo_leaf *b)
{
  if (a == NULL)
    return ORDO_OK;
  if ((a->flags ^ b->flags) & ORDO_PARAM_REQUIRES_GRAD)
    return sharding_fail(self->job, ORDO_E_INVALID, "use use_orig_params=true, or wrap frozen parameters in units of their own",
                         "use_orig_params=false makes one leaf of '%s' and '%s', but only one of them is trained", a->name, b->name);
  return sharding_fail(self->job, ORDO_E_INVALID, "use use_orig_params=true, or train without weight decay (optim.weight_decay=0)",
                       "use_orig_params=false makes one leaf of '%s' and '%s', but weight decay applies to only one of them", a->name,
                       b->name);
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
static void add_items(fsdp1 *self, uint32_t index, leaf_chains *chains)
{
  const ordo_model *model = self->job->model;
  for (uint32_t first = chains->first[index]; first != UINT32_MAX; first = chains->next[first]) {
    const ordo_leaf *leaf = model->leaves[first];
    if (self->item_of_param[leaf->params[0]->index] != UINT32_MAX)
      continue;
    add_item(self, leaf, index);
    for (uint32_t i = chains->next[first]; !self->options.use_orig_params && i != UINT32_MAX; i = chains->next[i]) {
      if (!fsdp1_same_placement(leaf, model->leaves[i]))
        continue;
      if (((leaf->flags ^ model->leaves[i]->flags) & (ORDO_PARAM_REQUIRES_GRAD | ORDO_PARAM_DECAY)) != 0 &&
          (chains->unlike[1] == NULL || i < chains->unlike[1]->index)) {
        chains->unlike[0] = leaf;
        chains->unlike[1] = model->leaves[i];
      }
      add_item(self, model->leaves[i], index);
    }
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

static ordo_status lay_out(fsdp1 *self, uint32_t index, leaf_chains *chains)
{
  fsdp1_flat_param *flat = &self->flats[index];
  flat->first_item = self->n_items;
  add_items(self, index, chains);
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
  const uint32_t first = self->first_unit[policy];
  const char *unit = first != UINT32_MAX ? model->units[first]->name : NULL;
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
  return status;
}

static ordo_status make_arrays(fsdp1 *self)
{
  const ordo_model *model = self->job->model;
  self->items = fsdp1_alloc(self->job, model->n_leaves, sizeof *self->items, ORDO_MEM_OTHER);
  self->item_of_param = fsdp1_alloc(self->job, model->n_params, sizeof *self->item_of_param, ORDO_MEM_OTHER);
  self->flats = fsdp1_alloc(self->job, self->n_flats, sizeof *self->flats, ORDO_MEM_OTHER);
  self->leaf_of_item = fsdp1_alloc(self->job, model->n_leaves, sizeof *self->leaf_of_item, ORDO_MEM_OTHER);
  self->ignored_leaves = fsdp1_alloc(self->job, model->n_leaves, sizeof *self->ignored_leaves, ORDO_MEM_OTHER);
  self->storage = fsdp1_alloc(self->job, 2 * (uint64_t)model->n_leaves, sizeof *self->storage, ORDO_MEM_OTHER);
  self->votes = fsdp1_alloc(self->job, model->n_leaves, sizeof *self->votes, ORDO_MEM_OTHER);
  if (self->items == NULL || self->item_of_param == NULL || self->flats == NULL || self->leaf_of_item == NULL ||
      self->ignored_leaves == NULL || self->storage == NULL || self->votes == NULL)
    return ORDO_E_NOMEM;
  memset(self->item_of_param, 0xff, model->n_params * sizeof *self->item_of_param);
  return ORDO_OK;
}

ordo_status fsdp1_layout_make(fsdp1 *self)
{
  leaf_chains chains = {NULL, NULL, {NULL, NULL}};
  ordo_status status = assign_units(self);
  if (status == ORDO_OK)
    status = check_model(self);
  if (status == ORDO_OK)
    status = chain_leaves(self, &chains);
  if (status == ORDO_OK)
    status = make_arrays(self);
  for (uint32_t f = 0; status == ORDO_OK && f < self->n_flats; f++) {
    status = lay_out(self, f, &chains);
    name_flat(self, f);
  }
  free_chains(self, &chains);
  if (status == ORDO_OK)
    status = check_alike(self, chains.unlike[0], chains.unlike[1]);
  if (status == ORDO_OK && self->n_items == 0)
    status = sharding_fail(self->job, ORDO_E_INVALID, "leave fsdp1 out for this model, or ignore less",
                           "every parameter of model '%s' is excluded by 'ignored'; there is nothing to shard", self->job->model->name);
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
  fsdp1_free(job, self->first_unit);
  fsdp1_free(job, self->next_unit);
  fsdp1_free(job, self->leaf_of_item);
  fsdp1_free(job, self->ignored_leaves);
  fsdp1_free(job, self->storage);
  fsdp1_free(job, self->votes);
  self->items = NULL;
  self->item_of_param = self->flat_of_unit = self->first_unit = self->next_unit = self->leaf_of_item = self->ignored_leaves = NULL;
  self->flats = NULL;
  self->storage = NULL;
  self->votes = NULL;
  self->n_items = self->n_flats = self->n_policy = self->n_ignored = 0;
}
