/* tokenizer.c - see tokenizer.h; the merging of llama2.c vocabularies is in tokenizer_merge.c.
 *
 * tokenizer.bin: uint32 longest piece, then per entry float score, uint32 length, bytes. It has no magic number and no count, so every
 * length is checked against what is left of the file.
 */
#include "files.h"
#include "tokenizer_private.h"

#include <math.h>
#include <string.h>

#define BYTES_BEGIN 256
#define LLAMA_BEGIN 1
#define LLAMA_END 2
#define LONGEST_PIECE 65536
#define LARGEST_TOKENIZER (256u << 20) /* a vocabulary of a million pieces has a tenth of it */

static ordo_status damaged(const char *path, const char *why, ordo_problems *problems)
{
  return ordo_problems_push(problems, ORDO_E_INVALID, "E-TOKENIZER-FILE", path, why,
                            "use the tokenizer.bin that belongs to the model, or data.tokenizer = bytes",
                            "not a llama2.c tokenizer of this model");
}

static uint32_t read_u32(const char *bytes)
{
  const unsigned char *b = (const unsigned char *)bytes;
  return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static float read_f32(const char *bytes)
{
  uint32_t bits = read_u32(bytes);
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static ordo_status parse(ordo_tokenizer *t, const char *path, int64_t vocab, ordo_problems *problems)
{
  size_t at = 4;
  if (t->length < 4)
    return damaged(path, "the file is shorter than its header", problems);
  while (at < t->length && (vocab == 0 || (int64_t)t->pieces->len < vocab)) {
    ordo_piece piece;
    g_autofree char *why = NULL;
    if (t->length - at < 8) {
      why = g_strdup_printf("entry %u is cut off", t->pieces->len);
      return damaged(path, why, problems);
    }
    piece.score = read_f32(t->data + at);
    piece.length = read_u32(t->data + at + 4);
    at += 8;
    if (piece.length > LONGEST_PIECE || piece.length > t->length - at || !isfinite(piece.score)) {
      why = g_strdup_printf("entry %u has length %u with %zu bytes left, score %g", t->pieces->len, piece.length, t->length - at,
                            (double)piece.score);
      return damaged(path, why, problems);
    }
    piece.text = t->data + at;
    at += piece.length;
    g_array_append_val(t->pieces, piece);
  }
  if ((vocab && (int64_t)t->pieces->len != vocab) || at != t->length || t->pieces->len < 259) {
    g_autofree char *why = g_strdup_printf("it has %u%s entries; needed are %s%" G_GINT64_FORMAT, t->pieces->len,
                                           at != t->length ? " or more" : "", vocab ? "" : "at least ", vocab ? vocab : (int64_t)259);
    return damaged(path, why, problems);
  }
  return ORDO_OK;
}

ordo_status ordo_tokenizer_open(const char *name, int64_t vocab, ordo_problems *problems, ordo_tokenizer **tokenizer)
{
  g_autoptr(ordo_tokenizer) t = g_new0(ordo_tokenizer, 1);
  g_autofree char *why = NULL;
  ordo_status status;
  if (strcmp(name, "bytes") != 0) {
    if (!(t->data = ordo_file_whole(name, LARGEST_TOKENIZER, &t->length, &why)))
      return ordo_problems_push(problems, ORDO_E_NOT_FOUND, "E-TOKENIZER-FILE", name, why,
                                "data.tokenizer is \"bytes\" or the path of a tokenizer.bin that you may read",
                                "cannot read the tokenizer");
    t->pieces = g_array_new(FALSE, FALSE, sizeof(ordo_piece));
    status = parse(t, name, vocab, problems);
    if (status != ORDO_OK)
      return status;
    ordo_tokenizer_index(t);
  }
  *tokenizer = g_steal_pointer(&t);
  return ORDO_OK;
}

void ordo_tokenizer_free(ordo_tokenizer *tokenizer)
{
  if (!tokenizer)
    return;
  g_clear_pointer(&tokenizer->pieces, g_array_unref);
  g_clear_pointer(&tokenizer->ids, g_hash_table_unref);
  g_free(tokenizer->data);
  g_free(tokenizer);
}

int64_t ordo_tokenizer_vocab(const ordo_tokenizer *tokenizer)
{
  return tokenizer->pieces ? (int64_t)tokenizer->pieces->len : ORDO_TOKENIZER_BYTES_VOCAB;
}

gboolean ordo_tokenizer_is_bytes(const ordo_tokenizer *tokenizer)
{
  return tokenizer->pieces == NULL;
}

int32_t ordo_tokenizer_begin(const ordo_tokenizer *tokenizer)
{
  return tokenizer->pieces ? LLAMA_BEGIN : BYTES_BEGIN;
}

GArray *ordo_tokenizer_encode(const ordo_tokenizer *tokenizer, const char *text, size_t length, gboolean begin)
{
  GArray *ids = g_array_new(FALSE, FALSE, sizeof(int32_t));
  int32_t first = ordo_tokenizer_begin(tokenizer);
  if (begin)
    g_array_append_val(ids, first);
  if (tokenizer->pieces) {
    ordo_tokenizer_merge(tokenizer, text, length, ids);
    return ids;
  }
  for (size_t i = 0; i < length; i++) {
    int32_t id = (unsigned char)text[i];
    g_array_append_val(ids, id);
  }
  return ids;
}

/* "<0x0A>" stands for the byte 10. */
static gboolean byte_piece(const ordo_piece *piece, char *byte)
{
  if (piece->length != 6 || memcmp(piece->text, "<0x", 3) != 0 || piece->text[5] != '>')
    return FALSE;
  int high = g_ascii_xdigit_value(piece->text[3]), low = g_ascii_xdigit_value(piece->text[4]);
  *byte = (char)(high * 16 + low);
  return high >= 0 && low >= 0;
}

void ordo_tokenizer_decode(const ordo_tokenizer *tokenizer, int32_t previous, int32_t id, GString *text)
{
  char byte = (char)id;
  if (id < 0 || id >= ordo_tokenizer_vocab(tokenizer))
    return;
  if (!tokenizer->pieces) {
    if (id < BYTES_BEGIN)
      g_string_append_len(text, &byte, 1);
    return;
  }
  const ordo_piece *piece = &g_array_index(tokenizer->pieces, ordo_piece, id);
  gboolean drop_space = previous == LLAMA_BEGIN && piece->length && *piece->text == ' ';
  if (id == LLAMA_BEGIN || id == LLAMA_END)
    return;
  if (byte_piece(piece, &byte))
    g_string_append_len(text, &byte, 1);
  else
    g_string_append_len(text, piece->text + drop_space, (gssize)piece->length - drop_space);
}

size_t ordo_tokenizer_bytes(const ordo_tokenizer *tokenizer, int32_t id)
{
  g_autoptr(GString) text = g_string_new(NULL);
  ordo_tokenizer_decode(tokenizer, -1, id, text);
  return text->len;
}
