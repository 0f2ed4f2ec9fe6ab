/* policy.h - opt levels and their overrides: what is stored, computed, kept apart and scaled. Arithmetic only.
 *
 * Levels (NVIDIA apex, apex/amp/frontend.py; O4 and O5 as in AMD's fork)
 *        stored      matmul   norms   masters   loss scale
 *   O0   fp32        fp32     fp32    no        1
 *   O1   fp32        fp16     fp32    no        dynamic
 *   O2   fp16        fp16     fp32    fp32      dynamic
 *   O3   fp16        fp16     fp16    no        1
 *   O4   fp32        bf16     fp32    no        1
 *   O5   bf16        bf16     fp32    fp32      1
 * An override replaces one property of the level; one that repeats the level's own value is no mistake. A set that contradicts itself, an
 * override that nothing reads, one that takes from a level what its name says, and a scale that cannot work are refused with the reason:
 * apex warns about some of them and keeps silent about others.
 */
#ifndef APEX_AMP_POLICY_H
#define APEX_AMP_POLICY_H

#include "scaler.h"

#include <ordo/precision.h>

enum { AMP_UNSET = -1 };

/* Options as given. AMP_UNSET, null and NaN mean that an option was not. */
typedef struct amp_request {
  int level;              /* 0 .. 5 */
  int64_t cast;           /* an ordo_dtype */
  int64_t keep_norm;      /* 0, 1 */
  int64_t masters;        /* 0, 1 */
  const char *loss_scale; /* "dynamic" or a number */
  double init_scale, min_scale, max_scale, growth, backoff;
  int64_t window;
  int64_t patience;
  int64_t torch_scaler; /* 0: apex, 1: torch */
  int64_t n_losses;
  int64_t delay_unscale; /* 0, 1 */
} amp_request;

typedef struct amp_policy {
  int level;
  ordo_dtype stored;  /* of parameters that are cast; ORDO_F32: none is */
  ordo_dtype compute; /* of matmuls */
  int patches;        /* O1 and O4: operations cast, weights stay */
  int keep_norm;      /* norms stay fp32 */
  int masters;
  int delay_unscale; /* gradients of micro-batches add up in the stored type */
  uint32_t n_losses;
  amp_scaler scaler; /* of every loss, at its start */
} amp_policy;

/* What is wrong with a request, and what to do. */
typedef struct amp_problem {
  char text[320];
  const char *hint;
} amp_problem;

/* 0, or -1 with *problem filled. */
int amp_policy_resolve(const amp_request *request, amp_policy *policy, amp_problem *problem);
/* The type in which an operation of class `op` (ORDO_OP_) runs. */
ordo_dtype amp_policy_op_dtype(const amp_policy *policy, uint32_t op);
/* The scaler does something, or masters exist: the optimizer is wrapped. The manifest says the same. */
int amp_policy_wraps(const amp_policy *policy);

#endif
