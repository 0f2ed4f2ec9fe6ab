/* storage.c - the pool behind regions. See storage.h.
 *
 * A region is a mapping at a fixed place. Taking it maps a slot of the pool's memory file there, with the page tables filled in one go;
 * releasing it maps the NaN file over it. Neither copies nor clears anything. Slots that nobody takes keep their pages only as far as the
 * next group will want them; a hole punched into the file gives the rest back.
 *
 * Guards against: memory that is "freed" into an allocator's cache and never leaves the process (the peak would then be the whole model),
 * and against the silent use of a stale pointer, which would compute with the weights of another group.
 */
#include "sharding.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, HUGE = 2 << 20 };

typedef struct slot {
  off_t offset;
  size_t bytes;
  int taken;
  int counted;
  int held; /* has pages */
} slot;

struct sharding_pool {
  const ordo_job *job;
  int file, nan_file; /* nan_file -1: no poison */
  off_t end;
  slot *slots;
  int32_t n_slots, room;
  uint32_t keep;
};

ordo_status sharding_fail(const ordo_job *job, ordo_status status, const char *hint, const char *format, ...)
{
  char text[1536];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return job->host->fail(job->host->ctx, status, text, hint);
}

static size_t round_up(size_t bytes, size_t unit)
{
  return (bytes + unit - 1) / unit * unit;
}

static ordo_status no_memory(const ordo_job *job, const char *what, size_t bytes)
{
  return sharding_fail(job, ORDO_E_NOMEM, "use more ranks, smaller units (units=block), or offload=disk:DIR", "%s of %zu bytes: %s", what,
                       bytes, strerror(errno));
}

/* From the host's allocator, which leaves no errno. */
static ordo_status no_list(const ordo_job *job, const char *what, size_t bytes)
{
  return sharding_fail(job, ORDO_E_NOMEM, "free memory", "no memory for %s (%zu bytes)", what, bytes);
}

/* A file of NaN (all bits set: NaN in fp32, fp16, bf16 and fp64). */
static int make_nan_file(void)
{
  int file = memfd_create("ordo-nan", MFD_CLOEXEC);
  void *at;
  if (file < 0)
    return -1;
  at = ftruncate(file, HUGE) == 0 ? mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  if (at == MAP_FAILED) {
    close(file);
    return -1;
  }
  memset(at, 0xff, HUGE);
  munmap(at, HUGE);
  return file;
}

/* Counted by alloc, so taken off the account before: the peak does not notice. */
void *sharding_addresses(const ordo_job *job, size_t bytes)
{
  void *addresses;
  job->count_memory(job->ctx, -(int64_t)bytes, ORDO_MEM_WEIGHTS);
  addresses = job->alloc(job->ctx, bytes, ORDO_MEM_WEIGHTS);
  if (addresses == NULL) {
    job->count_memory(job->ctx, (int64_t)bytes, ORDO_MEM_WEIGHTS);
    errno = ENOMEM;
  }
  return addresses;
}

void sharding_give_addresses(const ordo_job *job, void *addresses, size_t bytes)
{
  if (addresses == NULL)
    return;
  job->free(job->ctx, addresses);
  job->count_memory(job->ctx, (int64_t)bytes, ORDO_MEM_WEIGHTS);
}

ordo_status sharding_pool_create(const ordo_job *job, uint32_t keep, int poison, sharding_pool **result)
{
  sharding_pool *pool = job->alloc(job->ctx, sizeof *pool, ORDO_MEM_OTHER);
  *result = NULL;
  if (pool == NULL)
    return no_list(job, "the pool of gathered parameters", sizeof *pool);
  pool->job = job;
  pool->keep = keep;
  pool->file = pool->nan_file = -1;
  *result = pool;
  if (!ordo_job_has_data(job))
    return ORDO_OK;
  pool->file = memfd_create("ordo-gathered", MFD_CLOEXEC);
  if (pool->file >= 0 && poison)
    pool->nan_file = make_nan_file();
  if (pool->file < 0 || (poison && pool->nan_file < 0)) {
    ordo_status status = no_memory(job, "a memory file", HUGE);
    sharding_pool_destroy(pool);
    *result = NULL;
    return status;
  }
  return ORDO_OK;
}

