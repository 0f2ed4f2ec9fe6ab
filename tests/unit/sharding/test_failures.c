/* test_failures.c - a communicator that fails in the middle of the set-up or of a step, as an embedder's own transport may, on all ranks at
 * the same call. Whatever call it is, the session says what failed, is dead if a rank was lost, and lets go of everything. Under mpirun;
 * argument 1 is the plugin path.
 */
#include "../fsdp1/rig.h"
#include "failing_comm.h"

#include <string.h>

static const char *const MODES[] = {"fsdp1", "fsdp1_bf16", "fsdp1:sharding_strategy=NO_SHARD", "fsdp2", "fsdp2_bf16"};
enum { N_MODES = 5 };

static rig_options options_of(int mode)
{
  return (rig_options){.strategy = MODES[mode], .rebinds = 1, .rounded = strstr(MODES[mode], "_bf16") != NULL ? ORDO_BF16 : 0};
}

/* Where the first failure was recorded. */
static void assert_told(ordo_status status, const char *code, const char *where_not)
{
  const ordo_error *error = ordo_error_at(rig_context, 0);
  assert_non_null(error);
  assert_int_equal(error->status, status);
  assert_string_equal(error->code, code);
  assert_string_not_equal(error->where, where_not);
}

/* One call fails; 0 when there was none of that number any more. */
static int fail_once(int mode, int kinds, int at)
{
  ordo_comm_provider *kept = rig_comm;
  rig r;
  const rig_options options = options_of(mode);
  rig_comm = failing_comm_new(kept, kinds, at, ORDO_E_PEER_LOST);
  ordo_status status = rig_begin(&r, &options);
  if (status == ORDO_OK)
    status = rig_train(&r, &(rig_step_spec){.n_micro = 2});
  const int failed = failing_comm_failed(rig_comm);
  assert_int_equal(status, failed ? ORDO_E_PEER_LOST : ORDO_OK);
  if (failed)
    assert_told(ORDO_E_PEER_LOST, "E-COMM-PEER-LOST", "destroy");
  if (failed && r.session != NULL)
    rig_expect(ordo_session_step_begin(r.session, 1, 1.0), ORDO_E_PEER_LOST, "E-COMM-PEER-LOST|dead");
  rig_end(&r);
  ordo_comm_provider_destroy(rig_comm);
  rig_comm = kept;
  return failed;
}

/* Memory of a communicator is given out by all ranks together, so the allocation is where a lost rank shows. */
static void a_lost_rank_is_not_a_lack_of_memory(void **state)
{
  (void)state;
  for (int mode = 0; mode < N_MODES; mode++) {
    int at = 1;
    while (fail_once(mode, FAILING_ALLOC, at))
      at++;
    assert_true(at > 2);
  }
}

/* A collective of the host fails before any other has: at the comparison of plans there is no session yet, in the set-up it is undone. */
static void the_first_collective_is_told_as_well(void **state)
{
  (void)state;
  assert_true(rig_ranks == 1 || fail_once(0, FAILING_START, 1));
  assert_true(rig_ranks == 1 || fail_once(0, FAILING_WAIT, 1));
}

static void every_call_may_fail(void **state)
{
  (void)state;
  for (int mode = 0; mode < N_MODES; mode++) {
    int at = 1;
    while (fail_once(mode, FAILING_ANY, at))
      at++;
    assert_true(at > 10);
  }
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_lost_rank_is_not_a_lack_of_memory),
      cmocka_unit_test(the_first_collective_is_told_as_well),
      cmocka_unit_test(every_call_may_fail),
  };
  rig_start(argc, argv);
  return rig_stop(cmocka_run_group_tests(tests, NULL, NULL));
}
