/* invariants.c - what must hold after each step of the set-up, at verify, and during training.
 *
 * Each check is one function and one code E-INVARIANT-*, and each has a test that breaks it. They exist because everything here fails
 * silently otherwise: an optimizer on dead leaves, gradients reduced twice, replicas that drift. The numbers are those of
 * docs/ordering.md, section "Invariants".
 */
#include "session.h"

#include <string.h>

static ordo_status violated(ordo_session *session, const char *code, const char *where, const char *why, const char *next, const char *what)
{
  return ordo_errors_push(ordo_session_errors(session), ORDO_E_INVARIANT, code, where, why, next, "%s", what);
}

guint64 ordo_checksum(const void *data, size_t bytes)
{
  const unsigned char *at = data;
  guint64 lanes[4] = {0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u, 0x94d049bb133111ebu, 0x2545f4914f6cdd1du};
  guint64 hash = bytes;
  size_t i = 0;
  for (; i + 32 <= bytes; i += 32)
    for (int k = 0; k < 4; k++) {
      guint64 word;
      memcpy(&word, at + i + 8 * k, sizeof word);
      lanes[k] = (lanes[k] ^ word) * 0x9fb21c651e98df25u;
      lanes[k] ^= lanes[k] >> 29;
    }
  for (int k = 0; k < 4; k++)
    hash = ((hash << 23 | hash >> 41) ^ lanes[k]) * 0x9fb21c651e98df25u;
  for (; i < bytes; i++)
    hash = (hash ^ at[i]) * 0x100000001b3u;
  return hash ^ hash >> 32;
}

/* Of a leaf's data; 0 in a dry run, where there is none. */
static guint64 checksum_of(const ordo_session *session, const ordo_leaf *leaf)
{
  return session->space ? 0 : ordo_checksum(leaf->data, (size_t)leaf->numel * ordo_dtype_size(leaf->dtype));
}

/* Check 1, first half: every leaf in the optimizer is live. */
static ordo_status optimizer_is_live(ordo_session *session, const ordo_model_state *model)
{
  const ordo_optimizer *optimizer = model->optimizer;
  for (uint32_t g = 0; optimizer && g < optimizer->n_groups; g++)
    for (uint64_t i = 0; i < optimizer->groups[g].n_leaves; i++) {
      const ordo_leaf *leaf = optimizer->groups[g].leaves[i];
      g_autofree char *why = NULL;
      if (!ordo_leaves_find(session, leaf))
        return violated(session, "E-INVARIANT-DEAD-LEAF", optimizer->name, "a pointer in its groups is no leaf of this session",
                        "take leaves from the model given to optimizer_create",
                        "the optimizer holds something that is no leaf: training would silently do nothing");
      if (leaf->state == ORDO_LEAF_LIVE)
        continue;
      why = g_strdup_printf("leaf '%s' in group '%s' was replaced by %s", leaf->name,
                            optimizer->groups[g].name ? optimizer->groups[g].name : "", leaf->replaced_by);
      return violated(session, "E-INVARIANT-DEAD-LEAF", leaf->replaced_by, why,
                      "the optimizer's rebind must move groups and state to the new leaves",
                      "the optimizer holds a leaf that is no longer part of the model: training would silently do nothing");
    }
  return ORDO_OK;
}

ordo_status ordo_invariants_after_step(ordo_session *session)
{
  ordo_status status = ORDO_OK;
  for (guint m = 0; m < session->models->len && status == ORDO_OK; m++)
    status = optimizer_is_live(session, g_ptr_array_index(session->models, m));
  return status;
}

/* How often each leaf stands in the groups. */
static GHashTable *count_in_groups(const ordo_optimizer *optimizer)
{
  GHashTable *counts = g_hash_table_new(NULL, NULL);
  for (uint32_t g = 0; g < optimizer->n_groups; g++)
    for (uint64_t i = 0; i < optimizer->groups[g].n_leaves; i++) {
      gpointer leaf = optimizer->groups[g].leaves[i];
      g_hash_table_insert(counts, leaf, GUINT_TO_POINTER(GPOINTER_TO_UINT(g_hash_table_lookup(counts, leaf)) + 1));
    }
  return counts;
}

static guint count_of(GHashTable *counts, const ordo_leaf *leaf)
{
  return leaf ? GPOINTER_TO_UINT(g_hash_table_lookup(counts, leaf)) : 0;
}

