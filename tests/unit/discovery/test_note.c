/* test_note.c - the note reader on note regions made byte by byte. */
#include "plugin_files.h"

#include <string.h>
#include <unistd.h>

#include <ordo/manifest.h>

#include "discovery/note.h"

static void append_words(GByteArray *bytes, guint32 name, guint32 text, guint32 type)
{
  guint32 words[3] = {name, text, type};
  g_byte_array_append(bytes, (const guint8 *)words, sizeof words);
}

static gboolean walk(const GByteArray *bytes, guint64 offset, guint64 length, guint64 alignment, ordo_notes *notes, char **reason)
{
  ordo_file_view file = {memory_file(bytes->data, bytes->len), bytes->len};
  gboolean good = ordo_note_walk(&file, offset, length, alignment, notes, reason);
  close(file.fd);
  return good;
}

static void reads_what_the_macro_plants(void **state)
{
  (void)state;
  ORDO_MANIFEST("id=x\n");
  g_autoptr(GByteArray) bytes = g_byte_array_new();
  ordo_notes notes = {0};
  g_autofree char *reason = NULL;
  g_byte_array_append(bytes, (const guint8 *)&ordo_manifest_note, sizeof ordo_manifest_note);
  assert_true(walk(bytes, 0, bytes->len, 4, &notes, &reason));
  assert_string_equal(notes.text, ORDO_ABI_LINE "id=x\n");
  assert_int_equal(notes.length, strlen(ORDO_ABI_LINE "id=x\n"));
  ordo_notes_clear(&notes);
}

static void reads_notes_with_8_byte_alignment(void **state)
{
  (void)state;
  g_autoptr(GByteArray) bytes = g_byte_array_new();
  ordo_notes notes = {0};
  g_autofree char *reason = NULL;
  append_words(bytes, 5, 4, ORDO_NOTE_TYPE); /* 12 bytes, name to 17, text at 24 */
  g_byte_array_append(bytes, (const guint8 *)"ORDO\0\0\0\0\0\0\0\0abcd\0\0\0\0", 20);
  assert_true(walk(bytes, 0, 28, 8, &notes, &reason));
  assert_string_equal(notes.text, "abcd");
  ordo_notes_clear(&notes);
}

static void foreign_notes_are_passed_over(void **state)
{
  (void)state;
  g_autoptr(GByteArray) bytes = g_byte_array_new();
  ordo_notes notes = {0};
  g_autofree char *reason = NULL;
  append_words(bytes, 4, 4, ORDO_NOTE_TYPE); /* owner "GNU" */
  g_byte_array_append(bytes, (const guint8 *)"GNU\0abcd", 8);
  append_words(bytes, 5, 4, 7); /* owner ORDO, another type */
  g_byte_array_append(bytes, (const guint8 *)"ORDO\0\0\0\0abcd", 12);
  append_words(bytes, 4, 4, ORDO_NOTE_TYPE); /* "ORDO" without its NUL */
  g_byte_array_append(bytes, (const guint8 *)"ORDOabcd", 8);
  assert_true(walk(bytes, 0, bytes->len, 4, &notes, &reason));
  assert_null(notes.text);
}

static void lengths_that_lie_are_refused(void **state)
{
  (void)state;
  static const guint32 lies[][2] = {{0xffffffffu, 4}, {5, 0xffffffffu}, {0xffffffffu, 0xffffffffu}, {5, 5}, {13, 4}, {0, 0x10000}};
  for (gsize i = 0; i < G_N_ELEMENTS(lies); i++) {
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    ordo_notes notes = {0};
    g_autofree char *reason = NULL;
    append_words(bytes, lies[i][0], lies[i][1], ORDO_NOTE_TYPE);
    g_byte_array_append(bytes, (const guint8 *)"ORDO\0\0\0\0abcd", 12);
    assert_false(walk(bytes, 0, bytes->len, 4, &notes, &reason));
    assert_contains(reason, "longer than the region");
    assert_null(notes.text);
  }
}

