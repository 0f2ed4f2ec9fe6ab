/* test_reducer.c - training steps of the ddp strategy on simulated ranks: sums, factors, order of collectives, accumulation,
 * unused parameters, static graphs, hooks, bytes. Gradients are small integers and divide factors powers of two, so every
 * expected number is exact. */
#include "mock.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static mock_world world;
static mock_rank ranks[MAX_RANKS];

static const int64_t NUMELS[] = {16, 7, 33, 4, 20, 1};
enum { N = 6 };

static void set_up(int size)
{
  mock_init(&world, ranks, size, N, NUMELS);
  mock_option(ranks, size, "bucket_cap", "100"); /* bytes, 25 floats: several buckets */
  mock_option(ranks, size, "first_bucket", "40");
}

static void wrap(void)
{
  ordo_status status[MAX_RANKS];
  mock_run(&world, ranks, mock_wrap, status);
  for (int r = 0; r < world.size; r++) {
    if (status[r] != ORDO_OK)
      print_error("rank %d: %s\n", r, ranks[r].error);
    assert_int_equal(status[r], ORDO_OK);
  }
}

static void run(mock_step *step)
{
  mock_run(&world, ranks, mock_train, step);
  assert_string_equal(world.breach, "");
}

static void run_ok(mock_step *step)
{
  run(step);
  for (int r = 0; r < world.size; r++) {
    if (step->status[r] != ORDO_OK)
      print_error("rank %d: %s\n", r, ranks[r].error);
    assert_int_equal(step->status[r], ORDO_OK);
  }
}

static void tear_down(void)
{
  mock_run(&world, ranks, mock_destroy, NULL);
  for (int r = 0; r < world.size; r++) {
    assert_int_equal(ranks[r].open_blocks, 0);
    assert_int_equal(ranks[r].open_windows, 0);
    assert_int_equal(ranks[r].open_requests, 0);
    for (uint32_t i = 0; i < ranks[r].model.n_leaves; i++)
      assert_ptr_equal(ranks[r].leaves[i].grad, ranks[r].own_grads[i]); /* the embedder has its memory back */
  }
  mock_clear(&world, ranks);
}

/* What the averaged gradient of element i of param p must be. */
static double expected(const mock_step *step, int p, int64_t i)
{
  double sum = 0.0;
  for (int r = 0; r < world.size; r++)
    for (int micro = 0; micro < step->n_micro; micro++) {
      uint64_t skip = step->skip[r] | (micro == step->n_micro - 1 ? step->skip_in_last[r] : 0);
      if (((skip >> p) & 1) == 0)
        sum += (double)mock_gradient(r, step->step, micro, p, i);
    }
  return sum / step->divide_factor;
}

static void check_gradients(const mock_step *step, double tolerance)
{
  for (int r = 0; r < world.size; r++)
    for (int p = 0; p < N; p++) {
      const ordo_leaf *leaf = &ranks[r].leaves[p];
      assert_int_equal(ranks[r].reduced[p], 1);
      assert_true(ranks[r].divided_by[p] == step->divide_factor);
      for (int64_t i = 0; leaf->grad_state == ORDO_GRAD_HELD && i < leaf->numel; i++) {
        double want = expected(step, p, i), got = (double)((const float *)leaf->grad)[i];
        if (!(fabs(got - want) <= tolerance * fabs(want)))
          fail_msg("rank %d, param %d, element %lld: %.9g instead of %.9g", r, p, (long long)i, got, want);
      }
    }
}

/* Number of bucket collectives that a rank started from event `from` on, and the first one's position among its 'r' events. */
static int count_buckets_of(const mock_rank *rank, int from, int *ready_before_first)
{
  int buckets = 0, ready = 0;
  for (int e = from; e < rank->n_events; e++) {
    const mock_event *event = &rank->events[e];
    ready += event->kind == 'r';
    if (event->kind != 's' || strncmp(world.collectives[event->index].label, "bucket", 6) != 0)
      continue;
    if (buckets++ == 0)
      *ready_before_first = ready;
  }
  return buckets;
}

