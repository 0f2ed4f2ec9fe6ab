/* tp.c - the strategy `tp`: linear layers are split over the ranks of a model axis, which all see the same batch.
 *
 * This file is the manifest, the tables and the life cycle. Columns of q, k, v, gate and up are split and rows of o and down, so that a
 * pair needs one sum forward and one backward; embedding and head are split over the vocabulary, and the loss is computed without ever
 * gathering logits. Everything goes through the public hints and places: the model does not know that it is split by this plugin.
 *
 * It wraps nothing and reduces nothing after backward (flag self_sharded): a data-parallel strategy on another axis sees ordinary leaves.
 */
#include "tp.h"

#include "../sharding/sharding.h"

#include <ordo/manifest.h>
#include <ordo/plugin.h>

#include <string.h>

#define TP_VERSION "0.1.0"

ORDO_MANIFEST("id=tp\n"
              "kind=strategy\n"
              "version=" TP_VERSION "\n"
              "summary=linear layers, embedding and head split over ranks that see the same batch\n"
              "license=Apache-2.0\n"
              "flags=self_sharded,needs_identical_data\n"
              "steps=strategy.partition\n"
              "replaces_leaves=strategy.partition\n"
              "provides=sliced_parameters\n"
              "mesh_axis=model\n"
              "alias=tp_sequence:sequence_parallel=true\n"
              "option=sequence_parallel|bool|false||norms and residuals are computed on a part of the tokens by each rank\n"
              "option=plan|string|||file of lines `PATTERN = column, row, vocab or replicate` that override the model's hints\n"
              "dry_run=yes\n");

static void *allocate(const ordo_job *job, uint64_t count, size_t size)
{
  void *memory = count <= SIZE_MAX / size ? job->alloc(job->ctx, count > 0 ? (size_t)count * size : 1, ORDO_MEM_OTHER) : NULL;
  if (memory == NULL)
    sharding_fail(job, ORDO_E_NOMEM, "free memory", "tp could not get memory for its lists");
  return memory;
}

static void free_lists(tp *self)
{
  self->job->free(self->job->ctx, self->splits);
  self->job->free(self->job->ctx, self->kinds);
  self->splits = NULL;
  self->kinds = NULL;
}

/* For the parameters that the model has now: steps before strategy.partition may add some (model.inject). */
static ordo_status lay_out(tp *self)
{
  const uint32_t n = self->job->model->n_params;
  free_lists(self);
  self->splits = allocate(self->job, n, sizeof *self->splits);
  self->kinds = allocate(self->job, n, sizeof *self->kinds);
  return self->splits != NULL && self->kinds != NULL ? tp_layout(self) : ORDO_E_NOMEM;
}

static void destroy(void *instance)
{
  tp *self = instance;
  if (self == NULL)
    return;
  tp_release(self);
  free_lists(self);
  self->job->free(self->job->ctx, self);
}

static ordo_status create(const ordo_job *job, void **instance)
{
  int64_t sequence = 0;
  if (job->axis == NULL)
    return sharding_fail(job, ORDO_E_INVALID, "this is a defect of the host: the manifest says mesh_axis=model",
                         "tp was given no mesh axis");
  tp *self = allocate(job, 1, sizeof *self);
  if (self == NULL)
    return ORDO_E_NOMEM;
  self->job = job;
  self->rank = job->axis->coordinate;
  self->size = job->axis->size;
  (void)job->option_int(job->ctx, "sequence_parallel", &sequence);
  self->sequence = sequence != 0 && self->size > 1;
  *instance = self;
  return ORDO_OK;
}

/* What can be refused before anything is made is refused here; the layout that counts is that of partition. */
static ordo_status validate(void *instance)
{
  return lay_out(instance);
}

static ordo_status partition(void *instance)
{
  ordo_status status = lay_out(instance);
  return status == ORDO_OK ? tp_partition(instance) : status;
}

static void undo(void *instance, ordo_step step)
{
  if (step == ORDO_STEP_PARTITION)
    tp_release(instance);
}

static ordo_status activation(void *instance, const ordo_activation *a)
{
  return tp_activation(instance, a);
}

static int32_t wants_activation(void *instance, uint32_t point, const ordo_param *param, int32_t backward)
{
  return tp_wants(instance, point, param, backward);
}

static void residual(void *instance, int32_t *parts, int32_t *index)
{
  const tp *self = instance;
  *parts = self->sequence ? self->size : 1;
  *index = self->sequence ? self->rank : 0;
}

static const ordo_strategy strategy = {
    .struct_size = sizeof strategy,
    .create = create,
    .validate = validate,
    .destroy = destroy,
    .partition = partition,
    .undo = undo,
    .activation = activation,
    .wants_activation = wants_activation,
    .residual = residual,
};

static const void *get_extension(const char *id)
{
  return id != NULL && strcmp(id, ORDO_STRATEGY_EXTENSION) == 0 ? &strategy : NULL;
}

ORDO_PLUGIN_ENTRY("tp", TP_VERSION, NULL, NULL, get_extension);
