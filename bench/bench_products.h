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

/* `kernels` with conversions that add up their time. */
const struct kernels *bench_timed_kernels(const struct kernels *kernels);
/* Seconds in conversions since the last call. */
double bench_conversion_seconds(void);

double bench_now(void);

#endif
