/* train.c - `ordo train`: the loop, and what it leaves behind.
 *
 * Beside the outputs: resolved.ini (the same run again), metrics.jsonl (a line a step), validation.jsonl, summary.json, model/ (a
 * Hugging Face directory); model-before-error/ in its place when the loss exploded. SIGINT and SIGTERM let the running step finish on all
 * ranks, then the model is saved as at the end; the exit code is 1, since the run is not done.
 */
#include "files.h"
#include "metrics.h"
#include "model_tokenizer.h"
#include "output.h"
#include "run.h"
#include "sample.h"
#include "save.h"
#include "timeline.h"
#include "trace.h"
#include "usage.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>

static volatile sig_atomic_t stop_signal; /* a handler can reach nothing else */

static void on_signal(int number)
{
  stop_signal = number;
}

typedef struct training {
  ordo_data data;
  ordo_data validation;
  int has_validation;
  ordo_embed *embed;
  ordo_metrics metrics;
  FILE *validation_file;
  ordo_trace *trace;
  ordo_comm_provider *tap; /* between the session and the provider, for the trace */
  ordo_timeline *timeline;
  ordo_loss_sum last_validation;
  int64_t done; /* steps */
  int stopped;
} training;

static const char *text_of(const ordo_run *run, ordo_key key)
{
  return ordo_config_string(run->config, key);
}

/* A file inside train.output; null if nothing is to be written. */
static char *output_path(const ordo_run *run, const char *name)
{
  const char *directory = text_of(run, ORDO_KEY_train_output);
  return *directory ? g_build_filename(directory, name, NULL) : NULL;
}

static ordo_status train_prepare(ordo_run *run, void *state)
{
  training *t = state;
  run->stop_signal = &stop_signal;
  ordo_status status = ordo_run_open_data(run, text_of(run, ORDO_KEY_data_train), text_of(run, ORDO_KEY_data_targets), &t->data);
  if (status == ORDO_OK)
    status = ordo_run_open_validation(run, &t->data, &t->validation, &t->has_validation);
  t->data.shuffled = strcmp(text_of(run, ORDO_KEY_data_order), "shuffled") == 0;
  if (status == ORDO_OK)
    status = ordo_run_check_positions(run, ORDO_KEY_train_sample_positions);
  if (status == ORDO_OK && !run->tokenizer && ordo_config_int(run->config, ORDO_KEY_train_sample_positions) > 0)
    status = ordo_model_tokenizer_unknown("train.sample_positions", run->weights->config.vocab, &run->problems);
  /* What the text was read with is from now on the tokenizer of the model; ids say nothing about one. */
  if (status == ORDO_OK && !*text_of(run, ORDO_KEY_data_tokenizer) && run->tokenizer && ordo_tokens_are_text(t->data.tokens))
    status = ordo_config_set(run->config, ORDO_KEY_data_tokenizer, "bytes", "the text of data.train", &run->problems);
  return status;
}

static ordo_status train_outputs(ordo_run *run, void *state)
{
  (void)state;
  return ordo_output_take(run->config, &run->problems);
}

static void announce(ordo_run *run, training *t)
{
  const struct llama_config *c = &run->weights->config;
  const ordo_model *model = ordo_embed_model(t->embed);
  int64_t parameters = 0;
  for (uint32_t p = 0; p < model->n_params; p++)
    parameters += ordo_save_has_param(model, model->params[p]) ? model->params[p]->numel : 0;
  for (ordo_key key = 0; key < ORDO_N_KEYS; key++)
    if (ordo_config_is_set(run->config, key))
      ordo_run_say(run, "set      %s = %s\n", ordo_config_name(key), text_of(run, key));
  ordo_run_say(run,
               "model    %" G_GINT64_FORMAT " parameters: %" G_GINT64_FORMAT " layers, hidden %" G_GINT64_FORMAT ", %" G_GINT64_FORMAT
               "/%" G_GINT64_FORMAT " heads, vocabulary %" G_GINT64_FORMAT ", %s\n",
               parameters, c->layers, c->hidden, c->heads, c->kv_heads, c->vocab, run->weights->origin);
  ordo_run_say(run,
               "data     %" G_GINT64_FORMAT " tokens, %" G_GINT64_FORMAT " sequences of %" G_GINT64_FORMAT ", validation %" G_GINT64_FORMAT
               "\n",
               t->data.n_tokens, t->data.n_sequences, t->data.seq_len, t->has_validation ? t->validation.n_sequences : 0);
  g_autofree char *precision = ordo_run_precision(run);
  const int with = strcmp(precision, "none") != 0;
  ordo_run_say(run, "plan     %s%s%s on %d rank%s, digest %s\n",
               *text_of(run, ORDO_KEY_strategy_name) ? text_of(run, ORDO_KEY_strategy_name)
               : run->ranks > 1                      ? "ddp (default)"
                                                     : "none",
               with ? " with " : "", with ? precision : "", run->ranks, run->ranks > 1 ? "s" : "", ordo_plan_digest(run->plan));
  if (ordo_config_int(run->config, ORDO_KEY_train_batch) < run->ranks)
    ordo_run_say(
        run, "note     train.batch is %" G_GINT64_FORMAT ": %" G_GINT64_FORMAT " of %d ranks have no sequence and only take part\n",
        ordo_config_int(run->config, ORDO_KEY_train_batch), run->ranks - ordo_config_int(run->config, ORDO_KEY_train_batch), run->ranks);
  ordo_run_say(run, "compute  OpenBLAS core %s%s", run->blas.name, run->blas.fallback ? " (a fallback: ordo doctor)" : "");
  if (t->metrics.peak > 0)
    ordo_run_say(run, ", %.1f GFLOP/s measured", t->metrics.peak / 1e9);
  ordo_run_say(run, "\n");
}

