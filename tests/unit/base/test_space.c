/* test_space.c - addresses without memory: distinct, aligned, reused at the end, none left when none are left, and a fault when touched. */
#include "base/space.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void ranges_are_distinct_and_aligned(void **state)
{
  ordo_space *space = ordo_space_new();
  char *a = ordo_space_take(space, 1), *b = ordo_space_take(space, 65), *c = ordo_space_take(space, (size_t)1 << 25);
  (void)state;
  assert_non_null(a);
  assert_ptr_equal(b, a + 64);
  assert_ptr_equal(c, b + 128);
  assert_int_equal((uintptr_t)a % 64, 0);
  assert_true(ordo_space_has(space, a));
  assert_true(ordo_space_has(space, c + ((size_t)1 << 25) - 1));
  assert_false(ordo_space_has(space, &space));
  assert_false(ordo_space_has(NULL, a));
  assert_null(ordo_space_take(space, 0));
  ordo_space_free(space);
}

static void the_last_range_is_taken_again(void **state)
{
  ordo_space *space = ordo_space_new();
  char *a = ordo_space_take(space, 100), *b = ordo_space_take(space, 100);
  (void)state;
  ordo_space_give(space, a, 100); /* not the last: stays taken */
  assert_ptr_equal(ordo_space_take(space, 64), b + 128);
  ordo_space_give(space, b + 128, 64);
  ordo_space_give(space, b, 100);
  assert_ptr_equal(ordo_space_take(space, 10), b);
  ordo_space_free(space);
}

static void addresses_end(void **state)
{
  ordo_space *space = ordo_space_new();
  const size_t piece = (size_t)1 << 40;
  int n = 0;
  (void)state;
  assert_null(ordo_space_take(space, SIZE_MAX));
  assert_null(ordo_space_take(space, SIZE_MAX - 63));
  while (n <= 64 && ordo_space_take(space, piece))
    n++;
  assert_in_range(n, 0, 64);
  ordo_space_free(space);
}

static sigjmp_buf back;
static volatile sig_atomic_t code;

static void on_fault(int number, siginfo_t *info, void *context)
{
  (void)number, (void)context;
  code = info->si_code;
  siglongjmp(back, 1);
}

/* The promise on which `ordo plan --estimate` tells a plugin's mistake from any other crash. */
static void touching_it_is_a_fault_of_protection(void **state)
{
  ordo_space *space = ordo_space_new();
  volatile char *pointer = ordo_space_take(space, 4096);
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, before;
  (void)state;
  sigaction(SIGSEGV, &action, &before);
  if (sigsetjmp(back, 1) == 0) {
    *pointer = 1;
    fail_msg("nothing happened");
  }
  assert_int_equal(code, SEGV_ACCERR);
  code = 0;
  if (sigsetjmp(back, 1) == 0)
    fail_msg("it reads as %d", *pointer);
  assert_int_equal(code, SEGV_ACCERR);
  sigaction(SIGSEGV, &before, NULL);
  ordo_space_free(space);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ranges_are_distinct_and_aligned),
      cmocka_unit_test(the_last_range_is_taken_again),
      cmocka_unit_test(addresses_end),
      cmocka_unit_test(touching_it_is_a_fault_of_protection),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
