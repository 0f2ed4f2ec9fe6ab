/* hf.h - writing Hugging Face Llama directories: config.json and model.safetensors. Reading is a source of weights (weights.h). */
#ifndef ORDO_TRAINER_HF_H
#define ORDO_TRAINER_HF_H

#include "llama.h"
#include "problems.h"
#include <ordo/dtype.h>

/* The text of config.json; freed with g_free. `begin` and `end` are token ids, -1 for none. */
char *ordo_hf_config_text(const struct llama_config *config, double initializer_range, ordo_dtype dtype, int32_t begin, int32_t end);
/* Reads config.json's text into *config, naming what is unsupported. Errors: INVALID, UNSUPPORTED. */
ordo_status ordo_hf_config_parse(const char *text, size_t length, const char *path, struct llama_config *config, double *initializer_range,
                                 ordo_problems *problems);

#endif
