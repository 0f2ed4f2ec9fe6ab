/* test_manifest.c - the manifest reader: what it takes, and that every mistake is found, named and placed. */
#include "check.h"
#include "plan/condition.h"
#include "plan/names.h"
#include <ordo/manifest.h>

#define HEAD "id=probe\nkind=strategy\nversion=1.2.3\nsummary=a probe\n"
#define HEAD_PRECISION "id=probe\nkind=precision\nversion=1.2.3\nsummary=a probe\n"

static ordo_manifest *parse(const char *text, ordo_errors *errors)
{
  return ordo_manifest_parse(text, strlen(text), "probe.so", errors);
}

static void test_every_key(void **state)
{
  static const char text[] =
      "abi=1.0\n# a comment\n\n  id = probe \nkind=strategy\nversion=1.0.0-rc.1+build.5\nsummary=one line = with a sign\n"
      "license=Apache-2.0\nurl=https://example.org/a?b=c\nalias=quick:level=2\nalias=slow\n"
      "flags=setup_optimizers_in_pre_dispatch, self_sharded\nflags[level=2 and dtype!=f32]=owns_precision\n"
      "steps=strategy.wrap\nreplaces_leaves=strategy.wrap\nreduces=yes\nprovides=cap.a,cap.b\nrequires=cap.c\nconflicts=cap.d\n"
      "before[strategy.wrap][level=1]=?scheduler.create,other\nafter[strategy.wrap]=cap.a\nmesh_axis=model\n"
      "option=level|int|1|0..9|how hard\noption=dtype|dtype|||type of the weights\npositional=level\nprecisions=f32,bf16\nx-own=anything\n";
  ordo_errors *errors = ordo_errors_new();
  ordo_manifest *m = parse(text, errors);
  (void)state;
  print_errors(errors);
  assert_non_null(m);
  assert_string_equal(m->id, "probe");
  assert_int_equal(m->kind, ORDO_KIND_STRATEGY);
  assert_string_equal(m->version, "1.0.0-rc.1+build.5");
  assert_string_equal(m->summary, "one line = with a sign");
  assert_string_equal(m->url, "https://example.org/a?b=c");
  assert_string_equal(m->mesh_axis, "model");
  assert_string_equal(m->positional, "level");
  assert_string_equal(m->precisions[1], "bf16");
  assert_int_equal(m->aliases->len, 2);
  const ordo_alias *alias = g_ptr_array_index(m->aliases, 0);
  assert_string_equal(alias->name, "quick");
  assert_string_equal(alias->preset, "level=2");
  assert_int_equal(alias->line, 10);
  assert_int_equal(m->options->len, 2);
  const ordo_option_schema *level = ordo_manifest_option(m, "level");
  assert_int_equal(level->type, ORDO_OPTION_INT);
  assert_string_equal(level->default_text, "1");
  assert_string_equal(level->help, "how hard");
  assert_null(ordo_manifest_option(m, "dtype")->default_text);
  assert_int_equal(m->lines->len, 10);
  const ordo_manifest_line *conditional = g_ptr_array_index(m->lines, 1);
  assert_string_equal(conditional->condition, "level=2 and dtype!=f32");
  assert_int_equal(conditional->number, 13);
  const ordo_manifest_line *before = g_ptr_array_index(m->lines, 8);
  assert_string_equal(before->key, "before");
  assert_int_equal(before->step, ORDO_STEP_WRAP);
  assert_string_equal(before->condition, "level=1");
  assert_string_equal(before->values[0], "?scheduler.create");
  assert_string_equal(before->values[1], "other");
  ordo_manifest_free(m);
  ordo_errors_free(errors);
}

typedef struct mistake {
  const char *text, *where, *says;
} mistake;

