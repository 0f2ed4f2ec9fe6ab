/* test_layout.c - which part of each parameter a rank has, what plan files change, and every refusal, with the smallest job that can ask.
 *
 * The model is the trainer's Llama in shape: stories260K has 8 query and 4 key heads of 8, 172 columns in the MLP, 512 words.
 */
#include "tp.h"

#include <ordo/plugin.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { Q, K, V, O, GATE, UP, DOWN, NORM, N_BLOCK, EMBED = 0, FIRST = 1, HEAD = FIRST + N_BLOCK, N_PARAMS };

typedef struct small_job {
  ordo_host host;
  ordo_axis axis;
  ordo_mesh mesh;
  ordo_job job;
  ordo_model model;
  ordo_unit units[3];
  const ordo_unit *unit_list[3];
  ordo_param params[N_PARAMS];
  const ordo_param *param_list[N_PARAMS];
  ordo_leaf leaves[N_PARAMS];
  ordo_leaf *leaf_list[N_PARAMS];
  tp_split splits[N_PARAMS];
  uint32_t kinds[N_PARAMS];
  tp self;
  char path[64]; /* of the plan file; empty: none */
  char error[1600];
} small_job;

typedef struct sizes {
  int64_t vocab, hidden, heads, kv_heads, head_dim, inter;
} sizes;

static const sizes stories = {512, 64, 8, 4, 8, 172};

static ordo_status fail_record(void *ctx, ordo_status status, const char *text, const char *hint)
{
  small_job *j = ctx;
  snprintf(j->error, sizeof j->error, "%s (%s)", text, hint != NULL ? hint : "");
  return status;
}

static const char *option(void *ctx, const char *key)
{
  small_job *j = ctx;
  return strcmp(key, "plan") == 0 && j->path[0] != '\0' ? j->path : NULL;
}

static void add(small_job *j, uint32_t at, uint32_t unit, const char *name, int64_t rows, int64_t columns, uint32_t hint, int64_t block)
{
  ordo_param *param = &j->params[at];
  *param = (ordo_param){.struct_size = sizeof *param, .name = name, .index = at, .dtype = ORDO_F32, .tp_hint = hint, .tie_group = -1};
  param->tp_block = (int32_t)block;
  param->ndim = columns > 0 ? 2 : 1;
  param->unit = unit;
  param->shape[0] = rows;
  param->shape[1] = columns;
  param->numel = rows * (columns > 0 ? columns : 1);
  j->param_list[at] = param;
  j->leaves[at] = (ordo_leaf){.struct_size = sizeof j->leaves[at], .name = name, .params = &j->param_list[at], .n_params = 1};
  j->leaf_list[at] = &j->leaves[at];
}

