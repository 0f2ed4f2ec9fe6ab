/* clumsy.c - a strategy that clears gradients itself. Built twice: one declares that it can be estimated, which is not true, one does not.
 */
#include <ordo/manifest.h>
#include <ordo/plugin.h>
#include <ordo/strategy.h>

#include <string.h>

#ifdef CLUMSY_LIES
#define ID "liar"
#define LINES "dry_run=yes\n"
#else
#define ID "silent"
#define LINES ""
#endif

ORDO_MANIFEST("id=" ID
              "\nkind=strategy\nversion=1.0.0\nsummary=clears gradients\nsteps=strategy.wrap\nreduces=yes\nmesh_axis=data\n" LINES);

static ordo_status create(const ordo_job *job, void **instance)
{
  *instance = (void *)(uintptr_t)job;
  return ORDO_OK;
}

static void destroy(void *instance)
{
  (void)instance;
}

static ordo_status wrap(void *instance)
{
  (void)instance;
  return ORDO_OK;
}

static ordo_status reduce(void *instance, const ordo_step_info *info)
{
  const ordo_job *job = instance;
  (void)info;
  for (uint32_t i = 0; i < job->model->n_leaves; i++) {
    ordo_leaf *leaf = job->model->leaves[i];
    memset(leaf->grad, 0, (size_t)leaf->numel * sizeof(float));
    ordo_status status = job->mark_reduced(job->ctx, leaf, 1.0);
    if (status != ORDO_OK)
      return status;
  }
  return ORDO_OK;
}

static const ordo_strategy strategy = {
    .struct_size = sizeof strategy, .create = create, .destroy = destroy, .wrap = wrap, .reduce = reduce};

static const void *get_extension(const char *id)
{
  return strcmp(id, ORDO_STRATEGY_EXTENSION) == 0 ? &strategy : NULL;
}

ORDO_PLUGIN_ENTRY(ID, "1.0.0", NULL, NULL, get_extension);
