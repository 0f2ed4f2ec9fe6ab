/* run.c - see run.h. */
#include "run.h"

#include "bf16_gemm.h"
#include "json_text.h"
#include "kernels_memory.h"
#include "model_tokenizer.h"
#include "watchdog.h"

#include <limits.h>
#include <mpi.h>
#include <ordo/mpi.h>
#include <stdlib.h>
#include <string.h>

/* Microseconds before a failing rank speaks: the first, each next one more, and one that knows only of another's end. */
#define FIRST_SPEAKER_DELAY 100000
#define NEXT_SPEAKER_DELAY 400000
#define MOST_SPEAKERS 16
#define WITNESS_DELAY 3000000
#define LAST_SPEAKER_DELAY 5000000 /* for a rank that has nothing to add; rank 0's abort ends it before */

void ordo_run_say(const ordo_run *run, const char *format, ...)
{
  va_list args;
  if (run->rank != 0 || strcmp(ordo_config_string(run->config, ORDO_KEY_log_progress), "none") == 0)
    return;
  va_start(args, format);
  vprintf(format, args);
  va_end(args);
  fflush(stdout);
}

static void log_line(void *ctx, int32_t severity, const char *text)
{
  const ordo_run *run = ctx;
  if (severity >= ORDO_LOG_WARNING)
    fprintf(stderr, "%s (rank %d): %s\n", severity >= ORDO_LOG_ERROR ? "error" : "warning", run->rank, text);
}

/* 1 if a launcher started this process as one of several ranks. */
static int started_by_mpi(int *rank)
{
  static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", NULL};
  static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", NULL};
  *rank = 0;
  for (int i = 0; ranks[i]; i++) {
    const char *size = g_getenv(sizes[i]), *own = g_getenv(ranks[i]);
    if (!size || !own)
      continue;
    *rank = atoi(own);
    return 1;
  }
  return 0;
}

/* Ranks wait for each other here without a deadline of their own. */
static void guard(const ordo_run *run, const char *doing)
{
  if (run->under_mpi)
    watchdog_begin(ordo_config_real(run->config, ORDO_KEY_train_deadline), doing, run->rank, ordo_exit_code(ORDO_E_TIMEOUT));
}

/* Verbs that describe a training: a model of the configuration's sizes is as good as one from a file. */
static int trains(const ordo_run *run)
{
  return run->verb == 'T' || run->verb == 'P';
}

static gboolean has_model_sizes(const ordo_config *config)
{
  for (ordo_key key = ORDO_KEY_model_layers; key <= ORDO_KEY_model_initializer_range; key++)
    if (ordo_config_is_set(config, key))
      return TRUE;
  return FALSE;
}

static ordo_status check_estimate(ordo_run *run)
{
  ordo_problems *p = &run->problems;
  ordo_status status = ORDO_OK;
  if (!*ordo_config_string(run->config, ORDO_KEY_model_path) && !has_model_sizes(run->config))
    status = ordo_problems_push(
        p, ORDO_E_INVALID, "E-ESTIMATE-MODEL", "ordo plan --estimate", "neither model.path nor a size of [model] is set",
        "give --model DIRECTORY|config.json, a run's .ini file, or --model.layers and the other sizes", "there is no model to estimate");
  if (ordo_config_int(run->config, ORDO_KEY_train_ranks) == 0)
    status =
        ordo_problems_push(p, ORDO_E_INVALID, "E-ESTIMATE-WORLD", "ordo plan --estimate",
                           "train.ranks is 0: as started, and nothing is started here", "give --world N", "the number of ranks is missing");
  return status;
}

