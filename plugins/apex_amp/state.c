/* state.c - what a checkpoint holds of this plugin. See apex_amp.h.
 *
 * The blob: a head, then scale, clean steps and stuck steps of each loss. Little-endian, as everything here. Static scales come from the
 * options and are not restored. Weights need no blob: a chunk of a leaf is read from and written to its master, and the 16-bit weight
 * follows, so that masters never go stale behind restored weights (which they did in apex: the next step undid the restore).
 */
#include "apex_amp.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define MAGIC 0x3153504du /* "MPS1" */

typedef struct state_head {
  uint32_t magic;
  uint32_t n_losses;
} state_head;

typedef struct state_loss {
  double scale;
  int64_t counter;
  int64_t stuck;
} state_loss;

static size_t blob_size(void *instance)
{
  const amp *self = instance;
  return amp_policy_wraps(&self->policy) ? sizeof(state_head) + self->policy.n_losses * sizeof(state_loss) : 0;
}

static ordo_status blob_save(void *instance, void *blob, size_t size)
{
  const amp *self = instance;
  state_head head = {MAGIC, self->policy.n_losses};
  if (size != blob_size(instance) || size == 0)
    return amp_fail(self->job, ORDO_E_INVALID, "ask blob_size first", "the state of apex_amp has %zu bytes, there is room for %zu",
                    blob_size(instance), size);
  memcpy(blob, &head, sizeof head);
  for (uint32_t l = 0; l < self->policy.n_losses; l++) {
    const amp_scaler *scaler = &self->scalers[l];
    state_loss loss = {scaler->scale, scaler->counter, scaler->stuck};
    memcpy((char *)blob + sizeof head + l * sizeof loss, &loss, sizeof loss);
  }
  return ORDO_OK;
}

/* Counts that no run reaches are damage; what they are added to must not run over. */
#define MOST_STEPS (INT64_C(1) << 48)

static ordo_status check_loss(const amp *self, uint32_t index, const state_loss *loss)
{
  const amp_scaler *scaler = &self->scalers[index];
  const int counts = loss->counter >= 0 && loss->counter <= MOST_STEPS && loss->stuck >= 0 && loss->stuck <= MOST_STEPS;
  if (!counts || !isfinite(loss->scale) || loss->scale < AMP_SCALE_LEAST || loss->scale > AMP_SCALE_MOST)
    return amp_fail(self->job, ORDO_E_INVALID, "take another checkpoint",
                    "the state of apex_amp is damaged: loss %u has scale %g after %" PRId64 " clean steps and %" PRId64
                    " overflows without help",
                    index, loss->scale, loss->counter, loss->stuck);
  if (scaler->dynamic && loss->scale > scaler->max)
    return amp_fail(self->job, ORDO_E_INVALID, "resume with the max_loss_scale and the scaler of the run that was saved",
                    "the state has loss scale %g for loss %u, which is above max_loss_scale=%g of this run", loss->scale, index,
                    scaler->max);
  if (scaler->dynamic && loss->scale < scaler->min)
    return amp_fail(self->job, ORDO_E_INVALID, "resume with the min_loss_scale of the run that was saved",
                    "the state has loss scale %g for loss %u, which is below min_loss_scale=%g of this run", loss->scale, index,
                    scaler->min);
  return ORDO_OK;
}

static ordo_status check_blob(const amp *self, const void *blob, size_t size)
{
  state_head head = {0, 0};
  if (size >= sizeof head)
    memcpy(&head, blob, sizeof head);
  if (head.magic != MAGIC)
    return amp_fail(self->job, ORDO_E_INVALID, "take the state that apex_amp has written", "the %zu bytes are no state of apex_amp", size);
  if (head.n_losses != self->policy.n_losses)
    return amp_fail(self->job, ORDO_E_INVALID, "resume with the num_losses of the run that was saved",
                    "the state holds the scalers of %u losses, this run has num_losses=%u", head.n_losses, self->policy.n_losses);
  if (size != sizeof head + head.n_losses * sizeof(state_loss))
    return amp_fail(self->job, ORDO_E_INVALID, "take another checkpoint",
                    "the state of apex_amp is damaged: %zu bytes for %u losses are %zu too %s", size, head.n_losses,
                    size < blob_size((void *)self) ? blob_size((void *)self) - size : size - blob_size((void *)self),
                    size < blob_size((void *)self) ? "few" : "many");
  return ORDO_OK;
}

