/* test_table.c - apex_amp's table called by hand: what a correct host never does, shards with padding, empty shards, memory that runs out.
 */
#include "apex_amp.h"

#include <ordo/half.h>
#include <ordo/plugin.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

extern const ordo_plugin ordo_plugin_entry;

enum { PARAMS = 2, NUMEL = 12, USED = 10 };

/* A host with one model: a matrix, whose leaf has two elements of padding, and an empty shard. */
typedef struct table {
  ordo_host host;
  ordo_job job;
  ordo_mesh mesh;
  ordo_model model;
  ordo_param params[PARAMS];
  const ordo_param *param_list[PARAMS];
  ordo_leaf leaves[PARAMS], masters[PARAMS];
  ordo_leaf *leaf_list[PARAMS];
  ordo_placement placements[PARAMS];
  ordo_chunk chunk;
  uint16_t data[NUMEL], grad[NUMEL];
  const char *level, *losses;
  char text[2048];
  int allocations, blocks; /* how many more succeed; how many live */
  double metric;
  const ordo_precision *precision;
  void *self;
} table;

static ordo_status fail_(void *ctx, ordo_status status, const char *text, const char *hint)
{
  table *t = ctx;
  assert_non_null(hint);
  snprintf(t->text, sizeof t->text, "%s", text);
  return status;
}

static const char *option(void *ctx, const char *key)
{
  const table *t = ctx;
  return strcmp(key, "opt_level") == 0 ? t->level : NULL;
}

static ordo_status option_int(void *ctx, const char *key, int64_t *value)
{
  (void)ctx;
  if (strcmp(key, "num_losses") == 0)
    *value = 1;
  else if (strcmp(key, "delay_unscale") == 0)
    *value = 0;
  else
    return ORDO_E_NOT_FOUND;
  return ORDO_OK;
}

static ordo_status option_real(void *ctx, const char *key, double *value)
{
  (void)ctx, (void)key, (void)value;
  return ORDO_E_NOT_FOUND;
}

static void *alloc_(void *ctx, size_t bytes, uint32_t tag)
{
  table *t = ctx;
  (void)tag;
  if (bytes == 0 || t->allocations-- <= 0)
    return NULL;
  t->blocks++;
  return calloc(1, bytes);
}

static void free_(void *ctx, void *memory)
{
  table *t = ctx;
  t->blocks -= memory != NULL;
  free(memory);
}

static ordo_status set_master(void *ctx, ordo_leaf *leaf, float *data, float *grad)
{
  table *t = ctx;
  ordo_leaf *master = &t->masters[leaf->index];
  *master = *leaf;
  master->dtype = master->grad_dtype = ORDO_F32;
  master->data = data;
  master->grad = grad;
  leaf->master = master;
  return ORDO_OK;
}

static ordo_status convert_param(void *ctx, const ordo_param *param, ordo_dtype dtype, ordo_dtype grad_dtype, uint32_t flags)
{
  table *t = ctx;
  ordo_param *own = &t->params[param->index];
  assert_int_equal(flags, 0);
  own->dtype = t->leaves[own->index].dtype = dtype;
  own->grad_dtype = t->leaves[own->index].grad_dtype = grad_dtype;
  return ORDO_OK;
}

static void metric(void *ctx, const char *name, double value)
{
  assert_string_equal(name, "loss_scale");
  ((table *)ctx)->metric = value;
}

