/* llama.h - the Llama model of the trainer: parameter table, forward, hand-written backward, and decoding with a KV cache.
 *
 * What it is not: it owns no weights and no gradients (llama_bind says where they are), reads no files, knows no optimizer and
 * no ranks. What happens between units is told to the caller through hooks, so that a strategy may move storage around.
 *
 * Words: N = batch * seq tokens; a matrix [rows, columns] is row-major; a linear layer's weight is [out, in] (Hugging Face).
 *
 * Numbers: weights and gradients are stored as fp32, bf16 or fp16 (llama_bind_as), activations as fp32. Sums are always fp32. What is
 * rounded besides storage is the policy's business (hooks.op_dtype):
 *   matmul       operands of products before, results after: linear layers, q k^T, probabilities times v, and the gradients of these.
 *                Results that are added up (gradients of a norm's output, of k and v of a group) are rounded once, after the sum. Weight
 *                gradients are rounded to their own type only
 *   norm, rope, softmax (probabilities), embedding, elementwise (residual sum, silu(gate) * up)
 *                computed in fp32, results of the forward pass rounded
 *   loss         always fp32
 *
 * Invariants
 *  - A weight pointer is read after the unit's pre_forward or pre_backward hook and not used after its post_ hook.
 *  - Backward consumes what the last keeping forward left: one backward per forward.
 *  - Nothing is allocated outside llama_create, llama_reserve and llama_cache_create.
 *  - All functions belong to the thread that runs the step [step]; two models do not know of each other.
 */
#ifndef LLAMA_H
#define LLAMA_H

#include <ordo/dtype.h>
#include <stddef.h>
#include <stdint.h>

/* Status of every function that returns int: 0, one of these, or whatever non-zero value a hook returned. */
enum {
  LLAMA_OK = 0,
  LLAMA_E_INVALID = -101, /* an argument; llama_error says which and why */
  LLAMA_E_NOMEM = -102,
  LLAMA_E_STATE = -103 /* not reserved, not bound, or backward without forward */
};

struct llama_config {
  int64_t vocab;
  int64_t hidden;
  int64_t intermediate;
  int64_t layers;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;      /* even; need not be hidden / heads */
  int64_t max_positions; /* longest sequence */
  double rms_eps;
  double rope_theta;
  int tied; /* 1: the head uses the embedding's weight */
};

/* Null if a model can be made of it, else why not (written to `reason`, `size` bytes, and returned). since 0.1 */
const char *llama_config_check(const struct llama_config *config, char *reason, size_t size);

/* ---- parameter table ---- */

/* The values equal ORDO_TP_ of ordo/model.h. */
enum { LLAMA_TP_REPLICATE = 0, LLAMA_TP_COLUMN = 1, LLAMA_TP_ROW = 2, LLAMA_TP_VOCAB = 3 };

struct llama_unit {
  const char *name;       /* "model.embed_tokens", "model.layers.3", "head" */
  const char *class_name; /* "LlamaEmbedding", "LlamaBlock", "LlamaHead" */
  uint32_t first_param;   /* its parameters are first_param ... + n_params - 1 */
  uint32_t n_params;
};

struct llama_param {
  const char *name; /* Hugging Face: "model.layers.0.self_attn.q_proj.weight" */
  uint32_t unit;
  uint32_t ndim; /* 1 or 2 */
  int64_t shape[2];
  int64_t numel;
  int decay;         /* 1: weight decay applies (2-D weights) */
  uint32_t tp_hint;  /* LLAMA_TP_ */
  int64_t tp_block;  /* rows or columns that must stay together (head_dim), 1 for none */
  int32_t tie_group; /* -1: not tied. A tied head is a parameter of its own that shares the embedding's storage */
};

/* ---- life cycle ---- */

/* Memory for activations and caches, so that the caller can account for it. alloc returns memory aligned to 64 bytes or null. */
struct llama_memory {
  void *ctx;
  void *(*alloc)(void *ctx, size_t bytes, uint32_t tag);
  void (*free)(void *ctx, void *memory);
  uint32_t activation_tag; /* passed to alloc */
};

/* The values equal ORDO_ACT_ of ordo/strategy.h, which says what passes there. */
enum {
  LLAMA_POINT_COLUMN_INPUT = 1,
  LLAMA_POINT_ROW_OUTPUT = 2,
  LLAMA_POINT_EMBED_OUTPUT = 3,
  LLAMA_POINT_HEAD_INPUT = 4,
  LLAMA_POINT_LOSS_MAX = 5,
  LLAMA_POINT_LOSS_SUM = 6,
  LLAMA_POINT_LOGITS = 8,
  LLAMA_POINT_WEIGHT_GRAD = 9,
  LLAMA_POINT_UNIT_OUTPUT = 10, /* of the head: logits, in as many pieces as fit the room for them */
  LLAMA_N_POINTS = 11
};

