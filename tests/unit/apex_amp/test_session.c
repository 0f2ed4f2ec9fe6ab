/* test_session.c - apex_amp in real sessions: alone and with strategies, every level, against a simulation that is exact to the bit.
 *
 * Under mpirun with 1 to 3 ranks; argument 1 is the plugin path. In ordered mode a reduction adds in rank order and rounds once, so
 * ranks can be simulated in one loop.
 */
#include "rig.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const STRATEGIES[] = {NULL,
                                         "ddp",
                                         "fsdp1",
                                         "fsdp1:sharding_strategy=SHARD_GRAD_OP",
                                         "fsdp1:sharding_strategy=NO_SHARD",
                                         "fsdp1:units=none",
                                         "fsdp2",
                                         "fsdp2:reshard_after_forward=false",
                                         "fsdp2:units=none"};
enum { N_STRATEGIES = sizeof STRATEGIES / sizeof STRATEGIES[0] };

static int fits(const char *strategy)
{
  return strategy != NULL || rig_ranks == 1;
}

/* ---- the simulation: three roots (the head is tied to the embedding) ---- */

typedef struct kind {
  const char *precision;
  ordo_dtype stored, norm; /* of matrices and of the norm, gradients alike */
  int masters;
  ordo_dtype matmul;
  double scale; /* first loss scale */
  int delay;
} kind;

static const kind KINDS[] = {
    {"apex_amp:O0", ORDO_F32, ORDO_F32, 0, ORDO_F32, 1.0, 0},
    {"apex_amp", ORDO_F32, ORDO_F32, 0, ORDO_F16, 65536.0, 0},
    {"apex_amp:O1:loss_scale=128", ORDO_F32, ORDO_F32, 0, ORDO_F16, 128.0, 0},
    {"apex_amp:O1:loss_scale=1", ORDO_F32, ORDO_F32, 0, ORDO_F16, 1.0, 0},
    {"apex_amp:O2:init_scale=1024", ORDO_F16, ORDO_F32, 1, ORDO_F16, 1024.0, 0},
    {"apex_amp:O2:loss_scale=3", ORDO_F16, ORDO_F32, 1, ORDO_F16, 3.0, 0},
    {"apex_amp:O2:loss_scale=1:delay_unscale=true", ORDO_F16, ORDO_F32, 1, ORDO_F16, 1.0, 1},
    {"apex_amp:O2:loss_scale=8:keep_norm_fp32=no", ORDO_F16, ORDO_F16, 1, ORDO_F16, 8.0, 0},
    {"apex_amp:O2:loss_scale=1:master_weights=no", ORDO_F16, ORDO_F32, 0, ORDO_F16, 1.0, 1},
    {"apex_amp:O3", ORDO_F16, ORDO_F16, 0, ORDO_F16, 1.0, 1},
    {"apex_amp:O3:keep_norm_fp32=yes:loss_scale=16", ORDO_F16, ORDO_F32, 0, ORDO_F16, 16.0, 1},
    {"apex_amp:O4", ORDO_F32, ORDO_F32, 0, ORDO_BF16, 1.0, 0},
    {"apex_amp:O5", ORDO_BF16, ORDO_F32, 1, ORDO_BF16, 1.0, 0},
    {"apex_amp:O5:delay_unscale=true", ORDO_BF16, ORDO_F32, 1, ORDO_BF16, 1.0, 1},
    {"32-true", ORDO_F32, ORDO_F32, 0, ORDO_F32, 1.0, 0},
    {"16-mixed", ORDO_F32, ORDO_F32, 0, ORDO_F16, 65536.0, 0},
    {"bf16-mixed", ORDO_F32, ORDO_F32, 0, ORDO_BF16, 1.0, 0},
    {"16-true", ORDO_F16, ORDO_F16, 0, ORDO_F16, 1.0, 1},
    {"bf16-true", ORDO_BF16, ORDO_BF16, 0, ORDO_BF16, 1.0, 1},
};

