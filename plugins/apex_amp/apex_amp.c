/* apex_amp.c - the precision `apex_amp`: NVIDIA apex's opt levels, with every strategy.
 *
 * apex needs model and optimizer at once and both bare, which contradicts every strategy that shards. Here the set-up is split: the model
 * is cast early, when only whole parameters exist; masters and scaler come last, when leaves are final. That is all the difference, and it
 * is what makes the levels work with ddp, fsdp1, fsdp2, tp and what they compose to.
 *
 * This file is the manifest, the table and the life cycle. See apex_amp.h for the rest.
 */
#include "apex_amp.h"

#include <ordo/manifest.h>
#include <ordo/plugin.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define AMP_VERSION "0.1.0"

/* Masters or a scaler: the same as amp_policy_wraps, in the words of a manifest. */
#define AMP_WRAPS                                                                                    \
  "opt_level in O2,O5 and cast_model_type unset and master_weights unset or "                        \
  "opt_level in O2,O5 and cast_model_type set and cast_model_type!=f32 and master_weights unset or " \
  "master_weights=true or opt_level in O1,O2 and loss_scale unset or loss_scale set and loss_scale!=1"

ORDO_MANIFEST(
    "id=apex_amp\n"
    "kind=precision\n"
    "version=" AMP_VERSION "\n"
    "summary=mixed precision by opt level O0 to O5, with fp32 masters and loss scaling\n"
    "license=Apache-2.0\n"
    "alias=amp\n"
    "alias=32-true:opt_level=O0\n"
    "alias=16-mixed:opt_level=O1:scaler=torch\n"
    "alias=bf16-mixed:opt_level=O4\n"
    "alias=16-true:opt_level=O3\n"
    "alias=bf16-true:opt_level=O3:cast_model_type=bf16\n"
    "positional=opt_level\n"
    "steps[opt_level!=O0 or cast_model_type set and cast_model_type!=f32]=precision.convert_model\n"
    "steps[" AMP_WRAPS "]=precision.wrap_optimizer\n"
    "flags[" AMP_WRAPS "]=wraps_optimizer\n"
    "option=opt_level|enum|O1|O0,O1,O2,O3,O4,O5|O0 fp32; O1 fp16 matmuls; O2 fp16 weights with fp32 masters and norms; O3 fp16 throughout; "
    "O4, O5: O1, O2 in bf16\n"
    "option=cast_model_type|dtype||f32,f16,bf16|type of stored weights, in place of the level's\n"
    "option=keep_norm_fp32|bool|||norms (parameters marked so, or of one dimension) stay fp32; unset: as the level says\n"
    "option=master_weights|bool|||the optimizer updates fp32 masters; unset: as the level says\n"
    "option=loss_scale|string|||dynamic, or a number; unset: as the level says\n"
    "option=scaler|enum|apex|apex,torch|how a dynamic loss scale moves: as apex's LossScaler or as PyTorch's GradScaler\n"
    "option=init_scale|real||0.0..|first dynamic loss scale, above 0; unset: 65536\n"
    "option=window|int||1..|steps without overflow before the loss scale grows; unset: 2000\n"
    "option=min_loss_scale|real||0.0..|scaler=apex: not below, and not above init_scale; unset or 0: no floor\n"
    "option=max_loss_scale|real||0.0..|scaler=apex: not above, above 0; unset: 2^24\n"
    "option=growth_factor|real||1.0..|scaler=torch; unset: 2\n"
    "option=backoff_factor|real||0.0..1.0|scaler=torch; unset: 0.5\n"
    "option=patience|int||1..1000|overflows in a row that a lower loss scale does not help (at min_loss_scale, or 1 and below) before "
    "training "
    "stops; unset: 10\n"
    "option=num_losses|int|1|1..64|losses with a scale of their own\n"
    "option=delay_unscale|bool|false||gradients of micro-batches add up in 16 bits, and are unscaled once; false: they add up in fp32\n"
    "dry_run=yes\n");

ordo_status amp_fail(const ordo_job *job, ordo_status status, const char *hint, const char *format, ...)
{
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return job->host->fail(job->host->ctx, status, text, hint);
}

/* ---- life cycle ---- */

static void read_int(const ordo_job *job, const char *key, int64_t *value)
{
  *value = AMP_UNSET;
  (void)job->option_int(job->ctx, key, value); /* unset leaves it alone */
}

static void read_real(const ordo_job *job, const char *key, double *value)
{
  *value = (double)NAN;
  (void)job->option_real(job->ctx, key, value);
}

static amp_request read_options(const ordo_job *job)
{
  amp_request request = {.level = 1};
  const char *level = job->option(job->ctx, "opt_level"), *scaler = job->option(job->ctx, "scaler");
  request.level = level != NULL && level[0] == 'O' && level[1] >= '0' && level[1] <= '5' ? level[1] - '0' : 1;
  request.torch_scaler = scaler != NULL && strcmp(scaler, "torch") == 0;
  request.loss_scale = job->option(job->ctx, "loss_scale");
  read_int(job, "cast_model_type", &request.cast);
  read_int(job, "keep_norm_fp32", &request.keep_norm);
  read_int(job, "master_weights", &request.masters);
  read_int(job, "window", &request.window);
  read_int(job, "patience", &request.patience);
  read_int(job, "num_losses", &request.n_losses);
  read_int(job, "delay_unscale", &request.delay_unscale);
  read_real(job, "init_scale", &request.init_scale);
  read_real(job, "min_loss_scale", &request.min_scale);
  read_real(job, "max_loss_scale", &request.max_scale);
  read_real(job, "growth_factor", &request.growth);
  read_real(job, "backoff_factor", &request.backoff);
  return request;
}

