/* rules.h - the graph of a session before it is solved, and the rules that draw its edges (private).
 *
 * Each clause of docs/ordering.md has a switch. The product never turns one off; the tests do, to prove that every clause is needed. */
#ifndef ORDO_PRIVATE_RULES_H
#define ORDO_PRIVATE_RULES_H

#include "names.h"
#include "resolve.h"

/* X(CONSTANT, rule as printed, what the clause says) */
/* clang-format off */
#define ORDO_CLAUSE_TABLE(X)                                                                                                       \
  X(ORDO_CLAUSE_1_INIT, "rule 1", "mesh.init before model.build")                                                                  \
  X(ORDO_CLAUSE_1_BUILD, "rule 1", "model.build before everything else")                                                           \
  X(ORDO_CLAUSE_1_VERIFY, "rule 1", "everything before verify")                                                                    \
  X(ORDO_CLAUSE_2_LOAD, "rule 2", "model.inject before weights.load")                                                              \
  X(ORDO_CLAUSE_2_SHARDED, "rule 2", "model.inject before weights.load_sharded")                                                   \
  X(ORDO_CLAUSE_2_CONVERT, "rule 2", "model.inject before the conversion")                                                         \
  X(ORDO_CLAUSE_2_STRATEGY, "rule 2", "model.inject before every strategy step")                                                   \
  X(ORDO_CLAUSE_2_CREATE, "rule 2", "model.inject before optimizer.create")                                                        \
  X(ORDO_CLAUSE_3_SYNC, "rule 3", "weights.load before weights.sync")                                                              \
  X(ORDO_CLAUSE_3_CONVERT, "rule 3", "weights.sync before the conversion")                                                         \
  X(ORDO_CLAUSE_3_STRATEGY, "rule 3", "weights.sync before every strategy step")                                                   \
  X(ORDO_CLAUSE_3_CREATE, "rule 3", "weights.sync before optimizer.create")                                                        \
  X(ORDO_CLAUSE_4_CONVERT_STRATEGY, "rule 4", "the conversion before every strategy step")                                         \
  X(ORDO_CLAUSE_4_CONVERT_CREATE, "rule 4", "the conversion before optimizer.create")                                              \
  X(ORDO_CLAUSE_4_CONVERT_WRAP, "rule 4", "the conversion before precision.wrap_optimizer")                                        \
  X(ORDO_CLAUSE_4_PARTITION_CREATE, "rule 4", "strategy.partition before optimizer.create")                                        \
  X(ORDO_CLAUSE_4_PARTITION_STRATEGY, "rule 4", "strategy.partition before every other strategy step")                             \
  X(ORDO_CLAUSE_5_OBSERVE, "rule 5", "a step that replaces leaves before those of other strategies that do not")                   \
  X(ORDO_CLAUSE_5_ONE, "rule 5", "one strategy replaces leaves along one axis")                                                    \
  X(ORDO_CLAUSE_6_JOINT, "rule 6", "optimizer.create before strategy.prepare_joint")                                               \
  X(ORDO_CLAUSE_6_OPTIMIZER, "rule 6", "optimizer.create before strategy.prepare_optimizer")                                       \
  X(ORDO_CLAUSE_7_WRAP, "rule 7", "every wrap before weights.load_sharded")                                                        \
  X(ORDO_CLAUSE_7_REPLACE, "rule 7", "every leaf replacement before weights.load_sharded")                                         \
  X(ORDO_CLAUSE_8_CREATE, "rule 8", "optimizer.create before precision.wrap_optimizer")                                            \
  X(ORDO_CLAUSE_8_REPLACE, "rule 8", "every leaf replacement before precision.wrap_optimizer")                                     \
  X(ORDO_CLAUSE_8_PREPARE, "rule 8", "every prepare step before precision.wrap_optimizer")                                         \
  X(ORDO_CLAUSE_8_SHARDED, "rule 8", "weights.load_sharded before precision.wrap_optimizer")                                       \
  X(ORDO_CLAUSE_9_TOUCH, "rule 9", "everything that touches leaves or the optimizer before scheduler.create")                      \
  X(ORDO_CLAUSE_9_OPTIMIZER, "rule 9", "scheduler.create before restore.optimizer")                                                \
  X(ORDO_CLAUSE_9_PRECISION, "rule 9", "restore.optimizer before restore.precision")                                               \
  X(ORDO_CLAUSE_9_SCHEDULER, "rule 9", "restore.precision before restore.scheduler")                                               \
  X(ORDO_CLAUSE_9_DATA, "rule 9", "restore.scheduler before restore.data")                                                         \
  X(ORDO_CLAUSE_9_RNG, "rule 9", "restore.data before restore.rng")                                                                \
  X(ORDO_CLAUSE_9_ONLY, "rule 9", "restore.precision only with a precision plugin")                                                \
  X(ORDO_CLAUSE_10_AXIS, "rule 10", "one strategy on an axis")                                                                     \
  X(ORDO_CLAUSE_10_NO_REDUCER, "rule 10", "a data axis is reduced")                                                                \
  X(ORDO_CLAUSE_10_TWO_REDUCERS, "rule 10", "a data axis is reduced by one strategy only")                                         \
  X(ORDO_CLAUSE_10_PRECISION, "rule 10", "one precision plugin for a model")                                                       \
  X(ORDO_CLAUSE_11_HARD, "rule 11", "hard lines hold")                                                                             \
  X(ORDO_CLAUSE_11_SOFT, "rule 11", "soft lines hold where they can")                                                              \
  X(ORDO_CLAUSE_11_REQUIRES, "rule 11", "requirements are met")                                                                    \
  X(ORDO_CLAUSE_11_CONFLICTS, "rule 11", "declared conflicts are refused")                                                         \
  X(ORDO_CLAUSE_S, "flag setup_optimizers_in_pre_dispatch", "its wrap before optimizer.create")                                    \
  X(ORDO_CLAUSE_X_CREATE, "flag initializes_jointly", "optimizer.create before precision.initialize")                              \
  X(ORDO_CLAUSE_X_STRATEGY, "flag initializes_jointly", "precision.initialize before every strategy step")                         \
  X(ORDO_CLAUSE_X_ACCEPTS, "flag accepts_partitioned", "a partitioned model is bare enough")                                       \
  X(ORDO_CLAUSE_X_PREPARE, "flag initializes_jointly", "every prepare step before precision.initialize")                           \
  X(ORDO_CLAUSE_X_SHARDED, "flag initializes_jointly", "weights.load_sharded before precision.initialize")                         \
  X(ORDO_CLAUSE_X_NAMES, "flag initializes_jointly", "lines that name either half mean precision.initialize")                      \
  X(ORDO_CLAUSE_RESTORES, "flag restores_after_wrap", "weights are loaded into the shards and not before")                         \
  X(ORDO_CLAUSE_OWNS, "flag owns_precision", "no precision plugin converts the model as well")                                     \
  X(ORDO_CLAUSE_EVAL, "evaluation only", "no optimizer, no scheduler; precision.initialize acts as the conversion")                \
  X(ORDO_CLAUSE_FROZEN, "frozen model", "no optimizer, no scheduler, nothing to reduce")                                           \
  X(ORDO_CLAUSE_EVENT_SHARDS, "inside a training step", "reductions of strategies that replace leaves come first")                            \
  X(ORDO_CLAUSE_EVENT_CHAIN, "inside a training step", "the order of the events after the reductions")                                        \
  X(ORDO_CLAUSE_EVENT_PRECISION, "inside a training step", "precision events only where masters or a scaler exist")
