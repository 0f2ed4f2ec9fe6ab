/* llama_model.h - the inside of struct llama, shared by the llama_*.c files and by nobody else.
 *
 * One block of activation memory is carved once per reservation (llama_memory.c). The pass structures say which pieces of it a
 * layer uses, so that training (buffers per layer), evaluation (one set for all layers) and decoding (keys and values in the
 * cache) run the same code. */
#ifndef LLAMA_MODEL_H
#define LLAMA_MODEL_H

#include "bf16_gemm.h"
#include "kernels_low.h"
#include "llama.h"

/* Order of a block's parameters, relative to its unit's first. */
enum { BLOCK_Q, BLOCK_K, BLOCK_V, BLOCK_O, BLOCK_GATE, BLOCK_UP, BLOCK_DOWN, BLOCK_INPUT_NORM, BLOCK_POST_NORM, BLOCK_N_PARAMS };
enum { HEAD_NORM, HEAD_WEIGHT, HEAD_N_PARAMS };

/* What this process computes with in a block. A partition by heads or columns makes it smaller than the configuration's. */
struct llama_sizes {
  int64_t heads;
  int64_t kv_heads;
  int64_t q_size;
  int64_t kv_size;
  int64_t inter;
};

/* The same for the whole model. */
struct llama_layout {
  const struct llama_config *config;
  struct llama_sizes most;    /* per member the largest of all blocks */
  struct llama_sizes *blocks; /* [layers]; null: all are `most` */
  int64_t embed_first;        /* vocabulary rows of the embedding and of the head */
  int64_t embed_rows;
  int64_t vocab_first;
  int64_t vocab;
  int64_t parts; /* of the residual stream's rows */
  int64_t index;
  int64_t partial; /* elements of the largest gradient that a hook completes */
};

/* What one layer leaves for its backward. N = tokens of the pass, P of them in the residual stream here. */
struct layer_buffers {
  float *x;      /* [P, hidden] input of the layer */
  float *inv_in; /* [P] */
  float *q;      /* [N, q_size] after RoPE */
  float *k;      /* [N, kv_size] after RoPE */
  float *v;      /* [N, kv_size] */
  float *attn;   /* [N, q_size] before Wo */
  float *lse;    /* [batch][heads, seq] */
  float *mid;    /* [P, hidden] after the attention's residual; may be x */
  float *inv_post;
  float *gate; /* [N, inter] */
  float *up;   /* [N, inter] */
  float *act;  /* [N, inter] silu(gate) * up; may be up where no backward follows */
  float *out;  /* [P, hidden] the next layer's x; may be mid */
};

struct llama_pass {
  int64_t batch;
  int64_t seq;
  int64_t first;       /* position of the first token of each sequence */
  int64_t part;        /* rows of the residual stream here, padding included: N unless they are split */
  int64_t part_first;  /* the first of them */
  int64_t held;        /* those that are tokens */
  int64_t padded;      /* rows of all parts together: N unless they are split, and then more than `part` even for one token */
  float *norm;         /* [N, hidden] output of the norm just computed */
  float *branch;       /* [N, hidden] output of a branch before it is added; gradient of a norm's output */
  float *score_space;  /* attention workspace */
  const float *cosine; /* [positions, head_dim / 2] */
  const float *sine;
};

/* One linear layer y = x W^T of a unit. */
struct linear {
  uint32_t unit;
  uint32_t nth; /* parameter of the unit */
  int64_t in;
  int64_t out;
};

/* An operand of products: fp32, holding values of the policy's matmul type; `low`: the same in bf16 where products run in bf16, else
 * null. */
struct operand {
  const float *x;
  const uint16_t *low;
};

/* Where a gradient of a weight is written: data null: nowhere; beta 0: overwritten, 1: added to. */
struct gradient {
  void *data;
  ordo_dtype dtype;
  float beta;
};

/* Where narrowed operands lie. A slot is used again once nothing reads it: the three of dy live until the unit's input gradients. */
enum operand_slot { OPERAND_X, OPERAND_DY0, OPERAND_DY1, OPERAND_DY2, OPERAND_SLOTS };

/* What the policy says for the running pass (hooks.op_dtype). */
struct llama_policy {
  ordo_dtype matmul, norm, softmax, rope, elementwise, embedding;
};

/* Work space of 16-bit storage and products: pointers into `memory`, null as long as everything is fp32. */
struct llama_work {
  void *memory;
  int64_t bytes;
  int64_t matrix_numel;
  float *matrix; /* [matrix_numel] rows of a weight as fp32, or of a weight's gradient before it is rounded */
  float *weight; /* [hidden] a norm's weight */
  float *vector; /* [hidden] gradient of a norm's weight, of a row of the embedding */
  int64_t *keys; /* [tokens] of the embedding's backward; training only */
  int64_t tokens;
  int64_t slot_numel[OPERAND_SLOTS];
  uint16_t *slots[OPERAND_SLOTS];
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
  float *shares;    /* [logits_rows, 4] of the loss over a part of the vocabulary; null where it is whole */
  float *partial;   /* a micro-batch's gradient of one param, for the hook that completes it */
  int32_t *ids;     /* [N] copies for backward */
  int32_t *targets;
  float *dx; /* training only: gradient of the residual stream [P, hidden] */
  float *dq;
  float *dk;
  float *dv;
};

