/* test_tokenizer.c - bytes, and the merging rules of llama2.c against a plain copy of their definition. */
#include "io_support.h"

#include "tokenizer.h"

#include <json-glib/json-glib.h>
#include <string.h>

/* A tokenizer.bin: unk, begin, end, 256 bytes, then the given pieces with scores. */
static GByteArray *tokenizer_bytes(const char *const *pieces, const float *scores, size_t n)
{
  GByteArray *file = g_byte_array_new();
  uint32_t longest = 16;
  g_byte_array_append(file, (const guint8 *)&longest, 4);
  for (size_t i = 0; i < 259 + n; i++) {
    char text[16] = "<unk>";
    float score = i >= 259 ? scores[i - 259] : 0.0f;
    if (i >= 3 && i < 259)
      g_snprintf(text, sizeof text, "<0x%02X>", (unsigned)i - 3);
    else if (i == 1 || i == 2)
      g_snprintf(text, sizeof text, i == 1 ? "\n<s>\n" : "\n</s>\n");
    else if (i >= 259)
      g_strlcpy(text, pieces[i - 259], sizeof text);
    uint32_t length = (uint32_t)strlen(text);
    g_byte_array_append(file, (const guint8 *)&score, 4);
    g_byte_array_append(file, (const guint8 *)&length, 4);
    g_byte_array_append(file, (const guint8 *)text, length);
  }
  return file;
}

static ordo_tokenizer *open_bytes(const char *directory, GByteArray *file, int64_t vocab, ordo_status expected, const char *word)
{
  g_autofree char *path = scratch_write(directory, "tokenizer.bin", file->data, file->len);
  g_auto(ordo_problems) problems;
  ordo_tokenizer *tokenizer = NULL;
  ordo_problems_init(&problems);
  assert_int_equal(ordo_tokenizer_open(path, vocab, &problems, &tokenizer), expected);
  assert_true(!word || problems_mention(&problems, word));
  return tokenizer;
}

static const char *const pieces[] = {" ", "a", "b", "ab", "ba", "aba", "abab", "c", " a", "\xc3\xa9"};
static const float scores[] = {-1, -2, -3, -4, -4, -6, -7, -8, -9, -10};

/* The definition, step by step: the best pair over the whole text, leftmost first. */
static void merge_plainly(const ordo_tokenizer *tokenizer, GArray *ids)
{
  for (;;) {
    gint32 best_at = -1, best_id = -1;
    float best = 0;
    for (guint i = 0; i + 1 < ids->len; i++)
      for (gint32 p = 0; p < (gint32)G_N_ELEMENTS(pieces); p++) {
        g_autoptr(GString) both = g_string_new(NULL);
        ordo_tokenizer_decode(tokenizer, -1, g_array_index(ids, int32_t, i), both);
        ordo_tokenizer_decode(tokenizer, -1, g_array_index(ids, int32_t, i + 1), both);
        if (strcmp(both->str, pieces[p]) == 0 && (best_at < 0 || scores[p] > best)) {
          best = scores[p];
          best_at = (gint32)i;
          best_id = p + 259;
        }
      }
    if (best_at < 0)
      return;
    g_array_index(ids, int32_t, best_at) = best_id;
    g_array_remove_index(ids, (guint)best_at + 1);
  }
}

static void merging_follows_the_definition(void **state)
{
  g_autoptr(GByteArray) file = tokenizer_bytes(pieces, scores, G_N_ELEMENTS(pieces));
  g_autoptr(ordo_tokenizer) tokenizer = open_bytes(*state, file, 0, ORDO_OK, NULL);
  g_autoptr(GRand) random = g_rand_new_with_seed(5);
  for (int round = 0; round < 500; round++) {
    char text[40];
    size_t length = (size_t)g_rand_int_range(random, 1, 39);
    g_autoptr(GArray) plain = g_array_new(FALSE, FALSE, sizeof(int32_t));
    int32_t space = 259;
    g_array_append_val(plain, space);
    for (size_t i = 0; i < length; i++) {
      int choice = g_rand_int_range(random, 0, 3);
      int32_t id = choice == 2 ? 266 : 260 + choice;
      text[i] = "abc"[choice];
      g_array_append_val(plain, id);
    }
    merge_plainly(tokenizer, plain);
    g_autoptr(GArray) ids = ordo_tokenizer_encode(tokenizer, text, length, FALSE);
    assert_int_equal(ids->len, plain->len);
    assert_memory_equal(ids->data, plain->data, ids->len * sizeof(int32_t));
  }
}

static void unknown_code_points_become_bytes(void **state)
{
  g_autoptr(GByteArray) file = tokenizer_bytes(pieces, scores, G_N_ELEMENTS(pieces));
  g_autoptr(ordo_tokenizer) tokenizer = open_bytes(*state, file, 0, ORDO_OK, NULL);
  g_autoptr(GArray) ids = ordo_tokenizer_encode(tokenizer, "\xc3\xa9\xc3\xa8", 4, TRUE);
  static const int32_t expected[] = {1, 259, 268, 0xc3 + 3, 0xa8 + 3};
  assert_int_equal(ids->len, 5);
  assert_memory_equal(ids->data, expected, sizeof expected);
  g_autoptr(GArray) empty = ordo_tokenizer_encode(tokenizer, "", 0, TRUE);
  assert_int_equal(empty->len, 1);
}