/* clang-format on */

#define ORDO_X_CLAUSE(C, RULE, WHAT) C,
enum { ORDO_CLAUSE_TABLE(ORDO_X_CLAUSE) ORDO_N_CLAUSES };
#undef ORDO_X_CLAUSE

const char *ordo_clause_rule(guint clause);
const char *ordo_clause_what(guint clause);

/* A session under construction. */
typedef struct ordo_build {
  const ordo_resolve_input *input;
  guint64 off;   /* bit per clause that a test removed */
  guint *sorted; /* decl indices by (id, axis, version): the canonical order of providers */
  ordo_resolution *result;
  GHashTable *edge_by_pair; /* from << 32 | to -> 1, so that a pair has one edge */
} ordo_build;

gboolean ordo_build_on(const ordo_build *build, guint clause);
const ordo_decl *ordo_build_decl(const ordo_build *build, const ordo_node *node); /* null for host and embedder */
ordo_node *ordo_build_node(const ordo_build *build, guint index);
/* An optimizer exists for the model in this session. */
gboolean ordo_build_trains(const ordo_build *build, uint32_t model);
gboolean ordo_node_is_session_wide(uint32_t step);
gboolean ordo_decl_has_flag(const ordo_decl *decl, uint32_t flag);
gboolean ordo_decl_has_step(const ordo_decl *decl, uint32_t step);
gboolean ordo_decl_provides(const ordo_decl *decl, const char *capability);

/* nodes.c: the nodes that the session has, in table order. */
void ordo_build_add_nodes(ordo_build *build);
/* Keeps the first edge of a pair; no self edges. */
void ordo_build_add_edge(ordo_build *build, guint from, guint to, gboolean hard, const char *rule, const char *origin);
/* rules.c: rules 1 to 9 and the flags. */
void ordo_build_add_rules(ordo_build *build);
/* lines.c: rule 11, hard lines and then the soft ones that fit. */
void ordo_build_add_hard_lines(ordo_build *build);
void ordo_build_add_soft_lines(ordo_build *build);
/* checks.c: what is refused without looking at the order (rules 5, 10, 11, owns_precision). */
void ordo_build_check(ordo_build *build);
void ordo_build_find(ordo_build *build, const char *code, const char *where, const char *next, const char *text, ...) G_GNUC_PRINTF(5, 6);
/* events.c */
void ordo_build_add_events(ordo_build *build);
/* fixes.c: fills result->fixes. */
void ordo_build_try_fixes(ordo_build *build);

/* The resolver with clauses removed, and without trying fixes if `quick`. */
ordo_resolution *ordo_resolve_without(const ordo_resolve_input *input, guint64 off, gboolean quick);

/* "ordering rule 3", "flag setup_optimizers_in_pre_dispatch (fsdp1 manifest line 7)", "before[...]=... (fsdp1 manifest line 9)" */
char *ordo_edge_label(const ordo_edge *edge);

#endif
