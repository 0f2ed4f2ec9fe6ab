/* blas_core.h - the OpenBLAS kernel in use: chosen before libopenblas loads, tested, and measured.
 *
 * A program calls blas_core_start first thing in main. It re-executes itself once with OPENBLAS_CORETYPE set if that is not
 * set yet (the variable is read when the library loads), then tests the kernel with small products and moves on to the next
 * core type if they are wrong: old builds are known to compute wrong results on some processors.
 */
#ifndef BLAS_CORE_H
#define BLAS_CORE_H

#include <stddef.h>

struct blas_core_report {
  const char *name;   /* core in use, as OpenBLAS names it */
  const char *wanted; /* OPENBLAS_CORETYPE, "" if unset */
  int fallback;       /* 1: a generic or pre-AVX2 kernel on a processor that has AVX2; do not trust speeds */
  double self_test;   /* worst error of the self-test in units of its tolerance: above 1 is wrong */
};

/* Chooses, re-executes if needed (argv as main got it), sets one BLAS thread, self-tests. Returns 0 with *report filled, -1 if no core
 * type passes its test (report->self_test > 1) with the reason in `reason`. [main] since 0.1 */
int blas_core_start(char **argv, struct blas_core_report *report, char *reason, size_t size);
/* Worst error of sgemm NN, NT, TN over odd shapes against double, divided by the tolerance derived in blas_core.c. [main] since 0.1 */
double blas_core_self_test(void);
/* Largest sgemm rate seen in `seconds` of 768-cubed products, in FLOP per second: the denominator of model FLOP utilisation. [main] since
 * 0.1 */
double blas_core_peak(double seconds);

#endif
