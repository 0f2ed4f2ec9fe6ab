/* fsdp2.c - the strategy `fsdp2`: every parameter stays itself, and every rank keeps some of its rows.
 *
 * This file is the manifest, the tables and the life cycle. The idea of the strategy: a parameter, its gradient and its optimizer state
 * exist once over all ranks, cut along dimension 0; the parameters of a unit are whole only while it computes. Because a leaf becomes
 * exactly one leaf, groups, decay masks, frozen subsets and state of an optimizer that exists already carry over element by element, and
 * model and optimizer are prepared in one step that either happens to both or to none (flag requires_joint_prepare).
 */
#include "fsdp2.h"

#include "../sharding/chunks.h"

#include <ordo/manifest.h>
#include <ordo/plugin.h>

#include <string.h>

#define FSDP2_VERSION "0.1.0"

ORDO_MANIFEST(
    "id=fsdp2\n"
    "kind=strategy\n"
    "version=" FSDP2_VERSION "\n"
    "summary=parameters, gradients and optimizer state sharded by rows of each parameter\n"
    "license=Apache-2.0\n"
    "flags=requires_joint_prepare,restores_after_wrap,supports_no_sync\n"
    "flags[param_dtype!=f32]=owns_precision\n"
    "flags[no_sync=false]=handles_gradient_accumulation\n"
    "steps=strategy.prepare_joint\n"
    "replaces_leaves=strategy.prepare_joint\n"
    "reduces=yes\n"
    "provides=sharded_parameters\n"
    "conflicts=sharded_parameters\n"
    "mesh_axis=data\n"
    "alias=fsdp2_kept:reshard_after_forward=false\n"
    "alias=fsdp2_bf16:param_dtype=bf16\n"
    "positional=offload_dir\n"
    "option=units|enum|block|block,class,size,list,none|which units are gathered together; the rest is the root\n"
    "option=unit_classes|string|||units=class: classes of units that are gathered on their own, joined with ','\n"
    "option=unit_size|int||1..|units=size: elements after which a group is closed; unset: 100000000\n"
    "option=unit_list|string|||units=list: patterns of unit names joined with ','; each pattern is one group\n"
    "option=reshard_after_forward|string|true||true: gather again for backward; false: keep; N: keep 1/N of it, shared by N ranks\n"
    "option=backward_prefetch|enum|pre|pre,post,none|gather the next unit before or after the gradients of this one\n"
    "option=forward_prefetch|bool|true||gather the next unit before this one computes\n"
    "option=limit_all_gathers|bool|true||at most two units are gathered at a time, the root not counted\n"
    "option=param_dtype|dtype|f32|f32,bf16,f16|type of parameters in all-gathers; weights and optimizer state stay f32\n"
    "option=reduce_dtype|dtype||f32,bf16,f16|type of gradients in reductions and between micro-batches; unset: that of param_dtype, for "
    "16-bit "
    "gradients their own; for those f32 sums in f32\n"
    "option=output_dtype|dtype|f32|f32,bf16,f16|type of the activations that leave a group, and of their gradients; f32: left alone\n"
    "option=divide_factor|real||0.0..|divide gradients by this instead of the number of ranks; unset or 0: the mean over all tokens\n"
    "option=no_sync|bool|true||accumulate whole gradients and reduce in the last micro-batch; false: reduce in each one, which needs less "
    "memory\n"
    "option=ignored|string|||patterns of parameters that are neither sharded nor reduced, joined with ','; on several ranks they must be "
    "frozen\n"
    "option=offload|enum|none|none,cpu,disk|where shards, gradients and optimizer state live; disk: offload=disk:DIR\n"
    "option=offload_dir|string|||directory of the cold tier of offload=disk\n"
    "option=poison|bool|true||true: released parameters read as NaN; false: reading them faults\n"
    "dry_run=yes\n");

void *fsdp2_alloc(const ordo_job *job, uint64_t count, size_t size, uint32_t tag)
{
  uint64_t bytes = count * size;
  void *memory = count <= SIZE_MAX / size ? job->alloc(job->ctx, bytes > 0 ? (size_t)bytes : 1, tag) : NULL;
  if (memory == NULL)
    sharding_fail(job, ORDO_E_NOMEM, "use more ranks or a smaller model", "fsdp2 could not get %llu bytes", (unsigned long long)bytes);
  return memory;
}

/* ---- life cycle ---- */

static ordo_status create(const ordo_job *job, void **instance)
{
  if (job->axis == NULL)
    return sharding_fail(job, ORDO_E_INVALID, "this is a defect of the host: the manifest says mesh_axis=data",
                         "fsdp2 was given no mesh axis");
  fsdp2 *self = fsdp2_alloc(job, 1, sizeof *self, ORDO_MEM_OTHER);
  if (self == NULL)
    return ORDO_E_NOMEM;
  self->job = job;
  fsdp2_read_options(self);
  *instance = self;
  return ORDO_OK;
}

static ordo_status validate(void *instance)
{
  return fsdp2_check_options(instance);
}

static void destroy(void *instance)
{
  fsdp2 *self = instance;
  if (self == NULL)
    return;
  fsdp2_unprepare(self);
  self->job->free(self->job->ctx, self);
}

static ordo_status prepare_joint(void *instance, ordo_optimizer *optimizer)
{
  return fsdp2_prepare(instance, optimizer);
}

static void undo(void *instance, ordo_step step)
{
  if (step == ORDO_STEP_PREPARE_JOINT)
    fsdp2_unprepare(instance);
}

/* ---- tables ---- */

static ordo_status grad_ready(void *instance, const ordo_param *param)
{
  fsdp2_grad_ready(instance, param);
  return ORDO_OK;
}

static ordo_status activation(void *instance, const ordo_activation *activation)
{
  return fsdp2_output(instance, activation);
}

static int32_t wants_activation(void *instance, uint32_t point, const ordo_param *param, int32_t backward)
{
  const fsdp2 *self = instance;
  (void)param, (void)backward;
  return point == ORDO_ACT_UNIT_OUTPUT && self->options.output_dtype != ORDO_F32;
}

static ordo_status export_chunk(void *instance, const ordo_leaf *leaf, const ordo_chunk *chunk, int32_t slot, float *dst)
{
  return sharding_move_chunk(((fsdp2 *)instance)->job, leaf, chunk, slot, dst, 1);
}

static ordo_status import_chunk(void *instance, ordo_leaf *leaf, const ordo_chunk *chunk, int32_t slot, const float *src)
{
  const fsdp2 *self = instance;
  ordo_status status = sharding_forget(self->sharding);
  return status == ORDO_OK ? sharding_move_chunk(self->job, leaf, chunk, slot, (float *)(uintptr_t)src, 0) : status;
}

static const ordo_state_ops state = {
    .struct_size = sizeof state,
    .export_chunk = export_chunk,
    .import_chunk = import_chunk,
    SHARDING_FULL_SCOPE,
};

static const ordo_strategy strategy = {
    .struct_size = sizeof strategy,
    .create = create,
    .validate = validate,
    .destroy = destroy,
    .prepare_joint = prepare_joint,
    .undo = undo,
    .grad_ready = grad_ready,
    .activation = activation,
    .wants_activation = wants_activation,
    SHARDING_EVENTS,
    .state = &state,
};

static const void *get_extension(const char *id)
{
  return id != NULL && strcmp(id, ORDO_STRATEGY_EXTENSION) == 0 ? &strategy : NULL;
}

ORDO_PLUGIN_ENTRY("fsdp2", FSDP2_VERSION, NULL, NULL, get_extension);
