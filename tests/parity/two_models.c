/* two_models.c - `mpirun -n N two_models --strategy S`: direct preference optimisation, a trained policy beside a frozen reference model in
 * one session, on N ranks against one rank. An embedder of its own: it uses the trainer's model and optimizer, not its loop.
 *
 * The loss of a pair (Rafailov et al., "Direct Preference Optimization", equation 7) is -log s(z) with the logistic function s and
 *   z = beta ((log p(chosen) - log p(rejected)) - (log r(chosen) - log r(rejected)))      p the policy, r the reference
 * so d loss / d nll(chosen) = beta s(-z) and d loss / d nll(rejected) = -beta s(-z): each sequence is a micro-batch with a factor of its
 * own. A pair's z is known before: the policy is evaluated between steps, the reference runs inside the first micro-batch.
 */
#include "blas_core.h"
#include "leaf_optimizer.h"
#include "llama.h"
#include "random.h"
#include "weights.h"

#include <math.h>
#include <mpi.h>
#include <ordo/mpi.h>
#include <ordo/ordo.h>
#include <stdio.h>
#include <string.h>

enum { POLICY, REFERENCE, N_MODELS, PAIRS = 6, SEQ = 12, STEPS = 6, CHOSEN = 0, REJECTED = 1 };

#define BETA 0.5

static const struct llama_config config = {.vocab = 61,
                                           .hidden = 30,
                                           .intermediate = 41,
                                           .layers = 3,
                                           .heads = 3,
                                           .kv_heads = 1,
                                           .head_dim = 10,
                                           .max_positions = SEQ,
                                           .rms_eps = 1e-5,
                                           .rope_theta = 10000.0,
                                           .tied = 1};

typedef struct job job;

typedef struct side { /* one of the two models */
  job *job;
  uint32_t index;
  struct llama *llama;
  ordo_weights *weights;
} side;

struct job {
  ordo_context *context;
  ordo_session *session;
  side sides[N_MODELS];
  ordo_leaf_optimizer_options optimizer;
  int optimizers; /* made */
  int32_t part;   /* this rank's pairs are part of parts */
  int32_t parts;
};

typedef struct result {
  double loss[STEPS];
  double norm[STEPS];
  float *weights[N_MODELS]; /* all parameters one after the other, after the last step */
  int64_t n_weights;
} result;

/* ---- the embedder ---- */

static ordo_status model_build(void *ctx, ordo_session *session, uint32_t model, ordo_model_builder *builder)
{
  const struct llama *llama = ((job *)ctx)->sides[model].llama;
  ordo_status status = ORDO_OK;
  (void)session;
  for (uint32_t u = 0; status == ORDO_OK && u < llama_n_units(llama); u++) {
    const struct llama_unit *unit = llama_unit_at(llama, u);
    status = ordo_model_builder_unit(builder, unit->name, unit->class_name, NULL);
    for (uint32_t p = unit->first_param; status == ORDO_OK && p < unit->first_param + unit->n_params; p++) {
      const struct llama_param *param = llama_param_at(llama, p);
      ordo_param_desc desc = {.struct_size = sizeof desc,
                              .name = param->name,
                              .dtype = ORDO_F32,
                              .flags = model == POLICY ? ORDO_PARAM_REQUIRES_GRAD : 0u,
                              .tie_group = param->tie_group,
                              .ndim = param->ndim};
      memcpy(desc.shape, param->shape, param->ndim * sizeof *param->shape);
      status = ordo_model_builder_param(builder, &desc, NULL);
    }
  }
  return status;
}

static ordo_status weights_read(void *ctx, const ordo_model *model, const ordo_chunk *chunk, float *dst)
{
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  return ordo_weights_read_chunk(((job *)ctx)->sides[model->index].weights, chunk, dst, &problems);
}

static ordo_status bind(void *ctx, const ordo_model *model, const ordo_param *param, void *data, void *grad)
{
  llama_bind(((job *)ctx)->sides[model->index].llama, param->index, data, grad);
  return ORDO_OK;
}

static ordo_status optimizer_create(void *ctx, const ordo_model *model, ordo_optimizer *optimizer)
{
  job *j = ctx;
  j->optimizers++;
  return ordo_leaf_optimizer_create(j->context, j->session, &j->optimizer, model, optimizer);
}

static int pre_forward(void *ctx, uint32_t unit)
{
  const side *s = ctx;
  return ordo_session_pre_forward(s->job->session, s->index, unit);
}

static int post_forward(void *ctx, uint32_t unit)
{
  const side *s = ctx;
  return ordo_session_post_forward(s->job->session, s->index, unit);
}

static int pre_backward(void *ctx, uint32_t unit)
{
  const side *s = ctx;
  return ordo_session_pre_backward(s->job->session, s->index, unit);
}

