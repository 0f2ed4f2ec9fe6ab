/* test_arguments.c - null pointers in every function of the public headers: a refusal or an answer, never a crash.
 *
 * The walk notes what it calls, and the headers are read at the end: a function that is added without a line here is a failure. */
#include "kit.h"
#include <ordo/mpi.h>
#include <ordo/ordo.h>

#include <string.h>

static GHashTable *walked;

static void note(const char *name)
{
  g_hash_table_add(walked, (gpointer)name);
}

/* Refused with a record that names the function. */
#define REFUSES(K, NAME, ...)                            \
  do {                                                   \
    note(#NAME);                                         \
    assert_int_equal(NAME(__VA_ARGS__), ORDO_E_INVALID); \
    assert_string_equal(kit_code(K), "E-ARGUMENT-NULL"); \
    kit_assert_mentions(K, #NAME);                       \
  } while (0)

/* Without a context or session there is nobody to keep a record. */
#define INVALID(NAME, ...)                               \
  do {                                                   \
    note(#NAME);                                         \
    assert_int_equal(NAME(__VA_ARGS__), ORDO_E_INVALID); \
  } while (0)

#define ANSWERS(EXPECTED, NAME, ...)                                \
  do {                                                              \
    note(#NAME);                                                    \
    assert_true((int64_t)NAME(__VA_ARGS__) == (int64_t)(EXPECTED)); \
  } while (0)

#define NOTHING(NAME, ...)            \
  do {                                \
    note(#NAME);                      \
    assert_null((NAME(__VA_ARGS__))); \
  } while (0)

#define QUIET(NAME, ...) \
  do {                   \
    note(#NAME);         \
    NAME(__VA_ARGS__);   \
  } while (0)

static void walk_context(kit *k)
{
  ordo_context *c = k->context;
  char *text;
  INVALID(ordo_context_create, NULL, NULL);
  QUIET(ordo_context_destroy, NULL);
  ANSWERS(0, ordo_context_n_plugins, NULL);
  NOTHING(ordo_context_plugin, NULL, 0);
  INVALID(ordo_context_find, NULL, "ddp", NULL);
  REFUSES(k, ordo_context_find, c, NULL, NULL);
  assert_int_equal(ordo_context_find(c, "no-such-plugin", NULL), ORDO_E_NOT_FOUND);
  note("ordo_context_search_report");
  text = ordo_context_search_report(NULL);
  assert_string_equal(text, "");
  QUIET(ordo_string_free, text);
  ordo_string_free(NULL);
  ANSWERS(0, ordo_n_errors, NULL);
  NOTHING(ordo_error_at, NULL, 0);
  NOTHING(ordo_last_error, NULL);
  ANSWERS(ORDO_E_IO, ordo_fail, NULL, ORDO_E_IO, NULL, NULL, NULL, NULL, NULL);
  ANSWERS(ORDO_E_IO, ordo_fail, c, ORDO_E_IO, NULL, NULL, NULL, NULL, NULL);
  NOTHING(ordo_explain, NULL);
  NOTHING(ordo_nearest_name, NULL, NULL);
  NOTHING(ordo_nearest_name, "x", NULL);
}

static void walk_plan(kit *k)
{
  const ordo_plan_request request = {.struct_size = sizeof request, .ranks = 1};
  ordo_plan *plan;
  char *text;
  INVALID(ordo_plan_create, NULL, &request, &plan);
  INVALID(ordo_plan_create, k->context, NULL, &plan);
  INVALID(ordo_plan_create, k->context, &request, NULL);
  QUIET(ordo_plan_destroy, NULL);
  ANSWERS(0, ordo_plan_is_legal, NULL);
  ANSWERS(0, ordo_plan_n_nodes, NULL);
  NOTHING(ordo_plan_node_at, NULL, 0);
  ANSWERS(0, ordo_plan_n_events, NULL);
  NOTHING(ordo_plan_event_at, NULL, 0);
  note("ordo_plan_digest");
  assert_string_equal(ordo_plan_digest(NULL), "");
  NOTHING(ordo_plan_render, NULL, ORDO_RENDER_TEXT, 0);
  INVALID(ordo_plan_why, NULL, "a", "b", ORDO_RENDER_TEXT, &text);
  INVALID(ordo_plan_why, k->plan, NULL, "b", ORDO_RENDER_TEXT, &text);
  INVALID(ordo_plan_why, k->plan, "a", NULL, ORDO_RENDER_TEXT, &text);
  INVALID(ordo_plan_why, k->plan, "a", "b", ORDO_RENDER_TEXT, NULL);
  INVALID(ordo_plan_why_not, NULL, ORDO_RENDER_TEXT, &text);
  INVALID(ordo_plan_why_not, k->plan, ORDO_RENDER_TEXT, NULL);
  INVALID(ordo_plan_matrix, NULL, 1, ORDO_RENDER_TEXT, 0, &text);
  INVALID(ordo_plan_matrix, k->context, 1, ORDO_RENDER_TEXT, 0, NULL);
}

static void walk_provider(kit *k)
{
  ordo_comm_provider *provider = NULL;
  INVALID(ordo_comm_single_create, k->context, NULL);
  INVALID(ordo_comm_fake_create, k->context, 0, 1, NULL);
  assert_int_equal(ordo_comm_single_create(NULL, &provider), ORDO_OK);
  ordo_comm_provider_destroy(provider);
  assert_int_equal(ordo_comm_fake_create(NULL, 0, 2, &provider), ORDO_OK);
  ordo_comm_provider_destroy(provider);
  QUIET(ordo_comm_provider_destroy, NULL);
  INVALID(ordo_comm_mpi_create, k->context, MPI_COMM_NULL, NULL, NULL);
  INVALID(ordo_comm_mpi_create_f, k->context, 0, NULL, NULL);
}

/* Everything without a session. */
static void walk_no_session(void)
{
  int32_t part = 7, parts = 7;
  int64_t now = 7, updates;
  double value = 0.0;
  float element = 0.0f;
  size_t size = 0;
  ordo_step_result result = {.struct_size = sizeof result};
  ordo_comm_stats stats = {.struct_size = sizeof stats};
  ordo_control control = {.struct_size = sizeof control};
  ordo_activation activation = {.struct_size = sizeof activation};
  ordo_unit_override override = {.struct_size = sizeof override};
  const ordo_plan_node *node;
  g_autofree char *text = NULL;
  QUIET(ordo_session_destroy, NULL);
  INVALID(ordo_session_setup, NULL);
  INVALID(ordo_session_setup_next, NULL, &node);
  INVALID(ordo_session_run, NULL, "verify");
  NOTHING(ordo_session_mesh, NULL);
  NOTHING(ordo_session_model, NULL, 0);
  NOTHING(ordo_session_optimizer, NULL, 0);
  INVALID(ordo_session_check_leaf, NULL, NULL);
  QUIET(ordo_session_data_part, NULL, &part, &parts);
  assert_true(part == 0 && parts == 1);
  INVALID(ordo_session_check_data, NULL, &value, sizeof value);
  INVALID(ordo_session_sum, NULL, &value, 1);
  INVALID(ordo_session_step_begin, NULL, 1, 1.0);
  ANSWERS(1, ordo_session_loss_factor, NULL);
  ANSWERS(1, ordo_session_loss_scale, NULL);
  INVALID(ordo_session_select_loss, NULL, 0);
  ANSWERS(0, ordo_session_step_weight, NULL);
  INVALID(ordo_session_micro_begin, NULL);
  INVALID(ordo_session_pre_forward, NULL, 0, 0);
  INVALID(ordo_session_post_forward, NULL, 0, 0);
  INVALID(ordo_session_pre_backward, NULL, 0, 0);
  INVALID(ordo_session_grad_ready, NULL, 0, 0);
  INVALID(ordo_session_post_backward, NULL, 0, 0);
  INVALID(ordo_session_micro_end, NULL);
  ANSWERS(1, ordo_session_grad_adds, NULL, 0, 0);
  INVALID(ordo_session_step_end, NULL, &result);
  INVALID(ordo_session_reduce_gradients, NULL);
  INVALID(ordo_session_eval_begin, NULL);
  INVALID(ordo_session_eval_end, NULL);
  ANSWERS(0, ordo_session_wants_activation, NULL, 0, ORDO_ACT_LOGITS, 0, 0);
  part = parts = 7;
  QUIET(ordo_session_residual, NULL, 0, &parts, &part);
  assert_true(part == 0 && parts == 1);
  INVALID(ordo_session_activation, NULL, 0, &activation);
  ANSWERS(ORDO_F32, ordo_session_op_dtype, NULL, ORDO_OP_MATMUL);
  INVALID(ordo_session_gather_full, NULL, 0, 0);
  INVALID(ordo_session_release_full, NULL, 0);
  INVALID(ordo_session_export_chunk, NULL, NULL, NULL, -1, &element);
  INVALID(ordo_session_import_chunk, NULL, NULL, NULL, -1, &element);
  INVALID(ordo_session_export_param, NULL, NULL, -1, &element);
  INVALID(ordo_session_import_param, NULL, NULL, -1, &element);
  INVALID(ordo_session_export_updates, NULL, NULL, &updates);
  INVALID(ordo_session_import_updates, NULL, NULL, 0);
  INVALID(ordo_session_control, NULL, 0, &control);
  INVALID(ordo_session_run_schedule, NULL);
  INVALID(ordo_session_override_unit, NULL, 0, 0, &override);
  INVALID(ordo_session_resume_at, NULL, 0, 0, 0);
  INVALID(ordo_session_precision_save, NULL, 0, &value, &size);
  INVALID(ordo_session_precision_load, NULL, 0, &value, sizeof value, NULL);
  QUIET(ordo_session_memory, NULL, 0, &now, NULL);
  assert_int_equal(now, 0);
  NOTHING(ordo_session_alloc, NULL, 8, ORDO_MEM_OTHER);
  QUIET(ordo_session_free, NULL, NULL);
  INVALID(ordo_session_comm_stats, NULL, NULL, &stats);
  note("ordo_session_comm_report");
  text = ordo_session_comm_report(NULL);
  assert_string_equal(text, "");
  INVALID(ordo_model_builder_unit, NULL, "unit", "class", NULL);
  INVALID(ordo_model_builder_param, NULL, NULL, NULL);
}

/* Every other pointer of a session's functions. */
static void walk_session(kit *k)
{
  ordo_session *s = k->session, *none;
  const ordo_model *model = ordo_session_model(s, 0);
  const ordo_leaf *leaf = model->leaves[0];
  const ordo_param *param = model->params[0];
  const ordo_chunk *chunk = &leaf->placement->chunks[0];
  float buffer[64];
  int32_t part;
  INVALID(ordo_session_create, NULL, k->plan, &k->embedder, NULL, &none);
  INVALID(ordo_session_create, k->context, k->plan, &k->embedder, NULL, NULL);
  assert_int_equal(ordo_session_create(k->context, NULL, &k->embedder, NULL, &none), ORDO_E_CONFLICT);
  assert_int_equal(ordo_session_create(k->context, k->plan, NULL, NULL, &none), ORDO_E_INVALID);
  REFUSES(k, ordo_session_run, s, NULL);
  REFUSES(k, ordo_session_check_leaf, s, NULL);
  ordo_session_data_part(s, NULL, NULL);
  REFUSES(k, ordo_session_check_data, s, NULL, 8);
  assert_int_equal(ordo_session_check_data(s, NULL, 0), ORDO_OK);
  REFUSES(k, ordo_session_sum, s, NULL, 1);
  assert_int_equal(ordo_session_sum(s, NULL, 0), ORDO_OK);
  ordo_session_residual(s, 0, NULL, NULL);
  ordo_session_residual(s, 0, &part, NULL);
  REFUSES(k, ordo_session_activation, s, 0, NULL);
  REFUSES(k, ordo_session_export_chunk, s, NULL, chunk, -1, buffer);
  REFUSES(k, ordo_session_export_chunk, s, leaf, NULL, -1, buffer);
  REFUSES(k, ordo_session_export_chunk, s, leaf, chunk, -1, NULL);
  REFUSES(k, ordo_session_import_chunk, s, NULL, chunk, -1, buffer);
  REFUSES(k, ordo_session_import_chunk, s, leaf, NULL, -1, buffer);
  REFUSES(k, ordo_session_import_chunk, s, leaf, chunk, -1, NULL);
  REFUSES(k, ordo_session_export_param, s, NULL, -1, buffer);
  assert_int_equal(ordo_session_export_param(s, param, -1, NULL), ORDO_OK); /* it only takes part */
  REFUSES(k, ordo_session_import_param, s, NULL, -1, buffer);
  REFUSES(k, ordo_session_import_param, s, param, -1, NULL);
  REFUSES(k, ordo_session_export_updates, s, NULL, (int64_t *)buffer);
  REFUSES(k, ordo_session_export_updates, s, param, NULL);
  REFUSES(k, ordo_session_import_updates, s, NULL, 0);
  INVALID(ordo_session_control, s, 0, NULL);
  assert_string_equal(kit_code(k), "E-CONTROL-ARGUMENT");
  REFUSES(k, ordo_session_override_unit, s, 0, 0, NULL);
  REFUSES(k, ordo_session_precision_save, s, 0, buffer, NULL);
  assert_int_equal(ordo_session_precision_load(s, 0, NULL, 8, NULL), ORDO_E_NOT_FOUND);
  ordo_session_memory(s, ORDO_N_MEM_TAGS, NULL, NULL);
  ordo_session_free(s, NULL);
  REFUSES(k, ordo_session_comm_stats, s, NULL, NULL);
  assert_int_equal(ordo_session_setup_next(s, NULL), ORDO_E_STATE);
  assert_int_equal(kit_step(k, 1.0, 1.0f, NULL), ORDO_OK); /* and the session goes on */
}

/* Names of the functions that a header exports and that take a pointer. */
static void check_header(const char *name)
{
  g_autofree char *path = g_build_filename(HEADERS_DIR, name, NULL), *text = NULL;
  g_autoptr(GRegex) regex = g_regex_new("ORDO_EXPORT[^;]*?\\b(ordo_[a-z_]+)\\(([^;]*)\\);", G_REGEX_DOTALL, 0, NULL);
  g_autoptr(GMatchInfo) match = NULL;
  int n = 0;
  assert_true(g_file_get_contents(path, &text, NULL, NULL));
  for (g_regex_match(regex, text, 0, &match); g_match_info_matches(match); g_match_info_next(match, NULL)) {
    g_autofree char *function = g_match_info_fetch(match, 1), *arguments = g_match_info_fetch(match, 2);
    n++;
    if (strchr(arguments, '*') && !g_hash_table_contains(walked, function))
      fail_msg("%s: nobody has tried %s with null pointers", name, function);
  }
  assert_true(n > 1);
}

static void every_public_function_stands_null_pointers(void **state)
{
  static const char *const headers[] = {"context.h", "plan.h", "provider.h", "mpi.h", "session.h"};
  kit *k = kit_new();
  (void)state;
  walked = g_hash_table_new(g_str_hash, g_str_equal);
  kit_add(k, "ddp", KIT_DDP, 1);
  kit_setup(k);
  walk_context(k);
  walk_plan(k);
  walk_provider(k);
  walk_no_session();
  walk_session(k);
  for (size_t i = 0; i < G_N_ELEMENTS(headers); i++)
    check_header(headers[i]);
  g_hash_table_unref(walked);
  kit_free(k);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_public_function_stands_null_pointers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
