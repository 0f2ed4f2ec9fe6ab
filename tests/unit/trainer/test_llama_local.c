/* test_llama_local.c - a model of which this process has a part: what is refused, what memory it takes, and the loss over parts of a
 * vocabulary. That parts together compute the whole needs several processes: tests/parity and tests/unit/tp.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "llama_model.h"
#include "loss.h"
#include "test_model.h"

enum { Q = 1, K, V, O, GATE, UP, DOWN, IN_NORM, POST_NORM, FINAL_NORM, HEAD, N_PARAMS };

static const struct llama_config config = {.vocab = 37,
                                           .hidden = 24,
                                           .intermediate = 20,
                                           .layers = 1,
                                           .heads = 4,
                                           .kv_heads = 2,
                                           .head_dim = 8,
                                           .max_positions = 16,
                                           .rms_eps = 1e-5,
                                           .rope_theta = 500.0,
                                           .tied = 0};

#define BIT(POINT) (1u << LLAMA_POINT_##POINT)

static int offer(void *ctx, const struct llama_activation *a)
{
  (void)ctx;
  if (a->out != a->data && a->point != LLAMA_POINT_LOGITS)
    memcpy(a->out, a->data, (size_t)(a->out_rows * a->out_columns) * sizeof *a->out);
  return 0;
}

static void cut(struct llama_local *local, int dim, int64_t from, int64_t to)
{
  local->offset[dim] = from;
  local->shape[dim] = to - from;
}

/* The second of two parts: half of the heads and columns, 18 of the words. */
static void second_half(const struct llama *llama, struct llama_local *locals)
{
  memset(locals, 0, N_PARAMS * sizeof *locals);
  assert_int_equal(llama_n_params(llama), N_PARAMS);
  for (uint32_t p = 0; p < N_PARAMS; p++)
    memcpy(locals[p].shape, llama_param_at(llama, p)->shape, sizeof locals[p].shape);
  cut(&locals[0], 0, 19, 37);
  cut(&locals[HEAD], 0, 19, 37);
  cut(&locals[Q], 0, 16, 32);
  cut(&locals[K], 0, 8, 16);
  cut(&locals[V], 0, 8, 16);
  cut(&locals[O], 1, 16, 32);
  cut(&locals[GATE], 0, 10, 20);
  cut(&locals[UP], 0, 10, 20);
  cut(&locals[DOWN], 1, 10, 20);
  locals[0].forward = BIT(EMBED_OUTPUT);
  locals[Q].backward = locals[GATE].backward = BIT(COLUMN_INPUT);
  locals[O].forward = locals[DOWN].forward = BIT(ROW_OUTPUT);
  locals[HEAD].forward = BIT(LOSS_MAX) | BIT(LOSS_SUM) | BIT(LOGITS);
  locals[HEAD].backward = BIT(HEAD_INPUT);
}

static struct llama *new_llama(struct llama_local *locals, int tied)
{
  struct llama_config own = config;
  char reason[200];
  own.tied = tied;
  struct llama *llama = llama_create(&own, NULL, reason, sizeof reason);
  assert_non_null(llama);
  second_half(llama, locals);
  return llama;
}

