/* bench_comm.c - the shared window against in-place MPI_Allreduce, as ratios.
 *
 * The machine's speed changes within minutes, so each size is measured in turns (window, private buffers, MPI, memcpy) and the table
 * shows medians and the ratio of medians; absolute figures are for scale. Run: mpirun -n 2 bench_comm
 */
#include <mpi.h>
#include <ordo/mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TURNS = 101 };

typedef struct bench {
  const ordo_comm *comm;
  float *window, *plain, *message;
  int64_t count;
} bench;

static int ascending(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values, int n)
{
  qsort(values, (size_t)n, sizeof *values, ascending);
  return values[n / 2];
}

static void by_window(const bench *b)
{
  ordo_all_reduce(b->comm, b->window, b->count, ORDO_F32, ORDO_AVG, 1.0);
}

static void by_staging(const bench *b)
{
  ordo_all_reduce(b->comm, b->plain, b->count, ORDO_F32, ORDO_AVG, 1.0);
}

static void by_mpi(const bench *b)
{
  MPI_Allreduce(MPI_IN_PLACE, b->message, (int)b->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void by_memcpy(const bench *b)
{
  memcpy(b->message, b->plain, (size_t)b->count * sizeof(float));
}

/* Seconds of one call, averaged over enough calls to be seen by the clock. */
static double time_of(const bench *b, void (*run)(const bench *), int repeats)
{
  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime();
  for (int i = 0; i < repeats; i++)
    run(b);
  return (MPI_Wtime() - start) / repeats;
}

static void measure(bench *b, int64_t bytes, int rank)
{
  static void (*const ways[])(const bench *) = {by_window, by_staging, by_mpi, by_memcpy};
  static double seconds[4][MAX_TURNS];
  double middle[4];
  int repeats = bytes < 65536 ? 1000 : bytes < 4 << 20 ? 20 : 2, turns = bytes < 4 << 20 ? 15 : 11;
  b->count = bytes / 4;
  memset(b->message, 0, (size_t)bytes);
  for (int turn = -1; turn < turns; turn++)
    for (int way = 0; way < 4; way++) {
      double t = time_of(b, ways[way], repeats);
      if (turn >= 0)
        seconds[way][turn] = t;
    }
  for (int way = 0; way < 4; way++)
    middle[way] = median(seconds[way], turns);
  if (rank == 0)
    printf("%9lld  %10.2f %7.2f  %10.2f %7.2f  %10.2f %7.2f  %7.2f  %8.2f %8.2f\n", (long long)bytes, middle[0] * 1e6,
           (double)bytes / middle[0] * 1e-9, middle[1] * 1e6, (double)bytes / middle[1] * 1e-9, middle[2] * 1e6,
           (double)bytes / middle[2] * 1e-9, (double)bytes / middle[3] * 1e-9, middle[2] / middle[0], middle[2] / middle[1]);
}

int main(int argc, char **argv)
{
  static const int64_t sizes[] = {64, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
  const size_t largest = 64u << 20;
  ordo_comm_provider *provider = NULL;
  bench b = {0};
  void *window = NULL;
  MPI_Init(&argc, &argv);
  if (ordo_comm_mpi_create(NULL, MPI_COMM_WORLD, NULL, &provider) != ORDO_OK)
    return 1;
  if (provider->split(provider->ctx, 0, provider->rank, provider->size, "bench", &b.comm) != ORDO_OK ||
      b.comm->alloc(b.comm->ctx, largest, &window) != ORDO_OK)
    return 1;
  b.window = window;
  b.plain = calloc(largest, 1);
  b.message = calloc(largest, 1);
  if (!b.plain || !b.message)
    return 1;
  if (provider->rank == 0)
    printf("all-reduce of f32 on %d ranks; medians; GB/s of the full vector; ratios are MPI time / Ordo time\n"
           "    bytes   window us    GB/s  private us    GB/s      MPI us    GB/s   memcpy   window  private\n",
           provider->size);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    measure(&b, sizes[i], provider->rank);
  b.comm->free(b.comm->ctx, window);
  provider->release(provider->ctx, b.comm);
  ordo_comm_provider_destroy(provider);
  free(b.plain);
  free(b.message);
  MPI_Finalize();
  return 0;
}
