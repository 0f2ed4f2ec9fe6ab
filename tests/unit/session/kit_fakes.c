/* kit_fakes.c - the plugins of kit.h: one set of tables for all, which looks up by id how to misbehave, and the opener that serves them in
 * place of files. Not the embedder's side: that is kit.c. */
#include "kit_fakes.h"
#include "discovery/loader.h"

#include <string.h>

static kit *current; /* tables have no user pointer before create */

typedef struct fake_instance {
  kit *k;
  fake *knobs;
  const ordo_job *job;
  float *shard, *shard_grad, *full, *full_grad, *master, *master_grad;
} fake_instance;

static fake *find_fake(const char *id)
{
  for (int i = 0; i < KIT_MAX_FAKES; i++)
    if (!g_strcmp0(current->fakes[i].id, id))
      return &current->fakes[i];
  return NULL;
}

static const char *id_of(const ordo_job *job)
{
  return ((const ordo_instance *)job->ctx)->plugin->id;
}

static ordo_status hear(const fake_instance *self, const char *member)
{
  g_string_append_printf(self->k->log, "%s.%s ", self->knobs->id, member);
  if (g_strcmp0(self->knobs->fail_in, member))
    return ORDO_OK;
  if (self->knobs->lose_rank)
    return ORDO_E_PEER_LOST;
  if (self->knobs->silent)
    return ORDO_E_UNSUPPORTED;
  return (self->job->host->fail)(self->job->host->ctx, ORDO_E_UNSUPPORTED, "told to fail", "tell it otherwise");
}

static ordo_status fake_probe(const ordo_host *host)
{
  const ordo_plugin_use *plugin = host->ctx;
  if (!g_strcmp0(find_fake(plugin->id)->fail_in, "probe"))
    return (host->fail)(host->ctx, ORDO_E_UNAVAILABLE, "not on this machine", NULL);
  return ORDO_OK;
}

static ordo_status fake_create(const ordo_job *job, void **instance)
{
  fake_instance *self = g_new0(fake_instance, 1);
  ordo_status status;
  self->k = current;
  self->knobs = find_fake(id_of(job));
  self->job = job;
  status = hear(self, "create");
  if (status != ORDO_OK || self->knobs->no_instance)
    g_clear_pointer(&self, g_free);
  *instance = self;
  return status;
}

static void fake_destroy(void *data)
{
  fake_instance *self = data;
  hear(self, "destroy");
  self->job->free(self->job->ctx, self->shard);
  self->job->free(self->job->ctx, self->shard_grad);
  self->job->free(self->job->ctx, self->full);
  self->job->free(self->job->ctx, self->full_grad);
  self->job->free(self->job->ctx, self->master);
  self->job->free(self->job->ctx, self->master_grad);
  g_free(self);
}

static int is_root(const ordo_param *param)
{
  return ((const ordo_param_record *)param)->root == (const ordo_param_record *)param;
}

static int64_t total_numel(const ordo_model *model)
{
  int64_t total = 0;
  for (uint32_t i = 0; i < model->n_params; i++)
    total += is_root(model->params[i]) ? model->params[i]->numel : 0;
  return total;
}