static void test_a_part_is_smaller(void **state)
{
  struct llama_local locals[N_PARAMS];
  struct llama *llama = new_llama(locals, 0);
  const struct llama_hooks hooks = {.activation = offer};
  (void)state;
  llama_set_hooks(llama, &hooks);
  int64_t whole = llama_local_activation_bytes(llama, 2, 16, LLAMA_KEEP_ALL, 0);
  assert_int_equal(whole, llama_activation_bytes(&config, 2, 16, LLAMA_KEEP_ALL, 0));
  assert_int_equal(llama_localize(llama, locals, 1, 0), LLAMA_OK);
  int64_t part = llama_local_activation_bytes(llama, 2, 16, LLAMA_KEEP_ALL, 0);
  /* Per token half of q, k, v, attn, lse, gate, up (2 * 32 + 2 * 16 + 4 + 2 * 20), of wide (32) and dq, dk, dv (32 + 2 * 16); 19 logits; 4
   * more for the loss. */
  assert_int_equal(whole - part, 32 * 4 * ((64 + 32 + 4 + 40 + 32 + 64) / 2 + 19 - 4));
  assert_int_equal(llama_reserve(llama, 2, 16, LLAMA_KEEP_ALL, 0), LLAMA_OK);
  for (uint32_t p = 1; p < N_PARAMS; p++)
    locals[p].backward |= p != HEAD ? BIT(WEIGHT_GRAD) : 0u;
  /* A contribution that others complete has a place of its own, as large as the largest of them: 16 x 24 of q or o. */
  assert_int_equal(llama_localize(llama, locals, 1, 0), LLAMA_OK);
  assert_int_equal(llama_local_activation_bytes(llama, 2, 16, LLAMA_KEEP_ALL, 0) - part, 16 * 24 * 4);
  for (int64_t index = 0; index < 3; index++) { /* every point is heard, so rows may be split */
    locals[0].backward = BIT(EMBED_OUTPUT);
    locals[HEAD].forward |= BIT(HEAD_INPUT);
    locals[Q].forward = locals[GATE].forward = BIT(COLUMN_INPUT);
    locals[O].backward |= BIT(ROW_OUTPUT);
    locals[DOWN].backward |= BIT(ROW_OUTPUT);
    assert_int_equal(llama_localize(llama, locals, 3, index), LLAMA_OK);
    assert_true(llama_local_activation_bytes(llama, 2, 16, LLAMA_KEEP_ALL, 0) < part);
  }
  llama_destroy(llama);
}

static void spoil(struct llama_local *locals, int what)
{
  switch (what) {
  case 0:
    locals[O].offset[1] = 0;
    break;
  case 1:
    cut(&locals[DOWN], 1, 0, 20);
    break;
  case 2:
    cut(&locals[V], 0, 0, 8);
    break;
  case 3:
    cut(&locals[UP], 0, 0, 10);
    break;
  case 4:
    cut(&locals[Q], 0, 12, 28);
    cut(&locals[O], 1, 12, 28);
    break;
  case 5: /* query heads 2 and 3 with key head 0, which belongs to 0 and 1 */
    cut(&locals[K], 0, 0, 8);
    cut(&locals[V], 0, 0, 8);
    break;
  case 6:
    locals[O].forward = 0;
    break;
  case 7:
    locals[GATE].backward = 0;
    break;
  case 8:
    locals[0].forward = 0;
    break;
  case 9:
    locals[HEAD].forward = BIT(LOSS_MAX);
    break;
  case 10:
    locals[HEAD].backward = 0;
    break;
  case 11:
    locals[HEAD].backward |= BIT(WEIGHT_GRAD);
    break;
  case 12: /* one query head of two with a copy of their key head */
    cut(&locals[Q], 0, 24, 32);
    cut(&locals[O], 1, 24, 32);
    locals[K].backward = BIT(WEIGHT_GRAD);
    break;
  case 13: /* query heads 1 and 2 with key head 1: head 1 belongs to key head 0 */
    cut(&locals[Q], 0, 8, 24);
    cut(&locals[O], 1, 8, 24);
    break;
  default:
    fail();
  }
}

