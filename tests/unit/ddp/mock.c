/* mock.c - see mock.h. One lock guards the world; a collective is computed by the rank that arrives last. */
#include "mock.h"

#include "hooks.h"

#include <ordo/half.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern const ordo_plugin ordo_plugin_entry;

struct ordo_request {
  int index;
  const void *send;
  void *recv;
  size_t send_bytes;
};

static void breach(mock_world *world, const char *format, ...)
{
  if (world->breach[0] != '\0')
    return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(world->breach, sizeof world->breach, format, arguments);
  va_end(arguments);
  world->dead = 1;
  pthread_cond_broadcast(&world->change);
}

static void event(mock_rank *rank, char kind, int index)
{
  if (rank->n_events < MAX_EVENTS)
    rank->events[rank->n_events++] = (mock_event){kind, index};
}

/* ---- communicator ---- */

static double load(const unsigned char *data, int64_t i, ordo_dtype dtype)
{
  switch (dtype) {
  case ORDO_F32:
    return ((const float *)(const void *)data)[i];
  case ORDO_F64:
    return ((const double *)(const void *)data)[i];
  case ORDO_BF16:
    return ordo_f32_from_bf16(((const uint16_t *)(const void *)data)[i]);
  case ORDO_F16:
    return ordo_f32_from_f16(((const uint16_t *)(const void *)data)[i]);
  case ORDO_I32:
    return ((const int32_t *)(const void *)data)[i];
  default:
    return data[i];
  }
}

static void store(unsigned char *data, int64_t i, ordo_dtype dtype, double value)
{
  switch (dtype) {
  case ORDO_F32:
    ((float *)(void *)data)[i] = (float)value;
    break;
  case ORDO_F64:
    ((double *)(void *)data)[i] = value;
    break;
  case ORDO_BF16:
    ((uint16_t *)(void *)data)[i] = ordo_bf16_from_f32((float)value);
    break;
  case ORDO_F16:
    ((uint16_t *)(void *)data)[i] = ordo_f16_from_f32((float)value);
    break;
  case ORDO_I32:
    ((int32_t *)(void *)data)[i] = (int32_t)value;
    break;
  default:
    data[i] = (unsigned char)value;
  }
}

static void compute(mock_world *world, mock_collective *c)
{
  const ordo_collective *d = &c->desc;
  size_t bytes = (size_t)d->count * ordo_dtype_size(d->dtype);
  int single = d->dtype != ORDO_F64;
  double factor = d->factor != 0.0 ? d->factor : 1.0;
  c->result = calloc(1, bytes * (size_t)world->size + 1);
  if (d->kind == ORDO_ALL_GATHER)
    for (int r = 0; r < world->size; r++)
      memcpy(c->result + (size_t)r * bytes, c->sent[r], bytes);
  else if (d->kind == ORDO_BROADCAST)
    memcpy(c->result, c->sent[d->root], bytes);
  else if (d->kind == ORDO_ALL_REDUCE)
    for (int64_t i = 0; i < d->count; i++) {
      double sum = d->op == ORDO_MAX ? -INFINITY : 0.0;
      for (int r = 0; r < world->size; r++) {
        double value = load(c->sent[r], i, d->dtype);
        if (d->op == ORDO_MAX)
          sum = value > sum ? value : sum;
        else if (d->flags & ORDO_COMM_ORDERED)
          sum = single ? (double)((float)sum + (float)value) : sum + value;
        else
          sum = single ? (double)((float)sum + (float)value * (float)factor) : sum + value * factor;
      }
      store(c->result, i, d->dtype, d->op == ORDO_SUM && (d->flags & ORDO_COMM_ORDERED) ? (double)((float)sum * (float)factor) : sum);
    }
  else
    breach(world, "collective %u is not part of the mock", d->kind);
}

