/* ordo/plugin.h - the one symbol that a plugin exports.
 *
 * A plugin is a shared object with a manifest in an ELF note (manifest.h) and one exported constant, `ordo_plugin_entry`.
 * Everything else is reached through get_extension: a strategy answers "ordo.strategy/1" with an ordo_strategy, a
 * precision plugin "ordo.precision/1" with an ordo_precision, a communication hook "ordo.comm_hook/1".
 *
 * Life cycle: listed (note read, no code run) -> loaded (dlopen, entry compared with the note) -> initialised (init) ->
 * instances created and destroyed -> deinit. A file is never unloaded. init may come again after or before deinit: count it.
 */
#ifndef ORDO_PLUGIN_H
#define ORDO_PLUGIN_H

#include <ordo/host.h>

#define ORDO_PLUGIN_MAGIC 0x4f44524fu /* "ORDO" in memory on a little-endian machine */
#define ORDO_PLUGIN_SYMBOL "ordo_plugin_entry"

typedef struct ordo_plugin {
  uint32_t magic;          /* ORDO_PLUGIN_MAGIC, checked before struct_size is trusted */
  uint32_t abi_major;      /* ORDO_ABI_MAJOR at compile time; another major is refused */
  uint32_t abi_minor;      /* ORDO_ABI_MINOR at compile time */
  uint32_t min_host_minor; /* lowest ABI minor of a host that the plugin can live with */
  size_t struct_size;
  const char *id;      /* as in the manifest */
  const char *version; /* as in the manifest, "1.2.3" */
  /* Prepares the process-wide part. Quick; no communication, threads, files or output. May be called again: count. May be
   * null. Errors: any status, after host->fail; the plugin is then not used. [main] since 0.1 */
  ordo_status (*init)(const ordo_host *host);
  /* Matches one init. After the last one no host function may be called. May be null. [main] since 0.1 */
  void (*deinit)(void);
  /* The table of an extension by its exact id; null for any other id, an empty one and null. The same pointer every
   * time, valid for the life of the process. Required. [any] since 0.1 */
  const void *(*get_extension)(const char *id);
} ordo_plugin;
ORDO_PIN_LAST(ordo_plugin, get_extension);

/* Defines the entry symbol:
 *   ORDO_PLUGIN_ENTRY("my_strategy", "1.0.0", init, deinit, get_extension) */
#define ORDO_PLUGIN_ENTRY(ID, VERSION, INIT, DEINIT, GET_EXTENSION)                                                                \
  ORDO_EXTERN_C_BEGIN extern ORDO_EXPORT const ordo_plugin ordo_plugin_entry;                                                      \
  ORDO_EXTERN_C_END                                                                                                                \
  const ordo_plugin ordo_plugin_entry = {ORDO_PLUGIN_MAGIC, ORDO_ABI_MAJOR, ORDO_ABI_MINOR, 0u,           sizeof(ordo_plugin), ID, \
                                         VERSION,           INIT,           DEINIT,         GET_EXTENSION}

#endif
