/* test_prepare.c - how rows are cut, and what prepare_joint refuses before it touches anything, with the smallest job that can ask for it.
 *
 * Chunk sizes are those of torch.chunk: tables of a real model (stories260K) at 2, 3, 4 and 5 ranks.
 */
#include "fsdp2.h"

#include <ordo/plugin.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

extern const ordo_plugin ordo_plugin_entry;

enum { MAX_LEAVES = 12 };

typedef struct small_job {
  ordo_host host;
  ordo_comm comm;
  ordo_axis axis;
  ordo_job job;
  ordo_model model;
  ordo_unit units[3];
  const ordo_unit *unit_list[3];
  ordo_param params[MAX_LEAVES];
  const ordo_param *param_list[MAX_LEAVES];
  ordo_leaf leaves[MAX_LEAVES];
  ordo_leaf *leaf_list[MAX_LEAVES];
  ordo_placement placements[MAX_LEAVES];
  ordo_chunk chunks[MAX_LEAVES];
  ordo_optimizer *optimizer;
  int replaced, live; /* calls of replace_leaves; blocks that were not freed */
  int64_t cut_numel;  /* of the first new leaf, and its chunk */
  ordo_chunk cut;
  char error[1600];
} small_job;

static ordo_status fail_record(void *ctx, ordo_status status, const char *text, const char *hint)
{
  small_job *j = ctx;
  snprintf(j->error, sizeof j->error, "%s (%s)", text, hint != NULL ? hint : "");
  return status;
}

static void *allocate(void *ctx, size_t bytes, uint32_t tag)
{
  small_job *j = ctx;
  (void)tag;
  j->live++;
  return calloc(1, bytes);
}

static void release(void *ctx, void *memory)
{
  small_job *j = ctx;
  j->live -= memory != NULL;
  free(memory);
}

static ordo_status comm_alloc(void *ctx, size_t bytes, void **memory)
{
  *memory = allocate(ctx, bytes, ORDO_MEM_COMM);
  return ORDO_OK;
}

static ordo_status comm_free(void *ctx, void *memory)
{
  release(ctx, memory);
  return ORDO_OK;
}

static const char *option(void *ctx, const char *key)
{
  (void)ctx;
  return strcmp(key, "units") == 0 ? "block" : strcmp(key, "reshard_after_forward") == 0 ? "true" : NULL;
}

static ordo_status option_int(void *ctx, const char *key, int64_t *value)
{
  (void)ctx, (void)key, (void)value;
  return ORDO_E_NOT_FOUND;
}

static ordo_status option_real(void *ctx, const char *key, double *value)
{
  (void)ctx, (void)key, (void)value;
  return ORDO_E_NOT_FOUND;
}

static ordo_status replace_leaves(void *ctx, const ordo_leaf_spec *specs, size_t n_specs, const ordo_leaf_link *links, size_t n_links)
{
  small_job *j = ctx;
  (void)links;
  j->cut_numel = specs[0].numel;
  memset(&j->cut, 0, sizeof j->cut);
  if (specs[0].placement.n_chunks > 0)
    j->cut = specs[0].placement.chunks[0];
  assert_int_equal(n_specs, j->model.n_leaves);
  assert_int_equal(n_links, j->model.n_leaves);
  j->replaced++;
  return ORDO_OK;
}

static ordo_optimizer *optimizer_of(void *ctx)
{
  return ((small_job *)ctx)->optimizer;
}

typedef struct shape {
  int unit;
  int64_t rows, columns;
} shape;

