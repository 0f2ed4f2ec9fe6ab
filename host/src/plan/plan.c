/* plan.c - a plan from names: expressions, plugins, axes, one order, a digest.
 *
 * It runs no plugin code and solves nothing itself (resolve.c does). The one idea: everything that two ranks could disagree about goes
 * through one canonical text, and the digest of that text is compared before the first step. A plan with a conflict is still an object,
 * because a person wants to know why.
 */
#include "plan.h"
#include "../context.h"
#include "names.h"

#include <string.h>

#define MAX_MODELS 32 /* sets of models are 32-bit masks */

static void clear_axis(gpointer data)
{
  g_free(((ordo_plan_axis *)data)->name);
}

static void clear_provider(gpointer data)
{
  ordo_decl_free(((ordo_plan_provider *)data)->decl);
}

static ordo_plan *plan_new(ordo_context *context)
{
  ordo_plan *plan = g_new0(ordo_plan, 1);
  plan->context = context;
  plan->providers = g_array_new(FALSE, TRUE, sizeof(ordo_plan_provider));
  plan->model_names = g_ptr_array_new_with_free_func(g_free);
  plan->model_trained = g_array_new(FALSE, TRUE, sizeof(gboolean));
  plan->nodes = g_array_new(FALSE, TRUE, sizeof(ordo_plan_node));
  plan->events = g_array_new(FALSE, TRUE, sizeof(ordo_plan_event));
  plan->strings = g_string_chunk_new(1024);
  g_array_set_clear_func(plan->providers, clear_provider);
  return plan;
}

void ordo_plan_destroy(ordo_plan *plan)
{
  if (!plan)
    return;
  ordo_resolution_free(plan->resolution);
  g_clear_pointer(&plan->choices, g_ptr_array_unref);
  g_clear_pointer(&plan->axes, g_array_unref);
  g_array_unref(plan->providers);
  g_ptr_array_unref(plan->model_names);
  g_array_unref(plan->model_trained);
  g_array_unref(plan->nodes);
  g_array_unref(plan->events);
  g_string_chunk_free(plan->strings);
  g_free(plan->strategy);
  g_free(plan->precision);
  g_free(plan);
}

static gboolean refuse(ordo_plan *plan, const char *next, const char *what)
{
  ordo_errors_push(plan->context->errors, ORDO_E_INVALID, "E-PLAN-REQUEST", "ordo_plan_request", NULL, next, "%s", what);
  return FALSE;
}

static gboolean read_models(ordo_plan *plan, const ordo_plan_request *request)
{
  gboolean trained = TRUE;
  if (!request->models) {
    g_ptr_array_add(plan->model_names, g_strdup("model"));
    g_array_append_val(plan->model_trained, trained);
    return TRUE;
  }
  if (request->n_models < 1 || request->n_models > MAX_MODELS)
    return refuse(plan, "give 1 to 32 models, or none for one trained model", "the number of models is out of range");
  for (size_t i = 0; i < request->n_models; i++) {
    const ordo_plan_model *model = (const void *)((const char *)request->models + i * request->models->struct_size);
    if (model->struct_size < ORDO_SIZE_THROUGH(ordo_plan_model, trained) || model->struct_size != request->models->struct_size)
      return refuse(plan, "set struct_size of every model to sizeof(ordo_plan_model)", "a model has no usable struct_size");
    if (!model->name || *model->name == '\0' || g_ptr_array_find_with_equal_func(plan->model_names, model->name, g_str_equal, NULL))
      return refuse(plan, "give every model a name of its own", "a model has no name, or the name of another");
    trained = model->trained != 0;
    g_ptr_array_add(plan->model_names, g_strdup(model->name));
    g_array_append_val(plan->model_trained, trained);
  }
  return TRUE;
}

static gboolean read_request(ordo_plan *plan, const ordo_plan_request *given, ordo_plan_request *request)
{
  if (given->struct_size < ORDO_SIZE_THROUGH(ordo_plan_request, flags))
    return refuse(plan, "set struct_size to sizeof(ordo_plan_request)", "the request has no usable struct_size");
  memset(request, 0, sizeof *request);
  memcpy(request, given, MIN(given->struct_size, sizeof *request));
  plan->ranks = request->ranks;
  plan->flags = request->flags;
  if (request->ranks < 1)
    return refuse(plan, "give at least 1", "the number of ranks is not positive");
  if (request->flags & ~(uint32_t)(ORDO_PLAN_RESUME | ORDO_PLAN_EVAL))
    return refuse(plan, "use ORDO_PLAN_RESUME and ORDO_PLAN_EVAL only", "the request has a flag that this release does not know");
  return read_models(plan, request);
}

static gboolean evaluates_only(const ordo_plan *plan)
{
  return (plan->flags & ORDO_PLAN_EVAL) != 0;
}

/* ---- providers ---- */

