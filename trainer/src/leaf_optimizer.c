/* leaf_optimizer.c - see leaf_optimizer.h. */
#include "leaf_optimizer.h"

#include "kernels_low.h"
#include "pieces.h"

#include <glib.h>
#include <string.h>

enum { DECAY, NO_DECAY, N_GROUPS };
enum { MAX_SLOTS = 2 };

typedef struct leaf_state {
  float *slots[MAX_SLOTS];
  int64_t steps; /* updates of this leaf: bias correction and SGD's first step count them */
} leaf_state;

typedef struct leaf_optimizer {
  ordo_context *context;
  ordo_session *session;
  ordo_leaf_optimizer_options options;
  void (*stepping)(void *ctx, int begins); /* may be null */
  void *stepping_ctx;
  const struct kernels *kernels;
  int dry;
  ordo_group groups[N_GROUPS];
  GPtrArray *leaves[N_GROUPS]; /* back ordo_group.leaves */
  GHashTable *states;          /* ordo_leaf -> leaf_state */
} leaf_optimizer;

static uint32_t slots_in_use(const leaf_optimizer *self)
{
  return self->options.is_sgd ? (self->options.momentum > 0 ? 1 : 0) : 2;
}

static void state_free(leaf_optimizer *self, leaf_state *state)
{
  for (int i = 0; i < MAX_SLOTS; i++)
    ordo_session_free(self->session, state->slots[i]);
  g_free(state);
}

static leaf_state *state_new(leaf_optimizer *self, const ordo_leaf *leaf)
{
  leaf_state *state = g_new0(leaf_state, 1);
  size_t bytes = MAX((size_t)leaf->numel, 1) * sizeof(float);
  for (uint32_t i = 0; i < slots_in_use(self); i++) {
    state->slots[i] = ordo_session_alloc(self->session, bytes, ORDO_MEM_OPTIMIZER);
    if (!state->slots[i]) {
      g_autofree char *why = g_strdup_printf("%zu bytes for the state of leaf %s could not be had", bytes, leaf->name);
      ordo_fail(self->context, ORDO_E_NOMEM, "E-TRAIN-MEMORY", "out of memory", "optimizer", why,
                "use more ranks with a sharding strategy, or a smaller model");
      state_free(self, state);
      return NULL;
    }
    if (!self->dry)
      memset(state->slots[i], 0, bytes);
  }
  return state;
}

static leaf_state *state_of(leaf_optimizer *self, const ordo_leaf *leaf)
{
  leaf_state *state = g_hash_table_lookup(self->states, leaf);
  if (!state) {
    state = state_new(self, leaf);
    if (state)
      g_hash_table_insert(self->states, (gpointer)leaf, state);
  }
  return state;
}

static void publish(leaf_optimizer *self)
{
  for (int g = 0; g < N_GROUPS; g++) {
    self->groups[g].leaves = (ordo_leaf **)(void *)self->leaves[g]->pdata;
    self->groups[g].n_leaves = self->leaves[g]->len;
  }
}

/* n elements from `first` on, with state from there. */
static void update_range(const leaf_optimizer *self, const ordo_group *group, const leaf_state *state, int64_t first, size_t n, float *data,
                         const float *grad, double factor)
{
  float *slots[MAX_SLOTS];
  for (int i = 0; i < MAX_SLOTS; i++)
    slots[i] = state->slots[i] ? state->slots[i] + first : NULL;
  if (self->options.is_sgd) {
    struct sgd_options o = {group->lr, self->options.momentum};
    sgd_step(self->kernels, n, data, grad, slots[0], &o, state->steps, factor);
  } else {
    struct adamw_options o = {group->lr, self->options.beta1, self->options.beta2, self->options.eps, group->weight_decay};
    adamw_step(self->kernels, n, data, grad, slots[0], slots[1], &o, state->steps, factor);
  }
}