static int post_backward(void *ctx, uint32_t unit)
{
  const side *s = ctx;
  return ordo_session_post_backward(s->job->session, s->index, unit);
}

static int grad_adds(void *ctx, uint32_t param)
{
  const side *s = ctx;
  return ordo_session_grad_adds(s->job->session, s->index, param);
}

static int grad_ready(void *ctx, uint32_t param)
{
  const side *s = ctx;
  return ordo_session_grad_ready(s->job->session, s->index, param);
}

static ordo_status create(job *j, const ordo_plan *plan, const ordo_comm_provider *comm)
{
  const ordo_embedder embedder = {.struct_size = sizeof embedder,
                                  .ctx = j,
                                  .model_build = model_build,
                                  .weights_read = weights_read,
                                  .bind = bind,
                                  .optimizer_create = optimizer_create};
  const ordo_session_options options = {.struct_size = sizeof options, .comm = comm, .max_grad_norm = 0.5};
  ordo_status status = ordo_session_create(j->context, plan, &embedder, &options, &j->session);
  if (status == ORDO_OK)
    status = ordo_session_setup(j->session);
  for (uint32_t m = 0; status == ORDO_OK && m < N_MODELS; m++) {
    const ordo_model *model = ordo_session_model(j->session, m);
    for (uint32_t p = 0; p < model->n_params; p++)
      llama_bind(j->sides[m].llama, p, model->params[p]->data, model->params[p]->grad);
  }
  if (status == ORDO_OK)
    ordo_session_data_part(j->session, &j->part, &j->parts);
  return status;
}

/* ---- a step ---- */

/* Random ids, the same in every step, so that the loss falls; the last of a sequence has no target. */
static void fill_sequence(int pair, int which, int32_t *ids, int32_t *targets)
{
  for (int t = 0; t < SEQ; t++)
    ids[t] = (int32_t)(ordo_random_uniform(77, (uint64_t)((pair * 2 + which) * SEQ + t)) * (double)config.vocab);
  memcpy(targets, ids + 1, (SEQ - 1) * sizeof *ids);
  targets[SEQ - 1] = -100;
}

/* Forward of `count` sequences (0 or 1: `which`; 2: both of the pair) through the hooks; their negative log-likelihoods. A rank without a
 * pair opens and closes every unit like the others. */
static int forward(side *s, int pair, int first, int count, int keep, double *nll)
{
  int32_t ids[2 * SEQ], targets[2 * SEQ];
  float token[2 * SEQ];
  int status = 0;
  for (uint32_t u = 0; pair < 0 && status == 0 && u < llama_n_units(s->llama); u++) {
    status = pre_forward(s, u);
    if (status == 0)
      status = post_forward(s, u);
  }
  if (pair < 0)
    return status;
  for (int i = 0; i < count; i++)
    fill_sequence(pair, first + i, ids + i * SEQ, targets + i * SEQ);
  struct llama_forward_args args = {.ids = ids, .targets = targets, .batch = count, .seq = SEQ, .keep = keep, .nll = token};
  status = llama_forward(s->llama, &args);
  for (int i = 0; i < count * SEQ && nll; i++)
    nll[i / SEQ] = (i % SEQ ? nll[i / SEQ] : 0.0) + (double)token[i];
  return status;
}

static int empty_backward(job *j)
{
  const ordo_model *model = ordo_session_model(j->session, POLICY);
  side *s = &j->sides[POLICY];
  int status = 0;
  for (uint32_t u = model->n_units; status == 0 && u-- > 0;) {
    status = pre_backward(s, u);
    for (uint32_t p = 0; status == 0 && p < model->units[u]->n_params; p++) {
      const ordo_param *param = model->units[u]->params[p];
      if (param->grad && !grad_adds(s, param->index))
        memset(param->grad, 0, (size_t)param->numel * sizeof(float));
      status = grad_ready(s, param->index);
    }
    if (status == 0)
      status = post_backward(s, u);
  }
  return status;
}

/* One pair: chosen and rejected are a micro-batch each. pair < 0: none, but the same events. */
static int train_pair(job *j, int pair, const double *policy, double *loss)
{
  double reference[2] = {0.0, 0.0}, z = 0.0;
  int status = 0;
  for (int which = CHOSEN; status == 0 && which <= REJECTED; which++) {
    status = ordo_session_micro_begin(j->session);
    if (status == 0 && which == CHOSEN) {
      status = forward(&j->sides[REFERENCE], pair, CHOSEN, 2, 0, reference);
      z = BETA * ((policy[REJECTED] - policy[CHOSEN]) - (reference[REJECTED] - reference[CHOSEN]));
      *loss += pair < 0 ? 0.0 : log1p(exp(-z));
    }
    if (status == 0)
      status = forward(&j->sides[POLICY], pair, which, 1, 1, NULL);
    double factor = BETA / (1.0 + exp(z)) * (which == CHOSEN ? 1.0 : -1.0);
    if (status == 0)
      status = pair < 0 ? empty_backward(j) : llama_backward(j->sides[POLICY].llama, factor * ordo_session_loss_factor(j->session));
    if (status == 0)
      status = ordo_session_micro_end(j->session);
  }
  return status;
}

