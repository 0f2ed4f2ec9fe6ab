/* ordo/model.h - the model as the host knows it: units, parameters, tie groups, leaves, placements.
 *
 * The embedder describes units and parameters once; the host owns the description and strategies transform it in place.
 *   unit   an addressable piece in execution order: embedding, block i, head
 *   param  a logical parameter: name, global shape, hints. It exists for the life of the model
 *   leaf   a storage that an optimizer updates. At first one per tie group of params; a strategy may replace all leaves
 *          (fsdp1: flat shards; fsdp2: one dim-0 shard each; tp: slices)
 * A param's `data` and `grad` are where the model computes; a leaf's are where the optimizer works. Without sharding they are
 * the same memory.
 *
 * Invariants
 *  - Plugins and embedders read these structs and change them only through ordo_job (job.h) or the embedding API.
 *  - A leaf that a step has replaced stays readable for the life of the session: state REPLACED, data and grad null,
 *    `replaced_by` names the step. Functions given such a leaf answer ORDO_E_STALE.
 *  - Params with the same tie group >= 0 share one leaf and one storage; their gradients are added and counted once.
 *  - Norms, votes, reductions and checkpoints read the placement and nothing else.
 */
#ifndef ORDO_MODEL_H
#define ORDO_MODEL_H

#include <ordo/dtype.h>

typedef struct ordo_model ordo_model;
typedef struct ordo_unit ordo_unit;
typedef struct ordo_param ordo_param;
typedef struct ordo_leaf ordo_leaf;
typedef struct ordo_placement ordo_placement;

/* How a tensor-parallel strategy may split a 2-D weight [out, in]. */
enum {
  ORDO_TP_REPLICATE = 0, /* every rank keeps all of it */
  ORDO_TP_COLUMN = 1,    /* split on out (dim 0); the input is replicated, the output is split */
  ORDO_TP_ROW = 2,       /* split on in (dim 1); the input is split, the output is partial */
  ORDO_TP_VOCAB = 3      /* split on the vocabulary (dim 0) of an embedding or head */
};

enum {
  ORDO_PARAM_REQUIRES_GRAD = 1u,
  ORDO_PARAM_DECAY = 2u, /* weight decay applies (2-D weights) */
  ORDO_PARAM_NORM = 4u   /* scale or shift of a normalisation: mixed precision may keep it fp32 (apex: keep_batchnorm_fp32) */
};

struct ordo_unit {
  size_t struct_size;
  const char *name;       /* "model.layers.0" */
  const char *class_name; /* "LlamaBlock", for wrap policies */
  uint32_t index;         /* in execution order */
  uint32_t n_params;
  const ordo_param *const *params;
};
ORDO_PIN_LAST(struct ordo_unit, params);

struct ordo_param {
  size_t struct_size;
  const char *name;  /* "model.layers.0.self_attn.q_proj.weight" */
  uint32_t index;    /* in ordo_model.params, definition order */
  ordo_dtype dtype;  /* of data now; precision.convert_model may change it */
  uint32_t flags;    /* ORDO_PARAM_ */
  uint32_t tp_hint;  /* ORDO_TP_ */
  int32_t tp_block;  /* rows (COLUMN) or columns (ROW) that must stay together, a head; 0 or 1 for none */
  int32_t tie_group; /* -1: not tied */
  uint32_t ndim;
  uint32_t unit;                      /* index of the unit whose forward uses it first */
  int64_t shape[ORDO_MAX_DIMS];       /* global, row-major */
  int64_t local_shape[ORDO_MAX_DIMS]; /* what this rank computes with; differs from shape after strategy.partition */
  int64_t numel;                      /* product of shape */
  void *data;                         /* local_shape elements, or null while released or not yet materialised */
  void *grad;                         /* local_shape elements of grad_dtype; null if none */
  ordo_leaf *leaf;                    /* the leaf that holds it now; with flat shards the one of its unit; null if this rank holds none */
  ordo_dtype grad_dtype;              /* ORDO_F32 unless a precision plugin changed it (ordo_job.convert_param) */
  uint32_t reserved;
  int64_t local_offset[ORDO_MAX_DIMS]; /* where in `shape` the local part begins; zeros before strategy.partition */
};
ORDO_PIN_LAST(struct ordo_param, local_offset);

