/* timeline.c - see timeline.h. */
#include "timeline.h"

#include "usage.h"

#include <errno.h>
#include <stdio.h>

struct ordo_timeline {
  FILE *file;
  char *path;
  int64_t steps;
  int64_t step;
};

ordo_status ordo_timeline_open(const char *path, int rank, int64_t steps, ordo_problems *problems, ordo_timeline **result)
{
  ordo_timeline *timeline = g_new0(ordo_timeline, 1);
  timeline->path = rank == 0 ? g_strdup(path) : g_strdup_printf("%s.rank%d", path, rank);
  timeline->steps = steps;
  timeline->file = fopen(timeline->path, "we");
  *result = timeline;
  if (!timeline->file)
    return ordo_problems_push_errno(problems, "create", timeline->path, errno);
  fputs("step,activity,unit,edge", timeline->file);
  for (uint32_t tag = 0; tag < ORDO_N_MEM_TAGS; tag++)
    fprintf(timeline->file, ",%s", ordo_memory_tag_name(tag));
  fputs(",total,peak\n", timeline->file);
  return ORDO_OK;
}

void ordo_timeline_activity(ordo_timeline *timeline, const ordo_session *session, ordo_activity activity, const char *unit, ordo_edge edge)
{
  static const char *const edges[] = {"begin", "open", "close", "end"};
  int64_t now = 0, peak = 0;
  timeline->step += edge == ORDO_EDGE_BEGIN && activity == ORDO_ACTIVITY_STEP;
  if (timeline->steps > 0 && timeline->step > timeline->steps)
    return;
  fprintf(timeline->file, "%" G_GINT64_FORMAT ",%s,%s,%s", timeline->step, ordo_activity_name(activity), unit, edges[edge]);
  for (uint32_t tag = 0; tag <= ORDO_N_MEM_TAGS; tag++) {
    ordo_session_memory(session, tag, &now, &peak);
    fprintf(timeline->file, ",%" G_GINT64_FORMAT, now);
  }
  fprintf(timeline->file, ",%" G_GINT64_FORMAT "\n", peak);
}

ordo_status ordo_timeline_close(ordo_timeline *timeline, ordo_problems *problems)
{
  ordo_status status = ORDO_OK;
  if (!timeline)
    return ORDO_OK;
  if (timeline->file) {
    int failed = ferror(timeline->file);
    if (fclose(timeline->file) != 0 || failed)
      status = ordo_problems_push_errno(problems, "write", timeline->path, failed ? EIO : errno);
  }
  g_free(timeline->path);
  g_free(timeline);
  return status;
}
