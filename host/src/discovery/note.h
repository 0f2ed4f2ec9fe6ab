/* note.h - reads ELF notes through pread (private). */
#ifndef ORDO_PRIVATE_NOTE_H
#define ORDO_PRIVATE_NOTE_H

#include <glib.h>

/* A file read by offset only. `size` is what fstat said; nothing is read past it. */
typedef struct ordo_file_view {
  int fd;
  guint64 size;
} ordo_file_view;

/* What a walk over note regions has found. Start from all zero; clear with ordo_notes_clear. */
typedef struct ordo_notes {
  char *text; /* of the manifest, without the NULs at its end, NUL appended; null: none found */
  gsize length;
  guint64 text_offset; /* in the file, so that a note seen through a segment and a section counts once */
  char *build_id;      /* hexadecimal; null: none found */
  guint64 bytes_read;  /* bounded over all regions of a file */
} ordo_notes;

/* Reads exactly `length` bytes; FALSE when they are not all inside the file or the system reports an error. */
gboolean ordo_file_read(const ordo_file_view *file, guint64 offset, void *buffer, gsize length);

/* Walks the notes in `length` bytes at `offset`. FALSE with *reason (a sentence without a full stop) when they are damaged, too
 * large, or when a second manifest stands in the file. */
gboolean ordo_note_walk(const ordo_file_view *file, guint64 offset, guint64 length, guint64 alignment, ordo_notes *notes, char **reason);
void ordo_notes_clear(ordo_notes *notes);

#endif
