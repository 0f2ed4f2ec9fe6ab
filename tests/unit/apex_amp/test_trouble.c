/* test_trouble.c - what goes wrong with mixed precision, and what is said then. Each case ends alike on every rank, under mpirun. */
#include "rig.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void refused(const rig_options *options, ordo_status status, const char *word)
{
  rig r;
  assert_int_equal(rig_open(&r, options), status);
  rig_expect_error(word);
  rig_close(&r);
}

static void contradicting_options_are_refused(void **state)
{
  (void)state;
  refused(&(rig_options){.precision = "apex_amp:O5:loss_scale=128", .strategy = "ddp"}, ORDO_E_INVALID, "bf16 has the range of fp32");
  refused(&(rig_options){.precision = "apex_amp:O4:loss_scale=dynamic", .strategy = "ddp"}, ORDO_E_INVALID, "bf16 has the range of fp32");
  refused(&(rig_options){.precision = "apex_amp:O1:master_weights=yes", .strategy = "ddp"}, ORDO_E_INVALID, "would be copies");
  refused(&(rig_options){.precision = "apex_amp:O3:window=5", .strategy = "ddp"}, ORDO_E_INVALID, "window belongs");
  refused(&(rig_options){.precision = "bf16-true:keep_norm_fp32=yes:loss_scale=2", .strategy = "ddp"}, ORDO_E_INVALID, "bf16");
}

static void a_half_model_is_refused(void **state)
{
  (void)state;
  refused(&(rig_options){.precision = "apex_amp:O2", .strategy = "ddp", .described = ORDO_F16}, ORDO_E_INVALID,
          "parameter 'embed.weight' is fp16 already");
  refused(&(rig_options){.precision = "apex_amp:O0", .strategy = "ddp", .described = ORDO_BF16}, ORDO_E_INVALID, "is bf16 already");
  refused(&(rig_options){.precision = "apex_amp:O2", .strategy = "ddp", .described = ORDO_F64}, ORDO_E_INVALID, "is fp64");
}

static void an_embedder_of_fp32_is_refused(void **state)
{
  (void)state;
  refused(&(rig_options){.precision = "apex_amp:O2", .strategy = "ddp", .no_convert = 1}, ORDO_E_UNSUPPORTED, "E-EMBEDDER-CANNOT");
  rig r; /* O1 leaves the storage alone */
  rig_start(&r, &(rig_options){.precision = "apex_amp:O1", .strategy = "ddp", .no_convert = 1, .lr = 0.1});
  rig_close(&r);
}

static void an_optimizer_of_fp32_needs_masters(void **state)
{
  (void)state;
  refused(&(rig_options){.precision = "apex_amp:O3", .strategy = "ddp", .only_fp32_updates = 1}, ORDO_E_UNSUPPORTED, "E-OPTIMIZER-DTYPE");
  rig r;
  rig_start(&r, &(rig_options){.precision = "apex_amp:O2", .strategy = "ddp", .only_fp32_updates = 1, .lr = 0.1});
  rig_close(&r);
}

/* The first step, on one rank: all skip, nothing changes, and training goes on with half the scale. */
static void an_overflow_in_the_first_step(void **state)
{
  rig r;
  ordo_step_result result;
  (void)state;
  rig_start(&r, &(rig_options){.precision = "apex_amp:O2:init_scale=64", .strategy = "ddp", .lr = 0.1});
  r.bad_rank = rig_ranks - 1;
  rig_expect_ok(rig_step(&r, &result), "step 1");
  assert_int_equal(result.skipped, 1);
  assert_int_equal(r.scheduler_steps, 0);
  assert_true(rig_weight(&r, 1, 3) == rig_round(ORDO_F16, rig_initial(1, 3)));
  r.bad_rank = -1;
  rig_expect_ok(rig_step(&r, &result), "step 2");
  assert_int_equal(result.skipped, 0);
  assert_true(result.loss_scale == 32.0);
  assert_int_equal(r.last_update, 1); /* the first update, though the second step */
  assert_int_equal(r.last_schedule, 1);
  rig_close(&r);
}