static void start(small_job *j, int32_t ranks, int32_t rank, const shape *shapes, uint32_t n)
{
  static const char *const names[3] = {"embed", "layers.0", "head"}, *const classes[3] = {"Embedding", "Block", "Head"};
  memset(j, 0, sizeof *j);
  j->host = (ordo_host){.struct_size = sizeof j->host, .ctx = j, .fail = fail_record};
  j->comm = (ordo_comm){.struct_size = sizeof j->comm,
                        .ctx = j,
                        .rank = rank,
                        .size = ranks,
                        .alloc = comm_alloc,
                        .free = comm_free,
                        .features = ORDO_COMM_PIECES};
  j->axis = (ordo_axis){sizeof j->axis, "fsdp2", 0, ORDO_AXIS_DATA, ranks, rank, &j->comm};
  j->job = (ordo_job){.struct_size = sizeof j->job,
                      .ctx = j,
                      .host = &j->host,
                      .axis = &j->axis,
                      .model = &j->model,
                      .option = option,
                      .option_int = option_int,
                      .option_real = option_real,
                      .alloc = allocate,
                      .free = release,
                      .replace_leaves = replace_leaves,
                      .optimizer = optimizer_of};
  for (uint32_t u = 0; u < 3; u++) {
    j->units[u] = (ordo_unit){sizeof j->units[u], names[u], classes[u], u, 0, NULL};
    j->unit_list[u] = &j->units[u];
  }
  for (uint32_t i = 0; i < n; i++) {
    ordo_param *param = &j->params[i];
    *param = (ordo_param){
        .struct_size = sizeof *param, .name = "p", .index = i, .dtype = ORDO_F32, .flags = ORDO_PARAM_REQUIRES_GRAD, .tie_group = -1};
    param->unit = (uint32_t)shapes[i].unit;
    param->ndim = shapes[i].columns > 0 ? 2 : 1;
    param->shape[0] = shapes[i].rows;
    param->shape[1] = shapes[i].columns;
    param->numel = shapes[i].rows * (shapes[i].columns > 0 ? shapes[i].columns : 1);
    j->param_list[i] = param;
    j->chunks[i] = (ordo_chunk){.struct_size = sizeof j->chunks[i], .param = param, .kind = ORDO_CHUNK_RECT, .ndim = param->ndim};
    memcpy(j->chunks[i].extent, param->shape, sizeof param->shape);
    j->placements[i] = (ordo_placement){
        .struct_size = sizeof j->placements[i], .data = {ORDO_REPLICATE}, .grad_partial = {1}, .n_chunks = 1, .chunks = &j->chunks[i]};
    j->leaves[i] = (ordo_leaf){.struct_size = sizeof j->leaves[i],
                               .name = "p",
                               .index = i,
                               .state = ORDO_LEAF_LIVE,
                               .flags = ORDO_PARAM_REQUIRES_GRAD,
                               .dtype = ORDO_F32,
                               .grad_dtype = ORDO_F32,
                               .numel = param->numel,
                               .placement = &j->placements[i],
                               .params = &j->param_list[i],
                               .n_params = 1};
    param->leaf = &j->leaves[i];
    j->leaf_list[i] = &j->leaves[i];
  }
  j->model = (ordo_model){.struct_size = sizeof j->model,
                          .name = "model",
                          .trained = 1,
                          .n_units = 3,
                          .n_params = n,
                          .n_leaves = n,
                          .units = j->unit_list,
                          .params = j->param_list,
                          .leaves = j->leaf_list};
}

static const ordo_strategy *table(void)
{
  return ordo_plugin_entry.get_extension(ORDO_STRATEGY_EXTENSION);
}

/* A block and the root of stories260K: q, k, v, o, gate, up, down, two norms; embedding, final norm. */
static const shape STORIES[] = {{0, 512, 64}, {1, 64, 64},  {1, 32, 64}, {1, 32, 64}, {1, 64, 64}, {1, 172, 64},
                                {1, 172, 64}, {1, 64, 172}, {1, 64, 0},  {1, 64, 0},  {2, 64, 0}};
enum { N_STORIES = sizeof STORIES / sizeof STORIES[0] };

static void rows_are_cut_like_torch_chunk(void **state)
{
  static const struct {
    int64_t dim0;
    int32_t ranks;
    int64_t rows[6];
  } table_rows[] = {{64, 2, {32, 32}},
                    {172, 2, {86, 86}},
                    {64, 3, {22, 22, 20}},
                    {32, 3, {11, 11, 10}},
                    {172, 3, {58, 58, 56}},
                    {512, 3, {171, 171, 170}},
                    {172, 4, {43, 43, 43, 43}},
                    {64, 5, {13, 13, 13, 13, 12}},
                    {32, 5, {7, 7, 7, 7, 4}},
                    {172, 5, {35, 35, 35, 35, 32}},
                    {512, 5, {103, 103, 103, 103, 100}},
                    {6, 4, {2, 2, 2, 0}},
                    {2, 5, {1, 1, 0, 0, 0}},
                    {5, 4, {2, 2, 1, 0}},
                    {9, 6, {2, 2, 2, 2, 1, 0}}};
  (void)state;
  for (size_t t = 0; t < sizeof table_rows / sizeof table_rows[0]; t++)
    for (int32_t r = 0; r < table_rows[t].ranks; r++) {
      small_job j;
      fsdp2 self = {.job = &j.job, .options = {.units = {.kind = SHARDING_UNITS_BLOCK}, .ignored = ""}};
      const shape one = {1, table_rows[t].dim0, 3};
      start(&j, table_rows[t].ranks, r, &one, 1);
      assert_int_equal(fsdp2_layout_make(&self), ORDO_OK);
      assert_int_equal(self.shards[0].end - self.shards[0].begin, table_rows[t].rows[r]);
      assert_int_equal(self.shards[0].chunk, table_rows[t].rows[0]);
      fsdp2_layout_clear(&self);
      assert_int_equal(j.live, 0);
    }
}

