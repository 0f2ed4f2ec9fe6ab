/* session.c - life cycle of a session, its error paths, and the calls that only look.
 *
 * create loads and checks, dispatch.c sets up, step.c trains, destroy tears down in reverse. What every call shares is here: the state of
 * the session, the refusal that names both states, and the two ends of a failure. A failed set-up leaves a session that can only be
 * destroyed; a lost rank or a missed deadline leaves a dead one that answers every call with that error at once, because no collective
 * can be trusted any more.
 */
#include "session.h"
#include "../comm/channel.h"
#include "../discovery/loader.h"

#include <string.h>

static const struct {
  ordo_session_state state;
  const char *text;
} state_names[ORDO_N_SESSION_STATES] = {
    {ORDO_SESSION_SETUP, "in set-up"},
    {ORDO_SESSION_FAILED, "failed"},
    {ORDO_SESSION_DEAD, "dead"},
    {ORDO_SESSION_READY, "between training steps"},
    {ORDO_SESSION_STEP, "in a step, between micro-batches"},
    {ORDO_SESSION_MICRO, "in a micro-batch, between the forwards of two units"},
    {ORDO_SESSION_FORWARD, "in the forward of a unit"},
    {ORDO_SESSION_BETWEEN, "in a micro-batch, between the backwards of two units"},
    {ORDO_SESSION_BACKWARD, "in the backward of a unit"},
    {ORDO_SESSION_REDUCED, "in a step, gradients reduced"},
    {ORDO_SESSION_EVAL, "evaluating, between units"},
    {ORDO_SESSION_EVAL_FORWARD, "evaluating, in the forward of a unit"},
};

gsize ordo_session_this_thread(void)
{
  return (gsize)g_thread_self();
}

/* Names a state for error texts; freed by the caller. */
static char *state_text(const ordo_session *session)
{
  const char *text = state_names[session->state].text;
  const ordo_model_state *model;
  switch (session->state) {
  case ORDO_SESSION_SETUP:
    if (session->next_node < session->plan->resolution->nodes->len)
      return g_strdup_printf("%s, %s is due", text, g_array_index(session->plan->resolution->nodes, ordo_node, session->next_node).id);
    return g_strdup(text);
  case ORDO_SESSION_FORWARD:
  case ORDO_SESSION_BACKWARD:
  case ORDO_SESSION_EVAL_FORWARD:
    model = g_ptr_array_index(session->models, session->open_model);
    return g_strdup_printf("%s ('%s')", text, model->view.units[session->open_unit]->name);
  case ORDO_SESSION_STEP:
    return g_strdup_printf("%s (%d of %d done)", text, session->info.micro_batch, session->info.n_micro_batches);
  default:
    return g_strdup(text);
  }
}

ordo_status ordo_session_refuse(ordo_session *session, const char *call, const char *legal)
{
  g_autofree char *state = NULL, *why = NULL;
  if (session->state == ORDO_SESSION_DEAD)
    return ordo_errors_push(ordo_session_errors(session), session->dead_status,
                            session->dead_status == ORDO_E_TIMEOUT ? "E-COMM-TIMEOUT" : "E-COMM-PEER-LOST", call, session->dead_text,
                            "destroy the session and start the run again from its last checkpoint", "the session is dead");
  if (session->state == ORDO_SESSION_FAILED)
    return ordo_errors_push(ordo_session_errors(session), ORDO_E_STATE, "E-STATE-FAILED", call, session->dead_text,
                            "destroy the session and create a new one", "the session failed before and can only be destroyed");
  state = state_text(session);
  why = g_strdup_printf("the session is %s; %s is legal %s", state, call, legal);
  return ordo_errors_push(ordo_session_errors(session), ORDO_E_STATE, "E-STATE-ORDER", call, why, "keep the order of session.h",
                          "%s was called out of order", call);
}

/* A collective of the host itself leaves no record; the provider knows more. To be called before anything is torn down, whose own errors
 * would otherwise be read as the cause. */
