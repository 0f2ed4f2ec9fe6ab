/* plain_comm.h - a provider whose communicators have no pieces, in front of another: what an embedder's own transport may look like. */
#ifndef TEST_SHARDING_PLAIN_COMM_H
#define TEST_SHARDING_PLAIN_COMM_H

#include <ordo/provider.h>

/* `old` 1: the tables end where `features` begins, as those of a program that was compiled before pieces existed. Freed with
 * ordo_comm_provider_destroy; `inner` stays. */
ordo_comm_provider *plain_comm_new(const ordo_comm_provider *inner, int old);

#endif
