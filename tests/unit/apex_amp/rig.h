/* rig.h - a small model that computes with 16-bit parameters, an optimizer, and a session with the real apex_amp.
 *
 * Three units: embedding [33, 5], block with a matrix [7, 13] and a norm [13], head tied to the embedding. The loss of a token pulls every
 * weight towards a target, so the gradient of a micro-batch is tokens * (weight - target), computed in fp32 from the stored weight,
 * times the loss factor, and rounded to the gradient's type. Rank r counts r + 1 tokens a micro-batch.
 */
#ifndef APEX_AMP_TEST_RIG_H
#define APEX_AMP_TEST_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <ordo/mpi.h>
#include <ordo/ordo.h>

enum { RIG_UNITS = 3, RIG_PARAMS = 4, RIG_NORM = 2, RIG_MOST = 165 };

typedef struct rig_options {
  const char *strategy, *precision; /* null: none */
  uint32_t ordered;
  double max_norm, lr;
  int n_micro; /* 0: 1 */
  uint32_t plan_flags;
  int no_convert;        /* the embedder computes fp32 only */
  int only_fp32_updates; /* the optimizer does not say ORDO_OPTIMIZER_16_BIT */
  ordo_dtype described;  /* of every parameter; 0: fp32 */
  int with_data;         /* parameters come with storage of the embedder */
  ordo_status (*restore)(void *rig, ordo_step step);
} rig_options;

typedef struct rig {
  rig_options options;
  ordo_plan *plan;
  ordo_session *session;
  ordo_embedder embedder;
  ordo_group group;
  ordo_leaf *leaves[RIG_PARAMS];
  float storage[RIG_PARAMS][RIG_MOST];
  int created, converts, scheduler_steps;
  int64_t last_update;    /* args->step of the optimizer */
  int64_t last_schedule;  /* step that the scheduler was told */
  int bad_rank, bad_loss; /* whose gradient is infinite in this step (-1: nobody's), and of which loss (-1: any) */
  float bad_value;
  int still; /* gradients are zero but for bad_value */
  int running_loss;
  uint32_t silent; /* bit per param: neither written nor reported in micro-batch silent_in */
  int silent_in;
  int toggles_sync;  /* gradient_sync is switched off before each micro-batch and on before the last, as programs for FSDP2 do */
  uint32_t n_losses; /* 0: losses are not selected; else micro-batch m belongs to loss m % n_losses */
  double last_loss;  /* sum of 0.5 * (weight - target)^2 over everything, before the last step */
} rig;

extern ordo_context *rig_context;
extern ordo_comm_provider *rig_provider;
extern int rig_me, rig_ranks;
extern char rig_log[4096]; /* warnings of plugins and host, one a line */

int64_t rig_numel(int param);
float rig_initial(int param, int64_t i);
float rig_target(int64_t step, int micro, int rank, int param, int64_t i);

/* Plans, creates and sets up; the first failure is returned, and the rig is to be closed all the same. */
ordo_status rig_open(rig *r, const rig_options *options);
/* rig_open, asserted good. */
void rig_start(rig *r, const rig_options *options);
void rig_close(rig *r);
ordo_status rig_step(rig *r, ordo_step_result *result);
/* gradient_sync of all units (ordo/control.h). */
ordo_status rig_set_sync(rig *r, int64_t value);
/* This rank has weight i of the param (0 to 2: the head is tied). */
int rig_holds(const rig *r, int param, int64_t i);
/* Weight i of a param: the master's if it has one. 0 where another rank has it. */
float rig_weight(const rig *r, int param, int64_t i);
/* What the model computes with. */
float rig_stored(const rig *r, int param, int64_t i);
void rig_expect_ok(ordo_status status, const char *what);
/* The text of all records contains `word`. */
void rig_expect_error(const char *word);
float rig_round(ordo_dtype dtype, float value);

/* main: argument 1 is the plugin path, 2 the directory of goldens (may be missing). */
int rig_main(int argc, char **argv, const struct CMUnitTest *tests, size_t n);
extern const char *rig_goldens;

#endif