static void start(small_job *j, const sizes *s, int32_t size, int32_t rank)
{
  memset(j, 0, sizeof *j);
  add(j, EMBED, 0, "embed.weight", s->vocab, s->hidden, ORDO_TP_VOCAB, 1);
  add(j, FIRST + Q, 1, "layers.0.q.weight", s->heads * s->head_dim, s->hidden, ORDO_TP_COLUMN, s->head_dim);
  add(j, FIRST + K, 1, "layers.0.k.weight", s->kv_heads * s->head_dim, s->hidden, ORDO_TP_COLUMN, s->head_dim);
  add(j, FIRST + V, 1, "layers.0.v.weight", s->kv_heads * s->head_dim, s->hidden, ORDO_TP_COLUMN, s->head_dim);
  add(j, FIRST + O, 1, "layers.0.o.weight", s->hidden, s->heads * s->head_dim, ORDO_TP_ROW, s->head_dim);
  add(j, FIRST + GATE, 1, "layers.0.gate.weight", s->inter, s->hidden, ORDO_TP_COLUMN, 1);
  add(j, FIRST + UP, 1, "layers.0.up.weight", s->inter, s->hidden, ORDO_TP_COLUMN, 1);
  add(j, FIRST + DOWN, 1, "layers.0.down.weight", s->hidden, s->inter, ORDO_TP_ROW, 1);
  add(j, FIRST + NORM, 1, "layers.0.norm.weight", s->hidden, 0, ORDO_TP_REPLICATE, 1);
  add(j, HEAD, 2, "head.weight", s->vocab, s->hidden, ORDO_TP_VOCAB, 1);
  j->units[0] = (ordo_unit){sizeof j->units[0], "embed", "Embedding", 0, 1, &j->param_list[EMBED]};
  j->units[1] = (ordo_unit){sizeof j->units[1], "layers.0", "Block", 1, N_BLOCK, &j->param_list[FIRST]};
  j->units[2] = (ordo_unit){sizeof j->units[2], "head", "Head", 2, 1, &j->param_list[HEAD]};
  for (int u = 0; u < 3; u++)
    j->unit_list[u] = &j->units[u];
  j->model = (ordo_model){.struct_size = sizeof j->model,
                          .name = "model",
                          .n_units = 3,
                          .n_params = N_PARAMS,
                          .n_leaves = N_PARAMS,
                          .units = j->unit_list,
                          .params = j->param_list,
                          .leaves = j->leaf_list};
  j->host = (ordo_host){.struct_size = sizeof j->host, .ctx = j, .fail = fail_record};
  j->axis = (ordo_axis){sizeof j->axis, "tp", 0, ORDO_AXIS_MODEL, size, rank, NULL};
  j->job = (ordo_job){.struct_size = sizeof j->job, .ctx = j, .host = &j->host, .axis = &j->axis, .model = &j->model, .option = option};
  j->self = (tp){.job = &j->job, .rank = rank, .size = size, .splits = j->splits, .kinds = j->kinds};
}

