/* test_resolve.c - sessions: origins of every link, evaluation, several models, soft lines, cycles, findings together, fixes, shuffles. */
#include "session.h"

/* ---- origins ---- */

typedef struct origin {
  const char *strategies, *precision, *from, *to, *why;
} origin;

#define S_FSDP1 "flag setup_optimizers_in_pre_dispatch (fsdp1 manifest line 7)"

static const origin origins[] = {
    {"none", "none", "mesh.init(host)", "model.build(embedder)", "ordering rule 1"},
    {"none", "none", "model.build(embedder)", "weights.load(embedder)", "ordering rule 1"},
    {"none", "none", "weights.load(embedder)", "weights.sync(host)", "ordering rule 3"},
    {"none", "none", "weights.sync(host)", "optimizer.create(embedder)", "ordering rule 3"},
    {"none", "none", "optimizer.create(embedder)", "scheduler.create(embedder)", "ordering rule 9"},
    {"none", "none", "scheduler.create(embedder)", "restore.optimizer(host)", "ordering rule 9"},
    {"none", "none", "restore.optimizer(host)", "restore.scheduler(host)", "ordering rule 9"},
    {"none", "none", "restore.scheduler(host)", "restore.data(host)", "ordering rule 9"},
    {"none", "none", "restore.data(host)", "restore.rng(host)", "ordering rule 9"},
    {"none", "none", "restore.rng(host)", "verify(host)", "ordering rule 1"},
    {"none", "apex_amp:O2", "weights.sync(host)", "precision.convert_model(apex_amp)", "ordering rule 3"},
    {"none", "apex_amp:O2", "precision.convert_model(apex_amp)", "optimizer.create(embedder)", "ordering rule 4"},
    {"none", "apex_amp:O2", "precision.convert_model(apex_amp)", "precision.wrap_optimizer(apex_amp)", "ordering rule 4"},
    {"none", "apex_amp:O2", "optimizer.create(embedder)", "precision.wrap_optimizer(apex_amp)", "ordering rule 8"},
    {"none", "apex_amp:O2", "precision.wrap_optimizer(apex_amp)", "scheduler.create(embedder)", "ordering rule 9"},
    {"none", "apex_amp:O2", "restore.optimizer(host)", "restore.precision(host)", "ordering rule 9"},
    {"none", "apex_amp:O2", "restore.precision(host)", "restore.scheduler(host)", "ordering rule 9"},
    {"none", "jointx", "weights.sync(host)", "precision.initialize(jointx)", "ordering rule 3"},
    {"none", "jointx", "optimizer.create(embedder)", "precision.initialize(jointx)", "flag initializes_jointly (jointx manifest line 6)"},
    {"ddp", "none", "weights.sync(host)", "strategy.wrap(ddp)", "ordering rule 3"},
    {"ddp", "none", "optimizer.create(embedder)", "strategy.wrap(ddp)", "unordered"},
    {"ddp", "none", "strategy.wrap(ddp)", "scheduler.create(embedder)", "ordering rule 9"},
    {"ddp", "apex_amp:O2", "precision.convert_model(apex_amp)", "strategy.wrap(ddp)", "ordering rule 4"},
    {"ddp", "apex_amp:O2", "precision.wrap_optimizer(apex_amp)", "strategy.wrap(ddp)", "unordered"},
    {"ddp", "jointx", "precision.initialize(jointx)", "strategy.wrap(ddp)", "flag initializes_jointly (jointx manifest line 6)"},
    {"fsdp1", "none", "strategy.wrap(fsdp1)", "optimizer.create(embedder)", S_FSDP1},
    {"fsdp1", "none", "strategy.wrap(fsdp1)", "weights.load_sharded(host)", "ordering rule 7"},
    {"fsdp1", "apex_amp:O2", "precision.convert_model(apex_amp)", "strategy.wrap(fsdp1)", "ordering rule 4"},
    {"fsdp1", "apex_amp:O2", "strategy.wrap(fsdp1)", "precision.wrap_optimizer(apex_amp)", "ordering rule 8"},
    {"fsdp1", "apex_amp:O2", "weights.load_sharded(host)", "precision.wrap_optimizer(apex_amp)", "ordering rule 8"},
    {"fsdp1", "jointx", "strategy.wrap(fsdp1)", "optimizer.create(embedder)", S_FSDP1},
    {"fsdp1", "jointx", "weights.load_sharded(host)", "precision.initialize(jointx)", "flag initializes_jointly (jointx manifest line 6)"},
    {"fsdp2", "none", "optimizer.create(embedder)", "strategy.prepare_joint(fsdp2)", "ordering rule 6"},
    {"fsdp2", "none", "strategy.prepare_joint(fsdp2)", "weights.load_sharded(host)", "ordering rule 7"},
    {"fsdp2", "apex_amp:O2", "strategy.prepare_joint(fsdp2)", "precision.wrap_optimizer(apex_amp)", "ordering rule 8"},
    {"fsdp2", "jointx", "strategy.prepare_joint(fsdp2)", "precision.initialize(jointx)",
     "flag initializes_jointly (jointx manifest line 6)"},
    {"fsdp2", "jointx", "precision.initialize(jointx)", "strategy.prepare_joint(fsdp2)",
     "flag initializes_jointly (jointx manifest line 6)"},
    {"tp", "none", "weights.sync(host)", "strategy.partition(tp)", "ordering rule 3"},
    {"tp", "none", "strategy.partition(tp)", "optimizer.create(embedder)", "ordering rule 4"},
    {"tp", "apex_amp:O2", "precision.convert_model(apex_amp)", "strategy.partition(tp)", "ordering rule 4"},
    {"tp", "apex_amp:O2", "strategy.partition(tp)", "precision.wrap_optimizer(apex_amp)", "ordering rule 8"},
    {"tp+fsdp2", "none", "strategy.partition(tp)", "strategy.prepare_joint(fsdp2)", "ordering rule 4"},
    {"tp+fsdp2", "none", "strategy.partition(tp)", "weights.load_sharded(host)", "ordering rule 7"},
    {"tp+ddp", "none", "strategy.partition(tp)", "strategy.wrap(ddp)", "ordering rule 4"},
    {"tp+fsdp1", "none", "strategy.partition(tp)", "strategy.wrap(fsdp1)", "ordering rule 4"},
    {"ddp+fsdp2", "none", "strategy.prepare_joint(fsdp2)", "strategy.wrap(ddp)", "ordering rule 5"},
    {"ddp+fsdp2", "none", "strategy.wrap(ddp)", "weights.load_sharded(host)", "ordering rule 7"},
};

