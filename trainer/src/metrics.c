/* metrics.c - see metrics.h. */
#include "metrics.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#define DECAY 0.95 /* of the average rate; the first step, which pays for warm-up, is left out */

/* Open MPI gives each rank a terminal of its own even when mpirun writes to a file, so the launcher says what it writes to. */
static int on_a_terminal(void)
{
  const char *launcher = g_getenv("ORDO_STDOUT_TTY");
  if (g_strcmp0(g_getenv("TERM"), "dumb") == 0)
    return 0;
  if (launcher)
    return strcmp(launcher, "1") == 0;
  return !g_getenv("OMPI_COMM_WORLD_SIZE") && isatty(STDOUT_FILENO);
}

ordo_status ordo_metrics_open(ordo_metrics *metrics, const char *path, const char *progress, ordo_problems *problems)
{
  metrics->plugin = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
  metrics->bar = strcmp(progress, "bar") == 0 || (strcmp(progress, "auto") == 0 && on_a_terminal());
  metrics->quiet = strcmp(progress, "none") == 0;
  if (!path)
    return ORDO_OK;
  metrics->path = g_strdup(path);
  metrics->file = fopen(path, "we");
  return metrics->file ? ORDO_OK : ordo_problems_push_errno(problems, "create", path, errno);
}

void ordo_metrics_close(ordo_metrics *metrics)
{
  if (metrics->file)
    fclose(metrics->file);
  metrics->file = NULL;
  g_clear_pointer(&metrics->path, g_free);
  g_clear_pointer(&metrics->plugin, g_hash_table_unref);
}

void ordo_metrics_plugin(void *ctx, const char *plugin, const char *name, double value)
{
  ordo_metrics *metrics = ctx;
  char *key;
  if (!metrics->plugin || !name)
    return;
  key = g_strdup_printf("%s.%.100s", plugin, name);
  for (char *c = key; *c; c++) /* the name is the plugin's; what it writes must stay a JSON key */
    if (!g_ascii_isalnum(*c) && !strchr("._-/", *c))
      *c = '_';
  g_hash_table_replace(metrics->plugin, key, g_memdup2(&value, sizeof value));
}

double ordo_metrics_shown(double value)
{
  return isnan(value) ? copysign(value, 1.0) : value;
}

void ordo_metrics_number(GString *object, const char *key, double value)
{
  char text[G_ASCII_DTOSTR_BUF_SIZE] = "null";
  if (isfinite(value))
    g_ascii_formatd(text, sizeof text, "%.9g", value);
  g_string_append_printf(object, "%s\"%s\":%s", object->len > 1 ? "," : "", key, text);
}

double ordo_metrics_flops_per_token(const struct llama_config *c, int64_t seq_len)
{
  double attention = (double)(c->heads * c->head_dim);
  double block = (double)c->hidden * (2.0 * attention + 2.0 * (double)(c->kv_heads * c->head_dim) + 3.0 * (double)c->intermediate);
  double matrices = (double)c->layers * block + (double)(c->vocab * c->hidden);
  return 6.0 * matrices + 12.0 * (double)c->layers * attention * (double)seq_len;
}

int64_t ordo_metrics_resident(void)
{
  g_autofree char *text = NULL;
  if (!g_file_get_contents("/proc/self/statm", &text, NULL, NULL))
    return 0;
  const char *second = strchr(text, ' ');
  return second ? g_ascii_strtoll(second, NULL, 10) * sysconf(_SC_PAGESIZE) : 0;
}

static int by_name(gconstpointer a, gconstpointer b)
{
  return strcmp(a, b);
}

static void append_plugin_values(GString *object, GHashTable *plugin)
{
  g_autoptr(GList) keys = g_list_sort(g_hash_table_get_keys(plugin), by_name);
  for (GList *k = keys; k; k = k->next)
    ordo_metrics_number(object, k->data, *(double *)g_hash_table_lookup(plugin, k->data));
}

