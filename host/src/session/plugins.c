/* plugins.c - the plugins of a session: opened, initialised, checked, instantiated, and torn down in reverse.
 *
 * A plugin gets one ordo_host table per session; its ctx says who is speaking, so that a record from deep inside a plugin carries the
 * plugin, the step and the rank without the author doing anything. Instances exist per (plugin, axis, model) and are made once every
 * model is described.
 *
 * Guarded against: a table that lacks a step which the manifest declared (found before anything runs, not as a null call in the middle of
 * the set-up), a status without an explanation, and half-made sessions: what was created is destroyed in reverse.
 */
#include "session.h"

#include <stdlib.h>

enum { LARGEST_TABLE = 64 << 10 }; /* bytes; a thousand functions have an eighth of it */

static void *host_alloc(void *ctx, size_t bytes)
{
  void *pointer = NULL;
  (void)ctx;
  return bytes && posix_memalign(&pointer, 64, bytes) == 0 ? pointer : NULL;
}

static void host_free(void *ctx, void *pointer)
{
  (void)ctx;
  free(pointer);
}

static ordo_status host_fail(void *ctx, ordo_status status, const char *text, const char *hint)
{
  const ordo_plugin_use *plugin = ctx;
  const char *step = plugin->session->where;
  g_autofree char *where = g_strdup_printf("plugin '%s', %s", plugin->id, step ? step : "outside of a step");
  status = ordo_plugin_known_status(status);
  if (status == ORDO_OK) /* a record of success would be taken for the status of the call that failed */
    status = ORDO_E_INTERNAL;
  return ordo_errors_push(ordo_session_errors(plugin->session), status, "E-PLUGIN-FAILED", where, NULL, hint, "%s",
                          text ? text : "(the plugin gave no text)");
}

static void host_log(void *ctx, int32_t severity, const char *text)
{
  const ordo_plugin_use *plugin = ctx;
  ordo_context_log(plugin->session->context, severity, "%s: %s", plugin->id, text ? text : "");
}

static const void *host_extension(void *ctx, const char *id)
{
  (void)ctx;
  (void)id;
  return NULL;
}

static void fill_host(ordo_plugin_use *plugin)
{
  const ordo_context *context = plugin->session->context;
  plugin->host = (ordo_host){.struct_size = sizeof plugin->host,
                             .abi_major = ORDO_ABI_MAJOR,
                             .abi_minor = ORDO_ABI_MINOR,
                             .ctx = plugin,
                             .library_version = ORDO_VERSION,
                             .program_name = context->program_name ? context->program_name : "unknown",
                             .program_version = context->program_version ? context->program_version : "",
                             .alloc = host_alloc,
                             .free = host_free,
                             .fail = host_fail,
                             .log = host_log,
                             .get_extension = host_extension};
}

/* The size is the plugin's word: what no table of any release can have means that the memory behind it is something else. */
static gboolean is_table_size(const void *table)
{
  size_t size = *(const size_t *)table;
  return size % sizeof(void *) == 0 && size <= LARGEST_TABLE;
}

static ordo_status find_table(ordo_plugin_use *plugin, uint32_t kind)
{
  const char *id = kind == ORDO_KIND_STRATEGY    ? ORDO_STRATEGY_EXTENSION
                   : kind == ORDO_KIND_PRECISION ? ORDO_PRECISION_EXTENSION
                                                 : ORDO_COMM_HOOK_EXTENSION;
  const void *table = plugin->entry->get_extension(id);
  gboolean whole;
  if (!table)
    return ordo_tables_refuse(plugin, "the plugin has no table for its kind", id);
  if (!is_table_size(table))
    return ordo_tables_refuse(plugin, "the struct_size of the plugin's table is impossible", id);
  if (kind == ORDO_KIND_STRATEGY) {
    plugin->strategy = table;
    whole = ORDO_CAN(plugin->strategy, ordo_strategy, create) && ORDO_CAN(plugin->strategy, ordo_strategy, destroy);
  } else if (kind == ORDO_KIND_PRECISION) {
    plugin->precision = table;
    whole = ORDO_CAN(plugin->precision, ordo_precision, create) && ORDO_CAN(plugin->precision, ordo_precision, destroy);
  } else {
    plugin->hook = table;
    whole = ORDO_CAN(plugin->hook, ordo_comm_hook, create) && ORDO_CAN(plugin->hook, ordo_comm_hook, destroy) &&
            ORDO_CAN(plugin->hook, ordo_comm_hook, start) && ORDO_CAN(plugin->hook, ordo_comm_hook, finish);
  }
  return whole ? ORDO_OK : ordo_tables_refuse(plugin, "the plugin's table lacks create, destroy or another required member", id);
}

