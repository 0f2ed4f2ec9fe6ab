/* compare.c - deviations in units of their tolerance. The worst one of a case is kept with its name; nothing here knows files. */
#include "golden.h"

#include <math.h>

void golden_compare(golden_worst *worst, const char *metric, double value, double expected, double tolerance)
{
  double distance = fabs(value - expected);
  double units = distance == 0.0 ? 0.0 : tolerance > 0.0 ? distance / tolerance : INFINITY;
  if (!isfinite(value) || !isfinite(expected))
    units = INFINITY;
  if (units > worst->units || !worst->metric[0]) {
    worst->units = units;
    g_strlcpy(worst->metric, metric, sizeof worst->metric);
  }
}

void golden_compare_relative(golden_worst *worst, const char *metric, double value, double expected, double tolerance)
{
  golden_compare(worst, metric, value, expected, tolerance * fabs(expected));
}

void golden_compare_list(golden_worst *worst, const char *metric, JsonArray *values, JsonArray *expected, double tolerance)
{
  guint n = values ? json_array_get_length(values) : 0;
  if (!expected || n != json_array_get_length(expected)) {
    golden_fail(worst, "%s has %u values, expected are %u", metric, n, expected ? json_array_get_length(expected) : 0);
    return;
  }
  for (guint i = 0; i < n; i++)
    golden_compare_relative(worst, metric, json_array_get_double_element(values, i), json_array_get_double_element(expected, i), tolerance);
}

void golden_compare_exact(golden_worst *worst, const char *metric, gboolean equal)
{
  golden_compare(worst, metric, equal ? 0.0 : 1.0, 0.0, 0.0);
}

void golden_fail(golden_worst *worst, const char *format, ...)
{
  va_list args;
  if (worst->failure)
    return;
  va_start(args, format);
  worst->failure = g_strdup_vprintf(format, args);
  va_end(args);
}

double golden_tolerance(golden_worst *worst, JsonObject *tolerance, const char *member)
{
  if (tolerance && json_object_has_member(tolerance, member))
    return json_object_get_double_member(tolerance, member);
  golden_fail(worst, "the case states no tolerance %s", member);
  return 0.0;
}