static void describe(table *t)
{
  for (uint32_t i = 0; i < PARAMS; i++) {
    t->params[i] = (ordo_param){.struct_size = sizeof t->params[i],
                                .name = i ? "empty" : "w",
                                .index = i,
                                .dtype = ORDO_F32,
                                .grad_dtype = ORDO_F32,
                                .flags = ORDO_PARAM_REQUIRES_GRAD,
                                .ndim = 2,
                                .shape = {2, 5},
                                .numel = USED};
    t->param_list[i] = &t->params[i];
    t->placements[i].struct_size = sizeof t->placements[i];
    t->leaves[i] = (ordo_leaf){.struct_size = sizeof t->leaves[i],
                               .name = t->params[i].name,
                               .index = i,
                               .state = ORDO_LEAF_LIVE,
                               .flags = ORDO_PARAM_REQUIRES_GRAD,
                               .grad_state = ORDO_GRAD_HELD,
                               .dtype = ORDO_F32,
                               .grad_dtype = ORDO_F32,
                               .placement = &t->placements[i]};
    t->leaf_list[i] = &t->leaves[i];
  }
  t->leaves[0].data = t->data;
  t->leaves[0].grad = t->grad;
  t->leaves[0].numel = NUMEL;
  t->chunk = (ordo_chunk){.struct_size = sizeof t->chunk, .param = &t->params[0], .kind = ORDO_CHUNK_FLAT, .end = USED};
  t->placements[0].n_chunks = 1;
  t->placements[0].chunks = &t->chunk;
  t->model = (ordo_model){.struct_size = sizeof t->model,
                          .name = "model",
                          .n_params = PARAMS,
                          .n_leaves = PARAMS,
                          .params = t->param_list,
                          .leaves = t->leaf_list};
}

static table *open_table(const char *level)
{
  table *t = calloc(1, sizeof *t);
  assert_non_null(t);
  t->level = level;
  t->allocations = 1000;
  describe(t);
  t->host = (ordo_host){.struct_size = sizeof t->host, .ctx = t, .fail = fail_};
  t->mesh = (ordo_mesh){.struct_size = sizeof t->mesh, .size = 1};
  t->job = (ordo_job){.struct_size = sizeof t->job,
                      .ctx = t,
                      .host = &t->host,
                      .mesh = &t->mesh,
                      .model = &t->model,
                      .option = option,
                      .option_int = option_int,
                      .option_real = option_real,
                      .alloc = alloc_,
                      .free = free_,
                      .set_master = set_master,
                      .convert_param = convert_param,
                      .metric = metric};
  t->precision = ordo_plugin_entry.get_extension(ORDO_PRECISION_EXTENSION);
  assert_int_equal(t->precision->create(&t->job, &t->self), ORDO_OK);
  return t;
}

static void close_table(table *t)
{
  t->precision->destroy(t->self);
  assert_int_equal(t->blocks, 0);
  free(t);
}

static const ordo_optimizer optimizer = {.struct_size = sizeof optimizer};

static ordo_status wrap(table *t)
{
  return t->precision->wrap_optimizer(t->self, (ordo_optimizer *)&optimizer);
}

static void set_up(table *t)
{
  assert_int_equal(t->precision->validate(t->self), ORDO_OK);
  assert_int_equal(t->precision->convert_model(t->self), ORDO_OK);
  for (int i = 0; i < NUMEL; i++)
    t->data[i] = ordo_f16_from_f32(0.5f * (float)i);
  assert_int_equal(wrap(t), ORDO_OK);
}

static void a_second_initialisation_is_refused(void **state)
{
  table *t = open_table("O2");
  (void)state;
  set_up(t);
  assert_int_equal(wrap(t), ORDO_E_STATE);
  assert_non_null(strstr(t->text, "initialised a second time"));
  assert_int_equal(t->precision->convert_model(t->self), ORDO_E_STATE);
  assert_non_null(strstr(t->text, "called twice"));
  close_table(t);
}

static void an_optimizer_that_was_wrapped_is_refused(void **state)
{
  table *t = open_table("O2");
  ordo_leaf other = {.struct_size = sizeof other};
  (void)state;
  assert_int_equal(t->precision->convert_model(t->self), ORDO_OK);
  t->leaves[0].master = &other;
  assert_int_equal(wrap(t), ORDO_E_INVARIANT);
  assert_non_null(strstr(t->text, "leaf 'w' has a master already"));
  close_table(t);
}

static void without_optimizer_or_weights(void **state)
{
  table *t = open_table("O2");
  (void)state;
  assert_int_equal(t->precision->convert_model(t->self), ORDO_OK);
  assert_int_equal(t->precision->wrap_optimizer(t->self, NULL), ORDO_E_INVALID);
  t->leaves[0].data = NULL;
  assert_int_equal(wrap(t), ORDO_E_INVARIANT);
  assert_non_null(strstr(t->text, "leaf 'w' has no weights"));
  close_table(t);
}