/* Weights or gradients of 16 bits: a piece at a time is widened, updated in fp32 and rounded back. State is fp32. */
static void update_low(const leaf_optimizer *self, const ordo_group *group, const leaf_state *state, const ordo_leaf *leaf, double factor)
{
  enum { AT_ONCE = 2048 };
  float data[AT_ONCE], grad[AT_ONCE];
  for (int64_t first = 0; first < leaf->numel; first += AT_ONCE) {
    size_t n = (size_t)MIN(leaf->numel - first, (int64_t)AT_ONCE);
    char *weights = (char *)leaf->data + (size_t)first * ordo_dtype_size(leaf->dtype);
    kernels_widen(self->kernels, leaf->dtype, n, weights, data);
    kernels_widen(self->kernels, leaf->grad_dtype, n, (char *)leaf->grad + (size_t)first * ordo_dtype_size(leaf->grad_dtype), grad);
    update_range(self, group, state, first, n, data, grad, factor);
    kernels_narrow(self->kernels, leaf->dtype, n, data, weights);
  }
}

static ordo_status update(leaf_optimizer *self, const ordo_group *group, ordo_leaf *leaf, double factor)
{
  ordo_leaf *work = leaf->master ? leaf->master : leaf;
  if (work->numel == 0 || !work->grad)
    return ORDO_OK;
  leaf_state *state = state_of(self, work);
  if (!state)
    return ORDO_E_NOMEM;
  state->steps++;
  if (self->dry)
    return ORDO_OK;
  if (kernels_is_low(work->dtype) || kernels_is_low(work->grad_dtype))
    update_low(self, group, state, work, factor);
  else
    update_range(self, group, state, 0, (size_t)work->numel, work->data, work->grad, factor);
  return ORDO_OK;
}

static ordo_status update_all(leaf_optimizer *self, const ordo_step_args *args)
{
  for (int g = 0; g < N_GROUPS; g++)
    for (uint64_t i = 0; i < self->groups[g].n_leaves; i++) {
      ordo_leaf *leaf = self->groups[g].leaves[i];
      if (leaf->grad_state != ORDO_GRAD_HELD)
        continue;
      ordo_status status = update(self, &self->groups[g], leaf, args->grad_factor);
      if (status != ORDO_OK)
        return status;
    }
  return ORDO_OK;
}

static ordo_status optimizer_step(void *ctx, const ordo_step_args *args)
{
  leaf_optimizer *self = ctx;
  if (self->stepping)
    self->stepping(self->stepping_ctx, 1);
  ordo_status status = update_all(self, args);
  if (self->stepping)
    self->stepping(self->stepping_ctx, 0);
  return status;
}

/* Copies what an old leaf's state says about the elements of a new one. */
static void move_state(const leaf_state *from, const ordo_leaf *old_leaf, leaf_state *to, const ordo_leaf *new_leaf, uint32_t slots)
{
  const ordo_placement *source = old_leaf->placement, *target = new_leaf->placement;
  ordo_piece_run run;
  to->steps = MAX(to->steps, from->steps);
  for (uint64_t t = 0; t < target->n_chunks; t++)
    for (int64_t r = 0; ordo_piece_run_at(&target->chunks[t], r, &run); r++)
      for (uint64_t s = 0; s < source->n_chunks; s++) {
        if (source->chunks[s].param != target->chunks[t].param)
          continue;
        for (int64_t done = 0, count = 1; done < run.count; done += count) {
          int64_t place = ordo_piece_find(&source->chunks[s], run.param_first + done, &count);
          count = place < 0 ? 1 : MIN(count, run.count - done);
          for (uint32_t k = 0; place >= 0 && k < slots; k++)
            memcpy(to->slots[k] + run.leaf_first + done, from->slots[k] + place, (size_t)count * sizeof(float));
        }
      }
}

/* The number of each leaf's group, from 1. */
static GHashTable *groups_by_leaf(const leaf_optimizer *self)
{
  GHashTable *groups = g_hash_table_new(NULL, NULL);
  for (int g = 0; g < N_GROUPS; g++)
    for (guint i = 0; i < self->leaves[g]->len; i++)
      g_hash_table_insert(groups, g_ptr_array_index(self->leaves[g], i), GINT_TO_POINTER(g + 1));
  return groups;
}

static ordo_status rebind_error(leaf_optimizer *self, ordo_status status, const ordo_leaf *leaf, const char *why)
{
  return ordo_fail(self->context, status, "E-TRAIN-REBIND", "the optimizer cannot be moved to the new leaves", leaf->name, why,
                   "this is a defect of the strategy that replaces the leaves");
}

