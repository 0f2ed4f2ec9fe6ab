/* golden_model.h - the golden directory's model, loaded into a test_model; skip handling shared by the golden tests. */
#ifndef GOLDEN_MODEL_H
#define GOLDEN_MODEL_H

#include "golden_files.h"
#include "test_model.h"

/* Model of <dir>/model/hf with its weights; reserved for batch x seq. */
struct test_model *golden_model_new(const char *dir, int64_t batch, int64_t seq, int train);

/* Largest absolute difference. */
double worst_difference(int64_t n, const float *a, const float *b);

#endif
