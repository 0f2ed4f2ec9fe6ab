/* trace.c - see trace.h. Events are written as they end; a file that was cut short is still readable by both viewers. */
#include "trace.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { MOST_OPEN = 8 };

struct ordo_trace {
  FILE *file; /* null once the trace has ended */
  char *path;
  int rank;
  int failed; /* errno of a write */
  int64_t steps;
  int64_t step;
  gint64 begun[MOST_OPEN]; /* of the open spans, outermost first */
  int64_t calls_then[MOST_OPEN];
  int open;
  int events;
  int64_t calls; /* collectives started */
  int64_t bytes;
};

static void event(ordo_trace *trace, const char *format, ...) G_GNUC_PRINTF(2, 3);
static void event(ordo_trace *trace, const char *format, ...)
{
  va_list args;
  if (!trace->file)
    return;
  va_start(args, format);
  if (fputs(trace->events++ ? ",\n" : "", trace->file) < 0 || vfprintf(trace->file, format, args) < 0)
    trace->failed = errno;
  va_end(args);
}

ordo_status ordo_trace_open(const char *path, int rank, int64_t steps, ordo_problems *problems, ordo_trace **result)
{
  ordo_trace *trace = g_new0(ordo_trace, 1);
  trace->path = rank == 0 ? g_strdup(path) : g_strdup_printf("%s.rank%d", path, rank);
  trace->rank = rank;
  trace->steps = steps;
  trace->file = fopen(trace->path, "we");
  *result = trace;
  if (!trace->file)
    return ordo_problems_push_errno(problems, "create", trace->path, errno);
  fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", trace->file);
  event(trace, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"rank %d\"}}", rank, rank);
  return ORDO_OK;
}

/* Labels come from plugins: what JSON would have to escape is replaced. */
static char *plain(const char *text)
{
  char *copy = g_utf8_make_valid(text, -1);
  for (char *c = copy; *c; c++)
    if (*c == '"' || *c == '\\' || (unsigned char)*c < 0x20)
      *c = '_';
  return copy;
}

static uint64_t collective_begin(void *ctx, const char *comm, const ordo_comm *ranks, const ordo_collective *c)
{
  ordo_trace *trace = ctx;
  const char *kind = ordo_comm_kind_name(c->kind);
  int64_t bytes = ordo_comm_tap_bytes(ranks, c);
  g_autofree char *name = plain(c->label ? c->label : kind), *axis = plain(comm);
  trace->calls++;
  trace->bytes += bytes;
  event(trace,
        "{\"ph\":\"b\",\"cat\":\"collective\",\"id\":%" G_GINT64_FORMAT ",\"name\":\"%s\",\"ts\":%" G_GINT64_FORMAT
        ",\"pid\":%d,\"tid\":0,\"args\":{\"comm\":\"%s\",\"kind\":\"%s\",\"bytes\":%" G_GINT64_FORMAT ",\"step\":%" G_GINT64_FORMAT "}}",
        trace->calls, name, g_get_monotonic_time(), trace->rank, axis, kind, bytes, trace->step);
  return (uint64_t)trace->calls;
}

/* Viewers pair begin and end by category and id; the name of the end is not shown. */
static void collective_end(void *ctx, uint64_t id)
{
  ordo_trace *trace = ctx;
  event(trace,
        "{\"ph\":\"e\",\"cat\":\"collective\",\"id\":%" G_GUINT64_FORMAT ",\"name\":\"\",\"ts\":%" G_GINT64_FORMAT ",\"pid\":%d,\"tid\":0}",
        id, g_get_monotonic_time(), trace->rank);
}

ordo_comm_observer ordo_trace_observer(ordo_trace *trace)
{
  return (ordo_comm_observer){trace, collective_begin, collective_end};
}

static void begin(ordo_trace *trace, ordo_activity activity)
{
  if (activity == ORDO_ACTIVITY_STEP)
    trace->step++;
  trace->calls_then[trace->open] = trace->calls;
  trace->begun[trace->open++] = g_get_monotonic_time();
  event(trace,
        "{\"ph\":\"C\",\"name\":\"communication started\",\"ts\":%" G_GINT64_FORMAT ",\"pid\":%d,\"args\":{\"calls\":%" G_GINT64_FORMAT
        ",\"bytes\":%" G_GINT64_FORMAT "}}",
        trace->begun[trace->open - 1], trace->rank, trace->calls, trace->bytes);
}

/* `calls`: collectives started before the span. */
static void end(ordo_trace *trace, ordo_activity activity, const char *unit)
{
  gint64 begun = trace->begun[--trace->open];
  event(trace,
        "{\"ph\":\"X\",\"cat\":\"%s\",\"name\":\"%s%s%s\",\"ts\":%" G_GINT64_FORMAT ",\"dur\":%" G_GINT64_FORMAT
        ",\"pid\":%d,\"tid\":0,\"args\":{\"step\":%" G_GINT64_FORMAT ",\"calls\":%" G_GINT64_FORMAT "}}",
        ordo_activity_name(activity), ordo_activity_name(activity), *unit ? " " : "", unit, begun, g_get_monotonic_time() - begun,
        trace->rank, trace->step, trace->calls_then[trace->open]);
}

static void finish(ordo_trace *trace)
{
  if (!trace->file)
    return;
  if (fputs("\n]}\n", trace->file) < 0)
    trace->failed = errno;
  if (fclose(trace->file) != 0)
    trace->failed = errno;
  trace->file = NULL;
}

void ordo_trace_activity(ordo_trace *trace, ordo_activity activity, const char *unit, ordo_edge edge)
{
  if (!trace->file)
    return;
  if (edge == ORDO_EDGE_BEGIN && trace->open < MOST_OPEN)
    begin(trace, activity);
  else if (edge == ORDO_EDGE_END && trace->open > 0)
    end(trace, activity, unit);
  if (edge == ORDO_EDGE_END && activity == ORDO_ACTIVITY_STEP && trace->step == trace->steps)
    finish(trace);
}

ordo_status ordo_trace_close(ordo_trace *trace, ordo_problems *problems)
{
  ordo_status status = ORDO_OK;
  if (!trace)
    return ORDO_OK;
  finish(trace);
  if (trace->failed)
    status = ordo_problems_push_errno(problems, "write", trace->path, trace->failed);
  g_free(trace->path);
  g_free(trace);
  return status;
}