void ordo_session_explain(ordo_session *session, ordo_status status)
{
  const gboolean lost = status == ORDO_E_TIMEOUT || status == ORDO_E_PEER_LOST;
  const char *text = session->comm && session->comm->error_text ? session->comm->error_text(session->comm->ctx) : NULL;
  const char *code = status == ORDO_E_TIMEOUT ? "E-COMM-TIMEOUT" : lost ? "E-COMM-PEER-LOST" : "E-COMM-FAILED";
  if (ordo_errors_count(ordo_session_errors(session)) == 0)
    ordo_errors_push(ordo_session_errors(session), status, code, session->where, text, "look at the first error of the other ranks",
                     "a collective of the host failed");
}

ordo_status ordo_session_fail(ordo_session *session, ordo_status status)
{
  const ordo_error *error;
  gboolean lost = status == ORDO_E_TIMEOUT || status == ORDO_E_PEER_LOST;
  if (session->state == ORDO_SESSION_DEAD || (session->state == ORDO_SESSION_FAILED && !lost))
    return status;
  ordo_session_explain(session, status);
  error = ordo_errors_at(ordo_session_errors(session), 0);
  session->state = lost ? ORDO_SESSION_DEAD : ORDO_SESSION_FAILED;
  session->dead_status = status;
  g_free(session->dead_text);
  session->dead_text =
      error ? g_strdup_printf("%s%s%s", error->what, *error->why ? ": " : "", error->why) : g_strdup(ordo_status_name(status));
  return status;
}

ordo_status ordo_session_null(ordo_session *session, const char *call, const char *argument)
{
  if (!session)
    return ORDO_E_INVALID;
  ordo_session_enter(session);
  return ordo_session_leave(session, ordo_errors_push(ordo_session_errors(session), ORDO_E_INVALID, "E-ARGUMENT-NULL", call,
                                                      "the call reads or writes through it", "pass what its comment in the header says",
                                                      "'%s' is a null pointer", argument));
}

ordo_status ordo_plugin_known_status(ordo_status status)
{
  return status < ORDO_OK || status > ORDO_E_INVARIANT ? ORDO_E_INTERNAL : status;
}

ordo_status ordo_session_plugin_status(ordo_session *session, const ordo_plugin_use *plugin, ordo_status status, size_t before)
{
  ordo_errors *errors = ordo_session_errors(session);
  status = ordo_plugin_known_status(status);
  if (status == ORDO_OK || ordo_errors_count(errors) > before)
    return status;
  g_autofree char *where = g_strdup_printf("plugin '%s', %s", plugin->id, session->where ? session->where : "outside of a step");
  if (status == ORDO_E_TIMEOUT || status == ORDO_E_PEER_LOST) /* passed on from a collective, which has no host->fail */
    return ordo_errors_push(errors, status, status == ORDO_E_TIMEOUT ? "E-COMM-TIMEOUT" : "E-COMM-PEER-LOST", where,
                            session->comm->error_text ? session->comm->error_text(session->comm->ctx) : NULL,
                            "look at the first error of the other ranks",
                            status == ORDO_E_TIMEOUT ? "a collective missed its deadline" : "a rank was lost");
  return ordo_errors_push(errors, status, "E-PLUGIN-NO-RECORD", where,
                          "the contract asks for a call of host->fail before any status but ORDO_OK", "report it to the plugin's author",
                          "plugin '%s' returned %s without saying why", plugin->id, ordo_status_name(status));
}

ordo_status ordo_session_embedder_status(ordo_session *session, const char *callback, ordo_status status, size_t before)
{
  ordo_errors *errors = ordo_session_errors(session);
  if (status == ORDO_OK || ordo_errors_count(errors) > before)
    return status;
  return ordo_errors_push(errors, status, "E-EMBEDDER-NO-RECORD", callback,
                          "a callback records the reason with ordo_fail before it returns a status but ORDO_OK",
                          "report it to the authors of the program", "the program's callback %s returned %s without saying why", callback,
                          ordo_status_name(status));
}

