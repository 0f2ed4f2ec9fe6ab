/* fsdp1.c - the strategy `fsdp1`: the parameters of a unit are one flat parameter, of which every rank keeps an equal part.
 *
 * This file is the manifest, the tables and the life cycle. The idea of the strategy: storage, gradients and optimizer state of a unit
 * exist once over all ranks; its parameters are whole only while it computes. What a flat parameter looks like is decided here (layout.c,
 * wrap.c), when it is gathered and reduced in ../sharding.
 *
 * The optimizer is made after the wrap (flag setup_optimizers_in_pre_dispatch), because the wrap replaces what an optimizer holds.
 */
#include "fsdp1.h"

#include "../sharding/chunks.h"

#include <ordo/manifest.h>
#include <ordo/plugin.h>

#include <stdio.h>
#include <string.h>

#define FSDP1_VERSION "0.1.0"

ORDO_MANIFEST(
    "id=fsdp1\n"
    "kind=strategy\n"
    "version=" FSDP1_VERSION "\n"
    "summary=parameters, gradients and optimizer state sharded as flat parameters of a unit\n"
    "license=Apache-2.0\n"
    "flags=setup_optimizers_in_pre_dispatch,restores_after_wrap,supports_no_sync\n"
    "flags[param_dtype!=f32]=owns_precision\n"
    "flags[no_sync=false and sharding_strategy!=NO_SHARD]=handles_gradient_accumulation\n"
    "steps=strategy.wrap\n"
    "replaces_leaves=strategy.wrap\n"
    "reduces=yes\n"
    "provides=sharded_parameters\n"
    "conflicts=sharded_parameters\n"
    "mesh_axis=data\n"
    "alias=fsdp1_full_shard:sharding_strategy=FULL_SHARD\n"
    "alias=fsdp1_shard_grad_op:sharding_strategy=SHARD_GRAD_OP\n"
    "alias=fsdp1_no_shard:sharding_strategy=NO_SHARD\n"
    "alias=fsdp1_flat:use_orig_params=false\n"
    "alias=fsdp1_bf16:param_dtype=bf16\n"
    "positional=offload_dir\n"
    "option=sharding_strategy|enum|FULL_SHARD|FULL_SHARD,SHARD_GRAD_OP,NO_SHARD,HYBRID_SHARD,_HYBRID_SHARD_ZERO2|when parameters are "
    "released: after forward and backward, after backward only, never; HYBRID needs ddp=N+fsdp1\n"
    "option=units|enum|block|block,class,size,list,none|which units share a flat parameter; the rest is the root\n"
    "option=unit_classes|string|||units=class: classes of units that are wrapped, joined with ','\n"
    "option=unit_size|int||1..|units=size: elements after which a flat parameter is closed; unset: 100000000\n"
    "option=unit_list|string|||units=list: patterns of unit names joined with ','; each pattern is one flat parameter\n"
    "option=use_orig_params|bool|true||true: a leaf per parameter (groups, decay masks and frozen subsets stay); false: one per flat "
    "parameter\n"
    "option=backward_prefetch|enum|pre|pre,post,none|gather the next unit before or after the gradients of this one\n"
    "option=forward_prefetch|bool|false||gather the next unit before this one computes\n"
    "option=limit_all_gathers|bool|true||at most two units are gathered at a time, the root not counted\n"
    "option=param_dtype|dtype|f32|f32,bf16,f16|type of parameters in all-gathers; weights and optimizer state stay f32\n"
    "option=reduce_dtype|dtype||f32,bf16,f16|type of gradients in reductions; unset: that of param_dtype, for 16-bit gradients their own; "
    "for "
    "those f32 sums in f32\n"
    "option=predivide|real||0..|reduce_dtype=f16: divide the mean of the ranks by this before the sum and multiply after it; unset: about "
    "the root of their number\n"
    "option=no_sync|bool|true||accumulate whole gradients and reduce in the last micro-batch; false: reduce in each one, which needs less "
    "memory\n"
    "option=sync_module_states|bool|false||rank 0 reads the weights and gives the others their shards\n"
    "option=ignored|string|||patterns of parameters that are neither sharded nor reduced, joined with ','; on several ranks they must be "
    "frozen\n"
    "option=offload|enum|none|none,cpu,disk|where shards, gradients and optimizer state live; disk: offload=disk:DIR\n"
    "option=offload_dir|string|||directory of the cold tier of offload=disk\n"
    "option=poison|bool|true||true: released parameters read as NaN; false: reading them faults\n"
    "dry_run=yes\n");

