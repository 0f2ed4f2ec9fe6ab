/* rig.h - a small model trained by a real session on real ranks, beside a reference that knows what every weight must be.
 *
 * Five units: embedding, three blocks, head; the head's matrix is tied to the embedding. Gradients are small integers and the weight of a
 * step is a power of two, so sums are exact and every comparison is for equality, at any number of ranks and in any order of summation. A
 * strategy of a model axis may cut parameters as ../composition/slice.c does. The
 * "model" reads its parameters where the strategy bound them, in forward and in backward, and compares each element.
 */
#ifndef TEST_FSDP1_RIG_H
#define TEST_FSDP1_RIG_H

#include <ordo/mpi.h>
#include <ordo/ordo.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { RIG_UNITS = 5, RIG_PARAMS = 9, RIG_MAX_RANKS = 64, RIG_HEAD = 8 };

typedef struct rig_options {
  const char *strategy;
  uint32_t flags; /* ORDO_PLAN_ */
  uint32_t ordered;
  double clip;
  uint32_t frozen; /* bit per param */
  int untied;
  int no_decay;          /* no parameter asks for weight decay */
  int wide_param;        /* index of a param described as f64, 0: none */
  int different_sources; /* ranks read different weights */
  int two_models;        /* a frozen second model of the same shape */
  uint32_t leave_out;    /* the optimizer leaves this leaf out, counted from 1 */
  ordo_dtype rounded;    /* parameters are gathered in this type, 0: f32 */
  int rebinds;           /* the optimizer can follow to new leaves */
  int eager;             /* and has state from the start, a number per element, as Adagrad does */
  int fail_rebind;       /* rebind refuses, having changed nothing */
  int fail_bind;         /* the embedder refuses bind number n, counted from 1 */
  /* Another optimizer than the rig's; its ctx is the rig. Values are then not compared, norms are. */
  ordo_status (*optimizer)(void *ctx, const ordo_model *model, ordo_optimizer *optimizer);
} rig_options;

typedef struct rig_step_spec {
  int n_micro;
  uint32_t skip_units;                 /* bit per unit: forward and backward do not run, on any rank */
  uint32_t skip_params[RIG_MAX_RANKS]; /* per part of the batch, bit per param: no gradient in any micro-batch */
  int backward_only_in;                /* 0: in all micro-batches; n: units in skip_late run in micro-batch n-1 only */
  uint32_t skip_late;
  uint32_t skip_in[4]; /* per micro-batch, bit per param: no gradient in it on any rank */
  double factor;       /* gradients of the units in `factor_units` (bits; 0: all) are multiplied by it; 0: 1 */
  uint32_t factor_units;
  void (*before_micro)(void *ctx, int micro); /* before each micro-batch and, with n_micro, before the end of the step; may be null */
  void (*before_unit)(void *ctx, uint32_t unit, int backward); /* before a unit is opened; may be null */
  void (*in_unit)(void *ctx, uint32_t unit, int backward);     /* called while a unit is open; may be null */
  void *ctx;
} rig_step_spec;

typedef struct rig {
  rig_options options;
  ordo_plan *plan;
  ordo_session *session;
  ordo_embedder embedder;
  const ordo_model *model;
  int32_t part, parts; /* of the batch: ranks of a model axis have the same, and the same gradients */
  ordo_group groups[2];
  ordo_leaf *leaves[2][RIG_PARAMS];
  int optimizers_made, rebound, binds;
  ordo_leaf *first_leaves[2][RIG_PARAMS]; /* of the optimizer when it was made */
  float *state[2][RIG_PARAMS];            /* eager: of leaves[g][l] */
  int restored;                           /* the optimizer was freed with the leaves and the state that it was made with */
  int64_t elements_at_creation;           /* of the leaves that the optimizer was made of */
  int step;
  float *reference[RIG_PARAMS];
  double norm; /* of the last step, by the reference */
} rig;

extern ordo_context *rig_context;
extern ordo_comm_provider *rig_comm;
extern int rig_rank, rig_ranks;
extern int rig_tiny;         /* 1: no dimension is above 3 */
extern const char *rig_path; /* of plugins */
extern int64_t rig_scale;    /* rows of every parameter are multiplied by it; 1 */

/* Starts and ends MPI, the context and the provider; argv[1] is the plugin path. */
void rig_start(int argc, char **argv);
int rig_stop(int failed);

int64_t rig_numel(int param);
/* The element of the parameter behind element k of a chunk. */
int64_t rig_element(const ordo_chunk *chunk, int64_t k);
/* Element of a parameter at the start. */
float rig_initial(int untied, int param, int64_t i);
/* Plan, session, setup. Status of the first that fails; the rig must be ended in any case. */
ordo_status rig_begin(rig *r, const rig_options *options);
/* Plan and session only. */
ordo_status rig_create(rig *r, const rig_options *options);
void rig_end(rig *r);
/* A whole step with all comparisons, and the reference moved on. */
ordo_status rig_train(rig *r, const rig_step_spec *spec);
/* Forward only, with all comparisons. */
void rig_evaluate(rig *r);
/* Compares leaves, element by element through their chunks, and whole parameters in a gather-full scope. */
void rig_compare(rig *r);
/* One setting of the running job (ordo/control.h). */
ordo_status rig_control(rig *r, uint32_t operation, uint32_t unit, int64_t value);
/* Bytes and calls of a kind so far, on the axis that is called `axis`. */
uint64_t rig_calls(const rig *r, const char *axis, uint32_t kind, uint64_t *bytes);
/* Fails the test with all records if status is not ORDO_OK. */
void rig_ok(ordo_status status, const char *what);
/* Asserts a status and that some record contains each of the words (joined with '|'). */
void rig_expect(ordo_status got, ordo_status wanted, const char *words);

#endif
