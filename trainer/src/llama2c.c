/* llama2c.c - llama2.c checkpoints, legacy version 0.
 *
 * Seven int32 (dim, hidden, layers, heads, kv heads, vocabulary [negative: separate head], positions), then fp32 tensors grouped by
 * kind, then two RoPE tables that nobody reads, then the head if it is separate. There is no magic number: the size must fit the
 * header exactly. Rows of wq and wk are interleaved pairs; Hugging Face wants each head's first halves, then its second halves, so row
 * j*hd+i comes from row j*hd+2i and row j*hd+hd/2+i from j*hd+2i+1. The file holds neither eps nor theta: 1e-5 and 10000.
 */
#include "files.h"
#include "weights.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EMBED, INPUT_NORM, Q, K, V, O, POST_NORM, GATE, DOWN, UP, FINAL_NORM, ROPE_COS, ROPE_SIN, HEAD, N_KINDS };

typedef struct kind {
  const char *suffix; /* of the name inside a layer, or the whole name */
  int layered;
  int64_t rows;
  int64_t columns;
  int64_t offset; /* bytes in the file */
} kind;

typedef struct llama2c {
  ordo_weights base;
  int fd;
  kind kinds[N_KINDS];
} llama2c;

static ordo_status bad(const char *path, const char *why, ordo_problems *problems)
{
  return ordo_problems_push(problems, ORDO_E_INVALID, "E-LLAMA2C", path, why,
                            "give a llama2.c checkpoint of version 0 (legacy), or a Hugging Face directory", "not a llama2.c checkpoint");
}

static void describe(llama2c *self)
{
  const struct llama_config *c = &self->base.config;
  int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, tables = c->max_positions * c->head_dim / 2;
  const kind kinds[N_KINDS] = {
      [EMBED] = {"model.embed_tokens.weight", 0, c->vocab, c->hidden, 0},
      [INPUT_NORM] = {"input_layernorm.weight", 1, 1, c->hidden, 0},
      [Q] = {"self_attn.q_proj.weight", 1, q, c->hidden, 0},
      [K] = {"self_attn.k_proj.weight", 1, kv, c->hidden, 0},
      [V] = {"self_attn.v_proj.weight", 1, kv, c->hidden, 0},
      [O] = {"self_attn.o_proj.weight", 1, c->hidden, q, 0},
      [POST_NORM] = {"post_attention_layernorm.weight", 1, 1, c->hidden, 0},
      [GATE] = {"mlp.gate_proj.weight", 1, c->intermediate, c->hidden, 0},
      [DOWN] = {"mlp.down_proj.weight", 1, c->hidden, c->intermediate, 0},
      [UP] = {"mlp.up_proj.weight", 1, c->intermediate, c->hidden, 0},
      [FINAL_NORM] = {"model.norm.weight", 0, 1, c->hidden, 0},
      [ROPE_COS] = {"", 0, 1, tables, 0},
      [ROPE_SIN] = {"", 0, 1, tables, 0},
      [HEAD] = {"lm_head.weight", 0, c->tied ? 0 : c->vocab, c->hidden, 0},
  };
  memcpy(self->kinds, kinds, sizeof kinds);
}

/* Offsets of all kinds; -1 on overflow, else the size of the whole file. */
static int64_t lay_out(llama2c *self)
{
  int64_t at = 28, numel, bytes;
  for (int k = 0; k < N_KINDS; k++) {
    kind *item = &self->kinds[k];
    item->offset = at;
    if (__builtin_mul_overflow(item->rows, item->columns, &numel) ||
        __builtin_mul_overflow(numel, item->layered ? self->base.config.layers : 1, &numel) ||
        __builtin_mul_overflow(numel, (int64_t)4, &bytes) || __builtin_add_overflow(at, bytes, &at))
      return -1;
  }
  return at;
}

/* The kind and layer of a Hugging Face name; null if the file has no such parameter. */
static const kind *find(const llama2c *self, const char *name, int64_t *layer)
{
  const char *suffix = name;
  *layer = 0;
  if (g_str_has_prefix(name, "model.layers.")) {
    char *end = NULL;
    *layer = g_ascii_strtoll(name + strlen("model.layers."), &end, 10);
    suffix = *end == '.' ? end + 1 : end;
  }
  for (int k = 0; k < N_KINDS; k++)
    if (strcmp(self->kinds[k].suffix, suffix) == 0 && self->kinds[k].rows && self->kinds[k].layered == (suffix != name) &&
        *layer < self->base.config.layers)
      return &self->kinds[k];
  return NULL;
}

