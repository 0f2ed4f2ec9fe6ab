/* ordo/provider.h - where communicators come from.
 *
 * A provider is the world of ranks plus a way to split it. Ordo has three (MPI in mpi.h; single rank and fake below); an embedder
 * may bring its own. Everything above the provider (mesh, deadlines, counters, AVG, factors, ordered mode, the ring buffer
 * of recent collectives) is the host's.
 */
#ifndef ORDO_PROVIDER_H
#define ORDO_PROVIDER_H

#include <ordo/comm.h>
#include <ordo/context.h>

ORDO_EXTERN_C_BEGIN

typedef struct ordo_comm_provider {
  size_t struct_size;
  void *ctx;
  const char *name; /* "mpi", "single", "fake" */
  int32_t rank;
  int32_t size;
  double deadline_seconds; /* of every wait; 0: the default of 300 */
  /* Makes the communicator of the ranks that pass the same colour, ordered by key; `size` is how many they are (the fake provider
   * cannot count them, others refuse a difference) and key is 0 .. size-1. Collective over the provider's world. The provider owns
   * it until release. Errors: INVALID, UNAVAILABLE, NOMEM, PEER_LOST, TIMEOUT. [main] since 0.1 */
  ordo_status (*split)(void *ctx, int32_t colour, int32_t key, int32_t size, const char *name, const ordo_comm **comm);
  /* Frees a communicator. Collective where the transport needs it; after an error it must not block. [main] since 0.1 */
  void (*release)(void *ctx, const ordo_comm *comm);
  /* The last collectives of all communicators, oldest first, one a line; freed with ordo_string_free. May be null. [main] since 0.1 */
  char *(*report)(void *ctx);
  /* Text of the last error on this provider, empty if none. [main] since 0.1 */
  const char *(*error_text)(void *ctx);
  /* Frees the provider. [main] since 0.1 */
  void (*destroy)(void *ctx);
} ordo_comm_provider;
ORDO_PIN_LAST(ordo_comm_provider, destroy);

/* One rank; collectives are copies. The caller frees it with ordo_comm_provider_destroy. [main] since 0.1 */
ORDO_EXPORT ordo_status ordo_comm_single_create(ordo_context *context, ordo_comm_provider **provider);
/* Rank `rank` of `size` ranks that do not exist: calls are checked and counted, data stays local. [main] since 0.1 */
ORDO_EXPORT ordo_status ordo_comm_fake_create(ordo_context *context, int32_t rank, int32_t size, ordo_comm_provider **provider);
/* Null is fine. [main] since 0.1 */
ORDO_EXPORT void ordo_comm_provider_destroy(ordo_comm_provider *provider);

ORDO_EXTERN_C_END

#endif
