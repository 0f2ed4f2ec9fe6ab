/* rig.c - see rig.h. */
#include "rig.h"

#include <ordo/half.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

ordo_context *rig_context;
ordo_comm_provider *rig_provider;
int rig_me, rig_ranks;
char rig_log[4096];
const char *rig_goldens;

static const struct {
  const char *unit, *name;
  int64_t rows, columns;
  int32_t tie;
} SHAPES[RIG_PARAMS] = {{"embed", "embed.weight", 33, 5, 0},
                        {"block", "block.w", 7, 13, -1},
                        {"block", "block.norm", 13, 0, -1},
                        {"head", "head.weight", 33, 5, 0}};

int64_t rig_numel(int param)
{
  return SHAPES[param].rows * (SHAPES[param].columns ? SHAPES[param].columns : 1);
}

float rig_initial(int param, int64_t i)
{
  return (float)((i * 5 + (param == 3 ? 0 : param)) % 17) * 0.03125f + 0.001f;
}

float rig_target(int64_t step, int micro, int rank, int param, int64_t i)
{
  return (float)((i * 7 + 3 * param + step + 5 * micro + 11 * rank) % 16) * 0.0625f - 0.4f;
}

float rig_round(ordo_dtype dtype, float value)
{
  return dtype == ORDO_BF16  ? ordo_f32_from_bf16(ordo_bf16_from_f32(value))
         : dtype == ORDO_F16 ? ordo_f32_from_f16(ordo_f16_from_f32(value))
                             : value;
}

static float get(ordo_dtype dtype, const void *storage, int64_t i)
{
  return dtype == ORDO_BF16  ? ordo_f32_from_bf16(((const uint16_t *)storage)[i])
         : dtype == ORDO_F16 ? ordo_f32_from_f16(((const uint16_t *)storage)[i])
                             : ((const float *)storage)[i];
}

static void put(ordo_dtype dtype, void *storage, int64_t i, float value)
{
  if (dtype == ORDO_BF16)
    ((uint16_t *)storage)[i] = ordo_bf16_from_f32(value);
  else if (dtype == ORDO_F16)
    ((uint16_t *)storage)[i] = ordo_f16_from_f32(value);
  else
    ((float *)storage)[i] = value;
}

/* ---- the embedder ---- */

static ordo_status build(void *ctx, ordo_session *session, uint32_t model, ordo_model_builder *builder)
{
  rig *r = ctx;
  const char *unit = "";
  (void)session, (void)model;
  for (int p = 0; p < RIG_PARAMS; p++) {
    ordo_param_desc desc = {.struct_size = sizeof desc,
                            .name = SHAPES[p].name,
                            .dtype = r->options.described ? r->options.described : ORDO_F32,
                            .flags = ORDO_PARAM_REQUIRES_GRAD,
                            .tie_group = SHAPES[p].tie,
                            .ndim = SHAPES[p].columns ? 2 : 1,
                            .shape = {SHAPES[p].rows, SHAPES[p].columns}};
    if (r->options.with_data && p < 3) {
      for (int64_t i = 0; i < rig_numel(p); i++)
        r->storage[p][i] = rig_initial(p, i);
      desc.data = r->storage[p];
    }
    if (strcmp(unit, SHAPES[p].unit) != 0 && ordo_model_builder_unit(builder, SHAPES[p].unit,
                                                                     p == 0   ? "Embedding"
                                                                     : p == 1 ? "ToyBlock"
                                                                              : "Head",
                                                                     NULL) != ORDO_OK)
      return ORDO_E_INTERNAL;
    unit = SHAPES[p].unit;
    if (ordo_model_builder_param(builder, &desc, NULL) != ORDO_OK)
      return ORDO_E_INTERNAL;
  }
  return ORDO_OK;
}

static ordo_status weights_read(void *ctx, const ordo_model *model, const ordo_chunk *chunk, float *dst)
{
  int64_t begin = chunk->kind == ORDO_CHUNK_FLAT ? chunk->begin : chunk->offset[0] * (chunk->ndim > 1 ? chunk->param->shape[1] : 1);
  int64_t n = chunk->end - chunk->begin;
  (void)ctx, (void)model;
  if (chunk->kind == ORDO_CHUNK_RECT) {
    n = chunk->extent[0];
    for (uint32_t d = 1; d < chunk->ndim; d++)
      n *= chunk->extent[d];
  }
  for (int64_t i = 0; i < n; i++)
    dst[i] = rig_initial((int)chunk->param->index, begin + i);
  return ORDO_OK;
}

