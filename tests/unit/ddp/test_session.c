/* test_session.c - ddp loaded by a real session on real ranks: found, planned, set up, trained, torn down.
 *
 * Under mpirun; argument 1 is the directory that has ddp.so. Gradients are small integers, every rank has its own, and ranks count
 * different numbers of tokens, so a wrong sum, a wrong divisor or a rank that is left out shows in the first step. Ranks start with
 * different weights: weights.sync must cure that, ddp does not.
 */
#include <ordo/mpi.h>
#include <ordo/ordo.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { UNITS = 3, N = 6, LR_STEPS = 4 };

/* Param p belongs to unit p / 2; sizes are odd on purpose. */
static const int64_t NUMELS[N] = {513, 7, 172, 64, 1000, 1};

static ordo_context *context;
static ordo_comm_provider *provider;
static int me, ranks;

/* ---- the embedder ---- */

typedef struct trainer {
  ordo_group group;
  ordo_leaf *leaves[N];
  double lr;
} trainer;

static ordo_status build(void *ctx, ordo_session *session, uint32_t model, ordo_model_builder *builder)
{
  static const char *const units[UNITS] = {"embed", "block", "head"};
  (void)ctx, (void)session, (void)model;
  for (int u = 0; u < UNITS; u++) {
    if (ordo_model_builder_unit(builder, units[u], "Block", NULL) != ORDO_OK)
      return ORDO_E_INTERNAL;
    for (int p = 2 * u; p < 2 * u + 2; p++) {
      char name[16];
      snprintf(name, sizeof name, "p%d", p);
      ordo_param_desc desc = {
          .struct_size = sizeof desc, .name = name, .dtype = ORDO_F32, .flags = ORDO_PARAM_REQUIRES_GRAD, .tie_group = -1, .ndim = 1};
      desc.shape[0] = NUMELS[p];
      if (ordo_model_builder_param(builder, &desc, NULL) != ORDO_OK)
        return ORDO_E_INTERNAL;
    }
  }
  return ORDO_OK;
}

static ordo_status read_weights(void *ctx, const ordo_model *model, const ordo_chunk *chunk, float *dst)
{
  (void)ctx, (void)model;
  int64_t begin = chunk->kind == ORDO_CHUNK_FLAT ? chunk->begin : chunk->offset[0];
  int64_t n = chunk->kind == ORDO_CHUNK_FLAT ? chunk->end - chunk->begin : chunk->extent[0];
  for (int64_t i = 0; i < n; i++)
    dst[i] = (float)((begin + i) % 11) + (float)chunk->param->index + 100.0f * (float)me;
  return ORDO_OK;
}

static ordo_status sgd_step(void *ctx, const ordo_step_args *args)
{
  trainer *t = ctx;
  for (uint64_t l = 0; l < t->group.n_leaves; l++) {
    ordo_leaf *leaf = t->leaves[l];
    float *data = leaf->data;
    const float *grad = leaf->grad;
    for (int64_t i = 0; leaf->grad_state == ORDO_GRAD_HELD && i < leaf->numel; i++)
      data[i] -= (float)(t->lr * args->grad_factor) * grad[i];
  }
  return ORDO_OK;
}

static void sgd_destroy(void *ctx)
{
  (void)ctx;
}

static uint32_t sgd_slots(void *ctx)
{
  (void)ctx;
  return 0;
}

static ordo_status make_optimizer(void *ctx, const ordo_model *model, ordo_optimizer *optimizer)
{
  trainer *t = ctx;
  t->lr = 1.0 / 64;
  for (uint32_t i = 0; i < model->n_leaves; i++)
    t->leaves[i] = model->leaves[i];
  t->group = (ordo_group){.struct_size = sizeof t->group, .name = "all", .leaves = t->leaves, .n_leaves = model->n_leaves, .lr = t->lr};
  *optimizer = (ordo_optimizer){.struct_size = sizeof *optimizer,
                                .ctx = t,
                                .name = "sgd",
                                .n_groups = 1,
                                .groups = &t->group,
                                .step = sgd_step,
                                .n_slots = sgd_slots,
                                .destroy = sgd_destroy};
  return ORDO_OK;
}

/* ---- running ---- */

static void expect_ok(ordo_status status, const char *what)
{
  if (status == ORDO_OK)
    return;
  for (size_t i = 0; i < ordo_n_errors(context); i++) {
    const ordo_error *e = ordo_error_at(context, i);
    print_error("rank %d, %s: %s %s: %s (%s) %s\n", me, what, e->code, e->where, e->what, e->why, e->next);
  }
  fail_msg("%s", what);
}

static float gradient(int rank, int step, int micro, int p, int64_t i)
{
  return (float)(rank + 1) + 8.0f * (float)p + 16.0f * (float)micro + (float)step + (float)(i % 3);
}