static ordo_status comm_start(void *ctx, const ordo_collective *desc, ordo_request **request)
{
  mock_rank *rank = ctx;
  mock_world *world = rank->world;
  size_t bytes = (size_t)desc->count * ordo_dtype_size(desc->dtype);
  pthread_mutex_lock(&world->lock);
  int index = rank->started++;
  if (index >= MAX_COLLECTIVES) {
    breach(world, "too many collectives for the mock");
    pthread_mutex_unlock(&world->lock);
    return ORDO_E_INTERNAL;
  }
  mock_collective *c = &world->collectives[index];
  if (c->arrived == 0) {
    c->desc = *desc;
    snprintf(c->label, sizeof c->label, "%s", desc->label != NULL ? desc->label : "");
    world->n_collectives = index + 1;
  } else if (c->desc.kind != desc->kind || c->desc.count != desc->count || c->desc.dtype != desc->dtype || c->desc.op != desc->op ||
             c->desc.factor != desc->factor || c->desc.flags != desc->flags || c->desc.root != desc->root)
    breach(world, "collective %d: rank %d starts kind %u of %lld, another rank kind %u of %lld", index, rank->rank, desc->kind,
           (long long)desc->count, c->desc.kind, (long long)c->desc.count);
  c->sent[rank->rank] = malloc(bytes + 1);
  memcpy(c->sent[rank->rank], desc->send, bytes);
  if (desc->kind == ORDO_ALL_REDUCE)
    rank->all_reduce_bytes += (int64_t)bytes;
  if (++c->arrived == world->size) {
    compute(world, c);
    pthread_cond_broadcast(&world->change);
  }
  event(rank, 's', index);
  rank->busy += 0.25;
  rank->open_requests++;
  pthread_mutex_unlock(&world->lock);
  *request = malloc(sizeof **request);
  **request = (ordo_request){index, desc->send, desc->recv, bytes};
  return ORDO_OK;
}

static ordo_status comm_wait(void *ctx, ordo_request *request)
{
  mock_rank *rank = ctx;
  mock_world *world = rank->world;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 20;
  pthread_mutex_lock(&world->lock);
  mock_collective *c = &world->collectives[request->index];
  int late = 0;
  while (c->arrived < world->size && !world->dead && !late)
    late = pthread_cond_timedwait(&world->change, &world->lock, &until) != 0;
  if (late)
    breach(world, "rank %d waits for collective %d in vain", rank->rank, request->index);
  if (c->arrived == world->size && c->result != NULL) {
    if (memcmp(request->send, c->sent[rank->rank], request->send_bytes) != 0)
      breach(world, "rank %d changed the buffer of collective %d in flight", rank->rank, request->index);
    size_t pieces = c->desc.kind == ORDO_ALL_GATHER ? (size_t)world->size : 1;
    memcpy(request->recv, c->result, request->send_bytes * pieces);
  }
  event(rank, 'w', request->index);
  rank->busy += 0.25;
  rank->open_requests--;
  int dead = world->dead;
  pthread_mutex_unlock(&world->lock);
  free(request);
  return dead ? ORDO_E_TIMEOUT : ORDO_OK;
}

static ordo_status comm_alloc(void *ctx, size_t bytes, void **memory)
{
  mock_rank *rank = ctx;
  *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  memset(*memory, 0, bytes);
  rank->open_windows++;
  return ORDO_OK;
}

static ordo_status comm_free(void *ctx, void *memory)
{
  ((mock_rank *)ctx)->open_windows--;
  free(memory);
  return ORDO_OK;
}

static void comm_stats(void *ctx, ordo_comm_stats *stats)
{
  stats->busy_seconds = ((const mock_rank *)ctx)->busy;
}

/* ---- host and job ---- */

static ordo_status host_fail(void *ctx, ordo_status status, const char *text, const char *hint)
{
  mock_rank *rank = ctx;
  rank->failed = status;
  snprintf(rank->error, sizeof rank->error, "%s", text);
  snprintf(rank->hint, sizeof rank->hint, "%s", hint != NULL ? hint : "");
  return status;
}

static const char *job_option(void *ctx, const char *key)
{
  mock_rank *rank = ctx;
  for (int i = rank->n_options; i-- > 0;)
    if (strcmp(rank->options[i][0], key) == 0)
      return rank->options[i][1];
  return NULL;
}

static ordo_status job_option_int(void *ctx, const char *key, int64_t *value)
{
  const char *text = job_option(ctx, key);
  if (text == NULL)
    return ORDO_E_NOT_FOUND;
  *value = strtoll(text, NULL, 10);
  return ORDO_OK;
}

static void *job_alloc(void *ctx, size_t bytes, uint32_t tag)
{
  (void)tag;
  ((mock_rank *)ctx)->open_blocks++;
  return calloc(1, bytes);
}