static void test_origins(void **state)
{
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(origins); i++) {
    g_autoptr(session) s = session_new();
    s->resume = TRUE;
    session_add_set(s, origins[i].strategies, origins[i].precision);
    ordo_resolution *r = session_resolve(s);
    g_autofree char *why = resolution_why(r, origins[i].from, origins[i].to);
    if (strcmp(why, origins[i].why) != 0)
      fail_msg("%s with %s: %s -> %s\n  expected %s\n  got      %s", origins[i].strategies, origins[i].precision, origins[i].from,
               origins[i].to, origins[i].why, why);
    ordo_resolution_free(r);
  }
}

/* ---- sessions ---- */

static void expect(session *s, const char *ids)
{
  ordo_resolution *r = session_resolve(s);
  g_autofree char *actual = resolution_ids(r);
  assert_string_equal(actual, ids);
  ordo_resolution_free(r);
}

#define HEAD "mesh.init(host) > model.build(embedder) > "

static void test_evaluation_only(void **state)
{
  static const struct {
    const char *strategies, *precision, *ids;
  } cases[] = {
      {"none", "none", HEAD "weights.load(embedder) > weights.sync(host) > verify(host)"},
      {"ddp", "none", HEAD "weights.load(embedder) > weights.sync(host) > strategy.wrap(ddp) > verify(host)"},
      {"fsdp1", "apex_amp:O2", HEAD "precision.convert_model(apex_amp) > strategy.wrap(fsdp1) > weights.load_sharded(host) > verify(host)"},
      {"fsdp2", "none", HEAD "strategy.prepare_joint(fsdp2) > weights.load_sharded(host) > verify(host)"},
      {"fsdp2", "jointx", HEAD "precision.initialize(jointx) > strategy.prepare_joint(fsdp2) > weights.load_sharded(host) > verify(host)"},
      {"tp", "jointx",
       HEAD "weights.load(embedder) > weights.sync(host) > precision.initialize(jointx) > strategy.partition(tp) > verify(host)"},
      {"fsdp1", "jointx", HEAD "precision.initialize(jointx) > strategy.wrap(fsdp1) > weights.load_sharded(host) > verify(host)"},
      {"zero1", "scaler", HEAD "weights.load(embedder) > weights.sync(host) > verify(host)"},
      {"passive", "none",
       HEAD "weights.load(embedder) > weights.sync(host) > strategy.wrap(passive) > verify(host)"}, /* nothing to reduce */
  };
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(session) s = session_new();
    s->eval = TRUE;
    session_add_set(s, cases[i].strategies, cases[i].precision);
    expect(s, cases[i].ids);
  }
}

