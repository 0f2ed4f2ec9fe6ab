/* generate.c - `ordo generate`: continues a text or a list of ids. Standard output has the text and nothing else. */
#include "model_tokenizer.h"
#include "run.h"
#include "sample.h"

#include <string.h>

#define NO_TOKEN (-1)

typedef struct generation {
  ordo_run *run;
  int print_ids;
} generation;

static void emit(void *ctx, int32_t previous, int32_t id)
{
  const generation *g = ctx;
  g_autoptr(GString) text = g_string_new(NULL);
  if (g->run->rank != 0)
    return;
  if (g->print_ids)
    g_string_printf(text, "%d\n", id);
  else
    ordo_tokenizer_decode(g->run->tokenizer, previous, id, text);
  fwrite(text->str, 1, text->len, stdout);
  fflush(stdout);
}

static ordo_status parse_ids(ordo_run *run, const char *text, GArray *ids)
{
  g_auto(GStrv) words = g_strsplit_set(text, ", \t\n", -1);
  for (guint i = 0; words[i]; i++) {
    gint64 id;
    if (!*words[i])
      continue;
    if (!g_ascii_string_to_signed(words[i], 10, 0, run->weights->config.vocab - 1, &id, NULL)) {
      g_autofree char *why = g_strdup_printf("ids are whole numbers from 0 to %" G_GINT64_FORMAT, run->weights->config.vocab - 1);
      return ordo_problems_push(&run->problems, ORDO_E_INVALID, "E-CONFIG-VALUE", "generate.prompt_ids", why,
                                "separate them by commas or spaces", "\"%s\" is no token id", words[i]);
    }
    int32_t value = (int32_t)id;
    g_array_append_val(ids, value);
  }
  return ORDO_OK;
}

static ordo_status prompt(ordo_run *run, GArray **ids)
{
  const char *text = ordo_config_string(run->config, ORDO_KEY_generate_prompt),
             *list = ordo_config_string(run->config, ORDO_KEY_generate_prompt_ids);
  int64_t positions = run->weights->config.max_positions;
  *ids = NULL;
  if (*text && *list)
    return ordo_problems_push(&run->problems, ORDO_E_INVALID, "E-CONFIG-VALUE", "generate.prompt", "generate.prompt_ids is set too",
                              "remove one of the two", "there are two prompts");
  if (!run->tokenizer && (!*list || !ordo_config_bool(run->config, ORDO_KEY_generate_print_ids)))
    return ordo_model_tokenizer_unknown(*list ? "generate.print_ids" : "generate.prompt", run->weights->config.vocab, &run->problems);
  *ids = *list ? g_array_new(FALSE, FALSE, sizeof(int32_t)) : ordo_prompt_ids(run->tokenizer, text);
  ordo_status status = *list ? parse_ids(run, list, *ids) : ORDO_OK;
  if (status == ORDO_OK && ((*ids)->len == 0 || (*ids)->len > positions)) {
    g_autofree char *why = g_strdup_printf("it has %u tokens; the model takes 1 to %" G_GINT64_FORMAT, (*ids)->len, positions);
    status = ordo_problems_push(&run->problems, ORDO_E_INVALID, "E-CONFIG-VALUE", "generate.prompt", why, "use a shorter prompt",
                                "the prompt does not fit the model");
  }
  for (guint i = 0; status == ORDO_OK && i < (*ids)->len; i++)
    if (g_array_index(*ids, int32_t, i) >= run->weights->config.vocab)
      status =
          ordo_problems_push(&run->problems, ORDO_E_INVALID, "E-DATA-ID", "generate.prompt", "the tokenizer does not belong to the model",
                             "set data.tokenizer", "a token of the prompt is outside the model's vocabulary");
  return status;
}

/* Without a temperature the largest logit is taken, whatever else is said. */
static ordo_status check_sampling(ordo_run *run)
{
  const ordo_config *c = run->config;
  ordo_key key = ordo_config_int(c, ORDO_KEY_generate_top_k) > 0 ? ORDO_KEY_generate_top_k : ORDO_KEY_generate_top_p;
  if (ordo_config_real(c, ORDO_KEY_generate_temperature) > 0 || (key == ORDO_KEY_generate_top_p && ordo_config_real(c, key) >= 1))
    return ORDO_OK;
  return ordo_problems_push(&run->problems, ORDO_E_INVALID, "E-CONFIG-VALUE", ordo_config_name(key),
                            "generate.temperature is 0: the largest logit is always taken",
                            "give --temperature too (1 samples from the model as it is)", "%s has no effect", ordo_config_name(key));
}

static ordo_status generate_prepare(ordo_run *run, void *state)
{
  ordo_status status = check_sampling(run);
  if (status == ORDO_OK)
    status = ordo_run_check_positions(run, ORDO_KEY_generate_positions);
  return status == ORDO_OK ? prompt(run, state) : status;
}

static ordo_status generate_body(ordo_run *run, void *state)
{
  GArray *ids = *(GArray **)state;
  const ordo_config *c = run->config;
  generation g = {run, ordo_config_bool(c, ORDO_KEY_generate_print_ids)};
  ordo_sampling sampling = {ordo_config_real(c, ORDO_KEY_generate_temperature), ordo_config_int(c, ORDO_KEY_generate_top_k),
                            ordo_config_real(c, ORDO_KEY_generate_top_p), (uint64_t)ordo_config_int(c, ORDO_KEY_train_seed),
                            ordo_config_bool(c, ORDO_KEY_generate_stop)};
  ordo_embed_options options;
  ordo_embed *embed = NULL;
  ordo_run_embed_options(run, &options);
  options.batch = 0;
  ordo_status status = ordo_embed_create(&options, &embed);
  if (status == ORDO_OK)
    status = ordo_generate(embed, ids, ordo_config_int(c, ORDO_KEY_generate_positions), &sampling,
                           run->tokenizer ? ordo_tokenizer_begin(run->tokenizer) : NO_TOKEN, emit, &g);
  if (status != ORDO_OK)
    return status;
  if (run->rank == 0 && !g.print_ids)
    putchar('\n');
  ordo_embed_destroy(embed);
  return ORDO_OK;
}

int main(int argc, char **argv)
{
  GArray *ids = NULL;
  const ordo_verb verb = {'G', "ordo generate", "continues a text", generate_prepare, NULL, generate_body};
  int code = ordo_run_main(&verb, argc, argv, &ids);
  if (ids)
    g_array_unref(ids);
  return code;
}
