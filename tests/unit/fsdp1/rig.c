/* rig.c - see rig.h. */
#include "rig.h"

#include <ordo/half.h>

#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ordo_context *rig_context;
ordo_comm_provider *rig_comm;
int rig_rank, rig_ranks;
const char *rig_path;
int64_t rig_scale = 1;
int rig_tiny;

static const struct {
  int unit;
  int64_t rows, columns;
} PARAMS[RIG_PARAMS] = {{0, 37, 5}, {1, 13, 5}, {1, 5, 0}, {2, 13, 5}, {2, 5, 0}, {3, 13, 5}, {3, 5, 0}, {4, 5, 0}, {4, 37, 5}};

static const double RATE = 1.0 / 64, DECAY = 0.25, WEIGHT = 16.0;

/* How a strategy of a model axis may split them; a 1-D parameter with a hint is split, one without is replicated. */
static const uint32_t HINTS[RIG_PARAMS] = {ORDO_TP_VOCAB,  ORDO_TP_COLUMN, ORDO_TP_REPLICATE, ORDO_TP_ROW,  ORDO_TP_COLUMN,
                                           ORDO_TP_COLUMN, ORDO_TP_COLUMN, ORDO_TP_REPLICATE, ORDO_TP_VOCAB};

static int64_t rows_of(int param)
{
  return rig_tiny ? 3 : rig_scale * PARAMS[param].rows;
}

static int64_t columns_of(int param)
{
  return rig_tiny && PARAMS[param].columns > 0 ? 2 : PARAMS[param].columns;
}

int64_t rig_numel(int param)
{
  return rows_of(param) * (columns_of(param) > 0 ? columns_of(param) : 1);
}

/* The parameter whose storage `param` uses. */
static int root_of(const rig *r, int param)
{
  return param == RIG_HEAD && !r->options.untied ? 0 : param;
}

static float initial(int param, int64_t i, int rank)
{
  return (float)((7 * param + i) % 29) / 8.0f - 1.5f + 10.0f * (float)rank;
}

float rig_initial(int untied, int param, int64_t i)
{
  return initial(param == RIG_HEAD && !untied ? 0 : param, i, 0);
}

enum { PERIOD = 4 }; /* of gradients, in elements */

/* Small: the sum over 64 ranks and 4 micro-batches of both uses of a tied weight stays exact in fp32, over 5 ranks in bf16. */
static float gradient(int rank, int step, int micro, int param, int64_t i)
{
  return (float)((rank + 2 * step + 3 * micro + param + i) % PERIOD);
}

/* ---- slices of a model axis ---- */

static int64_t local_numel(const ordo_param *param)
{
  return param->local_shape[0] * (param->ndim > 1 ? param->local_shape[1] : 1);
}

/* Element of the whole parameter behind element i of what this rank computes with: rule and axis of ../composition/slice.c. */
static int64_t global_of(const rig *r, const ordo_param *param, int64_t i)
{
  const ordo_mesh *mesh = ordo_session_mesh(r->session);
  int64_t first[2] = {0, 0};
  if (local_numel(param) == param->numel)
    return i;
  const int d = HINTS[param->index] == ORDO_TP_ROW ? 1 : 0;
  for (uint32_t a = 0; a < mesh->n_axes && HINTS[param->index] != ORDO_TP_REPLICATE; a++)
    if (mesh->axes[a]->kind == ORDO_AXIS_MODEL)
      first[d] = (param->shape[d] + mesh->axes[a]->size - 1) / mesh->axes[a]->size * mesh->axes[a]->coordinate;
  if (param->ndim == 1)
    return first[0] + i;
  return (first[0] + i / param->local_shape[1]) * param->shape[1] + first[1] + i % param->local_shape[1];
}

/* ---- errors ---- */