static ordo_plugin_use *open_plugin(ordo_session *session, const ordo_found *found, uint32_t kind)
{
  ordo_plugin_use *plugin = g_new0(ordo_plugin_use, 1);
  size_t before;
  g_ptr_array_add(session->plugins, plugin);
  plugin->session = session;
  plugin->found = found;
  plugin->id = g_strdup(found->manifest ? found->manifest->id : found->info.id);
  fill_host(plugin);
  if (session->opener.open(session->opener.user, found, ordo_registry_flags(session->context->registry), ordo_session_errors(session),
                           &plugin->entry) != ORDO_OK)
    return NULL;
  session->where = "init";
  before = ordo_errors_count(ordo_session_errors(session));
  if (ORDO_CAN(plugin->entry, ordo_plugin, init) &&
      ordo_session_plugin_status(session, plugin, plugin->entry->init(&plugin->host), before) != ORDO_OK)
    return NULL;
  plugin->initialised = TRUE;
  return find_table(plugin, kind) == ORDO_OK ? plugin : NULL;
}

static ordo_plugin_use *find_open(ordo_session *session, const ordo_found *found)
{
  for (guint i = 0; i < session->plugins->len; i++) {
    ordo_plugin_use *plugin = g_ptr_array_index(session->plugins, i);
    if (plugin->found == found)
      return plugin;
  }
  return NULL;
}

static ordo_status first_status(ordo_session *session, size_t before)
{
  const ordo_error *error = ordo_errors_at(ordo_session_errors(session), before);
  return error ? error->status : ORDO_E_INTERNAL;
}

/* Before any of its code runs: a plugin that works on tensors would work on addresses without memory. */
static ordo_status check_dry(ordo_session *session, const ordo_found *found)
{
  const char *id = found->manifest ? found->manifest->id : found->info.id;
  g_autofree char *where = g_strdup_printf("plugin '%s'", id);
  if (!session->space || (found->manifest && found->manifest->dry_run))
    return ORDO_OK;
  return ordo_errors_push(ordo_session_errors(session), ORDO_E_UNSUPPORTED, "E-DRY-RUN-PLUGIN", where,
                          "its manifest has no line dry_run=yes: it may read and write tensors, and a dry run has none",
                          "estimate with other plugins, or measure a small run; its author adds the line (docs/plugin-author.md)",
                          "plugin '%s' cannot be estimated", id);
}

ordo_status ordo_plugins_check_dry(ordo_session *session)
{
  const GArray *providers = session->plan->providers;
  ordo_status first = ORDO_OK;
  for (guint i = 0; i < providers->len; i++) {
    ordo_status status = check_dry(session, g_array_index(providers, ordo_plan_provider, i).choice->found);
    first = first == ORDO_OK ? status : first;
  }
  return first;
}

ordo_status ordo_plugins_load(ordo_session *session)
{
  const GArray *providers = session->plan->providers;
  for (guint i = 0; i < providers->len; i++) {
    const ordo_plan_provider *provider = &g_array_index(providers, ordo_plan_provider, i);
    size_t before = ordo_errors_count(ordo_session_errors(session));
    ordo_plugin_use *plugin = find_open(session, provider->choice->found);
    ordo_status status;
    if (!plugin && !(plugin = open_plugin(session, provider->choice->found, provider->decl->kind)))
      return first_status(session, before);
    if ((status = ordo_tables_check(plugin, provider->decl)) != ORDO_OK)
      return status;
  }
  return ORDO_OK;
}

ordo_status ordo_plugins_probe(ordo_session *session)
{
  session->where = "probe";
  for (guint i = 0; i < session->plugins->len; i++) {
    ordo_plugin_use *plugin = g_ptr_array_index(session->plugins, i);
    size_t before = ordo_errors_count(ordo_session_errors(session));
    ordo_status status = ORDO_OK;
    if (plugin->strategy && ORDO_CAN(plugin->strategy, ordo_strategy, probe))
      status = plugin->strategy->probe(&plugin->host);
    else if (plugin->precision && ORDO_CAN(plugin->precision, ordo_precision, probe))
      status = plugin->precision->probe(&plugin->host);
    if (status != ORDO_OK)
      return ordo_session_plugin_status(session, plugin, status, before);
  }
  return ORDO_OK;
}

