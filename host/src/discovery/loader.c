/* loader.c - maps a plugin and checks that it is what its note says.
 *
 * It calls nothing of the plugin but what the dynamic loader calls (constructors), and it never unmaps: nobody can know what still
 * points into a library (thread-local destructors, registered types), so RTLD_NODELETE and no dlclose.
 *
 * The idea: the plan was made from the note, so the file must still be the one that was read, the code must come from that file, and
 * its entry must agree with the note in every field. All differences are reported at once, each with both values. By then
 * constructors have run: the check narrows the race of an exchanged file, the rule about writable directories closes it.
 */
#include "loader.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "elf.h"
#include "probe.h"

typedef struct ordo_mapping {
  guint64 major, minor, inode;
} ordo_mapping;

/* The line of /proc/self/maps that covers `address`. */
static gboolean mapping_of(const void *address, ordo_mapping *mapping)
{
  guint64 wanted = (guint64)(uintptr_t)address, from, to;
  char *line = NULL;
  size_t capacity = 0;
  gboolean found = FALSE;
  FILE *maps = fopen("/proc/self/maps", "re");
  if (!maps)
    return FALSE;
  while (!found && getline(&line, &capacity, maps) > 0)
    found =
        sscanf(line,
               "%" G_GINT64_MODIFIER "x-%" G_GINT64_MODIFIER "x %*s %*x %" G_GINT64_MODIFIER "x:%" G_GINT64_MODIFIER "x %" G_GUINT64_FORMAT,
               &from, &to, &mapping->major, &mapping->minor, &mapping->inode) == 5 &&
        wanted >= from && wanted < to;
  free(line);
  fclose(maps);
  return found;
}

/* Is `address` mapped from the file behind `fd`? Device numbers in maps are not those of stat on file systems with layers (overlayfs,
 * btrfs), so the file is mapped once more and the two lines of maps are compared. Without /proc: what the path names now. */
