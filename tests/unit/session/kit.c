/* kit.c - sessions for tests: resolver, model and optimizer in one program, with the plugins of kit_fakes.c. */
#include "kit_fakes.h"

#include <string.h>

/* ---- the embedder ---- */

static const struct {
  const char *unit, *name;
  int64_t rows, columns;
  int32_t tie;
} shapes[] = {
    {"embed", "embed.weight", 5, 3, 0}, {"block", "block.a", 3, 4, -1}, {"block", "block.b", 3, 0, -1}, {"head", "head.weight", 5, 3, 0}};

float kit_weight(uint32_t param, int64_t element)
{
  return (float)(param == 3 ? 0 : param) + 0.125f * (float)element;
}

static ordo_status model_build(void *ctx, ordo_session *session, uint32_t model, ordo_model_builder *builder)
{
  kit *k = ctx;
  const char *unit = NULL;
  (void)model;
  for (guint i = 0; i < G_N_ELEMENTS(shapes); i++) {
    ordo_param_desc desc = {
        .struct_size = sizeof desc, .name = shapes[i].name, .dtype = ORDO_F32, .flags = ORDO_PARAM_REQUIRES_GRAD | ORDO_PARAM_DECAY};
    ordo_status status;
    desc.tie_group = k->no_tie ? -1 : shapes[i].tie;
    desc.ndim = shapes[i].columns ? 2 : 1;
    desc.shape[0] = shapes[i].rows + (k->shape_from_rank && i == 1 ? ordo_session_mesh(session)->rank : 0);
    desc.shape[1] = shapes[i].columns;
    if (k->with_data && i < 3) {
      int64_t numel = shapes[i].rows * MAX(shapes[i].columns, 1);
      k->storage[i] = g_new0(float, (gsize)numel);
      for (int64_t e = 0; e < numel; e++)
        k->storage[i][e] = kit_weight(i, e) + (float)k->weight_offset;
      desc.data = k->storage[i];
    }
    if (g_strcmp0(unit, shapes[i].unit) && (status = ordo_model_builder_unit(builder, shapes[i].unit, "Toy", NULL)) != ORDO_OK)
      return status;
    unit = shapes[i].unit;
    if ((status = ordo_model_builder_param(builder, &desc, NULL)) != ORDO_OK)
      return status;
  }
  return ORDO_OK;
}

static ordo_status weights_read(void *ctx, const ordo_model *model, const ordo_chunk *chunk, float *dst)
{
  const kit *k = ctx;
  int64_t n = ordo_chunk_numel(chunk);
  (void)model;
  for (int64_t i = 0; i < n; i++)
    dst[i] = kit_weight(chunk->param->index, chunk->begin + i) + (float)k->weight_offset;
  return ORDO_OK;
}

static ordo_status bind(void *ctx, const ordo_model *model, const ordo_param *param, void *data, void *grad)
{
  assert_ptr_equal(param->data, data);
  assert_ptr_equal(param->grad, grad);
  kit *k = ctx;
  k->binds++;
  k->dead_binds += data && !k->with_data && k->many == 0 && !g_ptr_array_find(((const ordo_model_state *)model)->host_storage, data, NULL);
  return ORDO_OK;
}

static ordo_status convert(void *ctx, const ordo_model *model, const ordo_param *param, ordo_dtype dtype, ordo_dtype grad_dtype)
{
  kit *k = ctx;
  (void)model;
  assert_int_equal(param->dtype, dtype);
  assert_int_equal(param->grad_dtype, grad_dtype);
  k->converts++;
  if (k->refuses_convert || k->converts == k->refuses_convert_at)
    return ordo_fail(k->context, ORDO_E_UNSUPPORTED, "E-EMBEDDER-CANNOT", "not this type", "toy", "", "");
  return ORDO_OK;
}

static ordo_status adapt(void *ctx, const ordo_model *model, const ordo_param *base, const ordo_param *a, const ordo_param *b, double scale)
{
  kit *k = ctx;
  (void)model;
  assert_int_equal(a->unit, base->unit);
  assert_int_equal(a->shape[0], b->shape[1]);
  assert_true(scale > 0);
  k->adapters++;
  return k->refuses_convert ? ordo_fail(k->context, ORDO_E_UNSUPPORTED, "E-EMBEDDER-CANNOT", "no adapter", "toy", "", "") : ORDO_OK;
}

typedef struct sgd {
  kit *k;
  ordo_group group;
  GPtrArray *leaves;
} sgd;

static void refresh(sgd *o)
{
  o->group.leaves = (ordo_leaf **)o->leaves->pdata;
  o->group.n_leaves = o->leaves->len;
}

