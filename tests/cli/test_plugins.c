/* test_plugins.c - the verbs that read plugins, over the fake ones: what is listed, planned, refused, and with which exit code.
 *
 * The orders are the golden table of docs/ordering.md, read here through the command instead of the library.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "command.h"

#include <glib/gstdio.h>
#include <string.h>

#define LOAD "weights.load weights.sync"
#define CONVERT "precision.convert_model"
#define CREATE "optimizer.create"
#define WRAP_OPTIMIZER "precision.wrap_optimizer"
#define JOINT_INIT "precision.initialize"
#define WRAP "strategy.wrap"
#define JOINT "strategy.prepare_joint"
#define SHARDED "weights.load_sharded"
#define PARTITION "strategy.partition"

typedef struct golden_row {
  const char *strategy, *precision; /* empty: none */
  const char *steps;                /* between model.build and scheduler.create; null: a conflict */
} golden_row;

static const golden_row golden[] = {
    {"", "", LOAD " " CREATE},
    {"", "apex_amp:O2", LOAD " " CONVERT " " CREATE " " WRAP_OPTIMIZER},
    {"", "jointx", LOAD " " CREATE " " JOINT_INIT},
    {"ddp", "", LOAD " " CREATE " " WRAP},
    {"ddp", "apex_amp:O2", LOAD " " CONVERT " " CREATE " " WRAP_OPTIMIZER " " WRAP},
    {"ddp", "jointx", LOAD " " CREATE " " JOINT_INIT " " WRAP},
    {"fsdp1", "", WRAP " " CREATE " " SHARDED},
    {"fsdp1", "apex_amp:O2", CONVERT " " WRAP " " CREATE " " SHARDED " " WRAP_OPTIMIZER},
    {"fsdp1", "jointx", NULL},
    {"fsdp2", "", CREATE " " JOINT " " SHARDED},
    {"fsdp2", "apex_amp:O2", CONVERT " " CREATE " " JOINT " " SHARDED " " WRAP_OPTIMIZER},
    {"fsdp2", "jointx", NULL},
    {"tp", "", LOAD " " PARTITION " " CREATE},
    {"tp", "apex_amp:O2", LOAD " " CONVERT " " PARTITION " " CREATE " " WRAP_OPTIMIZER},
    {"tp", "jointx", NULL},
    {"tp=2+fsdp2", "", PARTITION " " CREATE " " JOINT " " SHARDED},
    {"tp=2+fsdp2", "apex_amp:O2", CONVERT " " PARTITION " " CREATE " " JOINT " " SHARDED " " WRAP_OPTIMIZER},
    {"tp=2+fsdp2", "jointx", NULL},
    {"tp=2+ddp", "", LOAD " " PARTITION " " CREATE " " WRAP},
    {"tp=2+fsdp1", "apex_amp:O2", CONVERT " " PARTITION " " WRAP " " CREATE " " SHARDED " " WRAP_OPTIMIZER},
    {"ddp=2+fsdp2", "", CREATE " " JOINT " " WRAP " " SHARDED},
    {"ddp=2+fsdp2", "apex_amp:O2", CONVERT " " CREATE " " JOINT " " WRAP " " SHARDED " " WRAP_OPTIMIZER},
};

static char *with_fakes(const char *words)
{
  return g_strdup_printf("--plugin-path %s %s", g_getenv("ORDO_TEST_FAKES"), words);
}

static void expect(const char *words, int code, const char *out, const char *err)
{
  g_autofree char *line = with_fakes(words);
  command_expect(line, code, out, err);
}

static void plan_steps_are_the_golden_table(void **state)
{
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(golden); i++) {
    const golden_row *row = &golden[i];
    g_autofree char *words = g_strdup_printf("plan --steps --resume --ranks %d --strategy=%s --precision=%s", *row->strategy ? 4 : 1,
                                             row->strategy, row->precision);
    g_autofree char *line = with_fakes(words);
    g_autoptr(outcome) o = command_run(line);
    if (!row->steps) {
      if (o->code != 3 || o->out[0] || !strstr(o->err, "E-PLAN"))
        fail_msg("%s: a conflict was expected, exit code %d\n%s%s", words, o->code, o->out, o->err);
      continue;
    }
    g_autofree char *expected =
        g_strdup_printf("mesh.init model.build %s scheduler.create restore.optimizer %srestore.scheduler restore.data restore.rng verify ",
                        row->steps, *row->precision ? "restore.precision " : "");
    g_strdelimit(o->out, "\n", ' ');
    if (o->code != 0 || strcmp(o->out, expected) != 0)
      fail_msg("%s: exit code %d\nexpected %s\ngot      %s\n%s", words, o->code, expected, o->out, o->err);
  }
}

