/* embed.c - see embed.h: the callbacks of the plan and of the model's hooks. The passes are in embed_step.c.
 *
 * The model is described with null storage, so the host allocates weights and gradients where the plan wants them and counts
 * them; activations and optimizer state are taken from the session's allocator for the same account.
 */
#include "embed_private.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *ordo_activity_name(ordo_activity activity)
{
  static const char *const names[ORDO_N_ACTIVITIES] = {"step", "forward", "backward", "step_end", "optimizer"};
  return names[activity];
}

void ordo_embed_activity(const ordo_embed *embed, ordo_activity activity, const char *unit, ordo_edge edge)
{
  if (embed->options.activity)
    embed->options.activity(embed->options.activity_ctx, activity, unit, edge);
}

static void optimizer_steps(void *ctx, int begins)
{
  ordo_embed_activity(ctx, ORDO_ACTIVITY_OPTIMIZER, "", begins ? ORDO_EDGE_BEGIN : ORDO_EDGE_END);
}

/* Without decay all parameters are of one kind, and a strategy may keep a unit of them in one leaf. */
static int decays(const ordo_embed *embed)
{
  return !embed->options.optimizer.is_sgd && embed->options.optimizer.weight_decay > 0.0;
}

static ordo_status model_build(void *ctx, ordo_session *session, uint32_t model, ordo_model_builder *builder)
{
  ordo_embed *embed = ctx;
  (void)model;
  embed->session = session;
  for (uint32_t u = 0; u < llama_n_units(embed->llama); u++) {
    const struct llama_unit *unit = llama_unit_at(embed->llama, u);
    ordo_status status = ordo_model_builder_unit(builder, unit->name, unit->class_name, NULL);
    for (uint32_t p = unit->first_param; status == ORDO_OK && p < unit->first_param + unit->n_params; p++) {
      const struct llama_param *param = llama_param_at(embed->llama, p);
      ordo_param_desc desc = {.struct_size = sizeof desc, .name = param->name, .dtype = ORDO_F32};
      desc.flags = (embed->options.train ? ORDO_PARAM_REQUIRES_GRAD : 0u) | (param->decay && decays(embed) ? ORDO_PARAM_DECAY : 0u) |
                   (param->ndim == 1 ? ORDO_PARAM_NORM : 0u);
      desc.tp_hint = param->tp_hint;
      desc.tp_block = (int32_t)param->tp_block;
      desc.tie_group = param->tie_group;
      desc.ndim = param->ndim;
      memcpy(desc.shape, param->shape, param->ndim * sizeof *param->shape);
      status = ordo_model_builder_param(builder, &desc, NULL);
    }
    if (status != ORDO_OK)
      return status;
  }
  return ORDO_OK;
}

static ordo_status weights_read(void *ctx, const ordo_model *model, const ordo_chunk *chunk, float *dst)
{
  ordo_embed *embed = ctx;
  g_auto(ordo_problems) problems;
  (void)model;
  ordo_problems_init(&problems);
  ordo_status status = ordo_weights_read_chunk(embed->options.weights, chunk, dst, &problems);
  return status == ORDO_OK ? ORDO_OK : ordo_problems_to_context(&problems, embed->options.context, status);
}

static ordo_status bind(void *ctx, const ordo_model *model, const ordo_param *param, void *data, void *grad)
{
  ordo_embed *embed = ctx;
  (void)model;
  ordo_dtype dtype = param->dtype < ORDO_DTYPE_OPAQUE ? param->dtype : ORDO_F32; /* what is packed comes unpacked */
  if (embed->llama)
    llama_bind_as(embed->llama, param->index, dtype, data, param->grad_dtype, grad);
  return ORDO_OK;
}

static ordo_status adapt(void *ctx, const ordo_model *model, const ordo_param *base, const ordo_param *a, const ordo_param *b, double scale)
{
  ordo_embed *embed = ctx;
  (void)model;
  if (llama_adapt(embed->llama, base->index, a->shape[0], scale, a->index, b->index) == LLAMA_OK)
    return ORDO_OK;
  return ordo_fail(embed->options.context, ORDO_E_UNSUPPORTED, "E-TRAIN-MODEL", "the model cannot have this adapter", base->name,
                   llama_error(embed->llama),
                   "choose linear layers of blocks (q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj)");
}

/* The model computes with 16-bit storage. Where it is follows in a bind; there is none while it does not exist. */
static ordo_status convert(void *ctx, const ordo_model *model, const ordo_param *param, ordo_dtype dtype, ordo_dtype grad_dtype)
{
  ordo_embed *embed = ctx;
  (void)model;
  if (embed->llama && param->index >= llama_n_params(embed->llama))
    return ordo_fail(embed->options.context, ORDO_E_UNSUPPORTED, "E-TRAIN-MODEL", "an adapter is stored in fp32", param->name,
                     "adapters are small, and are computed in fp32", "leave them out of the conversion");
  if (embed->llama)
    llama_bind_as(embed->llama, param->index, dtype, NULL, grad_dtype, NULL);
  return ORDO_OK;
}

