/* bench_events.c - what one event of a training step costs the host: state check, walk over the plugins, state change.
 *
 * Three strategies whose functions do nothing but count; the figure is the median of 15 rounds of one million events. The limit of the
 * design is 100 ns for one event through three plugins. Prints the ratio to it and ends with 1 when it is missed. */
#include "../tests/unit/session/kit.h"

#include <stdio.h>
#include <stdlib.h>

enum { EVENTS = 1000000, ROUNDS = 15, PLUGINS = 3 };

static uint64_t counted;

static ordo_status count(void *self, const ordo_unit *unit)
{
  (void)self, (void)unit;
  counted++;
  return ORDO_OK;
}

static int compare(const void *a, const void *b)
{
  const double *x = a, *y = b;
  return (*x > *y) - (*x < *y);
}

static void replace(GArray *calls)
{
  for (guint i = 0; i < calls->len; i++)
    g_array_index(calls, ordo_unit_call, i).call = count;
}

static double round_ns(ordo_session *session)
{
  gint64 start = g_get_monotonic_time();
  for (int i = 0; i < EVENTS / 2; i++)
    if (ordo_session_pre_forward(session, 0, 1) != ORDO_OK || ordo_session_post_forward(session, 0, 1) != ORDO_OK)
      exit(2);
  return (double)(g_get_monotonic_time() - start) * 1e3 / EVENTS;
}

int main(void)
{
  kit *k = kit_new();
  double ns[ROUNDS];
  const ordo_model_calls *calls;
  kit_add(k, "a", KIT_DDP, 1);
  kit_add(k, "b", "steps=strategy.wrap\n", 0);
  kit_add(k, "c", "steps=strategy.wrap\n", 0);
  kit_setup(k);
  calls = &((ordo_model_state *)g_ptr_array_index(k->session->models, 0))->calls;
  if (calls->pre_forward->len != PLUGINS || calls->post_forward->len != PLUGINS || ordo_session_eval_begin(k->session) != ORDO_OK)
    return 2;
  replace(calls->pre_forward);
  replace(calls->post_forward);
  round_ns(k->session); /* warm */
  counted = 0;
  for (int i = 0; i < ROUNDS; i++)
    ns[i] = round_ns(k->session);
  qsort(ns, ROUNDS, sizeof ns[0], compare);
  printf("event through %d plugins: %.1f ns (min %.1f, max %.1f), %.2f of the limit of 100 ns\n", PLUGINS, ns[ROUNDS / 2], ns[0],
         ns[ROUNDS - 1], ns[ROUNDS / 2] / 100.0);
  if (counted != (uint64_t)ROUNDS * EVENTS * PLUGINS)
    return 2;
  ordo_session_eval_end(k->session);
  kit_free(k);
  return ns[ROUNDS / 2] < 100.0 ? 0 : 1;
}