static ordo_status create(const ordo_job *job, void **instance)
{
  const amp_request request = read_options(job);
  amp_policy policy;
  amp_problem problem;
  if (!ORDO_CAN(job, ordo_job, convert_param))
    return amp_fail(job, ORDO_E_UNSUPPORTED, "use a newer host", "the host cannot convert parameters");
  if (amp_policy_resolve(&request, &policy, &problem) != 0)
    return amp_fail(job, ORDO_E_INVALID, problem.hint, "%s", problem.text);
  amp *self = job->alloc(job->ctx, sizeof *self, ORDO_MEM_OTHER);
  if (self == NULL)
    return amp_fail(job, ORDO_E_NOMEM, "free some memory", "no memory for the instance");
  self->job = job;
  self->policy = policy;
  self->scalers = job->alloc(job->ctx, policy.n_losses * sizeof *self->scalers, ORDO_MEM_OTHER);
  if (self->scalers == NULL) {
    job->free(job->ctx, self);
    return amp_fail(job, ORDO_E_NOMEM, "free some memory", "no memory for %u loss scalers", policy.n_losses);
  }
  for (uint32_t l = 0; l < policy.n_losses; l++)
    self->scalers[l] = policy.scaler;
  *instance = self;
  return ORDO_OK;
}

static void destroy(void *instance)
{
  amp *self = instance;
  if (self == NULL)
    return;
  amp_free_masters(self);
  self->job->free(self->job->ctx, self->scalers);
  self->job->free(self->job->ctx, self);
}

static ordo_status validate(void *instance)
{
  return amp_check_model(instance);
}

/* ---- set-up steps ---- */

static ordo_status convert_model(void *instance)
{
  return amp_convert_model(instance);
}

static ordo_status wrap_optimizer(void *instance, ordo_optimizer *optimizer)
{
  amp *self = instance;
  if (self->wrapped)
    return amp_fail(self->job, ORDO_E_STATE, "initialise once per run; a new session starts fresh",
                    "the optimizer was wrapped already: apex_amp is initialised a second time for model '%s'", self->job->model->name);
  if (optimizer == NULL)
    return amp_fail(self->job, ORDO_E_INVALID, "this is a defect of the host: an evaluation has no precision.wrap_optimizer",
                    "there is no optimizer to wrap");
  self->wrapped = 1;
  return amp_make_masters(self);
}

static void undo(void *instance, ordo_step step)
{
  amp *self = instance;
  if (step == ORDO_STEP_CONVERT_MODEL)
    self->converted = 0;
  if (step != ORDO_STEP_WRAP_OPTIMIZER)
    return;
  amp_free_masters(self);
  self->wrapped = 0;
}

/* ---- step events ---- */

static ordo_dtype op_dtype(void *instance, uint32_t op)
{
  return amp_policy_op_dtype(&((const amp *)instance)->policy, op);
}

static double loss_scale(void *instance, uint32_t loss_id)
{
  return amp_loss_scale(instance, loss_id);
}

/* A static scale skips nothing: what is not finite then stops the step by name (E-STEP-NONFINITE). */
static ordo_status unscale(void *instance, const ordo_step_info *info, int32_t *overflow)
{
  amp *self = instance;
  const uint32_t loss = ORDO_HAS(info, ordo_step_info, loss_id) && info->loss_id < self->policy.n_losses ? info->loss_id : 0;
  int all_finite = 1;
  amp_unscale_gradients(self, (float)(1.0 / self->scalers[loss].scale), &all_finite);
  *overflow = !all_finite && self->scalers[loss].dynamic;
  return ORDO_OK;
}

static ordo_status update_loss_scale(void *instance, uint32_t loss_id, int32_t overflow)
{
  return amp_update_scale(instance, loss_id, overflow != 0);
}

static ordo_status masters_to_model(void *instance)
{
  amp_copy_masters(instance);
  return ORDO_OK;
}

static const ordo_precision precision = {
    .struct_size = sizeof precision,
    .create = create,
    .validate = validate,
    .destroy = destroy,
    .convert_model = convert_model,
    .wrap_optimizer = wrap_optimizer,
    .undo = undo,
    .op_dtype = op_dtype,
    .loss_scale = loss_scale,
    .unscale = unscale,
    .masters_to_model = masters_to_model,
    .state = &amp_state,
    .update_loss_scale = update_loss_scale,
};

static const void *get_extension(const char *id)
{
  return id != NULL && strcmp(id, ORDO_PRECISION_EXTENSION) == 0 ? &precision : NULL;
}

ORDO_PLUGIN_ENTRY("apex_amp", AMP_VERSION, NULL, NULL, get_extension);