static ordo_status optimizer_create(void *ctx, const ordo_model *model, ordo_optimizer *optimizer)
{
  ordo_embed *embed = ctx;
  ordo_status status = ordo_leaf_optimizer_create(embed->options.context, embed->session, &embed->options.optimizer, model, optimizer);
  if (status == ORDO_OK)
    ordo_leaf_optimizer_observe(optimizer, optimizer_steps, embed);
  if (status == ORDO_OK && embed->options.dry)
    ordo_leaf_optimizer_set_dry(optimizer);
  return status;
}

static ordo_status scheduler_create(void *ctx, ordo_optimizer *optimizer)
{
  ordo_leaf_optimizer_set_lr(optimizer, schedule_rate(&((ordo_embed *)ctx)->options.schedule, 1));
  return ORDO_OK;
}

static ordo_status scheduler_step(void *ctx, ordo_optimizer *optimizer, int64_t step)
{
  ordo_leaf_optimizer_set_lr(optimizer, schedule_rate(&((ordo_embed *)ctx)->options.schedule, step + 1));
  return ORDO_OK;
}

static int64_t activation_numel(void *ctx, const ordo_model *model, uint32_t unit)
{
  const ordo_embed *embed = ctx;
  (void)model;
  return unit + 1 < llama_n_units(embed->llama) ? embed->part.micro_size * embed->options.seq_len * embed->options.weights->config.hidden
                                                : 0;
}

static void metric(void *ctx, const char *plugin, const char *name, double value)
{
  ordo_embed *embed = ctx;
  if (embed->options.metric)
    embed->options.metric(embed->options.metric_ctx, plugin, name, value);
}

/* What the session does between two edges of a unit's activity. */
static int unit_event(ordo_embed *embed, ordo_activity activity, uint32_t unit, ordo_edge before,
                      ordo_status (*event)(ordo_session *session, uint32_t model, uint32_t unit))
{
  const char *name = embed->model->units[unit]->name;
  ordo_embed_activity(embed, activity, name, before);
  ordo_status status = event(embed->session, 0, unit);
  if (status == ORDO_OK)
    ordo_embed_activity(embed, activity, name, before == ORDO_EDGE_BEGIN ? ORDO_EDGE_OPEN : ORDO_EDGE_END);
  return status;
}

int ordo_embed_pre_forward(void *ctx, uint32_t unit)
{
  return unit_event(ctx, ORDO_ACTIVITY_FORWARD, unit, ORDO_EDGE_BEGIN, ordo_session_pre_forward);
}

int ordo_embed_post_forward(void *ctx, uint32_t unit)
{
  return unit_event(ctx, ORDO_ACTIVITY_FORWARD, unit, ORDO_EDGE_CLOSE, ordo_session_post_forward);
}

int ordo_embed_pre_backward(void *ctx, uint32_t unit)
{
  return unit_event(ctx, ORDO_ACTIVITY_BACKWARD, unit, ORDO_EDGE_BEGIN, ordo_session_pre_backward);
}

int ordo_embed_post_backward(void *ctx, uint32_t unit)
{
  return unit_event(ctx, ORDO_ACTIVITY_BACKWARD, unit, ORDO_EDGE_CLOSE, ordo_session_post_backward);
}

static int hook_grad_adds(void *ctx, uint32_t param)
{
  return ordo_session_grad_adds(((ordo_embed *)ctx)->session, 0, param);
}

static int hook_grad_ready(void *ctx, uint32_t param)
{
  const ordo_embed *embed = ctx;
  if (!(embed->model->params[param]->flags & ORDO_PARAM_REQUIRES_GRAD)) /* frozen by a plugin */
    return ORDO_OK;
  return ordo_session_grad_ready(embed->session, 0, param);
}

static int hook_activation(void *ctx, const struct llama_activation *a)
{
  ordo_embed *embed = ctx;
  ordo_activation activation = {.struct_size = sizeof activation,
                                .point = a->point,
                                .unit = a->unit,
                                .backward = a->backward,
                                .dtype = ORDO_F32,
                                .rows = a->rows,
                                .columns = a->columns,
                                .data = a->data,
                                .out_rows = a->out_rows,
                                .out_columns = a->out_columns,
                                .out = a->out,
                                .param = embed->model->params[a->param]};
  return ordo_session_activation(embed->session, 0, &activation);
}

static ordo_dtype hook_op_dtype(void *ctx, uint32_t op)
{
  return ordo_session_op_dtype(((ordo_embed *)ctx)->session, op);
}