ordo_status ordo_session_reduce(ordo_session *session, const ordo_comm *comm, void *values, int64_t n, ordo_dtype dtype, uint32_t op,
                                const char *label)
{
  ordo_collective c = ordo_collective_make(ORDO_ALL_REDUCE, values, values, n, dtype);
  c.op = op;
  c.label = label;
  c.flags = session->options.ordered ? ORDO_COMM_ORDERED : 0;
  return comm->size == 1 || n == 0 ? ORDO_OK : ordo_comm_run(comm, &c);
}

static ordo_status check_inputs(ordo_context *context, const ordo_plan *plan, const ordo_embedder *embedder)
{
  if (!plan || !ordo_plan_is_legal(plan))
    return ordo_errors_push(context->errors, ORDO_E_CONFLICT, "E-SESSION-PLAN", "ordo_session_create", "what was chosen has no order",
                            "`ordo why-not` shows the contradiction and what would resolve it", "the plan is not legal");
  if (!embedder || !ORDO_CAN(embedder, ordo_embedder, model_build))
    return ordo_errors_push(context->errors, ORDO_E_INVALID, "E-SESSION-EMBEDDER", "ordo_session_create",
                            "ordo_embedder.model_build describes the model", "set model_build", "the embedder has no model_build");
  if (!(plan->flags & ORDO_PLAN_EVAL))
    for (guint m = 0; m < plan->model_trained->len; m++)
      if (g_array_index(plan->model_trained, gboolean, m) && !ORDO_CAN(embedder, ordo_embedder, optimizer_create))
        return ordo_errors_push(context->errors, ORDO_E_INVALID, "E-SESSION-EMBEDDER", "ordo_session_create",
                                "a trained model needs its optimizer", "set optimizer_create, or plan with ORDO_PLAN_EVAL",
                                "the embedder has no optimizer_create");
  return ORDO_OK;
}

/* A dry run lies to nobody: collectives that would read addresses without memory are not there. */
static ordo_status begin_dry(ordo_session *session)
{
  if (!session->options.dry_run)
    return ORDO_OK;
  if (!session->space)
    return ordo_errors_push(ordo_session_errors(session), ORDO_E_NOMEM, "E-DRY-RUN-SPACE", "ordo_session_create",
                            "a limit on the address space of the process is the usual cause (ulimit -v)", "raise it",
                            "the system grants no addresses for a dry run");
  if (session->comm && ordo_fake_run_dry(session->comm, session->space))
    return ORDO_OK;
  return ordo_errors_push(ordo_session_errors(session), ORDO_E_INVALID, "E-DRY-RUN-PROVIDER", session->comm ? session->comm->name : "none",
                          "other providers exchange data, and a dry run has none", "use ordo_comm_fake_create, or leave dry_run 0",
                          "a dry run needs the fake provider");
}

/* Axes along which gradients add up: data axes, but not those where replicas go their own ways between exchanges. */
static guint32 summing_axes(const ordo_plan *plan)
{
  guint32 mask = 0;
  for (guint i = 0; i < plan->axes->len; i++)
    if (g_array_index(plan->axes, ordo_plan_axis, i).kind == ORDO_AXIS_DATA)
      mask |= 1u << i;
  for (guint i = 0; i < plan->providers->len; i++) {
    const ordo_plan_provider *provider = &g_array_index(plan->providers, ordo_plan_provider, i);
    if (provider->axis >= 0 && (provider->decl->flags & (1u << ORDO_FLAG_REPLICAS_DIVERGE)))
      mask &= ~(1u << provider->axis);
  }
  return mask;
}

