/* estimate.h - what a dry run of one rank came to, and how it is shown. */
#ifndef ORDO_TRAINER_ESTIMATE_H
#define ORDO_TRAINER_ESTIMATE_H

#include "embed.h"

enum { ESTIMATE_MOST_LINES = ORDO_MAX_AXES + 2 }; /* the axes, the data axes together, and the whole mesh */

/* Collectives of one communicator. */
typedef struct ordo_estimate_comm {
  char *name; /* of the axis, "data" or "world" */
  ordo_comm_stats setup, first, last;
} ordo_estimate_comm;

/* Parameters that look alike on this rank: "model.layers.*.mlp.up_proj.weight". */
typedef struct ordo_estimate_shape {
  char *name;
  char *whole; /* "[28672, 8192]" */
  char *here;  /* what this rank's optimizer works on: "[28, 8192]", "229376 elements", "nothing" */
  int64_t count;
} ordo_estimate_shape;

typedef struct ordo_estimate_rank {
  int32_t rank;
  char *place; /* "tp=1/2 fsdp2=0/4" */
  ordo_data_part part;
  int64_t now[ORDO_N_MEM_TAGS + 1], peak[ORDO_N_MEM_TAGS + 1]; /* bytes, the sum last */
  ordo_estimate_comm comm[ESTIMATE_MOST_LINES];
  int n_comm;
  GPtrArray *shapes; /* ordo_estimate_shape */
} ordo_estimate_rank;

typedef struct ordo_estimate_job {
  const ordo_plan *plan;
  const struct llama_config *model;
  const char *origin;
  int64_t parameters;
  int64_t batch, seq_len, steps;
  int ranks;
} ordo_estimate_job;

/* Runs `steps` training steps of an embedder and reads off what it counted: `data` of a real one, null for a dry one. */
ordo_status ordo_estimate_read(ordo_embed *embed, const ordo_data *data, int64_t steps, ordo_estimate_rank *result);
/* Runs `steps` dry training steps of the rank. Errors are recorded in the context of `options`. */
ordo_status ordo_estimate_run(const ordo_embed_options *options, int32_t rank, int32_t ranks, int64_t steps, ordo_estimate_rank *result);
void ordo_estimate_clear(ordo_estimate_rank *rank);

/* estimate_report.c */
void ordo_estimate_print(const ordo_estimate_job *job, const GPtrArray *ranks);
/* Stable keys: see docs/strategies.md. */
void ordo_estimate_print_json(const ordo_estimate_job *job, const GPtrArray *ranks);

#endif
