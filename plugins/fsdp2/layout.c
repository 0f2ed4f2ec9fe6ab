/* layout.c - how each leaf is cut, and which leaves travel together.
 *
 * Rows are cut as torch.chunk does: every rank gets ceil(rows / ranks), the last ones less or nothing. In a message each rank sends that
 * many rows, so a gathered parameter stands whole and in order, with its padding behind it, and nothing has to be copied out.
 *
 * It looks at the description of the model alone, so all ranks come to the same layout and the same refusal. Guarded against: tied
 * parameters in two groups (gathered and trained apart), and a model that is sharded along this axis already. Parameters of a unit that
 * differ in type (norms that a precision plugin leaves in fp32) are groups that are gathered together.
 */
#include "fsdp2.h"

#include <stdio.h>
#include <string.h>

enum { ALIGN = 16, WORD = sizeof(float) }; /* elements: pieces begin at a cache line, or half of one */

static int is_ignored(const fsdp2 *self, const ordo_leaf *leaf)
{
  return sharding_pattern_finds_leaf(self->options.ignored, leaf);
}

static ordo_status assign_units(fsdp2 *self)
{
  const ordo_model *model = self->job->model;
  const sharding_policy *policy = &self->options.units;
  sharding_policy_error error;
  self->group_of_unit = fsdp2_alloc(self->job, model->n_units, sizeof *self->group_of_unit, ORDO_MEM_OTHER);
  if (self->group_of_unit == NULL)
    return ORDO_E_NOMEM;
  self->n_policy = sharding_units_assign(policy, model, self->group_of_unit, &error);
  ordo_status status = sharding_check_policy(self->job, policy, &error);
  if (status != ORDO_OK)
    return status;
  self->first_unit = fsdp2_alloc(self->job, self->n_policy, sizeof *self->first_unit, ORDO_MEM_OTHER);
  self->next_unit = fsdp2_alloc(self->job, model->n_units, sizeof *self->next_unit, ORDO_MEM_OTHER);
  if (self->first_unit == NULL || self->next_unit == NULL)
    return ORDO_E_NOMEM;
  sharding_chain(self->group_of_unit, model->n_units, self->n_policy, self->first_unit, self->next_unit);
  return ORDO_OK;
}

/* A frozen leaf of packed rows is carried in words of fp32: nothing is computed with them on the way. */
static ordo_status check_opaque(const fsdp2 *self, const ordo_leaf *leaf)
{
  const ordo_dtype_ops *ops = leaf->opaque;
  const int64_t rows = leaf->placement->n_chunks > 0 && leaf->placement->chunks->ndim > 0 ? leaf->placement->chunks->extent[0] : 1;
  const char *why = NULL;
  if (leaf->flags & ORDO_PARAM_REQUIRES_GRAD)
    why = "it is trained, and only frozen parameters of such a type are gathered";
  else if (self->options.sharding.param_dtype != ORDO_F32)
    why = "param_dtype would round its bits as if they were numbers";
  else if (ops->side_bytes != 0)
    why = "its side data belong to the whole and cannot be cut";
  else if (rows == 0 || leaf->numel / rows % ops->block_elements != 0 ||
           leaf->numel / rows / ops->block_elements * ops->block_bytes % WORD != 0)
    why = "its rows are no whole number of blocks, or no multiple of 4 bytes";
  return why == NULL ? ORDO_OK
                     : sharding_fail(self->job, ORDO_E_UNSUPPORTED,
                                     sharding_way_out(self->job, leaf, "exclude the parameter with fsdp2:ignored=NAME",
                                                      "freeze the parameter (requires_grad off), or keep it in f32, bf16 or f16"),
                                     "parameter '%s' is stored as '%s' and cannot be sharded: %s", leaf->name, ops->name, why);
}

static ordo_status check_leaf(const fsdp2 *self, const ordo_leaf *leaf)
{
  const ordo_job *job = self->job;
  if (leaf->state != ORDO_LEAF_LIVE)
    return sharding_fail(job, ORDO_E_STALE, "this is a defect of the step that replaced it", "leaf '%s' was replaced by %s", leaf->name,
                         leaf->replaced_by != NULL ? leaf->replaced_by : "another step");
  if (leaf->placement->data[job->axis->index] != ORDO_REPLICATE)
    return sharding_fail(job, ORDO_E_STATE, "shard a model once along one axis",
                         "leaf '%s' is sharded along axis '%s' already: the model was prepared before", leaf->name, job->axis->name);
  if (leaf->opaque != NULL && (leaf->placement->n_chunks == 0 || leaf->placement->chunks->kind == ORDO_CHUNK_RECT))
    return check_opaque(self, leaf);
  if (!sharding_is_float(leaf->dtype) || leaf->opaque != NULL || !sharding_is_float(leaf->grad_dtype))
    return sharding_fail(
        job, ORDO_E_UNSUPPORTED,
        sharding_way_out(self->job, leaf, "keep it in f32, bf16 or f16, or exclude it with fsdp2:ignored=NAME",
                         "keep it in f32, bf16 or f16; or freeze it (requires_grad off) and exclude it with fsdp2:ignored=NAME"),
        "parameter '%s' is %s with gradients of %s; what is sharded must be f32, bf16 or f16", leaf->name,
        leaf->opaque != NULL ? leaf->opaque->name : sharding_dtype_name(leaf->dtype), sharding_dtype_name(leaf->grad_dtype));
  if (leaf->device != 0)
    return sharding_fail(job, ORDO_E_UNSUPPORTED, "keep the leaf on the CPU", "leaf '%s' lives on device %d", leaf->name, leaf->device);
  if (leaf->placement->n_chunks > 1 || (leaf->placement->n_chunks == 1 && leaf->placement->chunks->kind != ORDO_CHUNK_RECT))
    return sharding_fail(job, ORDO_E_UNSUPPORTED, "put the strategy that cuts rectangles first",
                         "leaf '%s' is no single rectangle of a parameter", leaf->name);
  return ORDO_OK;
}

