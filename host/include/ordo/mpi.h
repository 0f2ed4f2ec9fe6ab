/* ordo/mpi.h - the MPI provider: the one header that needs <mpi.h>.
 *
 * MPI is initialised only if nobody did, and finalised only by who initialised it. The caller's communicator is duplicated,
 * errors on the duplicate return. A provider that started MPI ends it when destroyed (unless the session died: ending would wait for
 * the lost rank), so destroy it after all others. Ranks of one node exchange through a shared window, nodes through MPI.
 * MPI's own blocking calls (communicators and windows, made and freed) run in a thread of the provider while the caller waits, and end at
 * the deadline too; an MPI that the caller started with less than MPI_THREAD_SERIALIZED is called directly, and there they have none.
 */
#ifndef ORDO_MPI_H
#define ORDO_MPI_H

#include <mpi.h>
#include <ordo/provider.h>

ORDO_EXTERN_C_BEGIN

typedef struct ordo_mpi_options {
  size_t struct_size;
  double deadline_seconds;   /* of every collective, and of making and freeing communicators; 0: 300 */
  uint32_t no_shared_window; /* 1: plain MPI also inside a node */
  uint32_t reserved;
} ordo_mpi_options;
ORDO_PIN_LAST(ordo_mpi_options, reserved);

/* A provider over the ranks of `comm` (MPI_COMM_NULL: all ranks of the program). Collective. `options` may be null. Errors:
 * UNAVAILABLE (MPI could not start), TIMEOUT (a rank did not come), NOMEM. [main] since 0.1 */
ORDO_EXPORT ordo_status ordo_comm_mpi_create(ordo_context *context, MPI_Comm comm, const ordo_mpi_options *options,
                                             ordo_comm_provider **provider);
/* The same from a Fortran handle (ctypes, mpi4py's py2f). [main] since 0.1 */
ORDO_EXPORT ordo_status ordo_comm_mpi_create_f(ordo_context *context, MPI_Fint comm, const ordo_mpi_options *options,
                                               ordo_comm_provider **provider);

ORDO_EXTERN_C_END

#endif
