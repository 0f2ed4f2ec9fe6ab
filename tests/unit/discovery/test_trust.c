/* test_trust.c - owners and modes of a file and of the directories above it. */
#include "plugin_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include "discovery/trust.h"

/* top/middle/x.so, all private. */
typedef struct place {
  char *top, *middle, *file;
} place;

static int set_up(void **state)
{
  place *p = g_new0(place, 1);
  p->top = scratch_new();
  p->middle = g_strdup_printf("%s/middle", p->top);
  p->file = g_strdup_printf("%s/x.so", p->middle);
  assert_int_equal(mkdir(p->middle, 0755), 0);
  write_bytes(p->file, "x", 1);
  *state = p;
  return 0;
}

static int tear_down(void **state)
{
  place *p = *state;
  scratch_free(p->top);
  g_free(p->middle);
  g_free(p->file);
  g_free(p);
  return 0;
}

static void assert_trusted(const place *p)
{
  g_autofree char *reason = ordo_trust_check(p->file, geteuid());
  if (reason)
    fail_msg("%s", reason);
}

static void assert_mode_refused(const place *p, const char *path, mode_t bad, mode_t good, const char *part)
{
  assert_int_equal(chmod(path, bad), 0);
  g_autofree char *reason = ordo_trust_check(p->file, geteuid());
  assert_contains(reason, path);
  assert_contains(reason, part);
  assert_contains(reason, "chmod go-w");
  assert_int_equal(chmod(path, good), 0);
  assert_trusted(p);
}

/* The scratch directory stands below /tmp, which everybody can write and which has the sticky bit. */
static void a_private_place_below_a_sticky_directory_is_trusted(void **state)
{
  assert_trusted(*state);
}

static void a_file_that_others_can_write_is_refused(void **state)
{
  place *p = *state;
  assert_mode_refused(p, p->file, 0646, 0644, "by everybody");
  assert_mode_refused(p, p->file, 0664, 0644, "by its group");
  assert_mode_refused(p, p->file, 0666, 0644, "by its group and everybody");
}

static void a_directory_that_others_can_write_is_refused(void **state)
{
  place *p = *state;
  assert_mode_refused(p, p->middle, 0757, 0755, "by everybody");
  assert_mode_refused(p, p->middle, 0775, 0755, "by its group");
  assert_mode_refused(p, p->top, 0777, 0700, "by its group and everybody");
}

static void the_sticky_bit_helps_above_the_plugins_directory_only(void **state)
{
  place *p = *state;
  assert_mode_refused(p, p->middle, 01777, 0755, "(mode 1777)");
  assert_int_equal(chmod(p->top, 01777), 0);
  assert_trusted(p);
}

static void other_owners_are_refused(void **state)
{
  place *p = *state;
  const char *const paths[] = {p->file, p->middle, p->top};
  if (geteuid() != 0)
    skip(); /* only root can give files away */
  for (gsize i = 0; i < G_N_ELEMENTS(paths); i++) {
    assert_int_equal(chown(paths[i], 4242, (gid_t)-1), 0);
    g_autofree char *reason = ordo_trust_check(p->file, 0);
    assert_contains(reason, paths[i]);
    assert_contains(reason, "belongs to user 4242");
    g_autofree char *own = ordo_trust_check(p->file, 4242); /* root's and the user's own are fine */
    assert_null(own);
    g_autofree char *stranger = ordo_trust_check(p->file, 4243);
    assert_contains(stranger, "not to root or to user 4243");
    assert_int_equal(chown(paths[i], 0, (gid_t)-1), 0);
  }
}

/* A sticky directory protects what is in it only if that belongs to root or the user: the owner of the next component could rename it. */
static void a_stranger_below_a_sticky_directory_is_refused(void **state)
{
  place *p = *state;
  if (geteuid() != 0)
    skip();
  assert_int_equal(chmod(p->top, 01777), 0);
  assert_int_equal(chown(p->middle, 4242, (gid_t)-1), 0);
  g_autofree char *reason = ordo_trust_check(p->file, 0);
  assert_contains(reason, "belongs to user 4242");
}

static void a_missing_file_is_no_trusted_one(void **state)
{
  (void)state;
  g_autofree char *reason = ordo_trust_check("/nowhere/x.so", geteuid());
  assert_contains(reason, "cannot be examined");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_private_place_below_a_sticky_directory_is_trusted, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_file_that_others_can_write_is_refused, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_directory_that_others_can_write_is_refused, set_up, tear_down),
      cmocka_unit_test_setup_teardown(the_sticky_bit_helps_above_the_plugins_directory_only, set_up, tear_down),
      cmocka_unit_test_setup_teardown(other_owners_are_refused, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_stranger_below_a_sticky_directory_is_refused, set_up, tear_down),
      cmocka_unit_test(a_missing_file_is_no_trusted_one),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
