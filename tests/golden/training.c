/* training.c - the cases training/NAME.json: options of the run, and what it leaves against what the case says. */
#include "golden.h"

#include "safetensors.h"
#include "weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct trained {
  const golden_options *options;
  JsonObject *expected;
  JsonObject *tolerance;
  golden_worst *worst;
  char *output;    /* directory */
  char *gradients; /* files */
  char *weights;
} trained;

static double number(JsonObject *object, const char *member, double fallback)
{
  JsonNode *node = json_object_get_member(object, member);
  return node && JSON_NODE_HOLDS_VALUE(node) ? json_node_get_double(node) : fallback;
}

static JsonObject *object_of(JsonObject *object, const char *member)
{
  return json_object_has_member(object, member) ? json_object_get_object_member(object, member) : NULL;
}

/* ids, targets and shape of the data set that a case or an evaluation names. */
static gboolean add_data(const golden_options *options, const char *file, GPtrArray *words, golden_worst *worst)
{
  g_autofree char *why = NULL, *directory = g_path_get_dirname(file);
  g_autoptr(JsonObject) data = golden_read(options->root, file, &why);
  if (!data) {
    golden_fail(worst, "%s", why);
    return FALSE;
  }
  golden_word(words, "--data.train=%s/%s/%s", options->root, directory, json_object_get_string_member(data, "ids_file"));
  golden_word(words, "--data.format=tokens16");
  if (json_object_has_member(data, "targets_file"))
    golden_word(words, "--data.targets=%s/%s/%s", options->root, directory, json_object_get_string_member(data, "targets_file"));
  golden_word(words, "--train.seq_len=%d", (int)number(data, "seq_len", 0));
  return TRUE;
}

/* The schedule whose list begins with the case's rates; constant if they are all the optimizer's. */
static gboolean add_schedule(trained *t, double peak, GPtrArray *words)
{
  JsonArray *rates = json_object_get_array_member(t->expected, "lr");
  g_autofree char *path = g_build_filename(t->options->root, "schedule", NULL);
  gboolean constant = TRUE, found = FALSE;
  for (guint i = 0; i < json_array_get_length(rates); i++)
    constant = constant && json_array_get_double_element(rates, i) == peak;
  if (constant) {
    golden_word(words, "--optim.lr=%.17g", peak);
    return TRUE;
  }
  GDir *directory = g_dir_open(path, 0, NULL);
  for (const char *name; !found && directory && (name = g_dir_read_name(directory));) {
    g_autofree char *relative = g_build_filename("schedule", name, NULL), *why = NULL;
    g_autoptr(JsonObject) schedule = g_str_has_suffix(name, ".json") ? golden_read(t->options->root, relative, &why) : NULL;
    JsonArray *list = schedule ? json_object_get_array_member(schedule, "lr") : NULL;
    found = list && json_array_get_length(list) >= json_array_get_length(rates);
    for (guint i = 0; found && i < json_array_get_length(rates); i++)
      found = json_array_get_double_element(list, i) == json_array_get_double_element(rates, i);
    if (found) {
      golden_word(words, "--optim.schedule=cosine");
      golden_word(words, "--optim.lr=%.17g", number(schedule, "peak", 0));
      golden_word(words, "--optim.warmup_steps=%d", (int)number(schedule, "warmup_steps", 0));
      golden_word(words, "--optim.decay_steps=%d", (int)number(schedule, "total_steps", 0));
      golden_word(words, "--optim.floor_fraction=%.17g", number(schedule, "floor_fraction", 0));
    }
  }
  if (directory)
    g_dir_close(directory);
  if (!found)
    golden_fail(t->worst, "its learning rates are neither constant nor the beginning of a list in schedule/");
  return found;
}

