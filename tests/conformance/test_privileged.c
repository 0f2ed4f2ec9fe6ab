/* test_privileged.c - a set-user-id copy of a program ignores the environment of its caller (AT_SECURE).
 *
 * Needs root (to make the copy and to become somebody else) and a file system that honours the set-user-id bit; skipped otherwise. The
 * same rule is tested without privileges in test_search.c, on a given environment. */
#include "plugin_files.h"

#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *program;

typedef struct place {
  char *root, *copy, *plugins;
} place;

static int set_up(void **state)
{
  place *p = g_new0(place, 1);
  p->root = scratch_new();
  p->copy = g_build_filename(p->root, "copy", NULL);
  p->plugins = g_build_filename(p->root, "plugins", NULL);
  assert_int_equal(chmod(p->root, 0755), 0);
  assert_int_equal(mkdir(p->plugins, 0755), 0);
  g_free(write_plugin(p->plugins, "x", "one", "strategy", "1.0.0", NULL));
  char *bytes;
  gsize length;
  assert_true(g_file_get_contents(program, &bytes, &length, NULL));
  write_bytes(p->copy, bytes, length);
  g_free(bytes);
  *state = p;
  return 0;
}

static int tear_down(void **state)
{
  place *p = *state;
  scratch_free(p->root);
  g_free(p->copy), g_free(p->plugins);
  g_free(p);
  return 0;
}

/* What the copy prints when user 65534 starts it with ORDO_PLUGIN_PATH set; freed by the caller. */
static char *report_for_nobody(const place *p)
{
  int ends[2];
  char buffer[4096];
  ssize_t got;
  GString *text = g_string_new(NULL);
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0) {
    setenv("ORDO_PLUGIN_PATH", p->plugins, 1);
    if (dup2(ends[1], 1) < 0 || setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0)
      _exit(125);
    execl(p->copy, p->copy, (char *)NULL);
    _exit(126);
  }
  close(ends[1]);
  while ((got = read(ends[0], buffer, sizeof buffer)) > 0)
    g_string_append_len(text, buffer, got);
  close(ends[0]);
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    fail_msg("the copy ended with status %d: %s", status, text->str);
  return g_string_free(text, FALSE);
}

static void only_a_privileged_copy_ignores_the_environment(void **state)
{
  place *p = *state;
  struct statvfs system;
  if (geteuid() != 0) {
    print_message("skipped: only root can make a copy that runs as somebody else\n");
    skip();
  }
  if (statvfs(p->root, &system) != 0 || (system.f_flag & ST_NOSUID)) {
    print_message("skipped: %s is mounted nosuid\n", p->root);
    skip();
  }
  if (sanitized()) {
    print_message("skipped: a sanitizer's runtime does not start in a privileged process\n");
    skip();
  }
  g_autofree char *plugin = g_strdup_printf("plugin %s/x.so", p->plugins);
  assert_int_equal(chmod(p->copy, 0755), 0);
  g_autofree char *plain = report_for_nobody(p);
  assert_contains(plain, plugin);
  assert_null(strstr(plain, "AT_SECURE"));
  assert_int_equal(chmod(p->copy, 04755), 0);
  g_autofree char *privileged = report_for_nobody(p);
  assert_null(strstr(privileged, p->plugins));
  assert_contains(privileged, "ORDO_PLUGIN_PATH  left out: the process has rights that its environment has not (AT_SECURE)");
  assert_contains(privileged, "user directory    left out");
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(only_a_privileged_copy_ignores_the_environment, set_up, tear_down),
  };
  if (argc != 2)
    return 2;
  program = argv[1];
  return cmocka_run_group_tests(tests, NULL, NULL);
}
