/* test_mpi.c - every kind, type and operation against a local reference, through the shared window and through plain MPI.
 *
 * Values are small integers, so that every sum is exact in every type and the comparison is for equality; only averages over 3 or 5 ranks
 * round, and then by less than one unit in the last place per term and one for the result.
 */
#include "mpi_testing.h"

#include <ordo/half.h>
#include "comm/reduce.h"

#include <float.h>
#include <math.h>
#include <time.h>

enum { LARGE = 1000003, MAX_RANKS = 8 };

static struct ordo_context context;
static ordo_comm_provider *providers[2]; /* shared window, plain MPI */
static const ordo_comm *comms[2];
static char *window_send[2], *window_recv[2], *private_send, *private_recv;
static size_t buffer_bytes;

static const ordo_dtype dtypes[] = {ORDO_F32, ORDO_F64, ORDO_F16, ORDO_BF16, ORDO_I8, ORDO_U8, ORDO_I32, ORDO_I64, ORDO_U64};

static int64_t value_at(int rank, int64_t i, ordo_dtype dtype)
{
  int64_t value = (i * 7 + rank * 5 + (i >> 4)) % 13;
  return dtype == ORDO_U8 || dtype == ORDO_U64 ? value : value - 6;
}

static double get(const void *buffer, int64_t i, ordo_dtype dtype)
{
  switch (dtype) {
  case ORDO_F32:
    return (double)((const float *)buffer)[i];
  case ORDO_F64:
    return ((const double *)buffer)[i];
  case ORDO_F16:
    return (double)ordo_f32_from_f16(((const uint16_t *)buffer)[i]);
  case ORDO_BF16:
    return (double)ordo_f32_from_bf16(((const uint16_t *)buffer)[i]);
  case ORDO_I8:
    return ((const int8_t *)buffer)[i];
  case ORDO_U8:
    return ((const uint8_t *)buffer)[i];
  case ORDO_I32:
    return ((const int32_t *)buffer)[i];
  case ORDO_I64:
    return (double)((const int64_t *)buffer)[i];
  default:
    return (double)((const uint64_t *)buffer)[i];
  }
}

static void set(void *buffer, int64_t i, ordo_dtype dtype, int64_t value)
{
  switch (dtype) {
  case ORDO_F32:
    ((float *)buffer)[i] = (float)value;
    break;
  case ORDO_F64:
    ((double *)buffer)[i] = (double)value;
    break;
  case ORDO_F16:
    ((uint16_t *)buffer)[i] = ordo_f16_from_f32((float)value);
    break;
  case ORDO_BF16:
    ((uint16_t *)buffer)[i] = ordo_bf16_from_f32((float)value);
    break;
  case ORDO_I8:
    ((int8_t *)buffer)[i] = (int8_t)value;
    break;
  case ORDO_U8:
    ((uint8_t *)buffer)[i] = (uint8_t)value;
    break;
  case ORDO_I32:
    ((int32_t *)buffer)[i] = (int32_t)value;
    break;
  case ORDO_I64:
    ((int64_t *)buffer)[i] = value;
    break;
  default:
    ((uint64_t *)buffer)[i] = (uint64_t)value;
  }
}

static double unit_in_the_last_place(ordo_dtype dtype)
{
  return dtype == ORDO_F32 ? FLT_EPSILON : dtype == ORDO_F64 ? DBL_EPSILON : dtype == ORDO_F16 ? 0x1p-10 : 0x1p-7;
}

static double reduced(int size, int64_t i, ordo_dtype dtype, uint32_t op)
{
  double result = (double)value_at(0, i, dtype);
  for (int rank = 1; rank < size; rank++) {
    double value = (double)value_at(rank, i, dtype);
    result = op == ORDO_MAX ? fmax(result, value) : op == ORDO_MIN ? fmin(result, value) : result + value;
  }
  return result;
}