static int count_buckets(int from, int *ready_before_first)
{
  return count_buckets_of(&ranks[0], from, ready_before_first);
}

static void averages_at_any_size(void **state)
{
  (void)state;
  for (int size = 1; size <= MAX_RANKS; size++) {
    set_up(size);
    wrap();
    for (int s = 1; s <= 3; s++) {
      mock_step step = {.step = s, .n_micro = 1, .divide_factor = 4.0};
      run_ok(&step);
      check_gradients(&step, 0.0);
      for (int r = 1; r < size; r++) /* replicas get the same bits */
        for (int p = 0; p < N; p++)
          assert_memory_equal(ranks[r].leaves[p].grad, ranks[0].leaves[p].grad, (size_t)NUMELS[p] * sizeof(float));
    }
    tear_down();
  }
}

/* First step: one bucket, started at the end. From the second step on: several, the first one started early. */
static void first_step_has_one_bucket_then_rebuilt(void **state)
{
  (void)state;
  set_up(2);
  wrap();
  int before = 0, from = ranks[0].n_events;
  mock_step step = {.step = 1, .n_micro = 1, .divide_factor = 1.0};
  run_ok(&step);
  assert_int_equal(count_buckets(from, &before), 1);
  assert_int_equal(before, N);

  from = ranks[0].n_events;
  step.step = 2;
  run_ok(&step);
  check_gradients(&step, 0.0);
  /* order 5 4 3 2 1 0, bytes 4 80 16 132 28 64, limits 40 then 100: {5 4} {3 2} {1 0} */
  assert_int_equal(count_buckets(from, &before), 3);
  assert_int_equal(before, 2);
  const float *grad = ranks[0].leaves[5].grad;
  assert_ptr_equal(ranks[0].leaves[4].grad, grad + 1); /* neighbours in the bucket, views of one memory */
  tear_down();
}

/* Ranks see their gradients in different orders; rank 0's decides, and collectives are issued by index everywhere. */
static int forwards[N] = {0, 1, 2, 3, 4, 5};
static int shuffled[N] = {2, 5, 0, 4, 1, 3};

static void train_in_rank_order(mock_rank *rank, void *arg)
{
  mock_step step = *(mock_step *)arg;
  step.order = rank->rank == 0 ? shuffled : rank->rank == 1 ? forwards : NULL;
  mock_train(rank, &step);
  ((mock_step *)arg)->status[rank->rank] = step.status[rank->rank];
}

static void order_of_rank_0_rules(void **state)
{
  (void)state;
  set_up(3);
  wrap();
  for (int s = 1; s <= 3; s++) {
    mock_step step = {.step = s, .n_micro = 1, .divide_factor = 2.0};
    mock_run(&world, ranks, train_in_rank_order, &step);
    assert_string_equal(world.breach, ""); /* the mock compares the sequences of all ranks */
    for (int r = 0; r < 3; r++)
      assert_int_equal(step.status[r], ORDO_OK);
    check_gradients(&step, 0.0);
  }
  /* rebuilt in the order 2 5 0 4 1 3, limits 40, 100: {2} {5 0 4} {1 3} */
  for (int r = 0; r < 3; r++) {
    const char *five = ranks[r].leaves[5].grad, *one = ranks[r].leaves[1].grad;
    assert_ptr_equal(ranks[r].leaves[0].grad, five + 4);
    assert_ptr_equal(ranks[r].leaves[4].grad, five + 4 + 64);
    assert_ptr_equal(ranks[r].leaves[3].grad, one + 28);
  }
  tear_down();
}

/* Nothing is exchanged before the last micro-batch, and the sum of all of them is. */
static void accumulation_synchronises_once(void **state)
{
  (void)state;
  set_up(2);
  wrap();
  for (int s = 1; s <= 2; s++) {
    int from = ranks[0].n_events, before = 0;
    mock_step step = {.step = s, .n_micro = 4, .divide_factor = 8.0};
    run_ok(&step);
    check_gradients(&step, 0.0);
    assert_int_equal(count_buckets(from, &before), s == 1 ? 1 : 3);
    assert_true(before > 3 * N);
  }
  tear_down();
}