static ordo_status write_object(ordo_metrics *metrics, const ordo_step_outcome *o, double seconds, double rate, double mfu,
                                ordo_problems *problems)
{
  g_autoptr(GString) object = g_string_new("{");
  g_string_append_printf(object, "\"step\":%" G_GINT64_FORMAT, o->result.step);
  ordo_metrics_number(object, "loss", o->loss);
  ordo_metrics_number(object, "grad_norm", o->result.grad_norm);
  ordo_metrics_number(object, "clip_coef", o->result.clip_coef);
  g_string_append_printf(object, ",\"n_tokens\":%" G_GINT64_FORMAT, (int64_t)o->result.weight);
  ordo_metrics_number(object, "lr", o->lr);
  g_string_append_printf(object, ",\"skipped\":%s", o->result.skipped ? "true" : "false");
  ordo_metrics_number(object, "seconds", seconds);
  ordo_metrics_number(object, "tokens_per_second", rate);
  ordo_metrics_number(object, "mfu", metrics->peak > 0 ? mfu : NAN);
  ordo_metrics_number(object, "comm_seconds", o->result.comm_seconds);
  ordo_metrics_number(object, "wait_seconds", o->result.wait_seconds);
  g_string_append_printf(object, ",\"comm_bytes\":%" G_GINT64_FORMAT, o->comm_bytes);
  g_string_append_printf(object, ",\"rss_bytes\":%" G_GINT64_FORMAT, ordo_metrics_resident());
  append_plugin_values(object, metrics->plugin);
  g_string_append(object, "}\n");
  if (fwrite(object->str, 1, object->len, metrics->file) != object->len || fflush(metrics->file) != 0)
    return ordo_problems_push_errno(problems, "write", metrics->path, errno);
  return ORDO_OK;
}

static void print_line(const ordo_metrics *metrics, const ordo_step_outcome *o, double seconds, double mfu)
{
  g_autoptr(GString) line = g_string_new(metrics->bar ? "\r" : "");
  g_string_append_printf(line, "step %5" G_GINT64_FORMAT "/%" G_GINT64_FORMAT "  loss %.6f  gnorm %.4f  lr %.3e  %.0f tok/s  %.1f ms",
                         o->result.step, metrics->steps, ordo_metrics_shown(o->loss), ordo_metrics_shown(o->result.grad_norm), o->lr,
                         metrics->average_weight > 0 ? metrics->average / metrics->average_weight : metrics->tokens_per_step / seconds,
                         seconds * 1e3);
  if (metrics->peak > 0)
    g_string_append_printf(line, "  mfu %.1f%%", 100.0 * mfu);
  g_string_append_printf(line, "  comm %.1f%%  rss %.0f MiB%s", 100.0 * o->result.comm_seconds / seconds,
                         (double)ordo_metrics_resident() / 1048576.0, o->result.skipped ? "  skipped" : "");
  if (o->result.loss_scale != 1.0)
    g_string_append_printf(line, "  scale %g", o->result.loss_scale);
  g_string_append(line, metrics->bar ? "\x1b[K" : "\n");
  fputs(line->str, stdout);
  fflush(stdout);
}

ordo_status ordo_metrics_step(ordo_metrics *metrics, const ordo_step_outcome *outcome, double seconds, ordo_problems *problems)
{
  double rate = metrics->tokens_per_step / seconds;
  double mfu = metrics->peak > 0 ? rate * metrics->flops_per_token / (metrics->peak * metrics->ranks) : 0.0;
  gboolean due = outcome->result.step % metrics->interval == 0 || outcome->result.step == metrics->steps;
  ordo_status status = ORDO_OK;
  metrics->seconds += seconds;
  metrics->comm_seconds += outcome->result.comm_seconds;
  metrics->tokens += metrics->tokens_per_step;
  metrics->skipped += outcome->result.skipped != 0;
  metrics->last_loss = outcome->loss;
  if (outcome->result.step > 1) {
    metrics->average = DECAY * metrics->average + (1.0 - DECAY) * rate;
    metrics->average_weight = DECAY * metrics->average_weight + (1.0 - DECAY);
  }
  if (metrics->file)
    status = write_object(metrics, outcome, seconds, rate, mfu, problems);
  if (!metrics->quiet && due)
    print_line(metrics, outcome, seconds, mfu);
  g_hash_table_remove_all(metrics->plugin);
  return status;
}

void ordo_metrics_end_line(const ordo_metrics *metrics)
{
  if (metrics->bar && !metrics->quiet)
    fputc('\n', stdout);
}
