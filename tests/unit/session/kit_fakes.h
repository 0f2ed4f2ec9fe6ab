/* kit_fakes.h - what kit.c uses of the fake plugins. */
#ifndef ORDO_TEST_KIT_FAKES_H
#define ORDO_TEST_KIT_FAKES_H

#include "kit.h"

/* Serves the kit's fakes from memory and every other plugin from its file. */
extern const ordo_opener kit_fakes_opener;
/* From here on the fakes are those of `k`; several kits may live at a time, in turn. */
void kit_fakes_of(kit *k);

#endif
