/* estimate_report.c - an estimate as tables for people and as JSON with stable keys. It computes nothing. */
#include "comm_tap.h"
#include "estimate.h"
#include "usage.h"

#include <stdio.h>
#include <string.h>

/* "1.5 GiB"; exact below a KiB. */
static char *human(int64_t bytes)
{
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = (double)bytes;
  size_t unit = 0;
  for (; value >= 1024.0 && unit + 1 < G_N_ELEMENTS(units); unit++)
    value /= 1024.0;
  return unit ? g_strdup_printf("%.1f %s", value, units[unit]) : g_strdup_printf("%" G_GINT64_FORMAT " B", bytes);
}

static void print_memory(const ordo_estimate_rank *rank)
{
  printf("  %-14s %18s %11s %18s %11s\n", "memory", "peak", "", "after a step", "");
  for (uint32_t tag = 0; tag <= ORDO_N_MEM_TAGS; tag++) {
    g_autofree char *peak = human(rank->peak[tag]), *now = human(rank->now[tag]);
    printf("    %-12s %18" G_GINT64_FORMAT " %11s %18" G_GINT64_FORMAT " %11s\n", ordo_memory_tag_name(tag), rank->peak[tag], peak,
           rank->now[tag], now);
  }
}

static void print_phase(const char *phase, const ordo_estimate_comm *comm, const ordo_comm_stats *stats)
{
  for (uint32_t kind = ORDO_ALL_REDUCE; kind <= ORDO_BARRIER; kind++) {
    g_autofree char *bytes = human((int64_t)stats->bytes[kind]);
    if (stats->calls[kind] > 0)
      printf("    %-12s %-10s %-14s %8" G_GUINT64_FORMAT " %18" G_GUINT64_FORMAT " %11s\n", phase, comm->name, ordo_comm_kind_name(kind),
             stats->calls[kind], stats->bytes[kind], bytes);
  }
}

static void print_comm(const ordo_estimate_rank *rank)
{
  printf("  %-14s %-10s %-14s %8s %18s\n", "messages", "axis", "kind", "calls", "payload");
  for (int i = 0; i < rank->n_comm; i++)
    print_phase("set-up", &rank->comm[i], &rank->comm[i].setup);
  for (int i = 0; i < rank->n_comm; i++)
    print_phase("first step", &rank->comm[i], &rank->comm[i].first);
  for (int i = 0; i < rank->n_comm; i++)
    print_phase("later step", &rank->comm[i], &rank->comm[i].last);
}

static void print_shapes(const ordo_estimate_rank *rank)
{
  printf("  %-48s %5s  %-22s %s\n", "leaves", "", "whole", "here");
  for (guint i = 0; i < rank->shapes->len; i++) {
    const ordo_estimate_shape *shape = g_ptr_array_index(rank->shapes, i);
    g_autofree char *count = shape->count > 1 ? g_strdup_printf("x%" G_GINT64_FORMAT, shape->count) : g_strdup("");
    printf("    %-46s %5s  %-22s %s\n", shape->name, count, shape->whole, shape->here);
  }
}

void ordo_estimate_print(const ordo_estimate_job *job, const GPtrArray *ranks)
{
  const struct llama_config *c = job->model;
  char *plan = ordo_plan_render(job->plan, ORDO_RENDER_TEXT, 0);
  printf("%s\nestimate: a dry run of this plan, %" G_GINT64_FORMAT " steps a rank; nothing was measured\n", plan ? plan : "", job->steps);
  ordo_string_free(plan);
  printf("model    %" G_GINT64_FORMAT " parameters: %" G_GINT64_FORMAT " layers, hidden %" G_GINT64_FORMAT ", %" G_GINT64_FORMAT
         "/%" G_GINT64_FORMAT " heads, intermediate %" G_GINT64_FORMAT ", vocabulary %" G_GINT64_FORMAT "%s, %s\n",
         job->parameters, c->layers, c->hidden, c->heads, c->kv_heads, c->intermediate, c->vocab, c->tied ? " (tied)" : "", job->origin);
  printf("batch    %" G_GINT64_FORMAT " sequences of %" G_GINT64_FORMAT " tokens\n", job->batch, job->seq_len);
  for (guint i = 0; i < ranks->len; i++) {
    const ordo_estimate_rank *rank = g_ptr_array_index(ranks, i);
    printf("\nrank %d of %d%s%s   %" G_GINT64_FORMAT " sequences in %d micro-batch%s of at most %" G_GINT64_FORMAT "\n", rank->rank,
           job->ranks, *rank->place ? "   " : "", rank->place, rank->part.count, rank->part.n_micro_batches,
           rank->part.n_micro_batches == 1 ? "" : "es", rank->part.micro_size);
    print_memory(rank);
    print_comm(rank);
    print_shapes(rank);
  }
}

/* `"text"`, with what JSON needs escaped. */
static void add_text(GString *json, const char *text)
{
  g_string_append_c(json, '"');
  for (const char *c = text; *c; c++)
    if (*c == '"' || *c == '\\')
      g_string_append_printf(json, "\\%c", *c);
    else if ((unsigned char)*c < 0x20)
      g_string_append_printf(json, "\\u%04x", (unsigned)*c);
    else
      g_string_append_c(json, *c);
  g_string_append_c(json, '"');
}