/* Each would compute a wrong number of the right shape. */
static void test_parts_that_do_not_fit_are_refused(void **state)
{
  static const char *const says[] = {
      "self_attn.q_proj.weight and model.layers.0.self_attn.o_proj.weight do not fit together: rows of the one",
      "mlp.gate_proj.weight and model.layers.0.mlp.down_proj.weight do not fit together: rows of the one",
      "keys and values of other heads",
      "other columns of the MLP",
      "a head is cut",
      "query heads without their key heads",
      "nobody adds up the products of the parts",
      "nobody adds up the gradients of their input",
      "nobody adds up the rows that other parts have",
      "nobody completes the loss over the vocabulary",
      "nobody completes the loss over the vocabulary",
      "gradients of the embedding and the head are not offered",
      "nobody adds up the gradients of a key head's copies",
      "query heads without their key heads",
  };
  (void)state;
  for (int i = 0; i < (int)(sizeof says / sizeof says[0]); i++) {
    struct llama_local locals[N_PARAMS];
    struct llama *llama = new_llama(locals, 0);
    spoil(locals, i);
    assert_int_equal(llama_localize(llama, locals, 1, 0), LLAMA_E_INVALID);
    if (strstr(llama_error(llama), says[i]) == NULL)
      fail_msg("row %d: no \"%s\" in \"%s\"", i, says[i], llama_error(llama));
    llama_destroy(llama);
  }
  struct llama_local locals[N_PARAMS];
  struct llama *llama = new_llama(locals, 1);
  cut(&locals[HEAD], 0, 18, 36);
  assert_int_equal(llama_localize(llama, locals, 1, 0), LLAMA_E_INVALID);
  assert_non_null(strstr(llama_error(llama), "a tied head has the rows of the embedding"));
  second_half(llama, locals);
  assert_int_equal(llama_localize(llama, locals, 2, 1), LLAMA_E_INVALID); /* nobody gathers rows */
  assert_non_null(strstr(llama_error(llama), "rows of the residual stream are split, and point 3 of model.embed_tokens.weight"));
  assert_int_equal(llama_localize(llama, locals, 2, 2), LLAMA_E_INVALID);
  llama_destroy(llama);
}

/* Every token is in one part, no part holds less than none, and all parts together have room for a whole number of rows each. */
static void test_rows_of_parts(void **state)
{
  (void)state;
  for (int64_t tokens = 1; tokens <= 11; tokens++)
    for (int64_t parts = 1; parts <= 8; parts++) {
      struct llama_layout layout = {.parts = parts};
      struct llama_pass pass = {.batch = 1, .seq = tokens};
      int64_t held = 0;
      for (layout.index = 0; layout.index < parts; layout.index++) {
        llama_set_rows(&layout, &pass, 1);
        assert_int_equal(pass.part, (tokens + parts - 1) / parts);
        assert_int_equal(pass.padded, pass.part * parts);
        assert_int_equal(pass.part_first, pass.part * layout.index);
        assert_in_range(pass.held, 0, pass.part);
        assert_true(pass.held == 0 || held == pass.part_first);
        held += pass.held;
        llama_set_rows(&layout, &pass, 0);
        assert_true(pass.part == tokens && pass.padded == tokens && pass.held == tokens && pass.part_first == 0);
      }
      assert_int_equal(held, tokens);
    }
}

/* ---- the loss ---- */

enum { ROWS = 9, WORDS = 37, MOST_PARTS = 4 };

/* Maxima and sums over `n` parts of the columns, as collectives would take them; gradients of all parts side by side. */
static void over_parts(int n, const float *logits, const int32_t *targets, float *gradient, float *nll, struct loss_totals *totals)
{
  static float own[MOST_PARTS][ROWS * WORDS];
  float own_max[MOST_PARTS][ROWS], max[MOST_PARTS][ROWS], pairs[MOST_PARTS][2 * ROWS], sums[ROWS];
  struct loss_part parts[MOST_PARTS];
  for (int i = 0; i < n; i++) {
    int64_t first = WORDS * i / n, words = WORDS * (i + 1) / n - first;
    parts[i] = (struct loss_part){first, words, ROWS, own[i], targets, own_max[i], max[i], pairs[i]};
    for (int r = 0; r < ROWS; r++)
      memcpy(own[i] + r * words, logits + r * WORDS + first, (size_t)words * sizeof(float));
    loss_part_maxima(kernels_default(), &parts[i]);
  }
  for (int i = 1; i < n; i++)
    for (int r = 0; r < ROWS; r++)
      max[0][r] = fmaxf(max[0][r], max[i][r]);
  for (int i = 0; i < n; i++) {
    memcpy(max[i], max[0], sizeof max[0]);
    loss_part_pairs(&parts[i]);
  }
  for (int i = 1; i < n; i++)
    for (int r = 0; r < 2 * ROWS; r++)
      pairs[0][r] += pairs[i][r];
  for (int i = 0; i < n; i++) {
    memcpy(pairs[i], pairs[0], sizeof pairs[0]);
    *totals = (struct loss_totals){0};
    loss_part_finish(&parts[i], sums, nll, totals);
    loss_backward(kernels_default(), ORDO_F32, ROWS, parts[i].vocab, parts[i].vocab_first, own[i], targets, sums, 0.25f);
    for (int r = 0; r < ROWS; r++)
      memcpy(gradient + r * WORDS + parts[i].vocab_first, own[i] + r * parts[i].vocab, (size_t)parts[i].vocab * sizeof(float));
  }
}

