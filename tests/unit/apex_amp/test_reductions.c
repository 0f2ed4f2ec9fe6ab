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
  static const char *const strategies[] = {"fsdp1", "fsdp2", "fsdp1:no_sync=false", "fsdp2:no_sync=false",
                                           "fsdp1:sharding_strategy=NO_SHARD", "fsdp1:use_orig_params=false"};
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

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_gradient_of_half_a_tie_group_is_not_dropped),
  };
  return rig_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
