/* ordo/status.h - the closed list of outcomes.
 *
 * A status says what kind of thing went wrong; the text that a person reads is recorded by the host: a plugin calls
 * ordo_host.fail() before it returns a status other than ORDO_OK, and an embedder reads it with ordo_last_error().
 * A receiver treats a status that it does not know like ORDO_E_INTERNAL.
 */
#ifndef ORDO_STATUS_H
#define ORDO_STATUS_H

#include <ordo/abi.h>

typedef int32_t ordo_status;

enum {
  ORDO_OK = 0,
  ORDO_E_INVALID = 1,     /* an argument, option or file has a value that is not allowed */
  ORDO_E_UNSUPPORTED = 2, /* allowed, but this plugin or build cannot do it */
  ORDO_E_UNAVAILABLE = 3, /* it could, but not on this machine or in this run (not a defect: "probe" says so) */
  ORDO_E_NOMEM = 4,       /* memory could not be had */
  ORDO_E_STATE = 5,       /* the call is legal, but not now: both states are named in the text */
  ORDO_E_INTERNAL = 6,    /* a defect in Ordo or in a plugin */
  ORDO_E_STALE = 7,       /* the object was replaced by a step of the plan, which the text names */
  ORDO_E_CONFLICT = 8,    /* no order satisfies what was declared */
  ORDO_E_REFUSED = 9,     /* a plugin file was refused: ownership, damage, ABI, note against entry */
  ORDO_E_NOT_FOUND = 10,  /* no plugin, option, key or file of that name */
  ORDO_E_IO = 11,         /* the operating system reported an error on a file */
  ORDO_E_TIMEOUT = 12,    /* a collective missed its deadline; the session is dead */
  ORDO_E_PEER_LOST = 13,  /* a rank ended; the session is dead */
  ORDO_E_MISMATCH = 14,   /* ranks disagree: plan digest, shapes, or the order of collectives */
  ORDO_E_INVARIANT = 15   /* a check of the plan failed: training on would silently compute something wrong */
};

#endif