/* A param that only earlier micro-batches used still holds their gradient. */
static void used_in_an_earlier_micro_batch_only(void **state)
{
  (void)state;
  set_up(2);
  wrap();
  for (int s = 1; s <= 2; s++) {
    mock_step step = {.step = s, .n_micro = 2, .divide_factor = 1.0, .skip_in_last = {1u << 2, 0}};
    run_ok(&step);
    check_gradients(&step, 0.0);
  }
  tear_down();
}

static void payload_is_four_bytes_a_parameter(void **state)
{
  (void)state;
  int64_t total = 0;
  for (int p = 0; p < N; p++)
    total += NUMELS[p];
  set_up(3);
  wrap();
  for (int s = 1; s <= 3; s++) {
    int64_t before = ranks[1].all_reduce_bytes;
    mock_step step = {.step = s, .n_micro = 2, .divide_factor = 1.0};
    run_ok(&step);
    assert_int_equal(ranks[1].all_reduce_bytes - before, 4 * total);
  }
  tear_down();
}

/* The factor travels with the collective (pre-multiplied); ordered mode says so on each one. */
static void factor_and_ordered_flag(void **state)
{
  (void)state;
  for (uint32_t ordered = 0; ordered <= 1; ordered++) {
    set_up(3);
    for (int r = 0; r < 3; r++)
      ranks[r].job.ordered = ordered;
    wrap();
    mock_step step = {.step = 1, .n_micro = 1, .divide_factor = 3.0};
    run_ok(&step);
    /* one rounding each for 1/3, the product and three sums: 5 half-ulps */
    check_gradients(&step, 5 * 0x1p-24);
    int seen = 0;
    for (int c = 0; c < world.n_collectives; c++) {
      const ordo_collective *d = &world.collectives[c].desc;
      if (d->kind != ORDO_ALL_REDUCE)
        continue;
      seen++;
      assert_true(d->factor == 1.0 / 3.0);
      assert_int_equal(d->op, ORDO_SUM);
      assert_int_equal(d->flags, ordered ? ORDO_COMM_ORDERED : 0);
    }
    assert_int_equal(seen, 1);
    tear_down();
  }
}

/* Without detection a param that some rank did not use is an error on every rank, with names; nobody hangs. */
static void missing_gradient_is_named_on_all_ranks(void **state)
{
  (void)state;
  set_up(3);
  wrap();
  mock_step fine = {.step = 1, .n_micro = 1, .divide_factor = 1.0};
  run_ok(&fine);
  mock_step step = {.step = 2, .n_micro = 1, .divide_factor = 1.0, .skip = {1u << 3, 0, 1u << 3 | 1u << 1}};
  run(&step);
  for (int r = 0; r < 3; r++) {
    assert_int_equal(step.status[r], ORDO_E_INVARIANT);
    assert_non_null(strstr(ranks[r].error, "'p3' on ranks 0, 2"));
    assert_non_null(strstr(ranks[r].error, "'p1' on rank 2"));
    assert_non_null(strstr(ranks[r].hint, "find_unused_parameters"));
  }
  tear_down();
}

static void unused_parameters(void **state)
{
  (void)state;
  set_up(2);
  mock_option(ranks, 2, "find_unused_parameters", "1");
  wrap();
  for (int s = 1; s <= 3; s++) { /* p1 unused on both ranks, p3 on rank 0, p0 on rank 1; the set changes freely */
    int from = ranks[0].n_events, before = 0;
    uint64_t both = s == 3 ? 0 : 1u << 1;
    mock_step step = {.step = s, .n_micro = 2, .divide_factor = 2.0, .skip = {both | 1u << 3, both | 1u << 0}};
    run_ok(&step);
    check_gradients(&step, 0.0);                       /* a rank without gradient adds zeros, not the NaN that its memory holds */
    assert_int_equal(count_buckets(from, &before), 3); /* every bucket is reduced; no single bucket, no rebuilding */
    for (int r = 0; r < 2; r++) {
      assert_int_equal(ranks[r].leaves[1].grad_state, s == 3 ? ORDO_GRAD_HELD : ORDO_GRAD_NONE);
      assert_int_equal(ranks[r].leaves[3].grad_state, ORDO_GRAD_HELD);
      assert_int_equal(ranks[r].leaves[0].grad_state, ORDO_GRAD_HELD);
    }
  }
  tear_down();
}

