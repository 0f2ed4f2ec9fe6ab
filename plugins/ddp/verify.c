/* verify.c - the replicas must be replicas: same leaves, same names, same shapes, on every rank of the axis.
 *
 * Not a comparison of values (weights.sync makes those equal). One 16-byte all-gather says whether there is a difference; only
 * then are hashes of all leaves and the two descriptions exchanged, so that the error names the parameter and both ranks. The
 * failure guarded against: a rank with one layer less, which would otherwise hang in the last all-reduce or, worse, add
 * gradients of different parameters (pytorch#73547).
 */
#include "ddp.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { DESCRIPTION = 384 }; /* bytes exchanged about one leaf; longer names are cut */

/* FNV-1a, 64 bits (offset basis and prime of the published algorithm). */
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t n)
{
  const unsigned char *bytes = data;
  for (size_t i = 0; i < n; i++)
    hash = (hash ^ bytes[i]) * 0x100000001b3u;
  return hash;
}

static const uint64_t HASH_START = 0xcbf29ce484222325u;

static uint64_t hash_number(uint64_t hash, int64_t value)
{
  return hash_bytes(hash, &value, sizeof value);
}

static uint64_t hash_text(uint64_t hash, const char *text)
{
  return hash_bytes(hash, text, strlen(text) + 1); /* with the end, so that "a","bc" differs from "ab","c" */
}

static uint64_t hash_leaf(const ordo_leaf *leaf)
{
  uint64_t hash = hash_text(HASH_START, leaf->name);
  hash = hash_number(hash, leaf->numel);
  hash = hash_number(hash, (int64_t)leaf->dtype);
  hash = hash_number(hash, (int64_t)leaf->grad_dtype);
  hash = hash_number(hash, (int64_t)(leaf->flags & ORDO_PARAM_REQUIRES_GRAD));
  for (uint32_t p = 0; p < leaf->n_params; p++) {
    const ordo_param *param = leaf->params[p];
    hash = hash_text(hash, param->name);
    for (uint32_t d = 0; d < param->ndim; d++)
      hash = hash_number(hash_number(hash, param->shape[d]), param->local_shape[d]);
  }
  return hash;
}

static const char *dtype_name(ordo_dtype dtype)
{
  static const char *const names[] = {"?", "f32", "f64", "f16", "bf16", "i8", "u8", "i32", "i64", "u64"};
  return dtype < sizeof names / sizeof names[0] ? names[dtype] : "opaque";
}

/* "'model.norm.weight' [64] f32", or "nothing" past the end. Shape of the first param, which is the leaf's own unless sharded. */
static void describe(const ordo_model *model, uint32_t index, char *text)
{
  if (index >= model->n_leaves) {
    snprintf(text, DESCRIPTION, "no such parameter");
    return;
  }
  const ordo_leaf *leaf = model->leaves[index];
  char shape[160] = "";
  size_t used = 0;
  const ordo_param *param = leaf->n_params > 0 ? leaf->params[0] : NULL;
  for (uint32_t d = 0; param != NULL && d < param->ndim && used < sizeof shape; d++)
    used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%" PRId64, d > 0 ? ", " : "", param->local_shape[d]);
  snprintf(text, DESCRIPTION, "'%.150s' [%s] %s, %" PRId64 " elements here%s", leaf->name, shape, dtype_name(leaf->dtype), leaf->numel,
           leaf->flags & ORDO_PARAM_REQUIRES_GRAD ? "" : ", frozen");
}

/* First rank whose summary {count, hash} differs from rank 0's, 0 if none. */
static int32_t first_other(const uint64_t *summaries, int32_t size)
{
  for (int32_t r = 1; r < size; r++)
    if (summaries[2 * r] != summaries[0] || summaries[2 * r + 1] != summaries[1])
      return r;
  return 0;
}

/* Finds and reports the first leaf that differs between rank 0 and `other`. Collective: every rank comes here with the same
 * `summaries`, and all record the same text. */
static ordo_status report(const ordo_job *job, const ordo_comm *comm, const uint64_t *summaries, int32_t other)
{
  const ordo_model *model = job->model;
  uint64_t most = 0, index = 0;
  for (int32_t r = 0; r < comm->size; r++)
    most = summaries[2 * r] > most ? summaries[2 * r] : most;

  char texts[2][DESCRIPTION] = {"", ""};
  uint64_t *mine = ddp_alloc(job, most, sizeof *mine), *all = ddp_alloc(job, most * (uint64_t)comm->size, sizeof *all);
  ordo_status status = mine != NULL && all != NULL ? ORDO_OK : ORDO_E_NOMEM;
  for (uint32_t i = 0; status == ORDO_OK && i < model->n_leaves; i++)
    mine[i] = hash_leaf(model->leaves[i]);
  if (status == ORDO_OK)
    status = ordo_all_gather(comm, mine, all, (int64_t)most, ORDO_U64);
  while (status == ORDO_OK && index < most && all[index] == all[(uint64_t)other * most + index])
    index++;
  for (int side = 0; status == ORDO_OK && side < 2; side++) {
    describe(model, (uint32_t)index, texts[side]);
    status = ordo_broadcast(comm, texts[side], DESCRIPTION, ORDO_U8, side == 0 ? 0 : other);
  }
  if (status == ORDO_OK)
    status = ddp_fail(job, ORDO_E_MISMATCH, "start every rank with the same model configuration and the same plugins",
                      "ranks hold different parameters: parameter %" PRIu64 " is %s on rank 0 (of %" PRIu64
                      ") and %s on rank %d (of %" PRIu64 ") of axis '%s'",
                      index, texts[0], summaries[0], texts[1], other, summaries[2 * other], job->axis->name);
  ddp_free(job, mine);
  ddp_free(job, all);
  return status;
}

ordo_status ddp_verify_leaves(const ordo_job *job, const ordo_comm *comm)
{
  const ordo_model *model = job->model;
  uint64_t mine[2] = {model->n_leaves, HASH_START};
  for (uint32_t i = 0; i < model->n_leaves; i++)
    mine[1] = hash_number(mine[1], (int64_t)hash_leaf(model->leaves[i]));

  uint64_t *summaries = ddp_alloc(job, 2 * (uint64_t)comm->size, sizeof *summaries);
  if (summaries == NULL)
    return ORDO_E_NOMEM;
  for (int32_t r = 0; r < comm->size; r++) /* in a dry run nobody else writes: ranks that do not exist do not differ */
    memcpy(&summaries[2 * r], mine, sizeof mine);
  ordo_status status = ordo_all_gather(comm, mine, summaries, 2, ORDO_U64);
  int32_t other = status == ORDO_OK ? first_other(summaries, comm->size) : 0;
  if (other != 0)
    status = report(job, comm, summaries, other);
  ddp_free(job, summaries);
  return status;
}