/* Check 1, second half: every trainable leaf is in exactly one group, itself or through its master. */
static ordo_status leaves_are_trained(ordo_session *session, const ordo_model_state *model)
{
  g_autoptr(GHashTable) counts = model->optimizer ? count_in_groups(model->optimizer) : NULL;
  gboolean any = FALSE;
  for (uint32_t i = 0; model->optimizer && i < model->view.n_leaves; i++) {
    const ordo_leaf *leaf = model->view.leaves[i];
    guint n;
    if (!(leaf->flags & ORDO_PARAM_REQUIRES_GRAD))
      continue;
    any = TRUE;
    n = count_of(counts, leaf) + count_of(counts, leaf->master);
    if (n == 0)
      return violated(session, "E-INVARIANT-UNTRAINED", leaf->name, "it requires a gradient and stands in no group of the optimizer",
                      "put every leaf of the model into one group, or describe its parameters as frozen", "a leaf would never be updated");
    if (n > 1)
      return violated(session, "E-INVARIANT-TRAINED-TWICE", leaf->name,
                      leaf->master ? "it stands in several groups, or beside its master" : "it stands in several groups",
                      "put every leaf into exactly one group", "a leaf would be updated more than once per step");
  }
  if (model->optimizer && !any)
    return violated(session, "E-INVARIANT-NOTHING-TRAINED", model->view.name, "all of its parameters are frozen",
                    "leave something to train: freeze less in model.inject, or plan the model as frozen (ordo_plan_model.trained 0)",
                    "the model is to be trained and has nothing that requires a gradient: training would silently do nothing");
  return ORDO_OK;
}

/* A leaf of 16 bits that the optimizer updates itself needs one that can. */
static ordo_status optimizer_reads_leaves(ordo_session *session, const ordo_model_state *model)
{
  for (uint32_t i = 0; model->optimizer && i < model->view.n_leaves; i++) {
    const ordo_leaf *leaf = model->view.leaves[i];
    if (!(leaf->flags & ORDO_PARAM_REQUIRES_GRAD) || leaf->master || (model->optimizer->flags & ORDO_OPTIMIZER_16_BIT) ||
        (leaf->dtype != ORDO_F16 && leaf->dtype != ORDO_BF16))
      continue;
    return ordo_errors_push(ordo_session_errors(session), ORDO_E_UNSUPPORTED, "E-OPTIMIZER-DTYPE", leaf->name,
                            "its elements are of 16 bits, it has no fp32 master, and the optimizer does not say ORDO_OPTIMIZER_16_BIT",
                            "choose a precision with master weights (apex_amp:O2 or O5), or an optimizer for 16-bit weights",
                            "the optimizer '%s' cannot update a leaf", model->optimizer->name);
  }
  return ORDO_OK;
}

/* Check 2: nothing that a later step needs was left out. (That nothing runs twice is the dispatcher's and replace_leaves' part.) */
static ordo_status steps_are_done(ordo_session *session)
{
  const GArray *nodes = session->plan->resolution->nodes;
  for (guint i = 0; i < nodes->len; i++) {
    const ordo_node *node = &g_array_index(nodes, ordo_node, i);
    if (!session->node_done[i] && node->step != ORDO_STEP_VERIFY)
      return violated(session, "E-INVARIANT-SKIPPED-STEP", node->id, "verify comes after every other step of the set-up",
                      "report this as a defect of Ordo", "a step of the plan has not run");
  }
  return ORDO_OK;
}

/* Does the model compute, store or reduce in the 16-bit type? */
static gboolean has_type(const ordo_instance *precision, ordo_dtype dtype)
{
  const ordo_model *view = &precision->model->view;
  const ordo_precision *table = precision->plugin->precision;
  for (uint32_t i = 0; i < view->n_params; i++)
    if (view->params[i]->dtype == dtype || view->params[i]->grad_dtype == dtype)
      return TRUE;
  return ORDO_CAN(table, ordo_precision, op_dtype) && table->op_dtype(precision->self, ORDO_OP_MATMUL) == dtype;
}

/* Check 3: one owner of the precision, and no scaler beside bf16, which has the range of fp32. (In fp32 alone a scale is pointless and
 * harmless; apex allows it, and so it is left to the plugin.) */
