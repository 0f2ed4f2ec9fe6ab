/* ddp.c - the strategy `ddp`: every rank holds the whole model, sees its part of the batch, and gradients are averaged.
 *
 * This file is the manifest, the tables and the life cycle; the work is done by the reducer (reducer.h). The idea: the gradient
 * memory of the model is moved into buckets once, at strategy.wrap; from then on a bucket is all-reduced in place as soon as
 * backward has completed it, while the rest of backward runs.
 *
 * It does not make the replicas equal: weights.sync does, before this step, in the open. Accumulation needs nothing from the
 * embedder: before the last micro-batch of a step gradients only add up (no_sync).
 */
#include "ddp.h"

#include "buckets.h"
#include "hooks.h"
#include "reducer.h"

#include <ordo/manifest.h>
#include <ordo/plugin.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define DDP_VERSION "0.1.0"

ORDO_MANIFEST(
    "id=ddp\n"
    "kind=strategy\n"
    "version=" DDP_VERSION "\n"
    "summary=replicated model, gradients averaged in buckets during backward\n"
    "license=Apache-2.0\n"
    "flags=supports_no_sync\n"
    "steps=strategy.wrap\n"
    "reduces=yes\n"
    "mesh_axis=data\n"
    "alias=ddp_find_unused_parameters:find_unused_parameters=true\n"
    "alias=ddp_static_graph:static_graph=true\n"
    "alias=ddp_bf16:hook=bf16\n"
    "option=bucket_cap|size|25MiB|1..|a bucket is closed when it holds at least this much\n"
    "option=first_bucket|size|1MiB|1..|the same for the first bucket, so that communication starts early\n"
    "option=hook|comm_hook|none|none,fp16,bf16|how a bucket is reduced: by one of these, or by a comm_hook plugin\n"
    "option=find_unused_parameters|bool|false||parameters may get no gradient in a step; those that no rank used keep none\n"
    "option=static_graph|bool|false||the parameters used in the first step are used in every step; a deviation is an error\n"
    "option=gradient_as_bucket_view|bool|true||always true: gradients live in their bucket, nothing is copied\n"
    "option=ignored|string|||patterns of parameters whose gradients are not averaged, joined with ','\n"
    "option=reduce_nan_check|bool|false||stop if a gradient holds NaN or infinity before it is averaged (not with a loss scaler)\n"
    "option=stats_interval|int|100|0..|overlap statistics in the first 10 steps and then every so many; 0: none\n"
    "dry_run=yes\n");

/* ---- shared helpers ---- */

ordo_status ddp_fail(const ordo_job *job, ordo_status status, const char *hint, const char *format, ...)
{
  char text[1536];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return job->host->fail(job->host->ctx, status, text, hint);
}

void *ddp_alloc(const ordo_job *job, uint64_t count, size_t size)
{
  uint64_t bytes = count * size;
  void *memory = count <= SIZE_MAX / size ? job->alloc(job->ctx, bytes > 0 ? bytes : 1, ORDO_MEM_OTHER) : NULL;
  if (memory == NULL)
    ddp_fail(job, ORDO_E_NOMEM, "use fewer ranks on this machine, or a smaller model", "ddp could not get %llu bytes for its lists",
             (unsigned long long)bytes);
  return memory;
}

void ddp_free(const ordo_job *job, void *memory)
{
  job->free(job->ctx, memory);
}

/* ---- life cycle ---- */

static ordo_status read_options(ddp *self)
{
  const struct {
    const char *key;
    int64_t *value;
  } numbers[] = {
      {"bucket_cap", &self->options.bucket_cap},      {"first_bucket", &self->options.first_bucket},
      {"static_graph", &self->options.static_graph},  {"find_unused_parameters", &self->options.find_unused},
      {"reduce_nan_check", &self->options.nan_check}, {"stats_interval", &self->options.stats_interval},
  };
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    ordo_status status = self->job->option_int(self->job->ctx, numbers[i].key, numbers[i].value);
    if (status != ORDO_OK)
      return ddp_fail(self->job, status, "this is a defect of the host: the manifest gives a default", "option '%s' has no value",
                      numbers[i].key);
  }
  const char *hook = self->job->option(self->job->ctx, "hook"), *ignored = self->job->option(self->job->ctx, "ignored");
  self->options.hook = hook != NULL && hook[0] != '\0' ? hook : "none";
  self->options.ignored = ignored != NULL ? ignored : "";
  return ORDO_OK;
}

static ordo_status create(const ordo_job *job, void **instance)
{
  if (job->axis == NULL)
    return ddp_fail(job, ORDO_E_INVALID, "this is a defect of the host: the manifest says mesh_axis=data", "ddp was given no mesh axis");
  ddp *self = ddp_alloc(job, 1, sizeof *self);
  if (self == NULL)
    return ORDO_E_NOMEM;
  self->job = job;
  self->comm = job->axis->comm;
  ordo_status status = read_options(self);
  if (status != ORDO_OK) {
    ddp_free(job, self);
    return status;
  }
  *instance = self;
  return ORDO_OK;
}