void rig_ok(ordo_status status, const char *what)
{
  if (status == ORDO_OK)
    return;
  for (size_t i = 0; i < ordo_n_errors(rig_context); i++) {
    const ordo_error *e = ordo_error_at(rig_context, i);
    print_error("rank %d, %s: %s %s: %s (%s) %s\n", rig_rank, what, e->code, e->where, e->what, e->why, e->next);
  }
  fail_msg("%s: status %d", what, status);
}

void rig_expect(ordo_status got, ordo_status wanted, const char *words)
{
  char text[8192] = "";
  size_t used = 0;
  for (size_t i = 0; i < ordo_n_errors(rig_context); i++) {
    const ordo_error *e = ordo_error_at(rig_context, i);
    used += (size_t)snprintf(text + used, used < sizeof text ? sizeof text - used : 0, "%s %s: %s (%s) %s\n", e->code, e->where, e->what,
                             e->why, e->next);
    used = used < sizeof text ? used : sizeof text - 1;
  }
  if (got != wanted)
    fail_msg("status %d instead of %d: %s", got, wanted, text);
  while (*words != '\0') {
    char word[128];
    size_t length = strcspn(words, "|");
    snprintf(word, sizeof word, "%.*s", (int)length, words);
    if (strstr(text, word) == NULL)
      fail_msg("'%s' is not in: %s", word, text);
    words += length + (words[length] == '|');
  }
}

/* ---- the embedder ---- */

static ordo_status build(void *ctx, ordo_session *session, uint32_t model, ordo_model_builder *builder)
{
  static const char *const names[RIG_UNITS] = {"embed", "layers.0", "layers.1", "layers.2", "head"};
  static const char *const classes[RIG_UNITS] = {"Embedding", "Block", "Block", "Block", "Head"};
  const rig *r = ctx;
  int p = 0;
  (void)session;
  for (int u = 0; u < RIG_UNITS; u++) {
    ordo_status status = ordo_model_builder_unit(builder, names[u], classes[u], NULL);
    for (; status == ORDO_OK && p < RIG_PARAMS && PARAMS[p].unit == u; p++) {
      char name[16];
      snprintf(name, sizeof name, "p%d", p);
      ordo_param_desc desc = {.struct_size = sizeof desc, .name = name, .dtype = ORDO_F32, .tie_group = -1, .ndim = 1};
      if (p == r->options.wide_param && p > 0)
        desc.dtype = ORDO_F64;
      if (model == 0 && !(r->options.frozen >> p & 1))
        desc.flags |= ORDO_PARAM_REQUIRES_GRAD;
      if (PARAMS[p].columns > 0 && !r->options.no_decay)
        desc.flags |= ORDO_PARAM_DECAY;
      if (!r->options.untied && (p == 0 || p == RIG_HEAD))
        desc.tie_group = 0;
      desc.tp_hint = HINTS[p];
      desc.ndim = PARAMS[p].columns > 0 ? 2 : 1;
      desc.shape[0] = rows_of(p);
      desc.shape[1] = columns_of(p);
      status = ordo_model_builder_param(builder, &desc, NULL);
    }
    if (status != ORDO_OK)
      return status;
  }
  return ORDO_OK;
}

int64_t rig_element(const ordo_chunk *chunk, int64_t k)
{
  if (chunk->kind == ORDO_CHUNK_FLAT)
    return chunk->begin + k;
  if (chunk->ndim == 1)
    return chunk->offset[0] + k;
  return (chunk->offset[0] + k / chunk->extent[1]) * chunk->param->shape[1] + chunk->offset[1] + k % chunk->extent[1];
}

static ordo_status read_weights(void *ctx, const ordo_model *model, const ordo_chunk *chunk, float *dst)
{
  const rig *r = ctx;
  (void)model;
  for (int64_t k = 0; k < ordo_chunk_numel(chunk); k++)
    dst[k] = initial(root_of(r, (int)chunk->param->index), rig_element(chunk, k), r->options.different_sources ? rig_rank : 0);
  return ORDO_OK;
}