static ordo_status make_mesh(ordo_session *session)
{
  const GArray *axes = session->plan->axes;
  g_autofree ordo_axis_spec *specs = g_new0(ordo_axis_spec, MAX(axes->len, 1u));
  ordo_status status = session->comm ? ORDO_OK : ordo_comm_single_create(session->context, &session->own_comm);
  if (status != ORDO_OK)
    return status;
  if (session->own_comm)
    session->comm = session->own_comm;
  ordo_errors_set_rank(ordo_session_errors(session), session->comm->rank);
  if (session->comm->size != session->plan->ranks)
    return ordo_errors_push(ordo_session_errors(session), ORDO_E_INVALID, "E-SESSION-WORLD", session->comm->name,
                            "a plan holds for one number of ranks", "plan for the ranks that there are",
                            "the plan is for %d ranks, the communicator has %d", session->plan->ranks, session->comm->size);
  for (guint i = 0; i < axes->len; i++) {
    const ordo_plan_axis *axis = &g_array_index(axes, ordo_plan_axis, i);
    specs[i] = (ordo_axis_spec){axis->name, axis->kind, axis->size};
  }
  session->summing_axes = summing_axes(session->plan);
  status = ordo_axes_create(session->comm, specs, axes->len, ordo_session_errors(session), &session->provided_mesh);
  if (status == ORDO_OK)
    status = ordo_axes_join(session->comm, session->provided_mesh, session->summing_axes, ordo_session_errors(session));
  if (status != ORDO_OK)
    return status;
  session->account = ordo_account_new(session->provided_mesh, session->memory);
  session->mesh = ordo_account_mesh(session->account);
  return ORDO_OK;
}

/* One reduction over everything that ranks must agree on before they do anything together. */
static ordo_status agree(ordo_session *session)
{
  const ordo_session_options *options = &session->options;
  g_autoptr(GChecksum) sum = g_checksum_new(G_CHECKSUM_SHA256);
  g_autofree char *text =
      g_strdup_printf("%s %" G_GUINT64_FORMAT " %a %u %u %u", session->plan->digest, options->seed, options->max_grad_norm,
                      options->ordered ? 1u : 0u, options->drift_interval, options->no_weight_sync ? 1u : 0u);
  g_autofree char *digest = NULL;
  g_checksum_update(sum, (const guchar *)text, -1);
  digest = g_strndup(g_checksum_get_string(sum), 16);
  return ordo_axes_agree(session->mesh->world, digest, "plan and session options", ordo_session_errors(session));
}

static void make_models(ordo_session *session)
{
  for (guint m = 0; m < session->plan->model_names->len; m++)
    g_ptr_array_add(session->models, ordo_model_state_new(session, g_ptr_array_index(session->plan->model_names, m), m,
                                                          g_array_index(session->plan->model_trained, gboolean, m)));
}

static ordo_session *session_new(ordo_context *context, const ordo_plan *plan, const ordo_embedder *embedder,
                                 const ordo_session_options *options, const ordo_opener *opener)
{
  ordo_session *session = g_new0(ordo_session, 1);
  session->context = context;
  session->plan = plan;
  session->opener = *opener;
  memcpy(&session->embedder, embedder, MIN(embedder->struct_size, sizeof session->embedder));
  if (options)
    memcpy(&session->options, options, MIN(options->struct_size, sizeof session->options));
  session->comm = session->options.comm;
  if (session->options.dry_run)
    session->space = ordo_space_new();
  session->memory = ordo_memory_new(context, session->space);
  session->plugins = g_ptr_array_new();
  session->instances = g_ptr_array_new();
  session->models = g_ptr_array_new_with_free_func((GDestroyNotify)ordo_model_state_free);
  session->undo_log = g_ptr_array_new_with_free_func(ordo_undo_free);
  session->rebinds = g_ptr_array_new_with_free_func((GDestroyNotify)g_array_unref);
  session->order = g_ptr_array_new();
  session->node_done = g_new0(gboolean, MAX(plan->resolution->nodes->len, 1u));
  session->eval_only = (plan->flags & ORDO_PLAN_EVAL) != 0;
  session->main_thread = ordo_session_this_thread();
  session->state = ORDO_SESSION_SETUP;
  session->info.struct_size = sizeof session->info;
  session->loss_factor = 1.0;
  return session;
}

