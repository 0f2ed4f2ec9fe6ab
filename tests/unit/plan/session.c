/* session.c - builds sessions of fake plugins for the resolver's tests. */
#include "session.h"

static const struct {
  const char *id, *manifest;
} fakes[] = {
    {"ddp", FAKE_DDP},
    {"fsdp1", FAKE_FSDP1},
    {"fsdp2", FAKE_FSDP2},
    {"tp", FAKE_TP},
    {"zero1", FAKE_ZERO1},
    {"watch", FAKE_WATCH},
    {"jointx", FAKE_JOINTX},
    {"scaler", FAKE_SCALER},
    {"jointx_tp", FAKE_JOINTX_TP},
    {"lora", FAKE_LORA},
    {"teststep", FAKE_TESTSTEP},
    {"apex_amp", FAKE_APEX_AMP},
    {"watch_restores", FAKE_WATCH_RESTORES},
    {"picky", FAKE_PICKY},
    {"passive", FAKE_PASSIVE},
    {"tp_plain", FAKE_TP_PLAIN},
    {"prepare", FAKE_PREPARE},
};

const char *fake_manifest(const char *id)
{
  for (size_t i = 0; i < G_N_ELEMENTS(fakes); i++) {
    if (strcmp(fakes[i].id, id) == 0)
      return fakes[i].manifest;
  }
  fail_msg("no fake '%s'", id);
  return NULL;
}

session *session_new(void)
{
  session *s = g_new0(session, 1);
  s->errors = ordo_errors_new();
  s->decls = g_ptr_array_new_with_free_func((GDestroyNotify)ordo_decl_free);
  s->axes = g_array_new(FALSE, FALSE, sizeof(ordo_resolve_axis));
  s->n_models = 1;
  s->trained[0] = TRUE;
  return s;
}

void session_free(session *s)
{
  ordo_errors_free(s->errors);
  g_ptr_array_unref(s->decls);
  g_array_unref(s->axes);
  g_free(s);
}

/* Lines in another order, and the id replaced by one that sorts elsewhere: nothing of the outcome may depend on either. */
static char *disturbed(GRand *random, const char *text)
{
  g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
  guint n = g_strv_length(lines);
  GString *out = g_string_new(NULL);
  for (guint i = n; i > 1; i--) {
    guint other = (guint)g_rand_int_range(random, 0, (gint32)i);
    char *swap = lines[i - 1];
    lines[i - 1] = lines[other];
    lines[other] = swap;
  }
  for (guint i = 0; i < n; i++) {
    if (g_str_has_prefix(lines[i], "id="))
      g_string_append_printf(out, "id=%c%s.x%u\n", 'a' + (char)g_rand_int_range(random, 0, 26), lines[i] + 3,
                             (guint)g_rand_int_range(random, 0, 100));
    else
      g_string_append_printf(out, "%s\n", lines[i]);
  }
  return g_string_free(out, FALSE);
}

static const char *option_value(gpointer user, const char *key)
{
  return g_hash_table_lookup(user, key);
}

/* Defaults of the manifest, then "key=value:key=value"; a bare word sets the positional option. */
static GHashTable *option_table(const ordo_manifest *m, const char *options)
{
  GHashTable *table = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
  g_auto(GStrv) parts = g_strsplit(options ? options : "", ":", -1);
  for (guint i = 0; i < m->options->len; i++) {
    const ordo_option_schema *schema = g_ptr_array_index(m->options, i);
    if (schema->default_text)
      g_hash_table_insert(table, g_strdup(schema->key), g_strdup(schema->default_text));
  }
  for (char **part = parts; *part; part++) {
    g_auto(GStrv) pair = g_strsplit(*part, "=", 2);
    if (**part && pair[1])
      g_hash_table_insert(table, g_strdup(pair[0]), g_strdup(pair[1]));
    else if (**part)
      g_hash_table_insert(table, g_strdup(m->positional), g_strdup(pair[0]));
  }
  return table;
}

ordo_decl *session_add(session *s, const char *manifest, const char *extra, const char *options, int size)
{
  g_autofree char *joined = g_strconcat(manifest, extra ? extra : "", NULL);
  g_autofree char *text = s->disturb ? disturbed(s->disturb, joined) : g_strdup(joined);
  ordo_manifest *m = ordo_manifest_parse(text, strlen(text), "fake", s->errors);
  if (!m) {
    print_message("%s\n", text);
    print_errors(s->errors);
  }
  assert_non_null(m);
  g_autoptr(GHashTable) table = option_table(m, options);
  ordo_decl *decl = ordo_decl_from_manifest(m, option_value, table, s->errors);
  ordo_manifest_free(m);
  print_errors(s->errors);
  assert_non_null(decl);
  if (strcmp(decl->mesh_axis, "none") != 0) {
    uint32_t kind = strcmp(decl->mesh_axis, "model") == 0 ? ORDO_AXIS_MODEL : ORDO_AXIS_DATA;
    ordo_resolve_axis axis = {decl->id, kind, size};
    if (size > 0)
      g_array_append_val(s->axes, axis);
    decl->axis = (int)s->axes->len - 1;
    decl->axis_size = g_array_index(s->axes, ordo_resolve_axis, decl->axis).size;
  }
  decl->model_mask = (1u << s->n_models) - 1u;
  g_ptr_array_add(s->decls, decl);
  return decl;
}

static void add_by_name(session *s, const char *id, const char *options, int size, gboolean *extended)
{
  gboolean own = s->extra_for && strcmp(s->extra_for, id) == 0;
  session_add(s, fake_manifest(id), own ? s->extra : NULL, options, size);
  *extended = *extended || own;
}