static gboolean add_options(trained *t, GPtrArray *words)
{
  JsonObject *optimizer = json_object_get_object_member(t->expected, "optimizer");
  const char *name = json_object_get_string_member(optimizer, "name");
  JsonObject *data = json_object_get_object_member(t->expected, "data");
  int batch = (int)number(t->expected, "batch", 0);
  golden_word(words, "--model.path=%s/%s", t->options->root, json_object_get_string_member(t->expected, "model"));
  golden_word(words, "--data.order=sequential");
  golden_word(words, "--train.steps=%d", (int)number(t->expected, "steps", 0));
  golden_word(words, "--train.batch=%d", batch);
  golden_word(words, "--train.micro_batch=%d", (int)number(t->expected, "micro_batch", batch));
  golden_word(words, "--optim.name=%s", name);
  golden_word(words, "--optim.clip=%.17g", number(t->expected, "clip_grad_norm", 0));
  if (strcmp(name, "adamw") == 0) {
    golden_word(words, "--optim.beta1=%.17g", number(optimizer, "beta1", 0.9));
    golden_word(words, "--optim.beta2=%.17g", number(optimizer, "beta2", 0.999));
    golden_word(words, "--optim.eps=%.17g", number(optimizer, "eps", 1e-8));
    golden_word(words, "--optim.weight_decay=%.17g", number(optimizer, "weight_decay", 0));
  } else {
    golden_word(words, "--optim.momentum=%.17g", number(optimizer, "momentum", 0));
  }
  golden_word(words, "--train.output=%s", t->output);
  golden_word(words, "--train.dump_gradients=%s", t->gradients);
  golden_word(words, "--train.dump_weights=%s", t->weights);
  golden_word(words, "--checkpoint.save=false");
  golden_word(words, "--log.peak=false");
  return add_schedule(t, number(optimizer, "lr", 0), words) &&
         add_data(t->options, json_object_get_string_member(data, "file"), words, t->worst);
}

/* One column of metrics.jsonl. */
static JsonArray *column(const char *text, const char *member)
{
  JsonArray *values = json_array_new();
  g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
  for (guint i = 0; lines[i]; i++) {
    g_autoptr(JsonParser) parser = json_parser_new();
    if (*lines[i] && json_parser_load_from_data(parser, lines[i], -1, NULL))
      json_array_add_double_element(values, json_object_get_double_member(json_node_get_object(json_parser_get_root(parser)), member));
  }
  return values;
}

void golden_compare_training(const golden_options *options, JsonObject *expected, JsonArray *losses, JsonArray *norms, golden_worst *worst)
{
  JsonObject *tolerance = json_object_get_object_member(expected, "tolerance");
  (void)options;
  golden_compare_list(worst, "loss", losses, json_object_get_array_member(expected, "loss"),
                      golden_tolerance(worst, tolerance, "loss_rel"));
  golden_compare_list(worst, "grad_norm", norms, json_object_get_array_member(expected, "grad_norm_before_clip"),
                      golden_tolerance(worst, tolerance, "grad_norm_rel"));
}

static void compare_metrics(trained *t)
{
  g_autofree char *path = g_build_filename(t->output, "metrics.jsonl", NULL), *text = NULL;
  if (!g_file_get_contents(path, &text, NULL, NULL)) {
    golden_fail(t->worst, "%s was not written", path);
    return;
  }
  g_autoptr(JsonArray) loss = column(text, "loss"), norm = column(text, "grad_norm"), clip = column(text, "clip_coef"),
                       lr = column(text, "lr"), n = column(text, "n_tokens");
  golden_compare_training(t->options, t->expected, loss, norm, t->worst);
  golden_compare_list(t->worst, "clip_coef", clip, json_object_get_array_member(t->expected, "clip_coef"),
                      golden_tolerance(t->worst, t->tolerance, "grad_norm_rel"));
  /* 9 significant digits: half a unit of the last one is 5e-9 of the value at most */
  golden_compare_list(t->worst, "lr", lr, json_object_get_array_member(t->expected, "lr"), 5e-9 + 1e-12);
  golden_compare_list(t->worst, "n_tokens", n, json_object_get_array_member(t->expected, "n_tokens"), 0.0);
}

static float *read_tensor(const ordo_safetensors *file, const char *name, int64_t *numel, golden_worst *worst)
{
  const ordo_tensor *tensor = ordo_safetensors_find(file, name);
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  if (!tensor) {
    golden_fail(worst, "tensor %s is missing", name);
    return NULL;
  }
  *numel = tensor->numel;
  float *values = g_new(float, (gsize)MAX(tensor->numel, 1));
  if (ordo_safetensors_read(file, tensor, 0, tensor->numel, values, &problems) != ORDO_OK) {
    golden_fail(worst, "tensor %s cannot be read", name);
    g_clear_pointer(&values, g_free);
  }
  return values;
}

