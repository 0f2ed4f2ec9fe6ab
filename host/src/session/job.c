/* job.c - the ordo_job table of one plugin instance.
 *
 * Thin: every function finds its instance, checks what a plugin can get wrong, and hands over to the noun that does the work (leaves,
 * weights, memory). A wrong argument is an error record that names the plugin and the step, never a crash of the host.
 */
#include "session.h"

#include <math.h>

static const ordo_option_schema *schema_of(const ordo_instance *instance, const char *key)
{
  const ordo_manifest *manifest = instance->choice ? instance->choice->found->manifest : NULL;
  return manifest && key ? ordo_manifest_option(manifest, key) : NULL;
}

static ordo_status misuse(ordo_instance *instance, const char *what, const char *why)
{
  g_autofree char *where =
      g_strdup_printf("plugin '%s', %s", instance->plugin->id, instance->session->where ? instance->session->where : "outside of a step");
  return ordo_errors_push(ordo_session_errors(instance->session), ORDO_E_INVALID, "E-JOB-ARGUMENT", where, why,
                          "this is a defect of the plugin: report it to its author with this text", "%s", what);
}

static const char *job_option(void *ctx, const char *key)
{
  const ordo_instance *instance = ctx;
  return instance->choice && key ? g_hash_table_lookup(instance->choice->options, key) : NULL;
}

static ordo_status job_option_int(void *ctx, const char *key, int64_t *value)
{
  ordo_instance *instance = ctx;
  const ordo_option_schema *schema = schema_of(instance, key);
  const char *text = job_option(ctx, key);
  gint64 converted;
  if (!schema)
    return misuse(instance, "an option was asked for that the manifest lacks", key);
  if (!text)
    return ORDO_E_NOT_FOUND;
  if (!ordo_option_to_int(schema, text, &converted))
    return misuse(instance, "an option was asked for as an integer, but its type is another", key);
  *value = converted;
  return ORDO_OK;
}

static ordo_status job_option_real(void *ctx, const char *key, double *value)
{
  ordo_instance *instance = ctx;
  const ordo_option_schema *schema = schema_of(instance, key);
  const char *text = job_option(ctx, key);
  double converted;
  if (!schema)
    return misuse(instance, "an option was asked for that the manifest lacks", key);
  if (!text)
    return ORDO_E_NOT_FOUND;
  if (!ordo_option_to_real(schema, text, &converted))
    return misuse(instance, "an option was asked for as a real number, but its type is another", key);
  *value = converted;
  return ORDO_OK;
}

static void *job_alloc(void *ctx, size_t bytes, uint32_t tag)
{
  return ordo_memory_alloc(((ordo_instance *)ctx)->session->memory, bytes, tag);
}

static void job_free(void *ctx, void *memory)
{
  const ordo_instance *instance = ctx;
  if (!ordo_memory_release(instance->session->memory, memory))
    ordo_context_log(instance->session->context, ORDO_LOG_PLUGIN_BREACH,
                     "%s: job->free was given memory that job->alloc did not return, or twice", instance->plugin->id);
}

static ordo_status job_bind(void *ctx, const ordo_param *param, void *data, void *grad)
{
  ordo_instance *instance = ctx;
  ordo_param_record *record = ordo_model_param(instance->model, param);
  return record ? ordo_leaves_bind(instance->model, record, data, grad)
                : misuse(instance, "bind was given a parameter of another model", NULL);
}

static ordo_status job_replace_leaves(void *ctx, const ordo_leaf_spec *specs, size_t n_specs, const ordo_leaf_link *links, size_t n_links)
{
  ordo_instance *instance = ctx;
  if ((n_specs && !specs) || (n_links && !links) || !instance->decl)
    return misuse(instance, "replace_leaves was called without specs or links", "they may be null only when their number is 0");
  return ordo_leaves_replace(instance, specs, n_specs, links, n_links);
}

/* The live leaf behind a pointer; null with a record otherwise. */
static ordo_leaf_record *live(ordo_instance *instance, ordo_leaf *leaf, ordo_status *status)
{
  ordo_leaf_record *record = (ordo_leaf_record *)leaf;
  if (!leaf || record->model != instance->model)
    *status = misuse(instance, "a leaf of another model was passed", leaf ? leaf->name : "null");
  else if (leaf->state != ORDO_LEAF_LIVE)
    *status = ordo_leaves_stale(instance->session, leaf);
  else
    return record;
  return NULL;
}

static ordo_status job_set_master(void *ctx, ordo_leaf *leaf, float *data, float *grad)
{
  ordo_status status;
  ordo_leaf_record *record = live(ctx, leaf, &status);
  return record ? ordo_leaves_set_master(ctx, record, data, grad) : status;
}

static ordo_status job_set_grad(void *ctx, ordo_leaf *leaf, void *grad)
{
  ordo_status status;
  ordo_leaf_record *record = live(ctx, leaf, &status);
  if (!record)
    return status;
  record->leaf.grad = grad;
  return ORDO_OK;
}