static void overflow_for_ever_stops(void **state)
{
  static const struct {
    const char *precision, *word, *cause;
    int steps;
  } rows[] = {
      {"apex_amp:O1:init_scale=8:patience=3", "in 6 steps in a row, the last of them at loss scale 0.25", "enlarges nothing", 3 + 3},
      {"apex_amp:O2:init_scale=8:min_loss_scale=4:patience=2", "at loss scale 4", "lowest that min_loss_scale allows", 1 + 2},
      {"16-mixed:init_scale=2:patience=1", "overflowed in 2 steps in a row", "at loss scale 1;", 2},
      {"16-mixed:backoff_factor=0.9:patience=2", "in 108 steps in a row", "learning rate", 106 + 2}};
  (void)state;
  for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
    rig r;
    ordo_status status = ORDO_OK;
    int steps = 0;
    rig_start(&r, &(rig_options){.precision = rows[k].precision, .strategy = "ddp", .lr = 0.1});
    r.bad_rank = 0;
    for (; status == ORDO_OK && steps < 200; steps++)
      status = rig_step(&r, NULL);
    assert_int_equal(status, ORDO_E_INVARIANT);
    assert_int_equal(steps, rows[k].steps);
    rig_expect_error(rows[k].word);
    rig_expect_error(rows[k].cause);
    assert_int_equal(rig_step(&r, NULL), ORDO_E_STATE); /* and it stays stopped */
    rig_close(&r);
  }
}

/* NaN in a weight of one rank. No scale helps, so the scaler does not try. */
static void nan_in_weights_is_named(void **state)
{
  static const char *const precisions[] = {"apex_amp:O1", "apex_amp:O2"};
  (void)state;
  for (int k = 0; k < 2; k++) {
    rig r;
    rig_start(&r, &(rig_options){.precision = precisions[k], .strategy = "ddp", .lr = 0.1});
    const ordo_leaf *leaf = ordo_session_model(r.session, 0)->params[1]->leaf;
    if (rig_me == rig_ranks - 1 && leaf->dtype == ORDO_F32)
      ((float *)leaf->data)[7] = (float)NAN;
    else if (rig_me == rig_ranks - 1)
      ((uint16_t *)leaf->data)[7] = 0x7e00;
    assert_int_equal(rig_step(&r, NULL), ORDO_E_INVARIANT);
    rig_expect_error("weights are NaN or infinite");
    rig_expect_error(rig_me == rig_ranks - 1 ? "block.w" : "another rank");
    rig_close(&r);
  }
}

/* bf16 and static scales have nobody to skip the step: it is refused by name, and nothing was updated. */
static void without_a_dynamic_scale_the_step_is_refused(void **state)
{
  static const char *const precisions[] = {"apex_amp:O5", "apex_amp:O2:loss_scale=16", "apex_amp:O3", "apex_amp:O0:loss_scale=4"};
  (void)state;
  for (size_t k = 0; k < sizeof precisions / sizeof precisions[0]; k++) {
    rig r;
    rig_start(&r, &(rig_options){.precision = precisions[k], .strategy = "ddp", .lr = 0.1});
    float before = rig_weight(&r, 1, 0);
    r.bad_rank = 0;
    assert_int_equal(rig_step(&r, NULL), ORDO_E_INVARIANT);
    rig_expect_error("E-STEP-NONFINITE");
    rig_expect_error("block.w");
    if (strchr(precisions[k], '='))
      rig_expect_error(k == 1 ? "has multiplied the loss by 16," : "has multiplied the loss by 4,");
    assert_true(rig_weight(&r, 1, 0) == before);
    r.bad_rank = -1;
    rig_expect_ok(rig_step(&r, NULL), precisions[k]);
    rig_close(&r);
  }
}

static const struct {
  const char *level, *strategy;
} CELLS[] = {{"O1", "ddp"}, {"O2", "ddp"}, {"O1", "fsdp1"}, {"O1", "fsdp2"}, {"O2", "fsdp1"}, {"O2", "fsdp2"}};

