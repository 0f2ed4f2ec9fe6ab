/* window_memory.c - shared segments: control memory, and buffers that plugins allocate for collectives.
 *
 * A buffer in a segment is reduced where it lies, by every rank at once; that is worth a factor of three over any message. Where
 * shared memory is too small (a container's /dev/shm is often 64 MiB) the buffer is private and everything still works.
 * Guards against SIGBUS: a sparse file in a full /dev/shm faults at the first touch, long after the allocation succeeded, so the free
 * space is checked before.
 */
#include "window.h"

#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

enum { PAGE = 4096 };

/* All ranks of the node take their part from the same file system. */
static gboolean has_room(size_t bytes_of_all)
{
  struct statvfs s;
  if (statvfs("/dev/shm", &s) != 0)
    return TRUE; /* the backing file lies elsewhere */
  return (uint64_t)s.f_bavail * s.f_frsize > (uint64_t)bytes_of_all + (uint64_t)bytes_of_all / 16;
}

/* TRUE if `mine` is TRUE on every rank. */
static gboolean all_ranks(const ordo_mpi_link *link, gboolean mine)
{
  int value = mine ? 1 : 0;
  return MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT, MPI_MIN, link->posted) == MPI_SUCCESS && value;
}

/* Open MPI places a header before the first part, so parts are not aligned. Every rank maps the file at a page boundary, so rounding
 * up to one shifts a part alike everywhere. */
static gboolean query_bases(ordo_segment *segment, const ordo_mpi_link *link)
{
  gboolean good = TRUE;
  for (int i = 0; i < link->size && good; i++) {
    MPI_Aint bytes = 0;
    int unit = 0;
    void *base = NULL;
    good = MPI_Win_shared_query(segment->win, i, &bytes, &unit, &base) == MPI_SUCCESS && base;
    segment->bases[i] = (char *)(((uintptr_t)base + PAGE - 1) & ~((uintptr_t)PAGE - 1));
  }
  return good;
}

static void segment_unmap(ordo_segment *segment, gboolean dead)
{
  if (segment->win != MPI_WIN_NULL && !dead)
    MPI_Win_free(&segment->win);
  g_free(segment->bases);
  segment->bases = NULL;
}

/* Maps `bytes` zeroed bytes of each rank. Collective. FALSE: shared memory cannot be had (on any rank alike), nothing was made. */
static gboolean segment_map(ordo_segment *segment, const ordo_mpi_link *link, size_t bytes)
{
  MPI_Info info = MPI_INFO_NULL;
  void *base = NULL;
  memset(segment, 0, sizeof *segment);
  segment->win = MPI_WIN_NULL;
  segment->bytes = (MAX(bytes, (size_t)1) + PAGE - 1) & ~(size_t)(PAGE - 1);
  if (!all_ranks(link, has_room((segment->bytes + PAGE) * (size_t)link->size)))
    return FALSE;
  MPI_Info_create(&info);
  MPI_Info_set(info, "alloc_shared_noncontig", "true"); /* each part on its own pages, near its owner */
  gboolean good = MPI_Win_allocate_shared((MPI_Aint)(segment->bytes + PAGE), 1, info, link->posted, &base, &segment->win) == MPI_SUCCESS;
  MPI_Info_free(&info);
  if (!good) /* nobody has a window then: the call fails in the same way on all ranks */
    segment->win = MPI_WIN_NULL;
  segment->bases = g_new0(char *, (gsize)link->size);
  if (good) {
    MPI_Win_set_errhandler(segment->win, MPI_ERRORS_RETURN);
    good = query_bases(segment, link);
  }
  if (!all_ranks(link, good)) {
    segment_unmap(segment, FALSE);
    return FALSE;
  }
  memset(segment->bases[link->rank], 0, segment->bytes); /* the owner touches first, so the pages are near it */
  MPI_Barrier(link->posted);
  return TRUE;
}

const ordo_segment *ordo_window_find(const ordo_window *window, const void *memory, size_t bytes)
{
  for (guint i = 0; i < window->segments->len; i++) {
    const ordo_segment *segment = g_ptr_array_index(window->segments, i);
    uintptr_t base = (uintptr_t)segment->bases[window->link.rank], at = (uintptr_t)memory;
    if (segment->win != MPI_WIN_NULL && at >= base && at - base <= segment->bytes && bytes <= segment->bytes - (at - base))
      return segment;
  }
  return NULL;
}

/* Every rank enters the blocking MPI calls at about the same time, after a collective that has a deadline and sees dead peers. The
 * sizes are compared on the way. Nobody asked for that collective, so the counters of the table, which are equal for every provider, do
 * not have it. */
static ordo_status enter_together(ordo_channel *channel, uint64_t bytes, const char *doing)
{
  uint64_t extremes[2] = {bytes, ~bytes};
  const ordo_comm_stats before = channel->stats;
  ordo_status status = ordo_all_reduce(&channel->table, extremes, 2, ORDO_U64, ORDO_MAX, 1.0);
  memcpy(channel->stats.calls, before.calls, sizeof before.calls);
  memcpy(channel->stats.bytes, before.bytes, sizeof before.bytes);
  if (status == ORDO_OK && extremes[0] != ~extremes[1])
    return ordo_hub_fail(channel->hub, ORDO_E_MISMATCH, "E-COMM-MISMATCH", channel->name, "allocation is collective",
                         "Allocate the same size on every rank.",
                         "%s on '%s': ranks pass different sizes, from %" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT " bytes", doing,
                         channel->name, ~extremes[1], extremes[0]);
  return status;
}