static void every_form_of_a_plan(void **state)
{
  (void)state;
  const char *const pair = "--strategy fsdp1 --precision apex_amp:O2 --ranks 2";
  g_autofree char *text = g_strdup_printf("plan %s", pair);
  g_autofree char *explain = g_strdup_printf("plan --explain %s", pair);
  g_autofree char *dot = g_strdup_printf("plan --dot %s", pair);
  g_autofree char *json = g_strdup_printf("plan --json %s", pair);
  g_autofree char *digest = g_strdup_printf("plan --digest %s", pair);
  g_autofree char *json_line = with_fakes(json);
  g_autofree char *digest_line = with_fakes(digest);
  expect(text, 0, "precision.wrap_optimizer", NULL);
  expect(explain, 0, "not selected", NULL);
  expect(dot, 0, "digraph", NULL);
  command_expect_json(json_line, 0);
  g_autoptr(outcome) o = command_run(digest_line);
  assert_int_equal(strlen(o->out), 17);
  assert_int_equal(strspn(o->out, "0123456789abcdef"), 16);
}

static void a_conflict_is_explained_in_every_form(void **state)
{
  (void)state;
  g_autofree char *json = with_fakes("plan --json --strategy fsdp1 --precision jointx --ranks 2");
  g_autofree char *why_not_json = with_fakes("why-not fsdp1 jointx --json --ranks 2");
  expect("plan --strategy fsdp1 --precision jointx --ranks 2", 3, "precision.initialize", NULL);
  expect("plan --dot --strategy fsdp1 --precision jointx --ranks 2", 3, "digraph", NULL);
  expect("plan --digest --strategy fsdp1 --precision jointx --ranks 2", 3, "", "E-PLAN");
  command_expect_json(json, 3);
  command_expect_json(why_not_json, 3);
  expect("why-not fsdp1 jointx --ranks 2", 3, "optimizer.create", NULL);
  expect("why-not fsdp1+jointx --ranks 2", 3, "manifest line", NULL);
  expect("why-not --strategy fsdp1 --precision jointx", 3, "optimizer.create", NULL);
  expect("why-not ddp apex_amp:O2 --ranks 2", 0, "No code of a plugin runs", NULL);
  expect("plan --help", 0, "No code of a plugin runs", NULL);
  expect("why-not ddp+fsdp2", 0, NULL, NULL);
  expect("why-not fsdp1+fsdp2+jointx", 3, "--strategy fsdp1+fsdp2=2", NULL);
  expect("why-not fsdp1+fsdp2 --ranks 4", 2, NULL, "2 parts have no size");
  expect("plan --eval --strategy fsdp2 --precision jointx --ranks 2", 0, "strategy.prepare_joint", NULL);
}

static void why_names_origins(void **state)
{
  (void)state;
  g_autofree char *json = with_fakes("why strategy.wrap optimizer.create --strategy fsdp1 --ranks 2 --json");
  expect("why strategy.wrap optimizer.create --strategy fsdp1 --ranks 2", 0, "fsdp1 manifest line", NULL);
  expect("why strategy.warp optimizer.create --strategy fsdp1 --ranks 2", 2, "", "strategy.wrap");
  expect("why strategy.wrap optimizer.create --strategy fsdp1 --precision jointx --ranks 2", 3, "", "E-PLAN");
  command_expect_json(json, 0);
}

/* The events inside a training step are printed by the plan, so they can be asked about. */
static void why_knows_events(void **state)
{
  (void)state;
  g_autofree char *json = with_fakes("why step.reduce step.clip --strategy ddp --ranks 2 --json");
  expect("why step.reduce step.clip --strategy ddp --ranks 2", 0, "step.reduce(ddp) comes before step.clip(host)", NULL);
  expect("why step.clip step.reduce(ddp) --strategy ddp --ranks 2", 0, "comes after step.reduce(ddp)", NULL);
  expect("why step.optimizer strategy.wrap --strategy ddp --ranks 2", 0, "step.optimizer(embedder) comes after strategy.wrap(ddp)", NULL);
  expect("why step.reduce step.reduce --strategy ddp --ranks 2", 0, "neither before nor after itself", NULL);
  expect("why step.reduce(ddp) step.reduce(fsdp2) --strategy ddp=2+fsdp2=2", 0, "comes after step.reduce(fsdp2)", NULL);
  expect("why step.unscale step.clip --strategy ddp --ranks 2", 2, "", "nobody provides");
  expect("why step.redeuce step.clip --strategy ddp --ranks 2", 2, "", "step.reduce");
  command_expect_json(json, 0);
}