/* A scaler that was restored from the state of another run on one rank. */
static void another_scale_restored_on_one_rank_stops_all(void **state)
{
  static const char *const strategies[] = {"ddp", "fsdp1", "fsdp2"};
  (void)state;
  for (int k = 0; rig_ranks > 1 && k < 3; k++) {
    rig r;
    double blob[1 + 3];
    size_t size = sizeof blob;
    rig_start(&r, &(rig_options){.precision = "apex_amp:O1:init_scale=64", .strategy = strategies[k], .lr = 0.1});
    rig_expect_ok(rig_step(&r, NULL), "step 1");
    rig_expect_ok(ordo_session_precision_save(r.session, 0, blob, &size), "save");
    assert_int_equal(size, sizeof blob);
    if (rig_me == rig_ranks - 1)
      blob[1] = 1024.0;
    rig_expect_ok(ordo_session_precision_load(r.session, 0, blob, size, NULL), "load");
    assert_int_equal(rig_step(&r, NULL), ORDO_E_MISMATCH);
    rig_expect_error("E-STEP-LOSS-DIFFERS");
    rig_expect_error(rig_me == rig_ranks - 1 ? "this rank ended with loss 0 at scale 1024" : "ended with loss 0 at scale 1024, this rank");
    assert_int_equal(r.last_update, 1);
    rig_close(&r);
  }
}

static void a_loss_that_does_not_exist(void **state)
{
  (void)state;
  rig r;
  rig_start(&r, &(rig_options){.precision = "apex_amp:O1:num_losses=2", .strategy = "ddp", .lr = 0.1, .n_micro = 2});
  assert_int_equal(ordo_session_select_loss(r.session, 0), ORDO_E_STATE); /* not in a step */
  rig_expect_ok(ordo_session_step_begin(r.session, 2, 1.0), "step_begin");
  assert_int_equal(ordo_session_select_loss(r.session, 2), ORDO_E_INVALID);
  rig_expect_error("loss_id 2 is out of range: num_losses=2");
  assert_int_equal(ordo_session_select_loss(r.session, 64), ORDO_E_INVALID);
  rig_expect_error("E-STEP-LOSS");
  rig_expect_ok(ordo_session_select_loss(r.session, 1), "and nothing has happened");
  rig_close(&r);
}

/* num_losses beside a scale that does not move: a program that selects losses runs unchanged. */
static void losses_are_selected_at_every_level(void **state)
{
  static const char *const precisions[] = {"apex_amp:O0:num_losses=2", "apex_amp:O3:num_losses=2", "apex_amp:O4:num_losses=2",
                                           "apex_amp:O5:num_losses=2", "apex_amp:O2:num_losses=2:loss_scale=8"};
  (void)state;
  for (size_t k = 0; k < sizeof precisions / sizeof precisions[0]; k++) {
    rig r;
    rig_start(&r, &(rig_options){.precision = precisions[k], .strategy = "ddp", .lr = 0.1, .n_micro = 4});
    r.n_losses = 2;
    rig_expect_ok(rig_step(&r, NULL), precisions[k]);
    rig_expect_ok(rig_step(&r, NULL), precisions[k]);
    rig_close(&r);
  }
}

