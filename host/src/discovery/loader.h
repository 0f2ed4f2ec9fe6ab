/* loader.h - maps a plugin and checks that it is what its note says (private). */
#ifndef ORDO_PRIVATE_LOADER_H
#define ORDO_PRIVATE_LOADER_H

#include "registry.h"
#include <ordo/plugin.h>

/* dlopen(RTLD_NOW|RTLD_LOCAL|RTLD_NODELETE) of the absolute path after a second look at the file; compares device and inode of what was
 * mapped, finds the entry symbol in the file itself, compares note and entry field by field and negotiates the ABI. Runs no function of
 * the plugin but its constructors. Errors: REFUSED with one finding per differing field. The entry is never unmapped. */
ordo_status ordo_loader_open(const ordo_found *found, uint32_t context_flags, ordo_errors *errors, const ordo_plugin **entry);

#endif