typedef struct simulation {
  const kind *of;
  const char *strategy;
  float weight[3][RIG_MOST]; /* master, or what is stored */
} simulation;

static ordo_dtype type_of(const kind *k, int root)
{
  return root == RIG_NORM ? k->norm : k->stored;
}

static void simulate_start(simulation *s, const kind *k, const char *strategy)
{
  s->of = k;
  s->strategy = strategy;
  for (int root = 0; root < 3; root++)
    for (int64_t i = 0; i < rig_numel(root); i++)
      s->weight[root][i] = rig_round(type_of(k, root), rig_initial(root, i));
}

/* What a rank hands to the reduction. */
static float summand(const simulation *s, int root, int64_t i, int rank, int64_t step, int n_micro, double factor)
{
  const ordo_dtype dtype = type_of(s->of, root);
  const int wide = s->of->delay || dtype == ORDO_F32 ? 0 : 1; /* micro-batches add up in fp32 */
  const float f = (float)factor, weight = rig_round(dtype, s->weight[root][i]);
  float sum = 0.0f, grad = 0.0f;
  for (int micro = 0; micro < n_micro; micro++) {
    if (wide)
      grad = 0.0f;
    if (root == 0) /* the head comes first in backward */
      grad = rig_round(dtype, grad + (float)(rank + 1) * (weight - rig_target(step, micro, rank, 3, i)) * f);
    grad = rig_round(dtype, grad + (float)(rank + 1) * (weight - rig_target(step, micro, rank, root, i)) * f);
    sum += grad;
  }
  return wide ? rig_round(dtype, sum) : grad;
}

static void simulate_step(simulation *s, int64_t step, int n_micro, double lr)
{
  const double weight = n_micro * rig_ranks * (rig_ranks + 1) / 2.0, scale = s->of->scale;
  const int at_loss = s->strategy == NULL || s->of->matmul == ORDO_F16; /* the loss factor divides */
  const double factor = at_loss ? 1.0 / weight * scale : scale;
  const float rest = at_loss ? 1.0f : (float)(1.0 / weight), inverse = (float)(1.0 / scale), rate = (float)lr;
  for (int root = 0; root < 3; root++)
    for (int64_t i = 0; i < rig_numel(root); i++) {
      const ordo_dtype dtype = type_of(s->of, root);
      float total = summand(s, root, i, 0, step, n_micro, factor);
      for (int rank = 1; rank < rig_ranks; rank++)
        total += summand(s, root, i, rank, step, n_micro, factor);
      total = rig_round(dtype, total * rest) * inverse;
      if (dtype != ORDO_F32 && !s->of->masters)
        total = rig_round(dtype, total);
      s->weight[root][i] = rig_round(s->of->masters ? ORDO_F32 : dtype, s->weight[root][i] - rate * total);
    }
}

static void assert_simulated(const rig *r, const simulation *s, int step)
{
  for (int root = 0; root < 3; root++)
    for (int64_t i = 0; i < rig_numel(root); i++) {
      float got = rig_weight(r, root, i), want = s->weight[root][i];
      if (!rig_holds(r, root, i))
        continue;
      if (got != want || rig_stored(r, root, i) != rig_round(type_of(s->of, root), want))
        fail_msg("rank %d, %s with %s, step %d, param %d[%lld]: %.9g (stored %.9g) instead of %.9g", rig_me,
                 s->strategy ? s->strategy : "none", s->of->precision, step, root, (long long)i, (double)got,
                 (double)rig_stored(r, root, i), (double)want);
    }
}