/* Tied parameters are used by several units, all of which must gather the same group. */
static ordo_status check_tie(const fsdp2 *self, const ordo_leaf *leaf)
{
  const ordo_model *model = self->job->model;
  for (uint32_t p = 1; p < leaf->n_params; p++) {
    const ordo_param *one = leaf->params[0], *other = leaf->params[p];
    if (self->group_of_unit[one->unit] != self->group_of_unit[other->unit])
      return sharding_fail(self->job, ORDO_E_INVALID, "let both units match one pattern, or leave both in the root",
                           "'%s' of unit '%s' and '%s' of unit '%s' are tied, but the units are gathered apart", one->name,
                           model->units[one->unit]->name, other->name, model->units[other->unit]->name);
  }
  return ORDO_OK;
}

static int64_t rows_of(const ordo_leaf *leaf)
{
  const ordo_placement *placement = leaf->placement;
  if (placement->n_chunks == 0)
    return 0;
  return placement->chunks->ndim > 0 ? placement->chunks->extent[0] : 1;
}

static int64_t smaller(int64_t a, int64_t b)
{
  return a < b ? a : b;
}

typedef struct types {
  ordo_dtype data, grad;
} types;

/* What a leaf travels as: its types, or words of fp32 for an opaque one. */
static types carried(const ordo_leaf *leaf)
{
  return leaf->opaque != NULL ? (types){ORDO_F32, ORDO_F32} : (types){leaf->dtype, leaf->grad_dtype};
}

/* The pairs of types of leaves that are sharded, in the order in which leaves bring them. */
typedef struct type_list {
  types pairs[3 * 3 + 1]; /* of f32, bf16 and f16, which check_leaf lets pass */
  uint32_t n;
} type_list;

static uint32_t type_of(const ordo_leaf *leaf, type_list *list)
{
  const types own = carried(leaf);
  uint32_t t = 0;
  while (t < list->n && (list->pairs[t].data != own.data || list->pairs[t].grad != own.grad))
    t++;
  list->pairs[t] = own;
  list->n = t < list->n ? list->n : t + 1;
  return t;
}

static ordo_status cut(fsdp2 *self, fsdp2_shard *shard, const ordo_leaf *leaf, type_list *list)
{
  const ordo_axis *axis = self->job->axis;
  shard->old_leaf = leaf;
  shard->param = leaf->params[0];
  shard->ignored = is_ignored(self, leaf);
  shard->trainable = (leaf->flags & ORDO_PARAM_REQUIRES_GRAD) != 0 && !self->job->eval_only && self->job->model->trained;
  for (uint32_t p = 0; p < leaf->n_params; p++)
    self->shard_of_param[leaf->params[p]->index] = (uint32_t)(shard - self->shards);
  if (shard->ignored)
    return ORDO_OK;
  ordo_status status = check_leaf(self, leaf);
  if (status == ORDO_OK)
    status = check_tie(self, leaf);
  if (status != ORDO_OK)
    return status;
  shard->group = self->group_of_unit[shard->param->unit] + self->n_policy * type_of(leaf, list);
  shard->rows = rows_of(leaf);
  shard->row = shard->rows > 0 ? leaf->numel / shard->rows : 0;
  shard->width = leaf->opaque != NULL ? shard->row / leaf->opaque->block_elements * leaf->opaque->block_bytes / WORD : shard->row;
  shard->chunk = (shard->rows + axis->size - 1) / axis->size;
  shard->begin = smaller(shard->chunk * axis->coordinate, shard->rows);
  shard->end = smaller(shard->begin + shard->chunk, shard->rows);
  return ORDO_OK;
}

/* "model.layers.0", and "model.layers.0.f32" for the parameters of another type than the model's first. */
static void name_group(fsdp2 *self, uint32_t index)
{
  const ordo_model *model = self->job->model;
  const uint32_t policy = index % self->n_policy;
  fsdp2_group *group = &self->groups[index];
  const uint32_t first = self->first_unit[policy];
  const char *name = policy > 0 && first != UINT32_MAX ? model->units[first]->name : "root";
  snprintf(group->name, sizeof group->name, "%.95s%s%s", name, index >= self->n_policy ? "." : "",
           index >= self->n_policy ? sharding_dtype_name(group->dtype) : "");
}

