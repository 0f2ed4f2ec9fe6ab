/* mpi_noise.c - takes mpirun's own messages out of the error stream of the ranks.
 *
 * When a rank ends badly, mpirun writes up to three paragraphs between lines of dashes. They say which rank and which signal or exit
 * code, and bury the error that the rank itself printed. This filter passes everything else through as it comes (a line that is not
 * finished too, so that progress shows), keeps those paragraphs back and reads the facts from them; the launcher then says it in one error.
 * What one rank has said another does not say again: the first to report an error ends the others, but on a busy machine a second one may
 * be as fast. A paragraph that is not known is passed through unchanged. A busy machine may write a paragraph in pieces with pauses between
 * them, so one is given time to close before it is passed on.
 */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RULE_DASHES = 20, MOST_LINES = 40, MOST_PAUSES = 10 };

struct cli_noise {
  int output;
  GString *line;       /* not finished yet, nothing of it written */
  GString *held;       /* a paragraph, from its first line of dashes */
  int held_lines;      /* 0: outside a paragraph */
  gboolean midline;    /* the start of the current line was written */
  gboolean rank_spoke; /* a rank has printed an error of the house */
  gboolean repeated;   /* inside an error that another rank has printed */
  GHashTable *spoken;  /* code of an error -> the rank that printed it */
  gboolean aborted;    /* `rank` is one that called MPI_Abort */
  int pauses;          /* since the last text */
  int unknown;         /* paragraphs that were passed on */
  int rank, signal_number, exit_code;
};

cli_noise *cli_noise_new(int output)
{
  cli_noise *noise = g_new0(cli_noise, 1);
  noise->output = output;
  noise->line = g_string_new(NULL);
  noise->held = g_string_new(NULL);
  noise->spoken = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
  noise->rank = -1;
  noise->exit_code = -1;
  return noise;
}

void cli_noise_free(cli_noise *noise)
{
  if (!noise)
    return;
  g_string_free(noise->line, TRUE);
  g_string_free(noise->held, TRUE);
  g_hash_table_destroy(noise->spoken);
  g_free(noise);
}

static void write_out(cli_noise *noise, GString *text)
{
  const char *bytes = text->str;
  gsize left = text->len;
  while (left > 0) {
    ssize_t n = write(noise->output, bytes, left);
    if (n <= 0)
      break; /* nobody reads standard error any more; the run goes on */
    bytes += n;
    left -= (gsize)n;
  }
  g_string_truncate(text, 0);
}

static gboolean is_rule(const char *line, gsize length)
{
  gsize dashes = strspn(line, "-");
  return dashes >= RULE_DASHES && dashes + 1 >= length;
}

/* "... process rank 1 with PID 4711 on node x exited on signal 9 (Killed)." */
static gboolean read_signal(cli_noise *noise, const char *text)
{
  const char *rank = strstr(text, "process rank ");
  const char *sign = rank ? strstr(rank, "on signal ") : NULL;
  if (!sign)
    return FALSE;
  noise->rank = atoi(rank + strlen("process rank "));
  noise->signal_number = atoi(sign + strlen("on signal "));
  return TRUE;
}

/* "... has exited due to process rank 1 with PID 4711 on node x exiting improperly": it left without a word, with exit code 0. Open MPI 5
 * says the same of a rank `calling "abort"`, which has been reported with its code before. */
static gboolean read_desertion(cli_noise *noise, const char *text)
{
  const char *rank = strstr(text, "has exited due to process rank ");
  if (!rank)
    return FALSE;
  if (strstr(rank, "calling \"abort\""))
    return TRUE;
  noise->rank = atoi(rank + strlen("has exited due to process rank "));
  noise->exit_code = 0;
  return TRUE;
}

/* "Process name: [[123,1],0]" (Open MPI 4) or "[prterun-host-7@1,0]" (5), then "Exit code:    3". */
static gboolean read_exit(cli_noise *noise, const char *text)
{
  const char *name = strstr(text, "Process name:");
  const char *code = strstr(text, "Exit code:");
  if (!name || !code)
    return FALSE;
  const char *end = strchr(name, '\n');
  const char *comma = end ? g_strrstr_len(name, end - name, ",") : NULL;
  if (noise->rank < 0 || noise->aborted) /* an abort is the answer to something: the rank that ended first is the cause */
    noise->rank = comma ? atoi(comma + 1) : -1;
  noise->exit_code = atoi(code + strlen("Exit code:"));
  return TRUE;
}

/* "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD with errorcode 3." (4) or "... Errorcode: 3" (5): the rank has said why.
 */
static gboolean read_abort(cli_noise *noise, const char *text)
{
  const char *rank = strstr(text, "MPI_ABORT was invoked on rank ");
  const char *code = rank ? strstr(rank, "rrorcode") : NULL;
  if (!code)
    return FALSE;
  code += strlen("rrorcode");
  noise->aborted = TRUE;
  noise->rank = atoi(rank + strlen("MPI_ABORT was invoked on rank "));
  noise->exit_code = atoi(code + strspn(code, ": "));
  return TRUE;
}