/* The rank's nth pair, -1 if it has none. Parts differ on purpose where the ranks do not divide the pairs. */
static int pair_of(const job *j, int nth)
{
  int pair = nth * j->parts + j->part;
  return pair < PAIRS ? pair : -1;
}

static int train_step(job *j, int step, result *r)
{
  int rounds = (PAIRS + j->parts - 1) / j->parts, own = 0;
  double policy[PAIRS][2] = {{0.0}}, loss = 0.0;
  ordo_step_result outcome = {.struct_size = sizeof outcome};
  int status = ordo_session_eval_begin(j->session);
  for (int n = 0; status == 0 && n < rounds; n++) {
    own += pair_of(j, n) >= 0;
    status = forward(&j->sides[POLICY], pair_of(j, n), CHOSEN, 2, 0, policy[n]);
  }
  if (status == 0)
    status = ordo_session_eval_end(j->session);
  if (status == 0)
    status = ordo_session_step_begin(j->session, rounds * 2, own);
  for (int n = 0; status == 0 && n < rounds; n++)
    status = train_pair(j, pair_of(j, n), policy[n], &loss);
  if (status == 0)
    status = ordo_session_step_end(j->session, &outcome);
  if (status == 0)
    status = ordo_session_sum(j->session, &loss, 1);
  r->loss[step] = loss / outcome.weight;
  r->norm[step] = outcome.grad_norm;
  return status;
}

/* All weights of a model, inside the scope in which they are whole. */
static int collect(job *j, uint32_t index, result *r)
{
  const ordo_model *model = ordo_session_model(j->session, index);
  int status = ordo_session_gather_full(j->session, index, 0);
  int64_t at = 0, total = 0;
  for (uint32_t p = 0; p < model->n_params; p++)
    total += model->params[p]->numel;
  r->n_weights = total;
  r->weights[index] = g_new(float, (gsize)total);
  for (uint32_t p = 0; status == 0 && p < model->n_params; at += model->params[p++]->numel)
    memcpy(r->weights[index] + at, model->params[p]->data, (size_t)model->params[p]->numel * sizeof(float));
  return status == 0 ? ordo_session_release_full(j->session, index) : status;
}

/* ---- a run, and the comparison ---- */

static int run(ordo_context *context, const ordo_comm_provider *comm, const char *strategy, int is_sgd, result *r)
{
  const ordo_plan_model models[N_MODELS] = {{sizeof models[0], "policy", 1, 0}, {sizeof models[0], "reference", 0, 0}};
  const ordo_plan_request request = {
      .struct_size = sizeof request, .strategy = strategy, .ranks = comm ? comm->size : 1, .models = models, .n_models = N_MODELS};
  ordo_plan *plan = NULL;
  char reason[200] = "";
  job j = {.context = context};
  j.optimizer = (ordo_leaf_optimizer_options){is_sgd, is_sgd ? 0.02 : 1e-3, 0.9, 0.95, 1e-8, 0.0, 0.9};
  for (uint32_t m = 0; m < N_MODELS; m++) {
    side *s = &j.sides[m];
    *s = (side){&j, m, llama_create(&config, NULL, reason, sizeof reason), ordo_weights_fresh(&config, 5 + m, 0.08)};
    const struct llama_hooks hooks = {s, pre_forward, post_forward, pre_backward, grad_adds, grad_ready, post_backward, NULL, NULL};
    llama_set_hooks(s->llama, &hooks);
    if (llama_reserve(s->llama, 2, SEQ, m == POLICY ? LLAMA_KEEP_INPUTS : LLAMA_FORWARD_ONLY, 0) != LLAMA_OK)
      return ORDO_E_NOMEM;
  }
  int status = ordo_plan_create(context, &request, &plan);
  if (status == 0)
    status = create(&j, plan, comm);
  if (status == 0 && (j.optimizers != 1 || ordo_session_optimizer(j.session, REFERENCE)))
    status = ordo_fail(context, ORDO_E_INVARIANT, "E-INTERNAL", "the frozen model has an optimizer", "two_models", "", "");
  for (int step = 0; status == 0 && step < STEPS; step++)
    status = train_step(&j, step, r);
  for (uint32_t m = 0; status == 0 && m < N_MODELS; m++)
    status = collect(&j, m, r);
  ordo_session_destroy(j.session); /* tells bind that storage is gone, so before the models */
  for (uint32_t m = 0; m < N_MODELS; m++) {
    llama_destroy(j.sides[m].llama);
    ordo_weights_free(j.sides[m].weights);
  }
  ordo_plan_destroy(plan);
  return status;
}

