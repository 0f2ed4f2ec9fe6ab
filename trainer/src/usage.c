/* usage.c - see usage.h. */
#include "usage.h"

#include "comm_tap.h"

const char *ordo_memory_tag_name(uint32_t tag)
{
  static const char *const names[ORDO_N_MEM_TAGS] = {"weights", "gradients", "optimizer", "activations", "comm", "other"};
  return tag < ORDO_N_MEM_TAGS ? names[tag] : "total";
}

void ordo_usage_memory(GString *object, const ordo_session *session)
{
  g_string_append(object, ",\"peak_bytes\":{");
  for (uint32_t tag = 0; tag <= ORDO_N_MEM_TAGS; tag++) {
    int64_t now = 0, peak = 0;
    ordo_session_memory(session, tag, &now, &peak);
    g_string_append_printf(object, "%s\"%s\":%" G_GINT64_FORMAT, tag ? "," : "", ordo_memory_tag_name(tag), peak);
  }
  g_string_append_c(object, '}');
}

static void append_stats(GString *object, const char *name, const ordo_comm *comm)
{
  ordo_comm_stats stats = {.struct_size = sizeof stats};
  const char *separator = "";
  comm->stats(comm->ctx, &stats);
  g_string_append_printf(object, "\"%s\":{", name);
  for (uint32_t kind = ORDO_ALL_REDUCE; kind <= ORDO_BARRIER; kind++)
    if (stats.calls[kind] > 0) {
      g_string_append_printf(object, "%s\"%s\":{\"calls\":%" G_GUINT64_FORMAT ",\"bytes\":%" G_GUINT64_FORMAT "}", separator,
                             ordo_comm_kind_name(kind), stats.calls[kind], stats.bytes[kind]);
      separator = ",";
    }
  g_string_append_c(object, '}');
}

void ordo_usage_comm(GString *object, const ordo_session *session)
{
  const ordo_mesh *mesh = ordo_session_mesh(session);
  int world = 1, data = mesh->data != mesh->world;
  g_string_append(object, ",\"comm\":{");
  for (uint32_t a = 0; a < mesh->n_axes; a++) {
    append_stats(object, mesh->axes[a]->name, mesh->axes[a]->comm);
    g_string_append_c(object, ',');
    world = world && mesh->axes[a]->comm != mesh->world;
    data = data && mesh->axes[a]->comm != mesh->data;
  }
  if (data) {
    append_stats(object, "data", mesh->data);
    g_string_append_c(object, ',');
  }
  if (world)
    append_stats(object, "world", mesh->world);
  else
    g_string_truncate(object, object->len - 1);
  g_string_append_c(object, '}');
}
