/* condition.c - conditions on manifest lines, evaluated on option values.
 *
 * The language is the one of manifest.h and no more: comparisons joined with `and` and `or`, `and` binding tighter, no brackets, no
 * functions. That is enough to say "masters exist at O2 and O5" without running plugin code, and little enough that a reader of the
 * manifest sees at once when a line holds. One walk serves the check and the evaluation, so the two cannot disagree.
 */
#include "condition.h"
#include "../discovery/option.h"

#include <string.h>

typedef enum { TOKEN_END, TOKEN_WORD, TOKEN_EQUAL, TOKEN_NOT_EQUAL, TOKEN_COMMA, TOKEN_BAD } token_kind;

typedef struct walk {
  const char *at;
  token_kind kind;
  char *word; /* of TOKEN_WORD */
  char *error;
  ordo_condition_visitor visit; /* null when evaluating */
  gpointer visit_user;
  const ordo_manifest *manifest;
  ordo_option_getter get; /* null when checking */
  gpointer get_user;
} walk;

static gboolean is_word_byte(char c)
{
  return c != '\0' && !g_ascii_isspace(c) && !strchr("=!,[]()", c);
}

static void advance(walk *w)
{
  while (g_ascii_isspace(*w->at))
    w->at++;
  g_clear_pointer(&w->word, g_free);
  if (*w->at == '\0') {
    w->kind = TOKEN_END;
  } else if (*w->at == ',') {
    w->kind = TOKEN_COMMA;
    w->at++;
  } else if (*w->at == '=') {
    w->kind = TOKEN_EQUAL;
    w->at++;
  } else if (w->at[0] == '!' && w->at[1] == '=') {
    w->kind = TOKEN_NOT_EQUAL;
    w->at += 2;
  } else if (is_word_byte(*w->at)) {
    const char *start = w->at;
    while (is_word_byte(*w->at))
      w->at++;
    w->kind = TOKEN_WORD;
    w->word = g_strndup(start, (gsize)(w->at - start));
  } else {
    w->kind = TOKEN_BAD;
  }
}

static gboolean next_is(const walk *w, const char *word)
{
  return w->kind == TOKEN_WORD && strcmp(w->word, word) == 0;
}

/* Keeps the first complaint; takes `wanted`. */
static gboolean fail(walk *w, char *wanted)
{
  if (!w->error) {
    const char *found = w->kind == TOKEN_WORD ? w->word : w->kind == TOKEN_END ? "the end" : "a sign that does not belong there";
    w->error = g_strdup_printf("%s, found %s", wanted, found);
  }
  g_free(wanted);
  return FALSE;
}

/* Equality of two option texts under the option's type; `schema` may be null. */
static gboolean text_equal(const ordo_option_schema *schema, const char *a, const char *b)
{
  g_autofree char *why_a = NULL, *why_b = NULL;
  g_autofree char *canonical_a = schema ? ordo_option_normalise(schema, a, &why_a) : NULL;
  g_autofree char *canonical_b = schema ? ordo_option_normalise(schema, b, &why_b) : NULL;
  return strcmp(canonical_a ? canonical_a : a, canonical_b ? canonical_b : b) == 0;
}

/* One of `values` equals the option. */
static gboolean matches(walk *w, const char *key, char **values)
{
  const char *actual = w->get ? w->get(w->get_user, key) : NULL;
  const ordo_option_schema *schema = w->manifest ? ordo_manifest_option(w->manifest, key) : NULL;
  for (; actual && *values; values++) {
    if (text_equal(schema, actual, *values))
      return TRUE;
  }
  return FALSE;
}

static void show(const walk *w, const char *key, char **values)
{
  if (w->visit)
    w->visit(w->visit_user, key, (const char *const *)values);
}

/* value { "," value } when `list`, one value otherwise; null after an error. */
static char **parse_values(walk *w, gboolean list)
{
  g_autoptr(GPtrArray) values = g_ptr_array_new_with_free_func(g_free);
  for (;;) {
    if (w->kind != TOKEN_WORD) {
      fail(w, g_strdup("a value is expected"));
      return NULL;
    }
    g_ptr_array_add(values, g_strdup(w->word));
    advance(w);
    if (!list || w->kind != TOKEN_COMMA)
      break;
    advance(w);
  }
  g_ptr_array_add(values, NULL);
  return (char **)g_ptr_array_free(g_steal_pointer(&values), FALSE);
}

static gboolean compare(walk *w, const char *key, gboolean list, gboolean negated)
{
  g_auto(GStrv) values = parse_values(w, list);
  if (!values)
    return FALSE;
  show(w, key, values);
  return matches(w, key, values) != negated;
}

/* key=value | key!=value | key in list | key not in list | key set | key unset */
static gboolean comparison(walk *w)
{
  if (w->kind != TOKEN_WORD)
    return fail(w, g_strdup("an option key is expected"));
  g_autofree char *key = g_strdup(w->word);
  advance(w);
  if (w->kind == TOKEN_EQUAL || w->kind == TOKEN_NOT_EQUAL) {
    gboolean negated = w->kind == TOKEN_NOT_EQUAL;
    advance(w);
    return compare(w, key, FALSE, negated);
  }
  if (next_is(w, "set") || next_is(w, "unset")) {
    gboolean wanted = next_is(w, "set");
    advance(w);
    show(w, key, NULL);
    return w->get && (w->get(w->get_user, key) != NULL) == wanted;
  }
  gboolean negated = next_is(w, "not");
  if (negated)
    advance(w);
  if (!next_is(w, "in"))
    return fail(w, g_strdup_printf("after '%s' one of =, !=, in, not in, set, unset is expected", key));
  advance(w);
  return compare(w, key, TRUE, negated);
}

static gboolean conjunction(walk *w)
{
  gboolean value = comparison(w);
  while (!w->error && next_is(w, "and")) {
    advance(w);
    gboolean right = comparison(w); /* always walked, so that a check sees every comparison */
    value = value && right;
  }
  return value;
}

static gboolean disjunction(walk *w)
{
  advance(w);
  gboolean value = conjunction(w);
  while (!w->error && next_is(w, "or")) {
    advance(w);
    gboolean right = conjunction(w);
    value = value || right;
  }
  if (!w->error && w->kind != TOKEN_END)
    fail(w, g_strdup("'and' or 'or' is expected"));
  g_clear_pointer(&w->word, g_free);
  return value;
}

char *ordo_condition_check(const char *text, ordo_condition_visitor visit, gpointer user)
{
  walk w = {.at = text, .visit = visit, .visit_user = user};
  disjunction(&w);
  return w.error;
}

gboolean ordo_condition_holds(const char *text, const ordo_manifest *manifest, ordo_option_getter get, gpointer user)
{
  if (!text)
    return TRUE;
  walk w = {.at = text, .manifest = manifest, .get = get, .get_user = user};
  gboolean value = disjunction(&w);
  if (w.error) {
    g_free(w.error);
    return FALSE;
  }
  return value;
}
