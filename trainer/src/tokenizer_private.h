/* tokenizer_private.h - what tokenizer.c and tokenizer_merge.c share. */
#ifndef ORDO_TRAINER_TOKENIZER_PRIVATE_H
#define ORDO_TRAINER_TOKENIZER_PRIVATE_H

#include "tokenizer.h"

typedef struct ordo_piece {
  const char *text; /* inside ordo_tokenizer.data, not terminated */
  uint32_t length;
  float score;
} ordo_piece;

struct ordo_tokenizer {
  char *data; /* the file; null for bytes */
  size_t length;
  GArray *pieces;  /* ordo_piece; null for bytes */
  GHashTable *ids; /* ordo_piece -> id + 1 of the first entry with that text */
};

/* Fills ids. */
void ordo_tokenizer_index(ordo_tokenizer *tokenizer);
/* Appends the ids of a text by the rules of llama2.c. */
void ordo_tokenizer_merge(const ordo_tokenizer *tokenizer, const char *text, size_t length, GArray *ids);

#endif
