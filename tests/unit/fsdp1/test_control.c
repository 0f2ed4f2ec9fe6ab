/* test_control.c - settings of a running job under a sharded strategy: each does what it says to calls, memory and order, and no number but
 * the one it is for. See rig.h. Under mpirun; the tests of fsdp2 build this file with other names.
 */
#include "rig.h"

#ifndef STRATEGY
#define STRATEGY "fsdp1"
#define KEPT "fsdp1:sharding_strategy=SHARD_GRAD_OP"
#define WHOLE "fsdp1:sharding_strategy=NO_SHARD"
#define ROOT "flat_param"
#define PART ".flat_param" /* what is behind the name of a unit */
#endif

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SYNC = ORDO_CONTROL_GRADIENT_SYNC, GATHERS = ORDO_ALL_GATHER, SCATTERS = ORDO_REDUCE_SCATTER };

/* Controls that a callback of a step makes, and what it saw. */
typedef struct script {
  rig *r;
  const int *sync; /* per micro-batch; null: none is set */
  uint32_t unit;   /* of them */
  uint64_t scatters_before_end;
  uint64_t reduces[5]; /* all-reduces so far, before each micro-batch and the end */
} script;

static rig_options options_of(const char *strategy)
{
  return (rig_options){.strategy = strategy, .rebinds = 1};
}

static void begin(rig *r, const char *strategy)
{
  const rig_options options = options_of(strategy);
  rig_ok(rig_begin(r, &options), strategy);
}

static uint64_t calls(const rig *r, uint32_t kind)
{
  const char *axis = strcmp(r->options.strategy, "ddp") == 0 ? "ddp" : STRATEGY;
  return rig_ranks > 1 ? rig_calls(r, axis, kind, NULL) : 0;
}

/* On one rank nothing is sent, so nothing is counted. */
static void assert_calls(const rig *r, uint32_t kind, uint64_t before, uint64_t wanted)
{
  if (rig_ranks > 1 && calls(r, kind) - before != wanted)
    fail_msg("rank %d: %d calls of kind %u instead of %d", rig_rank, (int)(calls(r, kind) - before), kind, (int)wanted);
}

static void set_sync(void *ctx, int micro)
{
  script *s = ctx;
  s->scatters_before_end = calls(s->r, SCATTERS);
  s->reduces[micro] = calls(s->r, ORDO_ALL_REDUCE);
  if (s->sync != NULL)
    rig_ok(rig_control(s->r, SYNC, s->unit, s->sync[micro]), "gradient_sync");
}

/* Names of the last `n` all-gathers of the strategy's axis, joined with ' '. */
static char *last_gathers(const rig *r, int n)
{
  char *report = ordo_session_comm_report(r->session), *names = calloc(1, 4096), *found[512], root[8];
  int n_found = 0;
  for (char *line = strtok(report, "\n"); line != NULL; line = strtok(NULL, "\n"))
    if (strstr(line, "all_gather") != NULL && strchr(line, '\'') != NULL)
      found[n_found++] = strchr(line, '\'') + 1;
  assert_true(n_found >= n);
  for (int i = n_found - n; i < n_found; i++) {
    *strchr(found[i], '\'') = '\0';
    if (strcmp(found[i], ROOT) == 0)
      found[i] = strcpy(root, "root");
    else
      found[i][strlen(found[i]) - strlen(PART)] = '\0';
    strcat(names, found[i]);
    strcat(names, i + 1 < n_found ? " " : "");
  }
  ordo_string_free(report);
  return names;
}

static void assert_order(const rig *r, int n, const char *wanted)
{
  if (rig_ranks == 1)
    return;
  char *names = last_gathers(r, n);
  assert_string_equal(names, wanted);
  free(names);
}

/* ---- gradient_sync ---- */

static const int OFF_THEN_ON[] = {0, 0, 1, 1}, ON[] = {1, 1, 1, 1}, OFF[] = {0, 0, 0, 0}, MIXED[] = {1, 0, 1, 0, -1};

/* Switched off in all micro-batches but the last, it is the accumulation that the strategies do by themselves: as many reductions, and the
 * same numbers. */