/* Each step is one rounding of the whole's: 1e-6 of a probability or of a loss of a few units is ten of them. */
static void test_loss_over_parts(void **state)
{
  static float logits[ROWS * WORDS], whole[ROWS * WORDS], gradient[ROWS * WORDS];
  int32_t targets[ROWS];
  float nll[ROWS], expected[ROWS], sums[ROWS];
  uint32_t seed = 3;
  (void)state;
  for (int i = 0; i < ROWS * WORDS; i++)
    logits[i] = 6.0f * test_uniform(&seed);
  for (int r = 0; r < ROWS; r++)
    targets[r] = r == 2 ? LOSS_IGNORED : (r * 11) % WORDS;
  for (int w = 0; w < WORDS; w++) { /* one part has everything: the others' shares vanish */
    logits[4 * WORDS + w] = w == 1 ? 300.0f : -300.0f;
    logits[5 * WORDS + w] = w == WORDS - 1 ? 80.0f : -1000.0f * (float)w;
  }
  struct loss_totals one = {0}, many = {0};
  memcpy(whole, logits, sizeof whole);
  loss_forward(kernels_default(), ORDO_F32, ROWS, WORDS, whole, targets, sums, expected, &one);
  loss_backward(kernels_default(), ORDO_F32, ROWS, WORDS, 0, whole, targets, sums, 0.25f);
  for (int n = 1; n <= MOST_PARTS; n++) {
    over_parts(n, logits, targets, gradient, nll, &many);
    assert_int_equal(many.count, ROWS - 1);
    assert_true(fabs(many.sum - one.sum) <= 1e-6 * fabs(one.sum));
    for (int r = 0; r < ROWS; r++)
      assert_true(fabsf(nll[r] - expected[r]) <= 1e-6f * (1.0f + fabsf(expected[r])));
    for (int i = 0; i < ROWS * WORDS; i++)
      assert_true(fabsf(gradient[i] - whole[i]) <= 1e-6f * 0.25f);
  }
}

/* Computing the head again leaves what forward left. */
static void test_loss_again(void **state)
{
  static float first[ROWS * WORDS], again[ROWS * WORDS];
  int32_t targets[ROWS] = {0, 1, LOSS_IGNORED, 3, 4, 5, 6, 7, 8};
  float sums[ROWS];
  uint32_t seed = 4;
  struct loss_totals totals = {0};
  (void)state;
  for (int i = 0; i < ROWS * WORDS; i++)
    first[i] = again[i] = 6.0f * test_uniform(&seed);
  loss_forward(kernels_default(), ORDO_F32, ROWS, WORDS, first, targets, sums, NULL, &totals);
  loss_again(kernels_default(), ORDO_F32, ROWS, WORDS, again, targets);
  assert_memory_equal(first, again, sizeof first);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_part_is_smaller), cmocka_unit_test(test_parts_that_do_not_fit_are_refused),
      cmocka_unit_test(test_rows_of_parts),     cmocka_unit_test(test_loss_over_parts),
      cmocka_unit_test(test_loss_again),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
