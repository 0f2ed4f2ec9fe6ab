/* check.h - small helpers of the plan's unit tests: cmocka, and manifests written in place. */
#ifndef ORDO_TEST_PLAN_CHECK_H
#define ORDO_TEST_PLAN_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "plan/manifest.h"
#include <string.h>

/* Some finding's `what`, `where` or `next` contains `part`. */
static inline gboolean errors_mention(const ordo_errors *errors, const char *part)
{
  for (size_t i = 0; i < ordo_errors_count(errors); i++) {
    const ordo_error *error = ordo_errors_at(errors, i);
    if (strstr(error->what, part) || strstr(error->where, part) || strstr(error->next, part))
      return TRUE;
  }
  return FALSE;
}

static inline void print_errors(const ordo_errors *errors)
{
  for (size_t i = 0; i < ordo_errors_count(errors); i++) {
    const ordo_error *error = ordo_errors_at(errors, i);
    print_message("  %s: %s (%s) %s\n", error->where, error->what, error->why, error->next);
  }
}

#endif