/* Micro-batches 0 and 2 belong to loss 0, 1 and 3 to loss 1. An overflow of one halves its scale and lets the other's grow. */
static void each_loss_has_its_scale(void **state)
{
  (void)state;
  for (size_t k = 0; k < sizeof CELLS / sizeof CELLS[0]; k++) {
    rig r;
    char precision[64];
    double blob[1 + 3 * 2], scales[2] = {1024.0, 1024.0};
    size_t size = sizeof blob;
    snprintf(precision, sizeof precision, "apex_amp:%s:num_losses=2:init_scale=1024:window=3", CELLS[k].level);
    rig_start(&r, &(rig_options){.precision = precision, .strategy = CELLS[k].strategy, .lr = 0.1, .n_micro = 4});
    r.n_losses = 2;
    for (int step = 0; step < 12; step++) {
      ordo_step_result result;
      int bad = step == 1 ? 1 : step == 5 ? 0 : step == 6 ? 1 : -1;
      r.bad_rank = bad >= 0 ? step % rig_ranks : -1;
      r.bad_loss = bad;
      rig_expect_ok(rig_step(&r, &result), precision);
      assert_int_equal(result.skipped, bad >= 0);
      rig_expect_ok(ordo_session_precision_save(r.session, 0, blob, &size), "save");
      assert_int_equal(size, sizeof blob);
      for (int l = 0; l < 2; l++) {
        /* apex's rule, each loss with a count of its own; clean steps before: written out for 12 steps */
        static const double want[2][12] = {{1024, 1024, 2048, 2048, 2048, 1024, 1024, 1024, 2048, 2048, 2048, 4096},
                                           {1024, 512, 512, 512, 1024, 1024, 512, 512, 512, 1024, 1024, 1024}};
        scales[l] = blob[1 + 3 * l];
        if (scales[l] != want[l][step])
          fail_msg("rank %d, %s, step %d, loss %d: scale %g instead of %g", rig_me, precision, step, l, scales[l], want[l][step]);
      }
    }
    rig_close(&r);
  }
}

/* Two losses whose scales differ: the gradients meet in one scale, and the sum is what one scale gives. */
static void gradients_of_losses_meet_in_one_scale(void **state)
{
  (void)state;
  for (size_t k = 0; k < sizeof CELLS / sizeof CELLS[0]; k++) {
    rig one, two;
    ordo_step_result a, b;
    char precision[96];
    snprintf(precision, sizeof precision, "apex_amp:%s:init_scale=256:window=1000:num_losses=2", CELLS[k].level);
    rig_start(&two, &(rig_options){.precision = precision, .strategy = CELLS[k].strategy, .lr = 0.25, .n_micro = 4, .ordered = 1});
    snprintf(precision, sizeof precision, "apex_amp:%s:loss_scale=1", CELLS[k].level);
    rig_start(&one, &(rig_options){.precision = precision, .strategy = CELLS[k].strategy, .lr = 0.25, .n_micro = 4, .ordered = 1});
    two.n_losses = 2;
    two.bad_rank = 0; /* loss 1 goes down to 32, loss 0 stays */
    two.bad_loss = 1;
    for (int i = 0; i < 3; i++)
      rig_expect_ok(rig_step(&two, &b), "overflow");
    two.bad_rank = -1;
    rig_expect_ok(rig_step(&two, &b), "two");
    rig_expect_ok(rig_step(&one, &a), "one");
    /* fp16 gradients round differently at another scale only where they leave its normal range */
    assert_true(fabs(a.grad_norm - b.grad_norm) <= (strcmp(CELLS[k].level, "O2") == 0 ? 1e-3 : 1e-6) * a.grad_norm);
    rig_close(&one);
    rig_close(&two);
  }
}

/* A strategy that reduces every micro-batch holds sums of both. */
static void losses_cannot_be_told_apart_in_shards(void **state)
{
  static const char *const strategies[] = {"fsdp1:no_sync=false", "fsdp2:no_sync=false"};
  (void)state;
  for (int k = 0; k < 2; k++) {
    rig r;
    rig_start(&r, &(rig_options){.precision = "apex_amp:O1:num_losses=2", .strategy = strategies[k], .lr = 0.1, .n_micro = 2});
    rig_expect_ok(rig_step(&r, NULL), "one loss");
    rig_expect_ok(ordo_session_step_begin(r.session, 2, 1.0), "step_begin");
    assert_int_equal(ordo_session_select_loss(r.session, 1), ORDO_E_UNSUPPORTED);
    rig_expect_error("no_sync=true");
    rig_close(&r);
  }
}

