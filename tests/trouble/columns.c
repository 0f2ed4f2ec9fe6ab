/* columns.c - tensor parallelism by somebody else: rows and columns are cut by the hints of the model, activations are completed at the
 * places of strategy.h, and nothing is used but the SDK. What it trains must be what `tp` trains.
 *
 * It is small because it insists: every cut dimension must divide, heads that are fewer than ranks are refused, and there is no plan file.
 * On one rank it can misbehave at a place, in the forward pass of its n-th visit, to show that the other ranks end too.
 */
#include <ordo/manifest.h>
#include <ordo/plugin.h>
#include <ordo/strategy.h>

#include <stdlib.h>
#include <string.h>

ORDO_MANIFEST("id=columns\n"
              "kind=strategy\n"
              "version=1.0.0\n"
              "summary=cuts matrices over ranks that see the same batch, for tests\n"
              "license=Apache-2.0\n"
              "mesh_axis=model\n"
              "flags=self_sharded,needs_identical_data\n"
              "steps=strategy.partition\n"
              "replaces_leaves=strategy.partition\n"
              "dry_run=yes\n"
              "option=how|enum|nothing|nothing,fail,silent,crash,leave,extra,deaf,torn|what it does wrong\n"
              "option=at|int|2|1..10|at which place (ORDO_ACT_)\n"
              "option=visit|int|3|1..1000|at which visit of that place\n"
              "option=rank|int|1|0..100|on which rank\n");

typedef struct columns {
  const ordo_job *job;
  void **storage; /* of slices that were cut from weights */
  uint32_t n;
  const char *how;
  int64_t at, visit, rank, visits;
} columns;

static ordo_status fail(const ordo_job *job, ordo_status status, const char *text)
{
  return (job->host->fail)(job->host->ctx, status, text, "choose sizes that divide");
}

static int is_told(const columns *self, const char *how)
{
  return strcmp(self->how, how) == 0 && self->job->mesh->rank == self->rank;
}

static ordo_status create(const ordo_job *job, void **instance)
{
  columns *self = job->alloc(job->ctx, sizeof *self, ORDO_MEM_OTHER);
  if (self == NULL)
    return fail(job, ORDO_E_NOMEM, "no memory for an instance");
  self->job = job;
  self->how = job->option(job->ctx, "how");
  (void)job->option_int(job->ctx, "at", &self->at);
  (void)job->option_int(job->ctx, "visit", &self->visit);
  (void)job->option_int(job->ctx, "rank", &self->rank);
  *instance = self;
  return ORDO_OK;
}

static void release(columns *self)
{
  for (uint32_t i = 0; i < self->n; i++)
    self->job->free(self->job->ctx, self->storage[i]);
  self->job->free(self->job->ctx, self->storage);
  self->storage = NULL;
  self->n = 0;
}

static void destroy(void *instance)
{
  columns *self = instance;
  release(self);
  self->job->free(self->job->ctx, self);
}

static void undo(void *instance, ordo_step step)
{
  if (step == ORDO_STEP_PARTITION)
    release(instance);
}

static void copy(const ordo_chunk *chunk, const float *whole, float *to)
{
  const int64_t stride = chunk->ndim > 1 ? chunk->param->shape[1] : 1, width = chunk->ndim > 1 ? chunk->extent[1] : 1;
  const int64_t first = chunk->ndim > 1 ? chunk->offset[1] : 0;
  for (int64_t r = 0; r < chunk->extent[0]; r++)
    memcpy(to + r * width, whole + (chunk->offset[0] + r) * stride + first, (size_t)width * sizeof *to);
}

static ordo_status cut(columns *self, uint32_t index, ordo_leaf_spec *spec, ordo_chunk *chunk)
{
  const ordo_job *job = self->job;
  const ordo_leaf *leaf = job->model->leaves[index];
  const ordo_param *param = leaf->params[0];
  const uint32_t d = param->tp_hint == ORDO_TP_ROW ? 1 : 0;
  const int64_t block = param->tp_block > 1 ? param->tp_block : 1, ranks = job->axis->size;
  if (chunk->extent[d] % (block * ranks) != 0)
    return fail(job, ORDO_E_INVALID, param->name);
  chunk->extent[d] /= ranks;
  chunk->offset[d] = chunk->extent[d] * job->axis->coordinate;
  if (is_told(self, "torn") && param->tp_hint == ORDO_TP_ROW)
    chunk->offset[d] = 0; /* the columns of another rank */
  spec->numel /= ranks;
  spec->placement.data[job->axis->index] = ORDO_SHARD;
  spec->data = spec->grad = NULL;
  if (leaf->data == NULL)
    return ORDO_OK;
  spec->data = self->storage[index] = job->alloc(job->ctx, (size_t)spec->numel * sizeof(float), ORDO_MEM_WEIGHTS);
  if (spec->data == NULL)
    return fail(job, ORDO_E_NOMEM, "no memory for a slice");
  if (ordo_job_has_data(job))
    copy(chunk, leaf->data, spec->data);
  return ORDO_OK;
}

