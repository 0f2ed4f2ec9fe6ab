/* run.c - one case on one provider. The product's embedder does the work; only what a test needs on top is here: masked targets made for a
 * rank count, and a source of weights that differs by rank. */
#include "parity.h"

#include "comm_tap.h"
#include "random.h"
#include "sample.h"
#include "save.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct shifted {
  ordo_weights base;
  ordo_weights *inner;
  float shift;
} shifted;

static ordo_status shifted_read(ordo_weights *self, const char *name, int64_t first, int64_t count, float *dst, ordo_problems *problems)
{
  const shifted *s = (const shifted *)self;
  ordo_status status = s->inner->read(s->inner, name, first, count, dst, problems);
  for (int64_t i = 0; i < count; i++)
    dst[i] += s->shift;
  return status;
}

/* Sequences of a step on `ranks` ranks: 8, which 3, 5 and 6 ranks share unevenly; with accumulation 4 for each rank but the last, which has
 * 3 and nothing to do in the last micro-batch. */
static int64_t batch_of(const parity_case *c, int ranks)
{
  return c->accumulate ? 4 * ranks - 1 : 8;
}

static int is_masked(const parity_case *c, int64_t sequence, int64_t position, int data_ranks)
{
  int64_t batch = batch_of(c, data_ranks), in_batch = sequence % batch;
  if (c->mask == PARITY_ALL)
    return 0;
  if (c->mask == PARITY_EMPTY_RANK && in_batch >= ordo_data_split(batch, 0, data_ranks - 1, data_ranks).first)
    return 1;
  return ordo_random_uniform(7, (uint64_t)(sequence * 4096 + position)) < 0.05 + 0.3 * ordo_random_uniform(8, (uint64_t)sequence);
}

/* Targets of all sequences as a file, which is how the product takes them. */
static ordo_status mask_targets(const parity_case *c, ordo_data *data, int data_ranks, int64_t vocab, ordo_problems *problems)
{
  g_autofree char *path = NULL;
  size_t n = (size_t)(data->n_sequences * data->seq_len);
  g_autofree int32_t *targets = g_new(int32_t, n);
  int fd = g_file_open_tmp("ordo-parity-XXXXXX", &path, NULL);
  if (fd < 0)
    return ordo_problems_push(problems, ORDO_E_IO, "E-FILE-IO", "temporary file", "", "", "cannot create a file");
  close(fd);
  for (int64_t s = 0; s < data->n_sequences; s++) {
    ordo_tokens_read(data->tokens, s * data->seq_len + 1, data->seq_len, targets + s * data->seq_len);
    for (int64_t t = 0; t < data->seq_len; t++)
      if (is_masked(c, s, t, data_ranks))
        targets[s * data->seq_len + t] = -100;
  }
  gboolean written = g_file_set_contents(path, (const char *)targets, (gssize)(n * sizeof *targets), NULL);
  ordo_status status = written ? ordo_data_set_targets(data, path, vocab, problems) : ORDO_E_IO;
  unlink(path);
  return status;
}

static ordo_status collect_weights(ordo_embed *embed, parity_trace *trace)
{
  const ordo_model *model = ordo_embed_model(embed);
  ordo_status status = ORDO_OK;
  for (uint32_t p = 0; p < model->n_params; p++)
    trace->n_weights += ordo_save_has_param(model, model->params[p]) ? model->params[p]->numel : 0;
  trace->weights = g_new(float, (gsize)trace->n_weights);
  for (int64_t p = 0, at = 0; p < model->n_params && status == ORDO_OK; p++)
    if (ordo_save_has_param(model, model->params[p])) {
      status = ordo_embed_gather(embed, model->params[p], ORDO_GATHER_WEIGHT, trace->weights + at);
      at += model->params[p]->numel;
    }
  return status;
}

/* Evaluation and generation of the trained model, with the optimizer there. */
static ordo_status use(ordo_embed *embed, const ordo_data *data, parity_trace *trace)
{
  const ordo_sampling greedy = {0.0, 0, 1.0, 1, 0};
  const int32_t prompt[2] = {3, 5};
  g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(int32_t));
  ordo_loss_sum sum = {0};
  ordo_status status = ordo_embed_evaluate(embed, data, 3, NULL, &sum);
  trace->evaluated = sum.sum / sum.count;
  g_array_append_vals(ids, prompt, 2);
  if (status == ORDO_OK)
    status = ordo_generate(embed, ids, PARITY_TEXT - 1, &greedy, -1, NULL, NULL);
  if (status == ORDO_OK && ids->len == PARITY_TEXT)
    memcpy(trace->text, ids->data, sizeof trace->text);
  return status;
}