static ordo_status sgd_step(void *ctx, const ordo_step_args *args)
{
  sgd *o = ctx;
  o->k->last_factor = args->grad_factor;
  o->k->last_optimizer_step = args->step;
  for (guint i = 0; i < o->leaves->len && !o->k->frozen_optimizer; i++) {
    ordo_leaf *leaf = g_ptr_array_index(o->leaves, i);
    for (int64_t e = 0; leaf->grad_state == ORDO_GRAD_HELD && e < leaf->numel; e++)
      ((float *)leaf->data)[e] -= (float)(o->group.lr * args->grad_factor) * ((float *)leaf->grad)[e];
  }
  return ORDO_OK;
}

static ordo_status sgd_rebind(void *ctx, const ordo_leaf_map *map, size_t n)
{
  sgd *o = ctx;
  o->k->rebinds++;
  if (o->k->bad_rebind) /* pretends to have moved */
    return ORDO_OK;
  for (size_t i = 0; i < n; i++) {
    guint index;
    if (g_ptr_array_find(o->leaves, map[i].old_leaf, &index))
      g_ptr_array_remove_index(o->leaves, index);
    if (!g_ptr_array_find(o->leaves, map[i].new_leaf, NULL))
      g_ptr_array_add(o->leaves, map[i].new_leaf);
  }
  refresh(o);
  return ORDO_OK;
}

static void sgd_destroy(void *ctx)
{
  sgd *o = ctx;
  g_string_append(o->k->log, "optimizer.destroy ");
  g_ptr_array_unref(o->leaves);
  g_free(o);
}

static ordo_status optimizer_create(void *ctx, const ordo_model *model, ordo_optimizer *optimizer)
{
  kit *k = ctx;
  sgd *o = g_new0(sgd, 1);
  g_string_append(k->log, "optimizer.create ");
  k->optimizers++;
  o->k = k;
  o->leaves = g_ptr_array_new();
  for (uint32_t i = k->partial_groups ? 1 : 0; i < model->n_leaves; i++)
    g_ptr_array_add(o->leaves, model->leaves[i]);
  if (k->twice_in_groups)
    g_ptr_array_add(o->leaves, model->leaves[0]);
  k->kept_leaf = model->leaves[0];
  o->group = (ordo_group){.struct_size = sizeof o->group, .name = "all", .lr = k->lr};
  refresh(o);
  optimizer->ctx = o;
  optimizer->name = "sgd";
  optimizer->flags = (k->plain_factor ? 0 : ORDO_OPTIMIZER_APPLIES_FACTOR) | (k->says_16_bit ? ORDO_OPTIMIZER_16_BIT : 0);
  optimizer->n_groups = 1;
  optimizer->groups = &o->group;
  optimizer->step = sgd_step;
  optimizer->rebind = k->no_rebind ? NULL : sgd_rebind;
  optimizer->destroy = sgd_destroy;
  return ORDO_OK;
}

static ordo_status scheduler_step(void *ctx, ordo_optimizer *optimizer, int64_t step)
{
  (void)optimizer, (void)step;
  ((kit *)ctx)->scheduler_steps++;
  return ORDO_OK;
}

static ordo_status on_phase(void *ctx, ordo_phase phase, int32_t entering)
{
  kit *k = ctx;
  k->phases++;
  g_string_append_printf(k->log, "%s%s ", entering ? "+" : "-", ordo_phase_name(phase));
  if (phase == ORDO_PHASE_SETUP && !entering)
    k->optimizer_at_setup_end = ordo_session_optimizer(k->session, 0) != NULL;
  return ORDO_OK;
}

/* ---- the kit ---- */

kit *kit_new(void)
{
  kit *k = g_new0(kit, 1);
  const ordo_context_options options = {.struct_size = sizeof options, .flags = ORDO_CONTEXT_NO_ENVIRONMENT | ORDO_CONTEXT_NO_DEFAULT_PATH};
  assert_int_equal(ordo_context_create(&options, &k->context), ORDO_OK);
  k->log = g_string_new(NULL);
  k->founds = g_ptr_array_new();
  k->models = 1;
  k->lr = 0.5;
  k->plan = g_new0(ordo_plan, 1);
  k->plan->context = k->context;
  k->plan->ranks = 1;
  k->plan->choices = g_ptr_array_new();
  k->plan->axes = g_array_new(FALSE, FALSE, sizeof(ordo_plan_axis));
  k->plan->providers = g_array_new(FALSE, FALSE, sizeof(ordo_plan_provider));
  k->plan->model_names = g_ptr_array_new();
  k->plan->model_trained = g_array_new(FALSE, FALSE, sizeof(gboolean));
  k->plan->nodes = g_array_new(FALSE, FALSE, sizeof(ordo_plan_node));
  g_strlcpy(k->plan->digest, "0123456789abcdef", sizeof k->plan->digest);
  k->embedder = (ordo_embedder){.struct_size = sizeof k->embedder,
                                .ctx = k,
                                .model_build = model_build,
                                .weights_read = weights_read,
                                .bind = bind,
                                .optimizer_create = optimizer_create,
                                .scheduler_step = scheduler_step,
                                .phase = on_phase,
                                .convert = convert,
                                .adapt = adapt};
  k->options.struct_size = sizeof k->options;
  kit_fakes_of(k);
  return k;
}

