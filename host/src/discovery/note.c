/* note.c - the manifest of a plugin, read from its ELF notes without running or mapping it.
 *
 * This is no ELF library: elf.c finds the regions that hold notes, this file walks them. A note is three 32-bit words (name size,
 * text size, type), the padded name and the padded text.
 *
 * The idea: every length in the file is hostile until it has been compared with what is left of the region, and the region with the
 * file. Everything is read with pread into memory of a bounded size, so that a file that is cut short while it is read gives an
 * error; reading it through a mapping would end the process with SIGBUS.
 */
#include "note.h"

#include <elf.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <ordo/manifest.h>

/* All note regions of one file together. The largest manifest plus room for what compilers write (properties, build id). */
#define NOTES_MAX ((guint64)8 * ORDO_MANIFEST_MAX)
#define BUILD_ID_MAX 64u

gboolean ordo_file_read(const ordo_file_view *file, guint64 offset, void *buffer, gsize length)
{
  char *to = buffer;
  if (offset > file->size || length > file->size - offset)
    return FALSE;
  while (length > 0) {
    ssize_t got = pread(file->fd, to, length, (off_t)offset);
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return FALSE;
    to += got;
    offset += (guint64)got;
    length -= (gsize)got;
  }
  return TRUE;
}

void ordo_notes_clear(ordo_notes *notes)
{
  g_clear_pointer(&notes->text, g_free);
  g_clear_pointer(&notes->build_id, g_free);
}

static gboolean keep_manifest(ordo_notes *notes, const char *text, gsize length, guint64 offset, char **reason)
{
  if (notes->text && notes->text_offset == offset)
    return TRUE;
  if (notes->text) {
    *reason = g_strdup("it has two manifests; ORDO_MANIFEST stands once in a plugin");
    return FALSE;
  }
  if (length > ORDO_MANIFEST_MAX) {
    *reason = g_strdup_printf("its manifest has %" G_GSIZE_FORMAT " bytes, the limit is %d", length, ORDO_MANIFEST_MAX);
    return FALSE;
  }
  while (length > 0 && text[length - 1] == '\0')
    length--;
  notes->text = g_malloc(length + 1);
  memcpy(notes->text, text, length);
  notes->text[length] = '\0';
  notes->length = length;
  notes->text_offset = offset;
  return TRUE;
}

static void keep_build_id(ordo_notes *notes, const guint8 *bytes, gsize length)
{
  if (notes->build_id || length == 0 || length > BUILD_ID_MAX)
    return;
  GString *hex = g_string_sized_new(2 * length);
  for (gsize i = 0; i < length; i++)
    g_string_append_printf(hex, "%02x", bytes[i]);
  notes->build_id = g_string_free(hex, FALSE);
}

static gboolean has_name(const char *name, gsize length, const char *wanted)
{
  return length == strlen(wanted) + 1 && memcmp(name, wanted, length) == 0;
}

gboolean ordo_note_walk(const ordo_file_view *file, guint64 offset, guint64 length, guint64 alignment, ordo_notes *notes, char **reason)
{
  guint64 mask = alignment == 8 ? 7 : 3; /* what binutils and the loader do: anything but 8 counts as 4 */
  if (offset > file->size || length > file->size - offset) {
    *reason = g_strdup("its notes lie outside the file, which is cut short");
    return FALSE;
  }
  if (length > NOTES_MAX - notes->bytes_read) {
    *reason = g_strdup_printf("its notes are larger than %" G_GUINT64_FORMAT " bytes", NOTES_MAX);
    return FALSE;
  }
  notes->bytes_read += length;
  g_autofree char *region = g_malloc((gsize)length + 1);
  if (!ordo_file_read(file, offset, region, (gsize)length)) {
    *reason = g_strdup_printf("its notes could not be read: %s", errno ? g_strerror(errno) : "the file became shorter");
    return FALSE;
  }
  guint64 at = 0;
  while (length - at >= sizeof(Elf64_Nhdr)) {
    Elf64_Nhdr header;
    memcpy(&header, region + at, sizeof header);
    /* Sizes are 32-bit and sums 64-bit: no sum below can wrap. */
    guint64 name = at + sizeof header;
    guint64 text = (name + header.n_namesz + mask) & ~mask;
    guint64 end = text + header.n_descsz;
    if (end > length) {
      *reason = g_strdup("a note is longer than the region it stands in");
      return FALSE;
    }
    if (has_name(region + name, header.n_namesz, ORDO_NOTE_OWNER) && header.n_type == ORDO_NOTE_TYPE &&
        !keep_manifest(notes, region + text, header.n_descsz, offset + text, reason))
      return FALSE;
    if (has_name(region + name, header.n_namesz, ELF_NOTE_GNU) && header.n_type == NT_GNU_BUILD_ID)
      keep_build_id(notes, (const guint8 *)region + text, header.n_descsz);
    at = MIN(length, (end + mask) & ~mask);
  }
  return TRUE;
}
