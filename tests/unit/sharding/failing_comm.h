/* failing_comm.h - a provider that fails once, at a call that the test chooses, in front of another: an embedder's own transport that loses
 * a rank. It can also show what is started. */
#ifndef TEST_SHARDING_FAILING_COMM_H
#define TEST_SHARDING_FAILING_COMM_H

#include <ordo/provider.h>

enum { FAILING_START = 1, FAILING_WAIT = 2, FAILING_ALLOC = 4, FAILING_ANY = 7 };

/* Call number `at` (from 1) of these kinds fails with `status`, counted over all communicators of the provider. It records nothing, and
 * what it fails does not reach `inner`, a wait excepted, which is finished first. Freed with ordo_comm_provider_destroy; `inner` stays. */
ordo_comm_provider *failing_comm_new(const ordo_comm_provider *inner, int kinds, int at, ordo_status status);
/* From now on each collective is shown to `saw` before it is started, those that fail included. */
void failing_comm_watch(ordo_comm_provider *provider, void (*saw)(void *ctx, const ordo_collective *c), void *ctx);
/* Did it? */
int failing_comm_failed(const ordo_comm_provider *provider);

#endif
