/* attention.c - see attention.h. Everything per head is a small matrix product on strided slices of the token-major arrays;
 * nothing is transposed or copied. */
#include "attention.h"

#include <math.h>

#include "kernels_gemm.h"
#include "kernels_low.h"

/* Rows of one block and the keys that its last row sees. */
struct block {
  int64_t row;
  int64_t rows;
  int64_t keys;
};

static struct block block_at(const struct attention *shape, int64_t index)
{
  struct block block = {.row = index * ATTENTION_ROWS};
  int64_t left = shape->queries - block.row;
  block.rows = left < ATTENTION_ROWS ? left : ATTENTION_ROWS;
  block.keys = shape->first + block.row + block.rows;
  return block;
}

static int64_t n_blocks(const struct attention *shape)
{
  return (shape->queries + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
}

static float score_scale(const struct attention *shape)
{
  return (float)(1.0 / sqrt((double)shape->head_dim));
}

/* Kernels that round as they go, if nothing but the matmul type is rounded to here. */
static const struct kernels_rounded *rounded(const struct attention *shape)
{
  int one = shape->softmax == ORDO_F32 || shape->softmax == shape->matmul;
  return one ? kernels_rounded(shape->kernels, shape->matmul) : NULL;
}

/* Probabilities [rows, keys] as an operand. */
static void round_probabilities(const struct attention *shape, const struct block *b, float *p)
{
  kernels_round(shape->kernels, shape->softmax, (size_t)(b->rows * b->keys), p);
  kernels_round(shape->kernels, shape->matmul, (size_t)(b->rows * b->keys), p);
}

/* A block's rows of one head in a token-major array. */
static void round_rows(const struct attention *shape, const struct block *b, float *x)
{
  const struct kernels_rounded *kernels = kernels_rounded(shape->kernels, shape->matmul);
  if (kernels != NULL)
    kernels->round_rows((size_t)b->rows, (size_t)shape->head_dim, (size_t)(shape->heads * shape->head_dim), x);
}

/* Scores -> probabilities as an operand. */
static void probabilities(const struct attention *shape, const struct block *b, float *scores, float *lse)
{
  const struct kernels_rounded *kernels = rounded(shape);
  size_t rows = (size_t)b->rows, keys = (size_t)b->keys, first = (size_t)(shape->first + b->row);
  if (kernels != NULL) {
    kernels->softmax_causal(rows, keys, keys, first, score_scale(shape), scores, lse);
    return;
  }
  kernels_round(shape->kernels, shape->matmul, rows * keys, scores);
  shape->kernels->softmax_causal(rows, keys, keys, first, score_scale(shape), scores, lse);
  round_probabilities(shape, b, scores);
}

/* Scores -> probabilities that are not rounded yet. */
static void probabilities_again(const struct attention *shape, const struct block *b, float *scores, const float *lse)
{
  const struct kernels_rounded *kernels = kernels_rounded(shape->kernels, shape->matmul);
  size_t rows = (size_t)b->rows, keys = (size_t)b->keys;
  if (kernels != NULL)
    kernels->softmax_again(rows, keys, keys, (size_t)b->row, score_scale(shape), scores, lse);
  else
    shape->kernels->softmax_again(rows, keys, keys, (size_t)b->row, score_scale(shape), scores, lse);
}

/* dp -> ds, of the probabilities before they are rounded; ds and p become operands. */
static void scores_gradient(const struct attention *shape, const struct block *b, float *p, const float *delta, float *dp)
{
  const struct kernels_rounded *kernels = rounded(shape);
  size_t rows = (size_t)b->rows, keys = (size_t)b->keys;
  if (kernels != NULL) {
    kernels->softmax_backward(rows, keys, keys, score_scale(shape), p, delta, dp);
    return;
  }
  kernels_round(shape->kernels, shape->matmul, rows * keys, dp);
  shape->kernels->softmax_backward(rows, keys, keys, score_scale(shape), p, delta, dp);
  kernels_round(shape->kernels, shape->matmul, rows * keys, dp);
  round_probabilities(shape, b, p);
}

int64_t attention_workspace(int64_t keys, int backward)
{
  return backward ? 2 * ATTENTION_ROWS * keys + ATTENTION_ROWS : ATTENTION_ROWS * keys;
}

void attention_forward(const struct attention *shape, const float *q, const float *k, const float *v, float *out, float *lse, float *work)
{
  int64_t hd = shape->head_dim;
  int64_t q_stride = shape->heads * hd;
  int64_t kv_stride = shape->kv_heads * hd;
  int64_t group = shape->heads / shape->kv_heads;
  for (int64_t head = 0; head < shape->heads; head++) {
    const float *kh = k + head / group * hd;
    const float *vh = v + head / group * hd;
    for (int64_t i = 0; i < n_blocks(shape); i++) {
      struct block b = block_at(shape, i);
      int64_t at = b.row * q_stride + head * hd;
      gemm_nt(b.rows, b.keys, hd, q + at, q_stride, kh, kv_stride, 0.0f, work, b.keys);
      probabilities(shape, &b, work, lse + head * shape->queries + b.row);
      gemm_nn(b.rows, hd, b.keys, work, b.keys, vh, kv_stride, 0.0f, out + at, q_stride);
      round_rows(shape, &b, out + at);
    }
  }
}

/* One block of one head. `beta` 0: the first contribution to dk and dv of this key/value head. */
static void block_backward(const struct attention *shape, struct block b, int64_t head, const float *q, const float *kh, const float *vh,
                           const float *out, const float *lse, const float *dout, float *dq, float *dkh, float *dvh, float beta,
                           float *work)
{
  int64_t hd = shape->head_dim;
  int64_t q_stride = shape->heads * hd;
  int64_t kv_stride = shape->kv_heads * hd;
  int64_t at = b.row * q_stride + head * hd;
  float *p = work;
  float *ds = p + b.rows * b.keys;
  float *delta = ds + b.rows * b.keys;
  gemm_nt(b.rows, b.keys, hd, q + at, q_stride, kh, kv_stride, 0.0f, p, b.keys);
  probabilities_again(shape, &b, p, lse + head * shape->queries + b.row);
  gemm_nt(b.rows, b.keys, hd, dout + at, q_stride, vh, kv_stride, 0.0f, ds, b.keys);
  shape->kernels->row_dot((size_t)b.rows, (size_t)hd, dout + at, (size_t)q_stride, out + at, (size_t)q_stride, delta);
  scores_gradient(shape, &b, p, delta, ds);
  gemm_tn(b.keys, hd, b.rows, p, b.keys, dout + at, q_stride, beta, dvh, kv_stride);
  gemm_nn(b.rows, hd, b.keys, ds, b.keys, kh, kv_stride, 0.0f, dq + at, q_stride);
  gemm_tn(b.keys, hd, b.rows, ds, b.keys, q + at, q_stride, beta, dkh, kv_stride);
}

void attention_backward(const struct attention *shape, const float *q, const float *k, const float *v, const float *out, const float *lse,
                        const float *dout, float *dq, float *dk, float *dv, float *work)
{
  int64_t group = shape->heads / shape->kv_heads;
  for (int64_t head = 0; head < shape->heads; head++) {
    int64_t kv = head / group * shape->head_dim;
    /* Last block first: it reaches every key, so it can overwrite dk and dv and no pass clears them. */
    for (int64_t i = n_blocks(shape) - 1; i >= 0; i--) {
      float beta = head % group == 0 && i == n_blocks(shape) - 1 ? 0.0f : 1.0f;
      block_backward(shape, block_at(shape, i), head, q, k + kv, v + kv, out, lse, dout, dq, dk + kv, dv + kv, beta, work);
    }
  }
}
