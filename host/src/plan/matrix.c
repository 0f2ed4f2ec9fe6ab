/* matrix.c - every strategy found, and none, with every precision found, and none: legal or the conflict.
 *
 * Each cell is an ordinary plan, nothing is looked up, so a plugin that was installed a minute ago has its row. A strategy that takes no
 * axis, and "none", are planned for one rank: more ranks would need somebody to use them.
 */
#include "../context.h"
#include "json.h"
#include "plan.h"
#include "table.h"

#include <string.h>

typedef struct cell {
  const char *strategy, *precision;
  gboolean legal;
  char *code; /* of the first finding, null if legal */
  char *text;
} cell;

static void clear_cell(gpointer data)
{
  g_free(((cell *)data)->code);
  g_free(((cell *)data)->text);
}

typedef struct name {
  const char *id;
  gboolean one_rank;
} name;

/* "none" and all usable plugins of the kind. */
static GArray *names_of(const ordo_context *context, uint32_t kind)
{
  GArray *names = g_array_new(FALSE, FALSE, sizeof(name));
  name none = {"none", TRUE};
  g_array_append_val(names, none);
  for (size_t i = 0; i < ordo_registry_count(context->registry); i++) {
    const ordo_found *found = ordo_registry_at(context->registry, i);
    if (found->info.state != ORDO_PLUGIN_USABLE || found->info.kind != kind || !found->manifest)
      continue;
    name entry = {found->info.id, strcmp(found->manifest->mesh_axis, "none") == 0};
    g_array_append_val(names, entry);
  }
  return names;
}

static void plan_cell(ordo_context *context, int ranks, const name *strategy, cell *c)
{
  ordo_plan_request request = {.struct_size = sizeof request, .strategy = strategy->id, .precision = c->precision};
  ordo_plan *plan = NULL;
  request.ranks = strategy->one_rank ? 1 : ranks;
  c->legal = ordo_plan_create(context, &request, &plan) == ORDO_OK;
  const ordo_error *error = ordo_errors_at(context->errors, 0);
  if (!c->legal && error) {
    c->code = g_strdup(error->code);
    c->text = g_strdup(error->what);
  }
  ordo_plan_destroy(plan);
}

static GArray *fill(ordo_context *context, int ranks, const GArray *strategies, const GArray *precisions)
{
  GArray *cells = g_array_new(FALSE, TRUE, sizeof(cell));
  g_array_set_clear_func(cells, clear_cell);
  for (guint i = 0; i < strategies->len; i++) {
    const name *strategy = &g_array_index(strategies, name, i);
    for (guint k = 0; k < precisions->len; k++) {
      cell c = {.strategy = strategy->id, .precision = g_array_index(precisions, name, k).id};
      plan_cell(context, ranks, strategy, &c);
      g_array_append_val(cells, c);
    }
  }
  return cells;
}

static const char *verdict(const cell *c)
{
  return c->legal ? "legal" : c->code ? c->code : "failed";
}

static char *text_form(const GArray *cells, guint n_precisions, int ranks, gboolean colour)
{
  GString *out = g_string_new(NULL);
  guint n_legal = 0;
  g_autofree const char **row = g_new0(const char *, n_precisions + 1);
  g_autoptr(ordo_table) table = ordo_table_new(n_precisions + 1);
  row[0] = "strategy";
  for (guint k = 0; k < n_precisions; k++)
    row[k + 1] = g_array_index(cells, cell, k).precision;
  ordo_table_row(table, row);
  for (guint i = 0; i < cells->len; i++) {
    const cell *c = &g_array_index(cells, cell, i);
    row[0] = c->strategy;
    row[i % n_precisions + 1] = verdict(c);
    n_legal += (guint)c->legal;
    if (i % n_precisions == n_precisions - 1)
      ordo_table_row(table, row);
  }
  g_string_append_printf(out, "%u of %u combinations have an order, %d rank%s (one rank where no mesh axis is taken)\n\n", n_legal,
                         cells->len, ranks, ranks == 1 ? "" : "s");
  ordo_table_append(table, out, "  ", colour ? ORDO_ESC_BOLD : NULL);
  if (n_legal < cells->len)
    g_string_append_c(out, '\n');
  for (guint i = 0; i < cells->len; i++) {
    const cell *c = &g_array_index(cells, cell, i);
    if (!c->legal)
      g_string_append_printf(out, "  %s with %s: %s\n", c->strategy, c->precision, c->text ? c->text : "");
  }
  return g_string_free(out, FALSE);
}

static char *json_form(const GArray *cells, int ranks)
{
  ordo_json json;
  ordo_json_begin(&json);
  ordo_json_open(&json, NULL, '{');
  ordo_json_int(&json, "schema", 1);
  ordo_json_int(&json, "ranks", ranks);
  ordo_json_open(&json, "combinations", '[');
  for (guint i = 0; i < cells->len; i++) {
    const cell *c = &g_array_index(cells, cell, i);
    ordo_json_open(&json, NULL, '{');
    ordo_json_string(&json, "strategy", c->strategy);
    ordo_json_string(&json, "precision", c->precision);
    ordo_json_bool(&json, "legal", c->legal);
    ordo_json_string(&json, "code", c->code);
    ordo_json_string(&json, "text", c->text);
    ordo_json_close(&json, '}');
  }
  ordo_json_close(&json, ']');
  ordo_json_close(&json, '}');
  return ordo_json_end(&json);
}

ordo_status ordo_plan_matrix(ordo_context *context, int32_t ranks, uint32_t form, uint32_t flags, char **text)
{
  if (!context || !text || ranks < 1)
    return ORDO_E_INVALID;
  g_autoptr(GArray) strategies = names_of(context, ORDO_KIND_STRATEGY), precisions = names_of(context, ORDO_KIND_PRECISION);
  g_autoptr(GArray) cells = fill(context, ranks, strategies, precisions);
  ordo_errors_clear(context->errors); /* a conflict in a cell is a result, not an error of this call */
  *text = form == ORDO_RENDER_JSON ? json_form(cells, ranks) : text_form(cells, precisions->len, ranks, (flags & ORDO_RENDER_COLOUR) != 0);
  return ORDO_OK;
}
