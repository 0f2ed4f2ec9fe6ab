/* tp.h - what the files of the strategy `tp` share: the split of every parameter, and the instance. */
#ifndef TP_H
#define TP_H

#include <ordo/job.h>
#include <ordo/strategy.h>

/* What this rank has of a parameter. */
typedef struct tp_split {
  uint32_t kind;         /* ORDO_TP_: after hints and plan file */
  uint32_t dim;          /* that is split; without a meaning for ORDO_TP_REPLICATE */
  int64_t begin, end;    /* of that dimension */
  int32_t copies;        /* consecutive ranks that have the same part */
  int32_t in_pair;       /* it is one of the matrices between a column input and a row output */
  const ordo_comm *comm; /* of the ranks that share it, where a gradient must be completed; else null */
} tp_split;

typedef struct tp {
  const ordo_job *job;
  int32_t rank, size;
  int sequence;     /* option sequence_parallel */
  tp_split *splits; /* [model->n_params] as of the last layout: validate, then strategy.partition */
  uint32_t *kinds;  /* the same: ORDO_TP_, hints overridden by the plan file */
  void **storage;   /* slices made by strategy.partition */
  uint32_t n_storage;
} tp;

/* planfile.c: overrides kinds from the file of option `plan`. Errors: IO, INVALID (line named). */
ordo_status tp_plan_read(const tp *self, const char *path, uint32_t *kinds);
/* The name of a kind as plan files write it. */
const char *tp_kind_name(uint32_t kind);

/* layout.c: decides kinds and splits from the description alone, the same on every rank. Errors: INVALID (param and sizes named). */
ordo_status tp_layout(tp *self);

/* slices.c: strategy.partition and its undo. */
ordo_status tp_partition(tp *self);
void tp_release(tp *self);

/* activations.c */
int32_t tp_wants(const tp *self, uint32_t point, const ordo_param *param, int32_t backward);
ordo_status tp_activation(const tp *self, const ordo_activation *a);

#endif
