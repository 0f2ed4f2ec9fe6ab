/* test_flat.c - offsets, shards and pieces, against numbers of torch's FlatParamHandle (1.13) for the 260K-parameter Llama. */
#include "flat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCK_PARAMS = 9 };
static const int64_t BLOCK[BLOCK_PARAMS] = {4096, 2048, 2048, 4096, 11008, 11008, 11008, 64, 64};
static const int64_t ROOT[2] = {32768, 64};

typedef struct expected_piece {
  int param;
  int64_t begin, end;
} expected_piece;

static void expect_pieces(const fsdp1_flat *flat, const int64_t *numels, const int64_t *offsets, uint32_t n, int rank,
                          const expected_piece *expected, int n_expected)
{
  int found = 0;
  for (uint32_t p = 0; p < n; p++) {
    int64_t begin, end;
    fsdp1_flat_piece(flat, offsets[p], numels[p], rank, &begin, &end);
    if (begin == end)
      continue;
    assert_true(found < n_expected);
    assert_int_equal(p, expected[found].param);
    assert_int_equal(begin, expected[found].begin);
    assert_int_equal(end, expected[found].end);
    found++;
  }
  assert_int_equal(found, n_expected);
}

static void golden_block_on_three_ranks(void **state)
{
  (void)state;
  int64_t offsets[BLOCK_PARAMS];
  const expected_piece first[] = {{0, 0, 4096}, {1, 0, 2048}, {2, 0, 2048}, {3, 0, 4096}, {4, 0, 2859}};
  const expected_piece second[] = {{4, 2859, 11008}, {5, 0, 6998}};
  const expected_piece third[] = {{5, 6998, 11008}, {6, 0, 11008}, {7, 0, 64}, {8, 0, 64}};
  fsdp1_flat flat = fsdp1_flat_layout(BLOCK, BLOCK_PARAMS, 4, 3, offsets);
  assert_int_equal(flat.numel, 45440);
  assert_int_equal(flat.shard_numel, 15147);
  assert_int_equal(flat.shard_numel * 3 - flat.numel, 1);
  expect_pieces(&flat, BLOCK, offsets, BLOCK_PARAMS, 0, first, 5);
  expect_pieces(&flat, BLOCK, offsets, BLOCK_PARAMS, 1, second, 2);
  expect_pieces(&flat, BLOCK, offsets, BLOCK_PARAMS, 2, third, 4);
}

static void golden_sizes(void **state)
{
  (void)state;
  static const struct {
    int world;
    int64_t block, root;
  } rows[] = {{2, 22720, 16416}, {3, 15147, 10944}, {4, 11360, 8208}, {5, 9088, 6567}};
  int64_t offsets[BLOCK_PARAMS];
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    assert_int_equal(fsdp1_flat_layout(BLOCK, BLOCK_PARAMS, 4, rows[i].world, offsets).shard_numel, rows[i].block);
    assert_int_equal(fsdp1_flat_layout(ROOT, 2, 4, rows[i].world, offsets).shard_numel, rows[i].root);
  }
}

static void views_start_at_16_bytes(void **state)
{
  (void)state;
  static const int64_t odd[4] = {513, 7, 1, 6};
  int64_t offsets[4];
  fsdp1_flat flat = fsdp1_flat_layout(odd, 4, FSDP1_ALIGNMENT / 4, 2, offsets);
  assert_int_equal(offsets[1], 516);
  assert_int_equal(offsets[2], 524);
  assert_int_equal(offsets[3], 528);
  assert_int_equal(flat.numel, 534);
  flat = fsdp1_flat_layout(odd, 4, FSDP1_ALIGNMENT / 2, 2, offsets);
  assert_int_equal(offsets[1], 520);
  flat = fsdp1_flat_layout(odd, 4, 1, 2, offsets);
  assert_int_equal(offsets[3], 521);
  assert_int_equal(flat.numel, 527);
}

