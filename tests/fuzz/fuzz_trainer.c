/* fuzz_trainer.c - damaged files of every format that the trainer reads. Each is refused with a problem, or read within its own bounds:
 * ids inside the vocabulary, weights that can all be read, texts that can be encoded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <glib/gstdio.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "data.h"
#include "hf.h"
#include "mutate.h"
#include "safetensors.h"
#include "tokenizer.h"
#include "tokens.h"
#include "weights.h"

enum { VOCAB = 11, SECONDS = 1 };

typedef struct subject {
  const char *name;
  GByteArray *(*seed)(void);
  gboolean (*read)(const char *path, ordo_problems *problems); /* TRUE: accepted, and everything that follows has been tried */
} subject;

static const struct llama_config small = {.layers = 2,
                                          .hidden = 8,
                                          .intermediate = 6,
                                          .heads = 2,
                                          .kv_heads = 1,
                                          .head_dim = 4,
                                          .vocab = VOCAB,
                                          .max_positions = 5,
                                          .rms_eps = 1e-5,
                                          .rope_theta = 10000,
                                          .tied = 1};

static void put(GByteArray *file, const void *bytes, size_t n)
{
  g_byte_array_append(file, bytes, (guint)n);
}

static GByteArray *tokenizer_seed(void)
{
  GByteArray *file = g_byte_array_new();
  uint32_t longest = 8;
  put(file, &longest, 4);
  for (uint32_t i = 0; i < 264; i++) {
    char text[16] = "<unk>";
    float score = -(float)i;
    if (i >= 3 && i < 259)
      g_snprintf(text, sizeof text, "<0x%02X>", i - 3);
    else if (i >= 259)
      g_snprintf(text, sizeof text, "%.*s", (int)(i - 258), "ababab");
    uint32_t length = (uint32_t)strlen(text);
    put(file, &score, 4);
    put(file, &length, 4);
    put(file, text, length);
  }
  return file;
}

static gboolean read_tokenizer(const char *path, ordo_problems *problems)
{
  static const char text[] = "abab abba caf\xc3\xa9 \xff";
  g_autoptr(ordo_tokenizer) tokenizer = NULL;
  g_autoptr(GString) decoded = g_string_new(NULL);
  if (ordo_tokenizer_open(path, 0, problems, &tokenizer) != ORDO_OK)
    return FALSE;
  g_autoptr(GArray) ids = ordo_tokenizer_encode(tokenizer, text, strlen(text), TRUE);
  for (guint i = 0; i < ids->len; i++)
    assert_true(g_array_index(ids, int32_t, i) >= 0 && g_array_index(ids, int32_t, i) < ordo_tokenizer_vocab(tokenizer));
  for (int32_t id = -1; id <= ordo_tokenizer_vocab(tokenizer); id++) {
    ordo_tokenizer_decode(tokenizer, -1, id, decoded);
    ordo_tokenizer_bytes(tokenizer, id);
  }
  return TRUE;
}

static GByteArray *shard_seed(void)
{
  const uint32_t header[256] = {20240801, 7, 40};
  GByteArray *file = g_byte_array_new();
  put(file, header, sizeof header);
  for (uint32_t i = 0; i < 40; i++) {
    uint32_t id = i % VOCAB;
    put(file, &id, 4);
  }
  return file;
}

static gboolean read_shard(const char *path, ordo_problems *problems)
{
  g_autoptr(ordo_tokenizer) bytes = NULL;
  g_autoptr(ordo_tokens) tokens = NULL;
  assert_int_equal(ordo_tokenizer_open("bytes", 0, problems, &bytes), ORDO_OK);
  if (ordo_tokens_open(path, "llmc", bytes, TRUE, VOCAB, problems, &tokens) != ORDO_OK)
    return FALSE;
  int64_t n = ordo_tokens_count(tokens);
  g_autofree int32_t *ids = g_new(int32_t, (gsize)(n + 1));
  ordo_tokens_read(tokens, 0, n, ids);
  for (int64_t i = 0; i < n; i++)
    assert_true(ids[i] >= 0 && ids[i] < VOCAB);
  return TRUE;
}

