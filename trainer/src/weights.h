/* weights.h - where weights come from: a Hugging Face directory, a llama2.c checkpoint, or the generator of fresh ones.
 *
 * A source answers one question: elements first .. first+count-1 of a named parameter as fp32, in Hugging Face's row order. Every
 * rank and every placement asks for what it needs, in any order, and gets the same values.
 */
#ifndef ORDO_TRAINER_WEIGHTS_H
#define ORDO_TRAINER_WEIGHTS_H

#include "llama.h"
#include "problems.h"
#include <ordo/model.h>

typedef struct ordo_weights ordo_weights;

struct ordo_weights {
  struct llama_config config;
  char *origin; /* path, or "fresh weights of seed 1" */
  double initializer_range;
  /* dst[count] = elements of the parameter; the range lies inside it. */
  ordo_status (*read)(ordo_weights *self, const char *name, int64_t first, int64_t count, float *dst, ordo_problems *problems);
  /* Are all parameters of the model there, with these shapes, and nothing else? Null: nothing to check. */
  ordo_status (*check)(ordo_weights *self, const struct llama *model, ordo_problems *problems);
  void (*destroy)(ordo_weights *self);
};

/* A directory is read as Hugging Face's, a file as llama2.c's. Errors: NOT_FOUND, IO, INVALID, UNSUPPORTED. The caller owns *weights. */
ordo_status ordo_weights_open(const char *path, ordo_problems *problems, ordo_weights **weights);
/* Normal with deviation `range` for 2-D weights, ones for norms; element i of a parameter depends on (seed, name, i) only. */
ordo_weights *ordo_weights_fresh(const struct llama_config *config, uint64_t seed, double range);
/* The model at `path` without its weights, which may be missing: a Hugging Face directory, its config.json, or a llama2.c checkpoint.
 * Errors: as above. */
ordo_status ordo_weights_describe(const char *path, ordo_problems *problems, ordo_weights **weights);
void ordo_weights_free(ordo_weights *weights);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ordo_weights, ordo_weights_free)
/* The chunk (RECT packed row-major, or FLAT) of chunk->param as fp32. */
ordo_status ordo_weights_read_chunk(ordo_weights *weights, const ordo_chunk *chunk, float *dst, ordo_problems *problems);

/* The kinds, for ordo_weights_open and tests. */
ordo_status ordo_hf_open(const char *directory, ordo_problems *problems, ordo_weights **weights);
ordo_status ordo_llama2c_open(const char *path, ordo_problems *problems, ordo_weights **weights);

#endif
