/* manifest.h - a manifest as data (private). Parsed from the text of the note; nothing of the plugin runs. */
#ifndef ORDO_PRIVATE_MANIFEST_H
#define ORDO_PRIVATE_MANIFEST_H

#include "../base/error.h"
#include <ordo/step.h>

/* Flags, in one table: name, kind it belongs to (ORDO_KIND_), one line for help and docs. */
/* clang-format off */
#define ORDO_FLAG_TABLE(X)                                                                                                                        \
  X(ORDO_FLAG_SETUP_OPTIMIZERS_IN_PRE_DISPATCH, "setup_optimizers_in_pre_dispatch", ORDO_KIND_STRATEGY, "its wrap comes before optimizer.create") \
  X(ORDO_FLAG_REQUIRES_JOINT_PREPARE, "requires_joint_prepare", ORDO_KIND_STRATEGY, "model and optimizer are prepared in one call")               \
  X(ORDO_FLAG_SELF_SHARDED, "self_sharded", ORDO_KIND_STRATEGY, "no default data strategy is added for it")                                      \
  X(ORDO_FLAG_RESTORES_AFTER_WRAP, "restores_after_wrap", ORDO_KIND_STRATEGY, "weights are loaded straight into the shards")                     \
  X(ORDO_FLAG_OWNS_PRECISION, "owns_precision", ORDO_KIND_STRATEGY, "casts by itself; no precision plugin may convert the model")                 \
  X(ORDO_FLAG_NEEDS_IDENTICAL_DATA, "needs_identical_data", ORDO_KIND_STRATEGY, "ranks of its axis see the same batch")                           \
  X(ORDO_FLAG_HANDLES_GRADIENT_ACCUMULATION, "handles_gradient_accumulation", ORDO_KIND_STRATEGY, "accumulates micro-batches by itself")         \
  X(ORDO_FLAG_SUPPORTS_NO_SYNC, "supports_no_sync", ORDO_KIND_STRATEGY, "skips communication before the last micro-batch")                       \
  X(ORDO_FLAG_REPLICAS_DIVERGE, "replicas_diverge", ORDO_KIND_STRATEGY, "ranks may hold different weights between exchanges")                     \
  X(ORDO_FLAG_WRAPS_OPTIMIZER, "wraps_optimizer", ORDO_KIND_PRECISION, "wraps the optimizer; nobody prepares it afterwards")                      \
  X(ORDO_FLAG_INITIALIZES_JOINTLY, "initializes_jointly", ORDO_KIND_PRECISION, "needs bare model and bare optimizer in one call")                \
  X(ORDO_FLAG_ACCEPTS_PARTITIONED, "accepts_partitioned", ORDO_KIND_PRECISION, "with initializes_jointly: a partitioned model is bare enough")
/* clang-format on */

#define ORDO_X_FLAG(C, NAME, KIND, WHAT) C,
enum { ORDO_FLAG_TABLE(ORDO_X_FLAG) ORDO_N_FLAGS };
#undef ORDO_X_FLAG

enum {
  ORDO_OPTION_BOOL = 1,
  ORDO_OPTION_INT,
  ORDO_OPTION_REAL,
  ORDO_OPTION_STRING,
  ORDO_OPTION_ENUM,
  ORDO_OPTION_SIZE,
  ORDO_OPTION_DTYPE,
  ORDO_OPTION_COMM_HOOK
};

typedef struct ordo_option_schema {
  char *key;
  int type;
  char *default_text; /* null: unset */
  char *range;        /* as written, may be empty */
  char *help;
  int line; /* of the manifest */
} ordo_option_schema;

/* One line whose value is a list or an edge, with its condition still unevaluated. */
typedef struct ordo_manifest_line {
  int number;      /* 1-based line of the manifest text */
  char *text;      /* the whole line, as written */
  char *key;       /* "flags", "steps", "before", ... */
  int step;        /* before/after: ORDO_STEP_ of this plugin; else -1 */
  char *condition; /* null: always */
  char **values;   /* split at commas, trimmed */
} ordo_manifest_line;

typedef struct ordo_alias {
  char *name;
  char *preset; /* "key=value:key=value", empty if none */
  int line;
} ordo_alias;

typedef struct ordo_manifest {
  char *text;
  char *id, *version, *summary, *license, *url;
  uint32_t kind; /* ORDO_KIND_ */
  uint32_t abi_major, abi_minor;
  char *mesh_axis; /* "none", "data", "model" */
  char *positional;
  char **precisions;
  gboolean dry_run;
  GPtrArray *aliases; /* ordo_alias */
  GPtrArray *options; /* ordo_option_schema */
  GPtrArray *lines;   /* ordo_manifest_line: flags steps replaces_leaves reduces provides requires conflicts before after */
} ordo_manifest;

/* Parses `length` bytes. Null on error, with every finding pushed (code E-MANIFEST, where "ORIGIN line N"). Never reads past
 * `length`, accepts no NUL inside, checks UTF-8, bounds and duplicate keys. */
ordo_manifest *ordo_manifest_parse(const char *text, size_t length, const char *origin, ordo_errors *errors);
void ordo_manifest_free(ordo_manifest *manifest);
const ordo_option_schema *ordo_manifest_option(const ordo_manifest *manifest, const char *key);

/* Value of an option as text, null if unset. */
typedef const char *(*ordo_option_getter)(gpointer user, const char *key);

/* A declaration: a manifest with all conditions evaluated. The input of the resolver; knows no file and no text but origins. */
typedef struct ordo_token {
  char *name;
  char *origin; /* "fsdp1 manifest line 7" */
} ordo_token;

typedef struct ordo_edge_line {
  uint32_t step;   /* this provider's node */
  gboolean before; /* node before target, else after */
  gboolean hard;
  char *target; /* step name or capability */
  char *origin;
  char *text;
} ordo_edge_line;

typedef struct ordo_decl {
  char *id, *version;
  uint32_t kind;
  guint32 flags;    /* bit per ORDO_FLAG_ */
  guint32 steps;    /* bit per ORDO_STEP_ */
  guint32 replaces; /* bit per ORDO_STEP_: those that replace leaves */
  gboolean reduces;
  char *flag_origin[ORDO_N_FLAGS];
  char *step_origin[ORDO_N_STEPS];
  char *replaces_origin[ORDO_N_STEPS];
  char *reduces_origin;
  guint32 events; /* bit per ORDO_EVENT_: those of which only the manifest knows (step.post_step) */
  char *event_origin[ORDO_N_EVENTS];
  char *mesh_axis;
  GPtrArray *provides, *requires, *conflicts; /* ordo_token */
  GPtrArray *lines;                           /* ordo_edge_line */
  /* filled by the plan, not by the manifest */
  int axis; /* index in the mesh, outermost 0; -1: none */
  int axis_size;
  guint32 model_mask; /* bit per model of the session that it works on */
} ordo_decl;

/* Evaluates conditions and checks what ordering.md calls manifest errors (S and J, S without wrap, J without prepare_joint ...).
 * Null on error, all findings pushed. */
ordo_decl *ordo_decl_from_manifest(const ordo_manifest *manifest, ordo_option_getter get, gpointer user, ordo_errors *errors);
void ordo_decl_free(ordo_decl *decl);
/* The same checks on a changed copy, without texts. */
gboolean ordo_decl_is_consistent(const ordo_decl *decl);

const char *ordo_step_name(uint32_t step);
/* -1 if unknown. */
int ordo_step_by_name(const char *name);
const char *ordo_event_name(uint32_t event);
const char *ordo_phase_name(uint32_t phase);
const char *ordo_flag_name(uint32_t flag);

#endif