static ordo_status sgd_step(void *ctx, const ordo_step_args *args)
{
  rig *r = ctx;
  for (int g = 0; g < 2; g++)
    for (uint64_t l = 0; l < r->groups[g].n_leaves; l++) {
      ordo_leaf *leaf = r->leaves[g][l];
      float *data = leaf->data;
      const float *grad = leaf->grad;
      for (int64_t i = 0; leaf->grad_state == ORDO_GRAD_HELD && i < leaf->numel; i++) {
        data[i] -= (float)(RATE * r->groups[g].weight_decay) * data[i];
        data[i] -= (float)(RATE * args->grad_factor) * grad[i];
      }
    }
  return ORDO_OK;
}

/* State of the element `i` of the parameter when the optimizer is made. */
static float first_state(int param, int64_t i)
{
  return (float)(100 * param + i % 50);
}

static void make_state(rig *r, int g, uint64_t l)
{
  const ordo_leaf *leaf = r->leaves[g][l];
  r->state[g][l] = calloc((size_t)leaf->numel + 1, sizeof(float));
  for (uint64_t c = 0; c < leaf->placement->n_chunks; c++)
    for (int64_t k = 0; k < ordo_chunk_numel(&leaf->placement->chunks[c]); k++)
      r->state[g][l][leaf->placement->chunks[c].leaf_offset + k] =
          first_state((int)leaf->placement->chunks[c].param->index, rig_element(&leaf->placement->chunks[c], k));
}

/* One to one, as fsdp2 maps; the state of an element moves with it. */
static ordo_status sgd_rebind(void *ctx, const ordo_leaf_map *map, size_t n)
{
  rig *r = ctx;
  if (r->options.fail_rebind && r->rebound == 0)
    return ordo_fail(rig_context, ORDO_E_UNSUPPORTED, "E-TEST", "rebind refuses", "test", "it was told to", "");
  r->rebound++;
  for (size_t i = 0; i < n; i++)
    for (int g = 0; g < 2; g++)
      for (uint64_t l = 0; l < r->groups[g].n_leaves; l++) {
        if (r->leaves[g][l] != map[i].old_leaf)
          continue;
        r->leaves[g][l] = map[i].new_leaf;
        if (r->options.eager) {
          free(r->state[g][l]);
          make_state(r, g, l); /* what every rank can work out: the values that belong to its elements */
        }
        g = 2;
        break;
      }
  return ORDO_OK;
}

static float *sgd_slot(void *ctx, const ordo_leaf *leaf, uint32_t slot)
{
  rig *r = ctx;
  for (int g = 0; g < 2; g++)
    for (uint64_t l = 0; l < r->groups[g].n_leaves; l++)
      if (r->leaves[g][l] == leaf && slot == 0)
        return r->state[g][l];
  return NULL;
}

static void sgd_destroy(void *ctx)
{
  rig *r = ctx;
  r->restored = 1;
  for (int g = 0; g < 2; g++)
    for (uint64_t l = 0; l < r->groups[g].n_leaves; l++) {
      const ordo_leaf *leaf = r->leaves[g][l];
      r->restored &= leaf == r->first_leaves[g][l] && leaf->state == ORDO_LEAF_LIVE;
      for (int64_t i = 0; r->options.eager && r->restored && i < leaf->numel; i++)
        r->restored &= r->state[g][l][i] == first_state((int)leaf->params[0]->index, i);
      free(r->state[g][l]);
      r->state[g][l] = NULL;
    }
}

static ordo_status bind(void *ctx, const ordo_model *model, const ordo_param *param, void *data, void *grad)
{
  rig *r = ctx;
  (void)model, (void)param, (void)data, (void)grad;
  if (++r->binds == r->options.fail_bind)
    return ordo_fail(rig_context, ORDO_E_STATE, "E-TEST", "bind refuses", "test", "it was told to", "");
  return ORDO_OK;
}

static uint32_t sgd_slots(void *ctx)
{
  const rig *r = ctx;
  return r->options.eager ? 1 : 0;
}