static void job_free(void *ctx, void *memory)
{
  if (memory != NULL)
    ((mock_rank *)ctx)->open_blocks--;
  free(memory);
}

static ordo_status job_bind(void *ctx, const ordo_param *param, void *data, void *grad)
{
  mock_rank *rank = ctx;
  ordo_param *p = &rank->params[param->index];
  event(rank, 'b', (int)param->index);
  p->data = data;
  p->grad = grad;
  p->leaf->data = data;
  p->leaf->grad = grad;
  p->leaf->grad_state = ORDO_GRAD_NONE;
  return ORDO_OK;
}

static ordo_status job_set_grad(void *ctx, ordo_leaf *leaf, void *grad)
{
  (void)ctx;
  leaf->grad = grad;
  return ORDO_OK;
}

static ordo_status job_mark_grad(void *ctx, ordo_leaf *leaf, uint32_t state)
{
  (void)ctx;
  leaf->grad_state = state;
  return ORDO_OK;
}

static ordo_status job_mark_reduced(void *ctx, ordo_leaf *leaf, double divided_by)
{
  mock_rank *rank = ctx;
  rank->reduced[leaf->index]++;
  rank->divided_by[leaf->index] = divided_by;
  return ORDO_OK;
}

static const ordo_comm_hook *job_comm_hook(void *ctx, void **instance)
{
  mock_rank *rank = ctx;
  *instance = rank->plugin_hook_instance;
  return rank->plugin_hook;
}

static void job_metric(void *ctx, const char *name, double value)
{
  mock_rank *rank = ctx;
  rank->n_metrics++;
  if (strcmp(name, "overlap") == 0)
    rank->overlap = value;
}

static double job_now(void *ctx)
{
  mock_rank *rank = ctx;
  return rank->clock += 1.0;
}

/* ---- world ---- */

static void init_tables(mock_rank *rank)
{
  rank->host = (ordo_host){.struct_size = sizeof rank->host, .ctx = rank, .fail = host_fail};
  rank->comm = (ordo_comm){.struct_size = sizeof rank->comm,
                           .ctx = rank,
                           .rank = rank->rank,
                           .size = rank->world->size,
                           .start = comm_start,
                           .wait = comm_wait,
                           .alloc = comm_alloc,
                           .free = comm_free,
                           .stats = comm_stats};
  rank->axis = (ordo_axis){sizeof rank->axis, "ddp", 0, ORDO_AXIS_DATA, rank->world->size, rank->rank, &rank->comm};
  rank->axes[0] = &rank->axis;
  rank->mesh = (ordo_mesh){sizeof rank->mesh, 1, rank->rank, rank->world->size, 0, rank->axes, &rank->comm, &rank->comm};
  rank->job = (ordo_job){.struct_size = sizeof rank->job,
                         .ctx = rank,
                         .host = &rank->host,
                         .mesh = &rank->mesh,
                         .axis = &rank->axis,
                         .model = &rank->model,
                         .option = job_option,
                         .option_int = job_option_int,
                         .alloc = job_alloc,
                         .free = job_free,
                         .bind = job_bind,
                         .set_grad = job_set_grad,
                         .mark_grad = job_mark_grad,
                         .mark_reduced = job_mark_reduced,
                         .comm_hook = job_comm_hook,
                         .metric = job_metric,
                         .now = job_now};
}

