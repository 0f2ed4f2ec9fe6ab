/* save.h - tensors of a session as safetensors files and Hugging Face directories, whatever the placement. All functions are
 * collective: every rank calls them, rank 0 of the mesh writes, all learn whether it worked. Errors are in the context. */
#ifndef ORDO_TRAINER_SAVE_H
#define ORDO_TRAINER_SAVE_H

#include "embed.h"

/* One file with every parameter once (a tied head is left out): weights, or gradients (`what` as for ordo_embed_gather) without
 * the loss scale. */
ordo_status ordo_save_tensors(ordo_embed *embed, const char *path, int32_t what, ordo_dtype dtype, const char *text);
/* A directory with config.json, model.safetensors (weights of layers with an adapter include it) and the tokenizer it was trained with (as
 * data.tokenizer; empty: unknown). It takes its name when it is complete. */
ordo_status ordo_save_model(ordo_embed *embed, const char *directory, ordo_dtype dtype, const char *tokenizer);
/* L2 norm of each parameter's optimizer slot, in definition order without the tied head: norms[n_params]. */
ordo_status ordo_save_slot_norms(ordo_embed *embed, uint32_t slot, double *norms);
/* 1 if the parameter is stored under its own name, 0 for the second member of a tie group. */
int ordo_save_has_param(const ordo_model *model, const ordo_param *param);

#endif