void sharding_pool_destroy(sharding_pool *pool)
{
  if (pool == NULL)
    return;
  sharding_pool_trim(pool);
  if (pool->file >= 0)
    close(pool->file);
  if (pool->nan_file >= 0)
    close(pool->nan_file);
  pool->job->free(pool->job->ctx, pool->slots);
  pool->job->free(pool->job->ctx, pool);
}

/* Puts NaN (or nothing) at the region's addresses. Cannot fail for lack of memory once the range is reserved, but the kernel may refuse one
 * more mapping; the old pages are then still there, which is safe. */
static void map_released(const sharding_pool *pool, const sharding_region *region)
{
  if (!ordo_job_has_data(pool->job))
    return;
  for (size_t at = 0; at < region->mapped; at += HUGE) {
    size_t bytes = region->mapped - at < HUGE ? region->mapped - at : HUGE;
    if (pool->nan_file >= 0)
      (void)mmap(region->base + at, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, pool->nan_file, 0);
    else
      (void)mmap(region->base + at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }
}

ordo_status sharding_region_init(sharding_pool *pool, sharding_region *region, size_t bytes, int counted)
{
  size_t unit = bytes >= HUGE ? HUGE : PAGE; /* large regions start where a large page can */
  memset(region, 0, sizeof *region);
  region->slot = -1;
  region->bytes = bytes;
  region->mapped = round_up(bytes > 0 ? bytes : 1, unit);
  region->counted = counted != 0;
  region->reserved_bytes = region->mapped + (unit == HUGE ? HUGE : 0);
  if (ordo_job_has_data(pool->job))
    region->reserved = mmap(NULL, region->reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  else if ((region->reserved = sharding_addresses(pool->job, region->reserved_bytes)) == NULL)
    region->reserved = MAP_FAILED;
  if (region->reserved == MAP_FAILED) {
    region->reserved = NULL;
    return no_memory(pool->job, "addresses for the gathered parameters of a group", region->reserved_bytes);
  }
  region->base = (char *)region->reserved + (unit - (uintptr_t)region->reserved % unit) % unit;
  map_released(pool, region);
  return ORDO_OK;
}

void sharding_region_clear(sharding_pool *pool, sharding_region *region)
{
  if (region->reserved == NULL)
    return;
  if (region->slot >= 0)
    sharding_region_release(pool, region);
  if (ordo_job_has_data(pool->job))
    munmap(region->reserved, region->reserved_bytes);
  else
    sharding_give_addresses(pool->job, region->reserved, region->reserved_bytes);
  memset(region, 0, sizeof *region);
  region->slot = -1;
}

static void hold(sharding_pool *pool, slot *s, int held)
{
  int64_t bytes = held ? (int64_t)s->bytes : -(int64_t)s->bytes;
  if (s->held == held)
    return;
  if (!held && pool->file >= 0 && fallocate(pool->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, s->offset, (off_t)s->bytes) != 0)
    return; /* the pages stay, and stay counted */
  s->held = held;
  if (ORDO_CAN(pool->job, ordo_job, count_memory))
    pool->job->count_memory(pool->job->ctx, bytes, ORDO_MEM_WEIGHTS);
}

/* The smallest free slot of the same kind that is large enough, those with pages first; a new one at the end of the file otherwise. A root
 * in the slot of a unit would make room for a third unit. */
static ordo_status find_slot(sharding_pool *pool, const sharding_region *region, int32_t *found)
{
  const ordo_job *job = pool->job;
  const size_t bytes = region->mapped;
  *found = -1;
  for (int32_t i = 0; i < pool->n_slots; i++) {
    const slot *s = &pool->slots[i], *best = *found >= 0 ? &pool->slots[*found] : NULL;
    if (s->taken || s->counted != (region->counted != 0) || s->bytes < bytes || s->bytes > 2 * bytes + HUGE)
      continue;
    if (best == NULL || s->held > best->held || (s->held == best->held && s->bytes < best->bytes))
      *found = i;
  }
  if (*found >= 0)
    return ORDO_OK;
  if (pool->n_slots == pool->room) {
    int32_t room = pool->room * 2 + 4;
    slot *larger = job->alloc(job->ctx, (size_t)room * sizeof *larger, ORDO_MEM_OTHER);
    if (larger == NULL)
      return no_list(job, "the list of slots", (size_t)room * sizeof *larger);
    if (pool->n_slots > 0)
      memcpy(larger, pool->slots, (size_t)pool->n_slots * sizeof *larger);
    job->free(job->ctx, pool->slots);
    pool->slots = larger;
    pool->room = room;
  }
  if (pool->file >= 0 && ftruncate(pool->file, pool->end + (off_t)bytes) != 0)
    return no_memory(job, "a slot for gathered parameters", bytes);
  *found = pool->n_slots++;
  pool->slots[*found] = (slot){.offset = pool->end, .bytes = bytes, .counted = region->counted != 0};
  pool->end += (off_t)round_up(bytes, HUGE);
  return ORDO_OK;
}

static uint32_t counted_with_pages(const sharding_pool *pool)
{
  uint32_t n = 0;
  for (int32_t i = 0; i < pool->n_slots; i++)
    n += pool->slots[i].held && pool->slots[i].counted;
  return n;
}

/* Room for one more unit: free slots that are too small for it give their pages back first. */
static void make_room(sharding_pool *pool)
{
  for (int32_t i = 0; i < pool->n_slots && counted_with_pages(pool) >= pool->keep; i++)
    if (!pool->slots[i].taken && pool->slots[i].counted)
      hold(pool, &pool->slots[i], 0);
}

/* Pages of the slot behind the region; none in a dry run. */
static ordo_status map_pages(const sharding_pool *pool, const sharding_region *region, const slot *s)
{
  if (!ordo_job_has_data(pool->job))
    return ORDO_OK;
  if (mmap(region->base, region->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, pool->file, s->offset) == MAP_FAILED)
    return no_memory(pool->job, "the gathered parameters of a group", region->mapped);
  if (region->mapped >= HUGE)
    (void)madvise(region->base, region->mapped, MADV_HUGEPAGE); /* a wish */
#ifdef MADV_POPULATE_WRITE
  if (madvise(region->base, region->mapped, MADV_POPULATE_WRITE) != 0 && errno == ENOMEM) {
    ordo_status failed = no_memory(pool->job, "pages for the gathered parameters of a group", region->mapped);
    map_released(pool, region);
    return failed;
  }
#endif
  return ORDO_OK;
}

ordo_status sharding_region_take(sharding_pool *pool, sharding_region *region)
{
  int32_t index;
  ordo_status status = region->slot < 0 ? find_slot(pool, region, &index) : ORDO_OK;
  if (region->slot >= 0 || status != ORDO_OK)
    return status;
  slot *s = &pool->slots[index];
  if (s->counted && !s->held)
    make_room(pool);
  if ((status = map_pages(pool, region, s)) != ORDO_OK)
    return status;
  s->taken = 1;
  region->slot = index;
  hold(pool, s, 1);
  return ORDO_OK;
}

void sharding_region_release(sharding_pool *pool, sharding_region *region)
{
  if (region->slot < 0)
    return;
  slot *s = &pool->slots[region->slot];
  map_released(pool, region);
  s->taken = 0;
  region->slot = -1;
  if (!s->counted || counted_with_pages(pool) > pool->keep)
    hold(pool, s, 0);
}

void sharding_pool_trim(sharding_pool *pool)
{
  for (int32_t i = 0; i < pool->n_slots; i++)
    if (!pool->slots[i].taken)
      hold(pool, &pool->slots[i], 0);
}
