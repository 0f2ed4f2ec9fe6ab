/* test_reductions.c - what strategies make of gradients that are not like all others: of a tied parameter that a micro-batch leaves out,
 * and of 16 bits that are to be summed in fp32. Each row is compared with another way to the same sum. See rig.h.
 */
#include "rig.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double norm_of(const char *precision, const char *strategy, int n_micro, uint32_t silent, int silent_in)
{
  ordo_step_result result = {.struct_size = sizeof result};
  rig r;
  rig_start(&r, &(rig_options){.precision = precision, .strategy = strategy, .lr = 0.1, .ordered = 1, .n_micro = n_micro});
  r.silent = silent;
  r.silent_in = silent_in;
  rig_expect_ok(rig_step(&r, &result), strategy);
  rig_close(&r);
  return result.grad_norm;
}

/* The other member has added its share to the gradient of both, and that is what counts: in each micro-batch, with and without no_sync. */
static void the_gradient_of_half_a_tie_group_is_not_dropped(void **state)
{
  static const char *const strategies[] = {
      "fsdp1", "fsdp2", "fsdp1:no_sync=false", "fsdp2:no_sync=false", "fsdp1:sharding_strategy=NO_SHARD", "fsdp1:use_orig_params=false"};
  static const struct {
    const char *precision;
    double tolerance; /* roundings of 16-bit gradients before the sum: half a unit of the last place each */
  } rows[] = {{NULL, 1e-6}, {"apex_amp:O1", 1e-6}, {"apex_amp:O2", 1.0 / 2048}, {"apex_amp:O5", 1.0 / 256}};
  (void)state;
  for (size_t p = 0; p < sizeof rows / sizeof rows[0]; p++)
    for (int member = 0; member < 4; member += 3)
      for (int n = 1; n <= 3; n += 2)
        for (int micro = 0; micro < n; micro++) {
          const uint32_t silent = 1u << member;
          const double right = norm_of(rows[p].precision, "ddp", n, silent, micro), all = norm_of(rows[p].precision, "ddp", n, 0, 0);
          assert_true(rows[p].precision != NULL || fabs(right - all) > 1e-3 * all); /* the member has a share */
          for (size_t s = 0; s < sizeof strategies / sizeof strategies[0]; s++) {
            const double norm = norm_of(rows[p].precision, strategies[s], n, silent, micro);
            if (fabs(norm - right) > rows[p].tolerance * right)
              fail_msg("%s, %s, member %d silent in micro-batch %d of %d: norm %.7f, with ddp %.7f", strategies[s],
                       rows[p].precision ? rows[p].precision : "no precision", member, micro + 1, n, norm, right);
          }
        }
}

/* Bytes that reductions of gradients took in one step, and its norm. */
static uint64_t reduced_bytes(const char *precision, const char *strategy, int n_micro, double *norm)
{
  ordo_comm_stats before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
  ordo_step_result result = {.struct_size = sizeof result};
  const int whole = strstr(strategy, "NO_SHARD") != NULL;
  rig r;
  rig_start(&r, &(rig_options){.precision = precision, .strategy = strategy, .lr = 0.1, .n_micro = n_micro});
  rig_expect_ok(rig_step(&r, NULL), "the first step, with checks of its own");
  rig_expect_ok(ordo_session_comm_stats(r.session, NULL, &before), "stats");
  rig_expect_ok(rig_step(&r, &result), strategy);
  rig_expect_ok(ordo_session_comm_stats(r.session, NULL, &after), "stats");
  rig_close(&r);
  *norm = result.grad_norm;
  const int kind = whole ? ORDO_ALL_REDUCE : ORDO_REDUCE_SCATTER;
  return after.bytes[kind] - before.bytes[kind];
}

/* What is said of gradients is true of those of 16 bits: f32 sends twice the bytes, in every micro-batch that reduces, to the same sum. */
static void sixteen_bit_gradients_are_summed_in_fp32_if_asked(void **state)
{
  static const char *const strategies[] = {"fsdp1", "fsdp2", "fsdp1:no_sync=false", "fsdp2:no_sync=false",
                                           "fsdp1:sharding_strategy=NO_SHARD"};
  static const struct {
    const char *precision, *own, *other;
    double tolerance; /* a rounding of the sum, or of each micro-batch's: half a unit of the last place */
  } rows[] = {{"apex_amp:O5:keep_norm_fp32=false", "bf16", "f16", 1.0 / 128}, {"apex_amp:O3", "f16", "bf16", 1.0 / 1024}};
  (void)state;
  for (size_t p = 0; p < 2; p++)
    for (size_t s = 0; s < sizeof strategies / sizeof strategies[0]; s++)
      for (int n = 1; n <= 3; n += 2) {
        char own[96], other[96], f32[96];
        double norm, wide_norm, own_norm;
        snprintf(own, sizeof own, "%s:reduce_dtype=%s", strategies[s], rows[p].own);
        snprintf(other, sizeof other, "%s:reduce_dtype=%s", strategies[s], rows[p].other);
        snprintf(f32, sizeof f32, "%s:reduce_dtype=f32", strategies[s]);
        const uint64_t bytes = reduced_bytes(rows[p].precision, strategies[s], n, &norm);
        const uint64_t wide = reduced_bytes(rows[p].precision, f32, n, &wide_norm);
        const int scalars = strstr(own, "NO_SHARD") != NULL; /* votes are all-reduces, too */
        if (rig_ranks > 1 && (scalars ? wide <= bytes : wide != 2 * bytes))
          fail_msg("%s, %s: %llu bytes instead of %llu", rows[p].precision, f32, (unsigned long long)wide, (unsigned long long)(2 * bytes));
        assert_true(norm > 0.0 && (rig_ranks == 1 || bytes > 0));
        if (fabs(norm - wide_norm) > rows[p].tolerance * norm)
          fail_msg("%s, %s: norm %.7f, in fp32 %.7f", rows[p].precision, f32, norm, wide_norm);
        assert_true(reduced_bytes(rows[p].precision, own, n, &own_norm) == bytes);
        assert_true(own_norm == norm);
        rig r;
        assert_int_equal(rig_open(&r, &(rig_options){.precision = rows[p].precision, .strategy = other, .lr = 0.1}), ORDO_E_INVALID);
        rig_expect_error("one type of 16 bits is not converted into another");
        rig_close(&r);
      }
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_gradient_of_half_a_tie_group_is_not_dropped),
      cmocka_unit_test(sixteen_bit_gradients_are_summed_in_fp32_if_asked),
  };
  return rig_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
