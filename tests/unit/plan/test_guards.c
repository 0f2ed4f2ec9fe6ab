/* test_guards.c - every clause of every rule and every flag is needed: removing it turns a named case red.
 *
 * A case states what is observed with all rules and must see something else with the clause removed. `test_every_clause_is_guarded` fails
 * when a clause is added without a case. The cases of docs/ordering.md come first, with a whole rule removed. */
#include "session.h"

#define NONE ((guint)ORDO_N_CLAUSES)

typedef enum { VERDICT, STEPS, EVENTS, WHY } observed;

typedef struct guard {
  const char *name;
  guint clause; /* NONE: the whole `rule` is removed */
  const char *rule;
  const char *strategies, *precision;
  const char *plugin, *extra; /* lines added to that plugin */
  observed what;
  const char *from, *to; /* WHY */
  const char *with;      /* VERDICT and WHY: exactly this; STEPS and EVENTS: contained */
  gboolean resume, eval, frozen;
} guard;

#define RULE(N) .clause = NONE, .rule = "rule " N
#define X_LINE "flag initializes_jointly (jointx manifest line 6)"

static const guard guards[] = {
    /* the cases of the documentation: a whole rule is removed */
    {"inject before mesh.init", RULE("1"), "none", "none", "lora", "before[model.inject]=mesh.init\n", VERDICT, .with = "E-PLAN-CYCLE"},
    {"inject before model.build", RULE("1"), "none", "none", "lora", "before[model.inject]=model.build\n", VERDICT, .with = "E-PLAN-CYCLE"},
    {"verify before wrap", RULE("1"), "ddp", "none", "ddp", "after[strategy.wrap]=verify\n", VERDICT, .with = "E-PLAN-CYCLE"},
    {"convert before inject", RULE("2"), "none", "apex_amp", "lora", "after[model.inject]=precision.convert_model\n", VERDICT,
     .with = "E-PLAN-CYCLE"},
    {"wrap before inject", RULE("2"), "ddp", "none", "lora", "after[model.inject]=strategy.wrap\n", VERDICT, .with = "E-PLAN-CYCLE"},
    {"create before inject", RULE("2"), "none", "none", "lora", "after[model.inject]=optimizer.create\n", VERDICT, .with = "E-PLAN-CYCLE"},
    {"wrap before load", RULE("3"), "ddp", "none", "ddp", "before[strategy.wrap]=weights.load\n", VERDICT, .with = "E-PLAN-CYCLE"},
    {"wrap before sync", RULE("3"), "ddp", "none", "ddp", "before[strategy.wrap]=weights.sync\n", VERDICT, .with = "E-PLAN-CYCLE"},
    {"convert before sync", RULE("3"), "none", "apex_amp:O3", "apex_amp", "before[precision.convert_model]=weights.sync\n", VERDICT,
     .with = "E-PLAN-CYCLE"},
    {"wrap_optimizer before load", RULE("3"), "none", "scaler", "scaler", "before[precision.wrap_optimizer]=weights.load\n", VERDICT,
     .with = "E-PLAN-CYCLE"},
    {"create before sync", RULE("3"), "none", "scaler", "scaler", "before[precision.wrap_optimizer]=weights.sync\n", VERDICT,
     .with = "E-PLAN-CYCLE"},
    {"wrap before convert", RULE("4"), "ddp", "apex_amp:O2", "ddp", "before[strategy.wrap]=precision.convert_model\n", VERDICT,
     .with = "E-PLAN-CYCLE"},
    {"wrap before partition", RULE("4"), "tp+fsdp1", "none", "tp", "after[strategy.partition]=strategy.wrap\n", VERDICT,
     .with = "E-PLAN-CYCLE"},
    {"create before convert", RULE("4"), "none", "apex_amp:O2", "apex_amp", "after[precision.convert_model]=optimizer.create\n", VERDICT,
     .with = "E-PLAN-CYCLE"},
    {"ddp over fsdp2", RULE("5"), "ddp+fsdp2", "none", .what = STEPS, .with = "strategy.prepare_joint(fsdp2) > strategy.wrap(ddp)"},
    {"prepare_optimizer before create", RULE("6"), "zero1", "none", "zero1", "before[strategy.prepare_optimizer]=optimizer.create\n",
     VERDICT, .with = "E-PLAN-CYCLE"},
    {"fsdp2 with an observing wrap that delays", RULE("6"), "watch+fsdp2", "none", .what = VERDICT, .with = "E-PLAN-CYCLE"},
    {"load_sharded before fsdp1's wrap", RULE("7"), "fsdp1", "none", "fsdp1", "after[strategy.wrap]=weights.load_sharded\n", VERDICT,
     .with = "E-PLAN-CYCLE"},
    {"load_sharded before fsdp2's prepare_joint", RULE("7"), "fsdp2", "none", "fsdp2",
     "after[strategy.prepare_joint]=weights.load_sharded\n", VERDICT, .with = "E-PLAN-CYCLE"},
    {"load_sharded before ddp's wrap over fsdp2", RULE("7"), "ddp+fsdp2", "none", "ddp", "after[strategy.wrap]=weights.load_sharded\n",
     VERDICT, .with = "E-PLAN-CYCLE"},
    {"observing wrap that delays, with masters", RULE("8"), "watch", "apex_amp:O2", .what = STEPS,
     .with = "strategy.wrap(watch) > optimizer.create(embedder) > precision.wrap_optimizer(apex_amp)"},
    {"sharded optimizer with masters", RULE("8"), "zero1", "apex_amp:O2", .what = STEPS,
     .with = "strategy.prepare_optimizer(zero1) > precision.wrap_optimizer(apex_amp)"},
    {"scheduler before wrap", RULE("9"), "ddp", "none", "ddp", "after[strategy.wrap]=scheduler.create\n", VERDICT, .with = "E-PLAN-CYCLE"},
    {"restore.optimizer before wrap", RULE("9"), "ddp", "none", "ddp", "after[strategy.wrap]=restore.optimizer\n", VERDICT,
     .with = "E-PLAN-CYCLE", .resume = TRUE},
    {"two strategies on one axis", RULE("10"), "ddp", "none", "passive", "", VERDICT, .with = "E-PLAN-AXIS"},
    {"a data axis with no reducer", RULE("10"), "passive", "none", .what = VERDICT, .with = "E-PLAN-REDUCER"},
    {"a data axis with two reducers", RULE("10"), "ddp", "none", "watch", "", VERDICT, .with = "E-PLAN-AXIS E-PLAN-REDUCER"},
    {"two precision plugins", RULE("10"), "none", "apex_amp:O2", "scaler", "", VERDICT, .with = "E-PLAN-PRECISION-OWNER"},

    /* one clause is removed */
    {"1 init", ORDO_CLAUSE_1_INIT, NULL, "none", "none", "lora", "before[model.inject]=mesh.init\n", VERDICT, .with = "E-PLAN-CYCLE"},
    {"1 build", ORDO_CLAUSE_1_BUILD, NULL, "none", "none", "lora", "before[model.inject]=model.build\n", VERDICT, .with = "E-PLAN-CYCLE"},
    {"1 verify", ORDO_CLAUSE_1_VERIFY, NULL, "ddp", "none", "ddp", "after[strategy.wrap]=verify\n", VERDICT, .with = "E-PLAN-CYCLE"},
    {"2 load", ORDO_CLAUSE_2_LOAD, NULL, "none", "none", "lora", "after[model.inject]=weights.load\n", VERDICT, .with = "E-PLAN-CYCLE"},
    {"2 sharded", ORDO_CLAUSE_2_SHARDED, NULL, "fsdp1", "none", "lora", "", WHY, .from = "model.inject(lora)",
     .to = "weights.load_sharded(host)", .with = "ordering rule 2"},
    {"2 convert", ORDO_CLAUSE_2_CONVERT, NULL, "fsdp1", "apex_amp:O2", "lora", "after[model.inject]=precision.convert_model\n", VERDICT,
     .with = "E-PLAN-CYCLE"},
    {"2 convert, joint", ORDO_CLAUSE_2_CONVERT, NULL, "none", "jointx", "lora", "", WHY, .from = "model.inject(lora)",
     .to = "precision.initialize(jointx)", .with = "ordering rule 2"},
    {"2 strategy", ORDO_CLAUSE_2_STRATEGY, NULL, "fsdp1", "none", "lora", "after[model.inject]=strategy.wrap\n", VERDICT,
     .with = "E-PLAN-CYCLE"},
    {"2 create", ORDO_CLAUSE_2_CREATE, NULL, "none", "none", "lora", "", WHY, .from = "model.inject(lora)",
     .to = "optimizer.create(embedder)", .with = "ordering rule 2"},
    {"3 sync", ORDO_CLAUSE_3_SYNC, NULL, "ddp", "none", "ddp", "before[strategy.wrap]=weights.load\n", VERDICT, .with = "E-PLAN-CYCLE"},
    {"3 convert", ORDO_CLAUSE_3_CONVERT, NULL, "none", "apex_amp:O3", "apex_amp", "before[precision.convert_model]=weights.sync\n", VERDICT,
     .with = "E-PLAN-CYCLE"},
    {"3 convert, joint", ORDO_CLAUSE_3_CONVERT, NULL, "none", "jointx", .what = WHY, .from = "weights.sync(host)",
     .to = "precision.initialize(jointx)", .with = "ordering rule 3"},
    {"3 strategy", ORDO_CLAUSE_3_STRATEGY, NULL, "ddp", "none", "ddp", "before[strategy.wrap]=weights.sync\n", VERDICT,
     .with = "E-PLAN-CYCLE"},
    {"3 create", ORDO_CLAUSE_3_CREATE, NULL, "none", "scaler", "scaler", "before[precision.wrap_optimizer]=weights.load\n", VERDICT,
     .with = "E-PLAN-CYCLE"},
    {"4 convert strategy", ORDO_CLAUSE_4_CONVERT_STRATEGY, NULL, "ddp", "apex_amp:O3", "ddp",
     "before[strategy.wrap]=precision.convert_model\n", VERDICT, .with = "E-PLAN-CYCLE"},
    {"4 convert create", ORDO_CLAUSE_4_CONVERT_CREATE, NULL, "none", "apex_amp:O3", "apex_amp",
     "after[precision.convert_model]=optimizer.create\n", VERDICT, .with = "E-PLAN-CYCLE"},
    {"4 convert wrap_optimizer", ORDO_CLAUSE_4_CONVERT_WRAP, NULL, "none", "apex_amp:O2", .what = WHY,
     .from = "precision.convert_model(apex_amp)", .to = "precision.wrap_optimizer(apex_amp)", .with = "ordering rule 4"},
    {"4 partition create", ORDO_CLAUSE_4_PARTITION_CREATE, NULL, "tp", "none", "tp", "after[strategy.partition]=optimizer.create\n",
     VERDICT, .with = "E-PLAN-CYCLE"},
    {"4 partition strategy", ORDO_CLAUSE_4_PARTITION_STRATEGY, NULL, "tp+fsdp1", "none", "tp", "after[strategy.partition]=strategy.wrap\n",
     VERDICT, .with = "E-PLAN-CYCLE"},
    {"5 observe", ORDO_CLAUSE_5_OBSERVE, NULL, "ddp+fsdp2", "none", .what = WHY, .from = "strategy.prepare_joint(fsdp2)",
     .to = "strategy.wrap(ddp)", .with = "ordering rule 5"},
    {"5 one", ORDO_CLAUSE_5_ONE, NULL, "fsdp2", "none", "zero1", "", VERDICT, .with = "E-PLAN-AXIS E-PLAN-AXIS E-PLAN-REDUCER"},
    {"6 joint", ORDO_CLAUSE_6_JOINT, NULL, "watch+fsdp2", "none", .what = VERDICT, .with = "E-PLAN-CYCLE"},
    {"6 optimizer", ORDO_CLAUSE_6_OPTIMIZER, NULL, "zero1", "none", "zero1", "before[strategy.prepare_optimizer]=optimizer.create\n",
     VERDICT, .with = "E-PLAN-CYCLE"},
    {"7 wrap", ORDO_CLAUSE_7_WRAP, NULL, "ddp+fsdp2", "none", "ddp", "after[strategy.wrap]=weights.load_sharded\n", VERDICT,
     .with = "E-PLAN-CYCLE"},
    {"7 replace", ORDO_CLAUSE_7_REPLACE, NULL, "fsdp2", "none", "fsdp2", "after[strategy.prepare_joint]=weights.load_sharded\n", VERDICT,
     .with = "E-PLAN-CYCLE"},
    {"8 create", ORDO_CLAUSE_8_CREATE, NULL, "watch", "apex_amp:O2", .what = STEPS,
     .with = "strategy.wrap(watch) > optimizer.create(embedder) > precision.wrap_optimizer(apex_amp)"},
    {"8 replace", ORDO_CLAUSE_8_REPLACE, NULL, "fsdp1", "apex_amp:O2", .what = WHY, .from = "strategy.wrap(fsdp1)",
     .to = "precision.wrap_optimizer(apex_amp)", .with = "ordering rule 8"},
    {"8 prepare", ORDO_CLAUSE_8_PREPARE, NULL, "none", "apex_amp:O2", "prepare", "", WHY, .from = "strategy.prepare_optimizer(prepare)",
     .to = "precision.wrap_optimizer(apex_amp)", .with = "ordering rule 8"},
    {"8 sharded", ORDO_CLAUSE_8_SHARDED, NULL, "fsdp1", "apex_amp:O2", .what = WHY, .from = "weights.load_sharded(host)",
     .to = "precision.wrap_optimizer(apex_amp)", .with = "ordering rule 8"},
    {"9 touch", ORDO_CLAUSE_9_TOUCH, NULL, "ddp", "none", "ddp", "after[strategy.wrap]=scheduler.create\n", VERDICT,
     .with = "E-PLAN-CYCLE"},
    {"9 optimizer", ORDO_CLAUSE_9_OPTIMIZER, NULL, "ddp", "none", "ddp", "after[strategy.wrap]=restore.optimizer\n", VERDICT,
     .with = "E-PLAN-CYCLE", .resume = TRUE},
    {"9 precision", ORDO_CLAUSE_9_PRECISION, NULL, "none", "apex_amp:O2", "teststep",
     "after[strategy.wrap]=restore.precision\nbefore[strategy.wrap]=restore.optimizer\n", VERDICT, .with = "E-PLAN-CYCLE", .resume = TRUE},
    {"9 scheduler", ORDO_CLAUSE_9_SCHEDULER, NULL, "none", "apex_amp:O2", "teststep",
     "after[strategy.wrap]=restore.scheduler\nbefore[strategy.wrap]=restore.precision\n", VERDICT, .with = "E-PLAN-CYCLE", .resume = TRUE},
    {"9 scheduler, no precision", ORDO_CLAUSE_9_SCHEDULER, NULL, "none", "none", "teststep",
     "after[strategy.wrap]=restore.scheduler\nbefore[strategy.wrap]=restore.optimizer\n", VERDICT, .with = "E-PLAN-CYCLE", .resume = TRUE},
    {"9 data", ORDO_CLAUSE_9_DATA, NULL, "none", "none", "teststep",
     "after[strategy.wrap]=restore.data\nbefore[strategy.wrap]=restore.scheduler\n", VERDICT, .with = "E-PLAN-CYCLE", .resume = TRUE},
    {"9 rng", ORDO_CLAUSE_9_RNG, NULL, "none", "none", "teststep", "after[strategy.wrap]=restore.rng\nbefore[strategy.wrap]=restore.data\n",
     VERDICT, .with = "E-PLAN-CYCLE", .resume = TRUE},
    {"9 only", ORDO_CLAUSE_9_ONLY, NULL, "none", "none", .what = STEPS, .with = "restore.optimizer(host) > restore.scheduler(host)",
     .resume = TRUE},
    {"10 axis", ORDO_CLAUSE_10_AXIS, NULL, "ddp", "none", "passive", "", VERDICT, .with = "E-PLAN-AXIS"},
    {"10 no reducer", ORDO_CLAUSE_10_NO_REDUCER, NULL, "passive", "none", .what = VERDICT, .with = "E-PLAN-REDUCER"},
    {"10 two reducers", ORDO_CLAUSE_10_TWO_REDUCERS, NULL, "ddp", "none", "watch", "", VERDICT, .with = "E-PLAN-AXIS E-PLAN-REDUCER"},
    {"10 precision", ORDO_CLAUSE_10_PRECISION, NULL, "none", "apex_amp:O2", "scaler", "", VERDICT, .with = "E-PLAN-PRECISION-OWNER"},
    {"11 hard", ORDO_CLAUSE_11_HARD, NULL, "none", "none", "teststep", "before[strategy.wrap]=optimizer.create\n", WHY,
     .from = "strategy.wrap(teststep)", .to = "optimizer.create(embedder)",
     .with = "before[strategy.wrap]=optimizer.create (teststep manifest line 8)"},
    {"11 soft", ORDO_CLAUSE_11_SOFT, NULL, "none", "none", "teststep", "before[strategy.wrap]=?optimizer.create\n", WHY,
     .from = "strategy.wrap(teststep)", .to = "optimizer.create(embedder)",
     .with = "before[strategy.wrap]=?optimizer.create (teststep manifest line 8)"},
    {"11 requires", ORDO_CLAUSE_11_REQUIRES, NULL, "none", "none", "picky", "", VERDICT, .with = "E-PLAN-REQUIRES"},
    {"11 conflicts", ORDO_CLAUSE_11_CONFLICTS, NULL, "none", "apex_amp:O2", "picky", "provides=masters\nconflicts=apex_amp\n", VERDICT,
     .with = "E-PLAN-CONFLICTS"},
    {"S", ORDO_CLAUSE_S, NULL, "watch", "none", .what = WHY, .from = "strategy.wrap(watch)", .to = "optimizer.create(embedder)",
     .with = "flag setup_optimizers_in_pre_dispatch (watch manifest line 7)"},
    {"X create", ORDO_CLAUSE_X_CREATE, NULL, "none", "jointx", .what = WHY, .from = "optimizer.create(embedder)",
     .to = "precision.initialize(jointx)", .with = X_LINE},
    {"X strategy", ORDO_CLAUSE_X_STRATEGY, NULL, "ddp", "jointx", .what = WHY, .from = "precision.initialize(jointx)",
     .to = "strategy.wrap(ddp)", .with = X_LINE},
    {"X accepts", ORDO_CLAUSE_X_ACCEPTS, NULL, "tp", "jointx_tp", .what = VERDICT, .with = "plan"},
    {"X prepare", ORDO_CLAUSE_X_PREPARE, NULL, "zero1", "jointx", .what = VERDICT, .with = "E-PLAN-CYCLE"},
    {"X sharded", ORDO_CLAUSE_X_SHARDED, NULL, "watch_restores", "jointx", .what = VERDICT, .with = "E-PLAN-CYCLE"},
    {"X names, convert", ORDO_CLAUSE_X_NAMES, NULL, "none", "jointx", "teststep", "before[strategy.wrap]=precision.convert_model\n",
     VERDICT, .with = "E-PLAN-CYCLE"},
    {"X names, wrap_optimizer", ORDO_CLAUSE_X_NAMES, NULL, "none", "jointx", "teststep", "before[strategy.wrap]=precision.wrap_optimizer\n",
     VERDICT, .with = "E-PLAN-CYCLE"},
    {"restores_after_wrap", ORDO_CLAUSE_RESTORES, NULL, "fsdp2", "none", .what = STEPS,
     .with = "model.build(embedder) > optimizer.create(embedder)"},
    {"owns_precision", ORDO_CLAUSE_OWNS, NULL, "fsdp2", "apex_amp:O2", "fsdp2", "flags=owns_precision\n", VERDICT,
     .with = "E-PLAN-PRECISION-OWNER"},
    {"eval", ORDO_CLAUSE_EVAL, NULL, "fsdp2", "jointx", .what = VERDICT, .with = "plan", .eval = TRUE},
    {"frozen", ORDO_CLAUSE_FROZEN, NULL, "ddp", "none", .what = STEPS, .with = "weights.sync(host) > verify(host)", .frozen = TRUE},
    {"events of shards", ORDO_CLAUSE_EVENT_SHARDS, NULL, "fsdp2+ddp", "none", .what = EVENTS,
     .with = "step.reduce(fsdp2) > step.reduce(ddp)"},
    {"events in a chain", ORDO_CLAUSE_EVENT_CHAIN, NULL, "ddp", "apex_amp:O2", .what = EVENTS,
     .with = "step.reduce(ddp) > step.divide > step.unscale(apex_amp) > step.overflow_vote > step.grad_norm > step.clip > step.optimizer > "
             "step.masters_to_model(apex_amp) > step.scheduler"},
    {"events declared", ORDO_CLAUSE_EVENT_CHAIN, NULL, "zero1", "none", .what = EVENTS,
     .with = "step.reduce(zero1) > step.divide > step.grad_norm > step.clip > step.optimizer > step.post_step(zero1) > step.scheduler"},
    {"events of precision", ORDO_CLAUSE_EVENT_PRECISION, NULL, "none", "apex_amp:O3", .what = EVENTS,
     .with = "step.divide > step.grad_norm > step.clip > step.optimizer > step.scheduler"},
};

