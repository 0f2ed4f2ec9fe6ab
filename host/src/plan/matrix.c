/* matrix.c - every strategy found, and none, alone and composed, with every precision found, and none: the resolved order or the conflict.
 *
 * Each cell is an ordinary plan, nothing is looked up, so a plugin that was installed a minute ago has its rows. A strategy that takes no
 * axis, and "none", are planned for one rank: more ranks would need somebody to use them. Composed are strategies with an axis each: all
 * pairs, and threes of which each pair has an order, those of a model axis innermost.
 */
#include "../context.h"
#include "json.h"
#include "plan.h"
#include "table.h"

#include <string.h>

typedef struct cell {
  const char *strategy, *precision;
  int ranks;
  gboolean legal;
  char *order; /* of a legal one */
  char *code;  /* of the first finding, null if legal */
  char *text;
} cell;

static void clear_cell(gpointer data)
{
  g_free(((cell *)data)->order);
  g_free(((cell *)data)->code);
  g_free(((cell *)data)->text);
}

/* A row: one strategy, or several joined with '+', innermost axis first. */
typedef struct name {
  char *id;
  char *expression; /* with the sizes of the axes */
  int ranks;
} name;

static void clear_name(gpointer data)
{
  g_free(((name *)data)->id);
  g_free(((name *)data)->expression);
}

static void add_name(GArray *names, const char *id, const char *expression, int ranks)
{
  name entry = {g_strdup(id), g_strdup(expression), ranks};
  g_array_append_val(names, entry);
}

static gboolean is_usable(const ordo_found *found, uint32_t kind)
{
  return found->info.state == ORDO_PLUGIN_USABLE && found->info.kind == kind && found->manifest;
}

static GArray *names_new(void)
{
  GArray *names = g_array_new(FALSE, FALSE, sizeof(name));
  g_array_set_clear_func(names, clear_name);
  return names;
}

/* "none" and all usable plugins of the kind. */
static GArray *names_of(const ordo_context *context, uint32_t kind, int ranks)
{
  GArray *names = names_new();
  add_name(names, "none", "none", 1);
  for (size_t i = 0; i < ordo_registry_count(context->registry); i++) {
    const ordo_found *found = ordo_registry_at(context->registry, i);
    if (is_usable(found, kind))
      add_name(names, found->info.id, found->info.id, strcmp(found->manifest->mesh_axis, "none") == 0 ? 1 : ranks);
  }
  return names;
}

static gboolean is_everywhere(uint32_t step)
{
  return step == ORDO_STEP_MESH_INIT || step == ORDO_STEP_MODEL_BUILD || step == ORDO_STEP_SCHEDULER_CREATE || step == ORDO_STEP_VERIFY;
}

/* Steps with their providers, without those that every plan has. */
static char *order_of(const ordo_plan *plan)
{
  GString *text = g_string_new(NULL);
  for (size_t i = 0; i < ordo_plan_n_nodes(plan); i++) {
    const ordo_plan_node *node = ordo_plan_node_at(plan, i);
    if (!is_everywhere(node->step))
      g_string_append_printf(text, "%s%s(%s)", text->len ? " > " : "", node->name, node->provider);
  }
  return g_string_free(text, FALSE);
}

static void plan_cell(ordo_context *context, const char *expression, cell *c)
{
  ordo_plan_request request = {.struct_size = sizeof request, .strategy = expression, .precision = c->precision, .ranks = c->ranks};
  ordo_plan *plan = NULL;
  c->legal = ordo_plan_create(context, &request, &plan) == ORDO_OK;
  const ordo_error *error = ordo_errors_at(context->errors, 0);
  if (c->legal) {
    c->order = order_of(plan);
  } else if (error) {
    c->code = g_strdup(error->code);
    c->text = g_strdup(error->what);
  }
  ordo_plan_destroy(plan);
}

static gboolean has_order(ordo_context *context, const name *row)
{
  cell c = {.strategy = row->id, .precision = "none", .ranks = row->ranks};
  plan_cell(context, row->expression, &c);
  gboolean legal = c.legal;
  clear_cell(&c);
  return legal;
}

static gboolean is_model_axis(gconstpointer found)
{
  return strcmp(((const ordo_found *)found)->manifest->mesh_axis, "model") == 0;
}

/* Model axes first, then by id: what the registry's order is does not matter. */
static int compare_places(gconstpointer a, gconstpointer b)
{
  const ordo_found *x = *(const ordo_found *const *)a, *y = *(const ordo_found *const *)b;
  return is_model_axis(x) != is_model_axis(y) ? is_model_axis(y) - is_model_axis(x) : strcmp(x->info.id, y->info.id);
}

