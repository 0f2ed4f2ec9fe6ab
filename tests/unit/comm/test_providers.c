/* test_providers.c - the single rank and the fake world. */
#include "testing.h"

static void one_rank_copies_and_scales(void **state)
{
  struct ordo_context context = test_context();
  ordo_comm_provider *provider = NULL;
  const ordo_comm *comm = NULL;
  (void)state;
  assert_int_equal(ordo_comm_single_create(&context, &provider), ORDO_OK);
  assert_string_equal(provider->name, "single");
  assert_int_equal(provider->split(provider->ctx, 0, 0, 1, "axis", &comm), ORDO_OK);
  float send[3] = {2, 4, 6}, recv[3] = {0};
  ordo_collective c = ordo_collective_make(ORDO_ALL_REDUCE, send, recv, 3, ORDO_F32);
  c.op = ORDO_AVG;
  c.factor = 0.5;
  assert_int_equal(ordo_comm_run(comm, &c), ORDO_OK);
  assert_true(recv[0] == 1.0f && recv[1] == 2.0f && recv[2] == 3.0f && send[0] == 2.0f);
  assert_int_equal(ordo_all_gather(comm, send, recv, 3, ORDO_F32), ORDO_OK);
  assert_memory_equal(send, recv, sizeof send);
  assert_int_equal(ordo_reduce_scatter(comm, send, recv, 3, ORDO_F32, 2.0), ORDO_OK);
  assert_true(recv[2] == 12.0f);
  int64_t three = 3;
  c = ordo_collective_make(ORDO_ALL_TO_ALL_V, send, recv, 0, ORDO_F32);
  c.send_counts = c.recv_counts = &three;
  assert_int_equal(ordo_comm_run(comm, &c), ORDO_OK);
  assert_memory_equal(send, recv, sizeof send);
  assert_int_equal(ordo_barrier(comm), ORDO_OK);
  provider->release(provider->ctx, comm);
  ordo_comm_provider_destroy(provider);
  ordo_errors_free(context.errors);
}

static void memory_is_zeroed_and_aligned(void **state)
{
  ordo_comm_provider *provider = NULL;
  const ordo_comm *comm = NULL;
  void *memory = NULL;
  (void)state;
  assert_int_equal(ordo_comm_single_create(NULL, &provider), ORDO_OK);
  assert_int_equal(provider->split(provider->ctx, 0, 0, 1, "axis", &comm), ORDO_OK);
  for (size_t bytes = 0; bytes < 1000; bytes += 333) {
    assert_int_equal(comm->alloc(comm->ctx, bytes, &memory), ORDO_OK);
    assert_int_equal((uintptr_t)memory % 64, 0);
    for (size_t i = 0; i < bytes; i++)
      assert_int_equal(((char *)memory)[i], 0);
    assert_int_equal(comm->free(comm->ctx, memory), ORDO_OK);
  }
  assert_int_equal(comm->alloc(comm->ctx, SIZE_MAX, &memory), ORDO_E_NOMEM);
  assert_null(memory);
  assert_int_equal(comm->free(comm->ctx, NULL), ORDO_OK);
  provider->release(provider->ctx, comm);
  ordo_comm_provider_destroy(provider);
  ordo_comm_provider_destroy(NULL);
}

static void one_rank_cannot_make_two(void **state)
{
  struct ordo_context context = test_context();
  ordo_comm_provider *provider = NULL;
  const ordo_comm *comm = NULL;
  (void)state;
  ordo_comm_single_create(&context, &provider);
  assert_int_equal(provider->split(provider->ctx, 0, 0, 2, "tp", &comm), ORDO_E_INVALID);
  assert_string_equal(last_code(&context), "E-MESH-SIZE");
  assert_contains(provider->error_text(provider->ctx), "'tp' of 2 ranks");
  ordo_comm_provider_destroy(provider);
  ordo_errors_free(context.errors);
}