ordo_status ordo_session_create_with(ordo_context *context, const ordo_plan *plan, const ordo_embedder *embedder,
                                     const ordo_session_options *options, const ordo_opener *opener, ordo_session **result)
{
  ordo_session *session;
  ordo_status status;
  *result = NULL;
  ordo_errors_clear(context->errors);
  if ((status = check_inputs(context, plan, embedder)) != ORDO_OK)
    return status;
  session = session_new(context, plan, embedder, options, opener);
  session->depth = 1;
  session->where = "ordo_session_create";
  status = begin_dry(session);
  if (status == ORDO_OK)
    status = make_mesh(session);
  if (status == ORDO_OK)
    status = agree(session);
  if (status == ORDO_OK) {
    make_models(session);
    status = ordo_plugins_check_dry(session);
  }
  if (status == ORDO_OK)
    status = ordo_plugins_load(session);
  if (status == ORDO_OK)
    status = ordo_plugins_probe(session);
  if (status != ORDO_OK)
    ordo_session_explain(session, status);
  session->depth = 0;
  session->where = NULL;
  if (status == ORDO_OK)
    *result = session;
  else
    ordo_session_destroy(session);
  return status;
}

static ordo_status open_file(gpointer user, const ordo_found *found, uint32_t context_flags, ordo_errors *errors, const ordo_plugin **entry)
{
  (void)user;
  return ordo_loader_open(found, context_flags, errors, entry);
}

ordo_status ordo_session_create(ordo_context *context, const ordo_plan *plan, const ordo_embedder *embedder,
                                const ordo_session_options *options, ordo_session **session)
{
  const ordo_opener opener = {open_file, NULL};
  if (session)
    *session = NULL;
  if (!context || !session)
    return ORDO_E_INVALID;
  return ordo_session_create_with(context, plan, embedder, options, &opener, session);
}

void ordo_session_destroy(ordo_session *session)
{
  guint left;
  if (!session)
    return;
  session->depth++;
  ordo_dispatch_teardown(session);
  ordo_plugins_unload(session);
  ordo_calls_free(session);
  g_ptr_array_unref(session->plugins);
  g_ptr_array_unref(session->instances);
  g_ptr_array_unref(session->models);
  g_ptr_array_unref(session->undo_log);
  g_ptr_array_unref(session->rebinds);
  g_ptr_array_unref(session->order);
  ordo_account_release_parts(session->account, session->comm);
  ordo_account_free(session->account);
  if (session->provided_mesh)
    ordo_axes_destroy(session->comm, session->provided_mesh);
  ordo_comm_provider_destroy(session->own_comm);
  if (session->space && session->comm)
    (void)ordo_fake_run_dry(session->comm, NULL);
  left = ordo_memory_free(session->memory);
  ordo_space_free(session->space);
  if (left)
    ordo_context_log(session->context, ORDO_LOG_DEBUG, "%u blocks of memory were left to the end of the session", left);
  g_free(session->node_done);
  g_free(session->dead_text);
  g_free(session);
}

const ordo_mesh *ordo_session_mesh(const ordo_session *session)
{
  return session ? session->mesh : NULL;
}

const ordo_model *ordo_session_model(const ordo_session *session, uint32_t index)
{
  const ordo_model_state *model = session && index < session->models->len ? g_ptr_array_index(session->models, index) : NULL;
  return model && model->view.n_leaves ? &model->view : NULL;
}

ordo_optimizer *ordo_session_optimizer(ordo_session *session, uint32_t index)
{
  const ordo_model_state *model = session && index < session->models->len ? g_ptr_array_index(session->models, index) : NULL;
  return model ? model->optimizer : NULL;
}

ordo_status ordo_session_check_leaf(ordo_session *session, const ordo_leaf *leaf)
{
  const ordo_leaf_record *record;
  ORDO_NEED(session, leaf, "ordo_session_check_leaf");
  record = ordo_leaves_find(session, leaf);
  ordo_session_enter(session);
  if (!record)
    return ordo_session_leave(session, ordo_errors_push(ordo_session_errors(session), ORDO_E_INVALID, "E-LEAF-STALE",
                                                        "ordo_session_check_leaf", "no leaf of this session stands at that address",
                                                        "take leaves from ordo_session_model()", "the pointer is no leaf of this session"));
  return ordo_session_leave(session, record->leaf.state == ORDO_LEAF_LIVE ? ORDO_OK : ordo_leaves_stale(session, leaf));
}