static int steps_of(const parity_case *c)
{
  return c->eval_only ? 0 : c->steps > 0 ? c->steps : PARITY_STEPS;
}

static ordo_status train(ordo_embed *embed, const ordo_data *data, int64_t batch, int steps, parity_trace *trace)
{
  for (int step = 0; step < steps; step++) {
    ordo_step_outcome outcome;
    ordo_status status = ordo_embed_step(embed, data, step * batch, 0, NULL, NULL, &outcome);
    if (status != ORDO_OK)
      return status;
    trace->loss[step] = outcome.loss;
    trace->norm[step] = outcome.result.grad_norm;
    trace->tokens[step] = outcome.result.weight;
  }
  ordo_status status = use(embed, data, trace);
  return status == ORDO_OK ? collect_weights(embed, trace) : status;
}

/* A clock of its own for each rank, reproducible: 0.01 to 100 ms, every decade as often. Evenly spread milliseconds would leave out what is
 * as short as a message, and the tables would sleep for most of their time. */
typedef struct delays {
  uint64_t key;
  uint64_t n;
} delays;

static void hold_back(delays *d)
{
  g_usleep((gulong)pow(10.0, 1.0 + 4.0 * ordo_random_uniform(d->key, d->n++)));
}

static uint64_t before_collective(void *ctx, const char *comm, const ordo_comm *ranks, const ordo_collective *c)
{
  (void)comm, (void)ranks, (void)c;
  hold_back(ctx);
  return 0;
}

static void after_collective(void *ctx, uint64_t id)
{
  (void)ctx, (void)id;
}

static void before_update(void *ctx, ordo_activity activity, const char *unit, ordo_edge edge)
{
  (void)unit;
  if (activity == ORDO_ACTIVITY_OPTIMIZER && edge == ORDO_EDGE_BEGIN)
    hold_back(ctx);
}

static int has_step(const ordo_plan *plan, ordo_step step)
{
  for (size_t i = 0; i < ordo_plan_n_nodes(plan); i++)
    if (ordo_plan_node_at(plan, i)->step == step)
      return 1;
  return 0;
}

static ordo_status run_plan(ordo_context *context, const ordo_comm_provider *comm, const ordo_plan *plan, const parity_case *c,
                            const parity_source *source, const ordo_data *data, int64_t batch, parity_trace *trace)
{
  shifted weights = {*source->weights, source->weights, comm && comm->rank > 0 && c->different_weights ? 0.01f * (float)comm->rank : 0.0f};
  ordo_embed_options options = {.context = context,
                                .plan = plan,
                                .comm = comm,
                                .weights = &weights.base,
                                .train = !c->eval_only,
                                .batch = batch,
                                .seq_len = data->seq_len};
  ordo_embed *embed = NULL;
  ordo_comm_provider *slow = NULL;
  delays held = {.key = 1000 + (uint64_t)(comm ? comm->rank : 0)};
  const ordo_comm_observer observer = {&held, before_collective, after_collective};
  weights.base.read = shifted_read;
  weights.base.check = NULL; /* the source was checked by its own tests; its functions expect their own object */
  options.optimizer = (ordo_leaf_optimizer_options){c->is_sgd, c->lr, 0.9, 0.95, 1e-8, c->no_decay ? 0.0 : 0.1, 0.9};
  options.schedule = (struct schedule){SCHEDULE_CONSTANT, c->lr, 1.0, 0, PARITY_STEPS};
  options.max_grad_norm = c->clip;
  options.ordered = (uint32_t)c->ordered;
  options.seed = 1;
  options.micro_batch = c->accumulate ? (comm && comm->size > 1 ? 1 : (batch + 3) / 4) : 0;
  options.checkpointing = c->checkpointing && comm;
  if (c->delays && comm) {
    options.comm = slow = ordo_comm_tap_new(comm, &observer);
    options.activity = before_update;
    options.activity_ctx = &held;
  }
  ordo_status status = ordo_embed_create(&options, &embed);
  if (status == ORDO_OK)
    status = train(embed, data, batch, steps_of(c), trace);
  ordo_embed_destroy(embed);
  ordo_comm_provider_destroy(slow);
  return status;
}

