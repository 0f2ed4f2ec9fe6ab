/* ordo/job.h - one training job, as one plugin instance sees it: the argument of `create`.
 *
 * It lives from create to destroy of the instance. Two jobs may exist in a process: keep the pointer in the instance,
 * never in a global.
 *
 * Transformations are transactions. replace_leaves is the only way to change what an optimizer updates; the host keeps
 * the old leaves, tells the optimizer, and undoes everything when a later step of the set-up fails.
 */
#ifndef ORDO_JOB_H
#define ORDO_JOB_H

#include <ordo/host.h>
#include <ordo/mesh.h>
#include <ordo/optimizer.h>
#include <ordo/step.h>

/* Memory tags: every allocation of a job is counted under one. */
enum {
  ORDO_MEM_WEIGHTS = 0,
  ORDO_MEM_GRADIENTS = 1,
  ORDO_MEM_OPTIMIZER = 2,
  ORDO_MEM_ACTIVATIONS = 3,
  ORDO_MEM_COMM = 4,
  ORDO_MEM_OTHER = 5,
  ORDO_N_MEM_TAGS = 6
};

/* A leaf to be made by replace_leaves. Everything is copied. */
typedef struct ordo_leaf_spec {
  size_t struct_size;
  const char *name;
  ordo_dtype dtype;
  ordo_dtype grad_dtype;
  const ordo_dtype_ops *opaque;
  int64_t numel;
  void *data; /* storage owned by the plugin, or null: materialised later */
  void *grad;
  const ordo_param *const *params;
  uint64_t n_params;
  ordo_placement placement;
  uint32_t flags;
  uint32_t reserved;
} ordo_leaf_spec;
ORDO_PIN_LAST(ordo_leaf_spec, reserved);

/* Which old leaf becomes which new one, by index into the old leaves and into the specs. */
typedef struct ordo_leaf_link {
  uint32_t old_index;
  uint32_t new_index;
} ordo_leaf_link;

/* What a step event knows. */
typedef struct ordo_step_info {
  size_t struct_size;
  int64_t step;        /* 1 for the first */
  int32_t micro_batch; /* 0 .. n_micro_batches-1 */
  int32_t n_micro_batches;
  int32_t is_last_micro_batch;
  int32_t evaluating;   /* 1: forward only, no gradients */
  double divide_factor; /* divide every reduced gradient by it, once: the first reducing strategy gets the weight of the
                           whole step (counted tokens of all ranks and micro-batches), the others 1; 1 for all if the loss factor
                           divides (fp16) */
  uint32_t loss_id;     /* loss of the running or last micro-batch; 0 unless the embedder selects losses */
  uint32_t reserved;
} ordo_step_info;
ORDO_PIN_LAST(ordo_step_info, reserved);

enum {
  ORDO_CONVERT_ADD_LOW = 1u /* micro-batches add up in grad_dtype; without it the host adds 16-bit gradients up in fp32 */
};

/* A source of memory other than the job's own (a memory-mapped file). Functions may come from any thread. */
typedef struct ordo_allocator {
  size_t struct_size;
  void *ctx;
  /* `bytes` zeroed bytes aligned to 64; null after host->fail. [any] since 0.1 */
  void *(*alloc)(void *ctx, size_t bytes);
  /* Frees it; `bytes` as in alloc. [any] since 0.1 */
  void (*free)(void *ctx, void *memory, size_t bytes);
} ordo_allocator;
ORDO_PIN_LAST(ordo_allocator, free);

/* A low-rank addition to a linear layer with weight `base` [out, in]: y = x base^T + scale * (x a^T) b^T. */
typedef struct ordo_adapter {
  size_t struct_size;
  const ordo_param *base;
  const char *name_a; /* of the param a [rank, in]; copied */
  const char *name_b; /* of the param b [out, rank]; copied */
  int64_t rank;
  double scale;
  float *a; /* first values, the same on every rank: storage of the plugin, which must stay until destroy. Weights may be trained there */
  float *b;
} ordo_adapter;
ORDO_PIN_LAST(ordo_adapter, b);

struct ordo_precision; /* precision.h */