static gboolean add_provider(ordo_plan *plan, ordo_choice *choice)
{
  ordo_plan_provider provider = {choice, NULL, -1};
  provider.decl = ordo_decl_from_manifest(choice->found->manifest, ordo_choice_option, choice, plan->context->errors);
  if (!provider.decl)
    return FALSE;
  provider.decl->model_mask = plan->model_names->len >= MAX_MODELS ? G_MAXUINT32 : (1u << plan->model_names->len) - 1u;
  g_array_append_val(plan->providers, provider);
  return TRUE;
}

static gboolean add_providers(ordo_plan *plan, guint first)
{
  gboolean good = TRUE;
  for (guint i = first; i < plan->choices->len; i++)
    good = add_provider(plan, g_ptr_array_index(plan->choices, i)) && good;
  return good;
}

/* Moves all choices of `more` to the end of `choices`. */
static void take_choices(GPtrArray *choices, GPtrArray *more)
{
  g_ptr_array_extend_and_steal(choices, more);
}

static gboolean wants_default(const ordo_plan *plan)
{
  const guint32 self_sharded = 1u << ORDO_FLAG_SELF_SHARDED;
  for (guint i = 0; i < plan->providers->len; i++) {
    const ordo_decl *decl = g_array_index(plan->providers, ordo_plan_provider, i).decl;
    if (decl->reduces || decl->flags & self_sharded)
      return FALSE;
  }
  return TRUE;
}

/* The default data strategy takes the ranks left over, as the outermost axis. */
static gboolean add_default(ordo_plan *plan, const char *expression)
{
  guint before = plan->choices->len;
  GPtrArray *more = ordo_expression_parse(expression, ORDO_KIND_STRATEGY, plan->context->registry, plan->context->errors);
  if (!more)
    return FALSE;
  take_choices(plan->choices, more);
  return add_providers(plan, before);
}

static void add_spare_axis(ordo_plan *plan, int spare)
{
  ordo_plan_axis axis = {g_strdup("data"), ORDO_AXIS_DATA, spare};
  g_array_prepend_val(plan->axes, axis);
  for (guint i = 0; i < plan->providers->len; i++) {
    ordo_plan_provider *provider = &g_array_index(plan->providers, ordo_plan_provider, i);
    provider->axis += provider->axis >= 0;
    provider->decl->axis = provider->axis;
  }
}

static gboolean fit(ordo_plan *plan, int *spare)
{
  g_autofree int *axis_of_choice = g_new0(int, plan->choices->len + 1);
  g_clear_pointer(&plan->axes, g_array_unref);
  plan->axes = ordo_plan_fit_axes(plan->choices, plan->ranks, axis_of_choice, spare, plan->context->errors);
  if (!plan->axes)
    return FALSE;
  g_array_set_clear_func(plan->axes, clear_axis);
  for (guint i = 0; i < plan->providers->len; i++) {
    ordo_plan_provider *provider = &g_array_index(plan->providers, ordo_plan_provider, i);
    provider->axis = axis_of_choice[i];
    provider->decl->axis = axis_of_choice[i];
    provider->decl->axis_size = provider->axis < 0 ? 1 : g_array_index(plan->axes, ordo_plan_axis, provider->axis).size;
  }
  return TRUE;
}

static gboolean spare_ranks(ordo_plan *plan, int spare)
{
  g_autofree char *why =
      g_strdup_printf("the strategies take %d of %d ranks; %d times as many are there", plan->ranks / spare, plan->ranks, spare);
  ordo_errors_push(plan->context->errors, ORDO_E_INVALID, "E-MESH-SIZE", "--strategy", why,
                   "add a data strategy for the rest (for example +ddp), leave a size open, or run with fewer ranks",
                   "the mesh does not fill %d ranks", plan->ranks);
  return FALSE;
}

static gboolean choose_strategies(ordo_plan *plan, const ordo_plan_request *request)
{
  int spare = 1;
  plan->choices = ordo_expression_parse(request->strategy, ORDO_KIND_STRATEGY, plan->context->registry, plan->context->errors);
  if (!plan->choices || !add_providers(plan, 0) || !fit(plan, &spare))
    return FALSE;
  if (spare > 1 && request->default_strategy && wants_default(plan) &&
      (!add_default(plan, request->default_strategy) || !fit(plan, &spare)))
    return FALSE;
  if (spare > 1 && !evaluates_only(plan))
    return spare_ranks(plan, spare);
  if (spare > 1)
    add_spare_axis(plan, spare); /* without gradients, ranks may simply share the data */
  return TRUE;
}

static char *as_written(const GPtrArray *choices, guint from, guint to)
{
  GString *text = g_string_new(from == to ? "none" : NULL);
  for (guint i = from; i < to; i++)
    g_string_append_printf(text, "%s%s", i > from ? "+" : "", ((const ordo_choice *)g_ptr_array_index(choices, i))->written);
  return g_string_free(text, FALSE);
}

static gboolean choose_precision(ordo_plan *plan, const ordo_plan_request *request)
{
  guint before = plan->choices->len;
  plan->strategy = as_written(plan->choices, 0, before);
  GPtrArray *more = ordo_expression_parse(request->precision, ORDO_KIND_PRECISION, plan->context->registry, plan->context->errors);
  if (!more)
    return FALSE;
  take_choices(plan->choices, more);
  plan->precision = as_written(plan->choices, before, plan->choices->len);
  return add_providers(plan, before);
}

