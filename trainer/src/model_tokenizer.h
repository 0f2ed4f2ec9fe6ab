/* model_tokenizer.h - which tokenizer a model was trained with, and how a saved model remembers it. */
#ifndef ORDO_TRAINER_MODEL_TOKENIZER_H
#define ORDO_TRAINER_MODEL_TOKENIZER_H

#include "problems.h"

/* The name (as for data.tokenizer) of the tokenizer that belongs to the model at `path`, a directory or a .bin file with `vocab` entries:
 * the tokenizer.bin beside it, else what its ordo.ini says, else bytes if the vocabulary is exactly theirs. Null: it cannot be known.
 * Freed with g_free. */
char *ordo_model_tokenizer_find(const char *path, int64_t vocab);
/* 1 if the model says so itself, by a file; 0 if its size is all there is. */
int ordo_model_tokenizer_is_stated(const char *path);
/* Writes into a model directory which tokenizer it has: a copy of a tokenizer.bin, or ordo.ini for bytes; nothing for an empty name. */
ordo_status ordo_model_tokenizer_write(const char *directory, const char *tokenizer, ordo_problems *problems);
/* Pushes "no tokenizer is known" for the text at `where`. Returns INVALID. */
ordo_status ordo_model_tokenizer_unknown(const char *where, int64_t vocab, ordo_problems *problems);

#endif
