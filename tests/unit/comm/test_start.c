/* test_start.c - a provider that starts MPI itself: settings, finalising, and the refusal afterwards. Runs alone and under mpirun. */
#include "mpi_testing.h"

static void the_provider_starts_and_ends_mpi(void **state)
{
  struct ordo_context context = test_context();
  ordo_comm_provider *provider = NULL;
  int flag = 0;
  (void)state;
  assert_int_equal(ordo_comm_mpi_create(&context, MPI_COMM_NULL, NULL, &provider), ORDO_OK);
  MPI_Initialized(&flag);
  assert_int_equal(flag, 1);
  assert_string_equal(provider->name, "mpi");
  const ordo_comm *comm = NULL;
  assert_int_equal(provider->split(provider->ctx, 0, provider->rank, provider->size, "world", &comm), ORDO_OK);
  assert_int_equal(ordo_barrier(comm), ORDO_OK);
  provider->release(provider->ctx, comm);
  ordo_comm_provider_destroy(provider);
  MPI_Finalized(&flag);
  assert_int_equal(flag, 1);
  assert_int_equal(ordo_comm_mpi_create(&context, MPI_COMM_NULL, NULL, &provider), ORDO_E_UNAVAILABLE);
  assert_null(provider);
  assert_string_equal(last_code(&context), "E-COMM-MPI");
  ordo_errors_free(context.errors);
}

static int run_all(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(the_provider_starts_and_ends_mpi)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
  const char *rank = g_getenv("OMPI_COMM_WORLD_RANK");
  return run_on_ranks(rank ? atoi(rank) : 0, run_all);
}