static void check_reduced(const ordo_comm *comm, const ordo_collective *c, int64_t first)
{
  for (int64_t i = 0; i < c->count; i++) {
    double expected = reduced(comm->size, first + i, c->dtype, c->op), actual = get(c->recv, i, c->dtype);
    double tolerance = 0;
    if (c->op == ORDO_AVG) { /* terms are at most 6/size: each product and each addition rounds once, the result once */
      expected /= comm->size;
      tolerance = unit_in_the_last_place(c->dtype) * fabs(expected) + 12.0 * (c->dtype == ORDO_F64 ? DBL_EPSILON : FLT_EPSILON);
    }
    if (c->factor > 0)
      expected *= c->factor;
    if (fabs(actual - expected) > tolerance)
      fail_msg("%u %u op %u: element %lld is %.9g, expected %.9g", c->kind, c->dtype, c->op, (long long)i, actual, expected);
  }
}

typedef struct place {
  char *send, *recv;
} place;

static place place_of(int provider, gboolean in_window)
{
  place result = {in_window ? window_send[provider] : private_send, in_window ? window_recv[provider] : private_recv};
  return result;
}

static void run_reduction(int provider, gboolean in_window, gboolean in_place, uint32_t kind, ordo_dtype dtype, uint32_t op, int64_t count,
                          uint32_t flags, double factor)
{
  const ordo_comm *comm = comms[provider];
  place at = place_of(provider, in_window);
  int64_t total = kind == ORDO_REDUCE_SCATTER ? count * comm->size : count;
  int64_t first = kind == ORDO_REDUCE_SCATTER ? count * comm->rank : 0;
  for (int64_t i = 0; i < total; i++)
    set(at.send, i, dtype, value_at(comm->rank, i, dtype));
  ordo_collective c =
      ordo_collective_make(kind, at.send, in_place ? at.send + (size_t)first * ordo_dtype_size(dtype) : at.recv, count, dtype);
  c.op = op;
  c.flags = flags;
  c.factor = factor;
  assert_int_equal(ordo_comm_run(comm, &c), ORDO_OK);
  check_reduced(comm, &c, first);
  for (int64_t i = 0; !in_place && i < total; i++) /* the input is untouched */
    assert_true(get(at.send, i, dtype) == (double)value_at(comm->rank, i, dtype));
}

static void reductions_of_every_type(void **state)
{
  static const int64_t counts[] = {0, 1, 7, 5003, LARGE};
  (void)state;
  for (int provider = 0; provider < 2; provider++)
    for (size_t d = 0; d < G_N_ELEMENTS(dtypes); d++)
      for (uint32_t op = ORDO_SUM; op <= ORDO_MIN; op++)
        for (size_t k = 0; k < G_N_ELEMENTS(counts); k++)
          for (int variant = 0; variant < 4; variant++) {
            gboolean large = counts[k] == LARGE;
            if ((op == ORDO_AVG && dtypes[d] > ORDO_BF16) || (large && dtypes[d] != ORDO_F32 && dtypes[d] != ORDO_BF16) ||
                (large && op != ORDO_SUM))
              continue;
            uint32_t flags = variant & 2 ? ORDO_COMM_ORDERED : 0;
            run_reduction(provider, variant & 1, variant == 1 || variant == 2, ORDO_ALL_REDUCE, dtypes[d], op, counts[k], flags, 0.0);
            run_reduction(provider, variant & 1, variant == 1 || variant == 2, ORDO_REDUCE_SCATTER, dtypes[d], op, counts[k], flags, 0.0);
          }
}

static void the_factor_multiplies_sums(void **state)
{
  static const int64_t counts[] = {7, 5003, 100003};
  (void)state;
  for (int provider = 0; provider < 2; provider++)
    for (ordo_dtype dtype = ORDO_F32; dtype <= ORDO_BF16; dtype++)
      for (size_t k = 0; k < G_N_ELEMENTS(counts); k++)
        for (uint32_t flags = 0; flags <= ORDO_COMM_ORDERED; flags++) {
          run_reduction(provider, TRUE, TRUE, ORDO_ALL_REDUCE, dtype, ORDO_SUM, counts[k], flags, 0.25);
          run_reduction(provider, FALSE, FALSE, ORDO_REDUCE_SCATTER, dtype, ORDO_SUM, counts[k], flags, 2.0);
        }
}

