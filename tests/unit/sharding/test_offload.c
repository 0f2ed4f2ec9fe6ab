/* test_offload.c - the cold tier: the same numbers, memory that is a file without a name, and an error by name when there is no place for
 * it. See adamw_rig.h. Under mpirun; argument 1 is the plugin path. That a job larger than its memory trains is shown by bench/offload.sh.
 */
#include "adamw_rig.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[] = "/tmp/ordo-test-cold-XXXXXX"; /* one for each rank */

static const char *const STRATEGIES[] = {
    "fsdp1", "fsdp1:use_orig_params=false",      "fsdp1:sharding_strategy=SHARD_GRAD_OP", "fsdp1:sharding_strategy=NO_SHARD",
    "fsdp2", "fsdp2:reshard_after_forward=false"};
enum { N_STRATEGIES = 6 };

static const char *with(const char *strategy, const char *offload)
{
  static char text[256];
  snprintf(text, sizeof text, "%s:offload=%s", strategy, offload);
  return text;
}

/* Every rank its own directory, so what one leaves behind is not blamed on another; the plan must be the same, so the name is a link. */
static const char *on_disk(const char *strategy)
{
  static char text[300];
  snprintf(text, sizeof text, "%s:offload=disk:/proc/self/cwd", strategy);
  return text;
}

static int n_files(const char *path)
{
  DIR *dir = opendir(path);
  int n = 0;
  assert_non_null(dir);
  while (readdir(dir) != NULL)
    n++;
  closedir(dir);
  return n - 2;
}

/* The file that is mapped at an address, empty for none. */
static void file_at(const void *address, char *path, size_t size)
{
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[1024];
  assert_non_null(maps);
  path[0] = '\0';
  while (fgets(line, sizeof line, maps) != NULL) {
    unsigned long begin = 0, end = 0;
    int at = 0;
    if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %n", &begin, &end, &at) >= 2 && (unsigned long)address >= begin &&
        (unsigned long)address < end)
      snprintf(path, size, "%s", at > 0 ? line + at : "");
  }
  fclose(maps);
}

static void assert_cold(const void *address)
{
  char path[1024];
  file_at(address, path, sizeof path);
  if (strncmp(path, directory, sizeof directory - 1) != 0 || strstr(path, "(deleted)") == NULL)
    fail_msg("rank %d: %p is not in a nameless file of %s but in '%s'", rig_rank, address, directory, path);
}

static void everything_is_cold(rig *r)
{
  const ordo_optimizer *optimizer = ordo_session_optimizer(r->session, 0);
  int looked = 0;
  for (uint32_t l = 0; l < r->model->n_leaves; l++) {
    const ordo_leaf *leaf = r->model->leaves[l];
    if (leaf->numel == 0)
      continue;
    assert_cold(leaf->data);
    assert_cold(leaf->grad);
    for (uint32_t s = 0; s < 2; s++)
      assert_cold(optimizer->slot(optimizer->ctx, leaf, s));
    looked++;
  }
  assert_true(looked > 0);
}

static void train(const char *strategy, int n_micro, int cold, dictionary *d)
{
  rig r;
  const rig_options options = adamw_options(strategy);
  rig_ok(rig_begin(&r, &options), strategy);
  for (int s = 0; s < 3; s++)
    rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = n_micro}), strategy);
  dictionary_export(&r, d);
  if (cold)
    everything_is_cold(&r);
  assert_int_equal(n_files(directory), 0); /* a killed job leaves as much */
  rig_end(&r);
  assert_int_equal(n_files(directory), 0);
}

static void the_numbers_are_those_of_memory(void **state)
{
  (void)state;
  for (int i = 0; i < N_STRATEGIES; i++)
    for (int n_micro = 1; n_micro <= 3; n_micro += 2) {
      dictionary memory = {0}, disk = {0};
      dictionary_new(&memory);
      dictionary_new(&disk);
      train(STRATEGIES[i], n_micro, 0, &memory);
      train(on_disk(STRATEGIES[i]), n_micro, 1, &disk);
      dictionary_same(&memory, &disk);
      train(with(STRATEGIES[i], "cpu"), n_micro, 0, &disk);
      dictionary_same(&memory, &disk);
      dictionary_free(&memory);
      dictionary_free(&disk);
    }
}

