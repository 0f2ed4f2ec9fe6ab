/* test_data.c - token streams, targets, and which sequences a step, a rank and a micro-batch see. */
#include "io_support.h"

#include "data.h"

#include <string.h>

typedef struct stream_case {
  const char *name;
  const char *bytes;
  size_t size;
  const char *format;
  ordo_status status;
  const char *word;
} stream_case;

static ordo_tokenizer *bytes_tokenizer(void)
{
  ordo_tokenizer *tokenizer = NULL;
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  assert_int_equal(ordo_tokenizer_open("bytes", 0, &problems, &tokenizer), ORDO_OK);
  return tokenizer;
}

static void odd_files_get_a_reason(void **state)
{
  static const stream_case cases[] = {
      {"empty.txt", "", 0, "auto", ORDO_E_INVALID, "empty"},
      {"binary.txt", "ab\0cd", 5, "auto", ORDO_E_INVALID, "byte 2 is zero"},
      {"latin.txt", "ab\xe9 cd", 6, "auto", ORDO_E_INVALID, "byte 2 (0xe9)"},
      {"latin.txt", "ab\xe9 cd", 6, "bytes", ORDO_OK, NULL},
      {"crlf.txt", "a\r\nb\r\n", 6, "auto", ORDO_OK, NULL},
      {"odd.bin", "\1\0\2", 3, "auto", ORDO_E_INVALID, "no multiple of 2"},
      {"odd.bin", "\1\0\2\0\3\0", 6, "tokens32", ORDO_E_INVALID, "no multiple of 4"},
      {"high.bin", "\1\0\2\1\3\0", 6, "auto", ORDO_OK, NULL},
      {"high.bin", "\1\0\2\2\3\0", 6, "auto", ORDO_E_INVALID, "id 1 of the file is 514"},
      {"short.bin", "\x68\x05\x35\x01", 4, "llmc", ORDO_E_INVALID, "header"},
  };
  g_autoptr(ordo_tokenizer) tokenizer = bytes_tokenizer();
  for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(ordo_tokens) tokens = NULL;
    g_auto(ordo_problems) problems;
    g_autofree char *path = scratch_write(*state, cases[i].name, cases[i].bytes, cases[i].size);
    ordo_problems_init(&problems);
    ordo_status status = ordo_tokens_open(path, cases[i].format, tokenizer, TRUE, 512, &problems, &tokens);
    if (status != cases[i].status || (cases[i].word && !problems_mention(&problems, cases[i].word)))
      fail_msg("case %zu (%s): status %d", i, cases[i].name, status);
  }
}

static void put_word(GByteArray *file, uint32_t value)
{
  const guint8 bytes[4] = {(guint8)value, (guint8)(value >> 8), (guint8)(value >> 16), (guint8)(value >> 24)};
  g_byte_array_append(file, bytes, 4);
}

static GByteArray *shard(uint32_t magic, uint32_t version, uint32_t count)
{
  GByteArray *file = g_byte_array_new();
  put_word(file, magic);
  put_word(file, version);
  put_word(file, count);
  for (int i = 3; i < 256; i++)
    put_word(file, 0);
  return file;
}

static ordo_status open_shard(const char *directory, const GByteArray *file, const char *word, ordo_tokens **tokens)
{
  g_autoptr(ordo_tokenizer) tokenizer = bytes_tokenizer();
  g_auto(ordo_problems) problems;
  g_autofree char *path = scratch_write(directory, "shard.bin", file->data, file->len);
  ordo_problems_init(&problems);
  ordo_status status = ordo_tokens_open(path, "auto", tokenizer, TRUE, 200000, &problems, tokens);
  assert_true(!word || problems_mention(&problems, word));
  return status;
}

