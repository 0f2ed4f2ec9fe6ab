/* main.c - the smallest program that embeds Ordo: a linear model, its own loop, its own optimizer.
 *
 * It learns y = 1 x0 + 2 x1 + ... + 8 x7 from 240 samples, split over the ranks by whatever strategy is named:
 *   ./linear                                 one rank
 *   mpirun -n 2 ./linear ddp                 the same numbers from two
 * Ordo never takes over the loop: the program says where it is (step_begin ... step_end), and the plan's plugins act there. Storage
 * may be moved or exchanged by a strategy, so weights and gradients are read through the model's params, never kept.
 */
#include <ordo/mpi.h>
#include <ordo/ordo.h>

#include <stdio.h>
#include <stdlib.h>

enum { FEATURES = 8, SAMPLES = 240, STEPS = 60 };

typedef struct program {
  float weight[FEATURES], grad[FEATURES];
  ordo_group group; /* all leaves, one learning rate */
} program;

/* Sample i: features in [-1, 1) from its number alone, so that every rank can make its part. */
static float feature(int i, int k)
{
  uint32_t h = (uint32_t)(i * FEATURES + k + 1) * 2654435761u;
  h ^= h >> 15;
  h *= 2246822519u;
  h ^= h >> 13;
  return (float)(h >> 8) / 8388608.0f - 1.0f;
}

static ordo_status model_build(void *ctx, ordo_session *session, uint32_t model, ordo_model_builder *builder)
{
  program *p = ctx;
  ordo_param_desc desc = {.struct_size = sizeof desc, .name = "linear.weight", .dtype = ORDO_F32, .tie_group = -1, .ndim = 2};
  (void)session;
  (void)model;
  desc.flags = ORDO_PARAM_REQUIRES_GRAD | ORDO_PARAM_DECAY;
  desc.shape[0] = 1;
  desc.shape[1] = FEATURES;
  desc.data = p->weight;
  desc.grad = p->grad;
  ordo_status status = ordo_model_builder_unit(builder, "linear", "Linear", NULL);
  return status ? status : ordo_model_builder_param(builder, &desc, NULL);
}

/* Plain gradient descent on whatever the leaves are by now: whole weights, or this rank's shards. */
static ordo_status sgd_step(void *ctx, const ordo_step_args *args)
{
  program *p = ctx;
  for (uint64_t i = 0; i < p->group.n_leaves; i++) {
    ordo_leaf *leaf = p->group.leaves[i];
    float *data = leaf->data, *grad = leaf->grad;
    for (int64_t k = 0; leaf->grad_state == ORDO_GRAD_HELD && k < leaf->numel; k++)
      data[k] -= (float)(p->group.lr * args->grad_factor) * grad[k];
  }
  return ORDO_OK;
}

/* A strategy replaced the leaves: take the new ones, each once. SGD has no state to move. */
static ordo_status sgd_rebind(void *ctx, const ordo_leaf_map *map, size_t n)
{
  program *p = ctx;
  ordo_leaf **leaves = calloc(n ? n : 1, sizeof *leaves);
  uint64_t count = 0;
  if (!leaves)
    return ORDO_E_NOMEM;
  for (size_t i = 0; i < n; i++) {
    uint64_t k = 0;
    while (k < count && leaves[k] != map[i].new_leaf)
      k++;
    if (k == count && map[i].new_leaf)
      leaves[count++] = map[i].new_leaf;
  }
  free(p->group.leaves);
  p->group.leaves = leaves;
  p->group.n_leaves = count;
  return ORDO_OK;
}

static uint32_t sgd_slots(void *ctx)
{
  (void)ctx;
  return 0;
}

static void sgd_destroy(void *ctx)
{
  program *p = ctx;
  free(p->group.leaves);
  p->group.leaves = NULL;
}

static ordo_status optimizer_create(void *ctx, const ordo_model *model, ordo_optimizer *optimizer)
{
  program *p = ctx;
  p->group = (ordo_group){.struct_size = sizeof p->group, .name = "all", .n_leaves = model->n_leaves, .lr = 0.5};
  p->group.leaves = calloc(model->n_leaves ? model->n_leaves : 1, sizeof *p->group.leaves);
  if (!p->group.leaves)
    return ORDO_E_NOMEM;
  for (uint32_t i = 0; i < model->n_leaves; i++)
    p->group.leaves[i] = model->leaves[i];
  *optimizer = (ordo_optimizer){.struct_size = sizeof *optimizer,
                                .ctx = p,
                                .name = "sgd",
                                .n_groups = 1,
                                .groups = &p->group,
                                .step = sgd_step,
                                .rebind = sgd_rebind,
                                .n_slots = sgd_slots,
                                .destroy = sgd_destroy};
  return ORDO_OK;
}