/* What passes at a point: data [rows, columns] becomes out [out_rows, out_columns]. Equal pointers: in place. */
struct llama_activation {
  uint32_t point;
  uint32_t unit;
  uint32_t param; /* that the point belongs to */
  int backward;   /* 1: it is the gradient there */
  int64_t rows;
  int64_t columns;
  float *data;
  int64_t out_rows;
  int64_t out_columns;
  float *out;
};

/* Any member may be null. A non-zero return stops the pass and is returned by it. */
struct llama_hooks {
  void *ctx;
  int (*pre_forward)(void *ctx, uint32_t unit);
  int (*post_forward)(void *ctx, uint32_t unit);
  int (*pre_backward)(void *ctx, uint32_t unit);
  /* 1: add to the param's gradient, 0: overwrite it (saves clearing it). Asked once per param and backward, before its first
   * write; null: add. A second contribution to a gradient in the same memory (tied head and embedding) adds without asking. */
  int (*grad_adds)(void *ctx, uint32_t param);
  /* The last contribution of this backward to the param's gradient has been written. Also called for a param whose grad is null. */
  int (*grad_ready)(void *ctx, uint32_t param);
  int (*post_backward)(void *ctx, uint32_t unit);
  /* Called at the points that llama_localize asked for; without it, at the first four, whose shapes then do not change, and at outputs of
   * units. */
  int (*activation)(void *ctx, const struct llama_activation *activation);
  /* The type (ORDO_F32, ORDO_BF16, ORDO_F16) for operations of a class (ORDO_OP_ of ordo/precision.h). Asked at the start of each
   * forward pass, for it and its backward, and when room is reserved; null: fp32. */
  ordo_dtype (*op_dtype)(void *ctx, uint32_t op);
};

struct llama;

/* `memory` null: kernels_memory.h. Copies config and memory. Weights must be bound before use. Null on LLAMA_E_INVALID or no memory,
 * with the reason written to `reason`. Freed with llama_destroy (null is fine). since 0.1 */
struct llama *llama_create(const struct llama_config *config, const struct llama_memory *memory, char *reason, size_t size);
void llama_destroy(struct llama *model);
const struct llama_config *llama_get_config(const struct llama *model);
/* Why the last call on the model failed; never null. since 0.1 */
const char *llama_error(const struct llama *model);

uint32_t llama_n_units(const struct llama *model);
uint32_t llama_n_params(const struct llama *model);
/* Definition order: embedding; per layer q, k, v, o, gate, up, down, input norm, post-attention norm; final norm; lm_head. since 0.1 */
const struct llama_unit *llama_unit_at(const struct llama *model, uint32_t unit);
const struct llama_param *llama_param_at(const struct llama *model, uint32_t param);

/* Where param computes from now on: numel fp32 each; null data: not available now; null grad: no gradient wanted (frozen). Tied
 * params are bound each; normally to the same memory. Kept until the next bind. since 0.1 */
void llama_bind(struct llama *model, uint32_t param, float *data, float *grad);
/* The same for numel elements of ORDO_F32, ORDO_BF16 or ORDO_F16 each; anything else is refused when the unit runs. Tied params have one
 * type. Room for passes must be reserved after a param became 16-bit for the first time (with null data, if that comes later). since 0.1 */
void llama_bind_as(struct llama *model, uint32_t param, ordo_dtype dtype, void *data, ordo_dtype grad_dtype, void *grad);
/* The linear layer of a block with weight `param` [out, in] computes y = x W^T + scale * (x A^T) B^T from now on, with A [rank, in] and
 * B [out, rank]: further parameters of its unit, numbers `a` and `b` (llama_n_params or more) for llama_bind and hooks, fp32. Backward
 * reports them after the layer's own weight. Errors: INVALID (no such layer, or it has an adapter; numbers), NOMEM. since 0.1 */
int llama_adapt(struct llama *model, uint32_t param, int64_t rank, double scale, uint32_t a, uint32_t b);
struct llama_adapter_info {
  int64_t rank;
  double scale;
  uint32_t a;
  uint32_t b;
};
/* 1 and *info if the param has an adapter, else 0. since 0.1 */
int llama_adapter_of(const struct llama *model, uint32_t param, struct llama_adapter_info *info);
struct kernels;
/* Computes with these kernels instead of kernels_default(), for tests and benchmarks. They must outlive the model. since 0.1 */
void llama_set_kernels(struct llama *model, const struct kernels *kernels);
/* Bytes of work space that 16-bit storage and products took beside activations; 0 if all is fp32. since 0.1 */
int64_t llama_work_bytes(const struct llama *model);
/* From now on passes compute nothing and read and write no weight, gradient or activation; `memory` may hand out addresses without
 * memory. Hooks are called as ever: such a pass is over the real shape for hooks, and over no row for kernels. since 0.1 */