static ordo_safetensors *open_file(const char *path, golden_worst *worst)
{
  ordo_safetensors *file = NULL;
  g_auto(ordo_problems) problems;
  ordo_problems_init(&problems);
  if (ordo_safetensors_open(path, &problems, &file) != ORDO_OK)
    golden_fail(worst, "%s: %s", path, ordo_problems_at(&problems, 0)->why);
  return file;
}

static double norm_of(const float *values, int64_t n)
{
  double sum = 0;
  for (int64_t i = 0; i < n; i++)
    sum += (double)values[i] * (double)values[i];
  return sqrt(sum);
}

/* Norms of the tensors of a file against an object of norms, by name. */
static void compare_norms(golden_worst *worst, const char *metric, const ordo_safetensors *file, JsonObject *norms, double tolerance)
{
  if (!norms)
    return; /* the case does not state them */
  g_autoptr(GList) names = json_object_get_members(norms);
  for (GList *n = names; n; n = n->next) {
    int64_t numel = 0;
    g_autofree float *values = read_tensor(file, n->data, &numel, worst);
    if (values)
      golden_compare_relative(worst, metric, norm_of(values, numel), json_object_get_double_member(norms, n->data), tolerance);
  }
  if (g_list_length(names) != ordo_safetensors_count(file))
    golden_fail(worst, "%s: the run wrote %zu tensors, the case has %u", metric, ordo_safetensors_count(file), g_list_length(names));
}

static void compare_gradients(trained *t)
{
  g_autoptr(ordo_safetensors) file = open_file(t->gradients, t->worst);
  if (!file)
    return;
  compare_norms(t->worst, "grad_l2_step1", file, object_of(t->expected, "grad_l2_step1"),
                golden_tolerance(t->worst, t->tolerance, "grad_l2_step1_rel"));
  if (!json_object_has_member(t->expected, "grads_step1_file"))
    return;
  g_autofree char *path =
      g_build_filename(t->options->root, "training", json_object_get_string_member(t->expected, "grads_step1_file"), NULL);
  g_autoptr(ordo_safetensors) reference = open_file(path, t->worst);
  double tolerance = golden_tolerance(t->worst, t->tolerance, "grads_step1_relL2_per_parameter");
  for (size_t i = 0; reference && i < ordo_safetensors_count(reference); i++) {
    int64_t n = 0, m = 0;
    const char *name = ordo_safetensors_at(reference, i)->name;
    g_autofree float *expected = read_tensor(reference, name, &n, t->worst), *values = read_tensor(file, name, &m, t->worst);
    if (!expected || !values || n != m)
      continue;
    double size = norm_of(expected, n);
    for (int64_t k = 0; k < n; k++)
      values[k] -= expected[k];
    golden_compare(t->worst, "gradients of step 1", norm_of(values, n), 0.0, tolerance * size);
  }
}

/* The whole update against that of the reference: both need the weights at the start. */
static void compare_update(trained *t, const ordo_safetensors *file, const ordo_safetensors *reference)
{
  g_autofree char *path = g_build_filename(t->options->root, json_object_get_string_member(t->expected, "model"), NULL);
  g_autoptr(ordo_weights) start = NULL;
  g_auto(ordo_problems) problems;
  double wrong = 0, moved = 0, largest = 0;
  ordo_problems_init(&problems);
  if (ordo_weights_open(path, &problems, &start) != ORDO_OK) {
    golden_fail(t->worst, "%s cannot be read", path);
    return;
  }
  for (size_t i = 0; i < ordo_safetensors_count(reference); i++) {
    int64_t n = 0, m = 0;
    const char *name = ordo_safetensors_at(reference, i)->name;
    g_autofree float *expected = read_tensor(reference, name, &n, t->worst), *values = read_tensor(file, name, &m, t->worst),
                     *first = g_new(float, (gsize)n);
    if (!expected || !values || n != m || start->read(start, name, 0, n, first, &problems) != ORDO_OK)
      continue;
    for (int64_t k = 0; k < n; k++) {
      double difference = (double)values[k] - (double)expected[k], step = (double)expected[k] - (double)first[k];
      wrong += difference * difference;
      moved += step * step;
      largest = MAX(largest, fabs(difference));
    }
  }
  golden_compare(t->worst, "update", sqrt(wrong), 0.0, golden_tolerance(t->worst, t->tolerance, "update_relL2_whole_model") * sqrt(moved));
  golden_compare(t->worst, "largest weight difference", largest, 0.0, golden_tolerance(t->worst, t->tolerance, "weights_max_abs"));
}

