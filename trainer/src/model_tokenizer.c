/* model_tokenizer.c - see model_tokenizer.h.
 *
 * Any tokenizer turns any text into ids, so a wrong one is not noticed: the model is trained, measured or asked on noise. Therefore a
 * model directory says which it is, and where nothing says it there is none: ids can still be used, text is refused.
 */
#include "model_tokenizer.h"

#include "files.h"
#include "tokenizer.h"

#include <string.h>

#define NOTE "ordo.ini"
#define LARGEST_NOTE 65536

static char *beside(const char *model, const char *name)
{
  g_autofree char *directory = g_file_test(model, G_FILE_TEST_IS_DIR) ? g_strdup(model) : g_path_get_dirname(model);
  char *path = g_build_filename(directory, name, NULL);
  if (!g_file_test(path, G_FILE_TEST_IS_REGULAR))
    g_clear_pointer(&path, g_free);
  return path;
}

/* [data] tokenizer of the note in a model directory; a file name is one in that directory. */
static char *of_note(const char *model)
{
  g_autofree char *path = g_file_test(model, G_FILE_TEST_IS_DIR) ? beside(model, NOTE) : NULL, *why = NULL;
  gsize length = 0;
  g_autofree char *text = path ? ordo_file_whole(path, LARGEST_NOTE, &length, &why) : NULL;
  g_autoptr(GKeyFile) file = g_key_file_new();
  if (!text || !g_key_file_load_from_data(file, text, length, G_KEY_FILE_NONE, NULL))
    return NULL;
  g_autofree char *name = g_key_file_get_string(file, "data", "tokenizer", NULL);
  if (!name || !*name)
    return NULL;
  return strcmp(name, "bytes") == 0 ? g_strdup(name) : beside(model, name);
}

char *ordo_model_tokenizer_find(const char *path, int64_t vocab)
{
  char *name = beside(path, "tokenizer.bin");
  if (!name)
    name = of_note(path);
  if (!name && vocab == ORDO_TOKENIZER_BYTES_VOCAB)
    name = g_strdup("bytes");
  return name;
}

int ordo_model_tokenizer_is_stated(const char *path)
{
  g_autofree char *name = ordo_model_tokenizer_find(path, 0);
  return name != NULL;
}

ordo_status ordo_model_tokenizer_write(const char *directory, const char *tokenizer, ordo_problems *problems)
{
  static const char note[] = "# The tokenizer this model was trained with: ordo eval and ordo generate use it.\n[data]\ntokenizer=bytes\n";
  g_autofree char *said = g_build_filename(directory, NOTE, NULL), *copy = g_build_filename(directory, "tokenizer.bin", NULL);
  g_autofree char *data = NULL, *why = NULL;
  gsize length = 0;
  if (!*tokenizer)
    return ORDO_OK;
  if (strcmp(tokenizer, "bytes") == 0)
    return ordo_file_replace(said, note, strlen(note), problems);
  if (!(data = ordo_file_whole(tokenizer, SIZE_MAX / 2, &length, &why)))
    return ordo_problems_push(problems, ORDO_E_IO, "E-FILE-IO", tokenizer, why, "check its permissions", "cannot copy the tokenizer");
  return ordo_file_replace(copy, data, length, problems);
}

ordo_status ordo_model_tokenizer_unknown(const char *where, int64_t vocab, ordo_problems *problems)
{
  g_autofree char *why = g_strdup_printf("nothing beside the model says which it was trained with, and its vocabulary has %" G_GINT64_FORMAT
                                         " entries (bytes: %d)",
                                         vocab, ORDO_TOKENIZER_BYTES_VOCAB);
  return ordo_problems_push(problems, ORDO_E_INVALID, "E-TOKENIZER-UNKNOWN", where, why,
                            "give --tokenizer FILE, its tokenizer.bin; or --tokenizer bytes if it was trained on bytes; ids need none",
                            "there is no tokenizer for this text");
}