/* ---- shared helpers ---- */

void *fsdp1_alloc(const ordo_job *job, uint64_t count, size_t size, uint32_t tag)
{
  uint64_t bytes = count * size;
  void *memory = count <= SIZE_MAX / size ? job->alloc(job->ctx, bytes > 0 ? bytes : 1, tag) : NULL;
  if (memory == NULL)
    sharding_fail(job, ORDO_E_NOMEM, "use more ranks or a smaller model", "fsdp1 could not get %llu bytes", (unsigned long long)bytes);
  return memory;
}

void fsdp1_free(const ordo_job *job, void *memory)
{
  job->free(job->ctx, memory);
}

/* ---- options ---- */

static void read_strategy(fsdp1 *self)
{
  static const char *const words[] = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", NULL};
  const int word = sharding_option_word(self->job, "sharding_strategy", words);
  self->options.hybrid = word > FSDP1_NO_SHARD;
  self->options.sharding_strategy = word > FSDP1_NO_SHARD ? word - FSDP1_NO_SHARD - 1 : word;
}

static void read_units(fsdp1 *self)
{
  static const char *const words[] = {"block", "class", "size", "list", "none", NULL};
  self->options.units.kind = sharding_option_word(self->job, "units", words);
  self->options.units.size = sharding_option_int(self->job, "unit_size", 100000000);
  self->options.units.patterns =
      sharding_option_text(self->job, self->options.units.kind == SHARDING_UNITS_CLASS ? "unit_classes" : "unit_list");
}

static void read_sharding(fsdp1 *self)
{
  static const char *const prefetch[] = {"none", "pre", "post", NULL};
  sharding_options *options = &self->options.sharding;
  options->reshard_after_forward = self->options.sharding_strategy == FSDP1_FULL_SHARD;
  options->keep_in_no_sync = self->options.sharding_strategy == FSDP1_SHARD_GRAD_OP;
  options->replicated = self->options.sharding_strategy == FSDP1_NO_SHARD;
  options->backward_prefetch = sharding_option_word(self->job, "backward_prefetch", prefetch);
  options->forward_prefetch = sharding_option_int(self->job, "forward_prefetch", 0) != 0;
  options->limit = sharding_option_int(self->job, "limit_all_gathers", 1) ? 2 : SHARDING_NO_LIMIT;
  options->sync_each = sharding_option_int(self->job, "no_sync", 1) == 0;
  sharding_option_types(self->job, options);
  (void)self->job->option_real(self->job->ctx, "predivide", &options->predivide);
  options->poison = sharding_option_int(self->job, "poison", 1) != 0;
  options->offload =
      strcmp(sharding_option_text(self->job, "offload"), "disk") == 0 ? sharding_option_text(self->job, "offload_dir") : NULL;
}

static void read_options(fsdp1 *self)
{
  read_strategy(self);
  read_units(self);
  self->options.use_orig_params = sharding_option_int(self->job, "use_orig_params", 1);
  self->options.sync_module_states = sharding_option_int(self->job, "sync_module_states", 0);
  self->options.ignored = sharding_option_text(self->job, "ignored");
  read_sharding(self);
}