static char *codes(const ordo_resolution *r)
{
  GString *text = g_string_new(r->legal ? "plan" : NULL);
  for (guint i = 0; i < r->findings->len; i++)
    g_string_append_printf(text, "%s%s", text->len ? " " : "", ((const ordo_finding *)g_ptr_array_index(r->findings, i))->code);
  return g_string_free(text, FALSE);
}

static char *events(const session *s, const ordo_resolution *r)
{
  GString *text = g_string_new(NULL);
  for (guint i = 0; i < r->events->len; i++) {
    const ordo_event_node *event = &g_array_index(r->events, ordo_event_node, i);
    const ordo_decl *decl = event->provider >= 0 ? g_ptr_array_index(s->decls, (guint)event->provider) : NULL;
    g_string_append_printf(text, "%s%s%s%s%s", i ? " > " : "", ordo_event_name(event->event), decl ? "(" : "", decl ? decl->id : "",
                           decl ? ")" : "");
  }
  return g_string_free(text, FALSE);
}

static char *observe(const guard *g, guint64 off)
{
  g_autoptr(session) s = session_new();
  s->off = off;
  s->resume = g->resume;
  s->eval = g->eval;
  s->trained[0] = !g->frozen;
  s->extra_for = g->plugin;
  s->extra = g->extra;
  session_add_set(s, g->strategies, g->precision); /* a plugin that is not in the set takes the axis of the one before */
  ordo_resolution *r = session_resolve(s);
  char *text = g->what == VERDICT  ? codes(r)
               : g->what == STEPS  ? resolution_ids(r)
               : g->what == EVENTS ? events(s, r)
                                   : resolution_why(r, g->from, g->to);
  ordo_resolution_free(r);
  return text;
}

