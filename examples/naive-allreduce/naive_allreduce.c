/* naive_allreduce.c - a complete strategy plugin in one file: averages gradients after backward, one all-reduce per parameter.
 *
 * It is the smallest useful strategy and a starting point for your own. It is built outside Ordo's tree, against the installed
 * headers only. What it leaves out is what makes `ddp` fast: buckets, and communication while backward still runs. */

/* snippet: includes */
#include <ordo/manifest.h>
#include <ordo/plugin.h>
#include <ordo/strategy.h>

#include <string.h>
/* end */

/* snippet: manifest */
ORDO_MANIFEST("id=naive_allreduce\n"
              "kind=strategy\n"
              "version=1.0.0\n"
              "summary=averages gradients after backward, one all-reduce per parameter\n"
              "license=Apache-2.0\n"
              "steps=strategy.wrap\n"
              "reduces=yes\n"
              "mesh_axis=data\n"
              "dry_run=yes\n");
/* end */

/* snippet: instance */
typedef struct naive {
  const ordo_job *job; /* never in a global: a process may run two jobs */
} naive;

static ordo_status create(const ordo_job *job, void **instance)
{
  naive *self = job->alloc(job->ctx, sizeof *self, ORDO_MEM_OTHER);
  if (self == NULL)
    return job->host->fail(job->host->ctx, ORDO_E_NOMEM, "no memory for the instance", "free some memory");
  self->job = job;
  *instance = self;
  return ORDO_OK;
}

static void destroy(void *instance)
{
  naive *self = instance;
  if (self != NULL)
    self->job->free(self->job->ctx, self);
}
/* end */

/* snippet: wrap */
static ordo_status wrap(void *instance)
{
  const naive *self = instance;
  const ordo_model *model = self->job->model;
  for (uint32_t i = 0; i < model->n_leaves; i++)
    if ((model->leaves[i]->flags & ORDO_PARAM_REQUIRES_GRAD) != 0 && model->leaves[i]->grad_dtype != ORDO_F32)
      return self->job->host->fail(self->job->host->ctx, ORDO_E_UNSUPPORTED, "naive_allreduce averages fp32 gradients only",
                                   "use the strategy ddp, or keep gradients in fp32");
  return ORDO_OK;
}
/* end */

/* snippet: reduce */
static ordo_status reduce(void *instance, const ordo_step_info *info)
{
  const naive *self = instance;
  const ordo_job *job = self->job;
  for (uint32_t i = 0; i < job->model->n_leaves; i++) {
    ordo_leaf *leaf = job->model->leaves[i];
    if ((leaf->flags & ORDO_PARAM_REQUIRES_GRAD) == 0)
      continue;
    ordo_status status = ORDO_OK;
    if (leaf->grad_state == ORDO_GRAD_NONE && leaf->numel > 0) { /* contents undefined: this rank's summand is zero */
      if (ordo_job_has_data(job))                                /* tensors of an estimate have no memory */
        memset(leaf->grad, 0, (size_t)leaf->numel * sizeof(float));
      status = job->mark_grad(job->ctx, leaf, ORDO_GRAD_HELD);
    }
    ordo_collective c = ordo_collective_make(ORDO_ALL_REDUCE, leaf->grad, leaf->grad, leaf->numel, ORDO_F32);
    c.factor = 1.0 / info->divide_factor; /* the host knows by what to divide; it is not always the number of ranks */
    c.flags = job->ordered ? ORDO_COMM_ORDERED : 0;
    if (status == ORDO_OK && leaf->numel > 0)
      status = ordo_comm_run(job->axis->comm, &c);
    if (status == ORDO_OK)
      status = job->mark_reduced(job->ctx, leaf, info->divide_factor);
    if (status != ORDO_OK)
      return status; /* the failing function has recorded why */
  }
  return ORDO_OK;
}
/* end */

/* snippet: entry */
static const ordo_strategy strategy = {
    .struct_size = sizeof strategy, .create = create, .destroy = destroy, .wrap = wrap, .reduce = reduce};

static const void *get_extension(const char *id)
{
  return id != NULL && strcmp(id, ORDO_STRATEGY_EXTENSION) == 0 ? &strategy : NULL;
}

ORDO_PLUGIN_ENTRY("naive_allreduce", "1.0.0", NULL, NULL, get_extension);
/* end */
