/* ordo/plan.h - from names and flags to one order, or to the reason why there is none.
 *
 * A plan depends only on the set of inputs: manifests, options, axes, resume, eval. It is made without running plugin code
 * and never changes. A plan with a conflict is still an object: it can be rendered and explained.
 *
 * Strategy expression: NAME[=SIZE][:key=value...] joined with '+', innermost axis first: `tp=2+fsdp2`, `ddp:hook=bf16`.
 * One part may omit its size: it gets the rest of the ranks. A bare word sets the positional option: `apex_amp:O2`.
 */
#ifndef ORDO_PLAN_H
#define ORDO_PLAN_H

#include <ordo/context.h>
#include <ordo/step.h>

ORDO_EXTERN_C_BEGIN

typedef struct ordo_plan ordo_plan;

enum { ORDO_PLAN_RESUME = 1u, ORDO_PLAN_EVAL = 2u };

typedef struct ordo_plan_model {
  size_t struct_size;
  const char *name;
  uint32_t trained; /* 0: frozen */
  uint32_t reserved;
} ordo_plan_model;
ORDO_PIN_LAST(ordo_plan_model, reserved);

typedef struct ordo_plan_request {
  size_t struct_size;
  const char *strategy;          /* expression; null or "none": no strategy */
  const char *precision;         /* NAME[:key=value...]; null or "none" */
  const char *default_strategy;  /* added on the data ranks left over if no chosen strategy is self_sharded or reduces; null: none */
  int32_t ranks;                 /* world size, at least 1 */
  uint32_t flags;                /* ORDO_PLAN_ */
  const ordo_plan_model *models; /* null: one trained model named "model" */
  size_t n_models;
} ordo_plan_request;
ORDO_PIN_LAST(ordo_plan_request, n_models);

/* One node of the order. Strings live as long as the plan. */
typedef struct ordo_plan_node {
  size_t struct_size;
  ordo_step step;
  ordo_phase phase;         /* where it runs */
  ordo_phase default_phase; /* where it would run if nothing moved it */
  uint32_t model;           /* index of the model; 0 for steps of the whole session */
  const char *name;         /* "strategy.wrap" */
  const char *provider;     /* "fsdp1", "host", "embedder" */
  const char *reason;       /* the constraints that hold it here, with their origins */
} ordo_plan_node;
ORDO_PIN_LAST(ordo_plan_node, reason);

typedef struct ordo_plan_event {
  size_t struct_size;
  ordo_event event;
  uint32_t reserved;
  const char *name;
  const char *provider;
  const char *reason;
} ordo_plan_event;
ORDO_PIN_LAST(ordo_plan_event, reason);

enum {
  ORDO_RENDER_TEXT = 1,
  ORDO_RENDER_EXPLAIN = 2, /* everything: why each row, what was not selected, soft lines skipped */
  ORDO_RENDER_JSON = 3,
  ORDO_RENDER_DOT = 4, /* works for a conflict too */
  ORDO_RENDER_DIGEST = 5,
  ORDO_RENDER_STEPS = 6 /* step ids, one a line */
};
enum { ORDO_RENDER_COLOUR = 1u };

/* Resolves. ORDO_OK with a legal plan; ORDO_E_CONFLICT with *plan set to one that explains the conflict; other errors (unknown
 * names, options out of range, a world that does not fit the mesh) leave *plan null. The caller owns *plan. [main] since 0.1 */
ORDO_EXPORT ordo_status ordo_plan_create(ordo_context *context, const ordo_plan_request *request, ordo_plan **plan);
/* Null is fine. [main] since 0.1 */
ORDO_EXPORT void ordo_plan_destroy(ordo_plan *plan);
/* 1 if an order exists. [any] since 0.1 */
ORDO_EXPORT int ordo_plan_is_legal(const ordo_plan *plan);
/* Nodes in order; 0 for a conflict. [any] since 0.1 */
ORDO_EXPORT size_t ordo_plan_n_nodes(const ordo_plan *plan);
/* Null past the end. [any] since 0.1 */
ORDO_EXPORT const ordo_plan_node *ordo_plan_node_at(const ordo_plan *plan, size_t index);
/* Events inside a training step, in order. [any] since 0.1 */
ORDO_EXPORT size_t ordo_plan_n_events(const ordo_plan *plan);
ORDO_EXPORT const ordo_plan_event *ordo_plan_event_at(const ordo_plan *plan, size_t index);
/* 16 hex digits over ids, versions, options, axes and order: equal iff two ranks would do the same. [any] since 0.1 */
ORDO_EXPORT const char *ordo_plan_digest(const ordo_plan *plan);
/* Text in an ORDO_RENDER_ form; freed with ordo_string_free; null when out of memory. [main] since 0.1 */
ORDO_EXPORT char *ordo_plan_render(const ordo_plan *plan, uint32_t form, uint32_t flags);
/* The chain of constraints that puts step A before step B (names, or `step(provider)`), with origins; or that they are unordered.
 * Errors: NOT_FOUND (no such step in the plan). Freed with ordo_string_free. [main] since 0.1 */
ORDO_EXPORT ordo_status ordo_plan_why(const ordo_plan *plan, const char *a, const char *b, uint32_t form, char **text);
/* For a conflict: shortest cycle, origins, and the single changes that were tried and work. [main] since 0.1 */
ORDO_EXPORT ordo_status ordo_plan_why_not(const ordo_plan *plan, uint32_t form, char **text);
/* Every strategy found, and "none", alone and composed, times every precision found: the order or the conflict. `ranks` on each mesh axis.
 * `form` TEXT or JSON. [main] since 0.1 */
ORDO_EXPORT ordo_status ordo_plan_matrix(ordo_context *context, int32_t ranks, uint32_t form, uint32_t flags, char **text);

ORDO_EXTERN_C_END

#endif
