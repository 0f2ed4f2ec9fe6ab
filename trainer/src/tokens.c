/* tokens.c - see tokens.h. */
#include "tokens.h"

#include "files.h"
#include "model_tokenizer.h"

#include <errno.h>
#include <string.h>

#define SHARD_HEADER 1024
#define SHARD_GPT2 20240520u
#define SHARD_LLAMA3 20240801u

typedef struct segment {
  GMappedFile *file; /* keeps ids alive, or null */
  GArray *encoded;   /* keeps ids alive, or null */
  const unsigned char *ids;
  unsigned width; /* bytes of an id: 1, 2 or 4 */
  int64_t first;  /* position of its first id in the stream */
  int64_t count;
  gboolean is_text;
} segment;

struct ordo_tokens {
  GArray *segments; /* segment */
  int64_t count;
};

typedef struct request {
  const char *path;
  const char *format;
  const ordo_tokenizer *tokenizer;
  gboolean begin;
  int64_t vocab;
  ordo_problems *problems;
} request;

static void segment_clear(gpointer data)
{
  segment *s = data;
  g_clear_pointer(&s->file, g_mapped_file_unref);
  g_clear_pointer(&s->encoded, g_array_unref);
}

static ordo_status bad(const request *r, const char *why, const char *next)
{
  return ordo_problems_push(r->problems, ORDO_E_INVALID, "E-DATA-FILE", r->path, why, next, "cannot use the data file");
}

