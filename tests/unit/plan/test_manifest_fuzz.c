/* test_manifest_fuzz.c - the reader on damaged text: fixed seeds, so that a failure repeats.
 *
 * Good manifests are cut, spliced, bit-flipped and joined. Whatever comes out, the reader must not read outside the text (the copy has
 * exactly its length, so a sanitizer sees it), must report at least one finding when it refuses and none when it accepts, and what it
 * accepts must be readable again from its own copy of the text. */
#include "check.h"

#define ROUNDS 20000

static const char *const seeds[] = {
    "abi=1.0\nid=a\nkind=strategy\nversion=1.0.0\nsummary=s\nflags=setup_optimizers_in_pre_dispatch\nflags[level=2]=owns_precision\nsteps="
    "strategy.wrap\n"
    "replaces_leaves=strategy.wrap\nreduces=yes\noption=level|int|1|0..9|h\nbefore[strategy.wrap][level in 1,2]=?scheduler.create,cap\n",
    "id=b\nkind=precision\nversion=2.0.0-rc.1\nsummary=t\nalias=c:O2\noption=opt_level|enum|O1|O0,O1,O2|level\npositional=opt_level\n"
    "steps[opt_level not in O0 and opt_level set or opt_level=O2]=precision.convert_model\nprovides=x\nrequires=y\nconflicts=z\n",
};
static const char *const pieces[] = {"[",      "]",    "=",     "!=",   ",",  "|", "\n", "\0",   "?", "before[",
                                     "flags[", " in ", " and ", " or ", "..", "#", "x-", "\xc3", "\r"};

static char *damage(GRand *random, size_t *length)
{
  const char *seed = seeds[g_rand_int_range(random, 0, G_N_ELEMENTS(seeds))];
  g_autoptr(GString) text = g_string_new(seed);
  int n = g_rand_int_range(random, 0, 6);
  for (int i = 0; i < n && text->len > 0; i++) {
    gssize at = g_rand_int_range(random, 0, (gint32)text->len);
    switch (g_rand_int_range(random, 0, 5)) {
    case 0:
      g_string_truncate(text, (gsize)at);
      break;
    case 1:
      text->str[at] = (char)(text->str[at] ^ (1 << g_rand_int_range(random, 0, 8)));
      break;
    case 2:
      g_string_insert_len(text, at, pieces[g_rand_int_range(random, 0, G_N_ELEMENTS(pieces))], 1);
      break;
    case 3:
      g_string_erase(text, at, MIN(5, (gssize)text->len - at));
      break;
    default:
      g_string_append(text, seeds[g_rand_int_range(random, 0, G_N_ELEMENTS(seeds))] + g_rand_int_range(random, 0, 40));
    }
  }
  *length = text->len;
  return g_memdup2(text->str, MAX(text->len, 1));
}

static const char *nothing_set(gpointer user, const char *key)
{
  (void)user;
  (void)key;
  return NULL;
}

static void test_damaged_text(void **state)
{
  GRand *random = g_rand_new_with_seed(20261130);
  int accepted = 0;
  (void)state;
  for (int i = 0; i < ROUNDS; i++) {
    size_t length = 0;
    g_autofree char *text = damage(random, &length);
    ordo_errors *errors = ordo_errors_new();
    ordo_manifest *m = ordo_manifest_parse(text, length, "fuzz", errors);
    assert_int_equal(m == NULL, ordo_errors_count(errors) > 0);
    if (m) {
      ordo_manifest *again = ordo_manifest_parse(m->text, strlen(m->text), "again", errors);
      assert_non_null(again);
      assert_int_equal(again->lines->len, m->lines->len);
      ordo_decl_free(ordo_decl_from_manifest(m, nothing_set, NULL, errors));
      ordo_manifest_free(again);
      accepted++;
    }
    ordo_manifest_free(m);
    ordo_errors_free(errors);
  }
  g_rand_free(random);
  /* both sides of the reader were exercised */
  assert_in_range(accepted, ROUNDS / 20, ROUNDS - ROUNDS / 20);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_damaged_text)};
  return cmocka_run_group_tests_name("manifest fuzz", tests, NULL, NULL);
}
