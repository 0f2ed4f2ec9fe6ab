/* test_golden.c - the table of outcomes: nine strategies times three precisions, trained and resumed.
 *
 * It runs once with the ids and lines as written, and many times with every id renamed and every manifest reordered: no name and no order
 * of lines may matter. */
#include "session.h"

#define ROUNDS 200

/* Short names as in the table; T is the common tail. X stands for precision.initialize. */
static const struct {
  const char *strategies, *none, *amp, *joint;
} table[] = {
    {"none", "load > create > T", "load > convert > create > wrap_optimizer > T", "load > create > X > T"},
    {"ddp", "load > create > wrap > T", "load > convert > create > wrap_optimizer > wrap > T", "load > create > X > wrap > T"},
    {"fsdp1", "wrap > create > load_sharded > T", "convert > wrap > create > load_sharded > wrap_optimizer > T",
     "! create > X > wrap > create"},
    {"fsdp2", "create > prepare_joint > load_sharded > T", "convert > create > prepare_joint > load_sharded > wrap_optimizer > T",
     "! X > prepare_joint > X"},
    {"tp", "load > partition > create > T", "load > convert > partition > create > wrap_optimizer > T",
     "! create > X > partition > create"},
    {"tp+fsdp2", "partition > create > prepare_joint > load_sharded > T",
     "convert > partition > create > prepare_joint > load_sharded > wrap_optimizer > T", "! X > prepare_joint > X"},
    {"tp+ddp", "load > partition > create > wrap > T", "load > convert > partition > create > wrap_optimizer > wrap > T",
     "! create > X > partition > create"},
    {"tp+fsdp1", "partition > wrap > create > load_sharded > T", "convert > partition > wrap > create > load_sharded > wrap_optimizer > T",
     "! create > X > partition > create"},
    {"ddp+fsdp2", "create > prepare_joint > wrap > load_sharded > T",
     "convert > create > prepare_joint > wrap > load_sharded > wrap_optimizer > T", "! X > prepare_joint > X"},
};

static const struct {
  const char *brief, *full;
} words[] = {
    {"load", "weights.load > weights.sync"},
    {"convert", "precision.convert_model"},
    {"create", "optimizer.create"},
    {"wrap_optimizer", "precision.wrap_optimizer"},
    {"X", "precision.initialize"},
    {"wrap", "strategy.wrap"},
    {"partition", "strategy.partition"},
    {"prepare_joint", "strategy.prepare_joint"},
    {"prepare_optimizer", "strategy.prepare_optimizer"},
    {"load_sharded", "weights.load_sharded"},
};

static const char *tail(gboolean precision)
{
  return precision ? "scheduler.create > restore.optimizer > restore.precision > restore.scheduler > verify"
                   : "scheduler.create > restore.optimizer > restore.scheduler > verify";
}

static char *spelled_out(const char *brief, gboolean precision)
{
  g_auto(GStrv) parts = g_strsplit(brief, " > ", -1);
  g_autoptr(GPtrArray) full = g_ptr_array_new();
  for (char **part = parts; *part; part++) {
    const char *found = strcmp(*part, "T") == 0 ? tail(precision) : NULL;
    for (size_t i = 0; i < G_N_ELEMENTS(words); i++) {
      if (strcmp(*part, words[i].brief) == 0)
        found = words[i].full;
    }
    assert_non_null(found);
    g_ptr_array_add(full, (gpointer)found);
  }
  g_ptr_array_add(full, NULL);
  return g_strjoinv(" > ", (char **)full->pdata);
}

/* Without the four steps that the table does not show. */
static char *shown_steps(const ordo_resolution *r)
{
  static const uint32_t hidden =
      1u << ORDO_STEP_MESH_INIT | 1u << ORDO_STEP_MODEL_BUILD | 1u << ORDO_STEP_RESTORE_DATA | 1u << ORDO_STEP_RESTORE_RNG;
  g_autoptr(GPtrArray) names = g_ptr_array_new();
  for (guint i = 0; r->legal && i < r->nodes->len; i++) {
    uint32_t step = g_array_index(r->nodes, ordo_node, i).step;
    if (!((hidden >> step) & 1u))
      g_ptr_array_add(names, (gpointer)ordo_step_name(step));
  }
  for (guint i = 0; !r->legal && i <= r->cycle->len && r->cycle->len > 0; i++) {
    const ordo_edge *edge = &g_array_index(r->edges, ordo_edge, g_array_index(r->cycle, guint, i % r->cycle->len));
    g_ptr_array_add(names, (gpointer)ordo_step_name(g_array_index(r->nodes, ordo_node, edge->from).step));
  }
  g_ptr_array_add(names, NULL);
  return g_strjoinv(" > ", (char **)names->pdata);
}

