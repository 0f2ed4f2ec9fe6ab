/* test_llama_moves.c - a model whose storage moves: weights exist only inside the windows that hooks open, at another address each time,
 * and blocks may be computed again in backward.
 *
 * The hooks here do what a sharded strategy does, and worse: memory outside a window is filled with NaN before it is freed. So a pointer
 * that was kept, a weight that is read too early, or a second gathering for the recomputation shows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels_memory.h"
#include "test_model.h"

enum { BATCH = 3, SEQ = 11, TOKENS = BATCH * SEQ, LAYERS = 3, MOST_PARAMS = 40, MOST_UNITS = 8 };

static const struct llama_config config = {.vocab = 29,
                                           .hidden = 24,
                                           .intermediate = 19,
                                           .layers = LAYERS,
                                           .heads = 4,
                                           .kv_heads = 2,
                                           .head_dim = 6,
                                           .max_positions = 16,
                                           .rms_eps = 1e-5,
                                           .rope_theta = 500.0};

struct mover {
  struct test_model *model;
  float *data[MOST_PARAMS]; /* what is bound now */
  float *grad[MOST_PARAMS];
  int forward_gathers[MOST_UNITS], backward_gathers[MOST_UNITS];
  int open;      /* windows open now */
  int most_open; /* at the same time */
  int row_outputs;
};

static size_t bytes_of(const struct mover *m, uint32_t param)
{
  return (size_t)llama_param_at(m->model->llama, param)->numel * sizeof(float);
}

static float *nan_block(const struct mover *m, uint32_t param)
{
  float *block = kernels_alloc(NULL, bytes_of(m, param), 0);
  memset(block, 0xff, bytes_of(m, param));
  return block;
}

static void release(const struct mover *m, uint32_t param, float **block)
{
  if (*block != NULL)
    memset(*block, 0xff, bytes_of(m, param));
  kernels_free(NULL, *block);
  *block = NULL;
}

/* Weights at a new address; a new gradient unless the tie group's must survive until the other member has added. */
static void open_window(struct mover *m, uint32_t unit, int backward)
{
  const struct llama_unit *u = llama_unit_at(m->model->llama, unit);
  m->open++;
  m->most_open = m->open > m->most_open ? m->open : m->most_open;
  for (uint32_t p = u->first_param; p < u->first_param + u->n_params; p++) {
    int tied = llama_param_at(m->model->llama, p)->tie_group >= 0;
    m->data[p] = nan_block(m, p);
    memcpy(m->data[p], m->model->weight[p], bytes_of(m, p));
    m->grad[p] = backward && !tied ? nan_block(m, p) : NULL;
    llama_bind(m->model->llama, p, m->data[p], m->grad[p] != NULL ? m->grad[p] : backward ? m->model->grad[p] : NULL);
  }
}

static void close_window(struct mover *m, uint32_t unit, int backward)
{
  const struct llama_unit *u = llama_unit_at(m->model->llama, unit);
  m->open--;
  for (uint32_t p = u->first_param; p < u->first_param + u->n_params; p++) {
    if (backward && m->grad[p] != NULL)
      memcpy(m->model->grad[p], m->grad[p], bytes_of(m, p));
    release(m, p, &m->data[p]);
    release(m, p, &m->grad[p]);
    int kept = backward && llama_param_at(m->model->llama, p)->tie_group >= 0;
    llama_bind(m->model->llama, p, NULL, kept ? m->model->grad[p] : NULL);
  }
}

static int pre_forward(void *ctx, uint32_t unit)
{
  struct mover *m = ctx;
  m->forward_gathers[unit]++;
  open_window(m, unit, 0);
  return 0;
}

static int post_forward(void *ctx, uint32_t unit)
{
  close_window(ctx, unit, 0);
  return 0;
}

static int pre_backward(void *ctx, uint32_t unit)
{
  struct mover *m = ctx;
  m->backward_gathers[unit]++;
  open_window(m, unit, 1);
  return 0;
}

static int post_backward(void *ctx, uint32_t unit)
{
  close_window(ctx, unit, 1);
  return 0;
}

static int overwrite(void *ctx, uint32_t param)
{
  (void)ctx;
  (void)param;
  return 0;
}

