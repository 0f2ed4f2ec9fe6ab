/* test_expression.c - strategy and precision expressions: what they choose, and every mistake with its text. */
#include "plugin_files.h"

#include <string.h>

#include "discovery/expression.h"
#include "discovery/registry_inside.h"

typedef struct place {
  char *root;
  ordo_errors *errors;
  ordo_registry *registry;
} place;

static void add(const place *p, const char *id, const char *kind, const char *more)
{
  g_free(write_plugin(p->root, id, id, kind, "1.0.0", more));
}

static int set_up(void **state)
{
  place *p = g_new0(place, 1);
  p->root = scratch_new();
  p->errors = ordo_errors_new();
  add(p, "ddp", "strategy",
      "option=hook|enum||fp16,bf16,powersgd|compression\noption=bucket|size|25MiB|1KiB..1GiB|bytes\noption=static_graph|bool|false||same\n"
      "alias=ddp_bf16:hook=bf16:bucket=1MiB\n");
  add(p, "fsdp2", "strategy", "option=level|int|3|1..3|what is sharded\n");
  add(p, "tp", "strategy", "mesh_axis=model\n");
  add(p, "ema", "strategy", "mesh_axis=none\n");
  add(p, "apex_amp", "precision",
      "option=opt_level|enum|O1|O0,O1,O2,O3|level\noption=loss_scale|real||1..|scale\npositional=opt_level\nalias=amp2:O2\n");
  ordo_registry_options options = {p->root, ORDO_CONTEXT_NO_DEFAULT_PATH};
  ordo_search_environment environment = {.installed = "/nowhere"};
  p->registry = ordo_registry_scan_in(&options, &environment, p->errors);
  for (size_t i = 0; i < ordo_registry_count(p->registry); i++)
    if (ordo_registry_at(p->registry, i)->info.state != ORDO_PLUGIN_USABLE)
      fail_msg("%s", ordo_registry_at(p->registry, i)->info.reason);
  *state = p;
  return 0;
}

static int tear_down(void **state)
{
  place *p = *state;
  ordo_registry_free(p->registry);
  ordo_errors_free(p->errors);
  scratch_free(p->root);
  g_free(p);
  return 0;
}

static GPtrArray *parse(place *p, const char *text, uint32_t kind)
{
  GPtrArray *choices = ordo_expression_parse(text, kind, p->registry, p->errors);
  if (!choices)
    fail_msg("%s: %s (%s)", text, ordo_errors_at(p->errors, 0)->what, ordo_errors_at(p->errors, 0)->why);
  return choices;
}

static void assert_choice(const GPtrArray *choices, guint index, const char *id, int size)
{
  const ordo_choice *choice = g_ptr_array_index(choices, index);
  assert_string_equal(choice->found->info.id, id);
  assert_int_equal(choice->size, size);
}

static void assert_option(const GPtrArray *choices, guint index, const char *key, const char *value)
{
  const char *actual = ordo_choice_option(g_ptr_array_index(choices, index), key);
  if (!value)
    assert_null(actual);
  else
    assert_string_equal(actual, value);
}

/* Refused with exactly these codes, in this order; the parts stand in the texts. */
static void refuse(place *p, const char *text, uint32_t kind, const char *codes, const char *part)
{
  GString *got = g_string_new(NULL), *texts = g_string_new(NULL);
  ordo_errors_clear(p->errors);
  GPtrArray *choices = ordo_expression_parse(text, kind, p->registry, p->errors);
  if (choices)
    fail_msg("'%s' is accepted", text);
  for (size_t i = 0; i < ordo_errors_count(p->errors); i++) {
    const ordo_error *error = ordo_errors_at(p->errors, i);
    g_string_append_printf(got, "%s%s", i ? " " : "", error->code);
    g_string_append_printf(texts, "%s | %s | %s | %s\n", error->what, error->where, error->why, error->next);
    assert_true(*error->what && *error->where && *error->next);
  }
  if (strcmp(got->str, codes) != 0)
    fail_msg("'%s' gives %s, not %s\n%s", text, got->str, codes, texts->str);
  assert_contains(texts->str, part);
  g_string_free(got, TRUE);
  g_string_free(texts, TRUE);
}

#define S ORDO_KIND_STRATEGY
#define P ORDO_KIND_PRECISION

static void nothing_is_an_empty_choice(void **state)
{
  place *p = *state;
  static const char *const texts[] = {NULL, "", "none", "  ", " none "};
  for (gsize i = 0; i < G_N_ELEMENTS(texts); i++) {
    g_autoptr(GPtrArray) choices = parse(p, texts[i], i % 2 ? S : P);
    assert_int_equal(choices->len, 0);
  }
}