/* Resuming an evaluation restores position and random numbers, and nothing that only training has. */
static void test_evaluation_resumed(void **state)
{
  g_autoptr(session) s = session_new();
  (void)state;
  s->eval = s->resume = TRUE;
  session_add_set(s, "none", "apex_amp:O2");
  expect(s, HEAD "weights.load(embedder) > weights.sync(host) > precision.convert_model(apex_amp) > restore.data(host) > restore.rng(host) "
                 "> verify(host)");
}

/* What stays refused without an optimizer. */
static void test_illegal_evaluation(void **state)
{
  (void)state;
  for (int i = 0; i < 4; i++) {
    g_autoptr(session) s = session_new();
    s->eval = TRUE;
    if (i == 0)
      session_add(s, FAKE_FSDP2, "flags=owns_precision\n", NULL, 2);
    session_add_set(s, i == 1 ? "ddp" : "none", i == 2 ? "apex_amp:O2" : "jointx");
    if (i == 1)
      session_add(s, FAKE_PASSIVE, NULL, NULL, 0); /* the same axis */
    if (i == 2)
      session_add(s, FAKE_TESTSTEP, "after[strategy.wrap]=verify\n", NULL, 0);
    if (i == 3)
      session_add(s, FAKE_PICKY, NULL, NULL, 0);
    ordo_resolution *r = session_resolve(s);
    static const char *const expected[] = {"E-PLAN-PRECISION-OWNER", "E-PLAN-AXIS", "E-PLAN-CYCLE", "E-PLAN-REQUIRES"};
    assert_false(r->legal);
    assert_true(resolution_has(r, expected[i]));
    assert_int_equal(r->findings->len, 1);
    ordo_resolution_free(r);
  }
}

static void test_frozen_model(void **state)
{
  g_autoptr(session) s = session_new();
  (void)state;
  s->n_models = 2;
  s->trained[0] = TRUE;
  s->trained[1] = FALSE;
  s->resume = TRUE;
  session_add_set(s, "fsdp2", "jointx_tp");
  session_add(s, FAKE_DDP, NULL, NULL, 2);
  ordo_resolution *r = session_resolve(s);
  assert_false(r->legal); /* the trained model has the cycle of fsdp2 and X; the frozen one does not */
  assert_int_equal(r->findings->len, 1);
  ordo_resolution_free(r);
  g_autoptr(session) t = session_new();
  t->n_models = 2;
  t->trained[0] = TRUE;
  t->trained[1] = FALSE;
  t->resume = TRUE;
  session_add_set(t, "ddp+fsdp2", "apex_amp:O2");
  expect(t, HEAD
         "model.build(embedder)@ref > precision.convert_model(apex_amp) > precision.convert_model(apex_amp)@ref > "
         "optimizer.create(embedder) > "
         "strategy.prepare_joint(fsdp2) > strategy.wrap(ddp) > strategy.prepare_joint(fsdp2)@ref > weights.load_sharded(host) > "
         "precision.wrap_optimizer(apex_amp) > weights.load_sharded(host)@ref > scheduler.create(embedder) > restore.optimizer(host) > "
         "restore.precision(host) > restore.scheduler(host) > restore.data(host) > restore.rng(host) > verify(host)");
}