/* ---- digest ---- */

static gint compare_keys(gconstpointer a, gconstpointer b)
{
  return strcmp(a, b);
}

static void digest_options(GString *text, const ordo_choice *choice)
{
  g_autoptr(GList) keys = g_list_sort(g_hash_table_get_keys(choice->options), compare_keys);
  for (const GList *key = keys; key; key = key->next)
    g_string_append_printf(text, " %s=%s\n", (const char *)key->data, (const char *)g_hash_table_lookup(choice->options, key->data));
}

/* Everything in which two ranks could differ, one fact a line. */
static char *canonical_text(const ordo_plan *plan)
{
  GString *text = g_string_new("ordo plan 1\n");
  g_string_append_printf(text, "ranks %d flags %u legal %d\n", plan->ranks, plan->flags, plan->resolution->legal);
  for (guint i = 0; i < plan->model_names->len; i++)
    g_string_append_printf(text, "model %s %d\n", (const char *)g_ptr_array_index(plan->model_names, i),
                           g_array_index(plan->model_trained, gboolean, i));
  for (guint i = 0; i < plan->axes->len; i++) {
    const ordo_plan_axis *axis = &g_array_index(plan->axes, ordo_plan_axis, i);
    g_string_append_printf(text, "axis %s %u %d\n", axis->name, axis->kind, axis->size);
  }
  for (guint i = 0; i < plan->providers->len; i++) {
    const ordo_plan_provider *provider = &g_array_index(plan->providers, ordo_plan_provider, i);
    g_string_append_printf(text, "plugin %s %s axis %d\n", provider->decl->id, provider->decl->version, provider->axis);
    digest_options(text, provider->choice);
  }
  for (guint i = 0; i < plan->resolution->nodes->len; i++) {
    const ordo_node *node = &g_array_index(plan->resolution->nodes, ordo_node, i);
    g_string_append_printf(text, "step %s %u\n", node->id, node->phase);
  }
  for (guint i = 0; i < plan->resolution->events->len; i++) {
    const ordo_event_node *event = &g_array_index(plan->resolution->events, ordo_event_node, i);
    g_string_append_printf(text, "event %s %d\n", ordo_event_name(event->event), event->provider);
  }
  return g_string_free(text, FALSE);
}

static void fill_digest(ordo_plan *plan)
{
  g_autofree char *text = canonical_text(plan);
  g_autofree char *sum = g_compute_checksum_for_string(G_CHECKSUM_SHA256, text, -1);
  g_strlcpy(plan->digest, sum, sizeof plan->digest);
}

/* ---- public ---- */

static void push_findings(const ordo_plan *plan)
{
  for (guint i = 0; i < plan->resolution->findings->len; i++) {
    const ordo_finding *finding = g_ptr_array_index(plan->resolution->findings, i);
    ordo_errors_push(plan->context->errors, ORDO_E_CONFLICT, finding->code, finding->where, NULL, finding->next, "%s", finding->text);
  }
}

ordo_status ordo_plan_create(ordo_context *context, const ordo_plan_request *given, ordo_plan **result)
{
  ordo_plan_request request;
  if (result)
    *result = NULL;
  if (!context || !given || !result)
    return ORDO_E_INVALID;
  ordo_errors_clear(context->errors);
  ordo_plan *plan = plan_new(context);
  if (!read_request(plan, given, &request) || !choose_strategies(plan, &request) || !choose_precision(plan, &request)) {
    ordo_plan_destroy(plan);
    const ordo_error *first = ordo_errors_at(context->errors, 0);
    return first ? first->status : ORDO_E_INVALID;
  }
  ordo_plan_resolve(plan);
  fill_digest(plan);
  *result = plan;
  if (!plan->resolution->legal) {
    push_findings(plan);
    return ORDO_E_CONFLICT;
  }
  ordo_plan_tell_reasons(plan);
  return ORDO_OK;
}

int ordo_plan_is_legal(const ordo_plan *plan)
{
  return plan && plan->resolution->legal;
}

size_t ordo_plan_n_nodes(const ordo_plan *plan)
{
  return plan ? plan->nodes->len : 0;
}

const ordo_plan_node *ordo_plan_node_at(const ordo_plan *plan, size_t index)
{
  return plan && index < plan->nodes->len ? &g_array_index(plan->nodes, ordo_plan_node, index) : NULL;
}

size_t ordo_plan_n_events(const ordo_plan *plan)
{
  return plan ? plan->events->len : 0;
}

const ordo_plan_event *ordo_plan_event_at(const ordo_plan *plan, size_t index)
{
  return plan && index < plan->events->len ? &g_array_index(plan->events, ordo_plan_event, index) : NULL;
}

const char *ordo_plan_digest(const ordo_plan *plan)
{
  return plan ? plan->digest : "";
}