static void gathers_and_broadcasts(void **state)
{
  static const int64_t counts[] = {0, 1, 7, 5003, LARGE};
  (void)state;
  for (int provider = 0; provider < 2; provider++)
    for (size_t k = 0; k < G_N_ELEMENTS(counts); k++)
      for (int variant = 0; variant < 4; variant++) {
        const ordo_comm *comm = comms[provider];
        int64_t count = counts[k];
        place at = place_of(provider, variant & 1);
        float *recv = (float *)(void *)at.recv;
        float *send = variant & 2 ? recv + count * comm->rank : (float *)(void *)at.send;
        memset(at.recv, 0, (size_t)(count * comm->size) * 4);
        for (int64_t i = 0; i < count; i++)
          send[i] = (float)value_at(comm->rank, i, ORDO_F32);
        assert_int_equal(ordo_all_gather(comm, send, recv, count, ORDO_F32), ORDO_OK);
        for (int rank = 0; rank < comm->size; rank++)
          for (int64_t i = 0; i < count; i++)
            assert_true(recv[count * rank + i] == (float)value_at(rank, i, ORDO_F32));
        for (int root = 0; root < comm->size; root++) {
          for (int64_t i = 0; i < count; i++)
            recv[i] = (float)value_at(comm->rank, i, ORDO_F32);
          assert_int_equal(ordo_broadcast(comm, recv, count, ORDO_F32, root), ORDO_OK);
          for (int64_t i = 0; i < count; i++)
            assert_true(recv[i] == (float)value_at(root, i, ORDO_F32));
        }
      }
}

/* Element j of the piece from `from` to `to`. */
static int16_t piece_value(int from, int to, int64_t j)
{
  return (int16_t)(from * 1000 + to * 100 + j % 97);
}

static void exchanges_between_all_pairs(void **state)
{
  (void)state;
  for (int provider = 0; provider < 2; provider++)
    for (int64_t count = 0; count < 4000; count += 1333) {
      const ordo_comm *comm = comms[provider];
      int64_t send_counts[MAX_RANKS], recv_counts[MAX_RANKS], at = 0;
      int16_t *send = (int16_t *)(void *)private_send, *recv = (int16_t *)(void *)private_recv;
      for (int to = 0; to < comm->size; to++)
        for (int64_t j = 0; j < count; j++)
          send[to * count + j] = piece_value(comm->rank, to, j);
      ordo_collective c = ordo_collective_make(ORDO_ALL_TO_ALL, send, recv, count, ORDO_BF16);
      assert_int_equal(ordo_comm_run(comm, &c), ORDO_OK);
      for (int from = 0; from < comm->size; from++)
        for (int64_t j = 0; j < count; j++)
          assert_int_equal(recv[from * count + j], piece_value(from, comm->rank, j));
      /* from f to t: count * f + t elements, so every pair differs and some are empty */
      for (int i = 0; i < comm->size; i++) {
        send_counts[i] = count * comm->rank + i;
        recv_counts[i] = count * i + comm->rank;
        for (int64_t j = 0; j < send_counts[i]; j++)
          send[at++] = piece_value(comm->rank, i, j);
      }
      c = ordo_collective_make(ORDO_ALL_TO_ALL_V, send, recv, 0, ORDO_BF16);
      c.send_counts = send_counts;
      c.recv_counts = recv_counts;
      assert_int_equal(ordo_comm_run(comm, &c), ORDO_OK);
      at = 0;
      for (int from = 0; from < comm->size; from++)
        for (int64_t j = 0; j < recv_counts[from]; j++)
          assert_int_equal(recv[at++], piece_value(from, comm->rank, j));
    }
}