static void fake_ranks_keep_data_local(void **state)
{
  struct ordo_context context = test_context();
  ordo_comm_provider *provider = NULL;
  const ordo_comm *comm = NULL;
  (void)state;
  assert_int_equal(ordo_comm_fake_create(&context, 2, 1000, &provider), ORDO_OK);
  assert_int_equal(provider->split(provider->ctx, 7, 2, 4, "axis", &comm), ORDO_OK);
  assert_int_equal(comm->rank, 2);
  assert_int_equal(comm->size, 4);
  float all[8] = {0, 1, 2, 3, 4, 5, 6, 7}, piece[2] = {-1, -2};
  assert_int_equal(ordo_reduce_scatter(comm, all, piece, 2, ORDO_F32, 0.25), ORDO_OK);
  assert_true(piece[0] == 4.0f && piece[1] == 5.0f);
  piece[0] = 9.0f;
  assert_int_equal(ordo_all_gather(comm, piece, all, 2, ORDO_F32), ORDO_OK);
  assert_true(all[3] == 3.0f && all[4] == 9.0f && all[5] == 5.0f && all[6] == 6.0f);
  assert_int_equal(ordo_all_reduce(comm, all, 8, ORDO_F32, ORDO_AVG, 1.0), ORDO_OK);
  assert_true(all[7] == 7.0f);
  provider->release(provider->ctx, comm);
  ordo_comm_provider_destroy(provider);
  ordo_errors_free(context.errors);
}

static void impossible_fake_worlds_are_refused(void **state)
{
  struct ordo_context context = test_context();
  ordo_comm_provider *provider = NULL;
  const ordo_comm *comm = NULL;
  (void)state;
  assert_int_equal(ordo_comm_fake_create(&context, 0, 0, &provider), ORDO_E_INVALID);
  assert_int_equal(ordo_comm_fake_create(&context, 4, 4, &provider), ORDO_E_INVALID);
  assert_int_equal(ordo_comm_fake_create(&context, -1, 4, &provider), ORDO_E_INVALID);
  assert_string_equal(last_code(&context), "E-MESH-SIZE");
  assert_int_equal(ordo_comm_fake_create(&context, 0, 4, &provider), ORDO_OK);
  assert_int_equal(provider->split(provider->ctx, 0, 3, 2, "tp", &comm), ORDO_E_INVALID);
  ordo_comm_provider_destroy(provider);
  ordo_errors_free(context.errors);
}

/* Oldest first, 256 at most, labels copied. */
static void the_report_shows_the_last_collectives(void **state)
{
  ordo_comm_provider *provider = NULL;
  const ordo_comm *comm = NULL;
  float buffer[400] = {0};
  char label[16];
  (void)state;
  ordo_comm_single_create(NULL, &provider);
  provider->split(provider->ctx, 0, 0, 1, "ddp", &comm);
  g_autofree char *empty = provider->report(provider->ctx);
  assert_string_equal(empty, "");
  for (int i = 1; i <= 300; i++) {
    ordo_collective c = ordo_collective_make(ORDO_ALL_REDUCE, buffer, buffer, i, ORDO_F32);
    g_snprintf(label, sizeof label, "bucket %d", i);
    c.label = label;
    c.op = ORDO_AVG;
    assert_int_equal(ordo_comm_run(comm, &c), ORDO_OK);
  }
  g_autofree char *report = provider->report(provider->ctx);
  g_auto(GStrv) lines = g_strsplit(report, "\n", -1);
  assert_int_equal(g_strv_length(lines), 257);
  assert_string_equal(lines[0], "45 ddp all_reduce avg 45 f32 'bucket 45' done");
  assert_string_equal(lines[255], "300 ddp all_reduce avg 300 f32 'bucket 300' done");
  provider->release(provider->ctx, comm);
  ordo_comm_provider_destroy(provider);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_rank_copies_and_scales),         cmocka_unit_test(memory_is_zeroed_and_aligned),
      cmocka_unit_test(one_rank_cannot_make_two),           cmocka_unit_test(fake_ranks_keep_data_local),
      cmocka_unit_test(impossible_fake_worlds_are_refused), cmocka_unit_test(the_report_shows_the_last_collectives),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
