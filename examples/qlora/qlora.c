/* qlora.c - a precision plugin for fine-tuning: a frozen base whose linear layers are stored in 4 bits, and small trained adapters.
 *
 * QLoRA (Dettmers et al. 2023): weights of the chosen layers become NF4, 16 fixed levels and the largest magnitude of each block of 32
 * elements (option block; 64 in the paper, which does not divide the rows of every model); each such layer gets a low-rank addition y +=
 * alpha / rank (x A^T) B^T with A random and B zero, so training starts from the base. Only adapters require gradients, so only they are in
 * the optimizer, in gradients and in reductions.
 *
 * All of it happens in model.inject, before there are weights: the plugin describes, the host stores (packs when weights are loaded,
 * unpacks a unit while it runs), strategies move the packed bytes, the embedder computes with the adapters.
 *
 * Not here: double quantisation of the block magnitudes (they are fp32: 5 bits per element in all), paged optimizers, dropout. */
#include <ordo/manifest.h>
#include <ordo/plugin.h>
#include <ordo/precision.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* snippet: manifest */
ORDO_MANIFEST("id=qlora\n"
              "kind=precision\n"
              "version=1.0.0\n"
              "summary=frozen 4-bit base with trained low-rank adapters\n"
              "license=Apache-2.0\n"
              "steps=model.inject\n"
              "conflicts=sliced_parameters\n"
              "positional=rank\n"
              "option=rank|int|8|1..1024|rank of the adapters\n"
              "option=alpha|real|16|0.0..|adapters are multiplied by alpha / rank\n"
              "option=block|int|32|8..4096|elements with one magnitude; a multiple of 8 that divides the rows of the layers\n"
              "option=targets|string|q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj||layers, by the last word of their names\n");
/* end */

enum { NF4_ID = ORDO_DTYPE_OPAQUE + 4, N_LEVELS = 16 };

/* Levels of NF4: quantiles of a normal distribution, scaled to [-1, 1], with an exact zero (QLoRA, appendix E). */
static const float levels[N_LEVELS] = {-1.0f,
                                       -0.6961928009986877f,
                                       -0.5250730514526367f,
                                       -0.39491748809814453f,
                                       -0.28444138169288635f,
                                       -0.18477343022823334f,
                                       -0.09105003625154495f,
                                       0.0f,
                                       0.07958029955625534f,
                                       0.16093020141124725f,
                                       0.24611230194568634f,
                                       0.33791524171829224f,
                                       0.44070982933044434f,
                                       0.5626170039176941f,
                                       0.7229568362236023f,
                                       1.0f};

typedef struct qlora {
  const ordo_job *job;
  ordo_dtype_ops nf4;
  int64_t rank, block;
  double alpha;
  float **values; /* [n_values] first values of adapters */
  uint32_t n_values;
} qlora;

static ordo_status fail(const qlora *self, ordo_status status, const char *text, const char *name, const char *hint)
{
  char line[512];
  snprintf(line, sizeof line, text, name);
  return self->job->host->fail(self->job->host->ctx, status, line, hint);
}

/* ---- 4 bits: a block is its largest magnitude (fp32) and two elements a byte, the first in the lower half ---- */

static unsigned nearest_level(float x)
{
  unsigned best = 0;
  for (unsigned i = 1; i < N_LEVELS; i++)
    if (fabsf(x - levels[i]) < fabsf(x - levels[best]))
      best = i;
  return best;
}

/* snippet: pack */
static ordo_status pack_block(const qlora *self, const float *src, unsigned char *dst)
{
  float most = 0.0f;
  for (int64_t i = 0; i < self->block; i++) {
    if (!isfinite(src[i]))
      return fail(self, ORDO_E_INVALID, "a weight of the base is %s", "not finite", "use another checkpoint");
    most = fmaxf(most, fabsf(src[i]));
  }
  memcpy(dst, &most, sizeof most);
  for (int64_t i = 0; i < self->block; i += 2) {
    const unsigned low = nearest_level(most > 0.0f ? src[i] / most : 0.0f), high = nearest_level(most > 0.0f ? src[i + 1] / most : 0.0f);
    dst[(int64_t)sizeof most + i / 2] = (unsigned char)(low | high << 4);
  }
  return ORDO_OK;
}