static void regions_outside_the_file_are_refused(void **state)
{
  (void)state;
  static const guint64 regions[][2] = {{0, 33}, {32, 1}, {33, 0}, {G_MAXUINT64, 8}, {8, G_MAXUINT64}, {G_MAXUINT64, G_MAXUINT64}};
  g_autoptr(GByteArray) bytes = g_byte_array_new();
  g_byte_array_set_size(bytes, 32);
  memset(bytes->data, 0, 32);
  for (gsize i = 0; i < G_N_ELEMENTS(regions); i++) {
    ordo_notes notes = {0};
    g_autofree char *reason = NULL;
    assert_false(walk(bytes, regions[i][0], regions[i][1], 4, &notes, &reason));
    assert_contains(reason, "cut short");
  }
}

static void a_manifest_above_the_limit_is_refused(void **state)
{
  (void)state;
  for (guint32 extra = 0; extra < 2; extra++) {
    guint32 size = ORDO_MANIFEST_MAX + extra;
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    ordo_notes notes = {0};
    g_autofree char *reason = NULL;
    append_words(bytes, 5, size, ORDO_NOTE_TYPE);
    g_byte_array_append(bytes, (const guint8 *)"ORDO\0\0\0\0", 8);
    g_byte_array_set_size(bytes, 20 + size);
    memset(bytes->data + 20, 'x', size);
    assert_int_equal(walk(bytes, 0, bytes->len, 4, &notes, &reason), extra == 0);
    if (extra)
      assert_contains(reason, "65537 bytes, the limit is 65536");
    ordo_notes_clear(&notes);
  }
}

static void all_regions_together_are_bounded(void **state)
{
  (void)state;
  g_autoptr(GByteArray) bytes = g_byte_array_new();
  ordo_notes notes = {0};
  char *reason = NULL;
  guint n = 0;
  g_byte_array_set_size(bytes, 65536);
  memset(bytes->data, 0, bytes->len);
  while (n < 100 && walk(bytes, 0, bytes->len, 4, &notes, &reason))
    n++;
  assert_int_equal(n, 8);
  assert_contains(reason, "larger than 524288 bytes");
  g_free(reason);
}

static void a_second_manifest_is_refused_but_not_the_same_one_twice(void **state)
{
  (void)state;
  g_autoptr(GByteArray) bytes = g_byte_array_new();
  ordo_notes notes = {0};
  g_autofree char *reason = NULL;
  for (int i = 0; i < 2; i++) {
    append_words(bytes, 5, 4, ORDO_NOTE_TYPE);
    g_byte_array_append(bytes, (const guint8 *)"ORDO\0\0\0\0abcd", 12);
  }
  assert_true(walk(bytes, 0, 24, 4, &notes, &reason));
  assert_true(walk(bytes, 0, 24, 4, &notes, &reason));
  assert_false(walk(bytes, 0, 48, 4, &notes, &reason));
  assert_contains(reason, "two manifests");
  ordo_notes_clear(&notes);
}

static void a_file_that_became_shorter_is_an_error(void **state)
{
  (void)state;
  char buffer[16];
  ordo_file_view file = {memory_file("0123456789", 10), 16};
  assert_true(ordo_file_read(&file, 0, buffer, 10));
  assert_false(ordo_file_read(&file, 0, buffer, 11));
  assert_false(ordo_file_read(&file, 17, buffer, 0));
  /* Nor is anything read beyond what was examined, when the file became longer. */
  file.size = 5;
  assert_true(ordo_file_read(&file, 0, buffer, 5));
  assert_false(ordo_file_read(&file, 0, buffer, 6));
  assert_false(ordo_file_read(&file, 3, buffer, G_MAXSIZE));
  close(file.fd);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_what_the_macro_plants),
      cmocka_unit_test(reads_notes_with_8_byte_alignment),
      cmocka_unit_test(foreign_notes_are_passed_over),
      cmocka_unit_test(lengths_that_lie_are_refused),
      cmocka_unit_test(regions_outside_the_file_are_refused),
      cmocka_unit_test(a_manifest_above_the_limit_is_refused),
      cmocka_unit_test(all_regions_together_are_bounded),
      cmocka_unit_test(a_second_manifest_is_refused_but_not_the_same_one_twice),
      cmocka_unit_test(a_file_that_became_shorter_is_an_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
