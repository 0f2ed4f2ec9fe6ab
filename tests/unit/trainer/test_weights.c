/* test_weights.c - sources of weights: fresh ones, Hugging Face directories, llama2.c checkpoints; and chunks of parameters. */
#include "io_support.h"

#include "hf.h"
#include "pieces.h"
#include "safetensors.h"
#include "weights.h"

#include <glib/gstdio.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct llama_config small = {.vocab = 11,
                                          .hidden = 8,
                                          .intermediate = 6,
                                          .layers = 2,
                                          .heads = 2,
                                          .kv_heads = 1,
                                          .head_dim = 4,
                                          .max_positions = 5,
                                          .rms_eps = 1e-5,
                                          .rope_theta = 10000.0,
                                          .tied = 1};

/* Any rectangle or range equals the same elements of the whole. */
static void chunks_equal_the_whole(void **state)
{
  enum { ROWS = 7, COLUMNS = 5 };
  float whole[ROWS * COLUMNS], part[ROWS * COLUMNS];
  g_autoptr(ordo_weights) weights = ordo_weights_fresh(&small, 3, 0.02);
  ordo_param param = {.struct_size = sizeof param, .name = "x.weight", .ndim = 2, .shape = {ROWS, COLUMNS}, .numel = ROWS * COLUMNS};
  g_auto(ordo_problems) problems;
  (void)state;
  ordo_problems_init(&problems);
  assert_int_equal(weights->read(weights, "x.weight", 0, ROWS * COLUMNS, whole, &problems), ORDO_OK);
  for (int64_t r = 0; r < ROWS; r++)
    for (int64_t h = 0; h <= ROWS - r; h++)
      for (int64_t c = 0; c < COLUMNS; c++)
        for (int64_t w = 0; w <= COLUMNS - c; w++) {
          ordo_chunk chunk = {
              .struct_size = sizeof chunk, .param = &param, .kind = ORDO_CHUNK_RECT, .ndim = 2, .offset = {r, c}, .extent = {h, w}};
          assert_int_equal(ordo_weights_read_chunk(weights, &chunk, part, &problems), ORDO_OK);
          for (int64_t i = 0; i < h * w; i++)
            assert_true(part[i] == whole[(r + i / w) * COLUMNS + c + i % w]);
        }
  ordo_chunk flat = {.struct_size = sizeof flat, .param = &param, .kind = ORDO_CHUNK_FLAT, .begin = 4, .end = 19};
  assert_int_equal(ordo_weights_read_chunk(weights, &flat, part, &problems), ORDO_OK);
  assert_memory_equal(part, whole + 4, 15 * sizeof(float));
}

static void three_dimensional_rectangles_work(void **state)
{
  float whole[24], part[24];
  g_autoptr(ordo_weights) weights = ordo_weights_fresh(&small, 3, 0.02);
  ordo_param param = {.struct_size = sizeof param, .name = "x.weight", .ndim = 3, .shape = {2, 3, 4}, .numel = 24};
  ordo_chunk chunk = {
      .struct_size = sizeof chunk, .param = &param, .kind = ORDO_CHUNK_RECT, .ndim = 3, .offset = {0, 1, 1}, .extent = {2, 2, 3}};
  g_auto(ordo_problems) problems;
  int64_t i = 0;
  (void)state;
  ordo_problems_init(&problems);
  assert_int_equal(weights->read(weights, "x.weight", 0, 24, whole, &problems), ORDO_OK);
  assert_int_equal(ordo_weights_read_chunk(weights, &chunk, part, &problems), ORDO_OK);
  for (int64_t a = 0; a < 2; a++)
    for (int64_t b = 1; b < 3; b++)
      for (int64_t c = 1; c < 4; c++)
        assert_true(part[i++] == whole[a * 12 + b * 4 + c]);
}

