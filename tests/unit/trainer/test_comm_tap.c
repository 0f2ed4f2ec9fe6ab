/* test_comm_tap.c - the provider that shows what passes: nothing changed, nothing missed, bytes as the host counts them. */
#include "io_support.h"

#include "comm_tap.h"
#include <ordo/ordo.h>

#include <string.h>

enum { RANKS = 3, MOST = 32 };

typedef struct seen {
  int begun, ended;
  uint64_t open[MOST]; /* ids handed out and not yet ended */
  int64_t bytes[16];
  const char *label;
  char comm[16];
} seen;

static uint64_t begin(void *ctx, const char *comm, const ordo_comm *ranks, const ordo_collective *c)
{
  seen *s = ctx;
  g_strlcpy(s->comm, comm, sizeof s->comm);
  s->label = c->label;
  if (c->kind < 16)
    s->bytes[c->kind] += ordo_comm_tap_bytes(ranks, c);
  s->open[s->begun] = 1;
  return (uint64_t)s->begun++;
}

static void end(void *ctx, uint64_t id)
{
  seen *s = ctx;
  assert_true(id < (uint64_t)s->begun && s->open[id] == 1); /* each once */
  s->open[id] = 0;
  s->ended++;
}

typedef struct fixture {
  ordo_context *context;
  ordo_comm_provider *inner, *tap;
  const ordo_comm *comm;
  seen seen;
} fixture;

static int setup(void **state)
{
  fixture *f = g_new0(fixture, 1);
  const ordo_context_options options = {.struct_size = sizeof options, .flags = ORDO_CONTEXT_NO_ENVIRONMENT | ORDO_CONTEXT_NO_DEFAULT_PATH};
  const ordo_comm_observer observer = {&f->seen, begin, end};
  assert_int_equal(ordo_context_create(&options, &f->context), ORDO_OK);
  assert_int_equal(ordo_comm_fake_create(f->context, 1, RANKS, &f->inner), ORDO_OK);
  f->tap = ordo_comm_tap_new(f->inner, &observer);
  assert_int_equal(f->tap->split(f->tap->ctx, 0, 1, RANKS, "data", &f->comm), ORDO_OK);
  *state = f;
  return 0;
}

static int teardown(void **state)
{
  fixture *f = *state;
  f->tap->release(f->tap->ctx, f->comm);
  ordo_comm_provider_destroy(f->tap);
  ordo_comm_provider_destroy(f->inner);
  ordo_context_destroy(f->context);
  g_free(f);
  return 0;
}

static void it_looks_like_the_inner_one(void **state)
{
  fixture *f = *state;
  assert_int_equal(f->tap->rank, 1);
  assert_int_equal(f->tap->size, RANKS);
  assert_string_equal(f->tap->name, f->inner->name);
  assert_int_equal(f->comm->rank, 1);
  assert_int_equal(f->comm->size, RANKS);
}

static void bytes_are_those_that_the_host_counts(void **state)
{
  fixture *f = *state;
  static const int64_t counts[RANKS] = {2, 0, 5};
  ordo_comm_stats stats = {.struct_size = sizeof stats};
  float a[64] = {0}, b[64] = {0};
  for (uint32_t kind = ORDO_ALL_REDUCE; kind <= ORDO_BARRIER; kind++) {
    ordo_collective c = ordo_collective_make(kind, a, kind == ORDO_ALL_TO_ALL || kind == ORDO_ALL_TO_ALL_V ? b : a, 7, ORDO_F32);
    c.label = "a label";
    if (kind == ORDO_REDUCE_SCATTER)
      c.recv = a + 7; /* in place: piece of rank 1 */
    if (kind == ORDO_ALL_GATHER)
      c.send = a + 7;
    if (kind == ORDO_SEND || kind == ORDO_RECV)
      c.root = 2;
    if (kind == ORDO_BARRIER)
      c.send = c.recv = NULL, c.count = 0;
    if (kind == ORDO_ALL_TO_ALL_V)
      c.send_counts = c.recv_counts = counts, c.count = 0;
    assert_int_equal(ordo_comm_run(f->comm, &c), ORDO_OK);
    assert_string_equal(f->seen.label, "a label");
    assert_string_equal(f->seen.comm, "data");
    assert_string_not_equal(ordo_comm_kind_name(kind), "?");
  }
  f->comm->stats(f->comm->ctx, &stats);
  for (uint32_t kind = ORDO_ALL_REDUCE; kind <= ORDO_BARRIER; kind++) {
    assert_int_equal(stats.calls[kind], 1);
    assert_int_equal(stats.bytes[kind], f->seen.bytes[kind]);
  }
  assert_int_equal(f->seen.begun, ORDO_BARRIER);
  assert_int_equal(f->seen.ended, ORDO_BARRIER);
}

static void a_collective_that_cannot_start_has_ended(void **state)
{
  fixture *f = *state;
  ordo_collective c = ordo_collective_make(77, NULL, NULL, 1, ORDO_F32);
  assert_int_equal(ordo_comm_run(f->comm, &c), ORDO_E_INVALID);
  assert_int_equal(f->seen.begun, 1);
  assert_int_equal(f->seen.ended, 1);
}

static void it_ends_at_its_wait_not_at_its_test(void **state)
{
  fixture *f = *state;
  float a[4] = {0};
  ordo_request *first = NULL, *second = NULL;
  int32_t done = 0;
  const ordo_collective c = ordo_collective_make(ORDO_ALL_REDUCE, a, a, 4, ORDO_F32);
  assert_int_equal(f->comm->start(f->comm->ctx, &c, &first), ORDO_OK);
  assert_int_equal(f->comm->start(f->comm->ctx, &c, &second), ORDO_OK);
  assert_int_equal(f->comm->test(f->comm->ctx, second, &done), ORDO_OK);
  assert_true(done == 1 && f->seen.ended == 0);
  assert_int_equal(f->comm->progress(f->comm->ctx), ORDO_OK);
  assert_int_equal(f->comm->wait(f->comm->ctx, second), ORDO_OK);
  assert_true(f->seen.open[0] == 1 && f->seen.open[1] == 0);
  assert_int_equal(f->comm->wait(f->comm->ctx, first), ORDO_OK);
  assert_int_equal(f->seen.ended, 2);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(it_looks_like_the_inner_one, setup, teardown),
      cmocka_unit_test_setup_teardown(bytes_are_those_that_the_host_counts, setup, teardown),
      cmocka_unit_test_setup_teardown(a_collective_that_cannot_start_has_ended, setup, teardown),
      cmocka_unit_test_setup_teardown(it_ends_at_its_wait_not_at_its_test, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
