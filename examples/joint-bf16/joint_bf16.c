/* joint_bf16.c - a precision plugin that initialises model and optimizer in one call (flag initializes_jointly).
 *
 * Weights are stored in bf16, the optimizer updates fp32 masters that were copied from the weights before they were cast. For that it
 * needs both at once and bare: whole weights that are loaded, and an optimizer that holds them. A strategy that shards before the
 * optimizer is made (fsdp1), or shards both together (fsdp2), or cuts weights first (tp), cannot have that, and the plan says so with
 * the cycle. See docs/plugin-author.md for where it is legal. apex_amp does the same in two steps and works everywhere: prefer that.
 *
 * Left out: a checkpoint of the masters' own (the host exports masters as the weights), and 16-bit gradients. */
#include <ordo/half_array.h>
#include <ordo/manifest.h>
#include <ordo/plugin.h>
#include <ordo/precision.h>

#include <string.h>

/* snippet: manifest */
ORDO_MANIFEST("id=joint_bf16\n"
              "kind=precision\n"
              "version=1.0.0\n"
              "summary=bf16 weights and fp32 masters, model and optimizer initialised in one call\n"
              "license=Apache-2.0\n"
              "flags=initializes_jointly\n"
              "flags[after_partition=true]=accepts_partitioned\n"
              "steps=precision.initialize\n"
              "option=after_partition|bool|false||true: slices of a partitioned model are as good as whole weights\n");
/* end */

typedef struct master {
  ordo_leaf *leaf;
  float *data, *grad;
} master;

typedef struct joint {
  const ordo_job *job;
  master *masters;
  uint32_t n_masters;
} joint;

static ordo_status fail(const joint *self, ordo_status status, const char *text, const char *hint)
{
  return self->job->host->fail(self->job->host->ctx, status, text, hint);
}

static void free_masters(joint *self)
{
  const ordo_job *job = self->job;
  for (uint32_t i = 0; i < self->n_masters; i++) {
    job->free(job->ctx, self->masters[i].data);
    job->free(job->ctx, self->masters[i].grad);
  }
  job->free(job->ctx, self->masters);
  self->masters = NULL;
  self->n_masters = 0;
}

/* Norms are few numbers with much influence and stay fp32. */
static int is_cast(const ordo_leaf *leaf)
{
  return leaf->n_params > 0 && leaf->dtype == ORDO_F32 && (leaf->params[0]->flags & ORDO_PARAM_NORM) == 0;
}

/* snippet: initialize */
/* The weight as it is before the cast. */
static ordo_status copy_master(joint *self, ordo_leaf *leaf)
{
  const ordo_job *job = self->job;
  const size_t bytes = (size_t)leaf->numel * sizeof(float);
  master *m = &self->masters[self->n_masters++];
  m->leaf = leaf;
  m->data = job->alloc(job->ctx, bytes, ORDO_MEM_OPTIMIZER);
  m->grad = job->alloc(job->ctx, bytes, ORDO_MEM_OPTIMIZER);
  if (m->data == NULL || m->grad == NULL)
    return fail(self, ORDO_E_NOMEM, "no memory for fp32 masters", "use a smaller model, or apex_amp with a strategy that shards");
  memcpy(m->data, leaf->data, bytes);
  return ORDO_OK;
}

/* Both at once: masters from the bare model, the model cast, the masters into the bare optimizer. */
static ordo_status initialize(void *instance, ordo_optimizer *optimizer)
{
  joint *self = instance;
  const ordo_job *job = self->job;
  const ordo_model *model = job->model;
  ordo_status status = ORDO_OK;
  self->masters = job->alloc(job->ctx, model->n_leaves * sizeof *self->masters, ORDO_MEM_OTHER);
  if (self->masters == NULL)
    return fail(self, ORDO_E_NOMEM, "no memory for the list of masters", "free some memory");
  for (uint32_t i = 0; i < model->n_leaves && status == ORDO_OK; i++) {
    ordo_leaf *leaf = model->leaves[i];
    if (!is_cast(leaf))
      continue;
    if (optimizer != NULL && (leaf->flags & ORDO_PARAM_REQUIRES_GRAD) != 0)
      status = copy_master(self, leaf);
    if (status == ORDO_OK)
      status = job->convert_param(job->ctx, leaf->params[0], ORDO_BF16, ORDO_F32, 0);
  }
  for (uint32_t i = 0; i < self->n_masters && status == ORDO_OK; i++)
    status = job->set_master(job->ctx, self->masters[i].leaf, self->masters[i].data, self->masters[i].grad);
  return status;
}
/* end */

/* Before the norm: the gradient becomes the master's. There is no loss scale to take out: bf16 has the range of fp32. */
static ordo_status unscale(void *instance, const ordo_step_info *info, int32_t *overflow)
{
  const joint *self = instance;
  (void)info;
  *overflow = 0;
  for (uint32_t i = 0; i < self->n_masters; i++)
    if (self->masters[i].leaf->grad_state == ORDO_GRAD_HELD)
      memcpy(self->masters[i].grad, self->masters[i].leaf->grad, (size_t)self->masters[i].leaf->numel * sizeof(float));
  return ORDO_OK;
}

static ordo_status masters_to_model(void *instance)
{
  const joint *self = instance;
  for (uint32_t i = 0; i < self->n_masters; i++)
    ordo_half_narrow(ORDO_BF16, self->masters[i].data, self->masters[i].leaf->numel, self->masters[i].leaf->data);
  return ORDO_OK;
}

/* As the model is stored: products, the residual stream and the embedding in bf16, what is delicate in fp32. */
static ordo_dtype op_dtype(void *instance, uint32_t op)
{
  (void)instance;
  return op == ORDO_OP_MATMUL || op == ORDO_OP_ELEMENTWISE || op == ORDO_OP_EMBEDDING ? ORDO_BF16 : ORDO_F32;
}

static void undo(void *instance, ordo_step step)
{
  if (step == ORDO_STEP_INITIALIZE)
    free_masters(instance);
}

static ordo_status create(const ordo_job *job, void **instance)
{
  joint *self = job->alloc(job->ctx, sizeof *self, ORDO_MEM_OTHER);
  if (self == NULL)
    return job->host->fail(job->host->ctx, ORDO_E_NOMEM, "no memory for the instance", "free some memory");
  self->job = job;
  *instance = self;
  return ORDO_OK;
}

static void destroy(void *instance)
{
  joint *self = instance;
  if (self == NULL)
    return;
  free_masters(self);
  self->job->free(self->job->ctx, self);
}

static const ordo_precision precision = {.struct_size = sizeof precision,
                                         .create = create,
                                         .destroy = destroy,
                                         .initialize = initialize,
                                         .undo = undo,
                                         .op_dtype = op_dtype,
                                         .unscale = unscale,
                                         .masters_to_model = masters_to_model};

static const void *get_extension(const char *id)
{
  return id != NULL && strcmp(id, ORDO_PRECISION_EXTENSION) == 0 ? &precision : NULL;
}

ORDO_PLUGIN_ENTRY("joint_bf16", "1.0.0", NULL, NULL, get_extension);
