/* sharding.c - chunks, flat sizes, pieces and communication of the 260K-parameter Llama against the golden numbers, on as many ranks as it
 * is run on.
 *
 * Under mpirun. ORDO_GOLDEN_DIR, or else argument 1: the directory of golden numbers; without one the test is skipped (exit code 77). The
 * pieces of fsdp1 are those of torch's FlatParamHandle, the rows of fsdp2 those of torch.chunk, the calls and bytes those of the published
 * formula.
 */
#include "embed.h"
#include "random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <json-glib/json-glib.h>
#include <mpi.h>
#include <ordo/mpi.h>
#include <stdio.h>
#include <string.h>

static ordo_context *context;
static ordo_comm_provider *comm;
static JsonObject *golden;
static const char *root;

typedef struct run {
  ordo_plan *plan;
  ordo_embed *embed;
  ordo_weights *weights;
  ordo_tokens *tokens;
  ordo_tokenizer *tokenizer;
  ordo_data data;
} run;

static void good(ordo_status status, const char *what)
{
  if (status == ORDO_OK)
    return;
  ordo_context_print_errors(context, stderr);
  fail_msg("%s: %d", what, status);
}

static void begin(run *r, const char *strategy)
{
  const ordo_plan_request request = {.struct_size = sizeof request, .strategy = strategy, .ranks = comm->size};
  g_autofree char *model = g_build_filename(root, "model", "hf", NULL), *ids = g_build_filename(root, "data", "text.ids.u16.bin", NULL);
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  memset(r, 0, sizeof *r);
  good(ordo_weights_open(model, &problems, &r->weights), "weights");
  good(ordo_tokenizer_open("bytes", 0, &problems, &r->tokenizer), "tokenizer");
  good(ordo_tokens_open(ids, "tokens16", r->tokenizer, FALSE, r->weights->config.vocab, &problems, &r->tokens), "tokens");
  good(ordo_data_view(&r->data, r->tokens, 0, ordo_tokens_count(r->tokens), 64, "golden", &problems), "data");
  good(ordo_plan_create(context, &request, &r->plan), "plan");
  const ordo_embed_options options = {.context = context,
                                      .plan = r->plan,
                                      .comm = comm,
                                      .weights = r->weights,
                                      .train = 1,
                                      .batch = 8,
                                      .seq_len = 64,
                                      .seed = 1,
                                      .optimizer = {1, 0.01, 0.9, 0.95, 1e-8, 0.0, 0.9},
                                      .schedule = {SCHEDULE_CONSTANT, 0.01, 1.0, 0, 10}};
  good(ordo_embed_create(&options, &r->embed), "set-up");
}

static void end(run *r)
{
  ordo_embed_destroy(r->embed);
  ordo_plan_destroy(r->plan);
  ordo_data_clear(&r->data);
  ordo_tokens_free(r->tokens);
  ordo_tokenizer_free(r->tokenizer);
  ordo_weights_free(r->weights);
}

static JsonObject *member(JsonObject *object, const char *name)
{
  assert_true(json_object_has_member(object, name));
  return json_object_get_object_member(object, name);
}

static JsonObject *of_world(const char *section)
{
  char world[16];
  snprintf(world, sizeof world, "%d", comm->size);
  return member(member(member(golden, section), "by_world"), world);
}

/* Pieces that this rank holds of a unit, in order; `block` replaces the N of the golden names. */
static void compare_pieces(const ordo_model *model, JsonObject *unit, int block)
{
  JsonArray *ranks = json_object_get_array_member(unit, "ranks");
  JsonArray *pieces = json_object_get_array_member(json_array_get_object_element(ranks, (guint)comm->rank), "pieces");
  for (guint i = 0; i < json_array_get_length(pieces); i++) {
    JsonObject *piece = json_array_get_object_element(pieces, i);
    g_auto(GStrv) parts = g_strsplit(json_object_get_string_member(piece, "name"), ".N.", 2);
    g_autofree char *name = parts[1] ? g_strdup_printf("%s.%d.%s", parts[0], block, parts[1]) : g_strdup(parts[0]);
    const ordo_chunk *found = NULL;
    for (uint32_t l = 0; l < model->n_leaves; l++)
      for (uint64_t c = 0; c < model->leaves[l]->placement->n_chunks; c++)
        if (strcmp(model->leaves[l]->placement->chunks[c].param->name, name) == 0)
          found = &model->leaves[l]->placement->chunks[c];
    if (!found)
      fail_msg("rank %d holds nothing of %s", comm->rank, name);
    assert_int_equal(found->kind, ORDO_CHUNK_FLAT);
    assert_int_equal(found->begin, json_object_get_int_member(piece, "begin"));
    assert_int_equal(found->end, json_object_get_int_member(piece, "end"));
  }
}

