/* table.c - aligned columns of text. Rows are kept until all are known, because a column is as wide as its widest cell. */
#include "table.h"

struct ordo_table {
  guint n_columns;
  GPtrArray *rows; /* char**, n_columns each */
};

ordo_table *ordo_table_new(guint n_columns)
{
  ordo_table *table = g_new0(ordo_table, 1);
  table->n_columns = n_columns;
  table->rows = g_ptr_array_new_with_free_func((GDestroyNotify)g_strfreev);
  return table;
}

void ordo_table_free(ordo_table *table)
{
  if (!table)
    return;
  g_ptr_array_unref(table->rows);
  g_free(table);
}

void ordo_table_row(ordo_table *table, const char *const *cells)
{
  char **row = g_new0(char *, table->n_columns + 1);
  for (guint i = 0; i < table->n_columns; i++)
    row[i] = g_strdup(cells[i] ? cells[i] : "");
  g_ptr_array_add(table->rows, row);
}

static glong width(const ordo_table *table, guint column)
{
  glong widest = 0;
  for (guint i = 0; i < table->rows->len; i++) {
    char **row = g_ptr_array_index(table->rows, i);
    widest = MAX(widest, g_utf8_strlen(row[column], -1));
  }
  return widest;
}

void ordo_table_append(const ordo_table *table, GString *out, const char *indent, const char *head)
{
  g_autofree glong *widths = g_new0(glong, table->n_columns);
  for (guint column = 0; column < table->n_columns; column++)
    widths[column] = width(table, column);
  for (guint i = 0; i < table->rows->len; i++) {
    char **row = g_ptr_array_index(table->rows, i);
    gsize start = out->len;
    g_string_append(out, indent);
    for (guint column = 0; column < table->n_columns; column++) {
      g_string_append(out, row[column]);
      for (glong pad = g_utf8_strlen(row[column], -1); column + 1 < table->n_columns && pad < widths[column] + 2; pad++)
        g_string_append_c(out, ' ');
    }
    while (out->len > start && out->str[out->len - 1] == ' ')
      g_string_truncate(out, out->len - 1);
    if (head && i == 0) {
      g_string_insert(out, (gssize)start, head);
      g_string_append(out, ORDO_ESC_RESET);
    }
    g_string_append_c(out, '\n');
  }
}
