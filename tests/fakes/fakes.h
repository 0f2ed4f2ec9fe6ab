/* fakes.h - manifests of strategies and precision plugins that stand for the shipped and the third-party ones in tests of the resolver.
 *
 * They declare what the real ones declare and do nothing. Each is also built as a shared object (fake.c), so that the command can be
 * tested with --plugin-path. The text leaves out abi=, which ORDO_MANIFEST writes. */
#ifndef ORDO_TEST_FAKES_H
#define ORDO_TEST_FAKES_H

/* Averages gradients in buckets; watches leaves and replaces none. */
#define FAKE_DDP                                                                                                 \
  "id=ddp\nkind=strategy\nversion=1.0.0\nsummary=replicated data parallel\nlicense=Apache-2.0\nmesh_axis=data\n" \
  "steps=strategy.wrap\nreduces=yes\nflags=supports_no_sync\n"                                                   \
  "option=hook|comm_hook|none|none,fp16,bf16|compression of gradients\noption=bucket_mb|int|25|1..1024|bucket size in MiB\n"

/* Flattens and shards in its wrap, so the optimizer has to wait for it. */
#define FAKE_FSDP1                                                                                                                \
  "id=fsdp1\nkind=strategy\nversion=1.0.0\nsummary=flat sharding\nlicense=Apache-2.0\nmesh_axis=data\n"                           \
  "flags=setup_optimizers_in_pre_dispatch,restores_after_wrap\nsteps=strategy.wrap\nreplaces_leaves=strategy.wrap\nreduces=yes\n" \
  "provides=sharded_parameters\nconflicts=sharded_parameters\n"

/* Shards the model and rebinds the optimizer in one call. */
#define FAKE_FSDP2                                                                                                               \
  "id=fsdp2\nkind=strategy\nversion=1.0.0\nsummary=per-parameter sharding\nlicense=Apache-2.0\nmesh_axis=data\n"                 \
  "flags=requires_joint_prepare,restores_after_wrap\nflags[param_dtype!=f32]=owns_precision\nsteps=strategy.prepare_joint\n"     \
  "replaces_leaves=strategy.prepare_joint\nreduces=yes\noption=param_dtype|dtype|f32|f32,bf16,f16|type of gathered parameters\n" \
  "provides=sharded_parameters\nconflicts=sharded_parameters\n"

/* Every rank owns a slice of each matrix and sees the same batch. */
#define FAKE_TP                                                                                         \
  "id=tp\nkind=strategy\nversion=1.0.0\nsummary=tensor parallel\nlicense=Apache-2.0\nmesh_axis=model\n" \
  "flags=self_sharded,needs_identical_data\nsteps=strategy.partition\nreplaces_leaves=strategy.partition\n"

/* Shards the optimizer only. */
#define FAKE_ZERO1                                                                                          \
  "id=zero1\nkind=strategy\nversion=1.0.0\nsummary=sharded optimizer\nlicense=Apache-2.0\nmesh_axis=data\n" \
  "steps=strategy.prepare_optimizer\nreplaces_leaves=strategy.prepare_optimizer\nreduces=yes\nevents=step.post_step\n"

/* Split set-up: converts early, wraps the optimizer once the leaves are final. O1 scales the loss unless told not to; O2 and O5 have
 * masters. */
#define FAKE_APEX_AMP                                                                                                             \
  "id=apex_amp\nkind=precision\nversion=1.0.0\nsummary=mixed precision with opt levels\nlicense=Apache-2.0\n"                     \
  "alias=amp_o0:opt_level=O0\nalias=amp_o1:O1\nalias=amp_o2:O2\nalias=amp_o3:O3\n"                                                \
  "option=opt_level|enum|O1|O0,O1,O2,O3,O4,O5|what is stored and computed in 16 bits\n"                                           \
  "option=loss_scale|string|||a number or dynamic\npositional=opt_level\n"                                                        \
  "steps[opt_level!=O0]=precision.convert_model\n"                                                                                \
  "steps[opt_level in O2,O5 or opt_level=O1 and loss_scale unset or loss_scale set and loss_scale!=1]=precision.wrap_optimizer\n" \
  "flags[opt_level in O2,O5 or opt_level=O1 and loss_scale unset or loss_scale set and loss_scale!=1]=wraps_optimizer\n"