static ordo_status make_optimizer(void *ctx, const ordo_model *model, ordo_optimizer *optimizer)
{
  rig *r = ctx;
  r->optimizers_made++;
  for (int g = 0; g < 2; g++)
    r->groups[g] = (ordo_group){sizeof(ordo_group), g == 0 ? "decay" : "no_decay", r->leaves[g], 0, RATE, g == 0 ? DECAY : 0.0};
  for (uint32_t i = 0; i < model->n_leaves; i++) {
    ordo_leaf *leaf = model->leaves[i];
    ordo_group *group = &r->groups[leaf->flags & ORDO_PARAM_DECAY ? 0 : 1];
    r->elements_at_creation += leaf->numel;
    if ((leaf->flags & ORDO_PARAM_REQUIRES_GRAD) && i + 1 != r->options.leave_out)
      group->leaves[group->n_leaves++] = leaf;
  }
  memcpy(r->first_leaves, r->leaves, sizeof r->leaves);
  for (int g = 0; g < 2; g++)
    for (uint64_t l = 0; r->options.eager && l < r->groups[g].n_leaves; l++)
      make_state(r, g, l);
  *optimizer = (ordo_optimizer){.struct_size = sizeof *optimizer,
                                .ctx = r,
                                .name = "sgd",
                                .flags = ORDO_OPTIMIZER_APPLIES_FACTOR,
                                .n_groups = 2,
                                .groups = r->groups,
                                .step = sgd_step,
                                .rebind = r->options.rebinds ? sgd_rebind : NULL,
                                .n_slots = sgd_slots,
                                .slot = sgd_slot,
                                .destroy = sgd_destroy};
  return ORDO_OK;
}

/* ---- life cycle ---- */

void rig_start(int argc, char **argv)
{
  rig_path = argc > 1 ? argv[1] : NULL;
  const ordo_context_options options = {.struct_size = sizeof options,
                                        .program_name = "test",
                                        .plugin_path = rig_path,
                                        .flags = ORDO_CONTEXT_NO_ENVIRONMENT | ORDO_CONTEXT_NO_DEFAULT_PATH | ORDO_CONTEXT_ALLOW_INSECURE};
  const ordo_mpi_options mpi_options = {.struct_size = sizeof mpi_options, .deadline_seconds = 30.0};
  if (ordo_context_create(&options, &rig_context) != ORDO_OK ||
      ordo_comm_mpi_create(rig_context, MPI_COMM_NULL, &mpi_options, &rig_comm) != ORDO_OK) {
    fprintf(stderr, "no communicator\n");
    exit(1);
  }
  rig_rank = rig_comm->rank;
  rig_ranks = rig_comm->size;
}

int rig_stop(int failed)
{
  int finalized = 0;
  ordo_comm_provider_destroy(rig_comm);
  ordo_context_destroy(rig_context);
  MPI_Finalized(&finalized);
  if (!finalized) /* a session died in a test; here all ranks are alive */
    MPI_Finalize();
  return failed;
}

static void start_reference(rig *r)
{
  for (int p = 0; p < RIG_PARAMS; p++) {
    r->reference[p] = calloc((size_t)rig_numel(p), sizeof(float));
    for (int64_t i = 0; i < rig_numel(p); i++)
      r->reference[p][i] = initial(root_of(r, p), i, 0);
  }
}

ordo_status rig_create(rig *r, const rig_options *options)
{
  static const ordo_plan_model models[2] = {{sizeof models[0], "policy", 1, 0}, {sizeof models[0], "reference", 0, 0}};
  memset(r, 0, sizeof *r);
  r->options = *options;
  const ordo_plan_request request = {.struct_size = sizeof request,
                                     .strategy = options->strategy,
                                     .ranks = rig_ranks,
                                     .flags = options->flags,
                                     .models = options->two_models ? models : NULL,
                                     .n_models = options->two_models ? 2 : 0};
  r->embedder = (ordo_embedder){.struct_size = sizeof r->embedder,
                                .ctx = r,
                                .model_build = build,
                                .weights_read = read_weights,
                                .bind = options->fail_bind ? bind : NULL,
                                .optimizer_create = options->optimizer != NULL ? options->optimizer : make_optimizer};
  const ordo_session_options session_options = {.struct_size = sizeof session_options,
                                                .comm = rig_comm,
                                                .seed = 1,
                                                .ordered = options->ordered,
                                                .max_grad_norm = options->clip,
                                                .drift_interval = 1};
  start_reference(r);
  ordo_status status = ordo_plan_create(rig_context, &request, &r->plan);
  return status == ORDO_OK ? ordo_session_create(rig_context, r->plan, &r->embedder, &session_options, &r->session) : status;
}

