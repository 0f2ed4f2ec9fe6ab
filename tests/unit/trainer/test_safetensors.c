/* test_safetensors.c - strict reading of safetensors and JSON, and what is written. */
#include "io_support.h"

#include <ordo/half.h>
#include "json_text.h"
#include "safetensors.h"

#include <string.h>

static ordo_status open_text(const char *directory, const char *header, size_t header_size, size_t data_size, uint64_t claimed,
                             ordo_problems *problems, ordo_safetensors **file)
{
  g_autoptr(GByteArray) bytes = g_byte_array_new();
  g_autofree guint8 *data = g_malloc0(data_size + 1);
  for (int i = 0; i < 8; i++) {
    guint8 byte = (guint8)(claimed >> (8 * i));
    g_byte_array_append(bytes, &byte, 1);
  }
  g_byte_array_append(bytes, (const guint8 *)header, (guint)header_size);
  g_byte_array_append(bytes, data, (guint)data_size);
  g_autofree char *path = scratch_write(directory, "x.safetensors", bytes->data, bytes->len);
  return ordo_safetensors_open(path, problems, file);
}

typedef struct header_case {
  const char *header;
  size_t data;
  const char *word; /* null: legal */
} header_case;

#define F32(NAME, SHAPE, BEGIN, END) "\"" NAME "\":{\"dtype\":\"F32\",\"shape\":" SHAPE ",\"data_offsets\":[" BEGIN "," END "]}"