/* Bytes of an all-gather of the block and of the root, all ranks together. */
static void messages_are_padded_to_the_first_rank(void **state)
{
  static const struct {
    int32_t ranks;
    int64_t block, root;
  } rows[] = {{2, 181760, 131328}, {3, 185712, 131592}, {4, 181760, 131328}, {5, 186040, 132100}};
  (void)state;
  for (size_t t = 0; t < 4; t++) {
    small_job j;
    fsdp2 self = {.job = &j.job, .options = {.units = {.kind = SHARDING_UNITS_BLOCK}, .ignored = ""}};
    int64_t bytes[2] = {0, 0};
    start(&j, rows[t].ranks, 0, STORIES, N_STORIES);
    assert_int_equal(fsdp2_layout_make(&self), ORDO_OK);
    for (uint32_t i = 0; i < self.n_shards; i++)
      bytes[self.shards[i].group] += self.shards[i].chunk * self.shards[i].row * rows[t].ranks * 4;
    assert_int_equal(bytes[1], rows[t].block);
    assert_int_equal(bytes[0], rows[t].root);
    fsdp2_layout_clear(&self);
  }
}

static void *create(small_job *j)
{
  void *instance = NULL;
  assert_int_equal(table()->create(&j->job, &instance), ORDO_OK);
  return instance;
}

static void both_halves_or_neither(void **state)
{
  small_job j;
  ordo_optimizer mine = {.struct_size = sizeof mine, .name = "mine"}, other = {.struct_size = sizeof other, .name = "other"};
  (void)state;
  start(&j, 2, 0, STORIES, N_STORIES);
  j.optimizer = &mine;
  void *self = create(&j);
  assert_int_equal(table()->prepare_joint(self, NULL), ORDO_E_STATE);
  assert_non_null(strstr(j.error, "without its optimizer"));
  assert_int_equal(table()->prepare_joint(self, &other), ORDO_E_STATE);
  assert_non_null(strstr(j.error, "'other', which is not that of model 'model'"));
  assert_int_equal(j.replaced, 0);
  assert_int_equal(table()->prepare_joint(self, &mine), ORDO_OK);
  assert_int_equal(j.replaced, 1);
  assert_int_equal(table()->prepare_joint(self, &mine), ORDO_E_STATE);
  assert_non_null(strstr(j.error, "called twice"));
  assert_int_equal(j.replaced, 1);
  table()->destroy(self);
  assert_int_equal(j.live, 0);
}

static void an_evaluation_has_no_optimizer(void **state)
{
  small_job j;
  (void)state;
  start(&j, 3, 2, STORIES, N_STORIES);
  j.job.eval_only = 1;
  void *self = create(&j);
  assert_int_equal(table()->prepare_joint(self, NULL), ORDO_OK);
  table()->destroy(self);
  assert_int_equal(j.live, 0);
}

static void what_is_sharded_is_not_sharded_again(void **state)
{
  small_job j;
  ordo_optimizer optimizer = {.struct_size = sizeof optimizer, .name = "sgd"};
  (void)state;
  start(&j, 2, 0, STORIES, N_STORIES);
  j.optimizer = &optimizer;
  j.placements[4].data[0] = ORDO_SHARD;
  void *self = create(&j);
  assert_int_equal(table()->prepare_joint(self, &optimizer), ORDO_E_STATE);
  assert_non_null(strstr(j.error, "sharded along axis 'fsdp2' already"));
  assert_int_equal(j.replaced, 0);
  table()->destroy(self);
  assert_int_equal(j.live, 0);
}

static float *slot_of(void *ctx, const ordo_leaf *leaf, uint32_t slot)
{
  (void)leaf;
  return slot == 1 ? ctx : NULL;
}

/* Rows 2..4 of a 6 x 3 parameter are held; rectangles inside come out packed and go in again, weights and state alike. */
static void chunks_come_out_and_go_in(void **state)
{
  small_job j;
  float data[9], moments[9], packed[9] = {0};
  ordo_optimizer optimizer = {.struct_size = sizeof optimizer, .ctx = moments, .name = "adam", .slot = slot_of};
  const shape one = {1, 6, 3};
  (void)state;
  start(&j, 2, 1, &one, 1);
  j.optimizer = &optimizer;
  for (int i = 0; i < 9; i++) {
    data[i] = (float)i;
    moments[i] = (float)(100 + i);
  }
  j.chunks[0].offset[0] = 2;
  j.chunks[0].extent[0] = 3;
  j.leaves[0].data = data;
  void *self = create(&j);
  const ordo_state_ops *ops = table()->state;
  ordo_chunk chunk = j.chunks[0];
  chunk.offset[0] = 3, chunk.extent[0] = 2, chunk.offset[1] = 1, chunk.extent[1] = 2;
  assert_int_equal(ops->export_chunk(self, &j.leaves[0], &chunk, -1, packed), ORDO_OK);
  const float weights[4] = {4, 5, 7, 8};
  assert_memory_equal(packed, weights, sizeof weights);
  assert_int_equal(ops->export_chunk(self, &j.leaves[0], &chunk, 1, packed), ORDO_OK);
  assert_true(packed[0] == 104.0f && packed[3] == 108.0f);
  assert_int_equal(ops->export_chunk(self, &j.leaves[0], &chunk, 0, packed), ORDO_E_STATE);
  assert_non_null(strstr(j.error, "no state number 0"));
  const float changed[4] = {-1, -2, -3, -4};
  assert_int_equal(ops->import_chunk(self, &j.leaves[0], &chunk, -1, changed), ORDO_OK);
  const float after[9] = {0, 1, 2, 3, -1, -2, 6, -3, -4};
  assert_memory_equal(data, after, sizeof after);
  chunk.offset[0] = 1; /* a row of another rank */
  assert_int_equal(ops->export_chunk(self, &j.leaves[0], &chunk, -1, packed), ORDO_E_INVALID);
  table()->destroy(self);
  assert_int_equal(j.live, 0);
}

