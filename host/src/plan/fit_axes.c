/* fit_axes.c - mesh axes from the sizes in a strategy expression.
 *
 * The expression names the innermost axis first, the mesh lists the outermost first. One part may leave its size open and takes the ranks
 * that are left. Guards against a world that is quietly larger or smaller than the mesh: the product has to be exact.
 */
#include "plan.h"
#include <ordo/mesh.h>

#include <string.h>

static char *sizes_as_written(const GPtrArray *choices)
{
  GString *text = g_string_new(NULL);
  for (guint i = 0; i < choices->len; i++) {
    const ordo_choice *choice = g_ptr_array_index(choices, i);
    if (choice->size > 0)
      g_string_append_printf(text, "%s%s=%d", text->len ? " x " : "", choice->found->info.id, choice->size);
  }
  return g_string_free(text, FALSE);
}

/* The open size, or 0 with an error. *spare gets what is left when no part is open. */
static int open_size(const GPtrArray *choices, int ranks, gint64 product, gboolean open, int *spare, ordo_errors *errors)
{
  g_autofree char *written = sizes_as_written(choices);
  g_autofree char *why = g_strdup_printf("%s needs a multiple of %" G_GINT64_FORMAT " ranks, the run has %d", written, product, ranks);
  if (ranks % product != 0) {
    ordo_errors_push(errors, ORDO_E_INVALID, "E-MESH-SIZE", "--strategy", why,
                     "change --ranks or the sizes, so that their product is the number of ranks", "the mesh does not fit %d ranks", ranks);
    return 0;
  }
  *spare = open ? 1 : ranks / (int)product;
  return ranks / (int)product;
}

GArray *ordo_plan_fit_axes(const GPtrArray *choices, int ranks, int *axis_of_choice, int *spare, ordo_errors *errors)
{
  gint64 product = 1;
  gboolean open = FALSE;
  int n_axes = 0;
  for (guint i = 0; i < choices->len; i++) {
    const ordo_choice *choice = g_ptr_array_index(choices, i);
    if (choice->size > 0)
      product = MIN(product * choice->size, (gint64)G_MAXINT32 + 1);
    open = open || choice->size == 0;
    n_axes += choice->size >= 0;
  }
  if (n_axes > ORDO_MAX_AXES) {
    ordo_errors_push(errors, ORDO_E_INVALID, "E-MESH-SIZE", "--strategy", NULL, "leave some strategies out",
                     "the mesh would have %d axes; %d are possible", n_axes, ORDO_MAX_AXES);
    return NULL;
  }
  int rest = open_size(choices, ranks, product, open, spare, errors);
  if (rest == 0)
    return NULL;
  GArray *axes = g_array_new(FALSE, TRUE, sizeof(ordo_plan_axis));
  for (guint i = choices->len; i > 0; i--) {
    const ordo_choice *choice = g_ptr_array_index(choices, i - 1);
    gboolean model = choice->found->manifest && strcmp(choice->found->manifest->mesh_axis, "model") == 0;
    ordo_plan_axis axis = {NULL, model ? ORDO_AXIS_MODEL : ORDO_AXIS_DATA, choice->size > 0 ? choice->size : rest};
    axis_of_choice[i - 1] = choice->size < 0 ? -1 : (int)axes->len;
    if (choice->size < 0)
      continue;
    axis.name = g_strdup(choice->found->info.id);
    g_array_append_val(axes, axis);
  }
  return axes;
}