static guint64 removed(const guard *g)
{
  guint64 off = 0;
  for (guint clause = 0; clause < ORDO_N_CLAUSES; clause++) {
    if (clause == g->clause || (g->rule && strcmp(ordo_clause_rule(clause), g->rule) == 0))
      off |= (guint64)1 << clause;
  }
  return off;
}

static gboolean shows(const guard *g, const char *seen)
{
  return g->what == VERDICT || g->what == WHY ? strcmp(seen, g->with) == 0 : strstr(seen, g->with) != NULL;
}

static void test_guards(void **state)
{
  int n_bad = 0;
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(guards); i++) {
    g_autofree char *with = observe(&guards[i], 0);
    g_autofree char *without = observe(&guards[i], removed(&guards[i]));
    if (!shows(&guards[i], with) || shows(&guards[i], without)) {
      print_message("%s\n  expected %s\n  with     %s\n  without  %s\n", guards[i].name, guards[i].with, with, without);
      n_bad++;
    }
  }
  assert_int_equal(n_bad, 0);
}

static void test_every_clause_is_guarded(void **state)
{
  (void)state;
  for (guint clause = 0; clause < ORDO_N_CLAUSES; clause++) {
    gboolean found = FALSE;
    for (size_t i = 0; i < G_N_ELEMENTS(guards); i++)
      found = found || guards[i].clause == clause;
    if (!found)
      fail_msg("no guard for: %s, %s", ordo_clause_rule(clause), ordo_clause_what(clause));
  }
}