static const char *no_option(gpointer user, const char *key)
{
  (void)user, (void)key;
  return NULL;
}

fake *kit_add(kit *k, const char *id, const char *lines, int axis_size)
{
  g_autofree char *text = g_strdup_printf("abi=1.0\nid=%s\nversion=1.0.0\nsummary=fake\n%s%s%s", id,
                                          strstr(lines, "kind=")      ? ""
                                          : strstr(lines, "x-silent") ? "kind=strategy\n"
                                                                      : "kind=strategy\nevents=step.post_step\n",
                                          strstr(lines, "kind=") || strstr(lines, "mesh_axis") ? ""
                                          : axis_size                                          ? "mesh_axis=data\n"
                                                                                               : "mesh_axis=none\n",
                                          lines);
  ordo_found *found = g_new0(ordo_found, 1);
  ordo_choice *choice = g_new0(ordo_choice, 1);
  ordo_plan_provider provider = {.choice = choice, .axis = -1};
  fake *knobs = &k->fakes[k->founds->len];
  found->manifest = ordo_manifest_parse(text, strlen(text), id, k->context->errors);
  if (!found->manifest)
    fail_msg("manifest of %s: %s", id, ordo_last_error(k->context)->what);
  choice->found = found;
  choice->options = g_hash_table_new(g_str_hash, g_str_equal);
  provider.decl = ordo_decl_from_manifest(found->manifest, no_option, NULL, k->context->errors);
  if (!provider.decl)
    fail_msg("declaration of %s: %s", id, ordo_last_error(k->context)->what);
  provider.decl->model_mask = (1u << k->models) - 1u;
  provider.decl->axis = -1;
  if (axis_size) {
    ordo_plan_axis axis = {g_strdup(id), strcmp(provider.decl->mesh_axis, "model") ? ORDO_AXIS_DATA : ORDO_AXIS_MODEL, axis_size};
    provider.axis = provider.decl->axis = (int)k->plan->axes->len;
    provider.decl->axis_size = axis_size;
    g_array_append_val(k->plan->axes, axis);
    k->plan->ranks *= axis_size;
  }
  g_array_append_val(k->plan->providers, provider);
  g_ptr_array_add(k->plan->choices, choice);
  g_ptr_array_add(k->founds, found);
  knobs->id = found->manifest->id;
  return knobs;
}

static void resolve(kit *k)
{
  g_autoptr(GPtrArray) decls = g_ptr_array_new();
  g_autofree ordo_resolve_axis *axes = g_new0(ordo_resolve_axis, MAX(k->plan->axes->len, 1u));
  gboolean trained = TRUE;
  static const char *const names[] = {"model", "second"};
  ordo_resolve_input input = {.n_axes = k->plan->axes->len, .axes = axes, .n_models = k->models, .resume = k->resume, .eval = k->eval};
  for (guint i = 0; i < k->plan->providers->len; i++)
    g_ptr_array_add(decls, g_array_index(k->plan->providers, ordo_plan_provider, i).decl);
  for (guint i = 0; i < k->plan->axes->len; i++) {
    const ordo_plan_axis *axis = &g_array_index(k->plan->axes, ordo_plan_axis, i);
    axes[i] = (ordo_resolve_axis){axis->name, axis->kind, axis->size};
  }
  for (guint m = 0; m < k->models; m++) {
    g_ptr_array_add(k->plan->model_names, (gpointer)names[m]);
    g_array_append_val(k->plan->model_trained, trained);
  }
  input.decls = (const ordo_decl *const *)decls->pdata;
  input.n_decls = decls->len;
  input.model_trained = (const gboolean *)(gconstpointer)k->plan->model_trained->data;
  input.model_names = names;
  k->plan->flags = (k->eval ? ORDO_PLAN_EVAL : 0) | (k->resume ? ORDO_PLAN_RESUME : 0);
  k->plan->resolution = ordo_resolve(&input);
  for (guint i = 0; i < k->plan->resolution->nodes->len; i++) {
    const ordo_node *node = &g_array_index(k->plan->resolution->nodes, ordo_node, i);
    ordo_plan_node row = {
        .struct_size = sizeof row, .step = node->step, .phase = node->phase, .model = node->model, .name = ordo_step_name(node->step)};
    g_array_append_val(k->plan->nodes, row);
  }
}

