/* inference.c - cases without training: evaluation, logits, greedy texts, encodings, learning-rate lists. */
#include "golden.h"

#include "safetensors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct teller {
  const golden_options *options;
  golden_report report;
  void *ctx;
} teller;

static gboolean wanted(const teller *t, const char *name)
{
  return !t->options->only || strstr(name, t->options->only);
}

static void tell(const teller *t, const char *name, golden_worst *worst)
{
  t->report(t->ctx, name, worst);
  g_free(worst->failure);
}

/* A model by its first existing name. */
static char *model_path(const golden_options *options, const char *first, const char *second)
{
  char *path = g_build_filename(options->root, first, NULL);
  if (g_file_test(path, G_FILE_TEST_EXISTS))
    return path;
  g_free(path);
  return g_build_filename(options->root, second, NULL);
}

/* The last line of the output as an object. */
static JsonObject *last_object(const char *output, golden_worst *worst)
{
  g_autofree char *copy = g_strchomp(g_strdup(output));
  const char *line = strrchr(copy, '\n');
  g_autoptr(JsonParser) parser = json_parser_new();
  if (json_parser_load_from_data(parser, line ? line + 1 : copy, -1, NULL) && JSON_NODE_HOLDS_OBJECT(json_parser_get_root(parser)))
    return json_node_dup_object(json_parser_get_root(parser));
  golden_fail(worst, "the last line of the output is no object");
  return NULL;
}

static char *run_words(const teller *t, golden_worst *worst, const char *verb, int ranks, GPtrArray *words)
{
  g_ptr_array_add(words, NULL);
  return golden_run(t->options, worst, verb, ranks, (const char *const *)words->pdata);
}

static void evaluate(const teller *t, const char *name, JsonObject *expected, double tolerance)
{
  golden_worst worst = {0};
  g_autofree char *label = g_strconcat("eval_", name, NULL), *file = g_strdup_printf("data/%s.json", name), *why = NULL,
                  *model = model_path(t->options, "model/hf", "model/model.bin");
  g_autoptr(JsonObject) data = golden_read(t->options->root, file, &why);
  g_autoptr(GPtrArray) words = g_ptr_array_new_with_free_func(g_free);
  if (!wanted(t, label))
    return;
  if (!data) {
    golden_fail(&worst, "%s", why);
    tell(t, label, &worst);
    return;
  }
  golden_word(words, "--model.path=%s", model);
  golden_word(words, "--data.train=%s/data/%s", t->options->root, json_object_get_string_member(data, "ids_file"));
  golden_word(words, "--data.format=tokens16");
  if (json_object_has_member(data, "targets_file"))
    golden_word(words, "--data.targets=%s/data/%s", t->options->root, json_object_get_string_member(data, "targets_file"));
  golden_word(words, "--train.seq_len=%d", (int)json_object_get_int_member(data, "seq_len"));
  golden_word(words, "--train.batch=%d", (int)json_object_get_int_member(data, "batch"));
  g_autofree char *output = run_words(t, &worst, "eval", t->options->ranks, words);
  g_autoptr(JsonObject) got = output ? last_object(output, &worst) : NULL;
  if (got) {
    golden_compare_relative(&worst, "mean loss", json_object_get_double_member(got, "loss"),
                            json_object_get_double_member(expected, "mean"), tolerance);
    golden_compare(&worst, "counted tokens", json_object_get_double_member(got, "n_tokens"),
                   json_object_get_double_member(expected, "n_tokens"), 0.0);
    /* e^x: a deviation d of the mean is a relative one of d in the perplexity */
    golden_compare_relative(&worst, "perplexity", json_object_get_double_member(got, "perplexity"),
                            json_object_get_double_member(expected, "perplexity"),
                            tolerance * json_object_get_double_member(expected, "mean"));
  }
  tell(t, label, &worst);
}

static void evaluations(const teller *t)
{
  g_autofree char *why = NULL;
  g_autoptr(JsonObject) table = golden_read(t->options->root, "inference/eval.json", &why);
  if (!table)
    return;
  g_autoptr(GList) names = json_object_get_members(table);
  double tolerance = json_object_get_double_member(json_object_get_object_member(table, "tolerance"), "mean_rel");
  for (GList *n = names; n; n = n->next) {
    JsonNode *node = json_object_get_member(table, n->data);
    if (JSON_NODE_HOLDS_OBJECT(node) && json_object_has_member(json_node_get_object(node), "mean"))
      evaluate(t, n->data, json_node_get_object(node), tolerance);
  }
}