static ordo_status precision_has_one_owner(ordo_session *session, const ordo_model_state *model)
{
  const guint32 converts = 1u << ORDO_STEP_CONVERT_MODEL | 1u << ORDO_STEP_INITIALIZE;
  const ordo_instance *owner = NULL;
  for (guint i = 0; i < session->instances->len; i++) {
    const ordo_instance *instance = g_ptr_array_index(session->instances, i);
    gboolean owns =
        (instance->decl->flags & (1u << ORDO_FLAG_OWNS_PRECISION)) || (instance->plugin->precision && (instance->decl->steps & converts));
    const ordo_precision *table = instance->plugin->precision;
    g_autofree char *why = NULL;
    if (instance->model != model)
      continue;
    if (owns && owner) {
      why = g_strdup_printf("both '%s' and '%s' cast the model", owner->plugin->id, instance->plugin->id);
      return violated(session, "E-INVARIANT-PRECISION-OWNER", model->view.name, why, "choose one of them", "precision has two owners");
    }
    owner = owns ? instance : owner;
    if (table && ORDO_CAN(table, ordo_precision, loss_scale) && table->loss_scale(instance->self, 0) != 1.0 &&
        has_type(instance, ORDO_BF16) && !has_type(instance, ORDO_F16))
      return violated(session, "E-INVARIANT-SCALER", instance->plugin->id,
                      "the model computes in bf16, which has the range of fp32, and nothing of it is fp16", "set its loss scale to 1",
                      "a loss scaler is active although nothing can overflow");
  }
  return ORDO_OK;
}

/* Check 4: the members of a tie group have one leaf, one storage and one gradient. */
static ordo_status ties_are_intact(ordo_session *session, const ordo_model_state *model)
{
  for (guint i = 0; i < model->params->len; i++) {
    const ordo_param_record *record = g_ptr_array_index(model->params, i);
    const ordo_param *param = &record->param, *root = &record->root->param;
    if (param->leaf == root->leaf && param->data == root->data && param->grad == root->grad)
      continue;
    return violated(session, "E-INVARIANT-TIE", param->name, root->name, "a plugin must bind and shard tied parameters together",
                    "a tie group is torn: two parameters that share storage do not any more");
  }
  return ORDO_OK;
}

ordo_status ordo_invariants_verify(ordo_session *session)
{
  ordo_status status = steps_are_done(session);
  for (guint m = 0; m < session->models->len && status == ORDO_OK; m++) {
    ordo_model_state *model = g_ptr_array_index(session->models, m);
    if (!session->eval_only && model->view.trained)
      status = ordo_weights_materialise_grads(model);
    if (status == ORDO_OK)
      status = leaves_are_trained(session, model);
    if (status == ORDO_OK)
      status = optimizer_reads_leaves(session, model);
    if (status == ORDO_OK)
      status = precision_has_one_owner(session, model);
    if (status == ORDO_OK)
      status = ties_are_intact(session, model);
    if (status == ORDO_OK)
      status = ordo_placements_check(model);
  }
  return status;
}

/* Check 6: one hash per session over names, shapes and types of all models. */
ordo_status ordo_invariants_model_agrees(ordo_session *session)
{
  g_autoptr(GChecksum) sum = g_checksum_new(G_CHECKSUM_SHA256);
  g_autofree char *digest = NULL;
  ordo_status status;
  for (guint m = 0; m < session->models->len; m++) {
    g_autofree char *one = ordo_model_state_digest(g_ptr_array_index(session->models, m));
    g_checksum_update(sum, (const guchar *)one, -1);
  }
  digest = g_strndup(g_checksum_get_string(sum), 16);
  status = ordo_axes_agree(session->mesh->world, digest, "model description", ordo_session_errors(session));
  if (status == ORDO_E_MISMATCH)
    ordo_errors_push(ordo_session_errors(session), status, "E-INVARIANT-MODEL-DIFFERS", "model.build",
                     "names, shapes, types or ties of parameters are not the same on all ranks",
                     "describe the model from the configuration alone, not from the rank", "ranks described different models");
  return status;
}

static gboolean diverges_on(const ordo_session *session, const ordo_model_state *model, uint32_t axis)
{
  for (guint i = 0; i < session->instances->len; i++) {
    const ordo_instance *instance = g_ptr_array_index(session->instances, i);
    if (instance->model == model && instance->job.axis == session->mesh->axes[axis] &&
        (instance->decl->flags & (1u << ORDO_FLAG_REPLICAS_DIVERGE)))
      return TRUE;
  }
  return FALSE;
}

