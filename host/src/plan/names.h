/* names.h - names of steps, events, phases, flags and kinds, both ways (private). Made from the X-macro tables only. */
#ifndef ORDO_PRIVATE_NAMES_H
#define ORDO_PRIVATE_NAMES_H

#include "manifest.h"

uint32_t ordo_step_default_phase(uint32_t step);
/* "host", "embedder", "strategy", "precision", "any" */
const char *ordo_step_provider(uint32_t step);
/* Null-terminated, in table order. */
const char *const *ordo_step_names(void);

/* -1 if unknown, as ordo_step_by_name. */
int ordo_event_by_name(const char *name);
const char *ordo_event_provider(uint32_t event);
int ordo_phase_by_name(const char *name);

int ordo_flag_by_name(const char *name);
/* ORDO_KIND_ of the plugins that may declare it. */
uint32_t ordo_flag_kind(uint32_t flag);
const char *const *ordo_flag_names(void);

#endif
