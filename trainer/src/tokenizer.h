/* tokenizer.h - text to ids and back: bytes, or the vocabulary of a llama2.c tokenizer.bin.
 *
 * bytes: id = byte, 256 begins a text, 257 ends it; needs nothing and loses nothing.
 * llama2.c: the rules of its run.c. Begin token first; a space before a text that is not empty; one token per UTF-8 code point, or
 * one per byte (byte + 3) where the vocabulary lacks it; then the adjacent pair whose concatenation has the highest score is
 * merged, leftmost first, until no pair is in the vocabulary.
 */
#ifndef ORDO_TRAINER_TOKENIZER_H
#define ORDO_TRAINER_TOKENIZER_H

#include "problems.h"

typedef struct ordo_tokenizer ordo_tokenizer;

enum { ORDO_TOKENIZER_BYTES_VOCAB = 258 }; /* 256 bytes, begin, end */

/* `name` is "bytes" or the path of a tokenizer.bin. `vocab`: entries to read, the rows of the model's embedding; 0: to the end of
 * the file. The caller owns *tokenizer. Errors: NOT_FOUND, IO, INVALID (damaged, or another number of entries than vocab). */
ordo_status ordo_tokenizer_open(const char *name, int64_t vocab, ordo_problems *problems, ordo_tokenizer **tokenizer);
void ordo_tokenizer_free(ordo_tokenizer *tokenizer);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ordo_tokenizer, ordo_tokenizer_free)
/* Ids that encoding can give: 258 for bytes. */
int64_t ordo_tokenizer_vocab(const ordo_tokenizer *tokenizer);
gboolean ordo_tokenizer_is_bytes(const ordo_tokenizer *tokenizer);
/* The token that begins a text. */
int32_t ordo_tokenizer_begin(const ordo_tokenizer *tokenizer);
/* Ids (int32_t) of length bytes, the begin token first if `begin`. The caller frees the array. */
GArray *ordo_tokenizer_encode(const ordo_tokenizer *tokenizer, const char *text, size_t length, gboolean begin);
/* Appends the bytes of `id`; `previous` is the id before it, -1 for none (after the begin token one leading space is dropped). Ids
 * outside the vocabulary and the begin and end tokens add nothing. */
void ordo_tokenizer_decode(const ordo_tokenizer *tokenizer, int32_t previous, int32_t id, GString *text);
/* Bytes that `id` stands for inside a text, for losses per byte. */
size_t ordo_tokenizer_bytes(const ordo_tokenizer *tokenizer, int32_t id);

#endif
