/* json.c - a writer of JSON text (RFC 8259), enough for reports.
 *
 * Not a parser and no tree: values are appended as they come, indented by two blanks, so that a diff of two outputs reads well. The host
 * may use GLib only, and a report needs no more than this. Guards against output that breaks on a quote or a control character in a path.
 */
#include "json.h"

#include <string.h>

void ordo_json_begin(ordo_json *json)
{
  json->text = g_string_new(NULL);
  json->depth = 0;
  json->first = TRUE;
}

char *ordo_json_end(ordo_json *json)
{
  g_string_append_c(json->text, '\n');
  return g_string_free(g_steal_pointer(&json->text), FALSE);
}

static void append_quoted(GString *out, const char *text)
{
  g_autofree char *valid = g_utf8_make_valid(text, -1);
  g_string_append_c(out, '"');
  for (const char *at = valid; *at; at++) {
    unsigned char c = (unsigned char)*at;
    if (c == '"' || c == '\\')
      g_string_append_printf(out, "\\%c", c);
    else if (c == '\n')
      g_string_append(out, "\\n");
    else if (c == '\t')
      g_string_append(out, "\\t");
    else if (c < 0x20 || c == 0x7f)
      g_string_append_printf(out, "\\u%04x", c);
    else
      g_string_append_c(out, *at);
  }
  g_string_append_c(out, '"');
}

static void indent(ordo_json *json)
{
  g_string_append_c(json->text, '\n');
  for (int i = 0; i < json->depth; i++)
    g_string_append(json->text, "  ");
}

static void begin_value(ordo_json *json, const char *key)
{
  if (!json->first)
    g_string_append_c(json->text, ',');
  if (json->depth > 0)
    indent(json);
  json->first = FALSE;
  if (key) {
    append_quoted(json->text, key);
    g_string_append(json->text, ": ");
  }
}

void ordo_json_open(ordo_json *json, const char *key, char bracket)
{
  begin_value(json, key);
  g_string_append_c(json->text, bracket);
  json->depth++;
  json->first = TRUE;
}

void ordo_json_close(ordo_json *json, char bracket)
{
  gboolean empty = json->first;
  json->depth--;
  if (!empty)
    indent(json);
  g_string_append_c(json->text, bracket);
  json->first = FALSE;
}

void ordo_json_string(ordo_json *json, const char *key, const char *text)
{
  begin_value(json, key);
  if (text)
    append_quoted(json->text, text);
  else
    g_string_append(json->text, "null");
}

void ordo_json_int(ordo_json *json, const char *key, gint64 value)
{
  begin_value(json, key);
  g_string_append_printf(json->text, "%" G_GINT64_FORMAT, value);
}

void ordo_json_bool(ordo_json *json, const char *key, gboolean value)
{
  begin_value(json, key);
  g_string_append(json->text, value ? "true" : "false");
}
