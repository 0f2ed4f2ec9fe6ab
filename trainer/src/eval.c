/* eval.c - `ordo eval`: mean loss and perplexity of a model over all whole sequences of a file, without an optimizer.
 *
 * Standard output has an answer for people, and as its last line one JSON object for programs.
 */
#include "metrics.h"
#include "run.h"
#include "safetensors.h"

#include <math.h>
#include <string.h>

typedef struct evaluation {
  ordo_data whole; /* data.train, when a part of it is measured */
  ordo_data data;  /* what is measured */
} evaluation;

/* data.validation, else the part of data.train that a training run kept for validation, else all of data.train. */
static ordo_status eval_prepare(ordo_run *run, void *state)
{
  const char *validation = ordo_config_string(run->config, ORDO_KEY_data_validation),
             *train = ordo_config_string(run->config, ORDO_KEY_data_train),
             *targets = ordo_config_string(run->config, ORDO_KEY_data_targets);
  gboolean part = ordo_config_real(run->config, ORDO_KEY_data_validation_fraction) > 0;
  evaluation *e = state;
  int has = 0;
  if (!*validation && !*train)
    return ordo_problems_push(&run->problems, ORDO_E_INVALID, "E-CONFIG-VALUE", "data.train", "data.train and data.validation are empty",
                              "give --data FILE, or --data.validation FILE", "there is no data to measure the model on");
  if (!part)
    return ordo_run_open_data(run, *validation ? validation : train, *validation && *train ? "" : targets, &e->data);
  ordo_status status = *train ? ordo_run_open_data(run, train, targets, &e->whole) : ORDO_OK;
  return status == ORDO_OK ? ordo_run_open_validation(run, &e->whole, &e->data, &has) : status;
}

/* Logits of one sequence after the other; all ranks compute all of them, rank 0 writes. */
static ordo_status write_logits(ordo_run *run, ordo_embed *embed, const ordo_data *data, int64_t n, ordo_safetensors_writer *writer)
{
  int64_t T = data->seq_len, vocab = run->weights->config.vocab;
  g_autofree int32_t *ids = g_new(int32_t, (gsize)T), *targets = g_new(int32_t, (gsize)T);
  g_autofree float *logits = g_try_new(float, (gsize)(n * T * vocab));
  if (!logits)
    return ordo_fail(run->context, ORDO_E_NOMEM, "E-TRAIN-MEMORY", "out of memory", "eval.dump_logits", "all logits are held at once",
                     "set train.validate_sequences");
  ordo_status status = ordo_session_eval_begin(ordo_embed_session(embed));
  for (int64_t s = 0; s < n && status == ORDO_OK; s++) {
    struct llama_forward_args args = {.ids = ids, .batch = 1, .seq = T, .logits = logits + s * T * vocab};
    ordo_data_sample(data, s, ids, targets);
    status = ordo_embed_llama_status(embed, llama_forward(ordo_embed_llama(embed), &args));
  }
  if (status == ORDO_OK)
    status = ordo_session_eval_end(ordo_embed_session(embed));
  if (status == ORDO_OK && run->rank == 0)
    status = ordo_safetensors_writer_begin(writer, "logits", &run->problems);
  if (status == ORDO_OK && run->rank == 0)
    status = ordo_safetensors_writer_write(writer, logits, &run->problems);
  return status == ORDO_OK && run->rank == 0 ? ordo_safetensors_writer_finish(writer, &run->problems) : status;
}

static ordo_status dump_logits(ordo_run *run, ordo_embed *embed, const ordo_data *data, int64_t n)
{
  const char *path = ordo_config_string(run->config, ORDO_KEY_eval_dump_logits);
  const int64_t shape[3] = {n, data->seq_len, run->weights->config.vocab};
  if (!*path)
    return ORDO_OK;
  g_autoptr(ordo_safetensors_writer) writer = ordo_safetensors_writer_new(path, ORDO_F32);
  ordo_safetensors_writer_declare(writer, "logits", 3, shape);
  return write_logits(run, embed, data, n, writer);
}

static void print_answer(const ordo_run *run, const ordo_data *data, int64_t n, const ordo_loss_sum *sum)
{
  double loss = ordo_metrics_shown(sum->sum / sum->count);
  double fraction = ordo_config_real(run->config, ORDO_KEY_data_validation_fraction);
  g_autoptr(GString) object = g_string_new("{");
  if (fraction > 0)
    printf("measured on the last %g %% of data.train (data.validation_fraction)\n", 100 * fraction);
  printf("loss %.6f nats per token, perplexity %.4f, %.0f tokens in %" G_GINT64_FORMAT " sequences\n", loss, ordo_metrics_shown(exp(loss)),
         sum->count, n);
  if (sum->bytes > 0)
    printf("%.6f nats per byte\n", ordo_metrics_shown(sum->sum / sum->bytes));
  ordo_metrics_number(object, "loss", loss);
  ordo_metrics_number(object, "perplexity", exp(loss));
  ordo_metrics_number(object, "nats_per_byte", sum->bytes > 0 ? sum->sum / sum->bytes : NAN);
  g_string_append_printf(object, ",\"n_tokens\":%.0f,\"sequences\":%" G_GINT64_FORMAT ",\"tokens_left_over\":%" G_GINT64_FORMAT "}\n",
                         sum->count, n, MAX(data->n_tokens - 1 - data->n_sequences * data->seq_len, 0));
  fputs(object->str, stdout);
}

static ordo_status eval_body(ordo_run *run, void *state)
{
  const ordo_data *data = &((evaluation *)state)->data;
  ordo_embed_options options;
  ordo_embed *embed = NULL;
  ordo_loss_sum sum;
  int64_t limit = ordo_config_int(run->config, ORDO_KEY_train_validate_sequences);
  int64_t n = limit > 0 ? MIN(limit, data->n_sequences) : data->n_sequences;
  ordo_run_embed_options(run, &options);
  ordo_status status = ordo_embed_create(&options, &embed);
  if (status == ORDO_OK)
    status = ordo_embed_evaluate(embed, data, n, ordo_tokens_are_text(data->tokens) ? run->tokenizer : NULL, &sum);
  if (status == ORDO_OK)
    status = dump_logits(run, embed, data, n);
  if (status != ORDO_OK)
    return status;
  if (run->rank == 0)
    print_answer(run, data, n, &sum);
  ordo_embed_destroy(embed);
  return ORDO_OK;
}

int main(int argc, char **argv)
{
  evaluation e = {0};
  const ordo_verb verb = {'E', "ordo eval", "measures a model on text or token files", eval_prepare, NULL, eval_body};
  int code = ordo_run_main(&verb, argc, argv, &e);
  ordo_data_clear(&e.data);
  ordo_data_clear(&e.whole);
  return code;
}
