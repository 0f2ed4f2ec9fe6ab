/* test_decl.c - declarations: conditions evaluated, origins kept, contradictions of one plugin refused. */
#include "check.h"

#define HEAD "id=probe\nkind=strategy\nversion=1.2.3\nsummary=a probe\n"
#define HEAD_PRECISION "id=probe\nkind=precision\nversion=1.2.3\nsummary=a probe\n"

static const char *getter(gpointer user, const char *key)
{
  return user ? g_hash_table_lookup(user, key) : NULL;
}

static ordo_decl *declare(const char *text, GHashTable *options, ordo_errors *errors)
{
  ordo_manifest *m = ordo_manifest_parse(text, strlen(text), "probe.so", errors);
  if (!m)
    print_errors(errors);
  assert_non_null(m);
  ordo_decl *decl = ordo_decl_from_manifest(m, getter, options, errors);
  ordo_manifest_free(m);
  return decl;
}

static void test_conditions_decide(void **state)
{
  static const char text[] = HEAD_PRECISION "option=opt_level|enum|O1|O0,O1,O2|h\n"
                                            "steps[opt_level!=O0]=precision.convert_model\n"
                                            "steps[opt_level=O2]=precision.wrap_optimizer\nflags[opt_level=O2]=wraps_optimizer\n"
                                            "before[precision.convert_model][opt_level=O1]=?later\nprovides[opt_level=O2]=masters\n";
  g_autoptr(GHashTable) options = g_hash_table_new(g_str_hash, g_str_equal);
  ordo_errors *errors = ordo_errors_new();
  (void)state;
  g_hash_table_insert(options, (gpointer) "opt_level", (gpointer) "O2");
  ordo_decl *d = declare(text, options, errors);
  assert_int_equal(d->steps, 1u << ORDO_STEP_CONVERT_MODEL | 1u << ORDO_STEP_WRAP_OPTIMIZER);
  assert_int_equal(d->flags, 1u << ORDO_FLAG_WRAPS_OPTIMIZER);
  assert_string_equal(d->step_origin[ORDO_STEP_WRAP_OPTIMIZER], "probe manifest line 7");
  assert_string_equal(d->flag_origin[ORDO_FLAG_WRAPS_OPTIMIZER], "probe manifest line 8");
  assert_int_equal(d->lines->len, 0);
  assert_int_equal(d->provides->len, 1);
  assert_string_equal(((ordo_token *)g_ptr_array_index(d->provides, 0))->name, "masters");
  ordo_decl_free(d);
  g_hash_table_insert(options, (gpointer) "opt_level", (gpointer) "O1");
  d = declare(text, options, errors);
  assert_int_equal(d->steps, 1u << ORDO_STEP_CONVERT_MODEL);
  assert_int_equal(d->flags, 0);
  assert_int_equal(d->lines->len, 1);
  const ordo_edge_line *line = g_ptr_array_index(d->lines, 0);
  assert_false(line->hard);
  assert_true(line->before);
  assert_string_equal(line->target, "later");
  assert_string_equal(line->origin, "probe manifest line 9");
  ordo_decl_free(d);
  g_hash_table_insert(options, (gpointer) "opt_level", (gpointer) "O0");
  d = declare(text, options, errors);
  assert_int_equal(d->steps, 0);
  ordo_decl_free(d);
  ordo_errors_free(errors);
}

static void test_defaults(void **state)
{
  ordo_errors *errors = ordo_errors_new();
  (void)state;
  ordo_decl *d = declare(HEAD, NULL, errors);
  assert_string_equal(d->mesh_axis, "data");
  assert_false(d->reduces);
  assert_int_equal(d->axis, -1);
  ordo_decl_free(d);
  d = declare(HEAD_PRECISION, NULL, errors);
  assert_string_equal(d->mesh_axis, "none");
  ordo_decl_free(d);
  ordo_errors_free(errors);
}

#define S "flags=setup_optimizers_in_pre_dispatch\n"
#define J "flags=requires_joint_prepare\n"
#define W "flags=wraps_optimizer\n"
#define X "flags=initializes_jointly\n"

static void test_contradictions(void **state)
{
  static const struct {
    const char *text;
    size_t findings;
    const char *says;
  } cases[] = {
      {HEAD S J "steps=strategy.wrap,strategy.prepare_joint\n", 2, "exclude each other"},
      {HEAD S, 1, "needs the step strategy.wrap"},
      {HEAD "steps=strategy.wrap\nreplaces_leaves=strategy.wrap\n", 1, "needs setup_optimizers_in_pre_dispatch"},
      {HEAD J, 1, "needs the step strategy.prepare_joint"},
      {HEAD "steps=strategy.prepare_joint\n", 1, "needs the flag requires_joint_prepare"},
      {HEAD J "steps=strategy.prepare_joint,strategy.wrap\n", 1, "excludes the step strategy.wrap"},
      {HEAD J "steps=strategy.prepare_joint,strategy.prepare_optimizer\n", 1, "excludes the step strategy.prepare_optimizer"},
      {HEAD_PRECISION W, 1, "needs the step precision.wrap_optimizer"},
      {HEAD_PRECISION "steps=precision.wrap_optimizer\n", 1, "needs the flag wraps_optimizer"},
      {HEAD_PRECISION "steps=precision.initialize\n", 1, "needs the flag initializes_jointly"},
      {HEAD_PRECISION X, 1, "needs the step precision.initialize"},
      {HEAD "option=on|bool|||h\nsteps[on=yes]=strategy.partition\nreplaces_leaves=strategy.partition\n", 1,
       "not provided under these options"},
  };
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
    ordo_errors *errors = ordo_errors_new();
    ordo_decl *d = declare(cases[i].text, NULL, errors);
    if (d || ordo_errors_count(errors) != cases[i].findings || !errors_mention(errors, cases[i].says)) {
      print_message("case %zu, '%s' expected\n", i, cases[i].says);
      print_errors(errors);
      fail();
    }
    assert_string_equal(ordo_errors_at(errors, 0)->code, "E-MANIFEST");
    ordo_errors_free(errors);
  }
}

/* X is excepted from "W without wrap_optimizer", and the joint node replaces both halves, in steps and in lines. */
static void test_joint_precision(void **state)
{
  static const char *const texts[] = {
      HEAD_PRECISION "flags=initializes_jointly,wraps_optimizer\nsteps=precision.initialize\nbefore[precision.wrap_optimizer]=a\n",
      HEAD_PRECISION X "steps=precision.convert_model,precision.wrap_optimizer\nbefore[precision.convert_model]=a\n"};
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(texts); i++) {
    ordo_errors *errors = ordo_errors_new();
    ordo_decl *d = declare(texts[i], NULL, errors);
    print_errors(errors);
    assert_non_null(d);
    assert_int_equal(d->steps, 1u << ORDO_STEP_INITIALIZE);
    assert_non_null(d->step_origin[ORDO_STEP_INITIALIZE]);
    assert_int_equal(((ordo_edge_line *)g_ptr_array_index(d->lines, 0))->step, ORDO_STEP_INITIALIZE);
    ordo_decl_free(d);
    ordo_errors_free(errors);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_conditions_decide),
      cmocka_unit_test(test_defaults),
      cmocka_unit_test(test_contradictions),
      cmocka_unit_test(test_joint_precision),
  };
  return cmocka_run_group_tests_name("decl", tests, NULL, NULL);
}
