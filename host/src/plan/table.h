/* table.h - aligned columns of text (private). Widths count characters, not bytes; the last column is not padded. */
#ifndef ORDO_PRIVATE_TABLE_H
#define ORDO_PRIVATE_TABLE_H

#include <glib.h>

typedef struct ordo_table ordo_table;

ordo_table *ordo_table_new(guint n_columns);
void ordo_table_free(ordo_table *table);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ordo_table, ordo_table_free)
/* A row of n_columns texts, copied; null counts as empty. */
void ordo_table_row(ordo_table *table, const char *const *cells);
/* Appends all rows, each with `indent` in front, columns two blanks apart. `head` is an escape for the first row, null for none. */
void ordo_table_append(const ordo_table *table, GString *out, const char *indent, const char *head);

#define ORDO_ESC_BOLD "\033[1m"
#define ORDO_ESC_RED "\033[31m"
#define ORDO_ESC_GREEN "\033[32m"
#define ORDO_ESC_RESET "\033[0m"

#endif