static void every_level_is_its_simulation(void **state)
{
  (void)state;
  for (size_t k = 0; k < sizeof KINDS / sizeof KINDS[0]; k++)
    for (int n_micro = 1; n_micro <= 3; n_micro += 2)
      for (size_t c = 0; c < N_STRATEGIES; c++) {
        rig r;
        simulation s;
        ordo_step_result result;
        if (!fits(STRATEGIES[c]))
          continue;
        rig_start(&r,
                  &(rig_options){.strategy = STRATEGIES[c], .precision = KINDS[k].precision, .ordered = 1, .lr = 0.25, .n_micro = n_micro});
        simulate_start(&s, &KINDS[k], STRATEGIES[c]);
        assert_simulated(&r, &s, 0);
        for (int step = 1; step <= 4; step++) {
          rig_expect_ok(rig_step(&r, &result), KINDS[k].precision);
          assert_int_equal(result.skipped, 0);
          assert_true(result.loss_scale == KINDS[k].scale);
          simulate_step(&s, step, n_micro, 0.25);
          assert_simulated(&r, &s, step);
        }
        rig_close(&r);
      }
}

/* Types of parameters, gradients, leaves and operations, and who has a master. */
static void levels_decide_types(void **state)
{
  (void)state;
  for (size_t k = 0; k < sizeof KINDS / sizeof KINDS[0]; k++) {
    const kind *of = &KINDS[k];
    rig r;
    rig_start(&r, &(rig_options){.strategy = "ddp", .precision = of->precision, .lr = 0.1});
    const ordo_model *model = ordo_session_model(r.session, 0);
    for (int p = 0; p < RIG_PARAMS; p++) {
      const ordo_param *param = model->params[p];
      const ordo_dtype want = type_of(of, p);
      assert_int_equal(param->dtype, want);
      assert_int_equal(param->grad_dtype, want);
      assert_int_equal(param->leaf->dtype, want);
      assert_int_equal(param->leaf->grad_dtype, want);
      assert_ptr_equal(param->leaf->data, param->data);
      assert_int_equal(param->leaf->master != NULL, of->masters && want != ORDO_F32);
    }
    assert_ptr_equal(model->params[0]->leaf, model->params[3]->leaf);
    assert_int_equal(ordo_session_op_dtype(r.session, ORDO_OP_MATMUL), of->matmul);
    assert_int_equal(ordo_session_op_dtype(r.session, ORDO_OP_NORM), of->norm);
    assert_int_equal(ordo_session_op_dtype(r.session, ORDO_OP_EMBEDDING), of->stored);
    assert_int_equal(ordo_session_op_dtype(r.session, ORDO_OP_LOSS), ORDO_F32);
    assert_int_equal(ordo_session_op_dtype(r.session, ORDO_OP_SOFTMAX), of->masters ? ORDO_F32 : of->stored);
    assert_int_equal(ordo_session_op_dtype(r.session, ORDO_OP_ROPE), of->masters ? ORDO_F32 : of->stored);
    rig_close(&r);
  }
}

static int64_t bytes_of(const char *precision, uint32_t tag)
{
  int64_t now = 0, peak;
  rig r;
  rig_start(&r, &(rig_options){.precision = precision, .strategy = "ddp", .lr = 0.1});
  ordo_session_memory(r.session, tag, &now, &peak);
  if (tag == ORDO_MEM_GRADIENTS) { /* ddp keeps them in its buckets */
    now = 0;
    for (uint32_t l = 0; l < ordo_session_model(r.session, 0)->n_leaves; l++)
      now += ordo_session_model(r.session, 0)->leaves[l]->numel *
             (int64_t)ordo_dtype_size(ordo_session_model(r.session, 0)->leaves[l]->grad_dtype);
  }
  rig_close(&r);
  return now;
}

/* 16-bit weights and gradients take half the bytes once the set-up is done: the fp32 weights they came from are gone. */
static void weights_and_gradients_take_half(void **state)
{
  (void)state;
  for (uint32_t tag = ORDO_MEM_WEIGHTS; tag <= ORDO_MEM_GRADIENTS; tag++) {
    int64_t whole = bytes_of(NULL, tag), norm = 4 * rig_numel(RIG_NORM);
    assert_int_equal(whole, 4 * (rig_numel(0) + rig_numel(1)) + norm);
    assert_int_equal(bytes_of("apex_amp:O3", tag), whole / 2);
    assert_int_equal(bytes_of("apex_amp:O5", tag), (whole - norm) / 2 + norm);
  }
  assert_int_equal(bytes_of("apex_amp:O5", ORDO_MEM_OPTIMIZER), 8 * (rig_numel(0) + rig_numel(1))); /* master and its gradient */
}