/* A low-rank addition to a linear layer. */
struct llama_adapter {
  uint32_t param; /* the layer's weight */
  uint32_t a, b;  /* numbers of its own parameters */
  int64_t rank, in, out;
  float scale;
  float *data[2], *grad[2]; /* A, B; null: not there, not trained */
  float *space;             /* [ADAPTER_ROWS, rank]: x A^T, or its gradient */
};
enum { ADAPTER_ROWS = 256 };

struct llama {
  struct llama_config config;
  struct llama_memory memory;
  struct llama_hooks hooks;
  const struct kernels *kernels;
  uint32_t n_units;
  uint32_t n_params;
  struct llama_unit *units;
  struct llama_param *params;
  char *names; /* text of all names, one block */
  void **data; /* [n_params] of dtype */
  void **grad; /* of grad_dtype */
  ordo_dtype *dtype;
  ordo_dtype *grad_dtype;
  struct llama_policy policy;
  struct llama_work work;
  struct llama_adapter *adapters; /* [n_adapters] */
  uint32_t n_adapters;
  struct bf16_gemm *gemm;     /* null: products run in fp32 */
  struct llama_local *locals; /* [n_params] */
  struct llama_layout layout;
  struct llama_room room;
  int64_t kept_batch; /* shape of the forward that backward belongs to; 0: none */
  int64_t kept_seq;
  int dry; /* passes compute nothing: see llama_set_dry */
  char error[256];
};

/* Of `n` rows or elements those that are computed, read or written: none in a dry pass, in which hooks alone are called. */
static inline int64_t llama_busy(const struct llama *model, int64_t n)
{
  return model->dry ? 0 : n;
}

