/* error.h - error records of a context (private).
 *
 * A failing function pushes one record per finding and returns the status; public entry points clear the list first.
 * Records may be pushed from any thread. Codes are listed once, in errors.def.
 */
#ifndef ORDO_PRIVATE_ERROR_H
#define ORDO_PRIVATE_ERROR_H

#include <glib.h>
#include <ordo/context.h>

typedef struct ordo_errors ordo_errors; /* embedded in ordo_context, also usable alone in tests */

ordo_errors *ordo_errors_new(void);
void ordo_errors_free(ordo_errors *errors);
void ordo_errors_clear(ordo_errors *errors);
size_t ordo_errors_count(const ordo_errors *errors);
const ordo_error *ordo_errors_at(const ordo_errors *errors, size_t index);
/* Rank stamped on records pushed from now on. */
void ordo_errors_set_rank(ordo_errors *errors, int rank);

/* Pushes a record and returns `status`. `where`, `why`, `next` may be null; `what` is a format. */
ordo_status ordo_errors_push(ordo_errors *errors, ordo_status status, const char *code, const char *where, const char *why,
                             const char *next, const char *what, ...) G_GNUC_PRINTF(7, 8);

#endif