static void switched_off_it_is_the_strategys_own_accumulation(void **state)
{
  static const char *const modes[] = {STRATEGY, KEPT, STRATEGY ":no_sync=false"};
  (void)state;
  for (size_t m = 0; m < 3; m++) {
    rig r;
    script s = {.r = &r, .sync = OFF_THEN_ON, .unit = ORDO_ALL_UNITS};
    begin(&r, modes[m]);
    for (int step = 0; step < 2; step++) {
      uint64_t before = calls(&r, SCATTERS);
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 3, .before_micro = set_sync, .ctx = &s}), modes[m]);
      assert_calls(&r, SCATTERS, before, 4);
    }
    rig_compare(&r);
    rig_end(&r);
  }
}

static void switched_on_every_micro_batch_is_reduced(void **state)
{
  (void)state;
  rig r;
  script s = {.r = &r, .sync = ON, .unit = ORDO_ALL_UNITS};
  begin(&r, STRATEGY);
  uint64_t before = calls(&r, SCATTERS);
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 3, .before_micro = set_sync, .ctx = &s}), "step");
  assert_calls(&r, SCATTERS, before, 12);
  rig_ok(rig_control(&r, SYNC, ORDO_ALL_UNITS, ORDO_CONTROL_RULE), "the rule again");
  before = calls(&r, SCATTERS);
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 3}), "step");
  assert_calls(&r, SCATTERS, before, 4);
  rig_compare(&r);
  rig_end(&r);
}

/* Off in the last micro-batch too: nothing is lost, everything is reduced in step.reduce. */
static void nothing_is_lost_when_it_stays_off(void **state)
{
  static const char *const modes[] = {STRATEGY, KEPT, STRATEGY ":no_sync=false", STRATEGY ":reduce_dtype=bf16"};
  (void)state;
  for (size_t m = 0; m < 4; m++)
    for (int n_micro = 1; n_micro <= 2; n_micro++) {
      rig r;
      script s = {.r = &r, .sync = OFF, .unit = ORDO_ALL_UNITS};
      begin(&r, modes[m]);
      uint64_t before = calls(&r, SCATTERS);
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = n_micro, .before_micro = set_sync, .ctx = &s}), modes[m]);
      assert_int_equal(s.scatters_before_end, before);
      assert_calls(&r, SCATTERS, before, 4);
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = n_micro}), modes[m]);
      rig_compare(&r);
      rig_end(&r);
    }
}

static void one_unit_alone(void **state)
{
  (void)state;
  rig r;
  script s = {.r = &r, .sync = ON, .unit = 2};
  begin(&r, STRATEGY);
  uint64_t before = calls(&r, SCATTERS);
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 3, .before_micro = set_sync, .ctx = &s}), "step");
  assert_calls(&r, SCATTERS, before, 4 + 2);
  s.sync = OFF;
  before = calls(&r, SCATTERS);
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2, .before_micro = set_sync, .ctx = &s}), "step");
  assert_calls(&r, SCATTERS, before, 4);
  assert_calls(&r, SCATTERS, s.scatters_before_end, 1);
  rig_compare(&r);
  rig_end(&r);
}

/* On, off, on, off within a step, while parameters and units come and go: buffers change hands and nothing old is summed. */
static void switched_to_and_fro_within_a_step(void **state)
{
  static const char *const modes[] = {
      STRATEGY, KEPT, STRATEGY ":no_sync=false", STRATEGY ":reduce_dtype=bf16", WHOLE, STRATEGY ":units=none"};
  (void)state;
  for (size_t m = 0; m < 6; m++) {
    rig r;
    script s = {.r = &r, .sync = MIXED, .unit = ORDO_ALL_UNITS};
    begin(&r, modes[m]);
    const rig_step_spec spec = {.n_micro = 4,
                                .skip_in = {1u << 3, 1u << 1 | 1u << 4, 1u << 6, 1u << 1},
                                .skip_late = 1u << 2,
                                .backward_only_in = 2,
                                .before_micro = set_sync,
                                .ctx = &s};
    for (int step = 0; step < 3; step++)
      rig_ok(rig_train(&r, &spec), modes[m]);
    rig_compare(&r);
    rig_end(&r);
  }
}

