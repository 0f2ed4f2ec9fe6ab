/* test_wrap.c - what strategy.wrap refuses before it touches anything, with the smallest job that can ask for it. */
#include "fsdp1.h"

#include <ordo/plugin.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

extern const ordo_plugin ordo_plugin_entry;

typedef struct small_job {
  ordo_host host;
  ordo_comm comm;
  ordo_axis axis;
  ordo_job job;
  ordo_model model;
  ordo_optimizer *optimizer;
  const char *use_orig_params;
  char error[1600];
} small_job;

static ordo_status fail_record(void *ctx, ordo_status status, const char *text, const char *hint)
{
  small_job *j = ctx;
  snprintf(j->error, sizeof j->error, "%s (%s)", text, hint != NULL ? hint : "");
  return status;
}

static void *allocate(void *ctx, size_t bytes, uint32_t tag)
{
  (void)ctx, (void)tag;
  return calloc(1, bytes);
}

static void release(void *ctx, void *memory)
{
  (void)ctx;
  free(memory);
}

static const char *option(void *ctx, const char *key)
{
  (void)ctx, (void)key;
  return NULL;
}

static ordo_status option_int(void *ctx, const char *key, int64_t *value)
{
  const small_job *j = ctx;
  if (strcmp(key, "use_orig_params") != 0 || j->use_orig_params == NULL)
    return ORDO_E_NOT_FOUND;
  *value = strcmp(j->use_orig_params, "yes") == 0;
  return ORDO_OK;
}

static ordo_status option_real(void *ctx, const char *key, double *value)
{
  (void)ctx, (void)key, (void)value;
  return ORDO_E_NOT_FOUND;
}

static ordo_optimizer *optimizer(void *ctx)
{
  return ((small_job *)ctx)->optimizer;
}

static const ordo_strategy *start(small_job *j, const char *use_orig_params, void **instance)
{
  const ordo_strategy *strategy = ordo_plugin_entry.get_extension(ORDO_STRATEGY_EXTENSION);
  memset(j, 0, sizeof *j);
  j->use_orig_params = use_orig_params;
  j->host = (ordo_host){.struct_size = sizeof j->host, .ctx = j, .fail = fail_record};
  j->comm = (ordo_comm){.struct_size = sizeof j->comm, .size = 1};
  j->axis = (ordo_axis){.struct_size = sizeof j->axis, .name = "fsdp1", .kind = ORDO_AXIS_DATA, .size = 1, .comm = &j->comm};
  j->model = (ordo_model){.struct_size = sizeof j->model, .name = "model"};
  j->job = (ordo_job){.struct_size = sizeof j->job,
                      .ctx = j,
                      .host = &j->host,
                      .axis = &j->axis,
                      .model = &j->model,
                      .alloc = allocate,
                      .free = release,
                      .option = option,
                      .option_int = option_int,
                      .option_real = option_real,
                      .optimizer = optimizer};
  assert_int_equal(strategy->create(&j->job, instance), ORDO_OK);
  return strategy;
}

/* accelerate #3256, #17 of transformers PR #28830: the optimizer would go on stepping on parameters that are no longer the model. */
static void an_optimizer_before_a_flat_wrap_is_refused(void **state)
{
  (void)state;
  small_job j;
  void *instance = NULL;
  ordo_optimizer made_too_early = {.struct_size = sizeof made_too_early, .name = "adamw"};
  const ordo_strategy *strategy = start(&j, "no", &instance);
  j.optimizer = &made_too_early;
  assert_int_equal(strategy->wrap(instance), ORDO_E_STATE);
  assert_non_null(strstr(j.error, "'adamw' was created before strategy.wrap(fsdp1)"));
  assert_non_null(strstr(j.error, "use_orig_params=true"));
  strategy->destroy(instance);
}

