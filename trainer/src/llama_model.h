/* llama_model.h - the inside of struct llama, shared by the llama_*.c files and by nobody else.
 *
 * One block of activation memory is carved once per reservation (llama_memory.c). The pass structures say which pieces of it a
 * layer uses, so that training (buffers per layer), evaluation (one set for all layers) and decoding (keys and values in the
 * cache) run the same code. */
#ifndef LLAMA_MODEL_H
#define LLAMA_MODEL_H

#include "kernels.h"
#include "llama.h"

/* Order of a block's parameters, relative to its unit's first. */
enum { BLOCK_Q, BLOCK_K, BLOCK_V, BLOCK_O, BLOCK_GATE, BLOCK_UP, BLOCK_DOWN, BLOCK_INPUT_NORM, BLOCK_POST_NORM, BLOCK_N_PARAMS };
enum { HEAD_NORM, HEAD_WEIGHT, HEAD_N_PARAMS };

/* What one layer leaves for its backward. N = tokens of the pass. */
struct layer_buffers {
  float *x;      /* [N, hidden] input of the layer */
  float *inv_in; /* [N] */
  float *q;      /* [N, q_size] after RoPE */
  float *k;      /* [N, kv_size] after RoPE */
  float *v;      /* [N, kv_size] */
  float *attn;   /* [N, q_size] before Wo */
  float *lse;    /* [batch][heads, seq] */
  float *mid;    /* [N, hidden] after the attention's residual; may be x */
  float *inv_post;
  float *gate; /* [N, inter] */
  float *up;   /* [N, inter] */
  float *act;  /* [N, inter] silu(gate) * up; may be up where no backward follows */
  float *out;  /* [N, hidden] the next layer's x; may be mid */
};

struct llama_pass {
  int64_t batch;
  int64_t seq;
  int64_t first;       /* position of the first token of each sequence */
  float *norm;         /* [N, hidden] output of the norm just computed */
  float *branch;       /* [N, hidden] output of a branch before it is added; gradient of a norm's output */
  float *score_space;  /* attention workspace */
  const float *cosine; /* [positions, head_dim / 2] */
  const float *sine;
};

/* A reservation: pointers into `memory`. */
struct llama_room {
  void *memory;
  int64_t batch;
  int64_t seq;
  int train; /* LLAMA_FORWARD_ONLY, _KEEP_ALL or _KEEP_INPUTS */
  int64_t logits_rows;
  struct layer_buffers *layers; /* one per layer; all the same when not training, all but x when only inputs are kept */
  struct llama_pass pass;
  float *final_inv; /* [N] */
  float *wide;      /* [N, max(inter, q_size)]: act in forward; dact, then act again, and dattn in backward */
  float *logits;    /* [logits_rows, vocab] */
  float *sums;      /* [N] of loss_forward */
  int32_t *ids;     /* [N] copies for backward */
  int32_t *targets;
  float *dx; /* training only: gradient of the residual stream [N, hidden] */
  float *dq;
  float *dk;
  float *dv;
};

struct llama {
  struct llama_config config;
  struct llama_memory memory;
  struct llama_hooks hooks;
  const struct kernels *kernels;
  uint32_t n_units;
  uint32_t n_params;
  struct llama_unit *units;
  struct llama_param *params;
  char *names;  /* text of all names, one block */
  float **data; /* [n_params] */
  float **grad;
  /* What this process computes with. A partition by heads, rows or vocabulary makes these smaller than the configuration's. */
  int64_t heads;
  int64_t kv_heads;
  int64_t q_size;
  int64_t kv_size;
  int64_t inter;
  int64_t vocab;
  struct llama_room room;
  int64_t kept_batch; /* shape of the forward that backward belongs to; 0: none */
  int64_t kept_seq;
  int dry;           /* passes compute nothing: see llama_set_dry */
  int64_t told_rows; /* what hooks are told then */
  char error[256];
};

/* Records the text and returns status. */
int llama_fail(struct llama *model, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* llama_params.c */
int llama_table_create(struct llama *model);
void llama_table_destroy(struct llama *model);
uint32_t llama_block_unit(int64_t layer);
uint32_t llama_head_unit(const struct llama *model);
/* LLAMA_OK if every param of the unit has data. */
int llama_check_unit(struct llama *model, uint32_t unit);
/* Weight of the unit's nth parameter. */
const float *llama_weight(const struct llama *model, uint32_t unit, uint32_t nth);

/* llama_memory.c */
void llama_rope_tables(const struct llama_config *config, int64_t positions, float *cosine, float *sine);
void llama_room_release(struct llama *model);
void *llama_alloc(struct llama *model, int64_t bytes);
void llama_free(struct llama *model, void *memory);

/* llama_forward.c */
int llama_hook_unit(struct llama *model, int (*hook)(void *ctx, uint32_t unit), uint32_t unit);
int llama_hook_activation(struct llama *model, uint32_t point, uint32_t unit, int backward, int64_t rows, float *data);
/* What a unit hands on (backward: its gradient); the width is that of the unit. */
int llama_hook_output(struct llama *model, uint32_t unit, int backward, int64_t rows, float *data);
int llama_embed(struct llama *model, int64_t rows, const int32_t *ids, float *x);
int llama_block_forward(struct llama *model, int64_t layer, const struct llama_pass *pass, const struct layer_buffers *buffers);
/* Computes again what the layer's backward reads; its weights must be there. No unit hooks. */
int llama_block_again(struct llama *model, int64_t layer);
int llama_check_ids(struct llama *model, int64_t n, const int32_t *ids, int ignored_allowed);

#endif
