/* json_text.c - see json_text.h. A recursive-descent recogniser; the depth bound keeps the stack small whatever the input. */
#include "json_text.h"

#include <glib.h>
#include <stdarg.h>
#include <string.h>

typedef struct scanner {
  const char *text;
  size_t length;
  size_t at;
  char *why; /* the first thing that is wrong */
} scanner;

static gboolean wrong(scanner *s, const char *format, ...) G_GNUC_PRINTF(2, 3);
static gboolean wrong(scanner *s, const char *format, ...)
{
  va_list args;
  if (s->why)
    return FALSE;
  va_start(args, format);
  g_autofree char *what = g_strdup_vprintf(format, args);
  va_end(args);
  s->why = g_strdup_printf("%s at byte %zu", what, s->at);
  return FALSE;
}

static char peek(const scanner *s)
{
  return s->at < s->length ? s->text[s->at] : '\0';
}

static void skip_blanks(scanner *s)
{
  while (s->at < s->length && strchr(" \t\r\n", s->text[s->at]) && s->text[s->at])
    s->at++;
}

static gboolean hex4(scanner *s, unsigned *value)
{
  *value = 0;
  for (int i = 0; i < 4; i++, s->at++) {
    if (!g_ascii_isxdigit(peek(s)))
      return wrong(s, "bad \\u escape");
    *value = *value * 16 + (unsigned)g_ascii_xdigit_value(peek(s));
  }
  return TRUE;
}

static gboolean unicode_escape(scanner *s, GString *out)
{
  unsigned high, low;
  if (!hex4(s, &high))
    return FALSE;
  if (high >= 0xD800 && high < 0xDC00) {
    if (s->at + 2 > s->length || memcmp(s->text + s->at, "\\u", 2) != 0)
      return wrong(s, "lone surrogate");
    s->at += 2;
    if (!hex4(s, &low) || low < 0xDC00 || low > 0xDFFF)
      return wrong(s, "lone surrogate");
    high = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
  } else if ((high >= 0xDC00 && high < 0xE000) || high == 0) {
    return wrong(s, high ? "lone surrogate" : "zero character");
  }
  g_string_append_unichar(out, high);
  return TRUE;
}

