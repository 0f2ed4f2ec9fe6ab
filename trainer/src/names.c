/* names.c - see names.h. A key put into the wrong section is the commonest mistake, so an equal last part wins over any spelling. */
#include "names.h"

#include <glib.h>
#include <string.h>

#define LONGEST 128

static size_t edit_distance(const char *a, const char *b)
{
  size_t row[LONGEST + 1];
  size_t n = strlen(b);
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

static const char *last_part(const char *name)
{
  const char *dot = strrchr(name, '.');
  return dot ? dot + 1 : name;
}

const char *ordo_names_nearest(const char *name, const char *const *names)
{
  size_t length = strlen(name);
  size_t best_distance = MAX((size_t)2, length / 3) + 1;
  const char *best = NULL;
  if (length > LONGEST)
    return NULL;
  for (size_t i = 0; names[i]; i++)
    if (strcmp(last_part(names[i]), last_part(name)) == 0)
      return names[i];
  for (size_t i = 0; names[i]; i++) {
    size_t distance = strlen(names[i]) > LONGEST ? G_MAXSIZE : edit_distance(name, names[i]);
    if (distance < best_distance) {
      best_distance = distance;
      best = names[i];
    }
  }
  return best;
}
