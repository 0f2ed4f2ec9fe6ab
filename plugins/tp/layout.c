/* layout.c - which part of each parameter a rank has.
 *
 * Rows of column-parallel matrices and columns of row-parallel ones are cut between blocks that must stay together (heads); where there is
 * no block, and in vocabularies, parts may differ by one row, so nothing needs padding. Blocks that are fewer than ranks are copied to
 * groups of neighbouring ranks (key heads); a product over them would be counted more than once, so only rows can be.
 *
 * It looks at the description of the model and the plan file alone, so all ranks come to the same split and the same refusal. A refusal
 * names the parameter and the sizes that would work: those for which no parameter of the model is in the way.
 */
#include "../sharding/sharding.h"
#include "tp.h"

#include <stdio.h>
#include <string.h>

enum { LARGEST_SIZE = 1024, LIST_SIZE = 200, MOST_COPIES = UINT8_MAX - ORDO_SHARD + 1 /* that a placement can say */ };

static int64_t block_of(const ordo_param *param)
{
  return param->tp_block > 1 ? param->tp_block : 1;
}

/* The split of `extent` elements in blocks over `size` ranks: 0 if there is none. `copies_allowed`: blocks may be fewer than ranks. */
static int cut(int64_t extent, int64_t block, int32_t size, int32_t rank, int copies_allowed, tp_split *split)
{
  int64_t blocks = extent / block, whole, rest;
  int32_t copies = 1;
  if (extent % block != 0)
    return 0;
  if (copies_allowed && block > 1 && blocks < size && size % blocks == 0)
    copies = (int32_t)(size / blocks);
  if (copies > MOST_COPIES)
    return 0;
  size /= copies;
  rank /= copies;
  whole = blocks / size;
  rest = blocks % size;
  if (whole == 0 || (block > 1 && rest != 0))
    return 0;
  split->begin = (rank * whole + (rank < rest ? rank : rest)) * block;
  split->end = split->begin + (whole + (rank < rest)) * block;
  split->copies = copies;
  return 1;
}

static int split_param(const ordo_param *param, uint32_t kind, int32_t size, int32_t rank, tp_split *split)
{
  split->kind = kind;
  split->copies = 1;
  split->dim = kind == ORDO_TP_ROW ? 1 : 0;
  if (kind == ORDO_TP_REPLICATE)
    return 1;
  return cut(param->shape[split->dim], kind == ORDO_TP_VOCAB ? 1 : block_of(param), size, rank, kind == ORDO_TP_COLUMN, split);
}

/* The first parameter that cannot be split over `size` ranks, null if all can. */
static const ordo_param *first_obstacle(const tp *self, int32_t size)
{
  const ordo_model *model = self->job->model;
  int64_t most = 0; /* blocks of the widest column-parallel matrix since the last row-parallel one: they must not be copied */
  for (uint32_t p = 0; p < model->n_params; p++) {
    const ordo_param *param = model->params[p];
    tp_split split = {0};
    if (!split_param(param, self->kinds[p], size, 0, &split))
      return param;
    if (self->kinds[p] == ORDO_TP_COLUMN && split.copies == 1)
      most = 1;
    if (self->kinds[p] == ORDO_TP_ROW && most == 0)
      return param;
    if (self->kinds[p] == ORDO_TP_ROW)
      most = 0;
  }
  return NULL;
}

static void list_sizes(const tp *self, char *text, size_t space)
{
  size_t used = 0;
  int32_t size = 1;
  text[0] = '\0';
  for (; size <= LARGEST_SIZE && used + 14 < space; size++)
    if (first_obstacle(self, size) == NULL)
      used += (size_t)snprintf(text + used, space - used, "%s%d", used > 0 ? ", " : "", size);
  if (size <= LARGEST_SIZE)
    snprintf(text + used, space - used, ", ...");
}

static ordo_status refuse_size(const tp *self, const ordo_param *param)
{
  char sizes[LIST_SIZE], hint[LIST_SIZE + 120], blocks[80] = "";
  uint32_t dim = self->kinds[param->index] == ORDO_TP_ROW ? 1 : 0;
  int64_t block = self->kinds[param->index] == ORDO_TP_VOCAB ? 1 : block_of(param);
  list_sizes(self, sizes, sizeof sizes);
  snprintf(hint, sizeof hint, "sizes that work for this model: %s; or replicate it, with the matrices of its pair, by tp:plan=FILE", sizes);
  if (block > 1)
    snprintf(blocks, sizeof blocks, " in %lld heads of %lld", (long long)(param->shape[dim] / block), (long long)block);
  return sharding_fail(self->job, ORDO_E_INVALID, hint, "'%s' cannot be split over %d ranks: its %lld %s%s do not divide", param->name,
                       self->size, (long long)param->shape[dim],
                       self->kinds[param->index] == ORDO_TP_VOCAB ? "vocabulary rows"
                       : dim                                      ? "columns"
                                                                  : "rows",
                       blocks);
}

/* ---- pairs ---- */