/* Owns_precision and levels: O0 converts nothing, so it is legal beside a strategy that casts by itself. */
static void test_owner_by_level(void **state)
{
  (void)state;
  for (int level = 0; level <= 2; level += 2) {
    g_autoptr(session) s = session_new();
    session_add(s, FAKE_FSDP2, NULL, "param_dtype=bf16", 2);
    session_add(s, FAKE_APEX_AMP, NULL, level ? "O2" : "O0", 0);
    ordo_resolution *r = session_resolve(s);
    assert_int_equal(r->legal, level == 0);
    if (level) {
      const ordo_finding *finding = g_ptr_array_index(r->findings, 0);
      assert_string_equal(finding->code, "E-PLAN-PRECISION-OWNER");
      assert_non_null(strstr(finding->text, "fsdp2"));
      assert_non_null(strstr(finding->text, "apex_amp"));
      assert_non_null(strstr(finding->where, "fsdp2 manifest line 8"));
    }
    ordo_resolution_free(r);
  }
}

/* X between create and sync: the edge sync -> create that the flag speaks of is that of rule 3, drawn once. */
static void test_joint_between_create_and_sync(void **state)
{
  (void)state;
  for (int without = 0; without < 2; without++) {
    g_autoptr(session) s = session_new();
    ordo_decl *decl = NULL;
    session_add_set(s, "none", "jointx");
    decl = session_add(s, FAKE_TESTSTEP, "after[strategy.wrap]=optimizer.create\nbefore[strategy.wrap]=weights.sync\n", NULL, 0);
    assert_int_equal(decl->lines->len, 2);
    s->off = without ? (guint64)1 << ORDO_CLAUSE_3_CREATE | (guint64)1 << ORDO_CLAUSE_3_STRATEGY | (guint64)1 << ORDO_CLAUSE_3_CONVERT |
                           (guint64)1 << ORDO_CLAUSE_X_STRATEGY
                     : 0;
    ordo_resolution *r = session_resolve(s);
    assert_int_equal(r->legal, without);
    ordo_resolution_free(r);
  }
}

/* Flags that say nothing about the order change nothing. */
static void test_flags_without_effect(void **state)
{
  static const char *const lines[] = {"flags=needs_identical_data\n", "flags=handles_gradient_accumulation\n", "flags=supports_no_sync\n",
                                      "flags=replicas_diverge\n", "flags=self_sharded\n"};
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(lines); i++) {
    char *orders[2] = {NULL, NULL};
    for (int with = 0; with < 2; with++) {
      g_autoptr(session) s = session_new();
      session_add(s, FAKE_WATCH, with ? lines[i] : NULL, NULL, 2);
      session_add(s, FAKE_APEX_AMP, NULL, "O2", 0);
      ordo_resolution *r = session_resolve(s);
      orders[with] = resolution_ids(r);
      ordo_resolution_free(r);
    }
    assert_string_equal(orders[0], orders[1]);
    g_free(orders[0]);
    g_free(orders[1]);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_guards),
      cmocka_unit_test(test_every_clause_is_guarded),
      cmocka_unit_test(test_owner_by_level),
      cmocka_unit_test(test_joint_between_create_and_sync),
      cmocka_unit_test(test_flags_without_effect),
  };
  return cmocka_run_group_tests_name("guards", tests, NULL, NULL);
}
