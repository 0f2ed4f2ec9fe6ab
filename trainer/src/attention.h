/* attention.h - causal attention with grouped key/value heads, forward and backward, in blocks of query rows.
 *
 * Scores exist for one head and ATTENTION_ROWS query rows at a time; a block of rows ends at its last visible key, so most of the
 * masked half is never computed. Forward keeps one number per row and head (the log of the softmax's sum); backward computes the
 * block's probabilities again from it. Source: Dao et al., "FlashAttention", sections 3.1 and B.2, blocked by rows only.
 */
#ifndef ATTENTION_H
#define ATTENTION_H

#include <ordo/dtype.h>
#include <stdint.h>

#include "kernels.h"

enum { ATTENTION_ROWS = 64 };

struct attention {
  const struct kernels *kernels;
  int64_t heads;
  int64_t kv_heads; /* divides heads; query head j uses key/value head j / (heads / kv_heads) */
  int64_t head_dim;
  int64_t queries; /* rows of q: tokens first ... first + queries - 1 of the sequence */
  int64_t first;   /* keys 0 ... first + r are visible to query row r */
  /* What operands and results of products, and probabilities, are rounded to. q, k, v and dout come rounded; dq, dk and dv, the last two
   * sums of several products, are left to the caller. */
  ordo_dtype matmul;
  ordo_dtype softmax;
};

/* Floats of workspace for sequences of up to `keys` keys. */
int64_t attention_workspace(int64_t keys, int backward);

/* One sequence. q, out [queries, heads * head_dim]; k, v [first + queries, kv_heads * head_dim]; lse [heads, queries]. */
void attention_forward(const struct attention *shape, const float *q, const float *k, const float *v, float *out, float *lse, float *work);

/* Needs first = 0. dq, dk, dv are overwritten, shaped as q, k, v. */
void attention_backward(const struct attention *shape, const float *q, const float *k, const float *v, const float *out, const float *lse,
                        const float *dout, float *dq, float *dk, float *dv, float *work);

#endif