static void static_graph(void **state)
{
  (void)state;
  set_up(2);
  mock_option(ranks, 2, "static_graph", "1");
  wrap();
  for (int s = 1; s <= 3; s++) {
    int from = ranks[1].n_events, before = 0;
    mock_step step = {.step = s, .n_micro = 1, .divide_factor = 2.0, .skip = {1u << 1 | 1u << 5, 1u << 1 | 1u << 4}};
    run_ok(&step);
    check_gradients(&step, 0.0);
    assert_int_equal(count_buckets_of(&ranks[1], from, &before), s == 1 ? 1 : 3);
    /* Rank 0's order puts p4 into a bucket of its own. Rank 1 never uses it and, once that is learned, does not wait for it. */
    assert_int_equal(before, s == 1 ? N - 2 : 1);
    assert_int_equal(ranks[0].leaves[1].grad_state, ORDO_GRAD_NONE);
    assert_int_equal(ranks[0].leaves[5].grad_state, ORDO_GRAD_HELD);
  }
  /* rank 1 uses p1 now; rank 0 does not use p2 any more */
  mock_step step = {.step = 4, .n_micro = 1, .divide_factor = 2.0, .skip = {1u << 1 | 1u << 5 | 1u << 2, 1u << 4}};
  mock_run(&world, ranks, mock_train, &step);
  for (int r = 0; r < 2; r++) {
    assert_int_equal(step.status[r], ORDO_E_INVARIANT);
    assert_non_null(strstr(ranks[r].error, "'p1' on rank 1"));
    assert_non_null(strstr(ranks[r].error, "'p2' on rank 0"));
    assert_non_null(strstr(ranks[r].error, "static_graph"));
  }
  tear_down();
}

static void not_finite_is_named(void **state)
{
  (void)state;
  set_up(2);
  mock_option(ranks, 2, "reduce_nan_check", "1");
  wrap();
  mock_step step = {.step = 1, .n_micro = 1, .divide_factor = 1.0};
  run_ok(&step);
  step.step = 2;
  step.poison[1] = 1u << 2;
  run(&step);
  for (int r = 0; r < 2; r++) {
    assert_int_equal(step.status[r], ORDO_E_INVARIANT);
    assert_non_null(strstr(ranks[r].error, "'p2' on rank 1"));
  }
  tear_down();
}

/* Frozen leaves take no part; ignored ones keep their own memory and are reported as not divided. */
static void frozen_and_ignored(void **state)
{
  (void)state;
  set_up(2);
  mock_option(ranks, 2, "ignored", "p4,p[3]");
  for (int r = 0; r < 2; r++) {
    ranks[r].params[2].flags = 0;
    ranks[r].leaves[2].flags = 0;
  }
  wrap();
  mock_step step = {.step = 1, .n_micro = 1, .divide_factor = 1.0};
  run_ok(&step);
  for (int r = 0; r < 2; r++) {
    assert_int_equal(ranks[r].reduced[2], 0);
    assert_ptr_equal(ranks[r].leaves[2].grad, ranks[r].own_grads[2]);
    for (int p = 3; p <= 4; p++) {
      assert_int_equal(ranks[r].reduced[p], 1);
      assert_true(ranks[r].divided_by[p] == 1.0);
      assert_true(((float *)ranks[r].leaves[p].grad)[0] == mock_gradient(r, 1, 0, p, 0));
    }
    assert_true(((float *)ranks[r].leaves[0].grad)[0] == (float)expected(&step, 0, 0));
  }
  tear_down();
}

/* 16-bit hooks: half the bytes exactly. Error: one rounding of each summand and one of the sum, each half an ulp of the
 * format, relative to positive numbers. */