static void *session_alloc(void *ctx, size_t bytes, uint32_t tag)
{
  return ordo_session_alloc(((ordo_embed *)ctx)->session, bytes, tag);
}

static void session_free(void *ctx, void *memory)
{
  ordo_session_free(((ordo_embed *)ctx)->session, memory);
}

ordo_status ordo_embed_llama_status(ordo_embed *embed, int status)
{
  if (status >= 0)
    return status; /* a status of the host that a hook passed on */
  return ordo_fail(embed->options.context, status == LLAMA_E_NOMEM ? ORDO_E_NOMEM : ORDO_E_INVALID,
                   status == LLAMA_E_NOMEM ? "E-TRAIN-MEMORY" : "E-TRAIN-MODEL", "the model cannot run", "model", llama_error(embed->llama),
                   status == LLAMA_E_NOMEM ? "use a smaller train.micro_batch" : "check the data and the model");
}

/* Weights alone, spread over all ranks: a machine that cannot hold them would be driven out of memory and end without a word. */
static ordo_status check_memory(const ordo_embed *embed)
{
  const ordo_embed_options *o = &embed->options;
  double bytes = 0.0, most = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
  g_autofree char *why = NULL;
  for (uint32_t p = 0; p < llama_n_params(embed->llama); p++) {
    const struct llama_param *param = llama_param_at(embed->llama, p);
    if (p == 0 || param->tie_group < 0) /* a tied head has the storage of the embedding, which is the first */
      bytes += (double)sizeof(float) * (double)param->numel;
  }
  if (most <= 0.0 || !o->comm || bytes / o->comm->size <= most)
    return ORDO_OK;
  why = g_strdup_printf("its weights need %.0f GiB on %d rank(s), this machine has %.0f GiB", bytes / 0x1p30, o->comm->size, most / 0x1p30);
  return ordo_fail(o->context, ORDO_E_NOMEM, "E-TRAIN-MEMORY", "the model is too large for this machine", o->weights->origin, why,
                   "use smaller sizes in [model], or more machines and a sharding strategy");
}

static ordo_status create_llama(ordo_embed *embed)
{
  char reason[200] = "";
  struct llama_memory memory = {embed, session_alloc, session_free, ORDO_MEM_ACTIVATIONS};
  struct llama_hooks hooks = {.ctx = embed,
                              .pre_forward = ordo_embed_pre_forward,
                              .post_forward = ordo_embed_post_forward,
                              .pre_backward = ordo_embed_pre_backward,
                              .grad_adds = hook_grad_adds,
                              .grad_ready = hook_grad_ready,
                              .post_backward = ordo_embed_post_backward,
                              .activation = hook_activation,
                              .op_dtype = hook_op_dtype};
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  embed->llama = llama_create(&embed->options.weights->config, &memory, reason, sizeof reason);
  if (!embed->llama)
    return ordo_fail(embed->options.context, ORDO_E_INVALID, "E-TRAIN-MODEL", "the model cannot be made", embed->options.weights->origin,
                     reason, "check the sizes in [model]");
  llama_set_hooks(embed->llama, &hooks);
  if (embed->options.dry) {
    llama_set_dry(embed->llama);
    return ORDO_OK;
  }
  ordo_status status = check_memory(embed);
  if (status != ORDO_OK)
    return status;
  status = embed->options.weights->check ? embed->options.weights->check(embed->options.weights, embed->llama, &problems) : ORDO_OK;
  return status == ORDO_OK ? ORDO_OK : ordo_problems_to_context(&problems, embed->options.context, status);
}

static ordo_status create_session(ordo_embed *embed)
{
  const ordo_embed_options *o = &embed->options;
  ordo_embedder embedder = {.struct_size = sizeof embedder,
                            .ctx = embed,
                            .model_build = model_build,
                            .weights_read = weights_read,
                            .bind = bind,
                            .optimizer_create = optimizer_create,
                            .scheduler_create = scheduler_create,
                            .scheduler_step = scheduler_step,
                            .activation_numel = activation_numel,
                            .metric = metric,
                            .convert = convert,
                            .adapt = adapt};
  ordo_session_options options = {.struct_size = sizeof options,
                                  .comm = o->comm,
                                  .seed = o->seed,
                                  .max_grad_norm = o->max_grad_norm,
                                  .ordered = o->ordered,
                                  .drift_interval = o->drift_interval,
                                  .dry_run = o->dry ? 1 : 0};
  ordo_status status = ordo_session_create(o->context, o->plan, &embedder, &options, &embed->session);
  return status == ORDO_OK ? ordo_session_setup(embed->session) : status;
}