static ordo_instance *instance_new(ordo_session *session, ordo_plugin_use *plugin, ordo_model_state *model, const ordo_axis *axis)
{
  ordo_instance *instance = g_new0(ordo_instance, 1);
  instance->session = session;
  instance->plugin = plugin;
  instance->model = model;
  ordo_job_fill(instance, axis);
  return instance;
}

static ordo_status create_instance(ordo_session *session, guint index, ordo_model_state *model)
{
  const ordo_plan_provider *provider = &g_array_index(session->plan->providers, ordo_plan_provider, index);
  ordo_plugin_use *plugin = find_open(session, provider->choice->found);
  const ordo_axis *axis = provider->axis >= 0 ? session->mesh->axes[provider->axis] : NULL;
  ordo_instance *instance = instance_new(session, plugin, model, axis);
  size_t before = ordo_errors_count(ordo_session_errors(session));
  ordo_status status;
  instance->decl = provider->decl;
  instance->choice = provider->choice;
  instance->provider = index;
  session->where = "create";
  status = plugin->strategy ? plugin->strategy->create(&instance->job, &instance->self)
                            : plugin->precision->create(&instance->job, &instance->self);
  if (status == ORDO_OK && !instance->self) {
    g_free(instance);
    return ordo_tables_refuse(plugin, "create returned ORDO_OK without an instance",
                              "the instance is the first argument of every other function");
  }
  if (status != ORDO_OK) {
    g_free(instance);
    return ordo_session_plugin_status(session, plugin, status, before);
  }
  g_ptr_array_add(session->instances, instance);
  return ORDO_OK;
}

/* `validate` of all instances before `setup_environment` of the first: nothing is touched while a reason to stop is still unknown. */
static ordo_status prepare_instances(ordo_session *session, const char *what, gboolean environment)
{
  session->where = what;
  for (guint i = 0; i < session->instances->len; i++) {
    const ordo_instance *instance = g_ptr_array_index(session->instances, i);
    const ordo_strategy *strategy = instance->plugin->strategy;
    const ordo_precision *precision = instance->plugin->precision;
    size_t before = ordo_errors_count(ordo_session_errors(session));
    ordo_status status = ORDO_OK;
    if (environment)
      status = strategy && ORDO_CAN(strategy, ordo_strategy, setup_environment) ? strategy->setup_environment(instance->self) : ORDO_OK;
    else if (strategy && ORDO_CAN(strategy, ordo_strategy, validate))
      status = strategy->validate(instance->self);
    else if (precision && ORDO_CAN(precision, ordo_precision, validate))
      status = precision->validate(instance->self);
    if (status != ORDO_OK)
      return ordo_session_plugin_status(session, instance->plugin, status, before);
  }
  return ORDO_OK;
}

ordo_status ordo_plugins_make_instances(ordo_session *session)
{
  ordo_status status = ORDO_OK;
  for (guint i = 0; i < session->plan->providers->len; i++) {
    const ordo_plan_provider *provider = &g_array_index(session->plan->providers, ordo_plan_provider, i);
    for (guint m = 0; m < session->models->len && status == ORDO_OK; m++)
      if (provider->decl->model_mask & (1u << m))
        status = create_instance(session, i, g_ptr_array_index(session->models, m));
    if (status != ORDO_OK)
      return status;
  }
  session->instances_made = TRUE;
  if ((status = prepare_instances(session, "validate", FALSE)) != ORDO_OK)
    return status;
  return prepare_instances(session, "setup_environment", TRUE);
}

static void destroy_hook(ordo_instance *hook)
{
  if (!hook)
    return;
  hook->plugin->hook->destroy(hook->self);
  g_clear_pointer(&hook->hook_choice, g_ptr_array_unref);
  g_free(hook);
}

void ordo_plugins_destroy_instances(ordo_session *session)
{
  session->where = "destroy";
  while (session->instances->len) {
    ordo_instance *instance = g_ptr_array_index(session->instances, session->instances->len - 1);
    ordo_memory_drop_owner(session->memory, instance);
    if (instance->plugin->strategy)
      instance->plugin->strategy->destroy(instance->self);
    else
      instance->plugin->precision->destroy(instance->self);
    destroy_hook(instance->hook);
    g_ptr_array_set_size(session->instances, (gint)session->instances->len - 1);
    g_free(instance);
  }
}