static void test_two_trained_models(void **state)
{
  g_autoptr(session) s = session_new();
  (void)state;
  s->n_models = 2;
  s->trained[1] = TRUE;
  session_add_set(s, "fsdp1", "jointx");
  ordo_resolution *r = session_resolve(s);
  assert_int_equal(r->findings->len, 2); /* one cycle for each model, both told */
  g_autofree char *cycle = resolution_cycle(r);
  assert_string_equal(cycle,
                      "optimizer.create(embedder) > precision.initialize(jointx) > strategy.wrap(fsdp1) > optimizer.create(embedder)");
  assert_non_null(strstr(((ordo_finding *)g_ptr_array_index(r->findings, 1))->text, "strategy.wrap(fsdp1)@ref"));
  ordo_resolution_free(r);
}

static void test_phases(void **state)
{
  g_autoptr(session) s = session_new();
  (void)state;
  session_add_set(s, "fsdp1", "apex_amp:O2");
  ordo_resolution *r = session_resolve(s);
  for (guint i = 0; i < r->nodes->len; i++) {
    const ordo_node *node = &g_array_index(r->nodes, ordo_node, i);
    gboolean moved = node->step == ORDO_STEP_OPTIMIZER_CREATE || node->step == ORDO_STEP_WRAP_OPTIMIZER;
    assert_int_equal(node->phase != node->default_phase, moved);
    assert_in_range(node->phase, ORDO_PHASE_SETUP, ORDO_PHASE_PRE_DISPATCH);
    assert_true(i == 0 || node->phase >= g_array_index(r->nodes, ordo_node, i - 1).phase);
  }
  ordo_resolution_free(r);
}

/* ---- lines ---- */

static void test_soft_lines(void **state)
{
  g_autoptr(session) s = session_new();
  (void)state;
  /* in the order of ids and texts: the first fits, the second would close a cycle with it, the third names nobody */
  session_add(s, FAKE_TESTSTEP, "before[strategy.wrap]=?optimizer.create\nafter[strategy.wrap]=?nobody.here\n", NULL, 0);
  session_add(s, FAKE_WATCH, "before[strategy.wrap]=?teststep\n", NULL, 2);
  session_add(s, FAKE_LORA, "after[model.inject]=?optimizer.create\n", NULL, 0);
  ordo_resolution *r = session_resolve(s);
  assert_true(r->legal);
  g_autofree char *why = resolution_why(r, "strategy.wrap(teststep)", "optimizer.create(embedder)");
  assert_string_equal(why, "before[strategy.wrap]=?optimizer.create (teststep manifest line 8)");
  g_autofree char *watch = resolution_why(r, "strategy.wrap(watch)", "strategy.wrap(teststep)");
  assert_string_equal(watch, "before[strategy.wrap]=?teststep (watch manifest line 10)");
  assert_int_equal(r->skipped->len, 2);
  assert_string_equal(g_ptr_array_index(r->skipped, 0),
                      "after[model.inject]=?optimizer.create (lora manifest line 9): soft, left out because it would close a cycle");
  assert_string_equal(g_ptr_array_index(r->skipped, 1),
                      "after[strategy.wrap]=?nobody.here (teststep manifest line 9): nobody selected provides nobody.here");
  ordo_resolution_free(r);
}

/* Two soft lines that exclude each other: the one whose provider id and text sort first wins, in whatever order they are given. */
static void test_soft_lines_in_order(void **state)
{
  (void)state;
  for (int swap = 0; swap < 2; swap++) {
    g_autoptr(session) s = session_new();
    if (swap)
      session_add(s, FAKE_WATCH, "before[strategy.wrap]=?teststep\n", NULL, 2);
    session_add(s, FAKE_TESTSTEP, "before[strategy.wrap]=?watch\n", NULL, 0);
    if (!swap)
      session_add(s, FAKE_WATCH, "before[strategy.wrap]=?teststep\n", NULL, 2);
    ordo_resolution *r = session_resolve(s);
    g_autofree char *why = resolution_why(r, "strategy.wrap(teststep)", "strategy.wrap(watch)");
    assert_true(r->legal);
    assert_string_equal(why, "before[strategy.wrap]=?watch (teststep manifest line 8)");
    assert_int_equal(r->skipped->len, 1);
    assert_non_null(strstr(g_ptr_array_index(r->skipped, 0), "watch manifest line 10"));
    ordo_resolution_free(r);
  }
}

