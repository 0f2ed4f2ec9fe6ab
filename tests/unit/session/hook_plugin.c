/* hook_plugin.c - a comm hook in a file of its own, for test_hook.c: start writes its option into the bucket. */
#include <ordo/comm_hook.h>
#include <ordo/manifest.h>
#include <ordo/plugin.h>
#include <string.h>

ORDO_MANIFEST("id=testhook\nkind=comm_hook\nversion=1.0.0\nsummary=writes a number\noption=value|int|7|1..9|what it writes\n");

static ordo_status create(const ordo_job *job, void **instance)
{
  *instance = job->alloc(job->ctx, sizeof(int64_t), ORDO_MEM_COMM);
  return *instance ? job->option_int(job->ctx, "value", *instance) : ORDO_E_NOMEM;
}

static void destroy(void *instance)
{
  (void)instance; /* the job's memory goes with the session */
}

static ordo_status start(void *instance, const ordo_bucket *bucket, void **handle)
{
  bucket->data[0] = (float)*(int64_t *)instance;
  *handle = instance;
  return ORDO_OK;
}

static ordo_status finish(void *instance, const ordo_bucket *bucket, void *handle)
{
  (void)instance, (void)bucket, (void)handle;
  return ORDO_OK;
}

static const ordo_comm_hook hook = {.struct_size = sizeof hook, .create = create, .destroy = destroy, .start = start, .finish = finish};

static const void *get_extension(const char *id)
{
  return id && strcmp(id, ORDO_COMM_HOOK_EXTENSION) == 0 ? &hook : NULL;
}

ORDO_PLUGIN_ENTRY("testhook", "1.0.0", NULL, NULL, get_extension);
