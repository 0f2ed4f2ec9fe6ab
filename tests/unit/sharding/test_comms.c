/* test_comms.c - communicators that a sharded strategy does not usually get: without pieces (an embedder's own transport), and parts of an
 * axis (reshard_after_forward=N) of every size that divides it. See ../fsdp1/rig.h. Under mpirun; argument 1 is the plugin path.
 */
#include "../fsdp1/rig.h"

#include "plain_comm.h"

#include <stdio.h>
#include <string.h>

static rig_options options_of(const char *strategy)
{
  return (rig_options){.strategy = strategy, .rebinds = 1, .untied = strstr(strategy, "units=size") != NULL};
}

static void train(const rig_options *options, const rig_step_spec *spec, int steps)
{
  rig r;
  rig_ok(rig_begin(&r, options), options->strategy);
  rig_compare(&r);
  for (int s = 0; s < steps; s++) {
    rig_evaluate(&r);
    rig_ok(rig_train(&r, spec), options->strategy);
    rig_compare(&r);
  }
  rig_end(&r);
}

/* Everything that a strategy can be told, with a micro-batch that accumulates before the one that reduces. */
static void every_mode(const char *extra)
{
  static const char *const modes[] = {
      "fsdp2",
      "fsdp2:no_sync=false",
      "fsdp2:backward_prefetch=post",
      "fsdp2:backward_prefetch=none:forward_prefetch=false",
      "fsdp2:limit_all_gathers=false",
      "fsdp2:units=none",
      "fsdp2:units=size:unit_size=100",
      "fsdp2:offload=disk:/tmp",
  };
  for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++)
    for (int n_micro = 1; n_micro <= 3; n_micro += 2) {
      char text[200];
      snprintf(text, sizeof text, "%s%s", modes[m], extra);
      rig_options options = options_of(text);
      train(&options, &(rig_step_spec){.n_micro = n_micro}, 2);
      options.frozen = 1u << 1 | 1u << 2 | 1u << 3;
      options.ordered = 1;
      options.clip = 64.0;
      train(&options, &(rig_step_spec){.n_micro = n_micro}, 2);
    }
}

static void every_16_bit_mode(const char *extra)
{
  static const char *const modes[] = {"fsdp2_bf16", "fsdp2_bf16:reduce_dtype=f32", "fsdp2_bf16:no_sync=false", "fsdp2:reduce_dtype=bf16",
                                      "fsdp2:reduce_dtype=f16"};
  for (size_t m = 0; m < 5; m++)
    for (int n_micro = 1; n_micro <= 2; n_micro++) {
      char text[200];
      snprintf(text, sizeof text, "%s%s", modes[m], extra);
      rig_options options = options_of(text);
      options.rounded = strstr(text, "fsdp2_bf16") != NULL ? ORDO_BF16 : 0;
      train(&options, &(rig_step_spec){.n_micro = n_micro}, 2);
    }
}

/* What earlier micro-batches left in 16 bits is in the sum, with flat parameters as with rows. */
static void sixteen_bits_accumulate(void **state)
{
  static const char *const modes[] = {"fsdp1_bf16", "fsdp1_bf16:reduce_dtype=f32", "fsdp1:reduce_dtype=bf16",
                                      "fsdp1_bf16:sharding_strategy=SHARD_GRAD_OP", "fsdp1_bf16:no_sync=false"};
  (void)state;
  every_16_bit_mode("");
  for (size_t m = 0; m < 5; m++) {
    rig_options options = {.strategy = modes[m], .rounded = strstr(modes[m], "fsdp1_bf16") != NULL ? ORDO_BF16 : 0};
    train(&options, &(rig_step_spec){.n_micro = 2}, 2);
  }
}

/* ---- without pieces ---- */

static void without_pieces_every_mode_trains_alike(void **state)
{
  ordo_comm_provider *kept = rig_comm;
  (void)state;
  for (int old = 0; old < 2; old++) {
    rig_comm = plain_comm_new(kept, old);
    every_mode("");
    every_mode(":reshard_after_forward=false");
    every_16_bit_mode("");
    const rig_options flat = {.strategy = "fsdp1", .frozen = 1u << 3};
    train(&flat, &(rig_step_spec){.n_micro = 2}, 2);
    ordo_comm_provider_destroy(rig_comm);
  }
  rig_comm = kept;
}