static ordo_status open_outputs(ordo_run *run, training *t)
{
  int writes = run->rank == 0;
  g_autofree char *metrics = writes ? output_path(run, "metrics.jsonl") : NULL;
  g_autofree char *validation = writes && t->has_validation ? output_path(run, "validation.jsonl") : NULL;
  t->metrics.interval = ordo_config_int(run->config, ORDO_KEY_log_interval);
  t->metrics.steps = ordo_config_int(run->config, ORDO_KEY_train_steps);
  t->metrics.ranks = run->ranks;
  t->metrics.tokens_per_step = (double)(ordo_config_int(run->config, ORDO_KEY_train_batch) * t->data.seq_len);
  t->metrics.flops_per_token = ordo_metrics_flops_per_token(&run->weights->config, t->data.seq_len);
  ordo_status status = ordo_metrics_open(&t->metrics, metrics, writes ? text_of(run, ORDO_KEY_log_progress) : "none", &run->problems);
  if (status == ORDO_OK && validation && !(t->validation_file = fopen(validation, "we")))
    status = ordo_problems_push_errno(&run->problems, "create", validation, errno);
  return status;
}

static void activity(void *ctx, ordo_activity what, const char *unit, ordo_edge edge)
{
  training *t = ctx;
  if (t->timeline)
    ordo_timeline_activity(t->timeline, ordo_embed_session(t->embed), what, unit, edge);
  if (t->trace)
    ordo_trace_activity(t->trace, what, unit, edge);
}

static ordo_status open_details(ordo_run *run, training *t, ordo_embed_options *options)
{
  const char *trace = text_of(run, ORDO_KEY_log_trace), *memory = text_of(run, ORDO_KEY_log_memory);
  int64_t steps = ordo_config_int(run->config, ORDO_KEY_log_detail_steps);
  ordo_status status = *trace ? ordo_trace_open(trace, run->rank, steps, &run->problems, &t->trace) : ORDO_OK;
  if (status == ORDO_OK && *memory)
    status = ordo_timeline_open(memory, run->rank, steps, &run->problems, &t->timeline);
  if (status != ORDO_OK)
    return status;
  if (t->trace) {
    ordo_comm_observer observer = ordo_trace_observer(t->trace);
    options->comm = t->tap = ordo_comm_tap_new(run->comm, &observer);
  }
  if (t->trace || t->timeline)
    options->activity = activity;
  options->activity_ctx = t;
  return ORDO_OK;
}

static ordo_status close_details(ordo_run *run, training *t)
{
  ordo_status trace = ordo_trace_close(t->trace, &run->problems), timeline = ordo_timeline_close(t->timeline, &run->problems);
  t->trace = NULL;
  t->timeline = NULL;
  return trace != ORDO_OK ? trace : timeline;
}

