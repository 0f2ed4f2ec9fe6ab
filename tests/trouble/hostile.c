/* hostile.c - a strategy that does what it is told in one rank: fails in a step, crashes, leaves, starts collectives that nobody else
 * starts. Otherwise it averages gradients, one all-reduce per leaf. */
#include <ordo/manifest.h>
#include <ordo/plugin.h>
#include <ordo/strategy.h>

#include <stdlib.h>
#include <string.h>

ORDO_MANIFEST("id=hostile\n"
              "kind=strategy\n"
              "version=1.0.0\n"
              "summary=misbehaves on one rank\n"
              "license=Apache-2.0\n"
              "steps=strategy.wrap\n"
              "reduces=yes\n"
              "events=step.post_step\n"
              "mesh_axis=data\n"
              "option=how|enum|nothing|nothing,fail,silent,crash,leave,extra,metric|what it does\n"
              "option=at|enum|reduce|create,wrap,reduce,post_step|where, in step 2\n"
              "option=rank|int|1|0..100|on which rank\n");

typedef struct hostile {
  const ordo_job *job;
  const char *how, *at;
  int64_t rank;
} hostile;

static ordo_status misbehave(const hostile *self, const char *at)
{
  const ordo_job *job = self->job;
  float three[3] = {1.0f, 2.0f, 3.0f};
  if (strcmp(at, self->at) != 0 || job->mesh->rank != self->rank)
    return ORDO_OK;
  if (strcmp(self->how, "fail") == 0)
    return job->host->fail(job->host->ctx, ORDO_E_UNSUPPORTED, "the cause of it all", "look no further");
  if (strcmp(self->how, "silent") == 0)
    return ORDO_E_UNSUPPORTED;
  if (strcmp(self->how, "crash") == 0)
    abort();
  if (strcmp(self->how, "leave") == 0)
    _Exit(7);
  if (strcmp(self->how, "extra") == 0)
    return ordo_all_reduce(job->axis->comm, three, 3, ORDO_F32, ORDO_SUM, 1.0);
  if (strcmp(self->how, "metric") == 0)
    job->metric(job->ctx, "a \"name\"\n", 1.5);
  return ORDO_OK;
}

static ordo_status create(const ordo_job *job, void **instance)
{
  hostile *self = job->alloc(job->ctx, sizeof *self, ORDO_MEM_OTHER);
  if (self == NULL)
    return job->host->fail(job->host->ctx, ORDO_E_NOMEM, "no memory for the instance", NULL);
  *self = (hostile){job, job->option(job->ctx, "how"), job->option(job->ctx, "at"), 0};
  ordo_status status = job->option_int(job->ctx, "rank", &self->rank);
  if (status == ORDO_OK)
    status = misbehave(self, "create");
  if (status != ORDO_OK) {
    job->free(job->ctx, self);
    return status;
  }
  *instance = self;
  return ORDO_OK;
}

static void destroy(void *instance)
{
  const hostile *self = instance;
  self->job->free(self->job->ctx, instance);
}

static ordo_status wrap(void *instance)
{
  return misbehave(instance, "wrap");
}

static ordo_status reduce(void *instance, const ordo_step_info *info)
{
  const hostile *self = instance;
  const ordo_job *job = self->job;
  ordo_status status = info->step == 2 ? misbehave(self, "reduce") : ORDO_OK;
  for (uint32_t i = 0; i < job->model->n_leaves && status == ORDO_OK; i++) {
    ordo_leaf *leaf = job->model->leaves[i];
    status = ordo_all_reduce(job->axis->comm, leaf->grad, leaf->numel, ORDO_F32, ORDO_SUM, 1.0 / info->divide_factor);
    if (status == ORDO_OK)
      status = job->mark_reduced(job->ctx, leaf, info->divide_factor);
  }
  return status;
}

static ordo_status post_step(void *instance, const ordo_step_info *info)
{
  return info->step == 2 ? misbehave(instance, "post_step") : ORDO_OK;
}

static const ordo_strategy strategy = {
    .struct_size = sizeof strategy, .create = create, .destroy = destroy, .wrap = wrap, .reduce = reduce, .post_step = post_step};

static const void *get_extension(const char *id)
{
  return id != NULL && strcmp(id, ORDO_STRATEGY_EXTENSION) == 0 ? &strategy : NULL;
}

ORDO_PLUGIN_ENTRY("hostile", "1.0.0", NULL, NULL, get_extension);
