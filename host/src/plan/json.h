/* json.h - writes JSON text (private). A writer and nothing else: keys in the order of the calls, so output is stable. */
#ifndef ORDO_PRIVATE_JSON_H
#define ORDO_PRIVATE_JSON_H

#include <glib.h>

typedef struct ordo_json {
  GString *text;
  int depth;
  gboolean first; /* nothing yet at this depth */
} ordo_json;

void ordo_json_begin(ordo_json *json);
/* Ends with a line feed; the caller frees the text. */
char *ordo_json_end(ordo_json *json);
/* `key` is null inside an array. */
void ordo_json_open(ordo_json *json, const char *key, char bracket /* '{' or '[' */);
void ordo_json_close(ordo_json *json, char bracket /* '}' or ']' */);
/* Null text is written as null; bytes that are no UTF-8 become U+FFFD. */
void ordo_json_string(ordo_json *json, const char *key, const char *text);
void ordo_json_int(ordo_json *json, const char *key, gint64 value);
void ordo_json_bool(ordo_json *json, const char *key, gboolean value);

#endif