static void test_capability_lines(void **state)
{
  g_autoptr(session) s = session_new();
  (void)state;
  session_add_set(s, "ddp", "apex_amp:O2");
  session_add(s, FAKE_TESTSTEP, "after[strategy.wrap]=apex_amp\n", NULL, 0); /* every node of the plugin */
  ordo_resolution *r = session_resolve(s);
  assert_true(r->legal);
  g_autofree char *first = resolution_why(r, "precision.wrap_optimizer(apex_amp)", "strategy.wrap(teststep)");
  assert_string_equal(first, "after[strategy.wrap]=apex_amp (teststep manifest line 8)");
  ordo_resolution_free(r);
}

static void test_events_are_no_targets(void **state)
{
  g_autoptr(session) s = session_new();
  (void)state;
  session_add_set(s, "ddp", "none");
  session_add(s, FAKE_TESTSTEP, "before[strategy.wrap]=step.reduce\n", NULL, 0);
  ordo_resolution *r = session_resolve(s);
  assert_true(r->legal);
  assert_string_equal(
      g_ptr_array_index(r->skipped, 0),
      "before[strategy.wrap]=step.reduce (teststep manifest line 8): holds anyway, every step of the plan runs before step.reduce");
  ordo_resolution_free(r);
}

/* ---- conflicts ---- */

static void test_all_findings_together(void **state)
{
  g_autoptr(session) s = session_new();
  (void)state;
  session_add(s, FAKE_FSDP2, "flags=owns_precision\n", NULL, 2);
  session_add(s, FAKE_ZERO1, NULL, NULL, 0);
  session_add(s, FAKE_PASSIVE, NULL, NULL, 2);
  session_add(s, FAKE_PICKY, NULL, NULL, 0);
  session_add(s, FAKE_LORA, NULL, NULL, 0);
  session_add_set(s, "none", "jointx");
  session_add_set(s, "none", "scaler");
  ordo_resolution *r = session_resolve(s);
  static const char *const codes[] = {"E-PLAN-CYCLE",   "E-PLAN-PRECISION-OWNER", "E-PLAN-AXIS",
                                      "E-PLAN-REDUCER", "E-PLAN-REQUIRES",        "E-PLAN-CONFLICTS"};
  for (size_t i = 0; i < G_N_ELEMENTS(codes); i++)
    assert_true(resolution_has(r, codes[i]));
  ordo_resolution_free(r);
}

/* Two that offer one capability and exclude others that do: one finding, which either of them may bring. */
static void test_mutual_conflict_is_found_once(void **state)
{
  g_autoptr(session) s = session_new();
  (void)state;
  session_add_set(s, "fsdp1+fsdp2", "none");
  ordo_resolution *r = session_resolve(s);
  assert_int_equal(r->findings->len, 1);
  assert_true(resolution_has(r, "E-PLAN-CONFLICTS"));
  ordo_resolution_free(r);
}

static void test_fixes(void **state)
{
  static const struct {
    const char *strategies, *precision, *plugin, *extra, *fix;
  } cases[] = {
      {"tp", "jointx", NULL, NULL, "if jointx can do it, add the flag accepts_partitioned to its manifest"},
      {"fsdp1", "jointx", NULL, NULL, "leave out the precision plugin jointx"},
      {"ddp", "none", "ddp", "after[strategy.wrap]=scheduler.create\n",
       "remove the line after[strategy.wrap]=scheduler.create (ddp manifest line 12), or make it soft with ?"},
      {"ddp", "none", "ddp", "before[strategy.wrap]=weights.load\n", "if ddp can do it, add the flag restores_after_wrap to its manifest"},
      {"watch+fsdp2", "none", NULL, NULL, "remove the flag setup_optimizers_in_pre_dispatch (watch manifest line 7) from watch"},
      {"none", "none", "picky", "", "leave out the strategy plugin picky"},
  };
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(session) s = session_new();
    s->extra_for = cases[i].plugin;
    s->extra = cases[i].extra;
    session_add_set(s, cases[i].strategies, cases[i].precision);
    ordo_resolution *r = session_resolve(s);
    gboolean found = g_ptr_array_find_with_equal_func(r->fixes, cases[i].fix, g_str_equal, NULL);
    for (guint k = 0; !found && k < r->fixes->len; k++)
      print_message("  offered: %s\n", (const char *)g_ptr_array_index(r->fixes, k));
    if (!found)
      fail_msg("%s with %s: not offered: %s", cases[i].strategies, cases[i].precision, cases[i].fix);
    ordo_resolution_free(r);
  }
}

