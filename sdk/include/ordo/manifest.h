/* ordo/manifest.h - what a plugin declares, as text inside an ELF note.
 *
 * Listing, inspecting and planning read this note and run nothing of the plugin. The text is flat `key=value` lines in
 * UTF-8, at most ORDO_MANIFEST_MAX bytes, `#` starts a comment line. A repeatable key may stand on several lines; any
 * other key stands once. Unknown keys are an error unless they begin with `x-`.
 *
 *   id=fsdp2                      [a-z0-9_.-]+, required; third parties use reverse DNS or any free name
 *   kind=strategy                 strategy | precision | comm_hook, required
 *   version=1.0.0                 semantic version, required
 *   summary=one line              required
 *   license=Apache-2.0            SPDX expression
 *   url=https://...
 *   alias=NAME[:key=value...]     repeatable; another name for this plugin, with preset options
 *   flags=A,B                     capability flags, table below
 *   steps=A,B                     steps of the plan that the plugin provides (step.h)
 *   replaces_leaves=A,B           those of them that replace leaves
 *   reduces=yes                   it reduces gradients along its mesh axis
 *   events=step.post_step         the strategy acts after each update (gathers or exchanges parameters); other events follow from
 *                                 reduces and from the steps
 *   provides=CAP,... requires=CAP,... conflicts=CAP,...      capabilities; an id is a capability of its plugin
 *   before[STEP]=X,... after[STEP]=X,...     repeatable: this plugin's node STEP stands before/after X, where X is a step id
 *                                 (any provider's) or a capability (every node of its providers); `?X` makes the line soft
 *   mesh_axis=none|data|model     which kind of axis it takes (strategies; default data). A data axis splits the batch
 *   option=key|type|default|range|help        repeatable; type: bool, int, real, string, enum, size, dtype, comm_hook;
 *                                 range: `a..b`, or words separated by `,`, or empty; default may be empty (unset). A
 *                                 comm_hook is one of the words, or names an installed comm_hook plugin (id or alias)
 *   positional=key                the option that a bare word sets: `apex_amp:O2`
 *   precisions=f32,bf16,...       precisions that a strategy works with (default: all)
 *   dry_run=yes|no                it touches no tensor when ordo_job.dry_run is 1 (job.h); default no: estimates refuse it
 *   abi=MAJOR.MINOR               written by ORDO_MANIFEST
 *
 * The list keys flags, steps, replaces_leaves, reduces, provides, requires, conflicts, before and after may stand on several
 * lines; what they say adds up. License, url, precisions and everything not marked required may be left out. A name whose part
 * up to the dot is that of a step (`strategy.`, `weights.` ...) is kept for steps and is no capability. A line that would
 * put a step after the training begins (after[...]=step.reduce, =dispatch) is an error.
 *
 * A line of flags, steps, replaces_leaves, reduces, events, provides, requires, conflicts, before or after may depend on options:
 *   flags[param_dtype!=f32]=owns_precision
 *   steps[opt_level in O2,O5 or loss_scale set]=precision.wrap_optimizer
 * Conditions: `key=value`, `key!=value`, `key in a,b`, `key not in a,b`, `key set`, `key unset`, joined with `and` and `or`
 * (`and` binds tighter). Words are separated by blanks, `=`, `!=` and `,`; there are no brackets. An unset option equals nothing, so
 * `key=value` is false and `key!=value` true. Numbers and truth values are compared by value. On before and after the condition follows the
 * step: before[strategy.wrap][level=2]=...
 *
 * Flags (what each does to the order: docs/ordering.md)
 *   strategy   setup_optimizers_in_pre_dispatch, requires_joint_prepare, self_sharded, restores_after_wrap, owns_precision,
 *              needs_identical_data, handles_gradient_accumulation, supports_no_sync, replicas_diverge
 *   precision  wraps_optimizer, initializes_jointly, accepts_partitioned
 */
#ifndef ORDO_MANIFEST_H
#define ORDO_MANIFEST_H

#include <ordo/abi.h>

#define ORDO_MANIFEST_MAX 65536
#define ORDO_NOTE_SECTION ".note.ordo"
#define ORDO_NOTE_OWNER "ORDO"
#define ORDO_NOTE_TYPE 0x4d414e31u /* "MAN1" */

#define ORDO_STRINGIFY_(X) #X
#define ORDO_STRINGIFY(X) ORDO_STRINGIFY_(X)
#define ORDO_ABI_LINE "abi=1.0\n"
ORDO_STATIC_ASSERT(ORDO_ABI_MAJOR == 1u && ORDO_ABI_MINOR == 0u, "ORDO_ABI_LINE must state the ABI of abi.h");

/* Plants the manifest TEXT (a string literal, lines end in \n) in this object file. Use it once per plugin. */
#if defined(__GNUC__)
#define ORDO_MANIFEST(TEXT)                                                           \
  __attribute__((used, section(ORDO_NOTE_SECTION), aligned(4))) static const struct { \
    uint32_t name_size, text_size, type;                                              \
    char name[8];                                                                     \
    char text[(sizeof(ORDO_ABI_LINE TEXT) + 3u) & ~(size_t)3u];                       \
  } ordo_manifest_note = {5u, (uint32_t)sizeof(ORDO_ABI_LINE TEXT), ORDO_NOTE_TYPE, {'O', 'R', 'D', 'O', 0, 0, 0, 0}, ORDO_ABI_LINE TEXT}
#endif

#endif