/* Receives are started before sends and finish in another order than they started; tags keep pairs apart. */
static void pairs_find_each_other(void **state)
{
  (void)state;
  for (int provider = 0; provider < 2; provider++) {
    const ordo_comm *comm = comms[provider];
    int next = (comm->rank + 1) % comm->size, previous = (comm->rank + comm->size - 1) % comm->size;
    int32_t out[2] = {comm->rank * 10 + 1, comm->rank * 10 + 2}, in[2] = {-1, -1};
    ordo_request *requests[4];
    if (comm->size == 1)
      continue;
    for (int tag = 0; tag < 2; tag++) {
      ordo_collective c = ordo_collective_make(ORDO_RECV, NULL, &in[tag], 1, ORDO_I32);
      c.root = previous;
      c.tag = tag;
      assert_int_equal(comm->start(comm->ctx, &c, &requests[tag]), ORDO_OK);
    }
    assert_int_equal(ordo_barrier(comm), ORDO_OK); /* overtakes the pending receives */
    for (int tag = 1; tag >= 0; tag--) {
      ordo_collective c = ordo_collective_make(ORDO_SEND, &out[tag], NULL, 1, ORDO_I32);
      c.root = next;
      c.tag = tag;
      assert_int_equal(comm->start(comm->ctx, &c, &requests[2 + tag]), ORDO_OK);
    }
    for (int i = 3; i >= 0; i--)
      assert_int_equal(comm->wait(comm->ctx, requests[i]), ORDO_OK);
    assert_int_equal(in[0], previous * 10 + 1);
    assert_int_equal(in[1], previous * 10 + 2);
  }
}

static uint32_t next_random(uint32_t *seed)
{
  *seed = *seed * 1664525u + 1013904223u;
  return *seed >> 8;
}

/* `ordered` sums: window, staging, announcement, plain MPI, all-reduce and reduce-scatter + all-gather, twice: one result. */
static void ordered_sums_agree_bit_for_bit(void **state)
{
  static const int64_t counts[] = {1, 77, 5003, 400009};
  static const double factors[] = {1.0, 1.0 / 3.0};
  (void)state;
  for (size_t k = 0; k < G_N_ELEMENTS(counts); k++)
    for (size_t f = 0; f < 2; f++) {
      int size = comms[0]->size, rank = comms[0]->rank;
      int64_t total = counts[k] * size;
      g_autofree float *input = g_new(float, (gsize)total), *expected = g_new(float, (gsize)total);
      for (int r = 0; r < size; r++) {
        uint32_t seed = (uint32_t)(r + 1) * 77u;
        for (int64_t i = 0; i < total; i++) {
          float value = ldexpf((float)next_random(&seed) / 0x1p24f - 0.5f, (int)(next_random(&seed) % 12));
          expected[i] = r ? expected[i] + value : value;
          if (r == rank)
            input[i] = value;
        }
      }
      for (int64_t i = 0; i < total; i++)
        expected[i] *= (float)factors[f];
      for (int run = 0; run < 16; run++) {
        int provider = run & 1;
        place at = place_of(provider, (run & 2) != 0);
        memcpy(at.send, input, (size_t)total * 4);
        if (run & 4) {
          ordo_collective c = ordo_collective_make(ORDO_ALL_REDUCE, at.send, at.recv, total, ORDO_F32);
          c.flags = ORDO_COMM_ORDERED;
          c.factor = factors[f];
          assert_int_equal(ordo_comm_run(comms[provider], &c), ORDO_OK);
        } else {
          float *piece = (float *)(void *)at.recv + counts[k] * rank;
          ordo_collective c = ordo_collective_make(ORDO_REDUCE_SCATTER, at.send, piece, counts[k], ORDO_F32);
          c.flags = ORDO_COMM_ORDERED;
          c.factor = factors[f];
          assert_int_equal(ordo_comm_run(comms[provider], &c), ORDO_OK);
          assert_int_equal(ordo_all_gather(comms[provider], piece, at.recv, counts[k], ORDO_F32), ORDO_OK);
        }
        assert_memory_equal(at.recv, expected, (size_t)total * 4);
      }
    }
}

