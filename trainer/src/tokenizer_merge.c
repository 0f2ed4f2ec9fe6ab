/* tokenizer_merge.c - the merging of a llama2.c vocabulary, in O(n log n).
 *
 * run.c looks over all pairs for each merge, which takes hours for a text of megabytes. Here the pairs wait in a heap ordered by
 * (score, position), and a pair whose tokens have changed meanwhile is dropped when it comes up: every merge is the one run.c would
 * have made, because at each moment the heap holds all pairs that exist.
 */
#include "tokenizer_private.h"

#include <string.h>

typedef struct token {
  int32_t id;    /* -1: merged into its left neighbour */
  uint32_t left; /* neighbours, NONE at the ends */
  uint32_t right;
} token;
#define NONE UINT32_MAX

typedef struct pair {
  float score;
  uint32_t left; /* position of the left token */
  int32_t left_id, right_id, merged;
} pair;

typedef struct merger {
  const ordo_tokenizer *tokenizer;
  token *tokens;
  GArray *heap;      /* pair, the best one first */
  GHashTable *known; /* (left id, right id) -> id of the concatenation + 2, 1 for none */
  GString *buffer;
} merger;

static guint piece_hash(gconstpointer data)
{
  const ordo_piece *piece = data;
  guint hash = 5381;
  for (uint32_t i = 0; i < piece->length; i++)
    hash = hash * 33 + (guchar)piece->text[i];
  return hash;
}

static gboolean piece_equal(gconstpointer a, gconstpointer b)
{
  const ordo_piece *x = a, *y = b;
  return x->length == y->length && memcmp(x->text, y->text, x->length) == 0;
}

void ordo_tokenizer_index(ordo_tokenizer *tokenizer)
{
  tokenizer->ids = g_hash_table_new(piece_hash, piece_equal);
  for (guint i = 0; i < tokenizer->pieces->len; i++) {
    ordo_piece *piece = &g_array_index(tokenizer->pieces, ordo_piece, i);
    if (!g_hash_table_contains(tokenizer->ids, piece))
      g_hash_table_insert(tokenizer->ids, piece, GUINT_TO_POINTER(i + 1));
  }
}

static int32_t lookup(const ordo_tokenizer *tokenizer, const char *text, size_t length)
{
  ordo_piece piece = {text, (uint32_t)length, 0};
  return (int32_t)GPOINTER_TO_UINT(g_hash_table_lookup(tokenizer->ids, &piece)) - 1;
}

static int32_t merged_id(merger *m, int32_t left, int32_t right)
{
  guint64 key = (guint64)(uint32_t)left << 32 | (uint32_t)right;
  gint32 id = GPOINTER_TO_INT(g_hash_table_lookup(m->known, &key)) - 2;
  if (id != -2)
    return id;
  const ordo_piece *a = &g_array_index(m->tokenizer->pieces, ordo_piece, left);
  const ordo_piece *b = &g_array_index(m->tokenizer->pieces, ordo_piece, right);
  g_string_truncate(m->buffer, 0);
  g_string_append_len(m->buffer, a->text, a->length);
  g_string_append_len(m->buffer, b->text, b->length);
  id = lookup(m->tokenizer, m->buffer->str, m->buffer->len);
  g_hash_table_insert(m->known, g_memdup2(&key, sizeof key), GINT_TO_POINTER(id + 2));
  return id;
}

static gboolean before(const pair *a, const pair *b)
{
  return a->score > b->score || (a->score == b->score && a->left < b->left);
}

static void heap_push(GArray *heap, pair item)
{
  guint i = heap->len;
  g_array_append_val(heap, item);
  pair *items = (pair *)(void *)heap->data;
  for (; i > 0 && before(&item, &items[(i - 1) / 2]); i = (i - 1) / 2)
    items[i] = items[(i - 1) / 2];
  items[i] = item;
}

static pair heap_pop(GArray *heap)
{
  pair *items = (pair *)(void *)heap->data;
  pair top = items[0], last = items[heap->len - 1];
  guint n = heap->len - 1, i = 0;
  for (guint child = 1; child < n; child = 2 * i + 1) {
    if (child + 1 < n && before(&items[child + 1], &items[child]))
      child++;
    if (!before(&items[child], &last))
      break;
    items[i] = items[child];
    i = child;
  }
  items[i] = last;
  g_array_set_size(heap, n);
  return top;
}

static void offer(merger *m, uint32_t left)
{
  if (left == NONE || m->tokens[left].right == NONE)
    return;
  int32_t a = m->tokens[left].id, b = m->tokens[m->tokens[left].right].id;
  int32_t id = merged_id(m, a, b);
  if (id < 0)
    return;
  pair item = {g_array_index(m->tokenizer->pieces, ordo_piece, id).score, left, a, b, id};
  heap_push(m->heap, item);
}

/* Code points, or bytes where the vocabulary lacks them. run.c takes at most four bytes for one. */
static void split(const ordo_tokenizer *tokenizer, const char *text, size_t length, GArray *ids)
{
  for (size_t i = 0; i < length;) {
    size_t n = 1;
    while (n < 4 && i + n < length && ((unsigned char)text[i + n] & 0xC0) == 0x80)
      n++;
    int32_t id = lookup(tokenizer, text + i, n);
    if (id >= 0)
      g_array_append_val(ids, id);
    for (size_t k = 0; id < 0 && k < n; k++) {
      int32_t byte = (unsigned char)text[i + k] + 3;
      g_array_append_val(ids, byte);
    }
    i += n;
  }
}

static void merge_all(merger *m, GArray *ids, guint first)
{
  guint n = ids->len - first;
  const int32_t *source = (const int32_t *)(const void *)ids->data + first;
  m->tokens = g_new(token, n);
  for (guint i = 0; i < n; i++)
    m->tokens[i] = (token){source[i], i ? i - 1 : NONE, i + 1 < n ? i + 1 : NONE};
  for (guint i = 0; i + 1 < n; i++)
    offer(m, i);
  while (m->heap->len) {
    pair best = heap_pop(m->heap);
    token *left = &m->tokens[best.left];
    if (left->id != best.left_id || left->right == NONE || m->tokens[left->right].id != best.right_id)
      continue;
    token *right = &m->tokens[left->right];
    left->id = best.merged;
    right->id = -1;
    left->right = right->right;
    if (left->right != NONE)
      m->tokens[left->right].left = best.left;
    offer(m, left->left);
    offer(m, best.left);
  }
  g_array_set_size(ids, first);
  for (uint32_t i = 0; i < n; i = m->tokens[i].right == NONE ? n : m->tokens[i].right)
    g_array_append_val(ids, m->tokens[i].id);
  g_free(m->tokens);
}

void ordo_tokenizer_merge(const ordo_tokenizer *tokenizer, const char *text, size_t length, GArray *ids)
{
  guint first = ids->len;
  if (length == 0)
    return;
  split(tokenizer, " ", 1, ids);
  split(tokenizer, text, length, ids);
  merger m = {tokenizer, NULL, g_array_new(FALSE, FALSE, sizeof(pair)), g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL),
              g_string_new(NULL)};
  merge_all(&m, ids, first);
  g_array_unref(m.heap);
  g_hash_table_unref(m.known);
  g_string_free(m.buffer, TRUE);
}
