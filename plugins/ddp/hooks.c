/* hooks.c - fp16 and bf16 compression of buckets, in the shape of a comm hook. See hooks.h.
 *
 * The wire buffer mirrors the layout of the buckets (element i of the gradient memory is element i of the wire), so several
 * buckets may be in flight and a rebuilt layout needs no new memory.
 */
#include "hooks.h"

#include "ddp.h"

#include <string.h>

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

static uint32_t bits_of(float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float float_of(uint32_t bits)
{
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* All four conversions are written without branches: the compiler then turns the loops over buckets into vector code, which
 * halves their time. The price is that every result is computed and one selected. */
static inline uint16_t bf16_of(float value)
{
  uint32_t bits = bits_of(value);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  uint32_t quiet = (bits >> 16) | 0x40u; /* cutting the low half must not make a NaN an infinity */
  return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

static inline uint16_t f16_of(float value)
{
  uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  /* Below 2^-14: in 0.5 + x one unit in the last place is 2^-24, the spacing of fp16 subnormals. */
  uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result; /* 65520 lies halfway between the largest fp16 and 2^16 and rounds up */
  result = magnitude > 0x7f800000u ? 0x7e00u : result;
  return (uint16_t)(sign | result);
}

static inline float from_bf16(uint16_t bits)
{
  return float_of((uint32_t)bits << 16);
}

static inline float from_f16(uint16_t bits)
{
  uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu, fraction = bits & 0x3ffu;
  uint32_t normal = (magnitude << 13) + 0x38000000u; /* 112 more in the exponent: 127 - 15, the difference of the biases */
  uint32_t subnormal = bits_of((float)(int32_t)fraction * 0x1p-24f);
  uint32_t result = magnitude < 0x400u ? subnormal : normal;
  result = magnitude >= 0x7c00u ? 0x7f800000u | (fraction << 13) : result;
  return float_of(sign | result);
}

uint16_t ddp_bf16_from_f32(float value)
{
  return bf16_of(value);
}

float ddp_f32_from_bf16(uint16_t bits)
{
  return from_bf16(bits);
}

uint16_t ddp_f16_from_f32(float value)
{
  return f16_of(value);
}

float ddp_f32_from_f16(uint16_t bits)
{
  return from_f16(bits);
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
  const int64_t n = bucket->numel;
  const float factor = (float)(1.0 / bucket->divide_factor);
  if (self->dtype == ORDO_BF16)
    for (int64_t i = 0; i < n; i++)
      wire[i] = bf16_of(data[i] * factor);
  else
    for (int64_t i = 0; i < n; i++)
      wire[i] = f16_of(data[i] * factor);

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
  const int64_t n = bucket->numel;
  ordo_status status = self->comm->wait(self->comm->ctx, handle);
  if (status != ORDO_OK)
    return status;
  if (self->dtype == ORDO_BF16)
    for (int64_t i = 0; i < n; i++)
      data[i] = from_bf16(wire[i]);
  else
    for (int64_t i = 0; i < n; i++)
      data[i] = from_f16(wire[i]);
  return ORDO_OK;
}

const ordo_comm_hook ddp_compression = {sizeof(ordo_comm_hook), NULL, destroy, start, finish, NULL, NULL, NULL};
