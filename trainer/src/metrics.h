/* metrics.h - what a run tells while it runs: metrics.jsonl for programs, lines for people.
 *
 * metrics.jsonl has one object a step with stable keys; numbers have 9 significant digits, what is not finite is null. On a terminal one
 * line is rewritten; elsewhere each step prints a line of its own. Rank 0 of the mesh does all of it.
 */
#ifndef ORDO_TRAINER_METRICS_H
#define ORDO_TRAINER_METRICS_H

#include "embed.h"

typedef struct ordo_metrics {
  FILE *file;       /* metrics.jsonl, or null */
  char *path;       /* its path */
  int bar;          /* one changing line */
  int quiet;        /* nothing on the terminal */
  int64_t interval; /* steps between lines */
  int64_t steps;    /* of the run */
  double peak;      /* GEMM FLOP per second of one rank, 0 if not measured */
  double flops_per_token;
  double tokens_per_step; /* computed over all ranks, counted in the loss or not */
  int32_t ranks;
  GHashTable *plugin; /* "ddp.overlap" -> double*, since the last step */
  double average;     /* tokens per second, exponential, bias-corrected */
  double average_weight;
  double seconds; /* of all steps */
  double comm_seconds;
  double tokens;
  int64_t skipped; /* steps without an update */
  double last_loss;
} ordo_metrics;

/* `path` null: no file. `progress` is a choice of log.progress. Errors: IO. */
ordo_status ordo_metrics_open(ordo_metrics *metrics, const char *path, const char *progress, ordo_problems *problems);
/* Records a statistic of a plugin for the line of the running step; has the signature of ordo_embed_options.metric. */
void ordo_metrics_plugin(void *metrics, const char *plugin, const char *name, double value);
/* Writes the step's object and, when due, its line. Errors: IO. */
ordo_status ordo_metrics_step(ordo_metrics *metrics, const ordo_step_outcome *outcome, double seconds, ordo_problems *problems);
/* Ends a changing line, so that other text can follow. */
void ordo_metrics_end_line(const ordo_metrics *metrics);
void ordo_metrics_close(ordo_metrics *metrics);
/* The number as people are shown it: a NaN without the sign that computations leave on it. */
double ordo_metrics_shown(double value);
/* Appends `"key":number` with a comma before it unless it is first in the object; null if not finite. */
void ordo_metrics_number(GString *object, const char *key, double value);
/* Floating-point operations of a training step per token: 6 per matrix element and 12 * layers * heads * head_dim * T for
 * attention (the count of the PaLM paper, appendix B, without the lookup of the embedding). */
double ordo_metrics_flops_per_token(const struct llama_config *config, int64_t seq_len);
/* Resident memory of this process in bytes, 0 if unknown. */
int64_t ordo_metrics_resident(void);

#endif
