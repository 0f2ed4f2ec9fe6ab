/* plan.h - a plan with everything a session needs to execute it (private). */
#ifndef ORDO_PRIVATE_PLAN_H
#define ORDO_PRIVATE_PLAN_H

#include "../discovery/expression.h"
#include "resolve.h"
#include <ordo/plan.h>

/* Axes as in mesh.h, outermost first. */
typedef struct ordo_plan_axis {
  char *name;
  uint32_t kind; /* ORDO_AXIS_ of mesh.h */
  int size;
} ordo_plan_axis;

/* One selected plugin. */
typedef struct ordo_plan_provider {
  const ordo_choice *choice;
  ordo_decl *decl;
  int axis; /* -1: none */
} ordo_plan_provider;

struct ordo_plan {
  ordo_context *context;
  int ranks;
  uint32_t flags;         /* ORDO_PLAN_ */
  GPtrArray *choices;     /* ordo_choice: strategies, then precision */
  GArray *axes;           /* ordo_plan_axis */
  GArray *providers;      /* ordo_plan_provider, same order as choices */
  GPtrArray *model_names; /* char* */
  GArray *model_trained;  /* gboolean */
  ordo_resolution *resolution;
  char digest[17];
};

#endif
