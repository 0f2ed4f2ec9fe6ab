/* test_real.c - ddp on the communicators of the host: fake ranks, a single rank, and MPI ranks with and without shared window.
 *
 * Started alone it tests the first two; under mpirun all ranks run the third. What the simulated ranks of test_reducer.c cannot
 * show: that the real ones take the types, counts and alignments that ddp uses, and count the bytes of the formula.
 */
#include "mock.h"

#include <ordo/mpi.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int64_t NUMELS[] = {4096, 7, 33000, 64, 172, 1, 11008};
enum { N = 7, STEPS = 3 };

static mock_world world;
static mock_rank rank;

static void start(const ordo_comm *comm)
{
  mock_init(&world, &rank, 1, N, NUMELS);
  rank.rank = comm->rank;
  rank.axis.comm = comm;
  rank.axis.size = comm->size;
  rank.axis.coordinate = comm->rank;
  mock_option(&rank, 1, "bucket_cap", "60000");
  mock_option(&rank, 1, "first_bucket", "20000");
}

static void wrap(void)
{
  ordo_status status[MAX_RANKS] = {0};
  mock_wrap(&rank, status);
  if (status[rank.rank] != ORDO_OK)
    fail_msg("%s", rank.error);
}

static int64_t total(void)
{
  int64_t sum = 0;
  for (int i = 0; i < N; i++)
    sum += NUMELS[i];
  return sum;
}

static ordo_comm_stats stats_of(const ordo_comm *comm)
{
  ordo_comm_stats stats = {.struct_size = sizeof stats};
  comm->stats(comm->ctx, &stats);
  return stats;
}

/* Trains and compares with what `ranks` ranks must give; `half_ulps` is the allowed relative error. */
static void train(const ordo_comm *comm, int ranks, int64_t bytes_per_element, double tolerance)
{
  for (int s = 1; s <= STEPS; s++) {
    ordo_comm_stats before = stats_of(comm);
    mock_step step = {.step = s, .n_micro = 2, .divide_factor = 8.0};
    mock_train(&rank, &step);
    if (step.status[rank.rank] != ORDO_OK)
      fail_msg("step %d: %s", s, rank.error);
    ordo_comm_stats after = stats_of(comm);
    assert_int_equal(after.bytes[ORDO_ALL_REDUCE] - before.bytes[ORDO_ALL_REDUCE], bytes_per_element * total());
    assert_int_equal(after.bytes[ORDO_ALL_GATHER] - before.bytes[ORDO_ALL_GATHER], comm->size); /* one byte each: the vote */
    for (int p = 0; p < N; p++)
      for (int64_t i = 0; i < NUMELS[p]; i++) {
        double want = 0.0, got = (double)((const float *)rank.leaves[p].grad)[i];
        for (int r = 0; r < ranks; r++)
          for (int micro = 0; micro < 2; micro++)
            want += (double)mock_gradient(ranks == comm->size ? r : comm->rank, s, micro, p, i) / 8.0;
        if (tolerance >= 0.0 && !(fabs(got - want) <= tolerance * want))
          fail_msg("step %d, param %d, element %lld: %.9g instead of %.9g", s, p, (long long)i, got, want);
      }
  }
}

static void finish(void)
{
  mock_destroy(&rank, NULL);
  assert_int_equal(rank.open_blocks, 0);
  mock_clear(&world, &rank);
}

static void single_rank(void **state)
{
  (void)state;
  ordo_comm_provider *provider = NULL;
  const ordo_comm *comm = NULL;
  assert_int_equal(ordo_comm_single_create(NULL, &provider), ORDO_OK);
  assert_int_equal(provider->split(provider->ctx, 0, 0, 1, "ddp", &comm), ORDO_OK);
  start(comm);
  wrap();
  train(comm, 1, 4, 0.0);
  finish();
  provider->release(provider->ctx, comm);
  ordo_comm_provider_destroy(provider);
}

/* A dry run: 64 ranks that do not exist. Calls and bytes are those of a real run; values mean nothing. */
static void fake_ranks(void **state)
{
  (void)state;
  ordo_comm_provider *provider = NULL;
  const ordo_comm *comm = NULL;
  assert_int_equal(ordo_comm_fake_create(NULL, 3, 64, &provider), ORDO_OK);
  assert_int_equal(provider->split(provider->ctx, 0, 3, 64, "ddp", &comm), ORDO_OK);
  start(comm);
  wrap();
  train(comm, 64, 4, -1.0);
  finish();
  provider->release(provider->ctx, comm);
  ordo_comm_provider_destroy(provider);
}

static ordo_comm_provider *mpi_provider;

static void on_mpi(void **state)
{
  (void)state;
  static const struct {
    const char *hook;
    int64_t bytes;
    double tolerance; /* fp32: sums of small integers over 8 are exact; 16 bits: a rounding before and one after the sum */
  } cases[] = {{"none", 4, 0.0}, {"fp16", 2, 2.1 * 0x1p-11}, {"bf16", 2, 2.1 * 0x1p-8}};
  const ordo_comm *comm = NULL;
  assert_int_equal(mpi_provider->split(mpi_provider->ctx, 0, mpi_provider->rank, mpi_provider->size, "ddp", &comm), ORDO_OK);
  for (size_t c = 0; c < 3; c++)
    for (uint32_t ordered = 0; ordered <= 1; ordered++) {
      start(comm);
      mock_option(&rank, 1, "hook", cases[c].hook);
      rank.job.ordered = ordered;
      wrap();
      train(comm, comm->size, cases[c].bytes, cases[c].tolerance);
      finish();
    }
  mpi_provider->release(mpi_provider->ctx, comm);
}

static void mismatch_on_mpi(void **state)
{
  (void)state;
  const ordo_comm *comm = NULL;
  ordo_status status[MAX_RANKS] = {0};
  assert_int_equal(mpi_provider->split(mpi_provider->ctx, 0, mpi_provider->rank, mpi_provider->size, "ddp", &comm), ORDO_OK);
  start(comm);
  if (comm->rank == comm->size - 1)
    rank.leaves[2].name = "another";
  mock_wrap(&rank, status);
  assert_int_equal(status[rank.rank], comm->size > 1 ? ORDO_E_MISMATCH : ORDO_OK);
  if (comm->size > 1)
    assert_non_null(strstr(rank.error, "'another'"));
  finish();
  mpi_provider->release(mpi_provider->ctx, comm);
}

int main(void)
{
  const struct CMUnitTest alone[] = {cmocka_unit_test(single_rank), cmocka_unit_test(fake_ranks)};
  const struct CMUnitTest together[] = {cmocka_unit_test(on_mpi), cmocka_unit_test(mismatch_on_mpi)};
  if (getenv("OMPI_COMM_WORLD_SIZE") == NULL)
    return cmocka_run_group_tests(alone, NULL, NULL);
  int failed = 0;
  for (uint32_t plain = 0; plain <= 1 && failed == 0; plain++) {
    const ordo_mpi_options options = {.struct_size = sizeof options, .deadline_seconds = 20.0, .no_shared_window = plain};
    if (plain == 0)
      MPI_Init(NULL, NULL);
    failed = ordo_comm_mpi_create(NULL, MPI_COMM_WORLD, &options, &mpi_provider) != ORDO_OK;
    failed += failed == 0 ? cmocka_run_group_tests(together, NULL, NULL) : 0;
    ordo_comm_provider_destroy(mpi_provider);
  }
  MPI_Finalize();
  return failed;
}
