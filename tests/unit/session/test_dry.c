/* test_dry.c - a dry run: who may take part, what has storage, and that set-up and step go on without touching a tensor.
 *
 * What a dry run counts is compared with real runs by tests/estimate; here is what the host itself promises. */
#include "kit.h"

#include <string.h>

static kit *dry_kit(int32_t rank, int32_t ranks, ordo_comm_provider **provider)
{
  kit *k = kit_new();
  assert_int_equal(ordo_comm_fake_create(k->context, rank, ranks, provider), ORDO_OK);
  k->comm = *provider;
  k->options.dry_run = 1;
  return k;
}

static void done(kit *k, ordo_comm_provider *provider)
{
  kit_free(k);
  ordo_comm_provider_destroy(provider);
}

static int64_t peak(const kit *k, uint32_t tag)
{
  int64_t now, most;
  ordo_session_memory(k->session, tag, &now, &most);
  return most;
}

static void a_plugin_that_does_not_declare_it_is_refused_by_name(void **state)
{
  ordo_comm_provider *provider;
  kit *k = dry_kit(1, 4, &provider);
  (void)state;
  kit_add(k, "heavy", KIT_DDP, 4);
  assert_int_equal(kit_create(k), ORDO_E_UNSUPPORTED);
  assert_string_equal(kit_code(k), "E-DRY-RUN-PLUGIN");
  kit_assert_mentions(k, "heavy");
  assert_int_equal(k->log->len, 0); /* none of its code has run */
  done(k, provider);
}

static void dry_run_no_is_not_a_declaration(void **state)
{
  ordo_comm_provider *provider;
  kit *k = dry_kit(1, 4, &provider);
  (void)state;
  kit_add(k, "heavy", KIT_DDP "dry_run=no\n", 4);
  assert_int_equal(kit_create(k), ORDO_E_UNSUPPORTED);
  done(k, provider);
}

static void real_ranks_are_refused(void **state)
{
  kit *k = kit_new();
  (void)state;
  k->options.dry_run = 1;
  assert_int_equal(kit_create(k), ORDO_E_INVALID);
  assert_string_equal(kit_code(k), "E-DRY-RUN-PROVIDER");
  kit_free(k);
}

static void tensors_have_addresses_and_are_counted(void **state)
{
  ordo_comm_provider *provider;
  kit *k = dry_kit(1, 4, &provider);
  const ordo_model *model;
  int64_t bytes = 0;
  (void)state;
  kit_add(k, "light", KIT_DDP "dry_run=yes\n", 4);
  kit_setup(k);
  model = ordo_session_model(k->session, 0);
  for (uint32_t i = 0; i < model->n_leaves; i++) {
    bytes += model->leaves[i]->numel * 4;
    assert_true(ordo_space_has(k->session->space, model->leaves[i]->data));
    assert_true(ordo_space_has(k->session->space, model->leaves[i]->grad));
    assert_ptr_equal(model->leaves[i]->params[0]->data, model->leaves[i]->data);
  }
  assert_int_equal(peak(k, ORDO_MEM_WEIGHTS), bytes);
  assert_int_equal(peak(k, ORDO_MEM_GRADIENTS), bytes);
  done(k, provider);
}

/* weights.sync sends what a real one would: every byte of every replica, once. */
static void weights_are_synchronised_in_the_count(void **state)
{
  ordo_comm_provider *provider;
  kit *k = dry_kit(0, 4, &provider);
  ordo_comm_stats stats = {.struct_size = sizeof stats};
  (void)state;
  kit_add(k, "light", KIT_DDP "dry_run=yes\n", 4);
  kit_setup(k);
  assert_int_equal(ordo_session_comm_stats(k->session, "light", &stats), ORDO_OK);
  assert_int_equal(stats.calls[ORDO_BROADCAST], 1);
  assert_int_equal(stats.bytes[ORDO_BROADCAST], peak(k, ORDO_MEM_WEIGHTS));
  done(k, provider);
}