/* Ids that the command printed, one a line. */
static GArray *printed_ids(const char *output)
{
  GArray *ids = g_array_new(FALSE, FALSE, sizeof(gint64));
  g_auto(GStrv) lines = g_strsplit(output, "\n", -1);
  for (guint i = 0; lines[i]; i++) {
    gint64 id = g_ascii_strtoll(lines[i], NULL, 10);
    if (*lines[i])
      g_array_append_val(ids, id);
  }
  return ids;
}

static gboolean begins_with(const GArray *ids, guint offset, JsonArray *expected)
{
  for (guint i = 0; i < json_array_get_length(expected); i++)
    if (offset + i >= ids->len || g_array_index(ids, gint64, offset + i) != json_array_get_int_element(expected, i))
      return FALSE;
  return TRUE;
}

static void add_prompt(GPtrArray *words, JsonObject *c, gboolean as_text)
{
  JsonArray *prompt = json_object_get_array_member(c, "prompt_ids");
  g_autoptr(GString) list = g_string_new(NULL);
  for (guint i = 0; i < json_array_get_length(prompt); i++)
    g_string_append_printf(list, "%s%" G_GINT64_FORMAT, i ? "," : "", json_array_get_int_element(prompt, i));
  if (as_text && json_object_has_member(c, "prompt"))
    golden_word(words, "--generate.prompt=%s", json_object_get_string_member(c, "prompt"));
  else
    golden_word(words, "--generate.prompt_ids=%s", list->str);
}

static void greedy_case(const teller *t, const char *model, const char *label, JsonObject *c)
{
  golden_worst worst = {0};
  JsonArray *prompt = json_object_get_array_member(c, "prompt_ids"), *generated = json_object_get_array_member(c, "generated");
  guint n = json_array_get_length(prompt) + json_array_get_length(generated);
  g_autofree char *vocabulary = g_build_filename(t->options->root, "model", "tokenizer.bin", NULL);
  gboolean tokenizer = g_file_test(vocabulary, G_FILE_TEST_EXISTS);
  for (int text = 0; text < (tokenizer && json_object_has_member(c, "text") ? 2 : 1); text++) {
    g_autoptr(GPtrArray) words = g_ptr_array_new_with_free_func(g_free);
    golden_word(words, "--model.path=%s", model);
    if (tokenizer)
      golden_word(words, "--data.tokenizer=%s/model/tokenizer.bin", t->options->root);
    golden_word(words, "--generate.positions=%u", n - 1);
    golden_word(words, "--generate.print_ids=%s", text ? "false" : "true");
    add_prompt(words, c, text);
    g_autofree char *output = run_words(t, &worst, "generate", t->options->ranks, words);
    if (!output)
      break;
    if (text) {
      g_autofree char *expected = g_strconcat(json_object_get_string_member(c, "text"), "\n", NULL);
      golden_compare_exact(&worst, "bytes of the text", strcmp(output, expected) == 0);
    } else {
      g_autoptr(GArray) ids = printed_ids(output);
      golden_compare_exact(&worst, "ids",
                           ids->len == n && begins_with(ids, 0, prompt) && begins_with(ids, json_array_get_length(prompt), generated));
    }
  }
  tell(t, label, &worst);
}

static void greedy(const teller *t)
{
  static const char *const models[] = {"model/model.bin", "model/hf", NULL};
  g_autofree char *why = NULL;
  g_autoptr(JsonObject) table = golden_read(t->options->root, "inference/greedy.json", &why);
  if (!table)
    return;
  g_autoptr(GList) names = json_object_get_members(table);
  for (GList *n = names; n; n = n->next) {
    JsonNode *node = json_object_get_member(table, n->data);
    for (int m = 0; models[m]; m++) {
      g_autofree char *model = g_build_filename(t->options->root, models[m], NULL),
                      *label = g_strdup_printf("greedy_%s (%s)", (const char *)n->data, models[m] + 6);
      if (JSON_NODE_HOLDS_OBJECT(node) && json_object_has_member(json_node_get_object(node), "generated") &&
          g_file_test(model, G_FILE_TEST_EXISTS) && wanted(t, label))
        greedy_case(t, model, label, json_node_get_object(node));
    }
  }
}