static void add_member(GString *json, const char *key, const char *text)
{
  g_string_append_printf(json, "\"%s\":", key);
  add_text(json, text);
}

static void add_memory(GString *json, const char *key, const int64_t *bytes)
{
  g_string_append_printf(json, ",\"%s\":{", key);
  for (uint32_t tag = 0; tag <= ORDO_N_MEM_TAGS; tag++)
    g_string_append_printf(json, "%s\"%s\":%" G_GINT64_FORMAT, tag ? "," : "", ordo_memory_tag_name(tag), bytes[tag]);
  g_string_append_c(json, '}');
}

/* {"ddp":{"all_reduce":{"calls":3,"bytes":1024}}} of the statistics at `offset` in each ordo_estimate_comm. */
static void add_comm(GString *json, const char *key, const ordo_estimate_rank *rank, size_t offset)
{
  g_string_append_printf(json, ",\"%s\":{", key);
  for (int i = 0; i < rank->n_comm; i++) {
    const ordo_comm_stats *stats = (const ordo_comm_stats *)(const void *)((const char *)&rank->comm[i] + offset);
    const char *separator = "";
    g_string_append(json, i ? "," : "");
    add_text(json, rank->comm[i].name);
    g_string_append(json, ":{");
    for (uint32_t kind = ORDO_ALL_REDUCE; kind <= ORDO_BARRIER; kind++)
      if (stats->calls[kind] > 0) {
        g_string_append_printf(json, "%s\"%s\":{\"calls\":%" G_GUINT64_FORMAT ",\"bytes\":%" G_GUINT64_FORMAT "}", separator,
                               ordo_comm_kind_name(kind), stats->calls[kind], stats->bytes[kind]);
        separator = ",";
      }
    g_string_append_c(json, '}');
  }
  g_string_append_c(json, '}');
}

static void add_shapes(GString *json, const ordo_estimate_rank *rank)
{
  g_string_append(json, ",\"leaves\":[");
  for (guint i = 0; i < rank->shapes->len; i++) {
    const ordo_estimate_shape *shape = g_ptr_array_index(rank->shapes, i);
    g_string_append(json, i ? ",{" : "{");
    add_member(json, "name", shape->name);
    g_string_append_printf(json, ",\"count\":%" G_GINT64_FORMAT ",", shape->count);
    add_member(json, "whole", shape->whole);
    g_string_append_c(json, ',');
    add_member(json, "here", shape->here);
    g_string_append_c(json, '}');
  }
  g_string_append_c(json, ']');
}

static void add_rank(GString *json, const ordo_estimate_rank *rank)
{
  g_string_append_printf(json, "{\"rank\":%d,", rank->rank);
  add_member(json, "place", rank->place);
  g_string_append_printf(json, ",\"sequences\":%" G_GINT64_FORMAT ",\"micro_batches\":%d,\"micro_batch\":%" G_GINT64_FORMAT,
                         rank->part.count, rank->part.n_micro_batches, rank->part.micro_size);
  add_memory(json, "peak_bytes", rank->peak);
  add_memory(json, "bytes", rank->now);
  add_comm(json, "setup", rank, offsetof(ordo_estimate_comm, setup));
  add_comm(json, "first_step", rank, offsetof(ordo_estimate_comm, first));
  add_comm(json, "later_step", rank, offsetof(ordo_estimate_comm, last));
  add_shapes(json, rank);
  g_string_append_c(json, '}');
}

void ordo_estimate_print_json(const ordo_estimate_job *job, const GPtrArray *ranks)
{
  const struct llama_config *c = job->model;
  char *plan = ordo_plan_render(job->plan, ORDO_RENDER_JSON, 0); /* as `ordo plan --json` prints it */
  g_autoptr(GString) json = g_string_new("{\"plan\":");
  g_string_append_printf(json, "%s,\"model\":{", plan ? plan : "null");
  ordo_string_free(plan);
  add_member(json, "origin", job->origin);
  g_string_append_printf(json,
                         ",\"parameters\":%" G_GINT64_FORMAT ",\"layers\":%" G_GINT64_FORMAT ",\"hidden_size\":%" G_GINT64_FORMAT
                         ",\"intermediate_size\":%" G_GINT64_FORMAT ",\"heads\":%" G_GINT64_FORMAT ",\"kv_heads\":%" G_GINT64_FORMAT
                         ",\"vocab_size\":%" G_GINT64_FORMAT ",\"tied\":%s}",
                         job->parameters, c->layers, c->hidden, c->intermediate, c->heads, c->kv_heads, c->vocab,
                         c->tied ? "true" : "false");
  g_string_append_printf(json,
                         ",\"batch\":%" G_GINT64_FORMAT ",\"seq_len\":%" G_GINT64_FORMAT ",\"steps\":%" G_GINT64_FORMAT ",\"ranks\":[",
                         job->batch, job->seq_len, job->steps);
  for (guint i = 0; i < ranks->len; i++) {
    g_string_append(json, i ? "," : "");
    add_rank(json, g_ptr_array_index(ranks, i));
  }
  g_string_append(json, "]}");
  puts(json->str);
}