static const char *owner_of_axis(const ordo_session *session, const ordo_axis *axis)
{
  for (guint i = 0; i < session->instances->len; i++) {
    const ordo_instance *instance = g_ptr_array_index(session->instances, i);
    if (instance->job.axis == axis)
      return instance->plugin->id;
  }
  return "nobody";
}

/* Check 5: reduced over every axis where it is partial, and not twice (mark_reduced has said so; a plugin need not have listened). */
ordo_status ordo_invariants_reduced(ordo_session *session)
{
  const ordo_mesh *mesh = session->mesh;
  for (guint m = 0; m < session->models->len; m++) {
    const ordo_model_state *model = g_ptr_array_index(session->models, m);
    for (uint32_t i = 0; i < model->view.n_leaves; i++) {
      const ordo_leaf_record *record = (const ordo_leaf_record *)model->view.leaves[i];
      if (record->reduced_twice)
        return violated(session, "E-INVARIANT-REDUCED-TWICE", record->leaf.name,
                        "job->mark_reduced refused the second time, and the plugin went on", "report it to the plugin's author",
                        "a gradient was reduced twice over one axis");
      if (record->leaf.grad_state != ORDO_GRAD_HELD || !(record->leaf.flags & ORDO_PARAM_REQUIRES_GRAD))
        continue;
      for (uint32_t a = 0; a < mesh->n_axes; a++) {
        g_autofree char *why = NULL;
        if (mesh->axes[a]->size == 1 || !record->placement.grad_partial[a] || (record->reduced & (1u << a)) ||
            diverges_on(session, model, a))
          continue;
        why = g_strdup_printf("its gradient is one summand of %d on axis '%s', whose strategy is '%s'", mesh->axes[a]->size,
                              mesh->axes[a]->name, owner_of_axis(session, mesh->axes[a]));
        return violated(session, "E-INVARIANT-NOT-REDUCED", record->leaf.name, why,
                        "the strategy must reduce it and call job->mark_reduced; a parameter that a rank does not use must still take part",
                        "a gradient was not reduced: ranks would train apart");
      }
    }
  }
  return ORDO_OK;
}

/* A pair (hash, ~hash) for every group of ranks that should hold the same: one for a replicated leaf, several where the axis has copies of
 * parts. This rank fills that of its own group; in a dry run, where nobody else does, all of them. */
static void add_hashes(const ordo_session *session, GArray *sums, GPtrArray *leaves, const ordo_leaf *leaf, const ordo_axis *axis)
{
  const int32_t copies = ordo_placement_copies(leaf->placement->data[axis->index], axis->size);
  for (int32_t group = 0; copies > 1 && group < axis->size / copies; group++) {
    guint64 pair[2] = {0, 0};
    if (session->space || group == axis->coordinate / copies) {
      pair[0] = leaf->data ? checksum_of(session, leaf) : 0;
      pair[1] = ~pair[0];
    }
    g_array_append_vals(sums, pair, 2);
    g_ptr_array_add(leaves, (gpointer)leaf);
  }
}

static ordo_status drift_on(ordo_session *session, ordo_model_state *model, uint32_t axis)
{
  g_autoptr(GArray) sums = g_array_new(FALSE, FALSE, sizeof(guint64));
  g_autoptr(GPtrArray) leaves = g_ptr_array_new();
  ordo_status status;
  for (uint32_t i = 0; i < model->view.n_leaves; i++)
    if (!model->view.leaves[i]->opaque)
      add_hashes(session, sums, leaves, model->view.leaves[i], session->mesh->axes[axis]);
  status = ordo_session_reduce(session, session->mesh->axes[axis]->comm, sums->data, (int64_t)sums->len, ORDO_U64, ORDO_MAX, "drift check");
  if (status != ORDO_OK)
    return status;
  for (guint i = 0; i < leaves->len; i++) {
    const ordo_leaf *leaf = g_ptr_array_index(leaves, i);
    g_autofree char *why = NULL;
    if (g_array_index(sums, guint64, 2 * i) == ~g_array_index(sums, guint64, 2 * i + 1))
      continue;
    why = g_strdup_printf("it should be the same on all ranks of axis '%s', and is not after step %" G_GINT64_FORMAT,
                          session->mesh->axes[axis]->name, session->info.step);
    return violated(session, "E-INVARIANT-DRIFT", leaf->name, why,
                    "a rank computed or updated differently: look for rank-dependent code, or start from the last checkpoint",
                    "replicas have drifted apart");
  }
  return ORDO_OK;
}