/* Builds the new groups and states beside the old ones; nothing is changed yet. */
static ordo_status plan_rebind(leaf_optimizer *self, const ordo_leaf_map *map, size_t n, GPtrArray **leaves, GHashTable *states)
{
  g_autoptr(GHashTable) group_of_old = groups_by_leaf(self);
  g_autoptr(GHashTable) group_of_new = g_hash_table_new(NULL, NULL);
  for (size_t i = 0; i < n; i++) {
    int g = GPOINTER_TO_INT(g_hash_table_lookup(group_of_old, map[i].old_leaf)) - 1;
    gpointer known;
    if (g < 0 && !(map[i].old_leaf->flags & ORDO_PARAM_REQUIRES_GRAD))
      continue; /* frozen: it was never here */
    if (g < 0)
      return rebind_error(self, ORDO_E_INVALID, map[i].old_leaf, "the map names an old leaf that the optimizer does not hold");
    if (!g_hash_table_lookup_extended(group_of_new, map[i].new_leaf, NULL, &known)) {
      g_hash_table_insert(group_of_new, map[i].new_leaf, GINT_TO_POINTER(g));
      g_ptr_array_add(leaves[g], map[i].new_leaf);
    } else if (GPOINTER_TO_INT(known) != g) {
      return rebind_error(self, ORDO_E_INVALID, map[i].new_leaf, "it holds parameters with and without weight decay");
    }
    leaf_state *from = g_hash_table_lookup(self->states, map[i].old_leaf);
    if (!from)
      continue;
    leaf_state *to = g_hash_table_lookup(states, map[i].new_leaf);
    if (!to) {
      to = state_new(self, map[i].new_leaf);
      if (!to)
        return ORDO_E_NOMEM;
      g_hash_table_insert(states, map[i].new_leaf, to);
    }
    if (!self->dry)
      move_state(from, map[i].old_leaf, to, map[i].new_leaf, slots_in_use(self));
  }
  return ORDO_OK;
}

/* Leaves that the map does not name stay. */
static void keep_others(leaf_optimizer *self, const ordo_leaf_map *map, size_t n, GPtrArray **leaves, GHashTable *states)
{
  g_autoptr(GHashTable) replaced = g_hash_table_new(NULL, NULL);
  GHashTableIter iter;
  gpointer leaf, state;
  for (size_t i = 0; i < n; i++)
    g_hash_table_add(replaced, map[i].old_leaf);
  for (int g = 0; g < N_GROUPS; g++)
    for (guint i = 0; i < self->leaves[g]->len; i++)
      if (!g_hash_table_contains(replaced, g_ptr_array_index(self->leaves[g], i)))
        g_ptr_array_add(leaves[g], g_ptr_array_index(self->leaves[g], i));
  g_hash_table_iter_init(&iter, self->states);
  while (g_hash_table_iter_next(&iter, &leaf, &state)) {
    if (g_hash_table_contains(replaced, leaf))
      state_free(self, state);
    else
      g_hash_table_insert(states, leaf, state);
  }
}

static ordo_status optimizer_rebind(void *ctx, const ordo_leaf_map *map, size_t n)
{
  leaf_optimizer *self = ctx;
  GPtrArray *leaves[N_GROUPS] = {g_ptr_array_new(), g_ptr_array_new()};
  GHashTable *states = g_hash_table_new(NULL, NULL);
  ordo_status status = plan_rebind(self, map, n, leaves, states);
  if (status == ORDO_OK) {
    keep_others(self, map, n, leaves, states);
    for (int g = 0; g < N_GROUPS; g++) {
      GPtrArray *old = self->leaves[g];
      self->leaves[g] = leaves[g];
      leaves[g] = old;
    }
    GHashTable *old = self->states;
    self->states = states;
    states = old;
    publish(self);
  } else {
    GHashTableIter iter;
    gpointer state;
    g_hash_table_iter_init(&iter, states);
    while (g_hash_table_iter_next(&iter, NULL, &state))
      state_free(self, state);
  }
  for (int g = 0; g < N_GROUPS; g++)
    g_ptr_array_unref(leaves[g]);
  g_hash_table_unref(states);
  return status;
}

static uint32_t optimizer_n_slots(void *ctx)
{
  return slots_in_use(ctx);
}