static GByteArray *targets_seed(void)
{
  GByteArray *file = g_byte_array_new();
  for (int32_t i = 0; i < 40; i++) {
    int32_t target = i % 4 ? i % VOCAB : -100;
    put(file, &target, 4);
  }
  return file;
}

static gboolean read_targets(const char *path, ordo_problems *problems)
{
  ordo_data data = {.seq_len = 4, .n_sequences = 10};
  gboolean good = ordo_data_set_targets(&data, path, VOCAB, problems) == ORDO_OK;
  assert_true(!good || (data.n_sequences > 0 && data.n_sequences <= 10));
  ordo_data_clear(&data);
  return good;
}

/* Every element of every parameter, as the set-up of a model would read them. */
static gboolean read_weights(ordo_weights *weights, ordo_problems *problems)
{
  char reason[200] = "";
  struct llama *model = llama_create(&weights->config, NULL, reason, sizeof reason);
  gboolean good = model && (!weights->check || weights->check(weights, model, problems) == ORDO_OK);
  if (!model)
    ordo_problems_push(problems, ORDO_E_INVALID, "E-TRAIN-MODEL", "", reason, "", "refused by the model");
  for (uint32_t p = 0; good && p < llama_n_params(model); p++) {
    const struct llama_param *param = llama_param_at(model, p);
    if (p > 0 && param->tie_group >= 0) /* a tied head is never read: it is the embedding */
      continue;
    g_autofree float *values = g_try_new(float, (gsize)param->numel);
    good = values && weights->read(weights, param->name, 0, param->numel, values, problems) == ORDO_OK;
  }
  llama_destroy(model);
  return good;
}

static GByteArray *llama2c_seed(void)
{
  const int32_t header[7] = {8, 6, 2, 2, 1, VOCAB, 5};
  GByteArray *file = g_byte_array_new();
  put(file, header, sizeof header);
  for (int i = 0; i < VOCAB * 8 + 2 * (8 + 64 + 32 + 32 + 64 + 8 + 48 * 3) + 8 + 2 * (5 * 2); i++)
    put(file, &(float){(float)i}, 4);
  return file;
}

static gboolean read_llama2c(const char *path, ordo_problems *problems)
{
  g_autoptr(ordo_weights) weights = NULL;
  return ordo_weights_open(path, problems, &weights) == ORDO_OK && read_weights(weights, problems);
}

static GByteArray *config_seed(void)
{
  g_autofree char *text = ordo_hf_config_text(&small, 0.02, ORDO_F32, 1, 2);
  GByteArray *file = g_byte_array_new();
  put(file, text, strlen(text));
  return file;
}

static gboolean read_config(const char *path, ordo_problems *problems)
{
  g_autofree char *text = NULL;
  gsize length = 0;
  struct llama_config config;
  double range;
  assert_true(g_file_get_contents(path, &text, &length, NULL));
  return ordo_hf_config_parse(text, length, path, &config, &range, problems) == ORDO_OK;
}

static GByteArray *index_seed(void)
{
  GByteArray *file = g_byte_array_new();
  struct llama *model = llama_create(&small, NULL, (char[200]){0}, 200);
  put(file, "{\"weight_map\": {", 16);
  for (uint32_t p = 0; p < llama_n_params(model); p++) {
    g_autofree char *entry = g_strdup_printf("%s\"%s\": \"part-1.safetensors\"", p ? ", " : "", llama_param_at(model, p)->name);
    put(file, entry, strlen(entry));
  }
  put(file, "}}", 2);
  llama_destroy(model);
  return file;
}