/* The host keeps sums over the micro-batches, of which a strategy that reduced one of them would reduce that one twice. */
static void a_reduction_in_the_middle_of_a_step_does_not_meet_sums(void **state)
{
  static const struct {
    const char *precision, *strategy, *word;
    uint32_t n_losses;
  } rows[] = {{"apex_amp:O5", "fsdp1", "16-bit gradients up in fp32", 0},
              {"apex_amp:O5", "fsdp2", "no_sync=false", 0},
              {"apex_amp:O2", "fsdp2", "in the middle of the step", 0},
              {"apex_amp:O1:num_losses=2", "fsdp1", "several losses are kept apart", 2},
              {"apex_amp:O1:num_losses=2", "fsdp2", "select no losses", 2}};
  (void)state;
  for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
    rig r;
    rig_start(&r, &(rig_options){.precision = rows[k].precision, .strategy = rows[k].strategy, .lr = 0.1, .n_micro = 2});
    r.n_losses = rows[k].n_losses;
    rig_expect_ok(rig_set_sync(&r, 1), "nothing is wrong with steps of one micro-batch");
    assert_int_equal(rig_step(&r, NULL), ORDO_E_STATE);
    rig_expect_error("E-CONTROL-SUMS");
    rig_expect_error(rows[k].word);
    rig_expect_ok(rig_set_sync(&r, ORDO_CONTROL_RULE), "the rule again");
    rig_expect_ok(ordo_session_micro_begin(r.session), "and the step goes on");
    rig_close(&r);
    rig_start(&r, &(rig_options){.precision = rows[k].precision, .strategy = rows[k].strategy, .lr = 0.1, .n_micro = 2});
    r.n_losses = rows[k].n_losses;
    for (int64_t value = 1; value >= 0; value--) { /* what was said of one unit is taken back by the same call */
      const ordo_control one = ordo_control_make(ORDO_CONTROL_GRADIENT_SYNC, 0, value);
      rig_expect_ok(ordo_session_control(r.session, 0, &one), "one unit");
    }
    rig_expect_ok(rig_step(&r, NULL), "no unit is told to reduce in the middle");
    rig_close(&r);
  }
}

/* Off until the last micro-batch and then on, the numbers are those of a strategy that was left alone. */
static void switched_on_for_the_last_micro_batch_it_is_the_same_step(void **state)
{
  static const struct {
    const char *precision, *strategy;
    uint32_t n_losses;
  } rows[] = {{"apex_amp:O5", "fsdp1", 0},
              {"apex_amp:O5", "fsdp2", 0},
              {"apex_amp:O5", "ddp", 0},
              {"apex_amp:O1:num_losses=2", "fsdp1", 2},
              {"apex_amp:O1:num_losses=2", "fsdp2", 2}};
  (void)state;
  for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
    rig alone, toggled;
    const rig_options options = {.precision = rows[k].precision, .strategy = rows[k].strategy, .lr = 0.1, .n_micro = 3, .ordered = 1};
    rig_start(&alone, &options);
    rig_start(&toggled, &options);
    alone.n_losses = toggled.n_losses = rows[k].n_losses;
    toggled.toggles_sync = 1;
    for (int step = 0; step < 3; step++) {
      rig_expect_ok(rig_step(&alone, NULL), "left alone");
      rig_expect_ok(rig_step(&toggled, NULL), rows[k].strategy);
    }
    for (int p = 0; p < 3; p++)
      for (int64_t i = 0; i < rig_numel(p); i++)
        assert_true(rig_weight(&alone, p, i) == rig_weight(&toggled, p, i));
    rig_close(&alone);
    rig_close(&toggled);
  }
}

/* no_sync=false adds reductions up in fp32; told only to accumulate, 16-bit gradients would add up in 16 bits. */
static void gradients_do_not_add_up_in_16_bits_by_a_setting(void **state)
{
  static const char *const strategies[] = {"fsdp1:no_sync=false", "fsdp2:no_sync=false"};
  (void)state;
  for (int k = 0; k < 2; k++) {
    rig r;
    rig_start(&r, &(rig_options){.precision = "apex_amp:O5", .strategy = strategies[k], .lr = 0.1, .n_micro = 2});
    assert_int_equal(rig_set_sync(&r, 0), ORDO_E_UNSUPPORTED);
    rig_expect_error("E-CONTROL-SUMS");
    rig_expect_error("no_sync=true");
    rig_expect_ok(rig_set_sync(&r, 1), "what it does anyway");
    rig_expect_ok(rig_step(&r, NULL), "step");
    rig_close(&r);
    rig_start(&r, &(rig_options){.precision = "apex_amp:O4", .strategy = strategies[k], .lr = 0.1, .n_micro = 2}); /* fp32 gradients may */
    r.toggles_sync = 1;
    rig_expect_ok(rig_step(&r, NULL), "fp32 gradients");
    rig_close(&r);
  }
}