void ordo_session_data_part(const ordo_session *session, int32_t *index, int32_t *size)
{
  int32_t at = 0, parts = 1;
  for (uint32_t a = 0; session && a < session->mesh->n_axes; a++) {
    const ordo_axis *axis = session->mesh->axes[a];
    if (axis->kind != ORDO_AXIS_DATA)
      continue;
    at = at * axis->size + axis->coordinate;
    parts *= axis->size;
  }
  if (index)
    *index = at;
  if (size)
    *size = parts;
}

void ordo_session_memory(const ordo_session *session, uint32_t tag, int64_t *now, int64_t *peak)
{
  int64_t of_now = 0, of_peak = 0;
  if (session)
    ordo_memory_usage(session->memory, tag, &of_now, &of_peak);
  if (now)
    *now = of_now;
  if (peak)
    *peak = of_peak;
}

void *ordo_session_alloc(ordo_session *session, size_t bytes, uint32_t tag)
{
  return session ? ordo_memory_alloc(session->memory, bytes, tag) : NULL;
}

void ordo_session_free(ordo_session *session, void *memory)
{
  if (session && !ordo_memory_release(session->memory, memory))
    ordo_context_log(session->context, ORDO_LOG_ERROR,
                     "ordo_session_free was given memory that ordo_session_alloc did not return, or twice");
}

static void add_stats(const ordo_comm *comm, ordo_comm_stats *total)
{
  ordo_comm_stats stats = {.struct_size = sizeof stats};
  comm->stats(comm->ctx, &stats);
  for (int k = 0; k < 16; k++) {
    total->calls[k] += stats.calls[k];
    total->bytes[k] += stats.bytes[k];
  }
  total->busy_seconds += stats.busy_seconds;
  total->wait_seconds += stats.wait_seconds;
}

ordo_status ordo_session_comm_stats(const ordo_session *session, const char *name, ordo_comm_stats *stats)
{
  const ordo_mesh *mesh;
  ordo_comm_stats total = {.struct_size = sizeof total};
  size_t size;
  gboolean found = name == NULL, joined;
  if (!session)
    return ORDO_E_INVALID;
  if (!stats) {
    if (session->depth == 0)
      ordo_errors_clear(session->context->errors);
    return ordo_errors_push(session->context->errors, ORDO_E_INVALID, "E-ARGUMENT-NULL", "ordo_session_comm_stats",
                            "the call writes through it", "pass a struct with its struct_size", "'stats' is a null pointer");
  }
  mesh = session->mesh;
  size = stats->struct_size;
  joined = mesh->data != mesh->world;
  if (!name)
    add_stats(mesh->world, &total);
  for (uint32_t a = 0; a < mesh->n_axes; a++) {
    joined = joined && mesh->axes[a]->comm != mesh->data;
    if (name && strcmp(name, mesh->axes[a]->name) != 0)
      continue;
    found = TRUE;
    if (name || mesh->axes[a]->comm != mesh->world)
      add_stats(mesh->axes[a]->comm, &total);
    ordo_account_part_stats(session->account, a, add_stats, &total);
  }
  if (!name && joined)
    add_stats(mesh->data, &total);
  if (!found)
    return ordo_errors_push(session->context->errors, ORDO_E_NOT_FOUND, "E-MESH-AXIS", name, "the mesh has no axis of that name",
                            "null asks for the whole mesh; ordo_session_mesh() lists the axes", "there is no axis '%s'", name);
  memcpy(stats, &total, MIN(size, sizeof total));
  stats->struct_size = size;
  return ORDO_OK;
}

char *ordo_session_comm_report(const ordo_session *session)
{
  return session && session->comm->report ? session->comm->report(session->comm->ctx) : g_strdup("");
}
