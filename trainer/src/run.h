/* run.h - what the verbs train, eval and generate share: from the arguments to a plan, and from an error to an exit code.
 *
 * Exit codes: 0 done, 1 failed or stopped by a signal, 2 usage or configuration, 3 the plan has a conflict, 4 a plugin was refused. Under
 * MPI a rank that fails in the middle of a run ends the others with MPI_Abort, here and nowhere else: the libraries only return errors.
 */
#ifndef ORDO_TRAINER_RUN_H
#define ORDO_TRAINER_RUN_H

#include "blas_core.h"
#include "config.h"
#include "embed.h"

#include <signal.h>

typedef struct ordo_run {
  char verb; /* 'T', 'E', 'G', or 'P' for an estimate, which joins no ranks */
  ordo_config *config;
  ordo_context *context;
  ordo_comm_provider *comm;
  ordo_plan *plan;
  ordo_tokenizer *tokenizer;
  ordo_weights *weights;
  struct blas_core_report blas;
  int rank;
  int ranks;
  int under_mpi;
  volatile sig_atomic_t *stop_signal; /* set by a handler of the verb; null if it has none */
  int stopped;                        /* by a signal: the run did what it could, and is not done */
  int reported;                       /* the errors have been printed */
  ordo_problems problems;
} ordo_run;

typedef struct ordo_verb {
  char letter;
  const char *program; /* "ordo train" */
  const char *summary;
  /* Checks and opens what only this verb needs, before the plan. May be null. */
  ordo_status (*prepare)(ordo_run *run, void *state);
  /* Makes what the verb leaves behind, on rank 0, once every rank has read its inputs and the plan is accepted. May be null. */
  ordo_status (*outputs)(ordo_run *run, void *state);
  /* The verb itself. */
  ordo_status (*body)(ordo_run *run, void *state);
} ordo_verb;

/* The whole program. Returns the exit code. */
int ordo_run_main(const ordo_verb *verb, int argc, char **argv, void *state);
/* An error that every rank has: rank 0 prints it now, and nobody prints again. */
void ordo_run_report(ordo_run *run, ordo_status status);
/* Options of an embedder from the configuration: everything but batch sizes and metric. */
void ordo_run_embed_options(const ordo_run *run, ordo_embed_options *options);
/* Data files and their targets ("" for none). */
ordo_status ordo_run_open_data(ordo_run *run, const char *paths, const char *targets, ordo_data *data);
/* The validation data: data.validation, or the last part of `data` (which becomes shorter) as data.validation_fraction says. *has is 0 if
 * there is none. */
ordo_status ordo_run_open_validation(ordo_run *run, ordo_data *data, ordo_data *validation, int *has);
/* A number of positions that a person asked for must not be more than the model has. */
ordo_status ordo_run_check_positions(ordo_run *run, ordo_key key);
/* What the plan resolved the precision to, aliases and default level replaced: "apex_amp:O4"; "none". To be freed with g_free. */
char *ordo_run_precision(const ordo_run *run);
/* Total of the problems of the verb go to the context too; prints a line to stdout on rank 0 unless log.progress is none. */
void ordo_run_say(const ordo_run *run, const char *format, ...) G_GNUC_PRINTF(2, 3);

#endif
