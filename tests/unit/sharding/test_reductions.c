/* test_reductions.c - what is asked of the communicator for a gradient, and on whose account its memory is: things that a right sum does
 * not show. See ../fsdp1/rig.h. Under mpirun on 1, 2 or 4 ranks, where fp16 is exact here; argument 1 is the plugin path.
 */
#include "../fsdp1/rig.h"

#include "failing_comm.h"

#include <stdio.h>
#include <string.h>

enum { MOST = 64 };

typedef struct seen {
  int n;
  uint32_t dtype[MOST];
  double factor[MOST];
  int32_t tag[MOST];
  char label[MOST][64];
} seen;

static void look(void *ctx, const ordo_collective *c)
{
  seen *s = ctx;
  if (c->kind != ORDO_REDUCE_SCATTER)
    return;
  assert_true(s->n < MOST);
  s->dtype[s->n] = c->dtype;
  s->factor[s->n] = c->factor;
  s->tag[s->n] = c->tag;
  snprintf(s->label[s->n++], sizeof s->label[0], "%s", c->label != NULL ? c->label : "");
}

/* One step of one micro-batch, compared, and its reductions. */
static void reductions_of(const char *strategy, seen *s)
{
  ordo_comm_provider *kept = rig_comm, *watched = failing_comm_new(rig_comm, 0, 1, ORDO_OK);
  const rig_options options = {.strategy = strategy, .rebinds = 1};
  rig r;
  memset(s, 0, sizeof *s);
  rig_comm = watched;
  rig_ok(rig_begin(&r, &options), strategy);
  failing_comm_watch(watched, look, s);
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), strategy);
  failing_comm_watch(watched, NULL, NULL);
  rig_compare(&r);
  rig_end(&r);
  ordo_comm_provider_destroy(watched);
  rig_comm = kept;
}

/* fp16 travels as the mean of the ranks over f, and the sum is multiplied by f over their number: f is what `predivide` says, or the power
 * of two next to the root (2 for 2 and for 4 ranks). Only so can a sum of fp16 not overflow where the mean does not. */
static void f16_is_divided_before_and_after_the_sum(void **state)
{
  static const struct {
    const char *strategy;
    double f; /* 0: by the rule */
  } rows[] = {{"fsdp1:reduce_dtype=f16", 0},
              {"fsdp1:reduce_dtype=f16:predivide=1", 1},
              {"fsdp1:reduce_dtype=f16:predivide=4", 4},
              {"fsdp2:reduce_dtype=f16", 0}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const double f = rows[i].f > 0 ? rows[i].f : rig_ranks > 1 ? 2.0 : 1.0;
    seen s;
    reductions_of(rows[i].strategy, &s);
    assert_true(s.n > 0);
    for (int k = 0; k < s.n; k++) {
      assert_int_equal(s.dtype[k], ORDO_F16);
      assert_true(s.factor[k] == f / rig_ranks);
    }
  }
}

/* bf16 and f32 have the range: the whole division comes after the sum, by what the step asks for. */
static void others_are_divided_once(void **state)
{
  static const char *const rows[] = {"fsdp1", "fsdp2", "fsdp1:reduce_dtype=bf16", "fsdp2:reduce_dtype=bf16"};
  double divisor = 0;
  (void)state;
  for (size_t i = 0; i < 4; i++) {
    seen s;
    reductions_of(rows[i], &s);
    assert_true(s.n > 0);
    divisor = i == 0 ? s.factor[0] : divisor;
    for (int k = 0; k < s.n; k++) {
      assert_int_equal(s.dtype[k], i < 2 ? ORDO_F32 : ORDO_BF16);
      assert_true(s.factor[k] == divisor);
    }
  }
}

/* Units reduce in the order of backward, each under a tag and a label of its own, so that ranks which reduce different units are told apart
 * although the units are of one size. */
static void each_unit_reduces_under_its_own_tag(void **state)
{
  static const char *const rows[] = {"fsdp1", "fsdp2"};
  (void)state;
  for (size_t i = 0; i < 2; i++) {
    seen s;
    reductions_of(rows[i], &s);
    assert_int_equal(s.n, 4); /* three blocks, and the root with the tied embedding and head */
    for (int k = 0; k < s.n; k++) {
      assert_int_equal(s.tag[k], s.n - k);
      assert_true(s.label[k][0] != 0);
      for (int other = 0; other < k; other++)
        assert_string_not_equal(s.label[k], s.label[other]);
    }
  }
}

/* What is kept between micro-batches is a gradient, though it lies in memory of the communicator. */
static void accumulated_gradients_are_on_the_account_of_gradients(void **state)
{
  static const char *const rows[] = {"fsdp1", "fsdp2", "fsdp1:reduce_dtype=f16", "fsdp2:reduce_dtype=bf16"};
  (void)state;
  for (size_t i = 0; i < 4; i++) {
    const rig_options options = {.strategy = rows[i], .rebinds = 1};
    int64_t gradients[2], comm[2], whole = 0;
    rig r;
    rig_ok(rig_begin(&r, &options), rows[i]);
    for (int s = 0; s < 2; s++) {
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = s + 1}), rows[i]);
      ordo_session_memory(r.session, ORDO_MEM_GRADIENTS, &gradients[s], NULL);
      ordo_session_memory(r.session, ORDO_MEM_COMM, &comm[s], NULL);
    }
    for (int p = 1; p < RIG_HEAD - 1; p++) /* of the blocks; the root keeps its gradient anyway */
      whole += rig_numel(p) * (i < 2 ? 4 : 2);
    assert_true(gradients[1] - gradients[0] >= whole);
    assert_int_equal(comm[1], comm[0]);
    rig_end(&r);
  }
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(f16_is_divided_before_and_after_the_sum),
      cmocka_unit_test(others_are_divided_once),
      cmocka_unit_test(each_unit_reduces_under_its_own_tag),
      cmocka_unit_test(accumulated_gradients_are_on_the_account_of_gradients),
  };
  rig_start(argc, argv);
  return rig_stop(cmocka_run_group_tests(tests, NULL, NULL));
}