static void parts_have_sizes_and_keep_their_order(void **state)
{
  place *p = *state;
  g_autoptr(GPtrArray) choices = parse(p, "tp=2+fsdp2", S);
  assert_int_equal(choices->len, 2);
  assert_choice(choices, 0, "tp", 2);
  assert_choice(choices, 1, "fsdp2", 0);
  g_autoptr(GPtrArray) hybrid = parse(p, " ddp = 2 : hook = bf16 + fsdp2=2+ema", S);
  assert_choice(hybrid, 0, "ddp", 2);
  assert_choice(hybrid, 1, "fsdp2", 2);
  assert_choice(hybrid, 2, "ema", -1);
  assert_option(hybrid, 0, "hook", "bf16");
  assert_string_equal(((ordo_choice *)g_ptr_array_index(hybrid, 1))->written, "fsdp2=2");
}

static void options_come_in_three_layers(void **state)
{
  place *p = *state;
  g_autoptr(GPtrArray) defaults = parse(p, "ddp", S);
  assert_option(defaults, 0, "bucket", "25MiB");
  assert_option(defaults, 0, "static_graph", "no");
  assert_option(defaults, 0, "hook", NULL);
  g_autoptr(GPtrArray) preset = parse(p, "ddp_bf16", S);
  assert_option(preset, 0, "hook", "bf16");
  assert_option(preset, 0, "bucket", "1MiB");
  g_autoptr(GPtrArray) written = parse(p, "ddp_bf16=4:bucket=1048576:static_graph=TRUE", S); /* the preset's own value, in another form */
  assert_choice(written, 0, "ddp", 4);
  assert_option(written, 0, "hook", "bf16");
  assert_option(written, 0, "bucket", "1MiB");
  assert_option(written, 0, "static_graph", "yes");
}

static void a_bare_word_sets_the_positional_option(void **state)
{
  place *p = *state;
  g_autoptr(GPtrArray) choices = parse(p, "apex_amp:O2:loss_scale=128.0", P);
  assert_choice(choices, 0, "apex_amp", -1);
  assert_option(choices, 0, "opt_level", "O2");
  assert_option(choices, 0, "loss_scale", "128");
  g_autoptr(GPtrArray) preset = parse(p, "amp2", P);
  assert_option(preset, 0, "opt_level", "O2");
  g_autoptr(GPtrArray) written = parse(p, "amp2:O2:loss_scale=8", P);
  assert_option(written, 0, "opt_level", "O2");
  g_autofree char *resolved = ordo_choice_resolved(g_ptr_array_index(written, 0)),
                  *level = ordo_choice_resolved(g_ptr_array_index(preset, 0));
  assert_string_equal(resolved, "apex_amp:O2:loss_scale=8");
  assert_string_equal(level, "apex_amp:O2");
}

/* Such as bf16-mixed:O2, which computed in fp16 under the name of bf16. */
static void an_alias_keeps_its_word(void **state)
{
  place *p = *state;
  refuse(p, "amp2:O3", P, "E-OPTION-VALUE", "option 'opt_level' cannot be 'O3' where 'amp2' sets it to 'O2'");
  refuse(p, "amp2:opt_level=O0", P, "E-OPTION-VALUE", "cannot be 'O0' where 'amp2'");
  refuse(p, "ddp_bf16:hook=fp16", S, "E-OPTION-VALUE", "cannot be 'fp16' where 'ddp_bf16' sets it to 'bf16'");
  refuse(p, "tp=2+ddp_bf16=2:bucket=2MiB+fsdp2", S, "E-OPTION-VALUE", "'ddp_bf16' means ddp:hook=bf16:bucket=1MiB");
}

static void a_version_and_a_path_are_names_too(void **state)
{
  place *p = *state;
  g_autofree char *text = g_strdup_printf("tp@1.0.0=2+%s/fsdp2.so=4:level=1", p->root);
  g_autoptr(GPtrArray) choices = parse(p, text, S);
  assert_choice(choices, 0, "tp", 2);
  assert_choice(choices, 1, "fsdp2", 4);
  assert_option(choices, 1, "level", "1");
}

static void mistakes_of_form_are_refused(void **state)
{
  place *p = *state;
  refuse(p, "+", S, "E-EXPRESSION E-EXPRESSION", "has no name");
  refuse(p, "ddp+", S, "E-EXPRESSION", "has no name");
  refuse(p, "tp=2++ddp", S, "E-EXPRESSION", "has no name");
  refuse(p, "=2", S, "E-EXPRESSION", "has no name");
  refuse(p, ":hook=bf16", S, "E-EXPRESSION", "has no name");
  refuse(p, "none+ddp", S, "E-EXPRESSION", "'none' stands beside");
  refuse(p, "ddp:", S, "E-EXPRESSION", "an option of 'ddp' is empty");
  refuse(p, "ddp::hook=bf16", S, "E-EXPRESSION", "is empty");
  refuse(p, "ddp:=bf16", S, "E-EXPRESSION", "is empty");
  refuse(p, "\xff", S, "E-EXPRESSION", "UTF-8");
  refuse(p, "apex_amp+apex_amp", P, "E-EXPRESSION E-EXPRESSION", "cannot be joined");
}

