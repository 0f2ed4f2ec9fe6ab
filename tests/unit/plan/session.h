/* session.h - a session of fake plugins, written in a line or two, resolved and read back as text. */
#ifndef ORDO_TEST_PLAN_SESSION_H
#define ORDO_TEST_PLAN_SESSION_H

#include "check.h"
#include "fakes.h"
#include "plan/graph.h"
#include "plan/rules.h"

typedef struct session {
  ordo_errors *errors;
  GPtrArray *decls; /* ordo_decl */
  GArray *axes;     /* ordo_resolve_axis; names are the decls' ids */
  gboolean trained[4];
  size_t n_models;
  gboolean resume, eval;
  GRand *disturb;                /* not null: lines are reordered and ids renamed */
  guint64 off;                   /* clauses removed */
  const char *extra_for, *extra; /* session_add_set appends these lines to the manifest of that plugin, added if it is not in the set */
} session;

session *session_new(void);
void session_free(session *s);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(session, session_free)
/* Adds a plugin: `extra` (may be null) is appended to its manifest, `options` is "key=value:key=value" or null. A strategy that takes an
 * axis gets a new one of `size` ranks; size 0 puts it on the axis of the one before. Returns the declaration. */
ordo_decl *session_add(session *s, const char *manifest, const char *extra, const char *options, int size);
/* A set by names as in the golden table: "tp+fsdp2", "none"; precision "apex_amp", "apex_amp:O0", "jointx", "none". Axis sizes 2. */
void session_add_set(session *s, const char *strategies, const char *precision);
/* The manifest of a fake by its id. */
const char *fake_manifest(const char *id);
ordo_resolution *session_resolve(const session *s);
void session_input(const session *s, ordo_resolve_input *input);

/* "mesh.init > model.build > ..." with full node ids; the cycle of a conflict, "a > b > a". */
char *resolution_ids(const ordo_resolution *r);
char *resolution_cycle(const ordo_resolution *r);
/* Everything, to compare two resolutions: order, edges, findings, fixes, skipped, events. */
char *resolution_text(const session *s, const ordo_resolution *r);
gboolean resolution_has(const ordo_resolution *r, const char *code);
/* Origins of the chain from one node id to another: "rule 3; rule 4" (labels joined with "; "), or "unordered". */
char *resolution_why(const ordo_resolution *r, const char *from, const char *to);

#endif