/* A unit whose backward never runs, and parameters that some or no rank uses, through the staging buffers as well. */
static void without_pieces_what_is_unused_stays(void **state)
{
  ordo_comm_provider *kept = rig_comm;
  rig_step_spec spec = {.n_micro = 2};
  (void)state;
  rig_comm = plain_comm_new(kept, 0);
  const rig_options options = options_of("fsdp2");
  spec.skip_params[0] = 1u << 4;
  for (int rank = 0; rank < rig_ranks; rank++)
    spec.skip_params[rank] |= 1u << 5;
  train(&options, &spec, 2);
  train(&options, &(rig_step_spec){.n_micro = 2, .skip_units = 1u << 2}, 2);
  train(&options, &(rig_step_spec){.n_micro = 2, .skip_late = 1u << 2, .backward_only_in = 1}, 2);
  ordo_comm_provider_destroy(rig_comm);
  rig_comm = kept;
}

/* ---- parts of an axis ---- */

static void every_divisor_keeps_its_part(void **state)
{
  (void)state;
  for (int size = 2; size < rig_ranks; size++) {
    char extra[64];
    if (rig_ranks % size != 0)
      continue;
    snprintf(extra, sizeof extra, ":reshard_after_forward=%d", size);
    every_mode(extra);
    every_16_bit_mode(extra);
  }
}

/* 1 would be `true` and all ranks `false`; anything else must divide them. */
static void other_sizes_are_refused(void **state)
{
  (void)state;
  for (int size = 0; size <= rig_ranks + 1; size++) {
    char text[64], word[64];
    rig r;
    snprintf(text, sizeof text, "fsdp2:reshard_after_forward=%d", size);
    snprintf(word, sizeof word, "'%d'|divi", size);
    const rig_options options = options_of(text);
    const ordo_status status = rig_begin(&r, &options);
    if (size > 1 && size < rig_ranks && rig_ranks % size == 0)
      rig_ok(status, text);
    else
      rig_expect(status, ORDO_E_INVALID, word);
    rig_end(&r);
  }
}

/* Backward gathers over the part, forward over all ranks: one collective each, and the bytes of the formula. */
static void parts_are_gathered_once(void **state)
{
  (void)state;
  for (int size = 2; size < rig_ranks; size++) {
    rig r;
    char text[64];
    uint64_t bytes[2];
    const uint64_t w = (uint64_t)rig_ranks, root = ((37 + w - 1) / w * 5 + (5 + w - 1) / w) * w, matrix = (13 + w - 1) / w * 5 * w,
                   vector = (5 + w - 1) / w * w, block = matrix + vector, n = (uint64_t)size, kept = (matrix + 15) / 16 * 16 + vector,
                   part = (kept + n - 1) / n * n; /* with the gap that aligns the vector */
    if (rig_ranks % size != 0)
      continue;
    snprintf(text, sizeof text, "fsdp2:reshard_after_forward=%d", size);
    const rig_options options = options_of(text);
    rig_ok(rig_begin(&r, &options), text);
    const uint64_t before = rig_calls(&r, "fsdp2", ORDO_ALL_GATHER, &bytes[0]);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), text);
    assert_int_equal(rig_calls(&r, "fsdp2", ORDO_ALL_GATHER, &bytes[1]) - before, 7);
    assert_int_equal(bytes[1] - bytes[0], (root + 3 * block + 3 * part) * 4);
    rig_end(&r);
  }
}

static void parts_without_pieces(void **state)
{
  ordo_comm_provider *kept = rig_comm;
  (void)state;
  rig_comm = plain_comm_new(kept, 0);
  for (int size = 2; size < rig_ranks; size++) {
    char text[64];
    if (rig_ranks % size != 0)
      continue;
    snprintf(text, sizeof text, "fsdp2:reshard_after_forward=%d", size);
    const rig_options options = options_of(text);
    train(&options, &(rig_step_spec){.n_micro = 2}, 2);
  }
  ordo_comm_provider_destroy(rig_comm);
  rig_comm = kept;
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sixteen_bits_accumulate),
      cmocka_unit_test(without_pieces_every_mode_trains_alike),
      cmocka_unit_test(without_pieces_what_is_unused_stays),
      cmocka_unit_test(every_divisor_keeps_its_part),
      cmocka_unit_test(other_sizes_are_refused),
      cmocka_unit_test(parts_are_gathered_once),
      cmocka_unit_test(parts_without_pieces),
  };
  rig_start(argc, argv);
  return rig_stop(cmocka_run_group_tests(tests, NULL, NULL));
}