/* "see it" is a command that can be pasted. */
static void a_conflict_says_how_to_draw_it(void **state)
{
  (void)state;
  g_autofree char *line = with_fakes("plan --strategy fsdp1 --precision jointx --ranks 3 --resume");
  g_autoptr(outcome) o = command_run(line);
  g_autofree char *expected =
      g_strdup_printf("see it: ordo plan --dot --plugin-path %s --strategy fsdp1 --precision jointx --ranks 3 --resume | dot -Tsvg",
                      g_getenv("ORDO_TEST_FAKES"));
  if (!strstr(o->out, expected))
    fail_msg("expected: %s\ngot: %s", expected, o->out);
}

static void lists_and_inspections(void **state)
{
  (void)state;
  g_autofree char *list_json = with_fakes("list --json");
  g_autofree char *inspect_json = with_fakes("inspect fsdp2 --json");
  g_autofree char *matrix_json = with_fakes("matrix --json");
  expect("list", 0, "fsdp1", NULL);
  expect("inspect fsdp1", 0, "setup_optimizers_in_pre_dispatch", NULL);
  expect("inspect amp_o2", 0, "apex_amp", NULL);
  expect("inspect fsdp9", 2, "", "fsdp");
  expect("matrix", 0, "jointx", NULL);
  command_expect_json(list_json, 0);
  command_expect_json(inspect_json, 0);
  expect("inspect apex_amp --json", 0, "\"aliases\": [{\"name\": ", NULL);
  expect("inspect apex_amp --json", 0, "\"steps\": [{\"name\": ", NULL);
  expect("inspect apex_amp --json", 0, "\"condition\": \"opt_level", NULL);
  expect("inspect apex_amp --json", 0, "\"manifest\": [{\"line\": 1, \"key\": ", NULL);
  expect("list --json", 0, "\"aliases\": []", NULL);
  command_expect_json(matrix_json, 0);
}

static void wrong_names_and_values(void **state)
{
  (void)state;
  expect("plan --strategy fsdp3 --ranks 2", 2, "", "fsdp");
  expect("plan --strategy apex_amp --ranks 2", 2, "", "E-PLUGIN-KIND");
  expect("plan --strategy ddp:hok=bf16 --ranks 2", 2, "", "hook");
  expect("plan --strategy ddp:bucket_mb=0 --ranks 2", 2, "", "bucket_mb");
  expect("plan --strategy ddp:hook=bf17 --ranks 2", 2, "", "did you mean 'bf16'");
  expect("plan --strategy ddp:hook=apex_amp --ranks 2", 2, "", "E-PLUGIN-KIND");
  expect("plan --strategy tp=2+ddp --ranks 3", 2, "", "3");
  expect("plan --strategy fsdp1++ddp --ranks 2", 2, "", "E-EXPRESSION");
}

/* Each finding of a manifest is kept for `inspect`; a row of the table stays a row. */
static void a_broken_manifest_has_a_short_row(void **state)
{
  (void)state;
  g_autofree char *directory = g_dir_make_tmp("ordo-XXXXXX", NULL), *bytes = NULL;
  g_autofree char *source = g_build_filename(g_getenv("ORDO_TEST_FAKES"), "fake_apex_amp.so", NULL);
  g_autofree char *broken = g_build_filename(directory, "broken.so", NULL);
  gsize length = 0;
  assert_true(g_file_get_contents(source, &bytes, &length, NULL));
  for (gsize i = 0; i + 8 < length; i++) /* every option has a type that does not exist */
    if (!memcmp(bytes + i, "option=", 7))
      for (gsize k = i + 7; k < length && bytes[k] != '\n'; k++)
        if (bytes[k] == '|') {
          bytes[k + 1] = 'z';
          break;
        }
  assert_true(g_file_set_contents(broken, bytes, (gssize)length, NULL));
  g_autofree char *line = g_strdup_printf("--plugin-path %s list --failed", directory);
  g_autofree char *inspect = g_strdup_printf("--plugin-path %s inspect %s", directory, broken);
  g_autoptr(outcome) o = command_run(line);
  g_auto(GStrv) rows = g_strsplit(o->out, "\n", -1);
  assert_non_null(strstr(o->out, "ordo inspect"));
  for (char **row = rows; *row; row++)
    if (strlen(*row) > 180)
      fail_msg("%zu characters: %s", strlen(*row), *row);
  command_expect(inspect, 4, "is not a type of option", "E-MANIFEST");
  g_unlink(broken);
  g_rmdir(directory);
}

