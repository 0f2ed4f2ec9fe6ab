/* estimate_run.c - one rank of a job that is not run: the real plan, session, plugins, model passes and optimizer, without storage.
 *
 * Nothing here knows how large anything is. The session is a dry run on the fake provider, the embedder is the one that trains, and what
 * their allocators and communicators counted is read off. So an estimate cannot drift from the code; it can only be of another job than
 * the one that is run.
 */
#include "estimate.h"

#include <string.h>

static void subtract(const ordo_comm_stats *after, const ordo_comm_stats *before, ordo_comm_stats *difference)
{
  for (int kind = 0; kind < 16; kind++) {
    difference->calls[kind] = after->calls[kind] - before->calls[kind];
    difference->bytes[kind] = after->bytes[kind] - before->bytes[kind];
  }
}

/* Totals of every communicator so far; returns how many there are. */
static int totals(const ordo_session *session, ordo_comm_stats *stats, const char **names)
{
  const ordo_mesh *mesh = ordo_session_mesh(session);
  int n = 0, world = 1, data = mesh->data != mesh->world;
  for (uint32_t a = 0; a < mesh->n_axes; a++) {
    stats[n] = (ordo_comm_stats){.struct_size = sizeof *stats};
    ordo_session_comm_stats(session, mesh->axes[a]->name, &stats[n]);
    names[n++] = mesh->axes[a]->name;
    world = world && mesh->axes[a]->comm != mesh->world;
    data = data && mesh->axes[a]->comm != mesh->data;
  }
  if (data) {
    stats[n] = (ordo_comm_stats){.struct_size = sizeof *stats};
    mesh->data->stats(mesh->data->ctx, &stats[n]);
    names[n++] = "data";
  }
  if (world) {
    stats[n] = (ordo_comm_stats){.struct_size = sizeof *stats};
    mesh->world->stats(mesh->world->ctx, &stats[n]);
    names[n++] = "world";
  }
  return n;
}

static ordo_status run_steps(ordo_embed *embed, const ordo_data *data, int64_t steps, ordo_estimate_rank *result)
{
  const ordo_session *session = ordo_embed_session(embed);
  ordo_comm_stats before[ESTIMATE_MOST_LINES], after[ESTIMATE_MOST_LINES];
  const char *names[ESTIMATE_MOST_LINES];
  ordo_status status = ORDO_OK;
  result->n_comm = totals(session, before, names);
  for (int i = 0; i < result->n_comm; i++) {
    result->comm[i].name = g_strdup(names[i]);
    result->comm[i].setup = before[i];
  }
  for (int64_t step = 0; status == ORDO_OK && step < steps; step++) {
    ordo_step_outcome outcome;
    status = ordo_embed_step(embed, data, 0, 0, NULL, NULL, &outcome);
    totals(session, after, names);
    for (int i = 0; i < result->n_comm; i++) {
      subtract(&after[i], &before[i], &result->comm[i].last);
      if (step == 0)
        result->comm[i].first = result->comm[i].last;
    }
    memcpy(before, after, sizeof before);
  }
  return status;
}

static char *shape_text(uint32_t ndim, const int64_t *shape)
{
  g_autoptr(GString) text = g_string_new("[");
  for (uint32_t d = 0; d < ndim; d++)
    g_string_append_printf(text, "%s%" G_GINT64_FORMAT, d ? ", " : "", shape[d]);
  return g_strdup_printf("%s]", text->str);
}

/* What this rank's optimizer updates of a leaf. */
static char *here_text(const ordo_leaf *leaf)
{
  const ordo_placement *placement = leaf->placement;
  if (leaf->numel == 0 || placement->n_chunks == 0)
    return g_strdup("nothing");
  if (placement->n_chunks == 1 && placement->chunks->kind == ORDO_CHUNK_RECT)
    return shape_text(placement->chunks->ndim, placement->chunks->extent);
  return g_strdup_printf("%" G_GINT64_FORMAT " elements", leaf->numel);
}

