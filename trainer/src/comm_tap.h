/* comm_tap.h - a communication provider that shows what passes through another one.
 *
 * Every call is forwarded; before a collective starts and after it has ended, an observer is told. It is made of the public tables only,
 * so it fits any provider. Used for traces; a test uses it to hold collectives back.
 */
#ifndef ORDO_TRAINER_COMM_TAP_H
#define ORDO_TRAINER_COMM_TAP_H

#include <ordo/provider.h>

typedef struct ordo_comm_observer {
  void *ctx;
  /* `comm`: name of the communicator. The result is handed to `end`. [step] */
  uint64_t (*begin)(void *ctx, const char *comm, const ordo_comm *ranks, const ordo_collective *c);
  /* The collective was waited for, or could not start. [step] */
  void (*end)(void *ctx, uint64_t id);
} ordo_comm_observer;

/* `inner` is borrowed and must outlive the result; `observer` is copied. Freed with ordo_comm_provider_destroy, which leaves `inner` alone.
 */
ordo_comm_provider *ordo_comm_tap_new(const ordo_comm_provider *inner, const ordo_comm_observer *observer);
/* Payload of a collective as ordo_comm_stats counts it: the whole logical buffer. */
int64_t ordo_comm_tap_bytes(const ordo_comm *ranks, const ordo_collective *c);
/* "all_reduce" for an ORDO_ALL_REDUCE and so on, "?" for others. */
const char *ordo_comm_kind_name(uint32_t kind);

#endif
