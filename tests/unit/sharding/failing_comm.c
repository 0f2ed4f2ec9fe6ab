/* failing_comm.c - see failing_comm.h. */
#include "failing_comm.h"

#include <stdlib.h>

typedef struct failing {
  ordo_comm_provider table;
  const ordo_comm_provider *inner;
  int kinds, at, calls;
  ordo_status status;
  void (*saw)(void *ctx, const ordo_collective *c);
  void *saw_ctx;
} failing;

typedef struct failing_comm {
  ordo_comm table;
  failing *owner;
  const ordo_comm *inner;
} failing_comm;

static int fails(void *ctx, int kind)
{
  failing *owner = ((failing_comm *)ctx)->owner;
  return (owner->kinds & kind) != 0 && ++owner->calls == owner->at;
}

static ordo_status start(void *ctx, const ordo_collective *c, ordo_request **request)
{
  const failing_comm *self = ctx;
  if (self->owner->saw != NULL)
    self->owner->saw(self->owner->saw_ctx, c);
  return fails(ctx, FAILING_START) ? self->owner->status : self->inner->start(self->inner->ctx, c, request);
}

static ordo_status test(void *ctx, ordo_request *request, int32_t *done)
{
  const ordo_comm *inner = ((const failing_comm *)ctx)->inner;
  return inner->test(inner->ctx, request, done);
}

static ordo_status wait(void *ctx, ordo_request *request)
{
  const failing_comm *self = ctx;
  const ordo_status status = self->inner->wait(self->inner->ctx, request);
  return fails(ctx, FAILING_WAIT) ? self->owner->status : status;
}

static ordo_status progress(void *ctx)
{
  const ordo_comm *inner = ((const failing_comm *)ctx)->inner;
  return inner->progress(inner->ctx);
}

static ordo_status alloc(void *ctx, size_t bytes, void **memory)
{
  const failing_comm *self = ctx;
  return fails(ctx, FAILING_ALLOC) ? self->owner->status : self->inner->alloc(self->inner->ctx, bytes, memory);
}

static ordo_status release_memory(void *ctx, void *memory)
{
  const ordo_comm *inner = ((const failing_comm *)ctx)->inner;
  return inner->free(inner->ctx, memory);
}

static void stats(void *ctx, ordo_comm_stats *result)
{
  const ordo_comm *inner = ((const failing_comm *)ctx)->inner;
  inner->stats(inner->ctx, result);
}

static ordo_status split(void *ctx, int32_t colour, int32_t key, int32_t size, const char *name, const ordo_comm **result)
{
  failing *self = ctx;
  failing_comm *comm = calloc(1, sizeof *comm);
  ordo_status status = comm != NULL ? self->inner->split(self->inner->ctx, colour, key, size, name, &comm->inner) : ORDO_E_NOMEM;
  if (status != ORDO_OK) {
    free(comm);
    return status;
  }
  comm->owner = self;
  comm->table = *comm->inner;
  comm->table.ctx = comm;
  comm->table.start = start;
  comm->table.test = test;
  comm->table.wait = wait;
  comm->table.progress = progress;
  comm->table.alloc = alloc;
  comm->table.free = release_memory;
  comm->table.stats = stats;
  *result = &comm->table;
  return ORDO_OK;
}

static void release(void *ctx, const ordo_comm *comm)
{
  const failing *self = ctx;
  if (comm == NULL)
    return;
  self->inner->release(self->inner->ctx, ((const failing_comm *)comm->ctx)->inner);
  free(comm->ctx);
}

static const char *error_text(void *ctx)
{
  (void)ctx;
  return "the test lost a rank";
}

ordo_comm_provider *failing_comm_new(const ordo_comm_provider *inner, int kinds, int at, ordo_status status)
{
  failing *self = calloc(1, sizeof *self);
  if (self == NULL)
    return NULL;
  *self = (failing){.inner = inner, .kinds = kinds, .at = at, .status = status};
  self->table = (ordo_comm_provider){.struct_size = sizeof self->table,
                                     .ctx = self,
                                     .name = inner->name,
                                     .rank = inner->rank,
                                     .size = inner->size,
                                     .deadline_seconds = inner->deadline_seconds,
                                     .split = split,
                                     .release = release,
                                     .error_text = error_text,
                                     .destroy = free};
  return &self->table;
}

void failing_comm_watch(ordo_comm_provider *provider, void (*saw)(void *ctx, const ordo_collective *c), void *ctx)
{
  failing *self = provider->ctx;
  self->saw = saw;
  self->saw_ctx = ctx;
}

int failing_comm_failed(const ordo_comm_provider *provider)
{
  const failing *self = provider->ctx;
  return self->calls >= self->at;
}
