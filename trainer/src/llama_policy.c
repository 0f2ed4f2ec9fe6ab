/* llama_policy.c - which types a pass uses, and the work space that types other than fp32 need.
 *
 * Work space holds a bounded piece of one weight at a time, never a second model: 16-bit storage is there to save memory. It does not
 * depend on what is asked later, so a param that becomes 16-bit without room for it is an error and not a crash.
 */
#include "llama_model.h"

#include <ordo/precision.h>

#include <stdlib.h>

/* Elements of a weight that are widened at a time: larger pieces repeat less packing inside the product, and 4 MiB still are in cache. */
enum { WORK_NUMEL = 1 << 20, WORK_ALIGN = 64 };

static ordo_dtype ask(const struct llama *model, uint32_t op)
{
  return model->hooks.op_dtype == NULL ? ORDO_F32 : model->hooks.op_dtype(model->hooks.ctx, op);
}

static struct llama_policy ask_all(const struct llama *model)
{
  return (struct llama_policy){ask(model, ORDO_OP_MATMUL), ask(model, ORDO_OP_NORM),        ask(model, ORDO_OP_SOFTMAX),
                               ask(model, ORDO_OP_ROPE),   ask(model, ORDO_OP_ELEMENTWISE), ask(model, ORDO_OP_EMBEDDING)};
}

static int check_policy(struct llama *model, const struct llama_policy *policy)
{
  const ordo_dtype types[] = {policy->matmul, policy->norm, policy->softmax, policy->rope, policy->elementwise, policy->embedding};
  const char *const names[] = {"matmul", "norm", "softmax", "rope", "elementwise", "embedding"};
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
    if (types[i] != ORDO_F32 && !kernels_is_low(types[i]))
      return llama_fail(model, LLAMA_E_INVALID, "the precision policy wants type %u for %s: the model computes with fp32, bf16 and fp16",
                        types[i], names[i]);
  return LLAMA_OK;
}

int llama_policy_ask(struct llama *model)
{
  model->policy = ask_all(model);
  int status = check_policy(model, &model->policy);
  if (status == LLAMA_OK && kernels_is_low(model->policy.matmul) && model->work.memory == NULL)
    return llama_fail(model, LLAMA_E_STATE, "the precision policy wants products in 16 bits since room was reserved: reserve again");
  return status;
}

/* ---- work space ---- */

static int any_low(const struct llama *model)
{
  for (uint32_t p = 0; p < model->n_params; p++)
    if (kernels_is_low(model->dtype[p]) || kernels_is_low(model->grad_dtype[p]))
      return 1;
  return kernels_is_low(model->policy.matmul);
}

static int64_t larger(int64_t a, int64_t b)
{
  return a > b ? a : b;
}

/* Whole weights up to WORK_NUMEL, rows of larger ones; at least one row. */
static int64_t matrix_numel(const struct llama *model)
{
  int64_t numel = 0, row = 0;
  for (uint32_t p = 0; p < model->n_params; p++) {
    numel = larger(numel, model->params[p].numel);
    row = larger(row, model->params[p].ndim == 2 ? model->params[p].shape[1] : 0);
  }
  return larger(numel < WORK_NUMEL ? numel : WORK_NUMEL, row);
}

/* Takes bytes from *next; adds up when the base is null. */
static void *take(char *base, int64_t *used, int64_t bytes)
{
  void *piece = base == NULL ? NULL : base + *used;
  *used += (bytes + WORK_ALIGN - 1) / WORK_ALIGN * WORK_ALIGN;
  return piece;
}

static int64_t lay_out(struct llama_work *work, int64_t hidden, char *base)
{
  int64_t used = 0;
  work->matrix = take(base, &used, work->matrix_numel * (int64_t)sizeof(float));
  work->weight = take(base, &used, hidden * (int64_t)sizeof(float));
  work->vector = take(base, &used, hidden * (int64_t)sizeof(float));
  work->keys = take(base, &used, work->tokens * (int64_t)sizeof(int64_t));
  for (int slot = 0; slot < OPERAND_SLOTS; slot++)
    work->slots[slot] = take(base, &used, work->slot_numel[slot] * (int64_t)sizeof(uint16_t));
  return used;
}

void llama_work_release(struct llama *model)
{
  llama_free(model, model->work.memory);
  model->work = (struct llama_work){0};
}

/* What the passes need that this reservation is for; never less than there is, since a cache may share it with a batch. */
static struct llama_work planned(const struct llama *model, int64_t tokens, int64_t logits_rows, int train)
{
  struct llama_work work = model->work;
  int64_t widest = larger(model->config.hidden, larger(model->layout.most.inter, model->layout.most.q_size));
  work.matrix_numel = matrix_numel(model);
  work.tokens = larger(work.tokens, train ? tokens : 0);
  for (int slot = 0; model->gemm != NULL && slot < (train ? OPERAND_SLOTS : 1); slot++)
    work.slot_numel[slot] = larger(work.slot_numel[slot], tokens * widest);
  if (model->gemm != NULL && train)
    work.slot_numel[OPERAND_DY0] = larger(work.slot_numel[OPERAND_DY0], logits_rows * model->layout.vocab);
  return work;
}

int llama_work_reserve(struct llama *model, int64_t tokens, int64_t logits_rows, int train)
{
  model->policy = ask_all(model);
  int status = check_policy(model, &model->policy);
  if (status != LLAMA_OK || !any_low(model))
    return status;
  if (model->policy.matmul == ORDO_BF16 && model->gemm == NULL)
    model->gemm = bf16_gemm_create();
  struct llama_work work = planned(model, tokens, logits_rows, train);
  int64_t bytes = lay_out(&work, model->config.hidden, NULL);
  if (bytes <= model->work.bytes)
    return LLAMA_OK;
  llama_work_release(model);
  work.memory = llama_alloc(model, bytes);
  if (work.memory == NULL)
    return llama_fail(model, LLAMA_E_NOMEM, "no memory for %lld bytes of work space of 16-bit types", (long long)bytes);
  work.bytes = lay_out(&work, model->config.hidden, work.memory);
  model->work = work;
  return LLAMA_OK;
}

/* ---- values ---- */

void llama_round(const struct llama *model, ordo_dtype dtype, int64_t n, float *x)
{
  kernels_round(model->kernels, dtype, (size_t)llama_busy(model, n), x);
}

struct operand llama_operand(struct llama *model, enum operand_slot slot, int64_t n, const float *x)
{
  struct operand operand = {x, NULL};
  if (model->gemm == NULL || model->dry || model->policy.matmul != ORDO_BF16 || n > model->work.slot_numel[slot])
    return operand;
  model->kernels->bf16_from_f32((size_t)n, x, model->work.slots[slot]);
  operand.low = model->work.slots[slot];
  return operand;
}