/* With 16-bit accumulation units share one buffer in fp32: what another unit left there was added for a parameter that a later micro-batch
 * does not use. */
static void a_parameter_that_a_later_micro_batch_does_not_use(void **state)
{
  (void)state;
  rig r;
  begin(&r, STRATEGY ":reduce_dtype=bf16");
  for (int step = 0; step < 2; step++)
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2, .skip_in = {0, 1u << 1 | 1u << 4}}), "step");
  rig_compare(&r);
  rig_end(&r);
}

/* ---- unshard and reshard ---- */

static void gathered_early_it_is_gathered_once(void **state)
{
  (void)state;
  for (int wait = 0; wait <= 1; wait++) {
    rig r;
    begin(&r, STRATEGY);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
    uint64_t before = calls(&r, GATHERS);
    rig_ok(rig_control(&r, ORDO_CONTROL_UNSHARD, 1, wait), "unshard");
    rig_ok(rig_control(&r, ORDO_CONTROL_UNSHARD, 1, wait), "unshard again");
    assert_calls(&r, GATHERS, before, 1);
    assert_int_equal(r.model->params[1]->data != NULL, wait);
    for (int64_t i = 0; wait && i < rig_numel(1); i++)
      assert_true(((const float *)r.model->params[1]->data)[i] == r.reference[1][i]);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
    assert_calls(&r, GATHERS, before, 7);
    rig_compare(&r);
    rig_end(&r);
  }
}

static void gathered_early_in_an_evaluation(void **state)
{
  (void)state;
  rig r;
  begin(&r, STRATEGY ":forward_prefetch=false");
  uint64_t before = calls(&r, GATHERS);
  rig_ok(rig_control(&r, ORDO_CONTROL_UNSHARD, 2, 0), "unshard");
  rig_evaluate(&r);
  assert_calls(&r, GATHERS, before, 4);
  assert_null(r.model->params[3]->data);
  rig_end(&r);
}

/* Gathered after the last micro-batch, it would be of old weights in the next step. */
static void unshard_at_the_end(void *ctx, int micro)
{
  script *s = ctx;
  if (micro == 1)
    rig_ok(rig_control(s->r, ORDO_CONTROL_UNSHARD, 1, 1), "unshard");
}

static void an_update_ends_what_was_gathered(void **state)
{
  (void)state;
  rig r;
  script s = {.r = &r};
  begin(&r, STRATEGY);
  for (int step = 0; step < 2; step++) {
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1, .before_micro = unshard_at_the_end, .ctx = &s}), "step");
    assert_null(r.model->params[1]->data);
  }
  rig_compare(&r);
  rig_end(&r);
}

static void reshard_in_forward(void *ctx, uint32_t unit, int backward)
{
  script *s = ctx;
  if (unit == 3 && !backward) {
    rig_ok(rig_control(s->r, ORDO_CONTROL_RESHARD, 1, 0), "reshard");
    assert_null(s->r->model->params[1]->data);
  }
  if (unit == 1 && backward)
    rig_expect(rig_control(s->r, ORDO_CONTROL_RESHARD, 0, 0), ORDO_E_STATE, "backward of '" ROOT "'|not finished");
}

static void released_by_hand_it_is_gathered_again(void **state)
{
  (void)state;
  rig r;
  script s = {.r = &r};
  begin(&r, KEPT);
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  uint64_t before = calls(&r, GATHERS);
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1, .before_unit = reshard_in_forward, .ctx = &s}), "step");
  assert_calls(&r, GATHERS, before, 5);
  rig_compare(&r);
  rig_end(&r);
}

/* ---- the limit ---- */

/* Bound parameters of blocks: at most two units. */
static void count_units(void *ctx, uint32_t unit, int backward)
{
  script *s = ctx;
  int bound = 0;
  (void)unit, (void)backward;
  for (int u = 1; u <= 3; u++)
    bound += s->r->model->params[2 * u - 1]->data != NULL;
  assert_true(bound <= 2);
}