static ordo_status bind(void *ctx, const ordo_model *model, const ordo_param *param, void *data, void *grad)
{
  (void)ctx, (void)model, (void)param, (void)data, (void)grad;
  return ORDO_OK; /* the rig looks into the params */
}

static ordo_status convert(void *ctx, const ordo_model *model, const ordo_param *param, ordo_dtype dtype, ordo_dtype grad_dtype)
{
  (void)model;
  ((rig *)ctx)->converts++;
  return param->dtype == dtype && param->grad_dtype == grad_dtype ? ORDO_OK : ORDO_E_INTERNAL;
}

static ordo_status sgd_step(void *ctx, const ordo_step_args *args)
{
  rig *r = ctx;
  const float rate = (float)(r->options.lr * args->grad_factor);
  r->last_update = args->step;
  for (uint64_t l = 0; l < r->group.n_leaves; l++) {
    ordo_leaf *leaf = r->leaves[l];
    for (int64_t i = 0; leaf->grad_state == ORDO_GRAD_HELD && i < leaf->numel; i++)
      put(leaf->dtype, leaf->data, i, get(leaf->dtype, leaf->data, i) - rate * get(leaf->grad_dtype, leaf->grad, i));
  }
  return ORDO_OK;
}

static ordo_status sgd_rebind(void *ctx, const ordo_leaf_map *map, size_t n)
{
  rig *r = ctx;
  for (size_t k = 0; k < n; k++)
    for (uint64_t l = 0; l < r->group.n_leaves; l++)
      if (r->leaves[l] == map[k].old_leaf)
        r->leaves[l] = map[k].new_leaf;
  return ORDO_OK;
}

static uint32_t no_slots(void *ctx)
{
  (void)ctx;
  return 0;
}

static void sgd_destroy(void *ctx)
{
  (void)ctx;
}

static ordo_status optimizer_create(void *ctx, const ordo_model *model, ordo_optimizer *optimizer)
{
  rig *r = ctx;
  for (uint32_t i = 0; i < model->n_leaves; i++)
    r->leaves[i] = model->leaves[i];
  r->group =
      (ordo_group){.struct_size = sizeof r->group, .name = "all", .leaves = r->leaves, .n_leaves = model->n_leaves, .lr = r->options.lr};
  *optimizer =
      (ordo_optimizer){.struct_size = sizeof *optimizer,
                       .ctx = r,
                       .name = "sgd",
                       .flags = ORDO_OPTIMIZER_APPLIES_FACTOR | (r->options.only_fp32_updates ? 0u : (uint32_t)ORDO_OPTIMIZER_16_BIT),
                       .n_groups = 1,
                       .groups = &r->group,
                       .step = sgd_step,
                       .rebind = sgd_rebind,
                       .n_slots = no_slots,
                       .destroy = sgd_destroy};
  return ORDO_OK;
}

static ordo_status scheduler_step(void *ctx, ordo_optimizer *optimizer, int64_t step)
{
  rig *r = ctx;
  (void)optimizer;
  r->scheduler_steps++;
  r->last_schedule = step;
  return ORDO_OK;
}

static ordo_status restore(void *ctx, ordo_step step)
{
  rig *r = ctx;
  return r->options.restore ? r->options.restore(r, step) : ORDO_OK;
}

/* ---- running ---- */

void rig_expect_ok(ordo_status status, const char *what)
{
  if (status == ORDO_OK)
    return;
  for (size_t i = 0; i < ordo_n_errors(rig_context); i++) {
    const ordo_error *e = ordo_error_at(rig_context, i);
    print_error("rank %d, %s: %s %s: %s (%s) %s\n", rig_me, what, e->code, e->where, e->what, e->why, e->next);
  }
  fail_msg("%s: status %d", what, status);
}

void rig_expect_error(const char *word)
{
  char text[4096] = "";
  for (size_t i = 0; i < ordo_n_errors(rig_context); i++) {
    const ordo_error *e = ordo_error_at(rig_context, i);
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "%s %s: %s (%s) -> %s\n", e->code, e->where, e->what, e->why, e->next);
  }
  if (!strstr(text, word))
    fail_msg("rank %d: '%s' is not in: %s", rig_me, word, text);
}

