/* json_check.h - is a text JSON? A recognizer for tests, written from the grammar of RFC 8259 and sharing nothing with the writer. */
#ifndef ORDO_TEST_PLAN_JSON_CHECK_H
#define ORDO_TEST_PLAN_JSON_CHECK_H

#include <glib.h>
#include <string.h>

static inline void json_skip_blank(const char **at)
{
  *at += strspn(*at, " \t\r\n");
}

static inline gboolean json_skip_string(const char **at)
{
  if (*(*at)++ != '"')
    return FALSE;
  for (; **at != '"'; (*at)++) {
    if ((unsigned char)**at < 0x20)
      return FALSE; /* also the end of the text */
    if (**at != '\\')
      continue;
    (*at)++;
    if (**at == 'u') {
      for (int i = 0; i < 4; i++) {
        (*at)++;
        if (!g_ascii_isxdigit(**at))
          return FALSE;
      }
    } else if (**at == '\0' || !strchr("\"\\/bfnrt", **at)) {
      return FALSE;
    }
  }
  (*at)++;
  return TRUE;
}

static inline gboolean json_skip_value(const char **at, int depth)
{
  static const char *const words[] = {"true", "false", "null"};
  json_skip_blank(at);
  if (depth > 64)
    return FALSE;
  if (**at == '"')
    return json_skip_string(at);
  if (**at == '{' || **at == '[') {
    char close = **at == '{' ? '}' : ']';
    (*at)++;
    json_skip_blank(at);
    if (**at == close)
      return *(*at)++ != '\0';
    for (;;) {
      json_skip_blank(at);
      if (close == '}' && !json_skip_string(at))
        return FALSE;
      json_skip_blank(at);
      if (close == '}' && *(*at)++ != ':')
        return FALSE;
      if (!json_skip_value(at, depth + 1))
        return FALSE;
      json_skip_blank(at);
      if (**at == close)
        return *(*at)++ != '\0';
      if (*(*at)++ != ',')
        return FALSE;
    }
  }
  for (gsize i = 0; i < G_N_ELEMENTS(words); i++) {
    if (g_str_has_prefix(*at, words[i])) {
      *at += strlen(words[i]);
      return TRUE;
    }
  }
  gsize length = strspn(*at, "-0123456789");
  *at += length;
  return length > 0;
}

static inline gboolean json_is_valid(const char *text)
{
  const char *at = text;
  if (!g_utf8_validate(text, -1, NULL) || !json_skip_value(&at, 0))
    return FALSE;
  json_skip_blank(&at);
  return *at == '\0';
}

#endif
