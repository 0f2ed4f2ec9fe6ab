/* registry.c - all plugin files of the search path, and which of them count.
 *
 * It reads notes and loads nothing; find.c looks names up in the result.
 *
 * The idea: the result depends on the set of files and the search path only, never on the order in which a directory lists them,
 * since ranks on different nodes must choose alike. Nothing found is passed over in silence: a file that cannot be used stays in the
 * list as REFUSED, one that another hides as SHADOWED, each with its reason. Only true copies of one file are listed once.
 */
#include "registry_inside.h"

#include <string.h>

#include "semver.h"

static void remark(ordo_registry *registry, ordo_errors *errors, const char *code, const char *where, const char *next, char *what)
{
  ordo_errors_push(errors, ORDO_OK, code, where, NULL, next, "%s", what);
  g_ptr_array_add(registry->remarks, what);
}

static void add_file(ordo_registry *registry, ordo_search_place *place, guint index, const char *path)
{
  ordo_probe *probe = ordo_probe_file(path, place->source, registry->flags);
  probe->place = index;
  place->n_files++;
  place->n_refused += probe->found.info.state == ORDO_PLUGIN_REFUSED;
  g_ptr_array_add(registry->probes, probe);
}

static void scan_place(ordo_registry *registry, ordo_search_place *place, guint index, ordo_errors *errors)
{
  if (place->note)
    return;
  if (place->is_file) {
    add_file(registry, place, index, place->path);
    return;
  }
  g_autoptr(GPtrArray) names = ordo_search_names(place->path, &place->note);
  if (!names) {
    remark(registry, errors, "E-PLUGIN-PATH", place->path, "give this user the right to read it, or take it from the path",
           g_strdup_printf("the plugin directory %s %s", place->path, place->note));
    return;
  }
  for (guint i = 0; i < names->len; i++) {
    g_autofree char *path = g_build_filename(place->path, g_ptr_array_index(names, i), NULL);
    add_file(registry, place, index, path);
  }
}

static const ordo_plugin_info *info_of(const GPtrArray *probes, guint index)
{
  return &((const ordo_probe *)g_ptr_array_index(probes, index))->found.info;
}

/* By id (files without one last), version descending, path. */
static gint compare_listing(gconstpointer a, gconstpointer b)
{
  const ordo_plugin_info *left = &(*(const ordo_probe *const *)a)->found.info, *right = &(*(const ordo_probe *const *)b)->found.info;
  if (!left->id || !right->id)
    return left->id ? -1 : right->id ? 1 : strcmp(left->path, right->path);
  int order = strcmp(left->id, right->id);
  if (!order)
    order = ordo_semver_compare(right->version, left->version);
  return order ? order : strcmp(left->path, right->path);
}

/* True copies: one inode under two names, or one build under two paths. A build id alone is not believed, since a file can state any. */
static gboolean same_file(const ordo_probe *a, const ordo_probe *b)
{
  if (a->found.inode != 0 && a->found.inode == b->found.inode && a->found.device == b->found.device)
    return TRUE;
  return a->build_id && b->build_id && a->found.manifest && b->found.manifest && strcmp(a->build_id, b->build_id) == 0 &&
         a->found.size == b->found.size && strcmp(a->found.manifest->text, b->found.manifest->text) == 0;
}

/* Expects the order of the scan, which is that of precedence: by place, then by name. A usable copy is never dropped for a refused one. */
static void drop_copies(GPtrArray *probes)
{
  for (guint i = 0; i < probes->len; i++) {
    const ordo_probe *kept = g_ptr_array_index(probes, i);
    for (guint j = i + 1; j < probes->len;) {
      const ordo_probe *later = g_ptr_array_index(probes, j);
      gboolean loses = kept->found.info.state == ORDO_PLUGIN_USABLE || later->found.info.state == ORDO_PLUGIN_REFUSED;
      if (loses && same_file(kept, later))
        g_ptr_array_remove_index(probes, j);
      else
        j++;
    }
  }
}

static void shadow(ordo_registry *registry, const ordo_plugin_info *winner, ordo_probe *loser, ordo_errors *errors)
{
  const ordo_plugin_info *info = &loser->found.info;
  if (ordo_semver_compare(winner->version, info->version) > 0) {
    ordo_probe_set_state(loser, ORDO_PLUGIN_SHADOWED, g_strdup_printf("older than %s in %s", winner->version, winner->path));
    return;
  }
  remark(
      registry, errors, "E-PLUGIN-DUPLICATE", info->path, "remove one of the two files",
      g_strdup_printf("two different files are plugin '%s' version %s; %s comes first and is used", info->id, info->version, winner->path));
  ordo_probe_set_state(loser, ORDO_PLUGIN_SHADOWED,
                       g_strdup_printf("the same version comes first from %s: %s", winner->source, winner->path));
}

/* Expects the order of the scan: of two equal versions the earlier one stays. */
static void shadow_losers(ordo_registry *registry, ordo_errors *errors)
{
  g_autoptr(GHashTable) winners = g_hash_table_new(g_str_hash, g_str_equal); /* id -> ordo_probe, both borrowed */
  for (guint i = 0; i < registry->probes->len; i++) {
    ordo_probe *probe = g_ptr_array_index(registry->probes, i);
    if (probe->found.info.state != ORDO_PLUGIN_USABLE)
      continue;
    ordo_probe *best = g_hash_table_lookup(winners, probe->found.info.id);
    if (!best || ordo_semver_compare(probe->found.info.version, best->found.info.version) > 0)
      g_hash_table_replace(winners, (gpointer)probe->found.info.id, probe);
  }
  for (guint i = 0; i < registry->probes->len; i++) {
    ordo_probe *probe = g_ptr_array_index(registry->probes, i);
    if (probe->found.info.state != ORDO_PLUGIN_USABLE)
      continue;
    const ordo_probe *best = g_hash_table_lookup(winners, probe->found.info.id);
    if (best != probe)
      shadow(registry, &best->found.info, probe, errors);
  }
}

