/* show_search.c - prints the search report of a context; test_privileged runs a set-user-id copy of it. */
#include <stdio.h>

#include <ordo/context.h>

int main(void)
{
  ordo_context *context = NULL;
  if (ordo_context_create(NULL, &context))
    return 1;
  char *report = ordo_context_search_report(context);
  fputs(report, stdout);
  for (size_t i = 0; i < ordo_context_n_plugins(context); i++)
    printf("plugin %s\n", ordo_context_plugin(context, i)->path);
  ordo_string_free(report);
  ordo_context_destroy(context);
  return 0;
}
