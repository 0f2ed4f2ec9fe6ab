/* session.h - the inside of a session: models, leaves, plugin instances, set-up, step state (private).
 *
 * One struct owns everything of a training job, so two sessions in a process share nothing. Each file beside this one works on
 * one noun of it: memory, model, leaves, weights, plugins, tables, job, dispatch, calls, step, finish, norm, exact_sum, invariants.
 *
 * Ownership: a leaf record lives until the session ends, also after it was replaced, so that a pointer kept by a plugin or an
 * embedder can always be answered with ORDO_E_STALE instead of a crash.
 */
#ifndef ORDO_PRIVATE_SESSION_H
#define ORDO_PRIVATE_SESSION_H

#include "../comm/axes.h"
#include "../context.h"
#include "../plan/plan.h"
#include "memory.h"
#include <ordo/comm_hook.h>
#include <ordo/plugin.h>
#include <ordo/precision.h>
#include <ordo/session.h>

typedef struct ordo_model_state ordo_model_state;
typedef struct ordo_instance ordo_instance;
typedef struct ordo_account ordo_account;

/* Opens a plugin. The session uses ordo_loader_open; tests hand in tables of the same process. */
typedef struct ordo_opener {
  ordo_status (*open)(gpointer user, const ordo_found *found, uint32_t context_flags, ordo_errors *errors, const ordo_plugin **entry);
  gpointer user;
} ordo_opener;

typedef struct ordo_leaf_record {
  ordo_leaf leaf; /* first: an ordo_leaf of this session is one of these */
  ordo_model_state *model;
  ordo_placement placement;
  ordo_instance *owner;   /* the instance that made it, null: the host */
  uint32_t reduced;       /* bit per mesh axis, this step */
  uint32_t reduced_twice; /* bit per mesh axis: mark_reduced was refused, and the plugin may have kept that to itself */
  double divided_by;      /* product over this step's reductions */
  guint64 checksum;       /* before the optimizer step, for check 8: of what the optimizer writes ... */
  guint64 low_checksum;   /* ... and of the leaf itself, if it has a master */
  gboolean is_master;
} ordo_leaf_record;

typedef struct ordo_param_record {
  ordo_param param;               /* first */
  struct ordo_param_record *root; /* first member of its tie group; itself if not tied */
  guint n_members;                /* root: members of the group that require a gradient */
  guint pending;                  /* root: of them, not ready in this micro-batch */
  gint64 ready_in;                /* serial of the micro-batch in which it was reported ready */
  gboolean grad_held;             /* root: the bound gradient holds a summand (params whose leaf is elsewhere) */
  void *source;                   /* storage that the embedder described it with, null if none */
  ordo_dtype source_dtype;        /* element type of the source: param.dtype may be converted */
  gboolean adds_low;              /* root: a 16-bit gradient adds up over micro-batches in its own type */
  float *sum;                     /* root: fp32 sum over the micro-batches of the step, null: not needed */
  float *sum_storage;             /* root: what the host allocated for it, null if it has another place */
  gboolean sum_held;              /* root: the sum holds something */
  gint64 summed_in;               /* root: serial of the micro-batch that was added last */
  const ordo_instance *packer;    /* whose opaque type it is stored in, null: none */
} ordo_param_record;

typedef struct ordo_unit_record {
  ordo_unit unit; /* first */
  GPtrArray *params;
  gint64 forward_in;  /* serial of the last micro-batch that ran it forward */
  gboolean is_packed; /* has params of an opaque type */
} ordo_unit_record;

typedef struct ordo_unit_call {
  ordo_status (*call)(void *self, const ordo_unit *unit);
  void *self;
  ordo_instance *owner;
} ordo_unit_call;

typedef struct ordo_param_call {
  ordo_status (*call)(void *self, const ordo_param *param);
  void *self;
  ordo_instance *owner;
} ordo_param_call;

typedef struct ordo_info_call {
  ordo_status (*call)(void *self, const ordo_step_info *info);
  void *self;
  ordo_instance *owner;
} ordo_info_call;

typedef struct ordo_activation_call {
  ordo_status (*call)(void *self, const ordo_activation *activation);
  void *self;
  ordo_instance *owner;
} ordo_activation_call;

