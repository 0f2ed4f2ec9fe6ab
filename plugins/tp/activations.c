/* activations.c - what passes between ranks while the model computes.
 *
 * Between a column input and a row output every rank works on its own columns. Its output is one summand of the true one, and the gradient
 * of its input one summand of the true gradient: one sum after each pair forward, one before it backward. With sequence parallelism the
 * sums leave each rank its rows (reduce-scatter) and the way back gathers them, so that norms and residuals are not computed in copies.
 *
 * Whether rows are split is seen from the shapes: a pass that keeps nothing for backward (generation) may have them whole.
 */
#include "../sharding/sharding.h"
#include "tp.h"

#include <string.h>

int32_t tp_wants(const tp *self, uint32_t point, const ordo_param *param, int32_t backward)
{
  const tp_split *split = &self->splits[param->index];
  int is_split = split->kind != ORDO_TP_REPLICATE;
  if (self->size == 1)
    return 0;
  switch (point) {
  case ORDO_ACT_COLUMN_INPUT:
  case ORDO_ACT_HEAD_INPUT:
    return self->sequence || (backward && is_split);
  case ORDO_ACT_ROW_OUTPUT:
  case ORDO_ACT_EMBED_OUTPUT:
    return self->sequence || (!backward && is_split);
  case ORDO_ACT_LOSS_MAX:
  case ORDO_ACT_LOSS_SUM:
  case ORDO_ACT_LOGITS:
    return !backward && split->kind == ORDO_TP_VOCAB;
  case ORDO_ACT_WEIGHT_GRAD:
    return backward && split->comm != NULL;
  default:
    return 0;
  }
}

static ordo_status run(const tp *self, const ordo_comm *comm, uint32_t kind, uint32_t op, const void *send, void *recv, int64_t count,
                       ordo_dtype dtype, const char *label)
{
  ordo_collective c = ordo_collective_make(kind, send, recv, count, dtype);
  c.op = op;
  c.flags = self->job->ordered ? ORDO_COMM_ORDERED : 0;
  c.label = label;
  return ordo_comm_run(comm, &c);
}

static void move(const tp *self, const ordo_activation *a, const char *from)
{
  size_t bytes = (size_t)(a->out_rows * a->out_columns) * ordo_dtype_size(a->dtype);
  if (a->out != (const void *)from && ordo_job_has_data(self->job))
    memmove(a->out, from, bytes);
}

/* This rank's rows -> all rows. */
static ordo_status gather(const tp *self, const ordo_activation *a, const char *label)
{
  if (a->rows != a->out_rows)
    return run(self, self->job->axis->comm, ORDO_ALL_GATHER, ORDO_SUM, a->data, a->out, a->rows * a->columns, a->dtype, label);
  move(self, a, a->data);
  return ORDO_OK;
}

/* Every rank's summand, or, of a layer that is not split, the whole -> this rank's rows of the sum, or all. */
static ordo_status reduce(const tp *self, const ordo_activation *a, int is_split, const char *label)
{
  const ordo_comm *comm = self->job->axis->comm;
  int scatters = a->rows != a->out_rows;
  int64_t count = a->out_rows * a->columns;
  if (is_split)
    return run(self, comm, scatters ? ORDO_REDUCE_SCATTER : ORDO_ALL_REDUCE, ORDO_SUM, a->data, a->out, count, a->dtype, label);
  move(self, a, (const char *)a->data + (scatters ? (size_t)(self->rank * count) * ordo_dtype_size(a->dtype) : 0));
  return ORDO_OK;
}

/* Whole rows of logits, for those who read them all: each column has one summand that is not zero. */
static ordo_status whole_rows(const tp *self, const ordo_activation *a)
{
  size_t element = ordo_dtype_size(a->dtype), first = (size_t)self->splits[a->param->index].begin;
  if (ordo_job_has_data(self->job))
    memset(a->out, 0, (size_t)(a->out_rows * a->out_columns) * element);
  for (int64_t r = 0; r < a->rows && ordo_job_has_data(self->job); r++)
    memcpy((char *)a->out + ((size_t)(r * a->out_columns) + first) * element, (const char *)a->data + (size_t)(r * a->columns) * element,
           (size_t)a->columns * element);
  return run(self, self->job->axis->comm, ORDO_ALL_REDUCE, ORDO_SUM, a->out, a->out, a->out_rows * a->out_columns, a->dtype, "tp logits");
}

ordo_status tp_activation(const tp *self, const ordo_activation *a)
{
  const tp_split *split = &self->splits[a->param->index];
  int is_split = split->kind != ORDO_TP_REPLICATE;
  switch (a->point) {
  case ORDO_ACT_COLUMN_INPUT:
    return a->backward ? reduce(self, a, is_split, "tp column input") : gather(self, a, "tp column input");
  case ORDO_ACT_HEAD_INPUT:
    return a->backward ? reduce(self, a, is_split, "tp head input") : gather(self, a, "tp head input");
  case ORDO_ACT_ROW_OUTPUT:
    return a->backward ? gather(self, a, "tp row output") : reduce(self, a, is_split, "tp row output");
  case ORDO_ACT_EMBED_OUTPUT:
    return a->backward ? gather(self, a, "tp embedding") : reduce(self, a, is_split, "tp embedding");
  case ORDO_ACT_LOSS_MAX:
    return run(self, self->job->axis->comm, ORDO_ALL_REDUCE, ORDO_MAX, a->data, a->out, a->rows * a->columns, a->dtype, "tp loss maximum");
  case ORDO_ACT_LOSS_SUM:
    return run(self, self->job->axis->comm, ORDO_ALL_REDUCE, ORDO_SUM, a->data, a->out, a->rows * a->columns, a->dtype, "tp loss sum");
  case ORDO_ACT_LOGITS:
    return whole_rows(self, a);
  case ORDO_ACT_WEIGHT_GRAD:
    return run(self, split->comm, ORDO_ALL_REDUCE, ORDO_SUM, a->data, a->out, a->rows * a->columns, a->dtype, "tp shared gradient");
  default:
    return sharding_fail(self->job, ORDO_E_UNSUPPORTED, "offer only the places that wants_activation answers with 1",
                         "an activation of place %u was offered, which tp does not know", a->point);
  }
}
