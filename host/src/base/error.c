/* error.c - error records.
 *
 * A record is what a person needs: what, where, why, and the next command. A failing call may leave several, so that all findings of
 * one run are shown and not only the first. The list is guarded by a mutex because plugins may report from any thread.
 */
#include "error.h"

#include <string.h>

struct ordo_errors {
  GMutex lock;
  GPtrArray *records; /* ordo_error */
  int rank;
};

static void record_free(gpointer data)
{
  ordo_error *record = data;
  g_free((char *)record->code);
  g_free((char *)record->what);
  g_free((char *)record->where);
  g_free((char *)record->why);
  g_free((char *)record->next);
  g_free(record);
}

ordo_errors *ordo_errors_new(void)
{
  ordo_errors *errors = g_new0(ordo_errors, 1);
  g_mutex_init(&errors->lock);
  errors->records = g_ptr_array_new_with_free_func(record_free);
  errors->rank = -1;
  return errors;
}

void ordo_errors_free(ordo_errors *errors)
{
  if (!errors)
    return;
  g_ptr_array_unref(errors->records);
  g_mutex_clear(&errors->lock);
  g_free(errors);
}

void ordo_errors_clear(ordo_errors *errors)
{
  g_mutex_lock(&errors->lock);
  g_ptr_array_set_size(errors->records, 0);
  g_mutex_unlock(&errors->lock);
}

size_t ordo_errors_count(const ordo_errors *errors)
{
  return errors->records->len;
}

const ordo_error *ordo_errors_at(const ordo_errors *errors, size_t index)
{
  return index < errors->records->len ? g_ptr_array_index(errors->records, index) : NULL;
}

void ordo_errors_set_rank(ordo_errors *errors, int rank)
{
  errors->rank = rank;
}

ordo_status ordo_errors_push(ordo_errors *errors, ordo_status status, const char *code, const char *where, const char *why,
                             const char *next, const char *what, ...)
{
  ordo_error *record = g_new0(ordo_error, 1);
  va_list args;
  va_start(args, what);
  record->struct_size = sizeof *record;
  record->status = status;
  record->rank = errors->rank;
  record->code = g_strdup(code ? code : "");
  record->what = g_strdup_vprintf(what, args);
  record->where = g_strdup(where ? where : "");
  record->why = g_strdup(why ? why : "");
  record->next = g_strdup(next ? next : "");
  va_end(args);
  g_mutex_lock(&errors->lock);
  g_ptr_array_add(errors->records, record);
  g_mutex_unlock(&errors->lock);
  return status;
}

/* Levenshtein distance over bytes; names are short. */
static size_t edit_distance(const char *a, const char *b)
{
  size_t n = strlen(b);
  g_autofree size_t *row = g_new(size_t, n + 1);
  for (size_t j = 0; j <= n; j++)
    row[j] = j;
  for (size_t i = 1; a[i - 1]; i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= n; j++) {
      size_t above = row[j];
      size_t change = diagonal + (a[i - 1] != b[j - 1]);
      row[j] = MIN(change, MIN(above, row[j - 1]) + 1);
      diagonal = above;
    }
  }
  return row[n];
}

const char *ordo_nearest_name(const char *name, const char *const *names)
{
  size_t length = name ? strlen(name) : 0;
  size_t best_distance = MAX((size_t)2, length / 3) + 1;
  const char *best = NULL;
  if (!name || !names || length > 256)
    return NULL;
  for (; *names; names++) {
    if (strlen(*names) > 256)
      continue;
    size_t distance = edit_distance(name, *names);
    if (distance < best_distance || (distance == best_distance && best && strcmp(*names, best) < 0)) {
      best_distance = distance;
      best = *names;
    }
  }
  return best;
}