/* Who is called at the events of one model, found once after the set-up: an event is a walk over a small array. */
typedef struct ordo_model_calls {
  GArray *pre_forward, *post_forward, *pre_backward, *post_backward; /* ordo_unit_call */
  GArray *grad_ready;                                                /* ordo_param_call */
  GArray *activation;                                                /* ordo_activation_call */
  GPtrArray *progress;                                               /* ordo_comm*: axes with collectives in flight */
} ordo_model_calls;

/* The embedder's handle while model.build runs. */
struct ordo_model_builder {
  ordo_model_state *model;
  gboolean open;
};

struct ordo_model_state {
  ordo_model view; /* first: what is handed out; its address never changes */
  ordo_session *session;
  GPtrArray *units;        /* ordo_unit_record */
  GPtrArray *params;       /* ordo_param_record */
  GPtrArray *records;      /* ordo_leaf_record: every leaf ever made, masters included */
  GHashTable *known;       /* the same as a set, because optimizers name leaves by the ten thousand */
  GPtrArray *arrays;       /* arrays that were handed out, freed at the end */
  GPtrArray *host_storage; /* weights and gradients that the host allocated for leaves */
  GHashTable *units_by_name, *params_by_name, *ties;
  ordo_optimizer *optimizer; /* null before optimizer.create */
  gint64 optimizer_steps;
  gboolean change_seen;   /* check 8 has been answered: for what the optimizer writes ... */
  gboolean copy_seen;     /* ... and for low-precision weights that follow their masters */
  gboolean has_gradient;  /* of this step, on this rank: before the update, while either check waits */
  gboolean change_warned; /* it was said that 16 bits do not show a step */
  guint next_unit;        /* lowest unit that may run forward next */
  guint last_backward;    /* unit whose backward ran last; n_units before the first */
  guint open_ties;        /* tie groups of which some members have their gradient in this micro-batch, and some not */
  GHashTable *synced;     /* units whose gradients are to be reduced in every micro-batch (ORDO_CONTROL_GRADIENT_SYNC) */
  gboolean full_open;     /* inside a scope of gather_full */
  guint32 full_flags;     /* with which it was opened */
  float *unpacked;        /* room for the opaque params of a unit, null without any */
  ordo_model_calls calls;
  ordo_model_builder builder;
};

typedef struct ordo_plugin_use {
  ordo_session *session;
  char *id;
  const ordo_found *found;
  const ordo_plugin *entry;
  ordo_host host;
  const ordo_strategy *strategy;
  const ordo_precision *precision;
  const ordo_comm_hook *hook;
  gboolean initialised;
} ordo_plugin_use;

struct ordo_instance {
  ordo_session *session;
  ordo_plugin_use *plugin;
  ordo_model_state *model;
  const ordo_decl *decl;     /* null for a comm hook */
  const ordo_choice *choice; /* its options */
  guint provider;            /* index in the plan */
  ordo_job job;
  void *self;
  gboolean divides;       /* first reducing strategy of its model: gets the divide factor */
  ordo_instance *hook;    /* the comm hook it asked for, made on first use */
  GPtrArray *hook_choice; /* owns the hook's ordo_choice */
  gboolean replaced;      /* called replace_leaves in the running step */
};

/* One event of step_end with the instances that take part. */
typedef struct ordo_step_event {
  ordo_event event;
  GPtrArray *instances; /* ordo_instance, empty for the host and the embedder */
} ordo_step_event;

typedef enum ordo_session_state {
  ORDO_SESSION_SETUP,
  ORDO_SESSION_FAILED,
  ORDO_SESSION_DEAD,
  ORDO_SESSION_READY,
  ORDO_SESSION_STEP,     /* in a step, between micro-batches */
  ORDO_SESSION_MICRO,    /* in a micro-batch, no unit open, forward */
  ORDO_SESSION_FORWARD,  /* inside the forward of a unit */
  ORDO_SESSION_BETWEEN,  /* in a micro-batch, backward has begun, no unit open */
  ORDO_SESSION_BACKWARD, /* inside the backward of a unit */
  ORDO_SESSION_REDUCED,  /* gradients reduced, step_end must follow */
  ORDO_SESSION_EVAL,
  ORDO_SESSION_EVAL_FORWARD,
  ORDO_N_SESSION_STATES
} ordo_session_state;

enum { ORDO_MAX_LOSSES = 64 };

#define ORDO_IN(STATE) (1u << ORDO_SESSION_##STATE)