/* One step over this rank's samples: forward and backward of 1/2 (w x - y)^2. Returns the summed loss in *loss. */
static ordo_status train_step(ordo_session *s, double *loss, ordo_step_result *result)
{
  int32_t part = 0, parts = 1;
  ordo_status status;
  ordo_session_data_part(s, &part, &parts);
  int first = SAMPLES * part / parts, last = SAMPLES * (part + 1) / parts;
  *loss = 0;
  if ((status = ordo_session_step_begin(s, 1, last - first)) || (status = ordo_session_micro_begin(s)) ||
      (status = ordo_session_pre_forward(s, 0, 0)))
    return status;
  const ordo_param *param = ordo_session_model(s, 0)->params[0];
  const float *w = param->data;
  double slope[FEATURES] = {0};
  for (int i = first; i < last; i++) {
    double error = 0;
    for (int k = 0; k < FEATURES; k++)
      error += (w[k] - (float)(k + 1)) * feature(i, k);
    *loss += error * error / 2;
    for (int k = 0; k < FEATURES; k++)
      slope[k] += error * feature(i, k);
  }
  if ((status = ordo_session_post_forward(s, 0, 0)) || (status = ordo_session_pre_backward(s, 0, 0)))
    return status;
  float *grad = param->grad;
  const double factor = ordo_session_loss_factor(s);
  const int adds = ordo_session_grad_adds(s, 0, 0);
  for (int k = 0; k < FEATURES; k++)
    grad[k] = (adds ? grad[k] : 0) + (float)(slope[k] * factor);
  if ((status = ordo_session_grad_ready(s, 0, 0)) || (status = ordo_session_post_backward(s, 0, 0)) || (status = ordo_session_micro_end(s)))
    return status;
  return ordo_session_step_end(s, result);
}

static ordo_status run(ordo_context *context, const char *strategy, program *p)
{
  ordo_comm_provider *comm = NULL;
  ordo_plan *plan = NULL;
  ordo_session *session = NULL;
  ordo_step_result result = {.struct_size = sizeof result};
  ordo_embedder embedder = {.struct_size = sizeof embedder, .ctx = p, .model_build = model_build, .optimizer_create = optimizer_create};
  ordo_session_options options = {.struct_size = sizeof options, .seed = 1};
  ordo_plan_request request = {.struct_size = sizeof request, .strategy = strategy};
  double loss = 0;
  ordo_status status;

  if ((status = ordo_comm_mpi_create(context, MPI_COMM_NULL, NULL, &comm)))
    goto out;
  request.ranks = comm->size;
  options.comm = comm;
  if ((status = ordo_plan_create(context, &request, &plan)) ||
      (status = ordo_session_create(context, plan, &embedder, &options, &session)) || (status = ordo_session_setup(session)))
    goto out;
  for (int i = 1; i <= STEPS; i++) {
    if ((status = train_step(session, &loss, &result)) || (status = ordo_session_sum(session, &loss, 1)))
      goto out;
    if (comm->rank == 0 && (i == 1 || i % 20 == 0))
      printf("step %2d  loss %.6f  gradient norm %.6f\n", i, loss / SAMPLES, result.grad_norm);
  }
out:
  ordo_session_destroy(session);
  ordo_plan_destroy(plan);
  ordo_comm_provider_destroy(comm);
  return status;
}

int main(int argc, char **argv)
{
  program p = {0};
  ordo_context *context = NULL;
  ordo_context_options options = {.struct_size = sizeof options, .program_name = "linear", .program_version = "1"};
  if (ordo_context_create(&options, &context) != ORDO_OK)
    return 1;
  ordo_status status = run(context, argc > 1 ? argv[1] : NULL, &p);
  for (size_t i = 0; status != ORDO_OK && i < ordo_n_errors(context); i++) {
    const ordo_error *e = ordo_error_at(context, i);
    fprintf(stderr, "%s: %s\n  %s\n  %s\n  %s\n", e->code, e->what, e->where, e->why, e->next);
  }
  ordo_context_destroy(context);
  return status == ORDO_OK ? 0 : 1;
}