/* The runs of a chunk visit each of its elements once, and find() is their inverse. */
static void pieces_are_runs(void **state)
{
  ordo_param param = {.struct_size = sizeof param, .name = "x", .ndim = 3, .shape = {3, 4, 5}, .numel = 60};
  ordo_chunk chunks[] = {
      {.struct_size = sizeof(ordo_chunk),
       .param = &param,
       .kind = ORDO_CHUNK_RECT,
       .ndim = 3,
       .leaf_offset = 7,
       .offset = {1, 0, 0},
       .extent = {2, 4, 5}},
      {.struct_size = sizeof(ordo_chunk),
       .param = &param,
       .kind = ORDO_CHUNK_RECT,
       .ndim = 3,
       .leaf_offset = 0,
       .offset = {0, 1, 2},
       .extent = {3, 2, 3}},
      {.struct_size = sizeof(ordo_chunk),
       .param = &param,
       .kind = ORDO_CHUNK_RECT,
       .ndim = 3,
       .leaf_offset = 0,
       .offset = {0, 1, 0},
       .extent = {3, 2, 5}},
      {.struct_size = sizeof(ordo_chunk),
       .param = &param,
       .kind = ORDO_CHUNK_RECT,
       .ndim = 3,
       .leaf_offset = 0,
       .offset = {0, 1, 0},
       .extent = {0, 2, 5}},
      {.struct_size = sizeof(ordo_chunk), .param = &param, .kind = ORDO_CHUNK_FLAT, .leaf_offset = 3, .begin = 13, .end = 29},
  };
  static const int64_t numels[] = {40, 18, 30, 0, 16};
  (void)state;
  for (size_t c = 0; c < G_N_ELEMENTS(chunks); c++) {
    int64_t seen[60] = {0}, visited = 0, count = 0;
    ordo_piece_run run;
    assert_int_equal(ordo_chunk_numel(&chunks[c]), numels[c]);
    for (int64_t r = 0; ordo_piece_run_at(&chunks[c], r, &run); r++)
      for (int64_t i = 0; i < run.count; i++, visited++) {
        assert_int_equal(seen[run.param_first + i]++, 0);
        assert_int_equal(ordo_piece_find(&chunks[c], run.param_first + i, &count), run.leaf_first + i);
        assert_int_equal(count, run.count - i);
        assert_int_equal(run.leaf_first + i, chunks[c].leaf_offset + visited);
      }
    assert_int_equal(visited, numels[c]);
    for (int64_t i = 0; i < 60; i++)
      assert_int_equal(ordo_piece_find(&chunks[c], i, &count) >= 0, seen[i]);
  }
}

static void fresh_norms_are_one(void **state)
{
  float values[8];
  g_autoptr(ordo_weights) weights = ordo_weights_fresh(&small, 3, 0.02);
  g_auto(ordo_problems) problems;
  (void)state;
  ordo_problems_init(&problems);
  weights->read(weights, "model.layers.0.input_layernorm.weight", 2, 3, values, &problems);
  assert_true(values[0] == 1.0f && values[2] == 1.0f);
  weights->read(weights, "model.norm.weight", 0, 1, values, &problems);
  assert_true(values[0] == 1.0f);
  weights->read(weights, "model.embed_tokens.weight", 0, 8, values, &problems);
  assert_true(values[0] != 1.0f && fabsf(values[0]) < 0.2f);
}