static ordo_status llama2c_read(ordo_weights *base, const char *name, int64_t first, int64_t count, float *dst, ordo_problems *problems)
{
  llama2c *self = (llama2c *)base;
  int64_t layer, hd = base->config.head_dim;
  const kind *item = find(self, name, &layer);
  ordo_status status = ORDO_OK;
  if (!item) {
    g_autofree char *why = g_strdup_printf("it has no parameter %s", name);
    return bad(base->origin, why, problems);
  }
  uint64_t offset = (uint64_t)item->offset + (uint64_t)(layer * item->rows * item->columns) * 4;
  if (item != &self->kinds[Q] && item != &self->kinds[K])
    return ordo_file_read(self->fd, dst, (size_t)count * 4, offset + (uint64_t)first * 4, base->origin, problems);
  while (count > 0 && status == ORDO_OK) {
    int64_t row = first / item->columns, column = first % item->columns, in_head = row % hd;
    int64_t n = MIN(count, item->columns - column);
    int64_t source = row - in_head + (in_head < hd / 2 ? 2 * in_head : 2 * (in_head - hd / 2) + 1);
    status = ordo_file_read(self->fd, dst, (size_t)n * 4, offset + (uint64_t)(source * item->columns + column) * 4, base->origin, problems);
    first += n;
    count -= n;
    dst += n;
  }
  return status;
}

static void llama2c_destroy(ordo_weights *base)
{
  if (((llama2c *)base)->fd >= 0)
    close(((llama2c *)base)->fd);
  g_free(base->origin);
  g_free(base);
}

static ordo_status read_header(llama2c *self, int64_t size, ordo_problems *problems)
{
  int32_t h[7];
  char reason[200];
  struct llama_config *c = &self->base.config;
  ordo_status status = ordo_file_read(self->fd, h, sizeof h, 0, self->base.origin, problems);
  if (status != ORDO_OK)
    return status;
  for (int i = 0; i < 7; i++)
    h[i] = (int32_t)GINT32_FROM_LE(h[i]);
  if (h[0] == 0x616b3432)
    return bad(self->base.origin, "it is of version 1 or later (magic ak42)", problems);
  c->hidden = h[0];
  c->intermediate = h[1];
  c->layers = h[2];
  c->heads = h[3];
  c->kv_heads = h[4];
  c->vocab = h[5] < 0 ? -(int64_t)h[5] : h[5];
  c->tied = h[5] > 0;
  c->max_positions = h[6];
  c->head_dim = h[3] > 0 && h[0] > 0 ? h[0] / h[3] : 0;
  c->rms_eps = 1e-5;
  c->rope_theta = 10000.0;
  if (h[3] > 0 && h[0] % h[3])
    return bad(self->base.origin, "its width is no multiple of its heads", problems);
  if (llama_config_check(c, reason, sizeof reason))
    return bad(self->base.origin, reason, problems);
  describe(self);
  int64_t needed = lay_out(self);
  if (needed != size) {
    g_autofree char *why = g_strdup_printf(
        "a model of the sizes in its header takes %" G_GINT64_FORMAT " bytes, the file has %" G_GINT64_FORMAT, needed, size);
    return bad(self->base.origin, why, problems);
  }
  return ORDO_OK;
}

ordo_status ordo_llama2c_open(const char *path, ordo_problems *problems, ordo_weights **weights)
{
  struct stat info;
  llama2c *self = g_new0(llama2c, 1);
  g_autoptr(ordo_weights) base = &self->base;
  base->origin = g_strdup(path);
  base->initializer_range = 0.02;
  base->read = llama2c_read;
  base->destroy = llama2c_destroy;
  self->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (self->fd < 0 || fstat(self->fd, &info) != 0)
    return ordo_problems_push_errno(problems, "open", path, errno);
  if (!S_ISREG(info.st_mode))
    return bad(path, "it is not a regular file", problems);
  ordo_status status = read_header(self, info.st_size, problems);
  if (status == ORDO_OK)
    *weights = g_steal_pointer(&base);
  return status;
}