static void books_have_storage_and_nothing_else(void **state)
{
  ordo_comm_provider *provider;
  kit *k = dry_kit(1, 4, &provider);
  const ordo_comm *comm;
  char *book, *tensor;
  void *window = NULL;
  (void)state;
  kit_add(k, "light", KIT_DDP "dry_run=yes\n", 4);
  kit_setup(k);
  book = ordo_session_alloc(k->session, 1000, ORDO_MEM_OTHER);
  for (int i = 0; i < 1000; i++)
    assert_int_equal(book[i], 0);
  memset(book, 1, 1000);
  tensor = ordo_session_alloc(k->session, (size_t)1 << 30, ORDO_MEM_OPTIMIZER);
  assert_true(ordo_space_has(k->session->space, tensor));
  assert_int_equal(peak(k, ORDO_MEM_OPTIMIZER), (int64_t)1 << 30);
  ordo_session_free(k->session, tensor);
  ordo_session_free(k->session, book);
  comm = ordo_session_mesh(k->session)->axes[0]->comm;
  assert_int_equal(comm->alloc(comm->ctx, 4096, &window), ORDO_OK);
  assert_true(ordo_space_has(k->session->space, window));
  assert_int_equal(comm->free(comm->ctx, window), ORDO_OK);
  done(k, provider);
}

/* Votes still work: what has storage is exchanged as with peers that contribute nothing. Tensors are left alone. */
static void collectives_know_what_has_storage(void **state)
{
  ordo_comm_provider *provider;
  kit *k = dry_kit(2, 4, &provider);
  const ordo_comm *comm;
  int32_t mine = 7, all[4] = {0};
  const ordo_comm_piece pieces[2] = {{0, 0, 8}, {8, 64, 8}};
  ordo_collective c;
  char *tensor;
  (void)state;
  kit_add(k, "light", KIT_DDP "dry_run=yes\n", 4);
  kit_setup(k);
  comm = ordo_session_mesh(k->session)->axes[0]->comm;
  assert_int_equal(ordo_all_gather(comm, &mine, all, 1, ORDO_I32), ORDO_OK);
  assert_int_equal(all[2], 7);
  assert_int_equal(all[0], 0);
  tensor = ordo_session_alloc(k->session, 4096, ORDO_MEM_WEIGHTS);
  assert_int_equal(ordo_all_reduce(comm, tensor, 64, ORDO_F32, ORDO_SUM, 0.5), ORDO_OK);
  assert_int_equal(ordo_reduce_scatter(comm, tensor, tensor + 2048, 64, ORDO_F32, 1.0), ORDO_OK);
  assert_int_equal(ordo_all_gather(comm, &mine, tensor, 1, ORDO_I32), ORDO_OK);
  c = ordo_collective_make(ORDO_ALL_GATHER, tensor, tensor + 2048, 16, ORDO_F32);
  c.pieces = pieces;
  c.n_pieces = 2;
  assert_int_equal(ordo_comm_run(comm, &c), ORDO_OK);
  c.count = 17; /* still checked */
  assert_int_equal(ordo_comm_run(comm, &c), ORDO_E_INVALID);
  ordo_session_free(k->session, tensor);
  done(k, provider);
}

/* A rank without a token: others, which do not exist, have some. */
static void a_step_without_weight_goes_on(void **state)
{
  ordo_comm_provider *provider;
  kit *k = dry_kit(1, 4, &provider);
  (void)state;
  kit_add(k, "light", KIT_DDP "dry_run=yes\n", 4);
  kit_setup(k);
  assert_int_equal(ordo_session_step_begin(k->session, 1, 0.0), ORDO_OK);
  assert_int_equal(ordo_session_micro_begin(k->session), ORDO_OK);
  done(k, provider);
}

static void a_real_session_on_the_fake_provider_has_storage(void **state)
{
  ordo_comm_provider *provider;
  kit *k = dry_kit(1, 4, &provider);
  float *data;
  (void)state;
  k->options.dry_run = 0;
  kit_add(k, "heavy", KIT_DDP, 4);
  kit_setup(k);
  data = ordo_session_model(k->session, 0)->leaves[0]->data;
  assert_null(k->session->space);
  data[0] = 1.0f;
  done(k, provider);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_plugin_that_does_not_declare_it_is_refused_by_name),
      cmocka_unit_test(dry_run_no_is_not_a_declaration),
      cmocka_unit_test(real_ranks_are_refused),
      cmocka_unit_test(tensors_have_addresses_and_are_counted),
      cmocka_unit_test(weights_are_synchronised_in_the_count),
      cmocka_unit_test(books_have_storage_and_nothing_else),
      cmocka_unit_test(collectives_know_what_has_storage),
      cmocka_unit_test(a_step_without_weight_goes_on),
      cmocka_unit_test(a_real_session_on_the_fake_provider_has_storage),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