/* text, where it is reported, what must be said (in the finding or its advice) */
static const mistake mistakes[] = {
    {"", "probe.so", "empty"},
    {"kind=strategy\nversion=1.0.0\nsummary=s\n", "probe.so", "'id=...' is missing"},
    {"id=a\nkind=strategy\nversion=1.0.0\n", "probe.so", "'summary=...' is missing"},
    {HEAD "id=other\n", "probe.so line 5", "already given on line 1"},
    {HEAD "flgs=self_sharded\n", "probe.so line 5", "did you mean 'flags'?"},
    {HEAD "flags=self_shraded\n", "probe.so line 5", "did you mean 'self_sharded'?"},
    {HEAD "flags=wraps_optimizer\n", "probe.so line 5", "is a flag of a precision plugin"},
    {HEAD_PRECISION "flags=self_sharded\n", "probe.so line 5", "is a flag of a strategy plugin"},
    {HEAD "flags=\n", "probe.so line 5", "has no value"},
    {HEAD "events=step.reduce\n", "probe.so line 5", "is not an event that is declared"},
    {HEAD "events=step.poststep\n", "probe.so line 5", "did you mean 'step.post_step'?"},
    {HEAD_PRECISION "events=step.post_step\n", "probe.so line 5", "only a strategy has step.post_step"},
    {HEAD "flags=self_sharded,,replicas_diverge\n", "probe.so line 5", "empty item"},
    {HEAD "steps=strategy.wrp\n", "probe.so line 5", "did you mean 'strategy.wrap'?"},
    {HEAD "steps=optimizer.create\n", "probe.so line 5", "belongs to: embedder"},
    {HEAD "steps=precision.convert_model\n", "probe.so line 5", "cannot provide"},
    {HEAD_PRECISION "steps=strategy.wrap\n", "probe.so line 5", "cannot provide"},
    {HEAD "steps=step.reduce\n", "probe.so line 5", "is not a step"},
    {HEAD "replaces_leaves=strategy.wrap\n", "probe.so line 5", "does not provide 'strategy.wrap'"},
    {HEAD "steps=model.inject\nreplaces_leaves=model.inject\n", "probe.so line 6", "not a step that replaces leaves"},
    {HEAD "reduces=maybe\n", "probe.so line 5", "neither yes nor no"},
    {HEAD_PRECISION "reduces=yes\n", "probe.so line 5", "only a strategy"},
    {HEAD "provides=Cap\n", "probe.so line 5", "not a name for a capability"},
    {HEAD "requires=strategy.wrap\n", "probe.so line 5", "looks like a step"},
    {HEAD "steps=strategy.wrap\nbefore[strategy.wrap]=optimizer.crate\n", "probe.so line 6", "did you mean 'optimizer.create'?"},
    {HEAD "steps=strategy.wrap\nbefore=optimizer.create\n", "probe.so line 6", "does not say which step"},
    {HEAD "steps=strategy.wrap\nbefore[strategy.wap]=optimizer.create\n", "probe.so line 6", "did you mean 'strategy.wrap'?"},
    {HEAD "steps=strategy.wrap\nbefore[strategy.partition]=optimizer.create\n", "probe.so line 6", "does not provide 'strategy.partition'"},
    {HEAD "steps=strategy.wrap\nafter[strategy.wrap]=step.optimizer\n", "probe.so line 6", "after dispatch"},
    {HEAD "steps=strategy.wrap\nafter[strategy.wrap]=dispatch\n", "probe.so line 6", "after dispatch"},
    {HEAD "steps=strategy.wrap\nafter[strategy.wrap]=?post_dispatch\n", "probe.so line 6", "after dispatch"},
    {HEAD "mesh_axis=modl\n", "probe.so line 5", "did you mean 'model'?"},
    {HEAD_PRECISION "mesh_axis=data\n", "probe.so", "only a strategy takes a mesh axis"},
    {HEAD "precisions=fp3\n", "probe.so line 5", "not a precision"},
    {HEAD "abi=1\n", "probe.so line 5", "not an ABI version"},
    {HEAD "option=level|int|1|0..9\n", "probe.so line 5", "five fields"},
    {HEAD "option=level|integer|1|0..9|h\n", "probe.so line 5", "not a type of option"},
    {HEAD "option=level|int|11|0..9|h\n", "probe.so line 5", "must lie in 0..9"},
    {HEAD "option=level|int|x||h\n", "probe.so line 5", "a whole number"},
    {HEAD "option=level|int||9..0|h\n", "probe.so line 5", "not a range"},
    {HEAD "option=level|enum|||h\n", "probe.so line 5", "has no values"},
    {HEAD "option=level|enum|c|a,b|h\n", "probe.so line 5", "one of a,b"},
    {HEAD "option=level|int|||h\noption=level|int|||h\n", "probe.so line 6", "already given on line 5"},
    {HEAD "option=and|int|||h\n", "probe.so line 5", "not a key for an option"},
    {HEAD "positional=level\n", "probe.so line 5", "not an option"},
    {HEAD "alias=probe\n", "probe.so line 5", "own id"},
    {HEAD "alias=a\nalias=a\n", "probe.so line 6", "already given on line 5"},
    {HEAD "alias=a:levl=1\noption=level|int|||h\n", "probe.so line 5", "did you mean 'level'?"},
    {HEAD "alias=a:O2\n", "probe.so line 5", "without naming an option"},
    {HEAD "alias=a:level=x\noption=level|int|||h\n", "probe.so line 5", "cannot take"},
    {HEAD "flags[levl=1]=self_sharded\noption=level|int|||h\n", "probe.so line 5", "did you mean 'level'?"},
    {HEAD "flags[level in 1,y]=self_sharded\noption=level|int|||h\n", "probe.so line 5", "cannot take"},
    {HEAD "flags[level]=self_sharded\noption=level|int|||h\n", "probe.so line 5", "not well formed"},
    {HEAD "flags[level=1=self_sharded\n", "probe.so line 5", "never closed"},
    {HEAD "flags[level=1][level=2]=self_sharded\n", "probe.so line 5", "does not take two conditions"},
    {HEAD "summary[level=1]=x\n", "probe.so line 5", "does not take a condition"},
    {HEAD "no sign here\n", "probe.so line 5", "key=value"},
    {HEAD "=value\n", "probe.so line 5", "key=value"},
    {"id=host\nkind=strategy\nversion=1.0.0\nsummary=s\n", "probe.so line 1", "no name for a plugin"},
    {"id=embedder\nkind=strategy\nversion=1.0.0\nsummary=s\n", "probe.so line 1", "no name for a plugin"},
    {"id=none\nkind=precision\nversion=1.0.0\nsummary=s\n", "probe.so line 1", "no name for a plugin"},
    {HEAD "steps=strategy.wrap\noption=a|int|1||h\nalias=none:a=2\n", "probe.so line 7", "no name for a plugin"},
    {"id=Upper\nkind=strategy\nversion=1.0.0\nsummary=s\n", "probe.so line 1", "is not an id"},
    {"id=a\nkind=stratgy\nversion=1.0.0\nsummary=s\n", "probe.so line 2", "did you mean 'strategy'?"},
    {"id=a\nkind=strategy\nversion=1.0\nsummary=s\n", "probe.so line 3", "semantic version"},
    {"id=a\nkind=strategy\nversion=01.0.0\nsummary=s\n", "probe.so line 3", "semantic version"},
    {"id=a\nkind=strategy\nversion=1.0.0-\nsummary=s\n", "probe.so line 3", "semantic version"},
    {HEAD "license=a\r\n", "probe.so", "control character 0x0d"},
    {HEAD "license=\xff\n", "probe.so", "not UTF-8"},
};