void llama_set_dry(struct llama *model);
/* Copied; null removes all hooks. since 0.1 */
void llama_set_hooks(struct llama *model, const struct llama_hooks *hooks);

/* ---- a part of a model ---- */

/* What this process has of a param, and where the activation hook wants to be called for it. */
struct llama_local {
  int64_t shape[2];
  int64_t offset[2];
  uint32_t forward; /* bit 1 << LLAMA_POINT_ */
  uint32_t backward;
};
/* From now on the model computes with a part of each param: heads, columns or vocabulary rows. locals[n_params]. The rows of the residual
 * stream are split into `parts`, of which this process has number `index`; then norms and residuals run on these rows, and the points
 * between them and the linear layers change the number of rows. Any reservation is released. Errors: INVALID (parts that do not fit
 * together: the text names the params). since 0.1 */
int llama_localize(struct llama *model, const struct llama_local *locals, int64_t parts, int64_t index);

/* ---- training and evaluation ---- */

/* What a reservation is for: the `train` of the functions below. */
enum {
  LLAMA_FORWARD_ONLY = 0,
  LLAMA_KEEP_ALL = 1,   /* every layer keeps what its backward needs */
  LLAMA_KEEP_INPUTS = 2 /* activation checkpointing: a layer keeps its input only, and backward computes the rest again */
};

/* Bytes that llama_reserve allocates for activations, exactly; the derivation is in llama_memory.c. since 0.1 */
int64_t llama_activation_bytes(const struct llama_config *config, int64_t batch, int64_t seq, int train, int64_t logits_rows);
/* The same for what this process has of the model, whose logits_rows 0 stands for the default. since 0.1 */
int64_t llama_local_activation_bytes(const struct llama *model, int64_t batch, int64_t seq, int train, int64_t logits_rows);
/* Logit rows to hold so that they take at most 256 MiB: N if that fits. since 0.1 */
int64_t llama_default_logits_rows(const struct llama_config *config, int64_t batch, int64_t seq);
/* Makes room for passes of up to batch x seq tokens (any smaller shape too); replaces an earlier reservation. logits_rows: token rows of
 * logits held at a time; 0: the default. Fewer than N rows means that backward computes the logits again. Errors: INVALID, NOMEM (the
 * earlier reservation is gone). since 0.1 */
int llama_reserve(struct llama *model, int64_t batch, int64_t seq, int train, int64_t logits_rows);

struct llama_forward_args {
  const int32_t *ids;     /* [batch, seq] */
  const int32_t *targets; /* [batch, seq], -100 = not counted; null: no loss */
  int64_t batch;
  int64_t seq;
  int keep;        /* 1: llama_backward will follow (needs targets and a training reservation) */
  float *nll;      /* [batch, seq] loss of each token, 0 where not counted; may be null */
  float *logits;   /* [batch, seq, vocab]; may be null */
  double loss_sum; /* out: sum of the losses of counted targets */
  int64_t count;   /* out: counted targets */
};
/* Each sequence starts at position 0. Ids and targets outside the vocabulary are INVALID (position named). since 0.1 */
int llama_forward(struct llama *model, struct llama_forward_args *args);
/* Adds d(sum of token losses) * loss_factor / d(weights) to the gradients. Units last to first. What LLAMA_KEEP_INPUTS computes again is
 * computed between pre_backward and the first grad_ready of the unit, with the same bits as in forward. pre_forward and post_forward are
 * not called for it; the activation hook is (backward = 0), except for the output of the MLP, which nobody needs. since 0.1 */
int llama_backward(struct llama *model, double loss_factor);

/* ---- generation ---- */

struct llama_cache;
/* Room for `positions` tokens of one sequence, at most max_positions. Null: see llama_error. Freed with llama_cache_destroy. since 0.1 */
struct llama_cache *llama_cache_create(struct llama *model, int64_t positions);
void llama_cache_destroy(struct llama_cache *cache);
/* Tokens held. since 0.1 */
int64_t llama_cache_length(const struct llama_cache *cache);
/* Appends n ids (a prompt, or one token) and writes the logits [vocab] after the last of them; logits may be null.
 * Calls the pre_forward and post_forward hooks. since 0.1 */
int llama_decode(struct llama *model, struct llama_cache *cache, const int32_t *ids, int64_t n, float *logits);

#endif
