/* tokens.h - one flat stream of token ids from one or more files.
 *
 * Files: text through a tokenizer, headerless little-endian uint16 or uint32 ids (nanoGPT's .bin), llm.c shards (GPT-2: magic
 * 20240520, uint16; Llama-3: magic 20240801, uint32). Several files joined with ';' follow each other without a gap.
 * Token files are mapped, not copied. Every id is compared with the vocabulary when the stream is opened, so that training cannot
 * stop hours later at a damaged one.
 */
#ifndef ORDO_TRAINER_TOKENS_H
#define ORDO_TRAINER_TOKENS_H

#include "tokenizer.h"

typedef struct ordo_tokens ordo_tokens;

/* `format` is a choice of data.format. `begin`: a begin token before each text. vocab > 0: larger ids are refused. The tokenizer must
 * outlive nothing; it is used here only; null: none is known, and texts are refused. Errors: NOT_FOUND, IO, INVALID (empty, binary, not
 * UTF-8, odd size, damaged header, ids). The caller owns *tokens. */
ordo_status ordo_tokens_open(const char *paths, const char *format, const ordo_tokenizer *tokenizer, gboolean begin, int64_t vocab,
                             ordo_problems *problems, ordo_tokens **tokens);
void ordo_tokens_free(ordo_tokens *tokens);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ordo_tokens, ordo_tokens_free)
/* 1 if every file was text, so that losses per byte mean something. */
int ordo_tokens_are_text(const ordo_tokens *tokens);
int64_t ordo_tokens_count(const ordo_tokens *tokens);
/* dst[count] = ids first .. first+count-1; the caller stays inside the stream. */
void ordo_tokens_read(const ordo_tokens *tokens, int64_t first, int64_t count, int32_t *dst);

#endif
