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
  char *strategy, *precision; /* expressions as written, "none" if there is none; the default strategy is added */
  GArray *nodes;              /* ordo_plan_node in order; empty for a conflict */
  GArray *events;             /* ordo_plan_event */
  GStringChunk *strings;      /* reasons */
};

/* The axes that `choices` (strategies, innermost first) need in a world of `ranks`, outermost first, and for each choice its axis (-1:
 * none). `spare` gets the ranks that nobody takes, 1 if all are taken. Null if the world does not fit: E-MESH-SIZE is pushed. */
GArray *ordo_plan_fit_axes(const GPtrArray *choices, int ranks, int *axis_of_choice, int *spare, ordo_errors *errors);

/* Resolves the providers and, for a conflict, again with everything that can be tried: other option values, offers of others. */
void ordo_plan_resolve(ordo_plan *plan);
/* Why each node and event stands where it does: fills nodes and events of a legal plan. */
void ordo_plan_tell_reasons(ordo_plan *plan);
/* "after X [ordering rule 3]" for every constraint that leads to node `index`, joined with "; ". */
char *ordo_plan_all_reasons(const ordo_plan *plan, guint index);
const char *ordo_plan_provider_name(const ordo_plan *plan, int provider);
gboolean ordo_plan_axis_of(const ordo_plan *plan, int provider, const ordo_plan_axis **axis);

/* Forms of ordo_plan_render, one file each. */
char *ordo_plan_json(const ordo_plan *plan);
char *ordo_plan_dot(const ordo_plan *plan);
/* The conflict as a person reads it: findings, the cycle with arrows, what was tried and helps. Appends to `out`. */
void ordo_plan_append_conflict(const ordo_plan *plan, GString *out, gboolean colour);
/* Plugins found and not in the plan: id, version, why. `each` is called in the registry's order. */
typedef void (*ordo_plan_unselected)(gpointer user, const ordo_found *found, const char *why);
void ordo_plan_each_unselected(const ordo_plan *plan, ordo_plan_unselected each, gpointer user);

#endif