/* ---- state ---- */

static unsigned char kept[256];
static size_t kept_size;

static void the_scaler_goes_on_where_it_was(void **state)
{
  rig a, b;
  ordo_step_result ra, rb;
  (void)state;
  const rig_options options = {.precision = "apex_amp:O1:window=3", .strategy = "ddp", .lr = 0.1};
  rig_start(&a, &options);
  rig_start(&b, &options);
  a.bad_rank = 0;
  for (int i = 0; i < 5; i++) { /* down twice, three clean steps but one */
    rig_expect_ok(rig_step(&a, NULL), "a");
    a.bad_rank = i < 1 ? 0 : -1;
  }
  kept_size = sizeof kept;
  rig_expect_ok(ordo_session_precision_save(a.session, 0, kept, &kept_size), "save");
  rig_expect_ok(ordo_session_precision_load(b.session, 0, kept, kept_size, NULL), "load");
  for (int i = 0; i < 8; i++) {
    rig_expect_ok(rig_step(&a, &ra), "a");
    rig_expect_ok(rig_step(&b, &rb), "b");
    assert_true(ra.loss_scale == rb.loss_scale);
  }
  assert_true(ra.loss_scale != 65536.0);
  rig_close(&a);
  rig_close(&b);
}

/* What another run saved is used under the options of this one. */
static void a_state_out_of_bounds_is_refused(void)
{
  static const struct {
    double scale;
    int64_t counter, stuck;
    const char *word;
  } rows[] = {{1e30, 0, 0, "above max_loss_scale=1024"},
              {8.0, 0, 0, "below min_loss_scale=16"},
              {5e-324, 0, 0, "is damaged"},
              {1e300, 0, 0, "is damaged"},
              {64.0, INT64_MAX, 0, "is damaged"},
              {64.0, 0, INT64_MAX, "is damaged"},
              {64.0, -1, 0, "is damaged"},
              {64.0, 0, -1, "is damaged"},
              {0.0, 0, 0, "is damaged"}};
  unsigned char blob[256];
  size_t size = sizeof blob;
  rig r;
  rig_start(&r, &(rig_options){.precision = "apex_amp:O1:window=3:min_loss_scale=16:max_loss_scale=1024:init_scale=256",
                               .strategy = "ddp",
                               .lr = 0.01});
  rig_expect_ok(ordo_session_precision_save(r.session, 0, blob, &size), "save");
  for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
    memcpy(blob + 8, &rows[k].scale, 8);
    memcpy(blob + 16, &rows[k].counter, 8);
    memcpy(blob + 24, &rows[k].stuck, 8);
    assert_int_equal(ordo_session_precision_load(r.session, 0, blob, size, NULL), ORDO_E_INVALID);
    rig_expect_error(rows[k].word);
  }
  ordo_step_result result;
  rig_expect_ok(rig_step(&r, &result), "nothing of it was taken");
  assert_true(result.loss_scale == 256.0);
  rig_close(&r);
}

