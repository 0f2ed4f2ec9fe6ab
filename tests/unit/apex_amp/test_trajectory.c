/* test_trajectory.c - loss scales step by step, as the original classes moved them: the arithmetic alone, and whole sessions in which one
 * rank overflows, another one each time. Skips without the goldens. */
#include "rig.h"
#include "scaler.h"

#include <json-glib/json-glib.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 128 };

typedef struct trajectory {
  const char *name, *options; /* of the golden; of apex_amp */
  int n;
  int overflow[MOST], skipped[MOST];
  double used[MOST], after[MOST];
  int64_t counter[MOST];
} trajectory;

/* Windows are short in the goldens. */
static const struct {
  const char *name, *options;
  amp_scaler scaler;
} RUNS[] = {
    {"apex", "window=4", {1, 65536.0, 2.0, 0.5, 0.0, 16777216.0, 4, 0, 10, 0, 0}},
    {"apex_min_loss_scale", "window=4:min_loss_scale=32768", {1, 65536.0, 2.0, 0.5, 32768.0, 16777216.0, 4, 0, 10, 0, 0}},
    {"torch_gradscaler", "scaler=torch:window=4", {1, 65536.0, 2.0, 0.5, 0.0, HUGE_VAL, 4, 0, 10, 0, 0}},
    {"torch_gradscaler_other_factors",
     "scaler=torch:init_scale=1024:growth_factor=4:backoff_factor=0.25:window=3",
     {1, 1024.0, 4.0, 0.25, 0.0, HUGE_VAL, 3, 0, 10, 0, 0}},
};

static int load(const char *name, trajectory *t)
{
  g_autofree char *path = rig_goldens ? g_build_filename(rig_goldens, "precision", "loss_scaler.json", NULL) : NULL;
  g_autoptr(JsonParser) parser = json_parser_new();
  if (!path || !g_file_test(path, G_FILE_TEST_EXISTS) || !json_parser_load_from_file(parser, path, NULL))
    return 0;
  JsonObject *root = json_node_get_object(json_parser_get_root(parser));
  JsonObject *run = json_object_get_object_member(json_object_get_object_member(root, "runs"), name);
  JsonArray *overflow = json_object_get_array_member(root, "overflow");
  t->n = (int)json_array_get_length(overflow);
  assert_in_range(t->n, 20, MOST);
  for (int i = 0; i < t->n; i++) {
    guint at = (guint)i;
    t->overflow[i] = (int)json_array_get_int_element(overflow, at);
    t->skipped[i] = json_array_get_boolean_element(json_object_get_array_member(run, "skipped"), at);
    t->used[i] = json_array_get_double_element(json_object_get_array_member(run, "scale_used"), at);
    t->after[i] = json_array_get_double_element(json_object_get_array_member(run, "scale_after"), at);
    t->counter[i] = json_array_get_int_element(json_object_get_array_member(run, "counter_after"), at);
  }
  return 1;
}

static void the_arithmetic(void **state)
{
  trajectory t;
  (void)state;
  for (size_t k = 0; k < G_N_ELEMENTS(RUNS); k++) {
    amp_scaler s = RUNS[k].scaler;
    if (!load(RUNS[k].name, &t))
      skip();
    for (int i = 0; i < t.n; i++) {
      assert_true(s.scale == t.used[i]);
      assert_int_equal(amp_scaler_update(&s, t.overflow[i]), 0);
      assert_int_equal(t.skipped[i], t.overflow[i]);
      assert_true(s.scale == t.after[i]);
      assert_int_equal(s.counter, t.counter[i]);
    }
  }
}

/* The gradient is small where the scale is large (2^48 in the last run): infinity comes from the test alone. */
static void sessions(void **state)
{
  static const char *const levels[] = {"O1", "O2"}, *const strategies[] = {NULL, "ddp", "fsdp1", "fsdp2"};
  trajectory t;
  (void)state;
  for (size_t k = 0; k < G_N_ELEMENTS(RUNS); k++)
    for (size_t l = 0; l < 2; l++)
      for (size_t c = 0; c < G_N_ELEMENTS(strategies); c++) {
        g_autofree char *precision = g_strdup_printf("apex_amp:%s:%s", levels[l], RUNS[k].options);
        rig r;
        if (!load(RUNS[k].name, &t))
          skip();
        if (!strategies[c] && rig_ranks > 1)
          continue;
        rig_start(&r, &(rig_options){.strategy = strategies[c], .precision = precision, .lr = 0.1});
        r.still = l == 1; /* fp16 gradients do not bear these scales: they are zero */
        for (int i = 0; i < t.n; i++) {
          ordo_step_result result = {.struct_size = sizeof result};
          float before = rig_weight(&r, 1, 5), stored = rig_stored(&r, 1, 5);
          int64_t updates = r.last_update;
          int schedules = r.scheduler_steps;
          r.bad_rank = t.overflow[i] ? i % rig_ranks : -1;
          r.bad_value = i % 3 == 0 ? (float)NAN : i % 3 == 1 ? (float)INFINITY : -(float)INFINITY;
          rig_expect_ok(rig_step(&r, &result), precision);
          if (result.loss_scale != t.used[i] || result.skipped != t.skipped[i])
            fail_msg("rank %d, %s, step %d: scale %g skipped %d instead of %g %d", rig_me, precision, i, result.loss_scale, result.skipped,
                     t.used[i], t.skipped[i]);
          assert_int_equal(r.last_update, updates + !t.skipped[i]);
          assert_int_equal(r.scheduler_steps, schedules + !t.skipped[i]);
          if (t.skipped[i])
            assert_true(before == rig_weight(&r, 1, 5) && stored == rig_stored(&r, 1, 5));
        }
        rig_close(&r);
      }
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_arithmetic),
      cmocka_unit_test(sessions),
  };
  return rig_main(argc, argv, tests, G_N_ELEMENTS(tests));
}
