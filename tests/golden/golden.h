/* golden.h - the runner of a directory with golden numbers: what its files share.
 *
 * Every case is run through the product: `ordo train`, `ordo eval`, `ordo generate` with ordinary options, in a scratch directory. What
 * they leave is compared with the numbers of the case, each deviation in units of the tolerance that the case states.
 */
#ifndef GOLDEN_H
#define GOLDEN_H

#include <glib.h>
#include <json-glib/json-glib.h>

/* The largest deviation of a case. */
typedef struct golden_worst {
  double units;    /* of the tolerance; above 1 is a failure */
  char metric[96]; /* where */
  char *failure;   /* why the case could not be compared, null if it was */
} golden_worst;

typedef struct golden_options {
  const char *root;     /* the directory */
  const char *scratch;  /* of this run */
  const char *ordo;     /* the command */
  const char *strategy; /* null: none named */
  const char *only;     /* substring of case names, null: all */
  int ranks;
} golden_options;

/* One finished case: prints its line. */
typedef void (*golden_report)(void *ctx, const char *name, const golden_worst *worst);

/* Records |value - expected| / tolerance. A tolerance of 0 demands equality; a value that is not finite is infinitely far. */
void golden_compare(golden_worst *worst, const char *metric, double value, double expected, double tolerance);
/* The same relative to |expected|. */
void golden_compare_relative(golden_worst *worst, const char *metric, double value, double expected, double tolerance);
/* Two lists of equal length, relative; another length is a failure. */
void golden_compare_list(golden_worst *worst, const char *metric, JsonArray *values, JsonArray *expected, double tolerance);
void golden_compare_exact(golden_worst *worst, const char *metric, gboolean equal);
void golden_fail(golden_worst *worst, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* member of the case's `tolerance`; missing: the case fails. */
double golden_tolerance(golden_worst *worst, JsonObject *tolerance, const char *member);

/* The object of a JSON file below root; null if it cannot be read. The caller unrefs it. */
JsonObject *golden_read(const char *root, const char *relative, char **why);
/* Runs the command with the words (null-terminated); `ranks` is added when above 1. Returns its standard output (g_free), or null with
 * the failure recorded. */
char *golden_run(const golden_options *options, golden_worst *worst, const char *verb, int ranks, const char *const *words);
/* A word list that frees itself: printf-like "--key=value". */
void golden_word(GPtrArray *words, const char *format, ...) G_GNUC_PRINTF(2, 3);

void golden_training(const golden_options *options, golden_report report, void *ctx);
void golden_inference(const golden_options *options, golden_report report, void *ctx);
/* Compares what a training run left in `output` with the case; also used by the test of the comparer. */
void golden_compare_training(const golden_options *options, JsonObject *expected, JsonArray *losses, JsonArray *norms, golden_worst *worst);

#endif
