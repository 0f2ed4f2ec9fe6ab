/* embed.h - the trainer as an embedder of the host: a Llama, an optimizer and a schedule behind ordo_embedder, and the passes of a
 * training step between the host's events. Only public headers of the host are used.
 *
 * Errors are recorded in the context (ordo_last_error) by every function that returns a status.
 */
#ifndef ORDO_TRAINER_EMBED_H
#define ORDO_TRAINER_EMBED_H

#include "data.h"
#include "leaf_optimizer.h"
#include "weights.h"
#include <ordo/ordo.h>

typedef struct ordo_embed ordo_embed;

/* What the trainer does, for traces and timelines. */
typedef enum ordo_activity {
  ORDO_ACTIVITY_STEP,      /* a whole training step; the others lie inside one, or in an evaluation */
  ORDO_ACTIVITY_FORWARD,   /* of a unit, with the strategy's events before and after it */
  ORDO_ACTIVITY_BACKWARD,  /* of a unit, recomputation included */
  ORDO_ACTIVITY_STEP_END,  /* the events after backward: reductions that are left, norm, clipping, optimizer */
  ORDO_ACTIVITY_OPTIMIZER, /* the update of the leaves, inside STEP_END */
  ORDO_N_ACTIVITIES
} ordo_activity;
/* Where in an activity. OPEN and CLOSE belong to units: between them lies the computation, with the unit's weights there. */
typedef enum ordo_edge {
  ORDO_EDGE_BEGIN, /* before the strategy's pre_ event */
  ORDO_EDGE_OPEN,  /* after it */
  ORDO_EDGE_CLOSE, /* before the strategy's post_ event */
  ORDO_EDGE_END    /* after it */
} ordo_edge;
/* "step", "forward", "backward", "step_end", "optimizer". */
const char *ordo_activity_name(ordo_activity activity);

typedef struct ordo_embed_options {
  ordo_context *context;
  const ordo_plan *plan;
  const ordo_comm_provider *comm; /* null: a single rank */
  ordo_weights *weights;          /* borrowed until destroy */
  ordo_leaf_optimizer_options optimizer;
  struct schedule schedule;
  double max_grad_norm; /* 0: no clipping */
  uint64_t seed;
  uint32_t ordered;
  uint32_t drift_interval;
  int train;         /* 0: forward only */
  int dry;           /* 1: a dry run (session.h): nothing has storage, data is not read; needs a fake `comm` */
  int checkpointing; /* 1: blocks keep their inputs only and are computed again in backward */
  int64_t batch;     /* sequences of a step over all ranks; 0: no passes over batches (generation) */
  int64_t micro_batch;
  int64_t seq_len;
  /* A statistic of a plugin. May be null. */
  void (*metric)(void *ctx, const char *plugin, const char *name, double value);
  void *metric_ctx;
  /* An activity reaches an edge; `unit` is empty where there is none. May be null. */
  void (*activity)(void *ctx, ordo_activity activity, const char *unit, ordo_edge edge);
  void *activity_ctx;
} ordo_embed_options;

/* What a step was, the same on all ranks except seconds and bytes. */
typedef struct ordo_step_outcome {
  ordo_step_result result;
  double loss;        /* mean over the counted tokens of all ranks, before the update */
  double lr;          /* that the update used */
  int stop;           /* some rank asked to stop */
  int64_t comm_bytes; /* payload of this rank's collectives in the step, as ordo_comm_stats counts it */
} ordo_step_outcome;

typedef struct ordo_loss_sum {
  double sum;   /* of the losses of counted tokens */
  double count; /* counted tokens */
  double bytes; /* of text that the counted targets stand for; 0 without a tokenizer */
} ordo_loss_sum;

/* Creates the session, runs the whole plan, makes room for activations. The caller owns *embed. */
ordo_status ordo_embed_create(const ordo_embed_options *options, ordo_embed **embed);
/* Null is fine. */
void ordo_embed_destroy(ordo_embed *embed);
ordo_session *ordo_embed_session(ordo_embed *embed);
const ordo_model *ordo_embed_model(const ordo_embed *embed);
struct llama *ordo_embed_llama(ordo_embed *embed);
ordo_context *ordo_embed_context(ordo_embed *embed);
double ordo_embed_initializer_range(const ordo_embed *embed);
/* This rank's share of a batch. */
const ordo_data_part *ordo_embed_part(const ordo_embed *embed);

/* One training step on samples first .. first+batch-1 (`data` null in a dry run: every target counts). `stop` is this rank's wish to stop.
 * `before_update` (may be null) is called when the leaves hold the true gradients, before clipping. */
typedef ordo_status (*ordo_before_update)(void *ctx, ordo_embed *embed);
ordo_status ordo_embed_step(ordo_embed *embed, const ordo_data *data, int64_t first, int stop, ordo_before_update before_update, void *ctx,
                            ordo_step_outcome *outcome);
/* Losses of sequences 0 .. n-1 of the data with the current weights. Collective. `tokenizer` may be null. */
ordo_status ordo_embed_evaluate(ordo_embed *embed, const ordo_data *data, int64_t n, const ordo_tokenizer *tokenizer, ordo_loss_sum *total);

enum { ORDO_GATHER_WEIGHT = -1, ORDO_GATHER_GRADIENT = -2 }; /* or an optimizer slot >= 0 */
/* full[param->numel] = the whole tensor, on all ranks. Collective. */
ordo_status ordo_embed_gather(ordo_embed *embed, const ordo_param *param, int32_t what, float *full);

/* Copies llama_error into the context. `status` is what the llama function returned; positive ones came from the host and are recorded. */
ordo_status ordo_embed_llama_status(ordo_embed *embed, int status);

#endif