/* The rig's own numbers: the reference knows what each weight must be, whether it is in a file or not. */
static void the_numbers_are_right(void **state)
{
  static const char *const strategies[] = {"fsdp1", "fsdp2", "fsdp2_bf16"};
  (void)state;
  for (int i = 0; i < 3; i++) {
    rig r;
    const rig_options options = {.strategy = on_disk(strategies[i]), .rebinds = 1, .rounded = i == 2 ? ORDO_BF16 : 0};
    rig_ok(rig_begin(&r, &options), options.strategy);
    for (int s = 0; s < 3; s++)
      rig_ok(rig_train(&r, &(rig_step_spec){.n_micro = i == 2 ? 1 : 2}), options.strategy);
    rig_compare(&r);
    rig_end(&r);
  }
}

/* ---- no place for it ---- */

static void refused(const char *strategy, const char *words)
{
  rig r;
  const rig_options options = adamw_options(strategy);
  rig_expect(rig_begin(&r, &options), ORDO_E_IO, words);
  rig_end(&r);
}

static void an_absent_directory_is_named(void **state)
{
  (void)state;
  refused("fsdp1:offload=disk:/does/not/exist", "/does/not/exist|No such file|choose one that may be written");
  refused("fsdp2:offload=disk:/does/not/exist", "/does/not/exist|No such file|choose one that may be written");
  refused("fsdp2:offload=disk:/etc/passwd", "/etc/passwd|Not a directory");
  refused("fsdp2:offload=disk:/proc", "no file can be made in '/proc'"); /* nobody may, not even root */
}

static void set_up_through(rig *r, const char *step)
{
  const ordo_plan_node *node = NULL;
  do
    rig_ok(ordo_session_setup_next(r->session, &node), "setup_next");
  while (strcmp(node->name, step) != 0);
}

/* Root may write anywhere, so for a while the process is somebody else, after everything but the wrap is set up. */
static void a_read_only_directory_is_named(void **state)
{
  static const char *const strategies[] = {"fsdp1", "fsdp2"}, *const steps[] = {"strategy.wrap", "strategy.prepare_joint"};
  const uid_t user = geteuid();
  (void)state;
  assert_int_equal(chmod(directory, 0555), 0);
  for (int i = 0; i < 2; i++) {
    rig r;
    const rig_options options = adamw_options(on_disk(strategies[i]));
    rig_ok(rig_create(&r, &options), options.strategy);
    set_up_through(&r, i == 0 ? "model.build" : "optimizer.create");
    if (user == 0)
      assert_int_equal(seteuid(65534), 0);
    const ordo_status status = ordo_session_run(r.session, steps[i]);
    if (user == 0)
      assert_int_equal(seteuid(0), 0);
    rig_expect(status, ORDO_E_IO, "no file can be made in|Permission denied|may be written");
    rig_end(&r);
  }
  assert_int_equal(chmod(directory, 0700), 0);
}

