/* fake.c - a plugin that does nothing, for every manifest of fakes.h: -DFAKE_MANIFEST=FAKE_DDP -DFAKE_ID="ddp".
 *
 * The table is filled from the manifest (each step that it declares is there and succeeds), so loading one is legal and only its manifest
 * tells it from another. */
#include "fakes.h"
#include <ordo/manifest.h>
#include <ordo/plugin.h>
#include <ordo/precision.h>
#include <ordo/strategy.h>
#include <string.h>

ORDO_MANIFEST(FAKE_MANIFEST);

static int instance_storage;

static ordo_status create(const ordo_job *job, void **instance)
{
  (void)job;
  *instance = &instance_storage; /* never written: all instances may share it */
  return ORDO_OK;
}

static void destroy(void *self)
{
  (void)self;
}

static ordo_status succeed(void *self)
{
  (void)self;
  return ORDO_OK;
}

static ordo_status succeed_with_optimizer(void *self, ordo_optimizer *optimizer)
{
  (void)self;
  (void)optimizer;
  return ORDO_OK;
}

static ordo_status reduce(void *self, const ordo_step_info *info)
{
  (void)self;
  (void)info;
  return ORDO_OK;
}

static ordo_status post_step(void *self, const ordo_step_info *info)
{
  (void)info;
  return succeed(self);
}

static int declares(const char *words)
{
  return strstr(FAKE_MANIFEST, words) != NULL;
}

/* A table has what its manifest declares, and nothing else. */
static const ordo_strategy *fill_strategy(void)
{
  static ordo_strategy table = {.struct_size = sizeof table, .create = create, .destroy = destroy};
  table.inject = declares("model.inject") ? succeed : NULL;
  table.partition = declares("strategy.partition") ? succeed : NULL;
  table.wrap = declares("strategy.wrap") ? succeed : NULL;
  table.prepare_joint = declares("strategy.prepare_joint") ? succeed_with_optimizer : NULL;
  table.prepare_optimizer = declares("strategy.prepare_optimizer") ? succeed_with_optimizer : NULL;
  table.reduce = declares("reduces=yes") ? reduce : NULL;
  table.post_step = declares("events=step.post_step") ? post_step : NULL;
  return &table;
}

static const ordo_precision *fill_precision(void)
{
  static ordo_precision table = {.struct_size = sizeof table, .create = create, .destroy = destroy};
  table.inject = declares("model.inject") ? succeed : NULL;
  table.convert_model = declares("precision.convert_model") ? succeed : NULL;
  table.wrap_optimizer = declares("precision.wrap_optimizer") ? succeed_with_optimizer : NULL;
  table.initialize = declares("precision.initialize") ? succeed_with_optimizer : NULL;
  return &table;
}

static const void *get_extension(const char *id)
{
  if (!id)
    return NULL;
  if (strcmp(id, ORDO_STRATEGY_EXTENSION) == 0 && declares("\nkind=strategy\n"))
    return fill_strategy();
  if (strcmp(id, ORDO_PRECISION_EXTENSION) == 0 && declares("\nkind=precision\n"))
    return fill_precision();
  return NULL;
}

ORDO_PLUGIN_ENTRY(FAKE_ID, "1.0.0", NULL, NULL, get_extension);