static void init_model(mock_rank *rank, int n, const int64_t *numels)
{
  static const char *const names[] = {"p0",  "p1",  "p2",  "p3",  "p4",  "p5",  "p6",  "p7",  "p8",  "p9",  "p10", "p11",
                                      "p12", "p13", "p14", "p15", "p16", "p17", "p18", "p19", "p20", "p21", "p22", "p23",
                                      "p24", "p25", "p26", "p27", "p28", "p29", "p30", "p31", "p32", "p33", "p34", "p35",
                                      "p36", "p37", "p38", "p39", "p40", "p41", "p42", "p43", "p44", "p45", "p46", "p47"};
  rank->placement = (ordo_placement){.struct_size = sizeof rank->placement, .data = {ORDO_REPLICATE}, .grad_partial = {1}};
  for (int i = 0; i < n; i++) {
    ordo_param *p = &rank->params[i];
    ordo_leaf *leaf = &rank->leaves[i];
    rank->own_grads[i] = calloc((size_t)numels[i] + 1, sizeof(float));
    *p = (ordo_param){.struct_size = sizeof *p,
                      .name = names[i],
                      .index = (uint32_t)i,
                      .dtype = ORDO_F32,
                      .flags = ORDO_PARAM_REQUIRES_GRAD,
                      .tie_group = -1,
                      .ndim = 1,
                      .shape = {numels[i]},
                      .local_shape = {numels[i]},
                      .numel = numels[i],
                      .data = rank->own_grads[i], /* any address will do: nobody here reads weights */
                      .grad = rank->own_grads[i],
                      .leaf = leaf};
    rank->leaf_params[i][0] = p;
    *leaf = (ordo_leaf){.struct_size = sizeof *leaf,
                        .name = names[i],
                        .index = (uint32_t)i,
                        .state = ORDO_LEAF_LIVE,
                        .flags = ORDO_PARAM_REQUIRES_GRAD,
                        .dtype = ORDO_F32,
                        .grad_dtype = ORDO_F32,
                        .data = p->data,
                        .grad = p->grad,
                        .numel = numels[i],
                        .placement = &rank->placement,
                        .params = rank->leaf_params[i],
                        .n_params = 1};
    rank->param_list[i] = p;
    rank->leaf_list[i] = leaf;
  }
  rank->unit = (ordo_unit){sizeof rank->unit, "unit", "Block", 0, (uint32_t)n, rank->param_list};
  rank->model = (ordo_model){.struct_size = sizeof rank->model,
                             .name = "model",
                             .trained = 1,
                             .n_params = (uint32_t)n,
                             .n_leaves = (uint32_t)n,
                             .params = rank->param_list,
                             .leaves = rank->leaf_list};
}

void mock_init(mock_world *world, mock_rank *ranks, int size, int n_params, const int64_t *numels)
{
  memset(world, 0, sizeof *world);
  world->size = size;
  pthread_mutex_init(&world->lock, NULL);
  pthread_cond_init(&world->change, NULL);
  for (int r = 0; r < size; r++) {
    memset(&ranks[r], 0, sizeof ranks[r]);
    ranks[r].world = world;
    ranks[r].rank = r;
    init_tables(&ranks[r]);
    init_model(&ranks[r], n_params, numels);
    ranks[r].strategy = ordo_plugin_entry.get_extension(ORDO_STRATEGY_EXTENSION);
  }
  mock_option(ranks, size, "bucket_cap", "26214400");
  mock_option(ranks, size, "first_bucket", "1048576");
  mock_option(ranks, size, "static_graph", "0");
  mock_option(ranks, size, "find_unused_parameters", "0");
  mock_option(ranks, size, "reduce_nan_check", "0");
  mock_option(ranks, size, "stats_interval", "100");
}

void mock_clear(mock_world *world, mock_rank *ranks)
{
  for (int i = 0; i < world->n_collectives; i++) {
    for (int r = 0; r < world->size; r++)
      free(world->collectives[i].sent[r]);
    free(world->collectives[i].result);
  }
  for (int r = 0; r < world->size; r++)
    for (int i = 0; i < MAX_PARAMS; i++)
      free(ranks[r].own_grads[i]);
  pthread_mutex_destroy(&world->lock);
  pthread_cond_destroy(&world->change);
}

void mock_option(mock_rank *ranks, int size, const char *key, const char *value)
{
  for (int r = 0; r < size; r++) {
    ranks[r].options[ranks[r].n_options][0] = key;
    ranks[r].options[ranks[r].n_options++][1] = value;
  }
}

void mock_tie(mock_rank *rank, int a, int b)
{
  rank->params[a].tie_group = rank->params[b].tie_group = 0;
  rank->params[b].leaf = &rank->leaves[a];
  rank->params[b].data = rank->params[a].data;
  rank->params[b].grad = rank->params[a].grad;
  rank->leaf_params[a][1] = &rank->params[b];
  rank->leaves[a].n_params = 2;
  rank->model.n_leaves--; /* b is the last leaf */
}

struct thread_argument {
  mock_rank *rank;
  void (*body)(mock_rank *, void *);
  void *arg;
};