ordo_status rig_begin(rig *r, const rig_options *options)
{
  ordo_status status = rig_create(r, options);
  if (status == ORDO_OK)
    status = ordo_session_setup(r->session);
  if (status == ORDO_OK)
    r->model = ordo_session_model(r->session, 0);
  return status;
}

void rig_end(rig *r)
{
  ordo_session_destroy(r->session);
  ordo_plan_destroy(r->plan);
  for (int p = 0; p < RIG_PARAMS; p++)
    free(r->reference[p]);
  memset(r, 0, sizeof *r);
}

/* ---- comparisons ---- */

static float expected(const rig *r, int param, int64_t i)
{
  float value = r->reference[root_of(r, param)][i];
  if (r->options.rounded == ORDO_F16)
    return ordo_f32_from_f16(ordo_f16_from_f32(value));
  return r->options.rounded == ORDO_BF16 ? ordo_f32_from_bf16(ordo_bf16_from_f32(value)) : value;
}

static void compare_param(const rig *r, const ordo_param *param, const char *when)
{
  const float *data = param->data;
  if (data == NULL && local_numel(param) > 0)
    fail_msg("rank %d: %s has no data in %s of step %d", rig_rank, param->name, when, r->step);
  for (int64_t i = 0; r->options.optimizer == NULL && i < local_numel(param); i++) {
    float want = expected(r, (int)param->index, global_of(r, param, i));
    if (data[i] != want)
      fail_msg("rank %d: %s[%lld] is %.9g instead of %.9g in %s of step %d", rig_rank, param->name, (long long)i, (double)data[i],
               (double)want, when, r->step);
  }
}

static void compare_unit(const rig *r, const ordo_unit *unit, const char *when)
{
  for (uint32_t p = 0; p < unit->n_params; p++)
    compare_param(r, unit->params[p], when);
}

void rig_compare(rig *r)
{
  int64_t held[RIG_PARAMS] = {0};
  for (uint32_t l = 0; l < r->model->n_leaves; l++) {
    const ordo_leaf *leaf = r->model->leaves[l];
    for (uint64_t c = 0; c < leaf->placement->n_chunks; c++) {
      const ordo_chunk *chunk = &leaf->placement->chunks[c];
      held[chunk->param->index] += ordo_chunk_numel(chunk);
      for (int64_t k = 0; k < ordo_chunk_numel(chunk); k++) {
        float got = ((const float *)leaf->data)[chunk->leaf_offset + k];
        float want = r->reference[root_of(r, (int)chunk->param->index)][rig_element(chunk, k)];
        if (got != want)
          fail_msg("rank %d: element %lld of %s is %.9g instead of %.9g after step %d", rig_rank, (long long)rig_element(chunk, k),
                   chunk->param->name, (double)got, (double)want, r->step);
      }
    }
  }
  for (int p = 0; p < RIG_PARAMS; p++)
    assert_true(held[p] <= rig_numel(p));
  rig_ok(ordo_session_gather_full(r->session, 0, 0), "gather_full");
  const ordo_dtype rounded = r->options.rounded;
  r->options.rounded = 0; /* a scope for export holds full precision */
  for (uint32_t p = 0; p < r->model->n_params; p++)
    compare_param(r, r->model->params[p], "a gather-full scope");
  r->options.rounded = rounded;
  rig_ok(ordo_session_release_full(r->session, 0), "release_full");
}

