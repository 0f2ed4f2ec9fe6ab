/* slice.c - a partition and nothing else: every rank of a model axis keeps a rectangle of each parameter that a hint says can be split.
 *
 * It stands for tensor parallelism in tests of composition. What the slices compute is the test's business, so there are no activations;
 * the cut is uneven on purpose (ceil(n / ranks), the last ranks less or nothing), since other strategies must not care. Built with the SDK
 * alone.
 */
#include <ordo/manifest.h>
#include <ordo/plugin.h>
#include <ordo/strategy.h>
#include <string.h>

ORDO_MANIFEST("id=slice\nkind=strategy\nversion=1.0.0\nsummary=a rectangle of each parameter, for tests\nlicense=Apache-2.0\n"
              "mesh_axis=model\nflags=self_sharded,needs_identical_data\nsteps=strategy.partition\nreplaces_leaves=strategy.partition\n"
              "option=fault|enum|none|none,overlaps,forgets,drops|describes slices that overlap, forgets to say that they are slices, or "
              "drops element 0 of vectors\n");

typedef struct slice {
  const ordo_job *job;
  void **storage; /* of leaves that came with weights */
  uint32_t n;
} slice;

static ordo_status fail(const ordo_job *job, const char *text)
{
  return (job->host->fail)(job->host->ctx, ORDO_E_NOMEM, text, "free memory");
}

static ordo_status create(const ordo_job *job, void **instance)
{
  slice *self = job->alloc(job->ctx, sizeof *self, ORDO_MEM_OTHER);
  if (self == NULL)
    return fail(job, "no memory for an instance");
  self->job = job;
  *instance = self;
  return ORDO_OK;
}

static void release(slice *self)
{
  for (uint32_t i = 0; i < self->n; i++)
    self->job->free(self->job->ctx, self->storage[i]);
  self->job->free(self->job->ctx, self->storage);
  self->storage = NULL;
  self->n = 0;
}

static void destroy(void *instance)
{
  slice *self = instance;
  if (self == NULL)
    return;
  release(self);
  self->job->free(self->job->ctx, self);
}

static void undo(void *instance, ordo_step step)
{
  if (step == ORDO_STEP_PARTITION)
    release(instance);
}

static int has_fault(const slice *self, const char *fault)
{
  const char *text = self->job->option(self->job->ctx, "fault");
  return text != NULL && strcmp(text, fault) == 0;
}

/* This rank's rectangle of `whole`. 1 if it is not all of it. */
static int cut(const slice *self, const ordo_param *param, ordo_chunk *chunk)
{
  const ordo_axis *axis = self->job->axis;
  const uint32_t d = param->tp_hint == ORDO_TP_ROW ? 1 : 0;
  if (param->tp_hint == ORDO_TP_REPLICATE || d >= param->ndim)
    return 0;
  int64_t each = (chunk->extent[d] + axis->size - 1) / axis->size, first = each * axis->coordinate;
  first = first < chunk->extent[d] ? first : chunk->extent[d];
  int64_t rest = chunk->extent[d] - first;
  if (first > 0 && has_fault(self, "overlaps"))
    first--; /* held by two ranks; the last element by nobody */
  chunk->offset[d] += first;
  chunk->extent[d] = rest < each ? rest : each;
  if (first == 0 && param->ndim == 1 && has_fault(self, "drops")) {
    chunk->offset[0]++;
    chunk->extent[0]--;
  }
  return 1;
}

static void copy(const ordo_chunk *chunk, const float *whole, float *to)
{
  const int64_t columns = chunk->ndim > 1 ? chunk->param->shape[1] : 1, width = chunk->ndim > 1 ? chunk->extent[1] : 1;
  const int64_t first = chunk->ndim > 1 ? chunk->offset[1] : 0;
  for (int64_t r = 0; r < chunk->extent[0]; r++)
    memcpy(to + r * width, whole + (chunk->offset[0] + r) * columns + first, (size_t)width * sizeof *to);
}

static ordo_status describe(slice *self, uint32_t index, ordo_leaf_spec *spec, ordo_chunk *chunk)
{
  const ordo_job *job = self->job;
  const ordo_leaf *leaf = job->model->leaves[index];
  *spec = (ordo_leaf_spec){.struct_size = sizeof *spec, .name = leaf->name, .dtype = leaf->dtype, .grad_dtype = leaf->grad_dtype};
  spec->numel = leaf->numel;
  spec->data = leaf->data;
  spec->grad = leaf->grad;
  spec->params = leaf->params;
  spec->n_params = leaf->n_params;
  spec->placement = *leaf->placement;
  spec->flags = leaf->flags;
  *chunk = *leaf->placement->chunks;
  spec->placement.chunks = chunk;
  if (!cut(self, leaf->params[0], chunk))
    return ORDO_OK;
  spec->numel = chunk->extent[0] * (chunk->ndim > 1 ? chunk->extent[1] : 1);
  spec->placement.data[job->axis->index] = has_fault(self, "forgets") ? ORDO_REPLICATE : ORDO_SHARD;
  spec->data = spec->grad = NULL;
  if (leaf->data == NULL || spec->numel == 0)
    return ORDO_OK;
  spec->data = self->storage[index] = job->alloc(job->ctx, (size_t)spec->numel * sizeof(float), ORDO_MEM_WEIGHTS);
  if (spec->data == NULL)
    return fail(job, "no memory for a slice");
  copy(chunk, leaf->data, spec->data);
  return ORDO_OK;
}

static ordo_status partition(void *instance)
{
  slice *self = instance;
  const ordo_job *job = self->job;
  const uint32_t n = job->model->n_leaves;
  ordo_leaf_spec *specs = job->alloc(job->ctx, n * sizeof *specs, ORDO_MEM_OTHER);
  ordo_leaf_link *links = job->alloc(job->ctx, n * sizeof *links, ORDO_MEM_OTHER);
  ordo_chunk *chunks = job->alloc(job->ctx, n * sizeof *chunks, ORDO_MEM_OTHER);
  self->storage = job->alloc(job->ctx, n * sizeof *self->storage, ORDO_MEM_OTHER);
  self->n = n;
  ordo_status status = specs && links && chunks && self->storage ? ORDO_OK : fail(job, "no memory for lists");
  for (uint32_t i = 0; status == ORDO_OK && i < n; i++) {
    status = describe(self, i, &specs[i], &chunks[i]);
    links[i] = (ordo_leaf_link){i, i};
  }
  if (status == ORDO_OK)
    status = job->replace_leaves(job->ctx, specs, n, links, n);
  job->free(job->ctx, specs);
  job->free(job->ctx, links);
  job->free(job->ctx, chunks);
  if (status != ORDO_OK)
    release(self);
  return status;
}

static const ordo_strategy strategy = {
    .struct_size = sizeof strategy, .create = create, .destroy = destroy, .partition = partition, .undo = undo};

static const void *get_extension(const char *id)
{
  return id != NULL && strcmp(id, ORDO_STRATEGY_EXTENSION) == 0 ? &strategy : NULL;
}

ORDO_PLUGIN_ENTRY("slice", "1.0.0", NULL, NULL, get_extension);