static void *thread_main(void *argument)
{
  struct thread_argument *a = argument;
  a->body(a->rank, a->arg);
  return NULL;
}

void mock_run(mock_world *world, mock_rank *ranks, void (*body)(mock_rank *rank, void *arg), void *arg)
{
  pthread_t threads[MAX_RANKS];
  struct thread_argument arguments[MAX_RANKS];
  for (int r = 0; r < world->size; r++) {
    arguments[r] = (struct thread_argument){&ranks[r], body, arg};
    pthread_create(&threads[r], NULL, thread_main, &arguments[r]);
  }
  for (int r = 0; r < world->size; r++)
    pthread_join(threads[r], NULL);
}

float mock_gradient(int rank, int step, int micro, int p, int64_t i)
{
  return (float)(rank + 1) + 8.0f * (float)p + 16.0f * (float)micro + (float)step + (float)(i % 3);
}

void mock_wrap(mock_rank *rank, void *arg)
{
  ordo_status *status = arg;
  status[rank->rank] = rank->strategy->create(&rank->job, &rank->instance);
  if (status[rank->rank] == ORDO_OK)
    status[rank->rank] = rank->strategy->validate(rank->instance);
  if (status[rank->rank] == ORDO_OK)
    status[rank->rank] = rank->strategy->wrap(rank->instance);
}

void mock_destroy(mock_rank *rank, void *arg)
{
  (void)arg;
  if (rank->instance != NULL)
    rank->strategy->destroy(rank->instance);
  rank->instance = NULL;
}

/* One param's share of backward: writes or adds its gradient and reports it. */
static ordo_status backward_param(mock_rank *rank, const mock_step *step, int micro, int index)
{
  ordo_param *param = &rank->params[index];
  float *grad = param->grad;
  if ((param->flags & ORDO_PARAM_REQUIRES_GRAD) == 0)
    return ORDO_OK;
  int fresh = param->leaf->grad_state == ORDO_GRAD_NONE;
  for (int64_t i = 0; i < param->numel; i++)
    grad[i] = (fresh ? 0.0f : grad[i]) + mock_gradient(rank->rank, step->step, micro, index, i);
  if ((step->poison[rank->rank] >> index) & 1)
    grad[param->numel - 1] = INFINITY;
  param->leaf->grad_state = ORDO_GRAD_HELD;
  event(rank, 'r', index);
  return rank->strategy->grad_ready(rank->instance, param);
}

static ordo_status train(mock_rank *rank, mock_step *step)
{
  const ordo_strategy *s = rank->strategy;
  ordo_step_info info = {sizeof info, step->step, 0, step->n_micro, 0, 0, step->divide_factor};
  int n = (int)rank->model.n_params;
  for (int i = 0; i < (int)rank->model.n_leaves; i++)
    rank->leaves[i].grad_state = ORDO_GRAD_NONE;
  ordo_status status = s->step_begin(rank->instance, &info);
  for (int i = 0; i < (int)rank->model.n_leaves; i++) {
    if (rank->leaves[i].grad_dtype == ORDO_F32 && rank->leaves[i].grad != NULL)
      for (int64_t k = 0; k < rank->leaves[i].numel; k++)
        ((float *)rank->leaves[i].grad)[k] = NAN;
    rank->reduced[i] = 0;
  }
  for (int micro = 0; status == ORDO_OK && micro < step->n_micro; micro++) {
    info.micro_batch = micro;
    info.is_last_micro_batch = micro == step->n_micro - 1;
    uint64_t skip = step->skip[rank->rank] | (info.is_last_micro_batch ? step->skip_in_last[rank->rank] : 0);
    status = s->micro_begin(rank->instance, &info);
    if (status == ORDO_OK)
      status = s->pre_backward(rank->instance, &rank->unit);
    for (int k = 0; status == ORDO_OK && k < n; k++) {
      int p = step->order != NULL ? step->order[k] : n - 1 - k;
      if (((skip >> p) & 1) == 0)
        status = backward_param(rank, step, micro, p);
    }
    if (status == ORDO_OK)
      status = s->micro_end(rank->instance, &info);
  }
  return status == ORDO_OK ? s->reduce(rank->instance, &info) : status;
}

void mock_train(mock_rank *rank, void *arg)
{
  mock_step *step = arg;
  step->status[rank->rank] = train(rank, step);
}