/* One piece of a param inside a leaf. */
enum { ORDO_CHUNK_RECT = 1, ORDO_CHUNK_FLAT = 2 };
typedef struct ordo_chunk {
  size_t struct_size;
  const ordo_param *param;
  uint32_t kind;
  uint32_t ndim;       /* RECT: as the param */
  int64_t leaf_offset; /* first element inside the leaf's data */
  int64_t begin;       /* FLAT: elements [begin, end) of the row-major param */
  int64_t end;
  int64_t offset[ORDO_MAX_DIMS]; /* RECT: first index per dimension */
  int64_t extent[ORDO_MAX_DIMS]; /* RECT: elements per dimension */
} ordo_chunk;
ORDO_PIN_LAST(ordo_chunk, extent);

/* What one mesh axis does to a leaf. */
enum {
  ORDO_REPLICATE = 1, /* the same values on all ranks of the axis */
  ORDO_SHARD = 2      /* ranks of the axis hold different elements. ORDO_SHARD + n: groups of n + 1 consecutive ranks hold the same
                         elements, and different groups different ones (key heads that are fewer than ranks) */
};
struct ordo_placement {
  size_t struct_size;
  uint8_t data[ORDO_MAX_AXES];         /* per mesh axis: ORDO_REPLICATE, or ORDO_SHARD and above */
  uint8_t grad_partial[ORDO_MAX_AXES]; /* per mesh axis: 1 if the local gradient after backward is one summand of the true one */
  uint64_t n_chunks;                   /* 0 for an empty shard */
  const ordo_chunk *chunks;            /* elements outside every chunk are padding: not counted, not saved */
};
ORDO_PIN_LAST(struct ordo_placement, chunks);

/* How many of an axis's `ranks` hold the same elements as one of them, by placement->data of that axis. The copies are consecutive and the
 * first one, whose coordinate is a multiple of the result, is the one that counts. [any] since 0.1 */
ORDO_INLINE int32_t ordo_placement_copies(uint8_t data, int32_t ranks)
{
  return data >= ORDO_SHARD ? data - ORDO_SHARD + 1 : ranks;
}

enum { ORDO_LEAF_LIVE = 1, ORDO_LEAF_REPLACED = 2 };
enum {
  ORDO_GRAD_NONE = 0, /* no gradient this step: contents undefined, the next write may overwrite; norm and optimizer skip it */
  ORDO_GRAD_HELD = 1  /* holds a gradient; further writes add */
};

struct ordo_leaf {
  size_t struct_size;
  const char *name;    /* of its first param, or "unit.flat_param" */
  uint32_t index;      /* in ordo_model.leaves, changes when leaves are replaced */
  uint32_t state;      /* ORDO_LEAF_ */
  uint32_t flags;      /* ORDO_PARAM_REQUIRES_GRAD, ORDO_PARAM_DECAY */
  uint32_t grad_state; /* ORDO_GRAD_ */
  ordo_dtype dtype;
  ordo_dtype grad_dtype;
  const ordo_dtype_ops *opaque; /* for an opaque dtype, else null */
  void *data;                   /* numel elements */
  void *grad;                   /* numel elements, or null */
  int64_t numel;                /* local elements, padding included */
  const ordo_placement *placement;
  const ordo_param *const *params; /* that it holds pieces of on any rank, definition order */
  uint32_t n_params;
  int32_t device;          /* 0 = CPU; other values are reserved */
  void *stream;            /* null on CPU */
  ordo_leaf *master;       /* the fp32 leaf that the optimizer updates instead, made by precision.wrap_optimizer; else null */
  const char *replaced_by; /* "strategy.wrap(fsdp1)" once state is REPLACED, else null */
};
ORDO_PIN_LAST(struct ordo_leaf, replaced_by);

struct ordo_model {
  size_t struct_size;
  const char *name; /* "model", or the embedder's name when a session has several */
  uint32_t index;   /* in the session */
  uint32_t trained; /* 0: frozen, it has no optimizer */
  uint32_t n_units;
  uint32_t n_params;
  uint32_t n_leaves;
  uint32_t generation; /* grows by one with each transformation */
  const ordo_unit *const *units;
  const ordo_param *const *params;
  ordo_leaf *const *leaves;
};
ORDO_PIN_LAST(struct ordo_model, leaves);

#endif