/* Leaving fsdp1 out of a session whose data axis then has no reducer is no fix, and is not offered. */
static void test_fixes_that_do_not_work_are_not_offered(void **state)
{
  g_autoptr(session) s = session_new();
  (void)state;
  session_add_set(s, "fsdp1", "jointx");
  ordo_resolution *r = session_resolve(s);
  assert_int_equal(r->fixes->len, 1);
  assert_string_equal(g_ptr_array_index(r->fixes, 0), "leave out the precision plugin jointx");
  ordo_resolution_free(r);
}

static void test_offers_are_named(void **state)
{
  static const ordo_offer offers[] = {{"masters", "o2amp"}, {"masters", "thirdamp"}, {"other", "x"}};
  g_autoptr(session) s = session_new();
  ordo_resolve_input input;
  (void)state;
  session_add(s, FAKE_PICKY, NULL, NULL, 0);
  session_input(s, &input);
  input.offers = offers;
  input.n_offers = G_N_ELEMENTS(offers);
  ordo_resolution *r = ordo_resolve(&input);
  const ordo_finding *finding = g_ptr_array_index(r->findings, 0);
  assert_string_equal(finding->code, "E-PLAN-REQUIRES");
  assert_string_equal(finding->where, "picky manifest line 8");
  assert_string_equal(finding->next, "add one of these: o2amp, thirdamp");
  ordo_resolution_free(r);
}

/* ---- small sessions against all permutations ---- */

/* The documented order of the ready set, written down a second time: phase, place in the table (then axis and id; no two are equal here).
 */
static guint rank_of(const ordo_node *node)
{
  return node->phase * 100 + node->step;
}

static gboolean allowed(const ordo_resolution *r, const guint *order)
{
  guint position[8];
  for (guint i = 0; i < r->nodes->len; i++)
    position[order[i]] = i;
  for (guint i = 0; i < r->edges->len; i++) {
    const ordo_edge *edge = &g_array_index(r->edges, ordo_edge, i);
    if (position[edge->from] >= position[edge->to])
      return FALSE;
  }
  return TRUE;
}

static void permute(const ordo_resolution *r, guint *order, guint n, guint *best, gboolean *found)
{
  if (n < r->nodes->len) {
    for (guint i = 0; i < r->nodes->len; i++) {
      gboolean used = FALSE;
      for (guint k = 0; k < n; k++)
        used = used || order[k] == i;
      order[n] = i;
      if (!used)
        permute(r, order, n + 1, best, found);
    }
    return;
  }
  if (!allowed(r, order))
    return;
  for (guint i = 0; *found && i < n; i++) {
    guint mine = rank_of(&g_array_index(r->nodes, ordo_node, order[i])), theirs = rank_of(&g_array_index(r->nodes, ordo_node, best[i]));
    if (mine > theirs)
      return;
    if (mine < theirs)
      break;
  }
  memcpy(best, order, n * sizeof *best);
  *found = TRUE;
}

