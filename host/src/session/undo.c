/* undo.c - what a set-up step changed, so that it can be put back.
 *
 * Before each step the host copies the small things (which leaves are live, where params and leaves point, who holds what) and afterwards
 * notes how the optimizer was moved. Undoing puts the copies back and moves the optimizer the other way. It copies no weights: storage of
 * replaced leaves that the host owns is kept until the set-up is complete, and a plugin frees its own in `undo`. Only what a conversion has
 * emptied is freed at once; leaves then come back without data, which is how they were before the weights were loaded.
 */
#include "session.h"

#include <string.h>

typedef struct model_undo {
  ordo_leaf **leaves; /* the array that was current; owned by the model */
  ordo_leaf *values;  /* [n_leaves] copies; names are not owned */
  ordo_param *params; /* [n_params] */
  uint32_t n_leaves, n_params, generation;
  guint n_records;
  gboolean had_optimizer;
} model_undo;

struct ordo_undo {
  guint n_models;
  model_undo *models;
  guint first_rebind; /* of session->rebinds when it was taken */
  GPtrArray *rebinds; /* GArray of ordo_leaf_map: one per move of the optimizer */
};

ordo_undo *ordo_undo_new(ordo_session *session)
{
  ordo_undo *undo = g_new0(ordo_undo, 1);
  undo->n_models = session->models->len;
  undo->models = g_new0(model_undo, MAX(undo->n_models, 1u));
  undo->first_rebind = session->rebinds->len;
  undo->rebinds = g_ptr_array_new_with_free_func((GDestroyNotify)g_array_unref);
  for (guint m = 0; m < undo->n_models; m++) {
    const ordo_model_state *model = g_ptr_array_index(session->models, m);
    model_undo *copy = &undo->models[m];
    copy->leaves = (ordo_leaf **)model->view.leaves;
    copy->n_leaves = model->view.n_leaves;
    copy->n_params = model->view.n_params;
    copy->generation = model->view.generation;
    copy->n_records = model->records->len;
    copy->had_optimizer = model->optimizer != NULL;
    copy->values = g_new0(ordo_leaf, MAX(copy->n_leaves, 1u));
    copy->params = g_new0(ordo_param, MAX(copy->n_params, 1u));
    for (uint32_t i = 0; i < copy->n_leaves; i++)
      copy->values[i] = *copy->leaves[i];
    for (uint32_t i = 0; i < copy->n_params; i++)
      copy->params[i] = *model->view.params[i];
  }
  return undo;
}

void ordo_undo_free(gpointer data)
{
  ordo_undo *undo = data;
  if (!undo)
    return;
  for (guint m = 0; m < undo->n_models; m++) {
    g_free(undo->models[m].values);
    g_free(undo->models[m].params);
  }
  g_free(undo->models);
  g_ptr_array_unref(undo->rebinds);
  g_free(undo);
}

void ordo_undo_finish(ordo_undo *undo, ordo_session *session)
{
  for (guint i = undo->first_rebind; i < session->rebinds->len; i++)
    g_ptr_array_add(undo->rebinds, g_array_ref(g_ptr_array_index(session->rebinds, i)));
  g_ptr_array_set_size(session->rebinds, (gint)undo->first_rebind);
}

/* A leaf that has storage of the host keeps its index until it is replaced, and so do its params: nobody is looked for. */
static void forget(ordo_undo *undo, const ordo_model_state *model, const ordo_leaf *leaf, const void *storage)
{
  model_undo *copy = model->view.index < undo->n_models ? &undo->models[model->view.index] : NULL;
  if (copy && leaf->index < copy->n_leaves) {
    ordo_leaf *value = &copy->values[leaf->index];
    value->data = value->data == storage ? NULL : value->data;
    value->grad = value->grad == storage ? NULL : value->grad;
  }
  for (uint32_t k = 0; copy && k < leaf->n_params; k++)
    if (leaf->params[k]->index < copy->n_params) {
      ordo_param *param = &copy->params[leaf->params[k]->index];
      param->data = param->data == storage ? NULL : param->data;
      param->grad = param->grad == storage ? NULL : param->grad;
    }
}