static void check_alias(ordo_registry *registry, GHashTable *ids, GHashTable *aliases, const ordo_plugin_info *info, const char *alias,
                        ordo_errors *errors)
{
  const ordo_plugin_info *owner = g_hash_table_lookup(ids, alias);
  const ordo_plugin_info *rival = g_hash_table_lookup(aliases, alias);
  if (owner && owner != info)
    remark(registry, errors, "E-PLUGIN-ALIAS", info->path, "use ids; the author of the plugin should choose another alias",
           g_strdup_printf("alias '%s' of plugin '%s' does not count: it is the id of a plugin (%s)", alias, info->id, owner->path));
  else if (rival && rival != info)
    remark(registry, errors, "E-PLUGIN-ALIAS", info->path, "use ids to choose between them",
           g_strdup_printf("alias '%s' belongs to two plugins, '%s' and '%s', and so to none", alias, rival->id, info->id));
  else
    g_hash_table_insert(aliases, (gpointer)alias, (gpointer)info);
}

static void check_aliases(ordo_registry *registry, ordo_errors *errors)
{
  g_autoptr(GHashTable) ids = g_hash_table_new(g_str_hash, g_str_equal), aliases = g_hash_table_new(g_str_hash, g_str_equal);
  for (guint i = 0; i < registry->probes->len; i++)
    if (info_of(registry->probes, i)->state == ORDO_PLUGIN_USABLE)
      g_hash_table_insert(ids, (gpointer)info_of(registry->probes, i)->id, (gpointer)info_of(registry->probes, i));
  for (guint i = 0; i < registry->probes->len; i++) {
    const ordo_probe *probe = g_ptr_array_index(registry->probes, i);
    const GPtrArray *own = probe->found.manifest ? probe->found.manifest->aliases : NULL;
    if (probe->found.info.state != ORDO_PLUGIN_USABLE)
      continue;
    for (guint j = 0; own && j < own->len; j++)
      check_alias(registry, ids, aliases, &probe->found.info, ((const ordo_alias *)g_ptr_array_index(own, j))->name, errors);
  }
}

static void warn_static_tls(ordo_registry *registry, ordo_errors *errors)
{
  for (guint i = 0; i < registry->probes->len; i++) {
    const ordo_probe *probe = g_ptr_array_index(registry->probes, i);
    if (probe->static_tls && probe->found.info.state == ORDO_PLUGIN_USABLE)
      remark(registry, errors, "E-PLUGIN-TLS", probe->found.info.path, "compile the plugin without -ftls-model=initial-exec",
             g_strdup_printf("plugin '%s' takes thread-local storage from a small pool of the process, so that loading it may fail later",
                             probe->found.info.id));
  }
}

ordo_registry *ordo_registry_scan_in(const ordo_registry_options *options, const ordo_search_environment *environment, ordo_errors *errors)
{
  ordo_registry *registry = g_new0(ordo_registry, 1);
  /* Somebody with fewer rights may have chosen the options of a privileged process. */
  registry->flags = environment->privileged ? options->flags & ~(uint32_t)ORDO_CONTEXT_ALLOW_INSECURE : options->flags;
  registry->given_path = options->plugin_path && *options->plugin_path ? g_strdup(options->plugin_path) : NULL;
  registry->probes = g_ptr_array_new_with_free_func(ordo_probe_free);
  registry->by_path = g_ptr_array_new_with_free_func(ordo_probe_free);
  registry->remarks = g_ptr_array_new_with_free_func(g_free);
  registry->places = ordo_search_places(options, environment, errors);
  for (guint i = 0; i < registry->places->len; i++)
    scan_place(registry, g_ptr_array_index(registry->places, i), i, errors);
  drop_copies(registry->probes);
  shadow_losers(registry, errors);
  g_ptr_array_sort(registry->probes, compare_listing);
  check_aliases(registry, errors);
  warn_static_tls(registry, errors);
  return registry;
}

ordo_registry *ordo_registry_scan(const ordo_registry_options *options, ordo_errors *errors)
{
  ordo_search_environment environment = ordo_search_environment_current();
  return ordo_registry_scan_in(options, &environment, errors);
}

void ordo_registry_free(ordo_registry *registry)
{
  if (!registry)
    return;
  g_ptr_array_unref(registry->probes);
  g_ptr_array_unref(registry->by_path);
  g_ptr_array_unref(registry->places);
  g_ptr_array_unref(registry->remarks);
  g_free(registry->given_path);
  g_free(registry);
}

uint32_t ordo_registry_flags(const ordo_registry *registry)
{
  return registry->flags;
}

const char *ordo_registry_given_path(const ordo_registry *registry)
{
  return registry->given_path;
}

size_t ordo_registry_count(const ordo_registry *registry)
{
  return registry->probes->len;
}

const ordo_found *ordo_registry_at(const ordo_registry *registry, size_t index)
{
  return index < registry->probes->len ? &((const ordo_probe *)g_ptr_array_index(registry->probes, index))->found : NULL;
}

char *ordo_registry_search_report(const ordo_registry *registry)
{
  g_autofree char *places = ordo_search_report(registry->places);
  GString *text = g_string_new(places);
  for (guint i = 0; i < registry->remarks->len; i++)
    g_string_append_printf(text, "warning: %s\n", (const char *)g_ptr_array_index(registry->remarks, i));
  return g_string_free(text, FALSE);
}
