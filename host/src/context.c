/* context.c - the object that an embedder makes first.
 *
 * It holds no logic of its own: what was found (registry), what went wrong (errors), and the callbacks for text and memory. There is
 * no global state, so that a framework and a library inside it can each have a context in one process.
 *
 * The rule that every public entry point keeps: clear the records first, so that "the last error" never tells of an earlier call.
 */
#include "context.h"

#include <stdlib.h>
#include <string.h>

#define MEMORY_ALIGNMENT 64u /* a cache line, and the widest vector register */

static const struct {
  const char *code, *text;
} error_codes[] = {
#define ORDO_ERROR(CODE, TITLE, EXPLANATION) {CODE, TITLE "\n\n" EXPLANATION},
#include "base/errors.def"
#undef ORDO_ERROR
};

static const char *const status_names[] = {
    [ORDO_OK] = "ORDO_OK",
    [ORDO_E_INVALID] = "ORDO_E_INVALID",
    [ORDO_E_UNSUPPORTED] = "ORDO_E_UNSUPPORTED",
    [ORDO_E_UNAVAILABLE] = "ORDO_E_UNAVAILABLE",
    [ORDO_E_NOMEM] = "ORDO_E_NOMEM",
    [ORDO_E_STATE] = "ORDO_E_STATE",
    [ORDO_E_INTERNAL] = "ORDO_E_INTERNAL",
    [ORDO_E_STALE] = "ORDO_E_STALE",
    [ORDO_E_CONFLICT] = "ORDO_E_CONFLICT",
    [ORDO_E_REFUSED] = "ORDO_E_REFUSED",
    [ORDO_E_NOT_FOUND] = "ORDO_E_NOT_FOUND",
    [ORDO_E_IO] = "ORDO_E_IO",
    [ORDO_E_TIMEOUT] = "ORDO_E_TIMEOUT",
    [ORDO_E_PEER_LOST] = "ORDO_E_PEER_LOST",
    [ORDO_E_MISMATCH] = "ORDO_E_MISMATCH",
    [ORDO_E_INVARIANT] = "ORDO_E_INVARIANT",
};

static void *default_alloc(void *alloc_ctx, size_t bytes, uint32_t tag)
{
  void *memory = NULL;
  (void)alloc_ctx, (void)tag;
  if (bytes == 0 || bytes > PTRDIFF_MAX || posix_memalign(&memory, MEMORY_ALIGNMENT, bytes) != 0)
    return NULL;
  return memory;
}

static void default_free(void *alloc_ctx, void *pointer, size_t bytes, uint32_t tag)
{
  (void)alloc_ctx, (void)bytes, (void)tag;
  free(pointer);
}

/* The options as this library knows them: what an older embedder does not have is null. FALSE if they cannot be meant. */
static gboolean read_options(const ordo_context_options *given, ordo_context_options *options)
{
  memset(options, 0, sizeof *options);
  if (!given)
    return TRUE;
  if (given->struct_size < ORDO_SIZE_THROUGH(ordo_context_options, reserved))
    return FALSE;
  memcpy(options, given, MIN(given->struct_size, sizeof *options));
  const uint32_t known = ORDO_CONTEXT_ALLOW_INSECURE | ORDO_CONTEXT_NO_ENVIRONMENT | ORDO_CONTEXT_NO_DEFAULT_PATH;
  return (options->flags & ~known) == 0 && !options->alloc == !options->free;
}

/* What the scan found odd is a warning, not the error of a call. */
static void log_warnings(ordo_context *context)
{
  for (size_t i = 0; i < ordo_errors_count(context->errors); i++) {
    const ordo_error *warning = ordo_errors_at(context->errors, i);
    ordo_context_log(context, ORDO_LOG_WARNING, "%s: %s: %s%s%s; %s", warning->code, warning->where, warning->what,
                     *warning->why ? ": " : "", warning->why, warning->next);
  }
  ordo_errors_clear(context->errors);
}

