/* semver.c - which of two versions is newer.
 *
 * Numbers are compared as digit strings: a version is text from a file, and a number in it may be larger than any integer type.
 * A version without a pre-release part is newer than the same one with it: 1.0.0-rc.1 < 1.0.0.
 */
#include "semver.h"

#include <glib.h>
#include <string.h>

static gboolean is_number(const char *text, gsize length)
{
  for (gsize i = 0; i < length; i++)
    if (!g_ascii_isdigit(text[i]))
      return FALSE;
  return length > 0;
}

static int compare_text(const char *a, gsize a_length, const char *b, gsize b_length)
{
  int order = memcmp(a, b, MIN(a_length, b_length));
  return order ? order : (a_length > b_length) - (a_length < b_length);
}

/* One identifier: numbers by value and below words, words by ASCII order. */
static int compare_identifier(const char *a, gsize a_length, const char *b, gsize b_length)
{
  gboolean a_number = is_number(a, a_length), b_number = is_number(b, b_length);
  if (a_number != b_number)
    return a_number ? -1 : 1;
  if (!a_number)
    return compare_text(a, a_length, b, b_length);
  while (a_length > 1 && *a == '0')
    a++, a_length--;
  while (b_length > 1 && *b == '0')
    b++, b_length--;
  if (a_length != b_length)
    return a_length > b_length ? 1 : -1;
  return memcmp(a, b, a_length);
}

/* Lists of identifiers separated by dots; the shorter of two equal beginnings is older. */
static int compare_list(const char *a, gsize a_length, const char *b, gsize b_length)
{
  while (a_length > 0 && b_length > 0) {
    const char *a_dot = memchr(a, '.', a_length), *b_dot = memchr(b, '.', b_length);
    gsize a_part = a_dot ? (gsize)(a_dot - a) : a_length, b_part = b_dot ? (gsize)(b_dot - b) : b_length;
    int order = compare_identifier(a, a_part, b, b_part);
    if (order)
      return order;
    gsize a_step = a_part + (a_dot != NULL), b_step = b_part + (b_dot != NULL);
    a += a_step, a_length -= a_step;
    b += b_step, b_length -= b_step;
  }
  return (a_length > 0) - (b_length > 0);
}

int ordo_semver_compare(const char *a, const char *b)
{
  gsize a_length = strcspn(a, "+"), b_length = strcspn(b, "+");
  gsize a_core = MIN(strcspn(a, "-"), a_length), b_core = MIN(strcspn(b, "-"), b_length);
  int order = compare_list(a, a_core, b, b_core);
  if (order)
    return order;
  gboolean a_pre = a_core < a_length, b_pre = b_core < b_length;
  if (!a_pre || !b_pre)
    return b_pre - a_pre;
  return compare_list(a + a_core + 1, a_length - a_core - 1, b + b_core + 1, b_length - b_core - 1);
}