void ordo_undo_forget(const ordo_model_state *model, const ordo_leaf *leaf, const void *storage)
{
  const ordo_session *session = model->session;
  for (guint i = 0; i < session->undo_log->len; i++)
    forget(g_ptr_array_index(session->undo_log, i), model, leaf, storage);
  if (session->running)
    forget(session->running, model, leaf, storage);
}

/* Moves the optimizer back, last move first. It can refuse; then it is destroyed with the session anyway. */
static void rebind_back(ordo_undo *undo, ordo_session *session)
{
  for (guint i = undo->rebinds->len; i-- > 0;) {
    GArray *moves = g_ptr_array_index(undo->rebinds, i);
    ordo_model_state *model = ((ordo_leaf_record *)g_array_index(moves, ordo_leaf_map, 0).old_leaf)->model;
    for (guint k = 0; k < moves->len; k++) {
      ordo_leaf_map *move = &g_array_index(moves, ordo_leaf_map, k);
      *move = (ordo_leaf_map){sizeof *move, move->new_leaf, move->old_leaf};
    }
    if (model->optimizer && ORDO_CAN(model->optimizer, ordo_optimizer, rebind) &&
        model->optimizer->rebind(model->optimizer->ctx, &g_array_index(moves, ordo_leaf_map, 0), moves->len) != ORDO_OK)
      ordo_context_log(session->context, ORDO_LOG_WARNING, "undo: optimizer '%s' could not be moved back", model->optimizer->name);
  }
}

static void restore_leaf(ordo_leaf *leaf, const ordo_leaf *before)
{
  if (leaf->replaced_by != before->replaced_by)
    g_free((char *)leaf->replaced_by);
  *leaf = *before;
}

static void restore_params(const model_undo *copy, ordo_model_state *model)
{
  const ordo_embedder *embedder = &model->session->embedder;
  for (uint32_t i = 0; i < copy->n_params; i++) {
    ordo_param_record *record = g_ptr_array_index(model->params, i);
    gboolean moved = record->param.data != copy->params[i].data || record->param.grad != copy->params[i].grad;
    record->param = copy->params[i];
    record->grad_held = FALSE;
    if (moved && embedder->bind && record->param.dtype < ORDO_DTYPE_OPAQUE &&
        embedder->bind(embedder->ctx, &model->view, &record->param, record->param.data, record->param.grad) != ORDO_OK)
      ordo_context_log(model->session->context, ORDO_LOG_WARNING, "undo: the embedder refused to bind '%s' back", record->param.name);
  }
}

static void restore_model(const model_undo *copy, ordo_model_state *model)
{
  if (!copy->leaves) /* the step was model.build: there was nothing before */
    return;
  for (guint i = copy->n_records; i < model->records->len; i++) {
    ordo_leaf_record *fresh = g_ptr_array_index(model->records, i);
    if (fresh->leaf.state == ORDO_LEAF_REPLACED)
      continue;
    fresh->leaf.state = ORDO_LEAF_REPLACED;
    fresh->leaf.data = fresh->leaf.grad = NULL;
    fresh->leaf.replaced_by = g_strdup_printf("the undo of %s", model->session->where);
  }
  model->view.leaves = copy->leaves;
  model->view.n_leaves = copy->n_leaves;
  model->view.generation = copy->generation;
  for (uint32_t i = 0; i < copy->n_leaves; i++)
    restore_leaf(copy->leaves[i], &copy->values[i]);
  restore_params(copy, model);
}

void ordo_undo_apply(ordo_undo *undo, ordo_session *session)
{
  ordo_undo_finish(undo, session);
  rebind_back(undo, session);
  g_ptr_array_set_size(undo->rebinds, 0);
  for (guint m = 0; m < undo->n_models; m++) {
    const model_undo *copy = &undo->models[m];
    ordo_model_state *model = g_ptr_array_index(session->models, m);
    if (model->optimizer && !copy->had_optimizer) {
      if (ORDO_CAN(model->optimizer, ordo_optimizer, destroy))
        model->optimizer->destroy(model->optimizer->ctx);
      g_clear_pointer(&model->optimizer, g_free);
    }
    restore_model(copy, model);
  }
}