/* Weights that nobody gathers are computed with as they are stored. */
static ordo_status validate_precision(const fsdp1 *self)
{
  const sharding_options *options = &self->options.sharding;
  if (options->replicated && options->param_dtype != ORDO_F32)
    return sharding_fail(self->job, ORDO_E_INVALID,
                         "use reduce_dtype for 16-bit gradients, or another sharding_strategy for 16-bit parameters",
                         "param_dtype=%s with sharding_strategy=NO_SHARD: it is the type in which parameters are gathered, and nothing is "
                         "gathered there",
                         sharding_option_text(self->job, "param_dtype"));
  if (options->predivide > 0.0 && options->reduce_dtype != ORDO_F16)
    return sharding_fail(self->job, ORDO_E_INVALID, "leave predivide out, or set reduce_dtype=f16",
                         "predivide=%g: only f16 sums can overflow; f32 and bf16 are divided once, after the sum", options->predivide);
  return ORDO_OK;
}

static ordo_status validate(void *instance)
{
  const fsdp1 *self = instance;
  const char *offload = sharding_option_text(self->job, "offload"), *directory = sharding_option_text(self->job, "offload_dir");
  if (strcmp(offload, "disk") == 0 && directory[0] == '\0')
    return sharding_fail(self->job, ORDO_E_INVALID, "write fsdp1:offload=disk:DIR with a directory on a real disk",
                         "offload=disk without a directory");
  if (strcmp(offload, "disk") != 0 && directory[0] != '\0')
    return sharding_fail(self->job, ORDO_E_INVALID, "write fsdp1:offload=disk:DIR, or leave the bare word out",
                         "'%s' is a directory for the cold tier, but offload is '%s'", directory, offload);
  ordo_status status = validate_precision(self);
  return status == ORDO_OK ? sharding_check_units(self->job, "fsdp1", self->options.units.kind) : status;
}

/* ---- life cycle ---- */

static ordo_status create(const ordo_job *job, void **instance)
{
  if (job->axis == NULL)
    return sharding_fail(job, ORDO_E_INVALID, "this is a defect of the host: the manifest says mesh_axis=data",
                         "fsdp1 was given no mesh axis");
  fsdp1 *self = fsdp1_alloc(job, 1, sizeof *self, ORDO_MEM_OTHER);
  if (self == NULL)
    return ORDO_E_NOMEM;
  self->job = job;
  read_options(self);
  *instance = self;
  return ORDO_OK;
}

static void destroy(void *instance)
{
  fsdp1 *self = instance;
  if (self == NULL)
    return;
  fsdp1_unwrap(self);
  fsdp1_free(self->job, self);
}

static ordo_status wrap(void *instance)
{
  return fsdp1_wrap(instance);
}

static void undo(void *instance, ordo_step step)
{
  if (step == ORDO_STEP_WRAP)
    fsdp1_unwrap(instance);
}

static ordo_status load_sharded(void *instance)
{
  return fsdp1_load(instance);
}

/* ---- tables ---- */

static ordo_status grad_ready(void *instance, const ordo_param *param)
{
  fsdp1_grad_ready(instance, param);
  return ORDO_OK;
}

static ordo_status export_chunk(void *instance, const ordo_leaf *leaf, const ordo_chunk *chunk, int32_t slot, float *dst)
{
  return sharding_move_chunk(((fsdp1 *)instance)->job, leaf, chunk, slot, dst, 1);
}

static ordo_status import_chunk(void *instance, ordo_leaf *leaf, const ordo_chunk *chunk, int32_t slot, const float *src)
{
  const fsdp1 *self = instance;
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
    .wrap = wrap,
    .load_sharded = load_sharded,
    .undo = undo,
    .grad_ready = grad_ready,
    SHARDING_EVENTS,
    .state = &state,
};

static const void *get_extension(const char *id)
{
  return id != NULL && strcmp(id, ORDO_STRATEGY_EXTENSION) == 0 ? &strategy : NULL;
}

ORDO_PLUGIN_ENTRY("fsdp1", FSDP1_VERSION, NULL, NULL, get_extension);