/* Three pieces with gaps, in another order on the whole side than on the shard side; the middle one is empty. */
static void pieces_go_where_they_belong(void **state)
{
  static const int64_t counts[] = {1, 7, 300, 70000}; /* inline, direct, and several staging buffers */
  (void)state;
  for (int provider = 0; provider < 2; provider++)
    for (size_t k = 0; k < G_N_ELEMENTS(counts); k++)
      for (int in_window = 0; in_window < 2; in_window++) {
        const ordo_comm *comm = comms[provider];
        const int64_t a = counts[k], b = counts[k] / 2, size = comm->size;
        const ordo_comm_piece pieces[3] = {{5, b * size + 3, a}, {0, 0, 0}, {5 + a + 2, 0, b}};
        place at = place_of(provider, in_window != 0);
        float *send = (float *)(void *)at.send, *recv = (float *)(void *)at.recv;
        if ((size_t)((a + b) * size + 16) * sizeof(float) > buffer_bytes)
          continue;
        assert_true(ORDO_HAS(comm, ordo_comm, features) && (comm->features & ORDO_COMM_PIECES));
        ordo_collective c = ordo_collective_make(ORDO_ALL_GATHER, send, recv, a + b, ORDO_F32);
        c.pieces = pieces;
        c.n_pieces = 3;
        for (int64_t i = 0; i < a + b + 7; i++)
          send[i] = (float)(1000 * comm->rank + i % 97);
        for (int64_t i = 0; i < (a + b) * size + 3; i++)
          recv[i] = -1.0f;
        assert_int_equal(ordo_comm_run(comm, &c), ORDO_OK);
        for (int r = 0; r < size; r++) {
          for (int64_t i = 0; i < a; i++)
            assert_true(recv[b * size + 3 + r * a + i] == (float)(1000 * r + (5 + i) % 97));
          for (int64_t i = 0; i < b; i++)
            assert_true(recv[r * b + i] == (float)(1000 * r + (5 + a + 2 + i) % 97));
        }
        for (int64_t i = 0; i < 3; i++) /* what is in no piece stays */
          assert_true(recv[b * size + i] == -1.0f);
        ordo_barrier(comm);
        c.kind = ORDO_REDUCE_SCATTER;
        c.factor = 2.0;
        for (int64_t i = 0; i < (a + b) * size + 3; i++)
          send[i] = (float)(comm->rank + i % 89);
        for (int64_t i = 0; i < a + b + 7; i++)
          recv[i] = -1.0f;
        assert_int_equal(ordo_comm_run(comm, &c), ORDO_OK);
        const float ranks = (float)(size * (size - 1) / 2);
        for (int64_t i = 0; i < a; i++)
          assert_true(recv[5 + i] == 2.0f * (ranks + (float)(size * ((b * size + 3 + comm->rank * a + i) % 89))));
        for (int64_t i = 0; i < b; i++)
          assert_true(recv[5 + a + 2 + i] == 2.0f * (ranks + (float)(size * ((comm->rank * b + i) % 89))));
        for (int64_t i = 0; i < 5; i++)
          assert_true(recv[i] == -1.0f);
        assert_true(recv[5 + a] == -1.0f && recv[5 + a + 1] == -1.0f);
        ordo_barrier(comm);
      }
}

static void sleep_a_little(uint32_t *seed)
{
  struct timespec pause = {0, (long)(next_random(seed) % 3000) * 1000};
  nanosleep(&pause, NULL);
}

