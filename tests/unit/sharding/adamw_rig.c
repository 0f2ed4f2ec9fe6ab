/* adamw_rig.c - see adamw_rig.h. */
#include "adamw_rig.h"

#include "leaf_optimizer.h"

#include <stdlib.h>
#include <string.h>

static ordo_status adamw(void *ctx, const ordo_model *model, ordo_optimizer *optimizer)
{
  static const ordo_leaf_optimizer_options options = {0, 0.01, 0.9, 0.95, 1e-8, 0.1, 0.0};
  return ordo_leaf_optimizer_create(rig_context, ((rig *)ctx)->session, &options, model, optimizer);
}

rig_options adamw_options(const char *strategy)
{
  return (rig_options){.strategy = strategy, .rebinds = 1, .ordered = 1, .no_decay = 1, .optimizer = adamw};
}

void dictionary_new(dictionary *d)
{
  for (int p = 0; p < RIG_PARAMS; p++)
    for (int s = 0; s < SLOTS; s++)
      d->values[p][s] = calloc((size_t)rig_numel(p) + 1, sizeof(float));
}

void dictionary_free(dictionary *d)
{
  for (int p = 0; p < RIG_PARAMS; p++)
    for (int s = 0; s < SLOTS; s++)
      free(d->values[p][s]);
}

void dictionary_export(rig *r, dictionary *d)
{
  for (int p = 0; p < RIG_PARAMS; p++) {
    const ordo_param *param = r->model->params[p];
    for (int s = 0; s < SLOTS; s++)
      rig_ok(ordo_session_export_param(r->session, param, s - 1, rig_rank % 2 == 0 ? d->values[p][s] : NULL), "export_param");
    for (int s = 0; s < SLOTS && rig_rank % 2 != 0; s++) /* others took part only; next time round they want it themselves */
      memset(d->values[p][s], 0, (size_t)rig_numel(p) * sizeof(float));
    for (int s = 0; s < SLOTS; s++)
      rig_ok(ordo_session_export_param(r->session, param, s - 1, d->values[p][s]), "export_param");
    rig_ok(ordo_session_export_updates(r->session, param, &d->updates[p]), "export_updates");
  }
}

void dictionary_same(const dictionary *a, const dictionary *b)
{
  for (int p = 0; p < RIG_PARAMS; p++) {
    assert_int_equal(a->updates[p], b->updates[p]);
    for (int s = 0; s < SLOTS; s++)
      assert_memory_equal(a->values[p][s], b->values[p][s], (size_t)rig_numel(p) * sizeof(float));
  }
}