static void compose(GArray *names, GPtrArray *found, const guint *members, guint n, int size)
{
  g_autoptr(GString) id = g_string_new(NULL), expression = g_string_new(NULL);
  gint64 ranks = 1;
  for (guint i = 0; i < n; i++) {
    const ordo_found *member = g_ptr_array_index(found, members[i]);
    g_string_append_printf(id, "%s%s", i ? "+" : "", member->info.id);
    g_string_append_printf(expression, "%s%s=%d", i ? "+" : "", member->info.id, size);
    ranks = MIN(ranks * size, G_MAXINT); /* too many are refused by the plan */
  }
  add_name(names, id->str, expression->str, (int)ranks);
}

/* Pairs and threes of strategies with an axis; each axis has `size` ranks. */
static void add_composed(ordo_context *context, GArray *names, int size)
{
  g_autoptr(GPtrArray) found = g_ptr_array_new();
  for (size_t i = 0; i < ordo_registry_count(context->registry); i++) {
    const ordo_found *plugin = ordo_registry_at(context->registry, i);
    if (is_usable(plugin, ORDO_KIND_STRATEGY) && strcmp(plugin->manifest->mesh_axis, "none") != 0)
      g_ptr_array_add(found, (gpointer)plugin);
  }
  g_ptr_array_sort(found, compare_places);
  guint n = found->len;
  g_autofree gboolean *legal = g_new0(gboolean, MAX(n * n, 1u));
  for (guint a = 0; a < n; a++)
    for (guint b = a + 1; b < n; b++) {
      compose(names, found, (const guint[]){a, b}, 2, size);
      legal[a * n + b] = has_order(context, &g_array_index(names, name, names->len - 1));
    }
  for (guint a = 0; a < n; a++)
    for (guint b = a + 1; b < n; b++)
      for (guint c = b + 1; c < n && legal[a * n + b]; c++)
        if (legal[a * n + c] && legal[b * n + c])
          compose(names, found, (const guint[]){a, b, c}, 3, size);
}

static GArray *fill(ordo_context *context, const GArray *strategies, const GArray *precisions)
{
  GArray *cells = g_array_new(FALSE, TRUE, sizeof(cell));
  g_array_set_clear_func(cells, clear_cell);
  for (guint i = 0; i < strategies->len; i++) {
    const name *strategy = &g_array_index(strategies, name, i);
    for (guint k = 0; k < precisions->len; k++) {
      cell c = {.strategy = strategy->id, .precision = g_array_index(precisions, name, k).id, .ranks = strategy->ranks};
      plan_cell(context, strategy->expression, &c);
      g_array_append_val(cells, c);
    }
  }
  return cells;
}

static const char *verdict(const cell *c)
{
  return c->legal ? "legal" : c->code ? c->code : "failed";
}

static void append_cells(GString *out, const GArray *cells, gboolean legal, const char *title)
{
  gboolean first = TRUE;
  for (guint i = 0; i < cells->len; i++) {
    const cell *c = &g_array_index(cells, cell, i);
    if (c->legal != legal)
      continue;
    if (first)
      g_string_append(out, title);
    first = FALSE;
    g_string_append_printf(out, "  %s with %s: %s\n", c->strategy, c->precision, legal ? c->order : c->text ? c->text : c->code);
  }
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
  g_string_append_printf(out, "%u of %u combinations have an order, %d rank%s on each mesh axis (one rank where none is taken)\n\n",
                         n_legal, cells->len, ranks, ranks == 1 ? "" : "s");
  ordo_table_append(table, out, "  ", colour ? ORDO_ESC_BOLD : NULL);
  append_cells(out, cells, TRUE, "\norders, without mesh.init and model.build before and scheduler.create and verify behind them\n");
  append_cells(out, cells, FALSE, "\nconflicts\n");
  return g_string_free(out, FALSE);
}

static void write_steps(ordo_json *json, const cell *c)
{
  g_auto(GStrv) steps = g_strsplit(c->legal ? c->order : "", " > ", -1);
  ordo_json_open(json, "steps", '[');
  for (char **step = steps; *step; step++)
    ordo_json_string(json, NULL, *step);
  ordo_json_close(json, ']');
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
    ordo_json_int(&json, "ranks", c->ranks);
    write_steps(&json, c);
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
  g_autoptr(GArray) strategies = names_of(context, ORDO_KIND_STRATEGY, ranks), precisions = names_of(context, ORDO_KIND_PRECISION, ranks);
  add_composed(context, strategies, ranks);
  g_autoptr(GArray) cells = fill(context, strategies, precisions);
  ordo_errors_clear(context->errors); /* a conflict in a cell is a result, not an error of this call */
  *text = form == ORDO_RENDER_JSON ? json_form(cells, ranks) : text_form(cells, precisions->len, ranks, (flags & ORDO_RENDER_COLOUR) != 0);
  return ORDO_OK;
}