/* More collectives in flight than announcement slots, of all ways, with random delays, tested and waited for in reverse. */
static void many_in_flight_with_random_delays(void **state)
{
  enum { N = 20, COUNT = 3001 };
  uint32_t seed = (uint32_t)comms[0]->rank * 99u + 5u;
  (void)state;
  for (int provider = 0; provider < 2; provider++)
    for (int round = 0; round < 5; round++) {
      const ordo_comm *comm = comms[provider];
      ordo_request *requests[N];
      int32_t done = 0;
      for (int n = 0; n < N; n++) {
        place at = place_of(provider, n % 2);
        int32_t *data = (int32_t *)(void *)at.send + n * COUNT;
        int64_t count = n % 3 ? COUNT : 5;
        for (int64_t i = 0; i < count; i++)
          data[i] = comm->rank + n + (int32_t)i;
        ordo_collective c = ordo_collective_make(ORDO_ALL_REDUCE, data, data, count, ORDO_I32);
        c.label = "in flight";
        if (n % 5 == 0)
          sleep_a_little(&seed);
        assert_int_equal(comm->start(comm->ctx, &c, &requests[n]), ORDO_OK);
        assert_int_equal(comm->progress(comm->ctx), ORDO_OK);
      }
      sleep_a_little(&seed);
      while (!done)
        assert_int_equal(comm->test(comm->ctx, requests[N - 1], &done), ORDO_OK);
      for (int n = N - 1; n >= 0; n--) {
        int32_t *data = (int32_t *)(void *)place_of(provider, n % 2).send + n * COUNT;
        assert_int_equal(comm->test(comm->ctx, requests[n], &done), ORDO_OK);
        assert_int_equal(done, 1); /* the last one is done, so all are */
        assert_int_equal(comm->wait(comm->ctx, requests[n]), ORDO_OK);
        for (int i = 0; i < (n % 3 ? COUNT : 5); i++)
          assert_int_equal(data[i], comm->size * (n + i) + comm->size * (comm->size - 1) / 2);
      }
    }
}

/* Even ranks wait on A then B, odd ranks on B then A: each must work for both. */
static void waiting_on_one_axis_serves_the_others(void **state)
{
  const ordo_comm *second = NULL;
  ordo_request *a = NULL, *b = NULL;
  (void)state;
  for (int provider = 0; provider < 2; provider++) {
    ordo_comm_provider *p = providers[provider];
    assert_int_equal(p->split(p->ctx, 0, p->rank, p->size, "second", &second), ORDO_OK);
    for (int round = 0; round < 10; round++) {
      float *x = (float *)(void *)private_send, *y = (float *)(void *)private_recv;
      ordo_collective first = ordo_collective_make(ORDO_ALL_REDUCE, x, x, 200000, ORDO_F32);
      ordo_collective other = ordo_collective_make(ORDO_ALL_REDUCE, y, y, 200000, ORDO_F32);
      for (int i = 0; i < 200000; i++) {
        x[i] = 1.0f;
        y[i] = 2.0f;
      }
      assert_int_equal(comms[provider]->start(comms[provider]->ctx, &first, &a), ORDO_OK);
      assert_int_equal(second->start(second->ctx, &other, &b), ORDO_OK);
      if (p->rank % 2) {
        assert_int_equal(second->wait(second->ctx, b), ORDO_OK);
        assert_int_equal(comms[provider]->wait(comms[provider]->ctx, a), ORDO_OK);
      } else {
        assert_int_equal(comms[provider]->wait(comms[provider]->ctx, a), ORDO_OK);
        assert_int_equal(second->wait(second->ctx, b), ORDO_OK);
      }
      for (int i = 0; i < 200000; i++)
        assert_true(x[i] == (float)p->size && y[i] == 2.0f * (float)p->size);
    }
    p->release(p->ctx, second);
  }
}

static void the_mesh_separates_ranks(void **state)
{
  (void)state;
  if (comms[0]->size % 2 || comms[0]->size < 4)
    skip();
  ordo_axis_spec specs[] = {{"ddp", ORDO_AXIS_DATA, comms[0]->size / 2}, {"tp", ORDO_AXIS_MODEL, 2}};
  for (int provider = 0; provider < 2; provider++) {
    ordo_mesh *mesh = NULL;
    assert_int_equal(ordo_axes_create(providers[provider], specs, 2, context.errors, &mesh), ORDO_OK);
    int32_t outer = mesh->rank, inner = mesh->rank;
    assert_int_equal(ordo_all_reduce(mesh->axes[0]->comm, &outer, 1, ORDO_I32, ORDO_MIN, 1.0), ORDO_OK);
    assert_int_equal(ordo_all_reduce(mesh->axes[1]->comm, &inner, 1, ORDO_I32, ORDO_MIN, 1.0), ORDO_OK);
    assert_int_equal(outer, mesh->rank % 2);
    assert_int_equal(inner, mesh->rank / 2 * 2);
    ordo_axes_destroy(providers[provider], mesh);
  }
}

