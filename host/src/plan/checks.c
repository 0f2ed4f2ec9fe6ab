/* checks.c - what is refused without looking at the order: axes, reducers, owners of precision, requirements and conflicts.
 *
 * Every finding is added, none stops the others, so one run tells a person everything. Texts name the plugins and the lines that say so,
 * and what would help. Guards against runs that would start and silently compute something else: gradients never reduced, or reduced twice.
 */
#include "rules.h"

#include <string.h>

void ordo_build_find(ordo_build *build, const char *code, const char *where, const char *next, const char *text, ...)
{
  ordo_finding *finding = g_new0(ordo_finding, 1);
  va_list args;
  va_start(args, text);
  finding->code = g_strdup(code);
  finding->text = g_strdup_vprintf(text, args);
  finding->where = g_strdup(where ? where : "");
  finding->next = g_strdup(next ? next : "");
  va_end(args);
  g_ptr_array_add(build->result->findings, finding);
}

gboolean ordo_decl_provides(const ordo_decl *decl, const char *capability)
{
  if (strcmp(decl->id, capability) == 0)
    return TRUE;
  for (guint i = 0; i < decl->provides->len; i++) {
    if (strcmp(((const ordo_token *)g_ptr_array_index(decl->provides, i))->name, capability) == 0)
      return TRUE;
  }
  return FALSE;
}

static const ordo_decl *sorted_decl(const ordo_build *build, size_t i)
{
  return build->input->decls[build->sorted[i]];
}

/* The step, besides a partition, by which the strategy replaces leaves; -1 if none. */
static int replacing_step(const ordo_decl *decl)
{
  for (int step = 0; step < ORDO_N_STEPS; step++) {
    if (step != ORDO_STEP_PARTITION && (decl->replaces >> step) & 1u)
      return step;
  }
  return -1;
}

static void check_axis_pair(ordo_build *build, const ordo_decl *a, const ordo_decl *b)
{
  int step_a = replacing_step(a), step_b = replacing_step(b);
  if (a->axis >= 0 && a->axis == b->axis && ordo_build_on(build, ORDO_CLAUSE_10_AXIS))
    ordo_build_find(build, "E-PLAN-AXIS", "ordering rule 10",
                    "give each strategy an axis of its own (NAME=SIZE+NAME=SIZE), or leave one of them out",
                    "the strategies '%s' and '%s' are on one mesh axis (%s)", a->id, b->id, build->input->axes[a->axis].name);
  if (step_a >= 0 && step_b >= 0 && a->axis == b->axis && a->model_mask & b->model_mask && ordo_build_on(build, ORDO_CLAUSE_5_ONE)) {
    g_autofree char *where = g_strdup_printf("ordering rule 5; %s; %s", a->replaces_origin[step_a], b->replaces_origin[step_b]);
    ordo_build_find(build, "E-PLAN-AXIS", where, "leave one of them out",
                    "'%s' (%s) and '%s' (%s) both replace the leaves of one model along one axis", a->id, ordo_step_name((uint32_t)step_a),
                    b->id, ordo_step_name((uint32_t)step_b));
  }
}

static void check_precision_pair(ordo_build *build, const ordo_decl *a, const ordo_decl *b)
{
  if (a->kind == ORDO_KIND_PRECISION && b->kind == ORDO_KIND_PRECISION && a->model_mask & b->model_mask &&
      ordo_build_on(build, ORDO_CLAUSE_10_PRECISION))
    ordo_build_find(build, "E-PLAN-PRECISION-OWNER", "ordering rule 10", "choose one of them",
                    "the precision plugins '%s' and '%s' are both chosen for one model", a->id, b->id);
}

/* The step by which a precision plugin converts the model under its options; -1 if it does not. */
static int converting_step(const ordo_decl *decl)
{
  if (ordo_decl_has_step(decl, ORDO_STEP_CONVERT_MODEL))
    return ORDO_STEP_CONVERT_MODEL;
  return ordo_decl_has_step(decl, ORDO_STEP_INITIALIZE) ? ORDO_STEP_INITIALIZE : -1;
}