static void test_every_mistake(void **state)
{
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(mistakes); i++) {
    ordo_errors *errors = ordo_errors_new();
    ordo_manifest *m = parse(mistakes[i].text, errors);
    if (m || ordo_errors_count(errors) != 1 || !errors_mention(errors, mistakes[i].says)) {
      print_message("case %zu, '%s' expected:\n%s\n", i, mistakes[i].says, mistakes[i].text);
      print_errors(errors);
    }
    assert_null(m);
    assert_int_equal(ordo_errors_count(errors), 1);
    assert_true(errors_mention(errors, mistakes[i].says));
    assert_string_equal(ordo_errors_at(errors, 0)->code, "E-MANIFEST");
    assert_string_equal(ordo_errors_at(errors, 0)->where, mistakes[i].where);
    assert_int_equal(ordo_errors_at(errors, 0)->status, ORDO_E_INVALID);
    ordo_errors_free(errors);
  }
}

static void test_all_findings_at_once(void **state)
{
  ordo_errors *errors = ordo_errors_new();
  (void)state;
  assert_null(parse("id=A\nkind=s\nversion=1\nflags=x\nsteps=y\nbogus=1\n", errors));
  assert_int_equal(ordo_errors_count(errors), 7); /* id, kind, version, flags, steps, bogus, and the missing summary */
  ordo_errors_free(errors);
}

static void test_bounds(void **state)
{
  ordo_errors *errors = ordo_errors_new();
  GString *text = g_string_new(HEAD "x-filler=");
  (void)state;
  while (text->len < ORDO_MANIFEST_MAX)
    g_string_append_c(text, 'a');
  ordo_manifest *m = ordo_manifest_parse(text->str, text->len, "p", errors);
  assert_non_null(m);
  ordo_manifest_free(m);
  g_string_append_c(text, 'a');
  assert_null(ordo_manifest_parse(text->str, text->len, "p", errors));
  assert_true(errors_mention(errors, "65537 bytes"));
  g_string_free(text, TRUE);
  static const char nul[] = "id=a\0b\nkind=strategy\n";
  assert_null(ordo_manifest_parse(nul, sizeof nul - 1, "p", errors));
  assert_true(errors_mention(errors, "NUL"));
  /* the padding of the note is not part of the text */
  static const char padded[] = HEAD "\0\0\0";
  m = ordo_manifest_parse(padded, sizeof padded, "p", errors);
  assert_non_null(m);
  ordo_manifest_free(m);
  ordo_errors_free(errors);
}

