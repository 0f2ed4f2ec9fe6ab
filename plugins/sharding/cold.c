/* cold.c - see cold.h. One file per rank; blocks are appended, and a freed one leaves a hole without disk space behind it. */
#include "cold.h"

#include "sharding.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

typedef struct block {
  void *memory;
  off_t offset;
} block;

struct sharding_cold {
  const ordo_job *job;
  pthread_mutex_t lock;
  int file;
  off_t end;
  block *blocks; /* live ones, unordered */
  size_t n_blocks, room;
  char directory[1024];
};

static size_t pages(size_t bytes)
{
  return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* A file without a name where the file system has that, else one whose name is removed at once. */
static int open_unnamed(const char *directory)
{
  char path[1100];
  int file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
    return file;
  snprintf(path, sizeof path, "%s/ordo-cold-XXXXXX", directory);
  file = mkstemp(path);
  if (file >= 0)
    unlink(path);
  return file;
}

ordo_status sharding_cold_create(const ordo_job *job, const char *directory, sharding_cold **result)
{
  *result = NULL;
  if (directory == NULL)
    return ORDO_OK;
  if (directory[0] == '\0' || strlen(directory) >= sizeof((sharding_cold *)0)->directory)
    return sharding_fail(job, ORDO_E_INVALID, "write offload=disk:DIR with a directory on a real disk",
                         "the directory of the cold tier is '%.80s'", directory);
  sharding_cold *cold = job->alloc(job->ctx, sizeof *cold, ORDO_MEM_OTHER);
  if (cold == NULL)
    return sharding_fail(job, ORDO_E_NOMEM, "free memory", "no memory for the cold tier");
  cold->job = job;
  cold->file = -1;
  snprintf(cold->directory, sizeof cold->directory, "%s", directory);
  pthread_mutex_init(&cold->lock, NULL);
  *result = cold;
  if (!ordo_job_has_data(job))
    return ORDO_OK;
  cold->file = open_unnamed(cold->directory);
  if (cold->file < 0) {
    ordo_status status = sharding_fail(job, ORDO_E_IO, "make the directory, or choose one that may be written and lies on a disk",
                                       "offload: no file can be made in '%s': %s", cold->directory, strerror(errno));
    sharding_cold_destroy(cold);
    *result = NULL;
    return status;
  }
  return ORDO_OK;
}

void sharding_cold_destroy(sharding_cold *cold)
{
  if (cold == NULL)
    return;
  if (cold->file >= 0)
    close(cold->file);
  pthread_mutex_destroy(&cold->lock);
  free(cold->blocks);
  cold->job->free(cold->job->ctx, cold);
}

static int remember(sharding_cold *cold, void *memory, off_t offset)
{
  if (cold->n_blocks == cold->room) {
    size_t room = cold->room * 2 + 64;
    block *larger = realloc(cold->blocks, room * sizeof *larger);
    if (larger == NULL)
      return 0;
    cold->blocks = larger;
    cold->room = room;
  }
  cold->blocks[cold->n_blocks++] = (block){memory, offset};
  return 1;
}

/* posix_fallocate: a full disk is an error here instead of a bus error at the first write. */
static void *append(sharding_cold *cold, size_t bytes)
{
  void *memory = MAP_FAILED;
  int error = posix_fallocate(cold->file, cold->end, (off_t)bytes);
  if (error == 0)
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, cold->file, cold->end);
  if (memory == MAP_FAILED) {
    sharding_fail(cold->job, ORDO_E_IO, "free space there, or choose another directory", "offload: %zu bytes in '%s': %s", bytes,
                  cold->directory, strerror(error != 0 ? error : errno));
    return NULL;
  }
  if (!remember(cold, memory, cold->end)) {
    munmap(memory, bytes);
    sharding_fail(cold->job, ORDO_E_NOMEM, "free memory", "no memory for the list of the cold tier");
    return NULL;
  }
  cold->end += (off_t)bytes;
  return memory;
}

void *sharding_cold_alloc(sharding_cold *cold, size_t bytes)
{
  if (!ordo_job_has_data(cold->job))
    return sharding_addresses(cold->job, pages(bytes > 0 ? bytes : 1));
  pthread_mutex_lock(&cold->lock);
  void *memory = append(cold, pages(bytes > 0 ? bytes : 1));
  pthread_mutex_unlock(&cold->lock);
  return memory;
}

void sharding_cold_free(sharding_cold *cold, void *memory, size_t bytes)
{
  if (memory == NULL)
    return;
  bytes = pages(bytes > 0 ? bytes : 1);
  if (!ordo_job_has_data(cold->job)) {
    sharding_give_addresses(cold->job, memory, bytes);
    return;
  }
  pthread_mutex_lock(&cold->lock);
  for (size_t i = 0; i < cold->n_blocks; i++) {
    if (cold->blocks[i].memory != memory)
      continue;
    (void)fallocate(cold->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, cold->blocks[i].offset, (off_t)bytes);
    cold->blocks[i] = cold->blocks[--cold->n_blocks];
    break;
  }
  pthread_mutex_unlock(&cold->lock);
  munmap(memory, bytes);
}

static void *allocator_alloc(void *ctx, size_t bytes)
{
  return sharding_cold_alloc(ctx, bytes);
}

static void allocator_free(void *ctx, void *memory, size_t bytes)
{
  sharding_cold_free(ctx, memory, bytes);
}

ordo_status sharding_cold_take_optimizer(sharding_cold *cold)
{
  const ordo_allocator allocator = {sizeof allocator, cold, allocator_alloc, allocator_free};
  const ordo_job *job = cold->job;
  if (!ORDO_CAN(job, ordo_job, set_allocator))
    return sharding_fail(job, ORDO_E_UNSUPPORTED, "use a newer libordo, or offload=none",
                         "offload: this host cannot place optimizer state");
  return job->set_allocator(job->ctx, ORDO_MEM_OPTIMIZER, &allocator);
}