/* A directory with every tensor of `model` counted up from its index; `skip` and `extra` spoil it. */
static char *write_directory(const char *scratch, const struct llama_config *config, const char *skip, const char *extra)
{
  char *directory = g_build_filename(scratch, "hf", NULL);
  g_mkdir(directory, 0755);
  g_autofree char *text = ordo_hf_config_text(config, 0.02, ORDO_F32, 1, 2), *path = g_build_filename(directory, "config.json", NULL);
  g_autofree char *tensors = g_build_filename(directory, "model.safetensors", NULL);
  g_autoptr(ordo_safetensors_writer) writer = ordo_safetensors_writer_new(tensors, ORDO_F32);
  struct llama *model = llama_create(config, NULL, (char[200]){0}, 200);
  g_auto(ordo_problems) problems;
  int64_t one[] = {1};
  float values[4096];
  ordo_problems_init(&problems);
  assert_true(g_file_set_contents(path, text, -1, NULL));
  for (int pass = 0; pass < 2; pass++) {
    for (uint32_t p = 0; p < llama_n_params(model); p++) {
      const struct llama_param *param = llama_param_at(model, p);
      if ((config->tied && strcmp(param->name, "lm_head.weight") == 0) || (skip && strcmp(param->name, skip) == 0))
        continue;
      for (int64_t i = 0; i < param->numel; i++)
        values[i] = (float)(p * 1000 + i);
      if (pass == 0)
        ordo_safetensors_writer_declare(writer, param->name, param->ndim, param->shape);
      else
        assert_int_equal(ordo_safetensors_writer_write(writer, values, &problems), ORDO_OK);
    }
    if (extra && pass == 0)
      ordo_safetensors_writer_declare(writer, extra, 1, one);
    else if (extra)
      ordo_safetensors_writer_write(writer, values, &problems);
    if (pass == 0)
      assert_int_equal(ordo_safetensors_writer_begin(writer, NULL, &problems), ORDO_OK);
  }
  assert_int_equal(ordo_safetensors_writer_finish(writer, &problems), ORDO_OK);
  llama_destroy(model);
  return directory;
}

static ordo_status open_and_check(const char *directory, const char *word, struct llama_config *config)
{
  g_autoptr(ordo_weights) weights = NULL;
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  ordo_status status = ordo_weights_open(directory, &problems, &weights);
  if (status == ORDO_OK) {
    struct llama *model = llama_create(&weights->config, NULL, (char[200]){0}, 200);
    status = weights->check(weights, model, &problems);
    llama_destroy(model);
    if (config)
      *config = weights->config;
  }
  if (word && !problems_mention(&problems, word))
    fail_msg("no problem says \"%s\"; the first is: %s", word,
             ordo_problems_count(&problems) ? ordo_problems_at(&problems, 0)->why : "none");
  return status;
}

static void a_written_directory_reads_back(void **state)
{
  struct llama_config back = {0};
  g_autofree char *directory = write_directory(*state, &small, NULL, NULL);
  assert_int_equal(open_and_check(directory, NULL, &back), ORDO_OK);
  assert_memory_equal(&back, &small, sizeof back);
}

static void incomplete_directories_are_refused(void **state)
{
  g_autofree char *missing = write_directory(*state, &small, "model.layers.1.mlp.up_proj.weight", NULL);
  assert_int_equal(open_and_check(missing, "model.layers.1.mlp.up_proj.weight is missing", NULL), ORDO_E_INVALID);
  g_autofree char *extra = write_directory(*state, &small, NULL, "model.layers.9.mlp.up_proj.weight");
  assert_int_equal(open_and_check(extra, "not part of a Llama", NULL), ORDO_E_INVALID);
  g_autofree char *buffer = write_directory(*state, &small, NULL, "model.layers.0.self_attn.rotary_emb.inv_freq");
  assert_int_equal(open_and_check(buffer, NULL, NULL), ORDO_OK);
  struct llama_config wide = small;
  wide.intermediate = 7;
  g_autofree char *text = ordo_hf_config_text(&wide, 0.02, ORDO_F32, 1, 2), *path = g_build_filename(buffer, "config.json", NULL);
  assert_true(g_file_set_contents(path, text, -1, NULL));
  assert_int_equal(open_and_check(buffer, "mlp.gate_proj.weight has", NULL), ORDO_E_INVALID);
}