ordo_status rig_open(rig *r, const rig_options *options)
{
  memset(r, 0, sizeof *r);
  r->options = *options;
  r->bad_rank = r->bad_loss = -1;
  r->bad_value = (float)INFINITY;
  if (r->options.n_micro == 0)
    r->options.n_micro = 1;
  const ordo_plan_request request = {.struct_size = sizeof request,
                                     .strategy = options->strategy,
                                     .precision = options->precision,
                                     .ranks = rig_ranks,
                                     .flags = options->plan_flags};
  const ordo_session_options session = {.struct_size = sizeof session,
                                        .comm = rig_provider,
                                        .seed = 1,
                                        .ordered = options->ordered,
                                        .max_grad_norm = options->max_norm,
                                        .drift_interval = 1};
  r->embedder = (ordo_embedder){.struct_size = sizeof r->embedder,
                                .ctx = r,
                                .model_build = build,
                                .weights_read = weights_read,
                                .bind = bind,
                                .optimizer_create = optimizer_create,
                                .scheduler_step = scheduler_step,
                                .restore = restore,
                                .convert = options->no_convert ? NULL : convert};
  ordo_status status = ordo_plan_create(rig_context, &request, &r->plan);
  if (status == ORDO_OK)
    status = ordo_session_create(rig_context, r->plan, &r->embedder, &session, &r->session);
  r->created = status == ORDO_OK;
  return status == ORDO_OK ? ordo_session_setup(r->session) : status;
}

void rig_start(rig *r, const rig_options *options)
{
  rig_expect_ok(rig_open(r, options), options->precision ? options->precision : "none");
}

void rig_close(rig *r)
{
  ordo_session_destroy(r->session);
  ordo_plan_destroy(r->plan);
  r->session = NULL;
  r->plan = NULL;
}

static void write_gradient(rig *r, const ordo_param *param, int64_t step, int micro)
{
  const int adds = ordo_session_grad_adds(r->session, 0, param->index), p = (int)param->index;
  const float factor = (float)ordo_session_loss_factor(r->session);
  const int bad = r->bad_rank == rig_me && (r->bad_loss < 0 || r->bad_loss == r->running_loss) && p == 1;
  assert_non_null(param->grad);
  for (int64_t i = 0; i < rig_numel(p); i++) {
    float weight = get(param->dtype, param->data, i);
    float grad = (float)(rig_me + 1) * (weight - rig_target(step, micro, rig_me, p, i)) * factor;
    if (r->still)
      grad = 0.0f;
    if (bad && i == 3)
      grad = r->bad_value;
    put(param->grad_dtype, param->grad, i, (adds ? get(param->grad_dtype, param->grad, i) : 0.0f) + grad);
  }
}

static ordo_status backward(rig *r, const ordo_model *model, int64_t step, int micro)
{
  ordo_status status = ORDO_OK;
  for (uint32_t u = RIG_UNITS; u-- > 0 && status == ORDO_OK;) {
    status = ordo_session_pre_backward(r->session, 0, u);
    for (uint32_t p = model->units[u]->n_params; p-- > 0 && status == ORDO_OK;) {
      if (micro == r->silent_in && (r->silent >> model->units[u]->params[p]->index & 1))
        continue;
      write_gradient(r, model->units[u]->params[p], step, micro);
      status = ordo_session_grad_ready(r->session, 0, model->units[u]->params[p]->index);
    }
    if (status == ORDO_OK)
      status = ordo_session_post_backward(r->session, 0, u);
  }
  return status;
}

static double loss_now(const ordo_model *model, int64_t step)
{
  double loss = 0.0;
  for (int p = 0; p < RIG_PARAMS; p++)
    for (int64_t i = 0; model->params[p]->data && i < rig_numel(p); i++) {
      double d = (double)get(model->params[p]->dtype, model->params[p]->data, i) - (double)rig_target(step, 0, 0, p, i);
      loss += 0.5 * d * d;
    }
  return loss;
}

ordo_status rig_set_sync(rig *r, int64_t value)
{
  const ordo_control control = ordo_control_make(ORDO_CONTROL_GRADIENT_SYNC, ORDO_ALL_UNITS, value);
  return ordo_session_control(r->session, 0, &control);
}

