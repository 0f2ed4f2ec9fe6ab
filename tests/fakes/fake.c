/* fake.c - a plugin that does nothing, for every manifest of fakes.h: -DFAKE_MANIFEST=FAKE_DDP -DFAKE_ID="ddp".
 *
 * The tables are complete (each step that some manifest declares is there and succeeds), so loading one is legal and only its manifest
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

static const ordo_strategy strategy = {
    .struct_size = sizeof strategy,
    .create = create,
    .destroy = destroy,
    .inject = succeed,
    .partition = succeed,
    .wrap = succeed,
    .prepare_joint = succeed_with_optimizer,
    .prepare_optimizer = succeed_with_optimizer,
    .reduce = reduce,
};

static const ordo_precision precision = {
    .struct_size = sizeof precision,
    .create = create,
    .destroy = destroy,
    .convert_model = succeed,
    .wrap_optimizer = succeed_with_optimizer,
    .initialize = succeed_with_optimizer,
};

static ordo_status post_step(void *self, const ordo_step_info *info)
{
  (void)info;
  return succeed(self);
}

/* The same for a manifest that declares events=step.post_step. */
static const ordo_strategy strategy_with_event = {
    .struct_size = sizeof strategy_with_event,
    .create = create,
    .destroy = destroy,
    .prepare_optimizer = succeed_with_optimizer,
    .reduce = reduce,
    .post_step = post_step,
};

static const void *get_extension(const char *id)
{
  if (!id)
    return NULL;
  if (strcmp(id, ORDO_STRATEGY_EXTENSION) == 0 && strstr(FAKE_MANIFEST, "\nkind=strategy\n"))
    return strstr(FAKE_MANIFEST, "events=step.post_step") ? &strategy_with_event : &strategy;
  if (strcmp(id, ORDO_PRECISION_EXTENSION) == 0 && strstr(FAKE_MANIFEST, "\nkind=precision\n"))
    return &precision;
  return NULL;
}

ORDO_PLUGIN_ENTRY(FAKE_ID, "1.0.0", NULL, NULL, get_extension);