static void check_owner(ordo_build *build, const ordo_decl *strategy, const ordo_decl *precision)
{
  int step = converting_step(precision);
  if (strategy->kind != ORDO_KIND_STRATEGY || precision->kind != ORDO_KIND_PRECISION || step < 0 || !ordo_build_on(build, ORDO_CLAUSE_OWNS))
    return;
  if (ordo_decl_has_flag(strategy, ORDO_FLAG_OWNS_PRECISION) && strategy->model_mask & precision->model_mask) {
    g_autofree char *where =
        g_strdup_printf("flag owns_precision (%s); %s (%s)", strategy->flag_origin[ORDO_FLAG_OWNS_PRECISION],
                        ordo_step_name((uint32_t)step), precision->step_origin[step] ? precision->step_origin[step] : precision->id);
    ordo_build_find(build, "E-PLAN-PRECISION-OWNER", where,
                    "let one of them own the precision: change the option that the manifest line depends on, or leave one out",
                    "precision has two owners: the strategy '%s' casts by itself, and the precision plugin '%s' converts the model",
                    strategy->id, precision->id);
  }
}

/* A gradient exists in this session. */
static gboolean trains_anything(const ordo_build *build)
{
  for (uint32_t model = 0; model < build->input->n_models; model++) {
    if (ordo_build_trains(build, model))
      return TRUE;
  }
  return FALSE;
}

static void check_reducers(ordo_build *build, int axis)
{
  const ordo_resolve_axis *data = &build->input->axes[axis];
  g_autoptr(GPtrArray) names = g_ptr_array_new(), origins = g_ptr_array_new();
  for (size_t i = 0; i < build->input->n_decls; i++) {
    const ordo_decl *decl = sorted_decl(build, i);
    if (decl->axis == axis && decl->kind == ORDO_KIND_STRATEGY && decl->reduces) {
      g_ptr_array_add(names, decl->id);
      g_ptr_array_add(origins, decl->reduces_origin);
    }
  }
  guint n = names->len;
  g_ptr_array_add(names, NULL);
  g_ptr_array_add(origins, NULL);
  g_autofree char *who = g_strjoinv(", ", (char **)names->pdata);
  g_autofree char *lines = g_strjoinv("; ", (char **)origins->pdata);
  g_autofree char *where = g_strdup_printf("ordering rule 10%s%s", n ? "; " : "", lines);
  if (n == 0 && ordo_build_on(build, ORDO_CLAUSE_10_NO_REDUCER))
    ordo_build_find(
        build, "E-PLAN-REDUCER", where, "choose a strategy that reduces gradients for this axis, or give the ranks to another axis",
        "nobody reduces gradients on the data axis '%s' of %d ranks: each rank would train a model of its own", data->name, data->size);
  if (n > 1 && ordo_build_on(build, ORDO_CLAUSE_10_TWO_REDUCERS))
    ordo_build_find(build, "E-PLAN-REDUCER", where, "leave all but one of them out",
                    "gradients on the data axis '%s' would be reduced %u times, by %s", data->name, n, who);
}

/* Names of everybody installed who offers `capability`, null if nobody does. */
static char *who_could_provide(const ordo_build *build, const char *capability)
{
  g_autoptr(GPtrArray) names = g_ptr_array_new();
  for (size_t i = 0; i < build->input->n_offers; i++) {
    if (strcmp(build->input->offers[i].capability, capability) == 0)
      g_ptr_array_add(names, (gpointer)build->input->offers[i].plugin);
  }
  if (names->len == 0)
    return NULL;
  g_ptr_array_add(names, NULL);
  return g_strjoinv(", ", (char **)names->pdata);
}

