/* exact_sum.c - a sum of squares that does not depend on order, layout or number of ranks.
 *
 * Ordered mode promises the same bits for ddp, fsdp1 and fsdp2 at one number of ranks. Their gradients agree element by element, but each
 * cuts them differently, and a floating-point sum of the same numbers in another grouping rounds differently. So the sum is made exact:
 * a float is m * 2^e with a 24-bit m, its square a 48-bit integer at position 2e, and adding integers into digits never rounds.
 * The one rounding is at the very end, when the whole sum becomes a double.
 */
#include "exact_sum.h"

#include <math.h>
#include <string.h>

#define BIAS 1088              /* weight of bit 0 is 2^-BIAS */
#define CARRY_EVERY (1u << 28) /* an addition puts less than 2^34 into a digit: 2^28 of them stay below 2^62 */
#define LOW_DIGIT 0xffffffffLL

void ordo_exact_sum_carry(ordo_exact_sum *sum)
{
  for (int i = 0; i + 1 < ORDO_EXACT_DIGITS; i++) {
    int64_t low = sum->words[i] & LOW_DIGIT;
    sum->words[i + 1] += (sum->words[i] - low) / (LOW_DIGIT + 1);
    sum->words[i] = low;
  }
  sum->pending = 0;
}

static inline void count_additions(ordo_exact_sum *sum, guint32 n)
{
  sum->pending += n;
  if (G_UNLIKELY(sum->pending >= CARRY_EVERY))
    ordo_exact_sum_carry(sum);
}

/* Adds sign * m * 2^exponent, m below 2^53. */
static inline void add_integer(ordo_exact_sum *sum, uint64_t m, int exponent, int64_t sign)
{
  unsigned position = (unsigned)(exponent + BIAS), digit = position >> 5, shift = position & 31u;
  uint64_t low = (m & 0xffffffffu) << shift, high = (m >> 32) << shift;
  sum->words[digit] += sign * (int64_t)(low & 0xffffffffu);
  sum->words[digit + 1] += sign * (int64_t)((low >> 32) + (high & 0xffffffffu));
  sum->words[digit + 2] += sign * (int64_t)(high >> 32);
}

void ordo_exact_sum_add(ordo_exact_sum *sum, double x)
{
  uint64_t bits, fraction;
  int exponent;
  memcpy(&bits, &x, sizeof bits);
  exponent = (int)(bits >> 52 & 0x7ffu);
  fraction = bits & 0xfffffffffffffULL;
  if (exponent == 0x7ff) {
    sum->words[ORDO_EXACT_DIGITS]++;
    return;
  }
  if (exponent > 0)
    fraction |= 1ULL << 52;
  add_integer(sum, fraction, (exponent > 0 ? exponent : 1) - 1075, bits >> 63 ? -1 : 1);
  count_additions(sum, 1);
}

void ordo_exact_sum_squares_f32(ordo_exact_sum *sum, const float *x, int64_t n)
{
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits, exponent;
    uint64_t m;
    memcpy(&bits, &x[i], sizeof bits);
    exponent = bits >> 23 & 0xffu;
    m = bits & 0x7fffffu;
    if (G_UNLIKELY(exponent == 0xffu)) {
      sum->words[ORDO_EXACT_DIGITS]++;
      continue;
    }
    if (G_LIKELY(exponent > 0))
      m |= 0x800000u;
    else
      exponent = 1;
    add_integer(sum, m * m, 2 * ((int)exponent - 150), 1);
    count_additions(sum, 1);
  }
}

void ordo_exact_sum_squares_f64(ordo_exact_sum *sum, const double *x, int64_t n)
{
  for (int64_t i = 0; i < n; i++) {
    double square = x[i] * x[i];
    ordo_exact_sum_add(sum, square);
    if (isfinite(square)) /* what the product rounded away, exactly */
      ordo_exact_sum_add(sum, fma(x[i], x[i], -square));
  }
}

double ordo_exact_sum_value(ordo_exact_sum *sum)
{
  uint64_t top;
  int digit = ORDO_EXACT_DIGITS - 1, shift;
  gboolean rest = FALSE;
  ordo_exact_sum_carry(sum);
  if (sum->words[ORDO_EXACT_DIGITS] != 0)
    return INFINITY;
  while (digit >= 0 && sum->words[digit] == 0)
    digit--;
  if (digit < 0)
    return 0.0;
  /* The 64 bits from the highest set one, and whether anything lies below them: enough to round once and correctly. */
  shift = __builtin_clzll((uint64_t)sum->words[digit]) - 32;
  top = (uint64_t)sum->words[digit] << 32 | (digit > 0 ? (uint64_t)sum->words[digit - 1] : 0);
  if (shift > 0) {
    uint64_t below = digit > 1 ? (uint64_t)sum->words[digit - 2] : 0;
    top = top << shift | below >> (32 - shift);
    rest = (below & ((1ULL << (32 - shift)) - 1)) != 0;
  } else {
    rest = digit > 1 && sum->words[digit - 2] != 0;
  }
  for (int i = digit - 3; i >= 0 && !rest; i--)
    rest = sum->words[i] != 0;
  return ldexp((double)(top | (rest ? 1u : 0u)), (digit - 1) * 32 - shift - BIAS);
}