static gboolean mapped_from(const void *address, int fd, const struct link_map *map)
{
  ordo_mapping of_code, of_file;
  struct stat opened, named;
  void *page = mmap(NULL, 1, PROT_READ, MAP_PRIVATE, fd, 0);
  if (page == MAP_FAILED)
    return FALSE;
  gboolean readable = mapping_of(page, &of_file) && mapping_of(address, &of_code);
  munmap(page, 1);
  if (readable)
    return of_code.inode == of_file.inode && of_code.major == of_file.major && of_code.minor == of_file.minor;
  return fstat(fd, &opened) == 0 && stat(map->l_name, &named) == 0 && opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

static ordo_status abi_error(const ordo_found *found, ordo_errors *errors, const char *why, const char *next, const char *what)
{
  return ordo_errors_push(errors, ORDO_E_REFUSED, "E-PLUGIN-ABI", found->info.path, why, next, "plugin '%s': %s", found->info.id, what);
}

static ordo_status mismatch(const ordo_found *found, ordo_errors *errors, const char *field, const char *note, const char *entry)
{
  g_autofree char *why = g_strdup_printf("the manifest says %s, the entry says %s", note, entry ? entry : "nothing");
  return ordo_errors_push(errors, ORDO_E_REFUSED, "E-PLUGIN-MISMATCH", found->info.path, why,
                          "make ORDO_MANIFEST and ORDO_PLUGIN_ENTRY agree and rebuild the plugin",
                          "plugin '%s': its entry differs from its manifest in %s", found->info.id, field);
}

static ordo_status exchanged(const ordo_found *found, ordo_errors *errors)
{
  return ordo_errors_push(errors, ORDO_E_REFUSED, "E-PLUGIN-CHANGED", found->info.path,
                          "the file at this path, or the one mapped, is not the one that was read",
                          "start again; if it happens again, see who writes to the directory", "the file of plugin '%s' was exchanged",
                          found->info.id);
}

/* A descriptor that pins the file that was read for the plan; -1 if another one stands at the path by now. */
static int open_same(const ordo_found *found, const char *real_path)
{
  struct stat now;
  int fd = open(real_path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0)
    return -1;
  gboolean same = fstat(fd, &now) == 0 && now.st_ino == found->inode && now.st_dev == found->device &&
                  (guint64)now.st_size == found->size &&
                  (guint64)now.st_mtim.tv_sec * 1000000000u + (guint64)now.st_mtim.tv_nsec == found->mtime_ns;
  if (same)
    return fd;
  close(fd);
  return -1;
}

/* Pre-flight and owners once more, since a copy may have been cut short or a directory opened to others in between. */
static ordo_status look_again(const ordo_found *found, uint32_t context_flags, ordo_errors *errors, char **real_path)
{
  ordo_probe *now = ordo_probe_file(found->info.path, found->info.source, context_flags);
  ordo_status status = ORDO_OK;
  if (now->found.info.state == ORDO_PLUGIN_REFUSED)
    status = ordo_errors_push(errors, ORDO_E_REFUSED, now->code, found->info.path, now->found.info.reason,
                              "cure the reason, or choose another plugin: ordo list", "plugin '%s' is refused", found->info.id);
  else
    *real_path = g_strdup(now->real_path);
  ordo_probe_free(now);
  return status;
}

static ordo_status map_error(const ordo_found *found, const char *text, ordo_errors *errors)
{
  const char *next = "run: ldd -r FILE; the plugin must name every library that it uses when it is linked (-Wl,-z,defs)";
  if (strstr(text, "static TLS"))
    next = "the small pool of thread-local storage that is set aside at start is used up: compile the plugin without "
           "-ftls-model=initial-exec, or start with GLIBC_TUNABLES=glibc.rtld.optional_static_tls=65536";
  return ordo_errors_push(errors, ORDO_E_REFUSED, "E-PLUGIN-LOAD", found->info.path, text, next, "plugin '%s' cannot be loaded",
                          found->info.id);
}

/* Finds the entry in the file itself: dlsym also looks into the libraries that the file needs. */
static ordo_status find_entry(const ordo_found *found, void *handle, ordo_errors *errors, const ordo_plugin **entry,
                              const Elf64_Sym **symbol, const struct link_map **map)
{
  const struct link_map *own = NULL, *origin = NULL;
  Dl_info info;
  *entry = dlsym(handle, ORDO_PLUGIN_SYMBOL);
  if (!*entry)
    return abi_error(found, errors, "the file does not export " ORDO_PLUGIN_SYMBOL,
                     "add ORDO_PLUGIN_ENTRY, and export it in the version script", "it has no entry");
  if (dlinfo(handle, RTLD_DI_LINKMAP, &own) != 0 || !dladdr1(*entry, &info, (void **)&origin, RTLD_DL_LINKMAP))
    return abi_error(found, errors, "the dynamic loader does not say where " ORDO_PLUGIN_SYMBOL " comes from", "report this file",
                     "its entry cannot be attributed");
  if (own != origin) {
    g_autofree char *why = g_strdup_printf("the file itself has none, " ORDO_PLUGIN_SYMBOL " comes from %s", origin->l_name);
    return abi_error(found, errors, why, "define ORDO_PLUGIN_ENTRY in the plugin; a library that it needs must not be a plugin",
                     "its entry is that of another library");
  }
  *map = own;
  if (!dladdr1(*entry, &info, (void **)symbol, RTLD_DL_SYMENT) || !*symbol || ELF64_ST_TYPE((*symbol)->st_info) != STT_OBJECT)
    return abi_error(found, errors, ORDO_PLUGIN_SYMBOL " is not a constant of type ordo_plugin", "use ORDO_PLUGIN_ENTRY",
                     "its entry is no entry");
  return ORDO_OK;
}

/* Magic, size and version range: until they are right, no further field may be read. */
static ordo_status negotiate(const ordo_found *found, const ordo_plugin *entry, guint64 symbol_size, ordo_errors *errors)
{
  const size_t needed = ORDO_SIZE_THROUGH(ordo_plugin, get_extension);
  g_autofree char *why = NULL;
  if (symbol_size < ORDO_SIZE_THROUGH(ordo_plugin, struct_size) || entry->magic != ORDO_PLUGIN_MAGIC) {
    why = symbol_size < sizeof entry->magic ? g_strdup_printf("it has %" G_GUINT64_FORMAT " bytes", symbol_size)
                                            : g_strdup_printf("magic is 0x%08x, not 0x%08x", entry->magic, ORDO_PLUGIN_MAGIC);
    return abi_error(found, errors, why, "use ORDO_PLUGIN_ENTRY of ordo/plugin.h", "its entry is not one of Ordo");
  }
  if (entry->abi_major != ORDO_ABI_MAJOR) {
    why = g_strdup_printf("abi_major is %u, this host has %u", entry->abi_major, ORDO_ABI_MAJOR);
    return abi_error(found, errors, why,
                     entry->abi_major < ORDO_ABI_MAJOR ? "rebuild the plugin with this release's headers" : "use a newer Ordo",
                     "it was built for another plugin ABI");
  }
  ordo_status status = ORDO_OK;
  if (entry->min_host_minor > ORDO_ABI_MINOR) {
    why = g_strdup_printf("min_host_minor is %u, this host has ABI %u.%u", entry->min_host_minor, ORDO_ABI_MAJOR, ORDO_ABI_MINOR);
    status = abi_error(found, errors, why, "use a newer Ordo, or an older version of the plugin", "it needs a newer host");
  }
  if (entry->struct_size < needed || symbol_size < entry->struct_size) {
    g_autofree char *sizes =
        entry->struct_size < needed
            ? g_strdup_printf("struct_size is %zu, this host needs %zu", entry->struct_size, needed)
            : g_strdup_printf("struct_size is %zu, the symbol has %" G_GUINT64_FORMAT, entry->struct_size, symbol_size);
    return abi_error(found, errors, sizes, "rebuild the plugin; struct_size is sizeof(ordo_plugin)", "its entry is too short");
  }
  return status;
}

static ordo_status compare(const ordo_found *found, const ordo_plugin *entry, ordo_errors *errors)
{
  const ordo_manifest *note = found->manifest;
  ordo_status status = ORDO_OK;
  if (!entry->id || strcmp(entry->id, note->id) != 0)
    status = mismatch(found, errors, "id", note->id, entry->id);
  if (!entry->version || strcmp(entry->version, note->version) != 0)
    status = mismatch(found, errors, "version", note->version, entry->version);
  if (entry->abi_major != note->abi_major || entry->abi_minor != note->abi_minor) {
    g_autofree char *by_note = g_strdup_printf("%u.%u", note->abi_major, note->abi_minor);
    g_autofree char *by_entry = g_strdup_printf("%u.%u", entry->abi_major, entry->abi_minor);
    status = mismatch(found, errors, "abi", by_note, by_entry);
  }
  if (!entry->get_extension)
    status = abi_error(found, errors, "get_extension is null, and everything else is reached through it",
                       "give ORDO_PLUGIN_ENTRY a function", "its entry is incomplete");
  return status;
}

static ordo_status check_entry(const ordo_found *found, void *handle, int fd, ordo_errors *errors, const ordo_plugin **result)
{
  const ordo_plugin *entry;
  const Elf64_Sym *symbol = NULL;
  const struct link_map *map = NULL;
  ordo_status status = find_entry(found, handle, errors, &entry, &symbol, &map);
  if (status)
    return status;
  if (!mapped_from(entry, fd, map))
    return exchanged(found, errors);
  status = negotiate(found, entry, symbol->st_size, errors);
  /* A host that is too old for the plugin can still name what else differs. */
  if (symbol->st_size >= sizeof *entry && entry->magic == ORDO_PLUGIN_MAGIC && entry->abi_major == ORDO_ABI_MAJOR &&
      entry->struct_size >= sizeof *entry && compare(found, entry, errors))
    status = ORDO_E_REFUSED;
  if (!status)
    *result = entry;
  return status;
}

ordo_status ordo_loader_open(const ordo_found *found, uint32_t context_flags, ordo_errors *errors, const ordo_plugin **entry)
{
  g_autofree char *real_path = NULL;
  *entry = NULL;
  if (!found->manifest || found->info.state == ORDO_PLUGIN_REFUSED)
    return ordo_errors_push(errors, ORDO_E_REFUSED, "E-PLUGIN-REFUSED", found->info.path, found->info.reason,
                            "cure the reason, or choose another plugin: ordo list", "a refused plugin cannot be loaded");
  ordo_status status = look_again(found, context_flags, errors, &real_path);
  if (status)
    return status;
  int fd = open_same(found, real_path);
  if (fd < 0)
    return exchanged(found, errors);
  void *handle = dlopen(real_path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle) {
    status = check_entry(found, handle, fd, errors, entry);
  } else {
    const char *text = dlerror();
    status = map_error(found, text ? text : "no reason given", errors);
  }
  close(fd);
  return status;
}
