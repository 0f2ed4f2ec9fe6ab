/* kernels_memory.c - see kernels_memory.h. Huge pages are a wish: where the system has none, nothing is lost. */
#include "kernels_memory.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { VECTOR_ALIGN = 64, HUGE_PAGE = 2 << 20, HUGE_FROM = 2 << 20 };

void *kernels_alloc(void *ctx, size_t bytes, uint32_t tag)
{
  void *memory = NULL;
  (void)ctx;
  (void)tag;
  if (posix_memalign(&memory, bytes >= HUGE_FROM ? HUGE_PAGE : VECTOR_ALIGN, bytes == 0 ? 1 : bytes) != 0)
    return NULL;
#ifdef MADV_HUGEPAGE
  /* Whole huge pages only, so that rounding up costs no memory. */
  if (bytes >= HUGE_FROM)
    (void)madvise(memory, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
  return memory;
}

void kernels_free(void *ctx, void *memory)
{
  (void)ctx;
  free(memory);
}