/* A model of n leaves in n / 4 blocks, by the layout alone. Returns its processor time in seconds. */
static double lay_out(uint32_t n, int views)
{
  const uint32_t n_units = n / 4;
  small_job j;
  void *instance = NULL;
  const ordo_strategy *strategy = start(&j, views ? "yes" : "no", &instance);
  ordo_unit *units = calloc(n_units, sizeof *units);
  ordo_param *params = calloc(n, sizeof *params);
  ordo_leaf *leaves = calloc(n, sizeof *leaves);
  ordo_chunk *chunks = calloc(n, sizeof *chunks);
  ordo_placement *placements = calloc(n, sizeof *placements);
  const void **pointers = calloc(2 * (size_t)n + n_units, sizeof *pointers);
  ordo_mesh mesh = {.struct_size = sizeof mesh};
  assert_true(units && params && leaves && chunks && placements && pointers);
  for (uint32_t u = 0; u < n_units; u++) {
    units[u] = (ordo_unit){.struct_size = sizeof *units, .name = "layer", .class_name = "Block", .index = u};
    pointers[2 * n + u] = &units[u];
  }
  for (uint32_t i = 0; i < n; i++) {
    params[i] = (ordo_param){.struct_size = sizeof *params, .name = "weight", .index = i, .unit = i / 4, .numel = 8, .leaf = &leaves[i]};
    pointers[n + i] = &params[i];
    chunks[i] = (ordo_chunk){.struct_size = sizeof *chunks, .param = &params[i], .kind = ORDO_CHUNK_FLAT, .end = 8};
    placements[i] = (ordo_placement){.struct_size = sizeof *placements, .chunks = &chunks[i], .n_chunks = 1};
    leaves[i] = (ordo_leaf){.struct_size = sizeof *leaves,
                            .index = i,
                            .dtype = ORDO_F32,
                            .grad_dtype = ORDO_F32,
                            .numel = 8,
                            .placement = &placements[i],
                            .params = (const ordo_param *const *)&pointers[n + i],
                            .n_params = 1};
    pointers[i] = &leaves[i];
  }
  j.job.mesh = &mesh;
  j.model.n_units = n_units;
  j.model.units = (const ordo_unit *const *)&pointers[2 * n];
  j.model.n_params = j.model.n_leaves = n;
  j.model.params = (const ordo_param *const *)&pointers[n];
  j.model.leaves = (ordo_leaf *const *)(void *)pointers;
  const clock_t begin = clock();
  assert_int_equal(fsdp1_layout_make(instance), ORDO_OK);
  const double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
  const fsdp1 *self = instance;
  assert_int_equal(self->n_items, n);
  assert_int_equal(self->n_flats, n_units + 1);
  for (uint32_t i = 0; i < n; i++)
    assert_int_equal(self->items[i].flat, i / 4 + 1);
  strategy->destroy(instance);
  free(units);
  free(params);
  free(leaves);
  free(chunks);
  free(placements);
  free(pointers);
  return seconds;
}

/* Each leaf is looked at a few times, not once for each other one: four times the leaves take about four times as long, not sixteen. The
 * second bound is for tools that slow everything down. */
static void twenty_thousand_leaves_are_laid_out_at_once(void **state)
{
  (void)state;
  for (int views = 0; views < 2; views++) {
    const double fewer = lay_out(5000, views), seconds = lay_out(20000, views);
    printf("layout of 5000 leaves %.3f s, of 20000 leaves %.3f s\n", fewer, seconds);
    assert_true(seconds < 0.3 || seconds < 8.0 * fewer);
  }
}

static void destroy_takes_null(void **state)
{
  (void)state;
  const ordo_strategy *strategy = ordo_plugin_entry.get_extension(ORDO_STRATEGY_EXTENSION);
  strategy->destroy(NULL);
  assert_null(ordo_plugin_entry.get_extension(NULL));
  assert_null(ordo_plugin_entry.get_extension("ordo.strategy/2"));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_optimizer_before_a_flat_wrap_is_refused),
      cmocka_unit_test(twenty_thousand_leaves_are_laid_out_at_once),
      cmocka_unit_test(destroy_takes_null),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
