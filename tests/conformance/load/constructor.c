/* constructor.c - a plugin whose constructor leaves a trace: an empty file, and a variable that the test reads. Finding, listing and
 * planning must not run it. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <ordo/manifest.h>
#include <ordo/plugin.h>

ORDO_MANIFEST("id=constructor\nkind=strategy\nversion=1.0.0\nsummary=writes a file when it is mapped\nmesh_axis=none\n");

__attribute__((constructor)) static void leave_a_trace(void)
{
  const char *path = getenv("ORDO_TEST_TRACE");
  int fd = path ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1;
  if (fd >= 0)
    close(fd);
}

static const void *get_extension(const char *id)
{
  (void)id;
  return 0;
}

ORDO_PLUGIN_ENTRY("constructor", "1.0.0", 0, 0, get_extension);