/* A slice of another axis is cut on dim 0 again, whichever dimension it was cut on: a rectangle of a rectangle, in places of the whole
 * parameter, that comes out and goes in like any other. */
static void rows_of_a_slice_are_rectangles(void **state)
{
  static const struct {
    int64_t offset[2], extent[2];                              /* of the slice of a 12 x 4 parameter */
    int64_t first[4], rows[4];                                 /* of the ranks */
  } slices[] = {{{6, 0}, {6, 4}, {6, 8, 10, 0}, {2, 2, 2, 0}}, /* column-parallel: dim 0 twice */
                {{0, 1}, {12, 2}, {0, 3, 6, 9}, {3, 3, 3, 3}}, /* row-parallel */
                {{5, 0}, {3, 4}, {5, 6, 7, 0}, {1, 1, 1, 0}}};
  const shape one = {1, 12, 4};
  (void)state;
  for (size_t s = 0; s < sizeof slices / sizeof slices[0]; s++)
    for (int32_t r = 0; r < 4; r++) {
      small_job j;
      float data[24], packed[24] = {0};
      ordo_optimizer optimizer = {.struct_size = sizeof optimizer, .name = "sgd"};
      start(&j, 4, r, &one, 1);
      j.optimizer = &optimizer;
      memcpy(j.chunks[0].offset, slices[s].offset, sizeof slices[s].offset);
      memcpy(j.chunks[0].extent, slices[s].extent, sizeof slices[s].extent);
      memcpy(j.params[0].local_shape, slices[s].extent, sizeof slices[s].extent);
      j.leaves[0].numel = slices[s].extent[0] * slices[s].extent[1];
      void *self = create(&j);
      assert_int_equal(table()->prepare_joint(self, &optimizer), ORDO_OK);
      assert_int_equal(j.cut_numel, slices[s].rows[r] * slices[s].extent[1]);
      assert_int_equal(j.cut.extent[0], slices[s].rows[r]);
      assert_int_equal(j.cut.offset[0], slices[s].first[r]);
      if (j.cut_numel > 0) {
        assert_int_equal(j.cut.offset[1], slices[s].offset[1]);
        assert_int_equal(j.cut.extent[1], slices[s].extent[1]);
        for (int64_t i = 0; i < j.cut_numel; i++)
          data[i] = (float)i;
        j.chunks[0] = j.cut;
        j.leaves[0].data = data;
        ordo_chunk last = j.cut; /* the last row that this rank holds */
        last.offset[0] += last.extent[0] - 1;
        last.extent[0] = 1;
        assert_int_equal(table()->state->export_chunk(self, &j.leaves[0], &last, -1, packed), ORDO_OK);
        assert_true(packed[0] == (float)(j.cut_numel - j.cut.extent[1]));
        packed[0] = -1.0f;
        assert_int_equal(table()->state->import_chunk(self, &j.leaves[0], &last, -1, packed), ORDO_OK);
        assert_true(data[j.cut_numel - j.cut.extent[1]] == -1.0f);
        last.offset[1]--; /* a column of another slice, or none */
        assert_int_equal(table()->state->export_chunk(self, &j.leaves[0], &last, -1, packed), ORDO_E_INVALID);
      }
      table()->destroy(self);
      assert_int_equal(j.live, 0);
    }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_are_cut_like_torch_chunk),
      cmocka_unit_test(messages_are_padded_to_the_first_rank),
      cmocka_unit_test(both_halves_or_neither),
      cmocka_unit_test(an_evaluation_has_no_optimizer),
      cmocka_unit_test(what_is_sharded_is_not_sharded_again),
      cmocka_unit_test(chunks_come_out_and_go_in),
      cmocka_unit_test(rows_of_a_slice_are_rectangles),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