static void digests_agree_or_name_the_rank(void **state)
{
  char text[32];
  (void)state;
  for (int provider = 0; provider < 2; provider++) {
    const ordo_comm *comm = comms[provider];
    ordo_comm_stats before = {.struct_size = sizeof before}, after = before;
    comm->stats(comm->ctx, &before);
    assert_int_equal(ordo_axes_agree(comm, "same", "plan digest", context.errors), ORDO_OK);
    comm->stats(comm->ctx, &after);
    assert_int_equal(after.calls[ORDO_ALL_REDUCE] - before.calls[ORDO_ALL_REDUCE], 1);
    assert_int_equal(after.calls[ORDO_ALL_GATHER] - before.calls[ORDO_ALL_GATHER], 0);
    if (comm->size == 1)
      continue;
    int odd_one = comm->size - 1;
    ordo_errors_clear(context.errors);
    assert_int_equal(ordo_axes_agree(comm, comm->rank == odd_one ? "other" : "same", "plan digest", context.errors), ORDO_E_MISMATCH);
    assert_string_equal(last_code(&context), "E-PLAN-DIGEST");
    g_snprintf(text, sizeof text, "differs on rank %d ", odd_one);
    assert_contains(last_text(&context), text);
    ordo_errors_clear(context.errors);
  }
}

static void memory_of_all_ranks_is_zeroed(void **state)
{
  (void)state;
  for (int provider = 0; provider < 2; provider++)
    for (size_t bytes = 1; bytes < 200000; bytes = bytes * 3 + 1) {
      void *memory = NULL;
      const ordo_comm *comm = comms[provider];
      assert_int_equal(comm->alloc(comm->ctx, bytes, &memory), ORDO_OK);
      assert_int_equal((uintptr_t)memory % 64, 0);
      for (size_t i = 0; i < bytes; i++)
        assert_int_equal(((char *)memory)[i], 0);
      memset(memory, 0xff, bytes);
      assert_int_equal(comm->free(comm->ctx, memory), ORDO_OK);
    }
}

static void the_fortran_handle_is_the_same_world(void **state)
{
  ordo_comm_provider *provider = NULL;
  ordo_mpi_options options = {.struct_size = sizeof options};
  (void)state;
  assert_int_equal(ordo_comm_mpi_create_f(&context, MPI_Comm_c2f(MPI_COMM_WORLD), &options, &provider), ORDO_OK);
  assert_int_equal(provider->size, comms[0]->size);
  ordo_comm_provider_destroy(provider);
  assert_int_equal(ordo_comm_mpi_create_f(&context, 123456, &options, &provider), ORDO_E_UNAVAILABLE);
  assert_null(provider);
  assert_string_equal(last_code(&context), "E-COMM-MPI");
}

/* A provider over half of the ranks; the other half has its own. */
static void providers_on_parts_of_the_world(void **state)
{
  ordo_comm_provider *provider = NULL;
  const ordo_comm *comm = NULL;
  MPI_Comm part;
  int64_t sum = 1;
  (void)state;
  MPI_Comm_split(MPI_COMM_WORLD, comms[0]->rank % 2, comms[0]->rank, &part);
  assert_int_equal(ordo_comm_mpi_create(&context, part, NULL, &provider), ORDO_OK);
  MPI_Comm_free(&part); /* the provider has a duplicate */
  assert_int_equal(provider->size, (comms[0]->size + 1 - comms[0]->rank % 2) / 2);
  assert_int_equal(provider->split(provider->ctx, 0, provider->rank, provider->size, "part", &comm), ORDO_OK);
  assert_int_equal(ordo_all_reduce(comm, &sum, 1, ORDO_I64, ORDO_SUM, 1.0), ORDO_OK);
  assert_int_equal(sum, provider->size);
  provider->release(provider->ctx, comm);
  ordo_comm_provider_destroy(provider);
}

