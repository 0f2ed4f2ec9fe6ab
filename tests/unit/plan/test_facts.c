/* test_facts.c - what other frameworks learned the hard way, row by row (C01 to C58 of the survey), as far as an order can say it.
 *
 * Rows about devices, compilation, activation checkpointing, dtypes inside a unit, handles and reruns are not about the order of a plan and
 * have their tests elsewhere. Rows 13, 14, 26, 28, 32 and 37 describe limits of other frameworks; here Ordo's outcome is asserted, and
 * docs/decisions/0002-other-frameworks-limits.md says why it differs. */
#include "session.h"

typedef enum { BEFORE, UNORDERED, LEGAL, CONFLICT, ABSENT, ONCE, EVENT_BEFORE } claim;

typedef struct fact {
  const char *row;
  const char *strategies, *precision, *plugin;
  claim what;
  const char *a, *b; /* node ids; step names for ABSENT and ONCE; event names for EVENT_BEFORE */
  gboolean resume, eval, frozen;
} fact;

#define CREATE "optimizer.create(embedder)"
#define SCHEDULER "scheduler.create(embedder)"
#define SHARDED "weights.load_sharded(host)"
#define MASTERS "precision.wrap_optimizer(apex_amp)"
#define CONVERT "precision.convert_model(apex_amp)"
#define JOINT "precision.initialize(jointx)"
#define INJECT "model.inject(lora)"

