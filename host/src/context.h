/* context.h - the inside of ordo_context (private). */
#ifndef ORDO_PRIVATE_CONTEXT_H
#define ORDO_PRIVATE_CONTEXT_H

#include "base/error.h"
#include "discovery/registry.h"

struct ordo_context {
  ordo_errors *errors;
  ordo_registry *registry;
  char *program_name, *program_version;
  void (*log)(void *log_ctx, int32_t severity, const char *text);
  void *log_ctx;
  void *(*alloc)(void *alloc_ctx, size_t bytes, uint32_t tag);
  void (*free)(void *alloc_ctx, void *pointer, size_t bytes, uint32_t tag);
  void *alloc_ctx;
};

/* Logs a formatted line through the context's callback. */
void ordo_context_log(ordo_context *context, int severity, const char *format, ...) G_GNUC_PRINTF(3, 4);

#endif