/* Check 7, every drift_interval steps: replicas hold the same bits. */
ordo_status ordo_invariants_drift(ordo_session *session)
{
  ordo_status status = ORDO_OK;
  if (session->options.drift_interval == 0 || session->info.step % session->options.drift_interval != 0)
    return ORDO_OK;
  session->where = "drift check";
  for (guint m = 0; m < session->models->len; m++) {
    ordo_model_state *model = g_ptr_array_index(session->models, m);
    for (uint32_t a = 0; a < session->mesh->n_axes && status == ORDO_OK; a++)
      if (session->mesh->axes[a]->size > 1 && !diverges_on(session, model, a))
        status = drift_on(session, model, a);
  }
  return status == ORDO_OK ? ORDO_OK : ordo_session_fail(session, status);
}

static gboolean has_rate(const ordo_optimizer *optimizer)
{
  for (uint32_t g = 0; g < optimizer->n_groups; g++)
    if (optimizer->groups[g].lr != 0.0)
      return TRUE;
  return FALSE;
}

/* The leaf that the optimizer writes: low-precision weights follow their master later. */
static const ordo_leaf *updated_leaf(const ordo_leaf *leaf)
{
  return leaf->master ? leaf->master : leaf;
}

/* Check 8 waits for the first step that must change something: a rate above 0 and a gradient that is not zero. */
static gboolean must_change(const ordo_model_state *model)
{
  return !model->change_seen && has_rate(model->optimizer) && model->session->norm > 0.0;
}

/* Its second half: whoever makes masters must copy them into the model. Who casts by itself and makes none has nothing to copy. */
static const ordo_instance *copier(const ordo_model_state *model)
{
  for (guint i = 0; i < model->session->instances->len; i++) {
    const ordo_instance *instance = g_ptr_array_index(model->session->instances, i);
    if (instance->model == model && instance->plugin->precision)
      return instance;
  }
  return NULL;
}

static gboolean must_copy(const ordo_model_state *model)
{
  return model->optimizer && !model->copy_seen && has_rate(model->optimizer) && model->session->norm > 0.0 && copier(model);
}

static gboolean is_zero(const void *data, ordo_dtype dtype, int64_t n)
{
  int64_t i = 0;
  if (dtype == ORDO_F32)
    while (i < n && ((const float *)data)[i] == 0.0f)
      i++;
  else if (ordo_dtype_size(dtype) == 2)
    while (i < n && (((const guint16 *)data)[i] & 0x7fff) == 0)
      i++;
  return i == n;
}

/* A gradient that is not zero, of a leaf that is updated with a rate above 0. Another model may be the one that this step trains. */
static gboolean has_gradient(const ordo_optimizer *optimizer)
{
  for (uint32_t g = 0; g < optimizer->n_groups; g++) {
    const ordo_group *group = &optimizer->groups[g];
    for (uint32_t i = 0; group->lr != 0.0 && i < group->n_leaves; i++)
      if (group->leaves[i]->grad && !is_zero(group->leaves[i]->grad, group->leaves[i]->grad_dtype, group->leaves[i]->numel))
        return TRUE;
  }
  return FALSE;
}

void ordo_invariants_before_update(ordo_model_state *model)
{
  const gboolean changes = must_change(model), copies = must_copy(model);
  model->has_gradient = (changes || copies) && !model->session->space && has_gradient(model->optimizer);
  for (uint32_t i = 0; (changes || copies) && i < model->view.n_leaves; i++) {
    ordo_leaf_record *record = (ordo_leaf_record *)model->view.leaves[i];
    const ordo_leaf *leaf = updated_leaf(&record->leaf);
    record->checksum = changes && leaf->data ? checksum_of(model->session, leaf) : 0;
    record->low_checksum = copies && record->leaf.master && record->leaf.data ? checksum_of(model->session, &record->leaf) : 0;
  }
}

