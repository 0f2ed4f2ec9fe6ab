/* parity.h - N ranks against one rank on the same global batch: what the table and the runs share. */
#ifndef PARITY_H
#define PARITY_H

#include "embed.h"

enum { PARITY_STEPS = 10, PARITY_TEXT = 12 };

/* What is compared; CONTRIBUTING.md says how far each may be off. EXACT: counts, generated tokens, bits of ordered runs. */
enum { PARITY_LOSS, PARITY_NORM, PARITY_UPDATE, PARITY_WEIGHT, PARITY_EVALUATION, PARITY_EXACT, PARITY_N_GATES };

/* Deviations in units of the gate, the worst of each kind, and the name of the worst of all. */
typedef struct parity_spread {
  double units[PARITY_N_GATES];
  double worst;
  const char *what;
} parity_spread;

/* How targets are masked. */
enum { PARITY_ALL = 0, PARITY_UNEVEN = 1, PARITY_EMPTY_RANK = 2 };

typedef struct parity_case {
  const char *name;
  int is_sgd;
  double lr;
  double clip;
  int accumulate;        /* 4 micro-batches a step */
  int mask;              /* PARITY_ ... */
  int different_weights; /* every rank but 0 starts from other weights; weights.sync must cure it */
  int eval_only;         /* a plan without an optimizer: no steps, evaluation and generation only */
  int untied;            /* a head of its own */
  int ordered;           /* bit-equal when it is run again, and bit-equal to ddp */
  int steps;             /* fewer than PARITY_STEPS, or 0 */
  int delays;            /* every collective and optimizer update of the first run waits for up to 100 ms, each rank as it likes */
  int no_decay;          /* AdamW without weight decay: flat leaves hold parameters of one kind only */
  int checkpointing;     /* blocks are computed again in backward; the run on one rank keeps its activations */
} parity_case;

/* What a model and its data are; the same on all ranks. */
typedef struct parity_source {
  const char *name;
  ordo_weights *weights;
  ordo_tokens *tokens;
  int64_t seq_len;
} parity_source;

/* What a run leaves, on every rank. */
typedef struct parity_trace {
  double loss[PARITY_STEPS];
  double norm[PARITY_STEPS];
  double tokens[PARITY_STEPS];
  float *weights; /* all parameters, one after the other */
  int64_t n_weights;
  double evaluated;          /* loss of 3 sequences after training: at more than 3 ranks some have none */
  int32_t text[PARITY_TEXT]; /* what the trained model continues, greedily */
} parity_trace;

/* Runs the case on the provider's ranks (null: one rank). `data_ranks`: the rank count that batch and mask are made for. `skipped` (may be
 * null) is set when the plan cannot express the case. Errors are in the context. */
ordo_status parity_run(ordo_context *context, const ordo_comm_provider *comm, const char *strategy, const parity_case *c,
                       const parity_source *source, int data_ranks, parity_trace *trace, const char **skipped);
void parity_trace_clear(parity_trace *trace);
/* Deviation of `many` from `one`. */
parity_spread parity_compare(const parity_case *c, const parity_source *source, const parity_trace *one, const parity_trace *many);
/* Adds a deviation: `value` where `gate` is allowed. NaN is infinitely far off. */
void parity_spread_add(parity_spread *spread, int kind, double value, double gate, const char *what);
double parity_gate(const parity_case *c, int kind);
const char *parity_gate_name(int kind);

#endif
