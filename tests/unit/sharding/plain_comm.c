/* plain_comm.c - see plain_comm.h. A collective with pieces that gets through is an error, so the fallback cannot be left out unnoticed. */
#include "plain_comm.h"

#include <stdlib.h>

typedef struct plain {
  ordo_comm_provider table;
  const ordo_comm_provider *inner;
  int old;
} plain;

typedef struct plain_comm {
  ordo_comm table;
  const ordo_comm *inner;
} plain_comm;

static ordo_status start(void *ctx, const ordo_collective *c, ordo_request **request)
{
  const ordo_comm *inner = ((const plain_comm *)ctx)->inner;
  return c->n_pieces > 0 ? ORDO_E_UNSUPPORTED : inner->start(inner->ctx, c, request);
}

static ordo_status test(void *ctx, ordo_request *request, int32_t *done)
{
  const ordo_comm *inner = ((const plain_comm *)ctx)->inner;
  return inner->test(inner->ctx, request, done);
}

static ordo_status wait(void *ctx, ordo_request *request)
{
  const ordo_comm *inner = ((const plain_comm *)ctx)->inner;
  return inner->wait(inner->ctx, request);
}

static ordo_status progress(void *ctx)
{
  const ordo_comm *inner = ((const plain_comm *)ctx)->inner;
  return inner->progress(inner->ctx);
}

static ordo_status alloc(void *ctx, size_t bytes, void **memory)
{
  const ordo_comm *inner = ((const plain_comm *)ctx)->inner;
  return inner->alloc(inner->ctx, bytes, memory);
}

static ordo_status release_memory(void *ctx, void *memory)
{
  const ordo_comm *inner = ((const plain_comm *)ctx)->inner;
  return inner->free(inner->ctx, memory);
}

static void stats(void *ctx, ordo_comm_stats *result)
{
  const ordo_comm *inner = ((const plain_comm *)ctx)->inner;
  inner->stats(inner->ctx, result);
}

static ordo_status split(void *ctx, int32_t colour, int32_t key, int32_t size, const char *name, const ordo_comm **result)
{
  const plain *self = ctx;
  plain_comm *comm = calloc(1, sizeof *comm);
  ordo_status status = comm != NULL ? self->inner->split(self->inner->ctx, colour, key, size, name, &comm->inner) : ORDO_E_NOMEM;
  if (status != ORDO_OK) {
    free(comm);
    return status;
  }
  comm->table = (ordo_comm){.struct_size = self->old ? ORDO_SIZE_THROUGH(ordo_comm, stats) : sizeof comm->table,
                            .ctx = comm,
                            .rank = comm->inner->rank,
                            .size = comm->inner->size,
                            .start = start,
                            .test = test,
                            .wait = wait,
                            .progress = progress,
                            .alloc = alloc,
                            .free = release_memory,
                            .stats = stats,
                            .features = self->old ? ORDO_COMM_PIECES : 0}; /* out of reach when old: not to be read */
  *result = &comm->table;
  return ORDO_OK;
}

static void release(void *ctx, const ordo_comm *comm)
{
  const plain *self = ctx;
  if (comm == NULL)
    return;
  self->inner->release(self->inner->ctx, ((const plain_comm *)comm->ctx)->inner);
  free(comm->ctx);
}

static const char *error_text(void *ctx)
{
  const plain *self = ctx;
  return self->inner->error_text != NULL ? self->inner->error_text(self->inner->ctx) : "";
}

ordo_comm_provider *plain_comm_new(const ordo_comm_provider *inner, int old)
{
  plain *self = calloc(1, sizeof *self);
  if (self == NULL)
    return NULL;
  self->inner = inner;
  self->old = old;
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