static void a_state_that_does_not_fit(void **state)
{
  rig r;
  unsigned char blob[256];
  size_t size = sizeof blob, small = 3;
  double bad = (double)NAN;
  (void)state;
  rig_start(&r, &(rig_options){.precision = "apex_amp:O1:num_losses=3", .strategy = "ddp", .lr = 0.1});
  rig_expect_ok(ordo_session_precision_save(r.session, 0, NULL, &size), "ask");
  assert_int_equal(size, 8 + 3 * 24);
  assert_int_equal(ordo_session_precision_save(r.session, 0, blob, &small), ORDO_E_INVALID);
  rig_expect_error("there is room for 3");
  rig_expect_ok(ordo_session_precision_save(r.session, 0, blob, &size), "save");
  assert_int_equal(ordo_session_precision_load(r.session, 0, blob, size - 8, NULL), ORDO_E_INVALID);
  rig_expect_error("8 too few");
  assert_int_equal(ordo_session_precision_load(r.session, 0, blob, 4, NULL), ORDO_E_INVALID);
  rig_expect_error("no state of apex_amp");
  assert_int_equal(ordo_session_precision_load(r.session, 0, NULL, 0, NULL), ORDO_E_NOT_FOUND);
  assert_int_equal(ordo_session_precision_load(r.session, 1, blob, size, NULL), ORDO_E_INVALID);
  memcpy(blob + 8 + 24, &bad, sizeof bad);
  assert_int_equal(ordo_session_precision_load(r.session, 0, blob, size, NULL), ORDO_E_INVALID);
  rig_expect_error("loss 1 has scale nan");
  rig_close(&r);
  a_state_out_of_bounds_is_refused();
  rig_start(&r, &(rig_options){.precision = "apex_amp:O1:num_losses=2", .strategy = "ddp", .lr = 0.1});
  assert_int_equal(ordo_session_precision_load(r.session, 0, blob, size, NULL), ORDO_E_INVALID);
  rig_expect_error("the scalers of 3 losses, this run has num_losses=2");
  rig_close(&r);
  rig_start(&r, &(rig_options){.precision = "apex_amp:O0", .strategy = "ddp", .lr = 0.1});
  assert_int_equal(ordo_session_precision_load(r.session, 0, blob, size, NULL), ORDO_E_INVALID);
  rig_expect_error("O0 has no loss scaler");
  rig_close(&r);
  rig_start(&r, &(rig_options){.strategy = "ddp", .lr = 0.1});
  assert_int_equal(ordo_session_precision_load(r.session, 0, blob, size, NULL), ORDO_E_NOT_FOUND);
  rig_expect_error("E-RESUME-STATE");
  rig_close(&r);
}

/* In apex a restored weight was undone by its stale master at the first step. */
static void a_restored_weight_reaches_master_and_model(void **state)
{
  rig r;
  float fresh[RIG_MOST];
  (void)state;
  rig_start(&r, &(rig_options){.precision = "apex_amp:O2", .strategy = "ddp", .lr = 0.0});
  for (int64_t i = 0; i < rig_numel(1); i++)
    fresh[i] = 1.0f + 0x1p-20f * (float)i;
  rig_expect_ok(ordo_session_import_param(r.session, ordo_session_model(r.session, 0)->params[1], -1, fresh), "import");
  for (int step = 0; step < 2; step++) {
    for (int64_t i = 0; i < rig_numel(1); i++)
      assert_true(rig_weight(&r, 1, i) == fresh[i] && rig_stored(&r, 1, i) == rig_round(ORDO_F16, fresh[i]));
    rig_expect_ok(rig_step(&r, NULL), "a step of rate 0");
  }
  rig_close(&r);
}

static ordo_status load_when_restoring(void *data, ordo_step step)
{
  rig *r = data;
  if (step == ORDO_STEP_RESTORE_PRECISION)
    return ordo_session_precision_load(r->session, 0, kept, kept_size, "0.1.0");
  if (step == ORDO_STEP_RESTORE_SCHEDULER)
    return ordo_session_resume_at(r->session, 0, 5, 3);
  return ORDO_OK;
}

