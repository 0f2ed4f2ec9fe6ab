/* test_memory.c - freed means freed, and the promised bound. See rig.h. Under mpirun.
 *
 * Accounting alone is no proof, so the process is asked how many pages it has while units compute (pages of other ranks' shards are there
 * from a first step on), and the file behind gathered parameters how many it holds: a page that nobody maps any more is not yet free.
 */
#include "rig.h"

#ifndef STRATEGY /* the tests of fsdp2 build this file with another */
#define STRATEGY "fsdp1"
#define KEPT "fsdp1:sharding_strategy=SHARD_GRAD_OP"
#endif

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SCALE = 32768 };        /* a unit of 8.75 MiB, more than all slack together */
enum { LARGE_PAGE = 2 << 20 }; /* storage of large units is rounded up to pages of this size, so that they can be large pages */

static int64_t resident_bytes(void)
{
  long long total = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  assert_non_null(file);
  assert_int_equal(fscanf(file, "%lld %lld", &total, &resident), 2);
  fclose(file);
  return (int64_t)resident * sysconf(_SC_PAGESIZE);
}

static int64_t bytes_of(int first, int last)
{
  int64_t numel = 0;
  for (int p = first; p <= last; p++)
    numel += rig_numel(p);
  return numel * 4;
}

/* Pages of all files of gathered parameters. */
static int64_t gathered_bytes(void)
{
  int64_t bytes = 0;
  for (int fd = 3; fd < 1024; fd++) {
    char link[64], path[256] = "";
    struct stat file;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, "memfd:ordo-gathered") != NULL && fstat(fd, &file) == 0)
      bytes += (int64_t)file.st_blocks * 512;
  }
  return bytes;
}

typedef struct peak {
  int64_t base, most, gathered;
  int64_t after_forward; /* gathered while the last unit of forward is open */
} peak;

static void sample(void *ctx, uint32_t unit, int backward)
{
  peak *p = ctx;
  int64_t now = resident_bytes() - p->base, gathered = gathered_bytes();
  p->most = now > p->most ? now : p->most;
  p->gathered = gathered > p->gathered ? gathered : p->gathered;
  if (unit == RIG_UNITS - 1 && !backward)
    p->after_forward = gathered;
}

/* Parameters that are resident while units compute: shards are there before, so what comes on top is the gathered root, two units, the
 * gradient of the root and of one unit, and the shard's gradient. */
static void resident_pages_are_bounded(void **state)
{
  (void)state;
  static const char *const modes[] = {STRATEGY, STRATEGY ":backward_prefetch=none", STRATEGY ":forward_prefetch=true",
                                      STRATEGY ":backward_prefetch=post"};
  const int64_t unit = bytes_of(1, 2), root = bytes_of(0, 0) + bytes_of(7, 7), slack = (1 << 20) + 3 * LARGE_PAGE;
  const size_t n_modes = rig_ranks == 1 ? sizeof modes / sizeof modes[0] : 1; /* the reference of several ranks takes its time */
  for (size_t m = 0; m < n_modes; m++) {
    rig r;
    peak p = {0};
    rig_ok(rig_begin(&r, &(rig_options){.strategy = modes[m], .rebinds = 1}), modes[m]);
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "a step that touches everything");
    p.base = resident_bytes();
    int64_t between = 0;
    for (int s = 0; s < 2; s++) {
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1, .in_unit = sample, .ctx = &p}), "step");
      int64_t now = resident_bytes() - p.base;
      between = now > between ? now : between;
      assert_int_equal(gathered_bytes(), 0); /* after a step nothing stays, not even unmapped */
    }
    print_message("%s: units %lld KiB, root %lld KiB; on top of a rest: %lld KiB at the peak, %lld KiB between steps\n", modes[m],
                  (long long)unit / 1024, (long long)root / 1024, (long long)p.most / 1024, (long long)between / 1024);
    assert_true(p.most <= root + 2 * unit + slack);
    assert_true(p.most >= root); /* else nothing was measured */
    assert_true(p.gathered <= root + 2 * unit + 3 * LARGE_PAGE);
    assert_true(p.gathered >= root + unit);
    /* pages go from unit to unit: free ones stay for the next two, no more; a unit that stays gathered would be a third */
    assert_true(p.after_forward <= root + 2 * unit + 3 * LARGE_PAGE);
    assert_true(between <= slack);
    rig_compare(&r);
    rig_end(&r);
  }
}

/* With no limit and everything kept (SHARD_GRAD_OP), all units are resident at once: the measurement above can fail. */
static void resident_pages_show_what_is_kept(void **state)
{
  (void)state;
  const int64_t unit = bytes_of(1, 2), root = bytes_of(0, 0) + bytes_of(7, 7);
  rig r;
  peak p = {0};
  rig_ok(rig_begin(&r, &(rig_options){.strategy = KEPT ":limit_all_gathers=false", .rebinds = 1}), "SHARD_GRAD_OP");
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  p.base = resident_bytes();
  rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1, .in_unit = sample, .ctx = &p}), "step");
  assert_true(p.gathered >= root + 3 * unit);
  assert_true(p.after_forward >= root + 3 * unit);
  assert_int_equal(gathered_bytes(), 0);
  rig_end(&r);
}

/* total/world + the root's parameters and gradient + two blocks' parameters + one block's gradient + padding. The optimizer has no state.
 */
static void the_account_keeps_its_bound(void **state)
{
  (void)state;
  const int64_t unit = bytes_of(1, 2), root = bytes_of(0, 0) + bytes_of(7, 7), total = 2 * (root + 3 * unit);
  const int64_t padding = 3 * LARGE_PAGE + 4 * 2 * 4 * (16 + 4 * rig_ranks); /* gathered units; shards and their gradients */
  const int64_t lists = 65536;                                               /* what the host and the plugin keep about the model */
  rig r;
  int64_t weights, gradients, sum;
  rig_ok(rig_begin(&r, &(rig_options){.strategy = STRATEGY, .rebinds = 1}), STRATEGY);
  for (int s = 0; s < 2; s++)
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = 1}), "step");
  ordo_session_memory(r.session, ORDO_MEM_WEIGHTS, NULL, &weights);
  ordo_session_memory(r.session, ORDO_MEM_GRADIENTS, NULL, &gradients);
  ordo_session_memory(r.session, ORDO_N_MEM_TAGS, NULL, &sum);
  int64_t bound = total / rig_ranks + 2 * root + 3 * unit + padding + lists;
  print_message("%d ranks: weights %lld, gradients %lld, all together %lld bytes at the peak; bound %lld\n", rig_ranks, (long long)weights,
                (long long)gradients, (long long)sum, (long long)bound);
  assert_true(sum <= bound);
  assert_true(sum >= total / rig_ranks);
  rig_end(&r);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(resident_pages_are_bounded),
      cmocka_unit_test(resident_pages_show_what_is_kept),
      cmocka_unit_test(the_account_keeps_its_bound),
  };
  rig_scale = SCALE;
  rig_start(argc, argv);
  return rig_stop(cmocka_run_group_tests(tests, NULL, NULL));
}
