/* mpi_link.c - the communicators of one channel, and whether its peers are alive.
 *
 * Open MPI does not report that a process on the same node has died: a wait would simply never end. So the ranks exchange their
 * process ids once, and whoever waits asks the kernel every few milliseconds. Ranks of other nodes, or of another pid namespace,
 * cannot be asked; for them the deadline speaks.
 */
#include "mpi_transport.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Identity of this process's pid namespace, 0 if unknown. */
static uint64_t pid_space(void)
{
  struct stat s;
  return stat("/proc/self/ns/pid", &s) == 0 ? (uint64_t)s.st_ino : 0;
}

static int exchange_peers(ordo_mpi_link *link, int32_t world_rank)
{
  MPI_Comm node = MPI_COMM_NULL;
  ordo_peer me = {world_rank, link->rank, (int64_t)getpid(), pid_space()};
  int rc = MPI_Comm_split_type(link->posted, MPI_COMM_TYPE_SHARED, link->rank, MPI_INFO_NULL, &node);
  if (rc == MPI_SUCCESS)
    rc = MPI_Bcast(&me.node, 1, MPI_INT32_T, 0, node);
  if (rc == MPI_SUCCESS)
    rc = MPI_Allgather(&me, sizeof me, MPI_BYTE, link->peers, sizeof me, MPI_BYTE, link->posted);
  if (node != MPI_COMM_NULL)
    MPI_Comm_free(&node);
  link->one_node = TRUE;
  for (int i = 0; i < link->size; i++) {
    ordo_peer *peer = &link->peers[i];
    link->one_node = link->one_node && peer->node == me.node;
    if (i == link->rank || peer->node != me.node || !me.pid_space || peer->pid_space != me.pid_space)
      peer->pid = 0;
  }
  return rc;
}

int ordo_mpi_link_init(ordo_mpi_link *link, MPI_Comm comm, int32_t world_rank)
{
  memset(link, 0, sizeof *link);
  link->posted = comm;
  link->staged = link->checks = MPI_COMM_NULL;
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm, &link->rank);
  MPI_Comm_size(comm, &link->size);
  link->peers = g_new0(ordo_peer, (gsize)link->size);
  int rc = MPI_Comm_dup(comm, &link->staged);
  if (rc == MPI_SUCCESS)
    rc = MPI_Comm_dup(comm, &link->checks);
  if (rc == MPI_SUCCESS)
    rc = exchange_peers(link, world_rank);
  if (rc != MPI_SUCCESS)
    ordo_mpi_link_clear(link, TRUE);
  return rc;
}

void ordo_mpi_link_clear(ordo_mpi_link *link, gboolean dead)
{
  MPI_Comm *const all[] = {&link->checks, &link->staged, &link->posted};
  for (size_t i = 0; !dead && i < G_N_ELEMENTS(all); i++)
    if (*all[i] != MPI_COMM_NULL)
      MPI_Comm_free(all[i]);
  g_free(link->peers);
  link->peers = NULL;
}

/* The letter that the kernel has for the state of a process; 0: unknown. */
static char state_of(int64_t pid)
{
  char path[48], line[256];
  g_snprintf(path, sizeof path, "/proc/%" G_GINT64_FORMAT "/stat", pid);
  FILE *file = fopen(path, "re");
  if (!file)
    return 0;
  size_t n = fread(line, 1, sizeof line - 1, file);
  fclose(file);
  line[n] = 0;
  const char *after_name = strrchr(line, ')');
  return after_name && after_name[1] == ' ' ? after_name[2] : 0;
}

/* A killed process stays visible as a zombie until its parent collects it. */
static gboolean has_ended(int64_t pid)
{
  if (kill((pid_t)pid, 0) != 0 && errno == ESRCH)
    return TRUE;
  char state = state_of(pid);
  return state == 'Z' || state == 'X';
}

char *ordo_mpi_stopped(const ordo_mpi_link *link)
{
  GString *text = g_string_new(NULL);
  for (int i = 0; i < link->size; i++) {
    const ordo_peer *peer = &link->peers[i];
    char state = peer->pid ? state_of(peer->pid) : 0;
    if (state == 'T' || state == 't')
      g_string_append_printf(text, "%srank %d is stopped (process %" G_GINT64_FORMAT ")", text->len ? ", " : "", peer->world_rank,
                             peer->pid);
  }
  return g_string_free(text, text->len == 0);
}

ordo_status ordo_mpi_watch(ordo_hub *hub, const ordo_mpi_link *link, const char *where)
{
  for (int i = 0; i < link->size; i++) {
    int64_t pid = link->peers[i].pid;
    if (pid && has_ended(pid))
      return ordo_hub_fail(hub, ORDO_E_PEER_LOST, "E-COMM-PEER-LOST", where, "its process has ended while this rank waited for it",
                           "Look at the first error of that rank; out of memory and signals are the usual causes.",
                           "rank %d ended (process %" G_GINT64_FORMAT ") while rank %d waited for it on '%s'", link->peers[i].world_rank,
                           pid, link->peers[link->rank].world_rank, where);
  }
  return ORDO_OK;
}