static void two_units_at_a_time(void **state)
{
  (void)state;
  rig r;
  script s = {.r = &r};
  int64_t peak[2];
  begin(&r, STRATEGY);
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  ordo_session_memory(r.session, ORDO_MEM_WEIGHTS, NULL, &peak[0]);
  rig_expect(rig_control(&r, ORDO_CONTROL_UNSHARD, ORDO_ALL_UNITS, 1), ORDO_E_STATE, "3 more|these are: none|limit_all_gathers=false");
  rig_ok(rig_control(&r, ORDO_CONTROL_UNSHARD, 2, 1), "the second");
  rig_ok(rig_control(&r, ORDO_CONTROL_UNSHARD, 3, 0), "the third");
  rig_expect(rig_control(&r, ORDO_CONTROL_UNSHARD, 1, 1), ORDO_E_STATE, "'layers.1" PART "', 'layers.2" PART "'|reshard a unit first");
  rig_ok(rig_control(&r, ORDO_CONTROL_UNSHARD, 0, 1), "the root has its own place");
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1, .in_unit = count_units, .ctx = &s}), "step");
  assert_order(&r, 5, "layers.0 layers.2 layers.2 layers.1 layers.0"); /* the first unit took the place of the one that was needed last */
  ordo_session_memory(r.session, ORDO_MEM_WEIGHTS, NULL, &peak[1]);
  assert_int_equal(peak[1], peak[0]);
  rig_compare(&r);
  rig_end(&r);
  begin(&r, STRATEGY ":limit_all_gathers=false");
  rig_ok(rig_control(&r, ORDO_CONTROL_UNSHARD, ORDO_ALL_UNITS, 1), "without a limit");
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  rig_compare(&r);
  rig_end(&r);
}

/* A place that was taken by hand is not there for a prefetch, whatever a list asks for. */
static void a_prefetch_takes_no_third_place(void **state)
{
  const uint32_t next[] = {2};
  (void)state;
  rig r;
  int64_t peak[2];
  begin(&r, STRATEGY ":backward_prefetch=none");
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  rig_ok(rig_control(&r, ORDO_CONTROL_UNSHARD, 2, 1), "one by hand");
  rig_ok(rig_control(&r, ORDO_CONTROL_UNSHARD, 3, 1), "the other");
  rig_ok(rig_control(&r, ORDO_CONTROL_RESHARD, 2, 0), "and back");
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  ordo_session_memory(r.session, ORDO_MEM_WEIGHTS, NULL, &peak[0]);
  ordo_control list = ordo_control_make(ORDO_CONTROL_FORWARD_PREFETCH, 1, 0);
  list.units = next;
  list.n_units = 1;
  rig_ok(ordo_session_control(r.session, 0, &list), "list");
  rig_ok(rig_control(&r, ORDO_CONTROL_UNSHARD, 3, 1), "one by hand");
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  ordo_session_memory(r.session, ORDO_MEM_WEIGHTS, NULL, &peak[1]);
  assert_int_equal(peak[1], peak[0]);
  rig_compare(&r);
  rig_end(&r);
}

/* ---- when units are released ---- */

static void released_after_forward_or_kept(void **state)
{
  static const struct {
    const char *strategy;
    uint32_t unit;
    int value;
    uint64_t gathers;
  } rows[] = {{KEPT, ORDO_ALL_UNITS, 1, 7},
              {KEPT, 2, 1, 5},
              {STRATEGY, ORDO_ALL_UNITS, 0, 4},
              {STRATEGY, 1, 0, 6},
              {STRATEGY, 0, 1, 8},
              {STRATEGY, ORDO_ALL_UNITS, ORDO_CONTROL_RULE, 7},
              {STRATEGY ":units=none", 0, 1, 2}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    rig r;
    begin(&r, rows[i].strategy);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "a step by the rule");
    rig_ok(rig_control(&r, ORDO_CONTROL_RESHARD_AFTER_FORWARD, rows[i].unit, rows[i].value), rows[i].strategy);
    uint64_t before = calls(&r, GATHERS);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), rows[i].strategy);
    assert_calls(&r, GATHERS, before, rows[i].gathers);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2}), rows[i].strategy);
    rig_compare(&r);
    rig_end(&r);
  }
}