static const fact facts[] = {
    {"C01", "ddp", "none", "lora", BEFORE, "mesh.init(host)", INJECT, .eval = FALSE},
    {"C01", "tp+fsdp1", "none", NULL, BEFORE, "mesh.init(host)", "strategy.partition(tp)", .eval = FALSE},
    {"C01", "tp+fsdp1", "none", NULL, BEFORE, "mesh.init(host)", "strategy.wrap(fsdp1)", .eval = FALSE},
    {"C02", "none", "none", "lora", BEFORE, INJECT, CREATE, .eval = FALSE},
    {"C03", "tp+ddp", "none", "lora", BEFORE, INJECT, "strategy.partition(tp)", .eval = FALSE},
    {"C03", "tp+ddp", "none", "lora", BEFORE, INJECT, "strategy.wrap(ddp)", .eval = FALSE},
    {"C05", "fsdp1", "none", NULL, BEFORE, "strategy.wrap(fsdp1)", CREATE, .eval = FALSE},
    {"C06", "ddp", "none", NULL, UNORDERED, "strategy.wrap(ddp)", CREATE,
     .eval = FALSE}, /* a wrap that keeps the leaves leaves the order open */
    {"C07", "fsdp1", "none", NULL, BEFORE, "strategy.wrap(fsdp1)", CREATE, .eval = FALSE},
    {"C07", "fsdp1", "none", NULL, BEFORE, CREATE, "verify(host)", .eval = FALSE}, /* and every forward comes after verify */
    {"C08", "fsdp2", "none", NULL, BEFORE, CREATE, "strategy.prepare_joint(fsdp2)", .eval = FALSE},
    {"C08", "fsdp2", "none", NULL, ABSENT, "strategy.wrap", .eval = FALSE},
    {"C08", "fsdp2", "none", NULL, ABSENT, "strategy.prepare_optimizer", .eval = FALSE},
    {"C10", "fsdp2", "none", NULL, ONCE, "strategy.prepare_joint", .eval = FALSE},
    {"C11", "tp", "none", NULL, BEFORE, "strategy.partition(tp)", CREATE, .eval = FALSE},
    {"C12", "tp+fsdp1", "none", NULL, BEFORE, "strategy.partition(tp)", "strategy.wrap(fsdp1)", .eval = FALSE},
    {"C12", "tp+fsdp2", "none", NULL, BEFORE, "strategy.partition(tp)", "strategy.prepare_joint(fsdp2)", .eval = FALSE},
    {"C13", "tp", "none", NULL, LEGAL, .eval = FALSE},
    {"C13", "tp", "none", NULL, ABSENT, "strategy.wrap", .eval = FALSE}, /* nobody wraps what tp owns unless asked to */
    {"C14", "tp+ddp", "none", NULL, LEGAL, .eval = FALSE},
    {"C14", "tp+ddp", "none", NULL, BEFORE, "strategy.partition(tp)", "strategy.wrap(ddp)", .eval = FALSE},
    {"C16", "ddp", "none", "lora", BEFORE, INJECT, "strategy.wrap(ddp)", .eval = FALSE},
    {"C16", "ddp", "apex_amp:O2", NULL, BEFORE, CONVERT, "strategy.wrap(ddp)", .eval = FALSE},
    {"C17", "ddp", "none", NULL, ABSENT, "strategy.wrap", .frozen = TRUE},
    {"C18", "ddp", "none", NULL, BEFORE, "weights.load(embedder)", "strategy.wrap(ddp)", .eval = FALSE},
    {"C18", "ddp", "none", NULL, BEFORE, "weights.sync(host)", "strategy.wrap(ddp)", .eval = FALSE}, /* one rank's weights are enough */
    {"C19", "fsdp1", "none", NULL, BEFORE, "strategy.wrap(fsdp1)", SHARDED, .eval = FALSE},
    {"C19", "fsdp2", "none", NULL, BEFORE, "strategy.prepare_joint(fsdp2)", SHARDED, .eval = FALSE},
    {"C19", "fsdp2", "none", NULL, ABSENT, "weights.load", .eval = FALSE},
    {"C20", "fsdp2", "none", NULL, BEFORE, "strategy.prepare_joint(fsdp2)", SCHEDULER, .resume = TRUE},
    {"C20", "ddp", "none", NULL, BEFORE, CREATE, SCHEDULER, .resume = TRUE},
    {"C20", "ddp", "none", NULL, BEFORE, SCHEDULER, "restore.optimizer(host)", .resume = TRUE},
    {"C20", "ddp", "none", NULL, BEFORE, "restore.optimizer(host)", "restore.scheduler(host)", .resume = TRUE},
    {"C21", "ddp", "none", NULL, ONCE, "restore.optimizer", .resume = TRUE}, /* never the scheduler's state without the optimizer's */
    {"C21", "ddp", "none", NULL, ABSENT, "restore.scheduler", .resume = TRUE, .eval = TRUE},
    {"C23", "ddp", "none", NULL, BEFORE, "weights.load(embedder)", "restore.optimizer(host)", .resume = TRUE},
    {"C23", "fsdp1", "none", NULL, BEFORE, SHARDED, "restore.optimizer(host)", .resume = TRUE},
    {"C25", "none", "apex_amp:O2", NULL, BEFORE, CREATE, MASTERS, .eval = FALSE},
    {"C25", "none", "jointx", NULL, BEFORE, CREATE, JOINT, .eval = FALSE},
    {"C26", "ddp", "jointx", NULL, BEFORE, JOINT, "strategy.wrap(ddp)", .eval = FALSE},
    {"C26", "ddp", "apex_amp:O2", NULL, BEFORE, CONVERT, "strategy.wrap(ddp)", .eval = FALSE},
    {"C26", "ddp", "apex_amp:O2", NULL, UNORDERED, MASTERS, "strategy.wrap(ddp)",
     .eval = FALSE}, /* masters of leaves that the wrap keeps */
    {"C27", "ddp", "jointx", NULL, ONCE, "precision.initialize", .eval = FALSE},
    {"C27", "ddp", "apex_amp:O2", NULL, ONCE, "precision.wrap_optimizer", .eval = FALSE},
    {"C28", "zero1", "jointx", NULL, CONFLICT, .eval = FALSE},
    {"C28", "zero1", "apex_amp:O2", NULL, BEFORE, "strategy.prepare_optimizer(zero1)", MASTERS,
     .eval = FALSE}, /* nobody prepares it afterwards */
    {"C29", "ddp", "apex_amp:O2", NULL, BEFORE, MASTERS, SCHEDULER, .eval = FALSE},
    {"C29", "ddp", "jointx", NULL, BEFORE, JOINT, SCHEDULER, .eval = FALSE},
    {"C30", "ddp", "apex_amp:O2", NULL, BEFORE, MASTERS, "restore.optimizer(host)", .resume = TRUE},
    {"C30", "ddp", "apex_amp:O2", NULL, BEFORE, MASTERS, "restore.precision(host)", .resume = TRUE},
    {"C30", "ddp", "jointx", NULL, BEFORE, JOINT, "restore.precision(host)", .resume = TRUE},
    {"C31", "ddp", "apex_amp:O2", NULL, BEFORE, "weights.load(embedder)", MASTERS, .eval = FALSE},
    {"C31", "fsdp1", "apex_amp:O2", NULL, BEFORE, SHARDED, MASTERS, .eval = FALSE},
    {"C32", "fsdp1", "apex_amp:O2", NULL, LEGAL, .eval = FALSE},
    {"C32", "fsdp2", "apex_amp:O2", NULL, LEGAL, .eval = FALSE},
    {"C32", "tp", "apex_amp:O2", NULL, LEGAL, .eval = FALSE},
    {"C32", "zero1", "apex_amp:O2", NULL, LEGAL, .eval = FALSE},
    {"C32", "fsdp1", "jointx", NULL, CONFLICT, .eval = FALSE},
    {"C32", "fsdp2", "jointx", NULL, CONFLICT, .eval = FALSE},
    {"C32", "tp", "jointx", NULL, CONFLICT, .eval = FALSE},
    {"C36", "fsdp1", "apex_amp:O2", NULL, EVENT_BEFORE, "step.unscale", "step.overflow_vote", .eval = FALSE}, /* ranks agree on overflow */
    {"C36", "fsdp1", "apex_amp:O2", NULL, EVENT_BEFORE, "step.overflow_vote", "step.optimizer", .eval = FALSE},
    {"C37", "fsdp2", "scaler", NULL, LEGAL, .eval = FALSE},
    {"C37", "tp", "scaler", NULL, LEGAL, .eval = FALSE},
    {"C38", "fsdp2", "apex_amp:O2", NULL, BEFORE, "restore.optimizer(host)", "restore.precision(host)", .resume = TRUE},
    {"C39", "fsdp1", "apex_amp:O2", NULL, BEFORE, CONVERT, "strategy.wrap(fsdp1)", .eval = FALSE},
    {"C39", "fsdp2", "apex_amp:O2", NULL, BEFORE, CONVERT, "strategy.prepare_joint(fsdp2)", .eval = FALSE},
    {"C42", "fsdp1", "none", "lora", BEFORE, INJECT, "strategy.wrap(fsdp1)", .eval = FALSE},
    {"C48", "fsdp2", "none", NULL, BEFORE, "strategy.prepare_joint(fsdp2)", SHARDED, .eval = FALSE},
    {"C48", "fsdp2", "none", NULL, BEFORE, SHARDED, "verify(host)", .eval = FALSE},
    {"C49", "fsdp2", "none", NULL, BEFORE, "strategy.prepare_joint(fsdp2)", SCHEDULER, .eval = FALSE},
    {"C51", "ddp", "jointx", NULL, BEFORE, JOINT, "strategy.wrap(ddp)", .eval = FALSE},
    {"C51", "fsdp1", "jointx", NULL, CONFLICT, .eval = FALSE},
    {"C52", "tp+fsdp2", "apex_amp:O2", NULL, ONCE, "optimizer.create", .eval = FALSE},
    {"C52", "tp+fsdp2", "apex_amp:O2", NULL, ONCE, "scheduler.create", .eval = FALSE},
    {"C52", "tp+fsdp2", "apex_amp:O2", NULL, ONCE, "strategy.partition", .eval = FALSE},
    {"C55", "fsdp2", "none", NULL, ONCE, "strategy.prepare_joint", .eval = TRUE},
    {"C55", "fsdp2", "none", NULL, ABSENT, "optimizer.create", .eval = TRUE},
    {"C56", "fsdp1", "apex_amp:O2", NULL, EVENT_BEFORE, "step.unscale", "step.grad_norm", .eval = FALSE},
    {"C56", "fsdp1", "apex_amp:O2", NULL, EVENT_BEFORE, "step.clip", "step.optimizer", .eval = FALSE},
};