/* The set-up converts leaf by leaf: at its peak it holds the fp32 weights and the 16 bits of one leaf, not of the model. */
static void at_the_peak_of_the_set_up_one_leaf_is_there_twice(void **state)
{
  static const char *const precisions[] = {"apex_amp:O2", "apex_amp:O5", "apex_amp:O3"};
  const int64_t whole = 4 * (rig_numel(0) + rig_numel(1) + rig_numel(RIG_NORM));
  (void)state;
  for (size_t k = 0; k < sizeof precisions / sizeof precisions[0]; k++) {
    int64_t now, peak;
    rig r;
    rig_start(&r, &(rig_options){.strategy = "ddp", .precision = precisions[k], .lr = 0.1});
    ordo_session_memory(r.session, ORDO_MEM_WEIGHTS, &now, &peak);
    assert_true(now < whole);
    assert_int_equal(peak, whole + 2 * rig_numel(0));
    rig_close(&r);
  }
}

/* O0 computes what no precision plugin computes, to the bit, also when it clips. */
static void o0_is_no_precision(void **state)
{
  (void)state;
  for (size_t c = 0; c < N_STRATEGIES; c++) {
    rig plain, o0;
    ordo_step_result a, b;
    if (!fits(STRATEGIES[c]))
      continue;
    rig_start(&plain, &(rig_options){.strategy = STRATEGIES[c], .lr = 0.5, .max_norm = 0.3, .n_micro = 2});
    rig_start(&o0, &(rig_options){.strategy = STRATEGIES[c], .precision = "apex_amp:O0", .lr = 0.5, .max_norm = 0.3, .n_micro = 2});
    for (int step = 1; step <= 5; step++) {
      rig_expect_ok(rig_step(&plain, &a), "none");
      rig_expect_ok(rig_step(&o0, &b), "O0");
      assert_true(a.grad_norm == b.grad_norm && a.clip_coef == b.clip_coef && a.clip_coef < 1.0);
      for (int p = 0; p < RIG_PARAMS; p++)
        for (int64_t i = 0; p < 3 && i < rig_numel(p); i++)
          assert_true(rig_weight(&plain, p, i) == rig_weight(&o0, p, i));
    }
    assert_int_equal(o0.converts, 0);
    rig_close(&plain);
    rig_close(&o0);
  }
}

/* Norm and clip see unscaled fp32 gradients of masters: a power of two as scale changes nothing. */
static void clipping_works_on_masters(void **state)
{
  (void)state;
  rig a, b;
  ordo_step_result ra, rb;
  rig_start(&a, &(rig_options){.strategy = "ddp", .precision = "apex_amp:O2:loss_scale=1", .lr = 0.5, .max_norm = 0.3, .ordered = 1});
  rig_start(&b, &(rig_options){.strategy = "ddp", .precision = "apex_amp:O2:loss_scale=256", .lr = 0.5, .max_norm = 0.3, .ordered = 1});
  for (int step = 1; step <= 5; step++) {
    double norm = 0.0;
    rig_expect_ok(rig_step(&a, &ra), "1");
    rig_expect_ok(rig_step(&b, &rb), "256");
    for (uint32_t l = 0; l < 3; l++) {
      const ordo_leaf *leaf = ordo_session_model(b.session, 0)->leaves[l], *side = leaf->master ? leaf->master : leaf;
      for (int64_t i = 0; i < side->numel; i++)
        norm += (double)((const float *)side->grad)[i] * (double)((const float *)side->grad)[i];
    }
    assert_true(fabs(sqrt(norm) - rb.grad_norm) <= 1e-12 * rb.grad_norm);
    assert_true(rb.clip_coef < 1.0 && fabs(rb.clip_coef - 0.3 / (rb.grad_norm + 1e-6)) <= 1e-15);
    /* Gradients below fp16's normal range round differently without the scale: that is what it is for. */
    assert_true(fabs(ra.grad_norm - rb.grad_norm) <= 1e-4 * rb.grad_norm);
  }
  rig_close(&a);
  rig_close(&b);
}

