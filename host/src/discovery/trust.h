/* trust.h - who could have written a plugin (private). */
#ifndef ORDO_PRIVATE_TRUST_H
#define ORDO_PRIVATE_TRUST_H

#include <glib.h>
#include <sys/types.h>

/* Null if the file at `real_path` (absolute, no symbolic links) and every directory above it can be changed only by root and `user`;
 * else what is wrong and the command that cures it, freed by the caller. */
char *ordo_trust_check(const char *real_path, uid_t user);

#endif
