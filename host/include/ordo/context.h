/* ordo/context.h - a context: search path, plugins found, errors. The first object that an embedder makes.
 *
 * Invariants
 *  - No global state: two contexts in one process do not know of each other. One context is used by one thread at a time.
 *  - Nothing here exits, aborts or writes to stderr; text goes to the log callback, errors into a record.
 *  - Finding plugins reads their notes and runs none of their code.
 *
 * Search order: `plugin_path` of the options, ORDO_PLUGIN_PATH, $XDG_DATA_HOME/ordo/plugins (or ~/.local/share/ordo/plugins),
 * the installed plugin directory. Environment and home are ignored in a privileged process (AT_SECURE).
 */
#ifndef ORDO_CONTEXT_H
#define ORDO_CONTEXT_H

#include <ordo/host.h>

ORDO_EXTERN_C_BEGIN

#define ORDO_VERSION "0.1.0"

typedef struct ordo_context ordo_context;

/* One error or warning, as a person reads it. Strings are never null (empty instead) and live until the next call on
 * the context that can fail. */
typedef struct ordo_error {
  size_t struct_size;
  ordo_status status;
  int32_t rank;      /* of the run, -1 outside a run */
  const char *code;  /* stable id for `ordo explain`: "E-PLAN-CYCLE" (docs/errors.md) */
  const char *what;  /* what went wrong */
  const char *where; /* file:line, plugin, step or option */
  const char *why;   /* the reason, with the values involved */
  const char *next;  /* what to do next, a command where there is one */
} ordo_error;
ORDO_PIN_LAST(ordo_error, next);

enum {
  ORDO_CONTEXT_ALLOW_INSECURE = 1u, /* accept plugin files and directories that others can write */
  ORDO_CONTEXT_NO_ENVIRONMENT = 2u, /* ignore ORDO_PLUGIN_PATH and the user directory */
  ORDO_CONTEXT_NO_DEFAULT_PATH = 4u /* only plugin_path */
};

typedef struct ordo_context_options {
  size_t struct_size;
  const char *program_name; /* of the embedder, shown to plugins; null: "unknown" */
  const char *program_version;
  const char *plugin_path; /* directories or .so files joined with ':'; null for none */
  uint32_t flags;          /* ORDO_CONTEXT_ */
  uint32_t reserved;
  void *log_ctx;
  /* Receives finished lines; null: nothing is shown. `severity` is ORDO_LOG_. [any] since 0.1 */
  void (*log)(void *log_ctx, int32_t severity, const char *text);
  void *alloc_ctx;
  /* Memory of jobs (weights, gradients, buckets); null: aligned malloc. `tag` is ORDO_MEM_ (job.h). [any] since 0.1 */
  void *(*alloc)(void *alloc_ctx, size_t bytes, uint32_t tag);
  void (*free)(void *alloc_ctx, void *pointer, size_t bytes, uint32_t tag);
} ordo_context_options;
ORDO_PIN_LAST(ordo_context_options, free);

enum { ORDO_PLUGIN_USABLE = 1, ORDO_PLUGIN_SHADOWED = 2, ORDO_PLUGIN_REFUSED = 3 };
enum { ORDO_KIND_STRATEGY = 1, ORDO_KIND_PRECISION = 2, ORDO_KIND_COMM_HOOK = 3 };

/* One file found. Strings live as long as the context; null where the note could not be read. */
typedef struct ordo_plugin_info {
  size_t struct_size;
  const char *id;
  const char *version;
  const char *summary;
  const char *license;
  const char *path;    /* absolute */
  const char *source;  /* "--plugin-path", "ORDO_PLUGIN_PATH", "user directory", "installed" */
  const char *aliases; /* "a, b:key=value", empty if none */
  const char *flags;   /* as declared, conditions included */
  const char *steps;
  const char *reason;   /* why it is shadowed or refused; empty if usable */
  const char *manifest; /* the whole text of the note */
  uint32_t kind;
  uint32_t state; /* ORDO_PLUGIN_USABLE ... */
} ordo_plugin_info;
ORDO_PIN_LAST(ordo_plugin_info, state);

/* Makes a context and scans the search path. Files that are no plugins or damaged are listed as refused, not an error. `options`
 * may be null. The caller owns *context. Errors: INVALID, NOMEM. [main] since 0.1 */
ORDO_EXPORT ordo_status ordo_context_create(const ordo_context_options *options, ordo_context **context);
/* Frees it; plugins stay mapped. Sessions and plans must be gone. Null is fine. [main] since 0.1 */
ORDO_EXPORT void ordo_context_destroy(ordo_context *context);
/* Files found, sorted by id, version descending, path. [main] since 0.1 */
ORDO_EXPORT size_t ordo_context_n_plugins(const ordo_context *context);
/* Null past the end. Owned by the context. [main] since 0.1 */
ORDO_EXPORT const ordo_plugin_info *ordo_context_plugin(const ordo_context *context, size_t index);
/* The usable plugin of exactly this id, alias, `id@version`, or path (anything with a slash). Errors: NOT_FOUND with the nearest
 * names, REFUSED with the reason. [main] since 0.1 */
ORDO_EXPORT ordo_status ordo_context_find(ordo_context *context, const char *name, const ordo_plugin_info **info);
/* The directories searched and why each was used or left out, one a line; freed with ordo_string_free. [main] since 0.1 */
ORDO_EXPORT char *ordo_context_search_report(ordo_context *context);

/* The records of the last failed call on the context or on a plan or session made from it: all findings, first to last. [main] since 0.1 */
ORDO_EXPORT size_t ordo_n_errors(const ordo_context *context);
/* Null past the end. [main] since 0.1 */
ORDO_EXPORT const ordo_error *ordo_error_at(const ordo_context *context, size_t index);
/* The first of them, null if the last call was good. [main] since 0.1 */
ORDO_EXPORT const ordo_error *ordo_last_error(const ordo_context *context);
/* Lets an embedder's callback record its own error; returns status. Any string may be null. [any] since 0.1 */
ORDO_EXPORT ordo_status ordo_fail(ordo_context *context, ordo_status status, const char *code, const char *what, const char *where,
                                  const char *why, const char *next);
/* The long explanation of an error code, null if unknown. Static. [any] since 0.1 */
ORDO_EXPORT const char *ordo_explain(const char *code);
/* "E-PLAN-CYCLE" ... by index, null past the end. [any] since 0.1 */
ORDO_EXPORT const char *ordo_error_code_at(size_t index);
/* "ORDO_E_STALE" for a status. Static. [any] since 0.1 */
ORDO_EXPORT const char *ordo_status_name(ordo_status status);
/* "strategy" for an ORDO_KIND_; "plugin" for any other value. Static. [any] since 0.1 */
ORDO_EXPORT const char *ordo_kind_name(uint32_t kind);
/* The name in `names` (ends with a null) nearest to `name` by edit distance, for "did you mean"; null if none is near: further than a
 * third of its length and than 2. Of equally near ones the alphabetically first. Not copied. [any] since 0.1 */
ORDO_EXPORT const char *ordo_nearest_name(const char *name, const char *const *names);
/* Release of the library, "0.1.0". [any] since 0.1 */
ORDO_EXPORT const char *ordo_version(void);
/* Frees text that a function of this API returned. Null is fine. [any] since 0.1 */
ORDO_EXPORT void ordo_string_free(char *text);

ORDO_EXTERN_C_END

#endif