ordo_status ordo_invariants_changed(ordo_session *session, ordo_model_state *model)
{
  int32_t seen[3] = {session->space != NULL, model->has_gradient, 0}; /* changed, should have, 16 bits: a step may be too small for them */
  ordo_status status;
  if (!must_change(model))
    return ORDO_OK;
  for (uint32_t i = 0; i < model->view.n_leaves && !seen[0]; i++) {
    const ordo_leaf_record *record = (const ordo_leaf_record *)model->view.leaves[i];
    const ordo_leaf *leaf = updated_leaf(&record->leaf);
    seen[0] = leaf->data && record->checksum != checksum_of(session, leaf);
    seen[2] |= ordo_dtype_size(leaf->dtype) == 2 && (leaf->flags & ORDO_PARAM_REQUIRES_GRAD) != 0;
  }
  status = ordo_session_reduce(session, session->mesh->world, seen, 3, ORDO_I32, ORDO_MAX, "change check");
  model->change_seen = seen[0] != 0;
  if (status != ORDO_OK || seen[0] || !seen[1])
    return status;
  if (seen[2]) {
    if (!model->change_warned && session->mesh->world->rank == 0)
      ordo_context_log(session->context, ORDO_LOG_WARNING,
                       "step %" G_GINT64_FORMAT
                       " changed no weight of '%s': the updates are smaller than weights of 16 bits can show. Nothing is "
                       "trained until they grow; fp32 masters (apex_amp:O2, O5) would collect them",
                       session->info.step, model->view.name);
    model->change_warned = TRUE;
    return ORDO_OK;
  }
  return violated(
      session, "E-INVARIANT-NOTHING-CHANGED", model->view.name,
      "the learning rate and the gradient are not zero, yet no leaf changed on any rank",
      "the optimizer works on storage that is not the model's: see optimizer_create and rebind; or the learning rate is so small "
      "that no fp32 weight moves",
      "the first optimizer step changed nothing: training would silently do nothing");
}

/* The master, rounded, is something else than the leaf. (A plugin may round in its own way, so this alone proves nothing.) */
static gboolean differs_from_master(const ordo_leaf *leaf)
{
  enum { CHUNK = 512 };
  const size_t width = ordo_dtype_size(leaf->dtype);
  char rounded[CHUNK * sizeof(double)];
  for (int64_t i = 0; i < leaf->numel; i += CHUNK) {
    const int64_t n = MIN(leaf->numel - i, (int64_t)CHUNK);
    ordo_convert_narrow(leaf->dtype, (const float *)leaf->master->data + i, n, rounded);
    if (memcmp(rounded, (const char *)leaf->data + (size_t)i * width, (size_t)n * width) != 0)
      return TRUE;
  }
  return FALSE;
}

/* { some leaf with a master has changed, one has not and should have, there is one } on this rank; a step may be too small for 16 bits. */
static void look_at_copies(const ordo_model_state *model, int32_t seen[3])
{
  for (uint32_t i = 0; i < model->view.n_leaves && !seen[0]; i++) {
    const ordo_leaf_record *record = (const ordo_leaf_record *)model->view.leaves[i];
    const ordo_leaf *leaf = &record->leaf;
    seen[2] |= leaf->master != NULL;
    if (!leaf->master || !leaf->data || !leaf->master->data || leaf->opaque)
      continue;
    seen[0] = record->low_checksum != checksum_of(model->session, leaf);
    seen[1] |= !seen[0] && model->has_gradient && differs_from_master(leaf);
  }
}

ordo_status ordo_invariants_copied(ordo_session *session, ordo_model_state *model)
{
  int32_t seen[3] = {session->space != NULL, 0, 0};
  g_autofree char *why = NULL;
  ordo_status status;
  if (!must_copy(model))
    return ORDO_OK;
  if (!session->space)
    look_at_copies(model, seen);
  status = ordo_session_reduce(session, session->mesh->world, seen, 3, ORDO_I32, ORDO_MAX, "change check of copies");
  model->copy_seen = seen[0] || !seen[2]; /* without masters there is nothing to copy, in any step */
  if (status != ORDO_OK || seen[0] || !seen[1])
    return status;
  why =
      g_strdup_printf("the optimizer has moved the masters of plugin '%s', and no weight that the model computes with followed on any rank",
                      copier(model)->plugin->id);
  return violated(session, "E-INVARIANT-NOTHING-CHANGED", copier(model)->plugin->id, why,
                  "its masters_to_model must write every leaf from leaf->master: report it to the plugin's author",
                  "the first optimizer step changed no weight of the model: training would silently do nothing");
}
