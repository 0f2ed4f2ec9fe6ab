/* packer.c - a precision plugin for tests: parameters of 16 bits that are packed in all-gathers, exactly, in a byte more than they take.
 *
 * Every byte is turned over on the way, so parameters that were packed and not unpacked, or the reverse, are wrong everywhere; and a leaf
 * whose type it is not told right would have another number of bytes. Option `how` makes it break its promises; as packer_part it has one
 * of the three functions only.
 */
#include <ordo/manifest.h>
#include <ordo/plugin.h>
#include <ordo/precision.h>

#include <string.h>

#ifdef PACKER_PART
#define PACKER_ID "packer_part"
#else
#define PACKER_ID "packer"
#endif

ORDO_MANIFEST("id=" PACKER_ID "\n"
              "kind=precision\n"
              "version=1.0.0\n"
              "summary=16-bit parameters, packed in all-gathers\n"
              "license=Apache-2.0\n"
              "steps=precision.convert_model\n"
              "option=how|enum|right|right,silent_pre,silent_post,zero,negative,huge,overflow,changes|which promise is broken\n");

typedef struct packer {
  const ordo_job *job;
  int asked; /* calls of wire_bytes */
} packer;

static int breaks(const void *instance, const char *how)
{
  const ordo_job *job = ((const packer *)instance)->job;
  return strcmp(job->option(job->ctx, "how"), how) == 0;
}

static size_t bytes_of(const ordo_leaf *leaf, int64_t n)
{
  return (size_t)n * ordo_dtype_size(leaf != NULL ? leaf->dtype : ORDO_F32);
}

#ifndef PACKER_PART
static int64_t wire_bytes(void *instance, const ordo_leaf *leaf, int64_t n)
{
  packer *self = instance;
  if (breaks(self, "zero") || breaks(self, "negative"))
    return breaks(self, "zero") ? 0 : -5;
  if (breaks(self, "huge") || breaks(self, "overflow"))
    return breaks(self, "huge") ? INT64_MAX / 3 : INT64_MAX;
  if (breaks(self, "changes")) /* more with every call */
    return (int64_t)bytes_of(leaf, n) + 1 + 64 * self->asked++;
  return (int64_t)bytes_of(leaf, n) + 1;
}

#endif

static void turn(const unsigned char *from, size_t n, unsigned char *to)
{
  for (size_t i = 0; i < n; i++)
    to[i] = from[i] ^ 0xffu;
}

static ordo_status pre_all_gather(void *self, const ordo_leaf *leaf, const void *src, int64_t n, void *wire)
{
  if (breaks(self, "silent_pre"))
    return ORDO_E_UNSUPPORTED;
  turn(src, bytes_of(leaf, n), wire);
  ((unsigned char *)wire)[bytes_of(leaf, n)] = 42;
  return ORDO_OK;
}

#ifndef PACKER_PART
static ordo_status post_all_gather(void *instance, const ordo_leaf *leaf, const void *wire, int64_t n, void *dst)
{
  const ordo_job *job = ((const packer *)instance)->job;
  if (breaks(instance, "silent_post"))
    return ORDO_E_UNSUPPORTED;
  if (((const unsigned char *)wire)[bytes_of(leaf, n)] != 42)
    return job->host->fail(job->host->ctx, ORDO_E_INVALID, "a piece does not end where it should", "see packer.c");
  turn(wire, bytes_of(leaf, n), dst);
  return ORDO_OK;
}

#endif

static ordo_status convert_model(void *instance)
{
  const ordo_job *job = ((const packer *)instance)->job;
  ordo_status status = ORDO_OK;
  for (uint32_t i = 0; i < job->model->n_params && status == ORDO_OK; i++)
    status = job->convert_param(job->ctx, job->model->params[i], ORDO_BF16, ORDO_BF16, ORDO_CONVERT_ADD_LOW);
  return status;
}

static ordo_status create(const ordo_job *job, void **instance)
{
  packer *self = job->alloc(job->ctx, sizeof *self, ORDO_MEM_OTHER);
  if (self == NULL)
    return job->host->fail(job->host->ctx, ORDO_E_NOMEM, "no memory for the instance", "free some memory");
  *self = (packer){.job = job};
  *instance = self;
  return ORDO_OK;
}

static void destroy(void *instance)
{
  packer *self = instance;
  if (self != NULL)
    self->job->free(self->job->ctx, self);
}

static const ordo_precision precision = {.struct_size = sizeof precision,
                                         .create = create,
                                         .destroy = destroy,
                                         .convert_model = convert_model,
#ifndef PACKER_PART
                                         .post_all_gather = post_all_gather,
                                         .wire_bytes = wire_bytes,
#endif
                                         .pre_all_gather = pre_all_gather};

static const void *get_extension(const char *id)
{
  return id != NULL && strcmp(id, ORDO_PRECISION_EXTENSION) == 0 ? &precision : NULL;
}

ORDO_PLUGIN_ENTRY(PACKER_ID, "1.0.0", NULL, NULL, get_extension);