/* A prompt is printed as ids, and as the text it decodes to: one position computes nothing beyond a prompt of two tokens. */
static void encode_case(const teller *t, const char *model, JsonObject *c, golden_worst *worst)
{
  JsonArray *expected = json_object_get_array_member(c, "ids");
  for (int text = 0; text < 2; text++) {
    g_autoptr(GPtrArray) words = g_ptr_array_new_with_free_func(g_free);
    golden_word(words, "--model.path=%s", model);
    golden_word(words, "--data.tokenizer=%s/model/tokenizer.bin", t->options->root);
    golden_word(words, "--generate.positions=1");
    golden_word(words, "--generate.print_ids=%s", text ? "false" : "true");
    golden_word(words, "--generate.prompt=%s", json_object_get_string_member(c, "text"));
    g_autofree char *output = run_words(t, worst, "generate", 1, words);
    if (!output)
      return;
    g_autofree char *shown = g_strdup_printf("encoding of \"%.40s\"", json_object_get_string_member(c, "text"));
    if (text && json_array_get_length(expected) > 1) {
      g_autofree char *whole = g_strconcat(json_object_get_string_member(c, "text"), "\n", NULL);
      golden_compare_exact(worst, shown, strcmp(output, whole) == 0);
    } else if (!text) {
      g_autoptr(GArray) ids = printed_ids(output);
      golden_compare_exact(worst, shown, begins_with(ids, 0, expected) && ids->len == MAX(json_array_get_length(expected), 2));
    }
  }
}

static void encodings(const teller *t)
{
  golden_worst worst = {0};
  g_autofree char *why = NULL, *model = model_path(t->options, "model/hf", "model/model.bin");
  g_autoptr(JsonObject) table = golden_read(t->options->root, "tokenizer/encode.json", &why);
  if (!table || !wanted(t, "encode"))
    return;
  JsonArray *cases = json_object_get_array_member(table, "cases");
  for (guint i = 0; i < json_array_get_length(cases); i++)
    encode_case(t, model, json_array_get_object_element(cases, i), &worst);
  tell(t, "encode", &worst);
}

static void compare_rows(JsonArray *rows, const float *logits, int64_t T, int64_t vocab, double tolerance, golden_worst *worst)
{
  for (guint i = 0; i < json_array_get_length(rows); i++) {
    JsonObject *row = json_array_get_object_element(rows, i);
    JsonArray *values = json_object_get_array_member(row, "values");
    int64_t at = json_object_get_int_member(row, "sequence") * T + json_object_get_int_member(row, "position");
    for (guint v = 0; v < json_array_get_length(values) && (int64_t)v < vocab; v++)
      golden_compare(worst, "logit", (double)logits[at * vocab + v], json_array_get_double_element(values, v), tolerance);
  }
}

static double loss_of(const float *logits, int64_t vocab, int64_t target)
{
  double largest = -INFINITY, sum = 0.0;
  for (int64_t v = 0; v < vocab; v++)
    largest = MAX(largest, (double)logits[v]);
  for (int64_t v = 0; v < vocab; v++)
    sum += exp((double)logits[v] - largest);
  return largest + log(sum) - (double)logits[target];
}

static void compare_losses(JsonObject *table, const float *logits, int64_t T, int64_t vocab, double tolerance, golden_worst *worst)
{
  JsonArray *nll = json_object_get_array_member(table, "nll"), *ids = json_object_get_array_member(table, "ids");
  for (guint s = 0; s < json_array_get_length(nll); s++) {
    JsonArray *losses = json_array_get_array_element(nll, s), *sequence = json_array_get_array_element(ids, s);
    for (guint p = 0; p < json_array_get_length(losses); p++)
      golden_compare(worst, "loss of a token", loss_of(logits + (s * T + p) * vocab, vocab, json_array_get_int_element(sequence, p + 1)),
                     json_array_get_double_element(losses, p), tolerance);
  }
}