static void expect_nothing_bound_at_the_end(void *ctx, int micro)
{
  script *s = ctx;
  for (uint32_t p = 0; micro == 2 && p < s->r->model->n_params; p++)
    assert_null(s->r->model->params[p]->data);
}

static void kept_after_backward(void **state)
{
  (void)state;
  rig r;
  script s = {.r = &r};
  begin(&r, STRATEGY);
  rig_ok(rig_control(&r, ORDO_CONTROL_RESHARD_AFTER_BACKWARD, ORDO_ALL_UNITS, 0), "keep");
  uint64_t before = calls(&r, GATHERS);
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2, .before_micro = expect_nothing_bound_at_the_end, .ctx = &s}), "step");
  assert_calls(&r, GATHERS, before, 7 + 3); /* the second forward gathers nothing, its backward the blocks */
  rig_compare(&r);
  rig_end(&r);
}

/* ---- prefetch ---- */

static ordo_status set_list(rig *r, uint32_t operation, uint32_t unit, const uint32_t *units, uint64_t n)
{
  ordo_control control = ordo_control_make(operation, unit, 0);
  control.units = units;
  control.n_units = n;
  return ordo_session_control(r->session, 0, &control);
}

static void lists_change_the_order_of_all_gathers(void **state)
{
  static const uint32_t one[] = {1}, three[] = {3}, both[] = {3, 2};
  (void)state;
  rig r;
  begin(&r, STRATEGY ":backward_prefetch=none:forward_prefetch=false");
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  assert_order(&r, 7, "root layers.0 layers.1 layers.2 layers.2 layers.1 layers.0");
  rig_ok(set_list(&r, ORDO_CONTROL_FORWARD_PREFETCH, 1, three, 1), "forward list");
  rig_ok(set_list(&r, ORDO_CONTROL_BACKWARD_PREFETCH, 3, one, 1), "backward list");
  uint64_t before = calls(&r, GATHERS);
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  assert_order(&r, 7, "root layers.0 layers.2 layers.1 layers.2 layers.0 layers.1");
  assert_calls(&r, GATHERS, before, 7);
  rig_expect(set_list(&r, ORDO_CONTROL_FORWARD_PREFETCH, 1, both, 2), ORDO_E_INVALID, "2 units for unit 'layers.0'|limit_all_gathers");
  rig_ok(set_list(&r, ORDO_CONTROL_FORWARD_PREFETCH, 1, NULL, 0), "no list");
  rig_ok(set_list(&r, ORDO_CONTROL_BACKWARD_PREFETCH, 3, NULL, 0), "no list");
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  assert_order(&r, 7, "root layers.0 layers.1 layers.2 layers.2 layers.1 layers.0");
  rig_compare(&r);
  rig_end(&r);
}

/* A list comes before the rule, whatever the rule is; the root may have one as well. */
static void lists_override_the_options(void **state)
{
  static const uint32_t two[] = {2}, both[] = {3, 2};
  static const char *const prefetch[] = {"pre", "post"};
  (void)state;
  for (int i = 0; i < 2; i++) {
    rig r;
    char strategy[128];
    snprintf(strategy, sizeof strategy, STRATEGY ":limit_all_gathers=false:forward_prefetch=true:backward_prefetch=%s", prefetch[i]);
    begin(&r, strategy);
    rig_ok(set_list(&r, ORDO_CONTROL_FORWARD_PREFETCH, 0, both, 2), "list of the root");
    rig_ok(set_list(&r, ORDO_CONTROL_BACKWARD_PREFETCH, 4, two, 1), "list of the root");
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
    assert_order(&r, 7,
                 i == 0 ? "root layers.2 layers.1 layers.0 layers.1 layers.2 layers.0"
                        : "root layers.2 layers.1 layers.0 layers.1 layers.2 layers.0");
    rig_compare(&r);
    rig_end(&r);
  }
}

/* ---- divide factor ---- */

static ordo_status set_factor(rig *r, uint32_t unit, double factor)
{
  ordo_control control = ordo_control_make(ORDO_CONTROL_DIVIDE_FACTOR, unit, 0);
  control.factor = factor;
  return ordo_session_control(r->session, 0, &control);
}