static ordo_status validate(ordo_run *run, training *t)
{
  int64_t limit = ordo_config_int(run->config, ORDO_KEY_train_validate_sequences);
  int64_t n = limit > 0 ? MIN(limit, t->validation.n_sequences) : t->validation.n_sequences;
  ordo_loss_sum *sum = &t->last_validation;
  ordo_status status =
      ordo_embed_evaluate(t->embed, &t->validation, n, ordo_tokens_are_text(t->validation.tokens) ? run->tokenizer : NULL, sum);
  if (status != ORDO_OK)
    return status;
  ordo_metrics_end_line(&t->metrics);
  ordo_run_say(run, "validation after step %" G_GINT64_FORMAT ": loss %.6f", t->done, ordo_metrics_shown(sum->sum / sum->count));
  if (sum->bytes > 0)
    ordo_run_say(run, ", %.6f nats per byte", ordo_metrics_shown(sum->sum / sum->bytes));
  ordo_run_say(run, " (%.0f tokens)\n", sum->count);
  if (t->validation_file) {
    g_autoptr(GString) object = g_string_new("{");
    g_string_append_printf(object, "\"step\":%" G_GINT64_FORMAT, t->done);
    ordo_metrics_number(object, "loss", sum->sum / sum->count);
    ordo_metrics_number(object, "nats_per_byte", sum->bytes > 0 ? sum->sum / sum->bytes : NAN);
    ordo_metrics_number(object, "n_tokens", sum->count);
    fprintf(t->validation_file, "%s}\n", object->str);
    fflush(t->validation_file);
  }
  return ORDO_OK;
}

static ordo_status dump_gradients(void *ctx, ordo_embed *embed)
{
  return ordo_save_tensors(embed, ctx, ORDO_GATHER_GRADIENT, ORDO_F32, "gradients of step 1 before clipping");
}

static ordo_status loop(ordo_run *run, training *t)
{
  const char *dump = text_of(run, ORDO_KEY_train_dump_gradients);
  int64_t steps = t->metrics.steps, batch = ordo_config_int(run->config, ORDO_KEY_train_batch);
  int64_t interval = ordo_config_int(run->config, ORDO_KEY_train_validate_interval);
  ordo_status status = ORDO_OK;
  while (status == ORDO_OK && t->done < steps && !t->stopped) {
    ordo_step_outcome outcome;
    gint64 started = g_get_monotonic_time();
    gboolean dumps = t->done == 0 && *dump;
    status = ordo_embed_step(t->embed, &t->data, t->done * batch, stop_signal != 0, dumps ? dump_gradients : NULL, (void *)(uintptr_t)dump,
                             &outcome);
    if (status != ORDO_OK)
      break;
    t->done++;
    t->stopped = outcome.stop;
    status = ordo_metrics_step(&t->metrics, &outcome, (double)MAX(g_get_monotonic_time() - started, 1) * 1e-6, &run->problems);
    if (status == ORDO_OK && t->has_validation && interval > 0 && t->done % interval == 0 && t->done < steps && !t->stopped)
      status = validate(run, t);
  }
  ordo_metrics_end_line(&t->metrics);
  return status;
}

/* A run that a signal stopped has saved what there is, and is an error all the same: `ordo train && next` must not go on. */
static void say_stopped(ordo_run *run, training *t)
{
  g_autofree char *model = output_path(run, "model"), *next = NULL;
  gboolean saved = model && ordo_config_bool(run->config, ORDO_KEY_checkpoint_save);
  const char *name = stop_signal == SIGINT ? "SIGINT" : stop_signal == SIGTERM ? "SIGTERM" : "a signal to another rank";
  run->stopped = 1;
  if (run->rank != 0)
    return;
  next = saved ? g_strdup_printf("train on from these weights: --model %s", model) : g_strdup("start it again");
  ordo_problems_push(&run->problems, ORDO_E_STATE, "E-TRAIN-STOPPED", saved ? model : text_of(run, ORDO_KEY_train_output),
                     "all ranks finished that step; optimizer state and position in the data are not kept", next,
                     "stopped by %s after step %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT "; %s", name, t->done, t->metrics.steps,
                     saved ? "the model is saved" : "no model was to be saved");
}

static void print_piece(void *ctx, int32_t previous, int32_t id)
{
  const ordo_run *run = ctx;
  g_autoptr(GString) text = g_string_new(NULL);
  ordo_tokenizer_decode(run->tokenizer, previous, id, text);
  if (run->rank == 0)
    fwrite(text->str, 1, text->len, stdout);
}