static void compression_halves_the_bytes(void **state)
{
  (void)state;
  static const struct {
    const char *name;
    double half_ulp;
  } hooks[] = {{"fp16", 0x1p-11}, {"bf16", 0x1p-8}};
  for (size_t h = 0; h < 2; h++) {
    set_up(3);
    mock_option(ranks, 3, "hook", hooks[h].name);
    wrap();
    for (int s = 1; s <= 2; s++) {
      int64_t before = ranks[2].all_reduce_bytes;
      mock_step step = {.step = s, .n_micro = 1, .divide_factor = 3.0};
      run_ok(&step);
      assert_int_equal(ranks[2].all_reduce_bytes - before, 2 * 81);
      check_gradients(&step, 2.1 * hooks[h].half_ulp);
      for (int p = 0; p < N; p++)
        assert_memory_equal(ranks[0].leaves[p].grad, ranks[2].leaves[p].grad, (size_t)NUMELS[p] * sizeof(float));
    }
    tear_down();
  }
}

/* A hook plugin owns reduction and division, sees leaves and offsets, and is told when the layout changed. */
typedef struct spy {
  int started, finished;
  uint64_t generation;
} spy;

static ordo_status spy_start(void *instance, const ordo_bucket *bucket, void **handle)
{
  spy *s = instance;
  s->started++;
  s->generation = bucket->generation;
  for (uint64_t l = 0; l < bucket->n_leaves; l++)
    if ((float *)bucket->leaves[l]->grad != bucket->data + bucket->leaf_offsets[l])
      return ORDO_E_INTERNAL;
  *handle = s;
  return ORDO_OK;
}

static ordo_status spy_finish(void *instance, const ordo_bucket *bucket, void *handle)
{
  spy *s = instance;
  if (handle != instance)
    return ORDO_E_INTERNAL;
  s->finished++;
  for (int64_t i = 0; i < bucket->numel; i++)
    bucket->data[i] = (float)bucket->divide_factor;
  return ORDO_OK;
}

static void hook_slot(void **state)
{
  (void)state;
  static const ordo_comm_hook hook = {.struct_size = sizeof hook, .start = spy_start, .finish = spy_finish};
  spy spies[2] = {{0}, {0}};
  set_up(2);
  mock_option(ranks, 2, "hook", "spy");
  for (int r = 0; r < 2; r++) {
    ranks[r].plugin_hook = &hook;
    ranks[r].plugin_hook_instance = &spies[r];
  }
  wrap();
  mock_step step = {.step = 1, .n_micro = 1, .divide_factor = 6.0};
  run_ok(&step);
  uint64_t generation = spies[0].generation;
  assert_int_equal(spies[0].started, 1);
  step.step = 2;
  run_ok(&step);
  assert_int_equal(spies[0].started, 4);
  assert_int_equal(spies[0].finished, 4);
  assert_true(spies[0].generation != generation);
  assert_true(((float *)ranks[1].leaves[3].grad)[0] == 6.0f);
  assert_int_equal(ranks[0].all_reduce_bytes, 0);
  tear_down();
}

/* A tie group is one leaf: both members bound to one place, one summand, and a report for each member is no error. */
static void train_tied(mock_rank *rank, void *arg)
{
  mock_step *step = arg;
  const ordo_strategy *s = rank->strategy;
  ordo_step_info info = {sizeof info, step->step, 0, 1, 1, 0, step->divide_factor};
  ordo_status status = s->step_begin(rank->instance, &info);
  if (status == ORDO_OK)
    status = s->micro_begin(rank->instance, &info);
  for (int p = N - 1; p-- > 0;)
    for (int64_t i = 0; i < rank->params[p].numel; i++)
      ((float *)rank->params[p].grad)[i] = mock_gradient(rank->rank, step->step, 0, p, i);
  static const int reports[] = {0, 5, 4, 3, 2, 1};
  for (int k = 0; status == ORDO_OK && k < N; k++)
    status = s->grad_ready(rank->instance, &rank->params[reports[k]]);
  step->status[rank->rank] = status == ORDO_OK ? s->reduce(rank->instance, &info) : status;
}