static ordo_status validate(void *instance)
{
  ddp *self = instance;
  int64_t view = 1;
  if (self->job->option_int(self->job->ctx, "gradient_as_bucket_view", &view) == ORDO_OK && view == 0)
    return ddp_fail(self->job, ORDO_E_UNSUPPORTED, "leave the option out",
                    "gradient_as_bucket_view=false: gradients always live in their bucket");
  if (self->options.bucket_cap <= 0 || self->options.first_bucket <= 0)
    return ddp_fail(self->job, ORDO_E_INVALID, "the defaults are 25MiB and 1MiB", "bucket_cap and first_bucket must be at least one byte");
  return ORDO_OK;
}

static ordo_status wrap(void *instance)
{
  ddp *self = instance;
  if (self->reducer != NULL)
    return ddp_fail(self->job, ORDO_E_STATE, "this is a defect of the host: a step runs once", "strategy.wrap(ddp) was called twice");
  ordo_status status = ddp_verify_leaves(self->job, self->comm);
  if (status != ORDO_OK || self->job->eval_only)
    return status;
  return ddp_reducer_create(self, &self->reducer);
}

static void release(ddp *self)
{
  ddp_reducer_destroy(self->reducer);
  self->reducer = NULL;
}

static void undo(void *instance, ordo_step step)
{
  if (step == ORDO_STEP_WRAP)
    release(instance);
}

static void destroy(void *instance)
{
  ddp *self = instance;
  if (self == NULL)
    return;
  release(self);
  ddp_free(self->job, self->waits);
  ddp_free(self->job, self);
}

/* ---- step events ---- */

static ordo_status step_begin(void *instance, const ordo_step_info *info)
{
  ddp *self = instance;
  return self->reducer != NULL && !info->evaluating ? ddp_reducer_step_begin(self->reducer, info) : ORDO_OK;
}

static ordo_status micro_begin(void *instance, const ordo_step_info *info)
{
  ddp *self = instance;
  if (self->reducer != NULL && !info->evaluating)
    ddp_reducer_micro_begin(self->reducer, info);
  return ORDO_OK;
}

static ordo_status pre_backward(void *instance, const ordo_unit *unit)
{
  ddp *self = instance;
  (void)unit;
  if (self->reducer != NULL && self->reducer->in_last)
    ddp_stats_backward_begin(&self->reducer->stats);
  return ORDO_OK;
}

static ordo_status grad_ready(void *instance, const ordo_param *param)
{
  ddp *self = instance;
  return self->reducer != NULL ? ddp_reducer_grad_ready(self->reducer, param) : ORDO_OK;
}

static ordo_status micro_end(void *instance, const ordo_step_info *info)
{
  ddp *self = instance;
  if (self->reducer != NULL && info->is_last_micro_batch)
    ddp_stats_backward_end(&self->reducer->stats);
  return ORDO_OK;
}

static ordo_status reduce(void *instance, const ordo_step_info *info)
{
  ddp *self = instance;
  (void)info;
  return self->reducer != NULL ? ddp_reducer_reduce(self->reducer) : ORDO_OK;
}

/* Gradients are whole on every rank and their sum is reduced in place, once a step: switched on, that happens during the backward of the
 * last micro-batch, switched off, in step.reduce. */
static ordo_status control(void *instance, const ordo_control *control)
{
  ddp *self = instance;
  const uint32_t n_units = self->job->model->n_units;
  if (control->operation != ORDO_CONTROL_GRADIENT_SYNC)
    return ORDO_E_NOT_FOUND;
  if (self->waits == NULL)
    self->waits = ddp_alloc(self->job, n_units, sizeof *self->waits);
  if (self->waits == NULL)
    return ORDO_E_NOMEM;
  for (uint32_t u = 0; u < n_units; u++)
    if (control->unit == u || control->unit == ORDO_ALL_UNITS)
      self->waits[u] = control->value == 0;
  return ORDO_OK;
}

static const ordo_strategy strategy = {
    .struct_size = sizeof strategy,
    .create = create,
    .validate = validate,
    .destroy = destroy,
    .wrap = wrap,
    .undo = undo,
    .step_begin = step_begin,
    .micro_begin = micro_begin,
    .pre_backward = pre_backward,
    .grad_ready = grad_ready,
    .micro_end = micro_end,
    .reduce = reduce,
    .control = control,
};

static const void *get_extension(const char *id)
{
  return id != NULL && strcmp(id, ORDO_STRATEGY_EXTENSION) == 0 ? &strategy : NULL;
}

ORDO_PLUGIN_ENTRY("ddp", DDP_VERSION, NULL, NULL, get_extension);