static void test_small_sessions(void **state)
{
  static const struct {
    const char *strategies, *precision;
    gboolean eval;
  } cases[] = {{"none", "none", FALSE},   {"fsdp1", "none", FALSE}, {"fsdp2", "none", FALSE},       {"ddp", "none", TRUE},
               {"fsdp2", "jointx", TRUE}, {"tp", "jointx", TRUE},   {"fsdp1", "apex_amp:O2", TRUE}, {"tp+fsdp2", "none", TRUE}};
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autoptr(session) s = session_new();
    guint order[8], best[8];
    gboolean found = FALSE;
    s->eval = cases[i].eval;
    session_add_set(s, cases[i].strategies, cases[i].precision);
    ordo_resolution *r = session_resolve(s);
    assert_true(r->legal && r->nodes->len <= 7);
    permute(r, order, 0, best, &found);
    assert_true(found);
    for (guint k = 0; k < r->nodes->len; k++)
      assert_int_equal(best[k], k); /* nodes are in order already */
    ordo_resolution_free(r);
  }
}

/* ---- the input is a set ---- */

static void shuffle_pointers(GRand *random, GPtrArray *array)
{
  for (guint i = array->len; i > 1; i--) {
    guint other = (guint)g_rand_int_range(random, 0, (gint32)i);
    gpointer swap = array->pdata[i - 1];
    array->pdata[i - 1] = array->pdata[other];
    array->pdata[other] = swap;
  }
}

#define SHUFFLES 10000

static void test_shuffles(void **state)
{
  GRand *random = g_rand_new_with_seed(10000);
  (void)state;
  for (int conflict = 0; conflict < 2; conflict++) {
    g_autoptr(session) s = session_new();
    s->resume = TRUE;
    session_add_set(s, "tp+ddp+fsdp2", conflict ? "jointx" : "apex_amp:O2");
    session_add(s, FAKE_LORA, "before[model.inject]=?ddp,?fsdp2\nafter[model.inject]=?ddp\n", NULL, 0);
    session_add(s, FAKE_TESTSTEP,
                "before[strategy.wrap]=?optimizer.create,?ddp,?tp\nafter[strategy.wrap]=?scheduler.create\nprovides=a,b\n", NULL, 0);
    session_add(s, FAKE_PICKY, "requires=zz,aa\nconflicts=tp\n", NULL, 0);
    if (!conflict)
      g_ptr_array_remove_index(s->decls, s->decls->len - 1);
    ordo_resolution *first = session_resolve(s);
    g_autofree char *expected = resolution_text(s, first);
    assert_int_equal(first->legal, !conflict);
    ordo_resolution_free(first);
    for (int i = 0; i < (conflict ? SHUFFLES / 10 : SHUFFLES - SHUFFLES / 10); i++) { /* a conflict tries its fixes every time */
      shuffle_pointers(random, s->decls);
      for (guint k = 0; k < s->decls->len; k++) {
        ordo_decl *decl = g_ptr_array_index(s->decls, k);
        shuffle_pointers(random, decl->lines);
        shuffle_pointers(random, decl->requires);
        shuffle_pointers(random, decl->conflicts);
        shuffle_pointers(random, decl->provides);
      }
      ordo_resolution *r = session_resolve(s);
      g_autofree char *text = resolution_text(s, r);
      if (strcmp(text, expected) != 0)
        fail_msg("shuffle %d differs:\n%s\nexpected:\n%s", i, text, expected);
      ordo_resolution_free(r);
    }
  }
  g_rand_free(random);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_origins),
      cmocka_unit_test(test_evaluation_only),
      cmocka_unit_test(test_evaluation_resumed),
      cmocka_unit_test(test_illegal_evaluation),
      cmocka_unit_test(test_frozen_model),
      cmocka_unit_test(test_two_trained_models),
      cmocka_unit_test(test_phases),
      cmocka_unit_test(test_soft_lines),
      cmocka_unit_test(test_soft_lines_in_order),
      cmocka_unit_test(test_capability_lines),
      cmocka_unit_test(test_events_are_no_targets),
      cmocka_unit_test(test_all_findings_together),
      cmocka_unit_test(test_mutual_conflict_is_found_once),
      cmocka_unit_test(test_fixes),
      cmocka_unit_test(test_fixes_that_do_not_work_are_not_offered),
      cmocka_unit_test(test_offers_are_named),
      cmocka_unit_test(test_small_sessions),
      cmocka_unit_test(test_shuffles),
  };
  return cmocka_run_group_tests_name("resolve", tests, NULL, NULL);
}