static int64_t held_elements(const ordo_model *model)
{
  int64_t numel = 0;
  for (uint32_t l = 0; l < model->n_leaves; l++)
    numel += model->leaves[l]->numel;
  return numel;
}

static void pieces_of_every_rank(void **state)
{
  static const char *const strategies[] = {"fsdp1", "fsdp1:use_orig_params=false"};
  JsonObject *world = of_world("fsdp1_flat");
  (void)state;
  for (int s = 0; s < 2; s++) {
    run r;
    begin(&r, strategies[s]);
    const ordo_model *model = ordo_embed_model(r.embed);
    for (int block = 0; block < 5; block++)
      compare_pieces(model, member(world, "block"), block);
    compare_pieces(model, member(world, "root"), 0);
    if (s == 1) { /* flat leaves are whole shards, padding included */
      assert_int_equal(model->n_leaves, 6);
      assert_int_equal(model->leaves[0]->numel, json_object_get_int_member(member(world, "root"), "shard_numel"));
      assert_int_equal(model->leaves[1]->numel, json_object_get_int_member(member(world, "block"), "shard_numel"));
      assert_int_equal(held_elements(model), json_object_get_int_member(member(world, "whole_model"), "shard_numel_per_rank_all_units"));
    } else {
      assert_int_equal(model->n_leaves, 47);
    }
    end(&r);
  }
}

/* ".N." of the golden names stands for a block: any number in the model's. */
static JsonObject *rows_of(JsonObject *parameters, const char *name)
{
  g_auto(GStrv) parts = g_strsplit(name, ".", -1);
  for (guint i = 0; parts[i]; i++)
    if (g_ascii_isdigit(parts[i][0])) {
      g_free(parts[i]);
      parts[i] = g_strdup("N");
    }
  g_autofree char *pattern = g_strjoinv(".", parts);
  return member(parameters, pattern);
}

/* Rows of every parameter that this rank holds, and where they begin; with more ranks than rows there would be none. */
static void rows_of_every_rank(void **state)
{
  static const char *const strategies[] = {"fsdp2", "fsdp2:reshard_after_forward=false"};
  JsonObject *world = of_world("fsdp2_dim0");
  (void)state;
  for (int s = 0; s < 2; s++) {
    run r;
    begin(&r, strategies[s]);
    const ordo_model *model = ordo_embed_model(r.embed);
    assert_int_equal(model->n_leaves, 47);
    for (uint32_t l = 0; l < model->n_leaves; l++) {
      const ordo_leaf *leaf = model->leaves[l];
      JsonObject *expected = rows_of(member(world, "parameters"), leaf->params[0]->name);
      JsonArray *rows = json_object_get_array_member(expected, "rows_per_rank");
      int64_t own = json_array_get_int_element(rows, (guint)comm->rank), before = 0;
      for (int32_t k = 0; k < comm->rank; k++)
        before += json_array_get_int_element(rows, (guint)k);
      assert_int_equal(leaf->numel,
                       json_array_get_int_element(json_object_get_array_member(expected, "numel_per_rank"), (guint)comm->rank));
      assert_int_equal(leaf->placement->n_chunks, own > 0);
      if (own > 0) {
        assert_int_equal(leaf->placement->chunks->kind, ORDO_CHUNK_RECT);
        assert_int_equal(leaf->placement->chunks->offset[0], before);
        assert_int_equal(leaf->placement->chunks->extent[0], own);
      }
    }
    assert_int_equal(held_elements(model), json_array_get_int_element(
                                               json_object_get_array_member(world, "owned_numel_per_rank_whole_model"), (guint)comm->rank));
    end(&r);
  }
}

static ordo_comm_stats stats_of(run *r, const char *axis)
{
  ordo_comm_stats stats = {.struct_size = sizeof stats};
  good(ordo_session_comm_stats(ordo_embed_session(r->embed), axis, &stats), "comm_stats");
  return stats;
}

