/* eval.c - `ordo eval`: mean loss and perplexity of a model over all whole sequences of a file, without an optimizer.
 *
 * Answers go to standard output as "name value" lines, so that a program can read them.
 */
#include "run.h"

#include <math.h>
#include <string.h>

static ordo_status eval_prepare(ordo_run *run, void *state)
{
  const char *validation = ordo_config_string(run->config, ORDO_KEY_data_validation), *train = ordo_config_string(run->config, ORDO_KEY_data_train);
  const char *targets = ordo_config_string(run->config, ORDO_KEY_data_targets);
  if (!*validation && !*train)
    return ordo_problems_push(&run->problems, ORDO_E_INVALID, "E-CONFIG-VALUE", "data.validation", "there is no data", "give --data.validation FILE", "data.validation is missing");
  return ordo_run_open_data(run, *validation ? validation : train, targets, state);
}

static ordo_status eval_body(ordo_run *run, void *state)
{
  ordo_data *data = state;
  ordo_embed_options options;
  ordo_embed *embed = NULL;
  ordo_loss_sum sum;
  int64_t limit = ordo_config_int(run->config, ORDO_KEY_train_validate_sequences);
  int64_t n = limit > 0 ? MIN(limit, data->n_sequences) : data->n_sequences;
  ordo_run_embed_options(run, &options);
  ordo_status status = ordo_embed_create(&options, &embed);
  if (status == ORDO_OK)
    status = ordo_embed_evaluate(embed, data, n, ordo_tokens_are_text(data->tokens) ? run->tokenizer : NULL, &sum);
  if (status != ORDO_OK)
    return status;
  if (run->rank == 0) {
    printf("sequences %" G_GINT64_FORMAT "\ntokens %.0f\n", n, sum.count);
    printf("loss %.9g\nperplexity %.9g\n", sum.sum / sum.count, exp(sum.sum / sum.count));
    if (sum.bytes > 0)
      printf("nats_per_byte %.9g\n", sum.sum / sum.bytes);
    if (data->n_tokens - 1 > data->n_sequences * data->seq_len)
      printf("tokens_left_over %" G_GINT64_FORMAT "\n", data->n_tokens - 1 - data->n_sequences * data->seq_len);
  }
  ordo_embed_destroy(embed);
  return ORDO_OK;
}

int main(int argc, char **argv)
{
  ordo_data data = {0};
  const ordo_verb verb = {'E', "ordo eval", "measures a model on text or token files", eval_prepare, eval_body};
  int code = ordo_run_main(&verb, argc, argv, &data);
  ordo_data_clear(&data);
  return code;
}
