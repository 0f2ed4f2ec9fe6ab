/* names.c - see names.h. A key put into the wrong section is the commonest mistake, so an equal last part wins over any spelling. */
#include "names.h"

#include <ordo/context.h>
#include <string.h>

static const char *last_part(const char *name)
{
  const char *dot = strrchr(name, '.');
  return dot ? dot + 1 : name;
}

const char *ordo_names_nearest(const char *name, const char *const *names)
{
  for (size_t i = 0; names[i]; i++)
    if (strcmp(last_part(names[i]), last_part(name)) == 0)
      return names[i];
  return ordo_nearest_name(name, names);
}