static void compare_all_logits(const teller *t, JsonObject *table, const float *logits, int64_t n, double tolerance, golden_worst *worst)
{
  ordo_safetensors *file = NULL;
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  if (!json_object_has_member(table, "all_logits_file"))
    return;
  g_autofree char *path = g_build_filename(t->options->root, "inference", json_object_get_string_member(table, "all_logits_file"), NULL);
  const ordo_tensor *tensor = ordo_safetensors_open(path, &problems, &file) == ORDO_OK ? ordo_safetensors_at(file, 0) : NULL;
  g_autofree float *expected = g_new(float, (gsize)n);
  if (!tensor || tensor->numel != n || ordo_safetensors_read(file, tensor, 0, n, expected, &problems) != ORDO_OK)
    golden_fail(worst, "%s does not hold %" G_GINT64_FORMAT " logits", path, n);
  for (int64_t i = 0; !worst->failure && i < n; i++)
    golden_compare(worst, "logit of the whole table", (double)logits[i], (double)expected[i], tolerance);
  ordo_safetensors_close(file);
}

/* The ids with one more at the end: the product wants a target for the last position, the logits do not depend on it. */
static char *padded_ids(const teller *t, JsonArray *ids)
{
  GByteArray *bytes = g_byte_array_new();
  char *path = g_build_filename(t->options->scratch, "logits.bin", NULL);
  for (guint s = 0; s <= json_array_get_length(ids); s++) {
    JsonArray *sequence = s < json_array_get_length(ids) ? json_array_get_array_element(ids, s) : NULL;
    for (guint p = 0; p < (sequence ? json_array_get_length(sequence) : 1); p++) {
      guint16 id = GUINT16_TO_LE((guint16)(sequence ? json_array_get_int_element(sequence, p) : 0));
      g_byte_array_append(bytes, (const guint8 *)&id, 2);
    }
  }
  g_file_set_contents(path, (const char *)bytes->data, (gssize)bytes->len, NULL);
  g_byte_array_unref(bytes);
  return path;
}

static void logits_of(const teller *t, JsonObject *table, const char *model, golden_worst *worst)
{
  JsonArray *ids = json_object_get_array_member(table, "ids");
  int64_t n = json_array_get_length(ids), T = json_array_get_length(json_array_get_array_element(ids, 0));
  JsonObject *tolerance = json_object_get_object_member(table, "tolerance");
  g_autofree char *data = padded_ids(t, ids), *dump = g_build_filename(t->options->scratch, "logits.safetensors", NULL);
  g_autoptr(GPtrArray) words = g_ptr_array_new_with_free_func(g_free);
  ordo_safetensors *file = NULL;
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  golden_word(words, "--model.path=%s", model);
  golden_word(words, "--data.train=%s", data);
  golden_word(words, "--train.seq_len=%d", (int)T);
  golden_word(words, "--eval.dump_logits=%s", dump);
  g_autofree char *output = run_words(t, worst, "eval", t->options->ranks, words);
  const ordo_tensor *tensor =
      output && ordo_safetensors_open(dump, &problems, &file) == ORDO_OK ? ordo_safetensors_find(file, "logits") : NULL;
  g_autofree float *logits = tensor ? g_new(float, (gsize)tensor->numel) : NULL;
  if (!tensor || tensor->ndim != 3 || tensor->shape[0] != n ||
      ordo_safetensors_read(file, tensor, 0, tensor->numel, logits, &problems) != ORDO_OK) {
    golden_fail(worst, "the logits of %" G_GINT64_FORMAT " sequences were not written", n);
  } else {
    double absolute = golden_tolerance(worst, tolerance, "logits_abs");
    if (json_object_has_member(table, "logits"))
      compare_rows(json_object_get_array_member(table, "logits"), logits, T, tensor->shape[2], absolute, worst);
    if (json_object_has_member(table, "nll"))
      compare_losses(table, logits, T, tensor->shape[2], golden_tolerance(worst, tolerance, "nll_abs"), worst);
    compare_all_logits(t, table, logits, tensor->numel, absolute, worst);
  }
  ordo_safetensors_close(file);
}

