/* verb_explain.c - `ordo explain CODE`: what an error code means and what to do.
 *
 * The texts stand in one table (host/src/base/errors.def); this verb, docs/errors.md and the test that every code has a text are made from
 * it.
 */
#include "cli.h"
#include "../src/base/error.h"

#include <stdio.h>
#include <string.h>

typedef struct error_text {
  const char *code, *title, *explanation;
} error_text;

static const error_text texts[] = {
#define ORDO_ERROR(CODE, TITLE, EXPLANATION) {CODE, TITLE, EXPLANATION},
#include "../src/base/errors.def"
#undef ORDO_ERROR
};

static int unknown_code(const ordo_cli *cli, const char *code)
{
  const char *names[G_N_ELEMENTS(texts) + 1] = {0};
  for (size_t i = 0; i < G_N_ELEMENTS(texts); i++)
    names[i] = texts[i].code;
  const char *nearest = ordo_nearest_name(code, names);
  g_autofree char *what = g_strdup_printf("unknown error code '%s'", code);
  g_autofree char *next = nearest ? g_strdup_printf("did you mean: ordo explain %s", nearest) : NULL;
  return cli_usage(cli, "explain", what, "all codes: ordo explain", next);
}

static void print_markdown(void)
{
  printf("# Error codes\n\nMade by `./dev docs` from host/src/base/errors.def; `ordo explain CODE` prints the same text.\n");
  for (size_t i = 0; i < G_N_ELEMENTS(texts); i++)
    printf("\n## %s\n\n%s.\n\n%s\n", texts[i].code, texts[i].title, texts[i].explanation);
}

int cli_explain(ordo_cli *cli, int argc, char **argv)
{
  gboolean markdown = FALSE;
  const GOptionEntry entries[] = {{"markdown", 0, 0, G_OPTION_ARG_NONE, &markdown, "all texts, as docs/errors.md", NULL},
                                  G_OPTION_ENTRY_NULL};
  g_auto(GStrv) words = NULL;
  int code = CLI_DONE;
  if (!cli_parse(cli, "explain", entries, argc, argv, 0, 1, &words, &code))
    return code;
  if (markdown) {
    print_markdown();
    return CLI_DONE;
  }
  int width = 0;
  for (size_t i = 0; i < G_N_ELEMENTS(texts); i++)
    width = MAX(width, (int)strlen(texts[i].code));
  g_autofree char *wanted = words[0] ? g_ascii_strup(words[0], -1) : NULL;
  for (size_t i = 0; i < G_N_ELEMENTS(texts); i++) {
    if (!wanted) {
      printf("%-*s  %s\n", width, texts[i].code, texts[i].title);
    } else if (!strcmp(texts[i].code, wanted)) {
      printf("%s%s%s: %s\n\n%s\n", cli_style(cli->colour_out, "bold"), texts[i].code, cli_style(cli->colour_out, "off"), texts[i].title,
             texts[i].explanation);
      return CLI_DONE;
    }
  }
  return wanted ? unknown_code(cli, words[0]) : CLI_DONE;
}