static int check(const char *strategy, int ranks, const char *name, const char *metric, double value, double gate)
{
  int bad = !(value <= gate);
  printf("%-4s %-10s %d ranks  %-6s %-28s %.3g, gate %.3g\n", bad ? "FAIL" : "ok", strategy, ranks, name, metric, value, gate);
  return bad;
}

/* The gates are those of parity. Steps are fewer, so nothing is wider than there. */
static int compare(const char *strategy, int ranks, int is_sgd, const result *one, const result *many)
{
  const char *name = is_sgd ? "sgd" : "adamw";
  double loss = 0.0, norm = 0.0, wrong = 0.0, moved = 0.0;
  g_auto(ordo_problems) problems;
  float *start[N_MODELS]; /* what policy and reference began with */
  int64_t at = 0;
  struct llama *llama = llama_create(&config, NULL, (char[200]){0}, 200);
  ordo_problems_init(&problems);
  for (uint32_t m = 0; m < N_MODELS; m++) {
    g_autoptr(ordo_weights) weights = ordo_weights_fresh(&config, 5 + m, 0.08);
    start[m] = g_new(float, (gsize)one->n_weights);
    at = 0;
    for (uint32_t p = 0; p < llama_n_params(llama); at += llama_param_at(llama, p++)->numel) {
      int alias = p > 0 && llama_param_at(llama, p)->tie_group >= 0;
      weights->read(weights, llama_param_at(llama, alias ? 0 : p)->name, 0, llama_param_at(llama, p)->numel, start[m] + at, &problems);
    }
  }
  llama_destroy(llama);
  for (int s = 0; s < STEPS; s++) {
    loss = fmax(loss, fabs(many->loss[s] - one->loss[s]) / fabs(one->loss[s]));
    norm = fmax(norm, fabs(many->norm[s] - one->norm[s]) / one->norm[s]);
  }
  for (int64_t i = 0; i < one->n_weights; i++) {
    wrong += pow((double)many->weights[POLICY][i] - (double)one->weights[POLICY][i], 2);
    moved += pow((double)one->weights[POLICY][i] - (double)start[POLICY][i], 2);
  }
  int frozen = memcmp(many->weights[REFERENCE], start[REFERENCE], (size_t)one->n_weights * sizeof(float)) == 0;
  int failed = check(strategy, ranks, name, "loss", loss, 1e-5);
  failed += check(strategy, ranks, name, "gradient norm", norm, is_sgd ? 2e-5 : 2e-4);
  failed += check(strategy, ranks, name, "update of the policy", sqrt(wrong / moved), is_sgd ? 2e-4 : 1e-3);
  failed += check(strategy, ranks, name, "reference unchanged, bits", !frozen, 0.0);
  failed += check(strategy, ranks, name, "the loss fell", one->loss[STEPS - 1] / one->loss[0], 0.99);
  g_free(start[POLICY]);
  g_free(start[REFERENCE]);
  return failed;
}

static void clear(result *r)
{
  for (int m = 0; m < N_MODELS; m++)
    g_free(r->weights[m]);
}

int main(int argc, char **argv)
{
  const ordo_context_options options = {.struct_size = sizeof options, .program_name = "two_models"};
  const char *strategy = argc == 3 && strcmp(argv[1], "--strategy") == 0 ? argv[2] : "ddp";
  struct blas_core_report report;
  char reason[200] = "";
  ordo_context *context = NULL;
  ordo_comm_provider *comm = NULL;
  int failed = 0;
  if (blas_core_start(argv, &report, reason, sizeof reason) != 0) {
    fprintf(stderr, "two_models: %s\n", reason);
    return 1;
  }
  int status = ordo_context_create(&options, &context);
  if (status == 0)
    status = ordo_comm_mpi_create(context, MPI_COMM_NULL, NULL, &comm);
  for (int is_sgd = 0; status == 0 && is_sgd < 2; is_sgd++) {
    result one = {0}, many = {0};
    status = run(context, comm, strategy, is_sgd, &many);
    if (status == 0 && comm->rank == 0 && (status = run(context, NULL, NULL, is_sgd, &one)) == 0)
      failed += compare(strategy, comm->size, is_sgd, &one, &many);
    clear(&one);
    clear(&many);
  }
  if (status != 0) {
    fprintf(stderr, "two_models: rank %d\n", comm ? comm->rank : -1);
    ordo_context_print_errors(context, stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Bcast(&failed, 1, MPI_INT, 0, MPI_COMM_WORLD);
  ordo_comm_provider_destroy(comm);
  ordo_context_destroy(context);
  return failed > 0;
}