/* Two brackets: the step, and what it depends on. */
static void the_json_of_a_line_with_a_step(void **state)
{
  (void)state;
  static const char old_lines[] = "license=Apache-2.0\nmesh_axis=none\n", new_lines[] = "after[strategy.wrap]=?model.build\n";
  g_autofree char *directory = g_dir_make_tmp("ordo-XXXXXX", NULL), *bytes = NULL;
  g_autofree char *source = g_build_filename(g_getenv("ORDO_TEST_FAKES"), "fake_teststep.so", NULL);
  g_autofree char *file = g_build_filename(directory, "line.so", NULL), *line = g_strdup_printf("inspect %s --json", file);
  gsize length = 0;
  assert_int_equal(sizeof old_lines, sizeof new_lines);
  assert_true(g_file_get_contents(source, &bytes, &length, NULL));
  char *place = memmem(bytes, length, old_lines, sizeof old_lines - 1);
  assert_non_null(place);
  memcpy(place, new_lines, sizeof new_lines - 1);
  assert_true(g_file_set_contents(file, bytes, (gssize)length, NULL));
  command_expect(line, 0, "\"key\": \"after\", \"step\": \"strategy.wrap\", \"condition\": null, \"value\": \"?model.build\"", NULL);
  g_unlink(file);
  g_rmdir(directory);
}

/* A file that is no plugin, one cut short, one that others can write: listed with the reason, refused with exit code 4, named by doctor. */
static void refused_files(void **state)
{
  (void)state;
  g_autofree char *directory = g_dir_make_tmp("ordo-XXXXXX", NULL);
  g_autofree char *source = g_build_filename(g_getenv("ORDO_TEST_FAKES"), "fake_ddp.so", NULL);
  g_autofree char *cut = g_build_filename(directory, "cut.so", NULL), *open = g_build_filename(directory, "open.so", NULL);
  g_autofree char *bytes = NULL;
  gsize length = 0;
  assert_true(g_file_get_contents(source, &bytes, &length, NULL));
  assert_true(g_file_set_contents(cut, bytes, (gssize)(length / 4), NULL));
  assert_true(g_file_set_contents(open, bytes, (gssize)length, NULL));
  assert_int_equal(g_chmod(open, 0666), 0);

  g_autofree char *list = g_strdup_printf("--plugin-path %s list --failed", directory);
  g_autofree char *inspect = g_strdup_printf("inspect %s", cut);
  g_autofree char *plan = g_strdup_printf("plan --ranks 2 --strategy %s", open);
  g_autofree char *allowed = g_strdup_printf("plan --ranks 2 --steps --allow-insecure-dir --strategy %s", open);
  g_autofree char *doctor = g_strdup_printf("--plugin-path %s doctor", directory);
  command_expect(list, 0, "cut.so", NULL);
  command_expect(list, 0, "open.so", NULL);
  command_expect(inspect, 4, NULL, "cut.so");
  command_expect(plan, 4, "", "open.so");
  command_expect(allowed, 0, "strategy.wrap", NULL);
  g_autoptr(outcome) o = command_run(doctor);
  assert_int_equal(o->code, 1);
  assert_non_null(strstr(o->out, "cut.so was refused"));
  g_unlink(cut);
  g_unlink(open);
  g_rmdir(directory);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(plan_steps_are_the_golden_table),
      cmocka_unit_test(every_form_of_a_plan),
      cmocka_unit_test(a_conflict_is_explained_in_every_form),
      cmocka_unit_test(why_names_origins),
      cmocka_unit_test(why_knows_events),
      cmocka_unit_test(a_conflict_says_how_to_draw_it),
      cmocka_unit_test(a_broken_manifest_has_a_short_row),
      cmocka_unit_test(the_json_of_a_line_with_a_step),
      cmocka_unit_test(lists_and_inspections),
      cmocka_unit_test(wrong_names_and_values),
      cmocka_unit_test(refused_files),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