ordo_status rig_step(rig *r, ordo_step_result *result)
{
  const ordo_model *model = ordo_session_model(r->session, 0);
  const int n = r->options.n_micro;
  ordo_step_result own = {.struct_size = sizeof own};
  ordo_status status = ordo_session_step_begin(r->session, n, (double)(n * (rig_me + 1)));
  int64_t step = r->last_update + 1; /* targets follow the updates, so that a skipped step is repeated */
  r->running_loss = 0;
  for (int m = 0; m < n && status == ORDO_OK; m++) {
    if (r->n_losses) {
      r->running_loss = m % (int)r->n_losses;
      status = ordo_session_select_loss(r->session, (uint32_t)r->running_loss);
    }
    if (status == ORDO_OK && r->toggles_sync)
      status = rig_set_sync(r, m == n - 1);
    if (status == ORDO_OK)
      status = ordo_session_micro_begin(r->session);
    for (uint32_t u = 0; u < RIG_UNITS && status == ORDO_OK; u++) {
      status = ordo_session_pre_forward(r->session, 0, u);
      if (m == 0 && u == 0)
        r->last_loss = 0.0;
      if (status == ORDO_OK)
        status = ordo_session_post_forward(r->session, 0, u);
    }
    if (m == 0)
      r->last_loss = loss_now(model, step);
    if (status == ORDO_OK)
      status = backward(r, model, step, m);
    if (status == ORDO_OK)
      status = ordo_session_micro_end(r->session);
  }
  if (status == ORDO_OK)
    status = ordo_session_step_end(r->session, &own);
  if (result)
    *result = own;
  return status;
}

/* Where the chunk has element i of its param, -1: elsewhere. */
static int64_t place_in(const ordo_chunk *chunk, int64_t i)
{
  int64_t columns = chunk->ndim > 1 ? chunk->param->shape[1] : 1, row = i / columns - chunk->offset[0], column = i % columns;
  int64_t width = chunk->ndim > 1 ? chunk->extent[1] : 1;
  if (chunk->kind == ORDO_CHUNK_FLAT)
    return i >= chunk->begin && i < chunk->end ? chunk->leaf_offset + i - chunk->begin : -1;
  column -= chunk->ndim > 1 ? chunk->offset[1] : 0;
  return row >= 0 && row < chunk->extent[0] && column >= 0 && column < width ? chunk->leaf_offset + row * width + column : -1;
}

/* The leaf that has element i on this rank; null: none. */
static const ordo_leaf *find(const rig *r, int param, int64_t i, int64_t *at)
{
  const ordo_model *model = ordo_session_model(r->session, 0);
  for (uint32_t l = 0; l < model->n_leaves; l++)
    for (uint64_t c = 0; c < model->leaves[l]->placement->n_chunks; c++)
      if (model->leaves[l]->placement->chunks[c].param == model->params[param] &&
          (*at = place_in(&model->leaves[l]->placement->chunks[c], i)) >= 0)
        return model->leaves[l];
  return NULL;
}

int rig_holds(const rig *r, int param, int64_t i)
{
  int64_t at;
  return find(r, param, i, &at) != NULL;
}

float rig_weight(const rig *r, int param, int64_t i)
{
  int64_t at;
  const ordo_leaf *leaf = find(r, param, i, &at);
  const ordo_leaf *work = leaf && leaf->master ? leaf->master : leaf;
  return work ? get(work->dtype, work->data, at) : 0.0f;
}

float rig_stored(const rig *r, int param, int64_t i)
{
  int64_t at;
  const ordo_leaf *leaf = find(r, param, i, &at);
  return leaf ? get(leaf->dtype, leaf->data, at) : 0.0f;
}

static void log_line(void *ctx, int32_t severity, const char *text)
{
  const size_t used = strlen(rig_log);
  (void)ctx;
  if (severity >= ORDO_LOG_WARNING)
    snprintf(rig_log + used, sizeof rig_log - used, "%s\n", text);
}

int rig_main(int argc, char **argv, const struct CMUnitTest *tests, size_t n)
{
  const ordo_context_options options = {.struct_size = sizeof options,
                                        .program_name = "test",
                                        .plugin_path = argc > 1 ? argv[1] : NULL,
                                        .log = log_line,
                                        .flags = ORDO_CONTEXT_NO_ENVIRONMENT | ORDO_CONTEXT_NO_DEFAULT_PATH | ORDO_CONTEXT_ALLOW_INSECURE};
  const ordo_mpi_options mpi_options = {.struct_size = sizeof mpi_options, .deadline_seconds = 30.0};
  rig_goldens = argc > 2 ? argv[2] : NULL;
  if (ordo_context_create(&options, &rig_context) != ORDO_OK ||
      ordo_comm_mpi_create(rig_context, MPI_COMM_NULL, &mpi_options, &rig_provider) != ORDO_OK)
    return 1;
  rig_me = rig_provider->rank;
  rig_ranks = rig_provider->size;
  int failed = _cmocka_run_group_tests(argv[0], tests, n, NULL, NULL);
  ordo_comm_provider_destroy(rig_provider);
  ordo_context_destroy(rig_context);
  return failed;
}