/* No file may grow beyond `bytes`, as on a full disk; the first that tries gets an error and not a signal. */
static void limit_files(rlim_t bytes)
{
  static struct rlimit before;
  struct rlimit limit;
  if (bytes == 0) {
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    return;
  }
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  limit = (struct rlimit){bytes, before.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void no_room_for_shards_is_named(void **state)
{
  static const char *const strategies[] = {"fsdp1", "fsdp2"}, *const steps[] = {"strategy.wrap", "strategy.prepare_joint"};
  (void)state;
  for (int i = 0; i < 2; i++) {
    rig r;
    const rig_options options = adamw_options(on_disk(strategies[i]));
    rig_ok(rig_create(&r, &options), options.strategy);
    set_up_through(&r, i == 0 ? "model.build" : "optimizer.create");
    limit_files(512);
    const ordo_status status = ordo_session_run(r.session, steps[i]);
    limit_files(0);
    rig_expect(status, ORDO_E_IO, "offload:|File too large|free space there");
    rig_end(&r);
    assert_int_equal(n_files(directory), 0);
  }
}

/* Shards fit, the moments that the first update makes do not: the step says so and nothing is lost in silence. */
static void no_room_for_the_optimizer_is_named(void **state)
{
  static const char *const strategies[] = {"fsdp1", "fsdp2"};
  (void)state;
  for (int i = 0; i < 2; i++) {
    rig r;
    struct stat cold = {0};
    const rig_options options = adamw_options(on_disk(strategies[i]));
    rig_ok(rig_begin(&r, &options), options.strategy);
    for (int fd = 3; fd < 1024; fd++) { /* the file ends where shards and gradients end */
      char link[64], path[512] = "";
      snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
      if (readlink(link, path, sizeof path - 1) > 0 && strncmp(path, directory, sizeof directory - 1) == 0)
        assert_int_equal(fstat(fd, &cold), 0);
    }
    assert_true(cold.st_size > 0);
    ordo_status status = ordo_session_step_begin(r.session, 1, 1.0);
    rig_ok(status, "step_begin");
    rig_ok(ordo_session_micro_begin(r.session), "micro_begin");
    for (uint32_t u = 0; u < RIG_UNITS; u++) {
      rig_ok(ordo_session_pre_forward(r.session, 0, u), "pre_forward");
      rig_ok(ordo_session_post_forward(r.session, 0, u), "post_forward");
    }
    for (uint32_t u = RIG_UNITS; u-- > 0;) {
      rig_ok(ordo_session_pre_backward(r.session, 0, u), "pre_backward");
      for (uint32_t p = 0; p < r.model->units[u]->n_params; p++) {
        const ordo_param *param = r.model->units[u]->params[p];
        memset(param->grad, 0, (size_t)param->numel * sizeof(float));
        ((float *)param->grad)[0] = 1.0f;
        rig_ok(ordo_session_grad_ready(r.session, 0, param->index), "grad_ready");
      }
      rig_ok(ordo_session_post_backward(r.session, 0, u), "post_backward");
    }
    rig_ok(ordo_session_micro_end(r.session), "micro_end");
    rig_ok(ordo_session_reduce_gradients(r.session), "reduce_gradients");
    limit_files((rlim_t)cold.st_size);
    status = ordo_session_step_end(r.session, NULL);
    limit_files(0);
    assert_int_not_equal(status, ORDO_OK);
    rig_expect(status, status, "offload:|File too large|free space there");
    rig_end(&r);
  }
}

/* A file system of 64 KiB that is really full; left out where mounting is not allowed. */
static void a_full_disk_is_named(void **state)
{
  (void)state;
  if (mount("none", directory, "tmpfs", 0, "size=64k") != 0)
    skip();
  rig_scale = 2000;
  rig r;
  const rig_options options = adamw_options(on_disk("fsdp2"));
  assert_int_equal(chdir("/"), 0);
  assert_int_equal(chdir(directory), 0);
  const ordo_status status = rig_begin(&r, &options);
  rig_expect(status, ORDO_E_IO, "offload:|No space left|free space there");
  rig_end(&r);
  rig_scale = 1;
  assert_int_equal(chdir("/"), 0);
  assert_int_equal(umount(directory), 0);
  assert_int_equal(chdir(directory), 0);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_numbers_are_those_of_memory),
      cmocka_unit_test(the_numbers_are_right),
      cmocka_unit_test(an_absent_directory_is_named),
      cmocka_unit_test(a_read_only_directory_is_named),
      cmocka_unit_test(no_room_for_shards_is_named),
      cmocka_unit_test(no_room_for_the_optimizer_is_named),
      cmocka_unit_test(a_full_disk_is_named),
  };
  rig_start(argc, argv);
  if (mkdtemp(directory) == NULL || chdir(directory) != 0)
    return 1;
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  if (chdir("/") != 0 || rmdir(directory) != 0)
    return 1;
  return rig_stop(failed);
}