static const char *optimizer_slot_name(void *ctx, uint32_t slot)
{
  const leaf_optimizer *self = ctx;
  static const char *const names[] = {"exp_avg", "exp_avg_sq"};
  if (slot >= slots_in_use(self))
    return NULL;
  return self->options.is_sgd ? "momentum_buffer" : names[slot];
}

static float *optimizer_slot(void *ctx, const ordo_leaf *leaf, uint32_t slot)
{
  leaf_optimizer *self = ctx;
  leaf_state *state = g_hash_table_lookup(self->states, leaf->master ? leaf->master : leaf);
  return state && slot < slots_in_use(self) ? state->slots[slot] : NULL;
}

static int64_t optimizer_updates(void *ctx, const ordo_leaf *leaf)
{
  const leaf_optimizer *self = ctx;
  const leaf_state *state = g_hash_table_lookup(self->states, leaf->master ? leaf->master : leaf);
  return state ? state->steps : 0;
}

static ordo_status optimizer_restore(void *ctx, ordo_leaf *leaf, int64_t updates)
{
  leaf_state *state = state_of(ctx, leaf->master ? leaf->master : leaf);
  if (!state)
    return ORDO_E_NOMEM;
  state->steps = updates;
  return ORDO_OK;
}

static void optimizer_destroy(void *ctx)
{
  leaf_optimizer *self = ctx;
  GHashTableIter iter;
  gpointer state;
  g_hash_table_iter_init(&iter, self->states);
  while (g_hash_table_iter_next(&iter, NULL, &state))
    state_free(self, state);
  g_hash_table_unref(self->states);
  for (int g = 0; g < N_GROUPS; g++)
    g_ptr_array_unref(self->leaves[g]);
  g_free(self);
}

ordo_status ordo_leaf_optimizer_create(ordo_context *context, ordo_session *session, const ordo_leaf_optimizer_options *options,
                                       const ordo_model *model, ordo_optimizer *optimizer)
{
  leaf_optimizer *self = g_new0(leaf_optimizer, 1);
  static const char *const names[N_GROUPS] = {"decay", "no_decay"};
  self->context = context;
  self->session = session;
  self->options = *options;
  self->kernels = kernels_default();
  self->states = g_hash_table_new(NULL, NULL);
  for (int g = 0; g < N_GROUPS; g++) {
    self->leaves[g] = g_ptr_array_new();
    self->groups[g] =
        (ordo_group){sizeof(ordo_group), names[g], NULL, 0, options->lr, g == DECAY && !options->is_sgd ? options->weight_decay : 0.0};
  }
  for (uint32_t i = 0; i < model->n_leaves; i++)
    if (model->leaves[i]->flags & ORDO_PARAM_REQUIRES_GRAD)
      g_ptr_array_add(self->leaves[model->leaves[i]->flags & ORDO_PARAM_DECAY ? DECAY : NO_DECAY], model->leaves[i]);
  publish(self);
  optimizer->struct_size = sizeof *optimizer;
  optimizer->ctx = self;
  optimizer->name = options->is_sgd ? "sgd" : "adamw";
  optimizer->flags = ORDO_OPTIMIZER_APPLIES_FACTOR | ORDO_OPTIMIZER_16_BIT;
  optimizer->n_groups = N_GROUPS;
  optimizer->groups = self->groups;
  optimizer->step = optimizer_step;
  optimizer->rebind = optimizer_rebind;
  optimizer->n_slots = optimizer_n_slots;
  optimizer->slot_name = optimizer_slot_name;
  optimizer->slot = optimizer_slot;
  optimizer->destroy = optimizer_destroy;
  optimizer->updates = optimizer_updates;
  optimizer->restore = optimizer_restore;
  return ORDO_OK;
}

void ordo_leaf_optimizer_observe(ordo_optimizer *optimizer, void (*stepping)(void *ctx, int begins), void *ctx)
{
  leaf_optimizer *self = optimizer->ctx;
  self->stepping = stepping;
  self->stepping_ctx = ctx;
}

void ordo_leaf_optimizer_set_dry(ordo_optimizer *optimizer)
{
  ((leaf_optimizer *)optimizer->ctx)->dry = 1;
}

void ordo_leaf_optimizer_set_lr(ordo_optimizer *optimizer, double lr)
{
  for (uint32_t g = 0; g < optimizer->n_groups; g++)
    optimizer->groups[g].lr = lr;
}