static void logits(const teller *t)
{
  static const char *const models[] = {"model/model.bin", "model/hf", NULL};
  g_autofree char *why = NULL;
  g_autoptr(JsonObject) table = golden_read(t->options->root, "inference/logits.json", &why);
  for (int m = 0; table && models[m]; m++) {
    golden_worst worst = {0};
    g_autofree char *model = g_build_filename(t->options->root, models[m], NULL), *label = g_strdup_printf("logits (%s)", models[m] + 6);
    if (!g_file_test(model, G_FILE_TEST_EXISTS) || !wanted(t, label))
      continue;
    logits_of(t, table, model, &worst);
    tell(t, label, &worst);
  }
}

/* The whole list of a schedule, from the metrics of a run of that many small steps. */
static void schedule(const teller *t, const char *name)
{
  golden_worst worst = {0};
  g_autofree char *relative = g_build_filename("schedule", name, NULL), *why = NULL,
                  *label = g_strdup_printf("schedule_%.*s", (int)strlen(name) - 5, name);
  g_autofree char *text = NULL;
  g_autofree char *directory = g_build_filename(t->options->scratch, label, NULL),
                  *metrics = g_build_filename(directory, "metrics.jsonl", NULL),
                  *data = g_build_filename(t->options->scratch, "schedule.txt", NULL);
  g_autoptr(JsonObject) expected = golden_read(t->options->root, relative, &why);
  g_autoptr(GPtrArray) words = g_ptr_array_new_with_free_func(g_free);
  if (!expected || !wanted(t, label))
    return;
  g_file_set_contents(data, "abcdefghijklmnopqrstuvwxyz", -1, NULL);
  JsonArray *rates = json_object_get_array_member(expected, "lr");
  golden_word(words, "--data.train=%s", data);
  golden_word(words, "--model.layers=1");
  golden_word(words, "--model.hidden_size=16");
  golden_word(words, "--model.intermediate_size=8");
  golden_word(words, "--model.heads=8");
  golden_word(words, "--train.batch=%d", t->options->ranks);
  golden_word(words, "--train.seq_len=4");
  golden_word(words, "--train.steps=%u", json_array_get_length(rates));
  golden_word(words, "--optim.schedule=cosine");
  golden_word(words, "--optim.lr=%.17g", json_object_get_double_member(expected, "peak"));
  golden_word(words, "--optim.warmup_steps=%d", (int)json_object_get_int_member(expected, "warmup_steps"));
  golden_word(words, "--optim.decay_steps=%d", (int)json_object_get_int_member(expected, "total_steps"));
  golden_word(words, "--optim.floor_fraction=%.17g", json_object_get_double_member(expected, "floor_fraction"));
  golden_word(words, "--train.output=%s", directory);
  golden_word(words, "--checkpoint.save=false");
  golden_word(words, "--log.peak=false");
  g_autofree char *output = run_words(t, &worst, "train", t->options->ranks, words);
  if (output && g_file_get_contents(metrics, &text, NULL, NULL)) {
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    g_autoptr(JsonArray) values = json_array_new();
    for (guint i = 0; lines[i]; i++) {
      const char *at = strstr(lines[i], "\"lr\":");
      if (at)
        json_array_add_double_element(values, g_ascii_strtod(at + 5, NULL));
    }
    golden_compare_list(&worst, "lr", values, rates, 5e-9 + 1e-12); /* 9 significant digits */
  } else if (output) {
    golden_fail(&worst, "%s was not written", metrics);
  }
  tell(t, label, &worst);
}

static void schedules(const teller *t)
{
  g_autofree char *path = g_build_filename(t->options->root, "schedule", NULL);
  GDir *directory = g_dir_open(path, 0, NULL);
  for (const char *name; directory && (name = g_dir_read_name(directory));)
    if (g_str_has_suffix(name, ".json"))
      schedule(t, name);
  if (directory)
    g_dir_close(directory);
}

void golden_inference(const golden_options *options, golden_report report, void *ctx)
{
  teller t = {options, report, ctx};
  evaluations(&t);
  logits(&t);
  greedy(&t);
  encodings(&t);
  schedules(&t);
}