/* The counters of a run that goes on: bias correction and schedule do not begin again. */
static void a_resumed_run_counts_on(void **state)
{
  rig r;
  ordo_step_result result;
  (void)state;
  rig_start(&r, &(rig_options){.precision = "apex_amp:O1:window=3", .strategy = "ddp", .lr = 0.1});
  r.bad_rank = 0;
  rig_expect_ok(rig_step(&r, NULL), "overflow");
  kept_size = sizeof kept;
  rig_expect_ok(ordo_session_precision_save(r.session, 0, kept, &kept_size), "save");
  assert_int_equal(ordo_session_resume_at(r.session, 0, 5, 3), ORDO_E_STATE); /* after the first step */
  rig_close(&r);
  rig_start(&r, &(rig_options){.precision = "apex_amp:O1:window=3",
                               .strategy = "ddp",
                               .lr = 0.1,
                               .plan_flags = ORDO_PLAN_RESUME,
                               .restore = load_when_restoring});
  assert_int_equal(ordo_session_resume_at(r.session, 0, 2, 3), ORDO_E_INVALID);
  rig_expect_error("E-RESUME-COUNTERS");
  rig_expect_ok(rig_step(&r, &result), "step");
  assert_int_equal(result.step, 6);
  assert_int_equal(r.last_update, 4);
  assert_int_equal(r.last_schedule, 4);
  assert_true(result.loss_scale == 32768.0);
  rig_close(&r);
}

/* Where the restore ran before the initialisation, resuming failed with a missing attribute; here it says so. */
static void a_state_that_comes_before_the_scaler(void **state)
{
  static const char blob[32] = "";
  ordo_plan *plan = NULL;
  rig r;
  (void)state;
  rig_start(&r, &(rig_options){.precision = "apex_amp:O2", .strategy = "ddp", .lr = 0.1});
  const ordo_plan_request request = {.struct_size = sizeof request, .strategy = "ddp", .precision = "apex_amp:O2", .ranks = rig_ranks};
  const ordo_session_options options = {.struct_size = sizeof options, .comm = rig_provider, .seed = 1};
  ordo_session *session = NULL;
  rig_expect_ok(ordo_plan_create(rig_context, &request, &plan), "plan");
  rig_expect_ok(ordo_session_create(rig_context, plan, &r.embedder, &options, &session), "create");
  rig_expect_ok(ordo_session_run(session, "mesh.init"), "mesh.init");
  rig_expect_ok(ordo_session_run(session, "model.build"), "model.build");
  assert_int_equal(ordo_session_precision_load(session, 0, blob, sizeof blob, NULL), ORDO_E_STATE);
  rig_expect_error("before precision.wrap_optimizer(apex_amp) made the scaler");
  rig_expect_ok(ordo_session_setup(session), "and the set-up goes on");
  ordo_session_destroy(session);
  ordo_plan_destroy(plan);
  rig_close(&r);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(contradicting_options_are_refused),
      cmocka_unit_test(a_half_model_is_refused),
      cmocka_unit_test(an_embedder_of_fp32_is_refused),
      cmocka_unit_test(an_optimizer_of_fp32_needs_masters),
      cmocka_unit_test(an_overflow_in_the_first_step),
      cmocka_unit_test(overflow_for_ever_stops),
      cmocka_unit_test(nan_in_weights_is_named),
      cmocka_unit_test(without_a_dynamic_scale_the_step_is_refused),
      cmocka_unit_test(another_scale_restored_on_one_rank_stops_all),
      cmocka_unit_test(a_loss_that_does_not_exist),
      cmocka_unit_test(losses_are_selected_at_every_level),
      cmocka_unit_test(each_loss_has_its_scale),
      cmocka_unit_test(gradients_of_losses_meet_in_one_scale),
      cmocka_unit_test(losses_cannot_be_told_apart_in_shards),
      cmocka_unit_test(a_reduction_in_the_middle_of_a_step_does_not_meet_sums),
      cmocka_unit_test(switched_on_for_the_last_micro_batch_it_is_the_same_step),
      cmocka_unit_test(gradients_do_not_add_up_in_16_bits_by_a_setting),
      cmocka_unit_test(the_scaler_goes_on_where_it_was),
      cmocka_unit_test(a_state_that_does_not_fit),
      cmocka_unit_test(a_restored_weight_reaches_master_and_model),
      cmocka_unit_test(a_resumed_run_counts_on),
      cmocka_unit_test(a_state_that_comes_before_the_scaler),
  };
  return rig_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