struct ordo_session {
  ordo_context *context;
  const ordo_plan *plan;
  ordo_embedder embedder;
  ordo_session_options options;
  ordo_opener opener;
  const ordo_comm_provider *comm;
  ordo_comm_provider *own_comm;
  ordo_mesh *provided_mesh; /* with the provider's own communicators */
  guint32 summing_axes;     /* bit per axis: its ranks are in mesh->data */
  ordo_account *account;
  const ordo_mesh *mesh; /* the same with counted memory: what everybody uses */
  ordo_space *space;     /* of a dry run: tensors have addresses and no storage; else null */
  ordo_memory *memory;
  GPtrArray *plugins;   /* ordo_plugin_use */
  GPtrArray *instances; /* ordo_instance, in order of creation */
  GPtrArray *models;    /* ordo_model_state */
  gboolean eval_only;

  /* set-up */
  guint next_node;
  gboolean *node_done;
  GPtrArray *undo_log;       /* ordo_undo, one per finished step */
  struct ordo_undo *running; /* that of the running step, null outside */
  const ordo_node *node;     /* the running step, null outside */
  GPtrArray *rebinds;        /* GArray of ordo_leaf_map: moves of optimizers in the running step */
  ordo_phase phase;
  gboolean phase_entered;
  gboolean instances_made;
  GPtrArray *order; /* ordo_instance: strategies in the order of their set-up steps */

  /* state */
  ordo_session_state state;
  ordo_status dead_status;
  char *dead_text;   /* why it failed or died */
  const char *where; /* step or event that is running; static or owned by the plan */
  guint depth;       /* public calls on the stack: an embedder's callback may call back */
  gsize main_thread, step_thread;

  /* step */
  ordo_step_info info;
  double weight, loss_factor;
  double loss_base, loss_scale, first_scale; /* factor without the scale; scale of the running and of the first loss */
  guint64 losses_used, loss_overflow;        /* bit per loss, this step */
  double loss_scales[ORDO_MAX_LOSSES];       /* of those that ran in this step, else 0 */
  gboolean tracks_losses;                    /* the embedder selects losses in this step */
  gint64 micro_serial;
  guint open_model, open_unit;
  gboolean any_reduces; /* strategies divide by the weight; else the loss factor does */
  gboolean began;       /* a training step was begun */
  gboolean skip, overflow;
  double norm, clip;
  double busy_before, wait_before;
  GArray *step_begin, *micro_begin, *micro_end, *pre_step, *step_end; /* ordo_info_call */
  GArray *events;                                                     /* ordo_step_event */
  ordo_instance *scaler;                                              /* precision instance with loss_scale, or null */
  gboolean unscales;                                                  /* step.unscale calls the scaler */
  ordo_instance *op_policy;
};

/* session.c */
ordo_status ordo_session_create_with(ordo_context *context, const ordo_plan *plan, const ordo_embedder *embedder,
                                     const ordo_session_options *options, const ordo_opener *opener, ordo_session **session);
#define ordo_session_errors(SESSION) ((SESSION)->context->errors)
/* The refusal of a call that is not legal now; `legal` says when it would be. Returns the status of a dead session instead. */
ordo_status ordo_session_refuse(ordo_session *session, const char *call, const char *legal);
/* A failure that leaves nothing to go on with: the session can only be destroyed. TIMEOUT and PEER_LOST make it dead. Returns `status`. */
ordo_status ordo_session_fail(ordo_session *session, ordo_status status);
/* Records that a collective of the host failed, if nothing is recorded yet: before anything is torn down. */
void ordo_session_explain(ordo_session *session, ordo_status status);
/* Makes sure that a status from a plugin has a record; `before` is the number of records before the call. */
/* The status, ORDO_E_INTERNAL for one that this release does not know. */
ordo_status ordo_plugin_known_status(ordo_status status);
ordo_status ordo_session_plugin_status(ordo_session *session, const ordo_plugin_use *plugin, ordo_status status, size_t before);
ordo_status ordo_session_embedder_status(ordo_session *session, const char *callback, ordo_status status, size_t before);
gsize ordo_session_this_thread(void);
/* The refusal of a null pointer in a public call; without a session there is nobody to record it. */
ordo_status ordo_session_null(ordo_session *session, const char *call, const char *argument);