ordo_status rig_control(rig *r, uint32_t operation, uint32_t unit, int64_t value)
{
  const ordo_control control = ordo_control_make(operation, unit, value);
  return ordo_session_control(r->session, 0, &control);
}

uint64_t rig_calls(const rig *r, const char *axis, uint32_t kind, uint64_t *bytes)
{
  ordo_comm_stats stats = {.struct_size = sizeof stats};
  rig_ok(ordo_session_comm_stats(r->session, axis, &stats), "comm_stats");
  if (bytes != NULL)
    *bytes = stats.bytes[kind];
  return stats.calls[kind];
}

/* ---- a step ---- */

static int unit_runs(const rig_step_spec *spec, uint32_t unit, int micro)
{
  if (spec->skip_units >> unit & 1)
    return 0;
  return !(spec->skip_late >> unit & 1) || micro == spec->backward_only_in - 1;
}

static int is_used(const rig *r, const rig_step_spec *spec, int rank, int param, int micro)
{
  if (micro < 4 && (spec->skip_in[micro] >> param & 1))
    return 0;
  return !(spec->skip_params[rank] >> param & 1) && !(r->options.frozen >> param & 1);
}

static ordo_status forward(rig *r, const rig_step_spec *spec, int micro)
{
  for (uint32_t u = 0; u < RIG_UNITS; u++) {
    if (!unit_runs(spec, u, micro))
      continue;
    if (spec->before_unit != NULL)
      spec->before_unit(spec->ctx, u, 0);
    ordo_status status = ordo_session_pre_forward(r->session, 0, u);
    if (status != ORDO_OK)
      return status;
    compare_unit(r, r->model->units[u], "forward");
    if (spec->in_unit != NULL)
      spec->in_unit(spec->ctx, u, 0);
    status = ordo_session_post_forward(r->session, 0, u);
    if (status != ORDO_OK)
      return status;
  }
  return ORDO_OK;
}

/* Writes or adds this micro-batch's gradient; the embedding's use of a tied weight adds to the head's. */
static ordo_status write_gradient(rig *r, const ordo_param *param, int micro, int tied_write)
{
  float *grad = param->grad;
  const int adds = tied_write || ordo_session_grad_adds(r->session, 0, param->index);
  if (grad == NULL && local_numel(param) > 0)
    fail_msg("rank %d: %s has no gradient storage in backward of step %d", rig_rank, param->name, r->step);
  for (int64_t i = 0; i < local_numel(param); i++)
    grad[i] = (adds ? grad[i] : 0.0f) + gradient(r->part, r->step, micro, (int)param->index, global_of(r, param, i));
  return ordo_session_grad_ready(r->session, 0, param->index);
}

static ordo_status backward(rig *r, const rig_step_spec *spec, int micro)
{
  for (uint32_t u = RIG_UNITS; u-- > 0;) {
    const ordo_unit *unit = r->model->units[u];
    if (!unit_runs(spec, u, micro))
      continue;
    if (spec->before_unit != NULL)
      spec->before_unit(spec->ctx, u, 1);
    ordo_status status = ordo_session_pre_backward(r->session, 0, u);
    if (status != ORDO_OK)
      return status;
    compare_unit(r, unit, "backward");
    if (spec->in_unit != NULL)
      spec->in_unit(spec->ctx, u, 1);
    for (uint32_t p = unit->n_params; p-- > 0 && status == ORDO_OK;) {
      const ordo_param *param = unit->params[p];
      const int second = param->index == 0 && !r->options.untied && unit_runs(spec, RIG_UNITS - 1, micro);
      if (is_used(r, spec, r->part, (int)param->index, micro))
        status = write_gradient(r, param, micro, second);
    }
    if (status == ORDO_OK)
      status = ordo_session_post_backward(r->session, 0, u);
    if (status != ORDO_OK)
      return status;
  }
  return ORDO_OK;
}

