/* probe.c - looks at one file and writes down what it is.
 *
 * Pre-flight, note, manifest, ABI major and ownership, in this order; the first that fails is the reason of the refusal. Whatever was
 * learnt before stays in the record, so that a refused plugin still shows its id. No code of the file runs.
 */
#include "probe.h"

#include <string.h>
#include <unistd.h>

#include "elf.h"
#include "trust.h"

void ordo_probe_set_state(ordo_probe *probe, uint32_t state, char *reason)
{
  g_free((char *)probe->found.info.reason);
  probe->found.info.reason = reason;
  probe->found.info.state = state;
}

void ordo_probe_free(gpointer data)
{
  ordo_probe *probe = data;
  ordo_plugin_info *info = &probe->found.info;
  g_free((char *)info->path);
  g_free((char *)info->aliases);
  g_free((char *)info->flags);
  g_free((char *)info->steps);
  g_free((char *)info->reason);
  g_free((char *)info->manifest);
  ordo_manifest_free(probe->found.manifest);
  g_free(probe->real_path);
  g_free(probe->build_id);
  g_free(probe);
}

/* All findings of a parse in one line each, "what (where: why)". */
static char *findings_text(const ordo_errors *errors)
{
  GString *text = g_string_new("its manifest has errors: ");
  for (size_t i = 0; i < ordo_errors_count(errors); i++) {
    const ordo_error *error = ordo_errors_at(errors, i);
    g_string_append_printf(text, "%s%s", i ? "; " : "", error->what);
    if (*error->where || *error->why)
      g_string_append_printf(text, " (%s%s%s)", error->where, *error->where && *error->why ? ": " : "", error->why);
  }
  return g_string_free(text, FALSE);
}

static char *aliases_text(const ordo_manifest *manifest)
{
  GString *text = g_string_new(NULL);
  for (guint i = 0; manifest->aliases && i < manifest->aliases->len; i++) {
    const ordo_alias *alias = g_ptr_array_index(manifest->aliases, i);
    gboolean preset = alias->preset && *alias->preset;
    g_string_append_printf(text, "%s%s%s%s", i ? ", " : "", alias->name, preset ? ":" : "", preset ? alias->preset : "");
  }
  return g_string_free(text, FALSE);
}

/* Lines of one key as declared: "a,b; c [param_dtype!=f32]". */
static char *lines_text(const ordo_manifest *manifest, const char *key)
{
  GString *text = g_string_new(NULL);
  for (guint i = 0; manifest->lines && i < manifest->lines->len; i++) {
    const ordo_manifest_line *line = g_ptr_array_index(manifest->lines, i);
    if (strcmp(line->key, key) != 0 || !line->values)
      continue;
    g_autofree char *values = g_strjoinv(",", line->values);
    g_string_append_printf(text, "%s%s", text->len ? "; " : "", values);
    if (line->condition)
      g_string_append_printf(text, " [%s]", line->condition);
  }
  return g_string_free(text, FALSE);
}

static void fill_from_manifest(ordo_plugin_info *info, const ordo_manifest *manifest)
{
  info->id = manifest->id;
  info->version = manifest->version;
  info->summary = manifest->summary;
  info->license = manifest->license;
  info->kind = manifest->kind;
  info->aliases = aliases_text(manifest);
  info->flags = lines_text(manifest, "flags");
  info->steps = lines_text(manifest, "steps");
}

static gboolean depends_on_options(const ordo_manifest *manifest)
{
  for (guint i = 0; i < manifest->lines->len; i++) {
    const ordo_manifest_line *line = g_ptr_array_index(manifest->lines, i);
    if (line->condition && (!strcmp(line->key, "flags") || !strcmp(line->key, "steps") || !strcmp(line->key, "replaces_leaves")))
      return TRUE;
  }
  return FALSE;
}

static const char *default_of(gpointer user, const char *key)
{
  const ordo_option_schema *schema = ordo_manifest_option(user, key);
  return schema ? schema->default_text : NULL;
}

/* Flags and steps that contradict each other whatever the options are: such a plugin can be in no plan. Where options decide, the plan
 * says so of those that were given. Null: no contradiction. */
static char *contradiction(ordo_manifest *manifest)
{
  char *reason = NULL;
  if (depends_on_options(manifest))
    return NULL;
  ordo_errors *errors = ordo_errors_new();
  ordo_decl *decl = ordo_decl_from_manifest(manifest, default_of, manifest, errors);
  if (!decl)
    reason = findings_text(errors);
  ordo_decl_free(decl);
  ordo_errors_free(errors);
  return reason;
}

static char *judge_manifest(ordo_probe *probe, const ordo_elf *elf)
{
  probe->code = "E-PLUGIN-REFUSED";
  if (!elf->notes.text)
    return g_strdup("it is no plugin: it has no manifest note (ORDO_MANIFEST in ordo/manifest.h)");
  probe->code = "E-MANIFEST";
  ordo_errors *errors = ordo_errors_new();
  ordo_manifest *manifest = ordo_manifest_parse(elf->notes.text, elf->notes.length, probe->found.info.path, errors);
  char *reason = manifest ? NULL : findings_text(errors);
  ordo_errors_free(errors);
  /* The text of a note that does not parse may be no UTF-8. */
  probe->found.info.manifest = g_utf8_make_valid(elf->notes.text, (gssize)elf->notes.length);
  probe->found.manifest = manifest;
  if (!manifest)
    return reason;
  fill_from_manifest(&probe->found.info, manifest);
  reason = contradiction(manifest);
  if (reason)
    return reason;
  probe->code = "E-PLUGIN-ABI";
  if (manifest->abi_major != ORDO_ABI_MAJOR)
    return g_strdup_printf("it was built for plugin ABI %u.%u, this host has %u.%u; %s", manifest->abi_major, manifest->abi_minor,
                           ORDO_ABI_MAJOR, ORDO_ABI_MINOR,
                           manifest->abi_major < ORDO_ABI_MAJOR ? "rebuild the plugin with this release's headers" : "use a newer Ordo");
  return NULL;
}

ordo_probe *ordo_probe_file(const char *path, const char *source, uint32_t context_flags)
{
  ordo_probe *probe = g_new0(ordo_probe, 1);
  ordo_plugin_info *info = &probe->found.info;
  char *reason = NULL;
  info->struct_size = sizeof *info;
  info->path = g_strdup(path);
  info->source = source;
  info->state = ORDO_PLUGIN_USABLE;
  probe->code = "E-PLUGIN-ELF";
  g_autoptr(ordo_elf) elf = ordo_elf_open(path, &reason);
  if (elf) {
    probe->found.device = elf->device;
    probe->found.inode = elf->inode;
    probe->found.size = elf->size;
    probe->found.mtime_ns = elf->mtime_ns;
    probe->real_path = g_strdup(elf->real_path);
    probe->build_id = g_strdup(elf->notes.build_id);
    probe->static_tls = elf->static_tls;
    reason = judge_manifest(probe, elf);
    if (!reason && !(context_flags & ORDO_CONTEXT_ALLOW_INSECURE)) {
      probe->code = "E-PLUGIN-TRUST";
      reason = ordo_trust_check(elf->real_path, geteuid());
    }
  }
  ordo_probe_set_state(probe, reason ? ORDO_PLUGIN_REFUSED : ORDO_PLUGIN_USABLE, reason ? reason : g_strdup(""));
  return probe;
}
