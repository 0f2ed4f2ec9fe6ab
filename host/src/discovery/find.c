/* find.c - which plugin does a name mean?
 *
 * Exactly an id, exactly an alias, `id@version`, or a path (anything with a slash). Never a beginning or a part of a name: hosts that
 * compare prefixes load the wrong file for a name with a typing error. Everything else is an error that says what there is.
 */
#include "registry_inside.h"

#include <string.h>

static gboolean fits_kind(const ordo_probe *probe, uint32_t kind)
{
  return kind == 0 || probe->found.info.kind == kind;
}

static const ordo_probe *usable_by_id(const ordo_registry *registry, const char *id)
{
  for (guint i = 0; i < registry->probes->len; i++) {
    const ordo_probe *probe = g_ptr_array_index(registry->probes, i);
    if (probe->found.info.state == ORDO_PLUGIN_USABLE && strcmp(probe->found.info.id, id) == 0)
      return probe;
  }
  return NULL;
}

/* A version that a newer one shadows can still be asked for. Of several files the one in the earliest place counts, as in the scan. */
static const ordo_probe *by_version(const ordo_registry *registry, const char *id, const char *version)
{
  const ordo_probe *first = NULL;
  for (guint i = 0; i < registry->probes->len; i++) {
    const ordo_probe *probe = g_ptr_array_index(registry->probes, i);
    const ordo_plugin_info *info = &probe->found.info;
    if (info->state == ORDO_PLUGIN_REFUSED || strcmp(info->id, id) != 0 || strcmp(info->version, version) != 0)
      continue;
    if (!first || probe->place < first->place)
      first = probe;
  }
  return first;
}

static const ordo_alias *alias_named(const ordo_probe *probe, const char *name)
{
  const GPtrArray *aliases = probe->found.manifest ? probe->found.manifest->aliases : NULL;
  for (guint i = 0; aliases && i < aliases->len; i++) {
    const ordo_alias *alias = g_ptr_array_index(aliases, i);
    if (strcmp(alias->name, name) == 0)
      return alias;
  }
  return NULL;
}

/* The usable plugins with this alias, those of the wanted kind if there are any. */
static GPtrArray *usable_by_alias(const ordo_registry *registry, const char *name, uint32_t kind)
{
  g_autoptr(GPtrArray) all = g_ptr_array_new();
  GPtrArray *fitting = g_ptr_array_new();
  for (guint i = 0; i < registry->probes->len; i++) {
    ordo_probe *probe = g_ptr_array_index(registry->probes, i);
    if (probe->found.info.state != ORDO_PLUGIN_USABLE || !alias_named(probe, name))
      continue;
    g_ptr_array_add(all, probe);
    if (fits_kind(probe, kind))
      g_ptr_array_add(fitting, probe);
  }
  if (fitting->len > 0)
    return fitting;
  g_ptr_array_unref(fitting);
  return g_steal_pointer(&all);
}

/* A refused file whose id or file name ("fsdp.so", "libfsdp.so") is the name asked for. */
static const ordo_probe *refused_by_name(const ordo_registry *registry, const char *name)
{
  for (guint i = 0; i < registry->probes->len; i++) {
    const ordo_probe *probe = g_ptr_array_index(registry->probes, i);
    const ordo_plugin_info *info = &probe->found.info;
    if (info->state != ORDO_PLUGIN_REFUSED)
      continue;
    g_autofree char *file = g_path_get_basename(info->path);
    if (g_str_has_suffix(file, ".so"))
      file[strlen(file) - 3] = '\0';
    if ((info->id && strcmp(info->id, name) == 0) || strcmp(file, name) == 0 ||
        (g_str_has_prefix(file, "lib") && strcmp(file + 3, name) == 0))
      return probe;
  }
  return NULL;
}

static ordo_status push_refused(const ordo_probe *probe, const char *name, ordo_errors *errors)
{
  return ordo_errors_push(errors, ORDO_E_REFUSED, probe->code, probe->found.info.path, probe->found.info.reason,
                          "cure the reason, or choose another plugin: ordo list", "plugin '%s' is refused", name);
}