static void a_wrong_size_is_refused_everywhere(void **state)
{
  const ordo_comm *comm = NULL;
  ordo_comm_provider *p = providers[0];
  (void)state;
  assert_int_equal(p->split(p->ctx, 0, p->rank, p->size + 1, "wrong", &comm), ORDO_E_INVALID);
  assert_string_equal(last_code(&context), "E-MESH-SIZE");
  ordo_errors_clear(context.errors);
}

static void counters_are_exact(void **state)
{
  (void)state;
  for (int provider = 0; provider < 2; provider++) {
    const ordo_comm *comm = comms[provider];
    ordo_comm_stats before = {.struct_size = sizeof before}, after = before;
    comm->stats(comm->ctx, &before);
    for (int i = 0; i < 3; i++)
      run_reduction(provider, TRUE, TRUE, ORDO_REDUCE_SCATTER, ORDO_BF16, ORDO_SUM, 5003, 0, 0.0);
    comm->stats(comm->ctx, &after);
    assert_int_equal(after.calls[ORDO_REDUCE_SCATTER] - before.calls[ORDO_REDUCE_SCATTER], 3);
    assert_int_equal(after.bytes[ORDO_REDUCE_SCATTER] - before.bytes[ORDO_REDUCE_SCATTER], 3 * 5003 * 2 * comm->size);
    assert_true(after.busy_seconds > before.busy_seconds && after.wait_seconds >= before.wait_seconds);
    assert_true(after.wait_seconds <= after.busy_seconds);
  }
}

static int set_up(void **state)
{
  (void)state;
  for (int i = 0; i < 2; i++) {
    ordo_mpi_options options = {sizeof options, 60.0, (uint32_t)i, 0};
    void *send = NULL, *recv = NULL;
    if (ordo_comm_mpi_create(&context, MPI_COMM_WORLD, &options, &providers[i]) != ORDO_OK)
      return 1;
    ordo_comm_provider *p = providers[i];
    if (p->split(p->ctx, 0, p->rank, p->size, "world", &comms[i]) != ORDO_OK)
      return 1;
    buffer_bytes = (size_t)p->size * LARGE * 4 + 4096;
    if (comms[i]->alloc(comms[i]->ctx, buffer_bytes, &send) != ORDO_OK || comms[i]->alloc(comms[i]->ctx, buffer_bytes, &recv) != ORDO_OK)
      return 1;
    window_send[i] = send;
    window_recv[i] = recv;
  }
  private_send = malloc(buffer_bytes);
  private_recv = malloc(buffer_bytes);
  return !private_send || !private_recv;
}

static int tear_down(void **state)
{
  (void)state;
  for (int i = 0; i < 2; i++) {
    comms[i]->free(comms[i]->ctx, window_send[i]);
    comms[i]->free(comms[i]->ctx, window_recv[i]);
    providers[i]->release(providers[i]->ctx, comms[i]);
    ordo_comm_provider_destroy(providers[i]);
  }
  free(private_send);
  free(private_recv);
  return 0;
}

static int run_all(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reductions_of_every_type),
      cmocka_unit_test(the_factor_multiplies_sums),
      cmocka_unit_test(gathers_and_broadcasts),
      cmocka_unit_test(exchanges_between_all_pairs),
      cmocka_unit_test(pairs_find_each_other),
      cmocka_unit_test(ordered_sums_agree_bit_for_bit),
      cmocka_unit_test(pieces_go_where_they_belong),
      cmocka_unit_test(many_in_flight_with_random_delays),
      cmocka_unit_test(waiting_on_one_axis_serves_the_others),
      cmocka_unit_test(the_mesh_separates_ranks),
      cmocka_unit_test(digests_agree_or_name_the_rank),
      cmocka_unit_test(memory_of_all_ranks_is_zeroed),
      cmocka_unit_test(the_fortran_handle_is_the_same_world),
      cmocka_unit_test(providers_on_parts_of_the_world),
      cmocka_unit_test(a_wrong_size_is_refused_everywhere),
      cmocka_unit_test(counters_are_exact),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}

int main(int argc, char **argv)
{
  int rank = 0;
  context = test_context();
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int failed = run_on_ranks(rank, run_all);
  ordo_errors_free(context.errors);
  MPI_Finalize();
  return failed;
}