static gboolean is_aborted(const char *text)
{
  return strstr(text, "the job has been aborted") != NULL && strstr(text, "non-zero exit") != NULL;
}

static gboolean is_known(cli_noise *noise)
{
  g_autofree char *flat = g_strdup(noise->held->str);
  for (char *p = flat; *p; p++)
    if (*p == '\n')
      *p = ' ';
  return read_signal(noise, flat) || read_abort(noise, flat) || read_desertion(noise, flat) || read_exit(noise, noise->held->str) ||
         (strstr(flat, "Primary job") && strstr(flat, "non-zero exit code")) || is_aborted(flat);
}

/* "[host:4711] 1 more process has sent help message ..." and "[host:4711] Set MCA parameter ... to see all help / error messages":
 * they count paragraphs that are kept back. "[host:4711] [[1,0],0] ORTE_ERROR_LOG: ... show_help.c ...": it lost one of them. */
static gboolean is_tally(const char *line)
{
  const char *text = line[0] == '[' ? strstr(line, "] ") : NULL;
  return text && ((strstr(text, "ORTE_ERROR_LOG") && strstr(text, "show_help.c")) ||
                  (strstr(text, " more process") && strstr(text, "sent help message")) ||
                  (strstr(text, "] Set MCA parameter \"") && strstr(text, "to see all help / error messages")));
}

/* An error of the house, with or without colour. */
static gboolean is_error(const char *line)
{
  return g_str_has_prefix(line, "error E-") || g_str_has_prefix(line, "\033[1;31merror\033[0m E-");
}

/* TRUE if the line ends with its rank, and another rank has printed its code. Errors that name no rank are never repeated. */
static gboolean is_said(cli_noise *noise, const char *line)
{
  const char *code = strstr(line, "E-"), *rank = g_strrstr(line, " (rank ");
  if (!rank || !g_str_has_suffix(rank, ")\n"))
    return FALSE;
  g_autofree char *name = g_strndup(code, strcspn(code, ":"));
  const char *speaker = g_hash_table_lookup(noise->spoken, name);
  if (!speaker)
    g_hash_table_insert(noise->spoken, g_steal_pointer(&name), g_strdup(rank));
  return speaker && strcmp(speaker, rank) != 0;
}

static void take_line(cli_noise *noise)
{
  if (noise->held_lines == 0 && !noise->midline) {
    gboolean error = is_error(noise->line->str);
    noise->rank_spoke |= error;
    noise->repeated = error ? is_said(noise, noise->line->str) : noise->repeated && g_str_has_prefix(noise->line->str, "  ");
    if (noise->repeated) {
      g_string_truncate(noise->line, 0);
      return;
    }
  }
  gboolean rule = !noise->midline && is_rule(noise->line->str, noise->line->len);
  if (noise->held_lines == 0 && !noise->midline && is_tally(noise->line->str)) {
    g_string_truncate(noise->line, 0);
    return;
  }
  if (noise->held_lines == 0 && !rule) {
    write_out(noise, noise->line);
    return;
  }
  g_string_append_len(noise->held, noise->line->str, (gssize)noise->line->len);
  g_string_truncate(noise->line, 0);
  noise->held_lines++;
  if (rule && noise->held_lines > 1) {
    if (is_known(noise))
      g_string_truncate(noise->held, 0);
    else
      noise->unknown++;
    write_out(noise, noise->held);
    noise->held_lines = 0;
  } else if (noise->held_lines > MOST_LINES) {
    write_out(noise, noise->held);
    noise->held_lines = 0;
  }
}

void cli_noise_feed(cli_noise *noise, const char *bytes, gsize length)
{
  noise->pauses = 0;
  while (length > 0) {
    const char *end = memchr(bytes, '\n', length);
    gsize n = end ? (gsize)(end - bytes) + 1 : length;
    g_string_append_len(noise->line, bytes, (gssize)n);
    bytes += n;
    length -= n;
    if (end) {
      take_line(noise);
      noise->midline = FALSE;
    }
  }
  if (noise->line->len && noise->held_lines == 0 && (noise->midline || !(noise->repeated || strchr("-[e\033", noise->line->str[0])))) {
    write_out(noise, noise->line);
    noise->midline = TRUE;
  }
}

void cli_noise_flush(cli_noise *noise)
{
  noise->midline |= noise->line->len > 0;
  if (noise->held_lines)
    g_string_append_len(noise->held, noise->line->str, (gssize)noise->line->len);
  write_out(noise, noise->held_lines ? noise->held : noise->line);
  g_string_truncate(noise->line, 0);
  noise->held_lines = 0;
}

void cli_noise_pause(cli_noise *noise)
{
  if (noise->held_lines == 0 || ++noise->pauses >= MOST_PAUSES)
    cli_noise_flush(noise);
}

int cli_noise_unknown(const cli_noise *noise)
{
  return noise->unknown;
}

gboolean cli_noise_rank_spoke(const cli_noise *noise)
{
  return noise->rank_spoke;
}

void cli_noise_verdict(const cli_noise *noise, int *rank, int *signal_number, int *exit_code)
{
  *rank = noise->rank;
  *signal_number = noise->signal_number;
  *exit_code = noise->exit_code;
}
