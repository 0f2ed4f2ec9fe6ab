/* reduce.c - the arithmetic of every reduction, whatever the transport.
 *
 * Shared windows, plain MPI with ordered sums and the single rank all call ordo_reduce, so one order of additions and one rounding
 * hold everywhere; that is what makes all-reduce and reduce-scatter agree bit for bit.
 * The idea: work in blocks that fit the first-level cache. Load the first input into an accumulator, add the others in rank order,
 * write the block to every output. Each input is then read once from memory and each output written once.
 * Guards against: fused multiply-add changing bits between processors (contraction is off; the language standard switches it off
 * for gcc, the pragma below for clang).
 */
#include "reduce.h"

#include <ordo/half_array.h>

#include <string.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

enum { BLOCK = 1024 }; /* elements: 4 KiB of fp32 per stream */

/* Sixteen floats at any address; the compiler picks the instructions of each target below. */
typedef float f32x16 __attribute__((vector_size(64), aligned(4), may_alias));

typedef struct kernels {
  void (*scale_f32)(float *restrict out, const float *restrict in, float factor, size_t count);
  void (*add_f32)(float *restrict acc, const float *restrict in, float factor, size_t count);
  void (*sum2_f32)(float *restrict out, const float *restrict a, const float *restrict b, float before, float after, size_t count);
} kernels;

/* One body, compiled for each target. Multiplying by 1 is exact, so no case without a factor is needed. */
#define DEFINE_KERNELS(NAME, TARGET)                                                                                                   \
  TARGET static void scale_f32_##NAME(float *restrict out, const float *restrict in, float factor, size_t count)                       \
  {                                                                                                                                    \
    size_t i = 0;                                                                                                                      \
    for (; i + 16 <= count; i += 16)                                                                                                   \
      *(f32x16 *)(out + i) = *(const f32x16 *)(in + i) * factor;                                                                       \
    for (; i < count; i++)                                                                                                             \
      out[i] = in[i] * factor;                                                                                                         \
  }                                                                                                                                    \
  TARGET static void add_f32_##NAME(float *restrict acc, const float *restrict in, float factor, size_t count)                         \
  {                                                                                                                                    \
    size_t i = 0;                                                                                                                      \
    for (; i + 16 <= count; i += 16)                                                                                                   \
      *(f32x16 *)(acc + i) = *(const f32x16 *)(acc + i) + *(const f32x16 *)(in + i) * factor;                                          \
    for (; i < count; i++)                                                                                                             \
      acc[i] = acc[i] + in[i] * factor;                                                                                                \
  }                                                                                                                                    \
  TARGET static void sum2_f32_##NAME(float *restrict out, const float *restrict a, const float *restrict b, float before, float after, \
                                     size_t count)                                                                                     \
  {                                                                                                                                    \
    size_t i = 0;                                                                                                                      \
    for (; i + 16 <= count; i += 16)                                                                                                   \
      *(f32x16 *)(out + i) = (*(const f32x16 *)(a + i) * before + *(const f32x16 *)(b + i) * before) * after;                          \
    for (; i < count; i++)                                                                                                             \
      out[i] = (a[i] * before + b[i] * before) * after;                                                                                \
  }                                                                                                                                    \
  static const kernels kernels_##NAME = {scale_f32_##NAME, add_f32_##NAME, sum2_f32_##NAME};

DEFINE_KERNELS(portable, )
#if defined(__x86_64__)
DEFINE_KERNELS(avx2, __attribute__((target("avx2"))))
DEFINE_KERNELS(avx512, __attribute__((target("avx512f,avx512bw,avx512vl"))))
#endif

static const kernels *choose_kernels(void)
{
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    return &kernels_avx512;
  if (__builtin_cpu_supports("avx2"))
    return &kernels_avx2;
#endif
  return &kernels_portable;
}

/* MAX and MIN keep a NaN once it was seen: an overflow must not be voted away by a finite rank. */
#define DEFINE_COMBINE(NAME, TYPE, SUM_TYPE)                                                         \
  static void combine_##NAME(TYPE *restrict acc, const TYPE *restrict in, uint32_t op, size_t count) \
  {                                                                                                  \
    if (op == ORDO_SUM)                                                                              \
      for (size_t i = 0; i < count; i++)                                                             \
        acc[i] = (TYPE)((SUM_TYPE)acc[i] + (SUM_TYPE)in[i]);                                         \
    else if (op == ORDO_MAX)                                                                         \
      for (size_t i = 0; i < count; i++)                                                             \
        acc[i] = in[i] > acc[i] || in[i] != in[i] ? in[i] : acc[i];                                  \
    else                                                                                             \
      for (size_t i = 0; i < count; i++)                                                             \
        acc[i] = in[i] < acc[i] || in[i] != in[i] ? in[i] : acc[i];                                  \
  }
DEFINE_COMBINE(f32, float, float)
DEFINE_COMBINE(f64, double, double)
DEFINE_COMBINE(i8, int8_t, uint32_t)
DEFINE_COMBINE(u8, uint8_t, uint32_t)
DEFINE_COMBINE(i32, int32_t, uint32_t)
DEFINE_COMBINE(i64, int64_t, uint64_t)
DEFINE_COMBINE(u64, uint64_t, uint64_t)