/* One flat leaf: the concatenated params, padded and cut evenly over the axis. */
static ordo_status shard_flat(fake_instance *self)
{
  const ordo_job *job = self->job;
  const ordo_model *model = job->model;
  int64_t ranks = job->axis->size, total = total_numel(model), piece = (total + ranks - 1) / ranks;
  int64_t first = piece * job->axis->coordinate, at = 0;
  ordo_chunk chunks[8];
  ordo_leaf_link links[8];
  ordo_leaf_spec specs[2] = {{.struct_size = sizeof specs[0],
                              .name = "flat",
                              .dtype = ORDO_F32,
                              .grad_dtype = ORDO_F32,
                              .numel = piece,
                              .flags = ORDO_PARAM_REQUIRES_GRAD}};
  size_t n_links = 0;
  ordo_status status;
  memset(chunks, 0, sizeof chunks);
  self->shard = job->alloc(job->ctx, (size_t)piece * 4, ORDO_MEM_WEIGHTS);
  self->shard_grad = job->alloc(job->ctx, (size_t)piece * 4, ORDO_MEM_GRADIENTS);
  self->full = job->alloc(job->ctx, (size_t)total * 4, ORDO_MEM_WEIGHTS);
  self->full_grad = job->alloc(job->ctx, (size_t)total * 4, ORDO_MEM_GRADIENTS);
  specs[0].data = self->shard;
  specs[0].grad = self->shard_grad;
  specs[0].params = model->params;
  specs[0].n_params = model->n_params;
  specs[0].placement.struct_size = sizeof specs[0].placement;
  specs[0].placement.chunks = chunks;
  for (uint32_t a = 0; a < job->mesh->n_axes; a++) {
    specs[0].placement.data[a] = job->mesh->axes[a] == job->axis ? ORDO_SHARD : ORDO_REPLICATE;
    specs[0].placement.grad_partial[a] = job->mesh->axes[a]->kind == ORDO_AXIS_DATA;
  }
  for (uint32_t i = 0; i < model->n_params; i++) {
    const ordo_param *param = model->params[i];
    int64_t begin = MAX(first, at), end = MIN(first + piece, at + param->numel);
    if (!is_root(param))
      continue;
    if (begin < end)
      chunks[specs[0].placement.n_chunks++] = (ordo_chunk){.struct_size = sizeof chunks[0],
                                                           .param = param,
                                                           .kind = ORDO_CHUNK_FLAT,
                                                           .leaf_offset = begin - first,
                                                           .begin = begin - at,
                                                           .end = end - at};
    at += param->numel;
  }
  for (uint32_t i = 0; i < model->n_leaves; i++)
    links[n_links++] = (ordo_leaf_link){i, 0};
  if (self->knobs->drop_link)
    n_links--;
  if (self->knobs->tear_tie) {
    specs[1] = specs[0];
    specs[1].name = "torn";
    specs[1].placement.n_chunks = 0;
    specs[1].params = &model->params[model->n_params - 1];
    specs[1].n_params = 1;
    links[n_links++] = (ordo_leaf_link){0, 1};
  }
  status = job->replace_leaves(job->ctx, specs, self->knobs->tear_tie ? 2 : 1, links, n_links);
  if (status == ORDO_OK && self->knobs->twice)
    status = job->replace_leaves(job->ctx, specs, 1, (const ordo_leaf_link[]){{0, 0}}, 1);
  return status;
}

static ordo_status fake_wrap(void *data)
{
  fake_instance *self = data;
  ordo_status status = hear(self, "wrap");
  return status == ORDO_OK && self->knobs->flat ? shard_flat(self) : status;
}

static ordo_status fake_prepare_joint(void *data, ordo_optimizer *optimizer)
{
  fake_instance *self = data;
  ordo_status status = hear(self, optimizer ? "prepare_joint" : "prepare_joint_without_optimizer");
  return status == ORDO_OK && self->knobs->flat ? shard_flat(self) : status;
}

static void fake_undo(void *data, ordo_step step)
{
  g_string_append_printf(((fake_instance *)data)->k->log, "%s.undo(%s) ", ((fake_instance *)data)->knobs->id, ordo_step_name(step));
}

/* Binds every param into the gathered buffer (flat), as a sharding strategy does before its forward. */
static ordo_status gather(fake_instance *self)
{
  const ordo_job *job = self->job;
  const ordo_model *model = job->model;
  int64_t total = total_numel(model), at = 0, ranks = job->axis->size, piece = (total + ranks - 1) / ranks;
  g_autofree float *whole = g_new0(float, (gsize)(piece * ranks));
  ordo_status status = ordo_all_gather(job->axis->comm, self->shard, whole, piece, ORDO_F32);
  memcpy(self->full, whole, (size_t)total * 4);
  for (uint32_t i = 0; i < model->n_params && status == ORDO_OK; i++) {
    if (!is_root(model->params[i]))
      continue;
    status = job->bind(job->ctx, model->params[i], self->full + at, self->full_grad + at);
    at += model->params[i]->numel;
  }
  return status;
}