static void compare_weights(trained *t)
{
  g_autoptr(ordo_safetensors) file = open_file(t->weights, t->worst);
  if (!file)
    return;
  compare_norms(t->worst, "weight_l2", file, object_of(t->expected, "weight_l2_after"),
                golden_tolerance(t->worst, t->tolerance, "weight_l2_rel"));
  if (!json_object_has_member(t->expected, "weights_after_file"))
    return;
  g_autofree char *path =
      g_build_filename(t->options->root, "training", json_object_get_string_member(t->expected, "weights_after_file"), NULL);
  g_autoptr(ordo_safetensors) reference = open_file(path, t->worst);
  if (reference)
    compare_update(t, file, reference);
}

static void compare_moments(trained *t)
{
  static const char *const members[] = {"adam_m_l2_after", "adam_v_l2_after"}, *const slots[] = {"exp_avg", "exp_avg_sq"};
  g_autofree char *why = NULL;
  g_autoptr(JsonObject) summary = NULL;
  for (int k = 0; k < 2; k++) {
    if (!json_object_has_member(t->expected, members[k]))
      continue;
    if (!summary && !(summary = golden_read(t->output, "summary.json", &why))) {
      golden_fail(t->worst, "%s", why);
      return;
    }
    JsonObject *norms = json_object_get_object_member(json_object_get_object_member(summary, "optimizer_l2"), slots[k]);
    JsonObject *expected = json_object_get_object_member(t->expected, members[k]);
    g_autoptr(GList) names = json_object_get_members(expected);
    for (GList *n = names; n; n = n->next)
      golden_compare_relative(
          t->worst, members[k], json_object_has_member(norms, n->data) ? json_object_get_double_member(norms, n->data) : (double)NAN,
          json_object_get_double_member(expected, n->data), golden_tolerance(t->worst, t->tolerance, "adam_m_v_l2_rel"));
  }
}

static void run_case(const golden_options *options, const char *relative, const char *name, golden_worst *worst)
{
  g_autofree char *why = NULL, *output = NULL;
  g_autoptr(JsonObject) expected = golden_read(options->root, relative, &why);
  g_autoptr(GPtrArray) words = g_ptr_array_new_with_free_func(g_free);
  if (!expected) {
    golden_fail(worst, "%s", why);
    return;
  }
  trained t = {
      options, expected, json_object_get_object_member(expected, "tolerance"), worst, g_build_filename(options->scratch, name, NULL),
      NULL,    NULL};
  t.gradients = g_strconcat(t.output, ".gradients.safetensors", NULL);
  t.weights = g_strconcat(t.output, ".weights.safetensors", NULL);
  if (add_options(&t, words)) {
    g_ptr_array_add(words, NULL);
    output = golden_run(options, worst, "train", options->ranks, (const char *const *)words->pdata);
  }
  if (output) {
    compare_metrics(&t);
    compare_gradients(&t);
    compare_weights(&t);
    compare_moments(&t);
  }
  g_free(t.output);
  g_free(t.gradients);
  g_free(t.weights);
}

static int by_text(gconstpointer a, gconstpointer b)
{
  return strcmp(a, b);
}

void golden_training(const golden_options *options, golden_report report, void *ctx)
{
  g_autofree char *path = g_build_filename(options->root, "training", NULL);
  GDir *directory = g_dir_open(path, 0, NULL);
  GList *names = NULL;
  for (const char *name; directory && (name = g_dir_read_name(directory));)
    if (g_str_has_suffix(name, ".json"))
      names = g_list_insert_sorted(names, g_strdup(name), by_text);
  if (directory)
    g_dir_close(directory);
  for (GList *n = names; n; n = n->next) {
    g_autofree char *relative = g_build_filename("training", n->data, NULL), *name = g_strndup(n->data, strlen(n->data) - 5);
    golden_worst worst = {0};
    if (options->only && !strstr(name, options->only))
      continue;
    run_case(options, relative, name, &worst);
    report(ctx, name, &worst);
    g_free(worst.failure);
  }
  g_list_free_full(names, g_free);
}
