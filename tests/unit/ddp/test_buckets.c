/* test_buckets.c - bucket assignment against the numbers of PyTorch's own function (golden set sharding/stories260k.json), and
 * the corners that those do not reach. */
#include "buckets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { N = 47, FORWARDS = 0, BACKWARDS = 1, OBSERVED = 2 };

/* Bytes of each parameter of the stories260K model in fp32, definition order. */
static const int64_t SIZES[N] = {131072, 16384, 8192,  8192,  16384, 44032, 44032, 44032, 256,   256,   16384, 8192,
                                 8192,   16384, 44032, 44032, 44032, 256,   256,   16384, 8192,  8192,  16384, 44032,
                                 44032,  44032, 256,   256,   16384, 8192,  8192,  16384, 44032, 44032, 44032, 256,
                                 256,    16384, 8192,  8192,  16384, 44032, 44032, 44032, 256,   256,   256};
static const uint32_t BACKWARD_ORDER[N] = {46, 43, 42, 41, 45, 40, 39, 38, 37, 44, 34, 33, 32, 36, 31, 30, 29, 28, 35, 25, 24, 23, 27, 22,
                                           21, 20, 19, 26, 16, 15, 14, 18, 13, 12, 11, 10, 17, 7,  6,  5,  9,  4,  3,  2,  1,  8,  0};

static const struct {
  const char *name;
  int order;
  int64_t limits[2];
  uint32_t n_limits, n_buckets;
  int64_t bytes[8];
  uint32_t members[8]; /* buckets are consecutive stretches of the order; 0: not stated by the source */
} CASES[] = {
    {"definition, default", FORWARDS, {1048576, 26214400}, 2, 1, {1040128}, {47}},
    {"definition, 1 MiB then 256 KiB", FORWARDS, {1048576, 262144}, 2, 1, {1040128}, {47}},
    {"definition, 256 KiB", FORWARDS, {262144}, 1, 4, {268288, 275456, 269824, 226560}, {7, 16, 11, 13}},
    {"definition, 64 then 256 KiB", FORWARDS, {65536, 262144}, 2, 5, {131072, 274944, 269824, 275456, 88832}, {1, 14, 11, 16, 5}},
    {"reverse, default", BACKWARDS, {1048576, 26214400}, 2, 1, {1040128}, {47}},
    {"reverse, 1 MiB then 256 KiB", BACKWARDS, {1048576, 262144}, 2, 1, {1040128}, {47}},
    {"reverse, 256 KiB", BACKWARDS, {262144}, 1, 4, {270592, 274944, 270336, 224256}, {14, 14, 13, 6}},
    {"reverse, 64 then 256 KiB", BACKWARDS, {65536, 262144}, 2, 5, {88832, 274944, 270336, 274944, 131072}, {5, 14, 13, 14, 1}},
    {"backward, default", OBSERVED, {1048576, 26214400}, 2, 1, {1040128}, {47}},
    {"backward, 1 MiB then 256 KiB", OBSERVED, {1048576, 262144}, 2, 1, {1040128}, {47}},
    {"backward, 256 KiB", OBSERVED, {262144}, 1, 4, {270080, 275200, 270080, 224768}, {12, 15, 12, 8}},
    {"backward, 64 then 256 KiB", OBSERVED, {65536, 262144}, 2, 5, {88320, 275200, 270080, 275200, 131328}, {3, 15, 12, 15, 2}},
    /* sizes that real two-process runs logged after rebuilding */
    {"real run, 256 KiB twice", OBSERVED, {262144, 262144}, 2, 4, {270080, 275200, 270080, 224768}, {0}},
    {"real run, 16 then 128 KiB", OBSERVED, {16384, 131072}, 2, 8, {44288, 137472, 132352, 137728, 137728, 137472, 132352, 180736}, {0}},
};

static void fill_order(int which, uint32_t *order)
{
  for (uint32_t i = 0; i < N; i++)
    order[i] = which == FORWARDS ? i : which == BACKWARDS ? N - 1 - i : BACKWARD_ORDER[i];
}

static void golden_cases(void **state)
{
  (void)state;
  ordo_dtype dtypes[N];
  for (int i = 0; i < N; i++)
    dtypes[i] = ORDO_F32;
  for (size_t c = 0; c < sizeof CASES / sizeof CASES[0]; c++) {
    uint32_t order[N], bucket_of[N];
    fill_order(CASES[c].order, order);
    print_message("  %s\n", CASES[c].name);
    assert_int_equal(ddp_assign_buckets(SIZES, dtypes, order, N, CASES[c].limits, CASES[c].n_limits, bucket_of), CASES[c].n_buckets);
    uint32_t i = 0;
    for (uint32_t b = 0; b < CASES[c].n_buckets; b++) {
      uint32_t first = i;
      int64_t bytes = 0;
      for (; i < N && bucket_of[order[i]] == b; i++)
        bytes += SIZES[order[i]];
      assert_int_equal(bytes, CASES[c].bytes[b]);
      if (CASES[c].members[0] != 0)
        assert_int_equal(i - first, CASES[c].members[b]);
    }
    assert_int_equal(i, N);
  }
}