ordo_status parity_run(ordo_context *context, const ordo_comm_provider *comm, const char *strategy, const parity_case *c,
                       const parity_source *source, int data_ranks, parity_trace *trace, const char **skipped)
{
  ordo_plan_request request = {.struct_size = sizeof request, .strategy = strategy, .ranks = comm ? comm->size : 1};
  int64_t seq_len = c->accumulate ? MIN(source->seq_len, 16) : source->seq_len; /* more sequences of the same text */
  ordo_plan *plan = NULL;
  ordo_data data;
  request.flags = c->eval_only ? (uint32_t)ORDO_PLAN_EVAL : 0u;
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  memset(trace, 0, sizeof *trace);
  ordo_status status = ordo_data_view(&data, source->tokens, 0, ordo_tokens_count(source->tokens), seq_len, source->name, &problems);
  if (status == ORDO_OK)
    status = mask_targets(c, &data, data_ranks, source->weights->config.vocab, &problems);
  if (status != ORDO_OK)
    return ordo_problems_to_context(&problems, context, status);
  status = ordo_plan_create(context, &request, &plan);
  if (status == ORDO_OK && skipped && c->different_weights && !has_step(plan, ORDO_STEP_WEIGHTS_SYNC) &&
      !strstr(strategy, "sync_module_states"))
    *skipped = "the plan has no weights.sync: every rank loads its shards itself";
  else if (status == ORDO_OK)
    status = run_plan(context, comm, plan, c, source, &data, batch_of(c, data_ranks), trace);
  ordo_plan_destroy(plan);
  ordo_data_clear(&data);
  return status;
}

void parity_trace_clear(parity_trace *trace)
{
  g_clear_pointer(&trace->weights, g_free);
}

const char *parity_gate_name(int kind)
{
  static const char *const names[] = {"loss", "gradient norm", "update of the model", "one weight", "loss of an evaluation", "exact"};
  return names[kind];
}

double parity_gate(const parity_case *c, int kind)
{
  const double sgd[] = {1e-5, 2e-5, 2e-4, 2e-5, 1e-5, 0.0}, adamw[] = {1e-5, 2e-4, 1e-3, c->lr, 1e-5, 0.0};
  return c->is_sgd ? sgd[kind] : adamw[kind];
}

void parity_spread_add(parity_spread *spread, int kind, double value, double gate, const char *what)
{
  double units = value <= 0.0 ? 0.0 : isfinite(value) && gate > 0.0 ? value / gate : INFINITY; /* NaN is not <= 0 */
  spread->units[kind] = MAX(spread->units[kind], units);
  if (units <= spread->worst && spread->what)
    return;
  spread->worst = units;
  spread->what = what;
}

static void add(const parity_case *c, parity_spread *spread, int kind, double value)
{
  parity_spread_add(spread, kind, value, parity_gate(c, kind), parity_gate_name(kind));
}

static double relative(double value, double reference)
{
  return fabs(value - reference) / fabs(reference);
}

static void compare_weights(const parity_case *c, const parity_source *source, const parity_trace *one, const parity_trace *many,
                            parity_spread *spread)
{
  double wrong = 0.0, moved = 0.0, largest = 0.0;
  g_auto(ordo_problems) problems;
  struct llama *model = llama_create(&source->weights->config, NULL, (char[200]){0}, 200);
  ordo_problems_init(&problems);
  for (int64_t p = 0, at = 0; p < llama_n_params(model) && at < one->n_weights; p++) {
    const struct llama_param *param = llama_param_at(model, (uint32_t)p);
    g_autofree float *start = g_new(float, (gsize)param->numel);
    source->weights->read(source->weights, param->name, 0, param->numel, start, &problems);
    for (int64_t i = 0; i < param->numel; i++, at++) {
      double difference = (double)many->weights[at] - (double)one->weights[at], step = (double)one->weights[at] - (double)start[i];
      wrong += difference * difference;
      moved += step * step;
      largest = fabs(difference) <= largest ? largest : fabs(difference); /* keeps a NaN */
    }
  }
  llama_destroy(model);
  if (c->eval_only) { /* nothing moves, so nothing may differ */
    parity_spread_add(spread, PARITY_EXACT, largest, 0.0, "a weight");
    return;
  }
  add(c, spread, PARITY_UPDATE, sqrt(wrong / moved));
  add(c, spread, PARITY_WEIGHT, largest);
}

parity_spread parity_compare(const parity_case *c, const parity_source *source, const parity_trace *one, const parity_trace *many)
{
  parity_spread spread = {0};
  for (int s = 0; s < steps_of(c); s++) {
    add(c, &spread, PARITY_LOSS, relative(many->loss[s], one->loss[s]));
    add(c, &spread, PARITY_NORM, relative(many->norm[s], one->norm[s]));
    parity_spread_add(&spread, PARITY_EXACT, fabs(many->tokens[s] - one->tokens[s]), 0.0, "counted tokens");
  }
  add(c, &spread, PARITY_EVALUATION, relative(many->evaluated, one->evaluated));
  parity_spread_add(&spread, PARITY_EXACT, memcmp(many->text, one->text, sizeof one->text) != 0, 0.0, "a generated token");
  compare_weights(c, source, one, many, &spread);
  return spread;
}
