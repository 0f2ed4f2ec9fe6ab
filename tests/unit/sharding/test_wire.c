/* test_wire.c - a precision plugin that packs what all-gathers send (packer.c), with 16-bit parameters: packed and exact where a leaf says
 * the type, as they are and with a warning where there is none. See ../apex_amp/rig.h. Under mpirun; argument 1 is the plugin path. Opaque
 * leaves beside packed ones: tests/examples/qlora.py. */
#include "../apex_amp/rig.h"

#include <string.h>

static uint64_t gathered(const rig *r, const char *axis)
{
  ordo_comm_stats stats = {.struct_size = sizeof stats};
  rig_expect_ok(ordo_session_comm_stats(r->session, axis, &stats), "comm_stats");
  return stats.bytes[ORDO_ALL_GATHER];
}

/* The packer adds a byte to each piece, so what it packed can be told by the count. */
static void same_weights(const char *strategy, const char *axis, int packs)
{
  rig plain, packed;
  rig_start(&plain, &(rig_options){.strategy = strategy, .precision = "bf16-true", .lr = 0.1, .n_micro = 2, .ordered = 1});
  rig_log[0] = '\0';
  rig_start(&packed, &(rig_options){.strategy = strategy, .precision = "packer", .lr = 0.1, .n_micro = 2, .ordered = 1});
  if (packs)
    assert_null(strstr(rig_log, "travel as they are"));
  else if (strstr(rig_log, "flat parameters") == NULL || strstr(rig_log, "bf16 and travel as they are") == NULL)
    fail_msg("no warning that nothing is packed: %s", rig_log);
  for (int step = 0; step < 3; step++) {
    rig_expect_ok(rig_step(&plain, NULL), "plain");
    rig_expect_ok(rig_step(&packed, NULL), "packed");
  }
  for (int p = 0; p < 3; p++)
    for (int64_t i = 0; i < rig_numel(p); i++)
      assert_true(rig_weight(&plain, p, i) == rig_weight(&packed, p, i));
  if (rig_ranks > 1 && packs)
    assert_true(gathered(&packed, axis) > gathered(&plain, axis));
  if (rig_ranks > 1 && !packs)
    assert_true(gathered(&packed, axis) == gathered(&plain, axis));
  rig_close(&plain);
  rig_close(&packed);
}

static void parameters_of_16_bits_are_packed(void **state)
{
  (void)state;
  same_weights("fsdp2", "fsdp2", 1);
  same_weights("fsdp2:reshard_after_forward=false", "fsdp2", 1);
}

static void flat_parameters_of_16_bits_are_not_and_the_log_says_so(void **state)
{
  (void)state;
  same_weights("fsdp1", "fsdp1", 0);
}

/* Refused in the first gather, on every rank, in the name of who broke the promise. */
static void refused(const char *precision, const char *word, const char *who)
{
  rig r;
  rig_start(&r, &(rig_options){.strategy = "fsdp2", .precision = precision, .lr = 0.1});
  assert_int_not_equal(rig_step(&r, NULL), ORDO_OK);
  rig_expect_error(word);
  rig_expect_error(who);
  rig_close(&r);
}

static void sizes_that_cannot_be_are_refused(void **state)
{
  (void)state;
  refused("packer:how=zero", " are 0 bytes packed", "wire_bytes of the precision plugin");
  refused("packer:how=negative", " are -5 bytes packed", "wire_bytes of the precision plugin");
  refused("packer:how=huge", " bytes packed; 1 to ", "wire_bytes of the precision plugin");
  refused("packer:how=overflow", " are 9223372036854775807 bytes packed", "wire_bytes of the precision plugin");
}

/* Sizes are asked for once; a later answer is not looked at, and would be written past what was reserved. */
static void a_size_that_changes_counts_once(void **state)
{
  rig r;
  (void)state;
  rig_start(&r, &(rig_options){.strategy = "fsdp2", .precision = "packer:how=changes", .lr = 0.1, .n_micro = 2});
  for (int step = 0; step < 3; step++)
    rig_expect_ok(rig_step(&r, NULL), "a size that changes");
  rig_close(&r);
}

static void silence_of_a_packer_is_not_the_strategys(void **state)
{
  (void)state;
  refused("packer:how=silent_pre", "plugin 'packer', pre_all_gather", "plugin 'packer' returned");
  refused("packer:how=silent_post", "plugin 'packer', post_all_gather", "plugin 'packer' returned");
}

static void a_part_of_a_packer_is_refused_when_it_is_loaded(void **state)
{
  rig r;
  (void)state;
  assert_int_equal(rig_open(&r, &(rig_options){.strategy = "fsdp2", .precision = "packer_part", .lr = 0.1}), ORDO_E_REFUSED);
  rig_expect_error("E-PLUGIN-TABLE");
  rig_expect_error("packer_part");
  rig_expect_error("wire_bytes, pre_all_gather and post_all_gather");
  rig_close(&r);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parameters_of_16_bits_are_packed),
      cmocka_unit_test(sizes_that_cannot_be_are_refused),
      cmocka_unit_test(a_size_that_changes_counts_once),
      cmocka_unit_test(silence_of_a_packer_is_not_the_strategys),
      cmocka_unit_test(a_part_of_a_packer_is_refused_when_it_is_loaded),
      cmocka_unit_test(flat_parameters_of_16_bits_are_not_and_the_log_says_so),
  };
  return rig_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
