/* hooks.c - fp16 and bf16 compression of buckets, in the shape of a comm hook. See hooks.h.
 *
 * The wire buffer mirrors the layout of the buckets (element i of the gradient memory is element i of the wire), so several
 * buckets may be in flight and a rebuilt layout needs no new memory.
 */
#include "hooks.h"

#include "ddp.h"

#include <ordo/half_array.h>

#include <string.h>

enum { CHUNK = 1024 };

typedef struct compression {
  const ordo_job *job;
  const ordo_comm *comm;
  ordo_dtype dtype;
  const float *base;
  uint16_t *wire;
} compression;

ordo_dtype ddp_compression_dtype(const char *name)
{
  if (strcmp(name, "fp16") == 0)
    return ORDO_F16;
  return strcmp(name, "bf16") == 0 ? ORDO_BF16 : 0;
}

static void destroy(void *instance)
{
  compression *self = instance;
  if (self == NULL)
    return;
  if (self->wire != NULL)
    self->comm->free(self->comm->ctx, self->wire);
  ddp_free(self->job, self);
}

ordo_status ddp_compression_create(const ordo_job *job, ordo_dtype dtype, const float *base, int64_t numel, void **instance)
{
  compression *self = ddp_alloc(job, 1, sizeof *self);
  if (self == NULL)
    return ORDO_E_NOMEM;
  self->job = job;
  self->comm = job->axis->comm;
  self->dtype = dtype;
  self->base = base;
  void *wire = NULL;
  ordo_status status = numel > 0 ? self->comm->alloc(self->comm->ctx, (size_t)numel * sizeof *self->wire, &wire) : ORDO_OK;
  self->wire = wire;
  if (status != ORDO_OK) {
    destroy(self);
    return status;
  }
  *instance = self;
  return ORDO_OK;
}

static ordo_status start(void *instance, const ordo_bucket *bucket, void **handle)
{
  compression *self = instance;
  uint16_t *restrict wire = self->wire + (bucket->data - self->base);
  const float *restrict data = bucket->data;
  const int64_t n = ordo_job_has_data(self->job) ? bucket->numel : 0;
  const float factor = (float)(1.0 / bucket->divide_factor);
  float chunk[CHUNK];
  for (int64_t i = 0; i < n; i += CHUNK) {
    const int64_t part = n - i < CHUNK ? n - i : CHUNK;
    for (int64_t k = 0; k < part; k++)
      chunk[k] = data[i + k] * factor;
    ordo_half_narrow(self->dtype, chunk, part, wire + i);
  }

  ordo_collective c = ordo_collective_make(ORDO_ALL_REDUCE, wire, wire, bucket->numel, self->dtype);
  c.flags = self->job->ordered ? ORDO_COMM_ORDERED : 0;
  c.label = self->dtype == ORDO_BF16 ? "bucket as bf16" : "bucket as fp16";
  ordo_request *request = NULL;
  ordo_status status = self->comm->start(self->comm->ctx, &c, &request);
  *handle = request;
  return status;
}

static ordo_status finish(void *instance, const ordo_bucket *bucket, void *handle)
{
  compression *self = instance;
  const uint16_t *restrict wire = self->wire + (bucket->data - self->base);
  float *restrict data = bucket->data;
  const int64_t n = ordo_job_has_data(self->job) ? bucket->numel : 0;
  ordo_status status = self->comm->wait(self->comm->ctx, handle);
  if (status != ORDO_OK)
    return status;
  ordo_half_widen(self->dtype, wire, n, data);
  return ORDO_OK;
}

const ordo_comm_hook ddp_compression = {sizeof(ordo_comm_hook), NULL, destroy, start, finish, NULL, NULL, NULL};