/* A word that nobody knows would leave the choice as it was, and a measurement would be of something else. */
static ordo_status check_bf16_gemm(ordo_run *run)
{
  if (bf16_gemm_wish(g_getenv(BF16_GEMM_VARIABLE)) >= 0)
    return ORDO_OK;
  return ordo_problems_push(&run->problems, ORDO_E_INVALID, "E-CONFIG-VALUE", "environment variable " BF16_GEMM_VARIABLE,
                            "it says where products of bf16 are computed: auto, on or off", "set it to one of them, or unset it",
                            BF16_GEMM_VARIABLE "=%s is not understood", g_getenv(BF16_GEMM_VARIABLE));
}

static ordo_status check_configuration(ordo_run *run)
{
  const ordo_config *c = run->config;
  ordo_problems *p = &run->problems;
  ordo_status status = check_bf16_gemm(run);
  gboolean given = *ordo_config_string(c, ORDO_KEY_model_path) != '\0';
  for (ordo_key key = ORDO_KEY_model_layers; trains(run) && given && key <= ORDO_KEY_model_initializer_range; key++)
    if (ordo_config_is_set(c, key))
      status =
          ordo_problems_push(p, ORDO_E_INVALID, "E-CONFIG-VALUE", ordo_config_name(key), "model.path is set: the sizes come from the model",
                             "remove one of the two", "%s has no effect on a loaded model", ordo_config_name(key));
  if (run->verb == 'P')
    status = check_estimate(run) != ORDO_OK ? ORDO_E_INVALID : status;
  if (!trains(run) && !given)
    status = ordo_problems_push(p, ORDO_E_INVALID, "E-CONFIG-VALUE", "model.path", "there is no model",
                                "give --model DIRECTORY or FILE.bin", "model.path is missing");
  if (run->verb == 'T' && !*ordo_config_string(c, ORDO_KEY_data_train))
    status = ordo_problems_push(p, ORDO_E_INVALID, "E-CONFIG-VALUE", "data.train", "there is no data", "give --data FILE",
                                "data.train is missing");
  if (trains(run) && strcmp(ordo_config_string(c, ORDO_KEY_optim_name), "sgd") == 0 && ordo_config_is_set(c, ORDO_KEY_optim_weight_decay) &&
      ordo_config_real(c, ORDO_KEY_optim_weight_decay) > 0)
    status = ordo_problems_push(p, ORDO_E_INVALID, "E-CONFIG-VALUE", "optim.weight_decay", "sgd here has no weight decay",
                                "set it to 0 or use adamw", "optim.weight_decay has no effect on sgd");
  return status;
}

static ordo_status start_communication(ordo_run *run)
{
  int64_t wanted = ordo_config_int(run->config, ORDO_KEY_train_ranks);
  if (run->verb == 'P') {
    run->ranks = (int)wanted;
    return ORDO_OK;
  }
  ordo_mpi_options options = {.struct_size = sizeof options, .deadline_seconds = ordo_config_real(run->config, ORDO_KEY_train_deadline)};
  run->under_mpi = run->under_mpi || wanted > 1;
  guard(run, "the start of communication");
  ordo_status status = run->under_mpi ? ordo_comm_mpi_create(run->context, MPI_COMM_NULL, &options, &run->comm)
                                      : ordo_comm_single_create(run->context, &run->comm);
  watchdog_end();
  if (status != ORDO_OK)
    return status;
  run->rank = run->comm->rank;
  run->ranks = run->comm->size;
  if (wanted > 0 && wanted != run->ranks)
    return ordo_problems_push(&run->problems, ORDO_E_INVALID, "E-CONFIG-RANKS", "train.ranks",
                              "the program joins the ranks that a launcher starts", "use `ordo train --ranks N`, or mpirun -n N",
                              "%d rank(s) were started, train.ranks is %" G_GINT64_FORMAT, run->ranks, wanted);
  return ORDO_OK;
}