static ordo_status fake_step_begin(void *data, const ordo_step_info *info)
{
  fake_instance *self = data;
  ordo_status status = hear(self, "step_begin");
  (void)info;
  if (self->knobs->outside)
    return self->job->replace_leaves(self->job->ctx, &(ordo_leaf_spec){.struct_size = sizeof(ordo_leaf_spec)}, 1, NULL, 0);
  return status == ORDO_OK && self->knobs->flat ? gather(self) : status;
}

static ordo_status fake_micro_begin(void *data, const ordo_step_info *info)
{
  (void)info;
  return hear(data, "micro_begin");
}

static ordo_status fake_micro_end(void *data, const ordo_step_info *info)
{
  (void)info;
  return hear(data, "micro_end");
}

static ordo_status unit_event(void *data, const char *event, const ordo_unit *unit)
{
  g_autofree char *member = g_strdup_printf("%s(%s)", event, unit->name);
  return hear(data, member);
}

static ordo_status fake_pre_forward(void *data, const ordo_unit *unit)
{
  return unit_event(data, "pre_forward", unit);
}

static ordo_status fake_post_forward(void *data, const ordo_unit *unit)
{
  return unit_event(data, "post_forward", unit);
}

static ordo_status fake_pre_backward(void *data, const ordo_unit *unit)
{
  return unit_event(data, "pre_backward", unit);
}

static ordo_status fake_post_backward(void *data, const ordo_unit *unit)
{
  return unit_event(data, "post_backward", unit);
}

static ordo_status fake_grad_ready(void *data, const ordo_param *param)
{
  g_autofree char *member = g_strdup_printf("grad_ready(%s)", param->name);
  return hear(data, member);
}

static ordo_status reduce_leaf(fake_instance *self, ordo_leaf *leaf, double divisor)
{
  const ordo_job *job = self->job;
  ordo_status status = ordo_all_reduce(job->axis->comm, leaf->grad, leaf->numel, ORDO_F32, ORDO_SUM, 1.0 / divisor);
  if (status == ORDO_OK)
    status = job->mark_reduced(job->ctx, leaf, divisor);
  if (status == ORDO_OK && self->knobs->reduce_twice)
    status = job->mark_reduced(job->ctx, leaf, divisor);
  return self->knobs->hides ? ORDO_OK : status;
}

static ordo_status reduce_flat(fake_instance *self, double divisor)
{
  const ordo_job *job = self->job;
  int64_t total = total_numel(job->model), ranks = job->axis->size, piece = (total + ranks - 1) / ranks;
  g_autofree float *padded = g_new0(float, (gsize)(piece * ranks));
  ordo_leaf *leaf = job->model->leaves[0];
  ordo_collective c = ordo_collective_make(ORDO_REDUCE_SCATTER, padded, self->shard_grad, piece, ORDO_F32);
  ordo_status status;
  memcpy(padded, self->full_grad, (size_t)total * 4);
  for (int64_t i = total; i < piece * ranks; i++)
    padded[i] = 1e6f; /* padding: must not be counted by anybody */
  c.factor = 1.0 / divisor;
  c.flags = job->ordered ? ORDO_COMM_ORDERED : 0;
  status = ordo_comm_run(job->axis->comm, &c);
  if (status == ORDO_OK)
    status = job->mark_grad(job->ctx, leaf, ORDO_GRAD_HELD);
  return status == ORDO_OK ? job->mark_reduced(job->ctx, leaf, divisor) : status;
}

static ordo_status fake_reduce(void *data, const ordo_step_info *info)
{
  fake_instance *self = data;
  double divisor = self->knobs->only_sum ? 1.0 : info->divide_factor;
  ordo_status status = hear(self, "reduce");
  if (status != ORDO_OK || self->knobs->forget)
    return status;
  if (self->knobs->flat)
    return reduce_flat(self, divisor);
  for (uint32_t i = 0; i < self->job->model->n_leaves && status == ORDO_OK; i++)
    if (self->job->model->leaves[i]->flags & ORDO_PARAM_REQUIRES_GRAD)
      status = reduce_leaf(self, self->job->model->leaves[i], divisor);
  return status;
}

