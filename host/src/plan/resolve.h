/* resolve.h - declarations in, one order or the reasons against it out (private).
 *
 * Pure: no files, no plugins, no names of shipped plugins, no table of pairs. The result depends on the set of inputs only. */
#ifndef ORDO_PRIVATE_RESOLVE_H
#define ORDO_PRIVATE_RESOLVE_H

#include "manifest.h"
#include <ordo/mesh.h>

typedef struct ordo_resolve_axis {
  const char *name;
  uint32_t kind; /* ORDO_AXIS_ */
  int size;
} ordo_resolve_axis;

/* Somebody installed, selected or not, who offers a capability: named when a requirement is not met. */
typedef struct ordo_offer {
  const char *capability, *plugin;
} ordo_offer;

/* The same plugin under one other option value: tried as a way out of a conflict. */
typedef struct ordo_variant {
  size_t decl;        /* index into decls */
  const char *change; /* "apex_amp:opt_level=O0" */
  const ordo_decl *instead;
} ordo_variant;

typedef struct ordo_resolve_input {
  const ordo_decl *const *decls;
  size_t n_decls;
  const ordo_resolve_axis *axes;
  size_t n_axes;
  const gboolean *model_trained;
  const char *const *model_names; /* null: numbers */
  size_t n_models;
  gboolean resume, eval;
  const ordo_offer *offers;
  size_t n_offers;
  const ordo_variant *variants;
  size_t n_variants;
} ordo_resolve_input;

enum { ORDO_PROVIDER_HOST = -1, ORDO_PROVIDER_EMBEDDER = -2 };

/* A node of the graph, and of the order. */
typedef struct ordo_node {
  uint32_t step;
  int provider;   /* index into decls; ORDO_PROVIDER_HOST; ORDO_PROVIDER_EMBEDDER */
  uint32_t model; /* 0 for steps of the whole session */
  char *id;       /* "strategy.wrap(fsdp1)"; "@name" appended for models after the first */
  uint32_t phase, default_phase;
} ordo_node;

typedef struct ordo_edge {
  guint from, to; /* node indices; `from` comes first */
  gboolean hard;
  char *rule;   /* "rule 3", "flag setup_optimizers_in_pre_dispatch", "before line" */
  char *origin; /* "ordering rule 3", "fsdp1 manifest line 7" */
} ordo_edge;

typedef struct ordo_finding {
  char *code, *text, *where, *next; /* as in ordo_error */
} ordo_finding;

typedef struct ordo_event_node {
  uint32_t event;
  int provider;
  int rank; /* place in the chain: of two events the smaller one comes first, equal ones have the default order */
  char *reason;
} ordo_event_node;

typedef struct ordo_resolution {
  gboolean legal;
  GArray *nodes;       /* ordo_node; in order when legal, in table order otherwise */
  GArray *edges;       /* ordo_edge between indices of `nodes`, soft ones that were skipped excluded */
  GArray *events;      /* ordo_event_node, in order */
  GPtrArray *findings; /* ordo_finding: conflicts, all of them */
  GArray *cycle;       /* guint edge indices of the shortest cycle, from its smallest node id; empty if none */
  GPtrArray *fixes;    /* char*: single changes that were tried and make it resolvable */
  GPtrArray *skipped;  /* char*: soft lines left out, and lines that name nothing installed */
} ordo_resolution;

ordo_resolution *ordo_resolve(const ordo_resolve_input *input);
void ordo_resolution_free(ordo_resolution *resolution);
/* GDestroyNotify of the elements of an array of edges. */
void ordo_edge_clear(gpointer edge);

#endif