static void plan_file(small_job *j, const char *text)
{
  FILE *file;
  snprintf(j->path, sizeof j->path, "/tmp/ordo-tp-plan-XXXXXX");
  int fd = mkstemp(j->path);
  assert_true(fd >= 0);
  file = fdopen(fd, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

static ordo_status layout(small_job *j)
{
  ordo_status status = tp_layout(&j->self);
  if (j->path[0] != '\0')
    unlink(j->path);
  return status;
}

#define assert_says(J, TEXT)                          \
  do {                                                \
    if (strstr((J)->error, TEXT) == NULL)             \
      fail_msg("no \"%s\" in: %s", TEXT, (J)->error); \
  } while (0)

/* Parts of all ranks lie side by side and cover the dimension; copies lie beside each other. */
static void parts_cover_everything(void **state)
{
  static const int32_t legal[] = {1, 2, 4, 8};
  (void)state;
  for (size_t i = 0; i < sizeof legal / sizeof legal[0]; i++) {
    int64_t end[N_PARAMS] = {0};
    for (int32_t rank = 0; rank < legal[i]; rank++) {
      small_job j;
      start(&j, &stories, legal[i], rank);
      assert_int_equal(layout(&j), ORDO_OK);
      for (int p = 0; p < N_PARAMS; p++) {
        const tp_split *split = &j.splits[p];
        int64_t block = j.params[p].tp_block > 1 ? j.params[p].tp_block : 1;
        if (split->kind == ORDO_TP_REPLICATE)
          continue;
        if (rank % split->copies == 0)
          assert_int_equal(split->begin, end[p]);
        assert_int_equal(split->begin % block, 0);
        assert_true(split->end > split->begin);
        end[p] = split->end;
        if (rank == legal[i] - 1)
          assert_int_equal(end[p], j.params[p].shape[split->dim]);
      }
      assert_int_equal(j.splits[FIRST + K].copies, legal[i] == 8 ? 2 : 1);
      assert_int_equal(j.splits[FIRST + Q].copies, 1);
      assert_int_equal(j.splits[FIRST + NORM].kind, ORDO_TP_REPLICATE);
    }
  }
}

/* 97 words and 41 columns on 4 ranks: the first rank has one more. */
static void what_does_not_divide_differs_by_one(void **state)
{
  const sizes odd = {97, 30, 4, 4, 10, 41};
  const int64_t words[5] = {0, 25, 49, 73, 97}, columns[5] = {0, 11, 21, 31, 41};
  (void)state;
  for (int32_t rank = 0; rank < 4; rank++) {
    small_job j;
    start(&j, &odd, 4, rank);
    assert_int_equal(layout(&j), ORDO_OK);
    assert_int_equal(j.splits[EMBED].begin, words[rank]);
    assert_int_equal(j.splits[HEAD].end, words[rank + 1]);
    assert_int_equal(j.splits[FIRST + GATE].begin, columns[rank]);
    assert_int_equal(j.splits[FIRST + DOWN].end, columns[rank + 1]);
    assert_int_equal(j.splits[FIRST + DOWN].dim, 1);
  }
}

static void heads_that_do_not_divide_are_refused(void **state)
{
  const sizes few_columns = {512, 64, 16, 4, 4, 5}, few_words = {3, 64, 8, 8, 8, 172}, odd_groups = {512, 64, 12, 6, 8, 172};
  small_job j;
  (void)state;
  start(&j, &stories, 3, 0);
  assert_int_equal(layout(&j), ORDO_E_INVALID);
  assert_says(&j, "'layers.0.q.weight' cannot be split over 3 ranks: its 64 rows in 8 heads of 8 do not divide");
  assert_says(&j, "sizes that work for this model: 1, 2, 4, 8;");
  start(&j, &stories, 16, 0);
  assert_int_equal(layout(&j), ORDO_E_INVALID);
  assert_says(&j, "1, 2, 4, 8;");
  start(&j, &few_columns, 8, 0);
  assert_int_equal(layout(&j), ORDO_E_INVALID);
  assert_says(&j, "'layers.0.gate.weight' cannot be split over 8 ranks: its 5 rows do not divide");
  assert_says(&j, "1, 2, 4;");
  start(&j, &few_words, 4, 0);
  assert_int_equal(layout(&j), ORDO_E_INVALID);
  assert_says(&j, "'embed.weight' cannot be split over 4 ranks: its 3 vocabulary rows");
  start(&j, &odd_groups, 4, 0); /* 6 key heads: neither 4 parts nor copies */
  assert_int_equal(layout(&j), ORDO_E_INVALID);
  assert_says(&j, "'layers.0.k.weight' cannot be split over 4 ranks: its 48 rows in 6 heads");
  assert_says(&j, "1, 2, 3, 6, 12;");
}

static void a_plan_file_overrides_the_hints(void **state)
{
  small_job j;
  (void)state;
  start(&j, &stories, 2, 1);
  plan_file(&j, "# the MLP stays whole\r\n\n  layers.0.gate.* = replicate\nlayers.0.up.weight=replicate\n layers.0.down.weight = row\n"
                "layers.0.down.weight =\treplicate\nhead.weight = vocab");
  assert_int_equal(layout(&j), ORDO_OK);
  assert_int_equal(j.splits[FIRST + GATE].kind, ORDO_TP_REPLICATE);
  assert_int_equal(j.splits[FIRST + DOWN].kind, ORDO_TP_REPLICATE);
  assert_int_equal(j.splits[FIRST + O].kind, ORDO_TP_ROW);
  assert_int_equal(j.splits[HEAD].kind, ORDO_TP_VOCAB);
  /* A size that heads forbid works once the attention is whole. */
  start(&j, &stories, 3, 2);
  plan_file(&j, "layers.0.[qkvo].weight = replicate\n");
  assert_int_equal(layout(&j), ORDO_OK);
  assert_int_equal(j.splits[FIRST + O].kind, ORDO_TP_REPLICATE);
  assert_int_equal(j.splits[FIRST + DOWN].end, 172);
  /* More sizes work than a message has room for. */
  start(&j, &stories, 173, 2);
  plan_file(&j, "layers.0.[qkvo].weight = replicate\n");
  assert_int_equal(layout(&j), ORDO_E_INVALID);
  assert_says(&j, "sizes that work for this model: 1, 2, 3, 4,");
  assert_says(&j, ", ...; or replicate it, with the matrices of its pair, by tp:plan=FILE");
}

static void a_wrong_plan_file_is_refused_with_its_line(void **state)
{
  static const struct {
    const char *text, *says;
  } rows[] = {
      {"layers.0.q.weight = column\nlayer.0.* = replicate\n", "line 2: 'layer.0.*' matches no parameter of model 'model'"},
      {"layers.0.q.weight\n", "line 1 is no assignment"},
      {" = row\n", "line 1 is no assignment"},
      {"layers.0.q.weight = colum\n", "line 1: 'colum' is no kind of split (the words are column, row, vocab and replicate)"},
      {"layers.0.q.weight = row\n", "line 1: 'layers.0.q.weight' cannot be row: the model computes with it as column"},
      {"layers.0.norm.weight = column\n", "'layers.0.norm.weight' cannot be column"},
      {"layers.0.down.weight = replicate\n", "the plan makes 'layers.0.gate.weight' column and 'layers.0.down.weight' replicate"},
      {"layers.0.v.weight = replicate\n", "the plan makes 'layers.0.q.weight' column and 'layers.0.v.weight' replicate"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    small_job j;
    start(&j, &stories, 2, 0);
    plan_file(&j, rows[i].text);
    assert_int_equal(layout(&j), ORDO_E_INVALID);
    assert_says(&j, rows[i].says);
  }
  small_job j;
  start(&j, &stories, 2, 0);
  snprintf(j.path, sizeof j.path, "/nonexistent/plan");
  assert_int_equal(layout(&j), ORDO_E_IO);
  assert_says(&j, "/nonexistent/plan: No such file");
  char line[3000];
  memset(line, 'a', sizeof line - 1);
  line[sizeof line - 1] = '\0';
  start(&j, &stories, 2, 0);
  plan_file(&j, line);
  assert_int_equal(layout(&j), ORDO_E_INVALID);
  assert_says(&j, "line 1 is longer than 1022 characters");
}

static void plan_bytes(small_job *j, const char *bytes, size_t n)
{
  plan_file(j, "");
  FILE *file = fopen(j->path, "w");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, n, file), n);
  fclose(file);
}

/* A zero byte would end the line for C and hide the rest of it; /dev/zero would be a plan of endless empty lines. */
static void a_plan_of_bytes_is_refused(void **state)
{
  static const char hidden[] = "layers.0.*.weight = replicate\n\0layers.0.norm.weight = column\n";
  static const char in_word[] = "layers.0.[qkvo].weight = replicate\0d\n";
  small_job j;
  (void)state;
  start(&j, &stories, 2, 0);
  plan_bytes(&j, hidden, sizeof hidden - 1);
  assert_int_equal(layout(&j), ORDO_E_INVALID);
  assert_says(&j, "line 2 has a zero byte, so this is no text");
  start(&j, &stories, 2, 0);
  plan_bytes(&j, in_word, sizeof in_word - 1);
  assert_int_equal(layout(&j), ORDO_E_INVALID);
  assert_says(&j, "line 1 has a zero byte");
  start(&j, &stories, 2, 0);
  plan_file(&j, "layers.0.q.weight\033[2J\n");
  assert_int_equal(layout(&j), ORDO_E_INVALID);
  assert_says(&j, "line 1 has a control character, so this is no text");
  start(&j, &stories, 2, 0);
  snprintf(j.path, sizeof j.path, "/dev/zero");
  assert_int_equal(tp_layout(&j.self), ORDO_E_INVALID);
  assert_says(&j, "/dev/zero, line 1 has a zero byte");
  start(&j, &stories, 2, 0);
  snprintf(j.path, sizeof j.path, "/");
  assert_int_equal(tp_layout(&j.self), ORDO_E_IO);
  /* Lines of another system are lines, and the last one needs no end. */
  start(&j, &stories, 2, 0);
  plan_file(&j, "layers.0.[qkvo].weight = replicate\r\n\r\n# end\r\nhead.weight = replicate");
  assert_int_equal(layout(&j), ORDO_OK);
  assert_int_equal(j.splits[FIRST + V].kind, ORDO_TP_REPLICATE);
  assert_int_equal(j.splits[HEAD].kind, ORDO_TP_REPLICATE);
}

/* A placement counts copies in a byte: 256 of them would read as a replica, more as fewer. */
static void more_copies_than_a_placement_can_say_are_refused(void **state)
{
  const sizes one_key_head = {4096, 64, 512, 1, 2, 4096}, three = {4096, 64, 768, 3, 2, 4096};
  small_job j;
  (void)state;
  start(&j, &one_key_head, 128, 127);
  assert_int_equal(layout(&j), ORDO_OK);
  assert_int_equal(j.splits[FIRST + K].copies, 128);
  start(&j, &one_key_head, 256, 0);
  assert_int_equal(layout(&j), ORDO_E_INVALID);
  assert_says(&j, "'layers.0.k.weight' cannot be split over 256 ranks");
  start(&j, &three, 768, 767);
  assert_int_equal(layout(&j), ORDO_E_INVALID);
  start(&j, &three, 384, 383);
  assert_int_equal(layout(&j), ORDO_OK);
  assert_int_equal(j.splits[FIRST + K].copies, 128);
}

static void tied_parameters_are_split_alike(void **state)
{
  small_job j;
  const ordo_param *both[2];
  (void)state;
  start(&j, &stories, 2, 0);
  both[0] = &j.params[EMBED];
  both[1] = &j.params[HEAD];
  j.leaves[EMBED].params = both;
  j.leaves[EMBED].n_params = 2;
  plan_file(&j, "head.weight = replicate\n");
  assert_int_equal(layout(&j), ORDO_E_INVALID);
  assert_says(&j, "'embed.weight' and 'head.weight' are tied, but one is vocab and the other replicate");
}

/* Hints that nobody completes: an output that stays split, an input that nobody splits. */
static void a_pair_needs_both_halves(void **state)
{
  small_job j;
  (void)state;
  start(&j, &stories, 2, 0);
  j.params[FIRST + DOWN].tp_hint = ORDO_TP_REPLICATE;
  assert_int_equal(layout(&j), ORDO_E_INVALID);
  assert_says(&j, "column-parallel 'layers.0.up.weight' has no row-parallel partner");
  start(&j, &stories, 2, 0);
  j.params[FIRST + GATE].tp_hint = j.params[FIRST + UP].tp_hint = ORDO_TP_REPLICATE;
  assert_int_equal(layout(&j), ORDO_E_INVALID);
  assert_says(&j, "row-parallel 'layers.0.down.weight' has no column-parallel partner");
}

/* A model without hints: all ranks would do all of the work and nobody would notice. */
static void a_split_of_nothing_is_refused(void **state)
{
  small_job j;
  (void)state;
  start(&j, &stories, 2, 0);
  plan_file(&j, "* = replicate\n");
  assert_int_equal(layout(&j), ORDO_E_INVALID);
  assert_says(&j, "no parameter of model 'model' is split");
}

/* The bias of a column-parallel layer is split with its rows; that of a row-parallel one is whole, added once after the sum. */
static void biases_follow_their_layer(void **state)
{
  small_job j;
  (void)state;
  start(&j, &stories, 2, 1);
  add(&j, FIRST + NORM, 1, "layers.0.bias", 64, 0, ORDO_TP_ROW, 8);
  assert_int_equal(layout(&j), ORDO_OK);
  assert_int_equal(j.splits[FIRST + NORM].kind, ORDO_TP_REPLICATE);
  start(&j, &stories, 2, 1);
  add(&j, FIRST + Q, 1, "layers.0.bias", 64, 0, ORDO_TP_COLUMN, 8);
  assert_int_equal(layout(&j), ORDO_OK);
  assert_int_equal(j.splits[FIRST + Q].begin, 32);
  assert_int_equal(j.splits[FIRST + Q].end, 64);
  /* A plan that replicates the matrices and forgets a bias would add a part of it to whole rows. */
  start(&j, &stories, 2, 1);
  add(&j, FIRST + Q, 1, "layers.0.q.bias", 64, 0, ORDO_TP_COLUMN, 8);
  plan_file(&j, "layers.0.[kvo].weight = replicate\n");
  assert_int_equal(layout(&j), ORDO_E_INVALID);
  assert_says(&j, "the plan makes 'layers.0.q.bias' column and 'layers.0.k.weight' replicate");
  start(&j, &stories, 2, 1);
  add(&j, FIRST + Q, 1, "layers.0.q.bias", 64, 0, ORDO_TP_COLUMN, 8);
  plan_file(&j, "layers.0.[kvoq].* = replicate\n");
  assert_int_equal(layout(&j), ORDO_OK);
  assert_int_equal(j.splits[FIRST + Q].in_pair, 1); /* it sees every row: nobody else has a summand of its gradient */
}

/* Which places cost something: two sums forward and two backward per block, without anything else that grows with the tokens. */
static void places_are_wanted_where_sums_are_due(void **state)
{
  small_job j;
  (void)state;
  start(&j, &stories, 2, 0);
  assert_int_equal(layout(&j), ORDO_OK);
  for (uint32_t point = 1; point <= ORDO_ACT_WEIGHT_GRAD; point++)
    for (int backward = 0; backward < 2; backward++) {
      int expected = (point == ORDO_ACT_COLUMN_INPUT || point == ORDO_ACT_HEAD_INPUT)   ? backward
                     : (point == ORDO_ACT_ROW_OUTPUT || point == ORDO_ACT_EMBED_OUTPUT) ? !backward
                                                                                        : 0;
      assert_int_equal(tp_wants(&j.self, point, &j.params[FIRST + Q], backward), expected);
      if (point == ORDO_ACT_LOSS_MAX || point == ORDO_ACT_LOSS_SUM || point == ORDO_ACT_LOGITS)
        assert_int_equal(tp_wants(&j.self, point, &j.params[HEAD], backward), !backward);
      assert_int_equal(tp_wants(&j.self, point, &j.params[FIRST + NORM], backward), 0);
    }
  j.self.size = 1;
  for (uint32_t point = 1; point <= ORDO_ACT_WEIGHT_GRAD; point++)
    assert_int_equal(tp_wants(&j.self, point, &j.params[FIRST + Q], 1), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parts_cover_everything),
      cmocka_unit_test(what_does_not_divide_differs_by_one),
      cmocka_unit_test(heads_that_do_not_divide_are_refused),
      cmocka_unit_test(a_plan_file_overrides_the_hints),
      cmocka_unit_test(a_wrong_plan_file_is_refused_with_its_line),
      cmocka_unit_test(a_plan_of_bytes_is_refused),
      cmocka_unit_test(more_copies_than_a_placement_can_say_are_refused),
      cmocka_unit_test(tied_parameters_are_split_alike),
      cmocka_unit_test(a_pair_needs_both_halves),
      cmocka_unit_test(a_split_of_nothing_is_refused),
      cmocka_unit_test(biases_follow_their_layer),
      cmocka_unit_test(places_are_wanted_where_sums_are_due),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
