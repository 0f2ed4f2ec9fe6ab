/* test_memory.c - every byte is counted under its tag, and nothing foreign is freed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "session/memory.h"

#include <stdlib.h>

static struct {
  int64_t bytes;
  int refuse;
} embedder;

static void *counted_alloc(void *ctx, size_t bytes, uint32_t tag)
{
  void *pointer = NULL;
  (void)ctx, (void)tag;
  if (embedder.refuse || posix_memalign(&pointer, 64, bytes) != 0)
    return NULL;
  embedder.bytes += (int64_t)bytes;
  return pointer;
}

static void counted_free(void *ctx, void *pointer, size_t bytes, uint32_t tag)
{
  (void)ctx, (void)tag;
  embedder.bytes -= (int64_t)bytes;
  free(pointer);
}

static ordo_context *new_context(void)
{
  const ordo_context_options options = {.struct_size = sizeof options,
                                        .flags = ORDO_CONTEXT_NO_ENVIRONMENT | ORDO_CONTEXT_NO_DEFAULT_PATH,
                                        .alloc = counted_alloc,
                                        .free = counted_free};
  ordo_context *context = NULL;
  assert_int_equal(ordo_context_create(&options, &context), ORDO_OK);
  embedder.bytes = embedder.refuse = 0;
  return context;
}

static void counts_now_and_peak_per_tag_and_in_total(void **state)
{
  ordo_context *context = new_context();
  ordo_memory *memory = ordo_memory_new(context, NULL);
  void *weights = ordo_memory_alloc(memory, 1000, ORDO_MEM_WEIGHTS), *grads;
  int64_t now, peak;
  (void)state;
  assert_int_equal((uintptr_t)weights % 64, 0);
  for (int i = 0; i < 1000; i++)
    assert_int_equal(((char *)weights)[i], 0);
  assert_true(ordo_memory_release(memory, weights));
  grads = ordo_memory_alloc(memory, 600, ORDO_MEM_GRADIENTS);
  ordo_memory_usage(memory, ORDO_MEM_WEIGHTS, &now, &peak);
  assert_int_equal(now, 0);
  assert_int_equal(peak, 1000);
  ordo_memory_usage(memory, ORDO_N_MEM_TAGS, &now, &peak);
  assert_int_equal(now, 600);
  assert_int_equal(peak, 1000); /* not 1600: they did not live at the same time */
  assert_int_equal(embedder.bytes, 600);
  ordo_memory_count(memory, 50, ORDO_MEM_COMM);
  ordo_memory_usage(memory, ORDO_MEM_COMM, &now, NULL);
  assert_int_equal(now, 50);
  assert_true(ordo_memory_release(memory, grads));
  assert_int_equal(ordo_memory_free(memory), 0);
  ordo_context_destroy(context);
}

static void foreign_and_double_frees_are_found(void **state)
{
  ordo_context *context = new_context();
  ordo_memory *memory = ordo_memory_new(context, NULL);
  void *block = ordo_memory_alloc(memory, 8, ORDO_MEM_OTHER);
  int local;
  (void)state;
  assert_false(ordo_memory_release(memory, &local));
  assert_true(ordo_memory_release(memory, block));
  assert_false(ordo_memory_release(memory, block));
  assert_true(ordo_memory_release(memory, NULL));
  ordo_memory_free(memory);
  ordo_context_destroy(context);
}

static void bad_requests_give_null(void **state)
{
  ordo_context *context = new_context();
  ordo_memory *memory = ordo_memory_new(context, NULL);
  int64_t now = -1, peak = -1;
  (void)state;
  assert_null(ordo_memory_alloc(memory, 0, ORDO_MEM_OTHER));
  assert_null(ordo_memory_alloc(memory, 8, ORDO_N_MEM_TAGS));
  assert_null(ordo_memory_alloc(memory, SIZE_MAX, ORDO_MEM_OTHER));
  embedder.refuse = 1;
  assert_null(ordo_memory_alloc(memory, 8, ORDO_MEM_OTHER));
  ordo_memory_usage(memory, 99, &now, &peak);
  assert_int_equal(now, 0);
  assert_int_equal(peak, 0);
  ordo_memory_free(memory);
  ordo_context_destroy(context);
}

static void what_a_plugin_forgot_is_freed_at_the_end(void **state)
{
  ordo_context *context = new_context();
  ordo_memory *memory = ordo_memory_new(context, NULL);
  (void)state;
  assert_non_null(ordo_memory_alloc(memory, 8, ORDO_MEM_OTHER));
  assert_non_null(ordo_memory_alloc(memory, 16, ORDO_MEM_OTHER));
  assert_int_equal(ordo_memory_free(memory), 2);
  assert_int_equal(embedder.bytes, 0);
  ordo_context_destroy(context);
}

static void *tier_alloc(void *ctx, size_t bytes)
{
  *(int64_t *)ctx += (int64_t)bytes;
  return calloc(1, bytes);
}

static void tier_free(void *ctx, void *pointer, size_t bytes)
{
  *(int64_t *)ctx -= (int64_t)bytes;
  free(pointer);
}

/* One plugin places a kind of memory; blocks are freed where they came from, at the latest when that plugin goes. */
static void a_tag_may_come_from_somewhere_else(void **state)
{
  ordo_context *context = new_context();
  ordo_memory *memory = ordo_memory_new(context, NULL);
  int64_t held = 0, now;
  const ordo_allocator tier = {sizeof tier, &held, tier_alloc, tier_free};
  int owner, other;
  (void)state;
  void *before = ordo_memory_alloc(memory, 100, ORDO_MEM_OPTIMIZER);
  assert_true(ordo_memory_set_allocator(memory, ORDO_MEM_OPTIMIZER, &tier, &owner));
  assert_false(ordo_memory_set_allocator(memory, ORDO_MEM_OPTIMIZER, &tier, &other));
  void *inside = ordo_memory_alloc(memory, 200, ORDO_MEM_OPTIMIZER);
  assert_non_null(ordo_memory_alloc(memory, 300, ORDO_MEM_OPTIMIZER));
  assert_non_null(ordo_memory_alloc(memory, 400, ORDO_MEM_WEIGHTS));
  assert_int_equal(held, 500);
  assert_int_equal(embedder.bytes, 500);
  assert_true(ordo_memory_release(memory, before));
  assert_true(ordo_memory_release(memory, inside));
  assert_int_equal(held, 300);
  assert_int_equal(embedder.bytes, 400);
  ordo_memory_drop_owner(memory, &owner);
  assert_int_equal(held, 0);
  ordo_memory_usage(memory, ORDO_MEM_OPTIMIZER, &now, NULL);
  assert_int_equal(now, 0);
  assert_non_null(ordo_memory_alloc(memory, 8, ORDO_MEM_OPTIMIZER));
  assert_int_equal(embedder.bytes, 408);
  assert_true(ordo_memory_set_allocator(memory, ORDO_MEM_OPTIMIZER, &tier, &other));
  assert_int_equal(ordo_memory_free(memory), 2);
  ordo_context_destroy(context);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(counts_now_and_peak_per_tag_and_in_total),
      cmocka_unit_test(foreign_and_double_frees_are_found),
      cmocka_unit_test(bad_requests_give_null),
      cmocka_unit_test(what_a_plugin_forgot_is_freed_at_the_end),
      cmocka_unit_test(a_tag_may_come_from_somewhere_else),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