static ordo_status fake_pre_step(void *data, const ordo_step_info *info)
{
  (void)info;
  return hear(data, "pre_step");
}

static ordo_status fake_should_commit(void *data, int32_t *commit)
{
  fake_instance *self = data;
  *commit = !(self->knobs->veto && self->job->mesh->rank == 0);
  return ORDO_OK;
}

static ordo_status fake_post_step(void *data, const ordo_step_info *info)
{
  fake_instance *self = data;
  (void)info;
  if (self->knobs->drifts && self->job->mesh->rank == 1)
    ((float *)self->job->model->leaves[1]->data)[0] += 1.0f;
  return hear(self, "post_step");
}

static ordo_status fake_step_end(void *data, const ordo_step_info *info)
{
  (void)info;
  return hear(data, "step_end");
}

static ordo_status plain(void *data, const char *member)
{
  return hear(data, member);
}

#define PLAIN(NAME)                          \
  static ordo_status fake_##NAME(void *data) \
  {                                          \
    return plain(data, #NAME);               \
  }
PLAIN(validate)
PLAIN(setup_environment)
PLAIN(partition)
PLAIN(after_setup)
PLAIN(eval_begin)
PLAIN(eval_end)

static ordo_status fake_masters_to_model(void *data)
{
  const fake_instance *self = data;
  const ordo_model *model = self->job->model;
  for (uint32_t i = 0; self->knobs->masters && !self->knobs->keeps_masters && i < model->n_leaves; i++) {
    const ordo_leaf *leaf = model->leaves[i];
    memcpy(leaf->data, leaf->master->data, (size_t)leaf->numel * 4);
  }
  return plain(data, "masters_to_model");
}

static ordo_status fake_inject(void *data)
{
  const fake_instance *self = data;
  ordo_status status = hear(self, "inject");
  return status == ORDO_OK && self->knobs->injects ? self->knobs->injects(self->knobs->injects_ctx, self->job) : status;
}

static ordo_status fake_prepare_optimizer(void *data, ordo_optimizer *optimizer)
{
  (void)optimizer;
  return hear(data, "prepare_optimizer");
}

static ordo_status fake_activation(void *data, const ordo_activation *activation)
{
  ((float *)activation->data)[0] *= 2.0f;
  return hear(data, "activation");
}

static int32_t fake_wants_activation(void *data, uint32_t point, const ordo_param *param, int32_t backward)
{
  const fake_instance *self = data;
  (void)point, (void)param;
  return backward || !self->knobs->backward_only;
}

static void fake_residual(void *data, int32_t *parts, int32_t *index)
{
  const fake_instance *self = data;
  if (!self->knobs->parts)
    return;
  *parts = self->knobs->parts;
  *index = self->knobs->part;
}

static const ordo_strategy full_strategy = {.struct_size = sizeof full_strategy,
                                            .probe = fake_probe,
                                            .create = fake_create,
                                            .validate = fake_validate,
                                            .setup_environment = fake_setup_environment,
                                            .destroy = fake_destroy,
                                            .inject = fake_inject,
                                            .partition = fake_partition,
                                            .wrap = fake_wrap,
                                            .prepare_joint = fake_prepare_joint,
                                            .prepare_optimizer = fake_prepare_optimizer,
                                            .undo = fake_undo,
                                            .after_setup = fake_after_setup,
                                            .step_begin = fake_step_begin,
                                            .micro_begin = fake_micro_begin,
                                            .pre_forward = fake_pre_forward,
                                            .post_forward = fake_post_forward,
                                            .pre_backward = fake_pre_backward,
                                            .post_backward = fake_post_backward,
                                            .grad_ready = fake_grad_ready,
                                            .micro_end = fake_micro_end,
                                            .reduce = fake_reduce,
                                            .pre_step = fake_pre_step,
                                            .should_commit = fake_should_commit,
                                            .post_step = fake_post_step,
                                            .step_end = fake_step_end,
                                            .eval_begin = fake_eval_begin,
                                            .eval_end = fake_eval_end,
                                            .activation = fake_activation,
                                            .wants_activation = fake_wants_activation,
                                            .residual = fake_residual};

static ordo_status fake_wrap_optimizer(void *data, ordo_optimizer *optimizer)
{
  fake_instance *self = data;
  const ordo_model *model = self->job->model;
  ordo_status status = hear(self, "wrap_optimizer");
  int64_t at = 0;
  if (status == ORDO_OK && self->knobs->wraps)
    status = self->knobs->wraps(self->job, optimizer);
  if (status != ORDO_OK || !self->knobs->masters)
    return status;
  self->master = self->job->alloc(self->job->ctx, 4096, ORDO_MEM_OPTIMIZER);
  self->master_grad = self->job->alloc(self->job->ctx, 4096, ORDO_MEM_OPTIMIZER);
  for (uint32_t i = 0; i < model->n_leaves && status == ORDO_OK; i++) {
    memcpy(self->master + at, model->leaves[i]->data, (size_t)model->leaves[i]->numel * 4);
    status = self->job->set_master(self->job->ctx, model->leaves[i], self->master + at, self->master_grad + at);
    at += model->leaves[i]->numel;
  }
  if (status == ORDO_OK && self->knobs->twice)
    status = self->job->set_master(self->job->ctx, model->leaves[0], self->master, self->master_grad);
  if (status == ORDO_OK && self->knobs->master_of_master)
    status = self->job->set_master(self->job->ctx, model->leaves[0]->master, self->master, self->master_grad);
  return status;
}

static ordo_status convert_all(const fake_instance *self)
{
  const ordo_job *job = self->job;
  ordo_status status = ORDO_OK;
  for (uint32_t i = 0; i < job->model->n_params && status == ORDO_OK; i++)
    status = job->convert_param(job->ctx, job->model->params[i], self->knobs->converts, self->knobs->converts, self->knobs->convert_flags);
  return status;
}

static ordo_status fake_convert_model(void *data)
{
  const fake_instance *self = data;
  ordo_status status = hear(self, "convert_model");
  return status == ORDO_OK && self->knobs->converts ? convert_all(self) : status;
}

static ordo_dtype fake_op_dtype(void *data, uint32_t op)
{
  const fake *knobs = ((fake_instance *)data)->knobs;
  return op != ORDO_OP_MATMUL ? ORDO_F32 : knobs->fp16 ? ORDO_F16 : knobs->bf16 ? ORDO_BF16 : ORDO_F32;
}

static double fake_loss_scale(void *data, uint32_t loss_id)
{
  const fake_instance *self = data;
  (void)loss_id;
  return self->knobs->scale > 0.0 ? self->knobs->scale : 1.0;
}

static ordo_status fake_unscale(void *data, const ordo_step_info *info, int32_t *overflow)
{
  fake_instance *self = data;
  const ordo_model *model = self->job->model;
  float inverse = (float)(1.0 / fake_loss_scale(data, 0));
  (void)info;
  if (self->knobs->late)
    return convert_all(self);
  *overflow = self->knobs->overflow && self->job->mesh->rank == 0;
  for (uint32_t i = 0; i < model->n_leaves; i++) {
    ordo_leaf *leaf = model->leaves[i];
    float *to = leaf->master ? leaf->master->grad : leaf->grad;
    for (int64_t k = 0; leaf->grad_dtype == ORDO_F32 && leaf->grad_state == ORDO_GRAD_HELD && k < leaf->numel; k++)
      to[k] = ((float *)leaf->grad)[k] * inverse;
  }
  return hear(data, "unscale");
}

static ordo_status fake_update_scale(void *data, int32_t overflow)
{
  return plain(data, overflow ? "update_scale(1)" : "update_scale(0)");
}

static int64_t fake_wire_bytes(void *data, const ordo_leaf *leaf, int64_t n)
{
  (void)data, (void)leaf;
  return n;
}

static const ordo_precision full_precision = {.struct_size = sizeof full_precision,
                                              .probe = fake_probe,
                                              .create = fake_create,
                                              .validate = fake_validate,
                                              .destroy = fake_destroy,
                                              .inject = fake_inject,
                                              .convert_model = fake_convert_model,
                                              .wrap_optimizer = fake_wrap_optimizer,
                                              .undo = fake_undo,
                                              .op_dtype = fake_op_dtype,
                                              .loss_scale = fake_loss_scale,
                                              .unscale = fake_unscale,
                                              .update_scale = fake_update_scale,
                                              .masters_to_model = fake_masters_to_model};

static fake *opened; /* its tables are asked for next */

static const void *get_extension(const char *id)
{
  if (!g_strcmp0(id, ORDO_STRATEGY_EXTENSION))
    return &opened->strategy;
  return !g_strcmp0(id, ORDO_PRECISION_EXTENSION) ? &opened->precision : NULL;
}

static ordo_status fake_init(const ordo_host *host)
{
  const fake *knobs = find_fake(((const ordo_plugin_use *)host->ctx)->id);
  g_string_append(current->log, "init ");
  if (knobs->init_praises)
    (host->fail)(host->ctx, ORDO_OK, "all is well", NULL);
  return knobs->init;
}

static void fake_deinit(void)
{
  g_string_append(current->log, "deinit ");
}

static const ordo_plugin entry = {.magic = ORDO_PLUGIN_MAGIC,
                                  .abi_major = ORDO_ABI_MAJOR,
                                  .struct_size = sizeof entry,
                                  .id = "fake",
                                  .version = "1.0.0",
                                  .init = fake_init,
                                  .deinit = fake_deinit,
                                  .get_extension = get_extension};

#define DROP(TABLE, MEMBER, LINE)  \
  do {                             \
    if (!strstr(manifest, (LINE))) \
      (TABLE).MEMBER = NULL;       \
  } while (0)

/* What a manifest does not declare is missing. */
static void drop_undeclared(fake *f, const char *manifest)
{
  DROP(f->strategy, inject, "model.inject");
  DROP(f->strategy, partition, "strategy.partition");
  DROP(f->strategy, wrap, "strategy.wrap");
  DROP(f->strategy, prepare_joint, "strategy.prepare_joint");
  DROP(f->strategy, prepare_optimizer, "strategy.prepare_optimizer");
  DROP(f->strategy, reduce, "reduces=yes");
  DROP(f->precision, inject, "model.inject");
  DROP(f->precision, convert_model, "precision.convert_model");
  DROP(f->precision, wrap_optimizer, "precision.wrap_optimizer");
  DROP(f->precision, loss_scale, "precision.wrap_optimizer");
  DROP(f->precision, unscale, "precision.wrap_optimizer");
  DROP(f->precision, update_scale, "precision.wrap_optimizer");
  DROP(f->precision, masters_to_model, "precision.wrap_optimizer");
}

static ordo_status open_fake(gpointer user, const ordo_found *found, uint32_t flags, ordo_errors *errors, const ordo_plugin **result)
{
  fake *knobs = find_fake(found->manifest->id);
  (void)user;
  if (!knobs) /* a comm hook in a real file */
    return ordo_loader_open(found, flags, errors, result);
  opened = knobs;
  knobs->strategy = full_strategy;
  knobs->precision = full_precision;
  if (!knobs->whole_table)
    drop_undeclared(knobs, found->manifest->text);
  if (knobs->without & (1u << ORDO_STEP_WRAP))
    knobs->strategy.wrap = NULL;
  if (knobs->no_reduce)
    knobs->strategy.reduce = NULL;
  if (knobs->no_copy)
    knobs->precision.masters_to_model = NULL;
  if (knobs->no_unscale)
    knobs->precision.unscale = NULL;
  if (knobs->half_wire)
    knobs->precision.wire_bytes = fake_wire_bytes;
  if (knobs->table_size)
    knobs->strategy.struct_size = knobs->table_size;
  *result = &entry;
  return ORDO_OK;
}

const ordo_opener kit_fakes_opener = {open_fake, NULL};

void kit_fakes_of(kit *k)
{
  current = k;
}
