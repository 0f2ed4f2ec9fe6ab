/* llama_params.c - which parameters a configuration has: names, shapes, units, hints. The one place that knows the order. */
#include "llama_model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { NAME_SIZE = 80 };

static const char *refuse(char *reason, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

static const char *refuse(char *reason, size_t size, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(reason, size, format, args);
  va_end(args);
  return reason;
}

struct named_size {
  const char *name;
  int64_t value;
};

const char *llama_config_check(const struct llama_config *config, char *reason, size_t size)
{
  const struct named_size sizes[] = {
      {"vocab", config->vocab},
      {"hidden", config->hidden},
      {"intermediate", config->intermediate},
      {"layers", config->layers},
      {"heads", config->heads},
      {"kv_heads", config->kv_heads},
      {"head_dim", config->head_dim},
      {"max_positions", config->max_positions},
  };
  /* 2^24 keeps every product of two sizes below 2^48 and every row length within OpenBLAS's int. */
  const int64_t most = 1 << 24;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
    if (sizes[i].value < 1 || sizes[i].value > most)
      return refuse(reason, size, "%s is %lld; it must be from 1 to %lld", sizes[i].name, (long long)sizes[i].value, (long long)most);
  if (config->layers > 100000)
    return refuse(reason, size, "layers is %lld; at most 100000 are supported", (long long)config->layers);
  if (config->head_dim % 2 != 0)
    return refuse(reason, size, "head_dim is %lld; rotary embedding needs an even number", (long long)config->head_dim);
  if (config->heads % config->kv_heads != 0)
    return refuse(reason, size, "heads (%lld) is not a multiple of kv_heads (%lld)", (long long)config->heads, (long long)config->kv_heads);
  if (config->heads * config->head_dim > most)
    return refuse(reason, size, "heads * head_dim is %lld; at most %lld is supported", (long long)(config->heads * config->head_dim),
                  (long long)most);
  if (!(config->rms_eps >= 0.0 && config->rms_eps < 1.0))
    return refuse(reason, size, "rms_eps is %g; it must be at least 0 and below 1", config->rms_eps);
  if (!(config->rope_theta > 0.0 && config->rope_theta <= 1e30))
    return refuse(reason, size, "rope_theta is %g; it must be positive and finite", config->rope_theta);
  return NULL;
}

/* Text for the row added next: units and params share one array of fixed slots. */
static const char *layer_name(struct llama *model, int64_t layer, const char *tail)
{
  char *name = model->names + (size_t)(model->n_units + model->n_params) * NAME_SIZE;
  snprintf(name, NAME_SIZE, "model.layers.%lld%s%s", (long long)layer, tail[0] != '\0' ? "." : "", tail);
  return name;
}

static void add_unit(struct llama *model, const char *name, const char *class_name)
{
  struct llama_unit *unit = &model->units[model->n_units++];
  *unit = (struct llama_unit){.name = name, .class_name = class_name, .first_param = model->n_params};
}

static struct llama_param *add_param(struct llama *model, const char *name, int64_t rows, int64_t columns)
{
  struct llama_param *param = &model->params[model->n_params++];
  uint32_t unit = model->n_units - 1;
  model->units[unit].n_params++;
  *param = (struct llama_param){
      .name = name,
      .unit = unit,
      .ndim = columns == 0 ? 1 : 2,
      .shape = {rows, columns},
      .numel = columns == 0 ? rows : rows * columns,
      .decay = columns != 0,
      .tp_block = 1,
      .tie_group = -1,
  };
  return param;
}

struct block_row {
  const char *tail;
  int64_t rows;
  int64_t columns;
  uint32_t tp_hint;
  int64_t tp_block;
};

static void add_block(struct llama *model, int64_t layer)
{
  const struct llama_config *c = &model->config;
  int64_t q = c->heads * c->head_dim;
  int64_t kv = c->kv_heads * c->head_dim;
  const struct block_row rows[BLOCK_N_PARAMS] = {
      [BLOCK_Q] = {"self_attn.q_proj.weight", q, c->hidden, LLAMA_TP_COLUMN, c->head_dim},
      [BLOCK_K] = {"self_attn.k_proj.weight", kv, c->hidden, LLAMA_TP_COLUMN, c->head_dim},
      [BLOCK_V] = {"self_attn.v_proj.weight", kv, c->hidden, LLAMA_TP_COLUMN, c->head_dim},
      [BLOCK_O] = {"self_attn.o_proj.weight", c->hidden, q, LLAMA_TP_ROW, c->head_dim},
      [BLOCK_GATE] = {"mlp.gate_proj.weight", c->intermediate, c->hidden, LLAMA_TP_COLUMN, 1},
      [BLOCK_UP] = {"mlp.up_proj.weight", c->intermediate, c->hidden, LLAMA_TP_COLUMN, 1},
      [BLOCK_DOWN] = {"mlp.down_proj.weight", c->hidden, c->intermediate, LLAMA_TP_ROW, 1},
      [BLOCK_INPUT_NORM] = {"input_layernorm.weight", c->hidden, 0, LLAMA_TP_REPLICATE, 1},
      [BLOCK_POST_NORM] = {"post_attention_layernorm.weight", c->hidden, 0, LLAMA_TP_REPLICATE, 1},
  };
  add_unit(model, layer_name(model, layer, ""), "LlamaBlock");
  for (uint32_t i = 0; i < BLOCK_N_PARAMS; i++) {
    struct llama_param *param = add_param(model, layer_name(model, layer, rows[i].tail), rows[i].rows, rows[i].columns);
    param->tp_hint = rows[i].tp_hint;
    param->tp_block = rows[i].tp_block;
  }
}

int llama_table_create(struct llama *model)
{
  const struct llama_config *c = &model->config;
  size_t n_units = (size_t)c->layers + 2;
  size_t n_params = (size_t)c->layers * BLOCK_N_PARAMS + 1 + HEAD_N_PARAMS;
  model->units = calloc(n_units, sizeof *model->units);
  model->params = calloc(n_params, sizeof *model->params);
  model->names = calloc(n_units + n_params, NAME_SIZE);
  model->data = calloc(n_params, sizeof *model->data);
  model->grad = calloc(n_params, sizeof *model->grad);
  model->dtype = calloc(n_params, sizeof *model->dtype);
  model->grad_dtype = calloc(n_params, sizeof *model->grad_dtype);
  if (model->units == NULL || model->params == NULL || model->names == NULL || model->data == NULL || model->grad == NULL ||
      model->dtype == NULL || model->grad_dtype == NULL)
    return LLAMA_E_NOMEM;
  for (size_t p = 0; p < n_params; p++)
    model->dtype[p] = model->grad_dtype[p] = ORDO_F32;
  int32_t tie = c->tied ? 0 : -1;
  add_unit(model, "model.embed_tokens", "LlamaEmbedding");
  struct llama_param *embedding = add_param(model, "model.embed_tokens.weight", c->vocab, c->hidden);
  embedding->tp_hint = LLAMA_TP_VOCAB;
  embedding->tie_group = tie;
  for (int64_t layer = 0; layer < c->layers; layer++)
    add_block(model, layer);
  add_unit(model, "head", "LlamaHead");
  add_param(model, "model.norm.weight", c->hidden, 0);
  struct llama_param *head = add_param(model, "lm_head.weight", c->vocab, c->hidden);
  head->tp_hint = LLAMA_TP_VOCAB;
  head->tie_group = tie;
  return LLAMA_OK;
}

void llama_table_destroy(struct llama *model)
{
  free(model->units);
  free(model->params);
  free(model->names);
  free(model->data);
  free(model->grad);
  free(model->dtype);
  free(model->grad_dtype);
}

uint32_t llama_block_unit(int64_t layer)
{
  return (uint32_t)layer + 1;
}

uint32_t llama_head_unit(const struct llama *model)
{
  return model->n_units - 1;
}

static int is_float_type(ordo_dtype dtype)
{
  return dtype == ORDO_F32 || kernels_is_low(dtype);
}

static int check_param(struct llama *model, uint32_t p, const char *unit)
{
  const char *name = model->params[p].name;
  if (model->data[p] == NULL)
    return llama_fail(model, LLAMA_E_STATE, "unit %s runs, but %s has no data: bind it before or in the unit's hook", unit, name);
  if (!is_float_type(model->dtype[p]) || !is_float_type(model->grad_dtype[p]))
    return llama_fail(model, LLAMA_E_INVALID, "%s is bound with types %u and %u: the model computes with fp32, bf16 and fp16", name,
                      model->dtype[p], model->grad_dtype[p]);
  if ((kernels_is_low(model->dtype[p]) || kernels_is_low(model->grad_dtype[p])) && model->work.memory == NULL)
    return llama_fail(model, LLAMA_E_STATE, "%s became 16-bit after room was reserved: reserve again", name);
  return LLAMA_OK;
}

int llama_check_unit(struct llama *model, uint32_t unit)
{
  const struct llama_unit *u = &model->units[unit];
  int status = LLAMA_OK;
  for (uint32_t p = u->first_param; status == LLAMA_OK && p < u->first_param + u->n_params; p++)
    status = check_param(model, p, u->name);
  return status == LLAMA_OK ? llama_check_adapters(model, u) : status;
}