/* Column-parallel matrices up to the next row-parallel one of a unit, and their biases, belong together: all are split, or none. */
static ordo_status check_pair(const tp *self, const ordo_unit *unit, uint32_t first, uint32_t last)
{
  const ordo_param *one = NULL;
  for (uint32_t i = first; i <= last; i++) {
    const ordo_param *param = unit->params[i];
    if (param->tp_hint != ORDO_TP_COLUMN && (param->ndim < 2 || param->tp_hint != ORDO_TP_ROW))
      continue; /* the bias of a row-parallel one is added after the sum, outside of the pair */
    if (one != NULL && (self->kinds[one->index] == ORDO_TP_REPLICATE) != (self->kinds[param->index] == ORDO_TP_REPLICATE))
      return sharding_fail(self->job, ORDO_E_INVALID, "split all matrices between a column input and a row output, or none",
                           "the plan makes '%s' %s and '%s' %s: they compute one sum together", one->name,
                           tp_kind_name(self->kinds[one->index]), param->name, tp_kind_name(self->kinds[param->index]));
    one = one != NULL ? one : param;
    self->splits[param->index].in_pair = 1;
  }
  return ORDO_OK;
}

static ordo_status check_unit(const tp *self, const ordo_unit *unit)
{
  const ordo_param *open = NULL; /* a column-parallel matrix whose partner has not come */
  uint32_t first = 0;
  for (uint32_t i = 0; i < unit->n_params; i++) {
    const ordo_param *param = unit->params[i];
    if (param->ndim < 2)
      continue;
    if (param->tp_hint == ORDO_TP_COLUMN)
      open = param;
    if (param->tp_hint != ORDO_TP_ROW)
      continue;
    if (open == NULL && self->kinds[param->index] == ORDO_TP_ROW)
      return sharding_fail(self->job, ORDO_E_INVALID, "the model's hints must put a column-parallel matrix before it, or replicate it",
                           "row-parallel '%s' has no column-parallel partner before it in unit '%s'", param->name, unit->name);
    ordo_status status = check_pair(self, unit, first, i);
    if (status != ORDO_OK)
      return status;
    open = NULL;
    first = i + 1;
  }
  if (open != NULL && self->kinds[open->index] == ORDO_TP_COLUMN)
    return sharding_fail(self->job, ORDO_E_INVALID, "the model's hints must put a row-parallel matrix after it, or replicate it",
                         "column-parallel '%s' has no row-parallel partner after it in unit '%s'", open->name, unit->name);
  return ORDO_OK;
}

static ordo_status check_ties(const tp *self)
{
  const ordo_model *model = self->job->model;
  for (uint32_t i = 0; i < model->n_leaves; i++) {
    const ordo_leaf *leaf = model->leaves[i];
    for (uint32_t k = 1; k < leaf->n_params; k++) {
      const ordo_param *one = leaf->params[0], *other = leaf->params[k];
      if (self->kinds[one->index] != self->kinds[other->index])
        return sharding_fail(self->job, ORDO_E_INVALID, "tied parameters are one storage: write the same word for both",
                             "'%s' and '%s' are tied, but one is %s and the other %s", one->name, other->name,
                             tp_kind_name(self->kinds[one->index]), tp_kind_name(self->kinds[other->index]));
    }
  }
  return ORDO_OK;
}

/* A bias of a row-parallel layer is added once, after the sum: it is whole on every rank. */
static uint32_t kind_hinted(const ordo_param *param)
{
  return param->tp_hint > ORDO_TP_VOCAB || (param->ndim < 2 && param->tp_hint == ORDO_TP_ROW) ? ORDO_TP_REPLICATE : param->tp_hint;
}

ordo_status tp_layout(tp *self)
{
  const ordo_model *model = self->job->model;
  const char *path = self->job->option(self->job->ctx, "plan");
  const ordo_param *obstacle;
  ordo_status status = ORDO_OK;
  for (uint32_t p = 0; p < model->n_params; p++)
    self->kinds[p] = kind_hinted(model->params[p]);
  if (path != NULL && *path != '\0')
    status = tp_plan_read(self, path, self->kinds);
  if (status == ORDO_OK)
    status = check_ties(self);
  for (uint32_t u = 0; status == ORDO_OK && u < model->n_units; u++)
    status = check_unit(self, model->units[u]);
  if (status != ORDO_OK)
    return status;
  if ((obstacle = first_obstacle(self, self->size)) != NULL)
    return refuse_size(self, obstacle);
  uint32_t n_split = 0;
  for (uint32_t p = 0; p < model->n_params; p++) {
    split_param(model->params[p], self->kinds[p], self->size, self->rank, &self->splits[p]);
    n_split += self->kinds[p] != ORDO_TP_REPLICATE;
  }
  if (n_split == 0 && self->size > 1) /* every rank would do the same work */
    return sharding_fail(self->job, ORDO_E_INVALID, "the program describes parameters with tp_hint; a plan file must leave some of them",
                         "no parameter of model '%s' is split: neither hints nor the plan file say how", model->name);
  return ORDO_OK;
}
