/* test_collective.c - arguments are checked by name, the same on every provider; names in texts; counters. */
#include "testing.h"
#include "comm/channel.h"

#include <math.h>

typedef struct fixture {
  struct ordo_context context;
  ordo_comm_provider *provider;
  const ordo_comm *comm;
} fixture;

static int set_up(void **state)
{
  fixture *f = g_new0(fixture, 1);
  f->context = test_context();
  *state = f;
  return ordo_comm_fake_create(&f->context, 1, 4, &f->provider) || f->provider->split(f->provider->ctx, 0, 1, 4, "axis", &f->comm);
}

static int tear_down(void **state)
{
  fixture *f = *state;
  f->provider->release(f->provider->ctx, f->comm);
  ordo_comm_provider_destroy(f->provider);
  ordo_errors_free(f->context.errors);
  g_free(f);
  return 0;
}

static void assert_refused(fixture *f, const ordo_collective *c, ordo_status status, const char *argument)
{
  ordo_request *request = NULL;
  ordo_errors_clear(f->context.errors);
  assert_int_equal(f->comm->start(f->comm->ctx, c, &request), status);
  assert_null(request);
  assert_string_equal(last_code(&f->context), "E-COMM-ARGUMENT");
  assert_contains(last_text(&f->context), argument);
  assert_contains(last_text(&f->context), "axis");
}

static void wrong_arguments_are_named(void **state)
{
  fixture *f = *state;
  float buffer[64] = {0};
  int64_t counts[4] = {1, 1, -1, 1};
  ordo_collective good = ordo_collective_make(ORDO_ALL_REDUCE, buffer, buffer, 4, ORDO_F32), c;
  assert_int_equal(ordo_comm_run(f->comm, &good), ORDO_OK);
#define REFUSED(STATUS, ARGUMENT, ...)       \
  do {                                       \
    c = good;                                \
    __VA_ARGS__;                             \
    assert_refused(f, &c, STATUS, ARGUMENT); \
  } while (0)
  REFUSED(ORDO_E_INVALID, "`kind`", c.kind = 0);
  REFUSED(ORDO_E_INVALID, "`kind`", c.kind = 10);
  REFUSED(ORDO_E_INVALID, "`dtype`", c.dtype = ORDO_DTYPE_OPAQUE);
  REFUSED(ORDO_E_INVALID, "`op`", c.op = 0);
  REFUSED(ORDO_E_INVALID, "`op`", c.op = 5);
  REFUSED(ORDO_E_INVALID, "`count`", c.count = -1);
  REFUSED(ORDO_E_INVALID, "`count`", c.count = INT64_MAX / 32);
  REFUSED(ORDO_E_INVALID, "`flags`", c.flags = 6);
  REFUSED(ORDO_E_INVALID, "`send`", c.send = NULL);
  REFUSED(ORDO_E_INVALID, "`recv`", c.recv = NULL);
  REFUSED(ORDO_E_INVALID, "`recv`", c.recv = buffer + 1);
  REFUSED(ORDO_E_INVALID, "`factor`", c.factor = 0.5; c.op = ORDO_MAX);
  REFUSED(ORDO_E_INVALID, "`factor`", c.factor = 0.5; c.dtype = ORDO_I32);
  REFUSED(ORDO_E_INVALID, "`factor`", c.factor = (double)NAN);
  REFUSED(ORDO_E_UNSUPPORTED, "`op`", c.op = ORDO_AVG; c.dtype = ORDO_I32);
  REFUSED(ORDO_E_INVALID, "`root`", c.kind = ORDO_BROADCAST; c.root = 4);
  REFUSED(ORDO_E_INVALID, "`root`", c.kind = ORDO_SEND; c.root = 1);
  REFUSED(ORDO_E_INVALID, "`tag`", c.kind = ORDO_RECV; c.root = 0; c.tag = -1);
  REFUSED(ORDO_E_INVALID, "`recv`", c.kind = ORDO_ALL_TO_ALL);
  REFUSED(ORDO_E_INVALID, "`recv`", c.kind = ORDO_ALL_GATHER; c.send = buffer; c.recv = buffer);
  REFUSED(ORDO_E_INVALID, "`send_counts`", c.kind = ORDO_ALL_TO_ALL_V);
  REFUSED(ORDO_E_INVALID, "`send_counts`", c.kind = ORDO_ALL_TO_ALL_V; c.send_counts = counts; c.recv_counts = counts);
  assert_refused(f, NULL, ORDO_E_INVALID, "description");
  c = good;
  c.struct_size = 8;
  assert_refused(f, &c, ORDO_E_INVALID, "description");
  /* The label helps to find the caller. */
  REFUSED(ORDO_E_INVALID, "bucket 3", c.kind = ORDO_BROADCAST; c.root = 4; c.label = "bucket 3");
  /* An argument error is not the end of the session. */
  assert_int_equal(ordo_comm_run(f->comm, &good), ORDO_OK);
}

