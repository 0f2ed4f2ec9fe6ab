/* kit.h - everything that a test of a session needs: a plan made by the real resolver from manifests in the test, plugins whose tables
 * live in the test program, a small model with tied weights, and an SGD optimizer that can be rebound.
 *
 * Each plugin writes what it is asked to a log and misbehaves as its `fake` record says. */
#ifndef ORDO_TEST_KIT_H
#define ORDO_TEST_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "session/session.h"

typedef struct fake {
  const char *id;
  const char *fail_in;       /* member that returns an error: "wrap", "create", "reduce" ... */
  gboolean silent;           /* without calling host->fail */
  gboolean lose_rank;        /* ... with ORDO_E_PEER_LOST */
  gboolean flat;             /* wrap / prepare_joint replace all leaves by one flat shard per axis */
  gboolean drop_link;        /* ... and forget one old leaf */
  gboolean tear_tie;         /* ... and give two tied parameters a leaf each */
  gboolean twice;            /* ... and do it a second time */
  gboolean outside;          /* replace_leaves from step_begin */
  gboolean forget;           /* reduce marks nothing */
  gboolean reduce_twice;     /* reduce marks everything twice */
  gboolean only_sum;         /* reduce sums and leaves the division to the host */
  gboolean veto;             /* should_commit says no */
  gboolean masters;          /* wrap_optimizer makes masters */
  gboolean master_of_master; /* ... and one for the first of them */
  gboolean keeps_masters;    /* masters_to_model copies nothing */
  gboolean no_copy;          /* the table lacks masters_to_model */
  ordo_status (*wraps)(const ordo_job *job, ordo_optimizer *optimizer); /* wrap_optimizer calls it */
  gboolean fp16, bf16;                                                  /* op_dtype(matmul) */
  ordo_dtype converts;                                                  /* convert_model casts every parameter to it, 0: none */
  uint32_t convert_flags;
  ordo_status (*injects)(void *ctx, const ordo_job *job); /* model.inject calls it */
  void *injects_ctx;
  gboolean late;          /* unscale converts again, which is too late */
  double scale;           /* loss scale, 0: 1 */
  gboolean overflow;      /* unscale reports one */
  gboolean drifts;        /* post_step changes a weight on rank 1 */
  gboolean hides;         /* reduce ignores what mark_reduced answers */
  gboolean no_instance;   /* create says OK and gives none */
  ordo_status init;       /* init returns it ... */
  gboolean init_praises;  /* ... after a record with the status ORDO_OK */
  size_t table_size;      /* struct_size of the table, 0: the right one */
  gboolean no_reduce;     /* the table lacks reduce */
  gboolean whole_table;   /* the table has functions that the manifest does not declare */
  gboolean no_unscale;    /* the table lacks unscale */
  gboolean half_wire;     /* the table has wire_bytes alone */
  guint32 without;        /* bit per ORDO_STEP_: the table lacks that member */
  gboolean backward_only; /* wants activations of the backward pass only */
  int32_t parts, part;    /* residual: parts 0 leaves the answer alone */
  ordo_strategy strategy; /* its tables, filled when it is opened */
  ordo_precision precision;
} fake;

enum { KIT_MAX_FAKES = 6 };

typedef struct kit {
  ordo_context *context;
  const ordo_comm_provider *comm;
  ordo_plan *plan;
  ordo_session *session;
  ordo_embedder embedder;
  ordo_session_options options;
  GString *log;
  fake fakes[KIT_MAX_FAKES];
  GPtrArray *founds;
  gboolean eval, resume;
  guint32 models;

  /* the embedder's side */
  gboolean no_tie, with_data, bad_rebind, partial_groups, twice_in_groups, frozen_optimizer, plain_factor, no_rebind;
  gboolean says_16_bit; /* the optimizer claims to update 16-bit leaves */
  gboolean shape_from_rank;
  guint many; /* of a test's own model_build */
  double lr, weight_offset;
  float *storage[8];
  ordo_leaf *kept_leaf; /* of model_build's first optimizer view */
  gboolean refuses_convert;
  guint refuses_convert_at; /* the call of convert that is refused, counted from 1; 0: none */
  guint adapters;           /* that it was told of */
  guint converts;
  guint dead_binds; /* to storage that the session has freed (or a plugin got elsewhere) */
  guint rebinds, binds, optimizers, scheduler_steps;
  double last_factor;
  int64_t last_optimizer_step;
  gboolean optimizer_at_setup_end;
  guint phases;
} kit;

kit *kit_new(void);
void kit_free(kit *k);
/* Adds a plugin. `lines` are manifest lines after id, kind, version and summary; `axis_size` 0: no axis. */
fake *kit_add(kit *k, const char *id, const char *lines, int axis_size);
/* Resolves, and makes the session; the status of create. */
ordo_status kit_create(kit *k);
/* kit_create and setup, both asserted good. */
void kit_setup(kit *k);
/* One step of one micro-batch: gradient of element i of every parameter is `grad` * (i + 1). `weight` is this rank's. */
ordo_status kit_step(kit *k, double weight, float grad, ordo_step_result *result);
/* Everything of a micro-batch of a running step. */
ordo_status kit_micro(kit *k, float grad);
/* The code of the first record, "" if none. */
const char *kit_code(const kit *k);
/* All text of the first record. */
char *kit_text(const kit *k);
#define kit_assert_mentions(K, WORD)                     \
  do {                                                   \
    g_autofree char *kit_text_ = kit_text(K);            \
    if (!strstr(kit_text_, (WORD)))                      \
      fail_msg("'%s' is not in: %s", (WORD), kit_text_); \
  } while (0)
float kit_weight(uint32_t param, int64_t element);

#define KIT_DDP "steps=strategy.wrap\nreduces=yes\n"
#define KIT_FSDP1 \
  "flags=setup_optimizers_in_pre_dispatch,restores_after_wrap\nsteps=strategy.wrap\nreplaces_leaves=strategy.wrap\nreduces=yes\n"
#define KIT_FSDP2                                                                                                            \
  "flags=requires_joint_prepare,restores_after_wrap\nsteps=strategy.prepare_joint\nreplaces_leaves=strategy.prepare_joint\n" \
  "reduces=yes\n"
#define KIT_AMP "kind=precision\nsteps=precision.convert_model,precision.wrap_optimizer\nflags=wraps_optimizer\n"

#endif
