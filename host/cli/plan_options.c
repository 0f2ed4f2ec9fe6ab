/* plan_options.c - the options of plan, why and why-not, and the plan made from them. */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cli_plan_options_clear(cli_plan_options *options)
{
  g_free(options->strategy);
  g_free(options->precision);
  g_free(options->default_strategy);
}

/* The fewest ranks that the expression allows: the product of the sizes it states. A part without a size then gets one rank; nonsense is
 * left for the parser of the library to name. */
static int fewest_ranks(const char *strategy)
{
  g_auto(GStrv) parts = g_strsplit(strategy ? strategy : "", "+", -1);
  gint64 product = 1;
  for (char **part = parts; *part; part++) {
    g_autofree char *head = g_strndup(*part, strcspn(*part, ":"));
    const char *size = strchr(head, '=');
    gint64 n = size ? g_ascii_strtoll(size + 1, NULL, 10) : 1;
    if (n > 0 && n < G_MAXINT32 && product * n < G_MAXINT32)
      product *= n;
  }
  return (int)product;
}

ordo_plan *cli_plan_make(ordo_cli *cli, const char *verb, const cli_plan_options *options, int *exit_code)
{
  ordo_context *context = cli_context(cli);
  ordo_plan_request request = {.struct_size = sizeof request};
  ordo_plan *plan = NULL;

  *exit_code = CLI_USAGE;
  if (!context)
    return NULL;
  if (options->ranks < 1 && options->ranks != CLI_RANKS_NOT_GIVEN) {
    cli_usage(cli, verb, "--ranks must be at least 1", NULL, NULL);
    return NULL;
  }
  request.strategy = options->strategy;
  request.precision = options->precision;
  request.default_strategy = options->default_strategy;
  request.ranks = options->ranks != CLI_RANKS_NOT_GIVEN ? options->ranks : fewest_ranks(options->strategy);
  request.flags = (options->resume ? ORDO_PLAN_RESUME : 0) | (options->eval ? ORDO_PLAN_EVAL : 0);
  ordo_status status = ordo_plan_create(context, &request, &plan);
  *exit_code = cli_exit_code(status);
  if (status != ORDO_OK && !plan)
    cli_fail(cli, status);
  return plan;
}