void ordo_plugins_unload(ordo_session *session)
{
  session->where = "deinit";
  while (session->plugins->len) {
    ordo_plugin_use *plugin = g_ptr_array_index(session->plugins, session->plugins->len - 1);
    if (plugin->initialised && ORDO_CAN(plugin->entry, ordo_plugin, deinit))
      plugin->entry->deinit();
    g_ptr_array_set_size(session->plugins, (gint)session->plugins->len - 1);
    g_free(plugin->id);
    g_free(plugin);
  }
}

/* ---- the packer of what is gathered, as strategies see it: refusals are those of its own plugin, not of the strategy that called ---- */

static ordo_status wire_status(ordo_instance *instance, const char *where,
                               ordo_status (*call)(void *, const ordo_leaf *, const void *, int64_t, void *), const ordo_leaf *leaf,
                               const void *src, int64_t n, void *dst)
{
  ordo_session *session = instance->session;
  const char *outer = session->where;
  size_t before = ordo_errors_count(ordo_session_errors(session));
  session->where = where;
  ordo_status status = ordo_session_plugin_status(session, instance->plugin, call(instance->self, leaf, src, n, dst), before);
  session->where = outer;
  return status;
}

static ordo_status wire_pack(void *self, const ordo_leaf *leaf, const void *src, int64_t n, void *wire)
{
  ordo_instance *instance = self;
  return wire_status(instance, "pre_all_gather", instance->plugin->precision->pre_all_gather, leaf, src, n, wire);
}

static ordo_status wire_unpack(void *self, const ordo_leaf *leaf, const void *wire, int64_t n, void *dst)
{
  ordo_instance *instance = self;
  return wire_status(instance, "post_all_gather", instance->plugin->precision->post_all_gather, leaf, wire, n, dst);
}

static int64_t wire_bytes(void *self, const ordo_leaf *leaf, int64_t n)
{
  ordo_instance *instance = self;
  return instance->plugin->precision->wire_bytes(instance->self, leaf, n);
}

static const ordo_precision guarded_wire = {
    .struct_size = sizeof guarded_wire, .pre_all_gather = wire_pack, .post_all_gather = wire_unpack, .wire_bytes = wire_bytes};

const ordo_precision *ordo_plugins_wire(const ordo_model_state *model, void **self)
{
  const GPtrArray *instances = model->session->instances;
  *self = NULL;
  for (guint i = 0; i < instances->len; i++) {
    ordo_instance *instance = g_ptr_array_index(instances, i);
    const ordo_precision *table = instance->plugin->precision;
    if (instance->model != model || !table || !ORDO_CAN(table, ordo_precision, wire_bytes))
      continue; /* all three are there: the table was checked */
    *self = instance;
    return &guarded_wire;
  }
  return NULL;
}

/* A comm hook is a plugin with options of its own, made on first use for one strategy instance. */
const ordo_comm_hook *ordo_plugins_hook(ordo_instance *instance, void **self)
{
  ordo_session *session = instance->session;
  ordo_errors *errors = ordo_session_errors(session);
  const char *name = instance->job.option(instance->job.ctx, "hook"), *step = session->where;
  g_autoptr(GPtrArray) choices = NULL;
  const ordo_choice *choice;
  ordo_plugin_use *plugin;
  ordo_instance *hook;
  size_t before;
  *self = NULL;
  if (instance->hook) {
    *self = instance->hook->self;
    return instance->hook->plugin->hook;
  }
  if (!name || !*name || !g_strcmp0(name, "none") ||
      !(choices = ordo_expression_parse(name, ORDO_KIND_COMM_HOOK, session->context->registry, errors)) || choices->len != 1)
    return NULL;
  choice = g_ptr_array_index(choices, 0);
  if (check_dry(session, choice->found) != ORDO_OK)
    return NULL;
  plugin = find_open(session, choice->found);
  if (!plugin)
    plugin = open_plugin(session, choice->found, ORDO_KIND_COMM_HOOK);
  session->where = step; /* what fails from here on fails in the strategy's step again */
  if (!plugin)
    return NULL;
  hook = instance_new(session, plugin, instance->model, instance->job.axis);
  hook->choice = choice;
  before = ordo_errors_count(errors);
  if (ordo_session_plugin_status(session, plugin, plugin->hook->create(&hook->job, &hook->self), before) != ORDO_OK) {
    g_free(hook);
    return NULL;
  }
  hook->hook_choice = g_steal_pointer(&choices);
  instance->hook = hook;
  *self = hook->self;
  return plugin->hook;
}
