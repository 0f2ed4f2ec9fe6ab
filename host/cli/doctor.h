/* doctor.h - one finding of `ordo doctor`, and the checks. */
#ifndef ORDO_CLI_DOCTOR_H
#define ORDO_CLI_DOCTOR_H

#include "cli.h"

enum { DOCTOR_GOOD = 0, DOCTOR_WARNING = 1, DOCTOR_BROKEN = 2 };

typedef struct doctor_check {
  int verdict;
  const char *topic;
  char *text;
} doctor_check;

void doctor_add(GPtrArray *checks, int verdict, const char *topic, const char *format, ...) G_GNUC_PRINTF(4, 5);
void doctor_check_free(gpointer data);

/* Privilege, cores, functions that `program` (null: this one) offers to plugins. */
void doctor_process(GPtrArray *checks, const char *program);
/* Library, mpirun, thread level. */
void doctor_mpi(GPtrArray *checks);
void doctor_shared_memory(GPtrArray *checks);
/* Variables that change what Ordo and the libraries below it do. Before doctor_blas, which sets some. */
void doctor_environment(GPtrArray *checks);
/* Programs of verbs. */
void doctor_programs(GPtrArray *checks);
/* Core type chosen, and the numerical self-test of the kernels. */
void doctor_blas(GPtrArray *checks);

#endif