static void check_requirement(ordo_build *build, const ordo_decl *decl, const ordo_token *token)
{
  for (size_t i = 0; i < build->input->n_decls; i++) {
    if (ordo_decl_provides(build->input->decls[i], token->name))
      return; /* a plugin may satisfy itself, for example under one of its options */
  }
  g_autofree char *who = who_could_provide(build, token->name);
  g_autofree char *next =
      who ? g_strdup_printf("add one of these: %s", who) : g_strdup_printf("install a plugin that provides %s", token->name);
  ordo_build_find(build, "E-PLAN-REQUIRES", token->origin, next, "'%s' requires '%s', which no selected plugin provides", decl->id,
                  token->name);
}

static gboolean has_token(const GPtrArray *tokens, const char *name)
{
  for (guint i = 0; i < tokens->len; i++) {
    if (strcmp(((const ordo_token *)g_ptr_array_index(tokens, i))->name, name) == 0)
      return TRUE;
  }
  return FALSE;
}

/* Two plugins that both offer a capability and exclude others that do have one conflict, not two. */
static gboolean was_found(const ordo_decl *earlier, const ordo_decl *decl, const char *capability)
{
  return has_token(earlier->conflicts, capability) && ordo_decl_provides(decl, capability);
}

static void check_conflict(ordo_build *build, const ordo_decl *decl, const ordo_token *token)
{
  gboolean before = TRUE;
  for (size_t i = 0; i < build->input->n_decls; i++) {
    const ordo_decl *other = sorted_decl(build, i);
    before = before && other != decl;
    if (before && was_found(other, decl, token->name))
      continue;
    if (other != decl && ordo_decl_provides(other, token->name) && decl->model_mask & other->model_mask)
      ordo_build_find(build, "E-PLAN-CONFLICTS", token->origin, "leave one of the two out", "'%s' conflicts with '%s', which '%s' provides",
                      decl->id, token->name, other->id);
  }
}

static int compare_tokens(gconstpointer a, gconstpointer b)
{
  const ordo_token *x = *(const ordo_token *const *)a, *y = *(const ordo_token *const *)b;
  int by_name = strcmp(x->name, y->name);
  return by_name != 0 ? by_name : strcmp(x->origin, y->origin);
}

/* In the order of names: the order of lines in a manifest means nothing. */
static void check_tokens(ordo_build *build, const ordo_decl *decl, const GPtrArray *tokens,
                         void (*check)(ordo_build *, const ordo_decl *, const ordo_token *))
{
  g_autoptr(GPtrArray) sorted = g_ptr_array_new();
  for (guint i = 0; i < tokens->len; i++)
    g_ptr_array_add(sorted, g_ptr_array_index(tokens, i));
  g_ptr_array_sort(sorted, compare_tokens);
  for (guint i = 0; i < sorted->len; i++)
    check(build, decl, g_ptr_array_index(sorted, i));
}

void ordo_build_check(ordo_build *build)
{
  size_t n = build->input->n_decls;
  for (size_t i = 0; i < n; i++) {
    for (size_t k = 0; k < n; k++) {
      if (i < k)
        check_axis_pair(build, sorted_decl(build, i), sorted_decl(build, k));
      if (i < k)
        check_precision_pair(build, sorted_decl(build, i), sorted_decl(build, k));
      check_owner(build, sorted_decl(build, i), sorted_decl(build, k));
    }
    if (ordo_build_on(build, ORDO_CLAUSE_11_REQUIRES))
      check_tokens(build, sorted_decl(build, i), sorted_decl(build, i)->requires, check_requirement);
    if (ordo_build_on(build, ORDO_CLAUSE_11_CONFLICTS))
      check_tokens(build, sorted_decl(build, i), sorted_decl(build, i)->conflicts, check_conflict);
  }
  for (size_t axis = 0; axis < build->input->n_axes; axis++) {
    if (build->input->axes[axis].kind == ORDO_AXIS_DATA && build->input->axes[axis].size > 1 && trains_anything(build))
      check_reducers(build, (int)axis);
  }
}