/* A block of one input as fp32. fp32 itself is returned where it lies. */
static const float *load_block(ordo_dtype dtype, const char *in, float *scratch, size_t count)
{
  if (dtype == ORDO_F32)
    return (const float *)(const void *)in;
  ordo_half_widen(dtype, (const uint16_t *)(const void *)in, (int64_t)count, scratch);
  return scratch;
}

static void store_block(ordo_dtype dtype, char *out, const float *acc, size_t count)
{
  if (dtype == ORDO_F32)
    memcpy(out, acc, count * sizeof(float));
  else
    ordo_half_narrow(dtype, acc, (int64_t)count, (uint16_t *)(void *)out);
}

/* f32, bf16, f16: one block at `offset` bytes, accumulated in fp32. */
static void reduce_block_f32(const kernels *k, const ordo_reduction *r, void *const *outputs, size_t n_outputs, const void *const *inputs,
                             size_t n_inputs, size_t offset, size_t count)
{
  float acc[BLOCK] __attribute__((aligned(64))), first[BLOCK] __attribute__((aligned(64))), second[BLOCK] __attribute__((aligned(64)));
  float factor = (float)r->factor;
  float before = r->factor_after ? 1.0f : factor, after = r->factor_after ? factor : 1.0f;
  const float *a = load_block(r->dtype, (const char *)inputs[0] + offset, first, count);
  if (r->op != ORDO_SUM) {
    memcpy(acc, a, count * sizeof *acc);
    for (size_t n = 1; n < n_inputs; n++)
      combine_f32(acc, load_block(r->dtype, (const char *)inputs[n] + offset, second, count), r->op, count);
  } else if (n_inputs == 1) {
    k->scale_f32(acc, a, factor, count);
  } else {
    const float *b = load_block(r->dtype, (const char *)inputs[1] + offset, second, count);
    k->sum2_f32(acc, a, b, before, n_inputs == 2 ? after : 1.0f, count);
    for (size_t n = 2; n < n_inputs; n++)
      k->add_f32(acc, load_block(r->dtype, (const char *)inputs[n] + offset, second, count), before, count);
    if (n_inputs > 2 && r->factor_after) {
      k->scale_f32(first, acc, after, count);
      memcpy(acc, first, count * sizeof *acc);
    }
  }
  for (size_t j = 0; j < n_outputs; j++)
    store_block(r->dtype, (char *)outputs[j] + offset, acc, count);
}

static void combine(const ordo_reduction *r, void *acc, const void *in, size_t count)
{
  switch (r->dtype) {
  case ORDO_F64:
    combine_f64(acc, in, r->op, count);
    break;
  case ORDO_I8:
    combine_i8(acc, in, r->op, count);
    break;
  case ORDO_U8:
    combine_u8(acc, in, r->op, count);
    break;
  case ORDO_I32:
    combine_i32(acc, in, r->op, count);
    break;
  case ORDO_I64:
    combine_i64(acc, in, r->op, count);
    break;
  default:
    combine_u64(acc, in, r->op, count);
  }
}

static void scale_f64(double *values, double factor, size_t count)
{
  for (size_t i = 0; i < count; i++)
    values[i] *= factor;
}

/* f64 and integers: accumulated in their own type. */
static void reduce_block_same(const ordo_reduction *r, void *const *outputs, size_t n_outputs, const void *const *inputs, size_t n_inputs,
                              size_t offset, size_t count)
{
  double acc[BLOCK], term[BLOCK]; /* as storage for any element type up to 8 bytes */
  size_t bytes = count * ordo_dtype_size(r->dtype);
  gboolean scaled = r->dtype == ORDO_F64 && r->op == ORDO_SUM && (r->factor < 1.0 || r->factor > 1.0);
  memcpy(acc, (const char *)inputs[0] + offset, bytes);
  if (scaled && !r->factor_after)
    scale_f64(acc, r->factor, count);
  for (size_t n = 1; n < n_inputs; n++) {
    memcpy(term, (const char *)inputs[n] + offset, bytes);
    if (scaled && !r->factor_after)
      scale_f64(term, r->factor, count);
    combine(r, acc, term, count);
  }
  if (scaled && r->factor_after)
    scale_f64(acc, r->factor, count);
  for (size_t j = 0; j < n_outputs; j++)
    memcpy((char *)outputs[j] + offset, acc, bytes);
}

void ordo_reduce(const ordo_reduction *reduction, void *const *outputs, size_t n_outputs, const void *const *inputs, size_t n_inputs,
                 size_t count)
{
  const kernels *k = choose_kernels();
  size_t size = ordo_dtype_size(reduction->dtype);
  gboolean in_f32 = reduction->dtype == ORDO_F32 || reduction->dtype == ORDO_BF16 || reduction->dtype == ORDO_F16;
  for (size_t i = 0; i < count; i += BLOCK) {
    size_t n = MIN((size_t)BLOCK, count - i);
    if (in_f32)
      reduce_block_f32(k, reduction, outputs, n_outputs, inputs, n_inputs, i * size, n);
    else
      reduce_block_same(reduction, outputs, n_outputs, inputs, n_inputs, i * size, n);
  }
}