/* A multi-layer perceptron 64-512-512-64 with a cap of 1 MiB everywhere: PyTorch logs one bucket of 1 315 072 bytes in the first step and
 * then {5,4,3,2} with 1 181 952 and {1,0} with 133 120 bytes. */
static void measured_mlp(void **state)
{
  (void)state;
  const int64_t bytes[] = {64 * 512 * 4, 512 * 4, 512 * 512 * 4, 512 * 4, 512 * 64 * 4, 64 * 4};
  const ordo_dtype dtypes[] = {ORDO_F32, ORDO_F32, ORDO_F32, ORDO_F32, ORDO_F32, ORDO_F32};
  const uint32_t order[] = {5, 4, 3, 2, 1, 0};
  const int64_t cap = 1048576, unbounded = DDP_UNBOUNDED;
  uint32_t bucket_of[6];
  assert_int_equal(ddp_assign_buckets(bytes, dtypes, order, 6, &unbounded, 1, bucket_of), 1);
  assert_int_equal(bytes[0] + bytes[1] + bytes[2] + bytes[3] + bytes[4] + bytes[5], 1315072);
  assert_int_equal(ddp_assign_buckets(bytes, dtypes, order, 6, &cap, 1, bucket_of), 2);
  const uint32_t expected[] = {1, 1, 0, 0, 0, 0};
  assert_memory_equal(bucket_of, expected, sizeof expected);
  assert_int_equal(bytes[5] + bytes[4] + bytes[3] + bytes[2], 1181952);
}

/* Element types never share a bucket, each has its own sequence of limits, and what stays open comes last. */
static void types_are_kept_apart(void **state)
{
  (void)state;
  const int64_t bytes[] = {10, 10, 10, 10, 10, 10}, limits[] = {20, 1000};
  const ordo_dtype dtypes[] = {ORDO_F32, ORDO_BF16, ORDO_F32, ORDO_BF16, ORDO_F32, ORDO_BF16};
  const uint32_t order[] = {0, 1, 2, 3, 4, 5}, expected[] = {0, 1, 0, 1, 2, 3};
  uint32_t bucket_of[6];
  assert_int_equal(ddp_assign_buckets(bytes, dtypes, order, 6, limits, 2, bucket_of), 4);
  assert_memory_equal(bucket_of, expected, sizeof expected);
}

static void corners(void **state)
{
  (void)state;
  const int64_t bytes[] = {0, 5, 0}, limit = 5;
  const ordo_dtype dtypes[] = {ORDO_F32, ORDO_F32, ORDO_F32};
  const uint32_t order[] = {0, 1, 2}, expected[] = {0, 0, 1};
  uint32_t bucket_of[3];
  assert_int_equal(ddp_assign_buckets(bytes, dtypes, order, 0, &limit, 1, bucket_of), 0);
  assert_int_equal(ddp_assign_buckets(bytes, dtypes, order, 3, &limit, 1, bucket_of), 2); /* exactly the limit closes */
  assert_memory_equal(bucket_of, expected, sizeof expected);

  int64_t many_bytes[DDP_MAX_KEYS + 1];
  ordo_dtype many[DDP_MAX_KEYS + 1];
  uint32_t in_order[DDP_MAX_KEYS + 1], many_of[DDP_MAX_KEYS + 1];
  for (uint32_t i = 0; i <= DDP_MAX_KEYS; i++) {
    many_bytes[i] = 1;
    many[i] = 100 + i;
    in_order[i] = i;
  }
  assert_int_equal(ddp_assign_buckets(many_bytes, many, in_order, DDP_MAX_KEYS, &limit, 1, many_of), DDP_MAX_KEYS);
  assert_int_equal(ddp_assign_buckets(many_bytes, many, in_order, DDP_MAX_KEYS + 1, &limit, 1, many_of), 0);
}

static void permutations(void **state)
{
  (void)state;
  uint8_t seen[3];
  assert_true(ddp_is_permutation((const int32_t[]){2, 0, 1}, 3, seen));
  assert_false(ddp_is_permutation((const int32_t[]){2, 0, 2}, 3, seen));
  assert_false(ddp_is_permutation((const int32_t[]){0, 1, 3}, 3, seen));
  assert_false(ddp_is_permutation((const int32_t[]){0, -1, 1}, 3, seen));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(golden_cases), cmocka_unit_test(measured_mlp), cmocka_unit_test(types_are_kept_apart),
      cmocka_unit_test(corners),      cmocka_unit_test(permutations),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
