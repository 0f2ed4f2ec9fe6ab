/* elf.h - a look at a shared object before anything maps it (private). */
#ifndef ORDO_PRIVATE_ELF_H
#define ORDO_PRIVATE_ELF_H

#include "note.h"

/* What was read of a file that could be a plugin. */
typedef struct ordo_elf {
  char *real_path; /* symbolic links resolved; what is trusted and mapped */
  guint64 device, inode, size, mtime_ns;
  ordo_notes notes;
  GPtrArray *needed;   /* char*: names of the libraries it needs (DT_NEEDED) */
  gboolean static_tls; /* takes thread-local storage from a small fixed pool: loading may fail when others have used it */
} ordo_elf;

/* Looks at the file at an absolute path and runs nothing of it. Null with *reason (what is wrong, freed by the caller) for anything
 * but an undamaged 64-bit shared object of this machine. A file without a manifest is fine here: notes.text is null. */
ordo_elf *ordo_elf_open(const char *path, char **reason);
/* The part after opening: for tests on memory files. Fills everything but the path and the identity. */
gboolean ordo_elf_read(const ordo_file_view *file, ordo_elf *elf, char **reason);
void ordo_elf_free(ordo_elf *elf);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ordo_elf, ordo_elf_free)

#endif