typedef struct ordo_job {
  size_t struct_size;
  void *ctx; /* first argument of every function below */
  const ordo_host *host;
  const ordo_mesh *mesh;
  const ordo_axis *axis;   /* the axis that the instance owns; null for a precision plugin and for mesh_axis=none */
  const ordo_model *model; /* the model that the instance works on */
  uint64_t seed;
  uint32_t ordered;   /* 1: reductions in rank order, one multiplication after the sum */
  uint32_t eval_only; /* 1: no optimizer in this session */

  /* Value of an option as text, after presets, expression and defaults; null if unset. Valid for the life of the job. [any] since 0.1 */
  const char *(*option)(void *ctx, const char *key);
  /* The same, converted by the type the manifest declares; the value was validated before create. An unset option leaves *value
   * alone and returns ORDO_E_NOT_FOUND; a key that the manifest lacks or another type is ORDO_E_INVALID. bool gives 0/1, size gives
   * bytes ("25MiB"), dtype gives an ordo_dtype through option_int. [any] since 0.1 */
  ordo_status (*option_int)(void *ctx, const char *key, int64_t *value);
  ordo_status (*option_real)(void *ctx, const char *key, double *value);

  /* Memory of the job: `bytes` zeroed bytes aligned to 64, counted under an ORDO_MEM_ tag; null when out of memory. [any] since 0.1 */
  void *(*alloc)(void *ctx, size_t bytes, uint32_t tag);
  /* Frees what alloc returned; null is fine. [any] since 0.1 */
  void (*free)(void *ctx, void *memory);

  /* Tells the model where a param computes now. `data` and `grad` must stay valid until the next bind of that param; null
   * releases. A gradient that moves starts as ORDO_GRAD_NONE, one at the same address keeps what it holds (no_sync). The embedder is
   * told. While the param's leaf is unsharded, the leaf follows (same data and grad). Errors: STATE (the embedder cannot rebind
   * between forward and backward), those of the embedder. [step] since 0.1 */
  ordo_status (*bind)(void *ctx, const ordo_param *param, void *data, void *grad);
  /* Replaces all leaves of the model by `specs`, in one transaction: tells an existing optimizer to rebind, marks old leaves
   * REPLACED by the running step. `links` must name every old leaf at least once, or the leaf is trained no more: ORDO_E_INVALID.
   * On an error nothing has changed. Legal inside a step that the manifest lists in replaces_leaves. [main] since 0.1 */
  ordo_status (*replace_leaves)(void *ctx, const ordo_leaf_spec *specs, size_t n_specs, const ordo_leaf_link *links, size_t n_links);
  /* Gives `leaf` a master: an fp32 leaf of the same placement with `data` (leaf->numel floats owned by the plugin) that takes its
   * place in the optimizer. Legal inside precision.wrap_optimizer and precision.initialize. [main] since 0.1 */
  ordo_status (*set_master)(void *ctx, ordo_leaf *leaf, float *data, float *grad);
  /* Points a leaf's gradient at `grad` (leaf->numel elements of grad_dtype, owned by the plugin). [step] since 0.1 */
  ordo_status (*set_grad)(void *ctx, ordo_leaf *leaf, void *grad);
  /* Sets leaf->grad_state. [step] since 0.1 */
  ordo_status (*mark_grad)(void *ctx, ordo_leaf *leaf, uint32_t grad_state);
  /* Reports that the leaf's gradient was reduced over the instance's axis in this step and divided by `divided_by` (1: not divided).
   * The host checks that each leaf is reduced exactly once over each axis where its gradient is partial, and divides by what is left.
   * Errors: INVARIANT (reduced twice). [step] since 0.1 */
  ordo_status (*mark_reduced)(void *ctx, ordo_leaf *leaf, double divided_by);
  /* The optimizer, null before optimizer.create and in an evaluation-only session. [main] since 0.1 */
  ordo_optimizer *(*optimizer)(void *ctx);
  /* Copies a rectangle or a flat range of a param from the weights' source (checkpoint or initialiser) as fp32 into `dst`,
   * without communication. For strategies that load their shards. Errors: IO, those of the embedder. [main] since 0.1 */
  ordo_status (*read_weights)(void *ctx, const ordo_chunk *chunk, float *dst);
  /* Runs units first..last of the model for one micro-batch: direction +1 forward, -1 backward. `in` is the activation entering
   * (null for the embedder's own input), `out` what leaves; both fp32, sized by activation_numel. For plugins that take over the
   * schedule. Errors: UNSUPPORTED if the embedder cannot run ranges. [step] since 0.1 */
  ordo_status (*run_units)(void *ctx, uint32_t first, uint32_t last, int32_t micro_batch, int32_t direction, const float *in, float *out);
  /* Elements of the activation that crosses the boundary after unit `unit`, for one micro-batch; 0 if unknown. [step] since 0.1 */
  int64_t (*activation_numel)(void *ctx, uint32_t unit);
  /* The comm hook selected by the option of type string `hook` of this instance, null if none: table and its instance. [main] since 0.1 */
  const struct ordo_comm_hook *(*comm_hook)(void *ctx, void **instance);
  /* A finished line of statistics for the run's log and metrics ("overlap 0.43"): name and value. [step] since 0.1 */
  void (*metric)(void *ctx, const char *name, double value);
  /* Seconds from a monotonic clock. [any] since 0.1 */
  double (*now)(void *ctx);
  /* Counts memory that the plugin got elsewhere (mapped pages) under a tag; negative when it is given back. [any] since 0.1 */
  void (*count_memory)(void *ctx, int64_t bytes, uint32_t tag);
  /* From now on memory of the tag comes from `allocator` (copied), for the embedder as well: optimizer state in a cold tier. Null: from
   * the session again. What was allocated stays where it is and is freed where it came from; the allocator must outlive it, that is,
   * the instance. Errors: STATE (another plugin has set one), INVALID (tag). [main] since 0.1 */
  ordo_status (*set_allocator)(void *ctx, uint32_t tag, const ordo_allocator *allocator);
  /* The communicator of `size` consecutive ranks of the instance's axis (coordinates k * size .. k * size + size - 1), owned by the host.
   * Collective over the mesh. Errors: INVALID (size does not divide the axis), those of start. [main] since 0.1 */
  ordo_status (*axis_part)(void *ctx, int32_t size, const ordo_comm **part);
  /* Changes the element types of a param and its gradient to ORDO_F32, ORDO_F16 or ORDO_BF16, with all members of its tie group and
   * their leaf. Data that exists is converted (to nearest even) into storage of the host, the embedder is told, and what the host had
   * allocated for the old type is freed at once; what does not exist yet will be loaded from fp32 and rounded. Unless ORDO_CONVERT_ADD_LOW
   * is given, the host adds a 16-bit gradient up in fp32 over the micro-batches of a step and rounds the sum once, before grad_ready of the
   * last one. Legal in precision.convert_model and precision.initialize. Errors: STATE (another step), INVALID (type), UNSUPPORTED (the
   * embedder computes fp32 only, or the leaf is sharded), NOMEM, those of the embedder. [main] since 0.1 */
  ordo_status (*convert_param)(void *ctx, const ordo_param *param, ordo_dtype dtype, ordo_dtype grad_dtype, uint32_t flags);
  /* 1: a dry run. Everything is called as in a real one, and counted, but tensors have no storage: memory of `alloc` under any tag but
   * ORDO_MEM_OTHER, memory of comm->alloc, and what data and grad of params and leaves point at are addresses that must not be read or
   * written (a fault). They may be given to bind, set_grad, replace_leaves and collectives, and calculated with. Collectives leave them
   * alone; buffers with storage (votes) are as with peers that contribute nothing. read_weights and allocators of set_allocator are not
   * used. A plugin that keeps to this says dry_run=yes in its manifest (manifest.h); a job with another is refused. */
  uint32_t dry_run;
  uint32_t reserved;
  /* What happens to parameters of the model on their way through an all-gather: a table whose pre_all_gather, post_all_gather and
   * wire_bytes (and no other member) lead to its precision plugin, and their first argument in *instance. Null: they travel as they are. A
   * strategy that gathers parameters asks once its leaves are made. [main] since 0.1 */
  const struct ordo_precision *(*wire)(void *ctx, void **instance);
  /* Takes a param, with its tie group and leaf, out of training: no gradient, in no optimizer. Legal in model.inject. Errors: STATE
   * (another step). [main] since 0.1 */
  ordo_status (*freeze)(void *ctx, const ordo_param *param);
  /* From weights.load on the leaf of a frozen, untied param holds what `ops` packs; param->dtype is ops->id and param->data points at the
   * packed whole. The host unpacks it to fp32 for the embedder while its unit runs, and drops that afterwards. `ops` stays with the
   * plugin, until destroy. Legal in model.inject, before there are weights. Errors: STATE (another step, weights there), INVALID (ops
   * incomplete, rows that are no whole blocks, param trained or tied), UNSUPPORTED (the embedder cannot bind). [main] since 0.1 */
  ordo_status (*store_param)(void *ctx, const ordo_param *param, const ordo_dtype_ops *ops);
  /* Adds the two params of a low-rank adapter to the unit of adapter->base and has the embedder compute with them. They are trained
   * unless the session only evaluates, and are in *a and *b (may be null) afterwards. job->model->params and the arrays of its units are
   * new ones then. Legal in model.inject. Errors: STATE (another step), INVALID (names, rank, base not 2-D, no values), UNSUPPORTED (the
   * embedder has no adapters, or none there), NOMEM. [main] since 0.1 */
  ordo_status (*add_adapter)(void *ctx, const ordo_adapter *adapter, const ordo_param **a, const ordo_param **b);
} ordo_job;
ORDO_PIN_LAST(ordo_job, add_adapter);

/* 1 if tensors may be read and written: everywhere but in a dry run. [any] since 0.1 */
ORDO_INLINE int ordo_job_has_data(const ordo_job *job)
{
  return !ORDO_HAS(job, ordo_job, dry_run) || job->dry_run == 0;
}

#endif