void session_add_set(session *s, const char *strategies, const char *precision)
{
  g_auto(GStrv) names = g_strsplit(strategies, "+", -1);
  g_auto(GStrv) level = g_strsplit(precision, ":", 2);
  gboolean extended = FALSE;
  /* the expression names the innermost axis first, the mesh the outermost */
  for (guint i = g_strv_length(names); i > 0; i--) {
    if (strcmp(names[i - 1], "none") != 0)
      add_by_name(s, names[i - 1], NULL, 2, &extended);
  }
  if (strcmp(level[0], "none") != 0)
    add_by_name(s, level[0], level[1], 0, &extended);
  if (s->extra_for && !extended)
    add_by_name(s, s->extra_for, NULL, 0, &extended);
}

void session_input(const session *s, ordo_resolve_input *input)
{
  static const char *const names[] = {"model", "ref", "third", "fourth"};
  *input = (ordo_resolve_input){
      .decls = (const ordo_decl *const *)s->decls->pdata,
      .n_decls = s->decls->len,
      .axes = (const ordo_resolve_axis *)(gpointer)s->axes->data,
      .n_axes = s->axes->len,
      .model_trained = s->trained,
      .model_names = names,
      .n_models = s->n_models,
      .resume = s->resume,
      .eval = s->eval,
  };
}

ordo_resolution *session_resolve(const session *s)
{
  ordo_resolve_input input;
  session_input(s, &input);
  return ordo_resolve_without(&input, s->off, FALSE);
}

static const ordo_node *node_at(const ordo_resolution *r, guint i)
{
  return &g_array_index(r->nodes, ordo_node, i);
}

static const ordo_edge *edge_at(const ordo_resolution *r, guint i)
{
  return &g_array_index(r->edges, ordo_edge, i);
}

char *resolution_ids(const ordo_resolution *r)
{
  GString *text = g_string_new(NULL);
  for (guint i = 0; r->legal && i < r->nodes->len; i++)
    g_string_append_printf(text, "%s%s", i ? " > " : "", node_at(r, i)->id);
  if (!r->legal)
    g_string_append(text, "conflict");
  return g_string_free(text, FALSE);
}

char *resolution_cycle(const ordo_resolution *r)
{
  GString *text = g_string_new(NULL);
  for (guint i = 0; i < r->cycle->len; i++) {
    const ordo_edge *edge = edge_at(r, g_array_index(r->cycle, guint, i));
    g_string_append_printf(text, "%s > ", node_at(r, edge->from)->id);
    if (i == r->cycle->len - 1)
      g_string_append(text, node_at(r, edge->to)->id);
  }
  return g_string_free(text, FALSE);
}

gboolean resolution_has(const ordo_resolution *r, const char *code)
{
  for (guint i = 0; i < r->findings->len; i++) {
    if (strcmp(((const ordo_finding *)g_ptr_array_index(r->findings, i))->code, code) == 0)
      return TRUE;
  }
  return FALSE;
}

char *resolution_text(const session *s, const ordo_resolution *r)
{
  GString *text = g_string_new(NULL);
  for (guint i = 0; i < r->nodes->len; i++)
    g_string_append_printf(text, "%s %u\n", node_at(r, i)->id, node_at(r, i)->phase);
  for (guint i = 0; i < r->edges->len; i++)
    g_string_append_printf(text, "%s %s %d %s %s\n", node_at(r, edge_at(r, i)->from)->id, node_at(r, edge_at(r, i)->to)->id,
                           edge_at(r, i)->hard, edge_at(r, i)->rule, edge_at(r, i)->origin);
  for (guint i = 0; i < r->cycle->len; i++)
    g_string_append_printf(text, "%u ", g_array_index(r->cycle, guint, i));
  for (guint i = 0; i < r->findings->len; i++) {
    const ordo_finding *finding = g_ptr_array_index(r->findings, i);
    g_string_append_printf(text, "%s|%s|%s|%s\n", finding->code, finding->text, finding->where, finding->next);
  }
  for (guint i = 0; i < r->fixes->len; i++)
    g_string_append_printf(text, "%s\n", (const char *)g_ptr_array_index(r->fixes, i));
  for (guint i = 0; i < r->skipped->len; i++)
    g_string_append_printf(text, "%s\n", (const char *)g_ptr_array_index(r->skipped, i));
  for (guint i = 0; i < r->events->len; i++) {
    const ordo_event_node *event = &g_array_index(r->events, ordo_event_node, i);
    const ordo_decl *decl = event->provider >= 0 ? g_ptr_array_index(s->decls, (guint)event->provider) : NULL;
    g_string_append_printf(text, "%s(%s) %s\n", ordo_event_name(event->event), decl ? decl->id : "", event->reason);
  }
  return g_string_free(text, FALSE);
}

static guint find_node(const ordo_resolution *r, const char *id)
{
  for (guint i = 0; i < r->nodes->len; i++) {
    if (strcmp(node_at(r, i)->id, id) == 0)
      return i;
  }
  fail_msg("no node '%s'", id);
  return 0;
}

char *resolution_why(const ordo_resolution *r, const char *from, const char *to)
{
  g_autofree const char **ids = g_new0(const char *, r->nodes->len + 1);
  for (guint i = 0; i < r->nodes->len; i++)
    ids[i] = node_at(r, i)->id;
  g_autoptr(ordo_graph) graph = ordo_graph_new(r->nodes->len, r->edges, ids);
  g_autoptr(GArray) chain = ordo_graph_chain(graph, find_node(r, from), find_node(r, to));
  GString *text = g_string_new(chain ? NULL : "unordered");
  for (guint i = 0; chain && i < chain->len; i++) {
    g_autofree char *label = ordo_edge_label(edge_at(r, g_array_index(chain, guint, i)));
    g_string_append_printf(text, "%s%s", i ? "; " : "", label);
  }
  return g_string_free(text, FALSE);
}
