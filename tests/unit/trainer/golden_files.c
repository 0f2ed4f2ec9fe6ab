/* golden_files.c - see golden_files.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "golden_files.h"

struct golden_tensors {
  JsonParser *header;
  char *bytes;
  const char *data;
};

char *golden_dir(void)
{
  const char *wish = g_getenv("ORDO_GOLDEN_DIR");
  char *dir =
      wish != NULL && wish[0] != '\0' ? g_strdup(wish) : g_build_filename(ORDO_SOURCE_ROOT, "..", "shared", "data", "stories260K", NULL);
  g_autofree char *probe = g_build_filename(dir, "model", "hf", "model.safetensors", NULL);
  if (g_file_test(probe, G_FILE_TEST_IS_REGULAR))
    return dir;
  print_message("skipped: no golden numbers at %s (set ORDO_GOLDEN_DIR)\n", dir);
  g_free(dir);
  return NULL;
}

void *golden_bytes(const char *dir, const char *file, gsize *size)
{
  g_autofree char *path = g_build_filename(dir, file, NULL);
  char *bytes = NULL;
  g_autoptr(GError) error = NULL;
  if (!g_file_get_contents(path, &bytes, size, &error))
    fail_msg("%s", error->message);
  return bytes;
}

struct golden_tensors *golden_tensors_open(const char *dir, const char *file)
{
  struct golden_tensors *tensors = g_new0(struct golden_tensors, 1);
  gsize size = 0;
  uint64_t header = 0;
  tensors->bytes = golden_bytes(dir, file, &size);
  memcpy(&header, tensors->bytes, sizeof header);
  assert_true(header < size);
  tensors->data = tensors->bytes + 8 + header;
  tensors->header = json_parser_new();
  assert_true(json_parser_load_from_data(tensors->header, tensors->bytes + 8, (gssize)header, NULL));
  return tensors;
}

void golden_tensors_close(struct golden_tensors *tensors)
{
  g_object_unref(tensors->header);
  g_free(tensors->bytes);
  g_free(tensors);
}

const float *golden_tensor(const struct golden_tensors *tensors, const char *name, int64_t *numel)
{
  JsonObject *root = golden_root(tensors->header);
  if (!json_object_has_member(root, name))
    fail_msg("no tensor %s", name);
  JsonObject *entry = json_object_get_object_member(root, name);
  JsonArray *offsets = json_object_get_array_member(entry, "data_offsets");
  int64_t begin = json_array_get_int_element(offsets, 0);
  assert_string_equal(json_object_get_string_member(entry, "dtype"), "F32");
  *numel = (json_array_get_int_element(offsets, 1) - begin) / 4;
  return (const float *)(const void *)(tensors->data + begin);
}

JsonParser *golden_json(const char *dir, const char *file)
{
  g_autofree char *path = g_build_filename(dir, file, NULL);
  JsonParser *parser = json_parser_new();
  g_autoptr(GError) error = NULL;
  if (!json_parser_load_from_file(parser, path, &error))
    fail_msg("%s", error->message);
  return parser;
}

JsonObject *golden_root(JsonParser *parser)
{
  return json_node_get_object(json_parser_get_root(parser));
}

double golden_number(JsonObject *object, const char *member)
{
  assert_true(json_object_has_member(object, member));
  return json_node_get_double(json_object_get_member(object, member));
}

double *golden_numbers(JsonArray *array)
{
  guint n = json_array_get_length(array);
  double *numbers = g_new0(double, n + 1);
  for (guint i = 0; i < n; i++)
    numbers[i] = json_node_get_double(json_array_get_element(array, i));
  return numbers;
}