static ordo_status describe(columns *self, uint32_t index, ordo_leaf_spec *spec, ordo_chunk *chunk)
{
  const ordo_leaf *leaf = self->job->model->leaves[index];
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
  return leaf->params[0]->tp_hint == ORDO_TP_REPLICATE ? ORDO_OK : cut(self, index, spec, chunk);
}

static ordo_status partition(void *instance)
{
  columns *self = instance;
  const ordo_job *job = self->job;
  const uint32_t n = job->model->n_leaves;
  ordo_leaf_spec *specs = job->alloc(job->ctx, n * sizeof *specs, ORDO_MEM_OTHER);
  ordo_leaf_link *links = job->alloc(job->ctx, n * sizeof *links, ORDO_MEM_OTHER);
  ordo_chunk *chunks = job->alloc(job->ctx, n * sizeof *chunks, ORDO_MEM_OTHER);
  self->storage = job->alloc(job->ctx, n * sizeof *self->storage, ORDO_MEM_OTHER);
  ordo_status status = specs && links && chunks && self->storage ? ORDO_OK : fail(job, ORDO_E_NOMEM, "no memory for lists");
  self->n = self->storage ? n : 0;
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

static int32_t wants_activation(void *instance, uint32_t point, const ordo_param *param, int32_t backward)
{
  const columns *self = instance;
  if (self->job->axis->size == 1 || (is_told(self, "deaf") && point == (uint32_t)self->at))
    return 0;
  switch (point) {
  case ORDO_ACT_COLUMN_INPUT:
  case ORDO_ACT_HEAD_INPUT:
    return backward;
  case ORDO_ACT_ROW_OUTPUT:
  case ORDO_ACT_EMBED_OUTPUT:
    return !backward;
  case ORDO_ACT_LOSS_MAX:
  case ORDO_ACT_LOSS_SUM:
  case ORDO_ACT_LOGITS:
    return !backward && param->tp_hint == ORDO_TP_VOCAB;
  default:
    return 0;
  }
}

static ordo_status misbehave(columns *self, uint32_t point)
{
  float three[3] = {1.0f, 2.0f, 3.0f};
  if (point != (uint32_t)self->at || self->job->mesh->rank != self->rank || ++self->visits != self->visit)
    return ORDO_OK;
  if (strcmp(self->how, "fail") == 0)
    return fail(self->job, ORDO_E_UNSUPPORTED, "the cause of it all");
  if (strcmp(self->how, "silent") == 0)
    return ORDO_E_UNSUPPORTED;
  if (strcmp(self->how, "crash") == 0)
    abort();
  if (strcmp(self->how, "leave") == 0)
    _Exit(7);
  if (strcmp(self->how, "extra") == 0)
    return ordo_all_reduce(self->job->axis->comm, three, 3, ORDO_F32, ORDO_SUM, 1.0);
  return ORDO_OK;
}

static ordo_status whole_rows(const columns *self, const ordo_activation *a)
{
  const ordo_comm *comm = self->job->axis->comm;
  const int64_t first = a->columns * self->job->axis->coordinate;
  if (ordo_job_has_data(self->job)) {
    memset(a->out, 0, (size_t)(a->out_rows * a->out_columns) * sizeof(float));
    for (int64_t r = 0; r < a->rows; r++)
      memcpy((float *)a->out + r * a->out_columns + first, (const float *)a->data + r * a->columns, (size_t)a->columns * sizeof(float));
  }
  return ordo_all_reduce(comm, a->out, a->out_rows * a->out_columns, a->dtype, ORDO_SUM, 1.0);
}

static ordo_status activation(void *instance, const ordo_activation *a)
{
  columns *self = instance;
  ordo_status status = misbehave(self, a->point);
  if (status != ORDO_OK)
    return status;
  if (a->point == ORDO_ACT_LOGITS)
    return whole_rows(self, a);
  ordo_collective c = ordo_collective_make(ORDO_ALL_REDUCE, a->data, a->out, a->rows * a->columns, a->dtype);
  c.op = a->point == ORDO_ACT_LOSS_MAX ? ORDO_MAX : ORDO_SUM;
  c.flags = self->job->ordered ? ORDO_COMM_ORDERED : 0;
  c.label = "columns";
  return ordo_comm_run(self->job->axis->comm, &c);
}

static const ordo_strategy strategy = {.struct_size = sizeof strategy,
                                       .create = create,
                                       .destroy = destroy,
                                       .partition = partition,
                                       .undo = undo,
                                       .activation = activation,
                                       .wants_activation = wants_activation};

static const void *get_extension(const char *id)
{
  return id != NULL && strcmp(id, ORDO_STRATEGY_EXTENSION) == 0 ? &strategy : NULL;
}

ORDO_PLUGIN_ENTRY("columns", "1.0.0", NULL, NULL, get_extension);
