/* test_random.c - counter-based random numbers: known answers, independence of chunks, moments, permutations. */
#include "io_support.h"

#include "random.h"

#include <math.h>

/* Known answers of Philox4x32-10 published with Random123 (kat_vectors). */
static void philox_gives_the_published_answers(void **state)
{
  static const uint32_t counters[3][4] = {{0, 0, 0, 0}, {~0u, ~0u, ~0u, ~0u}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}};
  static const uint32_t keys[3][2] = {{0, 0}, {~0u, ~0u}, {0xa4093822, 0x299f31d0}};
  static const uint32_t answers[3][4] = {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
                                         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
                                         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
  (void)state;
  for (int i = 0; i < 3; i++) {
    uint32_t out[4];
    ordo_philox(counters[i], keys[i], out);
    for (int k = 0; k < 4; k++)
      assert_int_equal(out[k], answers[i][k]);
  }
}

static void any_chunk_equals_the_whole(void **state)
{
  enum { N = 1003 };
  float whole[N], part[N];
  uint64_t key = ordo_random_key(7, "model.layers.0.mlp.up_proj.weight");
  (void)state;
  ordo_random_normal(key, 0, N, 0.02, whole);
  for (int begin = 0; begin < 9; begin++)
    for (int count = 0; count < 11; count++) {
      ordo_random_normal(key, begin, count, 0.02, part);
      assert_memory_equal(part, whole + begin, (size_t)count * sizeof(float));
    }
  ordo_random_normal(key, 500, 503, 0.02, part);
  assert_memory_equal(part, whole + 500, 503 * sizeof(float));
}

/* For n normal numbers the mean is within 5/sqrt(n) deviations and the variance within 5*sqrt(2/n): one false alarm in a million. */
static void normals_have_the_right_moments(void **state)
{
  enum { N = 1 << 18 };
  g_autofree float *x = g_new(float, N);
  double sum = 0, squares = 0, fourth = 0;
  (void)state;
  ordo_random_normal(ordo_random_key(1, "x"), 0, N, 2.0, x);
  for (int i = 0; i < N; i++) {
    double z = (double)x[i] / 2.0;
    sum += z;
    squares += z * z;
    fourth += z * z * z * z;
  }
  assert_true(fabs(sum / N) < 5.0 / sqrt(N));
  assert_true(fabs(squares / N - 1.0) < 5.0 * sqrt(2.0 / N));
  assert_true(fabs(fourth / N - 3.0) < 5.0 * sqrt(96.0 / N));
}

static void streams_differ_by_seed_and_name(void **state)
{
  (void)state;
  assert_true(ordo_random_key(1, "a") != ordo_random_key(2, "a"));
  assert_true(ordo_random_key(1, "a") != ordo_random_key(1, "b"));
  assert_true(ordo_random_uniform(1, 5) != ordo_random_uniform(1, 6));
  for (uint64_t i = 0; i < 1000; i++) {
    double u = ordo_random_uniform(3, i);
    assert_true(u >= 0.0 && u < 1.0);
  }
}

static void permutations_hit_every_index_once(void **state)
{
  static const uint64_t sizes[] = {1, 2, 3, 4, 5, 16, 17, 80, 1000, 4097};
  (void)state;
  for (size_t s = 0; s < G_N_ELEMENTS(sizes); s++) {
    g_autofree int *seen = g_new0(int, sizes[s]);
    int moved = 0;
    for (uint64_t i = 0; i < sizes[s]; i++) {
      uint64_t j = ordo_random_permute(99, sizes[s], i);
      assert_true(j < sizes[s]);
      assert_int_equal(seen[j]++, 0);
      moved += i != j;
    }
    assert_true(sizes[s] < 16 || moved > (int)sizes[s] / 2);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(philox_gives_the_published_answers), cmocka_unit_test(any_chunk_equals_the_whole),
      cmocka_unit_test(normals_have_the_right_moments),     cmocka_unit_test(streams_differ_by_seed_and_name),
      cmocka_unit_test(permutations_hit_every_index_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