static int activation(void *ctx, const struct llama_activation *a)
{
  struct mover *m = ctx;
  const int logits = a->point == LLAMA_POINT_UNIT_OUTPUT && a->unit == llama_n_units(m->model->llama) - 1; /* in pieces */
  assert_true(logits ? a->columns == config.vocab : a->rows == TOKENS && a->columns == config.hidden);
  if (a->out != a->data)
    memcpy(a->out, a->data, (size_t)(a->rows * a->columns) * sizeof *a->data);
  m->row_outputs += a->point == LLAMA_POINT_ROW_OUTPUT && !a->backward;
  return 0;
}

static void fill(struct test_model *model, int32_t *ids, int32_t *targets)
{
  uint32_t state = 9;
  for (uint32_t p = 0; p < model->n_params; p++)
    for (int64_t i = 0; !test_model_is_alias(model, p) && i < llama_param_at(model->llama, p)->numel; i++)
      model->weight[p][i] = llama_param_at(model->llama, p)->ndim == 2 ? 0.4f * test_uniform(&state) : 1.0f + 0.2f * test_uniform(&state);
  for (int i = 0; i < TOKENS; i++) {
    (void)test_uniform(&state);
    ids[i] = (int32_t)((state >> 8) % 29);
    targets[i] = i % 4 == 1 ? -100 : (int32_t)((state >> 16) % 29);
  }
}

/* One forward and backward; returns the loss. `m` null: storage stays where it is. */
static double run(struct test_model *model, struct mover *m, int keep)
{
  int32_t ids[TOKENS], targets[TOKENS];
  struct llama_forward_args args = {.ids = ids, .targets = targets, .batch = BATCH, .seq = SEQ, .keep = 1};
  struct llama_hooks hooks = {.ctx = m, .grad_adds = overwrite};
  fill(model, ids, targets);
  if (m != NULL) {
    hooks = (struct llama_hooks){m, pre_forward, post_forward, pre_backward, overwrite, NULL, post_backward, activation, NULL};
    for (uint32_t p = 0; p < model->n_params; p++)
      llama_bind(model->llama, p, NULL, NULL);
  }
  llama_set_hooks(model->llama, &hooks);
  assert_int_equal(llama_reserve(model->llama, BATCH, SEQ, keep, 10), LLAMA_OK);
  assert_int_equal(llama_forward(model->llama, &args), LLAMA_OK);
  assert_int_equal(llama_backward(model->llama, 0.25), LLAMA_OK);
  return args.loss_sum;
}

static void compare(int tied, int keep, int moves)
{
  struct llama_config own = config;
  own.tied = tied;
  struct test_model *plain = test_model_new(&own), *other = test_model_new(&own);
  struct mover mover = {.model = other};
  double expected = run(plain, NULL, LLAMA_KEEP_ALL), loss = run(other, moves ? &mover : NULL, keep);
  assert_memory_equal(&loss, &expected, sizeof loss);
  for (uint32_t p = 0; p < plain->n_params; p++) {
    assert_memory_equal(other->grad[p], plain->grad[p], (size_t)llama_param_at(plain->llama, p)->numel * sizeof(float));
    assert_true(isfinite(other->grad[p][0]));
  }
  for (uint32_t u = 0; moves && u < llama_n_units(other->llama); u++)
    assert_true(mover.forward_gathers[u] == 1 && mover.backward_gathers[u] == 1);
  if (moves) {
    assert_int_equal(mover.most_open, 1);
    /* Two a block in forward; of what is computed again the attention's only, and not in the last block, which is still there. */
    assert_int_equal(mover.row_outputs, 2 * LAYERS + (keep == LLAMA_KEEP_INPUTS ? LAYERS - 1 : 0));
  }
  test_model_free(plain);
  test_model_free(other);
}

static void test_moving_storage_changes_no_bit(void **state)
{
  (void)state;
  compare(0, LLAMA_KEEP_ALL, 1);
  compare(1, LLAMA_KEEP_ALL, 1);
}

static void test_checkpointing_changes_no_bit(void **state)
{
  (void)state;
  compare(0, LLAMA_KEEP_INPUTS, 0);
  compare(1, LLAMA_KEEP_INPUTS, 0);
}

static void test_recomputation_uses_what_pre_backward_gathered(void **state)
{
  (void)state;
  compare(0, LLAMA_KEEP_INPUTS, 1);
  compare(1, LLAMA_KEEP_INPUTS, 1);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_moving_storage_changes_no_bit),
      cmocka_unit_test(test_checkpointing_changes_no_bit),
      cmocka_unit_test(test_recomputation_uses_what_pre_backward_gathered),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