static uint32_t id_at(const segment *s, int64_t i)
{
  const unsigned char *p = s->ids + (size_t)i * s->width;
  if (s->width == 1)
    return *p;
  if (s->width == 2)
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
  return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint32_t word(const char *data, int index)
{
  segment s = {.ids = (const unsigned char *)data, .width = 4};
  return id_at(&s, index);
}

static gboolean is_shard(const char *data, size_t length)
{
  return length >= SHARD_HEADER && (word(data, 0) == SHARD_GPT2 || word(data, 0) == SHARD_LLAMA3);
}

static ordo_status open_shard(const request *r, segment *s, const char *data, size_t length)
{
  gboolean gpt2 = length >= SHARD_HEADER && word(data, 0) == SHARD_GPT2;
  if (!is_shard(data, length))
    return bad(r, "it does not begin with the header of an llm.c token shard", "data.format = auto finds out what a file is");
  if (word(data, 1) != (gpt2 ? 1u : 7u)) {
    g_autofree char *why = g_strdup_printf("its version is %u; known is %u", word(data, 1), gpt2 ? 1u : 7u);
    return bad(r, why, "write the shard again with a current llm.c");
  }
  s->width = gpt2 ? 2 : 4;
  s->count = word(data, 2);
  s->ids = (const unsigned char *)data + SHARD_HEADER;
  if ((uint64_t)s->count * s->width != length - SHARD_HEADER) {
    g_autofree char *why = g_strdup_printf("its header promises %" G_GINT64_FORMAT " ids of %u bytes, but %zu bytes follow", s->count,
                                           s->width, length - SHARD_HEADER);
    return bad(r, why, "the file is cut off or damaged; copy it again");
  }
  return ORDO_OK;
}

static ordo_status open_ids(const request *r, segment *s, const char *data, size_t length, unsigned width)
{
  if (length % width) {
    g_autofree char *why = g_strdup_printf("its size, %zu bytes, is no multiple of %u", length, width);
    return bad(r, why, "set data.format to what the file is; a text needs format text or the ending .txt");
  }
  s->width = width;
  s->count = (int64_t)(length / width);
  s->ids = (const unsigned char *)data;
  return ORDO_OK;
}

static ordo_status check_text(const request *r, const char *data, size_t length)
{
  const char *wrong = NULL;
  const char *next = ordo_tokenizer_is_bytes(r->tokenizer) ? "set data.format = bytes to train on the bytes as they are"
                                                           : "convert the file to UTF-8 (iconv)";
  const char *zero = memchr(data, 0, length);
  if (zero) {
    g_autofree char *why = g_strdup_printf("it is binary, not text: byte %zu is zero", (size_t)(zero - data));
    return bad(r, why, "set data.format to tokens16, tokens32 or llmc if it holds ids, or to bytes to train on the bytes as they are");
  }
  if (!g_utf8_validate(data, (gssize)length, &wrong)) {
    g_autofree char *why = g_strdup_printf("byte %zu (0x%02x) is not valid UTF-8", (size_t)(wrong - data), (unsigned)(guchar)*wrong);
    return bad(r, why, next);
  }
  return ORDO_OK;
}

static ordo_status open_text(const request *r, segment *s, const char *data, size_t length, gboolean any)
{
  if (!r->tokenizer)
    return ordo_model_tokenizer_unknown(r->path, r->vocab, r->problems);
  ordo_status status = any ? ORDO_OK : check_text(r, data, length);
  s->is_text = TRUE;
  if (status != ORDO_OK)
    return status;
  if (ordo_tokenizer_is_bytes(r->tokenizer))
    return open_ids(r, s, data, length, 1);
  s->encoded = ordo_tokenizer_encode(r->tokenizer, data, length, r->begin);
  s->ids = (const unsigned char *)s->encoded->data;
  s->width = 4;
  s->count = s->encoded->len;
  return ORDO_OK;
}

static ordo_status open_segment(const request *r, segment *s)
{
  g_autoptr(GError) error = NULL;
  g_autofree char *unusable = NULL;
  const char *data;
  size_t length;
  if ((unusable = ordo_file_unusable(r->path)))
    return ordo_problems_push(r->problems, ORDO_E_NOT_FOUND, "E-DATA-FILE", r->path, unusable, "check data.train and data.validation",
                              "cannot read the data");
  s->file = g_mapped_file_new(r->path, FALSE, &error);
  if (!s->file)
    return ordo_problems_push(r->problems, ORDO_E_IO, "E-FILE-IO", r->path, error->message, "check its permissions",
                              "cannot read the data");
  data = g_mapped_file_get_contents(s->file);
  length = g_mapped_file_get_length(s->file);
  if (length == 0)
    return bad(r, "it is empty", "give a file with text or token ids");
  if (strcmp(r->format, "llmc") == 0 || (strcmp(r->format, "auto") == 0 && is_shard(data, length)))
    return open_shard(r, s, data, length);
  if (strcmp(r->format, "tokens16") == 0 || (strcmp(r->format, "auto") == 0 && g_str_has_suffix(r->path, ".bin")))
    return open_ids(r, s, data, length, 2);
  if (strcmp(r->format, "tokens32") == 0)
    return open_ids(r, s, data, length, 4);
  return open_text(r, s, data, length, strcmp(r->format, "bytes") == 0);
}

static ordo_status check_ids(const request *r, const segment *s)
{
  for (int64_t i = 0; r->vocab > 0 && i < s->count; i++)
    if (id_at(s, i) >= (uint64_t)r->vocab) {
      g_autofree char *why =
          g_strdup_printf("id %" G_GINT64_FORMAT " of the file is %u, the vocabulary of the model has %" G_GINT64_FORMAT " entries", i,
                          id_at(s, i), r->vocab);
      return ordo_problems_push(r->problems, ORDO_E_INVALID, "E-DATA-ID", r->path, why,
                                "use the model or data.tokenizer that the file was made for; a fresh model takes model.vocab_size",
                                "a token id is outside the vocabulary");
    }
  return ORDO_OK;
}

ordo_status ordo_tokens_open(const char *paths, const char *format, const ordo_tokenizer *tokenizer, gboolean begin, int64_t vocab,
                             ordo_problems *problems, ordo_tokens **tokens)
{
  g_autoptr(ordo_tokens) t = g_new0(ordo_tokens, 1);
  g_auto(GStrv) names = g_strsplit(paths, ";", -1);
  ordo_status status = ORDO_OK;
  t->segments = g_array_new(FALSE, TRUE, sizeof(segment));
  g_array_set_clear_func(t->segments, segment_clear);
  for (guint i = 0; names[i]; i++) {
    request r = {g_strstrip(names[i]), format, tokenizer, begin, vocab, problems};
    g_array_set_size(t->segments, i + 1);
    segment *s = &g_array_index(t->segments, segment, i);
    ordo_status one = open_segment(&r, s);
    if (one == ORDO_OK)
      one = check_ids(&r, s);
    s->first = t->count;
    t->count += s->count;
    status = status == ORDO_OK ? one : status;
  }
  if (status == ORDO_OK)
    *tokens = g_steal_pointer(&t);
  return status;
}

void ordo_tokens_free(ordo_tokens *tokens)
{
  if (!tokens)
    return;
  g_array_unref(tokens->segments);
  g_free(tokens);
}

int ordo_tokens_are_text(const ordo_tokens *tokens)
{
  for (guint i = 0; i < tokens->segments->len; i++)
    if (!g_array_index(tokens->segments, segment, i).is_text)
      return 0;
  return 1;
}

int64_t ordo_tokens_count(const ordo_tokens *tokens)
{
  return tokens->count;
}

void ordo_tokens_read(const ordo_tokens *tokens, int64_t first, int64_t count, int32_t *dst)
{
  for (guint i = 0; i < tokens->segments->len && count > 0; i++) {
    const segment *s = &g_array_index(tokens->segments, segment, i);
    for (; count > 0 && first < s->first + s->count; count--, first++)
      *dst++ = (int32_t)id_at(s, first - s->first);
  }
}