static void shards_are_read_through_their_index(void **state)
{
  g_autofree char *directory = write_directory(*state, &small, NULL, NULL),
                  *single = g_build_filename(directory, "model.safetensors", NULL);
  g_autofree char *shard = g_build_filename(directory, "model-00001-of-00001.safetensors", NULL),
                  *index = g_build_filename(directory, "model.safetensors.index.json", NULL);
  assert_int_equal(rename(single, shard), 0);
  assert_true(g_file_set_contents(index, "{\"weight_map\":{\"model.norm.weight\":\"model-00001-of-00001.safetensors\"}}", -1, NULL));
  assert_int_equal(open_and_check(directory, NULL, NULL), ORDO_OK);
  assert_true(g_file_set_contents(index, "{\"weight_map\":{\"other\":\"model-00001-of-00001.safetensors\"}}", -1, NULL));
  assert_int_equal(open_and_check(directory, "does not have it", NULL), ORDO_E_INVALID);
  assert_true(g_file_set_contents(index, "{\"weight_map\":{\"model.norm.weight\":\"../x.safetensors\"}}", -1, NULL));
  assert_int_equal(open_and_check(directory, "no name of a file", NULL), ORDO_E_INVALID);
  assert_true(g_file_set_contents(index, "{}", -1, NULL));
  assert_int_equal(open_and_check(directory, "no weight_map", NULL), ORDO_E_INVALID);
}

typedef struct config_case {
  const char *find;
  const char *replace;
  ordo_status status;
  const char *word;
} config_case;

static void unsupported_models_are_refused_by_name(void **state)
{
  static const config_case cases[] = {
      {"\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\":\"llama3\",\"factor\":8.0}", ORDO_E_UNSUPPORTED, "rope_scaling"},
      {"\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\":\"default\"}", ORDO_OK, NULL},
      {"\"rope_scaling\": null", "\"rope_parameters\": {\"rope_type\":\"yarn\",\"rope_theta\":5e5}", ORDO_E_UNSUPPORTED, "rope_parameters"},
      {"\"rope_scaling\": null", "\"rope_parameters\": {\"rope_type\":\"default\",\"rope_theta\":500000}", ORDO_OK, NULL},
      {"\"attention_bias\": false", "\"attention_bias\": true", ORDO_E_UNSUPPORTED, "attention_bias"},
      {"\"mlp_bias\": false", "\"mlp_bias\": true", ORDO_E_UNSUPPORTED, "mlp_bias"},
      {"\"silu\"", "\"gelu\"", ORDO_E_UNSUPPORTED, "hidden_act"},
      {"\"model_type\": \"llama\"", "\"model_type\": \"mistral\"", ORDO_E_UNSUPPORTED, "mistral"},
      {"\"vocab_size\": 11", "\"vocab_size\": 11, \"quantization_config\": {}", ORDO_E_UNSUPPORTED, "quantization_config"},
      {"\"vocab_size\": 11", "\"vocab_size\": 11, \"sliding_window\": 4096", ORDO_E_UNSUPPORTED, "sliding_window"},
      {"\"vocab_size\": 11", "\"vocab_size\": -11", ORDO_E_INVALID, "vocab_size"},
      {"\"vocab_size\": 11", "\"vocab_size\": 11.5", ORDO_E_INVALID, "vocab_size"},
      {"\"vocab_size\": 11", "\"vocab_size\": 11, \"vocab_size\": 12", ORDO_E_INVALID, "stands twice"},
      {"\"hidden_size\": 8,", "", ORDO_E_INVALID, "hidden_size"},
      {"\"num_key_value_heads\": 1", "\"num_key_value_heads\": 3", ORDO_E_INVALID, NULL},
  };
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
    g_autofree char *text = ordo_hf_config_text(&small, 0.02, ORDO_F32, 1, 2);
    g_auto(GStrv) parts = g_strsplit(text, cases[i].find, 2);
    g_auto(ordo_problems) problems;
    struct llama_config config;
    double range;
    assert_non_null(parts[1]);
    g_autofree char *changed = g_strconcat(parts[0], cases[i].replace, parts[1], NULL);
    ordo_problems_init(&problems);
    ordo_status status = ordo_hf_config_parse(changed, strlen(changed), "config.json", &config, &range, &problems);
    if (status != cases[i].status || (cases[i].word && !problems_mention(&problems, cases[i].word)))
      fail_msg("case %zu (%s): status %d", i, cases[i].replace, status);
    if (status == ORDO_OK && strstr(cases[i].replace, "500000"))
      assert_true(config.rope_theta == 500000.0);
  }
}

