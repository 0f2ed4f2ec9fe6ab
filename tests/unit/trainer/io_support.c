/* io_support.c - see io_support.h. */
#include "io_support.h"

#include <glib/gstdio.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int scratch_setup(void **state)
{
  char *path = g_build_filename(g_get_tmp_dir(), "ordo-io-XXXXXX", NULL);
  *state = path;
  return g_mkdtemp(path) ? 0 : -1;
}

static void remove_tree(const char *path)
{
  GDir *directory = g_dir_open(path, 0, NULL);
  const char *name;
  while (directory && (name = g_dir_read_name(directory))) {
    g_autofree char *inner = g_build_filename(path, name, NULL);
    if (g_file_test(inner, G_FILE_TEST_IS_DIR) && !g_file_test(inner, G_FILE_TEST_IS_SYMLINK))
      remove_tree(inner);
    else
      unlink(inner);
  }
  if (directory)
    g_dir_close(directory);
  rmdir(path);
}

int scratch_teardown(void **state)
{
  remove_tree(*state);
  g_free(*state);
  return 0;
}

char *scratch_write(const char *directory, const char *name, const void *bytes, size_t size)
{
  char *path = g_build_filename(directory, name, NULL);
  /* The fuzz tests write thousands of files: g_file_set_contents would sync each, and so do file systems that see a truncated one. */
  unlink(path);
  FILE *file = fopen(path, "we");
  assert_non_null(file);
  if (size > 0)
    assert_int_equal(fwrite(bytes, 1, size, file), size);
  assert_int_equal(fclose(file), 0);
  return path;
}

char *scratch_text(const char *directory, const char *name, const char *text)
{
  return scratch_write(directory, name, text, strlen(text));
}

void scratch_letters(const char *directory, int n, int64_t seq, ordo_data *data)
{
  g_autoptr(ordo_tokenizer) tokenizer = NULL;
  ordo_tokens *tokens = NULL;
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  g_autofree char *text = g_strnfill((gsize)n, 'a'), *path = NULL;
  for (int i = 0; i < n; i++)
    text[i] = (char)('a' + i * i % 23);
  path = scratch_text(directory, "t.txt", text);
  assert_int_equal(ordo_tokenizer_open("bytes", 0, &problems, &tokenizer), ORDO_OK);
  assert_int_equal(ordo_tokens_open(path, "auto", tokenizer, TRUE, 259, &problems, &tokens), ORDO_OK);
  assert_int_equal(ordo_data_view(data, tokens, 0, ordo_tokens_count(tokens), seq, "t", &problems), ORDO_OK);
  data->owns_tokens = 1;
}

int problems_mention(const ordo_problems *problems, const char *word)
{
  for (size_t i = 0; i < ordo_problems_count(problems); i++) {
    const ordo_problem *p = ordo_problems_at(problems, i);
    if (strstr(p->what, word) || strstr(p->where, word) || strstr(p->why, word) || strstr(p->next, word) || strstr(p->code, word))
      return 1;
  }
  return 0;
}

const char *golden_root(void)
{
  static const char fallback[] = ORDO_SOURCE_ROOT "/../shared/data/stories260K";
  const char *path = g_getenv("ORDO_GOLDEN_DIR");
  path = path ? path : fallback;
  if (g_file_test(path, G_FILE_TEST_IS_DIR))
    return path;
  print_message("skipped: no golden numbers at %s (ORDO_GOLDEN_DIR)\n", path);
  return NULL;
}