static void shards_of_both_kinds_are_read(void **state)
{
  g_autoptr(GByteArray) gpt2 = shard(20240520, 1, 3), llama = shard(20240801, 7, 2);
  g_autoptr(ordo_tokens) first = NULL, second = NULL;
  int32_t ids[3];
  g_byte_array_append(gpt2, (const guint8 *)"\1\0\x50\xc4\3\0", 6);
  put_word(llama, 128000);
  put_word(llama, 5);
  assert_int_equal(open_shard(*state, gpt2, NULL, &first), ORDO_OK);
  assert_int_equal(ordo_tokens_count(first), 3);
  ordo_tokens_read(first, 0, 3, ids);
  assert_int_equal(ids[1], 50256);
  assert_int_equal(open_shard(*state, llama, NULL, &second), ORDO_OK);
  ordo_tokens_read(second, 0, 2, ids);
  assert_int_equal(ids[0], 128000);
  assert_int_equal(ids[1], 5);
}

static void damaged_shards_are_refused(void **state)
{
  g_autoptr(GByteArray) version = shard(20240520, 2, 0), count = shard(20240520, 1, 4);
  g_autoptr(ordo_tokens) tokens = NULL;
  g_byte_array_append(count, (const guint8 *)"\1\0\2\0", 4);
  assert_int_equal(open_shard(*state, version, "version is 2", &tokens), ORDO_E_INVALID);
  assert_int_equal(open_shard(*state, count, "promises 4 ids", &tokens), ORDO_E_INVALID);
}

/* ids 0 .. n-1 as uint16 in two files of uneven size: the stream must not notice. */
static ordo_tokens *counting_stream(const char *directory, int n)
{
  g_autoptr(ordo_tokenizer) tokenizer = bytes_tokenizer();
  g_auto(ordo_problems) problems;
  g_autofree uint16_t *ids = g_new(uint16_t, (gsize)n);
  ordo_tokens *tokens = NULL;
  for (int i = 0; i < n; i++)
    ids[i] = (uint16_t)i;
  size_t first = (size_t)n / 3;
  g_autofree char *a = scratch_write(directory, "a.bin", ids, first * 2),
                  *b = scratch_write(directory, "b.bin", ids + first, ((size_t)n - first) * 2);
  g_autofree char *both = g_strdup_printf("%s; %s", a, b);
  ordo_problems_init(&problems);
  assert_int_equal(ordo_tokens_open(both, "auto", tokenizer, TRUE, 100000, &problems, &tokens), ORDO_OK);
  return tokens;
}

static void sequences_have_stride_T(void **state)
{
  ordo_data data;
  g_auto(ordo_problems) problems;
  int32_t ids[8], targets[8];
  ordo_problems_init(&problems);
  assert_int_equal(ordo_data_view(&data, counting_stream(*state, 65), 0, 65, 8, "test", &problems), ORDO_OK);
  data.owns_tokens = 1;
  assert_int_equal(data.n_sequences, 8);
  for (int64_t sample = 0; sample < 20; sample++) {
    assert_int_equal(ordo_data_sample(&data, sample, ids, targets), 8);
    for (int t = 0; t < 8; t++) {
      assert_int_equal(ids[t], sample % 8 * 8 + t);
      assert_int_equal(targets[t], sample % 8 * 8 + t + 1);
    }
  }
  ordo_data_clear(&data);
}

static void each_epoch_is_another_order_of_all(void **state)
{
  ordo_data data;
  g_auto(ordo_problems) problems;
  int32_t ids[2], targets[2], orders[2][40];
  ordo_problems_init(&problems);
  assert_int_equal(ordo_data_view(&data, counting_stream(*state, 81), 0, 81, 2, "test", &problems), ORDO_OK);
  data.owns_tokens = data.shuffled = 1;
  for (int epoch = 0; epoch < 2; epoch++) {
    int seen[40] = {0};
    for (int i = 0; i < 40; i++) {
      ordo_data_sample(&data, epoch * 40 + i, ids, targets);
      orders[epoch][i] = ids[0] / 2;
      assert_int_equal(seen[ids[0] / 2]++, 0);
    }
  }
  assert_memory_not_equal(orders[0], orders[1], sizeof orders[0]);
  ordo_data_clear(&data);
}

