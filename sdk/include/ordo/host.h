/* ordo/host.h - what the host offers to a plugin for the life of the process.
 *
 * The table is given to ordo_plugin.init. It serves the process: what belongs to one training job comes with
 * ordo_job (job.h). A plugin may keep the pointer until the matching deinit.
 *
 * Memory: who allocates frees. What changes hands across the boundary is allocated with `alloc` and freed with `free`.
 * Errors: before a plugin returns a status other than ORDO_OK it calls `fail`. The host stamps the record with the plugin,
 * the step and the rank; a status without a record is reported as a defect of the plugin.
 */
#ifndef ORDO_HOST_H
#define ORDO_HOST_H

#include <ordo/status.h>

enum {
  ORDO_LOG_DEBUG = 0,
  ORDO_LOG_INFO = 1,
  ORDO_LOG_WARNING = 2,
  ORDO_LOG_ERROR = 3,
  ORDO_LOG_HOST_BREACH = 4,  /* the host broke the contract (docs/contract.md) */
  ORDO_LOG_PLUGIN_BREACH = 5 /* a plugin broke the contract */
};

typedef struct ordo_host {
  size_t struct_size;
  uint32_t abi_major; /* ABI of the host library, not of the program that embeds it */
  uint32_t abi_minor;
  void *ctx;                   /* first argument of every function below */
  const char *library_version; /* release of libordo, "0.1.0" */
  const char *program_name;    /* the embedding program, "ordo" */
  const char *program_version;

  /* Allocates `bytes` bytes aligned to 64, uninitialised; null when memory is out or bytes is 0. The caller owns it. [any] since 0.1 */
  void *(*alloc)(void *ctx, size_t bytes);
  /* Frees what `alloc` returned. Null is fine. [any] since 0.1 */
  void (*free)(void *ctx, void *pointer);
  /* Records an error and returns `status`, so that a plugin can `return host->fail(...)`. `text` says what and why, `hint`
   * (may be null) what to do next. Both are copied. [any] since 0.1 */
  ordo_status (*fail)(void *ctx, ordo_status status, const char *text, const char *hint);
  /* Logs one finished line (no newline at the end); `severity` is an ORDO_LOG_ value. [any] since 0.1 */
  void (*log)(void *ctx, int32_t severity, const char *text);
  /* A host extension by id, null if there is none; the pointer is valid for the life of the process. [any] since 0.1 */
  const void *(*get_extension)(void *ctx, const char *id);
} ordo_host;
ORDO_PIN_LAST(ordo_host, get_extension);

#endif