static const header_case headers[] = {
    {"{}", 0, NULL},
    {"{}   ", 0, NULL},
    {"{" F32("a", "[2]", "0", "8") "}", 8, NULL},
    {"{" F32("a", "[]", "0", "4") "}", 4, NULL},
    {"{" F32("a", "[0,7]", "0", "0") "," F32("b", "[1]", "0", "4") "}", 4, NULL},
    {"{" F32("b", "[1]", "4", "8") "," F32("a", "[1]", "0", "4") "}", 8, NULL},
    {"{\"__metadata__\":{\"format\":\"pt\"}," F32("a", "[1]", "0", "4") "}", 4, NULL},
    {"{\"__metadata__\":{\"format\":1}}", 0, "not text"},
    {"{\"__metadata__\":[]}", 0, "no object"},
    {"", 0, "begin with"},
    {" {}", 0, "begin with"},
    {"{}x", 0, "after the end"},
    {"[]", 0, "begin with"},
    {"{" F32("a", "[2]", "0", "8") "," F32("a", "[2]", "8", "16") "}", 16, "stands twice"},
    {"{" F32("a", "[1]", "0", "4") "," F32("\\u0061", "[1]", "4", "8") "}", 8, "stands twice"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "stands twice"},
    {"{" F32("a", "[2]", "0", "8") "," F32("b", "[2]", "4", "12") "}", 12, "overlap"},
    {"{" F32("a", "[1]", "0", "4") "," F32("b", "[1]", "8", "12") "}", 12, "hole"},
    {"{" F32("a", "[1]", "4", "8") "}", 8, "hole"},
    {"{" F32("a", "[1]", "0", "4") "}", 8, "the file has 8 bytes"},
    {"{" F32("a", "[2]", "0", "8") "}", 4, "the file has 4 bytes"},
    {"{" F32("a", "[3]", "0", "8") "}", 8, "do not fit"},
    {"{" F32("a", "[1]", "8", "4") "}", 8, "do not fit"},
    {"{" F32("a", "[4611686018427387904,4]", "0", "0") "}", 0, "overflows"},
    {"{" F32("a", "[4611686018427387904]", "0", "0") "}", 0, "do not fit"},
    {"{" F32("a", "[99999999999999999999]", "0", "0") "}", 0, "64 bits"},
    {"{" F32("a", "[-1]", "0", "4") "}", 4, "whole numbers"},
    {"{" F32("a", "[1.0]", "0", "4") "}", 4, "whole numbers"},
    {"{" F32("a", "[1]", "0", "4.0") "}", 4, "whole numbers"},
    {"{" F32("a", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, "9 dimensions"},
    {"{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype"},
    {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "not exactly"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "not exactly"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, "not exactly"},
    {"{\"a\":null}", 0, "not exactly"},
    {"{\"a\xff\":1}", 0, "UTF-8"},
    {"{\"a\":1,}", 0, "expected a string"},
    {"{// c\n}", 0, "expected a string"},
    {"{\"a\":\"\\ud800\"}", 0, "surrogate"},
    {"{\"a\":01}", 0, "bad number"},
};

static void headers_are_judged(void **state)
{
  for (size_t i = 0; i < G_N_ELEMENTS(headers); i++) {
    g_autoptr(ordo_safetensors) file = NULL;
    g_auto(ordo_problems) problems;
    size_t length = strlen(headers[i].header);
    ordo_problems_init(&problems);
    ordo_status status = open_text(*state, headers[i].header, length, headers[i].data, length, &problems, &file);
    if ((status == ORDO_OK) != (headers[i].word == NULL) || (headers[i].word && !problems_mention(&problems, headers[i].word)))
      fail_msg("header %s: status %d, %s", headers[i].header, status,
               ordo_problems_count(&problems) ? ordo_problems_at(&problems, 0)->why : "");
  }
}

static void sizes_of_the_file_are_checked(void **state)
{
  static const uint64_t claims[] = {3, 1000, 100000001, UINT64_MAX, (uint64_t)1 << 63};
  g_autoptr(ordo_safetensors) file = NULL;
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  for (size_t i = 0; i < G_N_ELEMENTS(claims); i++)
    assert_int_equal(open_text(*state, "{}", 2, 0, claims[i], &problems, &file), ORDO_E_INVALID);
  for (size_t size = 0; size < 8; size++) {
    g_autofree char *path = scratch_write(*state, "short", "\2\0\0\0\0\0\0\0", size);
    assert_int_equal(ordo_safetensors_open(path, &problems, &file), ORDO_E_INVALID);
  }
  assert_int_equal(ordo_safetensors_open(*state, &problems, &file), ORDO_E_INVALID);
  g_autofree char *missing = g_build_filename(*state, "missing", NULL);
  assert_int_equal(ordo_safetensors_open(missing, &problems, &file), ORDO_E_NOT_FOUND);
}

static void nesting_is_bounded(void **state)
{
  g_autoptr(GString) deep = g_string_new("{\"a\":");
  (void)state;
  for (int i = 0; i < 100000; i++)
    g_string_append_c(deep, '[');
  g_autofree char *why = ordo_json_check(deep->str, deep->len);
  assert_non_null(why);
  assert_non_null(strstr(why, "levels"));
}

/* The buffer of an accepted file is covered exactly, whatever three bytes of the header were changed. */
static void fuzzed_headers_keep_the_rules(void **state)
{
  static const char seed_text[] =
      "{\"__metadata__\":{\"k\":\"v\"}," F32("a", "[2,3]", "0", "24") "," F32("b", "[4]", "24", "40") "," F32("c", "[0]", "40", "40") "}";
  static const char alphabet[] = "{}[]:,\"0123456789.-eF32abc\\u \xc3";
  g_autoptr(GRand) random = g_rand_new_with_seed(20260802);
  int accepted = 0, rounds = 0;
  gint64 end = g_get_monotonic_time() + 4 * G_USEC_PER_SEC; /* a slow machine does fewer, in the same order */
  for (; rounds < 2000 || (rounds < 20000 && g_get_monotonic_time() < end); rounds++) {
    g_autofree char *text = g_strdup(seed_text);
    size_t length = strlen(text);
    g_autoptr(ordo_safetensors) file = NULL;
    g_auto(ordo_problems) problems;
    for (int change = g_rand_int_range(random, 0, 4); change > 0; change--)
      text[g_rand_int_range(random, 0, (gint32)length)] = alphabet[g_rand_int_range(random, 0, (gint32)sizeof alphabet - 1)];
    ordo_problems_init(&problems);
    ordo_status status = open_text(*state, text, length, 40, length, &problems, &file);
    assert_true((status == ORDO_OK) == (ordo_problems_count(&problems) == 0));
    if (status != ORDO_OK)
      continue;
    uint64_t covered = 0;
    accepted++;
    for (size_t i = 0; i < ordo_safetensors_count(file); i++) {
      const ordo_tensor *t = ordo_safetensors_at(file, i);
      assert_true(t->end <= 40 && t->begin <= t->end);
      assert_int_equal(t->end - t->begin, (uint64_t)t->numel * t->element_size);
      covered += t->end - t->begin;
    }
    assert_int_equal(covered, 40);
  }
  assert_true(accepted > rounds / 10 && accepted < rounds);
}

static void written_files_read_back(void **state)
{
  static const int64_t shapes[3][2] = {{2, 3}, {0, 5}, {4, 0}};
  static const uint32_t dims[3] = {2, 2, 1};
  static const char *const names[3] = {"a", "empty", "odd \"name\"\\\n"};
  static const float values[] = {1.0f, -2.5f, 3.0e-8f, 65504.0f, 1.0f / 3.0f, 0.0f};
  static const ordo_dtype dtypes[] = {ORDO_F32, ORDO_BF16, ORDO_F16};
  for (size_t d = 0; d < 3; d++) {
    g_autofree char *path = g_build_filename(*state, "w.safetensors", NULL);
    g_autoptr(ordo_safetensors_writer) writer = ordo_safetensors_writer_new(path, dtypes[d]);
    g_autoptr(ordo_safetensors) file = NULL;
    g_auto(ordo_problems) problems;
    float back[6];
    ordo_problems_init(&problems);
    for (int i = 0; i < 3; i++)
      ordo_safetensors_writer_declare(writer, names[i], dims[i], shapes[i]);
    assert_int_equal(ordo_safetensors_writer_begin(writer, "test", &problems), ORDO_OK);
    for (int i = 0; i < 3; i++)
      assert_int_equal(ordo_safetensors_writer_write(writer, values, &problems), ORDO_OK);
    assert_int_equal(ordo_safetensors_writer_finish(writer, &problems), ORDO_OK);
    assert_int_equal(ordo_safetensors_open(path, &problems, &file), ORDO_OK);
    assert_int_equal(ordo_safetensors_count(file), 3);
    const ordo_tensor *tensor = ordo_safetensors_find(file, "a");
    assert_int_equal(ordo_safetensors_read(file, tensor, 0, 6, back, &problems), ORDO_OK);
    for (int i = 0; i < 6; i++) {
      float expected = d == 0   ? values[i]
                       : d == 1 ? ordo_f32_from_bf16(ordo_bf16_from_f32(values[i]))
                                : ordo_f32_from_f16(ordo_f16_from_f32(values[i]));
      assert_memory_equal(&back[i], &expected, sizeof expected);
    }
    assert_int_equal(ordo_safetensors_read(file, tensor, 4, 2, back, &problems), ORDO_OK);
    assert_int_equal(ordo_safetensors_read(file, tensor, 5, 2, back, &problems), ORDO_E_INVALID);
    assert_non_null(ordo_safetensors_find(file, names[2]));
  }
}

static void an_unfinished_file_leaves_nothing(void **state)
{
  static const int64_t shape[] = {1};
  g_autofree char *path = g_build_filename(*state, "u.safetensors", NULL);
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  ordo_safetensors_writer *writer = ordo_safetensors_writer_new(path, ORDO_F32);
  ordo_safetensors_writer_declare(writer, "a", 1, shape);
  assert_int_equal(ordo_safetensors_writer_begin(writer, NULL, &problems), ORDO_OK);
  assert_int_equal(ordo_safetensors_writer_finish(writer, &problems), ORDO_E_STATE);
  ordo_safetensors_writer_free(writer);
  GDir *directory = g_dir_open(*state, 0, NULL);
  assert_null(g_dir_read_name(directory));
  g_dir_close(directory);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(headers_are_judged, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(sizes_of_the_file_are_checked, scratch_setup, scratch_teardown),
      cmocka_unit_test(nesting_is_bounded),
      cmocka_unit_test_setup_teardown(fuzzed_headers_keep_the_rules, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(written_files_read_back, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(an_unfinished_file_leaves_nothing, scratch_setup, scratch_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