static void undo_lets_it_begin_again(void **state)
{
  table *t = open_table("O2");
  (void)state;
  set_up(t);
  t->precision->undo(t->self, ORDO_STEP_WRAP_OPTIMIZER);
  t->precision->undo(t->self, ORDO_STEP_CONVERT_MODEL);
  assert_int_equal(t->blocks, 2); /* the instance and its scaler */
  describe(t);
  set_up(t);
  close_table(t);
}

static void memory_runs_out(void **state)
{
  (void)state;
  for (int n = 0; n < 5; n++) {
    table *t = open_table("O2");
    assert_int_equal(t->precision->convert_model(t->self), ORDO_OK);
    t->allocations = n;
    assert_int_equal(wrap(t), n < 3 ? ORDO_E_NOMEM : ORDO_OK); /* the list, a master, its gradient */
    close_table(t);
  }
  table *t = open_table("O2");
  void *second = NULL;
  for (int n = 0; n < 2; n++) {
    t->allocations = n;
    assert_int_equal(t->precision->create(&t->job, &second), ORDO_E_NOMEM);
    assert_null(second);
  }
  close_table(t);
}

static void masters_start_from_rounded_weights(void **state)
{
  table *t = open_table("O2");
  (void)state;
  set_up(t);
  for (int i = 0; i < NUMEL; i++)
    assert_true(((const float *)t->masters[0].data)[i] == 0.5f * (float)i);
  assert_int_equal(t->masters[1].numel, 0); /* an empty shard has a master too, so that it stands in the optimizer */
  assert_ptr_equal(t->leaves[1].master, &t->masters[1]);
  close_table(t);
}

static int32_t unscale(table *t)
{
  const ordo_step_info info = {.struct_size = sizeof info, .step = 1, .n_micro_batches = 1};
  int32_t overflow = -1;
  assert_int_equal(t->precision->unscale(t->self, &info, &overflow), ORDO_OK);
  return overflow;
}

/* What lies outside of every chunk is not the model's: NaN there is no overflow, and does not reach the master's gradient. */
static void padding_does_not_vote(void **state)
{
  table *t = open_table("O2");
  (void)state;
  set_up(t);
  for (int i = 0; i < USED; i++)
    t->grad[i] = ordo_f16_from_f32(32768.0f);
  t->grad[USED] = t->grad[USED + 1] = 0x7e00;
  assert_int_equal(unscale(t), 0);
  for (int i = 0; i < NUMEL; i++)
    assert_true(((const float *)t->masters[0].grad)[i] == (i < USED ? 0.5f : 0.0f));
  close_table(t);
}

static void every_kind_of_overflow_votes(void **state)
{
  static const uint16_t bad[] = {0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xffff};
  (void)state;
  for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++)
    for (int at = 0; at < USED; at += USED - 1) {
      table *t = open_table("O2");
      set_up(t);
      t->grad[at] = bad[k];
      assert_int_equal(unscale(t), 1);
      t->grad[at] = 0x7bff; /* the largest finite one */
      assert_int_equal(unscale(t), 0);
      t->grad[at] = bad[k];
      t->leaves[0].grad_state = ORDO_GRAD_NONE; /* contents undefined */
      assert_int_equal(unscale(t), 0);
      close_table(t);
    }
}