/* Every element belongs to exactly one rank, whatever the sizes; world larger than everything included. */
static void pieces_partition_the_elements(void **state)
{
  (void)state;
  static const int64_t odd[5] = {3, 1, 17, 2, 5};
  int64_t offsets[5];
  for (int world = 1; world <= 64; world++)
    for (int64_t align = 1; align <= 4; align *= 4) {
      fsdp1_flat flat = fsdp1_flat_layout(odd, 5, align, world, offsets);
      for (uint32_t p = 0; p < 5; p++) {
        int64_t next = 0;
        for (int rank = 0; rank < world; rank++) {
          int64_t begin, end;
          fsdp1_flat_piece(&flat, offsets[p], odd[p], rank, &begin, &end);
          assert_true(begin <= end);
          if (begin < end) {
            assert_int_equal(begin, next);
            next = end;
          }
        }
        assert_int_equal(next, odd[p]);
      }
    }
}

static ordo_param matrix(int64_t rows, int64_t columns)
{
  ordo_param param = {.struct_size = sizeof param, .name = "w", .ndim = 2, .shape = {rows, columns}, .numel = rows * columns};
  return param;
}

static void whole_rows_become_one_range(void **state)
{
  (void)state;
  ordo_param w = matrix(8, 5);
  ordo_chunk whole = {.struct_size = sizeof whole, .param = &w, .kind = ORDO_CHUNK_RECT, .ndim = 2, .offset = {2, 0}, .extent = {4, 5}};
  ordo_chunk chunks[FSDP1_MAX_CHUNKS];
  assert_int_equal(fsdp1_flat_chunks(&whole, 3, 3, 0, chunks), 0);
  assert_int_equal(fsdp1_flat_chunks(&whole, 3, 9, 7, chunks), 1);
  assert_int_equal(chunks[0].kind, ORDO_CHUNK_FLAT);
  assert_int_equal(chunks[0].begin, 13);
  assert_int_equal(chunks[0].end, 19);
  assert_int_equal(chunks[0].leaf_offset, 7);
}

/* A slice by columns (row-parallel weight): marks each element through its chunks and compares with the slice itself. */
static void slices_by_columns_become_rectangles(void **state)
{
  (void)state;
  ordo_param w = matrix(4, 9);
  ordo_chunk whole = {.struct_size = sizeof whole, .param = &w, .kind = ORDO_CHUNK_RECT, .ndim = 2, .offset = {0, 3}, .extent = {4, 3}};
  for (int64_t begin = 0; begin < 12; begin++)
    for (int64_t end = begin + 1; end <= 12; end++) {
      ordo_chunk chunks[FSDP1_MAX_CHUNKS];
      int n = fsdp1_flat_chunks(&whole, begin, end, 100, chunks);
      int64_t local = begin;
      assert_true(n >= 1 && n <= FSDP1_MAX_CHUNKS);
      for (int c = 0; c < n; c++) {
        assert_int_equal(chunks[c].leaf_offset, 100 + local - begin);
        for (int64_t r = 0; r < chunks[c].extent[0]; r++)
          for (int64_t k = 0; k < chunks[c].extent[1]; k++, local++) {
            assert_int_equal(chunks[c].offset[0] + r, local / 3);
            assert_int_equal(chunks[c].offset[1] + k, 3 + local % 3);
          }
      }
      assert_int_equal(local, end);
    }
}

static void inner_cut_of_three_dimensions_is_refused(void **state)
{
  (void)state;
  ordo_param w = {.struct_size = sizeof w, .name = "w", .ndim = 3, .shape = {2, 4, 3}, .numel = 24};
  ordo_chunk whole = {
      .struct_size = sizeof whole, .param = &w, .kind = ORDO_CHUNK_RECT, .ndim = 3, .offset = {0, 0, 0}, .extent = {2, 2, 3}};
  ordo_chunk chunks[FSDP1_MAX_CHUNKS];
  assert_int_equal(fsdp1_flat_chunks(&whole, 0, 5, 0, chunks), -1);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(golden_block_on_three_ranks),
      cmocka_unit_test(golden_sizes),
      cmocka_unit_test(views_start_at_16_bytes),
      cmocka_unit_test(pieces_partition_the_elements),
      cmocka_unit_test(whole_rows_become_one_range),
      cmocka_unit_test(slices_by_columns_become_rectangles),
      cmocka_unit_test(inner_cut_of_three_dimensions_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