static void check_cell(const char *strategies, const char *precision, const char *expected, GRand *disturb)
{
  g_autoptr(session) s = session_new();
  gboolean conflict = *expected == '!';
  g_autofree char *full = spelled_out(conflict ? expected + 2 : expected, strcmp(precision, "none") != 0);
  s->disturb = disturb;
  s->resume = TRUE;
  session_add_set(s, strategies, precision);
  ordo_resolution *r = session_resolve(s);
  g_autofree char *actual = shown_steps(r);
  if (r->legal == conflict || strcmp(actual, full) != 0)
    fail_msg("%s with %s\n  expected %s\n  got      %s", strategies, precision, full, actual);
  if (conflict) {
    assert_int_equal(r->findings->len, 1);
    assert_true(resolution_has(r, "E-PLAN-CYCLE"));
    assert_true(r->fixes->len > 0);
  } else {
    assert_int_equal(g_array_index(r->nodes, ordo_node, 0).step, ORDO_STEP_MESH_INIT);
    assert_int_equal(g_array_index(r->nodes, ordo_node, 1).step, ORDO_STEP_MODEL_BUILD);
    assert_int_equal(g_array_index(r->nodes, ordo_node, r->nodes->len - 3).step, ORDO_STEP_RESTORE_DATA);
    assert_int_equal(g_array_index(r->nodes, ordo_node, r->nodes->len - 2).step, ORDO_STEP_RESTORE_RNG);
  }
  ordo_resolution_free(r);
}

static void check_table(GRand *disturb)
{
  for (size_t i = 0; i < G_N_ELEMENTS(table); i++) {
    check_cell(table[i].strategies, "none", table[i].none, disturb);
    check_cell(table[i].strategies, "apex_amp:O2", table[i].amp, disturb);
    check_cell(table[i].strategies, "jointx", table[i].joint, disturb);
  }
}

static void test_table(void **state)
{
  (void)state;
  check_table(NULL);
}

static void test_renamed_and_reordered(void **state)
{
  GRand *random = g_rand_new_with_seed(331);
  (void)state;
  for (int i = 0; i < ROUNDS; i++)
    check_table(random);
  g_rand_free(random);
}

static void test_more_rows(void **state)
{
  (void)state;
  /* ordered without being named anywhere */
  check_cell("zero1", "none", "load > create > prepare_optimizer > T", NULL);
  check_cell("zero1", "apex_amp:O2", "load > convert > create > prepare_optimizer > wrap_optimizer > T", NULL);
  check_cell("tp+zero1", "none", "load > partition > create > prepare_optimizer > T", NULL);
  check_cell("ddp+fsdp1", "none", "wrap > create > wrap > load_sharded > T", NULL);
  check_cell("ddp+tp+fsdp2", "none", "partition > create > prepare_joint > wrap > load_sharded > T", NULL);
  check_cell("zero1", "jointx", "! X > prepare_optimizer > X", NULL);
}

/* tp with a precision plugin that accepts a partitioned model. */
static void test_accepts_partitioned(void **state)
{
  (void)state;
  check_cell("tp", "jointx_tp", "load > partition > create > X > T", NULL);
  check_cell("tp+ddp", "jointx_tp", "load > partition > create > X > wrap > T", NULL);
  check_cell("tp+fsdp2", "jointx_tp", "! X > prepare_joint > X", NULL);
}

/* Levels leave out the steps they do not need. */
static void test_levels(void **state)
{
  (void)state;
  check_cell("fsdp1", "apex_amp:O0", "wrap > create > load_sharded > T", NULL);
  check_cell("fsdp1", "apex_amp:O1", "convert > wrap > create > load_sharded > wrap_optimizer > T", NULL);
  check_cell("ddp", "apex_amp:O1:loss_scale=1", "load > convert > create > wrap > T", NULL);
  check_cell("ddp", "apex_amp:O3", "load > convert > create > wrap > T", NULL);
  check_cell("ddp", "apex_amp:O4", "load > convert > create > wrap > T", NULL);
  check_cell("ddp", "apex_amp:O4:loss_scale=128", "load > convert > create > wrap_optimizer > wrap > T", NULL);
  check_cell("tp+fsdp2", "apex_amp:O5", "convert > partition > create > prepare_joint > load_sharded > wrap_optimizer > T", NULL);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_table),     cmocka_unit_test(test_renamed_and_reordered),
      cmocka_unit_test(test_more_rows), cmocka_unit_test(test_accepts_partitioned),
      cmocka_unit_test(test_levels),
  };
  return cmocka_run_group_tests_name("golden table", tests, NULL, NULL);
}