static ordo_status make_plan(ordo_run *run)
{
  const char *strategy = ordo_config_string(run->config, ORDO_KEY_strategy_name);
  ordo_plan_request request = {.struct_size = sizeof request, .ranks = run->ranks};
  request.strategy = *strategy ? strategy : NULL;
  request.precision = ordo_config_string(run->config, ORDO_KEY_precision_name);
  request.default_strategy = run->ranks > 1 && strcmp(strategy, "none") != 0 ? "ddp" : NULL;
  request.flags = trains(run) ? 0u : (uint32_t)ORDO_PLAN_EVAL;
  ordo_status status = ordo_plan_create(run->context, &request, &run->plan);
  if (status == ORDO_E_CONFLICT && run->plan && run->rank == 0) {
    char *text = NULL;
    if (ordo_plan_why_not(run->plan, ORDO_RENDER_TEXT, &text) == ORDO_OK && text)
      fputs(text, stderr);
    ordo_string_free(text);
  }
  return status;
}

char *ordo_run_precision(const ordo_run *run)
{
  char *text = ordo_plan_render(run->plan, ORDO_RENDER_JSON, 0);
  g_autofree char *why = NULL;
  g_autoptr(JsonNode) root = text ? ordo_json_object(text, strlen(text), &why) : NULL;
  JsonArray *plugins = root ? json_object_get_array_member(json_node_get_object(root), "plugins") : NULL;
  char *found = NULL;
  for (guint i = 0; plugins && i < json_array_get_length(plugins) && !found; i++) {
    JsonObject *plugin = json_array_get_object_element(plugins, i);
    if (g_strcmp0(json_object_get_string_member(plugin, "kind"), "precision") == 0)
      found = g_strdup(json_object_get_string_member(plugin, "resolved"));
  }
  ordo_string_free(text);
  return found ? found : g_strdup("none");
}

/* The tokenizer: the named one, else that of the model, else none (ids are all that such a model can be given); bytes for fresh weights. */
static ordo_status open_tokenizer(ordo_run *run, const char *model)
{
  const char *name = ordo_config_string(run->config, ORDO_KEY_data_tokenizer);
  int64_t vocab = *model ? run->weights->config.vocab : 0;
  g_autofree char *own = *model && !*name ? ordo_model_tokenizer_find(model, vocab) : NULL;
  if (*model && !*name && !own)
    return ORDO_OK;
  if (vocab && vocab != ORDO_TOKENIZER_BYTES_VOCAB && strcmp(name, "bytes") == 0 && run->rank == 0 &&
      !ordo_model_tokenizer_is_stated(model))
    fprintf(stderr, "warning: the vocabulary of %s has %" G_GINT64_FORMAT " entries, bytes have %d: was it trained on bytes?\n", model,
            vocab, ORDO_TOKENIZER_BYTES_VOCAB);
  ordo_status status = ordo_tokenizer_open(own ? own : *name ? name : "bytes", vocab, &run->problems, &run->tokenizer);
  return status == ORDO_OK && own ? ordo_config_set(run->config, ORDO_KEY_data_tokenizer, own, "the model", &run->problems) : status;
}

static void fresh_config(const ordo_run *run, struct llama_config *config)
{
  const ordo_config *c = run->config;
  config->layers = ordo_config_int(c, ORDO_KEY_model_layers);
  config->hidden = ordo_config_int(c, ORDO_KEY_model_hidden_size);
  config->intermediate = ordo_config_int(c, ORDO_KEY_model_intermediate_size);
  config->heads = ordo_config_int(c, ORDO_KEY_model_heads);
  config->kv_heads = ordo_config_int(c, ORDO_KEY_model_kv_heads) ? ordo_config_int(c, ORDO_KEY_model_kv_heads) : config->heads;
  config->head_dim = config->hidden / config->heads;
  config->vocab =
      ordo_config_int(c, ORDO_KEY_model_vocab_size) ? ordo_config_int(c, ORDO_KEY_model_vocab_size) : ordo_tokenizer_vocab(run->tokenizer);
  config->max_positions = ordo_config_int(c, ORDO_KEY_model_max_positions) ? ordo_config_int(c, ORDO_KEY_model_max_positions)
                                                                           : ordo_config_int(c, ORDO_KEY_train_seq_len);
  config->rms_eps = ordo_config_real(c, ORDO_KEY_model_rms_norm_eps);
  config->rope_theta = ordo_config_real(c, ORDO_KEY_model_rope_theta);
  config->tied = ordo_config_bool(c, ORDO_KEY_model_tie_embeddings);
}

