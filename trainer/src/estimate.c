/* estimate.c - `ordo plan --estimate`: memory, shapes and messages of ranks of a job that is not run.
 *
 * The plan is made first and runs no plugin code; only when it is accepted are the plugins loaded and driven, on one core, without MPI and
 * without storage for any tensor. A plugin that does not say dry_run=yes is refused by name. One that says so and touches a tensor all the
 * same meets addresses without memory: the handler below turns that into a refusal with a code instead of a crash without a word.
 */
#include "estimate.h"
#include "run.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

typedef struct estimating {
  GArray *shown; /* int32_t: ranks */
  GPtrArray *ranks;
} estimating;

static char touched[700]; /* a handler can reach nothing else */

static void write_all(const char *text)
{
  size_t left = strlen(text);
  while (left > 0) {
    ssize_t n = write(STDERR_FILENO, text, left);
    if (n <= 0)
      return;
    text += n;
    left -= (size_t)n;
  }
}

static void on_fault(int number, siginfo_t *info, void *context)
{
  (void)context;
  if (info->si_code == SEGV_ACCERR) {
    write_all(touched);
    _exit(ordo_exit_code(ORDO_E_REFUSED));
  }
  signal(number, SIG_DFL); /* any other fault is one: it happens again at once */
}

static void watch_faults(const ordo_run *run)
{
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
  g_snprintf(touched, sizeof touched,
             "error E-DRY-RUN-TOUCHED: a plugin used a tensor that a dry run does not have\n"
             "  where  a plugin of the strategy '%.200s' with precision '%.100s'\n"
             "  why    its manifest says dry_run=yes, which promises that it touches no tensor when ordo_job.dry_run is 1\n"
             "  next   report it to the plugin's author; without that line the plugin is refused by name\n",
             ordo_config_string(run->config, ORDO_KEY_strategy_name), ordo_config_string(run->config, ORDO_KEY_precision_name));
  sigaction(SIGSEGV, &action, NULL);
}

static ordo_status bad_rank(ordo_run *run, const char *word)
{
  g_autofree char *why = g_strdup_printf("a rank is a whole number from 0 to %d", run->ranks - 1);
  return ordo_problems_push(&run->problems, ORDO_E_INVALID, "E-ESTIMATE-RANK", "--ranks-shown", why,
                            "leave the option out to see the first and the last", "there is no rank '%s' of %d", word, run->ranks);
}

static ordo_status read_shown(ordo_run *run, estimating *e)
{
  const char *text = ordo_config_string(run->config, ORDO_KEY_estimate_shown);
  g_autofree char *both = run->ranks > 1 ? g_strdup_printf("0,%d", run->ranks - 1) : g_strdup("0");
  g_auto(GStrv) words = g_strsplit(*text ? text : both, ",", -1);
  for (char **word = words; *word; word++) {
    gint64 rank = 0;
    if (!g_ascii_string_to_signed(g_strstrip(*word), 10, 0, run->ranks - 1, &rank, NULL))
      return bad_rank(run, *word);
    int32_t value = (int32_t)rank;
    g_array_append_val(e->shown, value);
  }
  return ORDO_OK;
}

static ordo_status estimate_prepare(ordo_run *run, void *state)
{
  int64_t positions = run->weights->config.max_positions, seq_len = ordo_config_int(run->config, ORDO_KEY_train_seq_len);
  g_autofree char *why = g_strdup_printf("the model has %" G_GINT64_FORMAT " positions", positions);
  if (seq_len > positions)
    return ordo_problems_push(&run->problems, ORDO_E_INVALID, "E-CONFIG-VALUE", "train.seq_len", why,
                              "use a smaller train.seq_len or another model", "train.seq_len = %" G_GINT64_FORMAT " is too long", seq_len);
  return read_shown(run, state);
}

static void free_rank(gpointer data)
{
  ordo_estimate_clear(data);
  g_free(data);
}

static int64_t count_parameters(const struct llama_config *c)
{
  int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
  int64_t layer = c->hidden * (2 * q + 2 * kv) + 3 * c->hidden * c->intermediate + 2 * c->hidden;
  return c->vocab * c->hidden * (c->tied ? 1 : 2) + c->layers * layer + c->hidden;
}

static ordo_status estimate_body(ordo_run *run, void *state)
{
  estimating *e = state;
  const ordo_config *c = run->config;
  const ordo_estimate_job job = {.plan = run->plan,
                                 .model = &run->weights->config,
                                 .origin = run->weights->origin,
                                 .parameters = count_parameters(&run->weights->config),
                                 .batch = ordo_config_int(c, ORDO_KEY_train_batch),
                                 .seq_len = ordo_config_int(c, ORDO_KEY_train_seq_len),
                                 .steps = ordo_config_int(c, ORDO_KEY_estimate_steps),
                                 .ranks = run->ranks};
  ordo_embed_options options;
  ordo_status status = ORDO_OK;
  ordo_run_embed_options(run, &options);
  watch_faults(run);
  for (guint i = 0; status == ORDO_OK && i < e->shown->len; i++) {
    ordo_estimate_rank *rank = g_new0(ordo_estimate_rank, 1);
    g_ptr_array_add(e->ranks, rank);
    status = ordo_estimate_run(&options, g_array_index(e->shown, int32_t, i), run->ranks, job.steps, rank);
  }
  if (status != ORDO_OK)
    return status;
  if (ordo_config_bool(c, ORDO_KEY_estimate_json))
    ordo_estimate_print_json(&job, e->ranks);
  else
    ordo_estimate_print(&job, e->ranks);
  return ORDO_OK;
}

int main(int argc, char **argv)
{
  estimating e = {g_array_new(FALSE, FALSE, sizeof(int32_t)), g_ptr_array_new_with_free_func(free_rank)};
  const ordo_verb verb = {'P',
                          "ordo plan --estimate",
                          "memory, shapes and messages of ranks of a training that is not run.\nThe plan is made first, without plugin "
                          "code. When it is accepted "
                          "the plugins ARE loaded and run, without storage for any tensor and without MPI",
                          estimate_prepare,
                          NULL,
                          estimate_body};
  int code = ordo_run_main(&verb, argc, argv, &e);
  g_array_unref(e.shown);
  g_ptr_array_unref(e.ranks);
  return code;
}
