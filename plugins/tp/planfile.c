/* planfile.c - the file of option `plan`: which parameters are split otherwise than the model suggests.
 *
 *   # comment
 *   model.layers.0.mlp.* = replicate
 *   *.embed_tokens.weight = vocab
 *
 * A line is a shell pattern over parameter names, `=`, and one of column, row, vocab, replicate. A later line overrides an earlier one. A
 * parameter may be split as the model hints, or replicated: another split would compute something else, since the model places its
 * activations by its hints. Guarded against: a pattern that matches nothing, which is a slip of the pen that would go unnoticed.
 */
#include "../sharding/sharding.h"
#include "../sharding/units.h"
#include "tp.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { LINE_LONGEST = 1022 };
#define LINE_LONGEST_TEXT "1022"

static const char *const names[] = {"replicate", "column", "row", "vocab"};

const char *tp_kind_name(uint32_t kind)
{
  return kind < sizeof names / sizeof names[0] ? names[kind] : "an unknown kind";
}

/* Cuts blanks from both ends, in place. */
static char *trim(char *text)
{
  size_t length;
  text += strspn(text, " \t\r\n");
  for (length = strlen(text); length > 0 && strchr(" \t\r\n", text[length - 1]) != NULL; length--)
    text[length - 1] = '\0';
  return text;
}

static ordo_status apply(const tp *self, const char *path, int number, const char *pattern, uint32_t kind, uint32_t *kinds)
{
  const ordo_model *model = self->job->model;
  int hits = 0;
  for (uint32_t p = 0; p < model->n_params; p++) {
    const ordo_param *param = model->params[p];
    if (sharding_pattern_find(pattern, 0, param->name) == 0)
      continue;
    hits++;
    if (kind != ORDO_TP_REPLICATE && kind != param->tp_hint)
      return sharding_fail(self->job, ORDO_E_INVALID,
                           "a parameter can be split as the model hints, or be replicated; leave the line out for the hint",
                           "%s, line %d: '%s' cannot be %s: the model computes with it as %s", path, number, param->name,
                           tp_kind_name(kind), tp_kind_name(param->tp_hint));
    kinds[p] = kind;
  }
  return hits > 0 ? ORDO_OK
                  : sharding_fail(self->job, ORDO_E_INVALID,
                                  "patterns use * and ? as a shell does; `ordo plan --estimate` shows the names, "
                                  "with * for numbers of layers",
                                  "%s, line %d: '%s' matches no parameter of model '%s'", path, number, pattern, model->name);
}

static ordo_status read_line(const tp *self, const char *path, int number, char *line, uint32_t *kinds)
{
  char *pattern = trim(line), *equals = strchr(pattern, '='), *word;
  if (*pattern == '\0' || *pattern == '#')
    return ORDO_OK;
  if (equals == NULL || equals == pattern || strchr(pattern, ',') != NULL)
    return sharding_fail(self->job, ORDO_E_INVALID, "write: PATTERN = column, row, vocab or replicate", "%s, line %d is no assignment: %s",
                         path, number, pattern);
  *equals = '\0';
  pattern = trim(pattern);
  word = trim(equals + 1);
  for (uint32_t kind = 0; kind < sizeof names / sizeof names[0]; kind++)
    if (strcmp(word, names[kind]) == 0)
      return apply(self, path, number, pattern, kind, kinds);
  return sharding_fail(self->job, ORDO_E_INVALID, "the words are column, row, vocab and replicate", "%s, line %d: '%s' is no kind of split",
                       path, number, word);
}

/* The next line, without its end. 0 after the last; *wrong is set for a line that cannot be read as text: whoever skipped the rest of it
 * would follow half of a plan. */
static int next_line(FILE *file, char *line, const char **wrong)
{
  size_t length = 0;
  int c = getc(file);
  if (c == EOF)
    return 0;
  for (; c != EOF && c != '\n' && *wrong == NULL; c = getc(file)) {
    if (c < ' ' && c != '\t' && c != '\r') /* and an error that shows the line would send it to a terminal */
      *wrong = c == '\0' ? "has a zero byte, so this is no text" : "has a control character, so this is no text";
    else if (length == LINE_LONGEST)
      *wrong = "is longer than " LINE_LONGEST_TEXT " characters";
    else
      line[length++] = (char)c;
  }
  line[length] = '\0';
  return 1;
}

ordo_status tp_plan_read(const tp *self, const char *path, uint32_t *kinds)
{
  char line[LINE_LONGEST + 1];
  const char *wrong = NULL;
  ordo_status status = ORDO_OK;
  FILE *file = fopen(path, "r");
  int number = 0;
  if (file == NULL)
    return sharding_fail(self->job, ORDO_E_IO, "the path is relative to the directory the job was started in", "plan file %s: %s", path,
                         strerror(errno));
  while (status == ORDO_OK && next_line(file, line, &wrong)) {
    number++;
    status = wrong == NULL
                 ? read_line(self, path, number, line, kinds)
                 : sharding_fail(self->job, ORDO_E_INVALID, "a line has a pattern and a word", "%s, line %d %s", path, number, wrong);
  }
  if (status == ORDO_OK && ferror(file))
    status =
        sharding_fail(self->job, ORDO_E_IO, "it must be a plain file that this user may read", "plan file %s: %s", path, strerror(errno));
  fclose(file);
  return status;
}