static void in_place_forms_are_accepted(void **state)
{
  fixture *f = *state;
  float buffer[64] = {0};
  ordo_collective c = ordo_collective_make(ORDO_REDUCE_SCATTER, buffer, buffer + 1 * 4, 4, ORDO_F32);
  assert_int_equal(ordo_comm_run(f->comm, &c), ORDO_OK);
  c = ordo_collective_make(ORDO_ALL_GATHER, buffer + 1 * 4, buffer, 4, ORDO_F32);
  assert_int_equal(ordo_comm_run(f->comm, &c), ORDO_OK);
  assert_int_equal(ordo_all_reduce(f->comm, NULL, 0, ORDO_F32, ORDO_SUM, 1.0), ORDO_OK);
}

/* A struct of an older author: what lies behind its size must not be read. */
static void a_shorter_struct_is_read_as_far_as_it_goes(void **state)
{
  fixture *f = *state;
  float buffer[4] = {0};
  ordo_collective c = ordo_collective_make(ORDO_ALL_REDUCE, buffer, buffer, 4, ORDO_F32);
  c.factor = (double)NAN;
  c.label = (const char *)1;
  c.struct_size = ORDO_SIZE_THROUGH(ordo_collective, count);
  assert_int_equal(ordo_comm_run(f->comm, &c), ORDO_OK);
}

static void bytes_are_the_logical_buffer(void **state)
{
  fixture *f = *state;
  static float send[256], recv[256];
  int64_t ones[4] = {1, 2, 3, 4};
  ordo_comm_stats stats = {.struct_size = sizeof stats};
  static const struct {
    uint32_t kind;
    uint64_t bytes;
  } rows[] = {{ORDO_ALL_REDUCE, 40},  {ORDO_REDUCE_SCATTER, 160}, {ORDO_ALL_GATHER, 160}, {ORDO_BROADCAST, 40},
              {ORDO_ALL_TO_ALL, 160}, {ORDO_ALL_TO_ALL_V, 40},    {ORDO_SEND, 40},        {ORDO_RECV, 40},
              {ORDO_BARRIER, 0}};
  for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
    ordo_collective c = ordo_collective_make(rows[i].kind, send, recv, 10, ORDO_F32);
    c.send_counts = c.recv_counts = ones;
    for (int k = 0; k < 3; k++)
      assert_int_equal(ordo_comm_run(f->comm, &c), ORDO_OK);
  }
  f->comm->stats(f->comm->ctx, &stats);
  for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
    assert_int_equal(stats.calls[rows[i].kind], 3);
    assert_int_equal(stats.bytes[rows[i].kind], 3 * rows[i].bytes);
  }
  ordo_comm_stats shorter = {.struct_size = ORDO_SIZE_THROUGH(ordo_comm_stats, calls), .busy_seconds = -1.0};
  f->comm->stats(f->comm->ctx, &shorter);
  assert_int_equal(shorter.calls[ORDO_ALL_REDUCE], 3);
  assert_int_equal(shorter.bytes[ORDO_ALL_REDUCE], 0);
  assert_true(shorter.busy_seconds < 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(wrong_arguments_are_named, set_up, tear_down),
      cmocka_unit_test_setup_teardown(in_place_forms_are_accepted, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_shorter_struct_is_read_as_far_as_it_goes, set_up, tear_down),
      cmocka_unit_test_setup_teardown(bytes_are_the_logical_buffer, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