ordo_status ordo_context_create(const ordo_context_options *given, ordo_context **result)
{
  ordo_context_options options;
  if (!result)
    return ORDO_E_INVALID;
  *result = NULL;
  if (!read_options(given, &options))
    return ORDO_E_INVALID;
  ordo_context *context = g_try_new0(ordo_context, 1);
  if (!context)
    return ORDO_E_NOMEM;
  context->errors = ordo_errors_new();
  context->program_name = g_strdup(options.program_name ? options.program_name : "unknown");
  context->program_version = g_strdup(options.program_version ? options.program_version : "");
  context->log = options.log;
  context->log_ctx = options.log_ctx;
  context->alloc = options.alloc ? options.alloc : default_alloc;
  context->free = options.free ? options.free : default_free;
  context->alloc_ctx = options.alloc_ctx;
  ordo_registry_options search = {options.plugin_path, options.flags};
  context->registry = ordo_registry_scan(&search, context->errors);
  log_warnings(context);
  *result = context;
  return ORDO_OK;
}

void ordo_context_destroy(ordo_context *context)
{
  if (!context)
    return;
  ordo_registry_free(context->registry);
  ordo_errors_free(context->errors);
  g_free(context->program_name);
  g_free(context->program_version);
  g_free(context);
}

void ordo_context_log(ordo_context *context, int severity, const char *format, ...)
{
  va_list args;
  if (!context->log)
    return;
  va_start(args, format);
  g_autofree char *text = g_strdup_vprintf(format, args);
  va_end(args);
  context->log(context->log_ctx, severity, text);
}

size_t ordo_context_n_plugins(const ordo_context *context)
{
  return context ? ordo_registry_count(context->registry) : 0;
}

const ordo_plugin_info *ordo_context_plugin(const ordo_context *context, size_t index)
{
  const ordo_found *found = context ? ordo_registry_at(context->registry, index) : NULL;
  return found ? &found->info : NULL;
}

ordo_status ordo_context_find(ordo_context *context, const char *name, const ordo_plugin_info **info)
{
  const ordo_found *found = NULL;
  if (info)
    *info = NULL;
  if (!context)
    return ORDO_E_INVALID;
  ordo_errors_clear(context->errors);
  if (!name)
    return ordo_errors_push(context->errors, ORDO_E_INVALID, "E-ARGUMENT-NULL", "ordo_context_find", "it is what is looked for",
                            "pass an id, an alias, id@version or a path", "'name' is a null pointer");
  ordo_status status = ordo_registry_find(context->registry, name, 0, &found, NULL, context->errors);
  if (info)
    *info = found ? &found->info : NULL;
  return status;
}

char *ordo_context_search_report(ordo_context *context)
{
  return context ? ordo_registry_search_report(context->registry) : g_strdup("");
}

size_t ordo_n_errors(const ordo_context *context)
{
  return context ? ordo_errors_count(context->errors) : 0;
}

const ordo_error *ordo_error_at(const ordo_context *context, size_t index)
{
  return context ? ordo_errors_at(context->errors, index) : NULL;
}

const ordo_error *ordo_last_error(const ordo_context *context)
{
  return context ? ordo_errors_at(context->errors, 0) : NULL;
}

ordo_status ordo_fail(ordo_context *context, ordo_status status, const char *code, const char *what, const char *where, const char *why,
                      const char *next)
{
  if (context)
    ordo_errors_push(context->errors, status, code, where, why, next, "%s", what ? what : "");
  return status;
}

const char *ordo_explain(const char *code)
{
  for (size_t i = 0; code && i < G_N_ELEMENTS(error_codes); i++)
    if (strcmp(error_codes[i].code, code) == 0)
      return error_codes[i].text;
  return NULL;
}

const char *ordo_error_code_at(size_t index)
{
  return index < G_N_ELEMENTS(error_codes) ? error_codes[index].code : NULL;
}

const char *ordo_status_name(ordo_status status)
{
  if (status < 0 || (size_t)status >= G_N_ELEMENTS(status_names) || !status_names[status])
    return "ORDO_E_INTERNAL"; /* status.h: what is not known counts as this */
  return status_names[status];
}

const char *ordo_version(void)
{
  return ORDO_VERSION;
}

void ordo_string_free(char *text)
{
  g_free(text);
}
