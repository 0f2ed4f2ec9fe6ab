/* golden.c - `golden DIR [--ranks N] [--strategy S] [--case WORD] [--ordo COMMAND]`: every case of a directory with golden numbers, a line
 * each, and the worst deviation in units of its tolerance. Exit code 1 if one is above 1 or could not be compared.
 *
 * It knows the layout of such a directory and nothing of a certain model: sizes, data, options and tolerances come from the files.
 */
#include "golden.h"

#include <glib/gstdio.h>
#include <stdio.h>
#include <unistd.h>

typedef struct tally {
  int cases;
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
  if (worst->units > all->worst || !all->where[0]) {
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

int main(int argc, char **argv)
{
  golden_options options = {.ordo = "ordo", .ranks = 1};
  g_auto(GStrv) rest = NULL;
  g_autofree char *strategy = NULL, *only = NULL, *ordo = NULL;
  gboolean skip_missing = FALSE;
  const GOptionEntry entries[] = {{"ranks", 0, 0, G_OPTION_ARG_INT, &options.ranks, "ranks of train, eval and generate", "N"},
                                  {"strategy", 0, 0, G_OPTION_ARG_STRING, &strategy, "strategy expression", "S"},
                                  {"case", 0, 0, G_OPTION_ARG_STRING, &only, "only cases whose name has this word", "WORD"},
                                  {"ordo", 0, 0, G_OPTION_ARG_FILENAME, &ordo, "the command [ordo]", "PATH"},
                                  {"skip-missing", 0, 0, G_OPTION_ARG_NONE, &skip_missing, "exit code 77 if DIR does not exist", NULL},
                                  {G_OPTION_REMAINING, 0, 0, G_OPTION_ARG_FILENAME_ARRAY, &rest, NULL, "DIR"},
                                  {0}};
  g_autoptr(GOptionContext) context = g_option_context_new("- runs every golden case of a directory");
  g_autoptr(GError) error = NULL;
  tally all = {0};
  g_option_context_add_main_entries(context, entries, NULL);
  if (!g_option_context_parse(context, &argc, &argv, &error) || !rest || rest[1] || options.ranks < 1) {
    fprintf(stderr, "usage: golden DIR [--ranks N] [--strategy S] [--case WORD] [--ordo COMMAND]%s%s\n", error ? ": " : "",
            error ? error->message : "");
    return 2;
  }
  if (skip_missing && !g_file_test(rest[0], G_FILE_TEST_IS_DIR)) {
    printf("skipped: there are no golden numbers at %s (ORDO_GOLDEN_DIR)\n", rest[0]);
    return 77;
  }
  g_autofree char *root = g_canonicalize_filename(rest[0], NULL), *scratch = g_dir_make_tmp("ordo-golden-XXXXXX", NULL);
  options.root = root;
  options.scratch = scratch;
  options.strategy = strategy;
  options.only = only;
  options.ordo = ordo ? ordo : options.ordo;
  golden_training(&options, report, &all);
  golden_inference(&options, report, &all);
  remove_tree(scratch);
  if (all.cases == 0) {
    fprintf(stderr, "golden: %s has no cases (training/*.json, inference/*.json)\n", root);
    return 1;
  }
  printf("%d cases on %d rank%s, %d failed; worst deviation %.3g of its tolerance (%s)\n", all.cases, options.ranks,
         options.ranks > 1 ? "s" : "", all.failed, all.worst, all.where);
  return all.failed > 0;
}
