/* apex_amp.h - what the files of this plugin share: the instance, and how an error is reported.
 *
 *   apex_amp.c   manifest, table, life cycle
 *   policy.c     opt levels and overrides
 *   scaler.c     one loss scale over time
 *   masters.c    conversion of the model, fp32 masters, unscale, masters to model
 *   losses.c     the scaler of each loss: scale, update, giving up
 *   state.c      what a checkpoint holds: scalers as a blob, weights through their masters
 */
#ifndef APEX_AMP_APEX_AMP_H
#define APEX_AMP_APEX_AMP_H

#include "policy.h"

typedef struct amp_master {
  ordo_leaf *leaf;
  float *data, *grad; /* leaf->numel elements each; null for an empty shard */
} amp_master;

typedef struct amp {
  const ordo_job *job;
  amp_policy policy;
  int converted;       /* precision.convert_model has run */
  int wrapped;         /* precision.wrap_optimizer has run */
  amp_scaler *scalers; /* one per loss, from create on */
  amp_master *masters; /* one per leaf that has a master */
  uint32_t n_masters;
} amp;

/* Records an error with the job's host and returns `status`. */
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
ordo_status
amp_fail(const ordo_job *job, ordo_status status, const char *hint, const char *format, ...);

/* masters.c */
ordo_status amp_check_model(const amp *self);
ordo_status amp_convert_model(amp *self);
ordo_status amp_make_masters(amp *self);
void amp_free_masters(amp *self);
/* Gradients times `inverse`, in fp32, into the masters where there are some; *finite becomes 0 if one is not finite. */
void amp_unscale_gradients(amp *self, float inverse, int *finite);
void amp_copy_masters(amp *self);
/* First leaf whose weights hold NaN or infinity on this rank, null if none. */
const ordo_leaf *amp_first_bad_weight(const amp *self);
/* Elements of a leaf's weight as fp32, from the master if it has one; and back, into both. */
void amp_read_weight(const ordo_leaf *leaf, int64_t first, int64_t n, float *dst);
void amp_write_weight(ordo_leaf *leaf, int64_t first, int64_t n, const float *src);

/* losses.c */
double amp_loss_scale(amp *self, uint32_t loss_id);
ordo_status amp_update_scale(amp *self, uint32_t loss_id, int overflow);

/* state.c */
extern const ordo_state_ops amp_state;

#endif
