/* space.c - addresses without memory. See space.h.
 *
 * One reservation that nobody may read or write, cut from its beginning. It takes no memory and no page tables, so the storage of a model
 * of any size costs nothing, yet every pointer is distinct and pointer arithmetic works. Guards against the two ways in which a dry run
 * could lie: data that is silently touched (it faults instead), and a second formula for sizes (the allocator itself does the counting).
 */
#include "space.h"

#include <sys/mman.h>

/* Half of what a process can address, and the least that is worth having: a limit on address space (ulimit -v) makes it smaller. */
#define MOST_BYTES ((size_t)1 << 46)
#define LEAST_BYTES ((size_t)1 << 26)
enum { ALIGN = 64 };

struct ordo_space {
  GMutex lock; /* of `used` */
  char *base;
  size_t bytes, used;
};

static size_t rounded(size_t bytes)
{
  return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

ordo_space *ordo_space_new(void)
{
  ordo_space *space;
  void *base = MAP_FAILED;
  size_t bytes = MOST_BYTES;
  for (; base == MAP_FAILED && bytes >= LEAST_BYTES; bytes /= 2)
    if ((base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) != MAP_FAILED)
      break;
  if (base == MAP_FAILED)
    return NULL;
  space = g_new0(ordo_space, 1);
  g_mutex_init(&space->lock);
  space->base = base;
  space->bytes = bytes;
  return space;
}

void ordo_space_free(ordo_space *space)
{
  if (!space)
    return;
  munmap(space->base, space->bytes);
  g_mutex_clear(&space->lock);
  g_free(space);
}

void *ordo_space_take(ordo_space *space, size_t bytes)
{
  void *pointer = NULL;
  if (bytes == 0 || bytes > space->bytes)
    return NULL;
  bytes = rounded(bytes);
  g_mutex_lock(&space->lock);
  if (bytes <= space->bytes - space->used) {
    pointer = space->base + space->used;
    space->used += bytes;
  }
  g_mutex_unlock(&space->lock);
  return pointer;
}

void ordo_space_give(ordo_space *space, const void *pointer, size_t bytes)
{
  bytes = rounded(bytes);
  g_mutex_lock(&space->lock);
  if ((const char *)pointer + bytes == space->base + space->used)
    space->used -= bytes;
  g_mutex_unlock(&space->lock);
}

gboolean ordo_space_has(const ordo_space *space, const void *pointer)
{
  return space && (const char *)pointer >= space->base && (const char *)pointer < space->base + space->bytes;
}