static ordo_status open_model(ordo_run *run)
{
  const char *path = ordo_config_string(run->config, ORDO_KEY_model_path);
  ordo_status status = !*path             ? ORDO_OK
                       : run->verb == 'P' ? ordo_weights_describe(path, &run->problems, &run->weights)
                                          : ordo_weights_open(path, &run->problems, &run->weights);
  if (status != ORDO_OK)
    return status;
  if (run->verb != 'P' || !*path)
    status = open_tokenizer(run, path);
  if (status != ORDO_OK || *path)
    return status;
  struct llama_config config;
  char reason[200] = "";
  fresh_config(run, &config);
  if (config.hidden % config.heads != 0)
    g_snprintf(reason, sizeof reason, "hidden_size (%" G_GINT64_FORMAT ") is not a multiple of heads (%" G_GINT64_FORMAT ")", config.hidden,
               config.heads);
  if (*reason || llama_config_check(&config, reason, sizeof reason))
    return ordo_problems_push(&run->problems, ORDO_E_INVALID, "E-CONFIG-VALUE", "[model]", reason, "change the sizes in [model]",
                              "no model can be made of these sizes");
  run->weights = ordo_weights_fresh(&config, (uint64_t)ordo_config_int(run->config, ORDO_KEY_train_seed),
                                    ordo_config_real(run->config, ORDO_KEY_model_initializer_range));
  return ORDO_OK;
}

ordo_status ordo_run_open_data(ordo_run *run, const char *paths, const char *targets, ordo_data *data)
{
  int64_t T = ordo_config_int(run->config, ORDO_KEY_train_seq_len), vocab = run->weights->config.vocab;
  ordo_tokens *tokens = NULL;
  ordo_status status = ORDO_OK;
  if (T > run->weights->config.max_positions) {
    g_autofree char *why = g_strdup_printf("the model has %" G_GINT64_FORMAT " positions", run->weights->config.max_positions);
    return ordo_problems_push(&run->problems, ORDO_E_INVALID, "E-CONFIG-VALUE", "train.seq_len", why,
                              "use a smaller train.seq_len or another model", "train.seq_len = %" G_GINT64_FORMAT " is too long", T);
  }
  status =
      ordo_tokens_open(paths, ordo_config_string(run->config, ORDO_KEY_data_format), run->tokenizer, TRUE, vocab, &run->problems, &tokens);
  if (status != ORDO_OK)
    return status;
  status = ordo_data_view(data, tokens, 0, ordo_tokens_count(tokens), T, paths, &run->problems);
  data->owns_tokens = 1;
  if (status == ORDO_OK && *targets)
    status = ordo_data_set_targets(data, targets, vocab, &run->problems);
  data->seed = (uint64_t)ordo_config_int(run->config, ORDO_KEY_train_seed);
  return status;
}