static void weights_go_through_their_masters(void **state)
{
  table *t = open_table("O2");
  ordo_chunk chunk = {.struct_size = sizeof chunk, .param = &t->params[0], .kind = ORDO_CHUNK_FLAT, .leaf_offset = 2, .begin = 2, .end = 5};
  const float fresh[3] = {1.0f + 0x1p-20f, -2.0f, 3.0f};
  float back[3];
  const ordo_state_ops *ops = t->precision->state;
  (void)state;
  set_up(t);
  assert_int_equal(ops->import_chunk(t->self, &t->leaves[0], &chunk, -1, fresh), ORDO_OK);
  assert_int_equal(t->data[2], ordo_f16_from_f32(1.0f)); /* the weight is rounded, its master is not */
  assert_int_equal(ops->export_chunk(t->self, &t->leaves[0], &chunk, -1, back), ORDO_OK);
  assert_memory_equal(back, fresh, sizeof fresh);
  assert_int_equal(t->data[1], ordo_f16_from_f32(0.5f));
  assert_int_equal(ops->export_chunk(t->self, &t->leaves[0], &chunk, 0, back), ORDO_E_UNSUPPORTED);
  chunk.leaf_offset = NUMEL - 2;
  assert_int_equal(ops->import_chunk(t->self, &t->leaves[0], &chunk, -1, fresh), ORDO_E_INVALID);
  close_table(t);
}

/* Each step, with the scale of that step: a line of a log is read without those before it. */
static void the_scale_of_every_step_is_reported(void **state)
{
  table *t = open_table("O2");
  (void)state;
  set_up(t);
  assert_int_equal(t->precision->update_loss_scale(t->self, 0, 0), ORDO_OK);
  assert_true(t->metric == 65536.0);
  assert_int_equal(t->precision->update_loss_scale(t->self, 0, 1), ORDO_OK);
  assert_true(t->metric == 65536.0);
  assert_int_equal(t->precision->update_loss_scale(t->self, 0, 0), ORDO_OK);
  assert_true(t->metric == 32768.0);
  assert_int_equal(t->precision->update_loss_scale(t->self, 1, 1), ORDO_E_INVALID);
  assert_non_null(strstr(t->text, "loss_id 1 is out of range"));
  assert_true(t->precision->loss_scale(t->self, 7) == 0.0);
  close_table(t);
  t = open_table("O5");
  set_up(t);
  assert_int_equal(t->precision->update_loss_scale(t->self, 0, 0), ORDO_OK);
  assert_true(t->metric == 0.0); /* nothing is scaled */
  close_table(t);
}

/* It was accepted, and nothing of it converted, scaled back or looked at. */
static void a_model_of_fp64_is_refused(void **state)
{
  static const char *const levels[] = {"O0", "O1", "O2", "O3", "O4", "O5"};
  (void)state;
  for (int l = 0; l < 6; l++) {
    table *t = open_table(levels[l]);
    t->params[1].dtype = ORDO_F64;
    assert_int_equal(t->precision->validate(t->self), ORDO_E_INVALID);
    assert_non_null(strstr(t->text, "parameter 'empty' is fp64"));
    t->params[1].dtype = ORDO_I8; /* frozen codes of a quantiser are no floats, and nobody's to convert */
    assert_int_equal(t->precision->validate(t->self), ORDO_OK);
    close_table(t);
  }
}

static void an_older_host_cannot_convert(void **state)
{
  table *t = open_table("O2");
  void *second = NULL;
  (void)state;
  t->job.struct_size = offsetof(ordo_job, convert_param);
  assert_int_equal(t->precision->create(&t->job, &second), ORDO_E_UNSUPPORTED);
  assert_null(ordo_plugin_entry.get_extension(NULL));
  assert_null(ordo_plugin_entry.get_extension("ordo.strategy/1"));
  close_table(t);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_second_initialisation_is_refused),
      cmocka_unit_test(an_optimizer_that_was_wrapped_is_refused),
      cmocka_unit_test(without_optimizer_or_weights),
      cmocka_unit_test(undo_lets_it_begin_again),
      cmocka_unit_test(memory_runs_out),
      cmocka_unit_test(masters_start_from_rounded_weights),
      cmocka_unit_test(padding_does_not_vote),
      cmocka_unit_test(every_kind_of_overflow_votes),
      cmocka_unit_test(weights_go_through_their_masters),
      cmocka_unit_test(the_scale_of_every_step_is_reported),
      cmocka_unit_test(a_model_of_fp64_is_refused),
      cmocka_unit_test(an_older_host_cannot_convert),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