/* A string, its text unescaped into `out`: keys are compared by meaning, not by spelling. */
static gboolean string(scanner *s, GString *out)
{
  static const char escapes[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
  if (peek(s) != '"')
    return wrong(s, "expected a string");
  s->at++;
  while (s->at < s->length && s->text[s->at] != '"') {
    char c = s->text[s->at++];
    if ((unsigned char)c < 0x20)
      return wrong(s, "control character in a string");
    if (c != '\\') {
      g_string_append_c(out, c);
      continue;
    }
    c = peek(s);
    s->at++;
    const char *escape = c ? strchr(escapes, c) : NULL;
    if (escape)
      g_string_append_c(out, meanings[escape - escapes]);
    else if (c != 'u' || !unicode_escape(s, out))
      return wrong(s, "bad escape");
  }
  if (s->at >= s->length)
    return wrong(s, "string without end");
  s->at++;
  return TRUE;
}

static size_t digits(scanner *s)
{
  size_t first = s->at;
  while (g_ascii_isdigit(peek(s)))
    s->at++;
  return s->at - first;
}

static gboolean number(scanner *s)
{
  size_t first = s->at;
  gboolean integer = TRUE;
  if (peek(s) == '-')
    s->at++;
  size_t start = s->at, n = digits(s);
  if (n == 0 || (n > 1 && s->text[start] == '0'))
    return wrong(s, "bad number");
  if (peek(s) == '.') {
    s->at++;
    integer = FALSE;
    if (digits(s) == 0)
      return wrong(s, "bad number");
  }
  if (peek(s) == 'e' || peek(s) == 'E') {
    s->at++;
    integer = FALSE;
    if (peek(s) == '+' || peek(s) == '-')
      s->at++;
    if (digits(s) == 0)
      return wrong(s, "bad number");
  }
  g_autofree char *copy = g_strndup(s->text + first, s->at - first);
  if (integer && !g_ascii_string_to_signed(copy, 10, G_MININT64, G_MAXINT64, NULL, NULL))
    return wrong(s, "integer %s does not fit 64 bits", copy);
  return TRUE;
}

static gboolean value(scanner *s, int depth);

static gboolean object(scanner *s, int depth)
{
  g_autoptr(GHashTable) keys = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
  s->at++;
  skip_blanks(s);
  if (peek(s) == '}')
    return s->at++, TRUE;
  for (;;) {
    g_autoptr(GString) key = g_string_new(NULL);
    skip_blanks(s);
    if (!string(s, key))
      return FALSE;
    if (!g_hash_table_add(keys, g_strndup(key->str, key->len)))
      return wrong(s, "key \"%.80s\" stands twice", key->str);
    skip_blanks(s);
    if (peek(s) != ':')
      return wrong(s, "expected ':'");
    s->at++;
    if (!value(s, depth))
      return FALSE;
    skip_blanks(s);
    if (peek(s) == '}')
      return s->at++, TRUE;
    if (peek(s) != ',')
      return wrong(s, "expected ',' or '}'");
    s->at++;
  }
}

static gboolean array(scanner *s, int depth)
{
  s->at++;
  skip_blanks(s);
  if (peek(s) == ']')
    return s->at++, TRUE;
  for (;;) {
    if (!value(s, depth))
      return FALSE;
    skip_blanks(s);
    if (peek(s) == ']')
      return s->at++, TRUE;
    if (peek(s) != ',')
      return wrong(s, "expected ',' or ']'");
    s->at++;
  }
}

static gboolean literal(scanner *s, const char *text)
{
  size_t n = strlen(text);
  if (s->length - s->at < n || memcmp(s->text + s->at, text, n) != 0)
    return wrong(s, "unknown value");
  s->at += n;
  return TRUE;
}

static gboolean value(scanner *s, int depth)
{
  g_autoptr(GString) unused = NULL;
  skip_blanks(s);
  if (depth > ORDO_JSON_DEPTH)
    return wrong(s, "more than %d levels", ORDO_JSON_DEPTH);
  switch (peek(s)) {
  case '{':
    return object(s, depth + 1);
  case '[':
    return array(s, depth + 1);
  case '"':
    unused = g_string_new(NULL);
    return string(s, unused);
  case 't':
    return literal(s, "true");
  case 'f':
    return literal(s, "false");
  case 'n':
    return literal(s, "null");
  default:
    return number(s);
  }
}

char *ordo_json_check(const char *text, size_t length)
{
  scanner s = {text, length, 0, NULL};
  const char *bad = NULL;
  if (memchr(text, 0, length))
    return g_strdup("it contains zero bytes");
  if (!g_utf8_validate(text, (gssize)length, &bad))
    return g_strdup_printf("it is not valid UTF-8 at byte %zu", (size_t)(bad - text));
  if (value(&s, 0)) {
    skip_blanks(&s);
    if (s.at < s.length)
      wrong(&s, "text after the end");
  }
  return s.why;
}

JsonNode *ordo_json_object(const char *text, size_t length, char **why)
{
  g_autoptr(JsonParser) parser = json_parser_new();
  g_autoptr(GError) error = NULL;
  *why = ordo_json_check(text, length);
  if (*why)
    return NULL;
  if (!json_parser_load_from_data(parser, text, (gssize)length, &error)) {
    *why = g_strdup(error->message);
    return NULL;
  }
  JsonNode *root = json_parser_steal_root(parser);
  if (!JSON_NODE_HOLDS_OBJECT(root)) {
    json_node_unref(root);
    *why = g_strdup("it is no object");
    return NULL;
  }
  return root;
}