ordo_status ordo_run_open_validation(ordo_run *run, ordo_data *data, ordo_data *validation, int *has)
{
  double fraction = ordo_config_real(run->config, ORDO_KEY_data_validation_fraction);
  const char *paths = ordo_config_string(run->config, ORDO_KEY_data_validation);
  int64_t kept = data->n_tokens - (int64_t)(fraction * (double)data->n_tokens);
  ordo_data whole = *data;
  *has = *paths || fraction > 0;
  if (*paths && fraction > 0)
    return ordo_problems_push(&run->problems, ORDO_E_INVALID, "E-CONFIG-VALUE", "data.validation_fraction", "data.validation is set too",
                              "remove one of the two", "there are two sources of validation data");
  if (*paths)
    return ordo_run_open_data(run, paths, "", validation);
  if (fraction <= 0)
    return ORDO_OK;
  if (data->targets)
    return ordo_problems_push(&run->problems, ORDO_E_INVALID, "E-CONFIG-VALUE", "data.validation_fraction",
                              "data.targets covers all sequences of data.train", "give data.validation a file of its own",
                              "explicit targets cannot be split");
  ordo_status status = ordo_data_view(validation, whole.tokens, kept, whole.n_tokens - kept, whole.seq_len,
                                      "the validation part of data.train", &run->problems);
  if (status == ORDO_OK)
    status =
        ordo_data_view(data, whole.tokens, 0, kept, whole.seq_len, ordo_config_string(run->config, ORDO_KEY_data_train), &run->problems);
  data->owns_tokens = 1;
  data->seed = whole.seed;
  return status;
}

ordo_status ordo_run_check_positions(ordo_run *run, ordo_key key)
{
  int64_t wanted = ordo_config_int(run->config, key), most = run->weights->config.max_positions;
  if (!ordo_config_is_set(run->config, key) || wanted <= most)
    return ORDO_OK;
  g_autofree char *why = g_strdup_printf("the model has %" G_GINT64_FORMAT " positions", most);
  return ordo_problems_push(&run->problems, ORDO_E_INVALID, "E-CONFIG-VALUE", ordo_config_name(key), why,
                            "ask for as many as it has, or use another model", "%s = %" G_GINT64_FORMAT " is too many",
                            ordo_config_name(key), wanted);
}

void ordo_run_embed_options(const ordo_run *run, ordo_embed_options *options)
{
  const ordo_config *c = run->config;
  static const char *const kinds[] = {"constant", "linear", "cosine", NULL};
  memset(options, 0, sizeof *options);
  options->context = run->context;
  options->plan = run->plan;
  options->comm = run->comm;
  options->weights = run->weights;
  options->seed = (uint64_t)ordo_config_int(c, ORDO_KEY_train_seed);
  options->train = trains(run);
  options->seq_len = ordo_config_int(c, ORDO_KEY_train_seq_len);
  options->batch = ordo_config_int(c, ORDO_KEY_train_batch);
  if (!options->train)
    return;
  options->optimizer = (ordo_leaf_optimizer_options){strcmp(ordo_config_string(c, ORDO_KEY_optim_name), "sgd") == 0,
                                                     ordo_config_real(c, ORDO_KEY_optim_lr),
                                                     ordo_config_real(c, ORDO_KEY_optim_beta1),
                                                     ordo_config_real(c, ORDO_KEY_optim_beta2),
                                                     ordo_config_real(c, ORDO_KEY_optim_eps),
                                                     ordo_config_real(c, ORDO_KEY_optim_weight_decay),
                                                     ordo_config_real(c, ORDO_KEY_optim_momentum)};
  for (int k = 0; kinds[k]; k++)
    if (strcmp(kinds[k], ordo_config_string(c, ORDO_KEY_optim_schedule)) == 0)
      options->schedule.kind = k; /* SCHEDULE_CONSTANT, _LINEAR, _COSINE */
  options->schedule.peak = ordo_config_real(c, ORDO_KEY_optim_lr);
  options->schedule.floor_fraction = ordo_config_real(c, ORDO_KEY_optim_floor_fraction);
  options->schedule.warmup_steps = ordo_config_int(c, ORDO_KEY_optim_warmup_steps);
  options->schedule.total_steps = ordo_config_int(c, ORDO_KEY_optim_decay_steps) ? ordo_config_int(c, ORDO_KEY_optim_decay_steps)
                                                                                 : ordo_config_int(c, ORDO_KEY_train_steps);
  options->max_grad_norm = ordo_config_real(c, ORDO_KEY_optim_clip);
  options->ordered = (uint32_t)ordo_config_bool(c, ORDO_KEY_train_ordered);
  options->drift_interval = (uint32_t)ordo_config_int(c, ORDO_KEY_train_drift_interval);
  options->micro_batch = ordo_config_int(c, ORDO_KEY_train_micro_batch);
  options->checkpointing = strcmp(ordo_config_string(c, ORDO_KEY_train_activation_checkpointing), "block") == 0;
}

