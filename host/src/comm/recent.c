/* recent.c - ring of the last collectives of a provider.
 *
 * A hang is understood by comparing what each rank did last, and by then the buffers, labels and communicators may be gone. So the
 * ring copies everything it prints and holds no pointers. It is not a trace: it has no times and forgets after 256 entries.
 */
#include "channel.h"

uint64_t ordo_recent_add(ordo_recent *recent, const char *comm, const ordo_collective *c)
{
  uint64_t id = ++recent->last_id;
  ordo_recent_entry *entry = &recent->entries[id % ORDO_RECENT_SIZE];
  entry->id = id;
  entry->kind = c->kind;
  entry->op = c->op;
  entry->dtype = c->dtype;
  entry->state = ORDO_RECENT_STARTED;
  entry->count = c->count;
  g_strlcpy(entry->comm, comm, sizeof entry->comm);
  g_strlcpy(entry->label, c->label ? c->label : "", sizeof entry->label);
  return id;
}

void ordo_recent_mark(ordo_recent *recent, uint64_t id, uint32_t state)
{
  ordo_recent_entry *entry = &recent->entries[id % ORDO_RECENT_SIZE];
  if (entry->id == id)
    entry->state = state;
}

static void append_line(GString *text, const ordo_recent_entry *e)
{
  static const char *const states[] = {"free", "started", "done", "failed"};
  g_string_append_printf(text, "%" G_GUINT64_FORMAT " %s %s", e->id, e->comm, ordo_collective_kind_name(e->kind));
  if (ordo_collective_reduces(e->kind))
    g_string_append_printf(text, " %s", ordo_collective_op_name(e->op));
  if (e->kind != ORDO_BARRIER)
    g_string_append_printf(text, " %" G_GINT64_FORMAT " %s", e->count, ordo_dtype_name(e->dtype));
  if (e->label[0])
    g_string_append_printf(text, " '%s'", e->label);
  g_string_append_printf(text, " %s\n", states[e->state]);
}

char *ordo_recent_report(const ordo_recent *recent)
{
  GString *text = g_string_new(NULL);
  uint64_t first = recent->last_id >= ORDO_RECENT_SIZE ? recent->last_id - ORDO_RECENT_SIZE + 1 : 1;
  for (uint64_t id = first; id <= recent->last_id; id++)
    append_line(text, &recent->entries[id % ORDO_RECENT_SIZE]);
  return g_string_free(text, FALSE);
}
