/* vote.c - decisions that all ranks take together: is a gradient missing somewhere, and which parameters were used anywhere.
 *
 * A rank that finds something wrong must not return early: the others would wait for its collectives until the deadline. So
 * problems are flags on slots, every rank issues all its buckets, and one byte per rank says whether there is anything to
 * report. Only then are the flags of all slots gathered, and every rank records the same text.
 */
#include "reducer.h"

#include <stdio.h>
#include <string.h>

typedef struct problem {
  uint8_t flag;
  ordo_status status;
  const char *what;
  const char *hint;
} problem;

/* In order of report: the first one that occurred is named. */
static const problem PROBLEMS[] = {
    {DDP_TWICE, ORDO_E_INVARIANT, "became ready twice in one micro-batch",
     "report a gradient once, after its last contribution; later contributions would be lost"},
    {DDP_DEVIATES, ORDO_E_INVARIANT, "was not used as in the first step, although static_graph promises so",
     "drop ddp:static_graph, or use the same parameters in every step"},
    {DDP_MISSING, ORDO_E_INVARIANT, "got no gradient in this step",
     "freeze it, or set ddp:find_unused_parameters=true if it is unused on purpose"},
    {DDP_NOT_FINITE, ORDO_E_INVARIANT, "has a gradient with NaN or infinity before the exchange",
     "look at the loss and the learning rate of the named rank; reduce_nan_check=false trains on"},
};

enum { NAMED = 5, TEXT = 1024 }; /* parameters named in one error, and its length */

static void append(char *text, const char *format, const char *name, int number)
{
  size_t used = strlen(text);
  if (name != NULL)
    snprintf(text + used, TEXT - used, format, name);
  else
    snprintf(text + used, TEXT - used, format, number);
}

/* "'a' on ranks 0, 2; 'b' on rank 1; and 3 more" */
static void list_places(const ddp_reducer *reducer, const uint8_t *flags, uint8_t flag, char *text)
{
  const uint32_t n = reducer->slots.n;
  int named = 0, more = 0;
  text[0] = '\0';
  for (uint32_t s = 0; s < n; s++) {
    int ranks = 0;
    for (int32_t r = 0; r < reducer->comm->size; r++)
      ranks += (flags[(size_t)r * n + s] & flag) != 0;
    if (ranks == 0)
      continue;
    if (named++ >= NAMED) {
      more++;
      continue;
    }
    append(text, named > 1 ? "; '%.120s' on" : "'%.120s' on", reducer->slots.items[s].leaf->name, 0);
    append(text, "%s", ranks > 1 ? " ranks" : " rank", 0);
    for (int32_t r = 0, first = 1; r < reducer->comm->size; r++) {
      if ((flags[(size_t)r * n + s] & flag) == 0)
        continue;
      append(text, first ? " %d" : ", %d", NULL, r);
      first = 0;
    }
  }
  if (more > 0)
    append(text, "; and %d more", NULL, more);
}

static ordo_status report(ddp_reducer *reducer, uint8_t seen)
{
  const uint32_t n = reducer->slots.n;
  const problem *found = PROBLEMS;
  while ((found->flag & seen) == 0)
    found++;
  uint8_t *mine = ddp_alloc(reducer->job, n, 1), *all = ddp_alloc(reducer->job, (uint64_t)n * (uint64_t)reducer->comm->size, 1);
  ordo_status status = mine != NULL && all != NULL ? ORDO_OK : ORDO_E_NOMEM;
  for (uint32_t s = 0; status == ORDO_OK && s < n; s++)
    mine[s] = reducer->slots.items[s].problem;
  if (status == ORDO_OK)
    status = ordo_all_gather(reducer->comm, mine, all, n, ORDO_U8);
  if (status == ORDO_OK) {
    char places[TEXT];
    list_places(reducer, all, found->flag, places);
    status = ddp_fail(reducer->job, found->status, found->hint, "step %lld of model '%s': a parameter %s: %s (of axis '%s')",
                      (long long)reducer->step, reducer->job->model->name, found->what, places, reducer->job->axis->name);
  }
  ddp_free(reducer->job, mine);
  ddp_free(reducer->job, all);
  return status;
}

ordo_status ddp_vote_problems(ddp_reducer *reducer)
{
  const int32_t size = reducer->comm->size;
  uint8_t mine = 0, seen = 0;
  for (uint32_t s = 0; s < reducer->slots.n; s++)
    mine |= reducer->slots.items[s].problem;
  uint8_t *all = ddp_alloc(reducer->job, (uint64_t)size, 1);
  if (all == NULL)
    return ORDO_E_NOMEM;
  ordo_status status = ordo_all_gather(reducer->comm, &mine, all, 1, ORDO_U8);
  for (int32_t r = 0; r < size; r++)
    seen |= all[r];
  ddp_free(reducer->job, all);
  return status == ORDO_OK && seen != 0 ? report(reducer, seen) : status;
}

ordo_status ddp_vote_used(ddp_reducer *reducer)
{
  const uint32_t n = reducer->slots.n;
  int32_t *used = ddp_alloc(reducer->job, n, sizeof *used);
  if (used == NULL)
    return ORDO_E_NOMEM;
  for (uint32_t s = 0; s < n; s++)
    used[s] = reducer->slots.items[s].used;
  ordo_status status = ordo_all_reduce(reducer->comm, used, n, ORDO_I32, ORDO_MAX, 1.0);
  for (uint32_t s = 0; status == ORDO_OK && s < n; s++)
    reducer->slots.items[s].global = used[s] != 0;
  ddp_free(reducer->job, used);
  return status;
}