ordo_status kit_create(kit *k)
{
  kit_fakes_of(k);
  if (!k->plan->resolution)
    resolve(k);
  assert_true(k->plan->resolution->legal);
  k->options.comm = k->comm;
  return ordo_session_create_with(k->context, k->plan, &k->embedder, &k->options, &kit_fakes_opener, &k->session);
}

void kit_setup(kit *k)
{
  ordo_status status = kit_create(k);
  if (status == ORDO_OK)
    status = ordo_session_setup(k->session);
  if (status != ORDO_OK) {
    g_autofree char *text = kit_text(k);
    fail_msg("set-up failed: %s", text);
  }
}

void kit_free(kit *k)
{
  kit_fakes_of(k);
  ordo_session_destroy(k->session);
  for (guint i = 0; i < k->founds->len; i++) {
    ordo_found *found = g_ptr_array_index(k->founds, i);
    ordo_choice *choice = g_ptr_array_index(k->plan->choices, i);
    ordo_decl_free(g_array_index(k->plan->providers, ordo_plan_provider, i).decl);
    ordo_manifest_free(found->manifest);
    g_hash_table_unref(choice->options);
    g_free(choice);
    g_free(found);
  }
  for (guint i = 0; i < k->plan->axes->len; i++)
    g_free(g_array_index(k->plan->axes, ordo_plan_axis, i).name);
  if (k->plan->resolution)
    ordo_resolution_free(k->plan->resolution);
  g_ptr_array_unref(k->plan->choices);
  g_array_unref(k->plan->axes);
  g_array_unref(k->plan->providers);
  g_ptr_array_unref(k->plan->model_names);
  g_array_unref(k->plan->model_trained);
  g_array_unref(k->plan->nodes);
  g_free(k->plan);
  g_ptr_array_unref(k->founds);
  g_string_free(k->log, TRUE);
  for (guint i = 0; i < G_N_ELEMENTS(k->storage); i++)
    g_free(k->storage[i]);
  ordo_context_destroy(k->context);
  g_free(k);
}

static void write_grad(kit *k, const ordo_param *param, float grad)
{
  int adds = ordo_session_grad_adds(k->session, 0, param->index);
  float *at = param->grad;
  assert_non_null(at);
  for (int64_t i = 0; i < param->numel; i++)
    at[i] = (adds ? at[i] : 0.0f) + grad * (float)(i + 1);
}

ordo_status kit_micro(kit *k, float grad)
{
  const ordo_model *model = ordo_session_model(k->session, 0);
  ordo_status status = ordo_session_micro_begin(k->session);
  for (uint32_t u = 0; u < model->n_units && status == ORDO_OK; u++) {
    status = ordo_session_pre_forward(k->session, 0, u);
    if (status == ORDO_OK)
      status = ordo_session_post_forward(k->session, 0, u);
  }
  for (uint32_t u = model->n_units; u-- > 0 && status == ORDO_OK;) {
    status = ordo_session_pre_backward(k->session, 0, u);
    for (uint32_t p = 0; p < model->units[u]->n_params && status == ORDO_OK; p++) {
      if (!(model->units[u]->params[p]->flags & ORDO_PARAM_REQUIRES_GRAD))
        continue;
      write_grad(k, model->units[u]->params[p], grad * (float)ordo_session_loss_factor(k->session));
      status = ordo_session_grad_ready(k->session, 0, model->units[u]->params[p]->index);
    }
    if (status == ORDO_OK)
      status = ordo_session_post_backward(k->session, 0, u);
  }
  return status == ORDO_OK ? ordo_session_micro_end(k->session) : status;
}

ordo_status kit_step(kit *k, double weight, float grad, ordo_step_result *result)
{
  ordo_status status = ordo_session_step_begin(k->session, 1, weight);
  if (status == ORDO_OK)
    status = kit_micro(k, grad);
  return status == ORDO_OK ? ordo_session_step_end(k->session, result) : status;
}

const char *kit_code(const kit *k)
{
  const ordo_error *error = ordo_last_error(k->context);
  return error ? error->code : "";
}

char *kit_text(const kit *k)
{
  const ordo_error *error = ordo_last_error(k->context);
  return error ? g_strdup_printf("%s: %s (%s) %s -> %s", error->code, error->what, error->where, error->why, error->next) : g_strdup("");
}