/* A checkpoint whose every element is its own position in the file, so that each read says where it came from. */
static GByteArray *llama2c_file(int separate_head)
{
  const int32_t header[7] = {8, 6, 2, 2, 1, separate_head ? -11 : 11, 5};
  GByteArray *file = g_byte_array_new();
  int64_t floats = 11 * 8 + 2 * (8 + 64 + 32 + 32 + 64 + 8 + 48 + 48 + 48) + 8 + 2 * (5 * 2) + (separate_head ? 88 : 0);
  g_byte_array_append(file, (const guint8 *)header, sizeof header);
  for (int64_t i = 0; i < floats; i++) {
    float value = (float)i;
    g_byte_array_append(file, (const guint8 *)&value, 4);
  }
  return file;
}

static void llama2c_rows_are_permuted(void **state)
{
  g_autoptr(GByteArray) file = llama2c_file(1);
  g_autofree char *path = scratch_write(*state, "m.bin", file->data, file->len);
  g_autoptr(ordo_weights) weights = NULL;
  g_auto(ordo_problems) problems;
  float q[64], part[13], k[32], head[88], down[48];
  int64_t embed = 88, q1 = embed + 16 + 64, k1 = embed + 16 + 128 + 32, down_all = embed + 16 + 128 + 64 + 64 + 128 + 16 + 96;
  ordo_problems_init(&problems);
  assert_int_equal(ordo_weights_open(path, &problems, &weights), ORDO_OK);
  assert_int_equal(weights->config.kv_heads, 1);
  assert_int_equal(weights->config.tied, 0);
  assert_int_equal(weights->read(weights, "model.layers.1.self_attn.q_proj.weight", 0, 64, q, &problems), ORDO_OK);
  assert_int_equal(weights->read(weights, "model.layers.1.self_attn.k_proj.weight", 0, 32, k, &problems), ORDO_OK);
  for (int64_t j = 0; j < 2; j++)
    for (int64_t i = 0; i < 2; i++)
      for (int64_t c = 0; c < 8; c++) {
        assert_true(q[(j * 4 + i) * 8 + c] == (float)(q1 + (j * 4 + 2 * i) * 8 + c));
        assert_true(q[(j * 4 + 2 + i) * 8 + c] == (float)(q1 + (j * 4 + 2 * i + 1) * 8 + c));
        if (j == 0)
          assert_true(k[(2 + i) * 8 + c] == (float)(k1 + (2 * i + 1) * 8 + c));
      }
  assert_int_equal(weights->read(weights, "model.layers.1.self_attn.q_proj.weight", 5, 13, part, &problems), ORDO_OK);
  assert_memory_equal(part, q + 5, sizeof part);
  assert_int_equal(weights->read(weights, "model.layers.0.mlp.down_proj.weight", 0, 48, down, &problems), ORDO_OK);
  assert_true(down[0] == (float)down_all);
  assert_int_equal(weights->read(weights, "lm_head.weight", 0, 88, head, &problems), ORDO_OK);
  assert_true(head[87] == (float)((file->len - 28) / 4 - 1));
  assert_int_equal(weights->read(weights, "model.layers.2.mlp.down_proj.weight", 0, 48, down, &problems), ORDO_E_INVALID);
}

