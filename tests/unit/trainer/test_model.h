/* test_model.h - a Llama with weights, gradients and optimizer state on the heap, for tests. One plain training step in the
 * order that docs of the golden numbers state; no host, no plugins. */
#ifndef TEST_MODEL_H
#define TEST_MODEL_H

#include "llama.h"
#include "optim.h"

struct test_model {
  struct llama *llama;
  uint32_t n_params;
  float **weight; /* a tied head shares the embedding's pointers */
  float **grad;
  float **m; /* also SGD's velocity */
  float **v;
  int fresh; /* 1: the next write to each gradient overwrites */
  unsigned char *written;
};

/* Weights zero, gradients NaN (so that a missing overwrite shows). Hooks are set so that the first backward after test_model_zero
 * overwrites. */
struct test_model *test_model_new(const struct llama_config *config);
void test_model_free(struct test_model *model);
/* The next contribution to every gradient overwrites it. */
void test_model_zero(struct test_model *model);
/* 1 if param is a tied head, whose storage belongs to the embedding. */
int test_model_is_alias(const struct test_model *model, uint32_t param);
/* Square root of the sum of squares of all gradients, each storage once, in double. */
double test_model_grad_norm(const struct test_model *model);
/* Uniform in [-1, 1), reproducible. */
float test_uniform(uint32_t *state);

#endif