static void sizes_are_positive_whole_numbers(void **state)
{
  place *p = *state;
  static const char *const bad[] = {"tp=", "tp=0", "tp=-1", "tp=two", "tp=2.5", "tp=2=2", "tp=99999999999", "tp=0x2"};
  for (gsize i = 0; i < G_N_ELEMENTS(bad); i++)
    refuse(p, bad[i], S, "E-EXPRESSION", "the size of 'tp' cannot be");
  refuse(p, "ema=2", S, "E-EXPRESSION", "takes no mesh axis");
  refuse(p, "apex_amp=2", P, "E-EXPRESSION", "takes no mesh axis");
  refuse(p, "tp+ddp", S, "E-EXPRESSION", "2 parts have no size");
  refuse(p, "ddp=2+ddp=2", S, "E-EXPRESSION", "'ddp' stands twice");
  refuse(p, "tp+tp", S, "E-EXPRESSION", "'tp' stands twice");
}

static void mistakes_in_options_are_refused(void **state)
{
  place *p = *state;
  refuse(p, "ddp:hok=bf16", S, "E-OPTION-UNKNOWN", "did you mean 'hook'?");
  refuse(p, "ddp:zzz=1", S, "E-OPTION-UNKNOWN", "its options: hook, bucket, static_graph");
  refuse(p, "tp:a=1", S, "E-OPTION-UNKNOWN", "it has no options");
  refuse(p, "ddp:bf16", S, "E-OPTION-UNKNOWN", "does not take the bare word 'bf16'");
  refuse(p, "ddp:static_graph", S, "E-OPTION-UNKNOWN", "write static_graph=VALUE");
  refuse(p, "ddp:hook=bf17", S, "E-OPTION-VALUE", "did you mean 'bf16'?");
  refuse(p, "ddp:hook=", S, "E-OPTION-VALUE", "cannot be ''");
  refuse(p, "ddp:bucket=1B", S, "E-OPTION-VALUE", "it must lie in 1KiB..1GiB");
  refuse(p, "ddp:hook=bf16:hook=fp16", S, "E-OPTION-VALUE", "stands twice");
  refuse(p, "apex_amp:O1:opt_level=O2", P, "E-OPTION-VALUE", "stands twice");
  refuse(p, "apex_amp:opt_level=O2:loss_scale", P, "E-OPTION-UNKNOWN", "its value is missing"); /* not: opt_level stands twice */
  refuse(p, "apex_amp:O9", P, "E-OPTION-VALUE", "O0,O1,O2,O3");
}

static void plugins_are_unknown_or_of_another_kind(void **state)
{
  place *p = *state;
  refuse(p, "fdsp2", S, "E-PLUGIN-UNKNOWN", "did you mean 'fsdp2'?");
  refuse(p, "apex_amp", S, "E-PLUGIN-KIND", "is a precision plugin");
  refuse(p, "ddp", P, "E-PLUGIN-KIND", "is a strategy plugin");
}

static void all_mistakes_are_found_in_one_run(void **state)
{
  place *p = *state;
  refuse(p, "fdsp2+ddp=0:hok=1:bucket=x+apex_amp+tp=", S,
         "E-PLUGIN-UNKNOWN E-EXPRESSION E-OPTION-UNKNOWN E-OPTION-VALUE E-PLUGIN-KIND E-EXPRESSION", "");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(nothing_is_an_empty_choice, set_up, tear_down),
      cmocka_unit_test_setup_teardown(parts_have_sizes_and_keep_their_order, set_up, tear_down),
      cmocka_unit_test_setup_teardown(options_come_in_three_layers, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_bare_word_sets_the_positional_option, set_up, tear_down),
      cmocka_unit_test_setup_teardown(an_alias_keeps_its_word, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_version_and_a_path_are_names_too, set_up, tear_down),
      cmocka_unit_test_setup_teardown(mistakes_of_form_are_refused, set_up, tear_down),
      cmocka_unit_test_setup_teardown(sizes_are_positive_whole_numbers, set_up, tear_down),
      cmocka_unit_test_setup_teardown(mistakes_in_options_are_refused, set_up, tear_down),
      cmocka_unit_test_setup_teardown(plugins_are_unknown_or_of_another_kind, set_up, tear_down),
      cmocka_unit_test_setup_teardown(all_mistakes_are_found_in_one_run, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
