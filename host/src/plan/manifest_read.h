/* manifest_read.h - shared by the files that read one manifest (private): manifest.c the lines, option_schema.c the options,
 * manifest_check.c what can be said once all lines are known. */
#ifndef ORDO_PRIVATE_MANIFEST_READ_H
#define ORDO_PRIVATE_MANIFEST_READ_H

#include "manifest.h"

typedef struct manifest_reader {
  ordo_manifest *manifest;
  const char *origin;
  ordo_errors *errors;
  int n_findings;
  int number;      /* of the current line, 1-based */
  char *line_text; /* trimmed */
  char *key;
  int *seen; /* per key of the table: line where it last stood, 0 if never */
  int positional_line;
} manifest_reader;

/* Pushes one finding; line 0 means the whole text. */
void ordo_manifest_complain(manifest_reader *r, int line, const char *next, const char *what, ...) G_GNUC_PRINTF(4, 5);
gboolean ordo_manifest_is_id(const char *text);
/* "did you mean 'X'?", or a copy of `otherwise`. */
char *ordo_manifest_suggest(const char *name, const char *const *names, const char *otherwise);

/* option=key|type|default|range|help */
void ordo_manifest_read_option(manifest_reader *r, const char *value);
void ordo_option_schema_free(gpointer schema);
/* Null if `text` is a legal value, else why not (free it). Exact types and ranges; dtype names are the canonical ones. */
char *ordo_option_schema_refuses(const ordo_option_schema *schema, const char *text);

/* Values of the list keys, conditions, presets: everything that needs the whole text. */
void ordo_manifest_check(manifest_reader *r);

#endif
