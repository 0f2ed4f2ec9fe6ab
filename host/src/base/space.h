/* space.h - addresses without memory: what a dry run hands out in place of storage (private). */
#ifndef ORDO_PRIVATE_SPACE_H
#define ORDO_PRIVATE_SPACE_H

#include <glib.h>
#include <stddef.h>

typedef struct ordo_space ordo_space;

/* Null if the system grants no addresses at all. */
ordo_space *ordo_space_new(void);
/* Null is fine. Every address is gone afterwards. */
void ordo_space_free(ordo_space *space);
/* `bytes` addresses aligned to 64, null when none are left. Any thread. Reading or writing them is a fault of protection (SEGV_ACCERR). */
void *ordo_space_take(ordo_space *space, size_t bytes);
/* Gives the last taken range back; any other is left, addresses cost nothing. */
void ordo_space_give(ordo_space *space, const void *pointer, size_t bytes);
/* Does the address lie in it? FALSE for a null space. */
gboolean ordo_space_has(const ordo_space *space, const void *pointer);

#endif