/* The second step: nothing of the set-up is in it. */
static void calls_and_bytes_of_a_step(void **state)
{
  static const struct {
    const char *plugin, *strategy, *name;
  } rows[] = {{"fsdp1", "fsdp1", "full_shard"},
              {"fsdp1", "fsdp1:use_orig_params=false", "full_shard"},
              {"fsdp1", "fsdp1:sharding_strategy=SHARD_GRAD_OP", "shard_grad_op"},
              {"fsdp2", "fsdp2", "full_shard"},
              {"fsdp2", "fsdp2:reshard_after_forward=false", "shard_grad_op"}};
  (void)state;
  for (size_t s = 0; s < G_N_ELEMENTS(rows); s++) {
    run r;
    ordo_step_outcome outcome;
    JsonObject *expected = member(member(of_world("communication"), rows[s].plugin), rows[s].name);
    begin(&r, rows[s].strategy);
    good(ordo_embed_step(r.embed, &r.data, 0, 0, NULL, NULL, &outcome), "step");
    ordo_comm_stats before = stats_of(&r, rows[s].plugin);
    good(ordo_embed_step(r.embed, &r.data, 8, 0, NULL, NULL, &outcome), "step");
    ordo_comm_stats after = stats_of(&r, rows[s].plugin);
    assert_int_equal(after.calls[ORDO_ALL_GATHER] - before.calls[ORDO_ALL_GATHER],
                     json_object_get_int_member(expected, "all_gather_calls"));
    assert_int_equal(after.bytes[ORDO_ALL_GATHER] - before.bytes[ORDO_ALL_GATHER],
                     json_object_get_int_member(expected, "all_gather_payload"));
    assert_int_equal(after.calls[ORDO_REDUCE_SCATTER] - before.calls[ORDO_REDUCE_SCATTER],
                     json_object_get_int_member(expected, "reduce_scatter_calls"));
    assert_int_equal(after.bytes[ORDO_REDUCE_SCATTER] - before.bytes[ORDO_REDUCE_SCATTER],
                     json_object_get_int_member(expected, "reduce_scatter_payload"));
    end(&r);
  }
}

/* NO_SHARD moves what ddp moves. */
static void bytes_without_sharding(void **state)
{
  run r;
  ordo_step_outcome outcome;
  (void)state;
  begin(&r, "fsdp1:sharding_strategy=NO_SHARD");
  ordo_comm_stats before = stats_of(&r, "fsdp1");
  good(ordo_embed_step(r.embed, &r.data, 0, 0, NULL, NULL, &outcome), "step");
  ordo_comm_stats after = stats_of(&r, "fsdp1");
  assert_int_equal(after.calls[ORDO_ALL_GATHER] - before.calls[ORDO_ALL_GATHER], 0);
  assert_int_equal(after.calls[ORDO_REDUCE_SCATTER] - before.calls[ORDO_REDUCE_SCATTER], 0);
  const int64_t moved = (int64_t)(after.bytes[ORDO_ALL_REDUCE] - before.bytes[ORDO_ALL_REDUCE]);
  const int64_t payload = json_object_get_int_member(member(member(golden, "communication"), "ddp"), "all_reduce_payload");
  /* on top: 6 paddings of less than a rank count of elements, and small all-reduces of tokens, norm, loss and unused parameters */
  assert_in_range(moved - payload, 0, 6 * 4 * comm->size + 512);
  end(&r);
}

int main(int argc, char **argv)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pieces_of_every_rank),
      cmocka_unit_test(rows_of_every_rank),
      cmocka_unit_test(calls_and_bytes_of_a_step),
      cmocka_unit_test(bytes_without_sharding),
  };
  const ordo_context_options options = {.struct_size = sizeof options, .program_name = "test"};
  const char *wish = g_getenv("ORDO_GOLDEN_DIR");
  root = wish && *wish ? wish : argc > 1 ? argv[1] : "";
  g_autofree char *path = g_build_filename(root, "sharding", "stories260k.json", NULL);
  g_autoptr(JsonParser) parser = json_parser_new();
  int failed = 77;
  if (ordo_context_create(&options, &context) != ORDO_OK || ordo_comm_mpi_create(context, MPI_COMM_NULL, NULL, &comm) != ORDO_OK)
    return 1;
  if (json_parser_load_from_file(parser, path, NULL)) {
    golden = json_node_get_object(json_parser_get_root(parser));
    failed = cmocka_run_group_tests(tests, NULL, NULL);
  } else {
    printf("skipped: there are no golden numbers at %s (ORDO_GOLDEN_DIR)\n", path);
  }
  ordo_comm_provider_destroy(comm);
  ordo_context_destroy(context);
  return failed;
}