static ordo_status job_mark_grad(void *ctx, ordo_leaf *leaf, uint32_t grad_state)
{
  ordo_status status;
  ordo_leaf_record *record = live(ctx, leaf, &status);
  if (!record)
    return status;
  if (grad_state > ORDO_GRAD_HELD)
    return misuse(ctx, "mark_grad was given an unknown state", leaf->name);
  record->leaf.grad_state = grad_state;
  return ORDO_OK;
}

static ordo_status job_mark_reduced(void *ctx, ordo_leaf *leaf, double divided_by)
{
  ordo_instance *instance = ctx;
  const ordo_axis *axis = instance->job.axis;
  ordo_status status;
  ordo_leaf_record *record = live(instance, leaf, &status);
  if (!record)
    return status;
  if (!axis)
    return misuse(instance, "mark_reduced was called by an instance without an axis", leaf->name);
  if (!(divided_by > 0.0) || !isfinite(divided_by))
    return misuse(instance, "mark_reduced was given a divisor that is not a number above 0", leaf->name);
  if (!record->placement.grad_partial[axis->index]) {
    record->reduced_twice |= 1u << axis->index;
    g_autofree char *where = g_strdup_printf("plugin '%s', %s", instance->plugin->id, instance->session->where);
    return ordo_errors_push(ordo_session_errors(instance->session), ORDO_E_INVARIANT, "E-INVARIANT-REDUCED-TWICE", where,
                            "its placement says so: the strategy that made the leaf sums over this axis as well, or nobody has to",
                            "a strategy leaves out leaves whose grad_partial is 0 on its axis",
                            "the gradient of leaf '%s' was reduced over axis '%s', on which it is not partial", leaf->name, axis->name);
  }
  if (record->reduced & (1u << axis->index)) {
    record->reduced_twice |= 1u << axis->index;
    g_autofree char *where = g_strdup_printf("plugin '%s', %s", instance->plugin->id, instance->session->where);
    return ordo_errors_push(ordo_session_errors(instance->session), ORDO_E_INVARIANT, "E-INVARIANT-REDUCED-TWICE", where,
                            "a second sum over the same ranks multiplies the gradient by their number",
                            "see `ordo plan --explain` for who reduces on that axis; the second one is at fault",
                            "the gradient of leaf '%s' was reduced twice over axis '%s'", leaf->name, axis->name);
  }
  record->reduced |= 1u << axis->index;
  record->divided_by *= divided_by;
  return ORDO_OK;
}

static ordo_optimizer *job_optimizer(void *ctx)
{
  return ((ordo_instance *)ctx)->model->optimizer;
}

static ordo_status job_read_weights(void *ctx, const ordo_chunk *chunk, float *dst)
{
  ordo_instance *instance = ctx;
  if (!chunk || !dst)
    return misuse(instance, "read_weights was given a null chunk or destination", NULL);
  return instance->session->space ? ORDO_OK : ordo_weights_read_chunk(instance->model, chunk, dst);
}

static ordo_status job_run_units(void *ctx, uint32_t first, uint32_t last, int32_t micro_batch, int32_t direction, const float *in,
                                 float *out)
{
  ordo_instance *instance = ctx;
  const ordo_embedder *embedder = &instance->session->embedder;
  size_t before = ordo_errors_count(ordo_session_errors(instance->session));
  if (last >= instance->model->view.n_units || first > last || (direction != 1 && direction != -1))
    return misuse(instance, "run_units was given a range or direction that does not exist", "first <= last < n_units, direction +1 or -1");
  if (!embedder->run_units)
    return ordo_errors_push(ordo_session_errors(instance->session), ORDO_E_UNSUPPORTED, "E-EMBEDDER-CANNOT", instance->plugin->id,
                            "its ordo_embedder has no run_units", "use a strategy that keeps the embedder's loop",
                            "the program cannot run ranges of units");
  return ordo_session_embedder_status(
      instance->session, "run_units",
      embedder->run_units(embedder->ctx, &instance->model->view, first, last, micro_batch, direction, in, out), before);
}

static int64_t job_activation_numel(void *ctx, uint32_t unit)
{
  const ordo_instance *instance = ctx;
  const ordo_embedder *embedder = &instance->session->embedder;
  if (!embedder->activation_numel || unit >= instance->model->view.n_units)
    return 0;
  return embedder->activation_numel(embedder->ctx, &instance->model->view, unit);
}

static const ordo_comm_hook *job_comm_hook(void *ctx, void **self)
{
  return ordo_plugins_hook(ctx, self);
}

static void job_metric(void *ctx, const char *name, double value)
{
  const ordo_instance *instance = ctx;
  const ordo_embedder *embedder = &instance->session->embedder;
  if (embedder->metric)
    embedder->metric(embedder->ctx, instance->plugin->id, name, value);
}

