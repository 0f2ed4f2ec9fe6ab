/* comm_tap.c - see comm_tap.h. A request is wrapped too, because it is its wait that says when the collective ended. */
#include "comm_tap.h"

#include <glib.h>

typedef struct tap {
  ordo_comm_provider table;
  const ordo_comm_provider *inner;
  ordo_comm_observer observer;
} tap;

typedef struct tap_comm {
  ordo_comm table;
  const ordo_comm *inner;
  const tap *owner;
  char *name;
} tap_comm;

typedef struct tap_request {
  ordo_request *inner;
  uint64_t id;
} tap_request;

const char *ordo_comm_kind_name(uint32_t kind)
{
  static const char *const names[] = {"?",          "all_reduce",   "reduce_scatter", "all_gather", "broadcast",
                                      "all_to_all", "all_to_all_v", "send",           "recv",       "barrier"};
  return kind < G_N_ELEMENTS(names) ? names[kind] : names[0];
}

int64_t ordo_comm_tap_bytes(const ordo_comm *ranks, const ordo_collective *c)
{
  int64_t size = (int64_t)ordo_dtype_size(c->dtype), elements = c->count;
  if (c->kind == ORDO_REDUCE_SCATTER || c->kind == ORDO_ALL_GATHER || c->kind == ORDO_ALL_TO_ALL)
    elements *= ranks->size;
  for (int32_t r = 0; c->kind == ORDO_ALL_TO_ALL_V && r < ranks->size; r++)
    elements = (r == 0 ? 0 : elements) + c->send_counts[r];
  return elements * size;
}

static ordo_status tap_start(void *ctx, const ordo_collective *c, ordo_request **request)
{
  const tap_comm *comm = ctx;
  const ordo_comm_observer *observer = &comm->owner->observer;
  uint64_t id = observer->begin(observer->ctx, comm->name, &comm->table, c);
  ordo_request *inner = NULL;
  ordo_status status = comm->inner->start(comm->inner->ctx, c, &inner);
  if (status != ORDO_OK) {
    observer->end(observer->ctx, id);
    return status;
  }
  tap_request *own = g_new(tap_request, 1);
  *own = (tap_request){inner, id};
  *request = (ordo_request *)own;
  return ORDO_OK;
}

static ordo_status tap_test(void *ctx, ordo_request *request, int32_t *done)
{
  const ordo_comm *inner = ((const tap_comm *)ctx)->inner;
  return inner->test(inner->ctx, ((const tap_request *)request)->inner, done);
}

static ordo_status tap_wait(void *ctx, ordo_request *request)
{
  const tap_comm *comm = ctx;
  const ordo_comm_observer *observer = &comm->owner->observer;
  g_autofree tap_request *own = (tap_request *)request;
  ordo_status status = comm->inner->wait(comm->inner->ctx, own->inner);
  observer->end(observer->ctx, own->id);
  return status;
}

static ordo_status tap_progress(void *ctx)
{
  const ordo_comm *inner = ((const tap_comm *)ctx)->inner;
  return inner->progress(inner->ctx);
}

static ordo_status tap_alloc(void *ctx, size_t bytes, void **memory)
{
  const ordo_comm *inner = ((const tap_comm *)ctx)->inner;
  return inner->alloc(inner->ctx, bytes, memory);
}

static ordo_status tap_free(void *ctx, void *memory)
{
  const ordo_comm *inner = ((const tap_comm *)ctx)->inner;
  return inner->free(inner->ctx, memory);
}

static void tap_stats(void *ctx, ordo_comm_stats *stats)
{
  const ordo_comm *inner = ((const tap_comm *)ctx)->inner;
  inner->stats(inner->ctx, stats);
}

static ordo_status tap_split(void *ctx, int32_t colour, int32_t key, int32_t size, const char *name, const ordo_comm **result)
{
  const tap *self = ctx;
  const ordo_comm *inner = NULL;
  ordo_status status = self->inner->split(self->inner->ctx, colour, key, size, name, &inner);
  if (status != ORDO_OK)
    return status;
  tap_comm *comm = g_new0(tap_comm, 1);
  comm->inner = inner;
  comm->owner = self;
  comm->name = g_strdup(name);
  comm->table = (ordo_comm){.struct_size = sizeof comm->table,
                            .ctx = comm,
                            .rank = inner->rank,
                            .size = inner->size,
                            .start = tap_start,
                            .test = tap_test,
                            .wait = tap_wait,
                            .progress = tap_progress,
                            .alloc = tap_alloc,
                            .free = tap_free,
                            .stats = tap_stats};
  *result = &comm->table;
  return ORDO_OK;
}

static void tap_release(void *ctx, const ordo_comm *comm)
{
  const tap *self = ctx;
  if (!comm)
    return;
  tap_comm *own = comm->ctx;
  self->inner->release(self->inner->ctx, own->inner);
  g_free(own->name);
  g_free(own);
}

static char *tap_report(void *ctx)
{
  const ordo_comm_provider *inner = ((const tap *)ctx)->inner;
  return inner->report(inner->ctx);
}

static const char *tap_error_text(void *ctx)
{
  const ordo_comm_provider *inner = ((const tap *)ctx)->inner;
  return inner->error_text(inner->ctx);
}

ordo_comm_provider *ordo_comm_tap_new(const ordo_comm_provider *inner, const ordo_comm_observer *observer)
{
  tap *self = g_new0(tap, 1);
  self->inner = inner;
  self->observer = *observer;
  self->table = (ordo_comm_provider){.struct_size = sizeof self->table,
                                     .ctx = self,
                                     .name = inner->name,
                                     .rank = inner->rank,
                                     .size = inner->size,
                                     .deadline_seconds = inner->deadline_seconds,
                                     .split = tap_split,
                                     .release = tap_release,
                                     .report = inner->report ? tap_report : NULL,
                                     .error_text = inner->error_text ? tap_error_text : NULL,
                                     .destroy = g_free};
  return &self->table;
}
