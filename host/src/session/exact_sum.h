/* exact_sum.h - a sum of doubles without rounding (private).
 *
 * The value is a fixed-point integer of 68 digits of 32 bits, lowest weight 2^-1088, so that every finite double and 2^64 of the largest
 * fit. Digits are kept in 64-bit integers and carried rarely. Integers add in any order and over any ranks to the same bits, which
 * floating-point sums do not.
 */
#ifndef ORDO_PRIVATE_EXACT_SUM_H
#define ORDO_PRIVATE_EXACT_SUM_H

#include <glib.h>
#include <stdint.h>

#define ORDO_EXACT_DIGITS 68
#define ORDO_EXACT_WORDS (ORDO_EXACT_DIGITS + 1) /* digits, then the number of summands that were not finite */

typedef struct ordo_exact_sum {
  int64_t words[ORDO_EXACT_WORDS]; /* may be added word by word to another one's after ordo_exact_sum_carry of both */
  guint32 pending;                 /* additions since the last carry */
} ordo_exact_sum;

/* Adds x; infinities and NaN are counted. */
void ordo_exact_sum_add(ordo_exact_sum *sum, double x);
/* Adds the exact squares of n floats. */
void ordo_exact_sum_squares_f32(ordo_exact_sum *sum, const float *x, int64_t n);
/* Adds x*x of n doubles; exact while x*x neither overflows nor falls below 2^-968. */
void ordo_exact_sum_squares_f64(ordo_exact_sum *sum, const double *x, int64_t n);
/* Brings every digit below 2^32, so that 2^31 sums can be added word by word. */
void ordo_exact_sum_carry(ordo_exact_sum *sum);
/* The nearest double (ties to even); infinity if a summand was not finite. The sum must not be negative. */
double ordo_exact_sum_value(ordo_exact_sum *sum);

#endif