static void a_divide_factor_changes_the_gradient_exactly(void **state)
{
  static const char *const modes[] = {STRATEGY, KEPT, STRATEGY ":no_sync=false", WHOLE};
  (void)state;
  for (size_t m = 0; m < 4; m++) {
    rig r;
    begin(&r, modes[m]);
    rig_ok(set_factor(&r, ORDO_ALL_UNITS, 2.0 * rig_ranks), "twice the ranks");
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2, .factor = 0.5}), modes[m]);
    rig_ok(set_factor(&r, 2, 0.25 * rig_ranks), "another one for a unit");
    rig_ok(set_factor(&r, ORDO_ALL_UNITS, 0.0), "the options' again");
    rig_ok(set_factor(&r, 2, 0.25 * rig_ranks), "only for a unit");
    const uint32_t concerned = strstr(modes[m], "units=none") != NULL ? 0 : 1u << 2;
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1, .factor = 4.0, .factor_units = concerned}), modes[m]);
    rig_ok(set_factor(&r, 2, 0.0), "none");
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), modes[m]);
    rig_expect(set_factor(&r, 2, -1.0), ORDO_E_INVALID, "divide factor");
    rig_compare(&r);
    rig_end(&r);
  }
}

/* ---- moments and arguments ---- */

static void refuse_in_a_unit(void *ctx, uint32_t unit, int backward)
{
  static const uint32_t all[] = {
      ORDO_CONTROL_GRADIENT_SYNC,          ORDO_CONTROL_UNSHARD,       ORDO_CONTROL_RESHARD,          ORDO_CONTROL_RESHARD_AFTER_FORWARD,
      ORDO_CONTROL_RESHARD_AFTER_BACKWARD, ORDO_CONTROL_DIVIDE_FACTOR, ORDO_CONTROL_FORWARD_PREFETCH, ORDO_CONTROL_BACKWARD_PREFETCH};
  script *s = ctx;
  (void)unit;
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
    rig_expect(rig_control(s->r, all[i], 1, 0), ORDO_E_STATE, backward ? "E-STATE-ORDER|backward of a unit" : "forward of a unit");
}

static void refuse_between_units(void *ctx, uint32_t unit, int backward)
{
  script *s = ctx;
  (void)unit, (void)backward;
  rig_expect(rig_control(s->r, SYNC, 1, 0), ORDO_E_STATE, "gradient_sync|between micro-batches");
  rig_expect(set_factor(s->r, 1, 1.0), ORDO_E_STATE, "divide_factor|between training steps");
}

static void wrong_moments_are_refused_and_harmless(void **state)
{
  (void)state;
  rig r;
  script s = {.r = &r};
  begin(&r, STRATEGY);
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2, .in_unit = refuse_in_a_unit, .before_unit = refuse_between_units, .ctx = &s}),
         "step");
  rig_ok(ordo_session_gather_full(r.session, 0, 0), "gather_full");
  rig_expect(rig_control(&r, ORDO_CONTROL_UNSHARD, 1, 1), ORDO_E_STATE, "scope of full parameters");
  rig_expect(rig_control(&r, ORDO_CONTROL_RESHARD, 1, 0), ORDO_E_STATE, "scope of full parameters");
  rig_ok(ordo_session_release_full(r.session, 0), "release_full");
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  rig_compare(&r);
  rig_end(&r);
}

/* Nothing is sharded there: gathering is a no-op, and reductions wait for the last micro-batch. */
static void whole_parameters_take_every_setting(void **state)
{
  (void)state;
  rig r;
  script s = {.r = &r, .sync = MIXED, .unit = ORDO_ALL_UNITS};
  begin(&r, WHOLE);
  rig_ok(rig_control(&r, ORDO_CONTROL_UNSHARD, ORDO_ALL_UNITS, 1), "unshard");
  rig_ok(rig_control(&r, ORDO_CONTROL_RESHARD_AFTER_FORWARD, ORDO_ALL_UNITS, 1), "reshard_after_forward");
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 4, .before_micro = set_sync, .ctx = &s}), "step");
  rig_ok(rig_control(&r, ORDO_CONTROL_RESHARD, ORDO_ALL_UNITS, 0), "reshard");
  s.sync = OFF;
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2, .before_micro = set_sync, .ctx = &s}), "step");
  rig_compare(&r);
  rig_end(&r);
}