static gint compare_names(gconstpointer a, gconstpointer b)
{
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* What could have been written instead: ids and aliases. Borrowed names, sorted, ended by null. */
static GPtrArray *names_of(const ordo_registry *registry, uint32_t kind)
{
  GPtrArray *names = g_ptr_array_new();
  for (guint i = 0; i < registry->probes->len; i++) {
    const ordo_probe *probe = g_ptr_array_index(registry->probes, i);
    if (probe->found.info.state != ORDO_PLUGIN_USABLE || !fits_kind(probe, kind))
      continue;
    g_ptr_array_add(names, (gpointer)probe->found.info.id);
    const GPtrArray *aliases = probe->found.manifest->aliases;
    for (guint j = 0; aliases && j < aliases->len; j++) {
      char *name = ((ordo_alias *)g_ptr_array_index(aliases, j))->name;
      g_autoptr(GPtrArray) owners = usable_by_alias(registry, name, kind);
      if (owners->len == 1 && !usable_by_id(registry, name)) /* an alias of two means neither, and an id comes before it */
        g_ptr_array_add(names, name);
    }
  }
  g_ptr_array_sort(names, compare_names);
  g_ptr_array_add(names, NULL);
  return names;
}

/* "apex_amp, bf16-mixed (apex_amp:opt_level=O4)": a name that says what it does is what people look for. */
static char *available(const ordo_registry *registry, uint32_t kind, const GPtrArray *names)
{
  GString *list = g_string_new(NULL);
  for (guint i = 0; i + 1 < names->len; i++) {
    const char *name = g_ptr_array_index(names, i);
    g_string_append_printf(list, "%s%s", i ? ", " : "", name);
    if (usable_by_id(registry, name))
      continue;
    g_autoptr(GPtrArray) owners = usable_by_alias(registry, name, kind);
    const ordo_probe *owner = g_ptr_array_index(owners, 0);
    const char *preset = alias_named(owner, name)->preset;
    gboolean presets = preset && *preset;
    g_string_append_printf(list, " (%s%s%s)", owner->found.info.id, presets ? ":" : "", presets ? preset : "");
  }
  return g_string_free(list, FALSE);
}

static ordo_status push_unknown(const ordo_registry *registry, const char *name, uint32_t kind, ordo_errors *errors)
{
  g_autoptr(GPtrArray) candidates = names_of(registry, kind);
  g_autofree char *list = available(registry, kind, candidates);
  const char *nearest = ordo_nearest_name(name, (const char *const *)candidates->pdata);
  g_autofree char *why = *list ? g_strdup_printf("available: %s", list) : g_strdup_printf("no usable %s was found", ordo_kind_name(kind));
  g_autofree char *next = nearest ? g_strdup_printf("did you mean '%s'? All plugins: ordo list", nearest)
                                  : g_strdup("all plugins: ordo list; places searched: ordo doctor; more places: --plugin-path DIR");
  return ordo_errors_push(errors, ORDO_E_NOT_FOUND, "E-PLUGIN-UNKNOWN", name, why, next, "there is no %s '%s'", ordo_kind_name(kind), name);
}

static ordo_status push_unknown_version(const ordo_registry *registry, const char *id, const char *version, ordo_errors *errors)
{
  GString *have = g_string_new("installed: ");
  for (guint i = 0, n = 0; i < registry->probes->len; i++) {
    const ordo_plugin_info *info = &((const ordo_probe *)g_ptr_array_index(registry->probes, i))->found.info;
    if (info->state != ORDO_PLUGIN_REFUSED && strcmp(info->id, id) == 0)
      g_string_append_printf(have, "%s%s", n++ ? ", " : "", info->version);
  }
  g_autofree char *why = g_string_free(have, FALSE);
  return ordo_errors_push(errors, ORDO_E_NOT_FOUND, "E-PLUGIN-UNKNOWN", id, why, "choose one of these, or leave the version out",
                          "plugin '%s' has no version '%s'", id, version);
}

static ordo_status push_ambiguous(const GPtrArray *rivals, const char *name, ordo_errors *errors)
{
  GString *list = g_string_new("it belongs to: ");
  for (guint i = 0; i < rivals->len; i++)
    g_string_append_printf(list, "%s%s", i ? ", " : "", ((const ordo_probe *)g_ptr_array_index(rivals, i))->found.info.id);
  g_autofree char *why = g_string_free(list, FALSE);
  return ordo_errors_push(errors, ORDO_E_NOT_FOUND, "E-PLUGIN-ALIAS", name, why, "write the id of the one that you mean",
                          "alias '%s' means more than one plugin", name);
}

static ordo_status accept(const ordo_probe *probe, const ordo_alias *alias, const char *name, uint32_t kind, const ordo_found **found,
                          const char **preset, ordo_errors *errors)
{
  const ordo_plugin_info *info = &probe->found.info;
  if (!fits_kind(probe, kind)) {
    g_autofree char *next =
        info->kind == ORDO_KIND_COMM_HOOK
            ? g_strdup_printf("name it in the option `hook` of a strategy, or choose a %s: ordo list", ordo_kind_name(kind))
            : g_strdup_printf("use it as --%s, or choose a %s: ordo list", ordo_kind_name(info->kind), ordo_kind_name(kind));
    return ordo_errors_push(errors, ORDO_E_INVALID, "E-PLUGIN-KIND", info->path, "a plugin can be selected only as what it is", next,
                            "'%s' is a %s plugin, not a %s", name, ordo_kind_name(info->kind), ordo_kind_name(kind));
  }
  *found = &probe->found;
  if (preset)
    *preset = alias && alias->preset ? alias->preset : "";
  return ORDO_OK;
}

static const ordo_probe *known_path(const GPtrArray *probes, const char *path)
{
  for (guint i = 0; i < probes->len; i++) {
    const ordo_probe *probe = g_ptr_array_index(probes, i);
    if (strcmp(probe->found.info.path, path) == 0)
      return probe;
  }
  return NULL;
}

/* A file that is named is looked at anew when it was refused before: it may have been cured. What is handed out is kept. */
static ordo_status find_path(ordo_registry *registry, const char *name, uint32_t kind, const ordo_found **found, const char **preset,
                             ordo_errors *errors)
{
  g_autofree char *path = g_canonicalize_filename(name, NULL);
  const ordo_probe *probe = known_path(registry->probes, path);
  if (!probe)
    probe = known_path(registry->by_path, path);
  if (probe && probe->found.info.state != ORDO_PLUGIN_REFUSED)
    return accept(probe, NULL, name, kind, found, preset, errors);
  if (!g_file_test(path, G_FILE_TEST_EXISTS) && !g_file_test(path, G_FILE_TEST_IS_SYMLINK))
    return ordo_errors_push(errors, ORDO_E_NOT_FOUND, "E-PLUGIN-UNKNOWN", path, "what contains a slash is the path of a file",
                            "correct the path, or give an id without a slash: ordo list", "there is no plugin file '%s'", name);
  ordo_probe *fresh = ordo_probe_file(path, "path", registry->flags);
  if (fresh->found.info.state == ORDO_PLUGIN_REFUSED) {
    ordo_status status = push_refused(fresh, name, errors);
    ordo_probe_free(fresh);
    return status;
  }
  g_ptr_array_add(registry->by_path, fresh);
  return accept(fresh, NULL, name, kind, found, preset, errors);
}

static ordo_status find_version(const ordo_registry *registry, const char *name, const char *at, uint32_t kind, const ordo_found **found,
                                const char **preset, ordo_errors *errors)
{
  g_autofree char *id = g_strndup(name, (gsize)(at - name));
  const ordo_probe *probe = by_version(registry, id, at + 1);
  if (probe)
    return accept(probe, NULL, name, kind, found, preset, errors);
  return usable_by_id(registry, id) ? push_unknown_version(registry, id, at + 1, errors) : push_unknown(registry, id, kind, errors);
}

ordo_status ordo_registry_find(ordo_registry *registry, const char *name, uint32_t kind, const ordo_found **found, const char **preset,
                               ordo_errors *errors)
{
  *found = NULL;
  if (preset)
    *preset = "";
  if (!name || *name == '\0')
    return ordo_errors_push(errors, ORDO_E_INVALID, "E-PLUGIN-UNKNOWN", NULL, "an empty name means no plugin", "all plugins: ordo list",
                            "the name of a plugin is empty");
  if (strchr(name, '/'))
    return find_path(registry, name, kind, found, preset, errors);
  const char *at = strchr(name, '@');
  if (at)
    return find_version(registry, name, at, kind, found, preset, errors);
  const ordo_probe *probe = usable_by_id(registry, name);
  if (probe)
    return accept(probe, NULL, name, kind, found, preset, errors);
  g_autoptr(GPtrArray) rivals = usable_by_alias(registry, name, kind);
  if (rivals->len > 1)
    return push_ambiguous(rivals, name, errors);
  if (rivals->len == 1) {
    probe = g_ptr_array_index(rivals, 0);
    return accept(probe, alias_named(probe, name), name, kind, found, preset, errors);
  }
  probe = refused_by_name(registry, name);
  return probe ? push_refused(probe, name, errors) : push_unknown(registry, name, kind, errors);
}