/* What a blocking call maps; on an error it stays behind. */
typedef struct mapping {
  ordo_segment *segment;
  ordo_mpi_link link; /* a copy */
  size_t bytes;
  gboolean shared;
} mapping;

static int map(void *subject)
{
  mapping *m = subject;
  m->shared = segment_map(m->segment, &m->link, m->bytes);
  return MPI_SUCCESS;
}

static int unmap(void *subject)
{
  segment_unmap(subject, FALSE);
  return MPI_SUCCESS;
}

/* A new segment, shared if that can be had; null on an error, which the hub has. */
static ordo_segment *map_with_deadline(ordo_channel *channel, size_t bytes, gboolean *shared)
{
  const ordo_window *window = channel->transport_state;
  mapping *m = g_new0(mapping, 1);
  *m = (mapping){g_new0(ordo_segment, 1), window->link, bytes, FALSE};
  if (ordo_mpi_call(channel->hub, &window->link, channel->name, "alloc", map, m) != ORDO_OK)
    return NULL;
  ordo_segment *segment = m->segment;
  *shared = m->shared;
  g_free(m);
  return segment;
}

static gboolean make_private(ordo_segment *segment, const ordo_window *window, size_t bytes)
{
  segment->win = MPI_WIN_NULL;
  segment->bytes = (MAX(bytes, (size_t)1) + PAGE - 1) & ~(size_t)(PAGE - 1);
  segment->bases = g_new0(char *, (gsize)window->link.size);
  char *memory = aligned_alloc(PAGE, segment->bytes);
  segment->bases[window->link.rank] = memory;
  if (memory)
    memset(memory, 0, segment->bytes);
  return memory != NULL;
}

ordo_status ordo_window_alloc(ordo_channel *channel, size_t bytes, void **memory)
{
  ordo_window *window = channel->transport_state;
  ordo_status status = enter_together(channel, bytes, "alloc");
  gboolean shared = FALSE;
  ordo_segment *segment = NULL;
  if (status == ORDO_OK && bytes <= SIZE_MAX / 128 && (segment = map_with_deadline(channel, bytes, &shared)) == NULL)
    status = channel->hub->dead;
  if (status != ORDO_OK)
    return status;
  if (!segment || (!shared && !make_private(segment, window, bytes))) {
    g_free(segment ? segment->bases : NULL);
    g_free(segment);
    return ordo_hub_fail(channel->hub, ORDO_E_NOMEM, "E-COMM-MEMORY", channel->name, "the system has no memory left",
                         "Use smaller buckets or more ranks.", "no memory for a buffer of %zu bytes on '%s'", bytes, channel->name);
  }
  segment->id = ++window->last_segment;
  g_ptr_array_add(window->segments, segment);
  *memory = segment->bases[window->link.rank];
  return ORDO_OK;
}

ordo_status ordo_window_release(ordo_channel *channel, void *memory)
{
  ordo_window *window = channel->transport_state;
  for (guint i = 0; i < window->segments->len; i++) {
    ordo_segment *segment = g_ptr_array_index(window->segments, i);
    if (segment->bases[window->link.rank] != memory)
      continue;
    ordo_status status = channel->hub->dead ? channel->hub->dead : enter_together(channel, segment->bytes, "free");
    if (segment->win == MPI_WIN_NULL)
      free(memory);
    g_ptr_array_remove_index(window->segments, i);
    if (status != ORDO_OK)
      segment_unmap(segment, TRUE);
    else if ((status = ordo_mpi_call(channel->hub, &window->link, channel->name, "free", unmap, segment)) != ORDO_OK)
      return status; /* the segment stays behind */
    g_free(segment);
    return status;
  }
  return ordo_hub_fail(channel->hub, ORDO_E_INVALID, "E-COMM-ARGUMENT", channel->name,
                       "it was not allocated by this communicator, or freed before", "Pass what alloc returned, once.",
                       "argument `memory` of free on '%s' is unknown", channel->name);
}

gboolean ordo_window_new(const ordo_mpi_link *link, ordo_window **out)
{
  ordo_segment control;
  if (!link->one_node || link->size > ORDO_WINDOW_MAX_RANKS || !segment_map(&control, link, sizeof(ordo_window_page)))
    return FALSE;
  ordo_window *w = g_new0(ordo_window, 1);
  w->link = *link;
  w->control = control;
  w->segments = g_ptr_array_new();
  w->pages = g_new0(ordo_window_page *, (gsize)link->size);
  for (int i = 0; i < link->size; i++)
    w->pages[i] = (ordo_window_page *)(void *)control.bases[i];
  *out = w;
  return TRUE;
}

void ordo_window_free(ordo_window *w, gboolean dead)
{
  for (guint i = 0; i < w->segments->len; i++) { /* buffers that nobody freed; their order is the same on all ranks */
    ordo_segment *segment = g_ptr_array_index(w->segments, i);
    if (segment->win == MPI_WIN_NULL)
      free(segment->bases[w->link.rank]);
    segment_unmap(segment, dead);
    g_free(segment);
  }
  g_ptr_array_unref(w->segments);
  segment_unmap(&w->control, dead);
  g_free(w->pages);
  ordo_mpi_link_clear(&w->link, dead);
  g_free(w);
}