/* Numbers between dots are those of layers. */
static char *pattern_of(const char *name)
{
  g_auto(GStrv) words = g_strsplit(name, ".", -1);
  for (char **word = words; *word; word++)
    if (**word && strspn(*word, "0123456789") == strlen(*word)) {
      g_free(*word);
      *word = g_strdup("*");
    }
  return g_strjoinv(".", words);
}

static void add_leaf(ordo_estimate_rank *result, const ordo_leaf *leaf)
{
  ordo_estimate_shape *shape;
  g_autofree char *name = pattern_of(leaf->name), *here = here_text(leaf);
  g_autofree char *whole = leaf->n_params == 1 || (leaf->n_params > 1 && leaf->params[0]->tie_group >= 0)
                               ? shape_text(leaf->params[0]->ndim, leaf->params[0]->shape)
                               : g_strdup_printf("%u parameters", leaf->n_params);
  for (guint i = 0; i < result->shapes->len; i++) {
    shape = g_ptr_array_index(result->shapes, i);
    if (!strcmp(shape->name, name) && !strcmp(shape->whole, whole) && !strcmp(shape->here, here)) {
      shape->count++;
      return;
    }
  }
  shape = g_new0(ordo_estimate_shape, 1);
  shape->name = g_steal_pointer(&name);
  shape->whole = g_steal_pointer(&whole);
  shape->here = g_steal_pointer(&here);
  shape->count = 1;
  g_ptr_array_add(result->shapes, shape);
}

static void free_shape(gpointer data)
{
  ordo_estimate_shape *shape = data;
  g_free(shape->name);
  g_free(shape->whole);
  g_free(shape->here);
  g_free(shape);
}

static void read_off(ordo_embed *embed, ordo_estimate_rank *result)
{
  const ordo_session *session = ordo_embed_session(embed);
  const ordo_mesh *mesh = ordo_session_mesh(session);
  const ordo_model *model = ordo_embed_model(embed);
  g_autoptr(GString) place = g_string_new(NULL);
  for (uint32_t a = 0; a < mesh->n_axes; a++)
    g_string_append_printf(place, "%s%s=%d/%d", a ? " " : "", mesh->axes[a]->name, mesh->axes[a]->coordinate, mesh->axes[a]->size);
  result->place = g_strdup(place->str);
  result->part = *ordo_embed_part(embed);
  for (uint32_t tag = 0; tag <= ORDO_N_MEM_TAGS; tag++)
    ordo_session_memory(session, tag, &result->now[tag], &result->peak[tag]);
  for (uint32_t i = 0; i < model->n_leaves; i++)
    add_leaf(result, model->leaves[i]);
}

ordo_status ordo_estimate_read(ordo_embed *embed, const ordo_data *data, int64_t steps, ordo_estimate_rank *result)
{
  *result = (ordo_estimate_rank){.rank = ordo_session_mesh(ordo_embed_session(embed))->rank,
                                 .shapes = g_ptr_array_new_with_free_func(free_shape)};
  ordo_status status = run_steps(embed, data, steps, result);
  if (status == ORDO_OK)
    read_off(embed, result);
  return status;
}

ordo_status ordo_estimate_run(const ordo_embed_options *options, int32_t rank, int32_t ranks, int64_t steps, ordo_estimate_rank *result)
{
  ordo_embed_options dry = *options;
  ordo_comm_provider *provider = NULL;
  ordo_embed *embed = NULL;
  ordo_status status = ordo_comm_fake_create(options->context, rank, ranks, &provider);
  dry.comm = provider;
  dry.dry = 1;
  if (status == ORDO_OK)
    status = ordo_embed_create(&dry, &embed);
  if (status == ORDO_OK)
    status = ordo_estimate_read(embed, NULL, steps, result);
  if (status != ORDO_OK)
    return status; /* the records must stay, and the program ends */
  ordo_embed_destroy(embed);
  ordo_comm_provider_destroy(provider);
  return ORDO_OK;
}

void ordo_estimate_clear(ordo_estimate_rank *rank)
{
  for (int i = 0; i < rank->n_comm; i++)
    g_free(rank->comm[i].name);
  g_free(rank->place);
  g_clear_pointer(&rank->shapes, g_ptr_array_unref);
}
