/* reduce.h - element-wise reductions over the buffers of several ranks (private). */
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

#endif