static double job_now(void *ctx)
{
  (void)ctx;
  return (double)g_get_monotonic_time() * 1e-6;
}

static void job_count_memory(void *ctx, int64_t bytes, uint32_t tag)
{
  const ordo_instance *instance = ctx;
  ordo_memory_count(instance->session->memory, bytes, tag < ORDO_N_MEM_TAGS ? tag : ORDO_MEM_OTHER);
}

static ordo_status job_set_allocator(void *ctx, uint32_t tag, const ordo_allocator *allocator)
{
  ordo_instance *instance = ctx;
  if (tag >= ORDO_N_MEM_TAGS || (allocator && (!ORDO_CAN(allocator, ordo_allocator, free) || !allocator->alloc)))
    return misuse(instance, "set_allocator was given an unknown tag, or an allocator without its functions", NULL);
  if (ordo_memory_set_allocator(instance->session->memory, tag, allocator, instance))
    return ORDO_OK;
  return ordo_errors_push(ordo_session_errors(instance->session), ORDO_E_STATE, "E-JOB-ALLOCATOR", instance->plugin->id,
                          "memory of one kind has one place", "let one strategy place it, see its options",
                          "another plugin already decides where this memory lies");
}

static ordo_status job_axis_part(void *ctx, int32_t size, const ordo_comm **part)
{
  ordo_instance *instance = ctx;
  ordo_session *session = instance->session;
  const ordo_axis *axis = instance->job.axis;
  if (!axis || size < 1 || axis->size % size != 0)
    return misuse(instance, "axis_part was given a size that does not divide the instance's axis", axis ? axis->name : "it has no axis");
  return ordo_account_part(session->account, session->comm, session->memory, axis->index, size, part);
}

static ordo_status job_convert_param(void *ctx, const ordo_param *param, ordo_dtype dtype, ordo_dtype grad_dtype, uint32_t flags)
{
  ordo_instance *instance = ctx;
  ordo_param_record *record = ordo_model_param(instance->model, param);
  return record ? ordo_convert_param(instance, record, dtype, grad_dtype, flags)
                : misuse(instance, "convert_param was given a parameter of another model", NULL);
}

static const ordo_precision *job_wire(void *ctx, void **self)
{
  return ordo_plugins_wire(((ordo_instance *)ctx)->model, self);
}

static ordo_status job_freeze(void *ctx, const ordo_param *param)
{
  ordo_instance *instance = ctx;
  ordo_param_record *record = ordo_model_param(instance->model, param);
  return record ? ordo_inject_freeze(instance, record) : misuse(instance, "freeze was given a parameter of another model", NULL);
}

static ordo_status job_store_param(void *ctx, const ordo_param *param, const ordo_dtype_ops *ops)
{
  ordo_instance *instance = ctx;
  ordo_param_record *record = ordo_model_param(instance->model, param);
  return record ? ordo_inject_store(instance, record, ops) : misuse(instance, "store_param was given a parameter of another model", NULL);
}

static ordo_status job_add_adapter(void *ctx, const ordo_adapter *adapter, const ordo_param **a, const ordo_param **b)
{
  ordo_instance *instance = ctx;
  if (!adapter || !ORDO_HAS(adapter, ordo_adapter, b) || !ordo_model_param(instance->model, adapter->base))
    return misuse(instance, "add_adapter was given an incomplete adapter, or a parameter of another model", NULL);
  return ordo_inject_adapter(instance, adapter, a, b);
}

void ordo_job_fill(ordo_instance *instance, const ordo_axis *axis)
{
  const ordo_session *session = instance->session;
  instance->job = (ordo_job){.struct_size = sizeof instance->job,
                             .ctx = instance,
                             .host = &instance->plugin->host,
                             .mesh = session->mesh,
                             .axis = axis,
                             .model = &instance->model->view,
                             .seed = session->options.seed,
                             .ordered = session->options.ordered ? 1 : 0,
                             .eval_only = session->eval_only ? 1 : 0,
                             .option = job_option,
                             .option_int = job_option_int,
                             .option_real = job_option_real,
                             .alloc = job_alloc,
                             .free = job_free,
                             .bind = job_bind,
                             .replace_leaves = job_replace_leaves,
                             .set_master = job_set_master,
                             .set_grad = job_set_grad,
                             .mark_grad = job_mark_grad,
                             .mark_reduced = job_mark_reduced,
                             .optimizer = job_optimizer,
                             .read_weights = job_read_weights,
                             .run_units = job_run_units,
                             .activation_numel = job_activation_numel,
                             .comm_hook = job_comm_hook,
                             .metric = job_metric,
                             .now = job_now,
                             .count_memory = job_count_memory,
                             .set_allocator = job_set_allocator,
                             .axis_part = job_axis_part,
                             .convert_param = job_convert_param,
                             .dry_run = session->space ? 1 : 0,
                             .wire = job_wire,
                             .freeze = job_freeze,
                             .store_param = job_store_param,
                             .add_adapter = job_add_adapter};
}