/* Needs bare model and bare optimizer in one call. */
#define FAKE_JOINTX                                                                              \
  "id=jointx\nkind=precision\nversion=1.0.0\nsummary=joint initialisation\nlicense=Apache-2.0\n" \
  "flags=initializes_jointly\nsteps=precision.initialize\n"

/* The same, but a partitioned model is bare enough for it. */
#define FAKE_JOINTX_TP                                                                                                \
  "id=jointx_tp\nkind=precision\nversion=1.0.0\nsummary=joint initialisation after a partition\nlicense=Apache-2.0\n" \
  "flags=initializes_jointly,accepts_partitioned\nsteps=precision.initialize\n"

/* Wraps the optimizer and converts nothing. */
#define FAKE_SCALER                                                                             \
  "id=scaler\nkind=precision\nversion=1.0.0\nsummary=a loss scaler alone\nlicense=Apache-2.0\n" \
  "flags=wraps_optimizer\nsteps=precision.wrap_optimizer\n"

/* A wrap that replaces nothing and still wants the optimizer to wait. */
#define FAKE_WATCH                                                                                                                 \
  "id=watch\nkind=strategy\nversion=1.0.0\nsummary=observing wrap that delays the optimizer\nlicense=Apache-2.0\nmesh_axis=data\n" \
  "flags=setup_optimizers_in_pre_dispatch\nsteps=strategy.wrap\nreduces=yes\n"

/* The same, and weights are loaded after the wrap. */
#define FAKE_WATCH_RESTORES                                                                                                         \
  "id=watch_restores\nkind=strategy\nversion=1.0.0\nsummary=observing wrap, weights after it\nlicense=Apache-2.0\nmesh_axis=data\n" \
  "flags=restores_after_wrap\nsteps=strategy.wrap\nreduces=yes\n"

/* Adds parameters before anything else sees the model; takes no axis. */
#define FAKE_LORA                                                                                          \
  "id=lora\nkind=strategy\nversion=1.0.0\nsummary=low-rank adapters\nlicense=Apache-2.0\nmesh_axis=none\n" \
  "steps=model.inject\nprovides=adapters\n"

/* A step without any constraint of its own but those of a strategy step; takes no axis. */
#define FAKE_TESTSTEP \
  "id=teststep\nkind=strategy\nversion=1.0.0\nsummary=one observing step\nlicense=Apache-2.0\nmesh_axis=none\nsteps=strategy.wrap\n"

/* Takes a data axis and reduces nothing. */
#define FAKE_PASSIVE                                                                                                      \
  "id=passive\nkind=strategy\nversion=1.0.0\nsummary=a data axis without a reducer\nlicense=Apache-2.0\nmesh_axis=data\n" \
  "steps=strategy.wrap\n"

/* tp without self_sharded: the host adds its default data strategy beside it. */
#define FAKE_TP_PLAIN                                                                                                               \
  "id=tp_plain\nkind=strategy\nversion=1.0.0\nsummary=a model axis that is not self-sharded\nlicense=Apache-2.0\nmesh_axis=model\n" \
  "steps=strategy.partition\nreplaces_leaves=strategy.partition\n"

/* Prepares the optimizer and replaces nothing; takes no axis. */
#define FAKE_PREPARE                                                                                               \
  "id=prepare\nkind=strategy\nversion=1.0.0\nsummary=looks at the optimizer\nlicense=Apache-2.0\nmesh_axis=none\n" \
  "steps=strategy.prepare_optimizer\n"

/* Needs somebody who provides masters, and refuses adapters. */
#define FAKE_PICKY                                                                                                              \
  "id=picky\nkind=strategy\nversion=1.0.0\nsummary=has requirements\nlicense=Apache-2.0\nmesh_axis=none\nsteps=strategy.wrap\n" \
  "requires=masters\nconflicts=adapters\n"

#endif