static void tied_parameters(void **state)
{
  (void)state;
  set_up(2);
  for (int r = 0; r < 2; r++) {
    ranks[r].params[5].numel = ranks[r].params[5].shape[0] = ranks[r].params[5].local_shape[0] = NUMELS[0];
    mock_tie(&ranks[r], 0, 5);
  }
  wrap();
  for (int s = 1; s <= 2; s++) {
    mock_step step = {.step = s, .n_micro = 1, .divide_factor = 1.0};
    mock_run(&world, ranks, train_tied, &step);
    assert_string_equal(world.breach, "");
    for (int r = 0; r < 2; r++) {
      assert_int_equal(step.status[r], ORDO_OK);
      assert_ptr_equal(ranks[r].params[5].grad, ranks[r].params[0].grad);
      assert_true(((float *)ranks[r].leaves[0].grad)[1] == (float)expected(&step, 0, 1));
    }
  }
  mock_run(&world, ranks, mock_destroy, NULL);
  for (int r = 0; r < 2; r++)
    assert_ptr_equal(ranks[r].params[5].grad, ranks[r].own_grads[0]);
  mock_clear(&world, ranks);
}

/* A leaf that is reported twice would lose what came after the bucket left. */
static int twice[N] = {5, 4, 4, 2, 1, 0};

static void ready_twice_is_an_error(void **state)
{
  (void)state;
  set_up(2);
  wrap();
  mock_step step = {.step = 1, .n_micro = 1, .divide_factor = 1.0, .order = twice};
  run(&step);
  for (int r = 0; r < 2; r++) {
    assert_int_equal(step.status[r], ORDO_E_INVARIANT);
    assert_non_null(strstr(ranks[r].error, "'p4' on ranks 0, 1"));
  }
  tear_down();
}

/* ddp over a sharding strategy: the leaves' gradients appear elsewhere, in step.reduce, and some shards are empty. */
static float shard_grads[2][N][64];

static void train_sharded(mock_rank *rank, void *arg)
{
  mock_step *step = arg;
  ordo_step_info info = {sizeof info, step->step, 0, 1, 1, 0, step->divide_factor};
  const ordo_strategy *s = rank->strategy;
  ordo_status status = s->step_begin(rank->instance, &info);
  if (status == ORDO_OK)
    status = s->micro_begin(rank->instance, &info);
  for (int p = N; status == ORDO_OK && p-- > 0;) /* grad_ready speaks of the whole param, not of the shard */
    status = s->grad_ready(rank->instance, &rank->params[p]);
  int started = rank->started;
  for (int p = 0; p < N; p++) {
    ordo_leaf *leaf = &rank->leaves[p];
    float *target = leaf->grad;
    if (p == 2) /* this one the other strategy keeps in memory of its own */
      target = leaf->grad = shard_grads[rank->rank][p];
    for (int64_t i = 0; i < leaf->numel; i++)
      target[i] = mock_gradient(rank->rank, step->step, 0, p, i);
    leaf->grad_state = ORDO_GRAD_HELD;
    rank->reduced[p] = 0;
  }
  if (status == ORDO_OK)
    status = started == rank->started ? s->reduce(rank->instance, &info) : ORDO_E_INTERNAL;
  step->status[rank->rank] = status;
}