typedef struct run {
  ordo_plan *plan;
  ordo_session *session;
  trainer trainer;
  ordo_embedder embedder;
  uint64_t started_before_first_unit; /* all-reduces started when backward reaches unit 0, last step */
  uint64_t payload;                   /* all-reduced bytes of the last step */
} run;

static uint64_t all_reduces(const run *r, uint64_t *bytes)
{
  ordo_comm_stats stats = {.struct_size = sizeof stats};
  expect_ok(ordo_session_comm_stats(r->session, "ddp", &stats), "comm_stats");
  *bytes = stats.bytes[ORDO_ALL_REDUCE];
  return stats.calls[ORDO_ALL_REDUCE];
}

static void begin(run *r, const char *strategy, uint32_t ordered)
{
  memset(r, 0, sizeof *r);
  const ordo_plan_request request = {.struct_size = sizeof request, .strategy = strategy, .ranks = ranks};
  r->embedder = (ordo_embedder){.struct_size = sizeof r->embedder,
                                .ctx = &r->trainer,
                                .model_build = build,
                                .weights_read = read_weights,
                                .optimizer_create = make_optimizer};
  const ordo_session_options options = {
      .struct_size = sizeof options, .comm = provider, .seed = 1, .ordered = ordered, .drift_interval = 1};
  expect_ok(ordo_plan_create(context, &request, &r->plan), "plan");
  expect_ok(ordo_session_create(context, r->plan, &r->embedder, &options, &r->session), "create");
  expect_ok(ordo_session_setup(r->session), "setup");
}

static void end(run *r)
{
  ordo_session_destroy(r->session);
  ordo_plan_destroy(r->plan);
}

static void backward(run *r, int step, int micro, const uint8_t *skip)
{
  const ordo_model *model = ordo_session_model(r->session, 0);
  for (uint32_t u = UNITS; u-- > 0;) {
    uint64_t bytes;
    if (u == 0)
      r->started_before_first_unit = all_reduces(r, &bytes);
    expect_ok(ordo_session_pre_backward(r->session, 0, u), "pre_backward");
    for (int p = (int)(2 * u + 1); p >= (int)(2 * u); p--) {
      float *grad = model->params[p]->grad;
      int adds = ordo_session_grad_adds(r->session, 0, (uint32_t)p);
      if (skip[p])
        continue;
      for (int64_t i = 0; i < NUMELS[p]; i++)
        grad[i] = (adds ? grad[i] : 0.0f) + gradient(me, step, micro, p, i);
      expect_ok(ordo_session_grad_ready(r->session, 0, (uint32_t)p), "grad_ready");
    }
    expect_ok(ordo_session_post_backward(r->session, 0, u), "post_backward");
  }
}

/* One step of two micro-batches; rank r counts r + 1 tokens. Stops after the reduction and compares, then updates. */
static ordo_status step(run *r, int number, const uint8_t *skip, double tolerance)
{
  uint64_t bytes_before, bytes_after;
  expect_ok(ordo_session_step_begin(r->session, 2, me + 1.0), "step_begin");
  uint64_t calls = all_reduces(r, &bytes_before);
  for (int micro = 0; micro < 2; micro++) {
    expect_ok(ordo_session_micro_begin(r->session), "micro_begin");
    for (uint32_t u = 0; u < UNITS; u++) {
      expect_ok(ordo_session_pre_forward(r->session, 0, u), "pre_forward");
      expect_ok(ordo_session_post_forward(r->session, 0, u), "post_forward");
    }
    backward(r, number, micro, skip);
    expect_ok(ordo_session_micro_end(r->session), "micro_end");
  }
  r->started_before_first_unit -= calls;
  ordo_status status = ordo_session_reduce_gradients(r->session);
  if (status != ORDO_OK)
    return status;
  all_reduces(r, &bytes_after);
  r->payload = bytes_after - bytes_before;

  double weight = ranks * (ranks + 1) / 2.0;
  assert_true(ordo_session_step_weight(r->session) == weight);
  const ordo_model *model = ordo_session_model(r->session, 0);
  for (int p = 0; p < N; p++) {
    const ordo_leaf *leaf = model->leaves[p];
    for (int64_t i = 0; leaf->grad_state == ORDO_GRAD_HELD && i < leaf->numel; i++) {
      double want = 0.0, got = (double)((const float *)leaf->grad)[i];
      for (int rank = 0; rank < ranks; rank++)
        for (int micro = 0; micro < 2; micro++)
          want += skip[p] == 0 || rank != me ? (double)gradient(rank, number, micro, p, i) / weight : 0.0;
      if (tolerance > 0.0 && !(fabs(got - want) <= tolerance * want))
        fail_msg("rank %d, step %d, p%d[%lld]: %.9g instead of %.9g", me, number, p, (long long)i, got, want);
    }
  }
  ordo_step_result result = {.struct_size = sizeof result};
  return ordo_session_step_end(r->session, &result);
}