static ordo_status sample(ordo_run *run, training *t)
{
  int64_t positions = ordo_config_int(run->config, ORDO_KEY_train_sample_positions);
  ordo_sampling sampling = {0.8, 0, 0.95, (uint64_t)ordo_config_int(run->config, ORDO_KEY_train_seed), 1};
  if (positions == 0)
    return ORDO_OK;
  g_autoptr(GArray) ids = ordo_prompt_ids(run->tokenizer, "");
  ordo_run_say(run, "sample   ");
  ordo_status status = ordo_generate(t->embed, ids, positions, &sampling, ordo_tokenizer_begin(run->tokenizer), print_piece, run);
  ordo_run_say(run, "\n");
  return status;
}

static ordo_status append_slot_norms(training *t, GString *object)
{
  const ordo_optimizer *optimizer = ordo_session_optimizer(ordo_embed_session(t->embed), 0);
  const ordo_model *model = ordo_embed_model(t->embed);
  g_autofree double *norms = g_new0(double, model->n_params);
  g_string_append(object, ",\"optimizer_l2\":{");
  for (uint32_t slot = 0; optimizer && slot < optimizer->n_slots(optimizer->ctx); slot++) {
    ordo_status status = ordo_save_slot_norms(t->embed, slot, norms);
    if (status != ORDO_OK)
      return status;
    g_autoptr(GString) inner = g_string_new("{");
    for (uint32_t p = 0; p < model->n_params; p++)
      if (ordo_save_has_param(model, model->params[p]))
        ordo_metrics_number(inner, model->params[p]->name, norms[p]);
    g_string_append_printf(object, "%s\"%s\":%s}", slot ? "," : "", optimizer->slot_name(optimizer->ctx, slot), inner->str);
  }
  g_string_append_c(object, '}');
  return ORDO_OK;
}

static ordo_status write_summary(ordo_run *run, training *t)
{
  g_autoptr(GString) object = g_string_new("{");
  g_autofree char *precision = ordo_run_precision(run), *quoted = g_strescape(precision, NULL);
  g_autofree char *path = output_path(run, "summary.json");
  ordo_status status = ORDO_OK;
  g_string_append_printf(
      object, "\"steps\":%" G_GINT64_FORMAT ",\"samples\":%" G_GINT64_FORMAT ",\"stopped\":%s,\"ranks\":%d,\"plan_digest\":\"%s\"", t->done,
      t->done * ordo_config_int(run->config, ORDO_KEY_train_batch), t->stopped ? "true" : "false", run->ranks, ordo_plan_digest(run->plan));
  g_string_append_printf(object, ",\"precision\":\"%s\",\"skipped_steps\":%" G_GINT64_FORMAT, quoted, t->metrics.skipped);
  ordo_metrics_number(object, "loss", t->done ? t->metrics.last_loss : NAN);
  ordo_metrics_number(object, "validation_loss", t->last_validation.count > 0 ? t->last_validation.sum / t->last_validation.count : NAN);
  ordo_metrics_number(object, "validation_nats_per_byte",
                      t->last_validation.bytes > 0 ? t->last_validation.sum / t->last_validation.bytes : NAN);
  ordo_metrics_number(object, "tokens", t->metrics.tokens);
  ordo_metrics_number(object, "seconds", t->metrics.seconds);
  ordo_metrics_number(object, "comm_seconds", t->metrics.comm_seconds);
  ordo_metrics_number(object, "tokens_per_second", t->metrics.seconds > 0 ? t->metrics.tokens / t->metrics.seconds : NAN);
  ordo_usage_memory(object, ordo_embed_session(t->embed));
  g_string_append_printf(object, ",\"rss_bytes\":%" G_GINT64_FORMAT, ordo_metrics_resident());
  ordo_usage_comm(object, ordo_embed_session(t->embed));
  if (*text_of(run, ORDO_KEY_train_dump_weights))
    status = append_slot_norms(t, object);
  g_string_append(object, "}\n");
  if (status == ORDO_OK && path && run->rank == 0)
    status = ordo_file_replace(path, object->str, object->len, &run->problems);
  return status;
}

static ordo_status save(ordo_run *run, training *t)
{
  g_autofree char *directory = output_path(run, "model");
  const char *dump = text_of(run, ORDO_KEY_train_dump_weights), *dtype = text_of(run, ORDO_KEY_checkpoint_dtype);
  ordo_dtype type = strcmp(dtype, "bf16") == 0 ? ORDO_BF16 : strcmp(dtype, "f16") == 0 ? ORDO_F16 : ORDO_F32;
  ordo_status status = *dump ? ordo_save_tensors(t->embed, dump, ORDO_GATHER_WEIGHT, ORDO_F32, "weights after the last step") : ORDO_OK;
  if (status == ORDO_OK && directory && ordo_config_bool(run->config, ORDO_KEY_checkpoint_save))
    status = ordo_save_model(t->embed, directory, type, text_of(run, ORDO_KEY_data_tokenizer));
  return status;
}

