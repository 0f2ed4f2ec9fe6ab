/* names.c - names of steps, events, phases and flags.
 *
 * Not a second list: every name comes from the tables in step.h and manifest.h, so a step added there is known everywhere at once.
 * Guards against help text, parser and plan disagreeing about what a step is called.
 */
#include "names.h"

#include <string.h>

#define NAME_OF_STEP(C, NAME, PHASE, PROVIDER, WHAT) NAME,
#define PHASE_OF_STEP(C, NAME, PHASE, PROVIDER, WHAT) PHASE,
#define PROVIDER_OF_STEP(C, NAME, PHASE, PROVIDER, WHAT) PROVIDER,
#define NAME_OF_EVENT(C, NAME, PROVIDER, WHAT) NAME,
#define PROVIDER_OF_EVENT(C, NAME, PROVIDER, WHAT) PROVIDER,
#define NAME_OF_PHASE(C, NAME) NAME,
#define NAME_OF_FLAG(C, NAME, KIND, WHAT) NAME,
#define KIND_OF_FLAG(C, NAME, KIND, WHAT) KIND,

static const char *const step_names[] = {ORDO_STEP_TABLE(NAME_OF_STEP) NULL};
static const uint32_t step_phases[] = {ORDO_STEP_TABLE(PHASE_OF_STEP)};
static const char *const step_providers[] = {ORDO_STEP_TABLE(PROVIDER_OF_STEP)};
static const char *const event_names[] = {ORDO_EVENT_TABLE(NAME_OF_EVENT) NULL};
static const char *const event_providers[] = {ORDO_EVENT_TABLE(PROVIDER_OF_EVENT)};
static const char *const phase_names[] = {ORDO_PHASE_TABLE(NAME_OF_PHASE) NULL};
static const char *const flag_names[] = {ORDO_FLAG_TABLE(NAME_OF_FLAG) NULL};
static const uint32_t flag_kinds[] = {ORDO_FLAG_TABLE(KIND_OF_FLAG)};

G_STATIC_ASSERT(ORDO_N_STEPS <= 32); /* sets of steps are 32-bit masks */
G_STATIC_ASSERT(ORDO_N_FLAGS <= 32);

static int find(const char *const *names, const char *name)
{
  for (int i = 0; names[i]; i++) {
    if (strcmp(names[i], name) == 0)
      return i;
  }
  return -1;
}

const char *ordo_step_name(uint32_t step)
{
  return step < ORDO_N_STEPS ? step_names[step] : "?";
}

int ordo_step_by_name(const char *name)
{
  return find(step_names, name);
}

uint32_t ordo_step_default_phase(uint32_t step)
{
  return step < ORDO_N_STEPS ? step_phases[step] : ORDO_PHASE_SETUP;
}

const char *ordo_step_provider(uint32_t step)
{
  return step < ORDO_N_STEPS ? step_providers[step] : "?";
}

const char *const *ordo_step_names(void)
{
  return step_names;
}

const char *ordo_event_name(uint32_t event)
{
  return event < ORDO_N_EVENTS ? event_names[event] : "?";
}

int ordo_event_by_name(const char *name)
{
  return find(event_names, name);
}

const char *ordo_event_provider(uint32_t event)
{
  return event < ORDO_N_EVENTS ? event_providers[event] : "?";
}

const char *ordo_phase_name(uint32_t phase)
{
  return phase < ORDO_N_PHASES ? phase_names[phase] : "?";
}

int ordo_phase_by_name(const char *name)
{
  return find(phase_names, name);
}

const char *ordo_flag_name(uint32_t flag)
{
  return flag < ORDO_N_FLAGS ? flag_names[flag] : "?";
}

int ordo_flag_by_name(const char *name)
{
  return find(flag_names, name);
}

uint32_t ordo_flag_kind(uint32_t flag)
{
  return flag < ORDO_N_FLAGS ? flag_kinds[flag] : 0;
}

const char *const *ordo_flag_names(void)
{
  return flag_names;
}

const char *ordo_kind_name(uint32_t kind)
{
  switch (kind) {
  case ORDO_KIND_STRATEGY:
    return "strategy";
  case ORDO_KIND_PRECISION:
    return "precision";
  case ORDO_KIND_COMM_HOOK:
    return "comm_hook";
  default:
    return "plugin";
  }
}