static void damaged_files_are_refused(void **state)
{
  g_autoptr(GByteArray) file = tokenizer_bytes(pieces, scores, G_N_ELEMENTS(pieces));
  guint whole = file->len;
  for (guint cut = 0; cut < whole; cut += 7) {
    g_byte_array_set_size(file, cut);
    assert_null(open_bytes(*state, file, 269, ORDO_E_INVALID, NULL));
  }
  g_autoptr(GByteArray) good = tokenizer_bytes(pieces, scores, G_N_ELEMENTS(pieces));
  assert_null(open_bytes(*state, good, 268, ORDO_E_INVALID, "needed are 268"));
  assert_null(open_bytes(*state, good, 270, ORDO_E_INVALID, "needed are 270"));
  memset(good->data + 8, 0xff, 4);
  assert_null(open_bytes(*state, good, 0, ORDO_E_INVALID, "entry 0"));
}

static void bytes_lose_nothing(void **state)
{
  g_autoptr(ordo_tokenizer) tokenizer = NULL;
  g_auto(ordo_problems) problems;
  char text[256];
  (void)state;
  ordo_problems_init(&problems);
  assert_int_equal(ordo_tokenizer_open("bytes", 512, &problems, &tokenizer), ORDO_OK);
  for (int i = 0; i < 256; i++)
    text[i] = (char)i;
  g_autoptr(GArray) ids = ordo_tokenizer_encode(tokenizer, text, 256, TRUE);
  g_autoptr(GString) back = g_string_new(NULL);
  assert_int_equal(ids->len, 257);
  assert_int_equal(g_array_index(ids, int32_t, 0), 256);
  for (guint i = 0; i < ids->len; i++)
    ordo_tokenizer_decode(tokenizer, -1, g_array_index(ids, int32_t, i), back);
  assert_int_equal(back->len, 256);
  assert_memory_equal(back->str, text, 256);
  ordo_tokenizer_decode(tokenizer, -1, 300, back);
  ordo_tokenizer_decode(tokenizer, -1, -1, back);
  assert_int_equal(back->len, 256);
}

static char *from_hex(const char *hex, size_t *length)
{
  *length = strlen(hex) / 2;
  char *bytes = g_malloc0(*length + 1);
  for (size_t i = 0; i < *length; i++)
    bytes[i] = (char)(g_ascii_xdigit_value(hex[2 * i]) * 16 + g_ascii_xdigit_value(hex[2 * i + 1]));
  return bytes;
}

static void check_case(const ordo_tokenizer *tokenizer, JsonObject *c)
{
  size_t length, decoded_length;
  g_autofree char *text = from_hex(json_object_get_string_member(c, "utf8_hex"), &length);
  g_autofree char *decoded = from_hex(json_object_get_string_member(c, "decoded_utf8_hex"), &decoded_length);
  JsonArray *expected = json_object_get_array_member(c, "ids");
  g_autoptr(GArray) ids = ordo_tokenizer_encode(tokenizer, text, length, TRUE);
  g_autoptr(GString) back = g_string_new(NULL);
  assert_int_equal(ids->len, json_array_get_length(expected));
  for (guint i = 0; i < ids->len; i++) {
    assert_int_equal(g_array_index(ids, int32_t, i), json_array_get_int_element(expected, i));
    ordo_tokenizer_decode(tokenizer, i ? g_array_index(ids, int32_t, i - 1) : -1, g_array_index(ids, int32_t, i), back);
  }
  assert_int_equal(back->len, decoded_length);
  assert_memory_equal(back->str, decoded, decoded_length);
}

static void published_encodings(void **state)
{
  const char *root = golden_root();
  g_autoptr(JsonParser) parser = json_parser_new();
  g_autoptr(ordo_tokenizer) tokenizer = NULL;
  g_auto(ordo_problems) problems;
  (void)state;
  if (!root)
    skip();
  ordo_problems_init(&problems);
  g_autofree char *path = g_build_filename(root, "model", "tokenizer.bin", NULL),
                  *cases_path = g_build_filename(root, "tokenizer", "encode.json", NULL);
  assert_int_equal(ordo_tokenizer_open(path, 512, &problems, &tokenizer), ORDO_OK);
  assert_true(json_parser_load_from_file(parser, cases_path, NULL));
  JsonArray *cases = json_object_get_array_member(json_node_get_object(json_parser_get_root(parser)), "cases");
  assert_true(json_array_get_length(cases) > 0);
  for (guint i = 0; i < json_array_get_length(cases); i++)
    check_case(tokenizer, json_array_get_object_element(cases, i));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(merging_follows_the_definition, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(unknown_code_points_become_bytes, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(damaged_files_are_refused, scratch_setup, scratch_teardown),
      cmocka_unit_test(bytes_lose_nothing),
      cmocka_unit_test(published_encodings),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