/* A gradient that is not finite, and a step without targets, stop every rank at the same place with the weights of the step before. */
static gboolean is_shared_error(const ordo_run *run)
{
  const ordo_error *error = ordo_last_error(run->context);
  return ordo_problems_count(&run->problems) == 0 && error &&
         (strcmp(error->code, "E-STEP-NONFINITE") == 0 || strcmp(error->code, "E-STEP-WEIGHT") == 0);
}

/* What was trained until then is not lost. */
static void keep_weights(ordo_run *run, training *t, ordo_status status)
{
  g_autofree char *directory = output_path(run, "model-before-error");
  if (!is_shared_error(run))
    return;
  ordo_run_report(run, status);
  if (t->done > 0 && directory && ordo_config_bool(run->config, ORDO_KEY_checkpoint_save) &&
      ordo_save_model(t->embed, directory, ORDO_F32, text_of(run, ORDO_KEY_data_tokenizer)) == ORDO_OK)
    ordo_run_say(run, "kept     the weights after step %" G_GINT64_FORMAT ": %s\n", t->done, directory);
}

static void report(ordo_run *run, training *t)
{
  const ordo_metrics *m = &t->metrics;
  ordo_run_say(run, "done     %" G_GINT64_FORMAT " steps, %.0f tokens in %.1f s: %.0f tok/s, communication %.1f%%\n", t->done, m->tokens,
               m->seconds, m->seconds > 0 ? m->tokens / m->seconds : 0.0, m->seconds > 0 ? 100.0 * m->comm_seconds / m->seconds : 0.0);
  if (m->skipped > 0)
    ordo_run_say(run, "note     %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT " steps were skipped because gradients overflowed%s\n",
                 m->skipped, t->done,
                 m->skipped == t->done ? ": nothing was trained; start with a smaller loss scale or train longer" : "");
  if (*text_of(run, ORDO_KEY_train_output))
    ordo_run_say(run, "output   %s\n", text_of(run, ORDO_KEY_train_output));
}

static ordo_status run_training(ordo_run *run, training *t)
{
  ordo_status status = loop(run, t);
  if (status != ORDO_OK)
    keep_weights(run, t, status);
  if (status == ORDO_OK && t->has_validation)
    status = validate(run, t);
  if (status == ORDO_OK)
    status = save(run, t);
  if (status == ORDO_OK)
    status = write_summary(run, t);
  if (status == ORDO_OK)
    status = sample(run, t);
  if (status == ORDO_OK)
    report(run, t);
  if (status == ORDO_OK && t->stopped)
    say_stopped(run, t);
  return status;
}

static ordo_status train_body(ordo_run *run, void *state)
{
  training *t = state;
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  ordo_embed_options options;
  ordo_run_embed_options(run, &options);
  options.metric = ordo_metrics_plugin;
  options.metric_ctx = &t->metrics;
  ordo_status status = open_outputs(run, t);
  if (status == ORDO_OK)
    status = open_details(run, t, &options);
  if (status == ORDO_OK && ordo_config_bool(run->config, ORDO_KEY_log_peak))
    t->metrics.peak = blas_core_peak(0.2);
  if (status == ORDO_OK)
    status = ordo_embed_create(&options, &t->embed);
  if (status == ORDO_OK) {
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    announce(run, t);
    status = run_training(run, t);
  }
  if (status == ORDO_OK) {
    ordo_embed_destroy(t->embed); /* after an error the records must stay, and the program ends */
    ordo_comm_provider_destroy(t->tap);
    status = close_details(run, t);
  }
  t->embed = NULL;
  return status;
}

int main(int argc, char **argv)
{
  training t = {0};
  const ordo_verb verb = {'T', "ordo train", "trains a Llama model", train_prepare, train_outputs, train_body};
  int code = ordo_run_main(&verb, argc, argv, &t);
  ordo_metrics_close(&t.metrics);
  if (t.validation_file)
    fclose(t.validation_file);
  t.validation.owns_tokens &= t.validation.tokens != t.data.tokens;
  ordo_data_clear(&t.validation);
  ordo_data_clear(&t.data);
  return code;
}