static void over_a_sharding_strategy(void **state)
{
  (void)state;
  const int64_t shards[] = {8, 0, 16, 0, 10, 1};
  set_up(2);
  for (int r = 0; r < 2; r++) {
    ranks[r].placement.data[0] = ORDO_SHARD;
    for (int p = 0; p < N; p++) {
      ranks[r].leaves[p].numel = shards[p];
      ranks[r].leaves[p].data = NULL; /* not loaded yet */
      ranks[r].leaves[p].grad = NULL;
    }
  }
  wrap();
  assert_ptr_equal(ranks[0].params[0].grad, ranks[0].own_grads[0]); /* where the model computes is not ddp's business */
  for (int s = 1; s <= 2; s++) {
    mock_step step = {.step = s, .n_micro = 1, .divide_factor = 1.0};
    mock_run(&world, ranks, train_sharded, &step);
    assert_string_equal(world.breach, "");
    for (int r = 0; r < 2; r++)
      assert_int_equal(step.status[r], ORDO_OK);
    check_gradients(&step, 0.0);
  }
  mock_run(&world, ranks, mock_destroy, NULL);
  for (int r = 0; r < 2; r++) {
    assert_null(ranks[r].leaves[0].grad);
    assert_int_equal(ranks[r].open_windows, 0);
    assert_int_equal(ranks[r].open_blocks, 0);
  }
  mock_clear(&world, ranks);
}

/* Ordered mode: a sharding strategy has summed over both data axes. Nothing is left to add up, and nothing is missing either. */
static void gradients_summed_elsewhere_are_left_alone(void **state)
{
  (void)state;
  set_up(2);
  for (int r = 0; r < 2; r++)
    ranks[r].placement.grad_partial[0] = 0;
  wrap();
  for (int s = 1; s <= 2; s++) {
    mock_step step = {.step = s, .n_micro = 1, .divide_factor = 1.0};
    for (int r = 0; r < 2; r++)
      memset(ranks[r].reduced, 0, sizeof ranks[r].reduced);
    mock_run(&world, ranks, train_sharded, &step);
    assert_string_equal(world.breach, "");
    for (int r = 0; r < 2; r++)
      for (int p = 0; p < N; p++) {
        const ordo_leaf *leaf = &ranks[r].leaves[p];
        assert_int_equal(step.status[r], ORDO_OK);
        assert_int_equal(ranks[r].reduced[p], 0);
        for (int64_t i = 0; i < leaf->numel; i++)
          assert_true(((const float *)leaf->grad)[i] == mock_gradient(r, s, 0, p, i));
      }
  }
  for (int r = 0; r < 2; r++)
    ranks[r].leaves[2].grad = ranks[r].own_grads[2]; /* the other strategy moved it */
  tear_down();
}

/* Ten steps, then every interval: four numbers each. In the first step communication spans two looks at the clock (end of backward, end of
 * the waits) and is busy for two starts and two waits, bucket and vote: overlap 1 - 1/2. */
static void statistics(void **state)
{
  (void)state;
  set_up(2);
  mock_option(ranks, 2, "stats_interval", "20");
  wrap();
  for (int s = 1; s <= 21; s++) {
    mock_step step = {.step = s, .n_micro = 1, .divide_factor = 1.0};
    run_ok(&step);
    assert_int_equal(ranks[0].n_metrics, 4 * (s < 10 ? s : s < 21 ? 10 : 11));
    assert_true(s > 1 || ranks[0].overlap == 0.5);
    assert_true(ranks[0].overlap >= 0.0 && ranks[0].overlap < 1.0);
  }
  tear_down();
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(averages_at_any_size),
      cmocka_unit_test(first_step_has_one_bucket_then_rebuilt),
      cmocka_unit_test(order_of_rank_0_rules),
      cmocka_unit_test(accumulation_synchronises_once),
      cmocka_unit_test(used_in_an_earlier_micro_batch_only),
      cmocka_unit_test(payload_is_four_bytes_a_parameter),
      cmocka_unit_test(factor_and_ordered_flag),
      cmocka_unit_test(missing_gradient_is_named_on_all_ranks),
      cmocka_unit_test(unused_parameters),
      cmocka_unit_test(static_graph),
      cmocka_unit_test(not_finite_is_named),
      cmocka_unit_test(frozen_and_ignored),
      cmocka_unit_test(compression_halves_the_bytes),
      cmocka_unit_test(hook_slot),
      cmocka_unit_test(tied_parameters),
      cmocka_unit_test(ready_twice_is_an_error),
      cmocka_unit_test(over_a_sharding_strategy),
      cmocka_unit_test(gradients_summed_elsewhere_are_left_alone),
      cmocka_unit_test(statistics),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