static ordo_status blob_load(void *instance, const void *blob, size_t size, const char *version)
{
  amp *self = instance;
  state_loss loss;
  (void)version; /* the head says what follows */
  if (!amp_policy_wraps(&self->policy))
    return amp_fail(self->job, ORDO_E_INVALID, "resume with the opt level of the run that was saved",
                    "O%d has no loss scaler that the state could be restored into", self->policy.level);
  if (!self->wrapped)
    return amp_fail(self->job, ORDO_E_STATE, "restore in restore.precision, which comes after it",
                    "the state was loaded before precision.wrap_optimizer(apex_amp) made the scaler");
  ordo_status status = check_blob(self, blob, size);
  for (uint32_t l = 0; l < self->policy.n_losses && status == ORDO_OK; l++) {
    memcpy(&loss, (const char *)blob + sizeof(state_head) + l * sizeof loss, sizeof loss);
    status = check_loss(self, l, &loss);
  }
  for (uint32_t l = 0; l < self->policy.n_losses && status == ORDO_OK; l++) {
    amp_scaler *scaler = &self->scalers[l];
    memcpy(&loss, (const char *)blob + sizeof(state_head) + l * sizeof loss, sizeof loss);
    scaler->scale = scaler->dynamic ? loss.scale : scaler->scale;
    scaler->counter = loss.counter;
    scaler->stuck = loss.stuck;
    scaler->skipped = loss.stuck > 0 ? AMP_DESCENT : 0; /* the next overflow goes on counting */
  }
  return status;
}

static ordo_status check_chunk(const amp *self, const ordo_leaf *leaf, const ordo_chunk *chunk, int32_t slot)
{
  if (slot >= 0)
    return amp_fail(self->job, ORDO_E_UNSUPPORTED, "ask the optimizer (ordo_optimizer.slot)",
                    "slot %d of leaf '%s': optimizer state is not apex_amp's", slot, leaf->name);
  if (leaf->opaque != NULL || leaf->data == NULL || chunk->leaf_offset < 0 || chunk->leaf_offset + ordo_chunk_numel(chunk) > leaf->numel)
    return amp_fail(self->job, ORDO_E_INVALID, "take chunks from the leaf's placement", "leaf '%s' holds no such chunk of plain numbers",
                    leaf->name);
  return ORDO_OK;
}

static ordo_status export_chunk(void *instance, const ordo_leaf *leaf, const ordo_chunk *chunk, int32_t slot, float *dst)
{
  ordo_status status = check_chunk(instance, leaf, chunk, slot);
  if (status == ORDO_OK)
    amp_read_weight(leaf, chunk->leaf_offset, ordo_chunk_numel(chunk), dst);
  return status;
}

static ordo_status import_chunk(void *instance, ordo_leaf *leaf, const ordo_chunk *chunk, int32_t slot, const float *src)
{
  ordo_status status = check_chunk(instance, leaf, chunk, slot);
  if (status == ORDO_OK)
    amp_write_weight(leaf, chunk->leaf_offset, ordo_chunk_numel(chunk), src);
  return status;
}

const ordo_state_ops amp_state = {
    .struct_size = sizeof amp_state,
    .blob_size = blob_size,
    .blob_save = blob_save,
    .blob_load = blob_load,
    .export_chunk = export_chunk,
    .import_chunk = import_chunk,
};