static guint count_steps(const ordo_resolution *r, const char *step)
{
  guint n = 0;
  for (guint i = 0; i < r->nodes->len; i++)
    n += strcmp(ordo_step_name(g_array_index(r->nodes, ordo_node, i).step), step) == 0;
  return n;
}

static int event_position(const ordo_resolution *r, const char *name)
{
  for (guint i = 0; i < r->events->len; i++) {
    if (strcmp(ordo_event_name(g_array_index(r->events, ordo_event_node, i).event), name) == 0)
      return (int)i;
  }
  return -1;
}

static gboolean is_before(const ordo_resolution *r, const char *a, const char *b)
{
  g_autofree char *chain = resolution_why(r, a, b);
  return strcmp(chain, "unordered") != 0;
}

static gboolean holds(const fact *f, const ordo_resolution *r)
{
  switch (f->what) {
  case BEFORE:
    return is_before(r, f->a, f->b);
  case UNORDERED:
    return !is_before(r, f->a, f->b) && !is_before(r, f->b, f->a);
  case LEGAL:
    return r->legal;
  case CONFLICT:
    return !r->legal && resolution_has(r, "E-PLAN-CYCLE");
  case ABSENT:
    return r->legal && count_steps(r, f->a) == 0;
  case ONCE:
    return r->legal && count_steps(r, f->a) == 1;
  default:
    return event_position(r, f->a) >= 0 && event_position(r, f->a) < event_position(r, f->b);
  }
}

static void test_rows(void **state)
{
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(facts); i++) {
    const fact *f = &facts[i];
    g_autoptr(session) s = session_new();
    s->resume = f->resume;
    s->eval = f->eval;
    s->trained[0] = !f->frozen;
    s->extra_for = f->plugin;
    session_add_set(s, f->strategies, f->precision);
    ordo_resolution *r = session_resolve(s);
    if (!holds(f, r) || (f->what != CONFLICT && !r->legal))
      fail_msg("%s does not hold: %s with %s, claim %d, %s, %s", f->row, f->strategies, f->precision, f->what, f->a ? f->a : "",
               f->b ? f->b : "");
    ordo_resolution_free(r);
  }
}

/* C15: tp over the whole world leaves fsdp2 an axis of one rank. It is planned like any other: sharding by one is a copy of nothing. */
static void test_axis_of_one(void **state)
{
  g_autoptr(session) s = session_new();
  (void)state;
  session_add(s, FAKE_FSDP2, NULL, NULL, 1);
  session_add(s, FAKE_TP, NULL, NULL, 4);
  ordo_resolution *r = session_resolve(s);
  assert_true(r->legal);
  assert_int_equal(count_steps(r, "strategy.prepare_joint"), 1);
  ordo_resolution_free(r);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_axis_of_one)};
  return cmocka_run_group_tests_name("facts", tests, NULL, NULL);
}
