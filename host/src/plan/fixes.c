/* fixes.c - single changes that turn a refused session into one that resolves.
 *
 * Not a list of guesses: every change is applied to a copy of the input and resolved again, and only those that work are reported. A change
 * of a declaration must also leave it free of manifest errors, or the advice would trade one error for another. Cheap changes of a person's
 * own choice (another option value) come first, changes that only the author of a plugin can make later, leaving a plugin out last.
 */
#include "rules.h"

#include <string.h>

/* Resolves with declaration `index` replaced. */
static gboolean works_with(const ordo_build *build, size_t index, const ordo_decl *instead)
{
  ordo_resolve_input input = *build->input;
  g_autofree const ordo_decl **decls = g_memdup2(input.decls, input.n_decls * sizeof *decls);
  decls[index] = instead;
  input.decls = decls;
  ordo_resolution *result = ordo_resolve_without(&input, build->off, TRUE);
  gboolean legal = result->legal;
  ordo_resolution_free(result);
  return legal;
}

static void offer(ordo_build *build, char *text)
{
  if (g_ptr_array_find_with_equal_func(build->result->fixes, text, g_str_equal, NULL))
    g_free(text);
  else
    g_ptr_array_add(build->result->fixes, text);
}

static gint compare_variants(gconstpointer a, gconstpointer b)
{
  return strcmp(((const ordo_variant *)a)->change, ((const ordo_variant *)b)->change);
}

static void try_options(ordo_build *build)
{
  size_t n = build->input->n_variants;
  g_autoptr(GArray) sorted = g_array_new(FALSE, FALSE, sizeof(ordo_variant));
  if (n > 0)
    g_array_append_vals(sorted, build->input->variants, (guint)n);
  g_array_sort(sorted, compare_variants);
  for (guint i = 0; i < sorted->len; i++) {
    const ordo_variant *variant = &g_array_index(sorted, ordo_variant, i);
    if (works_with(build, variant->decl, variant->instead))
      offer(build, g_strdup_printf("choose %s", variant->change));
  }
}

/* Flags whose presence can take an edge or a node away. */
static void try_adding_flags(ordo_build *build, size_t index)
{
  static const uint32_t helpful[] = {ORDO_FLAG_ACCEPTS_PARTITIONED, ORDO_FLAG_RESTORES_AFTER_WRAP};
  const ordo_decl *decl = build->input->decls[index];
  for (size_t i = 0; i < G_N_ELEMENTS(helpful); i++) {
    ordo_decl changed = *decl;
    changed.flags |= 1u << helpful[i];
    if (ordo_flag_kind(helpful[i]) == decl->kind && changed.flags != decl->flags && ordo_decl_is_consistent(&changed) &&
        works_with(build, index, &changed))
      offer(build, g_strdup_printf("if %s can do it, add the flag %s to its manifest", decl->id, ordo_flag_name(helpful[i])));
  }
}

static gint compare_texts(gconstpointer a, gconstpointer b)
{
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void try_dropping_lines(ordo_build *build, size_t index)
{
  const ordo_decl *decl = build->input->decls[index];
  g_autoptr(GPtrArray) offers = g_ptr_array_new_with_free_func(g_free);
  for (guint skip = 0; skip < decl->lines->len; skip++) {
    const ordo_edge_line *line = g_ptr_array_index(decl->lines, skip);
    g_autoptr(GPtrArray) rest = g_ptr_array_new();
    for (guint i = 0; i < decl->lines->len; i++) {
      if (i != skip)
        g_ptr_array_add(rest, g_ptr_array_index(decl->lines, i));
    }
    ordo_decl changed = *decl;
    changed.lines = rest;
    if (line->hard && works_with(build, index, &changed))
      g_ptr_array_add(offers, g_strdup_printf("remove the line %s (%s), or make it soft with ?", line->text, line->origin));
  }
  g_ptr_array_sort(offers, compare_texts);
  for (guint i = 0; i < offers->len; i++)
    offer(build, g_strdup(g_ptr_array_index(offers, i)));
}

static void try_dropping_flags(ordo_build *build, size_t index)
{
  const ordo_decl *decl = build->input->decls[index];
  for (uint32_t flag = 0; flag < ORDO_N_FLAGS; flag++) {
    ordo_decl changed = *decl;
    changed.flags &= ~(1u << flag);
    if (changed.flags != decl->flags && ordo_decl_is_consistent(&changed) && works_with(build, index, &changed))
      offer(build, g_strdup_printf("remove the flag %s (%s) from %s", ordo_flag_name(flag), decl->flag_origin[flag], decl->id));
  }
}

/* Without declaration `index`. Its axis goes too if another one can take the ranks; alone it becomes a data axis that needs a reducer. */
static gboolean works_without(const ordo_build *build, size_t index)
{
  ordo_resolve_input input = *build->input;
  int axis = input.decls[index]->axis;
  gboolean shared = FALSE;
  g_autofree ordo_decl *copies = g_new0(ordo_decl, input.n_decls);
  g_autofree const ordo_decl **decls = g_new0(const ordo_decl *, input.n_decls);
  g_autoptr(GArray) axes = g_array_new(FALSE, FALSE, sizeof(ordo_resolve_axis));
  for (size_t i = 0; i < input.n_decls; i++)
    shared = shared || (i != index && input.decls[i]->axis == axis);
  gboolean drop_axis = axis >= 0 && !shared && input.n_axes > 1;
  for (size_t i = 0; i < input.n_axes; i++) {
    ordo_resolve_axis copy = input.axes[i];
    if ((int)i == axis && !shared)
      copy.kind = ORDO_AXIS_DATA;
    if (!drop_axis || (int)i != axis)
      g_array_append_val(axes, copy);
  }
  size_t n = 0;
  for (size_t i = 0; i < input.n_decls; i++) {
    if (i == index)
      continue;
    copies[n] = *input.decls[i];
    if (drop_axis && copies[n].axis > axis)
      copies[n].axis--;
    decls[n] = &copies[n];
    n++;
  }
  input.decls = decls;
  input.n_decls = n;
  input.axes = (const ordo_resolve_axis *)(gpointer)axes->data;
  input.n_axes = axes->len;
  ordo_resolution *result = ordo_resolve_without(&input, build->off, TRUE);
  gboolean legal = result->legal;
  ordo_resolution_free(result);
  return legal;
}

void ordo_build_try_fixes(ordo_build *build)
{
  size_t n = build->input->n_decls;
  try_options(build);
  for (size_t i = 0; i < n; i++)
    try_adding_flags(build, build->sorted[i]);
  for (size_t i = 0; i < n; i++)
    try_dropping_lines(build, build->sorted[i]);
  for (size_t i = 0; i < n; i++)
    try_dropping_flags(build, build->sorted[i]);
  for (size_t i = 0; i < n; i++) {
    const ordo_decl *decl = build->input->decls[build->sorted[i]];
    if (works_without(build, build->sorted[i]))
      offer(build, g_strdup_printf("leave out the %s plugin %s", ordo_kind_name(decl->kind), decl->id));
  }
}