/* The sum over ranks and micro-batches of all uses of the storage of `param`, and whether there was any. */
static double summed(const rig *r, const rig_step_spec *spec, int root, int64_t i, int *any)
{
  double sum = 0.0;
  for (int p = 0; p < RIG_PARAMS; p++)
    for (int rank = 0; root_of(r, p) == root && rank < r->parts; rank++)
      for (int micro = 0; micro < spec->n_micro; micro++)
        if (unit_runs(spec, (uint32_t)PARAMS[p].unit, micro) && is_used(r, spec, rank, p, micro)) {
          sum += (double)gradient(rank, r->step, micro, p, i);
          *any = 1;
        }
  return sum;
}

/* What the setting of a divide factor makes of a gradient. */
static double factor_of(const rig_step_spec *spec, int param)
{
  const int concerned = spec->factor_units == 0 || (spec->factor_units >> PARAMS[param].unit & 1);
  return spec->factor > 0.0 && concerned ? spec->factor : 1.0;
}

static void move_reference(rig *r, const rig_step_spec *spec)
{
  double squares = 0.0;
  for (int pass = 0; pass < (r->options.optimizer != NULL ? 1 : 2);
       pass++) { /* the norm first, then the update with its clip coefficient */
    double clip = pass == 1 && r->options.clip > 0.0 ? fmin(1.0, r->options.clip / (r->norm + 1e-6)) : 1.0;
    for (int p = 0; p < RIG_PARAMS; p++) {
      float grads[PERIOD];
      int any = 0;
      for (int i = 0; i < PERIOD; i++)
        grads[i] = (float)(summed(r, spec, p, i, &any) * factor_of(spec, p) / WEIGHT);
      for (int64_t i = 0; root_of(r, p) == p && i < rig_numel(p); i++) {
        const float grad = grads[i % PERIOD];
        if (pass == 0)
          squares += (double)grad * (double)grad;
        if (pass == 0 || !any)
          continue;
        float decay = PARAMS[p].columns > 0 && !r->options.no_decay ? (float)(RATE * DECAY) : 0.0f;
        r->reference[p][i] -= decay * r->reference[p][i];
        r->reference[p][i] -= (float)(RATE * clip) * grad;
      }
    }
    r->norm = sqrt(squares);
  }
}

ordo_status rig_train(rig *r, const rig_step_spec *spec)
{
  r->step++;
  ordo_session_data_part(r->session, &r->part, &r->parts);
  ordo_status status = ordo_session_step_begin(r->session, spec->n_micro, r->part == 0 ? WEIGHT - (double)(r->parts - 1) / 8 : 1.0 / 8);
  for (int micro = 0; status == ORDO_OK && micro < spec->n_micro; micro++) {
    if (spec->before_micro != NULL)
      spec->before_micro(spec->ctx, micro);
    status = ordo_session_micro_begin(r->session);
    if (status == ORDO_OK)
      status = forward(r, spec, micro);
    if (status == ORDO_OK)
      status = backward(r, spec, micro);
    if (status == ORDO_OK)
      status = ordo_session_micro_end(r->session);
  }
  ordo_step_result result = {.struct_size = sizeof result};
  if (status == ORDO_OK && spec->before_micro != NULL)
    spec->before_micro(spec->ctx, spec->n_micro);
  if (status == ORDO_OK)
    status = ordo_session_step_end(r->session, &result);
  if (status != ORDO_OK)
    return status;
  move_reference(r, spec);
  if (!(fabs(result.grad_norm - r->norm) <= 1e-12 * r->norm))
    fail_msg("rank %d: norm %.17g instead of %.17g in step %d", rig_rank, result.grad_norm, r->norm, r->step);
  return ORDO_OK;
}

void rig_evaluate(rig *r)
{
  const rig_step_spec spec = {.n_micro = 1};
  rig_ok(ordo_session_eval_begin(r->session), "eval_begin");
  rig_ok(forward(r, &spec, 0), "forward without gradients");
  rig_ok(ordo_session_eval_end(r->session), "eval_end");
}