/* After the set-up the model learns which part of each param it has, and where strategies want to hear of activations. */
static ordo_status localize(ordo_embed *embed)
{
  uint32_t n = embed->model->n_params;
  g_autofree struct llama_local *locals = g_new0(struct llama_local, n);
  int32_t parts = 1, index = 0;
  for (uint32_t p = 0; p < n; p++) {
    const ordo_param *param = embed->model->params[p];
    for (uint32_t d = 0; d < param->ndim; d++) {
      locals[p].shape[d] = param->local_shape[d];
      locals[p].offset[d] = param->local_offset[d];
    }
    struct llama_adapter_info adapter;
    if (param->ndim == 2 && (param->local_shape[0] != param->shape[0] || param->local_shape[1] != param->shape[1]) &&
        llama_adapter_of(embed->llama, p, &adapter))
      return ordo_fail(embed->options.context, ORDO_E_UNSUPPORTED, "E-TRAIN-MODEL", "a layer with an adapter was cut", param->name,
                       "adapters are computed whole", "use adapters without a strategy that cuts layers (tp)");
    for (uint32_t point = 1; point < LLAMA_N_POINTS; point++) {
      locals[p].forward |= ordo_session_wants_activation(embed->session, 0, point, p, 0) ? 1u << point : 0u;
      locals[p].backward |= ordo_session_wants_activation(embed->session, 0, point, p, 1) ? 1u << point : 0u;
    }
  }
  ordo_session_residual(embed->session, 0, &parts, &index);
  return ordo_embed_llama_status(embed, llama_localize(embed->llama, locals, parts, index));
}

/* Room for one micro-batch, and the ids and targets of this rank's share of a step. */
static ordo_status reserve(ordo_embed *embed)
{
  const ordo_embed_options *o = &embed->options;
  int32_t index = 0, size = 1;
  ordo_session_data_part(embed->session, &index, &size);
  embed->rank = index;
  embed->ranks = size;
  embed->part = ordo_data_split(o->batch, o->micro_batch, index, size);
  embed->tokens = (size_t)(MAX(embed->part.count, embed->part.micro_size) * o->seq_len);
  embed->ids = g_try_new0(int32_t, 2 * embed->tokens);
  embed->targets = embed->ids + embed->tokens;
  if (!embed->ids)
    return ordo_fail(o->context, ORDO_E_NOMEM, "E-TRAIN-MEMORY", "out of memory", "ids of a batch", "", "use a smaller train.batch");
  int train = !o->train ? LLAMA_FORWARD_ONLY : o->checkpointing ? LLAMA_KEEP_INPUTS : LLAMA_KEEP_ALL;
  return ordo_embed_llama_status(embed, llama_reserve(embed->llama, embed->part.micro_size, o->seq_len, train, 0));
}

ordo_status ordo_embed_create(const ordo_embed_options *options, ordo_embed **result)
{
  ordo_embed *embed = g_new0(ordo_embed, 1);
  embed->options = *options;
  ordo_status status = create_llama(embed);
  if (status == ORDO_OK)
    status = create_session(embed);
  if (status == ORDO_OK) {
    embed->model = ordo_session_model(embed->session, 0);
    for (uint32_t p = 0; p < embed->model->n_params; p++)
      if (embed->model->params[p]->dtype < ORDO_DTYPE_OPAQUE)
        (void)bind(embed, embed->model, embed->model->params[p], embed->model->params[p]->data, embed->model->params[p]->grad);
    status = localize(embed);
    if (status == ORDO_OK && options->batch > 0)
      status = reserve(embed);
  }
  if (status != ORDO_OK) {
    /* On several ranks others may still be in the set-up: taking the session apart would meet them in collectives that they do not
     * start, and their complaint about that would hide this error. The program says it and ends. */
    if (!options->comm || options->comm->size == 1)
      ordo_embed_destroy(embed);
    return status;
  }
  *result = embed;
  return ORDO_OK;
}

void ordo_embed_destroy(ordo_embed *embed)
{
  if (!embed)
    return;
  llama_destroy(embed->llama); /* its activations belong to the session's allocator */
  embed->llama = NULL;
  ordo_session_destroy(embed->session);
  g_free(embed->ids);
  g_free(embed);
}

ordo_session *ordo_embed_session(ordo_embed *embed)
{
  return embed->session;
}

const ordo_model *ordo_embed_model(const ordo_embed *embed)
{
  return embed->model;
}

struct llama *ordo_embed_llama(ordo_embed *embed)
{
  return embed->llama;
}

const ordo_data_part *ordo_embed_part(const ordo_embed *embed)
{
  return &embed->part;
}

ordo_context *ordo_embed_context(ordo_embed *embed)
{
  return embed->options.context;
}

double ordo_embed_initializer_range(const ordo_embed *embed)
{
  return embed->options.weights->initializer_range;
}