static void print_everything(const ordo_run *run, ordo_status status)
{
  fflush(stdout);
  ordo_problems_print(&run->problems, stderr);
  if (run->context)
    ordo_context_print_errors(run->context, stderr);
  if (status == ORDO_E_CONFLICT && run->plan)
    return; /* make_plan has shown why there is no order */
  if (ordo_problems_count(&run->problems) == 0 && (!run->context || ordo_n_errors(run->context) == 0))
    fprintf(stderr, "error E-INTERNAL: the run failed without a record (%s)\n", ordo_status_name(status));
}

/* Before the session: all ranks fail together, and the lowest failing one speaks. Returns the common exit code. */
static int agree(const ordo_run *run, ordo_status status)
{
  int code = ordo_exit_code(status), worst = code, speaker = run->rank, initialised = 0;
  int first = status != ORDO_OK ? run->rank : INT_MAX;
  MPI_Initialized(&initialised);
  if (initialised && run->ranks > 1) {
    guard(run, "the agreement of all ranks to begin");
    MPI_Allreduce(&code, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(&first, &speaker, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    watchdog_end();
  }
  if (status != ORDO_OK && speaker == run->rank)
    print_everything(run, status);
  return worst;
}

void ordo_run_report(ordo_run *run, ordo_status status)
{
  if (run->rank == 0)
    print_everything(run, status);
  run->reported = 1;
}

/* This rank's error is that another one has ended. */
static gboolean is_witness(const ordo_run *run, ordo_status status)
{
  gboolean witness = status == ORDO_E_PEER_LOST || (run->stop_signal && *run->stop_signal);
  for (size_t i = 0; run->context && i < ordo_n_errors(run->context); i++)
    witness |= strcmp(ordo_error_at(run->context, i)->code, "E-COMM-GAVE-UP") == 0;
  return witness && run->ranks > 1;
}

/* Inside the session: this rank's failure ends all. The ranks speak in turn, so that an error which several have is shown once: the first
 * to speak ends the others. A rank that
 * lost a peer, or is itself being ended, is only a witness: the launcher knows which rank was lost and why, ends the witnesses within a
 * second or two, and says it. A witness that spoke and aborted at once would hide that, and a second one would even blame the first. */
static void abort_all(const ordo_run *run, ordo_status status)
{
  int turn = MIN(run->rank, MOST_SPEAKERS);
  if (run->verb == 'P') {
    print_everything(run, status);
    return;
  }
  g_usleep(turn > 0 && run->reported ? LAST_SPEAKER_DELAY : FIRST_SPEAKER_DELAY + (gulong)turn * NEXT_SPEAKER_DELAY);
  if (is_witness(run, status))
    g_usleep(WITNESS_DELAY);
  if (!run->reported)
    print_everything(run, status);
  if (run->ranks > 1)
    MPI_Abort(MPI_COMM_WORLD, ordo_exit_code(status));
}

/* Weights, gradients and optimizer state in huge pages where the system has them: fewer address look-ups in every pass over them. */
static void free_job_memory(void *ctx, void *pointer, size_t bytes, uint32_t tag)
{
  (void)bytes, (void)tag;
  kernels_free(ctx, pointer);
}

static ordo_status prepare(ordo_run *run, const ordo_verb *verb, void *state)
{
  ordo_context_options options = {.struct_size = sizeof options,
                                  .program_name = verb->program,
                                  .program_version = ORDO_VERSION,
                                  .log = log_line,
                                  .log_ctx = run,
                                  .alloc = kernels_alloc,
                                  .free = free_job_memory};
  const char *path = ordo_config_string(run->config, ORDO_KEY_strategy_plugin_path);
  options.plugin_path = *path ? path : NULL;
  options.flags = ordo_config_bool(run->config, ORDO_KEY_strategy_allow_insecure) ? (uint32_t)ORDO_CONTEXT_ALLOW_INSECURE : 0u;
  ordo_status status = ordo_context_create(&options, &run->context);
  if (status == ORDO_OK)
    status = start_communication(run);
  if (status == ORDO_OK)
    status = open_model(run);
  if (status == ORDO_OK && verb->prepare)
    status = verb->prepare(run, state);
  return status == ORDO_OK ? make_plan(run) : status;
}

static void finish(ordo_run *run)
{
  ordo_plan_destroy(run->plan);
  guard(run, "the end of communication");
  ordo_comm_provider_destroy(run->comm);
  watchdog_end();
  ordo_context_destroy(run->context);
  ordo_weights_free(run->weights);
  ordo_tokenizer_free(run->tokenizer);
  ordo_config_free(run->config);
  ordo_problems_clear(&run->problems);
}

/* `--blas-info`: the kernels a run would get, for `ordo doctor`. */
static int blas_info(char **argv)
{
  struct blas_core_report report = {0};
  char reason[300] = "";
  if (blas_core_start(argv, &report, reason, sizeof reason) != 0) {
    fprintf(stderr, "%s\n", reason);
    return ordo_exit_code(ORDO_E_UNAVAILABLE);
  }
  printf("OpenBLAS core %s%s, self-test at %.2g of its tolerance, %.0f GFLOP/s on one core\n", report.name,
         report.fallback ? " (a FALLBACK: this processor can do better; set OPENBLAS_CORETYPE)" : "", report.self_test,
         blas_core_peak(0.2) / 1e9);
  return 0;
}

int ordo_run_main(const ordo_verb *verb, int argc, char **argv, void *state)
{
  ordo_run run = {.verb = verb->letter, .ranks = 1};
  char reason[300] = "";
  int help = 0, code;
  ordo_status status;
  if (argc == 2 && !strcmp(argv[1], "--blas-info"))
    return blas_info(argv);
  ordo_problems_init(&run.problems);
  run.config = ordo_config_new(verb->letter);
  run.under_mpi = verb->letter != 'P' && started_by_mpi(&run.rank);
  status = ordo_config_read_arguments(run.config, argc, argv, &help, &run.problems);
  if (status == ORDO_OK && !help)
    status = check_configuration(&run);
  if (help) {
    g_autofree char *text = ordo_config_help(run.config, verb->program, verb->summary);
    fputs(text, stdout);
  }
  if (help || status != ORDO_OK) {
    if (run.rank == 0)
      ordo_problems_print(&run.problems, stderr);
    finish(&run);
    return ordo_exit_code(status);
  }
  if (verb->letter != 'P' && blas_core_start(argv, &run.blas, reason, sizeof reason) != 0)
    status = ordo_problems_push(&run.problems, ORDO_E_UNAVAILABLE, "E-BLAS-CORE", "OpenBLAS", reason,
                                "set OPENBLAS_CORETYPE to a core type that works; ordo doctor", "no usable matrix kernels");
  if (status == ORDO_OK)
    status = prepare(&run, verb, state);
  code = agree(&run, status);
  if (code == 0 && verb->outputs)
    code = agree(&run, run.rank == 0 ? verb->outputs(&run, state) : ORDO_OK);
  if (code == 0) {
    status = verb->body(&run, state);
    if (status != ORDO_OK)
      abort_all(&run, status);
    code = ordo_exit_code(status);
    if (status == ORDO_OK && run.stopped) {
      fflush(stdout);
      ordo_problems_print(&run.problems, stderr); /* rank 0 has the only record */
      code = ordo_exit_code(ORDO_E_STATE);
    }
  }
  finish(&run);
  return code;
}
