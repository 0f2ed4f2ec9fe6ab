/* data.h - which tokens a step, a rank and a micro-batch see.
 *
 * The position in the data is one number, the global samples consumed, so it means the same at every rank count. Sample k of the
 * run is sequence k (sequential) or a permuted one (shuffled, another order each epoch); sequence n covers inputs
 * ids[n*T .. n*T+T-1] and targets ids[n*T+1 .. n*T+T]. The batch of a step is cut into one contiguous part per data rank,
 * the first ranks getting one more when it does not divide; a rank's part may be empty, and every rank runs the same number of
 * micro-batches.
 */
#ifndef ORDO_TRAINER_DATA_H
#define ORDO_TRAINER_DATA_H

#include "tokens.h"

typedef struct ordo_data {
  ordo_tokens *tokens; /* owned, or shared with another view (owns_tokens = 0) */
  int owns_tokens;
  GMappedFile *targets; /* explicit targets, or null */
  int64_t first_token;  /* view: tokens [first_token, first_token + n_tokens) */
  int64_t n_tokens;
  int64_t seq_len;
  int64_t n_sequences;
  int shuffled;
  uint64_t seed;
} ordo_data;

/* Part of a batch: sequences [first, first + count) of the step's batch, in micro-batches of at most `size` sequences. */
typedef struct ordo_data_part {
  int64_t first;
  int64_t count;
  int64_t micro_size;
  int32_t n_micro_batches; /* the same on all ranks */
} ordo_data_part;

/* A view of tokens [first, first+count). Errors: INVALID (shorter than one sequence and its last target). Cleared with ordo_data_clear. */
ordo_status ordo_data_view(ordo_data *data, ordo_tokens *tokens, int64_t first, int64_t count, int64_t seq_len, const char *name,
                           ordo_problems *problems);
/* Explicit targets for all sequences of the view. `vocab` bounds them; -100 is not counted. Errors: NOT_FOUND, IO, INVALID. */
ordo_status ordo_data_set_targets(ordo_data *data, const char *path, int64_t vocab, ordo_problems *problems);
void ordo_data_clear(ordo_data *data);
/* ids[T] and targets[T] of sample `sample` of the run (a number that only grows). Returns the counted targets. */
int64_t ordo_data_sample(const ordo_data *data, int64_t sample, int32_t *ids, int32_t *targets);
/* The share of rank `index` of `ranks` in a batch; micro_batch 0: the whole share at once. [any] */
ordo_data_part ordo_data_split(int64_t batch, int64_t micro_batch, int32_t index, int32_t ranks);

#endif
