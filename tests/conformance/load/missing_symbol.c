/* missing_symbol.c - a plugin that uses a function which no library of it defines (linked without -z defs). */
#include <ordo/manifest.h>
#include <ordo/plugin.h>

ORDO_MANIFEST("id=missing_symbol\nkind=strategy\nversion=1.0.0\nsummary=uses a function that nobody defines\nmesh_axis=none\n");

extern const void *ordo_test_nobody_defines_this(const char *id);

static const void *get_extension(const char *id)
{
  return ordo_test_nobody_defines_this(id);
}

ORDO_PLUGIN_ENTRY("missing_symbol", "1.0.0", 0, 0, get_extension);