/* Pieces in the order of leaves, which is that of the model's definition. */
static void lay_out(fsdp2 *self, uint32_t group, uint32_t first, const uint32_t *next, uint32_t *used)
{
  int64_t shard_at = 0, full_at = 0;
  for (uint32_t i = first; i != UINT32_MAX; i = next[i]) {
    fsdp2_shard *shard = &self->shards[i];
    int64_t count = shard->chunk * shard->width;
    self->groups[group].dtype = carried(shard->old_leaf).data;
    self->groups[group].grad_dtype = carried(shard->old_leaf).grad;
    shard->piece = self->groups[group].n_pieces++;
    shard->shard_offset = shard_at;
    shard->full_offset = full_at;
    shard_at += (count + ALIGN - 1) / ALIGN * ALIGN;
    full_at += (count * self->job->axis->size + ALIGN - 1) / ALIGN * ALIGN;
    self->by_group[(*used)++] = i;
  }
}

static ordo_status cut_all(fsdp2 *self)
{
  const ordo_model *model = self->job->model;
  type_list list = {.n = 0};
  ordo_status status = ORDO_OK;
  self->n_shards = model->n_leaves;
  for (uint32_t i = 0; status == ORDO_OK && i < model->n_leaves; i++)
    status = cut(self, &self->shards[i], model->leaves[i], &list);
  self->n_groups = self->n_policy * (list.n > 0 ? list.n : 1);
  return status;
}

static ordo_status lay_out_all(fsdp2 *self, uint32_t *used)
{
  const ordo_job *job = self->job;
  uint32_t *group = fsdp2_alloc(job, self->n_shards, sizeof *group, ORDO_MEM_OTHER);
  uint32_t *first = fsdp2_alloc(job, self->n_groups, sizeof *first, ORDO_MEM_OTHER);
  uint32_t *next = fsdp2_alloc(job, self->n_shards, sizeof *next, ORDO_MEM_OTHER);
  self->groups = fsdp2_alloc(job, self->n_groups, sizeof *self->groups, ORDO_MEM_OTHER);
  const ordo_status status = group && first && next && self->groups ? ORDO_OK : ORDO_E_NOMEM;
  for (uint32_t i = 0; status == ORDO_OK && i < self->n_shards; i++)
    group[i] = self->shards[i].ignored ? UINT32_MAX : self->shards[i].group;
  if (status == ORDO_OK)
    sharding_chain(group, self->n_shards, self->n_groups, first, next);
  for (uint32_t g = 0; status == ORDO_OK && g < self->n_groups; g++) {
    lay_out(self, g, first[g], next, used);
    name_group(self, g);
  }
  job->free(job->ctx, group);
  job->free(job->ctx, first);
  job->free(job->ctx, next);
  return status;
}

ordo_status fsdp2_layout_make(fsdp2 *self)
{
  const ordo_job *job = self->job;
  const ordo_model *model = job->model;
  uint32_t used = 0;
  ordo_status status = sharding_check_ignored(self->job, self->options.ignored);
  if (status == ORDO_OK)
    status = assign_units(self);
  if (status != ORDO_OK)
    return status;
  self->shards = fsdp2_alloc(job, model->n_leaves, sizeof *self->shards, ORDO_MEM_OTHER);
  self->shard_of_param = fsdp2_alloc(job, model->n_params, sizeof *self->shard_of_param, ORDO_MEM_OTHER);
  self->by_group = fsdp2_alloc(job, model->n_leaves, sizeof *self->by_group, ORDO_MEM_OTHER);
  self->votes = fsdp2_alloc(job, model->n_leaves, sizeof *self->votes, ORDO_MEM_OTHER);
  if (self->shards == NULL || self->shard_of_param == NULL || self->by_group == NULL || self->votes == NULL)
    return ORDO_E_NOMEM;
  status = cut_all(self);
  if (status == ORDO_OK)
    status = lay_out_all(self, &used);
  if (status == ORDO_OK && used == 0)
    status = sharding_fail(job, ORDO_E_INVALID, "leave fsdp2 out for this model, or ignore less",
                           "every parameter of model '%s' is excluded by 'ignored'; there is nothing to shard", model->name);
  return status;
}

void fsdp2_layout_clear(fsdp2 *self)
{
  const ordo_job *job = self->job;
  for (uint32_t i = 0; self->shards != NULL && i < self->n_shards; i++) {
    job->free(job->ctx, self->shards[i].storage[0]);
    job->free(job->ctx, self->shards[i].storage[1]);
  }
  job->free(job->ctx, self->shards);
  job->free(job->ctx, self->shard_of_param);
  job->free(job->ctx, self->by_group);
  job->free(job->ctx, self->groups);
  job->free(job->ctx, self->group_of_unit);
  job->free(job->ctx, self->first_unit);
  job->free(job->ctx, self->next_unit);
  job->free(job->ctx, self->votes);
  self->shards = NULL;
  self->shard_of_param = self->by_group = self->group_of_unit = self->first_unit = self->next_unit = NULL;
  self->groups = NULL;
  self->votes = NULL;
  self->n_shards = self->n_groups = self->n_policy = 0;
}