static void too_short_data_is_refused(void **state)
{
  ordo_data data;
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  assert_int_equal(ordo_data_view(&data, NULL, 0, 8, 8, "short.txt", &problems), ORDO_E_INVALID);
  assert_true(problems_mention(&problems, "need 9"));
  (void)state;
}

static void targets_replace_and_mask(void **state)
{
  ordo_data data;
  g_auto(ordo_problems) problems;
  int32_t ids[4], targets[4];
  static const int32_t wanted[] = {5, -100, 7, -100, -100, -100, -100, -100};
  static const int32_t negative[] = {1, 2, 3, -1}, high[] = {1, 2, 3, 300};
  g_autofree char *good = scratch_write(*state, "t.i32", wanted, sizeof wanted),
                  *bad = scratch_write(*state, "n.i32", negative, sizeof negative);
  g_autofree char *large = scratch_write(*state, "h.i32", high, sizeof high), *cut = scratch_write(*state, "c.i32", wanted, 12);
  ordo_problems_init(&problems);
  assert_int_equal(ordo_data_view(&data, counting_stream(*state, 9), 0, 9, 4, "test", &problems), ORDO_OK);
  data.owns_tokens = 1;
  assert_int_equal(ordo_data_set_targets(&data, good, 300, &problems), ORDO_OK);
  assert_int_equal(ordo_data_sample(&data, 0, ids, targets), 2);
  assert_memory_equal(targets, wanted, sizeof targets);
  assert_int_equal(ordo_data_sample(&data, 1, ids, targets), 0);
  const char *const files[] = {bad, large, cut};
  const char *const words[] = {"target 3 is -1", "target 3 is 300", "no positive multiple"};
  for (int i = 0; i < 3; i++) {
    g_clear_pointer(&data.targets, g_mapped_file_unref);
    assert_int_equal(ordo_data_set_targets(&data, files[i], 300, &problems), ORDO_E_INVALID);
    assert_true(problems_mention(&problems, words[i]));
  }
  ordo_data_clear(&data);
}

static void ranks_share_a_batch_without_gap_or_overlap(void **state)
{
  (void)state;
  for (int64_t batch = 1; batch < 20; batch++)
    for (int32_t ranks = 1; ranks < 9; ranks++)
      for (int64_t micro = 0; micro < 5; micro++) {
        int64_t next = 0;
        int32_t micros = ordo_data_split(batch, micro, 0, ranks).n_micro_batches;
        for (int32_t r = 0; r < ranks; r++) {
          ordo_data_part part = ordo_data_split(batch, micro, r, ranks);
          assert_int_equal(part.first, next);
          assert_int_equal(part.n_micro_batches, micros);
          assert_true(part.micro_size >= 1 && part.micro_size * micros >= part.count);
          assert_true(micro == 0 || part.micro_size <= micro);
          next += part.count;
        }
        assert_int_equal(next, batch);
      }
  assert_int_equal(ordo_data_split(8, 0, 0, 3).count, 3);
  assert_int_equal(ordo_data_split(8, 0, 2, 3).count, 2);
  assert_int_equal(ordo_data_split(8, 2, 0, 1).n_micro_batches, 4);
  assert_int_equal(ordo_data_split(2, 0, 4, 5).count, 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(odd_files_get_a_reason, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(shards_of_both_kinds_are_read, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(damaged_shards_are_refused, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(sequences_have_stride_T, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(each_epoch_is_another_order_of_all, scratch_setup, scratch_teardown),
      cmocka_unit_test(too_short_data_is_refused),
      cmocka_unit_test_setup_teardown(targets_replace_and_mask, scratch_setup, scratch_teardown),
      cmocka_unit_test(ranks_share_a_batch_without_gap_or_overlap),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
