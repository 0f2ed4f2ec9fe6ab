/* mpi_testing.h - cmocka on several ranks: rank 0 prints, another rank prints only when it failed. */
#ifndef ORDO_TEST_COMM_MPI_H
#define ORDO_TEST_COMM_MPI_H

#include "testing.h"
#include <ordo/mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline int run_on_ranks(int rank, int (*run)(void))
{
  char buffer[4096];
  FILE *kept = NULL;
  int original = dup(2);
  size_t n;
  if (rank > 0 && (kept = tmpfile()) != NULL) {
    dup2(fileno(kept), 1);
    dup2(fileno(kept), 2);
  }
  int failed = run();
  fflush(stdout);
  fflush(stderr);
  if (failed && kept) {
    rewind(kept);
    while ((n = fread(buffer, 1, sizeof buffer, kept)) > 0)
      if (write(original, buffer, n) < 0)
        break;
  }
  if (kept) {
    dup2(original, 1);
    dup2(original, 2);
    fclose(kept);
  }
  close(original);
  return failed;
}

#endif
