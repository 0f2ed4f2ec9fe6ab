/* reduce.h - element-wise reductions over the buffers of several ranks, and the two 16-bit float formats (private). */
#ifndef ORDO_PRIVATE_REDUCE_H
#define ORDO_PRIVATE_REDUCE_H

#include <glib.h>
#include <ordo/comm.h>

/* What to compute: the same for every rank of a collective. */
typedef struct ordo_reduction {
  ordo_dtype dtype;
  uint32_t op;           /* ORDO_SUM, ORDO_MAX or ORDO_MIN; AVG is a SUM whose factor holds 1/size */
  double factor;         /* of SUM on floats; 1: none */
  gboolean factor_after; /* multiply the finished sum instead of each term */
} ordo_reduction;

/* outputs[j][i] = op over k of inputs[k][i], in the order of k, for i < count. Every output gets the same bits. An output may be
 * one of the inputs (same address), otherwise they must not overlap. 16-bit floats accumulate in fp32 and are rounded once; NaN
 * wins in MAX and MIN; integer sums wrap. */
void ordo_reduce(const ordo_reduction *reduction, void *const *outputs, size_t n_outputs, const void *const *inputs, size_t n_inputs,
                 size_t count);

/* Round to nearest, ties to even; subnormals kept; overflow to infinity; NaN stays NaN (quiet). */
uint16_t ordo_bf16_from_f32(float value);
uint16_t ordo_f16_from_f32(float value);
float ordo_f32_from_bf16(uint16_t bits);
float ordo_f32_from_f16(uint16_t bits);

#endif