static int64_t total(void)
{
  int64_t sum = 0;
  for (int p = 0; p < N; p++)
    sum += NUMELS[p];
  return sum;
}

static const uint8_t NONE[N] = {0};

/* fp32: a rounding for 1/W, one for each product and one for each sum: ranks + 2 half-ulps, generously doubled. */
static double fp32_tolerance(void)
{
  return (2.0 * ranks + 4.0) * 0x1p-24;
}

static void trains(void **state)
{
  static const struct {
    const char *strategy;
    int bytes;
    double half_ulp; /* of the format on the wire: a rounding before the sum and one after it */
  } cases[] = {{"ddp:first_bucket=256:bucket_cap=1024", 4, 0.0}, {"ddp:hook=bf16", 2, 0x1p-8}, {"ddp:hook=fp16", 2, 0x1p-11}};
  (void)state;
  for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
    for (uint32_t ordered = 0; ordered <= 1; ordered++) {
      run r;
      begin(&r, cases[c].strategy, ordered);
      for (int s = 1; s <= LR_STEPS; s++) {
        expect_ok(step(&r, s, NONE, fp32_tolerance() + 2.1 * cases[c].half_ulp), "step");
        assert_int_equal(r.payload, cases[c].bytes * total());
        if (c == 0) /* buckets exist from the second step on; the head's is on its way before the first unit's backward */
          assert_true(s == 1 ? r.started_before_first_unit == 0 : r.started_before_first_unit > 0);
      }
      end(&r);
    }
}

/* Equal bits after four steps, whatever the buckets: two runs in ordered mode with other limits. */
static void ordered_runs_are_bit_equal(void **state)
{
  (void)state;
  float *weights[2] = {NULL, NULL};
  const char *strategies[2] = {"ddp:first_bucket=64:bucket_cap=64", "ddp"};
  for (int k = 0; k < 2; k++) {
    run r;
    begin(&r, strategies[k], 1);
    for (int s = 1; s <= LR_STEPS; s++)
      expect_ok(step(&r, s, NONE, fp32_tolerance()), "step");
    const ordo_model *model = ordo_session_model(r.session, 0);
    float *copy = weights[k] = malloc((size_t)total() * sizeof(float));
    for (uint32_t l = 0; l < model->n_leaves; l++) {
      memcpy(copy, model->leaves[l]->data, (size_t)model->leaves[l]->numel * sizeof(float));
      copy += model->leaves[l]->numel;
    }
    end(&r);
  }
  assert_memory_equal(weights[0], weights[1], (size_t)total() * sizeof(float));
  free(weights[0]);
  free(weights[1]);
}

static void unused_parameters(void **state)
{
  (void)state;
  run r;
  uint8_t skip[N] = {0};
  begin(&r, "ddp_find_unused_parameters", 0);
  skip[2] = 1; /* nobody uses p2 */
  for (int s = 1; s <= 2; s++) {
    expect_ok(step(&r, s, skip, -1.0), "step");
    const ordo_leaf *leaf = ordo_session_model(r.session, 0)->leaves[2];
    assert_int_equal(leaf->grad_state, ORDO_GRAD_NONE);
    assert_true(((const float *)leaf->data)[3] == 5.0f); /* rank 0's initial weight, never updated */
  }
  end(&r);
}

static void missing_gradient(void **state)
{
  (void)state;
  run r;
  uint8_t skip[N] = {0};
  begin(&r, "ddp", 0);
  expect_ok(step(&r, 1, NONE, fp32_tolerance()), "step");
  skip[3] = me == ranks - 1;
  assert_int_equal(step(&r, 2, skip, -1.0), ORDO_E_INVARIANT);
  const ordo_error *error = ordo_last_error(context);
  char wanted[64];
  snprintf(wanted, sizeof wanted, "'p3' on rank %d", ranks - 1);
  assert_non_null(error);
  assert_non_null(strstr(error->what, wanted));
  end(&r);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(trains),
      cmocka_unit_test(ordered_runs_are_bit_equal),
      cmocka_unit_test(unused_parameters),
      cmocka_unit_test(missing_gradient),
  };
  const ordo_context_options options = {.struct_size = sizeof options,
                                        .program_name = "test",
                                        .plugin_path = argc > 1 ? argv[1] : NULL,
                                        .flags = ORDO_CONTEXT_NO_ENVIRONMENT | ORDO_CONTEXT_NO_DEFAULT_PATH | ORDO_CONTEXT_ALLOW_INSECURE};
  const ordo_mpi_options mpi_options = {.struct_size = sizeof mpi_options, .deadline_seconds = 20.0};
  if (ordo_context_create(&options, &context) != ORDO_OK ||
      ordo_comm_mpi_create(context, MPI_COMM_NULL, &mpi_options, &provider) != ORDO_OK)
    return 1;
  me = provider->rank;
  ranks = provider->size;
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  ordo_comm_provider_destroy(provider);
  ordo_context_destroy(context);
  return failed;
}