/* 64 micro-batches in bf16: sums kept in bf16 lose the small summands, sums kept in fp32 do not. */
static void fp32_sums_lose_nothing(void **state)
{
  static const char *const precisions[] = {"apex_amp:O4", "apex_amp:O5", "apex_amp:O5:delay_unscale=true"};
  double norm[3];
  (void)state;
  for (int k = 0; k < 3; k++) {
    rig r;
    ordo_step_result result;
    rig_start(&r, &(rig_options){.strategy = "ddp", .precision = precisions[k], .lr = 0.0, .n_micro = 64});
    rig_expect_ok(rig_step(&r, &result), precisions[k]);
    norm[k] = result.grad_norm;
    rig_close(&r);
  }
  /* Each gradient is rounded, the sum once more: 2^-8 relative at worst. Adding 64 of them in bf16 is off by more than ten times that of
   * the fp32 sum. */
  assert_true(fabs(norm[1] - norm[0]) <= 0x1p-8 * norm[0]);
  assert_true(fabs(norm[2] - norm[0]) > 4.0 * fabs(norm[1] - norm[0]));
}

static void the_loss_falls(void **state)
{
  (void)state;
  for (size_t k = 0; k < sizeof KINDS / sizeof KINDS[0]; k++) {
    rig r;
    double first = 0.0;
    rig_start(&r, &(rig_options){.strategy = "ddp", .precision = KINDS[k].precision, .lr = 0.2, .max_norm = 10.0});
    for (int step = 1; step <= 20; step++) {
      rig_expect_ok(rig_step(&r, NULL), KINDS[k].precision);
      if (step == 1)
        first = r.last_loss;
    }
    assert_true(r.last_loss < 0.9 * first);
    assert_int_equal(r.scheduler_steps, r.last_update);
    rig_close(&r);
  }
}

/* Parameters that came with the embedder's storage move into the host's. */
static void storage_of_the_embedder_is_left_alone(void **state)
{
  (void)state;
  rig r;
  rig_start(&r, &(rig_options){.strategy = "ddp", .precision = "apex_amp:O2", .lr = 0.2, .with_data = 1});
  rig_expect_ok(rig_step(&r, NULL), "step");
  for (int p = 0; p < 2; p++) {
    assert_true(ordo_session_model(r.session, 0)->params[p]->data != (void *)r.storage[p]);
    for (int64_t i = 0; i < rig_numel(p); i++)
      assert_true(r.storage[p][i] == rig_initial(p, i));
  }
  assert_ptr_equal(ordo_session_model(r.session, 0)->params[RIG_NORM]->data, r.storage[RIG_NORM]);
  rig_close(&r);
}

