/* fp8_wire.c - a precision plugin: parameters travel through all-gathers as fp8 (e4m3) with a scale, a quarter of the bytes of fp32.
 *
 * A strategy that shards keeps its fp32 shards, on which the optimizer works; what a rank computes with is what came out of the gather: the
 * shard rounded to 4 significant bits. Every piece of a tensor (what one rank holds of it) has a scale of its own that travels in front of
 * it. Scales are powers of two, so a scale moves the range of the format and rounds nothing: a weight comes out as the same number
 * whatever the number of ranks, unless it is about 2^-14 times smaller than the largest of its piece.
 * A strategy without all-gathers (ddp) has nothing to pack: there this plugin changes nothing. Gradients travel as ever.
 *
 * Not a number and infinity become the format's NaN, so that a broken weight is found on every rank and not clamped to 448. */

#include <ordo/half.h>
#include <ordo/manifest.h>
#include <ordo/plugin.h>
#include <ordo/precision.h>

#include <string.h>

ORDO_MANIFEST("id=fp8_wire\n"
              "kind=precision\n"
              "version=1.0.0\n"
              "summary=parameters travel through all-gathers as fp8 (e4m3) with a scale per piece\n"
              "license=Apache-2.0\n"
              "steps=precision.convert_model\n");

enum { SCALE_BYTES = sizeof(float), NAN_CODE = 0x7f };

static float power_of_two(int exponent)
{
  return ordo_f32_of_bits((uint32_t)(exponent + 127) << 23);
}

/* The largest k with amax * 2^k <= 448 = 1.75 * 2^8, as far as fp32 has 2^k. */
static int scale_exponent(float amax)
{
  const uint32_t bits = ordo_bits_of_f32(amax);
  const int k = ((bits & 0x7fffffu) <= 0x600000u ? 8 : 7) - ((int)(bits >> 23) - 127);
  return amax == 0.0f ? 0 : k < 126 ? k : 126;
}

/* To nearest even; |x| <= 448. The upper 12 bits of an fp32 are its sign, exponent and the 3 bits of mantissa that e4m3 has. */
static uint8_t to_e4m3(float x)
{
  const uint32_t bits = ordo_bits_of_f32(x), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  if (magnitude > ordo_bits_of_f32(448.0f))
    return (uint8_t)(sign | NAN_CODE);
  if (magnitude < ordo_bits_of_f32(0x1p-6f)) /* multiples of 2^-9: the sum leaves them in the lowest bits */
    return (uint8_t)(sign | (ordo_bits_of_f32(ordo_f32_of_bits(magnitude) * 512.0f + 8388608.0f) & 0xfu));
  return (uint8_t)(sign | (((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - ((127u - 7u) << 3)));
}

static float from_e4m3(uint8_t code)
{
  const uint32_t sign = (uint32_t)(code & 0x80u) << 24, rest = code & 0x7fu;
  if (rest == NAN_CODE)
    return ordo_f32_of_bits(sign | 0x7fc00000u);
  if (rest < 8)
    return ordo_f32_of_bits(sign | ordo_bits_of_f32((float)rest * 0x1p-9f));
  return ordo_f32_of_bits(sign | ((rest + ((127u - 7u) << 3)) << 20));
}

/* snippet: wire */
/* A scale and a byte per element. */
static int64_t wire_bytes(void *self, const ordo_leaf *leaf, int64_t n)
{
  (void)self;
  (void)leaf;
  return n > 0 ? SCALE_BYTES + n : 0;
}

static ordo_status pre_all_gather(void *self, const ordo_leaf *leaf, const void *src, int64_t n, void *wire)
{
  const float *values = src;
  float amax = 0.0f, inverse;
  (void)self;
  (void)leaf;
  for (int64_t i = 0; i < n; i++) {
    const float magnitude = values[i] < 0.0f ? -values[i] : values[i];
    if (magnitude > amax && ordo_bits_of_f32(magnitude) < 0x7f800000u)
      amax = magnitude;
  }
  const int k = scale_exponent(amax);
  inverse = power_of_two(-k);
  if (n > 0)
    memcpy(wire, &inverse, SCALE_BYTES); /* the wire need not be aligned */
  for (int64_t i = 0; i < n; i++)
    ((uint8_t *)wire)[SCALE_BYTES + i] = to_e4m3(values[i] * power_of_two(k));
  return ORDO_OK;
}

static ordo_status post_all_gather(void *self, const ordo_leaf *leaf, const void *wire, int64_t n, void *dst)
{
  float inverse = 1.0f;
  (void)self;
  (void)leaf;
  if (n > 0)
    memcpy(&inverse, wire, SCALE_BYTES);
  for (int64_t i = 0; i < n; i++)
    ((float *)dst)[i] = from_e4m3(((const uint8_t *)wire)[SCALE_BYTES + i]) * inverse;
  return ORDO_OK;
}
/* end */

typedef struct fp8 {
  const ordo_job *job;
} fp8;

/* Saying that it converts makes it the owner of the precision: with fsdp2:param_dtype=bf16 the plan is refused. */
static ordo_status convert_model(void *instance)
{
  const ordo_job *job = ((const fp8 *)instance)->job;
  for (uint32_t i = 0; i < job->model->n_params; i++)
    if (job->model->params[i]->dtype != ORDO_F32)
      return job->host->fail(job->host->ctx, ORDO_E_UNSUPPORTED, "fp8_wire packs fp32 parameters only", "describe the model in fp32");
  return ORDO_OK;
}

static ordo_status create(const ordo_job *job, void **instance)
{
  fp8 *self = job->alloc(job->ctx, sizeof *self, ORDO_MEM_OTHER);
  if (self == NULL)
    return job->host->fail(job->host->ctx, ORDO_E_NOMEM, "no memory for the instance", "free some memory");
  self->job = job;
  *instance = self;
  return ORDO_OK;
}

static void destroy(void *instance)
{
  fp8 *self = instance;
  if (self != NULL)
    self->job->free(self->job->ctx, self);
}

static const ordo_precision precision = {.struct_size = sizeof precision,
                                         .create = create,
                                         .destroy = destroy,
                                         .convert_model = convert_model,
                                         .pre_all_gather = pre_all_gather,
                                         .post_all_gather = post_all_gather,
                                         .wire_bytes = wire_bytes};

static const void *get_extension(const char *id)
{
  return id != NULL && strcmp(id, ORDO_PRECISION_EXTENSION) == 0 ? &precision : NULL;
}

ORDO_PLUGIN_ENTRY("fp8_wire", "1.0.0", NULL, NULL, get_extension);