static void damaged_llama2c_files_are_refused(void **state)
{
  g_autoptr(GByteArray) file = llama2c_file(0);
  static const int32_t values[] = {0, -1, INT32_MAX, INT32_MIN, 3};
  for (int field = 0; field < 7; field++)
    for (size_t v = 0; v < G_N_ELEMENTS(values); v++) {
      g_autoptr(GByteArray) copy = g_byte_array_new();
      g_autoptr(ordo_weights) weights = NULL;
      g_auto(ordo_problems) problems;
      ordo_problems_init(&problems);
      g_byte_array_append(copy, file->data, file->len);
      memcpy(copy->data + field * 4, &values[v], 4);
      g_autofree char *path = scratch_write(*state, "m.bin", copy->data, copy->len);
      assert_int_equal(ordo_weights_open(path, &problems, &weights), ORDO_E_INVALID);
    }
  for (guint cut = 0; cut < file->len; cut += 97) {
    g_autoptr(ordo_weights) weights = NULL;
    g_auto(ordo_problems) problems;
    ordo_problems_init(&problems);
    g_autofree char *path = scratch_write(*state, "m.bin", file->data, cut);
    assert_int_equal(ordo_weights_open(path, &problems, &weights), ORDO_E_INVALID);
  }
}

static void both_forms_of_the_golden_model_agree(void **state)
{
  const char *root = golden_root();
  g_autoptr(ordo_weights) hf = NULL, bin = NULL;
  g_auto(ordo_problems) problems;
  (void)state;
  if (!root)
    skip();
  ordo_problems_init(&problems);
  g_autofree char *a = g_build_filename(root, "model", "hf", NULL), *b = g_build_filename(root, "model", "model.bin", NULL);
  assert_int_equal(ordo_weights_open(a, &problems, &hf), ORDO_OK);
  assert_int_equal(ordo_weights_open(b, &problems, &bin), ORDO_OK);
  assert_memory_equal(&hf->config, &bin->config, sizeof hf->config);
  struct llama *model = llama_create(&hf->config, NULL, (char[200]){0}, 200);
  for (uint32_t p = 0; p + 1 < llama_n_params(model); p++) { /* the last one is the tied head */
    const struct llama_param *param = llama_param_at(model, p);
    g_autofree float *x = g_new(float, (gsize)param->numel), *y = g_new(float, (gsize)param->numel);
    assert_int_equal(hf->read(hf, param->name, 0, param->numel, x, &problems), ORDO_OK);
    assert_int_equal(bin->read(bin, param->name, 0, param->numel, y, &problems), ORDO_OK);
    assert_memory_equal(x, y, (size_t)param->numel * sizeof(float));
  }
  llama_destroy(model);
}

static void one_file_of_a_directory_is_answered_with_the_directory(void **state)
{
  static const char *const names[] = {"model.safetensors", "config.json", "model.safetensors.index.json"};
  for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
    g_autofree char *path = scratch_text(*state, names[i], "x"), *next = g_strdup_printf("--model %s", (char *)*state);
    g_autoptr(ordo_weights) weights = NULL;
    g_auto(ordo_problems) problems;
    ordo_problems_init(&problems);
    assert_int_equal(ordo_weights_open(path, &problems, &weights), ORDO_E_INVALID);
    assert_true(problems_mention(&problems, next));
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(chunks_equal_the_whole),
      cmocka_unit_test(three_dimensional_rectangles_work),
      cmocka_unit_test(pieces_are_runs),
      cmocka_unit_test(fresh_norms_are_one),
      cmocka_unit_test_setup_teardown(a_written_directory_reads_back, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(incomplete_directories_are_refused, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(shards_are_read_through_their_index, scratch_setup, scratch_teardown),
      cmocka_unit_test(unsupported_models_are_refused_by_name),
      cmocka_unit_test_setup_teardown(llama2c_rows_are_permuted, scratch_setup, scratch_teardown),
      cmocka_unit_test_setup_teardown(damaged_llama2c_files_are_refused, scratch_setup, scratch_teardown),
      cmocka_unit_test(both_forms_of_the_golden_model_agree),
      cmocka_unit_test_setup_teardown(one_file_of_a_directory_is_answered_with_the_directory, scratch_setup, scratch_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