/* For the first line of a public call. */
#define ORDO_NEED(SESSION, POINTER, CALL)                \
  do {                                                   \
    if (G_UNLIKELY(!(SESSION) || !(POINTER)))            \
      return ordo_session_null(SESSION, CALL, #POINTER); \
  } while (0)

/* A public call begins: forgets old records unless it is nested in another one. */
ORDO_INLINE void ordo_session_enter(ordo_session *session)
{
  if (session->depth++ == 0 && ordo_errors_count(session->context->errors))
    ordo_errors_clear(session->context->errors);
}

ORDO_INLINE ordo_status ordo_session_leave(ordo_session *session, ordo_status status)
{
  session->depth--;
  return status;
}

/* model.c */
ordo_model_state *ordo_model_state_new(ordo_session *session, const char *name, uint32_t index, gboolean trained);
void ordo_model_state_free(ordo_model_state *model);
/* Freezes the description and makes the first leaves: one per tie group. */
ordo_status ordo_model_state_finish(ordo_model_state *model);
/* Adds a param with its leaf to a unit of a model that is described already. */
ordo_status ordo_model_state_add(ordo_model_state *model, uint32_t unit, const ordo_param_desc *desc, ordo_param_record **record);
/* Text over names, shapes, dtypes and ties, equal on ranks that hold the same model. */
char *ordo_model_state_digest(const ordo_model_state *model);
/* The record behind a pointer that a plugin passed, null if it is not of this model. */
ordo_param_record *ordo_model_param(ordo_model_state *model, const ordo_param *param);
int64_t ordo_param_local_numel(const ordo_param *param);

/* leaves.c */
ordo_leaf_record *ordo_leaf_record_new(ordo_model_state *model, const ordo_leaf_spec *spec, ordo_instance *owner);
/* The leaf holds exactly what the param computes with and no data axis shards it. */
gboolean ordo_leaf_follows(const ordo_leaf_record *record, const ordo_param *param);
ordo_status ordo_leaves_bind(ordo_model_state *model, ordo_param_record *param, void *data, void *grad);
ordo_status ordo_leaves_replace(ordo_instance *instance, const ordo_leaf_spec *specs, size_t n_specs, const ordo_leaf_link *links,
                                size_t n_links);
ordo_status ordo_leaves_set_master(ordo_instance *instance, ordo_leaf_record *record, float *data, float *grad);
ordo_status ordo_leaves_stale(ordo_session *session, const ordo_leaf *leaf);
ordo_leaf_record *ordo_leaves_find(ordo_session *session, const ordo_leaf *leaf);
/* Makes the array of live leaves current and counts a generation. */
void ordo_leaves_publish(ordo_model_state *model, GPtrArray *records);
/* Frees host storage of replaced leaves that nothing refers to any more. */
void ordo_leaves_sweep(ordo_model_state *model);

/* convert.c */
ordo_status ordo_convert_param(ordo_instance *instance, ordo_param_record *record, ordo_dtype dtype, ordo_dtype grad_dtype, uint32_t flags);
/* fp32, bf16 and fp16: what parameters and gradients can be converted to, and state can be read from. */
gboolean ordo_convert_knows(ordo_dtype dtype);
/* n elements of a floating type to fp32 and back, rounded to nearest even. */
void ordo_convert_widen(ordo_dtype dtype, const void *src, int64_t n, float *dst);
void ordo_convert_narrow(ordo_dtype dtype, const float *src, int64_t n, void *dst);

/* opaque.c: a type that the host can compute sizes with. */
gboolean ordo_opaque_is_complete(const ordo_dtype_ops *ops);
/* All elements of a leaf of an opaque type, to its storage and back. A refusal names the leaf, the type and the plugin that owns it. */
ordo_status ordo_opaque_pack(ordo_model_state *model, const ordo_leaf *leaf, const float *src);
ordo_status ordo_opaque_unpack(ordo_model_state *model, const ordo_leaf *leaf, float *dst);

/* state.c: after the model's weights were written as they are stored, their fp32 masters follow; those of others keep every bit. */
void ordo_state_follow_stored(ordo_model_state *model);

/* inject.c */
ordo_status ordo_inject_freeze(ordo_instance *instance, ordo_param_record *record);
ordo_status ordo_inject_store(ordo_instance *instance, ordo_param_record *record, const ordo_dtype_ops *ops);
ordo_status ordo_inject_adapter(ordo_instance *instance, const ordo_adapter *adapter, const ordo_param **a, const ordo_param **b);

/* opaque.c */
/* Once, after the set-up. */
ordo_status ordo_opaque_prepare(ordo_model_state *model);
/* Around the computation of a unit that is_packed. */
ordo_status ordo_opaque_open(ordo_model_state *model, const ordo_unit_record *unit);
ordo_status ordo_opaque_close(ordo_model_state *model, const ordo_unit_record *unit);

/* accumulate.c */
/* A step begins: decides which gradients add up in fp32 sums; `all`: those of several losses do. */
ordo_status ordo_accumulate_begin(ordo_session *session, gboolean all);
/* FALSE if a strategy reduces every micro-batch. */
gboolean ordo_accumulate_possible(const ordo_session *session);
/* The gradient of a tie group is complete for this micro-batch. Only for roots with a sum. */
void ordo_accumulate_ready(ordo_session *session, ordo_param_record *root);
/* At the end of a unit's backward in the last micro-batch: sums of params that this micro-batch did not use become their gradients. */
void ordo_accumulate_end_unit(ordo_session *session, const ordo_model_state *model, uint32_t unit);
/* A micro-batch ends: what was not complete in it. */
void ordo_accumulate_end(ordo_session *session);
void ordo_accumulate_rescale(ordo_session *session, double factor);
/* Refuses a setting of ORDO_CONTROL_GRADIENT_SYNC with which 16-bit gradients would add up in 16 bits. */
ordo_status ordo_accumulate_check_sync(ordo_session *session, const ordo_model_state *model, int64_t value);
/* Before a micro-batch: refuses reductions of it where the host keeps sums, which would be reduced a second time with the last one. */
ordo_status ordo_accumulate_check_micro(ordo_session *session);

/* losses.c */
/* `base`: the loss factor without a scale. */
ordo_status ordo_losses_begin(ordo_session *session, double base);
ordo_status ordo_losses_select(ordo_session *session, uint32_t loss_id);
/* A micro-batch of the selected loss begins. */
void ordo_losses_run(ordo_session *session);
/* step.overflow_vote */
ordo_status ordo_losses_vote(ordo_session *session);

/* undo.c */
typedef struct ordo_undo ordo_undo;
ordo_undo *ordo_undo_new(ordo_session *session);
void ordo_undo_free(gpointer undo);
/* Takes over the rebinds of the step that has just run. */
void ordo_undo_finish(ordo_undo *undo, ordo_session *session);
/* Storage of the host that the leaf had is about to be freed: no record of the set-up puts the leaf or its params back on it, they come
 * back without data. */
void ordo_undo_forget(const ordo_model_state *model, const ordo_leaf *leaf, const void *storage);
/* Puts models, leaves, params and optimizers back to where `undo` was taken. */
void ordo_undo_apply(ordo_undo *undo, ordo_session *session);

/* weights.c */
ordo_status ordo_weights_load(ordo_model_state *model);
ordo_status ordo_weights_load_sharded(ordo_model_state *model);
/* Only what is stored in an opaque type and has no storage yet. */
ordo_status ordo_weights_load_packed(ordo_model_state *model);
/* Replicas on every axis become what coordinate 0 has, whatever no_weight_sync says. */
ordo_status ordo_weights_broadcast(ordo_model_state *model);
ordo_status ordo_weights_sync(ordo_model_state *model);
ordo_status ordo_weights_read_chunk(ordo_model_state *model, const ordo_chunk *chunk, float *dst);
ordo_status ordo_weights_materialise_grads(ordo_model_state *model);
/* Host storage for a leaf, remembered so that it is freed when nothing refers to it any more; null when memory is out. */
void *ordo_weights_materialise(ordo_model_state *model, size_t bytes, uint32_t tag);
/* Frees what a leaf had, now, during the set-up. Storage that is not the host's is left alone; null is fine. */
void ordo_weights_let_go(ordo_model_state *model, const ordo_leaf *leaf, void *storage);
ordo_status ordo_weights_no_memory(ordo_model_state *model, const ordo_leaf *leaf, size_t bytes);

/* plugins.c */
/* In a dry run: every plugin of the plan must declare that it can. */
ordo_status ordo_plugins_check_dry(ordo_session *session);
ordo_status ordo_plugins_load(ordo_session *session);
ordo_status ordo_plugins_probe(ordo_session *session);
ordo_status ordo_plugins_make_instances(ordo_session *session);
void ordo_plugins_destroy_instances(ordo_session *session);
void ordo_plugins_unload(ordo_session *session);
const ordo_comm_hook *ordo_plugins_hook(ordo_instance *instance, void **self);
/* The precision plugin of a model that packs what is gathered, null if there is none. */
const ordo_precision *ordo_plugins_wire(const ordo_model_state *model, void **self);

/* tables.c */
/* The table has a function for each declared step and event, and none that nothing declares. */
ordo_status ordo_tables_check(const ordo_plugin_use *plugin, const ordo_decl *decl);
/* E-PLUGIN-TABLE. */
ordo_status ordo_tables_refuse(const ordo_plugin_use *plugin, const char *what, const char *why);

/* job.c */
void ordo_job_fill(ordo_instance *instance, const ordo_axis *axis);

/* dispatch.c */
void ordo_dispatch_teardown(ordo_session *session);

/* account.c */
ordo_account *ordo_account_new(const ordo_mesh *mesh, ordo_memory *memory);
const ordo_mesh *ordo_account_mesh(const ordo_account *account);
/* The counted communicator of `size` consecutive ranks of an axis, made on first use. Collective over the mesh. */
ordo_status ordo_account_part(ordo_account *account, const ordo_comm_provider *provider, ordo_memory *memory, uint32_t axis, int32_t size,
                              const ordo_comm **part);
/* Adds the counters of the parts of an axis. */
void ordo_account_part_stats(const ordo_account *account, uint32_t axis, void (*add)(const ordo_comm *comm, ordo_comm_stats *total),
                             ordo_comm_stats *total);
/* Gives the parts back to the provider. Null is fine. */
void ordo_account_release_parts(ordo_account *account, const ordo_comm_provider *provider);
void ordo_account_free(ordo_account *account);

/* scope.c */
/* Refuses what must not happen while a scope of full parameters is open: on any model (null), or on that one. */
ordo_status ordo_scope_check(ordo_session *session, const ordo_model_state *model, const char *call, const char *why);

/* activation.c */
/* The instance, which has `activation`, wants to see that place. */
gboolean ordo_activation_wanted(const ordo_instance *instance, uint32_t point, const ordo_param *param, int32_t backward);

/* calls.c */
ordo_status ordo_calls_build(ordo_session *session);
void ordo_calls_free(ordo_session *session);
void ordo_model_calls_free(ordo_model_calls *calls);

/* step.c */
ordo_status ordo_step_run_info_calls(ordo_session *session, const GArray *calls, const char *where);

/* finish.c */
ordo_status ordo_finish_run(ordo_session *session, gboolean stop_after_divide);

/* norm.c */
ordo_leaf *ordo_norm_side(ordo_leaf_record *record);
ordo_status ordo_norm_compute(ordo_session *session, double *norm);
void ordo_norm_scale(ordo_leaf *leaf, double factor);
const ordo_leaf *ordo_norm_first_nonfinite(ordo_session *session);

/* placements.c: replicas are replicas and shards are shards, over all ranks. Collective. */
ordo_status ordo_placements_check(ordo_model_state *model);

/* invariants.c */
ordo_status ordo_invariants_after_step(ordo_session *session);
ordo_status ordo_invariants_verify(ordo_session *session);
ordo_status ordo_invariants_model_agrees(ordo_session *session);
ordo_status ordo_invariants_reduced(ordo_session *session);
ordo_status ordo_invariants_drift(ordo_session *session);
void ordo_invariants_before_update(ordo_model_state *model);
ordo_status ordo_invariants_changed(ordo_session *session, ordo_model_state *model);
/* The same of weights that follow their masters, at the end of the step. Collective. */
ordo_status ordo_invariants_copied(ordo_session *session, ordo_model_state *model);
guint64 ordo_checksum(const void *data, size_t bytes);
/* sum over all data axes, or op over one communicator; sets the ordered flag where the session asks for it. */
ordo_status ordo_session_reduce(ordo_session *session, const ordo_comm *comm, void *values, int64_t n, ordo_dtype dtype, uint32_t op,
                                const char *label);

#endif
