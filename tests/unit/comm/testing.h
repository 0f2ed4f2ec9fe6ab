/* testing.h - what the tests of this folder share: cmocka, and a context without the rest of the host. */
#ifndef ORDO_TEST_COMM_H
#define ORDO_TEST_COMM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>
#include "comm/axes.h"
#include "context.h"

static inline struct ordo_context test_context(void)
{
  struct ordo_context context;
  memset(&context, 0, sizeof context);
  context.errors = ordo_errors_new();
  return context;
}

static inline const char *last_text(const struct ordo_context *context)
{
  size_t n = ordo_errors_count(context->errors);
  return n ? ordo_errors_at(context->errors, n - 1)->what : "";
}

static inline const char *last_code(const struct ordo_context *context)
{
  size_t n = ordo_errors_count(context->errors);
  return n ? ordo_errors_at(context->errors, n - 1)->code : "";
}

#define assert_contains(TEXT, PART)                       \
  do {                                                    \
    if (!strstr(TEXT, PART))                              \
      fail_msg("'%s' does not contain '%s'", TEXT, PART); \
  } while (0)

#endif
