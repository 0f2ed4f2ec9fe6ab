/* golden.c - `ordo-golden DIR [--ranks N] [--strategy S] [--case WORD] [--ordo COMMAND]`: every case of a directory with golden numbers, a
 * line each, and the worst deviation in units of its tolerance. Exit code 1 if one is above 1 or could not be compared; 2 if what was
 * asked cannot be run at all, which is said once and not for every case.
 *
 * It knows the layout of such a directory and nothing of a certain model: sizes, data, options and tolerances come from the files.
 */
#include "golden.h"

#include <glib/gstdio.h>
#include <stdio.h>
#include <unistd.h>

typedef struct tally {
  int cases;
  int compared;
  int failed;
  double worst;
  char where[160];
} tally;

static void report(void *ctx, const char *name, const golden_worst *worst)
{
  tally *all = ctx;
  gboolean bad = worst->failure || !(worst->units <= 1.0) || !worst->metric[0];
  all->cases++;
  all->failed += bad;
  if (worst->failure)
    printf("%-4s %-34s %s\n", "FAIL", name, worst->failure);
  else
    printf("%-4s %-34s worst %9.3g of the tolerance: %s\n", bad ? "FAIL" : "ok", name, worst->units,
           worst->metric[0] ? worst->metric : "nothing was compared");
  fflush(stdout);
  if (!worst->failure && worst->metric[0])
    all->compared++;
  if (!worst->failure && worst->metric[0] && (worst->units > all->worst || !all->where[0])) {
    all->worst = worst->units;
    g_snprintf(all->where, sizeof all->where, "%s, %s", name, worst->metric);
  }
}

static void remove_tree(const char *path)
{
  GDir *directory = g_dir_open(path, 0, NULL);
  for (const char *name; directory && (name = g_dir_read_name(directory));) {
    g_autofree char *inner = g_build_filename(path, name, NULL);
    if (g_file_test(inner, G_FILE_TEST_IS_DIR) && !g_file_test(inner, G_FILE_TEST_IS_SYMLINK))
      remove_tree(inner);
    else
      unlink(inner);
  }
  if (directory)
    g_dir_close(directory);
  rmdir(path);
}

static void print_usage(GOptionContext *context)
{
  g_autofree char *help = g_option_context_get_help(context, FALSE, NULL);
  g_autoptr(GString) text = g_string_new(help);
  g_string_replace(text, "[OPTION\xe2\x80\xa6]", "[OPTION]...", 0); /* GLib's ellipsis is no character of the C locale */
  g_string_replace(text, "\xe2\x80\xa6", "...", 0);
  fputs(text->str, stdout);
}

static void print_summary(const golden_options *options, const tally *all)
{
  printf("%d cases on %d rank%s, %d failed; ", all->cases, options->ranks, options->ranks > 1 ? "s" : "", all->failed);
  if (all->compared)
    printf("worst deviation %.3g of its tolerance (%s)\n", all->worst, all->where);
  else
    printf("nothing was compared\n");
}

/* Strategy and ranks are the same in every case: a choice that no case can run is refused before the first. */
static gboolean can_run(const golden_options *options)
{
  golden_worst worst = {0};
  const char *const words[] = {"--digest", NULL};
  if (options->ranks < 2 || !options->strategy)
    return TRUE;
  g_autofree char *output = golden_run(options, &worst, "plan", options->ranks, words);
  if (!output)
    fprintf(stderr, "golden: no case can be run: %s\n", worst.failure);
  g_free(worst.failure);
  return output != NULL;
}

int main(int argc, char **argv)
{
  golden_options options = {.ordo = "ordo", .ranks = 1};
  g_auto(GStrv) rest = NULL;
  g_autofree char *strategy = NULL, *only = NULL, *ordo = NULL, *fallback = NULL;
  gboolean skip_missing = FALSE, help = FALSE;
  const GOptionEntry entries[] = {
      {"ranks", 0, 0, G_OPTION_ARG_INT, &options.ranks, "ranks of train, eval and generate", "N"},
      {"strategy", 0, 0, G_OPTION_ARG_STRING, &strategy, "strategy expression", "S"},
      {"case", 0, 0, G_OPTION_ARG_STRING, &only, "only cases whose name has this word", "WORD"},
      {"ordo", 0, 0, G_OPTION_ARG_FILENAME, &ordo, "the command [ordo]", "PATH"},
      {"default-dir", 0, 0, G_OPTION_ARG_FILENAME, &fallback, "DIR if none is given and ORDO_GOLDEN_DIR is not set", "DIR"},
      {"help", 'h', 0, G_OPTION_ARG_NONE, &help, "this text", NULL},
      {"skip-missing", 0, 0, G_OPTION_ARG_NONE, &skip_missing, "exit code 77 if DIR does not exist", NULL},
      {G_OPTION_REMAINING, 0, 0, G_OPTION_ARG_FILENAME_ARRAY, &rest, NULL, NULL},
      {0}};
  g_autoptr(GOptionContext) context = g_option_context_new("DIR - runs every golden case of a directory");
  g_autoptr(GError) error = NULL;
  tally all = {0};
  g_option_context_add_main_entries(context, entries, NULL);
  g_option_context_set_help_enabled(context, FALSE);
  gboolean parsed = g_option_context_parse(context, &argc, &argv, &error);
  const char *wish = g_getenv("ORDO_GOLDEN_DIR"), *directory = rest ? rest[0] : wish && *wish ? wish : fallback;
  if (parsed && help) {
    print_usage(context);
    return 0;
  }
  if (!parsed || !directory || (rest && rest[1]) || options.ranks < 1) {
    fprintf(stderr, "usage: ordo-golden DIR [--ranks N] [--strategy S] [--case WORD] [--ordo COMMAND]%s%s\n", error ? ": " : "",
            error ? error->message : "");
    return 2;
  }
  if (skip_missing && !g_file_test(directory, G_FILE_TEST_IS_DIR)) {
    printf("skipped: there are no golden numbers at %s (ORDO_GOLDEN_DIR)\n", directory);
    return 77;
  }
  g_autofree char *root = g_canonicalize_filename(directory, NULL), *scratch = NULL;
  options.root = root;
  options.strategy = strategy;
  options.only = only;
  options.ordo = ordo ? ordo : options.ordo;
  if (!can_run(&options))
    return 2;
  options.scratch = scratch = g_dir_make_tmp("ordo-golden-XXXXXX", NULL);
  golden_training(&options, report, &all);
  golden_inference(&options, report, &all);
  remove_tree(scratch);
  if (all.cases == 0) {
    fprintf(stderr, "golden: %s has no cases (training/*.json, inference/*.json)\n", root);
    return 1;
  }
  print_summary(&options, &all);
  return all.failed > 0;
}
