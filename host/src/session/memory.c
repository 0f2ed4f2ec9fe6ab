/* memory.c - tagged accounting of a session's memory.
 *
 * What it is: one allocator for weights, gradients, buckets and plugin state, so that "how many bytes does this strategy need" has an
 * exact answer per tag, now and at the peak. What it is not: a pool; blocks come from the context's allocator one by one.
 * The idea: live blocks stand in a hash table, so a double free or a foreign pointer is found instead of corrupting the heap, and
 * whatever a plugin forgot is freed with the session.
 */
#include "memory.h"

#include <string.h>

/* Where blocks of a tag come from when it is not the context. Kept for the life of the memory: blocks point at it. */
typedef struct memory_source {
  ordo_allocator allocator;
  const void *owner;
} memory_source;

typedef struct memory_block {
  size_t bytes;
  uint32_t tag;
  const memory_source *source; /* null: the context, or the space */
} memory_block;

struct ordo_memory {
  ordo_context *context;
  ordo_space *space; /* of a dry run; null: blocks have storage */
  GMutex lock;
  GHashTable *blocks;                            /* address -> memory_block */
  const memory_source *sources[ORDO_N_MEM_TAGS]; /* null: the context */
  GPtrArray *all_sources;
  int64_t now[ORDO_N_MEM_TAGS + 1]; /* the last one is the sum */
  int64_t peak[ORDO_N_MEM_TAGS + 1];
};

static void count(ordo_memory *memory, int64_t bytes, uint32_t tag)
{
  const uint32_t both[2] = {tag, ORDO_N_MEM_TAGS};
  for (int i = 0; i < 2; i++) {
    memory->now[both[i]] += bytes;
    memory->peak[both[i]] = MAX(memory->peak[both[i]], memory->now[both[i]]);
  }
}

static void free_block(ordo_memory *memory, void *pointer, const memory_block *block)
{
  if (ordo_space_has(memory->space, pointer))
    ordo_space_give(memory->space, pointer, block->bytes);
  else if (block->source)
    block->source->allocator.free(block->source->allocator.ctx, pointer, block->bytes);
  else
    memory->context->free(memory->context->alloc_ctx, pointer, block->bytes, block->tag);
}

/* Zeroed memory; *source is where it came from. In a dry run only what plugins and the host keep books in has storage. */
static void *new_block(ordo_memory *memory, size_t bytes, uint32_t tag, const memory_source **source)
{
  void *pointer;
  g_mutex_lock(&memory->lock);
  if (memory->space && tag != ORDO_MEM_OTHER) {
    pointer = ordo_space_take(memory->space, bytes);
    g_mutex_unlock(&memory->lock);
    return pointer;
  }
  *source = memory->sources[tag];
  g_mutex_unlock(&memory->lock);
  if (*source)
    return (*source)->allocator.alloc((*source)->allocator.ctx, bytes);
  pointer = memory->context->alloc(memory->context->alloc_ctx, bytes, tag);
  if (pointer)
    memset(pointer, 0, bytes);
  return pointer;
}

ordo_memory *ordo_memory_new(ordo_context *context, ordo_space *space)
{
  ordo_memory *memory = g_new0(ordo_memory, 1);
  memory->context = context;
  memory->space = space;
  g_mutex_init(&memory->lock);
  memory->blocks = g_hash_table_new_full(NULL, NULL, NULL, g_free);
  memory->all_sources = g_ptr_array_new_with_free_func(g_free);
  return memory;
}

guint ordo_memory_free(ordo_memory *memory)
{
  GHashTableIter iter;
  gpointer pointer, block;
  guint left;
  if (!memory)
    return 0;
  left = g_hash_table_size(memory->blocks);
  g_hash_table_iter_init(&iter, memory->blocks);
  while (g_hash_table_iter_next(&iter, &pointer, &block))
    free_block(memory, pointer, block);
  g_hash_table_unref(memory->blocks);
  g_ptr_array_unref(memory->all_sources);
  g_mutex_clear(&memory->lock);
  g_free(memory);
  return left;
}

void *ordo_memory_alloc(ordo_memory *memory, size_t bytes, uint32_t tag)
{
  const memory_source *source = NULL;
  void *pointer;
  memory_block *block;
  if (bytes == 0 || bytes > (size_t)G_MAXINT64 || tag >= ORDO_N_MEM_TAGS)
    return NULL;
  pointer = new_block(memory, bytes, tag, &source);
  if (!pointer)
    return NULL;
  block = g_new(memory_block, 1);
  block->bytes = bytes;
  block->tag = tag;
  block->source = source;
  g_mutex_lock(&memory->lock);
  g_hash_table_insert(memory->blocks, pointer, block);
  count(memory, (int64_t)bytes, tag);
  g_mutex_unlock(&memory->lock);
  return pointer;
}

gboolean ordo_memory_release(ordo_memory *memory, void *pointer)
{
  g_autofree memory_block *block = NULL;
  if (!pointer)
    return TRUE;
  g_mutex_lock(&memory->lock);
  if (g_hash_table_steal_extended(memory->blocks, pointer, NULL, (gpointer *)&block))
    count(memory, -(int64_t)block->bytes, block->tag);
  g_mutex_unlock(&memory->lock);
  if (!block)
    return FALSE;
  free_block(memory, pointer, block);
  return TRUE;
}

gboolean ordo_memory_set_allocator(ordo_memory *memory, uint32_t tag, const ordo_allocator *allocator, const void *owner)
{
  gboolean mine;
  g_mutex_lock(&memory->lock);
  mine = !memory->sources[tag] || memory->sources[tag]->owner == owner;
  if (mine && allocator) {
    memory_source *source = g_new0(memory_source, 1);
    memcpy(&source->allocator, allocator, MIN(allocator->struct_size, sizeof source->allocator));
    source->owner = owner;
    g_ptr_array_add(memory->all_sources, source);
    memory->sources[tag] = source;
  } else if (mine) {
    memory->sources[tag] = NULL;
  }
  g_mutex_unlock(&memory->lock);
  return mine;
}

void ordo_memory_drop_owner(ordo_memory *memory, const void *owner)
{
  GHashTableIter iter;
  gpointer pointer, value;
  g_mutex_lock(&memory->lock);
  for (int tag = 0; tag < ORDO_N_MEM_TAGS; tag++)
    if (memory->sources[tag] && memory->sources[tag]->owner == owner)
      memory->sources[tag] = NULL;
  g_hash_table_iter_init(&iter, memory->blocks);
  while (g_hash_table_iter_next(&iter, &pointer, &value)) {
    const memory_block *block = value;
    if (!block->source || block->source->owner != owner)
      continue;
    count(memory, -(int64_t)block->bytes, block->tag);
    free_block(memory, pointer, block);
    g_hash_table_iter_remove(&iter);
  }
  g_mutex_unlock(&memory->lock);
}

void ordo_memory_count(ordo_memory *memory, int64_t bytes, uint32_t tag)
{
  g_mutex_lock(&memory->lock);
  count(memory, bytes, tag);
  g_mutex_unlock(&memory->lock);
}

void ordo_memory_usage(ordo_memory *memory, uint32_t tag, int64_t *now, int64_t *peak)
{
  int64_t current = 0, highest = 0;
  g_mutex_lock(&memory->lock);
  if (tag <= ORDO_N_MEM_TAGS) {
    current = memory->now[tag];
    highest = memory->peak[tag];
  }
  g_mutex_unlock(&memory->lock);
  if (now)
    *now = current;
  if (peak)
    *peak = highest;
}
