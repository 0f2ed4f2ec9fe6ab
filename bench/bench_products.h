/* bench_products.h - what a training step multiplies and converts, recorded and done again alone.
 *
 * The linker wraps cblas_sgemm and the products of bf16_gemm.h; conversions go through a table of kernels that times them. Replays use
 * the same shapes and memory in the same order, so they take what the step must take at least. State is the program's: one recorder. */
#ifndef BENCH_PRODUCTS_H
#define BENCH_PRODUCTS_H

#include <stddef.h>

#include "kernels.h"

/* Records from now on, until off. -1 without memory. */
int bench_record(int on);
/* How many there are, and 1 if there were more than fit. */
size_t bench_recorded(int *overflow);
/* All recorded products, once. `bf16`: only those of bf16_gemm.h (1), only sgemm (0), both (-1). Returns seconds. */
double bench_replay(int bf16);
double bench_recorded_flop(int bf16);
/* Seconds of each shape, to see which products are slow. */
void bench_print_shapes(void);

/* `kernels` with conversions, and kernels that round as they go, adding up their time from zero. The latter are `rounded`; null: those of
 * `kernels` that do the same without rounding. */
const struct kernels *bench_timed_kernels(const struct kernels *kernels, const struct kernels_rounded *rounded);
/* Seconds in conversions; in kernels that round as they go, all of it. */
double bench_conversion_seconds(double *rounded);

double bench_now(void);

#endif