/* Replicas of shards hear of the settings that mean something to them, and of the others not. */
static void replicas_of_shards(void **state)
{
  (void)state;
  rig r;
  if (rig_ranks != 4)
    return;
  script s = {.r = &r, .sync = MIXED, .unit = ORDO_ALL_UNITS};
  begin(&r, "ddp=2+" STRATEGY "=2");
  rig_ok(rig_control(&r, ORDO_CONTROL_UNSHARD, 1, 1), "unshard");
  for (int step = 0; step < 2; step++)
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 4, .before_micro = set_sync, .ctx = &s}), "step");
  rig_compare(&r);
  rig_end(&r);
}

/* ddp keeps everything whole: it can hold reductions back, and nothing else. */
static void ddp_knows_one_setting(void **state)
{
  (void)state;
  rig r;
  script s = {.r = &r, .sync = OFF, .unit = ORDO_ALL_UNITS};
  begin(&r, "ddp");
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2}), "the step in which buckets are laid out");
  uint64_t before = calls(&r, ORDO_ALL_REDUCE);
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  uint64_t usual = calls(&r, ORDO_ALL_REDUCE) - before;
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 2, .before_micro = set_sync, .ctx = &s}), "switched off");
  assert_int_equal(s.reduces[2], s.reduces[0]);
  s.sync = OFF_THEN_ON;
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 3, .before_micro = set_sync, .ctx = &s}), "switched on in the last micro-batch");
  assert_int_equal(s.reduces[2], s.reduces[0]);
  assert_true(s.reduces[3] > s.reduces[2] || rig_ranks == 1);
  s.sync = MIXED;
  s.unit = 1;
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 4, .before_micro = set_sync, .ctx = &s}), "one unit");
  rig_ok(rig_control(&r, SYNC, ORDO_ALL_UNITS, ORDO_CONTROL_RULE), "the rule again");
  before = calls(&r, ORDO_ALL_REDUCE);
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  assert_calls(&r, ORDO_ALL_REDUCE, before, usual);
  rig_expect(rig_control(&r, ORDO_CONTROL_UNSHARD, 1, 1), ORDO_E_UNSUPPORTED, "E-CONTROL-UNSUPPORTED|'ddp'|unshard");
  rig_expect(set_factor(&r, 1, 2.0), ORDO_E_UNSUPPORTED, "'ddp'|divide_factor");
  rig_compare(&r);
  rig_end(&r);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(switched_off_it_is_the_strategys_own_accumulation),
      cmocka_unit_test(switched_on_every_micro_batch_is_reduced),
      cmocka_unit_test(nothing_is_lost_when_it_stays_off),
      cmocka_unit_test(one_unit_alone),
      cmocka_unit_test(switched_to_and_fro_within_a_step),
      cmocka_unit_test(a_parameter_that_a_later_micro_batch_does_not_use),
      cmocka_unit_test(gathered_early_it_is_gathered_once),
      cmocka_unit_test(gathered_early_in_an_evaluation),
      cmocka_unit_test(an_update_ends_what_was_gathered),
      cmocka_unit_test(released_by_hand_it_is_gathered_again),
      cmocka_unit_test(two_units_at_a_time),
      cmocka_unit_test(a_prefetch_takes_no_third_place),
      cmocka_unit_test(released_after_forward_or_kept),
      cmocka_unit_test(kept_after_backward),
      cmocka_unit_test(lists_change_the_order_of_all_gathers),
      cmocka_unit_test(lists_override_the_options),
      cmocka_unit_test(a_divide_factor_changes_the_gradient_exactly),
      cmocka_unit_test(wrong_moments_are_refused_and_harmless),
      cmocka_unit_test(whole_parameters_take_every_setting),
      cmocka_unit_test(replicas_of_shards),
      cmocka_unit_test(ddp_knows_one_setting),
  };
  rig_start(argc, argv);
  return rig_stop(cmocka_run_group_tests(tests, NULL, NULL));
}