static ordo_status pack(void *ctx, const float *src, int64_t n, void *dst)
{
  const qlora *self = ctx;
  ordo_status status = ORDO_OK;
  for (int64_t b = 0; b < n / self->block && status == ORDO_OK; b++)
    status = pack_block(self, src + b * self->block, (unsigned char *)dst + b * self->nf4.block_bytes);
  return n % self->block != 0 ? ORDO_E_INVALID : status;
}

static ordo_status unpack(void *ctx, const void *src, int64_t n, float *dst)
{
  const qlora *self = ctx;
  const unsigned char *block = src;
  for (int64_t b = 0; b < n / self->block; b++, block += self->nf4.block_bytes, dst += self->block) {
    float most;
    memcpy(&most, block, sizeof most);
    for (int64_t i = 0; i < self->block; i++)
      dst[i] = most * levels[block[(int64_t)sizeof most + i / 2] >> (i % 2 * 4) & 15];
  }
  return n % self->block != 0 ? ORDO_E_INVALID : ORDO_OK;
}
/* end */

/* ---- adapters ---- */

/* A number in [-1, 1) from the seed, the name and the place alone, so that every rank has the same. */
static float random_at(uint64_t key, uint64_t index)
{
  uint64_t z = key + (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return (float)(int64_t)(z >> 40) / 8388608.0f - 1.0f;
}

static uint64_t key_of(const qlora *self, const char *name)
{
  uint64_t key = self->job->seed ^ 0xcbf29ce484222325u;
  for (; *name != '\0'; name++)
    key = (key ^ (unsigned char)*name) * 0x100000001b3u;
  return key;
}

static float *new_values(qlora *self, int64_t n)
{
  const ordo_job *job = self->job;
  float *values = job->alloc(job->ctx, (size_t)n * sizeof *values, ORDO_MEM_WEIGHTS);
  if (values != NULL)
    self->values[self->n_values++] = values;
  return values;
}

/* snippet: adapter */
static ordo_status add_adapter(qlora *self, const ordo_param *base)
{
  const ordo_job *job = self->job;
  const int64_t out = base->shape[0], in = base->shape[1];
  const int stem = (int)(strlen(base->name) - strlen(".weight"));
  char name_a[256], name_b[256];
  ordo_adapter adapter = {.struct_size = sizeof adapter, .base = base, .rank = self->rank, .scale = self->alpha / (double)self->rank};
  snprintf(name_a, sizeof name_a, "%.*s.lora_A.weight", stem, base->name);
  snprintf(name_b, sizeof name_b, "%.*s.lora_B.weight", stem, base->name);
  adapter.name_a = name_a;
  adapter.name_b = name_b;
  adapter.a = new_values(self, self->rank * in);
  adapter.b = new_values(self, out * self->rank); /* zero: the model starts as it was */
  if (adapter.a == NULL || adapter.b == NULL)
    return fail(self, ORDO_E_NOMEM, "no memory for the adapter of '%s'", base->name, "use a smaller rank");
  for (int64_t i = 0; i < self->rank * in; i++)
    adapter.a[i] = random_at(key_of(self, name_a), (uint64_t)i) / sqrtf((float)in);
  return job->add_adapter(job->ctx, &adapter, NULL, NULL);
}
/* end */

/* "model.layers.0.self_attn.q_proj.weight" is a target if q_proj stands in the list. */
static int is_target(const ordo_param *param, const char *targets)
{
  const size_t length = strlen(param->name), end = strlen(".weight");
  if (param->ndim != 2 || length <= end || strcmp(param->name + length - end, ".weight") != 0)
    return 0;
  size_t begin = length - end;
  while (begin > 0 && param->name[begin - 1] != '.')
    begin--;
  const size_t word = length - end - begin;
  for (const char *at = targets; at != NULL; at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL)
    if (strcspn(at, ",") == word && memcmp(at, param->name + begin, word) == 0)
      return 1;
  return 0;
}

/* A refusal with what to write instead: the largest sizes of blocks that divide the rows of all targets. */
static ordo_status check_rows(const qlora *self, const char *targets)
{
  const ordo_model *model = self->job->model;
  const ordo_param *bad = NULL;
  int64_t common = 0; /* the greatest common divisor of the lengths of rows */
  char text[400], fits[120] = "";
  size_t used = 0;
  for (uint32_t i = 0; i < model->n_params; i++) {
    const ordo_param *param = model->params[i];
    if (!is_target(param, targets))
      continue;
    for (int64_t rest = param->shape[1]; rest != 0;) {
      const int64_t next = common % rest;
      common = rest;
      rest = next;
    }
    bad = bad == NULL && param->shape[1] % self->block != 0 ? param : bad;
  }
  if (bad == NULL)
    return ORDO_OK;
  for (int64_t size = common < 4096 ? common : 4096; size >= 8 && used < sizeof fits - 8; size--)
    if (size % 8 == 0 && common % size == 0)
      used += (size_t)snprintf(fits + used, sizeof fits - used, "%s%lld", used > 0 ? ", " : "", (long long)size);
  snprintf(text, sizeof text, "option 'block' is %lld, which does not divide the rows of %lld elements of '%%.200s'; for all targets: %s",
           (long long)self->block, (long long)bad->shape[1], used > 0 ? fits : "no multiple of 8 does");
  return fail(self, ORDO_E_INVALID, text, bad->name,
              used > 0 ? "write qlora:block=N with one of these"
                       : "leave layers out of the option 'targets', or change the sizes of the model");
}

/* snippet: inject */
/* Freezes everything, packs the targets, adds their adapters. job->model->params is another array after each of them. */
static ordo_status inject(void *instance)
{
  qlora *self = instance;
  const ordo_job *job = self->job;
  const char *targets = job->option(job->ctx, "targets");
  const uint32_t n = job->model->n_params;
  ordo_status status = check_rows(self, targets);
  if (status != ORDO_OK)
    return status;
  self->values = job->alloc(job->ctx, (size_t)n * 2 * sizeof(float *), ORDO_MEM_OTHER);
  if (self->values == NULL)
    return fail(self, ORDO_E_NOMEM, "no memory for the list of %s", "adapters", "free some memory");
  for (uint32_t i = 0; i < n && status == ORDO_OK; i++) {
    const ordo_param *param = job->model->params[i];
    status = job->freeze(job->ctx, param);
    if (status != ORDO_OK || !is_target(param, targets))
      continue;
    status = job->store_param(job->ctx, param, &self->nf4);
    if (status == ORDO_OK)
      status = add_adapter(self, param);
  }
  return status == ORDO_OK && self->n_values == 0 ? fail(self, ORDO_E_INVALID, "no layer of the model is a target: '%s'", targets,
                                                         "name layers by the last word, joined with ','")
                                                  : status;
}
/* end */

/* ---- life cycle ---- */

static ordo_status create(const ordo_job *job, void **instance)
{
  if (!ORDO_CAN(job, ordo_job, add_adapter))
    return job->host->fail(job->host->ctx, ORDO_E_UNSUPPORTED, "the host has no adapters", "use a newer one");
  qlora *self = job->alloc(job->ctx, sizeof *self, ORDO_MEM_OTHER);
  if (self == NULL)
    return job->host->fail(job->host->ctx, ORDO_E_NOMEM, "no memory for the instance", "free some memory");
  self->job = job;
  (void)job->option_int(job->ctx, "rank", &self->rank); /* all have defaults */
  (void)job->option_int(job->ctx, "block", &self->block);
  (void)job->option_real(job->ctx, "alpha", &self->alpha);
  self->nf4 = (ordo_dtype_ops){.struct_size = sizeof self->nf4,
                               .id = NF4_ID,
                               .bits = 4,
                               .name = "nf4",
                               .block_elements = self->block,
                               .block_bytes = (int64_t)sizeof(float) + self->block / 2,
                               .ctx = self,
                               .pack = pack,
                               .unpack = unpack};
  *instance = self;
  return ORDO_OK;
}

static ordo_status validate(void *instance)
{
  const qlora *self = instance;
  return self->block % 8 == 0 ? ORDO_OK : fail(self, ORDO_E_INVALID, "option 'block' must be a multiple of %s", "8", "use 32");
}

static void free_values(qlora *self)
{
  const ordo_job *job = self->job;
  for (uint32_t i = 0; i < self->n_values; i++)
    job->free(job->ctx, self->values[i]);
  job->free(job->ctx, self->values);
  self->values = NULL;
  self->n_values = 0;
}

static void destroy(void *instance)
{
  qlora *self = instance;
  if (self == NULL)
    return;
  free_values(self);
  self->job->free(self->job->ctx, self);
}

static const ordo_precision precision = {
    .struct_size = sizeof precision, .create = create, .validate = validate, .destroy = destroy, .inject = inject};

static const void *get_extension(const char *id)
{
  return id != NULL && strcmp(id, ORDO_PRECISION_EXTENSION) == 0 ? &precision : NULL;
}

ORDO_PLUGIN_ENTRY("qlora", "1.0.0", NULL, NULL, get_extension);
