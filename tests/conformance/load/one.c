/* one.c - a real plugin with one thing wrong, chosen at compile time: each fixture of the loader is this file with other -D. What is not
 * set is as the SDK's macros make it. */
#include <ordo/manifest.h>
#include <ordo/plugin.h>

#ifndef NOTE_ID
#define NOTE_ID "fixture"
#endif
#ifndef NOTE_VERSION
#define NOTE_VERSION "1.0.0"
#endif
#ifndef MAGIC
#define MAGIC ORDO_PLUGIN_MAGIC
#endif
#ifndef MAJOR
#define MAJOR ORDO_ABI_MAJOR
#endif
#ifndef MINOR
#define MINOR ORDO_ABI_MINOR
#endif
#ifndef MIN_HOST_MINOR
#define MIN_HOST_MINOR 0u
#endif
#ifndef STRUCT_SIZE
#define STRUCT_SIZE sizeof(ordo_plugin)
#endif
#ifndef GET_EXTENSION
#define GET_EXTENSION get_extension
#endif

#ifndef NO_NOTE
ORDO_MANIFEST("id=" NOTE_ID "\n"
              "kind=strategy\n"
              "version=" NOTE_VERSION "\n"
              "summary=a plugin with one thing wrong\n"
              "mesh_axis=none\n");
#endif

const void *get_extension(const char *id);
const void *get_extension(const char *id)
{
  (void)id;
  return 0;
}

#ifdef LONGER
/* As built by a later SDK: fields follow that this host does not know. */
typedef struct longer_plugin {
  ordo_plugin known;
  uint64_t later[4];
} longer_plugin;
extern ORDO_EXPORT const longer_plugin ordo_plugin_entry;
const longer_plugin ordo_plugin_entry = {
    {MAGIC, MAJOR, MINOR, MIN_HOST_MINOR, sizeof(longer_plugin), "fixture", "1.0.0", 0, 0, GET_EXTENSION}, {~0ull, ~0ull, ~0ull, ~0ull}};
#elif defined(TINY)
extern ORDO_EXPORT const uint32_t ordo_plugin_entry;
const uint32_t ordo_plugin_entry = ORDO_PLUGIN_MAGIC;
#elif defined(FUNCTION)
ORDO_EXPORT void ordo_plugin_entry(void);
void ordo_plugin_entry(void)
{
}
#elif defined(BORROW)
/* Named, so that the linker keeps the library that defines it. */
extern const ordo_plugin ordo_plugin_entry;
extern const ordo_plugin *const borrowed_entry;
const ordo_plugin *const borrowed_entry = &ordo_plugin_entry;
#elif !defined(NO_ENTRY)
extern ORDO_EXPORT const ordo_plugin ordo_plugin_entry;
const ordo_plugin ordo_plugin_entry = {MAGIC, MAJOR, MINOR, MIN_HOST_MINOR, STRUCT_SIZE, "fixture", "1.0.0", 0, 0, GET_EXTENSION};
#endif