/* Writes every other element of a matrix in a scope and looks at all of them afterwards, then takes a step that changes nothing. */
static void write_back(const char *strategy, const char *precision, uint32_t flags)
{
  enum { PARAM = 1 };
  float before[RIG_MOST] = {0}, exported[RIG_MOST];
  rig r;
  rig_start(&r, &(rig_options){.strategy = strategy, .precision = precision, .lr = 1e-4});
  rig_expect_ok(rig_step(&r, NULL), precision); /* a master has more bits than the model from now on */
  for (int64_t i = 0; i < rig_numel(PARAM); i++)
    before[i] = rig_weight(&r, PARAM, i);
  const ordo_param *param = ordo_session_model(r.session, 0)->params[PARAM];
  rig_expect_ok(ordo_session_gather_full(r.session, 0, flags), "gather_full");
  for (int64_t i = 0; i < rig_numel(PARAM) && (!(flags & ORDO_GATHER_RANK0_ONLY) || rig_me == 0); i += 2)
    if (param->dtype == ORDO_F32)
      ((float *)param->data)[i] = 1.5f;
    else
      ((uint16_t *)param->data)[i] = param->dtype == ORDO_BF16 ? 0x3fc0 : 0x3e00;
  rig_expect_ok(ordo_session_release_full(r.session, 0), "release_full");
  rig_expect_ok(ordo_session_export_param(r.session, param, -1, exported), "export");
  for (int64_t i = 0; i < rig_numel(PARAM); i++) {
    const float expected = i % 2 == 0 ? 1.5f : before[i];
    if (!rig_holds(&r, PARAM, i))
      continue;
    if (rig_weight(&r, PARAM, i) != expected || exported[i] != expected)
      fail_msg("%s %s, flags %u, element %d: weight %.9g, exported %.9g, not %.9g", strategy ? strategy : "none", precision, flags, (int)i,
               (double)rig_weight(&r, PARAM, i), (double)exported[i], (double)expected);
  }
  r.still = 1;
  rig_expect_ok(rig_step(&r, NULL), "a step without gradients");
  for (int64_t i = 0; i < rig_numel(PARAM); i++)
    assert_true(!rig_holds(&r, PARAM, i) || rig_stored(&r, PARAM, i) == (i % 2 == 0 ? 1.5f : rig_round(param->dtype, before[i])));
  rig_close(&r);
}

/* Masters that did not follow undid in the next step what a scope had written; one whose element was not written keeps every bit. */
static void masters_follow_what_a_scope_writes_back(void **state)
{
  static const char *const precisions[] = {"apex_amp:O0", "apex_amp:O2", "apex_amp:O3", "apex_amp:O5"};
  (void)state;
  for (size_t p = 0; p < sizeof precisions / sizeof precisions[0]; p++) {
    for (int s = 0; s < N_STRATEGIES; s++)
      for (uint32_t only = 0; only <= ORDO_GATHER_RANK0_ONLY && fits(STRATEGIES[s]); only += ORDO_GATHER_RANK0_ONLY)
        write_back(STRATEGIES[s], precisions[p], ORDO_GATHER_WRITE_BACK | only);
    write_back("fsdp1:use_orig_params=false", precisions[p], ORDO_GATHER_WRITE_BACK);
  }
}

static void evaluation_casts_and_wraps_nothing(void **state)
{
  (void)state;
  rig r;
  rig_start(&r, &(rig_options){.strategy = "ddp", .precision = "apex_amp:O2", .plan_flags = ORDO_PLAN_EVAL});
  assert_int_equal(ordo_session_model(r.session, 0)->params[1]->dtype, ORDO_F16);
  assert_null(ordo_session_model(r.session, 0)->params[1]->leaf->master);
  assert_true(rig_stored(&r, 1, 2) == rig_round(ORDO_F16, rig_initial(1, 2)));
  rig_close(&r);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_level_is_its_simulation),
      cmocka_unit_test(levels_decide_types),
      cmocka_unit_test(weights_and_gradients_take_half),
      cmocka_unit_test(at_the_peak_of_the_set_up_one_leaf_is_there_twice),
      cmocka_unit_test(o0_is_no_precision),
      cmocka_unit_test(clipping_works_on_masters),
      cmocka_unit_test(fp32_sums_lose_nothing),
      cmocka_unit_test(the_loss_falls),
      cmocka_unit_test(storage_of_the_embedder_is_left_alone),
      cmocka_unit_test(masters_follow_what_a_scope_writes_back),
      cmocka_unit_test(evaluation_casts_and_wraps_nothing),
  };
  return rig_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