static const char *getter(gpointer user, const char *key)
{
  return g_hash_table_lookup(user, key);
}

static void test_conditions(void **state)
{
  static const struct {
    const char *text;
    gboolean holds;
  } cases[] = {
      {"level=2", TRUE},
      {"level=+2", TRUE}, /* an int: compared as a number */
      {"level=3", FALSE},
      {"level!=3", TRUE},
      {"name=two", TRUE},
      {"name=2", FALSE},
      {"on=yes", TRUE}, /* a truth value: 1, yes, true and on are one */
      {"on=true", TRUE},
      {"on!=off", TRUE},
      {"level in 1,2 , 3", TRUE},
      {"level not in 1,2", FALSE},
      {"absent set", FALSE},
      {"absent unset", TRUE},
      {"absent=1", FALSE},
      {"absent!=1", TRUE},
      {"absent in 1,2", FALSE},
      {"absent not in 1,2", TRUE},
      {"level set and name set", TRUE},
      {"level=3 or name=two", TRUE},
      {"level=3 and name=two or on=yes", TRUE},
      {"on=yes or level=3 and name=x", TRUE}, /* `and` binds tighter; the other reading is false */
      {"level=2 and level=3 or name=x", FALSE},
  };
  static const char *const malformed[] = {"",         "level",          "level=",    "level in",  "level in 1,", "level=1 and",
                                          "and",      "level=1 name=2", "level ! 1", "(level=1)", "level not 1", "=1",
                                          "level==1", "level set set"};
  ordo_errors *errors = ordo_errors_new();
  ordo_manifest *m = parse(HEAD "option=level|int|||h\noption=on|bool|||h\noption=name|string|||h\noption=absent|int|||h\n", errors);
  g_autoptr(GHashTable) values = g_hash_table_new(g_str_hash, g_str_equal);
  (void)state;
  g_hash_table_insert(values, (gpointer) "level", (gpointer) "2");
  g_hash_table_insert(values, (gpointer) "on", (gpointer) "1");
  g_hash_table_insert(values, (gpointer) "name", (gpointer) "two");
  assert_non_null(m);
  for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autofree char *wrong = ordo_condition_check(cases[i].text, NULL, NULL);
    assert_null(wrong);
    if (ordo_condition_holds(cases[i].text, m, getter, values) != cases[i].holds)
      fail_msg("'%s' should be %d", cases[i].text, cases[i].holds);
  }
  assert_true(ordo_condition_holds(NULL, m, getter, values));
  for (size_t i = 0; i < G_N_ELEMENTS(malformed); i++) {
    g_autofree char *wrong = ordo_condition_check(malformed[i], NULL, NULL);
    if (!wrong)
      fail_msg("'%s' was accepted", malformed[i]);
    assert_false(ordo_condition_holds(malformed[i], m, getter, values));
  }
  ordo_manifest_free(m);
  ordo_errors_free(errors);
}

/* Names go both ways, so a table entry with a duplicated name cannot stay unnoticed. */
static void test_names(void **state)
{
  (void)state;
  for (uint32_t i = 0; i < ORDO_N_STEPS; i++)
    assert_int_equal(ordo_step_by_name(ordo_step_name(i)), (int)i);
  for (uint32_t i = 0; i < ORDO_N_EVENTS; i++)
    assert_int_equal(ordo_event_by_name(ordo_event_name(i)), (int)i);
  for (uint32_t i = 0; i < ORDO_N_FLAGS; i++)
    assert_int_equal(ordo_flag_by_name(ordo_flag_name(i)), (int)i);
  for (uint32_t i = 0; i < ORDO_N_PHASES; i++)
    assert_int_equal(ordo_phase_by_name(ordo_phase_name(i)), (int)i);
  assert_int_equal(ordo_step_by_name("strategy.wra"), -1);
  assert_string_equal(ordo_step_name(ORDO_N_STEPS), "?");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_key), cmocka_unit_test(test_every_mistake), cmocka_unit_test(test_all_findings_at_once),
      cmocka_unit_test(test_bounds),    cmocka_unit_test(test_conditions),    cmocka_unit_test(test_names),
  };
  return cmocka_run_group_tests_name("manifest", tests, NULL, NULL);
}