/* Records the text and returns status. */
int llama_fail(struct llama *model, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* llama_params.c */
int llama_table_create(struct llama *model);
void llama_table_destroy(struct llama *model);
uint32_t llama_block_unit(int64_t layer);
uint32_t llama_head_unit(const struct llama *model);
/* LLAMA_OK if every param of the unit has data, and work space if it needs some. */
int llama_check_unit(struct llama *model, uint32_t unit);

/* llama_local.c */
/* The layout of a whole model. */
struct llama_layout llama_whole(const struct llama_config *config);
int llama_locals_create(struct llama *model);
void llama_locals_destroy(struct llama *model);
const struct llama_sizes *llama_sizes_of(const struct llama *model, uint32_t unit);
/* Sets the pass's rows of the residual stream; `split` 0 keeps all of them here. */
void llama_set_rows(const struct llama_layout *layout, struct llama_pass *pass, int split);
int llama_wants(const struct llama *model, uint32_t point, uint32_t param, int backward);
/* Calls the activation hook; the caller has asked whether it is wanted. */
int llama_offer(struct llama *model, const struct llama_activation *activation);
/* 1: somebody listens to llama_hook_output of the unit. */
int llama_wants_output(const struct llama *model, uint32_t unit, int backward);
/* What a unit hands on (backward: its gradient), in place; the width is that of the unit. */
int llama_hook_output(struct llama *model, uint32_t unit, int backward, int64_t rows, float *data);
/* [P, hidden] at its place in `full` -> [N, hidden]. The point belongs to the unit's nth param. */
int llama_gather(struct llama *model, const struct llama_pass *pass, uint32_t point, uint32_t unit, uint32_t nth, int backward,
                 float *full);
/* [N, hidden] -> [P, hidden]: at `part`, or, where that is null, at its place in `full`. */
int llama_scatter(struct llama *model, const struct llama_pass *pass, uint32_t point, uint32_t unit, uint32_t nth, int backward,
                  float *full, float *part);

/* llama_memory.c */
void llama_rope_tables(const struct llama_config *config, int64_t positions, float *cosine, float *sine);
void llama_room_release(struct llama *model);
void *llama_alloc(struct llama *model, int64_t bytes);
void llama_free(struct llama *model, void *memory);

/* llama_policy.c */
/* Asks for the types of a pass. Errors: INVALID (a type that is none), STATE (work space is missing). */
int llama_policy_ask(struct llama *model);
/* Work space for the types bound and asked for now and passes of `tokens`; keeps what is large enough. */
int llama_work_reserve(struct llama *model, int64_t tokens, int64_t logits_rows, int train);
void llama_work_release(struct llama *model);
/* x[n] rounded in place to the type; nothing for fp32. */
void llama_round(const struct llama *model, ordo_dtype dtype, int64_t n, float *x);
/* The operand that consists of x[n], whose values the matmul type has. */
struct operand llama_operand(struct llama *model, enum operand_slot slot, int64_t n, const float *x);

/* llama_linear.c: the products. Results are not rounded: that is done by what reads them next (llama_rows.c), or by the caller. */
void llama_linear_forward(struct llama *model, struct linear linear, int64_t rows, struct operand x, float *y);
/* dx = dy W + beta dx: a sum of several products is rounded once. */
void llama_linear_backward_input(struct llama *model, struct linear linear, int64_t rows, struct operand dy, float beta, float *dx);
/* gradient (+)= dy^T x, summed in fp32 and rounded to the gradient's own type. */
void llama_linear_backward_weight(struct llama *model, struct linear linear, int64_t rows, struct operand dy, struct operand x,
                                  struct gradient gradient);
/* The param's gradient takes x[n] in: written with beta 0, else added in fp32. */
void llama_gradient_take(struct llama *model, uint32_t param, float beta, int64_t n, const float *x);

/* llama_adapter.c. Nothing for a param without adapter. */
struct llama_adapter *llama_adapter_find(const struct llama *model, uint32_t param);
void llama_adapters_destroy(struct llama *model);
/* Binds adapter parameter `number`; 0 if there is none. */
int llama_adapter_bind(struct llama *model, uint32_t number, float *data, float *grad);
/* LLAMA_OK if every adapter of the unit has data. */
int llama_check_adapters(struct llama *model, const struct llama_unit *unit);
/* y += scale (x A^T) B^T */
void llama_adapter_forward(const struct llama_adapter *adapter, int64_t rows, const float *x, float *y);
/* dx += scale (dy B) A */
void llama_adapter_backward_input(const struct llama_adapter *adapter, int64_t rows, const float *dy, float *dx);
/* Gradients of B (which 1) or A (0), times beta plus those of these rows. */
void llama_adapter_backward_weight(const struct llama_adapter *adapter, int which, int64_t rows, const float *dy, const float *x,
                                   float beta);

/* llama_rows.c: norms, SwiGLU and embedding, with storage of any type and the roundings of the policy. */
void llama_norm_forward(struct llama *model, uint32_t unit, uint32_t nth, int64_t rows, const float *x, float *y, float *inv);
/* sum = x + delta (sum may be x), then the norm of sum. delta is a result of a product. */
void llama_add_norm_forward(struct llama *model, uint32_t unit, uint32_t nth, int64_t rows, const float *x, float *delta, float *sum,
                            float *y, float *inv);
/* y again from x and inv. */
void llama_norm_again(struct llama *model, uint32_t unit, uint32_t nth, int64_t rows, const float *x, const float *inv, float *y);
/* Adds to dx and to the weight's gradient. dy is a sum of products. */
void llama_norm_backward(struct llama *model, uint32_t unit, uint32_t nth, int64_t rows, const float *x, const float *inv, float *dy,
                         float *dx, struct gradient gradient);
/* sum = x + delta: the residual stream. delta is a result of a product. */
void llama_residual(struct llama *model, int64_t rows, const float *x, float *delta, float *sum);
/* Rotary embedding of results of products, [N, heads * head_dim]; sign -1: back. What comes out is an operand again. */
void llama_rotate(struct llama *model, const struct llama_pass *pass, int64_t heads, float sign, float *x);
/* As kernels.h, on results of products (backward: on gate and up as forward left them); what comes out are operands. */
void llama_swiglu_forward(struct llama *model, int64_t n, float *gate, float *up, float *act);
void llama_swiglu_backward(struct llama *model, int64_t n, float *gate, float *up, float *grad);
void llama_embedding_forward(struct llama *model, int64_t rows, const int32_t *ids, float *x);
/* Adds the rows of dx to the table's gradient (beta 0: overwrites it). Each row is summed in fp32 and rounded once. */
void llama_embedding_backward(struct llama *model, int64_t rows, const int32_t *ids, const float *dx, float beta);

/* llama_forward.c */
int llama_hook_unit(struct llama *model, int (*hook)(void *ctx, uint32_t unit), uint32_t unit);
int llama_embed(struct llama *model, const struct llama_pass *pass, const int32_t *ids, float *x);
/* What comes out of the head for `rows` rows of local logits -> whole rows of the vocabulary. */
int llama_whole_logits(struct llama *model, int64_t rows, float *local, float *whole);
int llama_block_forward(struct llama *model, int64_t layer, const struct llama_pass *pass, const struct layer_buffers *buffers);
/* Computes again what the layer's backward reads; its weights must be there. No unit hooks. */
int llama_block_again(struct llama *model, int64_t layer);
int llama_check_ids(struct llama *model, int64_t n, const int32_t *ids, int ignored_allowed);

#endif