/* Beside a good config.json; the shards it names are missing or damaged names. */
static gboolean read_index(const char *path, ordo_problems *problems)
{
  g_autofree char *directory = g_path_get_dirname(path), *config = g_build_filename(directory, "config.json", NULL);
  g_autofree char *index = g_build_filename(directory, "model.safetensors.index.json", NULL);
  g_autofree char *text = ordo_hf_config_text(&small, 0.02, ORDO_F32, 1, 2);
  g_autoptr(ordo_weights) weights = NULL;
  assert_true(g_file_set_contents(config, text, -1, NULL));
  assert_int_equal(rename(path, index), 0);
  gboolean good = ordo_hf_open(directory, problems, &weights) == ORDO_OK;
  assert_int_equal(rename(index, path), 0);
  unlink(config);
  return good;
}

static const subject subjects[] = {
    {"tokenizer.bin", tokenizer_seed, read_tokenizer}, {"shard", shard_seed, read_shard},         {"targets", targets_seed, read_targets},
    {"llama2.c", llama2c_seed, read_llama2c},          {"config.json", config_seed, read_config}, {"index.json", index_seed, read_index},
};

static gboolean try_bytes(const subject *s, const char *path, const GByteArray *bytes)
{
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  FILE *file = fopen(path, "w"); /* not g_file_set_contents, which waits for the disk */
  assert_non_null(file);
  if (bytes->len > 0)
    assert_int_equal(fwrite(bytes->data, 1, bytes->len, file), bytes->len);
  fclose(file);
  gboolean good = s->read(path, &problems);
  if (!good && ordo_problems_count(&problems) == 0)
    fail_msg("%s: refused without a word", s->name);
  for (size_t i = 0; i < ordo_problems_count(&problems); i++)
    assert_true(*ordo_problems_at(&problems, i)->what != '\0');
  return good;
}

static void damaged(const subject *s, const char *path)
{
  g_autoptr(GByteArray) seed = s->seed();
  mutator m = {11};
  gint64 end = g_get_monotonic_time() + SECONDS * G_USEC_PER_SEC;
  guint n = 0, good = 0;
  while (n < 100 || (n < 20000 && g_get_monotonic_time() < end)) {
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    put(bytes, seed->data, seed->len);
    mutate_bytes(&m, bytes);
    good += try_bytes(s, path, bytes) ? 1 : 0;
    n++;
  }
  print_message("%s: %u files, %u accepted\n", s->name, n, good);
  assert_true(good < n);
}

static void every_format_is_fuzzed(void **state)
{
  g_autofree char *directory = g_dir_make_tmp("ordo-fuzz-XXXXXX", NULL), *path = g_build_filename(directory, "file", NULL);
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(subjects); i++)
    damaged(&subjects[i], path);
  unlink(path);
  rmdir(directory);
}

/* Cut at every 64th byte and at the edges: never accepted. The targets file has no header; it may be any whole number of sequences. */
static void every_cut_is_refused(void **state)
{
  g_autofree char *directory = g_dir_make_tmp("ordo-fuzz-XXXXXX", NULL), *path = g_build_filename(directory, "file", NULL);
  (void)state;
  for (size_t i = 0; i < G_N_ELEMENTS(subjects); i++) {
    const subject *s = &subjects[i];
    g_autoptr(GByteArray) seed = s->seed();
    guint whole = seed->len;
    if (s->read != read_index && !try_bytes(s, path, seed))
      fail_msg("%s: the undamaged file is refused", s->name);
    for (guint cut = 0; cut < whole; cut = cut == whole - 1 ? whole : MIN(cut + 64, whole - 1)) {
      g_autoptr(GByteArray) bytes = g_byte_array_new();
      gboolean sequences = s->read == read_targets && cut > 0 && cut % 16 == 0;
      put(bytes, seed->data, cut);
      if (try_bytes(s, path, bytes) != sequences && !(s->read == read_config && cut == whole - 1))
        fail_msg("%s: cut at byte %u of %u", s->name, cut, whole);
    }
  }
  unlink(path);
  rmdir(directory);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_format_is_fuzzed), cmocka_unit_test(every_cut_is_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
